//! Limits allocate nothing for a request, whether it passes, waits or is withdrawn.

#[path = "support/counting.rs"]
mod counting;

use std::cell::Cell;

use counting::ALLOCATIONS;
use headworks_core::limits::{LimitKind, LimitTree, LimitedIo, Limits};
use headworks_core::{Instant, Op, ShardId};

#[test]
fn requests_under_limits_allocate_nothing() {
    let mut tree = LimitTree::new(32);
    let tenant = tree.add_group(LimitTree::ROOT, 100, 0);
    let mut leaves = Vec::new();
    for (index, node) in [LimitTree::ROOT, tenant].into_iter().enumerate() {
        let mut limits = Limits::default();
        limits.rates[LimitKind::BpsTotal as usize].average = 50_000_000 << index;
        limits.rates[LimitKind::IopsRead as usize].average = 10_000 << index;
        tree.set_limits(Instant(0), node, &limits);
    }
    for export in 0..4 {
        let node = tree.add_group(tenant, 100, export);
        leaves.extend((0..4).map(|leaf| tree.add_leaf(node, 100, 4 * export + leaf)));
    }
    let (mut waits, mut passed) = (vec![[false; 2]; leaves.len()], 0_u32);
    let before = ALLOCATIONS.with(Cell::get);
    for step in 0..50_000_u64 {
        let now = Instant(step * 20_000);
        let index = (step * 7 % 16) as usize;
        let op = if step % 3 == 0 { Op::Write } else { Op::Read };
        let io = LimitedIo::of(op, 4096 << (step % 5)).expect("reads and writes are limited");
        let waiting = &mut waits[index][io.direction as usize];
        if !*waiting {
            *waiting = !tree.admit(now, leaves[index], io);
            passed += u32::from(!*waiting);
        }
        while let Some(one) = tree.pop(now) {
            waits[one.owner as usize][one.direction as usize] = false;
            passed += 1;
        }
        if step % 1000 == 0 {
            tree.withdraw(now, leaves[index]);
            waits[index] = [false; 2];
        }
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    assert!(passed > 1000 && waits.iter().flatten().any(|waits| *waits), "{passed} passed");
}

/// Two shards that share a limit: messages and lessees are made once, and used again.
#[test]
fn leased_tokens_allocate_nothing() {
    let mut trees = [0, 1].map(|shard| {
        let mut tree = LimitTree::new(32);
        let mut limits = Limits::default();
        limits.rates[LimitKind::IopsTotal as usize].average = 100_000;
        tree.set_shards(2);
        tree.set_limits(Instant(0), LimitTree::ROOT, &limits);
        tree.set_home(Instant(0), LimitTree::ROOT, (shard == 1).then_some(ShardId(0)));
        tree
    });
    let leaves = trees.each_mut().map(|tree| tree.add_leaf(LimitTree::ROOT, 100, 0));
    let io = LimitedIo::of(Op::Read, 4096).expect("reads are limited");
    let (mut waits, mut passed, mut before, mut messages) = ([false; 2], [0_u32; 2], 0, 0);
    for step in 0..50_000_u64 {
        let now = Instant(step * 4000);
        if step == 1000 {
            before = ALLOCATIONS.with(Cell::get);
        }
        for shard in [0, 1] {
            if !waits[shard] {
                waits[shard] = !trees[shard].admit(now, leaves[shard], io);
                passed[shard] += u32::from(!waits[shard]);
            }
            while trees[shard].pop(now).is_some() {
                waits[shard] = false;
                passed[shard] += 1;
            }
            while let Some(sent) = trees[shard].next_outgoing() {
                messages += 1;
                let from = ShardId(shard as u16);
                trees[1 - shard].on_message(now, sent.node, from, sent.message);
            }
        }
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    // 0.2 s at 100,000 a second, in equal parts, and several requests for each message.
    assert!(passed.iter().all(|passed| passed.abs_diff(10_000) < 500), "{passed:?}");
    assert!(messages < 5000, "{messages} messages");
}
