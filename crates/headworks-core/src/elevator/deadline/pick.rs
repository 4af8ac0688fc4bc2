//! What goes next. Decided without changing anything, so that a look that finds nothing costs nobody his batch.
//!
//! ```text
//!  levels:   an aged one of a lower level, if several have requests
//!            else the highest level that has any; if all of its requests are in the device, nothing
//!  in one:   a. the batch is not full and its sweep has more: go on
//!            b. a new batch: reads, unless there are none or writes were passed over too often
//!            c. its first: the oldest, if that has expired or the sweep is at its end; else the next of the sweep
//! ```

use super::lane::Lane;
use super::{DeadlineElevator, Direction};
use crate::request::{SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;

/// A request that may leave, and what becomes of the batch if it does.
#[derive(Debug)]
pub(super) struct Pick {
    pub id: SlotId,
    pub level: usize,
    pub direction: Direction,
    pub batching: u32,
    pub starved: u32,
}

impl DeadlineElevator {
    /// What goes next; `several`: more than one level has requests, here or in the device.
    pub(super) fn pick(&self, slots: &Slots, now: Instant, several: bool) -> Option<Pick> {
        let aged = || (1..self.levels.len()).find_map(|level| self.pick_aged(slots, now, level));
        if several && let Some(pick) = aged() {
            return Some(pick);
        }
        let highest = self.levels.iter().position(|level| level.queued > 0)?;
        self.pick_in(slots, now, highest)
    }

    /// What goes next of one level.
    fn pick_in(&self, slots: &Slots, now: Instant, level: usize) -> Option<Pick> {
        let lanes = &self.levels[level].lanes;
        let next = lanes[self.direction as usize].next();
        if next != NIL && self.batching < self.fifo_batch {
            let (direction, batching, starved) = (self.direction, self.batching + 1, self.starved);
            return Some(Pick { id: next, level, direction, batching, starved });
        }
        let [reads, writes] = lanes;
        let (direction, starved) = match (reads.is_empty(), writes.is_empty()) {
            (true, true) => return None,
            (true, false) => (Direction::Write, 0),
            (false, true) => (Direction::Read, self.starved),
            // Reads have gone first often enough; with an endless stream of reads writes would wait for ever.
            _ if self.starved >= self.writes_starved && !self.is_turn_of(slots, now, reads) => {
                (Direction::Write, 0)
            }
            _ => (Direction::Read, self.starved + 1),
        };
        let lane = &lanes[direction as usize];
        let expired = slots[lane.oldest()].deadline <= now;
        let id = if expired || lane.next() == NIL { lane.oldest() } else { lane.next() };
        Some(Pick { id, level, direction, batching: 1, starved })
    }

    /// Where writes never have to wait, reads would wait for ever: expired ones go between two batches of writes.
    fn is_turn_of(&self, slots: &Slots, now: Instant, reads: &Lane) -> bool {
        self.direction == Direction::Write && slots[reads.oldest()].deadline <= now
    }

    /// The same of a level that may be held back: only what has waited as long as a lower level may have to.
    fn pick_aged(&self, slots: &Slots, now: Instant, level: usize) -> Option<Pick> {
        let (id, direction) = self.oldest(slots, level)?;
        if self.aged_at(slots, id, direction) > now {
            return None;
        }
        // Many have aged after a long time: then they go in sorted batches, too.
        let pick = self.pick_in(slots, now, level)?;
        if self.aged_at(slots, pick.id, pick.direction) <= now {
            return Some(pick);
        }
        // The sweep would take younger ones first, and again younger ones: then this one would never go.
        let starved = if direction == Direction::Write { 0 } else { self.starved };
        Some(Pick { id, level, direction, batching: 1, starved })
    }

    /// When the first of those that wait is old enough to go before higher levels.
    pub(super) fn next_aged(&self, slots: &Slots) -> Option<Instant> {
        let aged = (1..self.levels.len()).filter_map(|level| {
            let (id, direction) = self.oldest(slots, level)?;
            Some(self.aged_at(slots, id, direction))
        });
        aged.min()
    }

    /// The request of a level that was inserted first.
    fn oldest(&self, slots: &Slots, level: usize) -> Option<(SlotId, Direction)> {
        let heads = [Direction::Read, Direction::Write].map(|direction| {
            let head = self.levels[level].lanes[direction as usize].oldest();
            (head != NIL).then_some((head, direction))
        });
        let waiting = heads.into_iter().flatten();
        waiting.min_by_key(|&(id, direction)| self.aged_at(slots, id, direction))
    }

    fn aged_at(&self, slots: &Slots, id: SlotId, direction: Direction) -> Instant {
        let inserted = slots[id].deadline.0.saturating_sub(self.expire_ns[direction as usize]);
        Instant(inserted).after(self.aging_ns)
    }
}
