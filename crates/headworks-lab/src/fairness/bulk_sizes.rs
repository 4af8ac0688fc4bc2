//! A light reader beside bulk of every size: does it keep its latency, and does the bulk keep its bytes?
//!
//! One export reads 4 KiB at a time and asks for about a fiftieth of the device; seven others each keep 128 requests of one size in
//! flight. Default options, after the search for the depth and, with `bfq`, after the raising of new clients.
//!
//! ```text
//!   for each disk, elevator, size, direction:  alone, bulk, both  --> p99 in times alone, bytes kept
//!   what the drive leaves of that:             drive              --> p99 beside commands that are all in the drive
//!   goals:  p99 at most 2.5 times alone on flash, 3 times on disks
//!           bytes at least 0.93 of what the reader leaves of the device
//!   what the drive leaves is the bound of a p99 that misses its goal
//! ```
//!
//! **Drive.** A drive orders the commands that it has and knows no shares. `drive_p99_us` is the reader's p99 beside one connection whose
//! commands are all in the drive: nothing waits outside it, so no policy of ours is part of that. On disks they fill all places but
//! one, which is what a drive needs to order them; on flash there are two, the least that keeps a device busy.
//!
//! **Own part.** The bulk can keep what the reader does not use: `1 - reads * (time of a read of a busy device) / run`.

use headworks_core::time::{MS, SEC, US};
use headworks_core::{ConfigError, ExportConfig, ExportId, Op, QueueOptions, Scheduler};

use super::beside::P99_TEXT;
use super::clients::KIB4;
use super::device::{Device, MIB};
use crate::baseline::TagPolicy;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::{Goal, Report, Row, SETTINGS, Verdict, run_each};
use crate::row_filter::{GATED, RowFilter};

const TABLE: &str = "a light reader beside bulk of every size";
/// The case of all rows, which run only when it is named.
pub(super) const CASE: &str = "bulk-sizes";
/// What is judged of the bulk, in the words of the verdicts.
pub(super) const KEPT_TEXT: &str = "bulk's bytes, part of what the reader leaves";

const SIZES: [u32; 4] = [KIB4, 64 << 10, 256 << 10, MIB];
const BULK: u32 = 7;
const BULK_DEPTH: u32 = 128;
/// The reader asks for a fiftieth of the device's time.
const LIGHT_PART: u64 = 50;

/// Goals: the reader's p99 in times alone, on flash and on disks beside writes.
const P99: [f64; 2] = [2.5, 3.0];
const KEPT: f64 = 0.93;
const DRIVE: &str = "the reader beside commands that are all in the drive, times alone";

/// A device with its bulk.
#[derive(Clone, Copy, Debug)]
pub(super) struct BulkSizePoint {
    /// The device that they share.
    pub device: Device,
    /// The elevator of its queue.
    pub scheduler: Scheduler,
    /// The direction of the bulk.
    pub op: Op,
    bytes: u32,
}

/// The clients of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    Light,
    Bulk,
    Both,
    /// The reader beside one connection with all requests in the drive.
    Drive,
}

/// Runs the selected rows.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let points: Vec<BulkSizePoint> =
        all().into_iter().filter(|point| point.is_in(filter)).collect();
    let rows =
        run_each("fairness beside bulk of every size", &points, |point| point.row(filter.seed))?;
    let notes = vec![format!(
        "an export each; the reader asks for 1/{LIGHT_PART} of the device, {BULK} others keep {BULK_DEPTH} requests each; default options"
    )];
    let title = "fairness: a light reader beside bulk of every size".into();
    Ok(Report { title, notes, verdicts: judge(&rows), rows })
}

/// The elevators of a device: bfq shares a disk in slots of tens of milliseconds, and is judged there by `run bfq`.
fn schedulers(device: Device) -> Vec<Scheduler> {
    let bfq = (!device.is_disk()).then_some(Scheduler::Bfq);
    GATED.into_iter().chain(bfq).collect()
}

/// The direction as rows name it.
pub(super) fn name(op: Op) -> &'static str {
    if op == Op::Read { "read" } else { "write" }
}

pub(super) fn all() -> Vec<BulkSizePoint> {
    let mut points = Vec::new();
    for device in Device::DRIVES {
        for scheduler in schedulers(device) {
            for op in [Op::Read, Op::Write] {
                let point = |bytes| BulkSizePoint { device, scheduler, op, bytes };
                points.extend(SIZES.map(point));
            }
        }
    }
    points
}

