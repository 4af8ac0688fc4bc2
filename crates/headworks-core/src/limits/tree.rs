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
//! A request that arrives does not pass a waiter that is before it in turn, unless that waits for a limit of the other direction.
//! A node is woken at most once a millisecond, and wake-ups fall on quarters of one, so they are bounded however many nodes wait.
//!
//! Invariants: a node is among its parent's waiters of a direction <=> it has a waiter of that direction to which it agrees, as of
//! the last change or due instant; a request is charged at all nodes of its path or at none.

use super::bucket::SLACK_NS;
use super::set::{BucketSet, LimitedIo};
use super::turn::{Link, TurnQueue, Turns};
use super::{LimitDirection, LimitKind, Limits};
use crate::shares::heap::{Heap, HeapKey};
use crate::slab::NIL;
use crate::time::{Instant, MS, SEC, US};

/// The name of a node of a [`LimitTree`].
pub type NodeId = u32;

/// Least time between two wake-ups of a node.
const WAKE_NS: u64 = MS;
/// Wake-ups of all nodes fall on multiples of this.
const WAKE_GRID_NS: u64 = 250 * US;
/// The longest time without another look.
const WAIT_MAX_NS: u64 = 3600 * SEC;
/// A request of at most this many bytes passes within its part of a limit.
const SMALL_BYTES: u32 = 16 << 10;
/// Levels of the tree below the root, at most.
const DEPTH_MAX: usize = 4;

