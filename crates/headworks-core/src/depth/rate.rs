//! Throughput with its uncertainty: samples of a few commands, and their mean.
//!
//! Invariants: a sample lasts from one completion to another, so a mean has no error from commands that were cut at its ends;
//! `sum` and `squares` are over `samples` samples.

use crate::time::{Instant, MS};

/// Commands in a sample, at least.
const SAMPLE_COMMANDS: u64 = 8;
/// Duration of a sample, at least.
const SAMPLE_NS: u64 = MS;
/// Samples of a mean, at least.
const SAMPLES_MIN: u32 = 4;
/// Largest standard error of a mean that is believed, as a part of it.
const ERROR_MAX: f64 = 0.015;

/// Counts of commands that completed since the start of a sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Number of commands, pieces included.
    pub commands: u64,
    /// Bytes, and the fixed cost of each request.
    pub cost: u64,
    /// Sum of the times from submission to completion.
    pub latency_ns: u64,
}

/// A finished sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Cost completed in a second.
    pub rate: f64,
    /// That of small requests alone.
    pub small_rate: f64,
    /// Mean time from submission to completion.
    pub latency_ns: u64,
    /// Mean number of commands in flight, by Little's law.
    pub in_flight: f64,
    /// Duration of the sample.
    pub ns: u64,
}

impl Sample {
    /// Returns the sample of `counts` from `since` to `now`, or `None` while it is too short.
    pub fn take(counts: &Counts, since: Instant, now: Instant) -> Option<Self> {
        let ns = now.since(since);
        if counts.commands < SAMPLE_COMMANDS || ns < SAMPLE_NS {
            return None;
        }
        debug_assert!(counts.cost > 0, "a command costs something");
        Some(Self {
            rate: counts.cost as f64 * 1e9 / ns as f64,
            small_rate: 0.0,
            latency_ns: counts.latency_ns / counts.commands,
            in_flight: counts.latency_ns as f64 / ns as f64,
            ns,
        })
    }
}

/// The mean of some samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    samples: u32,
    sum: f64,
    /// The sum of what small requests alone completed.
    small: f64,
    squares: f64,
    ns: u64,
}

impl Mean {
    /// Adds one sample to the mean.
    pub fn add(&mut self, sample: &Sample) {
        debug_assert!(sample.rate >= 0.0, "throughput is not negative");
        self.samples += 1;
        self.sum += sample.rate;
        self.small += sample.small_rate;
        self.squares += sample.rate * sample.rate;
        self.ns += sample.ns;
    }

    /// Returns the mean of the samples so far.
    pub fn rate(&self) -> f64 {
        self.sum / f64::from(self.samples.max(1))
    }

    /// Returns the mean of small requests alone.
    pub fn small_rate(&self) -> f64 {
        self.small / f64::from(self.samples.max(1))
    }

    /// Returns whether the mean may be judged at all.
    pub fn is_rough(&self) -> bool {
        self.samples >= SAMPLES_MIN
    }

    /// Returns whether its standard error is small enough to believe it.
    pub fn is_certain(&self) -> bool {
        self.samples >= SAMPLES_MIN && self.error_squared() <= ERROR_MAX * ERROR_MAX
    }

    /// Returns the square of its standard error, as a part of the mean.
    pub fn error_squared(&self) -> f64 {
        let count = f64::from(self.samples);
        let mean = self.sum / count.max(1.0);
        let variance = (self.squares - self.sum * mean).max(0.0) / (count - 1.0).max(1.0);
        variance / (count * mean * mean).max(1.0)
    }

    /// Returns the number of its samples.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the duration of its samples.
    pub fn ns(&self) -> u64 {
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(rates: &[f64]) -> Mean {
        let mut mean = Mean::default();
        for &rate in rates {
            mean.add(&Sample { rate, small_rate: 0.0, latency_ns: 1, in_flight: 1.0, ns: MS });
        }
        mean
    }

    #[test]
    fn sample_needs_commands_and_time() {
        let counts = Counts { commands: 8, cost: 1 << 20, latency_ns: 32 * MS };
        let sample = Sample::take(&counts, Instant(MS), Instant(3 * MS)).unwrap();
        assert_eq!((sample.latency_ns, sample.in_flight), (4 * MS, 16.0));
        assert!((sample.rate - 1024.0 * 1024.0 * 500.0).abs() < 1.0);
        assert!(Sample::take(&counts, Instant(MS), Instant(MS + MS / 2)).is_none());
        let few = Counts { commands: 7, ..counts };
        assert!(Sample::take(&few, Instant(0), Instant(9 * MS)).is_none());
    }

    #[test]
    fn mean_is_certain_when_samples_agree() {
        assert!(!mean(&[100.0; 3]).is_certain() && mean(&[100.0; 4]).is_certain());
        assert!(!mean(&[70.0, 130.0, 80.0, 120.0]).is_certain());
        let many: Vec<f64> = (0..400).map(|n| if n % 2 == 0 { 90.0 } else { 110.0 }).collect();
        assert!(mean(&many).is_certain());
        assert!((mean(&many).rate() - 100.0).abs() < 0.001);
    }
}
