//! A slot, from the choice of its queue to its end, and the requests served in it.
//!
//! `select` returns the queue to serve next, if one may be served now: it ends slots that are over and begins new ones until one
//! has a request within its budget. So one dispatch fills a batch over the ends of slots.

use super::BfqElevator;
use super::budget::EndedSlot;
pub(super) use super::budget::SlotEnd;
use super::in_service::Slot;
use super::position::{self, Position, sectors_of};
use super::queue::QueueId;
use super::settings::{ASYNC_FACTOR, SECTOR};
use crate::bio::ExportId;
use crate::elevator::slot_trace::SlotEvent;
use crate::request::{Request, SlotId, Slots};
use crate::slab::NIL;
use crate::time::Instant;

impl BfqElevator {
    /// Returns what a request of a queue is charged, in sectors. Asynchronous ones cost more while all compete as equals.
    pub(super) fn cost(&self, slots: &Slots, queue: QueueId, id: SlotId) -> u32 {
        let (entry, sectors) = (&self.places[queue], sectors_of(&slots[id]));
        let plain = entry.sync || entry.raise.is_raised() || self.is_asymmetric(queue);
        if plain { sectors } else { sectors.saturating_mul(ASYNC_FACTOR) }
    }

    /// Returns whether the limit on time in the device holds: it delays a queue that is waited for. Seeky loads alone are better
    /// ordered by the device.
    pub(super) fn is_timed(&self) -> bool {
        let seeky = |queue: QueueId| self.places[queue].think.is_seeky();
        self.symmetry.raised_busy() > 0 || self.current().is_some_and(|queue| !seeky(queue))
    }

    /// Ends a slot whose hold is over, if a raised queue waits.
    pub(super) fn end_held_slot(&mut self, now: Instant, slots: &Slots) {
        let Some(slot) = &mut self.slot else {
            return;
        };
        if slot.held_until.is_none_or(|at| now < at) {
            return;
        }
        slot.held_until = None;
        let raised = self.places[slot.queue].raise.is_raised();
        if !raised && self.symmetry.raised_busy() > 0 {
            self.end_slot(now, slots, SlotEnd::Preempted);
        }
    }

    /// Returns the queue whose next request is dispatched now, and what that is charged; `None` if nothing may be.
    pub(super) fn select(&mut self, now: Instant, slots: &Slots) -> Option<(QueueId, u32)> {
        self.end_due_slot(now, slots);
        // Each turn ends a slot with a larger budget or without requests, so a queue has two at most.
        loop {
            let queue = match self.current() {
                Some(queue) => queue,
                None => self.begin_slot(now, slots)?,
            };
            let next = self.places[queue].requests.next();
            if next != NIL {
                if self.places.has_enough(&self.settings, slots, queue, self.head) {
                    return None;
                }
                let cost = self.cost(slots, queue, next);
                if cost <= self.places[queue].left() {
                    self.end_idling(now, queue);
                    return Some((queue, cost));
                }
                self.end_slot(now, slots, SlotEnd::UsedUp);
                continue;
            }
            let outstanding = !self.places[queue].in_device.is_zero();
            if self.idling.is_waiting() || outstanding && self.is_worth_waiting(queue) {
                let injected = self.injected(now, slots, queue)?;
                let cost = self.cost(slots, injected, self.places[injected].requests.next());
                return Some((injected, cost));
            }
            // It was preempted while it was waited for, and its turn has come before its request.
            if self.places[queue].service == 0 && !outstanding && self.is_worth_waiting(queue) {
                self.wait_for(now, queue);
                return None;
            }
            self.end_slot(now, slots, SlotEnd::NoMore);
        }
    }

    /// Ends the slot if its queue was waited for in vain, or if it has lasted long enough.
    fn end_due_slot(&mut self, now: Instant, slots: &Slots) {
        let Some(Slot { queue, until, .. }) = self.slot else {
            return;
        };
        let empty = self.places[queue].requests.is_empty();
        if self.idling.until().is_some_and(|at| now >= at) {
            let end = if now >= until { SlotEnd::TimedOut } else { SlotEnd::TooIdle };
            if now >= until || empty {
                return self.end_slot(now, slots, end);
            }
            self.end_idling(now, queue);
        }
        if self.is_over(now) && !(empty && self.is_worth_waiting(queue)) {
            self.end_slot(now, slots, SlotEnd::TimedOut);
        }
    }

