//! The contents of a cache as plain data: which frame holds which block, in which state, in the order of eviction and of age.
//!
//! A new process takes over the frames of an old one, which stay where they are in shared memory:
//!
//! ```text
//!   old shard: frozen, quiet --contents--> CacheContents --encode--> words ... words --decode--> CacheContents --adopt--> new shard
//! ```
//!
//! Files: `collect` (out of a cache), `words` (encoding, and every check of what another process sent), `adopt` (into an empty
//! cache).
//!
//! What is there: folios with a valid block, dirty blocks by extent group with their age, and how far connections have seen the
//! errors of write-out. Held blocks are plain dirty ones: they are written again. What is not there: ghost entries, streams of
//! read-ahead, pauses of writers, counters.
//!
//! Invariants of [`CacheContents`]: folios lie within the pool and within their volumes, and none overlaps another one in either; a
//! dirty block is valid; each dirty folio is in at most one group. Decoding checks all of it.

mod adopt;
mod collect;
mod words;

use std::fmt;

use super::pool::folio::{BLOCK, block};
use crate::bio::VolumeId;
use crate::error::Status;

/// Why the contents of a cache cannot be taken or adopted, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentsError(String);

impl ContentsError {
    /// Creates an error from a sentence.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for ContentsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ContentsError {}

/// A folio in the contents of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedFolio {
    /// The volume of its blocks.
    pub volume: VolumeId,
    /// Its first block on the volume.
    pub block: u64,
    /// Its first frame in the pool.
    pub unit: u32,
    /// The log2 of its blocks.
    pub order: u8,
    /// It is on the main list of eviction, not on the small one.
    pub main: bool,
    /// Repeated accesses, as eviction counts them.
    pub freq: u8,
    /// It was read ahead and not accessed yet.
    pub unused: bool,
    /// Where the states of its blocks begin.
    first_state: u32,
}

impl CachedFolio {
    /// The bits of a block's state that contents carry.
    const STATES: u8 = Self::VALID | Self::DIRTY | Self::USED;
    /// The block's frame holds its newest bytes.
    pub const VALID: u8 = block::UPTODATE;
    /// The block is newer than its device; such a block is valid.
    pub const DIRTY: u8 = block::DIRTY;
    /// The block was accessed since it was filled.
    pub const USED: u8 = block::USED;

    /// Returns the number of its blocks.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        1 << self.order
    }
}

/// A volume of which blocks are cached, or that a connection has written to or flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedVolumeContents {
    /// The id of the volume in the process that the contents are from.
    pub volume: VolumeId,
    /// The size in bytes.
    pub size: u64,
    /// The error of the last failed write-out.
    error: Status,
    /// The error count of the volume.
    errors: u32,
    /// A connection has seen the last error.
    seen: bool,
}

impl CachedVolumeContents {
    /// Returns the number of blocks, a partial last one included.
    const fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK as u64)
    }
}

/// How far a connection has seen the errors of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ErrorPosition {
    connection: u32,
    volume: VolumeId,
    position: u32,
}

/// Dirty folios of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirtyGroup {
    volume: VolumeId,
    /// Nanoseconds since the oldest of it was dirtied.
    age_ns: u64,
    /// It is to be written at once, whatever its age.
    overdue: bool,
    /// Its folios, by their places in [`CacheContents::folios`].
    folios: Vec<u32>,
}

/// The contents of a shard's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheContents {
    /// Frames of the pool; 0 without a cache.
    units: u32,
    volumes: Vec<CachedVolumeContents>,
    positions: Vec<ErrorPosition>,
    /// Of each eviction list, the oldest first.
    folios: Vec<CachedFolio>,
    /// One for each block of each folio.
    states: Vec<u8>,
    /// Of each volume, the oldest first.
    groups: Vec<DirtyGroup>,
}

impl CacheContents {
    /// Returns the number of frames of the pool; 0 without a cache.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Returns the volumes of which anything is known, by their ids in the process that the contents are from.
    #[must_use]
    pub fn volumes(&self) -> &[CachedVolumeContents] {
        &self.volumes
    }

    /// Returns the folios; of each eviction list, the oldest first.
    #[must_use]
    pub fn folios(&self) -> &[CachedFolio] {
        &self.folios
    }

    /// Returns the states of the blocks of one of its folios, as sets of the constants of [`CachedFolio`].
    #[must_use]
    pub fn states(&self, folio: &CachedFolio) -> &[u8] {
        let first = folio.first_state as usize;
        &self.states[first..first + folio.blocks() as usize]
    }

    /// Returns the number of dirty blocks of a folio.
    fn dirty_blocks_of(&self, folio: &CachedFolio) -> u32 {
        self.states(folio).iter().filter(|&state| state & CachedFolio::DIRTY != 0).count() as u32
    }

    /// Returns the number of dirty blocks of a volume.
    #[must_use]
    pub fn dirty_blocks(&self, volume: VolumeId) -> u64 {
        let folios = self.folios.iter().filter(|folio| folio.volume == volume);
        folios.map(|folio| u64::from(self.dirty_blocks_of(folio))).sum()
    }

    /// Returns the entry of a volume.
    fn volume(&self, volume: VolumeId) -> Option<&CachedVolumeContents> {
        self.volumes.iter().find(|known| known.volume == volume)
    }

    /// Makes the dirty blocks of the first dirty folio clean (a defect).
    fn forget_first_dirty(&mut self) {
        let dirty = |folio: &CachedFolio| self.dirty_blocks_of(folio) > 0;
        let Some(place) = self.folios.iter().position(dirty) else { return };
        let first = self.folios[place].first_state as usize;
        let blocks = self.folios[place].blocks() as usize;
        self.states[first..first + blocks].iter_mut().for_each(|state| *state &= !block::DIRTY);
        for group in &mut self.groups {
            group.folios.retain(|&folio| folio as usize != place);
        }
        self.groups.retain(|group| !group.folios.is_empty());
    }
}
