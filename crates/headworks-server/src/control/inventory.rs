//! The inventory of devices, volumes and exports: ids in use, and placement of new exports.
//!
//! Images of one filesystem share a device and so its queue; an image that supports less than the queue expects gets a
//! device of its own. A file that is served already is the same volume. A cached volume lives on a shard with a cache.
//!
//! An export that is being added has its name, and its image, before its ids: the image is opened while the lock is not held.
//!
//! Invariant: an id is in use from before the first shard adds it until after the last shard has removed it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use headworks_core::{
    ConfigError, DeviceConfig, DeviceId, ExportId, QueueOptions, ShardConfig, ShardId, Tunable,
    VolumeConfig, VolumeId, WriteMode,
};

use super::exports::{ExportState, Exports};
use crate::exports::assemble::image::{OpenedImage, SharedDeviceKey, VolumeOrigin};
use crate::exports::assemble::{Assembly, ExportSpec, NamedDevice, shown_name};
use crate::spec::Spec;
use headworks_house::Identity;

/// A device in use.
#[derive(Clone, Debug)]
pub struct DeviceEntry {
    pub config: DeviceConfig,
    /// Key by which images join the device; none if none may.
    pub common: Option<SharedDeviceKey>,
    /// Name in the configuration; none for a device that no name was given.
    pub name: Option<String>,
}

/// A volume in use.
#[derive(Clone, Debug)]
pub struct VolumeEntry {
    pub config: VolumeConfig,
    pub origin: VolumeOrigin,
    /// The volume of its base, whose cache it shares.
    pub base: Option<VolumeId>,
    /// Of a volume that is only the base of others: which image it is.
    pub base_key: Option<BaseKey>,
}

/// Which image a shared base is, and where its cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseKey {
    /// The image with its options.
    pub spec: Spec,
    /// The file that has its name now.
    pub identity: Identity,
    /// The shard with the cache.
    pub home: ShardId,
}

impl VolumeEntry {
    /// A volume that exports lead to.
    pub fn new(config: VolumeConfig, origin: VolumeOrigin) -> Self {
        Self { config, origin, base: None, base_key: None }
    }
}

/// An export whose image is being opened.
#[derive(Clone, Debug)]
pub struct Addition {
    /// Name of the export.
    pub name: String,
    /// Identity of its image, as far as there is one.
    pub identity: Option<Identity>,
    /// Path of its image, which may be yet to be created.
    pub path: Option<PathBuf>,
}

impl Addition {
    /// The addition of an export, whose image has this identity.
    pub fn new(spec: &ExportSpec, identity: Option<Identity>) -> Self {
        let path = spec.spec.base.path().map(ToOwned::to_owned);
        Self { name: spec.name.clone(), identity, path }
    }

    /// Whether both are of one image.
    fn is_same_image(&self, other: &Self) -> bool {
        self.identity.is_some() && self.identity == other.identity
            || self.path.is_some() && self.path == other.path
    }
}

/// Limits of the numbers of devices, volumes and exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub devices: usize,
    pub volumes: usize,
    pub exports: usize,
}

/// All devices, volumes and exports of a server.
pub struct Inventory {
    pub devices: BTreeMap<u16, DeviceEntry>,
    pub volumes: BTreeMap<u16, VolumeEntry>,
    pub exports: Arc<Exports>,
    /// Exports that are being added: they have a name and no ids.
    pub adding: Vec<Addition>,
    /// Volumes whose images are being made longer.
    pub resizing: Vec<VolumeId>,
    /// A volume is being put on the volume of its base: no base counts as unused.
    pub is_sharing: bool,
    /// Serial number of the next export.
    pub serial: u64,
    capacity: Capacity,
    shards: u16,
    /// Volumes are spread over all shards, wherever their devices are.
    spread: bool,
    /// Shards with a cache; empty without one.
    caching: Vec<ShardId>,
    /// Options of every queue, as the user set them.
    queue: Vec<(Tunable, u64)>,
}

