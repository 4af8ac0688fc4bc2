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
//! - A read that finds one of several versions while nothing is pending fixes the order: that version now counts as the last.
//!
//! Time here is a tick that counts submissions and answers, so "before" is never a matter of equal times.

use headworks_core::{Bio, BioFlags, Op, ReplyStage, Status};

use crate::pattern::{self, Found, SECTOR};

const NIL: u32 = u32::MAX;
/// A tick that has not come yet.
const NEVER: u64 = u64::MAX;
/// The base of a sector is no longer possible.
const DEAD: u64 = u64::MAX;
/// Lists longer than this are looked through for entries that are superseded for good.
const LIST_LONG: usize = 6;

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
    volume: u16,
    /// Entries that name it, and one for the bio while it is in flight.
    uses: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    write: u32,
    next: u32,
    /// When it took its place: submission, or when a read fixed the order.
    placed: u64,
}

impl Entry {
    /// When it was over: what took its place later supersedes it. An entry whose order a read fixed does not supersede itself.
    fn end(&self, write: &WriteRecord) -> u64 {
        write.ended.max(self.placed)
    }
}

#[derive(Clone, Copy, Debug)]
struct SectorState {
    base: u64,
    head: u32,
}

#[derive(Debug)]
struct Volume {
    first_sector: usize,
    sectors: usize,
    /// Writes acknowledged before this tick are durable.
    flushed: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Oracle {
    volumes: Vec<Volume>,
    sectors: Vec<SectorState>,
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
}

impl Oracle {
    /// Volumes of these sizes, all zeros.
    #[must_use]
    pub fn new(sizes: &[u64]) -> Self {
        let mut first_sector = 0;
        let volumes = sizes.iter().map(|&size| {
            let volume = Volume { first_sector, sectors: size as usize / SECTOR, flushed: 0 };
            first_sector += volume.sectors;
            volume
        });
        let volumes: Vec<_> = volumes.collect();
        Self {
            volumes,
            sectors: vec![SectorState { base: 0, head: NIL }; first_sector],
            entries: Vec::with_capacity(4096),
            free_entry: NIL,
            writes: Vec::with_capacity(1024),
            free_writes: Vec::with_capacity(1024),
            reads: Vec::with_capacity(256),
            free_reads: Vec::with_capacity(256),
            tick: 1,
            version: 0,
            recovering: false,
        }
    }

