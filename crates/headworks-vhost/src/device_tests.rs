//! Devices in one thread with the driver's queues: requests of each kind, notifications, stops, memory that changes, rings full of nonsense.

mod hostile_tests;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use headworks_core::prng::Prng;

use crate::chain::Descriptor;
use crate::driver::{DriverOptions, Queue, Waited, Waiting};
use crate::features;
use crate::in_flight::sealed_file;
use crate::testing::{FEATURES, Machine, Process, Told, copy_of, pair, small};
use crate::wire::request as message;
use crate::wire::{RegionDescription, u32_at};
use crate::{Disk, Outcome, RequestOp};

const SIZE: usize = 1 << 20;
const BLOCK: usize = 4096;

fn started(options: DriverOptions) -> (Machine, Process, Vec<u8>) {
    started_with(options, Disk::new(SIZE as u64).with_serial("export-1"))
}

fn started_with(options: DriverOptions, disk: Disk) -> (Machine, Process, Vec<u8>) {
    let features = disk.features() & !options.without;
    let mut machine = Machine::new(options, features);
    let mut process = Process::new(disk, machine.options.queues, true);
    machine.connect(&mut process);
    (machine, process, vec![0; disk.size as usize])
}

/// The answers that a queue has: slot, status, bytes written.
fn answers(queue: &mut Queue) -> Vec<(u16, u8, u32)> {
    let mut found = Vec::new();
    queue.reap(|answer| found.push((answer.slot, answer.status, answer.written)));
    found
}

