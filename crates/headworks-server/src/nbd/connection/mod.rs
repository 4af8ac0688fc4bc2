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

mod receive;
#[cfg(test)]
mod tls_tests;

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use headworks_core::{
    EXTENTS_BYTES, ExportId, Input, Instant, IoError, Ioprio, Op, ReplyStage, Status, VolumeId,
    WaitTimes,
};

use super::outgoing::{Outgoing, SendOutcome};
use super::transport::Transport;
use super::window::{InFlight, Window};
use crate::latency::{CompletedRequest, LatencyOp, LatencyTable};
use headworks::driver::{Buffer, Pool, Span};
use headworks_nbd::handshake::{Encryption, ExportInfo, Handshake, Negotiated};
use headworks_nbd::reply::Replies;
use headworks_nbd::status::StatusQuery;
use headworks_nbd::tls::TlsAcceptor;
use headworks_nbd::transmission::{Request, RequestParser};
use headworks_nbd::wire::NbdError;

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

/// Where a connection's requests go, and how they are treated there.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportBinding {
    /// The volume.
    pub volume: VolumeId,
    /// The export that the client chose.
    pub export: ExportId,
    /// The priority of all its requests.
    pub ioprio: Ioprio,
}

struct Transmission {
    parser: RequestParser,
    replies: Replies,
    binding: ExportBinding,
    /// The priority is this connection's own, not its export's.
    own_ioprio: bool,
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
pub enum ReceiveOutcome {
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
        /// What was agreed on.
        terms: Negotiated,
    },
    /// No more will come. The connection ends when it is finished.
    End(ConnectionEnd),
}

/// Why a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// As the protocol has it.
    Goodbye,
    /// The client hung up between requests, with some perhaps unanswered.
    HungUp,
    /// One sentence for the log.
    Fault(String),
}

/// One client.
pub struct Connection {
    /// None when it is closed.
    transport: Option<Transport>,
    /// What STARTTLS gets; none when there is no TLS, or it was had.
    acceptor: Option<Arc<TlsAcceptor>>,
    id: u32,
    peer: String,
    limits: ConnectionLimits,
    phase: Phase,
    form: Replies,
    /// The smallest block of its export.
    block: u32,
    window: Window,
    outgoing: Outgoing,
    /// What it waited for; from its first request on.
    latency: Option<LatencyTable>,
    /// Where it is counted, even when it is leaving.
    export: ExportId,
    /// Bytes of buffers of requests in flight.
    buffer_bytes: usize,
    /// Bytes that were received and not looked at yet; at most one receive's worth.
    stash: Vec<u8>,
    /// When the client last sent something; in the handshake, when it connected.
    last_received: Instant,
    /// When it last took something that waited, or the last time that nothing waited.
    last_sent: Instant,
    /// Nothing waited at the last send.
    was_silent: bool,
}

/// What a connection that needs a buffer may do when the pool is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPolicy {
    /// Nobody else waits: take what there is.
    Free,
    /// It is the first in line: one buffer, then somebody else may be.
    Once,
    /// Others go before it.
    Wait,
}

