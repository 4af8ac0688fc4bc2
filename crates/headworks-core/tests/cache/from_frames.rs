//! Reads without a buffer: answered from frames if all of it is cached and may be read, otherwise returned, without a trace.

use headworks_core::{Bio, BioFlags, BioId, Instant, Op, REPLY_RANGES_MAX, WriteMode};

use crate::harness::{BLOCK, Harness, MIB};

const NO_BUFFER: BioFlags = BioFlags::NO_BUFFER;

/// Submits a read without a buffer; returns its ranges, none if it was returned.
fn ask(harness: &mut Harness, flags: BioFlags, offset: u64, len: u64) -> Option<usize> {
    let before = (harness.from_frames.len(), harness.returned.len());
    let id: BioId = harness.send_flags(7, Op::Read, offset, len, flags.with(NO_BUFFER));
    assert_eq!(harness.answer(id), None, "it has no other reply");
    match (harness.from_frames.get(before.0), harness.returned.get(before.1)) {
        (Some(&(answered, bytes, ranges)), None) => {
            assert_eq!((answered, bytes), (id, len));
            Some(ranges)
        }
        (None, Some(&returned)) => {
            assert_eq!(returned, id);
            None
        }
        other => panic!("{other:?}"),
    }
}

fn read(harness: &mut Harness, offset: u64, len: u64) {
    let id = harness.send(7, Op::Read, offset, len);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(id), Some(Ok(())));
}

#[test]
fn cached_read_is_answered_and_any_other_returned() {
    let mut harness = Harness::new(4096, |_| {});
    assert_eq!(ask(&mut harness, BioFlags::NONE, MIB, BLOCK), None);
    assert!(harness.in_flight.is_empty(), "nothing is read for a bio that comes again");
    read(&mut harness, MIB, 16 * BLOCK);
    for (offset, len) in
        [(0, 16 * BLOCK), (0, 1), (BLOCK - 1, 2), (77, 5 * BLOCK), (16 * BLOCK - 1, 1)]
    {
        assert_eq!(ask(&mut harness, BioFlags::NONE, MIB + offset, len), Some(1), "{offset} {len}");
    }
    // The block behind, or the block before, is missing.
    assert_eq!(ask(&mut harness, BioFlags::NONE, MIB + 15 * BLOCK, BLOCK + 1), None);
    assert_eq!(ask(&mut harness, BioFlags::NONE, MIB - 1, 2), None);
    assert_eq!(ask(&mut harness, BioFlags::DIRECT, MIB, BLOCK), None);
}

#[test]
fn returned_read_leaves_no_trace_and_answered_one_counts_as_a_hit() {
    let mut harness = Harness::new(4096, |_| {});
    read(&mut harness, 0, 8 * BLOCK);
    let before = harness.stats();
    assert_eq!(ask(&mut harness, BioFlags::NONE, 4 * BLOCK, 8 * BLOCK), None);
    let after = harness.stats();
    assert_eq!((after.hits, after.misses, after.fills), (before.hits, before.misses, before.fills));
    assert_eq!(ask(&mut harness, BioFlags::NONE, 4 * BLOCK, 4 * BLOCK), Some(1));
    assert_eq!(harness.stats().hits, before.hits + 4);
}

#[test]
fn block_under_write_out_is_answered_from_its_newest_frame() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Write, 0, 4 * BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    assert_eq!(harness.in_flight.len(), 1, "its write-out is in flight");
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, 4 * BLOCK), Some(1));
    harness.send(1, Op::Write, BLOCK, BLOCK);
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, 4 * BLOCK), Some(3), "one block has a shadow");
    harness.settle(Ok(()));
}

#[test]
fn read_behind_a_discard_is_returned() {
    let mut harness = Harness::new(4096, |_| {});
    read(&mut harness, 0, MIB);
    let discard = harness.send(1, Op::Discard, 0, MIB / 2);
    assert_eq!(harness.answer(discard), None, "the device has it");
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, BLOCK), None);
    assert!(ask(&mut harness, BioFlags::NONE, MIB / 2, BLOCK).is_some());
    harness.settle(Ok(()));
    assert_eq!(harness.answer(discard), Some(Ok(())));
}

#[test]
fn ranges_of_a_reply_are_bounded() {
    let mut harness = Harness::new(4096, |config| config.devices[0].queue.max_folio_order = 0);
    // Every second block first, so that no two neighbours are neighbours in the pool.
    let blocks = REPLY_RANGES_MAX as u64 + 1;
    (0..blocks).filter(|block| block % 2 == 0).for_each(|at| read(&mut harness, at * BLOCK, BLOCK));
    (0..blocks).filter(|block| block % 2 == 1).for_each(|at| read(&mut harness, at * BLOCK, BLOCK));
    let most = (blocks - 1) * BLOCK;
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, most), Some(REPLY_RANGES_MAX));
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, most + 1), None);
}

#[test]
fn volume_without_cache_returns_every_read() {
    let mut harness = Harness::new(4096, |config| config.volumes[0].options.mode = WriteMode::None);
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, 512), None);
    assert!(harness.in_flight.is_empty());
}

/// Lends a read of volume 0 between two turns; returns the bytes and the number of ranges.
fn lend(harness: &mut Harness, offset: u64, len: u64) -> Option<(u64, usize)> {
    let bio = Bio { offset, len: len as u32, op: Op::Read, ..Bio::default() };
    let (now, mut ranges) = (Instant(harness.now), Vec::new());
    let found = harness.shard.lend_frames(now, &bio, &mut ranges);
    assert_eq!(found, !ranges.is_empty());
    found.then(|| (ranges.iter().map(|range| u64::from(range.len)).sum(), ranges.len()))
}

#[test]
fn frames_are_lent_where_a_read_without_a_buffer_is_answered() {
    let mut harness = Harness::new(4096, |_| {});
    read(&mut harness, MIB, 16 * BLOCK);
    for (offset, len) in [(0, 16 * BLOCK), (77, 5 * BLOCK), (15 * BLOCK, BLOCK + 1), (0, 1)] {
        let asked = ask(&mut harness, BioFlags::NONE, MIB + offset, len);
        assert_eq!(lend(&mut harness, MIB + offset, len), asked.map(|ranges| (len, ranges)));
    }
    for (offset, len) in [(MIB, 0), (1 << 62, 1), (u64::MAX, 1)] {
        assert_eq!(lend(&mut harness, offset, len), None);
    }
    let before = harness.stats().hits;
    lend(&mut harness, MIB, 4 * BLOCK).unwrap();
    assert_eq!(harness.stats().hits, before + 4);
    harness.send(1, Op::Discard, MIB, 16 * BLOCK);
    assert_eq!(lend(&mut harness, MIB, BLOCK), None, "it is being changed, or gone");

    let mut uncached =
        Harness::new(4096, |config| config.volumes[0].options.mode = WriteMode::None);
    assert_eq!(lend(&mut uncached, 0, 512), None);
}

#[test]
fn lent_marker_wants_a_call_that_reads_ahead() {
    let mut harness = Harness::new(4096, |config| config.devices[0].queue.read_ahead_kb = 128);
    for block in 0..64 {
        if lend(&mut harness, block * BLOCK, BLOCK).is_none() {
            read(&mut harness, block * BLOCK, BLOCK);
        } else if harness.shard.wants_call() {
            assert!(harness.in_flight.is_empty());
            harness.turn(&[]);
            assert!(!harness.in_flight.is_empty() && !harness.shard.wants_call());
            return;
        }
    }
    panic!("no window was continued");
}
