//! Carries out a shard's actions, in order, over real bytes. The server and the simulated world run this same code.
//!
//! Consecutive submits to one device reach it as one batch. What is not about devices goes to the [`ActionSink`]: the reactor's
//! sockets and rings, or the simulator's event heap.
//!
//! The memory of a bio may lie in several pieces (of a virtual machine): its commands have a span for each, as they have for frames of the
//! cache, and copies go from and to each. A batch has a bounded number of spans: one that might not hold the next command's goes to its
//! device, and another begins. A command of more spans than a device takes has the first of them, and a shorter length: the queue continues
//! it, as after any short transfer.
//!
//! Invariants: when [`Executor::run`] returns, every action of the list was done; bytes of the frames change only after the sink was
//! told ([`ActionSink::before_change`]), by whichever action and device; a command has at most [`SPANS_MAX`] spans, and a batch of a sink with
//! pieces at most [`BATCH_SPANS`].

use std::convert::Infallible;

use headworks_core::extent::ExtentWriter;
use headworks_core::{
    Action, Actions, BioId, Completion, Control, CopyDirection, DeviceId, DirtyEntry,
    EXTENTS_BYTES, ExtentState, FrameRange, Input, Instant, Message, Notice, Op, REPLY_RANGES_MAX,
    ReplyStage, Shard, ShardId, Status, Submit, WaitTimes,
};

use crate::device::{Command, CommandBatch, Device, DeviceIo, Loss};
use crate::engine::ops::SPANS_MAX;
use crate::engine::{DiskDone, DiskQueue, PLACES};
use crate::memory::{Copier, STREAM, Span, fetch};

/// Carries out the actions of a shard that are not for a device, and names the memory of its bios.
///
/// # Safety
/// [`ActionSink::buffer`], [`ActionSink::pieces`] and [`ActionSink::frames`] give spans that fulfil the contract of [`Span::new`] for reads and
/// writes:
/// - the span of a bio holds at least the bytes of the bio, and its pieces exactly those that were asked for, from its submission to the shard until its last reply;
/// - only the executor and the devices use the bytes of the bio meanwhile;
/// - the frames stay where they are as long as the shard exists, and only the executor and the devices use them;
/// - the span of a bio that the cache made (see [`BioId::unit`]) is a part of the frames, and any other is not;
/// - the span of a read may be the bytes of the device that it reads ([`MemDevice`](crate::MemDevice)), which commands then may change.
pub unsafe trait ActionSink {
    /// The sink keeps frames of replies ([`ActionSink::reply_frames`]) and is told of their changes; one that does not pays nothing.
    const KEEPS_FRAMES: bool = false;
    /// Memory of the sink's bios may lie in pieces ([`ActionSink::pieces`]); a sink of which each has one buffer pays nothing for them.
    const HAS_PIECES: bool = false;
    /// The bytes of a bio in flight: a client's buffer, another shard's, or, for a bio of the cache, the frames from its unit on
    /// ([`Span::frames_from`]).
    fn buffer(&mut self, bio: BioId) -> Span;
    /// Calls `each` with the memory of `len` bytes of a bio in flight from its byte `offset` on, in order. A sink with
    /// [`ActionSink::HAS_PIECES`] gives each of them, of whole blocks of the volume; that of others is a part of [`ActionSink::buffer`].
    #[inline]
    fn pieces(&mut self, bio: BioId, (offset, len): (u32, u32), mut each: impl FnMut(Span)) {
        each(self.buffer(bio).part(offset as usize, len as usize));
    }
    /// The frames of the shard's cache; empty without a cache.
    fn frames(&self) -> Span;
    /// Completes a bio or releases its buffer, with the times that it waited.
    fn reply(
        &mut self,
        id: BioId,
        status: Status,
        hole: bool,
        stage: ReplyStage,
        wait_times: WaitTimes,
    );
    /// Completes a read without a buffer with the bytes of `frames`, with the times that it waited. The sink may keep the spans and
    /// read them until [`ActionSink::before_change`] names some of their bytes.
    fn reply_frames(&mut self, id: BioId, frames: &[Span], wait_times: WaitTimes) {
        let _ = (frames, wait_times);
        panic!("{id:?} was submitted without a buffer to a sink that sends nothing from frames");
    }
    /// Takes back a read without a buffer that the cache cannot answer, with the times that it waited.
    fn needs_buffer(&mut self, id: BioId, _: WaitTimes) {
        panic!("{id:?} was submitted without a buffer to a sink that sends nothing from frames");
    }
    /// Announces that bytes of the frames change after this call. By devices only to a sink with [`ActionSink::KEEPS_FRAMES`].
    #[inline]
    fn before_change(&mut self, frames: Span) {
        let _ = frames;
    }
    /// Takes frames that hold nothing: their memory may be given back to the system. They are whole pages, and stay mapped.
    fn release(&mut self, frames: Span) {
        let _ = frames;
    }
    /// Has the memory of frames made that will be used next. That is only a hint: they are usable without.
    fn prepare(&mut self, frames: Span) {
        let _ = frames;
    }
    /// Sends a message to another shard. With a [`Message::Bio`] goes the span of its buffer.
    fn send(&mut self, to: ShardId, message: Message);
    /// Sets the time of the next `Input::Timer`, in place of the one before.
    fn timer(&mut self, at: Instant);
    /// Reports an event to the operator.
    fn notice(&mut self, notice: Notice);
}

