//! Statistics of volumes, queues and turns, in fixed arrays.
//!
//! The time of a stage is counted in a log-linear histogram with four buckets per doubling: a percentile is at most 19 % too high.

use std::fmt;

use crate::bio::Op;
pub use crate::depth::DepthStats;
use crate::device_cost::DeviceCost;
use crate::time::Instant;

/// The stages of a request, in the order in which it passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In the plug until the batch ends, or held while the queue's options change.
    Plug = 0,
    /// Waiting at the gate for a tag.
    Tag = 1,
    /// Queued in the elevator for dispatch.
    Scheduler = 2,
    /// In flight in the device.
    Device = 3,
}

impl Stage {
    /// Number of all stages.
    pub const COUNT: usize = 4;
    /// Every stage, in order.
    pub const ALL: [Stage; Stage::COUNT] =
        [Stage::Plug, Stage::Tag, Stage::Scheduler, Stage::Device];

    /// The name that users see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Plug => "plug",
            Stage::Tag => "tag",
            Stage::Scheduler => "sched",
            Stage::Device => "device",
        }
    }
}

/// Number of buckets: one each for 0..4 ns, then four per doubling up to 2^42 ns (73 minutes). The last takes the rest.
pub const BUCKETS: usize = 4 * 41;

/// Counts of durations by bucket.
#[derive(Clone)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl fmt::Debug for Histogram {
    /// Its number, median and 99th percentile: 164 counts say nothing to a reader.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, p50, p99) = (self.count(), self.percentile(500), self.percentile(990));
        write!(f, "Histogram {{ count: {count}, p50_ns: {p50}, p99_ns: {p99} }}")
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// Counts a duration and returns its bucket.
    #[inline]
    pub fn record(&mut self, ns: u64) -> usize {
        let bucket = bucket_of(ns);
        self.counts[bucket] += 1;
        bucket
    }

    /// The counts by bucket; the durations of a bucket end with [`upper_end`].
    #[must_use]
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// Adds `count` durations of a bucket.
    pub fn add(&mut self, bucket: usize, count: u64) {
        self.counts[bucket] += count;
    }

    /// Total number of counted durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// The upper end of the bucket of the given percentile, in thousandths; 0 when empty.
    #[must_use]
    pub fn percentile(&self, per_mille: u32) -> u64 {
        let total = self.count();
        let rank = (total * u64::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && total > 0 {
                return upper_end(bucket);
            }
        }
        0
    }
}

/// The bucket of a duration in nanoseconds.
#[inline]
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros() as usize;
    let quarter = (ns >> (exponent - 2)) as usize & 3;
    ((exponent - 1) * 4 + quarter).min(BUCKETS - 1)
}

/// The longest duration of a bucket, in nanoseconds.
#[must_use]
pub fn upper_end(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let exponent = bucket / 4 + 1;
    let quarter = (bucket % 4) as u64;
    ((4 + quarter + 1) << (exponent - 2)) - 1
}

/// Statistics of one operation of a volume.
#[derive(Clone, Debug, Default)]
pub struct OpStats {
    /// Completed requests, failed ones included.
    pub requests: u64,
    /// Completed bios, failed ones included.
    pub bios: u64,
    /// Bytes of completed requests, failed ones included.
    pub bytes: u64,
    /// Merges of a bio or a request into an earlier request; bios - merges == requests.
    pub merges: u64,
    /// Requests that completed with an error.
    pub errors: u64,
    /// Nanoseconds from plug to completion, summed over all completed requests.
    pub time_ns: u64,
    /// What completed requests have used of the device.
    pub used: DeviceUse,
    /// Durations of each stage.
    pub stages: [Histogram; Stage::COUNT],
}

/// What completed requests have used of a device: those of clients, and the fills and write-outs of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// Nanoseconds for which requests held a tag, summed: two requests that hold one for a second are two seconds.
    pub tag_ns: u64,
    /// Nanoseconds for which requests were in the device, summed.
    pub device_ns: u64,
    /// Squares of the times for which requests held a tag, in units of 1.024 us, summed. What others wait behind a request grows with
    /// the square of its time: it is more likely to be met, and lasts longer (the mean residual of renewal theory).
    pub tag_squares: u64,
}

impl DeviceUse {
    /// The use since `before`; zero where a counter began anew.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        if self.tag_ns < before.tag_ns || self.device_ns < before.device_ns {
            return Self::default();
        }
        Self {
            tag_ns: self.tag_ns - before.tag_ns,
            device_ns: self.device_ns - before.device_ns,
            // Only this sum can wrap, after years.
            tag_squares: self.tag_squares.wrapping_sub(before.tag_squares),
        }
    }

    /// Adds the use of other requests.
    pub fn add(&mut self, other: Self) {
        self.tag_ns += other.tag_ns;
        self.device_ns += other.device_ns;
        self.tag_squares = self.tag_squares.wrapping_add(other.tag_squares);
    }
}

