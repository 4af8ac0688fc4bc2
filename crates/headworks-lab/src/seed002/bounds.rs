//! Bounds that make goals of seed 002 unreachable, and the known misses that they explain.
//!
//! ```text
//!   rate       a visit to a stream finds at most 2 * dirty / writers bytes (Little's law: dirty data are half a
//!              round old), or one write, and pays one change of stream
//!   wake-ups   a writer sleeps after a whole number of writes, for at most 200 ms, and at most half of the time
//!              in which the device writes what is dirty: beyond it the device would run out of dirty data
//!   pauses     a write at the writer's share of the bandwidth takes writers * write / bandwidth
//!   settling   dirty data come to their place at the rate of the device; it moves in commands of 1.25 MiB
//! ```
//!
//! Invariant: a verdict becomes a known miss only if the bound for its row is beyond the goal, or a
//! row of the table names it; a known miss keeps a bound of its own.

use crate::report::{Goal, Verdict};

/// Dirty limit as a part of the pool (`dirty_ratio`).
const DIRTY_PART: f64 = 0.2;
/// Largest command in bytes, and time of a command.
const COMMAND: f64 = 1_310_720.0;
const PER_COMMAND_NS: f64 = 10_000.0;
const PAUSE_NS: f64 = 200e6;
/// The settling time of a run that never settled.
const NEVER_MS: f64 = 86_400_000.0;

/// What a bound is computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Number of writers of the run.
    pub writers: u64,
    /// Bytes per second of the device.
    pub bandwidth: u64,
    /// Bytes of the cache.
    pub pool: u64,
    /// Bytes of a write.
    pub write: u64,
    /// Cost of a change of stream.
    pub switch_ns: u64,
}

impl Load {
    fn limit(&self) -> f64 {
        self.pool as f64 * DIRTY_PART
    }

    /// The most bytes that a visit to a stream finds. Where a writer's part of the limit is less
    /// than a write, most streams have nothing dirty and the others one write.
    fn visit(&self) -> f64 {
        let write = self.write as f64;
        match self.limit() < self.writers as f64 * write {
            true => write,
            false => 2.0 * self.limit() / self.writers as f64,
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
        let drain_ns = self.limit() * 1e9 / self.bandwidth as f64;
        let pause_ns = PAUSE_NS.min(drain_ns / 2.0);
        let writes = rate * pause_ns / 1e9 / self.writers as f64 / self.write as f64;
        rate / (self.write as f64 * writes.floor().max(1.0))
    }

    /// Time of a write at the writer's share of a rate, in milliseconds.
    fn write_ms(&self, rate: f64) -> f64 {
        self.writers as f64 * self.write as f64 * 1e3 / rate.max(1.0)
    }
}

/// A rate with many writers, as a part of one writer's in bytes per second.
pub(super) fn part_of_one(verdict: Verdict, load: &Load, one: f64) -> Verdict {
    let bound = load.rate() / one.max(1.0);
    // Dirty data stay below the limit that the bound takes: at 7/8 of it, a bound of 0.993 is 0.991.
    if bound > 0.993 {
        return verdict;
    }
    let kib = load.visit() / 1024.0;
    let reason = format!("a visit finds at most {kib:.0} KiB, so the most is {bound:.3}");
    verdict.known(&reason, Goal::AtLeast(bound * 0.95))
}

/// Wake-ups of writers a second.
pub(super) fn wakeups(verdict: Verdict, load: &Load, rate: f64) -> Verdict {
    let bound = load.wakeups(rate);
    if bound <= 5000.0 {
        return verdict;
    }
    let reason = format!("whole writes and pauses that keep the device busy: at least {bound:.0}");
    verdict.known(&reason, Goal::AtMost(bound * 1.75))
}

/// The p99 of pauses in milliseconds.
pub(super) fn pauses(verdict: Verdict, load: &Load, rate: f64) -> Verdict {
    let write_ms = load.write_ms(rate);
    if write_ms <= PAUSE_NS / 1e6 {
        return verdict;
    }
    let reason = format!("a writer's share is one write in {write_ms:.0} ms");
    verdict.known(&reason, Goal::AtMost(write_ms * 1.3))
}

/// The baseline's part of one writer's rate, which the calibration was to lower.
pub(super) fn baseline_part(verdict: Verdict, writers: u64) -> Verdict {
    if writers >= 1000 {
        return verdict;
    }
    verdict.known("chunks of 6 MiB hardly show the cost of a change of stream", Goal::AtMost(1.0))
}

/// The slowest settling time after a change, in milliseconds.
pub(super) fn settling(verdict: Verdict, load: &Load) -> Verdict {
    let writes = load.bandwidth as f64 / load.write as f64;
    // A deviation of a tenth in one of many seconds is three times the scatter.
    let scatter = 1.0 / writes.sqrt();
    if scatter < 0.1 / 3.0 {
        return verdict;
    }
    let reason = format!(
        "{writes:.0} writes a second: their number scatters by {:.0} %, the band is 10 %",
        100.0 * scatter
    );
    verdict.known(&reason, Goal::AtMost(NEVER_MS))
}

/// Jain's index from a cold start.
pub(super) fn cold(verdict: Verdict, load: &Load, ns: u64) -> Verdict {
    let writes = load.bandwidth as f64 * ns as f64 / 1e9 / load.write as f64 / load.writers as f64;
    if writes >= 10.0 {
        return verdict;
    }
    let reason = format!("{writes:.1} writes of each writer: one more or less decides");
    verdict.known(&reason, Goal::AtLeast(0.95))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(writers: u64, bandwidth: u64, pool_mib: u64, switch_ns: u64) -> Load {
        Load {
            writers,
            bandwidth: bandwidth * 1_000_000,
            pool: pool_mib << 20,
            write: 65_536,
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
    fn goal_within_reach_has_no_known_miss() {
        let verdict = |ours| Verdict {
            ours: Some(ours),
            goal: Some(Goal::AtMost(5500.0)),
            ..Verdict::default()
        };
        let near = load(100, 700, 4096, 0);
        assert_eq!(wakeups(verdict(9000.0), &near, 700e6).known, None);
        assert_eq!(pauses(verdict(9000.0), &near, 700e6).known, None);
        assert_eq!(settling(verdict(9000.0), &near).known, None);
        assert_eq!(cold(verdict(0.5), &near, 20_000_000_000).known, None);
        assert_eq!(
            part_of_one(verdict(0.5), &load(1000, 700, 48 << 10, 185_000), 696e6).known,
            None
        );
        assert!(wakeups(verdict(9000.0), &load(1000, 3000, 4096, 0), 3e9).known.is_some());
    }
}
