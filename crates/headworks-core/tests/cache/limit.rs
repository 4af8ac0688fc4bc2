//! The limit of frames that moves while the cache runs: what is beyond it is evicted and released, and nothing else.

use headworks_core::time::SEC;
use headworks_core::writeback::ThrottlePolicy;
use headworks_core::{Control, Input, Op};

use crate::harness::{BLOCK, Harness, MIB};

/// Sets the limit, and serves timers and the device until nothing more is released.
fn limit(harness: &mut Harness, units: u32) {
    harness.control(Control::CacheLimit { units, dirtyable: 0 });
    for _ in 0..10_000 {
        let before = (harness.released.len(), harness.in_flight.len());
        harness.wait(0);
        harness.settle(Ok(()));
        if before == (harness.released.len(), 0) {
            return;
        }
    }
    panic!("it releases for ever");
}

fn released(harness: &Harness) -> u64 {
    harness.released.iter().map(|&(_, len)| u64::from(len)).sum()
}

/// Reads a range and returns how many blocks of it were hits.
fn hits(harness: &mut Harness, blocks: std::ops::Range<u64>) -> u64 {
    let before = harness.stats().hits;
    for block in blocks {
        harness.send(1, Op::Read, block * BLOCK, BLOCK);
        harness.settle(Ok(()));
    }
    harness.stats().hits - before
}

/// A cache of 16 MiB with 15 MiB of clean blocks, of which the first 256 were read again.
fn full() -> Harness {
    let mut harness = Harness::new(4096, |config| config.dirty.policy = ThrottlePolicy::None);
    for at in 0..15 {
        harness.send(1, Op::Read, at * MIB, MIB);
        harness.settle(Ok(()));
    }
    assert_eq!(hits(&mut harness, 0..256) + hits(&mut harness, 0..256), 512);
    harness
}

#[test]
fn lowered_limit_releases_what_is_beyond_it_and_keeps_what_is_used() {
    let mut harness = full();
    assert_eq!((harness.stats().size.units, released(&harness)), (4096, 0));
    limit(&mut harness, 1024);
    let stats = harness.stats();
    assert_eq!((stats.size.units, stats.size.room), (1024, 4096));
    assert!(stats.size.resident <= 1024 && released(&harness) == 3072 * BLOCK, "{stats:?}");
    assert_eq!(hits(&mut harness, 0..256), 256, "what was used again is the last to go");
    harness.shard.check_cache();
}

#[test]
fn raised_limit_is_used_again() {
    let mut harness = full();
    limit(&mut harness, 512);
    limit(&mut harness, u32::MAX);
    assert_eq!((harness.stats().size.units, harness.stats().size.free > 3000), (4096, true));
    for at in 0..12 {
        harness.send(1, Op::Read, at * MIB, MIB);
        harness.settle(Ok(()));
    }
    assert_eq!(hits(&mut harness, 0..12 * 256), 12 * 256);
    assert_eq!(released(&harness), 3584 * BLOCK, "nothing was released since");
}

#[test]
fn a_turn_releases_a_bounded_number_of_ranges() {
    let mut harness = Harness::new(4096, |_| {});
    for at in 0..3000 {
        harness.send(1, Op::Read, at * 2 * BLOCK, BLOCK);
        harness.settle(Ok(()));
    }
    harness.control(Control::CacheLimit { units: 256, dirtyable: 0 });
    let mut turns = 0;
    while harness.stats().size.resident > 256 {
        let before = harness.released.len();
        harness.turn(&[Input::Timer]);
        assert!((1..=32).contains(&(harness.released.len() - before)), "it goes on");
        turns += 1;
    }
    assert!(turns > 20, "{turns} turns");
}

#[test]
fn dirty_blocks_are_written_out_before_they_are_released() {
    let mut harness = Harness::new(4096, |config| {
        config.dirty.dirty_ratio = 90;
        config.dirty.dirty_background_ratio = 90;
        config.dirty.policy = ThrottlePolicy::None;
    });
    for at in 0..6 {
        harness.send(1, Op::Write, at * MIB, MIB);
    }
    assert!(harness.dirty().nr_dirty >= 1024, "more than fits");
    limit(&mut harness, 512);
    harness.wait_served(60 * SEC, Ok(()));
    let stats = harness.stats();
    assert!(stats.size.resident <= 512, "{stats:?}");
    assert!(released(&harness) >= (2048 - 512) * BLOCK, "and what was prepared");
    assert!(harness.written >= (6 * 256 - 512) * BLOCK, "{} written", harness.written);
    let threshold = harness.dirty().nr_dirty_threshold;
    assert!(threshold < 512, "the dirty limit follows: {threshold}");
}

#[test]
fn frozen_cache_releases_nothing_until_it_is_thawed() {
    let mut harness = full();
    harness.control(Control::Freeze { on: true });
    limit(&mut harness, 1024);
    assert_eq!(released(&harness), 0);
    harness.control(Control::Freeze { on: false });
    limit(&mut harness, 1024);
    assert_eq!(released(&harness), 3072 * BLOCK);
}

#[test]
fn contents_move_to_a_shard_whose_tables_have_not_grown() {
    let mut harness = full();
    limit(&mut harness, 2048);
    harness.hand_over(|_| {}, Some).unwrap();
    assert_eq!(harness.stats().size.units, 4096, "the new shard has the limit of its options");
    assert_eq!(hits(&mut harness, 0..256), 256);
    harness.shard.check_cache();
}

