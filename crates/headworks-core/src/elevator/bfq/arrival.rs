//! What follows from a request that comes: the queue's history, its activation, its raising, and the preemption of the slot.

use super::BfqElevator;
use super::budget;
use super::idle::CROWD;
use super::position::{self, Position, sectors_of};
use super::queue::{BfqQueue, QueueId};
use super::raise::Activation;
use super::settings::SECTOR;
use super::slot::SlotEnd;
use crate::request::{SlotId, Slots};
use crate::time::Instant;

/// Sectors below which one request of a boosting queue does not end the wait: more will come and merge with it. As Linux.
const SMALL_ARRIVAL: u32 = 32;

/// A returning queue keeps its budget if it returns within so many times the idling. As Linux.
const RETURN_IDLES: u64 = 3;

impl BfqElevator {
    /// Takes a request into its queue.
    pub(super) fn take_request(&mut self, now: Instant, slots: &mut Slots, id: SlotId) {
        let (own, new) = self.places.find(now, &mut self.tree, &slots[id]);
        if new {
            // It grows fourfold with each slot that uses it up. With two thirds of the largest, as Linux has it, a new random reader
            // waited until V had passed that: 30 s among 300. Where queues are not waited for it begins with its first request.
            let budget = if self.settings.waits() { self.budget_max() / 8 } else { 0 };
            self.places[own].max_budget = budget.max(1);
        }
        let queue = match self.settings.rotational {
            true => self.places.queue_for(now, &slots[id], own, self.current()),
            false => own,
        };
        slots[id].dispatched.flow = queue;
        if self.places[queue].sync {
            self.note_arrival(now, queue);
        }
        self.note_seek(now, slots, id, queue);
        self.add(now, slots, id, queue);
        self.places[queue].last_position = Some(Position::after(&slots[id]));
        if self.current() == Some(queue) && self.idling.is_waiting() {
            self.end_wait(now, slots, id, queue);
        }
    }

    /// Notes when a client sends its requests.
    fn note_arrival(&mut self, now: Instant, queue: QueueId) {
        let slice = self.settings.slice_idle_ns;
        let current = self.current() == Some(queue);
        let entry = &mut self.places[queue];
        let empty = entry.is_empty();
        // Also while it is waited for: otherwise one that thinks a little less than that is waited for again and again.
        if (current || !entry.busy) && empty && entry.known {
            let changed = entry.think.on_request(now.since(entry.last_end), slice);
            let short = entry.think.is_short();
            if changed && entry.inject.follows_think_time(now, short) {
                entry.inject.reset(now, short);
            }
        }
        if entry.known {
            entry.think.on_arrival(now, empty.then_some(entry.last_end));
        }
        if empty {
            self.begin_measurement(now, queue);
        }
        let entry = &mut self.places[queue];
        entry.raise.on_request(now, entry.last_end);
    }

    /// Notes where a client's requests lie.
    fn note_seek(&mut self, now: Instant, slots: &Slots, id: SlotId, queue: QueueId) {
        let entry = &mut self.places[queue];
        let last = entry.last_position;
        let seeky = position::is_seeky(&self.settings, last, &slots[id]);
        // The first request says nothing.
        let changed = last.is_some() && entry.think.on_seek(seeky);
        let was_raised = entry.raise.is_raised();
        let factor = entry.raise.factor();
        if entry.think.is_totally_seeky() {
            entry.raise.on_totally_seeky(now, &self.settings, &self.rate);
        }
        if entry.raise.factor() != factor {
            self.reweigh(now, queue, was_raised);
        } else if changed {
            self.count(queue);
        }
    }

    /// Adds a request to its queue, which may become active.
    fn add(&mut self, now: Instant, slots: &mut Slots, id: SlotId, queue: QueueId) {
        let settings = &self.settings;
        let entry = &mut self.places[queue];
        let age = if entry.sync { settings.fifo_sync_ns } else { settings.fifo_async_ns };
        let changed = entry.requests.insert(settings, slots, id, now.after(age), self.head);
        self.waiting.add(1);
        if !entry.busy {
            self.activate(now, slots, queue);
        } else if changed && self.current() != Some(queue) {
            self.set_budget(slots, queue);
        }
    }

    /// Makes a queue with its first request active.
    fn activate(&mut self, now: Instant, slots: &Slots, queue: QueueId) {
        let cost = self.cost(slots, queue, self.places[queue].requests.next());
        let least = budget::least(self.budget_max());
        let settings = &self.settings;
        // Among many that are all raised one that seeks has no turn before others that have had none.
        let crowded = self.symmetry.raised_busy() >= CROWD && self.places[queue].think.is_seeky();
        let entry = &mut self.places[queue];
        let in_time = now <= entry.last_end.after(RETURN_IDLES * settings.slice_idle_ns);
        let returns = entry.hole && in_time && entry.left() > 0 && !crowded;
        entry.budget = match returns {
            true => entry.left().min(entry.max_budget),
            false => entry.max_budget.max(cost),
        };
        (entry.service, entry.hole) = (0, false);
        let factor = entry.raise.factor();
        if entry.may_be_raised() {
            let queue = Activation {
                idle_since: entry.in_device.is_zero().then_some(entry.idle_since),
                fresh: !entry.known,
                totally_seeky: entry.think.is_totally_seeky(),
            };
            if entry.raise.on_activate(now, settings, queue) {
                entry.budget = entry.budget.min(2 * least);
            }
        }
        entry.known = true;
        let raised = entry.raise.factor() != factor;
        let (leaf, weight) = (entry.leaf, entry.weight());
        let (budget, raise) = (u64::from(entry.budget) * SECTOR, entry.raise.factor());
        self.pay();
        self.tree.set_weight(leaf, weight);
        if returns {
            self.tree.activate_after_hole(leaf, budget, raise);
        } else {
            self.tree.activate(leaf, budget);
        }
        self.begin_busy(queue);
        if raised {
            self.note(now, queue, BfqQueue::raise_event);
        }
        self.preempt(now, slots, queue, returns);
    }

    /// Ends the slot of another queue if `queue`, which has become active, goes first; `returns`: it has come back in time.
    fn preempt(&mut self, now: Instant, slots: &Slots, queue: QueueId, returns: bool) {
        let Some(current) = self.current() else {
            return;
        };
        debug_assert!(current != queue, "a queue in service is active");
        let (entry, other) = (&self.places[queue], &self.places[current]);
        let back = returns && entry.raise.factor() >= other.raise.factor();
        let precedes = self.places.precedes(queue, current);
        if !back && !precedes && self.is_worth_waiting(current) {
            return;
        }
        let raised = other.raise.is_raised();
        let slot = self.slot.as_mut().expect("a queue is in service");
        let held_until = slot.since.after(self.settings.hold_ns);
        if !raised && now < held_until {
            slot.held_until = Some(held_until);
        } else {
            self.end_slot(now, slots, SlotEnd::Preempted);
        }
    }

    /// Takes the request that the queue in service was waited for.
    fn end_wait(&mut self, now: Instant, slots: &Slots, id: SlotId, queue: QueueId) {
        let over = self.slot.as_ref().is_some_and(|slot| now >= slot.until);
        let lone = self.places[queue].requests.count() == 1;
        let small = lone && sectors_of(&slots[id]) < SMALL_ARRIVAL;
        if small && !over && self.boosts(queue) {
            return;
        }
        self.end_idling(now, queue);
        if over {
            self.end_slot(now, slots, SlotEnd::TimedOut);
        }
    }
}
