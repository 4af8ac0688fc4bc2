//! The verdicts of seed 000, computed from its rows.

use super::published::JOBS;
use super::runs::{BASELINES, DEEP, DEFAULTS, OURS, PIECES_256};
use super::{CACHES, JITTERS_US, SHOWN, TAGS, fit};
use crate::report::{Figure, Goal, Row, Verdict};

/// Goal at every number of jobs, as a part of the single job's rate.
const GOAL: f64 = 0.95;
/// Goal for the root mean square error of the fit.
const FIT: f64 = 0.05;
/// Expected gain from sorting all waiting requests.
const STRETCH: f64 = 1.1;
/// Goal for Jain's index of equal jobs.
const JAIN: f64 = 0.99;
/// Minimum answers per job for a comparison of shares: with fewer, the end of the window decides.
const ANSWERS: u64 = 5;

/// Rate in MiB/s, from the counts.
fn rate(row: &Row) -> f64 {
    row.int("bytes") as f64 / row.int("seconds") as f64 / f64::from(1 << 20)
}

fn jain(row: &Row) -> f64 {
    let (sum, squares) = (row.int("bios") as f64, row.int("bios_squared") as f64);
    if squares == 0.0 { 1.0 } else { sum * sum / (row.int("jobs") as f64 * squares) }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let tables = [BASELINES, OURS, DEEP, DEFAULTS, PIECES_256];
    let runs: Vec<&Row> = rows.iter().filter(|row| tables.contains(&&*row.table)).collect();
    if runs.is_empty() {
        return Vec::new();
    }
    let mut verdicts: Vec<Verdict> =
        CACHES.iter().filter_map(|&cache_mib| fitted(rows, cache_mib)).collect();
    for (policy, column) in [("legacy518", 0), ("kuai_v3", 1)] {
        for (jobs, before, after) in JOBS {
            let measured = [before, after][column];
            verdicts.extend(band(rows, &runs, policy, jobs, measured));
        }
    }
    verdicts.extend(bands(rows, &runs));
    for tags in TAGS {
        verdicts.extend(JOBS.iter().filter_map(|row| ours(&runs, tags, (row.0, row.2))));
    }
    verdicts.extend(worst(&runs));
    verdicts.extend([DEFAULTS, PIECES_256].into_iter().filter_map(|table| least_of(&runs, table)));
    verdicts.extend(even(&runs));
    verdicts.extend(stretch(&runs));
    // A baseline may starve a job; that is its result, not a failure of the run.
    let starved = |row: &Row| if row.is("policy", "fair") { row.int("starved") } else { 0 };
    let hung =
        runs.iter().map(|row| row.int("hung") + row.int("failed") + starved(row)).sum::<u64>();
    verdicts.push(Verdict {
        what: "hung runs, failed bios and starved jobs".into(),
        seed: None,
        baseline: None,
        ours: Some(hung as f64),
        goal: Some(Goal::Exactly(0.0)),
        ..Verdict::default()
    });
    verdicts
}

fn is_device(row: &Row, cache_mib: u64) -> bool {
    row.is("device", &format!("hdd-{cache_mib}"))
}

/// The rows of a drive against the single-job table.
fn fit_rows(rows: &[Row], cache_mib: u64) -> Vec<Row> {
    let is = |row: &&Row| row.table.starts_with("fit") && row.int("cache_mib") == cache_mib;
    rows.iter().filter(is).cloned().collect()
}

fn fitted(rows: &[Row], cache_mib: u64) -> Option<Verdict> {
    let rows = fit_rows(rows, cache_mib);
    (!rows.is_empty()).then(|| Verdict {
        what: format!("the disk with {cache_mib} MiB against the single-job table, rms error"),
        seed: None,
        baseline: None,
        ours: Some(fit::rms(&rows)),
        goal: Some(Goal::AtMost(FIT)),
        ..Verdict::default()
    })
}

