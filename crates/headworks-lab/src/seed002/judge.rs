//! The verdicts of seed 002, computed from the raw counts of its rows.
//!
//! A goal holds for every bandwidth and pool that the experiment names: 10, 700 and 3000 MB/s with
//! 256 MiB and 4 GiB. Where a bound of the device and the memory makes a miss, the verdict carries
//! it (`super::bounds`). The baseline of a comparison is its best row over elevators and tag
//! policies. The seed measured its series with pauses, so its figures stand beside our rows with
//! pauses.

use super::bounds::{self, Load};
use super::cases::{EVEN_POOL_MIB, OVERWRITTEN, ThrottleCase, WRITERS_MAX};
use crate::report::{Goal, Row, Verdict};

/// The seed's rates with pauses, as parts of one writer's 700 MB/s: writers, part.
const SEED_PARTS: [(u64, f64); 3] =
    [(10, 690.0 / 700.0), (100, 650.0 / 700.0), (1000, 600.0 / 700.0)];
/// The seed's dd on a disk in kB/s, means of two runs: writers, foreground write-back, pauses.
const SEED_DISK: [(u64, f64, f64); 3] = [
    (1, (57_357.468 + 56_433.152) / 2.0, (57_632.715 + 56_294.44) / 2.0),
    (10, (47_745.021 + 47_484.616) / 2.0, (47_951.702 + 47_970.093) / 2.0),
    (100, (37_843.0 + 37_227.521) / 2.0, (41_654.853 + 41_531.725) / 2.0),
];
/// The seed's fs_mark in files per second.
const SEED_FILES: [f64; 2] = [1182.8, 1146.8];
/// Goal: part of the rate and of the bandwidth, and Jain's index.
const PART: f64 = 0.99;
/// `wake-ups = writers / pause` for 1000 writers and 200 ms, plus a tenth.
const WAKEUPS: f64 = 5500.0;
const PAUSE_MS: f64 = 200.0;
/// Goal: time to settle after a change of the load.
const SETTLED_MS: f64 = 1000.0;
/// Goal: random overwrites as a part of those without pauses, which cost throughput only by what is dirty.
const OVERWRITES: f64 = 0.97;
/// Goal: a writer that connects anew gains no more than a tenth of a fair share.
const RECONNECTED: f64 = 1.1;

/// The raw counts of the runs, with lookup by configuration.
struct Rows<'a>(Vec<&'a Row>);

/// Bandwidth in MB/s and pool in MiB.
type Place = (u64, u64);

fn place(row: &Row) -> Place {
    (row.int("bw_mb"), row.int("pool_mib"))
}

impl<'a> Rows<'a> {
    fn all(&self, case: &str, throttle: &str) -> Vec<&'a Row> {
        let is = |row: &&&Row| row.is("case", case) && row.is("throttle", throttle);
        self.0.iter().filter(is).copied().collect()
    }

    /// The places of a case, in the order of its rows.
    fn places(&self, case: &str) -> Vec<Place> {
        let mut places = Vec::new();
        for row in self.all(case, "ioless") {
            if !places.contains(&place(row)) {
                places.push(place(row));
            }
        }
        places
    }

    /// The row of ours.
    fn ours(&self, case: &str, at: Place, writers: u64) -> Option<&'a Row> {
        let all = self.all(case, "ioless");
        all.into_iter().find(|row| place(row) == at && row.int("writers") == writers)
    }

    /// The baseline's best row over elevators and tag policies.
    fn best(&self, case: &str, at: Place, writers: u64) -> Option<&'a Row> {
        let all = self.all(case, "foreground").into_iter();
        all.filter(|row| place(row) == at && row.int("writers") == writers)
            .max_by(|a, b| rate(a).total_cmp(&rate(b)))
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

/// MB/s of all devices.
fn rate(row: &Row) -> f64 {
    row.ints("media_bytes").iter().sum::<u64>() as f64 * 1e3 / row.int("ns").max(1) as f64
}

fn per_second(row: &Row, cell: &str) -> f64 {
    row.int(cell) as f64 * 1e9 / row.int("ns").max(1) as f64
}

fn ms(row: &Row, cell: &str) -> f64 {
    row.int(cell) as f64 / 1e6
}

