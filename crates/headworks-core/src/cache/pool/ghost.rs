//! Who was evicted lately: a memory of keys without their data.
//!
//! A fixed table of words, each a fingerprint and the time of the eviction, in sets of 16 (a cache line): the newest of a set
//! pushes its oldest out. Time is counted in units evicted, so that the memory reaches back by one main queue's worth of
//! bytes whatever the folios' sizes are: a longer memory would take the second round of a long scan for a working set.
//! Nothing is cleared when a block is invalidated or written; a stale word only lets one folio start in the main queue.
//!
//! ```text
//!   set      | fingerprint:16 time:16 | ... 16 words |     time = units noted / (reach / 1024), wraps after 64 reaches
//! ```

use crate::cache::pool::folio::FolioKey;

/// Words of a set; they fill a cache line.
const WAYS: usize = 16;
/// Steps of the clock in one reach: the precision with which a key is forgotten.
const STEPS: u32 = 1024;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Set([u32; WAYS]);

/// The memory of evicted keys.
#[derive(Debug)]
pub struct Ghost {
    sets: Box<[Set]>,
    /// Units noted since the start.
    noted: u64,
    /// Units in a step of the clock.
    step: u32,
}

impl Ghost {
    /// Remembers the last `units` that were evicted, if they were single units: that many words, 4 bytes a unit.
    #[must_use]
    pub fn new(units: u32) -> Self {
        let sets = (units as usize).div_ceil(WAYS).max(1);
        Self {
            sets: vec![Set([0; WAYS]); sets].into(),
            noted: 0,
            step: units.div_ceil(STEPS).max(1),
        }
    }

    /// The folio of `blocks` blocks at `key` was evicted.
    pub fn note(&mut self, key: FolioKey, blocks: u32) {
        let time = self.time();
        let (set, fingerprint) = self.place(key);
        let words = &mut self.sets[set].0;
        let same = words.iter().position(|word| word >> 16 == fingerprint);
        words[..=same.unwrap_or(WAYS - 1)].rotate_right(1);
        words[0] = fingerprint << 16 | time;
        self.noted += u64::from(blocks);
    }

    /// Whether the folio at `key` was evicted lately; it is forgotten.
    pub fn take(&mut self, key: FolioKey) -> bool {
        let time = self.time();
        let (set, fingerprint) = self.place(key);
        let words = &mut self.sets[set].0;
        let Some(at) = words.iter().position(|word| word >> 16 == fingerprint) else {
            return false;
        };
        let age = (time.wrapping_sub(words[at])) & 0xffff;
        words[at..].rotate_left(1);
        words[WAYS - 1] = 0;
        age <= STEPS
    }

    /// Bytes of its table.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of_val(&*self.sets)
    }

    fn time(&self) -> u32 {
        (self.noted / u64::from(self.step)) as u32 & 0xffff
    }

    /// The set, and the fingerprint: never 0, which is nobody's.
    fn place(&self, key: FolioKey) -> (usize, u32) {
        let word = key.word();
        let once = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (once ^ once >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        let set = (u128::from(hash) * self.sets.len() as u128) >> 64;
        (set as usize, (hash as u32 & 0xffff).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::VolumeId;

    fn key(block: u64) -> FolioKey {
        FolioKey::new(VolumeId(3), block, 0)
    }

    /// How many of the blocks are remembered.
    fn remembered(ghost: &mut Ghost, blocks: std::ops::Range<u64>) -> u64 {
        blocks.filter(|&block| ghost.take(key(block))).count() as u64
    }

    #[test]
    fn remembers_what_was_evicted_lately() {
        let mut ghost = Ghost::new(9000);
        for block in 0..100_000 {
            ghost.note(key(block), 1);
        }
        // Sets are not filled evenly: some of the last 9000 are gone, and few of those before are left.
        let last = remembered(&mut ghost, 91_000..100_000);
        assert!((7_500..=9_000).contains(&last), "{last} of the last 9000");
        assert_eq!(remembered(&mut ghost, 91_000..100_000), 0, "once");
        let earlier = remembered(&mut ghost, 0..90_000);
        assert!(earlier < 100, "{earlier} of those before");
    }

    #[test]
    fn large_folios_are_forgotten_by_bytes() {
        let mut ghost = Ghost::new(9000);
        for block in 0..100 {
            ghost.note(key(block << 9), 512);
        }
        // 9000 units are 17.6 folios.
        let lately: Vec<u64> = (0..100).filter(|&block| ghost.take(key(block << 9))).collect();
        assert_eq!(lately, (82..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_key_is_there_once() {
        let mut ghost = Ghost::new(16);
        for block in [1, 2, 1, 3, 1, 1] {
            ghost.note(key(block), 1);
        }
        assert_eq!(
            [1, 1, 2, 3, 2, 4].map(|block| ghost.take(key(block))),
            [true, false, true, true, false, false]
        );
    }
}
