//! One vhost-user device: a client of a shard whose requests come by rings in memory of a virtual machine, and whose answers go there.
//!
//! ```text
//!   rings --take--> request --admission--> bio of the shard --answer--> status, used entry --publish, once a turn--> the machine
//!                      `-- waits: window, limit, freeze, bio slot, turn, buffer; behind it nothing is taken
//! ```
//!
//! The rings, their memory and the configuration space are `headworks_vhost`'s; the session with the front end is a thread's
//! (`front_end`). Here a device is what a connection is: it has a window, waiting requests, limits, shares of the pool, tables. All of
//! its queues are one flow.
//!
//! Data are used where they are: devices and the cache read and write guest memory, piece by piece. Data of which a piece begins or ends
//! at no multiple of the volume's block go by a buffer of the pool; so do those of several pieces where the device belongs to another shard,
//! which is sent one span.
//!
//! A request is answered when its memory is free, never earlier: the machine may use the memory again at once. So a request that takes
//! too long is answered with an error when its device has given it back.
//!
//! Invariants: each head that was taken is answered once, or its ring has ended; guest memory is mapped until no bio uses it: the client
//! keeps its slot, and the device its memory, until then.

mod admission;
pub mod front_end;
pub mod line;
mod watch;

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use headworks_core::limits::{LimitDirection, LimitedIo};
use headworks_core::{
    BioId, ExportId, Instant, IoError, Ioprio, Op, ReplyStage, Status, WaitTimes,
};

use crate::export_range::ExportRange;
use crate::latency::LatencyTable;
use crate::latency::errors::ErrorReply;
use crate::messages::in_flight::Unanswered;
use crate::nbd::connection::session::Session;
use crate::nbd::connection::unanswered::{each_unanswered, oldest_request_ns};
use crate::nbd::connection::{ConnectionLimits, ExportBinding, ReceiveOutcome, Shares};
use headworks::driver::Span;
use headworks::house::Pool;
use headworks_front::WaitsFor;
use headworks_front::intake::Intake;
use headworks_front::memory::{MemoryLimits, Wants};
use headworks_front::window::{CompletedRequest, InFlight};
use headworks_nbd::{ExportInfo, Negotiated};
use headworks_vhost::{Device, Disk, Order, Outcome, Request, Ticket};
use line::{News, NewsSender};
use watch::Kicks;

/// Requests of a device in the shard: more than one connection has, since a device is all connections that its machine would have.
const REQUESTS_MIN: usize = 256;

/// A vhost-user device, from the first message of its front end to its last buffer.
pub struct RingClient {
    session: Session,
    intake: Intake,
    device: Device,
    /// What the machine sees of the export.
    disk: Disk,
    /// The device of the export belongs to this shard.
    is_local: bool,
    kicks: Kicks,
    /// The way to the thread of its front end.
    line: NewsSender,
    /// Requests that were taken from the rings, the next one last.
    taken: Vec<Request>,
    /// Bios of which the shard has said that they take too long.
    late: Vec<u64>,
    /// Why one of its rings has ended, for the log.
    complaint: Option<String>,
}

impl RingClient {
    /// A device of the front end behind `line`, which has no rings yet.
    pub fn new(
        disk: Disk,
        (peer, listener): (String, Arc<str>),
        limits: ConnectionLimits,
        line: NewsSender,
    ) -> std::io::Result<Self> {
        let requests = limits.requests.max(REQUESTS_MIN);
        let mut session = Session::new(peer, ConnectionLimits { requests, ..limits });
        session.set_listener(listener);
        Ok(Self {
            session,
            intake: Intake::default(),
            device: Device::new(disk),
            disk,
            is_local: false,
            kicks: Kicks::new()?,
            line,
            taken: Vec::with_capacity(requests),
            late: Vec::new(),
            complaint: None,
        })
    }

    /// Binds it to its export, whose device may belong to this shard: from now on requests are taken.
    pub fn begin(&mut self, binding: ExportBinding, info: &ExportInfo, is_local: bool) {
        self.is_local = is_local;
        let terms = Negotiated::default();
        let before = self.session.begin(binding, info, terms);
        debug_assert!(before.is_none(), "a device begins anew in each process");
    }

    /// Sets the id that its bios carry.
    pub fn set_id(&mut self, id: u32) {
        self.session.set_id(id);
    }

