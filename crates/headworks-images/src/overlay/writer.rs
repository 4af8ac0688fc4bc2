//! Writes to an overlay that is not served: data, a sync, the bits, another sync.
//!
//! It writes what a killed server left, and what a commit brings. Reads that begin after the last sync find the bits.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use super::bitmap::{LiveBits, PAGE_BLOCKS, PAGE_BYTES, page_offset};
use super::head::BLOCK;
use headworks::house::Mapping;
use headworks_house::WrittenRanges;

/// Blocks that were written, and no bit on the disk says so yet.
#[derive(Debug)]
pub(super) struct WrittenBits {
    live: Arc<LiveBits>,
    /// First block and number of blocks.
    ranges: Mutex<Vec<(u64, u64)>>,
}

impl WrittenBits {
    pub fn new(live: Arc<LiveBits>) -> Self {
        Self { live, ranges: Mutex::default() }
    }
}

impl WrittenRanges for WrittenBits {
    fn on_write(&self, offset: u64, len: u64) -> io::Result<()> {
        if !(offset | len).is_multiple_of(BLOCK) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let range = (offset / BLOCK, len / BLOCK);
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner).push(range);
        Ok(())
    }

    fn on_sync(&self, file: &File) -> io::Result<()> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pages = Vec::new();
        for &(first, count) in ranges.iter() {
            self.live.set(first, count, |_| {});
            pages.extend(first / PAGE_BLOCKS..(first + count).div_ceil(PAGE_BLOCKS));
        }
        pages.sort_unstable();
        pages.dedup();
        store_pages(file, &self.live, pages.into_iter().map(|page| page as u32))?;
        ranges.clear();
        Ok(())
    }
}

/// Writes pages of the bitmap and syncs the file.
pub(super) fn store_pages(
    file: &File,
    live: &LiveBits,
    pages: impl Iterator<Item = u32>,
) -> io::Result<()> {
    // Aligned for direct I/O.
    let memory = Mapping::new(PAGE_BYTES)?;
    for page in pages {
        // SAFETY: our own mapping, which nothing else uses.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base(), PAGE_BYTES) };
        for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
            let at = u64::from(page) * (PAGE_BYTES as u64 / 8) + index as u64;
            word.copy_from_slice(&live.stored_word(at));
        }
        file.write_all_at(bytes, page_offset(page))?;
    }
    file.sync_data()
}
