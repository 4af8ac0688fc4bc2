//! Every number a user may set, with its default and its reason. Names are Linux's where Linux has the thing.

use crate::bio::{DeviceId, ShardId, VolumeId};
use crate::error::ConfigError;
use crate::time::SEC;

/// Which elevator orders a device's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// First in, first out.
    #[default]
    None,
}

/// `nomerges`: how hard to look for merges (sysfs values 0, 1, 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoMerges {
    /// Look everywhere (0).
    #[default]
    MergeAll,
    /// Only the cheap look at the last request of the plug (1).
    OneHit,
    /// Never (2).
    Never,
}

impl NoMerges {
    /// The setting of a sysfs value.
    #[must_use]
    pub const fn from_sysfs(value: u64) -> Option<Self> {
        match value {
            0 => Some(Self::MergeAll),
            1 => Some(Self::OneHit),
            2 => Some(Self::Never),
            _ => None,
        }
    }
}

/// One device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Tags: requests admitted below the plug at once, 1..=4096. 256: Linux's default for devices as deep as ours.
    pub nr_requests: u32,
    /// Commands in the device at once, and beside them one flush per volume, 1..=4096. 128: what NVMe and virtio disks take without queueing inside.
    pub queue_depth: u32,
    /// Largest data request in KiB, 4..=32768. 1280: Linux's default.
    pub max_sectors_kb: u32,
    /// Most segments in one request, 1..=1024. 128: Linux's default (BLK_MAX_SEGMENTS).
    pub max_segments: u16,
    /// Most bytes in one segment, at least 4096. One buffer is contiguous, so it need not be small.
    pub max_segment_size: u32,
    /// How hard to look for merges.
    pub nomerges: NoMerges,
    /// Which elevator.
    pub scheduler: Scheduler,
    /// A command that takes longer is answered with an error. 30 s: Linux's `io_timeout`.
    pub io_timeout_ns: u64,
    /// The device may hold acknowledged writes in volatile memory: flushes must reach it.
    pub write_cache: bool,
    /// The device can make a single write durable (else a flush follows the write).
    pub fua: bool,
    /// Discards reach the device (else they succeed and do nothing).
    pub discard: bool,
    /// Discards are rounded inward to this many bytes; a power of two.
    pub discard_granularity: u32,
    /// Most bytes of one discard or write-zeroes command; longer ones go in steps, so that they end in bounded time.
    pub discard_max_bytes: u32,
    /// The device zeroes a range by itself (else zeros are written as data).
    pub write_zeroes: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            nr_requests: 256,
            queue_depth: 128,
            max_sectors_kb: 1280,
            max_segments: 128,
            max_segment_size: 32 << 20,
            nomerges: NoMerges::MergeAll,
            scheduler: Scheduler::None,
            io_timeout_ns: 30 * SEC,
            write_cache: true,
            fua: false,
            discard: true,
            discard_granularity: 4096,
            discard_max_bytes: 1 << 30,
            write_zeroes: true,
        }
    }
}

impl QueueOptions {
    /// Checks every range once.
    ///
    /// # Errors
    /// The first option out of range, with its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = |name, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::new(name, format!("{value} is not within {low}..={high}")))
        };
        range("nr_requests", self.nr_requests.into(), 1, 4096)?;
        range("queue_depth", self.queue_depth.into(), 1, 4096)?;
        range("max_sectors_kb", self.max_sectors_kb.into(), 4, 32768)?;
        range("max_segments", self.max_segments.into(), 1, 1024)?;
        range("max_segment_size", self.max_segment_size.into(), 4096, 1 << 31)?;
        range("io_timeout", self.io_timeout_ns, crate::time::MS, 86_400 * SEC)?;
        range("discard_max_bytes", self.discard_max_bytes.into(), 1 << 16, 1 << 31)?;
        if !self.discard_granularity.is_power_of_two() {
            return Err(ConfigError::new(
                "discard_granularity",
                format!("{} is not a power of two", self.discard_granularity),
            ));
        }
        Ok(())
    }

    /// Most bytes of one data request.
    #[must_use]
    pub fn max_bytes(&self) -> u32 {
        self.max_sectors_kb * 1024
    }
}

/// One volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Bytes.
    pub size: u64,
    /// Writes are refused whatever the client believes.
    pub read_only: bool,
    /// Offsets and lengths must be multiples of this; a power of two. Without a cache it is the file's direct-I/O alignment.
    pub block_size: u32,
}

/// A device's place and queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The shard that owns its queue.
    pub owner: ShardId,
    /// Its queue.
    pub queue: QueueOptions,
}

/// A volume's place and options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The shard it lives on: by default its device's owner.
    pub home: ShardId,
    /// The device that holds its bytes.
    pub device: DeviceId,
    /// Its options.
    pub options: VolumeOptions,
}

/// All that a shard is made from. Every shard of a server gets the same topology and its own `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// Which shard this is.
    pub id: ShardId,
    /// How many there are, 1..=64.
    pub shards: u16,
    /// Bios in this shard at once, those of other shards on its devices included, 1..=1M. One more is answered `NoMemory`;
    /// frontends stop reading before.
    pub bios_max: u32,
    /// Every device, indexed by [`DeviceId`], at most 64.
    pub devices: Vec<DeviceConfig>,
    /// Every volume, indexed by [`VolumeId`], at most 4096.
    pub volumes: Vec<VolumeConfig>,
}

