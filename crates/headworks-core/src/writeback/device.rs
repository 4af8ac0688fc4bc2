//! One device under the throttle: its counts, and the pace at which each of its writers may dirty.
//!
//! ```text
//!     dirty_ratelimit = bandwidth / writers                  the rate of one writer at the set point
//!     task_ratelimit  = dirty_ratelimit * pos_ratio          the rate of one writer here
//! ```
//!
//! Linux finds the number of writers by feedback: it compares what was dirtied in 200 ms with what its rate should have
//! let through. That takes many rounds to settle, and if writers wake in step with the measurement it settles wrongly
//! (phase locking). In one process the writers are known, so they are *counted*, each by how much of its part it takes
//! (`throttle.rs`); there is no loop that could swing, lag or lock. What the count misses shows in the position only.
//!
//! The pause that is aimed at grows with the number of writers, so that wake-ups do not: 10 ms for one, 20 ms more for each
//! doubling, up to the longest pause. It is shorter when the pool is: an eighth of what the device needs to drain its
//! dirty blocks for one writer, half of it for many, since these do not sleep all at once.

use crate::bio::IoClass;
use crate::time::{Instant, MS, SEC};

use super::bandwidth::Bandwidth;
use super::limits::Thresholds;
use super::position::{self, pos_ratio};
use super::writers::WEIGHT_ONE;

/// 1 block a second of a pace.
pub const PACE_ONE: u128 = 1 << 16;

/// The lowest `pos_ratio` that a batch is computed with. Pauses are computed with 0, too: then time pays for nothing, and a
/// dead device's writers do not fill the limit in small steps.
const POS_MIN: u64 = 16;

/// A device that writes is slowed to an eighth at the lowest, not stopped. Its share may have moved, and draining what it
/// moved by can take long (Linux: a quarter); and at the hard limit the queue for credit stops writers exactly, where a pause would
/// hold them beyond the end of a short stall.
const POS_LOWEST: u64 = position::ONE / 8;

/// A device that completed nothing for so long has stalled, and may not go on over its share.
const STALLED_NS: u64 = SEC;

/// The shortest pause aimed at, for one writer with plenty of room.
const PAUSE_MIN_NS: u64 = 10 * MS;

/// Added to it for each doubling of the writers.
const PAUSE_STEP_NS: u64 = 20 * MS;

/// A batch is at least 128 KiB where the longest pause allows it: a writer that was woken should do some work.
const BATCH_MIN: u64 = 32;

/// Paces are good for so long, or until the position has moved by a 128th of the limit or the writers by a 16th.
const FRESH_NS: u64 = MS;

/// What a device may use, from the credit, the shares and the thresholds.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// Dirty + writeback + reserved of the device.
    pub used: u32,
    /// Its regions by its part of what was written lately.
    pub share: Thresholds,
    /// Its regions if it had all that the others left.
    pub left: Thresholds,
    /// Whether all devices together are in free-run, and no other one's writers are busy.
    pub all_freerun: bool,
    /// Whether all together are below the background threshold, and no other one's writers are busy.
    pub all_calm: bool,
}

/// The paces of now.
#[derive(Clone, Copy, Debug, Default)]
pub struct PaceControl {
    /// The regions that the device is held to.
    pub regions: Thresholds,
    /// Nobody pauses.
    pub freerun: bool,
    /// The factor of the position.
    pub pos_ratio: u64,
    /// A writer's rate at the set point, in [`PACE_ONE`].
    pub ratelimit: u64,
    /// A writer's rate here, in [`PACE_ONE`].
    pub pace: u64,
    /// The pause that is aimed at.
    pub pause_ns: u64,
    /// Blocks for one such pause.
    pub batch: u64,
    /// How much unused time a writer may carry over: what all may spend at once must fit above the set point.
    pub credit_ns: u64,
    at: Instant,
    used: u32,
    weights: u64,
    stale: bool,
}

