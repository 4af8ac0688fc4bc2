//! A client bio that could not be completed at once, with its progress and what it waits for.
//!
//! An operation has a cursor and waits for exactly one thing at a time ([`WaitFor`]). When that happens the operation is stepped
//! from its cursor. It pins nothing while it waits, so no operation can block another one by waiting.
//!
//! ```text
//!            .------- a fill or a write-out of the folio at the cursor ended -------.
//!            v                                                                      |
//!   Read ----+--- copied to the end ---> completed                                Folio
//!   Write ---+--- applied ---> completed, or (FUA, writethrough) WriteOut ---> Device ---> completed
//!      waits for: Pause (of its connection) -> Cap -> Credit -> Frame -> Folio -> Range (locked by a discard)
//!   Range ---> nothing of the range outstanding ---> Device ---> completed
//!   Status --> dirty here: completed, else --------> Device ---> completed
//!   Flush ---> all older dirty data written -------> Device (flush) ---> completed
//! ```

use crate::bio::{Bio, BioFlags, ExportId, VolumeId};
use crate::cache::dirty::AccountId;
use crate::cache::pool::folio::BLOCK;
use crate::error::Status;
use crate::list::Chained;
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitKind;

/// The step at which an operation continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) enum OpStep {
    /// Copies blocks to the client and fills the missing ones.
    #[default]
    Read,
    /// Copies the client's bytes (or zeros) into blocks.
    Write,
    /// Writes its own range out and waits for that.
    WriteOut,
    /// Waits until nothing of its range is outstanding, then passes the bio to the device.
    Range,
    /// Waits until everything that was dirty at its start is written.
    Flush,
    /// Reports the allocation status of its range, or asks the device.
    Status,
    /// Waits for the device to complete the bio.
    Device,
}

/// The event that an operation waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cache) enum WaitFor {
    /// No event: the operation is being stepped, or has ended.
    #[default]
    Nothing,
    /// A fill or write-out of the folio at this unit.
    Folio(u32),
    /// A frame for a new folio.
    Frame,
    /// A bio of the cache's own, of this account.
    Bios(u32),
    /// Dirty credit for this many blocks.
    Credit(u32),
    /// Room for this many blocks under the cap of an account.
    Cap(AccountId, u32),
    /// The end of its writer's pause.
    Pause,
    /// The end of the range operation in this slot.
    Range(u32),
    /// The end of its own write-outs.
    Writeouts,
    /// The next turn: the operation used up its budget of this one.
    NextTurn,
    /// The write-out of its volume's older generations.
    Flush,
    /// The completion by the device.
    Device,
    /// No event, but the operation needs a slot to continue.
    Slot,
}

/// What an operation waits for, for a client that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationWait {
    /// Something that the cache itself gives.
    For(WaitKind),
    /// A bio of its own, which has this slot as its cookie.
    OwnBio(u32),
    /// The fill or the write-out of the folio at this unit.
    Frames(u32),
    /// What the device has of others of its volume.
    Others,
}

/// What an operation may dirty next, in blocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Reserved {
    /// Dirty credit that it holds.
    pub credit: u32,
    /// Blocks that are reserved for `payer`, at least `credit`.
    pub paid: u32,
    /// The export that pays for what it dirties next.
    pub payer: ExportId,
}

/// How long an operation may wait.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct WaitLimit {
    /// The time from which its waits are limited: the arrival; of a read, the time at which it waited again after a part was done.
    pub since: Instant,
    /// How far a read had come by then, in bytes of the bio.
    pub done: u32,
    /// It has waited for too long, and fails when it is stepped.
    pub overdue: bool,
}

impl WaitLimit {
    /// Returns the limit of an operation that begins at `since`.
    const fn from(since: Instant) -> Self {
        Self { since, done: 0, overdue: false }
    }
}

/// A client bio in progress.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Operation {
    /// The bio of the client.
    pub bio: Bio,
    /// The volume that the client reads, where the bio names the base on which that goes on.
    pub by: VolumeId,
    /// The cursor: bytes of the bio that are done.
    pub done: u32,
    /// The end of the part that is written now, in bytes of the bio (an unaligned zeroing has three parts).
    pub part_end: u32,
    /// Progress of the step. Read: bytes for which fills were requested. WriteOut: blocks handled. Range: 1 once the dirty
    /// blocks are cancelled. Flush: the error sequence that its connection had seen.
    pub progress: u32,
    /// The position of a walk over the folios of its range.
    pub walk: u64,
    /// The step at which it continues.
    pub step: OpStep,
    /// The event that it waits for.
    pub waits_for: WaitFor,
    /// The slot of its wait record; `NIL` while it has not waited.
    pub wait_record: u32,
    /// The next operation in the list on which it waits.
    pub next: u32,
    /// Its connection's writer in the throttle; `NIL` for none.
    pub writer: u32,
    /// What it may dirty next.
    pub reserved: Reserved,
    /// A granted frame and its order; the unit is `NIL` for none.
    pub frame: (u32, u8),
    /// Outstanding write-outs of its own.
    pub pending: u32,
    /// Flush: one more than the last generation that it waits for; 0 before that is known.
    pub generation: u64,
    /// Flush: the time at which it fails.
    pub deadline: Instant,
    /// The arrival of the bio.
    pub came: Instant,
    /// The limit of its waits.
    pub limit: WaitLimit,
    /// The first error of the operation, or success.
    pub status: Status,
    /// Its range is locked.
    pub locked: bool,
    /// The device must flush before the operation completes.
    pub wants_flush: bool,
    /// The client was answered at the time-out; the device still owns the buffer.
    pub answered: bool,
    /// Direct I/O: the range bypasses the cache.
    pub direct: bool,
    /// Range: dirty blocks are written out instead of cancelled.
    pub writes_out: bool,
}

