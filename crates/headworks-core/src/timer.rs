//! A hierarchical timer wheel: many deadlines, each set, moved and cleared in constant time.
//!
//! Timers are numbered from 0; their owners fix the numbers at start. A timer is in one of 64 buckets of one of 6 levels, by its
//! distance from now; a bucket of level `l` is 64^l ticks of 65.5 us wide. When the current tick reaches a bucket of a higher
//! level, its timers cascade to lower levels. Deadlines are kept exactly: a timer fires when `now` has reached its own time,
//! never earlier.
//!
//! ```text
//!  level 0: |.|.|T|.|...  64 buckets of 1 tick       (4.2 ms in all)
//!  level 1: |.|T|.|.|...  64 buckets of 64 ticks     (268 ms)
//!  level 2: ...           (17 s), (18 min), (20 h), (52 days: later timers wait in the last bucket)
//! ```
//!
//! Invariants: a timer is in the list of its bucket exactly while it is set; a bit of `occupied` is set exactly while its bucket
//! has a timer.

use crate::list::{Links, List, OnlyLink};
use crate::slab::NIL;
use crate::time::Instant;

/// Nanoseconds of a tick, as a power of two: 65.5 us, finer than any deadline that policy sets needs to be found.
const TICK_SHIFT: u32 = 16;
const LEVELS: usize = 6;
const BUCKETS: usize = 64;

/// A deadline and its place in the wheel.
#[derive(Clone, Debug)]
struct Timer {
    at: Instant,
    /// `level * BUCKETS + bucket`, or `NIL` while the timer is not set.
    bucket: u32,
}

/// A wheel with a fixed number of timers.
#[derive(Debug)]
pub struct TimerWheel {
    timers: Vec<Timer>,
    links: Links,
    lists: [List<OnlyLink>; LEVELS * BUCKETS],
    /// By level: one bit for each bucket that has a timer.
    occupied: [u64; LEVELS],
    /// The tick up to which every timer has fired or cascaded.
    tick: u64,
    /// A timer was set or cleared since the flag was taken.
    changed: bool,
}

