//! An image in memory, reached through a mapping: a copy instead of a system call.
//!
//! The system call stays for everything but the plain case, and so says what is wrong in every other one:
//!
//! ```text
//!   image as long as its volume? --no--.
//!        | yes                         |
//!   all pages known to be data? --no---+--> preadv2, pwritev2: short read, ENOSPC, ... (a write beyond the
//!        | yes                         |    end of a shrunk image is EIO: it must not grow again by itself)
//!   guarded copy -------faulted--------'              |
//!        |                                      what was written is known to be data
//!    completed
//! ```
//!
//! * *Holes.* A read through the mapping would give a hole memory. `known` says which pages have some; the rest is left to
//!   the system call, which reads a hole as zeros and costs no memory.
//! * *Somebody else shortens the image.* Pages beyond its end fault, and the copy says so. Within the last page nothing
//!   faults: reads would be zeros and writes lost. So the size is asked for once per batch.
//! * *No page can be had* (tmpfs is full, a page was lost): the fault becomes a system call, and that has the error.
//!
//! Nothing has to be mended after a fault. Somebody who punches holes into a served image makes later reads give them pages
//! again: bytes stay right, memory is used.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use super::call::execute;
use super::known::{CHUNK_PAGES, KnownPages, pages_of};
use crate::engine::{DiskKind, DiskOp};
use crate::memory::{PAGE, Span, guarded};

/// 4 TiB: 128 MiB of bits, of which only what is used is touched. Larger images keep to system calls.
const SIZE_MAX: u64 = 4 << 40;

/// A mapping of a whole image, and what is known of its pages.
#[derive(Debug)]
pub struct MappedImage {
    base: NonNull<u8>,
    mapped_len: usize,
    /// Of the volume.
    size: u64,
    known: KnownPages,
    /// Of the file, as `asked_in` found it.
    current_size: u64,
    asked_in: u64,
}

// SAFETY: the mapping is this value's alone, and is touched through `&mut self` only.
unsafe impl Send for MappedImage {}

impl MappedImage {
    /// Maps an image of `size` bytes; `None` where only system calls reach it: it is too large for the address space, the
    /// processor has no guarded copy, or the kernel does not tell us which of its pages are holes.
    pub fn new(file: &File, size: u64, read_only: bool) -> Option<Self> {
        if size > SIZE_MAX || !guarded::arm() {
            return None;
        }
        let pages = usize::try_from(size.div_ceil(PAGE as u64)).ok()?;
        let access = match read_only {
            true => libc::PROT_READ,
            false => libc::PROT_READ | libc::PROT_WRITE,
        };
        // One page beyond the end, to ask about.
        let mapped_len = (pages + 1).checked_mul(PAGE)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_len,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let image = Self {
            base: NonNull::new(base.cast()).expect("mmap never answers null without MAP_FIXED"),
            mapped_len,
            size,
            known: KnownPages::new(pages),
            current_size: size,
            asked_in: 0,
        };
        // To those who may not write to the file the kernel calls every page resident, even this one.
        let told_apart = !image.resident(pages, 1)?[0];
        told_apart.then_some(image)
    }

    /// Does a read or write as an engine would, and answers as an engine does. Operations with equal `batch` are done
    /// together, so that what others do to the file's size in between need not be seen.
    ///
    /// # Safety
    /// The spans are valid, and the caller's to read or write; `op.fd` is the file that is mapped.
    pub unsafe fn transfer(&mut self, batch: u64, op: &DiskOp, spans: &[Span]) -> i32 {
        let len: u64 = spans.iter().map(|span| span.len as u64).sum();
        let end = op.offset.saturating_add(len);
        if end > self.size || len > i32::MAX as u64 {
            // SAFETY: the caller's promise, passed on.
            return unsafe { execute(op, spans) };
        }
        if self.asked_in != batch {
            self.asked_in = batch;
            self.ask_size(op.fd);
        }
        let pages = pages_of(op.offset, end);
        if self.current_size >= self.size
            && (self.known.all_data(pages.clone()) || self.learn(pages.clone()))
        {
            // SAFETY: the caller's promise, passed on; the range was checked.
            if unsafe { self.copy(op, spans) } {
                return len as i32;
            }
            self.known.set_holes(pages);
            self.ask_size(op.fd);
        }
        // SAFETY: as above.
        unsafe { self.call(op, end, spans) }
    }

