//! The verdicts of seed 002, computed from its rows.

use crate::report::{Goal, Row, Verdict};

/// The seed's rate with 1000 writers: 600 of 700 MB/s.
const SEED_THOUSAND: f64 = 600.0 / 700.0;
/// The seed's rate with 100 writers: 650 of 700 MB/s.
const SEED_HUNDRED: f64 = 650.0 / 700.0;
/// The seed's 100 dd on a disk in kB/s: foreground write-back, pauses only.
const SEED_DISK: [f64; 2] = [37_535.0, 41_594.0];
/// The seed's fs_mark in files per second.
const SEED_FILES: [f64; 2] = [1182.8, 1146.8];
/// `wake-ups = writers / pause` for 1000 writers and 200 ms, plus a tenth.
const WAKEUPS: f64 = 5500.0;
const PAUSE_MS: f64 = 200.0;

/// A table's rows, with lookup by configuration.
struct Rows<'a>(Vec<&'a Row>);

impl<'a> Rows<'a> {
    fn all(&self, case: &'a str, throttle: &'a str) -> impl Iterator<Item = &'a Row> {
        let is = move |row: &&&Row| row.is("case", case) && row.is("throttle", throttle);
        self.0.iter().filter(is).copied().collect::<Vec<_>>().into_iter()
    }

    /// The row with the largest cache.
    fn one(&self, case: &'a str, throttle: &'a str, writers: u64) -> Option<&'a Row> {
        let all = self.all(case, throttle).filter(|row| row.int("writers") == writers);
        all.max_by_key(|row| row.int("pool_mib"))
    }
}

fn verdict(what: &str, ours: Option<f64>, goal: Option<Goal>) -> Option<Verdict> {
    let what = what.to_string();
    ours.map(|ours| Verdict {
        what,
        seed: None,
        baseline: None,
        ours: Some(ours),
        goal,
        known: None,
    })
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

fn least(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::min)
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows = Rows(rows.iter().filter(|row| row.table == "runs").collect());
    let mut verdicts = scaling(&rows);
    verdicts.extend(disk(&rows));
    verdicts.extend(changes(&rows));
    verdicts.extend(everywhere(&rows));
    verdicts
}

fn scaling(rows: &Rows<'_>) -> Vec<Verdict> {
    let ratio = |throttle, writers| {
        let (many, one) =
            (rows.one("scaling", throttle, writers)?, rows.one("scaling", throttle, 1)?);
        Some(many.real("mb_s") / one.real("mb_s"))
    };
    let mut verdicts = Vec::new();
    for (writers, seed) in [(100, SEED_HUNDRED), (1000, SEED_THOUSAND)] {
        let (old, ours) = (ratio("foreground", writers), ratio("ioless", writers));
        let what = format!("{writers} writers' rate, part of one writer's");
        let found = verdict(&what, ours, Some(Goal::AtLeast(0.99)));
        verdicts.extend(found.map(|found| Verdict { seed: Some(seed), baseline: old, ..found }));
        let what = format!("baseline: {writers} writers' rate, part of one writer's (calibrated)");
        // Chunks of 6 MiB hardly show the cost; a thousand writers shorten each other's chunks.
        let found = verdict(&what, old, (writers == 1000).then_some(Goal::AtMost(0.9)));
        verdicts.extend(found.map(|found| Verdict { seed: Some(seed), ..found }));
    }
    let ours = rows.one("scaling", "ioless", 1000);
    let old = rows.one("scaling", "foreground", 1000);
    let mut beside = |what: &str, cell: &str, goal| {
        let found = verdict(what, ours.map(|row| row.real(cell)), Some(goal));
        let baseline = old.map(|row| row.real(cell));
        verdicts.extend(found.map(|found| Verdict { baseline, ..found }));
    };
    beside("1000 writers: wake-ups of writers a second", "wake_s", Goal::AtMost(WAKEUPS));
    beside("1000 writers: p99 of pauses, ms", "p99_ms", Goal::AtMost(PAUSE_MS));
    verdicts
}

fn disk(rows: &Rows<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut beside = |what: &str, case, writers, cell, seed: [f64; 2], goal| {
        let (ours, old) =
            (rows.one(case, "ioless", writers), rows.one(case, "foreground", writers));
        let (Some(ours), Some(old)) = (ours, old) else {
            return;
        };
        let found = verdict(what, Some(ours.real(cell) / old.real(cell)), Some(goal));
        let seed = Some(seed[1] / seed[0]);
        verdicts.extend(found.map(|found| Verdict { seed, baseline: Some(1.0), ..found }));
    };
    let rate = "disk, 100 writers: rate over the baseline's";
    beside(rate, "disk", 100, "mb_s", SEED_DISK, Goal::AtLeast(1.0));
    let files = "small files a second over the baseline's";
    beside(files, "files", 12, "files_s", SEED_FILES, Goal::AtLeast(0.95));
    let two = least(rows.all("two", "ioless").map(|row| row.real("util")));
    verdicts.extend(verdict("two devices 10:1: the less busy one", two, Some(Goal::AtLeast(0.95))));
    verdicts
}

