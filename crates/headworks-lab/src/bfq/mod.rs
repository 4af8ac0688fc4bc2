//! BFQ on modelled disks: shares, throughput, start-up of programs, soft real time, many exports, noisy neighbours.
//!
//! ```text
//!   cases (clients, weights, goals) x disks x elevators --> rows (raw counts) --> judge: goal, MET or MISSED, mq-deadline beside it
//! ```
//!
//! Each case runs with every elevator; `none` and `mq-deadline` have the default shares of the gate in front of them. A case with a
//! queue that is bounded by hand runs without the bound, too. Clients that a goal compares with themselves alone run alone with
//! `none`. Invariant: a verdict is a function of rows, and a row of seed, case, disk and elevator.

mod cases;
mod client;
pub mod cpu;
pub mod disks;
mod judge;
mod known;
pub mod linux;
mod programs;
mod run;

use headworks_core::{ConfigError, Scheduler, Tunable};

use crate::report::{Report, run_each};
use cases::{BfqCase, CASES};
use disks::Disk;
pub use judge::judge;
use run::{Part, Variant};

/// Selects rows of the experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BfqFilter {
    /// Seed of the clients' random offsets.
    pub seed: u64,
    /// Only these cases, or all of these experiments (`E1`); all if empty.
    pub cases: Vec<String>,
    /// Only these disks; all if empty.
    pub devices: Vec<String>,
    /// Only these elevators; all if empty.
    pub schedulers: Vec<Scheduler>,
    /// Whether flash runs for 10 s or more, and 100 exports on a disk for 600 s.
    pub long: bool,
    /// Measured virtual milliseconds of every case, instead of its own.
    pub ms: Option<u64>,
    /// Tunables of the elevators that own shares, instead of their defaults.
    pub tunables: Vec<(Tunable, u64)>,
}

impl BfqFilter {
    fn has_name(&self, experiment: &str, case: &str) -> bool {
        let wanted = |name: &String| name == case || name == experiment;
        self.cases.is_empty() || self.cases.iter().any(wanted)
    }

    fn has_device_name(&self, device: &str) -> bool {
        self.devices.is_empty() || self.devices.iter().any(|name| name == device)
    }

    /// The first case or disk that does not exist.
    fn unknown(&self) -> Option<ConfigError> {
        let is_case = |name: &&String| {
            CASES.iter().any(|case| [case.name, case.experiment].contains(&name.as_str()))
        };
        let wrong =
            |option, name: &String| ConfigError::new(option, format!("there is no `{name}`"));
        let is_disk = |name: &&String| Disk::by_name(name).is_some();
        let case = self.cases.iter().filter(|name| *name != "E15").find(|name| !is_case(name));
        let disk = self.devices.iter().filter(|name| *name != "null").find(|name| !is_disk(name));
        case.map(|name| wrong("case", name)).or_else(|| disk.map(|name| wrong("device", name)))
    }

    fn has_scheduler(&self, scheduler: Scheduler) -> bool {
        self.schedulers.is_empty() || self.schedulers.contains(&scheduler)
    }
}

/// A run of the experiment.
#[derive(Clone, Copy, Debug)]
struct BfqPoint {
    case: &'static BfqCase,
    disk: Disk,
    variant: Variant,
    part: Part,
}

/// Runs the selected rows in virtual time.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &BfqFilter) -> Result<Report, ConfigError> {
    if let Some(error) = filter.unknown() {
        return Err(error);
    }
    let points = points(filter);
    if points.is_empty() {
        return Ok(Report::default());
    }
    let rows = run_each("bfq", &points, |point| {
        let BfqPoint { case, disk, variant, part } = *point;
        run::run(filter, case, disk, variant, part)
    })?;
    let notes = vec![
        "virtual time; first: the client that a goal names, rest: the others; none and mq-deadline have the gate's default shares".into(),
        "hdd-5400, hdd-10k and sata-qlc are disks that no elevator was tuned on".into(),
        "bounds `by hand`: hw_inflight_kb 320 and max_sectors_kb 64 on nvme, 56 and 16 on sata".into(),
        "starts: lists of reads with the published counts of the S suite's programs; a read waits for all before it, read-ahead does not"
            .into(),
    ];
    Ok(Report {
        title: "bfq: shares, throughput and waits".into(),
        notes,
        verdicts: judge(&rows),
        rows,
    })
}

fn points(filter: &BfqFilter) -> Vec<BfqPoint> {
    let mut points = Vec::new();
    for case in CASES.iter().filter(|case| filter.has_name(case.experiment, case.name)) {
        for &disk in case.disks.iter().filter(|&&disk| filter.has_device_name(disk.name())) {
            let point = |variant, part| BfqPoint { case, disk, variant, part };
            let needs = |of: fn((bool, bool)) -> bool| {
                case.goals.iter().any(|(measure, _)| of(measure.needs()))
            };
            if needs(|(first, _)| first) {
                points.push(point(Variant::ALONE, Part::First));
            }
            if needs(|(_, rest)| rest) {
                points.push(point(Variant::ALONE, Part::Rest));
            }
            let variants = run::variants(case).into_iter();
            let variants = variants.filter(|variant| filter.has_scheduler(variant.scheduler));
            points.extend(variants.map(|variant| point(variant, Part::All)));
        }
    }
    points
}

#[cfg(test)]
mod tests;
