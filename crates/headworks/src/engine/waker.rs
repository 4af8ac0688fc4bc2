//! How another thread gets a shard out of its sleep: a flag and an eventfd.
//!
//! The first wake-up raises the [`WakeFlag`]'s flag and writes the eventfd; those that follow see the flag raised and return. The
//! engine lowers the flag when it hands out `Event::Woken`, and the shard looks at its rings after that, so what was said
//! before any of the coalesced wake-ups is seen. An eventfd rather than a message from ring to ring (MSG_RING), because the
//! waking thread need not be a shard nor have a ring (signals, control, accepting threads), it is the same for both engines, and
//! the difference (52 against 69 us of round trip, most of it the other CPU's awakening) is spared by polling before sleep.
//!
//! Both engines watch the eventfd for *edges*: each write is one event, and it is never read. So a wake-up costs the
//! woken thread no system call. The counter would overflow after 2^64 wake-ups.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::sync::{AtomicBool, CachePadded, Ordering};
use crate::system::{eventfd, ring};

/// Coalesces wake-ups: only the first since the last answer has to make a noise.
#[derive(Debug)]
pub struct WakeFlag {
    rung: CachePadded<AtomicBool>,
}

impl Default for WakeFlag {
    fn default() -> Self {
        Self { rung: CachePadded(AtomicBool::new(false)) }
    }
}

impl WakeFlag {
    /// After saying something: whether this caller has to make the noise.
    #[must_use = "a silent bell wakes nobody"]
    pub fn ring(&self) -> bool {
        // AcqRel: Release pairs with the Acquire in `answer`, so that what was said before is seen after it, also by those
        // who stay silent because the flag was up.
        !self.rung.0.swap(true, Ordering::AcqRel)
    }

    /// After the noise and before looking at what was said: whether there was reason.
    pub fn answer(&self) -> bool {
        // AcqRel: Acquire pairs with the Release in `ring`. A swap, not a store: it reads the latest ring.
        self.rung.0.swap(false, Ordering::AcqRel)
    }
}

#[derive(Debug)]
struct Inner {
    bell: WakeFlag,
    eventfd: OwnedFd,
}

/// Makes a shard's [`super::Engine::turn`] return with [`super::Event::Woken`], from any thread, once for many calls.
/// It may outlive the engine; it then has no effect.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Inner>);

impl Waker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Inner { bell: WakeFlag::default(), eventfd: eventfd()? })))
    }

    /// Wakes the shard, or makes its next sleep end at once.
    pub fn wake(&self) {
        if self.0.bell.ring() {
            self.make_noise();
        }
    }

    /// An edge on the eventfd.
    pub(super) fn make_noise(&self) {
        ring(&self.0.eventfd);
    }

    /// What the engine watches, for edges.
    pub(super) fn fd(&self) -> RawFd {
        self.0.eventfd.as_raw_fd()
    }

    /// For the engine, after an edge: whether to hand out `Woken`.
    pub(super) fn answer(&self) -> bool {
        self.0.bell.answer()
    }
}
