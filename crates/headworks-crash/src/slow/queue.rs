//! The queue in front of the modelled disk: which command goes next.
//!
//! ```text
//!   reads  ---.
//!              >--- at most `depth` at once ---> model
//!   writes ---'     reads first; after two of them a write that waits goes
//! ```
//!
//! Flushes and the journal's blocks go before other writes: programs wait for them. Invariants: at most `depth` commands are in the model;
//! each command ends once.

use std::collections::VecDeque;

use headworks_core::{Instant, Op};
use headworks_disks::{DeviceModel, ModelCommand};

use super::places::BLOCK;

/// Reads that may overtake a waiting write, as mq-deadline's `writes_starved`.
const WRITES_STARVED: u32 = 2;
/// Blocks of a command: 512 KiB, as Linux has it for disks of SATA.
pub(crate) const COMMAND_MAX: u64 = 128;

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Blocks that an operation waits for.
    Read {
        /// The operation.
        op: usize,
    },
    /// Blocks of a file that are written back.
    Write {
        /// The file.
        file: u64,
        /// Number of the command in the order of all writes.
        sequence: u64,
        /// First block of the file.
        block: u64,
        /// Number of blocks.
        count: u64,
    },
    /// Blocks of the journal.
    Journal,
    /// The block that ends a transaction.
    Record,
    /// A flush of the disk's cache.
    Flush,
}

/// What the disk did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// Reads of any length.
    pub reads: u64,
    /// Writes, those of the journal included.
    pub writes: u64,
    /// Flushes of its cache.
    pub flushes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
}

/// The disk and what waits for it.
pub(crate) struct DeviceQueue {
    model: Box<dyn DeviceModel + Send>,
    depth: u32,
    commands: Vec<(Work, ModelCommand)>,
    free: Vec<usize>,
    reads: VecDeque<usize>,
    writes: VecDeque<usize>,
    in_flight: u32,
    writes_in_flight: u32,
    overtaken: u32,
    total: Commands,
    done: Vec<u64>,
    #[cfg(test)]
    pub reads_wait_for_writes: bool,
}

impl DeviceQueue {
    /// A queue of this depth in front of an idle disk.
    pub fn new(model: Box<dyn DeviceModel + Send>, depth: u32) -> Self {
        Self {
            model,
            depth,
            commands: Vec::new(),
            free: Vec::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            in_flight: 0,
            writes_in_flight: 0,
            overtaken: 0,
            total: Commands::default(),
            done: Vec::new(),
            #[cfg(test)]
            reads_wait_for_writes: false,
        }
    }

    /// Queues a command for blocks of the disk; a flush has none.
    pub fn push(&mut self, work: Work, place: u64, count: u64) {
        let op = match work {
            Work::Read { .. } => Op::Read,
            Work::Flush => Op::Flush,
            Work::Write { .. } | Work::Journal | Work::Record => Op::Write,
        };
        let (offset, len) = (place * BLOCK, (count * BLOCK) as u32);
        let index = self.free.pop().unwrap_or(self.commands.len());
        let command = (work, ModelCommand { token: index as u64, op, offset, len });
        match self.commands.get_mut(index) {
            Some(slot) => *slot = command,
            None => self.commands.push(command),
        }
        match work {
            #[cfg(test)]
            Work::Read { .. } if self.reads_wait_for_writes => self.writes.push_back(index),
            Work::Read { .. } => self.reads.push_back(index),
            Work::Write { .. } => self.writes.push_back(index),
            Work::Journal | Work::Record | Work::Flush => self.writes.push_front(index),
        }
    }

    /// Gives commands to the disk while it takes more. Everything due at `now` has been processed.
    pub fn dispatch(&mut self, now: Instant) {
        while self.in_flight < self.depth
            && let Some(index) = self.next()
        {
            let command = self.commands[index].1;
            let bytes = u64::from(command.len);
            match command.op {
                Op::Read => {
                    self.total.reads += 1;
                    self.total.read_bytes += bytes;
                }
                Op::Flush => self.total.flushes += 1,
                _ => {
                    self.total.writes += 1;
                    self.total.written_bytes += bytes;
                }
            }
            self.writes_in_flight += u32::from(command.op == Op::Write);
            self.in_flight += 1;
            self.model.submit(now, command);
        }
    }

    fn next(&mut self) -> Option<usize> {
        let overdue = self.overtaken >= WRITES_STARVED && !self.writes.is_empty();
        match self.reads.pop_front() {
            Some(read) if !overdue => {
                self.overtaken += u32::from(!self.writes.is_empty());
                return Some(read);
            }
            Some(read) => self.reads.push_front(read),
            None => {}
        }
        self.overtaken = 0;
        self.writes.pop_front()
    }

    /// The time of the disk's next event.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.model.next_timeout()
    }

    /// Processes the event of the disk at `at`; `ended` gets what the ended commands were for.
    pub fn step(&mut self, at: Instant, ended: &mut Vec<Work>) {
        self.model.on_timeout(at, &mut self.done);
        for token in self.done.drain(..) {
            let (work, command) = self.commands[token as usize];
            self.in_flight -= 1;
            self.writes_in_flight -= u32::from(command.op == Op::Write);
            self.free.push(token as usize);
            ended.push(work);
        }
    }

    /// Writes that wait or are in the disk.
    pub fn writes(&self) -> usize {
        self.writes.len() + self.writes_in_flight as usize
    }

    /// Writes that write-back may have under way at once: a quarter of the depth, so that others find room.
    pub fn background_max(&self) -> usize {
        (self.depth as usize / 4).max(1)
    }

    /// What the disk did so far.
    pub fn total(&self) -> Commands {
        self.total
    }
}
