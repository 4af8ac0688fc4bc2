//! Lists through the links that slots carry: no allocation, however long.

use crate::request::{BioSlot, Request, SlotId, Slots};
use crate::slab::{NIL, Slab};

/// What can be linked through a `next` of its own.
pub(crate) trait Linked {
    fn next(&mut self) -> &mut u32;
}

impl Linked for Request {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Linked for BioSlot {
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// First in, first out.
#[derive(Debug)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
}

impl Fifo {
    pub const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
        }
    }

    pub fn head(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub fn push<T: Linked>(&mut self, pool: &mut Slab<T>, slot: u32) {
        *pool[slot].next() = NIL;
        match self.tail {
            NIL => self.head = slot,
            tail => *pool[tail].next() = slot,
        }
        self.tail = slot;
    }

    pub fn pop<T: Linked>(&mut self, pool: &mut Slab<T>) -> Option<u32> {
        let slot = self.head()?;
        self.head = std::mem::replace(pool[slot].next(), NIL);
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(slot)
    }

    /// Puts all of `other` behind this one's.
    pub fn append<T: Linked>(&mut self, pool: &mut Slab<T>, other: &mut Fifo) {
        let other = std::mem::replace(other, Fifo::new());
        if other.head == NIL {
            return;
        }
        match self.tail {
            NIL => self.head = other.head,
            tail => *pool[tail].next() = other.head,
        }
        self.tail = other.tail;
    }
}

/// Commands in flight, oldest first; any may leave.
#[derive(Debug)]
pub(crate) struct Flight {
    head: SlotId,
    tail: SlotId,
}

impl Flight {
    pub const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
        }
    }

    pub fn head(&self) -> SlotId {
        self.head
    }

    #[inline]
    pub fn push(&mut self, slots: &mut Slots, id: SlotId) {
        (slots[id].flight_prev, slots[id].flight_next) = (self.tail, NIL);
        match self.tail {
            NIL => self.head = id,
            tail => slots[tail].flight_next = id,
        }
        self.tail = id;
    }

    #[inline]
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        let (prev, next) = (slots[id].flight_prev, slots[id].flight_next);
        match prev {
            NIL => self.head = next,
            _ => slots[prev].flight_next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => slots[next].flight_prev = prev,
        }
    }
}
