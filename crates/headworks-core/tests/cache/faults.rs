//! The cache on a device that fails, times out or is dead; limits that change while operations wait. Each test is a regression
//! test.

use crate::harness::{BLOCK, FAILS, Harness, MIB};
use headworks_core::time::{MS, SEC};
use headworks_core::writeback::{DirtyTunable, ThrottlePolicy};
use headworks_core::{
    BioFlags, Control, DeviceId, Instant, IoError, Op, Status, VolumeConfig, VolumeId, WriteMode,
};

const LATE: Status = Err(IoError::TimedOut);

fn in_blocks(harness: &mut Harness, blocks: u64) -> Vec<headworks_core::BioId> {
    (0..blocks).map(|at| harness.send(at as u32, Op::Write, at * BLOCK, BLOCK)).collect()
}

#[test]
fn whole_block_write_succeeds_after_failed_fill() {
    let mut harness = Harness::new(1024, |_| {});
    let read = harness.send(1, Op::Read, 5 * BLOCK, BLOCK);
    let whole = harness.send(2, Op::Write, 5 * BLOCK, BLOCK);
    let part = harness.send(3, Op::Read, 5 * BLOCK + 512, 512);
    harness.complete(FAILS);
    assert_eq!(harness.answer(read), Some(FAILS));
    assert_eq!(harness.answer(part), Some(FAILS));
    assert_eq!(harness.answer(whole), Some(Ok(())), "a bad block is repaired by writing it");
}

