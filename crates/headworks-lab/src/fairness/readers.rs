//! Many readers of one device: sequential ones through a small cache, and new random ones with bfq.
//!
//! | case | readers | goals |
//! |---|---|---|
//! | `small-pool` | 1, 16 and 64 sequential readers of 4 KiB through 64 MiB of cache | 0.9 of the bytes with `read_ahead_kb=128`, of what is read ahead at most a sixteenth unused |
//! | `new-readers` | 100 and 300 random readers of 4 KiB that begin together, with bfq beside `none` | 0.88 of its rate, each served within 8 rounds; a round is the time of a read of each |
//!
//! The rows run only when their case is named.

use headworks_core::time::{MS, SEC, US};
use headworks_core::{CacheOptions, ConfigError, QueueOptions, Scheduler};

use super::device::{Device, MIB};
use crate::baseline::TagPolicy;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::{Goal, Report, Row, SETTINGS, Verdict, run_each};
use crate::row_filter::RowFilter;

const POOL_CASE: &str = "small-pool";
const NEW_CASE: &str = "new-readers";
/// Bytes of the cache.
const POOL: u64 = 64 << 20;
/// The windows of Linux, which fit into any pool.
const SMALL_WINDOW_KB: u32 = 128;
/// Goal: blocks read ahead that are evicted unused, a part of all.
const WASTE: f64 = 1.0 / 16.0;
/// Goal: bytes with the usual windows. One reader of a disk has 0.92: the drive reads ahead by itself, and waits between two windows of 4 MiB.
const BYTES: f64 = 0.9;
const RATE: f64 = 0.88;
const ROUNDS: f64 = 8.0;

#[derive(Clone, Copy, Debug)]
struct ReadersPoint {
    case: &'static str,
    device: Device,
    readers: u32,
}

/// Runs the selected rows.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let points: Vec<ReadersPoint> = all().into_iter().filter(|point| point.is_in(filter)).collect();
    let rows = run_each("fairness of readers", &points, |point| point.row(filter.seed))?;
    let notes = vec!["default options; the others of a row differ by what its columns say".into()];
    Ok(Report { title: "fairness: many readers".into(), notes, verdicts: judge(&rows), rows })
}

fn all() -> Vec<ReadersPoint> {
    let pool =
        |device| [1, 16, 64].map(|readers| ReadersPoint { case: POOL_CASE, device, readers });
    let new =
        [100, 300].map(|readers| ReadersPoint { case: NEW_CASE, device: Device::Disk, readers });
    Device::ALL.into_iter().flat_map(pool).chain(new).collect()
}

impl ReadersPoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.names_case(self.case)
            && filter.has_policy(TagPolicy::Fair)
            && filter.has_device(self.device.name())
            && filter.has_jobs(self.readers)
            && filter.has_tags(QueueOptions::default().nr_requests)
    }

    fn queue(&self, scheduler: Scheduler) -> QueueOptions {
        let usual = QueueOptions { scheduler, ..QueueOptions::default() };
        let (queue_depth, rotational) =
            (self.device.queue_depth(usual.nr_requests), self.device.is_disk());
        QueueOptions { queue_depth, rotational, ..usual }
    }

    fn count(
        &self,
        seed: u64,
        queue: QueueOptions,
        cache: u64,
        [ramp_ns, runtime_ns]: [u64; 2],
    ) -> Result<RunCounts, ConfigError> {
        let size = self.device.size();
        let part = size / u64::from(self.readers) / u64::from(MIB) * u64::from(MIB);
        let job = |number: u32| {
            let (start, end) = match self.case {
                POOL_CASE => (u64::from(number) * part, u64::from(number + 1) * part),
                _ => (0, size),
            };
            let random = self.case == NEW_CASE;
            JobOptions { random, start, end, think_ns: 8 * US, ..JobOptions::default() }
        };
        let harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue,
            size,
            device: self.device.make(),
            jobs: (0..self.readers).map(job).collect(),
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions { units: (cache / 4096) as u32, ..CacheOptions::default() },
            ramp_ns,
            runtime_ns,
        })?;
        Ok(harness.run())
    }

    fn row(&self, seed: u64) -> Result<Row, ConfigError> {
        let row = Row::new(self.case)
            .with("device", self.device.name())
            .with("case", self.case)
            .with("readers", self.readers);
        let failed = |all: [&RunCounts; 2]| {
            all.iter().map(|counts| counts.errors + u64::from(counts.stuck)).sum::<u64>()
        };
        if self.case == POOL_CASE {
            let length = match self.device.is_disk() {
                true => [10 * SEC, 20 * SEC],
                false => [SEC, SEC],
            };
            let usual = self.queue(Scheduler::None);
            let small = QueueOptions { read_ahead_kb: SMALL_WINDOW_KB, ..usual };
            let ours = self.count(seed, usual, POOL, length)?;
            let small = self.count(seed, small, POOL, length)?;
            return Ok(row
                .with("ms", length[1] / MS)
                .with(SETTINGS, ours.settings.clone())
                .with("bytes", ours.bytes)
                .with("small_window_bytes", small.bytes)
                .with("read_ahead", ours.cache.read_ahead)
                .with("wasted", ours.cache.read_ahead_wasted)
                .with("failed", failed([&ours, &small])));
        }
        // The rate is that after the raise of new clients, the waits are those from the start on.
        let length = [12 * SEC, 60 * SEC];
        let none = self.count(seed, self.queue(Scheduler::None), 0, length)?;
        let bfq = self.count(seed, self.queue(Scheduler::Bfq), 0, length)?;
        let first = self.count(seed, self.queue(Scheduler::Bfq), 0, [0, 60 * SEC])?;
        let longest = first.jobs.iter().map(|job| job.longest_ns()).max().unwrap_or(0);
        Ok(row
            .with("ms", length[1] / MS)
            .with(SETTINGS, bfq.settings.clone())
            .with("bios", bfq.bios)
            .with("none_bios", none.bios)
            .with("first_bios", first.bios)
            .with("first_p99_us", first.latency.percentile(990) / US)
            .with("longest_us", longest / US)
            .with("failed", failed([&none, &bfq])))
    }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    rows.iter().flat_map(judge_row).collect()
}

