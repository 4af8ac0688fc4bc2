//! The engine on io_uring: disks, readiness of sockets, wake-ups and time on one ring, one system call a turn.
//!
//! One ring per shard, made in its own thread (SINGLE_ISSUER) and completing work only while that thread is inside the kernel
//! (DEFER_TASKRUN): no interruptions, and completions come in batches. Therefore a turn always enters the kernel, also to
//! poll. Both need Linux 6.1. Disk operations are READ and WRITE for one span, READV and WRITEV for several; sockets are
//! one-shot POLL_ADD; the eventfd of the [`Waker`] is one multishot POLL_ADD; the time-out is an argument of the entry.
//!
//! Rule: an entry does little work in this thread. The kernel carries out what it can while the operation is submitted: a read of a hole zeroes
//! its memory, one of the page cache or a tmpfs copies. So long reads are left to the kernel's workers (IOSQE_ASYNC), as it does itself with
//! FALLOCATE and FSYNC; short ones, whose latency counts, are not.
//!
//! What a range of a file is made of a ring cannot ask: that goes to a small pool of threads, started when it is first asked.
//!
//! Buffers are not registered: measured at 4 KiB O_DIRECT, any depth, that gains nothing, and it would need locked memory,
//! of which a user may have as little as 8 MiB. New kernels count the ring itself against that limit, with 84 KiB: 8 MiB are
//! enough for all shards there can be (64), and a user who has none at all gets the other engine.
//!
//! ```text
//!   user_data   63..62  61......32  31........0
//!                kind   generation    token        kind: DISK, POLL, BELL, NOTHING
//!                  0        -       slot in Ops
//! ```
//!
//! Invariants: a poll's completion counts only if its generation is the token's present one, so a token may be reused at
//! once; the completion queue has room for every disk operation and 2048 sockets, and beyond that the kernel keeps what
//! does not fit (NODROP) until the next entry.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue};

use super::ops::{Ops, Vectors};
use super::pool::{Job, Outcome, Pool};
use super::watch::{Watches, event_of, place_token};
use super::{DiskKind, DiskOp, DiskQueue, Engine, Event, Interest, Wait, Waker};
use crate::memory::Span;
use headworks_core::DeviceId;

/// Entries that can be queued before the kernel is entered early. 256: above any batch that pays.
const QUEUE_ENTRIES: u32 = 256;
/// Room in the completion queue beside the disk operations: sockets, cancellations, wake-ups. 2048: with up to as many disk
/// operations the queue takes 64 KiB.
const COMPLETIONS_EXTRA: usize = 2048;

/// Shortest read that is left to a worker. 128 KiB: zeroing or copying them takes some ten microseconds, and a worker takes about as long to wake.
const LONG_READ: u64 = 128 << 10;

/// Limit of the wait for polls that are given up at the end; they end at once.
const CANCEL_LIMIT: Timespec = Timespec::new().sec(1);

/// Threads that ask files for their extents. 2: such a question takes microseconds, and one that waits for a disk should not
/// keep all others waiting.
const ASKING_THREADS: usize = 2;

const DISK: u64 = 0 << 62;
const POLL: u64 = 1 << 62;
const BELL: u64 = 2 << 62;
/// Completions that say nothing to anybody.
const NOTHING: u64 = 3 << 62;
const KIND: u64 = 3 << 62;
/// What of a generation fits in `user_data`. 2^30 polls of one token would have to pass by one late completion.
const GENERATION: u32 = (1 << 30) - 1;

fn poll_name(token: u32, generation: u32) -> u64 {
    POLL | u64::from(generation & GENERATION) << 32 | u64::from(token)
}

pub(super) struct Uring {
    ring: IoUring,
    ops: Ops,
    watches: Watches,
    /// Polls without a waiter, by `user_data`. Filled by `forget`, emptied by the turn.
    given_up: Vec<u64>,
    waker: Waker,
    bell_armed: bool,
    /// Before `ops` in [`Drop`]: its threads use the vectors there.
    asking: Option<Asking>,
    disk_depth: usize,
}