/// Sends one request and returns status and bytes written.
fn one(
    (machine, process, disk): &mut (Machine, Process, Vec<u8>),
    put: impl FnOnce(&mut Queue),
) -> (u8, u32) {
    put(&mut machine.queues[0]);
    machine.queues[0].submit();
    process.turn(disk);
    match answers(&mut machine.queues[0])[..] {
        [(0, status, written)] => (status, written),
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn data_pass_in_any_shape_of_chain() {
    for (pieces, is_indirect) in [(1, false), (1, true), (4, false), (7, true), (126, true)] {
        let buffer_bytes = 504 * 1024;
        let options = DriverOptions { pieces, is_indirect, buffer_bytes, ..small(2) };
        let mut world = started(options);
        world.0.queues[0].buffer(0)[..buffer_bytes as usize]
            .iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = (at / 512) as u8 ^ at as u8);
        let content = world.0.queues[0].buffer(0).to_vec();
        let written = one(&mut world, |queue| {
            queue.put(0, RequestOp::Write, 8192, buffer_bytes, 0);
        });
        assert_eq!(written, (0, 1), "a write writes the status alone");
        assert_eq!(world.2[8192..][..buffer_bytes as usize], content[..buffer_bytes as usize]);
        world.0.queues[0].buffer(0).fill(0);
        let read = one(&mut world, |queue| queue.put(0, RequestOp::Read, 8192, buffer_bytes, 0));
        assert_eq!(read, (0, buffer_bytes + 1));
        assert_eq!(world.0.queues[0].buffer(0), content);
    }
}

#[test]
fn requests_outside_the_disk_or_of_unknown_type_fail() {
    let mut world = started(small(1));
    let sectors = (SIZE / 512) as u64;
    // Type, sector, bytes, whether the device writes the data; status.
    let cases = [
        (0, sectors, 512, true, 1),
        (0, sectors - 1, 512, true, 0),
        (0, sectors - 1, 1024, true, 1),
        (0, u64::MAX, 512, true, 1),
        (0, u64::MAX / 512, 512, true, 1),
        (0, 0, 0, true, 1),
        (0, 0, 100, true, 1),
        (1, sectors, 512, false, 1),
        (2, 0, 512, false, 2),
        (99, 0, 512, false, 2),
        (14, 0, 16, false, 2),
        (11, 0, 8, false, 1),
        (11, 0, 272, false, 1),
        (4, 0, 0, false, 0),
    ];
    for (kind, sector, len, is_written, expected) in cases {
        let (status, written) =
            one(&mut world, |queue| queue.put_raw(0, kind, sector, len, is_written));
        assert_eq!(status, expected, "type {kind} at {sector} of {len}");
        let data = if status == 0 && is_written { len } else { 0 };
        assert_eq!(written, data + 1);
    }
}

#[test]
fn blocks_of_the_disk_are_the_unit() {
    let disk = Disk { block_size: 4096, ..Disk::new(SIZE as u64) };
    let mut world = started_with(small(1), disk);
    let (aligned, _) = one(&mut world, |queue| queue.put(0, RequestOp::Read, 4096, 4096, 0));
    let (offset, _) = one(&mut world, |queue| queue.put(0, RequestOp::Read, 512, 4096, 0));
    let (length, _) = one(&mut world, |queue| queue.put(0, RequestOp::Read, 4096, 512, 0));
    assert_eq!((aligned, offset, length), (0, 1, 1));
}

#[test]
fn identity_is_the_serial_with_zeros_behind() {
    let mut world = started(small(1));
    world.0.queues[0].buffer(0).fill(7);
    assert_eq!(one(&mut world, |queue| queue.put_raw(0, 8, 0, 20, true)), (0, 21));
    assert_eq!(&world.0.queues[0].buffer(0)[..21], b"export-1\0\0\0\0\0\0\0\0\0\0\0\0\x07");
    assert_eq!(one(&mut world, |queue| queue.put_raw(0, 8, 0, 4, true)), (0, 5));
}

#[test]
fn zeroing_has_a_request_for_each_segment() {
    let mut world = started(small(2));
    world.2.fill(9);
    let (machine, process, disk) = &mut world;
    let body = [segment(8, 8, 0), segment(32, 16, 1)].concat();
    machine.queues[0].buffer(0)[..32].copy_from_slice(&body);
    machine.queues[0].put_raw(0, 13, 0, 32, false);
    machine.queues[0].submit();
    assert_eq!(process.take(), 1, "one head");
    let found: Vec<_> =
        process.below.iter().map(|one| (one.op, one.offset, one.len, one.may_unmap)).collect();
    let zero = RequestOp::WriteZeroes;
    assert_eq!(found, [(zero, 4096, 4096, false), (zero, 16384, 8192, true)]);
    let last = process.below.pop_back().unwrap();
    process.carry_out(last, disk);
    process.device.publish();
    assert!(answers(&mut machine.queues[0]).is_empty(), "one segment is left");
    process.turn(disk);
    assert_eq!(answers(&mut machine.queues[0]), [(0, 0, 1)]);
    assert!(disk[4096..8192].iter().chain(&disk[16384..24576]).all(|byte| *byte == 0));
    assert_eq!(disk[8192], 9);
}

fn segment(sector: u64, count: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn reserved_flags_and_long_segments_are_refused() {
    let mut world = started(small(1));
    for (kind, sectors, flags, expected) in [
        (11, 8, 1, 2),
        (13, 8, 2, 2),
        (13, 8, 1 << 31, 2),
        (11, 8, 0, 0),
        (11, 1 << 22, 0, 1),
        (11, 0, 0, 1),
        (13, u32::MAX, 0, 1),
    ] {
        world.0.queues[0].buffer(0)[..16].copy_from_slice(&segment(8, sectors, flags));
        let (status, _) = one(&mut world, |queue| queue.put_raw(0, kind, 0, 16, false));
        assert_eq!(status, expected, "type {kind}, {sectors} sectors, flags {flags}");
    }
}

#[test]
fn read_only_disk_refuses_every_change() {
    let disk = Disk { is_read_only: true, ..Disk::new(SIZE as u64) };
    let mut world =
        started_with(DriverOptions { without: !(FEATURES | features::RO), ..small(1) }, disk);
    for kind in [1, 11, 13] {
        world.0.queues[0].buffer(0)[..16].copy_from_slice(&segment(0, 8, 0));
        let len = if kind == 1 { 4096 } else { 16 };
        let (status, _) = one(&mut world, |queue| queue.put_raw(0, kind, 0, len, false));
        assert_eq!(status, 1, "type {kind}");
    }
    assert_eq!(one(&mut world, |queue| queue.put(0, RequestOp::Read, 0, 4096, 0)), (0, 4097));
}

#[test]
fn writes_are_durable_unless_the_driver_flushes() {
    let fua = |without: u64, writeback: Option<u8>| {
        let (mut machine, mut process, _) =
            started(DriverOptions { without: !FEATURES | without, ..small(1) });
        if let Some(value) = writeback {
            let mut body = [32_u32, 1, 0].map(u32::to_le_bytes).concat();
            body.push(value);
            process.set(message::SET_CONFIG, body, vec![]);
        }
        machine.queues[0].put(0, RequestOp::Write, 0, 4096, 0);
        machine.queues[0].submit();
        process.take();
        process.below[0].is_fua
    };
    assert!(!fua(0, None), "the driver flushes");
    assert!(fua(features::FLUSH, None), "it cannot");
    assert!(fua(0, Some(0)), "the cache is switched off");
    assert!(!fua(0, Some(1)));
}

#[test]
fn answers_come_in_any_order_and_once() {
    let (mut machine, mut process, mut disk) = started(small(8));
    for slot in 0..8 {
        machine.queues[0].put(slot, RequestOp::Read, u64::from(slot) * 4096, 4096, 0);
    }
    machine.queues[0].submit();
    assert_eq!(process.take(), 8);
    assert_eq!(process.device.in_flight(), 8);
    for place in [5, 0, 3] {
        let request = process.below.remove(place).unwrap();
        process.carry_out(request, &mut disk);
    }
    assert!(answers(&mut machine.queues[0]).is_empty(), "not published");
    process.device.publish();
    assert_eq!(
        answers(&mut machine.queues[0]).iter().map(|one| one.0).collect::<Vec<_>>(),
        [5, 0, 4]
    );
    process.turn(&mut disk);
    assert_eq!(answers(&mut machine.queues[0]).len(), 5);
    assert_eq!(process.device.in_flight(), 0);
}

#[test]
#[should_panic(expected = "completes once")]
fn second_completion_is_a_bug() {
    let (mut machine, mut process, _) = started(small(1));
    machine.queues[0].put(0, RequestOp::Read, 0, 4096, 0);
    machine.queues[0].submit();
    process.take();
    let ticket = process.below[0].ticket;
    process.device.complete(ticket, Outcome::Done);
    process.device.complete(ticket, Outcome::Done);
}

#[test]
fn turn_is_bounded_and_begins_with_another_ring() {
    let options = DriverOptions { queues: 8, depth: 100, ..small(1) };
    let (mut machine, mut process, _) = started(options);
    for queue in &mut machine.queues {
        (0..100).for_each(|slot| queue.put(slot, RequestOp::Read, 0, 512, 0));
        queue.submit();
    }
    let mut first = Vec::new();
    let mut turns = 0;
    while process.take() > 0 {
        let taken = process.below.len();
        assert!(taken <= crate::HEADS_A_DEVICE);
        first.push(process.below[0].ticket.queue);
        let per_ring = |queue| process.below.iter().filter(|one| one.ticket.queue == queue).count();
        assert!((0..8).all(|queue| per_ring(queue) <= crate::HEADS_A_RING));
        process.below.clear();
        turns += 1;
    }
    assert!(turns >= 4);
    first.dedup();
    assert!(first.len() > 2, "turns began with {first:?}");
    let (mut machine, mut process, _) = started(small(8));
    (0..8).for_each(|slot| machine.queues[0].put(slot, RequestOp::Read, 0, 512, 0));
    machine.queues[0].submit();
    let mut out = Vec::new();
    assert_eq!(process.device.take(3, &mut out), 3, "no more than asked for");
}

/// An eventfd that does not block.
fn event_fd() -> OwnedFd {
    // SAFETY: the call takes no memory; the descriptor is new and belongs to nothing else.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
}

/// Takes the count of an eventfd.
fn count_of(fd: i32) -> u64 {
    let mut count = 0_u64;
    // SAFETY: eight bytes that live until the call has returned; the descriptor does not block.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
    count
}

#[test]
fn notifications_are_sent_when_wanted_and_once_a_turn() {
    for without in [0, features::EVENT_IDX] {
        let options = DriverOptions { without: !FEATURES | without, ..small(4) };
        let (mut machine, mut process, mut disk) = started(options);
        let (kick, call) = (machine.queues[0].kick_fd(), machine.queues[0].call_fd());
        count_of(call);
        assert!(!process.device.arm(), "nothing is there");
        (0..4).for_each(|slot| machine.queues[0].put(slot, RequestOp::Read, 0, 512, 0));
        machine.queues[0].submit();
        assert_eq!(count_of(kick), 1, "one kick for four requests");
        assert!(process.device.arm(), "requests are there");
        process.turn(&mut disk);
        assert_eq!(count_of(call), 0, "the driver polls");
        assert_eq!(answers(&mut machine.queues[0]).len(), 4);
        // While the device polls it is not kicked.
        machine.queues[0].put(0, RequestOp::Read, 0, 512, 0);
        machine.queues[0].submit();
        assert!(without == 0 || count_of(kick) == 0 || machine.queues[0].counts().kicks <= 2);
        process.turn(&mut disk);
        assert_eq!(answers(&mut machine.queues[0]).len(), 1);
        // The driver sleeps: it is notified of the first answer alone.
        assert_eq!(
            machine.queues[0].wait(Duration::from_millis(1)),
            Waited::TimedOut,
            "there is no answer"
        );
        assert_eq!(count_of(call), 0);
    }
}

#[test]
fn sleeping_driver_is_notified() {
    for without in [0, features::EVENT_IDX] {
        let options =
            DriverOptions { without: !FEATURES | without, waiting: Waiting::Sleep, ..small(4) };
        let (mut machine, mut process, mut disk) = started(options);
        count_of(machine.queues[0].call_fd());
        let queue = &mut machine.queues[0];
        (0..2).for_each(|slot| queue.put(slot, RequestOp::Read, 0, 512, 0));
        queue.submit();
        let device = std::thread::spawn(move || {
            std::thread::yield_now();
            process.turn(&mut disk);
            process
        });
        // A lost notification would be this time-out.
        assert_eq!(queue.wait(Duration::from_secs(60)), Waited::Answered);
        assert_eq!(answers(queue).len(), 2);
        device.join().unwrap();
    }
}

#[test]
fn wait_ends_when_the_device_closes_the_connection() {
    for waiting in [Waiting::Sleep, Waiting::Poll] {
        let (mut machine, mut process, mut disk) = started(DriverOptions { waiting, ..small(4) });
        let queue = &mut machine.queues[0];
        let (own, device) = std::os::unix::net::UnixStream::pair().unwrap();
        queue.set_peer(Some(own.into()));
        queue.put(0, RequestOp::Read, 0, 512, 0);
        queue.submit();
        process.turn(&mut disk);
        queue.put(1, RequestOp::Read, 0, 512, 0);
        queue.submit();
        drop(device);
        // What was answered before is an answer; a wait that does not see the end would take a minute.
        assert_eq!(queue.wait(Duration::from_secs(60)), Waited::Answered);
        assert_eq!(answers(queue).len(), 1);
        assert_eq!(queue.wait(Duration::from_secs(60)), Waited::Closed);
    }
}

#[test]
fn kick_descriptor_is_read_without_waiting_or_changing_its_mode() {
    let (mut machine, mut process, _) = started(small(1));
    // A descriptor in blocking mode that nobody has written.
    // SAFETY: the calls take no memory; the descriptor is closed by `copy_of`'s owner and the process.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    process.set(message::SET_VRING_KICK, 0_u64.to_le_bytes().to_vec(), vec![copy_of(fd)]);
    process.device.on_kick(0);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::write(fd, (&raw const THREE).cast(), 8), 8);
        process.device.on_kick(0);
        assert_eq!(
            libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK,
            0,
            "the mode is the front end's"
        );
        libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
        assert_eq!(count_of(fd), 0, "the count was taken");
        libc::close(fd);
    }
    // A call descriptor is given as one that does not block, and changed and filled then: the device does not wait.
    let (call, full) = (event_fd(), u64::MAX - 1);
    let copy = vec![copy_of(call.as_raw_fd())];
    process.set(message::SET_VRING_CALL, 0_u64.to_le_bytes().to_vec(), copy);
    count_of(call.as_raw_fd());
    // SAFETY: eight bytes of a value that lives until the call has returned.
    unsafe {
        libc::fcntl(call.as_raw_fd(), libc::F_SETFL, 0);
        assert_eq!(libc::write(call.as_raw_fd(), (&raw const full).cast(), 8), 8);
    }
    machine.queues[0].put(0, RequestOp::Read, 0, 512, 0);
    machine.queues[0].submit();
    process.turn(&mut vec![0; SIZE]);
    assert_eq!(answers(&mut machine.queues[0]).len(), 1);
}

