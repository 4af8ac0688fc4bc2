//! The memory of the cache: folios, the index that finds them, free and shadow frames, and eviction.
//!
//! ```text
//!   frames (buddy) --begin--> folio: in the index, on an eviction list --evict, drop--> frames
//! ```
//!
//! Files: `folio` (headers and block states), `blocks` (every transition of a block's state), `index`, `reclaim` and `ghost`
//! (eviction), `parts` (parts of tenants), `shadow` (frames for writes to blocks under write-out), `walk` (the folios of a range),
//! `limit` and `growth` (how many frames may be used), `lines` (hash tables that cost nothing before they are used).
//!
//! Invariants: units of folios + free units + granted frames + shadow frames + withheld units == units of the tables; a folio is
//! in the index and on an eviction list from its begin to its end; `volume_folios` counts the folios of each volume.

mod adopt;
mod blocks;
pub mod folio;
mod ghost;
mod growth;
mod index;
mod limit;
mod lines;
mod parts;
mod reclaim;
mod shadow;
mod walk;

pub(in crate::cache) use adopt::AdoptedFolio;
pub(in crate::cache) use blocks::BlockRun;
pub(in crate::cache) use growth::Excess;
pub(in crate::cache) use walk::{RangeWalk, TURN_BUDGET, WalkStep, charge_cancel, charge_drop};

use std::ops::Range;

use crate::bio::{ExportId, TenantId, VolumeId};
use crate::buddy::Buddy;
use crate::cache::readahead::ReadAhead;
use crate::cache::stats::CacheStats;
use crate::gauge::Gauge32;
use crate::options::{ShardConfig, TenantMemory};
use crate::slab::NIL;
use folio::{Folio, FolioKey, Folios, ORDER_MAX, block};
use index::Index;
use limit::{Limit, UNITS_FIRST};
use reclaim::{Reclaim, Victim};
use shadow::ShadowFrames;

/// Folios that eviction examines before it reports that none is clean.
const VICTIM_STEPS: u32 = 64;
/// Folios that are dropped in one turn when a volume is removed: 2 ms. Millions would take half a second.
const DROP_MAX: u32 = 8192;
/// Units that are examined for them.
const EXAMINE_MAX: u32 = 1 << 17;

/// The outcome of an attempt to evict a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Eviction {
    /// A folio of this many units was evicted.
    Evicted(u32),
    /// Only dirty or busy folios were found.
    NoneClean,
    /// There is no folio to evict.
    Empty,
}

/// The pool of frames of a cache, with the folios in it.
#[derive(Debug)]
pub(in crate::cache) struct Pool {
    folios: Folios,
    frames: Buddy,
    index: Index,
    reclaim: Reclaim,
    shadows: ShadowFrames,
    limit: Limit,
    /// The most units to which the ratios of dirty data refer.
    dirtyable_max: u32,
    /// Frames with dirty blocks are reported for the dirty table.
    dirty_table: bool,
    /// Volumes whose adopted dirty blocks have other ids in the dirty table.
    renamed: Vec<VolumeId>,
    /// Folios of each volume.
    volume_folios: Vec<Gauge32>,
    /// The unit at which dropping the folios of a removed volume continues.
    drop_position: u32,
    /// Folios evicted, their units, and the units that were read ahead and not used.
    evicted: [u64; 3],
    /// Units of folios that left behind a stream.
    dropped_behind: u64,
}

impl Pool {
    /// Creates the empty pool of a configuration.
    pub fn new(config: &ShardConfig) -> Self {
        let (units, dirty_table) = (config.cache.units, config.cache.dirty_table);
        let volumes = config.volumes_max();
        let (mut frames, mut folios) =
            (Buddy::with_room(units, usize::from(ORDER_MAX) + 1), Folios::with_room(units));
        let first = units.min(UNITS_FIRST);
        frames.grow(first);
        folios.grow(first);
        let shadows = ShadowFrames::new(&mut frames, units);
        Self {
            folios,
            frames,
            index: Index::new(units),
            reclaim: Reclaim::new(units, &config.exports, &config.tenants),
            shadows,
            limit: Limit::of(&config.cache),
            dirtyable_max: config.cache.dirtyable_max,
            dirty_table,
            renamed: Vec::new(),
            volume_folios: vec![Gauge32::default(); volumes],
            drop_position: 0,
            evicted: [0; 3],
            dropped_behind: 0,
        }
    }

