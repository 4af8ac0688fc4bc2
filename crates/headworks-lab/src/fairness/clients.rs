//! Closed loops of depth 1 on one device, with the default options: does each client get its turn?
//!
//! ```text
//!   for each load:  fair | legacy518 | kuai_v3, side by side  --> rows
//!   round = clients * device time of the largest request (at the best rate of the three)
//!   goals: longest wait <= 3 rounds, Jain's index of each window of 10 rounds >= 0.99,
//!          throughput >= 0.97 of the best policy's; sizes mixed: equal device time within 5 %
//! ```
//!
//! In a round of equal clients each can be served once. Clients with requests of several sizes
//! share device time: in a round each can get as much of it as the largest request takes. The
//! device time of a request is measured: the inverse of the rate at which as many clients with
//! requests of only that size are served, without an elevator (rows `device time of a request`).
//!
//! Throughput of mixed sizes, as a part of the best baseline's, is judged twice: as device time of the requests served in a second,
//! which says how well the device is used, and as bytes. The two differ when policies give the
//! large requests different shares.

use headworks_core::time::{MS, SEC};
use headworks_core::{ConfigError, Op, QueueOptions, Scheduler};

use super::device::{Device, MIB};
use super::known;
use super::mechanism::Setup;
use crate::baseline::TagPolicy;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::{Goal, Progress, Report, Row, SETTINGS, Verdict, jain};
use crate::row_filter::RowFilter;

const EQUAL: &str = "equal clients";
const MIXED: &str = "clients with requests of two sizes";
const COST: &str = "device time of a request";

/// What is judged, in the words of the verdicts.
pub(super) const LONGEST_TEXT: &str = "longest wait in rounds";
pub(super) const JAIN_TEXT: &str = "Jain's index of 10 rounds";
pub(super) const PART_TEXT: &str = "throughput, part of the best";
pub(super) const TIME_TEXT: &str = "device time of a client is off by";
pub(super) const USED_TEXT: &str = "device time used, part of the best baseline's";
pub(super) const BYTES_TEXT: &str = "bytes, part of the best baseline's";

/// Goal: the longest wait in rounds.
const ROUNDS: f64 = 3.0;
/// Goal: Jain's index of each window.
const JAIN: f64 = 0.99;
/// Goal: throughput of equal clients as a part of the best policy's.
const EQUAL_PART: f64 = 0.97;
/// Goal: throughput of mixed sizes as a part of the best baseline's.
const MIXED_PART: f64 = 1.0;
/// Goal: largest relative difference of a client's device time from the mean.
const TIME_OFF: f64 = 0.05;
/// Tags of the runs that measure the device time of a request: more than any device needs.
const COST_TAGS: u32 = 256;
/// Rounds of a window.
const WINDOW_ROUNDS: u32 = 10;
/// Rounds before counting starts.
const RAMP_ROUNDS: u64 = 5;
/// Ramp of requests of two sizes on a disk.
const DISK_RAMP_NS: u64 = 60 * SEC;
/// Rounds that are counted: six windows.
const EQUAL_ROUNDS: u64 = 60;
/// Rounds that are counted if sizes are mixed: a client with the largest requests gets 40 answers.
const MIXED_ROUNDS: u64 = 40;
/// Fewest answers that are counted if all clients are equal.
const ANSWERS_MIN: u64 = 10_000;
pub(super) const KIB4: u32 = 4 << 10;
/// Time of a client between an answer and its next request.
const THINK_NS: u64 = 4_000;

/// Clients with requests of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Number of the group's clients.
    pub clients: u32,
    /// Bytes of each of their requests.
    pub bytes: u32,
}

/// The clients and the queue of a row, without the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// The name in rows.
    pub case: &'static str,
    /// The device that they share.
    pub device: Device,
    /// The elevator of its queue.
    pub scheduler: Scheduler,
    /// The operation of all clients.
    pub op: Op,
    /// Percentage of reads replaced by writes.
    pub write_percent: u32,
    /// Tags of the queue.
    pub tags: u32,
    /// The second group may have no clients.
    pub groups: [Group; 2],
}

