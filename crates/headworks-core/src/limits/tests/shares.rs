//! Children of a limited node: parts by weight, and a light client beside a heavy one.

use super::*;

const LIMIT: u64 = 20_000_000;

/// A world with exports of the given weights under one limit of the server, each with one client.
fn under_one_limit(exports: &[(u32, Client)]) -> World {
    let mut world = World::new(200_000);
    world.tree.set_limits(Instant(0), LimitTree::ROOT, &limit(LimitKind::BpsTotal, LIMIT));
    for (weight, client) in exports {
        let export = world.tree.add_group(LimitTree::ROOT, *weight, 0);
        world.client(export, *client);
    }
    world
}

fn assert_share(world: &World, client: usize, share: f64, tolerance: f64, seconds: u64) {
    let got = world.bytes_of(client) as f64 / (LIMIT * seconds) as f64;
    assert!((got / share - 1.0).abs() < tolerance, "client {client} got {got:.4}, not {share:.4}");
}

#[test]
fn light_client_gets_its_part_beside_a_heavy_one() {
    let heavy = Client::new(Op::Read, 65_536, 16);
    let light = Client::new(Op::Read, 4096, 1);
    let mut world = under_one_limit(&[(100, heavy), (100, light)]);
    world.run(0, 10 * SEC);
    assert_share(&world, 0, 0.5, 0.03, 10);
    assert_share(&world, 1, 0.5, 0.03, 10);
}

#[test]
fn light_writer_gets_its_part_beside_a_heavy_reader() {
    let heavy = Client::new(Op::Read, 65_536, 16);
    let light = Client::new(Op::Write, 4096, 1);
    let mut world = under_one_limit(&[(100, heavy), (100, light)]);
    world.run(0, 10 * SEC);
    assert_share(&world, 0, 0.5, 0.03, 10);
    assert_share(&world, 1, 0.5, 0.03, 10);
}

#[test]
fn client_below_its_part_does_not_wait() {
    let heavy = Client::new(Op::Read, 65_536, 16);
    let light = Client { think_ns: 1_700_000, ..Client::new(Op::Read, 4096, 1) };
    let mut world = under_one_limit(&[(100, heavy), (100, light)]);
    world.run(0, 10 * SEC);
    assert_eq!(world.p99_wait_ns(1), 0, "500 a second of 2441");
    assert!(world.count_of(1) >= 4990);
    assert_share(&world, 0, 0.8976, 0.01, 10);
}

#[test]
fn fifty_one_children_get_a_part_each() {
    let mut all = vec![(100, Client::new(Op::Read, 65_536, 16))];
    all.extend([(100, Client::new(Op::Read, 4096, 1)); 50]);
    let mut world = under_one_limit(&all);
    world.run(0, 20 * SEC);
    for client in 0..51 {
        assert_share(&world, client, 1.0 / 51.0, 0.03, 20);
    }
}

#[test]
fn weights_divide_a_limit() {
    let client = Client::new(Op::Write, 16_384, 8);
    let mut world = under_one_limit(&[(100, client), (200, client), (400, client), (1000, client)]);
    world.run(0, 10 * SEC);
    for (index, weight) in [100.0, 200.0, 400.0, 1000.0].into_iter().enumerate() {
        assert_share(&world, index, weight / 1700.0, 0.02, 10);
    }
    let admissions: Vec<(u64, u128)> =
        world.admissions.iter().map(|one| (one.at, u128::from(one.bytes) * SEC as u128)).collect();
    let above = u128::from(LIMIT) * u128::from(8 * MS) + 16_384 * u128::from(SEC);
    assert_bounds(&admissions, LIMIT, above, None);
}

/// A tenant's exports divide its limit, and that limit divides no other tenant's.
#[test]
fn tenant_between_server_and_exports_is_limited_as_a_whole() {
    let mut world = World::new(200_000);
    let tenant = world.tree.add_group(LimitTree::ROOT, 100, 0);
    world.tree.set_limits(Instant(0), tenant, &limit(LimitKind::BpsTotal, LIMIT));
    for _ in 0..2 {
        let export = world.tree.add_group(tenant, 100, 0);
        world.client(export, Client::new(Op::Read, 65_536, 16));
    }
    let free = world.tree.add_group(LimitTree::ROOT, 100, 0);
    world.client(free, Client::new(Op::Read, 65_536, 16));
    world.run(0, 5 * SEC);
    assert_share(&world, 0, 0.5, 0.02, 5);
    assert_share(&world, 1, 0.5, 0.02, 5);
    // 16 at a time, each 0.3 ms.
    assert_eq!(world.count_of(2), 16 * (5 * SEC).div_ceil(300_000));
}

#[test]
fn idle_sibling_keeps_no_claim() {
    let heavy = Client::new(Op::Read, 65_536, 16);
    let mut world = under_one_limit(&[(100, heavy), (10_000, heavy)]);
    world.clients[1].client.depth = 0;
    world.events.retain(|(_, _, client)| *client == 0);
    world.run(0, 5 * SEC);
    assert_share(&world, 0, 1.0, 0.01, 5);
}
