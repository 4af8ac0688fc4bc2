//! A volume on a base, and which of its blocks are its own: a read of none of them may go on under the base's id, so that all
//! volumes on one base share what is cached of it.
//!
//! ```text
//!   SetBase: changes are noted --OwnBlocks: what was its own before--> ReadBase: reads are led to the base
//! ```
//!
//! A block becomes the volume's own when a change of it is accepted, before it is answered, and stays so. Therefore a read that begins
//! after a write was answered is never led to the base. A read and a change that are under way at once may meet in either order, as on
//! any disk.
//!
//! A read is led there only if all of it lies in the base and in blocks that are not its own: all others take the usual way, by the
//! volume's device. Nothing allocates after the start: one bit for each block of 4 KiB.

use crate::bio::VolumeId;
use crate::cache::pool::folio::BLOCK;

/// Blocks of a word.
const WORD: u64 = 64;

/// The base of a volume, and the blocks of the volume that differ from it.
#[derive(Debug)]
pub(in crate::cache) struct Layer {
    base: VolumeId,
    /// The bytes that are shared: those of the base and of the volume, whatever size it ever had.
    shared_size: u64,
    /// A bit for each block of the volume: it is its own.
    own: Box<[u64]>,
    /// All own blocks are known: reads are led to the base.
    is_complete: bool,
}

/// The word and the bits of it that are in a range of blocks, for each word of the range.
fn masks(first: u64, end: u64) -> impl Iterator<Item = (usize, u64)> {
    let words = if first < end { first / WORD..end.div_ceil(WORD) } else { 0..0 };
    words.map(move |word| {
        let from = first.max(word * WORD) - word * WORD;
        let bits = (end - word * WORD).min(WORD) - from;
        debug_assert!(bits > 0 && from + bits <= WORD, "a word of the range has blocks of it");
        (word as usize, u64::MAX >> (WORD - bits) << from)
    })
}

/// The blocks of a range of bytes, those included that it has a part of.
fn blocks(offset: u64, len: u64) -> (u64, u64) {
    (offset / u64::from(BLOCK), (offset + len).div_ceil(u64::from(BLOCK)))
}

impl Layer {
    /// A volume of `size` bytes on a base of `base_size` bytes, without blocks of its own that are known.
    pub fn new(base: VolumeId, base_size: u64, size: u64) -> Self {
        let words = size.div_ceil(u64::from(BLOCK)).div_ceil(WORD) as usize;
        let shared_size = base_size.min(size);
        Self { base, shared_size, own: vec![0; words].into(), is_complete: false }
    }

    /// Returns the volume that it is based on.
    pub fn base(&self) -> VolumeId {
        self.base
    }

    /// Notes that a range of bytes is changed. Bytes past the size at the start are its own in any case.
    pub fn note_change(&mut self, offset: u64, len: u64) {
        let (first, end) = blocks(offset, len);
        let end = end.min(self.own.len() as u64 * WORD);
        for (word, mask) in masks(first.min(end), end) {
            self.own[word] |= mask;
        }
    }

    /// Notes that the volume has a new size. What is past the least one is its own, since it is new when the volume grows again.
    pub fn resize(&mut self, size: u64) {
        self.shared_size = self.shared_size.min(size);
    }

    /// Notes own blocks, the 64 of a word at once; words past the end are ignored.
    pub fn add(&mut self, word: u64, bits: u64) {
        if let Some(own) = self.own.get_mut(word as usize) {
            *own |= bits;
        }
    }

    /// Notes that all own blocks are known.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Returns the base if a read of these bytes may go on there.
    pub fn base_of(&self, offset: u64, len: u64) -> Option<VolumeId> {
        if !self.is_complete || offset + len > self.shared_size {
            return None;
        }
        let (first, end) = blocks(offset, len);
        if end > self.own.len() as u64 * WORD {
            return None;
        }
        masks(first, end).all(|(word, mask)| self.own[word] & mask == 0).then_some(self.base)
    }

