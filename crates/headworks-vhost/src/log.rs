//! The log of a migration: a bit for each page of 4 KiB of guest memory that the device has written.
//!
//! Invariant: a bit is set after the bytes were written and before the used index tells the driver of them. Bits are set atomically, as
//! the front end clears them meanwhile. Pages beyond the log's end are not noted: the front end made the log for its memory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::memory::SharedMapping;

const PAGE_SHIFT: u32 = 12;

/// A log that a front end shares, mapped.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: SharedMapping,
    base: *mut u8,
    bytes: u64,
}

// SAFETY: the pointer is into the mapping, whose bytes are accessed atomically.
unsafe impl Send for DirtyLog {}
// SAFETY: as above.
unsafe impl Sync for DirtyLog {}

impl DirtyLog {
    /// Maps `bytes` bytes of a log at `offset` of its file; the error is a sentence.
    pub fn map(bytes: u64, offset: u64, fd: OwnedFd) -> Result<Self, String> {
        let end = offset.checked_add(bytes).filter(|_| bytes > 0);
        let end = end.ok_or_else(|| format!("a migration log of {bytes} bytes at {offset}"))?;
        let mapping = SharedMapping::new(&File::from(fd), end)
            .map_err(|error| format!("cannot map the migration log: {error}"))?;
        let base = mapping.base().wrapping_add(offset as usize);
        Ok(Self { mapping, base, bytes })
    }

    /// Notes that `len` bytes at a guest physical address were written.
    pub(crate) fn mark(&self, address: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = address.saturating_add(len - 1) >> PAGE_SHIFT;
        for page in address >> PAGE_SHIFT..=last {
            if page / 8 >= self.bytes {
                return;
            }
            // SAFETY: the byte is within the log, which is mapped while this lives.
            let byte = unsafe { AtomicU8::from_ptr(self.base.wrapping_add((page / 8) as usize)) };
            // Release: the front end that takes the bit copies the page after it.
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.mapping.is_guarded()
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.mapping.is_faulted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::sealed_file;
    use std::os::unix::fs::FileExt;

    #[test]
    fn range_sets_the_bits_of_its_pages_only() {
        let file = sealed_file(c"log", 4096).unwrap();
        let log = DirtyLog::map(4, 8, file.try_clone().unwrap().into()).unwrap();
        log.mark(0x0fff, 2);
        log.mark(0x9000, 4096);
        log.mark(0x1f000, 0);
        log.mark(0x1f000, u64::MAX);
        log.mark(u64::MAX, 1);
        let mut bits = [0; 16];
        file.read_exact_at(&mut bits, 0).unwrap();
        assert_eq!(bits[..8], [0; 8], "before the log");
        assert_eq!(bits[8..12], [0b11, 0b10, 0, 0x80]);
        assert_eq!(bits[12..], [0; 4], "behind the log");
    }

    #[test]
    fn log_that_is_longer_than_its_file_is_refused() {
        let file = sealed_file(c"log", 4096).unwrap();
        for (bytes, offset) in [(4097, 0), (1, 4096), (0, 0), (u64::MAX, 1)] {
            assert!(DirtyLog::map(bytes, offset, file.try_clone().unwrap().into()).is_err());
        }
    }
}
