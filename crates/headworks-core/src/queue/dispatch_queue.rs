//! Requests that have their tags and wait for the device: the elevator and the requeue list.
//!
//! A request that the device refused goes to the requeue list, in the order in which requests left the elevator, and leaves
//! before everything in the elevator.
//!
//! Invariants: `queued` counts the requests in both; the requeue list is sorted by `departure`; an elevator that asks for
//! completions is told of every request that was inserted and has ended, exactly once.

use crate::elevator::{self, Batch, Elevator, ElevatorState, EndedRequest, MergeEdge, SlotTrace};
use crate::gauge::Gauge32;
use crate::list::List;
use crate::options::QueueOptions;
use crate::request::{QueueLink, Request, RequestState, SlotId, Slots};
use crate::shares::ShareChange;
use crate::time::{Instant, MS};

/// Pause before a device that refused, and answers nothing else, is asked again; as Linux (BLK_MQ_RESOURCE_DELAY).
const RETRY_NS: u64 = 3 * MS;
/// The longest such pause: it doubles with each refusal in a row. 192 ms: a device that comes back waits little.
const RETRY_NS_MAX: u64 = RETRY_NS << 6;

/// The requests between the gate and the device.
pub(super) struct DispatchQueue {
    elevator: Box<dyn Elevator>,
    /// Slots are traced.
    traced: bool,
    requeue: List<QueueLink>,
    /// Requests in the elevator and in the requeue list.
    queued: Gauge32,
    /// The device refused a command; nothing is sent before it answers another, or the retry timer fires.
    busy: bool,
    /// The pause before a device that refuses is asked again.
    retry_ns: u64,
    /// Requests that ended in this batch, for the elevator.
    ended: Vec<EndedRequest>,
    needs_completions: bool,
    /// The number of requests that left the elevator; it wraps.
    departures: u32,
    batch: Batch,
}

impl DispatchQueue {
    /// Creates an empty queue on a shard with `slots` request slots and `bios` bios.
    pub fn new(options: &QueueOptions, slots: u32, bios: u32) -> Self {
        let elevator = elevator::make(options, bios);
        debug_assert!(
            elevator.owns_shares() == options.scheduler.owns_shares(),
            "as its name says"
        );
        Self {
            needs_completions: elevator.needs_completions(),
            elevator,
            traced: false,
            requeue: List::new(),
            queued: Gauge32::default(),
            busy: false,
            retry_ns: RETRY_NS,
            ended: Vec::with_capacity(slots as usize),
            departures: 0,
            batch: Batch::with_capacity((options.queue_depth + options.nr_requests) as usize),
        }
    }

    /// Takes over the options of a drained queue: the elevator does, or it is replaced. Returns true if it was replaced.
    pub fn set_options(
        &mut self,
        now: Instant,
        old: &QueueOptions,
        next: &QueueOptions,
        bios: u32,
    ) -> bool {
        assert!(self.queued.is_zero(), "an elevator changes while it is empty");
        if old.scheduler == next.scheduler && self.elevator.set_options(now, next) {
            return false;
        }
        self.set_elevator(elevator::make(next, bios));
        true
    }

    /// Replaces the elevator, which is empty.
    pub fn set_elevator(&mut self, elevator: Box<dyn Elevator>) {
        assert!(self.queued.is_zero(), "an elevator is replaced while it is empty");
        // These requests were inserted into the old elevator.
        self.ended.clear();
        self.needs_completions = elevator.needs_completions();
        self.elevator = elevator;
        self.elevator.trace_slots(self.traced);
    }

    /// Returns whether the elevator divides the device by weight, see [`Elevator::owns_shares`].
    #[inline]
    pub fn owns_shares(&self) -> bool {
        self.elevator.owns_shares()
    }

    /// Returns whether the elevator limits what the device has, see [`Elevator::limits_device`].
    pub fn limits_device(&self) -> bool {
        self.elevator.limits_device()
    }

    /// Sets the limit on what the device has, for an elevator that keeps it.
    pub fn limit_device(&mut self, limit: u64, command_cost: u32) {
        self.elevator.limit_device(limit, command_cost);
    }

    /// Returns what the device has, and whether a request waited for that limit since the last call.
    pub fn take_device_load(&mut self) -> (u64, bool) {
        self.elevator.take_device_load()
    }

    /// Changes the shares of exports and tenants.
    pub fn change_shares(&mut self, change: ShareChange) {
        self.elevator.change_shares(change);
    }

    /// Reserves space for other options and `slots` request slots. Once a change of options, never per request.
    pub fn grow(&mut self, options: &QueueOptions, slots: u32) {
        self.batch.grow((options.queue_depth + options.nr_requests) as usize);
        self.ended.reserve_exact(slots as usize);
    }

    /// Begins or ends the trace of slots, also of elevators that come later.
    pub fn trace_slots(&mut self, on: bool) {
        self.traced = on;
        self.elevator.trace_slots(on);
    }

    /// Moves the events of the trace into `into`; returns the number of those that were dropped.
    pub fn take_slot_traces(&mut self, into: &mut Vec<SlotTrace>) -> u64 {
        self.elevator.take_slot_traces(into)
    }

    /// Returns the state of the elevator for display, if it has one.
    pub fn elevator_state(&self, now: Instant) -> Option<ElevatorState> {
        self.elevator.state(now)
    }

    /// Returns the number of requests in the elevator and in the requeue list.
    #[inline]
    pub fn len(&self) -> u32 {
        self.queued.get()
    }

