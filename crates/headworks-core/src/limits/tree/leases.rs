//! Nodes of which several shards admit requests: the home lends tokens, the other shards hold them.
//!
//! A node lives on one shard, its home, where its buckets are. The trees of other shards have the node, too, with a lease instead
//! of buckets (`lease`). At the home every lessee with an outstanding request is a child of the node: it competes with the other
//! children by the weights that are busy on its shard, and is charged what it is granted, at this node alone.
//!
//! A node that moves takes what it has admitted with it, as time at its rates.
//!
//! Invariants: a node is leased or has lessees, not both; a lessee waits in a direction <=> it has a request of it; only requests of
//! lessees are granted, and each is answered once, or replaced.

use super::LimitTree;
use crate::bio::ShardId;
use crate::limits::lease::{Lease, quantum_ns};
use crate::limits::lessee::{Lessee, OutgoingLease};
use crate::limits::set::{BucketSet, LimitedIo};
use crate::limits::tokens::{LeaseMessage, LeaseRequest, Tokens};
use crate::limits::{LimitDirection, LimitKind, NodeId};
use crate::time::{Instant, MS};

/// A lessee is told as often that its request waits.
const QUEUED_NS: u64 = 250 * MS;

/// The request of a lessee as a waiter: its bytes decide whether it may pass within its part, which what is only lent in advance
/// may not.
fn head_of(request: &LeaseRequest) -> LimitedIo {
    let needed = request.owed().plus(request.need());
    let bytes = if needed.is_zero() { i64::MAX } else { needed.bytes };
    LimitedIo { direction: request.direction, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) }
}

/// What may be used before it is leased, of each direction.
fn overdraft(set: &BucketSet, direction: LimitDirection, shards: u16) -> Tokens {
    set.tokens_in(direction, quantum_ns(shards) / 2)
}

impl LimitTree {
    /// Sets the number of shards that have this tree; 1 at first.
    pub fn set_shards(&mut self, shards: u16) {
        self.shards = shards;
    }

    /// Sets the shard on which a node lives; none if it is this one, as at first. What it has admitted goes with it.
    pub fn set_home(&mut self, now: Instant, id: NodeId, home: Option<ShardId>) {
        let node = &mut self.nodes[id as usize];
        match (&mut node.lease, home) {
            (None, None) => return,
            (Some(lease), Some(home)) if lease.home() == home => return,
            (Some(lease), Some(home)) => lease.follow(home),
            (Some(_), None) => self.end_lease(id),
            (lease @ None, Some(home)) => {
                *lease = Some(Box::new(Lease::new(home)));
                self.hand_over(now, id, home);
            }
        }
        self.update_both(now, id);
    }

    /// Keeps what a lease holds as a refund, and what it owes as a charge.
    fn end_lease(&mut self, id: NodeId) {
        let node = &mut self.nodes[id as usize];
        let Some(mut lease) = node.lease.take() else { return };
        for direction in LimitDirection::ALL {
            let balance = lease.close(direction);
            node.set.refund(direction, balance.surplus());
            node.set.charge_tokens(direction, balance.debt());
        }
    }

    /// Sends what a node has admitted to its new home, and lessees away.
    fn hand_over(&mut self, now: Instant, id: NodeId, home: ShardId) {
        self.settle(now, id);
        for (kind, main_ns, burst_ns) in self.nodes[id as usize].set.levels() {
            if main_ns > 0 || burst_ns > 0 {
                let message = LeaseMessage::Carry { kind, main_ns, burst_ns };
                self.outgoing.push_back(OutgoingLease { node: id, to: home, message });
            }
        }
        self.dismiss_all(now, id);
    }

    /// Removes the lessees of a node.
    pub(super) fn dismiss_all(&mut self, now: Instant, id: NodeId) {
        for lessee in std::mem::take(&mut self.nodes[id as usize].lessees) {
            self.dismiss(now, id, lessee);
        }
    }

    /// Removes a lessee, whose requests are refused.
    fn dismiss(&mut self, now: Instant, id: NodeId, child: NodeId) {
        let lessee = self.nodes[child as usize].lessee.take().expect("a child of a shard");
        for request in lessee.requests() {
            self.refuse(id, lessee.shard(), request);
        }
        self.withdraw(now, child);
        self.remove(now, child);
    }

    fn refuse(&mut self, node: NodeId, to: ShardId, request: &LeaseRequest) {
        let LeaseRequest { direction, serial, .. } = *request;
        let message = LeaseMessage::Refused { direction, serial };
        self.outgoing.push_back(OutgoingLease { node, to, message });
    }

