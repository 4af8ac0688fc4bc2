//! How long the streams of a volume become: a window reaches as far as nine of ten of them go on.
//!
//! Lengths are kept in classes, four to each power of two. A class counts the streams that grew beyond it and those that ended
//! in it; a stream that still runs counts in neither of its class. The share of streams that reach a length is the product of the
//! shares of the classes up to there: Kaplan and Meier's estimate (J. Am. Stat. Assoc. 53, 1958), which is right although streams
//! are watched that have not ended.
//!
//! So a volume of short files gets short windows, and a stream that has outgrown them large ones, as far as others did. A smaller
//! largest window would take from the long streams beside the short ones.
//!
//! A stream ends when others of its connection take its place in the table, and with its connection. If its marker is reached
//! later, it had not ended: then one end is not counted. (To count ends sooner, after four newer streams, was tried: 2 % fewer
//! blocks of a first boot's short files, and read-ahead lost on eight streams that start at once.)
//!
//! Invariants: where no stream has ended, every length is likely; counts of a class are below [`COUNTED`], so that streams
//! of long ago are forgotten; a likely length is at least the one that was asked for.

/// Classes of a power of two, as powers of two.
const PARTS: u32 = 2;
/// Classes with counts; longer streams (64 MiB) go on.
const CLASSES: usize = 48;
/// Streams of a class after which its counts are halved.
const COUNTED: u8 = 64;
/// Streams that grew beyond their class before any was seen: one that ended says little yet.
const PRIOR: u32 = 1;
/// One, as a share.
const ONE: u64 = 1 << 16;
/// The share of streams that has to use all of a window: so about a tenth is read past the ends of files. A larger share costs more
/// than it saves: with 15/16 half as many blocks again are waited for, and 3 % fewer are read (files of all lengths up to 4 MiB).
const USED: u64 = ONE * 9 / 10;

/// Lengths of a volume's streams.
#[derive(Clone, Copy, Debug)]
pub struct StreamLengths {
    grown: [u8; CLASSES],
    ended: [u8; CLASSES],
    /// Streams that went on after they were replaced: so many ends are none.
    returned: u8,
}

/// The class of a length: the first one ends with 4 blocks, those of 5 to 7 have one each, of 8 to 15 one for two, and so on.
fn class(blocks: u32) -> usize {
    debug_assert!(blocks > 0, "a stream has blocks");
    let blocks = blocks.max(1 << PARTS);
    let power = blocks.ilog2() - PARTS;
    ((power << PARTS) + (blocks >> power) - (1 << PARTS)) as usize
}

/// The first length of a class.
fn first_of(class: usize) -> u64 {
    let (power, part) = (class >> PARTS, class & ((1 << PARTS) - 1));
    if class == 0 { 0 } else { ((part + (1 << PARTS)) as u64) << power }
}

impl Default for StreamLengths {
    fn default() -> Self {
        Self { grown: [0; CLASSES], ended: [0; CLASSES], returned: 0 }
    }
}

impl StreamLengths {
    /// Counts a stream that grew from one length to another, in blocks.
    #[inline]
    pub fn on_grown(&mut self, from: u32, to: u32) {
        for class in class(from)..class(to).min(CLASSES) {
            self.grown[class] += 1;
            self.bound(class);
        }
    }

    /// Counts a stream that goes on after it was replaced, or by another connection.
    pub fn on_returned(&mut self) {
        self.returned = self.returned.saturating_add(1);
    }

    /// Counts a stream that ended with a length in blocks.
    pub fn on_ended(&mut self, blocks: u32) {
        if let Some(rest) = self.returned.checked_sub(1) {
            self.returned = rest;
            return;
        }
        let class = class(blocks);
        if class < CLASSES {
            self.ended[class] += 1;
            self.bound(class);
        }
    }

    fn bound(&mut self, class: usize) {
        if self.grown[class] + self.ended[class] >= COUNTED {
            self.grown[class] /= 2;
            self.ended[class] /= 2;
        }
        debug_assert!(self.grown[class] + self.ended[class] < COUNTED, "old streams are forgotten");
    }

    /// Returns the length in blocks that nine of ten streams of `blocks` reach, or `None` if it has no limit. Those that end
    /// in a class are spread over it evenly.
    pub fn likely(&self, blocks: u32) -> Option<u32> {
        let (mut at, mut share) = (u64::from(blocks), ONE);
        for class in class(blocks)..CLASSES {
            let (first, end) = (first_of(class), first_of(class + 1));
            let ended = u64::from(self.ended[class]);
            let all = u64::from(self.grown[class]) + u64::from(PRIOR) + ended;
            // The streams of the class that end in the rest of it.
            let lost = share * ended * (end - at) / (all * (end - first));
            debug_assert!(at < end && lost <= share, "a part of those that came as far");
            if share - lost < USED {
                return Some((at + (end - at) * (share - USED) / lost) as u32);
            }
            (at, share) = (end, share - lost);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_meet() {
        let mut last = 0;
        for blocks in 1..40_000 {
            let class = class(blocks);
            assert!(class == last || class == last + 1 && first_of(class) == u64::from(blocks));
            assert!((first_of(class)..first_of(class + 1)).contains(&u64::from(blocks)));
            last = class;
        }
        assert_eq!(first_of(CLASSES), 16_384);
    }

    #[test]
    fn every_length_is_likely_until_streams_end() {
        let mut lengths = StreamLengths::default();
        assert_eq!([1, 100, u32::MAX].map(|at| lengths.likely(at)), [None; 3]);
        lengths.on_ended(u32::MAX);
        assert_eq!(lengths.likely(1), None, "as long as any");
        lengths.on_ended(34);
        // One of two, the other one that no stream was: a tenth is lost in a fifth of 32 to 39.
        assert_eq!(lengths.likely(2), Some(33));
        assert_eq!([34, 38, 39, 40].map(|at| lengths.likely(at)), [Some(35), Some(39), None, None]);
    }

    #[test]
    fn shares_of_classes_multiply() {
        let mut lengths = StreamLengths::default();
        for _ in 0..47 {
            lengths.on_grown(1, 2000);
        }
        // 2 of 50 in each of the classes of 64 and 320 blocks, 4 % of the streams.
        for _ in 0..2 {
            lengths.on_ended(64);
            lengths.on_ended(320);
        }
        let likely = lengths.likely(10);
        assert!(likely.is_none(), "92 % reach every length: {likely:?}");
        (0..2).for_each(|_| lengths.on_ended(700));
        let likely = lengths.likely(10);
        assert!(likely.is_some_and(|likely| (640..768).contains(&likely)), "{likely:?}");
        assert_eq!(lengths.likely(80), None, "of those that reach 80 blocks more go on");
    }

    #[test]
    fn ends_are_forgotten_and_taken_back() {
        let mut lengths = StreamLengths::default();
        (0..1000).for_each(|_| lengths.on_ended(8));
        assert_eq!(lengths.likely(8), Some(8));
        let needed = (0..1000).position(|_| {
            lengths.on_grown(8, 1 << 20);
            lengths.likely(8).is_none()
        });
        assert!(needed.is_some_and(|needed| (64..512).contains(&needed)), "{needed:?}");
        let mut lengths = StreamLengths::default();
        for _ in 0..100 {
            lengths.on_returned();
            lengths.on_ended(8);
        }
        assert_eq!(lengths.likely(8), None);
    }
}
