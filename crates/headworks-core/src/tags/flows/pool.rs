//! Where flows live and how they are found: a pool that grows into room reserved at start, and an open-addressed table.
//!
//! Both are bounded from the start and allocate nothing later. Memory is touched only as far as it was ever used, because
//! room is reserved for every bio that could wait and hardly ever are many waiting.

use crate::slab::NIL;

/// Items named by `u32`.
#[derive(Debug)]
pub(super) struct Pool<T> {
    items: Vec<T>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> Pool<T> {
    pub fn new(capacity: usize) -> Self {
        Self { items: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity), capacity }
    }

    pub fn take(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = item;
            return id;
        }
        assert!(self.items.len() < self.capacity, "more waiters than slots exist");
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    pub fn put(&mut self, id: u32) {
        self.free.push(id);
    }
}

impl<T> std::ops::Index<u32> for Pool<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        &self.items[id as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Pool<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.items[id as usize]
    }
}

/// Finds an item of a pool by its key: linear probing, at most half full, holes closed when an item leaves. The keys stay in
/// the pool; `key_of` reads them there.
#[derive(Debug)]
pub(super) struct Table {
    /// An item's number plus one, 0 where there is none: zeroed memory is not touched before it is used.
    places: Vec<u32>,
    shift: u32,
}

impl Table {
    pub fn new(items_max: usize) -> Self {
        let places = (2 * items_max).next_power_of_two().max(2);
        Self { places: vec![0; places], shift: 64 - places.trailing_zeros() }
    }

    pub fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        let mut place = self.home(key);
        loop {
            match self.places[place] {
                0 => return None,
                taken if key_of(taken - 1) == key => return Some(taken - 1),
                _ => place = self.after(place),
            }
        }
    }

    /// Adds an item that is not there.
    pub fn insert(&mut self, key: u64, id: u32) {
        debug_assert!(id != NIL);
        let mut place = self.home(key);
        while self.places[place] != 0 {
            place = self.after(place);
        }
        self.places[place] = id + 1;
    }

    /// Removes an item that is there, and moves those up that had made way for it.
    pub fn remove(&mut self, key: u64, id: u32, key_of: impl Fn(u32) -> u64) {
        let mut hole = self.home(key);
        while self.places[hole] != id + 1 {
            assert!(self.places[hole] != 0, "what is removed is there");
            hole = self.after(hole);
        }
        let mut place = hole;
        loop {
            place = self.after(place);
            if self.places[place] == 0 {
                break;
            }
            // It may move if the hole is on its way from home.
            let home = self.home(key_of(self.places[place] - 1));
            if self.distance(home, hole) < self.distance(home, place) {
                self.places[hole] = self.places[place];
                hole = place;
            }
        }
        self.places[hole] = 0;
    }

    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn a_table_agrees_with_a_map() {
        for (items_max, keys) in [(1, 3), (4, 6), (64, 80), (64, 1 << 40)] {
            let mut prng = Prng::new(items_max as u64);
            let mut table = Table::new(items_max);
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
                assert!(found, "everything that is there is found");
            }
        }
    }

    #[test]
    #[should_panic(expected = "more waiters than slots exist")]
    fn a_pool_does_not_grow() {
        let mut pool = Pool::new(1);
        pool.take(1);
        pool.take(2);
    }
}
