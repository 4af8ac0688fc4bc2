//! Tests of reclaim with pools of random contents.

use super::*;
use crate::bio::VolumeId;
use crate::buddy::Buddy;
use crate::cache::pool::folio::FolioKey;
use crate::cache::pool::index::Index;
use crate::prng::Prng;
use std::collections::BTreeMap;

/// Examined folios, as the cache has it.
const STEPS: u32 = 64;
const VOLUME: VolumeId = VolumeId(0);

/// A pool of folios without data.
struct Pool {
    folios: Folios,
    index: Index,
    buddy: Buddy,
    reclaim: Reclaim,
}

impl Pool {
    fn new(units: u32) -> Self {
        Self {
            folios: Folios::new(units),
            index: Index::new(units),
            buddy: Buddy::new(units, 10),
            reclaim: Reclaim::new(units, &[], &[]),
        }
    }

    /// Accesses a block, in folios of `order`; returns whether it was a hit.
    fn get(&mut self, block: u64, order: u8) -> bool {
        if let Some(unit) = self.index.find(&self.folios, VOLUME, block) {
            Reclaim::touch(&mut self.folios, unit);
            return true;
        }
        let unit = loop {
            if let Some(unit) = self.buddy.take(order) {
                break unit;
            }
            let Victim::Clean(unit) = self.reclaim.victim(&mut self.folios, COMMON, STEPS) else {
                panic!("everything is clean");
            };
            self.drop(unit);
        };
        self.folios.begin(unit, FolioKey::new(VOLUME, block, order), order);
        self.index.insert(&self.folios, unit);
        self.reclaim.insert(&mut self.folios, unit);
        false
    }

    /// Removes a victim from the other tables.
    fn drop(&mut self, unit: u32) {
        self.index.remove(&self.folios, unit);
        self.folios.end(unit);
        self.buddy.put(unit, self.folios[unit].order);
    }
}

/// The model for comparison: least recently used, also by units.
struct Lru {
    units: u64,
    held: u64,
    now: u64,
    /// First block -> (order, last use), and the inverse.
    uses: BTreeMap<u64, (u8, u64)>,
    order: BTreeMap<u64, u64>,
}

impl Lru {
    fn new(units: u32) -> Self {
        let (uses, order) = (BTreeMap::new(), BTreeMap::new());
        Self { units: u64::from(units), held: 0, now: 0, uses, order }
    }

    fn get(&mut self, block: u64, order: u8) -> bool {
        self.now += 1;
        let held = self.uses.range(..=block).next_back();
        let hit = held.filter(|&(&first, &(order, _))| block < first + (1 << order));
        let (first, order) = match hit {
            Some((&first, &(order, last))) => {
                self.order.remove(&last);
                (first, order)
            }
            None => (block >> order << order, order),
        };
        let was = self.uses.insert(first, (order, self.now)).is_some();
        self.order.insert(self.now, first);
        self.held += if was { 0 } else { 1 << order };
        while self.held > self.units {
            let (_, first) = self.order.pop_first().unwrap();
            self.held -= 1 << self.uses.remove(&first).unwrap().0;
        }
        was
    }
}

/// Zipf 0.99 over `items`, as YCSB draws it, the popular ones spread over the range.
struct Zipf {
    sums: Vec<u64>,
}

impl Zipf {
    fn new(items: u64) -> Self {
        let mut sum = 0;
        let weight = |rank: u64| (1e12 / (rank as f64).powf(0.99)) as u64;
        let sums = (1..=items).map(|rank| {
            sum += weight(rank);
            sum
        });
        Self { sums: sums.collect() }
    }

    fn draw(&self, prng: &mut Prng) -> u64 {
        let at = prng.below(self.sums[self.sums.len() - 1]);
        let rank = self.sums.partition_point(|&sum| sum <= at) as u64;
        rank * 7919 % self.sums.len() as u64
    }
}

/// Returns the hits of both in 10,000 accesses of the trace.
fn compare(units: u32, trace: impl Iterator<Item = (u64, u8)>) -> (i64, i64) {
    let (mut pool, mut lru) = (Pool::new(units), Lru::new(units));
    let (mut asks, mut ours, mut theirs) = (0, 0, 0);
    for (block, order) in trace {
        asks += 1;
        ours += i64::from(pool.get(block, order));
        theirs += i64::from(lru.get(block, order));
    }
    (ours * 10_000 / asks, theirs * 10_000 / asks)
}

/// D1: a hot set of half the cache, then a scan of twice the cache; hits in 10,000 before and after, ours and of LRU.
fn scanned(scan_order: u8) -> [i64; 4] {
    const UNITS: u32 = 16_384;
    let (mut pool, mut lru) = (Pool::new(UNITS), Lru::new(UNITS));
    let zipf = Zipf::new(u64::from(UNITS) / 2);
    let mut prng = Prng::new(7);
    let mut hot = |pool: &mut Pool, lru: &mut Lru, asks: i64| {
        let (mut ours, mut theirs) = (0, 0);
        for _ in 0..asks {
            let block = zipf.draw(&mut prng);
            ours += i64::from(pool.get(block, 0));
            theirs += i64::from(lru.get(block, 0));
        }
        (ours * 10_000 / asks, theirs * 10_000 / asks)
    };
    hot(&mut pool, &mut lru, 400_000);
    let before = hot(&mut pool, &mut lru, 20_000);
    for block in 0..2 * u64::from(UNITS) {
        let block = (1 << 30) + block;
        if block.is_multiple_of(1 << scan_order) {
            pool.get(block, scan_order);
            lru.get(block, scan_order);
        }
    }
    let after = hot(&mut pool, &mut lru, 20_000);
    [before.0, after.0, before.1, after.1]
}