/// A log of changes of the cache's frames, from which another process finds what this one left. It stores in the order of the calls.
pub trait ChangeLog {
    /// The process lives.
    fn stamp(&self);
    /// Sets the entries of a run of frames.
    fn set(&self, unit: u32, count: u32, entry: DirtyEntry);
    /// `len` bytes at `to` are about to be replaced by those at `from`, or by zeros if that is null.
    fn begin_change(&self, to: *mut u8, from: *const u8, len: usize);
    /// The bytes were replaced.
    fn end_change(&self);
    /// `count` commands are about to be given to a device: its files may change until they are answered.
    fn begin_commands(&self, count: usize);
    /// `count` commands were answered.
    fn end_commands(&self, count: usize);
}

/// No log: there is none of this type.
impl ChangeLog for Infallible {
    fn stamp(&self) {}
    fn set(&self, _: u32, _: u32, _: DirtyEntry) {}
    fn begin_change(&self, _: *mut u8, _: *const u8, _: usize) {}
    fn end_change(&self) {}
    fn begin_commands(&self, _: usize) {}
    fn end_commands(&self, _: usize) {}
}

/// Bytes that the copies of a bio at the head of a list move, as far as it matters. (Small folios take a large write in pieces.)
fn length(list: &[Action], bio: BioId) -> usize {
    let mut sum = 0;
    for action in list {
        match *action {
            Action::Copy { bio: other, len, .. } if other == bio && sum < STREAM => {
                sum += len as usize;
            }
            _ => break,
        }
    }
    sum
}

/// Tells the sink that the device of a bio changes `len` bytes of it from `offset` on, if they are frames.
#[inline]
fn announce_fill(sink: &mut impl ActionSink, bio: BioId, (offset, len): (u32, u32)) {
    if bio.unit().is_some() {
        let frames = sink.buffer(bio).part(offset as usize, len as usize);
        sink.before_change(frames);
    }
}

/// Where in the pool the next copy of a list begins, if that is near; null otherwise.
fn next_copy(list: &[Action], frames: Span) -> *const u8 {
    // An answer may be between two copies.
    let copies = list.iter().take(2).find_map(|action| match *action {
        Action::Copy { at, .. } => Some(at as usize),
        _ => None,
    });
    copies.map_or(std::ptr::null(), |at| frames.base().wrapping_add(at))
}

