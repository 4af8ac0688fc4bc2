//! The configuration of a shard: devices, volumes, exports, and the shards that they belong to.

use crate::bio::{DeviceId, ShardId, TenantId, VolumeId};
use crate::error::ConfigError;

use super::{CacheOptions, ErrorPolicy, QueueOptions, Tunable, WriteMode};
use crate::writeback::DirtyOptions;

/// The largest volume that can be cached, in bytes: 1 EiB, as many blocks of 4 KiB as a folio's key can name.
pub const VOLUME_BYTES_MAX: u64 = 1 << 60;

/// Most devices of a configuration: a shard keeps a bit for each.
pub const DEVICES_MAX: usize = 64;

/// Most tenants of a server. Every queue has a place for each from the start.
pub const TENANTS_MAX: usize = 1024;

/// The options of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Size of the volume in bytes.
    pub size: u64,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Granularity of offsets and lengths in bytes, a power of two. Without a cache it is the file's direct-I/O alignment.
    pub block_size: u32,
    /// When a cached write is acknowledged.
    pub mode: WriteMode,
    /// What happens to a block whose write-out failed.
    pub on_error: ErrorPolicy,
}

impl VolumeOptions {
    /// The largest size: less for a cached volume than for an uncached one.
    #[must_use]
    pub const fn size_max(&self) -> u64 {
        match self.mode {
            WriteMode::None => i64::MAX as u64,
            _ => VOLUME_BYTES_MAX,
        }
    }
}

/// The owner and queue of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The shard that owns its queue.
    pub owner: ShardId,
    /// Options of its queue.
    pub queue: QueueOptions,
}

/// The home, device and options of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The shard that it lives on: by default the owner of its device.
    pub home: ShardId,
    /// The device that holds its bytes.
    pub device: DeviceId,
    /// Options of the volume.
    pub options: VolumeOptions,
}

/// An export: a name under which clients reach a volume, and their share of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Weight among competing exports of its tenant, 1..=10000. 100: the default of cgroups' `io.weight`.
    pub weight: u16,
    /// The tenant whose share it uses, or [`TenantId::NONE`]: then it competes with the tenants.
    pub tenant: TenantId,
    /// Its latency target in microseconds, 0 for none: see [`crate::latency_target`].
    pub latency_target_us: u32,
    /// Most blocks of 4 KiB that are dirty or under write-out for it on this shard, at least 1; `u32::MAX` for no cap.
    pub dirty_max: u32,
}

impl Default for ExportConfig {
    fn default() -> Self {
        Self { weight: 100, tenant: TenantId::NONE, latency_target_us: 0, dirty_max: u32::MAX }
    }
}

impl ExportConfig {
    /// The range of weights.
    pub const WEIGHTS: std::ops::RangeInclusive<u16> = 1..=10_000;

    /// Checks every value.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub fn validate(&self) -> Result<(), ConfigError> {
        validate_weight(self.weight)?;
        if self.dirty_max == 0 {
            return Err(ConfigError::new("dirty", NO_BLOCKS));
        }
        if !self.tenant.is_none() && usize::from(self.tenant.0) >= TENANTS_MAX {
            return Err(ConfigError::new("tenant", "an export names a tenant that is not there"));
        }
        Ok(())
    }
}

const NO_BLOCKS: &str = "a cap or a maximum of 0 blocks";

fn validate_weight(weight: u16) -> Result<(), ConfigError> {
    if ExportConfig::WEIGHTS.contains(&weight) {
        return Ok(());
    }
    Err(ConfigError::new("weight", format!("{weight} is not within 1..=10000")))
}

/// A tenant: a share of every device, which its exports divide by their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantConfig {
    /// Weight among other tenants and exports without one, 1..=10000.
    pub weight: u16,
    /// Its part of this shard's page cache.
    pub memory: TenantMemory,
}

impl Default for TenantConfig {
    fn default() -> Self {
        Self { weight: ExportConfig::default().weight, memory: TenantMemory::default() }
    }
}

