//! A device that does not answer in time but is not stuck: its share of the cache's bios, and the waits of its operations.

use headworks_core::time::SEC;
use headworks_core::{
    BioFlags, BioId, DeviceId, DeviceState, Input, IoError, Op, Scheduler, Status, VolumeConfig,
    WriteMode,
};

use crate::harness::{BLOCK, Harness, MIB};

const LATE: Status = Err(IoError::TimedOut);
const T: u64 = SEC;
/// The pauses among the waits that a cache counts.
const PAUSE: usize = 2;

/// Two devices; the first has a read that timed out, and a younger one, so it is not stuck.
fn beside_unresponsive() -> Harness {
    let mut harness = Harness::new(1024, |config| {
        config.devices[0].queue.nr_requests = 4096;
        config.devices[0].queue.queue_depth = 4096;
        config.devices[0].queue.io_timeout_ns = T;
        config.devices.push(config.devices[0]);
        config.volumes.push(VolumeConfig { device: DeviceId(1), ..config.volumes[0] });
    });
    harness.send(1, Op::Read, 0, BLOCK);
    harness.wait(T / 2);
    harness.send(1, Op::Read, MIB, BLOCK);
    harness.wait(T / 2);
    assert_eq!(harness.shard.device_state(DeviceId(0)), Some(DeviceState::Live));
    harness
}

/// Returns the reads that a device has after 400 were asked for.
fn reads_sent(harness: &mut Harness, device: u16) -> usize {
    for at in 0..400 {
        harness.send_to(device, 1, Op::Read, (2 + at) * MIB, BLOCK);
    }
    let sent = harness.in_flight.iter();
    sent.filter(|submit| submit.device == DeviceId(device)).count()
}

#[test]
fn unresponsive_device_gets_an_eighth_of_the_bios() {
    let mut harness = beside_unresponsive();
    let unresponsive = reads_sent(&mut harness, 0);
    // It answers a command: nothing limits it any more.
    harness.complete(Ok(()));
    let answers = harness.in_flight.len();
    assert!(unresponsive > 2 && unresponsive * 6 < answers, "{unresponsive} {answers}");
}

#[test]
fn device_whose_bios_are_all_late_is_tried_with_one() {
    let mut harness = beside_unresponsive();
    let had = reads_sent(&mut harness, 0);
    harness.wait(2 * T);
    assert_eq!(harness.shard.device_state(DeviceId(0)), Some(DeviceState::Stuck));
    let again = reads_sent(&mut harness, 0);
    assert_eq!(again, had + 1);
}

/// A device whose asynchronous requests have one tag. It has a write-out for that, of a flush that is not small, a second one waits,
/// and an operation for the second. Until 1.5 T it answers reads; from 1.75 T on it is unresponsive, and the second write-out fails. Returns
/// when the operation was answered.
fn answered_at(mode: WriteMode, send: impl FnOnce(&mut Harness) -> BioId) -> u64 {
    let mut harness = Harness::new(1024, |config| {
        let queue = &mut config.devices[0].queue;
        (queue.nr_requests, queue.queue_depth, queue.io_timeout_ns) = (8, 8, T);
        (queue.scheduler, queue.deadline.async_depth) = (Scheduler::MqDeadline, 1);
        config.volumes.push(config.volumes[0]);
        config.volumes[0].options.mode = mode;
    });
    harness.send(1, Op::Write, 0, 32 * BLOCK);
    harness.send(1, Op::Write, MIB, BLOCK);
    harness.send(1, Op::Flush, 0, 0);
    assert_eq!(harness.in_flight.len(), 1, "{:?}", harness.in_flight);
    harness.wait(T / 10);
    let id = send(&mut harness);
    let mut reads = 2;
    for tenth in 1..40 {
        if tenth <= 15 || tenth % 5 == 0 {
            // Further commands: the device is not stuck.
            harness.send(9, Op::Read, reads * MIB, BLOCK);
            reads += 1;
            if tenth <= 15 {
                let submit = harness.in_flight.pop().unwrap();
                harness.complete_this(submit, Ok(()));
            }
        }
        assert_eq!(harness.shard.device_state(DeviceId(0)), Some(DeviceState::Live));
        harness.wait(T / 10);
    }
    let mut of = harness.answers.iter().filter(|answer| answer.id == id);
    let answer = of.next().expect("it is answered");
    assert_eq!((answer.status, of.next()), (LATE, None));
    answer.at
}

fn on_block(op: Op, flags: BioFlags) -> impl FnOnce(&mut Harness) -> BioId {
    move |harness| harness.send_flags(2, op, MIB, BLOCK, flags)
}

/// It fails with the write-out that it waited for. A command that is sent then would take a time-out more.
fn assert_not_sent(at: u64) {
    assert_eq!(at, 7 * T / 4);
}

