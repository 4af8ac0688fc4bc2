//! Selection of the next request. Nothing changes until it is dispatched, so a fruitless search ends no batch.
//!
//! ```text
//!  levels:   an aged request of a lower level, if several levels have requests
//!            else the highest level that has any; if all of its requests are in the device, none
//!  in one:   a. the batch is not full and its sweep has more: continue it
//!            b. start a batch: of reads, unless there are none or writes were passed over too often
//!            c. first request of a batch: the oldest if it has expired or the sweep is at its end, else the next of the sweep
//! ```

use super::lane::Lane;
use super::{DeadlineElevator, Direction};
use crate::request::{SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;

/// A request that may be dispatched, and the state of the batch if it is.
#[derive(Debug)]
pub(super) struct Pick {
    /// The request to dispatch.
    pub id: SlotId,
    /// Its level, by rank.
    pub level: usize,
    /// Its direction, and the batch's from then on.
    pub direction: Direction,
    /// Requests of the batch with this one, 1..=`fifo_batch`.
    pub batching: u32,
    /// Batches of reads that passed waiting writes in a row.
    pub starved: u32,
}

impl DeadlineElevator {
    /// Selects the next request. `several`: more than one level has requests, here or in the device.
    pub(super) fn pick(&self, slots: &Slots, now: Instant, several: bool) -> Option<Pick> {
        let aged = || (1..self.levels.len()).find_map(|level| self.pick_aged(slots, now, level));
        if several && let Some(pick) = aged() {
            return Some(pick);
        }
        let highest = self.levels.iter().position(|level| !level.queued.is_zero())?;
        self.pick_in(slots, now, highest)
    }

    /// Selects the next request of one level.
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
            // An endless stream of reads would starve writes.
            _ if self.starved >= self.writes_starved
                && !self.expired_read_is_due(slots, now, reads) =>
            {
                (Direction::Write, 0)
            }
            _ => (Direction::Read, self.starved + 1),
        };
        let lane = &lanes[direction as usize];
        debug_assert!(!lane.is_empty(), "a batch starts in a direction that has requests");
        let expired = slots[lane.oldest()].deadline <= now;
        let id = if expired || lane.next() == NIL { lane.oldest() } else { lane.next() };
        Some(Pick { id, level, direction, batching: 1, starved })
    }

    /// Returns whether an expired read goes between two batches of writes; with `writes_starved` 0 reads would starve.
    fn expired_read_is_due(&self, slots: &Slots, now: Instant, reads: &Lane) -> bool {
        self.direction == Direction::Write && slots[reads.oldest()].deadline <= now
    }

    /// Selects a request of a level that higher levels may hold back: one that has waited for the aging time.
    fn pick_aged(&self, slots: &Slots, now: Instant, level: usize) -> Option<Pick> {
        let (id, direction) = self.oldest(slots, level)?;
        if self.aged_at(slots, id, direction) > now {
            return None;
        }
        // After a long time many have aged; they go in sorted batches, too.
        let pick = self.pick_in(slots, now, level)?;
        if self.aged_at(slots, pick.id, pick.direction) <= now {
            return Some(pick);
        }
        // The sweep would take younger requests again and again, and this one would starve.
        let starved = if direction == Direction::Write { 0 } else { self.starved };
        Some(Pick { id, level, direction, batching: 1, starved })
    }

    /// Returns when the first waiting request is old enough to pass higher levels.
    pub(super) fn next_aged(&self, slots: &Slots) -> Option<Instant> {
        let aged = (1..self.levels.len()).filter_map(|level| {
            let (id, direction) = self.oldest(slots, level)?;
            Some(self.aged_at(slots, id, direction))
        });
        aged.min()
    }

    /// Returns the request of a level that was inserted first.
    fn oldest(&self, slots: &Slots, level: usize) -> Option<(SlotId, Direction)> {
        let heads = [Direction::Read, Direction::Write].map(|direction| {
            let head = self.levels[level].lanes[direction as usize].oldest();
            (head != NIL).then_some((head, direction))
        });
        let waiting = heads.into_iter().flatten();
        waiting.min_by_key(|&(id, direction)| self.aged_at(slots, id, direction))
    }

    /// Returns when a request has waited for the aging time.
    fn aged_at(&self, slots: &Slots, id: SlotId, direction: Direction) -> Instant {
        let inserted = slots[id].deadline.0.saturating_sub(self.expire_ns[direction as usize]);
        Instant(inserted).after(self.aging_ns)
    }
}
