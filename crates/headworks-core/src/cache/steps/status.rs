//! Block status: what is newer here than on the device is data, of the rest the device knows.
//!
//! ```text
//!   blocks    . . . . . . . D D W . . . . X X . .       D dirty, W on its way, X locked by a discard, zeroing or direct I/O
//!   asked     [-------- device -]                       cut before the first newer block
//!                           [data]                      the same, asked from there: answered at once
//!                                 [device]              cut before the lock; asked from there it waits for its end
//! ```
//!
//! The answer covers the first run only; who wants to know more asks again from its end. So one look is bounded, and an answer
//! never mixes what two parties say. Nothing is looked up while nothing of the volume is newer here, which is mostly so.
//!
//! **Why a hole that is told is one.** Every write that was acknowledged before the question is on the device or is newer here:
//! dirty (or held, which is dirty) or on its way. A block that is neither was written out, and the answer for that came before
//! the question goes down; so the device tells of it as it tells of any write that it has acknowledged. What is dirtied after
//! the look was not acknowledged before the question. Under a lock what was dirty may be cancelled before the device has heard
//! of the discard: nothing is told there.

use crate::action::Action;
use crate::bio::{Bio, VolumeId};
use crate::cache::pool::folio::{BLOCK, BLOCK_SHIFT, FolioKey, ORDER_MAX, block};
use crate::cache::waiters::operation::{Operation, WaitFor};
use crate::cache::{Cache, Turn};
use crate::error::IoError;
use crate::slab::NIL;

/// Look-ups for one answer: folios, missing blocks, and empty 2 MiB. 0.2 ms; 8 GiB where nothing is cached.
const LOOK_MAX: u32 = 4096;

/// What a range begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// Newer here, up to this block.
    Newer(u64),
    /// No newer than the device, up to this block.
    Older(u64),
}

impl Cache {
    /// See the head of this file.
    pub(in crate::cache) fn step_status(
        &mut self,
        turn: &mut Turn,
        op: &mut Operation,
        slot: u32,
    ) -> WaitFor {
        let Bio { id, offset, .. } = op.bio;
        let (first, end) = (offset >> BLOCK_SHIFT, op.bio.end().div_ceil(u64::from(BLOCK)));
        let free = self.ranges.first_locked(id.volume, first, end);
        if free == first {
            let at = Bio { len: 1, ..op.bio };
            let other = self.ranges.conflict(&at).expect("its first block is locked");
            return match self.ops[other].answered {
                true => self.finish(turn, op, Err(IoError::TimedOut)),
                false => WaitFor::Range(other),
            };
        }
        // Bytes of the bio up to a block.
        let up_to = |block: u64| (op.bio.end().min(block << BLOCK_SHIFT) - offset) as u32;
        match self.first_run(id.volume, first, free) {
            Run::Newer(until) => {
                turn.actions.list.push(Action::Data { bio: id, len: up_to(until) });
                self.finish(turn, op, Ok(()))
            }
            Run::Older(_) if slot == NIL => WaitFor::Slot,
            Run::Older(until) => {
                let bio = Bio { len: up_to(until), ..op.bio };
                self.pass_down(op, slot, bio);
                WaitFor::Below
            }
        }
    }

    /// What the blocks from `first` on are, which is not `end`.
    fn first_run(&self, volume: VolumeId, first: u64, end: u64) -> Run {
        if self.volumes[usize::from(volume.0)].unclean == 0 {
            return Run::Older(end);
        }
        let run = |newer, until| if newer { Run::Newer(until) } else { Run::Older(until) };
        let (mut at, mut kind) = (first, None);
        for _ in 0..LOOK_MAX {
            if at >= end {
                break;
            }
            let (newer, until) = self.alike(volume, at);
            if *kind.get_or_insert(newer) != newer {
                return run(!newer, at);
            }
            at = until;
        }
        run(kind == Some(true), at.min(end))
    }

    /// Whether `block` is newer here, and up to where others of its folio (or those that are missing) are like it.
    fn alike(&self, volume: VolumeId, block: u64) -> (bool, u64) {
        let key = FolioKey::new(volume, block, ORDER_MAX);
        if !self.dirty_regions.any(key) || self.index.is_empty_around(&self.folios, key) {
            return (false, key.block() + (1 << ORDER_MAX));
        }
        let Some((unit, first)) = self.index.locate(&self.folios, volume, block) else {
            return (false, block + 1);
        };
        let folio = &self.folios[unit];
        let left = folio.blocks() - first;
        if folio.dirty == 0 && folio.writeback == 0 {
            return (false, block + u64::from(left));
        }
        let newer = |state: &u8| state & (block::DIRTY | block::WRITEBACK) != 0;
        let states = self.folios.states(unit + first, left);
        let alike = states.iter().take_while(|state| newer(state) == newer(&states[0]));
        (newer(&states[0]), block + alike.count() as u64)
    }
}
