//! The effect of each patch of the series, compared with the state without it.

use crate::baseline::WakeOptions;
use headworks_core::tags::TagOwner;
use headworks_core::time::SEC;

use super::bench::{Bench, at_once, late};

#[test]
fn patch_2_queue_is_chosen_at_sleep_and_kept() {
    for (numbers, then, lost) in
        [(&[][..], [0, 0, 1, 0, 0, 0, 0, 0], 2), (&[2][..], [0, 1, 0, 0, 0, 0, 0, 0], 0)]
    {
        let mut bench = Bench::kuai(8, at_once(), numbers);
        bench.fill();
        bench.request(1, 1);
        assert_eq!(bench.put(1), [0]);
        bench.request(1, 1);
        assert_eq!(bench.tags.waiters_per_queue(), then, "{numbers:?}");

        let mut bench = Bench::kuai(8, late(), numbers);
        bench.fill();
        bench.request(10, 1);
        bench.put(1);
        bench.request(1, 1);
        bench.pass(2 * SEC);
        let mut expected = [1, 2, 1, 1, 1, 1, 1, 1];
        expected[lost] += 1;
        assert_eq!(bench.tags.waiters_per_queue(), expected, "{numbers:?}: the loser of the race");
    }
}

/// Returns the rest of 84 sleepers after nine tags at once, some of whose wakers were interrupted, and eight more.
fn left(seed: u32, numbers: &[u8]) -> [u32; 8] {
    let mut bench = Bench::kuai(64, WakeOptions { seed, ..at_once() }, numbers);
    bench.fill();
    bench.request(84, 1);
    assert_eq!(bench.tags.waiters_per_queue(), [11, 11, 11, 11, 10, 10, 10, 10]);
    bench.put(9);
    bench.put_each(8);
    bench.tags.waiters_per_queue()
}

#[test]
fn patch_3_never_moves_index_back_and_needs_patch_1() {
    let next = [3, 3, 11, 11, 10, 10, 10, 10];
    let again = [0, 11, 11, 11, 10, 10, 10, 10];
    assert!((0..200).all(|seed| left(seed, &[1, 3]) == next));
    assert!((0..200).any(|seed| left(seed, &[3]) == again));
    assert!((0..200).any(|seed| left(seed, &[1]) == again));
}

#[test]
fn patch_3_wakes_fullest_queue_next() {
    let mut bench = Bench::kuai(64, at_once(), &[1, 2, 3]);
    bench.fill();
    // The fourth queue has one waiter more.
    bench.request(84, 1);
    bench.put_each(24);
    assert_eq!(bench.tags.waiters_per_queue(), [3, 3, 3, 11, 10, 10, 10, 10]);
    bench.request(12, 1);
    assert_eq!(bench.tags.waiters_per_queue(), [4, 4, 4, 12, 12, 12, 12, 12]);
    bench.put_each(8);
    assert_eq!(bench.tags.waiters_per_queue(), [4, 4, 4, 4, 12, 12, 12, 12]);
}

#[test]
fn patch_4_keeps_newcomers_out_while_more_than_eight_wait() {
    for (sleepers, got) in [(8, vec![8]), (9, vec![])] {
        let mut bench = Bench::kuai(64, late(), &[4]);
        bench.fill();
        bench.request(sleepers, 1);
        bench.put(1);
        assert_eq!(bench.request(1, 1), got, "{sleepers} sleepers");
        let prevented = u64::from(sleepers == 9);
        assert_eq!(bench.tags.stats().barging_prevented, prevented);
    }
}

#[test]
fn patch_4_admits_woken_tasks() {
    let mut bench = Bench::kuai(64, late(), &[2, 4]);
    bench.fill();
    bench.request(80, 1);
    bench.put_each(8);
    assert_eq!(bench.pass(2 * SEC), [0, 8, 16, 24, 32, 40, 48, 56], "72 other tasks wait");
}

