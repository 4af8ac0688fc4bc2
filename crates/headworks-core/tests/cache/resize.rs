//! Volumes that shrink, and grow again, while blocks past their end are outstanding: a frame stays the device's until
//! it completes, and the result of what was outstanding is not used afterwards.

use headworks_core::{Control, IoError, Op, VolumeId};

use crate::harness::{BLOCK, FAILS, Harness};

const LONG: u64 = 1024 * BLOCK;

/// A volume of 1024 blocks.
fn harness() -> Harness {
    let mut harness = Harness::new(1024, |config| config.devices[0].queue.max_folio_order = 4);
    size(&mut harness, LONG);
    harness
}

fn size(harness: &mut Harness, size: u64) {
    harness.control(Control::Resize { volume: VolumeId(0), size });
}

fn reads(harness: &Harness) -> u64 {
    harness.commands[Op::Read as usize]
}

#[test]
fn regrown_block_waits_for_its_old_write_out() {
    let mut harness = harness();
    harness.send(1, Op::Write, 96 * BLOCK, 16 * BLOCK);
    let flush = harness.send(1, Op::Flush, 0, 0);
    assert_eq!(harness.writes.last().map(|w| (w.2, w.3)), Some((96 * BLOCK, 16 * 4096)));
    size(&mut harness, 64 * BLOCK);
    size(&mut harness, LONG);
    let read = harness.send(2, Op::Read, 90 * BLOCK, 10 * BLOCK);
    let whole = harness.send(3, Op::Write, 100 * BLOCK, BLOCK);
    let part = harness.send(4, Op::Write, 101 * BLOCK, 512);
    harness.send(5, Op::Prefetch, 96 * BLOCK, 16 * BLOCK);
    // The part of the read that was never truncated is requested at once; the device has the rest.
    assert_eq!(reads(&harness), 1);
    assert_eq!([read, whole, part].map(|id| harness.answer(id)), [None; 3]);
    harness.complete(Ok(()));
    assert_eq!(harness.answer(whole), Some(Ok(())));
    harness.settle(Ok(()));
    assert_eq!([read, part, flush].map(|id| harness.answer(id)), [Some(Ok(())); 3]);
    assert!(reads(&harness) >= 3, "the new bytes come from the device");
    let writes = harness.writes.len();
    harness.send(1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    assert_eq!(harness.writes[writes..].iter().map(|w| w.3).sum::<u32>(), 2 * 4096);
}

#[test]
fn fill_from_before_truncation_is_void() {
    let mut harness = harness();
    let read = harness.send(1, Op::Read, 100 * BLOCK, 8 * BLOCK);
    size(&mut harness, 64 * BLOCK);
    size(&mut harness, LONG);
    let later = harness.send(2, Op::Read, 100 * BLOCK, 8 * BLOCK);
    harness.complete(Ok(()));
    assert_eq!((harness.answer(read), harness.answer(later), reads(&harness)), (None, None, 2));
    harness.settle(Ok(()));
    assert_eq!([read, later].map(|id| harness.answer(id)), [Some(Ok(())); 2]);
    assert_eq!(reads(&harness), 2, "asked for once more");
}

/// Of a fill across the new end the part before it is valid.
#[test]
fn fill_across_new_end_keeps_blocks_before_it() {
    let mut harness = harness();
    harness.send(1, Op::Prefetch, 56 * BLOCK, 16 * BLOCK);
    size(&mut harness, 60 * BLOCK);
    harness.settle(Ok(()));
    size(&mut harness, LONG);
    let asked = reads(&harness);
    let before = harness.send(1, Op::Read, 56 * BLOCK, 4 * BLOCK);
    assert_eq!((harness.answer(before), reads(&harness)), (Some(Ok(())), asked));
    harness.send(1, Op::Read, 60 * BLOCK, BLOCK);
    assert_eq!(reads(&harness), asked + 1);
}

/// The block in which the shrunk volume ends stays; when it grows again its frame may be under write-out with all of its bytes.
#[test]
fn split_block_is_unchanged_while_under_write_out() {
    let cut = 10 * BLOCK + 512;
    for (what, shadowed) in [("written", false), ("written again meanwhile", true)] {
        let mut harness = harness();
        harness.send(1, Op::Write, 10 * BLOCK, BLOCK);
        harness.send(1, Op::Flush, 0, 0);
        size(&mut harness, cut);
        if shadowed {
            harness.send(1, Op::Write, 10 * BLOCK, 512);
        }
        size(&mut harness, LONG);
        let read = harness.send(1, Op::Read, 10 * BLOCK, BLOCK);
        assert_eq!((harness.answer(read).is_some(), reads(&harness)), (shadowed, 0), "{what}");
        harness.settle(Ok(()));
        assert_eq!(harness.answer(read), Some(Ok(())), "{what}");
        assert_eq!(reads(&harness), u64::from(!shadowed), "{what}: the device knows the rest");
    }
    let mut harness = harness();
    let read = harness.send(1, Op::Read, 10 * BLOCK, 512);
    size(&mut harness, cut);
    size(&mut harness, LONG);
    harness.settle(Ok(()));
    assert_eq!((harness.answer(read), reads(&harness)), (Some(Ok(())), 2));
}

/// Acknowledged data before the end whose write-out failed is not lost because the end moved.
#[test]
fn failed_write_out_of_last_block_is_held() {
    for end in [LONG, 10 * BLOCK + 512] {
        let mut harness = harness();
        size(&mut harness, end);
        harness.send(1, Op::Write, 10 * BLOCK, 512);
        harness.settle(Ok(()));
        let flush = harness.send(1, Op::Flush, 0, 0);
        size(&mut harness, 10 * BLOCK + 512);
        size(&mut harness, LONG);
        let (read, asked) = (harness.send(2, Op::Read, 10 * BLOCK, BLOCK), reads(&harness));
        harness.settle(FAILS);
        assert_eq!(harness.answer(flush), Some(FAILS));
        assert_eq!((harness.answer(read), reads(&harness)), (Some(Ok(())), asked), "it is here");
        assert_eq!(harness.stats().held, 1);
        let again = harness.send(1, Op::Flush, 0, 0);
        harness.settle(Ok(()));
        assert_eq!((harness.answer(again), harness.stats().held), (Some(Ok(())), 0));
        assert_eq!(harness.writes.last().map(|w| (w.2, w.3)), Some((10 * BLOCK, 4096)));
    }
}

#[test]
fn failed_write_out_past_the_end_is_dropped() {
    let mut harness = harness();
    harness.send(1, Op::Write, 100 * BLOCK, BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    size(&mut harness, 64 * BLOCK);
    harness.settle(FAILS);
    assert_eq!((harness.stats().held, harness.dirty().nr_dirty), (0, 0));
    let beyond = harness.send(2, Op::Read, 100 * BLOCK, BLOCK);
    assert_eq!(harness.answer(beyond), Some(Err(IoError::Invalid)));
}

/// The image may have grown, without the volume, when the process dies: then the whole frame is written to it.
#[test]
fn dirty_last_block_has_zeros_past_the_end() {
    let (part, zeros) = ((11 * BLOCK, 512), (11, Some(512)));
    let mut harness = harness();
    size(&mut harness, 11 * BLOCK + 512);
    harness.send(1, Op::Write, 8 * BLOCK, 3 * BLOCK + 512);
    assert_eq!(harness.dirtied, [zeros], "a run that ends with the volume");
    harness.send(1, Op::Flush, 0, 0);
    harness.send(1, Op::Write, part.0, part.1);
    assert_eq!(harness.dirtied[1..], [zeros], "a shadow");
    harness.settle(Ok(()));
    harness.send(1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    harness.send(1, Op::Write, part.0 + 7, 100);
    assert_eq!(harness.dirtied[2..], [zeros], "a clean block, written in part");
    harness.send(1, Op::Write, part.0, part.1);
    harness.send(1, Op::Write, 10 * BLOCK, BLOCK);
    assert_eq!(harness.dirtied[3..], [(10, None)], "dirty already, and not the last block");
}