/// A group without clients.
pub(super) const NO_GROUP: Group = Group { clients: 0, bytes: MIB };

/// Runs the selected rows.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let loads: Vec<Load> = all().into_iter().filter(|load| load.is_in(filter)).collect();
    let policies: Vec<TagPolicy> =
        TagPolicy::ALL.into_iter().filter(|&policy| filter.has_policy(policy)).collect();
    let mut progress = Progress::new("fairness of clients", loads.len());
    let mut costs: Vec<(Load, Row)> = Vec::new();
    let mut rows = Vec::new();
    for load in loads {
        let costs = match load.is_mixed() {
            true => load.groups.map(|group| cost(&mut costs, load, group, filter.seed)),
            false => [Ok(0), Ok(0)],
        };
        let [first, second] = costs;
        let costs = [first?, second?];
        let mut found = Vec::new();
        for &policy in &policies {
            found.push(load.run(policy, filter.seed, costs)?);
        }
        rows.extend(compare(found));
        progress.step();
    }
    drop(progress);
    rows.extend(costs.into_iter().map(|(_, row)| row));
    rows.sort_by_key(|row| [EQUAL, COST, MIXED].iter().position(|&table| table == row.table));
    let notes = vec![
        "clients of depth 1 with 4 us between an answer and the next request; default options, the device announces its depth"
            .into(),
        format!(
            "a round: each client gets the device time of the largest request; Jain's index of the answers over windows of \
             {WINDOW_ROUNDS} rounds; `part` of the best policy beside it"
        ),
    ];
    Ok(Report {
        title: "fairness: closed loops on one device".into(),
        notes,
        verdicts: judge(&rows),
        rows,
    })
}

pub(super) fn all() -> Vec<Load> {
    let mut loads = Vec::new();
    for device in Device::ALL {
        let load = |case, scheduler, tags, groups| Load {
            case,
            device,
            scheduler,
            op: device.usual_op(),
            write_percent: 0,
            tags,
            groups,
        };
        let equal = |case, scheduler, tags, clients| {
            load(case, scheduler, tags, [Group { clients, bytes: KIB4 }, NO_GROUP])
        };
        for (clients, tags) in product(&[8, 64, 300, 700, 1000], &[31, 64, 256]) {
            loads.push(equal("equal", Scheduler::None, tags, clients));
        }
        for (clients, tags) in product(&[64, 1000], &[64, 256]) {
            loads.push(equal("equal", Scheduler::MqDeadline, tags, clients));
            let none = equal("mixed-70-30", Scheduler::None, tags, clients);
            loads.push(Load { op: Op::Read, write_percent: 30, ..none });
            let other = if device.usual_op() == Op::Read { Op::Write } else { Op::Read };
            let case = if other == Op::Read { "read-only" } else { "write-only" };
            loads.push(Load { op: other, ..equal(case, Scheduler::None, tags, clients) });
        }
        let small = |clients| Group { clients, bytes: KIB4 };
        let large = |clients| Group { clients, bytes: MIB };
        for (scheduler, tags) in [
            (Scheduler::None, 31),
            (Scheduler::None, 64),
            (Scheduler::None, 256),
            (Scheduler::MqDeadline, 64),
        ] {
            loads.push(load("one-large", scheduler, tags, [small(63), large(1)]));
            loads.push(load("half-large", scheduler, tags, [small(60), large(60)]));
            loads.push(load("eight-large", scheduler, tags, [small(100), large(8)]));
        }
    }
    loads
}

