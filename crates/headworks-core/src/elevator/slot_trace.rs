//! Trace events of an elevator that serves in slots. Off by default; meant for the replay of a record, which makes the same
//! decisions again.
//!
//! Invariant: at most [`EVENTS_MAX`] events are kept until they are taken; further ones are dropped and counted.

use crate::bio::{ExportId, Op, VolumeId};
use crate::time::Instant;

/// Events that are kept until they are taken.
const EVENTS_MAX: usize = 1 << 16;

/// What happened to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// Its slot began.
    Begin {
        /// Sectors that the slot serves at most.
        budget: u32,
        /// Its weight in its export.
        weight: u32,
    },
    /// One of its requests left for the device.
    Dispatch {
        /// Volume of the request.
        volume: VolumeId,
        /// Operation of the request.
        op: Op,
        /// First byte of the request.
        offset: u64,
        /// Length of the request in bytes.
        len: u32,
        /// Sectors that the queue is charged.
        charge: u32,
        /// Another queue is in service, and kept the device while it had no request.
        injected: bool,
    },
    /// Its slot ended.
    End {
        /// Why it ended.
        reason: &'static str,
        /// Sectors that it served.
        service: u32,
        /// Sectors that it is charged, at least what it served.
        charged: u32,
        /// Sectors that it could have served.
        budget: u32,
        /// Length of the slot in nanoseconds.
        ns: u64,
    },
    /// Its weight was raised, or is raised no more.
    Raise {
        /// The reason, or `none`.
        reason: &'static str,
        /// The weight from now on.
        weight: u32,
    },
}

/// An event of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTrace {
    /// Time of the event.
    pub at: Instant,
    /// Export of the queue.
    pub export: ExportId,
    /// Connection of the queue; none for asynchronous requests.
    pub connection: Option<u32>,
    /// What happened to the queue.
    pub event: SlotEvent,
}

/// Events that were not taken yet.
#[derive(Debug, Default)]
pub struct SlotTraces {
    events: Vec<SlotTrace>,
    dropped: u64,
}

impl SlotTraces {
    /// Adds an event, unless too many are kept already.
    pub fn push(&mut self, event: SlotTrace) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(event);
        } else {
            self.dropped += 1;
        }
    }

    /// Moves the events into `into`; returns the number of those that were dropped.
    pub fn take(&mut self, into: &mut Vec<SlotTrace>) -> u64 {
        into.append(&mut self.events);
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_bound_are_counted() {
        let event = SlotTrace {
            at: Instant(1),
            export: ExportId(0),
            connection: None,
            event: SlotEvent::Begin { budget: 1, weight: 1 },
        };
        let mut traces = SlotTraces::default();
        (0..EVENTS_MAX + 3).for_each(|_| traces.push(event));
        let mut taken = Vec::new();
        assert_eq!((traces.take(&mut taken), taken.len()), (3, EVENTS_MAX));
        assert_eq!(traces.take(&mut taken), 0);
    }
}
