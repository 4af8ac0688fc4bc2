//! Reads, writes and flushes that are one call: for what is not worth a batch.
//!
//! A call divides its range into slots, keeps as many in flight as are free, and returns when all are answered. With I/Os of the caller
//! in flight it is refused, since their completions would come in between.

use headworks_core::{IoError, VolumeId};

use super::handle::{Handle, WaitOutcome};
use super::io::{Io, IoCompletion, Slot};

impl Handle {
    /// Reads the bytes at `offset` of a volume into `bytes` and waits for them, as in the example of the [crate](crate).
    ///
    /// # Errors
    /// The first error of a part; `bytes` then holds any mixture. `Invalid`: the range is not inside the volume or not whole blocks;
    /// `Busy`: I/Os of this handle are in flight, or no slot is free; `ShutDown`: the owner has ended.
    pub fn read(&mut self, volume: VolumeId, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let range = (offset, bytes.len());
        let take = |at: usize, slot: &[u8]| bytes[at..at + slot.len()].copy_from_slice(slot);
        self.transfer(volume, range, Io::read, |_, _| {}, take)
    }

    /// Writes `bytes` to a volume at `offset` and waits until they are written: to the cache, if the volume has one.
    ///
    /// # Errors
    /// As [`Handle::read`]; the range then holds any mixture of old and new blocks.
    pub fn write(&mut self, volume: VolumeId, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let range = (offset, bytes.len());
        let fill = |at: usize, slot: &mut [u8]| slot.copy_from_slice(&bytes[at..at + slot.len()]);
        self.transfer(volume, range, Io::write, fill, |_, _| {})
    }

    /// Makes every write of the volume durable that was completed before, and waits for it.
    ///
    /// # Errors
    /// As [`Handle::read`]; what is durable then is not known.
    pub fn flush(&mut self, volume: VolumeId) -> Result<(), IoError> {
        // One part without data.
        self.transfer(volume, (0, 1), |_, _| Io::flush(), |_, _| {}, |_, _| {})
    }

    /// Does a range in parts of a slot each: `fill` has the slot of the part at a place before it is sent, `take` after its success.
    fn transfer(
        &mut self,
        volume: VolumeId,
        (offset, len): (u64, usize),
        io: impl Fn(u64, u32) -> Io,
        mut fill: impl FnMut(usize, &mut [u8]),
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(), IoError> {
        if self.outstanding() > 0 {
            return Err(IoError::Busy);
        }
        let (mut at, mut result) = (0, Ok(()));
        let mut completions = Vec::with_capacity(self.depth() as usize);
        while (at < len && result.is_ok()) || self.outstanding() > 0 {
            while at < len
                && result.is_ok()
                && let Some(mut slot) = self.slot()
            {
                let part = part_at(at, len, &slot);
                fill(at, &mut slot[..part]);
                let io = io(offset.saturating_add(at as u64), part as u32).user_data(at as u64);
                self.put(volume, slot, io)?;
                at += part;
            }
            match self.wait() {
                WaitOutcome::Ready => self.reap(usize::MAX, &mut completions),
                // Nothing could be sent: the caller has all slots.
                WaitOutcome::Idle => return Err(IoError::Busy),
                WaitOutcome::OwnerEnded => return Err(IoError::ShutDown),
            };
            for IoCompletion { user_data, status, slot, .. } in completions.drain(..) {
                result = result.and(status);
                // After a time-out the device has it still.
                let Some(slot) = slot else { continue };
                let at = user_data as usize;
                if status.is_ok() {
                    take(at, &slot[..part_at(at, len, &slot)]);
                }
                self.release(slot);
            }
        }
        result
    }
}

/// The length of the part at a place: what is left, or the largest power of two that fits into a slot, which is whole blocks.
fn part_at(at: usize, len: usize, slot: &Slot) -> usize {
    (len - at).min(1 << slot.len().ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceSetup, MemDevice, Owner, OwnerOptions, VolumeOptions};

    fn owner(slot_bytes: usize) -> (Owner, Vec<Handle>, VolumeId) {
        let options = OwnerOptions { slot_bytes, depth: 4, ..OwnerOptions::default() };
        let (owner, handles) = Owner::start(options).unwrap();
        let disk = DeviceSetup::new(MemDevice::new(1 << 20).unwrap(), MemDevice::queue_options());
        let options = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
        let volume = owner.add_volume(owner.add_device(disk).unwrap(), options).unwrap();
        (owner, handles, volume)
    }

    #[test]
    fn ranges_of_many_slots_come_back_as_they_were() {
        // Slots that are no power of two, and more parts than slots.
        let (_owner, mut handles, volume) = owner(6000);
        let handle = &mut handles[0];
        let written: Vec<u8> = (0..60 * 512_u32).map(|at| (at / 7) as u8).collect();
        handle.write(volume, 1024, &written).unwrap();
        handle.flush(volume).unwrap();
        let mut read = vec![0; written.len()];
        handle.read(volume, 1024, &mut read).unwrap();
        assert!(read == written);
        assert_eq!(handle.read(volume, 0, &mut []), Ok(()));
    }

    #[test]
    fn wrong_ranges_and_busy_handles_are_refused_and_cost_no_slot() {
        let (_owner, mut handles, volume) = owner(4096);
        let handle = &mut handles[0];
        let mut bytes = vec![0; 32 << 10];
        for offset in [(1 << 20) - 4096, u64::MAX - 511, 1] {
            assert_eq!(handle.read(volume, offset, &mut bytes), Err(IoError::Invalid), "{offset}");
        }
        let slots: Vec<_> = std::iter::from_fn(|| handle.slot()).collect();
        assert_eq!(slots.len(), 4, "every slot is back");
        assert_eq!(handle.flush(volume), Err(IoError::Busy));
        let mut slots = slots.into_iter();
        handle.put(volume, slots.next().unwrap(), Io::read(0, 512)).unwrap();
        slots.for_each(|slot| handle.release(slot));
        assert_eq!(handle.read(volume, 0, &mut bytes), Err(IoError::Busy));
        let mut completions = Vec::new();
        handle.wait();
        assert_eq!(handle.reap(1, &mut completions), 1);
        assert_eq!(handle.read(volume, 0, &mut bytes), Ok(()));
    }

    #[test]
    fn owner_that_has_ended_is_told() {
        let (owner, mut handles, volume) = owner(4096);
        owner.shutdown().unwrap();
        assert_eq!(handles[0].flush(volume), Err(IoError::ShutDown));
    }
}
