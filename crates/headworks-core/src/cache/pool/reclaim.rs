//! Eviction: which folio is replaced when frames are needed. S3-FIFO (Yang and others, SOSP 2023), counted in units instead of
//! objects.
//!
//! Most blocks are never accessed again before they are evicted, and a scan consists of nothing else. So a new folio waits on a small
//! list of a tenth of the pool; only one that was accessed again by its turn moves to the main list. A folio that leaves the
//! small list is remembered by its key (`ghost`), and if it is read again soon it starts on the main list. A hit moves nothing: it
//! is one store into the folio's header.
//!
//! ```text
//!             no ghost                accessed again
//!   insert ------------------> SMALL -----------------> MAIN <--+ accessed again: one more round, count - 1
//!      |                         |                       | |----+
//!      |                         | not accessed again    | not accessed again
//!      |                         v                       v
//!      |   ghost               ghost                   evicted
//!      +---------------------------------------------> MAIN
//! ```
//!
//! The folio whose turn it is may be dirty, outstanding or waited for. It moves to the young end of its list, and the other list
//! has the next turn, so that a list full of dirty folios does not hide the clean ones of the other. A call examines at most
//! `steps` folios. When all clean ones were accessed, the one accessed least is evicted.
//!
//! The price of the filter: a working set that changes misses some blocks twice. Against LRU, in points of hit ratio (tests):
//! Zipf +1 to +5, with scans +7 and +27, a loop of 1.2 caches +61; a uniform working set that slides -2, one that jumps every
//! twelve cache fulls -6. Rejected: a small list that grows with hits on the ghost list; it wins one of these two points back and
//! loses 11 to 15 on the loop.
//!
//! Each part of the cache (`parts.rs`) has a small and a main list of its own; the small one has a tenth of the part. They share the
//! ghost list.
//!
//! Invariants: a folio is on the list of the part that its header names, or on none; the units of a list are the sum of its folios',
//! those of a part the sum of its lists'.

use crate::bio::{ExportId, TenantId};
use crate::cache::pool::folio::{EvictionList, Folio, Folios};
use crate::cache::pool::ghost::Ghost;
use crate::cache::pool::parts::{COMMON, Parts};
use crate::gauge::Gauge32;
use crate::options::{ExportConfig, TenantConfig, TenantMemory};
use crate::slab::NIL;

/// The largest access count: two bits, as in the paper; a folio survives as many rounds of the main list.
const FREQ_MAX: u8 = 3;
/// The small list's share of the pool: a tenth, the best over the traces of the paper.
const SMALL_PART: u32 = 10;
/// Parts of the cache that one call tries before it reports that none has a clean folio.
const PARTS_TRIED: u32 = 16;
/// Folios that one search moves to their parts. A search that finds more evicts one of them where it is: a change of parts in a large
/// cache costs as little as any other search, and one folio in so many its protection.
const MOVES_MAX: u32 = 1024;

/// The outcome of a search for a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// This folio, which was removed from its list.
    Clean(u32),
    /// Only dirty or busy folios: write-out is needed.
    Dirty,
    /// No folio at all: the lists are empty.
    None,
}

/// The sizes and counters of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimStats {
    /// Units on the small list.
    pub small_units: u32,
    /// Units on the main list.
    pub main_units: u32,
    /// Folios that were evicted.
    pub evicted_folios: u64,
    /// Units that were evicted.
    pub evicted_units: u64,
    /// Folios that were read again while on the ghost list.
    pub ghost_hits: u64,
    /// Folios that moved from the small list to the main one.
    pub promoted: u64,
    /// Dirty or busy folios that were passed over.
    pub passed: u64,
    /// Units that were read ahead and evicted unused.
    pub ra_waste: u64,
}

/// A list of folios, linked through their headers.
#[derive(Debug)]
struct FolioList {
    list: EvictionList,
    oldest: u32,
    youngest: u32,
    units: Gauge32,
}

/// The eviction lists of a part of the cache.
#[derive(Debug)]
struct PartLists {
    small: FolioList,
    main: FolioList,
}

/// The eviction policy of a pool of folios.
#[derive(Debug)]
pub struct Reclaim {
    parts: Parts,
    /// By part.
    lists: Vec<PartLists>,
    ghost: Ghost,
    /// The share of the small list while the cache is not divided, in units.
    small_units_max: u32,
    stats: ReclaimStats,
}

