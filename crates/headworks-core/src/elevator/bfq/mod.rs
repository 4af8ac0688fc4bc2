//! The elevator `bfq`: slots by weight, with budgets, and idling where it pays.
//!
//! One queue is *in service* for a slot: it is served until its budget of sectors is used up, its time is over, or it has no more
//! requests. A tree of shares (`shares::slots`) decides by weight which queue is next; each is charged what it was served.
//!
//! ```text
//!   requests of      +- places -+     +----- tree -----+   slot    +- in service -+  requests   +- device -+
//!   connections ---> | queues   | --> | budgets, V     | --------> | one queue    | ----------> | limits   | ---> batch
//!                    +----------+     +----------------+  chosen   +--------------+  by place   +----------+
//!                         arrival: raise, preempt            end: budget by feedback   idle: wait, inject
//! ```
//!
//! - *Idling* (`idle`): an empty queue keeps the device for a moment if its next request is near (a sequential reader on a disk) or
//!   if its share depends on it (weights differ, or it is raised). Others are injected meanwhile as far as that is harmless.
//! - *Raising* (`raise`): queues of interactive and soft real-time clients have 30 and 3000 times their weight for a while.
//! - *Hold*: a raised queue ends the slot of another only after [`settings::Settings::hold_ns`]; each such end costs two seeks.
//! - *Limits* (`device`): the device orders what it has, so it has little: bytes, and time on a rotating one.
//!
//! Files: `settings` (tunables), `position` (near and far), `requests` and `queue` (a queue), `places` (which queue), `think`,
//! `rate`, `raise`, `inject`, `symmetry` and `budget` (pure parts), `merge` and `queue_merge` (connections of one stream),
//! `in_service` (the slot and the wait of the queue in service), `arrival`, `idle`, `slot` (what follows from a request, from an
//! empty queue, and the slot from choice to end), `recent` and `display` (what is shown).
//!
//! Departures from Linux 6.12 are listed in docs/internals/bfq.md with their reasons.
//!
//! Invariants: `waiting` is the number of requests in all queues; while something waits and the device has nothing, a timer is
//! set or `dispatch` returns a request; a request that was dispatched and has not ended counts in `device` and in its queue.

mod arrival;
mod budget;
mod device;
mod display;
mod idle;
mod in_service;
mod inject;
mod merge;
mod places;
mod position;
mod queue;
mod queue_merge;
mod raise;
mod rate;
mod recent;
mod requests;
mod settings;
mod slot;
mod symmetry;
mod think;

#[cfg(test)]
mod tests;

use super::interface::{Batch, Elevator, EndedRequest, MergeEdge};
use super::slot_trace::{SlotEvent, SlotTrace, SlotTraces};
use super::state::ElevatorState;
use crate::bio::{ExportId, TenantId};
use crate::gauge::Gauge32;
use crate::list::List;
use crate::options::QueueOptions;
use crate::request::{Request, RequestState, SlotId, Slots};
use crate::shares::{ShareChange, ShareTree};
use crate::slab::NIL;
use crate::time::Instant;
use device::InDevice;
use in_service::{Idling, Slot};
use places::Places;
use position::Position;
use queue::{BfqQueue, BusyLink, QueueId};
use rate::PeakRate;
use recent::Recent;
use settings::{SECTOR, Settings};
use symmetry::{Counted, Symmetry};

/// The class of exports and tenants below the root.
const GROUPS: u8 = 1;

/// Serves queues in slots by weight.
#[derive(Debug)]
pub struct BfqElevator {
    settings: Settings,
    tree: ShareTree,
    places: Places,
    /// Queues with requests, and the one in service.
    busy: List<BusyLink>,
    /// The queue in service and its slot.
    slot: Option<Slot>,
    idling: Idling,
    /// Requests in all queues.
    waiting: Gauge32,
    device: InDevice,
    symmetry: Symmetry,
    rate: PeakRate,
    /// Where the last dispatched request ended.
    head: Position,
    last_completion: Instant,
    /// Grows to 249 with the number of slots; the peak rate is trusted after eleven.
    slots_given: u32,
    /// Sectors that a queue was served and its leaf is not charged for yet.
    unpaid: (QueueId, u32),
    /// Events, while they are traced.
    trace: Option<Box<SlotTraces>>,
    /// Slots that ended.
    #[cfg(test)]
    ends: Vec<budget::EndedSlot>,
}

