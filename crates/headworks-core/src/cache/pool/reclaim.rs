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
mod tests;
