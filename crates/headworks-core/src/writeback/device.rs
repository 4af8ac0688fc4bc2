//! A device's dirty counts, and the pace at which each of its writers may dirty.
//!
//! ```text
//!     dirty_ratelimit = bandwidth / writers                  the rate of one writer at the set point
//!     task_ratelimit  = dirty_ratelimit * pos_ratio          the rate of one writer here
//! ```
//!
//! Linux finds the number of writers by feedback: it compares the blocks dirtied in 200 ms with those that its rate should have
//! allowed. That takes many rounds to settle, and settles wrongly if writers wake in step with the measurement (phase locking).
//! In one process the writers are known and are *counted*, each by the fraction of its share that it takes (`throttle.rs`), so no
//! loop can oscillate. Errors of the count show in the position only.
//!
//! The target pause grows with the number of writers, so that the rate of wake-ups does not: 10 ms for one, 20 ms more for each
//! doubling, up to the longest pause. It is shorter in a small pool: an eighth of the time in which the device drains its dirty
//! blocks for one writer, half of it for many, which do not sleep all at once.
//!
//! Invariant: `reserved + dirty + writeback` is the device's credit in use.

use crate::bio::IoClass;
use crate::gauge::{Gauge32, Gauge64};
use crate::time::{Instant, MS, SEC};

use super::bandwidth::Bandwidth;
use super::domains::{DomainId, DomainLoads, Domains};
use super::limits::{BLOCK, Thresholds};
use super::position::{self, pos_ratio};
use super::writers::WEIGHT_ONE;

/// The fixed-point pace of one block a second.
pub const PACE_ONE: u128 = 1 << 16;

/// The lowest `pos_ratio` for the size of a batch. Pauses use 0, too, so that the writers of a dead device do not fill the limit in
/// small steps.
const POS_MIN: u64 = 16;

/// The lowest `pos_ratio` of a device that writes: an eighth (Linux: a quarter). Its share may have moved, and draining the
/// difference can take long. At the hard limit the queue for credit stops writers; a pause would last beyond the end of a short
/// stall.
const POS_LOWEST: u64 = position::ONE / 8;

/// Time without a completion after which a device counts as stalled; its writers may not exceed its share.
const STALLED_NS: u64 = SEC;

/// The shortest target pause, for one writer in a large pool.
const PAUSE_MIN_NS: u64 = 10 * MS;

/// Increase of the target pause for each doubling of the writers.
const PAUSE_STEP_NS: u64 = 20 * MS;

/// Smallest batch where the longest pause allows it: 128 KiB of work for a wake-up.
const BATCH_MIN: u64 = 32;

/// The batch of a writer of a heavy domain is at most this part of the control scope. Larger ones would move the position: such a
/// writer is charged when it is lowest, the others all the time, and got up to 8 % too much.
const BATCH_SCOPE: u64 = 32;

/// Time for which paces are valid, unless the position moves by a 128th of the limit or the writers by a 16th.
const FRESH_NS: u64 = MS;

/// The limits of a device by credit, shares and thresholds.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLimits {
    /// The device's dirty + writeback + reserved blocks.
    pub used: u32,
    /// Thresholds by its share of recent completions.
    pub share: Thresholds,
    /// Thresholds by all that the other devices left.
    pub left: Thresholds,
    /// Whether all devices together are in free-run, and no other device has busy writers.
    pub all_freerun: bool,
    /// Whether all devices together are below the background threshold, and no other device has busy writers.
    pub all_calm: bool,
}

/// The current paces of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct PaceControl {
    /// The thresholds that apply to the device.
    pub regions: Thresholds,
    /// Whether the device is in free-run: no writer pauses.
    pub freerun: bool,
    /// The rate factor of the position.
    pub pos_ratio: u64,
    /// A writer's rate at the set point, in [`PACE_ONE`].
    pub ratelimit: u64,
    /// A writer's rate here, in [`PACE_ONE`].
    pub pace: u64,
    /// The target pause, in nanoseconds.
    pub pause_ns: u64,
    /// Blocks between two target pauses.
    pub batch: u64,
    /// Unused time that a writer may carry over: what all writers may spend at once fits above the set point.
    pub credit_ns: u64,
    at: Instant,
    used: u32,
    weights: u64,
    stale: bool,
}

