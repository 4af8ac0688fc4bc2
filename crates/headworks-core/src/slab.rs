//! A pool of equal slots made at start-up, named by `u32`.
//!
//! Its memory is there from the start, but a slot is touched when it is first taken: a pool for the worst case costs what is used.
//! Full is an ordinary answer. A slot keeps a generation that counts its uses, so that a name from an earlier use can be told
//! from the present one. Links between slots are plain `u32`s in the slots: intrusive lists in safe Rust.

/// The name that no slot has.
pub const NIL: u32 = u32::MAX;

/// A pool of `T`.
#[derive(Debug)]
pub struct Slab<T> {
    /// Those that were ever taken; there is room for all.
    slots: Vec<T>,
    /// Of those. While a slot is free: the next free one. While taken: `TAKEN`.
    next_free: Vec<u32>,
    /// The one that came back last.
    first_free: u32,
    taken: u32,
    capacity: u32,
}

/// Marks a taken slot in `next_free`.
const TAKEN: u32 = u32::MAX - 1;

impl<T: Clone + Default> Slab<T> {
    /// A pool of `capacity` slots, all free, handed out from 0 upward.
    ///
    /// # Panics
    /// If `capacity` is not below `u32::MAX - 1`.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        assert!(capacity < TAKEN, "a slab has fewer than 2^32 - 2 slots");
        Self {
            slots: Vec::with_capacity(capacity as usize),
            next_free: Vec::with_capacity(capacity as usize),
            first_free: NIL,
            taken: 0,
            capacity,
        }
    }

    /// The same, all of it touched: for tests that name slots themselves.
    #[cfg(test)]
    pub(crate) fn touched(capacity: u32) -> Self {
        let mut slab = Self::new(capacity);
        while slab.try_take().is_some() {}
        (0..capacity).rev().for_each(|slot| slab.put(slot));
        slab
    }

    /// Adds `more` free slots. For a change of options, never for an I/O.
    ///
    /// # Panics
    /// If there would be more than [`Slab::new`] allows.
    pub fn grow(&mut self, more: u32) {
        let capacity = self.capacity.checked_add(more).filter(|&capacity| capacity < TAKEN);
        self.capacity = capacity.expect("a slab has fewer than 2^32 - 2 slots");
        let missing = self.capacity as usize - self.slots.len();
        self.slots.reserve_exact(missing);
        self.next_free.reserve_exact(missing);
    }

    /// Takes a free slot, with whatever its last user left in it; `None` when all are taken.
    #[inline]
    pub fn try_take(&mut self) -> Option<u32> {
        let slot = self.first_free;
        if slot == NIL {
            return self.take_unused();
        }
        self.first_free = self.next_free[slot as usize];
        self.next_free[slot as usize] = TAKEN;
        self.taken += 1;
        Some(slot)
    }

    /// The first of those that nobody has had.
    #[cold]
    fn take_unused(&mut self) -> Option<u32> {
        let slot = self.slots.len() as u32;
        if slot == self.capacity {
            return None;
        }
        self.slots.push(T::default());
        self.next_free.push(TAKEN);
        self.taken += 1;
        Some(slot)
    }
}

impl<T> Slab<T> {
    /// Gives a slot back.
    ///
    /// # Panics
    /// If it is not taken: a double free is our bug.
    #[inline]
    pub fn put(&mut self, slot: u32) {
        assert!(self.next_free[slot as usize] == TAKEN, "slot {slot} is freed twice");
        self.next_free[slot as usize] = self.first_free;
        self.first_free = slot;
        self.taken -= 1;
    }

    /// How many slots there are.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether `slot` exists and is taken.
    #[inline]
    #[must_use]
    pub fn is_taken(&self, slot: u32) -> bool {
        self.next_free.get(slot as usize) == Some(&TAKEN)
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// How many are free.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.capacity - self.taken
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, slot: u32) -> &T {
        &self.slots[slot as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn full_is_an_answer_and_slots_come_back() {
        let mut slab: Slab<u8> = Slab::new(2);
        assert_eq!((slab.try_take(), slab.try_take(), slab.try_take()), (Some(0), Some(1), None));
        slab.put(0);
        assert!(!slab.is_taken(0) && slab.is_taken(1) && !slab.is_taken(7));
        assert_eq!(slab.try_take(), Some(0));
        assert_eq!(Slab::<u8>::new(0).try_take(), None);
    }

    #[test]
    fn slots_are_made_when_they_are_first_taken_in_room_that_is_there() {
        let mut slab: Slab<[u64; 16]> = Slab::new(1000);
        let room = slab.slots.as_ptr();
        for _ in 0..100 {
            let slots = [(); 3].map(|()| slab.try_take().unwrap());
            slots.into_iter().for_each(|slot| slab.put(slot));
        }
        assert_eq!((slab.slots.len(), slab.capacity(), slab.free()), (3, 1000, 1000));
        assert!(!slab.is_taken(3) && !slab.is_taken(999));
        let all = std::iter::from_fn(|| slab.try_take()).count();
        assert_eq!((all, slab.slots.as_ptr()), (1000, room));
    }

    #[test]
    fn a_grown_slab_hands_out_the_new_slots_and_keeps_the_old() {
        let mut slab: Slab<u8> = Slab::new(1);
        let first = slab.try_take().unwrap();
        slab[first] = 7;
        slab.grow(2);
        slab.grow(0);
        assert_eq!((slab.try_take(), slab.try_take(), slab.try_take()), (Some(1), Some(2), None));
        assert_eq!((slab[first], slab.taken(), slab.free()), (7, 3, 0));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn double_free_is_our_bug() {
        let mut slab: Slab<u8> = Slab::new(1);
        let slot = slab.try_take().unwrap();
        slab.put(slot);
        slab.put(slot);
    }

    #[test]
    fn agrees_with_a_set() {
        let mut slab: Slab<u8> = Slab::new(16);
        let mut model = std::collections::BTreeSet::new();
        let mut prng = Prng::new(1);
        for _ in 0..10_000 {
            if prng.below(2) == 0 {
                match slab.try_take() {
                    Some(slot) => assert!(model.insert(slot)),
                    None => assert_eq!(model.len(), 16),
                }
            } else if let Some(&slot) = model.iter().nth(prng.below(16) as usize) {
                model.remove(&slot);
                slab.put(slot);
            }
            assert_eq!(slab.taken() as usize, model.len());
        }
    }
}
