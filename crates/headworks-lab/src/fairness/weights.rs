//! Exports of unequal weights, with requests of one size or of several: does each get its part of the device?
//!
//! ```text
//!   for each load:  the exports together  --> parts of the answers: of one size, so parts of the device time
//!                   the heaviest alone    --> is its part limited by its own depth?
//!                   baselines             --> the best throughput without weights
//!                   equal weights, N tags --> what a sorted window of N requests costs a disk
//!   goals: without an elevator, and on flash, each part within 5 % of its weight
//!          sorted for a disk, the heaviest within 2 %, the others within 10 %
//!          throughput >= 0.97 of the best baseline's, less what the window costs
//! ```
//!
//! **Limited.** An export with d requests outstanding of a device that works on D at once gets at most d of D places, whatever its
//! weight; so a row says `limited` where the heaviest alone reaches less than 0.97 of its part, or where the device takes all
//! requests at once and none waits. There parts are not judged, only throughput.
//!
//! **Window.** A sorted window may hold `N = depth * sum of weights / largest weight` requests: with more in it the heaviest would
//! have none waiting, and the others would fill the window. What a disk loses by N instead of all tags is measured with equal
//! weights, without anything that decides by weight.
//!
//! **Left.** What the heaviest does not take, within its own goal, is for the others by their weights: beside one of 10000, one of
//! weight 100 has five times its part when the heaviest has 0.96 of its own, and that is no fault of the order.
//!
//! **Sizes.** `--case unequal-sizes` gives each export requests of its own size and prints the part of the device time that each gets of
//! what its weight asks, in per mille; the time of a request is that of only such requests, 128 outstanding. Nothing is judged: small
//! ones side by side share a controller, a link or a sorted sweep that beside large ones they do not.
//!
//! Judged are exports with at least `ANSWERS_MIN` answers. The usual rows have 32 requests of 4 KiB each, weights 1:7:50;
//! `--case unequal-all` has other sizes, depths, weights, and reads mixed with writes.

use headworks_core::time::{MS, SEC};
use headworks_core::{ConfigError, ExportConfig, ExportId, Op, QueueOptions, Scheduler};

use super::clients::{KIB4, op_name};
use super::device::{Device, MIB};
use super::mechanism::Setup;
use crate::baseline::TagPolicy;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions};
use crate::report::{Goal, Report, Row, Verdict, run_each};
use crate::row_filter::{GATED, RowFilter};

const TABLE: &str = "exports of unequal weights";
const SIZES_TABLE: &str = "exports of unequal weights, each with requests of its size";
/// The case of the usual rows.
const CASE: &str = "unequal";
/// The case of all rows, which runs only when it is named.
const ALL_CASE: &str = "unequal-all";

/// The case of exports with requests of several sizes, which runs only when it is named.
const SIZES_CASE: &str = "unequal-sizes";

/// What is judged, in the words of the verdicts.
const HEAVY_TEXT: &str = "part of the heaviest export is off by";
const OFF_TEXT: &str = "part of another export is off by";
const PART_TEXT: &str = "throughput, part of the best less the window's cost";

/// Goal: the largest relative difference of a part from its weight.
const OFF: f64 = 0.05;
/// The same in a sorted window of a disk, of the heaviest export and of the others.
const SORTED_OFF: [f64; 2] = [0.02, 0.1];
/// Goal: throughput as a part of what is possible.
const PART: f64 = 0.97;
/// An export is limited if it reaches less than this part of its share alone.
const ALONE: f64 = 0.97;
/// Answers of an export that is judged.
const ANSWERS_MIN: u64 = 40;
/// Answers of a run of all exports.
const ANSWERS: u64 = 6_000;
const TAGS: u32 = 256;
/// Requests outstanding of an export whose requests' device time is measured: more than any device needs.
const COST_DEPTH: u32 = 128;
const EXPORTS_MAX: usize = 4;
const THINK_NS: u64 = 4_000;

/// Weights of three or four exports; the heaviest is the last.
const WEIGHTS: [&[u16]; 3] = [&[1, 7, 50], &[1, 2, 4, 10], &[1, 100, 10_000]];

