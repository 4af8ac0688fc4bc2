//! How much memory the cache may have, decided from what the kernel says of it.
//!
//! ```text
//!   limit = cached + available - reserve      what the cache has, what the machine or the control group has
//!           cached - 1/8                      while tasks wait for memory for more than a tenth of the time
//!           cached - 1/8 every 10 s           while no request comes for 5 minutes
//!   always  floor <= limit <= room
//!
//!   dirtyable = 5 x what the disks write in 2 s         of which a fifth may be dirty (`vm/dirty_ratio`)
//!               at least 1.25 GiB, and that where a death of the server loses dirty data
//! ```
//!
//! So the cache grows with its use into what is free, leaves a reserve to others, and gives back what others take of that.
//!
//! A reading is due again before others could have taken what is available beyond the reserve, at a rate that no machine reaches.
//!
//! Invariants: `floor <= limit <= room`; a limit is announced when it has changed by a step or has reached a bound.

use std::fs::File;
use std::io;
use std::time::Duration;

use headworks_cache_memory::CacheMemory;
use headworks_core::Instant;
use headworks_core::time::SEC;

use super::available::MemoryReading;

/// Bytes of a frame.
pub(super) const UNIT: u64 = 4096;
/// Part of all memory that is left to others, and its bounds in bytes.
const RESERVE_PART: u64 = 10;
const RESERVE_MIN: u64 = 32 << 20;
const RESERVE_MAX: u64 = 2 << 30;
/// Smallest part of the cache that is kept under any pressure, in bytes; a quarter of a small room.
const FLOOR_MAX: u64 = 64 << 20;
/// Part of what is cached that goes at once under pressure or when the server is idle.
const STEP_PART: u64 = 8;
/// Part of the time, in thousandths, for which tasks wait for memory under pressure.
const PRESSURE: u64 = 100;
/// Time without a request after which a server is idle, and the time between its steps.
const IDLE_NS: u64 = 300 * SEC;
const IDLE_STEP_NS: u64 = 10 * SEC;
/// Change of the limit that is announced, as a part of the room, or of the limit if that is less.
const CHANGE_PART: u64 = 256;
const CHANGE_OF_LIMIT: u64 = 16;
/// Bytes that others take in a millisecond at most: 8 GB/s.
const TAKEN_PER_MS: u64 = 8_000_000;
/// Bounds of the time between two readings, in milliseconds.
const READING_MS: (u64, u64) = (50, 1000);

/// What a cache of automatic size may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoCache {
    /// Most bytes of the cache: half of all memory.
    pub room: u64,
    /// Bytes that it keeps under any pressure.
    pub floor: u64,
    /// Bytes of memory that are left to others.
    pub reserve: u64,
}

impl AutoCache {
    /// Bytes to which the ratios of dirty data refer: by default 256 MiB of a cache are dirty however large it becomes, for that much is
    /// lost or has to be written out when the server ends. More where the disks write that in less than two seconds ([`AutoCache::written_out_within`]).
    pub const DIRTYABLE: u64 = 5 << 28;
    /// Seconds for which the disks may have to write out the dirty data of a cache of automatic size, by the default ratio.
    const WRITE_OUT_S: u64 = 2;
    /// By the default ratio a fifth is dirty.
    const PARTS: u64 = 5;

    /// Seconds in which the disks write what may be dirty at most beyond the least, with this ratio in per cent.
    #[must_use]
    pub fn written_out_within(dirty_ratio: u32) -> f64 {
        (Self::WRITE_OUT_S * Self::PARTS * u64::from(dirty_ratio)) as f64 / 100.0
    }

    /// The bounds on a machine, or in a control group, with `memory` bytes.
    #[must_use]
    pub fn of_memory(memory: u64) -> Self {
        // Whole huge pages.
        let room = (memory / 2).next_multiple_of(2 << 20);
        let reserve = (memory / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX);
        Self { room, floor: FLOOR_MAX.min(room / 4), reserve }
    }

    /// The same with a room of at most so many bytes.
    #[must_use]
    pub fn with_room_up_to(self, bytes: u64) -> Self {
        let room = self.room.min(bytes);
        Self { room, floor: self.floor.min(room), ..self }
    }

    /// The bounds of a cache whose memory is this file, at most half of what its filesystem has free; `adopted` from a running
    /// server, the room is that server's.
    ///
    /// # Errors
    /// The kernel does not say, or the file is none of a server.
    pub fn fitted_to(self, file: &File, adopted: bool) -> io::Result<Self> {
        let room = match adopted {
            true => CacheMemory::frames_in(file)? * UNIT,
            false => CacheMemory::space(file)?.map_or(self.room, |free| self.room.min(free / 2)),
        };
        Ok(Self { room, ..self }.with_room_up_to(room))
    }
}

/// What the caches of all shards have, and were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheReading {
    /// Bytes of frames in use.
    pub cached: u64,
    /// Blocks that were read and dirtied so far.
    pub requests: u64,
    /// Bytes a second that the disks with dirty data take; 0 without any, or before it was measured.
    pub write_rate: u64,
}