/// Placement of a new volume.
pub struct Placement {
    pub volume: VolumeId,
    pub config: VolumeConfig,
    /// Options of a new device; none if the volume joins a device.
    pub device: Option<QueueOptions>,
    pub owner: ShardId,
}

impl Inventory {
    /// The inventory that a server starts with.
    pub fn new(
        exports: Arc<Exports>,
        assembly: &Assembly,
        config: &ShardConfig,
        spread: bool,
        caching: Vec<ShardId>,
        queue: Vec<(Tunable, u64)>,
    ) -> Self {
        let names = assembly.named.iter().map(|named| Some(named.as_ref()?.name.clone()));
        let devices = config.devices.iter().zip(&assembly.common).zip(names);
        let volumes = config.volumes.iter().zip(&assembly.origins);
        Self {
            devices: (0..)
                .zip(devices)
                .map(|(id, ((&config, common), name))| {
                    (id, DeviceEntry { config, common: common.clone(), name })
                })
                .collect(),
            volumes: (0..)
                .zip(volumes)
                .map(|(id, (&config, origin))| (id, VolumeEntry::new(config, origin.clone())))
                .collect(),
            exports,
            adding: Vec::new(),
            resizing: Vec::new(),
            is_sharing: false,
            serial: assembly.exports.len() as u64,
            capacity: Capacity {
                devices: config.devices_max(),
                volumes: config.volumes_max(),
                exports: config.exports_max(),
            },
            shards: config.shards,
            spread,
            caching,
            queue,
        }
    }

    /// Name of a device in the configuration.
    pub fn named_device(&self, device: DeviceId) -> Option<String> {
        self.devices.get(&device.0)?.name.clone()
    }

    /// Sets the options of queues of devices without a name that are added later.
    pub fn set_queue(&mut self, queue: Vec<(Tunable, u64)>) {
        self.queue = queue;
    }

    /// Finds a free export id.
    ///
    /// # Errors
    /// All ids are in use.
    pub fn free_export(&self) -> Result<ExportId, ConfigError> {
        free_id(&self.exports.lock(), self.capacity.exports, "exports").map(ExportId)
    }

    /// Finds the volume of a file that is served already.
    pub fn find(&self, identity: Option<Identity>) -> Option<VolumeId> {
        let identity = identity?;
        // What is only a base is closed with the last volume on it.
        let mut volumes = self.volumes.iter().filter(|(_, volume)| volume.base_key.is_none());
        let found = volumes.find(|(_, volume)| volume.origin.identity == Some(identity));
        found.map(|(id, _)| VolumeId(*id))
    }

    /// Finds the volume of a shared base.
    pub fn find_base(&self, key: &BaseKey) -> Option<VolumeId> {
        let is_it = |(_, entry): &(&u16, &VolumeEntry)| entry.base_key.as_ref() == Some(key);
        self.volumes.iter().find(is_it).map(|(id, _)| VolumeId(*id))
    }

    /// Finds a shared base that no volume is on any more.
    pub fn unused_base(&self) -> Option<(VolumeId, VolumeConfig)> {
        if self.is_sharing {
            return None;
        }
        let is_used = |id: u16| self.volumes.values().any(|one| one.base == Some(VolumeId(id)));
        let mut bases = self.volumes.iter().filter(|(_, entry)| entry.base_key.is_some());
        let found = bases.find(|(id, _)| !is_used(**id));
        found.map(|(id, entry)| (VolumeId(*id), entry.config))
    }

