//! Where the blocks of files lie on the disk.
//!
//! ```text
//!   0 ............................... journal .............................. size
//!     first fit, behind the file's last block where that is free
//! ```
//!
//! A block gets its place when it is written back, not when it is written, as with the delayed allocation of ext4: what is written back
//! together lies together. Invariants: a block of the disk belongs to one block of one file or is free; the journal's are never given away.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;
/// Blocks of the journal: 128 MiB, as ext4 has it from 1 GiB on, and an eighth of smaller file systems.
const JOURNAL_MAX: u64 = 32_768;

/// Blocks of a file that lie on the disk in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block of the file.
    pub block: u64,
    /// First block of the disk.
    pub place: u64,
    /// Number of its blocks.
    pub count: u64,
}

/// The places of all files.
#[derive(Debug)]
pub(crate) struct Places {
    /// Free blocks of the disk: first and number. No two touch.
    free: BTreeMap<u64, u64>,
    /// By file: first block, with its place and number.
    files: HashMap<u64, BTreeMap<u64, (u64, u64)>>,
    journal: Range<u64>,
}

impl Places {
    /// An empty file system with room for `size` bytes, and for its journal.
    pub fn new(size: u64) -> Self {
        let blocks = size.div_ceil(BLOCK);
        let journal = (blocks / 8).clamp(8, JOURNAL_MAX);
        let journal = blocks / 2..blocks / 2 + journal;
        let mut places = Self { free: BTreeMap::new(), files: HashMap::new(), journal };
        places.give_back(0, places.journal.start);
        places.give_back(places.journal.end, blocks - blocks / 2);
        places
    }

    /// Bytes of a disk that a file system of this size takes.
    pub fn span(size: u64) -> u64 {
        let places = Self::new(size);
        places.free.iter().next_back().map_or(0, |(start, count)| start + count) * BLOCK
    }

    /// The blocks of the journal.
    pub fn journal(&self) -> Range<u64> {
        self.journal.clone()
    }

    /// The blocks of a range that have places.
    pub fn runs(&self, file: u64, blocks: Range<u64>) -> Vec<Run> {
        let Some(extents) = self.files.get(&file) else { return Vec::new() };
        let first = extents.range(..=blocks.start).next_back().map_or(blocks.start, |(at, _)| *at);
        let touching = extents.range(first..blocks.end.max(first));
        let cut = touching.filter_map(|(&at, &(place, count))| {
            let (from, to) = (at.max(blocks.start), (at + count).min(blocks.end));
            (from < to).then(|| Run { block: from, place: place + from - at, count: to - from })
        });
        cut.collect()
    }

    /// Gives places to the blocks of a range that have none. Returns where all of them are, and whether one is new.
    pub fn place(&mut self, file: u64, blocks: Range<u64>) -> (Vec<Run>, bool) {
        let mut at = blocks.start;
        let mut new = false;
        for run in self.runs(file, blocks.clone()) {
            new |= self.fill(file, at..run.block);
            at = run.block + run.count;
        }
        new |= self.fill(file, at..blocks.end);
        (self.runs(file, blocks), new)
    }

    /// Takes places away: the blocks of a range are a hole.
    pub fn remove(&mut self, file: u64, blocks: Range<u64>) {
        for run in self.runs(file, blocks) {
            let Some(extents) = self.files.get_mut(&file) else { return };
            let (&at, &(place, count)) =
                extents.range(..=run.block).next_back().expect("a run is part of an extent");
            extents.remove(&at);
            if at < run.block {
                extents.insert(at, (place, run.block - at));
            }
            let (end, extent_end) = (run.block + run.count, at + count);
            if end < extent_end {
                extents.insert(end, (run.place + run.count, extent_end - end));
            }
            self.give_back(run.place, run.count);
        }
        if self.files.get(&file).is_some_and(BTreeMap::is_empty) {
            self.files.remove(&file);
        }
    }

    /// Places a range that has none. Returns whether it has blocks.
    fn fill(&mut self, file: u64, blocks: Range<u64>) -> bool {
        let mut at = blocks.start;
        while at < blocks.end {
            let extents = self.files.entry(file).or_default();
            let before = extents
                .range(..at)
                .next_back()
                .map(|(&first, &(place, count))| (first, place + count, first + count == at));
            let goal = before.map(|(_, end, _)| end);
            let (place, count) = self.take(goal, blocks.end - at);
            let extents = self.files.entry(file).or_default();
            match before {
                Some((first, end, true)) if end == place => {
                    extents.entry(first).and_modify(|(_, length)| *length += count);
                }
                _ => drop(extents.insert(at, (place, count))),
            }
            at += count;
        }
        !blocks.is_empty()
    }

