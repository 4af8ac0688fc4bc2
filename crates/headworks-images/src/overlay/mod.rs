//! `overlay:` devices: blocks that were written are in a file of our own, all others are the base's.
//!
//! ```text
//!   head 4 KiB | bitmap, 1 bit per 4 KiB block | pad to 1 MiB | data: block b at data + 4096 b | pad | here bits
//! ```
//!
//! Bit 0: the block is the base's. Bit 1: it is ours, and a hole in our data reads as zeros. Nothing is copied up, and the file system
//! does the allocating. What makes it right after a power cut is the order of [`flush`].
//!
//! ```text
//!   read                 cut where bits change --> pieces, each to our file or to the base (beyond its end: zeros) --> one answer
//!   write                our file --> bits set --> here bits written, if one is new --> answered
//!   zeroes, discard      punched in our file, also where the bit is 0: an unflushed write before a cut may have left bytes there
//!                        --> bits set ("ours, a hole") --> here bits --> answered
//!   write etc. with FUA  with FUA to our file if all of its bits are on the disk, else it ends with the next round of flushes
//!   flush                a round, see `flush`
//! ```
//!
//! Bits are set before the completion goes up, so a read that is submitted after an acknowledged write finds it; a process that is killed
//! leaves them in the here bits ([`here`]). The base is never
//! written. Both sides are devices, so a base may be an overlay. An overlay has its device alone, or is one of many volumes of a
//! [`FilesystemDevice`](crate::FilesystemDevice); it does not look at the volume of its commands. Their operations carry ids of our own (`ids`), which lead an answer
//! to its piece. Bounded: [`ROWS_MAX`] commands, [`PIECES_MAX`] pieces in flight, 64 pieces of a command; the queue continues a command
//! that was cut short.

mod base_link;
mod bitmap;
mod checksum;
mod flush;
mod head;
mod here;
pub(crate) mod ids;
mod image;
mod load;
mod new;
mod offline;
mod open;
mod over;
mod pieces;
mod rows;
mod snapshot;
mod unsynced;
mod users;
mod writer;

use std::fs::File;
use std::sync::Arc;

use headworks_core::extent::ExtentState;
use headworks_core::{BioFlags, Completion, Instant, IoError, Op, RequestId, Status, VolumeId};

pub use self::base_link::OverlayBase;
use self::bitmap::{Bitmap, LiveBits};
use self::flush::{FlushStep, Flushes};
use self::head::BLOCK;
use self::here::{Here, HereStep};
use self::ids::Ids;
pub use self::image::{
    BaseFormats, BaseImage, BaseImageOptions, OpenBaseImage, OverlayBaseKind, REMOTE_BASE,
};
pub use self::new::{NewBase, NewOverlay};
pub use self::offline::{CommitOptions, OverlayProgress, ResetOptions};
pub use self::open::{OpenOverlay, OverlayLayer, OverlayOptions, is_overlay};
pub use self::over::OverlayParts;
use self::pieces::{Cut, Source, cut_read, zero_spans};
use self::rows::{Piece, Role, Row, Rows};
pub use self::snapshot::OverlaySnapshot;
use self::unsynced::Unsynced;
use headworks::driver::{DiskDone, Span};
use headworks::house::Loss;
use headworks::{Command, CommandBatch, Device, DeviceIo};

/// Most commands in flight: the largest `queue_depth` there is.
const ROWS_MAX: usize = 4096;
/// Most pieces in flight.
const PIECES_MAX: usize = 16384;
/// The volume of our file and of the base on the devices that hold them.
const ONLY: VolumeId = VolumeId(0);
/// The volume of our file for here bits: the same file, never by direct I/O.
const HERE: VolumeId = VolumeId(1);

/// What an overlay is made of.
struct Parts {
    /// Holds our file as its volume 0, and as its volume 1 for here bits.
    pub own: Box<dyn Device>,
    /// Holds the base as its volume 0.
    pub below: Box<dyn Device>,
    pub bitmap: Bitmap,
    pub here: Here,
    /// Offset of the data in our file.
    pub data: u64,
    /// Bytes of the volume, in whole blocks.
    pub size: u64,
    /// Bytes of the base.
    pub base_size: u64,
    /// Number of overlays below this one.
    pub layer: u8,
    /// Place among the overlays of one device.
    pub place: u16,
    pub read_only: bool,
    /// To be read again before the first command: another process wrote it until then.
    pub late_bits: Option<Arc<File>>,
}

