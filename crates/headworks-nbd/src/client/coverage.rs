//! Which bytes of a read the chunks of a structured reply have covered.
//!
//! Rule: the chunks of a read cover each of its bytes exactly once, in any order. Chunks that overlap are an error at once, also where their
//! lengths add up to that of the read, so no gap is ever returned. The number of chunks, and of pieces with gaps between them, is bounded.

/// Most pieces with gaps between them.
const PIECES_MAX: usize = 64;
/// Most chunks without data that a reply may have: errors, and the end.
const CHUNKS_MAX: u32 = 64;

/// The covered bytes of one read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage {
    /// Start and end of each piece: in order, with gaps between them.
    pieces: Vec<(u32, u32)>,
    /// Chunks so far.
    chunks: u32,
}

impl Coverage {
    /// Forgets everything, for another read.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.chunks = 0;
    }

    /// Whether all bytes of a read of `len` bytes are covered.
    pub fn is_whole(&self, len: u32) -> bool {
        len == 0 || self.pieces[..] == [(0, len)]
    }

    /// Counts a chunk of the reply to a request of `len` bytes.
    pub fn count(&mut self, len: u32) -> Result<(), &'static str> {
        self.chunks += 1;
        match self.chunks <= CHUNKS_MAX + len / 512 {
            true => Ok(()),
            false => Err("it sent more chunks than a request can have"),
        }
    }

    /// Adds a chunk that lies within the read.
    pub fn add(&mut self, at: u32, len: u32) -> Result<(), &'static str> {
        let end = at + len;
        if let Some(last) = self.pieces.last_mut().filter(|last| last.1 == at) {
            last.1 = end;
            return Ok(());
        }
        let is_full = self.pieces.len() == PIECES_MAX;
        let next = self.pieces.partition_point(|piece| piece.0 < at);
        let (before, after) = self.pieces.split_at_mut(next);
        let (before, after) = (before.last_mut(), after.first_mut());
        let is_over = before.as_ref().is_some_and(|it| it.1 > at);
        if is_over || after.as_ref().is_some_and(|it| it.0 < end) {
            return Err("it sent chunks of a read that overlap");
        }
        match (before, after) {
            (Some(before), Some(after)) if before.1 == at && after.0 == end => {
                before.1 = after.1;
                self.pieces.remove(next);
            }
            (Some(before), _) if before.1 == at => before.1 = end,
            (_, Some(after)) if after.0 == end => after.0 = at,
            _ if is_full => {
                return Err("it sent a read in too many pieces");
            }
            _ => self.pieces.insert(next, (at, end)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    #[test]
    fn chunks_in_any_order_cover_a_read_once() {
        let mut prng = Prng::new(3);
        for _ in 0..2000 {
            let (mut coverage, mut model) = (Coverage::default(), [false; 40]);
            for _ in 0..60 {
                let at = prng.below(40) as usize;
                let len = prng.between(1, 40 - at as u64) as usize;
                let range = at..at + len;
                let overlaps = model[range.clone()].iter().any(|&is| is);
                assert_eq!(coverage.add(at as u32, len as u32).is_err(), overlaps);
                if overlaps {
                    continue;
                }
                model[range].fill(true);
                assert_eq!(coverage.is_whole(40), model.iter().all(|&is| is));
            }
            assert!(coverage.pieces.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }

    #[test]
    fn pieces_and_chunks_are_bounded() {
        let mut coverage = Coverage::default();
        let added = (0..1000).take_while(|at| coverage.add(at * 2, 1).is_ok()).count();
        assert_eq!(added, PIECES_MAX);
        coverage.clear();
        assert!(coverage.pieces.is_empty() && coverage.is_whole(0));
        let counted = (0..1000).take_while(|_| coverage.count(1024).is_ok()).count();
        assert_eq!(counted, CHUNKS_MAX as usize + 2);
    }
}
