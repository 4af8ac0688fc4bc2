//! The index of folios: from (volume, block) to the folio that holds the block.
//!
//! One table of fixed size, open-addressed in buckets of 64 bytes: 15 entries and a count. An entry is a unit's number with a tag of
//! the key's hash in the bits that the number leaves; the key itself is in the folio's header. A folio is entered in its home
//! bucket or, when that is full, in the next one with a free entry, by a step that is also taken from the hash (so the folios of
//! a full bucket spread, and do not fill its neighbours). Every bucket that was passed counts the folio, and a search continues
//! only while that count is not 0.
//!
//! ```text
//!   bucket | tag unit | tag unit | 0 (empty) | ...15 | passed: 2 |     the probe sequences of two folios continue from here
//! ```
//!
//! The home buckets of order n are the first 1/2^n of the table: a pool has 1/2^n as many folios of that order, so no bucket is
//! fuller for it, and the buckets of a few hundred large folios stay in the CPU's cache.
//!
//! Entries never move (a reader without locks could follow them), and a removal leaves no trace: the counts go down again. Rejected:
//! linear probing with tombstones; in a full cache with constant replacement they take the place of the empty slots at which a
//! search ends.
//!
//! Folios of all orders are in this table, each under its order. No two overlap, so a block is searched once for each order that is
//! present: first the order found last, then from the largest down. A stream's cache has one or two orders.
//!
//! Whether a large folio fits where nothing was found is usually answered by one more read: `regions` counts, by hashed 2 MiB of a
//! volume, the smaller folios in it, and knows a block behind which there is none. Only before that block are the candidates searched:
//! a stream that fills a region from its start never does.
//!
//! Invariants: each folio has one entry; `passed` of a bucket is the number of folios whose probe sequence continues past it;
//! `counts[order] > 0` exactly while bit `order` of `orders` is set; no folio below the largest order lies at or behind its region's
//! `end`.

use std::cell::Cell;
use std::ops::Range;

use crate::bio::VolumeId;
use crate::cache::pool::folio::{Folio, FolioKey, Folios, ORDER_MAX};
use crate::cache::pool::lines::{Line, Lines, WORDS};
use crate::gauge::Gauge32;

/// Entries of a bucket, which is a cache line: tag and unit; 0 is an empty entry, since tags are not 0.
const ENTRIES: usize = WORDS - 1;
/// The word of a bucket with its count: folios in later buckets of their probe sequence because this one was full.
const PASSED: usize = ENTRIES;
/// The number of orders, 0 to 9.
const ORDERS: usize = ORDER_MAX as usize + 1;

/// The buckets in which a folio can be, in order.
#[derive(Clone, Copy, Debug)]
struct ProbeSequence {
    bucket: usize,
    step: usize,
    mask: usize,
    tag: u32,
}

/// An entry with the tag of a block's folio, whose header was not looked at yet.
#[derive(Clone, Copy, Debug)]
struct Guess {
    key: FolioKey,
    unit: u32,
}

impl Guess {
    /// No folio was guessed.
    const NONE: Self = Self { key: FolioKey::NONE, unit: 0 };
}

/// What is known of the folios below the largest order in a hashed region of 2 MiB.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    /// How many there are; `u16::MAX` is never lowered.
    folios: u16,
    /// All of them end at or before this block of the region.
    end: u16,
}

impl Region {
    /// Returns false if no such folio begins or lies at `block` or behind it.
    #[inline]
    fn reaches(self, block: u64) -> bool {
        self.end > within(block, ORDER_MAX) as u16
    }

    fn add(&mut self, folio: &Folio) {
        self.folios = self.folios.saturating_add(1);
        let first = within(folio.key.block(), ORDER_MAX) as u16;
        self.end = self.end.max(first + (1 << folio.order));
    }

    fn remove(&mut self) {
        if self.folios == u16::MAX {
            return;
        }
        assert!(self.folios > 0, "a region counts its folios");
        self.folios -= 1;
        if self.folios == 0 {
            self.end = 0;
        }
    }
}

/// The use of the index, for "operations per MiB".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Calls of [`Index::locate`].
    pub lookups: u64,
    /// Buckets examined by them and by [`Index::next_boundary`].
    pub probes: u64,
    /// Folios that were entered.
    pub inserts: u64,
    /// Folios that were removed.
    pub removes: u64,
}

