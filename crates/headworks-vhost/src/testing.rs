//! A device in one thread for tests: a session, the device and a disk in memory, driven a turn at a time.
//!
//! A [`Machine`] has the memory and the queues, which outlive any process that serves them; a [`Process`] has what dies with it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, LazyLock};

use crate::driver::memory::DriverMemory;
use crate::driver::{DriverOptions, Queue};
use crate::features::{self, protocol};
use crate::wire::request as message;
use crate::wire::{InFlightDescription, Message};
use crate::{
    BrokenRing, Device, Disk, Notifier, Offer, Outcome, Request, RequestOp, Session, Step,
    StoreObserver, Ticket,
};

/// The notifier of all tests of this process: the end of one takes milliseconds.
pub(crate) fn notifier() -> Arc<Notifier> {
    static ALL: LazyLock<Arc<Notifier>> = LazyLock::new(|| Arc::new(Notifier::new()));
    Arc::clone(&ALL)
}

thread_local! {
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Lets the process of a test die at a chosen store: a panic unwinds to the test, which drops everything of the process. Guest memory and
/// the in-flight region stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mortal;

/// The payload of the panic by which a test's process dies.
#[derive(Debug)]
pub(crate) struct Death;

impl Mortal {
    /// Dies at the store after `stores` more; none: never.
    pub(crate) fn dies_after(stores: Option<u64>) {
        LEFT.with(|left| left.set(stores));
    }
}

impl StoreObserver for Mortal {
    fn before_store() {
        LEFT.with(|left| match left.get() {
            Some(0) => {
                left.set(None);
                std::panic::resume_unwind(Box::new(Death));
            }
            Some(count) => left.set(Some(count - 1)),
            None => {}
        });
    }
}

/// A copy of a descriptor that somebody else keeps.
pub(crate) fn copy_of(fd: RawFd) -> OwnedFd {
    // SAFETY: the tests' descriptors are open while they are copied.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap()
}

pub(crate) fn pair(index: u16, value: u32) -> Vec<u8> {
    [u32::from(index).to_le_bytes(), value.to_le_bytes()].concat()
}

/// What a session answers to a message that the device may carry out.
#[derive(Debug)]
pub(crate) enum Told {
    Nothing,
    Reply(Message),
    Ended(String),
}

impl Told {
    pub(crate) fn integer(self) -> u64 {
        match self {
            Self::Reply(reply) => crate::wire::u64_at(&reply.body, 0),
            other => panic!("{other:?}"),
        }
    }
}

/// One process that serves: session and device, and the requests that the path below has.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) session: Session<Mortal>,
    pub(crate) device: Device<Mortal>,
    /// Requests taken and not carried out, in order.
    pub(crate) below: VecDeque<Request>,
    scratch: Vec<Request>,
}

impl Process {
    pub(crate) fn new(disk: Disk, queues: u16, has_in_flight: bool) -> Self {
        Self {
            session: Session::observed(Offer { disk, queues, has_in_flight }, notifier()),
            device: Device::observed(disk),
            below: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// Gives a message to the session, and its order to the device, whose answer must come without further completions.
    pub(crate) fn tell(&mut self, request: u32, body: Vec<u8>, fds: Vec<OwnedFd>) -> Told {
        match self.begin(request, body, fds) {
            Some(told) => told,
            None => self.answer().expect("the order is carried out at once"),
        }
    }

    /// As `tell`; none: the answer waits for completions.
    pub(crate) fn begin(&mut self, request: u32, body: Vec<u8>, fds: Vec<OwnedFd>) -> Option<Told> {
        match self.session.on_message(Message::request(request, body, fds, true)) {
            Err(sentence) => Some(Told::Ended(sentence)),
            Ok(Step::Done) => Some(Told::Nothing),
            Ok(Step::Reply(reply)) => Some(Told::Reply(reply)),
            Ok(Step::Order(order)) => {
                self.device.on_order(order);
                self.answer()
            }
        }
    }

    pub(crate) fn answer(&mut self) -> Option<Told> {
        let answer = self.device.next_answer()?;
        Some(match self.session.on_answer(answer) {
            Ok(None) => Told::Nothing,
            Ok(Some(reply)) => Told::Reply(reply),
            Err(sentence) => Told::Ended(sentence),
        })
    }

    pub(crate) fn set(&mut self, request: u32, body: Vec<u8>, fds: Vec<OwnedFd>) {
        assert_eq!(self.tell(request, body, fds).integer(), 0, "message {request}");
    }

    pub(crate) fn negotiate(&mut self, without: u64) -> u64 {
        let features = self.tell(message::GET_FEATURES, vec![], vec![]).integer() & !without;
        let offered = self.tell(message::GET_PROTOCOL_FEATURES, vec![], vec![]).integer();
        assert!(matches!(
            self.tell(message::SET_PROTOCOL_FEATURES, offered.to_le_bytes().to_vec(), vec![]),
            Told::Reply(_)
        ));
        assert_eq!(offered | protocol::INFLIGHT_SHMFD, protocol::ALL);
        self.set(message::SET_FEATURES, features.to_le_bytes().to_vec(), vec![]);
        features
    }

    /// Takes what the rings have.
    pub(crate) fn take(&mut self) -> usize {
        let taken = self.device.take(usize::MAX, &mut self.scratch);
        self.below.extend(self.scratch.drain(..));
        taken
    }

    /// Carries out a request on a disk and completes it.
    pub(crate) fn carry_out(&mut self, request: Request, disk: &mut [u8]) {
        let Request { ticket, op, offset, len, .. } = request;
        let range = offset as usize..offset as usize + len as usize;
        match op {
            RequestOp::Read | RequestOp::Write => self.copy(ticket, op, &mut disk[range]),
            RequestOp::Flush => {}
            RequestOp::Discard | RequestOp::WriteZeroes => disk[range].fill(0),
        }
        self.device.complete(ticket, Outcome::Done);
    }

    fn copy(&self, ticket: Ticket, op: RequestOp, bytes: &mut [u8]) {
        let mut at = 0;
        self.device.pieces(ticket, 0, bytes.len() as u32, |span| {
            let part = &mut bytes[at..at + span.len()];
            // SAFETY: the span is mapped memory of a request in flight; the other is the disk's.
            unsafe {
                match op {
                    RequestOp::Read => part.as_ptr().copy_to(span.base(), part.len()),
                    _ => span.base().copy_to(part.as_mut_ptr(), part.len()),
                }
            }
            at += span.len();
        });
        assert_eq!(at, bytes.len(), "the spans are as long as the request");
    }

    /// Takes, carries out and answers everything that is there.
    pub(crate) fn turn(&mut self, disk: &mut [u8]) {
        self.take();
        while let Some(request) = self.below.pop_front() {
            self.carry_out(request, disk);
        }
        self.device.publish();
    }

    pub(crate) fn broken(&mut self) -> Option<BrokenRing> {
        self.device.next_broken()
    }
}

/// The memory and queues of a virtual machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) options: DriverOptions,
    pub(crate) memory: Arc<DriverMemory>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) in_flight: Option<(InFlightDescription, OwnedFd)>,
}

