//! The in-flight region: which heads of a ring were taken and not answered, in memory that outlives the process.
//!
//! ```text
//!   queue area, 64-byte aligned              entry of a descriptor
//!   0  features u64                          0  inflight u8
//!   8  version u16      0: not initialised   6  next u16      the head that was answered before
//!   10 desc_num u16                          8  counter u64   order of taking
//!   12 last_batch_head u16
//!   14 used_idx u16
//!   16 desc_num entries
//!
//!   take:    counter, inflight = 1                       before the request has any effect
//!   answer:  next = last_batch_head, last_batch_head = head
//!   publish: used.idx of the ring; inflight = 0 for the batch; used_idx = used.idx
//! ```
//!
//! The stores happen in this order; each is a release, so neither compiler nor processor moves an earlier one behind it. A process may
//! die between any two. The next one finds with `used_idx != used.idx` that the last batch was published and clears it by its list;
//! what then has inflight = 1 was taken and never answered, and is submitted again in the order of its counters (V5).
//!
//! Everything in the region is input: indices are bounded, a walk has at most desc_num steps.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use crate::memory::SharedMapping;
use crate::observer::StoreObserver;
use crate::wire::InFlightDescription;
use crate::{QUEUE_SIZE_MAX, QUEUES_MAX};

const VERSION_AT: usize = 8;
const COUNT_AT: usize = 10;
const LAST_BATCH_HEAD_AT: usize = 12;
const USED_INDEX_AT: usize = 14;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const ALIGNMENT: usize = 64;

/// Bytes of the area of one queue.
fn area_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

/// A mapped in-flight region of all queues of a device.
#[derive(Debug)]
pub struct InFlightRegion {
    mapping: SharedMapping,
    about: InFlightDescription,
}

impl InFlightRegion {
    /// Makes the region of a new device; the descriptor is for the front end, which keeps it for the next process.
    pub fn create(queues: u16, queue_size: u16) -> io::Result<(Self, OwnedFd)> {
        let size = (area_bytes(queue_size) * usize::from(queues)) as u64;
        let about = InFlightDescription { size, offset: 0, queues, queue_size };
        let file = sealed_file(c"headworks-in-flight", size)?;
        let region = Self::map(about, file.try_clone()?.into()).map_err(io::Error::other)?;
        Ok((region, file.into()))
    }

    /// Maps a region that a front end kept; the error is a sentence.
    pub fn map(about: InFlightDescription, fd: OwnedFd) -> Result<Self, String> {
        let InFlightDescription { size, offset, queues, queue_size } = about;
        let is_sized =
            (1..=QUEUES_MAX).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&queue_size);
        if !is_sized || offset % ALIGNMENT as u64 != 0 {
            return Err(format!(
                "an in-flight region of {queues} queues of {queue_size} at offset {offset}; at most {QUEUES_MAX} of {QUEUE_SIZE_MAX}, \
                 offset a multiple of {ALIGNMENT}"
            ));
        }
        let needed = (area_bytes(queue_size) * usize::from(queues)) as u64;
        let end = offset.checked_add(size).filter(|_| size >= needed);
        let end =
            end.ok_or_else(|| format!("an in-flight region of {size} bytes, not {needed}"))?;
        let mapping = SharedMapping::new(&File::from(fd), end)
            .map_err(|error| format!("cannot map the in-flight region: {error}"))?;
        Ok(Self { mapping, about })
    }

    /// What the answer to GET_INFLIGHT_FD says of the region.
    #[must_use]
    pub fn description(&self) -> InFlightDescription {
        self.about
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.mapping.is_faulted()
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.mapping.is_guarded()
    }
}

/// A file in memory that can neither grow nor shrink.
pub(crate) fn sealed_file(name: &CStr, size: u64) -> io::Result<File> {
    // SAFETY: the name is a C string that lives until the call has returned.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and belongs to nothing else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size)?;
    // SAFETY: the call takes no memory.
    let sealed = unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
    };
    if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// The area of one queue, as its ring writes it.
#[derive(Debug)]
pub(crate) struct Track<O> {
    region: Arc<InFlightRegion>,
    base: *mut u8,
    num: u16,
    counter: u64,
    // Heads answered and not yet published: at most `num`, reserved when made.
    batch: Vec<u16>,
    observer: PhantomData<O>,
}

// SAFETY: the pointer is into the region's mapping, which any thread may use.
unsafe impl<O: StoreObserver> Send for Track<O> {}