/// A disk whose unwritten blocks are those of a base.
pub struct OverlayDevice {
    parts: Parts,
    ids: Ids,
    rows: Rows,
    flushes: Flushes<u32>,
    unsynced: Unsynced,
    inbox: Inbox,
    own_batch: Outgoing,
    base_batch: Outgoing,
}

/// Commands for one of the two devices.
#[derive(Default)]
struct Outgoing {
    commands: Vec<Command>,
    spans: Vec<Span>,
}

impl Outgoing {
    fn push(&mut self, command: Command, spans: impl Iterator<Item = Span>) {
        let first = self.spans.len();
        self.spans.extend(spans);
        let (first_span, spans) = (first as u32, (self.spans.len() - first) as u16);
        self.commands.push(Command { first_span, spans, ..command });
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn send(&mut self, now: Instant, device: &mut dyn Device, io: &mut DeviceIo<'_>) {
        if !self.commands.is_empty() {
            let batch = CommandBatch { commands: &self.commands, spans: &self.spans };
            // SAFETY: the caller's promise, passed on.
            unsafe { device.submit(now, batch, io) };
            self.commands.clear();
            self.spans.clear();
        }
    }
}

/// What comes from the two devices.
#[derive(Default)]
struct Inbox {
    answers: Vec<Completion>,
    /// Neither of the two loses what was acknowledged: our file says so by a failed sync, and the base is only read.
    lost: Vec<Loss>,
}

impl Inbox {
    /// What one of the two devices works with.
    fn io<'a>(&'a mut self, io: &'a mut DeviceIo<'_>) -> DeviceIo<'a> {
        self.lost.clear();
        DeviceIo {
            device: io.device,
            completions: &mut self.answers,
            disk: io.disk,
            lost: &mut self.lost,
        }
    }
}

impl OverlayDevice {
    fn from_parts(parts: Parts) -> Self {
        Self {
            ids: Ids::new(parts.place, parts.layer),
            parts,
            rows: Rows::new(ROWS_MAX, PIECES_MAX),
            flushes: Flushes::new(),
            unsynced: Unsynced::default(),
            inbox: Inbox::default(),
            own_batch: Outgoing::default(),
            base_batch: Outgoing::default(),
        }
    }

