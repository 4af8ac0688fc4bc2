//! The seam between the cache and the queues: the bios that cross it, and their completions.
//!
//! Downwards a [`DeviceBio`] leaves the cache for the plug and the queue of its device, which may belong to another shard. Upwards
//! each of them yields one [`DeviceCompletion`], or two if the command passes its time-out: `Early` when it does, and
//! `Released` when the device gives the buffer back. The cookie comes back unchanged; the queues never look at it.

use crate::bio::Bio;
use crate::error::Status;
use crate::input::ReplyStage;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

/// A bio that the cache sends to a device: one of its own, or a client's that it passes through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceBio {
    /// The bio for the device; an internal id names the first frame of a bio of the cache's own.
    pub bio: Bio,
    /// The slot of the cache operation that waits for it, or `NIL` if no single operation does.
    pub cookie: u32,
    /// The time from which its wait for the device is limited: the arrival of the client's bio that caused it.
    pub since: Instant,
}

/// The completion of a [`DeviceBio`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCompletion {
    /// The bio as it was sent.
    pub bio: Bio,
    /// The cookie of the [`DeviceBio`].
    pub cookie: u32,
    /// The result of the device or of the queue.
    pub status: Status,
    /// The range reads as zeros and nothing was transferred.
    pub hole: bool,
    /// `Early` at the time-out, `Released` when the device answers after it, otherwise `Final`.
    pub stage: ReplyStage,
    /// The time that the bio waited below the cache, by kind.
    pub wait_times: WaitTimes,
}