impl TenantConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub fn validate(&self) -> Result<(), ConfigError> {
        validate_weight(self.weight)?;
        match self.memory.dirty_max == 0 || self.memory.cache_max == 0 {
            true => Err(ConfigError::new("dirty", NO_BLOCKS)),
            false => Ok(()),
        }
    }
}

/// A tenant's part of the page cache of a shard, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantMemory {
    /// Most blocks that are dirty or under write-out for its exports, at least 1; `u32::MAX` for no cap.
    pub dirty_max: u32,
    /// Blocks that others do not evict; 0 for none.
    pub cache_min: u32,
    /// Blocks beyond which it evicts its own, at least 1; `u32::MAX` for no maximum.
    pub cache_max: u32,
}

impl Default for TenantMemory {
    fn default() -> Self {
        Self { dirty_max: u32::MAX, cache_min: 0, cache_max: u32::MAX }
    }
}

impl TenantMemory {
    /// The cap of dirty blocks that is in force: at most half of the maximum, so that something can be evicted.
    #[must_use]
    pub fn dirty_cap(&self) -> u32 {
        match self.cache_max {
            u32::MAX => self.dirty_max,
            most => self.dirty_max.min((most / 2).max(1)),
        }
    }
}

/// Free slots at the start of a shard, for hot-add by [`crate::Change`]. All tables are sized for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpareSlots {
    /// Devices; with those of the configuration at most [`DEVICES_MAX`].
    pub devices: u16,
    /// Volumes; with those of the configuration at most 4096.
    pub volumes: u16,
    /// Exports; with those of the configuration at most 4096. They have the default weight until another is set.
    pub exports: u16,
    /// Tags of all added devices together, at most 1M. The tags of a removed device can be used again.
    pub tags: u32,
}

/// The configuration of a shard. All shards of a server have the same topology and each its own `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// The id of this shard.
    pub id: ShardId,
    /// Number of shards, 1..=64.
    pub shards: u16,
    /// Most outstanding bios, those of other shards on its devices included, 1..=1M. One more is answered `NoMemory`; frontends
    /// stop reading before.
    pub bios_max: u32,
    /// Every device, indexed by [`DeviceId`], at most [`DEVICES_MAX`].
    pub devices: Vec<DeviceConfig>,
    /// Every volume, indexed by [`VolumeId`], at most 4096.
    pub volumes: Vec<VolumeConfig>,
    /// Every export, indexed by [`crate::ExportId`], at most 4096; a bio of an unknown export has the default weight.
    pub exports: Vec<ExportConfig>,
    /// Every tenant, indexed by [`TenantId`], at most [`TENANTS_MAX`]; one that is not listed has the default weight.
    pub tenants: Vec<TenantConfig>,
    /// Options of this shard's page cache.
    pub cache: CacheOptions,
    /// Limits of dirty data and throttling of writers.
    pub dirty: DirtyOptions,
    /// Free slots for hot-add.
    pub spare: SpareSlots,
}

