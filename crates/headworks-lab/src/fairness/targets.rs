//! Latency targets: a light reader with a target beside bulk of another export.
//!
//! One reader of 4 KiB, whose target is a multiple of its p99 alone, beside seven connections with 128 requests of 1 MiB each. With
//! `hw_depth=auto`, the default, and with `fixed`, where nothing else limits the bulk: then hundreds of MiB are in the device at the
//! start. Counting begins 2 s after the start and lasts 20 s; on the disk, of which a reader asks twice a second, it begins after 200 s and
//! lasts 1000 s. Goals: at most 2 % of the reads miss the target, and the bulk keeps 0.95 of its bytes alone, where the target is at least 2.5 times the p99
//! alone.
//!
//! **What a drive leaves.** A disk orders the commands that it has and knows no targets. The reader runs beside one connection whose
//! commands are all in the drive, of `LENGTHS` and `DEPTHS`: a limit on bulk chooses among those. The fewest misses, and the
//! most bytes with no more misses than a target promises, are the bounds of a row that misses its goal.

use headworks_core::time::{SEC, US};
use headworks_core::{
    CacheOptions, ConfigError, DepthMode, ExportConfig, ExportId, Op, QueueOptions, Scheduler,
};

use super::device::{Device, MIB};
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::{Goal, Progress, Report, Row, SETTINGS, Verdict};
use crate::row_filter::RowFilter;

const TABLE: &str = "latency targets";
/// The case's name for `--case`.
const CASE: &str = "targets";
/// The export of the bulk, and that of the reader with a target.
const BULK: ExportId = ExportId(0);
const READER: ExportId = ExportId(1);
/// Targets in p99s alone.
const TIMES: [f64; 4] = [2.0, 2.5, 4.0, 8.0];
/// Goal: part of the reads that may miss the target; and what a target promises.
const MISSED: f64 = 0.02;
const PROMISED: f64 = 0.01;
/// The bulk's commands that a drive has at once, beside the reader: bytes, and how many.
const LENGTHS: [u32; 2] = [32 << 10, MIB];
const DEPTHS: [u32; 7] = [1, 2, 3, 4, 8, 16, 31];
const DRIVE: &str = "bulk's commands in the drive, of any length and number";
/// From this multiple on the bulk has to keep its bandwidth.
const KEEPS_FROM: f64 = 2.5;

/// The configuration of a row.
#[derive(Clone, Copy, Debug)]
struct TargetPoint {
    device: Device,
    scheduler: Scheduler,
    depth: DepthMode,
    bulk: Op,
    times: f64,
}

/// What runs without a target have shown; the same for every target.
#[derive(Debug)]
struct Untargeted {
    alone_us: u64,
    bulk_bytes: u64,
    beside_p99_us: u64,
    beside_bytes: u64,
    /// Of each length and number of commands in the drive.
    drive: Vec<RunCounts>,
}

impl Untargeted {
    /// Returns the least part of the reads that misses a target beside bulk in the drive, and the most bytes of bulk with no more
    /// misses than is promised, or than that part; 0 and all if that is not known.
    fn left_by_drive(&self, target_us: u32) -> (f64, u64) {
        if self.drive.is_empty() {
            return (0.0, self.bulk_bytes);
        }
        let all = self.drive.iter().map(|run| (missed(run, target_us), bulk_bytes(run)));
        let least = all.clone().map(|(missed, _)| missed).fold(1.0, f64::min);
        let kept = all.filter(|&(missed, _)| missed <= least.max(PROMISED)).map(|(_, bytes)| bytes);
        (least, kept.max().unwrap_or(0))
    }
}

/// Bytes of the bulk beside a reader.
fn bulk_bytes(run: &RunCounts) -> u64 {
    run.jobs[1..].iter().map(|job| job.bytes).sum()
}

/// The reader's p99 in microseconds.
fn reader_p99_us(run: &RunCounts) -> u64 {
    run.jobs[0].latency.percentile(990) / US
}

/// The clients that take part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Reader,
    Bulk,
    Both,
    /// The reader beside so many commands of so many bytes, all in the drive.
    Drive(u32, u32),
}

