//! Waiters for tags, and whose turn it is: fair queueing by device time over exports and their connections.
//!
//! ```text
//!   root -> exports (by weight) -> connections (equal) -> waiters in order of arrival        the tree: `shares`
//!
//!   light flows: those whose first waiter is light, round robin; only the ones that are eligible are taken from it
//! ```
//!
//! - Waiters of one connection are served in order.
//! - Whose turn it is is decided by [`ShareTree`]: the first waiter that may start and would finish first, at every level. So a
//!   waiter is passed by at most a constant number of requests of each other connection, however many there are; `shares` has
//!   the bound. A light connection hardly waits because its finish is early, not because it passes a whole round.
//! - [`Flows::light`] returns a light waiter out of order, for when the first one cannot go (it gathers tags, or the limit on
//!   what is in the device is reached). Only an eligible one, which has not had its share: so nothing passes by more than its
//!   share this way, either.
//! - [`Flows::light_beside_pieces`] does so while large requests are sent piece by piece. V grew by them when they were granted
//!   and stands meanwhile; a light flow may start by as much later as its share of three of them.
//! - A tenant's level would stand between root and export: the tree has any number of levels.
//!
//! A flow is remembered while it waits, and after that until the virtual time reaches its last service; all are forgotten when
//! nothing waits for the device. At most [`IDLE_FLOWS_MAX`] idle flows are remembered; beyond that an emptied one is forgotten
//! at once.
//!
//! A request pays what it costs when it is granted: it may have grown by merging while it waited, and the learned costs may have
//! changed.
//!
//! Invariants: a waiter is passed by no later one of its own flow; every waiter is served after finitely many grants; `backlog`
//! is the sum over all waiters; `idle_flows` counts the flows without waiters.

mod flow;
mod pool;

use super::owner::{Requester, TagRequest};
use crate::bio::ExportId;
use crate::gauge::{Gauge32, Gauge64};
use crate::list::List;
use crate::shares::{ShareId, ShareTree};
use crate::slab::NIL;
use crate::time::Instant;
use flow::{ExportFlows, Flow, LightLink};
use pool::{KeyTable, Pool};

pub(crate) use flow::{FlowHead, Waiter};

/// Most idle flows that are remembered: four times the connections that a server takes by default.
const IDLE_FLOWS_MAX: u32 = 4096;

/// Light flows that a search looks at; those that have had their share go to the back of the list.
const LIGHT_SEARCH: u32 = 8;

/// Large requests that are sent piece by piece at once: each may have half of what the device takes, and one begins as another
/// ends.
const IN_PIECES: u64 = 3;

/// Marks an export's number among the owners of the tree's nodes; the others are flows.
const EXPORT_OWNER: u32 = 1 << 31;

/// The sums over all waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Number of waiting requests.
    pub waiters: Gauge32,
    /// Tags that they want.
    pub tags: Gauge32,
    /// Bytes that the tags are for.
    pub bytes: Gauge64,
    /// Sum of what they cost their shares.
    pub cost: Gauge64,
    /// Weights of the exports that have waiters.
    pub weights: Gauge64,
}

/// The flow that was granted last, if it is still remembered, and what it paid.
#[derive(Clone, Copy, Debug)]
struct LastGrant {
    flow: u32,
    paid: u64,
}

/// All waiters of one device.
#[derive(Debug)]
pub(crate) struct Flows {
    waiters: Pool<Waiter>,
    flows: Pool<Flow>,
    exports: Pool<ExportFlows>,
    flow_table: KeyTable,
    export_table: KeyTable,
    shares: ShareTree,
    /// Flows whose first waiter is light.
    light: List<LightLink>,
    backlog: Backlog,
    /// Remembered flows without waiters.
    idle_flows: Gauge32,
    last: LastGrant,
    /// Cost of the largest of the last requests that were not light.
    in_pieces: u64,
}

