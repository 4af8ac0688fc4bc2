//! Estimates a device's write bandwidth.
//!
//! A sample is the blocks completed between two completions at least [`WINDOW_NS`] apart, over the time with blocks under
//! writeback. The estimate is the mean of the last five samples without the slowest and the fastest.
//!
//! ```text
//!     completions  |  | |  |  |          | | |  |  |       (a device that stalls, then goes on)
//!     samples      +---------+-------------+-------+
//!                     fast    one slow one   fast          the slow one is left out
//! ```
//!
//! Stalls still count: a sample of less than half the rate of both neighbours is a stall, and the estimate is lowered by the
//! fraction of time that stalls took in the last [`MEMORY_NS`]. So it is the long-term mean, without a swing at every stall.
//!
//! Differences from Linux, which averages 200 ms samples over 3 s and filters the average again:
//!
//! - *Samples end at completions, with all that completes at that time.* A command of several requests completes as many at once, so the
//!   last sample grows by what follows it at its time. A device that completes 32 MB at once gives samples of exactly one burst and its period; fixed
//!   windows would contain 0, 2 and 1 bursts by turns. A stall of any length is one sample.
//! - *Short samples.* Three samples after a step the estimate is the new bandwidth: 0.15 s, where 3 s of averaging take 10..15.
//! - *No idle time.* Idle time does not count, so nothing is reset after a pause, and throttled writers that leave the device idle
//!   do not lower the estimate.

use crate::time::{Instant, MS, SEC};

/// Shortest sample: 50 ms. Until three samples are new, writers dirty at the old rate, and the excess must fit between set point and
/// limit: a step of 500 MB/s fills the 94 MB of a 4 GiB pool in 190 ms.
pub const WINDOW_NS: u64 = 50 * MS;

/// Shortest first sample; until then the estimate is [`INITIAL`].
const FIRST_WINDOW_NS: u64 = 20 * MS;

/// Time over which stalls count: three periods of a device that stalls every two seconds.
const MEMORY_NS: u64 = 6 * SEC;

/// The estimate before the first sample, as in Linux: 100 MB/s in blocks a second.
pub const INITIAL: u64 = 25_600;

/// Samples that the estimate is made of.
const SAMPLES: usize = 5;

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    blocks: u64,
    ns: u64,
}

impl Sample {
    fn rate(self) -> u64 {
        (u128::from(self.blocks) * u128::from(SEC) / u128::from(self.ns.max(1))) as u64
    }
}

/// The write bandwidth of one device, in blocks a second.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    samples: [Sample; SAMPLES],
    /// Number of samples taken so far.
    taken: u64,
    /// Blocks written since the last sample.
    blocks: u64,
    /// The end of the last sample, plus the idle time since.
    stamp: Instant,
    /// The time since when nothing is under writeback.
    idle: Option<Instant>,
    /// The end of the last sample.
    sampled: Instant,
    /// Time lost in stalls within the memory, in nanoseconds.
    lost_ns: u64,
    /// The same before the last sample.
    lost_before_ns: u64,
    estimate: u64,
}

impl Default for Bandwidth {
    fn default() -> Self {
        Self {
            samples: [Sample::default(); SAMPLES],
            taken: 0,
            blocks: 0,
            stamp: Instant(0),
            idle: Some(Instant(0)),
            sampled: Instant(0),
            lost_ns: 0,
            lost_before_ns: 0,
            estimate: INITIAL,
        }
    }
}

impl Bandwidth {
    /// Ends idle time: blocks went under writeback.
    pub fn on_writeout(&mut self, now: Instant) {
        if let Some(idle) = self.idle.take() {
            self.stamp = self.stamp.after(now.since(idle));
        }
    }