static THREE: u64 = 3;

#[test]
fn stop_waits_for_what_is_in_flight_and_answers_the_base() {
    let (mut machine, mut process, mut disk) = started(small(4));
    (0..3).for_each(|slot| machine.queues[0].put(slot, RequestOp::Write, 0, 512, 0));
    machine.queues[0].submit();
    process.take();
    assert!(process.begin(message::GET_VRING_BASE, pair(0, 0), vec![]).is_none());
    machine.queues[0].put(3, RequestOp::Write, 0, 512, 0);
    machine.queues[0].submit();
    assert_eq!(process.take(), 0, "a stopping ring takes nothing");
    while let Some(request) = process.below.pop_front() {
        assert!(process.answer().is_none());
        process.carry_out(request, &mut disk);
    }
    assert!(process.answer().is_none(), "the answers are not published");
    process.device.publish();
    let Some(Told::Reply(reply)) = process.answer() else { panic!("no base") };
    assert_eq!(u32_at(&reply.body, 4), 3);
    assert_eq!(answers(&mut machine.queues[0]).len(), 3);
    assert_eq!(process.device.kicks().count(), 0, "its descriptor is gone");
    machine.start(&mut process, 0);
    process.turn(&mut disk);
    assert_eq!(
        answers(&mut machine.queues[0]).len(),
        1,
        "the last request is served after the start"
    );
}

