//! A limited client does not hold others back: neighbours under the same node, other directions, other connections.

use super::*;

/// An export of one I/O a second with 1000 requests, beside an export without a limit under a limited server.
#[test]
fn export_that_waits_for_its_limit_delays_no_sibling() {
    let run = |is_beside: bool| {
        let mut world = World::new(100_000);
        world.tree.set_limits(
            Instant(0),
            LimitTree::ROOT,
            &limit(LimitKind::BpsTotal, 200_000_000),
        );
        let slow = world.tree.add_group(LimitTree::ROOT, 10_000, 0);
        world.tree.set_limits(Instant(0), slow, &limit(LimitKind::IopsTotal, 1));
        let other = world.tree.add_group(LimitTree::ROOT, 100, 0);
        let light = world.client(other, Client::new(Op::Read, 4096, 4));
        world.client(other, Client::new(Op::Write, 65_536, 64));
        if is_beside {
            world.client(slow, Client::new(Op::Read, 65_536, 1000));
        }
        world.run(0, 3 * SEC);
        (world.count_of(light), world.p99_wait_ns(light), world.bytes_of(1))
    };
    let (alone, beside) = (run(false), run(true));
    let ratio = |a: u64, b: u64| (a as f64 / b.max(1) as f64 - 1.0).abs();
    assert!(ratio(beside.0, alone.0) < 0.01, "{alone:?} {beside:?}");
    assert!(ratio(beside.2, alone.2) < 0.01, "{alone:?} {beside:?}");
    assert!(beside.1 <= alone.1 + alone.1 / 100, "{alone:?} {beside:?}");
}

#[test]
fn limit_of_reads_leaves_writes_alone() {
    let mut world = World::new(0);
    let export = world.tree.add_group(LimitTree::ROOT, 100, 0);
    world.tree.set_limits(Instant(0), export, &limit(LimitKind::IopsRead, 1));
    world.client(export, Client::new(Op::Read, 4096, 100));
    let writer = world.client(export, Client::new(Op::Write, 4096, 1));
    world.run(0, SEC);
    assert_eq!(world.count_of(writer), SEC.div_ceil(300_000));
    assert_eq!(world.p99_wait_ns(writer), 0);
    assert!(world.count_of(0) <= 2);
}

/// Both directions wait for a total limit: neither starves, though reads arrive without end.
#[test]
fn write_beside_endless_reads_of_its_connection_is_not_starved() {
    let mut world = World::new(0);
    world.tree.set_limits(Instant(0), LimitTree::ROOT, &limit(LimitKind::IopsTotal, 1000));
    let leaf = world.tree.add_leaf(LimitTree::ROOT, 100, 0);
    let [read, write] = [Op::Read, Op::Write].map(|op| LimitedIo::of(op, 4096).unwrap());
    let (mut waits, mut counts) = ([false; 2], [0; 2]);
    for step in 0..20_000_u64 {
        let now = Instant(step * 100_000);
        for io in [read, write] {
            let direction = io.direction as usize;
            if !waits[direction] {
                let passes = world.tree.admit(now, leaf, io);
                waits[direction] = !passes;
                counts[direction] += u32::from(passes);
            }
        }
        while let Some(passed) = world.tree.pop(now) {
            waits[passed.direction as usize] = false;
            counts[passed.direction as usize] += 1;
        }
    }
    assert!(counts[0].abs_diff(counts[1]) <= 20, "{counts:?}");
    assert!((counts[0] + counts[1]).abs_diff(2000) <= 10, "{counts:?}");
}

#[test]
fn connections_of_an_export_share_its_limit_equally() {
    let mut world = World::new(100_000);
    let export = world.tree.add_group(LimitTree::ROOT, 100, 0);
    world.tree.set_limits(Instant(0), export, &limit(LimitKind::IopsTotal, 1000));
    for depth in [1, 1, 2, 8, 32, 128] {
        world.client(export, Client::new(Op::Read, 4096, depth));
    }
    world.run(0, 6 * SEC);
    for client in 0..6 {
        let count = world.count_of(client);
        assert!(count.abs_diff(1000) <= 25, "client {client}: {count}");
    }
}
