//! How long a writer pauses, and by what weight it counts.

use super::super::device::cost_ns;
use super::super::writers::{NEVER, WEIGHT_ONE, WriterId};
use super::{LATE_NS, SILENT_NS, Throttle, part_of};
use crate::bio::IoClass;
use crate::prng::Prng;
use crate::time::Instant;

impl Throttle {
    /// Decides whether the writer pauses, and charges it when its batch is full.
    pub(super) fn balance(
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
            // The caller did not call `resume`: the pause is over, and at most one more is carried over.
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
        let (_, batch) = self.devices[device].pace_of(&self.domains, entry.domain);
        let full = entry.is_full(blocks, batch);
        // A writer without a pause since free-run is charged at once: a batch of every writer is too much at a cold start.
        let newcomer = !entry.spread && !control.freerun;
        if full || newcomer { self.charge(now, writer, device, class) } else { None }
    }

    /// Charges the writer for its blocks, weighs it, and pauses it if its debt is large enough.
    pub(super) fn charge(
        &mut self,
        now: Instant,
        writer: WriterId,
        device: usize,
        class: IoClass,
    ) -> Option<Instant> {
        let control = self.devices[device].control;
        let used = self.credit.used(device);
        let entry = *self.writers.get(writer);
        let (pace, _) = self.devices[device].pace_of(&self.domains, entry.domain);
        let period = cost_ns(u64::from(entry.nr_dirtied), pace);
        let short = self.devices[device].short_ns(now);
        self.weigh(now, writer, period, short);
        self.devices[device].on_settled(u64::from(entry.nr_dirtied));
        let exempt =
            control.freerun || class == IoClass::RealTime && used <= control.regions.freerun_rt();
        let clock = entry.clock.max(now.0.saturating_sub(control.credit_ns)).saturating_add(period);
        let was = self.writers.get_mut(writer);
        (was.nr_dirtied, was.settled, was.pace) = (0, now.0, pace);
        was.short = short;
        was.clock = if exempt { now.0 } else { clock };
        was.spread = !control.freerun;
        let pauses = !exempt && clock > now.0 + control.pause_ns / 4;
        let pause = if pauses {
            // A writer that begins with a debt is at no common phase, and has it to pay.
            let phased = entry.spread || entry.clock > now.0;
            let spread = if phased { 0 } else { control.pause_ns.max(period) };
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

    /// Pauses the writer until its clock, at most for `max_pause`, so that writers do not wake together: the first pause is drawn
    /// evenly from `spread` (half of the debt on average; the credit orders too many writers, and nothing wakes too few), later
    /// ones get a jitter of a 32nd to both sides.
    pub(super) fn set_pause(&mut self, now: Instant, writer: WriterId, spread: u64) -> Instant {
        let longest = self.pause_max_ns();
        let entry = self.writers.get_mut(writer);
        let key = u64::from(writer.0) << 32 | u64::from(entry.pauses);
        let mut random = Prng::new(self.options.seed ^ key.wrapping_mul(0xd6e8_feb8_6659_fd93));
        entry.pauses = entry.pauses.wrapping_add(1);
        entry.dither = random.below(256) as u8;
        if spread > 0 {
            let clock = now.0 + 1 + random.below(spread);
            entry.forgiven = entry.clock.saturating_sub(clock);
            entry.clock = clock;
        }
        let owed = entry.clock.saturating_sub(now.0).max(1);
        // A slice of a longer pause ends early rather than late, so that `max_pause` holds.
        let (base, sliced) = if owed > longest { (longest, true) } else { (owed, false) };
        let jitter = base / 16;
        let early = if sliced { jitter } else { jitter / 2 };
        let until = base - early + random.below(jitter + 1);
        // A 64th of `max_pause` is left for the thread's own delay.
        entry.until = now.0 + until.clamp(1, longest - longest / 64);
        assert!(entry.until > now.0 && entry.until <= now.0 + longest, "a pause is out of range");
        Instant(entry.until)
    }

    /// Updates the weight of a writer that is charged: the fraction of its share that it took since the last charge. It rises at
    /// once and falls by half the difference.
    pub(super) fn weigh(&mut self, now: Instant, writer: WriterId, period: u64, short: u64) {
        let entry = self.writers.get_mut(writer);
        let waited = short.saturating_sub(entry.short);
        let took = part_of(period, now.0.saturating_sub(entry.settled).saturating_sub(waited));
        let weight = if took >= entry.weight { took } else { entry.weight.midpoint(took) };
        assert!(weight <= WEIGHT_ONE, "a writer counts as more than one");
        let (device, domain) = (entry.device, entry.domain);
        let was = std::mem::replace(&mut entry.weight, weight.max(1));
        self.count_weight(device, domain, was, weight.max(1));
    }

    /// Lowers the weights of writers that are late. On a device at its limit writers are late through no fault of theirs.
    pub(super) fn weigh_the_late(&mut self, now: Instant) {
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
            let (pace, _) = device.pace_of(&self.domains, writer.domain);
            let period = cost_ns(u64::from(writer.nr_dirtied), pace);
            let took = if silent { 0 } else { part_of(period, elapsed).max(1) };
            let less = writer.weight.saturating_sub(took);
            let was = writer.weight;
            writer.weight -= less;
            writer.spread &= !silent;
            writer.forgiven = if silent { 0 } else { writer.forgiven };
            device.count(&self.domains, writer.domain, was, writer.weight);
            self.weights.sub(less.into());
        }
    }
}
