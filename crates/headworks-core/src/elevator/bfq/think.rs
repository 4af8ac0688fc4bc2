//! What a queue's client does between requests: how long it thinks, how much of the time it has none, and how often it seeks.
//!
//! Source: Linux (`bfq_update_io_thinktime`, `bfq_update_has_short_ttime`, `bfq_check_ioprio_change`'s seek history).
//!
//! Invariant: `samples` and `total` are weighted sums of the same samples, so their quotient, the mean, is within the range
//! of the samples.

use crate::time::{Instant, MS};

/// Weighted samples from which on a mean think time counts: four or five.
const SAMPLES_MIN: u64 = 80;
/// The window over which idle time is counted; it is halved when it is longer.
const WINDOW_NS: u64 = 200 * MS;
/// Seeky requests of the last 32 above which a queue is seeky; of fewer requests the same part. Linux takes a queue to be sequential
/// for its first twenty: waited for after each of them, 300 new random readers kept a disk at half of its rate for minutes.
const SEEKY_MIN: u32 = 19;

/// The think time of a client and the pattern of its requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThinkTime {
    samples: u64,
    total: u64,
    short: bool,
    io_bound: bool,
    window: Instant,
    idle_ns: u64,
    /// One bit for each of the last 32 requests: it was seeky.
    seeks: u32,
    /// Number of those bits that are set.
    seeky: u32,
    /// Requests of which a bit is known, at most 32.
    known: u32,
}

impl ThinkTime {
    /// Creates the history of a new queue; `sync` says that a client waits for its requests.
    pub fn new(now: Instant, sync: bool) -> Self {
        Self {
            samples: 0,
            total: 0,
            short: sync,
            io_bound: true,
            window: now,
            idle_ns: 0,
            seeks: 0,
            seeky: 0,
            known: 0,
        }
    }

    /// Notes that the client sent a request `think_ns` after its last one ended, with nothing between; returns whether it changed
    /// between short and long.
    pub fn on_request(&mut self, think_ns: u64, slice_idle_ns: u64) -> bool {
        let think = think_ns.min(2 * slice_idle_ns);
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * think) / 8;
        debug_assert!(self.samples <= 256, "a weighted sum of ones");
        // The mean, (total + 128) / samples, is compared without the division.
        let long = self.total + 128 >= (slice_idle_ns / 2 + 1) * self.samples;
        let short = !(self.samples > SAMPLES_MIN && long);
        std::mem::replace(&mut self.short, short) != short
    }

    /// Counts the idle time before a request; `idle_since` is the end of the last one if nothing was outstanding.
    pub fn on_arrival(&mut self, now: Instant, idle_since: Option<Instant>) {
        if let Some(since) = idle_since {
            self.idle_ns += now.since(since);
        }
        let window = now.since(self.window);
        self.io_bound = self.idle_ns * 5 <= window;
        if window > WINDOW_NS {
            self.window = Instant(now.0 - window / 2);
            self.idle_ns /= 2;
        }
    }

    /// Notes whether a request was seeky, which the first one cannot be said to be; returns whether the queue changed between
    /// unknown, seeky and not.
    pub fn on_seek(&mut self, seeky: bool) -> bool {
        let before = self.is_seeky();
        self.seeky = self.seeky - (self.seeks >> 31) + u32::from(seeky);
        self.seeks = self.seeks << 1 | u32::from(seeky);
        self.known = (self.known + 1).min(u32::BITS);
        debug_assert!(self.seeky == self.seeks.count_ones(), "the bits are counted");
        self.is_seeky() != before || self.known == 1
    }

    /// Returns whether it is known if most requests are far from the one before.
    pub fn is_known(&self) -> bool {
        self.known > 0
    }

    /// Returns the mean think time.
    pub fn mean_ns(&self) -> u64 {
        (self.total + 128) / self.samples.max(1)
    }

    /// Returns whether the client thinks briefly: its next request is worth waiting for.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Returns whether the client has requests for at least four fifths of the time.
    pub fn is_io_bound(&self) -> bool {
        self.io_bound
    }

    /// Returns whether most requests are far from the one before.
    pub fn is_seeky(&self) -> bool {
        self.seeky * u32::BITS > SEEKY_MIN * self.known
    }

    /// Returns whether all of the last 32 requests were.
    pub fn is_totally_seeky(&self) -> bool {
        self.seeky == u32::BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn think_time_is_long_after_several_long_samples() {
        let mut think = ThinkTime::new(Instant(0), true);
        for n in 0..8 {
            let changed = think.on_request(7 * MS, 8 * MS);
            assert_eq!(changed, n == 2, "the third sample makes enough of them: {n}");
        }
        assert!(!think.is_short());
        (0..20).for_each(|_| _ = think.on_request(100_000, 8 * MS));
        assert!(think.is_short());
        // One long pause counts no more than twice the idling.
        think.on_request(3600 * 1_000_000_000, 8 * MS);
        assert!(think.is_short());
    }

    #[test]
    fn client_that_pauses_for_a_fifth_of_the_time_is_not_io_bound() {
        let mut think = ThinkTime::new(Instant(0), true);
        let mut now = 0;
        for _ in 0..100 {
            now += 10 * MS;
            think.on_arrival(Instant(now), Some(Instant(now - MS)));
        }
        assert!(think.is_io_bound(), "a tenth is little");
        for _ in 0..100 {
            now += 10 * MS;
            think.on_arrival(Instant(now), Some(Instant(now - 3 * MS)));
        }
        assert!(!think.is_io_bound());
    }

    #[test]
    fn new_queue_is_seeky_by_the_requests_that_it_has_had() {
        let mut think = ThinkTime::new(Instant(0), true);
        assert!(!think.is_seeky());
        let seeky = [true, false, true, true].map(|seeky| {
            think.on_seek(seeky);
            think.is_seeky()
        });
        assert_eq!(seeky, [true, false, true, true], "1 of 1, 1 of 2, 2 of 3, 3 of 4");
    }

    #[test]
    fn queue_is_seeky_above_19_of_32() {
        let mut think = ThinkTime::new(Instant(0), true);
        (0..32).for_each(|_| _ = think.on_seek(false));
        let changes: Vec<bool> = (0..20).map(|_| think.on_seek(true)).collect();
        assert_eq!(changes.iter().position(|&changed| changed), Some(19));
        assert!(think.is_seeky() && !think.is_totally_seeky());
        (0..32).for_each(|_| _ = think.on_seek(true));
        assert!(think.is_totally_seeky());
        (0..32).for_each(|_| _ = think.on_seek(false));
        assert!(!think.is_seeky());
    }
}