impl Reclaim {
    /// Creates the empty lists for a pool of `units`, divided among the tenants that have a part of it.
    #[must_use]
    pub fn new(units: u32, exports: &[ExportConfig], tenants: &[TenantConfig]) -> Self {
        let small_units_max = units / SMALL_PART;
        let parts = Parts::new(exports, tenants);
        Self {
            lists: (0..parts.len()).map(|_| PartLists::new()).collect(),
            parts,
            ghost: Ghost::new(units - small_units_max),
            small_units_max,
            stats: ReclaimStats::default(),
        }
    }

    /// Adapts the lists to a pool that may use `units`, at most as many as it was created for.
    pub fn set_units(&mut self, units: u32) {
        self.small_units_max = units / SMALL_PART;
        self.ghost.set_reach(units - self.small_units_max);
    }

    /// Adds a new folio, which may be evicted from now on.
    pub fn insert(&mut self, folios: &mut Folios, unit: u32) {
        assert!(folios[unit].eviction.list() == EvictionList::None, "a folio is added once");
        folios[unit].eviction.set_freq(0);
        let is_known = self.ghost.take(folios[unit].key);
        self.stats.ghost_hits += u64::from(is_known);
        self.enter(folios, unit, if is_known { EvictionList::Main } else { EvictionList::Small });
    }

    /// Adds a folio at the young end of a list, as it was on that of another process.
    pub fn restore(&mut self, folios: &mut Folios, unit: u32, list: EvictionList, freq: u8) {
        debug_assert!(freq <= FREQ_MAX, "an access count has two bits");
        folios[unit].eviction.set_freq(freq);
        self.enter(folios, unit, list);
    }

    /// Puts a folio on a list of its export's part.
    fn enter(&mut self, folios: &mut Folios, unit: u32, list: EvictionList) {
        let Folio { export, .. } = folios[unit];
        let (part, units) = (self.parts.of(export), folios[unit].blocks());
        folios[unit].part = part;
        self.parts.add(part, units);
        self.parts.begin(export, units);
        self.list_mut(part, list).push(folios, unit);
    }

    fn list_mut(&mut self, part: u16, list: EvictionList) -> &mut FolioList {
        let lists = &mut self.lists[usize::from(part)];
        match list {
            EvictionList::Small => &mut lists.small,
            EvictionList::Main => &mut lists.main,
            EvictionList::None => panic!("the folio is on an eviction list"),
        }
    }

    /// Makes a folio count for another export; it moves to the part of that when it is examined.
    pub fn set_export(&mut self, folios: &mut Folios, unit: u32, export: ExportId) {
        let (was, units) = (folios[unit].export, folios[unit].blocks());
        debug_assert!(folios[unit].eviction.list() != EvictionList::None, "a folio is on a list");
        self.parts.end(was, units);
        self.parts.begin(export, units);
        folios[unit].export = export;
    }

    /// Sets the part of the cache that a tenant has.
    pub fn set_memory(&mut self, tenant: TenantId, memory: TenantMemory) {
        self.parts.set_memory(tenant, memory);
    }

