//! The limits of a device on one data request.

use crate::options::QueueOptions;

/// Bytes of a part of a disk that a kill leaves old or new: no request is cut within one.
pub const GRAIN: u32 = 4096;

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

    /// Returns the bytes of the next piece of a bio, of which `left` bytes at `at` are not in one yet.
    pub(crate) fn piece_at(&self, at: u64, left: u32, block: u32) -> u32 {
        cut(at, left, self.piece(block), GRAIN)
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

/// Returns how many of `left` bytes at `at` go into a command that takes at most `most`, some blocks. What is cut is cut at a multiple of
/// `grain` of the disk where that is in reach: a kill between two commands leaves each grain old or new.
pub(crate) fn cut(at: u64, left: u32, most: u32, grain: u32) -> u32 {
    debug_assert!(grain.is_power_of_two(), "ends are rounded by a mask");
    let over = (at + u64::from(most)) as u32 & (grain - 1);
    match left <= most {
        true => left,
        false if over < most => most - over,
        false => most,
    }
}
