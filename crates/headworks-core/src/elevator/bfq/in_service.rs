//! What is known of the queue in service: its slot, the wait for its next request, and what injection costs it.
//!
//! ```text
//!   a measurement:   None --its request comes--> Begun --dispatched--> Dispatched --completed--> None
//! ```
//!
//! Invariants: a wait has a beginning and an end; at most one measurement is under way; injection counts for one measurement.

use super::queue::QueueId;
use crate::bio::TenantId;
use crate::time::Instant;

/// The slot of the queue in service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub queue: QueueId,
    pub since: Instant,
    /// When it has lasted long enough.
    pub until: Instant,
    /// When it ends early because another queue goes first, if that is put off.
    pub held_until: Option<Instant>,
    /// The tenant that its export moves to when the slot ends.
    pub moves_to: Option<TenantId>,
}

/// A wait for the queue in service, and a measurement of what injection costs it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Idling {
    /// Start and end of the wait.
    wait: Option<(Instant, Instant)>,
    /// Requests of other queues were served while the one in service was empty.
    injected: bool,
    measurement: Measurement,
}

/// A measurement of the time from a request that comes to the emptied queue in service until its completion.
#[derive(Clone, Copy, Debug, Default)]
enum Measurement {
    #[default]
    None,
    /// The request came then and is not dispatched.
    Begun(Instant),
    /// It is in the device.
    Dispatched(Instant),
}

impl Idling {
    pub fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Returns when the wait ends.
    pub fn until(&self) -> Option<Instant> {
        self.wait.map(|(_, until)| until)
    }

    /// Returns when the wait began.
    pub fn since(&self) -> Option<Instant> {
        self.wait.map(|(since, _)| since)
    }

    /// Begins a wait for the next request of the queue in service.
    pub fn wait(&mut self, now: Instant, until: Instant) {
        self.wait = Some((now, until));
    }

    /// Ends the wait, if any.
    pub fn stop(&mut self) {
        self.wait = None;
    }

    /// Notes that a request of another queue is served while this one is empty.
    pub fn note_injected(&mut self) {
        self.injected = true;
    }

    /// Begins a measurement if it says something: with nothing else in the device (`alone`) of the time itself, otherwise of what
    /// injection adds to a known one.
    pub fn measure(&mut self, now: Instant, alone: bool, is_known: bool) {
        if alone || is_known && self.injected {
            self.measurement = Measurement::Begun(now);
            self.injected &= !alone;
        }
    }

    /// Gives a measurement up.
    pub fn forget_measurement(&mut self) {
        self.measurement = Measurement::None;
    }

    /// Takes the dispatch of a request of the queue in service.
    pub fn on_dispatch(&mut self) {
        if let Measurement::Begun(since) = self.measurement {
            self.measurement = Measurement::Dispatched(since);
        }
    }

    /// Ends a measurement of a request in the device: returns when that came, and whether others were injected.
    pub fn take_measured(&mut self) -> Option<(Instant, bool)> {
        let Measurement::Dispatched(since) = self.measurement else {
            return None;
        };
        self.measurement = Measurement::None;
        Some((since, std::mem::take(&mut self.injected)))
    }
}
