//! Writers of several exports and tenants: the write bandwidth is shared by weight.

use super::model::{Model, mb};
use super::{FULL, report};
use crate::bio::{ExportId, IoClass, TenantId};
use crate::options::{ExportConfig, TenantConfig};
use crate::time::{MS, SEC};
use crate::writeback::DirtyOptions;

/// A model with exports of these weights, each in a tenant of its own, or without tenants.
fn model(pool: u32, bandwidth: u64, weights: &[u16], tenants: bool) -> Model {
    let mut model = Model::with(pool, &[bandwidth], &DirtyOptions::default());
    let exports: Vec<ExportConfig> = (0..)
        .zip(weights)
        .map(|(number, &weight)| match tenants {
            // The weight of an export counts only within its tenant.
            true => ExportConfig {
                weight: 10_000 - weight,
                tenant: TenantId(number),
                ..ExportConfig::default()
            },
            false => ExportConfig { weight, tenant: TenantId::NONE, ..ExportConfig::default() },
        })
        .collect();
    let of_tenants: Vec<TenantConfig> =
        weights.iter().map(|&weight| TenantConfig { weight, ..TenantConfig::default() }).collect();
    model.throttle = model.throttle.with_domains(&exports, &of_tenants);
    model
}

/// Adds always busy writers of an export.
fn add(model: &mut Model, export: u16, writers: usize) {
    for _ in 0..writers {
        let writer = model.add_one(0, 0, IoClass::BestEffort);
        model.writers[writer].export = ExportId(export);
    }
}

/// The blocks of each export's writers since the last reset, in parts of all.
fn parts(model: &Model, exports: usize) -> Vec<f64> {
    let mut parts = vec![0.0; exports];
    for writer in &model.writers {
        parts[usize::from(writer.export.0)] += writer.blocks as f64;
    }
    let all: f64 = parts.iter().sum();
    parts.iter().map(|part| part / all).collect()
}

#[track_caller]
fn assert_shares(model: &Model, weights: &[u16], off: f64) {
    let all: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    for (part, weight) in parts(model, weights.len()).iter().zip(weights) {
        let wanted = f64::from(*weight) / all;
        let all = || parts(model, weights.len());
        let is_near = (part / wanted - 1.0).abs() <= off;
        assert!(is_near, "{:.4?} of {weights:?}: {}", all(), report(model));
    }
}

#[test]
fn busy_domains_share_the_bandwidth_by_weight() {
    const WEIGHTS: [u16; 4] = [100, 200, 400, 1000];
    for (pool, bandwidth) in [(1024, 100), (4096, 700), (4096, 3000)] {
        for (writers, tenants) in [([1; 4], false), ([10; 4], true), ([100, 10, 3, 1], true)] {
            let mut model = model(pool, mb(bandwidth), &WEIGHTS, tenants);
            (0..).zip(writers).for_each(|(export, count)| add(&mut model, export, count));
            model.run(30 * SEC);
            model.reset();
            model.run(30 * SEC);
            assert_shares(&model, &WEIGHTS, 0.03);
            assert!(model.busy_percent(0) >= FULL, "{}", report(&model));
            let limit = model.throttle.stats().nr_dirty_threshold;
            assert!(model.used_max < limit * 95 / 100, "{}", report(&model));
            for _ in 0..6 {
                model.reset();
                model.run(5 * SEC);
                assert_shares(&model, &WEIGHTS, 0.06);
            }
        }
    }
}

#[test]
fn domain_that_returns_has_its_part_at_once() {
    const WEIGHTS: [u16; 3] = [100, 100, 1000];
    let mut model = model(4096, mb(700), &WEIGHTS, true);
    add(&mut model, 0, 4);
    add(&mut model, 1, 1);
    model.run(20 * SEC);
    model.reset();
    model.run(10 * SEC);
    let alone = parts(&model, 3);
    assert!((alone[0] - 0.5).abs() < 0.02 && alone[2] == 0.0, "{alone:?}");
    add(&mut model, 2, 1);
    model.run(SEC);
    model.reset();
    model.run(10 * SEC);
    assert_shares(&model, &WEIGHTS, 0.05);
}

#[test]
fn weights_and_tenants_change_while_writers_are_busy() {
    let mut model = model(4096, mb(700), &[100, 100, 300], false);
    (0..3).for_each(|export| add(&mut model, export, 2));
    model.run(20 * SEC);
    model.throttle.set_export_weight(ExportId(0), 600);
    model.run(3 * SEC);
    model.reset();
    model.run(10 * SEC);
    assert_shares(&model, &[600, 100, 300], 0.04);
    // The last two become one tenant, whose writers share equally.
    model.throttle.set_tenant_weight(TenantId(9), 200);
    model.throttle.set_tenant(ExportId(1), TenantId(9));
    model.throttle.set_tenant(ExportId(2), TenantId(9));
    model.run(3 * SEC);
    model.reset();
    model.run(10 * SEC);
    assert_shares(&model, &[600, 100, 100], 0.04);
}

