//! The engine without io_uring: epoll for sockets, wake-ups and time, and a pool of threads for disks.
//!
//! For containers and kernels that forbid or lack io_uring. Readiness is level-triggered inside, and made one-shot lazily: a
//! watch that fired stays with epoll until the next turn, and costs nothing if it is wanted again by then, which is the
//! usual way of a connection (EPOLLONESHOT would cost an `epoll_ctl` each time). What is not wanted is removed, not masked:
//! a mask cannot keep epoll from reporting a hang-up, over and over, of a socket that is not read.
//!
//! A turn: bring epoll up to date, hand the batch to the pool, sleep, collect. One eventfd, watched for edges, stands for
//! both: results of the pool and wake-ups.
//!
//! Invariants: epoll has an fd exactly while its token is `armed`; `forget` takes effect at once, so an fd that is closed and
//! opened again is never mistaken.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::ops::Ops;
use super::pool::{Job, Outcome, Pool};
use super::watch::{Watches, event_of, place_token};
use super::{DiskOp, DiskQueue, Engine, Event, Interest, Wait, Waker};
use crate::memory::Span;
use crate::system::{checked, opened};
use headworks_core::DeviceId;

/// Most threads of a pool. 16: a disk's depth-32 throughput needs most of it, and each is a stack and a possible wake-up.
const THREADS_MAX: usize = 16;
/// Events taken from epoll at once; more stay for the next turn.
const EVENTS: usize = 256;
/// The eventfd's name among the tokens, which are smaller.
const BELL: u64 = u64::MAX;

pub(super) struct Threads {
    /// Before `ops`: dropping it joins the threads that use the vectors there.
    pool: Pool,
    ops: Ops,
    /// Pushed since the last turn.
    batch: Vec<Job>,
    outcomes: Vec<Outcome>,
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    watches: Watches,
    /// Tokens that epoll refused: "ready", so that their owner finds out why by trying.
    refused: Vec<u32>,
    waker: Waker,
    /// `epoll_pwait2` (Linux 5.11, and not forbidden): waits in nanoseconds.
    fine_waits: bool,
}

impl Threads {
    /// An engine with room for `disk_depth` operations.
    pub fn open(disk_depth: usize) -> io::Result<Self> {
        // SAFETY: no pointers; what it opens is owned by nothing else.
        let epoll = unsafe { opened(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }?;
        let waker = Waker::new()?;
        let edges = (libc::EPOLLIN | libc::EPOLLET) as u32;
        control(&epoll, libc::EPOLL_CTL_ADD, waker.fd(), edges, BELL)?;
        Ok(Self {
            pool: Pool::new(THREADS_MAX.min(disk_depth), disk_depth, waker.clone()),
            ops: Ops::new(disk_depth),
            batch: Vec::with_capacity(disk_depth),
            outcomes: Vec::with_capacity(disk_depth),
            epoll,
            events: Vec::with_capacity(EVENTS),
            watches: Watches::default(),
            refused: Vec::new(),
            waker,
            fine_waits: true,
        })
    }

    /// Tells epoll what changed in the watches.
    fn arm(&mut self) {
        while let Some((token, watch)) = self.watches.next_changed() {
            let name = u64::from(token);
            let told = match (watch.armed, watch.wanted) {
                (None, None) => Ok(()),
                (Some(_), None) => control(&self.epoll, libc::EPOLL_CTL_DEL, watch.fd, 0, name),
                (armed, Some(interest)) => {
                    let how = armed.map_or(libc::EPOLL_CTL_ADD, |_| libc::EPOLL_CTL_MOD);
                    control(&self.epoll, how, watch.fd, epoll_mask(interest), name)
                }
            };
            watch.armed = watch.wanted;
            if told.is_err() && watch.wanted.is_some() {
                (watch.armed, watch.wanted) = (None, None);
                self.refused.push(token);
            }
        }
    }

    /// Sleeps as told and fills `self.events`.
    fn wait(&mut self, wait: Wait) -> io::Result<()> {
        self.events.clear();
        let count = self.wait_finely(wait).unwrap_or_else(|| {
            let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
            // SAFETY: `events` has room for EVENTS.
            unsafe { libc::epoll_wait(epoll, events, EVENTS as i32, milliseconds(wait)) }
        });
        if count < 0 {
            let error = io::Error::last_os_error();
            let interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if interrupted { Ok(()) } else { Err(error) };
        }
        // SAFETY: the kernel filled that many, at most EVENTS.
        unsafe { self.events.set_len(count as usize) };
        Ok(())
    }

    /// Waits for nanoseconds, if that is asked for and possible.
    fn wait_finely(&mut self, wait: Wait) -> Option<i32> {
        let Wait::For(ns) = wait else { return None };
        if !self.fine_waits {
            return None;
        }
        let time = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as _,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        };
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // By number: musl has no wrapper, and older C libraries neither.
        // SAFETY: `events` has room for EVENTS, `time` lives during the call, no signal mask is given.
        let count = unsafe {
            let time = &raw const time;
            libc::syscall(libc::SYS_epoll_pwait2, epoll, events, EVENTS, time, no_mask, 0)
        };
        // EPERM: old seccomp profiles refuse what they do not know.
        let errno = io::Error::last_os_error().raw_os_error();
        self.fine_waits = count >= 0 || !matches!(errno, Some(libc::ENOSYS | libc::EPERM));
        self.fine_waits.then_some(count as i32)
    }

