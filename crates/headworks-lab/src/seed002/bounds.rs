//! Bounds that make goals of seed 002 unreachable, and the known misses that they explain.
//!
//! ```text
//!   rate       a visit to a stream finds at most 2 * dirty / writers bytes (Little's law: dirty data are half a
//!              round old), or one write, and pays one change of stream; dirty is the mean of the run
//!   wake-ups   a writer sleeps after a whole number of writes, for at most 200 ms, and at most half of the time
//!              in which the device writes what is dirty: beyond it the device would run out of dirty data
//!   pauses     a write at the writer's share of the bandwidth takes writers * write / bandwidth, as the histogram shows it
//!   settling   a write cannot be taken back: the device needs writers * write / bandwidth for the first write of each that comes, and
//!              for the last of each that leaves
//!   overwrites of random blocks of S bytes with D dirty, D / S find their block dirty and cost the device nothing, and what is written is
//!              in runs of 1 / (1 - D / S) blocks, each of which pays a change of stream; D is the set point of the pauses,
//!              and the limit where nothing pauses
//! ```
//!
//! A bound that is within the goal explains nothing ([`Verdict::bounded`]).

use headworks_nbd::client::Histogram;

use crate::report::{Figure, Outcome, Verdict};

/// Dirty limit as a part of the pool (`dirty_ratio`).
const DIRTY_PART: f64 = 0.2;
/// The set point and the limit of all writers but real-time ones, as parts of the dirty limit.
const SETPOINT: f64 = (0.75 + LIMIT) / 2.0;
const LIMIT: f64 = 31.0 / 32.0;
/// Bytes of a block.
const BLOCK: f64 = 4096.0;
/// Largest command in bytes, and time of a command.
const COMMAND: f64 = 1_310_720.0;
const PER_COMMAND_NS: f64 = 10_000.0;
const PAUSE_NS: f64 = 200e6;
/// Today's part of one writer's rate with 100 writers and 4 GiB, where the bound is 0.992 and the goal 0.99.
const MORE_VISITS: Figure = Figure::new(0.9891);
/// Today's part of the overwrites without pauses on a disk, where the bound at the set point is 0.81: less than there is dirty, as the
/// curve of the pauses is flat around it.
const OVERWRITES: Figure = Figure::new(0.7251);
/// Today's slowest settling in milliseconds where the bound does not explain it, and writes of 4 KiB settle within the goal.
const SETTLING: Figure = Figure::new(23_120.0);

/// What a bound is computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Number of writers of the run.
    pub writers: u64,
    /// Bytes per second of the device.
    pub bandwidth: u64,
    /// Bytes of the cache.
    pub pool: u64,
    /// Mean of the dirty bytes as a part of their limit.
    pub dirty: f64,
    /// Bytes of a write.
    pub write: u64,
    /// Cost of a change of stream.
    pub switch_ns: u64,
}

impl Load {
    fn dirty_bytes(&self) -> f64 {
        self.pool as f64 * DIRTY_PART * self.dirty
    }

    /// The most bytes that a visit to a stream finds. Where a writer's part of what is dirty is less
    /// than a write, most streams have nothing dirty and the others one write.
    fn visit(&self) -> f64 {
        let write = self.write as f64;
        match self.dirty_bytes() < self.writers as f64 * write {
            true => write,
            false => 2.0 * self.dirty_bytes() / self.writers as f64,
        }
    }

    /// The largest rate in bytes per second.
    fn rate(&self) -> f64 {
        let bytes_ns = |bytes: f64| bytes * 1e9 / self.bandwidth as f64;
        let visit = self.visit();
        let commands = (visit / COMMAND).max(1.0) * PER_COMMAND_NS;
        visit * 1e9 / (bytes_ns(visit) + commands + self.switch_ns as f64)
    }

    /// The fewest wake-ups a second at a rate in bytes per second.
    fn wakeups(&self, rate: f64) -> f64 {
        let drain_ns = self.dirty_bytes() * 1e9 / self.bandwidth as f64;
        let pause_ns = PAUSE_NS.min(drain_ns / 2.0);
        let writes = rate * pause_ns / 1e9 / self.writers as f64 / self.write as f64;
        rate / (self.write as f64 * writes.floor().max(1.0))
    }