/// Weights of exports that differ by their requests alone.
const EVEN: &[u16] = &[100, 100, 100];
/// Bytes of requests that rise and that fall with the weights.
const SIZES: [[u32; EXPORTS_MAX]; 2] = [[KIB4, 16 * KIB4, MIB, MIB], [MIB, 16 * KIB4, KIB4, KIB4]];

/// The exports' requests and the queue.
#[derive(Clone, Copy, Debug)]
struct Load {
    case: &'static str,
    device: Device,
    scheduler: Scheduler,
    op: Op,
    write_percent: u32,
    /// Bytes of a request of each export.
    bytes: [u32; EXPORTS_MAX],
    depth: u32,
    weights: &'static [u16],
}

/// Runs the selected rows.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let loads: Vec<Load> = all().into_iter().filter(|load| load.is_in(filter)).collect();
    let rows = run_each("fairness of weights", &loads, |load| match load.case {
        SIZES_CASE => load.sizes_row(filter.seed),
        _ => load.row(filter.seed),
    })?;
    let notes = vec![
        "an export each with one connection; default options, the device announces its depth; `part` of the best baseline, \
         `possible` with the window that weights allow"
            .into(),
    ];
    Ok(Report { title: "fairness: weights".into(), notes, verdicts: judge(&rows), rows })
}

fn all() -> Vec<Load> {
    let mut loads = Vec::new();
    for device in Device::DRIVES {
        for scheduler in GATED {
            let load = |case, (op, write_percent), bytes, depth, weights| Load {
                case,
                device,
                scheduler,
                op,
                write_percent,
                bytes,
                depth,
                weights,
            };
            for kind in [(Op::Read, 0), (Op::Write, 0)] {
                loads.push(load(CASE, kind, [KIB4; EXPORTS_MAX], 32, WEIGHTS[0]));
            }
            for kind in [(Op::Read, 0), (Op::Write, 0), (Op::Read, 50)] {
                for bytes in [KIB4, 4 * KIB4, 16 * KIB4, MIB] {
                    for (depth, weights) in
                        [1, 8, 32, 128].into_iter().flat_map(|n| WEIGHTS.map(|w| (n, w)))
                    {
                        loads.push(load(ALL_CASE, kind, [bytes; EXPORTS_MAX], depth, weights));
                    }
                }
            }
            for (kind, bytes) in
                [(Op::Read, 0), (Op::Write, 0)].into_iter().flat_map(|k| SIZES.map(|b| (k, b)))
            {
                for (depth, weights) in
                    [32, 128].into_iter().flat_map(|n| [WEIGHTS[0], EVEN].map(|w| (n, w)))
                {
                    loads.push(load(SIZES_CASE, kind, bytes, depth, weights));
                }
            }
        }
    }
    loads
}

impl Load {
    fn is_in(&self, filter: &RowFilter) -> bool {
        let named = filter.names_case(self.case);
        (named || self.case == CASE && filter.cases.is_empty())
            && filter.has_device(self.device.name())
            && filter.has_jobs(self.weights.len() as u32)
            && filter.has_tags(TAGS)
            && filter.has_policy(TagPolicy::Fair)
    }

    fn heaviest(&self) -> usize {
        self.weights.len() - 1
    }

    fn sum(&self) -> f64 {
        self.weights.iter().map(|&weight| f64::from(weight)).sum()
    }

    /// The requests that a sorted window may hold so that the heaviest export still has one waiting.
    fn window(&self) -> u32 {
        let heaviest = f64::from(self.weights[self.heaviest()]);
        let window = (f64::from(self.depth) * self.sum() / heaviest) as u32;
        window.clamp(self.device.queue_depth(TAGS), TAGS)
    }

    fn is_sorted(&self) -> bool {
        self.scheduler == Scheduler::MqDeadline && self.device.is_disk()
    }