impl ShardConfig {
    /// Checks the whole configuration.
    ///
    /// # Errors
    /// The first invalid value, with what is accepted.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.shards == 0 || self.shards > 64 || self.id.0 >= self.shards {
            return Err(ConfigError::new(
                "shards",
                format!("{} is not within 1..=64", self.shards),
            ));
        }
        if self.bios_max == 0 || self.bios_max > 1 << 20 {
            return Err(ConfigError::new(
                "bios_max",
                format!("{} is not within 1..={}", self.bios_max, 1 << 20),
            ));
        }
        self.cache.validate()?;
        self.dirty.validate()?;
        if self.devices_max() > DEVICES_MAX {
            let message = format!("more than {DEVICES_MAX} devices");
            return Err(ConfigError::new("devices", message));
        }
        if self.volumes_max() > 4096 {
            return Err(ConfigError::new("volumes", "more than 4096 volumes"));
        }
        if self.exports_max() > 4096 {
            return Err(ConfigError::new("exports", "more than 4096 exports"));
        }
        if self.spare.tags > 1 << 20 {
            return Err(ConfigError::new("tags", "more than 1048576 spare tags"));
        }
        if self.tenants.len() > TENANTS_MAX {
            return Err(ConfigError::new("tenants", format!("more than {TENANTS_MAX} tenants")));
        }
        self.exports.iter().try_for_each(ExportConfig::validate)?;
        self.tenants.iter().try_for_each(TenantConfig::validate)?;
        self.devices.iter().try_for_each(|device| self.validate_device(device))?;
        self.volumes.iter().try_for_each(|volume| self.validate_volume(volume))
    }

    pub(crate) fn validate_device(&self, device: &DeviceConfig) -> Result<(), ConfigError> {
        if device.owner.0 >= self.shards {
            let message = "a device is owned by a shard that is not there";
            return Err(ConfigError::new("owner", message));
        }
        device.queue.validate()
    }

    pub(crate) fn validate_volume(&self, volume: &VolumeConfig) -> Result<(), ConfigError> {
        if volume.home.0 >= self.shards {
            return Err(ConfigError::new("home", "a volume lives on a shard that is not there"));
        }
        let device = self.devices.get(usize::from(volume.device.0));
        let Some(device) = device.filter(|device| device.owner.0 < self.shards) else {
            return Err(ConfigError::new("device", "a volume names a device that is not there"));
        };
        let block = volume.options.block_size;
        if !block.is_power_of_two() || block > device.queue.max_bytes() {
            return Err(ConfigError::new(
                "block_size",
                format!("{block} is not a power of two up to max_sectors_kb"),
            ));
        }
        if !volume.options.size.is_multiple_of(u64::from(block)) {
            return Err(ConfigError::new(
                "size",
                format!("{} is not a multiple of the block size {block}", volume.options.size),
            ));
        }
        if volume.options.size > i64::MAX as u64 {
            return Err(ConfigError::new("size", "more than 8 EiB"));
        }
        if volume.options.size > volume.options.size_max() {
            let message = "a volume that is cached has at most 1 EiB; cache=none serves more";
            return Err(ConfigError::new("size", message));
        }
        Ok(())
    }

    /// A single shard with one device and one volume.
    #[must_use]
    pub fn single(queue: QueueOptions, volume: VolumeOptions, bios_max: u32) -> Self {
        Self {
            id: ShardId(0),
            shards: 1,
            bios_max,
            devices: vec![DeviceConfig { owner: ShardId(0), queue }],
            volumes: vec![VolumeConfig { home: ShardId(0), device: DeviceId(0), options: volume }],
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            dirty: DirtyOptions::default(),
            spare: SpareSlots::default(),
        }
    }

    /// The configuration as lines of numbers, for the head of a record.
    #[must_use]
    pub fn to_lines(&self) -> String {
        let mut text = format!("shard {} {} {} 0\n", self.id.0, self.shards, self.bios_max);
        let c = &self.cache;
        text +=
            &format!("cache {} {} {} {}", c.units, c.writers_max, c.flush_timeout_ns, c.account);
        // Left out when off, as in the records of versions that had no dirty table, and no bound of what may be dirty.
        text += &match (c.dirty_table, c.dirtyable_max, c.backed) {
            (false, u32::MAX, u32::MAX) => "\n".to_owned(),
            (true, u32::MAX, u32::MAX) => " 1\n".to_owned(),
            (table, most, u32::MAX) => format!(" {} {most}\n", u8::from(table)),
            (table, most, backed) => format!(" {} {most} {backed}\n", u8::from(table)),
        };
        text += "dirty";
        for number in self.dirty.to_numbers() {
            text += &format!(" {number}");
        }
        text += "\n";
        let spare = &self.spare;
        if *spare != SpareSlots::default() {
            let SpareSlots { devices, volumes, exports, tags } = spare;
            text += &format!("spare {devices} {volumes} {exports} {tags}\n");
        }
        for device in &self.devices {
            text += &format!("device {}\n", device.to_numbers());
        }
        for volume in &self.volumes {
            text += &format!("volume {}\n", volume.to_numbers());
        }
        for export in &self.exports {
            let ExportConfig { weight, tenant, latency_target_us, dirty_max } = export;
            text += &match (tenant.is_none(), latency_target_us, *dirty_max) {
                (true, 0, u32::MAX) => format!("export {weight}\n"),
                (false, 0, u32::MAX) => format!("export {weight} {}\n", tenant.0),
                (_, target, u32::MAX) => format!("export {weight} {} {target}\n", tenant.0),
                (_, target, most) => format!("export {weight} {} {target} {most}\n", tenant.0),
            };
        }
        for tenant in &self.tenants {
            let TenantMemory { dirty_max, cache_min, cache_max } = tenant.memory;
            text += &match tenant.memory == TenantMemory::default() {
                true => format!("tenant {}\n", tenant.weight),
                false => format!("tenant {} {dirty_max} {cache_min} {cache_max}\n", tenant.weight),
            };
        }
        text
    }

    /// Reads the lines of [`ShardConfig::to_lines`].
    ///
    /// # Errors
    /// The first line that is damaged.
    pub fn from_lines(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self {
            id: ShardId(0),
            shards: 1,
            bios_max: 1,
            devices: Vec::new(),
            volumes: Vec::new(),
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            dirty: DirtyOptions::default(),
            spare: SpareSlots::default(),
        };
        for line in text.lines() {
            config.read_line(line).ok_or_else(|| {
                ConfigError::new("record", format!("`{line}` is no line of a configuration"))
            })?;
        }
        config.validate()?;
        Ok(config)
    }

    fn read_line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        match (kind, &numbers[..]) {
            // The last number is always 0: an option that records of earlier versions had.
            ("shard", &[id, shards, bios_max, 0]) => {
                self.id = ShardId(id.try_into().ok()?);
                self.shards = shards.try_into().ok()?;
                self.bios_max = bios_max.try_into().ok()?;
            }
            ("spare", &[devices, volumes, exports, tags]) => {
                self.spare = SpareSlots {
                    devices: devices.try_into().ok()?,
                    volumes: volumes.try_into().ok()?,
                    exports: exports.try_into().ok()?,
                    tags: tags.try_into().ok()?,
                };
            }
            ("volume", numbers) => self.volumes.push(VolumeConfig::from_numbers(numbers)?),
            ("cache", &[units, writers_max, flush_timeout_ns, account, ref table @ ..]) => {
                self.cache = CacheOptions {
                    units: units.try_into().ok()?,
                    writers_max: writers_max.try_into().ok()?,
                    flush_timeout_ns,
                    account: account.try_into().ok()?,
                    dirty_table: match table {
                        [] | [0, _] | [0, _, _] => false,
                        [1] | [1, _] | [1, _, _] => true,
                        _ => return None,
                    },
                    dirtyable_max: match table {
                        [_, most] | [_, most, _] => u32::try_from(*most).ok()?,
                        _ => u32::MAX,
                    },
                    backed: match table {
                        [_, _, backed] => u32::try_from(*backed).ok()?,
                        _ => u32::MAX,
                    },
                };
            }
            ("dirty", numbers) => self.dirty = DirtyOptions::from_numbers(numbers)?,
            ("export", &[weight, ref rest @ ..]) => {
                let none = (TenantId::NONE.0.into(), 0, u32::MAX.into());
                let (tenant, target, dirty_max) = match *rest {
                    [] => none,
                    [tenant] => (tenant, 0, none.2),
                    [tenant, target] => (tenant, target, none.2),
                    [tenant, target, dirty_max] => (tenant, target, dirty_max),
                    _ => return None,
                };
                self.exports.push(ExportConfig {
                    weight: weight.try_into().ok()?,
                    tenant: TenantId(tenant.try_into().ok()?),
                    latency_target_us: target.try_into().ok()?,
                    dirty_max: dirty_max.try_into().ok()?,
                });
            }
            ("tenant", &[weight, ref rest @ ..]) => {
                let memory = match *rest {
                    [] => TenantMemory::default(),
                    [dirty_max, cache_min, cache_max] => TenantMemory {
                        dirty_max: dirty_max.try_into().ok()?,
                        cache_min: cache_min.try_into().ok()?,
                        cache_max: cache_max.try_into().ok()?,
                    },
                    _ => return None,
                };
                self.tenants.push(TenantConfig { weight: weight.try_into().ok()?, memory });
            }
            ("device", numbers) => self.devices.push(DeviceConfig::from_numbers(numbers)?),
            _ => return None,
        }
        Some(())
    }

    /// Most requests of a shard: one for every bio, a piece for every tag, a flush for every volume, and one being built.
    #[must_use]
    pub fn slots_max(&self) -> u32 {
        let bios = self.bios_total();
        let tags: u32 = self.devices.iter().map(|device| device.queue.tags(bios)).sum();
        self.bios_max + self.cache.bios() + tags + self.spare.tags + self.volumes_max() as u32 + 1
    }

    /// Most bios in a shard: those of its clients, and those of all shards' caches, which may all send to a device of this one.
    #[must_use]
    pub fn bios_total(&self) -> u32 {
        self.bios_max + self.cache.bios() * u32::from(self.shards)
    }

    /// Number of device slots, the spare ones included.
    #[must_use]
    pub fn devices_max(&self) -> usize {
        self.devices.len() + usize::from(self.spare.devices)
    }

    /// Number of volume slots, the spare ones included.
    #[must_use]
    pub fn volumes_max(&self) -> usize {
        self.volumes.len() + usize::from(self.spare.volumes)
    }

    /// Number of export slots, the spare ones included.
    #[must_use]
    pub fn exports_max(&self) -> usize {
        self.exports.len() + usize::from(self.spare.exports)
    }

    /// The configuration of `volume`.
    #[must_use]
    pub fn volume(&self, volume: VolumeId) -> Option<&VolumeConfig> {
        self.volumes.get(usize::from(volume.0))
    }
}

