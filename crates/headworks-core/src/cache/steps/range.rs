//! Discard, write-zeroes and direct I/O: what goes past the cache.
//!
//! The range is locked: whoever comes for a part of it waits. What is dirty of it is cancelled by a discard (its content is not
//! needed any longer); for direct I/O, for a zeroing, which may fail, and where a FUA or writethrough write waits for it, it is
//! written out. When nothing of it is on its way, it is forgotten, and the client's bio goes to the device. So neither an older write-out nor a fill that began earlier can undo what the device is told.
//!
//! ```text
//!   locked --> cancelled or clean --> nothing on its way, forgotten --> Below --> unlocked --> answered
//!                turn by turn           folio by folio, turn by turn       `-> the ends of an unaligned zeroing: written
//! ```
//!
//! Whole blocks only: a discard is rounded inward, direct I/O outward; an unaligned zeroing writes zeros at its ends.

use crate::action::Action;
use crate::bio::{Bio, BioFlags, Op, VolumeId};
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, block};
use crate::cache::waiters::operation::{OpStep, Operation, WaitFor};
use crate::cache::{Cache, Turn};
use crate::device_bio::DeviceCompletion;
use crate::error::IoError;
use crate::input::ReplyStage;
use crate::list::Fifo;
use crate::slab::{NIL, Slab};

/// A zeroing up to this long of which an end is no whole block is written like data.
const ZERO_MAX: u32 = 128 << 10;

/// A range that somebody has for itself.
#[derive(Debug)]
struct Lock {
    slot: u32,
    volume: VolumeId,
    start: u64,
    end: u64,
    waiting: Fifo,
}

/// The locked ranges; mostly there is none.
#[derive(Debug)]
pub(in crate::cache) struct Ranges {
    locks: Vec<Lock>,
}

impl Ranges {
    /// Room for as many as there are bios.
    pub fn new(bios: u32) -> Self {
        Self { locks: Vec::with_capacity(bios as usize) }
    }

    /// Who has a part of a bio's blocks.
    #[inline]
    pub fn conflict(&self, bio: &Bio) -> Option<u32> {
        if self.locks.is_empty() {
            return None;
        }
        let (start, end) = outward(bio);
        let meets =
            |lock: &&Lock| lock.volume == bio.id.volume && lock.start < end && start < lock.end;
        self.locks.iter().find(meets).map(|lock| lock.slot)
    }

    /// The first block from `start` on that somebody has, up to `end`.
    pub fn first_locked(&self, volume: VolumeId, start: u64, end: u64) -> u64 {
        let met = |lock: &&Lock| lock.volume == volume && lock.start < end && start < lock.end;
        self.locks.iter().filter(met).map(|lock| lock.start.max(start)).min().unwrap_or(end)
    }

    fn lock(&mut self, slot: u32, volume: VolumeId, (start, end): (u64, u64)) {
        self.locks.push(Lock { slot, volume, start, end, waiting: Fifo::new() });
    }

    /// Parks an operation until `other` unlocks.
    pub fn wait(&mut self, ops: &mut Slab<Operation>, other: u32, slot: u32) {
        let lock = self.locks.iter_mut().find(|lock| lock.slot == other);
        lock.expect("it met a lock").waiting.push(ops, slot);
    }

    /// Those that wait for the lock of an operation; it stays locked.
    pub fn take_waiting(&mut self, slot: u32) -> Option<Fifo> {
        let lock = self.locks.iter_mut().find(|lock| lock.slot == slot)?;
        Some(std::mem::replace(&mut lock.waiting, Fifo::new()))
    }

    fn unlock(&mut self, slot: u32) -> Option<Fifo> {
        let at = self.locks.iter().position(|lock| lock.slot == slot)?;
        Some(self.locks.swap_remove(at).waiting)
    }
}

/// The blocks that a bio touches.
fn outward(bio: &Bio) -> (u64, u64) {
    (bio.offset >> BLOCK_SHIFT, bio.end().div_ceil(u64::from(BLOCK)))
}

impl Cache {
    /// The whole blocks of a bio; a last one of the volume is whole where the volume ends.
    fn inward(&self, bio: &Bio) -> (u64, u64) {
        let size = self.volumes[usize::from(bio.id.volume.0)].size;
        let start = bio.offset.div_ceil(u64::from(BLOCK));
        let end = match bio.end() == size {
            true => size.div_ceil(u64::from(BLOCK)),
            false => bio.end() >> BLOCK_SHIFT,
        };
        (start, end.max(start))
    }