/// Jain's index of the writers that ran all the time.
fn jain(row: &Row) -> f64 {
    let (sum, squares) = (row.int("shared_blocks") as f64, row.int("shared_blocks_squared") as f64);
    if squares == 0.0 { 1.0 } else { sum * sum / (row.int("sharers") as f64 * squares) }
}

fn load(row: &Row) -> Load {
    Load {
        writers: row.int("writers"),
        bandwidth: row.int("bw_mb") * 1_000_000,
        pool: row.int("pool_mib") << 20,
        dirty: row.int("dirty_ppm") as f64 / 1e6,
        write: row.int("write_bytes"),
        switch_ns: row.int("switch_ns"),
    }
}

fn verdict(what: String, ours: f64, goal: Option<Goal>) -> Verdict {
    Verdict { what, ours: Some(ours), goal, ..Verdict::default() }
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

fn least(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::min)
}

fn pool_name(mib: u64) -> String {
    if mib >= 1024 { format!("{} GiB", mib / 1024) } else { format!("{mib} MiB") }
}

fn at_name((bw_mb, pool_mib): Place) -> String {
    format!("{bw_mb} MB/s, {}", pool_name(pool_mib))
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows = Rows(rows.iter().filter(|row| row.table == "counts").collect());
    let mut verdicts = scaling(&rows);
    verdicts.extend(grid(&rows));
    verdicts.extend(disk(&rows));
    verdicts.extend(overwrites(&rows));
    verdicts.extend(changes(&rows));
    verdicts.extend(everywhere(&rows));
    verdicts
}

/// The seed's table, with each pool.
fn scaling(rows: &Rows<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for at in rows.places("scaling") {
        let Some(one) = rows.ours("scaling", at, 1) else {
            continue;
        };
        let old_one = rows.best("scaling", at, 1);
        for (writers, seed) in SEED_PARTS {
            let Some(ours) = rows.ours("scaling", at, writers) else {
                continue;
            };
            let what = format!("scaling, {}: {writers} writers' rate, part of one's", at_name(at));
            let goal = (writers > 10).then_some(Goal::AtLeast(PART));
            let old = rows.best("scaling", at, writers).zip(old_one);
            let found = Verdict {
                seed: Some(seed),
                baseline: old.map(|(many, one)| rate(many) / rate(one)),
                ..verdict(what, rate(ours) / rate(one), goal)
            };
            let most = rows.places("scaling").into_iter().max_by_key(|&(_, pool)| pool);
            let more_memory = most.filter(|&most| most != at).and_then(|most| {
                let (many, one) =
                    (rows.ours("scaling", most, writers)?, rows.ours("scaling", most, 1)?);
                Some(rate(many) / rate(one))
            });
            verdicts.push(bounds::part_of_one(found, &load(ours), rate(one) * 1e6, more_memory));
        }
        let Some(ours) = rows.ours("scaling", at, 1000) else {
            continue;
        };
        let old = rows.best("scaling", at, 1000);
        let what = format!("scaling, {}: 1000 writers' wake-ups a second", at_name(at));
        let wakeups = verdict(what, per_second(ours, "slept"), Some(Goal::AtMost(WAKEUPS)));
        let baseline = old.map(|row| per_second(row, "slept"));
        let wakeups = Verdict { baseline, ..wakeups };
        verdicts.push(bounds::wakeups(wakeups, &load(ours), rate(ours) * 1e6));
        let what = format!("scaling, {}: 1000 writers' p99 of pauses, ms", at_name(at));
        let pauses = verdict(what, ms(ours, "p99_ns"), Some(Goal::AtMost(PAUSE_MS)));
        let pauses = Verdict { baseline: old.map(|row| ms(row, "p99_ns")), ..pauses };
        verdicts.push(bounds::pauses(pauses, &load(ours), rate(ours) * 1e6));
    }
    verdicts.extend(calibration(rows));
    verdicts
}

