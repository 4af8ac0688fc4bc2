//! One run: a case on a disk with an elevator, as a row of raw counts.

use headworks_core::time::MS;
use headworks_core::{ConfigError, DepthMode, QueueOptions, Scheduler, Tunable};

use super::BfqFilter;
use super::cases::{BfqCase, Measure};
use super::client;
use super::disks::Disk;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobCounts};
use crate::report::{Row, SETTINGS, jain};

/// The table of the rows.
pub(super) const TABLE: &str = "bfq";

/// How much is admitted to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bounds {
    /// What the default options find by measuring.
    Default,
    /// As much as the device takes.
    Unbounded,
    /// As many bytes as were set by hand, in small requests.
    ByHand,
}

impl Bounds {
    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Unbounded => "none",
            Self::ByHand => "by hand",
        }
    }
}

/// An elevator with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// The elevator of the queue.
    pub scheduler: Scheduler,
    /// How the device's queue is bounded.
    pub bounds: Bounds,
    /// Whether a slot lasts at least 100 ms before a raised queue ends it.
    pub hold_100: bool,
}

impl Variant {
    /// Of the clients that run alone.
    pub const ALONE: Self =
        Self { scheduler: Scheduler::None, bounds: Bounds::Default, hold_100: false };

    fn queue(self, disk: Disk, tunables: &[(Tunable, u64)]) -> Result<QueueOptions, ConfigError> {
        let usual = disk.queue(self.scheduler);
        let mut queue = match self.bounds {
            Bounds::Default => usual,
            Bounds::Unbounded => QueueOptions { hw_depth: DepthMode::Fixed, ..usual },
            Bounds::ByHand => disk.bounded_queue(self.scheduler),
        };
        if owns_shares(self.scheduler) {
            set(&mut queue, "rotational", disk.rotates().into())?;
            for (tunable, value) in tunables {
                tunable.set(&mut queue, *value)?;
            }
        }
        if self.hold_100 {
            set(&mut queue, "iosched/hw_hold_us", 100_000)?;
        }
        Ok(queue)
    }
}

/// Whether an elevator divides the device itself; the others have the gate's shares in front of them.
pub(super) fn owns_shares(scheduler: Scheduler) -> bool {
    !matches!(scheduler, Scheduler::None | Scheduler::MqDeadline)
}

fn set(queue: &mut QueueOptions, name: &str, value: u64) -> Result<(), ConfigError> {
    let found = Tunable::ALL.into_iter().find(|tunable| tunable.name() == name);
    found.expect("the elevator has the tunable").set(queue, value)
}

/// The clients of a case that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    All,
    First,
    Rest,
}

impl Part {
    /// Every part of a case.
    pub const ALL: [Self; 3] = [Self::All, Self::First, Self::Rest];

    /// The clients of the part.
    pub fn of<T>(self, mut clients: Vec<T>) -> Vec<T> {
        match self {
            Self::All => {}
            Self::First => clients.truncate(1),
            Self::Rest => drop(clients.remove(0)),
        }
        clients
    }

    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::First => "first",
            Self::Rest => "rest",
        }
    }
}

/// The elevators that a case runs with.
pub(super) fn variants(case: &BfqCase) -> Vec<Variant> {
    let mut variants = Vec::new();
    for scheduler in Scheduler::ALL {
        let usual = Variant { scheduler, bounds: Bounds::Default, hold_100: false };
        if case.bounded {
            variants.push(Variant { bounds: Bounds::ByHand, ..usual });
        }
        variants.push(usual);
        // The order of the elevator alone: on a disk that of mq-deadline, on flash that of arrival.
        let alone = if case.bounded { Scheduler::None } else { Scheduler::MqDeadline };
        if scheduler == alone {
            variants.push(Variant { bounds: Bounds::Unbounded, ..usual });
        }
        let held = case.goals.iter().any(|(measure, _)| *measure == Measure::RestBytesHold100);
        if held && owns_shares(scheduler) {
            variants.push(Variant { hold_100: true, ..usual });
        }
    }
    variants
}

