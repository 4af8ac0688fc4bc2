//! What a shard's thread waits with: disks, sockets, other threads, time.
//!
//! Two engines behind one seam. `uring` keeps everything on one ring; `threads` uses epoll and a pool of threads that call
//! preadv2 and pwritev2, for places where io_uring is forbidden. Sockets are watched for readiness, one shot at a time, and
//! read and written directly by the frontend: measured equal to receiving on the ring, and one code for both engines.
//!
//! ```text
//!   push, watch, forget          turn: one system call starts all of it and waits         events
//!   (no system call)     --->    for the first of: disk, socket, another thread, time     --->  Disk, Ready, Woken
//! ```
//!
//! Invariants: an operation that was pushed has exactly one `Disk` event; a watch has at most one `Ready`, and none after
//! `forget`; wake-ups coalesce, but none is lost. A turn may end early with no events at all (a signal): callers look at the
//! clock and turn again. An engine belongs to the thread that opened it.

use std::io;
use std::os::fd::RawFd;
use std::str::FromStr;

use headworks_core::{ConfigError, DeviceId, RequestId};

use crate::memory::Span;

mod call;
pub(crate) mod extents;
pub(crate) mod ops;
mod pool;
#[cfg(test)]
mod tests;
mod threads;
mod uring;
pub mod waker;
mod watch;

pub use call::execute;
pub use waker::Waker;

use threads::Threads;
use uring::Uring;

/// What a file can be asked to do without blocking the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// `preadv2(offset)`.
    Read,
    /// `pwritev2(offset)`, durable before it completes if `dsync`.
    Write {
        /// RWF_DSYNC.
        dsync: bool,
    },
    /// `fdatasync`.
    Sync,
    /// `fallocate(mode, offset, len)`.
    Allocate {
        /// FALLOC_FL_*.
        mode: i32,
    },
    /// What `len` bytes from `offset` are made of, as a list of extents into the one span; see [`headworks_core::extent`].
    Extents {
        /// The first is enough.
        one: bool,
    },
}

/// One operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOp {
    /// The requesting device, returned in [`DiskDone`].
    pub device: DeviceId,
    /// The command it serves, returned in [`DiskDone`].
    pub id: RequestId,
    /// Descriptor of the file.
    pub fd: RawFd,
    /// Kind of the operation.
    pub kind: DiskKind,
    /// First byte of the file.
    pub offset: u64,
    /// Bytes, for `Allocate` and `Extents`.
    pub len: u64,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskDone {
    /// Device of the [`DiskOp`].
    pub device: DeviceId,
    /// Command of the [`DiskOp`].
    pub id: RequestId,
    /// Bytes moved, extents told or 0; a negative errno on failure.
    pub result: i32,
}

/// Places of one device for descriptors that it watches.
pub const PLACES: u16 = 16;

/// Watches descriptors for devices: sockets, and eventfds that other threads write. A device has
/// [`DeviceIo::PLACES`](crate::DeviceIo::PLACES) places, each for one
/// descriptor at a time, and a descriptor is in one place.
///
/// A watch is one-shot, as [`Engine::watch`] is. What is ready when it begins counts, so a device that stops before it has read
/// everything watches again, and is called in the next turn.
pub trait Watch {
    /// Waits for `interest` on `fd` from the next turn on, once; then [`Device::on_ready`](crate::device::Device::on_ready) is called
    /// with `place`. Replaces what the place waited for.
    fn watch_place(&mut self, device: DeviceId, place: u16, fd: RawFd, interest: Interest);

    /// Ends the watch of a place, if there is one. To be called before the descriptor is closed. A call for an event that this turn has
    /// already may still come.
    fn forget_place(&mut self, device: DeviceId, place: u16);
}

/// What an engine does for devices: file operations and watches.
pub trait DiskQueue: Watch {
    /// Queues an operation, which starts at the end of the turn at the latest, and copies `spans`. Returns false when the engine
    /// is full: the device then completes its command with `Busy`.
    ///
    /// # Safety
    /// Until the [`DiskDone`] of the operation: `op.fd` is open and names the file that the operation is meant for, and the
    /// spans fulfil the contract of [`Span::new`].
    unsafe fn push(&mut self, op: DiskOp, spans: &[Span]) -> bool;
}

