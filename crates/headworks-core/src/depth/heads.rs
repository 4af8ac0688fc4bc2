//! Whether the device may move heads: by what is known of it, and by what it completes.
//!
//! Invariant: `fast` counts commands in a row at a rate that no head reaches; one slower sample ends the row.

use super::rate::Sample;
use crate::time::SEC;

/// Commands in a second that no head positions for.
const HEAD_PER_SECOND: u64 = 2000;
/// Bytes that no head moves in a second: the fastest drives have three quarters of that.
const HEAD_BYTES_PER_SECOND: f64 = 400e6;
/// Commands that no drive's cache takes at once: 256 MiB of 4 KiB.
const FAST_COMMANDS: u64 = 1 << 16;

/// What is known of the device's heads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heads {
    /// The device may seek.
    pub seeks: bool,
    /// An elevator sorts for it, and it may seek.
    pub sorted: bool,
    /// The last sample was faster than any head.
    pub outrun: bool,
    /// Commands that the device completed at a rate that no head reaches, in a row.
    fast: u64,
}

impl Heads {
    /// Takes a sample of `commands`.
    pub fn note(&mut self, sample: &Sample, commands: u64) {
        let many = commands * SEC / sample.ns > HEAD_PER_SECOND;
        self.outrun = many || sample.rate > HEAD_BYTES_PER_SECOND;
        self.fast = if many { self.fast + commands } else { 0 };
    }

    /// Returns true once more was completed without a head's time than a drive's cache takes at once.
    pub fn is_fast(&self) -> bool {
        self.fast >= FAST_COMMANDS
    }
}