/// Numbers of clients with numbers of tags in rising order; once each has a tag, more change nothing.
fn product(clients: &[u32], tags: &[u32]) -> Vec<(u32, u32)> {
    let enough = |n: u32| tags.iter().copied().find(|&tags| tags >= n).unwrap_or(u32::MAX);
    let of =
        |&n: &u32| tags.iter().filter(move |&&tags| tags <= enough(n)).map(move |&tags| (n, tags));
    clients.iter().flat_map(of).collect()
}

/// The device time of a request of `group`'s size under `load`, from a run of its own.
pub(super) fn cost(
    known: &mut Vec<(Load, Row)>,
    load: Load,
    group: Group,
    seed: u64,
) -> Result<u64, ConfigError> {
    let alone = Load {
        case: "cost",
        scheduler: Scheduler::None,
        tags: COST_TAGS,
        groups: [Group { clients: load.clients(), ..group }, NO_GROUP],
        ..load
    };
    let found = known.iter().find(|(load, _)| *load == alone).map(|(_, row)| row.clone());
    let row = match found {
        Some(row) => row,
        None => {
            let (counts, length) = alone.count(Setup::Policy(TagPolicy::Fair), seed)?;
            let row = alone
                .head(COST, TagPolicy::Fair)
                .with("kib", group.bytes >> 10)
                .with("clients", load.clients())
                .with("ms", length / MS)
                .with("bios", counts.bios)
                .with("cost_ns", length / counts.bios.max(1));
            known.push((alone, row.clone()));
            row
        }
    };
    Ok(row.int("cost_ns"))
}

impl Load {
    /// Number of clients of both groups.
    pub fn clients(&self) -> u32 {
        self.groups.iter().map(|group| group.clients).sum()
    }

