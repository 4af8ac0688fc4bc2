//! A disk in virtual time over real bytes: a [`Device`] with every fault that real devices may
//! have.
//!
//! ```text
//!  submit --rejected--> Busy
//!     | draws a fault, the end (`timing`), up to 4 pieces and a time for each
//!     v
//!  piece .. piece .. piece (each copies its bytes at its own time, from or to the caller's span)
//!     `--> end: durable if FUA or write-through; completed
//! ```
//!
//! Bytes move at random times between submission and completion, so a buffer that is changed or
//! freed meanwhile shows in the data. The disk also checks that commands respect its announced
//! limits (`limits`). Invariant: each command is completed once, after its last piece (except for a
//! [`DiskDefect`]).

mod faults;
mod limits;
mod overlaid;
mod store;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks::driver::Span;
use headworks::{Command, CommandBatch, Device, DeviceIo};
use headworks_core::cache::folio::BLOCK;
use headworks_core::extent::{EXTENTS_MAX, ExtentWriter};
use headworks_core::prng::Prng;
use headworks_core::{
    BioFlags, Completion, ExtentState, Instant, IoError, Op, QueueOptions, RequestId, Status,
    VolumeId,
};
use headworks_disks::{EventQueue, Timing};

pub use headworks_disks::LatencyModel;

pub use faults::{BadRange, DiskDefect, Fault, Faults, Outage};
pub use overlaid::{
    LAYERS_MAX, OVERLAID_MAX, OverlaidDisk, OverlaidVolume, keep_top, layer_file, new_top,
};
pub use store::Store;

use crate::sector_pattern::{self, SECTOR};
use store::ReplacedVersion;

/// A file on a disk, the contents of one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFile {
    /// The volume stored in the file.
    pub volume: VolumeId,
    /// Size in bytes; after a shrink the old size, for commands in flight.
    pub size: u64,
    /// Required alignment of commands in bytes.
    pub block_size: u32,
    /// Writes to the file are violations.
    pub read_only: bool,
}

/// Options of a simulated disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The queue options that announce the disk's limits.
    pub queue: QueueOptions,
    /// The files on the disk.
    pub files: Vec<DiskFile>,
    /// How long commands take.
    pub model: LatencyModel,
    /// Faults injected by rate and range.
    pub faults: Faults,
    /// A lie of the device.
    pub defect: DiskDefect,
    /// Its files are those of overlays: each is synced by itself, and takes any number of commands.
    pub overlaid: bool,
    /// Seed of the disk's random stream.
    pub seed: u64,
}

/// Counters of a disk, for coverage and tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskCounters {
    /// Commands started, by operation.
    pub commands: [u64; Op::COUNT],
    /// Faults that happened, by kind.
    pub faults: [u64; Fault::COUNT],
    /// Reads answered as all zeros.
    pub holes: u64,
    /// Commands in flight at power cuts.
    pub torn: u64,
    /// Lies told by an injected defect.
    pub lies: u64,
    /// Commands resubmitted after a rejection.
    pub requeued: u64,
    /// Commands that continued after a short transfer.
    pub continued: u64,
    /// Writes submitted with FUA.
    pub fua: u64,
    /// Writes of zeros without data.
    pub zeros_as_data: u64,
}

/// A disk shared between the executor that drives it and the world that cuts its power.
#[derive(Clone)]
pub struct SharedDisk(Arc<Mutex<Disk>>);

impl SharedDisk {
    /// A new disk of zeros.
    #[must_use]
    pub fn new(options: DiskOptions) -> Self {
        Self(Arc::new(Mutex::new(Disk::new(options))))
    }

    /// Locks the disk; never contended, because the simulation has one thread.
    pub fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for SharedDisk {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        let mut disk = self.lock();
        for command in batch.commands {
            // The caller keeps the spans valid until completion; `Disk::run_piece` relies on that.
            disk.start(now, command, batch.spans_of(command), io.completions);
        }
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        self.lock().advance(now, io.completions);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.lock().events.next_at()
    }
}

