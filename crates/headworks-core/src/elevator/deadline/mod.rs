//! The elevator `mq-deadline`: sorted batches with deadlines and priority levels.
//!
//! Requests wait in three levels (real time, best effort, idle), each with a lane for reads and one for writes, discards and
//! zeroing. A lane sorts them by position and by deadline. `pick` selects the next one:
//!
//! ```text
//!                  rt          be          idle       a lower level only when every request of the higher ones has
//!               R     W     R     W      R     W      completed, or when its oldest request has aged
//!              ---------------------------------
//!  by position  .. | .. | .... | ...  | ..  | .       a batch: up to `fifo_batch` requests of one lane, upward from the
//!  by deadline  .. | .. | .... | ...  | ..  | .       position of its sweep; or from the oldest, if that has expired
//! ```
//!
//! Reads go before writes, but pass waiting writes in at most `writes_starved` batches in a row. `batching`, `starved` and the
//! direction are shared by all levels, as in Linux: one disk, one head. Deadlines are soft: they are checked when a batch ends.
//!
//! Departures from Linux 6.12, whose way breaks a promise: a fruitless search in an aged level changes nothing (there it may
//! end or prolong the batch of another level); an aged request goes even if younger ones of its level are nearer; with
//! `writes_starved` 0 an expired read goes after a batch of writes; past the highest position a sweep begins anew at the
//! lowest (there at the oldest request, and sweep after sweep passes what is below it). A request that a busy device refused
//! waits in the queue and goes first, so there is no dispatch list here.
//!
//! Invariants: a level's `queued` counts its requests that were inserted and have neither ended nor been merged away, in the
//! device or not; `waiting` is the number of requests in all lanes; sum of `queued` >= `waiting`.

mod lane;
mod pick;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use super::interface::{Batch, Elevator, EndedRequest, MergeEdge};
use crate::gauge::Gauge32;
use crate::list::List;
use crate::options::DeadlineOptions;
use crate::request::{QueueLink, Request, RequestState, SlotId, Slots};
use crate::time::Instant;
use lane::Lane;
use pick::{Direction, Picker};

/// Dispatches sorted batches with deadlines, by priority class.
#[derive(Debug)]
pub struct DeadlineElevator {
    picker: Picker,
    /// Requests in all lanes.
    waiting: Gauge32,
    /// Requests that wait for no sweep, in order of arrival.
    express: List<QueueLink>,
    /// Set while a higher level holds back all that waits: when the first request of it has aged.
    held_until: Option<Instant>,
}

impl DeadlineElevator {
    /// Creates an empty elevator.
    #[must_use]
    pub fn new(options: &DeadlineOptions) -> Self {
        Self {
            picker: Picker::new(options),
            waiting: Gauge32::default(),
            express: List::new(),
            held_until: None,
        }
    }

    /// Dispatches what waits for no sweep.
    fn dispatch_express(&mut self, slots: &mut Slots, batch: &mut Batch) {
        while batch.room() > 0
            && let Some(id) = self.express.pop_front(slots)
        {
            debug_assert!(slots[id].is(Request::EXPRESS), "others are sorted");
            self.waiting.sub(1);
            batch.push(id);
        }
    }

    /// Returns whether `waiting` agrees with the lanes and the levels.
    fn counts_agree(&self) -> bool {
        let levels = &self.picker.levels;
        let queued: u64 = levels.iter().map(|level| u64::from(level.queued.get())).sum();
        let empty = levels.iter().flat_map(|level| &level.lanes).all(Lane::is_empty)
            && self.express.is_empty();
        queued >= u64::from(self.waiting.get()) && self.waiting.is_zero() == empty
    }
}

impl Elevator for DeadlineElevator {
    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        for &id in ids {
            let request = &slots[id];
            let direction = Direction::of(request.op) as usize;
            let level = &mut self.picker.levels[request.ioprio.class().rank()];
            level.queued.add(1);
            if request.is(Request::EXPRESS) {
                self.express.push_back(slots, id);
                continue;
            }
            level.lanes[direction].insert(slots, id, now.after(self.picker.expire_ns[direction]));
        }
        self.waiting.add(ids.len() as u32);
        debug_assert!(self.counts_agree(), "counters disagree after an insertion");
    }

    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let room = batch.room();
        self.held_until = None;
        self.dispatch_express(slots, batch);
        // Constant during the loop: a dispatched request counts as queued until it has ended.
        let several = self.picker.levels.iter().filter(|level| !level.queued.is_zero()).count() > 1;
        while batch.room() > 0 && !self.waiting.is_zero() {
            let Some(pick) = self.picker.pick(slots, now, several) else {
                self.held_until = self.picker.next_aged(slots);
                debug_assert!(several, "only a higher level holds requests back");
                break;
            };
            self.picker.take(slots, &pick);
            self.waiting.sub(1);
            batch.push(pick.id);
        }
        debug_assert!(self.counts_agree(), "counters disagree after a dispatch");
        room - batch.room()
    }

    fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.waiting.sub(1);
        if slots[id].is(Request::EXPRESS) {
            return self.express.remove(slots, id);
        }
        self.picker.lane(&slots[id]).remove(slots, id);
        debug_assert!(self.counts_agree(), "counters disagree after a removal");
    }

    fn needs_completions(&self) -> bool {
        true
    }

    fn on_complete(&mut self, _now: Instant, _slots: &Slots, ended: &[EndedRequest]) {
        for request in ended {
            let queued = &mut self.picker.levels[request.ioprio.class().rank()].queued;
            assert!(!queued.is_zero(), "more requests ended than were inserted");
            queued.sub(1);
        }
        debug_assert!(self.counts_agree(), "counters disagree after completions");
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        let sorted = slots[kept].state == RequestState::Queued
            && slots[kept].marks & (Request::REQUEUED | Request::EXPRESS) == 0;
        if let Some(gone) = gone {
            self.waiting.sub(1);
            let lane = self.picker.lane(&slots[gone]);
            if slots[gone].is(Request::EXPRESS) {
                self.express.remove(slots, gone);
            } else if sorted {
                lane.join(slots, kept, gone);
            } else {
                lane.remove(slots, gone);
            }
        }
        if sorted && edge == MergeEdge::Front {
            self.picker.lane(&slots[kept]).resort(slots, kept);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.held_until.filter(|_| !self.waiting.is_zero())
    }
}
