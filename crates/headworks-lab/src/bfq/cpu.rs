//! CPU time and allocations of an I/O in process, on a null device: the whole path of a shard with each elevator.
//!
//! ```text
//!   turn: the answers' next bios + up to `batch` completions --> shard --> commands (completed in order), answers
//! ```
//!
//! A flow is a connection with an export of its own. The time is that of the thread, of the fastest of the rounds: everything else
//! on the machine only adds to it. Invariant: every flow has `depth` bios in the shard or in the device at any time.

use std::collections::VecDeque;

use headworks_core::prng::Prng;
use headworks_core::time::US;
use headworks_core::{
    Action, Bio, BioFlags, BioId, Completion, ConfigError, DeviceId, ExportConfig, ExportId, Input,
    Instant, Op, QueueOptions, Scheduler, Shard, ShardConfig, VolumeId, VolumeOptions,
};

use super::BfqFilter;
use crate::contention::thread_cpu_ns;
use crate::live::machine;
use crate::report::{Goal, Progress, Report, Row, Verdict};

const TABLE: &str = "cpu";
/// Answers of a round; a tenth of them before it is measured.
const IOS: u64 = 200_000;
const ROUNDS: usize = 5;
/// Size of the device in blocks of 4 KiB.
const BLOCKS: u64 = 1 << 27;

/// Flows with their depth, completions of a turn, and the goal in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Load {
    flows: u32,
    depth: u32,
    batch: usize,
    goal_ns: f64,
}

const LOADS: [Load; 5] = [
    Load { flows: 1, depth: 32, batch: 32, goal_ns: 200.0 },
    Load { flows: 32, depth: 1, batch: 32, goal_ns: 250.0 },
    Load { flows: 256, depth: 1, batch: 64, goal_ns: 275.0 },
    Load { flows: 1000, depth: 1, batch: 64, goal_ns: 350.0 },
    Load { flows: 1000, depth: 4, batch: 64, goal_ns: 350.0 },
];

/// Runs every load with every elevator; `allocations` is the count of the calling thread so far.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &BfqFilter, allocations: fn() -> u64) -> Result<Report, ConfigError> {
    if !filter.has_name("E15", "cpu") || !filter.has_device_name("null") {
        return Ok(Report::default());
    }
    let mut progress = Progress::new("bfq: CPU time", LOADS.len());
    let mut rows = vec![machine()];
    for load in LOADS {
        for scheduler in Scheduler::ALL {
            if filter.has_scheduler(scheduler) {
                rows.push(load.row(scheduler, filter.seed, allocations)?);
            }
        }
        progress.step();
    }
    drop(progress);
    Ok(Report {
        title: "bfq: CPU time of an I/O".into(),
        notes: vec![format!(
            "cpu: 4 KiB random reads in process on a null device; CPU time of the thread, the fastest of {ROUNDS} rounds of {IOS}"
        )],
        verdicts: judge(&rows),
        rows,
    })
}

impl Load {
    fn row(
        self,
        scheduler: Scheduler,
        seed: u64,
        allocations: fn() -> u64,
    ) -> Result<Row, ConfigError> {
        let mut ns = Vec::new();
        let mut allocated = 0;
        for _ in 0..ROUNDS {
            let mut run = CpuRun::new(self, scheduler, seed)?;
            run.until(IOS / 10);
            let (began, before) = (thread_cpu_ns(), allocations());
            run.until(IOS);
            allocated += allocations() - before;
            ns.push((thread_cpu_ns() - began) * 10 / 9 / IOS);
        }
        Ok(Row::new(TABLE)
            .with("experiment", "E15")
            .with("scheduler", scheduler.name())
            .with("flows", self.flows)
            .with("depth", self.depth)
            .with("batch", self.batch)
            .with("ios", IOS)
            .with("cpu_ns", ns)
            .with("allocations", allocated))
    }
}

