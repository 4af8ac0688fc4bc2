//! Messages: what is refused, that refused descriptors are closed, and the driver over a real socket.

use std::io::{PipeReader, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::driver::{Driver, DriverOptions, Waited, Waiting};
use crate::features;
use crate::in_flight::sealed_file;
use crate::testing::{
    FEATURES, Machine, Mortal, Process, Told, copy_of, is_hung_up, notifier, pair, small,
};
use crate::wire::request as message;
use crate::wire::{BODY_MAX, Header, InFlightDescription, Message, RegionDescription, u32_at};
use crate::{Channel, Device, Disk, Offer, Received, RequestOp, Session, Step};

const SIZE: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn process() -> Process {
    let mut process = Process::new(Disk::new(SIZE), 2, true);
    process.negotiate(features::RO | features::LOG_ALL);
    process
}

/// The write end of a pipe as a message's descriptor, and the end that sees it closed.
fn watched() -> (PipeReader, OwnedFd) {
    let (reader, writer) = pipe().unwrap();
    (reader, writer.into())
}

fn is_refused(told: &Told) -> bool {
    match told {
        Told::Reply(reply) => crate::wire::u64_at(&reply.body, 0) != 0,
        Told::Ended(sentence) => !sentence.is_empty(),
        Told::Nothing => false,
    }
}

fn region(guest: u64, size: u64, user: u64) -> Vec<u8> {
    let about = RegionDescription { guest, size, user, file_offset: 0 };
    [&[0; 8][..], &about.bytes()].concat()
}

#[test]
fn wrong_messages_are_refused_and_change_nothing() {
    let in_flight = |queues: u16, queue_size: u16, size: u64, offset: u64| {
        InFlightDescription { size, offset, queues, queue_size }.bytes()
    };
    let name = |value: u64| value.to_le_bytes().to_vec();
    let cases: Vec<(u32, Vec<u8>, usize)> = vec![
        (0, vec![], 0),
        (19, vec![], 0),
        (message::SET_FEATURES, vec![0; 4], 0),
        (message::SET_FEATURES, name(features::ALL | 1), 0),
        (message::SET_FEATURES, name(features::ALL & !features::VERSION_1 & !features::RO), 0),
        (message::SET_FEATURES, name(features::VERSION_1), 1),
        (message::SET_PROTOCOL_FEATURES, name(u64::MAX), 0),
        (message::SET_MEM_TABLE, vec![], 0),
        (message::SET_MEM_TABLE, vec![0; 8], 0),
        (message::SET_MEM_TABLE, [&1_u64.to_le_bytes()[..], &[0; 32]].concat(), 0),
        (message::SET_MEM_TABLE, [&1_u64.to_le_bytes()[..], &[0; 32]].concat(), 1),
        (message::SET_MEM_TABLE, [&9_u64.to_le_bytes()[..], &[0; 32 * 9]].concat(), 9),
        (message::ADD_MEM_REG, region(0, 4096, 0), 0),
        (message::ADD_MEM_REG, region(0, 4096, 0), 2),
        (message::ADD_MEM_REG, region(u64::MAX, 4096, 0), 1),
        (message::ADD_MEM_REG, region(0, 4096, 0), 1), // a pipe cannot be mapped
        (message::REM_MEM_REG, region(0, 4096, 0), 0),
        (message::SET_VRING_NUM, pair(0, 3), 0),
        (message::SET_VRING_NUM, pair(0, 2048), 0),
        (message::SET_VRING_NUM, pair(0, 0), 0),
        (message::SET_VRING_NUM, pair(2, 16), 0),
        (message::SET_VRING_BASE, pair(0, 65536), 0),
        (message::SET_VRING_ADDR, vec![0; 39], 0),
        (message::SET_VRING_ENABLE, pair(0, 2), 0),
        (message::SET_VRING_KICK, name(0), 1), // neither size nor addresses
        (message::SET_VRING_KICK, name(0), 0),
        (message::SET_VRING_CALL, name(2), 1),
        (message::SET_VRING_CALL, name(1 << 9), 0),
        (message::SET_VRING_ERR, name(0x100), 2),
        (message::GET_VRING_BASE, pair(7, 0), 0),
        (message::SET_CONFIG, vec![0; 13], 0),
        (message::GET_INFLIGHT_FD, in_flight(3, 64, 0, 0), 0),
        (message::GET_INFLIGHT_FD, in_flight(0, 64, 0, 0), 0),
        (message::GET_INFLIGHT_FD, in_flight(1, 2048, 0, 0), 0),
        (message::SET_INFLIGHT_FD, in_flight(1, 64, 4096, 0), 0),
        (message::SET_INFLIGHT_FD, in_flight(1, 64, 16, 0), 1),
        (message::SET_INFLIGHT_FD, in_flight(1, 64, 4096, 8), 1),
        (message::SET_INFLIGHT_FD, in_flight(1, 64, u64::MAX, 64), 1),
        (message::SET_LOG_BASE, vec![0; 16], 1),
        (message::SET_BACKEND_REQ_FD, vec![], 0),
        (28, vec![], 1),
    ];
    for (request, body, fds) in cases {
        let mut process = process();
        let (readers, writers): (Vec<_>, Vec<_>) = (0..fds).map(|_| watched()).unzip();
        let told = process.tell(request, body.clone(), writers);
        assert!(is_refused(&told), "message {request} with {body:?} is accepted: {told:?}");
        assert!(readers.iter().all(is_hung_up), "message {request} keeps descriptors");
        assert!(!process.session.is_waiting());
        // The session goes on after an acknowledgement.
        if matches!(told, Told::Reply(_)) {
            process.set(message::SET_VRING_NUM, pair(0, 16), vec![]);
        }
    }
}

#[test]
fn descriptor_that_is_no_eventfd_is_refused_in_each_state_of_a_ring() {
    let mut machine = Machine::new(small(1), FEATURES);
    let mut process = Process::new(Disk::new(SIZE), 1, true);
    let messages = [message::SET_VRING_KICK, message::SET_VRING_CALL, message::SET_VRING_ERR];
    for is_started in [false, true] {
        if is_started {
            machine.connect(&mut process);
        } else {
            process.negotiate(machine.options.without);
        }
        for request in messages {
            let (reader, writer) = watched();
            let told = process.tell(request, 0_u64.to_le_bytes().to_vec(), vec![writer]);
            assert!(is_refused(&told), "message {request}: {told:?}");
            assert!(is_hung_up(&reader), "message {request}");
        }
    }
    let (_reader, writer) = watched();
    let body = 0_u64.to_le_bytes().to_vec();
    let message = Message::request(message::SET_VRING_CALL, body, vec![writer], false);
    let sentence = process.session.on_message(message).unwrap_err();
    assert!(sentence.starts_with("vhost-user message 13: a descriptor of pipe:"), "{sentence}");
    assert!(sentence.ends_with("not an eventfd"), "{sentence}");
}

#[test]
fn memory_that_another_process_may_withhold_is_refused() {
    let in_flight = InFlightDescription { size: 4096, offset: 0, queues: 1, queue_size: 64 };
    let table = region(0, 4096, 0)[8..].to_vec();
    let cases = [
        (message::ADD_MEM_REG, region(0, 4096, 0), "a memory region"),
        (message::SET_MEM_TABLE, [&1_u64.to_le_bytes()[..], &table].concat(), "a memory region"),
        (message::SET_INFLIGHT_FD, in_flight.bytes(), "the in-flight region"),
        (
            message::SET_LOG_BASE,
            [8_u64.to_le_bytes(), 0_u64.to_le_bytes()].concat(),
            "the migration log",
        ),
    ];
    for (request, body, what) in cases {
        let mut process = process();
        // A file of a file system that is none of memory and disks.
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let message = Message::request(request, body, vec![file.into()], false);
        let sentence = process.session.on_message(message).unwrap_err();
        assert_eq!(
            sentence,
            format!(
                "vhost-user message {request}: cannot map {what}: its file system (type 0x9fa0) may withhold pages; a memfd, /dev/shm or \
                 huge pages would do"
            )
        );
    }
}

#[test]
fn refusal_without_acknowledgement_ends_the_connection() {
    let mut process = process();
    let message = Message::request(message::SET_VRING_NUM, pair(0, 3), vec![], false);
    let sentence = process.session.on_message(message).unwrap_err();
    assert_eq!(
        sentence,
        "vhost-user message 8: a ring of 3 descriptors; a power of two, 2 to 1024"
    );
}

#[test]
fn acknowledgement_needs_the_protocol_feature() {
    let mut session =
        Session::new(Offer { disk: Disk::new(SIZE), queues: 1, has_in_flight: false }, notifier());
    let message = Message::request(message::SET_OWNER, vec![], vec![], true);
    assert!(matches!(session.on_message(message), Ok(Step::Done)));
}

#[test]
fn in_flight_region_is_offered_where_it_helps_only() {
    let offered = |has_in_flight| {
        let mut process = Process::new(Disk::new(SIZE), 1, has_in_flight);
        process.tell(message::GET_PROTOCOL_FEATURES, vec![], vec![]).integer()
    };
    assert_eq!(offered(true) ^ offered(false), features::protocol::INFLIGHT_SHMFD);
}

#[test]
fn features_other_than_the_log_stay_while_rings_run() {
    let options = DriverOptions { without: features::RO | features::LOG_ALL, ..small(1) };
    let bits = features::ALL & !options.without;
    let mut machine = Machine::new(options, bits);
    let mut process = Process::new(Disk::new(SIZE), 1, true);
    machine.connect(&mut process);
    let mut set =
        |bits: u64| process.tell(message::SET_FEATURES, bits.to_le_bytes().to_vec(), vec![]);
    assert_eq!(set(bits | features::LOG_ALL).integer(), 0);
    assert_eq!(set(bits).integer(), 0);
    assert_ne!(set(bits & !features::FLUSH).integer(), 0);
}

#[test]
fn configuration_is_read_in_any_part_up_to_its_end() {
    let mut process = process();
    let mut read = |offset: u32, size: u32| {
        let body = [offset.to_le_bytes(), size.to_le_bytes(), [0; 4]].concat();
        match process.tell(message::GET_CONFIG, body, vec![]) {
            Told::Reply(reply) => (u32_at(&reply.body, 4), reply.body[12..].to_vec()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(0, 8), (8, (SIZE / 512).to_le_bytes().to_vec()));
    assert_eq!(read(0, 256).1.len(), 256);
    assert_eq!(read(60, 196), (196, vec![0; 196]));
    for (offset, size) in [(0, 257), (256, 1), (0, 0), (u32::MAX, 2)] {
        assert_eq!(read(offset, size), (0, vec![]), "{size} at {offset}");
    }
}

#[test]
fn resize_is_told_on_the_socket_of_the_front_end() {
    let mut process = process();
    assert!(process.session.set_disk(Disk::new(2 * SIZE)).is_none(), "no socket yet");
    let (reader, fd) = watched();
    process.set(message::SET_BACKEND_REQ_FD, vec![], vec![fd]);
    let (_, notice) = process.session.set_disk(Disk::new(3 * SIZE)).unwrap();
    assert_eq!((notice.header.request, notice.header.flags, notice.body.len()), (2, 1, 0));
    let body = [0_u32, 8, 0].map(u32::to_le_bytes).concat();
    let Told::Reply(reply) = process.tell(message::GET_CONFIG, body, vec![]) else { panic!() };
    assert_eq!(u32_at(&reply.body, 12), (3 * SIZE / 512) as u32);
    drop(process);
    assert!(is_hung_up(&reader));
}

#[test]
fn regions_are_added_and_removed_one_at_a_time() {
    let mut process = process();
    let file = sealed_file(c"region", 1 << 20).unwrap();
    let add = |guest: u64, user: u64| (message::ADD_MEM_REG, region(guest, 65536, user));
    let mut tell = |(request, body): (u32, Vec<u8>), with_fd: bool| {
        let fds = if with_fd { vec![copy_of(file.as_raw_fd())] } else { vec![] };
        process.tell(request, body, fds).integer()
    };
    assert_eq!(tell(add(0, 1 << 30), true), 0);
    assert_eq!(tell(add(65536, 2 << 30), true), 0);
    assert_ne!(tell(add(65536 - 4096, 3 << 30), true), 0, "it overlaps");
    assert_ne!(tell(add(1 << 20, (2 << 30) + 4096), true), 0, "its user addresses overlap");
    assert_ne!(tell((message::REM_MEM_REG, region(0, 65536, 5)), false), 0, "it is another");
    assert_eq!(tell((message::REM_MEM_REG, region(0, 65536, 1 << 30)), false), 0);
    assert_ne!(tell((message::REM_MEM_REG, region(0, 65536, 1 << 30)), false), 0, "it is gone");
    assert_eq!(tell(add(0, 3 << 30), true), 0);
    let long =
        RegionDescription { guest: 1 << 40, size: 1 << 20, user: 1 << 50, file_offset: 4096 };
    assert_ne!(
        tell((message::ADD_MEM_REG, [&[0; 8][..], &long.bytes()].concat()), true),
        0,
        "too long"
    );
}

#[test]
fn header_is_checked_before_its_body_is_awaited() {
    let header = |words: [u32; 3]| {
        let mut bytes = [0; 12];
        bytes.copy_from_slice(&words.map(u32::to_le_bytes).concat());
        Header::parse(&bytes)
    };
    assert!(header([1, 1, BODY_MAX as u32]).is_ok());
    assert!(header([1, 1, BODY_MAX as u32 + 1]).is_err());
    assert!(header([1, 0, 0]).is_err());
    assert!(header([1, 2, 0]).is_err());
}

#[test]
fn messages_arrive_whole_from_any_pieces() {
    let (left, right) = UnixStream::pair().unwrap();
    let (sender, mut receiver) = (Channel::new(left), Channel::new(right));
    let (reader, fd) = watched();
    let bytes =
        Message::request(message::SET_VRING_CALL, 0_u64.to_le_bytes().to_vec(), vec![], true)
            .bytes();
    sender.send_bytes(&bytes[..1], &[fd.as_raw_fd()], LONG).unwrap();
    for byte in &bytes[1..] {
        assert!(matches!(receiver.receive(), Ok(Received::Incomplete)));
        sender.send_bytes(&[*byte], &[], LONG).unwrap();
    }
    drop(fd);
    let Ok(Received::Message(message)) = receiver.receive() else { panic!() };
    assert_eq!((message.header.request, message.fds.len()), (message::SET_VRING_CALL, 1));
    assert!(!is_hung_up(&reader));
    drop(message);
    assert!(is_hung_up(&reader));
    // Half a message at the end of a connection, and more descriptors than a message may have.
    let (reader, fd) = watched();
    for _ in 0..2 {
        sender.send_bytes(&bytes[..2], &[fd.as_raw_fd(); 17], LONG).unwrap();
    }
    drop(fd);
    let error = receiver.receive().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    drop(receiver);
    assert!(is_hung_up(&reader));
    let (left, right) = UnixStream::pair().unwrap();
    let (sender, mut receiver) = (Channel::new(left), Channel::new(right));
    sender.send_bytes(&bytes[..13], &[], LONG).unwrap();
    drop(sender);
    assert!(receiver.receive().is_err());
}

/// A server of one socket, over and over until its listener is shut down. It polls, as a test's driver expects answers at once.
fn serve(listener: UnixListener, mut disk: Vec<u8>, connections: usize) -> Vec<u8> {
    for _ in 0..connections {
        let (socket, _) = listener.accept().unwrap();
        let mut channel = Channel::new(socket);
        let facts = Disk::new(disk.len() as u64).with_serial("loopback");
        let mut process = Process::new(facts, 4, true);
        let mut sleeps = 0;
        loop {
            match process.device.next_answer() {
                None if process.session.is_waiting() => {}
                None => match channel.receive() {
                    Ok(Received::Message(message)) => {
                        match process.session.on_message(message).unwrap() {
                            Step::Done => {}
                            Step::Reply(reply) => channel.send(&reply, LONG).unwrap(),
                            Step::Order(order) => process.device.on_order(order),
                        }
                    }
                    Ok(Received::Incomplete) => {}
                    Ok(Received::Closed) => break,
                    Err(error) => panic!("{error}"),
                },
                Some(answer) => {
                    if let Some(reply) = process.session.on_answer(answer).unwrap() {
                        channel.send(&reply, LONG).unwrap();
                    }
                }
            }
            process.turn(&mut disk);
            if !process.device.arm() {
                sleeps += 1;
                nap(&channel, &mut process.device);
            }
        }
        assert!(sleeps > 0);
        process.device.close();
        assert!(process.device.is_finished());
    }
    disk
}

/// Sleeps until a kick or a message.
fn nap(channel: &Channel, device: &mut Device<Mortal>) {
    use std::os::fd::AsFd;
    let mut polls =
        vec![libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    let kicks: Vec<_> = device.kicks().collect();
    polls.extend(kicks.iter().map(|(_, fd)| libc::pollfd {
        fd: *fd,
        events: libc::POLLIN,
        revents: 0,
    }));
    // An order's answer may wait for the next turn: not longer than a millisecond.
    // SAFETY: the structures live until the call has returned.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, 1) };
    for ((queue, _), poll) in kicks.iter().zip(&polls[1..]) {
        if poll.revents != 0 {
            device.on_kick(*queue);
        }
    }
}

fn socket(name: &str) -> (PathBuf, UnixListener) {
    let path = std::env::temp_dir().join(format!("hw-vhost-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    (path, listener)
}

/// Writes numbered blocks through every queue and reads them back.
fn write_and_read(driver: &mut Driver, blocks: u64) {
    for op in [RequestOp::Write, RequestOp::Read] {
        let (mut next, mut left) = (0, blocks);
        let mut of_slot = vec![vec![0; 256]; 4];
        while left > 0 {
            for (index, queue) in driver.queues().iter_mut().enumerate() {
                for slot in 0..queue.depth() {
                    if next < blocks && !queue.is_in_flight(slot) {
                        queue.buffer(slot).fill(if op == RequestOp::Write {
                            next as u8
                        } else {
                            0xee
                        });
                        queue.put(slot, op, next * 4096, 4096, 0);
                        of_slot[index][usize::from(slot)] = next;
                        next += 1;
                    }
                }
                queue.submit();
                if queue.in_flight() > 0 {
                    assert_eq!(queue.wait(LONG), Waited::Answered, "no answer");
                }
                let mut done = Vec::new();
                queue.reap(|answer| done.push(answer));
                for answer in done {
                    assert_eq!(answer.status, 0);
                    let block = of_slot[index][usize::from(answer.slot)];
                    let expected = [block as u8; 4096];
                    assert!(
                        op == RequestOp::Write || queue.buffer(answer.slot) == expected,
                        "block {block}"
                    );
                    left -= 1;
                }
                assert_eq!(queue.counts().strays, 0);
            }
        }
    }
}

#[test]
fn driver_and_device_over_a_socket() {
    let (path, listener) = socket("loop");
    let without = [0, features::EVENT_IDX, features::INDIRECT, features::FLUSH];
    let server = thread::spawn(move || serve(listener, vec![0; SIZE as usize], 5));
    for (index, without) in without.into_iter().enumerate() {
        let options = DriverOptions {
            queues: 1 + index as u16,
            depth: 8,
            is_indirect: index < 2,
            pieces: 1 + index as u16 % 2,
            waiting: if index % 2 == 0 { Waiting::Sleep } else { Waiting::Poll },
            without,
            timeout: LONG,
            ..DriverOptions::new(path.clone())
        };
        let mut driver = Driver::connect(options).unwrap();
        assert_eq!(driver.capacity().size, SIZE);
        assert!(driver.has_in_flight());
        assert_eq!(driver.device_process(), Some(std::process::id()));
        write_and_read(&mut driver, 200);
        if index == 3 {
            let base = driver.stop_queue(0).unwrap();
            driver.start_queue(0, base).unwrap();
            write_and_read(&mut driver, 50);
            driver.reconnect().unwrap();
            write_and_read(&mut driver, 50);
        }
    }
    let disk = server.join().unwrap();
    assert!((0..200).all(|block| disk[block * 4096] == block as u8));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn driver_says_what_fits_no_device() {
    let options = |change: fn(&mut DriverOptions)| {
        let mut options = DriverOptions::new("nowhere".into());
        change(&mut options);
        Driver::connect(options).unwrap_err().to_string()
    };
    assert!(options(|options| options.depth = 0).contains("requests"));
    assert!(
        options(|options| (options.depth, options.pieces) = (256, 8)).contains("1024 descriptors")
    );
    assert!(options(|_| {}).contains("No such file"));
}
