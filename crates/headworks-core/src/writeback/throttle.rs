//! Throttling of writers: reservation of dirty blocks and pauses.
//!
//! A writer never writes back. It reserves blocks before it dirties them ([`Throttle::reserve`], the hard limit), and pauses from
//! time to time, so that all writers together dirty as much as the device writes, at the set point.
//!
//! ```text
//!   on_dirtied:  batch not full ------------------------------------------------> continue
//!                batch full: the blocks cost  period = blocks / pace
//!                            clock = max(clock, now - credit) + period             virtual time, paid up to here
//!                            clock - now  < a quarter of the target pause -------> continue, in debt
//!                            else pause until clock (plus jitter), with a check after max_pause
//! ```
//!
//! - *Think time.* The clock runs on its own: a writer that spent time elsewhere has credit and does not pause.
//! - *Counting writers.* A writer that is charged late took less than its share: its weight is period / elapsed, at most 1. The sum
//!   of the weights is the number of writers by which `device.rs` divides the bandwidth: light writers count as what they
//!   take, and heavy ones share the rest. A writer that is silent for a second does not count.
//! - *No phase locking.* Nothing is measured against wake-ups. The first pause puts a writer at a random phase; later ones get a
//!   seeded jitter of a 32nd, which the clock ignores, so that rates do not drift.
//! - *A pause is checked again* after `max_pause` at the latest ([`Throttle::resume`]). The debt is in blocks, not in time: if the
//!   pace rose meanwhile, the rest is shorter. Where one bio costs seconds (1000 writers on 10 MB/s) the position still holds, and
//!   light and real-time writers find room; short pauses would push all writers into the hard limit.
//!
//! Invariants: the sum of the devices' weights is `weights`; a device's `reserved + dirty + writeback` is its credit in use.

mod pauses;

use crate::bio::{DeviceId, ExportId, IoClass, TenantId};
use crate::gauge::Gauge64;
use crate::options::{ExportConfig, TenantConfig};
use crate::time::{Instant, MS, SEC};

use super::credit::{Credit, floor};
use super::device::{Device, DeviceLimits, cost_ns};
use super::domains::{DomainId, Domains, clock_at, scaled_ns};
use super::foreground::{DirtyPosition, ForegroundWriteback};
use super::limits::{Thresholds, smoothed};
use super::options::{DirtyOptions, ThrottlePolicy};
use super::share::{Shares, device_limit};
use super::stats::DirtyStats;
use super::trace::Trace;
use super::writers::{NEVER, WEIGHT_ONE, WriterId, Writers};

/// Period of the tick that ages shares, finds silent writers and approaches a lowered limit.
const TICK_NS: u64 = 100 * MS;

/// Ticks between two steps of a lowered limit (200 ms).
const TICKS_PER_STEP: u64 = 2;

/// Time without a charge after which a writer is weighed by the tick.
const LATE_NS: u64 = 200 * MS;

/// Time without a dirtied block after which a writer does not count.
const SILENT_NS: u64 = SEC;

/// The part of the limit that an unresponsive device may use beside others: one in eight.
const UNRESPONSIVE_SHARE: u32 = 8;

/// The throttle of one shard.
#[derive(Debug)]
pub struct Throttle {
    options: DirtyOptions,
    /// Decides in place of `options.policy`.
    foreground: Option<Box<dyn ForegroundWriteback>>,
    /// Blocks to which the ratios refer.
    dirtyable: u32,
    /// Blocks that can be dirty at all.
    most: u32,
    /// The configured thresholds.
    target: Thresholds,
    /// The thresholds in effect: above the target for a while after it was lowered.
    pub(super) current: Thresholds,
    pub(super) credit: Credit,
    shares: Shares,
    domains: Domains,
    pub(super) writers: Writers,
    /// By device id; some slots may be free.
    pub(super) devices: Vec<Device>,
    /// The sum of all weights. The tick stops while it is 0.
    pub(super) weights: Gauge64,
    ticked: Instant,
    ticks: u64,
    /// The latest `now` of any call, for methods without that argument.
    latest: Instant,
    pub(super) stats: DirtyStats,
    pub(super) trace: Trace,
}