impl DeviceConfig {
    /// The owner, then the value of every tunable at the position of its number; 0 for the number of a removed one.
    pub(super) fn to_numbers(self) -> String {
        let mut text = self.owner.0.to_string();
        for code in 0..Tunable::CODES {
            let value = Tunable::from_code(code).map_or(0, |tunable| tunable.get(&self.queue));
            text += &format!(" {value}");
        }
        text
    }

    pub(super) fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (&owner, values) = numbers.split_first()?;
        let mut queue = QueueOptions::default();
        // The number of the tag policy, which is 0 in a record that this version can replay.
        const TAG_POLICY: usize = 7;
        if values.len() != usize::from(Tunable::CODES) || values[TAG_POLICY] != 0 {
            return None;
        }
        for (code, &value) in (0..).zip(values) {
            if let Some(tunable) = Tunable::from_code(code) {
                tunable.set(&mut queue, value).ok()?;
            }
        }
        Some(Self { owner: ShardId(owner.try_into().ok()?), queue })
    }
}

impl VolumeConfig {
    pub(super) fn to_numbers(self) -> String {
        let o = &self.options;
        let (read_only, mode, on_error) = (u8::from(o.read_only), o.mode as u8, o.on_error as u8);
        let (home, device, size, block_size) = (self.home.0, self.device.0, o.size, o.block_size);
        format!("{home} {device} {size} {read_only} {block_size} {mode} {on_error}")
    }

