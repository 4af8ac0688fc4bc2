//! The transitions of a block's state. The states change here and nowhere else, together with the counts in the folio's header.
//!
//! ```text
//!            begin_fill             end_fill               mark_dirty
//!   (empty) ------------> FILLING ------------> UPTODATE ------------> DIRTY <---------------.
//!      ^                                           ^                     | begin_writeback    |
//!      | invalidate                                | end_writeback       v                    | failed: FAILED
//!      '-------------------------------------------'--------------- WRITEBACK ----------------'
//!                                                                       | add_shadow, mark_dirty: SHADOW | DIRTY
//! ```
//!
//! Each function returns what the caller has to account for elsewhere (credit, dirty regions, generations, held blocks).

use super::Pool;
use super::folio::{BLOCK, BLOCK_SHIFT, Folio, block};
use crate::action::{Action, Actions};
use crate::bio::VolumeId;
use crate::dirty_entry::DirtyEntry;

/// A run of blocks of one folio.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct BlockRun {
    /// The unit of the folio.
    pub folio: u32,
    /// The unit of the first block.
    pub unit: u32,
    /// The first block on its volume.
    pub block: u64,
    /// The number of blocks, at least 1.
    pub count: u32,
    /// The volume of the blocks.
    pub volume: VolumeId,
}

/// The outcome of [`Pool::mark_dirty`], in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cache) struct Dirtied {
    /// Blocks that were not dirty before.
    pub became_dirty: u32,
    /// Blocks that were held before.
    pub unheld: u32,
}

/// The outcome of [`Pool::end_writeback`], in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cache) struct Written {
    /// Blocks whose write-out is over.
    pub clean: u32,
    /// Blocks that stay dirty and are held.
    pub held: u32,
}

impl Pool {
    /// Marks blocks as used and returns whether the first one was used before.
    #[inline]
    pub fn use_blocks(&mut self, unit: u32, count: u32) -> bool {
        let states = self.folios.states_mut(unit, count);
        let again = states[0] & block::USED != 0;
        if !again {
            states.iter_mut().for_each(|state| *state |= block::USED);
        }
        again
    }

    /// Marks the valid blocks among `count` as used, as far as they follow each other.
    pub fn use_valid(&mut self, unit: u32, count: u32) {
        let states = self.folios.states_mut(unit, count).iter_mut();
        let valid = states.take_while(|state| **state & block::UPTODATE != 0);
        valid.for_each(|state| *state |= block::USED);
    }

    /// Returns true if a block is valid and was not used yet.
    #[inline]
    pub fn is_unused(&self, unit: u32) -> bool {
        self.state(unit) & (block::UPTODATE | block::USED) == block::UPTODATE
    }

    /// Begins the fill of `count` blocks from block `first` of a folio; none of them is valid or outstanding.
    pub fn begin_fill(&mut self, unit: u32, first: u32, count: u32) {
        for state in self.folios.states_mut(unit + first, count) {
            debug_assert!(*state & (block::FILLING | block::UPTODATE) == 0, "state {state}");
            *state |= block::FILLING;
        }
        let folio = &mut self.folios[unit];
        folio.filling += count as u16;
        assert!(u32::from(folio.filling) <= folio.blocks(), "a block is filled once at a time");
    }

    /// Ends the fill of a run on a volume of `present` blocks; the blocks are valid if it succeeded and they still exist.
    pub fn end_fill(&mut self, run: &BlockRun, present: u64, ok: bool) {
        let valid = if ok { block::UPTODATE } else { 0 };
        for (state, at) in self.folios.states_mut(run.unit, run.count).iter_mut().zip(run.block..) {
            let valid = if *state & block::VOID == 0 && at < present { valid } else { 0 };
            *state = *state & !(block::FILLING | block::VOID) | valid;
        }
        let folio = &mut self.folios[run.folio];
        assert!(u32::from(folio.filling) >= run.count, "the blocks were being filled");
        folio.filling -= run.count as u16;
    }

