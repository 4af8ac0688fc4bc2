//! The throttle: who may dirty how much, and who pauses until when.
//!
//! A writer never writes back. Before it dirties blocks it reserves them ([`Throttle::reserve`], the hard limit), and from
//! time to time it pauses, so that in sum the writers dirty what the device writes, at the set point.
//!
//! ```text
//!   on_dirtied:  batch not full ------------------------------------------------> go on
//!                batch full: the blocks cost  period = blocks / pace
//!                            clock = max(clock, now - credit) + period             virtual time, paid up to here
//!                            clock - now  < a quarter of the pause aimed at -----> go on, owing
//!                            else pause until clock (spread a little), but look again after max_pause
//! ```
//!
//! - *Think time.* The clock runs on its own: a writer that spent time elsewhere has credit and does not pause.
//! - *Counting writers.* A writer that is settled late took less than its part: its weight is period / elapsed, at most 1.
//!   The sum of the weights is the number of writers that `device.rs` divides the bandwidth by: light writers count as
//!   what they take and the heavy ones share the rest. A writer silent for a second counts no more.
//! - *No phase locking.* Nothing is measured against wake-ups. The first pause puts a writer at a random phase; every later
//!   one gets a seeded jitter of a 32nd, which the clock does not see, so that rates do not drift.
//! - *A pause is looked at again* after `max_pause` at the latest ([`Throttle::resume`]). What is owed is blocks, not time:
//!   if the pace rose meanwhile the rest is shorter. Where one bio costs seconds (1000 writers on 10 MB/s) the position
//!   still holds, and light and real-time writers find room; short pauses would drive everybody into the hard limit.

use crate::bio::{DeviceId, IoClass};
use crate::prng::Prng;
use crate::time::{Instant, MS, SEC};

use super::credit::{Credit, floor};
use super::device::{Device, DeviceLimits, cost_ns};
use super::foreground::{DirtyPosition, ForegroundWriteback};
use super::limits::{Thresholds, smoothed};
use super::options::{DirtyOptions, ThrottlePolicy};
use super::share::{Shares, device_limit};
use super::stats::DirtyStats;
use super::trace::Trace;
use super::writers::{NEVER, WEIGHT_ONE, WriterId, Writers};

/// Ageing of shares, silent writers, the approach of a lowered limit: every 100 ms while somebody writes.
const TICK_NS: u64 = 100 * MS;

/// A lowered limit takes a step every other tick, 200 ms.
const TICKS_PER_STEP: u64 = 2;

/// A writer that is late by more is weighed without being settled.
const LATE_NS: u64 = 200 * MS;

/// A writer silent for so long counts no more.
const SILENT_NS: u64 = SEC;

/// The policy.
#[derive(Debug)]
pub struct Throttle {
    options: DirtyOptions,
    /// Decides in place of `options.policy`.
    foreground: Option<Box<dyn ForegroundWriteback>>,
    dirtyable: u32,
    /// What is configured.
    target: Thresholds,
    /// What holds now: above the target for a while after it was lowered.
    pub(super) now_at: Thresholds,
    pub(super) credit: Credit,
    shares: Shares,
    pub(super) writers: Writers,
    /// Some may be vacant.
    pub(super) devices: Vec<Device>,
    /// The sum of all weights: 0 while nobody writes, and then nothing ticks.
    pub(super) weights: u64,
    ticked: Instant,
    ticks: u64,
    /// The last time that was told, for what is not told the time.
    told: Instant,
    pub(super) stats: DirtyStats,
    pub(super) trace: Trace,
}

impl Throttle {
    /// A throttle for a pool of `dirtyable` blocks, so many devices (at least one) and writers.
    #[must_use]
    pub fn new(options: &DirtyOptions, dirtyable: u32, devices: usize, writers_max: u32) -> Self {
        let devices = devices.max(1);
        let target = Thresholds::of(options, dirtyable);
        Self {
            options: *options,
            foreground: None,
            dirtyable,
            target,
            now_at: target,
            credit: Credit::new(devices, target.limit),
            shares: Shares::new(devices),
            writers: Writers::new(writers_max),
            devices: vec![Device::default(); devices],
            weights: 0,
            ticked: Instant(0),
            ticks: 0,
            told: Instant(0),
            stats: DirtyStats::default(),
            trace: Trace::default(),
        }
    }