    /// Whether requests have several sizes.
    pub const fn is_mixed(&self) -> bool {
        self.groups[1].clients > 0
    }

    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_case(self.case)
            && filter.has_device(self.device.name())
            && filter.has_jobs(self.clients())
            && filter.has_tags(self.tags)
    }

    fn queue(&self) -> QueueOptions {
        QueueOptions {
            scheduler: self.scheduler,
            nr_requests: self.tags,
            queue_depth: self.device.queue_depth(self.tags),
            ..QueueOptions::default()
        }
    }

    /// Ramp and measured time.
    fn length(&self) -> (u64, u64) {
        let groups = self.groups.iter().filter(|group| group.clients > 0);
        let largest = groups.map(|group| group.bytes).max().unwrap_or(KIB4);
        let turn = self.device.about_ns(self.op, largest);
        let round = u64::from(self.clients()) * turn;
        let ramp = (RAMP_ROUNDS * round).max(self.device.ramp_ns());
        match self.is_mixed() {
            // A disk's cache takes 40 s of small writes, and large ones wait for them.
            true if self.device == Device::Disk => (ramp.max(DISK_RAMP_NS), MIXED_ROUNDS * round),
            true => (ramp, MIXED_ROUNDS * round),
            false => (ramp, (EQUAL_ROUNDS * round).max(ANSWERS_MIN * turn)),
        }
    }

    /// Runs the load; returns the counts and the measured time.
    pub fn count(&self, setup: Setup, seed: u64) -> Result<(RunCounts, u64), ConfigError> {
        let (size, (ramp_ns, runtime_ns)) = (self.device.size(), self.length());
        let job = |bs| JobOptions {
            op: self.op,
            write_percent: self.write_percent,
            bs,
            end: size,
            think_ns: THINK_NS,
            ..JobOptions::default()
        };
        let of = |group: &Group| vec![job(group.bytes); group.clients as usize];
        let mut harness = BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: setup.queue(self.queue()),
            size,
            device: self.device.make(),
            jobs: self.groups.iter().flat_map(of).collect(),
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: Default::default(),
            ramp_ns,
            runtime_ns,
        })?;
        harness.count_windows(WINDOW_ROUNDS);
        setup.install(harness.shard(), seed);
        Ok((harness.run(), runtime_ns))
    }

    fn head(&self, table: &str, policy: TagPolicy) -> Row {
        Row::new(table)
            .with("device", self.device.name())
            .with("scheduler", self.scheduler.name())
            .with("op", op_name(self.op, self.write_percent))
            .with("tags", self.tags)
            .with("policy", policy.name())
    }

    fn run(&self, policy: TagPolicy, seed: u64, costs: [u64; 2]) -> Result<Row, ConfigError> {
        let (counts, length) = self.count(Setup::Policy(policy), seed)?;
        Ok(match self.is_mixed() {
            true => self.mixed_row(policy, &counts, length, costs),
            false => self.equal_row(policy, &counts, length),
        })
    }

    fn equal_row(&self, policy: TagPolicy, counts: &RunCounts, length: u64) -> Row {
        let us = |per_mille| counts.latency.percentile(per_mille) / 1_000;
        self.head(EQUAL, policy)
            .with("case", self.case)
            .with("clients", self.clients())
            .with("ms", length / MS)
            .with("bios", counts.bios)
            .with("p50_us", us(500))
            .with("p99_us", us(990))
            .with("p999_us", us(999))
            .with("longest_us", counts.longest_ns() / 1_000)
            .with("windows", counts.windows.count)
            .with_real("jain", counts.windows.least, 4)
            .with_real("jain_mean", counts.windows.mean(), 4)
            .with("starved", counts.starved)
            .with("failed", failed(counts))
            .with(SETTINGS, counts.settings.clone())
            .with("hash", format!("{:016x}", counts.hash))
    }

    fn mixed_row(
        &self,
        policy: TagPolicy,
        counts: &RunCounts,
        length: u64,
        costs: [u64; 2],
    ) -> Row {
        let small = self.groups[0].clients as usize;
        let (first, second) = counts.jobs.split_at(small);
        let groups = [first, second];
        let bios = groups.map(|jobs| jobs.iter().map(|job| job.bios).sum::<u64>());
        let longest =
            groups.map(|jobs| jobs.iter().map(|job| job.longest_ns() / 1_000).max().unwrap_or(0));
        let mut latency = [first[0].latency.clone(), second[0].latency.clone()];
        for (all, jobs) in latency.iter_mut().zip(groups) {
            jobs[1..].iter().for_each(|job| all.add(&job.latency));
        }
        let us = |per_mille| latency.each_ref().map(|all| all.percentile(per_mille) / 1_000);
        // Device time by client, in units of its mean.
        let times: Vec<f64> = groups
            .iter()
            .zip(costs)
            .flat_map(|(jobs, cost)| jobs.iter().map(move |job| (job.bios * cost) as f64))
            .collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let off = times.iter().map(|time| (time / mean - 1.0).abs()).fold(0.0, f64::max);
        let work = bios[0] * costs[0] + bios[1] * costs[1];
        let share = (bios[1] * costs[1]) as f64 / work.max(1) as f64;
        let mib = counts.bytes as f64 / f64::from(MIB) / (length as f64 / SEC as f64);
        self.head(MIXED, policy)
            .with("case", self.case)
            .with("clients", groups.map(<[_]>::len).to_vec())
            .with("kib", self.groups.map(|group| group.bytes >> 10).to_vec())
            .with("ms", length / MS)
            .with("bios", bios.to_vec())
            .with("cost_ns", costs.to_vec())
            .with("p50_us", us(500).to_vec())
            .with("p99_us", us(990).to_vec())
            .with("p999_us", us(999).to_vec())
            .with("longest_us", longest.to_vec())
            .with_real("jain_time", jain(times.iter().copied()), 4)
            .with_real("large_share", share, 4)
            .with_real("time_off", off, 4)
            .with_real("busy", work as f64 / length as f64, 4)
            .with_real("mib_s", mib, 2)
            .with("starved", counts.starved)
            .with("failed", failed(counts))
            .with(SETTINGS, counts.settings.clone())
            .with("hash", format!("{:016x}", counts.hash))
    }
}

