//! When nodes are looked at again: one due instant for a node with waiters to which it does not agree.
//!
//! A node is woken at most once a millisecond, and wake-ups fall on quarters of one, so they are bounded however many nodes wait.

use super::LimitTree;
use crate::limits::bucket::SLACK_NS;
use crate::limits::{LimitDirection, NodeId};
use crate::shares::heap::HeapKey;
use crate::time::{Instant, MS, SEC, US};

/// Least time between two wake-ups of a node.
const WAKE_NS: u64 = MS;
/// Wake-ups of all nodes fall on multiples of this.
const WAKE_GRID_NS: u64 = 250 * US;
/// The longest time without another look.
const WAIT_MAX_NS: u64 = 3600 * SEC;

/// The due instant of what waits for another shard.
const NEVER: Instant = Instant(u64::MAX);

const _: () = assert!(WAKE_NS + WAKE_GRID_NS < SLACK_NS, "a late wake-up loses nothing");

impl LimitTree {
    /// When [`LimitTree::pop`] may have something; none if nothing waits.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.ready[0] || self.ready[1] || !self.granting.is_empty() {
            return Some(Instant(0));
        }
        self.timers.top_time(&self.timer_links).map(Instant)
    }

    /// Looks again at the nodes whose instants are due.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some(at) = self.timers.top_time(&self.timer_links).filter(|at| *at <= now.0) {
            let id = self.timers.top().expect("a heap with a time has a top");
            debug_assert!(self.nodes[id as usize].armed == Some(Instant(at)), "armed as it says");
            self.disarm(id);
            self.nodes[id as usize].woken = now;
            if self.is_lessee(id) {
                self.reassure(now, id);
                continue;
            }
            self.settle_lease(now, id, false);
            self.update_both(now, id);
        }
    }

    /// Whether the first waiter of a direction waits here for a limit of both directions.
    pub(super) fn contends(&self, id: NodeId, direction: LimitDirection) -> bool {
        let node = &self.nodes[id as usize];
        node.lease.is_none()
            && node.due[direction as usize].is_some()
            && node.set.directional_is_ready(direction)
    }

    /// Sets when a direction's first waiter may pass a node, and counts the time in which one waits.
    pub(super) fn set_due(
        &mut self,
        now: Instant,
        id: NodeId,
        direction: LimitDirection,
        wait_ns: Option<u64>,
    ) {
        let node = &mut self.nodes[id as usize];
        // A longer wait is looked at again; one that depends on another shard ends with a message or a time-out of the lease.
        node.due[direction as usize] = wait_ns.map(|wait| match wait {
            u64::MAX => NEVER,
            wait => now.after(wait.min(WAIT_MAX_NS)),
        });
        let holds = self.holds(id);
        let node = &mut self.nodes[id as usize];
        match (holds, node.held_since) {
            (true, None) => node.held_since = Some(now),
            (false, Some(since)) => {
                node.report.limited_ns += now.since(since);
                node.held_since = None;
            }
            _ => {}
        }
        self.arm(id);
    }

    /// Whether a request of this shard waits for a node; those of lessees are counted there.
    fn holds(&self, id: NodeId) -> bool {
        let node = &self.nodes[id as usize];
        LimitDirection::ALL.into_iter().any(|direction| {
            let first = node.queue.first(direction);
            node.due[direction as usize].is_some()
                && first.is_some_and(|first| !self.is_lessee(first))
        })
    }

    /// Sets the instant at which a node is looked at again.
    pub(super) fn arm(&mut self, id: NodeId) {
        let node = &self.nodes[id as usize];
        let due = node.due.into_iter().flatten().min().filter(|due| *due != NEVER);
        let at = [due, self.lease_timeout(id)].into_iter().flatten().min();
        self.arm_at(id, at.map(|at| at.max(node.woken.after(WAKE_NS))));
    }

    /// Sets the instant at which a node is woken, rounded up to the grid.
    pub(super) fn arm_at(&mut self, id: NodeId, at: Option<Instant>) {
        let at = at.map(|at| Instant(at.0.next_multiple_of(WAKE_GRID_NS)));
        if at != self.nodes[id as usize].armed {
            self.disarm(id);
            if let Some(at) = at {
                self.nodes[id as usize].armed = Some(at);
                let key = HeapKey { time: at.0, arrival: u64::from(id) };
                self.timers.push(&mut self.timer_links, id, key);
            }
        }
    }

    pub(super) fn disarm(&mut self, id: NodeId) {
        if self.nodes[id as usize].armed.take().is_some() {
            self.timers.remove(&mut self.timer_links, id);
        }
    }
}
