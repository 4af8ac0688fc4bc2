//! Which devices and exports there are after the last change, and whether another one may be added.
//!
//! Invariants: the tags of the devices and `tags_left` add up to the tags at the start, and are equal on all shards; a device is
//! added or removed as a whole, and a refused one changes nothing.

use super::route::NO_SHARD;
use crate::bio::{DeviceId, VolumeId};
use crate::error::ConfigError;
use crate::options::{DeviceConfig, QueueOptions, ShardConfig, VolumeConfig};
use crate::shares::ShareChange;

/// The configuration of a free device slot.
fn free_device() -> DeviceConfig {
    DeviceConfig { owner: NO_SHARD, queue: QueueOptions::default() }
}

/// The error of a slot of `slots` that is in use and is to be free, or the other way.
fn refusal(what: &'static str, id: u16, slots: usize, in_use: bool) -> ConfigError {
    let message = match in_use {
        _ if usize::from(id) >= slots => format!("{id} is not one of the {slots} places"),
        true => format!("there is a {what} {id} already"),
        false => format!("there is no {what} {id}"),
    };
    ConfigError::new(what, message)
}

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
    /// Keeps the configuration of a new shard; its exports include the spare ones.
    pub fn new(config: &ShardConfig) -> Self {
        Self {
            devices_max: config.devices_max(),
            volumes_max: config.volumes_max(),
            tags_left: config.spare.tags,
            config: ShardConfig { volumes: Vec::new(), ..config.clone() },
        }
    }

    /// Most actions and segments of one batch.
    ///
    /// A bio causes at most two replies (early and released). A command that is sent in a batch completes in a later one, so a
    /// device is sent at most its queue depth, and each of those commands may time out.
    pub fn room_for_actions(&self) -> (usize, usize) {
        let config = &self.config;
        let bios = config.bios_total() as usize;
        let (mut list, mut segments) = (2 * bios + self.volumes_max + 256, 0);
        for device in config.devices.iter().filter(|device| device.owner == config.id) {
            let queue = &device.queue;
            let commands = queue.queue_depth as usize;
            list += 2 * commands;
            // At most what the limits allow, and one for each end of a bio and each full segment.
            let full = queue.max_bytes().div_ceil(queue.max_segment_size) as usize;
            segments += (commands * usize::from(queue.max_segments)).min(bios + commands * full);
        }
        if config.cache.is_on() {
            // Copies of one turn, even block by block.
            let copies = 4 * config.cache.bios() as usize + 16_384;
            // With a dirty table, an entry for each.
            list += if config.cache.dirty_table { 2 * copies } else { copies };
        }
        (list, segments)
    }

    /// The configuration without the volumes.
    pub fn config(&self) -> &ShardConfig {
        &self.config
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
    pub fn device(&self, device: DeviceId) -> Result<DeviceConfig, ConfigError> {
        let found = self.config.devices.get(usize::from(device.0));
        let found = found.filter(|found| found.owner != NO_SHARD);
        found.copied().ok_or_else(|| refusal("device", device.0, self.devices_max, false))
    }

    /// Adds a device to a free slot, with `nr_requests` of the spare tags.
    pub fn add_device(
        &mut self,
        device: DeviceId,
        config: DeviceConfig,
    ) -> Result<(), ConfigError> {
        let index = usize::from(device.0);
        if index >= self.devices_max || self.device(device).is_ok() {
            return Err(refusal("device", device.0, self.devices_max, true));
        }
        self.config.validate_device(&config)?;
        let (tags, left) = (config.queue.nr_requests, self.tags_left);
        let Some(tags_left) = left.checked_sub(tags) else {
            let message = format!("{tags} tags are more than the {left} that are spare");
            return Err(ConfigError::new("nr_requests", message));
        };
        self.tags_left = tags_left;
        while self.config.devices.len() <= index {
            self.config.devices.push(free_device());
        }
        self.config.devices[index] = config;
        Ok(())
    }

    /// Removes a device, whose tags are spare from now on.
    pub fn remove_device(&mut self, device: DeviceId) {
        let removed = &mut self.config.devices[usize::from(device.0)];
        self.tags_left += std::mem::replace(removed, free_device()).queue.nr_requests;
    }

    /// The configuration of a volume, which is `found` if it exists.
    pub fn volume(
        &self,
        volume: VolumeId,
        found: Option<&VolumeConfig>,
    ) -> Result<VolumeConfig, ConfigError> {
        found.copied().ok_or_else(|| refusal("volume", volume.0, self.volumes_max, false))
    }

    /// Checks a volume that is to be added to a slot, which is free unless it is `in_use`.
    pub fn check_volume(
        &self,
        volume: VolumeId,
        in_use: bool,
        config: &VolumeConfig,
    ) -> Result<(), ConfigError> {
        if usize::from(volume.0) >= self.volumes_max || in_use {
            return Err(refusal("volume", volume.0, self.volumes_max, true));
        }
        self.config.validate_volume(config)
    }
}