/// Moves a range of the frames to another one that it does not overlap.
#[inline(always)]
fn move_frames<S: ActionSink>(sink: &mut S, from: usize, to: usize, len: usize) {
    assert!(from.abs_diff(to) >= len, "a move's ranges do not overlap");
    let pool = sink.frames();
    let (from, to) = (pool.part(from, len), pool.part(to, len));
    sink.before_change(to);
    // SAFETY: as for a copy; the ranges do not overlap.
    unsafe { to.base().copy_from_nonoverlapping(from.base(), len) };
}

/// Inputs of a batch whose reads have their frames fetched ahead; the reads of a longer batch wait beside each other in any case.
const FETCHED_AHEAD: usize = 4;

/// Has the CPU fetch the frames that a short batch most likely reads, before the shard sees it. One read after another waits three times for
/// memory otherwise: for the line of the index, for the folio's header, for the frame.
#[inline]
pub fn fetch_ahead(shard: &Shard, batch: &[Input], frames: Span) {
    if batch.len() > FETCHED_AHEAD {
        return;
    }
    for input in batch {
        if let Input::Bio(bio) = input
            && bio.op == Op::Read
            && let Some(at) = shard.guess_frame(bio)
        {
            fetch(frames.base().wrapping_add(at as usize));
        }
    }
}

/// Spans of a batch: of 64 commands of a request of 64 KiB each in pages, and then some.
const BATCH_SPANS: usize = 8192;

/// Cuts a command to the spans that a device takes; returns the bytes that are left of it.
#[cold]
fn cut(spans: &mut Vec<Span>, first: usize) -> u32 {
    spans.truncate(first + SPANS_MAX);
    spans[first..].iter().map(|span| span.len() as u32).sum()
}

/// The devices that a shard owns, and the scratch that turns actions into commands.
pub struct Executor<L = Infallible> {
    devices: Vec<Option<Box<dyn Device>>>,
    commands: Vec<Command>,
    spans: Vec<Span>,
    completions: Vec<Completion>,
    /// Volumes that the device which is called has lost data of.
    lost: Vec<Loss>,
    /// What devices have lost, until it is taken.
    losses: Vec<Loss>,
    /// The frames of one reply.
    reply: Vec<Span>,
    copier: Copier,
    /// Where changes of the cache's frames are logged; none without such memory.
    log: Option<L>,
}

impl Executor {
    /// An executor over the devices of one shard; `None` where another shard owns it.
    #[must_use]
    pub fn new(devices: Vec<Option<Box<dyn Device>>>) -> Self {
        Self::with_log(devices, None)
    }
}

impl<L: ChangeLog> Executor<L> {
    /// An executor that logs changes of the cache's frames. The shard reports them ([`CacheOptions::dirty_table`]), and the log is of the
    /// frames that the sink has.
    ///
    /// [`CacheOptions::dirty_table`]: headworks_core::CacheOptions::dirty_table
    #[must_use]
    pub fn with_log(devices: Vec<Option<Box<dyn Device>>>, log: Option<L>) -> Self {
        Self {
            devices,
            commands: Vec::with_capacity(1024),
            spans: Vec::with_capacity(BATCH_SPANS),
            completions: Vec::with_capacity(1024),
            lost: Vec::new(),
            losses: Vec::new(),
            reply: Vec::with_capacity(REPLY_RANGES_MAX),
            copier: Copier::default(),
            log,
        }
    }

    /// The log of changes, if there is one.
    #[must_use]
    pub fn log(&self) -> Option<&L> {
        self.log.as_ref()
    }

    /// One more device, in a place that is vacant.
    pub fn put(&mut self, device: DeviceId, body: Box<dyn Device>) {
        let place = usize::from(device.0);
        if self.devices.len() <= place {
            self.devices.resize_with(place + 1, || None);
        }
        assert!(self.devices[place].is_none(), "the shard gives out a vacant place");
        self.devices[place] = Some(body);
    }

