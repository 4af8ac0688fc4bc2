//! Idling: whether an empty queue in service keeps the device, for how long, and what others do meanwhile.
//!
//! Waiting pays in two cases. It *boosts* throughput when the next request of a sequential client is near. It is *needed* for
//! a share when the queue's next request depends on the end of this one, so that the queue seems to have less to do than it has
//! ("deceptive idleness"), and queues that compete differ. It never pays for asynchronous queues, for seeky ones among
//! equals, or on a device that orders its requests and does not seek.
//!
//! Invariant: a wait has an end: `until` is set while the queue in service is waited for with nothing of it in the device.

use super::BfqElevator;
use super::in_service::Idling;
use super::queue::QueueId;
use super::settings::{RAISED_IDLE_NS, SHORT_NS, SMALL_SECTORS};
use crate::request::Slots;
use crate::slab::NIL;
use crate::time::Instant;

/// Requests of others in the device beside a raised queue's own from which on waiting for it is needed though all are raised; raised
/// queues that are many.
pub(super) const CROWD: u32 = 4;

/// Busy queues among which one is looked for to be injected.
const CANDIDATES: u32 = 32;

impl BfqElevator {
    /// Returns whether waiting for a queue makes the device faster: its next request is near.
    pub(super) fn boosts(&self, queue: QueueId) -> bool {
        let (settings, entry) = (&self.settings, &self.places[queue]);
        if !settings.rotational && settings.queueing {
            return false;
        }
        let ordered = settings.rotational && !settings.queueing;
        let sequential =
            !entry.think.is_seeky() && entry.think.is_io_bound() && entry.think.is_short();
        let boosts = ordered || sequential;
        // While a slot is held for a raised queue it is used as if there were none.
        let held =
            self.slot.as_ref().is_some_and(|slot| slot.queue == queue && slot.held_until.is_some());
        boosts && (self.symmetry.raised_busy() == 0 || held)
    }

    /// Returns whether competing queues differ so that a queue's share depends on waiting for it.
    pub(super) fn is_asymmetric(&self, queue: QueueId) -> bool {
        let counted = self.places[queue].kind();
        self.symmetry.differs(counted, self.settings.rotational)
    }

    /// Returns whether a queue's share depends on waiting for it.
    pub(super) fn is_needed(&self, queue: QueueId) -> bool {
        let entry = &self.places[queue];
        let raised = entry.raise.is_raised() && entry.think.is_short();
        let others = || self.symmetry.raised_busy() < self.symmetry.busy();
        if !self.settings.rotational && !self.settings.strict {
            return raised && others();
        }
        // Among many that are all raised one that seeks gains nothing by a wait, and the device its parallelism.
        let crowded =
            !entry.think.is_seeky() && self.device.requests() >= entry.in_device.get() + CROWD;
        raised && (others() || crowded) || self.is_asymmetric(queue) || self.symmetry.busy() == 1
    }

    /// Returns whether a queue keeps the device for a while when it has no request.
    pub(super) fn is_worth_waiting(&self, queue: QueueId) -> bool {
        let entry = &self.places[queue];
        let waits = self.settings.slice_idle_ns > 0 && entry.sync && !entry.is_idle_class();
        self.settings.strict || waits && (self.boosts(queue) || self.is_needed(queue))
    }

    /// Begins to wait for the queue in service, which has nothing in the device.
    pub(super) fn wait_for(&mut self, now: Instant, queue: QueueId) {
        let entry = &self.places[queue];
        debug_assert!(entry.is_empty(), "a queue without requests is waited for");
        let slice = self.settings.slice_idle_ns;
        let raised = entry.raise.is_raised();
        let ns = match raised {
            true if self.settings.rotational => slice.max(RAISED_IDLE_NS),
            false if entry.think.is_seeky() && !self.is_asymmetric(queue) => slice.min(SHORT_NS),
            _ => slice,
        };
        self.idling.wait(now, now.after(ns));
    }

    /// Takes a request that comes to an empty synchronous queue: the limit on injection may be measured.
    pub(super) fn begin_measurement(&mut self, now: Instant, queue: QueueId) {
        let current = self.current() == Some(queue);
        let alone = self.device.requests() == 0;
        let entry = &mut self.places[queue];
        if entry.inject.is_old(now) {
            entry.inject.reset(now, entry.think.is_short());
            if current {
                self.idling.forget_measurement();
            }
        }
        if current && entry.inject.may_measure(now) {
            self.idling.measure(now, alone, entry.inject.has_base());
        }
    }

    /// Takes a completion of the queue in service: it may end a measurement. The request is not counted in the device any more.
    pub(super) fn end_measurement(&mut self, now: Instant, queue: QueueId) {
        if let Some((since, injected)) = self.idling.take_measured() {
            let (alone, most) = (self.device.requests() == 0, self.device.most());
            let ns = now.since(since);
            self.places[queue].inject.on_measured(now, ns, injected, alone, most);
        }
    }

    /// Ends the wait for the queue in service, if any.
    pub(super) fn end_idling(&mut self, now: Instant, queue: QueueId) {
        if let Some(since) = self.idling.since() {
            self.places[queue].recent.at(now).idle_ns += now.since(since);
            self.idling.stop();
        }
    }

    /// Forgets what belonged to a slot that ends.
    pub(super) fn stop_idling(&mut self, now: Instant, queue: QueueId) {
        self.end_idling(now, queue);
        self.idling = Idling::default();
    }

    /// Returns a queue that may use the device while the one in service is empty and keeps it.
    pub(super) fn injected(
        &mut self,
        now: Instant,
        slots: &Slots,
        current: QueueId,
    ) -> Option<QueueId> {
        let entry = &self.places[current];
        let (raised, short) = (entry.raise.is_raised(), entry.think.is_short());
        let only_raised = raised && short;
        if self.boosts(current) || only_raised && self.symmetry.raised_busy() < 2 {
            return None;
        }
        let in_vain = self
            .idling
            .since()
            .is_some_and(|since| now.since(since) >= self.settings.slice_idle_ns);
        if self.device.requests() >= self.places[current].inject.get(in_vain) {
            return None;
        }
        self.pay();
        let mut best = None;
        for _ in 0..CANDIDATES.min(self.symmetry.busy()) {
            let queue = self.busy.pop_front(&mut self.places).expect("a busy queue is listed");
            self.busy.push_back(&mut self.places, queue);
            if queue == current || !self.may_inject(slots, queue, only_raised) {
                continue;
            }
            let order = self.tree.finish_order(self.places[queue].leaf);
            if best.is_none_or(|(least, _)| order < least) {
                best = Some((order, queue));
            }
        }
        let (_, queue) = best?;
        self.idling.note_injected();
        Some(queue)
    }

    /// Returns whether a queue's next request may use the device out of its turn: it fits into its budget, and on a device that does
    /// not rotate it is small.
    fn may_inject(&self, slots: &Slots, queue: QueueId, only_raised: bool) -> bool {
        let entry = &self.places[queue];
        let next = entry.requests.next();
        if next == NIL || only_raised && !entry.raise.is_raised() {
            return false;
        }
        let large = super::position::sectors_of(&slots[next]) >= SMALL_SECTORS;
        let harmless = self.settings.rotational || !large || self.device.requests() == 0;
        harmless && self.cost(slots, queue, next) <= entry.left()
    }
}