/// Statistics of a volume, kept on the shard of its device.
#[derive(Clone, Debug, Default)]
pub struct VolumeStats {
    /// One entry for each operation.
    pub ops: [OpStats; Op::COUNT],
}

impl VolumeStats {
    /// What all its requests have used of the device.
    #[must_use]
    pub fn used(&self) -> DeviceUse {
        let mut sum = DeviceUse::default();
        self.ops.iter().for_each(|row| sum.add(row.used));
        sum
    }

    /// Counts a completed request; returns the histogram bucket of each stage.
    // A call would cost as much as a third of it.
    #[inline(always)]
    pub(crate) fn on_finish(
        &mut self,
        op: Op,
        bytes: u64,
        stamps: &[Instant; 4],
        now: Instant,
    ) -> [usize; Stage::COUNT] {
        let row = &mut self.ops[op as usize];
        row.requests += 1;
        row.bytes += bytes;
        row.time_ns += now.since(stamps[0]);
        let tag_ns = now.since(stamps[2]);
        row.used.tag_ns += tag_ns;
        row.used.tag_squares =
            row.used.tag_squares.wrapping_add((tag_ns >> 10).wrapping_mul(tag_ns >> 10));
        row.used.device_ns += now.since(stamps[3]);
        let plug = row.stages[Stage::Plug as usize].record(stamps[1].since(stamps[0]));
        let tag = row.stages[Stage::Tag as usize].record(stamps[2].since(stamps[1]));
        let scheduler = row.stages[Stage::Scheduler as usize].record(stamps[3].since(stamps[2]));
        let device = row.stages[Stage::Device as usize].record(now.since(stamps[3]));
        [plug, tag, scheduler, device]
    }
}

impl fmt::Display for VolumeStats {
    /// A table with a line for each operation that occurred: counts, and the 99th percentile of each stage in microseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<12} {:>10} {:>10} {:>8} {:>12} {:>7}",
            "op", "ios", "requests", "merged", "KiB", "errors"
        )?;
        for stage in Stage::ALL {
            write!(f, " {:>6} p99", stage.name())?;
        }
        for (op, row) in Op::ALL.iter().zip(&self.ops) {
            if row.bios == 0 && row.requests == 0 {
                continue;
            }
            let OpStats { bios, requests, merges, errors, bytes, .. } = row;
            write!(
                f,
                "\n{:<12} {bios:>10} {requests:>10} {merges:>8} {:>12} {errors:>7}",
                op.name(),
                bytes / 1024
            )?;
            for stage in &row.stages {
                write!(f, " {:>10}", stage.percentile(990) / 1000)?;
            }
        }
        Ok(())
    }
}

/// Statistics of a device's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Data requests that were sent to the device.
    pub issued: u64,
    /// Issued requests that start where the one before ended.
    pub sequential: u64,
    /// Requests that merged with another after the plug.
    pub merges: u64,
    /// Requests that wait for a tag, are queued, or are in flight, as of the last batch.
    pub in_flight: u32,
    /// Nanoseconds with at least one such request, up to the last batch.
    pub busy_ns: u64,
    /// The end of the last batch, if it left such a request.
    pub busy_since: Option<Instant>,
    /// The limit on what the device has at once, if it is found by measuring.
    pub depth: Option<DepthStats>,
    /// What requests cost, as learned so far.
    pub cost: DeviceCost,
    /// The limit for latency targets, if an export has one.
    pub targets: Option<TargetStats>,
    /// When requests last waited before the device, by what they waited for.
    pub waits: QueueWaits,
}

/// When requests last waited for a place in a device, by what was used up; `None` of what never was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueWaits {
    /// The tags of the device, `nr_requests`.
    pub tags: Option<Instant>,
    /// The bytes that it has at once: `hw_inflight_kb`, or the limit that is found by measuring.
    pub bytes: Option<Instant>,
    /// The requests that it takes at once, `queue_depth`.
    pub commands: Option<Instant>,
}

/// The limit on what exports without a latency target have in a device with targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetStats {
    /// Most bytes in the device of exports with a looser target or none; `None` while every target is kept.
    pub limit: Option<u64>,
    /// What they have in it now, in bytes; counted only under a limit.
    pub bulk: u64,
    /// The target for which they are limited, in microseconds.
    pub guarded_us: Option<u32>,
}

/// Requests of an export or a tenant in a device with latency targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Small synchronous requests with a target that have ended.
    pub ended: u64,
    /// Those of them that missed it.
    pub missed: u64,
    /// Requests that had to wait while bulk was at its limit for the target of others.
    pub held: u64,
    /// When the last of these came; `None` without one.
    pub held_at: Option<Instant>,
    /// The target for which it waited, in microseconds.
    pub held_for_us: u32,
}

