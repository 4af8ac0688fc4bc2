//! Discards and cuts of more than one turn may do: others are served between, and nobody sees half of one.

use headworks_core::{Control, Input, Op, VolumeId};

use crate::desk::{BLOCK, Desk, MIB};

/// Cached of the volume's first 100 MiB, in folios of a block.
const CACHED: u64 = 25_600;
/// What one turn may forget.
const MOST: u64 = 2048;

/// Everything cached, one block in 100 dirty; and a block far away.
fn desk() -> Desk {
    let mut desk = Desk::new(32_768, |config| {
        config.devices[0].queue.max_folio_order = 0;
        config.dirty.dirty_writeback_centisecs = 0;
    });
    for at in 0..100 {
        desk.send(1, Op::Read, at * MIB, MIB);
        desk.settle(Ok(()));
        desk.send(1, Op::Write, at * MIB, 2 * BLOCK + BLOCK / 2);
    }
    desk.send(1, Op::Read, 1 << 35, BLOCK);
    desk.settle(Ok(()));
    assert_eq!((desk.stats().resident, desk.dirty().nr_dirty), (CACHED + 1, 300));
    desk
}

/// One more turn, in which a client far away is served.
fn next(desk: &mut Desk) {
    assert!(desk.timer.take().is_some_and(|at| at <= desk.now), "it goes on at once");
    let before = desk.stats().resident;
    desk.turn(&[Input::Timer]);
    assert!(before - desk.stats().resident <= MOST, "that was much at once");
    let far = desk.send(2, Op::Read, 1 << 35, BLOCK);
    assert_eq!(desk.answer(far), Some(Ok(())));
}

#[test]
fn a_discard_of_all_that_is_cached_goes_in_parts() {
    let mut desk = desk();
    let discard = desk.send(1, Op::Discard, 0, 1 << 30);
    assert!(desk.stats().resident > CACHED - MOST);
    let inside = desk.send(3, Op::Read, 99 * MIB, BLOCK);
    let mut turns = 0;
    while desk.flying.is_empty() {
        next(&mut desk);
        turns += 1;
        assert_eq!((desk.answer(discard), desk.answer(inside)), (None, None), "under its lock");
        assert!(turns < 20);
    }
    assert!(turns >= 6, "{turns} turns");
    assert_eq!((desk.stats().resident, desk.dirty().nr_dirty), (1, 0));
    assert_eq!((desk.stats().discarded_dirty, desk.written), (300, 0), "no dirty block is written");
    let reads = desk.commands[Op::Read as usize];
    desk.settle(Ok(()));
    assert_eq!([discard, inside].map(|id| desk.answer(id)), [Some(Ok(())); 2]);
    assert_eq!(desk.commands[Op::Read as usize], reads + 1, "the device was asked");
}

#[test]
fn what_is_on_its_way_is_waited_for_in_its_turn() {
    let mut desk = desk();
    let flush = desk.send(1, Op::Flush, 0, 0);
    let discard = desk.send(1, Op::Discard, 0, 1 << 30);
    let sent = desk.flying.len();
    for _ in 0..20 {
        desk.wait(0);
    }
    assert_eq!((desk.answer(discard), desk.commands[Op::Discard as usize]), (None, 0));
    assert!(sent > 0 && desk.stats().resident > 0);
    for _ in 0..400 {
        if let Some(submit) = desk.flying.pop() {
            desk.complete_this(submit, Ok(()));
        }
        desk.wait(0);
    }
    assert_eq!([flush, discard].map(|id| desk.answer(id)), [Some(Ok(())); 2]);
    assert_eq!((desk.stats().resident, desk.commands[Op::Discard as usize]), (1, 1));
}

#[test]
fn what_a_shorter_volume_cuts_off_goes_in_parts_and_never_to_the_device() {
    let (volume, end) = (VolumeId(0), 8 * MIB);
    let mut desk = desk();
    desk.control(Control::Resize { volume, size: end });
    let flush = desk.send(1, Op::Flush, 0, 0);
    let mut turns = 0;
    while desk.answer(flush).is_none() {
        if desk.flying.is_empty() {
            assert!(desk.timer.take().is_some_and(|at| at <= desk.now), "it goes on at once");
            let before = desk.stats().resident;
            desk.turn(&[Input::Timer]);
            assert!(before - desk.stats().resident <= MOST, "that was much at once");
        }
        desk.settle(Ok(()));
        turns += 1;
        assert!(turns < 100);
    }
    assert!(turns >= 5, "{turns} turns");
    assert_eq!(desk.stats().resident, end / BLOCK);
    assert!(desk.writes.iter().all(|write| write.2 < end), "{:?}", desk.writes);
    assert_eq!(desk.written, 3 * 8 * BLOCK);
}

/// Nobody sees what a volume had before, however soon it is longer again; and if it goes away, nothing of the cut stays.
#[test]
fn a_cut_ends_when_its_volume_is_longer_again() {
    let volume = VolumeId(0);
    let mut desk = desk();
    desk.control(Control::Resize { volume, size: 8 * MIB });
    assert!(desk.stats().resident > CACHED / 2, "some is left");
    desk.control(Control::Resize { volume, size: 4 * MIB });
    desk.control(Control::Resize { volume, size: 1 << 40 });
    assert_eq!((desk.stats().resident, desk.dirty().nr_dirty), (4 * MIB / BLOCK, 12));
    let reads = desk.commands[Op::Read as usize];
    desk.send(1, Op::Read, 99 * MIB, BLOCK);
    desk.send(1, Op::Read, 5 * MIB, BLOCK);
    assert_eq!(desk.commands[Op::Read as usize], reads + 2);
}