    /// Counts `blocks` written while `left` are still under writeback. Returns true when the estimate is new.
    pub fn on_written(&mut self, now: Instant, blocks: u32, left: u32) -> bool {
        if left == 0 && self.idle.is_none() {
            self.idle = Some(now);
        }
        if self.taken > 0 && now == self.sampled {
            self.last_mut().blocks += u64::from(blocks);
            self.lost_ns = self.lost_before_ns;
        } else {
            self.blocks += u64::from(blocks);
            let elapsed = now.since(self.stamp);
            let window = if self.taken == 0 { FIRST_WINDOW_NS } else { WINDOW_NS };
            if elapsed < window {
                return false;
            }
            self.taken += 1;
            *self.last_mut() = Sample { blocks: self.blocks, ns: elapsed };
            (self.blocks, self.stamp, self.sampled) = (0, now, now);
            self.lost_before_ns = self.lost_ns;
        }
        self.remember_stall();
        let left = u128::from(self.trimmed_mean()) * u128::from(MEMORY_NS - self.lost_ns);
        self.estimate = (left / u128::from(MEMORY_NS)).max(1) as u64;
        assert!(self.lost_ns <= MEMORY_NS, "more time was lost than passed");
        true
    }

    fn last_mut(&mut self) -> &mut Sample {
        &mut self.samples[(self.taken - 1) as usize % SAMPLES]
    }

    /// Counts the sample before the last if it was a stall, and lets older stalls fade.
    fn remember_stall(&mut self) {
        let elapsed = self.last_mut().ns;
        let faded = u128::from(self.lost_ns) * u128::from(elapsed.min(MEMORY_NS));
        self.lost_ns -= (faded / u128::from(MEMORY_NS)) as u64;
        if self.taken < 3 {
            return;
        }
        let back = |ago: u64| self.samples[(self.taken - 1 - ago) as usize % SAMPLES];
        let (between, around) = (back(1), back(0).rate().min(back(2).rate()));
        if between.rate() < around / 2 {
            let worked = u128::from(between.blocks) * u128::from(SEC) / u128::from(around);
            let lost = between.ns.saturating_sub(worked as u64);
            self.lost_ns = (self.lost_ns + lost).min(MEMORY_NS / 2);
            assert!(worked <= u128::from(between.ns), "a stall works less than it lasts");
        }
    }

    /// Handles blocks that completed with an error, which count for nothing.
    pub fn on_failed(&mut self, now: Instant, left: u32) {
        self.on_written(now, 0, left);
    }

    /// The estimate, at least 1 (`BdiWriteBandwidth`).
    #[must_use]
    pub fn get(&self) -> u64 {
        self.estimate
    }

    /// The estimate, if there is a sample.
    #[must_use]
    pub fn measured(&self) -> Option<u64> {
        (self.taken > 0).then_some(self.estimate)
    }

    /// The rate of the last sample (`write_bw` of the trace event).
    #[must_use]
    pub fn last(&self) -> u64 {
        match self.taken {
            0 => INITIAL,
            taken => self.samples[(taken - 1) as usize % SAMPLES].rate(),
        }
    }