    pub(super) fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[home, device, size, read_only, block_size, mode, on_error] = numbers else {
            return None;
        };
        Some(Self {
            home: ShardId(home.try_into().ok()?),
            device: DeviceId(device.try_into().ok()?),
            options: VolumeOptions {
                size,
                read_only: read_only != 0,
                block_size: block_size.try_into().ok()?,
                mode: *WriteMode::ALL.get(usize::try_from(mode).ok()?)?,
                on_error: *ErrorPolicy::ALL.get(usize::try_from(on_error).ok()?)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block beyond what a key has bits for would be a block of the next volume.
    #[test]
    fn cached_volume_above_1_eib_is_rejected() {
        let checked = |size, mode| {
            let volume = VolumeOptions { size, mode, block_size: 4096, ..VolumeOptions::default() };
            ShardConfig::single(QueueOptions::default(), volume, 1).validate()
        };
        let largest = 1 << 60;
        assert_eq!(checked(largest, WriteMode::Writeback), Ok(()));
        for mode in [WriteMode::Writeback, WriteMode::Writethrough, WriteMode::Unsafe] {
            let said = checked(largest + 4096, mode).unwrap_err();
            assert!(said.message.contains("at most 1 EiB; cache=none"), "{said}");
        }
        assert_eq!(checked(7 << 60, WriteMode::None), Ok(()));
        assert!(checked(1 << 63, WriteMode::None).is_err());
    }

    #[test]
    fn configuration_round_trips_through_its_lines() {
        let queue = QueueOptions { nr_requests: 62, fua: true, ..QueueOptions::default() };
        let volume = VolumeOptions {
            size: 1 << 40,
            read_only: true,
            block_size: 4096,
            mode: WriteMode::Unsafe,
            on_error: ErrorPolicy::Retry,
        };
        let mut config = ShardConfig::single(queue, volume, 77);
        config.devices.push(DeviceConfig { owner: ShardId(3), queue: QueueOptions::default() });
        config.exports = vec![
            ExportConfig { weight: 7, tenant: TenantId(1), latency_target_us: 900, dirty_max: 64 },
            ExportConfig { tenant: TenantId(1), latency_target_us: 9, ..ExportConfig::default() },
            ExportConfig::default(),
        ];
        config.tenants = vec![
            TenantConfig {
                weight: 900,
                memory: TenantMemory { dirty_max: 16, cache_min: 100, cache_max: 200 },
            },
            TenantConfig::default(),
        ];
        (config.shards, config.id) = (4, ShardId(2));
        config.cache = CacheOptions { units: 512, writers_max: 9, ..CacheOptions::default() };
        (config.cache.dirtyable_max, config.cache.backed) = (77, 1024);
        config.dirty.dirty_ratio = 33;
        config.spare = SpareSlots { devices: 2, volumes: 9, exports: 11, tags: 512 };
        assert_eq!(ShardConfig::from_lines(&config.to_lines()), Ok(config));
        assert!(ShardConfig::from_lines("shard 0 1").is_err());
        assert!(ShardConfig::from_lines("device 1 2 3").is_err());
    }

    #[test]
    fn invalid_value_is_refused_with_its_range() {
        let volume = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
        let with = |change: fn(&mut ShardConfig)| {
            let mut config = ShardConfig::single(QueueOptions::default(), volume, 8);
            change(&mut config);
            config.validate().err().map(|error| error.option)
        };
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|c| c.devices[0].queue.nr_requests = 0), Some("nr_requests"));
        assert_eq!(
            with(|c| c.devices[0].queue.discard_granularity = 3),
            Some("discard_granularity")
        );
        assert_eq!(with(|c| c.devices[0].queue.io_timeout_ns += 1), Some("io_timeout"));
        assert_eq!(with(|c| c.volumes[0].options.size = 513), Some("size"));
        assert_eq!(with(|c| c.volumes[0].options.block_size = 0), Some("block_size"));
        assert_eq!(with(|c| c.volumes[0].device = DeviceId(1)), Some("device"));
        assert_eq!(with(|c| c.devices[0].owner = ShardId(1)), Some("owner"));
        assert_eq!(with(|c| c.bios_max = 0), Some("bios_max"));
    }
}
