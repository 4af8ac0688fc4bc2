//! The parts common to all methods: a job's stream of blocks, stop signal, progress, and the order
//! at the device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::contention::CachePadded;
use headworks_core::prng::Prng;

/// Bytes of a block: the seed's `bs=4k`.
pub(super) const BLOCK: u32 = 4096;

/// State shared by all jobs of a run.
#[derive(Default)]
pub(super) struct Signals {
    stop: CachePadded<AtomicBool>,
    /// Answered requests of each job.
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
        // Relaxed: values of different jobs need not be of one moment.
        self.progress.iter().map(|job| job.0.load(Ordering::Relaxed)).sum()
    }
}

/// The random blocks of one job, up to its bound.
pub(super) struct Stream<'a> {
    signals: &'a Signals,
    job: u32,
    prng: Prng,
    blocks: u64,
    /// Requests not submitted yet.
    left: u64,
    answered: u64,
}

impl<'a> Stream<'a> {
    pub fn new(signals: &'a Signals, job: u32, seed: u64, blocks: u64, left: u64) -> Self {
        let prng = Prng::new(seed).split(&job.to_string());
        Self { signals, job, prng, blocks, left, answered: 0 }
    }

    /// Number of the `wanted` requests to submit now; 0 at the end.
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
    pub fn record_answers(&mut self, count: u64) {
        self.answered += count;
        // Relaxed, and no read-modify-write: only this thread writes it.
        self.signals.progress[self.job as usize].0.store(self.answered, Ordering::Relaxed);
    }

    pub fn answered(&self) -> u64 {
        self.answered
    }
}

/// Order of requests at the device, relative to the elevator's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderCounts {
    /// Number of observed requests.
    pub requests: u64,
    /// Requests that reached the device after one that left the elevator later.
    pub inversions: u64,
}

/// Compares the order of departures from the elevator with the order of arrivals at the device. All
/// dispatchers share its cache line, so it is used in a separate run without timing.
#[derive(Default)]
pub(super) struct OrderWatch {
    newest: CachePadded<AtomicU64>,
    requests: AtomicU64,
    inversions: AtomicU64,
}

impl OrderWatch {
    /// Records an arrival at the device; `number` counts departures from the elevator, from 1.
    pub fn record(&self, number: u64) {
        // Relaxed, all: one word has one modification order, and the sums are read after the
        // threads have ended.
        let newest = self.newest.0.fetch_max(number, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.inversions.fetch_add(u64::from(newest > number), Ordering::Relaxed);
    }

    pub fn counts(&self) -> OrderCounts {
        // Relaxed, both: see `record`.
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
    fn arrival_after_a_later_departure_is_an_inversion() {
        let watch = OrderWatch::default();
        // The seed's example: dispatched 1 2 3 4, at the device 1 3 2 4.
        [1, 3, 2, 4].into_iter().for_each(|number| watch.record(number));
        assert_eq!(watch.counts(), OrderCounts { requests: 4, inversions: 1 });
    }

    #[test]
    fn stream_ends_at_its_bound_or_when_stopped() {
        let signals = Signals::new(2);
        let mut stream = Stream::new(&signals, 1, 1, 8, 20);
        assert_eq!(
            [stream.grant(8), stream.grant(8), stream.grant(8), stream.grant(8)],
            [8, 8, 4, 0]
        );
        stream.record_answers(12);
        stream.record_answers(8);
        assert_eq!((signals.answered(), stream.answered()), (20, 20));
        let mut other = Stream::new(&signals, 0, 1, 8, u64::MAX);
        assert_eq!(other.grant(8), 8);
        assert!((0..100).all(|_| other.next_offset() < 8 * u64::from(BLOCK)));
        signals.stop();
        assert_eq!(other.grant(8), 0);
    }
}
