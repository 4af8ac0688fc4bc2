//! The ghost list: the keys of folios that were evicted lately, without their data.
//!
//! A fixed table of words, each a fingerprint and the time of the eviction, in sets of 16 (a cache line): the newest word of a set
//! replaces its oldest. Time is counted in units evicted, so that the list reaches back by the size of one main list whatever the
//! folios' sizes are; a longer memory would take the second round of a long scan for a working set. Nothing is removed when a
//! block is invalidated or written; a stale word only lets one folio start on the main list.
//!
//! ```text
//!   set      | fingerprint:16 time:16 | ... 16 words |     time = units noted / (reach / 1024), wraps after 64 reaches
//! ```
//!
//! Invariant: a fingerprint is not 0 and occurs once in its set.

use crate::cache::pool::folio::FolioKey;
use crate::cache::pool::lines::{Lines, WORDS as WAYS};

/// Steps of the clock in one reach: the precision of the age of a key.
const STEPS: u32 = 1024;

/// The keys of folios that were evicted lately.
#[derive(Debug)]
pub struct Ghost {
    sets: Lines,
    /// Units noted since the start.
    noted: u64,
    /// Units in a step of the clock.
    step: u32,
}

impl Ghost {
    /// Creates a list for the last `units` evicted units: that many words, 4 bytes a unit.
    #[must_use]
    pub fn new(units: u32) -> Self {
        let sets = (units as usize).div_ceil(WAYS).max(1);
        Self { sets: Lines::new(sets), noted: 0, step: step(units) }
    }

    /// Lets the list reach back by the last `units` evicted units, at most as many as it was created for.
    pub fn set_reach(&mut self, units: u32) {
        // The same time in new steps: keys that were noted before keep about the age that they had.
        let (time, step) = (self.noted / u64::from(self.step), step(units));
        (self.noted, self.step) = (time * u64::from(step), step);
    }

    /// Adds the key of a folio of `blocks` blocks that was evicted.
    pub fn note(&mut self, key: FolioKey, blocks: u32) {
        assert!(blocks > 0, "a folio has blocks");
        let time = self.time();
        let (set, fingerprint) = self.slot_of(key);
        let words = self.sets.line_mut(set);
        let same = words.iter().position(|word| word >> 16 == fingerprint);
        words[..=same.unwrap_or(WAYS - 1)].rotate_right(1);
        words[0] = fingerprint << 16 | time;
        self.noted += u64::from(blocks);
    }

    /// Removes a key; returns true if its folio was evicted lately.
    pub fn take(&mut self, key: FolioKey) -> bool {
        let time = self.time();
        let (set, fingerprint) = self.slot_of(key);
        let words = self.sets.line_mut(set);
        let Some(at) = words.iter().position(|word| word >> 16 == fingerprint) else {
            return false;
        };
        let age = (time.wrapping_sub(words[at])) & 0xffff;
        let again = words[at + 1..].iter().any(|word| word >> 16 == fingerprint);
        debug_assert!(!again, "a fingerprint occurs once in its set");
        words[at..].rotate_left(1);
        words[WAYS - 1] = 0;
        age <= STEPS
    }

    /// Returns the size of the table in bytes.
    #[cfg(test)]
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of::<u32>() * WAYS * self.sets.len()
    }

    fn time(&self) -> u32 {
        (self.noted / u64::from(self.step)) as u32 & 0xffff
    }

    /// Returns the set of a key and its fingerprint, which is not 0: a word of 0 is empty.
    fn slot_of(&self, key: FolioKey) -> (usize, u32) {
        let word = key.word();
        let once = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (once ^ once >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
        let set = (u128::from(hash) * self.sets.len() as u128) >> 64;
        (set as usize, (hash as u32 & 0xffff).max(1))
    }
}

/// Returns the units in a step of the clock for a list that reaches back by `units`.
fn step(units: u32) -> u32 {
    units.div_ceil(STEPS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::VolumeId;

    fn key(block: u64) -> FolioKey {
        FolioKey::new(VolumeId(3), block, 0)
    }

    /// Counts the blocks that are remembered.
    fn remembered(ghost: &mut Ghost, blocks: std::ops::Range<u64>) -> u64 {
        blocks.filter(|&block| ghost.take(key(block))).count() as u64
    }

    #[test]
    fn recent_evictions_are_remembered_older_are_not() {
        let mut ghost = Ghost::new(9000);
        for block in 0..100_000 {
            ghost.note(key(block), 1);
        }
        // Sets fill unevenly: some of the last 9000 are lost, and few older ones are left.
        let last = remembered(&mut ghost, 91_000..100_000);
        assert!((7_500..=9_000).contains(&last), "{last} of the last 9000");
        assert_eq!(remembered(&mut ghost, 91_000..100_000), 0, "once");
        let earlier = remembered(&mut ghost, 0..90_000);
        assert!(earlier < 100, "{earlier} of those before");
    }

    #[test]
    fn large_folios_age_by_their_size() {
        let mut ghost = Ghost::new(9000);
        for block in 0..100 {
            ghost.note(key(block << 9), 512);
        }
        // 9000 units are 17.6 folios.
        let lately: Vec<u64> = (0..100).filter(|&block| ghost.take(key(block << 9))).collect();
        assert_eq!(lately, (82..100).collect::<Vec<_>>());
    }

    #[test]
    fn key_is_stored_once() {
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
