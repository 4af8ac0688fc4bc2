//! The waits of a request between its header and its bio: for limits or the end of a freeze, for a buffer, and all that came before
//! the shard returned it, if it did.
//!
//! Invariant: a request that waited for neither costs one comparison.

use headworks_core::{Instant, WaitTimes};

/// How long a request waited before its bio was made, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontWaits {
    limit_ns: u64,
    buffer_ns: u64,
    /// The time before the shard returned the request, and what it waited for in it.
    returned: (u64, WaitTimes),
}

impl FrontWaits {
    /// A wait for limits alone.
    #[must_use]
    pub fn for_limits(limit_ns: u64) -> Self {
        Self { limit_ns, ..Self::default() }
    }

    /// What the shard knows of a request that it returned: since when it was there, in nanoseconds, and for what it waited.
    #[must_use]
    pub fn of_returned(ns: u64, wait_times: WaitTimes) -> Self {
        Self { returned: (ns, wait_times), ..Self::default() }
    }

    /// Adds a wait for limits, or for the end of a freeze.
    #[must_use]
    pub fn and_limits(self, ns: u64) -> Self {
        Self { limit_ns: self.limit_ns + ns, ..self }
    }

    /// Adds a wait for a buffer.
    #[must_use]
    pub fn and_buffer(self, ns: u64) -> Self {
        Self { buffer_ns: self.buffer_ns + ns, ..self }
    }

    /// Adds the waits of a later stage.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        debug_assert!(later.returned.0 == 0, "what comes later was not returned");
        self.and_limits(later.limit_ns).and_buffer(later.buffer_ns)
    }

    /// Whether the request waited for nothing.
    #[inline]
    #[must_use]
    pub fn is_none(self) -> bool {
        self.limit_ns | self.buffer_ns | self.returned.0 == 0
    }

    /// The time at which the waits began, of a request whose bio is made at `now`.
    #[must_use]
    pub fn began(self, now: Instant) -> Instant {
        Instant(now.0.saturating_sub(self.limit_ns + self.buffer_ns + self.returned.0))
    }

    /// The waits as the latency tables count them.
    #[must_use]
    pub fn wait_times(self) -> WaitTimes {
        WaitTimes::of_front(self.limit_ns, self.buffer_ns).with_front(self.returned.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::WaitKind;

    #[test]
    fn waits_are_counted_by_kind_and_precede_the_bio() {
        let waits = FrontWaits::for_limits(3_000).and_buffer(500).and_buffer(500);
        assert!(!waits.is_none() && FrontWaits::default().is_none());
        assert_eq!(waits.began(Instant(10_000)), Instant(6_000));
        assert_eq!(waits.began(Instant(1_000)), Instant(0), "a clock that has just started");
        let told = [WaitKind::Limit, WaitKind::Buffer, WaitKind::Device]
            .map(|wait| waits.wait_times().at_most(wait));
        assert_eq!(told, [3071, 1023, 0]);
        assert!(FrontWaits::default().wait_times().is_none());
    }

    #[test]
    fn what_a_returned_request_waited_for_is_kept() {
        let before = WaitTimes::of_front(9_000, 0);
        let waits = FrontWaits::of_returned(20_000, before).and_buffer(500);
        assert_eq!(waits.began(Instant(30_000)), Instant(9_500));
        let told = [WaitKind::Limit, WaitKind::Buffer].map(|wait| waits.wait_times().bucket(wait));
        let buffer = WaitTimes::of_front(0, 500).bucket(WaitKind::Buffer);
        assert_eq!(told, [before.bucket(WaitKind::Limit), buffer]);
        assert!(!FrontWaits::of_returned(1, WaitTimes::NONE).is_none());
    }
}