/// What is done by threads.
struct Asking {
    pool: Pool,
    /// Pushed since the last turn.
    batch: Vec<Job>,
    outcomes: Vec<Outcome>,
    /// Not finished.
    count: usize,
}

/// One sentence: why [`Uring::open`] failed.
pub(super) fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here, by the container's seccomp profile or by kernel.io_uring_disabled".into()
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring".into(),
        Some(libc::EINVAL | libc::EOPNOTSUPP) => "io_uring needs Linux 6.1 or newer here".into(),
        Some(libc::ENOMEM) => "there is not enough memory for an io_uring (see `ulimit -l`)".into(),
        _ => format!("io_uring does not work here: {error}"),
    }
}

impl Uring {
    /// A ring for the calling thread.
    pub fn open(disk_depth: usize) -> io::Result<Self> {
        Self::with_room(disk_depth, disk_depth + COMPLETIONS_EXTRA)
    }

    /// A ring whose completion queue holds at least `completions`, and at least as many as the submission queue.
    pub(super) fn with_room(disk_depth: usize, completions: usize) -> io::Result<Self> {
        let completions = completions.next_power_of_two().max(QUEUE_ENTRIES as usize);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(completions as u32)
            .build(QUEUE_ENTRIES)?;
        let mut engine = Self {
            ring,
            ops: Ops::new(disk_depth),
            watches: Watches::default(),
            given_up: Vec::with_capacity(64),
            waker: Waker::new()?,
            bell_armed: false,
            asking: None,
            disk_depth,
        };
        engine.probe()?;
        Ok(engine)
    }

    /// Whether the kernel can do all we will ask for; a ring that can be made but not entered is no use either.
    fn probe(&mut self) -> io::Result<()> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::PollAdd::CODE,
            opcode::PollRemove::CODE,
        ];
        let features = self.ring.params();
        if !needed.iter().all(|&code| probe.is_supported(code))
            || !features.is_feature_ext_arg()
            || !features.is_feature_nodrop()
        {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.queue(&opcode::Nop::new().build().user_data(NOTHING));
        self.ring.submit_and_wait(1)?;
        self.reap(&mut Vec::new());
        Ok(())
    }

    /// Puts an entry on the submission queue, entering the kernel early if that is full. False: the kernel takes nothing now.
    fn queue(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the memory that disk entries name lives until the completion: iovecs in `Ops`, data by the contract of
        // `DiskQueue::push`. Other entries name none.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            return true;
        }
        // Whatever the reason (memory, completions that wait to be reaped): it is over some turn later.
        let _ = self.ring.submit();
        // SAFETY: as above.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Tells the kernel what changed in the watches. False: not all of it could be told.
    fn arm(&mut self) -> bool {
        if !self.bell_armed {
            let poll = opcode::PollAdd::new(Fd(self.waker.fd()), libc::POLLIN as u32).multi(true);
            self.bell_armed = self.queue(&poll.build().user_data(BELL));
        }
        while let Some((token, watch)) = self.watches.next_changed() {
            if watch.armed.take().is_some() {
                self.given_up.push(poll_name(token, watch.generation));
                watch.generation = watch.generation.wrapping_add(1);
            }
            let Some(interest) = watch.wanted else {
                continue;
            };
            watch.armed = watch.wanted;
            let name = poll_name(token, watch.generation);
            let poll = opcode::PollAdd::new(Fd(watch.fd), poll_mask(interest) as u32);
            if !self.queue(&poll.build().user_data(name)) {
                self.watches.disarm(token);
                return false;
            }
        }
        // By name, so it does not matter that the polls that replace them were added first.
        while let Some(&name) = self.given_up.last() {
            let removal = opcode::PollRemove::new(name).build().user_data(NOTHING);
            if !self.queue(&removal) {
                return false;
            }
            self.given_up.pop();
        }
        self.bell_armed
    }

    /// Submits what is queued and waits.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        // GETEVENTS even without waiting: only such an entry completes what is due under DEFER_TASKRUN.
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: the argument is none, or a time-out as EXT_ARG wants it, alive during the call.
        let entered = unsafe {
            match wait {
                Wait::Poll => submitter.enter::<libc::sigset_t>(queued, 0, flags, None),
                Wait::Forever => submitter.enter::<libc::sigset_t>(queued, 1, flags, None),
                Wait::For(ns) => {
                    let time = Timespec::from(Duration::from_nanos(ns));
                    let args = SubmitArgs::new().timespec(&time);
                    submitter.enter(queued, 1, flags | EnterFlags::EXT_ARG.bits(), Some(&args))
                }
            }
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ETIME) => Ok(()),
                // No memory for a request, or completions to be reaped first: what is queued stays queued for the next turn.
                Some(libc::EAGAIN | libc::EBUSY) => {
                    std::thread::yield_now();
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Turns all completions into events.
    fn reap(&mut self, events: &mut Vec<Event>) {
        for completion in self.ring.completion() {
            let name = completion.user_data();
            match name & KIND {
                DISK => {
                    let done = self.ops.finish(name as u32, completion.result());
                    events.push(Event::Disk(done));
                }
                POLL => {
                    let token = name as u32;
                    let Some(watch) = self.watches.get(token) else {
                        continue;
                    };
                    if name == poll_name(token, watch.generation) {
                        watch.generation = watch.generation.wrapping_add(1);
                        (watch.armed, watch.wanted) = (None, None);
                        events.push(event_of(token));
                    }
                }
                BELL => {
                    self.bell_armed = cqueue::more(completion.flags());
                    if self.waker.answer() {
                        events.push(Event::Woken);
                    }
                    if let Some(asking) = &mut self.asking {
                        asking.collect(&mut self.ops, events);
                    }
                }
                _ => {}
            }
        }
    }
}

