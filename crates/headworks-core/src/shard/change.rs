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
//! Invariants: no table outgrows the size it was allocated with. The tags of the devices and `tags_left` add up to the tags at the
//! start, and are equal on all shards.

use super::{DeviceRoute, NO_SHARD, Shard, VolumeEntry, room_for_actions};
use crate::bio::{DeviceId, VolumeId};
use crate::cache::{Cache, DeviceCaching};
use crate::error::ConfigError;
use crate::options::{
    Change, ChangeError, DeviceConfig, QueueOptions, ShardConfig, VolumeConfig, VolumeOptions,
};
use crate::queue::Queue;
use crate::remote::RemoteQueue;
use crate::shares::ShareChange;
use crate::time::Instant;

/// The devices and exports of a shard, as they are after the last change.
pub(super) struct Topology {
    /// Without the volumes, which the shard keeps. The owner of a free device slot is [`NO_SHARD`].
    config: ShardConfig,
    devices_max: usize,
    volumes_max: usize,
    /// Spare tags that no device has taken yet.
    tags_left: u32,
}

impl Topology {
    /// Takes over the configuration of a new shard; its exports include the spare ones.
    pub fn new(config: ShardConfig, volumes_max: usize) -> Self {
        let (devices_max, tags_left) = (config.devices_max(), config.spare.tags);
        Self {
            config: ShardConfig { volumes: Vec::new(), ..config },
            devices_max,
            volumes_max,
            tags_left,
        }
    }

    /// Takes over a change of shares for devices that are added later.
    pub fn change_shares(&mut self, change: ShareChange) {
        let of = |id: u16| usize::from(id);
        match change {
            ShareChange::ExportWeight(export, weight) => {
                if let Some(known) = self.config.exports.get_mut(of(export.0)) {
                    known.weight = weight;
                }
            }
            ShareChange::ExportTarget(export, target_us) => {
                if let Some(known) = self.config.exports.get_mut(of(export.0)) {
                    known.latency_target_us = target_us;
                }
            }
            ShareChange::ExportTenant(export, tenant) => {
                if let Some(known) = self.config.exports.get_mut(of(export.0)) {
                    known.tenant = tenant;
                }
            }
            ShareChange::TenantWeight(tenant, weight) => {
                if let Some(known) = self.config.tenants.get_mut(of(tenant.0)) {
                    known.weight = weight;
                }
            }
        }
    }

    /// The configuration of a device that exists.
    fn device(&self, device: DeviceId) -> Option<&DeviceConfig> {
        let device = self.config.devices.get(usize::from(device.0))?;
        (device.owner != NO_SHARD).then_some(device)
    }
}

impl VolumeEntry {
    /// Creates the entry of a volume on a device of `config`.
    pub fn new(config: &ShardConfig, volume: VolumeConfig) -> Self {
        let device = &config.devices[usize::from(volume.device.0)];
        let discard_granularity = device.queue.discard_granularity;
        Self { config: volume, discard_granularity, is_void: false }
    }

    /// A free slot for a volume.
    fn free() -> Self {
        let (home, device) = (NO_SHARD, DeviceId(u16::MAX));
        let config = VolumeConfig { home, device, options: VolumeOptions::default() };
        Self { config, discard_granularity: 1, is_void: false }
    }
}

/// Creates the queue, local or remote, of a device of `config` on a shard with `slots` requests.
pub(super) fn route_to(config: &ShardConfig, device: DeviceId, slots: u32) -> DeviceRoute {
    match config.devices[usize::from(device.0)].owner == config.id {
        true => DeviceRoute::Local(Box::new(Queue::new(config, device, slots))),
        false => DeviceRoute::Remote(Box::new(RemoteQueue::new(config, device))),
    }
}

/// The configuration of a free device slot.
fn free_device() -> DeviceConfig {
    DeviceConfig { owner: NO_SHARD, queue: QueueOptions::default() }
}