    /// A read or write at `offset` is next: its page comes into reach while the one before it is copied.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        guarded::prefetch(self.base.as_ptr().wrapping_add(offset as usize));
    }

    /// Bytes from `start` to `end` are about to be discarded or zeroed.
    pub fn on_zeroed(&mut self, start: u64, end: u64) {
        let end = end.min(self.size);
        // Pages that are zeroed in part keep their memory.
        let (first, last) = (start.div_ceil(PAGE as u64), end / PAGE as u64);
        if first < last {
            self.known.set_holes(first as usize..last as usize);
        }
    }

    #[cfg(test)]
    pub fn known(&self) -> &KnownPages {
        &self.known
    }

    /// # Safety
    /// As [`MappedImage::transfer`]; the range is inside the volume.
    #[inline]
    unsafe fn copy(&self, op: &DiskOp, spans: &[Span]) -> bool {
        let write = matches!(op.kind, DiskKind::Write { .. });
        let mut at = op.offset as usize;
        spans.iter().all(|span| {
            // SAFETY: the span is the caller's promise, and no part of our mapping; `at` is inside that, as the range is. Pages
            // that are gone are what a guarded copy is for, and `new` has armed it.
            let copied = unsafe {
                let ours = self.base.as_ptr().add(at);
                match write {
                    true => guarded::copy(ours, span.base, span.len),
                    false => guarded::copy(span.base, ours, span.len),
                }
            };
            at += span.len;
            copied
        })
    }

    /// # Safety
    /// As [`MappedImage::transfer`].
    #[cold]
    unsafe fn call(&mut self, op: &DiskOp, end: u64, spans: &[Span]) -> i32 {
        let write = matches!(op.kind, DiskKind::Write { .. });
        if write && self.current_size < self.size && end > self.current_size {
            return -libc::EIO;
        }
        // SAFETY: the caller's promise, passed on.
        let result = unsafe { execute(op, spans) };
        if write && result > 0 {
            let end = op.offset + result as u64;
            self.known.set_data(pages_of(op.offset, end));
        }
        result
    }

    fn ask_size(&mut self, fd: RawFd) {
        // The file's position is used by nobody. Where this fails, nothing works: then all is left to system calls.
        // SAFETY: a plain call on an open file.
        let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
        let before = std::mem::replace(&mut self.current_size, size.max(0) as u64);
        if self.current_size < self.size && before >= self.size {
            self.known.forget_all();
        }
    }

    /// Asks about pages of which nothing is known; whether all of them hold data.
    #[cold]
    fn learn(&mut self, pages: std::ops::Range<usize>) -> bool {
        let end = pages.end.div_ceil(CHUNK_PAGES);
        for chunk in pages.start / CHUNK_PAGES..end {
            if !self.known.ask_about(chunk) {
                continue;
            }
            let first = chunk * CHUNK_PAGES;
            let count = CHUNK_PAGES.min(self.mapped_len / PAGE - 1 - first);
            let resident = self.resident(first, count).unwrap_or_default();
            if resident[..count].iter().all(|&resident| resident) {
                self.known.set_data(first..first + count);
                self.populate(first, count);
                continue;
            }
            for (page, resident) in (first..first + count).zip(resident) {
                if resident {
                    self.known.set_data(page..page + 1);
                }
            }
        }
        self.known.all_data(pages)
    }

    /// Maps pages that have memory, in one fault instead of one per page that is written.
    fn populate(&self, first: usize, count: usize) {
        // SAFETY: advice about our own mapping, where it changes no bytes; a kernel that refuses it (before 5.14) leaves the
        // pages to be mapped when they are touched.
        unsafe {
            let from = self.base.as_ptr().add(first * PAGE);
            libc::madvise(from.cast(), count * PAGE, libc::MADV_POPULATE_READ);
        }
    }

    /// Which of some pages have memory. What was swapped out counts as none: a system call brings it back.
    fn resident(&self, first: usize, count: usize) -> Option<[bool; CHUNK_PAGES]> {
        assert!(count <= CHUNK_PAGES && (first + count) * PAGE <= self.mapped_len);
        let mut bytes = [0u8; CHUNK_PAGES];
        // SAFETY: inside the mapping, as just checked, and a byte for each page.
        let failed = unsafe {
            let from = self.base.as_ptr().add(first * PAGE);
            libc::mincore(from.cast(), count * PAGE, bytes.as_mut_ptr()) != 0
        };
        (!failed).then(|| bytes.map(|byte| byte & 1 != 0))
    }
}

impl Drop for MappedImage {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this base and length, and unmapped only here.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_len) };
    }
}
