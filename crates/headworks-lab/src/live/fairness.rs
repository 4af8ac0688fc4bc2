//! Fair sharing over NBD: one light reader against seven heavy ones, equal jobs, and weights, on a
//! real file.
//!
//! The file is slowed down by `delay:`, so that the device is the shared resource; a delay has no
//! bandwidth of its own, so `hw_inflight_kb` bounds it. Three exports of one file are one volume
//! with one queue, in which the weights compete. The light job runs alone and beside the others
//! alternately, in several rounds, and the median of the ratios is judged, because of other load on
//! the machine.

use std::time::Duration;

use headworks_core::{ConfigError, DepthMode, QueueOptions, Scheduler};
use headworks_nbd::client::bench::{BenchOptions, Pattern, Tally};

use super::server::{LiveServer, LiveServerOptions, TempFolder};
use super::{Length, LiveRun, bytes, job, middle, run};
use crate::baseline::TagPolicy;
use crate::report::{Goal, Report, Row, Verdict, jain, run_each};
use crate::row_filter::{GATED, RowFilter};

const TABLE: &str = "over NBD";
const DEVICE: &str = "delay";
const DELAY: &str = "delay:read=2ms,write=2ms";
const IMAGE: u64 = 512 << 20;
/// At 2 ms this is 256 MB/s, which two CPUs sustain together with the clients.
const INFLIGHT_KB: u32 = 512;
const MAX_SECTORS_KB: u32 = 64;
const HEAVY: usize = 7;
const ROUNDS: u64 = 3;
const WEIGHTS: [u16; 3] = [100, 200, 400];
const LENGTH: Length = Length { ramp: Duration::from_secs(2), runtime: Duration::from_secs(4) };
/// Goal: the light job's p99 beside the others, as a multiple of its p99 alone.
const P99: f64 = 2.0;
const JAIN: f64 = 0.95;
/// Goal: maximum relative error of a weighted share.
const WEIGHTS_OFF: f64 = 0.05;

/// The jobs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NbdCase {
    /// The light job alone.
    Alone,
    /// The light job and seven heavy ones.
    Beside,
    /// Eight jobs with equal bytes in flight, from 4 KiB to 1 MiB.
    Mixed,
    /// Two connections on each of three exports of different weight; their requests fit in the
    /// buffers.
    Weights,
    /// The same with the requests of the heavy jobs, which do not fit.
    WeightsLarge,
}

impl NbdCase {
    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Beside => "beside",
            Self::Mixed => "mixed",
            Self::Weights => "weights",
            Self::WeightsLarge => "weights-large",
        }
    }

    /// Block size, depth and export of each connection.
    fn jobs(self) -> Vec<(u32, u32, usize)> {
        let (light, heavy) = ((4096, 1, 0), (1 << 20, 128, 0));
        match self {
            Self::Alone => vec![light],
            Self::Beside => [vec![light], vec![heavy; HEAVY]].concat(),
            Self::Mixed => (0..8u32)
                .map(|number| 4096 << (number + number / 7))
                .map(|bs| (bs, (8 << 20) / bs, 0))
                .map(|(bs, depth, export)| (bs, depth.min(128), export))
                .collect(),
            Self::Weights => (0..6).map(|number| (64 << 10, 128, number / 2)).collect(),
            Self::WeightsLarge => (0..6).map(|number| (1 << 20, 128, number / 2)).collect(),
        }
    }
}

/// The configuration of a row.
#[derive(Clone, Copy, Debug)]
struct NbdPoint {
    policy: TagPolicy,
    scheduler: Scheduler,
    /// Whether `hw_inflight_kb` and `max_sectors_kb` have their default values.
    usual: bool,
    case: NbdCase,
    round: u64,
}

/// Runs the experiment.
///
/// # Errors
/// The server or a client could not start.
pub fn run_all(filter: &RowFilter) -> Result<Report, ConfigError> {
    run_for(filter, LENGTH)
}

fn run_for(filter: &RowFilter, length: Length) -> Result<Report, ConfigError> {
    let points: Vec<NbdPoint> = all().into_iter().filter(|point| point.is_in(filter)).collect();
    if points.is_empty() {
        return Ok(Report::default());
    }
    let folder = TempFolder::make()?;
    let image = folder.image("image", IMAGE)?;
    let rows = run_each("fairness over NBD", &points, |point| {
        point.run(filter.seed, &image.display().to_string(), length)
    })?;
    let note = format!(
        "{TABLE}: {DELAY} around a file of {} MiB, one server, its clients on the same CPUs; {} s after a ramp of {} s; {ROUNDS} \
         rounds, the middle ratio counts",
        IMAGE >> 20,
        length.runtime.as_secs_f64(),
        length.ramp.as_secs_f64(),
    );
    let title = "fairness over NBD".into();
    Ok(Report { title, verdicts: judge(&rows), notes: vec![note], rows })
}

