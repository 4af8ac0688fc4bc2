//! The waiting requests of one direction and one priority level, sorted by position and by deadline.
//!
//! Invariants: a request is in both the sort index and the FIFO, or in neither; `next` is the first request of the index whose
//! key is at least `latest`, or `NIL`; the FIFO is in order of arrival, which is deadline order because all requests of a lane
//! have the same time to live; a merged request takes the FIFO position of its older part.

use crate::elevator::sort_index::{SortIndex, SortKey};
use crate::list::List;
use crate::request::{QueueLink, SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;

/// The requests of one direction (reads or writes) of one priority level.
#[derive(Debug)]
pub(super) struct Lane {
    index: SortIndex,
    /// Requests by deadline.
    fifo: List<QueueLink>,
    /// Next request of the sweep. Cached because most requests leave from here.
    next: SlotId,
    /// Key of the request that was dispatched last.
    latest: SortKey,
}

impl Lane {
    /// Creates an empty lane whose sweep starts at position 0.
    pub fn new() -> Self {
        Self { index: SortIndex::new(), fifo: List::new(), next: NIL, latest: SortKey::default() }
    }

    /// Returns true when no request waits.
    pub fn is_empty(&self) -> bool {
        self.fifo.is_empty()
    }

    /// Returns the request with the earliest deadline; `NIL` if none waits.
    pub fn oldest(&self) -> SlotId {
        self.fifo.front().unwrap_or(NIL)
    }

    /// Returns the request at the lowest position; `NIL` if none waits.
    pub fn first(&self, slots: &Slots) -> SlotId {
        self.index.at_or_after(slots, SortKey::default())
    }

    /// Returns the request with the next earlier deadline.
    #[cfg(test)]
    pub fn older(&self, slots: &Slots, id: SlotId) -> Option<SlotId> {
        self.fifo.prev(slots, id)
    }

    /// Returns the next request of the sweep; `NIL` past the last one (the sweep goes upward only).
    pub fn next(&self) -> SlotId {
        self.next
    }

    /// Adds a request that expires at `deadline`. Deadlines ascend if the caller's clock does.
    pub fn insert(&mut self, slots: &mut Slots, id: SlotId, deadline: Instant) {
        slots[id].deadline = deadline;
        self.fifo.push_back(slots, id);
        self.sort(slots, id);
    }

    /// Removes a request that is not dispatched.
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.unsort(slots, id);
        self.fifo.remove(slots, id);
        debug_assert!(self.index.is_empty() == self.fifo.is_empty(), "index and FIFO agree");
    }

    /// Removes a request that is dispatched, and moves the sweep to its position.
    pub fn take(&mut self, slots: &mut Slots, id: SlotId) {
        self.latest = SortKey::of(&slots[id]);
        let from_sweep = id == self.next;
        self.remove(slots, id);
        if !from_sweep {
            self.next = self.index.at_or_after(slots, self.latest);
        }
        let next = self.next;
        debug_assert!(next == NIL || SortKey::of(&slots[next]) >= self.latest, "sweep goes upward");
    }

    /// Sorts a request again whose start has moved.
    pub fn resort(&mut self, slots: &mut Slots, id: SlotId) {
        self.unsort(slots, id);
        self.sort(slots, id);
    }

    /// Removes `gone`, which was merged into `kept`. `kept` takes the earlier deadline and FIFO position of both.
    pub fn join(&mut self, slots: &mut Slots, kept: SlotId, gone: SlotId) {
        assert!(kept != gone, "a request is not merged into itself");
        if slots[gone].deadline < slots[kept].deadline {
            self.fifo.remove(slots, kept);
            slots[kept].deadline = slots[gone].deadline;
            self.fifo.insert_before(slots, kept, gone);
        }
        self.remove(slots, gone);
    }

    fn sort(&mut self, slots: &mut Slots, id: SlotId) {
        self.index.insert(slots, id);
        let key = SortKey::of(&slots[id]);
        if key >= self.latest && (self.next == NIL || key < SortKey::of(&slots[self.next])) {
            self.next = id;
        }
    }

    fn unsort(&mut self, slots: &mut Slots, id: SlotId) {
        debug_assert!(slots[id].links.queue.is_linked(), "request {id} waits in this lane");
        if self.next == id {
            self.next = self.index.after(slots, id);
        }
        self.index.remove(slots, id);
    }
}
