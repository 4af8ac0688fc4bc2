//! The write cache of a disk: extents that are accepted and not destaged, indexed by offset and by
//! age.
//!
//! Neighbours are joined into one extent with the age of the older, so pieces of one bio that
//! arrive while others wait are destaged in one movement of the head. Rewritten bytes replace the
//! old ones. Invariant: extents neither overlap nor touch.

use std::collections::BTreeMap;

/// A run of bytes in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    len: u64,
    age: u64,
}

/// The cached extents, by offset and by age.
#[derive(Debug, Default)]
pub(crate) struct WriteCache {
    /// Extents by first byte.
    places: BTreeMap<u64, Extent>,
    /// First bytes by age.
    ages: BTreeMap<u64, u64>,
    next_age: u64,
    bytes: u64,
}

impl WriteCache {
    /// Number of cached bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds `len` bytes at `offset`.
    pub fn insert(&mut self, offset: u64, len: u64) {
        self.carve(offset, len);
        let (mut start, mut whole, mut age) = (offset, len, self.next_age);
        self.next_age += 1;
        if let Some((&before, &extent)) = self.places.range(..offset).next_back()
            && before + extent.len == offset
        {
            self.remove(before);
            (start, whole, age) = (before, whole + extent.len, age.min(extent.age));
        }
        if let Some(&extent) = self.places.get(&(offset + len)) {
            self.remove(offset + len);
            (whole, age) = (whole + extent.len, age.min(extent.age));
        }
        self.put(start, Extent { len: whole, age });
    }

    /// Removes a range; the parts of an extent outside it keep their age.
    fn carve(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        while let Some((&start, &extent)) = self.places.range(..end).next_back() {
            let extent_end = start + extent.len;
            if extent_end <= offset {
                return;
            }
            self.remove(start);
            if start < offset {
                self.put(start, Extent { len: offset - start, age: extent.age });
            }
            if extent_end > end {
                // Ages are unique, so the second part counts as new.
                let age = if start < offset { self.fresh_age() } else { extent.age };
                self.put(end, Extent { len: extent_end - end, age });
            }
        }
    }

    /// First bytes of the `window` oldest extents, oldest first.
    pub fn oldest(&self, window: usize) -> impl Iterator<Item = u64> {
        self.ages.values().take(window).copied()
    }

    /// Removes up to `unit` bytes from the front of the extent at `start`; returns how many.
    pub fn take_front(&mut self, start: u64, unit: u64) -> u64 {
        let extent = self.remove(start);
        let taken = extent.len.min(unit);
        if taken < extent.len {
            self.put(start + taken, Extent { len: extent.len - taken, age: extent.age });
        }
        taken
    }

    fn fresh_age(&mut self) -> u64 {
        self.next_age += 1;
        self.next_age - 1
    }

    fn put(&mut self, start: u64, extent: Extent) {
        self.places.insert(start, extent);
        self.ages.insert(extent.age, start);
        self.bytes += extent.len;
    }

    fn remove(&mut self, start: u64) -> Extent {
        let extent = self.places.remove(&start).expect("only present extents are removed");
        self.ages.remove(&extent.age);
        self.bytes -= extent.len;
        extent
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::prng::Prng;

    use super::*;

    #[test]
    fn neighbours_join_with_the_age_of_the_older() {
        let mut cache = WriteCache::default();
        [(100, 10), (500, 10), (120, 10)].into_iter().for_each(|(at, len)| cache.insert(at, len));
        assert_eq!(cache.oldest(9).collect::<Vec<_>>(), [100, 500, 120]);
        cache.insert(110, 10);
        assert_eq!(cache.oldest(9).collect::<Vec<_>>(), [100, 500]);
        assert_eq!((cache.take_front(100, 25), cache.bytes()), (25, 15));
        assert_eq!(cache.oldest(9).collect::<Vec<_>>(), [125, 500]);
    }

    #[test]
    fn write_cache_matches_a_set_of_bytes() {
        let (mut cache, mut prng) = (WriteCache::default(), Prng::new(3));
        let mut model = [false; 256];
        for _ in 0..20_000 {
            if prng.below(3) > 0 {
                let (at, len) = (prng.below(240), prng.between(1, 16));
                cache.insert(at, len);
                model[at as usize..(at + len) as usize].fill(true);
            } else if let Some(start) = cache.oldest(3).last() {
                let taken = cache.take_front(start, prng.between(1, 20));
                let range = start as usize..(start + taken) as usize;
                assert!(model[range.clone()].iter().all(|&held| held));
                model[range].fill(false);
            }
            assert_eq!(cache.bytes(), model.iter().filter(|&&held| held).count() as u64);
            let mut last = None;
            for (&start, extent) in &cache.places {
                assert!(last.is_none_or(|end| end < start), "extents overlap or touch");
                assert_eq!(cache.ages[&extent.age], start);
                last = Some(start + extent.len);
            }
            assert_eq!(cache.ages.len(), cache.places.len());
        }
    }
}
