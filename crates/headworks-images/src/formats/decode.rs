//! Reads compressed clusters on threads, and wakes the device by a socket when results are there.
//!
//! Inflating a cluster of 64 KiB takes a few hundred microseconds, which a shard's thread does not have. A read is a job with
//! its spans; at most [`THREADS_MAX`] threads take jobs, and the thread whose result is the first in the list writes a byte to a
//! socket that the device watches. A cluster is inflated as a whole, so clusters of which parts were read are kept, the last
//! [`KEPT_BYTES`] of them: a client that reads a cluster in pieces of 4 KiB has it inflated once. A thread that needs a
//! cluster which another one inflates waits for that one.
//!
//! Invariants: every job gives one result; there are at most [`JOBS_MAX`] jobs and results; the spans of a job are used until its
//! result is in the list and not after; dropping the decoder finishes its jobs first.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use headworks::driver::Span;
use headworks_core::{IoError, RequestId};
use imago::FormatAccess;
use imago::file::File as Storage;

/// Most threads of an image.
const THREADS_MAX: usize = 8;
/// Most jobs at once; one more read is refused as busy.
pub(crate) const JOBS_MAX: usize = 64;
/// Most spans of a job; a read that has more is answered in parts.
pub(crate) const JOB_SPANS_MAX: usize = 64;
/// Memory of inflated clusters in bytes.
const KEPT_BYTES: u64 = 16 << 20;
/// Pieces in which clusters are read and kept, at least.
const UNIT_MIN: u64 = 4096;

/// A read of compressed bytes.
#[derive(Debug)]
pub(crate) struct Job {
    pub id: RequestId,
    /// First byte on the disk.
    pub offset: u64,
    /// Where the bytes go; at most [`JOB_SPANS_MAX`].
    pub spans: Vec<Span>,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub id: RequestId,
    /// Bytes read, or why there are none.
    pub result: Result<u32, IoError>,
    /// The list of the job, for the next one.
    pub spans: Vec<Span>,
}

/// What threads and device share.
struct Shared {
    access: Arc<FormatAccess<Storage>>,
    /// Bytes that are inflated and kept as one.
    unit: u64,
    work: Mutex<Work>,
    more_work: Condvar,
    kept: Mutex<Kept>,
    inflated: Condvar,
    bell: UnixStream,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    done: Vec<Decoded>,
    closing: bool,
}

/// The threads of an image and their jobs.
pub(crate) struct Decoder {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    heard: UnixStream,
    /// Jobs whose results were not collected.
    outstanding: usize,
    /// Lists of spans that no job has.
    spare: Vec<Vec<Span>>,
}

impl Decoder {
    /// Starts the threads.
    ///
    /// # Errors
    /// There is no descriptor left, or no thread.
    pub fn new(access: Arc<FormatAccess<Storage>>, cluster_size: u64) -> io::Result<Self> {
        let (heard, bell) = UnixStream::pair()?;
        heard.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let work = Work {
            jobs: VecDeque::with_capacity(JOBS_MAX),
            done: Vec::with_capacity(JOBS_MAX),
            closing: false,
        };
        let unit = cluster_size.max(UNIT_MIN);
        let shared = Arc::new(Shared {
            access,
            unit,
            work: Mutex::new(work),
            more_work: Condvar::new(),
            kept: Mutex::new(Kept::new((KEPT_BYTES / unit) as usize)),
            inflated: Condvar::new(),
            bell,
        });
        let spare = (0..JOBS_MAX).map(|_| Vec::with_capacity(JOB_SPANS_MAX)).collect();
        let mut decoder = Self { shared, threads: Vec::new(), heard, outstanding: 0, spare };
        let count = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        // Here and not at the first read: a shard's thread may be pinned to a CPU, and its threads inherit that.
        for _ in 0..count {
            let shared = Arc::clone(&decoder.shared);
            let thread = thread::Builder::new().name("headworks-zip".into());
            decoder.threads.push(thread.spawn(move || shared.run())?);
        }
        Ok(decoder)
    }

    /// The descriptor that is readable when there are results.
    pub fn fd(&self) -> RawFd {
        self.heard.as_raw_fd()
    }

    /// A list for the spans of a job; `None` if there are jobs enough.
    pub fn list(&mut self) -> Option<Vec<Span>> {
        self.spare.pop()
    }

    /// Starts a job. Returns true if there was none.
    ///
    /// # Safety
    /// The spans are valid and the job's alone until its result was collected.
    pub unsafe fn start(&mut self, job: Job) -> bool {
        self.shared.lock().jobs.push_back(job);
        self.shared.more_work.notify_one();
        self.outstanding += 1;
        self.outstanding == 1
    }

