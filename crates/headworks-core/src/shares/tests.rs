//! Tests of fair queueing: shares, bounds on bypass, and the memory of emptied nodes.

use super::*;
use crate::prng::Prng;

/// A tree of one level with `weights` and a closed loop of one request for each leaf.
struct Loop {
    tree: ShareTree,
    leaves: Vec<ShareId>,
    /// Service by leaf.
    served: Vec<u64>,
}

impl Loop {
    fn new(weights: &[u32]) -> Self {
        let mut tree = ShareTree::new(0, weights.len());
        let leaf = |(owner, &weight)| tree.add_leaf(ShareTree::ROOT, weight, owner as u32);
        let leaves = weights.iter().enumerate().map(leaf).collect();
        Self { tree, leaves, served: vec![0; weights.len()] }
    }

    /// Serves the first request; returns its leaf.
    fn serve(&mut self, next: Option<u64>) -> usize {
        self.tree.advance_to_first();
        let id = self.tree.first().expect("a leaf has a request");
        let leaf = self.tree.owner(id) as usize;
        self.served[leaf] += self.tree.nodes[id as usize].cost;
        self.tree.serve(id, next);
        leaf
    }
}

#[test]
fn span_by_reciprocal_is_the_quotient() {
    let mut prng = Prng::new(1);
    for _ in 0..100_000 {
        let cost = (1 << prng.below(41)) + prng.below(5) - prng.below(2);
        for weight in [1, 1 + prng.below(12_000), 10_000, 10_001] {
            let exact = (cost.min(COST_MAX) << SHIFT) / weight;
            assert_eq!(span(cost, weight), exact, "{cost} at {weight}");
        }
    }
}

#[test]
fn backlogged_leaves_get_service_by_weight_within_one_request() {
    let mut prng = Prng::new(1);
    for weights in [&[1, 1][..], &[1, 2, 4], &[1, 100, 10_000], &[7; 300]] {
        let mut all = Loop::new(weights);
        let cost = |prng: &mut Prng| prng.between(10_000, 100_000);
        for &leaf in &all.leaves.clone() {
            all.tree.activate(leaf, cost(&mut prng));
        }
        let sum = f64::from(weights.iter().sum::<u32>());
        for _ in 0..20_000 {
            let next = cost(&mut prng);
            all.serve(Some(next));
            let total = all.served.iter().sum::<u64>() as f64;
            for (&weight, &got) in weights.iter().zip(&all.served) {
                let part = f64::from(weight) / sum * total;
                assert!((got as f64 - part).abs() <= 2.0 * 100_000.0, "{got} for {part}");
            }
        }
    }
}

/// A flow that is removed while it is in the list of forgotten nodes was removed a second time.
#[test]
fn removed_node_is_not_reported_as_forgotten() {
    let mut all = Loop::new(&[1, 1]);
    for &leaf in &all.leaves.clone() {
        all.tree.activate(leaf, 1000);
    }
    let removed = all.serve(None);
    let other = all.serve(None);
    all.tree.remove(all.leaves[removed]);
    let told: Vec<u32> = std::iter::from_fn(|| all.tree.next_forgotten()).map(|(_, o)| o).collect();
    assert!(!told.contains(&(removed as u32)), "{told:?} beside {other}");
}

#[test]
fn closed_loop_of_one_request_is_served_once_a_round() {
    // One request at a time is in service; the client asks again when it ends.
    for flows in [2_usize, 64, 1000] {
        let mut all = Loop::new(&vec![1; flows]);
        for &leaf in &all.leaves.clone() {
            all.tree.activate(leaf, 5_000_000);
        }
        let mut last = vec![0_usize; flows];
        let mut in_service = all.serve(None);
        for round in 1..20 * flows {
            let next = all.serve(None);
            let leaf = all.leaves[in_service];
            all.tree.activate(leaf, 5_000_000);
            in_service = next;
            assert!(round - last[next] <= flows + 1, "a client waited {}", round - last[next]);
            last[next] = round;
        }
    }
}

#[test]
fn newcomer_is_not_overtaken_by_more_than_the_bound() {
    let mut prng = Prng::new(3);
    for flows in [2_usize, 16, 256, 4096] {
        let mut all = Loop::new(&vec![1; flows]);
        let mut passed_by = vec![vec![0_u8; flows]; flows.min(64)];
        let mut waits = vec![false; flows];
        for _ in 0..40 * flows {
            // Some flows are open loops with a backlog, others ask again at random moments.
            let flow = prng.below(flows as u64) as usize;
            if !waits[flow] {
                all.tree.activate(all.leaves[flow], 1000);
                waits[flow] = true;
                passed_by.iter_mut().skip(flow).take(1).for_each(|row| row.fill(0));
            }
            all.tree.advance_to_first();
            if prng.below(2) == 0 && all.tree.first().is_some() {
                let again = prng.below(4) == 0;
                let served = all.serve(again.then_some(1000));
                waits[served] = again;
                for (flow, row) in passed_by.iter_mut().enumerate() {
                    if flow == served {
                        row.fill(0);
                    } else if waits[flow] {
                        row[served] += 1;
                        assert!(row[served] <= 4, "{flows} flows: passed {} times", row[served]);
                    }
                }
            }
        }
    }
}