/// One device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Blocks that are dirty and not under writeback.
    pub dirty: u32,
    /// Blocks under writeback.
    pub writeback: u32,
    /// Credit taken and not used yet.
    pub reserved: u32,
    /// Blocks dirtied, ever.
    pub nr_dirtied: u64,
    /// Blocks written, ever.
    pub nr_written: u64,
    /// The estimate.
    pub bandwidth: Bandwidth,
    /// The sum of its writers' weights.
    pub weights: u64,
    /// When it last completed something, or began after having had nothing to do.
    pub alive: Instant,
    /// The class of who was refused last: whose limit he waits under.
    pub refused: IoClass,
    /// The paces.
    pub control: PaceControl,
    /// What a writer is charged at a time, at the set point: the smoothed mean.
    period_ns: u64,
    short_since: Option<Instant>,
    short_ns: u64,
    /// `nr_dirtied` at the last tick, for the trace.
    pub dirtied_stamp: u64,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            dirty: 0,
            writeback: 0,
            reserved: 0,
            nr_dirtied: 0,
            nr_written: 0,
            bandwidth: Bandwidth::default(),
            weights: 0,
            alive: Instant(0),
            refused: IoClass::default(),
            control: PaceControl { stale: true, freerun: true, ..PaceControl::default() },
            period_ns: 0,
            short_since: None,
            short_ns: 0,
            dirtied_stamp: 0,
        }
    }
}

impl Device {
    /// The paces are to be computed anew before they are used.
    pub fn outdate(&mut self) {
        self.control.stale = true;
    }

    /// Whether the paces are too old to use.
    #[must_use]
    pub fn is_outdated(&self, now: Instant, used: u32) -> bool {
        let control = &self.control;
        control.stale
            || now.since(control.at) >= FRESH_NS
            || control.used.abs_diff(used) > control.regions.limit / 128
            || control.weights.abs_diff(self.weights) > control.weights / 16
    }

    /// Computes the paces. `pause_max_ns` is the longest pause.
    pub fn update(&mut self, now: Instant, limits: &DeviceLimits, pause_max_ns: u64) {
        let bandwidth = self.bandwidth.get();
        let regions =
            if limits.share.limit < limits.left.limit { limits.share } else { limits.left };
        let freerun = self.freerun(now, limits, &regions);
        let pos_ratio = self.position(now, limits, pause_max_ns);
        let weights = self.weights.max(u64::from(WEIGHT_ONE));
        let pace_at = |pos: u64| {
            let scaled = u128::from(bandwidth) * u128::from(pos) * PACE_ONE;
            let pace = scaled * u128::from(WEIGHT_ONE) / u128::from(weights);
            (pace / u128::from(position::ONE)).max(1) as u64
        };
        let (pause_ns, longest_ns) = pause(weights, limits.used, bandwidth, pause_max_ns);
        let steady = pace_at(pos_ratio.clamp(POS_MIN, position::ONE));
        let mut batch = blocks_in(pause_ns, steady);
        if batch < BATCH_MIN && cost_ns(BATCH_MIN, steady) <= longest_ns {
            batch = BATCH_MIN;
        }
        if freerun {
            // Look again before all the writers together could have left half of what is free.
            let each = u64::from(regions.limit.saturating_sub(limits.used)) * u64::from(WEIGHT_ONE);
            batch = batch.min(each / weights / 2);
        }
        let scope = u64::from(regions.limit - regions.setpoint);
        self.control = PaceControl {
            regions,
            freerun,
            pos_ratio,
            ratelimit: pace_at(position::ONE),
            pace: pace_at(pos_ratio),
            pause_ns,
            batch: batch.max(1),
            credit_ns: (scope * SEC / bandwidth).clamp(pause_ns, SEC),
            at: now,
            used: limits.used,
            weights: self.weights,
            stale: false,
        };
    }

    /// The position on the device's share, and on what the others left.
    fn position(&self, now: Instant, limits: &DeviceLimits, pause_max_ns: u64) -> u64 {
        let on = |regions: &Thresholds| pos_ratio(regions.setpoint, limits.used, regions.limit);
        let delay_ns = self.period_ns.min(pause_max_ns);
        let damp = |pos: u64, regions: &Thresholds| {
            let flow = u128::from(self.bandwidth.get()) * u128::from(delay_ns) / u128::from(SEC);
            damped(pos, regions.limit - regions.setpoint, flow as u64)
        };
        let inside = |regions: &Thresholds| {
            if limits.used < regions.limit { damp(on(regions), regions) } else { 0 }
        };
        let lowest = if self.is_stalled(now) { 0 } else { POS_LOWEST };
        inside(&limits.share).min(inside(&limits.left)).max(lowest)
    }

