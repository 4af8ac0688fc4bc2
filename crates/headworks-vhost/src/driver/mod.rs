//! A front end and driver without a virtual machine: it tests devices and measures them.
//!
//! ```text
//!   Driver::connect --> negotiation, memory, rings started --> queues
//!   Queue: put .. put, submit, reap, wait                       one thread each
//!   Driver::reconnect --> the same memory and in-flight region on a new connection: the device answers what the last one had taken
//! ```
//!
//! Each queue has slots: a header, a status byte, an indirect table and a buffer each, in one memfd that is the whole memory of the machine.
//! A slot is one request at a time. Requests are direct chains or one indirect descriptor; data may be cut into several descriptors.

mod control;
pub(crate) mod memory;
mod queue;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::features::{self, protocol};
use crate::wire::{InFlightDescription, u16_at, u32_at, u64_at};
use crate::{QUEUE_SIZE_MAX, QUEUES_MAX, SECTOR};
use control::Control;
use memory::DriverMemory;

pub use queue::{Queue, QueueCounts, SlotStatus, Waited, Waiting};

/// Most requests of a queue: a direct chain takes at least three descriptors.
pub const DEPTH_MAX: u16 = 256;

/// How a driver connects and what it asks for.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// Path of the device's socket.
    pub socket: PathBuf,
    /// Number of queues, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Requests in flight of each queue, 1 to [`DEPTH_MAX`].
    pub depth: u16,
    /// Bytes of each request's buffer.
    pub buffer_bytes: u32,
    /// Data descriptors of a request, 1 to 126; the buffer is cut evenly.
    pub pieces: u16,
    /// Requests are indirect tables, if the device offers them.
    pub is_indirect: bool,
    /// How a queue waits for answers.
    pub waiting: Waiting,
    /// Device features that are never negotiated, bits of [`features`].
    pub without: u64,
    /// Longest time that the device may take for a message.
    pub timeout: Duration,
}

impl DriverOptions {
    /// One queue of 32 requests of 4 KiB, direct, sleeping.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            queues: 1,
            depth: 32,
            buffer_bytes: 4096,
            pieces: 1,
            is_indirect: false,
            waiting: Waiting::Sleep,
            without: 0,
            timeout: Duration::from_secs(10),
        }
    }

    fn check(&self) -> Result<(), DriverError> {
        let fits = (1..=QUEUES_MAX).contains(&self.queues)
            && (1..=DEPTH_MAX).contains(&self.depth)
            && (1..=126).contains(&self.pieces)
            && self.buffer_bytes > 0
            && self.buffer_bytes.is_multiple_of(u32::from(self.pieces));
        let direct = u32::from(self.depth) * (u32::from(self.pieces) + 2);
        if fits && (self.is_indirect || direct <= u32::from(QUEUE_SIZE_MAX)) {
            return Ok(());
        }
        Err(DriverError::Usage(format!(
            "{} queues of {} requests of {} bytes in {} pieces: at most {QUEUES_MAX} queues of {DEPTH_MAX} requests in 126 equal pieces; \
             direct chains of a queue have at most {QUEUE_SIZE_MAX} descriptors",
            self.queues, self.depth, self.buffer_bytes, self.pieces
        )))
    }

    /// Descriptors of a ring: room for every slot's chain.
    pub(crate) fn queue_size(&self) -> u16 {
        let each = if self.is_indirect { 1 } else { u32::from(self.pieces) + 2 };
        let needed = (u32::from(self.depth) * each).next_power_of_two();
        needed.clamp(2, u32::from(QUEUE_SIZE_MAX)) as u16
    }
}

/// Why a driver failed.
#[derive(Debug)]
pub enum DriverError {
    /// Options that fit no device; a sentence.
    Usage(String),
    /// The socket failed, or the device was silent for too long.
    Io(io::Error),
    /// The device answered something that the protocol does not allow, or lacks a feature; a sentence.
    Device(String),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("the device does not answer")
            }
            Self::Io(error) => write!(f, "connection to the device: {error}"),
            Self::Usage(sentence) | Self::Device(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for DriverError {}

impl From<io::Error> for DriverError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The disk as the device describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Unit of addresses and lengths in bytes.
    pub block_size: u32,
    /// Most data descriptors of a request.
    pub segments_max: u32,
    /// Number of queues that the device offers.
    pub queues: u16,
    /// The device refuses writes.
    pub is_read_only: bool,
}

/// A driver that is connected to a device.
#[derive(Debug)]
pub struct Driver {
    options: DriverOptions,
    control: Control,
    memory: Arc<DriverMemory>,
    queues: Vec<Queue>,
    in_flight: Option<(InFlightDescription, OwnedFd)>,
    capacity: Capacity,
    features: u64,
}

