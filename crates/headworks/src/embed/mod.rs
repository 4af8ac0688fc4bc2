//! The path inside another program: an owner has devices and their shard, any number of threads feed it.
//!
//! ```text
//!   feeder 0: Handle --bios----> ring --.                                   .--> ring --replies--> feeder 0
//!   feeder 1: Handle --bios----> ring --+--> driver: shard.handle, execute --+--> ring --replies--> feeder 1
//!     ..                                '   (a feeder, or the owner's thread)'       ..
//!   Owner ------commands-------> channel: hot-add and hot-remove of devices and volumes, shutdown
//! ```
//!
//! The thread that has the CPU drives the shard ([`Drive::Feeders`]): a feeder that finds the right free carries its batch in, and what waits in
//! the rings of others; one that finds it driven leaves its batch in its ring. The owner's thread drives for timers, commands and
//! completions of file operations; it waits for these without the right.
//!
//! Feeders wait for no lock: each submits batches on a ring of its own and gets replies in batches on another; a sleeping end is
//! woken once. The bytes are in slots that are mapped once; a slot belongs to its feeder until it is put, to the path until
//! it is completed, and then to the feeder again.
//!
//! Each handle has a share of the devices and of the cache, and limits of bytes and I/Os a second, as an export of the server has
//! ([`Owner::set_share`], [`Owner::set_limits`]); what waits for a limit keeps its slot.
//!
//! Invariants: a ring has room for every message of its handle, so it is never full; the shard has room for every slot of every
//! handle, so no bio is answered `NoMemory`; the owner ends when its cached volumes are flushed and no device has memory of
//! it, or when the shutdown time-out expires: then that memory is leaked, never freed.

#[cfg(feature = "tokio")]
mod asynchronous;
mod blocking;
mod driver;
mod driving;
mod handle;
mod io;
mod left_operations;
mod lent;
mod owner;
mod parker;
mod removal;
mod thread;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncHandle;
pub use handle::{Handle, RingCounts, WaitOutcome};
pub use io::{Io, IoCompletion, RejectedIo, Slot};
pub use lent::{LentBytes, NotLent};
pub use owner::{Owner, OwnerReport};

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use headworks_core::elevator::Elevator;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, QueueOptions, ReplyStage, Status};

use crate::device::{Device, Safe, SafeDevice};
use crate::engine::EngineChoice;
use crate::memory::{Mapping, PAGE, Span};
use driving::SharedDriver;
use parker::Parker;

/// The largest number of handles of one owner.
const HANDLES_MAX: usize = 1024;
/// The largest depth of a handle.
const DEPTH_MAX: u32 = 4096;
/// The most bytes of all slots of a handle.
const BUFFERS_MAX: usize = 1 << 32;

/// Options of an owner. Memory is allocated for all of it at the start.
#[derive(Clone, Copy, Debug)]
pub struct OwnerOptions {
    /// The number of handles, 1..=1024.
    pub handles: usize,
    /// Slots of each handle: the I/Os that it can have in flight, 1..=4096.
    pub depth: u32,
    /// Bytes of a slot, at least 1: the largest I/O. At least the block size of every volume.
    pub slot_bytes: usize,
    /// The page cache; off by default. Its `writers_max` is at least the number of handles and one more.
    pub cache: CacheOptions,
    /// Limits of dirty pages and throttling of writers.
    pub dirty: DirtyOptions,
    /// The most devices at a time, 1..=64.
    pub devices_max: u16,
    /// The most volumes at a time, 1..=4096.
    pub volumes_max: u16,
    /// The most tags (`nr_requests`) of all devices together.
    pub tags_max: u32,
    /// How the owner waits for disks and feeders.
    pub engine: EngineChoice,
    /// The threads that drive the shard. A lone feeder that drives spends 190 ns of CPU for each I/O (batches of 8, null device,
    /// mq-deadline, AMD EPYC); feeders and an owner's thread on another CPU spend 430 together.
    pub drive: Drive,
    /// The CPU of the owner's thread; `None` leaves it to the kernel.
    pub cpu: Option<usize>,
    /// How long the owner polls before it sleeps, in nanoseconds. 50 us: twice the cost of a wake-up of another CPU.
    pub poll_ns: u64,
    /// How long an ending owner waits for its devices. When it expires, memory that a device may still use is leaked.
    pub shutdown_timeout: Duration,
}

/// The threads that drive the shard of an owner: call it, and carry out its actions with the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// Any thread that submits or waits. It drives for others, too, for at most about half a millisecond at a time, so [`Handle::submit`] may
    /// take that long. What it reads from the cache wakes no other thread; file operations are started by the owner's thread.
    #[default]
    Feeders,
    /// The owner's thread alone: submitting never costs more than a push into a ring.
    Thread,
}