#[test]
fn disabled_ring_takes_nothing_and_answers() {
    let (mut machine, mut process, mut disk) = started(small(2));
    machine.queues[0].put(0, RequestOp::Read, 0, 512, 0);
    machine.queues[0].submit();
    process.take();
    process.set(message::SET_VRING_ENABLE, pair(0, 0), vec![]);
    machine.queues[0].put(1, RequestOp::Read, 0, 512, 0);
    machine.queues[0].submit();
    process.turn(&mut disk);
    assert_eq!(answers(&mut machine.queues[0]), [(0, 0, 513)]);
    process.set(message::SET_VRING_ENABLE, pair(0, 1), vec![]);
    process.turn(&mut disk);
    assert_eq!(answers(&mut machine.queues[0]), [(1, 0, 513)]);
}

#[test]
fn reset_forgets_features_and_serves_after_another_negotiation() {
    let (mut machine, mut process, mut disk) = started(small(1));
    machine.queues[0].put(0, RequestOp::Read, 0, 512, 0);
    machine.queues[0].submit();
    process.take();
    assert!(process.begin(message::RESET_DEVICE, vec![], vec![]).is_none());
    process.turn(&mut disk);
    assert_eq!(process.answer().unwrap().integer(), 0);
    assert_eq!(answers(&mut machine.queues[0]).len(), 1);
    machine.connect(&mut process);
    machine.queues[0].put(0, RequestOp::Read, 0, 512, 0);
    machine.queues[0].submit();
    process.turn(&mut disk);
    assert_eq!(answers(&mut machine.queues[0]).len(), 1);
}

