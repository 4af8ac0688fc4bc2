//! The bytes of a served disk: sparse, in memory, up to a limit.
//!
//! Invariant: `blocks.len() * BLOCK <= limit`. Blocks that were never written read as zeros. A limit of 0 keeps nothing: writes are
//! accepted and dropped, as experiments that only measure time need it.

use std::collections::HashMap;

/// Bytes of a block.
const BLOCK: usize = 4096;

/// The written blocks of a disk.
pub(super) struct Contents {
    blocks: HashMap<u64, Box<[u8; BLOCK]>>,
    limit: u64,
}

/// The limit leaves no room for a new block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Contents {
    /// Zeros, of which up to `limit` bytes can be replaced; 0: none are kept.
    pub fn new(limit: u64) -> Self {
        Self { blocks: HashMap::new(), limit }
    }

    /// Whether written bytes are kept.
    pub fn keeps(&self) -> bool {
        self.limit > 0
    }

    /// Writes `bytes` at `offset`; on `Full` some of them may be written.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Full> {
        if !self.keeps() {
            return Ok(());
        }
        for (block, within, range) in pieces(offset, bytes.len()) {
            let used = self.blocks.len() as u64 * BLOCK as u64;
            if !self.blocks.contains_key(&block) && used + BLOCK as u64 > self.limit {
                return Err(Full);
            }
            let kept = self.blocks.entry(block).or_insert_with(|| Box::new([0; BLOCK]));
            kept[within..within + range.len()].copy_from_slice(&bytes[range]);
        }
        Ok(())
    }

    /// The bytes of a range; `None` if all of them are zeros that were never written.
    pub fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let known =
            |(block, ..): &(u64, usize, std::ops::Range<usize>)| self.blocks.contains_key(block);
        if self.blocks.is_empty() || !pieces(offset, len).any(|piece| known(&piece)) {
            return None;
        }
        let mut bytes = vec![0; len];
        for (block, within, range) in pieces(offset, len) {
            if let Some(kept) = self.blocks.get(&block) {
                let count = range.len();
                bytes[range].copy_from_slice(&kept[within..within + count]);
            }
        }
        Some(bytes)
    }
}

/// The blocks of a range: number, first byte within the block, and the part of the range.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK as u64) as usize;
        let count = (BLOCK - within).min(len - done);
        let range = done..done + count;
        done += count;
        (count > 0).then_some((at / BLOCK as u64, within, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_read_as_written_and_zeros_elsewhere() {
        let mut contents = Contents::new(1 << 20);
        assert_eq!(contents.read(0, 8192), None);
        let bytes: Vec<u8> = (0..9000u32).map(|n| n as u8 | 1).collect();
        contents.write(5000, &bytes).unwrap();
        let read = contents.read(0, 20_000).unwrap();
        assert_eq!(read[5000..14_000], bytes);
        assert!(read[..5000].iter().chain(&read[14_000..]).all(|&byte| byte == 0));
        assert_eq!(contents.read(1 << 40, 4096), None);
    }

    #[test]
    fn full_contents_take_known_blocks_only() {
        let mut contents = Contents::new(2 * BLOCK as u64);
        assert_eq!(contents.write(0, &[1; 2 * BLOCK]), Ok(()));
        assert_eq!(contents.write(8192, &[2]), Err(Full));
        assert_eq!(contents.write(4096, &[2]), Ok(()));
        assert_eq!(contents.read(4095, 3), Some(vec![1, 2, 1]));
    }

    #[test]
    fn contents_without_limit_keep_nothing() {
        let mut contents = Contents::new(0);
        assert_eq!(contents.write(0, &[1; 10]), Ok(()));
        assert_eq!(contents.read(0, 10), None);
    }
}