/// Puts `back` tags back before any of the sleepers has run; returns how many of `newcomers` get a tag, and how many of one
/// more after eight more tags.
fn plenty(wake_batch: u32, back: u32, newcomers: u32) -> (usize, usize) {
    let mut bench = Bench::kuai(64, WakeOptions { wake_batch, ..late() }, &[1, 2, 3, 4, 5]);
    bench.fill();
    bench.request(40, 1);
    bench.put_each(back);
    let first = bench.request(newcomers, 1).len();
    bench.put_each(8);
    (first, bench.request(1, 1).len())
}

#[test]
fn patch_5_admits_newcomers_between_two_thresholds() {
    assert_eq!(plenty(8, 8, 1).0, 0, "one batch is free when it is woken: off");
    assert_eq!(plenty(8, 16, 1).0, 0, "two batches are not more than two");
    assert_eq!(plenty(8, 24, 1).0, 1, "three batches are");
    // 20 newcomers leave 4; with the next batch 12 are free, which is between the thresholds: no change.
    assert_eq!(plenty(8, 24, 20), (20, 1));
    // 24 leave none, and with the next batch no more than one batch is free: off.
    assert_eq!(plenty(8, 24, 24), (24, 0));
    assert_eq!(plenty(1, 24, 1).0, 0, "tasks woken one by one leave no tag idle");
}

#[test]
fn patch_6_admits_later_pieces_of_bio() {
    let pieces = |numbers: &[u8]| {
        let mut bench = Bench::kuai(64, WakeOptions { wake_batch: 1, ..late() }, numbers);
        bench.fill();
        bench.request(1, 3);
        bench.request(39, 1);
        bench.put(1);
        let first = bench.pass(2 * SEC);
        assert_eq!(first, [0], "the task was woken for its first piece");
        bench.tags.stats().barged
    };
    assert_eq!((pieces(&[2, 4]), pieces(&[2, 4, 6])), (0, 0));

    // All but the first of four pieces find tags, beside 39 sleepers of which none was woken yet.
    let got = |numbers: &[u8]| {
        let mut bench = Bench::kuai(64, WakeOptions { wake_batch: 8, ..late() }, numbers);
        bench.fill();
        bench.request(1, 4);
        bench.request(39, 1);
        bench.put_each(8);
        bench.put_each(4);
        bench.pass(2 * SEC).iter().filter(|&&id| id == 0).count()
    };
    assert_eq!((got(&[2, 4]), got(&[2, 4, 6])), (1, 4));
}

#[test]
fn patches_7_and_8_wake_only_tasks_that_take_tags() {
    let woken = |want, numbers: &[u8]| {
        let mut bench = Bench::kuai(64, late(), numbers);
        bench.fill();
        bench.request(80, want);
        bench.put_each(8);
        bench.tags.stats().woken
    };
    assert_eq!([1, 3, 8, 20].map(|want| woken(want, &[1, 2, 3, 7, 8])), [8, 3, 1, 1]);
    assert_eq!((woken(8, &[8]), woken(8, &[7])), (8, 8), "both patches are needed");
}

#[test]
fn all_patches_give_batch_of_tags_to_one_bio() {
    let wake = WakeOptions { per_piece_ns: 6_000, ..at_once() };
    let mut bench = Bench::kuai(64, wake, &[1, 2, 3, 4, 5, 6, 7, 8]);
    bench.fill();
    bench.request(64, 8);
    let mut got = bench.put_each(8);
    got.extend(bench.pass(100_000));
    assert_eq!(got, [0; 8]);
}

#[test]
fn woken_tasks_are_whole_batches_of_freed_tags() {
    for seed in 0..20 {
        for batch in 1..=8 {
            let wake = WakeOptions { wake_batch: batch, seed, ..late() };
            let mut bench = Bench::kuai(64, wake, &[1, 2, 3, 4, 5, 6]);
            bench.fill();
            bench.request(400, 1);
            for freed in 1..=32 {
                bench.put(1);
                bench.pass(1_000_000);
                let whole = u64::from(freed / batch * batch);
                assert_eq!(bench.tags.stats().woken, whole, "seed {seed} batch {batch}");
            }
        }
    }
}
