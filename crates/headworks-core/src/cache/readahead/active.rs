//! Streams that read ahead of late, and the window with which those of all fit into the pool.
//!
//! Half a pool of blocks that were read ahead is an epoch. A stream counts that had a window in this one or in the one before; so idle
//! streams are forgotten without a list or a clock.
//!
//! Invariant: `now` counts each stream once in an epoch.

use super::limits::ReadAheadLimits;

/// A window is at most the pool's part for a stream, divided by this: two windows of each stream fill a quarter of it, and those that
/// are outstanding at once the eighth that fills may have.
pub(super) const POOL_PART: u32 = 8;
/// Blocks of a window that is not reduced for the number of streams.
const WINDOW_MIN: u32 = 8;
/// Blocks of a window with which a stream counts, if windows may be as large: those of short files take little of the pool.
const COUNTED_MIN: u32 = 32;

/// The number of streams that have had windows of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ActiveStreams {
    /// The epoch's number; it wraps.
    epoch: u8,
    /// Blocks that were read ahead in it.
    blocks: u32,
    /// Streams that had a window in it, and in the one before.
    now: u32,
    before: u32,
}

impl ActiveStreams {
    /// Creates the counts before any window. A stream without one has epoch 0.
    pub fn new() -> Self {
        Self { epoch: 1, ..Self::default() }
    }

    /// Returns the largest window with which those of all streams fit into a pool.
    pub fn window_max(&self, limits: &ReadAheadLimits) -> u32 {
        let streams = self.now.max(self.before).max(1);
        let part = limits.pool / POOL_PART / streams;
        let most = limits.window_max.min(part.max(WINDOW_MIN));
        debug_assert!(most > 0, "a window has blocks where read-ahead is on");
        most
    }

    /// Counts a window of a stream; half a pool of them is an epoch.
    pub fn on_window(&mut self, epoch: &mut u8, blocks: u32, limits: &ReadAheadLimits) {
        debug_assert!(blocks > 0 && self.epoch > 0, "a window has blocks, and epochs begin with 1");
        let counts = blocks >= COUNTED_MIN.min(self.window_max(limits));
        if counts && *epoch != self.epoch {
            *epoch = self.epoch;
            self.now += 1;
        }
        self.blocks = self.blocks.saturating_add(blocks);
        if self.blocks > limits.pool / 2 {
            // 0 is that of a stream without a window.
            let epoch = self.epoch.checked_add(1).unwrap_or(1);
            *self = Self { epoch, blocks: 0, now: 0, before: self.now };
        }
    }
}
