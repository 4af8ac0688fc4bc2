//! Short runs: every request is answered once, and the counts agree.

use super::*;

fn short() -> ContentionOptions {
    ContentionOptions {
        rounds: 1,
        seconds: 0.02,
        warm_up_seconds: 0.0,
        jobs: 5,
        ..Default::default()
    }
}

/// Every cell, with a bound on its requests instead of a clock.
fn counted(requests: u64, watched: bool) -> Vec<(ContentionCell, CellRun)> {
    let options = short();
    let run = |cell: ContentionCell| {
        let signals = Signals::new(cell.threads);
        let load = CellLoad { requests, watched, ..CellLoad::new(&options, &cell, &signals) };
        let ran = run_method(cell.way, &load, || {}).unwrap();
        assert_eq!(signals.answered(), ran.round.counted_requests);
        (cell, ran)
    };
    cells(options.jobs).into_iter().map(run).collect()
}

#[test]
fn every_cell_answers_each_request_once() {
    // Not a multiple of the batch: the last batch is short.
    for (cell, ran) in counted(2001, false) {
        let asked = 2001 * u64::from(cell.threads);
        assert_eq!(ran.round.counted_requests, asked, "{}", cell.way.name());
        assert_eq!(ran.round.errors, 0);
        if matches!(cell.way, Method::Feeders | Method::Rings) {
            let RingCounts { feeders, owner, .. } = ran.round.rings;
            assert_eq!((feeders.messages, owner.messages), (asked, asked));
            assert!(feeders.pushes <= asked.div_ceil(8) + u64::from(cell.threads));
            assert_eq!(ran.round.locks, LockCounts::default());
        }
    }
}

#[test]
fn locks_are_taken_as_often_as_the_way_says() {
    for (cell, ran) in counted(2000, false) {
        let Method::Locked(guards, _, dispatch) = cell.way else { continue };
        let (asked, locks) = (2000 * u64::from(cell.threads), ran.round.locks);
        if guards == Guards::Shard {
            let calls = if dispatch == Dispatch::OneByOne { asked } else { asked / 8 };
            assert_eq!((locks.merge, locks.insert), (0, calls));
            // One for the completions of each list; a job that finds no room in the device, or more
            // work after it, differs.
            assert!((calls / 2..2 * calls).contains(&locks.dispatch), "{locks:?}");
            continue;
        }
        assert_eq!((locks.merge, locks.insert), (asked, asked / 8));
        match dispatch {
            // A job that inserted requests may find all of them taken by others.
            Dispatch::OneByOne => assert!((asked..asked + asked / 8).contains(&locks.dispatch)),
            Dispatch::Batch => assert!((asked / 8..=asked / 4).contains(&locks.dispatch)),
        }
    }
}

#[test]
fn one_owner_keeps_the_order() {
    for (cell, ran) in counted(1500, true) {
        let Some(order) = ran.order else {
            assert!(matches!(cell.way, Method::Locked(Guards::Shard, ..)));
            continue;
        };
        assert_eq!(order.requests, 1500 * u64::from(cell.threads));
        if matches!(cell.way, Method::Feeders | Method::Rings) {
            assert_eq!(order.inversions, 0);
        }
    }
}

#[test]
fn a_whole_run_has_all_its_figures() {
    let options = ContentionOptions { watched_requests: 100, rounds: 2, ..short() };
    let cells = run(&options).unwrap();
    assert_eq!(cells.len(), 21);
    for cell in &cells {
        assert_eq!(cell.rounds.len(), 2);
        assert!(cell.rounds.iter().all(|round| round.elapsed_ns >= 20_000_000 && round.cpu_ns > 0));
        assert!(cell.iops().0 > 0.0 && cell.iops().1 <= cell.iops().2);
        let watched = !matches!(cell.way, Method::Locked(Guards::Shard, ..));
        assert_eq!(cell.order.requests, u64::from(watched) * 100 * u64::from(cell.threads));
    }
    let found = summary(&cells);
    assert!(found.elevator.many > 0.0 && found.path.pinned > 0.0 && found.many_to_one > 0.0);
    assert_eq!((found.rings_inversions, found.errors), (0, 0));
    assert!(found.batch_dispatch_locks > 0.1 && found.batch_dispatch_locks <= 0.25);
}

#[test]
fn what_cannot_be_is_said() {
    let wrong = |options: ContentionOptions| run(&options).unwrap_err();
    assert!(wrong(ContentionOptions { jobs: 65, ..short() }).starts_with("jobs: 65"));
    assert!(wrong(ContentionOptions { iodepth: 0, ..short() }).starts_with("iodepth: 0"));
    assert!(wrong(ContentionOptions { batch: 33, ..short() }).starts_with("batch: 33"));
    assert!(wrong(ContentionOptions { size: 4095, ..short() }).starts_with("size: 4095"));
}