fn all() -> Vec<NbdPoint> {
    let mut points = Vec::new();
    let scheduler = Scheduler::None;
    for round in 1..=ROUNDS {
        for (policy, usual) in
            [(TagPolicy::Fair, false), (TagPolicy::Fair, true), (TagPolicy::Legacy518, true)]
        {
            for case in [NbdCase::Alone, NbdCase::Beside] {
                points.push(NbdPoint { policy, scheduler, usual, case, round });
            }
        }
    }
    for scheduler in GATED {
        for case in [NbdCase::Mixed, NbdCase::Weights, NbdCase::WeightsLarge] {
            points.push(NbdPoint {
                policy: TagPolicy::Fair,
                scheduler,
                usual: false,
                case,
                round: 1,
            });
        }
    }
    points
}

impl NbdPoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_policy(self.policy)
            && filter.has_case(self.case.name())
            && filter.has_device(DEVICE)
            && filter.has_jobs(self.case.jobs().len() as u32)
            && filter.has_tags(QueueOptions::default().nr_requests)
    }

    fn queue(&self, queue: QueueOptions) -> QueueOptions {
        let (scheduler, hw_depth) = (self.scheduler, DepthMode::Fixed);
        let queue = QueueOptions { scheduler, hw_depth, ..queue };
        match self.usual {
            true => queue,
            false => QueueOptions {
                hw_inflight_kb: INFLIGHT_KB,
                max_sectors_kb: MAX_SECTORS_KB,
                ..queue
            },
        }
    }

    fn run(&self, seed: u64, image: &str, length: Length) -> Result<Row, ConfigError> {
        let names = ["a", "b", "c"];
        let export =
            |(name, weight)| (name, format!("{DELAY},weight={weight},of=file:path={image}"));
        let exports: Vec<(&str, String)> = names.into_iter().zip(WEIGHTS).map(export).collect();
        let queue = |queue| self.queue(queue);
        let options =
            LiveServerOptions { policy: self.policy, ..LiveServerOptions::new(&exports, &queue) };
        let server = LiveServer::start(&options)?;
        let reader =
            |(number, (block_bytes, iodepth, export)): (u64, (u32, u32, usize))| BenchOptions {
                pattern: Pattern::RandRead,
                block_bytes,
                iodepth,
                seed: seed + number,
                ..job(server.uri(names[export]))
            };
        let jobs: Vec<BenchOptions> = (0..).zip(self.case.jobs()).map(reader).collect();
        let found = run(&server, &jobs, length)?;
        server.end()?;
        Ok(self.row(&found, length))
    }

    fn row(&self, found: &LiveRun, length: Length) -> Row {
        let queue = self.queue(QueueOptions::default());
        let first = &found.jobs[0].reads.latency;
        let kib: Vec<u64> = found.jobs.iter().map(|job: &Tally| bytes(job) >> 10).collect();
        let mb = found.bytes() as f64 / 1e6;
        Row::new(TABLE)
            .with("device", DEVICE)
            .with("scheduler", self.scheduler.name())
            .with("policy", self.policy.name())
            .with("case", self.case.name())
            .with("round", self.round)
            .with("tags", queue.nr_requests)
            .with("hw_inflight_kb", queue.hw_inflight_kb)
            .with("max_sectors_kb", queue.max_sectors_kb)
            .with("first_bios", first.count())
            .with("first_p50_ns", first.percentile(500))
            .with("first_p99_ns", first.percentile(990))
            .with("device_p99_ns", found.stage("device"))
            .with("failed", found.errors())
            .with_real("mb_s", mb / length.runtime.as_secs_f64(), 0)
            .with("kib", kib)
    }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut verdicts = light(&rows);
    for scheduler in GATED.map(Scheduler::name) {
        let find = |case: NbdCase| {
            let is = |row: &&&Row| row.is("case", case.name()) && row.is("scheduler", scheduler);
            rows.iter().find(is)
        };
        if let Some(row) = find(NbdCase::Mixed) {
            let even = jain(row.ints("kib").iter().map(|&kib| kib as f64));
            let what = format!("{scheduler}: Jain's index, eight of 4 KiB to 1 MiB");
            verdicts.push(verdict(&what, None, even, Some(Goal::AtLeast(JAIN))));
        }
        for (case, what) in [(NbdCase::Weights, "64 KiB"), (NbdCase::WeightsLarge, "1 MiB")] {
            let Some(row) = find(case) else { continue };
            let what = format!("{scheduler}: weights 1:2:4, {what}, the worst part is off by");
            verdicts.push(verdict(&what, None, off(row), Some(Goal::AtMost(WEIGHTS_OFF))));
        }
    }
    if !rows.is_empty() {
        let failed: u64 = rows.iter().map(|row| row.int("failed")).sum();
        verdicts.push(verdict("failed reads", None, failed as f64, Some(Goal::Exactly(0.0))));
    }
    verdicts
}

fn verdict(what: &str, baseline: Option<f64>, ours: f64, goal: Option<Goal>) -> Verdict {
    Verdict {
        what: format!("over NBD, {what}"),
        seed: None,
        baseline,
        ours: Some(ours),
        goal,
        ..Verdict::default()
    }
}

