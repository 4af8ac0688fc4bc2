//! What the pool does by its limit: frames that are needed are taken in, and those beyond the limit given back.
//!
//! The operator moves the limit while the cache runs: with the machine's free memory, say. A lower one is approached turn by turn:
//! clean folios are evicted in the order of eviction, and their frames are released. What is dirty is written out first, and what is
//! held or outstanding is waited for.
//!
//! Memory may be refused: a filesystem of fixed size that others fill has none. Where the driver answers for the memory of frames
//! ([`CacheOptions::backed`]), the pool uses none before it was had: an operation waits for a frame until the answer, as it does for a
//! frame that becomes clean. While memory is refused the limit is what the pool has.
//!
//! Invariants: folios and frames have tables of one size, and eviction divides the units of the limit; a turn evicts and releases a
//! bounded number of times.
//!
//! [`CacheOptions::backed`]: crate::CacheOptions::backed

use super::folio::BLOCK_SHIFT;
use super::parts::COMMON;
use super::{Eviction, Pool};
use crate::action::Action;
use crate::cache::readahead::ReadAhead;
use crate::slab::NIL;

/// Releases of a turn: each is one or two system calls, 1 to 4 us.
const RELEASES_MAX: u32 = 32;

/// Ranges of frames that are named in a turn.
const PREPARES_MAX: usize = 32;

/// What a turn has left of the frames beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Excess {
    /// Nothing, or nothing that can be evicted.
    Done,
    /// The turn released as many as it may.
    More,
    /// No folio is clean.
    NoneClean,
}

/// Returns the first byte and the length of some frames.
fn bytes((first, units): (u32, u32)) -> (u64, u32) {
    (u64::from(first) << BLOCK_SHIFT, units << BLOCK_SHIFT)
}

impl Pool {
    /// Returns the units that the pool may use.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit.get()
    }

    /// Returns the units for which the tables have room: the largest limit.
    pub fn room(&self) -> u32 {
        self.limit.room()
    }

    /// Returns the units that are withheld: their memory is given back.
    pub fn withheld(&self) -> u32 {
        self.frames.withheld()
    }

    /// Returns the units that hold something.
    pub fn taken(&self) -> u32 {
        self.frames.taken()
    }

    /// Returns the units to which the ratios of dirty data refer.
    pub fn dirtyable(&self) -> u32 {
        self.dirty_most().min(self.dirtyable_max)
    }

    /// Returns the units that can be dirty at all: what the pool may use, without the shadows.
    pub fn dirty_most(&self) -> u32 {
        debug_assert!(self.limit() > self.shadows.units(), "a pool is more than its reserve");
        self.limit() - self.shadows.units()
    }

    /// Sets the units to which the ratios of dirty data refer at most.
    pub fn set_dirtyable(&mut self, units: u32) {
        self.dirtyable_max = units.max(1);
    }

    /// Sets the units that the pool may use: at most its room, at least the smallest pool. What it uses beyond that is withheld by
    /// [`Pool::withhold`].
    pub fn set_limit(&mut self, units: u32) {
        self.limit.set(&self.frames, units);
        self.reclaim.set_units(self.limit());
    }

    /// Takes an answer for frames whose memory was asked for: they have it, or there is none at present.
    pub fn on_memory(&mut self, first: u32, units: u32, had: bool) {
        self.limit.on_memory(&mut self.frames, first, units, had);
        self.reclaim.set_units(self.limit());
    }

    /// Returns the units that the pool uses beyond its limit.
    pub fn excess(&self) -> u32 {
        self.limit.excess(&self.frames)
    }

    /// Makes more frames free within the limit: withheld ones, or new ones of the tables; returns false if there are none. Called
    /// when no block of `order` is free.
    #[cold]
    pub fn extend(&mut self, order: u8) -> bool {
        let (restored, more) = self.limit.extend(&self.frames, order);
        self.grow(more);
        self.frames.restore(restored) + more > 0
    }

    /// Returns true if the pool may grow as soon as memory is answered for, which is asked for at the end of the turn at the latest.
    pub fn awaits_memory(&self) -> bool {
        self.limit.awaits_memory(&self.frames)
    }

    /// Grows the tables so that they hold at least `units`.
    pub fn grow_to(&mut self, units: u32) {
        assert!(units <= self.room(), "the tables stay within their room");
        self.grow(units.saturating_sub(self.units()));
    }

    fn grow(&mut self, more: u32) {
        let most = self.limit.tables_max();
        debug_assert!(self.units() + more <= most, "the tables stay within their room");
        self.folios.grow(more);
        self.frames.grow(more);
    }

    /// Names the frames that will be used next, and those that will not, after the tables have grown or the limit has moved.
    pub fn name_frames(&mut self, actions: &mut Vec<Action>) {
        if let Some((at, len)) = self.unprepare().map(bytes) {
            actions.push(Action::Release { at, len });
        }
        for (at, len) in std::iter::from_fn(|| self.prepare()).take(PREPARES_MAX).map(bytes) {
            actions.push(Action::Prepare { at, len });
        }
    }

    /// Releases frames beyond the limit, as many as one turn may; evicts for them.
    pub fn give_back(&mut self, ahead: &mut ReadAhead, actions: &mut Vec<Action>) -> Excess {
        if self.excess() == 0 {
            return Excess::Done;
        }
        for _ in 0..RELEASES_MAX {
            if self.excess() == 0 {
                return Excess::Done;
            }
            // Free frames, after an eviction if there are none.
            let released = match self.withhold() {
                Some(released) => Some(released),
                None => match self.evict(ahead, COMMON) {
                    Eviction::Evicted(_) => self.withhold(),
                    Eviction::NoneClean => return Excess::NoneClean,
                    Eviction::Empty => None,
                },
            };
            let Some((at, len)) = released.map(bytes) else {
                return Excess::Done;
            };
            actions.push(Action::Release { at, len });
        }
        Excess::More
    }

    /// Returns the units that are to be prepared, see [`Limit::prepare`](super::limit::Limit::prepare).
    fn prepare(&mut self) -> Option<(u32, u32)> {
        self.limit.prepare(&mut self.frames)
    }

    /// Returns prepared units beyond the tables that the limit does not allow any more, to be released.
    fn unprepare(&mut self) -> Option<(u32, u32)> {
        self.limit.unprepare(&self.frames)
    }

    /// Withholds a block of free frames, at most as many as the excess; returns its first unit and how many they are.
    fn withhold(&mut self) -> Option<(u32, u32)> {
        let (unit, order) = self.frames.withhold(self.excess())?;
        debug_assert!(unit != NIL && self.frames.withheld() > 0, "the block is withheld");
        Some((unit, 1 << order))
    }
}

