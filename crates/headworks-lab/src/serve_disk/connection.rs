//! One client of a served disk: handshake, requests, replies.
//!
//! ```text
//!   Handshake --GO--> Transmission --disconnect, end of stream--> Ending (commands in the disk, replies to send) --> is_over
//! ```
//!
//! The stream does not block. Invariant: `outstanding` commands of this connection are in the disk, each with one reply to come.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use headworks_nbd::{
    Command, ExportInfo, Handshake, NbdError, Outcome, Parsed, Refusal, Replies, Request,
    RequestParser,
};

use super::output::Output;

/// Bytes of one receive.
const INPUT_BYTES: usize = 256 << 10;

enum Phase {
    Handshake(Handshake),
    Transmission(RequestParser, Replies),
    Ending(Replies),
}

/// A write whose payload is being received.
struct Payload {
    request: Request,
    left: usize,
    bytes: Vec<u8>,
}

/// A client of the disk.
pub(super) struct Connection {
    stream: UnixStream,
    phase: Phase,
    input: Vec<u8>,
    start: usize,
    end: usize,
    payload: Option<Payload>,
    /// Payloads are kept; otherwise they are received and dropped.
    keeps: bool,
    output: Output,
    outstanding: u32,
    is_broken: bool,
}

impl Connection {
    /// A new client. `keeps`: the payloads of writes matter.
    pub fn new(stream: UnixStream, keeps: bool) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let mut greeting = Vec::new();
        let phase = Phase::Handshake(Handshake::new(&mut greeting));
        let mut output = Output::default();
        output.push(greeting);
        Ok(Self {
            stream,
            phase,
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            payload: None,
            keeps,
            output,
            outstanding: 0,
            is_broken: false,
        })
    }

    /// The socket, to wait for.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Whether replies wait for room in the socket.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether received bytes are left that were not parsed, for want of room in the disk.
    pub fn has_input(&self) -> bool {
        self.start < self.end
    }

    /// Whether more bytes are wanted: replies go first, so that a client that takes none gets no more commands in.
    pub fn wants_input(&self) -> bool {
        !matches!(self.phase, Phase::Ending(_)) && !self.has_output() && !self.is_broken
    }

    /// Whether nothing of the connection is left but its socket.
    pub fn is_over(&self) -> bool {
        let ended = matches!(self.phase, Phase::Ending(_));
        self.is_broken || (ended && self.outstanding == 0 && !self.has_output())
    }

    /// Sends what the socket takes.
    pub fn send(&mut self) {
        self.is_broken |= self.output.send(&mut self.stream).is_err();
    }

    /// Receives once, if everything received before is parsed.
    pub fn receive(&mut self) {
        if self.has_input() {
            return;
        }
        match self.stream.read(&mut self.input) {
            Ok(0) => self.end(),
            Ok(count) => (self.start, self.end) = (0, count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.is_broken = true,
        }
    }

    /// The next request with its payload, if one is complete. Answers options and refused requests by itself.
    pub fn next_request(&mut self, export: &ExportInfo) -> Option<(Request, Vec<u8>)> {
        loop {
            if let Some(payload) = &mut self.payload {
                let count = payload.left.min(self.end - self.start);
                if self.keeps {
                    payload.bytes.extend_from_slice(&self.input[self.start..self.start + count]);
                }
                payload.left -= count;
                self.start += count;
                if payload.left > 0 {
                    return None;
                }
                let Payload { request, bytes, .. } = self.payload.take().expect("just looked at");
                return Some(self.begun(request, bytes));
            }
            if !self.has_input() {
                return None;
            }
            let bytes = &self.input[self.start..self.end];
            match &mut self.phase {
                Phase::Handshake(handshake) => {
                    let mut out = Vec::new();
                    let (used, outcome) = handshake.feed(export, bytes, &mut out);
                    self.start += used;
                    self.output.push(out);
                    self.on_option(export, outcome);
                }
                Phase::Transmission(parser, replies) => {
                    let replies = *replies;
                    let (used, parsed) = parser.parse(bytes);
                    self.start += used;
                    match parsed {
                        Parsed::NeedMore => {}
                        Parsed::Request(request) if request.payload() > 0 => {
                            let left = request.payload() as usize;
                            self.payload = Some(Payload { request, left, bytes: Vec::new() });
                        }
                        Parsed::Request(request) => return Some(self.begun(request, Vec::new())),
                        Parsed::Refused(refusal) => self.refuse(replies, refusal),
                        Parsed::Disconnect | Parsed::End(_) => self.end(),
                    }
                }
                Phase::Ending(_) => {
                    self.start = self.end;
                    return None;
                }
            }
        }
    }

    fn begun(&mut self, request: Request, bytes: Vec<u8>) -> (Request, Vec<u8>) {
        self.outstanding += 1;
        (request, bytes)
    }

    fn on_option(&mut self, export: &ExportInfo, outcome: Outcome) {
        match outcome {
            Outcome::Ready { terms, .. } => {
                let replies = Replies { structured: terms.structured };
                let parser = RequestParser::new(export.flags_for(terms), terms);
                self.phase = Phase::Transmission(parser, replies);
            }
            // Without a TLS policy no client is told to encrypt.
            Outcome::Closed | Outcome::Failed(_) | Outcome::Encrypt => self.end(),
            Outcome::NeedMore | Outcome::Reply => {}
        }
    }

    /// Takes no more requests. Options that did not lead to an export have no replies to come.
    fn end(&mut self) {
        let replies = match self.phase {
            Phase::Transmission(_, replies) | Phase::Ending(replies) => replies,
            Phase::Handshake(_) => Replies { structured: false },
        };
        self.phase = Phase::Ending(replies);
        self.payload = None;
        self.start = self.end;
    }

    fn replies(&self) -> Replies {
        match self.phase {
            Phase::Transmission(_, replies) | Phase::Ending(replies) => replies,
            Phase::Handshake(_) => unreachable!("no request comes before the handshake ends"),
        }
    }

    fn refuse(&mut self, replies: Replies, refusal: Refusal) {
        let mut out = Vec::new();
        replies.refused(&mut out, refusal);
        self.output.push(out);
    }

    /// Answers a read; `None` is zeros.
    pub fn answer_read(&mut self, request: &Request, bytes: Option<Vec<u8>>) {
        self.outstanding -= 1;
        let (mut out, replies) = (Vec::new(), self.replies());
        let (cookie, offset, len) = (request.cookie, request.offset, request.len);
        match bytes {
            Some(bytes) => {
                replies.read_data(&mut out, cookie, offset, len);
                self.output.push(out);
                self.output.push(bytes);
            }
            None => {
                let complete = replies.read_hole(&mut out, cookie, offset, len);
                self.output.push(out);
                self.output.push_zeros(if complete { 0 } else { len as usize });
            }
        }
    }

    /// Answers a command without data, or a failed one.
    pub fn answer(&mut self, request: &Request, outcome: Result<(), NbdError>) {
        self.outstanding -= 1;
        let mut out = Vec::new();
        let in_chunks = matches!(request.command, Command::Read | Command::BlockStatus);
        match outcome {
            Err(error) if in_chunks => self.replies().read_error(&mut out, request.cookie, error),
            outcome => self.replies().done(&mut out, request.cookie, outcome),
        }
        self.output.push(out);
    }
}
