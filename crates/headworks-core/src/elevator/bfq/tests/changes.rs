//! Tenants, and changes of options and tenants under load.

use super::*;

/// P31: the parts of a tenant's exports are those of its part, at both levels, on a disk and on flash.
#[test]
fn tenants_divide_the_device_and_their_exports_their_part() {
    // Exports 0 and 1 of tenant 0, 2 and 3 of tenant 1023, 4 of none.
    let flash = QueueOptions { queue_depth: 16, ..flash() };
    for (options, depth, len, seconds) in [(disk(), 4, 128 << 10, 60), (flash, 32, 16 << 10, 4)] {
        let client = |export| Client { export, depth, len, ..Client::default() };
        let clients: Vec<Client> = (0..5).map(client).collect();
        let mut world = World::new(options, &clients);
        for (export, tenant) in [(0, 0), (1, 0), (2, 1023), (3, 1023)] {
            world.move_to(export, TenantId(tenant));
        }
        for (export, weight) in [(1, 300), (3, 9_900), (2, 9_900), (4, 300)] {
            world.weigh(export, weight);
        }
        world.weigh_tenant(0, 400);
        world.weigh_tenant(1023, 300);
        world.run(seconds * SEC);
        assert_shares(&world.bytes(), &[10, 30, 15, 15, 30], 30);
    }
}

/// An export that moves under load has the share of its new tenant from then on.
#[test]
fn moved_export_shares_with_its_new_siblings() {
    let client = |export| Client { export, depth: 8, ..Client::default() };
    let mut world = World::new(disk(), &[0, 1, 2].map(client));
    world.move_to(0, TenantId(5));
    world.move_to(1, TenantId(5));
    world.run(60 * SEC);
    let before = world.bytes();
    assert_shares(&before, &[1, 1, 2], 50);
    world.move_to(1, TenantId::NONE);
    world.weigh_tenant(5, 200);
    world.run(120 * SEC);
    let since: Vec<u64> = world.bytes().iter().zip(&before).map(|(now, was)| now - was).collect();
    assert_shares(&since, &[2, 1, 1], 50);
}

/// P32: exports move between tenants, and weights of both change, 10^5 times.
#[test]
fn edits_of_tenants_under_load_keep_the_invariants() {
    let places = [TenantId(0), TenantId(1), TenantId(1023), TenantId::NONE];
    for (seed, options) in [(1, raising(disk())), (2, flash()), (3, disk()), (4, raising(flash()))]
    {
        let mut prng = Prng::new(seed);
        let clients: Vec<Client> = (0..12_u16)
            .map(|n| Client {
                export: n % 6,
                depth: [1, 1, 4][usize::from(n % 3)],
                len: 4096 << (n % 4),
                random: n % 2 == 0,
                think_ns: [10 * US, 3 * MS, SEC][usize::from(n % 5 / 2)],
                flags: [BioFlags::SYNC, BioFlags::SYNC, BioFlags::NONE][usize::from(n % 3)],
                op: [Op::Read, Op::Write][usize::from(n % 3 / 2)],
                ..Client::default()
            })
            .collect();
        let mut world = World::new(options, &clients);
        let mut tenant_of = [TenantId::NONE; 6];
        for edit in 0..8_000 {
            let export = prng.below(6) as u16;
            let weight = prng.between(1, 10_000) as u16;
            match prng.below(4) {
                0 => world.weigh(export, weight),
                1 => world.weigh_tenant(places[prng.below(3) as usize].0, weight),
                _ => {
                    let tenant = places[prng.below(4) as usize];
                    tenant_of[usize::from(export)] = tenant;
                    world.move_to(export, tenant);
                }
            }
            world.bfq.tree.check();
            world.bfq.places.check(&world.bfq.tree);
            if edit % 512 == 0 {
                // A slot ends within this time, and with it a move that had to wait for it.
                let moved = world.done.iter().map(|done| done.requests).sum::<u64>();
                let end = world.now + SEC;
                world.run(end);
                let all = world.done.iter().map(|done| done.requests).sum::<u64>();
                assert!(all > moved, "edit {edit}: nothing was served for a second");
            } else {
                let end = world.now + prng.between(US, 400 * US);
                world.run(end);
            }
        }
        if let Some(slot) = world.bfq.slot.take() {
            world.bfq.slot = Some(slot);
            world.bfq.end_slot(Instant(world.now), &world.slots, SlotEnd::Preempted);
        }
        for (export, tenant) in (0..).zip(tenant_of) {
            assert_eq!(world.bfq.places.tenant_of(ExportId(export)), tenant);
        }
    }
}

#[test]
fn other_options_keep_the_rate_and_end_raising() {
    let bulk = Client { most: 4000, ..Client::default() };
    let fresh = Client { most: 50, starts: 9_500 * MS, ..bulk };
    let mut world = World::new(raising(disk()), &[bulk, fresh]);
    let before = world.bfq.rate.peak();
    world.run(10 * SEC);
    let learned = world.bfq.rate.peak();
    assert!(learned > before && world.bfq.places[1].raise.is_raised(), "{before} {learned}");
    let now = Instant(world.now);
    assert!(world.bfq.set_options(now, &disk()));
    assert!(world.bfq.rate.peak() == learned && !world.bfq.places[1].raise.is_raised());
    assert!(!world.bfq.settings.low_latency);
    assert!(!world.bfq.set_options(now, &flash()), "another kind of device begins anew");
    let strict = BfqOptions { strict_guarantees: true, ..disk().bfq };
    assert!(world.bfq.set_options(now, &QueueOptions { bfq: strict, ..disk() }));
    world.clients.push(Client { export: 1, depth: 8, most: 100, ..Client::default() });
    world.done.push(Done::default());
    (0..8).for_each(|n| _ = world.due.insert((world.now, n, 2)));
    let end = world.now + 20 * SEC;
    while world.now < end {
        let at = world.now + 50 * MS;
        world.run(at);
        assert!(world.device.len() <= 1, "one request at a time");
    }
    assert_eq!(world.done[2].requests, 100);
}
