//! The cache of an embedded owner, read in place by a handle that drives it.
//!
//! A call lends a range and gives it back. `busy` counts calls that found the path driven by the
//! owner's thread and were repeated.

use std::hint::black_box;

use headworks::{DeviceSetup, Handle, Io, NotLent, NullDevice, Owner, OwnerOptions};
use headworks_core::cache::folio::BLOCK;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, QueueOptions, VolumeId, VolumeOptions};

use super::driver::{stamp, stamp_all};

/// Bytes of a write that fills the cache.
const FILL_BYTES: u32 = 1 << 20;
/// Bytes of a line of the processor's caches.
const LINE: usize = 64;

/// An owner with a volume that is wholly cached, and its only handle.
pub struct LentDriver {
    // First, so that it is dropped before the owner waits for it.
    handle: Handle,
    volume: VolumeId,
    _owner: Owner,
    /// Calls that were repeated.
    pub busy: u64,
}

/// Reads a byte of each line, the least that needs all of them.
#[inline]
pub fn read_lines(bytes: &[u8]) {
    let each = bytes.chunks(LINE).map(|line| u64::from(line[0]));
    black_box(each.sum::<u64>());
}

impl LentDriver {
    /// An owner over a null device, with `size` cached bytes in folios of up to `max_folio_order`.
    ///
    /// # Errors
    /// Not enough memory, or the owner cannot start.
    pub fn new(size: u64, max_folio_order: u8) -> Result<Self, ConfigError> {
        let units = (size / u64::from(BLOCK) * 5 / 4).next_multiple_of(512) as u32;
        let dirty = DirtyOptions { dirty_writeback_centisecs: 0, ..DirtyOptions::default() };
        let (owner, mut handles) = Owner::start(OwnerOptions {
            depth: 1,
            slot_bytes: FILL_BYTES as usize,
            cache: CacheOptions { units, ..CacheOptions::default() },
            dirty,
            ..OwnerOptions::default()
        })?;
        let queue = QueueOptions { max_folio_order, ..NullDevice::queue_options() };
        let device = owner.add_device(DeviceSetup::new(NullDevice, queue))?;
        let options = VolumeOptions { size, block_size: 512, ..VolumeOptions::default() };
        let volume = owner.add_volume(device, options)?;
        let handle =
            handles.pop().ok_or_else(|| ConfigError::new("handles", "the owner has none"))?;
        let mut driver = Self { handle, volume, _owner: owner, busy: 0 };
        for offset in (0..size).step_by(FILL_BYTES as usize) {
            driver.write(offset)?;
        }
        Ok(driver)
    }

    fn write(&mut self, offset: u64) -> Result<(), ConfigError> {
        let failed = || ConfigError::new("cache", "a write failed");
        let mut slot = self.handle.slot().ok_or_else(failed)?;
        stamp_all(&mut slot, offset);
        let write = Io::write(offset, FILL_BYTES);
        self.handle.put(self.volume, slot, write).map_err(|_| failed())?;
        let mut completions = Vec::new();
        while self.handle.reap(1, &mut completions) == 0 {
            self.handle.wait();
        }
        let completion = completions.pop().ok_or_else(failed)?;
        completion.status.map_err(|_| failed())?;
        self.handle.release(completion.slot.ok_or_else(failed)?);
        Ok(())
    }

    /// Lends a range, reads it if `reads`, and gives it back.
    ///
    /// # Errors
    /// It is not cached.
    #[inline]
    pub fn call(&mut self, offset: u64, len: u32, reads: bool) -> Result<(), ConfigError> {
        loop {
            match self.handle.lend(self.volume, offset, len) {
                Ok(bytes) if reads => bytes.pieces().for_each(read_lines),
                Ok(bytes) => {
                    black_box(bytes.as_slice());
                }
                Err(NotLent::Busy) => {
                    self.busy += 1;
                    std::thread::yield_now();
                    continue;
                }
                Err(NotLent::NotInMemory) => {
                    let message = format!("{len} bytes at {offset} are not cached");
                    return Err(ConfigError::new("cache", message));
                }
            }
            return Ok(());
        }
    }

    /// Checks the stamp of a block.
    ///
    /// # Errors
    /// The cache lost the block.
    pub fn check(&mut self, offset: u64) -> Result<(), ConfigError> {
        loop {
            let wrong = match self.handle.lend(self.volume, offset, BLOCK) {
                Ok(bytes) => bytes.as_slice().is_none_or(|block| block[..8] != stamp(offset)),
                Err(NotLent::Busy) => continue,
                Err(NotLent::NotInMemory) => true,
            };
            let message = || format!("the block at {offset} has wrong contents");
            return if wrong { Err(ConfigError::new("cache", message())) } else { Ok(()) };
        }
    }
}
