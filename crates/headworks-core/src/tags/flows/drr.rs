//! One level of deficit round robin: nodes with shares take turns, and each turn adds a quantum to the node's deficit.
//!
//! ```text
//!   front -> [ its turn, deficit covers the cost: served, stays at the front ]
//!            [ its turn, deficit does not:        turn ends, to the back     ]    the deficit is kept, to save up for the cost
//!            [ idle: the quantum repays an advance; no debt left: removed    ]
//! ```
//!
//! The quantum of a turn is added once, so the search may be repeated. If no node can be served in a whole round, the least
//! number of rounds after which one can is added at once (a 32 MiB request of a share with weight 1 needs 25,600).
//!
//! Invariants: a node in a ring is linked, and `len` counts them; an idle node's deficit is at most 0, and below 0 by no more
//! than the advance that the caller allowed; a node with requests is served after finitely many turns of the others.

use super::pool::Pool;
use crate::gauge::Gauge32;
use crate::list::{Link, Linked, List};

/// The share of a node: its deficit, quantum and place in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Bytes that the node may still spend in its turn; below 0 the bytes it spent in advance.
    pub deficit: i64,
    /// Bytes that a turn adds, above 0.
    pub quantum: i64,
    /// The node's turn has begun and not ended.
    in_turn: bool,
    link: Link,
}

impl Share {
    /// Creates a share without deficit, in no ring.
    pub fn new(quantum: i64) -> Self {
        debug_assert!(quantum > 0, "a turn adds something");
        Self { deficit: 0, quantum, in_turn: false, link: Link::UNLINKED }
    }
}

/// A node of a ring: anything that has a share.
pub(super) trait ShareNode {
    /// Returns the node's share.
    fn share(&self) -> &Share;
    /// Returns the node's share, to change it.
    fn share_mut(&mut self) -> &mut Share;
}

/// The kind of list that a ring is.
#[derive(Debug)]
pub(super) enum TurnLink {}

impl<T: ShareNode> Linked<TurnLink> for T {
    fn link(&self) -> &Link {
        &self.share().link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.share_mut().link
    }
}

/// Nodes in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct DrrRing {
    list: List<TurnLink>,
    len: Gauge32,
}

impl DrrRing {
    /// Creates an empty ring.
    pub const fn new() -> Self {
        Self { list: List::new(), len: Gauge32::new(0) }
    }

    /// Returns true when no node is in the ring.
    pub const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a node at the back; its turn has not begun.
    pub fn push<T: ShareNode>(&mut self, pool: &mut Pool<T>, id: u32) {
        pool[id].share_mut().in_turn = false;
        self.list.push_back(pool, id);
        self.len.add(1);
    }

    /// Removes a node of the ring.
    pub fn remove<T: ShareNode>(&mut self, pool: &mut Pool<T>, id: u32) {
        self.list.remove(pool, id);
        self.len.sub(1);
        debug_assert!(self.list.is_empty() == self.len.is_zero(), "the length is that of the list");
    }

    /// Removes and returns the first node.
    pub fn pop<T: ShareNode>(&mut self, pool: &mut Pool<T>) -> Option<u32> {
        let id = self.list.front()?;
        self.remove(pool, id);
        Some(id)
    }

    /// Ends the turn of a node that has become idle; it keeps a debt, but no deficit.
    pub fn rest<T: ShareNode>(&mut self, pool: &mut Pool<T>, id: u32) {
        let share = pool[id].share_mut();
        debug_assert!(share.link.is_linked(), "node {id} is in the ring");
        share.deficit = share.deficit.min(0);
        if share.in_turn {
            self.end_turn(pool, id);
        }
    }

    fn end_turn<T: ShareNode>(&mut self, pool: &mut Pool<T>, id: u32) {
        self.remove(pool, id);
        self.push(pool, id);
    }

    /// Returns the node whose turn it is. `cost` returns the bytes of a node's first request; `None` if it is idle. Idle nodes
    /// without debt whose turn has come are moved to `gone`.
    pub fn next_turn<T: ShareNode>(
        &mut self,
        pool: &mut Pool<T>,
        gone: &mut DrrRing,
        mut cost: impl FnMut(&mut T) -> Option<i64>,
    ) -> Option<u32> {
        loop {
            let mut missing = i64::MAX;
            let mut next = self.list.front();
            for _ in 0..self.len.get() {
                let id = next.expect("the list has as many nodes as it counts");
                next = self.list.next(pool, id);
                match cost(&mut pool[id]) {
                    None => self.repay(pool, gone, id),
                    Some(cost) => match begin_turn(pool[id].share_mut(), cost) {
                        0 => return Some(id),
                        rounds => {
                            missing = missing.min(rounds);
                            self.end_turn(pool, id);
                        }
                    },
                }
            }
            if missing == i64::MAX {
                return None;
            }
            self.skip_rounds(pool, missing - 1, &mut cost);
        }
    }