impl Flows {
    /// Creates space for `waiters_max` waiters; nothing is allocated later.
    pub fn new(waiters_max: usize) -> Self {
        let flows_max = waiters_max + IDLE_FLOWS_MAX as usize + 1;
        let exports_max = flows_max.min(1 << 16);
        Self {
            waiters: Pool::new(waiters_max),
            flows: Pool::new(flows_max),
            exports: Pool::new(exports_max),
            flow_table: KeyTable::new(flows_max),
            export_table: KeyTable::new(exports_max),
            shares: ShareTree::new(exports_max, flows_max),
            light: List::new(),
            backlog: Backlog::default(),
            idle_flows: Gauge32::default(),
            last: LastGrant { flow: NIL, paid: 0 },
            in_pieces: 0,
        }
    }

    /// Returns true when no request waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.backlog.waiters.is_zero()
    }

    /// Returns the sums over all waiters.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Adds a waiter, the `number`th of the gate. Returns true if it is light and its flow has not had its share.
    pub fn push(&mut self, now: Instant, number: u64, request: TagRequest) -> bool {
        debug_assert!(request.tags > 0, "a request wants at least one tag");
        let export = self.export_of(request.export, request.weight.max(1));
        let flow = self.flow_of(export, request.connection);
        let waiter = Waiter::new(request, now, number);
        let (cost, id) = (waiter.cost(), self.waiters.take(waiter));
        let was_idle = self.flows[flow].waiters.is_empty();
        self.flows[flow].waiters.push_back(&mut self.waiters, id);
        let export = &mut self.exports[export];
        self.backlog.weights.add(if export.waiting == 0 { export.weight.into() } else { 0 });
        export.waiting += 1;
        self.backlog.waiters.add(1);
        self.backlog.tags.add(request.tags.into());
        self.backlog.bytes.add(request.bytes.into());
        self.backlog.cost.add(cost);
        if was_idle {
            self.idle_flows.sub(1);
            self.shares.activate(self.flows[flow].leaf, cost);
            self.list_light(flow);
            self.forget_passed();
        }
        self.is_light(flow)
    }

    /// Returns the flow whose turn it is. A repeated call returns the same one unless waiters changed meanwhile.
    pub fn pick(&self) -> Option<FlowHead> {
        let flow = self.shares.owner(self.shares.first()?);
        debug_assert!(flow & EXPORT_OWNER == 0, "a leaf is a flow");
        Some(FlowHead { flow, light: self.is_light(flow) })
    }

    /// Returns a light flow that has not had its share, whether it is its turn or not.
    pub fn light(&mut self) -> Option<FlowHead> {
        self.light_within(0)
    }

    /// Returns a light flow that has not had its share of what the device is sent piece by piece. V grew by a large request
    /// when it was granted and stands until the next one, though its pieces take time: a light flow may use its part of that.
    pub fn light_beside_pieces(&mut self) -> Option<FlowHead> {
        self.light_within(IN_PIECES * self.in_pieces)
    }

    /// Returns a light flow that starts before V grows by a request of `cost`.
    fn light_within(&mut self, cost: u64) -> Option<FlowHead> {
        for _ in 0..LIGHT_SEARCH {
            let flow = self.light.front()?;
            if self.flows[flow].in_light && self.shares.starts_within(self.flows[flow].leaf, cost) {
                return Some(FlowHead { flow, light: true });
            }
            self.light.remove(&mut self.flows, flow);
            self.light.push_back(&mut self.flows, flow);
        }
        None
    }

    /// Returns true if a flow's first waiter is light and the flow has not had its share.
    fn is_light(&self, flow: u32) -> bool {
        self.flows[flow].in_light && self.shares.is_eligible(self.flows[flow].leaf)
    }

    /// Returns the first waiter of a picked flow.
    pub fn waiter(&self, head: FlowHead) -> &Waiter {
        self.flows[head.flow].first(&self.waiters).expect("a picked flow has a waiter")
    }

    /// Removes the first waiter of a picked flow; the flow and its export pay.
    pub fn pop(&mut self, head: FlowHead) -> Waiter {
        let (waiter, next) = self.take_first(head.flow);
        self.shares.serve(self.flows[head.flow].leaf, next);
        self.last = LastGrant { flow: head.flow, paid: waiter.cost() };
        if !head.light {
            self.in_pieces = waiter.cost().max(self.in_pieces - self.in_pieces / 8);
        }
        self.after_first(head.flow, next);
        waiter
    }

    /// Returns the number of flows that there ever were at once; the indices of all flows are below it.
    pub fn places(&self) -> u32 {
        self.flows.places()
    }

    /// Withdraws the first waiter of a flow, if it has one and that is `expired`; the flow pays nothing.
    pub fn withdraw_first(
        &mut self,
        flow: u32,
        expired: &dyn Fn(Requester) -> bool,
    ) -> Option<Waiter> {
        self.first_of(flow).filter(|waiter| expired(waiter.request.requester))?;
        let (waiter, next) = self.take_first(flow);
        self.shares.withdraw(self.flows[flow].leaf, next);
        self.after_first(flow, next);
        Some(waiter)
    }

    /// Returns the first waiter of a flow, if it has one; a flow that was forgotten has none.
    pub fn first_of(&self, flow: u32) -> Option<&Waiter> {
        self.flows[flow].first(&self.waiters)
    }

    /// Takes the first waiter of a flow; returns it with the cost of the one after it.
    fn take_first(&mut self, flow: u32) -> (Waiter, Option<u64>) {
        let entry = &mut self.flows[flow];
        let id = entry.waiters.pop_front(&mut self.waiters).expect("the flow has a waiter");
        let waiter = self.waiters[id];
        self.waiters.put(id);
        self.backlog.waiters.sub(1);
        self.backlog.tags.sub(waiter.request.tags.into());
        self.backlog.bytes.sub(waiter.request.bytes.into());
        self.backlog.cost.sub(waiter.cost());
        let export = &mut self.exports[self.flows[flow].export];
        assert!(export.waiting > 0, "an export counts its waiters");
        export.waiting -= 1;
        self.backlog.weights.sub(if export.waiting == 0 { export.weight.into() } else { 0 });
        (waiter, self.first_of(flow).map(Waiter::cost))
    }

    /// Lists a flow anew whose first waiter left; `next` is the cost of the one after it.
    fn after_first(&mut self, flow: u32, next: Option<u64>) {
        self.list_light(flow);
        if next.is_none() {
            self.idle_flows.add(1);
            if self.idle_flows.get() > IDLE_FLOWS_MAX {
                self.remove_flow(flow);
            }
        }
        self.forget_passed();
    }

    /// Corrects what the flow of the last grant paid to `cost`, if the flow is still remembered: the request may have grown while it
    /// waited, and what is known of the device's costs may have changed.
    pub fn charge_last(&mut self, cost: u64) {
        let LastGrant { flow, paid } = self.last;
        if flow != NIL && cost != paid {
            self.shares.charge(self.flows[flow].leaf, cost as i64 - paid as i64);
            self.last.paid = cost;
            self.forget_passed();
        }
    }

    /// Charges a connection's flow for `cost`, if it is remembered; returns whether it is.
    pub fn charge(&mut self, export: ExportId, connection: u32, cost: u64) -> bool {
        let key = u64::from(export.0) << 32 | u64::from(connection);
        let found = self.flow_table.find(key, |id| self.flows[id].key);
        if let Some(flow) = found {
            self.shares.charge(self.flows[flow].leaf, cost.min(i64::MAX as u64) as i64);
            self.forget_passed();
        }
        found.is_some()
    }

    /// Forgets all flows and what they were served. Nothing may wait.
    pub fn reset(&mut self) {
        debug_assert!(self.is_empty() && self.light.is_empty(), "a flow with waiters is kept");
        if self.idle_flows.is_zero() {
            return;
        }
        self.shares.forget_all();
        self.forget_passed();
        debug_assert!(self.idle_flows.is_zero(), "an idle flow is remembered by the tree");
        debug_assert!(self.backlog == Backlog::default(), "the backlog is that of the waiters");
    }

    /// Puts a flow at the back of the list of light flows if its first waiter is light, and takes it out if not.
    fn list_light(&mut self, flow: u32) {
        let light = self.flows[flow].first(&self.waiters).is_some_and(Waiter::is_light);
        if std::mem::replace(&mut self.flows[flow].in_light, light) {
            self.light.remove(&mut self.flows, flow);
        }
        if light {
            self.light.push_back(&mut self.flows, flow);
        }
    }

    /// Removes the flows and exports that the tree has forgotten: they are idle and have no advance.
    fn forget_passed(&mut self) {
        while let Some((_, owner)) = self.shares.next_forgotten() {
            if owner & EXPORT_OWNER == 0 {
                self.remove_flow(owner);
            }
        }
    }

    /// Returns the entry of an export, which has that weight from now on.
    fn export_of(&mut self, id: ExportId, weight: u16) -> u32 {
        debug_assert!(weight > 0, "an export's weight is above 0");
        let key = u64::from(id.0);
        let found = self.export_table.find(key, |id| self.exports[id].key);
        let export = found.unwrap_or_else(|| self.add_export(key, weight));
        let node = &mut self.exports[export];
        if node.weight != weight {
            if node.waiting > 0 {
                self.backlog.weights.add(weight.into());
                self.backlog.weights.sub(node.weight.into());
            }
            node.weight = weight;
            self.shares.set_weight(node.group, weight.into());
        }
        export
    }

    fn add_export(&mut self, key: u64, weight: u16) -> u32 {
        let group = self.shares.add_group(ShareTree::ROOT, weight.into(), EXPORT_OWNER);
        let export = ExportFlows { key, weight, group, flows: 0, waiting: 0 };
        let id = self.exports.take(export);
        self.export_table.insert(key, id);
        id
    }

    /// Returns the flow of an export's connection.
    fn flow_of(&mut self, export: u32, connection: u32) -> u32 {
        let key = self.exports[export].key << 32 | u64::from(connection);
        let found = self.flow_table.find(key, |id| self.flows[id].key);
        found.unwrap_or_else(|| {
            let group = self.exports[export].group;
            let leaf: ShareId = self.shares.add_leaf(group, 1, NIL);
            let id = self.flows.take(Flow::new(key, export, leaf));
            debug_assert!(id & EXPORT_OWNER == 0, "flows and exports have different owners");
            self.shares.set_owner(leaf, id);
            self.flow_table.insert(key, id);
            self.exports[export].flows += 1;
            self.idle_flows.add(1);
            id
        })
    }

    /// Removes an idle flow, and its export if it was the last.
    fn remove_flow(&mut self, flow: u32) {
        let Flow { key, export, leaf, in_light, ref waiters, .. } = self.flows[flow];
        assert!(waiters.is_empty() && !in_light, "only an idle flow is forgotten");
        self.shares.remove(leaf);
        self.flow_table.remove(key, flow, |id| self.flows[id].key);
        self.flows.put(flow);
        self.idle_flows.sub(1);
        if self.last.flow == flow {
            self.last.flow = NIL;
        }
        let entry = &mut self.exports[export];
        entry.flows -= 1;
        if entry.flows == 0 {
            debug_assert!(entry.waiting == 0, "waiters belong to flows");
            let (key, group) = (entry.key, entry.group);
            self.shares.remove(group);
            self.export_table.remove(key, export, |id| self.exports[id].key);
            self.exports.put(export);
        }
    }
}
