//! What is served and what may still be: which places are taken, by what, and where the next export goes.
//!
//! Images of one filesystem share a device, and so its queue, as at the start; an image that can do less than the queue expects
//! gets a device of its own. A file that is served already is the same volume. A cached volume lives where a cache is.
//!
//! Invariant: an id is taken from before the first shard hears of it until after the last has forgotten it.

use std::collections::BTreeMap;

use headworks_core::{
    ConfigError, DeviceConfig, DeviceId, ExportId, QueueOptions, ShardConfig, ShardId, Tunable,
    VolumeConfig, VolumeId, WriteMode,
};

use super::changes::removal::RemovalSteps;
use crate::assemble::image::{OpenedImage, SharedDeviceKey, VolumeOrigin};
use crate::assemble::{Assembly, ExportSpec, NamedDevice, shown_name};

/// A device that is there.
#[derive(Clone, Debug)]
pub struct DeviceEntry {
    pub config: DeviceConfig,
    /// Why images may join it.
    pub common: Option<SharedDeviceKey>,
}

/// A volume that is there.
#[derive(Clone, Debug)]
pub struct VolumeEntry {
    pub config: VolumeConfig,
    pub origin: VolumeOrigin,
}

/// An export that is there.
#[derive(Clone, Debug)]
pub struct ExportEntry {
    pub volume: VolumeId,
    /// What was asked for.
    pub spec: ExportSpec,
    /// How far it is on its way out.
    pub presence: ExportState,
}

/// How far an export is on its way out.
///
/// ```text
///   Serving --remove--> Leaving --all shards have forgotten it--> gone
///      ^                 |  |  ^
///      '-- it cannot go -'  v  | remove, again
///                         Stuck    some shards have forgotten it, another does not get to it
/// ```
#[derive(Clone, Debug, Default)]
pub enum ExportState {
    /// It serves.
    #[default]
    Serving,
    /// Somebody removes it, and has no need of the lock while its clients leave and it is written out.
    Leaving,
    /// It serves no more, and its places stay taken.
    Stuck(RemovalSteps),
}

/// How many there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub devices: usize,
    pub volumes: usize,
    pub exports: usize,
}

/// All of it.
pub struct Inventory {
    pub devices: BTreeMap<u16, DeviceEntry>,
    pub volumes: BTreeMap<u16, VolumeEntry>,
    pub exports: BTreeMap<u16, ExportEntry>,
    /// Of the next export.
    pub serial: u64,
    places: Capacity,
    shards: u16,
    /// Volumes go to all shards, wherever their devices are.
    spread: bool,
    /// The shards that cache; none: nobody does.
    caching: Vec<ShardId>,
    /// Options of every queue, as the user set them.
    queue: Vec<(Tunable, u64)>,
}

/// Where a new volume goes.
pub struct Placement {
    pub volume: VolumeId,
    pub config: VolumeConfig,
    /// It needs a device of its own.
    pub device: Option<QueueOptions>,
    pub owner: ShardId,
}