impl Default for Operation {
    fn default() -> Self {
        Self {
            bio: Bio::default(),
            by: VolumeId(0),
            done: 0,
            part_end: 0,
            progress: 0,
            walk: 0,
            step: OpStep::Read,
            waits_for: WaitFor::Nothing,
            wait_record: NIL,
            next: NIL,
            writer: NIL,
            reserved: Reserved { credit: 0, paid: 0, payer: ExportId(0) },
            frame: (NIL, 0),
            pending: 0,
            generation: 0,
            deadline: Instant(0),
            came: Instant(0),
            limit: WaitLimit::from(Instant(0)),
            status: Ok(()),
            locked: false,
            wants_flush: false,
            answered: false,
            direct: false,
            writes_out: false,
        }
    }
}

impl Operation {
    /// Creates the operation of a bio that arrives now, and of which nothing is done.
    pub fn new(now: Instant, bio: Bio, step: OpStep) -> Self {
        let by = bio.id.volume;
        let limit = WaitLimit::from(now);
        Self { bio, by, step, part_end: bio.len, came: now, limit, ..Self::default() }
    }

    /// Returns the byte of the volume at the cursor.
    pub fn at(&self) -> u64 {
        self.bio.offset + u64::from(self.done)
    }

    /// Returns true if the write must be durable when it completes.
    pub fn is_fua(&self) -> bool {
        self.bio.flags.contains(BioFlags::FUA)
    }

    /// Moves the cursor to the unaligned end of a zeroing, if that is left; returns whether it is.
    pub fn next_part(&mut self) -> bool {
        debug_assert!(self.done == self.part_end, "the current part is done");
        let more = self.part_end < self.bio.len;
        if more {
            let tail = self.bio.end() % u64::from(BLOCK);
            self.done = self.bio.len - tail as u32;
            self.part_end = self.bio.len;
        }
        more
    }

    /// Turns a zeroing whose whole blocks the device has zeroed into a write of its unaligned ends; false if it has none.
    pub fn continue_with_ends(&mut self, zeroed: &Bio) -> bool {
        assert!(zeroed.offset >= self.bio.offset && zeroed.end() <= self.bio.end());
        let head = (zeroed.offset - self.bio.offset) as u32;
        if zeroed.offset == self.bio.offset && zeroed.len == self.bio.len {
            return false;
        }
        self.step = OpStep::Write;
        self.writer = NIL;
        (self.done, self.part_end) = (0, head);
        if head == 0 {
            (self.done, self.part_end) = (zeroed.len, self.bio.len);
        } else if zeroed.end() == self.bio.end() {
            // No unaligned tail: everything past the head is done.
            self.bio.len = head;
        }
        true
    }

    /// Returns how the cursor lies in its block, on a volume of `size` bytes.
    pub fn block_part(&self, size: u64) -> BlockPart {
        debug_assert!(self.done < self.part_end, "the cursor is in the part");
        let (at, left) = (self.at(), self.part_end - self.done);
        let within = (at % u64::from(BLOCK)) as u32;
        // The last block of a volume ends where the volume does.
        let block_end = (at - u64::from(within) + u64::from(BLOCK)).min(size);
        let whole = within == 0 && at + u64::from(left) >= block_end;
        let ends_volume = at + u64::from(left) >= size;
        let blocks = if ends_volume { left.div_ceil(BLOCK) } else { left / BLOCK };
        BlockPart { whole, blocks }
    }
}

/// How an operation's cursor lies in its block.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct BlockPart {
    /// The whole block is written.
    pub whole: bool,
    /// Whole blocks from the cursor on.
    pub blocks: u32,
}

impl WaitFor {
    /// Describes the wait of the operation in `slot`.
    pub fn described(self, slot: u32) -> OperationWait {
        match self {
            WaitFor::Pause | WaitFor::Credit(_) | WaitFor::Cap(..) => {
                OperationWait::For(WaitKind::Dirty)
            }
            WaitFor::Nothing | WaitFor::NextTurn | WaitFor::Slot | WaitFor::Frame => {
                OperationWait::For(WaitKind::Cache)
            }
            WaitFor::Device | WaitFor::Writeouts => OperationWait::OwnBio(slot),
            WaitFor::Folio(unit) => OperationWait::Frames(unit),
            WaitFor::Bios(_) | WaitFor::Range(_) | WaitFor::Flush => OperationWait::Others,
        }
    }
}

impl Chained for Operation {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}
