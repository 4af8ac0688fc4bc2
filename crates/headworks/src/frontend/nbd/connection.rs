//! One client's connection: from received bytes to bios, from the shard's replies to sent bytes.
//!
//! Payloads are received into private buffers and become bios only when they are complete, so a client that dies in the
//! middle of one changes nothing. Nothing grows: requests in flight, buffer bytes and unsent replies are bounded, and a
//! connection at a bound is simply not read from. A turn takes at most [`TURN_BIOS`] requests or [`TURN_BYTES`] copied bytes.
//!
//! ```text
//!               chosen                    DISC, shutdown             all answered and sent
//!  Handshake ------------> Transmission ------------------> Leaving -------------------> finished
//!      |                       |                               |
//!      `--------- error, hang-up, stall -----------------------'---> Dead --buffers came back--> finished
//! ```
//!
//! Invariant: a buffer that the path may still touch stays with the connection, dead or not, until `Final` or `Released`.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use headworks_core::{Bio, BioId, Input, Instant, IoError, Op, ReplyStage, Status, VolumeId};

use super::handshake::{ExportInfo, Handshake, Outcome};
use super::outgoing::{Outgoing, Sent};
use super::reply::Replies;
use super::transmission::{Parsed, ProtocolError, Request, RequestParser};
use super::window::{Flying, Window};
use super::wire::NbdError;
use crate::memory::{Buffer, Pool, Span};

/// Requests that one connection brings in a turn, so that no client holds the shard.
const TURN_BIOS: usize = 64;
/// Payload bytes that one connection has copied in a turn.
const TURN_BYTES: usize = 256 << 10;
/// A connection that holds no more than this has the pool's reserve, too: 256 requests of 4 KiB.
const SMALL_HOLD: usize = 1 << 20;
/// A quarter of the pool is that reserve.
const RESERVE_PART: usize = 4;
/// A write at least this long announces more like it: then only a little is received beyond a payload, because the next
/// payload should land in its own buffer and not be copied.
const LARGE_PAYLOAD: usize = 32 << 10;
/// That little: a header, and some of the next.
const LARGE_TAIL: usize = 56;

/// What bounds a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Requests in flight and unsent replies. 128: more than any client is known to keep up.
    pub requests: usize,
    /// Bytes of buffers in flight; at least the largest request.
    pub buffer_bytes: usize,
    /// A handshake takes no longer.
    pub handshake_ns: u64,
    /// A payload or a reply on its way makes some progress within this time.
    pub stall_ns: u64,
}

/// Where a connection stands.
enum Phase {
    Handshake(Box<Handshake>),
    Transmission(Transmission),
    /// Reads no more; ends when all is answered and sent.
    Leaving,
    /// The socket is closed.
    Dead,
}

struct Transmission {
    parser: RequestParser,
    replies: Replies,
    volume: VolumeId,
    /// A request that waits for a buffer.
    held: Option<Request>,
    receiving: Option<Receiving>,
    /// The last write was a large one.
    large: bool,
}

/// A payload on its way in.
struct Receiving {
    buffer: Option<Buffer>,
    request: Request,
    filled: usize,
}

/// What a call of [`Connection::receive`] came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The socket has nothing now.
    Nothing,
    /// Something was taken; there may be more.
    Some,
    /// It waits for its own replies.
    Full,
    /// It waits for a buffer of the pool, or for room in the shard.
    NoBuffer,
    /// The client chose this export; the connection belongs to its shard.
    Chosen {
        /// Index of the export.
        export: usize,
        /// Whether reads get structured replies.
        structured: bool,
    },
    /// No more will come. The connection ends when it is finished.
    End(End),
}

/// Why a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// As the protocol has it.
    Goodbye,
    /// The client hung up between requests, with some perhaps unanswered.
    HungUp,
    /// One sentence for the log.
    Fault(String),
}

/// One client.
pub struct Connection {
    socket: Option<OwnedFd>,
    id: u32,
    peer: String,
    limits: ConnectionLimits,
    phase: Phase,
    form: Replies,
    window: Window,
    outgoing: Outgoing,
    /// Bytes of buffers of requests in flight.
    buffer_bytes: usize,
    /// Bytes that were received and not looked at yet; at most one receive's worth.
    stash: Vec<u8>,
    /// When the client last sent something; in the handshake, when it connected.
    last_received: Instant,
    /// When it last took something that waited, or the last time that nothing waited.
    last_sent: Instant,
}

