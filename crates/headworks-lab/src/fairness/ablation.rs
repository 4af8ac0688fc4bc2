//! What each mechanism buys: a few of the cases with everything on, and without one mechanism at a
//! time.
//!
//! ```text
//!   for each case:  everything | without device time | without measured depth | ... | kuai_v3  --> rows `ablation`
//! ```
//!
//! A case runs only without mechanisms that it uses. The last row has none of those of the gate: it
//! is the series proposed for Linux, without a control of the depth. Nothing is judged here; the
//! goals belong to the other tables. Closed loops have fewer tags than clients, all else is as usual.
//!
//! | column | meaning |
//! |---|---|
//! | `work` | answers of equal clients; ns of device time of clients of two sizes; bytes of heavy clients |
//! | `part` | `work` as a part of the most of all rows of the case |
//! | `rounds` | closed loops only: the longest wait, in rounds as [`clients`] has them |
//! | `times_alone` | light clients beside heavy ones only: their p99, in times alone |
//! | `time_off` | largest relative difference of a client's work from the mean; of the heavy clients |

use headworks_core::time::MS;
use headworks_core::{ConfigError, QueueOptions, Scheduler};

use super::beside::{BesideCase, BesidePoint, Length, Part};
use super::clients::{self, Group, KIB4, Load, NO_GROUP};
use super::device::{Device, MIB};
use super::mechanism::{Mechanism, Setup};
use crate::baseline::TagPolicy;
use crate::harness::{JobCounts, RunCounts};
use crate::report::{Progress, Report, Row, SETTINGS};
use crate::row_filter::RowFilter;

const TABLE: &str = "ablation";
/// Tags of closed loops: fewer than clients, so that the gate decides.
const TAGS: u32 = 31;
/// Mechanisms of the gate.
const GATE: [Mechanism; 4] =
    [Mechanism::DeviceTime, Mechanism::Depth, Mechanism::Shares, Mechanism::LightFirst];

/// Clients of a case.
#[derive(Clone, Copy, Debug)]
enum Clients {
    /// Closed loops of one size or two.
    Loops(Load),
    /// Light clients beside heavy ones, for that time.
    Beside(BesidePoint, Length),
}

/// What the runs of a case are measured by.
#[derive(Clone, Copy, Debug)]
enum Unit {
    /// What a request of each size of closed loops costs.
    Costs([u64; 2]),
    /// The light clients' p99 alone, in us.
    Alone(u64),
}

/// Runs the table if it is selected.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let cases: Vec<Clients> = all().into_iter().filter(|case| case.is_in(filter)).collect();
    if cases.is_empty() {
        return Ok(Report::default());
    }
    let mut progress = Progress::new("ablation", cases.len());
    let mut rows = Vec::new();
    for case in &cases {
        let unit = case.unit(filter.seed)?;
        let mut found = Vec::new();
        for setup in case.setups() {
            found.push(case.run(setup, unit, filter.seed)?);
        }
        rows.extend(compare(found));
        progress.step();
    }
    let note = "ablation: default options, closed loops of 4 KiB and 1 MiB with fewer tags than clients; `without` is the mechanism that is off, `part` that of the case's best row";
    Ok(Report {
        title: "fairness: what each mechanism buys".into(),
        notes: vec![note.into()],
        rows,
        verdicts: Vec::new(),
    })
}

