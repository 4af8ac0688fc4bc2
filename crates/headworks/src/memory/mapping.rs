//! A range of memory whose pages cost nothing until they are written: anonymous, or of a file in memory.
//!
//! Anonymous memory is mapped with MAP_NORESERVE, so it may be larger than the machine's memory: what counts is what is touched. Its
//! pages read as zeros until written, and again after [`Mapping::forget`].
//!
//! Invariant: a mapping never reaches beyond the address space that was reserved for it. The kernel maps and unmaps whole pages of the
//! file's filesystem, 2 MiB or more on hugetlbfs, and MAP_FIXED replaces whatever lies there. So the room is reserved, mapped
//! and unmapped in whole pages of that size ([`page_size`]), and `mapped` is what the kernel has mapped: at least `len`.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use super::Span;
use super::huge::HUGE;
use crate::system::{filesystem_of, opened};

/// The unit in which memory is had from and given back to the kernel.
pub const PAGE: usize = 4096;
/// The filesystem of files in huge pages, as `fstatfs` names it.
const HUGETLBFS: u32 = 0x9584_58f6;
pub(super) const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Anonymous memory, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// Bytes that the kernel has mapped: `len` in whole pages of `page` bytes.
    pub(super) mapped: usize,
    /// The unit in which the kernel maps this memory and takes it back.
    pub(super) page: usize,
    /// How the pages of a range are given back.
    pub(super) giving_back: libc::c_int,
}

