//! What each sector may hold: the contract of the path, in no product code.
//!
//! Every write has a version; every sector has a short list of the writes that may be what is seen or what survives:
//!
//! ```text
//!   base (version) <- entry <- entry <- entry          entry = (write, when it took its place)
//!   write: submitted, ended, settled, outcome (pending, done, failed, discarded)
//! ```
//!
//! - An entry is *superseded* for a read when a write that is done and was acknowledged before the read began was submitted
//!   after the entry's end. What is not superseded may be seen. A failed, timed-out or discarding write supersedes nothing.
//! - An entry is superseded for good when that later write is also *durable*: acknowledged with FUA, or before a flush was
//!   submitted that succeeded. What is not superseded for good may be what a power cut leaves.
//! - A read that finds one of several versions while nothing is pending fixes the order: that version now counts as the last,
//!   for reads that begin later.
//! - An entry is *lost* when a discard came upon it before it was durable or was under way when it was submitted, or when the operator gave its block up after a
//!   failed write-out: it may still be seen, and supersedes nothing.
//! - Without a cache, or with `writethrough`, what was acknowledged is durable at once if the device has no volatile cache.
//! - Where flushes promise nothing (`unsafe`), a power cut may leave any version that was ever written there.
//!
//! What has versions is a *cell*: a sector, or where bios may start at any byte, one of the parts that a sector is cut into,
//! at places that are the volume's own. Bios begin and end between cells; what lies in one is told by its bytes alone.
//!
//! Time here is a tick that counts submissions and answers, so "before" is never a matter of equal times.

use headworks_core::prng::Prng;
use headworks_core::{Bio, BioFlags, BioId, Op, ReplyStage, Status, VolumeId, WriteMode};

mod status;
#[cfg(test)]
mod tests;

use crate::sector_pattern::{self, POISON, SECTOR, SectorContent};
use crate::workload::SectorCuts;

const NIL: u32 = u32::MAX;
/// A tick that has not come yet.
const NEVER: u64 = u64::MAX;
/// The base of a cell is no longer possible.
const DEAD: u64 = u64::MAX;
/// The base of a cell is any version of it, only in `unsafe` volumes, whose old versions are forgotten.
const ANY: u64 = u64::MAX - 1;
/// Lists longer than this are looked through for entries that are superseded for good.
const LIST_LONG: usize = 6;

/// What is broken when flushed data are gone.
pub const CUT_RULE: &str = "a power cut loses nothing that was flushed";

/// What was found after power cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutReport {
    /// Cells that were looked at.
    pub cells: u64,
    /// Of these, those that were written since the last cut.
    pub open: u64,
    /// Of these, those that did not hold the newest.
    pub old: u64,
}

impl CutReport {
    /// Another's are counted, too.
    pub fn add(&mut self, other: &Self) {
        self.cells += other.cells;
        self.open += other.open;
        self.old += other.old;
    }
}

/// What was broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub rule: &'static str,
    /// What was seen and what would have been right.
    pub detail: String,
    /// The sector it is about: volume, byte.
    pub place: Option<(u16, u64)>,
}

/// What the oracle gives for a bio and takes back with its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// When it was submitted.
    pub start: u64,
    /// Its write, or its place among the reads.
    index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Pending,
    Done,
    /// Old or new, sector by sector.
    Failed,
    /// Old or zeros.
    Discarded,
}

#[derive(Clone, Copy, Debug)]
struct WriteRecord {
    /// 0 for zeros.
    version: u64,
    ended: u64,
    /// Nothing of it happens after this.
    settled: u64,
    outcome: Outcome,
    fua: bool,
    discards: bool,
    volume: u16,
    /// Entries that name it, and one for the bio while it is in flight.
    uses: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    write: u32,
    next: u32,
    submitted: u64,
    /// When it took its place: submission, or when a read fixed the order.
    placed: u64,
    /// It may be seen, and supersedes nothing.
    lost: bool,
}

