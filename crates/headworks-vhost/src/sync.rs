//! The atomics of the notification handshake, named once: std's in the product, loom's under `cfg(loom)`.
//!
//! Only [`crate::notify`] uses these, so that the code which runs on rings is the code that the model checker takes apart
//! (tests/loom_notify.rs). Everything else reads guest memory through std's atomics.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU16, Ordering, fence};

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU16, Ordering, fence};
