//! A job of the baseline: the state of its slots, and its loop.
//!
//! A slot is a bit. Any job may complete any other's requests, so completions reach a job as bits
//! of a word of its own, once for a list. The job that holds the missing completions is running or
//! about to run, so a waiting job polls and yields the CPU without sleeping.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::contention::CachePadded;
use headworks::driver::Clock;
use headworks_core::Instant;

use super::job::Stream;
use super::lock::LockCounts;

/// Polls before the CPU is yielded.
const SPINS: u32 = 64;

/// A word for each job, in which others set the bits of its completed slots.
pub(super) struct Answers(Vec<CachePadded<AtomicU64>>);

impl Answers {
    pub fn new(jobs: u32) -> Self {
        Self((0..jobs).map(|_| CachePadded::default()).collect())
    }
}

/// The slots of one job.
pub(super) struct Window<'a> {
    all: &'a Answers,
    job: u32,
    depth: u32,
    free: u64,
    answered: u64,
    /// Completed slots by job, of the current list; and the jobs concerned.
    list: Vec<u64>,
    listed: u64,
}

impl<'a> Window<'a> {
    pub fn new(all: &'a Answers, job: u32, depth: u32) -> Self {
        let list = vec![0; all.0.len()];
        Self { all, job, depth, free: u64::MAX >> (64 - depth), answered: 0, list, listed: 0 }
    }

    /// Number of free slots.
    pub fn room(&self) -> u64 {
        self.free.count_ones().into()
    }

    /// Takes a free slot; returns its global number.
    #[inline]
    fn take(&mut self) -> u32 {
        let slot = self.free.trailing_zeros();
        self.free &= self.free - 1;
        self.job * self.depth + slot
    }

    /// Records the completion of a slot, of any job.
    #[inline]
    pub fn answer(&mut self, slot: u32) {
        let job = slot / self.depth;
        self.list[job as usize] |= 1 << (slot % self.depth);
        self.listed |= 1 << job;
    }

    /// Delivers the completions of the list to their jobs.
    #[inline]
    pub fn deliver(&mut self) {
        while self.listed != 0 {
            let job = self.listed.trailing_zeros();
            self.listed &= self.listed - 1;
            let bits = std::mem::take(&mut self.list[job as usize]);
            if job == self.job {
                self.answered |= bits;
            } else {
                // Release: pairs with the Acquire in `reap`.
                self.all.0[job as usize].0.fetch_or(bits, Ordering::Release);
            }
        }
    }

    /// Waits for at least `least` completions; returns how many there were.
    fn reap(&mut self, least: u32) -> u64 {
        let word = &self.all.0[self.job as usize].0;
        let mut looks = 0_u32;
        loop {
            // Relaxed: a hint that keeps the line shared while there is nothing.
            if word.load(Ordering::Relaxed) != 0 {
                // Acquire: pairs with the Release in `deliver`.
                self.answered |= word.swap(0, Ordering::Acquire);
            }
            if self.answered.count_ones() >= least {
                break;
            }
            looks += 1;
            match looks % SPINS {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        assert!(self.free & self.answered == 0, "a slot is completed once");
        let count = self.answered.count_ones();
        self.free |= std::mem::take(&mut self.answered);
        count.into()
    }
}

/// Submission of a batch of (slot, offset).
pub(super) trait Path {
    fn submit(
        &mut self,
        now: Instant,
        batch: &[(u32, u64)],
        window: &mut Window<'_>,
        locks: &mut LockCounts,
    );
}

/// Runs the seed's fio job over `path`: submits `batch` requests at a time up to the depth, then
/// waits for `batch` completions.
pub(super) fn drive(
    path: &mut impl Path,
    mut window: Window<'_>,
    mut stream: Stream<'_>,
    batch: u32,
    clock: Clock,
) -> (u64, LockCounts) {
    let mut locks = LockCounts::default();
    let mut list = Vec::with_capacity(batch as usize);
    loop {
        let mut over = false;
        while !over && window.room() >= batch.into() {
            let count = stream.grant(batch.into());
            list.extend((0..count).map(|_| (window.take(), stream.next_offset())));
            over = list.is_empty();
            if !over {
                path.submit(clock.now(), &list, &mut window, &mut locks);
                list.clear();
            }
        }
        let in_flight = window.depth - window.room() as u32;
        if in_flight == 0 {
            return (stream.answered(), locks);
        }
        stream.record_answers(window.reap(if over { in_flight } else { batch }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contention::job::Signals;

    /// Two jobs that complete each other's requests and never their own.
    struct CrossedAnswers(Vec<u32>);

    impl Path for CrossedAnswers {
        fn submit(
            &mut self,
            _now: Instant,
            batch: &[(u32, u64)],
            window: &mut Window<'_>,
            locks: &mut LockCounts,
        ) {
            self.0.extend(batch.iter().map(|&(slot, _)| slot));
            assert!(batch.iter().all(|&(slot, _)| slot / 8 == window.job));
            locks.insert += 1;
            batch.iter().for_each(|&(slot, _)| window.answer(slot));
            window.deliver();
        }
    }

    #[test]
    fn completions_of_other_jobs_arrive_and_short_batch_ends_the_run() {
        let (answers, signals) = (Answers::new(2), Signals::new(2));
        let mut other = Window::new(&answers, 0, 8);
        let slots: Vec<u32> = (0..3).map(|_| other.take()).collect();
        let mut mine = Window::new(&answers, 1, 8);
        slots.iter().for_each(|&slot| mine.answer(slot));
        assert_eq!(other.room(), 5);
        mine.deliver();
        assert_eq!((other.reap(3), other.room()), (3, 8));

        let stream = Stream::new(&signals, 1, 1, 100, 10);
        let mut path = CrossedAnswers(Vec::new());
        let (answered, locks) = drive(&mut path, mine, stream, 4, Clock::start());
        assert_eq!((answered, locks.insert, path.0.len()), (10, 3, 10));
    }
}
