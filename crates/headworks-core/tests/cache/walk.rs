//! Discards and truncations that take several turns: other clients are served between, and none sees half of one.

use headworks_core::{Control, Input, Op, VolumeId};

use crate::harness::{BLOCK, Harness, MIB};

/// The cached part of the volume's first 100 MiB, in folios of a block.
const CACHED: u64 = 25_600;
/// The folios that one turn may drop.
const MOST: u64 = 2048;

/// A volume of which everything is cached and one block in 100 dirty; and a block far away.
fn harness() -> Harness {
    let mut harness = Harness::new(32_768, |config| {
        config.devices[0].queue.max_folio_order = 0;
        config.dirty.dirty_writeback_centisecs = 0;
    });
    for at in 0..100 {
        harness.send(1, Op::Read, at * MIB, MIB);
        harness.settle(Ok(()));
        harness.send(1, Op::Write, at * MIB, 2 * BLOCK + BLOCK / 2);
    }
    harness.send(1, Op::Read, 1 << 35, BLOCK);
    harness.settle(Ok(()));
    assert_eq!((harness.stats().size.resident, harness.dirty().nr_dirty), (CACHED + 1, 300));
    harness
}

/// Runs one more turn, in which a client far away is served.
fn next(harness: &mut Harness) {
    assert!(harness.timer.take().is_some_and(|at| at <= harness.now), "it goes on at once");
    let before = harness.stats().size.resident;
    harness.turn(&[Input::Timer]);
    assert!(before - harness.stats().size.resident <= MOST, "too many were dropped in one turn");
    let far = harness.send(2, Op::Read, 1 << 35, BLOCK);
    assert_eq!(harness.answer(far), Some(Ok(())));
}

#[test]
fn large_discard_proceeds_turn_by_turn() {
    let mut harness = harness();
    let discard = harness.send(1, Op::Discard, 0, 1 << 30);
    assert!(harness.stats().size.resident > CACHED - MOST);
    let inside = harness.send(3, Op::Read, 99 * MIB, BLOCK);
    let mut turns = 0;
    while harness.in_flight.is_empty() {
        next(&mut harness);
        turns += 1;
        assert_eq!(
            (harness.answer(discard), harness.answer(inside)),
            (None, None),
            "under its lock"
        );
        assert!(turns < 20);
    }
    assert!(turns >= 6, "{turns} turns");
    assert_eq!((harness.stats().size.resident, harness.dirty().nr_dirty), (1, 0));
    assert_eq!(
        (harness.stats().discarded_dirty, harness.written),
        (300, 0),
        "no dirty block is written"
    );
    let reads = harness.commands[Op::Read as usize];
    harness.settle(Ok(()));
    assert_eq!([discard, inside].map(|id| harness.answer(id)), [Some(Ok(())); 2]);
    assert_eq!(harness.commands[Op::Read as usize], reads + 1, "the device was asked");
}

#[test]
fn discard_waits_for_outstanding_blocks() {
    let mut harness = harness();
    let flush = harness.send(1, Op::Flush, 0, 0);
    let discard = harness.send(1, Op::Discard, 0, 1 << 30);
    let sent = harness.in_flight.len();
    for _ in 0..20 {
        harness.wait(0);
    }
    assert_eq!((harness.answer(discard), harness.commands[Op::Discard as usize]), (None, 0));
    assert!(sent > 0 && harness.stats().size.resident > 0);
    for _ in 0..400 {
        if let Some(submit) = harness.in_flight.pop() {
            harness.complete_this(submit, Ok(()));
        }
        harness.wait(0);
    }
    assert_eq!([flush, discard].map(|id| harness.answer(id)), [Some(Ok(())); 2]);
    assert_eq!((harness.stats().size.resident, harness.commands[Op::Discard as usize]), (1, 1));
}

#[test]
fn truncated_blocks_are_dropped_and_never_written() {
    let (volume, end) = (VolumeId(0), 8 * MIB);
    let mut harness = harness();
    harness.control(Control::Resize { volume, size: end });
    let flush = harness.send(1, Op::Flush, 0, 0);
    let mut turns = 0;
    while harness.answer(flush).is_none() {
        if harness.in_flight.is_empty() {
            assert!(harness.timer.take().is_some_and(|at| at <= harness.now), "it goes on at once");
            let before = harness.stats().size.resident;
            harness.turn(&[Input::Timer]);
            assert!(
                before - harness.stats().size.resident <= MOST,
                "too many were dropped in one turn"
            );
        }
        harness.settle(Ok(()));
        turns += 1;
        assert!(turns < 100);
    }
    assert!(turns >= 5, "{turns} turns");
    assert_eq!(harness.stats().size.resident, end / BLOCK);
    assert!(harness.writes.iter().all(|write| write.2 < end), "{:?}", harness.writes);
    assert_eq!(harness.written, 3 * 8 * BLOCK);
}

/// No client sees old blocks, however soon the volume grows again; and if it is removed, nothing of the truncation stays.
#[test]
fn truncation_ends_when_volume_grows() {
    let volume = VolumeId(0);
    let mut harness = harness();
    harness.control(Control::Resize { volume, size: 8 * MIB });
    assert!(harness.stats().size.resident > CACHED / 2, "some is left");
    harness.control(Control::Resize { volume, size: 4 * MIB });
    harness.control(Control::Resize { volume, size: 1 << 40 });
    assert_eq!((harness.stats().size.resident, harness.dirty().nr_dirty), (4 * MIB / BLOCK, 12));
    let reads = harness.commands[Op::Read as usize];
    harness.send(1, Op::Read, 99 * MIB, BLOCK);
    harness.send(1, Op::Read, 5 * MIB, BLOCK);
    assert_eq!(harness.commands[Op::Read as usize], reads + 2);
}
