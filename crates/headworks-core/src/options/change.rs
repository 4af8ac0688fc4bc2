//! Devices and volumes that join and leave a running shard, as plain data.
//!
//! A change is for every shard of a server: the one that owns the device, the one where the volume lives and those that only
//! know of both. It is applied by [`crate::Shard::change`] between two batches, and written into a record as a line of words,
//! in the style of [`ShardConfig::to_lines`](crate::ShardConfig::to_lines).

use std::fmt;

use crate::bio::{DeviceId, VolumeId};
use crate::error::ConfigError;

use super::topology::{DeviceConfig, VolumeConfig};

/// A hot-add or hot-remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a device in a free slot.
    AddDevice {
        /// The slot that it takes.
        device: DeviceId,
        /// Owner and queue of the device.
        config: DeviceConfig,
    },
    /// Adds a volume in a free slot, on an existing device.
    AddVolume {
        /// The slot that it takes.
        volume: VolumeId,
        /// Home, device and options of the volume.
        config: VolumeConfig,
    },
    /// Puts a cached volume on a cached, read-only one on the same shard, whose blocks it has except for its own: from now on its
    /// changes make blocks its own, and so do those that the cache has not written out yet. The base stays until the volume is removed. Reads that go on at the base
    /// have its id in place of the volume's, in their replies and copies, too.
    SetBase {
        /// The volume on top.
        volume: VolumeId,
        /// The volume below.
        base: VolumeId,
    },
    /// Names own blocks of a volume on a base: those of `bits`, from block `64 * word` on.
    OwnBlocks {
        /// The volume on top.
        volume: VolumeId,
        /// The first block, by 64 blocks of 4 KiB.
        word: u64,
        /// A bit for each block, the lowest first.
        bits: u64,
    },
    /// Has reads of a volume that need none of its own blocks go on at its base: all own blocks were named.
    ReadBase {
        /// The volume on top.
        volume: VolumeId,
    },
    /// Removes a volume without outstanding bios and dirty data, and frees its slot.
    RemoveVolume {
        /// The volume to be removed.
        volume: VolumeId,
    },
    /// Removes a device without volumes, and frees its slot.
    RemoveDevice {
        /// The device to be removed.
        device: DeviceId,
    },
}

/// The reason for a refused change, which left the shard as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// The change is invalid; the error names what is accepted.
    Invalid(ConfigError),
    /// The device or volume is in use; the change may be tried again.
    Busy(&'static str),
}

impl From<ConfigError> for ChangeError {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(error)
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Busy(what) => write!(f, "busy: {what}"),
        }
    }
}

impl std::error::Error for ChangeError {}

impl Change {
    /// The change as a line: a word and numbers. [`Change::from_line`] reads it.
    #[must_use]
    pub fn to_line(&self) -> String {
        match self {
            Self::AddDevice { device, config } => {
                format!("add-device {} {}", device.0, config.to_numbers())
            }
            Self::AddVolume { volume, config } => {
                format!("add-volume {} {}", volume.0, config.to_numbers())
            }
            Self::SetBase { volume, base } => format!("set-base {} {}", volume.0, base.0),
            Self::OwnBlocks { volume, word, bits } => {
                format!("own-blocks {} {word} {bits}", volume.0)
            }
            Self::ReadBase { volume } => format!("read-base {}", volume.0),
            Self::RemoveVolume { volume } => format!("remove-volume {}", volume.0),
            Self::RemoveDevice { device } => format!("remove-device {}", device.0),
        }
    }

    /// Reads what [`Change::to_line`] wrote.
    ///
    /// # Errors
    /// The line is damaged.
    pub fn from_line(line: &str) -> Result<Self, ConfigError> {
        Self::read(line).ok_or_else(|| {
            ConfigError::new("record", format!("`{}` is no line of a change", line.escape_debug()))
        })
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let (&place, rest) = numbers.split_first()?;
        let place = u16::try_from(place).ok()?;
        let (device, volume) = (DeviceId(place), VolumeId(place));
        match (kind, rest) {
            ("add-device", numbers) => {
                Some(Self::AddDevice { device, config: DeviceConfig::from_numbers(numbers)? })
            }
            ("add-volume", numbers) => {
                Some(Self::AddVolume { volume, config: VolumeConfig::from_numbers(numbers)? })
            }
            ("set-base", &[base]) => {
                Some(Self::SetBase { volume, base: VolumeId(base.try_into().ok()?) })
            }
            ("own-blocks", &[word, bits]) => Some(Self::OwnBlocks { volume, word, bits }),
            ("read-base", []) => Some(Self::ReadBase { volume }),
            ("remove-volume", []) => Some(Self::RemoveVolume { volume }),
            ("remove-device", []) => Some(Self::RemoveDevice { device }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::ShardId;
    use crate::options::{ErrorPolicy, QueueOptions, VolumeOptions, WriteMode};

    #[test]
    fn change_round_trips_through_its_line() {
        let queue = QueueOptions { nr_requests: 62, fua: true, ..QueueOptions::default() };
        let options = VolumeOptions {
            size: 1 << 40,
            read_only: true,
            block_size: 4096,
            mode: WriteMode::Unsafe,
            on_error: ErrorPolicy::Retry,
        };
        let changes = [
            Change::AddDevice {
                device: DeviceId(63),
                config: DeviceConfig { owner: ShardId(3), queue },
            },
            Change::AddVolume {
                volume: VolumeId(4095),
                config: VolumeConfig { home: ShardId(2), device: DeviceId(63), options },
            },
            Change::SetBase { volume: VolumeId(3), base: VolumeId(4095) },
            Change::OwnBlocks { volume: VolumeId(3), word: 1 << 40, bits: u64::MAX },
            Change::ReadBase { volume: VolumeId(3) },
            Change::RemoveVolume { volume: VolumeId(7) },
            Change::RemoveDevice { device: DeviceId(9) },
        ];
        for change in changes {
            assert_eq!(Change::from_line(&change.to_line()), Ok(change));
            assert!(Change::from_line(&format!("{} 1", change.to_line())).is_err());
        }
        for damaged in ["", "add-device", "remove-volume", "remove-volume 65536", "drop 1"] {
            let error = Change::from_line(damaged).unwrap_err();
            assert_eq!((error.option, error.message.contains(damaged)), ("record", true));
        }
    }
}
