//! Fair sharing of a device: one light reader against heavy readers, equal jobs, weights.
//!
//! The light job reads 4 KiB at a time; seven heavy connections each keep 128 reads of 1 MiB in
//! flight. Goal: the light job's p99 is at most twice its p99 alone. A device serves its queue in
//! its own order, so the amount queued in the device decides. With `hw_inflight_kb` slightly above
//! bandwidth times the latency of a small read, the device is never idle and its queue is short;
//! with small `max_sectors_kb` no request waits for a long transfer. The table also shows the
//! throughput that the heavy jobs lose.
//!
//! Equal jobs (seven heavy ones; eight of any block size) must get equal bytes: Jain's index >=
//! 0.95. Exports of weight 1, 2 and 4 must get their shares within 5 %. Each case runs with `none`
//! and mq-deadline, on an NVMe and on a SATA disk.

use headworks_core::time::SEC;
use headworks_core::{
    ConfigError, DepthMode, DeviceId, ExportConfig, ExportId, QueueOptions, Scheduler,
};
use headworks_disks::{Ssd, SsdProfile};

use crate::baseline::{TagPolicy, WakeOptions};
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::{Goal, Report, Row, SETTINGS, Verdict, jain, run_each};
use crate::row_filter::{GATED, RowFilter};

/// Goal: the light job's p99 beside the others, as a multiple of its p99 alone.
const P99: f64 = 2.0;
const JAIN: f64 = 0.95;
/// Goal: maximum relative error of a weighted share.
const WEIGHTS_OFF: f64 = 0.05;
const WEIGHTS: [u16; 3] = [100, 200, 400];
/// Measured virtual seconds, after a ramp of a tenth of them.
const SECONDS: u64 = 4;

/// A disk and its queue options.
#[derive(Clone, Copy, Debug)]
struct Disk {
    name: &'static str,
    profile: SsdProfile,
    /// Bandwidth times the latency of a small read, so that the device is just kept busy: NVMe
    /// 2.8 GB/s * 114 us = 319 KB, SATA 0.56 GB/s * 77 us = 43 KB. One more request may exceed it
    /// by half.
    hw_inflight_kb: u32,
    /// A small part of that: the light job waits at least for one transfer in progress.
    max_sectors_kb: u32,
}

const DISKS: [Disk; 2] = [
    Disk { name: "nvme", profile: SsdProfile::nvme(), hw_inflight_kb: 320, max_sectors_kb: 64 },
    Disk { name: "sata", profile: SsdProfile::sata(), hw_inflight_kb: 56, max_sectors_kb: 16 },
];

/// The jobs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BoundedCase {
    /// The light job alone.
    Alone,
    /// The light job and seven heavy ones.
    Beside,
    /// The same with the default limits, which bound no bytes.
    Unbounded,
    /// Eight jobs with block sizes from 4 KiB to 1 MiB.
    Mixed,
    /// Exports of different weight.
    Weights,
}

impl BoundedCase {
    const ALL: [Self; 5] = [Self::Alone, Self::Beside, Self::Unbounded, Self::Mixed, Self::Weights];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Beside => "beside",
            Self::Unbounded => "unbounded",
            Self::Mixed => "mixed",
            Self::Weights => "weights",
        }
    }

    fn jobs(self, size: u64) -> Vec<JobOptions> {
        let job = |bs, iodepth, export| JobOptions {
            bs,
            iodepth,
            end: size,
            export: ExportId(export),
            ..JobOptions::default()
        };
        let (light, heavy) = (job(4096, 1, 0), job(1 << 20, 128, 0));
        match self {
            Self::Alone => vec![light],
            Self::Beside | Self::Unbounded => [vec![light], vec![heavy; 7]].concat(),
            // Each keeps 2 MiB in flight, enough to take its share.
            Self::Mixed => (0..8u32)
                .map(|number| 4096 << (number + number / 7))
                .map(|bs: u32| job(bs, (2 << 20) / bs, 0))
                .collect(),
            Self::Weights => (0..6).map(|number| job(64 << 10, 64, number / 2)).collect(),
        }
    }
}

/// The configuration of a row.
#[derive(Clone, Copy, Debug)]
struct BoundedPoint {
    disk: Disk,
    scheduler: Scheduler,
    policy: TagPolicy,
    case: BoundedCase,
}

/// Runs the experiment.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    run_for(filter, SECONDS)
}