// SAFETY: plain memory; `Mapping` hands out raw pointers only, and their users say who may touch what.
unsafe impl Send for Mapping {}
// SAFETY: as above: a shared reference gives addresses, and what is done with them is up to unsafe code.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zero bytes, page aligned.
    ///
    /// # Errors
    /// When `len` is 0 or the kernel has no address space for it.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::with_rights(len, READ_WRITE)
    }

    fn with_rights(len: usize, rights: libc::c_int) -> io::Result<Self> {
        let mapped = len.checked_next_multiple_of(PAGE).ok_or_else(too_long)?;
        let base = map(mapped, rights, libc::MAP_NORESERVE)?;
        // Huge pages would make one written byte cost 2 MiB and gain little: 5-13 % on random 4 KiB copies over 256 MiB.
        // SAFETY: advice about our own mapping; a kernel without huge pages refuses it, which is as good.
        unsafe { libc::madvise(base.as_ptr().cast(), mapped, libc::MADV_NOHUGEPAGE) };
        Ok(Self { base, len, mapped, page: PAGE, giving_back: libc::MADV_DONTNEED })
    }

    /// A mapping of whole pages at a multiple of `align`: more is mapped, and the ends are given back.
    pub(super) fn aligned(len: usize, align: usize, rights: libc::c_int) -> io::Result<Self> {
        let wide = len.checked_add(align).filter(|_| len > 0).ok_or_else(too_long)?;
        let wide = ManuallyDrop::new(Self::with_rights(wide, rights)?);
        let head = wide.base().align_offset(align);
        let base = wide.at(head, len);
        // SAFETY: both ends are of the new mapping and outside the part that is kept; no pointer to them exists.
        unsafe {
            if head > 0 {
                libc::munmap(wide.base().cast(), head);
            }
            libc::munmap(base.add(len).cast(), wide.mapped - head - len);
        }
        let base = NonNull::new(base).ok_or_else(too_long)?;
        Ok(Self { base, len, mapped: len, page: wide.page, giving_back: wide.giving_back })
    }

    /// Maps `len` bytes of a file in memory from `offset` on, shared with every process that maps it; aligned to huge pages, and in
    /// huge pages where the file's filesystem allows that. On hugetlbfs pages that the file does not have are touched only if they are reserved.
    ///
    /// # Errors
    /// When `len` is 0, the range is not inside the file or does not begin with a page of its filesystem, or the kernel has no address
    /// space, or no pages, for it.
    pub fn shared(file: &File, offset: usize, len: usize, reserve: bool) -> io::Result<Self> {
        let page = page_size(file)?;
        if !offset.is_multiple_of(page) {
            let message =
                format!("its filesystem has pages of {page} bytes, and {offset} is inside of one");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let mapped = len.checked_next_multiple_of(page).ok_or_else(too_long)?;
        let mut room = Self::aligned(mapped, HUGE.max(page), libc::PROT_NONE)?;
        // SAFETY: replaces the room, to which there is no other pointer: `mapped` is whole pages of the file's filesystem, so the kernel
        // does not replace more.
        unsafe {
            let (target, reserve) =
                (room.base().cast(), if reserve { 0 } else { libc::MAP_NORESERVE });
            let flags = libc::MAP_SHARED | libc::MAP_FIXED | reserve;
            let (fd, offset) = (file.as_raw_fd(), offset as i64);
            if libc::mmap(target, mapped, READ_WRITE, flags, fd, offset) == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            // A filesystem without huge pages refuses it, which is as good.
            libc::madvise(target, mapped, libc::MADV_HUGEPAGE);
        }
        (room.len, room.page, room.giving_back) = (len, page, libc::MADV_REMOVE);
        Ok(room)
    }

    /// Makes the mapping longer. The new bytes read as zeros. The mapping may move: pointers and spans of it are invalid
    /// afterwards, so no command may be using one.
    ///
    /// # Errors
    /// The kernel has no address space for it; the mapping is as it was.
    pub fn grow(&mut self, len: usize) -> io::Result<()> {
        if len <= self.len {
            return Ok(());
        }
        let mapped = len.checked_next_multiple_of(self.page).ok_or_else(too_long)?;
        // SAFETY: this mapping's own range. Nothing borrows it: `base`, `at` and `span` hand out raw pointers, and their users
        // promise in unsafe code not to use them after a move.
        let base =
            unsafe { libc::mremap(self.base().cast(), self.mapped, mapped, libc::MREMAP_MAYMOVE) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.base = NonNull::new(base.cast()).expect("mremap answers no null");
        (self.len, self.mapped) = (len, mapped);
        Ok(())
    }

    /// Address of the first byte.
    #[inline]
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length of the mapping in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // There is no empty mapping.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The whole mapping as a span.
    ///
    /// # Safety
    /// As [`Span::new`]: the mapping is neither dropped nor grown before the last use of the span.
    #[inline]
    #[must_use]
    pub unsafe fn span(&self) -> Span {
        // SAFETY: passed on to the caller.
        unsafe { Span::new(self.base(), self.len) }
    }

    /// The address of the byte at `offset`, whose next `len` bytes are inside.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    #[inline]
    #[must_use]
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "a range inside the mapping");
        // SAFETY: just checked to be inside.
        unsafe { self.base().add(offset) }
    }

    /// Gives the pages of a part back to the kernel as far as it takes them (locked memory and reserved huge pages it does not): the
    /// bytes of the part do not matter any more.
    ///
    /// # Safety
    /// The part is not read or written meanwhile, and its content is not needed.
    ///
    /// # Panics
    /// If the part is not whole pages of this mapping.
    pub unsafe fn release(&self, part: Span) {
        let offset = (part.base() as usize).wrapping_sub(self.base() as usize);
        let len = part.len();
        assert!(offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE), "a range of whole pages");
        let start = self.at(offset, len);
        if self.is_reserved() {
            return;
        }
        let is_anonymous = self.giving_back == libc::MADV_DONTNEED;
        // SAFETY: the range is ours and unused by the caller's promise.
        unsafe {
            if is_anonymous && len < HUGE {
                // Splits a huge page of which this is a part: otherwise none of it is free before all of it is.
                libc::madvise(start.cast(), len, libc::MADV_FREE);
            }
            libc::madvise(start.cast(), len, self.giving_back);
        }
    }

    /// Gives the pages of a range back to the kernel: it reads as zeros again. The range is made of whole pages.
    ///
    /// # Safety
    /// The range is not read or written meanwhile, and its content is not needed.
    pub unsafe fn forget(&self, offset: usize, len: usize) {
        assert!(offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE), "a range of whole pages");
        let start = self.at(offset, len);
        // SAFETY: the range is ours and unused by the caller's promise.
        let given_back = !self.is_reserved()
            && unsafe { libc::madvise(start.cast(), len, self.giving_back) } == 0;
        if !given_back {
            // Locked memory (mlockall) refuses; what counts is that the range reads as zeros.
            // SAFETY: as above.
            unsafe { start.write_bytes(0, len) };
        }
    }

    /// Whether the pages come from the operator's reserve of huge pages. One that is given back can be taken by others, and the next
    /// touch would raise SIGBUS; so they are kept.
    fn is_reserved(&self) -> bool {
        self.page > PAGE
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` or `shared` with this base and length in whole pages, and unmapped only here.
        unsafe { libc::munmap(self.base().cast(), self.mapped) };
    }
}

/// Maps `len` private bytes at an address of the kernel's choice.
pub(super) fn map(len: usize, rights: libc::c_int, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new mapping touches no memory of ours.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(base.cast()).expect("mmap never answers null without MAP_FIXED"))
}

pub(super) fn too_long() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// Returns the unit in which the kernel maps a file: the size of a huge page on hugetlbfs, else [`PAGE`].
///
/// # Errors
/// The kernel does not say.
pub fn page_size(file: &File) -> io::Result<usize> {
    let found = filesystem_of(file)?;
    let is_huge = found.f_type as u32 == HUGETLBFS;
    let size = usize::try_from(found.f_bsize).ok().filter(|size| size.is_power_of_two());
    Ok(size.filter(|size| is_huge && *size >= PAGE).unwrap_or(PAGE))
}

/// A file in memory without a path; `name` is what `/proc` shows for it.
pub fn memory_file(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: the name is terminated; what the call opens is owned by nothing else.
    unsafe { opened(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC)) }.map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grown_mapping_keeps_bytes_and_new_bytes_are_zero() {
        let mut mapping = Mapping::new(2 * PAGE).unwrap();
        // SAFETY: our own memory, inside the mapping.
        unsafe { mapping.at(2 * PAGE - 1, 1).write(7) };
        mapping.grow(1 << 20).unwrap();
        // SAFETY: as above.
        let seen = unsafe { (*mapping.at(2 * PAGE - 1, 1), *mapping.at((1 << 20) - 1, 1)) };
        assert_eq!((seen, mapping.len()), ((7, 0), 1 << 20));
        assert!(mapping.grow(usize::MAX / 2).is_err());
        assert_eq!(mapping.len(), 1 << 20);
    }

    #[test]
    fn mapping_reads_zeros_until_written_and_after_forget() {
        let mapping = Mapping::new(16 * PAGE).unwrap();
        let byte = mapping.at(3 * PAGE + 5, 1);
        // SAFETY: inside a mapping that only this test knows.
        unsafe {
            assert_eq!(byte.read(), 0);
            byte.write(7);
            assert_eq!(byte.read(), 7);
            mapping.forget(3 * PAGE, PAGE);
            assert_eq!(byte.read(), 0);
        }
    }

    #[test]
    fn mapping_may_exceed_physical_memory() {
        // 16 TiB: more than any machine this test runs on has.
        assert!(Mapping::new(16 << 40).is_ok());
        assert!(Mapping::new(usize::MAX & !(PAGE - 1)).is_err());
        assert!(Mapping::new(0).is_err());
    }

    /// A memfd in huge pages; none without such pages, whose number an operator sets.
    fn huge_file(bytes: usize) -> Option<File> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB;
        // SAFETY: makes a new descriptor.
        let fd = unsafe { libc::memfd_create(c"huge".as_ptr(), flags) };
        // SAFETY: it is new, and ours alone.
        let file = unsafe { opened(fd) }.map(File::from).ok()?;
        file.set_len(bytes as u64).ok()?;
        // Where the pool has none, the kernel has no pages to map.
        Mapping::shared(&file, 0, bytes, true).ok()?;
        Some(file)
    }

    #[test]
    fn mapping_in_huge_pages_stays_within_its_room_and_is_unmapped() {
        let Some(file) = huge_file(2 * HUGE) else {
            eprintln!("skipped: the machine has no reserved huge pages (vm.nr_hugepages)");
            return;
        };
        assert_eq!(page_size(&file).unwrap(), HUGE);
        for len in [1, PAGE, HUGE - PAGE, HUGE, HUGE + PAGE] {
            let mapping = Mapping::shared(&file, 0, len, true).unwrap();
            assert_eq!((mapping.len(), mapping.mapped), (len, len.next_multiple_of(HUGE)));
            let (base, mapped) = (mapping.base(), mapping.mapped);
            // SAFETY: memory of this mapping, whose byte is inside.
            unsafe { mapping.at(len - 1, 1).write(7) };
            drop(mapping);
            // Nothing of it is left: its addresses can be had again, and by nobody else than asked for.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a new mapping that replaces nothing, unmapped at once.
            unsafe {
                let again = libc::mmap(base.cast(), mapped, libc::PROT_NONE, flags, -1, 0);
                assert!(again == base.cast(), "the mapping of {len} bytes is still there");
                libc::munmap(again, mapped);
            }
        }
        let inside = Mapping::shared(&file, PAGE, PAGE, true).unwrap_err().to_string();
        assert!(inside.contains("pages of 2097152 bytes"), "{inside}");
    }

    #[test]
    fn part_of_a_huge_page_reads_as_zeros_after_forget() {
        let Some(file) = huge_file(HUGE) else { return };
        let mapping = Mapping::shared(&file, 0, HUGE, true).unwrap();
        let byte = mapping.at(3 * PAGE, 1);
        // SAFETY: inside a mapping that only this test knows.
        unsafe {
            byte.write(7);
            mapping.release(mapping.span().part(3 * PAGE, PAGE));
            mapping.forget(3 * PAGE, PAGE);
            assert_eq!(byte.read(), 0);
        }
    }

    #[test]
    fn lengths_are_mapped_in_whole_pages() {
        let mapping = Mapping::new(5).unwrap();
        assert_eq!((mapping.len(), mapping.mapped, mapping.page), (5, PAGE, PAGE));
        let file = memory_file(c"pages").unwrap();
        file.set_len(3 * PAGE as u64).unwrap();
        let mapping = Mapping::shared(&file, PAGE, PAGE + 1, true).unwrap();
        assert_eq!((mapping.len(), mapping.mapped, mapping.page), (PAGE + 1, 2 * PAGE, PAGE));
        assert!(
            Mapping::shared(&file, 0, 0, true).is_err()
                && Mapping::shared(&file, 0, usize::MAX, true).is_err()
        );
    }

    #[test]
    #[should_panic(expected = "inside the mapping")]
    fn range_that_wraps_is_rejected() {
        let mapping = Mapping::new(PAGE).unwrap();
        let _ = mapping.at(1, usize::MAX);
    }
}
