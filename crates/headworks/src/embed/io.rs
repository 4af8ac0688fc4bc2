//! What a feeder submits and gets back: I/Os, slots, completions.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use headworks_core::{BioFlags, IoError, Ioprio, Op, Status};

use super::Buffers;

/// An I/O for [`Handle::put`](super::Handle::put): operation, range and options.
///
/// ```
/// use headworks::Io;
///
/// let write = Io::write(8192, 4096).fua().user_data(7);
/// let read = Io::read(8192, 4096);
/// assert_ne!(read, write);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Io {
    pub(super) op: Op,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) flags: BioFlags,
    pub(super) ioprio: Ioprio,
    pub(super) user_data: u64,
}

impl Io {
    /// An I/O of any operation. Data are at the start of the slot.
    pub fn new(op: Op, offset: u64, len: u32) -> Self {
        let ioprio = Ioprio::default();
        Self { op, offset, len, flags: BioFlags::SYNC, ioprio, user_data: 0 }
    }

    /// Reads `len` bytes at `offset` of the volume into the slot.
    pub fn read(offset: u64, len: u32) -> Self {
        Self::new(Op::Read, offset, len)
    }

    /// Writes the first `len` bytes of the slot to the volume at `offset`.
    pub fn write(offset: u64, len: u32) -> Self {
        Self::new(Op::Write, offset, len)
    }

    /// Makes every write durable that was completed before the flush was submitted.
    pub fn flush() -> Self {
        Self::new(Op::Flush, 0, 0)
    }

    /// Tells the device that the content of a range is not needed any more.
    pub fn discard(offset: u64, len: u32) -> Self {
        Self::new(Op::Discard, offset, len)
    }

    /// Makes a range read as zeros.
    pub fn write_zeroes(offset: u64, len: u32) -> Self {
        Self::new(Op::WriteZeroes, offset, len)
    }

    /// Completes the I/O only when it is durable (writes, discards, write-zeroes).
    pub fn fua(self) -> Self {
        self.flags(BioFlags::FUA)
    }

    /// Lets a read of zeros complete with [`IoCompletion::hole`] set and the slot unchanged.
    pub fn allow_hole(self) -> Self {
        self.flags(BioFlags::HOLE_OK)
    }

    /// Marks background work: nothing waits for the I/O.
    pub fn background(mut self) -> Self {
        self.flags = BioFlags(self.flags.0 & !BioFlags::SYNC.0);
        self
    }

    /// Adds flags of the block layer.
    pub fn flags(mut self, flags: BioFlags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }

    /// Sets the I/O priority.
    pub fn ioprio(mut self, ioprio: Ioprio) -> Self {
        self.ioprio = ioprio;
        self
    }

    /// Sets a number that comes back in the completion.
    pub fn user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }
}

/// A buffer of a handle, for one I/O.
///
/// A slot is moved into [`Handle::put`](super::Handle::put) and comes back with the completion, so the bytes of an I/O in
/// flight cannot be touched. Slots begin at a page. A slot that is dropped is lost to its handle; give it back with
/// [`Handle::release`](super::Handle::release).
pub struct Slot {
    base: NonNull<u8>,
    len: usize,
    index: u32,
    pub(super) buffers: Arc<Buffers>,
}

// SAFETY: a slot has its bytes alone, as a box would; they belong to no thread.
unsafe impl Send for Slot {}
// SAFETY: a shared slot can only be read.
unsafe impl Sync for Slot {}

impl Slot {
    /// The slots of a handle, each once.
    ///
    /// # Safety
    /// Called once for these buffers.
    pub(super) unsafe fn all(buffers: &Arc<Buffers>, depth: u32) -> Vec<Self> {
        let slot = |index| Self {
            base: NonNull::new(buffers.slot(index)).expect("a mapping is not at address 0"),
            len: buffers.slot_bytes,
            index,
            buffers: Arc::clone(buffers),
        };
        (0..depth).rev().map(slot).collect()
    }

    /// The number of the slot within its handle, below [`Handle::depth`](super::Handle::depth).
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside the mapping, which `buffers` keeps, and initialized (zeros). There is one `Slot` for each index, and
        // the path has it, not the caller, while a device may use the bytes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).field("len", &self.len).finish()
    }
}

/// The result of an I/O.
#[derive(Debug)]
pub struct IoCompletion {
    /// The number from [`Io::user_data`].
    pub user_data: u64,
    /// Success, or the error of the I/O.
    pub status: Status,
    /// The read data are zeros and are not in the slot. Only for reads with [`Io::allow_hole`].
    pub hole: bool,
    /// The slot of the I/O. `None` after a time-out while the device may still use the slot: the slot returns to the handle when
    /// the device completes the command, and [`Handle::slot`](super::Handle::slot) hands it out again.
    pub slot: Option<Slot>,
}

/// An I/O that was not accepted, with its slot.
#[derive(Debug)]
pub struct RejectedIo {
    /// The slot with unchanged content.
    pub slot: Slot,
    /// The reason, in words.
    pub reason: &'static str,
}

impl fmt::Display for RejectedIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I/O of slot {} rejected: {}", self.slot.index, self.reason)
    }
}

impl std::error::Error for RejectedIo {}

impl From<RejectedIo> for IoError {
    fn from(_: RejectedIo) -> Self {
        IoError::Invalid
    }
}
