//! One vhost-user device: a client of a shard whose requests come by rings in memory of a virtual machine, and whose answers go there.
//!
//! ```text
//!   rings --take--> request (`whole`: admission, bio) --answer--> status, used entry --publish, once a turn--> the machine
//! ```
//!
//! The rings, their memory and the configuration space are `headworks_vhost`'s; the session with the front end is a thread's
//! (`front_end`). All of its queues are one client, and one flow.
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

pub mod front_end;
pub mod line;
mod watch;

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use headworks_core::{Instant, IoError, Op, ReplyStage, Status};

use crate::clients::nbd::connection::{ConnectionLimits, ExportBinding, Shares};
use crate::clients::whole::{Next, NoBlock, REQUESTS_MIN, Source, WholeClient, take_block};
use crate::exports::export_range::ExportRange;
use crate::observe::latency::errors::ErrorReply;
use headworks::driver::Span;
use headworks_front::intake::Intake;
use headworks_front::window::{CompletedRequest, InFlight};
use headworks_house::{Buffer, Pool};
use headworks_nbd::ExportInfo;
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};
use headworks_vhost::{Device, Disk, NoObserver, Order, Outcome, RequestOp, StoreObserver, Ticket};
use line::{News, NewsSender};
use watch::Kicks;

/// A vhost-user device, from the first message of its front end to its last buffer.
pub type RingClient<O = NoObserver> = WholeClient<Rings<O>>;

/// The rings of a device, and what its front end has of it.
pub struct Rings<O: StoreObserver = NoObserver> {
    device: Device<O>,
    /// What the machine sees of the export.
    disk: Disk,
    /// The device of the export belongs to this shard.
    is_local: bool,
    kicks: Kicks,
    /// The way to the thread of its front end.
    line: NewsSender<O>,
    /// Requests that were taken from the rings, the next one last.
    taken: Vec<headworks_vhost::Request>,
    /// Bios of which the shard has said that they take too long.
    late: Vec<u64>,
    /// Why one of its rings has ended, for the log.
    complaint: Option<String>,
}

impl<O: StoreObserver> Source for Rings<O> {
    fn next(&mut self, room: usize, looks: bool, _: &mut Intake, _: &mut Shares<'_>) -> Next {
        if looks && self.taken.is_empty() {
            self.device.take(room, &mut self.taken);
            self.taken.reverse();
            self.note_broken();
        }
        match self.taken.pop() {
            Some(asked) => Next::Request(request_of(&asked)),
            None if self.has_answers() => Next::Others,
            None => Next::Nothing,
        }
    }

    fn has_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    fn block(
        &mut self,
        request: &Request,
        intake: &mut Intake,
        shares: &mut Shares<'_>,
    ) -> Result<Option<Buffer>, NoBlock> {
        let len = request.op().buffer_len(request.len) as usize;
        if len == 0 || self.is_direct(request.cookie, len) {
            return Ok(None);
        }
        let block = take_block(len, intake, shares)?;
        if request.op() == Op::Write {
            // SAFETY: the block is ours alone until the bio is submitted.
            self.gather(ticket_of(request.cookie), unsafe { block.span() }, len);
        }
        Ok(Some(block))
    }

    fn refuse(&mut self, request: &Request, error: IoError) {
        self.complete(ticket_of(request.cookie), Err(error));
    }
}

impl<O: StoreObserver> Rings<O> {
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

    /// A ring has ended, or all have: the log is told in this turn.
    fn note_broken(&mut self) {
        if let Some(broken) = self.device.next_broken() {
            self.complaint = Some(match broken.queue {
                Some(queue) => format!("ring {queue} has ended until a reset: {}", broken.why),
                None => format!("its rings have ended until a reset: {}", broken.why),
            });
        }
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
}

impl<O: StoreObserver> RingClient<O> {
    /// A device of the front end behind `line`, which has no rings yet.
    pub fn new(
        disk: Disk,
        names: (String, Arc<str>),
        limits: ConnectionLimits,
        line: NewsSender<O>,
    ) -> std::io::Result<Self> {
        let rings = Rings {
            device: Device::observed(disk),
            disk,
            is_local: false,
            kicks: Kicks::new()?,
            line,
            taken: Vec::with_capacity(limits.requests.max(REQUESTS_MIN)),
            late: Vec::new(),
            complaint: None,
        };
        Ok(Self::of(rings, names, limits))
    }

    /// Binds it to its export, whose device may belong to this shard: from now on requests are taken.
    pub fn begin(&mut self, binding: ExportBinding, info: &ExportInfo, is_local: bool) {
        self.source.is_local = is_local;
        self.bind(binding, info);
    }