impl IndexStats {
    /// Returns the calls of any kind.
    #[must_use]
    pub const fn operations(&self) -> u64 {
        self.lookups + self.inserts + self.removes
    }
}

/// The index of a cache's folios.
#[derive(Debug)]
pub struct Index {
    buckets: Lines,
    /// Bits of an entry that are the tag; the others are the unit.
    tag_mask: u32,
    /// Folios in the index, by order.
    counts: [Gauge32; ORDERS],
    /// Bit `order` is set while there are folios of it.
    orders: u32,
    /// The folios below the largest order, by hashed region of 2 MiB.
    regions: Box<[Region]>,
    /// The order of the folio found last.
    last: Cell<u8>,
    /// The last guess; none after a removal.
    guessed: Cell<Guess>,
    lookups: Cell<u64>,
    probes: Cell<u64>,
    inserts: u64,
    removes: u64,
}

impl Index {
    /// Creates an empty index for the folios of a pool of `units`.
    ///
    /// # Panics
    /// If `units` is 0 or more than 2^30 (4 TiB): an entry keeps two bits for the tag.
    #[must_use]
    pub fn new(units: u32) -> Self {
        assert!(units > 0 && units <= 1 << 30, "a pool has 1 to 2^30 units");
        // At most three quarters full, of which the counts take a sixteenth: few buckets overflow.
        let slots = (u64::from(units) * 4).div_ceil(3).next_power_of_two().max(16);
        let regions = (u64::from(units) / 4).next_power_of_two().max(16);
        Self {
            buckets: Lines::new((slots / 16) as usize),
            tag_mask: !(units.next_power_of_two() - 1),
            counts: [Gauge32::default(); ORDERS],
            orders: 0,
            regions: vec![Region::default(); regions as usize].into(),
            last: Cell::new(0),
            guessed: Cell::new(Guess::NONE),
            lookups: Cell::new(0),
            probes: Cell::new(0),
            inserts: 0,
            removes: 0,
        }
    }

    /// Returns the folio that holds `block`, by its first unit.
    #[inline]
    #[must_use]
    pub fn find(&self, folios: &Folios, volume: VolumeId, block: u64) -> Option<u32> {
        self.locate(folios, volume, block).map(|(unit, _)| unit)
    }

    /// Returns the folio that holds `block`, and which of its blocks that is. (The latter comes from the order under which it was
    /// found, not from its header: the block's state is then fetched beside the header and not after it.)
    #[inline]
    #[must_use]
    pub fn locate(&self, folios: &Folios, volume: VolumeId, block: u64) -> Option<(u32, u32)> {
        self.lookups.set(self.lookups.get() + 1);
        let last = self.last.get();
        let key = FolioKey::new(volume, block, last);
        let guess = self.guessed.get();
        if guess.key == key && holds(folios, guess.unit, key, last) {
            return Some((guess.unit, within(block, last)));
        }
        if self.orders >> last & 1 != 0
            && let Some(unit) = self.search(folios, key, last)
        {
            return Some((unit, within(block, last)));
        }
        self.find_other(folios, volume, block, self.orders & !(1 << last))
    }

    /// Returns the unit in which `block` most likely is, from its home bucket for the order found last: a hint that reads no header.
    /// The next search for the same block begins there.
    #[inline]
    #[must_use]
    pub fn guess(&self, volume: VolumeId, block: u64) -> Option<u32> {
        let order = self.last.get();
        let key = FolioKey::new(volume, block, order);
        let probe = self.probe(key, order);
        let here = self.buckets.line(probe.bucket);
        let hits = tagged(here, probe.tag, self.tag_mask);
        if hits == 0 {
            return None;
        }
        let unit = here[hits.trailing_zeros() as usize % WORDS] & !self.tag_mask;
        self.guessed.set(Guess { key, unit });
        Some(unit + within(block, order))
    }

    /// Searches under the orders in a mask, the largest first.
    fn find_other(
        &self,
        folios: &Folios,
        volume: VolumeId,
        block: u64,
        mut orders: u32,
    ) -> Option<(u32, u32)> {
        let large = 1 << ORDER_MAX;
        if orders & !large != 0 && !self.region_of(volume, block).reaches(block) {
            // Most misses: one read for all the smaller orders.
            orders &= large;
        }
        while orders != 0 {
            let order = orders.ilog2() as u8;
            orders ^= 1 << order;
            if let Some(unit) = self.search(folios, FolioKey::new(volume, block, order), order) {
                self.last.set(order);
                return Some((unit, within(block, order)));
            }
        }
        None
    }

