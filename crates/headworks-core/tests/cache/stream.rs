//! `cache=stream`: what streams bring is written soon, leaves the cache once it is clean and was used once, and nothing else does.

use crate::harness::{BLOCK, FAILS, Harness, MIB};
use headworks_core::time::SEC;
use headworks_core::{BioFlags, Op, VolumeConfig, WriteMode};

/// A stream of writes on volume 0 beside volume 1, which is written back.
fn beside_writeback(units: u32) -> Harness {
    Harness::new(units, |config| {
        config.volumes.push(VolumeConfig { ..config.volumes[0] });
        config.volumes[0].options.mode = WriteMode::Stream;
        config.devices[0].queue.read_ahead_kb = 1024;
    })
}

/// Reads a range of a volume with `len` bytes each, and settles.
fn read(harness: &mut Harness, volume: u16, range: std::ops::Range<u64>, len: u64) {
    for offset in range.step_by(len as usize) {
        harness.send_to(volume, volume.into(), Op::Read, offset, len);
        harness.settle(Ok(()));
    }
}

fn write(harness: &mut Harness, volume: u16, range: std::ops::Range<u64>, len: u64) {
    for offset in range.step_by(len as usize) {
        harness.send_to(volume, volume.into(), Op::Write, offset, len);
        harness.settle(Ok(()));
        harness.wait_served(SEC / 100, Ok(()));
    }
}

/// The reads of the device that reading a range causes.
fn device_reads(harness: &mut Harness, volume: u16, range: std::ops::Range<u64>) -> u64 {
    let before = harness.commands[Op::Read as usize];
    read(harness, volume, range, BLOCK);
    harness.commands[Op::Read as usize] - before
}

#[test]
fn stream_of_writes_leaves_the_working_set_of_others_where_it_is() {
    for (mode, stays) in [(WriteMode::Stream, true), (WriteMode::Writeback, false)] {
        let mut harness = Harness::new(4096, |config| {
            config.volumes.push(VolumeConfig { ..config.volumes[0] });
            config.volumes[0].options.mode = mode;
        });
        // Read once each: nothing but the order of arrival protects them. A tenth of the pool is free.
        for block in 0..3600 {
            harness.send_to(1, 1, Op::Read, block * 2 * BLOCK, BLOCK);
            harness.settle(Ok(()));
        }
        write(&mut harness, 0, 0..64 * MIB, MIB);
        assert!(harness.written >= 60 * MIB, "{} MiB written", harness.written / MIB);
        let before = harness.stats().hits;
        for block in 0..3600 {
            harness.send_to(1, 1, Op::Read, block * 2 * BLOCK, BLOCK);
            harness.settle(Ok(()));
        }
        let hits = harness.stats().hits - before;
        assert_eq!(hits == 3600, stays, "{mode:?}: {hits} hits");
    }
}