#[test]
fn failed_fill_does_not_fail_fua_write_in_same_folio() {
    let mut harness = Harness::new(1024, |config| config.devices[0].queue.read_ahead_kb = 0);
    // One folio of four blocks: 0 is under write-out, 1 is being filled.
    let read = harness.send(1, Op::Prefetch, 0, 4 * BLOCK);
    assert_eq!(harness.answer(read), Some(Ok(())));
    harness.complete(FAILS);
    let first = harness.send_flags(1, Op::Write, 0, BLOCK, BioFlags::FUA);
    let second = harness.send_flags(2, Op::Write, 0, BLOCK, BioFlags::FUA);
    let other = harness.send(3, Op::Read, BLOCK, BLOCK);
    let fill = harness.in_flight.iter().position(|submit| submit.op == Op::Read).unwrap();
    let fill = harness.in_flight.remove(fill);
    harness.complete_this(fill, FAILS);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(other), Some(FAILS));
    assert_eq!((harness.answer(first), harness.answer(second)), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn waiting_writers_fail_when_device_fails_all_writes() {
    let mut harness = Harness::new(1024, |config| config.dirty.dirty_bytes = 64 * BLOCK);
    let ids = in_blocks(&mut harness, 100);
    assert!(ids.iter().any(|&id| harness.answer(id).is_none()), "some wait");
    harness.wait_served(10 * SEC, FAILS);
    assert!(ids.iter().all(|&id| harness.answer(id).is_some()), "every operation completes");
    assert!(ids.iter().any(|&id| harness.answer(id) == Some(FAILS)));
    // Held blocks are readable and not lost: the device works again.
    let flush = harness.send(1, Op::Flush, 0, 0);
    harness.wait_served(SEC, Ok(()));
    assert_eq!(
        (harness.answer(flush), harness.stats().held),
        (Some(FAILS), 0),
        "its error is reported once"
    );
    let ok = ids.iter().filter(|&&id| harness.answer(id) == Some(Ok(()))).count() as u64;
    assert_eq!(harness.dirty().nr_written, ok);
    let again = harness.send(1, Op::Flush, 0, 0);
    harness.wait_served(SEC, Ok(()));
    assert_eq!(harness.answer(again), Some(Ok(())));
    let write = harness.send(1, Op::Write, 0, BLOCK);
    harness.wait_served(SEC, Ok(()));
    assert_eq!(harness.answer(write), Some(Ok(())), "and takes writes again");
}

#[test]
fn held_block_that_is_written_again_goes_to_the_device_in_the_same_turn() {
    let mut harness = Harness::new(1024, |config| config.dirty.dirty_background_ratio = 0);
    harness.send(1, Op::Write, 0, BLOCK);
    harness.complete(FAILS);
    assert_eq!((harness.stats().held, harness.in_flight.len()), (1, 0));
    let again = harness.send(1, Op::Write, 0, BLOCK);
    assert_eq!(harness.answer(again), Some(Ok(())));
    assert_eq!(harness.stats().held, 0);
    assert_eq!(harness.in_flight.len(), 1, "the flusher has work, and no other input is awaited");
}

#[test]
fn waiting_writers_fail_when_device_times_out() {
    let mut harness = Harness::new(1024, |config| {
        config.dirty.dirty_bytes = 64 * BLOCK;
        config.devices[0].queue.io_timeout_ns = SEC;
    });
    let ids = in_blocks(&mut harness, 100);
    harness.wait(3 * SEC);
    assert!(ids.iter().all(|&id| harness.answer(id).is_some()), "every operation completes");
    assert!(ids.iter().any(|&id| harness.answer(id) == Some(LATE)));
    // Reads of cached blocks continue.
    let read = harness.send(7, Op::Read, 0, BLOCK);
    assert_eq!(harness.answer(read), Some(Ok(())));
    // The device completes: everything is written, and there is credit again.
    harness.wait_served(40 * SEC, Ok(()));
    assert_eq!((harness.dirty().nr_dirty, harness.dirty().nr_writeback), (0, 0));
    let write = harness.send(1, Op::Write, 99 * BLOCK, BLOCK);
    assert_eq!(harness.answer(write), Some(Ok(())));
}

#[test]
fn lowered_dirty_limit_does_not_block_waiting_writer() {
    let mut harness = Harness::new(8192, |config| {
        config.dirty.policy = ThrottlePolicy::None;
        config.dirty.dirty_bytes = 2 * MIB;
        config.devices[0].queue.max_sectors_kb = 4;
        config.devices[0].queue.max_folio_order = 0;
        config.devices[0].queue.io_timeout_ns = 3600 * SEC;
    });
    let big = harness.send(1, Op::Write, 0, 4 * MIB);
    harness.wait(MS);
    assert_eq!((harness.answer(big), harness.dirty().refused > 0), (None, true));
    let bytes = 2 * BLOCK;
    harness.control(Control::SetDirty { tunable: DirtyTunable::Bytes, value: bytes, token: 1 });
    // A device so slow that the limit follows the dirty data all the way down.
    for _ in 0..4096 {
        harness.wait(SEC);
        if !harness.in_flight.is_empty() {
            harness.complete(Ok(()));
        }
    }
    assert!(harness.dirty().nr_dirty_threshold < 64, "{:?}", harness.dirty());
    for _ in 0..600 {
        harness.wait_served(SEC, Ok(()));
    }
    assert_eq!(harness.answer(big), Some(Ok(())));
}

#[test]
fn waiting_operations_complete_when_volume_shrinks() {
    let mut harness = Harness::new(1024, |config| config.dirty.dirty_bytes = 16 * BLOCK);
    let volume = VolumeId(0);
    let read = harness.send(1, Op::Read, 100 * BLOCK, BLOCK);
    let behind = harness.send(2, Op::Read, 100 * BLOCK, 8 * BLOCK);
    let write = harness.send(3, Op::Write, 60 * BLOCK, 40 * BLOCK);
    assert_eq!((harness.answer(read), harness.answer(write)), (None, None));
    harness.control(Control::Resize { volume, size: 64 * BLOCK });
    harness.wait_served(60 * SEC, Ok(()));
    for id in [read, behind, write] {
        assert!(
            harness.answer(id).is_some_and(|status| status.is_err()),
            "{:?}",
            harness.answer(id)
        );
    }
    let flush = harness.send(1, Op::Flush, 0, 0);
    harness.wait_served(SEC, Ok(()));
    assert_eq!(harness.answer(flush), Some(Ok(())));
    // After it has grown again, blocks past the old end come from the device.
    harness.control(Control::Resize { volume, size: 128 * BLOCK });
    let reads = harness.commands[Op::Read as usize];
    harness.send(4, Op::Read, 100 * BLOCK, BLOCK);
    assert_eq!(harness.commands[Op::Read as usize], reads + 1, "nothing old is in the cache");
}

/// An operation that waits while its volume shrinks fails as one that arrives afterwards.
#[test]
fn truncated_operations_fail_like_ones_past_the_end() {
    let mut harness = Harness::new(1024, |_| {});
    harness.send_flags(1, Op::Write, 96 * BLOCK, 8 * BLOCK, BioFlags::DIRECT);
    let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::BlockStatus];
    let waiting = ops.map(|op| harness.send(2, op, 100 * BLOCK, BLOCK));
    assert_eq!(waiting.map(|id| harness.answer(id)), [None; 5]);
    harness.control(Control::Resize { volume: VolumeId(0), size: 64 * BLOCK });
    harness.settle(Ok(()));
    let later = ops.map(|op| harness.send(2, op, 100 * BLOCK, BLOCK));
    let (invalid, full) = (Some(Err(IoError::Invalid)), Some(Err(IoError::NoSpace)));
    let answers = [invalid, full, invalid, full, invalid];
    assert_eq!(waiting.map(|id| harness.answer(id)), answers);
    assert_eq!(later.map(|id| harness.answer(id)), answers);
}