impl ShardConfig {
    /// Checks the whole topology once.
    ///
    /// # Errors
    /// The first thing that cannot be.
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
        if self.devices.len() > 64 {
            return Err(ConfigError::new("devices", "more than 64 devices"));
        }
        if self.volumes.len() > 4096 {
            return Err(ConfigError::new("volumes", "more than 4096 volumes"));
        }
        for device in &self.devices {
            if device.owner.0 >= self.shards {
                return Err(ConfigError::new(
                    "owner",
                    "a device is owned by a shard that is not there",
                ));
            }
            device.queue.validate()?;
        }
        self.volumes.iter().try_for_each(|volume| self.validate_volume(volume))
    }

    fn validate_volume(&self, volume: &VolumeConfig) -> Result<(), ConfigError> {
        if volume.home.0 >= self.shards {
            return Err(ConfigError::new("home", "a volume lives on a shard that is not there"));
        }
        let Some(device) = self.devices.get(usize::from(volume.device.0)) else {
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
        Ok(())
    }

    /// A single shard with one device and one volume on it: the smallest world.
    #[must_use]
    pub fn single(queue: QueueOptions, volume: VolumeOptions, bios_max: u32) -> Self {
        Self {
            id: ShardId(0),
            shards: 1,
            bios_max,
            devices: vec![DeviceConfig { owner: ShardId(0), queue }],
            volumes: vec![VolumeConfig { home: ShardId(0), device: DeviceId(0), options: volume }],
        }
    }

    /// The configuration as lines of numbers, for the head of a record. [`ShardConfig::from_lines`] reads it.
    #[must_use]
    pub fn to_lines(&self) -> String {
        let mut text = format!("shard {} {} {}\n", self.id.0, self.shards, self.bios_max);
        for device in &self.devices {
            let q = &device.queue;
            text += &format!(
                "device {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}\n",
                device.owner.0,
                q.nr_requests,
                q.queue_depth,
                q.max_sectors_kb,
                q.max_segments,
                q.max_segment_size,
                q.nomerges as u8,
                q.scheduler as u8,
                q.io_timeout_ns,
                u8::from(q.write_cache),
                u8::from(q.fua),
                u8::from(q.discard),
                q.discard_granularity,
                q.discard_max_bytes,
                u8::from(q.write_zeroes),
            );
        }
        for volume in &self.volumes {
            let o = &volume.options;
            let read_only = u8::from(o.read_only);
            text += &format!(
                "volume {} {} {} {} {}\n",
                volume.home.0, volume.device.0, o.size, read_only, o.block_size
            );
        }
        text
    }

    /// Reads what [`ShardConfig::to_lines`] wrote.
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
            ("shard", &[id, shards, bios_max]) => {
                self.id = ShardId(id.try_into().ok()?);
                self.shards = shards.try_into().ok()?;
                self.bios_max = bios_max.try_into().ok()?;
            }
            ("volume", &[home, device, size, read_only, block_size]) => {
                self.volumes.push(VolumeConfig {
                    home: ShardId(home.try_into().ok()?),
                    device: DeviceId(device.try_into().ok()?),
                    options: VolumeOptions {
                        size,
                        read_only: read_only != 0,
                        block_size: block_size.try_into().ok()?,
                    },
                });
            }
            ("device", numbers) => self.devices.push(device_of(numbers)?),
            _ => return None,
        }
        Some(())
    }

    /// The configuration of `volume`.
    #[must_use]
    pub fn volume(&self, volume: VolumeId) -> Option<&VolumeConfig> {
        self.volumes.get(usize::from(volume.0))
    }
}

fn device_of(numbers: &[u64]) -> Option<DeviceConfig> {
    let &[
        owner,
        nr_requests,
        queue_depth,
        max_sectors_kb,
        max_segments,
        max_segment_size,
        nomerges,
        0,
        io_timeout_ns,
        write_cache,
        fua,
        discard,
        discard_granularity,
        discard_max_bytes,
        write_zeroes,
    ] = numbers
    else {
        return None;
    };
    let queue = QueueOptions {
        nr_requests: nr_requests.try_into().ok()?,
        queue_depth: queue_depth.try_into().ok()?,
        max_sectors_kb: max_sectors_kb.try_into().ok()?,
        max_segments: max_segments.try_into().ok()?,
        max_segment_size: max_segment_size.try_into().ok()?,
        nomerges: NoMerges::from_sysfs(nomerges)?,
        scheduler: Scheduler::None,
        io_timeout_ns,
        write_cache: write_cache != 0,
        fua: fua != 0,
        discard: discard != 0,
        discard_granularity: discard_granularity.try_into().ok()?,
        discard_max_bytes: discard_max_bytes.try_into().ok()?,
        write_zeroes: write_zeroes != 0,
    };
    Some(DeviceConfig { owner: ShardId(owner.try_into().ok()?), queue })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_comes_back_from_its_lines() {
        let queue = QueueOptions { nr_requests: 62, fua: true, ..QueueOptions::default() };
        let volume = VolumeOptions { size: 1 << 40, read_only: true, block_size: 4096 };
        let mut config = ShardConfig::single(queue, volume, 77);
        config.devices.push(DeviceConfig { owner: ShardId(3), queue: QueueOptions::default() });
        (config.shards, config.id) = (4, ShardId(2));
        assert_eq!(ShardConfig::from_lines(&config.to_lines()), Ok(config));
        assert!(ShardConfig::from_lines("shard 0 1").is_err());
        assert!(ShardConfig::from_lines("device 1 2 3").is_err());
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_range() {
        let volume = VolumeOptions { size: 1 << 20, read_only: false, block_size: 512 };
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
        assert_eq!(with(|c| c.volumes[0].options.size = 513), Some("size"));
        assert_eq!(with(|c| c.volumes[0].options.block_size = 0), Some("block_size"));
        assert_eq!(with(|c| c.volumes[0].device = DeviceId(1)), Some("device"));
        assert_eq!(with(|c| c.devices[0].owner = ShardId(1)), Some("owner"));
        assert_eq!(with(|c| c.bios_max = 0), Some("bios_max"));
    }
}