    /// Answers of each export, some of them idle.
    fn answers(
        &self,
        policy: TagPolicy,
        seed: u64,
        weights: &[u16],
        tags: u32,
        only: Option<usize>,
    ) -> Result<Vec<u64>, ConfigError> {
        let size = self.device.size();
        let job = |export: usize| JobOptions {
            op: self.op,
            write_percent: self.write_percent,
            bs: self.bytes[export],
            end: size / u64::from(self.bytes[export]) * u64::from(self.bytes[export]),
            iodepth: self.depth,
            think_ns: THINK_NS,
            export: ExportId(export as u16),
            ..JobOptions::default()
        };
        let jobs = (0..weights.len()).filter(|&export| only.is_none_or(|one| one == export));
        let export = |&weight: &u16| ExportConfig { weight, ..ExportConfig::default() };
        let mut harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: QueueOptions {
                scheduler: self.scheduler,
                nr_requests: tags,
                queue_depth: self.device.queue_depth(tags),
                ..QueueOptions::default()
            },
            size,
            device: self.device.make(),
            jobs: jobs.map(job).collect(),
            exports: weights.iter().map(export).collect(),
            tenants: Vec::new(),
            cache: Default::default(),
            ramp_ns: self.ramp_ns(),
            runtime_ns: self.runtime_ns(),
        })?;
        Setup::Policy(policy).install(harness.shard(), seed);
        Ok(harness.run().jobs.iter().map(|job| job.bios).collect())
    }

    /// The device's cache is full, the search for its depth has ended, and each export has had answers.
    fn ramp_ns(&self) -> u64 {
        if self.device.is_disk() { 60 * SEC } else { SEC }
    }

    fn runtime_ns(&self) -> u64 {
        let of = self.bytes[..self.weights.len()].iter();
        let sum: u64 = of.map(|&bytes| self.device.about_ns(self.op, bytes)).sum();
        (ANSWERS * sum / self.weights.len() as u64).max(SEC / 10)
    }

    fn head(&self, table: &str) -> Row {
        Row::new(table)
            .with("device", self.device.name())
            .with("scheduler", self.scheduler.name())
            .with("case", self.case)
            .with("op", op_name(self.op, self.write_percent))
    }

    /// Whether the heaviest export cannot reach its part of `total`: `alone` is what it reaches without the others.
    fn is_limited(&self, alone: u64, total: u64) -> bool {
        let heaviest = f64::from(self.weights[self.heaviest()]) / self.sum();
        let outstanding = self.depth * self.weights.len() as u32;
        (alone as f64) < ALONE * heaviest * total as f64
            || outstanding <= self.device.queue_depth(TAGS)
    }

    /// Device time of a request of an export in ns, from a run of it alone.
    fn cost(&self, export: usize, seed: u64) -> Result<u64, ConfigError> {
        let alone = Self { depth: COST_DEPTH, scheduler: Scheduler::None, ..*self };
        let bios = alone.answers(TagPolicy::Fair, seed, self.weights, TAGS, Some(export))?;
        Ok(self.runtime_ns() / bios.iter().sum::<u64>().max(1))
    }

    fn sizes_row(&self, seed: u64) -> Result<Row, ConfigError> {
        let exports = 0..self.weights.len();
        let costs: Vec<u64> = exports.map(|one| self.cost(one, seed)).collect::<Result<_, _>>()?;
        let bios = self.answers(TagPolicy::Fair, seed, self.weights, TAGS, None)?;
        let times: Vec<u64> = bios.iter().zip(&costs).map(|(bios, cost)| bios * cost).collect();
        let (total, heaviest) = (times.iter().sum::<u64>().max(1), self.heaviest());
        let alone = self.answers(TagPolicy::Fair, seed, self.weights, TAGS, Some(heaviest))?;
        let limited = self.is_limited(alone.iter().sum::<u64>() * costs[heaviest], total);
        let part = |(&time, &weight): (&u64, &u16)| {
            (1e3 * time as f64 / total as f64 * self.sum() / f64::from(weight)) as u64
        };
        let kib: Vec<u32> = self.bytes[..bios.len()].iter().map(|bytes| bytes >> 10).collect();
        Ok(self
            .head(SIZES_TABLE)
            .with("kib", kib)
            .with("depth", self.depth)
            .with("weights", self.weights.to_vec())
            .with("ms", self.runtime_ns() / MS)
            .with("bios", bios)
            .with("cost_ns", costs)
            .with("limited", u32::from(limited))
            .with("per_mille", times.iter().zip(self.weights).map(part).collect::<Vec<_>>()))
    }

    fn row(&self, seed: u64) -> Result<Row, ConfigError> {
        let fair = |weights, tags, only| self.answers(TagPolicy::Fair, seed, weights, tags, only);
        let sum = |answers: Vec<u64>| answers.iter().sum::<u64>();
        let bios = fair(self.weights, TAGS, None)?;
        let alone = sum(fair(self.weights, TAGS, Some(self.heaviest()))?);
        let mut best = 0;
        for policy in [TagPolicy::Legacy518, TagPolicy::KuaiV3] {
            best = sum(self.answers(policy, seed, self.weights, TAGS, None)?).max(best);
        }
        let equal = vec![100; self.weights.len()];
        let possible = match self.is_sorted() {
            true => sum(fair(&equal, self.window(), None)?).min(best),
            false => best,
        };
        let total: u64 = bios.iter().sum();
        let limited = self.is_limited(alone, total);
        let off = if limited { vec![0.0; bios.len()] } else { off_by(self.weights, &bios) };
        let others = off[..self.heaviest()].iter().copied().fold(0.0, f64::max);
        Ok(self
            .head(TABLE)
            .with("kib", self.bytes[0] >> 10)
            .with("depth", self.depth)
            .with("weights", self.weights.to_vec())
            .with("tags", TAGS)
            .with("policy", TagPolicy::Fair.name())
            .with("ms", self.runtime_ns() / MS)
            .with("bios", bios)
            .with("alone_bios", alone)
            .with("best_bios", best)
            .with("possible_bios", possible)
            .with("limited", u32::from(limited))
            .with_real("heavy_off", off[self.heaviest()], 4)
            .with_real("off", others, 4)
            .with_real("part", total as f64 / best.max(1) as f64, 4)
            .with_real("possible", total as f64 / possible.max(1) as f64, 4))
    }
}