/// What a cache is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    /// Bytes that it may use.
    pub bytes: u64,
    /// Bytes to which the ratios of dirty data refer at most.
    pub dirtyable: u64,
}

/// The policy of a cache of automatic size.
#[derive(Debug)]
pub(crate) struct CachePolicy {
    bounds: AutoCache,
    /// A death of the server loses no dirty data.
    kept: bool,
    limit: u64,
    dirtyable: u64,
    /// The last reading's waits, and when it was.
    stalled: Option<(Instant, u64)>,
    /// Requests so far, and when they last became more.
    requests: (u64, Instant),
    /// The limit of an idle server, and when it is lowered next.
    idle: Option<(u64, Instant)>,
}

impl CachePolicy {
    /// The policy of a cache that may have all of its room; `kept` if a death of the server loses no dirty data.
    pub fn new(bounds: AutoCache, kept: bool, now: Instant) -> Self {
        let (limit, dirtyable) = (bounds.room, AutoCache::DIRTYABLE);
        Self { bounds, kept, limit, dirtyable, stalled: None, requests: (0, now), idle: None }
    }

    /// Takes a reading of the memory and of the caches; returns the new limits if one changes.
    pub fn on_reading(
        &mut self,
        now: Instant,
        reading: &MemoryReading,
        caches: &CacheReading,
    ) -> Option<CacheLimits> {
        let AutoCache { room, floor, reserve } = self.bounds;
        let MemoryReading { available, stalled_us } = *reading;
        let CacheReading { cached, requests, write_rate } = *caches;
        if requests != self.requests.0 {
            (self.requests, self.idle) = ((requests, now), None);
        }
        let mut limit = cached.saturating_add(available).saturating_sub(reserve);
        let less = cached - cached / STEP_PART;
        if self.is_pressed(now, stalled_us) {
            limit = limit.min(less);
        }
        if now.since(self.requests.1) >= IDLE_NS {
            let (least, at) = self.idle.unwrap_or((u64::MAX, now));
            let due = at <= now;
            let idle = if due { (least.min(less), now.after(IDLE_STEP_NS)) } else { (least, at) };
            self.idle = Some(idle);
            limit = limit.min(idle.0);
        }
        let limit = limit.clamp(floor, room);
        let is_bound = limit == floor || limit == room;
        let change = limit.abs_diff(self.limit);
        let step = (room / CHANGE_PART).min(self.limit / CHANGE_OF_LIMIT);
        let announced = change >= step.max(UNIT) || is_bound && change > 0;
        debug_assert!((floor..=room).contains(&limit), "the limit is within its bounds");
        if announced {
            self.limit = limit;
        }
        let more = self.follow_rate(write_rate);
        (announced || more).then_some(CacheLimits { bytes: self.limit, dirtyable: self.dirtyable })
    }

    /// Follows the rate at which the disks write; returns true if it has changed by a quarter. While nothing is written it is what it was.
    fn follow_rate(&mut self, write_rate: u64) -> bool {
        if !self.kept || write_rate == 0 {
            return false;
        }
        let wanted = write_rate.saturating_mul(AutoCache::WRITE_OUT_S * AutoCache::PARTS);
        let wanted = wanted.min(self.bounds.room).max(AutoCache::DIRTYABLE);
        let changes = wanted.abs_diff(self.dirtyable) >= self.dirtyable / 4;
        if changes {
            self.dirtyable = wanted;
        }
        changes
    }

    /// Returns when the next reading is due after this one.
    pub fn next_reading(&self, reading: &MemoryReading) -> Duration {
        let beyond = reading.available.saturating_sub(self.bounds.reserve);
        Duration::from_millis((beyond / TAKEN_PER_MS).clamp(READING_MS.0, READING_MS.1))
    }