/// Checks that slot `id` of `slots` is in use (`wanted`) or free.
fn check_slot(
    what: &'static str,
    id: u16,
    slots: usize,
    (in_use, wanted): (bool, bool),
) -> Result<(), ConfigError> {
    let message = match in_use {
        _ if usize::from(id) >= slots => format!("{id} is not one of the {slots} places"),
        false if wanted => format!("there is no {what} {id}"),
        true if !wanted => format!("there is a {what} {id} already"),
        _ => return Ok(()),
    };
    Err(ConfigError::new(what, message))
}

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
        let (index, topology) = (usize::from(device.0), &mut self.topology);
        let in_use = topology.device(device).is_some();
        check_slot("device", device.0, topology.devices_max, (in_use, false))?;
        topology.config.validate_device(&config)?;
        let tags = config.queue.nr_requests;
        let Some(tags_left) = topology.tags_left.checked_sub(tags) else {
            let message =
                format!("{tags} tags are more than the {} that are spare", topology.tags_left);
            return Err(ConfigError::new("nr_requests", message).into());
        };
        topology.tags_left = tags_left;
        while self.routes.len() <= index {
            self.routes.push(DeviceRoute::Unassigned);
            topology.config.devices.push(free_device());
        }
        topology.config.devices[index] = config;
        // The spare tags are `nr_requests`; an elevator that owns shares has more.
        if config.owner == topology.config.id {
            let more = config.queue.tags(topology.config.bios_total()) - tags;
            let spare = more.min(self.pools.spare_slots);
            self.pools.spare_slots -= spare;
            self.pools.slots.grow(more - spare);
        }
        self.routes[index] = route_to(&topology.config, device, self.pools.slots.capacity());
        let (list, segments) = room_for_actions(&topology.config, topology.volumes_max);
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
        let (index, topology) = (usize::from(volume.0), &self.topology);
        let in_use = self.volume(volume).is_some();
        check_slot("volume", volume.0, topology.volumes_max, (in_use, false))?;
        topology.config.validate_volume(&config)?;
        let entry = VolumeEntry::new(&topology.config, config);
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
        let config = self.volume(volume).copied();
        check_slot("volume", volume.0, self.topology.volumes_max, (config.is_some(), true))?;
        let is_home = config.is_some_and(|config| config.home == self.id);
        Ok(self.cache.as_deref_mut().filter(|_| is_home))
    }

    fn set_base(&mut self, volume: VolumeId, base: VolumeId) -> Result<(), ChangeError> {
        let most = self.topology.volumes_max;
        let below = self.volume(base).copied();
        check_slot("volume", base.0, most, (below.is_some(), true))?;
        let home = self.volume(volume).map(|config| config.home);
        let shares = below.is_some_and(|config| {
            config.options.read_only && home.is_none_or(|home| home == config.home)
        });
        if !shares {
            let message = "a base is read-only, and on the shard of the volume on it";
            return Err(ConfigError::new("base", message).into());
        }
        if let Some(cache) = self.cache_of(volume)? {
            cache.set_base(volume, base).map_err(|why| ConfigError::new("base", why))?;
        }
        Ok(())
    }

    fn remove_volume(&mut self, volume: VolumeId) -> Result<(), ChangeError> {
        let config = self.volume(volume).copied();
        check_slot("volume", volume.0, self.topology.volumes_max, (config.is_some(), true))?;
        let device = config.map_or(usize::MAX, |config| usize::from(config.device.0));
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
        let config = self.topology.device(device).copied();
        check_slot("device", device.0, self.topology.devices_max, (config.is_some(), true))?;
        let Some(config) = config else { return Ok(()) };
        if self.volumes.iter().any(|entry| entry.config.device == device) {
            return Err(ChangeError::Busy("the device has volumes"));
        }
        let index = usize::from(device.0);
        let tags = config.queue.nr_requests;
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
        self.topology.config.devices[index] = free_device();
        self.topology.tags_left += tags;
        if let Some(cache) = &mut self.cache {
            cache.remove_device(device);
        }
        Ok(())
    }
}