#[test]
fn range_waiters_fail_when_device_times_out() {
    let mut harness = Harness::new(1024, |config| config.devices[0].queue.io_timeout_ns = SEC);
    let direct = harness.send_flags(1, Op::Write, 0, 4 * BLOCK, BioFlags::DIRECT);
    let read = harness.send(2, Op::Read, BLOCK, BLOCK);
    harness.wait(3 * SEC);
    assert_eq!((harness.answer(direct), harness.answer(read)), (Some(LATE), Some(LATE)));
    let later = harness.send(2, Op::Read, BLOCK, BLOCK);
    assert_eq!(harness.answer(later), Some(LATE));
    harness.complete(Ok(()));
    let after = harness.send(2, Op::Read, BLOCK, BLOCK);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(after), Some(Ok(())), "free when the device is done with it");
}

/// The write-out of the dirty blocks times out before the direct write has gone to the device.
#[test]
fn range_waiters_fail_when_write_out_times_out() {
    let mut harness = Harness::new(1024, |config| config.devices[0].queue.io_timeout_ns = SEC);
    harness.send(1, Op::Write, 0, BLOCK);
    let direct = harness.send_flags(1, Op::Write, 0, 4 * BLOCK, BioFlags::DIRECT);
    let read = harness.send(2, Op::Read, BLOCK, BLOCK);
    let write = harness.send(3, Op::Write, 2 * BLOCK, BLOCK);
    assert_eq!((harness.in_flight.len(), harness.answer(direct)), (1, None));
    harness.wait(3 * SEC);
    let answers = [direct, read, write].map(|id| harness.answer(id));
    assert_eq!(answers, [Some(LATE); 3], "no operation waits for the device");
    harness.complete(Ok(()));
    harness.settle(Ok(()));
    let after = harness.send(2, Op::Read, BLOCK, BLOCK);
    harness.settle(Ok(()));
    assert_eq!(harness.answer(after), Some(Ok(())), "free when the device is done with it");
}