    /// Takes a message about a node in. What may pass then does so at the next [`LimitTree::pop`].
    pub fn on_message(&mut self, now: Instant, id: NodeId, from: ShardId, message: LeaseMessage) {
        let node = &mut self.nodes[id as usize];
        match message {
            LeaseMessage::Request(request) if node.lease.is_some() => {
                self.refuse(id, from, &request);
            }
            LeaseMessage::Request(request) => self.on_request(now, id, from, request),
            LeaseMessage::Return { direction, tokens } => {
                // What was leased at higher rates is worth no more than a quantum of the present ones.
                let quantum = node.set.burst_tokens_in(direction, quantum_ns(self.shards));
                node.set.settle(now);
                node.set.refund(direction, tokens.min(quantum));
                self.update_both(now, id);
            }
            LeaseMessage::Carry { kind, main_ns, burst_ns } => {
                node.set.settle(now);
                node.set.charge_ns(kind, main_ns, burst_ns);
                self.update_both(now, id);
            }
            _ => {
                if node.lease.as_mut().is_some_and(|lease| lease.on_message(now, from, message)) {
                    self.update_both(now, id);
                }
                self.request_both(now, id);
            }
        }
    }

    /// Queues the request of a lessee, whose weight beside its siblings is that of what is busy there.
    fn on_request(&mut self, now: Instant, id: NodeId, from: ShardId, request: LeaseRequest) {
        let child = self.lessee(id, from);
        let direction = request.direction;
        self.set_weight(child, request.weight.max(1));
        let node = &mut self.nodes[child as usize];
        node.lessee.as_mut().expect("a child of a shard").put(request);
        if node.heads[direction as usize].take().is_some() {
            self.leave(now, child, direction);
        }
        self.nodes[child as usize].woken = now;
        self.wait(now, child, head_of(&request));
        self.arm_lessee(now, child);
    }

    /// The child of a node that stands for a shard.
    fn lessee(&mut self, id: NodeId, shard: ShardId) -> NodeId {
        let is_of = |child: &&NodeId| {
            let lessee = self.nodes[**child as usize].lessee.as_ref();
            lessee.is_some_and(|lessee| lessee.shard() == shard)
        };
        if let Some(child) = self.nodes[id as usize].lessees.iter().find(is_of) {
            return *child;
        }
        let child = self.insert(id, 1, shard.0.into(), true);
        self.nodes[child as usize].lessee = Some(Box::new(Lessee::new(shard)));
        self.nodes[id as usize].lessees.push(child);
        child
    }

    /// Whether a child stands for another shard.
    #[inline]
    pub(super) fn is_lessee(&self, child: NodeId) -> bool {
        self.nodes[child as usize].lessee.is_some()
    }

    /// Notes that a node agrees to the first request of a lessee.
    pub(super) fn note_grant(&mut self, id: NodeId) {
        if !std::mem::replace(&mut self.nodes[id as usize].grants, true) {
            self.granting.push(id);
        }
    }

    /// Grants what nodes agree to.
    pub(super) fn grant_all(&mut self, now: Instant) {
        while let Some(id) = self.granting.pop() {
            self.nodes[id as usize].grants = false;
            self.settle(now, id);
            for direction in LimitDirection::ALL {
                while self.grant_first(now, id, direction) {}
            }
        }
    }

    /// Grants the request of the first waiter of a direction, if it is a lessee's and the node agrees.
    fn grant_first(&mut self, now: Instant, id: NodeId, direction: LimitDirection) -> bool {
        let Some(child) = self.nodes[id as usize].queue.first(direction) else { return false };
        if !self.is_lessee(child) || self.first_wait_ns(id, direction) != Some(0) {
            return false;
        }
        let (shards, node) = (self.shards, &mut self.nodes[child as usize]);
        let lessee = node.lessee.as_mut().expect("a child of a shard");
        let (request, to) = (lessee.take(direction), lessee.shard());
        node.heads[direction as usize] = None;
        self.leave(now, child, direction);
        let node = &mut self.nodes[id as usize];
        // What is lent in advance waits for its turn; a small request that passes before it is not to.
        let ahead = match node.set.wait(direction, false).0 {
            0 => node.set.present_tokens_in(direction, quantum_ns(shards)),
            _ => Tokens::ZERO,
        };
        let ahead = request.ahead().min(ahead.minus(request.need()).surplus());
        // Debts at higher rates than the present ones are not worth more than they were.
        let owed = request.owed().min(overdraft(&node.set, direction, shards));
        let charged = owed.plus(request.need()).plus(ahead);
        node.set.charge_tokens(direction, charged);
        let cost_ns = node.set.tokens_ns(direction, charged);
        self.turns.charge(&mut node.queue, child, cost_ns);
        let tokens = request.owed().plus(request.need()).plus(ahead);
        let message = LeaseMessage::Grant { direction, serial: request.serial, tokens };
        self.outgoing.push_back(OutgoingLease { node: id, to, message });
        self.update_both(now, id);
        true
    }

    /// Tells a lessee whose requests wait that they do.
    pub(super) fn reassure(&mut self, now: Instant, child: NodeId) {
        let node = &self.nodes[child as usize];
        let (id, lessee) = (node.parent, node.lessee.as_ref().expect("a child of a shard"));
        for LeaseRequest { direction, serial, .. } in lessee.requests() {
            let message = LeaseMessage::Queued { direction: *direction, serial: *serial };
            self.outgoing.push_back(OutgoingLease { node: id, to: lessee.shard(), message });
        }
        self.nodes[child as usize].woken = now;
        self.arm_lessee(now, child);
    }

