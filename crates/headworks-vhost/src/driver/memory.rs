//! The memory of a driver: one sealed memfd with the rings and slots of all queues.
//!
//! ```text
//!   for each queue, each part on a page of its own:
//!     descriptors | available ring | used ring | slots of 32 bytes: header 16, status 1 | indirect tables | buffers
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use super::DriverOptions;
use crate::in_flight::sealed_file;
use crate::wire::RegionDescription;

/// Guest physical address of the first byte: not 0, and not the address in this process, so that a mix-up is noticed.
const GUEST_BASE: u64 = 0x1_0000_0000;
const PAGE: usize = 4096;
/// Bytes of a slot: header and status.
pub(crate) const SLOT_BYTES: usize = 32;

/// Where the parts of a queue are, in bytes from the beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePlaces {
    pub(crate) descriptors: usize,
    pub(crate) available: usize,
    pub(crate) used: usize,
    pub(crate) slots: usize,
    pub(crate) tables: usize,
    pub(crate) table_bytes: usize,
    pub(crate) buffers: usize,
    pub(crate) buffer_bytes: usize,
    end: usize,
}

impl QueuePlaces {
    fn new(options: &DriverOptions, queue_size: u16, begin: usize) -> Self {
        let (n, depth) = (usize::from(queue_size), usize::from(options.depth));
        let table_bytes = 16 * (usize::from(options.pieces) + 2);
        let buffer_bytes = (options.buffer_bytes as usize).next_multiple_of(PAGE);
        let page = |at: usize| at.next_multiple_of(PAGE);
        let available = page(begin + 16 * n);
        let used = page(available + 6 + 2 * n);
        let slots = page(used + 6 + 8 * n);
        let tables = page(slots + SLOT_BYTES * depth);
        let buffers = page(tables + table_bytes * depth);
        let end = buffers + buffer_bytes * depth;
        let descriptors = begin;
        Self {
            descriptors,
            available,
            used,
            slots,
            tables,
            table_bytes,
            buffers,
            buffer_bytes,
            end,
        }
    }
}

/// The mapped memory of a driver.
#[derive(Debug)]
pub(crate) struct DriverMemory {
    file: File,
    base: *mut u8,
    len: usize,
    places: Vec<QueuePlaces>,
}

// SAFETY: the mapping is memory of the process; each queue accesses its own part.
unsafe impl Send for DriverMemory {}
// SAFETY: as above.
unsafe impl Sync for DriverMemory {}

impl DriverMemory {
    pub(crate) fn new(options: &DriverOptions, queue_size: u16) -> io::Result<Self> {
        let mut places = Vec::new();
        let mut len = 0;
        for _ in 0..options.queues {
            let one = QueuePlaces::new(options, queue_size, len);
            len = one.end;
            places.push(one);
        }
        let file = sealed_file(c"headworks-driver", len as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file, base: base.cast(), len, places })
    }

    pub(crate) fn places(&self, queue: u16) -> QueuePlaces {
        self.places[usize::from(queue)]
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(crate) fn description(&self) -> RegionDescription {
        let (size, user) = (self.len as u64, self.base.addr() as u64);
        RegionDescription { guest: GUEST_BASE, size, user, file_offset: 0 }
    }

    /// The memory at a place.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> *mut u8 {
        debug_assert!(place < self.len);
        self.base.wrapping_add(place)
    }

    /// The guest physical address of a place.
    #[inline]
    pub(crate) fn guest(&self, place: usize) -> u64 {
        GUEST_BASE + place as u64
    }
}

impl Drop for DriverMemory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`; queues, which use it, hold a reference to this.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
