//! Shares of unequal writers and unequal devices.

use super::model::{BIO, Model, mb};
use super::{FULL, report, second_percent};
use crate::bio::{DeviceId, IoClass};
use crate::time::{SEC, US};

/// Returns the think time of a writer with a rate of `megabytes` MB/s, in nanoseconds.
fn think(megabytes: u64) -> u64 {
    u64::from(BIO) * SEC / mb(megabytes) - 5 * US
}

#[test]
fn light_writer_beside_hundred_heavy_ones_does_not_pause() {
    for (pool, bandwidth) in [(256, 700), (4096, 700), (4096, 200)] {
        let mut model = Model::new(pool, &[mb(bandwidth)]);
        model.add(100, 0);
        let light = model.add_one(0, think(1), IoClass::BestEffort);
        model.run(5 * SEC);
        model.reset();
        model.run(60 * SEC);
        let waited = model.writers[light].waited_ns;
        assert!(waited * 100 <= model.elapsed(), "{waited} ns: {}", report(&model));
        assert!(model.writers[light].blocks * 100 >= mb(1) * 60 * 98);
    }
}

#[test]
fn real_time_writer_never_waits() {
    // In the last case its 1 MB/s is a fifth of the device, and far more than an equal share.
    for (bandwidth, heavy) in [(700, 100), (60, 100), (5, 1000)] {
        let mut model = Model::new(4096, &[mb(bandwidth)]);
        model.add(heavy, 0);
        model.run(20 * SEC);
        let rt = model.add_one(0, think(1), IoClass::RealTime);
        model.reset();
        model.run(60 * SEC);
        assert_eq!(model.writers[rt].waited_ns, 0, "{bandwidth}: {}", report(&model));
        assert!(model.writers[rt].blocks * 100 >= mb(1) * 60 * 98);
        assert!(model.busy_percent(0) >= FULL, "{}", report(&model));
    }
}

#[test]
fn limited_writers_get_their_rate_and_heavy_one_the_rest() {
    let mut model = Model::new(4096, &[mb(60)]);
    let light = [10, 10, 20].map(|rate| (rate, model.add_one(0, think(rate), IoClass::BestEffort)));
    let heavy = model.add_one(0, 0, IoClass::BestEffort);
    model.run(20 * SEC);
    model.reset();
    model.run(20 * SEC);
    for (rate, writer) in light {
        let got = model.writers[writer].blocks;
        assert!(got * 100 >= mb(rate) * 20 * 97, "{rate}: {got} {}", report(&model));
    }
    let got = model.writers[heavy].blocks;
    assert!(got.abs_diff(mb(20) * 20) * 100 <= mb(20) * 20 * 5, "{got} {}", report(&model));
    // The writer count is right, not only compensated by the position: three writers of 20 MB/s.
    let rate = model.throttle.device_stats(DeviceId(0)).dirty_ratelimit;
    assert!(rate.abs_diff(20_000_000) <= 2_000_000, "{rate} {}", report(&model));
}

#[test]
fn heavy_writer_gets_bandwidth_that_light_ones_leave() {
    // With equal shares the heavy writer would get 7 of 700 MB/s.
    let mut model = Model::new(4096, &[mb(700)]);
    for _ in 0..100 {
        model.add_one(0, think(1), IoClass::BestEffort);
    }
    let heavy = model.add_one(0, 0, IoClass::BestEffort);
    model.run(10 * SEC);
    model.reset();
    model.run(10 * SEC);
    let got = model.writers[heavy].blocks;
    assert!(got * 100 >= mb(600) * 10 * 95, "{got} {}", report(&model));
    assert!(model.busy_percent(0) >= FULL, "{}", report(&model));
}

#[test]
fn credit_after_idle_time_is_bounded() {
    let mut model = Model::new(4096, &[mb(700)]);
    model.add(10, 0);
    let rested = model.add_one(0, 0, IoClass::BestEffort);
    model.run(5 * SEC);
    model.writers[rested].alive = false;
    model.run(30 * SEC);
    model.resume_writer(rested);
    model.reset();
    model.run(SEC / 2);
    // At most its share of half a second and the blocks between set point and limit.
    let part = mb(700) / 11 / 2;
    assert!(model.writers[rested].blocks <= part + (203_162 - 180_224), "{}", report(&model));
    assert!(model.writers[rested].blocks >= part / 2);
}

#[test]
fn devices_share_a_pool_in_proportion_to_bandwidth() {
    for pool in [256, 4096] {
        for writers in [1, 10, 100] {
            let mut model = Model::new(pool, &[mb(700), mb(70)]);
            model.add(writers, 0);
            model.add(writers, 1);
            model.run(15 * SEC);
            model.reset();
            model.run(20 * SEC);
            let told = format!("{pool} MiB, {writers}: {}", report(&model));
            assert!(model.busy_percent(0) >= 95.0 && model.busy_percent(1) >= 95.0, "{told}");
            let used = |device| {
                let stats = model.throttle.device_stats(DeviceId(device));
                (stats.reclaimable + stats.writeback + stats.reserved) as f64
            };
            let split = used(0) / used(1);
            // Within a fifth of the ratio of the bandwidths.
            assert!((8.0..=12.0).contains(&split), "{split:.2} {told}");
        }
    }
}

#[test]
fn started_device_reaches_its_share_within_5_seconds() {
    let mut model = Model::new(4096, &[mb(700), mb(700)]);
    model.add(10, 0);
    model.run(20 * SEC);
    model.add(10, 1);
    model.run(5 * SEC);
    let part = model.throttle.device_stats(DeviceId(1)).dirty_thresh;
    assert!(part * 100 >= 203_162 / 2 * 90, "{part} {}", report(&model));
}

#[test]
fn slow_device_started_beside_fast_one_does_not_fill_pool() {
    for (pool, writers) in [(256, 10), (4096, 1), (4096, 10), (4096, 100)] {
        let mut model = Model::new(pool, &[mb(100), mb(10)]);
        model.add(writers, 0);
        model.add(writers, 1);
        model.run(3 * SEC);
        let slow = model.throttle.device_stats(DeviceId(1));
        let used = slow.reclaimable + slow.writeback + slow.reserved;
        let told = format!("{pool} MiB, {writers}: {}", report(&model));
        // Its share is an eleventh; it may hold an eighth until its bandwidth is known.
        assert!(used * 8 <= model.throttle.stats().nr_dirty_threshold, "{told}");
        for second in 3..10 {
            let percent = second_percent(&mut model, 1);
            assert!(percent >= 70.0, "{second}: {percent} {told}");
        }
    }
}

#[test]
fn device_with_idle_neighbours_uses_all_free_credit() {
    let mut model = Model::new(4096, &[mb(100), mb(10)]);
    model.add(1, 1);
    model.add_one(0, SEC, IoClass::BestEffort);
    model.run(SEC / 2);
    // 640 MB at memory speed: a light writer on another device does not limit a burst.
    let threshold = model.throttle.stats().nr_dirty_threshold;
    assert!(model.used() * 100 >= threshold * 74, "{}", report(&model));
}
