//! Volumes on a base: where a read goes on, and how a volume is put on its base. What decides is [`Layer`](super::volumes::Layer).
//!
//! A base may be on a base itself. The way down ends: a volume is put only on one that was there before and never changes its base.

use super::Cache;
use super::pool::folio::{BLOCK_SHIFT, Folio};
use super::state::CacheState;
use super::volumes::Layer;
use crate::bio::{Bio, BioFlags, Op, VolumeId};
use crate::options::WriteMode;

impl CacheState {
    /// Notes the blocks that a bio changes, and gives a read that its volume shares with its base the id of the base.
    #[inline]
    pub fn lead_to_base(&mut self, bio: &mut Bio) {
        if self.volumes[bio.id.volume].layer().is_some() {
            self.note_change(bio);
            bio.id.volume = self.read_volume(bio);
        }
    }

    fn note_change(&mut self, bio: &Bio) {
        if bio.op.is_write()
            && !self.defects.forgets_own_blocks()
            && let Some(layer) = self.volumes[bio.id.volume].layer_mut()
        {
            layer.note_change(bio.offset, bio.len.into());
            debug_assert!(layer.base_of(bio.offset, bio.len.into()).is_none(), "a change is seen");
        }
    }

    /// Returns the volume on which a bio goes on: the lowest one that has all of a read's bytes, or its own.
    #[inline]
    pub fn read_volume(&self, bio: &Bio) -> VolumeId {
        let mut volume = bio.id.volume;
        // A direct read drops what is cached, which others use.
        let shares = matches!(bio.op, Op::Read | Op::Prefetch);
        if !shares || bio.flags.contains(BioFlags::DIRECT) {
            return volume;
        }
        while let Some(layer) = self.volumes.get(volume).and_then(|entry| entry.layer())
            && let Some(base) = layer.base_of(bio.offset, bio.len.into())
        {
            debug_assert!(!self.volumes[base].is_free_slot(), "a base stays below its volumes");
            volume = base;
        }
        volume
    }
}

impl Cache {
    /// Puts a volume on a base: changes are noted from now on, and those that were not written out before. One look at all frames, if
    /// the volume has some.
    ///
    /// # Errors
    /// The two cannot be used so, as a clause.
    pub fn set_base(&mut self, volume: VolumeId, base: VolumeId) -> Result<(), &'static str> {
        let volumes = &mut self.state.volumes;
        let (of, below) = (&volumes[volume], &volumes[base]);
        if volume == base || of.layer().is_some() || volumes.has_layers(volume) {
            return Err("a volume is put on one other, once, and before others are put on it");
        }
        if of.mode() == WriteMode::None || below.mode() == WriteMode::None {
            return Err("a volume and its base are both cached");
        }
        let mut layer = Layer::new(base, below.size(), of.size());
        self.note_changes_before(volume, &mut layer);
        self.state.volumes[volume].set_layer(layer);
        Ok(())
    }

    /// Notes what the cache has accepted for a volume and not written out yet.
    fn note_changes_before(&self, volume: VolumeId, layer: &mut Layer) {
        if self.state.defects.forgets_earlier_changes() {
            return;
        }
        let changes = self.state.waiters.iter().map(|(_, op)| &op.bio);
        for bio in changes.filter(|bio| bio.id.volume == volume && bio.op.is_write()) {
            layer.note_change(bio.offset, bio.len.into());
        }
        let pool = &self.state.pool;
        if pool.folios_of(volume) == 0 {
            return;
        }
        for unit in 0..pool.units() {
            let folio = pool.folio(unit);
            let of_volume = folio.is(Folio::PRESENT) && folio.key.volume() == volume;
            if of_volume && folio.dirty + folio.writeback > 0 {
                let bytes = u64::from(folio.blocks()) << BLOCK_SHIFT;
                layer.note_change(folio.key.block() << BLOCK_SHIFT, bytes);
            }
        }
    }

    /// Notes blocks that the volume has of its own: those of `bits`, from block `64 * word` on.
    pub fn add_own_blocks(&mut self, volume: VolumeId, word: u64, bits: u64) {
        if let Some(layer) = self.state.volumes[volume].layer_mut() {
            layer.add(word, bits);
        }
    }

    /// Has reads go on at the base from now on: all own blocks are known.
    pub fn read_base(&mut self, volume: VolumeId) {
        if let Some(layer) = self.state.volumes[volume].layer_mut() {
            layer.complete();
        }
    }
}