    /// A zeroing comes: whole blocks go to the device; its ends, or a short one, are written like data.
    pub(in crate::cache) fn begin_zeroes(&mut self, turn: &mut Turn, bio: Bio) {
        let (start, end) = self.inward(&bio);
        let (begins, ends) = outward(&bio);
        let whole = (start, end) == (begins, ends);
        let fast = bio.flags.contains(BioFlags::FAST_ZERO);
        if whole || start < end && (fast || bio.len > ZERO_MAX) {
            self.begin(turn, Operation::new(bio, OpStep::Range));
        } else {
            let mut op = Operation::new(bio, OpStep::Write);
            self.begin_writer(turn, &mut op);
        }
    }

    /// See the head of this file.
    pub(in crate::cache) fn step_range(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        slot: u32,
    ) -> WaitFor {
        if slot == NIL {
            return WaitFor::Slot;
        }
        let volume = op.bio.id.volume;
        let range = if op.direct { outward(&op.bio) } else { self.inward(&op.bio) };
        if range.0 >= range.1 {
            return self.finish(turn, op, Ok(()));
        }
        if !op.locked {
            self.ranges.lock(slot, volume, range);
            op.locked = true;
        }
        // A device may refuse to zero: until it has, what was acknowledged must not be gone. And what a writer waits for (FUA,
        // writethrough) is written before it is discarded, or he would be told that it is on the device when it never was.
        if op.asked == 0 && op.walk == 0 {
            op.cleans = op.direct || op.bio.op == Op::WriteZeroes || self.is_cleaned(volume, range);
        }
        if op.cleans {
            let written = self.stats.written;
            let park = self.clean_range(turn, op, slot, BioFlags::SYNC);
            if op.direct {
                self.stats.direct_dirty += self.stats.written - written;
            }
            if let Some(park) = park {
                return park;
            }
            if op.status.is_err() {
                self.unlock(op, slot);
                return self.finish(turn, op, op.status);
            }
        } else if op.asked == 0 {
            // Once: under the lock nothing becomes dirty but by a write-out that fails, see `forget_range`.
            if !self.cancel_some(op, range) {
                return WaitFor::Turn;
            }
            (op.asked, op.walk) = (1, 0);
        }
        match self.forget_range(op, range) {
            Some(WaitFor::Folio(unit)) if self.folios[unit].is_late() => {
                self.unlock(op, slot);
                return self.finish(turn, op, Err(IoError::TimedOut));
            }
            Some(park) => return park,
            None => {}
        }
        let bio = self.range_bio(op, range);
        self.pass_down(op, slot, bio);
        WaitFor::Below
    }

    /// Whether a writer waits for the write-out of a part of a range.
    fn is_cleaned(&self, volume: VolumeId, range: (u64, u64)) -> bool {
        (0..self.ops.capacity()).filter(|&slot| self.ops.is_taken(slot)).any(|slot| {
            let op = &self.ops[slot];
            let (start, end) = outward(&op.bio);
            op.step == OpStep::Clean
                && op.bio.id.volume == volume
                && start < range.1
                && range.0 < end
        })
    }

    /// The bio that the device gets: of discards and zeroings the whole blocks.
    fn range_bio(&self, op: &Operation, (start, end): (u64, u64)) -> Bio {
        if op.direct {
            return op.bio;
        }
        let offset = start << BLOCK_SHIFT;
        let len = (end << BLOCK_SHIFT).min(op.bio.end()) - offset;
        Bio { offset, len: len as u32, ..op.bio }
    }