fn run_for(filter: &RowFilter, seconds: u64) -> Result<Report, ConfigError> {
    let points: Vec<BoundedPoint> = all().into_iter().filter(|point| point.is_in(filter)).collect();
    let rows = run_each("fairness", &points, |point| point.run(filter.seed, seconds))?;
    let bounds = DISKS.map(|disk| {
        format!(
            "{}: hw_inflight_kb {}, max_sectors_kb {}; `unbounded` has the usual limits (0, 1280)",
            disk.name, disk.hw_inflight_kb, disk.max_sectors_kb
        )
    });
    let mut notes = vec![
        "random reads: one of 4 KiB at depth 1 (the first connection), seven of 1 MiB at depth 128; or equals; or weights \
         1:2:4, two connections each"
            .into(),
        "disks are held to their published figures within 10 %; ratios are believed, microseconds less".into(),
    ];
    notes.extend(bounds);
    Ok(Report {
        title: "fairness: shares of one device".into(),
        notes,
        verdicts: judge(&rows),
        rows,
    })
}

fn all() -> Vec<BoundedPoint> {
    let mut points = Vec::new();
    for disk in DISKS {
        for scheduler in GATED {
            let baseline = BoundedPoint {
                disk,
                scheduler,
                policy: TagPolicy::Legacy518,
                case: BoundedCase::Unbounded,
            };
            points.push(baseline);
            let ours = BoundedCase::ALL.map(|case| BoundedPoint {
                policy: TagPolicy::Fair,
                case,
                ..baseline
            });
            points.extend(ours);
        }
    }
    points
}