fn all() -> Vec<Clients> {
    let small = |clients| Group { clients, bytes: KIB4 };
    let large = |clients| Group { clients, bytes: MIB };
    let loops = |case, device: Device, groups| {
        Clients::Loops(Load {
            case,
            device,
            scheduler: Scheduler::None,
            op: device.usual_op(),
            write_percent: 0,
            tags: TAGS,
            groups,
        })
    };
    let sorted = Load {
        case: "equal",
        device: Device::Disk,
        scheduler: Scheduler::MqDeadline,
        op: Device::Disk.usual_op(),
        write_percent: 0,
        tags: QueueOptions::default().nr_requests,
        groups: [small(1000), NO_GROUP],
    };
    let beside = |case, device| {
        let (scheduler, policy) = (Scheduler::None, TagPolicy::Fair);
        Clients::Beside(
            BesidePoint { case, device, scheduler, policy, by_hand: None },
            Length::of(device),
        )
    };
    let mut cases = Vec::new();
    for device in [Device::Disk, Device::Nvme] {
        cases.push(loops("equal", device, [small(300), NO_GROUP]));
        cases.push(loops("one-large", device, [small(63), large(1)]));
    }
    cases.push(Clients::Loops(sorted));
    cases.extend(Device::ALL.map(|device| loops("half-large", device, [small(60), large(60)])));
    cases.extend(Device::ALL.map(|device| beside(BesideCase::BulkWrites, device)));
    let write_out = [Device::Sata, Device::Stream700, Device::Stream60];
    cases.extend(write_out.map(|device| beside(BesideCase::WriteOut, device)));
    cases.push(beside(BesideCase::UnevenWriters, Device::Stream60));
    cases
}

impl Clients {
    const fn case(&self) -> (&'static str, Device, Scheduler) {
        match self {
            Self::Loops(load) => (load.case, load.device, load.scheduler),
            Self::Beside(point, _) => (point.case.name(), point.device, point.scheduler),
        }
    }

    fn count(&self) -> u32 {
        match self {
            Self::Loops(load) => load.clients(),
            Self::Beside(point, _) => point.clients(),
        }
    }

    fn tags(&self) -> u32 {
        match self {
            Self::Loops(load) => load.tags,
            Self::Beside(..) => QueueOptions::default().nr_requests,
        }
    }

    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_case(TABLE)
            && filter.has_policy(TagPolicy::Fair)
            && filter.has_device(self.case().1.name())
            && filter.has_jobs(self.count())
            && filter.has_tags(self.tags())
    }

    /// Everything on, without each mechanism that matters, and the baseline.
    fn setups(&self) -> Vec<Setup> {
        let write_out = [Mechanism::WriteOutTags, Mechanism::SparseGroups];
        let without: Vec<Mechanism> = match self {
            Self::Beside(BesidePoint { case: BesideCase::WriteOut, .. }, _) => {
                [&GATE[..], &write_out].concat()
            }
            Self::Beside(BesidePoint { case: BesideCase::UnevenWriters, .. }, _) => {
                [&[Mechanism::Depth], &write_out[..]].concat()
            }
            _ => GATE.to_vec(),
        };
        let without = without.into_iter().map(Setup::Without);
        let [first, last] = [TagPolicy::Fair, TagPolicy::KuaiV3].map(Setup::Policy);
        [first].into_iter().chain(without).chain([last]).collect()
    }

    /// What the case's runs are measured by, from runs of its own.
    fn unit(&self, seed: u64) -> Result<Unit, ConfigError> {
        match self {
            Self::Loops(load) if load.is_mixed() => {
                let cost = |group| clients::cost(&mut Vec::new(), *load, group, seed);
                let [small, large] = load.groups.map(cost);
                Ok(Unit::Costs([small?, large?]))
            }
            Self::Loops(_) => Ok(Unit::Costs([1, 1])),
            Self::Beside(point, length) => {
                let usual = Setup::Policy(TagPolicy::Fair);
                let alone = point.count(Part::Light, usual, seed, *length)?;
                Ok(Unit::Alone(alone.latency.percentile(990) / 1_000))
            }
        }
    }

    fn run(&self, setup: Setup, unit: Unit, seed: u64) -> Result<Row, ConfigError> {
        let (case, device, scheduler) = self.case();
        let without = match setup {
            Setup::Policy(TagPolicy::Fair) => "-",
            Setup::Policy(policy) => policy.name(),
            Setup::Without(mechanism) => mechanism.name(),
        };
        let head = Row::new(TABLE)
            .with("case", case)
            .with("device", device.name())
            .with("scheduler", scheduler.name())
            .with("clients", self.count())
            .with("tags", self.tags())
            .with("without", without);
        let (row, counts) = match (self, unit) {
            (Self::Loops(load), Unit::Costs(costs)) => {
                let (counts, length) = load.count(setup, seed)?;
                (loops_row(head.with("ms", length / MS), load, &counts, costs), counts)
            }
            (Self::Beside(point, length), Unit::Alone(alone_us)) => {
                let counts = point.count(Part::Both, setup, seed, *length)?;
                let head = head.with("ms", length.runtime_ns / MS);
                (beside_row(head, *point, &counts, alone_us), counts)
            }
            _ => unreachable!("loops have costs, and light clients a time alone"),
        };
        let failed = counts.errors + counts.notices + u64::from(counts.stuck);
        let row = row.with("starved", counts.starved).with("failed", failed);
        Ok(row
            .with(SETTINGS, counts.settings.clone())
            .with("hash", format!("{:016x}", counts.hash)))
    }
}