/// The state of a simulated disk.
pub struct Disk {
    options: DiskOptions,
    /// Files by volume id.
    files: Vec<Option<Store>>,
    /// First sector of each file on the medium.
    first_sectors: Vec<u64>,
    timing: Timing,
    events: EventQueue<DiskEvent>,
    pending: Vec<PendingCommand>,
    free: Vec<u32>,
    /// The last command by request slot.
    last: Vec<LastOutcome>,
    prng: Prng,
    /// Counts events, so that two of them never have the same time.
    tick: u64,
    flushes_pending: u32,
    /// Power cuts so far, after each of which the host has started again.
    boots: u64,
    /// Operations of the files of overlays.
    file_ops: overlaid::FileOps,
    faulty: bool,
    counters: DiskCounters,
    broken: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum DiskEvent {
    Piece { slot: u32, first: u32, end: u32 },
    End { slot: u32 },
    Again { id: RequestId, transferred: u32 },
}

/// The outcome of the last command of a request slot.
#[derive(Clone, Copy, Debug, Default)]
struct LastOutcome {
    generation: u32,
    fault: Option<Fault>,
    next: u64,
}

/// A command in flight.
struct PendingCommand {
    command: Command,
    spans: Vec<Span>,
    submitted: u64,
    expires: Instant,
    status: Status,
    transferred: u32,
    /// Answered as all zeros if the data are zero at the end; its bytes move only then.
    may_be_hole: bool,
    /// The extent list has been written.
    status_written: bool,
    /// Some of its bytes have moved.
    moved: bool,
    in_use: bool,
}

impl Disk {
    fn new(options: DiskOptions) -> Self {
        let count =
            options.files.iter().map(|file| usize::from(file.volume.0) + 1).max().unwrap_or(0);
        let mut files: Vec<Option<Store>> = (0..count).map(|_| None).collect();
        let (mut first_sectors, mut next_place) = (vec![0; count], 0);
        for file in &options.files {
            files[usize::from(file.volume.0)] = Some(Store::new(file.size));
            first_sectors[usize::from(file.volume.0)] = next_place;
            next_place += file.size / SECTOR as u64;
        }
        Self {
            timing: Timing::new(options.model),
            prng: Prng::new(options.seed),
            files,
            first_sectors,
            events: EventQueue::with_capacity(1024),
            pending: Vec::with_capacity(256),
            free: Vec::with_capacity(256),
            last: Vec::with_capacity(1024),
            tick: 1,
            flushes_pending: 0,
            boots: 0,
            file_ops: overlaid::FileOps::default(),
            faulty: true,
            counters: DiskCounters::default(),
            broken: None,
            options,
        }
    }

    /// The disk's counters so far.
    #[must_use]
    pub fn counters(&self) -> &DiskCounters {
        &self.counters
    }

    /// The first invalid command, if there was one.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Number of commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Replaces a volume's file by a new one of `size` zeros.
    pub fn replace(&mut self, volume: VolumeId, size: u64) {
        if let Some(Some(store)) = self.files.get_mut(usize::from(volume.0)) {
            *store = Store::new(size);
        }
        if let Some(file) = self.options.files.iter_mut().find(|file| file.volume == volume) {
            file.size = size;
        }
    }

    /// Gives an unused file its initial contents: by sector, a version.
    pub fn preset(&mut self, volume: VolumeId, initial: impl Fn(u64) -> u64) {
        let Some(Some(store)) = self.files.get_mut(usize::from(volume.0)) else { return };
        for sector in 0..store.size() / SECTOR as u64 {
            match initial(sector) {
                0 => {}
                version => store.preset(sector, |bytes| {
                    sector_pattern::fill(bytes, version, volume.0, sector);
                }),
            }
        }
    }

