//! Reads that wait, of a device that no shard drives: a remote base of an overlay that is only read, and the partition table of an image
//! that is being opened.

use std::io;

use headworks::{Device, DeviceSetup, Handle, Io, Owner, OwnerOptions};
use headworks_core::{ConfigError, QueueOptions, VolumeId, VolumeOptions};

/// Bytes of a read.
const READ_BYTES: usize = 1 << 20;

/// A device that nothing else drives, with an owner of its own.
pub(crate) struct DeviceReader {
    handle: Handle,
    volume: VolumeId,
    block: u64,
    /// Dropped last: it ends when its handle is gone.
    _owner: Owner,
}

impl DeviceReader {
    /// Starts the owner of a device with one volume.
    ///
    /// # Errors
    /// No thread, memory or engine.
    pub fn start(
        device: Box<dyn Device>,
        queue: QueueOptions,
        options: VolumeOptions,
    ) -> Result<Self, ConfigError> {
        let wanted = OwnerOptions { depth: 1, slot_bytes: READ_BYTES, ..OwnerOptions::default() };
        let (owner, mut handles) = Owner::start(wanted)?;
        let setup = DeviceSetup::boxed(device, queue);
        let volume = owner.add_volume(owner.add_device(setup)?, options)?;
        let handle = handles.pop().ok_or_else(|| ConfigError::new("base", "it has no handle"))?;
        Ok(Self { handle, volume, block: options.block_size.into(), _owner: owner })
    }

    /// Reads bytes; the parts of blocks at either end are read with their blocks.
    ///
    /// # Errors
    /// The device's reason.
    pub fn read_at(&mut self, offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        while !bytes.is_empty() {
            let start = at - at % self.block;
            let skip = (at - start) as usize;
            let len = (skip + bytes.len()).next_multiple_of(self.block as usize).min(READ_BYTES);
            let slot = self.handle.slot().ok_or_else(|| io::Error::other("it is busy"))?;
            let read = Io::read(start, len as u32);
            self.handle.put(self.volume, slot, read).map_err(|_| io::ErrorKind::InvalidInput)?;
            let mut done = Vec::new();
            while self.handle.reap(1, &mut done) == 0 {
                self.handle.wait();
            }
            let done = done.swap_remove(0);
            done.status.map_err(io::Error::other)?;
            let slot = done.slot.ok_or(io::ErrorKind::TimedOut)?;
            let count = bytes.len().min(len - skip);
            let (part, rest) = bytes.split_at_mut(count);
            part.copy_from_slice(&slot[skip..skip + count]);
            self.handle.release(slot);
            (at, bytes) = (at + count as u64, rest);
        }
        Ok(())
    }
}
