//! Service in slots: one leaf is in service for a while under a budget, and is charged what it is served.
//!
//! ```text
//!   Eligible --begin_slot--> InService --end_slot, requests left--> Pending | Eligible   start += service / weight, finish by the
//!                               |                                                        next budget
//!                               '------ end_slot, none left ------> Idle
//! ```
//!
//! A leaf's cost is its budget, the most that one slot serves it. While it is in service it and all groups above it are in no
//! heap; `consume` adds to the service of each and advances V at every level, so V moves with what was really served. A leaf that
//! is served out of its turn (injection) pays in the same way, and counts the service when its next slot ends. A group's budget is
//! that of its best child.
//!
//! Classes: the children of a group are of three classes, 0 first. Class 2 goes first once in [`IDLE_NS`] while it has requests,
//! so that it does not starve.
//!
//! Hole: a leaf that returns soon after a slot that it did not use up goes on from its old finish although V has passed it, as if
//! it had never been empty. It gains at most one budget by that: its finish is moved to V if it lies further back.
//!
//! **Bound.** For a leaf that has requests over an interval, at each level |service - share * service of the siblings| is at most
//! the largest budget plus the largest request (worst-case fairness of WF2Q+ with budgets as packets). It does not depend on the
//! speed of the device. The bounds of the levels add up.
//!
//! Invariants: at most one child in service in a group; the path from the leaf in service to the root is in service; `service` is
//! 0 for a node without requests.

use super::{ShareId, ShareNode, ShareState, ShareTree, is_before, span};
use crate::slab::NIL;
use crate::time::{Instant, MS};

/// Classes of the children of a group.
const CLASSES: u32 = 3;

/// The class of groups among their siblings: classes are compared among the leaves of one group.
pub(super) const GROUP_CLASS: u8 = 1;

/// The class that is served at least once in [`IDLE_NS`].
const IDLE_CLASS: usize = 2;

/// Levels of a tree that is served in slots, below the root: tenant, export, queue.
const LEVELS: usize = 3;

/// The longest time for which requests of the idle class wait behind other classes. 200 ms: as Linux.
const IDLE_NS: u64 = 200 * MS;

impl ShareTree {
    /// Creates a tree that is served in slots, with space for `groups_max` groups and `leaves_max` leaves beside the root.
    #[must_use]
    pub fn in_slots(groups_max: usize, leaves_max: usize) -> Self {
        Self::with_classes(CLASSES, groups_max, leaves_max)
    }

    /// Adds a leaf of a class (0 first) below a group; `owner` is a number of the caller's.
    pub fn add_leaf_of(&mut self, parent: ShareId, class: u8, weight: u32, owner: u32) -> ShareId {
        assert!(u32::from(class) < self.classes, "a class of this tree");
        let leaf = ShareNode::new(parent, NIL, weight, owner);
        self.add(ShareNode { class, ..leaf })
    }

    /// Gives a leaf that returns after a hole its first request: it goes on where its last slot ended. The groups above it do, too.
    /// A leaf whose weight is raised by the factor `raise` keeps more of what it missed.
    pub fn activate_after_hole(&mut self, leaf: ShareId, budget: u64, raise: u64) {
        assert!(raise > 0, "a weight is raised by a factor");
        debug_assert!(!self.nodes[leaf as usize].is_active(), "a leaf is activated once");
        self.arrivals += 1;
        self.activate_path(leaf, budget, Some(raise));
    }

    /// Moves the start of a node that entered its group back to its last finish, and forward again so that it finishes at V or
    /// later.
    pub(super) fn shift_back(&mut self, group: usize, id: ShareId, cost: u64, raise: u64) {
        let now = self.groups[group].virtual_time;
        let node = &mut self.nodes[id as usize];
        if is_before(node.finish, node.start) {
            node.start = node.finish;
        }
        let finish = node.start.wrapping_add(span(cost, node.weight.into()));
        if is_before(finish, now) {
            let raise = if node.group == NIL { raise } else { 1 };
            node.start = node.start.wrapping_add(now.wrapping_sub(finish) / raise);
        }
        debug_assert!(!is_before(now, node.start) || node.start == node.finish, "back, not on");
    }

    /// Changes the budget of a leaf that has requests and is not in service, and takes over its new weight.
    pub fn set_budget(&mut self, leaf: ShareId, budget: u64) {
        let group = self.home(leaf);
        assert!(self.nodes[leaf as usize].is_active(), "only a waiting leaf's budget changes");
        self.take_out(group, leaf);
        self.reweigh(group, leaf);
        self.put_in(group, leaf, budget);
        self.settle(group);
        let parent = self.nodes[leaf as usize].parent;
        let cost = self.best_cost(parent).expect("a group with a request has a best child");
        self.activate_path(parent, cost, None);
    }

    /// Puts the leaf whose turn it is into service; returns it, or `None` if none has a request. None may be in service.
    pub fn begin_slot(&mut self, now: Instant) -> Option<ShareId> {
        let mut id = Self::ROOT;
        while self.nodes[id as usize].group != NIL {
            let group = self.class_to_serve(now, id)?;
            debug_assert!(self.groups[group].in_service == NIL, "one child is in service at once");
            self.make_eligible(group);
            let child = self.groups[group].eligible.pop(&mut self.links);
            id = child.expect("a group with requests has an eligible child");
            self.nodes[id as usize].state = ShareState::InService;
            self.groups[group].in_service = id;
        }
        Some(id)
    }

