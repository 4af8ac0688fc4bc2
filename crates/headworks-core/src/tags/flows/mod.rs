//! Waiters for tags, and whose turn it is: two levels of deficit round robin by bytes, light flows first.
//!
//! ```text
//!   exports (quantum: 128 KiB at weight 100)      flows of an export: its connections (128 KiB each)
//!     ring -> [A] -> [B] -> [C]                     ring -> [7] -> [9] -> [4]
//!                                                            |
//!   new flows: light ones, then others                       waiters in order of arrival
//! ```
//!
//! - Waiters of one connection are served in order.
//! - **New flows first** (as in fq_codel). A connection that begins to wait while it was idle is *new* and goes in advance of its
//!   turn, as long as its advance is at most one *stride* and its export has not passed one. A stride is a quantum, or the
//!   largest request that waits if that is more: with requests of eight quanta the turns of eight rounds come together, and
//!   with one quantum a connection with small requests would wait for most of them. Later turns repay the advance. So newness
//!   moves bytes earlier and gives no flow more, light flows cannot starve heavy ones, and weights hold. In fq_codel an emptied
//!   flow waits for a round of the old ones: then a client with one request at a time is new only once a round.
//! - Newness belongs to the connection: one pair of lists serves all exports, and an export has only its deficit. A heavy export
//!   keeps its light connections fast, and an export with many light connections pays for them.
//! - Of the new flows the *light* ones go first (one tag, at most 64 KiB), round robin by request.
//!
//! A flow is remembered while it waits, and after that until its turn finds it idle without debt; all are forgotten when nothing
//! waits for the device. At most [`IDLE_FLOWS_MAX`] idle flows are remembered; beyond that an emptied flow is forgotten at once,
//! and no flow is new.
//!
//! A request that grew by merging while it waited pays for its final size when it is granted, so a flow may owe one request.
//!
//! Departure from plain deficit round robin: a request costs at least 4 KiB, see `flow`.
//!
//! Invariants: a waiter is passed by no later one of its own flow; a flow spends at most `n` quanta, a stride and two requests
//! in `n` turns; every waiter is served after finitely many grants; `backlog` is the sum over all waiters; `idle_flows` counts
//! the flows without waiters.

mod drr;
mod flow;
mod new_flows;
mod pool;

use super::owner::TagRequest;
use crate::bio::ExportId;
use crate::gauge::{Gauge32, Gauge64};
use crate::slab::NIL;
use crate::time::Instant;
use drr::{DrrRing, Share};
use flow::{ExportFlows, Flow, NewList, QUANTUM, QUANTUM_PER_WEIGHT, cost};
use new_flows::NewFlows;
use pool::{KeyTable, Pool};

pub(crate) use flow::{FlowHead, Waiter};

/// Most idle flows that are remembered. 1024: all connections that a server takes by default.
const IDLE_FLOWS_MAX: u32 = 1024;

/// The sums over all waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Number of waiting requests.
    pub waiters: Gauge32,
    /// Tags that they want.
    pub tags: Gauge32,
    /// Bytes that the tags are for.
    pub bytes: Gauge64,
    /// Weights of the exports that have waiters.
    pub weights: Gauge64,
}

/// The flow that was granted last, if it is still remembered, and what it paid.
#[derive(Clone, Copy, Debug)]
struct LastGrant {
    flow: u32,
    paid: i64,
}

/// All waiters of one device.
#[derive(Debug)]
pub(crate) struct Flows {
    waiters: Pool<Waiter>,
    flows: Pool<Flow>,
    exports: Pool<ExportFlows>,
    flow_table: KeyTable,
    export_table: KeyTable,
    /// The exports in the order of their turns.
    ring: DrrRing,
    /// Flows that may go in advance of their turn.
    new_flows: NewFlows,
    backlog: Backlog,
    /// Remembered flows without waiters.
    idle_flows: Gauge32,
    /// The largest cost that has waited since the last [`Flows::reset`].
    largest: i64,
    last: LastGrant,
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
            ring: DrrRing::new(),
            new_flows: NewFlows::default(),
            backlog: Backlog::default(),
            idle_flows: Gauge32::default(),
            largest: 0,
            last: LastGrant { flow: NIL, paid: 0 },
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

