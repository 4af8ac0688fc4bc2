//! Time series of a run: counters and positions every 10 ms, and derived values.

use headworks_core::Instant;
use headworks_core::time::{MS, SEC};

/// Time between two samples.
pub const SAMPLE_NS: u64 = 10 * MS;

/// A sample. Counters run from the start; positions are the maximum since the previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time of the sample.
    pub at: Instant,
    /// Answered bytes of writes.
    pub accepted: u64,
    /// Bytes written to the devices.
    pub media: u64,
    /// Bytes dirty or under write-out, at the time of the sample.
    pub dirty: u64,
    /// Maximum of those bytes since the previous sample.
    pub dirty_max: u64,
    /// The dirty limit in bytes.
    pub limit: u64,
    /// The background threshold in bytes.
    pub background: u64,
    /// The longest pause that ended since the previous sample.
    pub pause_max_ns: u64,
    /// Number of pauses that ended since the previous sample.
    pub pauses: u32,
    /// Sum of those pauses in nanoseconds.
    pub pause_sum_ns: u64,
    /// Number of turns of the shard.
    pub turns: u64,
    /// Number of writer wake-ups.
    pub wakeups: u64,
    /// Number of active writers.
    pub writers: u32,
}

/// Bytes per second between two samples.
fn rate(from: &Sample, to: &Sample, of: fn(&Sample) -> u64) -> f64 {
    let ns = to.at.since(from.at).max(1);
    (of(to) - of(from)) as f64 * 1e9 / ns as f64
}

/// Least writes of a window in which the rate is judged: their number scatters by a thirtieth, a third of the band.
const WINDOW_WRITES: f64 = 900.0;

/// Settling time of a phase in milliseconds: until the dirtying rate, over each following window of
/// the phase, is within 10 % of the device's rate in the last half of the phase. `None` if it never
/// is. A window is a second, or longer where writes of `write` bytes are few, and then one write of each
/// writer or several: writers that began together write together.
#[must_use]
pub fn settled_ms(samples: &[Sample], write: u64, from: Instant, to: Instant) -> Option<u64> {
    let first = samples.partition_point(|sample| sample.at < from);
    let last = samples.partition_point(|sample| sample.at <= to);
    let phase = &samples[first..last];
    let goal = rate(phase.get(phase.len() / 2)?, phase.last()?, |sample| sample.media);
    let writers = f64::from(phase.get(phase.len() / 2)?.writers.max(1));
    let rounds = (WINDOW_WRITES / writers).ceil();
    let writes_ns = rounds * writers * write as f64 * 1e9 / goal.max(1.0);
    let window = (writes_ns as u64).max(SEC).div_ceil(SAMPLE_NS) as usize;
    if phase.len() <= 2 * window {
        return None;
    }
    let starts = 0..phase.len() - window;
    let off = |&start: &usize| {
        let found = rate(&phase[start], &phase[start + window], |sample| sample.accepted);
        (found - goal).abs() > 0.1 * goal
    };
    match starts.clone().rev().find(off) {
        None => Some(0),
        Some(start) if start + 1 == starts.end => None,
        Some(start) => Some((start as u64 + 1) * SAMPLE_NS / MS),
    }
}

/// Averages of a rate over `ns`, in MB/s, as (seconds, value).
#[must_use]
pub fn rates(samples: &[Sample], ns: u64, of: fn(&Sample) -> u64) -> Vec<(f64, f64)> {
    let step = (ns / SAMPLE_NS).max(1) as usize;
    let picked: Vec<&Sample> = samples.iter().step_by(step).collect();
    let pair = |pair: &[&Sample]| (pair[1].at.0 as f64 / 1e9, rate(pair[0], pair[1], of) / 1e6);
    picked.windows(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device at 100 MB/s, and writers at that times `factor(second)`.
    fn run(factor: impl Fn(f64) -> f64) -> Vec<Sample> {
        let mut sample = Sample::default();
        let next = |index: u64| {
            sample.at = Instant(index * SAMPLE_NS);
            sample.media += 1_000_000;
            sample.accepted += (1e6 * factor(sample.at.0 as f64 / 1e9)) as u64;
            sample
        };
        (0..=1000).map(next).collect()
    }

    #[test]
    fn settled_is_when_every_later_second_is_within_a_tenth() {
        let settle = |factor: &dyn Fn(f64) -> f64| {
            settled_ms(&run(factor), 65_536, Instant(0), Instant(10 * SEC))
        };
        assert_eq!(settle(&|_| 1.0), Some(0));
        assert_eq!(settle(&|_| 1.11), None);
        // Half the rate for two seconds: a second is in the band when at most a fifth of it is from
        // before.
        let found = settle(&|second| if second < 2.0 { 0.5 } else { 1.0 }).unwrap();
        assert!((1790..=1810).contains(&found), "{found}");
        // A deviation of 9 ms more than 10 % in a single second is found, at any time.
        let late = |second: f64| if (6.0..6.5).contains(&second) { 1.3 } else { 1.0 };
        assert!(settle(&late).unwrap() > 6000);
    }

    #[test]
    fn few_writes_are_judged_in_longer_windows() {
        // 100 writes of 1 MB a second: nine seconds are no half of the phase, 900 of 1 KB are.
        let settle = |write| settled_ms(&run(|_| 1.0), write, Instant(0), Instant(10 * SEC));
        assert_eq!([settle(1_000_000), settle(500_000)], [None, Some(0)]);
    }

    #[test]
    fn rates_are_averages_between_samples() {
        let found = rates(&run(|_| 0.5), 100 * MS, |sample| sample.accepted);
        assert_eq!(found.len(), 100);
        assert!(found.iter().all(|&(_, rate)| (rate - 50.0).abs() < 1e-6));
        assert!((found[0].0 - 0.1).abs() < 1e-9);
    }
}