const _: () = assert!(WAKE_NS + WAKE_GRID_NS < SLACK_NS, "a late wake-up loses nothing");

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
        };
        tree.insert(NIL, 1, NIL, false);
        tree
    }

    /// Adds a node for a tenant or an export; `owner` is a number of the caller's.
    pub fn add_group(&mut self, parent: NodeId, weight: u32, owner: u32) -> NodeId {
        self.insert(parent, weight, owner, false)
    }

    /// Adds a node for a connection.
    pub fn add_leaf(&mut self, parent: NodeId, weight: u32, owner: u32) -> NodeId {
        self.insert(parent, weight, owner, true)
    }

    fn insert(&mut self, parent: NodeId, weight: u32, owner: u32, is_leaf: bool) -> NodeId {
        let node = LimitNode {
            parent,
            owner,
            is_leaf,
            set: BucketSet::default(),
            queue: TurnQueue::new(Instant(0)),
            heads: [None; 2],
            due: [None; 2],
            armed: None,
            woken: Instant(0),
            held_since: None,
            report: LimitReport::default(),
        };
        let id = self.free.pop().unwrap_or(self.nodes.len() as NodeId);
        self.turns.put(id, weight);
        if id as usize == self.nodes.len() {
            self.nodes.push(node);
            self.timer_links.push(Link::UNLINKED);
        } else {
            self.nodes[id as usize] = node;
        }
        assert!(self.path(id).count() <= DEPTH_MAX + 1, "server, tenant, export, connection");
        id
    }

    /// Removes a node whose children are removed; its waiting requests are dropped.
    pub fn remove(&mut self, now: Instant, id: NodeId) {
        assert!(id != Self::ROOT, "the root stays");
        assert!(!self.nodes[id as usize].queue.has_waiters(), "a node's children go first");
        let parent = self.nodes[id as usize].parent;
        self.turns.remove(&mut self.nodes[parent as usize].queue, id);
        self.disarm(id);
        self.nodes[id as usize].heads = [None; 2];
        self.nodes[id as usize].due = [None; 2];
        self.free.push(id);
        self.update_both(now, parent);
    }

    /// Replaces the limits of a node. What it admitted before still counts; waiters that may pass now do so at the next
    /// [`LimitTree::pop`].
    pub fn set_limits(&mut self, now: Instant, id: NodeId, limits: &Limits) {
        assert!(!self.nodes[id as usize].is_leaf, "limits are of groups");
        self.nodes[id as usize].set.replace(now, limits);
        // A wake-up that was held back for the old limits is due at once.
        self.nodes[id as usize].woken = Instant(0);
        self.update_both(now, id);
    }

    /// Sets a node's weight beside its siblings.
    pub fn set_weight(&mut self, id: NodeId, weight: u32) {
        let parent = self.nodes[id as usize].parent;
        if parent != NIL {
            self.turns.set_weight(&mut self.nodes[parent as usize].queue, id, weight);
        }
    }

    /// Moves a node with everything below it to another parent.
    pub fn set_parent(&mut self, now: Instant, id: NodeId, parent: NodeId) {
        assert!(id != Self::ROOT && self.path(parent).all(|above| above != id), "a tree");
        let before = std::mem::replace(&mut self.nodes[id as usize].parent, parent);
        self.turns.remove(&mut self.nodes[before as usize].queue, id);
        let weight = self.turns.weight(id);
        self.turns.put(id, weight);
        self.update_both(now, before);
        if self.nodes[id as usize].is_leaf {
            for direction in LimitDirection::ALL {
                if self.nodes[id as usize].heads[direction as usize].is_some() {
                    self.join(now, id, direction);
                }
            }
        }
        self.update_both(now, if self.nodes[id as usize].is_leaf { parent } else { id });
    }

    /// Lets everything pass that waits below a node, without a charge: what is removed or drained knows no limits.
    pub fn release(&mut self, now: Instant, id: NodeId, mut pass: impl FnMut(Passed)) {
        for leaf in 0..self.nodes.len() as NodeId {
            let is_below = self.path(leaf).any(|above| above == id);
            for direction in LimitDirection::ALL.into_iter().filter(|_| is_below) {
                let node = &mut self.nodes[leaf as usize];
                if node.heads[direction as usize].take().is_some() {
                    pass(Passed { owner: node.owner, direction });
                    self.leave(now, leaf, direction);
                }
            }
        }
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
            let (_, kind) = self.nodes[id as usize].set.wait(direction, false);
            kind.map(|kind| (id, kind))
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

    /// Charges a request that passes now; otherwise it waits, and [`LimitTree::pop`] returns it later. The leaf has no waiting
    /// request of its direction.
    pub fn admit(&mut self, now: Instant, leaf: NodeId, io: LimitedIo) -> bool {
        assert!(self.nodes[leaf as usize].is_leaf, "requests are of leaves");
        self.settle_path(now, leaf);
        if let Some(holder) = self.first_refusal(leaf, io) {
            let node = &mut self.nodes[holder as usize];
            node.report.limited += 1;
            node.report.kind = node.set.wait(io.direction, false).1.or(node.report.kind);
            self.wait(now, leaf, io);
            return false;
        }
        self.charge(now, leaf, io);
        true
    }

    /// Adds a waiting request to a leaf that has none of its direction.
    pub fn wait(&mut self, now: Instant, leaf: NodeId, io: LimitedIo) {
        let head = &mut self.nodes[leaf as usize].heads[io.direction as usize];
        assert!(head.is_none(), "a leaf has one waiting request of a direction");
        *head = Some(io);
        self.join(now, leaf, io.direction);
        self.update(now, self.nodes[leaf as usize].parent, io.direction);
    }

    /// Withdraws a leaf's waiting requests, which pay nothing.
    pub fn withdraw(&mut self, now: Instant, leaf: NodeId) {
        for direction in LimitDirection::ALL {
            if self.nodes[leaf as usize].heads[direction as usize].take().is_some() {
                self.leave(now, leaf, direction);
            }
        }
    }

    /// Returns a waiting request that passes now; it is charged. The owner adds its next one with [`LimitTree::wait`].
    pub fn pop(&mut self, now: Instant) -> Option<Passed> {
        self.wake(now);
        let direction = self.turns.earlier(&self.nodes[Self::ROOT as usize].queue, self.ready)?;
        let leaf = self.first_leaf(Self::ROOT, direction);
        let node = &mut self.nodes[leaf as usize];
        let io = node.heads[direction as usize].take().expect("a leaf that waits has a request");
        let owner = node.owner;
        self.settle_path(now, leaf);
        self.leave(now, leaf, direction);
        self.charge(now, leaf, io);
        Some(Passed { owner, direction })
    }

    /// When [`LimitTree::pop`] may have something; none if nothing waits.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.ready[0] || self.ready[1] {
            return Some(Instant(0));
        }
        self.timers.top_time(&self.timer_links).map(Instant)
    }

    /// Looks again at the nodes whose instants are due.
    fn wake(&mut self, now: Instant) {
        while let Some(at) = self.timers.top_time(&self.timer_links).filter(|at| *at <= now.0) {
            let id = self.timers.top().expect("a heap with a time has a top");
            debug_assert!(self.nodes[id as usize].armed == Some(Instant(at)), "armed as it says");
            self.disarm(id);
            self.nodes[id as usize].woken = now;
            self.update_both(now, id);
        }
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

    /// Returns the lowest node on a leaf's path that does not let a new request pass.
    fn first_refusal(&self, leaf: NodeId, io: LimitedIo) -> Option<NodeId> {
        let mut child = leaf;
        while let Some(id) = Some(self.nodes[child as usize].parent).filter(|id| *id != NIL) {
            let node = &self.nodes[id as usize];
            let start = self.turns.start(&node.queue, child);
            if node.queue.has_waiters() && !self.is_in_turn(id, child, io.direction, start)
                || self.bucket_wait_ns(id, child, io, start) > 0
            {
                return Some(id);
            }
            child = id;
        }
        None
    }

    /// Whether a new request of a child that starts at `start` passes no waiter that is before it.
    fn is_in_turn(&self, id: NodeId, child: NodeId, direction: LimitDirection, start: u64) -> bool {
        let (queue, other) = (&self.nodes[id as usize].queue, direction.other());
        let own = queue.first(direction) == Some(child);
        (own || self.turns.precedes(queue, start, direction))
            && (!self.contends(id, other) || self.turns.precedes(queue, start, other))
    }

    /// Whether the first waiter of a direction waits here for a limit of both directions.
    fn contends(&self, id: NodeId, direction: LimitDirection) -> bool {
        let node = &self.nodes[id as usize];
        node.due[direction as usize].is_some() && node.set.directional_is_ready(direction)
    }

    /// Returns the nanoseconds until a node's buckets agree to a request of a child.
    #[inline]
    fn bucket_wait_ns(&self, id: NodeId, child: NodeId, io: LimitedIo, start: u64) -> u64 {
        let node = &self.nodes[id as usize];
        let (plain, _) = node.set.wait(io.direction, false);
        if plain == 0 || io.bytes > SMALL_BYTES {
            return plain;
        }
        match self.turns.part_wait_ns(&node.queue, child, start) {
            Some(part) => plain.min(part.max(node.set.wait(io.direction, true).0)),
            None => plain,
        }
    }

    /// Charges a request at every node of its path. A node without limits counts it as the one above does.
    fn charge(&mut self, now: Instant, leaf: NodeId, io: LimitedIo) {
        let mut path = [(NIL, NIL); DEPTH_MAX];
        let (mut len, mut child) = (0, leaf);
        while let Some(id) = Some(self.nodes[child as usize].parent).filter(|id| *id != NIL) {
            path[len] = (id, child);
            (len, child) = (len + 1, id);
        }
        let mut cost_ns = None;
        for (id, child) in path[..len].iter().rev() {
            let node = &mut self.nodes[*id as usize];
            if !node.set.is_empty() {
                node.set.charge(io);
                cost_ns = Some(node.set.cost_ns(io));
            }
            if let Some(cost_ns) = cost_ns {
                self.turns.charge(&mut node.queue, *child, cost_ns);
            }
        }
        for (id, _) in &path[..len] {
            if self.nodes[*id as usize].queue.has_waiters() {
                self.update_both(now, *id);
            }
        }
    }

    fn join(&mut self, now: Instant, child: NodeId, direction: LimitDirection) {
        let parent = self.nodes[child as usize].parent;
        self.settle(now, parent);
        self.turns.join(&mut self.nodes[parent as usize].queue, child, direction);
    }

    fn leave(&mut self, now: Instant, child: NodeId, direction: LimitDirection) {
        let parent = self.nodes[child as usize].parent;
        self.turns.leave(&mut self.nodes[parent as usize].queue, child, direction);
        self.update(now, parent, direction);
    }

    /// The leaf that is next below a node.
    fn first_leaf(&self, from: NodeId, direction: LimitDirection) -> NodeId {
        let mut id = from;
        while !self.nodes[id as usize].is_leaf {
            let first = self.nodes[id as usize].queue.first(direction);
            id = first.expect("a node that is offered has a waiter");
        }
        id
    }

    fn update_both(&mut self, now: Instant, id: NodeId) {
        LimitDirection::ALL.into_iter().for_each(|direction| self.update(now, id, direction));
    }

    /// Looks whether a node agrees to its first waiter of a direction, and offers it to the parent, or withdraws it; then the parent
    /// the same way.
    fn update(&mut self, now: Instant, from: NodeId, direction: LimitDirection) {
        let mut id = from;
        loop {
            if self.nodes[id as usize].is_leaf {
                return;
            }
            self.settle(now, id);
            let wait_ns = self.first_wait_ns(id, direction);
            self.set_due(now, id, direction, wait_ns.filter(|wait| *wait > 0));
            let offers = wait_ns == Some(0);
            if id == Self::ROOT {
                self.ready[direction as usize] = offers;
                return;
            }
            let was_offered = self.turns.waits(id, direction);
            match (was_offered, offers) {
                (false, false) => return,
                (false, true) => self.join(now, id, direction),
                (true, false) => {
                    let parent = self.nodes[id as usize].parent;
                    self.turns.leave(&mut self.nodes[parent as usize].queue, id, direction);
                }
                // Another request may be its first now.
                (true, true) => {}
            }
            id = self.nodes[id as usize].parent;
        }
    }

    /// Nanoseconds until a node agrees to its first waiter of a direction; none if it has none.
    fn first_wait_ns(&self, id: NodeId, direction: LimitDirection) -> Option<u64> {
        let node = &self.nodes[id as usize];
        let child = node.queue.first(direction)?;
        let leaf = self.first_leaf(child, direction);
        let io = self.nodes[leaf as usize].heads[direction as usize];
        let io = io.expect("a leaf that waits has a request");
        Some(self.bucket_wait_ns(id, child, io, self.turns.start(&node.queue, child)))
    }

    /// Sets when a direction's first waiter may pass a node, and counts the time in which one waits.
    fn set_due(
        &mut self,
        now: Instant,
        id: NodeId,
        direction: LimitDirection,
        wait_ns: Option<u64>,
    ) {
        let node = &mut self.nodes[id as usize];
        // A longer wait is looked at again.
        node.due[direction as usize] = wait_ns.map(|wait| now.after(wait.min(WAIT_MAX_NS)));
        let due = node.due.into_iter().flatten().min();
        match (due, node.held_since) {
            (Some(_), None) => node.held_since = Some(now),
            (None, Some(since)) => {
                node.report.limited_ns += now.since(since);
                node.held_since = None;
            }
            _ => {}
        }
        let least = node.woken.after(WAKE_NS);
        let at = due.map(|due| Instant(due.max(least).0.next_multiple_of(WAKE_GRID_NS)));
        if at != node.armed {
            self.disarm(id);
            if let Some(at) = at {
                self.nodes[id as usize].armed = Some(at);
                let key = HeapKey { time: at.0, arrival: u64::from(id) };
                self.timers.push(&mut self.timer_links, id, key);
            }
        }
    }

    fn disarm(&mut self, id: NodeId) {
        if self.nodes[id as usize].armed.take().is_some() {
            self.timers.remove(&mut self.timer_links, id);
        }
    }
}
