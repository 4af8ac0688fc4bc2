//! The operations of a cache, the lists on which they wait, and the ranges that they lock.
//!
//! Invariants: an operation is in exactly one place: on one list of `lists`, on the list of a range lock, on the list of a folio
//! (its header), or known by its slot to an outstanding bio. The slab never grows.

mod lists;
pub(in crate::cache) mod operation;
mod range_locks;
mod wakeups;

pub(in crate::cache) use range_locks::touched_blocks;

use crate::bio::{Bio, BioId, VolumeId};
use crate::error::IoError;
use crate::slab::{NIL, Slab};
use crate::time::Instant;
use crate::wait_times::{WaitKind, WaitRecorder, WaitTimes};
use lists::WaitLists;
use operation::{OpStep, Operation, OperationWait, WaitFor};
use range_locks::RangeLocks;

/// The operations of a cache and what they wait for.
#[derive(Debug)]
pub(in crate::cache) struct Waiters {
    ops: Slab<Operation>,
    /// The wait times of each operation, by slot.
    records: Vec<WaitRecorder>,
    lists: WaitLists,
    ranges: RangeLocks,
    /// Blocks of the operations whose bios have no buffer.
    without_buffer: u64,
    /// Waits begun: for a frame or bio, credit, a pause, a shadow frame, a range, a folio.
    wait_counts: [u64; 6],
}

impl Waiters {
    /// Creates the tables for `bios` operations.
    pub fn new(
        bios: u32,
        (devices, volumes): (usize, usize),
        writers: u32,
        accounts: usize,
    ) -> Self {
        Self {
            ops: Slab::new(bios),
            records: vec![WaitRecorder::default(); bios as usize],
            lists: WaitLists::new(devices, writers, volumes, accounts),
            ranges: RangeLocks::new(bios),
            without_buffer: 0,
            wait_counts: [0; 6],
        }
    }

    /// Returns the number of operations.
    pub fn len(&self) -> u32 {
        self.ops.taken()
    }

    /// Returns the operation in a slot.
    pub fn op(&self, slot: u32) -> &Operation {
        debug_assert!(self.ops.is_taken(slot));
        &self.ops[slot]
    }

    /// Returns the operation in a slot, to change it.
    pub fn op_mut(&mut self, slot: u32) -> &mut Operation {
        debug_assert!(self.ops.is_taken(slot));
        &mut self.ops[slot]
    }

