//! What happens next: a heap keyed by (time, sequence), and nothing else orders events.
//!
//! Two events of one time come out in the order in which they were put in, so a run is a function of its seed.
//! Invariant: nothing comes out before something earlier that is in.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use headworks_core::Instant;

/// EventQueue of one kind, earliest first.
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
    /// None yet, with room for `capacity` before anything is allocated.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(capacity), sequence: 0 }
    }

    /// `what` happens at `at`, after all that were put in for that time before.
    pub fn push(&mut self, at: Instant, what: T) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at, sequence: self.sequence, what }));
    }

    /// When the next one happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// The next one, if it happens by `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, T)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }

    /// How many are to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Nothing of it will happen.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_the_order_in_which_they_were_put_in() {
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
