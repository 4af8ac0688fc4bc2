//! What passes: a request that arrives, and the waiter that wins at every node.
//!
//! A request that arrives does not pass a waiter that is before it in turn, unless that waits for a limit of the other direction.
//!
//! Invariants: a node is among its parent's waiters of a direction <=> it has a waiter of that direction to which it agrees, as of
//! the last change or due instant; a request is charged at all nodes of its path or at none.

use super::{DEPTH_MAX, LimitTree, Passed};
use crate::limits::set::LimitedIo;
use crate::limits::{LimitDirection, NodeId};
use crate::slab::NIL;
use crate::time::Instant;

/// A request of at most this many bytes passes within its part of a limit.
const SMALL_BYTES: u32 = 16 << 10;

impl LimitTree {
    /// Charges a request that passes now; otherwise it waits, and [`LimitTree::pop`] returns it later. The leaf has no waiting
    /// request of its direction.
    pub fn admit(&mut self, now: Instant, leaf: NodeId, io: LimitedIo) -> bool {
        assert!(self.nodes[leaf as usize].is_leaf, "requests are of leaves");
        self.settle_path(now, leaf);
        if let Some(holder) = self.first_refusal(leaf, io) {
            let lacking = self.lacking(holder, io);
            let node = &mut self.nodes[holder as usize];
            let kind = lacking.or(node.set.wait(io.direction, false).1);
            node.report.limited += 1;
            node.report.kind = kind.or(node.report.kind);
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
        self.grant_all(now);
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

    /// Returns the nanoseconds until a node's buckets agree to a request of a child.
    #[inline]
    pub(super) fn bucket_wait_ns(
        &self,
        id: NodeId,
        child: NodeId,
        io: LimitedIo,
        start: u64,
    ) -> u64 {
        let node = &self.nodes[id as usize];
        if node.lease.is_some() {
            return self.lease_wait_ns(id, child, io, io.bytes <= SMALL_BYTES, start);
        }
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
    pub(super) fn charge(&mut self, now: Instant, leaf: NodeId, io: LimitedIo) {
        let mut path = [(NIL, NIL); DEPTH_MAX];
        let (mut len, mut child) = (0, leaf);
        while let Some(id) = Some(self.nodes[child as usize].parent).filter(|id| *id != NIL) {
            path[len] = (id, child);
            (len, child) = (len + 1, id);
        }
        let mut cost_ns = None;
        for (id, child) in path[..len].iter().rev() {
            if !self.nodes[*id as usize].set.is_empty() {
                cost_ns = Some(self.charge_at(now, *id, io));
            }
            let node = &mut self.nodes[*id as usize];
            if let Some(cost_ns) = cost_ns {
                self.turns.charge(&mut node.queue, *child, cost_ns);
            }
        }
        for (id, _) in &path[..len] {
            if self.nodes[*id as usize].lease.is_some() {
                self.request(now, *id, io.direction);
            }
            if self.nodes[*id as usize].queue.has_waiters() {
                self.update_both(now, *id);
            }
        }
    }

    /// Charges a request at one node; returns what it costs there, as time of the limit that it takes longest of.
    #[inline]
    fn charge_at(&mut self, now: Instant, id: NodeId, io: LimitedIo) -> u64 {
        let node = &mut self.nodes[id as usize];
        let cost_ns = node.set.cost_ns(io);
        match node.lease {
            None => node.set.charge(io),
            Some(_) => self.spend(now, id, io),
        }
        cost_ns
    }

    pub(super) fn join(&mut self, now: Instant, child: NodeId, direction: LimitDirection) {
        let parent = self.nodes[child as usize].parent;
        self.settle(now, parent);
        self.turns.join(&mut self.nodes[parent as usize].queue, child, direction);
    }

    pub(super) fn leave(&mut self, now: Instant, child: NodeId, direction: LimitDirection) {
        let parent = self.nodes[child as usize].parent;
        self.turns.leave(&mut self.nodes[parent as usize].queue, child, direction);
        self.update(now, parent, direction);
    }

    /// The leaf that is next below a node.
    pub(super) fn first_leaf(&self, from: NodeId, direction: LimitDirection) -> NodeId {
        let mut id = from;
        while !self.nodes[id as usize].is_leaf {
            let first = self.nodes[id as usize].queue.first(direction);
            id = first.expect("a node that is offered has a waiter");
        }
        id
    }

    pub(super) fn update_both(&mut self, now: Instant, id: NodeId) {
        LimitDirection::ALL.into_iter().for_each(|direction| self.update(now, id, direction));
    }

    /// Looks whether a node agrees to its first waiter of a direction, and offers it to the parent, or withdraws it; then the parent
    /// the same way.
    pub(super) fn update(&mut self, now: Instant, from: NodeId, direction: LimitDirection) {
        let mut id = from;
        loop {
            if self.nodes[id as usize].is_leaf {
                return;
            }
            self.settle(now, id);
            let wait_ns = self.first_wait_ns(id, direction);
            self.set_due(now, id, direction, wait_ns.filter(|wait| *wait > 0));
            let first = self.nodes[id as usize].queue.first(direction);
            let grants = wait_ns == Some(0) && first.is_some_and(|first| self.is_lessee(first));
            if grants {
                self.note_grant(id);
            }
            if self.nodes[id as usize].lease.is_some() {
                self.request(now, id, direction);
            }
            let offers = wait_ns == Some(0) && !grants;
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
    pub(super) fn first_wait_ns(&self, id: NodeId, direction: LimitDirection) -> Option<u64> {
        let node = &self.nodes[id as usize];
        let child = node.queue.first(direction)?;
        let leaf = self.first_leaf(child, direction);
        let io = self.nodes[leaf as usize].heads[direction as usize];
        let io = io.expect("a leaf that waits has a request");
        Some(self.bucket_wait_ns(id, child, io, self.turns.start(&node.queue, child)))
    }
}
