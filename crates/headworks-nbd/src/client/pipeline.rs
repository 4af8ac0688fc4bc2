//! A connection with many requests in flight, sent and received in batches with few system calls.
//!
//! ```text
//!   submit ... submit --> headers, spans --one sendmsg--> server
//!                                                           |
//!   Finished <-- parse <-- input (256 KiB) <--one recvmsg---+
//!                  |           ^
//!                  +-- a payload that is not complete: the next recvmsg puts its rest where it belongs
//! ```
//!
//! A slot is a request in flight and its data buffer. Its cookie combines the slot's index and a use count, so a wrong reply is
//! detected. Read data is copied into the slot's buffer, as an application would need it, or received there directly.
//!
//! Invariants: no request is submitted while a batch is partly sent, so headers and spans never exceed their capacity; a send
//! never blocks, so two peers that both send cannot deadlock.

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::coverage::Coverage;
use super::replies::{self, Next, Reply};
use super::{ClientError, Export, Socket, protocol};
use crate::wire::{Command, CommandFlags, NbdError, REQUEST_BYTES, RequestHeader};
use headworks::driver::Span;

/// Most bytes of one recvmsg: 60 reads of 4 KiB, and small enough for a core's cache.
const INPUT_BYTES: usize = 256 << 10;
/// Empty polls of the socket between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 4096;

/// How a connection waits for replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Sleep in the kernel.
    Sleep,
    /// Poll the socket, yielding the CPU in between.
    Poll,
}

#[derive(Clone, Debug)]
struct Slot {
    cookie: u64,
    command: Command,
    offset: u64,
    len: u32,
    /// Received parts of a read.
    covered: Coverage,
    error: Option<NbdError>,
}

/// Read data that is still to be received.
#[derive(Clone, Copy, Debug)]
struct Payload {
    slot: usize,
    /// Position in the slot's buffer.
    at: usize,
    left: usize,
    /// The reply ends with this data.
    last: bool,
}

/// A completed request; its data stay in the slot until the slot is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub slot: usize,
    pub error: Option<NbdError>,
}

/// The request pipeline of one connection.
#[derive(Debug)]
pub struct Pipeline {
    socket: Socket,
    structured: bool,
    waiting: Waiting,
    timeout: Duration,
    block_bytes: usize,
    slots: Vec<Slot>,
    free: Vec<usize>,
    data: Vec<u8>,
    headers: Vec<u8>,
    spans: Vec<Span>,
    /// Number of sent spans.
    sent: usize,
    /// The batch is partly sent; the rest precedes new requests.
    is_blocked: bool,
    input: Vec<u8>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    /// Number of system calls that sent, and that received, data.
    pub calls: [u64; 2],
}

impl Pipeline {
    /// Creates a pipeline of `depth` requests of up to `block_bytes` each.
    pub fn new(
        (socket, export): (Socket, &Export),
        depth: usize,
        block_bytes: usize,
        waiting: Waiting,
        timeout: Duration,
    ) -> Self {
        assert!(depth > 0 && depth < SLOT_MASK as usize, "a cookie has room for the slot");
        let idle = Slot {
            cookie: u64::MAX,
            command: Command::Disconnect,
            offset: 0,
            len: 0,
            covered: Coverage::default(),
            error: None,
        };
        Self {
            socket,
            structured: export.structured,
            waiting,
            timeout,
            block_bytes,
            slots: vec![idle; depth],
            free: (0..depth).rev().collect(),
            data: vec![0; depth * block_bytes],
            headers: Vec::with_capacity(depth * REQUEST_BYTES),
            spans: Vec::with_capacity(2 * depth),
            sent: 0,
            is_blocked: false,
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            payload: None,
            calls: [0; 2],
        }
    }

    /// Disconnects in an orderly way.
    pub fn goodbye(mut self) {
        let header =
            RequestHeader { command: Command::Disconnect as u16, ..RequestHeader::default() };
        // The server may have closed already.
        let _ = self.socket.write_all(&header.encode());
    }

    /// Returns the number of requests that may be submitted now.
    pub fn room(&self) -> usize {
        if self.is_blocked { 0 } else { self.free.len() }
    }

    /// Returns true when all submitted requests are completed.
    pub fn is_idle(&self) -> bool {
        !self.is_blocked && self.free.len() == self.slots.len()
    }

    /// Returns the slot that the next [`Pipeline::submit`] uses, if there is room.
    pub fn next_slot(&self) -> Option<usize> {
        (self.room() > 0).then(|| *self.free.last().expect("room means a free slot"))
    }

    /// Returns a slot's buffer: fill it before a write is submitted, read it after a read has completed.
    pub fn data(&mut self, slot: usize) -> &mut [u8] {
        &mut self.data[slot * self.block_bytes..][..self.block_bytes]
    }

