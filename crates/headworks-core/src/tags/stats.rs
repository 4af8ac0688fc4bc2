//! Counters of a tag policy.

/// Counters since the policy was put in place; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagStats {
    /// Requests for tags so far.
    pub requests: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Requests that were granted all their tags.
    pub grants: u64,
    /// Newcomers that found enough free tags but did not pass the waiters.
    pub barging_prevented: u64,
    /// Newcomers that got tags before a waiter.
    pub barged: u64,
    /// The longest wait that has ended.
    pub longest_wait_ns: u64,
    /// Batches of grants to waiters; with old policies, batches of woken tasks.
    pub wakes: u64,
    /// Waiters granted by these batches; with old policies, woken tasks.
    pub woken: u64,
    /// Most tags that were free while a waiter was short of tags (it gathers them).
    pub idle_max: u32,
    /// Sum over time of the free tags while a waiter was short of tags, in tag-nanoseconds.
    pub idle_tag_ns: u64,
}