#[test]
fn light_domain_takes_what_it_needs_and_leaves_the_rest() {
    let mut model = model(4096, mb(700), &[100, 100], false);
    add(&mut model, 0, 8);
    // A tenth of the bandwidth: 64 KiB each 936 us.
    let light = model.add_one(0, 16 * SEC / mb(70), IoClass::BestEffort);
    model.writers[light].export = ExportId(1);
    model.run(20 * SEC);
    model.reset();
    model.run(10 * SEC);
    let parts = parts(&model, 2);
    assert!((parts[1] - 0.1).abs() < 0.01, "{parts:?}");
    assert!(model.busy_percent(0) >= FULL, "{}", report(&model));
    let waited = model.writers[light].waited_ns;
    assert!(waited < SEC / 10, "the light writer paused for {waited} ns of 10 s");
}

#[test]
fn thousand_tenants_share_equally() {
    let mut model = model(4096, mb(3000), &[100; 1000], true);
    (0..1000).for_each(|export| add(&mut model, export, 1));
    model.run(30 * SEC);
    model.reset();
    model.run(30 * SEC);
    assert_shares(&model, &[100; 1000], 0.05);
    assert!(model.pause_ms(99) <= 200.0, "{}", report(&model));
}

/// Runs five steady writers beside one that connects anew every `life_ns`, each time to the next of `exports`; returns what it writes in parts
/// of an equal share.
fn reconnecting(model: &mut Model, life_ns: u64, steady: u16, exports: &[u16]) -> f64 {
    add(model, steady, 5);
    model.run(30 * SEC);
    let run = |model: &mut Model, ns: u64| {
        let mut exports = exports.iter().cycle();
        for _ in 0..ns / life_ns {
            let writer = model.add_one(0, 0, IoClass::BestEffort);
            model.writers[writer].export = ExportId(*exports.next().unwrap());
            model.run(life_ns);
            model.close(writer);
        }
    };
    run(model, 10 * SEC);
    model.reset();
    run(model, 30 * SEC);
    let all: u64 = model.writers.iter().map(|writer| writer.blocks).sum();
    let steady: u64 = model.writers[..5].iter().map(|writer| writer.blocks).sum();
    (all - steady) as f64 * 6.0 / all as f64
}

#[test]
fn writer_that_connects_anew_gains_nothing() {
    for pool in [1024, 4096, 16384] {
        for life_ns in [5 * MS, 50 * MS, 100 * MS, 300 * MS, SEC] {
            let mut one = model(pool, mb(200), &[100], false);
            let part = reconnecting(&mut one, life_ns, 0, &[0]);
            assert!(part < 1.1, "{pool} MiB, {} ms: {part:.3}, {}", life_ns / MS, report(&one));
            assert!(one.busy_percent(0) >= FULL, "{}", report(&one));
        }
    }
}

#[test]
fn tenant_whose_exports_take_turns_gains_nothing() {
    let mut model = Model::with(4096, &[mb(200)], &DirtyOptions::default());
    let export = |tenant| ExportConfig { tenant: TenantId(tenant), ..ExportConfig::default() };
    let exports = [export(0), export(1), export(1), export(1)];
    model.throttle = model.throttle.with_domains(&exports, &[TenantConfig::default(); 2]);
    // Of six equal shares it has three.
    let part = reconnecting(&mut model, 50 * MS, 0, &[1, 2, 3]) / 3.0;
    assert!(part < 1.1, "{part:.3}, {}", report(&model));
}

#[test]
fn writers_that_all_connect_anew_at_once_pause_as_before() {
    for (writers, bandwidth) in [(10, 200), (100, 200), (1000, 10)] {
        let mut model = model(4096, mb(bandwidth), &[100], false);
        add(&mut model, 0, writers);
        model.run(60 * SEC);
        let before = model.pause_ms(100);
        (0..writers).for_each(|writer| model.close(writer));
        add(&mut model, 0, writers);
        model.reset();
        model.run(60 * SEC);
        let after = model.pause_ms(100);
        // What one that left owed, and its own first write.
        assert!(after <= 2.2 * before, "{before} {after} ms, {}", report(&model));
        assert!(model.busy_percent(0) >= FULL, "{}", report(&model));
    }
}
