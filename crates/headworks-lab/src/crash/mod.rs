//! `crash`: power cuts and process deaths at random moments under load; the oracle checks every byte
//! afterwards.
//!
//! The simulation and its oracle are [`headworks_sim::crash`]; here a run becomes rows with raw
//! counts, and verdicts: the run was as long as requested, passed every coverage point, detected
//! the devices that lie about flushes, and lost some unflushed data (a run that never loses any
//! tests nothing). A violation ends the run without a report.

use headworks_core::WriteMode;
use headworks_sim::crash::{COVERED_AFTER, CrashRun, LYING_EVERY, SHARDS};
use headworks_sim::oracle::CutReport;
use headworks_sim::{Failure, coverage::Point};

use crate::report::{Goal, Report, Row, Verdict};

/// Titles of the verdicts, which tests look for.
const NEVER: &str = "coverage points not passed";
const FOUND: &str = "worlds in which a lying device was detected";
const LOST: &str = "cells that lost an unflushed version at a cut";

/// Options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashOptions {
    /// Seed of the first scenario.
    pub seed: u64,
    /// Forces the number of shards: 1, 2 or 4.
    pub shards: Option<u16>,
}

/// Runs scenarios while `keep_running` returns true for the run so far.
///
/// # Errors
/// The first violated rule.
pub fn run(
    options: CrashOptions,
    mut keep_running: impl FnMut(&CrashRun) -> bool,
) -> Result<CrashRun, Box<Failure>> {
    let mut crash = CrashRun::new(options.seed, options.shards);
    while keep_running(&crash) {
        crash.run_next()?;
    }
    Ok(crash)
}

/// The report of a run that began at `seed` and was to make `cuts` cuts, and as many process deaths.
#[must_use]
pub fn report(crash: &CrashRun, seed: u64, cuts: u64) -> Report {
    let rows = rows(crash, seed);
    Report {
        title: "crash: power cuts and process deaths at any moment under random load".into(),
        notes: vec![
            "cells: sectors, or parts of them, read back after cuts; written: since the cut before"
                .into(),
            "old: of these, what did not hold the newest version, as is allowed without a flush"
                .into(),
            format!(
                "1 world in {LYING_EVERY} has a device that lies about flushes; its cells are not counted"
            ),
        ],
        verdicts: judge(&rows, cuts),
        rows,
    }
}

fn rows(crash: &CrashRun, seed: u64) -> Vec<Row> {
    let mut rows = vec![
        Row::new("run")
            .with("seed", seed)
            .with("scenarios", crash.scenarios)
            .with("cuts", crash.cuts)
            .with("deaths", crash.deaths)
            .with("bios", crash.bios)
            .with("hash", format!("{:016x}", crash.hash())),
    ];
    for (shards, modes) in SHARDS.iter().zip(&crash.survived) {
        for (mode, CutReport { cells, unflushed: open, stale: old }) in
            WriteMode::ALL.iter().zip(modes)
        {
            if crash.shards.is_none_or(|only| only == *shards) {
                let row = Row::new("found after cuts").with("shards", *shards);
                let row = row.with("mode", mode.name()).with("cells", *cells);
                rows.push(row.with("written", *open).with("old", *old));
            }
        }
    }
    let lies = crash.lies;
    rows.push(Row::new("lying devices").with("worlds", lies.worlds).with("found", lies.found));
    let asked: Vec<_> = crash.asked().collect();
    for point in Point::ALL {
        rows.push(
            Row::new("points")
                .with("times", crash.coverage.count(*point))
                .with("asked", u64::from(asked.contains(&point)))
                .with("point", point.name()),
        );
    }
    rows
}

/// Computes the verdicts of the rows; a short run need not pass every coverage point.
#[must_use]
pub fn judge(rows: &[Row], cuts: u64) -> Vec<Verdict> {
    let of = |table: &'static str| rows.iter().filter(move |row| row.table == table);
    let sum = |table, name| of(table).map(|row| row.int(name)).sum::<u64>() as f64;
    let missed =
        of("points").filter(|row| row.int("times") == 0 && row.int("asked") == 1).count() as f64;
    let whole = cuts >= COVERED_AFTER;
    let verdict = |what: &str, ours, goal: Option<Goal>| Verdict {
        what: what.into(),
        seed: None,
        baseline: None,
        ours: Some(ours),
        goal,
        ..Verdict::default()
    };
    let mut verdicts = vec![
        verdict("power cuts", sum("run", "cuts"), Some(Goal::AtLeast(cuts as f64))),
        verdict("process deaths", sum("run", "deaths"), Some(Goal::AtLeast(cuts as f64))),
        verdict(NEVER, missed, whole.then_some(Goal::Exactly(0.0))),
        verdict(FOUND, sum("lying devices", "found"), whole.then_some(Goal::AtLeast(1.0))),
    ];
    for mode in WriteMode::ALL {
        let old = of("found after cuts").filter(|row| row.is("mode", mode.name()));
        let old: u64 = old.map(|row| row.int("old")).sum();
        let goal = whole.then_some(Goal::AtLeast(1.0));
        verdicts.push(verdict(&format!("{LOST}, {}", mode.name()), old as f64, goal));
    }
    verdicts
}

/// The command that reproduces a failure.
#[must_use]
pub fn repeat(seed: u64, shards: Option<u16>) -> String {
    let shards = shards.map_or(String::new(), |shards| format!(" --shards {shards}"));
    format!("headworks-lab run crash --seed {seed} --cuts 1{shards}")
}

#[cfg(test)]
mod tests;