#[test]
fn scan_keeps_the_hot_set() {
    for order in [0, 4] {
        let [before, after, lru_before, lru_after] = scanned(order);
        assert!(before > 9_900 && lru_before > 9_900, "{before}, {lru_before}");
        assert!(before - after <= 200, "scan of order {order}: {before} before, {after} after");
        assert!(lru_before - lru_after >= 2_000, "LRU: {lru_before}, then {lru_after}");
    }
}

#[test]
fn hit_ratio_on_block_traces_is_at_least_lru() {
    const UNITS: u32 = 4096;
    const ASKS: u64 = 300_000;
    let mut gains = Vec::new();
    let mut case = |name: &str, trace: &mut dyn FnMut(u64) -> (u64, u8)| {
        let (ours, lru) = compare(UNITS, (0..ASKS).map(trace));
        assert!(ours >= lru - 50, "{name}: {ours} against {lru} of 10,000");
        gains.push(ours - lru);
    };
    let mut prng = Prng::new(11);
    for times in [2, 4, 16] {
        let zipf = Zipf::new(u64::from(UNITS) * times);
        case(&format!("zipf over {times} caches"), &mut |_| (zipf.draw(&mut prng), 0));
    }
    let zipf = Zipf::new(u64::from(UNITS));
    case("zipf and a scan", &mut |at| {
        let scan = at.is_multiple_of(2);
        (if scan { (1 << 30) + at } else { zipf.draw(&mut prng) }, 0)
    });
    case("zipf and a scan of large folios", &mut |at| {
        let scan = at.is_multiple_of(8);
        if scan { ((1 << 30) + at * 8, 6) } else { (zipf.draw(&mut prng), 0) }
    });
    case("a loop of 1.2 caches", &mut |at| (at % (u64::from(UNITS) * 6 / 5), 0));
    case("a loop of half a cache and noise", &mut |at| {
        let noise = at.is_multiple_of(3);
        (if noise { (1 << 30) + prng.below(1 << 20) } else { at % (u64::from(UNITS) / 2) }, 0)
    });
    let mean = gains.iter().sum::<i64>() / gains.len() as i64;
    assert!(mean >= 200, "{mean} of 10,000 better than LRU on average");
}

/// The price: a new block misses twice before it stays, unless it is accessed again while on the small list.
#[test]
fn changing_working_set_costs_one_extra_miss_per_block() {
    const UNITS: u32 = 4096;
    const ASKS: u64 = 300_000;
    let set = u64::from(UNITS) * 3 / 4;
    let mut prng = Prng::new(12);
    // Six sets one after the other, and one that loses a block and gains one at every 16th ask.
    let (ours, lru) =
        compare(UNITS, (0..ASKS).map(|at| (at / 50_000 * 20_000 + prng.below(set), 0)));
    let one_miss = (6 * set * 10_000 / ASKS) as i64;
    assert!(ours >= lru - one_miss && ours < lru, "jumps: {ours} against {lru}");
    let (ours, lru) = compare(UNITS, (0..ASKS).map(|at| (at / 16 + prng.below(set), 0)));
    assert!(ours >= lru - 10_000 / 16, "slides: {ours} against {lru}");
}

#[test]
fn list_units_equal_the_sum_of_their_folios() {
    let mut pool = Pool::new(2000);
    let mut prng = Prng::new(3);
    let zipf = Zipf::new(4000);
    for _ in 0..60_000 {
        // Every 1024 blocks have folios of their own size.
        let block = zipf.draw(&mut prng);
        pool.get(block, [0, 3, 5, 2][block as usize / 1024]);
        if prng.below(50) == 0 {
            let block = zipf.draw(&mut prng);
            if let Some(unit) = pool.index.find(&pool.folios, VOLUME, block) {
                pool.reclaim.forget(&mut pool.folios, unit);
                pool.drop(unit);
            }
        }
        let stats = pool.reclaim.stats();
        assert_eq!(stats.small_units + stats.main_units, pool.buddy.taken());
    }
    let PartLists { small, main } = &pool.reclaim.lists[0];
    for queue in [small, main] {
        let (mut unit, mut before, mut units) = (queue.oldest, NIL, 0);
        while unit != NIL {
            let folio = &pool.folios[unit];
            assert_eq!((folio.eviction.list(), folio.older), (queue.list, before));
            units += folio.blocks();
            (before, unit) = (unit, folio.younger);
        }
        assert_eq!((units, before), (queue.units.get(), queue.youngest));
    }
    assert!(pool.reclaim.stats().ghost_hits > 0);
}

