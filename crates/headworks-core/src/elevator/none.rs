//! The elevator `none`: first in, first out.
//!
//! Invariant: a request is in the list from its insertion until it is dispatched, removed or merged into another one.

use super::interface::{Batch, Elevator, MergeEdge};
use crate::list::List;
use crate::request::{QueueLink, SlotId, Slots};
use crate::time::Instant;

/// Dispatches requests in the order of arrival.
#[derive(Debug, Default)]
pub struct NoneElevator {
    fifo: List<QueueLink>,
}

impl NoneElevator {
    /// Creates an empty elevator.
    #[must_use]
    pub fn new() -> Self {
        Self { fifo: List::new() }
    }
}

impl Elevator for NoneElevator {
    fn insert(&mut self, _now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        debug_assert!(
            ids.iter().all(|&id| !slots[id].links.queue.is_linked()),
            "an inserted request is in no elevator"
        );
        self.fifo.extend_back(slots, ids);
    }

    fn dispatch(&mut self, _now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let before = batch.room();
        self.fifo.drain_front(slots, before, |id| batch.push(id));
        before - batch.room()
    }

    fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        assert!(slots[id].links.queue.is_linked(), "only a queued request is removed");
        self.fifo.remove(slots, id);
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, _: MergeEdge) {
        debug_assert!(gone != Some(kept), "a request is not merged into itself");
        if let Some(gone) = gone {
            assert!(slots[gone].links.queue.is_linked(), "only a queued request is merged away");
            self.fifo.remove(slots, gone);
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
    fn dispatch_keeps_arrival_order_and_respects_room() {
        let mut slots = Slots::touched(8);
        let mut elevator = NoneElevator::new();
        elevator.insert(Instant(0), &mut slots, &[3, 1]);
        elevator.insert(Instant(0), &mut slots, &[2, 0]);
        assert_eq!(dispatch(&mut elevator, &mut slots, 3), [3, 1, 2]);
        assert_eq!(dispatch(&mut elevator, &mut slots, 3), [0]);
        assert_eq!(dispatch(&mut elevator, &mut slots, 3), []);
    }

    #[test]
    fn merged_or_removed_request_leaves_from_any_position() {
        for (gone, merged) in [(3, true), (1, true), (2, true), (3, false), (1, false), (2, false)]
        {
            let mut slots = Slots::touched(8);
            let mut elevator = NoneElevator::new();
            elevator.insert(Instant(0), &mut slots, &[3, 1, 2]);
            if merged {
                elevator.on_merge(&mut slots, 0, Some(gone), MergeEdge::Back);
            } else {
                elevator.remove(&mut slots, gone);
            }
            elevator.insert(Instant(0), &mut slots, &[4]);
            let left: Vec<_> = [3, 1, 2, 4].into_iter().filter(|&id| id != gone).collect();
            assert_eq!(dispatch(&mut elevator, &mut slots, 8), left);
        }
    }
}
