//! The journal of names, sizes and places: transactions as jbd2 has them.
//!
//! ```text
//!   changes --> running --wanted, or 5 s old--> blocks --> flush --> record --> flush --> committed
//!                  ^ changes meanwhile are of the next one
//! ```
//!
//! One transaction commits at a time; all that wait for the running one share its commit. Its blocks: a descriptor, and a block for each
//! [`NODES_IN_BLOCK`] changed files and directories. Writing those blocks to their own places later is not modelled.
//! Invariant: committed < committing < running.

use std::ops::Range;

use headworks_core::Instant;
use headworks_core::time::SEC;

/// Age of the oldest change at which a transaction commits by itself, as ext4's `commit=5`.
const COMMIT_EVERY: u64 = 5 * SEC;
/// Files whose attributes a block has: 256 bytes each.
const NODES_IN_BLOCK: u64 = 16;

/// Where a commit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// So many commands write blocks.
    Blocks(u64),
    /// What they wrote, and the data before, become durable.
    FirstFlush,
    /// The block that makes the transaction valid is written.
    Record,
    /// It becomes durable.
    LastFlush,
}

/// The transactions.
#[derive(Debug)]
pub(crate) struct Journal {
    blocks: Range<u64>,
    head: u64,
    running: u64,
    changed: u64,
    first_change: Option<Instant>,
    wanted: u64,
    committing: Option<(u64, Phase)>,
    committed: u64,
    commits: u64,
}

impl Journal {
    /// An empty journal in these blocks of the disk.
    pub fn new(blocks: Range<u64>) -> Self {
        Self {
            head: blocks.start,
            blocks,
            running: 1,
            changed: 0,
            first_change: None,
            wanted: 0,
            committing: None,
            committed: 0,
            commits: 0,
        }
    }

    /// Counts a change of a file whose last change was of transaction `before`. Returns the transaction that has it.
    pub fn change(&mut self, now: Instant, before: u64) -> u64 {
        if before != self.running {
            self.changed += 1;
            self.first_change.get_or_insert(now);
        }
        self.running
    }

    /// Whether a transaction is durable.
    pub fn is_committed(&self, transaction: u64) -> bool {
        transaction <= self.committed
    }

    /// The last transaction that has a change: the running one, or the one that commits.
    pub fn last(&self) -> u64 {
        if self.changed > 0 { self.running } else { self.running - 1 }
    }

    /// Asks for the commit of a transaction. Returns whether a flush of it makes durable what was written before this call.
    pub fn want(&mut self, transaction: u64) -> bool {
        self.wanted = self.wanted.max(transaction);
        match self.committing {
            Some((committing, phase)) if committing == transaction => {
                matches!(phase, Phase::Blocks(_))
            }
            _ => true,
        }
    }

    /// When the running transaction commits by itself.
    pub fn next_timeout(&self) -> Option<Instant> {
        let waits = self.wanted < self.running;
        self.first_change.filter(|_| waits).map(|at| at.after(COMMIT_EVERY))
    }

    /// Begins to commit if that is wanted or due: the blocks of the journal to write, at most `command_max` each.
    pub fn begin(&mut self, now: Instant, command_max: u64) -> Vec<(u64, u64)> {
        if self.next_timeout().is_some_and(|at| at <= now) {
            self.wanted = self.running;
        }
        if self.committing.is_some() || self.wanted < self.running || self.changed == 0 {
            return Vec::new();
        }
        // A transaction beyond the journal would be split; its blocks are as many.
        let mut left = 1 + self.changed.div_ceil(NODES_IN_BLOCK);
        let mut commands = Vec::new();
        while left > 0 {
            let count = left.min(command_max).min(self.blocks.end - self.head);
            commands.push((self.place(count), count));
            left -= count;
        }
        self.committing = Some((self.running, Phase::Blocks(commands.len() as u64)));
        self.running += 1;
        self.changed = 0;
        self.first_change = None;
        commands
    }

    /// Takes the next blocks of the journal, which is a ring.
    pub fn place(&mut self, count: u64) -> u64 {
        let place = self.head;
        self.head += count;
        if self.head >= self.blocks.end {
            self.head = self.blocks.start;
        }
        place
    }

    /// A step of the commit has ended: the next one; none if the transaction is committed, or blocks are still being written.
    pub fn step(&mut self) -> Option<Phase> {
        let (transaction, phase) = self.committing?;
        let next = match phase {
            Phase::Blocks(left @ 2..) => {
                self.committing = Some((transaction, Phase::Blocks(left - 1)));
                return None;
            }
            Phase::Blocks(_) => Phase::FirstFlush,
            Phase::FirstFlush => Phase::Record,
            Phase::Record => Phase::LastFlush,
            Phase::LastFlush => {
                self.committing = None;
                self.committed = transaction;
                self.commits += 1;
                return None;
            }
        };
        self.committing = Some((transaction, next));
        Some(next)
    }

    /// Transactions that were committed so far.
    pub fn commits(&self) -> u64 {
        self.commits
    }
}
