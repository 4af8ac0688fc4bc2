//! What a shard's thread waits with: disks, sockets, other threads, time.
//!
//! Two engines behind one seam. `uring` keeps everything on one ring; `threads` uses epoll and a pool of threads that call
//! preadv2 and pwritev2, for places where io_uring is forbidden. Sockets are watched for readiness, one shot at a time, and
//! read and written directly by the frontend: measured equal to receiving on the ring, and one code for both engines.

use std::os::fd::RawFd;

use headworks_core::{DeviceId, RequestId};

use crate::memory::Span;

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
}

/// One operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOp {
    /// Who asks, given back in [`DiskDone`].
    pub device: DeviceId,
    /// For which command, given back likewise.
    pub id: RequestId,
    /// On which file.
    pub fd: RawFd,
    /// What.
    pub kind: DiskKind,
    /// First byte of the file.
    pub offset: u64,
    /// Bytes, for `Allocate`.
    pub len: u64,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskDone {
    /// From the operation.
    pub device: DeviceId,
    /// From the operation.
    pub id: RequestId,
    /// Bytes moved or 0; a negative errno on failure.
    pub result: i32,
}

/// The part of an engine that devices see.
pub trait DiskQueue {
    /// Takes an operation; it starts at the end of the turn at the latest. `spans` is copied. False when the engine is full:
    /// the device then answers `Busy`.
    fn push(&mut self, op: DiskOp, spans: &[Span]) -> bool;
}