    /// Returns true when no request waits for the device.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queued.is_zero()
    }

    /// Returns true while the device refuses commands.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns true if the device has refused a command and ended none since; it may have one that is sent again.
    pub fn is_refused(&self) -> bool {
        self.busy || self.retry_ns > RETRY_NS
    }

    /// Lets the device be sent commands again: it answered, or the retry timer fired.
    #[inline]
    pub fn clear_busy(&mut self) {
        self.busy = false;
    }

    /// Notes that the device ended a command: its next refusal is the first in a row.
    #[inline]
    pub fn on_end(&mut self) {
        self.retry_ns = RETRY_NS;
    }

    /// Returns the pause before a device that refused is asked again; the next one in a row is longer.
    pub fn next_pause(&mut self) -> u64 {
        debug_assert!(self.busy, "only a device that refused is asked again");
        let pause = self.retry_ns;
        self.retry_ns = (2 * pause).min(RETRY_NS_MAX);
        pause
    }

    /// Returns when the elevator may dispatch although nothing happened.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.elevator.next_timeout()
    }

    /// Notes a request that ended, timed out or was merged away, for the elevator.
    #[inline]
    pub fn note_ended(&mut self, request: &Request) {
        if self.needs_completions {
            self.ended.push(EndedRequest::of(request));
        }
    }

    /// Tells the elevator of the requests that ended since the last time, then gives it `ready`.
    #[inline]
    pub fn insert(&mut self, now: Instant, slots: &mut Slots, ready: &[SlotId]) {
        if !self.ended.is_empty() {
            self.elevator.on_complete(now, slots, &self.ended);
            self.ended.clear();
        }
        if !ready.is_empty() {
            debug_assert!(
                ready.iter().all(|&id| slots[id].state == RequestState::Queued),
                "a request has its tag when it enters the elevator"
            );
            self.elevator.insert(now, slots, ready);
            self.queued.add(ready.len() as u32);
        }
    }

    /// Takes up to `room` requests, refused ones first, and returns them with the number of refused ones. Give the batch back
    /// with [`DispatchQueue::put_batch`].
    #[inline]
    pub fn take_batch(&mut self, now: Instant, slots: &mut Slots, room: usize) -> (Batch, usize) {
        debug_assert!(!self.busy, "a busy device is sent nothing");
        let mut batch = std::mem::replace(&mut self.batch, Batch::with_capacity(0));
        batch.reset(room);
        while batch.room() > 0
            && let Some(id) = self.requeue.pop_front(slots)
        {
            debug_assert!(
                slots[id].is(Request::REQUEUED),
                "the requeue list holds refused requests"
            );
            slots[id].marks &= !Request::REQUEUED;
            batch.push(id);
        }
        let requeued = batch.ids().len();
        if batch.room() > 0 {
            let taken = self.elevator.dispatch(now, slots, &mut batch);
            debug_assert!(
                requeued + taken == batch.ids().len(),
                "an elevator returns what it gave"
            );
        }
        self.queued.sub(batch.ids().len() as u32);
        (batch, requeued)
    }

    /// Takes the batch's memory back.
    #[inline]
    pub fn put_batch(&mut self, batch: Batch) {
        self.batch = batch;
    }

    /// Numbers a request that leaves for the device.
    #[inline]
    pub fn depart(&mut self, request: &mut Request) {
        debug_assert!(request.state == RequestState::Queued, "an elevator gives each request once");
        request.dispatched.departure = self.departures;
        self.departures = self.departures.wrapping_add(1);
    }

    /// Puts a refused request into the requeue list, at its place among those that left with it.
    pub fn requeue(&mut self, slots: &mut Slots, id: SlotId) {
        self.busy = true;
        let request = &mut slots[id];
        debug_assert!(
            request.state == RequestState::InFlight,
            "the device refuses what it was sent"
        );
        request.state = RequestState::Queued;
        request.marks |= Request::REQUEUED;
        if request.is(Request::FLUSH) {
            // It bypassed the elevator: behind everything that has left so far.
            request.dispatched.departure = self.departures;
        }
        let departure = request.dispatched.departure;
        // Departures wrap: the difference has the sign of the order, because fewer than 2^31 requests leave while a command is in
        // flight and has not timed out.
        let precedes = |other: SlotId, slots: &Slots| {
            (departure.wrapping_sub(slots[other].dispatched.departure) as i32) < 0
        };
        let mut before = self.requeue.back(slots);
        while let Some(other) = before
            && precedes(other, slots)
        {
            before = self.requeue.prev(slots, other);
        }
        match before {
            Some(other) => self.requeue.insert_after(slots, id, other),
            None => self.requeue.push_front(slots, id),
        }
        self.queued.add(1);
    }

    /// Removes a waiting request from the elevator or from the requeue list.
    pub fn remove(&mut self, slots: &mut Slots, id: SlotId) {
        debug_assert!(slots[id].state == RequestState::Queued, "only a waiting request is removed");
        if slots[id].is(Request::REQUEUED) {
            slots[id].marks &= !Request::REQUEUED;
            self.requeue.remove(slots, id);
        } else {
            self.elevator.remove(slots, id);
        }
        self.queued.sub(1);
    }

    /// Notes that `kept` grew at `edge`, and that `gone` was merged into it and leaves the elevator.
    pub fn on_merge(
        &mut self,
        slots: &mut Slots,
        kept: SlotId,
        gone: Option<SlotId>,
        edge: MergeEdge,
    ) {
        debug_assert!(Some(kept) != gone, "a request is not merged with itself");
        self.elevator.on_merge(slots, kept, gone, edge);
        self.queued.sub(u32::from(gone.is_some()));
    }
}