    fn on_bell(&mut self, events: &mut Vec<Event>) {
        if self.waker.answer() {
            events.push(Event::Woken);
        }
        self.pool.collect(&mut self.outcomes);
        for (slot, result) in self.outcomes.drain(..) {
            events.push(Event::Disk(self.ops.finish(slot, result)));
        }
    }
}

fn control(epoll: &OwnedFd, how: i32, fd: RawFd, mask: u32, name: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: mask, u64: name };
    // SAFETY: `event` lives during the call.
    checked(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), how, fd, &raw mut event) }).map(drop)
}

fn epoll_mask(interest: Interest) -> u32 {
    let mask = match interest {
        Interest::Read => libc::EPOLLIN,
        Interest::Write => libc::EPOLLOUT,
        Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
    };
    mask as u32
}

/// Rounded up: to wake too early would be to turn in vain until the time has come.
fn milliseconds(wait: Wait) -> i32 {
    match wait {
        Wait::Poll => 0,
        Wait::For(ns) => ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32,
        Wait::Forever => -1,
    }
}

impl super::Watch for Threads {
    fn watch_place(&mut self, device: DeviceId, place: u16, fd: RawFd, interest: Interest) {
        self.watch(place_token(device, place), fd, interest);
    }

    fn forget_place(&mut self, device: DeviceId, place: u16) {
        self.forget(place_token(device, place));
    }
}

impl DiskQueue for Threads {
    unsafe fn push(&mut self, op: DiskOp, spans: &[Span]) -> bool {
        let Some((slot, vectors)) = self.ops.take(&op, spans) else {
            return false;
        };
        self.batch.push(Job { slot, op, vectors });
        true
    }
}

impl Engine for Threads {
    fn name(&self) -> &'static str {
        "threads"
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
            // Fails only if the fd was closed before, which took it out of epoll too.
            let _ = control(&self.epoll, libc::EPOLL_CTL_DEL, watch.fd, 0, token.into());
        }
    }

    fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.arm();
        self.pool.submit(&mut self.batch);
        self.wait(if self.refused.is_empty() { wait } else { Wait::Poll })?;
        events.extend(self.refused.drain(..).map(event_of));
        for index in 0..self.events.len() {
            let name = self.events[index].u64;
            if name == BELL {
                self.on_bell(events);
                continue;
            }
            let token = name as u32;
            if let Some(watch) = self.watches.get(token) {
                watch.wanted = None;
                self.watches.change(token);
                events.push(event_of(token));
            }
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

impl Drop for Threads {
    /// Starts what was pushed; the pool then finishes everything and joins its threads.
    fn drop(&mut self) {
        self.pool.submit(&mut self.batch);
    }
}
