//! The bytes of one file behind a volatile write cache: what reads return, and what a power cut
//! leaves.
//!
//! ```text
//!   write --sampled--> cache (visible to reads) --completed--> covered by a later flush --flush, FUA, chance--> durable
//!                        `---------------- power cut: each sector at random -----------------------------------^
//! ```
//!
//! The model does the worst that the contract permits: a flush makes durable only what was
//! *completed when it was submitted*, the rest at random; an overwritten version may have reached
//! the medium before; a power cut tears writes between sectors. Invariant: a clean sector is the
//! same in cache and on the medium.

use headworks_core::prng::Prng;

use crate::sector_pattern::SECTOR;

/// A file with its write cache.
#[derive(Debug)]
pub struct Store {
    cache: Vec<u8>,
    durable: Vec<u8>,
    sectors: Vec<Sector>,
    dirty: Vec<u32>,
    /// End of the file; writes in flight at a shrink may still land beyond it.
    end: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sector {
    /// The tick at which a write of the sector first completed that is not durable; `IN_FLIGHT`
    /// before. A write in flight may already have replaced that version in the cache: a flush that
    /// covers the older version must then persist the newer one.
    done: u64,
    dirty: bool,
}

const IN_FLIGHT: u64 = u64::MAX;

/// Whether the version that a write replaces reaches the medium first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacedVersion {
    /// It does: a flush that covers it is in progress, or the cache happened to write it out.
    Kept,
    /// It does not, and is lost.
    Lost,
}