#[cfg(test)]
mod tests {
    use super::super::limit::{AHEAD_MAX, UNITS_FIRST, UNITS_MORE};
    use super::*;
    use crate::options::{CacheOptions, QueueOptions, ShardConfig, VolumeOptions};

    fn pool(units: u32) -> Pool {
        let config = ShardConfig::single(QueueOptions::default(), VolumeOptions::default(), 8);
        let cache = CacheOptions { units, ..CacheOptions::default() };
        Pool::new(&ShardConfig { cache, ..config })
    }

    /// Takes frames until there are none; returns how many.
    fn fill(pool: &mut Pool) -> u32 {
        let before = pool.taken();
        while pool.take_frames(0).is_some() || pool.extend(0) {}
        pool.taken() - before
    }

    #[test]
    fn tables_grow_to_the_room_as_frames_are_taken() {
        let mut pool = pool(100_000);
        assert_eq!((pool.units(), pool.limit(), pool.room()), (UNITS_FIRST, 100_000, 100_000));
        let shadows = pool.shadow_frames().1;
        assert_eq!(fill(&mut pool), 100_000 - shadows);
        assert_eq!((pool.units(), pool.free(), pool.excess()), (100_000, 0, 0));
    }

    #[test]
    fn lowered_limit_withholds_free_frames_and_a_raised_one_restores_them() {
        let mut pool = pool(40_000);
        let taken: Vec<u32> = std::iter::from_fn(|| {
            let unit = pool.take_frames(0);
            unit.or_else(|| pool.extend(0).then(|| pool.take_frames(0))?)
        })
        .collect();
        pool.set_limit(10_000);
        assert_eq!((pool.excess(), pool.withhold()), (30_000, None), "nothing is free");
        taken[..35_000].iter().for_each(|&unit| pool.put_frames(unit, 0));
        let mut given = 0;
        while let Some((_, units)) = pool.withhold() {
            given += units;
        }
        assert_eq!((given, pool.excess(), pool.withheld()), (30_000, 0, 30_000));
        assert!(!pool.extend(0), "the pool is at its limit");
        pool.set_limit(u32::MAX);
        assert_eq!(pool.limit(), 40_000);
        assert_eq!(fill(&mut pool), 35_000);
        assert_eq!(pool.withheld(), 0);
    }

