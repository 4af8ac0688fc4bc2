//! Devices and volumes join and leave while the shard runs.
//!
//! Decides what may: a place is taken once, a volume leaves when nothing of it is on its way, dirty or held, a device when it has
//! no volumes and no tag is out. Whoever is refused finds everything as it was, but that less may be cached of a volume.
//!
//! ```text
//!             AddDevice         AddVolume, on it
//!   vacant ------------> device ---------------> device with volumes
//!      ^                 |    ^                    |
//!      '-- RemoveDevice -'    '-- RemoveVolume ----'      Busy while something of it is used
//! ```
//!
//! Shards hear of a change at different times. A bio for what is vacant is answered `Invalid`, from a client or from another
//! shard; other messages for it say nothing. What one shard had said of the place before cannot reach who uses it anew: a volume
//! leaves its home when all its bios have come back, a lessee its device when no tag or grant is out, and options that were on
//! their way are followed by the new ones, or are not the owner's.
//!
//! Invariant: what was sized at the start is never outgrown. Tags are what it was sized for, so they are counted: every shard
//! takes those of all devices from the same stock, and so all shards agree.

use super::{DeviceRoute, NO_SHARD, Shard, VolumeEntry, room_for_actions};
use crate::bio::{DeviceId, ExportId, VolumeId};
use crate::cache::DeviceCaching;
use crate::error::ConfigError;
use crate::options::{
    Change, ChangeError, DeviceConfig, QueueOptions, ShardConfig, VolumeConfig, VolumeOptions,
};
use crate::queue::Queue;
use crate::remote::RemoteQueue;
use crate::time::Instant;

/// What the shard is made from now.
pub(super) struct Topology {
    /// Without the volumes, which are the shard's to keep; a vacant device is owned by nobody.
    config: ShardConfig,
    devices_max: usize,
    volumes_max: usize,
    /// Tags that devices may still bring.
    tags_left: u32,
}

impl Topology {
    /// Of a shard of `config`, whose exports include the spare ones.
    pub fn new(config: ShardConfig, volumes_max: usize) -> Self {
        let (devices_max, tags_left) = (config.devices_max(), config.spare.tags);
        Self {
            config: ShardConfig { volumes: Vec::new(), ..config },
            devices_max,
            volumes_max,
            tags_left,
        }
    }

    /// An export has another weight, also for devices that come later.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        if let Some(known) = self.config.exports.get_mut(usize::from(export.0)) {
            known.weight = weight;
        }
    }

    fn device(&self, device: DeviceId) -> Option<&DeviceConfig> {
        let device = self.config.devices.get(usize::from(device.0))?;
        (device.owner != NO_SHARD).then_some(device)
    }
}

impl VolumeEntry {
    /// A volume on a device of `config`.
    pub fn new(config: &ShardConfig, volume: VolumeConfig) -> Self {
        let device = &config.devices[usize::from(volume.device.0)];
        Self { config: volume, discard_granularity: device.queue.discard_granularity }
    }

    fn vacant() -> Self {
        let (home, device) = (NO_SHARD, DeviceId(u16::MAX));
        let config = VolumeConfig { home, device, options: VolumeOptions::default() };
        Self { config, discard_granularity: 1 }
    }
}

/// The route to a device of `config`, on a shard with so many slots.
pub(super) fn route_to(config: &ShardConfig, device: DeviceId, slots: u32) -> DeviceRoute {
    match config.devices[usize::from(device.0)].owner == config.id {
        true => DeviceRoute::Local(Box::new(Queue::new(config, device, slots))),
        false => DeviceRoute::Remote(Box::new(RemoteQueue::new(config, device))),
    }
}

fn vacant_device() -> DeviceConfig {
    DeviceConfig { owner: NO_SHARD, queue: QueueOptions::default() }
}

/// The place is beyond what there is room for, or not as vacant as it should be.
fn check_place(
    what: &'static str,
    place: u16,
    places: usize,
    (is, should_be): (bool, bool),
) -> Result<(), ConfigError> {
    let message = match is {
        _ if usize::from(place) >= places => format!("{place} is not one of the {places} places"),
        false if should_be => format!("there is no {what} {place}"),
        true if !should_be => format!("there is a {what} {place} already"),
        _ => return Ok(()),
    };
    Err(ConfigError::new(what, message))
}