    /// Takes new tunables. A raised limit holds at once, a lowered one is approached over some seconds.
    pub fn set_options(&mut self, _now: Instant, options: &DirtyOptions) {
        self.options = *options;
        self.retarget();
    }

    /// Takes a new size of the pool, in blocks; see [`Throttle::set_options`].
    pub fn set_limit_units(&mut self, dirtyable: u32) {
        self.dirtyable = dirtyable;
        self.retarget();
    }

    /// A device joins or leaves, with nothing dirty, on its way or reserved: nothing is known of its place. Whoever was refused
    /// is to ask again.
    pub fn set_device(&mut self, device: DeviceId, present: bool) {
        let index = at(device);
        if self.devices.len() <= index {
            self.devices.resize(index + 1, Device::default());
        }
        let was = std::mem::take(&mut self.devices[index]);
        assert!(was.dirty + was.writeback + was.reserved == 0, "a device in use stays");
        self.stats.nr_dirtied += was.nr_dirtied;
        self.stats.nr_written += was.nr_written;
        for writer in self.writers.iter_mut().filter(|writer| writer.device == device.0) {
            self.weights -= u64::from(std::mem::take(&mut writer.weight));
            writer.device = 0;
        }
        self.credit.set_present(index, present);
        self.shares.renew(index, self.credit.devices());
        self.hold(self.now_at);
    }

    /// The writer of a connection, made if it is new. When the table is full, all further ones are one.
    pub fn writer(&mut self, connection: u32) -> WriterId {
        self.writers.find_or_make(connection)
    }

    /// The writer that all share who have no place in the table; also for what nobody is left to pause for.
    #[must_use]
    pub const fn nobody(&self) -> WriterId {
        WriterId(0)
    }

    /// Forgets a connection; its pause is over. No I/O, no search: a thousand are gone as fast as they are named.
    pub fn close(&mut self, connection: u32) -> Option<WriterId> {
        let (id, was) = self.writers.remove(connection)?;
        self.count_weight(was.device, was.weight, 0);
        Some(id)
    }

    /// Until when the writer is paused. Once that time has come, [`Throttle::resume`] says whether it is over.
    #[must_use]
    pub fn paused_until(&self, writer: WriterId) -> Option<Instant> {
        let until = self.writers.get(writer).until;
        (until != NEVER).then_some(Instant(until))
    }

    /// The writer's timer is due: `None`, it goes on; else it is paused until then.
    pub fn resume(&mut self, now: Instant, writer: WriterId) -> Option<Instant> {
        self.told = self.told.max(now);
        let entry = *self.writers.get(writer);
        if entry.until == NEVER || now.0 < entry.until {
            return self.paused_until(writer);
        }
        let device = usize::from(entry.device);
        self.refresh(now, device);
        let control = &self.devices[device].control;
        let mut owed = scale(entry.clock.saturating_sub(now.0), entry.pace, control.pace);
        let mut nr_dirtied = entry.nr_dirtied;
        if u64::from(nr_dirtied) > control.batch {
            // Bios that had reserved before the pause began.
            owed += cost_ns(u64::from(nr_dirtied), control.pace);
            nr_dirtied = 0;
        }
        let go_on = control.freerun || owed <= self.pause_max_ns() / 16;
        let (pace, short) = (control.pace, self.devices[device].short_ns(now));
        let entry = self.writers.get_mut(writer);
        entry.nr_dirtied = nr_dirtied;
        entry.clock = now.0.saturating_add(owed).min(NEVER - 1);
        entry.pace = pace;
        if go_on {
            entry.until = NEVER;
            (entry.settled, entry.short) = (now.0, short);
            self.stats.pauses += 1;
            self.stats.paused_ns += now.0 - entry.began;
            return None;
        }
        self.stats.pauses_continued += 1;
        Some(self.set_pause(now, writer, 0))
    }

    /// Takes credit for `blocks` of the device, all or nothing. A refused caller waits in its queue of the device, in
    /// order, and only the head asks again, when [`Throttle::freed`] says so. At most [`Throttle::reserve_max`] at once.
    pub fn reserve(&mut self, device: DeviceId, blocks: u32) -> bool {
        self.reserve_for(device, blocks, IoClass::BestEffort)
    }

    /// The same for a class: real-time writers have the last 32nd of the limit for themselves.
    pub fn reserve_for(&mut self, device: DeviceId, blocks: u32, class: IoClass) -> bool {
        let limit = self.limit_of(class);
        let granted = self.credit.reserve(at(device), blocks, limit);
        let device = &mut self.devices[at(device)];
        if granted {
            device.reserved += blocks;
            device.on_granted(self.told);
        } else {
            device.on_refused(self.told, class);
            self.stats.refused += 1;
        }
        granted
    }