/// Runs the selected rows.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let points: Vec<TargetPoint> = all().into_iter().filter(|point| point.is_in(filter)).collect();
    let mut progress = Progress::new("latency targets", points.len());
    let mut rows = Vec::new();
    let mut untargeted: Option<(TargetPoint, Untargeted)> = None;
    for point in &points {
        let runs = match untargeted.take() {
            Some((other, runs)) if point.differs_by_target(&other) => runs,
            _ => point.untargeted(filter.seed)?,
        };
        rows.push(point.run(filter.seed, &runs)?);
        untargeted = Some((*point, runs));
        progress.step();
    }
    drop(progress);
    Ok(Report {
        title: "fairness: a light reader with a latency target beside bulk".into(),
        notes: vec!["targets in p99s of the reader alone; missed: part of its reads".into()],
        verdicts: judge(&rows),
        rows,
    })
}

fn all() -> Vec<TargetPoint> {
    let mut points = Vec::new();
    for device in Device::ALL {
        for depth in [DepthMode::Auto, DepthMode::Fixed] {
            for bulk in [Op::Write, Op::Read] {
                for times in TIMES {
                    let scheduler = Scheduler::None;
                    points.push(TargetPoint { device, scheduler, depth, bulk, times });
                }
            }
        }
    }
    points
}

impl TargetPoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_case(CASE)
            && filter.has_policy(crate::baseline::TagPolicy::Fair)
            && filter.has_device(self.device.name())
            && filter.has_jobs(8)
            && filter.has_tags(self.queue().nr_requests)
    }

    fn depth_name(&self) -> &'static str {
        if self.depth == DepthMode::Auto { "auto" } else { "fixed" }
    }

    fn bulk_name(&self) -> &'static str {
        if self.bulk == Op::Read { "reads" } else { "writes" }
    }

    fn queue(&self) -> QueueOptions {
        let usual = QueueOptions {
            scheduler: self.scheduler,
            hw_depth: self.depth,
            ..QueueOptions::default()
        };
        QueueOptions { queue_depth: self.device.queue_depth(usual.nr_requests), ..usual }
    }

    fn jobs(&self, part: Part) -> Vec<JobOptions> {
        let end = self.device.size();
        let every = 50 * self.device.about_ns(Op::Read, 4096);
        let reader = JobOptions { end, think_ns: every, export: READER, ..JobOptions::default() };
        let bulk = JobOptions {
            op: self.bulk,
            bs: MIB,
            iodepth: 128,
            end,
            think_ns: 4 * US,
            export: BULK,
            ..JobOptions::default()
        };
        match part {
            Part::Reader => vec![reader],
            Part::Bulk => vec![bulk; 7],
            Part::Both => [vec![reader], vec![bulk; 7]].concat(),
            Part::Drive(bs, iodepth) => vec![reader, JobOptions { bs, iodepth, ..bulk }],
        }
    }

    /// Runs a part of the clients; the reader has a target of `target_us`, 0 for none.
    fn count(&self, part: Part, target_us: u32, seed: u64) -> Result<RunCounts, ConfigError> {
        let (ramp_ns, runtime_ns) = match self.device {
            Device::Disk => (200 * SEC, 1000 * SEC),
            _ => (2 * SEC, 20 * SEC),
        };
        let mut exports = vec![ExportConfig::default(); 2];
        exports[usize::from(READER.0)].latency_target_us = target_us;
        let harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: self.queue(),
            size: self.device.size(),
            device: self.device.make(),
            jobs: self.jobs(part),
            exports,
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            ramp_ns,
            runtime_ns,
        })?;
        Ok(harness.run())
    }

    fn differs_by_target(&self, other: &Self) -> bool {
        let same = |of: &Self| (of.device, of.scheduler, of.depth, of.bulk);
        same(self) == same(other)
    }

    fn untargeted(&self, seed: u64) -> Result<Untargeted, ConfigError> {
        let beside = self.count(Part::Both, 0, seed)?;
        let drives = LENGTHS.into_iter().flat_map(|bs| DEPTHS.map(|depth| Part::Drive(bs, depth)));
        Ok(Untargeted {
            alone_us: reader_p99_us(&self.count(Part::Reader, 0, seed)?),
            bulk_bytes: self.count(Part::Bulk, 0, seed)?.bytes,
            beside_p99_us: reader_p99_us(&beside),
            beside_bytes: bulk_bytes(&beside),
            // Flash serves each command by itself: no number of them makes it do more.
            drive: match self.device {
                Device::Disk => drives.map(|part| self.count(part, 0, seed)).collect(),
                _ => Ok(Vec::new()),
            }?,
        })
    }

    fn run(&self, seed: u64, runs: &Untargeted) -> Result<Row, ConfigError> {
        let target_us = (runs.alone_us as f64 * self.times) as u32;
        let both = self.count(Part::Both, target_us, seed)?;
        let kept = |bytes: u64| bytes as f64 / runs.bulk_bytes.max(1) as f64;
        let (drive_missed, drive_bytes) = runs.left_by_drive(target_us);
        Ok(Row::new(TABLE)
            .with("device", self.device.name())
            .with("scheduler", self.scheduler.name())
            .with("hw_depth", self.depth_name())
            .with("bulk", self.bulk_name())
            .with_real("times", self.times, 1)
            .with("alone_p99_us", runs.alone_us)
            .with("target_us", target_us)
            .with("without_p99_us", runs.beside_p99_us)
            .with("p99_us", reader_p99_us(&both))
            .with("reads", both.jobs[0].bios)
            .with_real("missed", missed(&both, target_us), 4)
            .with_real("without_kept", kept(runs.beside_bytes), 4)
            .with_real("kept", kept(bulk_bytes(&both)), 4)
            .with_real("drive_missed", drive_missed, 4)
            .with_real("drive_kept", kept(drive_bytes), 4)
            .with(SETTINGS, both.settings.clone())
            .with("failed", both.errors + both.notices + u64::from(both.stuck)))
    }
}

