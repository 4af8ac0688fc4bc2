//! The block I/O path as a library: the mechanism that carries out the decisions of [`headworks_core`].
//!
//! The root has what an embedding program needs; [`driver`] has the parts from which the thread of a shard is built.

mod device;
// The model checker checks rings and wake-ups, not threads and sockets.
#[cfg(not(loom))]
mod embed;
mod engine;
mod executor;
mod memory;
mod ring;
mod runtime;
mod size;
#[cfg(doctest)]
mod soundness;
mod sync;

pub use headworks_core;
pub use headworks_core::{
    CacheOptions, ConfigError, DeviceId, IoError, QueueOptions, VolumeId, VolumeOptions, WriteMode,
};

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use device::testing;
pub use device::{
    Command, CommandBatch, DelayDevice, DelayOptions, Device, DeviceIo, Direct, ErrorDevice,
    ErrorOptions, FileDevice, FileMode, FileOptions, Identity, MemDevice, NullDevice, OpenFile,
    Probability, SizeWatch,
};
#[cfg(all(feature = "tokio", not(loom)))]
pub use embed::AsyncHandle;
#[cfg(not(loom))]
pub use embed::{
    DeviceSetup, Handle, Io, IoCompletion, Owner, OwnerOptions, OwnerReport, RejectedIo,
    RingCounts, Slot, WaitOutcome,
};
pub use engine::EngineChoice;
pub use size::display_size;

/// The parts of a thread that drives a shard: executor, engines, memory, rings and clock.
///
/// The owner of this crate's embedding API is such a thread, and so are the shards of the NBD server. A driver of its own
/// takes inputs from an [`Engine`](driver::Engine) and from its clients, gives them to a
/// [`Shard`](headworks_core::Shard), and has an [`Executor`](driver::Executor) carry out the actions.
pub mod driver {
    #[cfg(loom)]
    #[doc(hidden)]
    pub use crate::engine::waker::WakeFlag;
    pub use crate::engine::{
        DISK_DEPTH_MAX, DiskDone, DiskKind, DiskOp, DiskQueue, Engine, Event, Interest, Wait,
        Waker, open_engine,
    };
    pub use crate::executor::{ActionSink, Executor};
    pub use crate::memory::{Buffer, Mapping, Pages, Pool, Span, give_back, tables_in_huge_pages};
    pub use crate::ring::{Consumer, Producer, Sleeper, ring};
    pub use crate::runtime::{Clock, Polling, map_frames, pin_thread};
    #[cfg(loom)]
    #[doc(hidden)]
    pub use crate::sync;
}
