//! The entries of a shard's tables: the way to a device, and a volume.
//!
//! Invariant: a free slot belongs to [`NO_SHARD`]: its device has no way, and its volume no home, so the home check that every bio
//! passes rejects bios for it.

use crate::bio::{DeviceId, ShardId};
use crate::options::{ShardConfig, VolumeConfig, VolumeOptions};
use crate::queue::Queue;
use crate::remote::RemoteQueue;

/// The owner of unassigned devices and the home of free volume slots.
pub(super) const NO_SHARD: ShardId = ShardId(u16::MAX);

/// The way from this shard to a device.
pub(super) enum DeviceRoute {
    /// The device belongs to this shard.
    Local(Box<Queue>),
    /// The device belongs to another shard.
    Remote(Box<RemoteQueue>),
    /// The slot is free for hot-add.
    Unassigned,
}

impl DeviceRoute {
    /// Creates the queue, local or remote, of a device of `config` on a shard with `slots` requests.
    pub fn new(config: &ShardConfig, device: DeviceId, slots: u32) -> Self {
        match config.devices[usize::from(device.0)].owner == config.id {
            true => Self::Local(Box::new(Queue::new(config, device, slots))),
            false => Self::Remote(Box::new(RemoteQueue::new(config, device))),
        }
    }

    /// The queue of a local device.
    ///
    /// # Panics
    /// If the device is not local.
    #[inline(always)]
    pub fn local(&mut self) -> &mut Queue {
        match self {
            Self::Local(queue) => queue,
            _ => unreachable!("only bios for local devices enter a queue"),
        }
    }
}

/// A slot for a volume.
pub(super) struct VolumeEntry {
    pub config: VolumeConfig,
    /// A copy of the device's, which never changes.
    pub discard_granularity: u32,
    /// Its bytes belong to another server: every bio fails.
    pub is_void: bool,
}

impl VolumeEntry {
    /// Creates the entry of a volume on a device of `config`.
    pub fn new(config: &ShardConfig, volume: VolumeConfig) -> Self {
        let device = &config.devices[usize::from(volume.device.0)];
        let discard_granularity = device.queue.discard_granularity;
        Self { config: volume, discard_granularity, is_void: false }
    }

    /// A free slot for a volume.
    pub fn free() -> Self {
        let (home, device) = (NO_SHARD, DeviceId(u16::MAX));
        let config = VolumeConfig { home, device, options: VolumeOptions::default() };
        Self { config, discard_granularity: 1, is_void: false }
    }

    /// The configuration of the volume, if there is one.
    pub fn volume(&self) -> Option<&VolumeConfig> {
        (self.config.home != NO_SHARD).then_some(&self.config)
    }
}
