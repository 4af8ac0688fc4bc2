//! Tests of the table of cases, and of the verdicts.

use super::cases::Measure;
use super::*;
use crate::report::{Goal, Outcome, Row, Verdict};
use run::Bounds;

fn filter(cases: &[&str], device: &str) -> BfqFilter {
    BfqFilter {
        seed: 1,
        cases: cases.iter().map(|&name| name.into()).collect(),
        devices: vec![device.into()],
        ..BfqFilter::default()
    }
}

#[test]
fn cases_are_distinct_and_have_valid_queues() {
    for (index, case) in CASES.iter().enumerate() {
        assert!(CASES[..index].iter().all(|other| other.name != case.name), "{}", case.name);
        assert!(!case.goals.is_empty() && !case.groups.is_empty(), "{}", case.name);
        for &disk in case.disks {
            let jobs = client::jobs(case.groups, case.step, disk, 1);
            assert!(jobs.iter().all(|job| job.end <= disk.size()), "{}", case.name);
            let exports = client::exports(case.groups, case.weights, case.tenants);
            assert!(jobs.iter().all(|job| (job.export.0 as usize) < exports.len()));
        }
    }
}

#[test]
fn regions_of_clients_do_not_overlap_unless_they_share_a_stream() {
    for case in CASES {
        let jobs = client::jobs(case.groups, case.step, case.disks[0], 1);
        for (index, job) in jobs.iter().enumerate().take(50) {
            let apart = |other: &crate::harness::JobOptions| {
                job.end <= other.start || other.end <= job.start || job.stream > 0
            };
            assert!(jobs[..index].iter().all(apart), "{} client {index}", case.name);
        }
    }
}

#[test]
fn case_runs_with_each_elevator_and_its_clients_alone() {
    let points = points(&filter(&["random-beside-d4"], "hdd-32"));
    let parts = |part| points.iter().filter(|point| point.part == part).count();
    assert_eq!((parts(Part::First), parts(Part::Rest)), (1, 1));
    for scheduler in Scheduler::ALL {
        let is =
            |point: &&BfqPoint| point.part == Part::All && point.variant.scheduler == scheduler;
        let all = points.iter().filter(is).count();
        assert_eq!(all, 1 + usize::from(scheduler == Scheduler::MqDeadline));
    }
    let flash = super::points(&filter(&["E9"], "nvme"));
    let by_hand = flash.iter().filter(|point| point.variant.bounds == Bounds::ByHand).count();
    assert_eq!(by_hand, 2 * Scheduler::ALL.len());
}

/// A row as `run` makes it, of four clients with weights 1:2:4:10.
fn row(scheduler: &str, part: &str, bytes: [u64; 4]) -> Row {
    let list = bytes.to_vec();
    Row::new(run::TABLE)
        .with("case", "shares-d4")
        .with("device", "hdd-32")
        .with("scheduler", scheduler)
        .with("bounds", "default")
        .with("hold_ms", 0)
        .with("part", part)
        .with("ms", 1000)
        .with("bytes", bytes.iter().sum::<u64>())
        .with("weights", vec![50, 100, 200, 500])
        .with("weight_clients", vec![1; 4])
        .with("weight_bytes", list.clone())
        .with("weight_least", list.clone())
        .with("weight_most", list)
        .with("settings", "")
        .with("failed", 0)
}

#[test]
fn worst_share_decides_and_the_baseline_stands_beside_it() {
    let judged = |ours: [u64; 4]| {
        let verdicts = judge(&[row("mq-deadline", "all", [10; 4]), row("bfq", "all", ours)]);
        let found = verdicts.iter().find(|verdict| verdict.what.contains("worst share"));
        found.cloned().expect("the case is judged")
    };
    let exact = judged([100, 200, 400, 1000]);
    assert_eq!((exact.ours, exact.outcome()), (Some(0.0), Outcome::Met));
    assert!((exact.baseline.unwrap() - 3.25).abs() < 1e-9, "{exact:?}");
    // 5 % more for the lightest, of what the heaviest had.
    let verdict = judged([105, 200, 400, 995]);
    assert_eq!(verdict.outcome(), Outcome::Missed);
    assert!((verdict.ours.unwrap() - 0.05).abs() < 1e-9, "{verdict:?}");
    assert_eq!(judged([95, 200, 400, 1005]).outcome(), Outcome::Missed);
}

#[test]
fn failed_run_is_missed_whatever_the_shares() {
    let verdicts = judge(&[row("none", "all", [1; 4]).replaced("failed", 1)]);
    assert_eq!(verdicts.len(), 1, "none is no elevator that owns shares");
    assert_eq!(verdicts[0].outcome(), Outcome::Missed);
}

#[test]
fn start_that_never_ends_counts_with_its_time_so_far() {
    let start = |scheduler: &str, part: &str, starts: Vec<u64>, unfinished: u64| {
        row(scheduler, part, [1; 4])
            .replaced("case", "xterm")
            .with("rest_bytes", 1_000_000)
            .with("starts_ms", starts)
            .with("unfinished_ms", unfinished)
    };
    let rows = [
        start("none", "first", vec![100, 100], 0),
        start("mq-deadline", "all", vec![], 5_000),
        start("bfq", "all", vec![120, 140], 0),
    ];
    let of = |verdicts: &[Verdict], measure: Measure| {
        let found = verdicts.iter().find(|verdict| verdict.what.ends_with(measure.text()));
        found.map(|verdict| (verdict.baseline, verdict.ours))
    };
    let verdicts = judge(&rows);
    assert_eq!(of(&verdicts, Measure::StartMean), Some((Some(50.0), Some(1.3))));
    assert_eq!(of(&verdicts, Measure::StartLongest), Some((Some(50.0), Some(1.4))));
}

#[test]
fn verdicts_come_from_printed_rows_and_known_misses_name_verdicts() {
    let mut rows = Vec::new();
    let named = ["10-readers-d4", "one-stream-of-4"];
    let filter = filter(&named, "hdd-10k");
    for point in points(&filter) {
        // A second is enough for the form.
        let case = BfqCase { length_ms: [100, 1_000, 1_000], ..*point.case };
        rows.push(run::run(&filter, &case, point.disk, point.variant, point.part).unwrap());
    }
    let read: Vec<Row> = rows.iter().filter_map(|row| Row::from_json(&row.to_json())).collect();
    assert_eq!((read.len(), judge(&read)), (rows.len(), judge(&rows)));
    assert!(rows.iter().all(|row| row.int("failed") == 0 && row.int("bytes") > 0));
    let goals: Vec<String> = CASES
        .iter()
        .flat_map(|case| case.disks.iter().map(move |disk| (case, disk)))
        .flat_map(|(case, disk)| {
            let text = move |(measure, _): &(Measure, Goal)| judge::text(case, *disk, *measure);
            case.goals.iter().map(text)
        })
        .collect();
    known::each_names_one_of(&goals);
}
