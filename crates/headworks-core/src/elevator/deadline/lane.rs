//! One direction of one level: what waits there, by place and by deadline, and how far the sweep has come.
//!
//! Invariants: a request is in both the index and the line, or in neither; `next` is the first in the index at `latest` or
//! behind it; the line is in the order of deadlines, for everybody gets the same time and a merged request inherits the
//! place of the older part.

use super::index::{SortIndex, SortKey};
use crate::request::{SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;

/// Requests of one direction (reads, or all that changes something) and one level.
#[derive(Debug)]
pub(super) struct Lane {
    index: SortIndex,
    /// The line by deadline, through `Request::next` and `Request::prev`.
    head: SlotId,
    tail: SlotId,
    /// Where the sweep goes on; kept, because most requests leave from here.
    next: SlotId,
    /// The start of the request that left last.
    latest: SortKey,
}

impl Lane {
    pub fn new() -> Self {
        Self {
            index: SortIndex::new(),
            head: NIL,
            tail: NIL,
            next: NIL,
            latest: SortKey::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// The oldest.
    pub fn oldest(&self) -> SlotId {
        self.head
    }

    /// The next of the sweep; `NIL` at its end: it goes one way.
    pub fn next(&self) -> SlotId {
        self.next
    }

    pub fn insert(&mut self, slots: &mut Slots, id: SlotId, deadline: Instant) {
        let request = &mut slots[id];
        (request.deadline, request.prev, request.next) = (deadline, self.tail, NIL);
        match self.tail {
            NIL => self.head = id,
            tail => slots[tail].next = id,
        }
        self.tail = id;
        self.sort_in(slots, id);
    }

    /// Takes a request out that does not leave for the device.
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.unsort(slots, id);
        self.unlink(slots, id);
    }

    /// A request leaves for the device: the sweep is there now.
    pub fn take(&mut self, slots: &mut Slots, id: SlotId) {
        self.latest = SortKey::of(&slots[id]);
        let from_sweep = id == self.next;
        self.unsort(slots, id);
        self.unlink(slots, id);
        if !from_sweep {
            self.next = self.index.at_or_after(slots, self.latest);
        }
    }

    /// A request starts elsewhere than when it was sorted in.
    pub fn resort(&mut self, slots: &mut Slots, id: SlotId) {
        self.unsort(slots, id);
        self.sort_in(slots, id);
    }

    /// `gone` becomes part of `kept` and leaves; the older one's deadline and place in the line stay.
    pub fn join(&mut self, slots: &mut Slots, kept: SlotId, gone: SlotId) {
        if slots[gone].deadline < slots[kept].deadline {
            self.unlink(slots, kept);
            slots[kept].deadline = slots[gone].deadline;
            self.link_before(slots, kept, gone);
        }
        self.remove(slots, gone);
    }

    fn sort_in(&mut self, slots: &mut Slots, id: SlotId) {
        self.index.insert(slots, id);
        let place = SortKey::of(&slots[id]);
        if place >= self.latest && (self.next == NIL || place < SortKey::of(&slots[self.next])) {
            self.next = id;
        }
    }

    fn unsort(&mut self, slots: &mut Slots, id: SlotId) {
        if self.next == id {
            self.next = self.index.after(slots, id);
        }
        self.index.remove(slots, id);
    }

    fn link_before(&mut self, slots: &mut Slots, id: SlotId, next: SlotId) {
        let prev = slots[next].prev;
        (slots[id].prev, slots[id].next) = (prev, next);
        slots[next].prev = id;
        match prev {
            NIL => self.head = id,
            _ => slots[prev].next = id,
        }
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
    }
}