    /// Spends an idle node's turn: the quantum repays debt, and a node without debt leaves.
    fn repay<T: ShareNode>(&mut self, pool: &mut Pool<T>, gone: &mut DrrRing, id: u32) {
        let share = pool[id].share_mut();
        debug_assert!(share.deficit <= 0 && !share.in_turn, "an idle node has no deficit");
        share.deficit += share.quantum;
        let in_debt = share.deficit < 0;
        self.remove(pool, id);
        if in_debt { self.push(pool, id) } else { gone.push(pool, id) }
    }

    /// Adds the quanta of `rounds` whole rounds to the nodes that are not idle.
    fn skip_rounds<T: ShareNode>(
        &mut self,
        pool: &mut Pool<T>,
        rounds: i64,
        cost: &mut impl FnMut(&mut T) -> Option<i64>,
    ) {
        debug_assert!(rounds >= 0, "rounds are not taken back");
        if rounds == 0 {
            return;
        }
        let mut next = self.list.front();
        while let Some(id) = next {
            if cost(&mut pool[id]).is_some() {
                let share = pool[id].share_mut();
                share.deficit += rounds * share.quantum;
            }
            next = self.list.next(pool, id);
        }
    }
}

/// Begins or continues a turn; returns how many more turns the node needs for `cost`, 0 if it can be served.
fn begin_turn(share: &mut Share, cost: i64) -> i64 {
    debug_assert!(cost > 0 && share.quantum > 0, "every request costs something");
    if !share.in_turn {
        share.in_turn = true;
        share.deficit += share.quantum;
    }
    let missing = (cost - share.deficit).max(0);
    (missing + share.quantum - 1) / share.quantum
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Member {
        share: Share,
        costs: Vec<i64>,
    }

    impl ShareNode for Member {
        fn share(&self) -> &Share {
            &self.share
        }

        fn share_mut(&mut self) -> &mut Share {
            &mut self.share
        }
    }

    /// Creates members with quanta of 100 and requests of the given costs.
    fn members(costs: &[&[i64]]) -> (DrrRing, Pool<Member>) {
        let (mut ring, mut pool) = (DrrRing::new(), Pool::new(costs.len()));
        for costs in costs {
            let id = pool.take(Member { share: Share::new(100), costs: costs.to_vec() });
            ring.push(&mut pool, id);
        }
        (ring, pool)
    }

    fn next(ring: &mut DrrRing, pool: &mut Pool<Member>, gone: &mut DrrRing) -> Option<u32> {
        ring.next_turn(pool, gone, |member| member.costs.first().copied())
    }

    /// Serves until all members are idle; returns the members served, in order.
    fn serve(ring: &mut DrrRing, pool: &mut Pool<Member>) -> Vec<u32> {
        let mut served = Vec::new();
        while let Some(id) = next(ring, pool, &mut DrrRing::new()) {
            let again = next(ring, pool, &mut DrrRing::new());
            assert_eq!(again, Some(id), "a repeated search changes nothing");
            served.push(id);
            pool[id].share.deficit -= pool[id].costs.remove(0);
            if pool[id].costs.is_empty() {
                ring.rest(pool, id);
            }
        }
        served
    }

    #[test]
    fn turn_adds_quantum_and_unused_deficit_is_kept() {
        let (mut ring, mut pool) = members(&[&[60, 60, 60, 60], &[100, 100], &[30; 5]]);
        assert_eq!(serve(&mut ring, &mut pool), [0, 1, 2, 2, 2, 0, 0, 1, 2, 2, 0]);
        let (mut ring, mut pool) = members(&[&[1_000_000], &[100; 12]]);
        assert_eq!(serve(&mut ring, &mut pool), [&[1; 12][..], &[0]].concat(), "it saves up");
    }

    #[test]
    fn rounds_that_serve_no_node_are_skipped_for_all() {
        let (mut ring, mut pool) = members(&[&[1000], &[900], &[1100]]);
        assert_eq!(serve(&mut ring, &mut pool), [1, 0, 2]);
        // The order of turns holds however many rounds are skipped.
        let (mut ring, mut pool) = members(&[&[i64::MAX / 4], &[i64::MAX / 4]]);
        assert_eq!(serve(&mut ring, &mut pool), [0, 1]);
    }

    #[test]
    fn idle_node_keeps_debt_but_no_deficit() {
        let (mut ring, mut pool) = members(&[&[10], &[]]);
        assert_eq!(next(&mut ring, &mut pool, &mut DrrRing::new()), Some(0));
        pool[0].costs.clear();
        pool[0].share.deficit -= 10;
        ring.rest(&mut pool, 0);
        assert_eq!(pool[0].share.deficit, 0);
        pool[1].share.deficit = -350;
        ring.rest(&mut pool, 1);
        let (mut gone, mut rounds) = (DrrRing::new(), 0);
        while !ring.is_empty() {
            assert_eq!(next(&mut ring, &mut pool, &mut gone), None);
            rounds += 1;
            assert_eq!(gone.pop(&mut pool), [Some(0), None, None, Some(1)][rounds - 1]);
        }
        assert_eq!(rounds, 4, "three and a half quanta are repaid in four turns");
    }
}