    /// The blocks of a volume that are not those of another one on the disk, past whose end are zeros: a bit for each of the 64
    /// from block `64 * word` on.
    #[must_use]
    pub fn own_blocks(&self, volume: VolumeId, base: VolumeId, word: u64) -> u64 {
        let store = |volume: VolumeId| self.files.get(usize::from(volume.0))?.as_ref();
        let (Some(top), Some(below)) = (store(volume), store(base)) else { return 0 };
        let sector = SECTOR as u64;
        let differs = |number: u64| {
            let at = number * sector;
            let bytes = top.read(at, SECTOR);
            match at < below.size() {
                true => bytes != below.read(at, SECTOR),
                false => bytes.iter().any(|&byte| byte != 0),
            }
        };
        let per_block = u64::from(BLOCK) / sector;
        let own = |block: u64| {
            let first = (64 * word + block) * per_block;
            (first..(first + per_block).min(top.size() / sector)).any(differs)
        };
        (0..64).filter(|&block| own(block)).fold(0, |bits, block| bits | 1 << block)
    }

    /// Resizes a file: grown ranges are zero; data beyond a new end are gone, except for writes in
    /// flight.
    pub fn resize(&mut self, volume: VolumeId, size: u64) {
        self.tick += 1;
        if let Some(Some(store)) = self.files.get_mut(usize::from(volume.0)) {
            store.resize(size, self.tick);
        }
        if let Some(file) = self.options.files.iter_mut().find(|file| file.volume == volume) {
            file.size = file.size.max(size);
        }
    }

    /// Sets the time in which it does not answer.
    pub fn set_outage(&mut self, outage: Option<Outage>) {
        self.options.faults.outage = outage;
    }

    /// Switches fault injection on or off.
    pub fn set_faulty(&mut self, faulty: bool) {
        self.faulty = faulty;
    }

    /// Cuts the power: commands are lost, and unflushed sectors survive at random.
    pub fn cut(&mut self, now: Instant) {
        self.counters.torn += self.in_flight() as u64;
        self.boots += u64::from(self.options.defect != DiskDefect::SameBoot);
        self.events.clear();
        self.pending.clear();
        self.free.clear();
        self.flushes_pending = 0;
        self.file_ops.clear();
        self.timing.reset(now);
        for store in self.files.iter_mut().flatten() {
            store.cut(&mut self.prng);
        }
    }

    /// The process that drove the disk has died: of the commands that the kernel had, each is completed, or never began.
    pub fn outlive(&mut self, now: Instant) {
        let began = |pending: &PendingCommand, prng: &mut Prng| pending.in_use && prng.below(4) > 0;
        let prng = &mut self.prng;
        let lives: Vec<bool> = self.pending.iter().map(|pending| began(pending, prng)).collect();
        while let Some(at) = self.events.next_at() {
            let Some((_, step)) = self.events.pop_due(at) else { break };
            match step {
                DiskEvent::Piece { slot, first, end }
                    if lives[slot as usize] || self.begun(slot) =>
                {
                    self.run_piece(slot, first, end);
                }
                DiskEvent::End { slot } if lives[slot as usize] || self.begun(slot) => {
                    // No process is told.
                    let _ = self.end(slot);
                }
                DiskEvent::Piece { .. } | DiskEvent::End { .. } | DiskEvent::Again { .. } => {}
            }
        }
        self.pending.clear();
        self.free.clear();
        self.flushes_pending = 0;
        self.file_ops.clear();
        self.timing.reset(now);
        for store in self.files.iter_mut().flatten() {
            store.cut_off();
        }
    }

    /// Whether some bytes of a command have moved: the kernel then completes it.
    fn begun(&self, slot: u32) -> bool {
        self.pending[slot as usize].moved
    }

    /// Writes and syncs bytes that a dead process left; false if there is no such file.
    pub fn restore(&mut self, volume: VolumeId, offset: u64, bytes: &[u8]) -> bool {
        self.tick += 1;
        let Some(Some(store)) = self.files.get_mut(usize::from(volume.0)) else {
            return false;
        };
        // Whole sectors: the last one of a file may be partly behind its end.
        let len = bytes.len() / SECTOR * SECTOR;
        store.write(offset, len, || ReplacedVersion::Lost).copy_from_slice(&bytes[..len]);
        store.complete(offset, len, self.tick);
        true
    }