    /// Adds a waiter, the `number`th of the gate. Returns true if its flow is new and light.
    pub fn push(&mut self, now: Instant, number: u64, request: TagRequest) -> bool {
        debug_assert!(request.tags > 0, "a request wants at least one tag");
        let export = self.export_of(request.export, request.weight.max(1));
        let flow = self.flow_of(export, request.connection);
        let id = self.waiters.take(Waiter::new(request, now, number));
        self.largest = self.largest.max(cost(request.bytes));
        let was_idle = self.flows[flow].waiters.is_empty();
        self.flows[flow].waiters.push_back(&mut self.waiters, id);
        let export = &mut self.exports[export];
        self.backlog.weights.add(if export.waiting.is_zero() { export.weight.into() } else { 0 });
        export.waiting.add(1);
        self.backlog.waiters.add(1);
        self.backlog.tags.add(request.tags.into());
        self.backlog.bytes.add(request.bytes.into());
        if was_idle {
            self.idle_flows.sub(1);
            if self.idle_flows.get() < IDLE_FLOWS_MAX {
                self.make_new(flow);
            }
        }
        self.flows[flow].new_list == Some(NewList::Light)
    }

    /// Returns the flow whose turn it is. A repeated call returns the same one unless waiters changed meanwhile.
    pub fn pick(&mut self) -> Option<FlowHead> {
        let new = self.first_new(NewList::Light);
        new.or_else(|| self.first_new(NewList::Bulky)).or_else(|| self.next_turn())
    }

    /// Returns the first light flow.
    pub fn light(&mut self) -> Option<FlowHead> {
        self.first_new(NewList::Light)
    }

    /// Returns the first waiter of a picked flow.
    pub fn waiter(&self, head: FlowHead) -> &Waiter {
        self.first_waiter(head.flow).expect("a picked flow has a waiter")
    }

    /// Removes the first waiter of a picked flow; the flow and its export pay.
    pub fn pop(&mut self, head: FlowHead) -> Waiter {
        let flow = &mut self.flows[head.flow];
        let id = flow.waiters.pop_front(&mut self.waiters).expect("a picked flow has a waiter");
        let (export, is_idle) = (flow.export, flow.waiters.is_empty());
        let waiter = self.waiters[id];
        self.exports[export].waiting.sub(1);
        self.charge(head.flow, waiter.cost());
        self.last = LastGrant { flow: head.flow, paid: waiter.cost() };
        self.waiters.put(id);
        self.backlog.waiters.sub(1);
        self.backlog.tags.sub(waiter.request.tags.into());
        self.backlog.bytes.sub(waiter.request.bytes.into());
        // The flow's next waiter goes behind the other new flows.
        if self.new_flows.remove(&mut self.flows, head.flow) {
            self.make_new(head.flow);
        }
        if is_idle {
            self.rest(head.flow);
        }
        waiter
    }

    /// Charges the flow of the last grant for a request that had grown to `bytes`, if the flow is still remembered.
    pub fn charge_last(&mut self, bytes: u32) {
        let LastGrant { flow, paid } = self.last;
        if flow != NIL && cost(bytes) > paid {
            self.charge(flow, cost(bytes) - paid);
            self.last.paid = cost(bytes);
        }
    }

    fn charge(&mut self, flow: u32, cost: i64) {
        debug_assert!(cost > 0, "a grant is never free");
        let flow = &mut self.flows[flow];
        flow.share.deficit -= cost;
        self.exports[flow.export].share.deficit -= cost;
    }

    /// Forgets all flows and their deficits. Nothing may wait.
    pub fn reset(&mut self) {
        debug_assert!(self.is_empty() && self.new_flows.is_empty(), "a flow with waiters is kept");
        self.largest = 0;
        while let Some(export) = self.ring.pop(&mut self.exports) {
            self.remove_export(export);
        }
        debug_assert!(self.idle_flows.is_zero(), "an idle flow is in a ring");
        debug_assert!(self.backlog == Backlog::default(), "the backlog is that of the waiters");
    }

    /// Ends the turn of a flow that has no waiter left, and of its export if that has none either.
    fn rest(&mut self, flow: u32) {
        let export = self.flows[flow].export;
        self.idle_flows.add(1);
        let node = &mut self.exports[export];
        node.flows.rest(&mut self.flows, flow);
        if self.idle_flows.get() > IDLE_FLOWS_MAX {
            node.flows.remove(&mut self.flows, flow);
            self.remove_flow(flow);
        }
        debug_assert!(self.idle_flows.get() <= IDLE_FLOWS_MAX, "few idle flows are remembered");
        let node = &self.exports[export];
        if !node.waiting.is_zero() {
            return;
        }
        self.backlog.weights.sub(node.weight.into());
        if node.flows.is_empty() {
            // Without a remembered flow it goes as well, so there are never more exports than flows.
            self.ring.remove(&mut self.exports, export);
            self.remove_export(export);
        } else {
            self.ring.rest(&mut self.exports, export);
        }
    }

    /// Returns the first waiter of a flow.
    fn first_waiter(&self, flow: u32) -> Option<&Waiter> {
        self.flows[flow].first(&self.waiters)
    }