impl TargetCounts {
    /// Adds the counts of another device or export.
    pub fn add(&mut self, other: &Self) {
        self.ended += other.ended;
        self.missed += other.missed;
        self.held += other.held;
        if other.held_at > self.held_at {
            (self.held_at, self.held_for_us) = (other.held_at, other.held_for_us);
        }
        debug_assert!(self.missed <= self.ended, "what missed a target has ended");
    }
}

impl QueueStats {
    /// Ends a batch that left the queue busy or idle. Nothing changes between batches, so the times are exact.
    #[inline]
    pub(crate) fn on_batch(&mut self, now: Instant, busy: bool) {
        if let Some(since) = self.busy_since {
            self.busy_ns += now.since(since);
        }
        self.busy_since = busy.then_some(now);
    }

    /// Busy nanoseconds until `now`: `io_ticks` of diskstats.
    #[must_use]
    pub fn busy_until(&self, now: Instant) -> u64 {
        self.busy_ns + self.busy_since.map_or(0, |since| now.since(since))
    }
}

/// Statistics of turns of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnRow {
    /// Turns of this size.
    pub turns: u64,
    /// Bios that arrived in these turns.
    pub bios: u64,
    /// Bios that merged in the plug.
    pub merges: u64,
}

/// Merges in the plug by size of turn: 1 bio, 2 to 3, 4 to 7 and so on; the last row counts 64 and more. A turn of one bio
/// cannot merge, so merges are judged by row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnStats {
    /// One row for each size, the smallest first.
    pub rows: [TurnRow; 7],
}

impl TurnStats {
    /// Counts a turn of `bios` bios.
    pub(crate) fn on_turn(&mut self, bios: u32, merges: u32) {
        if let Some(size) = bios.checked_ilog2() {
            let row = &mut self.rows[(size as usize).min(6)];
            row.turns += 1;
            row.bios += u64::from(bios);
            row.merges += u64::from(merges);
        }
    }

    /// The sizes of a row, as users see them.
    #[must_use]
    pub fn label(row: usize) -> String {
        match row {
            0 => "1".into(),
            6 => "64+".into(),
            _ => format!("{}-{}", 1 << row, (2 << row) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_print_as_a_table_of_what_occurred() {
        let mut stats = VolumeStats::default();
        let stamps = [Instant(0), Instant(1000), Instant(2000), Instant(4000)];
        stats.on_finish(Op::Write, 8192, &stamps, Instant(9_000_000));
        stats.ops[Op::Write as usize].bios = 2;
        stats.ops[Op::Write as usize].merges = 1;
        let text = stats.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..6], ["op", "ios", "requests", "merged", "KiB", "errors"]);
        assert_eq!(lines[1][..6], ["write", "2", "1", "1", "8", "0"]);
        assert_eq!(lines.len(), 2, "only what occurred: {text}");
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(widths[0], widths[1], "{text}");
        assert!(format!("{stats:?}").len() < 4000, "no list of buckets");
    }

    #[test]
    fn values_lie_within_ascending_buckets() {
        let mut last = 0;
        for ns in (0..5000).chain((12..42).map(|bit| 1 << bit)) {
            let bucket = bucket_of(ns);
            assert!(bucket >= last && upper_end(bucket) >= ns, "{ns}");
            assert!(bucket == 0 || upper_end(bucket - 1) < ns, "{ns}");
            last = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn turn_is_counted_in_the_row_of_its_size() {
        let mut stats = TurnStats::default();
        for bios in [0, 1, 2, 3, 4, 63, 64, 1000] {
            stats.on_turn(bios, bios / 2);
        }
        let rows = stats.rows.map(|row| (row.turns, row.bios, row.merges));
        let none = (0, 0, 0);
        assert_eq!(
            rows,
            [(1, 1, 0), (2, 5, 2), (1, 4, 2), none, none, (1, 63, 31), (2, 1064, 532)]
        );
        assert_eq!([0, 1, 5, 6].map(TurnStats::label), ["1", "2-3", "32-63", "64+"]);
    }

    #[test]
    fn percentile_is_at_most_a_quarter_too_high() {
        let mut histogram = Histogram::default();
        for us in 1..=1000 {
            histogram.record(us * 1000);
        }
        for (per_mille, exact) in [(500, 500_000), (990, 990_000), (999, 999_000)] {
            let found = histogram.percentile(per_mille);
            assert!(found >= exact && found <= exact * 5 / 4, "{found} for {exact}");
        }
        assert_eq!((Histogram::default().percentile(990), histogram.count()), (0, 1000));
    }
}