impl Asking {
    fn collect(&mut self, ops: &mut Ops, events: &mut Vec<Event>) {
        self.pool.collect(&mut self.outcomes);
        self.count -= self.outcomes.len();
        for (slot, result) in self.outcomes.drain(..) {
            events.push(Event::Disk(ops.finish(slot, result)));
        }
    }
}

fn poll_mask(interest: Interest) -> libc::c_short {
    match interest {
        Interest::Read => libc::POLLIN,
        Interest::Write => libc::POLLOUT,
        Interest::ReadWrite => libc::POLLIN | libc::POLLOUT,
    }
}

/// `u32` because the ring has no more room; a request has at most 32 MiB.
fn short(len: usize) -> u32 {
    u32::try_from(len).expect("a span is shorter than 4 GiB")
}

/// Flags of the operation's entry.
fn entry_flags(op: &DiskOp) -> squeue::Flags {
    match op.kind {
        DiskKind::Read if op.len >= LONG_READ => squeue::Flags::ASYNC,
        _ => squeue::Flags::empty(),
    }
}

fn disk_entry(op: &DiskOp, spans: &[Span], vectors: Vectors) -> squeue::Entry {
    let fd = Fd(op.fd);
    let Vectors { first, count } = vectors;
    match (op.kind, spans) {
        (DiskKind::Read, [span]) => {
            opcode::Read::new(fd, span.base(), short(span.len())).offset(op.offset).build()
        }
        (DiskKind::Read, _) => opcode::Readv::new(fd, first, count).offset(op.offset).build(),
        (DiskKind::Write { dsync }, [span]) => {
            opcode::Write::new(fd, span.base(), short(span.len()))
                .offset(op.offset)
                .rw_flags(super::call::write_flags(dsync))
                .build()
        }
        (DiskKind::Write { dsync }, _) => opcode::Writev::new(fd, first, count)
            .offset(op.offset)
            .rw_flags(super::call::write_flags(dsync))
            .build(),
        (DiskKind::Sync, _) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        (DiskKind::Allocate { mode }, _) => {
            opcode::Fallocate::new(fd, op.len).offset(op.offset).mode(mode).build()
        }
        (DiskKind::Extents { .. }, _) => unreachable!("a ring cannot ask that"),
    }
}

