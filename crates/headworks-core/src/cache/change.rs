//! Hot-add and hot-remove of devices and volumes, volumes that are put on a base, and the limit of frames, which dirty limits follow.
//!
//! Tables by volume and by device reach to the last slot that was ever used, so that spare slots cost nothing. A free slot has no
//! folio, no operation and no list entry; a device or volume that is added finds it as new.

use super::pool::folio::{BLOCK_SHIFT, Folio};
use super::volumes::Layer;
use super::{Cache, DeviceCaching};
use crate::bio::{DeviceId, VolumeId};
use crate::options::{VolumeConfig, WriteMode};

impl Cache {
    /// Adds a device to a free slot.
    pub fn add_device(&mut self, device: DeviceId, caching: DeviceCaching) {
        let (state, index) = (&mut self.state, usize::from(device.0));
        state.volumes.add_device(device, caching);
        state.waiters.add_device(index);
        state.dirty.add_device(device);
        self.flushers.add_device(device);
        self.set_present(index, true);
    }

    /// Removes a device that has no volumes.
    pub fn remove_device(&mut self, device: DeviceId) {
        let volumes = &self.state.volumes;
        let empty = volumes.ids().all(|volume| !volumes.is_on(volume, usize::from(device.0)));
        assert!(empty, "a device that is removed has no volumes");
        self.flushers.remove_device(device);
        self.state.dirty.remove_device(device);
        self.set_present(usize::from(device.0), false);
    }

    /// Changes the budgets of a device that joins or leaves, and with them the limits of the others.
    fn set_present(&mut self, device: usize, present: bool) {
        self.state.waiters.reset_device(device);
        self.state.io.set_present(device, present);
        self.state.apply_limits();
    }

    /// Adds a volume to a free slot.
    pub fn add_volume(&mut self, volume: VolumeId, config: &VolumeConfig) {
        self.state.pool.add_volume(volume);
        self.state.waiters.add_volume(volume);
        let state = &mut self.state;
        let clean = state.pool.folios_of(volume) == 0 || state.defects.folios_stay();
        assert!(clean, "a free slot has no folios");
        state.volumes.add(volume, config);
    }

    /// Returns why a volume cannot be removed yet, other than bios that are outstanding at a device.
    pub fn keeps(&self, volume: VolumeId) -> Option<&'static str> {
        let entry = &self.state.volumes[volume];
        if entry.held() > 0 {
            return Some("blocks of the volume could not be written and are held");
        }
        if entry.unclean() > 0 {
            return Some("the volume has dirty data");
        }
        if self.state.volumes.has_layers(volume) {
            return Some("other volumes read it as their base");
        }
        let mut ops = self.state.waiters.iter().map(|(_, op)| op);
        let outstanding = ops.any(|op| [op.bio.id.volume, op.by].contains(&volume));
        outstanding.then_some("requests of the volume are outstanding")
    }

    /// Drops cached folios of a volume that is clean and idle, as many as one turn may; true when none is left.
    pub fn drop_some(&mut self, volume: VolumeId) -> bool {
        if self.state.defects.folios_stay() {
            return true;
        }
        // Frames became free.
        self.state.needs_run = true;
        self.state.pool.drop_volume(volume)
    }

    /// Removes a volume of which nothing is cached. Only the ghost list may still know evicted blocks of it.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        let dropped = self.state.pool.folios_of(volume) == 0 || self.state.defects.folios_stay();
        assert!(dropped, "a volume that is removed has no folios");
        self.state.ahead.forget_volume(volume);
        self.state.volumes.remove(volume);
    }

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

    /// Sets how many frames the cache may use, and of how many at most parts may be dirty (0: as before).
    pub fn set_limit(&mut self, units: u32, dirtyable: u32) {
        self.state.pool.set_limit(units);
        if dirtyable > 0 {
            self.state.pool.set_dirtyable(dirtyable);
        }
        self.follow_limit();
    }

    /// Takes the answer to a part of [`Action::Prepare`](crate::Action::Prepare): frames have memory, or get none at present.
    pub fn on_memory(&mut self, (first, units): (u32, u32), had: bool) {
        let before = self.state.pool.limit();
        self.state.pool.on_memory(first, units, had);
        if self.state.pool.limit() != before {
            self.follow_limit();
        }
        // An operation may have waited for a frame.
        self.state.needs_run = true;
    }

    fn follow_limit(&mut self) {
        let state = &mut self.state;
        state.io.set_units(state.pool.limit());
        let (dirtyable, most) = (state.pool.dirtyable(), state.pool.dirty_most());
        state.dirty.throttle_mut().set_limit_units(dirtyable, most);
        state.apply_limits();
    }
}
