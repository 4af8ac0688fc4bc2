//! Waiters for tags, and whose turn it is: fair queueing by device time over exports and their connections.
//!
//! ```text
//!   root -> tenants (by weight) -> exports (by weight) -> connections (equal) -> waiters in order of arrival   the tree: `shares`
//!     `---> exports without a tenant (by weight) -> connections ...
//!
//!   light flows: those whose only waiter is small and came alone, round robin; only the ones that are eligible are taken from it
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
//! - An export that moves to another tenant has new flows there; what waits under the old one keeps its place and is charged to
//!   the old tenant.
//!
//! A flow is remembered while it waits, and after that until the virtual time reaches its last service; all are forgotten when
//! nothing waits for the device. At most [`IDLE_FLOWS_MAX`] idle flows are remembered; beyond that an emptied one is forgotten
//! at once.
//!
//! A request pays what it costs when it is granted: it may have grown by merging while it waited, and the learned costs may have
//! changed.
//!
//! Invariants: a waiter is passed by no later one of its own flow; every waiter is served after finitely many grants; a tenant's
//! `backlog` is the sum over its waiters and `waiting` the number of all; `idle_flows` counts the flows without waiters; a tenant
//! or export has an entry while it has flows.

mod flow;
pub(crate) mod pool;

use super::owner::{Requester, TagRequest};
use crate::bio::{ExportId, TenantId};
use crate::gauge::Gauge32;
use crate::list::List;
use crate::options::TENANTS_MAX;
use crate::shares::{ShareId, ShareTree};
use crate::slab::NIL;
use crate::time::Instant;
use flow::{Backlog, ExportFlows, Flow, LightLink, TargetedLink, TenantFlows};
use pool::{KeyTable, Pool};

pub(crate) use flow::{FlowHead, Waiter};

/// Most idle flows that are remembered: four times the connections that a server takes by default.
const IDLE_FLOWS_MAX: u32 = 4096;

/// Light flows that a search looks at; those that have had their share go to the back of the list.
const LIGHT_SEARCH: u32 = 8;

/// Waiters of a flow that a search for a merged one looks at, from the last: neighbours come one soon after the other.
const MERGED_SEARCH: u32 = 64;

/// Large requests that are sent piece by piece at once: each may have half of what the device takes, and one begins as another
/// ends.
const IN_PIECES: u64 = 3;

/// Marks the groups (exports and tenants) among the owners of the tree's nodes; the others are flows.
const GROUP_OWNER: u32 = 1 << 31;

