//! Fair queueing by weight: B-WF2Q+ over a tree of shares.
//!
//! ```text
//!   root --weights--> exports --weights--> connections (leaves), each with the cost of its first request
//!
//!   a child of a group:   Forgotten --activate--> Pending (start > V) | Eligible (start <= V)
//!                            ^                       |     V grows        |
//!                            |   finish <= V         `------------------->| serve: start += cost / weight, V += cost / weights
//!                            `-------------- Idle <----no request left----'
//! ```
//!
//! Each group has a virtual time V, which grows by the cost of what its children are served, divided by their weights. A child
//! with requests has a start and a finish: the virtual times between which its first request would be served if all were served
//! at once, each at its rate. Of the children whose start has come (eligible) the one with the least finish goes first, of equals
//! the one whose request came first. If none is eligible when a leaf is asked for ([`ShareTree::advance_to_first`]), V moves to the
//! earliest start; not before, because a child that returns meanwhile would begin at a time that no service has reached. A child that has no request left keeps its finish until V has reached it: returning at once it goes
//! on where it ended, so a client with one request at a time is no newcomer after each answer.
//!
//! Source: Bennett and Zhang, "Hierarchical packet fair queueing algorithms", 1996; the treatment of emptied children is that
//! of Valente's B-WF2Q+ in BFQ. Costs are in nanoseconds of device time or in bytes; the tree does not care.
//!
//! **Bound.** Let a request of cost `l` and a flow of weight `w` arrive at V = v. The flow's last request, of cost `p`, was
//! eligible when it was served, so its finish is at most `v + p / w`: that is where the new one starts at the latest, and it
//! finishes at most `l / w` later. A sibling of weight `x` whose requests cost at most `m` may be one request behind V; until
//! the newcomer is eligible it is served what starts by then, at most one request beyond; and after that only what finishes
//! before the newcomer. So it passes the newcomer with at most `x / w * (p + l) + 3 m`, whatever the number of siblings:
//! with equal weights and costs five requests, and two at the mean. The bounds of the levels add up. A request that is served
//! out of order ([`ShareTree::serve`] of an eligible leaf that is not the first) keeps to it, because it is eligible.
//! Weights: over any time in which a child has requests, its service differs from its share of the group's by at most one
//! request of its own and one of its siblings. The first is tested in `tests/fair_tags/bypass.rs`, the second here.
//!
//! **Slots.** A leaf can also be served for a while under a budget instead of one request at a time, with its actual service
//! charged as it happens: see `slots`. Then a group may have children of three classes, each with a virtual time of its own.
//!
//! Invariants: Eligible <=> start <= V, Pending <=> start > V, for a child with requests that is not in service; `weights` is the
//! sum over all children that are not forgotten; V never goes back; in a tree that is served in slots a group with requests has an
//! eligible child or one in service after every call, in others after `advance_to_first`.

pub(crate) mod balance;
mod change;
pub(crate) mod heap;
mod moving;
mod slots;

pub use change::ShareChange;

use crate::slab::NIL;
use heap::{Heap, HeapKey, HeapLink, is_before};

/// Virtual time of one unit of cost at weight 1, as a shift. Costs up to 2^40 fit: 18 minutes in nanoseconds.
const SHIFT: u32 = 20;

/// The largest cost that is told from larger ones.
const COST_MAX: u64 = 1 << 40;

/// The name of a node of a [`ShareTree`].
pub type ShareId = u32;

/// The state of a node in its parent's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareState {
    /// No request, and its last service lies behind V.
    Forgotten,
    /// It has requests that start after V.
    Pending,
    /// It has requests and its start has come.
    Eligible,
    /// It has a slot, or is on the path to the leaf that has it.
    InService,
    /// No request; it is remembered until V reaches its finish.
    Idle,
}

/// A node: a leaf with requests, or a group of nodes.
#[derive(Clone, Copy, Debug)]
struct ShareNode {
    parent: ShareId,
    /// Index of its group, or `NIL` for a leaf.
    group: u32,
    /// The weight that it was entered with.
    weight: u32,
    /// The weight from its next request on.
    next_weight: u32,
    start: u64,
    finish: u64,
    /// Cost of its first request; for a group, of its best child's.
    cost: u64,
    state: ShareState,
    /// It is in the list of forgotten nodes.
    listed: bool,
    /// Its class among the children of its parent; 0 precedes.
    class: u8,
    /// Service that its start does not count yet; 0 unless it is served in slots.
    service: u64,
    /// Number of the call that gave it its first request; of equal times the earlier goes first.
    arrival: u64,
    /// A number of the caller's.
    owner: u32,
}