    /// Makes everything durable that the disk was given.
    pub fn sync(&mut self) {
        self.files.iter_mut().flatten().for_each(Store::sync);
    }

    /// Makes durable what a file was given.
    pub fn sync_file(&mut self, volume: VolumeId) {
        if let Some(Some(store)) = self.files.get_mut(usize::from(volume.0)) {
            store.sync();
        }
    }

    fn start(
        &mut self,
        now: Instant,
        command: &Command,
        spans: &[Span],
        completions: &mut Vec<Completion>,
    ) {
        self.check(now, command, spans);
        self.count(command, spans);
        let drawn = self.draw_fault(command);
        let fault = self.options.faults.outage_at(now).or(drawn);
        if let Some(fault) = fault {
            self.counters.faults[fault as usize] += 1;
        }
        if fault == Some(Fault::Busy) || self.file(command).is_none() {
            self.remember(command, Some(Fault::Busy), 0);
            completions.push(command.failed(IoError::Busy));
            return;
        }
        self.counters.commands[command.op as usize] += 1;
        let (status, transferred) = self.outcome(command, fault);
        self.remember(command, fault, transferred);
        let slot = self.hold(now, command, spans, status, transferred);
        let end = self.end_time(now, command, fault);
        self.plan(now, end, slot);
        self.schedule_second_completion(end, command);
        self.advance(now, completions);
    }

    /// Counts how a command relates to the previous one of its slot.
    fn count(&mut self, command: &Command, spans: &[Span]) {
        let counters = &mut self.counters;
        counters.fua += u64::from(command.flags.contains(BioFlags::FUA));
        counters.zeros_as_data += u64::from(command.op == Op::Write && spans.is_empty());
        if let Some(last) = self.last.get(command.id.slot as usize)
            && last.generation.wrapping_add(1) == command.id.generation
        {
            counters.requeued += u64::from(last.fault == Some(Fault::Busy));
            counters.continued +=
                u64::from(last.fault == Some(Fault::Short) && last.next == command.offset);
        }
    }

    fn remember(&mut self, command: &Command, fault: Option<Fault>, transferred: u32) {
        let slot = command.id.slot as usize;
        if self.last.len() <= slot {
            self.last.resize(slot + 1, LastOutcome::default());
        }
        self.last[slot] = LastOutcome {
            generation: command.id.generation,
            fault,
            next: command.offset + u64::from(transferred),
        };
    }

    fn draw_fault(&mut self, command: &Command) -> Option<Fault> {
        let faults = &self.options.faults;
        if !self.faulty {
            return None;
        }
        let drawn = faults.draw(command.op, &mut self.prng);
        let bad = faults.is_bad(command.volume, command.op, command.offset, command.len);
        // A rejected command touches nothing, so the bad range does not matter.
        if bad && drawn != Some(Fault::Busy) {
            return Some(Fault::BadRange);
        }
        // A short transfer leaves something out.
        if drawn == Some(Fault::Short) && command.len <= self.block_size(command) {
            return None;
        }
        drawn
    }

    /// The status of a command, and how many bytes from its start take effect.
    fn outcome(&mut self, command: &Command, fault: Option<Fault>) -> (Status, u32) {
        let block = self.block_size(command);
        let part = self.prng.below(u64::from(command.len / block).max(1)) as u32 * block;
        match fault {
            Some(Fault::Medium | Fault::BadRange) => (Err(IoError::Medium), part),
            Some(Fault::NoSpace) => (Err(IoError::NoSpace), part),
            Some(Fault::Flush) => (Err(IoError::Medium), 0),
            Some(Fault::Zeroes) => (Err(IoError::Unsupported), 0),
            Some(Fault::Nothing) => (Ok(()), 0),
            Some(Fault::Short) => (Ok(()), part.max(block)),
            Some(Fault::Busy | Fault::Late | Fault::Hang) | None => (Ok(()), command.len),
        }
    }