#[test]
fn closed_device_is_finished_after_its_last_completion() {
    let (mut machine, mut process, mut disk) = started(small(2));
    (0..2).for_each(|slot| machine.queues[0].put(slot, RequestOp::Read, 0, 512, 0));
    machine.queues[0].submit();
    process.take();
    process.device.close();
    assert!(!process.device.is_finished());
    process.turn(&mut disk);
    assert!(process.device.is_finished());
    assert_eq!(answers(&mut machine.queues[0]).len(), 2, "they are answered nevertheless");
}

/// A file of the driver's memory in two regions, with another user address for the second.
fn halves(machine: &Machine) -> Vec<RegionDescription> {
    let whole = machine.memory.description();
    let half = (whole.size / 2).next_multiple_of(4096);
    let second = RegionDescription {
        guest: whole.guest + half,
        size: whole.size - half,
        user: whole.user + half,
        file_offset: half,
    };
    vec![RegionDescription { size: half, ..whole }, second]
}

#[test]
fn old_memory_is_returned_after_its_last_request() {
    let (mut machine, mut process, mut disk) = started(small(4));
    machine.queues[0].buffer(0).fill(5);
    machine.queues[0].put(0, RequestOp::Write, 0, 4096, 0);
    machine.queues[0].submit();
    process.take();
    let mut body = 2_u64.to_le_bytes().to_vec();
    halves(&machine).iter().for_each(|region| body.extend(region.bytes()));
    let fds = (0..2).map(|_| copy_of(machine.memory.fd())).collect();
    assert!(
        process.begin(message::SET_MEM_TABLE, body, fds).is_none(),
        "a request uses the old table"
    );
    // Requests of the new table, whose completions do not count for the old one; a chain may cross its regions.
    for slot in 1..4 {
        machine.queues[0].put(slot, RequestOp::Write, 0, 4096, 0);
    }
    machine.queues[0].submit();
    assert_eq!(process.take(), 3);
    let first = process.below.pop_front().unwrap();
    while let Some(request) = process.below.pop_front() {
        process.carry_out(request, &mut disk);
    }
    process.device.publish();
    assert!(process.answer().is_none(), "the first request is still in flight");
    process.carry_out(first, &mut disk);
    process.device.publish();
    assert_eq!(process.answer().unwrap().integer(), 0);
    assert_eq!(disk[..4096], [5; 4096]);
    assert_eq!(answers(&mut machine.queues[0]).len(), 4);
}

