//! Which blocks are ours: one bit a block, and what of it is on the disk.
//!
//! ```text
//!   live      set when a write has completed; what reads go by            (atomic: other threads may look)
//!   covered   what a round writes: `live` as it was before the round's first sync
//!   dirty     pages of the bitmap in which `live` has bits that `covered` has not
//! ```
//!
//! Bits are never cleared while a bitmap is open. `covered` changes at the start of a round only, so the pages that the round writes
//! are stable. A page is 4 KiB, bits of 128 MiB; a torn page holds old and new sectors, and each is right by itself.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::head::{BLOCK, HEAD_BYTES, bitmap_bytes};
use headworks::driver::Span;
use headworks::house::Mapping;

/// Bytes of a page of the bitmap.
pub(super) const PAGE_BYTES: usize = 4096;
/// Words of a page.
const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Blocks whose bits share a page.
pub(super) const PAGE_BLOCKS: u64 = PAGE_BYTES as u64 * 8;
/// `live` has bits of the page that no round has taken.
const DIRTY: u8 = 1;
/// The current round writes the page.
const WRITING: u8 = 2;

/// The bits that reads go by. Only the device, or what writes the file before it is served, sets them.
pub(super) struct LiveBits {
    words: Mapping,
    blocks: u64,
}

impl std::fmt::Debug for LiveBits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveBits").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl LiveBits {
    /// Bits of a volume of `size` bytes, all zero.
    ///
    /// # Errors
    /// The kernel has no address space for them.
    pub fn new(size: u64) -> io::Result<Self> {
        let words = Mapping::new(bitmap_bytes(size) as usize)?;
        Ok(Self { words, blocks: size.div_ceil(BLOCK) })
    }

    /// The bitmap as it is in the file, to be filled before the first use.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the whole of our own mapping, which is zeros or what was stored; `&mut` excludes other uses.
        unsafe { std::slice::from_raw_parts_mut(self.words.base(), self.words.len()) }
    }

    /// Makes whole words of the file words of this machine, and clears bits beyond the end. Returns the number of those.
    pub fn adopt(&mut self, bytes: Range<usize>) -> u64 {
        let mut beyond = 0;
        let range = bytes.start / 8..bytes.end / 8;
        for (index, word) in range.clone().zip(&self.words()[range]) {
            let found = word.load(Relaxed);
            let stored = u64::from_le(found);
            let valid = self.valid(index as u64);
            beyond += u64::from((stored & !valid).count_ones());
            // Most words are as they should be: no page is written for nothing.
            if found != stored & valid {
                word.store(stored & valid, Relaxed);
            }
        }
        beyond
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, whole words, initialised (zeros) and ours; all shared access is atomic.
        unsafe { std::slice::from_raw_parts(self.words.base().cast(), self.words.len() / 8) }
    }

    /// Number of blocks that are ours.
    pub fn count(&self) -> u64 {
        self.words().iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }

    /// Whether the block is ours, and of how many blocks from it on, `limit` at most, this is true. `limit` is not 0, and the range is
    /// inside the volume.
    pub fn run(&self, first: u64, limit: u64) -> (bool, u64) {
        let words = self.words();
        let word = |index: u64| words[index as usize].load(Relaxed);
        let live = word(first / 64) >> (first % 64) & 1 == 1;
        let other = |index: u64| if live { !word(index) } else { word(index) };
        let mut index = first / 64;
        // What lies before the block does not count.
        let mut differ = other(index) >> (first % 64) << (first % 64);
        while differ == 0 && (index + 1) * 64 < first + limit {
            index += 1;
            differ = other(index);
        }
        let end = index * 64 + u64::from(differ.trailing_zeros());
        (live, (end - first).min(limit))
    }

    /// Whether all blocks of the range are ours.
    pub fn all(&self, first: u64, count: u64) -> bool {
        count == 0 || self.run(first, count) == (true, count)
    }

    /// Sets the bits of a range; calls `changed` with each word in which a bit is new.
    pub fn set(&self, first: u64, count: u64, mut changed: impl FnMut(u64)) {
        let (words, end) = (self.words(), first + count);
        for index in first / 64..end.div_ceil(64) {
            let from = first.max(index * 64) % 64;
            let bits = (end - index * 64).min(64) - from;
            let mask = u64::MAX >> (64 - bits) << from;
            let word = &words[index as usize];
            if word.load(Relaxed) & mask != mask {
                word.fetch_or(mask, Relaxed);
                changed(index);
            }
        }
    }

    /// Sets the bits that stored words have, which belong at a byte of the stored bitmap; calls `changed` with each word in which a bit
    /// is new. Bits beyond the end are ignored.
    pub fn add(&self, at: u64, stored: &[u8], mut changed: impl FnMut(u64)) {
        for (index, word) in (at / 8..).zip(stored.chunks_exact(8)) {
            let bits = u64::from_le_bytes(word.try_into().unwrap_or_default()) & self.valid(index);
            let word = &self.words()[index as usize];
            if bits & !word.load(Relaxed) != 0 {
                word.fetch_or(bits, Relaxed);
                changed(index);
            }
        }
    }

    /// The bits of a word that belong to blocks of the volume.
    fn valid(&self, word: u64) -> u64 {
        match self.blocks.saturating_sub(word * 64) {
            64.. => u64::MAX,
            some => (1 << some) - 1,
        }
    }

    /// The words in which these or other bits of the same volume are set, with both.
    pub fn or(&self, other: &Self) -> Vec<(u64, u64)> {
        let both = self.words().iter().zip(other.words());
        let words = both.map(|(one, other)| one.load(Relaxed) | other.load(Relaxed));
        (0..).zip(words).filter(|(_, bits)| *bits != 0).collect()
    }

    /// A word as it is stored in the file.
    pub fn stored_word(&self, index: u64) -> [u8; 8] {
        self.words()[index as usize].load(Relaxed).to_le_bytes()
    }
}

