//! Latency targets: how many bytes of others may be in a device while small requests miss their target.
//!
//! An export may have a target: 99 of 100 of its synchronous requests of at most [`SMALL_MAX`] shall be answered within that time,
//! from their arrival at the queue on. *Bulk* is what exports with a looser target, or with none, have in the device. While a target
//! is missed, the limit on bulk shrinks; while it is kept and bulk waits for the limit, that grows again.
//!
//! ```text
//!                     a window ends, of 16 times the tightest target, 100 ms to 1 s, or less if it is missed
//!
//!   most missed level:   over 50 %  --> limit / (latency of the misses / target), by 2 to 256
//!                        over 1 %   --> limit * 7/8        (2 % after three changes of direction: then it is close enough)
//!                        1 % over 7/8 of the target --> as it is
//!                        else       --> if bulk waited for it: limit * 33/32 + 8 KiB, for fewer than 25 requests less in proportion;
//!                                       or * 3/2 while 99 % of them take less than half the target, up to 3/4 of the limit at
//!                                       which it was missed last
//! ```
//!
//! One miss takes an eighth, so what 25 requests without one may add is a thirty-second: then about 1 % miss where the limit stays. A
//! disk's reader that asks twice a second would have it raised by so much for five requests, and 4 % would miss. Far below the
//! target a limit that one start with a full device made small would need minutes at that pace: there the steps are large.
//!
//! Exports with the same target share a *level*. The level that is missed most decides, and only looser ones are bulk: no export is
//! slowed for a target that is as loose as its own. The *guard* is the target of the level that decided last.
//!
//! What a limit allows is whole commands, so a small step may take the misses from none to most. The control cannot see that before; it
//! pays little for it. A window ends at once when two of its requests missed, of five or more, and more than an eighth. And a limit that was
//! missed again, between 2/3 and 4/3 of the one before, is approached, from 7/8 of it on, only after a *rest*: windows without a
//! miss, each time twice as many, up to 64. One that is kept above it ends the rests: the device or its load has changed.
//!
//! Requests that came before the limit changed last say nothing of it and do not count. A level with fewer than five is judged
//! with the next window, unless most of them took several times the target: behind hundreds of MiB few are answered.
//!
//! What is limited is bytes, not requests: requests differ in size by a factor of 256, and a small one waits for bytes. A change of
//! the device makes the limit wrong for some windows. Shrinking begins at the most that the device had in the window: a window ends when
//! something was answered, and at that moment it may have nothing.
//!
//! Source: io.latency of Linux (block/blk-iolatency.c), which halves the queue depth of looser groups; the step sizes are this
//! module's.
//!
//! Invariants: without a target there is no limit; `BULK_MIN <= limit <= BULK_MAX`, or there is none; levels have different targets
//! and are ordered by them.

mod smallest;

pub use smallest::SmallestLatency;

use crate::time::{Instant, MS, SEC};

/// Largest request that a target is about, in bytes.
pub const SMALL_MAX: u32 = 64 << 10;
/// Different targets that a device keeps at once; exports with more have those of the next looser level.
pub const LEVELS_MAX: usize = 8;
/// The least limit on bulk. One request goes in at any rate, whatever its size.
pub const BULK_MIN: u64 = 32 << 10;
/// A limit that reaches this is none.
pub const BULK_MAX: u64 = 256 << 20;

