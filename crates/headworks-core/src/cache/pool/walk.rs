//! A walk over the cached folios of a block range, in steps of bounded cost.
//!
//! A range may hold as many folios as the pool, and dropping all of them takes half a second. A walk therefore goes as far as one
//! turn may and is resumed from a position: a discard under the lock of its range, a truncation past the end of its volume. Under
//! a lock, and past an end, no block becomes valid behind the position, so one walk is enough however long it takes.
//!
//! A long range is walked over the pool's headers, any other over its own blocks, of which 2 MiB without a folio are passed in one
//! step.

use super::Pool;
use super::folio::{Folio, FolioKey, ORDER_MAX};
use crate::bio::VolumeId;

/// The cost that one turn may have, in examined headers: 1 ms.
pub(in crate::cache) const TURN_BUDGET: u32 = 1 << 15;
/// The cost of a search in the index.
const SEARCH_COST: u32 = 4;
/// The cost of a folio that is processed, usually dropped.
const FOLIO_COST: u32 = 16;

/// The outcome of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum WalkStep {
    /// A folio with blocks of the range.
    Folio(u32),
    /// The budget of this turn is used up.
    OverBudget,
    /// The end of the range.
    End,
}

/// A walk over the folios of a range of blocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct RangeWalk {
    volume: VolumeId,
    start: u64,
    end: u64,
    /// Positions are blocks of the range; otherwise they are units of the pool.
    by_block: bool,
    /// The position at which the walk ends.
    positions: u64,
}

impl RangeWalk {
    /// Creates a walk over the blocks `start..end` of a volume.
    pub fn new(pool: &Pool, volume: VolumeId, (start, end): (u64, u64)) -> Self {
        assert!(start <= end, "a range does not end before its start");
        // The same for every step of a walk: its positions keep their meaning while the tables grow.
        let by_block = end - start <= u64::from(pool.room()) / 8;
        let positions = if by_block { end - start } else { pool.units().into() };
        Self { volume, start, end, by_block, positions }
    }

    /// Finds the next folio from `position` on, advances the position to it, and takes the cost off `budget`.
    pub fn next(&self, pool: &Pool, position: &mut u64, budget: &mut u32) -> WalkStep {
        let cost = if self.by_block { SEARCH_COST } else { 1 };
        while *position < self.positions {
            let Some(rest) = budget.checked_sub(cost) else {
                return WalkStep::OverBudget;
            };
            *budget = rest;
            let found = match self.by_block {
                true => self.folio_at_block(pool, position),
                false => self.folio_at_unit(pool, position),
            };
            if let Some(unit) = found {
                return WalkStep::Folio(unit);
            }
        }
        WalkStep::End
    }

    /// Finds the next folio of a short range, and advances the position past it.
    pub fn next_unbounded(&self, pool: &Pool, position: &mut u64) -> Option<u32> {
        let mut budget = u32::MAX;
        let WalkStep::Folio(unit) = self.next(pool, position, &mut budget) else {
            return None;
        };
        *position = self.position_after(pool, unit);
        Some(unit)
    }

    /// Returns the folio of the block at a position; without one, advances the position to where the next may be.
    fn folio_at_block(&self, pool: &Pool, position: &mut u64) -> Option<u32> {
        let block = self.start + *position;
        let unit = pool.find(self.volume, block);
        if unit.is_none() {
            let around = FolioKey::new(self.volume, block, ORDER_MAX);
            let first = *position == 0 || block == around.block();
            let empty = first && pool.is_empty_around(around);
            let next = around.block() + (1 << ORDER_MAX) - self.start;
            *position = if empty { next } else { *position + 1 };
        }
        unit
    }

    /// Returns the folio at the unit of a position if it has blocks of the range; otherwise advances the position past it.
    fn folio_at_unit(&self, pool: &Pool, position: &mut u64) -> Option<u32> {
        let unit = *position as u32;
        let folio = pool.folio(unit);
        if !folio.is(Folio::PRESENT) {
            *position += 1;
            return None;
        }
        let (first, blocks) = (folio.key.block(), u64::from(folio.blocks()));
        if folio.key.volume() == self.volume && first < self.end && self.start < first + blocks {
            return Some(unit);
        }
        *position += blocks;
        None
    }

    /// Returns the position after a folio at which the walk arrived.
    pub fn position_after(&self, pool: &Pool, unit: u32) -> u64 {
        let folio = pool.folio(unit);
        debug_assert!(folio.is(Folio::PRESENT) && folio.key.volume() == self.volume);
        let blocks = u64::from(folio.blocks());
        match self.by_block {
            true => folio.key.block() + blocks - self.start,
            false => u64::from(unit) + blocks,
        }
    }

    /// Returns the blocks of a folio that are in the range: the first one, and how many.
    pub fn overlap(&self, pool: &Pool, unit: u32) -> (u32, u32) {
        let folio = pool.folio(unit);
        let base = folio.key.block();
        let from = self.start.max(base) - base;
        let until = self.end.min(base + u64::from(folio.blocks())) - base;
        assert!(from < until, "the folio has blocks of the range");
        (from as u32, (until - from) as u32)
    }
}

/// Takes the cost of cancelling the dirty blocks of a folio off a budget.
pub(in crate::cache) fn charge_cancel(folio: &Folio, budget: &mut u32) {
    let dirty = u32::from(folio.dirty);
    *budget = budget.saturating_sub(if dirty == 0 { 0 } else { FOLIO_COST + dirty });
}

/// Takes the cost of dropping a folio off a budget.
pub(in crate::cache) fn charge_drop(folio: &Folio, budget: &mut u32) {
    *budget = budget.saturating_sub(FOLIO_COST);
    charge_cancel(folio, budget);
}