/// A node takes one line of the processor's cache.
const _: () = assert!(size_of::<ShareNode>() == 64);

impl ShareNode {
    fn new(parent: ShareId, group: u32, weight: u32, owner: u32) -> Self {
        Self {
            parent,
            group,
            weight,
            next_weight: weight,
            start: 0,
            finish: 0,
            cost: 0,
            state: ShareState::Forgotten,
            listed: false,
            class: 0,
            service: 0,
            arrival: 0,
            owner,
        }
    }

    /// Returns the key of a time of the node's.
    fn key(&self, time: u64) -> HeapKey {
        HeapKey { time, arrival: self.arrival }
    }

    #[inline]
    fn is_active(&self) -> bool {
        matches!(self.state, ShareState::Pending | ShareState::Eligible)
    }
}

/// The children of a node that are of one class.
#[derive(Clone, Copy, Debug)]
struct ShareGroup {
    virtual_time: u64,
    /// Sum of the weights of all children that are not forgotten.
    weights: u64,
    /// Children whose start has not come, by start.
    pending: Heap,
    /// Children that may be served, by finish.
    eligible: Heap,
    /// Children without requests that are remembered, by finish.
    idle: Heap,
    /// The child in service, or `NIL`.
    in_service: ShareId,
    /// Time of the last slot that was given here although a higher class had requests.
    passed_at: u64,
}

impl ShareGroup {
    const EMPTY: Self = Self {
        virtual_time: 0,
        weights: 0,
        pending: Heap::new(),
        eligible: Heap::new(),
        idle: Heap::new(),
        in_service: NIL,
        passed_at: 0,
    };

    fn heap(&mut self, state: ShareState) -> &mut Heap {
        match state {
            ShareState::Pending => &mut self.pending,
            ShareState::Eligible => &mut self.eligible,
            ShareState::Idle => &mut self.idle,
            ShareState::InService => unreachable!("a node in service is in no heap"),
            ShareState::Forgotten => unreachable!("a forgotten node is in no heap"),
        }
    }

    #[inline]
    fn is_active(&self) -> bool {
        !self.eligible.is_empty() || !self.pending.is_empty()
    }
}

/// 2^64 / weight, rounded down, for the weights that are configured. A division takes as long as several multiplications, and
/// a slot needs six of them.
static RECIPROCALS: [u64; 10_001] = {
    let mut reciprocals = [0; 10_001];
    let mut weight = 1;
    while weight < reciprocals.len() {
        reciprocals[weight] = u64::MAX / weight as u64;
        weight += 1;
    }
    reciprocals
};

/// Returns the virtual time of a cost at a weight: their quotient, rounded down.
#[inline]
fn span(cost: u64, weight: u64) -> u64 {
    debug_assert!(weight > 0, "a weight of 0 never finishes");
    let time = cost.min(COST_MAX) << SHIFT;
    let Some(&reciprocal) = RECIPROCALS.get(weight as usize) else {
        return time / weight;
    };
    // At most one less than the quotient, as time < 2^64.
    let span = ((u128::from(time) * u128::from(reciprocal)) >> 64) as u64;
    span + u64::from(time - span * weight >= weight)
}

/// A tree of shares, which decides by weight at every level which leaf is served next.
#[derive(Debug)]
pub struct ShareTree {
    nodes: Vec<ShareNode>,
    /// The place of each node in its heap.
    links: Vec<HeapLink>,
    groups: Vec<ShareGroup>,
    free_nodes: Vec<ShareId>,
    free_groups: Vec<u32>,
    /// Nodes that were forgotten and not yet reported.
    forgotten: Vec<ShareId>,
    /// Number of activations and services.
    arrivals: u64,
    nodes_max: usize,
    groups_max: usize,
    /// Classes of each group: 1, or those of a tree that is served in slots.
    classes: u32,
}

impl ShareTree {
    /// The root, a group.
    pub const ROOT: ShareId = 0;

    /// Creates a tree with space for `groups_max` groups and `leaves_max` leaves beside the root; nothing is allocated later.
    #[must_use]
    pub fn new(groups_max: usize, leaves_max: usize) -> Self {
        Self::with_classes(1, groups_max, leaves_max)
    }