/// What the shard's side lends to a connection while it reads.
pub struct Intake<'a> {
    /// The turn's time.
    pub now: Instant,
    /// Shared by all connections of the shard; empty between calls.
    pub scratch: &'a mut [u8],
    /// The shard's buffers.
    pub pool: &'a mut Pool,
    /// Somebody else waits for a buffer: this one must wait behind.
    pub line: bool,
    /// What the shard offers.
    pub exports: &'a [ExportInfo],
    /// How many bios the shard still takes.
    pub room: &'a mut u32,
    /// Where bios go.
    pub inputs: &'a mut Vec<Input>,
}

impl Connection {
    /// A client that has just connected. The greeting is queued.
    #[must_use]
    pub fn new(socket: OwnedFd, peer: String, limits: ConnectionLimits, now: Instant) -> Self {
        let mut outgoing = Outgoing::new(limits.requests);
        let mut greeting = Vec::new();
        let handshake = Handshake::new(&mut greeting);
        outgoing.header(|out| out.extend_from_slice(&greeting));
        Self {
            socket: Some(socket),
            id: 0,
            peer,
            limits,
            phase: Phase::Handshake(Box::new(handshake)),
            form: Replies { structured: false },
            window: Window::new(limits.requests),
            outgoing,
            buffer_bytes: 0,
            stash: Vec::new(),
            last_received: now,
            last_sent: now,
        }
    }

    /// Who it is for the log.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The name that its bios carry.
    pub fn set_id(&mut self, id: u32) {
        self.id = id;
    }

    /// The name that its bios carry.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The socket, until it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Whether it takes requests, now or later.
    #[must_use]
    pub fn reads(&self) -> bool {
        !matches!(self.phase, Phase::Leaving | Phase::Dead)
    }

    /// The handshake is over: from now on requests for `volume` are taken.
    pub fn begin(&mut self, now: Instant, volume: VolumeId, export: &ExportInfo, structured: bool) {
        (self.last_received, self.last_sent) = (now, now);
        self.form = Replies { structured };
        self.phase = Phase::Transmission(Transmission {
            parser: RequestParser::new(export.flags_for(structured), structured),
            replies: self.form,
            volume,
            held: None,
            receiving: None,
            large: false,
        });
    }

    /// Whether there are bytes that were received and not looked at yet.
    #[must_use]
    pub fn has_stash(&self) -> bool {
        !self.stash.is_empty()
    }

    /// Reads once and turns what came into bios.
    pub fn receive(&mut self, intake: &mut Intake<'_>) -> Received {
        if matches!(self.phase, Phase::Leaving | Phase::Dead) {
            return Received::Nothing;
        }
        if !self.has_room() {
            return Received::Full;
        }
        if self.has_stash() || self.holds_request() {
            let mut stash = std::mem::take(&mut self.stash);
            let (used, received) = self.look_at(&stash, intake);
            stash.drain(..used);
            self.stash = stash;
            return received;
        }
        let (Some(fd), direct) = (self.socket(), self.payload_rest()) else {
            return Received::Nothing;
        };
        let tail = self.tail_len(direct, intake.scratch.len());
        let count = match receive_into(fd, direct, &mut intake.scratch[..tail]) {
            Ok(0) => return Received::End(self.hang_up()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Received::Some,
            Err(error) if is_hang_up(&error) => return Received::End(self.hang_up()),
            Err(error) => return Received::End(End::Fault(format!("receiving failed: {error}"))),
        };
        // A handshake is timed as a whole: drop by drop is no progress.
        if !matches!(self.phase, Phase::Handshake(_)) {
            self.last_received = intake.now;
        }
        let placed = count.min(direct.map_or(0, |span| span.len));
        if placed > 0 {
            self.note_payload(placed, intake);
        }
        let scratch = std::mem::take(&mut intake.scratch);
        let received = self.take_in(&scratch[..count - placed], intake);
        intake.scratch = scratch;
        received
    }

    /// Whether its bounds allow another request.
    fn has_room(&self) -> bool {
        self.window.used() + self.outgoing.replies() < self.limits.requests
            && self.held() < self.limits.buffer_bytes
    }

    /// Bytes of the pool that it holds: for requests, and for replies that the client has not read.
    fn held(&self) -> usize {
        self.buffer_bytes + self.outgoing.held()
    }

    fn holds_request(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(transmission) if transmission.held.is_some())
    }

