//! Where what is newer here than on the device lies: a count of such blocks for each 2 MiB, so that a look over a large range
//! passes by what holds none.
//!
//! Regions are hashed, and share places: a count of 0 says that there is nothing, any other says little. Invariant: a place's
//! count is the dirty blocks and those under write-out of all folios whose region is hashed there.

use crate::cache::pool::folio::{FolioKey, ORDER_MAX};

/// See the head of this file.
#[derive(Debug)]
pub(in crate::cache) struct DirtyRegions {
    counts: Box<[u32]>,
}

impl DirtyRegions {
    /// For a pool of `units`: a byte for each.
    pub fn new(units: u32) -> Self {
        Self { counts: vec![0; (units as usize / 4).next_power_of_two().max(16)].into() }
    }

    /// Blocks of a folio became newer.
    #[inline]
    pub fn add(&mut self, key: FolioKey, blocks: u32) {
        let place = self.place(key);
        self.counts[place] += blocks;
    }

    /// They are no longer.
    #[inline]
    pub fn sub(&mut self, key: FolioKey, blocks: u32) {
        let place = self.place(key);
        self.counts[place] -= blocks;
    }

    /// Whether the 2 MiB around a block may have some.
    #[inline]
    pub fn any(&self, key: FolioKey) -> bool {
        self.counts[self.place(key)] > 0
    }

    /// All of it, for the check.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    #[inline]
    fn place(&self, key: FolioKey) -> usize {
        // Another constant than the index has: what shares a place there has one of its own here.
        let word = (key.word() >> ORDER_MAX).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (word >> 32) as usize & (self.counts.len() - 1)
    }
}