    /// Whether the one that was refused last on this device would have its credit now.
    #[must_use]
    pub fn freed(&self, device: DeviceId) -> bool {
        self.credit.freed(at(device), self.limit_of(self.devices[at(device)].refused))
    }

    /// The one that was refused has gone away.
    pub fn forget_refused(&mut self, device: DeviceId) {
        self.credit.forget(at(device));
        self.devices[at(device)].on_granted(self.told);
    }

    /// The most that may be reserved at once and is sure to be granted in the end, with any other device dead.
    #[must_use]
    pub fn reserve_max(&self, _device: DeviceId) -> u32 {
        let limit = self.target.limit;
        let devices = self.credit.devices();
        if devices > 1 { floor(limit, devices).max(1) } else { limit }
    }

    /// Gives reserved credit back unused.
    pub fn unreserve(&mut self, device: DeviceId, blocks: u32) {
        take(&mut self.devices[at(device)].reserved, blocks);
        self.credit.sub(at(device), blocks);
    }

    /// Reserved blocks turned out to be dirty already: the credit goes back, and nobody is charged.
    pub fn on_rewritten(&mut self, device: DeviceId, blocks: u32) {
        self.unreserve(device, blocks);
    }

    /// Reserved blocks became dirty. `Some`: the writer is paused until then and must not dirty more before.
    pub fn on_dirtied(
        &mut self,
        now: Instant,
        writer: WriterId,
        device: DeviceId,
        blocks: u32,
        class: IoClass,
    ) -> Option<Instant> {
        self.told = self.told.max(now);
        let index = at(device);
        let counts = &mut self.devices[index];
        take(&mut counts.reserved, blocks);
        counts.dirty += blocks;
        counts.nr_dirtied += u64::from(blocks);
        self.note(now, writer, device, blocks);
        match self.options.policy {
            _ if self.has_foreground() => None,
            ThrottlePolicy::Ioless => self.balance(now, writer, index, blocks, class),
            ThrottlePolicy::None => None,
        }
    }

    /// Dirty blocks were discarded.
    pub fn on_cancelled(&mut self, device: DeviceId, blocks: u32) {
        take(&mut self.devices[at(device)].dirty, blocks);
        self.credit.sub(at(device), blocks);
    }

    /// Dirty blocks went under writeback.
    pub fn on_writeout(&mut self, now: Instant, device: DeviceId, blocks: u32) {
        self.told = self.told.max(now);
        let device = &mut self.devices[at(device)];
        take(&mut device.dirty, blocks);
        if device.writeback == 0 {
            device.bandwidth.on_writeout(now);
            device.alive = now;
        }
        device.writeback += blocks;
    }

    /// Blocks under writeback are clean.
    pub fn on_written(&mut self, now: Instant, device: DeviceId, blocks: u32) {
        self.told = self.told.max(now);
        let index = at(device);
        let device = &mut self.devices[index];
        take(&mut device.writeback, blocks);
        device.nr_written += u64::from(blocks);
        device.alive = now;
        if device.bandwidth.on_written(now, blocks, device.writeback) {
            device.outdate();
        }
        self.credit.sub(index, blocks);
        self.shares.on_written(index, blocks);
    }

    /// Blocks under writeback failed: they are dirty again. They count on, and nobody is charged twice.
    pub fn on_write_failed(&mut self, now: Instant, device: DeviceId, blocks: u32) {
        let device = &mut self.devices[at(device)];
        take(&mut device.writeback, blocks);
        device.dirty += blocks;
        device.bandwidth.on_failed(now, device.writeback);
    }

    /// Whether the flusher should write this device's dirty blocks out, whatever their age.
    ///
    /// Linux looks at what is dirty only, since the question is whether more should be under writeback. So do we below
    /// free-run; above it writers pause, and then whatever is dirty must be on its way.
    #[must_use]
    pub fn over_background(&self, device: DeviceId) -> bool {
        let index = at(device);
        let (counts, used) = (&self.devices[index], self.credit.used(index));
        let regions = counts.control.regions;
        counts.dirty > 0
            && (self.nr_dirty() > self.now_at.background
                || counts.dirty > regions.background
                || self.credit.total() > self.now_at.freerun
                || used > regions.freerun)
    }

