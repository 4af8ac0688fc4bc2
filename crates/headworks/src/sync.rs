//! The atoms of concurrency, named once: std's in the product, loom's under `cfg(loom)`.
//!
//! [`crate::ring`] and [`crate::engine::waker`] use these and nothing else, so that the very code which runs in the server is
//! the code that the model checker takes apart (tests/loom_ring.rs). Cells are entered through `with` and `with_mut`, because
//! that is where loom looks for two threads in one cell; std's version compiles to nothing.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
};

#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

/// A cell whose users guarantee exclusive access by other means.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Enters the cell to read.
    pub fn with<R>(&self, enter: impl FnOnce(*const T) -> R) -> R {
        enter(self.0.get())
    }

    /// Enters the cell to write.
    pub fn with_mut<R>(&self, enter: impl FnOnce(*mut T) -> R) -> R {
        enter(self.0.get())
    }
}

/// A value alone on its cache lines: 128 bytes, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);
