//! Guesses whether the next read is answered from the cache.

/// Guesses whether reads are cached, from whether the last ones were.
///
/// A returned read costs a second pass through the shard. So after a miss two reads have a buffer, twice as many after each further
/// one, and then one read tries again; each hit halves their number.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheGuess {
    /// Misses less hits, 0..=`MOST`.
    misses: u8,
    /// Reads that have a buffer before one tries again.
    skip: u8,
}

impl CacheGuess {
    /// At most one read in 65 tries.
    const MOST: u8 = 6;

    /// Whether the next read goes without a buffer.
    #[inline]
    pub fn expects_hit(&mut self) -> bool {
        if self.misses == 0 {
            return true;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        // Until its outcome is known, the others have buffers.
        self.skip = 1 << self.misses;
        true
    }

    /// Counts a read that was.
    #[inline]
    pub fn note_hit(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    /// Counts a read that was not.
    pub fn note_miss(&mut self) {
        self.misses = (self.misses + 1).min(Self::MOST);
        self.skip = 1 << self.misses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads of a sequence of hits and misses that try, in percent, each answered before the next.
    fn tries(hits: u32, of: u32) -> u32 {
        let (mut guess, mut tries) = (CacheGuess::default(), 0);
        let mut prng = headworks_core::prng::Prng::new(5);
        for _ in 0..100_000 {
            if guess.expects_hit() {
                tries += 1;
                match prng.below(of.into()) < u64::from(hits) {
                    true => guess.note_hit(),
                    false => guess.note_miss(),
                }
            }
        }
        tries / 1000
    }

    #[test]
    fn few_reads_are_returned_and_most_hits_go_without_buffer() {
        assert_eq!(tries(1, 1), 100);
        assert!(tries(0, 1) < 2);
        assert!(tries(1, 2) < 6, "{}", tries(1, 2));
        assert!(tries(19, 20) > 80, "{}", tries(19, 20));
    }

    #[test]
    fn one_read_tries_while_its_outcome_is_unknown() {
        let mut guess = CacheGuess::default();
        (0..64).for_each(|_| guess.note_miss());
        assert_eq!((0..650).filter(|_| guess.expects_hit()).count(), 10);
    }
}