    fn with_classes(classes: u32, groups_max: usize, leaves_max: usize) -> Self {
        let nodes_max = groups_max + leaves_max + 1;
        let groups_max = (groups_max + 1) * classes as usize;
        let mut tree = Self {
            nodes: Vec::with_capacity(nodes_max),
            links: Vec::with_capacity(nodes_max),
            groups: Vec::with_capacity(groups_max),
            free_nodes: Vec::with_capacity(nodes_max),
            free_groups: Vec::with_capacity(groups_max),
            forgotten: Vec::with_capacity(nodes_max),
            arrivals: 0,
            nodes_max,
            groups_max,
            classes,
        };
        tree.nodes.push(ShareNode::new(NIL, 0, 1, NIL));
        tree.links.push(HeapLink::UNLINKED);
        tree.groups.extend((0..classes).map(|_| ShareGroup::EMPTY));
        tree
    }

    /// Adds a leaf below a group; `owner` is a number of the caller's.
    pub fn add_leaf(&mut self, parent: ShareId, weight: u32, owner: u32) -> ShareId {
        self.add(ShareNode::new(parent, NIL, weight, owner))
    }

    /// Adds a group below a group; `owner` is a number of the caller's.
    pub fn add_group(&mut self, parent: ShareId, weight: u32, owner: u32) -> ShareId {
        let classes = self.classes;
        let group = self.free_groups.pop().unwrap_or_else(|| {
            assert!(self.groups.len() < self.groups_max, "more groups than announced");
            self.groups.extend((0..classes).map(|_| ShareGroup::EMPTY));
            self.groups.len() as u32 - classes
        });
        self.groups[group as usize..][..classes as usize].fill(ShareGroup::EMPTY);
        let class = if classes > 1 { slots::GROUP_CLASS } else { 0 };
        self.add(ShareNode { class, ..ShareNode::new(parent, group, weight, owner) })
    }

    fn add(&mut self, node: ShareNode) -> ShareId {
        assert!(node.weight > 0, "a weight is at least 1");
        assert!(self.nodes[node.parent as usize].group != NIL, "a parent is a group");
        if let Some(id) = self.free_nodes.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        assert!(self.nodes.len() < self.nodes_max, "more nodes than announced");
        self.nodes.push(node);
        self.links.push(HeapLink::UNLINKED);
        self.nodes.len() as u32 - 1
    }

    /// Removes a node without requests; a group's children are removed first.
    pub fn remove(&mut self, id: ShareId) {
        assert!(id != Self::ROOT, "the root stays");
        self.forget(id);
        // It may be in the list of forgotten nodes already, and its caller knows.
        self.nodes[id as usize].listed = false;
        let group = self.nodes[id as usize].group;
        if group != NIL {
            let empty = self.groups_of(group).all(|group| self.groups[group].weights == 0);
            assert!(empty, "a group's children go first");
            self.free_groups.push(group);
        }
        self.free_nodes.push(id);
    }

    /// Forgets the past of a node without requests, so that its next request starts now.
    pub fn forget(&mut self, id: ShareId) {
        let node = self.nodes[id as usize];
        assert!(!node.is_active(), "a node with requests is kept");
        assert!(node.state != ShareState::InService, "a node in service is kept");
        if node.state == ShareState::Idle {
            let group = self.home(id);
            self.groups[group].idle.remove(&mut self.links, id);
            self.groups[group].weights -= u64::from(node.weight);
            self.nodes[id as usize].state = ShareState::Forgotten;
        }
    }

    /// Forgets the past of every node. No leaf may have a request.
    pub fn forget_all(&mut self) {
        for group in 0..self.groups.len() {
            assert!(!self.groups[group].is_active(), "a tree with requests is kept");
            while self.forget_first(group) {}
        }
    }

    /// Returns the owner of a node that was forgotten because V has passed it, each once. The caller may remove it.
    pub fn next_forgotten(&mut self) -> Option<(ShareId, u32)> {
        while let Some(id) = self.forgotten.pop() {
            let node = &mut self.nodes[id as usize];
            if std::mem::take(&mut node.listed) && node.state == ShareState::Forgotten {
                return Some((id, node.owner));
            }
        }
        None
    }

    /// Sets a node's weight from its next request on.
    pub fn set_weight(&mut self, id: ShareId, weight: u32) {
        assert!(weight > 0, "a weight is at least 1");
        self.nodes[id as usize].next_weight = weight;
    }

    /// Gives a leaf without requests its first one.
    pub fn activate(&mut self, leaf: ShareId, cost: u64) {
        debug_assert!(self.nodes[leaf as usize].group == NIL, "a leaf has requests");
        assert!(!self.nodes[leaf as usize].is_active(), "a leaf is activated once");
        self.arrivals += 1;
        self.activate_path(leaf, cost, None);
    }