    #[test]
    fn frames_beyond_the_tables_are_prepared_once_and_given_back() {
        let mut pool = pool(100_000);
        assert_eq!(pool.prepare(), None, "before it grows");
        let mut prepared = UNITS_FIRST;
        while pool.units() < 100_000 {
            while pool.take_frames(0).is_some() {}
            assert!(pool.extend(0));
            if let Some((first, count)) = pool.prepare() {
                assert!(
                    first == prepared.max(pool.units()) && count <= pool.units().min(AHEAD_MAX)
                );
                prepared = first + count;
                assert!(prepared <= 100_000);
            }
            assert!(pool.units() <= prepared);
            assert_eq!(pool.prepare(), None, "once");
        }
        let mut small = self::pool(10_000);
        while small.units() < 2000 {
            while small.take_frames(0).is_some() {}
            small.extend(0);
        }
        let (first, count) = small.prepare().unwrap();
        small.set_limit(0);
        assert_eq!(small.unprepare(), Some((first, count)));
        assert_eq!((small.unprepare(), small.prepare()), (None, None));
    }

    /// A pool whose memory is answered for, of which the first frames have some.
    fn answered(units: u32) -> Pool {
        let config = ShardConfig::single(QueueOptions::default(), VolumeOptions::default(), 8);
        let backed = CacheOptions::BACKED_MIN;
        let cache = CacheOptions { units, backed, ..CacheOptions::default() };
        Pool::new(&ShardConfig { cache, ..config })
    }

    #[test]
    fn frames_are_used_only_after_their_memory_was_had() {
        let mut pool = answered(100_000);
        let taken = fill(&mut pool) + pool.shadow_frames().1;
        assert_eq!((taken, pool.units()), (UNITS_FIRST, UNITS_FIRST), "what has memory");
        let (first, count) = pool.prepare().unwrap();
        assert_eq!((first, pool.prepare(), pool.unprepare()), (UNITS_FIRST, None, None));
        assert!(!pool.extend(0), "it is asked for");
        pool.on_memory(first, 512, true);
        assert_eq!((fill(&mut pool), pool.units()), (512, UNITS_FIRST + 512));
        assert_eq!(pool.prepare(), None, "the rest is asked for");
        pool.on_memory(first + 512, count - 512, true);
        assert!(pool.extend(0) && pool.prepare().is_some());
    }

    #[test]
    fn refused_memory_is_a_smaller_pool_until_it_is_had() {
        let mut pool = answered(100_000);
        let (first, count) = pool.prepare().unwrap();
        pool.on_memory(first, count, false);
        assert_eq!((pool.limit(), pool.excess()), (UNITS_FIRST, 0));
        pool.set_limit(50_000);
        assert_eq!((pool.limit(), pool.prepare()), (UNITS_FIRST, None), "still refused");
        pool.on_memory(first, count, true);
        assert_eq!(pool.limit(), 50_000);
        assert!(fill(&mut pool) >= count);
    }

    #[test]
    fn withheld_frames_are_restored_after_their_memory_was_had() {
        let mut pool = answered(4096);
        let mut taken = Vec::new();
        loop {
            taken.extend(std::iter::from_fn(|| pool.take_frames(0)));
            if let Some((first, count)) = pool.prepare() {
                pool.on_memory(first, count, true);
            }
            if !pool.extend(0) {
                break;
            }
        }
        assert_eq!(pool.units(), 4096);
        taken[..2048].iter().for_each(|&unit| pool.put_frames(unit, 0));
        pool.set_limit(2048);
        while pool.withhold().is_some() {}
        let withheld = pool.withheld();
        assert!(withheld >= 2000 && pool.free() == 0, "{withheld}");
        pool.set_limit(4096);
        assert!(!pool.extend(0), "their memory was given back");
        let asked: Vec<_> = std::iter::from_fn(|| pool.prepare()).collect();
        let units: u32 = asked.iter().map(|&(_, units)| units).sum();
        assert_eq!((units, pool.withheld()), (UNITS_MORE, withheld), "{asked:?}");
        for (first, units) in asked {
            assert!(units.is_power_of_two());
            pool.on_memory(first, units, true);
        }
        assert_eq!((pool.free(), pool.withheld()), (UNITS_MORE, withheld - UNITS_MORE));
    }

    #[test]
    fn limit_has_a_floor_and_small_pools_are_whole_from_the_start() {
        let mut small = pool(300);
        assert_eq!((small.units(), small.extend(0)), (300, false));
        small.set_limit(0);
        assert_eq!(small.limit(), CacheOptions::UNITS_MIN);
    }
}
