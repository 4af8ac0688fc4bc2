//! Tests of service in slots: invariants, lag, return of emptied leaves, classes, and a fluid model.

use super::*;
use crate::prng::Prng;
use crate::shares::ShareState;

/// Budgets and requests of these tests are at most this.
const MOST: u64 = 1 << 20;

impl ShareTree {
    /// Checks the invariants of every group against its nodes.
    pub(crate) fn check(&self) {
        let mut weights = vec![0; self.groups.len()];
        let mut in_service = vec![0; self.groups.len()];
        for id in 1..self.nodes.len() as u32 {
            let node = &self.nodes[id as usize];
            let group = self.home(id);
            let now = self.groups[group].virtual_time;
            match node.state {
                ShareState::Eligible => {
                    assert!(!is_before(now, node.start), "eligible: start <= V")
                }
                ShareState::Pending => assert!(is_before(now, node.start), "pending: start > V"),
                ShareState::InService => {
                    in_service[group] += 1;
                    assert_eq!(self.groups[group].in_service, id);
                }
                ShareState::Idle | ShareState::Forgotten => assert_eq!(node.service, 0),
            }
            if node.state != ShareState::Forgotten {
                weights[group] += u64::from(node.weight);
            }
            if node.group != NIL {
                let active = self.groups_of(node.group).any(|below| {
                    self.groups[below].is_active() || self.groups[below].in_service != NIL
                });
                assert_eq!(active, node.is_active() || node.state == ShareState::InService);
            }
        }
        for (group, entry) in self.groups.iter().enumerate() {
            assert_eq!(entry.weights, weights[group]);
            assert!(in_service[group] <= 1 && self.is_sound(group));
        }
    }

    fn times(&self) -> Vec<u64> {
        self.groups.iter().map(|group| group.virtual_time).collect()
    }
}

/// A random tree of `depth` levels of groups, and its leaves.
fn random_tree(prng: &mut Prng, depth: usize, begin_at: u64) -> (ShareTree, Vec<ShareId>) {
    let mut tree = ShareTree::in_slots(64, 64);
    let mut groups = vec![ShareTree::ROOT];
    for _ in 1..depth {
        let parent = groups[prng.below(groups.len() as u64) as usize];
        groups.push(tree.add_group(parent, prng.between(1, 10_000) as u32, 0));
    }
    let leaves = (0..12).map(|owner| {
        let parent = groups[prng.below(groups.len() as u64) as usize];
        let class = [0, 1, 1, 1, 2][prng.below(5) as usize];
        tree.add_leaf_of(parent, class, prng.between(1, 10_000) as u32, owner)
    });
    let leaves = leaves.collect();
    tree.begin_at(begin_at);
    (tree, leaves)
}

/// Makes random calls that the rules allow; returns the owners of the slots in order.
fn run(seed: u64, steps: u64, begin_at: u64) -> Vec<u32> {
    let mut prng = Prng::new(seed);
    let depth = prng.between(1, 5) as usize;
    let (mut tree, leaves) = random_tree(&mut prng, depth, begin_at);
    let mut current = None;
    let mut order = Vec::new();
    let mut times = tree.times();
    let mut now = 0;
    for _ in 0..steps {
        let leaf = leaves[prng.below(leaves.len() as u64) as usize];
        let waits = tree.nodes[leaf as usize].is_active();
        let cost = prng.between(1, MOST);
        now += prng.below(20 * MS);
        match prng.below(10) {
            0..=2 if !waits && current != Some(leaf) => {
                if prng.below(2) == 0 {
                    tree.activate(leaf, cost);
                } else {
                    tree.activate_after_hole(leaf, cost, prng.between(1, 30));
                }
            }
            3 if waits => tree.set_budget(leaf, cost),
            4 if waits => tree.withdraw(leaf, None),
            5 if prng.below(2) == 0 => move_at_random(&mut tree, &mut prng),
            5 => tree.set_weight(leaf, prng.between(1, 10_000) as u32),
            6 if waits => tree.consume(leaf, cost / 16),
            _ => match current.take() {
                None => {
                    current = tree.begin_slot(Instant(now));
                    order.extend(current.map(|leaf| tree.owner(leaf)));
                }
                Some(leaf) if prng.below(3) > 0 => {
                    tree.consume(leaf, cost / 4);
                    current = Some(leaf);
                }
                Some(leaf) => tree.end_slot(leaf, 0, (prng.below(3) > 0).then_some(cost)),
            },
        }
        tree.check();
        let after = tree.times();
        let grew = times.iter().zip(&after).all(|(before, after)| !is_before(*after, *before));
        assert!(grew, "a virtual time fell");
        times = after;
    }
    order
}

