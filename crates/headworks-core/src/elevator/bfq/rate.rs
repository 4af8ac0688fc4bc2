//! The peak rate of the device, measured while it is busy.
//!
//! A window of about a second counts the sectors that were dispatched and how many requests were sequential. It closes when it is
//! a second old, when the device has been idle, or when completions come so slowly that the device must have been. A window that is
//! mostly random tells little of the peak: it may raise it and never lowers it. Source: Linux (`bfq_update_peak_rate`).
//!
//! Invariants: the rate is at least 1; a window closes before it counts more than one request beyond its second.

use crate::time::{Instant, MS, SEC, US};

/// Requests without which a window says nothing.
const SAMPLES_MIN: u32 = 32;
/// Time without which a window says nothing.
const WINDOW_MIN_NS: u64 = 300 * MS;
/// Time after which a window closes.
const WINDOW_NS: u64 = SEC;
/// A dispatch to an idle device so long after the last one begins a new window.
const PAUSE_NS: u64 = 100 * MS;
/// A device that completed so recently counts as busy.
const BUSY_NS: u64 = 2 * MS;
/// Rates above this (sectors per microsecond, 10 GB/s) come from a device's cache, not its media.
const RATE_MAX: u64 = 20 << 16;
/// A completion at less than this rate ends a window: the device has done something else.
const SLOW_RATE: u64 = 64;

/// The peak rate, in sectors per microsecond << 16.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeakRate {
    peak: u64,
    samples: u32,
    sequential: u32,
    sectors: u64,
    /// The largest of the last requests.
    largest: u32,
    first: Instant,
    last: Instant,
    completed: Instant,
}

impl PeakRate {
    /// Creates the rate of a device of its kind: two thirds of a usual one.
    pub fn new(rotational: bool) -> Self {
        Self {
            peak: Self::usual(rotational) * 2 / 3,
            samples: 0,
            sequential: 0,
            sectors: 0,
            largest: 0,
            first: Instant(0),
            last: Instant(0),
            completed: Instant(0),
        }
    }

    /// Returns the rate of a usual device: 109 MB/s with a rotating medium, otherwise 258 MB/s. As Linux.
    pub const fn usual(rotational: bool) -> u64 {
        if rotational { 14_000 } else { 33_000 }
    }

    /// Returns the peak rate, in sectors per microsecond << 16.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Counts a request that is dispatched while the device has `in_device` others.
    pub fn on_dispatch(&mut self, now: Instant, sectors: u32, seeky: bool, in_device: u32) {
        if self.samples == 0 {
            return self.open(now, sectors);
        }
        if now.since(self.last) > PAUSE_NS && in_device == 0 {
            self.close(self.last);
            return self.open(now, sectors);
        }
        self.samples += 1;
        let busy = in_device > 0 || now.since(self.completed) < BUSY_NS;
        self.sequential += u32::from(busy && !seeky);
        self.sectors += u64::from(sectors);
        let begins = self.samples.is_multiple_of(SAMPLES_MIN);
        self.largest = if begins { sectors } else { self.largest.max(sectors) };
        self.last = now;
        if now.since(self.first) >= WINDOW_NS {
            self.close(now);
            self.open(now, sectors);
        }
        debug_assert!(self.sequential <= self.samples, "each request counts once");
    }

    /// Notes that the device completed a request.
    pub fn on_complete(&mut self, now: Instant) {
        let us = now.since(self.completed) / US;
        let slow = us > BUSY_NS / US && (u64::from(self.largest) << 16) / us < SLOW_RATE;
        if slow && self.samples > 0 {
            self.close(self.last);
            self.samples = 0;
        }
        self.completed = now;
    }

    fn open(&mut self, now: Instant, sectors: u32) {
        (self.first, self.last) = (now, now);
        (self.samples, self.sequential) = (1, 0);
        (self.sectors, self.largest) = (sectors.into(), sectors);
    }

    /// Takes the window's rate over; it lasted until `end`, or until the last completion if that came later.
    fn close(&mut self, end: Instant) {
        let age = end.max(self.completed).since(self.first);
        if self.samples < SAMPLES_MIN || end.since(self.first) < WINDOW_MIN_NS {
            return;
        }
        let rate = (self.sectors << 16) / (age / US).max(1);
        let random = self.sequential < self.samples * 3 / 4;
        if random && rate <= self.peak || rate > RATE_MAX {
            return;
        }
        let weight = u64::from(9 * self.sequential / self.samples);
        let weight = (weight * age / SEC).min(8);
        let divisor = 10 - weight;
        self.peak = (self.peak * (divisor - 1) / divisor + rate / divisor).max(1);
        debug_assert!((2..=10).contains(&divisor), "a window is weighed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    /// Runs `load` for `seconds`: requests of 256 sectors one after the other, each taking `ns`.
    fn run(rate: &mut PeakRate, from: u64, seconds: u64, ns: u64, seeky: bool) -> u64 {
        let (mut now, end) = (from, from + seconds * SEC);
        while now < end {
            rate.on_dispatch(Instant(now), 256, seeky, 0);
            now += ns;
            rate.on_complete(Instant(now));
        }
        now
    }

    /// P19: a sequential load finds the media rate within a tenth in ten seconds, and a random one does not lower it.
    #[test]
    fn peak_rate_converges_under_sequential_load_only() {
        // 50 to 500 MB/s.
        for ns in [2_621_440, 1_310_720, 262_144] {
            let mut rate = PeakRate::new(true);
            let now = run(&mut rate, SEC, 10, ns, false);
            let media = (256_u64 << 16) * US / ns;
            let near = |rate: u64| rate.abs_diff(media) * 10 < media;
            assert!(near(rate.peak()), "{} of {media}", rate.peak());
            run(&mut rate, now, 10, 8 * MS, true);
            assert!(near(rate.peak()), "random: {} of {media}", rate.peak());
        }
    }

    #[test]
    fn idle_time_is_not_counted() {
        let (mut rate, mut now) = (PeakRate::new(true), SEC);
        let mut prng = Prng::new(1);
        for _ in 0..40 {
            now = run(&mut rate, now, 1, 1_310_720, false) + prng.between(SEC, 10 * SEC);
        }
        let media = (256_u64 << 16) * US / 1_310_720;
        assert!(rate.peak().abs_diff(media) * 10 < media, "{} of {media}", rate.peak());
    }
}
