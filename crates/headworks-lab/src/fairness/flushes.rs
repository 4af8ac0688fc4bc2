//! Flushes and FUA writes beside others: does a small client wait for a large flush, or a reader for many small ones?
//!
//! | case | light | heavy |
//! |---|---|---|
//! | `flush-beside-flush` | a write of 4 KiB and a flush, one a second, through the cache | another export writes 1 GiB through the cache and flushes it, again and again |
//! | `reads-beside-flushes` | a reader of 4 KiB that asks for a fiftieth of the device | 16 exports, each a write of 4 KiB and a flush in turn |
//! | `reads-beside-fua` | the same | 16 exports with FUA writes of 4 KiB; the device has no FUA, so a flush follows each |
//!
//! Each case runs three times: light alone, heavy alone, both. Goals: the longest wait of the light client is at most three times that
//! alone, and the heavy ones keep 0.9 of their rate.
//!
//! **Drive.** A drive that takes a write into its cache answers alone in a tenth of a millisecond, and beside others when it has room.
//! `drive_longest_us` is the light client's longest wait beside the heavy ones' writes without flushes, as many as the drive takes at
//! once: nothing waits outside it. The shortest of these with any elevator bounds what a policy can reach on the device.
//!
//! The rows run only when their case is named.

use headworks_core::time::{MS, SEC, US};
use headworks_core::{
    CacheOptions, ConfigError, ExportConfig, ExportId, Op, QueueOptions, Scheduler,
};

use super::clients::KIB4;
use super::device::{Device, MIB};
use crate::baseline::TagPolicy;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::{Goal, Report, Row, SETTINGS, Verdict, run_each};
use crate::row_filter::RowFilter;

const TABLE: &str = "flushes beside others";
/// What is judged, in the words of the verdicts.
pub(super) const LONGEST_TEXT: &str = "light client's longest wait, times alone";
const KEPT_TEXT: &str = "heavy clients' rate, part of alone";

const LONGEST: f64 = 3.0;
const DRIVE: &str = "the client beside writes that are all in the drive, times alone";
const KEPT: f64 = 0.9;
const STORM: u16 = 16;
/// Bytes of the cache, of which a fifth may be dirty, and of the large flush.
const CACHE: u64 = 8 << 30;
const FLUSH: u32 = 1 << 30;

/// The elevators that are compared: all.
const SCHEDULERS: [Scheduler; 3] = [Scheduler::None, Scheduler::MqDeadline, Scheduler::Bfq];

/// Light and heavy clients of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushCase {
    FlushBesideFlush,
    ReadsBesideFlushes,
    ReadsBesideFua,
}

/// The clients of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    Light,
    Heavy,
    Both,
    /// The light client beside writes that fill the drive, and nothing outside it.
    Drive,
}

impl FlushCase {
    const ALL: [Self; 3] = [Self::FlushBesideFlush, Self::ReadsBesideFlushes, Self::ReadsBesideFua];

    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlushBesideFlush => "flush-beside-flush",
            Self::ReadsBesideFlushes => "reads-beside-flushes",
            Self::ReadsBesideFua => "reads-beside-fua",
        }
    }

    fn is_cached(self) -> bool {
        self == Self::FlushBesideFlush
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FlushPoint {
    /// The clients of the row.
    pub case: FlushCase,
    /// The device that they share.
    pub device: Device,
    /// The elevator of its queue.
    pub scheduler: Scheduler,
}

/// Runs the selected rows.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let points: Vec<FlushPoint> = all().into_iter().filter(|point| point.is_in(filter)).collect();
    let rows = run_each("fairness of flushes", &points, |point| point.row(filter.seed))?;
    let notes = vec![
        "an export and a volume each, on one device with a volatile cache; default options".into(),
    ];
    let title = "fairness: flushes beside others".into();
    Ok(Report { title, notes, verdicts: judge(&rows), rows })
}

pub(super) fn all() -> Vec<FlushPoint> {
    let mut points = Vec::new();
    for case in FlushCase::ALL {
        for device in Device::ALL {
            points.extend(SCHEDULERS.map(|scheduler| FlushPoint { case, device, scheduler }));
        }
    }
    points
}