/// Moves a group that is not in service to another parent, if there are two.
fn move_at_random(tree: &mut ShareTree, prng: &mut Prng) {
    let is_group = |id: &u32| tree.nodes[*id as usize].group != NIL;
    let groups: Vec<ShareId> = (0..tree.nodes.len() as u32).filter(is_group).collect();
    let group = groups[prng.below(groups.len() as u64) as usize];
    let parent = groups[prng.below(groups.len() as u64) as usize];
    let free = tree.nodes[group as usize].state != ShareState::InService;
    if group != ShareTree::ROOT && free && !tree.is_below(parent, group) {
        tree.move_group(group, parent);
        assert_eq!(tree.parent(group), parent);
    }
}

/// P1.
#[test]
fn random_calls_keep_the_invariants() {
    for seed in 0..100 {
        run(seed, 2000, 0);
    }
}

/// P3.
#[test]
fn order_does_not_depend_on_wrapping() {
    for seed in 0..20 {
        let wrapped = run(seed, 3000, 0_u64.wrapping_sub(1 << 40));
        assert_eq!(run(seed, 3000, 0), wrapped, "seed {seed}");
        assert!(wrapped.len() > 100);
    }
}

/// Serves one slot of requests of at most `request`, within the budget; returns the leaf and its service.
fn serve_slot(tree: &mut ShareTree, prng: &mut Prng, request: u64, next: u64) -> (ShareId, u64) {
    let leaf = tree.begin_slot(Instant(0)).expect("a leaf has requests");
    let (budget, mut served) = (tree.nodes[leaf as usize].cost, 0);
    loop {
        let cost = prng.between(1, request);
        if served + cost > budget && served > 0 {
            break;
        }
        tree.consume(leaf, cost);
        served += cost;
    }
    tree.end_slot(leaf, 0, Some(next));
    (leaf, served)
}

/// P2: lag of backlogged nodes at each level, with budgets and requests of any size.
#[test]
fn backlogged_nodes_lag_by_a_budget_and_a_request_at_most() {
    for depth in 1..5 {
        let mut prng = Prng::new(depth);
        let mut tree = ShareTree::in_slots(64, 64);
        // A path of groups, each with two leaves beside it.
        let (mut parent, mut leaves) = (ShareTree::ROOT, Vec::new());
        for level in 0..depth {
            for _ in 0..3 {
                let weight = prng.between(1, 1000) as u32;
                leaves.push(tree.add_leaf_of(parent, 1, weight, leaves.len() as u32));
            }
            if level + 1 < depth {
                parent = tree.add_group(parent, prng.between(1, 1000) as u32, 0);
            }
        }
        leaves.iter().for_each(|&leaf| tree.activate(leaf, prng.between(1, MOST)));
        let mut served = vec![0_u64; tree.nodes.len()];
        let request = MOST / 8;
        for _ in 0..3000 {
            let next = prng.between(request, MOST);
            let (leaf, cost) = serve_slot(&mut tree, &mut prng, request, next);
            let mut id = leaf;
            while id != NIL {
                served[id as usize] += cost;
                id = tree.nodes[id as usize].parent;
            }
            for id in 1..tree.nodes.len() {
                let node = &tree.nodes[id];
                let sum: u64 = tree
                    .nodes
                    .iter()
                    .filter(|n| n.parent == node.parent)
                    .map(|n| u64::from(n.weight))
                    .sum();
                let whole = served[node.parent as usize] as f64;
                let share = f64::from(node.weight) / sum as f64 * whole;
                let lag = (served[id] as f64 - share).abs();
                assert!(lag <= (MOST + request) as f64, "depth {depth}, node {id}: {lag}");
            }
        }
    }
}

