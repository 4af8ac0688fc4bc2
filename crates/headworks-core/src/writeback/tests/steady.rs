//! Steady devices and writers that are always busy.

use super::super::DirtyOptions;
use super::model::{Model, mb};
use super::{FULL, rates_percent, report};
use crate::time::SEC;

/// Runs 30 s to settle, then measures 10 s, or as long as 20 bios of each writer take.
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
fn device_is_saturated_and_writers_share_it_equally() {
    for (pool, bandwidth) in
        [(256, 10), (256, 700), (256, 3000), (4096, 10), (4096, 700), (4096, 3000)]
    {
        for writers in [1, 10, 100, 1000] {
            let model = steady(pool, bandwidth, writers);
            let told = format!("{pool} MiB, {bandwidth} MB/s, {writers}: {}", report(&model));
            assert!(model.busy_percent(0) >= FULL, "{told}");
            assert!(model.jain(0) >= 0.99, "{told}");
            assert!((75.0..=125.0).contains(&rates_percent(&model, 0)), "{told}");
            // The controller holds the position; the hard limit is not reached.
            let limit = model.throttle.stats().nr_dirty_threshold;
            assert!(model.used_max < limit * 95 / 100, "{told}");
            assert!(model.used_min > limit / 2, "{told}");
        }
    }
}

#[test]
fn thousand_writers_have_short_pauses_and_few_wake_ups() {
    let model = steady(4096, 700, 1000);
    let told = report(&model);
    assert!(model.wakes_per_second() <= 5_500.0, "{told}");
    assert!(model.timers <= model.wakes, "every timer wakes a writer: {told}");
    assert!(model.pause_ms(99) <= 200.0, "{told}");
    // Less than one wake-up for 10 blocks (A3), and no thundering herd: the dirty data stays nearly constant.
    assert!(model.wakes * 10 < model.devices[0].written, "{told}");
    let limit = model.throttle.stats().nr_dirty_threshold;
    assert!(model.used_max - model.used_min < limit / 50, "{told}");
}

#[test]
fn few_writers_pause_for_tens_of_milliseconds() {
    for (writers, least, most, wakes) in [(1, 5.0, 15.0, 16.0 * 16.0), (100, 50.0, 200.0, 1600.0)] {
        let model = steady(4096, 700, writers);
        let told = format!("{writers}: {}", report(&model));
        let (p50, p99) = (model.pause_ms(50), model.pause_ms(99));
        assert!((least..most).contains(&p50) && p99 <= 2.0 * p50, "{told}");
        assert!(model.wakes_per_second() <= wakes, "{told}");
        // The balance point is the set point, within a quarter of the scope.
        let (used, scope) = (model.used() as f64, 209_715.0 * (1.0 - 0.75));
        assert!((used - 0.859 * 209_715.0).abs() <= 0.25 * scope, "{used} {told}");
    }
}

#[test]
fn pauses_depend_on_the_seed_only() {
    let run = |seed| {
        let options = DirtyOptions { seed, ..DirtyOptions::default() };
        let mut model = Model::with(256, &[mb(700)], &options);
        model.add(100, 0);
        model.run(2 * SEC);
        model.pauses
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