impl Machine {
    /// A machine whose queues have the features that all processes negotiate.
    pub(crate) fn new(options: DriverOptions, features: u64) -> Self {
        let memory = Arc::new(DriverMemory::new(&options, options.queue_size()).unwrap());
        let queue = |index| Queue::new(&memory, &options, index, features).unwrap();
        let queues = (0..options.queues).map(queue).collect();
        Self { options, memory, queues, in_flight: None }
    }

    /// Connects a new process: negotiation, in-flight region, memory, rings.
    pub(crate) fn connect(&mut self, process: &mut Process) {
        process.negotiate(self.options.without);
        self.share(process);
        for index in 0..self.options.queues {
            self.start(process, index);
        }
    }

    pub(crate) fn table(&self) -> Vec<u8> {
        let mut body = 1_u64.to_le_bytes().to_vec();
        body.extend(self.memory.description().bytes());
        body
    }

    fn share(&mut self, process: &mut Process) {
        if let Some((about, fd)) = &self.in_flight {
            let fd = fd.as_fd().try_clone_to_owned().unwrap();
            process.set(message::SET_INFLIGHT_FD, about.bytes(), vec![fd]);
        } else if let Told::Reply(mut reply) = process.tell(
            message::GET_INFLIGHT_FD,
            InFlightDescription {
                queues: self.options.queues,
                queue_size: self.options.queue_size(),
                ..Default::default()
            }
            .bytes(),
            vec![],
        ) {
            let about = InFlightDescription::parse(&reply.body);
            self.in_flight = Some((about, reply.fds.pop().unwrap()));
        }
        process.set(message::SET_MEM_TABLE, self.table(), vec![copy_of(self.memory.fd())]);
    }

    pub(crate) fn start(&mut self, process: &mut Process, index: u16) {
        let queue = &self.queues[usize::from(index)];
        let size = u32::from(queue.size());
        let name = u64::from(index).to_le_bytes().to_vec();
        process.set(message::SET_VRING_NUM, pair(index, size), vec![]);
        process.set(message::SET_VRING_BASE, pair(index, u32::from(queue.used_index())), vec![]);
        process.set(message::SET_VRING_ADDR, queue.addresses().bytes(u32::from(index)), vec![]);
        process.set(message::SET_VRING_CALL, name.clone(), vec![copy_of(queue.call_fd())]);
        process.set(message::SET_VRING_KICK, name, vec![copy_of(queue.kick_fd())]);
        process.set(message::SET_VRING_ENABLE, pair(index, 1), vec![]);
    }
}

/// Everything but what needs another negotiation.
pub(crate) const FEATURES: u64 = features::ALL & !(features::RO | features::LOG_ALL);

/// Options of a small machine.
pub(crate) fn small(depth: u16) -> DriverOptions {
    let without = !FEATURES;
    DriverOptions { depth, without, ..DriverOptions::new("unused".into()) }
}

/// Whether the read end of a pipe sees that its write end is closed.
pub(crate) fn is_hung_up(reader: &std::io::PipeReader) -> bool {
    let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one structure, which lives until the call has returned.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & libc::POLLHUP != 0
}
