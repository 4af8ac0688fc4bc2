//! The throttle's counters and trace events.

use crate::bio::DeviceId;
use crate::time::{Instant, MS, SEC};

use super::device::{Device, PACE_ONE};
use super::limits::BLOCK;
use super::stats::{DirtyStats, WritebackStats};
use super::throttle::{Throttle, at};
use super::trace::{BalanceDirtyPages, BdiDirtyRatelimit, TraceEvent};
use super::writers::{WEIGHT_ONE, Writer, WriterId};

impl Throttle {
    /// Counters and thresholds of all devices together.
    #[must_use]
    pub fn stats(&self) -> DirtyStats {
        let sum = |count: fn(&Device) -> u64| self.devices.iter().map(count).sum();
        DirtyStats {
            nr_dirty: sum(|device| u64::from(device.dirty.get())),
            nr_writeback: sum(|device| u64::from(device.writeback.get())),
            reserved: sum(|device| u64::from(device.reserved.get())),
            nr_dirtied: self.stats.nr_dirtied + sum(|device| device.nr_dirtied),
            nr_written: self.stats.nr_written + sum(|device| device.nr_written),
            nr_dirty_threshold: u64::from(self.current.thresh),
            nr_dirty_background_threshold: u64::from(self.current.background),
            writers: self.weights.get().div_ceil(u64::from(WEIGHT_ONE)),
            traces_lost: self.trace.lost(),
            write_rate: sum(Device::measured_rate),
            ..self.stats
        }
    }

    /// Counters and rates of one device.
    #[must_use]
    pub fn device_stats(&self, device: DeviceId) -> WritebackStats {
        let device = &self.devices[at(device)];
        let rate = |pace: u64| (u128::from(pace) * u128::from(BLOCK) / PACE_ONE) as u64;
        WritebackStats {
            writeback: u64::from(device.writeback.get()),
            reclaimable: u64::from(device.dirty.get()),
            reserved: u64::from(device.reserved.get()),
            dirty_thresh: u64::from(device.control.regions.limit),
            global_dirty_thresh: u64::from(self.current.thresh),
            background_thresh: u64::from(self.current.background),
            dirtied: device.nr_dirtied,
            written: device.nr_written,
            write_bandwidth: device.bandwidth.get(),
            dirty_ratelimit: rate(device.control.ratelimit),
            task_ratelimit: rate(device.control.pace),
            writers_milli: device.weights.get() * 1000 / u64::from(WEIGHT_ONE),
            pos_ratio: device.control.pos_ratio,
        }
    }

    /// Turns the trace events on or off.
    pub fn trace(&mut self, on: bool) {
        self.trace.set(on);
    }

    /// Moves the events since the last call to `into`.
    pub fn take_traces(&mut self, into: &mut Vec<TraceEvent>) {
        self.trace.take(into);
    }

    /// Records the charge of a writer, whose state before it was `was`.
    pub(super) fn trace_balance(
        &mut self,
        now: Instant,
        writer: WriterId,
        was: &Writer,
        period: u64,
        pause: i64,
    ) {
        let device = usize::from(self.writers.get(writer).device);
        let control = &self.devices[device].control;
        self.trace.push(TraceEvent::BalanceDirtyPages(BalanceDirtyPages {
            at: now,
            bdi: device as u16,
            connection: was.connection,
            limit: self.current.limit,
            setpoint: self.current.setpoint,
            dirty: self.credit.total(),
            bdi_setpoint: control.regions.setpoint,
            bdi_dirty: self.credit.used(device),
            dirty_ratelimit: kib(control.ratelimit),
            task_ratelimit: kib(control.pace),
            dirtied: was.nr_dirtied,
            dirtied_pause: control.batch as u32,
            paused: 0,
            pause: pause / MS as i64,
            period: period / MS,
            think: now.0.saturating_sub(was.settled) / MS,
        }));
    }

    /// Records the rates of every device, `elapsed` nanoseconds after the last time.
    pub(super) fn trace_rates(&mut self, now: Instant, elapsed: u64) {
        for (index, device) in self.devices.iter_mut().enumerate() {
            let dirtied = device.nr_dirtied - device.dirtied_stamp;
            debug_assert!(self.trace.is_on(), "events are made only for a reader");
            device.dirtied_stamp = device.nr_dirtied;
            let ratelimit = kib(device.control.ratelimit);
            self.trace.push(TraceEvent::BdiDirtyRatelimit(BdiDirtyRatelimit {
                at: now,
                bdi: index as u16,
                write_bw: device.bandwidth.last() * 4,
                awrite_bw: device.bandwidth.get() * 4,
                dirty_rate: dirtied * 4 * SEC / elapsed.max(1),
                dirty_ratelimit: ratelimit,
                task_ratelimit: kib(device.control.pace),
                balanced_dirty_ratelimit: ratelimit,
            }));
        }
    }
}

/// Converts a pace to KiB/s.
fn kib(pace: u64) -> u64 {
    (u128::from(pace) * 4 / PACE_ONE) as u64
}