/// P4: a change of one weight moves no other leaf's lag by more than a budget.
#[test]
fn changed_weight_moves_no_other_leaf_by_more_than_a_budget() {
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let budget = MOST;
        let make = || {
            let mut tree = ShareTree::in_slots(1, 8);
            let leaves: Vec<_> =
                (0..6).map(|owner| tree.add_leaf_of(ShareTree::ROOT, 1, 100, owner)).collect();
            leaves.iter().for_each(|&leaf| tree.activate(leaf, budget));
            (tree, leaves)
        };
        let ((mut one, leaves), (mut other, _)) = (make(), make());
        let mut services = [[0_i64; 6]; 2];
        let steps = prng.between(0, 20);
        let slot = |tree: &mut ShareTree, served: &mut [i64; 6]| {
            let leaf = tree.begin_slot(Instant(0)).unwrap();
            tree.consume(leaf, budget);
            served[tree.owner(leaf) as usize] += budget as i64;
            tree.end_slot(leaf, 0, Some(budget));
        };
        for _ in 0..steps {
            slot(&mut one, &mut services[0]);
            slot(&mut other, &mut services[1]);
        }
        one.set_weight(leaves[0], 100_000);
        // Until each of the others has had one slot more: they divide what the changed one leaves.
        let target = |served: &[i64; 6]| served[1..].iter().sum::<i64>();
        let goal = target(&services[0]) + 5 * budget as i64;
        while target(&services[0]) < goal {
            slot(&mut one, &mut services[0]);
        }
        while target(&services[1]) < goal {
            slot(&mut other, &mut services[1]);
        }
        let pairs = services[0].iter().zip(&services[1]);
        for (one, other) in pairs.take(6).skip(1) {
            let moved = (one - other).unsigned_abs();
            assert!(moved <= budget, "seed {seed}: {moved}");
        }
    }
}

/// P5: leaving and returning gains nothing beyond a budget and a request each time, and a kept hole gains least of all.
#[test]
fn leaf_that_leaves_and_returns_gains_nothing() {
    for hole in [false, true] {
        let mut prng = Prng::new(1);
        let mut tree = ShareTree::in_slots(1, 4);
        let leaves = [0, 1, 2].map(|owner| tree.add_leaf_of(ShareTree::ROOT, 1, 100, owner));
        leaves.iter().for_each(|&leaf| tree.activate(leaf, 1000));
        let (mut served, mut total, mut away, mut returns) = (0_u64, 0_u64, false, 0);
        for _ in 0..20_000 {
            let leaf = tree.begin_slot(Instant(0)).unwrap();
            let cost = prng.between(1, 1000);
            tree.consume(leaf, cost);
            total += cost;
            let goes = tree.owner(leaf) == 0;
            served += if goes { cost } else { 0 };
            // The first one leaves after each slot and comes back soon.
            tree.end_slot(leaf, 0, (!goes).then_some(1000));
            away |= goes;
            if away && prng.below(2) == 0 {
                (away, returns) = (false, returns + 1);
                if hole {
                    tree.activate_after_hole(leaves[0], 1000, 1);
                } else {
                    tree.activate(leaves[0], 1000);
                }
            }
        }
        let most = total / 3 + 2000;
        assert!(returns > 3000 && served <= most, "hole {hole}: {served} of {most}");
    }
}