    /// The mean rate without the slowest and the fastest sample; with fewer than three samples the newest.
    fn trimmed_mean(&self) -> u64 {
        let count = SAMPLES.min(self.taken as usize);
        if count < 3 {
            return self.last().max(1);
        }
        let samples = &self.samples[..count];
        let by_rate = |at: &usize| samples[*at].rate();
        let slowest = (0..count).min_by_key(by_rate).unwrap_or(0);
        let fastest = (0..count).rev().max_by_key(by_rate).unwrap_or(0);
        let mut sum = Sample::default();
        for (at, sample) in samples.iter().enumerate() {
            if at != slowest && at != fastest {
                sum.blocks += sample.blocks;
                sum.ns += sample.ns;
            }
        }
        assert!(sum.ns > 0, "a mean over no time");
        sum.rate().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completes `step` blocks every `every` nanoseconds from `from` on, for `ns`; returns the end.
    fn run(bandwidth: &mut Bandwidth, from: Instant, ns: u64, step: u32, every: u64) -> Instant {
        let mut now = from;
        while now.since(from) < ns {
            now = now.after(every);
            bandwidth.on_written(now, step, 1000);
        }
        now
    }

    fn started(at: Instant) -> Bandwidth {
        let mut bandwidth = Bandwidth::default();
        bandwidth.on_writeout(at);
        bandwidth
    }

    fn near(ours: u64, true_rate: u64, percent: u64) -> bool {
        ours.abs_diff(true_rate) * 100 <= true_rate * percent
    }

    #[test]
    fn first_sample_replaces_the_initial_estimate() {
        for (step, every, rate) in [(16, 12 * MS, 1333), (1700, MS, 1_700_000)] {
            let mut bandwidth = started(Instant(5 * SEC));
            assert_eq!(bandwidth.get(), INITIAL);
            run(&mut bandwidth, Instant(5 * SEC), 30 * MS, step, every);
            assert!(near(bandwidth.get(), rate, 2), "{} of {rate}", bandwidth.get());
        }
    }

    #[test]
    fn estimate_follows_a_step_within_four_samples() {
        let mut bandwidth = started(Instant(0));
        let now = run(&mut bandwidth, Instant(0), 2 * SEC, 171, MS);
        assert!(near(bandwidth.get(), 171_000, 2));
        let now = run(&mut bandwidth, now, 420 * MS, 49, MS);
        assert!(near(bandwidth.get(), 49_000, 5), "down: {}", bandwidth.get());
        run(&mut bandwidth, now, 420 * MS, 171, MS);
        assert!(near(bandwidth.get(), 171_000, 5), "up: {}", bandwidth.get());
    }

    #[test]
    fn bursts_leave_the_estimate_steady() {
        let mut bandwidth = started(Instant(0));
        let mut now = Instant(0);
        for burst in 0..40 {
            now = now.after(327_680_000);
            // One burst is many calls with one time.
            for _ in 0..64 {
                bandwidth.on_written(now, 128, 9000);
            }
            if burst > 6 {
                assert!(near(bandwidth.get(), 25_000, 2), "{} after {burst}", bandwidth.get());
            }
        }
    }

    /// Commands of one to five requests, each of which completes at once and takes longer than a window.
    #[test]
    fn requests_of_one_command_are_in_one_sample() {
        let (mut bandwidth, mut now) = (started(Instant(0)), Instant(0));
        for turn in 0..200_u64 {
            let (requests, size) = (1 + turn % 5, 40 + 60 * (turn % 2) as u32);
            now = now.after(requests * u64::from(size) * MS);
            (0..requests).for_each(|_| {
                bandwidth.on_written(now, size, 1000);
            });
            assert!(near(bandwidth.last(), 1000, 1), "{} in turn {turn}", bandwidth.last());
            assert!(near(bandwidth.get(), 1000, 1), "{} after turn {turn}", bandwidth.get());
        }
    }

    #[test]
    fn single_stall_is_ignored_and_many_are_averaged() {
        let mut bandwidth = started(Instant(0));
        let mut now = run(&mut bandwidth, Instant(0), 1600 * MS, 171, MS);
        for stall in 0..20 {
            now = run(&mut bandwidth, now.after(400 * MS), 5 * MS, 171, MS);
            assert!(bandwidth.last() < 90_000, "the sample with the stall");
            assert!(bandwidth.get() > 120_000, "{} right after {stall}", bandwidth.get());
            now = run(&mut bandwidth, now, 295 * MS, 171, MS);
            let (after, mean) = (bandwidth.get(), 171_000 * 8 / 10);
            now = run(&mut bandwidth, now, 1300 * MS, 171, MS);
            let before = bandwidth.get();
            if stall == 0 {
                assert!(near(after, 171_000, 10), "{after}");
            } else if stall > 9 {
                assert!(near(after, mean, 10) && near(before, mean, 10), "{after} {before}");
            }
        }
        run(&mut bandwidth, now, 30 * SEC, 171, MS);
        assert!(near(bandwidth.get(), 171_000, 2), "after the stalls faded: {}", bandwidth.get());
    }

    #[test]
    fn idle_time_leaves_the_estimate_unchanged() {
        let mut bandwidth = started(Instant(0));
        let mut now = Instant(0);
        for _ in 0..300 {
            // 10 ms of writing at 1000 blocks a millisecond, then 90 ms of nothing.
            for left in (0..10).rev() {
                now = now.after(MS);
                bandwidth.on_written(now, 1000, left);
            }
            now = now.after(90 * MS);
            bandwidth.on_writeout(now);
        }
        assert!(near(bandwidth.get(), 1_000_000, 2), "{}", bandwidth.get());
    }
}
