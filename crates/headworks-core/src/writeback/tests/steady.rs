//! Devices that write steadily, and writers that never rest.

use super::super::model::{Model, mb};
use super::{FULL, rates_percent, report};
use crate::time::SEC;

/// 30 s to settle, then 10 s (or until each writer has had 20 bios) that count.
fn steady(pool: u32, bandwidth: u64, writers: usize) -> Model {
    let mut model = Model::new(pool, &[mb(bandwidth)]);
    model.add(writers, 0);
    model.run(30 * SEC);
    model.reset();
    let rounds = writers as u64 * 16 * 20 * SEC / mb(bandwidth);
    model.run(rounds.max(10 * SEC));
    model
}

#[test]
fn every_device_is_full_and_every_writer_has_its_part() {
    for (pool, bandwidth) in
        [(256, 10), (256, 700), (256, 3000), (4096, 10), (4096, 700), (4096, 3000)]
    {
        for writers in [1, 10, 100, 1000] {
            let mut model = steady(pool, bandwidth, writers);
            let told = format!("{pool} MiB, {bandwidth} MB/s, {writers}: {}", report(&mut model));
            eprintln!("{told}");
            assert!(model.busy_percent(0) >= FULL, "{told}");
            assert!(model.jain(0) >= 0.99, "{told}");
            assert!((75.0..=125.0).contains(&rates_percent(&model, 0)), "{told}");
            // The position is the control's, not the hard limit's.
            let limit = model.throttle.stats().nr_dirty_threshold;
            assert!(model.used_max < limit * 95 / 100, "{told}");
            assert!(model.used_min > limit / 2, "{told}");
        }
    }
}