#[test]
fn data_cross_adjacent_regions() {
    let (mut machine, mut process, _) =
        started(DriverOptions { depth: 1, buffer_bytes: 512 << 10, ..small(1) });
    let mut body = 2_u64.to_le_bytes().to_vec();
    halves(&machine).iter().for_each(|region| body.extend(region.bytes()));
    let fds = (0..2).map(|_| copy_of(machine.memory.fd())).collect();
    process.set(message::SET_MEM_TABLE, body, fds);
    machine.queues[0]
        .buffer(0)
        .iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = (at >> 9) as u8);
    let content = machine.queues[0].buffer(0).to_vec();
    let mut world = (machine, process, vec![0; SIZE]);
    assert_eq!(one(&mut world, |queue| queue.put(0, RequestOp::Write, 0, 512 << 10, 0)), (0, 1));
    assert_eq!(world.2[..512 << 10], content);
}

#[test]
fn ring_that_is_not_in_the_new_memory_breaks() {
    let (machine, mut process, _) = started(small(1));
    let mut region = machine.memory.description();
    region.user += 1 << 40;
    let mut body = 1_u64.to_le_bytes().to_vec();
    body.extend(region.bytes());
    process.set(message::SET_MEM_TABLE, body, vec![copy_of(machine.memory.fd())]);
    assert_eq!(process.broken().unwrap().queue, Some(0));
}

#[test]
fn truncated_memory_ends_its_device_alone() {
    let (mut machine, mut process, mut disk) = started(small(1));
    let (mut other_machine, mut other, _) = started(small(1));
    // The same memory again from a file that is not sealed.
    // SAFETY: the name is a C string; the descriptor is new and belongs to nothing else.
    let file = unsafe {
        std::fs::File::from_raw_fd(libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_CLOEXEC))
    };
    let whole = machine.memory.description();
    file.set_len(whole.size).unwrap();
    let mut body = 1_u64.to_le_bytes().to_vec();
    body.extend(whole.bytes());
    process.set(message::SET_MEM_TABLE, body, vec![copy_of(file.as_raw_fd())]);
    file.set_len(0).unwrap();
    process.turn(&mut disk);
    assert_eq!(process.broken().unwrap().queue, None, "the whole device");
    machine.queues[0].put(0, RequestOp::Read, 0, 512, 0);
    process.turn(&mut disk);
    assert_eq!(process.take(), 0, "it takes nothing any more");
    other_machine.queues[0].put(0, RequestOp::Read, 0, 512, 0);
    other_machine.queues[0].submit();
    other.turn(&mut disk);
    assert_eq!(answers(&mut other_machine.queues[0]).len(), 1);
}

#[test]
fn written_pages_are_logged_before_the_answer() {
    let options = DriverOptions { without: !(FEATURES | features::LOG_ALL), ..small(2) };
    let (mut machine, mut process, mut disk) = started(options);
    let whole = machine.memory.description();
    let pages = (whole.guest + whole.size) >> 12;
    let log = sealed_file(c"log", pages.div_ceil(8)).unwrap();
    let body = [pages.div_ceil(8).to_le_bytes(), 0_u64.to_le_bytes()].concat();
    let fd = log.try_clone().unwrap().into();
    assert_eq!(process.tell(message::SET_LOG_BASE, body, vec![fd]).integer(), 0);
    // The used ring's writes are logged from now on, too.
    let mut addresses = machine.queues[0].addresses();
    let used = whole.guest + (addresses.used - whole.user);
    addresses.log = Some(used);
    process.set(message::SET_VRING_ADDR, addresses.bytes(0), vec![]);
    let dirty = || {
        let mut bits = vec![0; pages.div_ceil(8) as usize];
        std::os::unix::fs::FileExt::read_exact_at(&log, &mut bits, 0).unwrap();
        (0..pages)
            .filter(|page| bits[*page as usize / 8] >> (page % 8) & 1 != 0)
            .collect::<Vec<_>>()
    };
    machine.queues[0].put(0, RequestOp::Write, 0, 4096, 0);
    machine.queues[0].submit();
    process.turn(&mut disk);
    let places = machine.memory.places(0);
    let page = |place: usize| machine.memory.guest(place) >> 12;
    let (rings, status) = (page(places.used), page(places.slots));
    assert_eq!(dirty(), [rings, status], "a write dirties the used ring and the status");
    assert_eq!(answers(&mut machine.queues[0]).len(), 1);
    machine.queues[0].put(1, RequestOp::Read, 0, 4096, 0);
    machine.queues[0].submit();
    process.turn(&mut disk);
    let data = page(places.buffers + places.buffer_bytes);
    assert_eq!(dirty(), [rings, status, data]);
}

