//! Many connections of a benchmark on one thread: an epoll loop instead of a blocking receive for each connection.
//!
//! ```text
//!   every connection: submit, send --> epoll --ready--> receive, count, submit, send --> epoll ...
//! ```
//!
//! Latencies are taken per connection when its replies are read. While replies of other connections are being read a
//! reply waits, so the figures contain the client's own queueing; one thread handles some 500,000 replies a second.
//!
//! Invariant: a connection with requests in flight, or with unsent bytes, is registered for what it waits for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::ClientError;
use super::worker::{Phase, Stopwatch, Worker};

/// Events of one wait.
const EVENTS_MAX: usize = 256;

/// Runs a phase on all workers, in this thread. The first of them has the CPU time of all.
pub fn go(
    workers: &mut [Worker],
    phase: Phase,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<(), ClientError> {
    let poll = Epoll::new()?;
    let watch = Stopwatch::start(phase);
    let mut active = 0;
    for (index, worker) in workers.iter_mut().enumerate() {
        worker.begin(phase);
        let open = watch.is_open(watch.now(), stop);
        worker.submit_and_send(phase, open, watch.now())?;
        poll.add(worker.fd(), index, worker.is_blocked())?;
        active += usize::from(!worker.is_idle());
    }
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
    while active > 0 {
        let count = poll.wait(&mut events, timeout)?;
        if count == 0 {
            return Err(ClientError::TimedOut);
        }
        for event in &events[..count] {
            let index = event.u64 as usize;
            let worker = &mut workers[index];
            if worker.is_idle() {
                // The server hung up behind the last reply.
                poll.remove(worker.fd())?;
                continue;
            }
            let was_blocked = worker.is_blocked();
            let at = worker.receive_now(&watch)?;
            worker.submit_and_send(phase, watch.is_open(at, stop), at)?;
            if worker.is_blocked() != was_blocked {
                poll.change(worker.fd(), index, worker.is_blocked())?;
            }
            active -= usize::from(worker.is_idle());
        }
    }
    for (index, worker) in workers.iter_mut().enumerate() {
        watch.stop(&mut worker.tally, index == 0);
        worker.take_calls();
    }
    Ok(())
}

/// An epoll descriptor whose events carry indices.
struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn add(&self, fd: RawFd, index: usize, writable: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, index, writable)
    }

    fn change(&self, fd: RawFd, index: usize, writable: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, index, writable)
    }

    fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, false)
    }

    fn control(&self, how: i32, fd: RawFd, index: usize, writable: bool) -> io::Result<()> {
        let out = if writable { libc::EPOLLOUT } else { 0 };
        let mut event =
            libc::epoll_event { events: (libc::EPOLLIN | out) as u32, u64: index as u64 };
        // SAFETY: the event lives until the call has returned.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), how, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for events; 0 after `timeout`.
    fn wait(&self, events: &mut [libc::epoll_event], timeout: Duration) -> io::Result<usize> {
        let millis = timeout.as_millis().min(i32::MAX as u128) as i32;
        loop {
            // SAFETY: the slice has room for as many events as it says.
            let count = unsafe {
                let room = events.len() as i32;
                libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, millis)
            };
            match usize::try_from(count) {
                Ok(count) => return Ok(count),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
}
