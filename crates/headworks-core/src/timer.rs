//! A timer wheel: many deadlines, each set, moved and cleared in one step.
//!
//! Timers are named by small numbers that their owners fix at start-up. A timer hangs in one of 64 places of one of 6 levels,
//! by how far off it is; a place of level `l` is 64^l ticks of 65.5 us wide. When the hand reaches a place its timers come
//! down a level. Deadlines are kept exactly: a timer fires when `now` reached its own time, never earlier.
//!
//! ```text
//!  level 0: |.|.|T|.|...  64 places of 1 tick       (4.2 ms in all)
//!  level 1: |.|T|.|.|...  64 places of 64 ticks     (268 ms)
//!  level 2: ...                                     (17 s), (18 min), (20 h), (52 days: later ones wait in the last place)
//! ```

use crate::list::{Links, List, OnlyLink};
use crate::slab::NIL;
use crate::time::Instant;

/// Nanoseconds of a tick, as a power of two. 65.5 us: finer than any deadline that policy sets needs to be found.
const TICK_SHIFT: u32 = 16;
const LEVELS: usize = 6;
const PLACES: usize = 64;

#[derive(Clone, Debug)]
struct Timer {
    at: Instant,
    /// Where it hangs: `level * PLACES + place`, or `NIL` when not set.
    place: u32,
}

/// A fixed number of timers.
#[derive(Debug)]
pub struct TimerWheel {
    timers: Vec<Timer>,
    links: Links,
    lists: [List<OnlyLink>; LEVELS * PLACES],
    /// One bit per place that is not empty.
    filled: [u64; LEVELS],
    /// The tick up to which everything was fired or moved down.
    tick: u64,
    /// A timer was set or unset since the flag was taken.
    changed: bool,
}

