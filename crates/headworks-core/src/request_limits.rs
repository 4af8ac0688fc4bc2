//! The limits of a device on one data request.

use crate::options::QueueOptions;

/// The device's limits on one data request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// The most bytes of a request.
    pub(crate) max_bytes: u32,
    /// The most segments of a request.
    pub(crate) max_segments: u16,
    /// The most bytes of a segment.
    pub(crate) max_segment_size: u32,
}

impl RequestLimits {
    /// Takes the limits from a queue's options.
    #[must_use]
    pub fn new(options: &QueueOptions) -> Self {
        Self {
            max_bytes: options.max_bytes(),
            max_segments: options.max_segments,
            max_segment_size: options.max_segment_size,
        }
    }

    /// Returns the segments that a bio of `len` bytes needs; its buffer is contiguous.
    #[inline]
    #[must_use]
    pub fn segments(&self, len: u32) -> u16 {
        if len <= self.max_segment_size {
            return 1;
        }
        len.div_ceil(self.max_segment_size).min(u32::from(u16::MAX)) as u16
    }

    /// Returns the bytes of the largest piece that a bio is split into: a multiple of `block`, at least one.
    #[must_use]
    pub fn piece(&self, block: u32) -> u32 {
        debug_assert!(block.is_power_of_two(), "pieces are rounded by a mask");
        let by_segments = u64::from(self.max_segment_size) * u64::from(self.max_segments);
        let largest = u64::from(self.max_bytes).min(by_segments) as u32;
        round_to_block(largest, block)
    }

    /// Whether a request of `bytes` in `segments` is within the limits.
    pub(crate) fn admit(&self, bytes: u64, segments: u32) -> bool {
        bytes <= u64::from(self.max_bytes) && segments <= u32::from(self.max_segments)
    }
}

/// Returns the most bytes up to `limit` that end at a block, at least one block: a device cannot cut a block.
#[inline]
pub(crate) fn round_to_block(limit: u32, block: u32) -> u32 {
    debug_assert!(block.is_power_of_two(), "steps are rounded by a mask");
    (limit & !(block - 1)).max(block)
}
