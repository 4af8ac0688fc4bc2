//! The throttle against modelled devices and writers, in virtual time.

use crate::bio::DeviceId;
use crate::time::SEC;
use model::Model;

mod accounts;
mod domains;
mod model;
mod shares;
mod steady;
mod steps;
mod weather;

/// Least percentage of a saturated device. It is below 100 because a window may cut off a part of the last request.
const FULL: f64 = 99.0;

/// Runs a second; returns the blocks dirtied in it, in percent of the device's bandwidth.
fn second_percent(model: &mut Model, device: usize) -> f64 {
    let before = model.throttle.device_stats(DeviceId(device as u16)).dirtied;
    model.run(SEC);
    let dirtied = model.throttle.device_stats(DeviceId(device as u16)).dirtied - before;
    dirtied as f64 * 100.0 / model.devices[device].bandwidth as f64
}

/// Returns `dirty_ratelimit` times the number of busy writers, in percent of the bandwidth. A controller that only relies on the
/// hard limit reaches the throughput and fails here.
fn rates_percent(model: &Model, device: usize) -> f64 {
    let stats = model.throttle.device_stats(DeviceId(device as u16));
    let busy = model.writers.iter().filter(|writer| writer.alive && writer.think_ns == 0);
    let count = busy.filter(|writer| writer.device == device).count();
    let sum = stats.dirty_ratelimit as f64 * count as f64 / 4096.0;
    sum * 100.0 / model.devices[device].bandwidth as f64
}

/// Formats the state of a model for failure messages.
fn report(model: &Model) -> String {
    let limit = model.throttle.stats().nr_dirty_threshold as f64;
    let mut line = format!(
        "{:.0} wake-ups/s ({:.0} timers), pause p50 {:.1} p99 {:.1} max {:.1} ms, used {:.3}..{:.3}",
        model.wakes_per_second(),
        model.timers as f64 * SEC as f64 / model.elapsed() as f64,
        model.pause_ms(50),
        model.pause_ms(99),
        model.pause_ms(100),
        model.used_min as f64 / limit,
        model.used_max as f64 / limit,
    );
    for device in 0..model.devices.len() {
        let stats = model.throttle.device_stats(DeviceId(device as u16));
        line += &format!(
            "; device {device}: busy {:.1} %, jain {:.4}, bw {} of {}, {:.1} writers, pos {}, {} of {}",
            model.busy_percent(device),
            model.jain(device),
            stats.write_bandwidth,
            model.devices[device].bandwidth,
            stats.writers_milli as f64 / 1000.0,
            stats.pos_ratio,
            stats.reclaimable + stats.writeback + stats.reserved,
            stats.dirty_thresh,
        );
    }
    line
}
