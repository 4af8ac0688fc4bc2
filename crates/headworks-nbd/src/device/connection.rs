//! One connection to the remote: requests out, replies in, in batches.
//!
//! ```text
//!   queue of slots --headers, payloads where they lie: one sendmsg--> remote
//!   slots <-- parse <-- input (128 KiB) <--one recvmsg-----------------'
//!               |          ^
//!               '-- a payload that is not complete: the next recvmsg puts its rest where it belongs
//! ```
//!
//! Nothing here waits. Invariants: a reply counts only if it names a request that this connection has sent whole; what ends a
//! connection is one sentence; bytes are received only into `input` and into the memory of unanswered commands.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use headworks::driver::{Interest, Span};
use headworks_core::extent::{EXTENTS_MAX, ExtentWriter};
use headworks_core::{BioFlags, Extent, ExtentState, Instant, Op};

use super::slots::{Place, Slots};
use crate::client::replies::{self, Next, Reply};
use crate::client::{Export, Socket};
use crate::wire::{NbdError, REQUEST_BYTES, be32};

/// Most bytes of one receive behind a payload: 31 reads of 4 KiB.
const INPUT_BYTES: usize = 128 << 10;
/// Requests and bytes in flight with which a connection is full.
const FULL: (u32, u64) = (16, 256 << 10);
/// Most pieces of one send.
const PIECES_MAX: usize = 1024;

/// What a turn may still do.
#[derive(Debug)]
pub(super) struct Budget {
    pub replies: u32,
    pub bytes: usize,
}

impl Budget {
    /// 64 replies or 256 KiB.
    pub fn of_turn() -> Self {
        Self { replies: 64, bytes: 256 << 10 }
    }

    fn is_spent(&self) -> bool {
        self.replies == 0 || self.bytes == 0
    }
}

/// Bytes that belong to a reply and are still to be received.
#[derive(Clone, Copy, Debug)]
struct Payload {
    slot: u32,
    /// Position in the command's memory.
    at: usize,
    left: usize,
    /// The reply ends with them.
    is_last: bool,
}

/// A connection in the transmission phase.
pub(super) struct Connection {
    index: u8,
    socket: Socket,
    allocation: Option<u32>,
    /// Slots that are not sent whole, in order.
    queue: VecDeque<u32>,
    /// Sent bytes of the first of them.
    sent: usize,
    input: Box<[u8]>,
    /// The part of `input` that is not parsed yet.
    from: usize,
    to: usize,
    payload: Option<Payload>,
    /// Extents of the payload of a block status.
    extents: Vec<Extent>,
    /// Ciphertext of earlier requests waits for the socket.
    has_unsent: bool,
    /// Requests without their replies.
    pub in_flight: u32,
    /// Bytes of those requests and their payloads.
    pub bytes: u64,
    /// When a byte came last, or the first request of those in flight.
    pub heard: Instant,
}

impl Connection {
    /// A connection that was just opened.
    pub fn new(now: Instant, index: u8, socket: Socket, export: &Export) -> Self {
        Self {
            index,
            socket,
            allocation: export.allocation,
            queue: VecDeque::new(),
            sent: 0,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            from: 0,
            to: 0,
            payload: None,
            extents: Vec::with_capacity(EXTENTS_MAX),
            has_unsent: false,
            in_flight: 0,
            bytes: 0,
            heard: now,
        }
    }

    /// The socket, to be watched.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether further commands go to another connection, if there is one: with so many the servers of QEMU and nbdkit do not begin more, or
    /// with so many bytes one connection is a bottleneck.
    pub fn is_full(&self) -> bool {
        self.in_flight >= FULL.0 || self.bytes >= FULL.1
    }

    /// Whether the remote tells extents.
    pub fn tells_extents(&self) -> bool {
        self.allocation.is_some()
    }

    /// What the socket is to be watched for.
    pub fn interest(&self) -> Interest {
        match self.queue.is_empty() && !self.has_unsent {
            true => Interest::Read,
            false => Interest::ReadWrite,
        }
    }

    /// Queues a command that was assigned to this connection.
    pub fn push(&mut self, now: Instant, slots: &Slots, slot: u32) {
        if self.in_flight == 0 {
            self.heard = now;
        }
        self.in_flight += 1;
        self.bytes += weight(slots, slot);
        self.queue.push_back(slot);
    }

    /// Whether bytes of a queued command were sent.
    pub fn has_begun(&self, slot: u32) -> bool {
        self.sent > 0 && self.queue.front() == Some(&slot)
    }

