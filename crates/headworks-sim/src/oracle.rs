//! The possible contents of each sector: the contract of the path, without product code.
//!
//! Every write has a version. Every sector has a short list of the writes that a read may return or
//! a power cut may leave:
//!
//! ```text
//!   base (version) <- entry <- entry <- entry          entry = (write, when it was placed)
//!   write: submitted, ended, settled, outcome (pending, done, failed, discarded)
//! ```
//!
//! - An entry is *superseded* for a read when a later write, submitted after the entry's end,
//!   succeeded before the read began. Reads may return entries that are not superseded. A failed,
//!   timed-out or discarding write supersedes nothing.
//! - An entry is superseded permanently when that later write is also *durable*: acknowledged with
//!   FUA, or before the submission of a flush that succeeded. A power cut may leave any entry that
//!   is not superseded permanently.
//! - A read that returns one of several versions while no write is pending fixes the order: for
//!   reads that begin later, that version is the last.
//! - An entry is *lost* when a discard met it before it was durable or was pending at its
//!   submission, or when the operator discarded its block after a failed write-out. Reads may
//!   return it, and it supersedes nothing.
//! - Without a cache, or with `writethrough`, acknowledged writes are durable at once if the device
//!   has no volatile cache.
//! - In an `unsafe` volume, where flushes promise nothing, a power cut may leave any version that
//!   was ever written.
//!
//! Versions belong to *cells*: a cell is a sector or, in volumes with bios at any byte, one of the
//! parts into which a sector is divided at offsets fixed for the volume. Bios begin and end at cell
//! boundaries; a cell is identified by its bytes alone.
//!
//! Time is a tick that counts submissions and answers, so two events never have the same time.

use headworks_core::prng::Prng;
use headworks_core::{Bio, BioFlags, BioId, Op, ReplyStage, Status, VolumeId, WriteMode};

mod death;
mod reads;
mod status;
#[cfg(test)]
mod tests;

use crate::sector_pattern::{self, SECTOR};
use crate::workload::SectorCuts;

const NIL: u32 = u32::MAX;
/// A tick in the future.
const NEVER: u64 = u64::MAX;
/// The base of a cell is no longer possible.
const DEAD: u64 = u64::MAX;
/// The base of a cell is any of its versions; only in `unsafe` volumes, whose old versions are
/// dropped.
const ANY: u64 = u64::MAX - 1;
/// Lists longer than this are searched for permanently superseded entries.
const LIST_LONG: usize = 6;

/// The rule that lost acknowledged data violate after the death of the process.
pub const DEATH_RULE: &str = "acknowledged data survive the death of the process";
/// The rule that a block with parts of two versions violates after the death of the process.
pub const MIXED_RULE: &str = "a block that was being written is old or new";

/// The rule that lost flushed data violate.
pub const CUT_RULE: &str = "flushed data survive a power cut";

/// Counts of cells examined after power cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutReport {
    /// Number of cells that were examined.
    pub cells: u64,
    /// Cells written since the previous cut.
    pub unflushed: u64,
    /// Cells that did not hold the newest version.
    pub stale: u64,
}

impl CutReport {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.cells += other.cells;
        self.unflushed += other.unflushed;
        self.stale += other.stale;
    }
}

/// A violated rule, with details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, as text.
    pub rule: &'static str,
    /// The observation, and what was allowed.
    pub detail: String,
    /// The affected sector: volume and byte offset.
    pub place: Option<(u16, u64)>,
}

impl Violation {
    /// Adds how long the bio had waited for its answer.
    #[must_use]
    pub fn after(mut self, waited_ns: u64) -> Self {
        self.detail += &format!(" after {waited_ns} ns");
        self
    }
}

/// The oracle's record of a bio in flight, returned with its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// Tick of the submission.
    pub start: u64,
    /// Index of its write, or of its read.
    index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Pending,
    Done,
    /// Old or new data, sector by sector.
    Failed,
    /// Old data or zeros, sector by sector.
    Discarded,
}

