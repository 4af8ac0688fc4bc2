//! Writers and devices that differ.

use super::model::{BIO, Model, mb};
use super::{FULL, report, second_percent};
use crate::bio::{DeviceId, IoClass};
use crate::time::{SEC, US};

/// From the end of one bio to the next, for so many MB/s.
fn think(megabytes: u64) -> u64 {
    u64::from(BIO) * SEC / mb(megabytes) - 5 * US
}

#[test]
fn a_light_writer_beside_a_hundred_heavy_ones_does_not_pause() {
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
fn a_real_time_writer_never_waits() {
    // Its 1 MB/s is a fifth of the device in the second case, and a hundred times its part.
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
fn limited_writers_get_what_they_ask_and_the_heavy_one_the_rest() {
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
    // The count is right, not only made up for by the position: three writers' worth, 20 MB/s each.
    let rate = model.throttle.device_stats(DeviceId(0)).dirty_ratelimit;
    assert!(rate.abs_diff(20_000_000) <= 2_000_000, "{rate} {}", report(&model));
}

#[test]
fn many_light_writers_leave_the_heavy_one_the_rest() {
    // Counted by heads the heavy one would have 7 of 700 MB/s.
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
fn credit_for_rest_is_bounded() {
    let mut model = Model::new(4096, &[mb(700)]);
    model.add(10, 0);
    let rested = model.add_one(0, 0, IoClass::BestEffort);
    model.run(5 * SEC);
    model.writers[rested].alive = false;
    model.run(30 * SEC);
    model.resume_writer(rested);
    model.reset();
    model.run(SEC / 2);
    // Half a second's part, and what fits between set point and limit at the most.
    let part = mb(700) / 11 / 2;
    assert!(model.writers[rested].blocks <= part + (203_162 - 180_224), "{}", report(&model));
    assert!(model.writers[rested].blocks >= part / 2);
}

#[test]
fn two_devices_share_a_pool_as_they_write() {
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
            // Within a fifth of the bandwidths' ratio.
            assert!((8.0..=12.0).contains(&split), "{split:.2} {told}");
        }
    }
}

#[test]
fn a_device_that_starts_beside_a_busy_one_has_its_part_in_some_seconds() {
    let mut model = Model::new(4096, &[mb(700), mb(700)]);
    model.add(10, 0);
    model.run(20 * SEC);
    model.add(10, 1);
    model.run(5 * SEC);
    let part = model.throttle.device_stats(DeviceId(1)).dirty_thresh;
    assert!(part * 100 >= 203_162 / 2 * 90, "{part} {}", report(&model));
}

#[test]
fn a_slow_device_that_starts_beside_a_fast_one_does_not_fill_the_pool() {
    for (pool, writers) in [(256, 10), (4096, 1), (4096, 10), (4096, 100)] {
        let mut model = Model::new(pool, &[mb(100), mb(10)]);
        model.add(writers, 0);
        model.add(writers, 1);
        model.run(3 * SEC);
        let slow = model.throttle.device_stats(DeviceId(1));
        let used = slow.reclaimable + slow.writeback + slow.reserved;
        let told = format!("{pool} MiB, {writers}: {}", report(&model));
        // Its part is an eleventh; it may hold an eighth until that is known.
        assert!(used * 8 <= model.throttle.stats().nr_dirty_threshold, "{told}");
        for second in 3..10 {
            let percent = second_percent(&mut model, 1);
            assert!(percent >= 70.0, "{second}: {percent} {told}");
        }
    }
}

#[test]
fn a_device_whose_neighbours_rest_has_all_that_is_free() {
    let mut model = Model::new(4096, &[mb(100), mb(10)]);
    model.add(1, 1);
    model.add_one(0, SEC, IoClass::BestEffort);
    model.run(SEC / 2);
    // 640 MB at the speed of memory: a light writer elsewhere is no reason to stop a burst.
    let threshold = model.throttle.stats().nr_dirty_threshold;
    assert!(model.used() * 100 >= threshold * 74, "{}", report(&model));
}
