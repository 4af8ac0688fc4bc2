//! Storage of waiters, flows and exports: a pool of entries and an open-addressed table that finds them.
//!
//! Both are bounded and allocate nothing after their creation. Memory is touched only as far as it was ever used, because space
//! is reserved for every bio that could wait and few wait at a time.

use std::ops::{Index, IndexMut};

use crate::gauge::Gauge32;
use crate::slab::NIL;

/// Entries named by `u32`.
#[derive(Debug)]
pub(super) struct Pool<T> {
    items: Vec<T>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> Pool<T> {
    /// Creates an empty pool with space for `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity < NIL as usize, "an entry's name is below NIL");
        Self { items: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity), capacity }
    }

    /// Adds an entry and returns its name.
    pub fn take(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = item;
            return id;
        }
        assert!(self.items.len() < self.capacity, "more waiters than slots exist");
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    /// Returns the number of entries that were ever taken; their names are below it.
    pub fn places(&self) -> u32 {
        self.items.len() as u32
    }

    /// Frees a taken entry.
    pub fn put(&mut self, id: u32) {
        assert!(self.free.len() < self.items.len(), "an entry is freed once");
        debug_assert!((id as usize) < self.items.len(), "entry {id} was taken");
        self.free.push(id);
    }
}

impl<T> Index<u32> for Pool<T> {
    type Output = T;

    fn index(&self, id: u32) -> &T {
        &self.items[id as usize]
    }
}

impl<T> IndexMut<u32> for Pool<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.items[id as usize]
    }
}

/// Finds an entry of a pool by its key: linear probing, at most half full, holes closed on removal. The keys stay in the pool;
/// `key_of` reads them there.
#[derive(Debug)]
pub(crate) struct KeyTable {
    /// An entry's name plus one, 0 where there is none: zeroed memory is not touched before it is used.
    slots: Vec<u32>,
    shift: u32,
    len: Gauge32,
}

impl KeyTable {
    /// Creates an empty table for up to `items_max` entries.
    pub fn new(items_max: usize) -> Self {
        let slots = (2 * items_max).next_power_of_two().max(2);
        Self { slots: vec![0; slots], shift: 64 - slots.trailing_zeros(), len: Gauge32::default() }
    }

    /// Returns the entry with that key.
    pub fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        let mut slot = self.home(key);
        loop {
            match self.slots[slot] {
                0 => return None,
                taken if key_of(taken - 1) == key => return Some(taken - 1),
                _ => slot = self.after(slot),
            }
        }
    }

    /// Adds an entry that is not in the table.
    pub fn insert(&mut self, key: u64, id: u32) {
        debug_assert!(id != NIL, "an entry has a name");
        self.len.add(1);
        assert!(2 * self.len.get() as usize <= self.slots.len(), "more entries than announced");
        let mut slot = self.home(key);
        while self.slots[slot] != 0 {
            debug_assert!(self.slots[slot] != id + 1, "entry {id} is in the table already");
            slot = self.after(slot);
        }
        self.slots[slot] = id + 1;
    }

    /// Removes an entry and moves later ones up, so that a probe never meets a hole before its entry.
    pub fn remove(&mut self, key: u64, id: u32, key_of: impl Fn(u32) -> u64) {
        self.len.sub(1);
        let mut hole = self.home(key);
        while self.slots[hole] != id + 1 {
            assert!(self.slots[hole] != 0, "the removed entry is in the table");
            hole = self.after(hole);
        }
        let mut slot = hole;
        loop {
            slot = self.after(slot);
            if self.slots[slot] == 0 {
                break;
            }
            // It may move if the hole lies between its home and its slot.
            let home = self.home(key_of(self.slots[slot] - 1));
            if self.distance(home, hole) < self.distance(home, slot) {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
        }
        self.slots[hole] = 0;
    }

    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn table_matches_ordered_map() {
        for (items_max, keys) in [(1, 3), (4, 6), (64, 80), (64, 1 << 40)] {
            let mut prng = Prng::new(items_max as u64);
            let mut table = KeyTable::new(items_max);
            let mut pool: Pool<u64> = Pool::new(items_max);
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            for _ in 0..20_000 {
                let known = model.keys().nth(prng.below(items_max as u64) as usize).copied();
                let key = known.filter(|_| prng.below(2) == 0).unwrap_or(prng.below(keys));
                assert_eq!(table.find(key, |id| pool[id]), model.get(&key).copied());
                if let Some(id) = model.remove(&key) {
                    table.remove(key, id, |id| pool[id]);
                    pool.put(id);
                } else if model.len() < items_max {
                    let id = pool.take(key);
                    table.insert(key, id);
                    model.insert(key, id);
                }
                let found =
                    model.iter().all(|(key, id)| table.find(*key, |id| pool[id]) == Some(*id));
                assert!(found, "every entry is found");
            }
        }
    }

    #[test]
    #[should_panic(expected = "more waiters than slots exist")]
    fn full_pool_panics() {
        let mut pool = Pool::new(1);
        pool.take(1);
        pool.take(2);
    }
}
