//! Light clients beside heavy ones, with the default options.
//!
//! | case | light | heavy |
//! |---|---|---|
//! | `bulk-writes`, `bulk-reads` | one reader of 4 KiB | seven connections with 128 requests of 1 MiB each |
//! | `write-out` | 16 readers of 4 KiB that miss the cache | 20 writers of 128 KiB through the cache |
//! | `light-writers` | 32 writers of 4 KiB | four writers of 1 MiB at depth 16 |
//! | `uneven-writers` (`ablation` only) | 36 writers of 0.1 MB/s through the cache | one writer of 128 KiB through the cache |
//!
//! Each case runs three times: light alone, heavy alone, both. All light clients together ask for
//! about 2 % of the device's time, so the heavy ones can keep nearly all of theirs; on NVMe a closed
//! loop of one reader is 2 to 3 %. Goals: the light clients' p99 as a multiple of that alone, and
//! the heavy clients' bytes as a part of those alone.

use headworks_core::time::{MS, SEC, US};
use headworks_core::{CacheOptions, ConfigError, Op, QueueOptions, Scheduler};
use headworks_nbd::client::Histogram;

use super::device::{Device, MIB};
use super::mechanism::Setup;
use crate::baseline::TagPolicy;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobCounts, JobOptions, RunCounts};
use crate::report::{Goal, Report, Row, SETTINGS, Verdict, jain, run_each};
use crate::row_filter::{GATED, RowFilter};

const TABLE: &str = "light clients beside heavy ones";
/// What is judged of light clients, in the words of the verdicts.
pub(super) const P99_TEXT: &str = "light clients' p99, times alone";
/// Bytes of the cache of `write-out`.
const CACHE: u64 = 1 << 30;
/// The light clients together ask for a fiftieth of the device's time.
const LIGHT_PART: u64 = 50;
/// What a person sets for write-out on the device of 700 MB/s: one command of 128 KiB.
const STREAM_700_BY_HAND: [u32; 2] = [128, 128];
/// Time of a command on that device beside its bytes, in microseconds.
const STREAM_700_COMMAND_US: f64 = 20.0;
/// Light writers of `uneven-writers`, and bytes that each writes in a second: those of seed 002.
const LIGHT_STREAMS: u32 = 36;
const LIGHT_STREAM_RATE: u64 = 100_000;

/// Light and heavy clients of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BesideCase {
    BulkWrites,
    BulkReads,
    WriteOut,
    LightWriters,
    /// Only in the table of what mechanisms buy.
    UnevenWriters,
}

impl BesideCase {
    /// The cases of this table.
    const ALL: [Self; 4] = [Self::BulkWrites, Self::BulkReads, Self::WriteOut, Self::LightWriters];

    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BulkWrites => "bulk-writes",
            Self::BulkReads => "bulk-reads",
            Self::WriteOut => "write-out",
            Self::LightWriters => "light-writers",
            Self::UnevenWriters => "uneven-writers",
        }
    }

    /// Goals: the light clients' p99 in times alone, and the part that the heavy ones keep.
    const fn goals(self, device: Device) -> Option<(f64, f64)> {
        match (self, device) {
            (Self::BulkWrites, Device::Disk) => Some((3.0, 0.93)),
            (Self::BulkWrites, _) => Some((2.5, 0.93)),
            (Self::WriteOut, _) => Some((4.0, 0.9)),
            (Self::BulkReads | Self::LightWriters | Self::UnevenWriters, _) => None,
        }
    }

    const fn cache(self) -> u64 {
        if matches!(self, Self::WriteOut | Self::UnevenWriters) { CACHE } else { 0 }
    }

    /// Write-out also runs on the devices of seed 002, on which it was first seen to keep readers
    /// waiting; many streams only matter where a change of stream costs much.
    const fn devices(self) -> &'static [Device] {
        const WRITE_OUT: [Device; 5] =
            [Device::Disk, Device::Sata, Device::Nvme, Device::Stream700, Device::Stream60];
        const BULK: [Device; 4] = [Device::Disk, Device::Sata, Device::Nvme, Device::Virtual];
        match self {
            Self::WriteOut => &WRITE_OUT,
            Self::UnevenWriters => &[Device::Stream60],
            Self::BulkWrites | Self::BulkReads => &BULK,
            _ => &Device::ALL,
        }
    }

    /// Number and operation of the light clients.
    pub const fn light(self) -> (u32, Op) {
        match self {
            Self::BulkWrites | Self::BulkReads => (1, Op::Read),
            Self::WriteOut => (16, Op::Read),
            Self::LightWriters => (32, Op::Write),
            Self::UnevenWriters => (LIGHT_STREAMS, Op::Write),
        }
    }

    fn light_jobs(self, device: Device) -> Vec<JobOptions> {
        let (clients, op) = self.light();
        let every = device.about_ns(op, 4096) * LIGHT_PART * u64::from(clients);
        // A single reader of the NVMe disk asks for less than that without thinking.
        let think_ns = match (self, device) {
            (Self::BulkWrites | Self::BulkReads, Device::Nvme | Device::Virtual) => 4 * US,
            _ => every,
        };
        let job = JobOptions { op, end: device.size(), think_ns, ..JobOptions::default() };
        match self {
            Self::UnevenWriters => {
                let think_ns = 4096 * SEC / LIGHT_STREAM_RATE;
                let stream = |number| JobOptions { think_ns, ..stream(job, number, clients) };
                (1..=clients).map(stream).collect()
            }
            _ => vec![job; clients as usize],
        }
    }

    fn heavy_jobs(self, device: Device) -> Vec<JobOptions> {
        let size = device.size();
        let bulk = |op, iodepth| JobOptions {
            op,
            bs: MIB,
            iodepth,
            end: size,
            think_ns: 4 * US,
            ..JobOptions::default()
        };
        match self {
            Self::BulkWrites => vec![bulk(Op::Write, 128); 7],
            Self::BulkReads => vec![bulk(Op::Read, 128); 7],
            Self::LightWriters => vec![bulk(Op::Write, 16); 4],
            // The copy at 10 GB/s, and the writer's own time.
            Self::WriteOut | Self::UnevenWriters => {
                let dd =
                    JobOptions { bs: 128 << 10, think_ns: 13 * US + 4 * US, ..bulk(Op::Write, 1) };
                match self {
                    Self::WriteOut => (0..20).map(|number| stream(dd, number, 19)).collect(),
                    _ => vec![stream(dd, 0, LIGHT_STREAMS)],
                }
            }
        }
    }
}

