//! Who waits, and whose turn it is: two levels of deficit round robin by bytes, light flows first.
//!
//! ```text
//!   exports (quantum: 128 KiB at weight 100)      flows of an export: its connections (128 KiB each)
//!     ring -> [A] -> [B] -> [C]                     ring -> [7] -> [9] -> [4]
//!                                                            |
//!   early: light flows, then other new ones                  tickets in order
//! ```
//!
//! - Inside a connection tickets are in order.
//! - **Light flows first** (as fq_codel's new flows). A connection that begins to wait while it had nothing waiting is *new*
//!   and goes before those that always wait, in advance of its turn: as long as its advance is at most one *stride*, and that
//!   of its export has not passed one. A stride is a quantum, or the largest request that somebody waits with if that is
//!   more: with requests of eight quanta the turns of eight rounds come together, and one quantum would make who asks little
//!   at a time wait for most of them. The next turns repay the advance. So newness moves bytes earlier and gives nobody more,
//!   light flows cannot starve heavy ones, and weights hold. fq_codel asks instead that an emptied flow wait for the old ones
//!   to go round: then a client with one request at a time is light only once a round.
//! - Newness is the connection's alone: one list for all exports; an export has only its account. A heavy export keeps its
//!   light connections fast, and one with many light connections pays for them.
//! - Of the new ones the *light* go first (one tag, at most 64 KiB), round robin by request.
//!
//! A flow is known while it waits, and after that until its turn comes and finds it empty with nothing to repay; all are
//! forgotten when nobody waits for the device. At most [`RESTING_MAX`] rest; beyond that an emptied flow is forgotten at once,
//! but then nobody is new.
//!
//! A request that grew by merging while it waited pays for what it became when it goes; so a flow may come to owe one request.
//!
//! Departure from the plain rule: a request counts at least [`COST_MIN`] bytes. Up to there a device is as busy with few bytes
//! as with many, and else whoever asks for 1 byte at a time would get 131,072 requests to another's one.
//!
//! Invariants: a ticket is passed by no later one of its own line; bytes spent by a flow in `n` turns are at most `n` quanta,
//! a stride and two requests; every ticket's turn comes after finitely many grants.

mod early;
mod pool;
mod ring;

use super::TagRequest;
use crate::bio::ExportId;
use crate::slab::NIL;
use crate::time::Instant;
use pool::{Pool, Table};
use ring::{Look, Ring, Share, Sharer};

/// What a turn brings a connection. 128 KiB: a large read of a disk, or 32 small ones; the time of a seek.
const QUANTUM: i64 = 128 << 10;

/// What a turn brings an export, for each unit of its weight: [`QUANTUM`] at weight 100.
const QUANTUM_PER_WEIGHT: i64 = 1311;

/// A request costs at least this.
const COST_MIN: u32 = 4096;

/// A light flow's request is no longer than this: half a quantum, so that at least two of them go in advance.
const LIGHT_MAX: u32 = 64 << 10;

/// Flows that are remembered though nothing of them waits. 1024: all connections that a server takes by default.
const RESTING_MAX: u32 = 1024;

/// Which list of new flows: those with a light request first.
const LIGHT: usize = 0;
const BULKY: usize = 1;

/// Someone who waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub request: TagRequest,
    /// Since when.
    pub since: Instant,
    /// Counts those who waited before it.
    pub number: u64,
    next: u32,
}

impl Waiter {
    fn cost(&self) -> i64 {
        cost(self.request.bytes)
    }

    fn is_light(&self) -> bool {
        self.request.tags == 1 && self.request.bytes <= LIGHT_MAX
    }
}

fn cost(bytes: u32) -> i64 {
    bytes.max(COST_MIN).into()
}

/// The first ticket of a flow, whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowHead {
    flow: u32,
    /// A light flow's.
    pub light: bool,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    head: u32,
    tail: u32,
}

/// A connection that waits.
#[derive(Debug)]
struct Flow {
    key: u64,
    export: u32,
    share: Share,
    line: Line,
    /// Which list of new flows it is in, if it is, and its neighbours there.
    early: Option<usize>,
    early_prev: u32,
    early_next: u32,
}

impl Flow {
    fn new(key: u64, export: u32) -> Self {
        Self {
            key,
            export,
            share: Share::new(QUANTUM),
            line: Line { head: NIL, tail: NIL },
            early: None,
            early_prev: NIL,
            early_next: NIL,
        }
    }

    fn first<'a>(&self, waiters: &'a Pool<Waiter>) -> Option<&'a Waiter> {
        (self.line.head != NIL).then(|| &waiters[self.line.head])
    }
}

/// An export of which a connection waits.
#[derive(Debug)]
struct Export {
    key: u64,
    weight: u16,
    share: Share,
    flows: Ring,
    /// Its tickets.
    waiting: u32,
}

