//! The order in which requests reach a device, decided in batches.
//!
//! An elevator owns no request: it links slots. It is crossed once a batch, so dynamic dispatch costs nothing and the
//! elevator of a queue can be changed while it runs.

mod deadline;
mod none;

pub use deadline::DeadlineElevator;
pub use none::NoneElevator;

use crate::bio::{Ioprio, Op};
use crate::options::{QueueOptions, Scheduler};
use crate::request::{SlotId, Slots};
use crate::time::Instant;

/// Which end of a request grew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeEdge {
    /// A bio was put before it.
    Front,
    /// A bio was put behind it.
    Back,
}

/// The requests that leave the elevator together: never more than the device takes at that moment.
#[derive(Debug)]
pub struct Batch {
    ids: Vec<SlotId>,
    room: usize,
}

impl Batch {
    /// A batch that will hold up to `capacity` ids without allocating.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { ids: Vec::with_capacity(capacity), room: 0 }
    }

    /// Makes it hold up to `capacity` ids without allocating. For a change of options, never for an I/O.
    pub fn grow(&mut self, capacity: usize) {
        self.ids.reserve_exact(capacity.saturating_sub(self.ids.len()));
    }

    /// Empties it and makes room for `room` ids.
    pub fn reset(&mut self, room: usize) {
        self.ids.clear();
        self.room = room.min(self.ids.capacity());
    }

    /// How many more it takes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room - self.ids.len()
    }

    /// Adds one.
    ///
    /// # Panics
    /// If there is no room: an elevator that overfills a batch would overfill the device.
    pub fn push(&mut self, id: SlotId) {
        assert!(self.ids.len() < self.room, "an elevator gave more than the batch has room for");
        self.ids.push(id);
    }

    /// The ids, best first.
    #[must_use]
    pub fn ids(&self) -> &[SlotId] {
        &self.ids
    }
}

/// What an elevator is told of a request that has ended; its slot may be another's already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRequest {
    /// Its priority.
    pub ioprio: Ioprio,
    /// What it was.
    pub op: Op,
}

/// The elevator that `options` name.
#[must_use]
pub fn make(options: &QueueOptions) -> Box<dyn Elevator> {
    match options.scheduler {
        Scheduler::None => Box::new(NoneElevator::new()),
        Scheduler::MqDeadline => Box::new(DeadlineElevator::new(&options.deadline)),
    }
}

/// Decides the order in which requests reach the device. Owns no request: it links slots.
pub trait Elevator: Send {
    /// Takes requests that have their tags, in the order in which they came.
    fn insert(&mut self, now: Instant, slots: &mut Slots, ids: &[SlotId]);

    /// Moves up to `batch.room()` requests into `batch`, best first; returns how many.
    fn dispatch(&mut self, now: Instant, slots: &mut Slots, batch: &mut Batch) -> usize;

    /// Whether [`Elevator::on_complete`] is to be called at all.
    fn needs_completions(&self) -> bool {
        false
    }

    /// Requests that were inserted here have ended, or were merged into others: every one exactly once.
    fn on_complete(&mut self, _now: Instant, _done: &[EndedRequest]) {}

    /// `kept` grew at `edge`; `gone`, if any, was merged into it and leaves the elevator. Only `gone` is sure to be here: `kept`
    /// may wait for a tag, or have been refused by the device.
    fn on_merge(
        &mut self,
        _slots: &mut Slots,
        _kept: SlotId,
        _gone: Option<SlotId>,
        _edge: MergeEdge,
    ) {
    }

    /// When `dispatch` may have something though nothing was inserted (idling, ageing). Asked only while the device has room.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
}