/// The throttle's state of one device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Blocks that are dirty and not under writeback.
    pub dirty: Gauge32,
    /// Blocks that are under writeback.
    pub writeback: Gauge32,
    /// Blocks reserved and not dirtied yet.
    pub reserved: Gauge32,
    /// Blocks dirtied since the start.
    pub nr_dirtied: u64,
    /// Blocks written since the start.
    pub nr_written: u64,
    /// The estimated write bandwidth.
    pub bandwidth: Bandwidth,
    /// The sum of its writers' weights.
    pub weights: Gauge64,
    /// What its domains take.
    pub loads: DomainLoads,
    /// It has ended nothing since a request was overdue: beside others, it gets little more credit.
    pub unresponsive: bool,
    /// The last completion, or the begin of writeback after idle time.
    pub alive: Instant,
    /// The class of the last refused reservation, whose limit applies to the waiter.
    pub refused: IoClass,
    /// The current paces, recomputed when outdated.
    pub control: PaceControl,
    /// The smoothed mean of the time that a writer is charged at once, at the set point.
    period_ns: u64,
    /// The time since when a waiter lacks credit.
    short_since: Option<Instant>,
    /// Time with a waiter that lacked credit, in earlier waits.
    short_ns: u64,
    /// `nr_dirtied` at the last tick, for the trace.
    pub dirtied_stamp: u64,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            dirty: Gauge32::new(0),
            writeback: Gauge32::new(0),
            reserved: Gauge32::new(0),
            nr_dirtied: 0,
            nr_written: 0,
            bandwidth: Bandwidth::default(),
            weights: Gauge64::new(0),
            loads: DomainLoads::default(),
            unresponsive: false,
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
    /// Reserved, dirty and writeback blocks together.
    pub fn used(&self) -> u32 {
        self.reserved.get() + self.dirty.get() + self.writeback.get()
    }

    /// Bytes a second that it takes, if it has dirty blocks and that was measured; otherwise 0.
    pub fn measured_rate(&self) -> u64 {
        let busy = self.dirty.get() + self.writeback.get() > 0;
        self.bandwidth.measured().filter(|_| busy).map_or(0, |blocks| blocks * BLOCK)
    }

    /// Creates a device that tells the writers of `domains` domains apart.
    #[must_use]
    pub fn with_domains(domains: usize) -> Self {
        Self { loads: DomainLoads::new(domains), ..Self::default() }
    }

    /// Replaces a writer's weight in the sums of the device.
    pub fn count(&mut self, domains: &Domains, domain: DomainId, was: u32, is: u32) {
        self.weights.sub(was.into());
        self.weights.add(is.into());
        self.loads.count(domains, domain, was, is);
    }

    /// Returns the pace and the batch of a writer of a domain. In free-run no writer pauses, and all have the same batch.
    #[must_use]
    pub fn pace_of(&self, domains: &Domains, domain: DomainId) -> (u64, u64) {
        let (control, writers) = (&self.control, self.weights.get());
        let scaled = |of: u64| self.loads.scale(domains, domain, writers, of);
        if control.freerun {
            return (scaled(control.pace), control.batch);
        }
        let scope = u64::from(control.regions.limit - control.regions.setpoint);
        let most = control.batch.max(scope / BATCH_SCOPE);
        (scaled(control.pace), scaled(control.batch).min(most).max(1))
    }

    /// Marks the paces for recomputation before their next use.
    pub fn outdate(&mut self) {
        self.control.stale = true;
    }

    /// Whether the paces must be recomputed before use.
    #[must_use]
    pub fn is_outdated(&self, now: Instant, used: u32) -> bool {
        let control = &self.control;
        control.stale
            || now.since(control.at) >= FRESH_NS
            || control.used.abs_diff(used) > control.regions.limit / 128
            || control.weights.abs_diff(self.weights.get()) > control.weights / 16
    }

    /// Recomputes the paces; no pause is longer than `pause_max_ns`.
    pub fn update(&mut self, now: Instant, limits: &DeviceLimits, pause_max_ns: u64) {
        let bandwidth = self.bandwidth.get();
        let regions =
            if limits.share.limit < limits.left.limit { limits.share } else { limits.left };
        let freerun = self.freerun(now, limits, &regions);
        let pos_ratio = self.position(now, limits, pause_max_ns);
        let weights = self.weights.get().max(u64::from(WEIGHT_ONE));
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
            // The next check comes before all writers together can use half of the free blocks.
            let each = u64::from(regions.limit.saturating_sub(limits.used)) * u64::from(WEIGHT_ONE);
            batch = batch.min(each / weights / 2);
        }
        assert!(regions.setpoint <= regions.limit && bandwidth > 0);
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
            weights: self.weights.get(),
            stale: false,
        };
    }

    /// The rate factor by the device's share and by what the others left, whichever is lower.
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
        let position = inside(&limits.share).min(inside(&limits.left)).max(lowest);
        debug_assert!(position <= 2 * position::ONE, "the factor exceeds its range");
        position
    }

    /// Free-run ends above its threshold and begins again below the background threshold. In between writers may owe time, and
    /// one that is awake would take the blocks that paused writers wait for. A round of all writers must fit, too: otherwise all
    /// writers fill the share at once, drain together, and repeat.
    fn freerun(&self, now: Instant, limits: &DeviceLimits, regions: &Thresholds) -> bool {
        let all = |together: bool| together && !self.is_stalled(now);
        if self.control.freerun {
            limits.used <= regions.freerun || all(limits.all_freerun)
        } else {
            let calm = limits.used <= regions.background || all(limits.all_calm);
            calm && (self.is_nearly_idle()
                || u64::from(limits.used) + self.round() <= u64::from(regions.freerun))
        }
    }

    /// Blocks that one round of all writers dirties, by their recent charges.
    fn round(&self) -> u64 {
        (u128::from(self.bandwidth.get()) * u128::from(self.period_ns) / u128::from(SEC)) as u64
    }

    /// Whether its writers together take less than one whole share.
    fn is_nearly_idle(&self) -> bool {
        self.weights.get() < u64::from(WEIGHT_ONE)
    }

    /// Whether it has blocks under writeback and completed none for [`STALLED_NS`].
    fn is_stalled(&self, now: Instant) -> bool {
        self.writeback.get() > 0 && now.since(self.alive) > STALLED_NS
    }

    /// Begins a wait for credit at the head of its queue.
    pub fn on_refused(&mut self, now: Instant, class: IoClass) {
        debug_assert!(self.short_since.is_none_or(|since| since <= now));
        self.refused = class;
        self.short_since.get_or_insert(now);
    }

    /// Ends the head's wait for credit; a further head begins its own when it is refused.
    pub fn on_granted(&mut self, now: Instant) {
        if let Some(since) = self.short_since.take() {
            self.short_ns += now.since(since);
        }
    }

    /// Total time with a waiter for credit. It is no think time of writers.
    #[must_use]
    pub fn short_ns(&self, now: Instant) -> u64 {
        self.short_ns + self.short_since.map_or(0, |since| now.since(since))
    }

    /// Updates the mean charge by a writer that was charged for `blocks`.
    pub fn on_settled(&mut self, blocks: u64) {
        assert!(self.control.ratelimit > 0, "a writer is charged after the paces were computed");
        let period = cost_ns(blocks, self.control.ratelimit);
        self.period_ns = (self.period_ns * 15 + period.min(SEC)) / 16;
    }
}