    /// A bio that is valid goes to its shard; `bytes` is its buffer, filled here when it is a write.
    pub fn submit(&mut self, bio: &Bio, bytes: &mut [u8]) -> Ticket {
        self.tick += 1;
        let start = self.tick;
        let index = match bio.op {
            Op::Read => self.start_read(start),
            Op::Flush | Op::Prefetch => NIL,
            Op::Write | Op::Discard | Op::WriteZeroes => self.start_write(bio, start),
        };
        if bio.op == Op::Write {
            let (version, first) = (self.version, bio.offset / SECTOR as u64);
            for (at, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
                pattern::fill(sector, version, bio.id.volume.0, first + at as u64);
            }
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
            Op::Read => {
                let checked = match (status, stage) {
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
        for sector in self.range(bio) {
            self.add(sector, write, start);
        }
        write
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
    }

    fn range(&self, bio: &Bio) -> std::ops::Range<usize> {
        let first = self.volumes[usize::from(bio.id.volume.0)].first_sector;
        let offset = bio.offset as usize / SECTOR;
        first + offset..first + offset + bio.len as usize / SECTOR
    }

    fn add(&mut self, sector: usize, write: u32, placed: u64) {
        if self.list_len(sector) > LIST_LONG {
            self.prune(sector);
        }
        let entry = Entry { write, next: self.sectors[sector].head, placed };
        let index = if self.free_entry == NIL {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let free = self.free_entry;
            self.free_entry = self.entries[free as usize].next;
            self.entries[free as usize] = entry;
            free
        };
        self.sectors[sector].head = index;
        self.writes[write as usize].uses += 1;
    }

    fn release(&mut self, write: u32) {
        let record = &mut self.writes[write as usize];
        record.uses -= 1;
        if record.uses == 0 {
            self.free_writes.push(write);
        }
    }

    fn list_len(&self, sector: usize) -> usize {
        self.list(sector).count()
    }

    fn list(&self, sector: usize) -> impl Iterator<Item = (&Entry, &WriteRecord)> {
        let mut at = self.sectors[sector].head;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.next;
            Some((entry, &self.writes[entry.write as usize]))
        })
    }

    /// Whether an acknowledged write survives a power cut.
    fn is_durable(&self, write: &WriteRecord) -> bool {
        let flushed = self.volumes[usize::from(write.volume)].flushed;
        write.outcome == Outcome::Done && (write.fua || write.ended < flushed)
    }

    /// When the last write took its place that supersedes others: for good if `lasting`, else for a read begun at `start`.
    fn line(&self, sector: usize, lasting: bool, start: u64) -> u64 {
        let counts = |write: &WriteRecord| match lasting {
            true => self.is_durable(write),
            false => write.outcome == Outcome::Done && write.ended < start,
        };
        let list = self.list(sector).filter(|(_, write)| counts(write));
        list.map(|(entry, _)| entry.placed).max().unwrap_or(0)
    }

    /// Forgets what is superseded for good and for every read in flight.
    fn prune(&mut self, sector: usize) {
        let oldest = self.reads.iter().copied().min().unwrap_or(NEVER);
        let counts =
            |(_, write): &(&Entry, &WriteRecord)| self.is_durable(write) && write.ended < oldest;
        let line = self.list(sector).filter(counts).map(|(entry, _)| entry.placed).max();
        let Some(line) = line else { return };
        self.sectors[sector].base = DEAD;
        let mut at = std::mem::replace(&mut self.sectors[sector].head, NIL);
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
                    NIL => self.sectors[sector].head = at,
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
        let first = bio.offset / SECTOR as u64;
        for (at, sector) in self.range(bio).enumerate() {
            let number = first + at as u64;
            let place = Some((bio.id.volume.0, number * SECTOR as u64));
            let found = match hole {
                true => Found::Version(0),
                false => {
                    let bytes = &bytes[at * SECTOR..(at + 1) * SECTOR];
                    pattern::identify(bytes, bio.id.volume.0, number)
                }
            };
            let Found::Version(version) = found else {
                return Err(Violation {
                    rule: "a read returns what was written there",
                    detail: format!(
                        "{found:?} was read, which nobody wrote; {}",
                        self.describe(sector)
                    ),
                    place,
                });
            };
            let fits = match self.recovering {
                true => self.settle_survivor(sector, version),
                false => self.check_seen(sector, version, ticket.start),
            };
            if !fits {
                let rule = match self.recovering {
                    true => "a power cut loses nothing that was flushed",
                    false => "a completed write is seen by every later read",
                };
                return Err(Violation {
                    rule,
                    detail: format!(
                        "version {version} was read by a bio submitted at tick {}; {}",
                        ticket.start,
                        self.describe(sector)
                    ),
                    place,
                });
            }
        }
        Ok(())
    }

    /// Whether a read begun at `start` may see `version`; fixes the order of writes if it tells it.
    fn check_seen(&mut self, sector: usize, version: u64, start: u64) -> bool {
        if self.sectors[sector].head == NIL {
            return self.sectors[sector].base == version;
        }
        let line = self.line(sector, false, start);
        let base = self.sectors[sector].base;
        if line == 0 && base == version {
            return true;
        }
        // Of several writes of zeros the last in the list is the newest: the likeliest, and the only safe one to fix.
        let mut at = self.sectors[sector].head;
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
        let write = &self.writes[self.entries[seen as usize].write as usize];
        if quiet && alone && write.outcome == Outcome::Done {
            self.entries[seen as usize].placed = self.tick;
        }
        true
    }

    /// Whether `version` may have survived; from now on it is what the sector holds.
    fn settle_survivor(&mut self, sector: usize, version: u64) -> bool {
        let line = self.line(sector, true, 0);
        let fits = self.sectors[sector].base == version && line == 0
            || self
                .list(sector)
                .any(|(entry, write)| write.version == version && entry.end(write) >= line);
        if fits {
            self.sectors[sector] = SectorState { base: version, head: NIL };
        }
        fits
    }

    fn describe(&self, sector: usize) -> String {
        let mut text = match self.sectors[sector].base {
            DEAD => String::from("it could hold"),
            base => format!("it could hold version {base}"),
        };
        for (entry, write) in self.list(sector) {
            let tick = |tick| match tick {
                NEVER => String::from("-"),
                tick => tick.to_string(),
            };
            text += &format!(
                ", version {} ({:?}{}, ticks {}..{})",
                write.version,
                write.outcome,
                if self.is_durable(write) { ", durable" } else { "" },
                entry.placed,
                tick(write.ended)
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{BioId, IoError};

    /// One sector, bios by hand.
    struct Game {
        oracle: Oracle,
    }

    type Flight = (Bio, Ticket, Vec<u8>);

    impl Game {
        fn new() -> Self {
            let oracle = Oracle::new(&[512]);
            Self { oracle }
        }

        fn start(&mut self, op: Op, flags: BioFlags) -> Flight {
            let bio = Bio {
                id: BioId::default(),
                offset: 0,
                len: if op == Op::Flush { 0 } else { 512 },
                op,
                flags,
                ..Bio::default()
            };
            let mut bytes = vec![0; 512];
            let ticket = self.oracle.submit(&bio, &mut bytes);
            (bio, ticket, bytes)
        }

        fn end(&mut self, flight: &Flight, status: Status, stage: ReplyStage) {
            let (bio, ticket, bytes) = flight;
            let answer = self.oracle.answer(bio, *ticket, status, false, stage, bytes);
            answer.unwrap();
        }

        fn run(&mut self, op: Op, flags: BioFlags) -> Vec<u8> {
            let flight = self.start(op, flags);
            self.end(&flight, Ok(()), ReplyStage::Final);
            flight.2
        }

        fn write(&mut self) -> Vec<u8> {
            self.run(Op::Write, BioFlags::NONE)
        }

        fn flush(&mut self) {
            self.run(Op::Flush, BioFlags::NONE);
        }

        fn may_see(&mut self, bytes: &[u8]) -> bool {
            let (bio, ticket, _) = self.start(Op::Read, BioFlags::NONE);
            let stage = ReplyStage::Final;
            let answer = self.oracle.answer(&bio, ticket, Ok(()), false, stage, bytes);
            answer.is_ok()
        }

        /// Which of the contents may survive a cut now.
        fn survivors(mut self, contents: &[&[u8]]) -> Vec<bool> {
            self.oracle.cut();
            let state = self.oracle.sectors[0];
            let try_one = |bytes: &&[u8]| {
                self.oracle.sectors[0] = state;
                self.may_see(bytes)
            };
            contents.iter().map(try_one).collect()
        }
    }

    const ZEROS: [u8; 512] = [0; 512];

    #[test]
    fn a_completed_write_is_seen_and_an_overlapping_one_may_be() {
        let mut game = Game::new();
        let one = game.write();
        let two = game.start(Op::Write, BioFlags::NONE);
        assert!(!game.may_see(&ZEROS) && game.may_see(&two.2) && game.may_see(&one));
        game.end(&two, Ok(()), ReplyStage::Final);
        assert!(!game.may_see(&one) && game.may_see(&two.2));
    }

    #[test]
    fn what_a_read_saw_of_concurrent_writes_stays() {
        let mut game = Game::new();
        let (one, two) =
            (game.start(Op::Write, BioFlags::NONE), game.start(Op::Write, BioFlags::NONE));
        game.end(&two, Ok(()), ReplyStage::Final);
        game.end(&one, Ok(()), ReplyStage::Final);
        assert!(game.may_see(&two.2) && game.may_see(&two.2) && !game.may_see(&one.2));
        game.flush();
        assert_eq!(game.survivors(&[&one.2, &two.2]), [false, true]);
    }

    #[test]
    fn a_flush_counts_what_was_acknowledged_before_it_was_submitted() {
        let mut game = Game::new();
        let one = game.write();
        let flush = game.start(Op::Flush, BioFlags::NONE);
        let two = game.write();
        game.end(&flush, Ok(()), ReplyStage::Final);
        assert_eq!(game.survivors(&[&ZEROS, &one, &two]), [false, true, true]);
        let mut game = Game::new();
        let one = game.write();
        let flush = game.start(Op::Flush, BioFlags::NONE);
        game.end(&flush, Err(IoError::Medium), ReplyStage::Final);
        assert_eq!(game.survivors(&[&ZEROS, &one]), [true, true]);
    }

    #[test]
    fn fua_is_durable_alone() {
        let mut game = Game::new();
        let one = game.write();
        let two = game.run(Op::Write, BioFlags::FUA);
        let three = game.write();
        let survive = game.survivors(&[&ZEROS, &one, &two, &three]);
        assert_eq!(survive, [false, false, true, true]);
    }

    #[test]
    fn a_failed_write_is_old_or_new_and_a_late_one_never_beats_its_successor() {
        let mut game = Game::new();
        let one = game.write();
        let late = game.start(Op::Write, BioFlags::NONE);
        game.end(&late, Err(IoError::TimedOut), ReplyStage::Early);
        assert!(game.may_see(&one) && game.may_see(&late.2) && game.may_see(&one));
        let two = game.write();
        assert!(!game.may_see(&late.2) && !game.may_see(&one) && game.may_see(&two));
        game.end(&late, Ok(()), ReplyStage::Released);
        assert!(!game.may_see(&late.2) && game.may_see(&two));
    }

    #[test]
    fn discard_leaves_old_or_zeros_and_write_zeroes_leaves_zeros() {
        let mut game = Game::new();
        let one = game.write();
        game.run(Op::Discard, BioFlags::NONE);
        assert!(game.may_see(&one) && game.may_see(&ZEROS) && game.may_see(&one));
        game.run(Op::WriteZeroes, BioFlags::NONE);
        assert!(!game.may_see(&one) && game.may_see(&ZEROS));
    }

    #[test]
    fn lists_stay_short_when_flushes_come() {
        let mut game = Game::new();
        for _ in 0..1_000 {
            game.write();
            game.flush();
        }
        assert!(game.oracle.entries_max() <= LIST_LONG + 2);
        assert!(game.oracle.writes.len() <= LIST_LONG + 3);
    }

    #[test]
    fn foreign_bytes_are_named() {
        let mut game = Game::new();
        let mut bytes = game.write();
        bytes[100] ^= 1;
        assert!(!game.may_see(&bytes) && !game.may_see(&[pattern::POISON; 512]));
    }
}
