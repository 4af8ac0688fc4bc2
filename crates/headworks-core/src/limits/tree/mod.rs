//! The tree of nodes with limits: what passes, what waits, and when to look again.
//!
//! ```text
//!   admit --every node agrees--------------------------> charged at every node
//!     `-- a node does not: the leaf waits ("parked") --> offered upwards as far as nodes agree --root agrees--> pop
//! ```
//!
//! A leaf has at most one waiting request of each direction; what is behind it waits with its owner. A node with waiters that
//! agrees to its first one offers it to its parent, where it competes with its siblings. So a child that waits for its own limit
//! holds no sibling back, and only the leaf that wins at every node is charged. A node that does not agree has one due instant.
//!
//! `structure` adds, changes and removes nodes, `passage` decides what passes, `timers` when to look again, and `leases` what shards
//! lend each other of the limits of a node.

mod leases;
mod passage;
mod structure;
mod timers;

use std::collections::VecDeque;

use super::lease::Lease;
use super::lessee::{Lessee, OutgoingLease};
use super::set::{BucketSet, LimitedIo};
use super::turn::{Link, TurnQueue, Turns};
use super::{LimitDirection, LimitKind, NodeId};
use crate::shares::heap::Heap;
use crate::slab::NIL;
use crate::time::Instant;

/// Levels of the tree below the root, at most.
const DEPTH_MAX: usize = 4;

/// A waiting request that passes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The caller's number of the leaf.
    pub owner: u32,
    /// Direction of the request.
    pub direction: LimitDirection,
}

/// What a node has held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitReport {
    /// Requests that had to wait for this node's limits.
    pub limited: u64,
    /// Nanoseconds in which requests waited for this node's limits.
    pub limited_ns: u64,
    /// The limit that held the last one back.
    pub kind: Option<LimitKind>,
    /// Requests wait for it now.
    pub is_holding: bool,
}

#[derive(Debug)]
struct LimitNode {
    parent: NodeId,
    owner: u32,
    is_leaf: bool,
    set: BucketSet,
    queue: TurnQueue,
    /// First waiting requests of a leaf.
    heads: [Option<LimitedIo>; 2],
    /// When a direction's first waiter may pass here; none if there is none, or it passes.
    due: [Option<Instant>; 2],
    /// The instant in the timer heap.
    armed: Option<Instant>,
    woken: Instant,
    held_since: Option<Instant>,
    report: LimitReport,
    /// What this shard holds of a node that lives on another.
    lease: Option<Box<Lease>>,
    /// The shard that a leaf stands for, if it is no connection.
    lessee: Option<Box<Lessee>>,
    /// Children that stand for other shards.
    lessees: Vec<NodeId>,
    /// It is in `granting`.
    grants: bool,
}

/// Nodes with limits, from the server down to connections.
#[derive(Debug)]
pub struct LimitTree {
    nodes: Vec<LimitNode>,
    turns: Turns,
    timer_links: Vec<Link>,
    timers: Heap,
    free: Vec<NodeId>,
    /// The root agrees to its first waiter of a direction.
    ready: [bool; 2],
    /// Shards that have this tree.
    shards: u16,
    /// Nodes that agree to the first request of a lessee.
    granting: Vec<NodeId>,
    /// Messages for other shards.
    outgoing: VecDeque<OutgoingLease>,
}

impl LimitTree {
    /// The root: the server.
    pub const ROOT: NodeId = 0;

    /// Creates a tree with a root without limits, and space for `nodes` nodes before it allocates.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        let mut tree = Self {
            nodes: Vec::with_capacity(nodes + 1),
            turns: Turns::new(nodes + 1),
            timer_links: Vec::with_capacity(nodes + 1),
            timers: Heap::new(),
            free: Vec::with_capacity(nodes + 1),
            ready: [false; 2],
            shards: 1,
            granting: Vec::new(),
            outgoing: VecDeque::new(),
        };
        tree.insert(NIL, 1, NIL, false);
        tree
    }

    /// The parent of a node below the root.
    #[must_use]
    pub fn parent(&self, id: NodeId) -> NodeId {
        self.nodes[id as usize].parent
    }

    /// Whether a limit is on the path from a node to the root.
    #[must_use]
    pub fn is_limited(&self, id: NodeId) -> bool {
        self.path(id).any(|node| !self.nodes[node as usize].set.is_empty())
    }

    /// The caller's number of a node.
    #[must_use]
    pub fn owner(&self, id: NodeId) -> u32 {
        self.nodes[id as usize].owner
    }

    /// What a node has held back until now.
    #[must_use]
    pub fn report(&self, now: Instant, id: NodeId) -> LimitReport {
        let node = &self.nodes[id as usize];
        let held = node.held_since.map_or(0, |since| now.since(since));
        let limited_ns = node.report.limited_ns + held;
        LimitReport { limited_ns, is_holding: node.held_since.is_some(), ..node.report }
    }

    /// The node on a leaf's path that would hold a request back now, and its limit; none if it may pass.
    #[must_use]
    pub fn holder(&self, leaf: NodeId, direction: LimitDirection) -> Option<(NodeId, LimitKind)> {
        self.path(leaf).find_map(|id| {
            let node = &self.nodes[id as usize];
            let io = node.due[direction as usize]
                .and(self.nodes[leaf as usize].heads[direction as usize]);
            let lacking = io.and_then(|io| self.lacking(id, io));
            lacking.or(node.set.wait(direction, false).1).map(|kind| (id, kind))
        })
    }

    /// Nanoseconds that a request takes of the limit on a leaf's path that it takes longest of.
    #[must_use]
    pub fn cost_ns(&self, leaf: NodeId, io: LimitedIo) -> u64 {
        self.path(leaf).map(|id| self.nodes[id as usize].set.cost_ns(io)).max().unwrap_or(0)
    }

    /// Nanoseconds that the buckets on a leaf's path make a request of a direction wait, as of the last call.
    #[must_use]
    pub fn wait_ns(&self, leaf: NodeId, direction: LimitDirection) -> u64 {
        let wait = |id: NodeId| self.nodes[id as usize].set.wait(direction, false).0;
        self.path(leaf).map(wait).max().unwrap_or(0)
    }

    fn path(&self, from: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors((from != NIL).then_some(from), |id| {
            let parent = self.nodes[*id as usize].parent;
            (parent != NIL).then_some(parent)
        })
    }

    fn settle_path(&mut self, now: Instant, leaf: NodeId) {
        let mut id = self.nodes[leaf as usize].parent;
        while id != NIL {
            self.settle(now, id);
            id = self.nodes[id as usize].parent;
        }
    }

    #[inline]
    fn settle(&mut self, now: Instant, id: NodeId) {
        let node = &mut self.nodes[id as usize];
        node.set.settle(now);
        self.turns.settle(&mut node.queue, now);
    }
}