    fn arm_lessee(&mut self, now: Instant, child: NodeId) {
        let lessee = self.nodes[child as usize].lessee.as_ref();
        let waits = lessee.is_some_and(|lessee| lessee.requests().next().is_some());
        if waits && self.nodes[child as usize].armed.is_none() {
            self.arm_at(child, Some(now.after(QUEUED_NS)));
        }
    }

    /// Nanoseconds until a lease admits a request, or `u64::MAX` while that depends on another shard.
    pub(super) fn lease_wait_ns(
        &self,
        id: NodeId,
        child: NodeId,
        io: LimitedIo,
        is_small: bool,
        start: u64,
    ) -> u64 {
        let node = &self.nodes[id as usize];
        let lease = node.lease.as_ref().expect("a leased node");
        if lease.is_detached() {
            return node.set.wait(io.direction, false).0;
        }
        let cost = node.set.tokens(io);
        if lease.covers(io.direction, cost, Tokens::ZERO) {
            return 0;
        }
        let in_advance = overdraft(&node.set, io.direction, self.shards);
        let agrees = is_small
            && lease.covers(io.direction, cost, in_advance)
            && self.turns.part_wait_ns(&node.queue, child, start).is_none_or(|wait| wait == 0);
        if agrees { 0 } else { u64::MAX }
    }

    /// Charges a request that passes at a leased node.
    pub(super) fn spend(&mut self, now: Instant, id: NodeId, io: LimitedIo) {
        let (shards, node) = (self.shards, &mut self.nodes[id as usize]);
        let (cost, lease) = (node.set.tokens(io), node.lease.as_mut().expect("a leased node"));
        if lease.is_detached() {
            // One of `shards` parts of the rate.
            node.set.charge_tokens(io.direction, cost.times(shards));
        } else {
            lease.spend(now, io.direction, cost);
        }
    }

    /// The limit that a leased node lacks tokens of.
    pub(super) fn lacking(&self, id: NodeId, io: LimitedIo) -> Option<LimitKind> {
        let node = &self.nodes[id as usize];
        let lease = node.lease.as_ref()?;
        let is_bytes = lease.lacks_bytes(io.direction, node.set.tokens(io));
        let kind = node.set.kind_of(io.direction, is_bytes);
        kind.or(node.set.kind_of(io.direction, !is_bytes))
    }

    pub(super) fn request_both(&mut self, now: Instant, id: NodeId) {
        LimitDirection::ALL.into_iter().for_each(|direction| self.request(now, id, direction));
    }

    /// Requests the tokens that a leased node needs now.
    pub(super) fn request(&mut self, now: Instant, id: NodeId, direction: LimitDirection) {
        let waits = self.first_wait_ns(id, direction).is_some_and(|wait| wait > 0);
        let first = self.nodes[id as usize].queue.first(direction).filter(|_| waits);
        let io = first.and_then(|child| {
            let leaf = self.first_leaf(child, direction);
            self.nodes[leaf as usize].heads[direction as usize]
        });
        let (shards, node) = (self.shards, &mut self.nodes[id as usize]);
        let Some(lease) = &mut node.lease else { return };
        let need = io.map_or(Tokens::ZERO, |io| node.set.tokens(io));
        let quantum = node.set.burst_tokens_in(direction, quantum_ns(shards));
        let quantum = quantum.minus(node.set.shared(lease.held_by_other(direction))).surplus();
        let weight = u32::try_from(node.queue.weights()).unwrap_or(u32::MAX);
        let (home, request) =
            (lease.home(), lease.request(now, direction, (need, quantum), weight));
        if let Some(request) = request {
            let message = LeaseMessage::Request(request);
            self.outgoing.push_back(OutgoingLease { node: id, to: home, message });
        }
        self.arm(id);
    }

    /// Returns what rests unused to the home, and what exceeds the quantum of changed limits.
    pub(super) fn settle_lease(&mut self, now: Instant, id: NodeId, is_changed: bool) {
        for direction in LimitDirection::ALL {
            let waits = self.nodes[id as usize].queue.first(direction).is_some();
            let (shards, node) = (self.shards, &mut self.nodes[id as usize]);
            let Some(lease) = &mut node.lease else { return };
            let returned = if is_changed {
                lease.forget_requests();
                let quantum = node.set.burst_tokens_in(direction, quantum_ns(shards));
                lease.trim(direction, quantum, overdraft(&node.set, direction, shards))
            } else {
                lease.on_timeout(now, direction, waits)
            };
            if let Some(tokens) = returned {
                let message = LeaseMessage::Return { direction, tokens };
                self.outgoing.push_back(OutgoingLease { node: id, to: lease.home(), message });
            }
        }
    }

    /// When the lease of a node is looked at again.
    pub(super) fn lease_timeout(&self, id: NodeId) -> Option<Instant> {
        let node = &self.nodes[id as usize];
        let waits = LimitDirection::ALL.map(|direction| node.queue.first(direction).is_some());
        node.lease.as_ref()?.next_timeout(waits)
    }

    /// Removes the first message for another shard from those that wait.
    #[inline]
    pub fn next_outgoing(&mut self) -> Option<OutgoingLease> {
        self.outgoing.pop_front()
    }
}