impl Inventory {
    /// What a server starts with.
    pub fn new(
        assembly: &Assembly,
        config: &ShardConfig,
        spread: bool,
        caching: Vec<ShardId>,
        queue: Vec<(Tunable, u64)>,
    ) -> Self {
        let devices = config.devices.iter().zip(&assembly.common);
        let volumes = config.volumes.iter().zip(&assembly.origins);
        let exports = assembly.exports.iter();
        Self {
            devices: (0..)
                .zip(devices)
                .map(|(id, (&config, common))| (id, DeviceEntry { config, common: common.clone() }))
                .collect(),
            volumes: (0..)
                .zip(volumes)
                .map(|(id, (&config, origin))| (id, VolumeEntry { config, origin: origin.clone() }))
                .collect(),
            exports: (0..)
                .zip(exports)
                .map(|(id, export)| {
                    let spec = export.spec.clone();
                    let presence = ExportState::Serving;
                    (id, ExportEntry { volume: export.volume, spec, presence })
                })
                .collect(),
            serial: assembly.exports.len() as u64,
            places: Capacity {
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

    /// A vacant place for an export.
    ///
    /// # Errors
    /// There is none.
    pub fn free_export(&self) -> Result<ExportId, ConfigError> {
        vacant(&self.exports, self.places.exports, "exports").map(ExportId)
    }

    /// The volume of a file that is served already.
    pub fn find(&self, spec: &ExportSpec) -> Option<VolumeId> {
        let identity = spec.identity()?;
        let mut volumes = self.volumes.iter();
        let found = volumes.find(|(_, volume)| volume.origin.identity == Some(identity));
        found.map(|(id, _)| VolumeId(*id))
    }

    /// Whether one more export of a volume can be as `spec` says.
    ///
    /// # Errors
    /// It differs from what is served.
    pub fn may_share(&self, volume: VolumeId, spec: &ExportSpec) -> Result<(), ConfigError> {
        let Some(VolumeEntry { config, origin }) = self.volumes.get(&volume.0) else {
            return Ok(());
        };
        let (options, what) = (&config.options, &origin.what);
        origin.agree(spec, options.size)?;
        if options.read_only && spec.writes() {
            let message = format!("{what} is served read-only; add it with --read-only");
            return Err(ConfigError::new("read-only", message));
        }
        let common = self.devices.get(&config.device.0).and_then(|holding| holding.common.as_ref());
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
        Ok(())
    }

    /// What must hold before anything is opened.
    ///
    /// # Errors
    /// A cache that is not there, or no place.
    pub fn may_open(&self, spec: &ExportSpec) -> Result<(), ConfigError> {
        let cached = spec.share.mode.is_some_and(|mode| mode != WriteMode::None);
        if cached && self.caching.is_empty() {
            let message =
                format!("export `{}` needs a cache, but the server runs with --cache 0", spec.name);
            return Err(ConfigError::new("cache", message));
        }
        vacant(&self.volumes, self.places.volumes, "volumes").map(drop)
    }

    /// Finds a place for what was opened.
    ///
    /// # Errors
    /// There is none, or the user's queue options do not suit the device.
    pub fn site(&self, spec: &ExportSpec, opened: &OpenedImage) -> Result<Placement, ConfigError> {
        let volume = vacant(&self.volumes, self.places.volumes, "volumes").map(VolumeId)?;
        let mut options = opened.options;
        spec.caching().apply(&spec.spec, &mut options);
        if self.caching.is_empty() {
            options.mode = WriteMode::None;
        }
        let cached = options.mode != WriteMode::None;
        if let Some((device, owner)) = self.group(spec, opened, cached) {
            let home = self.home(volume, owner, cached);
            let config = VolumeConfig { home, device, options };
            return Ok(Placement { volume, config, device: None, owner });
        }
        let device = vacant(&self.devices, self.places.devices, "queues").map(DeviceId)?;
        let mut queue = opened.device_options(&spec.spec);
        let said = spec.device.as_ref().map_or(&self.queue, |device| &device.queue);
        said.iter().try_for_each(|(tunable, value)| tunable.set(&mut queue, *value))?;
        queue.validate()?;
        let owner = self.pick(device.0, cached);
        let config = VolumeConfig { home: self.home(volume, owner, cached), device, options };
        Ok(Placement { volume, config, device: Some(queue), owner })
    }

    /// The device that images of this filesystem or of this name share, if this one may join it.
    fn group(
        &self,
        spec: &ExportSpec,
        opened: &OpenedImage,
        cached: bool,
    ) -> Option<(DeviceId, ShardId)> {
        let common = Some(opened.common(spec)?);
        let suits = |holding: &DeviceEntry| {
            holding.common == common
                && opened.fits(&holding.config.queue)
                && (!cached || self.spread || self.caching.contains(&holding.config.owner))
        };
        let found = self.devices.iter().find(|(_, holding)| suits(holding));
        found.map(|(id, holding)| (DeviceId(*id), holding.config.owner))
    }

    /// Without `spread`, where its device is: only then do other shards need no room for its requests.
    fn home(&self, volume: VolumeId, owner: ShardId, cached: bool) -> ShardId {
        if self.spread { self.pick(volume.0, cached) } else { owner }
    }

    /// In turn, among those that can.
    fn pick(&self, number: u16, cached: bool) -> ShardId {
        match cached {
            true => self.caching[usize::from(number) % self.caching.len()],
            false => ShardId(number % self.shards),
        }
    }

    /// Whether anything else is on the device of a volume.
    pub fn shares_device(&self, volume: VolumeId) -> bool {
        let device = self.volumes.get(&volume.0).map(|holding| holding.config.device);
        let mut others = self.volumes.iter().filter(|(id, _)| **id != volume.0);
        others.any(|(_, other)| Some(other.config.device) == device)
    }

    /// The export of that name, as [`Tree::export`](super::tree::Tree::export) finds it, and also one that is leaving.
    pub fn export(&self, name: &str) -> Option<(ExportId, &ExportEntry)> {
        let by = |name: &str| self.exports.iter().find(|(_, holding)| holding.spec.name == name);
        let unnamed = || (name == shown_name("")).then(|| by("")).flatten();
        by(name).or_else(unnamed).map(|(id, holding)| (ExportId(*id), holding))
    }

    /// Whether a volume is about to go with the last of its exports.
    pub fn is_leaving(&self, volume: VolumeId) -> bool {
        let mut own = self.exports.values().filter(|holding| holding.volume == volume);
        own.all(|holding| !matches!(holding.presence, ExportState::Serving))
    }

    /// Whether another export has the same volume.
    pub fn shares_volume(&self, export: ExportId) -> bool {
        let volume = self.exports.get(&export.0).map(|holding| holding.volume);
        let mut others = self.exports.iter().filter(|(id, _)| **id != export.0);
        others.any(|(_, other)| Some(other.volume) == volume)
    }
}

/// The first place that is not taken.
fn vacant<T>(taken: &BTreeMap<u16, T>, places: usize, what: &str) -> Result<u16, ConfigError> {
    let first = (0..).zip(taken.keys()).find(|(place, key)| place != *key);
    let place = first.map_or(taken.len() as u16, |(place, _)| place);
    if usize::from(place) < places {
        return Ok(place);
    }
    let message = match places == taken.len() && places > 0 {
        true => format!("the limit of {places} {what} is reached; remove an export first"),
        false => format!("the server has no spare {what}; start it with --control or --config"),
    };
    Err(ConfigError::new(PLACES, message))
}

/// The option that errors about places name.
pub const PLACES: &str = "places";
