//! Nodes that come, go and change: what was admitted still counts, and no waiter is forgotten.

use super::{DEPTH_MAX, LimitNode, LimitReport, LimitTree, Passed};
use crate::limits::set::BucketSet;
use crate::limits::turn::{Link, TurnQueue};
use crate::limits::{LimitDirection, Limits, NodeId};
use crate::slab::NIL;
use crate::time::Instant;

impl LimitTree {
    /// Adds a node for a tenant or an export; `owner` is a number of the caller's.
    pub fn add_group(&mut self, parent: NodeId, weight: u32, owner: u32) -> NodeId {
        self.insert(parent, weight, owner, false)
    }

    /// Adds a node for a connection.
    pub fn add_leaf(&mut self, parent: NodeId, weight: u32, owner: u32) -> NodeId {
        self.insert(parent, weight, owner, true)
    }

    pub(super) fn insert(
        &mut self,
        parent: NodeId,
        weight: u32,
        owner: u32,
        is_leaf: bool,
    ) -> NodeId {
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
            lease: None,
            lessee: None,
            lessees: Vec::new(),
            grants: false,
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
        self.dismiss_all(now, id);
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
        self.settle_lease(now, id, true);
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
            let is_below = !self.is_lessee(leaf) && self.path(leaf).any(|above| above == id);
            for direction in LimitDirection::ALL.into_iter().filter(|_| is_below) {
                let node = &mut self.nodes[leaf as usize];
                if node.heads[direction as usize].take().is_some() {
                    pass(Passed { owner: node.owner, direction });
                    self.leave(now, leaf, direction);
                }
            }
        }
    }
}
