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
        Self { head: NIL, tail: NIL }
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

    /// Puts `slot` in front of the first that it `precedes`; mostly that is nobody.
    pub fn insert<T: Linked>(
        &mut self,
        pool: &mut Slab<T>,
        slot: u32,
        precedes: impl Fn(&T, &T) -> bool,
    ) {
        if self.head == NIL || !precedes(&pool[slot], &pool[self.tail]) {
            return self.push(pool, slot);
        }
        let (mut prev, mut next) = (NIL, self.head);
        while !precedes(&pool[slot], &pool[next]) {
            (prev, next) = (next, *pool[next].next());
        }
        *pool[slot].next() = next;
        match prev {
            NIL => self.head = slot,
            prev => *pool[prev].next() = slot,
        }
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
        Self { head: NIL, tail: NIL }
    }

    pub fn head(&self) -> SlotId {
        self.head
    }

    /// All of them, oldest first.
    pub fn iter<'a>(&self, slots: &'a Slots) -> impl Iterator<Item = SlotId> + use<'a> {
        let taken = |id: SlotId| (id != NIL).then_some(id);
        std::iter::successors(taken(self.head), move |&id| taken(slots[id].flight_next))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    fn drain(fifo: &mut Fifo, slots: &mut Slots) -> Vec<u32> {
        std::iter::from_fn(|| fifo.pop(slots)).collect()
    }

    #[test]
    fn append_joins_in_order_and_empties_the_other() {
        for (left, right) in [(0, 0), (0, 2), (2, 0), (3, 2), (1, 1)] {
            let mut slots = Slots::touched(8);
            let (mut a, mut b) = (Fifo::new(), Fifo::new());
            (0..left).for_each(|slot| a.push(&mut slots, slot));
            (left..left + right).for_each(|slot| b.push(&mut slots, slot));
            a.append(&mut slots, &mut b);
            assert_eq!(b.head(), None);
            // Both are whole: they can be pushed to again.
            a.push(&mut slots, 7);
            b.push(&mut slots, 6);
            let all: Vec<u32> = (0..left + right).chain([7]).collect();
            assert_eq!(drain(&mut a, &mut slots), all);
            assert_eq!(drain(&mut b, &mut slots), [6]);
            assert_eq!((a.pop(&mut slots), a.head()), (None, None));
        }
    }

    #[test]
    fn commands_leave_from_anywhere_and_the_rest_stays_oldest_first() {
        let mut prng = Prng::new(3);
        let mut slots = Slots::touched(16);
        let (mut flight, mut model) = (Flight::new(), Vec::new());
        for _ in 0..5_000 {
            let id = prng.below(16) as u32;
            match model.iter().position(|&other| other == id) {
                Some(at) => {
                    model.remove(at);
                    flight.remove(&mut slots, id);
                }
                None => {
                    model.push(id);
                    flight.push(&mut slots, id);
                }
            }
            assert_eq!(flight.iter(&slots).collect::<Vec<_>>(), model);
        }
    }
}