    /// Queues a request on [`Pipeline::next_slot`]; the next [`Pipeline::exchange`] sends it.
    #[inline]
    pub fn submit(&mut self, command: Command, flags: CommandFlags, offset: u64, len: u32) {
        assert!(self.room() > 0, "there is room");
        let payload = if matches!(command, Command::Read | Command::Write) { len } else { 0 };
        assert!(payload as usize <= self.block_bytes, "a request fits its slot");
        if self.sent > 0 {
            self.headers.clear();
            self.spans.clear();
            self.sent = 0;
        }
        let index = self.free.pop().expect("room means a free slot");
        let slot = &mut self.slots[index];
        // The use count starts so that the first cookie has 0.
        let cookie = (slot.cookie | SLOT_MASK).wrapping_add(1) | index as u64;
        (slot.cookie, slot.command, slot.offset, slot.len) = (cookie, command, offset, len);
        slot.covered.clear();
        slot.error = None;
        let header = RequestHeader { flags: flags.0, command: command as u16, cookie, offset, len };
        self.push_header(&header.encode());
        if command == Command::Write {
            let base = self.data.as_mut_ptr().wrapping_add(index * self.block_bytes);
            // SAFETY: the slot's part of the data, which stays where it is; sending only reads.
            self.spans.push(unsafe { Span::new(base, len as usize) });
        }
    }

    /// Appends a header; adjacent headers share a span.
    fn push_header(&mut self, header: &[u8]) {
        assert!(self.headers.len() + header.len() <= self.headers.capacity(), "headers stay put");
        self.headers.extend_from_slice(header);
        let at = self.headers.len() - header.len();
        let base = self.headers.as_mut_ptr().wrapping_add(at);
        match self.spans.last_mut() {
            Some(last) if last.base().wrapping_add(last.len()) == base => {
                // SAFETY: both are parts of `headers`, which stays where it is until it is sent.
                *last = unsafe { Span::new(last.base(), last.len() + header.len()) };
            }
            // SAFETY: as above.
            _ => self.spans.push(unsafe { Span::new(base, header.len()) }),
        }
    }

    /// Sends submitted requests, waits for replies, for at most `until` if that is given, and appends completed requests.
    pub fn exchange(
        &mut self,
        finished: &mut Vec<Finished>,
        until: Option<Duration>,
    ) -> Result<(), ClientError> {
        self.send()?;
        match until {
            Some(until) => self.receive_within(until)?,
            None => self.receive()?,
        }
        self.digest(finished)
    }

    /// Sends submitted requests as far as the socket takes them.
    pub fn send(&mut self) -> Result<(), ClientError> {
        while self.sent < self.spans.len() {
            // SAFETY: spans name parts of `headers` and `data`. Neither is resized, and while a batch is partly sent no slot is
            // free, so none is filled, even if a server answers a write before it has received all of it.
            let mut moved = unsafe { self.socket.send(&self.spans[self.sent..])? };
            if moved == 0 {
                break;
            }
            self.calls[0] += 1;
            while moved > 0 {
                let span = &mut self.spans[self.sent];
                if moved < span.len() {
                    *span = span.part(moved, span.len() - moved);
                    break;
                }
                moved -= span.len();
                self.sent += 1;
            }
        }
        self.is_blocked = self.sent < self.spans.len() || !self.socket.flush_some()?;
        Ok(())
    }

    /// Receives what has arrived, without waiting, and appends completed requests.
    pub fn receive_now(&mut self, finished: &mut Vec<Finished>) -> Result<(), ClientError> {
        loop {
            let any = self.receive_once(false)?;
            self.digest(finished)?;
            if !any || !self.socket.has_plain() {
                return Ok(());
            }
        }
    }

    /// Returns true when a batch is partly sent.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Returns the descriptor of the socket.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Receives what arrives first within a time, if anything does. Idle connections wait, too.
    fn receive_within(&mut self, until: Duration) -> Result<(), ClientError> {
        if self.waiting == Waiting::Poll {
            let start = Instant::now();
            while !self.receive_once(false)? && start.elapsed() < until {
                std::thread::yield_now();
            }
            return Ok(());
        }
        if self.receive_once(false)? || !self.socket.wait_within(self.is_blocked, until)? {
            return Ok(());
        }
        self.receive_once(false).map(|_| ())
    }

