//! Hot-add and hot-remove of devices and volumes.
//!
//! Decides whether a change is allowed: a slot is assigned once, a volume is removed when none of its bios is outstanding and no
//! block of it is dirty or kept after an error, a device when it has no volumes and none of its tags is in use. A refused change
//! leaves the shard as it was, except that less of a volume may be cached.
//!
//! ```text
//!             AddDevice         AddVolume
//!   free slot ----------> device ------------> device with volumes
//!      ^                  |    ^                    |
//!      '-- RemoveDevice --'    '-- RemoveVolume ----'      Busy while in use
//! ```
//!
//! Shards learn of a change at different times. A bio for a free slot is answered `Invalid`, whether it comes from a client or from
//! another shard; other messages for it are ignored. A message about the previous user of a slot never reaches the next one: a
//! volume leaves its home after all its bios have completed, and a remote queue leaves after its tags and grants have been
//! returned. Options in transit are followed by the new device's options, or come from a shard that is not the owner.
//!
//! Invariant: no table outgrows the size it was allocated with.

use super::Shard;
use super::route::{DeviceRoute, VolumeEntry};
use crate::bio::{DeviceId, VolumeId};
use crate::cache::{Cache, DeviceCaching};
use crate::error::ConfigError;
use crate::options::{Change, ChangeError, DeviceConfig, VolumeConfig};
use crate::time::Instant;

impl Shard {
    /// Applies a change between two batches, after the actions of the last one were executed and cleared. Its actions follow
    /// from the next [`Shard::handle`], which may have no inputs and should follow soon.
    ///
    /// Every shard applies every change, in this order:
    ///
    /// - `AddDevice`, then `AddVolume`: the owner of the device first, then the others, each change on all shards before the next.
    ///   Bios and changes of the device's options are allowed once all shards have applied it.
    /// - `SetBase` on the home shard of both; then `OwnBlocks` with what the device had of its own when it was done, and `ReadBase`.
    ///   Other shards ignore the three.
    /// - `RemoveVolume`: its home shard first, repeated until it succeeds; from then on its bios are answered
    ///   [`IoError::Invalid`](crate::IoError::Invalid). Then the owner of its device, until it succeeds, then the others.
    /// - `RemoveDevice`: the owner last, each until it succeeds. (An idle lease is returned after some milliseconds.)
    ///
    /// The slot may be used again as soon as all shards have applied the removal.
    ///
    /// # Errors
    /// [`ChangeError::Busy`]: I/O is outstanding, data is dirty, or too much is cached to drop in one turn; try again later.
    /// [`ChangeError::Invalid`]: the slot is in use or free, no spare tags are left, or a number is out of range. Nothing was
    /// changed.
    pub fn change(&mut self, _now: Instant, change: &Change) -> Result<(), ChangeError> {
        match *change {
            Change::AddDevice { device, config } => self.add_device(device, config),
            Change::AddVolume { volume, config } => self.add_volume(volume, config),
            Change::SetBase { volume, base } => self.set_base(volume, base),
            Change::OwnBlocks { volume, word, bits } => {
                if let Some(cache) = self.cache_of(volume)? {
                    cache.add_own_blocks(volume, word, bits);
                }
                Ok(())
            }
            Change::ReadBase { volume } => {
                if let Some(cache) = self.cache_of(volume)? {
                    cache.read_base(volume);
                }
                Ok(())
            }
            Change::RemoveVolume { volume } => self.remove_volume(volume),
            Change::RemoveDevice { device } => self.remove_device(device),
        }
    }

    fn add_device(&mut self, device: DeviceId, config: DeviceConfig) -> Result<(), ChangeError> {
        self.topology.add_device(device, config)?;
        let (index, shard) = (usize::from(device.0), self.topology.config());
        while self.routes.len() <= index {
            self.routes.push(DeviceRoute::Unassigned);
        }
        // The spare tags are `nr_requests`; an elevator that owns shares has more.
        if config.owner == self.id {
            let more = config.queue.tags(shard.bios_total()) - config.queue.nr_requests;
            let spare = more.min(self.pools.spare_slots);
            self.pools.spare_slots -= spare;
            self.pools.slots.grow(more - spare);
        }
        self.routes[index] = DeviceRoute::new(shard, device, self.pools.slots.capacity());
        let (list, segments) = self.topology.room_for_actions();
        self.pools.actions.make_room(list, segments);
        if let Some(cache) = &mut self.cache {
            cache.add_device(device, DeviceCaching::of(&config.queue));
        }
        if let DeviceRoute::Local(queue) = &self.routes[index] {
            queue.announce(&mut self.pools);
        }
        Ok(())
    }