    /// Returns the folio of exactly this key and order.
    #[cfg(test)]
    #[must_use]
    pub fn find_exact(&self, folios: &Folios, key: FolioKey, order: u8) -> Option<u32> {
        self.lookups.set(self.lookups.get() + 1);
        self.search(folios, key, order)
    }

    /// Enters the folio at `unit` under its header's key and order; it overlaps no other one.
    pub fn insert(&mut self, folios: &Folios, unit: u32) {
        let folio = &folios[unit];
        assert!(folio.is(Folio::PRESENT), "a folio is begun before it is entered");
        debug_assert!(unit & self.tag_mask == 0, "the unit leaves the bits of the tag");
        let mut probe = self.probe(folio.key, folio.order);
        loop {
            let here = self.buckets.line_mut(probe.bucket);
            if let Some(slot) = here[..ENTRIES].iter_mut().find(|entry| **entry == 0) {
                *slot = probe.tag | unit;
                break;
            }
            // There are more entries than units, so the loop ends.
            here[PASSED] += 1;
            probe.advance();
        }
        self.inserts += 1;
        let order = folio.order;
        self.counts[usize::from(order)].add(1);
        self.orders |= 1 << order;
        if order < ORDER_MAX {
            self.regions[self.region(folio.key)].add(folio);
        }
    }

    /// Removes the folio at `unit`; its header has the key and order under which it was entered.
    ///
    /// # Panics
    /// If it is not in the index: two folios would be mistaken for each other later.
    pub fn remove(&mut self, folios: &Folios, unit: u32) {
        let folio = &folios[unit];
        self.guessed.set(Guess::NONE);
        let mut probe = self.probe(folio.key, folio.order);
        loop {
            let here = self.buckets.line_mut(probe.bucket);
            let mut entries = here[..ENTRIES].iter_mut();
            if let Some(slot) = entries.find(|entry| **entry == probe.tag | unit) {
                *slot = 0;
                break;
            }
            assert!(here[PASSED] > 0, "a folio that leaves the index was in it");
            here[PASSED] -= 1;
            probe.advance();
        }
        self.removes += 1;
        let order = folio.order;
        self.counts[usize::from(order)].sub(1);
        if self.counts[usize::from(order)].is_zero() {
            self.orders &= !(1 << order);
        }
        if order < ORDER_MAX {
            self.regions[self.region(folio.key)].remove();
        }
    }

    /// Returns the largest order up to `order_max` of a folio that begins at `block`, is aligned, ends by `end` and overlaps no
    /// folio. No folio may hold `block` itself.
    #[must_use]
    pub fn largest_fit(
        &self,
        folios: &Folios,
        volume: VolumeId,
        block: u64,
        order_max: u8,
        end: u64,
    ) -> u8 {
        let room = end.saturating_sub(block).max(1).ilog2();
        let order = u32::from(order_max.min(ORDER_MAX)).min(block.trailing_zeros()).min(room);
        if order == 0 || !self.region_of(volume, block).reaches(block) {
            return order as u8;
        }
        let free = self.next_boundary(folios, volume, block + 1, block + (1 << order)) - block;
        free.ilog2() as u8
    }

    /// Returns true if it is known at once that no folio lies in the 2 MiB of a key of the largest order; regions share counters.
    #[must_use]
    pub fn is_empty_around(&self, folios: &Folios, key: FolioKey) -> bool {
        self.regions[self.region(key)].folios == 0
            && (self.orders >> ORDER_MAX == 0 || self.search(folios, key, ORDER_MAX).is_none())
    }