/// A position's factor with its gain reduced where it acts late.
///
/// A writer's pause is set once, so the factor acts one pause later. If more than the control scope flows in that time (1000 writers
/// of 64 KiB bios in a pool of 256 MB: 62 MB a round, a scope of 6), the full factor overshoots more with every round. A delayed
/// integrator is stable while gain * delay < pi/2, so the gain is at most scope / flow.
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

/// The time that `blocks` cost at a pace, in nanoseconds.
#[must_use]
pub fn cost_ns(blocks: u64, pace: u64) -> u64 {
    let ns = u128::from(blocks) * PACE_ONE * u128::from(SEC) / u128::from(pace.max(1));
    ns.min(u128::from(u64::MAX / 4)) as u64
}

/// The blocks that a pace allows in `ns` nanoseconds.
fn blocks_in(ns: u64, pace: u64) -> u64 {
    (u128::from(ns) * u128::from(pace) / (PACE_ONE * u128::from(SEC))) as u64
}

/// The target pause and the longest useful one, for a sum of weights and `used` blocks to drain.
fn pause(weights: u64, used: u32, bandwidth: u64, pause_max_ns: u64) -> (u64, u64) {
    let writers = (weights / u64::from(WEIGHT_ONE)).max(1);
    let doublings = u64::from(writers.ilog2());
    // A 64th below the longest, which leaves room for the jitter.
    let cap = pause_max_ns - pause_max_ns / 64;
    let drain_ns = (u128::from(used) * u128::from(SEC) / u128::from(bandwidth.max(1))) as u64;
    let longest = cap.min(drain_ns >> 3_u64.saturating_sub(doublings).max(1)).max(MS);
    let wanted = PAUSE_MIN_NS
        + PAUSE_STEP_NS * doublings
        + PAUSE_STEP_NS * (writers - (1 << doublings)) / (1 << doublings);
    debug_assert!(longest >= MS && pause_max_ns >= MS);
    (wanted.min(longest), longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::DirtyOptions;

    fn device(writers: u64, used: u32) -> Device {
        let regions = Thresholds::of(&DirtyOptions::default(), 1 << 20);
        let mut device =
            Device { weights: Gauge64::new(writers * u64::from(WEIGHT_ONE)), ..Device::default() };
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
    fn pace_is_bandwidth_divided_by_writers() {
        let setpoint = Thresholds::of(&DirtyOptions::default(), 1 << 20).setpoint;
        for writers in [1, 10, 100, 1000, 10_000] {
            let control = device(writers, setpoint).control;
            assert_eq!(control.pos_ratio, position::ONE);
            assert_eq!(control.ratelimit, 25_600 * PACE_ONE as u64 / writers);
            assert_eq!(control.pace, control.ratelimit);
        }
    }

    #[test]
    fn pause_grows_with_the_number_of_writers() {
        let at =
            |writers| pause(writers * u64::from(WEIGHT_ONE), 190_000, 170_000, 200 * MS).0 / MS;
        let pauses: Vec<u64> = [1, 2, 3, 4, 8, 16, 64, 128, 1000].map(at).into();
        assert_eq!(pauses, [10, 30, 40, 50, 70, 90, 130, 150, 196]);
        // 256 MB on 3 GB/s drains in 15 ms: one writer must be back after an eighth of it, many after half.
        assert_eq!(pause(1 << 16, 11_000, 732_000, 200 * MS).0, 1_878_415);
        assert_eq!(pause(1000 << 16, 11_000, 732_000, 200 * MS).0, 7_513_661);
    }

    #[test]
    fn batch_has_a_floor_where_the_pause_allows() {
        let setpoint = Thresholds::of(&DirtyOptions::default(), 1 << 20).setpoint;
        assert_eq!(device(150, setpoint).control.batch, BATCH_MIN);
        assert!(device(400, setpoint).control.batch < BATCH_MIN);
    }

    #[test]
    fn device_over_its_share_is_slowed_and_stalled_one_stopped() {
        let all = Thresholds::of(&DirtyOptions::default(), 1 << 20);
        let limits = DeviceLimits {
            used: 50_000,
            share: all.share(20_000),
            left: all,
            all_freerun: false,
            all_calm: false,
        };
        let mut device =
            Device { writeback: Gauge32::new(1), alive: Instant(0), ..Device::default() };
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
