//! An entry of the dirty table: which block's newest bytes a frame holds.
//!
//! The dirty table has one entry for each frame of a shard's pool. It lies beside the pool in memory that outlives the process,
//! and tells the next process which frames it must write out. A shard that is asked to ([`crate::CacheOptions::dirty_table`]) says
//! with [`crate::Action::SetDirty`] when a frame's bytes begin to matter, and when they cease to.
//!
//! ```text
//!   write of a clean block     Copy, SetDirty(frame)               before the Reply
//!   write of a dirty block     Copy                                the entry stands; the executor's redo record covers the copy
//!   write under write-out      Copy, SetDirty(shadow frame)        frame and shadow are both entered: the shadow is newer
//!   write-out ends             SetDirty(frame, clean)              with a shadow: Move(shadow -> frame), SetDirty(shadow, clean)
//!   discard, zeroing, cut off  SetDirty(frame, clean)              before the device is told, and before the frame is used again
//! ```
//!
//! An entry is one word, so a process that dies while it stores one leaves the old entry or the new one.
//!
//! ```text
//!   bit 63 dirty | bit 62 shadow | bits 48..62 volume | bits 0..48 block
//! ```

use crate::bio::VolumeId;

/// An entry of the dirty table: clean, or a block of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtyEntry(pub u64);

impl DirtyEntry {
    /// The entry of a frame whose bytes do not matter.
    pub const CLEAN: Self = Self(0);
    /// Volumes that an entry can name.
    pub const VOLUMES_MAX: usize = 1 << 14;

    const DIRTY: u64 = 1 << 63;
    const SHADOW: u64 = 1 << 62;
    const BLOCK_BITS: u32 = 48;

    /// The entry of a frame with the newest bytes of a block.
    #[inline]
    #[must_use]
    pub const fn new(volume: VolumeId, block: u64) -> Self {
        debug_assert!((volume.0 as usize) < Self::VOLUMES_MAX, "the shard checks it");
        debug_assert!(block >> Self::BLOCK_BITS == 0, "a block of the largest volume");
        Self(Self::DIRTY | (volume.0 as u64) << Self::BLOCK_BITS | block)
    }

    /// The entry of a shadow: newer than the block's own frame, which a device is writing.
    #[inline]
    #[must_use]
    pub const fn of_shadow(volume: VolumeId, block: u64) -> Self {
        Self(Self::new(volume, block).0 | Self::SHADOW)
    }

    /// Returns true if the frame's bytes must reach the device.
    #[inline]
    #[must_use]
    pub const fn is_dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }

    /// Returns true if the frame is a shadow.
    #[must_use]
    pub const fn is_shadow(self) -> bool {
        self.0 & Self::SHADOW != 0
    }

    /// The volume of the block.
    #[must_use]
    pub const fn volume(self) -> VolumeId {
        VolumeId((self.0 >> Self::BLOCK_BITS) as u16 & (Self::VOLUMES_MAX as u16 - 1))
    }

    /// The same entry of a volume whose id is another one now.
    #[must_use]
    pub const fn of_volume(self, volume: VolumeId) -> Self {
        debug_assert!(self.is_dirty(), "a clean frame is of no volume");
        debug_assert!((volume.0 as usize) < Self::VOLUMES_MAX, "the shard checks it");
        let mask = (Self::VOLUMES_MAX as u64 - 1) << Self::BLOCK_BITS;
        Self(self.0 & !mask | (volume.0 as u64) << Self::BLOCK_BITS)
    }

    /// The number of the block on its volume.
    #[must_use]
    pub const fn block(self) -> u64 {
        self.0 & ((1 << Self::BLOCK_BITS) - 1)
    }

    /// The entry of the frame `count` after this entry's, in a run of blocks; clean entries run on as clean ones.
    #[inline]
    #[must_use]
    pub const fn after(self, count: u64) -> Self {
        if self.is_dirty() { Self(self.0 + count) } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_keeps_its_block_and_runs_on() {
        let last = VolumeId(DirtyEntry::VOLUMES_MAX as u16 - 1);
        for (volume, block) in [(VolumeId(0), 0), (VolumeId(7), 12), (last, (1 << 48) - 2)] {
            let entry = DirtyEntry::new(volume, block);
            assert!(entry.is_dirty() && !entry.is_shadow());
            assert_eq!((entry.volume(), entry.block()), (volume, block));
            assert_eq!(entry.after(1), DirtyEntry::new(volume, block + 1));
            let shadow = DirtyEntry::of_shadow(volume, block);
            assert!(shadow.is_dirty() && shadow.is_shadow());
            assert_eq!((shadow.volume(), shadow.block()), (volume, block));
        }
        assert!(!DirtyEntry::CLEAN.is_dirty() && DirtyEntry::CLEAN.after(9) == DirtyEntry::CLEAN);
    }
}