    /// Overwrites a second of random blocks of `set` bytes, while `dirty` of the dirty limit is dirty.
    fn overwrites(&self, set: u64, dirty: f64) -> f64 {
        let clean = 1.0 - self.pool as f64 * DIRTY_PART * dirty / set as f64;
        let run_ns = PER_COMMAND_NS + self.switch_ns as f64;
        let block_ns = BLOCK * 1e9 / self.bandwidth as f64;
        1e9 / (clean * (run_ns * clean + block_ns))
    }

    /// Time of a write at the writer's share of a rate, in milliseconds, as a percentile of a histogram says it.
    fn write_ms(&self, rate: f64) -> f64 {
        let mut pauses = Histogram::default();
        pauses.record((self.writers as f64 * self.write as f64 * 1e9 / rate.max(1.0)) as u64);
        pauses.percentile(990) as f64 / 1e6
    }
}

/// A rate with many writers, as a part of one writer's in bytes per second; `more_memory` is the part with the largest pool.
pub(super) fn part_of_one(
    verdict: Verdict,
    load: &Load,
    one: f64,
    more_memory: Option<f64>,
) -> Verdict {
    let bound = load.rate() / one.max(1.0);
    let kib = load.visit() / 1024.0;
    let reason = format!("a visit to a stream finds {kib:.0} KiB");
    let bounded = verdict.clone().bounded(&reason, bound);
    match more_memory {
        Some(part) if bounded.known.is_none() => verdict.caused(&reason, MORE_VISITS, part),
        _ => bounded,
    }
}

/// Overwrites of random blocks of `set` bytes, as a part of those without pauses; `even` is the part with so much memory that as
/// much is dirty.
pub(super) fn overwrites(verdict: Verdict, load: &Load, set: u64, even: Option<f64>) -> Verdict {
    let best = load.overwrites(set, SETPOINT) / load.overwrites(set, LIMIT);
    let reason = "pauses hold less dirty, which takes fewer overwrites";
    let bounded = verdict.clone().bounded(reason, best);
    match even {
        Some(part) if bounded.outcome() == Outcome::Missed => {
            verdict.caused(reason, OVERWRITES, part)
        }
        _ => bounded,
    }
}

/// Wake-ups of writers a second.
pub(super) fn wakeups(verdict: Verdict, load: &Load, rate: f64) -> Verdict {
    verdict.bounded("whole writes and pauses that keep the device busy", load.wakeups(rate))
}

/// The p99 of pauses in milliseconds.
pub(super) fn pauses(verdict: Verdict, load: &Load, rate: f64) -> Verdict {
    verdict.bounded("a write at its writer's share, ms", load.write_ms(rate))
}

