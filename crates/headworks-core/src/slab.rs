//! A pool of equal slots that is sized at start, indexed by `u32`.
//!
//! Its memory is reserved at start, but a slot is touched when it is first taken: a pool for the worst case costs what is used.
//! A full pool is an ordinary condition, not an error. Lists through slots are in `list.rs`.
//!
//! Invariants: taken + free == capacity; every slot is either taken or in the free list.

use crate::gauge::Gauge32;

/// The index that no slot has.
pub const NIL: u32 = u32::MAX;

/// A pool of slots that hold a `T`.
#[derive(Debug)]
pub struct Slab<T> {
    /// The slots that were ever taken; there is capacity for all.
    slots: Vec<T>,
    /// By slot: the next free one, or `TAKEN`.
    next_free: Vec<u32>,
    /// The slot that was freed last.
    first_free: u32,
    taken: Gauge32,
    capacity: u32,
}

/// Marks a taken slot in `next_free`.
const TAKEN: u32 = u32::MAX - 1;

impl<T: Clone + Default> Slab<T> {
    /// Creates a pool of `capacity` free slots, which are taken from 0 upward.
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
            taken: Gauge32::default(),
            capacity,
        }
    }

    /// Creates a pool whose slots can be indexed without being taken, for tests.
    #[cfg(test)]
    pub(crate) fn touched(capacity: u32) -> Self {
        let mut slab = Self::new(capacity);
        while slab.try_take().is_some() {}
        (0..capacity).rev().for_each(|slot| slab.put(slot));
        slab
    }

    /// Adds `more` free slots. It allocates: for a change of options, never for an I/O.
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

    /// Takes a free slot, which keeps the contents of its last use; returns `None` when all are taken.
    #[inline]
    pub fn try_take(&mut self) -> Option<u32> {
        let slot = self.first_free;
        if slot == NIL {
            return self.take_unused();
        }
        self.first_free = std::mem::replace(&mut self.next_free[slot as usize], TAKEN);
        debug_assert!(self.first_free != TAKEN, "the free list holds free slots");
        self.taken.add(1);
        Some(slot)
    }

    /// Takes the first slot that was never used.
    #[cold]
    fn take_unused(&mut self) -> Option<u32> {
        let slot = self.slots.len() as u32;
        if slot == self.capacity {
            return None;
        }
        self.slots.push(T::default());
        self.next_free.push(TAKEN);
        self.taken.add(1);
        debug_assert!(self.taken.get() == slot + 1, "a new slot is used when all others are taken");
        Some(slot)
    }
}

impl<T> Slab<T> {
    /// Frees a taken slot.
    ///
    /// # Panics
    /// If the slot is not taken.
    #[inline]
    pub fn put(&mut self, slot: u32) {
        assert!(self.next_free[slot as usize] == TAKEN, "slot {slot} is freed twice");
        self.next_free[slot as usize] = self.first_free;
        self.first_free = slot;
        self.taken.sub(1);
    }

    /// Returns the number of slots.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of slots that were ever taken; they are the first ones.
    #[inline]
    #[must_use]
    pub fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns true when `slot` exists and is taken.
    #[inline]
    #[must_use]
    pub fn is_taken(&self, slot: u32) -> bool {
        self.next_free.get(slot as usize) == Some(&TAKEN)
    }

    /// Returns the number of taken slots.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.taken.get()
    }

    /// Returns the number of free slots.
    #[must_use]
    pub fn free(&self) -> u32 {
        debug_assert!(self.taken.get() <= self.capacity, "taken + free == capacity");
        self.capacity - self.taken.get()
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
    fn full_pool_returns_none_and_freed_slots_are_reused() {
        let mut slab: Slab<u8> = Slab::new(2);
        assert_eq!((slab.try_take(), slab.try_take(), slab.try_take()), (Some(0), Some(1), None));
        slab.put(0);
        assert!(!slab.is_taken(0) && slab.is_taken(1) && !slab.is_taken(7));
        assert_eq!(slab.try_take(), Some(0));
        assert_eq!(Slab::<u8>::new(0).try_take(), None);
    }

    #[test]
    fn slots_are_touched_at_first_use_without_reallocation() {
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
    fn grown_slab_keeps_contents_and_adds_slots() {
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
    fn double_free_panics() {
        let mut slab: Slab<u8> = Slab::new(1);
        let slot = slab.try_take().unwrap();
        slab.put(slot);
        slab.put(slot);
    }

    #[test]
    fn slab_matches_a_set() {
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
