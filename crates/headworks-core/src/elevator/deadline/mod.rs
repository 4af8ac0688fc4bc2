//! `mq-deadline`: sorted batches, so that a disk seeks little, with deadlines and priority levels, so that nobody waits long.
//!
//! Requests wait in three levels (real time, best effort, idle), each with a lane for reads and one for what changes
//! something. A lane keeps them by place and by deadline. What goes next is decided in `pick`:
//!
//! ```text
//!               rt          be          idle       a lower level only when every request of the higher ones has
//!            R     W     R     W      R     W      completed, or when its oldest has aged
//!           ---------------------------------
//!  by place  .. | .. | .... | ...  | ..  | .       a batch: up to `fifo_batch` requests of one lane, upward from where
//!  by age    .. | .. | .... | ...  | ..  | .       its sweep is; or, if the oldest has expired, upward from there
//! ```
//!
//! Reads go before writes, but pass waiting writes only `writes_starved` batches in a row. `batching`, `starved` and the
//! direction are shared by all levels, as in Linux: it is one disk whose head moves. Deadlines are soft: they are looked at
//! when a batch ends.
//!
//! Where we depart from Linux (6.12), because its way breaks what is promised: a look at an aged level that finds nothing
//! changes nothing (there it may end or prolong the batch of another level); an aged request goes even if younger ones of its
//! level lie nearer; with `writes_starved` 0 an expired read has its turn after a batch of writes. What a device refused waits
//! in the queue and goes first, so there is no dispatch list here.
//!
//! Invariants: a level's `queued` is what was inserted and has neither ended nor been merged away, in the device or not;
//! nothing is in a lane that is not in `waiting`.

mod index;
mod lane;
mod pick;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use super::{Batch, Elevator, EndedRequest, MergeEdge};
use crate::bio::{IoClass, Op};
use crate::options::DeadlineOptions;
use crate::request::{Request, SlotId, Slots, State};
use crate::time::{Instant, MS};
use lane::Lane;
use pick::Pick;

/// Which of a level's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read = 0,
    /// Discards and zeroing, too.
    Write = 1,
}

impl Direction {
    const fn of(op: Op) -> Self {
        if op.is_write() { Self::Write } else { Self::Read }
    }
}

/// The requests of one class.
#[derive(Debug)]
struct Level {
    /// By direction.
    lanes: [Lane; 2],
    /// Inserted and not ended, in the device or here.
    queued: u32,
}

/// Sorted batches with deadlines, in priority classes.
#[derive(Debug)]
pub struct DeadlineElevator {
    /// How long a request of each direction may wait before it goes first.
    expire_ns: [u64; 2],
    writes_starved: u32,
    fifo_batch: u32,
    aging_ns: u64,
    /// By rank of their class.
    levels: [Level; IoClass::ALL.len()],
    /// Requests in lanes.
    waiting: u32,
    /// How many of the present batch have left.
    batching: u32,
    /// Batches of reads that passed waiting writes.
    starved: u32,
    /// The direction of the present batch.
    direction: Direction,
    /// Everything that waits is held back by a higher level; then the first of it is old enough.
    held_until: Option<Instant>,
}

impl DeadlineElevator {
    /// An empty one.
    #[must_use]
    pub fn new(options: &DeadlineOptions) -> Self {
        let ns = |ms: u32| u64::from(ms) * MS;
        Self {
            expire_ns: [ns(options.read_expire_ms), ns(options.write_expire_ms)],
            writes_starved: options.writes_starved,
            fifo_batch: options.fifo_batch,
            aging_ns: ns(options.prio_aging_expire_ms),
            levels: IoClass::ALL.map(|_| Level { lanes: [Lane::new(), Lane::new()], queued: 0 }),
            waiting: 0,
            // A full batch, so that the first to leave begins one (in Linux a write would go on with one that never began).
            batching: u32::MAX,
            starved: 0,
            direction: Direction::Write,
            held_until: None,
        }
    }

    fn lane(&mut self, request: &Request) -> &mut Lane {
        let level = &mut self.levels[request.ioprio.class().rank()];
        &mut level.lanes[Direction::of(request.op) as usize]
    }

    /// The picked request leaves, and the batch goes on with it.
    fn take(&mut self, slots: &mut Slots, pick: &Pick) {
        self.levels[pick.level].lanes[pick.direction as usize].take(slots, pick.id);
        self.waiting -= 1;
        (self.direction, self.batching, self.starved) =
            (pick.direction, pick.batching, pick.starved);
    }
}

impl Elevator for DeadlineElevator {
    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        for &id in ids {
            let request = &slots[id];
            let direction = Direction::of(request.op) as usize;
            let level = &mut self.levels[request.ioprio.class().rank()];
            level.queued += 1;
            level.lanes[direction].insert(slots, id, now.after(self.expire_ns[direction]));
        }
        self.waiting += ids.len() as u32;
    }

    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let room = batch.room();
        self.held_until = None;
        // Neither changes while requests leave: they count until they have ended.
        let several = self.levels.iter().filter(|level| level.queued > 0).count() > 1;
        while batch.room() > 0 && self.waiting > 0 {
            let Some(pick) = self.pick(slots, now, several) else {
                self.held_until = self.next_aged(slots);
                break;
            };
            self.take(slots, &pick);
            batch.push(pick.id);
        }
        room - batch.room()
    }

    fn needs_completions(&self) -> bool {
        true
    }

    fn on_complete(&mut self, _now: Instant, done: &[EndedRequest]) {
        for done in done {
            let level = &mut self.levels[done.ioprio.class().rank()];
            assert!(level.queued > 0, "more requests ended than were inserted");
            level.queued -= 1;
        }
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        let here = slots[kept].state == State::Queued && !slots[kept].is(Request::REQUEUED);
        if let Some(gone) = gone {
            self.waiting -= 1;
            let lane = self.lane(&slots[gone]);
            if here {
                lane.join(slots, kept, gone);
            } else {
                lane.remove(slots, gone);
            }
        }
        if here && edge == MergeEdge::Front {
            self.lane(&slots[kept]).resort(slots, kept);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.held_until.filter(|_| self.waiting > 0)
    }
}
