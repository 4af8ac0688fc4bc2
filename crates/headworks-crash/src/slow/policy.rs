//! Which operation on a file becomes which commands of the disk, and how long the program waits.
//!
//! | operation | commands | the program waits for |
//! |---|---|---|
//! | write | none: its blocks are dirty | nothing; beyond the dirty limit until enough is written |
//! | write with O_DIRECT | its blocks | these |
//! | write with O_SYNC, O_DSYNC | its blocks, then as fsync, fdatasync | all of them |
//! | read | the blocks that are neither dirty, being written nor a hole | these |
//! | fsync, fdatasync | the file's dirty blocks; then a commit of the journal if it has a change of the file (of its length or places), else a flush | all of them |
//! | fsync of a directory | a commit of the journal if it has any change, as ext4 does | it |
//! | syncfs, where the kernel asks for it | the same for all files | all of them |
//! | a change of names, attributes or a length | none: the journal's running transaction has it | nothing |
//!
//! Besides, as Linux does: dirty blocks are written back beyond half of the dirty limit and 30 s after they were written, the transaction
//! commits after 5 s.
//!
//! A call takes effect at `now`. What follows from an event of the disk takes effect at the event's own time, however late
//! [`SlowDisk::on_timeout`] is called: a late answer is late for its program and moves nothing that the disk does.
//! Invariants: an operation ends once, never before the model's time; an fsync ends after a flush that was submitted when the
//! writes of all that it covers had ended. Bounded: at most [`OPERATIONS_MAX`] operations wait; dirty blocks, places and transactions are as
//! many as blocks and files.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use headworks_core::Instant;
use headworks_core::time::SEC;
use headworks_disks::DeviceModel;

use super::journal::{Journal, Phase};
use super::places::{BLOCK, Places};
use super::queue::{COMMAND_MAX, Commands, DeviceQueue, Work};

/// Operations that wait at once.
pub(crate) const OPERATIONS_MAX: usize = 1024;
/// Age at which dirty blocks are written back, as `dirty_expire_centisecs`.
const EXPIRE: u64 = 30 * SEC;
/// Blocks of a file that write-back takes at once: 4 MiB, as MIN_WRITEBACK_PAGES.
const WRITEBACK_BLOCKS: usize = 1024;

/// Sizes of a slow disk's file system.
#[derive(Clone, Copy, Debug)]
pub struct SlowOptions {
    /// Bytes of all files.
    pub size: u64,
    /// Bytes that writes may leave in memory; beyond them writers wait for the disk.
    pub dirty: u64,
    /// Commands that the disk takes at once.
    pub depth: u32,
}

/// What a program waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// A read.
    Read,
    /// A write: for room in memory, or for the disk if it is direct.
    Write,
    /// A sync: fsync, fdatasync, syncfs, or a write that includes one.
    Sync,
}

/// Operations that have waited, of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many they are.
    pub count: u64,
    /// Nanoseconds of all of them by the model.
    pub ns: u64,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The number that the operation was given.
    pub ticket: u64,
    /// The model's time of its end.
    pub at: Instant,
    /// Nanoseconds that it took by the model.
    pub took: u64,
}

/// What needs a change, and what a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The data, and what is needed to read them: fdatasync.
    Data,
    /// All attributes, too: fsync.
    All,
}

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Some time.
    Buffered,
    /// It goes to the disk at once, O_DIRECT.
    Direct,
    /// Before it ends, O_DSYNC, or with all attributes, O_SYNC.
    Synchronous(Durability),
}

/// A write of a file.
#[derive(Clone, Copy, Debug)]
pub struct SlowWrite {
    /// Number of the file.
    pub file: u64,
    /// Where its bytes begin.
    pub offset: u64,
    /// Number of its bytes.
    pub len: u64,
    /// Whether the file is longer than before.
    pub grown: bool,
    /// How it becomes durable.
    pub mode: WriteMode,
}

/// What is waited for, and what follows.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many reads.
    Reads(u64),
    /// Fewer dirty blocks.
    Room,
    /// Writes of a file, or of all, with sequence numbers from `first` to below `fence`; then durability.
    Writes { file: Option<u64>, first: u64, fence: u64, then: Option<Durability> },
    /// A transaction; then a flush.
    Commit { transaction: u64, flush: bool },
    /// A flush.
    Flush,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    ticket: u64,
    kind: WaitKind,
    started: Instant,
    step: Step,
}

