//! Reads in place: cached data, or those of a device in memory, as slices, without a copy.
//!
//! ```text
//!   lend: take the right --> look up --> LentBytes has the right --dropped--> drive what others left, leave the right
//! ```
//!
//! Nothing changes the bytes meanwhile. Frames with data and the memory of a device ([`MemDevice`](crate::MemDevice)) change
//! only in turns of the shard, a turn needs the right, and `LentBytes` has it; a device with commands in flight has frames without data
//! alone. What the look-up caused in the shard (read-ahead, evictions) is carried out after the drop.
//!
//! The owner waits while bytes are lent. So a call of the owner by the thread that has them would wait for itself: it fails at once
//! (`SharedDriver::lends_here`), and calls with a time limit end by the caller's clock (`Owner::ask_within`).
//!
//! Nothing that a program gives makes this panic: a range that a volume, its device or the cache does not have is not lent.
//!
//! Invariants: the spans lie in the mapping of the frames or of a device, which stays as long as the driver, and the driver is taken out
//! only by a thread with the right; a panic while bytes are lent leaves the right as a drop does.

use std::fmt;
use std::sync::atomic::Ordering;

use headworks_core::{Bio, BioFlags, BioId, FrameRange, Instant, Op, REPLY_RANGES_MAX, VolumeId};

use super::driver::Driver;
use super::driving::SharedDriver;
use super::handle::Handle;
use crate::combining::{Driving, Leave};
use crate::memory::Span;

/// Tries to take the right: a turn of another feeder takes a microsecond or two.
const TAKE_SPINS: u32 = 256;

/// Bytes of a volume, read where the cache or the device has them ([`Handle::lend`]).
///
/// While it exists no other thread reads or writes any volume of the owner: it has the right to drive the path. What others submit
/// meanwhile is answered after the drop, timers and completions of devices wait, too, and so do calls and the end of the owner; so
/// copy what takes long to work on. Calls of the owner by the same thread fail at once. It borrows its handle, so a thread drops it before it submits or waits again. One that is
/// leaked ([`std::mem::forget`]) stops the owner for good.
#[must_use]
pub struct LentBytes<'a> {
    /// `None` in the drop.
    driving: Option<Driving<'a, Driver>>,
    shared: &'a SharedDriver,
    /// Rings of others may have batches.
    others: bool,
    spans: &'a [Span],
}

/// The reason why nothing is lent. [`Handle::put`] reads the same range into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLent {
    /// A block is not in memory or being changed, the range lies in more than 64 pieces, or it is not within the volume.
    NotInMemory,
    /// Another thread drives the path: a feeder for longer than a few microseconds, or the owner's under
    /// [`Drive::Thread`](super::Drive::Thread) and at its end.
    Busy,
}

impl fmt::Display for NotLent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotInMemory => "the range is not wholly in memory: read it into a slot",
            Self::Busy => "another thread drives the path: read the range into a slot",
        })
    }
}

impl std::error::Error for NotLent {}

/// What a handle needs for reads in place, so that none of them allocates.
pub(super) struct LentSpans {
    ranges: Vec<FrameRange>,
    spans: Vec<Span>,
}

impl Default for LentSpans {
    fn default() -> Self {
        let most = REPLY_RANGES_MAX;
        Self { ranges: Vec::with_capacity(most), spans: Vec::with_capacity(most) }
    }
}

impl LentBytes<'_> {
    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.iter().map(|span| span.len()).sum()
    }

    /// Returns false: nothing is lent for an empty range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The bytes as one slice; `None` if they lie in several pieces.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.spans {
            [_] => self.pieces().next(),
            _ => None,
        }
    }

    /// The bytes in their order, in as few pieces as they lie in: one within a folio of the cache, or in a device's memory.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: the spans lie in a mapping that stays, and hold data; nothing writes them while `self` has the right.
        self.spans.iter().map(|span| unsafe { span.bytes() })
    }
}

impl fmt::Debug for LentBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBytes").field("pieces", &self.spans.len()).finish_non_exhaustive()
    }
}

impl Drop for LentBytes<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(driving) = self.driving.take() {
            self.shared.take_back(driving, self.others);
        }
    }
}

