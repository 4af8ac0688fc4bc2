//! The contents that a verifying benchmark writes and expects: every sector carries a stamp.
//!
//! A block's contents are a function of (seed, offset, version), so a read is verified by computing the expected bytes. A wrong
//! block is classified: zeros, data of another offset, an older version, or foreign data.
//!
//! ```text
//!   a sector of 512 bytes:  tag ^ seed : offset : version : 61 words that follow from the three
//! ```
//!
//! [`Versions`] keeps the acknowledged version of each block. A block has at most one request in flight, so the expected contents
//! are always known exactly.

use headworks_core::prng::Prng;

/// Bytes of a stamped sector; blocks are multiples of it.
pub const SECTOR_BYTES: usize = 512;
/// First word of a stamp, "headwork", to be recognised in a dump.
const TAG: u64 = u64::from_be_bytes(*b"headwork");

/// Expected contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Stamps of this version.
    Version(u32),
    /// All bytes are zero.
    Zeros,
    /// Unknown contents: never written by this run, or a write failed.
    Anything,
}

/// Fills the block at `offset` with stamps.
pub fn fill(block: &mut [u8], seed: u64, offset: u64, version: u32) {
    for (index, sector) in block.chunks_mut(SECTOR_BYTES).enumerate() {
        let at = offset + (index * SECTOR_BYTES) as u64;
        let bytes = make(seed, at, version);
        sector.copy_from_slice(&bytes[..sector.len()]);
    }
}

/// Compares a block with its expected contents.
///
/// # Errors
/// One sentence about the first wrong sector.
pub fn check(block: &[u8], seed: u64, offset: u64, expected: Expected) -> Result<(), String> {
    for (index, sector) in block.chunks(SECTOR_BYTES).enumerate() {
        let at = offset + (index * SECTOR_BYTES) as u64;
        let good = match expected {
            Expected::Anything => true,
            Expected::Zeros => sector.iter().all(|&byte| byte == 0),
            Expected::Version(version) => sector == &make(seed, at, version)[..sector.len()],
        };
        if !good {
            return Err(format!(
                "the sector at offset {at} should hold {expected:?} and holds {}",
                describe(sector, seed)
            ));
        }
    }
    Ok(())
}

fn make(seed: u64, at: u64, version: u32) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    let mut key = Prng::new(seed ^ at.rotate_left(20) ^ u64::from(version)).next();
    let (words, _) = bytes.as_chunks_mut::<8>();
    for word in words.iter_mut() {
        *word = key.to_le_bytes();
        key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
    words[0] = (TAG ^ seed).to_le_bytes();
    words[1] = at.to_le_bytes();
    words[2] = u64::from(version).to_le_bytes();
    bytes
}

fn describe(sector: &[u8], seed: u64) -> String {
    if sector.iter().all(|&byte| byte == 0) {
        return "zeros".into();
    }
    let (words, _) = sector.as_chunks::<8>();
    let [tag, at, version] =
        [0, 1, 2].map(|index| words.get(index).map_or(0, |word| u64::from_le_bytes(*word)));
    let whole = sector == &make(seed, at, version as u32)[..sector.len()];
    match (tag == TAG ^ seed, whole) {
        (true, true) => format!("version {version} of offset {at}"),
        (true, false) => format!("a torn mix that begins with version {version} of offset {at}"),
        (false, _) => "bytes that this run did not write".into(),
    }
}

/// The acknowledged versions of a range of blocks.
#[derive(Debug)]
pub struct Versions {
    /// Per block: the last written version, and whether the write failed; 0 for never.
    written: Vec<u32>,
    /// Per block one bit: a request is in flight.
    busy: Vec<u64>,
    untouched: Expected,
}

/// Set in a block's version when its write failed: the contents are unknown.
const FAILED: u32 = 1 << 31;

impl Versions {
    /// Creates the versions of unwritten blocks that contain `untouched`.
    pub fn new(blocks: usize, untouched: Expected) -> Self {
        Self { written: vec![0; blocks], busy: vec![0; blocks.div_ceil(64)], untouched }
    }

    /// Returns true when a request for the block is in flight.
    pub fn is_busy(&self, block: usize) -> bool {
        self.busy[block / 64] >> (block % 64) & 1 != 0
    }

    /// Marks a request for the block as in flight.
    pub fn begin(&mut self, block: usize) {
        assert!(!self.is_busy(block), "one request per block at a time");
        self.busy[block / 64] |= 1 << (block % 64);
    }

    /// Marks the request for the block as completed.
    pub fn end(&mut self, block: usize) {
        assert!(self.is_busy(block), "what ends has begun");
        self.busy[block / 64] &= !(1 << (block % 64));
    }

    /// Returns the version of the next write.
    pub fn next(&self, block: usize) -> u32 {
        (self.written[block] & !FAILED) + 1
    }

    /// Records a completed write, successful or not.
    pub fn on_written(&mut self, block: usize, success: bool) {
        self.written[block] = self.next(block) | if success { 0 } else { FAILED };
    }

    /// Returns the contents that a read must find.
    pub fn expected(&self, block: usize) -> Expected {
        match self.written[block] {
            0 => self.untouched,
            version if version & FAILED != 0 => Expected::Anything,
            version => Expected::Version(version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_block_is_classified() {
        let (seed, mut block) = (7, vec![0; 4096]);
        fill(&mut block, seed, 8192, 3);
        assert_eq!(check(&block, seed, 8192, Expected::Version(3)), Ok(()));
        assert_eq!(check(&block, seed, 0, Expected::Anything), Ok(()));
        let wrong = |block: &[u8], offset, version: u32| {
            check(block, seed, offset, Expected::Version(version)).expect_err("wrong")
        };
        assert!(
            wrong(&block, 8192, 4)
                .contains("offset 8192 should hold Version(4) and holds version 3")
        );
        assert!(wrong(&block, 4096, 3).contains("holds version 3 of offset 8192"));
        assert!(check(&block, seed, 8192, Expected::Zeros).is_err());
        let mut torn = block.clone();
        fill(&mut torn[..2048], seed, 8192, 4);
        assert!(wrong(&torn, 8192, 4).contains("sector at offset 10240 "));
        torn[300] ^= 1;
        assert!(wrong(&torn, 8192, 4).contains("torn mix"));
        assert!(wrong(&[0; 512], 0, 1).contains("zeros"));
        assert!(wrong(&[9; 512], 0, 1).contains("did not write"));
        assert!(check(&block, seed + 1, 8192, Expected::Version(3)).is_err());
    }

    #[test]
    fn versions_follow_acknowledgements() {
        let mut versions = Versions::new(100, Expected::Zeros);
        assert_eq!((versions.expected(70), versions.next(70)), (Expected::Zeros, 1));
        versions.begin(70);
        assert!(versions.is_busy(70) && !versions.is_busy(6) && !versions.is_busy(71));
        versions.end(70);
        assert!(!versions.is_busy(70));
        versions.on_written(70, true);
        assert_eq!((versions.expected(70), versions.next(70)), (Expected::Version(1), 2));
        versions.on_written(70, false);
        assert_eq!((versions.expected(70), versions.next(70)), (Expected::Anything, 3));
        versions.on_written(70, true);
        assert_eq!(versions.expected(70), Expected::Version(3));
    }
}