    /// Returns the first run of blocks in `at..end` of a folio that are to be written: dirty, not held, not outstanding.
    pub fn next_dirty_run(&self, unit: u32, at: u32, end: u32) -> Option<(u32, u32)> {
        let states = self.folios.states(unit + at, end - at);
        let busy = block::WRITEBACK | block::FAILED;
        let ready = |state: &u8| state & (block::DIRTY | busy) == block::DIRTY;
        let skip = states.iter().position(ready)?;
        let run = states[skip..].iter().position(|state| !ready(state));
        let run = run.unwrap_or(states.len() - skip) as u32;
        Some((at + skip as u32, run))
    }

    /// Begins the write-out of `count` dirty blocks from block `first` of a folio.
    pub fn begin_writeback(&mut self, unit: u32, first: u32, count: u32) {
        for state in self.folios.states_mut(unit + first, count) {
            debug_assert!(*state & (block::DIRTY | block::WRITEBACK) == block::DIRTY);
            *state = *state & !(block::DIRTY | block::NEWER) | block::WRITEBACK;
        }
        let folio = &mut self.folios[unit];
        assert!(u32::from(folio.dirty) >= count, "only dirty blocks are written");
        folio.dirty -= count as u16;
        folio.writeback += count as u16;
    }

    /// Ends the write-out of a run on a volume of `present` blocks. With `keep` blocks that exist and were not dirtied again are
    /// held. The bytes of shadows move into the blocks' frames.
    pub fn end_writeback(
        &mut self,
        run: &BlockRun,
        present: u64,
        keep: bool,
        actions: &mut Actions,
    ) -> Written {
        let mut written = Written::default();
        // The first frame whose entry is not cleared yet.
        let mut stale = run.unit;
        for (unit, at) in (run.unit..run.unit + run.count).zip(run.block..) {
            let state = self.folios.states(unit, 1)[0];
            debug_assert!(state & block::WRITEBACK != 0, "the block was under write-out");
            let state = state & !block::WRITEBACK;
            let state = if state & block::SHADOW != 0 {
                self.set_clean(stale, unit - stale, actions);
                stale = unit + 1;
                self.end_shadow(unit, actions);
                written.clean += 1;
                state & !block::SHADOW
            } else if keep && state & block::DIRTY == 0 && at < present {
                // Not up to date if the volume's end moved past it and back: its bytes are those that the device was to get.
                written.held += 1;
                self.set_clean(stale, unit - stale, actions);
                stale = unit + 1;
                state | block::UPTODATE | block::DIRTY | block::FAILED
            } else {
                written.clean += 1;
                state
            };
            self.folios.states_mut(unit, 1)[0] = state;
        }
        self.set_clean(stale, run.unit + run.count - stale, actions);
        written
    }

    /// Adjusts the counts of a folio after [`Pool::end_writeback`].
    pub fn count_written(&mut self, run: &BlockRun, written: Written) {
        debug_assert!(written.clean + written.held == run.count);
        let folio = &mut self.folios[run.folio];
        assert!(u32::from(folio.writeback) >= run.count, "the blocks were under write-out");
        folio.writeback -= run.count as u16;
        folio.dirty += written.held as u16;
    }

    /// Treats the last block of a write-out whose volume ended within it and has grown since: the rest of a held block is zeros
    /// from byte `within` on, and a clean block is read again.
    pub fn end_short_writeback(&mut self, unit: u32, within: u32, actions: &mut Vec<Action>) {
        let state = self.state(unit);
        if state & block::FAILED != 0 {
            Self::zero_from(unit, within, actions);
        } else if state & block::DIRTY == 0 {
            self.clear_valid(unit);
        }
    }

    /// Fills a frame with zeros from byte `within` on.
    pub fn zero_from(frame: u32, within: u32, actions: &mut Vec<Action>) {
        assert!(within < BLOCK, "a byte of the block");
        let at = u64::from(frame) << BLOCK_SHIFT | u64::from(within);
        actions.push(Action::Zero { at, len: BLOCK - within });
    }

    /// Makes a block invalid that is not dirty.
    pub fn clear_valid(&mut self, unit: u32) {
        debug_assert!(self.state(unit) & block::DIRTY == 0, "dirty blocks stay valid");
        self.folios.states_mut(unit, 1)[0] &= !(block::UPTODATE | block::USED);
    }