    /// Id that its bios carry.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u32 {
        self.session.id()
    }

    /// Its front end, for the log.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.session.peer()
    }

    /// Name of the listener that its front end came through.
    #[must_use]
    pub fn listener(&self) -> Option<&Arc<str>> {
        self.session.listener()
    }

    /// What is ready when the machine has kicked a ring; none when it has left.
    #[must_use]
    pub fn socket(&self) -> Option<RawFd> {
        (!self.session.is_dead()).then(|| self.kicks.fd())
    }

    /// The export's binding while requests are taken; none afterwards.
    #[inline]
    #[must_use]
    pub fn binding(&self) -> Option<ExportBinding> {
        self.session.binding()
    }

    /// The export that its requests are counted for.
    #[must_use]
    pub fn export_of_requests(&self) -> ExportId {
        self.session.export()
    }

    /// Sets a class for this device alone; false if it takes no requests.
    pub fn set_ioprio(&mut self, ioprio: Ioprio) -> bool {
        self.session.set_ioprio(ioprio)
    }

    /// Applies a changed class of an export, unless this device has its own.
    pub fn follow(&mut self, export: ExportId, ioprio: Ioprio) {
        self.session.follow(export, ioprio);
    }

    /// Wait times and the export that they are counted for.
    #[must_use]
    pub fn latency(&self) -> Option<(ExportId, &LatencyTable)> {
        self.session.latency().map(|table| (self.session.export(), table))
    }

    /// Counts a completed request.
    #[inline]
    pub fn count(&mut self, answered: &CompletedRequest, wait_times: WaitTimes) {
        self.session.count(answered, wait_times);
    }

    /// Number of bios in flight.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.session.window().used()
    }

    /// Number of bios in flight that change the volume.
    #[must_use]
    pub fn writes_in_flight(&self) -> usize {
        self.session.writes_in_flight()
    }

    /// Nanoseconds since its oldest request came that is not answered.
    #[must_use]
    pub fn oldest_request_ns(&self, now: Instant) -> Option<u64> {
        oldest_request_ns((&self.intake, &self.session), now)
    }

    /// Tells `each` the requests that are not answered, and the bio of those that are in the shard.
    pub fn each_unanswered(&self, now: Instant, each: impl FnMut(Unanswered, Option<BioId>)) {
        each_unanswered((&self.intake, &self.session), now, each);
    }

    /// Bytes of the pool in use.
    #[inline]
    #[must_use]
    pub fn held(&self) -> usize {
        self.intake.block_bytes()
    }

    /// The same: there are no unread replies.
    #[inline]
    #[must_use]
    pub fn request_bytes(&self) -> usize {
        self.intake.block_bytes()
    }

    /// Whether it takes requests, now or later.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.session.reads()
    }

    // What it brings.

    /// Takes requests from its rings and submits them.
    #[inline]
    pub fn receive(&mut self, shares: &mut Shares<'_>) -> ReceiveOutcome {
        admission::receive(self, shares)
    }

    /// Submits what was taken from its rings, as far as nothing concerns it; false if something must wait.
    pub fn resubmit(&mut self, shares: &mut Shares<'_>) -> bool {
        admission::resubmit(self, shares)
    }

    /// What it waits for before anything is taken from its rings.
    #[inline]
    #[must_use]
    pub fn stopped_by(&self) -> WaitsFor {
        self.intake.stopped_by()
    }

    /// Whether a request of it waits for something, or the device does.
    #[must_use]
    pub fn waits_for(&self, what: WaitsFor) -> bool {
        self.intake.waits_for(what)
    }

    /// Whether requests wait to be submitted.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.intake.waiting().is_empty()
    }

    /// Whether its window has room again.
    #[inline]
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.intake.stopped_by() == WaitsFor::Window && admission::has_window_room(self)
    }

    /// What it waits for, if that is a buffer or a bio slot.
    #[must_use]
    pub fn wants(&self, limits: &MemoryLimits) -> Wants {
        self.intake.wants(limits)
    }

    /// Number of requests that wait for a buffer.
    #[must_use]
    pub fn buffer_waits(&self) -> usize {
        self.intake.buffer_waits()
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

    // What the shard answers.

    /// Memory of a bio in flight: its block of the pool, or the first piece of guest memory, which is the only one of a bio that is sent to
    /// another shard.
    #[inline]
    #[must_use]
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        let (len, mut first) = (self.session.window_mut().get(sequence)?.len, None);
        self.pieces(sequence, (0, len), |piece| {
            first.get_or_insert(piece);
        });
        first
    }

    /// Memory of a part of a bio in flight: of its block of the pool, or pieces of guest memory.
    #[inline]
    pub fn pieces(&mut self, sequence: u64, (offset, len): (u32, u32), mut each: impl FnMut(Span)) {
        let Self { session, device, .. } = self;
        let Some(in_flight) = session.window_mut().get(sequence) else { return };
        match &in_flight.buffer {
            // SAFETY: the block is put back after the bio's last reply, when no span of it is used any more.
            Some(block) => each(unsafe { block.span() }.part(offset as usize, len as usize)),
            None => {
                let ticket = ticket_of(in_flight.cookie);
                device.pieces(ticket, offset, len, |piece| each(span_of(piece)));
            }
        }
    }

    /// Takes a reply of the shard, or the return of a buffer; returns the request if this completed it. What took too long is answered
    /// when its memory is free.
    pub fn reply(
        &mut self,
        now: Instant,
        sequence: u64,
        (status, _, stage): (Status, bool, ReplyStage),
        pool: &mut Pool,
    ) -> Option<CompletedRequest> {
        if stage == ReplyStage::Early {
            self.late.push(sequence);
            return None;
        }
        let in_flight = self.session.take(sequence)?;
        let is_late = |late: &u64| *late == sequence;
        let status = match self.late.iter().position(is_late) {
            Some(at) => {
                self.late.swap_remove(at);
                status.and(Err(IoError::TimedOut))
            }
            None => status,
        };
        let (ticket, counted) = (ticket_of(in_flight.cookie), in_flight.completed(now));
        let InFlight { op, offset, len, buffer, .. } = in_flight;
        if let Some(block) = buffer {
            if op == Op::Read && status.is_ok() {
                // SAFETY: the block is ours alone again.
                self.scatter(ticket, unsafe { block.span() }, len as usize);
            }
            self.intake.discharge(block.len());
            pool.put(block);
        }
        if let Err(error) = status {
            let connection = self.session.id();
            self.session.count_error(ErrorReply { at: now, op, offset, connection, error });
        }
        self.complete(ticket, status);
        Some(counted)
    }

    fn complete(&mut self, ticket: Ticket, status: Status) {
        let outcome = match status {
            Ok(()) => Outcome::Done,
            Err(IoError::Unsupported) => Outcome::Unsupported,
            Err(_) => Outcome::Failed,
        };
        self.device.complete(ticket, outcome);
    }

    /// Copies a request's data from guest memory to `to`.
    fn gather(&mut self, ticket: Ticket, to: Span, len: usize) {
        let mut at = 0;
        self.device.pieces(ticket, 0, len as u32, |piece| {
            let part = to.part(at, piece.len());
            // SAFETY: guest memory is mapped while the request is in flight; the block is ours alone. The machine may change its bytes
            // meanwhile: then a mix of them is written, which is its own fault.
            unsafe { part.base().copy_from_nonoverlapping(piece.base(), piece.len()) };
            at += piece.len();
        });
    }

    /// Copies `from` to a request's guest memory.
    fn scatter(&mut self, ticket: Ticket, from: Span, len: usize) {
        let mut at = 0;
        self.device.pieces(ticket, 0, len as u32, |piece| {
            let part = from.part(at, piece.len());
            // SAFETY: as in `gather`.
            unsafe { piece.base().copy_from_nonoverlapping(part.base(), piece.len()) };
            at += piece.len();
        });
    }

    // Its rings.

    /// The next request that was taken from its rings, or with `looks` is taken now.
    fn next_request(&mut self, looks: bool) -> Option<Request> {
        if looks && self.taken.is_empty() {
            let begun = self.session.window().used() + self.intake.waiting().len();
            let room = self.session.bounds().requests.saturating_sub(begun);
            self.device.take(room, &mut self.taken);
            self.taken.reverse();
            self.note_broken();
        }
        self.taken.pop()
    }

    /// Whether there is something to make known: answers, some perhaps of requests that needed nothing of the shard, or that a ring ended.
    fn has_answers(&self) -> bool {
        self.device.has_answers() || self.complaint.is_some()
    }

    /// Whether the data of a request are used where they are: pieces of whole blocks, and only one if the device is another shard's.
    fn is_direct(&self, cookie: u64, len: usize) -> bool {
        let (mut count, mut ends) = (0, 0);
        self.device.pieces(ticket_of(cookie), 0, len as u32, |piece| {
            count += 1;
            ends |= piece.base().addr() | piece.len();
        });
        ends.is_multiple_of(self.disk.block_size as usize) && (count == 1 || self.is_local)
    }

    /// Shows the machine the answers of this turn, and its front end what it waits for.
    pub fn publish(&mut self) {
        self.device.publish();
        self.note_broken();
        if let Some(answer) = self.device.next_answer() {
            self.watch_rings();
            self.line.send(News::Answer(answer));
        }
    }

    /// A ring has ended, or all have: the log is told in this turn.
    fn note_broken(&mut self) {
        if let Some(broken) = self.device.next_broken() {
            self.complaint = Some(match broken.queue {
                Some(queue) => format!("ring {queue} has ended until a reset: {}", broken.why),
                None => format!("its rings have ended until a reset: {}", broken.why),
            });
        }
    }

    /// Why a ring has ended, once, as a sentence for the log.
    pub fn take_complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// Before a sleep: asks for kicks; whether requests have come meanwhile, or a ring can only be looked at.
    pub fn arm(&mut self) -> bool {
        self.session.reads()
            && (!self.taken.is_empty() || self.device.arm() || self.device.must_poll())
    }

    /// The machine has kicked a ring.
    pub fn on_kick(&mut self) {
        self.kicks.take();
    }

    /// Carries out an order of its front end, whose answer comes with `publish`.
    pub fn on_order(&mut self, order: Order) {
        self.device.on_order(order);
        self.watch_rings();
    }

    /// Watches the kicks of the rings that take requests.
    fn watch_rings(&mut self) {
        let Self { device, kicks, complaint, .. } = self;
        // SAFETY: the ring has the descriptor open as long as it is among these.
        let all = device.kicks().map(|(ring, fd)| (ring, unsafe { BorrowedFd::borrow_raw(fd) }));
        if let Err(error) = kicks.set_all(all) {
            *complaint = Some(format!("a ring's kicks cannot be watched: {error}"));
        }
    }

    /// The volume of the export has another size.
    pub fn resize(&mut self, volume: u64) {
        let range = self.session.last_binding().map_or_else(ExportRange::default, |it| it.range);
        self.disk.size = range.size(volume);
        self.device.set_disk(self.disk);
        self.line.send(News::Disk(self.disk));
    }

    // How it ends.

    /// Takes nothing more from its rings. What was taken is still answered.
    pub fn leave(&mut self, _: &mut Pool) {
        if self.session.leave() {
            self.device.close();
            self.watch_rings();
        }
    }

    /// Its front end has left, or it is given up: what waits is dropped, and stays with the machine. Memory in use stays until the shard
    /// returns it.
    pub fn close(&mut self, pool: &mut Pool) {
        self.leave(pool);
        self.intake.waiting_mut().drain().for_each(drop);
        self.taken.clear();
        self.session.die();
    }

    /// Whether requests of it wait for something that may not come.
    #[must_use]
    pub fn has_left_over(&self) -> bool {
        self.has_waiting() || !self.taken.is_empty()
    }

    /// Whether nothing of it is left.
    #[inline]
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.session.reads() && self.is_at_rest()
    }

    /// Whether nothing of it is in the shard, and its machine knows all answers.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.in_flight() == 0 && !self.has_left_over() && !self.device.has_answers()
    }

    /// It has left its slot: it ends on the thread of its front end, which unmaps its memory.
    pub fn retire(self: Box<Self>) {
        let line = self.line.clone();
        line.send(News::Ended(self));
    }
}

/// The name of a request in its rings, which is the cookie of its bio.
fn ticket_of(cookie: u64) -> Ticket {
    Ticket::from_bits(cookie as u32)
}

/// Guest memory in the terms of the path.
fn span_of(piece: headworks_vhost::Span) -> Span {
    // SAFETY: the piece is mapped, and stays where it is, until its request completes. The machine may change its bytes at any time, which
    // no code of the path takes for anything but data.
    unsafe { Span::new(piece.base(), piece.len()) }
}

impl std::fmt::Debug for RingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingClient").field("id", &self.id()).field("peer", &self.peer()).finish()
    }
}