    /// Free-run ends above its threshold and begins again at the background threshold. In between writers may owe time: if
    /// one that happens to be awake ran free there, it would take what the others are waiting for. And a round
    /// of all must fit: else the herd that is let go fills the share at once, drains together, and is let go again.
    fn freerun(&self, now: Instant, limits: &DeviceLimits, regions: &Thresholds) -> bool {
        let all = |together: bool| together && !self.is_stalled(now);
        if self.control.freerun {
            limits.used <= regions.freerun || all(limits.all_freerun)
        } else {
            let calm = limits.used <= regions.background || all(limits.all_calm);
            calm && (self.is_left()
                || u64::from(limits.used) + self.round() <= u64::from(regions.freerun))
        }
    }

    /// What its writers dirty if each is let go once, by what they were charged lately.
    fn round(&self) -> u64 {
        (u128::from(self.bandwidth.get()) * u128::from(self.period_ns) / u128::from(SEC)) as u64
    }

    /// Nobody writes in earnest.
    fn is_left(&self) -> bool {
        self.weights < u64::from(WEIGHT_ONE)
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.writeback > 0 && now.since(self.alive) > STALLED_NS
    }

    /// Its queue waits for credit, from now on.
    pub fn on_refused(&mut self, now: Instant, class: IoClass) {
        self.refused = class;
        self.short_since.get_or_insert(now);
    }

    /// The head of its queue has its credit; if there is another head, that one will be refused.
    pub fn on_granted(&mut self, now: Instant) {
        if let Some(since) = self.short_since.take() {
            self.short_ns += now.since(since);
        }
    }

    /// Time in which somebody waited for credit, ever. No writer is to be called light for it.
    #[must_use]
    pub fn short_ns(&self, now: Instant) -> u64 {
        self.short_ns + self.short_since.map_or(0, |since| now.since(since))
    }

    /// A writer was charged for so many blocks.
    pub fn on_settled(&mut self, blocks: u64) {
        let period = cost_ns(blocks, self.control.ratelimit);
        self.period_ns = (self.period_ns * 15 + period.min(SEC)) / 16;
    }
}

/// A position's factor, less steep where it acts late.
///
/// A writer's pause is set once, so the factor acts a pause later. If more than the control scope flows in that time (1000
/// writers of 64 KiB bios in a pool of 256 MB: 62 MB a round, a scope of 6), the full factor overshoots more with every
/// round. A delayed integrator is stable while gain * delay < pi/2: so the gain is at most scope / flow.
fn damped(pos: u64, scope: u32, flow: u64) -> u64 {
    let scope = u64::from(scope);
    if flow <= scope {
        return pos;
    }
    let gain = |off: u64| off * scope / flow;
    if pos > position::ONE {
        position::ONE + gain(pos - position::ONE)
    } else {
        position::ONE - gain(position::ONE - pos)
    }
}

/// What so many blocks cost at the pace, in nanoseconds.
#[must_use]
pub fn cost_ns(blocks: u64, pace: u64) -> u64 {
    let ns = u128::from(blocks) * PACE_ONE * u128::from(SEC) / u128::from(pace.max(1));
    ns.min(u128::from(u64::MAX / 4)) as u64
}

/// How many blocks the pace lets through in that time.
fn blocks_in(ns: u64, pace: u64) -> u64 {
    (u128::from(ns) * u128::from(pace) / (PACE_ONE * u128::from(SEC))) as u64
}