impl BulkSizePoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.names_case(CASE)
            && filter.has_policy(TagPolicy::Fair)
            && filter.has_device(self.device.name())
            && filter.has_jobs(BULK + 1)
            && filter.has_tags(QueueOptions::default().nr_requests)
    }

    /// On disks a few hundred reads of the light one; on flash thousands, after the longest raise of a client.
    fn lengths_ns(&self) -> [u64; 2] {
        match self.scheduler {
            _ if self.device.is_disk() => [60 * SEC, 250 * SEC],
            // Beyond the raise, what waited when commands were first cut has to go before the search goes on.
            Scheduler::Bfq if self.bytes > KIB4 => [12 * SEC, SEC],
            Scheduler::Bfq => [5 * SEC, SEC],
            _ => [3 * SEC / 2, SEC],
        }
    }

    fn think_ns(&self) -> u64 {
        match self.device {
            // It asks for less than its part without thinking.
            Device::Nvme => 4 * US,
            _ => self.device.about_ns(Op::Read, KIB4) * LIGHT_PART,
        }
    }

    fn queue(&self) -> QueueOptions {
        let usual = QueueOptions { scheduler: self.scheduler, ..QueueOptions::default() };
        let queue_depth = self.device.queue_depth(usual.nr_requests);
        QueueOptions { queue_depth, ..usual }
    }

    fn jobs(&self, clients: Clients) -> Vec<JobOptions> {
        let end = self.device.size();
        let light = JobOptions { end, think_ns: self.think_ns(), ..JobOptions::default() };
        let bulk = |iodepth: u32| JobOptions {
            op: self.op,
            bs: self.bytes,
            iodepth,
            end,
            think_ns: 4 * US,
            ..JobOptions::default()
        };
        let all = match clients {
            Clients::Light => vec![light],
            Clients::Bulk => vec![bulk(BULK_DEPTH); BULK as usize],
            Clients::Both => [vec![light], vec![bulk(BULK_DEPTH); BULK as usize]].concat(),
            Clients::Drive if self.device.is_disk() => {
                vec![light, bulk(self.queue().queue_depth - 1)]
            }
            Clients::Drive => vec![light, bulk(2)],
        };
        let export =
            |(job, number): (JobOptions, u16)| JobOptions { export: ExportId(number), ..job };
        all.into_iter().zip(0..).map(export).collect()
    }

    fn count(&self, seed: u64, clients: Clients) -> Result<RunCounts, ConfigError> {
        let [ramp_ns, runtime_ns] = self.lengths_ns();
        let jobs = self.jobs(clients);
        let harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: self.queue(),
            size: self.device.size(),
            device: self.device.make(),
            exports: vec![ExportConfig::default(); jobs.len()],
            jobs,
            tenants: Vec::new(),
            cache: Default::default(),
            ramp_ns,
            runtime_ns,
        })?;
        Ok(harness.run())
    }

    fn row(&self, seed: u64) -> Result<Row, ConfigError> {
        let [_, runtime_ns] = self.lengths_ns();
        let alone = self.count(seed, Clients::Light)?;
        let bulk = self.count(seed, Clients::Bulk)?;
        let both = self.count(seed, Clients::Both)?;
        let drive = self.count(seed, Clients::Drive)?;
        // One that waits to the end of the run counts.
        let p99_us = |counts: &RunCounts| {
            let light = &counts.jobs[0];
            let waits = if light.bios < 100 { light.waiting_ns } else { 0 };
            light.latency.percentile(990).max(waits) / US
        };
        let light = &both.jobs[0];
        let took_ns = self.device.about_ns(Op::Read, KIB4);
        let own = (light.bios * took_ns) as f64 / runtime_ns as f64;
        let bytes: u64 = both.jobs[1..].iter().map(|job| job.bytes).sum();
        let kept = bytes as f64 / bulk.bytes.max(1) as f64;
        let mb_s = |bytes: u64| bytes as f64 * 1e3 / runtime_ns as f64;
        let failed = |counts: &RunCounts| counts.errors + u64::from(counts.stuck);
        Ok(Row::new(TABLE)
            .with("device", self.device.name())
            .with("scheduler", self.scheduler.name())
            .with("case", CASE)
            .with("op", name(self.op))
            .with("kib", self.bytes >> 10)
            .with("ms", runtime_ns / MS)
            .with(SETTINGS, both.settings.clone())
            .with("bios", light.bios)
            .with("alone_p99_us", p99_us(&alone))
            .with("drive_p99_us", p99_us(&drive))
            .with("p99_us", p99_us(&both))
            .with_real("times_alone", p99_us(&both) as f64 / p99_us(&alone).max(1) as f64, 2)
            .with_real("bulk_alone_mb_s", mb_s(bulk.bytes), 1)
            .with_real("bulk_mb_s", mb_s(bytes), 1)
            .with_real("kept", kept, 4)
            .with_real("kept_of_left", kept / (1.0 - own.min(0.9)), 4)
            .with("failed", [&alone, &bulk, &both].into_iter().map(failed).sum::<u64>()))
    }
}