impl BfqElevator {
    /// Creates an empty elevator for at most `requests_max` requests at once.
    #[must_use]
    pub fn new(options: &QueueOptions, requests_max: u32) -> Self {
        let settings = Settings::new(options);
        let places = Places::new(requests_max);
        Self {
            tree: places.make_tree(),
            places,
            busy: List::new(),
            slot: None,
            idling: Idling::default(),
            waiting: Gauge32::default(),
            device: InDevice::default(),
            symmetry: Symmetry::default(),
            rate: PeakRate::new(settings.rotational),
            head: Position::default(),
            last_completion: Instant(0),
            slots_given: 0,
            unpaid: (NIL, 0),
            trace: None,
            #[cfg(test)]
            ends: Vec::new(),
            settings,
        }
    }

    /// Returns the queue in service, if any.
    fn current(&self) -> Option<QueueId> {
        self.slot.as_ref().map(|slot| slot.queue)
    }

    /// Returns the largest budget.
    fn budget_max(&self) -> u32 {
        /// `slots_given` after eleven slots.
        const ELEVEN: u32 = 194;
        self.settings.budget_max(self.slots_given >= ELEVEN, self.rate.peak())
    }

    /// Charges the leaf of the queue that was served last. Between two decisions V need not be up to date: it is when a slot
    /// begins, a queue becomes active or leaves, or a budget changes.
    fn pay(&mut self) {
        let (queue, sectors) = std::mem::replace(&mut self.unpaid, (NIL, 0));
        if sectors > 0 {
            self.tree.consume(self.places[queue].leaf, u64::from(sectors) * SECTOR);
        }
    }

    /// Takes a request out of its queue, which may become empty by that.
    fn unlink(&mut self, slots: &mut Slots, id: SlotId) {
        let queue = slots[id].dispatched.flow;
        self.waiting.sub(1);
        let changed = self.places[queue].requests.remove(&self.settings, slots, id);
        if self.current() == Some(queue) {
            return;
        }
        if self.places[queue].requests.is_empty() {
            self.leave(queue);
        } else if changed {
            self.set_budget(slots, queue);
        }
    }

    /// Takes a queue without requests, which is not in service, out of the tree.
    fn leave(&mut self, queue: QueueId) {
        self.pay();
        self.tree.withdraw(self.places[queue].leaf, None);
        (self.places[queue].budget, self.places[queue].service) = (0, 0);
        self.end_busy(queue);
    }

    /// Adapts the budget of a waiting queue to its next request.
    fn set_budget(&mut self, slots: &Slots, queue: QueueId) {
        let next = self.places[queue].requests.next();
        debug_assert!(next != NIL && self.places[queue].busy, "a waiting queue has a request");
        let cost = self.cost(slots, queue, next);
        let entry = &mut self.places[queue];
        let budget = entry.max_budget.max(cost).max(entry.service);
        if entry.budget != budget {
            entry.budget = budget;
            let leaf = entry.leaf;
            self.pay();
            self.tree.set_budget(leaf, u64::from(budget) * SECTOR);
        }
    }

    /// Counts a queue as busy.
    fn begin_busy(&mut self, queue: QueueId) {
        let entry = &mut self.places[queue];
        assert!(!std::mem::replace(&mut entry.busy, true), "a queue becomes busy once");
        let (class, raised) = (entry.class(), entry.raise.is_raised());
        self.symmetry.begin_busy(class, raised);
        self.busy.push_back(&mut self.places, queue);
        self.count(queue);
    }

    /// Counts a queue as busy no more.
    fn end_busy(&mut self, queue: QueueId) {
        let entry = &mut self.places[queue];
        assert!(std::mem::replace(&mut entry.busy, false), "a busy queue is busy no more");
        let (class, raised) = (entry.class(), entry.raise.is_raised());
        self.symmetry.end_busy(class, raised);
        self.busy.remove(&mut self.places, queue);
        self.count(queue);
    }