    /// Receives once, after waiting if necessary. With unsent requests it also returns when the socket is writable.
    fn receive(&mut self) -> Result<(), ClientError> {
        if self.is_idle() {
            return Ok(());
        }
        if self.is_blocked {
            return match self.socket.wait_within(true, self.timeout)? {
                true => self.receive_once(false).map(|_| ()),
                false => Err(ClientError::TimedOut),
            };
        }
        if self.waiting == Waiting::Sleep {
            return match self.receive_once(true)? {
                true => Ok(()),
                false => Err(ClientError::TimedOut),
            };
        }
        let (mut looks, mut since) = (0u32, None);
        while !self.receive_once(false)? {
            std::thread::yield_now();
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_CLOCK)
                && since.get_or_insert_with(Instant::now).elapsed() > self.timeout
            {
                return Err(ClientError::TimedOut);
            }
        }
        Ok(())
    }

    /// Calls recvmsg once: the rest of a payload goes to its slot, the following bytes to the input. False if there was none.
    fn receive_once(&mut self, wait: bool) -> Result<bool, ClientError> {
        if self.start > 0 {
            // Less than one reply header is left over: digest consumed the rest.
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let rest = match &self.payload {
            Some(payload) => {
                let first = payload.slot * self.block_bytes + payload.at;
                &mut self.data[first..first + payload.left]
            }
            None => &mut [],
        };
        let wanted = rest.len();
        match self.socket.receive(rest, &mut self.input[self.end..], wait)? {
            None => return Ok(false),
            Some(0) => return Err(ClientError::Closed),
            Some(received) => {
                self.end += received - received.min(wanted);
                self.calls[1] += 1;
                if let Some(payload) = &mut self.payload {
                    payload.at += received.min(wanted);
                    payload.left -= received.min(wanted);
                }
            }
        }
        Ok(true)
    }

    /// Parses complete replies.
    fn digest(&mut self, finished: &mut Vec<Finished>) -> Result<(), ClientError> {
        loop {
            if !self.take_payload(finished)? {
                return Ok(());
            }
            match replies::parse(&self.input[self.start..self.end])? {
                Next::Reply(bytes, reply) => {
                    self.start += bytes;
                    self.on_reply(reply, finished)?;
                }
                Next::Needs(_) => return Ok(()),
            }
        }
    }

    /// Moves a payload from the input to its slot; returns false when it is incomplete.
    #[inline]
    fn take_payload(&mut self, finished: &mut Vec<Finished>) -> Result<bool, ClientError> {
        let Some(mut payload) = self.payload else {
            return Ok(true);
        };
        let here = payload.left.min(self.end - self.start);
        let first = payload.slot * self.block_bytes + payload.at;
        self.data[first..first + here].copy_from_slice(&self.input[self.start..][..here]);
        self.start += here;
        payload.at += here;
        payload.left -= here;
        if payload.left > 0 {
            self.payload = Some(payload);
            return Ok(false);
        }
        self.payload = None;
        if payload.last {
            self.finish(payload.slot, finished)?;
        }
        Ok(true)
    }

    #[inline]
    fn on_reply(&mut self, reply: Reply, finished: &mut Vec<Finished>) -> Result<(), ClientError> {
        let index = (reply.cookie() & SLOT_MASK) as usize;
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(protocol("a reply that matches no request"));
        };
        if slot.cookie != reply.cookie() || slot.command == Command::Disconnect {
            return Err(protocol("a reply that matches no request"));
        }
        let is_read = slot.command == Command::Read;
        slot.covered.count(slot.len).map_err(protocol)?;
        match reply {
            Reply::Simple { .. } if is_read && self.structured => {
                return Err(protocol(
                    "a simple reply to a read, though structured replies were negotiated",
                ));
            }
            Reply::Simple { error: None, .. } if is_read => {
                slot.covered.add(0, slot.len).map_err(protocol)?;
                self.payload =
                    Some(Payload { slot: index, at: 0, left: slot.len as usize, last: true });
                return Ok(());
            }
            Reply::Simple { error, .. } => slot.error = error,
            Reply::Failed { error, .. } => slot.error = Some(error),
            Reply::Nothing { .. } => {}
            Reply::Status { .. } => return Err(protocol("an unrequested block status")),
            Reply::Data { offset, len, .. } | Reply::Hole { offset, len, .. } => {
                let at = offset.wrapping_sub(slot.offset);
                let inside =
                    at <= u64::from(slot.len) && u64::from(len) <= u64::from(slot.len) - at;
                if !is_read || !inside {
                    return Err(protocol("a chunk outside the requested range"));
                }
                slot.covered.add(at as u32, len).map_err(protocol)?;
                let (at, left) = (at as usize, len as usize);
                if let Reply::Data { last, .. } = reply {
                    let slot = index;
                    self.payload = Some(Payload { slot, at, left, last });
                    return Ok(());
                }
                self.data(index)[at..at + left].fill(0);
            }
        }
        if reply.is_last() {
            self.finish(index, finished)?;
        }
        Ok(())
    }

    #[inline]
    fn finish(&mut self, index: usize, finished: &mut Vec<Finished>) -> Result<(), ClientError> {
        let slot = &mut self.slots[index];
        let complete = slot.covered.is_whole(slot.len) || slot.command != Command::Read;
        if !complete && slot.error.is_none() {
            return Err(protocol("a read was answered only in part"));
        }
        // A second reply with this cookie is an error.
        slot.command = Command::Disconnect;
        self.free.push(index);
        finished.push(Finished { slot: index, error: slot.error });
        Ok(())
    }
}

/// Extracts the slot's index from a cookie.
const SLOT_MASK: u64 = 0xffff;