impl Handle {
    /// Reads `len` bytes at `offset` of a volume where they are: in the cache, or, without a cache, in the device's memory
    /// ([`MemDevice`](crate::MemDevice)). They are those of the newest completed writes, each block in one version. Nothing
    /// is copied, submitted or waited for.
    ///
    /// While the bytes are lent no other thread is answered; [`LentBytes`] says what that means. Where several feeders copy what they read,
    /// slots are faster: a thread that waits for the right does nothing, one that submits lets others carry its batch in.
    ///
    /// # Errors
    /// The range is not wholly in memory, or another thread drives the path. It can be read into a slot then.
    ///
    /// ```
    /// use headworks::{DeviceSetup, Io, MemDevice, Owner, OwnerOptions, VolumeOptions};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (owner, mut handles) = Owner::start(OwnerOptions::default())?;
    /// let disk = DeviceSetup::new(MemDevice::new(1 << 20)?, MemDevice::queue_options());
    /// let options = VolumeOptions { size: 1 << 20, block_size: 512, ..Default::default() };
    /// let volume = owner.add_volume(owner.add_device(disk)?, options)?;
    /// let handle = &mut handles[0];
    ///
    /// let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    /// let lent = handle.lend(volume, 4096, 4096).map(|bytes| bytes.pieces().map(sum).sum());
    /// let sum = match lent {
    ///     Ok(sum) => sum,
    ///     Err(_) => {
    ///         let slot = handle.slot().ok_or("no free slot")?;
    ///         handle.put(volume, slot, Io::read(4096, 4096))?;
    ///         let mut completions = Vec::new();
    ///         while handle.reap(1, &mut completions) == 0 {
    ///             handle.wait();
    ///         }
    ///         let completion = completions.remove(0);
    ///         completion.status?;
    ///         sum(&completion.slot.ok_or("timed out")?[..4096])
    ///     }
    /// };
    /// assert_eq!(sum, 0);
    /// assert!(handle.lend(volume, 1 << 20, 1).is_err(), "beyond the end of the volume");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn lend(
        &mut self,
        volume: VolumeId,
        offset: u64,
        len: u32,
    ) -> Result<LentBytes<'_>, NotLent> {
        let (handle, shared, lent) = self.lender();
        let (mut driving, others) = shared.take_for_lending().ok_or(NotLent::Busy)?;
        let now = shared.clock.now();
        let found = driving.with(|driver| driver.lend(now, handle, (volume, offset, len), lent));
        // Relaxed: only the thread itself has to find it.
        shared.lender.store(this_thread(), Ordering::Relaxed);
        let bytes = LentBytes { driving: Some(driving), shared, others, spans: &lent.spans };
        if found { Ok(bytes) } else { Err(NotLent::NotInMemory) }
    }
}

thread_local! {
    /// Its address names the thread.
    static HERE: u8 = const { 0 };
}

/// A number that no other living thread has, and never 0.
#[inline]
fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl SharedDriver {
    /// Whether the calling thread has lent bytes: the owner's thread waits for it.
    pub(super) fn lends_here(&self) -> bool {
        // Relaxed: pairs with stores of the same thread.
        self.lender.load(Ordering::Relaxed) == this_thread()
    }

    /// Takes the right, or gives up after a while.
    #[inline]
    fn take_for_lending(&self) -> Option<(Driving<'_, Driver>, bool)> {
        for _ in 0..TAKE_SPINS {
            if let Some(taken) = self.right.take() {
                return Some(taken);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Takes lent bytes back: drives if there is anything to do, and leaves the right.
    #[inline]
    fn take_back(&self, mut driving: Driving<'_, Driver>, others: bool) {
        // Relaxed: as the store before.
        self.lender.store(0, Ordering::Relaxed);
        if others || driving.with(|driver| driver.has_inputs()) {
            self.drive(driving, None, true);
            return;
        }
        match driving.leave(false) {
            Leave::Again(again) => {
                self.drive(again, None, true);
            }
            Leave::Left => {}
            Leave::WakeOwner => {
                self.call_owner();
            }
        }
    }
}

impl Driver {
    /// Finds the memory of a range of a volume; returns false if it is not all there.
    #[inline]
    fn lend(
        &mut self,
        now: Instant,
        handle: u32,
        (volume, offset, len): (VolumeId, u64, u32),
        lent: &mut LentSpans,
    ) -> bool {
        lent.spans.clear();
        let known = self.volumes.get(usize::from(volume.0)).copied().flatten();
        let Some(known) = known.filter(|_| !self.is_rejected(volume)) else { return false };
        if !known.cached {
            let memory = self.executor.device(known.device);
            let memory = memory.and_then(|device| device.memory());
            let end = offset.checked_add(len.into());
            let inside = end.is_some_and(|end| len > 0 && end <= known.size);
            // A volume may be larger than its device.
            let bytes =
                memory.filter(|_| inside).and_then(|memory| memory.get(offset, len as usize));
            lent.spans.extend(bytes);
            return bytes.is_some();
        }
        let id = BioId { connection: handle, volume, ..BioId::default() };
        let bio = Bio { id, offset, len, op: Op::Read, flags: BioFlags::SYNC, ..Bio::default() };
        lent.ranges.clear();
        let found = self.shard.lend_frames(now, &bio, &mut lent.ranges);
        self.changed |= self.shard.wants_call();
        let frames = self.frames();
        let span = |range: &FrameRange| frames.part(range.at as usize, range.len as usize);
        lent.spans.extend(lent.ranges.iter().map(span));
        found
    }
}