    fn add_volume(&mut self, volume: VolumeId, config: VolumeConfig) -> Result<(), ChangeError> {
        let index = usize::from(volume.0);
        self.topology.check_volume(volume, self.volume(volume).is_some(), &config)?;
        let entry = VolumeEntry::new(self.topology.config(), config);
        let block_size = config.options.block_size;
        if let DeviceRoute::Local(queue) = &mut self.routes[usize::from(config.device.0)] {
            // The new options were checked against the present volumes only.
            if queue.is_draining() {
                return Err(ChangeError::Busy("the options of the device are being changed"));
            }
            if block_size > queue.options().max_bytes() {
                let message = format!("{block_size} is more than max_sectors_kb of the device");
                return Err(ConfigError::new("block_size", message).into());
            }
            queue.add_volume(volume, block_size);
        }
        while self.volumes.len() <= index {
            self.volumes.push(VolumeEntry::free());
        }
        self.volumes[index] = entry;
        if let Some(cache) = &mut self.cache {
            cache.add_volume(volume, &config);
        }
        Ok(())
    }

    /// The cache of a volume that exists, if that is here.
    fn cache_of(&mut self, volume: VolumeId) -> Result<Option<&mut Cache>, ChangeError> {
        let is_home = self.topology.volume(volume, self.volume(volume))?.home == self.id;
        Ok(self.cache.as_deref_mut().filter(|_| is_home))
    }

    fn set_base(&mut self, volume: VolumeId, base: VolumeId) -> Result<(), ChangeError> {
        let below = self.topology.volume(base, self.volume(base))?;
        let is_elsewhere = self.volume(volume).is_some_and(|config| config.home != below.home);
        if !below.options.read_only || is_elsewhere {
            let message = "a base is read-only, and on the shard of the volume on it";
            return Err(ConfigError::new("base", message).into());
        }
        if let Some(cache) = self.cache_of(volume)? {
            cache.set_base(volume, base).map_err(|why| ConfigError::new("base", why))?;
        }
        Ok(())
    }

    fn remove_volume(&mut self, volume: VolumeId) -> Result<(), ChangeError> {
        let config = self.topology.volume(volume, self.volume(volume))?;
        let device = usize::from(config.device.0);
        if let Some(what) = self.cache.as_ref().and_then(|cache| cache.keeps(volume)) {
            return Err(ChangeError::Busy(what));
        }
        let bios = &self.pools.bios;
        let mut taken = (0..bios.capacity()).filter(|&slot| bios.is_taken(slot));
        if taken.any(|slot| bios[slot].bio.id.volume == volume) {
            return Err(ChangeError::Busy(
                "requests of the volume are in its device or wait for it",
            ));
        }
        if let Some(DeviceRoute::Local(queue)) = self.routes.get(device)
            && queue.is_flushing(volume)
        {
            return Err(ChangeError::Busy("the device has not answered a flush of the volume"));
        }
        if let Some(cache) = &mut self.cache {
            if !cache.drop_some(volume) {
                return Err(ChangeError::Busy("what is cached of the volume is being forgotten"));
            }
            cache.remove_volume(volume);
        }
        if let Some(DeviceRoute::Local(queue)) = self.routes.get_mut(device) {
            queue.remove_volume(volume);
        }
        self.volumes[usize::from(volume.0)] = VolumeEntry::free();
        Ok(())
    }

    fn remove_device(&mut self, device: DeviceId) -> Result<(), ChangeError> {
        let tags = self.topology.device(device)?.queue.nr_requests;
        if self.volumes.iter().any(|entry| entry.config.device == device) {
            return Err(ChangeError::Busy("the device has volumes"));
        }
        let index = usize::from(device.0);
        match &self.routes[index] {
            DeviceRoute::Local(queue) if queue.can_be_removed() => {
                queue.remove(&mut self.pools, tags)
            }
            DeviceRoute::Remote(remote) if remote.can_be_removed() => {
                remote.remove(&mut self.pools)
            }
            _ => return Err(ChangeError::Busy("tags of the device are out")),
        }
        self.routes[index] = DeviceRoute::Unassigned;
        self.topology.remove_device(device);
        if let Some(cache) = &mut self.cache {
            cache.remove_device(device);
        }
        Ok(())
    }
}