    /// Returns the units of the tables: those beyond were never used.
    #[inline]
    pub fn units(&self) -> u32 {
        self.folios.units()
    }

    /// Returns the number of free units.
    pub fn free(&self) -> u32 {
        self.frames.free()
    }

    /// Returns the memory of the tables that every bio reads.
    pub fn tables(&self) -> impl Iterator<Item = Range<*const u8>> {
        self.folios.tables().into_iter().chain([self.index.table()])
    }

    /// Returns the largest order of a folio: at least 64 of that size fit, so that a few accesses do not fill the pool.
    pub fn order_cap(&self) -> u8 {
        (self.limit() / 64).max(1).ilog2() as u8
    }

    /// Returns the header of the folio at `unit`.
    #[inline]
    pub fn folio(&self, unit: u32) -> &Folio {
        &self.folios[unit]
    }

    /// Returns the states of `count` blocks from `unit` on.
    #[inline]
    pub fn states(&self, unit: u32, count: u32) -> &[u8] {
        self.folios.states(unit, count)
    }

    /// Returns the state of the block at `unit`.
    #[inline]
    pub fn state(&self, unit: u32) -> u8 {
        self.folios.states(unit, 1)[0]
    }

    /// Returns the folio that holds a block.
    #[inline]
    pub fn find(&self, volume: VolumeId, block: u64) -> Option<u32> {
        self.index.find(&self.folios, volume, block)
    }

    /// Returns the folio that holds a block, and which of its blocks that is.
    #[inline]
    pub fn locate(&self, volume: VolumeId, block: u64) -> Option<(u32, u32)> {
        self.index.locate(&self.folios, volume, block)
    }

    /// Returns the unit of the frame in which a block most likely is; it may be past the pool.
    #[inline]
    pub fn guess(&self, volume: VolumeId, block: u64) -> Option<u32> {
        self.index.guess(volume, block)
    }

    /// Returns the largest order of a new folio that begins at `block` and ends by `end`.
    pub fn largest_fit(&self, volume: VolumeId, block: u64, order_max: u8, end: u64) -> u8 {
        self.index.largest_fit(&self.folios, volume, block, order_max, end)
    }

    /// Returns true if it is known without a search that no folio lies in the 2 MiB of `key`.
    pub fn is_empty_around(&self, key: FolioKey) -> bool {
        self.index.is_empty_around(&self.folios, key)
    }

    /// Takes frames of an order, if there are free ones.
    pub fn take_frames(&mut self, order: u8) -> Option<u32> {
        debug_assert!(order <= ORDER_MAX, "the order of a folio");
        self.frames.take(order)
    }

    /// Returns frames that hold no folio.
    pub fn put_frames(&mut self, unit: u32, order: u8) {
        assert!(!self.folios[unit].is(Folio::PRESENT), "frames of a folio are not free");
        self.frames.put(unit, order);
    }

    /// Makes a folio of the frames at `unit`, with the block `block` of its volume and no valid block, which counts for an export.
    pub fn begin_folio(
        &mut self,
        unit: u32,
        order: u8,
        (volume, block): (VolumeId, u64),
        export: ExportId,
    ) {
        assert!(!self.folios[unit].is(Folio::PRESENT), "frames hold one folio");
        self.folios.begin(unit, FolioKey::new(volume, block, order), order);
        self.index.insert(&self.folios, unit);
        self.volume_folios[usize::from(volume.0)].add(1);
        self.folios[unit].export = export;
        self.reclaim.insert(&mut self.folios, unit);
    }

    /// Evicts a clean folio when the part `asking` needs frames.
    pub fn evict(&mut self, ahead: &mut ReadAhead, asking: u16) -> Eviction {
        let victim = self.reclaim.victim(&mut self.folios, asking, VICTIM_STEPS);
        self.end_victim(ahead, victim)
    }

    /// Evicts a clean folio of any part, as [`Pool::evict`] does, although it is within its minimum.
    pub fn evict_any(&mut self, ahead: &mut ReadAhead) -> Eviction {
        let victim = self.reclaim.victim_of_any(&mut self.folios, VICTIM_STEPS);
        self.end_victim(ahead, victim)
    }

    /// Evicts folios of a part until `units` more fit its maximum, or until no clean one is found: what is dirty stays. A part whose
    /// maximum was lowered shrinks by as much again as is added.
    pub fn make_room(&mut self, ahead: &mut ReadAhead, part: u16, units: u32) {
        assert!(units > 0, "room is made for a folio");
        let mut most = 2 * units;
        while self.reclaim.parts().excess(part, units) > 0 && most > 0 {
            let victim = self.reclaim.victim_within(&mut self.folios, part, VICTIM_STEPS);
            let Eviction::Evicted(gone) = self.end_victim(ahead, victim) else { return };
            most = most.saturating_sub(gone);
        }
    }

