//! Frames for a driver that reads them in place, between two calls of the shard.
//!
//! The same answer as that of a read without a buffer, without a turn: the driver looks at the frames before it calls the shard again, so
//! nothing changes them meanwhile.

use super::Shard;
use super::route::VolumeEntry;
use crate::action::FrameRange;
use crate::bio::{Bio, Op};
use crate::time::Instant;

impl Shard {
    /// Appends the ranges of the pool that hold the data of a read to `ranges`, in order; returns false, and appends none, if the volume
    /// is not cached here, the read is not within it, a block of it is missing or being changed, or there would be more than
    /// [`REPLY_RANGES_MAX`](crate::REPLY_RANGES_MAX).
    ///
    /// To be called between two calls of [`Shard::handle`]. The ranges hold the data until the driver carries out a further action or
    /// calls the shard; [`Shard::wants_call`] tells whether it is to do so afterwards.
    pub fn lend_frames(&mut self, now: Instant, bio: &Bio, ranges: &mut Vec<FrameRange>) -> bool {
        debug_assert!(bio.op == Op::Read, "only reads have frames");
        let volume = self.volumes.get(usize::from(bio.id.volume.0));
        let usable = |volume: &&VolumeEntry| volume.config.home == self.id && !volume.is_void;
        let Some(volume) = volume.filter(usable) else {
            return false;
        };
        let end = bio.offset.checked_add(u64::from(bio.len));
        let inside = end.is_some_and(|end| bio.len > 0 && end <= volume.config.options.size);
        let Some((cache, mut ctx)) = self.cache(now).filter(|_| inside) else {
            return false;
        };
        cache.caches(bio.id.volume) && cache.lend_frames(&mut ctx, bio, ranges)
    }

    /// Returns where in the pool the first byte of a read most likely is, if its volume is cached here: a hint for the CPU's cache, from one
    /// line of the index. It may be wrong, and past the pool.
    #[inline]
    #[must_use]
    pub fn guess_frame(&self, bio: &Bio) -> Option<u64> {
        self.cache.as_ref()?.guess(bio)
    }

    /// Returns true if [`Shard::handle`] is to be called, also without inputs, because there are actions or the cache has work.
    #[must_use]
    pub fn wants_call(&self) -> bool {
        let cache_works = self.cache.as_ref().is_some_and(|cache| cache.needs_run());
        cache_works || !self.pools.actions.list.is_empty()
    }
}