    /// Sends what is queued, as far as the socket takes it. `gather` is scratch.
    pub fn send(&mut self, slots: &mut Slots, gather: &mut Vec<Span>) -> Result<(), String> {
        let broken = |error: std::io::Error| error.to_string();
        while !self.queue.is_empty() {
            gather.clear();
            let mut skip = self.sent;
            for &slot in &self.queue {
                if gather.len() >= PIECES_MAX {
                    break;
                }
                // SAFETY: the slots stay where they are during the call, and commands in flight have their memory.
                unsafe { slots.slot(slot).gather(skip, gather) };
                skip = 0;
            }
            let pieces = &gather[..gather.len().min(PIECES_MAX)];
            // SAFETY: as above.
            let mut count = unsafe { self.socket.send(pieces) }.map_err(broken)?;
            if count == 0 {
                break;
            }
            while let Some(&slot) = self.queue.front() {
                let left = REQUEST_BYTES + slots.slot(slot).payload() - self.sent;
                if count < left {
                    self.sent += count;
                    break;
                }
                count -= left;
                self.sent = 0;
                self.queue.pop_front();
                let connection = self.index;
                slots.slot_mut(slot).place = Place::InFlight { connection, sent: true };
            }
        }
        self.has_unsent = !self.socket.flush_some().map_err(broken)?;
        Ok(())
    }

    /// Receives and parses what the budget allows. Ended commands are appended to `ended`. Returns true when bytes are left in this
    /// process, for which the socket does not become readable.
    pub fn receive(
        &mut self,
        now: Instant,
        slots: &mut Slots,
        budget: &mut Budget,
        (ended, gather): (&mut Vec<u32>, &mut Vec<Span>),
    ) -> Result<bool, String> {
        loop {
            self.parse(slots, budget, ended)?;
            if budget.is_spent() {
                return Ok(self.from < self.to || self.socket.has_plain());
            }
            self.make_room();
            gather.clear();
            if let Some(Payload { slot, at, left, .. }) = self.payload
                && slots.slot(slot).command.op == Op::Read
            {
                debug_assert!(self.from == self.to, "what was received is parsed first");
                gather.extend(slots.slot(slot).parts(at, left.min(budget.bytes)).take(64));
            }
            let direct: usize = gather.iter().map(|span| span.len()).sum();
            let tail = &mut self.input[self.to..];
            let wanted = direct + tail.len();
            // SAFETY: a part of `input`, which is ours.
            gather.push(unsafe { Span::new(tail.as_mut_ptr(), tail.len()) });
            // SAFETY: memory of an unanswered command, and `input`.
            let received = unsafe { self.socket.receive_into(gather) };
            let count = match received.map_err(|error| error.to_string())? {
                None => return Ok(false),
                Some(0) => return Err("the server closed the connection".to_owned()),
                Some(count) => count,
            };
            self.heard = now;
            budget.bytes = budget.bytes.saturating_sub(count);
            let own = count.min(direct);
            self.to += count - own;
            if own > 0 {
                self.advance_payload(slots, own, budget, ended)?;
            }
            // A short receive emptied the socket; what comes later makes it readable.
            if count < wanted && self.from == self.to && !self.socket.has_plain() {
                return Ok(false);
            }
        }
    }

