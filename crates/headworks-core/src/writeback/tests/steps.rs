//! Steps of the bandwidth, the writers and the limits.

use super::super::DirtyOptions;
use super::model::{Model, mb};
use super::{FULL, rates_percent, report, second_percent};
use crate::time::{MS, SEC};

/// Asserts that rate and estimate are right in the second that starts one second after a step.
fn assert_settles(model: &mut Model, what: &str) {
    model.reset();
    model.run(SEC);
    let second = second_percent(model, 0);
    let told = format!("{what}: {second:.1} %, {}", report(model));
    assert!((90.0..=110.0).contains(&second), "{told}");
    assert!((75.0..=125.0).contains(&rates_percent(model, 0)), "{told}");
    model.run(SEC);
    model.reset();
    model.run(10 * SEC);
    let told = format!("{what}: {}", report(model));
    assert!(model.busy_percent(0) >= FULL, "{told}");
    assert!(model.jain(0) >= 0.99, "{told}");
}

#[test]
fn bandwidth_step_settles_in_a_second() {
    for pool in [256, 4096] {
        for writers in [10, 100, 1000] {
            let mut model = Model::new(pool, &[mb(700)]);
            model.add(writers, 0);
            model.run(10 * SEC);
            for bandwidth in [200, 700] {
                model.devices[0].bandwidth = mb(bandwidth);
                assert_settles(&mut model, &format!("{pool} MiB, {writers}, to {bandwidth} MB/s"));
            }
        }
    }
}

#[test]
fn lost_bandwidth_causes_no_full_pool_and_no_herd() {
    for (writers, settled) in [(10, 6), (100, 6), (1000, 10)] {
        let mut model = Model::new(4096, &[mb(700)]);
        model.add(writers, 0);
        model.run(10 * SEC);
        model.devices[0].bandwidth = mb(200);
        model.reset();
        let mut tenths = Vec::new();
        for _ in 0..100 {
            let before = model.dirtied;
            model.run(100 * MS);
            tenths.push(model.dirtied - before);
        }
        let told = format!("{writers}: {tenths:?} {}", report(&model));
        let limit = model.throttle.stats().nr_dirty_threshold;
        assert!(model.used_max * 100 < limit * 94, "{told}");
        for second in tenths[settled..].windows(10) {
            let dirtied: u64 = second.iter().sum();
            assert!(dirtied.abs_diff(mb(200)) * 10 <= mb(200), "{dirtied} {told}");
        }
    }
}

#[test]
fn writer_count_step_settles_in_a_second() {
    for pool in [256, 4096] {
        for (bandwidth, writers) in [(700, 10), (700, 100), (3000, 100)] {
            let mut model = Model::new(pool, &[mb(bandwidth)]);
            model.add(writers, 0);
            model.run(10 * SEC);
            model.add(writers * 9, 0);
            assert_settles(
                &mut model,
                &format!("{pool} MiB, {bandwidth} MB/s, ten times {writers}"),
            );
            for writer in writers..writers * 10 {
                model.close(writer);
            }
            assert_settles(&mut model, &format!("{pool} MiB, {bandwidth} MB/s, back to {writers}"));
        }
    }
}

#[test]
fn cold_start_of_thousand_writers_settles_in_a_second() {
    for (pool, bandwidth) in [(256, 700), (4096, 700), (256, 3000)] {
        let mut model = Model::new(pool, &[mb(bandwidth)]);
        model.add(1000, 0);
        assert_settles(&mut model, &format!("{pool} MiB, {bandwidth} MB/s, cold"));
    }
}

#[test]
fn idle_writers_leave_the_count_within_two_seconds() {
    let mut model = Model::new(4096, &[mb(700)]);
    model.add(100, 0);
    model.run(10 * SEC);
    for writer in 10..100 {
        model.writers[writer].alive = false;
    }
    model.run(2 * SEC);
    assert!((95.0..=105.0).contains(&rates_percent(&model, 0)), "{}", report(&model));
}

#[test]
fn staggered_exit_keeps_throughput_and_wake_up_rate() {
    let mut model = Model::new(4096, &[mb(700)]);
    model.add(1000, 0);
    model.run(5 * SEC);
    for second in 0..9 {
        model.reset();
        for step in 0..100 {
            model.close(second * 100 + step);
            model.run(10 * MS);
        }
        let told = format!("{second}: {}", report(&model));
        assert!(model.busy_percent(0) >= FULL, "{told}");
        // R3: departures cause no more wake-ups than the steady state of all writers.
        assert!(model.wakes_per_second() <= 5_600.0, "{told}");
        assert!((75.0..=125.0).contains(&rates_percent(&model, 0)), "{told}");
    }
}

#[test]
fn closing_thousand_paused_writers_leaves_no_state() {
    let mut model = Model::new(256, &[mb(10)]);
    model.add(1000, 0);
    model.run(20 * SEC);
    for writer in 0..1000 {
        model.close(writer);
    }
    // Timers armed before may still fire, without effect; no timer is armed again.
    model.run(SEC);
    let stats = model.throttle.stats();
    assert_eq!((stats.writers, stats.reserved), (0, 0));
    assert_eq!(model.throttle.next_timeout(), None);
}

#[test]
fn lowered_limit_is_reached_without_blocking_writers() {
    let mut model = Model::new(4096, &[mb(700)]);
    model.add(100, 0);
    model.run(5 * SEC);
    let options = DirtyOptions { dirty_ratio: 5, dirty_background_ratio: 2, ..Default::default() };
    model.throttle.set_options(model.now, &options);
    model.reset();
    model.run(90 * SEC);
    let told = report(&model);
    assert!(model.busy_percent(0) >= FULL, "{told}");
    assert!(model.pause_ms(99) <= 250.0, "{told}");
    assert_eq!(model.throttle.stats().nr_dirty_threshold, (1 << 20) * 5 / 100);
    model.throttle.set_options(model.now, &DirtyOptions::default());
    assert_eq!(model.throttle.stats().nr_dirty_threshold, (1 << 20) * 20 / 100);
}

#[test]
fn one_bio_connections_keep_the_limit_and_starve_no_others() {
    let mut model = Model::new(256, &[mb(100)]);
    model.add(10, 0);
    model.run(5 * SEC);
    model.reset();
    // 2000 connections a second with one bio each, 131 MB/s: more than the device writes.
    for _ in 0..10_000 {
        model.add(1, 0);
        model.run(MS / 2);
        let last = model.writers.len() - 1;
        model.close(last);
    }
    let told = report(&model);
    assert!(model.busy_percent(0) >= FULL, "{told}");
    let heavy = model.writers[..10].iter().map(|writer| writer.blocks).min();
    assert!(heavy.is_some_and(|blocks| blocks > 0), "{told}");
}
