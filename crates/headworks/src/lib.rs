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
//! - A [`Device`] moves bytes and has a queue ([`QueueOptions`]): [`FileDevice`], [`MemDevice`], [`NullDevice`], wrappers that
//!   delay or fail, or one of your own. A volume is a range of a device, or an image on it.
//! - A [`Handle`] is a feeder's access: it puts an [`Io`] with a [`Slot`], its buffer, into a batch, and reaps completions. A
//!   thread waits in [`Handle::wait`], polls the handle's file descriptor, or awaits `AsyncHandle`. [`Handle::lend`] reads data in
//!   memory where they are, without a copy.
//! - [`driver`] has the parts from which such a thread is built, for programs that bring a loop of their own.
//!
//! # Example
//!
//! ```
//! use headworks::{DeviceSetup, Io, MemDevice, Owner, OwnerOptions, VolumeOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (owner, mut handles) = Owner::start(OwnerOptions::default())?;
//! let disk = DeviceSetup::new(MemDevice::new(1 << 20)?, MemDevice::queue_options());
//! let options = VolumeOptions { size: 1 << 20, block_size: 512, ..Default::default() };
//! let volume = owner.add_volume(owner.add_device(disk)?, options)?;
//!
//! let handle = &mut handles[0];
//! let slot = handle.slot().ok_or("no free slot")?;
//! handle.put(volume, slot, Io::read(0, 4096))?;
//! let mut completions = Vec::new();
//! while handle.reap(1, &mut completions) == 0 {
//!     handle.wait();
//! }
//! completions[0].status?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `tokio`: `AsyncHandle`, completions as a future.
//!
//! The library installs no signal handler and starts no threads but the owner's and those of its engine.

pub mod cache_memory;
mod combining;
mod device;
// The model checker checks rings and wake-ups, not threads and sockets.
#[cfg(not(loom))]
mod embed;
mod engine;
mod executor;
mod memory;
mod owner_call;
mod ring;
mod runtime;
pub mod safe_open;
mod size;
#[cfg(doctest)]
mod soundness;
mod sync;

pub use headworks_core;
pub use headworks_core::{CacheOptions, ConfigError, QueueOptions, VolumeOptions};

#[doc(hidden)]
pub use device::testing;
pub use device::{
    BaseFormats, BaseImage, BaseImageOptions, Command, CommandBatch, CommitOptions, DelayDevice,
    DelayOptions, Device, DeviceIo, Direct, ErrorDevice, ErrorOptions, Fates, FileDevice,
    FileOptions, FilesystemDevice, FoundFile, Identity, ImageWriter, Loss, MemDevice, NewBase,
    NewOverlay, NullDevice, OpenBaseImage, OpenFile, OpenOverlay, OpenVolume, OverlayBase,
    OverlayBaseKind, OverlayDevice, OverlayLayer, OverlayOptions, OverlayParts, OverlayProgress,
    OverlaySnapshot, PowercutDevice, PowercutEnd, PowercutOptions, PowercutReport, Probability,
    REMOTE_BASE, ResetOptions, SizeWatch, is_overlay, sync_directory,
};
#[cfg(all(feature = "tokio", not(loom)))]
pub use embed::AsyncHandle;
#[cfg(not(loom))]
pub use embed::{
    DeviceSetup, Drive, Handle, Io, IoCompletion, LentBytes, NotLent, Owner, OwnerOptions,
    OwnerReport, RejectedIo, RingCounts, Slot, WaitOutcome,
};
pub use engine::EngineChoice;
#[doc(hidden)]
pub use memory::copying;
pub use size::display_size;

/// The parts of a thread that drives a shard: executor, engines, memory, rings and clock.
///
/// The owner of this crate's embedding API is such a thread, and so are the shards of the NBD server. A driver of its own
/// takes inputs from an [`Engine`](driver::Engine) and from its clients, gives them to a
/// [`Shard`](headworks_core::Shard), and has an [`Executor`](driver::Executor) carry out the actions.
pub mod driver {
    #[cfg(loom)]
    #[doc(hidden)]
    pub use crate::combining::{Driving, DrivingRight, Leave, Take};
    #[cfg(loom)]
    #[doc(hidden)]
    pub use crate::engine::waker::WakeFlag;
    pub use crate::engine::{
        DiskDone, DiskKind, DiskOp, DiskQueue, Engine, Event, Interest, PLACES, Wait, Waker, Watch,
        open_engine,
    };
    pub use crate::executor::{ActionSink, Executor, fetch_ahead};
    pub use crate::memory::{Buffer, Mapping, Pool, Populator, Span};
    #[cfg(loom)]
    #[doc(hidden)]
    pub use crate::owner_call::OwnerCall;
    pub use crate::ring::{Consumer, Producer, Sleeper, ring};
    pub use crate::runtime::{Clock, Polling, pin_thread};
    #[cfg(loom)]
    #[doc(hidden)]
    pub use crate::sync::Arc;
}
