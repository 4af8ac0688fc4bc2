//! Merging of queues: connections that take the requests of one stream in turn are served as one queue.
//!
//! A client that deals a stream to several connections makes each of them look like a stream with gaps. Served by themselves, each in
//! a slot of its own, they would make the head go forth and back over the stream. So the requests of a connection go to the queue
//! of another one of the same export, class and priority while they lie near to what went there last:
//!
//! ```text
//!          two in a row near the end of another queue's last one
//!   Own ------------------------------------------------------------> Merged: its requests go to that queue
//!    ^                                                                   |
//!    '---- two in a row far from that queue's last one, or it is gone ---'
//! ```
//!
//! Of such a queue the device has two requests at a time: with more it would serve some connections ahead of others, and return
//! to what those left out. Requests that wait already stay in their queue. The export's share does not change; inside it the
//! connections of the stream are one. Only where the device rotates: elsewhere distance costs nothing.
//!
//! Linux merges likewise (`bfq_setup_cooperator`, `BFQQ_CLOSE_THR`), but only in the first 100 ms of a queue, because processes are
//! short-lived; a connection lives long, and what it reads changes. Instead of a tree of all queues by position, the queue in
//! service and the two of the export that got requests last are looked at: those of one stream come one after the other.
//!
//! Invariants: a queue that is merged into another one is not one that others are merged into from then on, so there is no circle;
//! both are of one export, class and priority.

use super::merge::Merge;
use super::places::Places;
use super::position::{self, Position};
use super::queue::QueueId;
use super::settings::Settings;
use crate::request::{Request, Slots};
use crate::slab::NIL;
use crate::time::Instant;

/// Sectors within which requests are of one stream: 4 MiB, as Linux.
const NEAR_SECTORS: u64 = 8192;
/// Requests in the device that keep it busy with a stream.
const IN_DEVICE: u32 = 2;
/// Sectors from which on a request of a stream is not held back to grow: 128 KiB.
const GROWN_SECTORS: u32 = 256;
/// Requests of its own connection after which a queue counts as alone.
const COMPANY: u8 = 64;

impl Places {
    /// Returns the queue for a request of the connection of queue `own`, on a device that rotates: that one, or one that it is merged into.
    /// `current` is in service.
    pub fn queue_for(
        &mut self,
        now: Instant,
        request: &Request,
        own: QueueId,
        current: Option<QueueId>,
    ) -> QueueId {
        if !self[own].sync {
            return own;
        }
        let at = Position::of(request);
        let queue = match self.merged_into(own) {
            Some(queue) => self.stay_or_part(now, own, queue, at),
            None => self.stay_or_merge(own, at, current),
        };
        self.note_latest(queue);
        let company = &mut self[queue].company;
        *company = if queue == own { company.saturating_sub(1) } else { COMPANY };
        queue
    }

    /// Returns whether the device has enough of a queue: of a stream of several connections the next two requests. With more of them
    /// it would choose the order, and a connection that it prefers would run ahead of the others; what waits here is sorted and
    /// merged. Of any stream it has one request while the next is small: that grows by those that follow. `head` is where the last
    /// request that the device was sent ends.
    pub fn has_enough(
        &self,
        settings: &Settings,
        slots: &Slots,
        queue: QueueId,
        head: Position,
    ) -> bool {
        let entry = &self[queue];
        let sequential = !entry.think.is_seeky() && !entry.in_device.is_zero();
        sequential
            && (entry.company > 0 && entry.in_device.get() >= IN_DEVICE
                || settings.rotational && may_grow(&slots[entry.requests.next()], head))
    }

    /// Returns the queue that a queue is merged into, if that is still there.
    fn merged_into(&mut self, own: QueueId) -> Option<QueueId> {
        let is_there = |merge: &Merge| merge.is_merged() && self[merge.into].key == merge.key;
        let merge = self[own].merge;
        if !is_there(&merge) {
            if merge.is_merged() {
                self[own].merge = Merge::NONE;
            }
            return None;
        }
        // The other one may have been merged since.
        let next = self[merge.into].merge;
        if is_there(&next) {
            self[own].merge = Merge { streak: 0, ..next };
            debug_assert!(next.into != own, "there is no circle");
        }
        Some(self[own].merge.into)
    }

    fn is_near(&self, queue: QueueId, at: Position) -> bool {
        let last = self[queue].last_position;
        last.is_some_and(|last| last.distance(at) <= NEAR_SECTORS)
    }

    fn stay_or_part(
        &mut self,
        now: Instant,
        own: QueueId,
        queue: QueueId,
        at: Position,
    ) -> QueueId {
        let far = !self.is_near(queue, at);
        let entry = &mut self[own];
        if !entry.merge.changes(far) {
            return queue;
        }
        entry.merge = Merge::NONE;
        // It was not idle meanwhile.
        (entry.idle_since, entry.last_end, entry.last_position) = (now, now, None);
        own
    }

    fn stay_or_merge(&mut self, own: QueueId, at: Position, current: Option<QueueId>) -> QueueId {
        let entry = &self[own];
        let alike = |queue: &QueueId| {
            let other = &self[*queue];
            *queue != own
                && !other.merge.is_merged()
                && (other.export, other.sync, other.ioprio) == (entry.export, true, entry.ioprio)
                && other.raise.factor() == entry.raise.factor()
                && self.is_near(*queue, at)
        };
        let latest = self.latest_of(entry.export).into_iter().filter(|&queue| queue != NIL);
        let found = current.into_iter().chain(latest).find(alike);
        let merge = &mut self[own].merge;
        if !merge.changes(found.is_some()) {
            return own;
        }
        let queue = found.expect("the last request said so");
        let key = self[queue].key;
        self[own].merge = Merge { into: queue, key, streak: 0 };
        queue
    }
}

/// Returns whether a request continues what the device was sent last, which ends at `head`, and is so small that those that follow it
/// shall merge with it first. Sent as they come, 32 requests of 4 KiB of a writer are 32 commands, because the drive's cache has room for
/// each.
fn may_grow(next: &Request, head: Position) -> bool {
    next.op.has_data() && position::sectors_of(next) < GROWN_SECTORS && Position::of(next) == head
}