fn changes(rows: &Rows<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let names = [("bandwidth", "700 -> 200 -> 700 MB/s"), ("writers", "writers x 10, / 10")];
    for (case, what) in names {
        // The first phase is a cold start, which is a case of its own.
        let settled = rows.all(case, "ioless").flat_map(|row| row.ints("settled_ms")[1..].to_vec());
        let what = format!("{what}: the slowest to settle, ms");
        let worst = most(settled.map(|ms| ms as f64));
        verdicts.extend(verdict(&what, worst, Some(Goal::AtMost(1000.0))));
    }
    let jain = least(rows.all("cold", "ioless").map(|row| row.real("jain")));
    verdicts.extend(verdict("cold start of 1000: Jain's index", jain, Some(Goal::AtLeast(0.99))));
    let exit = rows.all("exit", "ioless").map(|row| {
        let (before, after) = (row.real("wake_gb_before"), row.real("wake_gb_after"));
        if before == 0.0 { f64::MAX } else { after / before }
    });
    let what = "staggered exit: wake-ups per GB, after half have ended over before";
    verdicts.extend(verdict(what, most(exit), Some(Goal::AtMost(1.2))));
    let bursts = rows.all("bursts", "ioless").map(|row| row.real("p99_ms") / row.real("p50_ms"));
    let what = "bursts of 32 MB: p99 of pauses over p50";
    verdicts.extend(verdict(what, most(bursts), Some(Goal::AtMost(3.0))));
    let stalls = most(rows.all("stalls", "ioless").map(|row| row.real("p99_ms")));
    verdicts.extend(verdict("stalls of 400 ms: p99 of pauses, ms", stalls, None));
    verdicts
}

