//! Commands in the device, oldest first.
//!
//! Invariants: `commands` counts the data commands in the list, at most `queue_depth`; flushes are beside them, at most one for
//! each volume; `timed_out_writes` counts the writes in the list that are marked `TIMED_OUT`.

use crate::gauge::Gauge32;
use crate::list::List;
use crate::request::{FlightLink, Request, RequestState, SlotId, Slots};
use crate::time::Instant;

/// The commands that a device has.
#[derive(Debug)]
pub(super) struct InFlightList {
    list: List<FlightLink>,
    /// Commands that count against `queue_depth`: all but flushes.
    commands: Gauge32,
    flushes: Gauge32,
    timed_out_writes: Gauge32,
}

impl InFlightList {
    /// Creates an empty list.
    pub const fn new() -> Self {
        let zero = Gauge32::new(0);
        Self { list: List::new(), commands: zero, flushes: zero, timed_out_writes: zero }
    }

    /// Returns the number of commands that count against `queue_depth`.
    #[inline]
    pub fn commands(&self) -> u32 {
        self.commands.get()
    }

    /// Returns the number of all commands, flushes included.
    pub fn len(&self) -> u32 {
        self.commands.get() + self.flushes.get()
    }

    /// Returns true when the device has no command.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let empty = self.list.is_empty();
        debug_assert!(
            empty == (self.commands.is_zero() && self.flushes.is_zero()),
            "all are counted"
        );
        empty
    }

    /// Adds a request's next command, which is sent at `now`; `depth` is the device's queue depth.
    #[inline]
    pub fn push(&mut self, now: Instant, slots: &mut Slots, id: SlotId, depth: u32) {
        self.list.push_back(slots, id);
        let request = &mut slots[id];
        debug_assert!(!request.is(Request::INDEXED), "nothing merges with a command in flight");
        request.state = RequestState::InFlight;
        request.sent = now;
        request.generation = request.generation.wrapping_add(1);
        if request.is(Request::FLUSH) {
            self.flushes.add(1);
        } else {
            self.commands.add(1);
            assert!(
                self.commands.get() <= depth,
                "the device is sent at most queue_depth commands"
            );
        }
    }

    /// Removes a command that the device answered.
    #[inline]
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        let request = &slots[id];
        if request.is(Request::FLUSH) {
            self.flushes.sub(1);
        } else {
            self.commands.sub(1);
        }
        if request.is(Request::TIMED_OUT) && request.op.is_write() {
            self.timed_out_writes.sub(1);
        }
        self.list.remove(slots, id);
    }

    /// Returns the oldest command.
    pub fn oldest(&self) -> Option<SlotId> {
        self.list.front()
    }

    /// Returns the command that was sent after `id`.
    pub fn next(&self, slots: &Slots, id: SlotId) -> Option<SlotId> {
        self.list.next(slots, id)
    }

    /// Marks a command as timed out.
    pub fn mark_timed_out(&mut self, slots: &mut Slots, id: SlotId) {
        let request = &mut slots[id];
        debug_assert!(!request.is(Request::TIMED_OUT), "a command times out once");
        debug_assert!(request.state == RequestState::InFlight, "a command in flight times out");
        request.marks |= Request::TIMED_OUT;
        self.timed_out_writes.add(u32::from(request.op.is_write()));
    }

    /// Returns true when timed-out writes are still in the device.
    #[inline]
    pub fn has_timed_out_writes(&self) -> bool {
        !self.timed_out_writes.is_zero()
    }

    /// Returns true when the device has no command but timed-out ones.
    pub fn only_timed_out(&self, slots: &Slots) -> bool {
        self.list.iter(slots).all(|id| slots[id].is(Request::TIMED_OUT))
    }

    /// Returns true when `new` is a write over bytes that a timed-out write may still change.
    #[inline]
    pub fn overlaps_timed_out_write(&self, slots: &Slots, new: &Request) -> bool {
        self.has_timed_out_writes() && new.op.is_write() && self.finds_overlap(slots, new)
    }

    #[cold]
    fn finds_overlap(&self, slots: &Slots, new: &Request) -> bool {
        let overlaps = |old: &Request| {
            old.volume == new.volume && old.offset < new.end() && new.offset < old.end()
        };
        self.list.iter(slots).any(|id| {
            let old = &slots[id];
            old.is(Request::TIMED_OUT) && old.op.is_write() && overlaps(old)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Op;

    #[test]
    fn timed_out_write_blocks_overlapping_writes_only() {
        let mut slots = Slots::touched(4);
        let mut in_flight = InFlightList::new();
        let len = 4096;
        for (id, op) in [(0, Op::Write), (1, Op::Read), (2, Op::Flush)] {
            let marks = if op == Op::Flush { Request::FLUSH } else { 0 };
            let offset = u64::from(id) * 4096;
            slots[id] = Request { offset, len, op, marks, ..Request::default() };
            in_flight.push(Instant(0), &mut slots, id, 2);
            assert!(slots[id].state == RequestState::InFlight);
        }
        assert_eq!((in_flight.commands(), in_flight.len()), (2, 3));
        let blocked = |in_flight: &InFlightList, slots: &Slots, op, offset| {
            let new = Request { offset, len, op, ..Request::default() };
            in_flight.overlaps_timed_out_write(slots, &new)
        };
        assert!(!blocked(&in_flight, &slots, Op::Write, 0));
        in_flight.mark_timed_out(&mut slots, 0);
        in_flight.mark_timed_out(&mut slots, 1);
        assert!(blocked(&in_flight, &slots, Op::Write, 2048));
        assert!(!blocked(&in_flight, &slots, Op::Read, 2048));
        assert!(!blocked(&in_flight, &slots, Op::Write, 4096));
        assert!(!in_flight.only_timed_out(&slots));
        in_flight.remove(&mut slots, 2);
        assert!(in_flight.only_timed_out(&slots));
        in_flight.remove(&mut slots, 0);
        assert!(!in_flight.has_timed_out_writes());
        in_flight.remove(&mut slots, 1);
        assert!(in_flight.is_empty());
    }
}
