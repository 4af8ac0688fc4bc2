//! One client's connection: turns received bytes into bios, and replies of the shard into sent bytes.
//!
//! Payloads are received into private buffers and become bios when they are complete, or a part of them of 1 MiB is ([`payload`]).
//! Requests in flight, buffer bytes and unsent replies are bounded, and a
//! connection at a bound is not read from. A turn takes at most `TURN_BIOS` requests or `TURN_BYTES` copied bytes
//! from one connection.
//!
//! ```text
//!               chosen                    DISC, shutdown             all answered and sent
//!  Handshake ------------> Transmission ------------------> Leaving -------------------> finished
//!      |                       |                               |
//!      `--------- error, hang-up, stall -----------------------'---> Dead --buffers came back--> finished
//! ```
//!
//! Invariant: a buffer that the shard may still use stays with the connection until `Final` or `Released`, even when
//! the connection is closed.

mod admission;
#[cfg(test)]
mod bench;
mod from_cache;
mod frozen;
mod hand_over;
#[cfg(test)]
mod limited_tests;
mod parked;
mod payload;
#[cfg(test)]
mod payload_tests;
mod receive;
mod reread;
#[cfg(test)]
mod tls_tests;

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use headworks_core::{
    DeviceId, EXTENTS_BYTES, ExportId, Input, Instant, IoError, Ioprio, Op, ReplyStage, Status,
    VolumeId, WaitTimes,
};

use super::transport::Transport;
use crate::access::{Admission, ExportDirectory};
use crate::latency::{CompletedRequest, LatencyTable};
use headworks::driver::{Buffer, Pool, Span};
use headworks_front::cache_guess::CacheGuess;
use headworks_front::memory::MemoryShare;
use headworks_front::outgoing::{Outgoing, SendOutcome};
use headworks_front::window::{InFlight, Window};
use headworks_front::{Waiting, WaitsFor};
use headworks_nbd::handshake::{Encryption, Handshake};
use headworks_nbd::reply::Replies;
use headworks_nbd::status::StatusQuery;
use headworks_nbd::tls::TlsAcceptor;
use headworks_nbd::transmission::RequestParser;
use headworks_nbd::wire::NbdError;
use headworks_nbd::{ExportInfo, Negotiated};

pub use admission::LimitGate;
use hand_over::Resumption;
pub use hand_over::{HandedConnection, OpenWrite};
use payload::SplitWrite;

/// Requests that one connection submits in a turn.
const TURN_BIOS: usize = 64;
/// Payload bytes that one connection has copied in a turn.
const TURN_BYTES: usize = 256 << 10;
/// A range that is read again starts and ends at multiples of this, or of the export's block if that is larger.
const REREAD_ALIGN: u64 = 4 << 10;
/// A write of at least this length is followed by more like it: then little is received beyond a payload, so that the
/// next payload arrives in its own buffer without a copy.
const LARGE_PAYLOAD: usize = 32 << 10;
/// Bytes received beyond a large payload: a header and a part of the next.
const LARGE_TAIL: usize = 56;
/// Bytes of lent memory in the send queue beyond which a connection is not read from: five times what a unix socket takes at
/// once. More cached data would only wait behind them.
const LENT_BYTES: usize = 1 << 20;
/// Least bytes of a large payload that are asked for at once, if the payload has as many: a receive of less costs more than
/// its bytes.
pub const LARGE_PART: usize = 64 << 10;

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Most requests in flight plus unsent replies; known clients keep up fewer than 128.
    pub requests: usize,
    /// Most bytes of buffers in flight; at least the largest request.
    pub buffer_bytes: usize,
    /// Time limit of the handshake.
    pub handshake_ns: u64,
    /// Time limit of a payload or a reply without progress.
    pub stall_ns: u64,
}

/// Phase of a connection.
enum Phase {
    Handshake(Box<Negotiation>),
    Transmission(Transmission),
    /// Nothing is read; ends when everything is answered and sent.
    Leaving,
    /// The socket is closed; buffers may still be in use.
    Dead,
}

