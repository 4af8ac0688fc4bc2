//! Seed 001 on real threads: rows from the cells of `contention`, and their verdicts, with mq-deadline and with bfq.
//!
//! Times are those of a shared machine: rounds of all cells alternate, and medians are compared.
//! The seed's own ratio (batch against one by one) has no goal: it needs contention of many cores.

use headworks_core::{ConfigError, Scheduler};

use crate::contention::{ContentionCell, ContentionOptions, Guards, Method, Placement, Round, run};
use crate::live::machine;
use crate::report::{Goal, Report, Row, Verdict};
use crate::row_filter::RowFilter;

/// The series' gain for mq-deadline in its fourth version: 594k of 256k (475k of 263k in the second).
const SEED_GAIN: f64 = 2.32;
/// The seed's gain for bfq: 292k of 124k.
const BFQ_GAIN: f64 = 2.35;
/// The way that the verdicts are about.
const OURS: &str = "feeders drive";
/// The elevators that the seed measured.
const ELEVATORS: [Scheduler; 2] = [Scheduler::MqDeadline, Scheduler::Bfq];

/// Runs the cells of the experiment.
///
/// # Errors
/// Invalid options, or a thread that could not start.
pub fn run_all(filter: &RowFilter) -> Result<Report, ConfigError> {
    let options = ContentionOptions { seed: filter.seed, ..ContentionOptions::default() };
    if !filter.has_jobs(options.jobs) || !filter.has_device("null") {
        return Ok(Report::default());
    }
    let mut rows = Vec::new();
    for scheduler in ELEVATORS {
        let options = ContentionOptions { scheduler, ..options };
        let cells = run(&options).map_err(|message| ConfigError::new("threads", message))?;
        rows.extend(cells.iter().map(|cell| row(cell, &options)));
    }
    let verdicts = judge(&rows);
    let rows = [vec![machine()], rows].concat();
    Ok(Report {
        title: "seed-001 on threads".into(),
        notes: vec![
            format!(
                "threads: fio's job of the seed (randwrite 4k, iodepth {}, batches of {}) on a null device; {} rounds of {} s \
                 in rotation, medians; cpu is of all threads",
                options.iodepth, options.batch, options.rounds, options.seconds
            ),
            "threads: `elevator` has the elevator and the merge index alone behind the lock and nothing of a block layer \
             beside them, so it is a bound and no competitor; `path` does all that ours does"
                .into(),
            "threads: `feeders drive` is ours: a job that finds nobody driving the shard drives it; `owner's thread drives` is \
             the same with `Drive::Thread`"
                .into(),
        ],
        verdicts,
        rows,
    })
}

fn row(cell: &ContentionCell, options: &ContentionOptions) -> Row {
    let guards = match cell.way {
        Method::Locked(Guards::Elevator, ..) => "elevator",
        Method::Locked(Guards::Shard, ..) => "path",
        Method::Feeders | Method::Rings => "nothing",
    };
    let placement = if cell.placement == Placement::Pinned { "pinned" } else { "free" };
    let (iops, least, most) = cell.iops();
    let (cpu, ..) = cell.spread(|round| round.cpu_ns_per_request());
    let requests: u64 = cell.rounds.iter().map(|round| round.counted_requests).sum();
    let errors: u64 = cell.rounds.iter().map(|round| round.errors).sum();
    let locks: u64 = cell.rounds.iter().map(|round| round.locks.acquired()).sum();
    let dispatch_locks: u64 = cell.rounds.iter().map(|round| round.locks.dispatch).sum();
    let contended: u64 = cell.rounds.iter().map(|round| round.locks.contended).sum();
    Row::new("threads")
        .with("scheduler", options.scheduler.name())
        .with("way", cell.way.name())
        .with("guarded", guards)
        .with("threads", cell.threads)
        .with("placement", placement)
        .with("batch", options.batch)
        .with("requests", requests)
        .with("round_requests", per_round(cell, |round| round.requests))
        .with("round_ns", per_round(cell, |round| round.elapsed_ns))
        .with("locks", locks)
        .with("dispatch_locks", dispatch_locks)
        .with("contended", contended)
        .with("inversions", cell.order.inversions)
        .with("errors", errors)
        .with_real("iops", iops, 0)
        .with_real("iops_least", least, 0)
        .with_real("iops_most", most, 0)
        .with_real("cpu_ns", cpu, 1)
}

fn per_round(cell: &ContentionCell, count: impl Fn(&Round) -> u64) -> Vec<u64> {
    cell.rounds.iter().map(count).collect()
}

