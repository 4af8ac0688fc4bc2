//! Volumes that become shorter, and longer again, while blocks beyond their end are on their way: a frame stays the device's until
//! it has answered, and nothing that was on its way is believed afterwards.

use headworks_core::{Control, IoError, Op, VolumeId};

use crate::desk::{BLOCK, Desk, FAILS};

const LONG: u64 = 1024 * BLOCK;

/// A volume of 1024 blocks.
fn desk() -> Desk {
    let mut desk = Desk::new(1024, |config| config.devices[0].queue.max_folio_order = 4);
    size(&mut desk, LONG);
    desk
}

fn size(desk: &mut Desk, size: u64) {
    desk.control(Control::Resize { volume: VolumeId(0), size });
}

fn reads(desk: &Desk) -> u64 {
    desk.commands[Op::Read as usize]
}

#[test]
fn what_is_cut_off_under_write_out_is_waited_for_when_it_is_there_again() {
    let mut desk = desk();
    desk.send(1, Op::Write, 96 * BLOCK, 16 * BLOCK);
    let flush = desk.send(1, Op::Flush, 0, 0);
    assert_eq!(desk.writes.last().map(|w| (w.2, w.3)), Some((96 * BLOCK, 16 * 4096)));
    size(&mut desk, 64 * BLOCK);
    size(&mut desk, LONG);
    let read = desk.send(2, Op::Read, 90 * BLOCK, 10 * BLOCK);
    let whole = desk.send(3, Op::Write, 100 * BLOCK, BLOCK);
    let part = desk.send(4, Op::Write, 101 * BLOCK, 512);
    desk.send(5, Op::Prefetch, 96 * BLOCK, 16 * BLOCK);
    // What of the read was never cut off is asked for at once, the rest is the device's.
    assert_eq!(reads(&desk), 1);
    assert_eq!([read, whole, part].map(|id| desk.answer(id)), [None; 3]);
    desk.complete(Ok(()));
    assert_eq!(desk.answer(whole), Some(Ok(())));
    desk.settle(Ok(()));
    assert_eq!([read, part, flush].map(|id| desk.answer(id)), [Some(Ok(())); 3]);
    assert!(reads(&desk) >= 3, "the new bytes come from the device");
    let writes = desk.writes.len();
    desk.send(1, Op::Flush, 0, 0);
    desk.settle(Ok(()));
    assert_eq!(desk.writes[writes..].iter().map(|w| w.3).sum::<u32>(), 2 * 4096);
}

#[test]
fn what_comes_of_a_fill_from_before_is_not_believed() {
    let mut desk = desk();
    let read = desk.send(1, Op::Read, 100 * BLOCK, 8 * BLOCK);
    size(&mut desk, 64 * BLOCK);
    size(&mut desk, LONG);
    let later = desk.send(2, Op::Read, 100 * BLOCK, 8 * BLOCK);
    desk.complete(Ok(()));
    assert_eq!((desk.answer(read), desk.answer(later), reads(&desk)), (None, None, 2));
    desk.settle(Ok(()));
    assert_eq!([read, later].map(|id| desk.answer(id)), [Some(Ok(())); 2]);
    assert_eq!(reads(&desk), 2, "asked for once more");
}

/// Of one that lies on both sides of the new end the part before it is there.
#[test]
fn a_fill_across_the_new_end_brings_what_is_before_it() {
    let mut desk = desk();
    desk.send(1, Op::Prefetch, 56 * BLOCK, 16 * BLOCK);
    size(&mut desk, 60 * BLOCK);
    desk.settle(Ok(()));
    size(&mut desk, LONG);
    let asked = reads(&desk);
    let before = desk.send(1, Op::Read, 56 * BLOCK, 4 * BLOCK);
    assert_eq!((desk.answer(before), reads(&desk)), (Some(Ok(())), asked));
    desk.send(1, Op::Read, 60 * BLOCK, BLOCK);
    assert_eq!(reads(&desk), asked + 1);
}

/// The block in which the shorter volume ends stays; where it grows again its frame may be the device's with all of its bytes.
#[test]
fn a_block_that_was_cut_in_the_middle_is_left_to_the_device_while_it_has_it() {
    let cut = 10 * BLOCK + 512;
    for (what, shadowed) in [("written", false), ("written again meanwhile", true)] {
        let mut desk = desk();
        desk.send(1, Op::Write, 10 * BLOCK, BLOCK);
        desk.send(1, Op::Flush, 0, 0);
        size(&mut desk, cut);
        if shadowed {
            desk.send(1, Op::Write, 10 * BLOCK, 512);
        }
        size(&mut desk, LONG);
        let read = desk.send(1, Op::Read, 10 * BLOCK, BLOCK);
        assert_eq!((desk.answer(read).is_some(), reads(&desk)), (shadowed, 0), "{what}");
        desk.settle(Ok(()));
        assert_eq!(desk.answer(read), Some(Ok(())), "{what}");
        assert_eq!(reads(&desk), u64::from(!shadowed), "{what}: the device knows the rest");
    }
    let mut desk = desk();
    let read = desk.send(1, Op::Read, 10 * BLOCK, 512);
    size(&mut desk, cut);
    size(&mut desk, LONG);
    desk.settle(Ok(()));
    assert_eq!((desk.answer(read), reads(&desk)), (Some(Ok(())), 2));
}

/// What was acknowledged before the end and could not be written is not lost because the end moved.
#[test]
fn a_failed_write_out_of_the_block_at_the_end_is_held() {
    for end in [LONG, 10 * BLOCK + 512] {
        let mut desk = desk();
        size(&mut desk, end);
        desk.send(1, Op::Write, 10 * BLOCK, 512);
        desk.settle(Ok(()));
        let flush = desk.send(1, Op::Flush, 0, 0);
        size(&mut desk, 10 * BLOCK + 512);
        size(&mut desk, LONG);
        let (read, asked) = (desk.send(2, Op::Read, 10 * BLOCK, BLOCK), reads(&desk));
        desk.settle(FAILS);
        assert_eq!(desk.answer(flush), Some(FAILS));
        assert_eq!((desk.answer(read), reads(&desk)), (Some(Ok(())), asked), "it is here");
        assert_eq!(desk.stats().held, 1);
        let again = desk.send(1, Op::Flush, 0, 0);
        desk.settle(Ok(()));
        assert_eq!((desk.answer(again), desk.stats().held), (Some(Ok(())), 0));
        assert_eq!(desk.writes.last().map(|w| (w.2, w.3)), Some((10 * BLOCK, 4096)));
    }
}

#[test]
fn a_failed_write_out_beyond_the_end_is_forgotten() {
    let mut desk = desk();
    desk.send(1, Op::Write, 100 * BLOCK, BLOCK);
    desk.send(1, Op::Flush, 0, 0);
    size(&mut desk, 64 * BLOCK);
    desk.settle(FAILS);
    assert_eq!((desk.stats().held, desk.dirty().nr_dirty), (0, 0));
    let beyond = desk.send(2, Op::Read, 100 * BLOCK, BLOCK);
    assert_eq!(desk.answer(beyond), Some(Err(IoError::Invalid)));
}