fn judge_row(row: &Row) -> Vec<Verdict> {
    let verdict = |scheduler: &str, what: &str, ours: f64, goal: Goal| Verdict {
        what: format!(
            "{}, {scheduler}, {}: {} {what}",
            row.word("device"),
            row.word("case"),
            row.int("readers")
        ),
        // A failed run misses every goal.
        ours: (row.int("failed") == 0).then_some(ours).or(Some(f64::NAN)),
        goal: Some(goal),
        ..Verdict::default()
    };
    let part = |name: &str, of: &str| row.int(name) as f64 / row.int(of).max(1) as f64;
    if row.table == POOL_CASE {
        let bytes = part("bytes", "small_window_bytes");
        let wasted = part("wasted", "read_ahead");
        return vec![
            verdict("none", "readers' bytes, times read_ahead_kb=128", bytes, Goal::AtLeast(BYTES)),
            verdict("none", "readers' unused read-ahead, part", wasted, Goal::AtMost(WASTE)),
        ];
    }
    if row.table != NEW_CASE {
        return Vec::new();
    }
    let round_us =
        row.int("readers") as f64 * row.int("ms") as f64 * 1e3 / row.int("none_bios").max(1) as f64;
    let rounds = row.int("longest_us") as f64 / round_us;
    vec![
        verdict("bfq", "readers' rate, times none", part("bios", "none_bios"), Goal::AtLeast(RATE)),
        verdict("bfq", "readers' longest wait in rounds", rounds, Goal::AtMost(ROUNDS)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(row: Row) -> usize {
        judge(&[row]).iter().filter(|verdict| !verdict.is_met()).count()
    }

    /// With windows of 4 MiB they evicted each other's: a fifteenth of this.
    #[test]
    fn sixteen_readers_share_a_small_pool() {
        let row =
            ReadersPoint { case: POOL_CASE, device: Device::Sata, readers: 16 }.row(1).unwrap();
        let row = Row::from_json(&row.to_json()).unwrap();
        assert_eq!(missed(row.clone()), 0, "{row:?}");
        let bytes = row.int("small_window_bytes");
        assert_eq!(missed(row.clone().replaced("bytes", bytes / 2)), 1);
        assert_eq!(missed(row.clone().replaced("wasted", row.int("read_ahead"))), 1);
        assert_eq!(missed(row.replaced("failed", 1)), 2);
    }

    #[test]
    fn new_readers_are_judged_by_rate_and_rounds() {
        let row = |bios: u64, longest_us: u64| {
            Row::new(NEW_CASE)
                .with("device", "hdd-32")
                .with("case", NEW_CASE)
                .with("readers", 100)
                .with("ms", 1000)
                .with("bios", bios)
                .with("none_bios", 200)
                .with("longest_us", longest_us)
                .with("failed", 0)
        };
        assert_eq!([missed(row(195, 4_000_000)), missed(row(170, 4_000_001))], [0, 2]);
    }
}