/// A file as the disk's file system sees it.
#[derive(Debug, Default)]
struct File {
    dirty: BTreeSet<u64>,
    /// When the oldest dirty block was written.
    dirty_since: Option<Instant>,
    /// Blocks that are being written, with the number of their commands.
    writing: BTreeMap<u64, u32>,
    /// Sequence numbers of its writes that have not ended.
    outstanding: BTreeSet<u64>,
    /// Whether its length is to be changed when its blocks are written back.
    grown: bool,
    /// The transaction of its last change, and of the last one that its data need.
    changed: u64,
    data_changed: u64,
    /// Operations that wait for its writes.
    waiters: Vec<usize>,
    /// It goes when its last write has ended.
    gone: bool,
}

/// What waits for a flush.
#[derive(Clone, Copy, Debug)]
enum FlushFor {
    Operation(usize),
    Journal,
}

/// At most one flush is under way; one that is wanted meanwhile is the next, for all that want it.
#[derive(Debug, Default)]
struct Flushes {
    under_way: bool,
    covered: Vec<FlushFor>,
    wanted: Vec<FlushFor>,
}

/// A rule that a test breaks.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    SkipsFlush,
    FlushesBeforeWritesEnd,
    SkipsCommit,
    IgnoresDirtyLimit,
    EndsEarly,
    JoinsEndingCommit,
    ForgetsRewrites,
}

/// A file system on a modelled disk, without the bytes of its files.
pub struct SlowDisk {
    options: SlowOptions,
    queue: DeviceQueue,
    places: Places,
    journal: Journal,
    files: HashMap<u64, File>,
    /// Files with dirty blocks, oldest first.
    ages: BTreeSet<(Instant, u64)>,
    dirty: u64,
    writing: u64,
    next_sequence: u64,
    outstanding: BTreeSet<u64>,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    waiting_for_room: VecDeque<usize>,
    waiting_for_all: Vec<usize>,
    waiting_for_commit: Vec<usize>,
    flushes: Flushes,
    now: Instant,
    ended: Vec<Ended>,
    waits: [Waits; 3],
    work: Vec<Work>,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

impl SlowDisk {
    /// An empty file system on an idle disk.
    #[must_use]
    pub fn new(model: Box<dyn DeviceModel + Send>, options: SlowOptions) -> Self {
        let places = Places::new(options.size);
        Self {
            options,
            queue: DeviceQueue::new(model, options.depth),
            journal: Journal::new(places.journal()),
            places,
            files: HashMap::new(),
            ages: BTreeSet::new(),
            dirty: 0,
            writing: 0,
            next_sequence: 0,
            outstanding: BTreeSet::new(),
            operations: Vec::new(),
            free: Vec::new(),
            waiting_for_room: VecDeque::new(),
            waiting_for_all: Vec::new(),
            waiting_for_commit: Vec::new(),
            flushes: Flushes::default(),
            now: Instant(0),
            ended: Vec::new(),
            waits: [Waits::default(); 3],
            work: Vec::new(),
            #[cfg(test)]
            fault: None,
        }
    }

    /// Bytes of a disk that a file system of `size` bytes takes, with its journal.
    #[must_use]
    pub fn span(size: u64) -> u64 {
        Places::span(size)
    }

    /// Gives blocks of a file places on the disk, as if they had always been there: they are neither dirty nor in memory.
    pub fn put(&mut self, file: u64, blocks: Range<u64>) {
        self.places.place(file, blocks);
    }

    /// Whether one more operation may wait.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.operations.len() - self.free.len() < OPERATIONS_MAX
    }

