//! Counters of hits and misses: every block that a read gets is one of both, and neither ever falls.

use headworks_core::{Op, Status};

use crate::harness::Harness;

const BLOCK: u64 = 4096;

/// Hits and misses.
fn counted(harness: &Harness) -> (u64, u64) {
    let stats = harness.stats();
    (stats.hits, stats.misses)
}

#[test]
fn block_of_a_read_is_a_hit_or_a_miss_and_no_counter_falls() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(0, Op::Read, 0, 8 * BLOCK);
    assert_eq!(counted(&harness), (0, 8));
    harness.settle(Ok(()));
    assert_eq!(counted(&harness), (0, 8), "a block that was waited for is no hit");
    harness.send(0, Op::Read, 0, 8 * BLOCK);
    assert_eq!(counted(&harness), (8, 8));
    // Two cached blocks, then some that another read already waits for, then missing ones; bytes, not blocks.
    harness.send(1, Op::Read, 100 * BLOCK, 2 * BLOCK);
    assert_eq!(counted(&harness), (8, 10));
    harness.send(0, Op::Read, 102 * BLOCK + 7, BLOCK);
    assert_eq!(counted(&harness), (8, 12));
    harness.settle(Ok(()));
    assert_eq!(counted(&harness), (8, 12));
    harness.send(0, Op::Read, 100 * BLOCK + 1, 4 * BLOCK);
    assert_eq!(counted(&harness), (12, 13));
    harness.settle(Ok(()));
    assert_eq!(counted(&harness), (12, 13));
}

#[test]
fn cached_blocks_between_missing_ones_are_hits() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(0, Op::Write, 201 * BLOCK, BLOCK);
    harness.send(0, Op::Read, 200 * BLOCK, 3 * BLOCK);
    let status: Status = Ok(());
    harness.settle(status);
    assert_eq!(counted(&harness), (1, 2));
    harness.send(0, Op::Read, 200 * BLOCK, 3 * BLOCK);
    assert_eq!(counted(&harness), (4, 2));
}
