//! The series, patch by patch: what each changes, against what is there without it.

use headworks_core::tags::TagOwner;
use headworks_core::time::SEC;
use headworks_lab::baseline::WakeOptions;

use crate::hall::{Hall, at_once, late};

#[test]
fn patch_2_a_queue_is_chosen_by_who_sleeps_and_kept() {
    for (numbers, then, lost) in
        [(&[][..], [0, 0, 1, 0, 0, 0, 0, 0], 2), (&[2][..], [0, 1, 0, 0, 0, 0, 0, 0], 0)]
    {
        let mut hall = Hall::kuai(8, at_once(), numbers);
        hall.fill();
        hall.ask(1, 1);
        assert_eq!(hall.put(1), [0]);
        hall.ask(1, 1);
        assert_eq!(hall.tags.waiters_per_queue(), then, "{numbers:?}");

        let mut hall = Hall::kuai(8, late(), numbers);
        hall.fill();
        hall.ask(10, 1);
        hall.put(1);
        hall.ask(1, 1);
        hall.pass(2 * SEC);
        let mut expected = [1, 2, 1, 1, 1, 1, 1, 1];
        expected[lost] += 1;
        assert_eq!(hall.tags.waiters_per_queue(), expected, "{numbers:?}: who lost the race");
    }
}

/// Who is left of 84 sleepers after nine tags at once, of whose wakers some were interrupted, and eight more.
fn left(seed: u32, numbers: &[u8]) -> [u32; 8] {
    let mut hall = Hall::kuai(64, WakeOptions { seed, ..at_once() }, numbers);
    hall.fill();
    hall.ask(84, 1);
    assert_eq!(hall.tags.waiters_per_queue(), [11, 11, 11, 11, 10, 10, 10, 10]);
    hall.put(9);
    hall.put_each(8);
    hall.tags.waiters_per_queue()
}

#[test]
fn patch_3_never_moves_the_index_back_and_needs_patch_1() {
    let next = [3, 3, 11, 11, 10, 10, 10, 10];
    let again = [0, 11, 11, 11, 10, 10, 10, 10];
    assert!((0..200).all(|seed| left(seed, &[1, 3]) == next));
    assert!((0..200).any(|seed| left(seed, &[3]) == again));
    assert!((0..200).any(|seed| left(seed, &[1]) == again));
}

#[test]
fn patch_3_wakes_the_fullest_queue_next() {
    let mut hall = Hall::kuai(64, at_once(), &[1, 2, 3]);
    hall.fill();
    // The fourth queue has one more.
    hall.ask(84, 1);
    hall.put_each(24);
    assert_eq!(hall.tags.waiters_per_queue(), [3, 3, 3, 11, 10, 10, 10, 10]);
    hall.ask(12, 1);
    assert_eq!(hall.tags.waiters_per_queue(), [4, 4, 4, 12, 12, 12, 12, 12]);
    hall.put_each(8);
    assert_eq!(hall.tags.waiters_per_queue(), [4, 4, 4, 4, 12, 12, 12, 12]);
}

#[test]
fn patch_4_keeps_newcomers_out_while_more_than_eight_wait() {
    for (sleepers, got) in [(8, vec![8]), (9, vec![])] {
        let mut hall = Hall::kuai(64, late(), &[4]);
        hall.fill();
        hall.ask(sleepers, 1);
        hall.put(1);
        assert_eq!(hall.ask(1, 1), got, "{sleepers} sleepers");
        let prevented = u64::from(sleepers == 9);
        assert_eq!(hall.tags.stats().barging_prevented, prevented);
    }
}

#[test]
fn patch_4_lets_those_in_who_were_woken() {
    let mut hall = Hall::kuai(64, late(), &[2, 4]);
    hall.fill();
    hall.ask(80, 1);
    hall.put_each(8);
    assert_eq!(hall.pass(2 * SEC), [0, 8, 16, 24, 32, 40, 48, 56], "72 others wait");
}