#[test]
fn pages_of_old_memory_are_logged() {
    let options = DriverOptions { without: !(FEATURES | features::LOG_ALL), ..small(1) };
    let (mut machine, mut process, mut disk) = started(options);
    let whole = machine.memory.description();
    let bytes = ((whole.guest + whole.size) >> 12).div_ceil(8);
    let log = sealed_file(c"log", bytes).unwrap();
    let body = [bytes.to_le_bytes(), 0_u64.to_le_bytes()].concat();
    let fd = log.try_clone().unwrap().into();
    assert_eq!(process.tell(message::SET_LOG_BASE, body, vec![fd]).integer(), 0);
    machine.queues[0].put(0, RequestOp::Read, 0, 4096, 0);
    machine.queues[0].submit();
    process.take();
    let mut body = 2_u64.to_le_bytes().to_vec();
    halves(&machine).iter().for_each(|region| body.extend(region.bytes()));
    let fds = (0..2).map(|_| copy_of(machine.memory.fd())).collect();
    assert!(process.begin(message::SET_MEM_TABLE, body, fds).is_none());
    process.turn(&mut disk);
    assert_eq!(process.answer().unwrap().integer(), 0);
    let page = machine.memory.guest(machine.memory.places(0).buffers) >> 12;
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&log, &mut byte, page / 8).unwrap();
    assert_ne!(byte[0] >> (page % 8) & 1, 0, "the page of the data");
}

#[test]
fn log_is_not_written_unless_negotiated() {
    let (mut machine, mut process, mut disk) = started(small(1));
    let log = sealed_file(c"log", 1 << 20).unwrap();
    let body = [(1_u64 << 20).to_le_bytes(), 0_u64.to_le_bytes()].concat();
    let fd = log.try_clone().unwrap().into();
    process.tell(message::SET_LOG_BASE, body, vec![fd]);
    machine.queues[0].put(0, RequestOp::Read, 0, 4096, 0);
    machine.queues[0].submit();
    process.turn(&mut disk);
    let mut bits = vec![0; 1 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&log, &mut bits, 0).unwrap();
    assert!(bits.iter().all(|byte| *byte == 0));
}

#[test]
fn ring_waits_for_room_and_goes_on() {
    // 64 requests of 124 pieces that do not touch need more blocks than the store has.
    let options = DriverOptions {
        depth: 64,
        pieces: 124,
        is_indirect: true,
        buffer_bytes: 124 * 512,
        ..small(1)
    };
    let disk = Disk::new(64 << 20);
    let (mut machine, mut process, mut bytes) = started_with(options, disk);
    let queue = &mut machine.queues[0];
    for slot in 0..64 {
        queue.put(slot, RequestOp::Write, u64::from(slot) << 20, 124 * 512, 0);
    }
    // Neighbouring pieces would be joined: every other descriptor's address is moved within its slot.
    let places = machine.memory.places(0);
    for slot in 0..64 {
        for piece in (0..124).step_by(2) {
            let place = places.tables + places.table_bytes * slot + 16 * (piece + 1);
            // SAFETY: the descriptor's length is within the machine's memory.
            unsafe { machine.memory.at(place + 8).cast::<u32>().write_volatile(256) };
        }
    }
    machine.queues[0].submit();
    let taken = process.take();
    assert!((1..64).contains(&taken), "{taken} were taken");
    assert!(!process.device.arm(), "it does not ask for a kick while it waits for room");
    let mut done = 0;
    while done < 64 {
        process.turn(&mut bytes);
        done += answers(&mut machine.queues[0]).len();
    }
}
