//! Linux's block I/O path as a library: queues, elevators, a page cache and devices, in user space.
//!
//! For programs that serve or use disk images and want what the kernel's block layer gives: merging, scheduling, fair sharing,
//! flush and FUA, time-outs, write-back caching. [`headworks_core`] decides, without I/O, threads or clock; this crate carries
//! out the decisions over real bytes, on io_uring or epoll.
//!
//! # Concepts
//!
//! - An [`Owner`] is a thread with devices, volumes and optionally a page cache. They are added and removed while it runs. The threads
//!   that submit drive the path themselves ([`Drive`]); the owner's thread waits for files.
//! - A [`Device`] moves bytes and has a queue ([`QueueOptions`]): [`FileDevice`], [`MemDevice`], [`NullDevice`], one of
//!   the crate `headworks-images` (overlays, qcow2, delays, errors), or one of your own: a [`SafeDevice`] needs no unsafe code, a [`Filter`] looks at what passes to another. A volume is a
//!   range of a device, or an image on it.
//! - A [`Handle`] is a feeder's access: it puts an [`Io`] with a [`Slot`], its buffer, into a batch, and reaps completions. A
//!   thread waits in [`Handle::wait`], polls the handle's file descriptor, or awaits `AsyncHandle`. [`Handle::lend`] reads data in
//!   memory where they are, without a copy. [`Handle::read`], [`Handle::write`] and [`Handle::flush`] are one call for one I/O.
//! - Handles divide devices and cache by weight and tenant ([`Owner::set_share`]), and may be limited ([`Owner::set_limits`]).
//! - [`driver`] has the parts from which such a thread is built, for programs that bring a loop of their own.
//!
//! # Example
//!
//! ```
//! use headworks::{DeviceSetup, MemDevice, Owner, OwnerOptions, VolumeOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (owner, mut handles) = Owner::start(OwnerOptions::default())?;
//! let disk = DeviceSetup::new(MemDevice::new(1 << 20)?, MemDevice::queue_options());
//! let options = VolumeOptions { size: 1 << 20, block_size: 512, ..Default::default() };
//! let volume = owner.add_volume(owner.add_device(disk)?, options)?;
//!
//! let mut bytes = [0; 4096];
//! handles[0].write(volume, 8192, &[7; 4096])?;
//! handles[0].flush(volume)?;
//! handles[0].read(volume, 8192, &mut bytes)?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/counting.rs` is a whole program: a device around another, a page cache, mq-deadline, two feeders, no unsafe code;
//! `examples/shares.rs` one whose clients have weights and limits.
//!
//! # Features
//!
//! - `tokio`: `AsyncHandle`, completions as a future.
//!
//! The library installs no signal handler and starts no threads but the owner's and those of its engine.

#[cfg(test)]
extern crate self as headworks;

mod combining;
mod device;
// The model checker checks rings and wake-ups, not threads and sockets.
#[cfg(not(loom))]
mod embed;
mod engine;
mod executor;
#[doc(hidden)]
pub mod house;
mod memory;
mod owner_call;
mod ring;
mod runtime;
mod safe_open;
mod size;
#[cfg(doctest)]
mod soundness_tests;
mod sync;
mod system;
/// The fixtures of the crates above, over the types of this one.
#[cfg(test)]
#[path = "../../headworks-testing/src/lib.rs"]
pub mod testing;

pub use headworks_core;
pub use headworks_core::{
    CacheOptions, Completion, ConfigError, Instant, IoError, Op, QueueOptions, Scheduler, VolumeId,
    VolumeOptions, WriteMode,
};

pub use device::{
    Answers, Command, CommandBatch, Device, DeviceIo, Direct, FileDevice, FileOptions, Filter,
    FilterDevice, Image, MemDevice, NullDevice, OpenFile, SafeDevice, Work,
};
#[cfg(all(feature = "tokio", not(loom)))]
pub use embed::AsyncHandle;
#[cfg(not(loom))]
pub use embed::{
    DeviceSetup, Drive, Handle, Io, IoCompletion, LentBytes, NotLent, Owner, OwnerOptions,
    OwnerReport, RejectedIo, RingCounts, Slot, WaitOutcome,
};
pub use engine::EngineChoice;

/// The parts of a thread that drives a shard: executor, engines and clock.
///
/// The owner of this crate's embedding API is such a thread, and so are the shards of the NBD server. A driver of its own
/// takes inputs from an [`Engine`](driver::Engine) and from its clients, gives them to a
/// [`Shard`](headworks_core::Shard), and has an [`Executor`](driver::Executor) carry out the actions.
pub mod driver {
    pub use crate::engine::{
        DiskDone, DiskKind, DiskOp, DiskQueue, Engine, Event, Interest, Wait, Waker, Watch,
        open_engine,
    };
    pub use crate::executor::{ActionSink, Executor};
    pub use crate::memory::Span;
    pub use crate::runtime::Clock;
}