    /// Moves an export to a tenant.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        self.parts.set_tenant(export, tenant);
    }

    /// Returns the parts of the cache.
    #[inline]
    #[must_use]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Iterates over the folios of a list in all parts, the oldest of each part first.
    pub fn by_age<'a>(
        &'a self,
        folios: &'a Folios,
        list: EvictionList,
    ) -> impl Iterator<Item = u32> + use<'a> {
        let linked = |unit: u32| (unit != NIL).then_some(unit);
        let first = move |lists: &PartLists| match list {
            EvictionList::Small => lists.small.oldest,
            EvictionList::Main => lists.main.oldest,
            EvictionList::None => NIL,
        };
        self.lists.iter().flat_map(move |lists| {
            std::iter::successors(linked(first(lists)), move |&unit| linked(folios[unit].younger))
        })
    }

    /// Counts a *repeated* access to a block of the folio. The first access is not one: a scan uses each block of a large folio
    /// once, and must not look like a working set.
    #[inline]
    pub fn touch(folios: &mut Folios, unit: u32) {
        let eviction = &mut folios[unit].eviction;
        let freq = eviction.freq();
        if freq < FREQ_MAX {
            eviction.set_freq(freq + 1);
        }
    }

    /// Removes a folio that is dropped for another reason (discarded, invalidated); it is not remembered.
    ///
    /// # Panics
    /// If it is on no list.
    pub fn forget(&mut self, folios: &mut Folios, unit: u32) {
        let Folio { export, part, eviction, .. } = folios[unit];
        let units = folios[unit].blocks();
        self.list_mut(part, eviction.list()).remove(folios, unit);
        self.parts.sub(part, units);
        self.parts.end(export, units);
    }

    /// Finds the folio to evict when the part `asking` needs frames, examining at most `steps` of a part beside those that it moves
    /// to their parts, and removes it from its list. The caller removes it from the index and frees its units.
    pub fn victim(&mut self, folios: &mut Folios, asking: u16, steps: u32) -> Victim {
        if !self.parts.is_divided() {
            return self.victim_of(folios, COMMON, self.small_units_max, steps);
        }
        let mut found = Victim::None;
        for _ in 0..PARTS_TRIED {
            let part = self.parts.next(asking);
            match self.victim_within(folios, part, steps) {
                Victim::Clean(unit) => {
                    self.parts.spend(folios[unit].blocks());
                    return Victim::Clean(unit);
                }
                Victim::Dirty => found = Victim::Dirty,
                Victim::None => {}
            }
            self.parts.pass();
        }
        // Those above their minimums have nothing clean: the asking part gives way.
        match self.victim_within(folios, asking, steps) {
            Victim::Clean(unit) => Victim::Clean(unit),
            _ => found,
        }
    }

    /// Finds a folio of any part, within its minimum or not, as [`Reclaim::victim`] does.
    pub fn victim_of_any(&mut self, folios: &mut Folios, steps: u32) -> Victim {
        let found = (0..self.parts.len()).find_map(|part| match self.parts.units(part) {
            0 => None,
            _ => match self.victim_within(folios, part, steps) {
                Victim::Clean(unit) => Some(Victim::Clean(unit)),
                Victim::Dirty | Victim::None => None,
            },
        });
        found.unwrap_or(Victim::Dirty)
    }

    /// Finds a folio of one part, as [`Reclaim::victim`] does.
    pub fn victim_within(&mut self, folios: &mut Folios, part: u16, steps: u32) -> Victim {
        let small_units_max = self.parts.units(part) / SMALL_PART;
        self.victim_of(folios, part, small_units_max, steps)
    }

    fn victim_of(
        &mut self,
        folios: &mut Folios,
        part: u16,
        small_units_max: u32,
        steps: u32,
    ) -> Victim {
        // Of the clean folios that were accessed, the one accessed least.
        let mut second_best = NIL;
        let lists = &self.lists[usize::from(part)];
        let mut small_turn = lists.small.units.get() > small_units_max;
        let (mut steps, mut moves) = (steps, 0);
        while steps > 0 {
            let PartLists { small, main } = &mut self.lists[usize::from(part)];
            let is_small = if small_turn { small.oldest != NIL } else { main.oldest == NIL };
            let unit = if is_small { small.oldest } else { main.oldest };
            if unit == NIL {
                break;
            }
            if moves < MOVES_MAX && self.parts.of(folios[unit].export) != part {
                self.move_home(folios, unit);
                moves += 1;
                continue;
            }
            steps -= 1;
            let folio = &mut folios[unit];
            let free = is_free(folio);
            let freq = folio.eviction.freq();
            if free && freq == 0 {
                return self.evict(folios, unit);
            }
            if freq == 0 {
                self.stats.passed += 1;
            } else {
                // A folio loses its whole count when it leaves the small list.
                folio.eviction.set_freq(if is_small { 0 } else { freq - 1 });
            }
            if is_small && freq > 0 {
                self.stats.promoted += 1;
                small.remove(folios, unit);
                main.push(folios, unit);
            } else {
                let queue = if is_small { &mut *small } else { &mut *main };
                queue.remove(folios, unit);
                queue.push(folios, unit);
            }
            small_turn = match freq {
                0 => !is_small,
                _ => small.units.get() > small_units_max,
            };
            let freq_of = |unit: u32| folios[unit].eviction.freq();
            if free && (second_best == NIL || freq_of(unit) < freq_of(second_best)) {
                second_best = unit;
            }
        }
        let is_empty = self.parts.units(part) == 0;
        match second_best {
            NIL if is_empty => Victim::None,
            NIL => Victim::Dirty,
            unit => self.evict(folios, unit),
        }
    }

    /// Moves a folio to the part of its export.
    fn move_home(&mut self, folios: &mut Folios, unit: u32) {
        let Folio { part, export, eviction, .. } = folios[unit];
        let (home, units, list) = (self.parts.of(export), folios[unit].blocks(), eviction.list());
        debug_assert!(home != part, "the folio is elsewhere");
        self.list_mut(part, list).remove(folios, unit);
        self.parts.sub(part, units);
        folios[unit].part = home;
        self.list_mut(home, list).push(folios, unit);
        self.parts.add(home, units);
    }

    /// Returns the sizes and counters.
    #[must_use]
    pub fn stats(&self) -> ReclaimStats {
        let units = |list: fn(&PartLists) -> &FolioList| {
            self.lists.iter().map(|lists| list(lists).units.get()).sum()
        };
        ReclaimStats {
            small_units: units(|lists| &lists.small),
            main_units: units(|lists| &lists.main),
            ..self.stats
        }
    }

    /// Returns the size of the ghost list's table in bytes; the lists are in the headers.
    #[cfg(test)]
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.ghost.table_bytes()
    }

    fn evict(&mut self, folios: &mut Folios, unit: u32) -> Victim {
        self.remember(folios, unit);
        let folio = &folios[unit];
        debug_assert!(is_free(folio), "a victim is clean and idle");
        self.stats.evicted_folios += 1;
        self.stats.evicted_units += u64::from(folio.blocks());
        if folio.is(Folio::UNUSED) {
            self.stats.ra_waste += u64::from(folio.blocks());
        }
        Victim::Clean(unit)
    }

    /// Removes a victim from its list, and remembers it if that is the small one.
    fn remember(&mut self, folios: &mut Folios, unit: u32) {
        if folios[unit].eviction.list() == EvictionList::Small {
            self.ghost.note(folios[unit].key, folios[unit].blocks());
        }
        self.forget(folios, unit);
    }
}