/// What the price of a change of stream, a calibration, takes from the baseline.
fn calibration(rows: &Rows<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let part = |at, writers| {
        let (many, one) = (rows.best("scaling", at, writers)?, rows.best("scaling", at, 1)?);
        Some(rate(many) / rate(one))
    };
    for at in rows.places("scaling") {
        for writers in [100, 1000] {
            let what = format!(
                "calibration, {}: foreground's best with {writers}, part of one",
                at_name(at)
            );
            // The goal was set for the pool of 4 GiB. Chunks of 6 MiB of 100 writers hardly show the cost of a change.
            let goal = (at.1 == 4096 && writers == 1000).then_some(Goal::AtMost(0.9));
            verdicts.extend(part(at, writers).map(|part| verdict(what, part, goal)));
        }
    }
    verdicts
}

/// Bandwidths and pools on a device that only has bandwidth.
fn grid(rows: &Rows<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for at in rows.places("grid") {
        let here = rows.all("grid", "ioless").into_iter().filter(|row| place(row) == at);
        let here: Vec<&Row> =
            here.filter(|row| row.int("writers") <= u64::from(WRITERS_MAX)).collect();
        let name = format!("grid, {}, 1 to 1000 writers", at_name(at));
        let used = least(here.iter().map(|row| rate(row) / row.int("bw_mb") as f64));
        let what = format!("{name}: the least part of the bandwidth");
        verdicts.extend(used.map(|used| verdict(what, used, Some(Goal::AtLeast(PART)))));
        let shares = least(here.iter().map(|row| jain(row)));
        let what = format!("{name}: the least Jain's index");
        verdicts.extend(shares.map(|least| verdict(what, least, Some(Goal::AtLeast(PART)))));
        let slept = |row: &&&Row| per_second(row, "slept");
        let longest = here.iter().max_by(|a, b| slept(a).total_cmp(&slept(b)));
        verdicts.extend(longest.map(|row| {
            let what = format!("{name}: the most wake-ups a second");
            // A write is one wake-up at most, so a slow device meets the goal in any case.
            let can_miss = at.0 * 1_000_000 / row.int("write_bytes").max(1) > WAKEUPS as u64;
            let goal = can_miss.then_some(Goal::AtMost(WAKEUPS));
            bounds::wakeups(verdict(what, slept(&row), goal), &load(row), rate(row) * 1e6)
        }));
        let p99 = |row: &&&Row| ms(row, "p99_ns");
        let slowest = here.iter().max_by(|a, b| p99(a).total_cmp(&p99(b)));
        verdicts.extend(slowest.map(|row| {
            let what = format!("{name}: the worst p99 of pauses, ms");
            let found = verdict(what, p99(&row), Some(Goal::AtMost(PAUSE_MS)));
            bounds::pauses(found, &load(row), rate(row) * 1e6)
        }));
    }
    verdicts
}

/// Comparisons with the baseline's best row on a disk.
fn disk(rows: &Rows<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let pair = |case: &str, at: Place, writers: u64| {
        Some((rows.ours(case, at, writers)?, rows.best(case, at, writers)?))
    };
    for at in rows.places("disk") {
        for (writers, before, after) in SEED_DISK {
            let Some((ours, old)) = pair("disk", at, writers) else {
                continue;
            };
            let below = format!("{}, {}", old.word("elevator"), old.word("tags"));
            let what = format!("disk, {writers} writers: rate over foreground's best ({below})");
            verdicts.push(Verdict {
                seed: Some(after / before),
                baseline: Some(1.0),
                ..verdict(what, rate(ours) / rate(old), Some(Goal::AtLeast(1.0)))
            });
        }
    }
    for at in rows.places("uneven") {
        for ours in rows.all("uneven", "ioless").into_iter().filter(|row| place(row) == at) {
            let Some(old) = rows.best("uneven", at, ours.int("writers")) else {
                continue;
            };
            let what = format!("1 heavy and 36 light writers, {}, MB/s", at_name(at));
            let goal = Some(Goal::AtLeast(rate(old)));
            verdicts.push(Verdict { baseline: Some(rate(old)), ..verdict(what, rate(ours), goal) });
        }
    }
    let files = |row: &Row| per_second(row, "writes");
    for at in rows.places("files") {
        let old = rows.all("files", "foreground").into_iter().filter(|row| place(row) == at);
        let old = old.max_by(|a, b| files(a).total_cmp(&files(b)));
        let ours = rows.all("files", "ioless").into_iter().find(|row| place(row) == at);
        if let (Some(ours), Some(old)) = (ours, old) {
            let what =
                format!("small files, {}: files a second over foreground's best", at_name(at));
            verdicts.push(Verdict {
                seed: Some(SEED_FILES[1] / SEED_FILES[0]),
                baseline: Some(1.0),
                ..verdict(what, files(ours) / files(old), Some(Goal::AtLeast(0.95)))
            });
        }
    }
    let busy = |row: &&Row| {
        let parts = row.ints("busy_ns").into_iter().map(|ns| ratio(ns, row.int("ns")));
        least(parts).unwrap_or(0.0).min(1.0)
    };
    let two = least(rows.all("two", "ioless").iter().map(busy));
    let what = "two devices 10:1: busy part of the less busy one".to_string();
    verdicts.extend(two.map(|two| verdict(what, two, Some(Goal::AtLeast(0.95)))));
    verdicts
}