/// Returns the part of the reader's answers that came after the target.
fn missed(counts: &RunCounts, target_us: u32) -> f64 {
    let latency = &counts.jobs[0].latency;
    let within =
        (0..=1000).rev().find(|&part| latency.percentile(part) <= u64::from(target_us) * US);
    1.0 - within.unwrap_or(0) as f64 / 1000.0
}

/// The rows of a table of verdicts.
fn head(device: &str, depth: &str, bulk: &str) -> String {
    format!("{device}, {depth} depth with bulk {bulk}, {CASE}")
}

/// All of them.
#[cfg(test)]
pub(super) fn heads() -> impl Iterator<Item = String> {
    let of = |point: TargetPoint| head(point.device.name(), point.depth_name(), point.bulk_name());
    all().into_iter().map(of)
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for row in rows.iter().filter(|row| row.table == TABLE) {
        let [device, depth, bulk] = ["device", "hw_depth", "bulk"].map(|name| row.word(name));
        let times = row.real("times");
        let name = head(device, depth, bulk);
        let reads = Verdict {
            what: format!("{name}: reads that miss a target of {times} times alone"),
            ours: Some(row.real("missed")),
            goal: Some(Goal::AtMost(MISSED)),
            ..Verdict::default()
        };
        verdicts.push(reads.bounded(DRIVE, row.real("drive_missed")));
        if times >= KEEPS_FROM {
            let kept = Verdict {
                what: format!(
                    "{name}: bulk's part of alone beside a target of {times} times alone"
                ),
                baseline: Some(row.real("without_kept")),
                ours: Some(row.real("kept")),
                goal: Some(Goal::AtLeast(0.95)),
                ..Verdict::default()
            };
            verdicts.push(kept.bounded(DRIVE, row.real("drive_kept")));
        }
        if row.int("failed") > 0 {
            verdicts.push(Verdict {
                what: format!("{name}: hung runs and failed bios"),
                ours: Some(row.int("failed") as f64),
                goal: Some(Goal::Exactly(0.0)),
                ..Verdict::default()
            });
        }
    }
    verdicts
}