    /// Puts a node and the groups above it into their heaps, with the cost of the first request of each. `hole` is described in
    /// `slots`. A group in service takes the cost of its best child when its slot ends.
    fn activate_path(&mut self, id: ShareId, cost: u64, hole: Option<u64>) {
        let (mut id, mut cost) = (id, cost);
        while id != Self::ROOT && self.nodes[id as usize].state != ShareState::InService {
            let (parent, group) = (self.nodes[id as usize].parent, self.home(id));
            if self.nodes[id as usize].is_active() {
                if self.nodes[id as usize].cost == cost {
                    return;
                }
                self.take_out(group, id);
            } else {
                self.enter(group, id);
                if let Some(raise) = hole {
                    self.shift_back(group, id, cost, raise);
                }
            }
            self.put_in(group, id, cost);
            self.settle(group);
            cost = self.best_cost(parent).expect("a group with a request has a best child");
            id = parent;
        }
    }

    /// Takes a node without requests into its group: it starts now, or where its last service ended.
    fn enter(&mut self, group: usize, id: ShareId) {
        let node = &mut self.nodes[id as usize];
        let now = self.groups[group].virtual_time;
        match node.state {
            ShareState::Idle => {
                node.start = if is_before(node.finish, now) { now } else { node.finish };
                self.groups[group].idle.remove(&mut self.links, id);
                self.groups[group].weights -= u64::from(self.nodes[id as usize].weight);
            }
            _ => node.start = now,
        }
        let node = &mut self.nodes[id as usize];
        node.weight = node.next_weight;
        node.arrival = self.arrivals;
        self.groups[group].weights += u64::from(node.weight);
    }

    /// Removes a node with requests from its heap; its start stays.
    #[inline]
    fn take_out(&mut self, group: usize, id: ShareId) {
        let state = self.nodes[id as usize].state;
        self.groups[group].heap(state).remove(&mut self.links, id);
    }

    /// Puts a node into the heap of its start, with the cost of its first request.
    fn put_in(&mut self, group: usize, id: ShareId, cost: u64) {
        let (node, now) = (&mut self.nodes[id as usize], self.groups[group].virtual_time);
        node.cost = cost;
        node.finish = node.start.wrapping_add(span(cost, node.weight.into()));
        let (state, key) = match is_before(now, node.start) {
            true => (ShareState::Pending, node.key(node.start)),
            false => (ShareState::Eligible, node.key(node.finish)),
        };
        node.state = state;
        self.groups[group].heap(state).push(&mut self.links, id, key);
    }

    /// Moves the children whose time has come: from pending to eligible, from idle to forgotten.
    #[inline(always)]
    fn settle(&mut self, group: usize) {
        self.make_eligible(group);
        self.forget_passed(group);
    }

    /// Moves the children whose start has come from pending to eligible.
    #[inline(always)]
    fn make_eligible(&mut self, group: usize) {
        let entry = &mut self.groups[group];
        let Some(start) = entry.pending.top_time(&self.links) else {
            return;
        };
        if is_before(entry.virtual_time, start) {
            if self.classes == 1 || !entry.eligible.is_empty() || entry.in_service != NIL {
                return;
            }
            entry.virtual_time = start;
        }
        self.move_pending(group);
    }

    /// Moves V to the earliest start where none is eligible, from the root down to the leaf that is served next: now one is asked
    /// for. Earlier, a child that comes meanwhile would begin at a time that no service has reached.
    pub fn advance_to_first(&mut self) {
        let mut id = Self::ROOT;
        while self.nodes[id as usize].group != NIL {
            let group = self.nodes[id as usize].group as usize;
            let entry = &mut self.groups[group];
            if entry.eligible.is_empty() {
                let Some(start) = entry.pending.top_time(&self.links) else {
                    return;
                };
                entry.virtual_time = start;
                self.move_pending(group);
            }
            id = self.groups[group].eligible.top().expect("the earliest is eligible");
        }
    }

    #[inline(never)]
    fn move_pending(&mut self, group: usize) {
        let entry = &mut self.groups[group];
        let now = entry.virtual_time;
        while let Some(start) = entry.pending.top_time(&self.links)
            && !is_before(now, start)
        {
            let id = entry.pending.pop(&mut self.links).expect("the heap has a top");
            let node = &mut self.nodes[id as usize];
            node.state = ShareState::Eligible;
            let key = node.key(node.finish);
            entry.eligible.push(&mut self.links, id, key);
        }
        debug_assert!(self.is_sound(group), "the invariants of a group hold");
    }