#[test]
fn tree_divides_by_weight_at_each_level() {
    // Two groups of weight 1 and 3, with one and with seven leaves.
    let mut tree = ShareTree::new(2, 8);
    let groups = [1, 3].map(|weight| tree.add_group(ShareTree::ROOT, weight, weight));
    for owner in 0..8_u32 {
        let leaf = tree.add_leaf(groups[usize::from(owner > 0)], 1, owner);
        tree.activate(leaf, 4000);
    }
    let mut served = [0_u32; 8];
    for _ in 0..2800 {
        tree.advance_to_first();
        let id = tree.first().unwrap();
        served[tree.owner(id) as usize] += 1;
        tree.serve(id, Some(4000));
    }
    assert!(served[0].abs_diff(700) <= 2, "{served:?}");
    assert!(served[1..].iter().all(|n| n.abs_diff(300) <= 2), "{served:?}");
}

#[test]
fn emptied_leaf_keeps_its_finish_until_virtual_time_reaches_it() {
    let mut all = Loop::new(&[1, 1]);
    let [one, two] = [all.leaves[0], all.leaves[1]];
    all.tree.activate(one, 1000);
    all.tree.activate(two, 3000);
    assert_eq!(all.serve(None), 0);
    // Its next request starts where the last ended, behind the one that waits.
    all.tree.activate(one, 10);
    assert!(!all.tree.is_eligible(one) && all.tree.is_eligible(two));
    assert_eq!((all.serve(None), all.serve(None)), (1, 0));
    // Of 4010 served, V has half: past the finish of one leaf at 1010, before that of the other at 3000.
    assert_eq!(all.tree.next_forgotten(), None, "the last one served may yet be charged for more");
    all.tree.activate(two, 10);
    assert_eq!(all.tree.nodes[two as usize].start, 3000 << SHIFT);
    assert_eq!(all.tree.next_forgotten(), Some((one, 0)));
    assert_eq!(all.tree.next_forgotten(), None);
}

#[test]
fn changed_weight_applies_from_next_request() {
    let mut all = Loop::new(&[100, 100]);
    for &leaf in &all.leaves.clone() {
        all.tree.activate(leaf, 1000);
    }
    all.tree.set_weight(all.leaves[1], 300);
    (0..4000).for_each(|_| _ = all.serve(Some(1000)));
    assert!((all.served[1] as f64 / all.served[0] as f64 - 3.0).abs() < 0.01, "{:?}", all.served);
}

#[test]
fn charge_delays_a_leaf_by_what_it_pays() {
    let mut all = Loop::new(&[1, 1]);
    for &leaf in &all.leaves.clone() {
        all.tree.activate(leaf, 1000);
    }
    all.serve(Some(1000));
    all.tree.charge(all.leaves[0], 10_000);
    let order: Vec<usize> = (0..14).map(|_| all.serve(Some(1000))).collect();
    assert_eq!(order.iter().filter(|&&leaf| leaf == 1).count(), 12, "{order:?}");
    // What was too much is given back.
    let mut all = Loop::new(&[1, 1]);
    for &leaf in &all.leaves.clone() {
        all.tree.activate(leaf, 10_000);
    }
    all.serve(Some(1000));
    all.tree.charge(all.leaves[0], -9000);
    let order: Vec<usize> = (0..9).map(|_| all.serve(Some(1000))).collect();
    assert!(order[..8].iter().all(|&leaf| leaf == 0), "{order:?}");
}

#[test]
fn returning_leaf_starts_where_service_has_come_and_not_where_another_may_go() {
    let mut all = Loop::new(&[1, 1]);
    let [deep, light] = all.leaves[..] else { unreachable!() };
    all.tree.activate(deep, 100);
    all.tree.activate(light, 150);
    assert_eq!(all.serve(Some(100)), 0);
    assert_eq!(all.serve(None), 1);
    assert_eq!(all.serve(Some(100)), 0);
    // V is at 175, and the deep one starts at 200: it may go when it is asked for. The light one returns before that.
    all.tree.activate(light, 150);
    assert_eq!(all.serve(None), 1, "it had less, and goes first");
}
