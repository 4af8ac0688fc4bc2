//! Shares of a device: requests of connections and exports, on the owner and from another shard.

use headworks_core::device_cost::DeviceCost;
use headworks_core::prng::Prng;
use headworks_core::time::MS;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    CacheOptions, Control, DeviceConfig, DeviceId, ExportConfig, ExportId, Input, Message,
    QueueOptions, ShardConfig, ShardId, TenantId, VolumeConfig, VolumeOptions,
};

use crate::bench::Bench;

/// Returns a bio of a connection of an export.
fn bio(bench: &mut Bench, connection: u32, export: u16, word: &str) -> Input {
    let Input::Bio(mut bio) = bench.bio(word) else { unreachable!() };
    (bio.id.connection, bio.id.export) = (connection, ExportId(export));
    Input::Bio(bio)
}

/// Returns the connection of each command that was sent.
fn connections(bench: &Bench, from: usize) -> Vec<u32> {
    let bio = |n: usize| bench.command(n).segments[0].bio;
    (from..bench.commands()).map(|n| bio(n).connection).collect()
}

/// Creates shard 1 of two with volume 1, whose device belongs to shard 0, and exports with these weights.
fn lessee(weights: &[u16], change: impl FnOnce(&mut QueueOptions)) -> Bench {
    let mut queue = QueueOptions::default();
    change(&mut queue);
    let options = VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() };
    let volume = |home| VolumeConfig { home: ShardId(home), device: DeviceId(0), options };
    Bench::of(ShardConfig {
        id: ShardId(1),
        shards: 2,
        bios_max: 256,
        devices: vec![DeviceConfig { owner: ShardId(0), queue }],
        volumes: vec![volume(0), volume(1)],
        exports: weights
            .iter()
            .map(|&weight| ExportConfig { weight, ..ExportConfig::default() })
            .collect(),
        tenants: Vec::new(),
        cache: CacheOptions::default(),
        dirty: DirtyOptions::default(),
        spare: headworks_core::SpareSlots::default(),
    })
}

/// Returns the last lease request: tags, bytes, weight.
fn wanted(bench: &mut Bench) -> Option<(u16, u32, u16)> {
    bench.outbox.drain(..).filter_map(|(_, message)| want_of(message)).next_back()
}

fn want_of(message: Message) -> Option<(u16, u32, u16)> {
    match message {
        Message::TagWant { want, bytes, weight, .. } => Some((want, bytes, weight)),
        _ => None,
    }
}

/// Returns the connections of the bios that were sent to the owner.
fn gone_over(bench: &mut Bench) -> Vec<u32> {
    let connection = |(_, message)| match message {
        Message::Bio { bio, .. } => Some(bio.id.connection),
        _ => None,
    };
    bench.outbox.drain(..).filter_map(connection).collect()
}

fn grant(bench: &mut Bench, count: u16) {
    let message = Message::TagGrant { device: DeviceId(0), count, cost: DeviceCost::default() };
    bench.turn(&[Input::Message { from: ShardId(0), message }]);
}

#[test]
fn large_requests_never_delay_light_client() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (4, 4));
    let heavy: Vec<Input> =
        (0..40).map(|n| bio(&mut bench, 1, 0, &format!("R{}m+128k", 2 * n))).collect();
    bench.turn(&heavy);
    let light = bio(&mut bench, 2, 0, "R500m+4k");
    bench.turn(&[light]);
    bench.done(0);
    assert_eq!(connections(&bench, 0), [1, 1, 1, 1, 2]);
    bench.finish_from(1);
    bench.assert_quiet();
}

/// Closed loops of 200 equal clients on a device whose commands take 5 ms and up to `jitter` percent more; returns the longest
/// wait in commands.
fn longest_wait(jitter: u64) -> u64 {
    const CLIENTS: u32 = 200;
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (2, 1));
    let mut prng = Prng::new(1);
    let ask = |bench: &mut Bench, client: u32| {
        let write = bio(bench, client, 0, &format!("W{}m+4k", client * 7 % 900));
        bench.turn(&[write]);
    };
    (0..CLIENTS).for_each(|client| ask(&mut bench, client));
    let mut asked = [0; CLIENTS as usize];
    let mut longest = 0;
    for done in 0..10 * CLIENTS as usize {
        bench.pass(5 * MS * (100 + prng.below(jitter + 1)) / 100);
        let client = bench.command(done).segments[0].bio.connection;
        bench.done(done);
        longest = longest.max(done as u64 + 1 - asked[client as usize]);
        asked[client as usize] = done as u64 + 1;
        ask(&mut bench, client);
    }
    longest
}