    /// Moves a partial reply to the front when there is little room behind it.
    fn make_room(&mut self) {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if INPUT_BYTES - self.to < replies::REPLY_BYTES_MAX {
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
    }

    fn parse(
        &mut self,
        slots: &mut Slots,
        budget: &mut Budget,
        ended: &mut Vec<u32>,
    ) -> Result<(), String> {
        while self.from < self.to && !budget.is_spent() {
            if let Some(payload) = self.payload {
                let have = self.to - self.from;
                let count = payload.left.min(have);
                if slots.slot(payload.slot).command.op == Op::BlockStatus {
                    let whole = count / 8 * 8;
                    if whole == 0 {
                        break;
                    }
                    self.take_extents(whole);
                    self.from += whole;
                    self.advance_payload(slots, whole, budget, ended)?;
                } else {
                    let bytes = &self.input[self.from..self.from + count];
                    slots.slot(payload.slot).copy_in(payload.at, bytes);
                    self.from += count;
                    self.advance_payload(slots, count, budget, ended)?;
                }
                continue;
            }
            let parsed = replies::parse(&self.input[self.from..self.to]);
            match parsed.map_err(|error| error.to_string())? {
                Next::Needs(_) => break,
                Next::Reply(len, reply) => {
                    self.from += len;
                    budget.replies -= 1;
                    self.take_reply(slots, reply, ended)?;
                }
            }
        }
        Ok(())
    }

    fn take_reply(
        &mut self,
        slots: &mut Slots,
        reply: Reply,
        ended: &mut Vec<u32>,
    ) -> Result<(), String> {
        let found = slots.find(reply.cookie(), self.index);
        let index = found.ok_or("it sent a reply that matches no request")?;
        let slot = slots.slot_mut(index);
        let (op, len) = (slot.command.op, slot.command.len);
        slot.covered.count(len)?;
        match reply {
            Reply::Simple { error: Some(error), .. } | Reply::Failed { error, .. } => {
                if error == NbdError::ShutDown {
                    return Err("the server is shutting down".to_owned());
                }
                slot.error.get_or_insert(error);
            }
            Reply::Simple { error: None, .. } if op == Op::Read => {
                // A simple reply has no offset, and all the data.
                slot.covered.add(0, len)?;
                self.payload =
                    Some(Payload { slot: index, at: 0, left: len as usize, is_last: true });
                return Ok(());
            }
            Reply::Simple { error: None, .. } if op == Op::BlockStatus => {
                return Err("it answered a block status without extents".to_owned());
            }
            Reply::Simple { error: None, .. } | Reply::Nothing { .. } => {}
            Reply::Data { offset, len: count, last, .. } => {
                let at = place_in(slot.command.offset, (op, len), (offset, count))?;
                self.payload =
                    Some(Payload { slot: index, at, left: count as usize, is_last: last });
                slot.covered.add(at as u32, count)?;
                return Ok(());
            }
            Reply::Hole { offset, len: count, last, .. } => {
                let at = place_in(slot.command.offset, (op, len), (offset, count))?;
                let hole_ok = slot.command.flags.contains(BioFlags::HOLE_OK);
                slot.covered.add(at as u32, count)?;
                if count == len && last && hole_ok {
                    slot.is_hole = true;
                } else {
                    slot.zero(at, count as usize);
                }
            }
            Reply::Status { context, len: bytes, last, .. } => {
                if op != Op::BlockStatus || Some(context) != self.allocation || slot.is_told {
                    return Err("it sent a block status that was not requested".to_owned());
                }
                self.extents.clear();
                let left = bytes as usize;
                self.payload = Some(Payload { slot: index, at: 0, left, is_last: last });
                return Ok(());
            }
        }
        if reply.is_last() { self.end(slots, index, ended) } else { Ok(()) }
    }

    /// Keeps the extents in the next bytes of the input, as many as a list holds.
    fn take_extents(&mut self, len: usize) {
        for bytes in self.input[self.from..self.from + len].chunks_exact(8) {
            if self.extents.len() < EXTENTS_MAX {
                let state = ExtentState(be32(bytes, 4) & ExtentState::HOLE_ZERO.0);
                self.extents.push(Extent { len: be32(bytes, 0), state });
            }
        }
    }

    /// Notes that `count` bytes of the payload are where they belong.
    fn advance_payload(
        &mut self,
        slots: &mut Slots,
        count: usize,
        budget: &mut Budget,
        ended: &mut Vec<u32>,
    ) -> Result<(), String> {
        let Some(payload) = &mut self.payload else { return Ok(()) };
        payload.at += count;
        payload.left -= count;
        budget.bytes = budget.bytes.saturating_sub(count);
        if payload.left > 0 {
            return Ok(());
        }
        let Payload { slot: index, is_last, .. } = *payload;
        self.payload = None;
        if slots.slot(index).command.op == Op::BlockStatus {
            self.tell(slots, index)?;
        }
        if is_last { self.end(slots, index, ended) } else { Ok(()) }
    }

    /// Writes the list of extents into the command's memory.
    fn tell(&mut self, slots: &mut Slots, index: u32) -> Result<(), String> {
        let slot = slots.slot_mut(index);
        let Some(span) = slot.spans.first() else { return Ok(()) };
        // SAFETY: the memory of a command that was not answered.
        let bytes = unsafe { span.bytes_mut() };
        let one = slot.command.flags.contains(BioFlags::ONE_EXTENT);
        let mut writer =
            ExtentWriter::new(bytes, slot.command.len, if one { 1 } else { EXTENTS_MAX });
        for extent in &self.extents {
            if extent.len == 0 || !writer.push(extent.len.into(), extent.state) {
                break;
            }
        }
        if writer.finish() == 0 {
            return Err("it sent an empty block status".to_owned());
        }
        slot.is_told = true;
        Ok(())
    }

    /// Ends a command, whose reply is complete.
    fn end(&mut self, slots: &Slots, index: u32, ended: &mut Vec<u32>) -> Result<(), String> {
        let slot = slots.slot(index);
        let is_whole = match slot.command.op {
            Op::Read => slot.covered.is_whole(slot.command.len),
            Op::BlockStatus => slot.is_told,
            _ => true,
        };
        if slot.error.is_none() && !is_whole {
            return Err("it answered a request only in part".to_owned());
        }
        self.in_flight -= 1;
        self.bytes -= weight(slots, index);
        ended.push(index);
        Ok(())
    }

    /// Ends the session: no request is in flight.
    pub fn disconnect(&mut self, request: [u8; REQUEST_BYTES]) {
        // SAFETY: only read, during the call.
        let piece = unsafe { Span::new(request.as_ptr().cast_mut(), request.len()) };
        // The remote finds the connection closed if it does not get this.
        // SAFETY: as above.
        let _ = unsafe { self.socket.send(&[piece]) };
        let _ = self.socket.flush_some();
    }
}

/// What a command counts when connections are compared.
fn weight(slots: &Slots, slot: u32) -> u64 {
    u64::from(slots.slot(slot).command.len) + REQUEST_BYTES as u64
}

/// Where a chunk begins in the memory of a read.
fn place_in(start: u64, (op, len): (Op, u32), chunk: (u64, u32)) -> Result<usize, String> {
    let at = chunk.0.checked_sub(start).filter(|_| op == Op::Read);
    let len = u64::from(len);
    at.filter(|&at| at <= len && u64::from(chunk.1) <= len - at)
        .map(|at| at as usize)
        .ok_or_else(|| "it sent a chunk outside the requested range".to_owned())
}
