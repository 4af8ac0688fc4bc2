//! What a tag policy counts.

/// Counts since the policy was put in place; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagStats {
    /// Wishes.
    pub requests: u64,
    /// Wishes that had to wait.
    pub waits: u64,
    /// Wishes that were granted whole.
    pub grants: u64,
    /// Newcomers for whom tags were free while others waited, and who were not let past them.
    pub barging_prevented: u64,
    /// Newcomers who took a tag while others waited.
    pub barged: u64,
    /// The longest wait that has ended.
    pub longest_wait_ns: u64,
    /// Times that somebody was woken: a batch of grants (`fair`), a batch of tasks (the baselines).
    pub wakes: u64,
    /// Those who were woken by them.
    pub woken: u64,
    /// The most tags that were free while somebody waited (the head gathers its want).
    pub idle_max: u32,
    /// Free tags while somebody waited, times the nanoseconds that lasted.
    pub idle_tag_ns: u64,
}