    /// Returns whether the slot has lasted long enough. A wait with much of the budget unused counts, a short one does not.
    fn is_over(&self, now: Instant) -> bool {
        let Some(Slot { queue, until, .. }) = self.slot else {
            return false;
        };
        let entry = &self.places[queue];
        now >= until && (!self.idling.is_waiting() || entry.left() >= entry.budget / 3)
    }

    /// Returns the end of a slot whose queue has requests here and in the device. It may hold them back until those in the device
    /// have ended (`has_enough`), and others with them: if a command never ends, no completion ends the slot.
    pub(super) fn end_of_withholding_slot(&self) -> Option<Instant> {
        let slot = self.slot.as_ref()?;
        let entry = &self.places[slot.queue];
        let may_withhold = !entry.requests.is_empty() && !entry.in_device.is_zero();
        (may_withhold && !self.idling.is_waiting()).then_some(slot.until)
    }

    /// Begins the slot of the queue whose turn it is, if any has a request.
    fn begin_slot(&mut self, now: Instant, slots: &Slots) -> Option<QueueId> {
        self.pay();
        let leaf = self.tree.begin_slot(now)?;
        let queue = self.tree.owner(leaf);
        self.slots_given = (7 * self.slots_given + 256) / 8;
        // A period that ended while the queue waited does not lengthen this slot.
        self.end_raise(now, queue);
        let entry = &mut self.places[queue];
        entry.requests.begin_slot(now, slots);
        entry.raise.on_slot(now);
        let until = now.after(self.settings.slot_max_ns(entry.raise.slot_factor()));
        self.slot = Some(Slot { queue, since: now, until, held_until: None, moves_to: None });
        self.note(now, queue, |entry| {
            let (budget, weight) = (entry.budget, entry.weight());
            SlotEvent::Begin { budget, weight }
        });
        Some(queue)
    }

    /// Dispatches the next request of a queue, in service or injected, for a charge of `cost`.
    pub(super) fn serve(
        &mut self,
        now: Instant,
        slots: &mut Slots,
        queue: QueueId,
        cost: u32,
    ) -> SlotId {
        let id = self.places[queue].requests.next();
        if self.unpaid.0 != queue {
            self.pay();
            self.unpaid.0 = queue;
        }
        self.unpaid.1 += cost;
        let current = self.current() == Some(queue);
        if current {
            self.idling.on_dispatch();
        }
        let request = &mut slots[id];
        let sectors = sectors_of(request);
        let seeky = position::is_seeky(&self.settings, Some(self.head), request);
        self.rate.on_dispatch(now, sectors, seeky, self.device.requests());
        request.dispatched.estimate_ns =
            self.settings.estimate_ns(sectors, seeky, self.rate.peak());
        request.dispatched.bytes = sectors * SECTOR as u32;
        self.device.add(request.dispatched.bytes, request.dispatched.estimate_ns);
        let end = Position::after(request);
        let entry = &mut self.places[queue];
        entry.service += cost;
        entry.in_device.add(1);
        entry.raise.on_served(sectors);
        self.note(now, queue, |_| {
            let Request { volume, op, offset, len, .. } = slots[id];
            SlotEvent::Dispatch { volume, op, offset, len, charge: cost, injected: !current }
        });
        self.unlink(slots, id);
        self.head = end;
        if current {
            self.after_service(now, slots, queue);
        }
        id
    }

    /// Ends the raising of the queue in service if it is over, and its slot after each request of the idle class.
    fn after_service(&mut self, now: Instant, slots: &Slots, queue: QueueId) {
        self.end_raise(now, queue);
        let idle_class = self.places[queue].is_idle_class();
        if idle_class && self.symmetry.busy() > 1 {
            self.end_slot(now, slots, SlotEnd::UsedUp);
        }
    }

    /// Ends the raising of a queue if it is over.
    fn end_raise(&mut self, now: Instant, queue: QueueId) {
        let entry = &mut self.places[queue];
        if entry.raise.is_raised() && entry.raise.expire(now, &self.settings, &self.rate) {
            self.reweigh(now, queue, true);
        }
    }

    /// Takes the end of a dispatched request of a queue.
    pub(super) fn end_request(&mut self, now: Instant, slots: &Slots, queue: QueueId) {
        let current = self.current() == Some(queue);
        if current {
            self.end_measurement(now, queue);
        }
        let settings = &self.settings;
        let entry = &mut self.places[queue];
        entry.in_device.sub(1);
        entry.last_end = now;
        let empty = entry.is_empty();
        if empty {
            entry.raise.on_empty(now, settings);
            if !entry.busy {
                entry.idle_since = now;
                self.count(queue);
            }
        }
        if !current {
            return;
        }
        let none_left = self.places[queue].requests.is_empty();
        if none_left && self.is_worth_waiting(queue) {
            if empty {
                self.wait_for(now, queue);
            }
        } else if self.is_over(now) {
            self.end_slot(now, slots, SlotEnd::TimedOut);
        } else if none_left {
            self.end_slot(now, slots, SlotEnd::NoMore);
        }
    }