impl BoundedPoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_policy(self.policy)
            && filter.has_case(self.case.name())
            && filter.has_device(self.disk.name)
            && filter.has_jobs(self.case.jobs(1 << 30).len() as u32)
            && filter.has_tags(self.queue().nr_requests)
    }

    fn queue(&self) -> QueueOptions {
        // `unbounded` is without any limit, the others with one by hand.
        let (scheduler, hw_depth) = (self.scheduler, DepthMode::Fixed);
        let usual = QueueOptions { scheduler, hw_depth, ..QueueOptions::default() };
        let Disk { hw_inflight_kb, max_sectors_kb, .. } = self.disk;
        match self.case {
            BoundedCase::Unbounded => usual,
            _ => QueueOptions { hw_inflight_kb, max_sectors_kb, ..usual },
        }
    }

    fn run(&self, seed: u64, seconds: u64) -> Result<Row, ConfigError> {
        let size = self.disk.profile.capacity / 4096 * 4096;
        let mut harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: self.queue(),
            size,
            device: Box::new(Ssd::new(self.disk.profile)),
            jobs: self.case.jobs(size),
            tenants: Vec::new(),
            exports: WEIGHTS
                .map(|weight| ExportConfig { weight, ..ExportConfig::default() })
                .to_vec(),
            cache: Default::default(),
            ramp_ns: SEC / 10,
            runtime_ns: seconds * SEC,
        })?;
        let wake = WakeOptions { seed: seed as u32, ..WakeOptions::default() };
        self.policy.install(harness.shard(), DeviceId(0), wake);
        Ok(self.row(&harness.run(), seconds))
    }

    fn row(&self, counts: &RunCounts, seconds: u64) -> Row {
        let queue = self.queue();
        let first = &counts.jobs[0];
        let kib: Vec<u64> = counts.jobs.iter().map(|job| job.bytes >> 10).collect();
        let rest: u64 = kib[1..].iter().sum();
        Row::new("runs")
            .with("device", self.disk.name)
            .with("scheduler", self.scheduler.name())
            .with("policy", self.policy.name())
            .with("case", self.case.name())
            .with("tags", queue.nr_requests)
            .with("hw_inflight_kb", queue.hw_inflight_kb)
            .with("max_sectors_kb", queue.max_sectors_kb)
            .with("seconds", seconds)
            .with("first_bios", first.bios)
            .with("first_p50_ns", first.latency.percentile(500))
            .with("first_p99_ns", first.latency.percentile(990))
            .with("failed", counts.errors + counts.notices + u64::from(counts.stuck))
            .with_real("rest_mb_s", rest as f64 * 1.024e-3 / seconds as f64, 0)
            .with(SETTINGS, counts.settings.clone())
            .with("hash", format!("{:016x}", counts.hash))
            .with("kib", kib)
    }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for disk in DISKS {
        for scheduler in GATED {
            verdicts.extend(judge_one(rows, disk.name, scheduler.name()));
        }
    }
    if !rows.is_empty() {
        let failed: u64 = rows.iter().map(|row| row.int("failed")).sum();
        verdicts.push(Verdict {
            what: "hung runs and failed bios".into(),
            seed: None,
            baseline: None,
            ours: Some(failed as f64),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

fn judge_one(rows: &[Row], device: &str, scheduler: &str) -> Vec<Verdict> {
    let find = |policy: &str, case: BoundedCase| {
        let is = |row: &&Row| {
            row.is("device", device)
                && row.is("scheduler", scheduler)
                && row.is("policy", policy)
                && row.is("case", case.name())
        };
        rows.iter().find(is)
    };
    let fair = |case| find("fair", case);
    let p99 = |row: &Row| row.int("first_p99_ns") as f64;
    let heavy =
        |row: &Row| row.ints("kib")[1..].iter().sum::<u64>() as f64 / row.int("seconds") as f64;
    let verdict = |what: &str, baseline, ours, goal| Verdict {
        what: format!("{device}, {scheduler}: {what}"),
        seed: None,
        baseline,
        ours: Some(ours),
        goal,
        ..Verdict::default()
    };
    let mut verdicts = Vec::new();
    if let (Some(alone), Some(beside)) = (fair(BoundedCase::Alone), fair(BoundedCase::Beside)) {
        let old = find("legacy518", BoundedCase::Unbounded).map(|row| p99(row) / p99(alone));
        let part = p99(beside) / p99(alone);
        let goal = Some(Goal::AtMost(P99));
        let found = verdict("the light one's p99, times alone", old, part, goal);
        verdicts.push(found.with_settings(beside));
    }
    if let (Some(beside), Some(free)) = (fair(BoundedCase::Beside), fair(BoundedCase::Unbounded)) {
        let part = heavy(beside) / heavy(free);
        verdicts.push(verdict("the heavy ones' bytes, part of unbounded", None, part, None));
        let even = |row: &Row| jain(row.ints("kib")[1..].iter().map(|&kib| kib as f64));
        let old = find("legacy518", BoundedCase::Unbounded).map(even);
        let goal = Some(Goal::AtLeast(JAIN));
        verdicts.push(
            verdict("Jain's index, seven equals", old, even(beside), goal).with_settings(beside),
        );
    }
    if let Some(mixed) = fair(BoundedCase::Mixed) {
        let even = jain(mixed.ints("kib").iter().map(|&kib| kib as f64));
        let goal = Some(Goal::AtLeast(JAIN));
        let found = verdict("Jain's index, eight of 4 KiB to 1 MiB", None, even, goal);
        verdicts.push(found.with_settings(mixed));
    }
    if let Some(weights) = fair(BoundedCase::Weights) {
        let kib = weights.ints("kib");
        let total: u64 = kib.iter().sum();
        let sum: u16 = WEIGHTS.iter().sum();
        let off = |(pair, weight): (&[u64], u16)| {
            let part = (pair[0] + pair[1]) as f64 / total as f64;
            (part * f64::from(sum) / f64::from(weight) - 1.0).abs()
        };
        let worst = kib.chunks(2).zip(WEIGHTS).map(off).fold(0.0, f64::max);
        let goal = Some(Goal::AtMost(WEIGHTS_OFF));
        let found = verdict("weights 1:2:4, the worst part is off by", None, worst, goal);
        verdicts.push(found.with_settings(weights));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(device: &str) -> Report {
        run_for(&RowFilter { device: Some(device.into()), ..RowFilter::default() }, 1).unwrap()
    }

    #[test]
    fn nvme_light_job_keeps_its_p99_and_shares_are_fair() {
        let report = quick("nvme");
        assert!(report.is_met(), "{}", report.to_text());
        for row in report.rows.iter().filter(|row| row.is("case", "beside")) {
            // The throughput that the bound costs the heavy jobs.
            assert!(row.real("rest_mb_s") > 0.95 * 2800.0, "{row:?}");
        }
        // Without the bound the policy has little effect: all requests are in the device.
        let free = report.rows.iter().find(|row| row.is("case", "unbounded")).unwrap();
        assert!(free.int("first_p99_ns") > 10_000_000, "{free:?}");
    }

    #[test]
    fn verdicts_are_computed_from_printed_rows() {
        let report = quick("nvme");
        let read: Vec<Row> = report.to_json().lines().filter_map(Row::from_json).collect();
        assert_eq!(judge(&read), report.verdicts);
        let missed = |change: &dyn Fn(&Row) -> Option<Row>| {
            let rows: Vec<Row> =
                read.iter().map(|row| change(row).unwrap_or_else(|| row.clone())).collect();
            judge(&rows).iter().filter(|verdict| !verdict.is_met()).count()
        };
        assert_eq!(missed(&|_| None), 0);
        let slow = |row: &Row| {
            row.is("case", "beside").then(|| row.clone().replaced("first_p99_ns", 300_000))
        };
        assert_eq!(missed(&slow), 2);
        // The job of weight 1 gets 6 % more than its share.
        let uneven = |row: &Row| {
            let kib = [530, 530, 1000, 1000, 2000, 2000].to_vec();
            row.is("case", "weights").then(|| row.clone().replaced("kib", kib))
        };
        assert_eq!(missed(&uneven), 2);
        let hog = |row: &Row| {
            let kib = [0, 900, 100, 100, 100, 100, 100, 100].to_vec();
            row.is("case", "beside").then(|| row.clone().replaced("kib", kib))
        };
        assert_eq!(missed(&hog), 2);
    }
}