impl TimerWheel {
    /// A wheel for timers `0..count`, none set.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let unset = Timer { at: Instant(0), place: NIL };
        Self {
            timers: vec![unset; count],
            links: Links::new(count),
            lists: [const { List::new() }; LEVELS * PLACES],
            filled: [0; LEVELS],
            tick: 0,
            changed: false,
        }
    }

    /// Sets or moves a timer.
    pub fn set(&mut self, id: u32, at: Instant) {
        self.clear(id);
        self.timers[id as usize].at = at;
        self.hang(id);
    }

    /// Unsets a timer, if it is set.
    pub fn clear(&mut self, id: u32) {
        if self.timers[id as usize].place != NIL {
            self.unhang(id);
        }
    }

    /// When it fires, if it is set.
    #[must_use]
    pub fn at(&self, id: u32) -> Option<Instant> {
        let timer = &self.timers[id as usize];
        (timer.place != NIL).then_some(timer.at)
    }

    /// Whether a timer is set.
    #[must_use]
    pub fn is_set(&self, id: u32) -> bool {
        self.timers[id as usize].place != NIL
    }

    /// Whether [`TimerWheel::next`] is to be asked: it may answer otherwise than when this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// What was announced is spent.
    pub fn set_changed(&mut self) {
        self.changed = true;
    }

    /// The earliest deadline of all.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        (0..LEVELS).filter_map(|level| self.first_of_level(level)).min()
    }

    /// The next timer whose time has come, which is unset by this; call until `None`.
    pub fn expire(&mut self, now: Instant) -> Option<u32> {
        let target = now.0 >> TICK_SHIFT;
        loop {
            let place = (self.tick % PLACES as u64) as u32;
            if let Some(id) = self.due_at(place, now) {
                self.unhang(id);
                return Some(id);
            }
            if self.tick >= target {
                return None;
            }
            self.advance(target);
        }
    }

    fn due_at(&self, place: u32, now: Instant) -> Option<u32> {
        let mut all = self.lists[place as usize].iter(&self.links);
        all.find(|&id| self.timers[id as usize].at <= now)
    }

    /// Goes to the next tick at which something may hang, at most to `target`, and brings passed timers down.
    fn advance(&mut self, target: u64) {
        let Some(level) = (0..LEVELS).find(|&level| self.filled[level] != 0) else {
            self.tick = target;
            return;
        };
        let hand = self.tick >> (6 * level);
        let ahead = self.filled[level].rotate_right((hand % 64) as u32 + 1);
        let next = (hand + 1 + u64::from(ahead.trailing_zeros())) << (6 * level);
        // A hand of a higher level moves there; what hangs at its new place may be due before `next`.
        let boundary = ((self.tick >> (6 * (level + 1))) + 1) << (6 * (level + 1));
        self.tick = next.min(boundary).min(target);
        for level in 1..LEVELS {
            if !self.tick.is_multiple_of(1 << (6 * level)) {
                break;
            }
            self.bring_down(level);
        }
    }

    fn bring_down(&mut self, level: usize) {
        let place = level * PLACES + ((self.tick >> (6 * level)) % PLACES as u64) as usize;
        while let Some(id) = self.lists[place].front() {
            self.unhang(id);
            self.hang(id);
            debug_assert!(self.timers[id as usize].place as usize != place, "a timer moves down");
        }
    }

    fn first_of_level(&self, level: usize) -> Option<Instant> {
        if self.filled[level] == 0 {
            return None;
        }
        if level == LEVELS - 1 {
            // What is beyond the last level waits in places that say nothing of its time.
            let all = level * PLACES..(level + 1) * PLACES;
            return all.filter_map(|place| self.first_of_place(place)).min();
        }
        // The first place around the clock. On a higher level the present place is a full round off: it was brought down.
        let hand = (self.tick >> (6 * level)) % PLACES as u64;
        let present = hand as u32 + u32::from(level > 0);
        let turned = self.filled[level].rotate_right(present);
        let place = (present + turned.trailing_zeros()) as usize % PLACES;
        self.first_of_place(level * PLACES + place)
    }

    fn first_of_place(&self, place: usize) -> Option<Instant> {
        let all = self.lists[place].iter(&self.links);
        all.map(|id| self.timers[id as usize].at).min()
    }

    fn hang(&mut self, id: u32) {
        self.changed = true;
        // By distance; what is beyond the last level waits there for a round and is looked at again.
        let farthest = self.tick + (1 << (6 * LEVELS)) - 1;
        let due = (self.timers[id as usize].at.0 >> TICK_SHIFT).clamp(self.tick, farthest);
        let distance = due - self.tick;
        let level = (64 - distance.leading_zeros()).saturating_sub(1) as usize / 6;
        let place = (due >> (6 * level)) % PLACES as u64;
        let place = level * PLACES + place as usize;
        self.timers[id as usize].place = place as u32;
        self.lists[place].push_front(&mut self.links, id);
        self.filled[level] |= 1 << (place % PLACES);
    }

    fn unhang(&mut self, id: u32) {
        self.changed = true;
        let place = std::mem::replace(&mut self.timers[id as usize].place, NIL) as usize;
        self.lists[place].remove(&mut self.links, id);
        if self.lists[place].is_empty() {
            self.filled[place / PLACES] &= !(1 << (place % PLACES));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use crate::time::{MS, SEC, US};

    #[test]
    fn fires_at_its_own_time_and_not_before() {
        let mut wheel = TimerWheel::new(2);
        wheel.set(0, Instant(30 * SEC + 7));
        assert_eq!(wheel.next(), Some(Instant(30 * SEC + 7)));
        assert_eq!(wheel.expire(Instant(30 * SEC + 6)), None);
        assert_eq!(wheel.expire(Instant(30 * SEC + 7)), Some(0));
        assert_eq!((wheel.expire(Instant(60 * SEC)), wheel.next()), (None, None));
    }

    /// Random sets, clears and expiries against a plain list, over deadlines from nanoseconds to months.
    #[test]
    fn agrees_with_a_list() {
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