#[test]
fn equal_clients_wait_two_rounds_at_most_while_costs_are_learned() {
    for jitter in [0, 20, 60] {
        let longest = longest_wait(jitter);
        assert!(longest <= 400, "jitter {jitter}: {longest} commands of 200 clients");
    }
}

#[test]
fn merged_waiter_is_charged_for_its_full_size() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (1, 1));
    let first = bio(&mut bench, 9, 0, "R900m+4k");
    bench.turn(&[first]);
    // Both wait; each request of connection 1 becomes 1 MiB long, those of connection 2 stay 128 KiB.
    for n in 0..3 {
        for part in 0..8 {
            let offset = 2048 * n + 128 * part;
            let piece = bio(&mut bench, 1, 0, &format!("R{offset}k+128k"));
            bench.turn(&[piece]);
        }
    }
    let other: Vec<Input> =
        (0..24).map(|n| bio(&mut bench, 2, 0, &format!("R{}m+128k", 100 + 2 * n))).collect();
    bench.turn(&other);
    bench.finish_from(0);
    let sent = connections(&bench, 1);
    let large: Vec<usize> = (0..sent.len()).filter(|&at| sent[at] == 1).collect();
    assert_eq!(sent.len(), 3 + 24);
    // Charged for their original size, all three would be served after three of the other's.
    assert!(large[1] >= 8 && large[2] >= 16, "{sent:?}");
    bench.assert_quiet();
}

#[test]
fn long_discard_is_not_delayed_by_its_length() {
    let mut bench = Bench::new(|q| {
        (q.nr_requests, q.queue_depth) = (1, 1);
        q.discard = true;
    });
    let heavy: Vec<Input> =
        (0..40).map(|n| bio(&mut bench, 1, 0, &format!("R{}m+128k", 2 * n))).collect();
    bench.turn(&heavy);
    let discard = bio(&mut bench, 2, 0, "D512m+256m");
    bench.turn(&[discard]);
    for n in 0..4 {
        bench.done(n);
    }
    let sent = bench.sent();
    assert!(sent.contains("D512m"), "{sent}");
}

#[test]
fn lease_request_reports_bytes_and_weights() {
    let mut bench = lessee(&[300, 500, 10_000], |_| ());
    let inputs = [
        bio(&mut bench, 1, 0, "v1:R0+4k"),
        bio(&mut bench, 1, 0, "v1:R10m+60k"),
        bio(&mut bench, 2, 1, "v1:R20m+32k"),
    ];
    bench.turn(&inputs);
    assert_eq!(wanted(&mut bench), Some((3, 96 << 10, 800)));
    grant(&mut bench, 3);
    assert_eq!(gone_over(&mut bench).len(), 3);
    // More than one lease request may ask for: its part of the bytes. Changed weights count from now on.
    for export in [0, 2] {
        bench.control(Control::Weight { export: ExportId(export), weight: 9_000 });
    }
    let many: Vec<Input> = (0..64)
        .map(|n| bio(&mut bench, n, [0, 2][n as usize % 2], &format!("v1:R{n}m+8k")))
        .collect();
    bench.turn(&many);
    assert_eq!(wanted(&mut bench), Some((32, 256 << 10, 18_000)));
}