impl TimerWheel {
    /// Creates a wheel for timers `0..count`, none of them set.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let unset = Timer { at: Instant(0), bucket: NIL };
        Self {
            timers: vec![unset; count],
            links: Links::new(count),
            lists: [const { List::new() }; LEVELS * BUCKETS],
            occupied: [0; LEVELS],
            tick: 0,
            changed: false,
        }
    }

    /// Sets or moves a timer.
    pub fn set(&mut self, id: u32, at: Instant) {
        self.clear(id);
        self.timers[id as usize].at = at;
        self.link(id);
    }

    /// Clears a timer, if it is set.
    pub fn clear(&mut self, id: u32) {
        if self.is_set(id) {
            self.unlink(id);
        }
    }

    /// Returns a timer's deadline, if it is set.
    #[must_use]
    pub fn at(&self, id: u32) -> Option<Instant> {
        self.is_set(id).then(|| self.timers[id as usize].at)
    }

    /// Returns true while a timer is set.
    #[must_use]
    pub fn is_set(&self, id: u32) -> bool {
        let set = self.timers[id as usize].bucket != NIL;
        debug_assert!(set == self.links[id].is_linked(), "a timer that is set is in a bucket");
        set
    }

    /// Returns true when [`TimerWheel::next`] may differ from what it was when this was called last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Makes [`TimerWheel::take_changed`] return true: the driver's timer has fired and must be set again.
    pub fn set_changed(&mut self) {
        self.changed = true;
    }

    /// Returns the earliest deadline of all timers.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        (0..LEVELS).filter_map(|level| self.earliest_of_level(level)).min()
    }

    /// Clears and returns a timer whose deadline has passed; call until `None`.
    pub fn expire(&mut self, now: Instant) -> Option<u32> {
        let target = now.0 >> TICK_SHIFT;
        loop {
            let bucket = (self.tick % BUCKETS as u64) as usize;
            if let Some(id) = self.due_in(bucket, now) {
                self.unlink(id);
                return Some(id);
            }
            if self.tick >= target {
                return None;
            }
            self.advance(target);
        }
    }

    /// Returns a timer of a bucket of level 0 whose deadline has passed.
    fn due_in(&self, bucket: usize, now: Instant) -> Option<u32> {
        debug_assert!(bucket < BUCKETS, "only level 0 holds timers that are due");
        let mut all = self.lists[bucket].iter(&self.links);
        all.find(|&id| self.timers[id as usize].at <= now)
    }

    /// Goes to the next tick at which a bucket is reached, at most to `target`, and cascades the buckets that are reached.
    fn advance(&mut self, target: u64) {
        debug_assert!(self.tick < target, "time goes forward");
        let Some(level) = (0..LEVELS).find(|&level| self.occupied[level] != 0) else {
            self.tick = target;
            return;
        };
        let current = self.tick >> (6 * level);
        let ahead = self.occupied[level].rotate_right((current % 64) as u32 + 1);
        let next = (current + 1 + u64::from(ahead.trailing_zeros())) << (6 * level);
        // At this boundary a higher level reaches its next bucket, which may hold timers that are due before `next`.
        let boundary = ((self.tick >> (6 * (level + 1))) + 1) << (6 * (level + 1));
        self.tick = next.min(boundary).min(target);
        for level in 1..LEVELS {
            if !self.tick.is_multiple_of(1 << (6 * level)) {
                break;
            }
            self.cascade(level);
        }
    }

    /// Moves the timers of the current bucket of `level` to other buckets.
    fn cascade(&mut self, level: usize) {
        let bucket = level * BUCKETS + ((self.tick >> (6 * level)) % BUCKETS as u64) as usize;
        while let Some(id) = self.lists[bucket].front() {
            self.unlink(id);
            self.link(id);
            debug_assert!(self.timers[id as usize].bucket as usize != bucket, "a timer moves on");
        }
    }

    /// Returns the earliest deadline of a level.
    fn earliest_of_level(&self, level: usize) -> Option<Instant> {
        if self.occupied[level] == 0 {
            return None;
        }
        if level == LEVELS - 1 {
            // Timers beyond the last level wait in any of its buckets.
            let all = level * BUCKETS..(level + 1) * BUCKETS;
            return all.filter_map(|bucket| self.earliest_of_bucket(bucket)).min();
        }
        // The first occupied bucket around the wheel. On a higher level the current bucket is a full round away: it has cascaded.
        let current = (self.tick >> (6 * level)) % BUCKETS as u64;
        let first = current as u32 + u32::from(level > 0);
        let turned = self.occupied[level].rotate_right(first);
        let bucket = (first + turned.trailing_zeros()) as usize % BUCKETS;
        let earliest = self.earliest_of_bucket(level * BUCKETS + bucket);
        debug_assert!(earliest.is_some(), "an occupied bucket has a timer");
        earliest
    }

    /// Returns the earliest deadline of a bucket.
    fn earliest_of_bucket(&self, bucket: usize) -> Option<Instant> {
        let all = self.lists[bucket].iter(&self.links);
        all.map(|id| self.timers[id as usize].at).min()
    }

    /// Puts a timer into the bucket of its deadline.
    fn link(&mut self, id: u32) {
        self.changed = true;
        // By distance. A timer beyond the last level waits there for a round and is placed again.
        let farthest = self.tick + (1 << (6 * LEVELS)) - 1;
        let due = (self.timers[id as usize].at.0 >> TICK_SHIFT).clamp(self.tick, farthest);
        let distance = due - self.tick;
        let level = (64 - distance.leading_zeros()).saturating_sub(1) as usize / 6;
        let bucket = (due >> (6 * level)) % BUCKETS as u64;
        let bucket = level * BUCKETS + bucket as usize;
        self.timers[id as usize].bucket = bucket as u32;
        self.lists[bucket].push_front(&mut self.links, id);
        self.occupied[level] |= 1 << (bucket % BUCKETS);
    }

    /// Takes a timer out of its bucket.
    fn unlink(&mut self, id: u32) {
        self.changed = true;
        let bucket = std::mem::replace(&mut self.timers[id as usize].bucket, NIL) as usize;
        self.lists[bucket].remove(&mut self.links, id);
        if self.lists[bucket].is_empty() {
            self.occupied[bucket / BUCKETS] &= !(1 << (bucket % BUCKETS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use crate::time::{MS, SEC, US};

    #[test]
    fn timer_fires_at_its_deadline_and_not_before() {
        let mut wheel = TimerWheel::new(2);
        wheel.set(0, Instant(30 * SEC + 7));
        assert_eq!(wheel.next(), Some(Instant(30 * SEC + 7)));
        assert_eq!(wheel.expire(Instant(30 * SEC + 6)), None);
        assert_eq!(wheel.expire(Instant(30 * SEC + 7)), Some(0));
        assert_eq!((wheel.expire(Instant(60 * SEC)), wheel.next()), (None, None));
    }

    /// Sets, clears and expires random timers against a plain list, with deadlines from nanoseconds to months.
    #[test]
    fn wheel_matches_a_list() {
        for seed in 0..40 {
            let mut prng = Prng::new(seed);
            let mut wheel = TimerWheel::new(20);
            let mut model: Vec<Option<Instant>> = vec![None; 20];
            let mut now = Instant(prng.below(100 * SEC));
            for _ in 0..3_000 {
                let id = prng.below(20) as u32;
                let reach = [1, US, 70 * US, 5 * MS, SEC, 100 * SEC, 9_000_000 * SEC]
                    [prng.below(7) as usize];
                match prng.below(4) {
                    0 => {
                        wheel.clear(id);
                        model[id as usize] = None;
                    }
                    1 | 2 => {
                        let at = now.after(prng.below(reach + 1));
                        wheel.set(id, at);
                        model[id as usize] = Some(at);
                    }
                    _ => {
                        now = now.after(prng.below(reach.min(200 * SEC) + 1));
                        let mut fired = Vec::new();
                        while let Some(id) = wheel.expire(now) {
                            fired.push(id);
                        }
                        fired.sort_unstable();
                        let due = |id: &u32| model[*id as usize].is_some_and(|at| at <= now);
                        let expected: Vec<u32> = (0..20).filter(due).collect();
                        assert_eq!(fired, expected, "seed {seed}");
                        expected.iter().for_each(|&id| model[id as usize] = None);
                    }
                }
                assert_eq!(wheel.next(), model.iter().flatten().min().copied(), "seed {seed}");
            }
        }
    }
}
