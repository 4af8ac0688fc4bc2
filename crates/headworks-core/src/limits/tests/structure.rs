//! Charges to all nodes or none, and changes of the tree while requests wait.

use super::*;

fn read() -> LimitedIo {
    LimitedIo::of(Op::Read, 4096).unwrap()
}

/// Server, tenant and export, limited, with a connection.
fn three_levels() -> (LimitTree, [NodeId; 3], NodeId) {
    let mut tree = LimitTree::new(8);
    let tenant = tree.add_group(LimitTree::ROOT, 100, 0);
    let export = tree.add_group(tenant, 100, 0);
    let leaf = tree.add_leaf(export, 100, 5);
    (tree, [LimitTree::ROOT, tenant, export], leaf)
}

#[test]
fn request_is_charged_at_all_nodes_or_none() {
    for refuses in 0..3 {
        let (mut tree, nodes, leaf) = three_levels();
        for (index, node) in nodes.into_iter().enumerate() {
            let rate = if index == refuses { 10 } else { 1_000_000 };
            tree.set_limits(Instant(0), node, &limit(LimitKind::IopsTotal, rate));
        }
        assert!(tree.admit(Instant(0), leaf, read()));
        let (holder, kind) = tree.holder(leaf, LimitDirection::Read).unwrap();
        assert_eq!((holder, kind), (nodes[refuses], LimitKind::IopsTotal));
        let levels =
            |tree: &LimitTree| format!("{:?}", nodes.map(|node| tree.report(Instant(0), node)));
        let before = levels(&tree);
        let wait = tree.wait_ns(leaf, LimitDirection::Read);
        assert_eq!(wait, 100 * MS - 4 * MS);
        assert!(!tree.admit(Instant(0), leaf, read()), "node {refuses} refuses");
        assert_ne!(levels(&tree), before, "it is counted there");
        assert_eq!(tree.wait_ns(leaf, LimitDirection::Read), wait, "a refusal charges nothing");
        assert!(tree.pop(Instant(wait - 1)).is_none());
        let passed = tree.pop(Instant(wait)).unwrap();
        assert_eq!((passed.owner, passed.direction), (5, LimitDirection::Read));
        assert!(tree.pop(Instant(wait)).is_none(), "charged once");
        assert_eq!(tree.next_timeout(), None);
        let report = tree.report(Instant(wait), nodes[refuses]);
        assert_eq!((report.limited, report.limited_ns, report.is_holding), (1, wait, false));
        assert_eq!(report.kind, Some(LimitKind::IopsTotal));
    }
}

#[test]
fn cancelled_request_is_not_charged() {
    let (mut tree, [root, ..], leaf) = three_levels();
    tree.set_limits(Instant(0), root, &limit(LimitKind::IopsTotal, 10));
    assert!(tree.admit(Instant(0), leaf, read()) && !tree.admit(Instant(0), leaf, read()));
    tree.withdraw(Instant(MS), leaf);
    assert_eq!(tree.next_timeout(), None);
    assert!(tree.admit(Instant(96 * MS), leaf, read()), "only the first one was charged");
}

#[test]
fn removed_node_lets_its_waiters_pass() {
    let (mut tree, [_, tenant, export], leaf) = three_levels();
    tree.set_limits(Instant(0), export, &limit(LimitKind::IopsTotal, 1));
    let others: Vec<NodeId> = (0..10).map(|index| tree.add_leaf(export, 100, 10 + index)).collect();
    assert!(tree.admit(Instant(0), leaf, read()));
    for other in &others {
        assert!(!tree.admit(Instant(0), *other, read()));
        assert!(!tree.admit(Instant(0), *other, LimitedIo::of(Op::Write, 512).unwrap()));
    }
    let mut passed = Vec::new();
    tree.release(Instant(1), export, |one| passed.push((one.owner, one.direction as u8)));
    passed.sort_unstable();
    let expected: Vec<(u32, u8)> = (10..20).flat_map(|owner| [(owner, 0), (owner, 1)]).collect();
    assert_eq!(passed, expected);
    assert_eq!(tree.next_timeout(), None);
    for gone in others.into_iter().chain([leaf, export, tenant]) {
        tree.remove(Instant(2), gone);
    }
    let export = tree.add_group(LimitTree::ROOT, 100, 0);
    let leaf = tree.add_leaf(export, 100, 0);
    assert!(tree.admit(Instant(3), leaf, read()) && tree.admit(Instant(3), leaf, read()));
}