/// The median rate of a row's rounds, in requests per second.
fn iops(row: &Row) -> f64 {
    let rounds = row.ints("round_requests").into_iter().zip(row.ints("round_ns"));
    let mut rates: Vec<f64> =
        rounds.map(|(requests, ns)| requests as f64 * 1e9 / ns.max(1) as f64).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

/// The best median of the selected rows.
fn best(rows: &[Row], placement: &str, threads: u64, wanted: impl Fn(&Row) -> bool) -> Option<f64> {
    rows.iter()
        .filter(|row| row.is("placement", placement) && row.int("threads") == threads)
        .filter(|row| wanted(row))
        .map(iops)
        .reduce(f64::max)
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows = rows.iter().filter(|row| row.table == "threads");
    let of = |scheduler: Scheduler| -> Vec<Row> {
        rows.clone().filter(|row| row.is("scheduler", scheduler.name())).cloned().collect()
    };
    let (deadline, bfq) = (of(Scheduler::MqDeadline), of(Scheduler::Bfq));
    let mut verdicts = judge_one(&deadline, Scheduler::MqDeadline);
    if !bfq.is_empty() {
        verdicts.extend(judge_one(&bfq, Scheduler::Bfq));
    }
    verdicts
}

fn judge_one(rows: &[Row], scheduler: Scheduler) -> Vec<Verdict> {
    let is_bfq = scheduler == Scheduler::Bfq;
    let prefix = if is_bfq { "bfq, " } else { "" };
    let many = rows.iter().map(|row| row.int("threads")).max().unwrap_or(0);
    let mut verdicts = Vec::new();
    for (placement, threads) in [("pinned", 2), ("free", many)] {
        let best = |wanted: &dyn Fn(&Row) -> bool| best(rows, placement, threads, wanted);
        let Some(ours) = best(&|row| row.is("way", OURS)) else {
            continue;
        };
        let mut against = |what: &str, old: Option<f64>, goal: Option<f64>| {
            let Some(old) = old else { return };
            let verdict = Verdict {
                what: format!("{prefix}{threads} threads, {placement}: {OURS}, times {what}"),
                baseline: Some(old),
                ours: Some(ours / old),
                goal: goal.map(Goal::AtLeast),
                ..Verdict::default()
            };
            // Several feeders of one shard are not faster than one that has it for itself.
            let one = self::best(rows, "pinned", 1, |row| row.is("way", OURS));
            let one = one.or_else(|| self::best(rows, "free", 1, |row| row.is("way", OURS)));
            verdicts.push(match one {
                Some(one) => verdict.bounded("one feeder alone", one / old),
                None => verdict,
            });
        };
        let locked = |guarded: &'static str, how: &'static str| {
            move |row: &Row| row.word("way").ends_with(how) && row.is("guarded", guarded)
        };
        let gain = if is_bfq { BFQ_GAIN } else { SEED_GAIN };
        let path = best(&locked("path", "one by one"));
        against("the whole path, best lock, one by one", path, Some(gain));
        let path = best(&locked("path", "batch"));
        against("the whole path in batches, best lock", path, Some(1.0));
        let owner = best(&|row: &Row| row.is("way", "owner's thread drives"));
        against("an owner's thread that drives", owner, None);
        // The elevator alone does not do the same work, so it has no goal.
        let alone = best(&locked("elevator", "one by one"));
        against("the elevator alone (a bound), best lock, one by one", alone, None);
        let spin = |row: &Row| row.is("way", "spin lock, one by one");
        against("the elevator alone, spin lock (the kernel's kind), one by one", best(&spin), None);
        // The seed's own fix does not leave the lock: it takes several requests under it.
        let alone = best(&locked("elevator", "batch"));
        against("the elevator alone in batches (the seed's fix), best lock", alone, None);
        let batch = best(&|row| row.is("way", "spin lock, batch"));
        if let (Some(batch), Some(one)) = (batch, best(&spin)) {
            verdicts.push(Verdict {
                what: format!(
                    "{prefix}{threads} threads, {placement}: spin lock, batch by one by one (contention of many cores, not \
                     reproducible here)"
                ),
                seed: Some(if is_bfq { BFQ_GAIN } else { SEED_GAIN }),
                baseline: None,
                ours: Some(batch / one),
                goal: None, ..Verdict::default()
});
        }
    }
    verdicts.extend(judge_counts(rows, many, prefix));
    verdicts
}

fn judge_counts(rows: &[Row], many: u64, prefix: &str) -> Vec<Verdict> {
    let rings = || rows.iter().filter(|row| row.is("guarded", "nothing"));
    let count = |what: &str, ours: f64, goal| Verdict {
        what: format!("{prefix}{what}"),
        seed: None,
        baseline: None,
        ours: Some(ours),
        goal: Some(goal),
        ..Verdict::default()
    };
    let per_request = |name: &'static str| {
        move |row: &Row| row.int(name) as f64 / row.int("requests").max(1) as f64
    };
    let batches = rows
        .iter()
        .filter(|row| row.word("way").ends_with("batch") && row.is("guarded", "elevator"));
    let mut verdicts = vec![
        count(
            "lock acquisitions of a batch cell to take a request out, the most",
            batches.map(per_request("dispatch_locks")).fold(0.0, f64::max),
            Goal::AtMost(0.25),
        ),
        count(
            "inversions where feeders or the owner's thread drive",
            rings().map(|row| row.int("inversions") as f64).sum(),
            Goal::Exactly(0.0),
        ),
        count(
            "failed bios where feeders or the owner's thread drive",
            rings().map(|row| row.int("errors") as f64).sum(),
            Goal::Exactly(0.0),
        ),
    ];
    let lone = best(rows, "free", 1, |row| row.is("way", OURS));
    let all = best(rows, "free", many, |row| row.is("way", OURS));
    if let (Some(lone), Some(all)) = (lone, all) {
        verdicts.push(Verdict {
            what: format!("{prefix}{many} feeders, times one feeder"),
            seed: None,
            baseline: Some(lone),
            ours: Some(all / lone),
            goal: Some(Goal::AtLeast(0.9)),
            ..Verdict::default()
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(way: &str, guarded: &str, threads: u64, placement: &str, iops: f64) -> Row {
        Row::new("threads")
            .with("scheduler", "mq-deadline")
            .with("way", way)
            .with("guarded", guarded)
            .with("threads", threads)
            .with("placement", placement)
            .with("requests", 100)
            .with("locks", if guarded == "nothing" { 0 } else { 300 })
            .with("dispatch_locks", if way.ends_with("batch") { 13 } else { 100 })
            .with("inversions", 0)
            .with("errors", 0)
            .with("round_requests", vec![1, iops as u64, 1_000_000])
            .with("round_ns", vec![1_000_000_000; 3])
    }

    #[test]
    fn best_baseline_cell_is_compared() {
        let mut rows = vec![
            cell("mutex, one by one", "elevator", 16, "free", 150.0),
            cell("spin lock, one by one", "elevator", 16, "free", 160.0),
            cell("spin lock, batch", "elevator", 16, "free", 320.0),
            cell(OURS, "nothing", 16, "free", 190.0),
            cell(OURS, "nothing", 1, "free", 200.0),
            cell("whole path, mutex, one by one", "path", 16, "free", 70.0),
            cell("whole path, spin lock, one by one", "path", 16, "free", 80.0),
            cell("whole path, mutex, batch", "path", 16, "free", 190.0),
            cell("owner's thread drives", "nothing", 16, "free", 100.0),
        ];
        let met = |rows: &[Row]| judge(rows).iter().all(Verdict::is_met);
        assert!(met(&rows));
        let round = rows[3].clone().replaced("round_requests", vec![190, 10, 5]);
        assert_eq!(iops(&round), 10.0);
        let of = |rows: &[Row], what: &str| {
            let found = judge(rows).into_iter().find(|verdict| verdict.what.contains(what));
            found.and_then(|verdict| verdict.ours)
        };
        assert_eq!(of(&rows, "whole path, best lock, one by one"), Some(190.0 / 80.0));
        assert_eq!(of(&rows, "whole path in batches"), Some(1.0));
        assert_eq!(of(&rows, "(a bound), best lock"), Some(190.0 / 160.0));
        assert_eq!(of(&rows, "an owner's thread"), Some(1.9));
        assert_eq!(of(&rows, "not reproducible"), Some(2.0));
        assert_eq!(of(&rows, "the seed's fix"), Some(190.0 / 320.0));
        assert_eq!(of(&rows, "feeders, times one"), Some(0.95));
        rows[5] = cell("whole path, mutex, one by one", "path", 16, "free", 110.0);
        assert!(!met(&rows), "1.73 is less than the seed gained");
        rows.remove(5);
        rows[6] = cell("whole path, mutex, batch", "path", 16, "free", 191.0);
        assert!(!met(&rows), "the same work in batches is faster");
        rows.remove(6);
        rows[3] = rows[3].clone().replaced("inversions", 1);
        assert!(!met(&rows));
    }

    #[test]
    fn bfq_is_judged_against_the_whole_path_one_by_one() {
        let bfq = |row: Row| row.replaced("scheduler", "bfq");
        let rows = |ours: f64| {
            [
                bfq(cell("mutex, one by one", "elevator", 2, "pinned", 1000.0)),
                bfq(cell("whole path, mutex, one by one", "path", 2, "pinned", 90.0)),
                bfq(cell("whole path, spin lock, one by one", "path", 2, "pinned", 100.0)),
                bfq(cell(OURS, "nothing", 2, "pinned", ours)),
            ]
        };
        let missed = |ours| {
            let verdicts = judge(&rows(ours));
            let missed = verdicts.into_iter().filter(|verdict| !verdict.is_met());
            missed.map(|verdict| verdict.what).collect::<Vec<_>>()
        };
        assert!(missed(236.0).is_empty(), "{:?}", missed(236.0));
        assert_eq!(missed(234.0).len(), 1);
        assert!(
            missed(234.0)[0].starts_with("bfq, 2 threads, pinned: feeders drive, times the whole")
        );
    }
}