/// Returns true if a folio may be evicted at once.
fn is_free(folio: &Folio) -> bool {
    folio.is_idle() && folio.waiters == NIL
}

impl PartLists {
    fn new() -> Self {
        Self {
            small: FolioList::new(EvictionList::Small),
            main: FolioList::new(EvictionList::Main),
        }
    }
}

impl FolioList {
    fn new(list: EvictionList) -> Self {
        Self { list, oldest: NIL, youngest: NIL, units: Gauge32::default() }
    }

    /// Adds a folio at the young end.
    fn push(&mut self, folios: &mut Folios, unit: u32) {
        let folio = &mut folios[unit];
        assert!(folio.eviction.list() == EvictionList::None, "a folio is on one list");
        folio.eviction.set_list(self.list);
        folio.older = self.youngest;
        folio.younger = NIL;
        self.units.add(folio.blocks());
        match self.youngest {
            NIL => self.oldest = unit,
            youngest => folios[youngest].younger = unit,
        }
        self.youngest = unit;
    }

    /// Removes a folio from any position.
    fn remove(&mut self, folios: &mut Folios, unit: u32) {
        let folio = &mut folios[unit];
        assert!(folio.eviction.list() == self.list, "the folio is on this list");
        let (older, younger) = (folio.older, folio.younger);
        folio.eviction.set_list(EvictionList::None);
        self.units.sub(folio.blocks());
        match older {
            NIL => self.oldest = younger,
            older => folios[older].younger = younger,
        }
        match younger {
            NIL => self.youngest = older,
            younger => folios[younger].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
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
                let Victim::Clean(unit) = self.reclaim.victim(&mut self.folios, COMMON, STEPS)
                else {
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
        let Victim::Clean(unit) = pool.reclaim.victim(&mut pool.folios, COMMON, 10) else {
            panic!()
        };
        assert_eq!((pool.folios[unit].key.block(), pool.reclaim.stats().promoted), (0, 10));
        pool.drop(unit);
        let Victim::Clean(unit) = pool.reclaim.victim(&mut pool.folios, COMMON, 64) else {
            panic!()
        };
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
            assert!(matches!(
                pool.reclaim.victim(&mut pool.folios, COMMON, STEPS),
                Victim::Clean(_)
            ));
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
}
