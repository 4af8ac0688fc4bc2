//! Taking over folios that another process made: at the same frames, in the same order of eviction.
//!
//! The dirty table already has the entries of the dirty frames. Where the id of a volume has changed they are set again, once the
//! cache is not frozen: until then the old process may come back to the table.

use super::Pool;
use super::folio::{EvictionList, Folio, FolioKey, block};
use super::shadow::{SHADOWS_MAX, ShadowFrames};
use crate::action::Actions;
use crate::bio::{ExportId, VolumeId};

/// A folio that another process made.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct AdoptedFolio {
    /// Its first frame in the pool.
    pub unit: u32,
    /// The log2 of its blocks.
    pub order: u8,
    /// Its volume and first block.
    pub key: FolioKey,
    /// The export that it counts for.
    pub export: ExportId,
    /// It is on the main list of eviction.
    pub main: bool,
    /// Repeated accesses, as eviction counts them.
    pub freq: u8,
    /// It was read ahead and not accessed yet.
    pub unused: bool,
}

impl Pool {
    /// Returns true if the pool has no folio, and no frame of it is granted.
    pub fn is_empty(&self) -> bool {
        self.free() + self.shadows.units() == self.units()
    }

    /// Iterates over the folios of an eviction list, the oldest first.
    pub fn by_age(&self, list: EvictionList) -> impl Iterator<Item = u32> + use<'_> {
        self.reclaim.by_age(&self.folios, list)
    }

    /// Returns the reserve of shadow frames to the pool, of which folios are adopted; [`Pool::reserve_shadows`] must follow.
    pub fn release_shadows(&mut self) {
        self.shadows.release(&mut self.frames);
        debug_assert!(self.free() == self.units(), "an empty pool has all of its frames");
    }

    /// Takes a reserve of shadow frames again.
    pub fn reserve_shadows(&mut self) {
        assert!(self.shadows.units() == 0, "there is one reserve");
        self.grow_to(self.limit.tables_max().min(self.units() + SHADOWS_MAX));
        self.shadows = ShadowFrames::new(&mut self.frames, self.limit.room());
    }

    /// Makes a folio of free frames, youngest on its eviction list; returns the number of its dirty blocks.
    pub fn adopt(&mut self, adopted: &AdoptedFolio, states: &[u8]) -> u32 {
        let AdoptedFolio { unit, order, key, export, main, freq, unused } = *adopted;
        // It may have grown beyond what had memory when this process started.
        self.limit.on_adopted(unit + (1 << order));
        self.grow_to(self.units().max(unit + (1 << order)));
        assert!(self.frames.take_at(unit, order), "the frames of a folio that is adopted are free");
        self.folios.begin(unit, key, order);
        self.index.insert(&self.folios, unit);
        self.volume_folios[usize::from(key.volume().0)].add(1);
        self.folios[unit].export = export;
        let list = if main { EvictionList::Main } else { EvictionList::Small };
        self.reclaim.restore(&mut self.folios, unit, list, freq);
        if unused {
            self.set_mark(unit, Folio::UNUSED);
        }
        self.folios.states_mut(unit, 1 << order).copy_from_slice(states);
        let dirty = states.iter().filter(|&state| state & block::DIRTY != 0).count();
        self.folios[unit].dirty = dirty as u16;
        dirty as u32
    }

    /// Notes the volumes whose adopted dirty blocks have other ids in the dirty table.
    pub fn set_renamed(&mut self, volumes: Vec<VolumeId>) {
        debug_assert!(self.renamed.is_empty(), "contents are adopted once");
        self.renamed = volumes;
    }

    /// Returns true if the dirty table has entries of volumes with other ids.
    #[inline]
    pub fn has_renamed(&self) -> bool {
        !self.renamed.is_empty()
    }

    /// Sets the entries of the dirty table whose volumes have other ids than the table says.
    pub fn report_renamed(&mut self, actions: &mut Actions) {
        let renamed = std::mem::take(&mut self.renamed);
        if renamed.is_empty() {
            return;
        }
        for unit in 0..self.units() {
            let folio = self.folio(unit);
            if folio.is(Folio::PRESENT) && renamed.contains(&folio.key.volume()) {
                self.report_folio(unit, actions);
            }
        }
    }

    /// Sets the entries of the frames of a folio that hold dirty bytes.
    fn report_folio(&self, unit: u32, actions: &mut Actions) {
        let Folio { key, .. } = *self.folio(unit);
        let blocks = self.folio(unit).blocks();
        debug_assert!(self.folio(unit).is(Folio::PRESENT), "there is a folio");
        for (index, state) in (0..blocks).zip(self.states(unit, blocks)) {
            let of = (key.volume(), key.block() + u64::from(index));
            if state & (block::DIRTY | block::WRITEBACK) != 0 {
                self.set_dirty(unit + index, 1, of, actions);
            }
            if state & block::SHADOW != 0 {
                self.set_shadow_dirty(self.shadow_of(unit + index), of, actions);
            }
        }
    }
}