    /// What is ready when the machine has kicked a ring; none when it has left.
    #[must_use]
    pub fn socket(&self) -> Option<RawFd> {
        (!self.session.is_dead()).then(|| self.source.kicks.fd())
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
        let Self { session, source: Rings { device, .. }, .. } = self;
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
            self.source.late.push(sequence);
            return None;
        }
        let in_flight = self.session.take(sequence)?;
        let is_late = |late: &u64| *late == sequence;
        let status = match self.source.late.iter().position(is_late) {
            Some(at) => {
                self.source.late.swap_remove(at);
                status.and(Err(IoError::TimedOut))
            }
            None => status,
        };
        let (ticket, counted) = (ticket_of(in_flight.cookie), in_flight.completed(now));
        let InFlight { op, offset, len, buffer, .. } = in_flight;
        if let Some(block) = buffer {
            if op == Op::Read && status.is_ok() {
                // SAFETY: the block is ours alone again.
                self.source.scatter(ticket, unsafe { block.span() }, len as usize);
            }
            self.intake.discharge(block.len());
            pool.put(block);
        }
        if let Err(error) = status {
            let connection = self.session.id();
            self.session.count_error(ErrorReply { at: now, op, offset, connection, error });
        }
        self.source.complete(ticket, status);
        Some(counted)
    }

    /// Shows the machine the answers of this turn, and its front end what it waits for.
    pub fn publish(&mut self) {
        self.source.device.publish();
        self.source.note_broken();
        if let Some(answer) = self.source.device.next_answer() {
            self.source.watch_rings();
            self.source.line.send(News::Answer(answer));
        }
    }

    /// Why a ring has ended, once, as a sentence for the log.
    pub fn take_complaint(&mut self) -> Option<String> {
        self.source.complaint.take()
    }

    /// Before a sleep: asks for kicks; whether requests have come meanwhile, or a ring can only be looked at.
    pub fn arm(&mut self) -> bool {
        self.session.reads()
            && (!self.source.taken.is_empty()
                || self.source.device.arm()
                || self.source.device.must_poll())
    }

    /// The machine has kicked a ring.
    pub fn on_kick(&mut self) {
        self.source.kicks.take();
    }

    /// Carries out an order of its front end, whose answer comes with `publish`.
    pub fn on_order(&mut self, order: Order<O>) {
        self.source.device.on_order(order);
        self.source.watch_rings();
    }

    /// The volume of the export has another size.
    pub fn resize(&mut self, volume: u64) {
        let range = self.session.last_binding().map_or_else(ExportRange::default, |it| it.range);
        self.source.disk.size = range.size(volume);
        self.source.device.set_disk(self.source.disk);
        self.source.line.send(News::Disk(self.source.disk));
    }

    // How it ends.

    /// Takes nothing more from its rings. What was taken is still answered.
    pub fn leave(&mut self, _: &mut Pool) {
        if self.session.leave() {
            self.source.device.close();
            self.source.watch_rings();
        }
    }

    /// Its front end has left, or it is given up: what waits is dropped, and stays with the machine. Memory in use stays until the shard
    /// returns it.
    pub fn close(&mut self, pool: &mut Pool) {
        self.leave(pool);
        self.intake.waiting_mut().drain().for_each(drop);
        self.source.taken.clear();
        self.session.die();
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
        self.in_flight() == 0 && !self.has_left_over() && !self.source.device.has_answers()
    }

    /// It has left its slot: it ends on the thread of its front end, which unmaps its memory.
    pub fn retire(self: Box<Self>) {
        let line = self.source.line.clone();
        line.send(News::Ended(self));
    }
}

/// A request of a ring in the terms of the front.
fn request_of(asked: &headworks_vhost::Request) -> Request {
    let command = match asked.op {
        RequestOp::Read => Command::Read,
        RequestOp::Write => Command::Write,
        RequestOp::Flush => Command::Flush,
        RequestOp::Discard => Command::Trim,
        RequestOp::WriteZeroes => Command::WriteZeroes,
    };
    let mut flags = CommandFlags::NONE;
    if asked.is_fua {
        flags = CommandFlags(flags.0 | CommandFlags::FUA.0);
    }
    if asked.op == RequestOp::WriteZeroes && !asked.may_unmap {
        flags = CommandFlags(flags.0 | CommandFlags::NO_HOLE.0);
    }
    let cookie = u64::from(asked.ticket.bits());
    Request { cookie, offset: asked.offset, len: asked.len, command, flags }
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

impl<O: StoreObserver> std::fmt::Debug for RingClient<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingClient").field("id", &self.id()).field("peer", &self.peer()).finish()
    }
}