    /// Marks `count` blocks from block `first` of a folio as dirty; `newer`: in a later generation than the folio's.
    pub fn mark_dirty(&mut self, unit: u32, first: u32, count: u32, newer: bool) -> Dirtied {
        assert!(count > 0, "a write has blocks");
        let newer = if newer { block::NEWER } else { 0 };
        let mut dirtied = Dirtied::default();
        for state in self.folios.states_mut(unit + first, count) {
            let old = *state;
            dirtied.became_dirty += u32::from(old & block::DIRTY == 0);
            dirtied.unheld += u32::from(old & block::FAILED != 0);
            // A block that already waits for its write-out stays in its generation.
            let fresh = old & block::DIRTY == 0 || old & block::FAILED != 0;
            let newer = if fresh { newer } else { old & block::NEWER };
            let kept = old & !(block::FAILED | block::NEWER);
            *state = kept | block::UPTODATE | block::USED | block::DIRTY | newer;
        }
        let folio = &mut self.folios[unit];
        folio.dirty += dirtied.became_dirty as u16;
        assert!(u32::from(folio.dirty) <= folio.blocks(), "a block is dirty once");
        dirtied
    }

    /// Makes a block valid without its bytes (a defect).
    pub fn force_valid(&mut self, unit: u32) {
        self.folios.states_mut(unit, 1)[0] |= block::UPTODATE;
    }

    /// Gives a block under write-out a shadow frame; `None` if all are in use.
    pub fn add_shadow(&mut self, unit: u32) -> Option<u32> {
        debug_assert!(self.state(unit) & (block::WRITEBACK | block::SHADOW) == block::WRITEBACK);
        let shadow = self.shadows.take(unit)?;
        self.folios.states_mut(unit, 1)[0] |= block::SHADOW;
        Some(shadow)
    }

    /// Returns the frame of a block's shadow.
    pub fn shadow_of(&self, unit: u32) -> u32 {
        self.shadows.of(unit)
    }

    /// Frees a block's shadow: the device has the old bytes, the new ones move into the block's frame.
    fn end_shadow(&mut self, unit: u32, actions: &mut Actions) {
        let shadow = self.shadows.put(unit);
        actions.list.push(Action::Move {
            from: u64::from(shadow) << BLOCK_SHIFT,
            to: u64::from(unit) << BLOCK_SHIFT,
            len: BLOCK,
        });
        self.set_clean(shadow, 1, actions);
    }

    /// Cancels the dirty blocks among `count` blocks from block `first` of a folio; returns how many were dirty, and how many of
    /// those held.
    pub fn cancel_dirty(
        &mut self,
        unit: u32,
        first: u32,
        count: u32,
        actions: &mut Actions,
    ) -> (u32, u32) {
        let (mut cancelled, mut held) = (0, 0);
        for index in unit + first..unit + first + count {
            let state = self.folios.states(index, 1)[0];
            if state & block::DIRTY == 0 {
                continue;
            }
            cancelled += 1;
            held += u32::from(state & block::FAILED != 0);
            if state & block::SHADOW != 0 {
                // The new bytes are not needed; the block keeps the old ones until the device has them.
                let shadow = self.shadows.put(index);
                self.set_clean(shadow, 1, actions);
            } else if state & block::WRITEBACK == 0 {
                self.set_clean(index, 1, actions);
            }
            let cleared = block::DIRTY | block::NEWER | block::FAILED | block::SHADOW;
            self.folios.states_mut(index, 1)[0] = state & !cleared;
        }
        let folio = &mut self.folios[unit];
        assert!(u32::from(folio.dirty) >= cancelled, "the header counts every dirty block");
        folio.dirty -= cancelled as u16;
        (cancelled, held)
    }

    /// Reports that the newest bytes of `count` blocks from `block` on are in the frames from `frame` on.
    #[inline]
    pub fn set_dirty(
        &self,
        frame: u32,
        count: u32,
        (volume, block): (VolumeId, u64),
        actions: &mut Actions,
    ) {
        if self.dirty_table {
            actions.set_dirty(frame, count, DirtyEntry::new(volume, block));
        }
    }