/// A handshake in progress, and what decides which exports its client sees.
struct Negotiation {
    handshake: Handshake,
    admission: Admission,
}

/// The export that a connection is bound to, and the class of its requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportBinding {
    /// Volume behind the export.
    pub volume: VolumeId,
    /// Export that the client chose.
    pub export: ExportId,
    /// Device of the volume.
    pub device: DeviceId,
    /// Class of all requests of the connection.
    pub ioprio: Ioprio,
}

struct Transmission {
    parser: RequestParser,
    replies: Replies,
    binding: ExportBinding,
    /// The class was set for this connection, not inherited from its export.
    own_ioprio: bool,
}

/// Outcome of [`Connection::receive`].
#[derive(Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// The socket has no data.
    Idle,
    /// Data were taken or requests submitted; there may be more.
    Worked,
    /// Nothing is read from the client before what a request waits for.
    Waits(WaitsFor),
    /// The client chose an export; the connection moves to its shard.
    Chosen {
        /// Index of the export in the handshake's list.
        export: usize,
        /// Protocol features that were negotiated.
        terms: Negotiated,
    },
    /// Nothing more arrives. The connection ends when it is finished.
    End(ConnectionEnd),
}

/// Reason why a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The client disconnected as the protocol says.
    Goodbye,
    /// The client closed the socket between requests.
    HungUp,
    /// A fault, as a sentence for the log.
    Fault(String),
}

/// A client's connection, from the handshake to its last buffer.
pub struct Connection {
    /// The socket; none when it is closed.
    transport: Option<Transport>,
    /// TLS configuration for STARTTLS; none without TLS or after STARTTLS.
    acceptor: Option<Arc<TlsAcceptor>>,
    id: u32,
    peer: String,
    /// Name of the listener that the client came through.
    listener: Option<Arc<str>>,
    limits: ConnectionLimits,
    phase: Phase,
    form: Replies,
    /// Smallest block of the export in bytes.
    block: u32,
    window: Window,
    outgoing: Outgoing,
    /// Wait times of its requests, from the first one on.
    latency: Option<LatencyTable>,
    /// Export that its requests are counted for.
    export: ExportId,
    /// Bytes of buffers of requests in flight.
    buffer_bytes: usize,
    /// Received bytes that are not parsed yet; at most one receive.
    stash: Vec<u8>,
    /// Time of the last bytes from the client; in the handshake, of the connect.
    last_received: Instant,
    /// What it waits for before anything is read; `Nothing` if it is read from. While it waits the client's time does not count.
    stopped_by: WaitsFor,
    /// Requests that cannot go on, or whose payload has not come.
    waiting: Waiting,
    /// The last write had a large payload.
    large: bool,
    /// The last payload came quickly.
    quick: bool,
    /// Writes of which pieces are in the shard.
    splits: Vec<SplitWrite>,
    /// Number of the last one.
    last_split: u32,
    /// The device does not answer: requests for which there is no room fail at once.
    refuses: bool,
    /// Time at which the client last took output, or at which there was none.
    last_sent: Instant,
    /// The last send found no output.
    was_silent: bool,
    /// The read of dropped data in flight, with its first byte.
    reread: Option<Reread>,
    /// Why the connection cannot continue, as a sentence for the log.
    fault: Option<String>,
    /// The binding of a connection that has left transmission: its dropped data may still have to be read.
    binding_left: Option<ExportBinding>,
    /// Whether the next read is likely to be cached.
    cache_guess: CacheGuess,
    /// Where the connection of another process stopped, until its export is bound.
    resumption: Option<Box<Resumption>>,
}

/// A read of data that were dropped from the send queue.
#[derive(Clone, Copy, Debug)]
struct Reread {
    sequence: u64,
    /// Bytes of the buffer before the dropped data.
    skip: usize,
    /// Bytes of the dropped data.
    len: usize,
}