#[derive(Clone, Copy, Debug)]
struct WriteRecord {
    /// The version, 0 for zeros.
    version: u64,
    ended: u64,
    /// Tick after which it has no further effect.
    settled: u64,
    outcome: Outcome,
    fua: bool,
    discards: bool,
    /// Its blocks pass through frames of the cache, which keeps them until a device has them whole.
    by_frames: bool,
    volume: u16,
    /// Entries that refer to it, plus one while the bio is in flight.
    uses: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    write: u32,
    next: u32,
    submitted: u64,
    /// Tick of submission, or of the read that fixed the order.
    placed: u64,
    /// Reads may return it; it supersedes nothing.
    lost: bool,
}

impl Entry {
    /// Tick after which a placed write supersedes the entry. An entry that a read fixed does not
    /// supersede itself.
    fn end(&self, write: &WriteRecord) -> u64 {
        write.ended.max(self.placed)
    }

    /// Its placement for a read begun at `start`: a later placement by another read does not bind
    /// this one, which may have copied its bytes before.
    fn placed_for(&self, start: u64) -> u64 {
        if self.placed < start { self.placed } else { self.submitted }
    }
}

/// The part of a block that a write covered, in flight at the death of the process: old or new.
#[derive(Clone, Debug)]
struct TornPart {
    version: u64,
    /// The block, and the cells of it.
    block: (usize, u64),
    cells: std::ops::Range<usize>,
    /// Versions of each cell that may lie over the write: submitted or ended after its submission.
    over: Vec<Vec<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct CellState {
    base: u64,
    head: u32,
    /// Entries of its list.
    entries: u16,
    /// The list is searched for permanently superseded entries when it is longer: twice what was left the last time, or entries that
    /// cannot go would be searched with every write.
    search_at: u16,
}

impl CellState {
    /// A cell that holds a version.
    const fn of(base: u64) -> Self {
        Self { base, head: NIL, entries: 0, search_at: LIST_LONG as u16 }
    }
}

/// The contract of a volume that the oracle checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Size of the volume in bytes.
    pub size: u64,
    /// Offset of each cell within a sector; the first is 0. See [`whole_sectors`] and
    /// [`draw_cuts`].
    pub cuts: Vec<u16>,
    /// Write mode; `None` also without a cache.
    pub mode: WriteMode,
    /// The device has no volatile cache.
    pub lasting: bool,
}

/// Cell offsets of volumes whose bios are aligned to sectors.
#[must_use]
pub fn whole_sectors() -> Vec<u16> {
    vec![0]
}

/// Draws cell offsets for volumes with bios at any byte. Every cell has bytes unique to its
/// version: the first holds the version number, the others at least eight of the mixed words.
#[must_use]
pub fn draw_cuts(prng: &mut Prng) -> SectorCuts {
    let first = prng.between(9, 80);
    let second = prng.between(first.max(24) + 8, 300);
    let third = prng.between(second + 9, 503);
    [0, first as u16, second as u16, third as u16]
}

#[derive(Debug)]
struct Volume {
    first_cell: usize,
    cuts: Vec<u16>,
    mode: WriteMode,
    /// Acknowledged writes are durable at once.
    durable_at_once: bool,
    /// Writes acknowledged before this tick are durable.
    flushed: u64,
    /// Discards in flight.
    discarding: u32,
}

impl Volume {
    /// The cell that starts at `offset`; at the end of a bio, the cell after its last.
    fn cell(&self, offset: u64) -> usize {
        let (sector, at) = (offset as usize / SECTOR, offset as usize % SECTOR);
        let inside = self.cuts.partition_point(|&cut| usize::from(cut) < at);
        self.first_cell + sector * self.cuts.len() + inside
    }

    /// Sector, first byte and length of a cell.
    fn place(&self, cell: usize) -> (u64, usize, usize) {
        let cell = cell - self.first_cell;
        let (sector, inside) = (cell / self.cuts.len(), cell % self.cuts.len());
        let at = usize::from(self.cuts[inside]);
        let end = self.cuts.get(inside + 1).map_or(SECTOR, |&cut| usize::from(cut));
        (sector as u64, at, end - at)
    }

    /// Whether a block whose write-out failed stays in memory. With `writethrough` it is discarded, and the device may have torn it.
    fn keeps_failed(&self) -> bool {
        self.mode.holds_dirty()
    }

