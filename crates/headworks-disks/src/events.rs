//! The event queue: a heap ordered by (time, sequence number).
//!
//! Events of one time come out in the order of insertion, so a run is a function of its seed.
//! Invariant: no event comes out before an earlier one that is queued.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use headworks_core::Instant;

/// A queue of events of one type, earliest first.
#[derive(Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    sequence: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<T> EventQueue<T> {
    /// An empty queue with capacity for `capacity` events.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(capacity), sequence: 0 }
    }

    /// Queues `what` for time `at`, behind all events of that time.
    pub fn push(&mut self, at: Instant, what: T) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at, sequence: self.sequence, what }));
    }

    /// Time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event if it is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, T)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }

    /// Whether an event for which `matches` is true is queued.
    pub fn any(&self, matches: impl Fn(&T) -> bool) -> bool {
        self.heap.iter().any(|Reverse(entry)| matches(&entry.what))
    }

    /// Number of queued events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no event is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Removes all queued events.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_equal_time_keep_insertion_order() {
        let mut events = EventQueue::with_capacity(8);
        for (at, name) in [(5, "b1"), (3, "a"), (5, "b2"), (9, "c"), (5, "b3")] {
            events.push(Instant(at), name);
        }
        let mut order = Vec::new();
        while let Some((_, name)) = events.pop_due(Instant(5)) {
            order.push(name);
        }
        assert_eq!(order, ["a", "b1", "b2", "b3"]);
        assert_eq!((events.len(), events.next_at()), (1, Some(Instant(9))));
    }
}