    /// Forgets the idle children whose finish V has reached.
    #[inline(always)]
    fn forget_passed(&mut self, group: usize) {
        while let Some(end) = self.groups[group].idle.top_time(&self.links)
            && !is_before(self.groups[group].virtual_time, end)
        {
            self.forget_first(group);
        }
    }

    /// Forgets the idle child with the least finish; returns false if there is none. What is below a forgotten group is
    /// forgotten with it.
    #[inline(never)]
    fn forget_first(&mut self, group: usize) -> bool {
        let entry = &mut self.groups[group];
        let Some(id) = entry.idle.pop(&mut self.links) else {
            return false;
        };
        self.forget_child(group, id);
        true
    }

    /// Forgets a child without requests that is in no heap, and what is below it.
    fn forget_child(&mut self, group: usize, id: ShareId) {
        let node = &mut self.nodes[id as usize];
        node.state = ShareState::Forgotten;
        self.groups[group].weights -= u64::from(node.weight);
        let below = node.group;
        if !std::mem::replace(&mut node.listed, true) && self.forgotten.len() < self.nodes_max {
            self.forgotten.push(id);
        }
        if below != NIL {
            for group in self.groups_of(below) {
                while self.forget_first(group) {}
            }
        }
    }

    /// Returns the leaf that is served next, if any has a request.
    #[must_use]
    pub fn first(&self) -> Option<ShareId> {
        let mut id = Self::ROOT;
        while self.nodes[id as usize].group != NIL {
            let below = self.nodes[id as usize].group;
            id = self.groups_of(below).find_map(|group| self.groups[group].eligible.top())?;
        }
        Some(id)
    }

    /// Sets the caller's number of a node.
    pub fn set_owner(&mut self, id: ShareId, owner: u32) {
        self.nodes[id as usize].owner = owner;
    }

    /// Returns the caller's number of a node.
    #[must_use]
    pub fn owner(&self, id: ShareId) -> u32 {
        self.nodes[id as usize].owner
    }

    /// Returns true if a leaf has a request that may be served now: it and every group above are eligible.
    #[must_use]
    pub fn is_eligible(&self, leaf: ShareId) -> bool {
        let mut id = leaf;
        while id != Self::ROOT {
            let node = &self.nodes[id as usize];
            if node.state != ShareState::Eligible {
                return false;
            }
            id = node.parent;
        }
        true
    }

    /// Returns true if a leaf has a request that may be served before V grows by a request of `cost`: it and every group above
    /// start by then.
    #[must_use]
    pub fn starts_within(&self, leaf: ShareId, cost: u64) -> bool {
        let mut id = leaf;
        while id != Self::ROOT {
            let node = &self.nodes[id as usize];
            let ShareGroup { virtual_time, weights, .. } = self.groups[self.home(id)];
            let end = virtual_time.wrapping_add(span(cost, weights.max(1)));
            if !node.is_active() || is_before(end, node.start) {
                return false;
            }
            id = node.parent;
        }
        true
    }

    /// Serves the first request of a leaf; `next` is the cost of the one after it, if there is one. The leaf is remembered until
    /// the next call, even if V has passed it: it may yet be charged for more.
    pub fn serve(&mut self, leaf: ShareId, next: Option<u64>) {
        debug_assert!(self.nodes[leaf as usize].group == NIL, "a leaf is served");
        assert!(self.nodes[leaf as usize].is_active(), "a leaf with a request is served");
        self.arrivals += 1;
        let cost = self.nodes[leaf as usize].cost;
        let (mut id, mut next) = (leaf, next);
        while id != Self::ROOT {
            let (parent, group) = (self.nodes[id as usize].parent, self.home(id));
            self.forget_passed(group);
            self.take_out(group, id);
            self.advance(group, cost);
            let node = &mut self.nodes[id as usize];
            node.start = node.start.wrapping_add(span(cost, node.weight.into()));
            node.arrival = self.arrivals;
            match next {
                Some(cost) => {
                    self.reweigh(group, id);
                    self.put_in(group, id, cost);
                }
                None => self.rest(group, id),
            }
            self.make_eligible(group);
            next = self.best_cost(parent);
            id = parent;
        }
    }