    /// Counts a queue for the symmetry as what it is now, if it has requests waiting or in the device.
    #[inline]
    fn count(&mut self, queue: QueueId) {
        let entry = &self.places[queue];
        let counts = entry.busy || !entry.in_device.is_zero();
        let (from, to) = (entry.counted, counts.then(|| entry.kind()));
        if from != to {
            self.recount(queue, from, to);
        }
    }

    /// Counts a queue for the symmetry as `to` instead of `from`.
    fn recount(&mut self, queue: QueueId, from: Option<Counted>, to: Option<Counted>) {
        match (from, to) {
            (None, Some(to)) => {
                let (export, tenant) = self.places.loads_of(queue);
                self.symmetry.add(to, export, tenant);
            }
            (Some(from), None) => {
                let (export, tenant) = self.places.loads_of(queue);
                self.symmetry.remove(from, export, tenant);
            }
            (Some(from), Some(to)) => self.symmetry.recount(from, to),
            (None, None) => {}
        }
        self.places[queue].counted = to;
    }

    /// Moves an export to a tenant; if one of its queues is in service, when its slot ends.
    fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        if let Some(slot) = &mut self.slot
            && self.places[slot.queue].export == usize::from(export.0)
        {
            slot.moves_to = Some(tenant);
            return;
        }
        self.pay();
        self.places.set_tenant(&mut self.tree, &mut self.symmetry, export, tenant);
    }

    /// Adds an event of a queue to the trace, if there is one.
    #[inline]
    fn note(&mut self, now: Instant, queue: QueueId, event: impl FnOnce(&BfqQueue) -> SlotEvent) {
        if let Some(trace) = &mut self.trace {
            trace.push(self.places[queue].trace(now, event));
        }
    }

    /// Ends the raising of every queue.
    fn end_raising(&mut self, now: Instant) {
        for queue in 0..self.places.len() as QueueId {
            if self.places[queue].raise.stop(now) {
                self.reweigh(now, queue, true);
            }
        }
    }

    /// Takes a change of a queue's raise over into its weight and the counts.
    fn reweigh(&mut self, now: Instant, queue: QueueId, was_raised: bool) {
        self.note(now, queue, BfqQueue::raise_event);
        let entry = &self.places[queue];
        let (leaf, weight, raised) = (entry.leaf, entry.weight(), entry.raise.is_raised());
        self.tree.set_weight(leaf, weight);
        if entry.busy && raised != was_raised {
            self.symmetry.set_raised(raised);
        }
        self.count(queue);
    }
}

impl Elevator for BfqElevator {
    fn owns_shares(&self) -> bool {
        true
    }

    /// Where it rotates the limit is one of time, see `device`.
    fn limits_device(&self) -> bool {
        !self.settings.rotational
    }

    fn limit_device(&mut self, limit: u64, command_cost: u32) {
        self.device.set_limit(limit, command_cost);
    }

    fn take_device_load(&mut self) -> (u64, bool) {
        self.device.take_load()
    }

    fn change_shares(&mut self, change: ShareChange) {
        let Self { places, tree, symmetry, .. } = self;
        match change {
            ShareChange::ExportWeight(export, weight) => {
                places.set_weight(tree, symmetry, export, weight.into());
            }
            ShareChange::TenantWeight(tenant, weight) => {
                places.set_tenant_weight(tree, symmetry, tenant, weight.into());
            }
            ShareChange::ExportTenant(export, tenant) => self.set_tenant(export, tenant),
            // Targets are kept by the gate.
            ShareChange::ExportTarget(..) => {}
        }
        debug_assert!(self.is_sound(), "an invariant broke in a change of shares");
    }

