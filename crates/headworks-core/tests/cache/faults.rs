//! The cache on a device that fails, is late or is gone; limits that change while somebody waits. Each test is a bug that was
//! there once.

use crate::desk::{BLOCK, Desk, FAILS, MIB};
use headworks_core::time::{MS, SEC};
use headworks_core::writeback::{DirtyTunable, ThrottlePolicy};
use headworks_core::{
    BioFlags, Control, DeviceId, IoError, Op, Status, VolumeConfig, VolumeId, WriteMode,
};

const LATE: Status = Err(IoError::TimedOut);

fn in_blocks(desk: &mut Desk, blocks: u64) -> Vec<headworks_core::BioId> {
    (0..blocks).map(|at| desk.send(at as u32, Op::Write, at * BLOCK, BLOCK)).collect()
}

#[test]
fn who_writes_a_whole_block_does_not_need_what_could_not_be_read() {
    let mut desk = Desk::new(1024, |_| {});
    let read = desk.send(1, Op::Read, 5 * BLOCK, BLOCK);
    let whole = desk.send(2, Op::Write, 5 * BLOCK, BLOCK);
    let part = desk.send(3, Op::Read, 5 * BLOCK + 512, 512);
    desk.complete(FAILS);
    assert_eq!(desk.answer(read), Some(FAILS));
    assert_eq!(desk.answer(part), Some(FAILS));
    assert_eq!(desk.answer(whole), Some(Ok(())), "a bad block is repaired by writing it");
}