    /// Iterates over the operations and their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Operation)> {
        let taken = (0..self.ops.capacity()).filter(|&slot| self.ops.is_taken(slot));
        taken.map(|slot| (slot, &self.ops[slot]))
    }

    /// Returns the volume whose data the operation of a client's bio is about, the base's where it reads that, and what it waits for.
    pub fn wait_of(&self, id: BioId) -> Option<(VolumeId, OperationWait)> {
        let mut all = self.iter().filter(|(_, op)| !op.answered);
        let (slot, op) = all.find(|(_, op)| {
            (op.bio.id.connection, op.bio.id.sequence) == (id.connection, id.sequence)
        })?;
        Some((op.bio.id.volume, op.waits_for.described(slot)))
    }

    /// Stores a new operation; `None` if every slot is taken.
    pub fn add(&mut self, op: &Operation) -> Option<u32> {
        let slot = self.ops.try_take()?;
        self.ops[slot] = op.clone();
        self.without_buffer += blocks_without_buffer(op);
        Some(slot)
    }

    /// Returns the number of blocks that the bios without a buffer read, which are wanted all at once.
    #[inline]
    pub fn blocks_without_buffer(&self) -> u64 {
        self.without_buffer
    }

    /// Checks the blocks of the bios without a buffer.
    ///
    /// # Panics
    /// If their sum is another.
    pub fn check_without_buffer(&self) {
        let sum: u64 = self.iter().map(|(_, op)| blocks_without_buffer(op)).sum();
        assert_eq!(sum, self.without_buffer, "blocks of the bios without a buffer");
    }

    /// Takes an operation out of its slot to step it; [`Waiters::put_back`] or [`Waiters::remove`] follows.
    pub fn take_out(&mut self, slot: u32) -> Operation {
        assert!(self.ops.is_taken(slot), "the slot holds an operation");
        std::mem::take(&mut self.ops[slot])
    }

    /// Puts an operation back into its slot.
    pub fn put_back(&mut self, slot: u32, op: Operation) {
        assert!(self.ops.is_taken(slot), "the slot is still the operation's");
        self.ops[slot] = op;
    }

    /// Frees the slot of an operation that has completed.
    pub fn remove(&mut self, slot: u32, op: Operation) {
        assert!(
            op.reserved.credit == 0 && op.reserved.paid == 0 && op.frame.0 == NIL && !op.locked,
            "it holds nothing"
        );
        self.without_buffer -= blocks_without_buffer(&op);
        self.put_back(slot, op);
        self.ops.put(slot);
    }

    /// Begins a wait of the operation in `slot`; [`Waiters::enlist`] follows.
    pub fn begin_wait(&mut self, now: Instant, slot: u32, waits_for: WaitFor) {
        let op = &mut self.ops[slot];
        debug_assert!(op.waits_for == WaitFor::Nothing, "an operation waits for one event");
        op.waits_for = waits_for;
        let record = &mut self.records[slot as usize];
        // What a read has copied came from the device. What a write waits for may come from others, again and again.
        if op.step == OpStep::Read && op.limit.done != op.done && op.wait_record != NIL {
            (op.limit.since, op.limit.done) = (now, op.done);
        }
        if op.wait_record == NIL {
            op.wait_record = slot;
            *record = WaitRecorder::default();
        }
        record.begin(now);
        let kind = match waits_for {
            WaitFor::Frame | WaitFor::Bios(_) => 0,
            WaitFor::Credit(_) | WaitFor::Cap(..) => 1,
            WaitFor::Pause => 2,
            WaitFor::Range(_) => 4,
            WaitFor::Folio(_) => 5,
            _ => return,
        };
        self.wait_counts[kind] += 1;
    }

    /// Ends the wait of an operation, if it waits, and adds its time to the operation's record.
    pub fn end_wait(&mut self, now: Instant, op: &mut Operation) {
        let waits_for = std::mem::take(&mut op.waits_for);
        if op.wait_record == NIL {
            return;
        }
        debug_assert!(self.ops.is_taken(op.wait_record), "a record belongs to an operation");
        let record = &mut self.records[op.wait_record as usize];
        match waits_for {
            WaitFor::Nothing | WaitFor::Slot => {}
            WaitFor::Pause | WaitFor::Credit(_) | WaitFor::Cap(..) => {
                record.end(now, WaitKind::Dirty)
            }
            _ => record.end_below(now),
        }
    }

    /// Returns the times that an operation has waited, by kind.
    pub fn wait_times(&self, op: &Operation) -> WaitTimes {
        match op.wait_record {
            NIL => WaitTimes::NONE,
            record => self.records[record as usize].wait_times(),
        }
    }

    /// Records the wait times of the bio whose completion ends an operation's wait.
    pub fn set_below(&mut self, slot: u32, below: WaitTimes) {
        debug_assert!(self.ops.is_taken(slot), "the operation is outstanding");
        self.records[slot as usize].below = below;
    }

    /// Counts a wait for a shadow frame.
    pub fn count_shadow_wait(&mut self) {
        self.wait_counts[3] += 1;
    }

    /// Returns the number of waits, by kind.
    pub fn wait_counts(&self) -> [u64; 6] {
        self.wait_counts
    }

    /// Links an operation into the list of a folio's waiters, before `next`.
    pub fn link_folio_waiter(&mut self, slot: u32, next: u32) {
        debug_assert!(matches!(self.ops[slot].waits_for, WaitFor::Folio(_)));
        self.ops[slot].next = next;
    }

    /// Makes a folio's waiters ready, the list `newest` first, in the order of their arrival.
    ///
    /// `fails` tells for each one the error of the fill that it needed, if that failed.
    pub fn wake_folio_waiters(
        &mut self,
        newest: u32,
        below: WaitTimes,
        fails: impl Fn(&Operation) -> Option<IoError>,
    ) {
        let (mut waiting, mut oldest) = (newest, NIL);
        while waiting != NIL {
            let next = std::mem::replace(&mut self.ops[waiting].next, oldest);
            oldest = std::mem::replace(&mut waiting, next);
        }
        while oldest != NIL {
            let slot = oldest;
            debug_assert!(matches!(self.ops[slot].waits_for, WaitFor::Folio(_)));
            oldest = self.ops[slot].next;
            self.records[slot as usize].below = below;
            if let Some(error) = fails(&self.ops[slot]) {
                self.ops[slot].status = Err(error);
            }
            self.ready(slot);
        }
    }

    /// Returns the slot of an operation that locks one of the bio's blocks.
    #[inline]
    pub fn range_conflict(&self, bio: &Bio) -> Option<u32> {
        self.ranges.conflict(bio)
    }

    /// Returns the first locked block of `start..end`, or `end`.
    pub fn first_locked(&self, volume: VolumeId, start: u64, end: u64) -> u64 {
        self.ranges.first_locked(volume, start, end)
    }

    /// Locks a range of blocks for an operation, which is stepped now.
    pub fn lock_range(&mut self, op: &mut Operation, slot: u32, range: (u64, u64)) {
        assert!(!op.locked, "an operation locks one range");
        self.ranges.lock(slot, op.bio.id.volume, range);
        op.locked = true;
    }

    /// Unlocks an operation's range, if it has locked one, and makes its waiters ready.
    pub fn unlock_range(&mut self, op: &mut Operation, slot: u32) {
        if !std::mem::replace(&mut op.locked, false) {
            return;
        }
        if let Some(waiting) = self.ranges.unlock(slot) {
            self.lists.make_ready(&mut self.ops, waiting);
        }
    }

    /// Makes the waiters for an operation's locked range ready; they fail if the operation has timed out.
    pub fn wake_range_waiters(&mut self, slot: u32) {
        debug_assert!(self.ops[slot].answered, "new waiters fail at once");
        self.wake_range(slot);
    }

    /// Makes the waiters for the range locked by the operation in `holder` ready.
    pub fn wake_range(&mut self, holder: u32) {
        if let Some(waiting) = self.ranges.take_waiting(holder) {
            self.lists.make_ready(&mut self.ops, waiting);
        }
    }

    /// Returns the number of slots that were ever taken.
    pub fn places(&self) -> u32 {
        self.ops.places()
    }

    /// Returns the operation in a slot, if there is one.
    pub fn get(&self, slot: u32) -> Option<&Operation> {
        self.ops.is_taken(slot).then(|| &self.ops[slot])
    }

    /// Returns true if an operation waits for the write-out of a part of a range.
    pub fn writes_out(&self, volume: VolumeId, range: (u64, u64)) -> bool {
        self.iter().any(|(_, op)| {
            let (start, end) = touched_blocks(&op.bio);
            op.step == OpStep::WriteOut
                && op.bio.id.volume == volume
                && start < range.1
                && range.0 < end
        })
    }

    /// Collects the slots of the operations that write to a volume and have not completed.
    pub fn writing_ops(&self, volume: VolumeId, into: &mut Vec<u32>) {
        into.clear();
        let writes = |op: &Operation| {
            op.bio.id.volume == volume && matches!(op.step, OpStep::Write | OpStep::WriteOut)
        };
        into.extend(self.iter().filter(|(_, op)| writes(op)).map(|(slot, _)| slot));
    }

    /// Fails those of `slots` that write to a block.
    pub fn fail_writes(&mut self, slots: &[u32], block: u64, error: IoError) {
        for &slot in slots {
            let op = &mut self.ops[slot];
            let (first, end) = touched_blocks(&op.bio);
            if (first..end).contains(&block) {
                op.status = op.status.and(Err(error));
            }
        }
    }

    /// Detaches the operations of a connection from its writer.
    pub fn detach_writer(&mut self, connection: u32) {
        for slot in 0..self.ops.capacity() {
            if self.ops.is_taken(slot) && self.ops[slot].bio.id.connection == connection {
                self.ops[slot].writer = NIL;
            }
        }
    }
}

/// Returns the number of blocks that an operation wants all at once, as its bio has no buffer.
fn blocks_without_buffer(op: &Operation) -> u64 {
    if !op.bio.has_no_buffer() {
        return 0;
    }
    let (first, end) = touched_blocks(&op.bio);
    end - first
}