/// What the requests of a connection may still take of a turn of the shard.
#[derive(Clone, Copy, Debug)]
pub struct TurnShare {
    /// Bios that the shard still takes.
    pub room: u32,
    /// Bytes of large reads.
    pub large_reads: usize,
    /// Bytes of large payloads that are received.
    pub large_payloads: usize,
    /// Bytes of any kind that were received.
    pub received: usize,
}

/// What a connection borrows of its shard while it receives.
pub struct Shares<'a> {
    /// Time of the current turn.
    pub now: Instant,
    /// Receive buffer shared by all connections of the shard; empty between calls.
    pub scratch: &'a mut [u8],
    /// Buffers of the shard.
    pub pool: &'a mut Pool,
    /// What it may take of them.
    pub memory: MemoryShare<'a>,
    /// Reads may be submitted without a buffer: the volume is cached, and frames may be lent.
    pub from_cache: bool,
    /// The connection's volume is frozen: what changes it waits.
    pub frozen: bool,
    /// Limits of the connection's export; none if nothing limits it.
    pub limits: Option<LimitGate<'a>>,
    /// Exports, and which client sees which in its handshake.
    pub exports: &'a dyn ExportDirectory,
    /// Most bytes of an incomplete payload that are kept before a part of it is written.
    pub window: u32,
    /// What is left of the turn.
    pub turn: TurnShare,
    /// Inputs of the shard, to which bios are appended.
    pub inputs: &'a mut Vec<Input>,
}

impl Connection {
    /// Creates the connection of a new client, with its greeting queued.
    #[must_use]
    pub fn new(socket: OwnedFd, peer: String, limits: ConnectionLimits, now: Instant) -> Self {
        let mut connection = Self::without_greeting(socket, peer, limits, now);
        let mut greeting = Vec::new();
        let (handshake, admission) = (Handshake::new(&mut greeting), Admission::new(0));
        connection.phase = Phase::Handshake(Box::new(Negotiation { handshake, admission }));
        connection.outgoing.header(|out| out.extend_from_slice(&greeting));
        connection
    }

    /// A connection that says nothing and reads nothing, until it has a phase.
    fn without_greeting(
        socket: OwnedFd,
        peer: String,
        limits: ConnectionLimits,
        now: Instant,
    ) -> Self {
        Self {
            transport: Some(Transport::plain(socket)),
            acceptor: None,
            id: 0,
            peer,
            listener: None,
            limits,
            phase: Phase::Leaving,
            form: Replies { structured: false },
            block: 1,
            window: Window::new(limits.requests),
            outgoing: Outgoing::new(limits.requests),
            latency: None,
            export: ExportId::default(),
            buffer_bytes: 0,
            stash: Vec::new(),
            last_received: now,
            stopped_by: WaitsFor::Nothing,
            waiting: Waiting::default(),
            large: false,
            quick: true,
            splits: Vec::new(),
            last_split: 0,
            refuses: false,
            last_sent: now,
            was_silent: false,
            reread: None,
            fault: None,
            binding_left: None,
            cache_guess: CacheGuess::default(),
            resumption: None,
        }
    }

    /// Offers or requires TLS. Must be called before anything is received.
    pub fn set_tls_acceptor(&mut self, acceptor: &Arc<TlsAcceptor>) {
        if let Phase::Handshake(negotiation) = &mut self.phase {
            let required = acceptor.is_required();
            negotiation.handshake.offer(if required {
                Encryption::Required
            } else {
                Encryption::Offered
            });
            self.acceptor = Some(Arc::clone(acceptor));
        }
    }

    /// Sets the listener that the client came through, by its number and name. Must be called before anything is received.
    pub fn set_listener(&mut self, number: u16, name: &Arc<str>) {
        self.listener = Some(Arc::clone(name));
        if let Phase::Handshake(negotiation) = &mut self.phase {
            negotiation.admission = Admission::new(number);
        }
    }