    /// Checks whether a further export of a volume may have this specification.
    ///
    /// # Errors
    /// The specification differs from the volume in use.
    pub fn may_share(&self, volume: VolumeId, spec: &ExportSpec) -> Result<(), ConfigError> {
        let Some(VolumeEntry { config, origin, .. }) = self.volumes.get(&volume.0) else {
            return Ok(());
        };
        let (options, what) = (&config.options, &origin.what);
        origin.agree(spec, options.size)?;
        if options.read_only && spec.writes() {
            let message = format!("{what} is served read-only; add it with --read-only");
            return Err(ConfigError::new("read-only", message));
        }
        let common = self.devices.get(&config.device.0).and_then(|record| record.common.as_ref());
        let other =
            |wanted: &&NamedDevice| common != Some(&SharedDeviceKey::Name(wanted.name.clone()));
        if let Some(wanted) = spec.device.as_ref().filter(other) {
            let message =
                format!("{what} is already served by another device than `{}`", wanted.name);
            return Err(ConfigError::new("device", message));
        }
        let share = &spec.share;
        if let Some(mode) = share.mode.filter(|mode| *mode != options.mode) {
            let (now, mode) = (options.mode.name(), mode.name());
            let message = format!(
                "{what} is already served with cache={now}; use the same instead of {mode}"
            );
            return Err(ConfigError::new("cache", message));
        }
        if let Some(policy) = share.on_error.filter(|policy| *policy != options.on_error) {
            let (now, policy) = (options.on_error.name(), policy.name());
            let message = format!(
                "{what} is already served with on-error={now}; use the same instead of {policy}"
            );
            return Err(ConfigError::new("on-error", message));
        }
        let now = origin.caching.strict_blocks.unwrap_or_default();
        if share.strict_blocks.is_some_and(|strict| strict != now) {
            let now = if now { "on" } else { "off" };
            let message =
                format!("{what} is already served with strict-blocks={now}; use the same");
            return Err(ConfigError::new("strict-blocks", message));
        }
        Ok(())
    }

    /// Checks what must hold before an image is opened.
    ///
    /// # Errors
    /// The server has no cache, or all volume ids are in use.
    pub fn may_open(&self, spec: &ExportSpec) -> Result<(), ConfigError> {
        let cached = spec.share.mode.is_some_and(|mode| mode != WriteMode::None);
        if cached && self.caching.is_empty() {
            let message =
                format!("export `{}` needs a cache, but the server runs with --cache 0", spec.name);
            return Err(ConfigError::new("cache", message));
        }
        free_id(&self.volumes, self.capacity.volumes, "volumes").map(drop)
    }

    /// Chooses ids and shards for an opened image.
    ///
    /// # Errors
    /// All ids are in use, or the user's queue options do not suit the device.
    pub fn place(&self, spec: &ExportSpec, opened: &OpenedImage) -> Result<Placement, ConfigError> {
        let volume = free_id(&self.volumes, self.capacity.volumes, "volumes").map(VolumeId)?;
        let mut options = opened.options;
        spec.caching().apply(&spec.spec, &mut options);
        if self.caching.is_empty() {
            options.mode = WriteMode::None;
        }
        options.block_size = spec.caching().smallest_block(options.mode, options.block_size);
        let cached = options.mode != WriteMode::None;
        if let Some((device, owner)) = self.group(spec, opened, cached) {
            let home = self.home(volume, owner, cached);
            let config = VolumeConfig { home, device, options };
            return Ok(Placement { volume, config, device: None, owner });
        }
        let device = free_id(&self.devices, self.capacity.devices, "queues").map(DeviceId)?;
        let mut queue = opened.device_options(&spec.spec);
        let said = spec.device.as_ref().map_or(&self.queue, |device| &device.queue);
        said.iter().try_for_each(|(tunable, value)| tunable.set(&mut queue, *value))?;
        queue.validate()?;
        let owner = self.pick(device.0, cached);
        let config = VolumeConfig { home: self.home(volume, owner, cached), device, options };
        Ok(Placement { volume, config, device: Some(queue), owner })
    }