#[test]
fn moved_export_waits_for_its_new_tenant() {
    let (mut tree, [_, first, export], leaf) = three_levels();
    let second = tree.add_group(LimitTree::ROOT, 100, 0);
    tree.set_limits(Instant(0), first, &limit(LimitKind::IopsTotal, 1));
    tree.set_limits(Instant(0), second, &limit(LimitKind::IopsTotal, 1000));
    assert!(tree.admit(Instant(0), leaf, read()) && !tree.admit(Instant(0), leaf, read()));
    tree.set_parent(Instant(0), export, second);
    assert!(tree.pop(Instant(0)).is_some(), "the other tenant's limit is not used up");
    tree.set_parent(Instant(0), export, first);
    assert!(!tree.admit(Instant(0), leaf, read()));
}

/// 100,000 random steps: requests, times, rates, moves and removals. Every request passes once and none is forgotten.
#[test]
fn random_changes_lose_no_request() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let mut tree = LimitTree::new(16);
        let mut tenants: Vec<NodeId> =
            (0..3).map(|_| tree.add_group(LimitTree::ROOT, 100, 0)).collect();
        tenants.push(LimitTree::ROOT);
        let exports: Vec<NodeId> =
            (0..5).map(|index| tree.add_group(tenants[index % 4], 100, 0)).collect();
        let mut leaves: Vec<NodeId> =
            (0..12).map(|index| tree.add_leaf(exports[index % 5], 100, index as u32)).collect();
        let (mut now, mut waits) = (0, [[false; 2]; 12]);
        let nodes: Vec<NodeId> = tenants.iter().chain(&exports).copied().collect();
        for _ in 0..5000 {
            now += prng.below(2 * MS);
            let (index, at) = (prng.below(12) as usize, Instant(now));
            match prng.below(20) {
                0 => {
                    let kind = LimitKind::ALL[prng.below(6) as usize];
                    let rate = kind.least() << prng.below(16);
                    let node = nodes[prng.below(9) as usize];
                    let limits =
                        if prng.below(3) == 0 { Limits::default() } else { limit(kind, rate) };
                    tree.set_limits(at, node, &limits);
                }
                1 => {
                    let tenant = tenants[prng.below(4) as usize];
                    tree.set_parent(at, exports[prng.below(5) as usize], tenant);
                }
                2 => {
                    tree.remove(at, leaves[index]);
                    let export = exports[prng.below(5) as usize];
                    leaves[index] = tree.add_leaf(export, 100, index as u32);
                    waits[index] = [false; 2];
                }
                3 => tree.set_weight(nodes[prng.below(9) as usize], 1 + prng.below(1000) as u32),
                4 => {
                    tree.withdraw(at, leaves[index]);
                    waits[index] = [false; 2];
                }
                op => {
                    let op = if op % 2 == 0 { Op::Read } else { Op::Write };
                    let io = LimitedIo::of(op, 512 << prng.below(10)).unwrap();
                    let waiting = &mut waits[index][io.direction as usize];
                    if !*waiting {
                        *waiting = !tree.admit(at, leaves[index], io);
                    }
                }
            }
            while let Some(passed) = tree.pop(at) {
                let waiting = &mut waits[passed.owner as usize][passed.direction as usize];
                assert!(std::mem::take(waiting), "only a waiting request passes");
            }
            let any = waits.iter().flatten().any(|waits| *waits);
            assert_eq!(tree.next_timeout().is_some(), any, "waiters have a due instant");
        }
        for node in nodes {
            tree.set_limits(Instant(now), node, &Limits::default());
        }
        while let Some(passed) = tree.pop(Instant(now)) {
            waits[passed.owner as usize][passed.direction as usize] = false;
        }
        assert_eq!(waits, [[false; 2]; 12], "without limits everything passes");
    }
}
