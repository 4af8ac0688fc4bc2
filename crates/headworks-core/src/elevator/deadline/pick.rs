//! Selection of the next request. Nothing changes until it is dispatched, so a fruitless search ends no batch.
//!
//! ```text
//!  levels:   an aged request of a lower level, if several levels have requests
//!            else the highest level that has any; if all of its requests are in the device, none
//!  in one:   a. the batch is not full and its sweep has more: continue it
//!            b. start a batch: of reads, unless there are none or writes were passed over too often
//!            c. first request of a batch: the oldest if it has expired, else the next of the sweep, which begins anew at the lowest position
//! ```

use super::lane::Lane;
use crate::bio::{IoClass, Op};
use crate::gauge::Gauge32;
use crate::options::DeadlineOptions;
use crate::request::{Request, SlotId, Slots};
use crate::slab::NIL;
use crate::time::{Instant, MS};

/// The direction of a lane and of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Reads and other requests that change nothing.
    Read = 0,
    /// Writes, discards and zeroing.
    Write = 1,
}

impl Direction {
    /// Returns the direction of an operation.
    pub const fn of(op: Op) -> Self {
        if op.is_write() { Self::Write } else { Self::Read }
    }
}

/// The requests of one priority class.
#[derive(Debug)]
pub(super) struct Level {
    /// Waiting requests, by direction.
    pub lanes: [Lane; 2],
    /// Requests inserted and not ended, in the device or in a lane.
    pub queued: Gauge32,
}

/// The waiting requests and the state of the current batch.
#[derive(Debug)]
pub(super) struct Picker {
    /// Time to the deadline of a request, by direction, in nanoseconds.
    pub expire_ns: [u64; 2],
    /// Batches of reads that may pass waiting writes in a row.
    pub writes_starved: u32,
    fifo_batch: u32,
    aging_ns: u64,
    /// By rank of the class, the most urgent first.
    pub levels: [Level; IoClass::ALL.len()],
    /// Requests of the current batch that were dispatched.
    batching: u32,
    /// Batches of reads that passed waiting writes in a row.
    starved: u32,
    /// Direction of the current batch.
    direction: Direction,
}

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

impl Picker {
    /// Creates empty lanes and no batch.
    pub fn new(options: &DeadlineOptions) -> Self {
        assert!(options.fifo_batch > 0, "a batch has at least one request");
        let ns = |ms: u32| u64::from(ms) * MS;
        let level = |_| Level { lanes: [Lane::new(), Lane::new()], queued: Gauge32::default() };
        Self {
            expire_ns: [ns(options.read_expire_ms), ns(options.write_expire_ms)],
            writes_starved: options.writes_starved,
            fifo_batch: options.fifo_batch,
            aging_ns: ns(options.prio_aging_expire_ms),
            levels: IoClass::ALL.map(level),
            // A full batch, so that the first dispatch starts one (in Linux a write would continue one that never started).
            batching: u32::MAX,
            starved: 0,
            direction: Direction::Write,
        }
    }

    /// Returns the lane of a request.
    pub fn lane(&mut self, request: &Request) -> &mut Lane {
        let level = &mut self.levels[request.ioprio.class().rank()];
        &mut level.lanes[Direction::of(request.op) as usize]
    }

    /// Removes a picked request and continues or starts its batch.
    pub fn take(&mut self, slots: &mut Slots, pick: &Pick) {
        debug_assert!(pick.batching >= 1 && pick.batching <= self.fifo_batch, "batch size");
        self.levels[pick.level].lanes[pick.direction as usize].take(slots, pick.id);
        (self.direction, self.batching, self.starved) =
            (pick.direction, pick.batching, pick.starved);
    }

    /// Selects the next request. `several`: more than one level has requests, here or in the device.
    pub fn pick(&self, slots: &Slots, now: Instant, several: bool) -> Option<Pick> {
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
        let id = match lane.next() {
            _ if expired => lane.oldest(),
            // From the oldest, what is below it would be passed by sweep after sweep.
            NIL => lane.first(slots),
            next => next,
        };
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
    pub fn next_aged(&self, slots: &Slots) -> Option<Instant> {
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