    /// Where the rest of a payload goes, if one is on its way.
    fn payload_rest(&self) -> Option<Span> {
        let Phase::Transmission(transmission) = &self.phase else {
            return None;
        };
        let receiving = transmission.receiving.as_ref()?;
        let buffer = receiving.buffer.as_ref()?;
        let rest = receiving.request.len as usize - receiving.filled;
        // SAFETY: `filled` is at most the request's length, which the buffer holds.
        let base = unsafe { buffer.base().add(receiving.filled) };
        Some(Span { base, len: rest })
    }

    fn tail_len(&self, direct: Option<Span>, most: usize) -> usize {
        match &self.phase {
            Phase::Transmission(transmission)
                if transmission.large || direct.is_some_and(|span| span.len >= LARGE_PAYLOAD) =>
            {
                LARGE_TAIL
            }
            _ => most,
        }
    }

    /// Looks at received bytes; what cannot be used now goes into the stash.
    fn take_in(&mut self, bytes: &[u8], intake: &mut Intake<'_>) -> Received {
        let (used, received) = self.look_at(bytes, intake);
        if !matches!(received, Received::End(_)) {
            self.stash.extend_from_slice(&bytes[used..]);
        }
        received
    }

    fn look_at(&mut self, bytes: &[u8], intake: &mut Intake<'_>) -> (usize, Received) {
        match self.phase {
            Phase::Handshake(_) => self.shake_hands(bytes, intake),
            _ => self.parse(bytes, intake),
        }
    }

    fn shake_hands(&mut self, bytes: &[u8], intake: &mut Intake<'_>) -> (usize, Received) {
        let Phase::Handshake(handshake) = &mut self.phase else {
            return (0, Received::Nothing);
        };
        let mut used = 0;
        loop {
            let mut out = Vec::new();
            let (count, outcome) = handshake.feed(intake.exports, &bytes[used..], &mut out);
            used += count;
            if !out.is_empty() {
                self.outgoing.header(|headers| headers.extend_from_slice(&out));
            }
            let received = match outcome {
                Outcome::Reply if self.outgoing.replies() < self.limits.requests => continue,
                Outcome::Reply => Received::Full,
                Outcome::NeedMore => Received::Some,
                Outcome::Ready { export, structured } => Received::Chosen { export, structured },
                Outcome::Closed => Received::End(End::Goodbye),
                Outcome::Failed(sentence) => Received::End(End::Fault(sentence)),
            };
            return (used, received);
        }
    }

    fn parse(&mut self, bytes: &[u8], intake: &mut Intake<'_>) -> (usize, Received) {
        let (mut used, mut bios, mut copied) = (0, 0, 0);
        loop {
            let Phase::Transmission(transmission) = &mut self.phase else {
                return (bytes.len(), Received::Some);
            };
            if let Some(receiving) = &mut transmission.receiving {
                let count = receiving.fill(&bytes[used..]);
                (used, copied) = (used + count, copied + count);
                if !receiving.is_complete() {
                    return (used, Received::Some);
                }
                self.submit_received(intake);
                bios += 1;
                continue;
            }
            if bios >= TURN_BIOS || copied >= TURN_BYTES {
                return (used, Received::Some);
            }
            let held = transmission.held.take();
            let request = match held {
                Some(request) => request,
                None if !self.has_room() => return (used, Received::Full),
                None if *intake.room == 0 => return (used, Received::NoBuffer),
                None => {
                    let Phase::Transmission(transmission) = &mut self.phase else {
                        continue;
                    };
                    let (count, parsed) = transmission.parser.parse(&bytes[used..]);
                    used += count;
                    match parsed {
                        Parsed::Request(request) => request,
                        Parsed::NeedMore => return (used, Received::Some),
                        Parsed::Refused(refusal) => {
                            let replies = transmission.replies;
                            self.outgoing.header(|out| replies.refused(out, refusal));
                            continue;
                        }
                        Parsed::Disconnect => return (used, Received::End(End::Goodbye)),
                        Parsed::End(error) => return (used, Received::End(fault(error))),
                    }
                }
            };
            if !self.admit(request, intake) {
                return (used, Received::NoBuffer);
            }
            bios += 1;
        }
    }