    /// Returns the end of the own blocks from `first` on, at most `most` of them; what the base has not counts as its own.
    pub fn own_end(&self, first: u64, most: u64) -> u64 {
        let end = first.saturating_add(most);
        let shared_end = (self.shared_size / u64::from(BLOCK)).min(self.own.len() as u64 * WORD);
        if !self.is_complete || first >= shared_end {
            return end;
        }
        let found = masks(first, end.min(shared_end)).find_map(|(word, mask)| {
            let shared = !self.own[word] & mask;
            (shared != 0).then(|| word as u64 * WORD + u64::from(shared.trailing_zeros()))
        });
        found.unwrap_or(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    const B: u64 = BLOCK as u64;

    #[test]
    fn what_a_volume_gets_when_it_grows_is_its_own() {
        // 66 blocks and a half, of two words.
        let mut layer = Layer::new(VolumeId(7), 200 * B, 66 * B + 512);
        layer.complete();
        let shares = |layer: &Layer, at, len| layer.base_of(at, len).is_some();
        assert!(shares(&layer, 66 * B, 512));
        assert!(!shares(&layer, 66 * B, 513) && !shares(&layer, 67 * B, 1));
        assert_eq!(layer.own_end(66, 50), 116);
        layer.resize(3 * B + 1);
        layer.resize(200 * B);
        assert!(
            shares(&layer, 0, 3 * B + 1) && !shares(&layer, 3 * B, 2) && !shares(&layer, 4 * B, 1)
        );
    }

    fn layer(blocks: u64, base_size: u64) -> Layer {
        let mut layer = Layer::new(VolumeId(7), base_size, blocks * B);
        layer.complete();
        layer
    }

    #[test]
    fn reads_are_led_to_the_base_as_a_vector_of_flags_says() {
        let mut prng = Prng::new(5);
        for size in [1, 63, 64, 65, 300] {
            let base_size = prng.below(size * B) + 1;
            let (mut layer, mut own) = (layer(size, base_size), vec![false; size as usize]);
            for _ in 0..400 {
                let offset = prng.below(size * B);
                let len = 1 + prng.below((size * B - offset).min(80 * B));
                let range = (offset / B) as usize..(offset + len).div_ceil(B) as usize;
                if prng.below(40) == 0 {
                    layer.note_change(offset, len.min(3 * B));
                    let end = (offset + len.min(3 * B)).div_ceil(B) as usize;
                    own[range.start..end].fill(true);
                }
                let shared = offset + len <= base_size && !own[range.clone()].contains(&true);
                assert_eq!(layer.base_of(offset, len).is_some(), shared, "{offset} {len}");
                let (first, most) = (range.start as u64, prng.below(100));
                let shared = |at: &u64| {
                    (at + 1) * B <= base_size && !own.get(*at as usize).is_some_and(|own| *own)
                };
                let expected = (first..first + most).find(shared).unwrap_or(first + most);
                assert_eq!(layer.own_end(first, most), expected, "{first} {most}");
            }
        }
    }

    #[test]
    fn no_read_is_led_to_the_base_before_all_own_blocks_are_known() {
        let mut layer = Layer::new(VolumeId(1), 100 * B, 100 * B);
        layer.note_change(B, 1);
        assert_eq!((layer.base_of(0, B), layer.own_end(0, 9)), (None, 9));
        layer.add(0, 1 << 5);
        layer.add(u64::MAX, 1);
        layer.complete();
        let led: Vec<u64> = (0..8).filter(|block| layer.base_of(block * B, B).is_some()).collect();
        assert_eq!(led, [0, 2, 3, 4, 6, 7]);
        assert_eq!(layer.base_of(99 * B, B + 1), None, "past the end");
    }

    #[test]
    fn changes_past_the_end_are_ignored() {
        let mut layer = layer(64, 64 * B);
        layer.note_change(64 * B, 9 * B);
        layer.note_change(u64::MAX / 2, 9 * B);
        assert_eq!(layer.base_of(0, 64 * B), Some(VolumeId(7)));
    }
}
