//! A handle in a tokio program: completions as a future, on tokio's own `AsyncFd`.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::parker::Parker;
use super::{Handle, IoCompletion, WaitOutcome};

/// The eventfd of a handle, which stays open while it is registered.
struct EventFd(Arc<Parker>);

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.eventfd().as_raw_fd()
    }
}

/// A [`Handle`] whose completions are awaited on a tokio runtime.
///
/// Slots, [`Handle::put`] and [`Handle::submit`] are those of the handle, which [`AsyncHandle::get_mut`] returns. Needs the
/// feature `tokio`.
pub struct AsyncHandle {
    fd: AsyncFd<EventFd>,
    handle: Handle,
}

impl AsyncHandle {
    /// Registers the handle's file descriptor with the current runtime.
    ///
    /// # Errors
    /// The runtime cannot register the descriptor.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn new(handle: Handle) -> io::Result<Self> {
        let eventfd = EventFd(handle.parker());
        // SAFETY: the descriptor is always the same, and open as long as the parker, which `fd` keeps.
        let fd = unsafe { AsyncFd::register_with_interest(eventfd, Interest::READABLE)? };
        Ok(Self { fd, handle })
    }

    /// The handle that it wraps.
    #[must_use]
    pub fn get_ref(&self) -> &Handle {
        &self.handle
    }

    /// The handle, to put and submit I/Os.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut Handle {
        &mut self.handle
    }

    /// Deregisters and returns the handle.
    #[must_use]
    pub fn into_inner(self) -> Handle {
        self.handle
    }

    /// Submits the batch, and appends up to `limit` completions as soon as there is one. The outcome is `Ready` after at least
    /// one, and else the reason why none will come. Cancel safe: a dropped future takes no completion.
    ///
    /// # Errors
    /// The runtime's I/O driver has ended.
    pub async fn reap(
        &mut self,
        limit: usize,
        completions: &mut Vec<IoCompletion>,
    ) -> io::Result<WaitOutcome> {
        loop {
            let handle = &mut self.handle;
            if handle.reap(limit, completions) > 0 {
                return Ok(WaitOutcome::Ready);
            }
            if handle.arm() {
                self.fd.readable_mut().await?.clear_ready();
                continue;
            }
            if handle.outstanding() == 0 {
                return Ok(WaitOutcome::Idle);
            }
            // Not armed with I/Os in flight: there are completions, a wake-up came before, or the owner has ended.
            if handle.is_abandoned() {
                return Ok(WaitOutcome::OwnerEnded);
            }
        }
    }
}