/// The length of a window in targets, and its bounds.
const WINDOW_TARGETS: u64 = 16;
const WINDOW_MIN: u64 = 100 * MS;
const WINDOW_MAX: u64 = SEC;
/// Requests that a level needs to be judged; fewer are kept for the next window.
const SAMPLES_MIN: u32 = 5;
/// Part of a level's requests that may miss the target, in thousandths; and after the control has changed its direction so often.
const MISSED_MAX: u32 = 10;
const MISSED_MAX_SETTLED: u32 = 20;
const REVERSALS_MAX: u8 = 3;
/// Fewer are enough if most missed the target, by this factor in the mean.
const FAR_TIMES: u64 = 4;
/// Requests without a miss that raise the limit by the whole step.
const STEP_SAMPLES: u64 = 25;
/// The limit is divided by at most this at once.
const DIVISOR_MAX: u64 = 256;
/// A window ends when so many requests of a level missed its target, and they are more than one of so many.
const LOST: u32 = 2;
const LOST_PART: u32 = 8;
/// The longest rest below a limit that was missed again, in windows.
const REST_MAX: u16 = 64;
/// Above this part the limit is halved, or more.
const MISSED_MOST: u32 = 500;

/// The exports with one target.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    target_ns: u64,
    samples: u32,
    missed: u32,
    /// Sum of the times of those that missed it.
    missed_ns: u64,
    /// Requests that took more than 7/8, and more than half, of the target.
    near: u32,
    half: u32,
}

impl Level {
    /// Returns the part of the requests that missed the target, in thousandths; `None` for too few requests.
    fn missed_part(&self) -> Option<u32> {
        debug_assert!(self.missed <= self.samples, "what missed the target was counted");
        let far = self.missed > self.samples / 2 && self.missed_times() >= FAR_TIMES;
        (self.samples >= SAMPLES_MIN || far).then_some(self.part(self.missed))
    }

    /// Returns true once the rest of a window cannot make up for what was missed in it.
    fn is_lost(&self) -> bool {
        self.missed >= LOST && self.samples >= SAMPLES_MIN && self.missed > self.samples / LOST_PART
    }

    /// Returns a number of the level's requests as a part of them, in thousandths.
    fn part(&self, requests: u32) -> u32 {
        (u64::from(requests) * 1000 / u64::from(self.samples.max(1))) as u32
    }

    /// Returns the mean time of the requests that missed the target, in targets.
    fn missed_times(&self) -> u64 {
        self.missed_ns / (u64::from(self.missed.max(1)) * self.target_ns)
    }
}

/// The direction of a change of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Down,
    Up,
}

/// Decides how much bulk a device takes, from how well its targets are kept.
#[derive(Debug)]
pub struct TargetControl {
    levels: [Level; LEVELS_MAX],
    /// Number of levels in use.
    count: usize,
    /// Most bytes of bulk in the device; `None` without a limit.
    limit: Option<u64>,
    /// Requests of exports with a target above this are bulk.
    guard_ns: u64,
    window_end: Instant,
    /// When the limit changed last.
    changed_at: Instant,
    /// Bulk waited for the limit in this window.
    bound: bool,
    /// The most bytes that were in the device in this window.
    most: u64,
    last: Direction,
    reversals: u8,
    /// The limit at which the target was missed last; `u64::MAX` if a higher one has kept it since.
    missed_at: u64,
    /// Windows without a miss since the limit was lowered, and how many there have to be before it comes close to `missed_at` again.
    rested: u16,
    rest: u16,
}