/// What a socket is waited for. Errors and hang-ups count as readiness for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read, or to accept.
    Read,
    /// Room to write.
    Write,
    /// Either.
    ReadWrite,
}

/// What a turn brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The watch of this token fired and is gone. Readiness is a hint: the socket may have nothing after all.
    Ready {
        /// As given to [`Engine::watch`].
        token: u32,
    },
    /// The watch of a device's place fired and is gone. A hint, as `Ready` is.
    Place {
        /// The device that watches.
        device: DeviceId,
        /// Its place, below [`DeviceIo::PLACES`](crate::DeviceIo::PLACES).
        place: u16,
    },
    /// A file operation ended.
    Disk(DiskDone),
    /// A [`Waker`] was used since the last `Woken`.
    Woken,
}

/// How long a turn may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No sleep. The kernel is still entered: it completes nothing for a thread that only polls memory.
    Poll,
    /// For this many nanoseconds.
    For(u64),
    /// Until something happens.
    Forever,
}

/// What a reactor turns on.
pub trait Engine: DiskQueue {
    /// `uring` or `threads`.
    fn name(&self) -> &'static str;

    /// From the next turn on, waits for `interest` on `fd`, once. Replaces what `token` waited for before. Tokens are small
    /// (slots of a slab, below 2^20; places of devices have those above); an fd has one token.
    fn watch(&mut self, token: u32, fd: RawFd, interest: Interest);

    /// To be called before the descriptor of a token is closed: no later turn brings an event for this watch, even if `token` and the number of
    /// the descriptor are in use again. Events that the last turn handed out are the caller's to skip. Of a socket that is closed the
    /// peer hears after the next turn, because `uring` holds it until then.
    fn forget(&mut self, token: u32);

    /// Starts everything queued, waits as told for the first event, and appends all there are.
    ///
    /// # Errors
    /// The engine is broken beyond use. Interruptions and shortages end the turn early and are no errors.
    fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()>;

    /// What wakes this engine from other threads.
    fn waker(&self) -> Waker;
}

/// Which engine a user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// `uring` where it works, else `threads`.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// The portable one.
    Threads,
}

impl FromStr for EngineChoice {
    type Err = ConfigError;

    fn from_str(word: &str) -> Result<Self, ConfigError> {
        match word {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "threads" => Ok(Self::Threads),
            _ => {
                Err(ConfigError::new("engine", format!("`{word}` is none of auto, uring, threads")))
            }
        }
    }
}

/// The most disk operations in flight on one engine.
pub(crate) const DISK_DEPTH_MAX: usize = 1 << 16;

/// Opens an engine for the calling thread, with room for `disk_depth` operations on files, and says in one line which it is
/// and why.
///
/// # Errors
/// The engine asked for does not work here, or `disk_depth` is out of range.
pub fn open_engine(
    choice: EngineChoice,
    disk_depth: usize,
) -> Result<(Box<dyn Engine>, String), ConfigError> {
    if !(1..=DISK_DEPTH_MAX).contains(&disk_depth) {
        let message = format!("{disk_depth} is not within 1..={DISK_DEPTH_MAX}");
        return Err(ConfigError::new("disk_depth", message));
    }
    let why_not_uring = match choice {
        EngineChoice::Threads => "as asked".to_owned(),
        EngineChoice::Auto | EngineChoice::Uring => match Uring::open(disk_depth) {
            Ok(engine) => return Ok((Box::new(engine), "uring (io_uring)".to_owned())),
            Err(error) => uring::explain(&error),
        },
    };
    if choice == EngineChoice::Uring {
        let message = format!("{why_not_uring}; `auto` or `threads` would work");
        return Err(ConfigError::new("engine", message));
    }
    let engine = Threads::open(disk_depth)
        .map_err(|error| ConfigError::new("engine", format!("cannot open epoll: {error}")))?;
    Ok((Box::new(engine), format!("threads (epoll and a thread pool; {why_not_uring})")))
}
