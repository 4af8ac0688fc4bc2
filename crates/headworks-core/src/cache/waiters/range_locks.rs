//! Locked block ranges: what discard, write-zeroes and direct I/O hold while they bypass the cache.
//!
//! Invariants: an operation holds at most one lock; a locked range is never empty. Locks are few, so they are searched one by one.

use super::operation::Operation;
use crate::bio::{Bio, VolumeId};
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT};
use crate::list::Fifo;
use crate::slab::Slab;

/// A range of blocks that one operation has locked.
#[derive(Debug)]
struct RangeLock {
    slot: u32,
    volume: VolumeId,
    start: u64,
    end: u64,
    waiting: Fifo,
}

/// The locked ranges of a cache.
#[derive(Debug)]
pub(super) struct RangeLocks {
    locks: Vec<RangeLock>,
}

impl RangeLocks {
    /// Creates an empty table with capacity for one lock per bio.
    pub fn new(bios: u32) -> Self {
        Self { locks: Vec::with_capacity(bios as usize) }
    }

    /// Returns the slot of an operation that locks one of the bio's blocks.
    #[inline]
    pub fn conflict(&self, bio: &Bio) -> Option<u32> {
        if self.locks.is_empty() {
            return None;
        }
        let (start, end) = touched_blocks(bio);
        let meets = |lock: &&RangeLock| {
            lock.volume == bio.id.volume && lock.start < end && start < lock.end
        };
        self.locks.iter().find(meets).map(|lock| lock.slot)
    }

    /// Returns the first locked block of `start..end`, or `end`.
    pub fn first_locked(&self, volume: VolumeId, start: u64, end: u64) -> u64 {
        let met = |lock: &&RangeLock| lock.volume == volume && lock.start < end && start < lock.end;
        self.locks.iter().filter(met).map(|lock| lock.start.max(start)).min().unwrap_or(end)
    }

    /// Locks a range for the operation in `slot`.
    pub fn lock(&mut self, slot: u32, volume: VolumeId, (start, end): (u64, u64)) {
        assert!(start < end, "a locked range has blocks");
        assert!(self.locks.len() < self.locks.capacity(), "one lock per operation");
        debug_assert!(self.locks.iter().all(|lock| lock.slot != slot));
        self.locks.push(RangeLock { slot, volume, start, end, waiting: Fifo::new() });
    }

    /// Adds an operation to those that wait for the lock of `holder`.
    pub fn wait(&mut self, ops: &mut Slab<Operation>, holder: u32, slot: u32) {
        let lock = self.locks.iter_mut().find(|lock| lock.slot == holder);
        lock.expect("the holder has a lock").waiting.push(ops, slot);
    }

    /// Removes and returns the waiters for an operation's lock, which stays.
    pub fn take_waiting(&mut self, slot: u32) -> Option<Fifo> {
        let lock = self.locks.iter_mut().find(|lock| lock.slot == slot)?;
        Some(std::mem::take(&mut lock.waiting))
    }

    /// Removes an operation's lock and returns its waiters.
    pub fn unlock(&mut self, slot: u32) -> Option<Fifo> {
        let at = self.locks.iter().position(|lock| lock.slot == slot)?;
        Some(self.locks.swap_remove(at).waiting)
    }
}

/// Returns the blocks that a bio touches: its range rounded outward.
pub(in crate::cache) fn touched_blocks(bio: &Bio) -> (u64, u64) {
    (bio.offset >> BLOCK_SHIFT, bio.end().div_ceil(u64::from(BLOCK)))
}
