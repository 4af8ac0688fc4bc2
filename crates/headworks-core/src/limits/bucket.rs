//! A leaky bucket: one rate, exact in any interval.
//!
//! The level leaks at the rate and rises by the cost of what is admitted. A request is admitted iff the level is at most the size,
//! whatever it costs, so the level never exceeds the size by more than one request. Source: the throttling of QEMU (util/throttle.c),
//! with integers instead of floating point, and with a slack of 4 ms at the rate: a wake-up that is late by less loses nothing,
//! because the level has not reached 0 by then.
//!
//! Invariants: level >= 0; no debt is forgiven before it has leaked; no credit beyond the size is kept.

use crate::time::{Instant, MS, SEC};

/// Parts of a unit (a byte, an I/O) that costs are counted in: a rate in units a second leaks as many parts a nanosecond.
pub(super) const PARTS: u64 = SEC;

/// What a bucket holds at its rate: a wake-up may be as late without a loss.
pub(super) const SLACK_NS: u64 = 4 * MS;

/// The state of one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Units a second.
    rate: u64,
    /// The level up to which requests are admitted, in parts.
    size: u128,
    /// What was admitted and has not leaked, in parts.
    level: u128,
    at: Instant,
}

impl Bucket {
    /// Creates an empty bucket of the usual slack.
    pub fn new(now: Instant, rate: u64) -> Self {
        Self::with_size(now, rate, u128::from(rate) * u128::from(SLACK_NS))
    }

    /// Creates an empty bucket that admits `max` units a second for `length_ns` after a rest, and `rate` then.
    pub fn burst(now: Instant, rate: u64, max: u64, length_ns: u64) -> Self {
        assert!(max > rate, "a burst is faster than the average");
        Self::with_size(now, rate, u128::from(max - rate) * u128::from(length_ns))
    }

    fn with_size(now: Instant, rate: u64, size: u128) -> Self {
        assert!(rate > 0, "a rate of 0 never admits");
        Self { rate, size, level: 0, at: now }
    }

    /// Lowers the level by what has leaked until now.
    #[inline]
    pub fn settle(&mut self, now: Instant) {
        let leaked = u128::from(self.rate) * u128::from(now.since(self.at));
        self.level = self.level.saturating_sub(leaked);
        self.at = self.at.max(now);
    }

    /// Returns the nanoseconds until the next request is admitted; `extra_ns` of the rate are added to the size.
    #[inline]
    pub fn wait_ns(&self, extra_ns: u64) -> u64 {
        let size = self.size + u128::from(self.rate) * u128::from(extra_ns);
        if self.level <= size {
            return 0;
        }
        let over = (self.level - size).div_ceil(u128::from(self.rate));
        u64::try_from(over).unwrap_or(u64::MAX)
    }

    /// Charges a cost in parts.
    #[inline]
    pub fn charge(&mut self, parts: u64) {
        self.level = self.level.saturating_add(u128::from(parts));
    }

    /// Takes parts back that were charged and not used.
    pub fn refund(&mut self, parts: u64) {
        self.level = self.level.saturating_sub(u128::from(parts));
    }

    /// Returns the nanoseconds in which the level leaks to 0.
    pub fn level_ns(&self) -> u64 {
        u64::try_from(self.level / u128::from(self.rate)).unwrap_or(u64::MAX)
    }

    /// Charges what the rate admits in a time.
    pub fn charge_ns(&mut self, ns: u64) {
        self.level = self.level.saturating_add(u128::from(self.rate) * u128::from(ns));
    }

    /// Returns the units that the rate admits in a time.
    pub fn units_in(&self, ns: u64) -> u64 {
        u64::try_from(u128::from(self.rate) * u128::from(ns) / u128::from(PARTS))
            .unwrap_or(u64::MAX)
    }

    /// Whether the level may rise by `parts` without exceeding the size.
    pub fn has_room(&self, parts: u64) -> bool {
        self.level.saturating_add(u128::from(parts)) <= self.size
    }

    /// Continues with what another bucket had admitted: the level lasts as long at the new rate, so a change is neither a burst
    /// nor a stall.
    pub fn follow(&mut self, before: &Self) {
        let whole = before.level / u128::from(before.rate);
        let rest = before.level % u128::from(before.rate);
        let rate = u128::from(self.rate);
        self.level = whole.saturating_mul(rate) + rest * rate / u128::from(before.rate);
        self.at = before.at;
    }

    /// Returns the nanoseconds that a cost takes at the rate.
    #[inline]
    pub fn span_ns(&self, parts: u64) -> u64 {
        parts.div_ceil(self.rate)
    }
}