/// The name of an operation in rows, of which `write_percent` of the reads are writes.
pub(super) const fn op_name(op: Op, write_percent: u32) -> &'static str {
    match (op, write_percent) {
        (Op::Read, 0) => "read",
        (Op::Read, _) => "both",
        _ => "write",
    }
}

fn failed(counts: &RunCounts) -> u64 {
    counts.errors + counts.notices + u64::from(counts.stuck)
}

/// Adds to the rows of one load, one of each policy, what follows from the best of them: the round,
/// the longest wait in rounds, and the part of the best throughput.
fn compare(rows: Vec<Row>) -> Vec<Row> {
    let Some(first) = rows.first() else { return rows };
    let best = |of: &dyn Fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max);
    let part = |row: &Row, of: &dyn Fn(&Row) -> f64| of(row) / best(of).max(f64::MIN_POSITIVE);
    if first.table == EQUAL {
        let rate = |row: &Row| row.int("bios") as f64;
        let round_us =
            first.int("clients") as f64 * first.int("ms") as f64 * 1e3 / best(&rate).max(1.0);
        let compared = rows.iter().map(|row| {
            row.clone()
                .with_real("round_us", round_us, 1)
                .with_real("rounds", row.int("longest_us") as f64 / round_us, 2)
                .with_real("part", part(row, &rate), 4)
        });
        return compared.collect();
    }
    let (busy, bytes) = (|row: &Row| row.real("busy"), |row: &Row| row.real("mib_s"));
    let clients: u64 = first.ints("clients").iter().sum();
    let cost = first.ints("cost_ns").into_iter().max().unwrap_or(0);
    let round_us = (clients * cost) as f64 / 1e3;
    let baselines: Vec<&Row> = rows.iter().filter(|row| !row.is("policy", "fair")).collect();
    let of_best = |value: f64, of: &dyn Fn(&Row) -> f64| {
        let best = baselines.iter().map(|row| of(row)).fold(0.0, f64::max);
        // Without a baseline the part is 0; it is not judged then.
        if best > 0.0 { value / best } else { 0.0 }
    };
    let part = |row: &Row, of: &dyn Fn(&Row) -> f64| of_best(of(row), of);
    let compared = rows.iter().map(|row| {
        let longest = row.ints("longest_us").into_iter().max().unwrap_or(0);
        row.clone()
            .with_real("round_us", round_us, 1)
            .with_real("rounds", longest as f64 / round_us, 2)
            .with_real("part", part(row, &busy), 4)
            .with_real("part_bytes", part(row, &bytes), 4)
            .with_real(
                "bytes_of_equal_time",
                of_best(busy(row) * mib_of_equal_time(row), &bytes),
                4,
            )
    });
    compared.collect()
}

/// MiB in a second of device time, if each client gets the same time.
fn mib_of_equal_time(row: &Row) -> f64 {
    let of = |name| row.ints(name).into_iter().map(|value| value as f64).collect::<Vec<f64>>();
    let (clients, kib, cost_ns) = (of("clients"), of("kib"), of("cost_ns"));
    let all: f64 = clients.iter().sum();
    let group = |at: usize| clients[at] / all * kib[at] / 1024.0 * 1e9 / cost_ns[at].max(1.0);
    (0..clients.len()).map(group).sum()
}

/// Computes the verdicts of the rows: for each case, device and scheduler the worst row.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| [EQUAL, MIXED].contains(&&*row.table)).collect();
    let mut kinds: Vec<[&str; 4]> = Vec::new();
    for row in &rows {
        let kind = kind(row);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut verdicts: Vec<Verdict> =
        kinds.into_iter().flat_map(|kind| judge_kind(&rows, kind)).collect();
    let ours: Vec<&&Row> = rows.iter().filter(|row| row.is("policy", "fair")).collect();
    if !ours.is_empty() {
        let starved = ours.iter().map(|row| row.int("starved")).sum::<u64>();
        let failed = rows.iter().map(|row| row.int("failed")).sum::<u64>();
        for (what, count) in [
            ("closed loops: starved clients", starved),
            ("closed loops: hung runs and failed bios", failed),
        ] {
            verdicts.push(Verdict {
                what: what.into(),
                seed: None,
                baseline: None,
                ours: Some(count as f64),
                goal: Some(Goal::Exactly(0.0)),
                ..Verdict::default()
            });
        }
    }
    verdicts
}