fn loops_row(head: Row, load: &Load, counts: &RunCounts, costs: [u64; 2]) -> Row {
    let clients = u64::from(load.clients());
    let (small, large) = counts.jobs.split_at(load.groups[0].clients as usize);
    let of = |jobs: &[JobCounts], cost: u64| -> Vec<u64> {
        jobs.iter().map(|job| job.bios * cost).collect()
    };
    let work = [of(small, costs[0]), of(large, costs[1])].concat();
    head.with("bios", counts.bios)
        .with("work", work.iter().sum::<u64>())
        // Of equal clients the best rate of all rows gives it.
        .with("round_us", if load.is_mixed() { clients * costs[1] / 1_000 } else { 0 })
        .with("alone_p99_us", None::<u64>)
        .with("p99_us", counts.latency.percentile(990) / 1_000)
        .with("longest_us", counts.longest_ns() / 1_000)
        .with("times_alone", None::<f64>)
        .with_real("time_off", off(&work), 4)
}

fn beside_row(head: Row, point: BesidePoint, counts: &RunCounts, alone_us: u64) -> Row {
    let (light, heavy) = counts.jobs.split_at(point.case.light().0 as usize);
    let p99_us = BesidePoint::latency(light).percentile(990) / 1_000;
    let longest_us = light.iter().map(JobCounts::longest_ns).max().unwrap_or(0) / 1_000;
    let work: Vec<u64> = heavy.iter().map(|job| job.bytes).collect();
    let row = head
        .with("bios", light.iter().map(|job| job.bios).sum::<u64>())
        .with("work", work.iter().sum::<u64>())
        .with("round_us", None::<u64>)
        .with("alone_p99_us", alone_us)
        .with("p99_us", p99_us)
        .with("longest_us", longest_us);
    // A cached write waits for nothing.
    let row = match alone_us {
        0 => row.with("times_alone", None::<f64>),
        _ => row.with_real("times_alone", p99_us as f64 / alone_us as f64, 2),
    };
    match work.len() {
        1 => row.with("time_off", None::<f64>),
        _ => row.with_real("time_off", off(&work), 4),
    }
}

/// The largest relative difference from the mean.
fn off(work: &[u64]) -> f64 {
    let mean = work.iter().sum::<u64>() as f64 / work.len() as f64;
    work.iter().map(|&work| (work as f64 / mean - 1.0).abs()).fold(0.0, f64::max)
}

/// Adds to the rows of one case what follows from the best of them.
fn compare(rows: Vec<Row>) -> Vec<Row> {
    let best = rows.iter().map(|row| row.int("work")).max().unwrap_or(0).max(1);
    let compared = rows.iter().map(|row| {
        let part = row.int("work") as f64 / best as f64;
        let row = row.clone().with_real("part", part, 4);
        if row.is_empty("round_us") {
            return row.with("rounds", None::<f64>);
        }
        let round_us = match row.int("round_us") {
            0 => row.int("clients") as f64 * row.int("ms") as f64 * 1e3 / best as f64,
            round_us => round_us as f64,
        };
        let longest_us = row.int("longest_us") as f64;
        row.replaced("round_us", round_us.round() as u64).with_real(
            "rounds",
            longest_us / round_us,
            2,
        )
    });
    compared.collect()
}

