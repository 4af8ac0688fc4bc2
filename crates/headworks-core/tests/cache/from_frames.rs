//! Reads without a buffer: answered from frames, at once or when their blocks have come; returned where they cannot be there at once.

use headworks_core::{
    Bio, BioFlags, BioId, Instant, Op, REPLY_RANGES_MAX, WaitKind, WaitTimes, WriteMode,
};

use crate::harness::{BLOCK, FAILS, Harness, MIB};

const NO_BUFFER: BioFlags = BioFlags::NO_BUFFER;

/// What has become of a read without a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was answered with this number of ranges.
    Ranges(usize),
    Returned,
    Waits,
}

use Outcome::{Ranges, Returned, Waits};

/// Submits a read without a buffer.
fn send(harness: &mut Harness, flags: BioFlags, offset: u64, len: u64) -> BioId {
    harness.send_flags(7, Op::Read, offset, len, flags.with(NO_BUFFER))
}

/// What has become of the read, and what it waited for.
fn outcome(harness: &Harness, id: BioId) -> (Outcome, WaitTimes) {
    assert_eq!(harness.answer(id), None, "it has no other reply");
    let answered = harness.from_frames.iter().filter(|answer| answer.id == id);
    let answered = answered.map(|answer| (Ranges(answer.ranges), answer.wait_times));
    let returned = harness.returned.iter().filter(|(returned, _)| *returned == id);
    let mut all = answered.chain(returned.map(|&(_, wait_times)| (Returned, wait_times)));
    let first = all.next().unwrap_or((Waits, WaitTimes::NONE));
    assert!(all.next().is_none(), "answered twice");
    first
}

/// Submits a read without a buffer; returns what becomes of it at once.
fn ask(harness: &mut Harness, flags: BioFlags, offset: u64, len: u64) -> Outcome {
    let id = send(harness, flags, offset, len);
    let bytes = harness.from_frames.last().filter(|answer| answer.id == id);
    assert!(bytes.is_none_or(|answer| answer.bytes == len));
    outcome(harness, id).0
}

fn read(harness: &mut Harness, offset: u64, len: u64) {
    let id = harness.send(7, Op::Read, offset, len);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(id), Some(Ok(())));
}

#[test]
fn cached_read_is_answered_at_once_and_any_other_when_its_blocks_have_come() {
    let mut harness = Harness::new(4096, |_| {});
    let first = send(&mut harness, BioFlags::NONE, MIB, 16 * BLOCK);
    assert_eq!((outcome(&harness, first).0, harness.in_flight.len()), (Waits, 1));
    harness.now += 2_000_000;
    harness.settle(Ok(()));
    let (answered, wait_times) = outcome(&harness, first);
    assert_eq!(answered, Ranges(1));
    assert!(wait_times.at_most(WaitKind::Device) >= 2_000_000, "{wait_times:?}");
    for (offset, len) in
        [(0, 16 * BLOCK), (0, 1), (BLOCK - 1, 2), (77, 5 * BLOCK), (16 * BLOCK - 1, 1)]
    {
        assert_eq!(
            ask(&mut harness, BioFlags::NONE, MIB + offset, len),
            Ranges(1),
            "{offset} {len}"
        );
    }
    // The block behind, or the block before, is missing.
    for (offset, len) in [(MIB + 15 * BLOCK, BLOCK + 1), (MIB - 1, 2)] {
        let id = send(&mut harness, BioFlags::NONE, offset, len);
        assert_eq!(outcome(&harness, id).0, Waits);
        harness.settle(Ok(()));
        assert!(matches!(outcome(&harness, id).0, Ranges(1 | 2)));
    }
    assert_eq!(ask(&mut harness, BioFlags::DIRECT, MIB, BLOCK), Returned);
}

#[test]
fn blocks_of_a_read_count_once_as_hits_or_misses() {
    let mut harness = Harness::new(4096, |_| {});
    read(&mut harness, 4 * BLOCK, 4 * BLOCK);
    let before = harness.stats();
    let both = send(&mut harness, BioFlags::NONE, 0, 12 * BLOCK);
    harness.settle(Ok(()));
    assert!(matches!(outcome(&harness, both).0, Ranges(_)));
    let after = harness.stats();
    assert_eq!((after.hits - before.hits, after.misses - before.misses), (4, 8));
    assert!(matches!(ask(&mut harness, BioFlags::NONE, 2 * BLOCK, 4 * BLOCK), Ranges(_)));
    assert_eq!(harness.stats().hits, after.hits + 4);
    // Cached blocks come before the missing ones.
    let tail = send(&mut harness, BioFlags::NONE, 8 * BLOCK, 8 * BLOCK);
    harness.settle(Ok(()));
    assert!(matches!(outcome(&harness, tail).0, Ranges(_)));
    let last = harness.stats();
    assert_eq!((last.hits - after.hits, last.misses - after.misses), (8, 4));
}