    fn hold(
        &mut self,
        now: Instant,
        command: &Command,
        spans: &[Span],
        status: Status,
        transferred: u32,
    ) -> u32 {
        self.tick += 1;
        let hole_ok = command.op == Op::Read && command.flags.contains(BioFlags::HOLE_OK);
        let slot = self.free.pop().unwrap_or(self.pending.len() as u32);
        let old_spans =
            self.pending.get_mut(slot as usize).map(|pending| std::mem::take(&mut pending.spans));
        let mut pending = PendingCommand {
            command: *command,
            spans: old_spans.unwrap_or_default(),
            submitted: self.tick,
            expires: now.after(self.options.queue.io_timeout_ns),
            status,
            transferred,
            may_be_hole: hole_ok && status.is_ok() && self.prng.below(2) == 0,
            status_written: false,
            moved: false,
            in_use: true,
        };
        pending.spans.clear();
        pending.spans.extend_from_slice(spans);
        self.flushes_pending += u32::from(command.op == Op::Flush);
        match self.pending.get_mut(slot as usize) {
            Some(place) => *place = pending,
            None => self.pending.push(pending),
        }
        slot
    }

    fn end_time(&mut self, now: Instant, command: &Command, fault: Option<Fault>) -> Instant {
        let place =
            self.first_sectors[usize::from(command.volume.0)] + command.offset / SECTOR as u64;
        let bytes = if command.op == Op::BlockStatus { 4096 } else { command.len };
        let sectors = u64::from(bytes) / SECTOR as u64;
        let end = self.timing.finish(now, place, sectors, &mut self.prng);
        match fault {
            Some(Fault::Late) => {
                let timeout = self.options.queue.io_timeout_ns;
                end.after(timeout + self.prng.below(2 * timeout))
            }
            Some(Fault::Hang) => {
                let until = self.options.faults.outage.map_or(0, |outage| outage.until_ns);
                end.max(Instant(until + self.prng.below(1_000_000)))
            }
            _ => end,
        }
    }

    /// Divides a command into pieces and draws a time for each.
    fn plan(&mut self, now: Instant, end: Instant, slot: u32) {
        let pending = &self.pending[slot as usize];
        let (len, op) = (pending.transferred, pending.command.op);
        let span = end.since(now);
        if op == Op::BlockStatus {
            // A disk reads its blocks at any time while it has the command.
            if pending.status.is_ok() && self.prng.below(2) == 0 {
                self.write_status(slot);
            }
        } else if len > 0 && op != Op::Flush && !pending.may_be_hole {
            let most = if span == 0 { 1 } else { 4 };
            let sectors = len / SECTOR as u32;
            let pieces = self.prng.between(1, u64::from(sectors.clamp(1, most))) as u32;
            for piece in 0..pieces {
                let at = |n: u32| (u64::from(sectors) * u64::from(n) / u64::from(pieces)) as u32;
                let (first, end) = (at(piece) * SECTOR as u32, at(piece + 1) * SECTOR as u32);
                let when = now.after(self.prng.below(span + 1));
                self.events.push(when, DiskEvent::Piece { slot, first, end });
            }
        }
        self.events.push(end, DiskEvent::End { slot });
    }

    /// Schedules the second completion of a device that completes twice.
    fn schedule_second_completion(&mut self, end: Instant, command: &Command) {
        if self.options.defect != DiskDefect::AnswersTwice || self.prng.below(8) != 0 {
            return;
        }
        self.counters.lies += 1;
        let again = DiskEvent::Again { id: command.id, transferred: command.len };
        let after = self.prng.below(50_000);
        self.events.push(end.after(after), again);
    }

