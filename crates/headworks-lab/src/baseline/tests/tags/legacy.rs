//! The faults of Linux 5.18, by their names in `baseline::legacy518`.

use crate::baseline::{Legacy518, WakeOptions};
use headworks_core::tags::{Requester, ReturnedTags, TagOptions, TagOwner};
use headworks_core::time::SEC;
use headworks_core::{Instant, ShardId};

use super::bench::{Bench, at_once, late};

#[test]
fn batch_of_tags_wakes_batch_of_tasks_queue_by_queue() {
    let mut bench = Bench::legacy(64, at_once());
    bench.fill();
    assert!(bench.request(24, 1).is_empty());
    assert_eq!(bench.tags.waiters_per_queue(), [3; 8]);
    assert_eq!(bench.put_each(7), [0_u32; 0], "the batch is 8");
    // The queue holds three tasks: the other five tags stay free.
    assert_eq!(bench.put_each(1), [0, 8, 16]);
    assert_eq!(bench.put_each(8), [1, 9, 17], "the next queue");
    assert_eq!((bench.tags.stats().wakes, bench.tags.stats().woken), (2, 6));
}

#[test]
fn wake_batch_follows_depth() {
    let batch = |depth| Bench::legacy(depth, at_once()).tags.wake_batch();
    assert_eq!([1, 8, 15, 16, 31, 62, 64, 1024].map(batch), [1, 1, 1, 2, 3, 7, 8, 8]);
    let set = WakeOptions { wake_batch: 5, ..at_once() };
    assert_eq!(Bench::legacy(64, set).tags.wake_batch(), 5);
}

#[test]
fn u1_newcomer_takes_freed_tag_before_sleepers() {
    let mut bench = Bench::legacy(64, late());
    bench.fill();
    assert!(bench.request(100, 1).is_empty());
    assert!(bench.put(1).is_empty());
    assert_eq!(bench.request(1, 1), [100]);
    let stats = bench.tags.stats();
    assert_eq!((stats.barged, stats.barging_prevented, stats.waits), (1, 0, 100));
}

/// Puts back `at_once` tags together, then `apart` one by one, with 80 sleepers, ten in each queue. Returns the waiters of each
/// queue and the number of woken tasks.
fn left(seed: u32, at_once_count: u32, apart: u32) -> ([u32; 8], u64) {
    let mut bench = Bench::legacy(64, WakeOptions { seed, ..at_once() });
    bench.fill();
    bench.request(80, 1);
    bench.put(at_once_count);
    bench.put_each(apart);
    (bench.tags.waiters_per_queue(), bench.tags.stats().woken)
}

#[test]
fn u2_stale_store_wakes_same_queue_again() {
    let fair = ([2, 2, 10, 10, 10, 10, 10, 10], 16);
    // One of nine wakers read the index before the batch was complete and stored it later: the next batch goes to the first
    // queue again, which holds two tasks.
    let stale = ([0, 10, 10, 10, 10, 10, 10, 10], 10);
    let runs: Vec<_> = (0..200).map(|seed| left(seed, 9, 8)).collect();
    assert!(runs.iter().all(|run| [fair, stale].contains(run)), "{runs:?}");
    let count = runs.iter().filter(|&&run| run == stale).count();
    assert!((10..100).contains(&count), "{count}");
}

#[test]
fn u3_two_batches_wake_one_queue_and_skip_next() {
    // The waker that completed the first batch is interrupted before it moves the index, and another completes a second
    // batch for the same queue meanwhile. Both move the index, so the third batch is the third queue's.
    let skipped = ([0, 10, 2, 10, 10, 10, 10, 10], 18);
    let count = (0..1_000).filter(|&seed| left(seed, 16, 8) == skipped).count();
    assert!(count > 10, "{count}");
}

#[test]
fn u4_task_that_does_not_sleep_uses_up_queue() {
    let mut bench = Bench::legacy(8, at_once());
    bench.fill();
    bench.request(1, 1);
    assert_eq!(bench.tags.waiters_per_queue(), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bench.put(1), [0], "the task was woken, chose the second queue, and got its tag");
    bench.request(1, 1);
    assert_eq!(bench.tags.waiters_per_queue(), [0, 0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn u5_woken_task_that_loses_race_loses_age() {
    let mut bench = Bench::legacy(8, late());
    bench.fill();
    bench.request(10, 1);
    assert_eq!(bench.tags.waiters_per_queue(), [2, 2, 1, 1, 1, 1, 1, 1]);
    bench.put(1);
    assert_eq!(bench.request(1, 1), [10], "the newcomer is first, before the woken task runs");
    assert!(bench.pass(2 * SEC).is_empty());
    assert_eq!(bench.tags.waiters_per_queue(), [1, 2, 2, 1, 1, 1, 1, 1]);
    // Without races: the first task is now the last of its queue, the tenth of eleven.
    let mut order = Vec::new();
    for _ in 0..11 {
        order.extend(bench.put(1));
        order.extend(bench.pass(2 * SEC));
    }
    assert_eq!(order.iter().position(|&id| id == 0), Some(9), "{order:?}");
    assert!(bench.tags.stats().longest_wait_ns > 20 * SEC);
}

#[test]
fn u6_batch_of_tags_goes_to_pieces_of_many_bios() {
    let mut bench = Bench::legacy(64, WakeOptions { per_piece_ns: 6_000, ..at_once() });
    bench.fill();
    bench.request(64, 8);
    let mut got = bench.put_each(8);
    got.sort_unstable();
    assert_eq!(got, [0, 8, 16, 24, 32, 40, 48, 56], "a piece of each of the first queue's bios");
    assert_eq!(
        bench.tags.stats().grants,
        64,
        "only the tasks that filled the tags have all they want"
    );
}

#[test]
fn asynchronous_tasks_hold_at_most_async_depth() {
    let options = TagOptions { depth: 8, async_depth: 2, waiters_max: 64 };
    let mut bench = Bench::of(Legacy518::new(options, at_once()));
    (0..4).for_each(|id| bench.request_as(Requester::Request(id), 1, false));
    assert_eq!(bench.pass(0), [0, 1]);
    bench.request_as(Requester::Request(9), 1, true);
    assert_eq!(bench.pass(0), [9], "a synchronous task finds tags");
    bench.tags.put(Instant(bench.now), ReturnedTags { count: 1, asyncs: 1 });
    assert_eq!((bench.pass(10_000), bench.tags.free()), (vec![2], 5));
}

#[test]
fn leases_are_gathered_one_by_one() {
    let wake = WakeOptions { per_piece_ns: 6_000, ..at_once() };
    let mut bench = Bench::legacy(4, wake);
    bench.fill();
    (0..3).for_each(|shard| bench.request_as(Requester::Shard(ShardId(shard)), 3, true));
    // Two leases that hold two tags each would deadlock. (A lease of three tags of shard 0 reads 1000003.)
    assert_eq!(bench.put_each(4), [1_000_003]);
    assert_eq!((bench.tags.waiters(), bench.tags.free()), (2, 0));
    assert_eq!(bench.put_each(3), [1_000_103]);
    assert_eq!(bench.put_each(3), [1_000_203]);
    assert_eq!((bench.tags.waiters(), bench.tags.free()), (0, 1));
}