/// Runs a case.
pub(super) fn run(
    filter: &BfqFilter,
    case: &BfqCase,
    disk: Disk,
    variant: Variant,
    part: Part,
) -> Result<Row, ConfigError> {
    let [ramp_ms, usual_ms, long_ms] = case.length_ms;
    let ms = filter.ms.unwrap_or(if filter.long { long_ms } else { usual_ms });
    let jobs = part.of(client::jobs(case.groups, case.step, disk, ramp_ms * MS));
    let harness = BlockHarness::new(BlockHarnessOptions {
        seed: filter.seed,
        queue: variant.queue(disk, &filter.tunables)?,
        size: disk.size(),
        device: disk.make(),
        jobs,
        exports: client::exports(case.groups, case.weights, case.tenants),
        tenants: client::tenants(case.weights, case.tenants),
        cache: Default::default(),
        ramp_ns: ramp_ms * MS,
        runtime_ns: ms * MS,
    })?;
    let counts = harness.run();
    let clients: Vec<ClientCounts> = counts.jobs.iter().map(ClientCounts::of).collect();
    let outcome = RunOutcome {
        bios: counts.bios,
        starved: counts.starved,
        failed: counts.errors + counts.notices + u64::from(counts.stuck),
        hash: counts.hash,
        settings: counts.settings,
    };
    let elevator = Elevator {
        name: variant.scheduler.name(),
        bounds: variant.bounds.name(),
        hold_ms: if variant.hold_100 { 100 } else { 0 },
    };
    Ok(row(case, disk, elevator, part, ms, (&clients, outcome)))
}

/// The cells that name an elevator with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elevator<'a> {
    pub name: &'a str,
    pub bounds: &'a str,
    pub hold_ms: u64,
}

/// Counters of a run that belong to no client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunOutcome {
    pub bios: u64,
    pub starved: u32,
    pub failed: u64,
    pub hash: u64,
    pub settings: String,
}

/// The counters of a client, as far as rows need them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientCounts {
    pub bios: u64,
    pub bytes: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub longest_us: u64,
    /// Times of the program's starts that ended.
    pub starts_ms: Vec<u64>,
    /// Time so far of the start that has not ended.
    pub unfinished_ms: u64,
}

impl ClientCounts {
    /// The counters of a job.
    pub fn of(job: &JobCounts) -> Self {
        let us = |ns: u64| ns / 1_000;
        Self {
            bios: job.bios,
            bytes: job.bytes,
            p50_us: us(job.latency.percentile(500)),
            p99_us: us(job.latency.percentile(990)),
            longest_us: us(job.longest_ns()),
            starts_ms: job.starts_ns.iter().map(|ns| ns / MS).collect(),
            unfinished_ms: job.unfinished_ns / MS,
        }
    }
}

/// The row of a run.
pub(super) fn row(
    case: &BfqCase,
    disk: Disk,
    elevator: Elevator<'_>,
    part: Part,
    ms: u64,
    (clients, outcome): (&[ClientCounts], RunOutcome),
) -> Row {
    let bytes = |of: &[ClientCounts]| of.iter().map(|client| client.bytes).sum::<u64>();
    // Without the first client there are only the others.
    let (first, rest) = clients.split_at(usize::from(part != Part::Rest));
    let none = ClientCounts::default();
    let one = first.first().unwrap_or(&none);
    let weights = case.weights.len().min(clients.len());
    let of_weight = |index: usize| clients.iter().skip(index).step_by(weights);
    let each = |of: &dyn Fn(usize) -> u64| (0..weights).map(of).collect::<Vec<u64>>();
    Row::new(TABLE)
        .with("experiment", case.experiment)
        .with("case", case.name)
        .with("device", disk.name())
        .with("scheduler", elevator.name)
        .with("bounds", elevator.bounds)
        .with("hold_ms", elevator.hold_ms)
        .with("part", part.name())
        .with("ms", ms)
        .with("clients", clients.len())
        .with("tenants", u64::from(case.tenants))
        .with("bytes", bytes(clients))
        .with("bios", outcome.bios)
        .with_real("jain", jain(clients.iter().map(|client| client.bytes as f64)), 4)
        .with("weights", case.weights.iter().map(|&weight| u64::from(weight)).collect::<Vec<_>>())
        .with("weight_clients", each(&|index| of_weight(index).count() as u64))
        .with("weight_bytes", each(&|index| of_weight(index).map(|client| client.bytes).sum()))
        .with(
            "weight_least",
            each(&|index| of_weight(index).map(|client| client.bytes).min().unwrap_or(0)),
        )
        .with(
            "weight_most",
            each(&|index| of_weight(index).map(|client| client.bytes).max().unwrap_or(0)),
        )
        .with("first_bytes", one.bytes)
        .with("first_p50_us", one.p50_us)
        .with("first_p99_us", one.p99_us)
        .with("first_longest_us", one.longest_us)
        .with("rest_bytes", bytes(rest))
        .with("starts_ms", one.starts_ms.clone())
        .with("unfinished_ms", one.unfinished_ms)
        .with("starved", outcome.starved)
        .with("failed", outcome.failed)
        .with(SETTINGS, outcome.settings)
        .with("hash", format!("{:016x}", outcome.hash))
}
