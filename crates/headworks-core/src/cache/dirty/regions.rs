//! Counts of dirty blocks by 2 MiB region, so that a search over a large range skips clean regions.
//!
//! Regions are hashed and share counters: a count of 0 proves that the region is clean, any other count proves nothing.
//! Invariant: a counter is the number of blocks, dirty or under write-out, of all folios whose region is hashed to it; a block
//! that is both counts twice.

use crate::cache::pool::folio::{FolioKey, ORDER_MAX};
use crate::gauge::Gauge32;

/// The most counters: as many as there are regions in 512 GiB.
const REGIONS_MAX: usize = 1 << 18;

/// The counters of dirty blocks.
#[derive(Debug)]
pub(super) struct DirtyRegions {
    counts: Box<[Gauge32]>,
}

impl DirtyRegions {
    /// Creates the counters for a pool of `units`: about a byte a unit, at most 1 MiB.
    pub fn new(units: u32) -> Self {
        let regions = (units as usize / 4).next_power_of_two().clamp(16, REGIONS_MAX);
        Self { counts: vec![Gauge32::default(); regions].into() }
    }

    /// Counts blocks of a folio that became dirty.
    #[inline]
    pub fn add(&mut self, key: FolioKey, blocks: u32) {
        let index = self.index(key);
        self.counts[index].add(blocks);
    }

    /// Counts blocks of a folio that were written or cancelled.
    #[inline]
    pub fn sub(&mut self, key: FolioKey, blocks: u32) {
        let index = self.index(key);
        self.counts[index].sub(blocks);
    }

    /// Returns true if the 2 MiB around a block may have dirty blocks.
    #[inline]
    pub fn any(&self, key: FolioKey) -> bool {
        !self.counts[self.index(key)].is_zero()
    }

    /// Returns all counters, for the checks of tests.
    pub fn counts(&self) -> &[Gauge32] {
        &self.counts
    }

    #[inline]
    fn index(&self, key: FolioKey) -> usize {
        // A different constant than the index of folios: keys that collide there do not collide here.
        let word = (key.word() >> ORDER_MAX).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (word >> 32) as usize & (self.counts.len() - 1)
    }
}