impl FlushPoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        let queue = QueueOptions::default();
        filter.names_case(self.case.name())
            && filter.has_policy(TagPolicy::Fair)
            && filter.has_device(self.device.name())
            && filter.has_jobs(self.jobs(Clients::Both).len() as u32)
            && filter.has_tags(queue.nr_requests)
    }

    fn lengths_ns(&self) -> [u64; 2] {
        match (self.case, self.device.is_disk()) {
            (FlushCase::FlushBesideFlush, _) => [10 * SEC, 60 * SEC],
            (_, true) => [60 * SEC, 120 * SEC],
            (_, false) => [4 * SEC, 2 * SEC],
        }
    }

    fn queue(&self) -> QueueOptions {
        let usual = QueueOptions { scheduler: self.scheduler, ..QueueOptions::default() };
        let (queue_depth, rotational) =
            (self.device.queue_depth(usual.nr_requests), self.device.is_disk());
        QueueOptions { queue_depth, rotational, write_cache: true, ..usual }
    }

    fn light(&self) -> JobOptions {
        match self.case {
            FlushCase::FlushBesideFlush => JobOptions {
                op: Op::Write,
                random: false,
                flush_every: 1,
                think_ns: SEC / 2,
                end: 64 << 20,
                ..JobOptions::default()
            },
            _ => JobOptions {
                end: self.volume_bytes(),
                think_ns: match self.device {
                    Device::Nvme => 4 * US,
                    _ => self.device.about_ns(Op::Read, KIB4) * 50,
                },
                ..JobOptions::default()
            },
        }
    }

    fn heavy(&self) -> Vec<JobOptions> {
        let small = JobOptions {
            op: Op::Write,
            end: self.volume_bytes(),
            think_ns: 4 * US,
            ..JobOptions::default()
        };
        match self.case {
            FlushCase::FlushBesideFlush => vec![JobOptions {
                bs: MIB,
                random: false,
                flush_every: FLUSH / MIB,
                think_ns: 100 * US,
                ..small
            }],
            FlushCase::ReadsBesideFlushes => {
                vec![JobOptions { flush_every: 1, ..small }; STORM.into()]
            }
            FlushCase::ReadsBesideFua => vec![JobOptions { fua: true, ..small }; STORM.into()],
        }
    }

    /// Bytes of each of the volumes, in whole MiB.
    fn volume_bytes(&self) -> u64 {
        let volumes = if self.case.is_cached() { 2 } else { u64::from(STORM) + 1 };
        self.device.size() / volumes / u64::from(MIB) * u64::from(MIB)
    }

    fn jobs(&self, clients: Clients) -> Vec<JobOptions> {
        let number = |(number, job): (u16, JobOptions)| JobOptions {
            volume: number,
            export: ExportId(number),
            ..job
        };
        let light = (0, self.light());
        let heavy = self.heavy();
        let heavy: Vec<(u16, JobOptions)> = match clients {
            Clients::Light => Vec::new(),
            // The same writes, as many at once as the drive takes beside the light client, without flushes of their own.
            Clients::Drive => vec![(
                1,
                JobOptions {
                    iodepth: self.queue().queue_depth - 1,
                    flush_every: 0,
                    fua: false,
                    ..heavy[0]
                },
            )],
            _ => (1..).zip(heavy).collect(),
        };
        let light = (clients != Clients::Heavy).then_some(light);
        light.into_iter().chain(heavy).map(number).collect()
    }

    fn count(&self, seed: u64, clients: Clients) -> Result<RunCounts, ConfigError> {
        let [ramp_ns, runtime_ns] = self.lengths_ns();
        let cached = self.case.is_cached() && clients != Clients::Drive;
        let units = if cached { (CACHE / 4096) as u32 } else { 0 };
        let jobs = self.jobs(clients);
        let exports = jobs.iter().map(|job| job.export.0 + 1).max().unwrap_or(1);
        let harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: self.queue(),
            size: self.volume_bytes(),
            device: self.device.make(),
            exports: vec![ExportConfig::default(); exports.into()],
            jobs,
            tenants: Vec::new(),
            cache: CacheOptions { units, ..CacheOptions::default() },
            ramp_ns,
            runtime_ns,
        })?;
        Ok(harness.run())
    }

    fn row(&self, seed: u64) -> Result<Row, ConfigError> {
        let [_, runtime_ns] = self.lengths_ns();
        let alone = self.count(seed, Clients::Light)?;
        let heavy = self.count(seed, Clients::Heavy)?;
        let both = self.count(seed, Clients::Both)?;
        let drive = self.count(seed, Clients::Drive)?;
        let longest_us = |counts: &RunCounts| counts.jobs[0].longest_ns() / US;
        let light = &both.jobs[0];
        let rate: u64 = both.jobs[1..].iter().map(|job| job.bytes).sum();
        let failed = |counts: &RunCounts| counts.errors + counts.notices + u64::from(counts.stuck);
        let times = longest_us(&both) as f64 / longest_us(&alone).max(1) as f64;
        Ok(Row::new(TABLE)
            .with("device", self.device.name())
            .with("scheduler", self.scheduler.name())
            .with("case", self.case.name())
            .with("ms", runtime_ns / MS)
            .with(SETTINGS, both.settings.clone())
            .with("bios", light.bios)
            .with("p50_us", light.latency.percentile(500) / US)
            .with("p99_us", light.latency.percentile(990) / US)
            .with("alone_longest_us", longest_us(&alone))
            .with("drive_longest_us", longest_us(&drive))
            .with("longest_us", longest_us(&both))
            .with_real("times_alone", times, 2)
            .with("heavy_alone", heavy.bytes)
            .with("heavy", rate)
            .with("failed", [&alone, &heavy, &both].into_iter().map(failed).sum::<u64>()))
    }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let ours: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut verdicts = Vec::new();
    for row in &ours {
        let alone = row.int("alone_longest_us").max(1) as f64;
        let same =
            |other: &&&Row| ["device", "case"].iter().all(|name| other.is(name, row.word(name)));
        let drives = ours.iter().filter(same).map(|row| row.int("drive_longest_us"));
        let drive = drives.min().unwrap_or(0) as f64 / alone;
        let kept = row.int("heavy") as f64 / row.int("heavy_alone").max(1) as f64;
        let [device, scheduler, case] = ["device", "scheduler", "case"].map(|name| row.word(name));
        let goals = [
            (LONGEST_TEXT, row.int("longest_us") as f64 / alone, Goal::AtMost(LONGEST)),
            (KEPT_TEXT, kept, Goal::AtLeast(KEPT)),
        ];
        let [longest, kept] = goals.map(|(what, ours, goal)| Verdict {
            what: format!("{device}, {scheduler}, {case}: {what}"),
            ours: Some(ours),
            goal: Some(goal),
            ..Verdict::default()
        });
        let longest = longest.bounded(DRIVE, drive);
        verdicts.extend([longest, kept]);
    }
    if !ours.is_empty() {
        verdicts.push(Verdict {
            what: "flushes: hung runs and failed bios".into(),
            ours: Some(ours.iter().map(|row| row.int("failed")).sum::<u64>() as f64),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn verdicts_follow_from_printed_rows() {
        let (case, device, scheduler) =
            (FlushCase::ReadsBesideFlushes, Device::Sata, Scheduler::None);
        let row = FlushPoint { case, device, scheduler }.row(1).unwrap();
        let row = Row::from_json(&row.to_json()).unwrap();
        assert!(row.int("bios") > 100 && row.int("heavy") > 1 << 20, "{row:?}");
        let row = row.replaced("alone_longest_us", 100).replaced("drive_longest_us", 100);
        let row = row.replaced("heavy", 95).replaced("heavy_alone", 100).replaced("failed", 0);
        let missed = |longest: u64, heavy: u64, drive: u64, failed: u64| {
            let row = row.clone().replaced("longest_us", longest).replaced("heavy", heavy);
            let row = row.replaced("drive_longest_us", drive).replaced("failed", failed);
            judge(&[row]).iter().filter(|verdict| verdict.outcome() == Outcome::Missed).count()
        };
        assert_eq!(missed(300, 95, 100, 0), 0);
        assert_eq!((missed(301, 95, 100, 0), missed(301, 95, 400, 0)), (1, 0));
        assert_eq!((missed(300, 89, 100, 0), missed(300, 95, 100, 1)), (1, 1));
    }
}