impl<O: StoreObserver> Track<O> {
    /// The area of `queue` for a ring of `num` descriptors; the error is a sentence.
    pub(crate) fn new(region: &Arc<InFlightRegion>, queue: u16, num: u16) -> Result<Self, String> {
        let about = region.about;
        if queue >= about.queues || num > about.queue_size {
            return Err(format!(
                "queue {queue} of {num} descriptors is not in the in-flight region of {} queues of {}",
                about.queues, about.queue_size
            ));
        }
        let skip = about.offset as usize + area_bytes(about.queue_size) * usize::from(queue);
        let base = region.mapping.base().wrapping_add(skip);
        let region = Arc::clone(region);
        let batch = Vec::with_capacity(usize::from(num));
        Ok(Self { region, base, num, counter: 0, batch, observer: PhantomData })
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.region.is_faulted()
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.region.is_guarded()
    }

    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: the area has the header and `num` entries, and is aligned to 64 bytes; it is mapped while `region` lives.
        unsafe { AtomicU16::from_ptr(self.base.wrapping_add(at).cast()) }
    }

    fn entry(&self, head: u16) -> *mut u8 {
        assert!(head < self.num, "a head was checked when it was taken");
        self.base.wrapping_add(HEADER_BYTES + ENTRY_BYTES * usize::from(head))
    }

    fn flag(&self, head: u16) -> &AtomicU8 {
        // SAFETY: as for `word`.
        unsafe { AtomicU8::from_ptr(self.entry(head)) }
    }

    fn next(&self, head: u16) -> &AtomicU16 {
        // SAFETY: as for `word`.
        unsafe { AtomicU16::from_ptr(self.entry(head).wrapping_add(6).cast()) }
    }

    fn count(&self, head: u16) -> &AtomicU64 {
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.entry(head).wrapping_add(8).cast()) }
    }

    /// Notes that `head` was taken. Before the request has any effect.
    #[inline]
    pub(crate) fn take(&mut self, head: u16) {
        self.counter = self.counter.wrapping_add(1);
        O::before_store();
        self.count(head).store(self.counter, Ordering::Release);
        O::before_store();
        self.flag(head).store(1, Ordering::Release);
    }

    /// Notes that the used element of `head` was written, which the next `published` follows.
    #[inline]
    pub(crate) fn answer(&mut self, head: u16) {
        let last = self.word(LAST_BATCH_HEAD_AT).load(Ordering::Relaxed);
        O::before_store();
        self.next(head).store(last, Ordering::Release);
        O::before_store();
        self.word(LAST_BATCH_HEAD_AT).store(head, Ordering::Release);
        self.batch.push(head);
    }

    /// Notes that the ring's `used.idx` was published with the value `used`.
    pub(crate) fn published(&mut self, used: u16) {
        while let Some(head) = self.batch.pop() {
            O::before_store();
            self.flag(head).store(0, Ordering::Release);
        }
        O::before_store();
        self.word(USED_INDEX_AT).store(used, Ordering::Release);
    }

    /// Repairs what a process that died left, for a ring whose `used.idx` is `used`. Returns the heads to submit again, in the order in
    /// which they were taken; the error is a sentence.
    pub(crate) fn recover(&mut self, used: u16) -> Result<Vec<u16>, String> {
        match self.word(VERSION_AT).load(Ordering::Acquire) {
            0 => {
                self.initialise(used);
                return Ok(Vec::new());
            }
            1 => {}
            version => return Err(format!("the in-flight region has version {version}, not 1")),
        }
        let count = self.word(COUNT_AT).load(Ordering::Relaxed);
        if count != self.num {
            return Err(format!(
                "the in-flight region is of a ring of {count} descriptors, not {}",
                self.num
            ));
        }
        self.clear_last_batch(used)?;
        let is_taken = |head: &u16| self.flag(*head).load(Ordering::Relaxed) == 1;
        let mut taken: Vec<(u64, u16)> = (0..self.num)
            .filter(is_taken)
            .map(|head| (self.count(head).load(Ordering::Relaxed), head))
            .collect();
        taken.sort_unstable();
        self.counter = taken.last().map_or(0, |(counter, _)| *counter);
        Ok(taken.into_iter().map(|(_, head)| head).collect())
    }

    /// The version is stored last: a process that dies here leaves a region that is initialised again.
    fn initialise(&mut self, used: u16) {
        for head in 0..self.num {
            self.flag(head).store(0, Ordering::Release);
        }
        O::before_store();
        self.word(COUNT_AT).store(self.num, Ordering::Release);
        O::before_store();
        // The ring may have been used before the region was made.
        self.word(USED_INDEX_AT).store(used, Ordering::Release);
        O::before_store();
        self.word(VERSION_AT).store(1, Ordering::Release);
    }

    /// The last batch was published, but perhaps not noted as such: its list is as long as the two indices differ.
    fn clear_last_batch(&mut self, used: u16) -> Result<(), String> {
        let noted = self.word(USED_INDEX_AT).load(Ordering::Acquire);
        let published = used.wrapping_sub(noted);
        if published > self.num {
            return Err(format!(
                "the in-flight region's used index {noted} does not belong to {used}"
            ));
        }
        let mut head = self.word(LAST_BATCH_HEAD_AT).load(Ordering::Relaxed);
        for _ in 0..published {
            if head >= self.num {
                return Err(format!("the in-flight region's batch has descriptor {head}"));
            }
            O::before_store();
            self.flag(head).store(0, Ordering::Release);
            head = self.next(head).load(Ordering::Relaxed);
        }
        O::before_store();
        self.word(USED_INDEX_AT).store(used, Ordering::Release);
        Ok(())
    }
}