impl Throttle {
    /// Creates the throttle of a pool of `dirtyable` blocks, for `devices` devices (at least one) and `writers_max` writers.
    #[must_use]
    pub fn new(options: &DirtyOptions, dirtyable: u32, devices: usize, writers_max: u32) -> Self {
        let devices = devices.max(1);
        let target = Thresholds::of(options, dirtyable);
        Self {
            options: *options,
            foreground: None,
            dirtyable,
            most: u32::MAX,
            target,
            current: target,
            credit: Credit::new(devices, target.limit),
            shares: Shares::new(devices),
            domains: Domains::default(),
            writers: Writers::new(writers_max),
            devices: vec![Device::default(); devices],
            weights: Gauge64::new(0),
            ticked: Instant(0),
            ticks: 0,
            latest: Instant(0),
            stats: DirtyStats::default(),
            trace: Trace::default(),
        }
    }

    /// Shares the bandwidth of devices by weight among the domains of these exports and tenants. To be called before any block is
    /// dirtied.
    #[must_use]
    pub fn with_domains(self, exports: &[ExportConfig], tenants: &[TenantConfig]) -> Self {
        assert!(self.weights.is_zero(), "no writer has a weight yet");
        let domains = Domains::new(exports, tenants);
        let devices = self.devices.iter().map(|_| Device::with_domains(domains.len())).collect();
        Self { domains, devices, ..self }
    }