impl Entry {
    /// When it was over: what took its place later supersedes it. An entry whose order a read fixed does not supersede itself.
    fn end(&self, write: &WriteRecord) -> u64 {
        write.ended.max(self.placed)
    }

    /// Its place for a read begun at `start`: one that another read gave it later binds nobody who may have taken his bytes before.
    fn placed_for(&self, start: u64) -> u64 {
        if self.placed < start { self.placed } else { self.submitted }
    }
}

#[derive(Clone, Copy, Debug)]
struct CellState {
    base: u64,
    head: u32,
}

/// What the oracle holds a volume to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// Bytes.
    pub size: u64,
    /// Where the cells of each sector start; the first is 0. See [`whole_sectors`] and [`draw_cuts`].
    pub cuts: Vec<u16>,
    /// `None` also where there is no cache.
    pub mode: WriteMode,
    /// The device has no volatile cache.
    pub lasting: bool,
}

/// SectorCuts for volumes where bios are aligned to sectors.
#[must_use]
pub fn whole_sectors() -> Vec<u16> {
    vec![0]
}

/// SectorCuts for volumes where they are not. Every cell has bytes that no other version has: the first the version's number, the
/// others at least eight of the mixed words.
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
    /// What was acknowledged is on a device that keeps it.
    at_once: bool,
    /// Writes acknowledged before this tick are durable.
    flushed: u64,
}

impl Volume {
    /// The cell that starts at `offset`, or that ends what ends there.
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

