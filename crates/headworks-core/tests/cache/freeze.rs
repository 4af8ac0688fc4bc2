//! A frozen cache starts nothing of its own, and becomes quiet whatever is dirty; what operations wait for is still written.

use headworks_core::time::{MS, SEC};
use headworks_core::writeback::ThrottlePolicy;
use headworks_core::{BioFlags, Control, ErrorPolicy, Op};

use crate::harness::{BLOCK, FAILS, Harness, MIB};

const ON: Control = Control::Freeze { on: true };
const OFF: Control = Control::Freeze { on: false };

fn writes(harness: &Harness) -> u64 {
    harness.commands[Op::Write as usize]
}

/// Counts the timers that expire within a time in which nothing completes.
fn timers_within(harness: &mut Harness, ns: u64) -> u32 {
    let (end, mut count) = (harness.now + ns, 0);
    while harness.timer.is_some_and(|at| at <= end) {
        let until = harness.timer.unwrap();
        harness.wait(until.saturating_sub(harness.now));
        count += 1;
        assert!(count < 1000, "a timer is set again and again");
    }
    harness.wait(end - harness.now);
    count
}

#[test]
fn frozen_cache_writes_nothing_and_is_quiet() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Write, 0, MIB);
    harness.control(ON);
    assert!(harness.shard.is_quiet() && harness.dirty().nr_dirty == 256);
    // The tick of the throttle ends when no writer is active; no other timer is set.
    assert!(timers_within(&mut harness, 3 * SEC) < 40);
    assert_eq!(timers_within(&mut harness, 1000 * SEC), 0, "data that is old waits");
    assert_eq!(writes(&harness), 0);
    harness.control(OFF);
    harness.wait_served(40 * SEC, Ok(()));
    assert!(writes(&harness) > 0 && harness.dirty().nr_dirty == 0, "the flusher runs again");
}

#[test]
fn freeze_ends_pass_of_flusher_after_what_is_in_flight() {
    let mut harness = Harness::new(8192, |config| {
        config.dirty.dirty_background_ratio = 1;
        config.dirty.policy = ThrottlePolicy::None;
    });
    for at in 0..4 {
        harness.send(1, Op::Write, at * MIB, MIB);
    }
    let sent = writes(&harness);
    assert!(sent > 0 && harness.dirty().nr_dirty > 0, "a pass is in progress");
    harness.control(ON);
    harness.settle(Ok(()));
    assert!(harness.shard.is_quiet() && harness.dirty().nr_dirty > 0);
    assert_eq!(writes(&harness), sent, "nothing was sent after the freeze");
    harness.control(OFF);
    harness.settle(Ok(()));
    assert!(writes(&harness) > sent, "the pass continues");
}

#[test]
fn flush_and_fua_complete_in_frozen_cache() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Write, 0, MIB);
    let before = harness.send(1, Op::Flush, 0, 0);
    harness.control(ON);
    assert!(!harness.shard.is_quiet());
    harness.settle(Ok(()));
    let fua = harness.send_flags(1, Op::Write, MIB, BLOCK, BioFlags::FUA);
    harness.send(1, Op::Write, 2 * MIB, BLOCK);
    let after = harness.send(1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    let answers = [before, fua, after].map(|id| harness.answer(id));
    assert_eq!(answers, [Some(Ok(())); 3]);
    assert!(harness.shard.is_quiet());
}

#[test]
fn writers_without_credit_or_in_a_pause_end_in_frozen_cache() {
    let mut harness = Harness::new(4096, |config| config.dirty.dirty_bytes = 512 * BLOCK);
    let ids: Vec<_> = (0..8).map(|at| harness.send(at as u32, Op::Write, at * MIB, MIB)).collect();
    let unanswered =
        |harness: &Harness| ids.iter().filter(|&&id| harness.answer(id).is_none()).count();
    assert!(unanswered(&harness) > 0, "writers wait");
    harness.control(ON);
    harness.settle(Ok(()));
    assert_eq!((unanswered(&harness), harness.shard.is_quiet()), (0, true), "without a timer");
    assert!(harness.dirty().nr_dirty > 0, "only as much is written as they needed");
}

#[test]
fn read_without_frame_gets_one_in_frozen_cache() {
    let mut harness = Harness::new(256, |config| {
        config.dirty.dirty_ratio = 90;
        config.dirty.dirty_background_ratio = 80;
    });
    harness.control(ON);
    for at in 0..40 {
        harness.send(1, Op::Write, at * 8 * BLOCK, 8 * BLOCK);
    }
    let read = harness.send(2, Op::Read, 100 * MIB, 16 * BLOCK);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(read), Some(Ok(())));
    assert!(harness.shard.is_quiet());
}

#[test]
fn failed_write_out_is_retried_after_the_freeze_only() {
    let mut harness = Harness::new(4096, |config| {
        config.volumes[0].options.on_error = ErrorPolicy::Retry;
    });
    harness.send(1, Op::Write, 0, BLOCK);
    let flush = harness.send(1, Op::Flush, 0, 0);
    harness.control(ON);
    harness.settle(FAILS);
    assert_eq!((harness.answer(flush), harness.stats().held), (Some(FAILS), 1));
    let sent = writes(&harness);
    assert!(timers_within(&mut harness, 100 * SEC) < 40 && harness.shard.is_quiet());
    assert_eq!(writes(&harness), sent);
    harness.control(OFF);
    harness.wait_served(100 * MS, Ok(()));
    assert_eq!((writes(&harness), harness.stats().held), (sent + 1, 0));
}

#[test]
fn frozen_cache_reads_nothing_ahead() {
    let mut harness = Harness::new(4096, |config| config.devices[0].queue.read_ahead_kb = 1024);
    harness.control(ON);
    for at in 0..64 {
        harness.send(1, Op::Read, at * 4 * BLOCK, 4 * BLOCK);
        harness.settle(Ok(()));
    }
    harness.send(1, Op::Prefetch, 100 * MIB, MIB);
    assert_eq!((harness.stats().read_ahead, harness.in_flight.len()), (0, 0));
}

#[test]
fn freeze_ends_truncation_in_progress() {
    let mut harness = Harness::new(65_536, |config| config.devices[0].queue.max_folio_order = 0);
    for at in 0..24 {
        harness.send(1, Op::Write, at * MIB, MIB);
    }
    let volume = headworks_core::VolumeId(0);
    harness.control(Control::Resize { volume, size: MIB });
    assert!(!harness.shard.is_quiet(), "one turn does not drop all of it");
    harness.control(ON);
    assert!(harness.shard.is_quiet());
    assert_eq!(harness.dirty().nr_dirty, 256, "blocks past the end are gone");
}