/// Random overwrites, which the cache answers without the device where the block is dirty already.
fn overwrites(rows: &Rows<'_>) -> Vec<Verdict> {
    let answered = |row: &Row| per_second(row, "bytes");
    let mut verdicts = Vec::new();
    for ours in rows.all("overwrites", "ioless") {
        let (at, writers) = (place(ours), ours.int("writers"));
        let best = |throttle| {
            let all = rows.all("overwrites", throttle).into_iter();
            let all = all.filter(|row| place(row) == at && row.int("writers") == writers);
            most(all.map(answered))
        };
        let judged = |over: &str, old: f64, goal: f64| {
            let what = format!("overwrites, {}: answered over {over}", at_name(at));
            let found = verdict(what, answered(ours) / old, Some(Goal::AtLeast(goal)));
            Verdict { baseline: Some(1.0), ..found }
        };
        verdicts.extend(best("foreground").map(|old| judged("foreground's best", old, 1.0)));
        verdicts.extend(best("none").map(|old| {
            let even = rows.ours("overwrites", (at.0, EVEN_POOL_MIB), writers);
            let even = even.map(|row| answered(row) / old);
            let found = judged("the limit alone", old, OVERWRITES);
            bounds::overwrites(found, &load(ours), OVERWRITTEN, even)
        }));
    }
    verdicts
}

/// The slowest time to settle in milliseconds, but for the first phase: that is a cold start, which is a case of its own.
fn slowest(row: &&Row) -> Option<u64> {
    row.ints("settled_ms")[1..].iter().max().copied()
}

/// Changes of the load.
fn changes(rows: &Rows<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let names = [("bandwidth", "bandwidth to 2/7 and back"), ("writers", "writers x 10, / 10")];
    for (case, what) in names {
        for at in rows.places(case) {
            let here = rows.all(case, "ioless").into_iter().filter(|row| place(row) == at);
            let worst = here.max_by_key(slowest);
            let (times, slower) = if case == "writers" { (10, 1.0) } else { (1, 2.0 / 7.0) };
            let small = rows.all("small-writes", "ioless").into_iter();
            let small = small.filter(|row| case == "writers" && place(row) == at);
            let small = small.filter_map(|row| slowest(&row)).max().map(|ms| ms as f64);
            verdicts.extend(worst.map(|row| {
                let what = format!("{what}, {}: the slowest to settle, ms", at_name(at));
                let ms = slowest(&row).unwrap_or(0) as f64;
                let found = verdict(what, ms, Some(Goal::AtMost(SETTLED_MS)));
                let load = load(row);
                let most = Load { writers: times * load.writers, ..load };
                bounds::settling(found, &most, slower, small)
            }));
        }
    }
    for row in rows.all("cold", "ioless") {
        let what =
            format!("cold start of {}, {}: Jain's index", row.int("writers"), at_name(place(row)));
        verdicts.push(verdict(what, jain(row), Some(Goal::AtLeast(PART))));
    }
    let exit = rows.all("exit", "ioless").into_iter().map(|row| {
        let per_gb = |cell| {
            let [wakeups, bytes] = row.ints(cell)[..] else { return 0.0 };
            ratio(wakeups, bytes)
        };
        match per_gb("exit_before") {
            0.0 => f64::MAX,
            before => per_gb("exit_after") / before,
        }
    });
    let what = "staggered exit: wake-ups per GB, after half have ended over before".to_string();
    verdicts.extend(most(exit).map(|worst| verdict(what, worst, Some(Goal::AtMost(1.2)))));
    let bursts = rows.all("bursts", "ioless").into_iter();
    let bursts = bursts.map(|row| ratio(row.int("p99_ns"), row.int("p50_ns")));
    let what = "bursts of 32 MB: p99 of pauses over p50".to_string();
    verdicts.extend(most(bursts).map(|worst| verdict(what, worst, Some(Goal::AtMost(3.0)))));
    let stalls = most(rows.all("stalls", "ioless").into_iter().map(|row| ms(row, "p99_ns")));
    let what = "stalls of 400 ms: p99 of pauses, ms".to_string();
    verdicts.extend(stalls.map(|stalls| verdict(what, stalls, None)));
    verdicts.extend(reconnecting(rows));
    verdicts
}

