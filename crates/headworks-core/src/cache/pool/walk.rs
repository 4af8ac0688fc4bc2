//! The folios of a range, one after the other: what is dirty of them is cancelled, what is valid is forgotten.
//!
//! A range may hold as many folios as the pool has, and to forget all of them takes half a second. So whoever walks goes as far
//! as one turn may and remembers where it was: a discard and the like under the lock of their range, a volume that became
//! shorter beyond its end. Under a lock, and beyond an end, no block becomes valid that the walk has passed; so one walk is
//! enough, however long it takes.
//!
//! A long range is walked over the pool's headers, any other over its own blocks, of which 2 MiB without a folio are passed at
//! a look.

use crate::bio::{Op, VolumeId};
use crate::cache::Cache;
use crate::cache::pool::folio::{Folio, FolioKey, ORDER_MAX, block};
use crate::cache::waiters::operation::{Operation, WaitFor};

/// What one turn may cost, in looks at headers: 1 ms.
const TURN_MAX: u32 = 1 << 15;
/// A look into the index.
const LOOK: u32 = 4;
/// A folio that is dealt with, forgotten mostly.
const FOLIO: u32 = 16;

/// What a walk came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum WalkStep {
    /// A folio with blocks of the range.
    Folio(u32),
    /// As much as one turn may.
    Enough,
    /// Its end.
    End,
}

impl Cache {
    /// What one turn may cost.
    pub(in crate::cache) const fn turn_budget() -> u32 {
        TURN_MAX
    }

    /// The next folio of a range from `at` (a place in the walk) on; `at` is its place then, and what it cost is taken off `left`.
    pub(in crate::cache) fn walk(
        &self,
        volume: VolumeId,
        range: (u64, u64),
        at: &mut u64,
        left: &mut u32,
    ) -> WalkStep {
        let places = self.places(range);
        let by_block = places == range.1 - range.0;
        while *at < places {
            let cost = if by_block { LOOK } else { 1 };
            let Some(rest) = left.checked_sub(cost) else {
                return WalkStep::Enough;
            };
            *left = rest;
            let found = match by_block {
                true => self.folio_at_block(volume, range, at),
                false => self.folio_at_unit(volume, range, at),
            };
            if let Some(unit) = found {
                return WalkStep::Folio(unit);
            }
        }
        WalkStep::End
    }

    /// How many places a walk over a range has.
    fn places(&self, (start, end): (u64, u64)) -> u64 {
        let units = u64::from(self.folios.units());
        if end - start <= units / 8 { end - start } else { units }
    }

    /// The folio of the block at `at`, or further on where there may be one.
    fn folio_at_block(&self, volume: VolumeId, range: (u64, u64), at: &mut u64) -> Option<u32> {
        let block = range.0 + *at;
        let unit = self.index.find(&self.folios, volume, block);
        if unit.is_none() {
            let around = FolioKey::new(volume, block, ORDER_MAX);
            let first = *at == 0 || block == around.block();
            let empty = first && self.index.is_empty_around(&self.folios, around);
            *at = if empty { around.block() + (1 << ORDER_MAX) - range.0 } else { *at + 1 };
        }
        unit
    }

    /// The folio at the unit `at` if it is the range's; `at` is behind it if not.
    fn folio_at_unit(&self, volume: VolumeId, range: (u64, u64), at: &mut u64) -> Option<u32> {
        let unit = *at as u32;
        let folio = &self.folios[unit];
        if !folio.is(Folio::PRESENT) {
            *at += 1;
            return None;
        }
        let (first, blocks) = (folio.key.block(), u64::from(folio.blocks()));
        if folio.key.volume() == volume && first < range.1 && range.0 < first + blocks {
            return Some(unit);
        }
        *at += blocks;
        None
    }

    /// The place in a walk behind a folio that it came to.
    pub(in crate::cache) fn behind(&self, range: (u64, u64), unit: u32) -> u64 {
        let folio = &self.folios[unit];
        let blocks = u64::from(folio.blocks());
        match self.places(range) == range.1 - range.0 {
            true => folio.key.block() + blocks - range.0,
            false => u64::from(unit) + blocks,
        }
    }

    /// The next folio of a short range; `at` is behind it then.
    pub(in crate::cache) fn next_folio(
        &self,
        volume: VolumeId,
        range: (u64, u64),
        at: &mut u64,
    ) -> Option<u32> {
        let mut left = u32::MAX;
        let WalkStep::Folio(unit) = self.walk(volume, range, at, &mut left) else {
            return None;
        };
        *at = self.behind(range, unit);
        Some(unit)
    }

    /// The blocks of a folio that are in a range: the first of them, and how many.
    pub(in crate::cache) fn overlap(&self, unit: u32, (start, end): (u64, u64)) -> (u32, u32) {
        let folio = &self.folios[unit];
        let base = folio.key.block();
        let from = start.max(base) - base;
        let until = end.min(base + u64::from(folio.blocks())) - base;
        (from as u32, (until - from) as u32)
    }