/// The verdicts that cover all our rows.
fn everywhere(rows: &Rows<'_>) -> Vec<Verdict> {
    if rows.0.is_empty() {
        return Vec::new();
    }
    let ours = || rows.0.iter().copied().filter(|row| row.is("throttle", "ioless"));
    let steady =
        || ours().filter(|row| ["scaling", "grid"].iter().any(|case| row.is("case", case)));
    let goals = || steady().filter(|row| row.int("writers") <= 1000);
    // A write takes no longer than the longest pause.
    let fit = |row: &Row| {
        let part = row.real("mb_s") * 1e6 * PAUSE_MS / 1e3 / row.int("writers") as f64;
        part / (row.int("write_kib") << 10) as f64
    };
    let is_short = |row: &&Row| fit(row) >= 1.0;
    // Two writes do, because a writer sleeps after a whole number of writes. The bytes dirtied
    // meanwhile are at most a quarter of the limit, which is the distance between free run and
    // limit.
    let can_pause = |row: &&Row| {
        let limit = (row.int("pool_mib") << 20) as f64 / 5.0;
        fit(row) >= 2.0 && row.int("bw_mb") as f64 * 1e6 * PAUSE_MS / 1e3 <= limit / 4.0
    };
    let mut verdicts = Vec::new();
    let jain = least(goals().map(|row| row.real("jain")));
    verdicts.extend(verdict("the least Jain's index, 1 to 1000", jain, Some(Goal::AtLeast(0.99))));
    let wakeups = most(goals().filter(can_pause).map(|row| row.real("wake_s")));
    let what = "the most wake-ups of writers a second, 1 to 1000, where a pause can be long enough";
    verdicts.extend(verdict(what, wakeups, Some(Goal::AtMost(WAKEUPS))));
    let wakeups = most(goals().filter(|row| !can_pause(row)).map(|row| row.real("wake_s")));
    verdicts.extend(verdict("the same where it cannot", wakeups, None));
    let pauses = most(goals().filter(is_short).map(|row| row.real("p99_ms")));
    let what = "the worst p99 of pauses, ms, 1 to 1000, where a write can be short enough";
    verdicts.extend(verdict(what, pauses, Some(Goal::AtMost(PAUSE_MS))));
    let grid = ours().filter(|row| row.is("case", "grid"));
    let used = least(grid.map(|row| row.real("mb_s") / row.int("bw_mb") as f64));
    let what = "10, 700, 3000 MB/s, 256 MiB and 4 GiB: the least part of the bandwidth";
    verdicts.extend(verdict(what, used, Some(Goal::AtLeast(0.99))));
    let over: u64 = rows.0.iter().map(|row| row.int("over")).sum();
    let what = "turns that ended above the dirty limit";
    verdicts.extend(verdict(what, Some(over as f64), Some(Goal::Exactly(0.0))));
    let worst = most(rows.0.iter().map(|row| row.real("worst")));
    // Without dirty data the goal above would be met, too.
    let what = "maximum dirty bytes, part of the limit";
    verdicts.extend(verdict(what, worst, Some(Goal::Within(0.5, 1.0))));
    let failed: u64 = rows.0.iter().map(|row| row.int("failed")).sum();
    verdicts.extend(verdict("failed bios", Some(failed as f64), Some(Goal::Exactly(0.0))));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that meets every goal.
    fn row(case: &str, throttle: &str, writers: u64) -> Row {
        let old = throttle == "foreground";
        let rate = if old && writers >= 100 { 600.0 } else { 699.0 };
        Row::new("runs")
            .with("case", case)
            .with("throttle", throttle)
            .with("writers", writers)
            .with("bw_mb", 700)
            .with("pool_mib", 4096)
            .with("write_kib", 64)
            .with("mb_s", rate)
            .with("wake_s", 5000.0)
            .with("p50_ms", 100.0)
            .with("p99_ms", 199.0)
            .with("worst", 0.95)
            .with("over", 0)
            .with("jain", 0.999)
            .with("util", 1.0)
            .with("files_s", 100.0)
            .with("settled_ms", vec![5000, 900, 900])
            .with("wake_gb_before", 100.0)
            .with("wake_gb_after", 100.0)
            .with("failed", 0)
    }

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for throttle in ["ioless", "foreground"] {
            rows.extend([1, 100, 1000].map(|writers| row("scaling", throttle, writers)));
            rows.extend([row("disk", throttle, 100), row("files", throttle, 12)]);
        }
        let cases = ["grid", "two", "bandwidth", "writers", "cold", "exit", "bursts", "stalls"];
        rows.extend(cases.map(|case| row(case, "ioless", 1000)));
        rows
    }

    fn missed(rows: &[Row]) -> Vec<String> {
        let verdicts = judge(rows).into_iter().filter(|verdict| !verdict.is_met());
        verdicts.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn each_goal_is_missed_when_its_value_is_changed() {
        assert_eq!(missed(&rows()), [""; 0]);
        let with = |case: &str, throttle: &str, cell: &str, value: f64| {
            let change = |row: Row| match row.is("case", case) && row.is("throttle", throttle) {
                true if row.int("writers") >= 12 => row.replaced(cell, value),
                _ => row,
            };
            missed(&rows().into_iter().map(change).collect::<Vec<_>>()).len()
        };
        // 100 and 1000 writers.
        assert_eq!(with("scaling", "ioless", "mb_s", 690.0), 2);
        assert_eq!(with("scaling", "foreground", "mb_s", 690.0), 1);
        // The seed's row, and the maximum over all.
        assert_eq!(with("scaling", "ioless", "wake_s", 5600.0), 2);
        assert_eq!(with("scaling", "ioless", "p99_ms", 210.0), 2);
        assert_eq!(with("disk", "ioless", "mb_s", 590.0), 1);
        assert_eq!(with("files", "ioless", "files_s", 94.0), 1);
        assert_eq!(with("two", "ioless", "util", 0.9), 1);
        assert_eq!(with("cold", "ioless", "jain", 0.9), 1);
        assert_eq!(with("exit", "ioless", "wake_gb_after", 130.0), 1);
        assert_eq!(with("exit", "ioless", "wake_gb_before", 0.0), 1);
        assert_eq!(with("bursts", "ioless", "p50_ms", 50.0), 1);
        assert_eq!(with("grid", "ioless", "mb_s", 690.0), 1);
        assert_eq!(with("stalls", "ioless", "worst", 1.001), 1);
    }

    #[test]
    fn what_never_settles_or_passes_the_limit_once_is_missed() {
        let with = |case: &str, cell: &str, value: serde_json::Value| {
            let change = |row: Row| match row.is("case", case) {
                true => row.replaced(cell, value.clone()),
                _ => row,
            };
            missed(&rows().into_iter().map(change).collect::<Vec<_>>()).len()
        };
        // The first phase is a cold start, which counts elsewhere.
        assert_eq!(with("bandwidth", "settled_ms", vec![86_400_000, 0, 0].into()), 0);
        assert_eq!(with("bandwidth", "settled_ms", vec![0, 0, 86_400_000].into()), 1);
        assert_eq!(with("writers", "settled_ms", vec![0, 1010, 0].into()), 1);
        assert_eq!(with("cold", "over", 1.into()), 1);
        assert_eq!(with("files", "failed", 1.into()), 1);
    }
}
