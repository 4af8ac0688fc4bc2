//! `none`: first in, first out. A doubly linked list through the slots, so that a request merged away leaves in one step.

use super::{Batch, Elevator, MergeEdge};
use crate::request::{SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;

/// The order of arrival.
#[derive(Debug)]
pub struct NoneElevator {
    head: SlotId,
    tail: SlotId,
}

impl NoneElevator {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { head: NIL, tail: NIL }
    }

    fn unlink(&mut self, slots: &mut Slots, id: SlotId) {
        let (prev, next) = (slots[id].prev, slots[id].next);
        match prev {
            NIL => self.head = next,
            _ => slots[prev].next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => slots[next].prev = prev,
        }
        (slots[id].prev, slots[id].next) = (NIL, NIL);
    }
}

impl Default for NoneElevator {
    fn default() -> Self {
        Self::new()
    }
}

impl Elevator for NoneElevator {
    fn insert(&mut self, _now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        for &id in ids {
            (slots[id].prev, slots[id].next) = (self.tail, NIL);
            match self.tail {
                NIL => self.head = id,
                tail => slots[tail].next = id,
            }
            self.tail = id;
        }
    }

    fn dispatch(&mut self, _now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let mut count = 0;
        while self.head != NIL && batch.room() > 0 {
            let id = self.head;
            self.unlink(slots, id);
            batch.push(id);
            count += 1;
        }
        count
    }

    fn on_merge(
        &mut self,
        slots: &mut Slots,
        _kept: SlotId,
        gone: Option<SlotId>,
        _edge: MergeEdge,
    ) {
        if let Some(gone) = gone {
            self.unlink(slots, gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch(elevator: &mut NoneElevator, slots: &mut Slots, room: usize) -> Vec<SlotId> {
        let mut batch = Batch::with_capacity(8);
        batch.reset(room);
        elevator.dispatch(Instant(0), slots, &mut batch);
        batch.ids().to_vec()
    }

    #[test]
    fn keeps_order_across_batches_and_never_overfills() {
        let mut slots = Slots::touched(8);
        let mut elevator = NoneElevator::new();
        elevator.insert(Instant(0), &mut slots, &[3, 1]);
        elevator.insert(Instant(0), &mut slots, &[2, 0]);
        assert_eq!(dispatch(&mut elevator, &mut slots, 3), [3, 1, 2]);
        assert_eq!(dispatch(&mut elevator, &mut slots, 3), [0]);
        assert_eq!(dispatch(&mut elevator, &mut slots, 3), []);
    }

    #[test]
    fn a_request_merged_away_leaves_from_anywhere() {
        for gone in [3, 1, 2] {
            let mut slots = Slots::touched(8);
            let mut elevator = NoneElevator::new();
            elevator.insert(Instant(0), &mut slots, &[3, 1, 2]);
            elevator.on_merge(&mut slots, 0, Some(gone), MergeEdge::Back);
            elevator.insert(Instant(0), &mut slots, &[4]);
            let left: Vec<_> = [3, 1, 2, 4].into_iter().filter(|&id| id != gone).collect();
            assert_eq!(dispatch(&mut elevator, &mut slots, 8), left);
        }
    }
}