    /// Gives a request its buffer and, unless a payload must come first, hands it to the shard. False: no buffer is free.
    fn admit(&mut self, request: Request, intake: &mut Intake<'_>) -> bool {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return true;
        };
        let op = request.op();
        let held = self.buffer_bytes + self.outgoing.held();
        let mut buffer = None;
        if op.has_data() {
            let len = request.len as usize;
            buffer =
                if may_take(held + len, len, intake) { intake.pool.try_take(len) } else { None };
            if buffer.is_none() {
                transmission.held = Some(request);
                return false;
            }
        }
        self.buffer_bytes += buffer.as_ref().map_or(0, |buffer| buffer.len());
        transmission.large = op == Op::Write && request.len as usize >= LARGE_PAYLOAD;
        if op == Op::Write {
            transmission.receiving = Some(Receiving { buffer, request, filled: 0 });
        } else {
            self.submit(&request, buffer, intake);
        }
        true
    }

    fn note_payload(&mut self, count: usize, intake: &mut Intake<'_>) {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return;
        };
        let Some(receiving) = &mut transmission.receiving else {
            return;
        };
        receiving.filled += count;
        if receiving.is_complete() {
            self.submit_received(intake);
        }
    }

    fn submit_received(&mut self, intake: &mut Intake<'_>) {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return;
        };
        if let Some(Receiving { buffer, request, .. }) = transmission.receiving.take() {
            self.submit(&request, buffer, intake);
        }
    }

    fn submit(&mut self, request: &Request, buffer: Option<Buffer>, intake: &mut Intake<'_>) {
        let Phase::Transmission(transmission) = &self.phase else {
            return;
        };
        let volume = transmission.volume;
        let op = request.op();
        let sequence = self.window.insert(request.cookie, request.offset, request.len, op, buffer);
        *intake.room = intake.room.saturating_sub(1);
        intake.inputs.push(Input::Bio(Bio {
            id: BioId { connection: self.id, volume, sequence },
            offset: request.offset,
            len: request.len,
            op,
            flags: request.bio_flags(),
        }));
    }

    /// The buffer of a request in flight.
    #[must_use]
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        self.window.get(sequence)?.buffer.as_ref().map(|buffer| buffer.span())
    }

    /// The shard answers, or frees a buffer.
    pub fn reply(
        &mut self,
        sequence: u64,
        status: Status,
        hole: bool,
        stage: ReplyStage,
        pool: &mut Pool,
    ) {
        let dead = matches!(self.phase, Phase::Dead);
        if stage == ReplyStage::Early {
            let Some(flying) = self.window.get(sequence) else {
                return;
            };
            flying.answered = true;
            let (op, cookie) = (flying.op, flying.cookie);
            if !dead {
                self.answer_failure(op, cookie, status.err().unwrap_or(IoError::TimedOut));
            }
            return;
        }
        let Some(flying) = self.window.remove(sequence) else {
            return;
        };
        let Flying { op, cookie, offset, len, answered, buffer, .. } = flying;
        self.buffer_bytes -= buffer.as_ref().map_or(0, |buffer| buffer.len());
        let mut buffer = buffer;
        if !dead && !answered {
            match (op, status) {
                (_, Err(error)) => self.answer_failure(op, cookie, error),
                (Op::Read, Ok(())) if hole => self.answer_hole(cookie, offset, len),
                (Op::Read, Ok(())) => {
                    let form = self.form;
                    self.outgoing.header(|out| form.read_data(out, cookie, offset, len));
                    if let Some(buffer) = buffer.take() {
                        self.outgoing.data(buffer, len as usize);
                    }
                }
                (_, Ok(())) => {
                    let form = self.form;
                    self.outgoing.header(|out| form.done(out, cookie, Ok(())));
                }
            }
        }
        if let Some(buffer) = buffer {
            pool.put(buffer);
        }
    }

    fn answer_hole(&mut self, cookie: u64, offset: u64, len: u32) {
        let (form, mut said) = (self.form, false);
        self.outgoing.header(|out| said = form.read_hole(out, cookie, offset, len));
        if !said {
            self.outgoing.zeros(len as usize);
        }
    }

    fn answer_failure(&mut self, op: Op, cookie: u64, error: IoError) {
        let (form, error) = (self.form, NbdError::from(error));
        self.outgoing.header(|out| match op {
            Op::Read => form.read_error(out, cookie, error),
            _ => form.done(out, cookie, Err(error)),
        });
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(
        &mut self,
        now: Instant,
        pool: &mut Pool,
        spans: &mut Vec<Span>,
    ) -> io::Result<Sent> {
        let Some(fd) = self.socket() else {
            return Ok(Sent::All);
        };
        if self.outgoing.is_empty() {
            self.last_sent = now;
            return Ok(Sent::All);
        }
        let before = self.outgoing.waiting();
        let sent = self.outgoing.send(fd, pool, spans)?;
        if sent == Sent::All || self.outgoing.waiting() != before {
            self.last_sent = now;
        }
        Ok(sent)
    }

    /// Whether something waits to be sent.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Reads no more. What is in flight is still answered; a payload in the middle is dropped.
    pub fn leave(&mut self, pool: &mut Pool) {
        if matches!(self.phase, Phase::Dead) {
            return;
        }
        self.drop_payload(pool);
        self.stash = Vec::new();
        self.phase = Phase::Leaving;
    }

    /// Closes the socket. Buffers that the path uses stay until it gives them back.
    pub fn close(&mut self, pool: &mut Pool) {
        self.leave(pool);
        self.outgoing.abandon(pool);
        self.socket = None;
        self.phase = Phase::Dead;
    }

    fn drop_payload(&mut self, pool: &mut Pool) {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return;
        };
        if let Some(receiving) = transmission.receiving.take()
            && let Some(buffer) = receiving.buffer
        {
            self.buffer_bytes -= buffer.len();
            pool.put(buffer);
        }
    }

    /// Whether nothing is left to do for it.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match self.phase {
            Phase::Handshake(_) | Phase::Transmission(_) => false,
            Phase::Leaving => self.window.used() == 0 && self.outgoing.is_empty(),
            Phase::Dead => self.window.used() == 0,
        }
    }

    /// When our patience ends, if we wait for the client at all.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let received = match &self.phase {
            Phase::Dead => return None,
            Phase::Handshake(_) => Some(self.last_received.after(self.limits.handshake_ns)),
            Phase::Transmission(transmission) if transmission.is_in_the_middle() => {
                Some(self.last_received.after(self.limits.stall_ns))
            }
            _ => None,
        };
        let sent = self.has_outgoing().then(|| self.last_sent.after(self.limits.stall_ns));
        [received, sent].into_iter().flatten().min()
    }

    /// The sentence for a client with whom our patience ended.
    #[must_use]
    pub fn complaint(&self) -> String {
        let seconds = |ns: u64| ns / 1_000_000_000;
        let stall = seconds(self.limits.stall_ns);
        match &self.phase {
            Phase::Handshake(_) => {
                let limit = seconds(self.limits.handshake_ns);
                format!("the handshake was not over after {limit} s")
            }
            _ if self.has_outgoing() => format!("the client read no reply for {stall} s"),
            _ => format!("a request stopped half-way for {stall} s"),
        }
    }

    fn hang_up(&self) -> End {
        match &self.phase {
            // Whoever only looks whether somebody listens says nothing and goes.
            Phase::Handshake(handshake) if handshake.is_untouched() => End::HungUp,
            Phase::Handshake(_) => End::Fault("the client hung up during the handshake".into()),
            Phase::Transmission(transmission) if transmission.is_in_the_middle() => {
                End::Fault("the client hung up in the middle of a request".into())
            }
            _ => End::HungUp,
        }
    }
}