#[test]
fn lease_request_is_for_the_tenant_of_the_first_waiter() {
    let mut bench = lessee(&[300, 500, 200], |_| ());
    for (export, tenant) in [(0, 7), (2, 7)] {
        let (export, tenant) = (ExportId(export), TenantId(tenant));
        bench.control(Control::ExportTenant { export, tenant });
    }
    bench.control(Control::TenantWeight { tenant: TenantId(7), weight: 10_000 });
    let payer = |bench: &mut Bench| {
        let of = |message| match message {
            Message::TagWant { want, bytes, tenant, weight, .. } => {
                Some((want, bytes, tenant, weight))
            }
            _ => None,
        };
        bench.outbox.drain(..).filter_map(|(_, message)| of(message)).next_back()
    };
    let inputs = [
        bio(&mut bench, 1, 0, "v1:R0+4k"),
        bio(&mut bench, 2, 2, "v1:R10m+8k"),
        bio(&mut bench, 3, 1, "v1:R20m+16k"),
    ];
    bench.turn(&inputs);
    // The tenant's two exports wait, and only they are asked for.
    assert_eq!(payer(&mut bench), Some((2, 12 << 10, TenantId(7), 500)));
    // The tags serve the waiters in this shard's order: the tenant's first, then the export without one.
    grant(&mut bench, 2);
    assert_eq!(payer(&mut bench), Some((1, 8 << 10, TenantId(7), 200)));
    grant(&mut bench, 1);
    // A moved export uses the share of its new tenant.
    bench.control(Control::ExportTenant { export: ExportId(0), tenant: TenantId(1023) });
    bench.control(Control::TenantWeight { tenant: TenantId(1023), weight: 9 });
    let message = Message::TagRevoke { device: DeviceId(0) };
    bench.turn(&[Input::Message { from: ShardId(0), message }]);
    let moved = bio(&mut bench, 1, 0, "v1:R30m+4k");
    bench.turn(&[moved]);
    assert_eq!(payer(&mut bench), Some((1, 4 << 10, TenantId(1023), 300)));
}

#[test]
fn lease_request_weight_saturates() {
    let mut bench = lessee(&[10_000; 7], |_| ());
    let inputs: Vec<Input> =
        (0..7).map(|n| bio(&mut bench, 1, n, &format!("v1:R{n}m+4k"))).collect();
    bench.turn(&inputs[..6]);
    assert_eq!(wanted(&mut bench), Some((6, 24 << 10, 60_000)));
    grant(&mut bench, 6);
    bench.turn(&[Input::Message {
        from: ShardId(0),
        message: Message::TagRevoke { device: DeviceId(0) },
    }]);
    bench.turn(&inputs);
    assert_eq!(wanted(&mut bench), Some((7, 28 << 10, u16::MAX)));
}

#[test]
fn leased_tags_are_shared_by_weight() {
    let mut bench = lessee(&[300, 500, 10_000], |_| ());
    let heavy: Vec<Input> =
        (0..30).map(|n| bio(&mut bench, 1, 0, &format!("v1:R{n}m+128k"))).collect();
    bench.turn(&heavy);
    let others = [bio(&mut bench, 2, 0, "v1:R100m+128k"), bio(&mut bench, 3, 0, "v1:R200m+4k")];
    bench.turn(&others);
    bench.outbox.clear();
    grant(&mut bench, 4);
    assert_eq!(
        gone_over(&mut bench),
        [3, 1, 2, 1],
        "new flows are served first, light ones before others"
    );
}

#[test]
fn large_remote_bio_is_not_overtaken_while_gathering() {
    let mut bench = lessee(&[300, 500, 10_000], |q| q.max_sectors_kb = 128);
    let large = bio(&mut bench, 1, 0, "v1:R0+512k");
    bench.turn(&[large]);
    assert_eq!(wanted(&mut bench), Some((4, 512 << 10, 300)));
    // The owner always grants all requested tags; the lessee must be right even if it does not.
    let small = bio(&mut bench, 2, 0, "v1:R100m+4k");
    bench.turn(&[small]);
    grant(&mut bench, 3);
    let said: Vec<Message> = bench.outbox.drain(..).map(|(_, message)| message).collect();
    assert_eq!(said.iter().filter_map(|&m| want_of(m)).next_back(), Some((5, 516 << 10, 300)));
    assert_eq!(said.len(), 1, "{said:?}");
    grant(&mut bench, 5);
    assert_eq!(gone_over(&mut bench), [1, 2]);
}
