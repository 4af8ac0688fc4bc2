//! Lists of extents: the answer of [`Op::BlockStatus`](crate::Op) in the bio's buffer.
//!
//! The device (or the cache) writes a list of extents, which begins at the bio's offset and has no gaps:
//!
//! ```text
//!   len:4 state:4 | len:4 state:4 | ... | 0            little-endian; no zero after the 128th
//! ```
//!
//! Invariants of a list made by [`ExtentWriter`]: no extent is empty, neighbours differ in state, and the lengths add up to at
//! most the range. It may end early. A reader relies on none of this, because a device may write anything.

/// Most extents of a list. 128: few requests describe a fragmented image, and a list fits 1 KiB.
pub const EXTENTS_MAX: usize = 128;
/// Bytes of the buffer of a block-status bio.
pub const EXTENTS_BYTES: u32 = (EXTENTS_MAX * EXTENT_BYTES) as u32;
const EXTENT_BYTES: usize = 8;

/// The state of an extent: a set of flags with the values of NBD's `base:allocation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtentState(pub u32);

impl ExtentState {
    /// No flags: the extent may hold data. Always a correct answer.
    pub const DATA: Self = Self(0);
    /// The extent is not allocated; a write to it may find no space.
    pub const HOLE: Self = Self(1);
    /// The extent reads as zeros.
    pub const ZERO: Self = Self(2);
    /// A hole of a sparse file.
    pub const HOLE_ZERO: Self = Self(3);

    /// Returns true when all flags of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A part of a volume with one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Length of the extent in bytes.
    pub len: u32,
    /// State of the whole extent.
    pub state: ExtentState,
}

/// Writes a list of extents.
#[derive(Debug)]
pub struct ExtentWriter<'a> {
    bytes: &'a mut [u8],
    most: usize,
    count: usize,
    last: Extent,
    /// Bytes of the range that are not in the list yet.
    left: u32,
}

impl<'a> ExtentWriter<'a> {
    /// Starts a list that describes `len` bytes in at most `most` extents, in `bytes`.
    #[must_use]
    pub fn new(bytes: &'a mut [u8], len: u32, most: usize) -> Self {
        let most = most.min(EXTENTS_MAX).min(bytes.len() / EXTENT_BYTES);
        Self { bytes, most, count: 0, last: Extent::default(), left: len }
    }

    /// Appends `len` bytes of a state, cut off at the end of the range. Returns true while the range is not covered and the list
    /// has room.
    pub fn push(&mut self, len: u64, state: ExtentState) -> bool {
        let len = len.min(self.left.into()) as u32;
        if len == 0 {
            return self.left > 0;
        }
        if self.count > 0 && self.last.state == state {
            self.last.len += len;
        } else if self.count < self.most {
            self.put_last();
            self.count += 1;
            self.last = Extent { len, state };
        } else {
            // The list has no gaps: an extent that does not fit ends it.
            self.left = 0;
            return false;
        }
        self.left -= len;
        self.left > 0
    }

    /// Completes the list and returns its number of extents.
    pub fn finish(mut self) -> usize {
        self.put_last();
        let end = self.count * EXTENT_BYTES;
        if let Some(after) = self.bytes.get_mut(end..end + EXTENT_BYTES) {
            after.fill(0);
        }
        self.count
    }

    fn put_last(&mut self) {
        if self.count > 0 {
            let at = (self.count - 1) * EXTENT_BYTES;
            self.bytes[at..at + 4].copy_from_slice(&self.last.len.to_le_bytes());
            self.bytes[at + 4..at + 8].copy_from_slice(&self.last.state.0.to_le_bytes());
        }
    }
}

/// Reads the extents of a list that describes `len` bytes; cuts off what exceeds them.
pub fn extents(bytes: &[u8], len: u32) -> impl Iterator<Item = Extent> {
    let (words, _) = bytes.as_chunks::<EXTENT_BYTES>();
    let mut left = len;
    words.iter().take(EXTENTS_MAX).map_while(move |word| {
        let number = |at| u32::from_le_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]]);
        let len = number(0).min(left);
        left -= len;
        (len > 0).then(|| Extent { len, state: ExtentState(number(4)) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ExtentState = ExtentState::DATA;
    const HOLE: ExtentState = ExtentState::HOLE_ZERO;

    fn list(len: u32, most: usize, parts: &[(u64, ExtentState)]) -> Vec<(u32, ExtentState)> {
        let mut bytes = [0xee; EXTENTS_BYTES as usize];
        let mut writer = ExtentWriter::new(&mut bytes, len, most);
        for &(len, state) in parts {
            if !writer.push(len, state) {
                break;
            }
        }
        let count = writer.finish();
        let read: Vec<_> = extents(&bytes, len).map(|extent| (extent.len, extent.state)).collect();
        assert_eq!(read.len(), count);
        read
    }

    #[test]
    fn equal_neighbours_merge_and_end_at_the_range() {
        let parts = [(10, DATA), (5, DATA), (0, HOLE), (20, HOLE), (u64::MAX, DATA)];
        assert_eq!(list(100, 128, &parts), [(15, DATA), (20, HOLE), (65, DATA)]);
        assert_eq!(list(15, 128, &parts), [(15, DATA)]);
        assert_eq!(list(u32::MAX, 128, &[(u64::MAX, HOLE)]), [(u32::MAX, HOLE)]);
        assert_eq!(list(7, 128, &[]), []);
    }

    #[test]
    fn full_list_extends_only_its_last_extent() {
        let parts = [(10, DATA), (10, DATA), (10, HOLE), (10, DATA)];
        assert_eq!(list(100, 1, &parts), [(20, DATA)]);
        let many: Vec<_> = (0..300).map(|n| (8, [DATA, HOLE][n % 2])).collect();
        assert_eq!(list(4096, 1000, &many).len(), EXTENTS_MAX);
        assert_eq!(list(4096, 0, &many), []);
        let mut bytes = [0; 16];
        let mut writer = ExtentWriter::new(&mut bytes, 100, 1);
        assert!(writer.push(10, DATA) && !writer.push(10, HOLE) && !writer.push(10, DATA));
        writer.finish();
        assert_eq!(extents(&bytes, 100).map(|extent| extent.len).collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn malformed_list_is_cut_to_the_range() {
        let bytes = [0xff; EXTENTS_BYTES as usize];
        let all: Vec<_> = extents(&bytes, 4096).collect();
        assert_eq!(all, [Extent { len: 4096, state: ExtentState(u32::MAX) }]);
        assert_eq!(extents(&[1; 12], 1 << 30).count(), 1);
        assert_eq!(extents(&[0; 1024], 4096).count(), 0);
    }
}
