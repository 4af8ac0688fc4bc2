//! What waits at the gate: waiters, the flows (connections) that they belong to, and the flows' exports.
//!
//! Invariant: a waiter is linked in its flow's list; a flow with waiters is active in the tree of shares, and in the list of
//! light flows if its only waiter is small and came alone.

use super::pool::Pool;
use crate::depth::SMALL_MAX;
use crate::gauge::{Gauge32, Gauge64};
use crate::list::{Link, Linked, List};
use crate::shares::ShareId;
use crate::tags::owner::TagRequest;
use crate::time::Instant;

/// The sums over a tenant's waiters.
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
    /// Weights of its exports that have waiters.
    pub weights: Gauge64,
}

/// A request that waits for tags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    /// The request for tags.
    pub request: TagRequest,
    /// When it began to wait.
    pub since: Instant,
    /// Number of requests of the gate that waited before it.
    pub number: u64,
    /// No other waited in its flow when it began to wait.
    alone: bool,
    link: Link,
}

impl Waiter {
    /// Creates a waiter that is in no flow's list.
    pub(super) fn new(request: TagRequest, since: Instant, number: u64, alone: bool) -> Self {
        Self { request, since, number, alone, link: Link::UNLINKED }
    }

    /// Returns what its flow pays for it.
    pub(super) fn cost(&self) -> u64 {
        self.request.cost.max(1)
    }

    /// Returns true for a small one that came alone: the last one of a deep queue waits with those before it.
    pub(super) fn is_light(&self) -> bool {
        self.alone && self.is_small()
    }

    /// Returns true for one tag and few bytes.
    pub(super) fn is_small(&self) -> bool {
        self.request.tags == 1 && self.request.bytes <= SMALL_MAX
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

/// A flow that was chosen, and whose first waiter may be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowHead {
    /// Index of the flow.
    pub flow: u32,
    /// Its only waiter is small and came alone, and it is within its share.
    pub light: bool,
    /// The first waiter is small and its flow is within its share.
    pub small: bool,
}

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Flow {
    /// Export and connection, see `Flows::flow_of`.
    pub key: u64,
    /// Index of its export.
    pub export: u32,
    /// Its leaf in the tree of shares.
    pub leaf: ShareId,
    /// Its waiters, in order of arrival.
    pub waiters: List<WaiterLink>,
    /// It is in the list of light flows.
    pub in_light: bool,
    light_link: Link,
    /// It is in the list of flows with a latency target.
    pub in_targeted: bool,
    targeted_link: Link,
}

impl Flow {
    /// Creates an idle flow.
    pub fn new(key: u64, export: u32, leaf: ShareId) -> Self {
        Self {
            key,
            export,
            leaf,
            waiters: List::new(),
            in_light: false,
            light_link: Link::UNLINKED,
            in_targeted: false,
            targeted_link: Link::UNLINKED,
        }
    }

    /// Returns the first waiter.
    pub fn first<'a>(&self, waiters: &'a Pool<Waiter>) -> Option<&'a Waiter> {
        self.waiters.front().map(|id| &waiters[id])
    }
}

/// The kind of list that light flows are in.
#[derive(Debug)]
pub(super) enum LightLink {}

impl Linked<LightLink> for Flow {
    fn link(&self) -> &Link {
        &self.light_link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.light_link
    }
}

/// The kind of list that flows with a latency target are in.
#[derive(Debug)]
pub(super) enum TargetedLink {}

impl Linked<TargetedLink> for Flow {
    fn link(&self) -> &Link {
        &self.targeted_link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.targeted_link
    }
}

/// The flows of one export under one tenant: an export that moved has flows under both until the old ones are empty.
#[derive(Debug)]
pub(super) struct ExportFlows {
    /// Tenant and export, see `Flows::export_of`.
    pub key: u64,
    /// Index of its tenant.
    pub tenant: u32,
    /// Its weight against other exports of the tenant, at least 1 while it has flows.
    pub weight: u16,
    /// Its group in the tree of shares.
    pub group: ShareId,
    /// Its flows, idle ones included.
    pub flows: u32,
    /// Waiters of all its flows.
    pub waiting: u32,
}

/// The exports of one tenant, or those without one.
#[derive(Debug)]
pub(super) struct TenantFlows {
    /// Number of the tenant.
    pub key: u64,
    /// Its weight against other tenants and exports without one.
    pub weight: u16,
    /// Its group in the tree of shares; the root for exports without a tenant.
    pub group: ShareId,
    /// Its exports that have flows.
    pub exports: u32,
    /// The sums over its waiters.
    pub backlog: Backlog,
}