    fn set_options(&mut self, now: Instant, options: &QueueOptions) -> bool {
        assert!(self.waiting.is_zero(), "options change while no request waits");
        let settings = Settings::new(options);
        // Rates and think times of another kind of device are no guide.
        if settings.rotational != self.settings.rotational {
            return false;
        }
        self.settings = settings;
        if !settings.low_latency {
            self.end_raising(now);
        }
        true
    }

    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]) {
        for &id in ids {
            self.take_request(now, slots, id);
        }
        debug_assert!(self.is_sound(), "an invariant broke in an insertion");
    }

    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize {
        let room = batch.room();
        self.end_held_slot(now, slots);
        while batch.room() > 0
            && !self.waiting.is_zero()
            && self.device.has_room(&self.settings, || self.is_timed())
            && let Some((queue, cost)) = self.select(now, slots)
        {
            batch.push(self.serve(now, slots, queue, cost));
        }
        if !self.waiting.is_zero() {
            self.device.note_waiting();
        }
        debug_assert!(self.is_sound(), "an invariant broke in a dispatch");
        room - batch.room()
    }

    fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        self.unlink(slots, id);
        // Its end is no end of service.
        slots[id].dispatched.flow = NIL;
        debug_assert!(self.is_sound(), "an invariant broke in a removal");
    }

    fn needs_completions(&self) -> bool {
        true
    }

    fn on_complete(&mut self, now: Instant, slots: &Slots, ended: &[EndedRequest]) {
        for request in ended.iter().filter(|request| request.dispatched.flow != NIL) {
            self.device.remove(request.dispatched.bytes, request.dispatched.estimate_ns);
            self.rate.on_complete(now);
            self.last_completion = now;
            self.end_request(now, slots, request.dispatched.flow);
        }
        debug_assert!(self.is_sound(), "an invariant broke in completions");
    }

    fn on_merge(&mut self, slots: &mut Slots, kept: SlotId, gone: Option<SlotId>, edge: MergeEdge) {
        let here = slots[kept].state == RequestState::Queued && !slots[kept].is(Request::REQUEUED);
        let queue = slots[kept].dispatched.flow;
        if let Some(gone) = gone {
            if here && slots[gone].dispatched.flow == queue {
                self.waiting.sub(1);
                self.places[queue].requests.join(&self.settings, slots, kept, gone);
            } else {
                self.unlink(slots, gone);
            }
            slots[gone].dispatched.flow = NIL;
        }
        if here {
            if edge == MergeEdge::Front {
                let requests = &mut self.places[queue].requests;
                requests.resort(&self.settings, slots, kept, self.head);
            }
            if self.current() != Some(queue) {
                self.set_budget(slots, queue);
            }
        }
        debug_assert!(self.is_sound(), "an invariant broke in a merge");
    }

    fn trace_slots(&mut self, on: bool) {
        self.trace = on.then(|| self.trace.take().unwrap_or_default());
    }

    fn take_slot_traces(&mut self, into: &mut Vec<SlotTrace>) -> u64 {
        self.trace.as_mut().map_or(0, |trace| trace.take(into))
    }

    fn state(&self, now: Instant) -> Option<ElevatorState> {
        let (exports, served) = self.places.served_by_export(now);
        let slot = self.slot.as_ref();
        Some(ElevatorState {
            peak_rate: ((u128::from(self.rate.peak()) * 1_000_000) >> 16) as u64,
            max_budget: self.budget_max(),
            virtual_time: self.tree.virtual_time(ShareTree::ROOT, GROUPS),
            slot: slot.map(|slot| self.places.slot_state(now, slot, self.idling.until())),
            waiting: self.waiting.get(),
            in_device: self.device.requests(),
            busy: self.symmetry.busy(),
            raised: self.symmetry.raised_busy(),
            known: self.places.len() as u32,
            flows: self.places.flows(now, self.current()),
            exports,
            served,
            span_ns: Recent::span_ns(now),
        })
    }

    fn next_timeout(&self) -> Option<Instant> {
        // With too much in the device only a completion helps.
        if self.waiting.is_zero() || !self.device.has_room(&self.settings, || self.is_timed()) {
            return None;
        }
        let held = self.slot.as_ref().and_then(|slot| slot.held_until);
        [self.idling.until(), held, self.end_of_withholding_slot()].into_iter().flatten().min()
    }
}