#[cfg(test)]
mod tests {
    use headworks_core::time::SEC;

    use super::*;

    fn load(case: &'static str, groups: [Group; 2]) -> Load {
        Load {
            case,
            device: Device::Nvme,
            scheduler: Scheduler::None,
            op: Device::Nvme.usual_op(),
            write_percent: 0,
            tags: 8,
            groups,
        }
    }

    #[test]
    fn every_mechanism_of_a_case_changes_its_run() {
        let group = |clients, bytes| Group { clients, bytes };
        let (scheduler, policy) = (Scheduler::None, TagPolicy::Fair);
        let point = |case, device| BesidePoint { case, device, scheduler, policy, by_hand: None };
        let short = Length { ramp_ns: SEC / 10, runtime_ns: SEC / 2 };
        let long = Length { ramp_ns: 20 * SEC, runtime_ns: 20 * SEC };
        let cases = [
            Clients::Loops(load("half-large", [group(12, KIB4), group(12, MIB)])),
            Clients::Beside(point(BesideCase::WriteOut, Device::Sata), short),
            Clients::Beside(point(BesideCase::UnevenWriters, Device::Stream60), long),
        ];
        let mut changed = Vec::new();
        for case in cases {
            let unit = case.unit(1).unwrap();
            let setups = case.setups();
            let rows: Vec<Row> =
                setups.iter().map(|&setup| case.run(setup, unit, 1).unwrap()).collect();
            let differs = |(_, row): &(&Setup, &Row)| row.word("hash") != rows[0].word("hash");
            changed.extend(setups.iter().zip(&rows).filter(differs).map(|(&setup, _)| setup));
        }
        let write_out = [Mechanism::WriteOutTags, Mechanism::SparseGroups];
        for mechanism in [&GATE[..], &write_out].concat() {
            assert!(changed.contains(&Setup::Without(mechanism)), "{mechanism:?} changes nothing");
        }
    }

    #[test]
    fn connections_without_shares_wait_behind_a_heavy_one() {
        let groups = [Group { clients: 15, bytes: KIB4 }, Group { clients: 1, bytes: MIB }];
        let case = Clients::Loops(load("one-large", groups));
        let unit = case.unit(1).unwrap();
        let run = |setup| case.run(setup, unit, 1).unwrap();
        let usual = run(Setup::Policy(TagPolicy::Fair));
        let one_queue = run(Setup::Without(Mechanism::Shares));
        assert!(one_queue.int("p99_us") > usual.int("p99_us"), "{one_queue:?}\n{usual:?}");
    }

    #[test]
    fn round_of_equal_clients_is_that_of_the_best_row() {
        let group = Group { clients: 16, bytes: KIB4 };
        let case = Clients::Loops(load("equal", [group, NO_GROUP]));
        let unit = case.unit(1).unwrap();
        let rows = [TagPolicy::Fair, TagPolicy::KuaiV3].map(Setup::Policy);
        let rows = compare(rows.map(|setup| case.run(setup, unit, 1).unwrap()).to_vec());
        let best = rows.iter().map(|row| row.int("bios")).max().unwrap();
        let round_us = 16 * rows[0].int("ms") * 1_000 / best;
        for row in &rows {
            assert!(row.int("round_us").abs_diff(round_us) <= 1, "{row:?}");
            let rounds = row.int("longest_us") as f64 / round_us as f64;
            assert!((row.real("rounds") - rounds).abs() < 0.05 * rounds, "{row:?}");
        }
        assert!(rows.iter().any(|row| row.real("part") == 1.0));
    }
}