#[test]
fn reads_that_wait_without_a_buffer_want_a_quarter_of_the_pool() {
    let mut harness = Harness::new(1024, |_| {});
    let quarter = 256 * BLOCK;
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, quarter + 1), Returned);
    assert!(harness.in_flight.is_empty(), "nothing is read for a bio that comes again");
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, quarter - BLOCK), Waits);
    assert_eq!(ask(&mut harness, BioFlags::NONE, 2 * MIB, 2 * BLOCK), Returned);
    let last = send(&mut harness, BioFlags::NONE, 3 * MIB, BLOCK);
    assert_eq!(outcome(&harness, last).0, Waits);
    harness.settle(Ok(()));
    assert_eq!(outcome(&harness, last).0, Ranges(1));
    assert_eq!(ask(&mut harness, BioFlags::NONE, 2 * MIB, quarter), Waits, "it is free again");
    harness.settle(Ok(()));
    // What is cached is answered however much it is.
    read(&mut harness, 0, 2 * MIB);
    assert!(matches!(ask(&mut harness, BioFlags::NONE, 0, 2 * MIB), Ranges(_)));
}

#[test]
fn read_whose_block_was_evicted_while_it_waited_for_another_is_returned() {
    let mut harness = Harness::new(256, |_| {});
    read(&mut harness, 64 * BLOCK, BLOCK);
    let id = send(&mut harness, BioFlags::NONE, 63 * BLOCK, 3 * BLOCK);
    assert_eq!((outcome(&harness, id).0, harness.in_flight.len()), (Waits, 2));
    harness.now += 1_000_000;
    // The block before the cached one comes; the cursor passes both. Then everything else of the pool is used twice.
    harness.complete(Ok(()));
    let last = harness.in_flight.remove(0);
    for _ in 0..2 {
        for block in 0..512 {
            read(&mut harness, (1024 + block) * BLOCK, BLOCK);
        }
    }
    harness.complete_this(last, Ok(()));
    let (returned, wait_times) = outcome(&harness, id);
    assert_eq!(returned, Returned);
    assert!(wait_times.at_most(WaitKind::Device) > 0, "what it waited for is told");
    assert!(harness.in_flight.is_empty());
}

#[test]
fn failed_fill_fails_the_read() {
    let mut harness = Harness::new(4096, |_| {});
    let id = send(&mut harness, BioFlags::NONE, 0, BLOCK);
    harness.complete(FAILS);
    assert_eq!(harness.answer(id), Some(FAILS));
    assert!(harness.from_frames.is_empty() && harness.returned.is_empty());
}

#[test]
fn block_under_write_out_is_answered_from_its_newest_frame() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Write, 0, 4 * BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    assert_eq!(harness.in_flight.len(), 1, "its write-out is in flight");
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, 4 * BLOCK), Ranges(1));
    harness.send(1, Op::Write, BLOCK, BLOCK);
    assert_eq!(
        ask(&mut harness, BioFlags::NONE, 0, 4 * BLOCK),
        Ranges(3),
        "one block has a shadow"
    );
    harness.settle(Ok(()));
}

#[test]
fn read_behind_a_discard_waits_for_it() {
    let mut harness = Harness::new(4096, |_| {});
    read(&mut harness, 0, MIB);
    let discard = harness.send(1, Op::Discard, 0, MIB / 2);
    assert_eq!(harness.answer(discard), None, "the device has it");
    let behind = send(&mut harness, BioFlags::NONE, 0, BLOCK);
    assert_eq!(outcome(&harness, behind).0, Waits);
    assert_eq!(ask(&mut harness, BioFlags::NONE, MIB / 2, BLOCK), Ranges(1));
    harness.settle(Ok(()));
    assert_eq!(harness.answer(discard), Some(Ok(())));
    assert_eq!(outcome(&harness, behind).0, Ranges(1));
}

#[test]
fn ranges_of_a_reply_are_bounded() {
    let mut harness = Harness::new(4096, |config| config.devices[0].queue.max_folio_order = 0);
    // Every second block first, so that no two neighbours are neighbours in the pool.
    let blocks = REPLY_RANGES_MAX as u64 + 1;
    (0..blocks).filter(|block| block % 2 == 0).for_each(|at| read(&mut harness, at * BLOCK, BLOCK));
    (0..blocks).filter(|block| block % 2 == 1).for_each(|at| read(&mut harness, at * BLOCK, BLOCK));
    let most = (blocks - 1) * BLOCK;
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, most), Ranges(REPLY_RANGES_MAX));
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, most + 1), Returned);
}

#[test]
fn volume_without_cache_returns_every_read() {
    let mut harness = Harness::new(4096, |config| config.volumes[0].options.mode = WriteMode::None);
    assert_eq!(ask(&mut harness, BioFlags::NONE, 0, 512), Returned);
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
    for (offset, len) in [(0, 16 * BLOCK), (77, 5 * BLOCK), (0, 1)] {
        let asked = ask(&mut harness, BioFlags::NONE, MIB + offset, len);
        let lent = lend(&mut harness, MIB + offset, len).expect("it is cached");
        assert_eq!((lent.0, Ranges(lent.1)), (len, asked));
    }
    for (offset, len) in [(MIB + 15 * BLOCK, BLOCK + 1), (MIB, 0), (1 << 62, 1), (u64::MAX, 1)] {
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