/// The verdicts of the light job beside the seven, and of the seven among each other.
fn light(rows: &[&Row]) -> Vec<Verdict> {
    let of = |policy: &str, usual: bool, case: NbdCase| -> Vec<&Row> {
        let is = |row: &&&Row| {
            row.is("policy", policy)
                && (row.int("hw_inflight_kb") == 0) == usual
                && row.is("case", case.name())
        };
        rows.iter().filter(is).copied().collect()
    };
    let p99 = |row: &Row| row.int("first_p99_ns") as f64;
    let ratio = |policy, usual| {
        let (alone, beside) =
            (of(policy, usual, NbdCase::Alone), of(policy, usual, NbdCase::Beside));
        middle(alone.iter().zip(&beside).map(|(alone, beside)| p99(beside) / p99(alone)).collect())
    };
    let even = |policy, usual| {
        let rows = of(policy, usual, NbdCase::Beside);
        let index = |row: &&Row| jain(row.ints("kib")[1..].iter().map(|&kib| kib as f64));
        rows.iter().map(index).reduce(f64::min)
    };
    let (fair, old) = (TagPolicy::Fair.name(), TagPolicy::Legacy518.name());
    let mut verdicts = Vec::new();
    if let Some(ours) = ratio(fair, false) {
        let goal = Some(Goal::AtMost(P99));
        verdicts.push(verdict("the light one's p99, times alone", ratio(old, true), ours, goal));
    }
    if let Some(ours) = ratio(fair, true) {
        let what = "the same with the usual limits";
        verdicts.push(verdict(what, ratio(old, true), ours, None));
    }
    for (usual, what) in [(false, "seven equals"), (true, "seven equals, usual limits")] {
        if let Some(ours) = even(fair, usual) {
            let what = format!("Jain's index, {what}");
            let goal = Some(Goal::AtLeast(JAIN));
            verdicts.push(verdict(&what, even(old, true), ours, goal));
        }
    }
    verdicts
}

/// Relative error of the worst export's share.
fn off(row: &Row) -> f64 {
    let kib = row.ints("kib");
    let total: u64 = kib.iter().sum();
    let sum: u16 = WEIGHTS.iter().sum();
    let off = |(pair, weight): (&[u64], u16)| {
        let part = pair.iter().sum::<u64>() as f64 / total as f64;
        (part * f64::from(sum) / f64::from(weight) - 1.0).abs()
    };
    kib.chunks(2).zip(WEIGHTS).map(off).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: NbdCase, first_p99_ns: u64, kib: &[u64]) -> Row {
        Row::new(TABLE)
            .with("policy", "fair")
            .with("scheduler", "none")
            .with("case", case.name())
            .with("hw_inflight_kb", INFLIGHT_KB)
            .with("first_p99_ns", first_p99_ns)
            .with("failed", 0)
            .with("kib", kib)
    }

    #[test]
    fn light_job_uses_median_round_and_equal_jobs_the_worst() {
        let beside = |ns| row(NbdCase::Beside, ns, &[1, 50, 50, 50]);
        let alone = row(NbdCase::Alone, 100, &[1]);
        let round = |ns| [alone.clone(), beside(ns)];
        let rows = [round(190), round(5_000), round(150)].concat();
        let ours = |verdicts: &[Verdict], nr: usize| verdicts[nr].ours.unwrap();
        let verdicts = judge(&rows);
        assert!(ours(&verdicts, 0) == 1.9 && ours(&verdicts, 1) == 1.0);
        assert!(verdicts.iter().all(Verdict::is_met));
        assert!(!judge(&[round(190), round(210), round(210)].concat())[0].is_met());
        let uneven = row(NbdCase::Beside, 100, &[1, 50, 50, 10]);
        let verdicts = judge(&[rows, vec![alone, uneven]].concat());
        assert!(verdicts[0].is_met() && !verdicts[1].is_met());
    }

    #[test]
    fn weighted_share_may_be_off_by_five_percent() {
        let met = |kib: &[u64]| judge(&[row(NbdCase::WeightsLarge, 0, kib)])[0].is_met();
        assert!(met(&[50, 50, 100, 100, 200, 200]));
        assert!(met(&[52, 52, 100, 100, 200, 200]));
        assert!(!met(&[54, 54, 100, 100, 200, 200]));
        assert!(!met(&[100, 100, 100, 100, 100, 100]));
    }

    #[test]
    fn exports_of_one_delayed_file_share_a_queue() {
        let folder = TempFolder::make().unwrap();
        let image = folder.image("image", 1 << 20).unwrap().display().to_string();
        let behind = format!("{DELAY},of=file:path={image}");
        let exports = [("a", behind.clone()), ("b", behind)];
        let queue = |queue| queue;
        let server = LiveServerOptions::new(&exports, &queue);
        let server = LiveServer::start(&server).unwrap();
        let stats = server.stats().unwrap();
        assert_eq!(stats["devices"].as_object().unwrap().len(), 1, "one queue");
        assert_eq!(stats["exports"].as_object().unwrap().len(), 2);
        server.end().unwrap();
    }
}
