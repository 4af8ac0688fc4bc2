//! A mapping in huge pages, if the machine has any to give.
//!
//! A cache copies between its frames and buffers all over its range: pages of 2 MiB save most misses of the TLB, and a folio of
//! the largest order is one page. What is had is asked for in this order, and said:
//!
//! ```text
//!   transparent (MADV_HUGEPAGE)   the kernel makes them as they are touched; needs no rights and takes nothing from anybody
//!   reserved    (MAP_HUGETLB)     where transparent ones are off; somebody reserved them (vm.nr_hugepages) for programs like this
//!   ordinary                      4 KiB
//! ```
//!
//! Whichever it is, memory is taken only when it is touched, but reserved pages are set aside at once: or a touch would kill.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::Mapping;

/// The size of a huge page; where the machine's are of another size it has none that are asked for here.
pub const HUGE: usize = 2 << 20;
/// `MAP_HUGE_2MB`: log2 of the size at bit 26.
const MAP_HUGE_2MB: libc::c_int = 21 << 26;
/// Whether the kernel makes huge pages as they are touched.
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// What a mapping is made of, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pages {
    /// 2 MiB where the kernel finds them.
    Transparent,
    /// 2 MiB, reserved by the operator.
    Reserved,
    /// 4 KiB.
    Ordinary,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Transparent => "transparent huge pages",
            Pages::Reserved => "reserved huge pages",
            Pages::Ordinary => "ordinary pages: the kernel has no huge ones",
        })
    }
}

/// Smaller tables do not fill enough of a huge page.
const TABLE_MIN: usize = HUGE / 8;

/// Asks for huge pages for tables that are there already, are looked at all over, and stay: those of [`Shard::cache_tables`]. (A
/// hit of 4 KiB looks at three places in them; with ordinary pages each misses the TLB: 7 % of a random 4 KiB read.) A kernel
/// that has none refuses, which only costs time.
///
/// [`Shard::cache_tables`]: headworks_core::Shard::cache_tables
pub fn tables_in_huge_pages(tables: impl Iterator<Item = Range<*const u8>>) {
    for table in tables {
        let (start, end) = (table.start as usize, table.end as usize);
        if end - start < TABLE_MIN {
            continue;
        }
        // Whole huge pages, what else lies in the first and the last included: it is moved with them.
        let start = start & !(HUGE - 1);
        let len = end.next_multiple_of(HUGE) - start;
        let base = std::ptr::without_provenance_mut(start);
        // SAFETY: only the size of pages changes; whatever lies there keeps its address and its content.
        unsafe {
            libc::madvise(base, len, libc::MADV_HUGEPAGE);
            libc::madvise(base, len, libc::MADV_COLLAPSE);
        }
    }
}

impl Mapping {
    /// Maps at least `len` zero bytes, in huge pages if possible, aligned to their size.
    ///
    /// # Errors
    /// When `len` is 0 or the kernel has no address space for it.
    pub fn huge(len: usize) -> io::Result<(Self, Pages)> {
        let transparent = fs::read_to_string(TRANSPARENT).is_ok_and(|text| is_on(&text));
        if transparent && let Some(mapping) = Self::aligned(len)?.advised() {
            return Ok((mapping, Pages::Transparent));
        }
        if let Some(mapping) = Self::reserved(len) {
            return Ok((mapping, Pages::Reserved));
        }
        Ok((Self::new(len)?, Pages::Ordinary))
    }

    /// An ordinary mapping at an address that huge pages can have: more is mapped, and the ends are given back.
    fn aligned(len: usize) -> io::Result<Self> {
        let too_long = || io::Error::from_raw_os_error(libc::ENOMEM);
        let whole = len.checked_next_multiple_of(HUGE).ok_or_else(too_long)?;
        let wide = whole.checked_add(HUGE).filter(|_| len > 0).ok_or_else(too_long)?;
        let mapping = std::mem::ManuallyDrop::new(Self::new(wide)?);
        let start = mapping.base();
        let head = start.align_offset(HUGE);
        let base = mapping.at(head, whole);
        // SAFETY: both ends are of the new mapping, outside of what is kept; nobody knows of them.
        unsafe {
            if head > 0 {
                libc::munmap(start.cast(), head);
            }
            libc::munmap(base.add(whole).cast(), HUGE - head);
        }
        Ok(Self { base: NonNull::new(base).ok_or_else(too_long)?, len: whole })
    }

    /// Asks for transparent huge pages; none if the kernel has none.
    fn advised(self) -> Option<Self> {
        // SAFETY: advice about our own mapping.
        let refused = unsafe { libc::madvise(self.base().cast(), self.len, libc::MADV_HUGEPAGE) };
        (refused == 0).then_some(self)
    }

    /// Pages that were reserved, if there are enough. Without MAP_NORESERVE: the kernel counts now whether they suffice.
    fn reserved(len: usize) -> Option<Self> {
        let whole = len.checked_next_multiple_of(HUGE).filter(|whole| *whole > 0)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | MAP_HUGE_2MB;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), whole, rights, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(base.cast()).map(|base| Self { base, len: whole })
    }
}

/// `always [madvise] never`: on unless the last is chosen.
fn is_on(text: &str) -> bool {
    ["[always]", "[madvise]"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of the range that are in memory.
    fn resident(mapping: &Mapping) -> usize {
        let mut pages = vec![0u8; mapping.len() / 4096];
        // SAFETY: one byte for each page of the mapping.
        let failed =
            unsafe { libc::mincore(mapping.base().cast(), mapping.len(), pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn it_is_aligned_zero_and_costs_what_is_touched() {
        let (mapping, pages) = Mapping::huge(64 << 20).unwrap();
        assert_eq!(resident(&mapping), 0);
        if pages != Pages::Ordinary {
            assert_eq!(mapping.base() as usize % HUGE, 0);
        }
        let last = mapping.at(mapping.len() - 1, 1);
        // SAFETY: inside a mapping that only this test knows.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
        let touched = resident(&mapping);
        assert!((1..=HUGE / 4096).contains(&touched), "{touched} pages for one byte");
    }

    #[test]
    fn tables_keep_what_they_hold_wherever_they_begin() {
        let table: Vec<u32> = (0..1 << 21).collect();
        for part in [&table[..], &table[1234..], &table[..5], &table[1 << 20..(1 << 20) + 400_000]]
        {
            let range = part.as_ptr_range();
            tables_in_huge_pages([range.start.cast()..range.end.cast()].into_iter());
        }
        assert!((0..1 << 21).eq(table.iter().copied()));
    }

    #[test]
    fn odd_lengths_are_rounded_up_and_impossible_ones_refused() {
        let (mapping, _) = Mapping::huge(4096 * 3).unwrap();
        assert!(mapping.len() >= 4096 * 3);
        assert!(Mapping::huge(0).is_err() && Mapping::huge(usize::MAX).is_err());
        assert!(Mapping::huge(16 << 40).is_ok());
    }

    #[test]
    fn the_kernels_word_is_understood() {
        assert!(is_on("always [madvise] never\n") && is_on("[always] madvise never"));
        assert!(!is_on("always madvise [never]\n") && !is_on(""));
    }
}
