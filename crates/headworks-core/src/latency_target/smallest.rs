//! The smallest latency of a device: what a small synchronous request takes that finds the device idle.
//!
//! A latency target below twice of it cannot be kept by limiting others. Requests that find others in the queue say nothing of it:
//! on a loaded device even the quickest of them may take many times as long, and a target is for such a device.
//!
//! ```text
//!   |-- window before --|-- this window --|
//!                           ^ now            the smaller of both minima: of the last one to two minutes
//! ```
//!
//! It is measured while an export has a target, and for [`WATCH`] after it was asked for; otherwise it costs a test of a flag.
//!
//! Invariants: no request counts that arrived while another one was in the queue; a value is at most two windows old.

use crate::time::{Instant, SEC};

/// Length of a window of the minimum.
const WINDOW: u64 = 60 * SEC;
/// How long is measured after it was asked for.
const WATCH: u64 = 60 * SEC;

/// The smallest latency of small synchronous requests, in a sliding window.
#[derive(Debug)]
pub struct SmallestLatency {
    /// Measured until then, because it was asked for.
    watched_until: Instant,
    /// When the queue was last no longer empty, and whether it is empty.
    busy_from: Instant,
    is_busy: bool,
    window_from: Instant,
    /// Minima of this window and of the one before, in nanoseconds; `u64::MAX` without a request.
    now_ns: u64,
    before_ns: u64,
}

impl SmallestLatency {
    /// Creates the measure of a device that nothing is known of.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            watched_until: Instant(0),
            busy_from: Instant(0),
            // Requests may be in the queue when measuring begins.
            is_busy: true,
            window_from: Instant(0),
            now_ns: u64::MAX,
            before_ns: u64::MAX,
        }
    }

    /// Measures from now on for a minute.
    pub fn watch(&mut self, now: Instant) {
        self.watched_until = now.after(WATCH);
    }

    /// Returns whether it is still watched.
    #[must_use]
    pub fn is_watched(&self, now: Instant) -> bool {
        now < self.watched_until
    }

    /// Begins to measure anew with a queue that is busy, as far as is known, or empty.
    pub fn restart(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }

    /// Notes the end of a batch that left the queue busy or empty.
    pub fn on_batch(&mut self, now: Instant, is_busy: bool) {
        debug_assert!(now >= self.busy_from, "time does not go back");
        if is_busy && !self.is_busy {
            self.busy_from = now;
        }
        self.is_busy = is_busy;
    }

    /// Notes a small synchronous request that came at `came` and ended well at `now`.
    pub fn note(&mut self, came: Instant, now: Instant) {
        // The batch that ended the queue's rest brought it.
        if came != self.busy_from || !self.is_busy {
            return;
        }
        self.turn(now);
        self.now_ns = self.now_ns.min(now.since(came));
    }

    /// Returns the smallest latency of the last one to two minutes, in nanoseconds; `None` if no request counted.
    #[must_use]
    pub fn get(&self, now: Instant) -> Option<u64> {
        let smallest = match now.since(self.window_from) / WINDOW {
            0 => self.now_ns.min(self.before_ns),
            1 => self.now_ns,
            _ => u64::MAX,
        };
        (smallest < u64::MAX).then_some(smallest)
    }

    /// Begins a window if the last one is over.
    fn turn(&mut self, now: Instant) {
        match now.since(self.window_from) / WINDOW {
            0 => return,
            1 => self.before_ns = self.now_ns,
            _ => self.before_ns = u64::MAX,
        }
        (self.now_ns, self.window_from) = (u64::MAX, now);
    }
}

impl Default for SmallestLatency {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::US;

    /// Lets a request come at `at` to an idle queue and take `ns`.
    fn alone(smallest: &mut SmallestLatency, at: Instant, ns: u64) {
        smallest.on_batch(at, true);
        smallest.note(at, at.after(ns));
        smallest.on_batch(at.after(ns), false);
    }

    #[test]
    fn only_requests_that_find_the_queue_empty_count() {
        let mut smallest = SmallestLatency::new();
        let at = Instant(SEC);
        // It was busy before, as far as is known.
        smallest.on_batch(at, true);
        smallest.note(at, at.after(US));
        assert_eq!(smallest.get(at), None);
        smallest.on_batch(at.after(2 * US), false);
        let at = Instant(2 * SEC);
        smallest.on_batch(at, true);
        let second = at.after(10 * US);
        smallest.on_batch(second, true);
        smallest.note(second, second.after(5 * US));
        assert_eq!(smallest.get(second), None, "it came beside another one");
        smallest.note(at, at.after(40 * US));
        assert_eq!(smallest.get(second), Some(40 * US));
        // Those that came with it count, too: the quickest of them was served first.
        smallest.note(at, at.after(30 * US));
        assert_eq!(smallest.get(second), Some(30 * US));
    }

    #[test]
    fn minimum_is_at_most_two_windows_old() {
        let mut smallest = SmallestLatency::new();
        smallest.on_batch(Instant(0), false);
        alone(&mut smallest, Instant(61 * SEC), 10 * US);
        alone(&mut smallest, Instant(100 * SEC), 90 * US);
        assert_eq!(smallest.get(Instant(100 * SEC)), Some(10 * US));
        alone(&mut smallest, Instant(125 * SEC), 50 * US);
        assert_eq!(smallest.get(Instant(130 * SEC)), Some(10 * US), "the window before counts");
        assert_eq!(smallest.get(Instant(190 * SEC)), Some(50 * US), "it is over without requests");
        assert_eq!(smallest.get(Instant(400 * SEC)), None);
        alone(&mut smallest, Instant(500 * SEC), 70 * US);
        assert_eq!(smallest.get(Instant(500 * SEC)), Some(70 * US), "nothing of long ago");
    }

    #[test]
    fn watch_ends_by_itself() {
        let mut smallest = SmallestLatency::new();
        assert!(!smallest.is_watched(Instant(0)));
        smallest.watch(Instant(SEC));
        assert!(smallest.is_watched(Instant(60 * SEC)) && !smallest.is_watched(Instant(61 * SEC)));
    }
}