impl Transmission {
    /// The client has begun a request and owes the rest.
    fn is_in_the_middle(&self) -> bool {
        self.receiving.is_some() || !self.parser.is_between_requests()
    }
}

impl Receiving {
    /// Copies what belongs to the payload; returns how much that was.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.request.len as usize - self.filled);
        if let Some(buffer) = &self.buffer {
            // SAFETY: the buffer is ours alone while the payload comes in, and holds `len` bytes.
            unsafe {
                let base = buffer.base().add(self.filled);
                base.copy_from_nonoverlapping(bytes.as_ptr(), count);
            }
        }
        self.filled += count;
        count
    }

    fn is_complete(&self) -> bool {
        self.filled == self.request.len as usize
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).field("peer", &self.peer).finish()
    }
}

/// Whether a connection that would then hold `held` bytes may take `len` of them. Who holds little is served from all of the
/// pool and past the line; who holds much leaves the reserve alone and waits in line. So a client that reads no replies
/// starves only those like it.
fn may_take(held: usize, len: usize, intake: &Intake<'_>) -> bool {
    let size = intake.pool.size();
    held <= SMALL_HOLD || !intake.line && intake.pool.taken() + len <= size - size / RESERVE_PART
}

fn fault(error: ProtocolError) -> End {
    End::Fault(error.to_string())
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

fn receive_into(fd: RawFd, direct: Option<Span>, scratch: &mut [u8]) -> io::Result<usize> {
    let tail = Span { base: scratch.as_mut_ptr(), len: scratch.len() };
    let spans = [direct.unwrap_or(tail), tail];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = spans.as_ptr().cast_mut().cast();
    message.msg_iovlen = if direct.is_some() { 2 } else { 1 };
    // SAFETY: the spans have iovec's layout; the first is a private buffer's rest, the second the scratch that we borrow.
    let count = unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}