    /// Gives each result to `each`. Returns true while there are further jobs.
    pub fn collect(&mut self, mut each: impl FnMut(RequestId, Result<u32, IoError>)) -> bool {
        // The bytes only wake; what was said is in the list.
        let mut bytes = [0; JOBS_MAX];
        let _ = (&self.heard).read(&mut bytes);
        let mut work = self.shared.lock();
        for Decoded { id, result, mut spans } in work.done.drain(..) {
            each(id, result);
            spans.clear();
            self.spare.push(spans);
            self.outstanding -= 1;
        }
        self.outstanding > 0
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.more_work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has told it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes jobs until the decoder closes and all are done.
    fn run(&self) {
        let mut work = self.lock();
        loop {
            let Some(job) = work.jobs.pop_front() else {
                if work.closing {
                    return;
                }
                work = self.more_work.wait(work).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(work);
            let result = self.read(&job);
            work = self.lock();
            work.done.push(Decoded { id: job.id, result, spans: job.spans });
            if work.done.len() == 1 {
                // It cannot fail but for a full socket, which is readable.
                let _ = (&self.bell).write(&[0]);
            }
        }
    }

    /// Reads all bytes of a job.
    fn read(&self, job: &Job) -> Result<u32, IoError> {
        let mut at = job.offset;
        for span in &job.spans {
            // SAFETY: the job's spans are valid and its own until its result is in the list.
            let mut rest = unsafe { span.bytes_mut() };
            while !rest.is_empty() {
                let (start, inside) = (at - at % self.unit, at % self.unit);
                let len = (self.unit - inside).min(rest.len() as u64);
                let (part, after) = rest.split_at_mut(len as usize);
                if len == self.unit {
                    self.inflate(start, part)?;
                } else {
                    let unit = self.unit(start)?;
                    part.copy_from_slice(&unit[inside as usize..(inside + len) as usize]);
                }
                (rest, at) = (after, at + len);
            }
        }
        Ok((at - job.offset) as u32)
    }

    fn inflate(&self, start: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let read = self.access.read(bytes, start);
        read.map_err(|error| error.raw_os_error().map_or(IoError::Medium, IoError::from_errno))
    }

    /// The bytes of a unit, kept or inflated now.
    fn unit(&self, start: u64) -> Result<Arc<[u8]>, IoError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match kept.find(start) {
                Found::Bytes(bytes) => return Ok(bytes),
                Found::Inflating => {
                    kept = self.inflated.wait(kept).unwrap_or_else(PoisonError::into_inner);
                }
                Found::Nothing => break,
            }
        }
        kept.begin(start);
        drop(kept);
        let mut bytes = vec![0; self.unit as usize];
        let read = self.inflate(start, &mut bytes);
        let bytes: Arc<[u8]> = bytes.into();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.end(start, read.is_ok().then(|| Arc::clone(&bytes)));
        drop(kept);
        self.inflated.notify_all();
        read.map(|()| bytes)
    }
}

/// Inflated units, the least recently used one first.
struct Kept {
    /// Start and bytes; none while a thread inflates them.
    units: VecDeque<(u64, Option<Arc<[u8]>>)>,
    most: usize,
}

enum Found {
    Bytes(Arc<[u8]>),
    Inflating,
    Nothing,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self { units: VecDeque::new(), most: most.max(1) }
    }

    fn find(&mut self, start: u64) -> Found {
        let Some(index) = self.units.iter().position(|unit| unit.0 == start) else {
            return Found::Nothing;
        };
        let Some(unit) = self.units.remove(index) else { return Found::Nothing };
        let found = unit.1.clone().map_or(Found::Inflating, Found::Bytes);
        self.units.push_back(unit);
        found
    }

    fn begin(&mut self, start: u64) {
        self.units.push_back((start, None));
    }

    /// A unit was inflated, or could not be.
    fn end(&mut self, start: u64, bytes: Option<Arc<[u8]>>) {
        self.units.retain(|unit| unit.0 != start);
        if let Some(bytes) = bytes {
            self.units.push_back((start, Some(bytes)));
        }
        while self.units.len() > self.most {
            let Some(oldest) = self.units.iter().position(|unit| unit.1.is_some()) else { return };
            self.units.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_unit_is_dropped_first() {
        let mut kept = Kept::new(2);
        let bytes = |byte: u8| -> Arc<[u8]> { vec![byte].into() };
        let has = |kept: &mut Kept, start| matches!(kept.find(start), Found::Bytes(_));
        for start in [1, 2] {
            kept.begin(start);
            assert!(matches!(kept.find(start), Found::Inflating));
            kept.end(start, Some(bytes(start as u8)));
        }
        assert!(has(&mut kept, 1));
        kept.begin(3);
        kept.end(3, Some(bytes(3)));
        assert!(has(&mut kept, 1) && has(&mut kept, 3) && !has(&mut kept, 2));
        // What is being inflated is not dropped, and a failure leaves nothing.
        kept.begin(4);
        kept.end(4, None);
        assert!(matches!(kept.find(4), Found::Nothing) && has(&mut kept, 1));
    }
}