    fn end_victim(&mut self, ahead: &mut ReadAhead, victim: Victim) -> Eviction {
        match victim {
            Victim::Clean(unit) => {
                let folio = self.folios[unit];
                assert!(folio.is_idle() && folio.waiters == NIL, "a victim is clean and idle");
                if folio.is(Folio::UNUSED) {
                    self.evicted[2] += u64::from(folio.blocks());
                    ahead.on_waste(folio.key.volume(), folio.blocks());
                }
                self.evicted[0] += 1;
                self.evicted[1] += u64::from(folio.blocks());
                self.end_folio(unit);
                Eviction::Evicted(folio.blocks())
            }
            Victim::Dirty => Eviction::NoneClean,
            Victim::None => Eviction::Empty,
        }
    }

    /// Returns true if tenants have parts of the pool.
    #[inline]
    pub fn is_divided(&self) -> bool {
        self.reclaim.parts().is_divided()
    }

    /// Returns the part that folios of an export belong to, and the largest order of a folio in it.
    pub fn part_of(&self, export: ExportId) -> (u16, u8) {
        let part = self.reclaim.parts().of(export);
        (part, self.reclaim.parts().order_cap(part))
    }

    /// Sets the part of the pool that a tenant has.
    pub fn set_memory(&mut self, tenant: TenantId, memory: TenantMemory) {
        self.reclaim.set_memory(tenant, memory);
    }

