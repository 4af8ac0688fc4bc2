//! One client's connection: turns received bytes into bios, and replies of the shard into sent bytes.
//!
//! It has three parts, each with private fields and methods of its own. What needs two of them, or all, is a function with these as
//! arguments; so each function says what it may change.
//!
//! ```text
//!   Wire     bytes in and out, and their clocks                  headworks_front::wire
//!   Intake   what has arrived and is not in the shard            headworks_front::intake
//!   Session  who the client is, and what is in the shard         `session`
//!
//!   receive: Wire --bytes--> handshake | parser --header--> admission --> Session --> bio of the shard
//!   replies: answer of the shard --> Session --> Wire             `bounds`: what all three have together
//! ```
//!
//! Payloads are received into private buffers and become bios when they are complete, or a part of them of 1 MiB is ([`payload`]).
//! Requests in flight, buffer bytes and unsent replies are bounded, and a
//! connection at a bound is not read from. A turn takes at most `TURN_BIOS` requests or `TURN_BYTES` copied bytes
//! from one connection.
//!
//! Invariant: a buffer that the shard may still use stays with the connection until `Final` or `Released`, even when
//! the connection is closed.

pub(crate) mod admission;
#[cfg(test)]
pub(crate) mod bench;
mod bounds;
#[cfg(test)]
mod freeze_tests;
mod from_cache;
mod hand_over;
mod handshake;
#[cfg(test)]
mod limited_tests;
mod payload;
#[cfg(test)]
mod payload_tests;
mod receive;
#[cfg(test)]
mod receive_tests;
mod replies;
mod reread;
pub(crate) mod session;
#[cfg(test)]
mod tls_tests;
pub(crate) mod unanswered;

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use headworks_core::limits::{LimitDirection, LimitedIo};
use headworks_core::{ExportId, Input, Instant, Ioprio, ReplyStage, Status, WaitTimes};

use super::transport::Transport;
use crate::exports::access::{Admission, ExportDirectory};
use crate::observe::latency::LatencyTable;
use headworks::driver::Span;
use headworks_front::intake::{Intake, PayloadCounts};
use headworks_front::memory::{KeptPayload, MemoryLimits, MemoryShare, Wants};
use headworks_front::outgoing::SendOutcome;
use headworks_front::window::CompletedRequest;
use headworks_front::{FrontRequest, WaitsFor};
use headworks_house::{Buffer, Pool};
use headworks_nbd::handshake::{Encryption, Handshake};
use headworks_nbd::tls::TlsAcceptor;
use headworks_nbd::transmission::RequestParser;
use headworks_nbd::{ExportInfo, Negotiated};

pub use hand_over::HandedConnection;
pub use headworks_core::limits::LimitGate;
pub use headworks_front::intake::OpenWrite;
pub use session::ExportBinding;
use session::{Negotiation, Session};

