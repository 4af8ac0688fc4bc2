//! Injection: while a queue keeps the device without having a request, others may use it as far as that does not hurt.
//!
//! Each queue has a limit on what is in the device meanwhile. It is found by measuring: the time from a request that comes to the
//! emptied queue until its completion, without and with injected requests. Source: Linux (`bfq_update_inject_limit`).
//!
//! Invariant: a limit is raised only while requests were injected and did not prolong that time by half.

use crate::time::{Instant, MS, SEC};

/// Time after which a limit is found anew.
const RESET_NS: u64 = SEC;
/// After a decrease no measurement begins for this time, after a change of the think time for ten times this.
const PAUSE_NS: u64 = 10 * MS;

/// The limit on requests in the device while a queue keeps it.
#[derive(Clone, Copy, Debug)]
pub(super) struct InjectLimit {
    limit: u32,
    /// The time of a request without injection; 0 while unknown.
    base_ns: u64,
    decreased: Instant,
}

impl InjectLimit {
    pub fn new(now: Instant) -> Self {
        Self { limit: 0, base_ns: 0, decreased: now }
    }

    /// Begins anew: with requests that follow each other shortly injection must first prove harmless.
    pub fn reset(&mut self, now: Instant, short_think: bool) {
        *self = Self { limit: u32::from(!short_think), base_ns: 0, decreased: now };
    }

    /// Returns whether the limit is old and found anew.
    pub fn is_old(&self, now: Instant) -> bool {
        now.since(self.decreased) >= RESET_NS
    }

    /// Returns whether a changed think time begins it anew.
    pub fn follows_think_time(&self, now: Instant, short_think: bool) -> bool {
        self.base_ns == 0 && (!short_think || now.since(self.decreased) >= 10 * PAUSE_NS)
    }

    /// Returns whether a measurement may begin.
    pub fn may_measure(&self, now: Instant) -> bool {
        now.since(self.decreased) >= PAUSE_NS
    }

    /// Returns whether the time without injection is known.
    pub fn has_base(&self) -> bool {
        self.base_ns > 0
    }

    /// Returns the limit; a queue that has been waited for in vain (`waited`) without a base tries one.
    pub fn get(&self, waited: bool) -> u32 {
        if self.limit == 0 && !self.has_base() && waited { 1 } else { self.limit }
    }

    /// Takes a measured time. `injected`: requests of others were in the device; `alone`: it was the only one there; `most`: the
    /// largest number that ever was there.
    pub fn on_measured(&mut self, now: Instant, ns: u64, injected: bool, alone: bool, most: u32) {
        let before = self.limit;
        if self.has_base() && injected {
            let harmful = ns >= self.base_ns + self.base_ns / 2;
            if harmful && before > 0 {
                self.limit -= 1;
                self.decreased = now;
            } else if !harmful && before <= most {
                self.limit += 1;
            }
        }
        if !self.has_base() && alone || ns < self.base_ns {
            if !self.has_base() {
                self.limit = before.max(1);
            }
            self.base_ns = ns.max(1);
        } else if !injected && alone {
            self.base_ns = ns.max(1);
        }
        debug_assert!(self.limit <= before + 1, "one step at a time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_grows_while_harmless_and_falls_when_not() {
        let mut limit = InjectLimit::new(Instant(0));
        assert_eq!((limit.get(false), limit.get(true)), (0, 1), "1 is tried after a wait in vain");
        limit.on_measured(Instant(0), 10 * MS, false, true, 8);
        assert_eq!(limit.get(false), 1);
        for n in 2..=9 {
            limit.on_measured(Instant(0), 14 * MS, true, false, 8);
            assert_eq!(limit.get(false), n);
        }
        limit.on_measured(Instant(0), 14 * MS, true, false, 8);
        assert_eq!(limit.get(false), 9, "not above what the device ever had, and one");
        limit.on_measured(Instant(20 * MS), 15 * MS, true, false, 8);
        assert_eq!(limit.get(false), 8);
        assert!(!limit.may_measure(Instant(29 * MS)) && limit.may_measure(Instant(30 * MS)));
        assert!(limit.is_old(Instant(SEC + 20 * MS)));
        limit.reset(Instant(SEC), true);
        assert_eq!((limit.get(false), limit.has_base()), (0, false));
    }
}