impl Shard {
    /// Makes a change, between two batches: after the actions of the last one were carried out and cleared. What it makes the
    /// shard do is among the actions of the next [`Shard::handle`], which may have no inputs and should follow soon.
    ///
    /// Every shard is told of every change, in this order:
    ///
    /// - `AddDevice`, then `AddVolume`: the owner of the device first, then the others, each change everywhere before the next.
    ///   A bio may come and an option of the device may be set when all have agreed.
    /// - `RemoveVolume`: the shard where it lives first, until it agrees; from then on its bios are answered
    ///   [`IoError::Invalid`](crate::IoError::Invalid). Then the owner of its device, until it agrees, then the others.
    /// - `RemoveDevice`: the owner last, each until it agrees. (An idle lease goes home after some milliseconds.)
    ///
    /// The place of what was removed may be used again as soon as all have agreed.
    ///
    /// # Errors
    /// [`ChangeError::Busy`]: something of it is on its way, dirty or (too much to forget in one turn) cached here; ask again
    /// later. [`ChangeError::Invalid`]: it cannot be (the place is taken, or vacant; no spare tags are left; a number is out of its
    /// range). Nothing was changed.
    pub fn change(&mut self, _now: Instant, change: &Change) -> Result<(), ChangeError> {
        match *change {
            Change::AddDevice { device, config } => self.add_device(device, config),
            Change::AddVolume { volume, config } => self.add_volume(volume, config),
            Change::RemoveVolume { volume } => self.remove_volume(volume),
            Change::RemoveDevice { device } => self.remove_device(device),
        }
    }

    fn add_device(&mut self, device: DeviceId, config: DeviceConfig) -> Result<(), ChangeError> {
        let (index, topology) = (usize::from(device.0), &mut self.topology);
        let is = topology.device(device).is_some();
        check_place("device", device.0, topology.devices_max, (is, false))?;
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
            topology.config.devices.push(vacant_device());
        }
        topology.config.devices[index] = config;
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
        let is = self.volume(volume).is_some();
        check_place("volume", volume.0, topology.volumes_max, (is, false))?;
        topology.config.validate_volume(&config)?;
        let place = VolumeEntry::new(&topology.config, config);
        let block_size = config.options.block_size;
        if let DeviceRoute::Local(queue) = &mut self.routes[usize::from(config.device.0)] {
            // What it changes to was found right for the volumes that it has.
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
            self.volumes.push(VolumeEntry::vacant());
        }
        self.volumes[index] = place;
        if let Some(cache) = &mut self.cache {
            cache.add_volume(volume, &config);
        }
        Ok(())
    }

    fn remove_volume(&mut self, volume: VolumeId) -> Result<(), ChangeError> {
        let config = self.volume(volume).copied();
        check_place("volume", volume.0, self.topology.volumes_max, (config.is_some(), true))?;
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
        self.volumes[usize::from(volume.0)] = VolumeEntry::vacant();
        Ok(())
    }

    fn remove_device(&mut self, device: DeviceId) -> Result<(), ChangeError> {
        let config = self.topology.device(device).copied();
        check_place("device", device.0, self.topology.devices_max, (config.is_some(), true))?;
        let Some(config) = config else { return Ok(()) };
        if self.volumes.iter().any(|place| place.config.device == device) {
            return Err(ChangeError::Busy("the device has volumes"));
        }
        let index = usize::from(device.0);
        let tags = config.queue.nr_requests;
        match &self.routes[index] {
            DeviceRoute::Local(queue) if queue.can_be_removed() => {
                queue.remove(&mut self.pools, tags)
            }
            DeviceRoute::Remote(remote) if remote.may_leave() => remote.leave(&mut self.pools),
            _ => return Err(ChangeError::Busy("tags of the device are out")),
        }
        self.routes[index] = DeviceRoute::Unassigned;
        self.topology.config.devices[index] = vacant_device();
        self.topology.tags_left += tags;
        if let Some(cache) = &mut self.cache {
            cache.remove_device(device);
        }
        Ok(())
    }
}
