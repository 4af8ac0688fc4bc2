//! The blocks past the end of a volume that was made smaller.
//!
//! Nothing past the end is read or written, so the blocks that are cached there can be dropped turn by turn. Until that is done,
//! nothing of them goes to the device, flushes of the volume wait, and a resize to a larger size finishes the truncation first.
//!
//! ```text
//!   0 .................. end ------ dropped ------ position ------ still cached ------ largest end it had
//! ```
//!
//! A block under write-out or fill keeps its frame until the device completes: under write-out it is no longer up to date, and a
//! fill is void. If the volume has grown again by then, an access to the block waits for that completion and then reads the
//! device; old bytes neither overtake new ones nor change under the device.

/// The blocks past a volume's end that are still to be dropped.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Truncation {
    start: u64,
    end: u64,
    /// The position of the walk over their folios.
    pub position: u64,
}

impl Truncation {
    /// Creates a truncation of the blocks `start..end`, together with those of `other`.
    pub fn new(start: u64, end: u64, other: Option<Self>) -> Self {
        assert!(start <= end, "a truncation lowers the end");
        // The position in the other walk means nothing in a walk over both ranges.
        Self { start, end: other.map_or(end, |other| end.max(other.end)), position: 0 }
    }

    /// Returns the range of blocks, its end excluded.
    pub fn range(&self) -> (u64, u64) {
        (self.start, self.end)
    }

    /// Returns the first block past the end of the volume.
    pub fn start(&self) -> u64 {
        self.start
    }
}