/// The minimum and the maximum of a baseline over unpublished parameters, and both widened by the
/// disk's fitting error. `None` if the band is incomplete.
fn edges(rows: &[Row], runs: &[&Row], policy: &str, jobs: u32) -> Option<[(f64, f64); 2]> {
    let is = |row: &&&Row| {
        row.table == BASELINES && row.is("policy", policy) && row.int("jobs") == u64::from(jobs)
    };
    let found: Vec<&&Row> = runs.iter().filter(is).collect();
    if found.len() < CACHES.len() * TAGS.len() * JITTERS_US.len() {
        return None;
    }
    let errors = CACHES.map(|cache_mib| fit::rms(&fit_rows(rows, cache_mib)));
    let edge = |row: &&&Row, side: f64| {
        let drive = CACHES.iter().position(|&cache_mib| is_device(row, cache_mib));
        rate(row) * (1.0 + side * errors[drive.expect("the drive is one of the band's")])
    };
    let between = |side: f64| {
        let low = found.iter().map(|row| edge(row, -side)).fold(f64::MAX, f64::min);
        let high = found.iter().map(|row| edge(row, side)).fold(0.0, f64::max);
        (low, high)
    };
    Some([between(0.0), between(1.0)])
}

/// Whether the published value lies in the widened band.
fn band(rows: &[Row], runs: &[&Row], policy: &str, jobs: u32, measured: f64) -> Option<Verdict> {
    let [_, (low, high)] = edges(rows, runs, policy, jobs)?;
    Some(Verdict {
        what: format!(
            "{policy}, {jobs} jobs: the seed's MiB/s lies in the band, widened by the fit's error"
        ),
        seed: Some(measured),
        baseline: shown(runs, policy, jobs),
        goal: Some(Goal::Within(low, high)),
        ..Verdict::default()
    })
}

/// Today's number of rows outside.
const OUTSIDE: Figure = Figure::new(8.0);

/// The published values outside the bands as they are, and how little the bands tell apart.
fn bands(rows: &[Row], runs: &[&Row]) -> Vec<Verdict> {
    let (mut outside, mut beyond, mut other, mut complete) = (0u32, 0u32, 0u32, 0u32);
    let mut furthest = 0.0f64;
    for (policy, column) in [("legacy518", 0), ("kuai_v3", 1)] {
        for (jobs, before, after) in JOBS {
            let Some([(low, high), (least, most)]) = edges(rows, runs, policy, jobs) else {
                continue;
            };
            let [measured, others] = [[before, after], [after, before]][column];
            complete += 1;
            outside += u32::from(!(low..=high).contains(&measured));
            beyond += u32::from(!(least..=most).contains(&measured));
            furthest = furthest.max(low - measured).max(measured - high);
            other += u32::from((least..=most).contains(&others));
        }
    }
    if complete == 0 {
        return Vec::new();
    }
    let verdict = |what: &str, ours: f64, goal| Verdict {
        what: what.into(),
        ours: Some(ours),
        goal,
        ..Verdict::default()
    };
    vec![
        verdict(
            "rows of 20 outside the band without the fit's error",
            outside.into(),
            Some(Goal::Exactly(0.0)),
        )
        .caused("the error of the fit", OUTSIDE, beyond.into()),
        verdict("the furthest of these from its band, MiB/s", furthest, None),
        verdict("rows of 20 whose band also holds the other kernel's figure", other.into(), None),
    ]
}

/// The displayed point of a baseline's band.
fn shown(runs: &[&Row], policy: &str, jobs: u32) -> Option<f64> {
    let (cache_mib, tags, jitter_us) = SHOWN;
    let is = |row: &&&Row| {
        row.table == BASELINES
            && row.is("policy", policy)
            && row.int("jobs") == u64::from(jobs)
            && row.int("tags") == u64::from(tags)
            && row.int("jitter_us") == u64::from(jitter_us)
            && is_device(row, cache_mib)
    };
    runs.iter().find(is).map(|row| rate(row))
}