/// How far each export's answers are from its weight's part of all, as a part of that; 0 for exports that are not judged. The
/// heaviest is the last, and the others may have what it leaves.
fn off_by(weights: &[u16], bios: &[u64]) -> Vec<f64> {
    let heaviest = weights.len() - 1;
    let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let total = bios.iter().sum::<u64>() as f64;
    let wanted = |weight: u16| total * f64::from(weight) / sum;
    let left = (wanted(weights[heaviest]) - bios[heaviest] as f64).max(0.0);
    let rest = sum - f64::from(weights[heaviest]);
    let off = |(export, (&weight, &bios)): (usize, (&u16, &u64))| {
        let may = if export == heaviest { 0.0 } else { left * f64::from(weight) / rest };
        let more = bios as f64 - wanted(weight);
        // A run ends in the middle of a request.
        let off = ((more - may).max(-more) - 1.0).max(0.0);
        if bios >= ANSWERS_MIN { off / wanted(weight) } else { 0.0 }
    };
    weights.iter().zip(bios).enumerate().map(off).collect()
}

/// Computes the verdicts: for each device and scheduler the worst row.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for device in Device::DRIVES {
        for scheduler in GATED {
            for case in [CASE, ALL_CASE] {
                let is = |row: &&Row| {
                    row.table == TABLE
                        && row.is("device", device.name())
                        && row.is("scheduler", scheduler.name())
                        && row.is("case", case)
                };
                let ours: Vec<&Row> = rows.iter().filter(is).collect();
                if !ours.is_empty() {
                    verdicts.extend(judge_kind(&ours, device, scheduler, case));
                }
            }
        }
    }
    verdicts
}