    /// Fills a frame that becomes dirty with zeros from byte `within` on, where its volume ends: bytes of the frame's earlier block.
    /// A dead process's dirty frames are written to its images, which may have grown without its knowledge.
    pub fn zero_past_end(&self, frame: u32, within: u32, actions: &mut Vec<Action>) {
        if self.dirty_table {
            Self::zero_from(frame, within, actions);
        }
    }

    /// Reports that a shadow holds the newest bytes of a block.
    pub fn set_shadow_dirty(
        &self,
        shadow: u32,
        (volume, block): (VolumeId, u64),
        actions: &mut Actions,
    ) {
        if self.dirty_table {
            actions.set_dirty(shadow, 1, DirtyEntry::of_shadow(volume, block));
        }
    }

    /// Reports that the bytes of `count` frames from `frame` on do not matter any more; none is no report.
    fn set_clean(&self, frame: u32, count: u32, actions: &mut Actions) {
        if self.dirty_table && count > 0 {
            actions.set_dirty(frame, count, DirtyEntry::CLEAN);
        }
    }

    /// Makes clean blocks of a folio invalid, and drops the folio if none is valid. A block that is outstanding (its volume was
    /// resized) keeps its frame until the device completes; then it is filled again.
    pub fn invalidate(&mut self, unit: u32, first: u32, count: u32) {
        for state in self.folios.states_mut(unit + first, count) {
            debug_assert!(*state & block::DIRTY == 0, "dirty blocks are cancelled first");
            let void = if *state & block::FILLING != 0 { block::VOID } else { 0 };
            *state = *state & !(block::UPTODATE | block::USED) | void;
        }
        let blocks = self.folios[unit].blocks();
        if self.folios.states(unit, blocks).iter().all(|&state| state & !block::USED == 0) {
            self.drop_if_idle(unit);
        }
    }

    /// Releases held blocks among `count` blocks from block `first` of a folio; returns how many.
    pub fn unhold(&mut self, unit: u32, first: u32, count: u32) -> u32 {
        let mut held = 0;
        for state in self.folios.states_mut(unit + first, count) {
            held += u32::from(*state & block::FAILED != 0);
            *state &= !block::FAILED;
        }
        debug_assert!(held <= u32::from(self.folios[unit].dirty), "held blocks are dirty");
        held
    }

    /// Returns true if a block of the folio is to be written: dirty and not held.
    pub fn has_block_to_write(&self, unit: u32) -> bool {
        let folio = &self.folios[unit];
        let to_write = |s: &u8| s & (block::DIRTY | block::FAILED) == block::DIRTY;
        folio.dirty > 0 && self.folios.states(unit, folio.blocks()).iter().any(to_write)
    }

    /// Returns true if a block of the folio's own generation is to be written.
    pub fn has_older_block_to_write(&self, unit: u32) -> bool {
        let states = self.folios.states(unit, self.folios[unit].blocks());
        let older = |s: &u8| s & (block::DIRTY | block::FAILED | block::NEWER) == block::DIRTY;
        states.iter().any(older)
    }

    /// Moves a folio to the next generation: all of its dirty blocks are newer than its own.
    pub fn set_generation(&mut self, unit: u32, generation: u8) {
        debug_assert!(!self.has_older_block_to_write(unit));
        self.folios[unit].generation = generation;
        let blocks = self.folios[unit].blocks();
        for state in self.folios.states_mut(unit, blocks) {
            // With FILLING the bit means VOID.
            let newer = if *state & block::FILLING == 0 { block::NEWER } else { 0 };
            *state &= !newer;
        }
    }

    /// Makes every block of a folio invalid that a device is filling (a defect).
    pub fn abandon_fills(&mut self, unit: u32) {
        let blocks = self.folios[unit].blocks();
        self.folios.states_mut(unit, blocks).fill(0);
        self.folios[unit].filling = 0;
    }

    /// Returns the first folio that `matches` (a defect searches one).
    pub fn first_folio(&self, matches: impl Fn(&Folio) -> bool) -> Option<u32> {
        let present = |unit: &u32| self.folios[*unit].is(Folio::PRESENT);
        (0..self.units()).filter(present).find(|&unit| matches(&self.folios[unit]))
    }
}