impl Driver {
    /// Connects, negotiates and starts all queues.
    pub fn connect(options: DriverOptions) -> Result<Self, DriverError> {
        options.check()?;
        let mut control = Control::connect(&options.socket, options.timeout)?;
        let (features, capacity) = control.negotiate(wanted(&options))?;
        if options.queues > capacity.queues {
            return Err(DriverError::Usage(format!(
                "the device has {} queues, not {}",
                capacity.queues, options.queues
            )));
        }
        let queue_size = options.queue_size();
        let memory = Arc::new(DriverMemory::new(&options, queue_size)?);
        let is_indirect = options.is_indirect && features & features::INDIRECT != 0;
        if options.is_indirect && !is_indirect {
            return Err(DriverError::Device("the device has no indirect descriptors".to_owned()));
        }
        let queue = |index| Queue::new(&memory, &options, index, features);
        let queues = (0..options.queues).map(queue).collect::<io::Result<Vec<_>>>()?;
        let in_flight = match control.has(protocol::INFLIGHT_SHMFD) {
            true => Some(control.make_in_flight(options.queues, queue_size)?),
            false => None,
        };
        let mut driver = Self { options, control, memory, queues, in_flight, capacity, features };
        driver.start(|_| 0)?;
        Ok(driver)
    }

    /// Connects again after the device's process has ended, with the same memory, rings and in-flight region.
    ///
    /// Requests in flight stay in flight: with an in-flight region the new process answers them, without one those that the last process
    /// had taken are lost.
    pub fn reconnect(&mut self) -> Result<(), DriverError> {
        // The last connection ends, whose place a device may give to this one.
        self.queues.iter_mut().for_each(|queue| queue.set_peer(None));
        self.control = Control::connect(&self.options.socket, self.options.timeout)?;
        let (features, capacity) = self.control.negotiate(self.features)?;
        if features != self.features {
            return Err(DriverError::Device(format!(
                "the device has features {features:#x}, and had {:#x}",
                self.features
            )));
        }
        self.capacity = capacity;
        let used: Vec<u16> = self.queues.iter().map(Queue::used_index).collect();
        self.start(|queue| used[usize::from(queue)])?;
        // The last process may have died between a publication and its notification, and so may this one not know of a kick.
        self.queues.iter_mut().for_each(Queue::kick);
        Ok(())
    }

    /// Shares memory and rings, and enables the queues.
    fn start(&mut self, base: impl Fn(u16) -> u16) -> Result<(), DriverError> {
        if let Some((about, fd)) = &self.in_flight {
            self.control.share_in_flight(about, fd)?;
        }
        self.control.share_memory(&self.memory)?;
        for queue in &mut self.queues {
            self.control.start_ring(queue, base(queue.index()))?;
            queue.set_peer(Some(self.control.socket()?));
        }
        Ok(())
    }

    /// The disk, as the device described it when the driver connected or asked last.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Asks for the configuration space again.
    pub fn read_capacity(&mut self) -> Result<Capacity, DriverError> {
        self.capacity = self.control.capacity(self.features)?;
        Ok(self.capacity)
    }

    /// Negotiated device features, bits of [`features`].
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Whether requests in flight survive the device's process.
    #[must_use]
    pub fn has_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The queues: one thread may use each.
    pub fn queues(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    /// The process of the device, as the socket's peer.
    #[must_use]
    pub fn device_process(&self) -> Option<u32> {
        self.control.peer()
    }

    /// Stops a ring when nothing of it is in flight; returns its base.
    pub fn stop_queue(&mut self, index: u16) -> Result<u16, DriverError> {
        self.control.stop_ring(index)
    }

    /// Starts a ring again that was stopped with this base.
    pub fn start_queue(&mut self, index: u16, base: u16) -> Result<(), DriverError> {
        self.control.start_ring(&self.queues[usize::from(index)], base)
    }
}

/// The device features that the options ask for.
fn wanted(options: &DriverOptions) -> u64 {
    let optional = features::ALL & !(features::LOG_ALL | options.without);
    if options.is_indirect { optional } else { optional & !features::INDIRECT }
}

/// Reads the fields of a configuration space.
fn capacity_of(space: &[u8], features: u64, queues: u16) -> Capacity {
    Capacity {
        size: u64_at(space, 0).saturating_mul(SECTOR),
        block_size: u32_at(space, 20).max(SECTOR as u32),
        segments_max: u32_at(space, 12),
        queues: if features & features::MQ != 0 { queues.min(u16_at(space, 34)) } else { 1 },
        is_read_only: features & features::RO != 0,
    }
}