/// Computes the verdicts: for each device, elevator and direction the worst row.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for device in Device::DRIVES {
        for scheduler in schedulers(device) {
            for op in ["read", "write"] {
                let is = |row: &&Row| {
                    row.table == TABLE
                        && row.is("device", device.name())
                        && row.is("scheduler", scheduler.name())
                        && row.is("op", op)
                };
                let ours: Vec<&Row> = rows.iter().filter(is).collect();
                if !ours.is_empty() {
                    verdicts.extend(judge_kind(&ours, device, scheduler, op));
                }
            }
        }
    }
    verdicts
}

fn judge_kind(ours: &[&Row], device: Device, scheduler: Scheduler, op: &str) -> [Verdict; 2] {
    let goal = P99[usize::from(device.is_disk())];
    // Times alone, and those that the drive leaves.
    let p99 = |row: &Row| {
        let alone = row.int("alone_p99_us").max(1) as f64;
        (row.int("p99_us") as f64 / alone, row.int("drive_p99_us") as f64 / alone)
    };
    // The row that is furthest beyond its goal, or beyond what its drive leaves.
    let over = |row: &&Row| {
        let (times, left) = p99(row);
        times / left.max(goal)
    };
    let worst = ours.iter().copied().max_by(|a, b| over(a).total_cmp(&over(b)));
    let (times, left) = p99(worst.expect("a kind has rows"));
    let failed = ours.iter().any(|row| row.int("failed") > 0);
    let kept = ours.iter().map(|row| row.real("kept_of_left")).fold(f64::INFINITY, f64::min);
    let kept = if failed { 0.0 } else { kept };
    let verdict = |what: &str, ours, goal| Verdict {
        what: format!("{}, {}, {CASE} {op}: {what}", device.name(), scheduler.name()),
        ours: Some(ours),
        goal: Some(goal),
        ..Verdict::default()
    };
    let p99 = verdict(P99_TEXT, times, Goal::AtMost(goal)).bounded(DRIVE, left);
    let kept = verdict(KEPT_TEXT, kept, Goal::AtLeast(KEPT));
    [p99, kept]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    fn row(device: &str, op: &str, p99: u64, drive: u64, kept: f64) -> Row {
        Row::new(TABLE)
            .with("device", device)
            .with("scheduler", "none")
            .with("op", op)
            .with("alone_p99_us", 100)
            .with("drive_p99_us", drive)
            .with("p99_us", p99)
            .with("kept_of_left", kept)
            .with("failed", 0)
    }

    fn missed(rows: &[Row]) -> usize {
        judge(rows).iter().filter(|verdict| verdict.outcome() == Outcome::Missed).count()
    }

    #[test]
    fn worst_size_decides_and_a_disk_read_is_judged_by_what_the_drive_leaves() {
        let good = row("sata", "write", 240, 0, 0.95);
        assert_eq!(missed(std::slice::from_ref(&good)), 0);
        assert_eq!(missed(&[good.clone(), row("sata", "write", 260, 0, 0.95)]), 1);
        assert_eq!(missed(&[good.clone(), row("sata", "write", 240, 0, 0.89)]), 1);
        assert_eq!(missed(&[good.replaced("failed", 1)]), 1);
        assert_eq!(missed(&[row("hdd-32", "read", 2000, 1700, 0.95)]), 0);
        assert_eq!(missed(&[row("hdd-32", "read", 2000, 1500, 0.95)]), 1);
    }

    /// Without a measured limit behind the open gate the reader waited for all that the drive takes, 60 ms.
    #[test]
    fn light_reader_keeps_its_latency_with_bfq_on_flash() {
        let bfq = BulkSizePoint {
            device: Device::Sata,
            scheduler: Scheduler::Bfq,
            op: Op::Read,
            bytes: MIB,
        };
        let row = bfq.row(1).unwrap();
        assert!(row.real("times_alone") < 4.0 && row.real("kept_of_left") > 0.9, "{row:?}");
    }

    #[test]
    fn reader_asks_for_a_small_part_of_flash() {
        let point = BulkSizePoint {
            device: Device::Sata,
            scheduler: Scheduler::None,
            op: Op::Read,
            bytes: MIB,
        };
        let row = Row::from_json(&point.row(1).unwrap().to_json()).unwrap();
        assert!(row.int("bios") > 900 && row.real("kept_of_left") < 1.1, "{row:?}");
    }
}
