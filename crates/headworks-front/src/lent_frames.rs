//! Which frames of the page cache are in send queues: looked up before they change.
//!
//! ```text
//!   answered from frames --mark, note--> lent --sent: note--> not lent
//!                                          `--may_have (before a change): the connections' queues are searched
//! ```
//!
//! The marks are a filter: a bit for each hash of 64 KiB. Bits are not removed when data were sent; a search, which a stale one
//! may cause, clears them all and marks what it finds. A search visits every lent piece, so their number is limited; the second
//! half of the limit is for connections without any, so clients that take nothing do not use up all.
//!
//! Invariants: the bits of every lent range are set; `total` is the sum of `counts`; a connection with a count is a borrower.

use headworks::driver::Span;
use headworks_core::Instant;

/// Most lent pieces of a shard: a search takes some microseconds.
const PIECES_MAX: u32 = 1024;
/// Bytes that are copied in a turn because their frames change; further ones are dropped. They take 0.1 ms.
const COPY_MAX: usize = 1 << 20;
/// Bits of the filter. With the most pieces, one change in sixteen is searched for in vain.
const BITS: usize = 1 << 14;
/// Bytes under one bit, as a power of two.
const GRANULE_SHIFT: u32 = 16;

/// Frames in send queues.
#[derive(Debug)]
pub struct LentFrames {
    bits: Box<[u64; BITS / 64]>,
    /// Connections with lent pieces, and some that had them.
    borrowers: Vec<u32>,
    /// Pieces of each slot, and whether it is a borrower.
    counts: Vec<(u32, bool)>,
    total: u32,
    /// Bytes copied in the turn of this time.
    copied: (Instant, usize),
}

impl LentFrames {
    /// Nothing is lent to the slots below `places`.
    pub fn new(places: usize) -> Self {
        Self {
            bits: Box::new([0; BITS / 64]),
            borrowers: Vec::with_capacity(places),
            counts: vec![(0, false); places],
            total: 0,
            copied: (Instant(0), 0),
        }
    }

    /// Whether more may be lent to a connection.
    #[inline]
    pub fn may_lend(&self, slot: u32) -> bool {
        let most = if self.counts[slot as usize].0 == 0 { PIECES_MAX } else { PIECES_MAX / 2 };
        self.total < most
    }

    /// Whether more is lent than may be.
    #[inline]
    pub fn is_over_limit(&self) -> bool {
        self.total > PIECES_MAX
    }

    /// Records the number of pieces in a connection's queue.
    #[inline]
    pub fn note(&mut self, slot: u32, pieces: u32) {
        let (count, listed) = &mut self.counts[slot as usize];
        assert!(self.total >= *count, "the total is the sum of the counts");
        self.total = self.total - *count + pieces;
        *count = pieces;
        if pieces > 0 && !std::mem::replace(listed, true) {
            self.borrowers.push(slot);
        }
    }

    /// Marks frames that are lent.
    #[inline]
    pub fn mark(&mut self, frames: Span) {
        for granule in granules(frames) {
            let bit = bit_of(granule);
            self.bits[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Whether some of the frames may be lent.
    #[inline]
    pub fn may_have(&self, frames: Span) -> bool {
        self.total > 0
            && (frames.len() >> GRANULE_SHIFT >= BITS
                || granules(frames).any(|granule| {
                    let bit = bit_of(granule);
                    self.bits[bit / 64] >> (bit % 64) & 1 != 0
                }))
    }

    /// Clears the marks; the caller marks again what is lent.
    pub fn clear_marks(&mut self) {
        self.bits.fill(0);
    }

    /// The connection at a place of the list of borrowers.
    pub fn borrower(&self, index: usize) -> Option<u32> {
        self.borrowers.get(index).copied()
    }

    /// Forgets borrowers without lent pieces.
    pub fn forget_idle(&mut self) {
        let counts = &mut self.counts;
        self.borrowers.retain(|&slot| {
            let (count, listed) = &mut counts[slot as usize];
            *listed = *count > 0;
            *listed
        });
        assert_eq!(
            self.total > 0,
            !self.borrowers.is_empty(),
            "a connection with a count is listed"
        );
    }

    /// Whether `len` bytes more may be copied in this turn; counts them.
    pub fn may_copy(&mut self, now: Instant, len: usize) -> bool {
        if self.copied.0 != now {
            self.copied = (now, 0);
        }
        let copied = self.copied.1 + len;
        let fits = copied <= COPY_MAX;
        if fits {
            self.copied.1 = copied;
        }
        fits
    }
}

/// The numbers of the granules that a range touches.
#[inline]
fn granules(frames: Span) -> std::ops::RangeInclusive<usize> {
    let start = frames.base() as usize;
    let last = start + frames.len().max(1) - 1;
    start >> GRANULE_SHIFT..=last >> GRANULE_SHIFT
}

/// The bit of a granule, by multiplicative hashing.
#[inline]
fn bit_of(granule: usize) -> usize {
    let hash = (granule as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (64 - BITS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(at: usize, len: usize) -> Span {
        // SAFETY: no byte of it is used.
        unsafe { Span::new(std::ptr::without_provenance_mut(at), len) }
    }

    #[test]
    fn lent_frames_are_found_and_few_others() {
        let mut lent = LentFrames::new(4);
        assert!(!lent.may_have(span(0, 1 << 30)));
        for number in 0..PIECES_MAX as usize {
            lent.mark(span(number << 20, 4096));
        }
        assert!(!lent.may_have(span(0, 4096)), "nothing is counted");
        lent.note(1, PIECES_MAX);
        for number in 0..PIECES_MAX as usize {
            assert!(lent.may_have(span((number << 20) + 4095, 1)));
            assert!(lent.may_have(span((number << 20) - (1 << 19) * number.min(1), 1 << 20)));
        }
        let others = |&number: &usize| lent.may_have(span((1 << 40) + (number << 16), 4096));
        let found = (0..10_000).filter(others).count();
        assert!(found < 1000, "{found}");
        lent.clear_marks();
        assert!(!lent.may_have(span(0, 4096)));
    }

    #[test]
    fn second_half_is_for_connections_without_lent_frames() {
        let mut lent = LentFrames::new(4);
        lent.note(0, PIECES_MAX / 2);
        assert!(!lent.may_lend(0) && lent.may_lend(1) && !lent.is_over_limit());
        lent.note(1, PIECES_MAX / 2);
        assert!(!lent.may_lend(2) && !lent.is_over_limit());
        lent.note(2, 1);
        assert!(lent.is_over_limit());
        assert_eq!((0..4).map_while(|at| lent.borrower(at)).collect::<Vec<_>>(), [0, 1, 2]);
        lent.note(0, 0);
        lent.note(0, 3);
        lent.note(1, 0);
        lent.forget_idle();
        assert_eq!((0..4).map_while(|at| lent.borrower(at)).collect::<Vec<_>>(), [0, 2]);
        assert!(lent.may_lend(1) && lent.total == 4);
    }

    #[test]
    fn copies_of_a_turn_are_bounded() {
        let mut lent = LentFrames::new(1);
        assert!(lent.may_copy(Instant(1), COPY_MAX - 1) && !lent.may_copy(Instant(1), 2));
        assert!(lent.may_copy(Instant(1), 1) && lent.may_copy(Instant(2), COPY_MAX));
    }
}