    /// Whether a write may be in memory only: acknowledged or, with `writethrough`, on its way.
    fn writes_back(&self) -> bool {
        self.mode != WriteMode::None
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Oracle {
    volumes: Vec<Volume>,
    cells: Vec<CellState>,
    entries: Vec<Entry>,
    free_entry: u32,
    writes: Vec<WriteRecord>,
    free_writes: Vec<u32>,
    /// Start of each read in flight, `NEVER` where there is none.
    reads: Vec<u64>,
    free_reads: Vec<u32>,
    tick: u64,
    version: u64,
    /// Reads look at what survived a power cut, and settle it.
    recovering: bool,
    /// By write mode.
    survived: [CutReport; WriteMode::ALL.len()],
}

impl Oracle {
    /// Volumes of these contracts, all zeros.
    #[must_use]
    pub fn new(contracts: &[Contract]) -> Self {
        let mut cells = 0;
        let volumes = contracts.iter().map(|contract| {
            let Contract { size, cuts, mode, lasting } = contract.clone();
            let at_once = lasting && matches!(mode, WriteMode::None | WriteMode::Writethrough);
            let first_cell = cells;
            cells += size as usize / SECTOR * cuts.len();
            Volume { first_cell, cuts, mode, at_once, flushed: 0 }
        });
        let volumes: Vec<_> = volumes.collect();
        Self {
            volumes,
            cells: vec![CellState { base: 0, head: NIL }; cells],
            entries: Vec::with_capacity(4096),
            free_entry: NIL,
            writes: Vec::with_capacity(1024),
            free_writes: Vec::with_capacity(1024),
            reads: Vec::with_capacity(256),
            free_reads: Vec::with_capacity(256),
            tick: 1,
            version: 0,
            recovering: false,
            survived: [CutReport::default(); WriteMode::ALL.len()],
        }
    }

    /// A bio that is valid goes to its shard; `bytes` is its buffer, filled here when it is a write.
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

    /// Its answer, or the news that its buffer is free.
    ///
    /// # Errors
    /// What the answer breaks.
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

    /// Another volume, all zeros, takes the place of one of which nothing is on its way.
    pub fn replace(&mut self, volume: u16) {
        self.tick += 1;
        let (first, end) = self.cells_from(volume, 0);
        for cell in first..end {
            let mut at =
                std::mem::replace(&mut self.cells[cell], CellState { base: 0, head: NIL }).head;
            while at != NIL {
                let Entry { write, next, .. } = self.entries[at as usize];
                self.release(write);
                self.entries[at as usize].next = std::mem::replace(&mut self.free_entry, at);
                at = next;
            }
        }
        self.volumes[usize::from(volume)].flushed = self.tick;
    }

    /// A volume ends at `end` for a while: what is beyond may be zeros from now on, or what it was, as after a discard.
    pub fn cut_off(&mut self, volume: u16, end: u64, old_end: u64) {
        let id = BioId { volume: VolumeId(volume), ..BioId::default() };
        let len = (old_end - end) as u32;
        let bio = Bio { id, op: Op::Discard, offset: end, len, ..Bio::default() };
        let ticket = self.submit(&bio, &mut []);
        self.tick += 1;
        self.end_write(&bio, ticket, Ok(()), ReplyStage::Final);
    }

    /// The power failed when a volume ended there: behind it is nothing.
    pub fn forget_beyond(&mut self, volume: u16, end: u64) {
        let (first, last) = self.cells_from(volume, end);
        self.cells[first..last].fill(CellState { base: 0, head: NIL });
    }

    /// The cells of a volume from a byte on.
    fn cells_from(&self, volume: u16, offset: u64) -> (usize, usize) {
        let next = self.volumes.get(usize::from(volume) + 1);
        let end = next.map_or(self.cells.len(), |volume| volume.first_cell);
        (self.volumes[usize::from(volume)].cell(offset), end)
    }

    /// The power failed: nothing in flight will be answered; what survived shows when it is read.
    pub fn cut(&mut self) {
        self.reads.clear();
        self.free_reads.clear();
        self.recovering = true;
    }

    /// Every sector was read, after a cut if there was one.
    pub fn recovered(&mut self) {
        if !std::mem::take(&mut self.recovering) {
            return;
        }
        self.writes.clear();
        self.free_writes.clear();
        self.entries.clear();
        self.free_entry = NIL;
    }

    /// What was found after cuts, by write mode.
    #[must_use]
    pub fn survived(&self) -> [CutReport; WriteMode::ALL.len()] {
        self.survived
    }

    /// Now.
    #[must_use]
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// Entries in all lists, to see that they stay bounded.
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
            fua: bio.flags.contains(BioFlags::FUA),
            discards: bio.op == Op::Discard,
            volume: bio.id.volume.0,
            uses: 1,
        };
        let write = match self.free_writes.pop() {
            Some(free) => {
                self.writes[free as usize] = record;
                free
            }
            None => {
                self.writes.push(record);
                self.writes.len() as u32 - 1
            }
        };
        if bio.op == Op::Discard {
            self.cancel(bio);
        }
        for cell in self.range(bio) {
            self.add(cell, write, start);
        }
        write
    }

    /// A discard was submitted, or is over: what is not durable yet, it may have caught in memory.
    fn cancel(&mut self, bio: &Bio) {
        let volume = &self.volumes[usize::from(bio.id.volume.0)];
        if volume.writes_back() {
            let range = self.range(bio);
            self.lose(range);
        }
    }

    /// The operator gave up what could not be written of the range: the device has what it had before.
    pub fn give_up(&mut self, volume: u16, offset: u64, len: u64) {
        let volume = &self.volumes[usize::from(volume)];
        let (first, end) = (volume.cell(offset), volume.cell(offset + len));
        self.lose(first..end);
    }

