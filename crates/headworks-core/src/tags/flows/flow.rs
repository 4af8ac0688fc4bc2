//! What waits at the gate: waiters, the flows (connections) that they belong to, and the flows' exports.
//!
//! Invariant: a waiter is linked in its flow's list; a flow is in its export's ring, and in a list of new flows while it is new.

use super::drr::{DrrRing, Share, ShareNode};
use super::pool::Pool;
use crate::gauge::Gauge32;
use crate::list::{Link, Linked, List};
use crate::tags::owner::TagRequest;
use crate::time::Instant;

/// Bytes that a turn adds to a connection. 128 KiB: a large read of a disk, or 32 small ones; the time of a seek.
pub(super) const QUANTUM: i64 = 128 << 10;

/// Bytes that a turn adds to an export, for each unit of its weight: [`QUANTUM`] at weight 100.
pub(super) const QUANTUM_PER_WEIGHT: i64 = 1311;

/// Bytes that a request costs at least.
const COST_MIN: u32 = 4096;

/// Largest request of a light flow, in bytes: half a quantum, so that at least two of them go in advance.
const LIGHT_MAX: u32 = 64 << 10;

/// A request that waits for tags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    /// The request for tags.
    pub request: TagRequest,
    /// When it began to wait.
    pub since: Instant,
    /// Number of requests of the gate that waited before it.
    pub number: u64,
    link: Link,
}

impl Waiter {
    /// Creates a waiter that is in no flow's list.
    pub(super) fn new(request: TagRequest, since: Instant, number: u64) -> Self {
        Self { request, since, number, link: Link::UNLINKED }
    }

    /// Returns the bytes that it costs.
    pub(super) fn cost(&self) -> i64 {
        cost(self.request.bytes)
    }

    /// Returns true for one tag and few bytes.
    pub(super) fn is_light(&self) -> bool {
        self.request.tags == 1 && self.request.bytes <= LIGHT_MAX
    }
}

/// The kind of list that a flow's waiters are in.
#[derive(Debug)]
pub(super) enum WaiterLink {}

impl Linked<WaiterLink> for Waiter {
    fn link(&self) -> &Link {
        &self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// Returns the cost of a request: up to [`COST_MIN`] a device is as busy with few bytes as with many. With less, 1-byte
/// requests would get 131,072 turns for one of another connection.
pub(super) fn cost(bytes: u32) -> i64 {
    bytes.max(COST_MIN).into()
}

/// A flow that was chosen, and whose first waiter may be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowHead {
    /// Index of the flow.
    pub(super) flow: u32,
    /// The first waiter of a new flow is light.
    pub light: bool,
}

/// A list of new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewList {
    /// Flows whose first waiter is light.
    Light = 0,
    /// The others.
    Bulky = 1,
}

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Flow {
    /// Export and connection, see `Flows::flow_of`.
    pub key: u64,
    /// Index of its export.
    pub export: u32,
    /// Its turns among the flows of the export.
    pub share: Share,
    /// Its waiters, in order of arrival.
    pub waiters: List<WaiterLink>,
    /// The list of new flows that it is in.
    pub new_list: Option<NewList>,
    new_link: Link,
}

impl Flow {
    /// Creates an idle flow that is in no ring.
    pub fn new(key: u64, export: u32) -> Self {
        Self {
            key,
            export,
            share: Share::new(QUANTUM),
            waiters: List::new(),
            new_list: None,
            new_link: Link::UNLINKED,
        }
    }

    /// Returns the first waiter.
    pub fn first<'a>(&self, waiters: &'a Pool<Waiter>) -> Option<&'a Waiter> {
        self.waiters.front().map(|id| &waiters[id])
    }
}

impl ShareNode for Flow {
    fn share(&self) -> &Share {
        &self.share
    }

    fn share_mut(&mut self) -> &mut Share {
        &mut self.share
    }
}

/// The kind of list that new flows are in.
#[derive(Debug)]
pub(super) enum NewLink {}

impl Linked<NewLink> for Flow {
    fn link(&self) -> &Link {
        &self.new_link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.new_link
    }
}

/// The flows of one export.
#[derive(Debug)]
pub(super) struct ExportFlows {
    /// Number of the export.
    pub key: u64,
    /// Its weight against other exports, at least 1 while it has flows.
    pub weight: u16,
    /// Its turns among the exports.
    pub share: Share,
    /// Its flows in the order of their turns, idle ones included.
    pub flows: DrrRing,
    /// Waiters of all its flows.
    pub waiting: Gauge32,
}

impl ShareNode for ExportFlows {
    fn share(&self) -> &Share {
        &self.share
    }

    fn share_mut(&mut self) -> &mut Share {
        &mut self.share
    }
}