    /// Withdraws the first request of a leaf, which is not served and pays nothing; `next` is the cost of the one after it, if
    /// there is one. A leaf that is served in slots has none, and pays the service that it had.
    pub fn withdraw(&mut self, leaf: ShareId, next: Option<u64>) {
        debug_assert!(self.nodes[leaf as usize].group == NIL, "a leaf has requests");
        assert!(self.nodes[leaf as usize].is_active(), "a request is withdrawn once");
        self.leave(leaf, next);
    }

    /// Takes a node with requests out of its group, or gives it the cost of its next request, and the groups above it likewise.
    fn leave(&mut self, id: ShareId, next: Option<u64>) {
        let (mut id, mut next) = (id, next);
        while id != Self::ROOT && self.nodes[id as usize].state != ShareState::InService {
            let (parent, group) = (self.nodes[id as usize].parent, self.home(id));
            self.take_out(group, id);
            match next {
                Some(cost) => self.put_in(group, id, cost),
                None => {
                    self.count_service(id);
                    self.rest(group, id);
                }
            }
            self.settle(group);
            next = self.best_cost(parent);
            id = parent;
        }
    }

    /// Charges a leaf for more than its served requests were counted for; below 0 for less. Less than they were counted for
    /// does not move V back.
    pub fn charge(&mut self, leaf: ShareId, cost: i64) {
        let mut id = leaf;
        while id != Self::ROOT {
            let ShareNode { parent, state, .. } = self.nodes[id as usize];
            let group = self.home(id);
            if state == ShareState::Forgotten {
                return;
            }
            self.take_out(group, id);
            self.advance(group, cost.max(0).unsigned_abs());
            let node = &mut self.nodes[id as usize];
            let more = span(cost.unsigned_abs(), node.weight.into());
            let more = if cost < 0 { more.wrapping_neg() } else { more };
            if state == ShareState::Idle {
                node.start = node.finish.wrapping_add(more);
                self.rest(group, id);
            } else {
                node.start = node.start.wrapping_add(more);
                let first = node.cost;
                self.put_in(group, id, first);
            }
            self.settle(group);
            id = parent;
        }
    }

    /// Takes over a node's new weight.
    #[inline]
    fn reweigh(&mut self, group: usize, id: ShareId) {
        let node = &mut self.nodes[id as usize];
        let weights = &mut self.groups[group].weights;
        *weights = *weights - u64::from(node.weight) + u64::from(node.next_weight);
        node.weight = node.next_weight;
    }

    /// Remembers a node without requests until V has reached its last service.
    fn rest(&mut self, group: usize, id: ShareId) {
        let node = &mut self.nodes[id as usize];
        node.finish = node.start;
        node.state = ShareState::Idle;
        let key = node.key(node.finish);
        self.groups[group].idle.push(&mut self.links, id, key);
    }

    /// Advances a group's virtual time by a service.
    #[inline]
    fn advance(&mut self, group: usize, cost: u64) {
        let entry = &mut self.groups[group];
        debug_assert!(entry.weights > 0, "a child that is served has a weight");
        let more = span(cost, entry.weights);
        entry.virtual_time = entry.virtual_time.wrapping_add(more);
    }

    /// Returns the cost of the child of a group that is served next.
    fn best_cost(&self, parent: ShareId) -> Option<u64> {
        let below = self.nodes[parent as usize].group;
        let best = self.groups_of(below).find_map(|group| {
            let ShareGroup { eligible, pending, .. } = &self.groups[group];
            eligible.top().or(pending.top())
        });
        best.map(|id| self.nodes[id as usize].cost)
    }

    /// Returns the children of a node of its class, this node among them.
    #[inline]
    fn home(&self, id: ShareId) -> usize {
        let ShareNode { parent, class, .. } = self.nodes[id as usize];
        let group = self.nodes[parent as usize].group;
        debug_assert!(group != NIL, "a leaf has no children");
        debug_assert!(u32::from(class) < self.classes, "a class of this tree");
        group as usize + usize::from(class)
    }

    /// Returns the children of the group that begins at `first`, class by class.
    #[inline]
    fn groups_of(&self, first: u32) -> std::ops::Range<usize> {
        debug_assert!(first != NIL, "a leaf has no children");
        first as usize..(first + self.classes) as usize
    }

    /// Returns true if a group's heaps agree with its virtual time.
    fn is_sound(&self, group: usize) -> bool {
        let entry = &self.groups[group];
        let now = entry.virtual_time;
        let pending = entry.pending.top_time(&self.links);
        pending.is_none_or(|start| is_before(now, start))
            && (self.classes == 1
                || entry.in_service != NIL
                || entry.is_active() != entry.eligible.is_empty())
    }
}

#[cfg(test)]
mod tests;
