//! A mapping in huge pages where the machine has them.
//!
//! A cache copies between its frames and buffers all over its range: pages of 2 MiB avoid most TLB misses, and a folio of the
//! largest order is one page. The kinds of pages, in order of preference:
//!
//! ```text
//!   transparent (MADV_HUGEPAGE)   allocated on first touch; needs no rights and no reservation
//!   reserved    (MAP_HUGETLB)     used where transparent ones are off; from the operator's pool (vm.nr_hugepages)
//!   ordinary                      4 KiB
//! ```
//!
//! Memory is allocated on first touch. Reserved pages are set aside at once: without a reservation a touch could raise SIGBUS.

use std::fs;
use std::io;
use std::ops::Range;

use headworks_core::{CacheOptions, ConfigError};

use super::Mapping;
use super::mapping::{READ_WRITE, map, too_long};
use crate::size::display_size;

/// Size of a huge page; machines with another size get ordinary pages.
pub const HUGE: usize = 2 << 20;
/// `MAP_HUGE_2MB`: log2 of the size at bit 26.
const MAP_HUGE_2MB: libc::c_int = 21 << 26;
/// File with the kernel's policy for transparent huge pages.
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Size of the smallest table that gets huge pages.
const TABLE_MIN: usize = HUGE / 8;

/// Description of a mapping in transparent huge pages.
const TRANSPARENT_PAGES: &str = "transparent huge pages";
/// Description of a mapping in reserved huge pages.
const RESERVED_PAGES: &str = "reserved huge pages";
/// Description of a mapping in pages of 4 KiB.
const ORDINARY_PAGES: &str = "ordinary pages: the kernel has no huge ones";

impl Mapping {
    /// Maps the frames of a shard's cache and describes their pages; none without a cache.
    ///
    /// Frames take no memory until they are written.
    ///
    /// # Errors
    /// The kernel has no address space for the frames.
    pub fn for_frames(cache: &CacheOptions) -> Result<Option<(Self, &'static str)>, ConfigError> {
        if !cache.is_on() {
            return Ok(None);
        }
        let bytes = cache.units as usize * 4096;
        Self::huge(bytes).map(Some).map_err(|error| {
            ConfigError::new("cache", format!("cannot map {}: {error}", display_size(bytes as u64)))
        })
    }

    /// Requests huge pages for existing, long-lived tables: those of [`Shard::cache_tables`].
    ///
    /// A cached read of 4 KiB touches three places in them; with ordinary pages each is a TLB miss, 7 % of a random read. A
    /// kernel without huge pages refuses the request, which is harmless.
    ///
    /// [`Shard::cache_tables`]: headworks_core::Shard::cache_tables
    pub fn tables_in_huge_pages(tables: impl Iterator<Item = Range<*const u8>>) {
        for table in tables {
            let (start, end) = (table.start as usize, table.end as usize);
            if end - start < TABLE_MIN {
                continue;
            }
            // Whole huge pages, including the neighbours of the table in the first and last page, which move with it.
            let start = start & !(HUGE - 1);
            let len = end.next_multiple_of(HUGE) - start;
            let base = std::ptr::without_provenance_mut(start);
            // What is touched from now on is in huge pages; the tables grow, and little of them was touched before.
            // SAFETY: only the page size changes; the range keeps its addresses and content.
            unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        }
    }

    /// Maps at least `len` zero bytes, in huge pages if possible, aligned to their size; describes the pages.
    ///
    /// # Errors
    /// When `len` is 0 or the kernel has no address space for it.
    pub fn huge(len: usize) -> io::Result<(Self, &'static str)> {
        let transparent = fs::read_to_string(TRANSPARENT).is_ok_and(|text| is_on(&text));
        let whole = len.checked_next_multiple_of(HUGE).ok_or_else(too_long)?;
        if transparent && let Some(mapping) = Self::aligned(whole, HUGE, READ_WRITE)?.advised() {
            return Ok((mapping, TRANSPARENT_PAGES));
        }
        if let Ok(mapping) = Self::reserved(whole) {
            return Ok((mapping, RESERVED_PAGES));
        }
        Ok((Self::new(len)?, ORDINARY_PAGES))
    }

    /// Asks for transparent huge pages; none if the kernel has none.
    fn advised(self) -> Option<Self> {
        // SAFETY: advice about our own mapping.
        let refused = unsafe { libc::madvise(self.base().cast(), self.len, libc::MADV_HUGEPAGE) };
        (refused == 0).then_some(self)
    }

    /// Pages that were reserved, if there are enough. Without MAP_NORESERVE: the kernel counts now whether they suffice.
    fn reserved(len: usize) -> io::Result<Self> {
        let base = map(len, READ_WRITE, libc::MAP_HUGETLB | MAP_HUGE_2MB)?;
        Ok(Self { base, len, mapped: len, page: HUGE, giving_back: libc::MADV_DONTNEED })
    }
}

/// `always [madvise] never`: on unless the last is chosen.
fn is_on(text: &str) -> bool {
    ["[always]", "[madvise]"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of resident pages of the mapping.
    fn resident(mapping: &Mapping) -> usize {
        let mut pages = vec![0u8; mapping.len() / 4096];
        // SAFETY: one byte for each page of the mapping.
        let failed =
            unsafe { libc::mincore(mapping.base().cast(), mapping.len(), pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn mapping_is_aligned_zero_and_allocated_on_touch() {
        let (mapping, pages) = Mapping::huge(64 << 20).unwrap();
        assert_eq!(resident(&mapping), 0);
        if pages != ORDINARY_PAGES {
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
    fn tables_keep_their_content_at_any_alignment() {
        let table: Vec<u32> = (0..1 << 21).collect();
        for part in [&table[..], &table[1234..], &table[..5], &table[1 << 20..(1 << 20) + 400_000]]
        {
            let range = part.as_ptr_range();
            Mapping::tables_in_huge_pages([range.start.cast()..range.end.cast()].into_iter());
        }
        assert!((0..1 << 21).eq(table.iter().copied()));
    }

    #[test]
    fn odd_length_is_rounded_up_and_impossible_length_is_rejected() {
        let (mapping, _) = Mapping::huge(4096 * 3).unwrap();
        assert!(mapping.len() >= 4096 * 3);
        assert!(Mapping::huge(0).is_err() && Mapping::huge(usize::MAX).is_err());
        assert!(Mapping::huge(16 << 40).is_ok());
    }

    #[test]
    fn kernel_policy_is_parsed() {
        assert!(is_on("always [madvise] never\n") && is_on("[always] madvise never"));
        assert!(!is_on("always madvise [never]\n") && !is_on(""));
    }
}