/// A folio with constantly outstanding blocks is no longer late once its late command has completed.
#[test]
fn busy_folio_is_late_only_while_command_is_late() {
    let mut harness = Harness::new(1024, |config| config.devices[0].queue.io_timeout_ns = 2 * SEC);
    harness.send(1, Op::Prefetch, 0, 4 * BLOCK);
    harness.settle(Ok(()));
    assert_eq!(harness.stats().folios[2], 1, "one folio of four blocks");
    let late = harness.send_flags(1, Op::Write, 0, BLOCK, BioFlags::FUA);
    harness.wait(SEC);
    // The device answers something else: it is not stuck.
    let other = harness.send(4, Op::Read, 100 * BLOCK, BLOCK);
    let submit = harness.in_flight.remove(1);
    harness.complete_this(submit, Ok(()));
    harness.wait(2 * SEC);
    assert_eq!((harness.answer(late), harness.answer(other)), (Some(LATE), Some(Ok(()))));
    let first = harness.send_flags(2, Op::Write, BLOCK, BLOCK, BioFlags::FUA);
    let refused = harness.send_flags(3, Op::Write, BLOCK, BLOCK, BioFlags::FUA);
    assert_eq!(harness.answer(refused), Some(LATE), "while it is late");
    // The late command completes; the other is outstanding, and in time.
    harness.complete(Ok(()));
    assert_eq!((harness.answer(first), harness.in_flight.len()), (None, 1));
    let second = harness.send_flags(4, Op::Write, BLOCK, BLOCK, BioFlags::FUA);
    assert_eq!(harness.answer(second), None, "it waits for the one before it");
    harness.settle(Ok(()));
    assert_eq!((harness.answer(first), harness.answer(second)), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn failed_writethrough_reports_error_and_drops_block() {
    let mut harness =
        Harness::new(1024, |config| config.volumes[0].options.mode = WriteMode::Writethrough);
    let write = harness.send(1, Op::Write, 0, BLOCK);
    harness.settle(FAILS);
    assert_eq!((harness.answer(write), harness.stats().held), (Some(FAILS), 0));
    let read = harness.send(1, Op::Read, 0, BLOCK);
    assert_eq!(harness.answer(read), None, "the block is read from the device");
    harness.wait(MS);
}

/// The write-outs of a dead device stay outstanding; those of others continue.
#[test]
fn dead_device_does_not_block_write_out_of_others() {
    let mut harness = Harness::new(1024, |config| {
        config.devices.push(config.devices[0]);
        config.volumes.push(VolumeConfig { device: DeviceId(1), ..config.volumes[0] });
        config.devices[0].queue.nr_requests = 4096;
        config.devices[0].queue.queue_depth = 4096;
    });
    for at in 0..150 {
        harness.send_to(0, 1, Op::Write, at * MIB, BLOCK);
    }
    harness.send_to(0, 1, Op::Flush, 0, 0);
    let dead = harness.in_flight.len();
    assert!(dead >= 64, "{dead} write-outs of the dead device");
    let writes: Vec<_> =
        (0..20).map(|at| harness.send_to(1, 2, Op::Write, at * MIB, BLOCK)).collect();
    let flush = harness.send_to(1, 2, Op::Flush, 0, 0);
    for _ in 0..100 {
        while let Some(at) =
            harness.in_flight.iter().position(|submit| submit.device == DeviceId(1))
        {
            let submit = harness.in_flight.remove(at);
            harness.complete_this(submit, Ok(()));
        }
        harness.wait(10 * MS);
    }
    assert!(writes.iter().all(|&id| harness.answer(id) == Some(Ok(()))));
    assert_eq!(harness.answer(flush), Some(Ok(())), "after a second");
}

/// Held blocks count until they are written. They may fill a lowered limit: then no writer waits.
#[test]
fn dirty_limit_lowered_to_held_blocks_fails_writers() {
    let mut harness = Harness::new(1024, |config| {
        config.dirty.dirty_bytes = 64 * BLOCK;
        config.volumes.push(config.volumes[0]);
    });
    let first = in_blocks(&mut harness, 12);
    let flush = harness.send(1, Op::Flush, 0, 0);
    harness.wait_served(SEC, FAILS);
    assert_eq!((harness.answer(first[11]), harness.answer(flush)), (Some(Ok(())), Some(FAILS)));
    assert_eq!(harness.stats().held, 12);
    let bytes = 8 * BLOCK;
    harness.control(Control::SetDirty { tunable: DirtyTunable::Bytes, value: bytes, token: 1 });
    harness.wait_served(60 * SEC, FAILS);
    let write = harness.send_to(1, 7, Op::Write, 0, BLOCK);
    harness.wait_served(600 * SEC, FAILS);
    assert_eq!(harness.answer(write), Some(FAILS), "every operation completes");
    // The limit is raised: there is credit.
    let bytes = 64 * BLOCK;
    harness.control(Control::SetDirty { tunable: DirtyTunable::Bytes, value: bytes, token: 2 });
    let write = harness.send_to(1, 7, Op::Write, 0, BLOCK);
    harness.wait_served(SEC, Ok(()));
    assert_eq!(harness.answer(write), Some(Ok(())));
}

/// Fills of a dead device stay outstanding, and take neither so many bios nor so
/// many frames that those of others find none.
#[test]
fn dead_device_does_not_block_reads_of_others() {
    for len in [BLOCK, 64 << 10, 8 * MIB] {
        let mut harness = Harness::new(1024, |config| {
            config.devices.push(config.devices[0]);
            config.volumes.push(VolumeConfig { device: DeviceId(1), ..config.volumes[0] });
            config.devices[0].queue.nr_requests = 4096;
            config.devices[0].queue.queue_depth = 4096;
            config.devices[0].queue.io_timeout_ns = SEC;
        });
        for at in 0..300 {
            harness.send_to(0, 1, Op::Read, at * 8 * MIB, len);
        }
        let send = |at| harness.send_to(1, 2, Op::Read, at * MIB, 16 * BLOCK);
        let reads: Vec<_> = (0..20).map(send).collect();
        for _ in 0..500 {
            while let Some(at) = harness.in_flight.iter().position(|s| s.device == DeviceId(1)) {
                let submit = harness.in_flight.remove(at);
                harness.complete_this(submit, Ok(()));
            }
            harness.wait(10 * MS);
        }
        let answered = reads.iter().filter(|&&id| harness.answer(id) == Some(Ok(()))).count();
        assert_eq!(answered, 20, "beside reads of {len}");
        // The dead device completes after all: so do the reads that waited for it.
        harness.wait_served(10 * SEC, Ok(()));
        assert!(harness.shard.is_idle(), "{}", harness.shard.told_waits());
    }
}

/// Two devices under one dirty limit. The first fails its writes and holds the blocks; then the limit is lowered below what is
/// held. Writers of the second device waited for credit without end: none of it would ever be free.
#[test]
fn writers_beside_held_blocks_above_a_lowered_limit_continue() {
    for (limit, wait) in [(8 * BLOCK, false), (3 * BLOCK, false), (3 * BLOCK, true)] {
        let mut harness = Harness::new(1024, |config| {
            config.devices.push(config.devices[0]);
            config.volumes.push(VolumeConfig { device: DeviceId(1), ..config.volumes[0] });
        });
        for block in 0..12 {
            harness.send_to(0, 1, Op::Write, 8 * block * BLOCK, BLOCK);
        }
        let flush = harness.send(1, Op::Flush, 0, 0);
        harness.settle(FAILS);
        assert_eq!((harness.answer(flush), harness.stats().held), (Some(FAILS), 12));
        let set = |harness: &mut Harness, value| {
            let tunable = DirtyTunable::Bytes;
            harness.control(Control::SetDirty { tunable, value, token: 1 });
            // A lowered limit is approached in steps.
            for _ in 0..300 {
                while let Some(submit) = harness.in_flight.pop() {
                    let status = if submit.device == DeviceId(0) { FAILS } else { Ok(()) };
                    harness.complete_this(submit, status);
                }
                harness.wait(SEC);
            }
        };
        let writes: Vec<_> = if wait {
            // They wait already when the limit changes.
            set(&mut harness, 13 * BLOCK);
            let ids = (0..9).map(|n| harness.send_to(1, 2, Op::Write, 8 * n * BLOCK, BLOCK));
            ids.collect()
        } else {
            Vec::new()
        };
        set(&mut harness, limit);
        let more = (10..19).map(|n| harness.send_to(1, 3, Op::Write, 8 * n * BLOCK, BLOCK));
        let writes: Vec<_> = writes.into_iter().chain(more.collect::<Vec<_>>()).collect();
        for _ in 0..20 {
            while let Some(submit) = harness.in_flight.pop() {
                let status = if submit.device == DeviceId(0) { FAILS } else { Ok(()) };
                harness.complete_this(submit, status);
            }
            harness.wait(SEC);
        }
        let answers: Vec<_> = writes.iter().map(|&id| harness.answer(id)).collect();
        assert!(answers.iter().all(|answer| *answer == Some(Ok(()))), "{limit} {answers:?}");
    }
}

/// A writer waits for credit; then the held blocks of its own volume reach the bound above which writes fail. It must be asked
/// again, though no credit becomes free.
#[test]
fn waiting_writers_fail_when_the_blocks_are_held() {
    let mut harness = Harness::new(1024, |config| {
        config.dirty.dirty_bytes = 16 * BLOCK;
        config.dirty.dirty_background_bytes = 4 * BLOCK;
    });
    let writes: Vec<_> =
        (0..40).map(|n| harness.send(1 + n as u32, Op::Write, 8 * n * BLOCK, BLOCK)).collect();
    assert!(writes.iter().any(|&id| harness.answer(id).is_none()), "some wait for credit");
    harness.wait_served(20 * SEC, FAILS);
    let waiting = writes.iter().filter(|&&id| harness.answer(id).is_none()).count();
    assert_eq!(waiting, 0, "{}", harness.shard.told_waits());
}

/// A hung device under a cache: reads that miss, writers beyond the credit, flushes, discards and direct I/O are answered within
/// two time-outs; then everything that needs the device fails at once, and goes on when it answers.
#[test]
fn cached_operations_on_a_silent_device_end_in_time() {
    let mut harness = Harness::new(1024, |config| {
        config.devices[0].queue.io_timeout_ns = SEC;
        (config.devices[0].queue.nr_requests, config.devices[0].queue.queue_depth) = (4, 4);
        config.dirty.dirty_bytes = 16 * BLOCK;
        config.dirty.dirty_background_bytes = 4 * BLOCK;
    });
    let mut ids = Vec::new();
    for n in 0..60 {
        ids.push(harness.send(1, Op::Write, 8 * n * BLOCK, BLOCK));
        ids.push(harness.send(2, Op::Read, (10_000 + 8 * n) * BLOCK, BLOCK));
        ids.push(harness.send_flags(
            3,
            Op::Write,
            (20_000 + n % 3) * BLOCK,
            BLOCK,
            BioFlags::DIRECT,
        ));
        ids.push(harness.send_flags(4, Op::Write, (30_000 + n) * BLOCK, BLOCK, BioFlags::FUA));
        ids.push(harness.send(5, Op::Discard, (8 * n) * BLOCK, 4 * BLOCK));
        ids.push(harness.send(6, Op::Flush, 0, 0));
    }
    harness.wait(2 * SEC - MS);
    let waiting = ids.iter().filter(|&&id| harness.answer(id).is_none()).count();
    assert_eq!(waiting, 0, "{}", harness.shard.told_waits());
    let before = harness.in_flight.len();
    let read = harness.send(2, Op::Read, 90_000 * BLOCK, BLOCK);
    let flush = harness.send(6, Op::Flush, 0, 0);
    let direct = harness.send_flags(3, Op::Write, 90_000 * BLOCK, BLOCK, BioFlags::DIRECT);
    let answers = [read, flush, direct].map(|id| harness.answer(id));
    assert_eq!(answers, [Some(LATE); 3]);
    assert_eq!(harness.in_flight.len(), before, "nothing more is sent");
    harness.settle(Ok(()));
    let read = harness.send(2, Op::Read, 90_000 * BLOCK, BLOCK);
    harness.wait_served(10 * SEC, Ok(()));
    let flush = harness.send(6, Op::Flush, 0, 0);
    harness.wait_served(10 * SEC, Ok(()));
    let flush_after_errors = harness.send(6, Op::Flush, 0, 0);
    harness.wait_served(10 * SEC, Ok(()));
    assert_eq!(harness.answer(read), Some(Ok(())));
    assert!(harness.answer(flush).is_some());
    assert_eq!(harness.answer(flush_after_errors), Some(Ok(())), "errors are reported once");
    assert_eq!(harness.stats().held, 0);
}

#[test]
fn cache_of_a_volume_that_belongs_to_another_server_is_void() {
    let mut harness = Harness::new(4096, |_| {});
    harness.send(1, Op::Read, 0, 16 * BLOCK);
    harness.settle(Ok(()));
    harness.send(1, Op::Write, 0, BLOCK);
    harness.control(Control::Void { volume: VolumeId(0) });
    for op in [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::Prefetch, Op::BlockStatus] {
        let len = if op == Op::Flush { 0 } else { BLOCK };
        let id = harness.send(1, op, 0, len);
        assert_eq!(harness.answer(id), Some(Err(IoError::ShutDown)), "{op:?}");
    }
    let bio = harness.bio(1, Op::Read, 0, BLOCK, BioFlags::NONE);
    let mut ranges = Vec::new();
    assert!(!harness.shard.lend_frames(Instant(harness.now), &bio, &mut ranges));
}