/// One that connects anew, in parts of an equal share of what it and those that do not have written.
fn reconnecting(rows: &Rows<'_>) -> Vec<Verdict> {
    let cases =
        ThrottleCase::ALL.into_iter().filter(|case| matches!(case, ThrottleCase::Reconnect(_)));
    let rows = cases.flat_map(|case| rows.all(case.name(), "ioless"));
    let judged = rows.map(|row| {
        let (all, steady) = (row.int("bytes"), 4096 * row.int("shared_blocks"));
        let part = ratio((all - steady) * (row.int("sharers") + 1), all);
        let what = format!("{}, {}: part of a fair share", row.word("case"), at_name(place(row)));
        verdict(what, part, Some(Goal::AtMost(RECONNECTED)))
    });
    judged.collect()
}

/// The verdicts that cover all rows.
fn everywhere(rows: &Rows<'_>) -> Vec<Verdict> {
    if rows.0.is_empty() {
        return Vec::new();
    }
    let mut verdicts = Vec::new();
    let steady = rows.all("scaling", "ioless").into_iter();
    let steady = steady.filter(|row| row.int("writers") <= u64::from(WRITERS_MAX));
    let what = "scaling, 1 to 1000 writers: the least Jain's index".to_string();
    let shares = least(steady.map(jain));
    verdicts.extend(shares.map(|least| verdict(what, least, Some(Goal::AtLeast(PART)))));
    let over: u64 = rows.0.iter().map(|row| row.int("over")).sum();
    let what = "turns that ended above the dirty limit".to_string();
    verdicts.push(verdict(what, over as f64, Some(Goal::Exactly(0.0))));
    let worst = rows.0.iter().map(|row| row.int("worst_ppm")).max().unwrap_or(0);
    // Without dirty data the goal above would be met, too.
    let what = "maximum dirty bytes, part of the limit".to_string();
    verdicts.push(verdict(what, worst as f64 / 1e6, Some(Goal::Within(0.5, 1.0))));
    let failed: u64 = rows.0.iter().map(|row| row.int("failed")).sum();
    verdicts.push(verdict("failed bios".into(), failed as f64, Some(Goal::Exactly(0.0))));
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: u64 = 10_000_000_000;

    /// A row that meets every goal.
    fn row(case: &str, throttle: &str, writers: u64) -> Row {
        let old = throttle == "foreground";
        let mb_s = if old && writers >= 100 { 600_u64 } else { 699 };
        Row::new("counts")
            .with("case", case)
            .with("throttle", throttle)
            .with("elevator", "none")
            .with("tags", "fair")
            .with("writers", writers)
            .with("bw_mb", 700)
            .with("pool_mib", 4096)
            .with("write_bytes", 65_536)
            .with("switch_ns", 20_000)
            .with("ns", NS)
            .with("writes", 1000)
            .with("media_bytes", vec![mb_s * 1_000_000 * 10])
            .with("busy_ns", vec![NS])
            .with("slept", 50_000)
            .with("p50_ns", 100_000_000)
            .with("p99_ns", 199_000_000)
            .with("bytes", 5_000_000)
            .with("sharers", 10)
            .with("shared_blocks", 100)
            .with("shared_blocks_squared", 1000)
            .with("dirty_ppm", 850_000)
            .with("worst_ppm", 950_000)
            .with("over", 0)
            .with("settled_ms", vec![5000, 900, 900])
            .with("exit_before", vec![100, 1_000_000_000])
            .with("exit_after", vec![100, 1_000_000_000])
            .with("failed", 0)
    }

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for throttle in ["ioless", "foreground"] {
            rows.extend([1, 100, 1000].map(|writers| row("scaling", throttle, writers)));
            rows.extend([1, 100].map(|writers| row("disk", throttle, writers)));
            rows.extend([row("files", throttle, 12), row("uneven", throttle, 37)]);
        }
        for throttle in ["ioless", "foreground", "none"] {
            rows.push(row("overwrites", throttle, 16));
        }
        let cases = ["grid", "two", "bandwidth", "writers", "cold", "exit", "bursts", "stalls"];
        rows.extend(cases.map(|case| row(case, "ioless", 1000)));
        // The steady ones have 409,600 bytes.
        rows.push(row("reconnect-50ms", "ioless", 12).replaced("bytes", 450_000));
        rows
    }

    fn missed(rows: &[Row]) -> Vec<String> {
        let verdicts = judge(rows).into_iter().filter(|verdict| !verdict.is_met());
        verdicts.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn each_goal_is_missed_when_its_count_is_changed() {
        assert_eq!(missed(&rows()), [""; 0]);
        let with = |case: &str, throttle: &str, cell: &str, value: serde_json::Value| {
            let change = |row: Row| match row.is("case", case) && row.is("throttle", throttle) {
                true if row.int("writers") >= 12 => row.replaced(cell, value.clone()),
                _ => row,
            };
            missed(&rows().into_iter().map(change).collect::<Vec<_>>()).len()
        };
        let bytes = |mb_s: u64| serde_json::Value::from(vec![mb_s * 10_000_000]);
        // 100 and 1000 writers.
        assert_eq!(with("scaling", "ioless", "media_bytes", bytes(690)), 2);
        assert_eq!(with("scaling", "ioless", "slept", 56_000.into()), 1);
        assert_eq!(with("scaling", "ioless", "p99_ns", 210_000_000.into()), 1);
        assert_eq!(with("scaling", "ioless", "shared_blocks_squared", 1100.into()), 1);
        assert_eq!(with("disk", "ioless", "media_bytes", bytes(590)), 1);
        assert_eq!(with("disk", "foreground", "media_bytes", bytes(700)), 1);
        assert_eq!(with("uneven", "ioless", "media_bytes", bytes(590)), 1);
        assert_eq!(with("files", "ioless", "writes", 940.into()), 1);
        assert_eq!(with("two", "ioless", "busy_ns", vec![NS, NS * 9 / 10].into()), 1);
        assert_eq!(with("cold", "ioless", "shared_blocks_squared", 1100.into()), 1);
        assert_eq!(with("exit", "ioless", "exit_after", vec![130, 1_000_000_000_u64].into()), 1);
        assert_eq!(with("exit", "ioless", "exit_before", vec![0, 1].into()), 1);
        assert_eq!(with("bursts", "ioless", "p50_ns", 50_000_000.into()), 1);
        assert_eq!(with("grid", "ioless", "media_bytes", bytes(690)), 1);
        assert_eq!(with("grid", "ioless", "slept", 56_000.into()), 1);
        assert_eq!(with("stalls", "ioless", "worst_ppm", 1_001_000.into()), 1);
        assert_eq!(with("overwrites", "ioless", "bytes", 4_900_000.into()), 1);
        assert_eq!(with("overwrites", "none", "bytes", 5_200_000.into()), 1);
        assert_eq!(with("overwrites", "foreground", "bytes", 5_100_000.into()), 1);
        assert_eq!(with("reconnect-50ms", "ioless", "bytes", 460_000.into()), 1);
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

    #[test]
    fn best_row_of_the_baseline_is_compared() {
        let mut all = rows();
        let slow = row("disk", "foreground", 100);
        all.push(slow.clone().replaced("tags", "kuai_v3").replaced("media_bytes", vec![1]));
        assert_eq!(missed(&all), [""; 0]);
        all.push(slow.replaced("tags", "kuai_v3").replaced("media_bytes", vec![7_000_000_000_u64]));
        assert_eq!(missed(&all).len(), 1);
        assert!(missed(&all)[0].contains("(none, kuai_v3)"), "{:?}", missed(&all));
    }
}