/// Our row with mq-deadline and the displayed drive.
fn find<'a>(runs: &[&'a Row], table: &str, tags: u64, jobs: u32) -> Option<&'a Row> {
    let is = |row: &&&Row| {
        row.table == table
            && row.is("scheduler", "mq-deadline")
            && is_device(row, SHOWN.0)
            && row.int("tags") == tags
            && row.int("jobs") == u64::from(jobs)
    };
    runs.iter().find(is).copied()
}

fn ours(runs: &[&Row], tags: u32, (jobs, patched): (u32, f64)) -> Option<Verdict> {
    let single = find(runs, OURS, tags.into(), 1)?;
    let row = find(runs, OURS, tags.into(), jobs)?;
    Some(Verdict {
        what: format!("fair, {tags} tags, {jobs} jobs, MiB/s"),
        seed: Some(patched),
        baseline: shown(runs, "legacy518", jobs),
        ours: Some(rate(row)),
        goal: Some(Goal::AtLeast(GOAL * rate(single))),
        ..Verdict::default()
    })
}

/// The least part of the single job's rate in a table of one queue.
fn least_of(runs: &[&Row], table: &str) -> Option<Verdict> {
    let least = |policy: &str| {
        let of = || runs.iter().filter(|row| row.table == table && row.is("policy", policy));
        let single = of().find(|row| row.int("jobs") == 1)?;
        of().map(|row| rate(row) / rate(single)).reduce(f64::min)
    };
    Some(Verdict {
        what: format!("{table}: least part of the 1-job rate"),
        baseline: least("legacy518"),
        ours: Some(least("fair")?),
        goal: Some(Goal::AtLeast(GOAL)),
        ..Verdict::default()
    })
}

/// The minimum part of the single job's rate over all drives, elevators and tags.
fn worst(runs: &[&Row]) -> Option<Verdict> {
    let part = |row: &&&Row| {
        let same = |single: &&&Row| {
            single.table == OURS
                && single.int("jobs") == 1
                && ["scheduler", "device"].iter().all(|name| single.is(name, row.word(name)))
                && single.int("tags") == row.int("tags")
        };
        runs.iter().find(same).map(|single| rate(row) / rate(single))
    };
    let worst = runs.iter().filter(|row| row.table == OURS).filter_map(|row| part(&row));
    let worst = worst.reduce(f64::min)?;
    Some(Verdict {
        what: "least part of the 1-job rate, any drive, elevator, tags".into(),
        seed: Some(57.9 / 67.7),
        baseline: None,
        ours: Some(worst),
        goal: Some(Goal::AtLeast(GOAL)),
        ..Verdict::default()
    })
}

fn even(runs: &[&Row]) -> Option<Verdict> {
    let counted = |row: &&&Row| row.table == OURS && row.int("bios") >= ANSWERS * row.int("jobs");
    let least = runs.iter().filter(counted).map(|row| jain(row)).reduce(f64::min)?;
    Some(Verdict {
        what: "Jain's index of bios per job, the least".into(),
        seed: None,
        baseline: None,
        ours: Some(least),
        goal: Some(Goal::AtLeast(JAIN)),
        ..Verdict::default()
    })
}

/// The stretch goal, for information only.
fn stretch(runs: &[&Row]) -> Vec<Verdict> {
    let Some(single) = find(runs, DEEP, 4096, 1) else {
        return Vec::new();
    };
    let verdict = |jobs: u32| {
        let row = find(runs, DEEP, 4096, jobs)?;
        Some(Verdict {
            what: format!(
                "stretch: all sorted, {jobs} jobs, part of the 1-job rate (wanted {STRETCH})"
            ),
            seed: None,
            baseline: None,
            ours: Some(rate(row) / rate(single)),
            goal: None,
            ..Verdict::default()
        })
    };
    [64, 128, 256, 512].into_iter().filter_map(verdict).collect()
}