    /// What it costs to cancel the dirty blocks of a folio.
    fn cost(&self, unit: u32) -> u32 {
        let dirty = u32::from(self.folios[unit].dirty);
        if dirty == 0 { 0 } else { FOLIO + dirty }
    }

    /// Of a folio's part of a range what is dirty is cancelled and what is valid is forgotten; the cost is taken off `left`.
    pub(in crate::cache) fn drop_blocks(&mut self, unit: u32, range: (u64, u64), left: &mut u32) {
        *left = left.saturating_sub(FOLIO + self.cost(unit));
        let (first, count) = self.overlap(unit, range);
        self.cancel_blocks(unit, first, count);
        self.invalidate(unit, first, count);
    }

    /// Dirty blocks of an operation's range need not be written any longer; false if there are more than for one turn.
    pub(in crate::cache) fn cancel_some(&mut self, op: &mut Operation, range: (u64, u64)) -> bool {
        let mut left = TURN_MAX;
        loop {
            match self.walk(op.bio.id.volume, range, &mut op.walk, &mut left) {
                WalkStep::End => return true,
                WalkStep::Enough => return false,
                WalkStep::Folio(unit) => {
                    op.walk = self.behind(range, unit);
                    let (first, count) = self.overlap(unit, range);
                    left = left.saturating_sub(self.cost(unit));
                    let cancelled = self.cancel_blocks(unit, first, count);
                    self.stats.discarded_dirty += u64::from(cancelled);
                }
            }
        }
    }

    /// What is cached of an operation's range is forgotten, up to what is on its way; what to wait for before going on. What a
    /// failed write-out made dirty again is cancelled as soon as it has ended, so that nobody sends it anew.
    pub(in crate::cache) fn forget_range(
        &mut self,
        op: &mut Operation,
        range: (u64, u64),
    ) -> Option<WaitFor> {
        let mut left = TURN_MAX;
        loop {
            let unit = match self.walk(op.bio.id.volume, range, &mut op.walk, &mut left) {
                WalkStep::End => return None,
                WalkStep::Enough => return Some(WaitFor::Turn),
                WalkStep::Folio(unit) => unit,
            };
            let (first, count) = self.overlap(unit, range);
            let busy = |s: &u8| s & (block::WRITEBACK | block::FILLING) != 0;
            if self.folios.states(unit + first, count).iter().any(busy)
                && !self.defects.discard_ignores_writeout()
            {
                return Some(WaitFor::Folio(unit));
            }
            op.walk = self.behind(range, unit);
            left = left.saturating_sub(FOLIO + self.cost(unit));
            if op.bio.op == Op::Discard {
                self.cancel_blocks(unit, first, count);
            }
            self.invalidate(unit, first, count);
        }
    }

    /// Dirty blocks of a folio need not be written any longer; how many.
    pub(in crate::cache) fn cancel_blocks(&mut self, unit: u32, first: u32, count: u32) -> u32 {
        if self.folios[unit].dirty == 0 {
            return 0;
        }
        let volume = self.folios[unit].key.volume();
        let (mut cancelled, mut held) = (0, 0);
        for index in unit + first..unit + first + count {
            let state = self.folios.states(index, 1)[0];
            if state & block::DIRTY == 0 {
                continue;
            }
            cancelled += 1;
            held += u32::from(state & block::FAILED != 0);
            if state & block::SHADOW != 0 {
                self.drop_shadow(index);
            }
            let gone = block::DIRTY | block::NEWER | block::FAILED | block::SHADOW;
            self.folios.states_mut(index, 1)[0] = state & !gone;
        }
        self.folios[unit].dirty -= cancelled;
        let device = self.volume(volume).device;
        self.volume(volume).unclean -= u32::from(cancelled);
        self.dirty_regions.sub(self.folios[unit].key, cancelled.into());
        self.count_held(volume, 0, held);
        self.throttle.on_cancelled(device, cancelled.into());
        self.settle_group(unit);
        cancelled.into()
    }

    /// Blocks of a folio are not valid any longer. Nothing of them is dirty. What is on its way (of a volume of another size)
    /// keeps its frames until the device has answered; then the block is asked for anew.
    pub(in crate::cache) fn invalidate(&mut self, unit: u32, first: u32, count: u32) {
        for state in self.folios.states_mut(unit + first, count) {
            let void = if *state & block::FILLING != 0 { block::VOID } else { 0 };
            *state = *state & !(block::UPTODATE | block::USED) | void;
        }
        let blocks = self.folios[unit].blocks();
        if self.folios.states(unit, blocks).iter().all(|&state| state & !block::USED == 0) {
            self.forget_folio(unit);
        }
    }
}