    /// Returns the children of `parent` that are served next: those of the first class that has any, but of the idle class if it has
    /// waited for long.
    fn class_to_serve(&mut self, now: Instant, parent: ShareId) -> Option<usize> {
        let mut groups = self.groups_of(self.nodes[parent as usize].group);
        let idle = groups.start + IDLE_CLASS;
        if now.since(Instant(self.groups[idle].passed_at)) > IDLE_NS {
            self.groups[idle].passed_at = now.0;
            if self.groups[idle].is_active() {
                return Some(idle);
            }
        }
        groups.find(|&group| self.groups[group].is_active())
    }

    /// Charges a leaf that has requests, in service or not, for a service of `cost`.
    pub fn consume(&mut self, leaf: ShareId, cost: u64) {
        debug_assert!(self.nodes[leaf as usize].group == NIL, "a leaf is served");
        let mut id = leaf;
        while id != Self::ROOT {
            let (parent, group) = (self.nodes[id as usize].parent, self.home(id));
            let node = &self.nodes[id as usize];
            let waits = node.is_active() || node.state == ShareState::InService;
            assert!(waits, "a node with requests is served");
            self.count_cost(group, id, cost);
            self.make_eligible(group);
            id = parent;
        }
    }

    /// Counts a service of `cost` for a node and in the virtual time of its siblings.
    #[inline(always)]
    fn count_cost(&mut self, group: usize, id: ShareId, cost: u64) {
        self.nodes[id as usize].service += cost;
        self.forget_passed(group);
        self.advance(group, cost);
    }

    /// Ends the slot of the leaf in service and charges it for `cost` that it was not charged yet; `next` is its budget for the next
    /// slot if it has more requests.
    pub fn end_slot(&mut self, leaf: ShareId, cost: u64, next: Option<u64>) {
        self.arrivals += 1;
        let (mut id, mut next) = (leaf, next);
        while id != Self::ROOT {
            let (parent, group) = (self.nodes[id as usize].parent, self.home(id));
            assert!(self.groups[group].in_service == id, "the leaf and its groups are in service");
            if cost > 0 {
                self.count_cost(group, id, cost);
            }
            self.groups[group].in_service = NIL;
            self.count_service(id);
            self.nodes[id as usize].arrival = self.arrivals;
            match next {
                Some(budget) => {
                    self.reweigh(group, id);
                    self.put_in(group, id, budget);
                }
                None => self.rest_or_forget(group, id),
            }
            self.make_eligible(group);
            next = self.best_cost(parent);
            id = parent;
        }
    }

    /// Remembers a node without requests, unless V has reached its last service already, as that of an only child always has.
    fn rest_or_forget(&mut self, group: usize, id: ShareId) {
        let node = &mut self.nodes[id as usize];
        if is_before(self.groups[group].virtual_time, node.start) {
            return self.rest(group, id);
        }
        node.finish = node.start;
        self.forget_child(group, id);
    }

    /// Counts the service of a node in its start: its last slot has ended.
    pub(super) fn count_service(&mut self, id: ShareId) {
        let node = &mut self.nodes[id as usize];
        let service = std::mem::take(&mut node.service);
        node.start = node.start.wrapping_add(span(service, node.weight.into()));
    }

    /// Returns true if a leaf other than the one in service could be served next.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        let mut id = Self::ROOT;
        while id != NIL && self.nodes[id as usize].group != NIL {
            let groups = self.groups_of(self.nodes[id as usize].group);
            if groups.clone().any(|group| self.groups[group].is_active()) {
                return true;
            }
            let mut in_service = groups.map(|group| self.groups[group].in_service);
            id = in_service.find(|&child| child != NIL).unwrap_or(NIL);
        }
        false
    }

    /// Returns the finish of a waiting leaf and of the groups above it, from the root on, relative to V of each: a leaf of
    /// smaller finishes is served earlier. There are at most `LEVELS` of them.
    #[must_use]
    pub fn finish_order(&self, leaf: ShareId) -> [i64; LEVELS] {
        let mut order = [0; LEVELS];
        let (mut id, mut level) = (leaf, 0);
        while id != Self::ROOT {
            let node = &self.nodes[id as usize];
            let behind = node.finish.wrapping_sub(self.groups[self.home(id)].virtual_time);
            order[level] = behind as i64;
            (id, level) = (node.parent, level + 1);
        }
        order[..level].reverse();
        order
    }

    /// Returns the virtual time of the root's children, for display.
    #[must_use]
    pub fn virtual_time(&self, parent: ShareId, class: u8) -> u64 {
        let first = self.nodes[parent as usize].group;
        self.groups[first as usize + usize::from(class)].virtual_time
    }

    /// Returns the node above another.
    #[cfg(test)]
    pub(crate) fn parent(&self, id: ShareId) -> ShareId {
        self.nodes[id as usize].parent
    }

    /// Begins all times of a tree that has served nothing at `time`.
    #[cfg(test)]
    pub(super) fn begin_at(&mut self, time: u64) {
        self.groups.iter_mut().for_each(|group| group.virtual_time = time);
        self.nodes.iter_mut().for_each(|node| (node.start, node.finish) = (time, time));
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