    /// Removes a device without commands in flight. Nothing of it is watched any more.
    pub fn take(&mut self, device: DeviceId, disk: &mut dyn DiskQueue) -> Option<Box<dyn Device>> {
        let body = self.devices.get_mut(usize::from(device.0))?.take()?;
        (0..PLACES).for_each(|place| disk.forget_place(device, place));
        Some(body)
    }

    /// Takes what devices have lost since the last call. A shard of another device's volume has to be told of [`Loss::Everything`].
    pub fn take_losses(&mut self) -> Option<Vec<Loss>> {
        (!self.losses.is_empty()).then(|| std::mem::take(&mut self.losses))
    }

    /// A device of this shard.
    pub fn device(&mut self, device: DeviceId) -> Option<&mut dyn Device> {
        self.devices.get_mut(usize::from(device.0))?.as_deref_mut().map(|body| body as _)
    }

    /// Does everything on the list. Answers that devices gave at once are appended to `inputs`.
    pub fn run<S: ActionSink>(
        &mut self,
        now: Instant,
        actions: &Actions,
        sink: &mut S,
        disk: &mut dyn DiskQueue,
        inputs: &mut Vec<Input>,
    ) {
        if let Some(log) = &self.log {
            log.stamp();
        }
        let mut batch_of = None;
        // The bio whose copies began last, and how many bytes they are.
        let mut whole = (BioId::default(), 0);
        for (index, action) in actions.list.iter().enumerate() {
            match *action {
                // By reference: it is large, and a copy would be made of it.
                Action::Submit(ref submit) => {
                    let is_full = S::HAS_PIECES && self.spans.len() >= BATCH_SPANS - SPANS_MAX;
                    if batch_of != Some(submit.device) || is_full {
                        self.submit(now, batch_of, disk, inputs);
                        batch_of = Some(submit.device);
                    }
                    self.add_command(actions, submit, sink);
                }
                Action::Copy { bio, offset, len, at, direction } => {
                    if offset == 0 {
                        whole = (bio, length(&actions.list[index..], bio));
                    }
                    let all = if whole.0 == bio { whole.1 } else { len as usize };
                    let later = &actions.list[index + 1..];
                    self.copy(sink, (bio, offset, len), at, direction, (all, later));
                }
                Action::Zero { at, len } => self.zero(sink, at as usize, len as usize),
                Action::Move { from, to, len } => {
                    move_frames(sink, from as usize, to as usize, len as usize);
                }
                Action::Prepare { at, len } => {
                    let part = sink.frames().part(at as usize, len as usize);
                    sink.prepare(part);
                }
                Action::Release { at, len } => {
                    let part = sink.frames().part(at as usize, len as usize);
                    sink.before_change(part);
                    sink.release(part);
                }
                Action::SetDirty { unit, count, entry } => {
                    if let Some(log) = &self.log {
                        log.set(unit, count, entry);
                    }
                }
                Action::Data { bio, len } => {
                    let list = sink.buffer(bio).part(0, EXTENTS_BYTES as usize);
                    // SAFETY: inside the bio's buffer, which belongs to the bio until its reply, and no device has it.
                    let bytes = unsafe { list.bytes_mut() };
                    let mut list = ExtentWriter::new(bytes, len, 1);
                    list.push(len.into(), ExtentState::DATA);
                    list.finish();
                }
                Action::Reply { id, status, hole, stage, wait_times } => {
                    sink.reply(id, status, hole, stage, wait_times);
                }
                Action::ReplyFrames { id, first, ranges, wait_times } => {
                    self.reply_frames(sink, id, actions.ranges_of(first, ranges), wait_times);
                }
                Action::NeedsBuffer { id, wait_times } => sink.needs_buffer(id, wait_times),
                Action::Send { to, message } => {
                    if S::KEEPS_FRAMES
                        && let Message::Bio { bio, .. } = message
                        && bio.op == Op::Read
                    {
                        announce_fill(sink, bio.id, (0, bio.len));
                    }
                    sink.send(to, message);
                }
                Action::Timer { at } => sink.timer(at),
                Action::Notice(notice) => sink.notice(notice),
            }
        }
        self.submit(now, batch_of, disk, inputs);
    }