    /// Takes up to `wanted` free blocks: at `goal`, else the first that are enough, else the first.
    fn take(&mut self, goal: Option<u64>, wanted: u64) -> (u64, u64) {
        let at_goal = goal.and_then(|goal| {
            let (&start, &count) = self.free.range(..=goal).next_back()?;
            (goal < start + count).then_some((start, count, goal))
        });
        let first = |enough: u64| {
            let mut found = self.free.iter().filter(|&(_, &count)| count >= enough);
            found.next().map(|(&start, &count)| (start, count, start))
        };
        // Files have at most as many blocks as there are, so the last resort is never reached.
        let found = at_goal.or_else(|| first(wanted)).or_else(|| first(1));
        let Some((start, count, place)) = found else { return (0, wanted) };
        let taken = wanted.min(start + count - place);
        self.free.remove(&start);
        if place > start {
            self.free.insert(start, place - start);
        }
        if place + taken < start + count {
            self.free.insert(place + taken, start + count - place - taken);
        }
        (place, taken)
    }

    fn give_back(&mut self, place: u64, count: u64) {
        let (mut start, mut end) = (place, place + count);
        if let Some((&before, &length)) = self.free.range(..place).next_back()
            && before + length == place
        {
            start = before;
        }
        if let Some(&length) = self.free.get(&end) {
            self.free.remove(&end);
            end += length;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    #[test]
    fn files_lie_together_and_grow_where_they_end() {
        let mut places = Places::new(64 << 20);
        assert_eq!(places.place(2, 0..10), (vec![Run { block: 0, place: 0, count: 10 }], true));
        assert_eq!(places.place(3, 0..5).0, [Run { block: 0, place: 10, count: 5 }]);
        places.remove(3, 0..5);
        assert_eq!(places.place(2, 8..14), (vec![Run { block: 8, place: 8, count: 6 }], true));
        assert_eq!(places.place(2, 0..14), (vec![Run { block: 0, place: 0, count: 14 }], false));
        places.remove(2, 4..6);
        let kept = [Run { block: 0, place: 0, count: 4 }, Run { block: 6, place: 6, count: 8 }];
        assert_eq!(places.runs(2, 0..100), kept);
        // The hole is the first that is large enough.
        assert_eq!(places.place(4, 0..2).0, [Run { block: 0, place: 4, count: 2 }]);
    }

    #[test]
    fn every_block_is_free_or_of_one_file() {
        let (mut places, mut prng) = (Places::new(1 << 20), Prng::new(5));
        let mut model: HashMap<(u64, u64), ()> = HashMap::new();
        for _ in 0..4000 {
            let file = 2 + prng.below(5);
            let first = prng.below(48);
            let blocks = first..first + prng.below(9);
            let added = blocks.clone().filter(|block| !model.contains_key(&(file, *block))).count();
            if prng.below(2) == 0 && model.len() + added <= 256 {
                let new = places.place(file, blocks.clone()).1;
                assert_eq!(new, added > 0);
                model.extend(blocks.map(|block| ((file, block), ())));
            } else {
                places.remove(file, blocks.clone());
                model.retain(|(of, block), ()| *of != file || !blocks.contains(block));
            }
            let mut owner = vec![0; 256 + 32];
            owner[128..160].fill(u64::MAX);
            for (file, extents) in &places.files {
                for (&block, &(place, count)) in extents {
                    for index in 0..count {
                        assert!(model.contains_key(&(*file, block + index)));
                        let owner = &mut owner[(place + index) as usize];
                        assert_eq!(*owner, 0, "a block of the disk has two owners");
                        *owner = *file;
                    }
                }
            }
            let taken = owner.iter().filter(|owner| **owner != 0 && **owner != u64::MAX).count();
            assert_eq!(taken, model.len());
            let mut last = None;
            for (&start, &count) in &places.free {
                assert!(last.is_none_or(|end| end < start), "free blocks touch");
                assert!(owner[start as usize..(start + count) as usize].iter().all(|o| *o == 0));
                last = Some(start + count);
            }
            assert_eq!(places.free.values().sum::<u64>(), 256 - model.len() as u64);
        }
    }
}