#[test]
fn written_stream_is_written_out_in_large_requests_and_leaves() {
    let mut harness = beside_writeback(16_384);
    // A 16th of the background threshold, and written nevertheless.
    for offset in (0..8 * MIB).step_by(64 << 10) {
        harness.send_to(0, 1, Op::Write, offset, 64 << 10);
        harness.settle(Ok(()));
    }
    let stats = harness.stats();
    assert!(harness.written >= 6 * MIB, "{} KiB written", harness.written >> 10);
    assert_eq!(stats.dropped_behind * BLOCK, harness.written, "what is clean is gone");
    assert_eq!(stats.size.resident * BLOCK, 8 * MIB - harness.written, "what is dirty is not");
    let commands = harness.writes.len() as u64;
    assert!(harness.written / commands >= 256 << 10, "{commands} commands");
    let in_order = harness.writes.windows(2).all(|two| two[0].2 < two[1].2);
    assert!(in_order, "in the order of addresses: {:?}", harness.writes);
    // The rest goes with a flush.
    harness.send_to(0, 1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    assert_eq!(harness.stats().size.resident, 0);
}

#[test]
fn writeback_beside_it_waits_for_its_thresholds() {
    let mut harness = beside_writeback(16_384);
    write(&mut harness, 1, 0..4 * MIB, MIB);
    assert_eq!(harness.written, 0);
    write(&mut harness, 0, 0..4 * MIB, MIB);
    assert!(harness.writes.iter().all(|write| write.1 == 0), "{:?}", harness.writes);
}

#[test]
fn read_stream_leaves_and_what_is_read_again_stays() {
    let mut harness = beside_writeback(16_384);
    read(&mut harness, 0, 0..32 * MIB, 64 << 10);
    let stats = harness.stats();
    // The windows ahead of it, and the first reads, which are no stream yet.
    assert!(
        stats.size.resident * BLOCK <= 3 * MIB,
        "{} KiB stay",
        (stats.size.resident * BLOCK) >> 10
    );
    assert!(stats.dropped_behind * BLOCK >= 29 * MIB, "{stats:?}");
    assert_eq!(stats.read_ahead_wasted, 0);
    assert_eq!(
        stats.fills.blocks * BLOCK / MIB,
        33,
        "no block was read twice, beside the last window"
    );

    // Another reader of the same blocks, before the stream has come to the end of their folio.
    let mut harness = beside_writeback(16_384);
    let (stands, again) = (4 * MIB - 4 * BLOCK, 4 * MIB - 8 * BLOCK);
    read(&mut harness, 0, 0..stands, BLOCK);
    harness.send_to(0, 9, Op::Read, again, BLOCK);
    harness.settle(Ok(()));
    read(&mut harness, 0, stands..16 * MIB, BLOCK);
    assert_eq!(device_reads(&mut harness, 0, again..again + 4 * BLOCK), 0, "it stays");
    assert!(device_reads(&mut harness, 0, 8 * MIB..8 * MIB + BLOCK) > 0, "others went");
}

#[test]
fn random_reads_are_cached() {
    let mut harness = beside_writeback(16_384);
    let offset = |at: u64| (at * 7919 % 4096) * 3 * BLOCK;
    for round in 0..2 {
        for at in 0..1000 {
            harness.send_to(0, 1, Op::Read, offset(at), BLOCK);
            harness.settle(Ok(()));
        }
        assert_eq!(harness.commands[Op::Read as usize], 1000, "round {round}");
    }
    assert_eq!(harness.stats().dropped_behind, 0);
}

/// Reads that end within blocks, and several in flight that the device answers in any order.
#[test]
fn unaligned_and_parallel_reads_of_a_stream_read_each_block_once() {
    for len in [5000, 10_000, 512] {
        let mut harness = beside_writeback(16_384);
        read(&mut harness, 0, 0..8 * MIB, len);
        let stats = harness.stats();
        assert!(
            stats.fills.blocks * BLOCK <= 10 * MIB,
            "{len}: {} KiB read",
            stats.fills.blocks * 4
        );
        assert!(stats.dropped_behind * BLOCK >= 6 * MIB, "{len}: {stats:?}");
    }
    let mut harness = beside_writeback(16_384);
    for offset in (0..32 * MIB).step_by(64 << 10) {
        harness.send_to(0, 1, Op::Read, offset, 64 << 10);
        if harness.in_flight.len() > 8 {
            let submit = harness.in_flight.pop().unwrap();
            harness.complete_this(submit, Ok(()));
        }
    }
    harness.settle(Ok(()));
    let stats = harness.stats();
    assert_eq!(stats.fills.blocks * BLOCK / MIB, 33, "each block once, and the last window");
    assert!(stats.dropped_behind * BLOCK >= 28 * MIB, "{stats:?}");
}

/// A write that ends within a block reads the rest of it; the next one finds it cached, but where a write-out came between the two.
#[test]
fn unaligned_writes_leave_with_hardly_a_read_more() {
    let stats = [WriteMode::Writeback, WriteMode::Stream].map(|mode| {
        let mut harness = Harness::new(16_384, |config| config.volumes[0].options.mode = mode);
        for offset in (0..8 * MIB).step_by(5000) {
            harness.send_to(0, 1, Op::Write, offset, 5000);
            harness.wait_served(SEC / 1000, Ok(()));
        }
        harness.stats()
    });
    let reads = stats.map(|stats| stats.read_before_write);
    assert!(reads[1] <= reads[0] + 32, "{reads:?} reads before writes");
    assert!(stats[1].dropped_behind * BLOCK >= 6 * MIB, "{stats:?}");
}

#[test]
fn block_that_is_written_again_or_read_stays() {
    for op in [Op::Write, Op::Read] {
        let mut harness = beside_writeback(16_384);
        harness.send_to(0, 1, Op::Write, 0, 16 * BLOCK);
        harness.send_to(0, 2, op, 3 * BLOCK, BLOCK);
        harness.send_to(0, 1, Op::Write, 64 * MIB, 16 * BLOCK);
        harness.send_to(0, 1, Op::Flush, 0, 0);
        harness.settle(Ok(()));
        assert_eq!(
            (harness.stats().size.resident, harness.stats().dropped_behind),
            (16, 16),
            "{op:?}"
        );
    }
}

/// Nothing that is dirty, held or under write-out leaves, and nothing of a flush changes.
#[test]
fn failed_blocks_are_held_as_with_writeback() {
    let mut harness = beside_writeback(16_384);
    harness.send_to(0, 1, Op::Write, 0, 16 * BLOCK);
    let flush = harness.send_to(0, 1, Op::Flush, 0, 0);
    harness.settle(FAILS);
    assert_eq!(harness.answer(flush), Some(FAILS));
    let stats = harness.stats();
    assert_eq!((stats.held, stats.size.resident, stats.dropped_behind), (16, 16, 0));
    let flush = harness.send_to(0, 1, Op::Flush, 0, 0);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(flush), Some(Ok(())));
    assert_eq!((harness.stats().held, harness.stats().size.resident), (0, 0));
}

#[test]
fn fua_writes_are_durable_when_answered_and_leave() {
    let mut harness = beside_writeback(16_384);
    let id = harness.send_flags(1, Op::Write, 0, 16 * BLOCK, BioFlags::FUA);
    assert_eq!(harness.answer(id), None);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(id), Some(Ok(())));
    assert_eq!((harness.written, harness.stats().size.resident), (16 * BLOCK, 0));
}