    /// Makes writers write out data themselves instead of pausing, by the rules of `policy`.
    pub fn set_foreground(&mut self, policy: Box<dyn ForegroundWriteback>) {
        self.foreground = Some(policy);
    }

    /// Whether writers write out data themselves.
    #[must_use]
    pub fn has_foreground(&self) -> bool {
        self.foreground.is_some()
    }

    /// Blocks that the writer must write out itself before it continues. To be asked after each [`Throttle::on_dirtied`]; always
    /// 0 without a foreground policy.
    pub fn foreground_quota(&mut self, writer: WriterId, device: DeviceId) -> u32 {
        let Some(policy) = &self.foreground else {
            return 0;
        };
        let device = at(device);
        let limit = self.credit.ceiling(device, self.now_at.limit);
        let writers = self.devices[device].weights.div_ceil(u64::from(WEIGHT_ONE));
        let position = DirtyPosition {
            used: self.credit.used(device),
            limit: self.shares.of(device, self.now_at.limit).min(limit),
            freerun: self.credit.total() <= self.now_at.freerun,
            writers: writers as u32,
        };
        let entry = self.writers.get_mut(writer);
        let quota = policy.quota(&position, entry.nr_dirtied);
        if quota.is_some() {
            entry.nr_dirtied = 0;
        }
        quota.unwrap_or(0)
    }

    /// The tick, if it is due.
    pub fn on_timer(&mut self, now: Instant) {
        self.told = self.told.max(now);
        if self.next_timeout().is_none_or(|due| now < due) {
            return;
        }
        let elapsed = now.since(self.ticked);
        self.ticked = now;
        self.ticks += 1;
        self.shares.age(now);
        if self.ticks.is_multiple_of(TICKS_PER_STEP) && self.now_at.thresh > self.target.thresh {
            self.step_down();
        }
        for device in 0..self.devices.len() {
            self.refresh(now, device);
        }
        self.weigh_the_late(now);
        if self.trace.is_on() {
            self.trace_rates(now, elapsed);
        }
    }