    /// Processes everything due at `now`.
    fn advance(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        while let Some((_, step)) = self.events.pop_due(now) {
            match step {
                DiskEvent::Piece { slot, first, end } => self.run_piece(slot, first, end),
                DiskEvent::End { slot } => completions.extend(self.end(slot)),
                DiskEvent::Again { id, transferred } => {
                    completions.push(Completion { id, transferred, status: Ok(()), hole: false })
                }
            }
        }
    }

    /// Writes the extent list of a command, in extents of random size; zeros may be reported as
    /// data, never the reverse.
    fn write_status(&mut self, slot: u32) {
        let pending = &self.pending[slot as usize];
        let Command { volume, offset, len, flags, .. } = pending.command;
        let store =
            self.files[usize::from(volume.0)].as_ref().expect("checked when it was started");
        // SAFETY: the span is valid and ours until the command is completed, by the contract of
        // `Device::submit`.
        let list = unsafe { pending.spans[0].bytes_mut() };
        let most = if flags.contains(BioFlags::ONE_EXTENT) { 1 } else { EXTENTS_MAX };
        let mut writer = ExtentWriter::new(list, len, most);
        let piece = SECTOR as u64 * [1, 8, 8, 128][self.prng.below(4) as usize];
        let (mut at, end) = (offset, offset + u64::from(len));
        while at < end {
            let next = ((at / piece + 1) * piece).min(end);
            let zeros = store.read(at, (next - at) as usize).iter().all(|&byte| byte == 0);
            let status_written = zeros && self.prng.below(8) > 0;
            let state = if status_written { ExtentState::HOLE_ZERO } else { ExtentState::DATA };
            if !writer.push(next - at, state) || self.prng.below(64) == 0 {
                break;
            }
            at = next;
        }
        writer.finish();
        self.pending[slot as usize].status_written = true;
    }

    /// Moves the bytes `first..end` of a command.
    fn run_piece(&mut self, slot: u32, first: u32, end: u32) {
        self.pending[slot as usize].moved = true;
        let PendingCommand { command, ref spans, .. } = self.pending[slot as usize];
        let is_zeros = spans.is_empty();
        if command.op.is_write() && self.leaves_out(&command, is_zeros) {
            return;
        }
        let pending = &self.pending[slot as usize];
        let (offset, len) = (command.offset + u64::from(first), (end - first) as usize);
        let store = self.files[usize::from(command.volume.0)]
            .as_mut()
            .expect("checked when it was started");
        if command.op == Op::Read {
            let bytes = store.read(offset, len);
            each_span(&pending.spans, first as usize, len, |at, span| {
                // SAFETY: spans are valid and ours until the command is completed, by the contract
                // of `Device::submit`.
                unsafe {
                    span.base()
                        .copy_from_nonoverlapping(bytes[at..at + span.len()].as_ptr(), span.len());
                }
            });
            return;
        }
        // A discard may as well do nothing; that of a file is a hole.
        if command.op == Op::Discard && !self.options.overlaid && self.prng.below(4) == 0 {
            return;
        }
        let (flushing, prng) = (self.flushes_pending > 0, &mut self.prng);
        let replaced = || match flushing || prng.below(4) == 0 {
            true => ReplacedVersion::Kept,
            false => ReplacedVersion::Lost,
        };
        let bytes = store.write(offset, len, replaced);
        if command.op != Op::Write || pending.spans.is_empty() {
            bytes.fill(0);
            return;
        }
        each_span(&pending.spans, first as usize, len, |at, span| {
            // SAFETY: as above.
            unsafe {
                span.base()
                    .copy_to_nonoverlapping(bytes[at..at + span.len()].as_mut_ptr(), span.len());
            }
        });
        if self.options.defect == DiskDefect::LosesBits && offset < overlaid::bits_end() {
            overlaid::lose_bits(bytes, prng);
        }
    }

