//! What a driver may write into its memory while a device serves it: rings, descriptors, tables, headers, the in-flight region.
//!
//! The device is started over one file of memory, whose ring has the size that the first byte says. The rest are steps: writes to
//! memory, the next available index, turns that complete some requests, stops and starts, and processes that die. Every head is
//! answered once: unless the ring breaks, the used index is the number of heads that were answered.
#![cfg_attr(fuzzing, no_main)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock};

use headworks_vhost::wire::{
    InFlightDescription, Message, RegionDescription, RingAddresses, request as message,
};
use headworks_vhost::{Device, Disk, Notifier, Offer, Outcome, Request, Session, Step};

const MEMORY: u64 = 1 << 16;
const DISK: u64 = 1 << 20;
const USER: u64 = 0x7f00_0000_0000;
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x5000;
const STEPS_MAX: usize = 300;

/// The notifier of all sessions: the end of one takes milliseconds.
fn notifier() -> Arc<Notifier> {
    static ALL: LazyLock<Arc<Notifier>> = LazyLock::new(|| Arc::new(Notifier::new()));
    Arc::clone(&ALL)
}

/// A file of a machine's memory or of an in-flight region.
fn memory() -> File {
    // SAFETY: the name is a C string; the descriptor is new and belongs to nothing else.
    let file = unsafe {
        let fd = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0, "a file in memory: {}", io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    file.set_len(MEMORY).expect("the file is in memory");
    // SAFETY: the call takes no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    file
}

/// One process that serves the ring; its death leaves the two files.
struct Process {
    session: Session,
    device: Device,
    below: Vec<Request>,
}

/// The steps by which a front end starts the ring, each with its body and descriptor.
struct World {
    memory: File,
    in_flight: File,
    size: u16,
    features: u64,
}

impl World {
    fn word(&self, at: u64) -> u16 {
        let mut word = [0; 2];
        self.memory.read_exact_at(&mut word, at).expect("the file is in memory");
        u16::from_le_bytes(word)
    }

    /// A new process that has started the ring; none if it refuses, as the in-flight region may be nonsense.
    fn start(&self) -> Option<Process> {
        let disk = Disk::new(DISK);
        let session = Session::new(Offer { disk, queues: 1, has_in_flight: true }, notifier());
        let mut process = Process { session, device: Device::new(disk), below: Vec::new() };
        let region = RegionDescription { guest: 0, size: MEMORY, user: USER, file_offset: 0 };
        let table = [&1_u64.to_le_bytes()[..], &region.bytes()].concat();
        let queue_size = self.size;
        let about = InFlightDescription { size: MEMORY, offset: 0, queues: 1, queue_size };
        let addresses = RingAddresses {
            descriptors: USER + DESCRIPTORS,
            used: USER + USED,
            available: USER + AVAILABLE,
            log: None,
        };
        let copy = |file: &File| -> Vec<OwnedFd> {
            vec![file.try_clone().expect("few descriptors are open").into()]
        };
        let pair = |value: u32| [0, value].map(u32::to_le_bytes).concat();
        let no_fd = 0x100_u64.to_le_bytes().to_vec();
        let steps = [
            (message::SET_FEATURES, self.features.to_le_bytes().to_vec(), vec![]),
            (message::SET_INFLIGHT_FD, about.bytes(), copy(&self.in_flight)),
            (message::SET_MEM_TABLE, table, copy(&self.memory)),
            (message::SET_VRING_NUM, pair(u32::from(self.size)), vec![]),
            (message::SET_VRING_ADDR, addresses.bytes(0), vec![]),
            (message::SET_VRING_CALL, no_fd.clone(), vec![]),
            (message::SET_VRING_KICK, no_fd, vec![]),
            (message::SET_VRING_ENABLE, pair(1), vec![]),
        ];

        for (request, body, fds) in steps {
            process.tell(request, body, fds)?;
        }
        Some(process)
    }
}

impl Process {
    /// Gives a message to the session; none if it is refused.
    fn tell(&mut self, request: u32, body: Vec<u8>, fds: Vec<OwnedFd>) -> Option<()> {
        match self.session.on_message(Message::request(request, body, fds, false)).ok()? {
            Step::Done | Step::Reply(_) => Some(()),
            Step::Order(order) => {
                self.device.on_order(order);
                for _ in 0..64 {
                    if let Some(answer) = self.device.next_answer() {
                        return self.session.on_answer(answer).ok().map(drop);
                    }
                    self.turn(usize::MAX);
                }
                panic!("an order without an answer");
            }
        }
    }

    /// Takes what there is, and completes `count` requests, the newest first.
    fn turn(&mut self, count: usize) {
        self.device.take(usize::MAX, &mut self.below);
        for request in self.below.drain(self.below.len().saturating_sub(count)..).rev() {
            assert!(request.offset + u64::from(request.len) <= DISK);
            let mut bytes = 0;
            self.device.pieces(request.ticket, 0, request.len, |span| {
                bytes += span.len();
                // SAFETY: the span is memory of a request in flight. A write of the bytes that are there touches each of them.
                unsafe { span.base().copy_to(span.base(), span.len()) };
            });
            assert!(bytes == 0 || bytes == request.len as usize);
            self.device.complete(request.ticket, Outcome::Done);
        }
        self.device.publish();
        let mut heads: Vec<_> = self.below.iter().map(|one| one.ticket).collect();
        let all = heads.len();
        heads.sort_unstable_by_key(|ticket| ticket.bits());
        heads.dedup();
        assert_eq!(heads.len(), all, "a request is in flight once");
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((choice, mut data)) = data.split_first() else { return };
    let size = 2 << (choice & 7);
    // VERSION_1, FLUSH, INDIRECT, DISCARD and WRITE_ZEROES, with or without EVENT_IDX.
    let features = 1 << 32 | 1 << 9 | 3 << 13 | 1 << 28 | u64::from(choice >> 3 & 1) << 29;
    let world = World { memory: memory(), in_flight: memory(), size, features };
    let Some(mut process) = world.start() else { return };
    for _ in 0..STEPS_MAX {
        let Some(([step, a, b, len], rest)) = data.split_first_chunk::<4>() else { break };
        let at = u64::from(u16::from_le_bytes([*a, *b]));
        let (bytes, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        data = rest;
        match step % 8 {
            0..=2 => {
                let file = if step % 8 == 2 { &world.in_flight } else { &world.memory };
                let len = bytes.len().min((MEMORY - at) as usize);
                file.write_all_at(&bytes[..len], at).expect("the file is in memory");
            }
            3 | 4 => {
                // Heads become available as a driver does it: entries, then the index.
                let mut index = world.word(AVAILABLE + 2);
                for head in bytes.iter().take(8) {
                    let entry = AVAILABLE + 4 + 2 * u64::from(index % size);
                    let head = u16::from(*head).to_le_bytes();
                    world.memory.write_all_at(&head, entry).expect("the file is in memory");
                    index = index.wrapping_add(1);
                }
                let index = index.to_le_bytes();
                world.memory.write_all_at(&index, AVAILABLE + 2).expect("the file is in memory");
                process.turn(usize::from(*a));
            }
            5 => process.turn(usize::from(*a)),
            6 => {
                // The process dies, with requests in flight, and another one begins.
                match world.start() {
                    Some(next) => process = next,
                    None => return,
                }
            }
            _ => {
                let body = [0_u32, 0].map(u32::to_le_bytes).concat();
                if process.tell(message::GET_VRING_BASE, body, vec![]).is_none() {
                    return;
                }
                assert!(process.below.is_empty() && process.device.in_flight() == 0);
                match world.start() {
                    Some(next) => process = next,
                    None => return,
                }
            }
        }
        process.device.next_broken();
    }
    process.device.close();
    process.turn(usize::MAX);
    assert!(process.device.is_finished());
});
