//! Latency targets: what is counted of exports and tenants, and the smallest latency of a device.

use headworks_core::time::{MS, SEC, US};
use headworks_core::{
    Control, DeviceId, ExportConfig, ExportId, Input, Instant, ShardConfig, TenantConfig, TenantId,
};

use crate::bench::Bench;

const DEVICE: DeviceId = DeviceId(0);
const LIGHT: ExportId = ExportId(0);
const BULK: ExportId = ExportId(1);
const TENANT: TenantId = TenantId(3);

/// Returns a bench with an export of a tenant, with a target of 1 ms, and one without a target.
fn with_target() -> Bench {
    Bench::with(|config: &mut ShardConfig| {
        let light =
            ExportConfig { latency_target_us: 1_000, tenant: TENANT, ..ExportConfig::default() };
        config.exports = vec![light, ExportConfig::default()];
        config.tenants = vec![TenantConfig::default(); 4];
    })
}

/// Submits a bio of an export and returns the number of its first command.
fn submit(bench: &mut Bench, export: ExportId, word: &str) -> usize {
    let first = bench.commands();
    let Input::Bio(mut bio) = bench.bio(word) else { unreachable!() };
    (bio.id.export, bio.id.connection) = (export, export.0.into());
    bench.turn(&[Input::Bio(bio)]);
    first
}

/// Lets small requests of the export with the target take 5 ms each beside bulk, until bulk is limited.
fn miss(bench: &mut Bench) -> u64 {
    for n in 0..12 {
        submit(bench, BULK, &format!("R{n}m+1m"));
    }
    for n in 0..30 {
        let first = submit(bench, LIGHT, &format!("R{}m+4k", 100 + n));
        bench.now += 5 * MS;
        bench.done(first);
    }
    let (queue, _) = bench.shard.queue_stats(DEVICE).unwrap();
    queue.targets.and_then(|targets| targets.limit).expect("bulk is limited")
}

#[test]
fn missed_and_held_requests_are_counted_by_export_and_tenant() {
    let mut bench = with_target();
    let limit = miss(&mut bench);
    let light = bench.shard.target_counts(DEVICE, LIGHT);
    assert_eq!((light.ended, light.missed, light.held), (30, 30, 0));
    let tenants = bench.shard.tenant_target_counts(DEVICE);
    assert_eq!(tenants[usize::from(TENANT.0)], light);
    assert_eq!(tenants.iter().map(|counts| counts.ended).sum::<u64>(), 30);
    assert_eq!(bench.shard.target_counts(DEVICE, BULK), Default::default());
    // The limit has room for some; the others wait.
    let more = 2 * (limit >> 20) + 4;
    for n in 0..more {
        submit(&mut bench, BULK, &format!("R{}m+1m", 200 + n));
    }
    let bulk = bench.shard.target_counts(DEVICE, BULK);
    assert!(bulk.held > 0 && bulk.held < more, "{bulk:?} of {more}");
    assert_eq!((bulk.held_at, bulk.held_for_us), (Some(Instant(bench.now)), 1_000));
    assert_eq!((bulk.ended, bulk.missed), (0, 0), "it has no target");
    bench.finish_from(0);
    // Another target: its requests are counted anew, those of the tenant go on.
    let control = Control::ExportTarget { export: LIGHT, target_us: 9_000 };
    bench.turn(&[Input::Control(control)]);
    let first = submit(&mut bench, LIGHT, "R900m+4k");
    bench.now += 5 * MS;
    bench.done(first);
    let light = bench.shard.target_counts(DEVICE, LIGHT);
    let tenant = bench.shard.tenant_target_counts(DEVICE)[usize::from(TENANT.0)];
    assert_eq!((light.ended, light.missed, tenant.missed), (1, 0, 30));
    let targets: Vec<_> = bench.shard.targets(DEVICE).collect();
    assert_eq!(targets, [(LIGHT, 9_000)]);
}

#[test]
fn pieces_of_a_large_request_are_no_small_requests() {
    let mut bench = Bench::with(|config: &mut ShardConfig| {
        config.devices[0].queue.max_sectors_kb = 64;
        config.exports = vec![ExportConfig { latency_target_us: 1_000, ..ExportConfig::default() }];
    });
    bench.turn(&[]);
    let first = submit(&mut bench, LIGHT, "R1m+256k");
    bench.now += 5 * MS;
    bench.finish_from(first);
    assert_eq!(bench.replies(), "1:ok");
    let counts = bench.shard.target_counts(DEVICE, LIGHT);
    assert_eq!((counts.ended, counts.missed), (0, 0), "its 64 KiB wait for each other");
    assert_eq!(bench.shard.smallest_latency(Instant(bench.now), DEVICE), None);
    let first = submit(&mut bench, LIGHT, "R1m+64k");
    bench.now += 5 * MS;
    bench.finish_from(first);
    assert_eq!(bench.shard.target_counts(DEVICE, LIGHT).missed, 1);
}

#[test]
fn smallest_latency_is_that_of_requests_on_the_idle_device() {
    let mut bench = with_target();
    let known = |bench: &Bench| bench.shard.smallest_latency(Instant(bench.now), DEVICE);
    bench.turn(&[]);
    let beside = submit(&mut bench, BULK, "R0+64k");
    bench.now += 10 * US;
    let small = submit(&mut bench, LIGHT, "R1m+4k");
    bench.now += 5 * US;
    bench.done(small);
    assert_eq!(known(&bench), None, "it did not find the device idle");
    bench.done(beside);
    for (export, word, us) in [(BULK, "R2m+1m", 20), (LIGHT, "R4m+64k", 90), (BULK, "R6m+4k", 70)] {
        bench.now += MS;
        let first = submit(&mut bench, export, word);
        bench.now += us * US;
        bench.finish_from(first);
    }
    assert_eq!(known(&bench), Some(70 * US), "of small requests, whose export does not matter");
    bench.now += 121 * SEC;
    assert_eq!(known(&bench), None, "it is long ago");
}

#[test]
fn smallest_latency_is_measured_without_targets_only_after_it_was_asked_for() {
    let mut bench = Bench::new(|_| {});
    let alone = |bench: &mut Bench| {
        bench.now += MS;
        let first = submit(bench, BULK, "R1m+4k");
        bench.now += 40 * US;
        bench.done(first);
        bench.shard.smallest_latency(Instant(bench.now), DEVICE)
    };
    assert_eq!((alone(&mut bench), alone(&mut bench)), (None, None));
    assert_eq!(bench.shard.watch_smallest_latency(Instant(bench.now), DEVICE), None);
    bench.turn(&[]);
    assert_eq!(alone(&mut bench), Some(40 * US));
    // A minute later nothing is measured any more, and what was known is soon too old.
    bench.now += 130 * SEC;
    assert_eq!((alone(&mut bench), alone(&mut bench)), (None, None));
}