impl Sharer for Flow {
    fn share(&mut self) -> &mut Share {
        &mut self.share
    }
}

impl Sharer for Export {
    fn share(&mut self) -> &mut Share {
        &mut self.share
    }
}

/// What waits, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub waiters: u32,
    pub tags: u32,
    pub bytes: u64,
    /// The weights of the exports that wait.
    pub weights: u64,
}

/// All who wait.
#[derive(Debug)]
pub(crate) struct Flows {
    waiters: Pool<Waiter>,
    flows: Pool<Flow>,
    exports: Pool<Export>,
    flow_table: Table,
    export_table: Table,
    /// The exports in the order of their turns.
    ring: Ring,
    /// New flows, first in first out: the light ones, the others.
    early: [Line; 2],
    backlog: Backlog,
    /// Flows that are remembered and have nothing waiting.
    resting: u32,
    /// The largest cost of all that waited since somebody began to wait.
    largest: i64,
    /// The flow that went last, if it is remembered, and what it paid.
    last: (u32, i64),
}

impl Flows {
    /// Room for `waiters_max` tickets.
    pub fn new(waiters_max: usize) -> Self {
        let flows_max = waiters_max + RESTING_MAX as usize + 1;
        let exports_max = flows_max.min(1 << 16);
        Self {
            waiters: Pool::new(waiters_max),
            flows: Pool::new(flows_max),
            exports: Pool::new(exports_max),
            flow_table: Table::new(flows_max),
            export_table: Table::new(exports_max),
            ring: Ring::new(),
            early: [Line { head: NIL, tail: NIL }; 2],
            backlog: Backlog::default(),
            resting: 0,
            largest: 0,
            last: (NIL, 0),
        }
    }