    /// Returns true if tasks waited for memory for a large part of the time since the last reading.
    fn is_pressed(&mut self, now: Instant, stalled_us: u64) -> bool {
        let before = self.stalled.replace((now, stalled_us));
        before.is_some_and(|(at, stalled)| {
            let waited_ns = stalled_us.saturating_sub(stalled).saturating_mul(1000);
            waited_ns.saturating_mul(1000) > now.since(at).saturating_mul(PRESSURE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    /// Takes a reading after some requests that no reading had before.
    fn read(policy: &mut CachePolicy, ns: u64, available: u64, cached: u64) -> Option<u64> {
        let memory = MemoryReading { available, stalled_us: 0 };
        let caches = CacheReading { cached, requests: ns + 1, write_rate: 0 };
        policy.on_reading(Instant(ns), &memory, &caches).map(|limits| limits.bytes)
    }

    fn policy() -> CachePolicy {
        CachePolicy::new(AutoCache::of_memory(24 * GIB), true, Instant(0))
    }

    #[test]
    fn bounds_follow_the_memory() {
        let large = AutoCache::of_memory(24 * GIB);
        assert_eq!(large, AutoCache { room: 12 * GIB, floor: 64 * MIB, reserve: 2 * GIB });
        let small = AutoCache::of_memory(200 * MIB);
        assert_eq!(small, AutoCache { room: 100 * MIB, floor: 25 * MIB, reserve: 32 * MIB });
        let less = large.with_room_up_to(40 * MIB);
        assert_eq!((less.room, less.floor, less.reserve), (40 * MIB, 40 * MIB, 2 * GIB));
    }

    #[test]
    fn cache_takes_what_is_free_and_gives_back_what_others_take() {
        let mut policy = policy();
        assert_eq!(read(&mut policy, 0, 23 * GIB, 20 * MIB), None, "all of it");
        assert_eq!(read(&mut policy, 1, 15 * GIB, 8 * GIB), None);
        // Others have taken 14 GiB; 1 GiB more than the reserve allows.
        assert_eq!(read(&mut policy, 2, GIB, 8 * GIB), Some(7 * GIB));
        assert_eq!(read(&mut policy, 3, 2 * GIB, 7 * GIB), None, "it is given");
        assert_eq!(read(&mut policy, 4, 0, GIB), Some(64 * MIB), "the floor");
        assert_eq!(read(&mut policy, 5, 20 * GIB, GIB), Some(12 * GIB));
    }

    #[test]
    fn small_changes_are_not_announced() {
        let mut policy = policy();
        assert_eq!(read(&mut policy, 0, 4 * GIB, GIB), Some(3 * GIB));
        assert_eq!(read(&mut policy, 1, 4 * GIB + 40 * MIB, GIB), None);
        let more = 3 * GIB + 48 * MIB;
        assert_eq!(read(&mut policy, 2, 4 * GIB + 48 * MIB, GIB), Some(more));
    }

    #[test]
    fn waits_for_memory_lower_the_limit_step_by_step() {
        let mut policy = policy();
        let mut read = |second: u64, stalled_us| {
            let memory = MemoryReading { available: 10 * GIB, stalled_us };
            let caches = CacheReading { cached: 8 * GIB, requests: second + 1, write_rate: 0 };
            policy.on_reading(Instant(second * SEC), &memory, &caches).map(|limits| limits.bytes)
        };
        assert_eq!(read(0, 50_000), None, "there is nothing to compare with");
        assert_eq!(read(1, 140_000), None, "9 % of the time");
        assert_eq!(read(2, 250_000), Some(7 * GIB), "11 %");
        assert_eq!(read(3, 250_000), Some(12 * GIB), "it is over");
    }

    #[test]
    fn idle_server_returns_memory_until_requests_come() {
        let mut policy = policy();
        let mut read = |second: u64, cached: u64, requests| {
            let memory = MemoryReading { available: 13 * GIB - cached, stalled_us: 0 };
            let now = Instant(second * SEC);
            let caches = CacheReading { cached, requests, write_rate: 0 };
            policy.on_reading(now, &memory, &caches).map(|limits| limits.bytes)
        };
        let (mut cached, mut limits) = (4 * GIB, Vec::new());
        assert_eq!(read(1, cached, 5), Some(11 * GIB));
        assert_eq!(read(300, cached, 5), None, "it is not idle yet");
        for second in 301..600 {
            let limit = read(second, cached, 5);
            cached = limit.unwrap_or(cached);
            limits.extend(limit);
        }
        assert_eq!(limits[0], 4 * GIB / 8 * 7);
        assert!(limits.len() < 31 && limits.is_sorted_by(|one, other| one > other), "{limits:?}");
        assert!((64 * MIB..200 * MIB).contains(&cached), "{cached}");
        assert_eq!(read(601, cached, 6), Some(11 * GIB));
    }

    #[test]
    fn readings_are_frequent_while_little_is_left() {
        let policy = policy();
        let wait = |available| {
            policy.next_reading(&MemoryReading { available, stalled_us: 0 }).as_millis()
        };
        assert_eq!((wait(20 * GIB), wait(2 * GIB), wait(0)), (1000, 50, 50));
        assert!((200..300).contains(&wait(4 * GIB)), "{}", wait(4 * GIB));
    }

    #[test]
    fn dirty_data_are_what_the_disks_write_in_two_seconds() {
        const MB: u64 = 1_000_000;
        let dirtyable = |kept: bool, rates: &[u64]| -> Vec<u64> {
            let bounds = AutoCache::of_memory(24 * GIB);
            let mut policy = CachePolicy::new(bounds, kept, Instant(0));
            let memory = MemoryReading { available: 20 * GIB, stalled_us: 0 };
            let mut now = 0;
            let limits = rates.iter().filter_map(|&write_rate| {
                now += 1;
                let caches = CacheReading { cached: 0, requests: now, write_rate };
                policy.on_reading(Instant(now * SEC), &memory, &caches)
            });
            limits.map(|limits| limits.dirtyable).collect()
        };
        // A slow disk, a fast one, one that is a little slower, one without dirty data, one beyond all memory, a slow one.
        let rates = [80 * MB, 400 * MB, 350 * MB, 0, 9000 * MB, 80 * MB];
        assert_eq!(dirtyable(true, &rates), [4000 * MB, 12 * GIB, AutoCache::DIRTYABLE]);
        assert!(dirtyable(false, &rates).is_empty(), "a death of the server would lose it");
        assert_eq!(AutoCache::written_out_within(20), 2.0);
    }
}