    /// Whether an acknowledged write, or with `writethrough` one in flight, may be in memory only.
    fn writes_back(&self) -> bool {
        self.mode != WriteMode::None
    }
}

/// The oracle of all volumes.
#[derive(Debug)]
pub struct Oracle {
    volumes: Vec<Volume>,
    cells: Vec<CellState>,
    entries: Vec<Entry>,
    free_entry: u32,
    writes: Vec<WriteRecord>,
    free_writes: Vec<u32>,
    /// Tick of each read in flight; `NEVER` in free slots.
    reads: Vec<u64>,
    free_reads: Vec<u32>,
    tick: u64,
    version: u64,
    /// Reads examine and settle what survived a power cut.
    recovering: bool,
    /// The cut was the death of the process: memory was kept.
    died: bool,
    /// What the death left is durable with the next flush only: a power cut may leave what was there before.
    volatile: bool,
    /// The write that stands for what was found of a version after a death.
    found: Option<(u16, u64, u32)>,
    /// Parts of blocks that writes in flight covered at the death of the process.
    torn: Vec<TornPart>,
    /// Counts after power cuts, by write mode.
    survived: [CutReport; WriteMode::ALL.len()],
}

impl Oracle {
    /// An oracle of volumes with these contracts, all zeros.
    #[must_use]
    pub fn new(contracts: &[Contract]) -> Self {
        let mut cells = 0;
        let volumes = contracts.iter().map(|contract| {
            let Contract { size, cuts, mode, lasting } = contract.clone();
            let durable_at_once =
                lasting && matches!(mode, WriteMode::None | WriteMode::Writethrough);
            let first_cell = cells;
            cells += size as usize / SECTOR * cuts.len();
            Volume { first_cell, cuts, mode, durable_at_once, flushed: 0, discarding: 0 }
        });
        let volumes: Vec<_> = volumes.collect();
        Self {
            volumes,
            cells: vec![CellState::of(0); cells],
            entries: Vec::with_capacity(4096),
            free_entry: NIL,
            writes: Vec::with_capacity(1024),
            free_writes: Vec::with_capacity(1024),
            reads: Vec::with_capacity(256),
            free_reads: Vec::with_capacity(256),
            tick: 1,
            version: 0,
            recovering: false,
            died: false,
            volatile: false,
            found: None,
            torn: Vec::new(),
            survived: [CutReport::default(); WriteMode::ALL.len()],
        }
    }

    /// Records the submission of a valid bio; fills `bytes`, its buffer, if it is a write.
    pub fn submit(&mut self, bio: &Bio, bytes: &mut [u8]) -> Ticket {
        self.tick += 1;
        let start = self.tick;
        let index = match bio.op {
            Op::Read | Op::BlockStatus => self.start_read(start),
            Op::Flush | Op::Prefetch => NIL,
            Op::Write | Op::Discard | Op::WriteZeroes => self.start_write(bio, start),
        };
        if bio.op == Op::Write {
            fill_all(bio, self.version, bytes);
        }
        Ticket { start, index }
    }