/// The bitmap of an overlay.
#[derive(Debug)]
pub(super) struct Bitmap {
    live: Arc<LiveBits>,
    covered: Mapping,
    /// `DIRTY` and `WRITING`, by page.
    pages: Vec<u8>,
    /// Pages that are `DIRTY`, in any order.
    dirty: Vec<u32>,
    /// Pages that are `WRITING`, ascending.
    writing: Vec<u32>,
}

impl Bitmap {
    /// All bits of `live` are on the disk.
    ///
    /// # Errors
    /// The kernel has no address space for a copy.
    pub fn new(live: Arc<LiveBits>) -> io::Result<Self> {
        let (bytes, pages) = (live.words.len(), live.words.len() / PAGE_BYTES);
        Ok(Self {
            covered: Mapping::new(bytes)?,
            pages: vec![0; pages],
            dirty: Vec::with_capacity(pages.min(1024)),
            writing: Vec::with_capacity(pages.min(1024)),
            live,
        })
    }

    /// The bits that reads go by.
    pub fn live(&self) -> &Arc<LiveBits> {
        &self.live
    }

    /// The blocks are ours: their write has completed. Calls `changed` with the page of each word in which a bit is new.
    pub fn set(&mut self, first: u64, count: u64, mut changed: impl FnMut(u32)) {
        let Self { live, pages, dirty, .. } = self;
        live.set(first, count, |word| {
            let page = (word / PAGE_WORDS as u64) as u32;
            mark(pages, dirty, page);
            changed(page);
        });
    }

    /// `live` has bits of these pages that are not on the disk.
    pub fn mark_pending(&mut self, pending: &[u32]) {
        pending.iter().for_each(|&page| mark(&mut self.pages, &mut self.dirty, page));
    }

    /// Whether the bits of these blocks are set and on the disk.
    pub fn is_on_disk(&self, first: u64, count: u64) -> bool {
        let pages = first / PAGE_BLOCKS..(first + count).div_ceil(PAGE_BLOCKS);
        self.live.all(first, count) && pages.clone().all(|page| self.pages[page as usize] == 0)
    }

    /// Whether all bits are on the disk. Those that a killed process left in the here bits are not, before the first round.
    pub fn is_all_on_disk(&self) -> bool {
        self.dirty.is_empty() && self.writing.is_empty()
    }

    /// Starts a round: from here on later bits wait for the next one. Returns true if there is something to write.
    pub fn begin_round(&mut self) -> bool {
        std::mem::swap(&mut self.dirty, &mut self.writing);
        self.writing.sort_unstable();
        for &page in &self.writing {
            self.pages[page as usize] = WRITING;
            let first = page as usize * PAGE_WORDS;
            for word in first..first + PAGE_WORDS {
                let stored = self.live.stored_word(word as u64);
                // SAFETY: inside our own mapping; no command uses this page, because no round is under way.
                unsafe { self.covered.at(word * 8, 8).cast::<[u8; 8]>().write_unaligned(stored) };
            }
        }
        !self.writing.is_empty()
    }

    /// Ends a round. After a failure its pages wait for the next one.
    pub fn end_round(&mut self, written: bool) {
        let Self { pages, dirty, writing, .. } = self;
        for page in writing.drain(..) {
            pages[page as usize] &= !WRITING;
            if !written {
                mark(pages, dirty, page);
            }
        }
    }

