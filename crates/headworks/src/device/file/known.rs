//! Which pages of a mapped image are known to hold data.
//!
//! Reading a hole of a file in memory through a mapping gives it a page, for ever: a client that reads a sparse image once
//! would make it full. So only pages that are known to be there are touched. A bit per page says so, a bit per chunk that the
//! kernel was asked about it:
//!
//! ```text
//!   unknown  --asked: it has a page, or we wrote it-->  data  --discarded, zeroed, or a fault-->  unknown
//! ```
//!
//! Invariant: **a page whose bit is set has memory**, as far as we alone change the file. A clear bit says nothing.

use std::ops::Range;

use crate::memory::PAGE;

/// Pages that the kernel is asked about at once, 64 KiB: as much as one read fault maps, and the question takes about 1 us.
pub const CHUNK_PAGES: usize = 16;

/// A bit per page, and one per chunk.
#[derive(Debug)]
pub struct KnownPages {
    pages: usize,
    data: Vec<u64>,
    asked: Vec<u64>,
}

/// The pages that a range of bytes touches.
#[inline]
pub fn pages_of(start: u64, end: u64) -> Range<usize> {
    (start / PAGE as u64) as usize..(end.div_ceil(PAGE as u64)) as usize
}

impl KnownPages {
    /// Nothing is known of any of `pages`. Memory is used for what becomes known.
    pub fn new(pages: usize) -> Self {
        // From the kernel as zeros, and not touched.
        Self {
            pages,
            data: vec![0; pages.div_ceil(64)],
            asked: vec![0; pages.div_ceil(CHUNK_PAGES).div_ceil(64)],
        }
    }

    /// Whether all of them hold data. One test for most requests, a word at a time for the largest.
    #[inline]
    pub fn all_data(&self, pages: Range<usize>) -> bool {
        words(pages).all(|(word, mask)| self.data[word] & mask == mask)
    }

    /// They have memory now.
    pub fn set_data(&mut self, pages: Range<usize>) {
        for (word, mask) in words(pages) {
            self.data[word] |= mask;
        }
    }

    /// They may have none. The kernel need not be asked again: it was we who took it.
    pub fn set_holes(&mut self, pages: Range<usize>) {
        for (word, mask) in words(pages) {
            self.data[word] &= !mask;
        }
    }

    /// Nothing is known of any page, and the kernel may be asked again.
    pub fn forget_all(&mut self) {
        // Not filled with zeros: that would touch all of it.
        *self = Self::new(self.pages);
    }

    /// A chunk about which the kernel was not asked before, and now is.
    pub fn ask_about(&mut self, chunk: usize) -> bool {
        let (word, mask) = (chunk / 64, 1 << (chunk % 64));
        let first = self.asked[word] & mask == 0;
        self.asked[word] |= mask;
        first
    }
}

/// The words of a bitmap that a range of bits touches, each with the bits that are in the range.
#[inline]
fn words(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (bits.start, bits.end);
    (start / 64..end.div_ceil(64).max(start / 64)).map(move |word| {
        let from = start.saturating_sub(word * 64);
        let until = (end - word * 64).min(64);
        let mask = match until {
            64 => u64::MAX,
            _ => (1 << until) - 1,
        };
        (word, mask & (u64::MAX << from))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use headworks_core::prng::Prng;

    use super::*;

    #[test]
    fn agrees_with_a_set_of_pages() {
        const PAGES: usize = 300;
        let mut known = KnownPages::new(PAGES);
        let mut model = HashSet::new();
        let mut prng = Prng::new(11);
        for step in 0..4000 {
            let start = prng.below(PAGES as u64) as usize;
            let end = start + prng.below((PAGES - start) as u64 + 1) as usize;
            match prng.below(3) {
                0 => {
                    known.set_data(start..end);
                    model.extend(start..end);
                }
                1 => {
                    known.set_holes(start..end);
                    model.retain(|page| !(start..end).contains(page));
                }
                _ => {}
            }
            let all = (start..end).all(|page| model.contains(&page));
            assert_eq!(known.all_data(start..end), all, "step {step}: {start}..{end}");
            let one = prng.below(PAGES as u64) as usize;
            assert_eq!(known.all_data(one..one + 1), model.contains(&one));
        }
        known.forget_all();
        assert!((0..PAGES).all(|page| !known.all_data(page..page + 1)));
    }

    #[test]
    fn a_chunk_is_asked_about_once_until_all_is_forgotten() {
        let mut known = KnownPages::new(100 * CHUNK_PAGES);
        for _ in 0..2 {
            for chunk in [0, 63, 64, 99] {
                assert!(known.ask_about(chunk));
                assert!(!known.ask_about(chunk));
            }
            known.forget_all();
        }
    }

    #[test]
    fn pages_are_those_that_a_range_touches() {
        assert_eq!(pages_of(0, 4096), 0..1);
        assert_eq!(pages_of(4095, 4097), 0..2);
        assert_eq!(pages_of(8192, 8193), 2..3);
    }
}