    fn end(&mut self, slot: u32) -> Option<Completion> {
        self.tick += 1;
        let pending = &self.pending[slot as usize];
        if pending.command.op == Op::BlockStatus
            && pending.status.is_ok()
            && !pending.status_written
        {
            self.write_status(slot);
        }
        let pending = &mut self.pending[slot as usize];
        let command = pending.command;
        pending.in_use = false;
        let (status, transferred) = (pending.status, pending.transferred);
        let (may_be_hole, submitted) = (pending.may_be_hole, pending.submitted);
        self.free.push(slot);
        let mut hole = false;
        if command.op == Op::Flush {
            self.flushes_pending -= 1;
            self.end_flush(&command, status, submitted);
        } else {
            if may_be_hole {
                hole = self.end_hole(slot, transferred);
            }
            self.end_data(&command, transferred);
        }
        let too_much = self.faulty
            && self.options.defect == DiskDefect::ClaimsTooMuch
            && command.op.has_data()
            && self.prng.below(8) == 0;
        self.counters.lies += u64::from(too_much);
        let claimed = transferred + u32::from(too_much) * (1 << 20);
        Some(Completion {
            id: command.id,
            transferred: if status.is_ok() { claimed } else { 0 },
            status,
            hole,
        })
    }

    fn end_flush(&mut self, command: &Command, status: Status, submitted: u64) {
        if status.is_err() || self.skips(command) {
            self.counters.lies += u64::from(status.is_ok());
            return;
        }
        let file = usize::from(command.volume.0);
        let synced = match self.options.overlaid {
            true => &mut self.files[file..=file],
            false => &mut self.files[..],
        };
        for store in synced.iter_mut().flatten() {
            store.flush(submitted, &mut self.prng);
        }
    }

    /// Whether the device does not perform a flush.
    fn skips(&self, command: &Command) -> bool {
        let has_bits = || {
            let store = self.files[usize::from(command.volume.0)].as_ref();
            store.is_some_and(|store| store.is_dirty_below(overlaid::bits_end()))
        };
        match self.options.defect {
            DiskDefect::SkipsFlush => true,
            DiskDefect::SkipsDataSync => !has_bits(),
            DiskDefect::SkipsBitsSync => has_bits(),
            _ => false,
        }
    }

    fn end_hole(&mut self, slot: u32, transferred: u32) -> bool {
        let command = &self.pending[slot as usize].command;
        let store = self.files[usize::from(command.volume.0)].as_ref();
        let zeros = store.is_some_and(|store| {
            let bytes = store.read(command.offset, transferred as usize);
            bytes.iter().all(|&byte| byte == 0)
        });
        if zeros {
            self.counters.holes += 1;
        } else {
            self.run_piece(slot, 0, transferred);
        }
        zeros
    }

    fn end_data(&mut self, command: &Command, transferred: u32) {
        if !command.op.is_write() {
            return;
        }
        let fua = command.flags.contains(BioFlags::FUA) && self.options.queue.fua;
        let durable = match self.options.defect {
            DiskDefect::SkipsFua => !self.options.queue.write_cache,
            _ => fua || !self.options.queue.write_cache,
        };
        let store = self.files[usize::from(command.volume.0)]
            .as_mut()
            .expect("checked when it was started");
        store.complete(command.offset, transferred as usize, self.tick);
        if durable {
            store.persist(command.offset, transferred as usize);
        }
    }

    fn file(&self, command: &Command) -> Option<&DiskFile> {
        let mut files = self.options.files.iter();
        files.find(|file| file.volume == command.volume)
    }

    fn block_size(&self, command: &Command) -> u32 {
        self.file(command).map_or(SECTOR as u32, |file| file.block_size).max(SECTOR as u32)
    }
}

/// Calls `each` with the parts of the spans that hold the bytes `first..first + len` of a command,
/// and with the offset of each part.
fn each_span(spans: &[Span], first: usize, len: usize, mut each: impl FnMut(usize, Span)) {
    let (mut at, end) = (0, first + len);
    for span in spans {
        let (from, to) = (first.max(at), end.min(at + span.len()));
        if from < to {
            each(from - first, span.part(from - at, to - from));
        }
        at += span.len();
    }
}