/// A job that is sequential in its part of a device which `others` share with it.
fn stream(job: JobOptions, number: u32, others: u32) -> JobOptions {
    let part = job.end / u64::from(others + 1) / u64::from(MIB) * u64::from(MIB);
    let start = u64::from(number) * part;
    JobOptions { random: false, start, end: start + part, ..job }
}

/// The configuration of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct BesidePoint {
    /// The clients of the row.
    pub case: BesideCase,
    /// The device that they share.
    pub device: Device,
    /// The elevator of its queue.
    pub scheduler: Scheduler,
    /// The tag policy of a row of this table.
    pub policy: TagPolicy,
    /// Bounds by hand: KiB in the device and of a request.
    pub by_hand: Option<[u32; 2]>,
}

/// The clients that take part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Light,
    Heavy,
    Both,
}

/// Ramp and measured time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    /// Time before counting starts.
    pub ramp_ns: u64,
    /// Time that is counted.
    pub runtime_ns: u64,
}

impl Length {
    /// Long enough for hundreds of light requests, and for the balance of cache and device.
    pub const fn of(device: Device) -> Self {
        match device {
            Device::Disk | Device::Stream60 => Self { ramp_ns: 20 * SEC, runtime_ns: 250 * SEC },
            // The control tries another length every few seconds.
            Device::Stream700 => Self { ramp_ns: 2 * SEC, runtime_ns: 10 * SEC },
            _ => Self { ramp_ns: SEC, runtime_ns: 2 * SEC },
        }
    }
}

/// Runs the selected rows.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let points: Vec<BesidePoint> = all().into_iter().filter(|point| point.is_in(filter)).collect();
    let rows = run_each("fairness of light clients", &points, |point| {
        point.run(filter.seed, Length::of(point.device))
    })?;
    let notes = vec![format!(
        "light clients ask for 1/{LIGHT_PART} of the device's time (think time between an answer and the next request); \
         default options; write-out: a cache of {} MiB with the default dirty limits",
        CACHE >> 20
    )];
    Ok(Report {
        title: "fairness: light clients beside heavy ones".into(),
        notes,
        verdicts: judge(&rows),
        rows,
    })
}

pub(super) fn all() -> Vec<BesidePoint> {
    let mut points = Vec::new();
    for case in BesideCase::ALL {
        for &device in case.devices() {
            for scheduler in GATED {
                let point = |policy| BesidePoint { case, device, scheduler, policy, by_hand: None };
                points.extend(TagPolicy::ALL.map(point));
                if (case, device) == (BesideCase::WriteOut, Device::Stream700) {
                    let by_hand = Some(STREAM_700_BY_HAND);
                    points.push(BesidePoint { by_hand, ..point(TagPolicy::Fair) });
                }
            }
        }
    }
    points
}