    /// Writes bytes of a file. Returns whether the program waits; then the ticket ends later.
    pub fn on_write(&mut self, now: Instant, ticket: u64, write: SlowWrite) -> bool {
        self.on_timeout(now);
        let blocks = blocks_of(write.offset, write.len);
        if blocks.is_empty() {
            return false;
        }
        let file = self.files.entry(write.file).or_default();
        let before = file.dirty.len();
        file.dirty.extend(blocks.clone());
        self.dirty += (file.dirty.len() - before) as u64;
        file.grown |= write.grown;
        if file.dirty_since.is_none() {
            file.dirty_since = Some(now);
            self.ages.insert((now, write.file));
        }
        file.changed = self.journal.change(now, file.changed);
        let waits = match write.mode {
            WriteMode::Buffered => {
                let over = self.is_over_limit();
                if over {
                    let op = self.begin(now, ticket, WaitKind::Write, Step::Room);
                    self.waiting_for_room.push_back(op);
                }
                over
            }
            WriteMode::Direct | WriteMode::Synchronous(_) => {
                let then = match write.mode {
                    WriteMode::Synchronous(durability) => Some(durability),
                    _ => None,
                };
                let first = self.next_sequence;
                self.write_out(write.file, blocks, usize::MAX);
                self.wait_for_writes(now, ticket, (Some(write.file), first), then);
                true
            }
        };
        self.go_on(now);
        waits
    }

    /// Reads bytes of a file. Returns whether the program waits; then the ticket ends later.
    pub fn on_read(&mut self, now: Instant, ticket: u64, file: u64, offset: u64, len: u64) -> bool {
        self.on_timeout(now);
        let mut wanted = Vec::new();
        let memory = self.files.get(&file);
        let in_memory = |block: u64| {
            memory.is_some_and(|file| {
                file.dirty.contains(&block) || file.writing.contains_key(&block)
            })
        };
        for run in self.places.runs(file, blocks_of(offset, len)) {
            let mut part: Option<(u64, u64)> = None;
            for index in 0..run.count {
                let place = run.place + index;
                part = match part {
                    _ if in_memory(run.block + index) => {
                        wanted.extend(part);
                        None
                    }
                    Some((first, count)) if count < COMMAND_MAX => Some((first, count + 1)),
                    full => {
                        wanted.extend(full);
                        Some((place, 1))
                    }
                };
            }
            wanted.extend(part);
        }
        if wanted.is_empty() {
            return false;
        }
        let step = Step::Reads(wanted.len() as u64);
        let op = self.begin(now, ticket, WaitKind::Read, step);
        for (place, count) in wanted {
            self.queue.push(Work::Read { op }, place, count);
        }
        self.go_on(now);
        true
    }

    /// Makes a file durable. The program waits.
    pub fn on_sync(&mut self, now: Instant, ticket: u64, file: u64, durability: Durability) {
        self.on_timeout(now);
        self.write_out(file, 0..u64::MAX, usize::MAX);
        self.wait_for_writes(now, ticket, (Some(file), 0), Some(durability));
        self.go_on(now);
    }

    /// Makes the names of a directory durable, and with them all that the journal has. Returns whether the program waits; then the ticket
    /// ends later.
    pub fn on_sync_directory(&mut self, now: Instant, ticket: u64) -> bool {
        self.on_timeout(now);
        let transaction = self.journal.last();
        #[cfg(test)]
        if self.fault == Some(Fault::SkipsCommit) {
            return false;
        }
        if self.journal.is_committed(transaction) {
            return false;
        }
        self.journal.want(transaction);
        let step = Step::Commit { transaction, flush: false };
        let op = self.begin(now, ticket, WaitKind::Sync, step);
        self.waiting_for_commit.push(op);
        self.go_on(now);
        true
    }

    /// Makes everything durable. The program waits.
    pub fn on_sync_all(&mut self, now: Instant, ticket: u64) {
        self.on_timeout(now);
        let dirty: Vec<u64> = self.ages.iter().map(|(_, file)| *file).collect();
        for file in dirty {
            self.write_out(file, 0..u64::MAX, usize::MAX);
        }
        self.wait_for_writes(now, ticket, (None, 0), Some(Durability::All));
        self.go_on(now);
    }

    /// Notes a change of a file or directory: of names, attributes, times; [`Durability::Data`] if its data need it.
    pub fn on_change(&mut self, now: Instant, file: u64, needed_by: Durability) {
        self.on_timeout(now);
        let state = self.files.entry(file).or_default();
        state.changed = self.journal.change(now, state.changed);
        if needed_by == Durability::Data {
            state.data_changed = state.changed;
        }
    }

    /// Cuts or extends a file to `size` bytes.
    pub fn on_truncate(&mut self, now: Instant, file: u64, size: u64) {
        self.on_punch(now, file, size.div_ceil(BLOCK)..u64::MAX);
    }