/// A cache of 16 MiB, of which 4 MiB have memory.
fn partly_backed() -> Harness {
    Harness::new(4096, |config| {
        config.cache.backed = 1024;
        config.dirty.policy = ThrottlePolicy::None;
    })
}

/// Answers the last range that was prepared.
fn answer(harness: &mut Harness, had: bool) {
    let (at, len) = *harness.prepared.last().unwrap();
    let (first, units) = ((at / BLOCK) as u32, len / BLOCK as u32);
    harness.control(Control::CacheMemory { first, units, had });
}

/// Has the memory of all ranges that are prepared.
fn answer_new(harness: &mut Harness) {
    while !harness.prepared.is_empty() {
        answer(harness, true);
        harness.prepared.remove(0);
    }
}

#[test]
fn operation_without_a_frame_continues_when_memory_is_had() {
    let mut harness = partly_backed();
    for at in 0..5 {
        harness.send(1, Op::Read, at * MIB, MIB);
    }
    let before = harness.in_flight.len();
    assert_eq!(harness.prepared, [(1024 * BLOCK, 1024 * BLOCK as u32)]);
    answer(&mut harness, true);
    assert!(harness.in_flight.len() > before, "the frames with memory are used");
    harness.settle(Ok(()));
    assert_eq!(harness.answers.len(), 5);
    harness.shard.check_cache();
}

#[test]
fn nothing_is_evicted_while_memory_is_asked_for() {
    let mut harness = partly_backed();
    for at in 0..3 {
        harness.send(1, Op::Read, at * MIB, MIB);
        harness.settle(Ok(()));
    }
    // More than has memory: what does not fit waits.
    harness.send(1, Op::Read, 3 * MIB, MIB);
    harness.send(1, Op::Read, 4 * MIB, MIB);
    harness.settle(Ok(()));
    assert_eq!((harness.answers.len(), harness.stats().evicted_folios), (3, 0));
    answer(&mut harness, true);
    harness.settle(Ok(()));
    assert_eq!((harness.answers.len(), harness.stats().evicted_folios), (5, 0));
    // A frozen cache asks for nothing.
    for at in 5..9 {
        harness.send(1, Op::Read, at * MIB, MIB);
        harness.settle(Ok(()));
    }
    assert!(harness.answers.len() < 9);
    harness.control(Control::Freeze { on: true });
    harness.settle(Ok(()));
    assert_eq!(harness.answers.len(), 9);
    harness.shard.check_cache();
}

#[test]
fn frames_that_the_old_shard_got_meanwhile_are_adopted_and_the_next_are_asked_for() {
    let mut harness = partly_backed();
    for at in 0..9 {
        harness.send(1, Op::Read, at * MIB, MIB);
        answer_new(&mut harness);
    }
    harness.settle(Ok(()));
    assert_eq!(harness.answers.len(), 9);
    // The new process has reserved what the old one had when it started, and 4 MiB.
    harness.hand_over(|config| config.cache.backed = 2048, Some).unwrap();
    assert_eq!(hits(&mut harness, 0..2304), 2304);
    for at in 9..14 {
        harness.send(1, Op::Read, at * MIB, MIB);
    }
    harness.settle(Ok(()));
    assert!(harness.prepared.iter().all(|(at, _)| *at >= 9 * MIB), "{:?}", harness.prepared);
    answer_new(&mut harness);
    harness.settle(Ok(()));
    assert_eq!(harness.answers.len(), 9 + 2304 + 5);
    harness.shard.check_cache();
}

#[test]
fn refused_memory_is_a_smaller_cache_that_serves() {
    let mut harness = partly_backed();
    harness.send(1, Op::Read, 0, BLOCK);
    answer(&mut harness, false);
    assert_eq!(harness.stats().size.units, 1024);
    for at in 0..15 {
        harness.send(1, Op::Read, at * MIB, MIB);
        harness.send(1, Op::Write, at * MIB, MIB);
        harness.settle(Ok(()));
    }
    assert!(harness.stats().size.resident <= 1024 && harness.prepared.len() == 1);
    answer(&mut harness, true);
    assert_eq!(harness.stats().size.units, 4096);
    harness.shard.check_cache();
}

#[test]
fn memory_that_was_given_back_is_asked_for_again() {
    let mut harness = partly_backed();
    let mut done = 0;
    let mut read = |harness: &mut Harness, parts: std::ops::Range<u64>| {
        for at in parts {
            harness.send(1, Op::Read, at * MIB, MIB);
            harness.settle(Ok(()));
            while done < harness.prepared.len() {
                let (at, len) = harness.prepared[done];
                let (first, units) = ((at / BLOCK) as u32, len / BLOCK as u32);
                harness.control(Control::CacheMemory { first, units, had: true });
                done += 1;
            }
        }
    };
    read(&mut harness, 0..20);
    let prepared = harness.prepared.len();
    limit(&mut harness, 1024);
    harness.control(Control::CacheLimit { units: 4096, dirtyable: 0 });
    read(&mut harness, 20..60);
    assert!(harness.prepared.len() > prepared, "withheld frames have no memory");
    assert!(harness.stats().size.resident > 3000, "{:?}", harness.stats());
    harness.shard.check_cache();
}