#[test]
fn discard_asks_an_unresponsive_device_only_in_its_first_time_out() {
    assert_not_sent(answered_at(WriteMode::Writeback, on_block(Op::Discard, BioFlags::NONE)));
}

#[test]
fn zeroing_asks_an_unresponsive_device_only_in_its_first_time_out() {
    assert_not_sent(answered_at(WriteMode::Writeback, on_block(Op::WriteZeroes, BioFlags::NONE)));
}

#[test]
fn direct_read_asks_an_unresponsive_device_only_in_its_first_time_out() {
    assert_not_sent(answered_at(WriteMode::Writeback, on_block(Op::Read, BioFlags::DIRECT)));
}

#[test]
fn direct_write_asks_an_unresponsive_device_only_in_its_first_time_out() {
    assert_not_sent(answered_at(WriteMode::Writeback, on_block(Op::Write, BioFlags::DIRECT)));
}

#[test]
fn fua_write_asks_an_unresponsive_device_only_in_its_first_time_out() {
    assert_not_sent(answered_at(WriteMode::Writeback, on_block(Op::Write, BioFlags::FUA)));
}

#[test]
fn block_status_behind_a_discard_is_answered_when_its_device_is_unresponsive() {
    assert_not_sent(answered_at(WriteMode::Writeback, |harness| {
        harness.send(3, Op::Discard, MIB, BLOCK);
        harness.send(2, Op::BlockStatus, MIB, BLOCK)
    }));
}

/// The device has its share of the bios, so the data of the flush is not written out.
#[test]
fn flush_of_an_unresponsive_device_ends_within_two_time_outs() {
    let mut harness = beside_unresponsive();
    reads_sent(&mut harness, 0);
    let writeouts = harness.writes.len();
    harness.send(2, Op::Write, MIB / 2, BLOCK);
    let came = harness.now;
    let flush = harness.send(2, Op::Flush, 0, 0);
    for at in 0..40 {
        // Further commands: the device is not stuck. Further reads wait for a bio before the flusher does.
        harness.send_flags(3, Op::Read, (1000 + at) * MIB, BLOCK, BioFlags::DIRECT);
        harness.send(3, Op::Read, (2000 + at) * MIB, BLOCK);
        harness.wait(T / 10);
        assert_eq!(harness.shard.device_state(DeviceId(0)), Some(DeviceState::Live));
    }
    let answer = harness.answers.iter().find(|answer| answer.id == flush).unwrap();
    assert_eq!((answer.status, answer.at, harness.writes.len()), (LATE, came + 2 * T, writeouts));
}

/// A part of a block is written, which is read first; the write-out then waits for a tag. It has one limit from the arrival on.
#[test]
fn write_out_of_a_writer_waits_from_its_arrival_on() {
    let cases = [(WriteMode::Writeback, BioFlags::FUA), (WriteMode::Writethrough, BioFlags::NONE)];
    for (mode, flags) in cases {
        let mut harness = Harness::new(1024, |config| {
            let queue = &mut config.devices[0].queue;
            (queue.nr_requests, queue.queue_depth, queue.io_timeout_ns) = (2, 2, T);
            config.volumes[0].options.mode = mode;
        });
        let write = harness.send_flags(1, Op::Write, 0, 512, flags);
        harness.send_flags(2, Op::Read, MIB, BLOCK, BioFlags::DIRECT);
        harness.wait(T / 2);
        harness.send_flags(2, Op::Read, 2 * MIB, BLOCK, BioFlags::DIRECT);
        assert_eq!(harness.in_flight.len(), 2);
        harness.complete(Ok(()));
        assert_eq!((harness.in_flight.len(), harness.writes.len()), (2, 0));
        harness.wait(T / 2 - 1);
        assert_eq!(harness.answer(write), None);
        harness.wait(1);
        assert_eq!((harness.answer(write), harness.writes.len()), (Some(LATE), 0), "{mode:?}");
    }
}

/// A write waits for the end of a pause; its connection closes, which ends the pause, in the batch in which the wait is too long.
#[test]
fn pause_that_a_close_ended_is_not_ended_again_when_it_expires() {
    let mut harness = Harness::new(4096, |config| {
        config.dirty.dirty_bytes = 512 * BLOCK;
        config.devices[0].queue.io_timeout_ns = T;
    });
    let mut writes = Vec::new();
    // The writer pauses, and what it sends next waits behind.
    while harness.stats().waits[PAUSE] < 20 {
        let at = writes.len() as u64;
        writes.push(harness.send(2, Op::Write, at * 16 * BLOCK, 16 * BLOCK));
        assert!(at < 1000, "it never pauses");
    }
    harness.send(1, Op::Read, 1000 * MIB, BLOCK);
    harness.now += T;
    harness.turn(&[Input::Close { connection: 2 }, Input::Timer]);
    harness.wait(2 * T);
    let answered = |write: &BioId| harness.answer(*write).is_some();
    assert!(writes.iter().all(answered), "every write is answered");
}