    fn live(&self) -> &LiveBits {
        self.parts.bitmap.live()
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn start(&mut self, command: &Command, spans: &[Span], io: &mut DeviceIo<'_>) {
        if let Err(error) = self.check(command) {
            io.completions.push(command.failed(error));
            return;
        }
        let Some(row) = self.rows.add(command) else {
            io.completions.push(command.failed(IoError::Busy));
            return;
        };
        match command.op {
            // SAFETY: the caller's promise.
            Op::Read => unsafe { self.start_read(row, command, spans, io) },
            // SAFETY: as above.
            Op::BlockStatus => unsafe { self.start_status(row, command, spans, io) },
            Op::Write | Op::Discard | Op::WriteZeroes => {
                self.start_change(row, command, spans);
                self.end_if_complete(row, io);
            }
            Op::Flush | Op::Prefetch => self.join_round(row, io),
        }
    }

    /// Reads the bits that a process which handed this overlay over wrote last. That waits for the disk, once, for some
    /// milliseconds at most: the bitmap was written just before, and holes are not read.
    ///
    /// Which of these are durable only that process knew, so the next round of flushes writes their pages again.
    fn read_late_bits(&mut self) -> Result<(), IoError> {
        let Parts { late_bits, size, bitmap, here, .. } = &mut self.parts;
        let Some(file) = late_bits else { return Ok(()) };
        let found = load::add_bits(&**file, *size, here.tag(), bitmap.live());
        let found = found.map_err(|_| IoError::Medium)?;
        bitmap.mark_pending(&found.pending);
        here.found(&found);
        self.parts.late_bits = None;
        Ok(())
    }

    fn check(&self, command: &Command) -> Result<(), IoError> {
        if matches!(command.op, Op::Flush | Op::Prefetch) {
            return Ok(());
        }
        let end = command.offset.checked_add(command.len.into());
        let inside = command.len > 0 && end.is_some_and(|end| end <= self.parts.size);
        let changes = command.op.is_write();
        let whole = (command.offset | u64::from(command.len)).is_multiple_of(BLOCK);
        match () {
            () if changes && self.parts.read_only => Err(IoError::ReadOnly),
            () if !inside || changes && !whole => Err(IoError::Invalid),
            () => Ok(()),
        }
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn start_read(
        &mut self,
        row: u32,
        command: &Command,
        spans: &[Span],
        io: &mut DeviceIo<'_>,
    ) {
        let (mut cuts, mut at) = (0, 0);
        while at < command.len && cuts < pieces::CUTS_MAX {
            let Cut { source, len } = self.cut(command, at);
            let whole = at == 0 && len == command.len;
            if source == Source::Zeros {
                if whole && command.flags.contains(BioFlags::HOLE_OK) {
                    self.rows.get_mut(row).hole = true;
                } else {
                    // SAFETY: the memory of a read is ours until its completion.
                    unsafe { zero_spans(spans, at, len) };
                }
            } else {
                let flags = if whole { command.flags } else { BioFlags::NONE };
                let part =
                    Command { flags, offset: command.offset + u64::from(at), len, ..*command };
                if !self.send_part(row, at, part, source, spans) {
                    break;
                }
            }
            at += len;
            cuts += 1;
        }
        self.rows.started(row, at);
        self.end_if_complete(row, io);
    }

    /// What the command's bytes from `at` on come from, and how many of them.
    fn cut(&self, command: &Command, at: u32) -> Cut {
        let (from, end) = (command.offset + u64::from(at), command.offset + u64::from(command.len));
        cut_read(self.live(), self.parts.base_size, from, end)
    }

    /// Sends a part of a command to the device of its source. Returns false if there is no room.
    fn send_part(
        &mut self,
        row: u32,
        at: u32,
        part: Command,
        source: Source,
        spans: &[Span],
    ) -> bool {
        let piece = Piece { row, role: Role::Data { at }, len: part.len };
        let Some(index) = self.rows.add_piece(piece) else { return false };
        let is_base = source == Source::Base;
        let id = self.ids.of(index, is_base);
        let (batch, start) = match is_base {
            true => (&mut self.base_batch, 0),
            false => (&mut self.own_batch, self.parts.data),
        };
        let part = Command { id, volume: ONLY, offset: part.offset + start, ..part };
        batch.push(part, pieces::spans_between(spans, at, part.len));
        true
    }

    /// Tells the extents of the first run.
    ///
    /// # Safety
    /// As [`Device::submit`].
    unsafe fn start_status(
        &mut self,
        row: u32,
        command: &Command,
        spans: &[Span],
        io: &mut DeviceIo<'_>,
    ) {
        let Cut { source, len } = self.cut(command, 0);
        if source == Source::Zeros {
            self.rows.remove(row);
            let hole = |writer: &mut headworks_core::extent::ExtentWriter<'_>| {
                writer.push(len.into(), ExtentState::HOLE_ZERO);
            };
            // SAFETY: the caller's promise.
            io.completions.push(unsafe { command.tell_extents(spans, hole) });
            return;
        }
        let [span] = spans else {
            self.rows.remove(row);
            io.completions.push(command.failed(IoError::Invalid));
            return;
        };
        let piece = Piece { row, role: Role::Data { at: 0 }, len };
        // A command without a piece is busy.
        if let Some(index) = self.rows.add_piece(piece) {
            let is_base = source == Source::Base;
            let id = self.ids.of(index, is_base);
            let (batch, start) = match is_base {
                true => (&mut self.base_batch, 0),
                false => (&mut self.own_batch, self.parts.data),
            };
            let offset = command.offset + start;
            batch.push(Command { id, volume: ONLY, offset, len, ..*command }, [*span].into_iter());
        }
        self.rows.started(row, len);
        self.end_if_complete(row, io);
    }

    /// Sends a write, zeroing or discard to our file.
    fn start_change(&mut self, row: u32, command: &Command, spans: &[Span]) {
        let mut flags = command.flags;
        let (first, count) = (command.offset / BLOCK, u64::from(command.len) / BLOCK);
        if flags.contains(BioFlags::FUA) && !self.parts.bitmap.is_on_disk(first, count) {
            flags = BioFlags(flags.0 & !BioFlags::FUA.0);
            self.rows.get_mut(row).joins = true;
        }
        let part = Command { flags, ..*command };
        self.unsynced.begin();
        // Pieces run out after rows only if reads hold many: then the row ends as busy.
        self.send_part(row, 0, part, Source::Own, spans);
        self.rows.started(row, command.len);
    }

    fn join_round(&mut self, row: u32, io: &mut DeviceIo<'_>) {
        if !self.flushes.join(row) {
            let Row { command, .. } = self.rows.remove(row);
            io.completions.push(command.failed(IoError::Busy));
        }
    }

    /// Starts what rounds of flushes can start.
    fn start_flush_steps(&mut self) {
        let was_idle = self.flushes.is_idle();
        let bitmap = &mut self.parts.bitmap;
        while let Some(step) = self.flushes.next_step(bitmap) {
            // Steps are few, and pieces for them are set aside.
            let index = self.rows.add_step(Role::Flush(step));
            let id = self.ids.of(index, false);
            let command = |op, offset, len| step_command(id, ONLY, op, (offset, len));
            match step {
                FlushStep::Sync => self.own_batch.push(command(Op::Flush, 0, 0), [].into_iter()),
                FlushStep::WriteBits { page, pages } => {
                    // SAFETY: only read, and the device answers before the round ends.
                    let span = unsafe { bitmap.covered_span(page, pages) };
                    let offset = bitmap::page_offset(page);
                    let write = command(Op::Write, offset, span.len() as u32);
                    self.own_batch.push(write, [span].into_iter());
                }
            }
        }
        if was_idle && !self.flushes.is_idle() {
            self.unsynced.begin_round();
        }
    }

    /// Starts what can be started of here bits.
    fn start_here_steps(&mut self) {
        let Parts { here, bitmap, .. } = &mut self.parts;
        while let Some(step) = here.next_step(bitmap.live()) {
            let index = self.rows.add_step(Role::Here(step));
            let id = self.ids.of(index, false);
            // SAFETY: only read, and the device answers before the step ends.
            let span = unsafe { here.span(step) };
            let len = match step {
                HereStep::Clear { len, .. } => len,
                HereStep::Tag | HereStep::Bits { .. } => bitmap::PAGE_BYTES as u32,
            };
            let command = step_command(id, HERE, Op::Write, (here.offset(step), len));
            self.own_batch.push(command, span.into_iter());
        }
    }

    /// Sends what was started, and deals with answers until there are none.
    fn pump(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        loop {
            self.start_flush_steps();
            self.start_here_steps();
            let Self { parts, own_batch, base_batch, inbox, .. } = self;
            // SAFETY: the spans are parts of those of commands that are not answered yet, or of the bitmaps.
            unsafe {
                own_batch.send(now, &mut *parts.own, &mut inbox.io(io));
                base_batch.send(now, &mut *parts.below, &mut inbox.io(io));
            }
            if self.inbox.answers.is_empty() {
                return;
            }
            let mut answers = std::mem::take(&mut self.inbox.answers);
            for answer in answers.drain(..) {
                self.take_answer(&answer, io);
            }
            // Nothing was answered meanwhile: that happens in the two sends alone.
            self.inbox.answers = answers;
        }
    }

    fn take_answer(&mut self, answer: &Completion, io: &mut DeviceIo<'_>) {
        let Some(index) = self.ids.index_of(answer.id) else {
            // To a command from before a snapshot, which the layer below answers itself.
            io.completions.push(*answer);
            return;
        };
        let Some(piece) = self.rows.take_piece(index) else { return };
        match piece.role {
            Role::Data { at } => {
                self.rows.on_piece(piece.row, at, piece.len, answer);
                self.end_if_complete(piece.row, io);
            }
            Role::Flush(step) => self.on_flush_step(step_status(step, answer), io),
            Role::Here(step) => self.on_here_step(step, answer, io),
        }
    }

    fn on_here_step(&mut self, step: HereStep, answer: &Completion, io: &mut DeviceIo<'_>) {
        let Self { parts, rows, flushes, .. } = self;
        parts.here.on_end(step, answer, |row, failure| {
            let joins = rows.get_mut(row).joins && failure.is_none();
            if joins && flushes.join(row) {
                return;
            }
            let Row { command, transferred, .. } = rows.remove(row);
            io.completions.push(match failure {
                None if joins => command.failed(IoError::Busy),
                None => Completion { transferred, ..command.done() },
                Some(error) => command.failed(error),
            });
        });
    }

    fn on_flush_step(&mut self, status: Status, io: &mut DeviceIo<'_>) {
        let Self { flushes, rows, parts, unsynced, .. } = self;
        flushes.on_end(status, &mut parts.bitmap, |row, status| {
            unsynced.end_round(status.is_ok());
            let Row { command, transferred, .. } = rows.remove(row);
            io.completions.push(match status {
                Ok(()) if command.op == Op::Flush => command.done(),
                Ok(()) => Completion { transferred, ..command.done() },
                // Of a write there is nothing that a later one could make good.
                Err(IoError::NotFlushed) if command.op != Op::Flush => {
                    command.failed(IoError::NoSpace)
                }
                Err(error) => command.failed(error),
            });
        });
    }

    /// Answers a command whose pieces have all ended.
    fn end_if_complete(&mut self, row: u32, io: &mut DeviceIo<'_>) {
        let Some(end) = self.rows.end_of(row) else { return };
        let Row { command, joins, hole, .. } = *self.rows.get_mut(row);
        if command.op.is_write() {
            self.unsynced.end();
        }
        let transferred = match end {
            Ok(transferred) => transferred,
            Err(error) => {
                self.rows.remove(row);
                io.completions.push(command.failed(error));
                return;
            }
        };
        let mut answer = Completion { transferred, hole, ..command.done() };
        if command.op == Op::BlockStatus {
            answer.transferred = command.len;
        } else if command.op.is_write() {
            // Of a block that was written in part nothing counts.
            let blocks = u64::from(transferred) / BLOCK;
            if blocks == 0 {
                self.rows.remove(row);
                io.completions.push(command.failed(IoError::NoSpace));
                return;
            }
            let first = command.offset / BLOCK;
            let Parts { bitmap, here, .. } = &mut self.parts;
            bitmap.set(first, blocks, |page| here.mark(page));
            answer.transferred = (blocks * BLOCK) as u32;
            self.rows.get_mut(row).transferred = answer.transferred;
            // Also a change of blocks whose bits are set: their first write may be waiting for them still.
            let is_safe = || joins || bitmap.is_on_disk(first, blocks);
            if here.must_wait(first, blocks, is_safe) {
                here.wait(row, first, blocks);
                return;
            }
            if joins {
                self.join_round(row, io);
                return;
            }
        }
        self.rows.remove(row);
        io.completions.push(answer);
    }
}

/// A command of a step, which has its spans added.
fn step_command(id: RequestId, volume: VolumeId, op: Op, (offset, len): (u64, u32)) -> Command {
    let (flags, first_span, spans) = (BioFlags::NONE, 0, 0);
    Command { id, volume, op, flags, offset, len, first_span, spans }
}

/// How a step ended: a bitmap write that was cut short has found no room. It is done again with the next round, so nothing is lost.
fn step_status(step: FlushStep, answer: &Completion) -> Status {
    match step {
        FlushStep::WriteBits { pages, .. } => {
            let short = (answer.transferred as usize) < pages * bitmap::PAGE_BYTES;
            match answer.status {
                Err(IoError::NoSpace) => Err(IoError::NotFlushed),
                Ok(()) if short => Err(IoError::NotFlushed),
                status => status,
            }
        }
        FlushStep::Sync => answer.status,
    }
}

impl Device for OverlayDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        if let Err(error) = self.read_late_bits() {
            io.completions.extend(batch.commands.iter().map(|command| command.failed(error)));
            return;
        }
        for command in batch.commands {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.start(command, batch.spans_of(command), io) };
        }
        self.pump(now, io);
    }

    fn on_disk(&mut self, now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        let mut inner = self.inbox.io(io);
        match self.ids.is_own(done.id) {
            true => self.parts.own.on_disk(now, done, &mut inner),
            false => self.parts.below.on_disk(now, done, &mut inner),
        }
        self.pump(now, io);
    }

    fn on_ready(&mut self, now: Instant, place: u16, io: &mut DeviceIo<'_>) {
        // Our file waits for no descriptor.
        self.parts.below.on_ready(now, place, &mut self.inbox.io(io));
        self.pump(now, io);
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        if self.parts.below.next_timeout().is_some_and(|at| at <= now) {
            self.parts.below.on_timeout(now, &mut self.inbox.io(io));
        }
        self.pump(now, io);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.parts.below.next_timeout()
    }
}

impl OverlayDevice {
    /// As [`OverlayDevice::put_on`], of an overlay that has its device alone.
    ///
    /// # Errors
    /// As there.
    pub fn stack(&mut self, mut top: Box<Self>) -> Result<(), Box<Self>> {
        let (place, layer) = (self.parts.place, self.parts.layer + 1);
        let is_idle = self.flushes.is_idle() && self.parts.here.is_idle();
        // Here bits of a base are never looked at, so those of a killed process have to be on the disk, too.
        let is_durable = self.unsynced.is_none() && self.parts.bitmap.is_all_on_disk();
        if layer >= ids::LAYERS_MAX || !is_durable || !is_idle {
            return Err(top);
        }
        self.parts.read_only = true;
        (top.parts.place, top.parts.layer) = (place, layer);
        top.ids = Ids::new(place, layer);
        std::mem::swap(self, &mut *top);
        self.parts.below = top;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