impl super::Watch for Uring {
    fn watch_place(&mut self, device: DeviceId, place: u16, fd: RawFd, interest: Interest) {
        self.watch(place_token(device, place), fd, interest);
    }

    fn forget_place(&mut self, device: DeviceId, place: u16) {
        self.forget(place_token(device, place));
    }
}

impl DiskQueue for Uring {
    unsafe fn push(&mut self, op: DiskOp, spans: &[Span]) -> bool {
        let Some((slot, vectors)) = self.ops.take(&op, spans) else {
            return false;
        };
        if matches!(op.kind, DiskKind::Extents { .. }) {
            let asking = self.asking.get_or_insert_with(|| Asking {
                pool: Pool::new(ASKING_THREADS, self.disk_depth, self.waker.clone()),
                batch: Vec::with_capacity(self.disk_depth),
                outcomes: Vec::with_capacity(self.disk_depth),
                count: 0,
            });
            asking.batch.push(Job { slot, op, vectors });
            asking.count += 1;
            return true;
        }
        let entry = disk_entry(&op, spans, vectors)
            .flags(entry_flags(&op))
            .user_data(DISK | u64::from(slot));
        let queued = self.queue(&entry);
        if !queued {
            self.ops.finish(slot, 0);
        }
        queued
    }
}

impl Engine for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn watch(&mut self, token: u32, fd: RawFd, interest: Interest) {
        if self.watches.get(token).is_some_and(|watch| watch.fd != fd) {
            self.forget(token);
        }
        self.watches.want(token, fd, interest);
    }

    fn forget(&mut self, token: u32) {
        let Some(watch) = self.watches.get(token) else {
            return;
        };
        watch.wanted = None;
        if watch.armed.take().is_some() {
            let name = poll_name(token, watch.generation);
            watch.generation = watch.generation.wrapping_add(1);
            self.given_up.push(name);
        }
    }

    fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        if let Some(asking) = &mut self.asking {
            asking.pool.submit(&mut asking.batch);
        }
        let told_all = self.arm();
        self.enter(if told_all { wait } else { Wait::Poll })?;
        self.reap(events);
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

impl Drop for Uring {
    /// Waits for the disk: the kernel writes into buffers until it has said that it no longer does. Then gives up every poll:
    /// the kernel takes a ring apart some milliseconds after it is closed, and a poll holds its socket until then, so the
    /// next process could not listen at the same port.
    fn drop(&mut self) {
        let mut events = Vec::new();
        // The pool is dropped here: its threads finish and are joined.
        let asked = self.asking.take().map_or(0, |asking| asking.count);
        while self.ops.in_flight() > asked {
            if let Err(error) = self.enter(Wait::Forever) {
                // Leaving now would hand memory back that the kernel still writes to.
                panic!("io_uring failed with operations under way: {error}");
            }
            self.reap(&mut events);
        }
        let cancelled = self
            .ring
            .submitter()
            .register_sync_cancel(Some(CANCEL_LIMIT), CancelBuilder::any())
            // Completes the cancelled polls, which lets their sockets go.
            .and_then(|()| self.enter(Wait::Poll));
        if cancelled.is_ok() {
            self.reap(&mut events);
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::RequestId;

    use super::*;

    #[test]
    fn only_long_reads_are_left_to_workers() {
        let flags = |kind, len| {
            let (device, id) = (DeviceId(0), RequestId::default());
            entry_flags(&DiskOp { device, id, fd: -1, kind, offset: 0, len })
        };
        assert_eq!(flags(DiskKind::Read, LONG_READ), squeue::Flags::ASYNC);
        assert_eq!(flags(DiskKind::Read, LONG_READ - 1), squeue::Flags::empty());
        assert_eq!(flags(DiskKind::Write { dsync: false }, 1 << 20), squeue::Flags::empty());
        assert_eq!(flags(DiskKind::Sync, 0), squeue::Flags::empty());
    }
}