    /// Makes whole blocks of a file a hole.
    pub fn on_punch(&mut self, now: Instant, file: u64, blocks: Range<u64>) {
        self.on_change(now, file, Durability::Data);
        self.drop_blocks(file, blocks);
        self.go_on(now);
    }

    /// A file has no name and no user any more.
    pub fn on_gone(&mut self, now: Instant, file: u64) {
        self.on_timeout(now);
        self.drop_blocks(file, 0..u64::MAX);
        if let Some(state) = self.files.get_mut(&file) {
            state.gone = true;
            self.drop_gone(file);
        }
        self.go_on(now);
    }

    /// When something happens by itself: a command ends, a transaction commits, dirty blocks are old.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let aged = self.ages.first().map(|(since, _)| since.after(EXPIRE));
        // Once due, it waits for the disk.
        let aged = aged.filter(|at| *at > self.now);
        let commit = self.journal.next_timeout();
        [self.queue.next_timeout(), aged, commit].into_iter().flatten().min()
    }

    /// Processes everything that happens up to `now`, at its own time.
    pub fn on_timeout(&mut self, now: Instant) {
        while let Some(at) = self.next_timeout().filter(|at| *at <= now) {
            self.now = self.now.max(at);
            let mut work = std::mem::take(&mut self.work);
            if self.queue.next_timeout().is_some_and(|event| event <= at) {
                self.queue.step(at, &mut work);
            }
            for done in work.drain(..) {
                self.on_command(at, done);
            }
            self.work = work;
            self.go_on(at);
        }
        self.now = self.now.max(now);
    }

    /// The operations that have ended, in their order.
    pub fn drain_ended(&mut self) -> impl Iterator<Item = Ended> + '_ {
        self.ended.drain(..)
    }

    /// What the disk did so far.
    #[must_use]
    pub fn commands(&self) -> Commands {
        self.queue.total()
    }

    /// Transactions of the journal that were committed so far.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.journal.commits()
    }

    /// Operations of a kind that have waited, and how long.
    #[must_use]
    pub fn waits(&self, kind: WaitKind) -> Waits {
        self.waits[kind as usize]
    }

    /// Bytes that are in memory alone.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        (self.dirty + self.writing) * BLOCK
    }

    /// What follows from any change: write-back, a commit, and commands for the disk.
    fn go_on(&mut self, now: Instant) {
        let background = self.options.dirty / 2 / BLOCK;
        while self.queue.writes() < self.queue.background_max()
            && let Some(&(since, file)) = self.ages.first()
            && (self.dirty > background || since.after(EXPIRE) <= now)
        {
            self.write_out(file, 0..u64::MAX, WRITEBACK_BLOCKS);
        }
        for (place, count) in self.journal.begin(now, COMMAND_MAX) {
            self.queue.push(Work::Journal, place, count);
        }
        if !self.flushes.under_way && !self.flushes.wanted.is_empty() {
            self.flushes.under_way = true;
            self.flushes.covered = std::mem::take(&mut self.flushes.wanted);
            self.queue.push(Work::Flush, 0, 0);
        }
        self.queue.dispatch(now);
    }

    fn is_over_limit(&self) -> bool {
        #[cfg(test)]
        if self.fault == Some(Fault::IgnoresDirtyLimit) {
            return false;
        }
        (self.dirty + self.writing) * BLOCK > self.options.dirty
    }

    /// Queues writes of up to `most` dirty blocks of a range of a file, which get their places now.
    fn write_out(&mut self, number: u64, range: Range<u64>, most: usize) {
        let Some(file) = self.files.get_mut(&number) else { return };
        let blocks: Vec<u64> = file.dirty.range(range).take(most).copied().collect();
        let mut at = 0;
        while at < blocks.len() {
            let first = blocks[at];
            let together = (at..blocks.len())
                .take_while(|index| blocks[*index] == first + (*index - at) as u64)
                .count();
            at += together;
            let (runs, new) = self.places.place(number, first..first + together as u64);
            if new || file.grown {
                file.changed = self.journal.change(self.now, file.changed);
                file.data_changed = file.changed;
                file.grown = false;
            }
            for run in runs {
                for done in (0..run.count).step_by(COMMAND_MAX as usize) {
                    let count = COMMAND_MAX.min(run.count - done);
                    let (sequence, block) = (self.next_sequence, run.block + done);
                    self.next_sequence += 1;
                    self.outstanding.insert(sequence);
                    file.outstanding.insert(sequence);
                    let work = Work::Write { file: number, sequence, block, count };
                    self.queue.push(work, run.place + done, count);
                }
            }
        }
        for block in &blocks {
            file.dirty.remove(block);
            *file.writing.entry(*block).or_default() += 1;
        }
        self.dirty -= blocks.len() as u64;
        self.writing += blocks.len() as u64;
        self.note_age(number);
    }

    /// A file without dirty blocks has no age.
    fn note_age(&mut self, number: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        if file.dirty.is_empty()
            && let Some(since) = file.dirty_since.take()
        {
            self.ages.remove(&(since, number));
        }
    }

    fn drop_blocks(&mut self, number: u64, blocks: Range<u64>) {
        self.places.remove(number, blocks.clone());
        let Some(file) = self.files.get_mut(&number) else { return };
        let gone: Vec<u64> = file.dirty.range(blocks).copied().collect();
        for block in &gone {
            file.dirty.remove(block);
        }
        self.dirty -= gone.len() as u64;
        self.note_age(number);
        self.release_writers();
    }

    fn begin(&mut self, now: Instant, ticket: u64, kind: WaitKind, step: Step) -> usize {
        let operation = Some(Operation { ticket, kind, started: now, step });
        match self.free.pop() {
            Some(op) => {
                self.operations[op] = operation;
                op
            }
            None => {
                self.operations.push(operation);
                self.operations.len() - 1
            }
        }
    }

    fn step_of(&mut self, op: usize) -> &mut Step {
        &mut self.operations[op].as_mut().expect("an operation that waits is there").step
    }

    /// Ends an operation at the model's time `at`.
    fn end(&mut self, at: Instant, op: usize) {
        let operation = self.operations[op].take().expect("an operation ends once");
        self.free.push(op);
        let took = at.since(operation.started);
        let waits = &mut self.waits[operation.kind as usize];
        waits.count += 1;
        waits.ns += took;
        self.ended.push(Ended { ticket: operation.ticket, at, took });
    }

    /// Begins an operation that waits for the writes of a file, or of all, from the sequence number `first` to now.
    fn wait_for_writes(
        &mut self,
        now: Instant,
        ticket: u64,
        (file, first): (Option<u64>, u64),
        then: Option<Durability>,
    ) {
        let kind = if then.is_some() { WaitKind::Sync } else { WaitKind::Write };
        let step = Step::Writes { file, first, fence: self.next_sequence, then };
        let op = self.begin(now, ticket, kind, step);
        #[cfg(test)]
        if self.fault == Some(Fault::EndsEarly) && then.is_none() {
            return self.end(now, op);
        }
        if !self.pass_fence(now, op) {
            match file {
                Some(file) => self.files.entry(file).or_default().waiters.push(op),
                None => self.waiting_for_all.push(op),
            }
        }
    }

    /// Goes on with an operation if the writes that it waits for have ended.
    fn pass_fence(&mut self, at: Instant, op: usize) -> bool {
        let Step::Writes { file, first, fence, then } = *self.step_of(op) else { return true };
        let outstanding = match file {
            Some(file) => self.files.get(&file).map(|file| &file.outstanding),
            None => Some(&self.outstanding),
        };
        let waits = outstanding.is_some_and(|all| all.range(first..fence).next().is_some());
        #[cfg(test)]
        let waits = waits && self.fault != Some(Fault::FlushesBeforeWritesEnd);
        if waits {
            return false;
        }
        match then {
            Some(durability) => self.make_durable(op, file, durability),
            None => self.end(at, op),
        }
        true
    }

    /// The data are written: commits what they need, or flushes.
    fn make_durable(&mut self, op: usize, file: Option<u64>, durability: Durability) {
        #[cfg(test)]
        if self.fault == Some(Fault::SkipsFlush) {
            return self.end(self.now, op);
        }
        let state = file.and_then(|file| self.files.get(&file));
        let transaction = match (file, durability) {
            (None, _) => self.journal.last(),
            (_, Durability::All) => state.map_or(0, |file| file.changed),
            (_, Durability::Data) => state.map_or(0, |file| file.data_changed),
        };
        if self.journal.is_committed(transaction) {
            return self.want_flush(FlushFor::Operation(op));
        }
        let covers = self.journal.want(transaction);
        #[cfg(test)]
        let covers = covers || self.fault == Some(Fault::JoinsEndingCommit);
        *self.step_of(op) = Step::Commit { transaction, flush: !covers };
        self.waiting_for_commit.push(op);
    }

    fn want_flush(&mut self, wanting: FlushFor) {
        if let FlushFor::Operation(op) = wanting {
            *self.step_of(op) = Step::Flush;
        }
        self.flushes.wanted.push(wanting);
    }

    /// A command has ended.
    fn on_command(&mut self, at: Instant, work: Work) {
        match work {
            Work::Read { op } => {
                let Step::Reads(left) = self.step_of(op) else { return };
                *left -= 1;
                if *left == 0 {
                    self.end(at, op);
                }
            }
            Work::Write { file, sequence, block, count } => {
                self.on_written(at, file, sequence, block..block + count);
            }
            Work::Journal | Work::Record => self.on_journal(at),
            Work::Flush => {
                self.flushes.under_way = false;
                for covered in std::mem::take(&mut self.flushes.covered) {
                    match covered {
                        FlushFor::Operation(op) => self.end(at, op),
                        FlushFor::Journal => self.on_journal(at),
                    }
                }
            }
        }
    }

    fn on_written(&mut self, at: Instant, number: u64, sequence: u64, blocks: Range<u64>) {
        self.outstanding.remove(&sequence);
        self.writing -= blocks.end - blocks.start;
        if let Some(file) = self.files.get_mut(&number) {
            file.outstanding.remove(&sequence);
            for block in blocks {
                if let Some(commands) = file.writing.get_mut(&block) {
                    *commands -= 1;
                    if *commands == 0 {
                        file.writing.remove(&block);
                    }
                }
            }
            #[cfg(test)]
            if self.fault == Some(Fault::ForgetsRewrites) {
                self.dirty -= file.dirty.len() as u64;
                file.dirty.clear();
            }
            for op in std::mem::take(&mut file.waiters) {
                if !self.pass_fence(at, op)
                    && let Some(file) = self.files.get_mut(&number)
                {
                    file.waiters.push(op);
                }
            }
        }
        for op in std::mem::take(&mut self.waiting_for_all) {
            if !self.pass_fence(at, op) {
                self.waiting_for_all.push(op);
            }
        }
        self.note_age(number);
        self.drop_gone(number);
        self.release_writers();
    }

    fn drop_gone(&mut self, number: u64) {
        let ended =
            |file: &File| file.gone && file.outstanding.is_empty() && file.waiters.is_empty();
        if self.files.get(&number).is_some_and(ended) {
            self.files.remove(&number);
        }
    }

    /// Lets writers go on, the longest waiting first, while there is room.
    fn release_writers(&mut self) {
        while !self.is_over_limit()
            && let Some(op) = self.waiting_for_room.pop_front()
        {
            self.end(self.now, op);
        }
    }

    /// A step of the journal's commit has ended.
    fn on_journal(&mut self, at: Instant) {
        match self.journal.step() {
            Some(Phase::FirstFlush | Phase::LastFlush) => self.want_flush(FlushFor::Journal),
            Some(Phase::Record) => {
                let place = self.journal.place(1);
                self.queue.push(Work::Record, place, 1);
            }
            Some(Phase::Blocks(_)) => {}
            None => self.on_committed(at),
        }
    }

    fn on_committed(&mut self, at: Instant) {
        for op in std::mem::take(&mut self.waiting_for_commit) {
            let Step::Commit { transaction, flush } = *self.step_of(op) else { continue };
            match (self.journal.is_committed(transaction), flush) {
                (false, _) => self.waiting_for_commit.push(op),
                (true, true) => self.want_flush(FlushFor::Operation(op)),
                (true, false) => self.end(at, op),
            }
        }
    }
}

/// The blocks that a range of bytes touches.
fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / BLOCK..offset.saturating_add(len).div_ceil(BLOCK)
}

#[cfg(test)]
impl SlowDisk {
    pub(crate) fn queue_for_tests(&mut self) -> &mut DeviceQueue {
        &mut self.queue
    }

    pub(crate) fn files_for_tests(&self) -> usize {
        self.files.len()
    }

    /// Where a block of a file lies.
    pub(crate) fn place_for_tests(&self, file: u64, block: u64) -> Option<u64> {
        Some(self.places.runs(file, block..block + 1).first()?.place)
    }
}