    /// Name of the listener that the client came through, as it was then; none if it is not known.
    #[must_use]
    pub fn listener(&self) -> Option<&Arc<str>> {
        self.listener.as_ref()
    }

    /// Number of the listener of a connection in its handshake.
    #[must_use]
    pub fn negotiates_through(&self) -> Option<u16> {
        match &self.phase {
            Phase::Handshake(negotiation) => Some(negotiation.admission.listener()),
            _ => None,
        }
    }

    /// TLS version and cipher; none without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<String> {
        self.transport.as_ref()?.terms()
    }

    /// Whether the TLS handshake is not finished: the next bytes may cost a signature.
    #[must_use]
    pub fn agrees_on_keys(&self) -> bool {
        self.transport.as_ref().is_some_and(Transport::is_handshaking)
    }

    /// Address of the client for the log.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Sets the id that its bios carry.
    pub fn set_id(&mut self, id: u32) {
        self.id = id;
    }

    /// Id that its bios carry.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// File descriptor of the socket; none when it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<RawFd> {
        self.transport.as_ref().map(Transport::fd)
    }

    /// Whether it takes requests, now or later.
    #[must_use]
    pub fn reads(&self) -> bool {
        !matches!(self.phase, Phase::Leaving | Phase::Dead)
    }

    /// Whether the last write had a large payload, so that more are likely.
    #[must_use]
    pub fn brings_large_payloads(&self) -> bool {
        self.large
    }

    /// Ends the handshake: from now on requests for the export are taken.
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
        let mut transmission = Transmission {
            parser: RequestParser::new(export.flags_for(terms), terms),
            replies: self.form,
            binding,
            own_ioprio: false,
        };
        if let Some(mut resumption) = self.resumption.take() {
            transmission.resume(&resumption);
            if let Some(open) = resumption.open.take() {
                self.resume_write(open, now);
            }
        }
        self.phase = Phase::Transmission(transmission);
    }

    /// The export's binding during transmission; none before and after.
    #[must_use]
    pub fn binding(&self) -> Option<ExportBinding> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(transmission.binding),
            _ => None,
        }
    }

    /// Sets a class for this connection alone; false outside of transmission.
    pub fn set_ioprio(&mut self, ioprio: Ioprio) -> bool {
        let Phase::Transmission(transmission) = &mut self.phase else {
            return false;
        };
        (transmission.binding.ioprio, transmission.own_ioprio) = (ioprio, true);
        true
    }

    /// Applies a changed class of an export, unless this connection has its own.
    pub fn follow(&mut self, export: ExportId, ioprio: Ioprio) {
        if let Phase::Transmission(transmission) = &mut self.phase
            && transmission.binding.export == export
            && !transmission.own_ioprio
        {
            transmission.binding.ioprio = ioprio;
        }
    }

    /// Wait times and the export that they are counted for; none before transmission.
    #[must_use]
    pub fn latency(&self) -> Option<(ExportId, &LatencyTable)> {
        self.latency.as_ref().map(|table| (self.export, table))
    }

    /// Counts a completed request.
    #[inline]
    pub fn count(&mut self, answered: &CompletedRequest, wait_times: WaitTimes) {
        if let Some(table) = &mut self.latency {
            table.record_op(answered.op, answered.len, answered.total_ns, wait_times);
        }
    }

    /// Number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.window.used()
    }

    /// Returns the memory of received bytes, all of which are parsed.
    pub fn release_idle_memory(&mut self) {
        if self.stash.is_empty() {
            self.stash = Vec::new();
        }
    }

    /// Sets whether the device does not answer: then requests fail for which there is no room, instead of waiting for it.
    pub fn set_refuses(&mut self, refuses: bool) {
        self.refuses = refuses;
    }

    /// Whether received bytes wait to be parsed.
    #[must_use]
    pub fn has_stash(&self) -> bool {
        !self.stash.is_empty()
    }

    /// Memory of a request in flight.
    #[must_use]
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        let buffer = self.window.get(sequence)?.buffer.as_ref()?;
        // SAFETY: the buffer is put back after the request's last reply, when no span of it is used any more.
        Some(unsafe { buffer.span() })
    }

    /// Takes a reply of the shard, or the return of a buffer; returns the request if this completed it.
    pub fn reply(
        &mut self,
        now: Instant,
        sequence: u64,
        (status, hole, stage): (Status, bool, ReplyStage),
        pool: &mut Pool,
    ) -> Option<CompletedRequest> {
        let dead = matches!(self.phase, Phase::Dead);
        if self.reread.is_some_and(|reread| reread.sequence == sequence) {
            self.on_reread(now, sequence, (status, hole, stage), pool);
            return None;
        }
        if stage == ReplyStage::Early {
            let in_flight = self.window.get(sequence)?;
            in_flight.answered = true;
            let (op, cookie) = (in_flight.op, in_flight.cookie);
            if in_flight.piece {
                let status = status.and(Err(IoError::TimedOut));
                return self.on_piece(now, cookie, status, pool);
            }
            let answered = completed(in_flight, now);
            if !dead {
                self.answer_failure(op, cookie, status.err().unwrap_or(IoError::TimedOut));
            }
            return Some(answered);
        }
        let in_flight = self.window.remove(sequence)?;
        let counted = completed(&in_flight, now);
        let InFlight { op, cookie, offset, len, one_extent, answered, buffer, piece, .. } =
            in_flight;
        let freed = buffer.as_ref().map_or(0, |buffer| buffer.len());
        assert!(self.buffer_bytes >= freed, "buffers in flight are counted");
        self.buffer_bytes -= freed;
        if piece {
            buffer.into_iter().for_each(|buffer| pool.put(buffer));
            return if answered { None } else { self.on_piece(now, cookie, status, pool) };
        }
        let mut buffer = buffer;
        if !dead && !answered {
            match (op, status) {
                (_, Err(error)) => self.answer_failure(op, cookie, error),
                (Op::Read, Ok(())) if hole => self.answer_hole(cookie, offset, len),
                (Op::Read, Ok(())) => {
                    let form = self.form;
                    self.outgoing.header(|out| form.read_data(out, cookie, offset, len));
                    if let Some(buffer) = buffer.take() {
                        self.outgoing.data(buffer, len as usize, offset, now);
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
        if let Some(table) = &mut self.latency {
            table.record_error(op, error);
        }
        let (form, error) = (self.form, NbdError::from(error));
        self.outgoing.header(|out| match op {
            Op::Read | Op::BlockStatus => form.read_error(out, cookie, error),
            _ => form.done(out, cookie, Err(error)),
        });
    }

    /// Sends queued output.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(
        &mut self,
        now: Instant,
        pool: &mut Pool,
        spans: &mut Vec<Span>,
    ) -> io::Result<SendOutcome> {
        let answered = self.window.used() == 0 && self.waiting.again() == 0;
        let leaves = matches!(self.phase, Phase::Leaving) && answered;
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
            // The time limit counts from the first unsent reply.
            self.last_sent = now;
        }
        let before = (self.outgoing.waiting(), transport.progress());
        let sent = self.outgoing.send(transport, pool, spans)?;
        if leaves && self.outgoing.is_empty() {
            // After the last reply, in the same send: no event would follow.
            transport.goodbye();
        }
        let sent = transport.settle(sent)?;
        // The client took everything there was: the next data are late because of the server.
        let took_all = matches!(sent, SendOutcome::All | SendOutcome::Dropped);
        if took_all || (self.outgoing.waiting(), transport.progress()) != before {
            self.last_sent = now;
        }
        Ok(sent)
    }

    /// Bytes that were sent in transmission and before.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.outgoing.total()
    }

    /// Bytes of buffers, and of lent frames, with data to be sent.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.outgoing.held() + self.outgoing.lent().0
    }

    /// Whether output waits to be sent.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.transport.as_ref().is_some_and(Transport::has_unsent)
    }

    /// Stops reading. Requests in flight are still answered; an incomplete payload is dropped.
    pub fn leave(&mut self, pool: &mut Pool) {
        if matches!(self.phase, Phase::Dead) {
            return;
        }
        self.drop_requests(pool);
        self.binding_left = self.last_binding();
        self.stash = Vec::new();
        self.phase = Phase::Leaving;
    }

    /// Closes the socket. Buffers in use stay until the shard returns them.
    pub fn close(&mut self, pool: &mut Pool) {
        self.leave(pool);
        self.outgoing.abandon(pool);
        self.waiting.drain().for_each(drop);
        self.transport = None;
        self.phase = Phase::Dead;
    }

    /// Drops the requests that are not in the shard, returned reads aside.
    fn drop_requests(&mut self, pool: &mut Pool) {
        let dropped: Vec<_> = self.waiting.drop_clients().collect();
        for block in dropped.into_iter().filter_map(|one| one.payload.block) {
            self.return_block(block, pool);
        }
    }

    /// Returns the block of a payload that is dropped.
    fn return_block(&mut self, block: Buffer, pool: &mut Pool) {
        assert!(self.buffer_bytes >= block.len(), "buffers in flight are counted");
        self.buffer_bytes -= block.len();
        pool.put(block);
    }

    /// Whether nothing of the connection is left.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match self.phase {
            Phase::Handshake(_) | Phase::Transmission(_) => false,
            Phase::Leaving => {
                self.window.used() == 0
                    && self.waiting.again() == 0
                    && self.outgoing.is_empty()
                    && self.transport.as_ref().is_none_or(Transport::is_finished)
            }
            Phase::Dead => self.window.used() == 0,
        }
    }

    /// Time at which the connection is closed without progress; none if nothing is expected of the client.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let received = match &self.phase {
            Phase::Dead => return None,
            Phase::Handshake(_) => Some(self.last_received.after(self.limits.handshake_ns)),
            Phase::Transmission(transmission)
                if self.stopped_by == WaitsFor::Nothing
                    && (self.has_payload() || !transmission.parser.is_between_requests()) =>
            {
                Some(self.last_received.after(self.limits.stall_ns))
            }
            _ => None,
        };
        let sent = self.has_outgoing().then(|| self.last_sent.after(self.limits.stall_ns));
        [received, sent].into_iter().flatten().min()
    }

    /// The log message for a connection that passed its deadline.
    #[must_use]
    pub fn timeout_message(&self) -> String {
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
            // A probe of the port connects, sends nothing and closes.
            Phase::Handshake(negotiation) if negotiation.handshake.is_untouched() => {
                ConnectionEnd::HungUp
            }
            Phase::Handshake(_)
                if self.transport.as_ref().is_some_and(Transport::is_handshaking) =>
            {
                ConnectionEnd::Fault("the client disconnected during the TLS handshake".into())
            }
            Phase::Handshake(_) => {
                ConnectionEnd::Fault("the client disconnected during the handshake".into())
            }
            // The line for the log says more.
            Phase::Transmission(_) if self.torn_write().is_some() => ConnectionEnd::HungUp,
            Phase::Transmission(transmission)
                if self.has_payload() || !transmission.parser.is_between_requests() =>
            {
                ConnectionEnd::Fault("the client disconnected in the middle of a request".into())
            }
            _ => ConnectionEnd::HungUp,
        }
    }
}

/// Describes a request of the window that is answered at `now`.
#[inline]
fn completed(request: &InFlight, now: Instant) -> CompletedRequest {
    let InFlight { op, offset, len, since, front, .. } = *request;
    CompletedRequest { op, offset, len, total_ns: now.since(since), front }
}

/// The extents that a device wrote into the buffer of a block status.
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