    /// Checks the answer to a bio, or records the release of its buffer.
    ///
    /// # Errors
    /// The rule that the answer violates.
    pub fn answer(
        &mut self,
        bio: &Bio,
        ticket: Ticket,
        status: Status,
        hole: bool,
        stage: ReplyStage,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        self.tick += 1;
        match bio.op {
            Op::Read | Op::BlockStatus => {
                let checked = match (status, stage) {
                    (Ok(()), ReplyStage::Final) if bio.op == Op::BlockStatus => {
                        self.check_status(bio, ticket, bytes)
                    }
                    (Ok(()), ReplyStage::Final) => self.check_read(bio, ticket, hole, bytes),
                    _ => Ok(()),
                };
                if stage != ReplyStage::Released {
                    self.reads[ticket.index as usize] = NEVER;
                    self.free_reads.push(ticket.index);
                }
                checked
            }
            Op::Flush => {
                if status.is_ok() && stage == ReplyStage::Final {
                    let volume = &mut self.volumes[usize::from(bio.id.volume.0)];
                    volume.flushed = volume.flushed.max(ticket.start);
                }
                Ok(())
            }
            Op::Prefetch => Ok(()),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                self.end_write(bio, ticket, status, stage);
                Ok(())
            }
        }
    }

    /// Replaces an idle volume by one of zeros.
    pub fn replace(&mut self, volume: u16) {
        self.tick += 1;
        let (first, end) = self.cells_from(volume, 0);
        for cell in first..end {
            let mut at = std::mem::replace(&mut self.cells[cell], CellState::of(0)).head;
            while at != NIL {
                let Entry { write, next, .. } = self.entries[at as usize];
                self.release(write);
                self.entries[at as usize].next = std::mem::replace(&mut self.free_entry, at);
                at = next;
            }
        }
        self.volumes[usize::from(volume)].flushed = self.tick;
    }

    /// Sets what the first `size` bytes of a volume of zeros hold instead, before they are written: by sector, a version.
    pub fn preset(&mut self, volume: u16, size: u64, initial: impl Fn(u64) -> u64) {
        let (first, end) = self.cells_from(volume, 0);
        for cell in first..end {
            let (sector, ..) = self.volumes[usize::from(volume)].place(cell);
            if sector * (SECTOR as u64) < size {
                self.cells[cell] = CellState::of(initial(sector));
            }
        }
    }

    /// Cuts a volume off at `end`: bytes beyond it may be zero or old from now on, as after a
    /// discard.
    pub fn cut_off(&mut self, volume: u16, end: u64, old_end: u64) {
        let id = BioId { volume: VolumeId(volume), ..BioId::default() };
        let len = (old_end - end) as u32;
        let bio = Bio { id, op: Op::Discard, offset: end, len, ..Bio::default() };
        let ticket = self.submit(&bio, &mut []);
        self.tick += 1;
        self.end_write(&bio, ticket, Ok(()), ReplyStage::Final);
    }

    /// Records that the volume ended at `end` at a power cut: bytes beyond it are zero.
    pub fn forget_beyond(&mut self, volume: u16, end: u64) {
        let (first, last) = self.cells_from(volume, end);
        self.cells[first..last].fill(CellState::of(0));
    }

    /// The cells of a volume from byte `offset` on.
    fn cells_from(&self, volume: u16, offset: u64) -> (usize, usize) {
        let next = self.volumes.get(usize::from(volume) + 1);
        let end = next.map_or(self.cells.len(), |volume| volume.first_cell);
        (self.volumes[usize::from(volume)].cell(offset), end)
    }

    /// Records a power cut: bios in flight are never answered, and reads determine what survived.
    pub fn cut(&mut self) {
        self.volumes.iter_mut().for_each(|volume| volume.discarding = 0);
        self.reads.clear();
        self.free_reads.clear();
        self.recovering = true;
    }

    /// Ends the recovery after a power cut: every sector was read.
    ///
    /// # Errors
    /// A block with parts of two versions.
    pub fn recovered(&mut self) -> Result<(), Violation> {
        if !std::mem::take(&mut self.recovering) {
            return Ok(());
        }
        let mixed = match std::mem::take(&mut self.died) {
            true => self.check_torn(),
            false => Ok(()),
        };
        self.release_found();
        if std::mem::take(&mut self.volatile) {
            return mixed;
        }
        self.writes.clear();
        self.free_writes.clear();
        self.entries.clear();
        self.free_entry = NIL;
        mixed
    }

    /// Counts after power cuts, by write mode.
    #[must_use]
    pub fn survived(&self) -> [CutReport; WriteMode::ALL.len()] {
        self.survived
    }

    /// Returns the current tick.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Capacity used by all lists, to check that they stay bounded.
    #[must_use]
    pub fn entries_max(&self) -> usize {
        self.entries.len()
    }

    fn start_read(&mut self, start: u64) -> u32 {
        let index = self.free_reads.pop().unwrap_or_else(|| {
            self.reads.push(NEVER);
            self.reads.len() as u32 - 1
        });
        self.reads[index as usize] = start;
        index
    }

    fn start_write(&mut self, bio: &Bio, start: u64) -> u32 {
        self.version += 1;
        let record = WriteRecord {
            version: if bio.op == Op::Write { self.version } else { 0 },
            ended: NEVER,
            settled: NEVER,
            outcome: Outcome::Pending,
            // An unsafe volume ignores it.
            fua: bio.flags.contains(BioFlags::FUA)
                && self.volumes[usize::from(bio.id.volume.0)].mode != WriteMode::Unsafe,
            discards: bio.op == Op::Discard,
            by_frames: bio.op == Op::Write
                && !bio.flags.contains(BioFlags::DIRECT)
                && self.volumes[usize::from(bio.id.volume.0)].keeps_failed(),
            volume: bio.id.volume.0,
            uses: 1,
        };
        let write = self.new_write(record);
        if bio.op == Op::Discard {
            self.volumes[usize::from(bio.id.volume.0)].discarding += 1;
            self.cancel_unflushed(bio);
        }
        for cell in self.range(bio) {
            self.add(cell, write, start);
        }
        write
    }

    fn new_write(&mut self, record: WriteRecord) -> u32 {
        match self.free_writes.pop() {
            Some(free) => {
                self.writes[free as usize] = record;
                free
            }
            None => {
                self.writes.push(record);
                self.writes.len() as u32 - 1
            }
        }
    }

    /// At submission and end of a discard: writes that are not durable may be dropped from memory.
    fn cancel_unflushed(&mut self, bio: &Bio) {
        let volume = &self.volumes[usize::from(bio.id.volume.0)];
        if volume.writes_back() {
            let range = self.range(bio);
            self.mark_lost(range);
        }
    }

    /// Records that the operator discarded failed data in a range: the device has older data.
    pub fn discard_failed(&mut self, volume: u16, offset: u64, len: u64) {
        let volume = &self.volumes[usize::from(volume)];
        let (first, end) = (volume.cell(offset), volume.cell(offset + len));
        self.mark_lost(first..end);
    }

    fn mark_lost(&mut self, cells: std::ops::Range<usize>) {
        for cell in cells {
            let mut at = self.cells[cell].head;
            while at != NIL {
                let Entry { write, next, .. } = self.entries[at as usize];
                let record = &self.writes[write as usize];
                let volume = &self.volumes[usize::from(record.volume)];
                if volume.mode == WriteMode::Unsafe {
                    self.cells[cell].base = ANY;
                }
                self.entries[at as usize].lost |= !self.is_durable(record);
                at = next;
            }
        }
    }

    fn end_write(&mut self, bio: &Bio, ticket: Ticket, status: Status, stage: ReplyStage) {
        let tick = self.tick;
        let write = &mut self.writes[ticket.index as usize];
        if stage != ReplyStage::Released {
            write.ended = tick;
            write.outcome = match (status, bio.op) {
                (Ok(()), Op::Discard) => Outcome::Discarded,
                (Ok(()), _) => Outcome::Done,
                (Err(_), _) => Outcome::Failed,
            };
        }
        if stage != ReplyStage::Early {
            write.settled = tick;
            self.volumes[usize::from(bio.id.volume.0)].discarding -= u32::from(write.discards);
            self.release(ticket.index);
        }
        if bio.op == Op::Discard {
            self.cancel_unflushed(bio);
        }
    }

    fn range(&self, bio: &Bio) -> std::ops::Range<usize> {
        let volume = &self.volumes[usize::from(bio.id.volume.0)];
        volume.cell(bio.offset)..volume.cell(bio.end())
    }

    fn add(&mut self, cell: usize, write: u32, placed: u64) {
        let CellState { entries, search_at, .. } = self.cells[cell];
        if entries > search_at {
            self.prune(cell);
        }
        // A pending discard may still drop this write from memory, even if a flush intervenes: the
        // data are then never written.
        let record = &self.writes[write as usize];
        let volume = &self.volumes[usize::from(record.volume)];
        let caught =
            volume.discarding > 0 && volume.writes_back() && !volume.durable_at_once && !record.fua;
        let under_way = |other: &WriteRecord| other.discards && other.settled == NEVER;
        let lost = caught && self.list(cell).any(|(_, other)| under_way(other));
        let entry = Entry { write, next: self.cells[cell].head, submitted: placed, placed, lost };
        let index = if self.free_entry == NIL {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let free = self.free_entry;
            self.free_entry = self.entries[free as usize].next;
            self.entries[free as usize] = entry;
            free
        };
        self.cells[cell].head = index;
        self.cells[cell].entries = self.cells[cell].entries.saturating_add(1);
        self.writes[write as usize].uses += 1;
    }

    fn release(&mut self, write: u32) {
        let record = &mut self.writes[write as usize];
        record.uses -= 1;
        if record.uses == 0 {
            self.free_writes.push(write);
        }
    }

    fn list(&self, cell: usize) -> impl Iterator<Item = (&Entry, &WriteRecord)> {
        let mut at = self.cells[cell].head;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.next;
            Some((entry, &self.writes[entry.write as usize]))
        })
    }

    /// Whether an acknowledged write survives a power cut.
    fn is_durable(&self, write: &WriteRecord) -> bool {
        let volume = &self.volumes[usize::from(write.volume)];
        volume.mode != WriteMode::Unsafe
            && write.outcome == Outcome::Done
            && (write.fua || volume.durable_at_once || write.ended < volume.flushed)
    }

    /// Whether entries superseded by `write` may be dropped once no read needs them.
    fn is_lasting(&self, write: &WriteRecord) -> bool {
        let volume = &self.volumes[usize::from(write.volume)];
        match volume.mode {
            WriteMode::Unsafe => write.outcome == Outcome::Done,
            _ => self.is_durable(write),
        }
    }

    /// The placement of the last superseding write: permanently if `lasting`, else for a read begun
    /// at `start`.
    fn last_superseding(&self, cell: usize, lasting: bool, start: u64) -> u64 {
        let counts = |write: &WriteRecord| match lasting {
            true => self.is_durable(write),
            false => write.outcome == Outcome::Done && write.ended < start,
        };
        let list = self.list(cell).filter(|(entry, write)| !entry.lost && counts(write));
        let start = if lasting { NEVER } else { start };
        list.map(|(entry, _)| entry.placed_for(start)).max().unwrap_or(0)
    }

    /// Drops entries superseded permanently and for every read in flight.
    fn prune(&mut self, cell: usize) {
        let oldest = self.reads.iter().copied().min().unwrap_or(NEVER);
        let counts = |(entry, write): &(&Entry, &WriteRecord)| {
            !entry.lost && self.is_lasting(write) && write.ended < oldest
        };
        let line = self.list(cell).filter(counts).map(|(entry, _)| entry.placed_for(oldest)).max();
        let Some(line) = line else { return self.search_later(cell) };
        self.cells[cell].base = DEAD;
        let mut at = std::mem::replace(&mut self.cells[cell].head, NIL);
        let (mut tail, mut left) = (NIL, 0);
        while at != NIL {
            let entry = self.entries[at as usize];
            let Entry { write, next, .. } = entry;
            if entry.end(&self.writes[write as usize]) < line {
                self.release(write);
                self.entries[at as usize].next = self.free_entry;
                self.free_entry = at;
            } else {
                match tail {
                    NIL => self.cells[cell].head = at,
                    tail => self.entries[tail as usize].next = at,
                }
                self.entries[at as usize].next = NIL;
                (tail, left) = (at, left + 1);
            }
            at = next;
        }
        self.cells[cell].entries = left;
        self.search_later(cell);
    }

    /// The list is searched again when it is twice as long.
    fn search_later(&mut self, cell: usize) {
        let cell = &mut self.cells[cell];
        cell.search_at = cell.entries.saturating_mul(2).max(LIST_LONG as u16);
    }

    fn mode(&self, cell: usize) -> WriteMode {
        let next = self.volumes.partition_point(|volume| volume.first_cell <= cell);
        self.volumes[next - 1].mode
    }
}

/// Fills the buffer of a write with `version`.
fn fill_all(bio: &Bio, version: u64, bytes: &mut [u8]) {
    let (mut offset, mut rest) = (bio.offset, bytes);
    while !rest.is_empty() {
        let (sector, at) = (offset / SECTOR as u64, offset as usize % SECTOR);
        let (part, after) = rest.split_at_mut(rest.len().min(SECTOR - at));
        sector_pattern::fill_part(part, version, bio.id.volume.0, sector, at);
        offset += part.len() as u64;
        rest = after;
    }
}
