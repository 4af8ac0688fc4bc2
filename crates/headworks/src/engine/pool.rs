//! Threads that do what would block: the disk half of the `threads` engine, and what `uring` has no operation for.
//!
//! The shard hands over a turn's operations under one lock and wakes one thread; each thread that finds more to do than it
//! takes wakes the next. Results gather in one list, and only the thread that finds it empty makes a noise. A thread puts
//! its result in and takes its next operation under the same lock.
//!
//! ```text
//!   shard: submit --> jobs ==> thread, thread, ... (started when first needed, at most `limit`)
//!          collect <-- done <==   |
//!             ^--- noise, when the list was empty
//! ```
//!
//! Invariants: every job gives exactly one result; `jobs` and `done` together never hold more than the engine's depth, so
//! neither grows; dropping the pool finishes all jobs and joins all threads.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use super::call::execute;
use super::extents::unasked;
use super::ops::Vectors;
use super::waker::Waker;
use super::{DiskKind, DiskOp};

/// An operation and where its result belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub slot: u32,
    pub op: DiskOp,
    pub vectors: Vectors,
}

// SAFETY: the vectors lie in `Ops`, which outlives the pool, and do not change until the job's result was collected; what they
// point at may be used from any thread by the contract of `DiskQueue::push`.
unsafe impl Send for Job {}

/// A slot, and bytes moved or a negative errno.
pub(super) type Outcome = (u32, i32);

#[derive(Debug)]
struct Work {
    jobs: VecDeque<Job>,
    done: Vec<Outcome>,
    /// Threads that wait for jobs.
    idle: usize,
    closing: bool,
}

#[derive(Debug)]
struct Shared {
    work: Mutex<Work>,
    more_work: Condvar,
    noise: Waker,
}

/// The threads.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    limit: usize,
}

impl Pool {
    /// At most `limit` threads, for at most `depth` operations at once; `noise` tells the shard that there are results.
    pub fn new(limit: usize, depth: usize, noise: Waker) -> Self {
        let work = Work {
            jobs: VecDeque::with_capacity(depth),
            done: Vec::with_capacity(depth),
            idle: 0,
            closing: false,
        };
        Self {
            shared: Arc::new(Shared { work: Mutex::new(work), more_work: Condvar::new(), noise }),
            threads: Vec::with_capacity(limit),
            limit,
        }
    }

    /// Starts all of `batch`.
    pub fn submit(&mut self, batch: &mut Vec<Job>) {
        if batch.is_empty() {
            return;
        }
        let (waiting, idle) = {
            let mut work = self.shared.lock();
            work.jobs.extend(batch.drain(..));
            (work.jobs.len(), work.idle)
        };
        if idle > 0 {
            self.shared.more_work.notify_one();
        }
        for _ in idle..waiting {
            if self.threads.len() == self.limit || !self.start_thread() {
                break;
            }
        }
        if self.threads.is_empty() {
            self.shared.refuse();
        }
    }

    fn start_thread(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("headworks-io".into()).spawn(move || shared.run());
        // Without one more it goes on with those there are.
        thread.map(|thread| self.threads.push(thread)).is_ok()
    }

    /// All results since the last time, into `out`, which is empty.
    pub fn collect(&mut self, out: &mut Vec<Outcome>) {
        assert!(out.is_empty(), "results are handed on before new ones are asked for");
        std::mem::swap(&mut self.shared.lock().done, out);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.more_work.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a pool thread does not panic");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("nothing panics under this lock")
    }

    /// A thread's life.
    fn run(&self) {
        let mut outcome = None;
        loop {
            let job = self.exchange(outcome).or_else(|| self.wait_for_job());
            let Some(job) = job else { return };
            outcome = Some((job.slot, job.execute()));
        }
    }

    /// A result in, the next job out if there is one.
    fn exchange(&self, outcome: Option<Outcome>) -> Option<Job> {
        let mut work = self.lock();
        let silent = work.done.is_empty();
        work.done.extend(outcome);
        let noise = silent && !work.done.is_empty();
        let job = self.take(work);
        if noise {
            self.noise.make_noise();
        }
        job
    }