/// The wire of a client of the server.
type Wire = headworks_front::wire::Wire<Transport>;

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
    wire: Wire,
    intake: Intake,
    session: Session,
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
        connection.session.negotiate(Negotiation { handshake, admission, acceptor: None });
        connection.wire.outgoing_mut().header(|out| out.extend_from_slice(&greeting));
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
            wire: Wire::new(Transport::plain(socket), limits.requests, now),
            intake: Intake::default(),
            session: Session::new(peer, limits),
        }
    }

    /// Goes on with a connection of another process; [`Connection::begin`] follows.
    #[must_use]
    pub fn adopt(handed: HandedConnection, limits: ConnectionLimits, now: Instant) -> Self {
        hand_over::adopt(handed, limits, now)
    }

    /// Offers or requires TLS. Must be called before anything is received.
    pub fn set_tls_acceptor(&mut self, acceptor: &Arc<TlsAcceptor>) {
        if let Some(negotiation) = self.session.negotiation_mut() {
            let required = acceptor.is_required();
            negotiation.handshake.offer(if required {
                Encryption::Required
            } else {
                Encryption::Offered
            });
            negotiation.acceptor = Some(Arc::clone(acceptor));
        }
    }

    /// Sets the listener that the client came through, by its number and name. Must be called before anything is received.
    pub fn set_listener(&mut self, number: u16, name: &Arc<str>) {
        self.session.set_listener(Arc::clone(name));
        if let Some(negotiation) = self.session.negotiation_mut() {
            negotiation.admission = Admission::new(number);
        }
    }

    /// Name of the listener that the client came through, as it was then; none if it is not known.
    #[must_use]
    pub fn listener(&self) -> Option<&Arc<str>> {
        self.session.listener()
    }

    /// Number of the listener of a connection in its handshake.
    #[must_use]
    pub fn negotiates_through(&self) -> Option<u16> {
        self.session.negotiation().map(|negotiation| negotiation.admission.listener())
    }

    /// TLS version and cipher; none without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<String> {
        self.wire.transport()?.terms()
    }

    /// Whether the socket is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.wire.transport().is_some_and(Transport::is_encrypted)
    }

    /// Whether the TLS handshake is not finished: the next bytes may cost a signature.
    #[must_use]
    pub fn agrees_on_keys(&self) -> bool {
        self.wire.transport().is_some_and(Transport::is_handshaking)
    }

    /// Address of the client for the log.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.session.peer()
    }

    /// Sets the id that its bios carry.
    pub fn set_id(&mut self, id: u32) {
        self.session.set_id(id);
    }

    /// Id that its bios carry.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.session.id()
    }

    /// File descriptor of the socket; none when it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<RawFd> {
        self.wire.transport().map(Transport::fd)
    }

    /// Whether the client has closed its socket, or its half of it: no more requests come.
    #[must_use]
    pub fn client_has_left(&self) -> bool {
        self.wire.transport().is_some_and(Transport::peer_has_closed)
    }

    /// Whether it takes requests, now or later.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.session.reads()
    }

    /// Ends the handshake: from now on requests for the export are taken.
    pub fn begin(
        &mut self,
        now: Instant,
        binding: ExportBinding,
        export: &ExportInfo,
        terms: Negotiated,
    ) {
        let Self { wire, intake, session } = self;
        wire.restart_clocks(now);
        let mut parser = RequestParser::new(export.flags_for(terms), terms);
        if let Some(mut resumption) = session.begin(binding, export, terms) {
            match resumption.skip {
                // All of the payload has come: nothing follows that would have the parser report it.
                Some((0, refusal)) => {
                    let form = session.form();
                    wire.outgoing_mut().header(|out| form.refused(out, refusal));
                }
                Some((bytes, refusal)) => parser.skip(bytes, refusal),
                None => {}
            }
            if let Some(open) = resumption.open.take() {
                intake.resume(open, session.block(), now);
            }
        }
        intake.begin(parser);
    }

    /// The export's binding during transmission; none before and after.
    #[must_use]
    pub fn binding(&self) -> Option<ExportBinding> {
        self.session.binding()
    }

    /// The export that its requests are counted for.
    #[must_use]
    pub fn export_of_requests(&self) -> ExportId {
        self.session.export()
    }

    /// Sets a class for this connection alone; false outside of transmission.
    pub fn set_ioprio(&mut self, ioprio: Ioprio) -> bool {
        self.session.set_ioprio(ioprio)
    }

    /// Applies a changed class of an export, unless this connection has its own.
    pub fn follow(&mut self, export: ExportId, ioprio: Ioprio) {
        self.session.follow(export, ioprio);
    }

    /// Wait times and the export that they are counted for; none before transmission.
    #[must_use]
    pub fn latency(&self) -> Option<(ExportId, &LatencyTable)> {
        self.session.latency().map(|table| (self.session.export(), table))
    }

    /// Counts a completed request.
    #[inline]
    pub fn count(&mut self, answered: &CompletedRequest, wait_times: WaitTimes) {
        self.session.count(answered, wait_times);
    }

    /// Number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.session.window().used()
    }

    /// Number of requests in flight that change the volume, answered ones included that the device has not ended.
    #[must_use]
    pub fn writes_in_flight(&self) -> usize {
        self.session.writes_in_flight()
    }

    /// Bytes of the pool in use: for requests, and for unread replies.
    #[must_use]
    pub fn held(&self) -> usize {
        self.intake.block_bytes() + self.wire.held()
    }

    /// Bytes of the pool in use for requests without an answer.
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.intake.block_bytes()
    }

    /// Received bytes that wait to be parsed.
    #[must_use]
    pub fn stashed(&self) -> usize {
        self.wire.stash().len()
    }

    /// Returns the memory of received bytes, all of which are parsed.
    pub fn release_idle_memory(&mut self) {
        self.wire.release_idle_memory();
    }

    // What is received.

    /// Receives once and submits bios for complete requests.
    pub fn receive(&mut self, shares: &mut Shares<'_>) -> ReceiveOutcome {
        receive::receive(self, shares)
    }

    /// Submits returned reads again; false if one must wait. Nothing is received.
    pub fn resubmit(&mut self, shares: &mut Shares<'_>) -> bool {
        receive::resubmit(self, shares)
    }

    /// Submits what has passed its limits before the connection leaves; what must wait is dropped.
    pub fn submit_before_leaving(&mut self, shares: &mut Shares<'_>) {
        receive::submit_before_leaving(self, shares);
    }

    /// Sets whether the device does not answer: then requests fail for which there is no room, instead of waiting for it.
    pub fn set_refuses(&mut self, refuses: bool) {
        self.intake.set_refuses(refuses);
    }

    /// Whether the last write had a large payload, so that more are likely.
    #[must_use]
    pub fn brings_large_payloads(&self) -> bool {
        self.intake.brings_large_payloads()
    }

    /// What it waits for before anything is read from the client; `Nothing` if it is read from.
    #[must_use]
    pub fn stopped_by(&self) -> WaitsFor {
        self.intake.stopped_by()
    }

    /// Whether a request of it waits for something, or the connection does.
    #[must_use]
    pub fn waits_for(&self, what: WaitsFor) -> bool {
        self.intake.waits_for(what)
    }

    /// The requests that wait to be submitted, in their order.
    pub fn waiting(&self) -> impl Iterator<Item = &FrontRequest> {
        self.intake.waiting().all()
    }

    /// The client's name for a request in flight.
    pub fn cookie_of(&mut self, sequence: u64) -> Option<u64> {
        self.session.window_mut().get(sequence).map(|in_flight| in_flight.cookie)
    }

    /// Whether requests wait to be submitted.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.intake.waiting().is_empty()
    }

    /// Whether reads that the cache returned wait to be submitted again.
    #[must_use]
    pub fn has_returned(&self) -> bool {
        self.intake.waiting().again() > 0
    }

    /// Whether what stops the connection is gone: a reply was sent, or a request answered.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        let Self { wire, intake, session } = self;
        intake.stopped_by() != WaitsFor::Nothing && bounds::goes_on(wire, intake, session)
    }

    /// What the connection waits for, if it waits for a buffer or a bio slot.
    #[must_use]
    pub fn wants(&self, limits: &MemoryLimits) -> Wants {
        self.intake.wants(limits)
    }

    /// Number of requests that wait for a buffer.
    #[must_use]
    pub fn buffer_waits(&self) -> usize {
        self.intake.buffer_waits()
    }

    /// Takes the counts of payloads that were written early or cut.
    #[inline]
    pub fn take_payload_counts(&mut self) -> PayloadCounts {
        self.intake.take_counts()
    }

    /// Number of requests that wait for limits, or have just passed them.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.intake.parked()
    }

    /// Lets the first request of a direction pass; returns what limits know of the one behind it.
    pub fn pass(&mut self, direction: LimitDirection) -> Option<LimitedIo> {
        self.intake.pass(direction)
    }

    /// Lets all requests pass: their export knows no limits any more.
    pub fn pass_all(&mut self) {
        self.intake.pass_all();
    }

    /// Whether the client is to send more of a payload, whose block has room.
    #[must_use]
    pub fn awaits_payload(&self) -> bool {
        self.intake.awaits_payload()
    }

    /// Whether a payload has begun and the client is to send more of it.
    #[must_use]
    pub fn has_incomplete_payload(&self) -> bool {
        self.intake.has_incomplete_payload()
    }

    /// Whether it can do nothing before its socket is ready: no payload has begun, and nothing that was received is left to be tried.
    #[must_use]
    pub fn rests(&self) -> bool {
        !self.wire.has_stash() && !self.intake.can_step() && !self.has_incomplete_payload()
    }

    /// The payload that the shard does not have yet, and what it keeps.
    #[must_use]
    pub fn kept_payload(&self) -> Option<KeptPayload> {
        self.intake.kept_payload(self.session.export())
    }

    /// Whether a payload keeps more than a window.
    #[must_use]
    pub fn is_beyond(&self, window: u32) -> bool {
        self.intake.is_beyond(window, payload::part_align(&self.session))
    }

    /// Returns the part of an incomplete payload's block in which nothing has come. The next receive claims it again.
    pub fn cut_payload(&mut self, pool: &mut Pool) {
        self.intake.cut_payload(pool);
    }

    /// What a write that ends here without a reply has changed, as a sentence for the log, once; none if no piece of one was given.
    pub fn take_torn_write(&mut self) -> Option<String> {
        self.intake.take_torn_write()
    }

    // What the shard answers.

    /// Memory of a request in flight.
    #[must_use]
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        self.session.buffer(sequence)
    }

    /// Takes a reply of the shard, or the return of a buffer; returns the request if this completed it.
    pub fn reply(
        &mut self,
        now: Instant,
        sequence: u64,
        (status, hole, stage): (Status, bool, ReplyStage),
        pool: &mut Pool,
    ) -> Option<CompletedRequest> {
        replies::reply(self, now, sequence, (status, hole, stage), pool)
    }

    /// Queues the reply to a read without a buffer, whose data are in `frames`; returns the request.
    ///
    /// The frames are sent from where they are until [`Connection::keep_lent`] is called for them.
    pub fn reply_frames(
        &mut self,
        now: Instant,
        sequence: u64,
        frames: &[Span],
    ) -> Option<CompletedRequest> {
        from_cache::reply_frames(self, now, sequence, frames)
    }

    /// Takes back a read that the cache cannot answer: it needs a buffer.
    pub fn needs_buffer(&mut self, now: Instant, returned: (u64, WaitTimes)) {
        from_cache::needs_buffer(&mut self.intake, &mut self.session, now, returned);
    }

    // What is sent.

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
        let leaves = self.session.is_leaving() && self.has_answered_all();
        self.wire.send(now, leaves, pool, spans)
    }

    /// Whether no request is in the shard, or was returned by it.
    fn has_answered_all(&self) -> bool {
        self.session.window().used() == 0 && self.intake.waiting().again() == 0
    }

    /// Bytes that were sent in transmission and before.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.wire.outgoing().total()
    }

    /// Bytes of buffers, and of lent frames, with data to be sent.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.wire.unsent()
    }

    /// Whether output waits to be sent.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        self.wire.has_outgoing()
    }

    /// Whether the client leaves data of replies unread.
    #[must_use]
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.wire.outgoing().is_stalled(now)
    }

    /// Bytes of buffers that [`Connection::drop_data`] can return.
    #[must_use]
    pub fn droppable(&self, now: Instant) -> usize {
        self.wire.outgoing().droppable(now)
    }

    /// Time of the oldest unsent data.
    #[must_use]
    pub fn oldest_data(&self) -> Option<Instant> {
        self.wire.outgoing().oldest_data()
    }

    /// Drops old unsent data of at least `wanted` bytes, if there are as many. Returns the bytes of the buffers and the
    /// number of replies.
    pub fn drop_data(&mut self, now: Instant, wanted: usize, pool: &mut Pool) -> (usize, usize) {
        self.wire.outgoing_mut().drop_data(now, wanted, pool)
    }

    /// The socket takes more: the next turn reads dropped data again. False if a read in flight or room in the window comes first, whose
    /// completion leads here again, or if that read waits already.
    pub fn note_dropped_next(&mut self) -> bool {
        let Self { wire, intake, session } = self;
        reread::note_dropped_next(wire, intake, session)
    }

    /// Number of lent pieces in the send queue.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.wire.outgoing().lent().1
    }

    /// The frames that are lent to it.
    pub fn lent_frames(&self) -> impl Iterator<Item = Span> {
        self.wire.outgoing().lent_frames()
    }

    /// Makes unsent data independent of frames that are about to change. `take` gives a buffer, or none, for a connection that holds
    /// as many bytes as its first argument, and data of the length of its second.
    pub fn keep_lent(
        &mut self,
        changing: Span,
        now: Instant,
        mut take: impl FnMut(usize, usize) -> Option<Buffer>,
    ) {
        let requests = self.intake.block_bytes();
        let outgoing = self.wire.outgoing_mut();
        outgoing.keep_lent(changing, now, |unsent, len| take(requests + unsent, len));
    }

    // How it ends.

    /// Stops reading. Requests in flight are still answered; an incomplete payload is dropped.
    pub fn leave(&mut self, pool: &mut Pool) {
        if self.session.leave() {
            self.intake.end(pool);
            self.wire.drop_stash();
        }
    }

    /// Closes the socket. Buffers in use stay until the shard returns them.
    pub fn close(&mut self, pool: &mut Pool) {
        self.leave(pool);
        self.wire.close(pool);
        self.intake.waiting_mut().drain().for_each(drop);
        self.session.die();
    }

    /// Removes and returns the reason why the connection cannot continue.
    pub fn take_fault(&mut self) -> Option<String> {
        self.session.take_fault()
    }

    /// Whether nothing of the connection is left.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        if self.session.is_dead() {
            return self.session.window().used() == 0;
        }
        self.session.is_leaving() && self.has_answered_all() && self.wire.has_sent_all()
    }

    /// Time at which the connection is closed without progress; none if nothing is expected of the client.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let Self { wire, intake, session } = self;
        if session.is_dead() {
            return None;
        }
        let ConnectionLimits { handshake_ns, stall_ns, .. } = *session.bounds();
        let is_expected = || {
            session.binding().is_some()
                && intake.stopped_by() == WaitsFor::Nothing
                && intake.is_in_request()
        };
        let heard = match session.is_negotiating() {
            true => Some(wire.heard().after(handshake_ns)),
            false => is_expected().then(|| wire.heard().after(stall_ns)),
        };
        [heard, wire.send_deadline(stall_ns)].into_iter().flatten().min()
    }

    /// The log message for a connection that passed its deadline.
    #[must_use]
    pub fn timeout_message(&self) -> String {
        let seconds = |ns: u64| ns / 1_000_000_000;
        let ConnectionLimits { handshake_ns, stall_ns, .. } = *self.session.bounds();
        let stall = seconds(stall_ns);
        if self.session.is_negotiating() {
            format!("the handshake took longer than {} s", seconds(handshake_ns))
        } else if self.has_outgoing() {
            format!("the client read no reply for {stall} s")
        } else {
            format!("an incomplete request made no progress for {stall} s")
        }
    }

    /// Whether nothing of the connection is in the shard.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.has_answered_all() && self.session.reread().is_none() && self.intake.can_move()
    }

    /// What another process needs to go on with this connection; none if it cannot move: it is encrypted, or not in transmission.
    ///
    /// # Panics
    /// If a request is in flight.
    #[must_use]
    pub fn hand_over(&self) -> Option<HandedConnection> {
        hand_over::hand_over(self)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.id()).field("peer", &self.peer()).finish()
    }
}
