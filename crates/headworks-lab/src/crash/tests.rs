//! The verdicts are computed from the rows, and are negative where something is missing.

use super::*;

fn few() -> CrashRun {
    let options = CrashOptions { seed: 1, shards: None };
    run(options, |crash| crash.cuts < 12 || crash.deaths < 12).unwrap()
}

#[test]
fn a_short_run_is_asked_for_its_cuts_only() {
    let crash = few();
    let report = report(&crash, 1, 12);
    assert!(report.is_met(), "{}", report.to_text());
    let cells: u64 = report.rows[1..].iter().take(12).map(|row| row.int("cells")).sum();
    assert!(cells > 1_000 && crash.cuts >= 12 && crash.deaths >= 12);
}

#[test]
fn verdicts_come_from_the_rows_only() {
    let report = report(&few(), 1, COVERED_AFTER);
    let read: Vec<Row> = report.to_json().lines().filter_map(Row::from_json).collect();
    assert_eq!(judge(&read, COVERED_AFTER), report.verdicts);
    // Far fewer cuts than requested.
    assert!(!report.is_met());
    // Points that cannot occur in these worlds are not required.
    let asked = |row: &&Row| row.table == "points" && row.int("asked") == 1;
    let changes = |row: &Row| row.word("point").starts_with("hot-plug:");
    assert!(read.iter().filter(asked).count() > 50 && !read.iter().filter(asked).any(changes));
    let full = |row: &Row| match &row.table[..] {
        "run" => row.clone().replaced("cuts", COVERED_AFTER).replaced("deaths", COVERED_AFTER),
        "points" => row.clone().replaced("times", 1),
        "lying devices" => row.clone().replaced("found", 1),
        _ => row.clone().replaced("old", 1),
    };
    let rows: Vec<Row> = read.iter().map(full).collect();
    let met = |rows: &[Row]| judge(rows, COVERED_AFTER).iter().all(Verdict::is_met);
    assert!(met(&rows));
    for (table, name) in
        [("points", "times"), ("lying devices", "found"), ("run", "cuts"), ("run", "deaths")]
    {
        let mut wrong = rows.clone();
        let row = wrong.iter_mut().find(|row| row.table == table).unwrap();
        *row = row.clone().replaced(name, 0);
        assert!(!met(&wrong), "{table}");
    }
}