/// The slowest settling time after a change, in milliseconds, of the phase with the most writers on a device whose bandwidth is `slower`
/// times its usual one; `small` is the time with writes of 4 KiB.
pub(super) fn settling(verdict: Verdict, load: &Load, slower: f64, small: Option<f64>) -> Verdict {
    let reason = "a write of each writer, ms";
    let bounded = verdict.clone().bounded(reason, load.write_ms(load.bandwidth as f64 * slower));
    match small {
        Some(ms) if bounded.outcome() == Outcome::Missed => {
            verdict.caused("a write of each writer", SETTLING, ms)
        }
        _ => bounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Goal;

    fn load(writers: u64, bandwidth: u64, pool_mib: u64, switch_ns: u64) -> Load {
        Load {
            writers,
            bandwidth: bandwidth * 1_000_000,
            pool: pool_mib << 20,
            write: 65_536,
            dirty: 1.0,
            switch_ns,
        }
    }

    #[test]
    fn fewer_bytes_for_each_visit_lower_the_rate() {
        let part = |writers, pool_mib| load(writers, 700, pool_mib, 185_000).rate() / 696e6;
        assert!(part(1000, 48 << 10) > 0.993);
        assert!((0.92..0.94).contains(&part(1000, 4096)));
        // A writer's part of the limit is less than a write: 64 KiB take 94 us, and 195 us beside them.
        assert!((part(1000, 256) - 0.326).abs() < 0.001);
        assert!(part(100, 256) < part(100, 4096));
    }

    #[test]
    fn wakeups_are_bounded_by_whole_writes_and_by_the_memory() {
        let wakeups = |writers, bandwidth, pool_mib| {
            let load = load(writers, bandwidth, pool_mib, 0);
            load.wakeups(load.bandwidth as f64)
        };
        // Two writes of each in 200 ms; every write; six writes in 143 ms.
        assert_eq!(wakeups(1000, 700, 4096).round(), 5341.0);
        assert_eq!(wakeups(1000, 700, 256).round(), 10_681.0);
        assert_eq!(wakeups(1000, 3000, 4096).round(), 7629.0);
        assert!(wakeups(100, 700, 4096) < 1000.0);
    }

    #[test]
    fn pause_of_a_share_is_the_value_that_a_histogram_shows() {
        let slow = load(1000, 10, 4096, 0).write_ms(10e6);
        assert!((6553.6..1.1 * 6553.6).contains(&slow), "{slow}");
    }

    #[test]
    fn settling_is_bounded_by_a_write_of_each_writer() {
        let found = |ms, load: &Load, slower, small| {
            let goal = Some(Goal::AtMost(1000.0));
            let verdict = Verdict { ours: Some(ms), goal, ..Verdict::default() };
            settling(verdict, load, slower, small).outcome()
        };
        let (slow, fast) = (load(1000, 10, 256, 0), load(1000, 700, 256, 0));
        assert_eq!(found(7060.0, &slow, 1.0, None), Outcome::MissedAsKnown);
        assert_eq!(found(22_000.0, &slow, 2.0 / 7.0, None), Outcome::MissedAsKnown);
        assert_eq!(found(9000.0, &slow, 1.0, None), Outcome::Missed);
        assert_eq!(found(9000.0, &slow, 1.0, Some(10.0)), Outcome::MissedAsKnown);
        assert_eq!(found(9000.0, &slow, 1.0, Some(1010.0)), Outcome::Missed);
        assert_eq!(found(1010.0, &fast, 1.0, None), Outcome::Missed);
    }

    #[test]
    fn overwrites_are_bounded_by_what_is_dirty_and_by_its_runs() {
        let part = |bandwidth, switch_ns, set: u64| {
            let load = load(1, bandwidth, 1024, switch_ns);
            load.overwrites(set << 20, SETPOINT) / load.overwrites(set << 20, LIMIT)
        };
        // Without a price of commands to speak of only what is dirty counts: (1 - 0.496) / (1 - 0.44).
        assert!((part(1, 0, 400) - 0.900).abs() < 0.001);
        // Where the change of stream is all, it counts twice.
        assert!((part(60, 8_000_000, 400) - 0.900 * 0.900).abs() < 0.002);
        assert!((part(500, 20_000, 400) - 0.839).abs() < 0.001);
        let found = |even| {
            let goal = Some(Goal::AtLeast(0.97));
            let verdict = Verdict { ours: Some(0.73), goal, ..Verdict::default() };
            overwrites(verdict, &load(1, 60, 1024, 8_000_000), 400 << 20, even).outcome()
        };
        let outcomes = [None, Some(0.96), Some(0.98)].map(found);
        assert_eq!(outcomes, [Outcome::Missed, Outcome::Missed, Outcome::MissedAsKnown]);
        // Of what is much larger than the limit hardly a write finds its block dirty.
        assert!(part(500, 20_000, 20_000) > 0.99);
    }

    #[test]
    fn goal_within_reach_has_no_known_miss() {
        let verdict =
            |ours, goal| Verdict { ours: Some(ours), goal: Some(goal), ..Verdict::default() };
        let most = |ours| verdict(ours, Goal::AtMost(5500.0));
        let near = load(100, 700, 4096, 0);
        assert_eq!(wakeups(most(9000.0), &near, 700e6).known, None);
        assert_eq!(pauses(most(9000.0), &near, 700e6).known, None);
        assert!(wakeups(most(9000.0), &load(1000, 3000, 4096, 0), 3e9).known.is_some());
        let least = || verdict(0.98, Goal::AtLeast(0.99));
        let far = load(1000, 700, 48 << 10, 185_000);
        assert_eq!(part_of_one(least(), &far, 696e6, Some(0.98)).known, None);
        // More memory meets the goal, so the memory is the cause.
        assert!(part_of_one(least(), &far, 696e6, Some(0.995)).known.is_some());
    }
}