impl Store {
    /// A file of `size` zero bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let size = usize::try_from(size).expect("simulated volumes fit in memory");
        assert!(size.is_multiple_of(SECTOR), "whole sectors");
        Self {
            cache: vec![0; size],
            durable: vec![0; size],
            sectors: vec![Sector::default(); size / SECTOR],
            dirty: Vec::with_capacity(size / SECTOR),
            end: size as u64,
        }
    }

    /// The bytes of a sector that are there from the start.
    pub fn preset(&mut self, sector: u64, fill: impl FnOnce(&mut [u8])) {
        let range = sector as usize * SECTOR..(sector as usize + 1) * SECTOR;
        fill(&mut self.cache[range.clone()]);
        self.durable[range.clone()].copy_from_slice(&self.cache[range]);
    }

    /// Size of the store in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.cache.len() as u64
    }

    /// Resizes the file; bytes beyond a new end read as zeros, and after a power cut perhaps as
    /// before.
    pub fn resize(&mut self, size: u64, tick: u64) {
        let bytes = usize::try_from(size).expect("simulated volumes fit in memory");
        assert!(bytes.is_multiple_of(SECTOR), "whole sectors");
        if size < self.end {
            let len = (self.end - size) as usize;
            self.write(size, len, || ReplacedVersion::Lost).fill(0);
            self.complete(size, len, tick);
        }
        if bytes > self.cache.len() {
            self.cache.resize(bytes, 0);
            self.durable.resize(bytes, 0);
            self.sectors.resize(bytes / SECTOR, Sector::default());
        }
        self.end = size;
    }

    /// The bytes that reads of the range return.
    #[must_use]
    pub fn read(&self, offset: u64, len: usize) -> &[u8] {
        &self.cache[offset as usize..offset as usize + len]
    }

    /// The cached bytes of the range, about to be overwritten.
    pub fn write(
        &mut self,
        offset: u64,
        len: usize,
        mut replaced: impl FnMut() -> ReplacedVersion,
    ) -> &mut [u8] {
        let (first, count) = (offset as usize / SECTOR, len / SECTOR);
        for index in first..first + count {
            let sector = &mut self.sectors[index];
            if !sector.dirty {
                self.dirty.push(index as u32);
            } else if replaced() == ReplacedVersion::Kept {
                let at = index * SECTOR;
                self.durable[at..at + SECTOR].copy_from_slice(&self.cache[at..at + SECTOR]);
            } else {
                continue;
            }
            *sector = Sector { done: IN_FLIGHT, dirty: true };
        }
        &mut self.cache[offset as usize..offset as usize + len]
    }

    /// Records that a write of the range completed at `tick`: flushes submitted later cover it.
    pub fn complete(&mut self, offset: u64, len: usize, tick: u64) {
        let first = offset as usize / SECTOR;
        for sector in &mut self.sectors[first..first + len / SECTOR] {
            sector.done = sector.done.min(tick);
        }
    }

    /// Makes the current contents of the range durable.
    pub fn persist(&mut self, offset: u64, len: usize) {
        let range = offset as usize..offset as usize + len;
        self.durable[range.clone()].copy_from_slice(&self.cache[range]);
        let first = offset as usize / SECTOR;
        let Self { sectors, dirty, .. } = self;
        sectors[first..first + len / SECTOR].iter_mut().for_each(|sector| sector.dirty = false);
        // Every dirty sector is listed once; listed sectors must be dirty.
        dirty.retain(|&index| sectors[index as usize].dirty);
    }

    /// Whether something before `end` is not durable.
    #[must_use]
    pub fn is_dirty_below(&self, end: u64) -> bool {
        self.dirty.iter().any(|&sector| u64::from(sector) * (SECTOR as u64) < end)
    }

    /// Makes everything durable that is in the cache.
    pub fn sync(&mut self) {
        self.settle(|_| true);
    }

    /// Ends a flush that was submitted at tick `submitted`.
    pub fn flush(&mut self, submitted: u64, prng: &mut Prng) {
        self.settle(|sector| sector.done < submitted || prng.next() & 1 == 0);
    }

    /// Cuts the power: each unflushed sector survives at random.
    pub fn cut(&mut self, prng: &mut Prng) {
        self.settle(|_| prng.next() & 1 == 0);
        for index in std::mem::take(&mut self.dirty) {
            let at = index as usize * SECTOR;
            self.cache[at..at + SECTOR].copy_from_slice(&self.durable[at..at + SECTOR]);
            self.sectors[index as usize].dirty = false;
        }
        // The file system knows the length of its files.
        let end = self.end as usize;
        self.cache[end..].fill(0);
        self.durable[end..].fill(0);
    }

    /// Drops what lies behind the end of the file.
    pub fn cut_off(&mut self) {
        let end = self.end as usize;
        self.cache[end..].fill(0);
    }

    /// Makes the dirty sectors durable for which `persists` is true.
    fn settle(&mut self, mut persists: impl FnMut(&Sector) -> bool) {
        let Self { cache, durable, sectors, dirty, .. } = self;
        dirty.retain(|&index| {
            let sector = &mut sectors[index as usize];
            if !persists(sector) {
                return true;
            }
            let at = index as usize * SECTOR;
            durable[at..at + SECTOR].copy_from_slice(&cache[at..at + SECTOR]);
            sector.dirty = false;
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(store: &mut Store, sector: u64, byte: u8, replaced: ReplacedVersion) {
        store.write(sector * 512, SECTOR, || replaced).fill(byte);
    }

    /// The contents found after cuts with many seeds.
    fn survivors(make: impl Fn(&mut Store, &mut Prng), sector: usize) -> Vec<u8> {
        let mut seen: Vec<u8> = (0..64)
            .map(|seed| {
                let (mut store, mut prng) = (Store::new(2048), Prng::new(seed));
                make(&mut store, &mut prng);
                store.cut(&mut prng);
                store.read(0, 2048)[sector * SECTOR]
            })
            .collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn power_cut_keeps_flushed_sectors_and_others_at_random() {
        let unflushed = |store: &mut Store, _: &mut Prng| write(store, 0, 1, ReplacedVersion::Lost);
        assert_eq!(survivors(unflushed, 0), [0, 1]);
        let flushed = |store: &mut Store, prng: &mut Prng| {
            write(store, 0, 1, ReplacedVersion::Lost);
            store.complete(0, SECTOR, 10);
            store.flush(11, prng);
        };
        assert_eq!(survivors(flushed, 0), [1]);
    }

    #[test]
    fn flush_does_not_cover_writes_completed_after_its_submission() {
        let late = |store: &mut Store, prng: &mut Prng| {
            write(store, 0, 1, ReplacedVersion::Lost);
            store.complete(0, SECTOR, 12);
            store.flush(11, prng);
        };
        assert_eq!(survivors(late, 0), [0, 1]);
    }

    #[test]
    fn flush_covers_version_replaced_by_write_in_flight() {
        let replaced = |store: &mut Store, prng: &mut Prng| {
            write(store, 0, 1, ReplacedVersion::Lost);
            store.complete(0, SECTOR, 10);
            write(store, 0, 2, ReplacedVersion::Lost);
            store.flush(11, prng);
        };
        assert_eq!(survivors(replaced, 0), [2]);
    }

    #[test]
    fn kept_version_is_the_oldest_that_survives() {
        let kept = |store: &mut Store, _: &mut Prng| {
            write(store, 3, 1, ReplacedVersion::Lost);
            write(store, 3, 2, ReplacedVersion::Kept);
        };
        assert_eq!(survivors(kept, 3), [1, 2]);
        let forced = |store: &mut Store, _: &mut Prng| {
            write(store, 3, 1, ReplacedVersion::Lost);
            store.persist(3 * 512, SECTOR);
        };
        assert_eq!(survivors(forced, 3), [1]);
    }
}