    /// The device answered a bio that was passed down.
    pub(in crate::cache) fn on_below(&mut self, turn: &mut Turn, up: DeviceCompletion) {
        let slot = up.cookie;
        let mut op = std::mem::take(&mut self.ops[slot]);
        self.waits[slot as usize].below = up.wait_times;
        if up.stage == ReplyStage::Early {
            turn.actions.list.push(Action::Reply {
                id: op.bio.id,
                status: up.status,
                hole: false,
                stage: ReplyStage::Early,
                wait_times: up.wait_times,
            });
            op.answered = true;
            self.ops[slot] = op;
            // Nobody knows when the device answers: who waits for the range hears of it, and who comes until then.
            if let Some(mut waiting) = self.ranges.take_waiting(slot) {
                self.lines.ready.append(&mut self.ops, &mut waiting);
            }
            return;
        }
        if op.answered {
            self.unlock(&mut op, slot);
            self.finish(turn, &mut op, up.status);
            self.ops[slot] = op;
            return self.ops.put(slot);
        }
        if op.bio.op == Op::Flush {
            self.end_sync(turn, &mut op, up.status);
        } else if op.bio.op == Op::WriteZeroes && up.bio.op == Op::WriteZeroes && up.status.is_ok()
        {
            self.unlock(&mut op, slot);
            if self.write_ends(&mut op, &up.bio) {
                self.ops[slot] = op;
                return self.ready(slot);
            }
            self.finish(turn, &mut op, Ok(()));
        } else {
            self.unlock(&mut op, slot);
            self.end_wait(turn.now, &mut op);
            let (id, status, stage) = (op.bio.id, up.status, ReplyStage::Final);
            let wait_times = self.wait_times(&op);
            turn.actions.list.push(Action::Reply { id, status, hole: up.hole, stage, wait_times });
            self.give_back(&mut op);
        }
        self.ops[slot] = op;
        self.ops.put(slot);
    }

    /// The ends of a zeroing that are no whole blocks are to be written; whether there are any.
    fn write_ends(&mut self, op: &mut Operation, zeroed: &Bio) -> bool {
        let head = (zeroed.offset - op.bio.offset) as u32;
        if zeroed.offset == op.bio.offset && zeroed.len == op.bio.len {
            return false;
        }
        op.step = OpStep::Write;
        op.writer = NIL;
        (op.done, op.until) = (0, head);
        if head == 0 {
            (op.done, op.until) = (zeroed.len, op.bio.len);
        } else if zeroed.end() == op.bio.end() {
            // No other end: what is past the head is done.
            op.bio.len = head;
        }
        true
    }

    fn unlock(&mut self, op: &mut Operation, slot: u32) {
        if !std::mem::replace(&mut op.locked, false) {
            return;
        }
        if let Some(mut waiting) = self.ranges.unlock(slot) {
            self.lines.ready.append(&mut self.ops, &mut waiting);
        }
    }

    /// What waits below and needs no step.
    pub(in crate::cache) fn step_below(&mut self, turn: &mut Turn, op: &mut Operation) -> WaitFor {
        let _ = (turn, op);
        WaitFor::Below
    }

    /// What a client was told it could not write is not kept (writethrough).
    pub(in crate::cache) fn give_up_range(&mut self, bio: &Bio) {
        let range = outward(bio);
        let writers = self.writers_of(bio.id.volume);
        let mut at = 0;
        while let Some(unit) = self.next_folio(bio.id.volume, range, &mut at) {
            let (first, count) = self.overlap(unit, range);
            self.give_up_blocks(unit, first, count, &writers);
        }
        self.scratch = writers;
    }

    /// Held blocks are forgotten: reads find what the device has. What `writers` had put there fails, too.
    pub(in crate::cache) fn give_up_blocks(
        &mut self,
        unit: u32,
        first: u32,
        count: u32,
        writers: &[u32],
    ) {
        for index in first..first + count {
            let state = self.folios.states(unit + index, 1)[0];
            if state & block::FAILED != 0 && state & (block::WRITEBACK | block::SHADOW) == 0 {
                self.cancel_blocks(unit, index, 1);
                self.folios.states_mut(unit + index, 1)[0] &= !(block::UPTODATE | block::USED);
                let key = self.folios[unit].key;
                self.fail_writes(writers, key.block() + u64::from(index));
            }
        }
    }

    /// Operations that write to a volume and are not answered yet. In the scratch, which is to come back: looked for once, and not
    /// for each of ten thousand blocks.
    pub(in crate::cache) fn writers_of(&mut self, volume: VolumeId) -> Vec<u32> {
        let mut writers = std::mem::take(&mut self.scratch);
        writers.clear();
        let ops = (0..self.ops.capacity()).filter(|&slot| self.ops.is_taken(slot));
        writers.extend(ops.filter(|&slot| {
            let op = &self.ops[slot];
            op.bio.id.volume == volume && matches!(op.step, OpStep::Write | OpStep::Clean)
        }));
        writers
    }

    /// A block was given up with what others had put there: those that are not answered yet fail, too.
    fn fail_writes(&mut self, writers: &[u32], block: u64) {
        for &slot in writers {
            let volume = self.ops[slot].bio.id.volume;
            let error = self.volume(volume).last_error;
            let op = &mut self.ops[slot];
            let (first, end) = outward(&op.bio);
            if (first..end).contains(&block) {
                op.status = op.status.and(Err(error));
            }
        }
    }
}