    /// Moves an export, with what is cached for it, to a tenant.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        self.reclaim.set_tenant(export, tenant);
    }

    /// Makes a folio count for another export.
    pub fn set_export(&mut self, unit: u32, export: ExportId) {
        debug_assert!(self.folios[unit].is(Folio::PRESENT), "there is a folio");
        self.reclaim.set_export(&mut self.folios, unit, export);
    }

    /// Returns the units that are cached for an export.
    pub fn cached(&self, export: ExportId) -> u32 {
        self.reclaim.parts().cached(export)
    }

    /// Ends a folio that is on no eviction list.
    fn end_folio(&mut self, unit: u32) {
        debug_assert!(
            self.folios[unit].eviction.list() == folio::EvictionList::None,
            "it left its list"
        );
        let Folio { order, key, .. } = self.folios[unit];
        self.index.remove(&self.folios, unit);
        self.volume_folios[usize::from(key.volume().0)].sub(1);
        self.folios.end(unit);
        self.frames.put(unit, order);
    }

    /// Drops a folio of which no block is valid, unless it is busy or waited for.
    pub fn drop_if_idle(&mut self, unit: u32) {
        let folio = &self.folios[unit];
        debug_assert!(folio.is(Folio::PRESENT));
        if folio.is_idle() && folio.waiters == NIL {
            self.reclaim.forget(&mut self.folios, unit);
            self.end_folio(unit);
        }
    }

    /// Drops a folio that a stream brought, if it is clean, no operation waits for it and every valid block of it was used. Eviction does not
    /// remember it: a stream would push the keys of others from the ghost list.
    pub fn drop_behind(&mut self, unit: u32) -> bool {
        let folio = self.folios[unit];
        debug_assert!(folio.is(Folio::PRESENT), "there is a folio");
        let leaves = folio.is(Folio::DROP_BEHIND) && folio.is_idle() && folio.waiters == NIL;
        let is_unused = |state: &u8| state & (block::UPTODATE | block::USED) == block::UPTODATE;
        if !leaves || self.folios.states(unit, folio.blocks()).iter().any(is_unused) {
            return false;
        }
        self.dropped_behind += u64::from(folio.blocks());
        self.drop_if_idle(unit);
        true
    }

    /// Drops folios of a volume that is clean and idle, as many as one turn may; true when none is left.
    pub fn drop_volume(&mut self, volume: VolumeId) -> bool {
        let index = usize::from(volume.0);
        let enough = self.volume_folios[index].get().saturating_sub(DROP_MAX);
        let mut examined = 0;
        while self.volume_folios[index].get() > enough && examined < EXAMINE_MAX {
            if self.drop_position >= self.units() {
                self.drop_position = 0;
            }
            let unit = self.drop_position;
            let folio = self.folios[unit];
            let present = folio.is(Folio::PRESENT);
            let passed = if present { folio.blocks() } else { 1 };
            if present && folio.key.volume() == volume {
                assert!(folio.is_idle() && folio.waiters == NIL, "the volume is clean and idle");
                self.drop_if_idle(unit);
            }
            self.drop_position += passed;
            examined += passed;
        }
        self.volume_folios[index].is_zero()
    }

    /// Adds counters up to that of `volume`.
    pub fn add_volume(&mut self, volume: VolumeId) {
        let slots = self.volume_folios.len().max(usize::from(volume.0) + 1);
        self.volume_folios.resize(slots, Gauge32::default());
    }

    /// Returns the number of folios of a volume.
    pub fn folios_of(&self, volume: VolumeId) -> u32 {
        self.volume_folios[usize::from(volume.0)].get()
    }

    /// Tells eviction that a block of the folio was accessed again.
    #[inline]
    pub fn touch(&mut self, unit: u32) {
        debug_assert!(self.folios[unit].is(Folio::PRESENT), "there is a folio");
        Reclaim::touch(&mut self.folios, unit);
    }

    /// Sets a mark of a folio.
    pub fn set_mark(&mut self, unit: u32, mark: u8) {
        debug_assert!(self.folios[unit].is(Folio::PRESENT), "there is a folio");
        self.folios[unit].marks |= mark;
    }

    /// Clears marks of a folio.
    #[inline]
    pub fn clear_marks(&mut self, unit: u32, marks: u8) {
        debug_assert!(marks & Folio::PRESENT == 0);
        self.folios[unit].marks &= !marks;
    }

    /// Makes an operation the first of a folio's waiters; returns the previous first one.
    pub fn add_waiter(&mut self, unit: u32, slot: u32) -> u32 {
        debug_assert!(self.folios[unit].is(Folio::PRESENT));
        std::mem::replace(&mut self.folios[unit].waiters, slot)
    }

    /// Removes all of a folio's waiters; returns the first one, which came last.
    pub fn take_waiters(&mut self, unit: u32) -> u32 {
        std::mem::replace(&mut self.folios[unit].waiters, NIL)
    }

    /// Counts a bio for some of the folio that passed its time-out.
    pub fn add_late(&mut self, unit: u32) {
        let folio = &mut self.folios[unit];
        folio.late += 1;
        assert!(folio.late <= folio.writeback + folio.filling, "a late bio is outstanding");
    }

    /// Counts a bio that ended after its time-out.
    pub fn sub_late(&mut self, unit: u32) {
        let folio = &mut self.folios[unit];
        assert!(folio.late > 0, "a bio was late");
        folio.late -= 1;
    }

    /// Returns the headers, for the links of the extent groups; nothing else of them may be changed.
    pub fn headers_for_groups(&mut self) -> &mut Folios {
        &mut self.folios
    }

    /// Sets the generation of a folio that has just entered its group.
    pub fn begin_generation(&mut self, unit: u32, generation: u8) {
        assert!(self.folios[unit].group != NIL, "the folio is in a group");
        self.folios[unit].generation = generation;
    }

    /// Adds what the pool has counted to the statistics.
    pub fn add_stats(&self, stats: &mut CacheStats) {
        let index = self.index.stats();
        for order in 0..=ORDER_MAX {
            let folios = u64::from(self.index.count(order));
            stats.folios[usize::from(order)] = folios;
            stats.size.resident += folios << order;
        }
        stats.size.room = self.room().into();
        stats.size.units = self.limit().into();
        stats.size.free = self.limit().saturating_sub(self.taken()).into();
        [stats.evicted_folios, stats.evicted, stats.read_ahead_wasted] = self.evicted;
        stats.ghost_hits = self.reclaim.stats().ghost_hits;
        stats.dropped_behind = self.dropped_behind;
        stats.shadows = self.shadows.used().into();
        stats.index.operations = index.operations();
        stats.index.probes = index.probes;
    }

    /// Returns the number of shadow frames in use, and of all.
    pub fn shadow_frames(&self) -> (u32, u32) {
        (self.shadows.used(), self.shadows.units())
    }

    /// Returns the frame that holds a block's newest bytes, which is a shadow while the block has one.
    #[inline]
    pub fn newest_frame(&self, unit: u32) -> u32 {
        if self.state(unit) & block::SHADOW != 0 { self.shadows.of(unit) } else { unit }
    }
}
