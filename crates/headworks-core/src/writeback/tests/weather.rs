//! Devices that complete in bursts, stall or die.

use super::model::{Model, mb};
use super::{FULL, rates_percent, report};
use crate::time::{MS, SEC};

#[test]
fn bursts_of_32_mb_leave_pauses_steady() {
    for writers in [1, 10, 100] {
        let mut model = Model::new(4096, &[mb(100)]);
        model.devices[0].burst = 8192;
        model.add(writers, 0);
        model.run(20 * SEC);
        model.reset();
        model.run(20 * SEC);
        let told = format!("{writers}: {}", report(&model));
        assert!(model.busy_percent(0) >= FULL, "{told}");
        assert!(model.pause_ms(99) < 3.0 * model.pause_ms(50), "{told}");
        assert!((90.0..=110.0).contains(&rates_percent(&model, 0)), "{told}");
    }
}

#[test]
fn periodic_stalls_keep_rates_and_fairness() {
    // A stall of 0.4 s in every 2 s: the writers produce 224 MB meanwhile; free-run and the limit are 180 MB apart.
    for (writers, p99) in [(1, 15.0), (10, 100.0), (100, 200.0), (1000, 450.0)] {
        let mut model = Model::new(4096, &[mb(700)]);
        model.devices[0].stall = Some((2 * SEC, 400 * MS));
        model.add(writers, 0);
        model.run(30 * SEC);
        model.reset();
        model.run(20 * SEC);
        let told = format!("{writers}: {}", report(&model));
        assert!(model.busy_percent(0) >= 0.8 * FULL, "{told}");
        assert!(model.pause_ms(99) <= p99, "{told}");
        assert!((72.0..=88.0).contains(&rates_percent(&model, 0)), "{told}");
        assert!(model.jain(0) >= 0.99, "{told}");
    }
}

#[test]
fn writers_waiting_for_credit_are_not_counted_as_light() {
    // The pool is far too small for the stall: all writers wait for credit in every period, and the count of writers must
    // nevertheless be right. If time spent waiting for credit did not count, it would fall to 4 of 1000.
    let mut model = Model::new(256, &[mb(700)]);
    model.devices[0].stall = Some((2 * SEC, 400 * MS));
    model.add(1000, 0);
    model.run(40 * SEC);
    let rates = rates_percent(&model, 0);
    assert!((60.0..=100.0).contains(&rates), "{rates} {}", report(&model));
}

#[test]
fn dead_device_does_not_slow_another() {
    for pool in [256, 4096] {
        for writers in [1, 100] {
            let mut model = Model::new(pool, &[mb(700), mb(70)]);
            model.add(writers, 0);
            model.add(writers, 1);
            model.run(15 * SEC);
            model.devices[1].dead = true;
            model.run(5 * SEC);
            model.reset();
            model.run(30 * SEC);
            let told = format!("{pool} MiB, {writers}: {}", report(&model));
            assert!(model.busy_percent(0) >= FULL, "{told}");
            // The dead device holds less than half of the limit, although nothing drains it.
            let stuck = model.throttle.device_stats(crate::bio::DeviceId(1));
            let held = stuck.reclaimable + stuck.writeback + stuck.reserved;
            assert!(held * 2 < model.throttle.stats().nr_dirty_threshold * 8 / 7, "{held} {told}");
            model.revive(1);
            model.run(15 * SEC);
            model.reset();
            model.run(20 * SEC);
            let told = format!("{pool} MiB, {writers}, again: {}", report(&model));
            assert!(model.busy_percent(0) >= 95.0 && model.busy_percent(1) >= 95.0, "{told}");
        }
    }
}

#[test]
fn device_that_died_holding_the_pool_leaves_the_floor() {
    for pool in [256, 4096] {
        let mut model = Model::new(pool, &[mb(700), mb(70)]);
        model.add(10, 0);
        model.run(10 * SEC);
        model.devices[0].dead = true;
        model.add(10, 1);
        model.run(15 * SEC);
        model.reset();
        model.run(20 * SEC);
        let told = format!("{pool} MiB: {}", report(&model));
        assert!(model.busy_percent(1) >= FULL && model.jain(1) >= 0.99, "{told}");
    }
}
