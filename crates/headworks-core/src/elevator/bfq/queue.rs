//! A queue: the requests of one connection, or the asynchronous ones of an export of one priority.
//!
//! ```text
//!   Empty --request--> Busy --chosen--> in service --no requests, worth waiting--> waited for --request--> in service
//!     ^                  ^                  |  used up, timed out, preempted           |
//!     |                  '------------------+ (requests left)                          |
//!     '-----------------------------------------------(none left) <-------- too idle --'
//! ```
//!
//! Invariants: `busy` queues, and no others, have an active leaf or the one in service; a queue that has requests is busy (one
//! that was preempted while it was waited for may be busy without any); a queue that counts for the symmetry is busy or has
//! requests in the device.

use super::inject::InjectLimit;
use super::merge::Merge;
use super::position::Position;
use super::raise::Raise;
use super::recent::Recent;
use super::requests::QueueRequests;
use super::symmetry::Counted;
use super::think::ThinkTime;
use crate::bio::{IoClass, Ioprio};
use crate::gauge::Gauge32;
use crate::list::{Link, Linked};
use crate::shares::ShareId;
use crate::time::Instant;

/// The name of a queue.
pub(super) type QueueId = u32;

/// A queue: what one party has to be served, and what is known of it.
#[derive(Debug)]
pub(super) struct BfqQueue {
    /// Its connection or priority, see `places`.
    pub key: u64,
    pub leaf: ShareId,
    /// Index of its export.
    pub export: usize,
    pub sync: bool,
    pub ioprio: Ioprio,
    pub requests: QueueRequests,
    /// Requests in the device.
    pub in_device: Gauge32,
    pub busy: bool,
    /// It has been active before.
    pub known: bool,
    /// Where requests of its connection go.
    pub merge: Merge,
    /// Requests of its own connection until it counts as alone, after one of a connection that is merged into it.
    pub company: u8,
    /// What it was counted as for the symmetry, if it counts.
    pub counted: Option<Counted>,
    /// Sectors of the present or next slot, and those of it that it was served.
    pub budget: u32,
    pub service: u32,
    /// Sectors of the next budget, by feedback.
    pub max_budget: u32,
    /// Its last slot ended because it had no requests; what is left of the budget is kept.
    pub hole: bool,
    pub last_end: Instant,
    /// Since when it is not busy and has nothing in the device.
    pub idle_since: Instant,
    pub last_position: Option<Position>,
    pub think: ThinkTime,
    pub raise: Raise,
    pub inject: InjectLimit,
    pub recent: Recent,
    pub busy_link: Link,
}

impl BfqQueue {
    pub fn new(now: Instant, key: u64, ioprio: Ioprio, sync: bool) -> Self {
        Self {
            key,
            leaf: 0,
            export: 0,
            sync,
            ioprio,
            requests: QueueRequests::new(),
            in_device: Gauge32::default(),
            busy: false,
            known: false,
            merge: Merge::NONE,
            company: 0,
            counted: None,
            budget: 0,
            service: 0,
            max_budget: 0,
            hole: false,
            last_end: now,
            idle_since: now,
            last_position: None,
            think: ThinkTime::new(now, sync && ioprio.class() != IoClass::Idle),
            raise: Raise::new(now),
            inject: InjectLimit::new(now),
            recent: Recent::default(),
            busy_link: Link::UNLINKED,
        }
    }

    /// Returns its class, 0 for the highest.
    pub fn class(&self) -> u8 {
        self.ioprio.class().rank() as u8
    }

    pub fn is_idle_class(&self) -> bool {
        self.ioprio.class() == IoClass::Idle
    }

    /// Returns its weight: that of its level, raised.
    pub fn weight(&self) -> u32 {
        debug_assert!(self.ioprio.level() < 8, "an I/O priority has eight levels");
        (8 - u32::from(self.ioprio.level())) * 10 * self.raise.factor() as u32
    }

    /// Returns whether its weight may be raised: a synchronous queue of the default priority.
    pub fn may_be_raised(&self) -> bool {
        self.sync && self.ioprio == Ioprio::default()
    }

    /// Returns what it counts as for the symmetry.
    pub fn kind(&self) -> Counted {
        if self.raise.is_raised() {
            return Counted { level: None, seeky: None };
        }
        // A new one is none of both: beside it no seeky queue has to be waited for.
        let seeky = (self.sync && self.think.is_known()).then(|| self.think.is_seeky());
        Counted { level: Some(self.ioprio.level()), seeky }
    }

    /// Returns the sectors of its budget that it was not served.
    pub fn left(&self) -> u32 {
        self.budget.saturating_sub(self.service)
    }

    /// Returns true when it has no request, waiting or in the device.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.in_device.is_zero()
    }

    /// Returns true when its place can be used for another queue.
    pub fn is_replaceable(&self) -> bool {
        !self.busy && self.is_empty()
    }
}

/// The kind of lists that use [`BfqQueue::busy_link`]: busy queues.
#[derive(Debug)]
pub(super) enum BusyLink {}

impl Linked<BusyLink> for BfqQueue {
    fn link(&self) -> &Link {
        &self.busy_link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.busy_link
    }
}