/// P6: the idle class is served within 200 ms and a slot, and gets little.
#[test]
fn idle_class_is_served_every_200_ms() {
    let mut tree = ShareTree::in_slots(1, 4);
    let idle = tree.add_leaf_of(ShareTree::ROOT, 2, 10_000, 0);
    let busy = tree.add_leaf_of(ShareTree::ROOT, 1, 10, 1);
    tree.activate(idle, 1000);
    tree.activate(busy, 1000);
    let (mut last, mut longest, mut slots) = (0, 0, 0);
    for now in (0..60_000_u64).step_by(8) {
        let leaf = tree.begin_slot(Instant(now * MS)).unwrap();
        if leaf == idle {
            (longest, last, slots) = (longest.max(now - last), now, slots + 1);
        }
        tree.consume(leaf, 1000);
        tree.end_slot(leaf, 0, Some(1000));
    }
    assert!((200..=216).contains(&longest), "{longest}");
    assert!(slots * 20 <= 60_000 / 8, "at most one in twenty: {slots}");
    let high = tree.add_leaf_of(ShareTree::ROOT, 0, 1, 2);
    tree.activate(high, 1000);
    let now = Instant(60_000 * MS + 1);
    let chosen = [0; 3].map(|_| {
        let leaf = tree.begin_slot(now).unwrap();
        tree.end_slot(leaf, 0, (leaf != high).then_some(1000));
        leaf
    });
    assert!(chosen.iter().position(|&leaf| leaf == high) < Some(2), "{chosen:?}");
}

/// P7: charged in one piece or request by request, the same leaves are chosen.
#[test]
fn charge_in_pieces_gives_the_same_choices() {
    for seed in 0..50 {
        let order = [1, 16].map(|pieces| {
            let mut prng = Prng::new(seed);
            let (mut tree, leaves) = random_tree(&mut prng, 3, 0);
            leaves.iter().for_each(|&leaf| tree.activate(leaf, prng.between(1 << 10, MOST)));
            let mut order = Vec::new();
            for step in 0..500 {
                let leaf = tree.begin_slot(Instant(step * MS)).unwrap();
                order.push(leaf);
                // Weights divide the pieces' spans without a rest.
                let cost = prng.between(1, MOST / 16) * 16;
                (1..pieces).for_each(|_| tree.consume(leaf, cost / pieces));
                tree.end_slot(leaf, cost / pieces, Some(prng.between(1 << 10, MOST)));
            }
            order
        });
        assert_eq!(order[0], order[1], "seed {seed}");
    }
}

/// P8: with fixed budgets, the order is that of WF2Q+ by an ideal fluid server.
#[test]
fn fixed_budgets_are_served_in_the_order_of_a_fluid_model() {
    for seed in 0..100 {
        let mut prng = Prng::new(seed);
        let mut tree = ShareTree::in_slots(1, 16);
        // Powers of two, so that neither side rounds.
        let flows: Vec<(u64, u64)> =
            (0..12).map(|_| (1 << prng.below(6), 1 << prng.between(8, 14))).collect();
        for (owner, &(weight, budget)) in flows.iter().enumerate() {
            let leaf = tree.add_leaf_of(ShareTree::ROOT, 1, weight as u32, owner as u32);
            tree.activate(leaf, budget);
        }
        let sum: u64 = flows.iter().map(|flow| flow.0).sum();
        // Each flow's next packet, in the fluid server: it starts and finishes at these times, when all are served at their rates.
        let mut sent = vec![0_u64; flows.len()];
        let mut total = 0_u64;
        for _ in 0..2000 {
            let leaf = tree.begin_slot(Instant(0)).unwrap();
            let owner = tree.owner(leaf) as usize;
            let (weight, budget) = flows[owner];
            tree.consume(leaf, budget);
            tree.end_slot(leaf, 0, Some(budget));
            let start = |flow: usize| (sent[flow] * flows[flow].1) as f64 / flows[flow].0 as f64;
            let finish = |flow: usize| start(flow) + flows[flow].1 as f64 / flows[flow].0 as f64;
            let fluid = total as f64 / sum as f64;
            // A rounding of V may make one eligible a little late.
            let eligible = |&flow: &usize| start(flow) <= fluid - 0.01;
            let best = (0..flows.len()).filter(eligible).map(finish).fold(f64::MAX, f64::min);
            assert!(start(owner) <= fluid + 0.01, "seed {seed}: {owner} is not eligible");
            assert!(finish(owner) <= best, "seed {seed}: {owner} finishes after {best}");
            assert!(weight > 0);
            sent[owner] += 1;
            total += budget;
        }
    }
}