impl BesidePoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_case(self.case.name())
            && filter.has_policy(self.policy)
            && filter.has_device(self.device.name())
            && filter.has_jobs(self.clients())
            && filter.has_tags(self.queue().nr_requests)
    }

    /// Number of clients of both kinds.
    pub fn clients(&self) -> u32 {
        self.jobs(Part::Both).len() as u32
    }

    fn queue(&self) -> QueueOptions {
        let usual = QueueOptions { scheduler: self.scheduler, ..QueueOptions::default() };
        let queue_depth = self.device.queue_depth(usual.nr_requests);
        let usual = QueueOptions { queue_depth, ..usual };
        match self.by_hand {
            Some([hw_inflight_kb, max_sectors_kb]) => {
                QueueOptions { hw_inflight_kb, max_sectors_kb, ..usual }
            }
            None => usual,
        }
    }

    fn jobs(&self, part: Part) -> Vec<JobOptions> {
        let light =
            if part == Part::Heavy { Vec::new() } else { self.case.light_jobs(self.device) };
        let heavy =
            if part == Part::Light { Vec::new() } else { self.case.heavy_jobs(self.device) };
        [light, heavy].concat()
    }

    /// Runs a part of the clients.
    pub fn count(
        &self,
        part: Part,
        setup: Setup,
        seed: u64,
        length: Length,
    ) -> Result<RunCounts, ConfigError> {
        let units = (self.case.cache() / 4096) as u32;
        let mut harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: setup.queue(self.queue()),
            size: self.device.size(),
            device: self.device.make(),
            jobs: self.jobs(part),
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions { units, ..CacheOptions::default() },
            ramp_ns: length.ramp_ns,
            runtime_ns: length.runtime_ns,
        })?;
        setup.install(harness.shard(), seed);
        Ok(harness.run())
    }

    /// The latencies of light clients. One that waits to the end of the run counts; its wait is
    /// longer than that.
    pub fn latency(light: &[JobCounts]) -> Histogram {
        let mut latency = light[0].latency.clone();
        light[1..].iter().for_each(|job| latency.add(&job.latency));
        let waits = light.iter().map(|job| job.waiting_ns);
        waits.filter(|&ns| ns > latency.max()).max().into_iter().for_each(|ns| latency.record(ns));
        latency
    }

    fn run(&self, seed: u64, length: Length) -> Result<Row, ConfigError> {
        let clients = self.case.light().0 as usize;
        let setup = Setup::Policy(self.policy);
        let [alone, bulk, both] = [
            self.count(Part::Light, setup, seed, length)?,
            self.count(Part::Heavy, setup, seed, length)?,
            self.count(Part::Both, setup, seed, length)?,
        ];
        let (light, heavy) = both.jobs.split_at(clients);
        let latency = Self::latency(light);
        let bios = |jobs: &[JobCounts]| jobs.iter().map(|job| job.bios).sum::<u64>();
        let heavy_bytes: u64 = heavy.iter().map(|job| job.bytes).sum();
        let longest =
            |jobs: &[JobCounts]| jobs.iter().map(|job| job.longest_ns() / 1_000).max().unwrap_or(0);
        let us = |per_mille| latency.percentile(per_mille) / 1_000;
        let mb_s = |bytes: u64| bytes as f64 * 1e3 / length.runtime_ns as f64;
        let alone_us = alone.latency.percentile(990) / 1_000;
        Ok(Row::new(TABLE)
            .with("device", self.device.name())
            .with("scheduler", self.scheduler.name())
            .with("policy", self.policy.name())
            .with("case", self.case.name())
            .with("clients", vec![clients, heavy.len()])
            .with("ms", length.runtime_ns / MS)
            .with("alone_bios", alone.bios)
            .with("bios", bios(light))
            .with("alone_p99_us", alone_us)
            .with("p50_us", us(500))
            .with("p99_us", us(990))
            .with("p999_us", us(999))
            .with("longest_us", vec![longest(light), longest(heavy)])
            .with_real("times_alone", us(990) as f64 / alone_us.max(1) as f64, 2)
            .with_real("heavy_alone_mb_s", mb_s(bulk.bytes), 1)
            .with_real("heavy_mb_s", mb_s(heavy_bytes), 1)
            .with_real("kept", heavy_bytes as f64 / bulk.bytes.max(1) as f64, 4)
            .with_real("heavy_jain", jain(heavy.iter().map(|job| job.bytes as f64)), 4)
            .with("starved", both.starved)
            .with("failed", [&alone, &bulk, &both].into_iter().map(failed).sum::<u64>())
            .with(SETTINGS, both.settings)
            .with("hash", format!("{:016x}", both.hash)))
    }
}

