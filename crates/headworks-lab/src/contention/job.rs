//! What all ways of a cell share: one job's stream of blocks, when to stop, how far it is, and the order at the device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headworks::sync::CachePadded;
use headworks_core::prng::Prng;

/// Bytes of a block: the seed's `bs=4k`.
pub(super) const BLOCK: u32 = 4096;

/// What every job of a run looks at.
#[derive(Default)]
pub(super) struct Signals {
    stop: CachePadded<AtomicBool>,
    /// One for each job: requests that were answered.
    progress: Vec<CachePadded<AtomicU64>>,
}

impl Signals {
    pub fn new(jobs: u32) -> Self {
        let progress = (0..jobs).map(|_| CachePadded::default()).collect();
        Self { stop: CachePadded::default(), progress }
    }

    pub fn stop(&self) {
        // Relaxed: jobs stop soon, and are joined.
        self.stop.0.store(true, Ordering::Relaxed);
    }

    pub fn answered(&self) -> u64 {
        // Relaxed: figures of different jobs need not be of one moment.
        self.progress.iter().map(|job| job.0.load(Ordering::Relaxed)).sum()
    }
}

/// A job's own part: random blocks, a bound, its place in the signals.
pub(super) struct Stream<'a> {
    signals: &'a Signals,
    job: u32,
    prng: Prng,
    blocks: u64,
    /// Requests that may still be put.
    left: u64,
    answered: u64,
}

impl<'a> Stream<'a> {
    pub fn new(signals: &'a Signals, job: u32, seed: u64, blocks: u64, left: u64) -> Self {
        let prng = Prng::new(seed).split(&job.to_string());
        Self { signals, job, prng, blocks, left, answered: 0 }
    }

    /// How many of `wanted` requests to put now; 0 once it is over.
    #[inline]
    pub fn grant(&mut self, wanted: u64) -> u64 {
        // Relaxed: pairs with `stop`.
        if self.signals.stop.0.load(Ordering::Relaxed) {
            self.left = 0;
        }
        let granted = wanted.min(self.left);
        self.left -= granted;
        granted
    }

    #[inline]
    pub fn next_offset(&mut self) -> u64 {
        self.prng.below(self.blocks) * u64::from(BLOCK)
    }

    #[inline]
    pub fn note_answered(&mut self, count: u64) {
        self.answered += count;
        // Relaxed, and no read-modify-write: only this thread writes it.
        self.signals.progress[self.job as usize].0.store(self.answered, Ordering::Relaxed);
    }

    pub fn answered(&self) -> u64 {
        self.answered
    }
}

/// What a device saw of the elevator's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderCounts {
    /// Requests that were watched.
    pub requests: u64,
    /// Of them: came to the device after one that left the elevator later.
    pub inversions: u64,
}

/// Compares the order in which requests left the elevator with that in which they came to the device. It is a cache line that
/// all dispatchers share, so it looks on in a run of its own that is not timed.
#[derive(Default)]
pub(super) struct OrderWatch {
    newest: CachePadded<AtomicU64>,
    requests: AtomicU64,
    inversions: AtomicU64,
}

impl OrderWatch {
    /// A request came to the device; `number` counts departures from the elevator, from 1.
    pub fn note(&self, number: u64) {
        // Relaxed, all: one word is in one order for everybody, and the sums are read after the threads have ended.
        let newest = self.newest.0.fetch_max(number, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.inversions.fetch_add(u64::from(newest > number), Ordering::Relaxed);
    }

    pub fn counts(&self) -> OrderCounts {
        // Relaxed, both: see `note`.
        OrderCounts {
            requests: self.requests.load(Ordering::Relaxed),
            inversions: self.inversions.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inversion_is_one_that_comes_after_a_later_one() {
        let watch = OrderWatch::default();
        // The seed's picture: dispatched 1 2 3 4, at the device 1 3 2 4.
        [1, 3, 2, 4].into_iter().for_each(|number| watch.note(number));
        assert_eq!(watch.counts(), OrderCounts { requests: 4, inversions: 1 });
    }

    #[test]
    fn a_stream_ends_at_its_bound_or_when_told() {
        let signals = Signals::new(2);
        let mut stream = Stream::new(&signals, 1, 1, 8, 20);
        assert_eq!(
            [stream.grant(8), stream.grant(8), stream.grant(8), stream.grant(8)],
            [8, 8, 4, 0]
        );
        stream.note_answered(12);
        stream.note_answered(8);
        assert_eq!((signals.answered(), stream.answered()), (20, 20));
        let mut other = Stream::new(&signals, 0, 1, 8, u64::MAX);
        assert_eq!(other.grant(8), 8);
        assert!((0..100).all(|_| other.next_offset() < 8 * u64::from(BLOCK)));
        signals.stop();
        assert_eq!(other.grant(8), 0);
    }
}