    /// Finds the device with the same key, if the image may join it.
    fn group(
        &self,
        spec: &ExportSpec,
        opened: &OpenedImage,
        cached: bool,
    ) -> Option<(DeviceId, ShardId)> {
        let common = Some(opened.common(spec)?);
        let suits = |record: &DeviceEntry| {
            record.common == common
                && opened.fits(&record.config.queue)
                && (!cached || self.spread || self.caching.contains(&record.config.owner))
        };
        let found = self.devices.iter().find(|(_, record)| suits(record));
        found.map(|(id, record)| (DeviceId(*id), record.config.owner))
    }

    /// Without `spread` a volume lives with its device, so other shards reserve no room for its requests.
    fn home(&self, volume: VolumeId, owner: ShardId, cached: bool) -> ShardId {
        if self.spread { self.pick(volume.0, cached) } else { owner }
    }

    /// Chooses a shard round-robin, for a cached volume among the shards with a cache.
    fn pick(&self, number: u16, cached: bool) -> ShardId {
        match cached {
            true => self.caching[usize::from(number) % self.caching.len()],
            false => ShardId(number % self.shards),
        }
    }

    /// Whether another volume is on the device of this volume.
    pub fn shares_device(&self, volume: VolumeId) -> bool {
        let device = self.volumes.get(&volume.0).map(|record| record.config.device);
        let mut others = self.volumes.iter().filter(|(id, _)| **id != volume.0);
        others.any(|(_, other)| Some(other.config.device) == device)
    }

    /// The state of the export of a name; finds it as [`Tree::export`](super::tree::Tree::export) does, including exports that are being
    /// removed.
    pub fn state(&self, name: &str) -> Option<ExportState> {
        let all = self.exports.lock();
        let named = || all.values().filter(|record| record.is_named());
        let by = |name: &str| named().find(|record| record.spec.name == name);
        let unnamed = || (name == shown_name("")).then(|| by("")).flatten();
        by(name).or_else(unnamed).map(|record| record.state.clone())
    }

    /// Finds the export that is being added under a name.
    pub fn addition(&self, name: &str) -> Option<&Addition> {
        self.adding.iter().find(|other| shown_name(&other.name) == shown_name(name))
    }

    /// Finds an export that is being added, of the same image as this one.
    pub fn addition_of_image(&self, own: &Addition) -> Option<&Addition> {
        self.adding.iter().find(|other| other.is_same_image(own))
    }

    /// Whether every export of a volume is being removed.
    pub fn is_leaving(&self, volume: VolumeId) -> bool {
        let all = self.exports.lock();
        let mut own = all.values().filter(|record| record.volume == volume);
        own.all(|record| !matches!(record.state, ExportState::Serving))
    }

    /// Whether a volume is that of exports which were given up, and of no other.
    pub fn is_abandoned(&self, volume: VolumeId) -> bool {
        let all = self.exports.lock();
        let mut own = all.values().filter(|record| record.volume == volume).peekable();
        own.peek().is_some() && own.all(|record| matches!(record.state, ExportState::Abandoned))
    }

    /// Whether another export has the same volume.
    pub fn shares_volume(&self, export: ExportId) -> bool {
        let all = self.exports.lock();
        let volume = all.get(&export.0).map(|record| record.volume);
        let mut others = all.iter().filter(|(id, _)| **id != export.0);
        others.any(|(_, other)| Some(other.volume) == volume)
    }
}

/// Finds the lowest free id.
fn free_id<T>(taken: &BTreeMap<u16, T>, capacity: usize, what: &str) -> Result<u16, ConfigError> {
    let first = (0..).zip(taken.keys()).find(|(place, key)| place != *key);
    let place = first.map_or(taken.len() as u16, |(place, _)| place);
    if usize::from(place) < capacity {
        return Ok(place);
    }
    let message = match capacity == taken.len() && capacity > 0 {
        true => format!("the limit of {capacity} {what} is reached; remove an export first"),
        false => format!("the server has no spare {what}; start it with --control or --config"),
    };
    Err(ConfigError::new(PLACES, message))
}

/// Option name in errors about ids in use.
pub const PLACES: &str = "places";