/// With 30 sleepers, `back` tags come back before anybody of them has woken up, then `newcomers` come: how many get a tag.
/// Then eight more tags come back, and one more newcomer comes.
fn plenty(wake_batch: u32, back: u32, newcomers: u32) -> (usize, usize) {
    let mut hall = Hall::kuai(64, WakeOptions { wake_batch, ..late() }, &[1, 2, 3, 4, 5]);
    hall.fill();
    hall.ask(40, 1);
    hall.put_each(back);
    let first = hall.ask(newcomers, 1).len();
    hall.put_each(8);
    (first, hall.ask(1, 1).len())
}

#[test]
fn patch_5_lets_newcomers_in_from_more_than_two_batches_to_one() {
    assert_eq!(plenty(8, 8, 1).0, 0, "one batch is free when it is woken: off");
    assert_eq!(plenty(8, 16, 1).0, 0, "two batches are not more than two");
    assert_eq!(plenty(8, 24, 1).0, 1, "three are");
    // 20 newcomers leave 4; with the next batch 12 are free, which is between the thresholds: it stays as it is.
    assert_eq!(plenty(8, 24, 20), (20, 1));
    // 24 leave none, and with the next batch no more than one batch is free: off.
    assert_eq!(plenty(8, 24, 24), (24, 0));
    assert_eq!(plenty(1, 24, 1).0, 0, "those who are woken one by one leave no tag idle");
}

#[test]
fn patch_6_lets_the_later_pieces_of_a_bio_in() {
    let pieces = |numbers: &[u8]| {
        let mut hall = Hall::kuai(64, WakeOptions { wake_batch: 1, ..late() }, numbers);
        hall.fill();
        hall.ask(1, 3);
        hall.ask(39, 1);
        hall.put(1);
        let first = hall.pass(2 * SEC);
        assert_eq!(first, [0], "its first piece was woken for");
        hall.tags.stats().barged
    };
    assert_eq!((pieces(&[2, 4]), pieces(&[2, 4, 6])), (0, 0));

    // All but the first of four pieces find tags, behind 39 sleepers of which none was woken yet.
    let got = |numbers: &[u8]| {
        let mut hall = Hall::kuai(64, WakeOptions { wake_batch: 8, ..late() }, numbers);
        hall.fill();
        hall.ask(1, 4);
        hall.ask(39, 1);
        hall.put_each(8);
        hall.put_each(4);
        hall.pass(2 * SEC).iter().filter(|&&id| id == 0).count()
    };
    assert_eq!((got(&[2, 4]), got(&[2, 4, 6])), (1, 4));
}

#[test]
fn patches_7_and_8_wake_only_those_who_will_take_the_tags() {
    let woken = |want, numbers: &[u8]| {
        let mut hall = Hall::kuai(64, late(), numbers);
        hall.fill();
        hall.ask(80, want);
        hall.put_each(8);
        hall.tags.stats().woken
    };
    assert_eq!([1, 3, 8, 20].map(|want| woken(want, &[1, 2, 3, 7, 8])), [8, 3, 1, 1]);
    assert_eq!((woken(8, &[8]), woken(8, &[7])), (8, 8), "neither does it alone");
}

#[test]
fn all_patches_give_a_batch_of_tags_to_the_pieces_of_one_bio() {
    let wake = WakeOptions { per_piece_ns: 6_000, ..at_once() };
    let mut hall = Hall::kuai(64, wake, &[1, 2, 3, 4, 5, 6, 7, 8]);
    hall.fill();
    hall.ask(64, 8);
    let mut got = hall.put_each(8);
    got.extend(hall.pass(100_000));
    assert_eq!(got, [0; 8]);
}

#[test]
fn woken_tasks_are_whole_batches_of_the_tags_that_fell_free() {
    for seed in 0..20 {
        for batch in 1..=8 {
            let wake = WakeOptions { wake_batch: batch, seed, ..late() };
            let mut hall = Hall::kuai(64, wake, &[1, 2, 3, 4, 5, 6]);
            hall.fill();
            hall.ask(400, 1);
            for freed in 1..=32 {
                hall.put(1);
                hall.pass(1_000_000);
                let whole = u64::from(freed / batch * batch);
                assert_eq!(hall.tags.stats().woken, whole, "seed {seed} batch {batch}");
            }
        }
    }
}