/// What the shard's side lends to a connection while it reads.
pub struct ReceiveContext<'a> {
    /// The turn's time.
    pub now: Instant,
    /// Shared by all connections of the shard; empty between calls.
    pub scratch: &'a mut [u8],
    /// The shard's buffers.
    pub pool: &'a mut Pool,
    /// Whether it may take buffers though others wait.
    pub turn: BufferPolicy,
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
            transport: Some(Transport::plain(socket)),
            acceptor: None,
            id: 0,
            peer,
            limits,
            phase: Phase::Handshake(Box::new(handshake)),
            form: Replies { structured: false },
            block: 1,
            window: Window::new(limits.requests),
            outgoing,
            latency: None,
            export: ExportId::default(),
            buffer_bytes: 0,
            stash: Vec::new(),
            last_received: now,
            last_sent: now,
            was_silent: false,
        }
    }

    /// Lets the client ask for TLS, or makes it. To be called before anything is received.
    pub fn set_tls_acceptor(&mut self, acceptor: &Arc<TlsAcceptor>) {
        if let Phase::Handshake(handshake) = &mut self.phase {
            let required = acceptor.is_required();
            handshake.offer(if required { Encryption::Required } else { Encryption::Offered });
            self.acceptor = Some(Arc::clone(acceptor));
        }
    }

    /// Version and cipher of its TLS; none without.
    #[must_use]
    pub fn tls(&self) -> Option<String> {
        self.transport.as_ref()?.terms()
    }

    /// Whether the keys of its TLS have still to be agreed on: what it sends may ask for a signature.
    #[must_use]
    pub fn agrees_on_keys(&self) -> bool {
        self.transport.as_ref().is_some_and(Transport::is_handshaking)
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
        self.transport.as_ref().map(Transport::fd)
    }

    /// Whether it takes requests, now or later.
    #[must_use]
    pub fn reads(&self) -> bool {
        !matches!(self.phase, Phase::Leaving | Phase::Dead)
    }

    /// Whether the last write was a large one, so that more like it are likely.
    #[must_use]
    pub fn brings_large_payloads(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(transmission) if transmission.large)
    }

    /// The handshake is over: from now on requests for what is behind `binding` are taken.
    pub fn begin(
        &mut self,
        now: Instant,
        binding: ExportBinding,
        export: &ExportInfo,
        terms: Negotiated,
    ) {
        (self.last_received, self.last_sent) = (now, now);
        self.acceptor = None;
        self.form = Replies { structured: terms.structured };
        self.latency = Some(LatencyTable::default());
        self.export = binding.export;
        self.block = export.block_sizes.min;
        self.phase = Phase::Transmission(Transmission {
            parser: RequestParser::new(export.flags_for(terms), terms),
            replies: self.form,
            binding,
            own_ioprio: false,
            held: None,
            receiving: None,
            large: false,
        });
    }

    /// Where its requests go; none before it has chosen, nor when it leaves.
    #[must_use]
    pub fn binding(&self) -> Option<ExportBinding> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(transmission.binding),
            _ => None,
        }
    }

    /// Gives it a priority of its own for requests from now on; false if it takes none.
    pub fn set_ioprio(&mut self, ioprio: Ioprio) -> bool {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return false;
        };
        (transmission.binding.ioprio, transmission.own_ioprio) = (ioprio, true);
        true
    }

    /// The priority of an export has changed: its connections have that, but for those with one of their own.
    pub fn follow(&mut self, export: ExportId, ioprio: Ioprio) {
        if let Phase::Transmission(transmission) = &mut self.phase
            && transmission.binding.export == export
            && !transmission.own_ioprio
        {
            transmission.binding.ioprio = ioprio;
        }
    }

    /// What it waited for, and by which export; none before it has chosen.
    #[must_use]
    pub fn latency(&self) -> Option<(ExportId, &LatencyTable)> {
        self.latency.as_ref().map(|table| (self.export, table))
    }

    /// A request was answered: it counts, and the turn's time is known.
    #[inline]
    pub fn count(&mut self, answered: &CompletedRequest, wait_times: WaitTimes) {
        if let Some(table) = &mut self.latency {
            table.record(LatencyOp::of(answered.op), answered.len, answered.total_ns, wait_times);
        }
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.window.used()
    }

    /// Whether there are bytes that were received and not looked at yet.
    #[must_use]
    pub fn has_stash(&self) -> bool {
        !self.stash.is_empty()
    }

    /// The buffer of a request in flight.
    #[must_use]
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        // SAFETY: the buffer is put back after the request's last reply, when no span of it is used any more.
        self.window.get(sequence)?.buffer.as_ref().map(|buffer| unsafe { buffer.span() })
    }

    /// The shard answers, or frees a buffer; what was answered, if that was it.
    pub fn reply(
        &mut self,
        now: Instant,
        sequence: u64,
        (status, hole, stage): (Status, bool, ReplyStage),
        pool: &mut Pool,
    ) -> Option<CompletedRequest> {
        let dead = matches!(self.phase, Phase::Dead);
        if stage == ReplyStage::Early {
            let in_flight = self.window.get(sequence)?;
            in_flight.answered = true;
            let (op, cookie) = (in_flight.op, in_flight.cookie);
            let answered = completed(in_flight, now);
            if !dead {
                self.answer_failure(op, cookie, status.err().unwrap_or(IoError::TimedOut));
            }
            return Some(answered);
        }
        let in_flight = self.window.remove(sequence)?;
        let counted = completed(&in_flight, now);
        let InFlight { op, cookie, offset, len, one_extent, answered, buffer, .. } = in_flight;
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
                (Op::BlockStatus, Ok(())) => {
                    let (form, block) = (self.form, self.block);
                    let question = StatusQuery { cookie, offset, len, block, one: one_extent };
                    let list = buffer.as_ref().map_or(&[][..], list_of);
                    self.outgoing.header(|out| form.block_status(out, &question, list));
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
        (!answered).then_some(counted)
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
            Op::Read | Op::BlockStatus => form.read_error(out, cookie, error),
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
    ) -> io::Result<SendOutcome> {
        let leaves = matches!(self.phase, Phase::Leaving) && self.window.used() == 0;
        let Some(transport) = &mut self.transport else {
            return Ok(SendOutcome::All);
        };
        if leaves && self.outgoing.is_empty() {
            transport.goodbye();
        }
        if self.outgoing.is_empty() && !transport.has_unsent() {
            self.was_silent = true;
            return Ok(SendOutcome::All);
        }
        if std::mem::take(&mut self.was_silent) {
            // Patience begins with the first reply that waits.
            self.last_sent = now;
        }
        let before = (self.outgoing.waiting(), transport.progress());
        let sent = self.outgoing.send(transport, pool, spans)?;
        if leaves && self.outgoing.is_empty() {
            // Behind the last reply, in the send that takes it: nothing would bring us here again.
            transport.goodbye();
        }
        let sent = transport.settle(sent)?;
        if sent == SendOutcome::All || (self.outgoing.waiting(), transport.progress()) != before {
            self.last_sent = now;
        }
        Ok(sent)
    }

    /// Whether something waits to be sent.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.transport.as_ref().is_some_and(Transport::has_unsent)
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
        self.transport = None;
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
            Phase::Leaving => {
                self.window.used() == 0
                    && self.outgoing.is_empty()
                    && self.transport.as_ref().is_none_or(Transport::is_finished)
            }
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
                format!("the handshake took longer than {limit} s")
            }
            _ if self.has_outgoing() => format!("the client read no reply for {stall} s"),
            _ => format!("an incomplete request made no progress for {stall} s"),
        }
    }

    fn hang_up(&self) -> ConnectionEnd {
        match &self.phase {
            // Whoever only looks whether somebody listens says nothing and goes.
            Phase::Handshake(handshake) if handshake.is_untouched() => ConnectionEnd::HungUp,
            Phase::Handshake(_)
                if self.transport.as_ref().is_some_and(Transport::is_handshaking) =>
            {
                ConnectionEnd::Fault("the client disconnected during the TLS handshake".into())
            }
            Phase::Handshake(_) => {
                ConnectionEnd::Fault("the client disconnected during the handshake".into())
            }
            Phase::Transmission(transmission) if transmission.is_in_the_middle() => {
                ConnectionEnd::Fault("the client disconnected in the middle of a request".into())
            }
            _ => ConnectionEnd::HungUp,
        }
    }
}

impl Transmission {
    /// The client has begun a request and owes the rest.
    fn is_in_the_middle(&self) -> bool {
        self.receiving.is_some() || !self.parser.is_between_requests()
    }
}

/// Describes a request of the window that is answered at `now`.
#[inline]
fn completed(request: &InFlight, now: Instant) -> CompletedRequest {
    let InFlight { op, offset, len, since, .. } = *request;
    CompletedRequest { op, offset, len, total_ns: now.since(since) }
}

/// What a device told in the buffer of a block status.
fn list_of(buffer: &Buffer) -> &[u8] {
    assert!(buffer.len() >= EXTENTS_BYTES as usize, "it was taken for a list");
    // SAFETY: the buffer is ours alone again, and holds a list's bytes.
    unsafe { std::slice::from_raw_parts(buffer.base(), EXTENTS_BYTES as usize) }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).field("peer", &self.peer).finish()
    }
}