#[test]
fn a_fill_that_failed_beside_a_fua_write_is_not_its_error() {
    let mut desk = Desk::new(1024, |config| config.devices[0].queue.read_ahead_kb = 0);
    // One folio of four blocks: 0 is dirty and on its way, 1 is being filled.
    let read = desk.send(1, Op::Prefetch, 0, 4 * BLOCK);
    assert_eq!(desk.answer(read), Some(Ok(())));
    desk.complete(FAILS);
    let first = desk.send_flags(1, Op::Write, 0, BLOCK, BioFlags::FUA);
    let second = desk.send_flags(2, Op::Write, 0, BLOCK, BioFlags::FUA);
    let other = desk.send(3, Op::Read, BLOCK, BLOCK);
    let fill = desk.flying.iter().position(|submit| submit.op == Op::Read).unwrap();
    let fill = desk.flying.remove(fill);
    desk.complete_this(fill, FAILS);
    desk.settle(Ok(()));
    assert_eq!(desk.answer(other), Some(FAILS));
    assert_eq!((desk.answer(first), desk.answer(second)), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn writers_that_wait_for_room_hear_of_a_device_that_takes_nothing() {
    let mut desk = Desk::new(1024, |config| config.dirty.dirty_bytes = 64 * BLOCK);
    let ids = in_blocks(&mut desk, 100);
    assert!(ids.iter().any(|&id| desk.answer(id).is_none()), "some wait");
    desk.wait_served(10 * SEC, FAILS);
    assert!(ids.iter().all(|&id| desk.answer(id).is_some()), "nobody waits for ever");
    assert!(ids.iter().any(|&id| desk.answer(id) == Some(FAILS)));
    // What is held is read, and is not lost: the device is well again.
    let flush = desk.send(1, Op::Flush, 0, 0);
    desk.wait_served(SEC, Ok(()));
    assert_eq!((desk.answer(flush), desk.stats().held), (Some(FAILS), 0), "its error is told once");
    let ok = ids.iter().filter(|&&id| desk.answer(id) == Some(Ok(()))).count() as u64;
    assert_eq!(desk.dirty().nr_written, ok);
    let again = desk.send(1, Op::Flush, 0, 0);
    desk.wait_served(SEC, Ok(()));
    assert_eq!(desk.answer(again), Some(Ok(())));
    let write = desk.send(1, Op::Write, 0, BLOCK);
    desk.wait_served(SEC, Ok(()));
    assert_eq!(desk.answer(write), Some(Ok(())), "and takes writes again");
}

#[test]
fn writers_that_wait_for_room_hear_of_a_device_that_does_not_answer() {
    let mut desk = Desk::new(1024, |config| {
        config.dirty.dirty_bytes = 64 * BLOCK;
        config.devices[0].queue.io_timeout_ns = SEC;
    });
    let ids = in_blocks(&mut desk, 100);
    desk.wait(3 * SEC);
    assert!(ids.iter().all(|&id| desk.answer(id).is_some()), "nobody waits for ever");
    assert!(ids.iter().any(|&id| desk.answer(id) == Some(LATE)));
    // Reads of what is there go on.
    let read = desk.send(7, Op::Read, 0, BLOCK);
    assert_eq!(desk.answer(read), Some(Ok(())));
    // It answers in the end: all is written, and there is room again.
    desk.wait_served(40 * SEC, Ok(()));
    assert_eq!((desk.dirty().nr_dirty, desk.dirty().nr_writeback), (0, 0));
    let write = desk.send(1, Op::Write, 99 * BLOCK, BLOCK);
    assert_eq!(desk.answer(write), Some(Ok(())));
}

#[test]
fn a_limit_that_is_lowered_below_what_somebody_waits_for_holds_nobody_up() {
    let mut desk = Desk::new(8192, |config| {
        config.dirty.policy = ThrottlePolicy::None;
        config.dirty.dirty_bytes = 2 * MIB;
        config.devices[0].queue.max_sectors_kb = 4;
        config.devices[0].queue.max_folio_order = 0;
        config.devices[0].queue.io_timeout_ns = 3600 * SEC;
    });
    let big = desk.send(1, Op::Write, 0, 4 * MIB);
    desk.wait(MS);
    assert_eq!((desk.answer(big), desk.dirty().refused > 0), (None, true));
    let bytes = 2 * BLOCK;
    desk.control(Control::SetDirty { tunable: DirtyTunable::Bytes, value: bytes, token: 1 });
    // So slow a device that the limit follows what is dirty closely, all the way down.
    for _ in 0..4096 {
        desk.wait(SEC);
        if !desk.flying.is_empty() {
            desk.complete(Ok(()));
        }
    }
    assert!(desk.dirty().nr_dirty_threshold < 64, "{:?}", desk.dirty());
    for _ in 0..600 {
        desk.wait_served(SEC, Ok(()));
    }
    assert_eq!(desk.answer(big), Some(Ok(())));
}

#[test]
fn what_waits_when_its_volume_shrinks_is_answered() {
    let mut desk = Desk::new(1024, |config| config.dirty.dirty_bytes = 16 * BLOCK);
    let volume = VolumeId(0);
    let read = desk.send(1, Op::Read, 100 * BLOCK, BLOCK);
    let behind = desk.send(2, Op::Read, 100 * BLOCK, 8 * BLOCK);
    let write = desk.send(3, Op::Write, 60 * BLOCK, 40 * BLOCK);
    assert_eq!((desk.answer(read), desk.answer(write)), (None, None));
    desk.control(Control::Resize { volume, size: 64 * BLOCK });
    desk.wait_served(60 * SEC, Ok(()));
    for id in [read, behind, write] {
        assert!(desk.answer(id).is_some_and(|status| status.is_err()), "{:?}", desk.answer(id));
    }
    let flush = desk.send(1, Op::Flush, 0, 0);
    desk.wait_served(SEC, Ok(()));
    assert_eq!(desk.answer(flush), Some(Ok(())));
    // Grown again, what was beyond comes from the device.
    desk.control(Control::Resize { volume, size: 128 * BLOCK });
    let reads = desk.commands[Op::Read as usize];
    desk.send(4, Op::Read, 100 * BLOCK, BLOCK);
    assert_eq!(desk.commands[Op::Read as usize], reads + 1, "nothing old is in the cache");
}

/// Who waits while its volume shrinks hears what it would hear if it came afterwards.
#[test]
fn what_is_cut_off_is_answered_as_what_lies_beyond() {
    let mut desk = Desk::new(1024, |_| {});
    desk.send_flags(1, Op::Write, 96 * BLOCK, 8 * BLOCK, BioFlags::DIRECT);
    let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::BlockStatus];
    let waiting = ops.map(|op| desk.send(2, op, 100 * BLOCK, BLOCK));
    assert_eq!(waiting.map(|id| desk.answer(id)), [None; 5]);
    desk.control(Control::Resize { volume: VolumeId(0), size: 64 * BLOCK });
    desk.settle(Ok(()));
    let later = ops.map(|op| desk.send(2, op, 100 * BLOCK, BLOCK));
    let (invalid, full) = (Some(Err(IoError::Invalid)), Some(Err(IoError::NoSpace)));
    let answers = [invalid, full, invalid, full, invalid];
    assert_eq!(waiting.map(|id| desk.answer(id)), answers);
    assert_eq!(later.map(|id| desk.answer(id)), answers);
}

#[test]
fn who_waits_for_a_range_hears_that_the_device_does_not_answer() {
    let mut desk = Desk::new(1024, |config| config.devices[0].queue.io_timeout_ns = SEC);
    let direct = desk.send_flags(1, Op::Write, 0, 4 * BLOCK, BioFlags::DIRECT);
    let read = desk.send(2, Op::Read, BLOCK, BLOCK);
    desk.wait(3 * SEC);
    assert_eq!((desk.answer(direct), desk.answer(read)), (Some(LATE), Some(LATE)));
    let later = desk.send(2, Op::Read, BLOCK, BLOCK);
    assert_eq!(desk.answer(later), Some(LATE));
    desk.complete(Ok(()));
    let after = desk.send(2, Op::Read, BLOCK, BLOCK);
    desk.settle(Ok(()));
    assert_eq!(desk.answer(after), Some(Ok(())), "free when the device is done with it");
}

/// The same if it is the write-out of what was dirty there that is not answered: the direct write has not gone down yet.
#[test]
fn who_waits_for_a_range_that_is_written_out_hears_that_the_device_does_not_answer() {
    let mut desk = Desk::new(1024, |config| config.devices[0].queue.io_timeout_ns = SEC);
    desk.send(1, Op::Write, 0, BLOCK);
    let direct = desk.send_flags(1, Op::Write, 0, 4 * BLOCK, BioFlags::DIRECT);
    let read = desk.send(2, Op::Read, BLOCK, BLOCK);
    let write = desk.send(3, Op::Write, 2 * BLOCK, BLOCK);
    assert_eq!((desk.flying.len(), desk.answer(direct)), (1, None));
    desk.wait(3 * SEC);
    let answers = [direct, read, write].map(|id| desk.answer(id));
    assert_eq!(answers, [Some(LATE); 3], "nobody waits for as long as the device likes");
    desk.complete(Ok(()));
    desk.settle(Ok(()));
    let after = desk.send(2, Op::Read, BLOCK, BLOCK);
    desk.settle(Ok(()));
    assert_eq!(desk.answer(after), Some(Ok(())), "free when the device is done with it");
}

/// A folio of which something is always on its way: what was late once and came is not late any longer.
#[test]
fn a_folio_that_never_rests_is_late_no_longer_than_its_command() {
    let mut desk = Desk::new(1024, |config| config.devices[0].queue.io_timeout_ns = 2 * SEC);
    desk.send(1, Op::Prefetch, 0, 4 * BLOCK);
    desk.settle(Ok(()));
    assert_eq!(desk.stats().folios[2], 1, "one folio of four blocks");
    let late = desk.send_flags(1, Op::Write, 0, BLOCK, BioFlags::FUA);
    desk.wait(3 * SEC);
    assert_eq!(desk.answer(late), Some(LATE));
    let first = desk.send_flags(2, Op::Write, BLOCK, BLOCK, BioFlags::FUA);
    let refused = desk.send_flags(3, Op::Write, BLOCK, BLOCK, BioFlags::FUA);
    assert_eq!(desk.answer(refused), Some(LATE), "while it is late");
    // The late one comes; the other is on its way still, and in time.
    desk.complete(Ok(()));
    assert_eq!((desk.answer(first), desk.flying.len()), (None, 1));
    let second = desk.send_flags(4, Op::Write, BLOCK, BLOCK, BioFlags::FUA);
    assert_eq!(desk.answer(second), None, "it waits for the one before it");
    desk.settle(Ok(()));
    assert_eq!((desk.answer(first), desk.answer(second)), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn writethrough_tells_of_an_error_and_forgets_the_block() {
    let mut desk =
        Desk::new(1024, |config| config.volumes[0].options.mode = WriteMode::Writethrough);
    let write = desk.send(1, Op::Write, 0, BLOCK);
    desk.settle(FAILS);
    assert_eq!((desk.answer(write), desk.stats().held), (Some(FAILS), 0));
    let read = desk.send(1, Op::Read, 0, BLOCK);
    assert_eq!(desk.answer(read), None, "the device is asked what it has");
    desk.wait(MS);
}

/// A device that answers nothing has its write-outs under way as long as it likes; the others' go on.
#[test]
fn a_dead_device_does_not_keep_another_ones_dirty_data_here() {
    let mut desk = Desk::new(1024, |config| {
        config.devices.push(config.devices[0]);
        config.volumes.push(VolumeConfig { device: DeviceId(1), ..config.volumes[0] });
        config.devices[0].queue.nr_requests = 4096;
        config.devices[0].queue.queue_depth = 4096;
    });
    for at in 0..150 {
        desk.send_to(0, 1, Op::Write, at * MIB, BLOCK);
    }
    desk.send_to(0, 1, Op::Flush, 0, 0);
    let dead = desk.flying.len();
    assert!(dead >= 64, "{dead} write-outs of the dead device");
    let writes: Vec<_> = (0..20).map(|at| desk.send_to(1, 2, Op::Write, at * MIB, BLOCK)).collect();
    let flush = desk.send_to(1, 2, Op::Flush, 0, 0);
    for _ in 0..100 {
        while let Some(at) = desk.flying.iter().position(|submit| submit.device == DeviceId(1)) {
            let submit = desk.flying.remove(at);
            desk.complete_this(submit, Ok(()));
        }
        desk.wait(10 * MS);
    }
    assert!(writes.iter().all(|&id| desk.answer(id) == Some(Ok(()))));
    assert_eq!(desk.answer(flush), Some(Ok(())), "after a second");
}

/// What is held counts until it is written. Under a lower limit it may be all that may be dirty: then nobody is to wait.
#[test]
fn a_limit_that_is_lowered_to_what_is_held_leaves_nobody_waiting() {
    let mut desk = Desk::new(1024, |config| {
        config.dirty.dirty_bytes = 64 * BLOCK;
        config.volumes.push(config.volumes[0]);
    });
    let first = in_blocks(&mut desk, 12);
    let flush = desk.send(1, Op::Flush, 0, 0);
    desk.wait_served(SEC, FAILS);
    assert_eq!((desk.answer(first[11]), desk.answer(flush)), (Some(Ok(())), Some(FAILS)));
    assert_eq!(desk.stats().held, 12);
    let bytes = 8 * BLOCK;
    desk.control(Control::SetDirty { tunable: DirtyTunable::Bytes, value: bytes, token: 1 });
    desk.wait_served(60 * SEC, FAILS);
    let write = desk.send_to(1, 7, Op::Write, 0, BLOCK);
    desk.wait_served(600 * SEC, FAILS);
    assert_eq!(desk.answer(write), Some(FAILS), "nobody waits for ever");
    // The limit is raised: there is room.
    let bytes = 64 * BLOCK;
    desk.control(Control::SetDirty { tunable: DirtyTunable::Bytes, value: bytes, token: 2 });
    let write = desk.send_to(1, 7, Op::Write, 0, BLOCK);
    desk.wait_served(SEC, Ok(()));
    assert_eq!(desk.answer(write), Some(Ok(())));
}

/// The same with reads: who reads from a device that answers nothing has its fills under way, and neither so many of them nor so
/// many frames that others' find none.
#[test]
fn a_dead_devices_readers_do_not_keep_others_from_reading() {
    for len in [BLOCK, 64 << 10, 8 * MIB] {
        let mut desk = Desk::new(1024, |config| {
            config.devices.push(config.devices[0]);
            config.volumes.push(VolumeConfig { device: DeviceId(1), ..config.volumes[0] });
            config.devices[0].queue.nr_requests = 4096;
            config.devices[0].queue.queue_depth = 4096;
            config.devices[0].queue.io_timeout_ns = SEC;
        });
        for at in 0..300 {
            desk.send_to(0, 1, Op::Read, at * 8 * MIB, len);
        }
        let send = |at| desk.send_to(1, 2, Op::Read, at * MIB, 16 * BLOCK);
        let reads: Vec<_> = (0..20).map(send).collect();
        for _ in 0..500 {
            while let Some(at) = desk.flying.iter().position(|s| s.device == DeviceId(1)) {
                let submit = desk.flying.remove(at);
                desk.complete_this(submit, Ok(()));
            }
            desk.wait(10 * MS);
        }
        let answered = reads.iter().filter(|&&id| desk.answer(id) == Some(Ok(()))).count();
        assert_eq!(answered, 20, "beside reads of {len}");
        // It answers after all: so are those who waited for it.
        desk.wait_served(10 * SEC, Ok(()));
        assert!(desk.shard.is_idle(), "{}", desk.shard.told_waits());
    }
}