impl Default for OwnerOptions {
    /// One handle with 32 slots of 4 KiB, no cache, and room for 8 devices and 64 volumes.
    fn default() -> Self {
        Self {
            handles: 1,
            depth: 32,
            slot_bytes: 4096,
            cache: CacheOptions::default(),
            dirty: DirtyOptions::default(),
            devices_max: 8,
            volumes_max: 64,
            tags_max: 2048,
            engine: EngineChoice::Auto,
            drive: Drive::Feeders,
            cpu: None,
            poll_ns: 50_000,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

impl OwnerOptions {
    fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |option, message: String| Err(ConfigError::new(option, message));
        if !(1..=HANDLES_MAX).contains(&self.handles) {
            return wrong("handles", format!("{} is not within 1..={HANDLES_MAX}", self.handles));
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return wrong("depth", format!("{} is not within 1..={DEPTH_MAX}", self.depth));
        }
        if !(1..=BUFFERS_MAX / self.depth as usize).contains(&self.slot_bytes) {
            let message = format!("{} slots of {} bytes exceed 4 GiB", self.depth, self.slot_bytes);
            return wrong("slot_bytes", message);
        }
        if self.devices_max == 0 || self.volumes_max == 0 {
            return wrong("devices_max", "an owner has room for a device and a volume".to_owned());
        }
        let writers = self.handles as u32 + 1;
        if self.cache.is_on() && self.cache.writers_max < writers {
            let message = format!(
                "{} is less than {writers}, one for each handle and one for the owner: write errors would be lost",
                self.cache.writers_max
            );
            return wrong("writers_max", message);
        }
        Ok(())
    }
}

/// A device to be added to an owner, and its queue.
pub struct DeviceSetup {
    /// The device. It runs on the owner's thread and on those of feeders, one at a time ([`Drive`]).
    pub device: Box<dyn Device>,
    /// Options of the device's queue.
    pub queue: QueueOptions,
    /// An elevator in place of the one that `queue` names.
    pub elevator: Option<Box<dyn Elevator>>,
}

impl DeviceSetup {
    /// A device with the elevator that `queue` names.
    #[must_use]
    pub fn new(device: impl Device + 'static, queue: QueueOptions) -> Self {
        Self::boxed(Box::new(device), queue)
    }

    /// As [`DeviceSetup::new`], of a device without unsafe code.
    #[must_use]
    pub fn safe(device: impl SafeDevice + 'static, queue: QueueOptions) -> Self {
        Self::new(Safe::new(device), queue)
    }

    /// As [`DeviceSetup::new`], of a device whose type is not known.
    #[must_use]
    pub fn boxed(device: Box<dyn Device>, queue: QueueOptions) -> Self {
        Self { device, queue, elevator: None }
    }

    /// Uses an elevator of the caller.
    #[must_use]
    pub fn elevator(mut self, elevator: impl Elevator + 'static) -> Self {
        self.elevator = Some(Box::new(elevator));
        self
    }
}

/// The reply to a bio, as it goes over the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply {
    slot: u32,
    status: Status,
    hole: bool,
    stage: ReplyStage,
}

/// The memory of one handle's slots. Each slot begins at a page, so that it is aligned for direct I/O of any block size.
pub(crate) struct Buffers {
    mapping: Mapping,
    slot_bytes: usize,
    stride: usize,
    /// By slot, where the data of its I/O are: in the slot, or in memory of the program.
    data: Box<[Cell<Span>]>,
}

// SAFETY: plain memory, reached by raw pointers only; a slot's bytes and its entry of `data` belong to the feeder or to the path, never
// to both, and rings hand them over.
unsafe impl Sync for Buffers {}

impl Buffers {
    fn new(depth: u32, slot_bytes: usize) -> Result<Self, ConfigError> {
        let stride = slot_bytes.next_multiple_of(PAGE);
        let mapping = Mapping::new(depth as usize * stride).map_err(|error| {
            ConfigError::new("slot_bytes", format!("no memory for the slots: {error}"))
        })?;
        let data = vec![Cell::new(Span::EMPTY); depth as usize].into();
        Ok(Self { mapping, slot_bytes, stride, data })
    }

    #[inline]
    fn slot(&self, slot: u32) -> *mut u8 {
        self.mapping.at(slot as usize * self.stride, self.slot_bytes)
    }
}

const RUNNING: u8 = 0;
/// The owner ends when every handle is dropped.
const JOINING: u8 = 1;
/// The owner ends now.
const SHUTTING_DOWN: u8 = 2;

/// What the owner's thread, the [`Owner`] and the handles know of each other.
#[derive(Default)]
struct OwnerState {
    /// Handles that were dropped.
    closed: AtomicUsize,
    /// The owner's thread has ended, or a driver panicked: there are no more replies.
    ended: AtomicBool,
    /// A command is in the channel.
    command: AtomicBool,
    /// RUNNING, JOINING or SHUTTING_DOWN.
    end: AtomicU8,
    /// Those of the handles.
    parkers: Vec<Arc<Parker>>,
}

impl OwnerState {
    fn close_handle(&self) {
        // Release: pairs with `closed_handles`; what the handle pushed before is visible to a thread that counts it.
        self.closed.fetch_add(1, Ordering::Release);
    }

    fn closed_handles(&self) -> usize {
        // Acquire: pairs with `close_handle`.
        self.closed.load(Ordering::Acquire)
    }

    /// Ends the waits of the handles.
    fn set_ended(&self) {
        // Release: pairs with `is_ended`.
        self.ended.store(true, Ordering::Release);
        self.parkers.iter().for_each(|parker| parker.wake());
    }

    fn is_ended(&self) -> bool {
        // Acquire: pairs with `set_ended`; the last replies are in the rings before.
        self.ended.load(Ordering::Acquire)
    }

    /// Returns true if the owner, of so many handles, is to end.
    fn is_ending(&self, handles: usize) -> bool {
        // Acquire: pairs with the Release in `Owner::end`.
        match self.end.load(Ordering::Acquire) {
            RUNNING => false,
            JOINING => self.closed_handles() == handles,
            _ => true,
        }
    }
}

/// Ends the waits of the handles when the owner's thread ends, also by a panic or an error of the engine.
struct ShutdownGuard(Arc<SharedDriver>);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        if let Some(mut driver) = self.0.right.take_closed() {
            // Removals end, for those who wait for them. The rest is leaked: devices may still use the memory.
            driver.removals.clear();
            std::mem::forget(driver);
        }
        self.0.state.set_ended();
    }
}

#[cfg(test)]
mod tests;