    /// Adds a command of a device and its spans to the batch.
    #[inline(always)]
    fn add_command<S: ActionSink>(&mut self, actions: &Actions, submit: &Submit, sink: &mut S) {
        let first = self.spans.len();
        for segment in actions.segments_of(submit) {
            if S::KEEPS_FRAMES && submit.op == Op::Read {
                announce_fill(sink, segment.bio, (segment.offset, segment.len));
            }
            let (offset, len) = (segment.offset, segment.len);
            if !S::HAS_PIECES {
                let buffer = sink.buffer(segment.bio);
                self.spans.push(buffer.part(offset as usize, len as usize));
                continue;
            }
            // What has no room is beyond what a device takes.
            let spans = &mut self.spans;
            sink.pieces(segment.bio, (offset, len), |piece| {
                if spans.len() < spans.capacity() {
                    spans.push(piece);
                }
            });
        }
        let (mut len, mut spans) = (submit.len, submit.segments);
        if S::HAS_PIECES {
            if self.spans.len() - first > SPANS_MAX {
                len = cut(&mut self.spans, first);
            }
            spans = (self.spans.len() - first) as u16;
        }
        self.commands.push(Command {
            id: submit.id,
            volume: submit.volume,
            op: submit.op,
            flags: submit.flags,
            offset: submit.offset,
            len,
            first_span: first as u32,
            spans,
        });
    }

    /// Copies a range of a bio from or to the frames at `at`. `all` are the bytes of the bio's copies, of which `later` has the next ones.
    #[inline(always)]
    fn copy<S: ActionSink>(
        &mut self,
        sink: &mut S,
        (bio, offset, len): (BioId, u32, u32),
        at: u64,
        direction: CopyDirection,
        (all, later): (usize, &[Action]),
    ) {
        let frames = sink.frames();
        let part = frames.part(at as usize, len as usize);
        if direction == CopyDirection::ToPool {
            sink.before_change(part);
        }
        let next = match direction {
            CopyDirection::ToPool => std::ptr::null(),
            CopyDirection::ToBuffer => next_copy(later, frames),
        };
        let Self { copier, log, .. } = self;
        let log = log.as_ref().filter(|_| direction == CopyDirection::ToPool);
        let mut at = part.base();
        sink.pieces(bio, (offset, len), |piece| {
            let (buffer, pool, len) = (piece.base(), at, piece.len());
            at = at.wrapping_add(len);
            if let Some(log) = log {
                log.begin_change(pool, buffer, len);
            }
            // SAFETY: both ranges are inside their spans, and by the contract of `ActionSink` buffer and pool are different
            // memory. No device uses either: the shard names only frames that no command has, and the bio's buffer
            // belongs to the bio until its reply.
            unsafe {
                match direction {
                    CopyDirection::ToPool => copier.write(buffer, pool, (len, all)),
                    CopyDirection::ToBuffer => copier.read(pool, buffer, len, next),
                }
            }
            if let Some(log) = log {
                log.end_change();
            }
        });
    }

    /// Zeroes a range of the frames.
    #[inline(always)]
    fn zero<S: ActionSink>(&mut self, sink: &mut S, at: usize, len: usize) {
        let part = sink.frames().part(at, len);
        sink.before_change(part);
        let pool = part.base();
        if let Some(log) = &self.log {
            log.begin_change(pool, std::ptr::null(), len);
        }
        // SAFETY: as for a copy.
        unsafe { self.copier.zero(pool, len) };
        if let Some(log) = &self.log {
            log.end_change();
        }
    }