    /// Adjacent pages of the round, from the `from`th of its list on: the first page, and how many.
    pub fn pages_to_write(&self, from: usize, most: usize) -> Option<(u32, usize)> {
        let first = *self.writing.get(from)?;
        let list = self.writing[from..].iter().take(most).enumerate();
        let count = list.take_while(|&(at, &page)| page == first + at as u32).count();
        Some((first, count))
    }

    /// Bytes of pages that the round writes.
    ///
    /// # Safety
    /// The span is only read, and not after the bitmap was dropped or the round has ended.
    pub unsafe fn covered_span(&self, page: u32, pages: usize) -> Span {
        let len = pages * PAGE_BYTES;
        // SAFETY: inside our mapping, which stays where it is; bytes of the round's pages do not change while it is under way.
        unsafe { Span::new(self.covered.at(page as usize * PAGE_BYTES, len), len) }
    }
}

/// Offset of a page of the bitmap in the file.
pub(super) fn page_offset(page: u32) -> u64 {
    HEAD_BYTES as u64 + u64::from(page) * PAGE_BYTES as u64
}

fn mark(pages: &mut [u8], dirty: &mut Vec<u32>, page: u32) {
    let state = &mut pages[page as usize];
    if *state & DIRTY == 0 {
        *state |= DIRTY;
        dirty.push(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    fn bits(blocks: u64) -> LiveBits {
        LiveBits::new(blocks * BLOCK).unwrap()
    }

    #[test]
    fn runs_and_sets_match_a_vector_of_flags() {
        let mut prng = Prng::new(1);
        for blocks in [1, 63, 64, 65, 300] {
            let (bits, mut model) = (bits(blocks), vec![false; blocks as usize]);
            for _ in 0..200 {
                let first = prng.below(blocks);
                let count = 1 + prng.below((blocks - first).min(80));
                if prng.below(3) == 0 {
                    bits.set(first, count.min(5), |_| {});
                    let end = first + count.min(5);
                    model[first as usize..end as usize].fill(true);
                }
                let rest = &model[first as usize..(first + count) as usize];
                let expected = rest.iter().take_while(|bit| **bit == rest[0]).count() as u64;
                assert_eq!(bits.run(first, count), (rest[0], expected), "{first} {count}");
                assert_eq!(bits.all(first, count), rest.iter().all(|bit| *bit));
            }
            assert_eq!(bits.count(), model.iter().filter(|bit| **bit).count() as u64);
        }
    }

    #[test]
    fn stored_bits_beyond_the_end_are_dropped_and_counted() {
        let mut bits = bits(70);
        bits.bytes_mut()[..10].fill(0xff);
        assert_eq!(bits.adopt(0..4096), 10);
        assert_eq!((bits.count(), bits.run(0, 70)), (70, (true, 70)));
    }

    #[test]
    fn round_writes_bits_from_before_it_and_failure_keeps_them() {
        let live = Arc::new(bits(4 * PAGE_BLOCKS));
        let mut bitmap = Bitmap::new(live).unwrap();
        assert!(!bitmap.begin_round());
        bitmap.end_round(true);
        for page in [3, 0, 1] {
            bitmap.set(page * PAGE_BLOCKS, 1, |_| {});
        }
        assert!(bitmap.begin_round());
        bitmap.set(1, 1, |_| {});
        assert_eq!(bitmap.pages_to_write(0, 64), Some((0, 2)));
        assert_eq!(bitmap.pages_to_write(0, 1), Some((0, 1)));
        assert_eq!(bitmap.pages_to_write(2, 64), Some((3, 1)));
        assert_eq!(bitmap.pages_to_write(3, 64), None);
        // SAFETY: read at once, in the round.
        let byte = |bitmap: &Bitmap| unsafe { bitmap.covered_span(0, 1).bytes()[0] };
        assert_eq!(byte(&bitmap), 1, "a bit of after the start is not in the round");
        assert!(!bitmap.is_on_disk(0, 1));
        bitmap.end_round(false);
        assert!(bitmap.begin_round());
        assert_eq!(byte(&bitmap), 3);
        assert_eq!(bitmap.pages_to_write(2, 64), Some((3, 1)), "failed pages are written again");
        bitmap.end_round(true);
        assert!(bitmap.is_on_disk(0, 2) && bitmap.is_on_disk(3 * PAGE_BLOCKS, 1));
        assert!(!bitmap.is_on_disk(0, 3) && !bitmap.begin_round());
    }
}