fn judge_kind(ours: &[&Row], device: Device, scheduler: Scheduler, case: &str) -> Vec<Verdict> {
    let worst = |name: &str| ours.iter().map(|row| row.real(name)).fold(0.0, f64::max);
    let least = ours.iter().map(|row| row.real("possible")).fold(f64::INFINITY, f64::min);
    let sorted = scheduler == Scheduler::MqDeadline && device.is_disk();
    let [heavy, others] = if sorted { SORTED_OFF } else { [OFF; 2] };
    let verdict = |what: &str, ours: f64, goal: Goal| Verdict {
        what: format!("{}, {}, {case}: {what}", device.name(), scheduler.name()),
        ours: Some(ours),
        goal: Some(goal),
        ..Verdict::default()
    };
    let mut verdicts = vec![verdict(PART_TEXT, least, Goal::AtLeast(PART))];
    if ours.iter().any(|row| row.int("limited") == 0) {
        verdicts.push(verdict(HEAVY_TEXT, worst("heavy_off"), Goal::AtMost(heavy)));
        verdicts.push(verdict(OFF_TEXT, worst("off"), Goal::AtMost(others)));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(scheduler: Scheduler, depth: u32) -> Load {
        Load {
            case: CASE,
            device: Device::Sata,
            scheduler,
            op: Op::Read,
            write_percent: 0,
            bytes: [KIB4; EXPORTS_MAX],
            depth,
            weights: WEIGHTS[0],
        }
    }

    fn missed(rows: &[Row]) -> Vec<String> {
        let missed = judge(rows).into_iter().filter(|verdict| !verdict.is_met());
        missed.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn weights_are_kept_on_flash_and_verdicts_follow_from_printed_rows() {
        for scheduler in GATED {
            let row = load(scheduler, 32).row(1).unwrap();
            let row = Row::from_json(&row.to_json()).unwrap();
            assert_eq!(missed(std::slice::from_ref(&row)), [""; 0], "{}", row.to_json());
            for name in ["heavy_off", "off"] {
                assert_eq!(missed(&[row.clone().replaced(name, 0.06)]).len(), 1);
            }
            assert_eq!(missed(&[row.replaced("possible", 0.96)]).len(), 1);
        }
    }

    #[test]
    fn others_may_have_what_the_heaviest_leaves_by_their_weights() {
        let off = |bios: [u64; 3]| off_by(&[1, 100, 10_000], &bios);
        // The heaviest has 0.96 of its part of a million; 39,604 are left, and 9,900 are wanted by the middle one.
        let parts = off([490, 49_113, 950_397]);
        assert!(
            parts[0] < 0.02 && parts[1] < 0.001 && (parts[2] - 0.04).abs() < 0.001,
            "{parts:?}"
        );
        // What is left is not for one of them alone, nor may one have less than its part.
        assert!(off([9_490, 40_113, 950_397])[0] > 1.0);
        assert!(off([60, 49_543, 950_397])[0] > 0.3);
    }

    #[test]
    fn row_whose_requests_the_device_takes_at_once_is_limited() {
        let row = load(Scheduler::None, 8).row(1).unwrap();
        assert_eq!((row.int("limited"), row.real("off")), (1, 0.0));
        assert_eq!(judge(&[row]).len(), 1, "throughput alone is judged");
    }

    #[test]
    fn small_writes_of_little_weight_get_no_large_part_of_a_disk() {
        let sizes = Load {
            case: SIZES_CASE,
            device: Device::Disk,
            op: Op::Write,
            bytes: SIZES[0],
            ..load(Scheduler::MqDeadline, 32)
        };
        // 18 parts of theirs when their cost was not learned.
        let parts = sizes.sizes_row(1).unwrap().ints("per_mille");
        assert!(parts.iter().all(|part| (500..2000).contains(part)), "{parts:?}");
    }

    #[test]
    fn window_leaves_the_heaviest_export_a_request() {
        let disk = |depth| Load { device: Device::Disk, ..load(Scheduler::MqDeadline, depth) };
        assert_eq!([8, 32, 128].map(|depth| disk(depth).window()), [32, 37, 148]);
    }
}