/// The pause to aim at and the longest that is sensible, for that many writers and that much to drain.
fn pause(weights: u64, used: u32, bandwidth: u64, pause_max_ns: u64) -> (u64, u64) {
    let writers = (weights / u64::from(WEIGHT_ONE)).max(1);
    let doublings = u64::from(writers.ilog2());
    // A 64th less than the longest, where the jitter finds its place.
    let cap = pause_max_ns - pause_max_ns / 64;
    let drain_ns = (u128::from(used) * u128::from(SEC) / u128::from(bandwidth.max(1))) as u64;
    let longest = cap.min(drain_ns >> 3_u64.saturating_sub(doublings).max(1)).max(MS);
    let wanted = PAUSE_MIN_NS
        + PAUSE_STEP_NS * doublings
        + PAUSE_STEP_NS * (writers - (1 << doublings)) / (1 << doublings);
    (wanted.min(longest), longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::DirtyOptions;

    fn device(writers: u64, used: u32) -> Device {
        let regions = Thresholds::of(&DirtyOptions::default(), 1 << 20);
        let mut device = Device { weights: writers * u64::from(WEIGHT_ONE), ..Device::default() };
        let limits = DeviceLimits {
            used,
            share: regions,
            left: regions,
            all_freerun: false,
            all_calm: false,
        };
        device.update(Instant(SEC), &limits, 200 * MS);
        device
    }

    #[test]
    fn the_pace_is_the_bandwidth_over_the_writers() {
        let setpoint = Thresholds::of(&DirtyOptions::default(), 1 << 20).setpoint;
        for writers in [1, 10, 100, 1000, 10_000] {
            let control = device(writers, setpoint).control;
            assert_eq!(control.pos_ratio, position::ONE);
            assert_eq!(control.ratelimit, 25_600 * PACE_ONE as u64 / writers);
            assert_eq!(control.pace, control.ratelimit);
        }
    }

    #[test]
    fn pauses_grow_with_the_writers_so_that_wake_ups_do_not() {
        let at =
            |writers| pause(writers * u64::from(WEIGHT_ONE), 190_000, 170_000, 200 * MS).0 / MS;
        let pauses: Vec<u64> = [1, 2, 3, 4, 8, 16, 64, 128, 1000].map(at).into();
        assert_eq!(pauses, [10, 30, 40, 50, 70, 90, 130, 150, 196]);
        // 256 MB on 3 GB/s drains in 15 ms: one writer must be back after an eighth of it, many after half.
        assert_eq!(pause(1 << 16, 11_000, 732_000, 200 * MS).0, 1_878_415);
        assert_eq!(pause(1000 << 16, 11_000, 732_000, 200 * MS).0, 7_513_661);
    }

    #[test]
    fn the_batch_has_a_floor_where_the_pause_allows_it() {
        let setpoint = Thresholds::of(&DirtyOptions::default(), 1 << 20).setpoint;
        assert_eq!(device(150, setpoint).control.batch, BATCH_MIN);
        assert!(device(400, setpoint).control.batch < BATCH_MIN);
    }

    #[test]
    fn a_device_over_its_share_is_slowed_and_a_stalled_one_stopped() {
        let all = Thresholds::of(&DirtyOptions::default(), 1 << 20);
        let limits = DeviceLimits {
            used: 50_000,
            share: all.share(20_000),
            left: all,
            all_freerun: false,
            all_calm: false,
        };
        let mut device = Device { writeback: 1, alive: Instant(0), ..Device::default() };
        device.update(Instant(SEC / 2), &limits, 200 * MS);
        assert_eq!(device.control.pos_ratio, POS_LOWEST);
        device.update(Instant(2 * SEC), &limits, 200 * MS);
        assert_eq!(device.control.pos_ratio, 0);
        let squeezed = DeviceLimits { left: all.share(51_000), share: all, ..limits };
        device.update(Instant(SEC / 2), &squeezed, 200 * MS);
        assert_eq!(device.control.regions.limit, 51_000);
        assert!((POS_LOWEST..position::ONE / 2).contains(&device.control.pos_ratio));
    }

    #[test]
    fn costs_and_blocks_are_inverse() {
        for (blocks, pace) in [(16, 160_000), (1, 1), (1 << 24, u64::from(u32::MAX) << 16)] {
            let ns = cost_ns(blocks, pace);
            assert!(blocks_in(ns, pace).abs_diff(blocks) <= 1);
        }
    }
}