#[test]
fn dirty_folios_are_passed_over_and_the_clean_one_found() {
    let mut pool = Pool::new(1000);
    for block in 0..1000 {
        pool.get(block, 0);
    }
    let unit = |pool: &Pool, block| pool.index.find(&pool.folios, VOLUME, block).unwrap();
    for block in 0..1000 {
        let unit = unit(&pool, block);
        let folio = &mut pool.folios[unit];
        match block % 4 {
            0 => folio.dirty = 1,
            1 => folio.writeback = 1,
            2 => folio.filling = 1,
            _ => folio.waiters = 5,
        }
    }
    // All busy: an answer after 64 looks, each at another folio, again and again.
    for calls in 1..=50 {
        assert_eq!(pool.reclaim.victim(&mut pool.folios, COMMON, STEPS), Victim::Dirty);
        assert_eq!(pool.reclaim.stats().passed, calls * 64);
    }
    // One is clean: found when its turn comes, within one round.
    let clean = unit(&pool, 600);
    pool.folios[clean].dirty = 0;
    let calls = (1..)
        .find(|_| pool.reclaim.victim(&mut pool.folios, COMMON, STEPS) == Victim::Clean(clean));
    assert!(calls.unwrap() <= 16, "1000 folios are 16 calls of 64");
    assert_eq!(pool.folios[clean].eviction.list(), EvictionList::None);
}

#[test]
fn dirty_small_list_does_not_hide_clean_main_list() {
    let mut pool = Pool::new(1000);
    for block in (0..500).chain(0..500).chain(1000..1500) {
        pool.get(block, 0);
    }
    // The first 500 are asked for again; make room once so that they move to the main queue.
    while pool.reclaim.stats().main_units < 500 {
        let Victim::Clean(unit) = pool.reclaim.victim(&mut pool.folios, COMMON, 1000) else {
            panic!()
        };
        pool.drop(unit);
    }
    for block in 1000..1500 {
        if let Some(unit) = pool.index.find(&pool.folios, VOLUME, block) {
            pool.folios[unit].dirty = 1;
        }
    }
    let Victim::Clean(unit) = pool.reclaim.victim(&mut pool.folios, COMMON, STEPS) else {
        panic!()
    };
    assert!(pool.folios[unit].key.block() < 500);
    assert_eq!(pool.reclaim.stats().passed, 1);
}

#[test]
fn least_accessed_folio_is_evicted_when_all_were_accessed() {
    let mut pool = Pool::new(64);
    for block in 0..64 {
        pool.get(block, 0);
        pool.get(block, 0);
    }
    // Ten looks find all asked for; ten went to the main queue, and the first of them goes.
    let Victim::Clean(unit) = pool.reclaim.victim(&mut pool.folios, COMMON, 10) else { panic!() };
    assert_eq!((pool.folios[unit].key.block(), pool.reclaim.stats().promoted), (0, 10));
    pool.drop(unit);
    let Victim::Clean(unit) = pool.reclaim.victim(&mut pool.folios, COMMON, 64) else { panic!() };
    pool.drop(unit);
    assert_eq!(pool.reclaim.stats().small_units, 6, "no more than its share is left");
    // In the main queue: all asked for three times, but one twice.
    let units: Vec<u32> =
        (0..64).filter_map(|block| pool.index.find(&pool.folios, VOLUME, block)).collect();
    let oldest = pool.reclaim.lists[0].main.oldest;
    let next = pool.folios[oldest].younger;
    for unit in units {
        pool.folios[unit].eviction.set_freq(if unit == next { 2 } else { 3 });
    }
    assert_eq!(pool.reclaim.victim(&mut pool.folios, COMMON, 10), Victim::Clean(next));
}

#[test]
fn unused_read_ahead_is_counted() {
    let mut pool = Pool::new(64);
    for block in [0, 8, 16] {
        pool.get(block, 3);
    }
    for (block, marks) in [(0, Folio::UNUSED), (8, 0), (16, Folio::UNUSED | Folio::MARKER)] {
        let unit = pool.index.find(&pool.folios, VOLUME, block).unwrap();
        pool.folios[unit].marks |= marks;
    }
    for _ in 0..3 {
        assert!(matches!(pool.reclaim.victim(&mut pool.folios, COMMON, STEPS), Victim::Clean(_)));
    }
    assert_eq!(pool.reclaim.victim(&mut pool.folios, COMMON, STEPS), Victim::None);
    assert_eq!((pool.reclaim.stats().ra_waste, pool.reclaim.stats().evicted_units), (16, 24));
}

#[test]
fn tables_stay_below_2_percent_of_the_pool() {
    for units in [1024, 49_153, 65_536, 98_305, 1 << 20] {
        let pool = Pool::new(units);
        let tables =
            pool.index.table_bytes() + pool.buddy.table_bytes() + pool.reclaim.table_bytes();
        assert!(tables <= 25 * units as usize, "{tables} bytes for {units} units");
        let headers = (size_of::<Folio>() + 1) * units as usize;
        assert!((tables + headers) * 50 <= units as usize * 4096);
    }
}
