//! What Linux 5.18 gets wrong, each by its name in `tags::legacy518`.

use headworks_core::tags::{Requester, ReturnedTags, TagOptions, TagOwner};
use headworks_core::time::SEC;
use headworks_core::{Instant, ShardId};
use headworks_lab::baseline::{Legacy518, WakeOptions};

use crate::hall::{Hall, at_once, late};

#[test]
fn a_batch_is_woken_for_a_batch_of_tags_and_the_queues_take_turns() {
    let mut hall = Hall::legacy(64, at_once());
    hall.fill();
    assert!(hall.ask(24, 1).is_empty());
    assert_eq!(hall.tags.waiters_per_queue(), [3; 8]);
    assert_eq!(hall.put_each(7), [0_u32; 0], "the batch is 8");
    // The queue holds three: the other five tags are for whoever comes.
    assert_eq!(hall.put_each(1), [0, 8, 16]);
    assert_eq!(hall.put_each(8), [1, 9, 17], "the next queue");
    assert_eq!((hall.tags.stats().wakes, hall.tags.stats().woken), (2, 6));
}

#[test]
fn the_batch_follows_the_depth() {
    let batch = |depth| Hall::legacy(depth, at_once()).tags.wake_batch();
    assert_eq!([1, 8, 15, 16, 31, 62, 64, 1024].map(batch), [1, 1, 1, 2, 3, 7, 8, 8]);
    let set = WakeOptions { wake_batch: 5, ..at_once() };
    assert_eq!(Hall::legacy(64, set).tags.wake_batch(), 5);
}

#[test]
fn u1_a_newcomer_takes_a_freed_tag_before_a_hundred_sleepers() {
    let mut hall = Hall::legacy(64, late());
    hall.fill();
    assert!(hall.ask(100, 1).is_empty());
    assert!(hall.put(1).is_empty());
    assert_eq!(hall.ask(1, 1), [100]);
    let stats = hall.tags.stats();
    assert_eq!((stats.barged, stats.barging_prevented, stats.waits), (1, 0, 100));
}

/// 80 sleepers, ten in each queue; `at_once` tags come back together, then `apart` one by one; who is left where, and how
/// many were woken.
fn left(seed: u32, at_once_count: u32, apart: u32) -> ([u32; 8], u64) {
    let mut hall = Hall::legacy(64, WakeOptions { seed, ..at_once() });
    hall.fill();
    hall.ask(80, 1);
    hall.put(at_once_count);
    hall.put_each(apart);
    (hall.tags.waiters_per_queue(), hall.tags.stats().woken)
}

#[test]
fn u2_a_stale_store_wakes_the_same_queue_again() {
    let fair = ([2, 2, 10, 10, 10, 10, 10, 10], 16);
    // One of nine wakers read the index before the batch was complete and stored it after: the next batch is the first
    // queue's again, which holds two.
    let stale = ([0, 10, 10, 10, 10, 10, 10, 10], 10);
    let runs: Vec<_> = (0..200).map(|seed| left(seed, 9, 8)).collect();
    assert!(runs.iter().all(|run| [fair, stale].contains(run)), "{runs:?}");
    let count = runs.iter().filter(|&&run| run == stale).count();
    assert!((10..100).contains(&count), "{count}");
}

#[test]
fn u3_two_batches_wake_one_queue_and_the_next_is_skipped() {
    // The waker that completed the first batch is interrupted before it moves the index, and another completes a second
    // batch for the same queue meanwhile. Both move the index, so the third batch is the third queue's.
    let skipped = ([0, 10, 2, 10, 10, 10, 10, 10], 18);
    let count = (0..1_000).filter(|&seed| left(seed, 16, 8) == skipped).count();
    assert!(count > 10, "{count}");
}

#[test]
fn u4_a_queue_is_used_up_by_who_does_not_sleep() {
    let mut hall = Hall::legacy(8, at_once());
    hall.fill();
    hall.ask(1, 1);
    assert_eq!(hall.tags.waiters_per_queue(), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(hall.put(1), [0], "it was woken, chose the second queue, and got its tag");
    hall.ask(1, 1);
    assert_eq!(hall.tags.waiters_per_queue(), [0, 0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn u5_who_was_woken_and_lost_the_race_loses_its_age() {
    let mut hall = Hall::legacy(8, late());
    hall.fill();
    hall.ask(10, 1);
    assert_eq!(hall.tags.waiters_per_queue(), [2, 2, 1, 1, 1, 1, 1, 1]);
    hall.put(1);
    assert_eq!(hall.ask(1, 1), [10], "the newcomer has it before the first of all has woken up");
    assert!(hall.pass(2 * SEC).is_empty());
    assert_eq!(hall.tags.waiters_per_queue(), [1, 2, 2, 1, 1, 1, 1, 1]);
    // Nobody races now. It was the first to come and is the last of its queue, the ninth of eleven.
    let mut order = Vec::new();
    for _ in 0..11 {
        order.extend(hall.put(1));
        order.extend(hall.pass(2 * SEC));
    }
    assert_eq!(order.iter().position(|&id| id == 0), Some(9), "{order:?}");
    assert!(hall.tags.stats().longest_wait_ns > 20 * SEC);
}

#[test]
fn u6_a_batch_of_tags_goes_to_a_piece_each_of_as_many_bios() {
    let mut hall = Hall::legacy(64, WakeOptions { per_piece_ns: 6_000, ..at_once() });
    hall.fill();
    hall.ask(64, 8);
    let mut got = hall.put_each(8);
    got.sort_unstable();
    assert_eq!(got, [0, 8, 16, 24, 32, 40, 48, 56], "a piece of each of the first queue's bios");
    assert_eq!(hall.tags.stats().grants, 64, "only those that filled the tags have all they want");
}

#[test]
fn asynchronous_ones_hold_no_more_than_their_part() {
    let options = TagOptions { depth: 8, async_depth: 2, waiters_max: 64 };
    let mut hall = Hall::of(Legacy518::new(options, at_once()));
    (0..4).for_each(|id| hall.ask_as(Requester::Request(id), 1, false));
    assert_eq!(hall.pass(0), [0, 1]);
    hall.ask_as(Requester::Request(9), 1, true);
    assert_eq!(hall.pass(0), [9], "a synchronous one finds tags");
    hall.tags.put(Instant(hall.now), ReturnedTags { count: 1, asyncs: 1 });
    assert_eq!((hall.pass(10_000), hall.tags.free()), (vec![2], 5));
}

#[test]
fn leases_are_gathered_one_after_the_other() {
    let wake = WakeOptions { per_piece_ns: 6_000, ..at_once() };
    let mut hall = Hall::legacy(4, wake);
    hall.fill();
    (0..3).for_each(|shard| hall.ask_as(Requester::Shard(ShardId(shard)), 3, true));
    // Two that hold two each would wait for ever. (A lease of three tags of shard 0 reads 1000003.)
    assert_eq!(hall.put_each(4), [1_000_003]);
    assert_eq!((hall.tags.waiters(), hall.tags.free()), (2, 0));
    assert_eq!(hall.put_each(3), [1_000_103]);
    assert_eq!(hall.put_each(3), [1_000_203]);
    assert_eq!((hall.tags.waiters(), hall.tags.free()), (0, 1));
}
