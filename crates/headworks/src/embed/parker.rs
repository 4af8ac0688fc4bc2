//! The place where a feeder waits for completions: one futex word, and an eventfd for feeders that poll.
//!
//! ```text
//!             .--- wake: FUTEX_WAKE ---.
//!   QUIET (0) -------------------------+--> NOTIFIED (1) --sleep or disarm--> QUIET
//!      '--arm--> POLLED (2) -----------'
//!                    wake: write the eventfd
//! ```
//!
//! A wake-up before the sleep ends the sleep at once, so with the announcement of `ring.rs` no message is missed. Each transition
//! is one atomic exchange, so exactly one wake-up finds QUIET or POLLED and makes the system call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::system::{eventfd, ring};

const QUIET: u32 = 0;
const NOTIFIED: u32 = 1;
const POLLED: u32 = 2;

/// The parking place of one feeder.
#[derive(Debug)]
pub(super) struct Parker {
    state: AtomicU32,
    /// The handle was dropped.
    closed: AtomicBool,
    eventfd: OwnedFd,
}

impl Parker {
    /// Makes a parking place.
    ///
    /// # Errors
    /// No file descriptor is left for the eventfd.
    pub fn new() -> io::Result<Self> {
        let (state, closed) = (AtomicU32::new(QUIET), AtomicBool::new(false));
        Ok(Self { state, closed, eventfd: eventfd()? })
    }

    /// The eventfd, readable after a wake-up of an armed feeder.
    pub fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Ends the sleep of the feeder, or its next one.
    pub fn wake(&self) {
        // Release: pairs with the Acquire in `sleep`, `arm` and `disarm`.
        match self.state.swap(NOTIFIED, Ordering::Release) {
            QUIET => self.futex(libc::FUTEX_WAKE, 1),
            POLLED => ring(&self.eventfd),
            _ => {}
        }
    }

    /// Sleeps until a wake-up. The feeder is not armed.
    pub fn sleep(&self) {
        // Acquire: pairs with the Release in `wake`.
        while self.state.swap(QUIET, Ordering::Acquire) == QUIET {
            self.futex(libc::FUTEX_WAIT, QUIET);
        }
    }

    /// Directs the next wake-up to the eventfd. Returns false if a wake-up came before; the feeder is not armed then.
    pub fn arm(&self) -> bool {
        let armed =
            self.state.compare_exchange(QUIET, POLLED, Ordering::Acquire, Ordering::Acquire);
        if armed.is_err() {
            self.state.store(QUIET, Ordering::Relaxed);
        }
        armed.is_ok()
    }

    /// Takes back [`Parker::arm`] and makes the eventfd unreadable.
    pub fn disarm(&self) {
        self.state.swap(QUIET, Ordering::Acquire);
        let mut count = 0_u64;
        // SAFETY: eight bytes of a local. With nothing to read it fails with EAGAIN.
        unsafe { libc::read(self.eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Records that the handle was dropped.
    pub fn close(&self) {
        // Release: pairs with `is_closed`; what the handle pushed before is visible to a thread that sees it closed.
        self.closed.store(true, Ordering::Release);
    }

    /// Returns true if the handle was dropped.
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with `close`.
        self.closed.load(Ordering::Acquire)
    }

    fn futex(&self, operation: i32, value: u32) {
        let no_timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the word lives as long as `self`. The result does not matter: the caller reads the word again.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                no_timeout,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(parker: &Parker) -> bool {
        let mut poll =
            libc::pollfd { fd: parker.eventfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, a local.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn wake_before_sleep_ends_one_sleep() {
        let parker = Parker::new().unwrap();
        parker.wake();
        parker.wake();
        parker.sleep();
        assert_eq!(parker.state.load(Ordering::Relaxed), QUIET, "the wake-ups are spent");
        assert!(!is_readable(&parker));
    }

    #[test]
    fn wake_of_armed_feeder_makes_eventfd_readable() {
        let parker = Parker::new().unwrap();
        assert!(parker.arm());
        parker.wake();
        parker.wake();
        assert!(is_readable(&parker));
        parker.disarm();
        assert!(!is_readable(&parker));
        parker.wake();
        assert!(!parker.arm(), "woken before");
        assert!(parker.arm() && !is_readable(&parker));
    }

    #[test]
    fn two_threads_wake_each_other_in_turn() {
        let parkers = [Parker::new().unwrap(), Parker::new().unwrap()];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1000 {
                    parkers[0].sleep();
                    parkers[1].wake();
                }
            });
            for _ in 0..1000 {
                parkers[0].wake();
                parkers[1].sleep();
            }
        });
    }
}