    /// Moves an export to a tenant; its writers follow with their next block.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        self.domains.set_tenant(export, tenant);
    }

    /// Sets the weight of an export beside tenants and exports without one.
    pub fn set_export_weight(&mut self, export: ExportId, weight: u16) {
        if self.domains.set_export_weight(export, weight).is_some() {
            self.devices.iter_mut().for_each(|device| device.loads.reweigh(&self.domains));
        }
    }

    /// Sets the weight of a tenant.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u16) {
        if self.domains.set_tenant_weight(tenant, weight).is_some() {
            self.devices.iter_mut().for_each(|device| device.loads.reweigh(&self.domains));
        }
    }

    /// Names the export of the blocks that a writer dirties next; call it before [`Throttle::on_dirtied`].
    pub fn assign(&mut self, writer: WriterId, export: ExportId) {
        let domain = self.domains.of(export);
        let entry = self.writers.get_mut(writer);
        let was = std::mem::replace(&mut entry.domain, domain);
        if was != domain && entry.weight > 0 {
            let (weight, device) = (entry.weight, &mut self.devices[usize::from(entry.device)]);
            device.count(&self.domains, was, weight, 0);
            device.count(&self.domains, domain, 0, weight);
        }
    }

    /// Applies new tunables. A raised limit takes effect at once; a lowered one is approached over some seconds.
    pub fn set_options(&mut self, _now: Instant, options: &DirtyOptions) {
        self.options = *options;
        self.retarget();
    }

    /// Applies new numbers of blocks to which the ratios refer, and that can be dirty at all, as [`Throttle::set_options`] does.
    pub fn set_limit_units(&mut self, dirtyable: u32, most: u32) {
        debug_assert!(dirtyable <= most, "a part of the pool");
        (self.dirtyable, self.most) = (dirtyable, most);
        self.retarget();
    }

    /// Adds a device, or removes one without reserved, dirty or writeback blocks. Refused callers must retry.
    pub fn set_device(&mut self, device: DeviceId, present: bool) {
        let index = at(device);
        if self.devices.len() <= index {
            let domains = self.domains.len();
            self.devices.resize_with(index + 1, || Device::with_domains(domains));
        }
        let renewed = Device::with_domains(self.domains.len());
        let was = std::mem::replace(&mut self.devices[index], renewed);
        assert!(was.used() == 0, "a device with credit in use is not removed");
        self.stats.nr_dirtied += was.nr_dirtied;
        self.stats.nr_written += was.nr_written;
        for writer in self.writers.iter_mut().filter(|writer| writer.device == device.0) {
            self.weights.sub(std::mem::take(&mut writer.weight).into());
            writer.device = 0;
        }
        self.credit.set_present(index, present);
        self.shares.renew(index, self.credit.devices());
        self.apply(self.current);
    }

    /// The writer of a connection, created if it is new. Connections beyond the table share one writer.
    pub fn writer(&mut self, connection: u32) -> WriterId {
        self.writers.find_or_make(connection)
    }

    /// The writer that connections beyond the table share; also for blocks of closed connections.
    #[must_use]
    pub const fn shared_writer(&self) -> WriterId {
        WriterId(0)
    }

    /// Removes a closed connection and ends its pause, in constant time. Its domain keeps what it owes.
    pub fn close(&mut self, connection: u32) -> Option<WriterId> {
        let (id, was) = self.writers.remove(connection)?;
        let now = self.latest;
        let device = &mut self.devices[usize::from(was.device)];
        if was.seen > 0 && !device.control.freerun {
            let (pace, _) = device.pace_of(&self.domains, was.domain);
            let clock = clock_at(was.clock, now, was.pace, pace);
            let clock = clock.max(now.0.saturating_sub(device.control.credit_ns));
            let late =
                scaled_ns(was.forgiven, was.pace, pace) + cost_ns(was.nr_dirtied.into(), pace);
            device.loads.keep_debt(now, was.domain, clock.saturating_add(late), pace);
        }
        self.count_weight(was.device, was.domain, was.weight, 0);
        Some(id)
    }

    /// Charges an export for blocks of a closed connection, which has no writer any more: its next new writer pays.
    pub fn on_dirtied_after_close(
        &mut self,
        now: Instant,
        export: ExportId,
        device: DeviceId,
        blocks: u32,
    ) {
        let domain = self.domains.of(export);
        let device = &mut self.devices[at(device)];
        let (pace, _) = device.pace_of(&self.domains, domain);
        if !device.control.freerun {
            let before = device.loads.take_debt(now, domain, pace).max(now.0);
            let clock = before.saturating_add(cost_ns(blocks.into(), pace));
            device.loads.keep_debt(now, domain, clock, pace);
        }
    }

    /// The end of the writer's pause. At that time [`Throttle::resume`] decides whether it is over.
    #[must_use]
    pub fn paused_until(&self, writer: WriterId) -> Option<Instant> {
        let until = self.writers.get(writer).until;
        (until != NEVER).then_some(Instant(until))
    }

    /// Ends the writer's pause if its debt is paid (`None`), or extends it.
    pub fn resume(&mut self, now: Instant, writer: WriterId) -> Option<Instant> {
        self.latest = self.latest.max(now);
        let entry = *self.writers.get(writer);
        if entry.until == NEVER || now.0 < entry.until {
            return self.paused_until(writer);
        }
        let device = usize::from(entry.device);
        self.refresh(now, device);
        let control = &self.devices[device].control;
        let (pace, batch) = self.devices[device].pace_of(&self.domains, entry.domain);
        let mut owed = scaled_ns(entry.clock.saturating_sub(now.0), entry.pace, pace);
        let mut nr_dirtied = entry.nr_dirtied;
        if u64::from(nr_dirtied) > batch {
            // Bios that had reserved blocks before the pause began.
            owed += cost_ns(u64::from(nr_dirtied), pace);
            nr_dirtied = 0;
        }
        assert!(owed <= u64::MAX / 2 && pace > 0, "a debt overflows");
        let over = control.freerun || owed <= self.pause_max_ns() / 16;
        let short = self.devices[device].short_ns(now);
        let entry = self.writers.get_mut(writer);
        entry.nr_dirtied = nr_dirtied;
        entry.clock = now.0.saturating_add(owed).min(NEVER - 1);
        entry.pace = pace;
        if over {
            entry.until = NEVER;
            (entry.settled, entry.short) = (now.0, short);
            assert!(now.0 >= entry.began, "a pause ends before it began");
            self.stats.pauses += 1;
            self.stats.paused_ns += now.0 - entry.began;
            return None;
        }
        self.stats.pauses_continued += 1;
        Some(self.set_pause(now, writer, 0))
    }

    /// Reserves `blocks` of the device, all or nothing, at most [`Throttle::reserve_max`] at once. A refused caller waits in its
    /// queue of the device, in order; only the head retries, when [`Throttle::freed`] says so.
    pub fn reserve(&mut self, device: DeviceId, blocks: u32) -> bool {
        self.reserve_for(device, blocks, IoClass::BestEffort)
    }

    /// Reserves for a scheduling class; the last 32nd of the limit is for real-time writers.
    pub fn reserve_for(&mut self, device: DeviceId, blocks: u32, class: IoClass) -> bool {
        let limit = self.limit_of(class);
        if !self.may_use(at(device), blocks) {
            self.credit.refuse(at(device), blocks);
            self.devices[at(device)].on_refused(self.latest, class);
            self.stats.refused += 1;
            return false;
        }
        // Its floor is free even above a limit that was lowered while another device held more.
        let granted = self.credit.reserve(at(device), blocks, limit)
            || self.credit.reserve_floor(at(device), blocks);
        debug_assert!(
            !granted || blocks == 0 || self.credit.total() <= limit || self.devices() > 1,
            "a single device keeps to the limit"
        );
        let device = &mut self.devices[at(device)];
        if granted {
            device.reserved.add(blocks);
            device.on_granted(self.latest);
        } else {
            device.on_refused(self.latest, class);
            self.stats.refused += 1;
        }
        granted
    }

    /// Notes whether a device is unresponsive. What it holds beyond its part of the limit stays.
    pub fn set_unresponsive(&mut self, device: DeviceId, unresponsive: bool) {
        self.devices[at(device)].unresponsive = unresponsive;
    }

    /// Whether a device may use `blocks` more: while it is unresponsive, it keeps to a part of the limit beside others, whose
    /// writers would else pause for a device that writes nothing.
    fn may_use(&self, device: usize, blocks: u32) -> bool {
        if !self.devices[device].unresponsive || self.devices() < 2 {
            return true;
        }
        let most = (self.current.limit / UNRESPONSIVE_SHARE).max(self.credit.floor()).max(1);
        debug_assert!(most <= self.current.limit.max(1), "a part of the limit");
        self.credit.used(device).saturating_add(blocks) <= most
    }

    /// Whether the device's last refused reservation would be granted now.
    #[must_use]
    pub fn freed(&self, device: DeviceId) -> bool {
        self.may_use(at(device), self.credit.wanted(at(device)))
            && self.credit.freed(at(device), self.limit_of(self.devices[at(device)].refused))
    }

    /// Forgets the device's refused reservation, whose owner has left the queue.
    pub fn forget_refused(&mut self, device: DeviceId) {
        self.credit.forget(at(device));
        self.devices[at(device)].on_granted(self.latest);
    }

    /// Number of devices that share the limit.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.credit.devices()
    }

    /// Largest reservation that is granted in the end even if all other devices are dead.
    #[must_use]
    pub fn reserve_max(&self, _device: DeviceId) -> u32 {
        let limit = self.target.limit;
        let devices = self.credit.devices();
        if devices > 1 { floor(limit, devices).max(1) } else { limit }
    }

    /// Returns reserved blocks that were not dirtied.
    pub fn unreserve(&mut self, device: DeviceId, blocks: u32) {
        self.devices[at(device)].reserved.sub(blocks);
        self.credit.sub(at(device), blocks);
        debug_assert_eq!(self.devices[at(device)].used(), self.credit.used(at(device)));
    }

    /// Returns reserved blocks that were dirty already; no writer is charged.
    pub fn on_rewritten(&mut self, device: DeviceId, blocks: u32) {
        self.unreserve(device, blocks);
    }

    /// Turns reserved blocks dirty and charges the writer. Returns the end of its pause, before which it must not dirty more.
    pub fn on_dirtied(
        &mut self,
        now: Instant,
        writer: WriterId,
        device: DeviceId,
        blocks: u32,
        class: IoClass,
    ) -> Option<Instant> {
        self.latest = self.latest.max(now);
        let index = at(device);
        let counts = &mut self.devices[index];
        counts.reserved.sub(blocks);
        counts.dirty.add(blocks);
        counts.nr_dirtied += u64::from(blocks);
        debug_assert_eq!(
            counts.used(),
            self.credit.used(index),
            "credit in use is not accounted for"
        );
        let is_new = self.note(now, writer, device, blocks);
        match self.options.policy {
            _ if self.has_foreground() => None,
            ThrottlePolicy::Ioless => {
                if is_new {
                    self.begin(now, writer, index);
                }
                self.balance(now, writer, index, blocks, class)
            }
            ThrottlePolicy::None => None,
        }
    }

    /// Counts blocks that are dirty already, as another process left them; no writer is charged.
    /// [`Throttle::end_adoption`] must follow.
    pub fn adopt(&mut self, device: DeviceId, blocks: u32) {
        self.credit.add(at(device), blocks);
        self.devices[at(device)].dirty.add(blocks);
        debug_assert_eq!(self.devices[at(device)].used(), self.credit.used(at(device)));
    }

    /// Computes the thresholds of every device from what was adopted; without them a flusher would write all of it at once. If it
    /// exceeds the limit, that is approached as after it was lowered.
    pub fn end_adoption(&mut self, now: Instant) {
        (self.latest, self.ticked) = (self.latest.max(now), now);
        if self.credit.total() > self.current.limit {
            let used = self.credit.total();
            self.apply(self.target.raised_to(used.max(self.current.thresh)));
        }
        for device in 0..self.devices.len() {
            self.devices[device].outdate();
            self.refresh(now, device);
        }
    }

    /// Whether a connection has a writer of its own.
    #[must_use]
    pub fn is_open(&self, connection: u32) -> bool {
        self.writers.find(connection).is_some()
    }

    /// Returns the credit of discarded dirty blocks.
    pub fn on_cancelled(&mut self, device: DeviceId, blocks: u32) {
        self.devices[at(device)].dirty.sub(blocks);
        self.credit.sub(at(device), blocks);
        debug_assert_eq!(self.devices[at(device)].used(), self.credit.used(at(device)));
    }

    /// Moves dirty blocks to writeback.
    pub fn on_writeout(&mut self, now: Instant, device: DeviceId, blocks: u32) {
        self.latest = self.latest.max(now);
        let device = &mut self.devices[at(device)];
        device.dirty.sub(blocks);
        if device.writeback.is_zero() {
            device.bandwidth.on_writeout(now);
            device.alive = now;
        }
        device.writeback.add(blocks);
    }

    /// Returns the credit of blocks whose writeback completed.
    pub fn on_written(&mut self, now: Instant, device: DeviceId, blocks: u32) {
        self.latest = self.latest.max(now);
        let index = at(device);
        let device = &mut self.devices[index];
        device.writeback.sub(blocks);
        device.nr_written += u64::from(blocks);
        device.alive = now;
        if device.bandwidth.on_written(now, blocks, device.writeback.get()) {
            device.outdate();
        }
        self.credit.sub(index, blocks);
        self.shares.on_written(index, blocks);
        debug_assert_eq!(self.devices[index].used(), self.credit.used(index));
    }

    /// Turns blocks whose writeback failed dirty again; they keep their credit, and no writer is charged twice.
    pub fn on_write_failed(&mut self, now: Instant, device: DeviceId, blocks: u32) {
        let index = at(device);
        let device = &mut self.devices[index];
        device.writeback.sub(blocks);
        device.dirty.add(blocks);
        debug_assert_eq!(device.used(), self.credit.used(index));
        device.bandwidth.on_failed(now, device.writeback.get());
    }

    /// Whether the flusher writes out this device's dirty blocks regardless of their age.
    ///
    /// As in Linux, only dirty blocks count below free-run. Above it writers pause, and then every dirty block must be under
    /// writeback.
    #[must_use]
    pub fn over_background(&self, device: DeviceId) -> bool {
        let index = at(device);
        let (counts, used) = (&self.devices[index], self.credit.used(index));
        let regions = counts.control.regions;
        counts.dirty.get() > 0
            && (self.nr_dirty() > self.current.background
                || counts.dirty.get() > regions.background
                || self.credit.total() > self.current.freerun
                || used > regions.freerun)
    }

    /// Blocks that may be dirty, under the thresholds in effect.
    #[must_use]
    pub fn thresh(&self) -> u32 {
        self.current.thresh
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
        let limit = self.credit.ceiling(device, self.current.limit);
        let writers = self.devices[device].weights.get().div_ceil(u64::from(WEIGHT_ONE));
        let position = DirtyPosition {
            used: self.credit.used(device),
            limit: self.shares.of(device, self.current.limit).min(limit),
            freerun: self.credit.total() <= self.current.freerun,
            writers: writers as u32,
        };
        let entry = self.writers.get_mut(writer);
        let quota = policy.quota(&position, entry.nr_dirtied);
        if quota.is_some() {
            entry.nr_dirtied = 0;
        }
        quota.unwrap_or(0)
    }

    /// Runs the tick if it is due.
    pub fn on_timer(&mut self, now: Instant) {
        self.latest = self.latest.max(now);
        if self.next_timeout().is_none_or(|due| now < due) {
            return;
        }
        let elapsed = now.since(self.ticked);
        self.ticked = now;
        self.ticks += 1;
        assert!(
            self.devices.iter().map(|device| device.weights.get()).sum::<u64>()
                == self.weights.get()
        );
        self.shares.age(now);
        if self.ticks.is_multiple_of(TICKS_PER_STEP) && self.current.thresh > self.target.thresh {
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

    /// The time of the next tick; `None` without active writers.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let active = !self.weights.is_zero() || self.current.thresh > self.target.thresh;
        active.then(|| self.ticked.after(TICK_NS))
    }

    /// Blocks that the flusher writes per visit of a group: half a second of bandwidth, at most an eighth of the limit, in steps of
    /// 4 MiB. Long enough to be sequential, short enough not to cross the control scope at once.
    #[must_use]
    pub fn chunk(&self, device: DeviceId) -> u32 {
        chunk(self.devices[at(device)].bandwidth.get(), self.current.thresh)
    }

    /// Counts blocks of a writer, which has a weight from its first block on; returns whether this is the first of a connection's writer.
    fn note(&mut self, now: Instant, writer: WriterId, device: DeviceId, blocks: u32) -> bool {
        let short = self.devices[at(device)].short_ns(now);
        let entry = self.writers.get_mut(writer);
        let is_new = entry.seen == 0;
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
        let (domain, weight) = (entry.domain, entry.weight);
        if was != (device.0, weight) {
            if self.weights.is_zero() {
                self.ticked = now;
            }
            self.count_weight(was.0, domain, was.1, 0);
            self.count_weight(device.0, domain, 0, weight);
        }
        is_new && writer != self.shared_writer()
    }

    /// Lets a new writer of a domain begin with the clock of one that left.
    fn begin(&mut self, now: Instant, writer: WriterId, device: usize) {
        // Its debt is at the pace of as many writers as there are with it.
        self.refresh(now, device);
        let domain = self.writers.get(writer).domain;
        let (pace, _) = self.devices[device].pace_of(&self.domains, domain);
        let clock = self.devices[device].loads.take_debt(now, domain, pace);
        let entry = self.writers.get_mut(writer);
        (entry.clock, entry.pace) = (clock, pace);
    }

    /// Replaces a writer's weight in the sums.
    fn count_weight(&mut self, device: u16, domain: DomainId, was: u32, is: u32) {
        self.devices[usize::from(device)].count(&self.domains, domain, was, is);
        self.weights.sub(was.into());
        self.weights.add(is.into());
    }

    /// Recomputes the device's paces if they are outdated.
    fn refresh(&mut self, now: Instant, device: usize) {
        let used = self.credit.used(device);
        if !self.devices[device].is_outdated(now, used) {
            return;
        }
        let regions = self.current;
        let free = regions.limit.saturating_sub(self.credit.total());
        let left = self.credit.ceiling(device, regions.limit);
        let part = self.shares.of(device, regions.limit);
        let share = device_limit(part, free, self.credit.floor(), regions.limit);
        // While other devices have busy writers, free-run ends for all: at the speed of memory a slow device would take in a tenth
        // of a second what it drains in half a minute.
        let others = self.weights.get() - self.devices[device].weights.get();
        debug_assert!(self.devices[device].weights <= self.weights);
        let alone = others < u64::from(WEIGHT_ONE);
        let limits = DeviceLimits {
            used,
            share: regions.share(share),
            left: regions.share(left),
            all_freerun: alone && self.credit.total() <= regions.freerun,
            all_calm: alone && self.credit.total() <= regions.background,
        };
        let pause_max_ns = self.pause_max_ns();
        self.devices[device].update(now, &limits, pause_max_ns);
    }

    /// Computes the target thresholds and applies a rise.
    fn retarget(&mut self) {
        self.target = Thresholds::of(&self.options, self.dirtyable);
        // Never above the size of the pool, however slowly a lowered limit is approached.
        let thresh = self.current.thresh.min(self.most);
        self.apply(self.target.raised_to(thresh));
    }

    /// Approaches a lowered target by one step.
    fn step_down(&mut self) {
        let used = self.credit.total();
        let thresh = smoothed(self.current.thresh, self.target.thresh, used);
        self.apply(self.target.raised_to(thresh));
    }

    /// Puts thresholds into effect.
    fn apply(&mut self, thresholds: Thresholds) {
        assert!(thresholds.limit <= thresholds.thresh && thresholds.setpoint <= thresholds.limit);
        self.current = thresholds;
        self.credit.set_limit(thresholds.limit);
        self.devices.iter_mut().for_each(Device::outdate);
    }

    /// The hard limit of a scheduling class.
    fn limit_of(&self, class: IoClass) -> u32 {
        match class {
            IoClass::RealTime => self.current.thresh,
            IoClass::BestEffort | IoClass::Idle => self.current.limit,
        }
    }

    /// Dirty blocks of all devices.
    fn nr_dirty(&self) -> u32 {
        self.devices.iter().map(|device| device.dirty.get()).sum()
    }

    /// The longest pause, in nanoseconds.
    fn pause_max_ns(&self) -> u64 {
        u64::from(self.options.max_pause_ms.clamp(10, 1000)) * MS
    }
}

/// Blocks per visit of a group, at that bandwidth (blocks a second) and limit.
pub(super) fn chunk(bandwidth: u64, limit: u32) -> u32 {
    const STEP: u64 = 1024;
    let blocks = (bandwidth / 2).min(u64::from(limit / 8));
    let chunk = (blocks + STEP) / STEP * STEP;
    debug_assert!(chunk > 0 && chunk <= u64::from(u32::MAX));
    chunk as u32
}

/// The index of a device.
pub(super) fn at(device: DeviceId) -> usize {
    usize::from(device.0)
}

/// `period / elapsed` as a weight, at most [`WEIGHT_ONE`].
fn part_of(period: u64, elapsed: u64) -> u32 {
    if period >= elapsed {
        return WEIGHT_ONE;
    }
    (u128::from(period) * u128::from(WEIGHT_ONE) / u128::from(elapsed)) as u32
}
