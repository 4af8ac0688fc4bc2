//! What a range of a volume is made of: the answer of [`Op::BlockStatus`](crate::Op), as it lies in the bio's buffer.
//!
//! The device (or the cache) writes a list of extents there, which begins at the bio's offset, without gaps:
//!
//! ```text
//!   len:4 state:4 | len:4 state:4 | ... | 0            little-endian; no zero after the 128th
//! ```
//!
//! Invariants of a list that was written here: no extent is empty, two neighbours differ, and together they are no longer than
//! what was asked. It may end early: a list is short, and whoever makes it looks only so far. Whoever reads one believes none
//! of this, for a device may lie.

/// Most extents of an answer. 128: a fragmented image is told in few questions, and a list stays in one KiB.
pub const EXTENTS_MAX: usize = 128;
/// Bytes of the buffer of a bio that asks.
pub const EXTENTS_BYTES: u32 = (EXTENTS_MAX * EXTENT_BYTES) as u32;
const EXTENT_BYTES: usize = 8;

/// What is known of an extent: a set of facts, with the numbers that NBD has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtentState(pub u32);

impl ExtentState {
    /// Nothing: it may hold anything. Always a right answer.
    pub const DATA: Self = Self(0);
    /// It takes no space, and a write to it may find none.
    pub const HOLE: Self = Self(1);
    /// It reads as zeros.
    pub const ZERO: Self = Self(2);
    /// A hole of a sparse file.
    pub const HOLE_ZERO: Self = Self(3);

    /// Whether all of `other`'s facts are known.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A part of a volume that is of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u32,
    /// What is known of it.
    pub state: ExtentState,
}

/// Writes a list.
#[derive(Debug)]
pub struct ExtentWriter<'a> {
    bytes: &'a mut [u8],
    most: usize,
    count: usize,
    last: Extent,
    /// Bytes of the range that are not told yet.
    left: u32,
}

impl<'a> ExtentWriter<'a> {
    /// An empty list about `len` bytes, of at most `most` extents, into `bytes`.
    #[must_use]
    pub fn new(bytes: &'a mut [u8], len: u32, most: usize) -> Self {
        let most = most.min(EXTENTS_MAX).min(bytes.len() / EXTENT_BYTES);
        Self { bytes, most, count: 0, last: Extent::default(), left: len }
    }

    /// The next `len` bytes are like this; what is beyond the range is left out. True while there is more to tell and room.
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
            // Whatever comes now would not be told where it lies.
            self.left = 0;
            return false;
        }
        self.left -= len;
        self.left > 0
    }

    /// The list is complete; how many extents it has.
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

/// The extents of a list about `len` bytes; what a liar put beyond that is left out.
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
    fn neighbours_of_a_kind_are_one_and_the_range_is_the_end() {
        let parts = [(10, DATA), (5, DATA), (0, HOLE), (20, HOLE), (u64::MAX, DATA)];
        assert_eq!(list(100, 128, &parts), [(15, DATA), (20, HOLE), (65, DATA)]);
        assert_eq!(list(15, 128, &parts), [(15, DATA)]);
        assert_eq!(list(u32::MAX, 128, &[(u64::MAX, HOLE)]), [(u32::MAX, HOLE)]);
        assert_eq!(list(7, 128, &[]), []);
    }

    #[test]
    fn a_full_list_takes_more_of_its_last_kind_only() {
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
    fn what_is_read_of_a_lie_is_never_longer_than_what_was_asked() {
        let bytes = [0xff; EXTENTS_BYTES as usize];
        let all: Vec<_> = extents(&bytes, 4096).collect();
        assert_eq!(all, [Extent { len: 4096, state: ExtentState(u32::MAX) }]);
        assert_eq!(extents(&[1; 12], 1 << 30).count(), 1);
        assert_eq!(extents(&[0; 1024], 4096).count(), 0);
    }
}
