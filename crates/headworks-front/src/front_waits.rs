//! The waits of a request between its header and its bio: for limits or the end of a freeze, for a buffer, and in the shard, if that
//! had it before and returned it.
//!
//! Invariant: a request that waited for neither costs one comparison.

use headworks_core::{Instant, WaitTimes};

/// How long a request waited before its bio was made, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrontWaits {
    limit_ns: u64,
    buffer_ns: u64,
    /// In the shard, and for what.
    shard: (u64, WaitTimes),
}

impl FrontWaits {
    /// A wait for limits alone.
    #[must_use]
    pub fn for_limits(limit_ns: u64) -> Self {
        Self { limit_ns, ..Self::default() }
    }

    /// Adds a time in the shard, which returned the request after these waits.
    #[must_use]
    pub fn and_shard(self, ns: u64, wait_times: WaitTimes) -> Self {
        Self { shard: (self.shard.0 + ns, self.shard.1.with_front(wait_times)), ..self }
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
        let (shard_ns, wait_times) = later.shard;
        self.and_limits(later.limit_ns).and_buffer(later.buffer_ns).and_shard(shard_ns, wait_times)
    }

    /// Whether the request waited for nothing.
    #[inline]
    #[must_use]
    pub fn is_none(self) -> bool {
        self.limit_ns | self.buffer_ns | self.shard.0 == 0
    }

    /// The time at which the waits began, of a request whose bio is made at `now`.
    #[must_use]
    pub fn began(self, now: Instant) -> Instant {
        Instant(now.0.saturating_sub(self.limit_ns + self.buffer_ns + self.shard.0))
    }

    /// The waits as the latency tables count them.
    #[must_use]
    pub fn wait_times(self) -> WaitTimes {
        WaitTimes::of_front(self.limit_ns, self.buffer_ns).with_front(self.shard.1)
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
    fn wait_in_the_shard_that_returned_the_request_is_kept() {
        let device = WaitTimes::from_word((waits_bucket() as u64) << (8 * WaitKind::Device as u32));
        let waits = FrontWaits::for_limits(3_000).and_shard(9_000, device).and_buffer(500);
        assert_eq!(waits.began(Instant(20_000)), Instant(7_500));
        assert_eq!(waits.wait_times().at_most(WaitKind::Limit), 3071);
        assert_eq!(waits.wait_times().bucket(WaitKind::Device), waits_bucket());
        assert!(!FrontWaits::default().and_shard(1, device).is_none());
    }

    fn waits_bucket() -> usize {
        WaitTimes::of_front(9_000, 0).bucket(WaitKind::Limit)
    }
}