/// Index of the entry for exports without a tenant, which is always there.
const NO_TENANT: u32 = 0;

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
    tenants: Pool<TenantFlows>,
    flow_table: KeyTable,
    export_table: KeyTable,
    tenant_table: KeyTable,
    shares: ShareTree,
    /// Flows whose only waiter is small.
    light: List<LightLink>,
    /// Flows whose first waiter has a latency target.
    targeted: List<TargetedLink>,
    /// Number of all waiters.
    waiting: Gauge32,
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
        // An export that moves between tenants has an entry under each, and every entry has a flow.
        let (exports_max, tenants_max) = (flows_max, flows_max.min(TENANTS_MAX) + 1);
        let mut tenants = Pool::new(tenants_max);
        let (key, group) = (TenantId::NONE.0.into(), ShareTree::ROOT);
        let none = TenantFlows { key, weight: 1, group, exports: 0, backlog: Backlog::default() };
        let index = tenants.take(none);
        assert!(index == NO_TENANT, "the first entry is that of exports without a tenant");
        Self {
            waiters: Pool::new(waiters_max),
            flows: Pool::new(flows_max),
            exports: Pool::new(exports_max),
            tenants,
            flow_table: KeyTable::new(flows_max),
            export_table: KeyTable::new(exports_max),
            tenant_table: KeyTable::new(tenants_max),
            shares: ShareTree::new(exports_max + tenants_max, flows_max),
            light: List::new(),
            targeted: List::new(),
            waiting: Gauge32::default(),
            idle_flows: Gauge32::default(),
            last: LastGrant { flow: NIL, paid: 0 },
            in_pieces: 0,
        }
    }

    /// Returns true when no request waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_zero()
    }

    /// Returns the number of all waiters.
    pub fn waiting(&self) -> u32 {
        self.waiting.get()
    }

    /// Returns the tenant of a picked flow, and the sums over that tenant's waiters.
    pub fn tenant_backlog(&self, head: FlowHead) -> (TenantId, Backlog) {
        let export = self.flows[head.flow].export;
        let tenant = &self.tenants[self.exports[export].tenant];
        debug_assert!(!tenant.backlog.waiters.is_zero(), "a picked flow has a waiter");
        (TenantId(tenant.key as u16), tenant.backlog)
    }

    /// Adds a waiter, the `number`th of the gate. Returns true if it is light and its flow has not had its share.
    pub fn push(&mut self, now: Instant, number: u64, request: TagRequest) -> bool {
        debug_assert!(request.tags > 0, "a request wants at least one tag");
        let tenant = self.tenant_of(request.tenant, request.tenant_weight.max(1));
        let export = self.export_of(tenant, request.export, request.weight.max(1));
        let flow = self.flow_of(export, request.connection);
        let was_idle = self.flows[flow].waiters.is_empty();
        let waiter = Waiter::new(request, now, number, was_idle);
        let (cost, id) = (waiter.cost(), self.waiters.take(waiter));
        self.flows[flow].waiters.push_back(&mut self.waiters, id);
        let export = &mut self.exports[export];
        let backlog = &mut self.tenants[tenant].backlog;
        backlog.weights.add(if export.waiting == 0 { export.weight.into() } else { 0 });
        export.waiting += 1;
        self.waiting.add(1);
        backlog.waiters.add(1);
        backlog.tags.add(request.tags.into());
        backlog.bytes.add(request.bytes.into());
        backlog.cost.add(cost);
        if was_idle {
            self.idle_flows.sub(1);
            self.shares.activate(self.flows[flow].leaf, cost);
            self.list_light(flow);
            self.forget_passed();
        } else if self.flows[flow].in_light {
            self.list_light(flow);
        }
        self.is_light(flow)
    }

    /// Returns the flow whose turn it is. A repeated call returns the same one unless waiters changed meanwhile.
    pub fn pick(&mut self) -> Option<FlowHead> {
        self.shares.advance_to_first();
        let flow = self.shares.owner(self.shares.first()?);
        debug_assert!(flow & GROUP_OWNER == 0, "a leaf is a flow");
        Some(self.head_of(flow))
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

    /// Returns a flow whose first waiter has a latency target of at most `target_us`, whether it is its turn or not; with
    /// `light_only` a light one. Such flows go round robin.
    pub fn guarded(&mut self, target_us: u32, light_only: bool) -> Option<FlowHead> {
        for _ in 0..LIGHT_SEARCH {
            let flow = self.targeted.front()?;
            let head = self.head_of(flow);
            let fits = self.waiter(head).request.target_us <= target_us;
            let near = self.flows[flow].in_light
                && self.shares.starts_within(self.flows[flow].leaf, IN_PIECES * self.in_pieces);
            if fits && (near || !light_only) {
                return Some(head);
            }
            self.targeted.remove(&mut self.flows, flow);
            self.targeted.push_back(&mut self.flows, flow);
        }
        None
    }

    /// Returns a light flow that starts before V grows by a request of `cost`.
    fn light_within(&mut self, cost: u64) -> Option<FlowHead> {
        self.shares.advance_to_first();
        for _ in 0..LIGHT_SEARCH {
            let flow = self.light.front()?;
            if self.flows[flow].in_light && self.shares.starts_within(self.flows[flow].leaf, cost) {
                return Some(FlowHead { flow, light: true, small: true });
            }
            self.light.remove(&mut self.flows, flow);
            self.light.push_back(&mut self.flows, flow);
        }
        None
    }

    fn head_of(&self, flow: u32) -> FlowHead {
        let small = self.first_of(flow).is_some_and(Waiter::is_small);
        let small = small && self.shares.is_eligible(self.flows[flow].leaf);
        FlowHead { flow, light: small && self.flows[flow].in_light, small }
    }

    /// Returns true if a flow's only waiter is small and the flow has not had its share.
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

    /// Withdraws a waiter that merged with another request, if it is among the last of its flow; its flow pays nothing. Returns its
    /// flow, and whether it was the first there.
    pub fn withdraw_merged(&mut self, request: &TagRequest) -> Option<(u32, bool)> {
        let key = export_key(request.tenant.0.into(), request.export) << 32
            | u64::from(request.connection);
        let flow = self.flow_table.find(key, |id| self.flows[id].key)?;
        let mut at = self.flows[flow].waiters.back(&self.waiters);
        for _ in 0..MERGED_SEARCH {
            let id = at?;
            if self.waiters[id].request.requester == request.requester {
                return Some((flow, self.withdraw(flow, id)));
            }
            at = self.flows[flow].waiters.prev(&self.waiters, id);
        }
        None
    }

    /// Withdraws a waiter of a flow; returns true if it was the first.
    fn withdraw(&mut self, flow: u32, id: u32) -> bool {
        if self.flows[flow].waiters.front() == Some(id) {
            let (_, next) = self.take_first(flow);
            self.shares.withdraw(self.flows[flow].leaf, next);
            self.after_first(flow, next);
            return true;
        }
        self.flows[flow].waiters.remove(&mut self.waiters, id);
        let waiter = self.waiters[id];
        self.waiters.put(id);
        self.forget_waiter(flow, &waiter);
        // The first may be the only one now.
        self.list_light(flow);
        false
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
        self.forget_waiter(flow, &waiter);
        (waiter, self.first_of(flow).map(Waiter::cost))
    }

    /// Takes a waiter out of the sums.
    fn forget_waiter(&mut self, flow: u32, waiter: &Waiter) {
        let export = &mut self.exports[self.flows[flow].export];
        let backlog = &mut self.tenants[export.tenant].backlog;
        self.waiting.sub(1);
        backlog.waiters.sub(1);
        backlog.tags.sub(waiter.request.tags.into());
        backlog.bytes.sub(waiter.request.bytes.into());
        backlog.cost.sub(waiter.cost());
        assert!(export.waiting > 0, "an export counts its waiters");
        export.waiting -= 1;
        backlog.weights.sub(if export.waiting == 0 { export.weight.into() } else { 0 });
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
    pub fn charge(
        &mut self,
        tenant: TenantId,
        export: ExportId,
        connection: u32,
        cost: u64,
    ) -> bool {
        let key = export_key(tenant.0.into(), export) << 32 | u64::from(connection);
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
        let none = &self.tenants[NO_TENANT];
        debug_assert!(none.backlog == Backlog::default(), "the backlog is that of the waiters");
        debug_assert!(none.exports == 0, "exports without flows have no entry");
    }

    /// Puts a flow at the back of the lists of light flows and of those with a latency target if its only waiter is small, or its
    /// first one has a target, and takes it out if not.
    fn list_light(&mut self, flow: u32) {
        let targeted = self.first_of(flow).is_some_and(|waiter| waiter.request.target_us > 0);
        if std::mem::replace(&mut self.flows[flow].in_targeted, targeted) {
            self.targeted.remove(&mut self.flows, flow);
        }
        if targeted {
            self.targeted.push_back(&mut self.flows, flow);
        }
        let waiters = &self.flows[flow].waiters;
        let light = waiters.front().is_some_and(|first| {
            self.waiters[first].is_light() && waiters.next(&self.waiters, first).is_none()
        });
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
            if owner & GROUP_OWNER == 0 {
                self.remove_flow(owner);
            }
        }
    }

    /// Returns the entry of a tenant, which has that weight from now on.
    fn tenant_of(&mut self, id: TenantId, weight: u16) -> u32 {
        debug_assert!(weight > 0, "a tenant's weight is above 0");
        if id.is_none() {
            return NO_TENANT;
        }
        let key = u64::from(id.0);
        let found = self.tenant_table.find(key, |id| self.tenants[id].key);
        let tenant = found.unwrap_or_else(|| {
            let group = self.shares.add_group(ShareTree::ROOT, weight.into(), GROUP_OWNER);
            let backlog = Backlog::default();
            let id = self.tenants.take(TenantFlows { key, weight, group, exports: 0, backlog });
            self.tenant_table.insert(key, id);
            id
        });
        let node = &mut self.tenants[tenant];
        if node.weight != weight {
            node.weight = weight;
            self.shares.set_weight(node.group, weight.into());
        }
        tenant
    }

    /// Returns the entry of a tenant's export, which has that weight from now on.
    fn export_of(&mut self, tenant: u32, id: ExportId, weight: u16) -> u32 {
        debug_assert!(weight > 0, "an export's weight is above 0");
        let key = export_key(self.tenants[tenant].key, id);
        let found = self.export_table.find(key, |id| self.exports[id].key);
        let export = found.unwrap_or_else(|| self.add_export(tenant, key, weight));
        let node = &mut self.exports[export];
        if node.weight != weight {
            if node.waiting > 0 {
                let backlog = &mut self.tenants[tenant].backlog;
                backlog.weights.add(weight.into());
                backlog.weights.sub(node.weight.into());
            }
            node.weight = weight;
            self.shares.set_weight(node.group, weight.into());
        }
        export
    }

    fn add_export(&mut self, tenant: u32, key: u64, weight: u16) -> u32 {
        let parent = self.tenants[tenant].group;
        let group = self.shares.add_group(parent, weight.into(), GROUP_OWNER);
        self.tenants[tenant].exports += 1;
        let export = ExportFlows { key, tenant, weight, group, flows: 0, waiting: 0 };
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
            debug_assert!(id & GROUP_OWNER == 0, "flows and groups have different owners");
            self.shares.set_owner(leaf, id);
            self.flow_table.insert(key, id);
            self.exports[export].flows += 1;
            self.idle_flows.add(1);
            id
        })
    }

    /// Removes an idle flow, its export if it was the last of that, and likewise the tenant.
    fn remove_flow(&mut self, flow: u32) {
        let Flow { key, export, leaf, in_light, ref waiters, .. } = self.flows[flow];
        assert!(waiters.is_empty() && !in_light, "only an idle flow is forgotten");
        debug_assert!(!self.flows[flow].in_targeted, "an idle flow is in no list");
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
            let (key, group, tenant) = (entry.key, entry.group, entry.tenant);
            self.shares.remove(group);
            self.export_table.remove(key, export, |id| self.exports[id].key);
            self.exports.put(export);
            self.remove_from_tenant(tenant);
        }
    }

    /// Counts an export that was removed from a tenant, and removes the tenant with its last one.
    fn remove_from_tenant(&mut self, tenant: u32) {
        let entry = &mut self.tenants[tenant];
        assert!(entry.exports > 0, "a tenant counts its exports");
        entry.exports -= 1;
        if tenant == NO_TENANT || entry.exports > 0 {
            return;
        }
        debug_assert!(entry.backlog == Backlog::default(), "waiters belong to exports");
        let (key, group) = (entry.key, entry.group);
        self.shares.remove(group);
        self.tenant_table.remove(key, tenant, |id| self.tenants[id].key);
        self.tenants.put(tenant);
    }
}

/// Returns the key of an export under a tenant.
fn export_key(tenant: u64, export: ExportId) -> u64 {
    tenant << 16 | u64::from(export.0)
}