    /// Returns the first block from `block` on at which a folio begins, or `end`.
    #[must_use]
    pub fn next_boundary(&self, folios: &Folios, volume: VolumeId, block: u64, end: u64) -> u64 {
        debug_assert!(block <= end, "a range does not end before its start");
        let begins = |&at: &u64| {
            // Orders that could begin here: those present to which the block is aligned.
            let aligned = (1_u32 << at.trailing_zeros().min(u32::from(ORDER_MAX)) << 1) - 1;
            let mut orders = self.orders & aligned;
            while orders != 0 {
                let order = orders.trailing_zeros() as u8;
                orders &= orders - 1;
                if self.search(folios, FolioKey::new(volume, at, order), order).is_some() {
                    return true;
                }
            }
            false
        };
        if self.orders == 0 {
            return end;
        }
        let stride = 1 << self.orders.trailing_zeros();
        let first = block.next_multiple_of(stride);
        (first..end).step_by(stride as usize).find(begins).unwrap_or(end)
    }

    /// Returns the number of folios of `order`.
    #[must_use]
    pub fn count(&self, order: u8) -> u32 {
        self.counts[usize::from(order)].get()
    }

    /// Returns the orders that are present, as a mask.
    #[cfg(test)]
    #[must_use]
    pub fn orders(&self) -> u32 {
        self.orders
    }

    /// Returns the use of the index since the start.
    #[must_use]
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            lookups: self.lookups.get(),
            probes: self.probes.get(),
            inserts: self.inserts,
            removes: self.removes,
        }
    }

    /// Returns the memory of the table.
    #[must_use]
    pub fn table(&self) -> Range<*const u8> {
        self.buckets.memory()
    }

    /// Returns the size of the tables in bytes.
    #[cfg(test)]
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of::<Line>() * self.buckets.len() + size_of_val(&*self.regions)
    }

    // Always: with two callers it would be a call, 20 instructions for each block.
    #[inline(always)]
    fn search(&self, folios: &Folios, key: FolioKey, order: u8) -> Option<u32> {
        let mut probe = self.probe(key, order);
        loop {
            self.probes.set(self.probes.get() + 1);
            let here = self.buckets.line(probe.bucket);
            let mut hits = tagged(here, probe.tag, self.tag_mask);
            while hits != 0 {
                let unit = here[hits.trailing_zeros() as usize % WORDS] & !self.tag_mask;
                hits &= hits - 1;
                if holds(folios, unit, key, order) {
                    return Some(unit);
                }
            }
            if here[PASSED] == 0 {
                return None;
            }
            probe.advance();
        }
    }

    /// Returns the probe sequence of a key and order.
    #[inline]
    fn probe(&self, key: FolioKey, order: u8) -> ProbeSequence {
        let hash = hash(key.word() ^ u64::from(order) << 44);
        let tag = hash as u32 & self.tag_mask;
        let mask = self.buckets.len() - 1;
        ProbeSequence {
            bucket: (hash >> 32) as usize & mask >> order,
            // Odd: the sequence covers every bucket before it repeats.
            step: hash as usize >> 3 | 1,
            mask,
            // The lowest tag stands in for 0, which is empty.
            tag: if tag == 0 { self.tag_mask & self.tag_mask.wrapping_neg() } else { tag },
        }
    }

    #[inline]
    fn region_of(&self, volume: VolumeId, block: u64) -> Region {
        self.regions[self.region(FolioKey::new(volume, block, 0))]
    }

    #[inline]
    fn region(&self, key: FolioKey) -> usize {
        (hash(key.word() >> ORDER_MAX) >> 32) as usize & (self.regions.len() - 1)
    }
}

impl ProbeSequence {
    #[inline]
    fn advance(&mut self) {
        self.bucket = (self.bucket + self.step) & self.mask;
    }
}

/// Returns true if the header of `unit` is that of the folio of this key and order.
#[inline]
fn holds(folios: &Folios, unit: u32, key: FolioKey, order: u8) -> bool {
    let folio = &folios[unit];
    folio.key == key && folio.order == order
}

/// Returns a mask of the entries with a tag. Without branches, so that it becomes a few vector instructions.
#[inline]
fn tagged(bucket: &Line, tag: u32, mask: u32) -> u32 {
    let mut hits = 0;
    for (at, entry) in bucket[..ENTRIES].iter().enumerate() {
        hits |= u32::from(entry & mask == tag) << at;
    }
    hits
}

/// Returns which block of its folio of `order` a block is.
#[inline]
const fn within(block: u64, order: u8) -> u32 {
    block as u32 & ((1 << order) - 1)
}

