//! The volumes of a device, as its queue sees them.

use super::flush_sequence::FlushSequence;
use crate::bio::{DeviceId, Op, VolumeId};
use crate::options::ShardConfig;
use crate::stats::VolumeStats;

/// A volume's state in the queue of its device.
pub(crate) struct VolumeQueue {
    /// Pieces of split bios end at multiples of this many bytes.
    block_size: u32,
    /// The flush sequence of the volume.
    pub(super) flush: FlushSequence,
    /// The statistics of the volume.
    pub stats: VolumeStats,
}

impl VolumeQueue {
    fn new(block_size: u32) -> Self {
        assert!(block_size.is_power_of_two(), "limits are rounded by masks");
        Self { block_size, flush: FlushSequence::new(), stats: VolumeStats::default() }
    }

    /// Returns the size of a block in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the number of writes that finished since the last good flush was sent.
    pub fn unflushed(&self) -> u64 {
        self.flush.unflushed()
    }

    /// Returns true while a failed flush is not acknowledged.
    pub fn is_suspect(&self) -> bool {
        self.flush.is_suspect()
    }

    /// Counts a bio whose data the device finished.
    #[inline]
    pub(super) fn on_bio_finished(&mut self, op: Op) {
        self.stats.ops[op as usize].bios += 1;
        if op.is_write() {
            self.flush.on_write_finished();
        }
    }
}

/// The volumes of one device, by volume id.
pub(super) struct VolumeQueues(Vec<Option<Box<VolumeQueue>>>);

impl VolumeQueues {
    /// Creates the volumes of `device`.
    pub fn new(config: &ShardConfig, device: DeviceId) -> Self {
        let volumes = config.volumes.iter().map(|volume| {
            let ours = volume.device == device;
            ours.then(|| Box::new(VolumeQueue::new(volume.options.block_size)))
        });
        Self(volumes.collect())
    }

    /// Returns a volume, if it is of this device.
    #[inline]
    pub fn find(&self, volume: VolumeId) -> Option<&VolumeQueue> {
        self.0.get(usize::from(volume.0))?.as_deref()
    }

    /// Returns a volume, if it is of this device, to change it.
    pub fn find_mut(&mut self, volume: VolumeId) -> Option<&mut VolumeQueue> {
        self.0.get_mut(usize::from(volume.0))?.as_deref_mut()
    }

    /// Iterates over the volumes of the device, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut VolumeQueue> {
        self.0.iter_mut().flatten().map(|volume| &mut **volume)
    }

    /// Returns the volume of a bio that is in this queue.
    #[inline]
    pub fn of_bio(&mut self, volume: VolumeId) -> &mut VolumeQueue {
        self.0[usize::from(volume.0)]
            .as_mut()
            .expect("a bio reaches the queue of its volume's device")
    }

    /// Returns the largest block size of all volumes.
    pub fn largest_block(&self) -> Option<u32> {
        self.0.iter().flatten().map(|volume| volume.block_size).max()
    }

    /// Adds a volume of the device.
    pub fn add(&mut self, volume: VolumeId, block_size: u32) {
        let index = usize::from(volume.0);
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        assert!(self.0[index].is_none(), "a volume is added once");
        self.0[index] = Some(Box::new(VolumeQueue::new(block_size)));
    }

    /// Removes a volume that has no bio and no flush in the queue.
    pub fn remove(&mut self, volume: VolumeId) {
        if let Some(known) = self.0.get_mut(usize::from(volume.0)) {
            let running = known.as_ref().is_some_and(|volume| volume.flush.is_running());
            assert!(!running, "a volume is removed after its last flush");
            *known = None;
        }
    }
}