    /// Answers a read with the frames that have its bytes.
    #[inline(always)]
    fn reply_frames<S: ActionSink>(
        &mut self,
        sink: &mut S,
        id: BioId,
        ranges: &[FrameRange],
        wait_times: WaitTimes,
    ) {
        let frames = sink.frames();
        self.reply.clear();
        for range in ranges {
            self.reply.push(frames.part(range.at as usize, range.len as usize));
        }
        if let Some(first) = self.reply.first() {
            // They are read soon, most likely by the kernel, which fetches nothing ahead.
            fetch(first.base());
        }
        sink.reply_frames(id, &self.reply, wait_times);
    }

    fn submit(
        &mut self,
        now: Instant,
        device: Option<DeviceId>,
        disk: &mut dyn DiskQueue,
        inputs: &mut Vec<Input>,
    ) {
        let Some(id) = device else { return };
        let Self { devices, commands, spans, completions, lost, log, .. } = self;
        let device =
            devices[usize::from(id.0)].as_mut().expect("a shard submits only to its own devices");
        let mut io = DeviceIo { device: id, completions, disk, lost };
        if let Some(log) = log {
            log.begin_commands(commands.len());
        }
        // SAFETY: buffers stay valid and untouched until `Reply` says otherwise, which the shard's contract puts after the
        // completion; the spans were checked against their buffers.
        unsafe { device.submit(now, CommandBatch { commands, spans }, &mut io) };
        self.commands.clear();
        self.spans.clear();
        self.deliver(id, inputs);
    }

    /// A file operation ended.
    pub fn on_disk(
        &mut self,
        now: Instant,
        done: DiskDone,
        disk: &mut dyn DiskQueue,
        inputs: &mut Vec<Input>,
    ) {
        self.call(done.device, disk, inputs, |device, io| device.on_disk(now, done, io));
    }

    /// A place of a device may be ready.
    pub fn on_ready(
        &mut self,
        now: Instant,
        (device, place): (DeviceId, u16),
        disk: &mut dyn DiskQueue,
        inputs: &mut Vec<Input>,
    ) {
        self.call(device, disk, inputs, |device, io| device.on_ready(now, place, io));
    }

    /// Calls a device, if it is there, and delivers its answers.
    fn call(
        &mut self,
        id: DeviceId,
        disk: &mut dyn DiskQueue,
        inputs: &mut Vec<Input>,
        call: impl FnOnce(&mut dyn Device, &mut DeviceIo<'_>),
    ) {
        let Self { devices, completions, lost, .. } = self;
        let Some(Some(device)) = devices.get_mut(usize::from(id.0)) else {
            return;
        };
        call(&mut **device, &mut DeviceIo { device: id, completions, disk, lost });
        self.deliver(id, inputs);
    }

    /// Calls the devices whose time has come.
    pub fn on_timeout(&mut self, now: Instant, disk: &mut dyn DiskQueue, inputs: &mut Vec<Input>) {
        for index in 0..self.devices.len() {
            let Some(device) = &self.devices[index] else {
                continue;
            };
            if device.next_timeout().is_some_and(|at| at <= now) {
                let id = DeviceId(index as u16);
                self.call(id, disk, inputs, |device, io| device.on_timeout(now, io));
            }
        }
    }

    /// The earliest time at which a device wants to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.devices.iter().flatten().filter_map(|device| device.next_timeout()).min()
    }

    fn deliver(&mut self, device: DeviceId, inputs: &mut Vec<Input>) {
        if !self.lost.is_empty() {
            // Before the completions: no flush may succeed from here on.
            let told = |loss: &Loss| {
                Input::Control(match *loss {
                    Loss::Unflushed(volume) => Control::Suspect { volume },
                    Loss::Everything(volume) => Control::Void { volume },
                })
            };
            inputs.extend(self.lost.iter().map(told));
            self.losses.append(&mut self.lost);
        }
        let inputs_of =
            |completion: &Completion| Input::Complete { device, completion: *completion };
        inputs.extend(self.completions.iter().map(inputs_of));
        if let Some(log) = &self.log {
            log.end_commands(self.completions.len());
        }
        self.completions.clear();
    }
}

#[cfg(test)]
mod tests;
