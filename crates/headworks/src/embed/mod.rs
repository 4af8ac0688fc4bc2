//! The path inside another program: one thread owns a device and its shard, any number of threads feed it.
//!
//! ```text
//!   feeder 0: Handle --bios----> ring --.                                  .--> ring --answers--> feeder 0
//!   feeder 1: Handle --bios----> ring --+--> owner: shard.handle, execute --+--> ring --answers--> feeder 1
//!     ..                                '   (sleeps in its engine)         '       ..
//! ```
//!
//! Nothing is locked: a feeder says what it wants in batches on a ring of its own, the owner answers in batches on another, and
//! whoever sleeps is woken once. The bytes lie in slots that are mapped once; a slot is its feeder's until it is put, the
//! path's until it is answered with its buffer, and then the feeder's again.
//!
//! Invariants: a handle has `depth` slots and a ring has room for as many messages, so a ring is never full; the shard has a
//! place for every slot of every handle, so nothing is answered `NoMemory`; the owner ends when every handle is gone,
//! everything was answered and, if there is a cache, what was dirty is in the device.

mod bed;
mod handle;
mod owner;

pub use handle::{Answer, Handle, Io, RingCounts};
pub use owner::{Ended, Owner};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use headworks_core::elevator::Elevator;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{CacheOptions, ConfigError, QueueOptions, VolumeOptions};

use crate::device::Device;
use crate::engine::EngineChoice;
use crate::memory::Mapping;
use bed::Bed;

/// Most handles of one owner.
pub const HANDLES_MAX: usize = 1024;
/// Most bytes of all slots of a handle.
const BUFFERS_MAX: usize = 1 << 32;

/// What to start.
pub struct OwnerOptions {
    /// The device. It runs on the owner's thread.
    pub device: Box<dyn Device>,
    /// Its queue.
    pub queue: QueueOptions,
    /// Its one volume.
    pub volume: VolumeOptions,
    /// The page cache; without one by default. `volume` says how it is used.
    pub cache: CacheOptions,
    /// How much of it may be dirty, and when writers wait.
    pub dirty: DirtyOptions,
    /// An elevator of the caller's own instead of the one that `queue` names.
    pub elevator: Option<Box<dyn Elevator>>,
    /// Feeders, 1..=1024.
    pub handles: usize,
    /// Slots of each feeder: what it can have in flight, 1..=4096.
    pub depth: u32,
    /// Bytes of a slot's buffer, at least 1.
    pub slot_bytes: usize,
    /// How the owner waits for disks and feeders.
    pub engine: EngineChoice,
    /// The owner's CPU; none leaves it to the kernel.
    pub cpu: Option<usize>,
    /// How long the owner looks for work before it sleeps. 50 us: twice what a wake-up across CPUs costs.
    pub poll_ns: u64,
}

impl OwnerOptions {
    /// One feeder with 32 slots of 4 KiB.
    #[must_use]
    pub fn new(device: Box<dyn Device>, queue: QueueOptions, volume: VolumeOptions) -> Self {
        Self {
            device,
            queue,
            volume,
            cache: CacheOptions::default(),
            dirty: DirtyOptions::default(),
            elevator: None,
            handles: 1,
            depth: 32,
            slot_bytes: 4096,
            engine: EngineChoice::Auto,
            cpu: None,
            poll_ns: 50_000,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=HANDLES_MAX).contains(&self.handles) {
            let message = format!("{} is not within 1..={HANDLES_MAX}", self.handles);
            return Err(ConfigError::new("handles", message));
        }
        if !(1..=4096).contains(&self.depth) {
            return Err(ConfigError::new(
                "depth",
                format!("{} is not within 1..=4096", self.depth),
            ));
        }
        if !(1..=BUFFERS_MAX / self.depth as usize).contains(&self.slot_bytes) {
            let message =
                format!("{} slots of {} bytes exceed the limit", self.depth, self.slot_bytes);
            return Err(ConfigError::new("slot_bytes", message));
        }
        Ok(())
    }
}

/// Starts the owner's thread.
///
/// # Errors
/// An option that cannot be, memory or an engine that is not to be had.
pub fn start(options: OwnerOptions) -> Result<(Owner, Vec<Handle>), ConfigError> {
    options.validate()?;
    owner::start(options)
}

/// The bytes of one handle's slots.
struct Buffers {
    mapping: Mapping,
    slot_bytes: usize,
}

// SAFETY: plain memory, reached by raw pointers only; a slot's bytes are the feeder's or the path's, never both's, and rings
// hand them over.
unsafe impl Sync for Buffers {}

impl Buffers {
    fn new(depth: u32, slot_bytes: usize) -> Result<Self, ConfigError> {
        let mapping = Mapping::new(depth as usize * slot_bytes).map_err(|error| {
            ConfigError::new("slot_bytes", format!("no memory for the slots: {error}"))
        })?;
        Ok(Self { mapping, slot_bytes })
    }

    #[inline]
    fn slot(&self, slot: u32) -> *mut u8 {
        self.mapping.at(slot as usize * self.slot_bytes, self.slot_bytes)
    }
}

/// How the owner and its handles learn of each other's end.
#[derive(Default)]
struct Ends {
    /// Handles that are gone.
    closed: AtomicUsize,
    /// The owner is gone: nothing is answered any more.
    over: AtomicBool,
}

impl Ends {
    fn close(&self) {
        // Release: pairs with `closed`; what the handle pushed before is seen by whoever sees it gone.
        self.closed.fetch_add(1, Ordering::Release);
    }

    fn closed(&self) -> usize {
        // Acquire: pairs with `close`.
        self.closed.load(Ordering::Acquire)
    }

    fn end(&self) {
        // Release: pairs with `is_over`; the last answers are in the rings before.
        self.over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        // Acquire: pairs with `end`.
        self.over.load(Ordering::Acquire)
    }
}

/// Ends the handles' waiting when the owner's thread ends, however it does.
struct Curfew {
    ends: Arc<Ends>,
    beds: Vec<Arc<Bed>>,
}

impl Drop for Curfew {
    fn drop(&mut self) {
        self.ends.end();
        self.beds.iter().for_each(|bed| bed.make_noise());
    }
}

#[cfg(test)]
mod tests;