    /// Nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.backlog.waiters == 0
    }

    /// What waits, all together.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }

    /// Somebody begins to wait, the `number`th to do so. True if it goes first, as a light flow.
    pub fn push(&mut self, now: Instant, number: u64, request: TagRequest) -> bool {
        let export = self.export_of(request.export, request.weight.max(1));
        let flow = self.flow_of(export, request.connection);
        let id = self.waiters.take(Waiter { request, since: now, number, next: NIL });
        self.largest = self.largest.max(cost(request.bytes));
        let line = &mut self.flows[flow].line;
        let begins = line.head == NIL;
        match line.tail {
            NIL => line.head = id,
            tail => self.waiters[tail].next = id,
        }
        line.tail = id;
        let export = &mut self.exports[export];
        self.backlog.weights += if export.waiting == 0 { export.weight.into() } else { 0 };
        export.waiting += 1;
        self.backlog.waiters += 1;
        self.backlog.tags += u32::from(request.tags);
        self.backlog.bytes += u64::from(request.bytes);
        if begins {
            self.resting -= 1;
            if self.resting < RESTING_MAX {
                self.welcome(flow);
            }
        }
        self.flows[flow].early == Some(LIGHT)
    }

    /// Whose turn it is. Asked again it says the same, unless somebody came or went meanwhile.
    pub fn pick(&mut self) -> Option<FlowHead> {
        let early = self.first_early(LIGHT);
        early.or_else(|| self.first_early(BULKY)).or_else(|| self.next_turn())
    }

    /// The first light flow.
    pub fn light(&mut self) -> Option<FlowHead> {
        self.first_early(LIGHT)
    }

    /// A head's ticket.
    pub fn waiter(&self, head: FlowHead) -> &Waiter {
        self.front(head.flow).expect("a head waits")
    }

    /// A head goes; its flow and its export pay.
    pub fn pop(&mut self, head: FlowHead) -> Waiter {
        let flow = &mut self.flows[head.flow];
        let id = flow.line.head;
        let waiter = self.waiters[id];
        flow.line.head = waiter.next;
        if waiter.next == NIL {
            flow.line.tail = NIL;
        }
        let export = flow.export;
        self.exports[export].waiting -= 1;
        self.charge(head.flow, waiter.cost());
        self.last = (head.flow, waiter.cost());
        self.waiters.put(id);
        self.backlog.waiters -= 1;
        self.backlog.tags -= u32::from(waiter.request.tags);
        self.backlog.bytes -= u64::from(waiter.request.bytes);
        // The next of this flow stands behind the other new ones.
        if self.leave_early(head.flow) {
            self.welcome(head.flow);
        }
        if waiter.next == NIL {
            self.rest(head.flow);
        }
        waiter
    }

    /// Who went last was `bytes` long in the end: it pays the rest, if it is remembered.
    pub fn charge_last(&mut self, bytes: u32) {
        let (flow, paid) = self.last;
        if flow != NIL && cost(bytes) > paid {
            self.charge(flow, cost(bytes) - paid);
            self.last.1 = cost(bytes);
        }
    }

    fn charge(&mut self, flow: u32, cost: i64) {
        let flow = &mut self.flows[flow];
        flow.share.deficit -= cost;
        self.exports[flow.export].share.deficit -= cost;
    }

    /// Nobody waits for the device: what was spent until now counts no longer.
    pub fn reset(&mut self) {
        debug_assert!(self.is_empty(), "who waits is known");
        self.largest = 0;
        while let Some(export) = self.ring.pop(&mut self.exports) {
            self.forget_export(export);
        }
        debug_assert!(self.resting == 0 && self.backlog == Backlog::default(), "nobody is left");
    }

    /// A flow has nothing left.
    fn rest(&mut self, flow: u32) {
        let export = self.flows[flow].export;
        self.resting += 1;
        let node = &mut self.exports[export];
        node.flows.rest(&mut self.flows, flow);
        if self.resting > RESTING_MAX {
            node.flows.remove(&mut self.flows, flow);
            self.forget_flow(flow);
        }
        let node = &self.exports[export];
        if node.waiting == 0 {
            self.backlog.weights -= u64::from(node.weight);
            if node.flows.is_empty() {
                // Not even a flow of it is remembered: so there are never more exports than flows.
                self.ring.remove(&mut self.exports, export);
                self.forget_export(export);
            } else {
                self.ring.rest(&mut self.exports, export);
            }
        }
    }

    /// The first ticket of a flow.
    fn front(&self, flow: u32) -> Option<&Waiter> {
        self.flows[flow].first(&self.waiters)
    }

    /// The flow whose turn it is in the export whose turn it is.
    fn next_turn(&mut self) -> Option<FlowHead> {
        let (mut gone_exports, mut gone_flows) = (Ring::new(), Ring::new());
        let Self { waiters, flows, exports, ring, .. } = self;
        let look = |flow: &mut Flow| {
            flow.first(waiters).map_or(Look::Empty, |waiter| Look::Wants(waiter.cost()))
        };
        let mut chosen = NIL;
        let found = ring.next_turn(exports, &mut gone_exports, |export| {
            if export.waiting == 0 {
                return Look::Empty;
            }
            let flow = export.flows.next_turn(flows, &mut gone_flows, look);
            chosen = flow.expect("an export that waits has a flow that waits");
            look(&mut flows[chosen])
        });
        while let Some(flow) = gone_flows.pop(&mut self.flows) {
            self.forget_flow(flow);
        }
        while let Some(export) = gone_exports.pop(&mut self.exports) {
            self.forget_export(export);
        }
        found.map(|_| FlowHead { flow: chosen, light: false })
    }

    /// The export with that id, from now on with that weight.
    fn export_of(&mut self, id: ExportId, weight: u16) -> u32 {
        let key = u64::from(id.0);
        let found = self.export_table.find(key, |id| self.exports[id].key);
        let export = found.unwrap_or_else(|| self.new_export(key));
        let node = &mut self.exports[export];
        if node.waiting > 0 {
            self.backlog.weights += u64::from(weight);
            self.backlog.weights -= u64::from(node.weight);
        }
        node.weight = weight;
        node.share.quantum = i64::from(weight) * QUANTUM_PER_WEIGHT;
        export
    }

    fn new_export(&mut self, key: u64) -> u32 {
        let share = Share::new(QUANTUM);
        let flows = Ring::new();
        let id = self.exports.take(Export { key, weight: 0, share, flows, waiting: 0 });
        self.export_table.insert(key, id);
        self.ring.push(&mut self.exports, id);
        id
    }

    /// The flow of an export's connection.
    fn flow_of(&mut self, export: u32, connection: u32) -> u32 {
        let key = self.exports[export].key << 32 | u64::from(connection);
        let found = self.flow_table.find(key, |id| self.flows[id].key);
        found.unwrap_or_else(|| {
            let id = self.flows.take(Flow::new(key, export));
            self.flow_table.insert(key, id);
            self.exports[export].flows.push(&mut self.flows, id);
            self.resting += 1;
            id
        })
    }

    /// A resting flow that is in no ring any longer.
    fn forget_flow(&mut self, flow: u32) {
        let key = self.flows[flow].key;
        self.flow_table.remove(key, flow, |id| self.flows[id].key);
        self.flows.put(flow);
        self.resting -= 1;
        if self.last.0 == flow {
            self.last.0 = NIL;
        }
    }

    /// An export of which nobody waits and that is in no ring any longer.
    fn forget_export(&mut self, export: u32) {
        while let Some(flow) = self.exports[export].flows.pop(&mut self.flows) {
            self.forget_flow(flow);
        }
        let key = self.exports[export].key;
        self.export_table.remove(key, export, |id| self.exports[id].key);
        self.exports.put(export);
    }
}