/// A cause of a miss, which other rows of the experiment do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The elevator sorts what waits.
    Elevator,
    /// Requests are of the other direction, or of both.
    Direction,
    /// There are few tags.
    Tags,
}

impl Cause {
    /// The worst value of the rows without it, and of those with other tags the best; none if there is no such row.
    fn without<'a>(
        self,
        row: &Row,
        rows: impl Iterator<Item = &'a Row>,
        name: &str,
        most: bool,
    ) -> Option<f64> {
        let [device, scheduler, case, table] = kind(row);
        let (scheduler, case) = match self {
            Self::Elevator => ("none", case),
            Self::Direction => (scheduler, "equal"),
            Self::Tags => (scheduler, case),
        };
        let wanted = [device, scheduler, case, table];
        let values = rows.filter(|row| kind(row) == wanted).map(|row| row.real(name));
        if most == (self != Self::Tags) { values.reduce(f64::max) } else { values.reduce(f64::min) }
    }
}

fn kind(row: &Row) -> [&str; 4] {
    [row.word("device"), row.word("scheduler"), row.word("case"), &row.table]
}

fn judge_kind(rows: &[&Row], [device, scheduler, case, table]: [&str; 4]) -> Vec<Verdict> {
    let of = |policy: &str| -> Vec<&Row> {
        let is =
            |row: &&&Row| kind(row) == [device, scheduler, case, table] && row.is("policy", policy);
        rows.iter().filter(is).copied().collect()
    };
    let (ours, kuai) = (of("fair"), of("kuai_v3"));
    let all_ran = [ours.len(), of("legacy518").len(), kuai.len()].windows(2).all(|n| n[0] == n[1]);
    let mut verdicts = Vec::new();
    if ours.is_empty() {
        return verdicts;
    }
    let worst = |rows: &[&Row], name: &str, most: bool| {
        let values = rows.iter().map(|row| row.real(name));
        if most { values.reduce(f64::max) } else { values.reduce(f64::min) }
    };
    let mut judged = |what: &str, name: &str, goal: Goal| {
        let most = matches!(goal, Goal::AtMost(_));
        let verdict = Verdict {
            what: format!("{device}, {scheduler}, {case}: {what}"),
            baseline: worst(&kuai, name, most),
            ours: worst(&ours, name, most),
            goal: Some(goal),
            ..Verdict::default()
        };
        let at_worst = ours.iter().find(|row| Some(row.real(name)) == verdict.ours);
        let all_ours = || rows.iter().filter(|row| row.is("policy", "fair")).copied();
        verdicts.push(match (at_worst, what) {
            (Some(row), BYTES_TEXT) => {
                verdict.bounded("equal device time", row.real("bytes_of_equal_time"))
            }
            (Some(row), _) => {
                let of = |cause: Cause| cause.without(row, all_ours(), name, most);
                known::caused(verdict, row, of)
            }
            _ => verdict,
        });
    };
    judged(LONGEST_TEXT, "rounds", Goal::AtMost(ROUNDS));
    match table {
        EQUAL => judged(JAIN_TEXT, "jain", Goal::AtLeast(JAIN)),
        _ => judged(TIME_TEXT, "time_off", Goal::AtMost(TIME_OFF)),
    }
    // Without the other policies there is no best one.
    match table {
        _ if !all_ran => {}
        EQUAL => judged(PART_TEXT, "part", Goal::AtLeast(EQUAL_PART)),
        _ => {
            judged(USED_TEXT, "part", Goal::AtLeast(MIXED_PART));
            judged(BYTES_TEXT, "part_bytes", Goal::AtLeast(MIXED_PART));
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(case: &'static str, groups: [Group; 2]) -> Load {
        Load {
            case,
            device: Device::Nvme,
            scheduler: Scheduler::None,
            op: Op::Read,
            write_percent: 0,
            tags: 4,
            groups,
        }
    }

    fn with_policies(load: Load) -> Vec<Row> {
        let costs = [2_100, 374_000];
        let rows = TagPolicy::ALL.map(|policy| load.run(policy, 1, costs).unwrap());
        compare(rows.to_vec())
    }

    fn missed(rows: &[Row]) -> Vec<String> {
        judge(rows).into_iter().filter(|v| !v.is_met()).map(|v| v.what).collect()
    }

    #[test]
    fn loads_are_distinct_and_have_valid_queues() {
        let loads = all();
        for (index, load) in loads.iter().enumerate() {
            assert!(!loads[..index].contains(load), "{load:?} is there twice");
            load.queue().validate().unwrap();
        }
    }

    #[test]
    fn verdicts_of_equal_clients_follow_from_printed_rows() {
        let rows = with_policies(small("equal", [Group { clients: 16, bytes: KIB4 }, NO_GROUP]));
        let text: Vec<String> = rows.iter().map(Row::to_json).collect();
        let read: Vec<Row> = text.iter().filter_map(|line| Row::from_json(line)).collect();
        assert_eq!(judge(&read), judge(&rows));
        let good = |rounds: f64, jain: f64, part: f64| {
            let ours = read[0].clone().replaced("rounds", rounds).replaced("jain", jain);
            [vec![ours.replaced("part", part)], read[1..].to_vec()].concat()
        };
        assert_eq!(missed(&good(3.0, 0.99, 0.97)), [""; 0]);
        for rows in [good(3.01, 0.99, 0.97), good(3.0, 0.98, 0.97), good(3.0, 0.99, 0.96)] {
            assert_eq!(missed(&rows).len(), 1, "{:?}", missed(&rows));
        }
        // The round is that of the best of the three.
        let best = read.iter().map(|row| row.int("bios")).max().unwrap() as f64;
        let round_us = 16.0 * read[0].int("ms") as f64 * 1e3 / best;
        assert!(read.iter().all(|row| (row.real("round_us") - round_us).abs() < 0.1));
        assert_eq!(read.iter().map(|row| row.real("part")).fold(0.0, f64::max), 1.0);
    }

    #[test]
    fn clients_of_two_sizes_are_judged_by_device_time_and_both_throughputs() {
        let groups = [Group { clients: 8, bytes: KIB4 }, Group { clients: 8, bytes: MIB }];
        let rows = with_policies(small("half-large", groups));
        let row = &rows[0];
        assert_eq!((row.ints("clients"), row.ints("kib")), (vec![8, 8], vec![4, 1024]));
        assert_eq!(row.real("round_us"), 16.0 * 374.0);
        let good = |off: f64, part: f64, bytes: f64| {
            let ours = row.clone().replaced("rounds", 1).replaced("time_off", off);
            let ours = ours.replaced("part", part).replaced("part_bytes", bytes);
            [vec![ours.replaced("starved", 0)], rows[1..].to_vec()].concat()
        };
        assert_eq!(missed(&good(0.05, 1.0, 1.0)), [""; 0]);
        for rows in [good(0.06, 1.0, 1.0), good(0.05, 0.99, 1.0), good(0.05, 1.0, 0.99)] {
            assert_eq!(missed(&rows).len(), 1, "{:?}", missed(&rows));
        }
        // Without the baselines throughput is not judged.
        assert_eq!(missed(&good(0.05, 0.1, 0.1)[..1]), [""; 0]);
    }
}