impl TargetControl {
    /// Creates the control of a device without targets.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            levels: [Level { target_ns: 0, samples: 0, missed: 0, missed_ns: 0, near: 0, half: 0 };
                LEVELS_MAX],
            count: 0,
            limit: None,
            guard_ns: u64::MAX,
            window_end: Instant(0),
            changed_at: Instant(0),
            bound: false,
            most: 0,
            last: Direction::Down,
            reversals: 0,
            missed_at: u64::MAX,
            rested: 0,
            rest: 1,
        }
    }

    /// Sets the targets of all exports, in nanoseconds, in any order and with repetitions. What was measured of the ones that stay
    /// is kept, and the limit as well, unless the target that it is for is gone.
    pub fn set_targets(&mut self, now: Instant, targets_ns: impl Iterator<Item = u64>) {
        let before = std::mem::take(&mut self.levels);
        let known = std::mem::take(&mut self.count);
        for target_ns in targets_ns.filter(|&target| target > 0) {
            self.add_level(target_ns);
        }
        for level in &mut self.levels[..self.count] {
            let same = before[..known].iter().find(|old| old.target_ns == level.target_ns);
            *level = same.copied().unwrap_or(*level);
        }
        if !self.levels[..self.count].iter().any(|level| level.target_ns == self.guard_ns) {
            (self.limit, self.guard_ns, self.reversals) = (None, u64::MAX, 0);
            (self.missed_at, self.rest) = (u64::MAX, 1);
        }
        let same = |(one, other): (&Level, &Level)| one.target_ns == other.target_ns;
        if known != self.count || !before.iter().zip(&self.levels).all(same) {
            (self.bound, self.most) = (false, 0);
            self.window_end = now.after(self.window());
        }
        debug_assert!(
            self.levels[..self.count].is_sorted_by(|a, b| a.target_ns < b.target_ns),
            "levels are ordered and differ"
        );
    }

    /// Adds a level in its place; of more than [`LEVELS_MAX`] the loosest are left out.
    fn add_level(&mut self, target_ns: u64) {
        let at = self.levels[..self.count].partition_point(|level| level.target_ns < target_ns);
        let there = self.levels[..self.count].get(at);
        if at == LEVELS_MAX || there.is_some_and(|level| level.target_ns == target_ns) {
            return;
        }
        self.count = (self.count + 1).min(LEVELS_MAX);
        self.levels.copy_within(at..self.count - 1, at + 1);
        self.levels[at] = Level { target_ns, ..Level::default() };
    }

    /// Returns true while an export has a target.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.count > 0
    }

    /// Returns the limit on bytes of bulk in the device; `None` without one.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns the target, in nanoseconds, for which bulk is limited.
    #[must_use]
    pub fn guarded(&self) -> Option<u64> {
        self.limit.map(|_| self.guard_ns)
    }

    /// Returns whether requests of an export are bulk; its target is in nanoseconds, 0 for none.
    #[inline]
    #[must_use]
    pub fn is_bulk(&self, target_ns: u64) -> bool {
        self.limit.is_some() && (target_ns == 0 || target_ns > self.guard_ns)
    }

    /// Notes that bulk waits for the limit.
    #[inline]
    pub fn on_bound(&mut self) {
        self.bound = true;
    }

    /// Notes that the device has `bytes` now.
    #[inline]
    pub fn on_load(&mut self, bytes: u64) {
        self.most = self.most.max(bytes);
    }

    /// Notes a small synchronous request of an export with a target that came at `came` and ended at `now`.
    pub fn note(&mut self, target_ns: u64, came: Instant, now: Instant) {
        if came < self.changed_at {
            return;
        }
        let latency_ns = now.since(came);
        let at = self.levels[..self.count].partition_point(|level| level.target_ns < target_ns);
        if let Some(level) = self.levels[..self.count].get_mut(at) {
            level.samples = level.samples.saturating_add(1);
            level.near += u32::from(latency_ns > target_ns / 8 * 7 && level.near < level.samples);
            level.half += u32::from(latency_ns > target_ns / 2 && level.half < level.samples);
            if latency_ns > target_ns && level.missed < level.samples {
                level.missed += 1;
                level.missed_ns = level.missed_ns.saturating_add(latency_ns);
            }
            if level.is_lost() {
                self.window_end = self.window_end.min(now);
            }
        }
    }

    /// Returns true when a window has ended.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.count > 0 && now >= self.window_end
    }

    /// Returns when the window ends, if there is one.
    #[must_use]
    pub fn window_end(&self) -> Option<Instant> {
        (self.count > 0).then_some(self.window_end)
    }

    /// Ends a window with `load` bytes in the device; returns true if the limit changed.
    pub fn end_window(&mut self, now: Instant, load: u64) -> bool {
        debug_assert!(self.is_due(now), "a window has its time");
        self.on_load(load);
        let before = self.limit;
        let worst = self.worst();
        let missed_max = if self.has_settled() { MISSED_MAX_SETTLED } else { MISSED_MAX };
        if let Some((level, missed)) = worst {
            match missed > missed_max {
                true => self.shrink(&level, missed > MISSED_MOST),
                false if level.part(level.near) > missed_max => {}
                false => self.grow(&level),
            }
        }
        if self.limit != before {
            self.changed_at = now;
        }
        for level in &mut self.levels[..self.count] {
            if level.missed_part().is_some() || self.limit != before {
                *level = Level { target_ns: level.target_ns, ..Level::default() };
            }
        }
        (self.bound, self.most) = (false, load);
        self.window_end = now.after(self.window());
        debug_assert!(
            self.limit.is_none_or(|limit| (BULK_MIN..=BULK_MAX).contains(&limit)),
            "the limit is within its bounds"
        );
        self.limit != before
    }

    /// Returns the level that was missed most and by how much; of equals the tightest.
    fn worst(&self) -> Option<(Level, u32)> {
        let mut worst: Option<(Level, u32)> = None;
        for level in &self.levels[..self.count] {
            if let Some(missed) = level.missed_part()
                && worst.is_none_or(|(_, most)| missed > most)
            {
                worst = Some((*level, missed));
            }
        }
        worst
    }

    /// Lowers the limit for a target, from the most that was in the device: where little was, a limit far above it explains nothing.
    fn shrink(&mut self, level: &Level, much: bool) {
        let from = self.limit.unwrap_or(BULK_MAX).min(self.most.max(BULK_MIN));
        let is_again = from / 4 * 3 <= self.missed_at && self.missed_at <= from / 2 * 3;
        self.rest = if is_again { (self.rest * 2).min(REST_MAX) } else { 1 };
        (self.missed_at, self.rested) = (from, 0);
        let divisor = level.missed_times().clamp(2, DIVISOR_MAX);
        let limit = if much { from / divisor } else { from / 8 * 7 };
        self.limit = Some(limit.clamp(BULK_MIN, BULK_MAX));
        self.guard_ns = level.target_ns;
        self.turn(Direction::Down);
    }

    /// Raises the limit if bulk waited for it, unless it rests; much if the target is far away. One that has reached its bound is lifted.
    fn grow(&mut self, level: &Level) {
        let Some(limit) = self.limit.filter(|_| self.bound) else {
            return;
        };
        if limit > self.missed_at {
            (self.missed_at, self.rest) = (u64::MAX, 1);
        }
        self.rested = self.rested.saturating_add(1);
        if limit >= self.missed_at / 8 * 7 && self.rested < self.rest {
            return;
        }
        let far = level.part(level.half) <= MISSED_MAX;
        let much = limit / 2 + (8 << 10);
        let step = if far && limit + much <= self.missed_at / 4 * 3 {
            much
        } else {
            let samples = u64::from(level.samples).min(STEP_SAMPLES);
            (limit / 32 + (8 << 10)) * samples / STEP_SAMPLES
        };
        let limit = limit + step;
        self.limit = (limit < BULK_MAX).then_some(limit);
        self.turn(Direction::Up);
    }

    /// Returns true once the control has changed its direction several times: the limit is near what the target allows.
    fn has_settled(&self) -> bool {
        self.reversals >= REVERSALS_MAX
    }

    fn turn(&mut self, direction: Direction) {
        if self.last != direction {
            self.last = direction;
            self.reversals = self.reversals.saturating_add(1);
        }
    }

    /// Returns the length of a window: several requests of the tightest target, within bounds.
    fn window(&self) -> u64 {
        let tightest = self.levels[0].target_ns;
        (WINDOW_TARGETS * tightest).clamp(WINDOW_MIN, WINDOW_MAX)
    }
}

impl Default for TargetControl {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