    /// Ends the slot of the queue in service.
    pub(super) fn end_slot(&mut self, now: Instant, slots: &Slots, end: SlotEnd) {
        let slot = self.slot.take().expect("a queue is in service");
        let Slot { queue, since, moves_to, .. } = slot;
        if self.unpaid.0 != queue {
            self.pay();
        }
        // A wait in vain is no part of the slot.
        let timer = matches!(end, SlotEnd::TooIdle | SlotEnd::TimedOut);
        let until = self.idling.since().filter(|_| timer).unwrap_or(now);
        self.stop_idling(now, queue);
        let most = self.budget_max();
        // One that is waited for because its share depends on it keeps its place in the tree when another goes first.
        let keeps = end == SlotEnd::Preempted && self.is_needed(queue);
        let entry = &mut self.places[queue];
        let leaves = entry.requests.is_empty() && !keeps;
        let ended = EndedSlot {
            end,
            sync: entry.sync,
            raised: entry.raise.is_raised(),
            seeky: entry.think.is_seeky(),
            empty: entry.requests.is_empty(),
            outstanding: !entry.in_device.is_zero(),
            ns: until.since(since),
            budget: entry.budget,
            service: entry.service,
            max_budget: entry.max_budget,
        };
        #[cfg(test)]
        self.ends.push(ended);
        let served = entry.recent.at(now);
        served.slots += 1;
        served.sectors += u64::from(ended.service);
        served.slot_ns += now.since(since);
        let charged = ended.charge(&self.settings, most);
        let more = charged - entry.service;
        let budget = entry.budget;
        entry.service = charged;
        entry.budget = entry.budget.max(charged);
        entry.max_budget = ended.next_budget(&self.settings, most);
        if entry.is_empty() {
            entry.raise.on_empty(now, &self.settings);
        }
        let leaf = entry.leaf;
        self.note(now, queue, |_| {
            let (reason, service, ns) = (end.name(), ended.service, now.since(since));
            SlotEvent::End { reason, service, charged, budget, ns }
        });
        let (_, unpaid) = std::mem::replace(&mut self.unpaid, (NIL, 0));
        let charge = (u64::from(unpaid) + u64::from(more)) * SECTOR;
        if leaves {
            self.tree.end_slot(leaf, charge, None);
            self.end_empty_slot(now, queue, end);
        } else {
            let next = self.places[queue].requests.next();
            let cost = if next == NIL { 0 } else { self.cost(slots, queue, next) };
            let entry = &mut self.places[queue];
            entry.budget = entry.max_budget.max(cost);
            (entry.service, entry.hole) = (0, false);
            let budget = u64::from(entry.budget) * SECTOR;
            self.tree.end_slot(leaf, charge, Some(budget));
        }
        if let Some(tenant) = moves_to {
            let export = ExportId(self.places[queue].export as u16);
            self.places.set_tenant(&mut self.tree, &mut self.symmetry, export, tenant);
        }
    }

    /// Takes the queue whose slot has ended and that has no request out of the busy ones.
    fn end_empty_slot(&mut self, now: Instant, queue: QueueId, end: SlotEnd) {
        let entry = &mut self.places[queue];
        // What is left of the budget is kept for a request that comes soon.
        entry.hole = !matches!(end, SlotEnd::TimedOut | SlotEnd::UsedUp);
        if !entry.hole {
            entry.service = 0;
        }
        if entry.in_device.is_zero() {
            entry.idle_since = now;
        }
        self.end_busy(queue);
    }

    /// Returns whether the invariants of the elevator hold.
    pub(super) fn is_sound(&self) -> bool {
        let slot = self.slot.as_ref();
        let in_service = slot.is_none_or(|slot| self.places[slot.queue].busy);
        let waits = !self.idling.is_waiting() || slot.is_some();
        let busy = self.symmetry.busy();
        let idle = busy > 0 || self.waiting.is_zero();
        in_service
            && waits
            && idle
            && self.symmetry.raised_busy() <= busy
            && self.unpaid.1 < u32::MAX / 2
    }
}