fn failed(counts: &RunCounts) -> u64 {
    counts.errors + counts.notices + u64::from(counts.stuck)
}

/// The least p99 in times alone on the device of 700 MB/s, if the writers keep a part of its bandwidth: a read comes while one command
/// of theirs is served, whose bytes take that part of its time.
fn one_command(row: &Row, kept: f64) -> Option<f64> {
    let alone_us = row.int("alone_p99_us") as f64;
    let command_us = STREAM_700_COMMAND_US / (1.0 - kept);
    row.is("device", Device::Stream700.name()).then_some(1.0 + 0.99 * command_us / alone_us)
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let ours: Vec<&&Row> = rows.iter().filter(|row| row.is("policy", "fair")).collect();
    let mut verdicts = Vec::new();
    for row in &ours {
        let case = BesideCase::ALL.into_iter().find(|case| row.is("case", case.name()));
        let mut devices = BesideCase::ALL.into_iter().flat_map(BesideCase::devices).copied();
        let device = devices.find(|device| row.is("device", device.name()));
        let Some((times, kept)) = case.zip(device).and_then(|(case, device)| case.goals(device))
        else {
            continue;
        };
        let [device, scheduler, case] = ["device", "scheduler", "case"].map(|name| row.word(name));
        let same = |other: &&&Row| {
            ["device", "scheduler", "case"].iter().all(|name| other.is(name, row.word(name)))
                && other.is("policy", "kuai_v3")
                && row.is(SETTINGS, "")
        };
        let kuai = rows.iter().find(same);
        let goals = [
            (P99_TEXT, "times_alone", Goal::AtMost(times)),
            ("heavy clients' bytes, part of alone", "kept", Goal::AtLeast(kept)),
        ];
        verdicts.extend(goals.map(|(what, name, goal)| {
            let verdict = Verdict {
                what: format!("{device}, {scheduler}, {case}: {what}"),
                baseline: kuai.map(|row| row.real(name)),
                ours: Some(row.real(name)),
                goal: Some(goal),
                ..Verdict::default()
            };
            let verdict = verdict.with_settings(row);
            match (what, one_command(row, kept)) {
                (P99_TEXT, Some(times)) => verdict.bounded("one command of the writers", times),
                _ => verdict,
            }
        }));
    }
    if !ours.is_empty() {
        let starved = ours.iter().map(|row| row.int("starved")).sum::<u64>();
        let failed = rows.iter().map(|row| row.int("failed")).sum::<u64>();
        verdicts.push(Verdict {
            what: "light and heavy: starved clients, hung runs and failed bios".into(),
            ours: Some((starved + failed) as f64),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Length = Length { ramp_ns: SEC / 10, runtime_ns: SEC / 10 };

    #[test]
    fn light_clients_ask_for_a_fiftieth_of_the_device() {
        for case in BesideCase::ALL {
            for device in [Device::Sata, Device::Nvme] {
                let (scheduler, policy) = (Scheduler::None, TagPolicy::Fair);
                let point = BesidePoint { case, device, scheduler, policy, by_hand: None };
                let counts = point.count(Part::Light, Setup::Policy(policy), 1, SHORT).unwrap();
                let work = counts.bios * device.about_ns(case.light().1, 4096);
                let part = work as f64 / SHORT.runtime_ns as f64;
                assert!((0.01..0.035).contains(&part), "{case:?} {device:?}: {part}");
            }
        }
    }

    #[test]
    fn verdicts_compare_the_printed_rows_with_both_goals() {
        let point = BesidePoint {
            case: BesideCase::WriteOut,
            device: Device::Sata,
            scheduler: Scheduler::None,
            policy: TagPolicy::Fair,
            by_hand: None,
        };
        let row = point.run(1, SHORT).unwrap();
        let row = Row::from_json(&row.to_json()).unwrap();
        assert!(row.int("alone_bios") > 100 && row.real("heavy_alone_mb_s") > 100.0, "{row:?}");
        let missed = |times: f64, kept: f64, starved: u64| {
            let row = row.clone().replaced("times_alone", times).replaced("kept", kept);
            let row = row.replaced("starved", starved).replaced("failed", 0);
            judge(&[row]).iter().filter(|verdict| !verdict.is_met()).count()
        };
        assert_eq!(missed(4.0, 0.9, 0), 0);
        assert_eq!([missed(4.01, 0.9, 0), missed(4.0, 0.89, 0), missed(4.0, 0.9, 1)], [1; 3]);
    }
}