    /// When [`Throttle::on_timer`] wants to be called; `None` while nobody writes.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let active = self.weights > 0 || self.now_at.thresh > self.target.thresh;
        active.then(|| self.ticked.after(TICK_NS))
    }

    /// Blocks that the flusher writes per visit of a group: half a second's worth, at most an eighth of the limit, in
    /// steps of 4 MiB and at least one. Long enough to be sequential, short enough not to jump across the control scope.
    #[must_use]
    pub fn chunk(&self, device: DeviceId) -> u32 {
        chunk(self.devices[at(device)].bandwidth.get(), self.now_at.thresh)
    }

    /// The decision of a pause.
    fn balance(
        &mut self,
        now: Instant,
        writer: WriterId,
        device: usize,
        blocks: u32,
        class: IoClass,
    ) -> Option<Instant> {
        let entry = self.writers.get(writer);
        if entry.until != NEVER {
            if now.0 < entry.until {
                return Some(Instant(entry.until));
            }
            // A caller that does not ask `resume`: the pause is over, and at most one more is carried.
            let carried = now.0 + self.pause_max_ns();
            let short = self.devices[device].short_ns(now);
            let entry = self.writers.get_mut(writer);
            (entry.until, entry.settled, entry.short) = (NEVER, now.0, short);
            entry.clock = entry.clock.min(carried);
            self.stats.pauses += 1;
            self.stats.paused_ns += now.0 - entry.began;
        }
        self.refresh(now, device);
        let control = &self.devices[device].control;
        let entry = self.writers.get(writer);
        let full = entry.is_full(blocks, control.batch);
        // One that did not pause yet in this crowd is settled at once: all batches of a cold start are too much together.
        let newcomer = !entry.spread && !control.freerun;
        if full || newcomer { self.settle(now, writer, device, class) } else { None }
    }

    /// Charges what was dirtied since the last time, weighs the writer, and pauses it if it owes enough.
    fn settle(
        &mut self,
        now: Instant,
        writer: WriterId,
        device: usize,
        class: IoClass,
    ) -> Option<Instant> {
        let control = self.devices[device].control;
        let used = self.credit.used(device);
        let entry = *self.writers.get(writer);
        let period = cost_ns(u64::from(entry.nr_dirtied), control.pace);
        let short = self.devices[device].short_ns(now);
        self.weigh(now, writer, period, short);
        self.devices[device].on_settled(u64::from(entry.nr_dirtied));
        let exempt =
            control.freerun || class == IoClass::RealTime && used <= control.regions.freerun_rt();
        let clock = entry.clock.max(now.0.saturating_sub(control.credit_ns)).saturating_add(period);
        let was = self.writers.get_mut(writer);
        (was.nr_dirtied, was.settled, was.pace) = (0, now.0, control.pace);
        was.short = short;
        was.clock = if exempt { now.0 } else { clock };
        was.spread = !control.freerun;
        let pauses = !exempt && clock > now.0 + control.pause_ns / 4;
        let pause = if pauses {
            let spread = if entry.spread { 0 } else { control.pause_ns.max(period) };
            self.writers.get_mut(writer).began = now.0;
            Some(self.set_pause(now, writer, spread))
        } else {
            None
        };
        if self.trace.is_on() {
            let owed = pause.map_or(clock, |until| until.0);
            self.trace_balance(now, writer, &entry, period, owed as i64 - now.0 as i64);
        }
        pause
    }

    /// Pauses the writer until its clock, `max_pause` at the longest, spread so that no herd forms: evenly over `spread`
    /// the first time (half of what is owed on average: too many are put in order by the credit, too few by nobody), then by a 32nd of the pause to both sides.
    fn set_pause(&mut self, now: Instant, writer: WriterId, spread: u64) -> Instant {
        let longest = self.pause_max_ns();
        let entry = self.writers.get_mut(writer);
        let key = u64::from(writer.0) << 32 | u64::from(entry.pauses);
        let mut random = Prng::new(self.options.seed ^ key.wrapping_mul(0xd6e8_feb8_6659_fd93));
        entry.pauses = entry.pauses.wrapping_add(1);
        entry.dither = random.below(256) as u8;
        if spread > 0 {
            entry.clock = now.0 + 1 + random.below(spread);
        }
        let owed = entry.clock.saturating_sub(now.0).max(1);
        // A slice of a longer pause ends early rather than late: `max_pause` is a promise.
        let (base, sliced) = if owed > longest { (longest, true) } else { (owed, false) };
        let jitter = base / 16;
        let early = if sliced { jitter } else { jitter / 2 };
        let until = base - early + random.below(jitter + 1);
        // Who waits also waits for the thread: a 64th of the promise is left to it.
        entry.until = now.0 + until.clamp(1, longest - longest / 64);
        Instant(entry.until)
    }

    /// The weight of a writer that is settled: its part of what it might have dirtied since the last time. Up at once,
    /// down by half the way: one slow batch is no habit.
    fn weigh(&mut self, now: Instant, writer: WriterId, period: u64, short: u64) {
        let entry = self.writers.get_mut(writer);
        let waited = short.saturating_sub(entry.short);
        let took = part_of(period, now.0.saturating_sub(entry.settled).saturating_sub(waited));
        let weight = if took >= entry.weight { took } else { entry.weight.midpoint(took) };
        let (device, was) = (entry.device, std::mem::replace(&mut entry.weight, weight.max(1)));
        self.count_weight(device, was, weight.max(1));
    }

    /// Weighs those who should have been back by now. On a device at its limit nobody can be expected to be.
    fn weigh_the_late(&mut self, now: Instant) {
        for writer in self.writers.iter_mut().filter(|writer| writer.weight > 0) {
            let device = &mut self.devices[usize::from(writer.device)];
            let over = if writer.until == NEVER { 0 } else { writer.until };
            let waited = device.short_ns(now).saturating_sub(writer.short);
            let since = |then: u64| now.0.saturating_sub(then.max(over)).saturating_sub(waited);
            let elapsed = since(writer.settled);
            if elapsed <= LATE_NS || device.control.pos_ratio == 0 {
                continue;
            }
            let silent = since(writer.seen) > SILENT_NS;
            let period = cost_ns(u64::from(writer.nr_dirtied), device.control.pace);
            let took = if silent { 0 } else { part_of(period, elapsed).max(1) };
            let less = writer.weight.saturating_sub(took);
            writer.weight -= less;
            writer.spread &= !silent;
            device.weights -= u64::from(less);
            self.weights -= u64::from(less);
        }
    }

    /// Accounts the blocks to the writer, who counts from his first block on.
    fn note(&mut self, now: Instant, writer: WriterId, device: DeviceId, blocks: u32) {
        let short = self.devices[at(device)].short_ns(now);
        let entry = self.writers.get_mut(writer);
        let was = (entry.device, entry.weight);
        if entry.weight == 0 || entry.device != device.0 {
            entry.weight = entry.weight.max(if was.1 == 0 { WEIGHT_ONE } else { 0 });
            entry.device = device.0;
        }
        if was.1 == 0 || was.0 != device.0 {
            (entry.settled, entry.short) = (now.0, short);
        }
        entry.seen = now.0;
        entry.nr_dirtied = entry.nr_dirtied.saturating_add(blocks);
        let weight = entry.weight;
        if was != (device.0, weight) {
            if self.weights == 0 {
                self.ticked = now;
            }
            self.count_weight(was.0, was.1, 0);
            self.count_weight(device.0, 0, weight);
        }
    }

    fn count_weight(&mut self, device: u16, was: u32, is: u32) {
        let device = &mut self.devices[usize::from(device)];
        device.weights = device.weights - u64::from(was) + u64::from(is);
        self.weights = self.weights - u64::from(was) + u64::from(is);
    }

    /// Computes the device's paces anew if they are too old.
    fn refresh(&mut self, now: Instant, device: usize) {
        let used = self.credit.used(device);
        if !self.devices[device].is_outdated(now, used) {
            return;
        }
        let regions = self.now_at;
        let free = regions.limit.saturating_sub(self.credit.total());
        let left = self.credit.ceiling(device, regions.limit);
        let part = self.shares.of(device, regions.limit);
        let share = device_limit(part, free, self.credit.floor(), regions.limit);
        // While others write in earnest, nobody may take more than its share of what is free, however much that is: at the
        // speed of memory a slow device would take in a tenth of a second what it drains in half a minute.
        let others = self.weights - self.devices[device].weights;
        let alone = others < u64::from(WEIGHT_ONE);
        let room = DeviceLimits {
            used,
            share: regions.share(share),
            left: regions.share(left),
            all_freerun: alone && self.credit.total() <= regions.freerun,
            all_calm: alone && self.credit.total() <= regions.background,
        };
        let pause_max_ns = self.pause_max_ns();
        self.devices[device].update(now, &room, pause_max_ns);
    }

    fn retarget(&mut self) {
        self.target = Thresholds::of(&self.options, self.dirtyable);
        // Never more than there are blocks at all, however slowly a lowered limit is approached.
        let thresh = self.now_at.thresh.min(self.dirtyable);
        self.hold(self.target.raised_to(thresh));
    }

    fn step_down(&mut self) {
        let used = self.credit.total();
        let thresh = smoothed(self.now_at.thresh, self.target.thresh, used);
        self.hold(self.target.raised_to(thresh));
    }

    fn hold(&mut self, thresholds: Thresholds) {
        self.now_at = thresholds;
        self.credit.set_limit(thresholds.limit);
        self.devices.iter_mut().for_each(Device::outdate);
    }

    fn limit_of(&self, class: IoClass) -> u32 {
        match class {
            IoClass::RealTime => self.now_at.thresh,
            IoClass::BestEffort | IoClass::Idle => self.now_at.limit,
        }
    }

    fn nr_dirty(&self) -> u32 {
        self.devices.iter().map(|device| device.dirty).sum()
    }

    fn pause_max_ns(&self) -> u64 {
        u64::from(self.options.max_pause_ms.clamp(10, 1000)) * MS
    }
}

/// Blocks per visit of a group, at that bandwidth (blocks a second) and limit.
pub(super) fn chunk(bandwidth: u64, limit: u32) -> u32 {
    const STEP: u64 = 1024;
    let blocks = (bandwidth / 2).min(u64::from(limit / 8));
    ((blocks + STEP) / STEP * STEP) as u32
}

pub(super) fn at(device: DeviceId) -> usize {
    usize::from(device.0)
}

fn take(count: &mut u32, blocks: u32) {
    assert!(*count >= blocks, "blocks left a state that they were not in");
    *count -= blocks;
}

/// A time at one pace, at another.
fn scale(ns: u64, from: u64, to: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(from) / u128::from(to.max(1));
    scaled.min(u128::from(u64::MAX / 4)) as u64
}

/// `period / elapsed` as a weight, at most one.
fn part_of(period: u64, elapsed: u64) -> u32 {
    if period >= elapsed {
        return WEIGHT_ONE;
    }
    (u128::from(period) * u128::from(WEIGHT_ONE) / u128::from(elapsed)) as u32
}