    /// Returns the flow whose turn it is in the export whose turn it is.
    fn next_turn(&mut self) -> Option<FlowHead> {
        let (mut gone_exports, mut gone_flows) = (DrrRing::new(), DrrRing::new());
        let Self { waiters, flows, exports, ring, .. } = self;
        let first_cost = |flow: &mut Flow| flow.first(waiters).map(Waiter::cost);
        let mut chosen = NIL;
        let found = ring.next_turn(exports, &mut gone_exports, |export| {
            if export.waiting.is_zero() {
                return None;
            }
            let flow = export.flows.next_turn(flows, &mut gone_flows, first_cost);
            chosen = flow.expect("an export with waiters has a flow with waiters");
            first_cost(&mut flows[chosen])
        });
        while let Some(flow) = gone_flows.pop(&mut self.flows) {
            self.remove_flow(flow);
        }
        while let Some(export) = gone_exports.pop(&mut self.exports) {
            self.remove_export(export);
        }
        debug_assert!(found.is_some() != self.is_empty(), "a waiter is found if there is one");
        found.map(|_| FlowHead { flow: chosen, light: false })
    }

    /// Returns whether a flow may spend `cost` in advance of its turn.
    fn may_advance(&self, flow: u32, cost: i64) -> bool {
        let flow = &self.flows[flow];
        let export = &self.exports[flow.export].share;
        let stride = QUANTUM.max(self.largest);
        let spent = flow.share.deficit.min(0) - cost;
        spent >= -stride && export.deficit > -export.quantum.max(self.largest)
    }

    /// Adds a flow to the new ones if it has a waiter and may advance.
    fn make_new(&mut self, flow: u32) {
        let Some(first) = self.first_waiter(flow) else {
            return;
        };
        let list = if first.is_light() { NewList::Light } else { NewList::Bulky };
        if self.may_advance(flow, first.cost()) {
            self.new_flows.push(&mut self.flows, flow, list);
        }
    }

    /// Returns the first new flow of a list. Flows whose export has used up its advance stop being new.
    fn first_new(&mut self, list: NewList) -> Option<FlowHead> {
        while let Some(flow) = self.new_flows.front(list) {
            let first = self.first_waiter(flow).expect("a new flow has a waiter");
            if self.may_advance(flow, first.cost()) {
                return Some(FlowHead { flow, light: first.is_light() });
            }
            self.new_flows.remove(&mut self.flows, flow);
        }
        None
    }

    /// Returns the entry of an export, which has that weight from now on.
    fn export_of(&mut self, id: ExportId, weight: u16) -> u32 {
        debug_assert!(weight > 0, "an export's quantum is above 0");
        let key = u64::from(id.0);
        let found = self.export_table.find(key, |id| self.exports[id].key);
        let export = found.unwrap_or_else(|| self.add_export(key));
        let node = &mut self.exports[export];
        if !node.waiting.is_zero() {
            self.backlog.weights.add(weight.into());
            self.backlog.weights.sub(node.weight.into());
        }
        node.weight = weight;
        node.share.quantum = i64::from(weight) * QUANTUM_PER_WEIGHT;
        export
    }

    fn add_export(&mut self, key: u64) -> u32 {
        let share = Share::new(QUANTUM);
        let flows = DrrRing::new();
        let waiting = Gauge32::default();
        let id = self.exports.take(ExportFlows { key, weight: 0, share, flows, waiting });
        self.export_table.insert(key, id);
        self.ring.push(&mut self.exports, id);
        id
    }

    /// Returns the flow of an export's connection.
    fn flow_of(&mut self, export: u32, connection: u32) -> u32 {
        let key = self.exports[export].key << 32 | u64::from(connection);
        let found = self.flow_table.find(key, |id| self.flows[id].key);
        found.unwrap_or_else(|| {
            let id = self.flows.take(Flow::new(key, export));
            self.flow_table.insert(key, id);
            self.exports[export].flows.push(&mut self.flows, id);
            self.idle_flows.add(1);
            id
        })
    }

    /// Forgets an idle flow that is in no ring.
    fn remove_flow(&mut self, flow: u32) {
        let Flow { key, new_list, ref waiters, .. } = self.flows[flow];
        assert!(waiters.is_empty() && new_list.is_none(), "only an idle flow is forgotten");
        self.flow_table.remove(key, flow, |id| self.flows[id].key);
        self.flows.put(flow);
        self.idle_flows.sub(1);
        if self.last.flow == flow {
            self.last.flow = NIL;
        }
    }

    /// Forgets an export without waiters that is in no ring.
    fn remove_export(&mut self, export: u32) {
        assert!(self.exports[export].waiting.is_zero(), "only an idle export is forgotten");
        while let Some(flow) = self.exports[export].flows.pop(&mut self.flows) {
            self.remove_flow(flow);
        }
        let key = self.exports[export].key;
        self.export_table.remove(key, export, |id| self.exports[id].key);
        self.exports.put(export);
    }
}
