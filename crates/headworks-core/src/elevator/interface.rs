//! The interface between a device's queue and its elevator.
//!
//! Invariants: an inserted request leaves by `dispatch`, by `remove` or by being merged away, exactly once; a batch never holds
//! more requests than the device has room for.

use super::slot_trace::SlotTrace;
use super::state::ElevatorState;
use crate::bio::{Ioprio, Op};
use crate::options::QueueOptions;
use crate::request::{Dispatched, Request, SlotId, Slots};
use crate::shares::ShareChange;
use crate::time::Instant;

/// The end at which a request grew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeEdge {
    /// A bio was added before its first byte.
    Front,
    /// A bio was added after its last byte.
    Back,
}

/// The requests of one dispatch, at most as many as the device has room for.
#[derive(Debug)]
pub struct Batch {
    ids: Vec<SlotId>,
    room: usize,
}

impl Batch {
    /// Creates a batch that holds up to `capacity` ids without allocating.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { ids: Vec::with_capacity(capacity), room: 0 }
    }

    /// Reserves space for `capacity` ids. For a change of options, never for an I/O.
    pub fn grow(&mut self, capacity: usize) {
        self.ids.reserve_exact(capacity.saturating_sub(self.ids.len()));
    }

    /// Empties the batch and limits it to `room` ids, at most its capacity.
    pub fn reset(&mut self, room: usize) {
        self.ids.clear();
        self.room = room.min(self.ids.capacity());
        debug_assert!(self.room() == self.room, "a new batch is empty");
    }

    /// Returns how many more ids it takes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room - self.ids.len()
    }

    /// Adds a request at the end.
    ///
    /// # Panics
    /// The batch is full: an elevator that overfills a batch would overfill the device.
    #[inline]
    pub fn push(&mut self, id: SlotId) {
        assert!(self.ids.len() < self.room, "an elevator exceeded the room of a batch");
        self.ids.push(id);
    }

    /// Returns the ids in dispatch order.
    #[must_use]
    pub fn ids(&self) -> &[SlotId] {
        &self.ids
    }
}

/// A request that has ended. Its slot may be in use for another request already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// Priority of the request.
    pub ioprio: Ioprio,
    /// Operation of the request.
    pub op: Op,
    /// What was noted of it when it left the elevator.
    pub dispatched: Dispatched,
}

impl EndedRequest {
    /// Describes a request that ends.
    #[inline]
    #[must_use]
    pub fn of(request: &Request) -> Self {
        let Request { ioprio, op, dispatched, .. } = *request;
        Self { ioprio, op, dispatched }
    }
}

/// An I/O scheduler: decides the order in which requests reach the device.
pub trait Elevator: Send {
    /// Returns whether it divides the device by weight. Then the gate in front grants every request at once and only counts: an
    /// elevator that sees what another policy lets through cannot keep shares.
    fn owns_shares(&self) -> bool {
        false
    }

    /// Returns whether it keeps what the device has within [`Elevator::limit_device`]. The gate in front of an elevator that owns
    /// shares limits nothing.
    fn limits_device(&self) -> bool {
        false
    }

    /// Sets the limit on what the device has: bytes, and `command_cost` for each command; `u64::MAX` for none.
    fn limit_device(&mut self, _limit: u64, _command_cost: u32) {}

    /// Returns what the device has, by that measure, and whether a request waited for the limit since the last call.
    fn take_device_load(&mut self) -> (u64, bool) {
        (0, false)
    }

    /// Changes the shares of exports and tenants, for an elevator that owns shares. It begins with the default shares.
    fn change_shares(&mut self, _change: ShareChange) {}

    /// Takes other options over while it has no request and keeps what it has learned; returns false if a new elevator is to
    /// be made.
    fn set_options(&mut self, _now: Instant, _options: &QueueOptions) -> bool {
        false
    }

    /// Takes requests that hold their tags, in order of arrival.
    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]);

    /// Moves up to `batch.room()` requests into `batch`, in dispatch order, and returns their number.
    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize;

    /// Removes a request that is inserted and not dispatched: it has waited for too long. Its end is reported as that of
    /// others.
    fn remove(&mut self, slots: &mut Slots, id: SlotId);

    /// Returns whether [`Elevator::on_complete`] is to be called at all.
    fn needs_completions(&self) -> bool {
        false
    }

    /// Reports inserted requests that have ended or were merged into others, each exactly once.
    fn on_complete(&mut self, _now: Instant, _slots: &Slots, _done: &[EndedRequest]) {}

    /// Reports that `kept` grew at `edge`; `gone`, if any, was merged into it and leaves the elevator. `gone` is queued here;
    /// `kept` may be waiting for a tag or for a retry after the device was busy.
    fn on_merge(
        &mut self,
        _slots: &mut Slots,
        _kept: SlotId,
        _gone: Option<SlotId>,
        _edge: MergeEdge,
    ) {
    }

    /// Returns its state for display, if it has one that is worth it. It is made when it is asked for.
    fn state(&self, _now: Instant) -> Option<ElevatorState> {
        None
    }

    /// Begins or ends the trace of slots, for an elevator that serves in slots.
    fn trace_slots(&mut self, _on: bool) {}

    /// Moves the events of the trace into `into`; returns the number of those that were dropped.
    fn take_slot_traces(&mut self, _into: &mut Vec<SlotTrace>) -> u64 {
        0
    }

    /// Returns when `dispatch` may have a request though none was inserted (idling, aging). Called while the device has room.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}
