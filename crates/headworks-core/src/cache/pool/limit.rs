//! How many frames the pool may use: its *limit*, within the room that was reserved for it at the start.
//!
//! ```text
//!   frames   |  in use: folios, shadows, granted  |  free  |  withheld: given back  |  not in the tables yet
//!            |<---------------- usable ---------->|                                  |                      |
//!            |<------------------------ units of the tables ----------------------->|                      |
//!            |<----------------------------------------- room ------------------------------------------->|
//! ```
//!
//! The tables begin small and grow when frames are needed, so a large limit costs nothing before it is used. Below a lowered limit
//! the pool comes by withholding: free frames, and those of evicted folios, whose memory is given back. A raised limit restores
//! withheld frames before the tables grow, when they are needed.
//!
//! Invariants: `usable` = units of the tables - withheld; the tables grow and frames are restored only while `usable` < limit
//! <= room.

use super::Pool;
use crate::options::CacheOptions;
use crate::slab::NIL;

/// Units of the tables at the start: 4 MiB of frames.
pub(super) const UNITS_FIRST: u32 = 1024;
/// Units by which the tables grow, and that are restored, at once: 4 MiB of frames, whose tables are written in some 10 us.
const UNITS_MORE: u32 = 1024;
/// The most units that are prepared beyond the tables: 64 MiB of frames. Less while the cache is small.
const AHEAD_MAX: u32 = 16_384;
/// The lowest limit: the smallest pool, with its shadow frames and room for those of clients.
const UNITS_LEAST: u32 = CacheOptions::UNITS_MIN;

/// The limit of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Units for which the tables have room.
    pub room: u32,
    /// Units that the pool may use.
    pub most: u32,
    /// The most units that may become dirty.
    pub dirtyable: u32,
    /// Units whose memory was asked for; those of the tables and some beyond.
    pub prepared: u32,
}

impl Limit {
    /// The limit of a pool that may use all of its room.
    pub const fn of(room: u32, dirtyable: u32) -> Self {
        Self { room, most: room, dirtyable, prepared: 0 }
    }
}

impl Pool {
    /// Returns the units that the pool may use.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit.most
    }

    /// Returns the units for which the tables have room: the largest limit.
    pub fn room(&self) -> u32 {
        self.limit.room
    }

    /// Returns the units that are withheld: their memory is given back.
    pub fn withheld(&self) -> u32 {
        self.frames.withheld()
    }

    /// Returns the units of the tables that are not withheld.
    fn usable(&self) -> u32 {
        self.units() - self.frames.withheld()
    }

    /// Returns the units that hold something.
    pub fn taken(&self) -> u32 {
        self.frames.taken()
    }

    /// Returns the units that may become dirty: what the pool may use, without the shadows.
    pub fn dirtyable(&self) -> u32 {
        debug_assert!(self.limit.most > self.shadows.units(), "a pool is more than its reserve");
        (self.limit.most - self.shadows.units()).min(self.limit.dirtyable)
    }

    /// Sets the units that the pool may use: at most its room, at least the smallest pool. What it uses beyond that is withheld by
    /// [`Pool::withhold`].
    pub fn set_limit(&mut self, units: u32) {
        let least = UNITS_LEAST.min(self.limit.room);
        self.limit.most = units.clamp(least, self.limit.room);
        self.reclaim.set_units(self.limit.most);
    }

    /// Returns the units that the pool uses beyond its limit.
    pub fn excess(&self) -> u32 {
        self.usable().saturating_sub(self.limit.most)
    }

    /// Makes more frames free within the limit: withheld ones, or new ones of the tables; returns false if there are none. Called
    /// when no block of `order` is free.
    #[cold]
    pub fn extend(&mut self, order: u8) -> bool {
        let left = self.limit.most.saturating_sub(self.usable());
        let wanted = UNITS_MORE.max(2 << order).min(left);
        if wanted == 0 {
            return false;
        }
        if self.frames.withheld() > 0 {
            return self.frames.restore(wanted) > 0;
        }
        let more = wanted.min(self.limit.room - self.units());
        self.grow(more);
        more > 0
    }

    /// Grows the tables so that they hold at least `units`.
    pub fn grow_to(&mut self, units: u32) {
        assert!(units <= self.limit.room, "the tables stay within their room");
        self.grow(units.saturating_sub(self.units()));
    }

    fn grow(&mut self, more: u32) {
        debug_assert!(self.units() + more <= self.limit.room, "the tables stay within their room");
        self.folios.grow(more);
        self.frames.grow(more);
    }

    /// Returns the units beyond the tables that are to be prepared, once each: their first one, and how many. As many as the tables
    /// have, so that a small cache takes little; none before the tables grow.
    pub fn prepare(&mut self) -> Option<(u32, u32)> {
        let units = self.units();
        if units <= UNITS_FIRST {
            return None;
        }
        let first = self.limit.prepared.max(units);
        let end = units.saturating_add(units.min(AHEAD_MAX)).min(self.limit.most);
        let count = end.saturating_sub(first);
        self.limit.prepared = first.max(end);
        debug_assert!(self.limit.prepared <= self.limit.room, "the room is what is mapped");
        (count > 0).then_some((first, count))
    }

    /// Returns prepared units beyond the tables that the limit does not allow any more, to be released.
    pub fn unprepare(&mut self) -> Option<(u32, u32)> {
        let first = self.limit.most.max(self.units());
        let count = self.limit.prepared.saturating_sub(first);
        self.limit.prepared -= count;
        (count > 0).then_some((first, count))
    }

    /// Withholds a block of free frames, at most as many as the excess; returns its first unit and how many they are.
    pub fn withhold(&mut self) -> Option<(u32, u32)> {
        let (unit, order) = self.frames.withhold(self.excess())?;
        debug_assert!(unit != NIL && self.frames.withheld() > 0, "the block is withheld");
        Some((unit, 1 << order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{QueueOptions, ShardConfig, VolumeOptions};

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

    #[test]
    fn limit_has_a_floor_and_small_pools_are_whole_from_the_start() {
        let mut small = pool(300);
        assert_eq!((small.units(), small.extend(0)), (300, false));
        small.set_limit(0);
        assert_eq!(small.limit(), CacheOptions::UNITS_MIN);
    }
}