/// Computes the verdicts of the rows.
pub(super) fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut verdicts = Vec::new();
    for Load { flows, depth, goal_ns, .. } in LOADS {
        let of = |scheduler: &str| {
            let is = |row: &&&Row| {
                row.is("scheduler", scheduler)
                    && (row.int("flows"), row.int("depth")) == (flows.into(), depth.into())
            };
            let row = rows.iter().find(is)?;
            row.ints("cpu_ns").into_iter().min().map(|ns| ns as f64)
        };
        verdicts.extend(of("bfq").map(|ours| Verdict {
            what: format!("null, E15 {flows} exports of depth {depth}: CPU ns of an I/O"),
            baseline: of("mq-deadline"),
            ours: Some(ours),
            goal: Some(Goal::AtMost(goal_ns)),
            ..Verdict::default()
        }));
    }
    let bfq = || rows.iter().filter(|row| row.is("scheduler", "bfq"));
    if bfq().count() > 0 {
        verdicts.push(Verdict {
            what: "null, E15: allocations".into(),
            ours: Some(bfq().map(|row| row.int("allocations")).sum::<u64>() as f64),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

/// A shard with its flows and a null device.
struct CpuRun {
    shard: Shard,
    prng: Prng,
    batch: usize,
    now: Instant,
    timer: Option<Instant>,
    sequence: u64,
    inputs: Vec<Input>,
    /// Flows whose answered bio has no successor yet.
    answered: Vec<u32>,
    in_device: VecDeque<Completion>,
    ios: u64,
}

impl CpuRun {
    fn new(load: Load, scheduler: Scheduler, seed: u64) -> Result<Self, ConfigError> {
        let queue = QueueOptions { scheduler, nr_requests: 4096, ..QueueOptions::default() };
        let volume =
            VolumeOptions { size: BLOCKS * 4096, block_size: 4096, ..VolumeOptions::default() };
        let all = load.flows * load.depth;
        let mut config = ShardConfig::single(queue, volume, all);
        config.exports = vec![ExportConfig::default(); load.flows as usize];
        let each = |flow| std::iter::repeat_n(flow, load.depth as usize);
        Ok(Self {
            shard: Shard::new(config)?,
            prng: Prng::new(seed),
            batch: load.batch,
            now: Instant(0),
            timer: None,
            sequence: 0,
            inputs: Vec::with_capacity(all as usize + load.batch + 1),
            answered: (0..load.flows).flat_map(each).collect(),
            in_device: VecDeque::with_capacity(all as usize),
            ios: 0,
        })
    }

    /// Runs until `ios` bios are answered.
    fn until(&mut self, ios: u64) {
        while self.ios < ios {
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.now = self.now.after(US);
        let idle = self.answered.is_empty() && self.in_device.is_empty();
        // Only an elevator that keeps the device for a queue leaves it idle here.
        if let Some(at) = self.timer.filter(|&at| idle || at <= self.now) {
            self.now = self.now.max(at);
            self.timer = None;
            self.inputs.push(Input::Timer);
        }
        assert!(
            !idle || !self.inputs.is_empty(),
            "a timer is armed while only the elevator has bios"
        );
        for index in 0..self.answered.len() {
            let bio = self.bio(self.answered[index]);
            self.inputs.push(Input::Bio(bio));
        }
        self.answered.clear();
        let completed = self.in_device.len().min(self.batch);
        let complete = |completion| Input::Complete { device: DeviceId(0), completion };
        self.inputs.extend(self.in_device.drain(..completed).map(complete));
        self.shard.handle(self.now, &self.inputs);
        self.inputs.clear();
        for action in &self.shard.actions().list {
            match *action {
                Action::Submit(submit) => self.in_device.push_back(Completion {
                    id: submit.id,
                    transferred: submit.len,
                    status: Ok(()),
                    hole: false,
                }),
                Action::Reply { id, .. } => {
                    self.answered.push(id.connection);
                    self.ios += 1;
                }
                Action::Timer { at } => self.timer = Some(at),
                _ => {}
            }
        }
        self.shard.clear_actions();
    }

    fn bio(&mut self, flow: u32) -> Bio {
        self.sequence += 1;
        Bio {
            id: BioId {
                connection: flow,
                volume: VolumeId(0),
                export: ExportId(flow as u16),
                sequence: self.sequence,
            },
            offset: self.prng.below(BLOCKS) * 4096,
            len: 4096,
            op: Op::Read,
            flags: BioFlags::SYNC,
            ..Bio::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_elevator_answers_all_flows() {
        for scheduler in Scheduler::ALL {
            let load = Load { flows: 20, depth: 2, batch: 8, goal_ns: 1.0 };
            let mut run = CpuRun::new(load, scheduler, 1).unwrap();
            run.until(2_000);
            assert!((2_000..2_100).contains(&run.ios));
            let out = run.sequence - run.ios + run.answered.len() as u64;
            assert_eq!(out, 40, "each flow has its depth: {scheduler:?}");
        }
        // With the elevators that are there.
        let none = || 0;
        let filter = BfqFilter { seed: 1, devices: vec!["hdd-32".into()], ..BfqFilter::default() };
        assert!(run(&filter, none).unwrap().rows.is_empty(), "the rows are of the null device");
    }

    #[test]
    fn allocation_is_a_miss_and_the_fastest_round_counts() {
        let row = |scheduler: &str, ns: Vec<u64>, allocations: u64| {
            Row::new(TABLE)
                .with("scheduler", scheduler)
                .with("flows", 1)
                .with("depth", 32)
                .with("cpu_ns", ns)
                .with("allocations", allocations)
        };
        let rows = |allocations| {
            [row("mq-deadline", vec![150, 140], 9), row("bfq", vec![300, 200, 210], allocations)]
        };
        let met = |rows: &[Row]| judge(rows).iter().map(Verdict::is_met).collect::<Vec<_>>();
        assert_eq!(met(&rows(0)), [true, true]);
        assert_eq!(met(&rows(1)), [true, false]);
        assert_eq!(judge(&rows(0))[0].baseline, Some(140.0));
    }
}