    /// Sleeps until there is a job; `None` when the pool closes and all are done.
    fn wait_for_job(&self) -> Option<Job> {
        let mut work = self.lock();
        while work.jobs.is_empty() {
            if work.closing {
                return None;
            }
            work.idle += 1;
            work = self.more_work.wait(work).expect("nothing panics under this lock");
            work.idle -= 1;
        }
        self.take(work)
    }

    /// The next job; a thread that leaves more wakes another.
    fn take(&self, mut work: MutexGuard<'_, Work>) -> Option<Job> {
        let job = work.jobs.pop_front();
        let chain = !work.jobs.is_empty() && work.idle > 0;
        drop(work);
        if chain {
            self.more_work.notify_one();
        }
        job
    }

    /// There is not one thread, and none can be started: the devices are told to try again. Not for a question, which under
    /// `uring` is all that there are threads for: reads and writes would wait with every new try.
    fn refuse(&self) {
        let mut work = self.lock();
        while let Some(job) = work.jobs.pop_front() {
            work.done.push((job.slot, job.refuse()));
        }
        self.noise.make_noise();
    }
}

impl Job {
    /// Does the operation; bytes moved or a negative errno.
    fn execute(&self) -> i32 {
        // SAFETY: the vectors and what they point at stay valid until the result was collected, see `Job`.
        unsafe { execute(&self.op, self.vectors.spans()) }
    }

    /// The answer to an operation that no thread carries out.
    fn refuse(&self) -> i32 {
        // SAFETY: as above.
        match (self.op.kind, unsafe { self.vectors.spans() }) {
            // SAFETY: as above; the list is this job's alone.
            (DiskKind::Extents { .. }, [list]) => unasked(self.op.len, unsafe { list.bytes_mut() }),
            _ => -libc::EAGAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::thread::JoinHandleExt;
    use std::time::{Duration, Instant};

    use headworks_core::{DeviceId, RequestId};

    use super::*;
    use crate::engine::tests::interrupting_signal;

    fn job(slot: u32, fd: RawFd, kind: DiskKind, buffer: &libc::iovec) -> Job {
        // Offset -1: the current position, for pipes.
        let (device, id) = (DeviceId(0), RequestId::default());
        let op = DiskOp { device, id, fd, kind, offset: u64::MAX, len: 0 };
        Job { slot, op, vectors: Vectors { first: buffer, count: 1 } }
    }

    fn collect(pool: &mut Pool, count: usize) -> Vec<Outcome> {
        let (mut all, mut some) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while all.len() < count {
            assert!(start.elapsed() < Duration::from_secs(10), "only {all:?}");
            pool.collect(&mut some);
            all.append(&mut some);
            thread::yield_now();
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn blocked_thread_does_not_delay_rest_of_batch() {
        let signal = interrupting_signal();
        let mut bytes = [0_u8; 16];
        let buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let (empty, mut filler) = io::pipe().unwrap();
        let hang = job(0, empty.as_raw_fd(), DiskKind::Read, &buffer);
        let fails = |slot| job(slot, -1, DiskKind::Sync, &buffer);

        let mut pool = Pool::new(3, 8, Waker::new().unwrap());
        pool.submit(&mut vec![fails(0), fails(1), fails(2)]);
        collect(&mut pool, 3);
        while pool.shared.lock().idle < 3 {
            thread::yield_now();
        }
        // All threads are idle. The first woken thread blocks in the read; other threads must execute the rest of the batch.
        pool.submit(&mut vec![hang, fails(1), fails(2)]);
        assert_eq!(collect(&mut pool, 2), [(1, -libc::EBADF), (2, -libc::EBADF)]);

        for thread in pool.threads.iter().cycle().take(300) {
            // SAFETY: the pool's threads live as long as it does.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), signal) };
            thread::yield_now();
        }
        filler.write_all(b"at last").unwrap();
        assert_eq!(collect(&mut pool, 1), [(0, 7)], "the interrupted read is restarted");
        assert_eq!(pool.threads.len(), 3);
    }
}
