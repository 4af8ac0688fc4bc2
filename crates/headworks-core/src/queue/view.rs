//! The part of a queue that the plug sees when a bio arrives.

use super::volumes::VolumeQueue;
use crate::bio::{Bio, BioFlags, DeviceId, Op};
use crate::error::{IoError, Status};
use crate::options::{NoMerges, QueueOptions};
use crate::request::Request;
use crate::request_limits::RequestLimits;

/// A queue and one of its volumes, as an arriving bio sees them.
pub(crate) struct QueueView<'a> {
    /// The device of the queue.
    pub device: DeviceId,
    /// The device's limits on one request.
    pub limits: &'a RequestLimits,
    /// The options of the queue.
    pub(super) options: &'a QueueOptions,
    /// The bio's volume in the queue.
    pub(super) volume: &'a mut VolumeQueue,
}

impl QueueView<'_> {
    /// Returns the answer of a bio that needs no device.
    ///
    /// FUA fails before it writes on a volume with a failed flush, which cannot promise durability. A discard that the device
    /// does not support is done. Zeroing that must be fast and could only be slow is refused.
    #[inline(always)]
    pub fn early_answer(&self, bio: &Bio) -> Option<Status> {
        let fua = bio.flags.contains(BioFlags::FUA) && bio.op.is_write();
        if fua && self.volume.is_suspect() {
            return Some(Err(IoError::Medium));
        }
        let fast = bio.flags.contains(BioFlags::FAST_ZERO);
        match bio.op {
            Op::Discard if !self.options.discard => Some(Ok(())),
            Op::WriteZeroes if !self.options.write_zeroes && fast => {
                Some(Err(IoError::Unsupported))
            }
            _ => None,
        }
    }

    /// Returns the marks that a request starts with: a device that cannot zero is sent zeros as data.
    #[inline(always)]
    pub fn first_marks(&self, bio: &Bio) -> u16 {
        match bio.op {
            Op::WriteZeroes if !self.options.write_zeroes => Request::ZERO_AS_DATA,
            _ => 0,
        }
    }

    /// Returns which merges the queue allows.
    #[inline(always)]
    pub fn nomerges(&self) -> NoMerges {
        self.options.nomerges
    }

    /// Returns how long a request may wait for the device.
    #[inline(always)]
    pub fn io_timeout_ns(&self) -> u64 {
        self.options.io_timeout_ns
    }

    /// Counts a bio that was merged in the plug.
    pub fn count_merge(self, op: Op) {
        debug_assert!(op.has_data(), "only bios with data merge");
        self.volume.stats.ops[op as usize].merges += 1;
    }
}
