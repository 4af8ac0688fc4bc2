//! The block I/O path as a library: the mechanism that carries out the decisions of [`headworks_core`].
//!
//! `embed` is the path inside another program; `executor` carries out a shard's actions; `device` moves bytes; `engine` waits
//! for disks and sockets; `memory` holds every byte of data; `runtime` has clock, polling and threads.

pub mod device;
// The model checker looks at rings, not at threads and sockets.
#[cfg(not(loom))]
pub mod embed;
pub mod engine;
pub mod executor;
pub mod memory;
pub mod ring;
pub mod runtime;
mod size;
#[cfg(doctest)]
mod soundness;
pub mod sync;

pub use runtime::{Clock, map_frames, pin};
pub use size::display_size;