/// Multiplies and folds twice: neighbours in a volume spread over all buckets and tags.
#[inline]
const fn hash(word: u64) -> u64 {
    let once = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (once ^ once >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::BTreeMap;

    /// The index beside a map from (volume, first block) to (order, unit), and the free units.
    struct World {
        folios: Folios,
        index: Index,
        model: BTreeMap<(u16, u64), (u8, u32)>,
        free: Vec<u32>,
    }

    impl World {
        fn new(units: u32) -> Self {
            let free = (0..units).rev().collect();
            Self {
                folios: Folios::new(units),
                index: Index::new(units),
                model: BTreeMap::new(),
                free,
            }
        }

        fn model_find(&self, volume: u16, block: u64) -> Option<u32> {
            let (&(_, first), &(order, unit)) =
                self.model.range((volume, 0)..=(volume, block)).next_back()?;
            (block < first + (1 << order)).then_some(unit)
        }

        fn model_next(&self, volume: u16, block: u64, end: u64) -> u64 {
            let next = self.model.range((volume, block)..(volume, end)).next();
            next.map_or(end, |(&(_, first), _)| first)
        }

        /// Enters a folio of one unit: the index does not know the folio's size in the pool.
        fn insert(&mut self, volume: u16, block: u64, order: u8) -> bool {
            let Some(unit) = self.free.pop() else { return false };
            self.folios.begin(unit, FolioKey::new(VolumeId(volume), block, order), 0);
            self.folios[unit].order = order;
            self.index.insert(&self.folios, unit);
            assert_eq!(self.model.insert((volume, block), (order, unit)), None);
            true
        }

        fn remove(&mut self, volume: u16, block: u64) {
            let (_, unit) = self.model.remove(&(volume, block)).unwrap();
            self.index.remove(&self.folios, unit);
            self.folios.end(unit);
            self.free.push(unit);
        }
    }

    /// Searches, fits, enters and removes at random in `span` blocks of three volumes.
    fn churn(units: u32, span: u64, operations: u32, seed: u64) {
        let mut world = World::new(units);
        let mut prng = Prng::new(seed);
        for _ in 0..operations {
            // The middle volume's numbers reach up to the last of 1 EiB.
            let volume = prng.below(3) as u16;
            let base = if volume == 1 { (1 << 48) - span } else { 0 };
            let block = base + prng.below(span);
            let id = VolumeId(volume);
            let expected = world.model_find(volume, block);
            if prng.below(2) == 0 {
                // Without effect on any search, also on one that follows a removal of what was guessed.
                let _ = world.index.guess(id, block);
            }
            assert_eq!(world.index.find(&world.folios, id, block), expected);
            match expected {
                Some(unit) => {
                    let folio = world.folios[unit];
                    let exact = world.index.find_exact(&world.folios, folio.key, folio.order);
                    assert_eq!(exact, Some(unit));
                    if prng.below(8) < 5 {
                        let _ = world.index.guess(id, block);
                        world.remove(volume, folio.key.block());
                        assert_eq!(world.index.find(&world.folios, id, block), None);
                    }
                }
                None => {
                    let order_max = prng.below(11) as u8;
                    let at = block >> order_max << order_max;
                    let at = if world.model_find(volume, at).is_some() { block } else { at };
                    let end = at + 1 + prng.below(1024);
                    let order = world.index.largest_fit(&world.folios, id, at, order_max, end);
                    let most = (0..=order_max.min(ORDER_MAX))
                        .rev()
                        .find(|&order| {
                            let last = at + (1 << order);
                            at.is_multiple_of(1 << order)
                                && (order == 0 || last <= end)
                                && world.model_next(volume, at, last) == last
                        })
                        .unwrap();
                    assert_eq!(order, most, "at {at:#x} up to {end:#x}");
                    world.insert(volume, at, order);
                }
            }
            if prng.below(8) == 0 {
                let end = block + prng.below(600);
                assert_eq!(
                    world.index.next_boundary(&world.folios, id, block, end),
                    world.model_next(volume, block, end)
                );
            }
        }
        for order in 0..=ORDER_MAX {
            let count = world.model.values().filter(|value| value.0 == order).count();
            assert_eq!(world.index.count(order) as usize, count);
            assert_eq!(world.index.orders() >> order & 1 != 0, count > 0);
        }
        while let Some((&(volume, block), _)) = world.model.first_key_value() {
            world.remove(volume, block);
        }
        let buckets = &world.index.buckets;
        assert!((0..buckets.len()).all(|at| *buckets.line(at) == [0; WORDS]));
        assert!(world.index.regions.iter().all(|region| (region.folios, region.end) == (0, 0)));
    }

    #[test]
    fn index_matches_a_map() {
        churn(12, 4096, 100_000, 1);
        churn(3_000, 20_000, 150_000, 2);
        churn(49_152, 1 << 30, 150_000, 3);
    }

    /// Buckets per 100 searches that miss in a full cache of `units`: fresh, and after `rounds` replacements of all folios.
    fn probes_per_100_misses(units: u32, rounds: u64) -> (u64, u64) {
        let mut world = World::new(units);
        let mut prng = Prng::new(4);
        let mut present: Vec<u64> = (0..u64::from(units)).collect();
        for &block in &present {
            assert!(world.insert(0, block, 0));
        }
        let probes = |world: &World, prng: &mut Prng| {
            let before = world.index.stats().probes;
            for _ in 0..10_000 {
                let block = (1 << 40) + prng.below(1 << 40);
                assert_eq!(world.index.find(&world.folios, VolumeId(0), block), None);
            }
            (world.index.stats().probes - before) / 100
        };
        let fresh = probes(&world, &mut prng);
        for block in 1 << 30..(1 << 30) + rounds * u64::from(units) {
            let at = prng.below(present.len() as u64) as usize;
            world.remove(0, std::mem::replace(&mut present[at], block));
            assert!(world.insert(0, block, 0));
        }
        (fresh, probes(&world, &mut prng))
    }

    #[test]
    fn guess_names_the_frame_of_a_block() {
        let mut world = World::new(4096);
        assert_eq!(world.index.guess(VolumeId(0), 7), None);
        world.insert(0, 512, 9);
        let unit = world.index.find(&world.folios, VolumeId(0), 512).unwrap();
        assert_eq!(world.index.guess(VolumeId(0), 519), Some(unit + 7));
        let probes = world.index.stats().probes;
        assert_eq!(world.index.locate(&world.folios, VolumeId(0), 519), Some((unit, 7)));
        assert_eq!(world.index.stats().probes, probes, "the search begins at the guess");
    }

    #[test]
    fn replacement_does_not_lengthen_searches() {
        // The worst size: three quarters full.
        let (fresh, churned) = probes_per_100_misses(12_288, 20);
        assert!(fresh < 140 && churned < 400, "{fresh}, then {churned}");
        let (_, later) = probes_per_100_misses(12_288, 60);
        assert!(later < churned + 30, "{later} after {churned}");
        // Powers of two, the usual sizes: half full.
        let (fresh, churned) = probes_per_100_misses(16_384, 20);
        assert!(fresh < 103 && churned < 110, "{fresh}, then {churned}");
    }

    #[test]
    fn folio_of_a_stream_is_found_with_one_probe() {
        let mut world = World::new(4096);
        world.insert(0, 0, 9);
        for block in 1024..1100 {
            world.insert(0, block, 0);
        }
        let probes_of = |world: &World, block| {
            let before = world.index.stats().probes;
            assert!(world.index.find(&world.folios, VolumeId(0), block).is_some());
            world.index.stats().probes - before
        };
        assert_eq!((probes_of(&world, 0), probes_of(&world, 511)), (2, 1));
        assert_eq!((probes_of(&world, 1024), probes_of(&world, 1025)), (2, 1));
        // 2 MiB: one operation where small folios need 512.
        assert_eq!(world.index.stats().inserts, 77);
    }

    #[test]
    #[should_panic(expected = "was in it")]
    fn removing_an_absent_folio_panics() {
        let mut world = World::new(64);
        world.insert(0, 7, 0);
        let unit = world.model[&(0, 7)].1;
        world.index.remove(&world.folios, unit);
        world.index.remove(&world.folios, unit);
    }

    #[test]
    fn tables_stay_below_thirteen_bytes_a_unit() {
        for units in [1000, 49_152, 49_153, 65_536, 98_305, 1 << 20] {
            let bytes = Index::new(units).table_bytes();
            assert!(bytes <= 13 * units as usize, "{bytes} bytes for {units} units");
        }
    }
}