    fn lose(&mut self, cells: std::ops::Range<usize>) {
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
            self.release(ticket.index);
        }
        if bio.op == Op::Discard {
            self.cancel(bio);
        }
    }

    fn range(&self, bio: &Bio) -> std::ops::Range<usize> {
        let volume = &self.volumes[usize::from(bio.id.volume.0)];
        volume.cell(bio.offset)..volume.cell(bio.end())
    }

    fn add(&mut self, cell: usize, write: u32, placed: u64) {
        if self.list_len(cell) > LIST_LONG {
            self.prune(cell);
        }
        // A discard that is under way may still catch it in memory, even if a flush comes between: nothing of it is written then.
        let record = &self.writes[write as usize];
        let volume = &self.volumes[usize::from(record.volume)];
        let caught = volume.writes_back() && !volume.at_once && !record.fua;
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
        self.writes[write as usize].uses += 1;
    }

    fn release(&mut self, write: u32) {
        let record = &mut self.writes[write as usize];
        record.uses -= 1;
        if record.uses == 0 {
            self.free_writes.push(write);
        }
    }

    fn list_len(&self, cell: usize) -> usize {
        self.list(cell).count()
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
            && (write.fua || volume.at_once || write.ended < volume.flushed)
    }

    /// Whether what `write` superseded may be forgotten, if no read wants it.
    fn is_lasting(&self, write: &WriteRecord) -> bool {
        let volume = &self.volumes[usize::from(write.volume)];
        match volume.mode {
            WriteMode::Unsafe => write.outcome == Outcome::Done,
            _ => self.is_durable(write),
        }
    }

    /// When the last write took its place that supersedes others: for good if `lasting`, else for a read begun at `start`.
    fn line(&self, cell: usize, lasting: bool, start: u64) -> u64 {
        let counts = |write: &WriteRecord| match lasting {
            true => self.is_durable(write),
            false => write.outcome == Outcome::Done && write.ended < start,
        };
        let list = self.list(cell).filter(|(entry, write)| !entry.lost && counts(write));
        let start = if lasting { NEVER } else { start };
        list.map(|(entry, _)| entry.placed_for(start)).max().unwrap_or(0)
    }

    /// Forgets what is superseded for good and for every read in flight.
    fn prune(&mut self, cell: usize) {
        let oldest = self.reads.iter().copied().min().unwrap_or(NEVER);
        let counts = |(entry, write): &(&Entry, &WriteRecord)| {
            !entry.lost && self.is_lasting(write) && write.ended < oldest
        };
        let line = self.list(cell).filter(counts).map(|(entry, _)| entry.placed_for(oldest)).max();
        let Some(line) = line else { return };
        self.cells[cell].base = DEAD;
        let mut at = std::mem::replace(&mut self.cells[cell].head, NIL);
        let mut tail = NIL;
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
                tail = at;
            }
            at = next;
        }
    }

    fn check_read(
        &mut self,
        bio: &Bio,
        ticket: Ticket,
        hole: bool,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        for cell in self.range(bio) {
            let volume = &self.volumes[usize::from(bio.id.volume.0)];
            let (number, at, len) = volume.place(cell);
            let offset = number * SECTOR as u64 + at as u64;
            let place = Some((bio.id.volume.0, offset));
            let start = (offset - bio.offset) as usize;
            let found = match hole {
                true => SectorContent::Version(0),
                false => self.identify(cell, &bytes[start..start + len], bio.id.volume.0),
            };
            let SectorContent::Version(version) = found else {
                // A part of a sector does not tell a version that is no longer possible.
                let old = self.recovering && len < SECTOR && found == SectorContent::Garbage;
                return Err(Violation {
                    rule: if old { CUT_RULE } else { "a read returns what was written there" },
                    detail: format!(
                        "{found:?} was read, which nobody wrote; {}",
                        self.describe(cell)
                    ),
                    place,
                });
            };
            let fits = match self.recovering {
                true => self.settle_survivor(cell, version),
                false => self.check_seen(cell, version, ticket.start),
            };
            if !fits {
                let rule = match self.recovering {
                    true => CUT_RULE,
                    false => "a completed write is seen by every later read",
                };
                return Err(Violation {
                    rule,
                    detail: format!(
                        "version {version} was read by a bio submitted at tick {}; {}",
                        ticket.start,
                        self.describe(cell)
                    ),
                    place,
                });
            }
        }
        Ok(())
    }

    /// What the bytes of a cell are. A part of a sector is known only by what it could be.
    fn identify(&self, cell: usize, bytes: &[u8], volume: u16) -> SectorContent {
        let (sector, at, len) = self.volumes[usize::from(volume)].place(cell);
        if len == SECTOR {
            return sector_pattern::identify(bytes, volume, sector);
        }
        let base = self.cells[cell].base;
        let versions = self.list(cell).map(|(_, write)| write.version);
        let known = versions.chain((base < ANY).then_some(base));
        let mut known =
            known.filter(|&version| sector_pattern::is_part(bytes, version, volume, sector, at));
        let named = (at == 0).then(|| sector_pattern::named(bytes));
        let named =
            named.filter(|&version| sector_pattern::is_part(bytes, version, volume, sector, at));
        match known.next().or(named) {
            Some(version) => SectorContent::Version(version),
            None if bytes.iter().all(|&byte| byte == POISON) => SectorContent::Poison,
            None => SectorContent::Garbage,
        }
    }

    /// Whether a read begun at `start` may see `version`; fixes the order of writes if it tells it.
    fn check_seen(&mut self, cell: usize, version: u64, start: u64) -> bool {
        let base = self.cells[cell].base;
        let is_base = base == version || base == ANY;
        if self.cells[cell].head == NIL {
            return is_base;
        }
        let line = self.line(cell, false, start);
        if line == 0 && is_base {
            return true;
        }
        // Of several writes of zeros the last in the list is the newest: the likeliest, and the only safe one to fix.
        let mut at = self.cells[cell].head;
        let (mut seen, mut quiet, mut alone) = (NIL, true, line != 0 || base == DEAD);
        while at != NIL {
            let entry = &self.entries[at as usize];
            let write = &self.writes[entry.write as usize];
            quiet &= write.settled < start && write.outcome != Outcome::Discarded;
            if write.version == version && entry.end(write) >= line {
                alone &= seen == NIL;
                seen = if seen == NIL { at } else { seen };
            }
            at = entry.next;
        }
        if seen == NIL {
            return false;
        }
        let entry = &mut self.entries[seen as usize];
        let write = &self.writes[entry.write as usize];
        if quiet && alone && write.outcome == Outcome::Done && !entry.lost {
            entry.placed = self.tick;
        }
        true
    }

    /// Whether `version` may have survived; from now on it is what the cell holds.
    fn settle_survivor(&mut self, cell: usize, version: u64) -> bool {
        let line = self.line(cell, true, 0);
        let base = self.cells[cell].base;
        let is_base = base == version || base == ANY;
        let fits = self.forgets(cell)
            || is_base && line == 0
            || self
                .list(cell)
                .any(|(entry, write)| write.version == version && entry.end(write) >= line);
        if fits {
            let newest = self.list(cell).next().map(|(_, write)| write.version);
            let survived = &mut self.survived[self.mode(cell) as usize];
            survived.cells += 1;
            survived.open += u64::from(newest.is_some());
            survived.old += u64::from(newest.is_some_and(|newest| newest != version));
            self.cells[cell] = CellState { base: version, head: NIL };
        }
        fits
    }

    /// Whether a cut may leave any version, also one that is no longer listed: whole sectors tell theirs.
    fn forgets(&self, cell: usize) -> bool {
        self.mode(cell) == WriteMode::Unsafe
    }

    fn mode(&self, cell: usize) -> WriteMode {
        let next = self.volumes.partition_point(|volume| volume.first_cell <= cell);
        self.volumes[next - 1].mode
    }

    fn describe(&self, cell: usize) -> String {
        let mut text = match self.cells[cell].base {
            DEAD => String::from("it could hold"),
            ANY => String::from("it could hold any version"),
            base => format!("it could hold version {base}"),
        };
        for (entry, write) in self.list(cell) {
            let tick = |tick| match tick {
                NEVER => String::from("-"),
                tick => tick.to_string(),
            };
            text += &format!(
                ", version {} ({:?}{}{}, ticks {}..{})",
                write.version,
                write.outcome,
                if self.is_durable(write) { ", durable" } else { "" },
                if entry.lost { ", lost" } else { "" },
                entry.placed,
                tick(write.ended)
            );
        }
        text
    }
}

/// Writes `version` into the buffer of a write.
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
