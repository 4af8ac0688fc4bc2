//! A table of cache lines that are zero, and whose memory is untouched until they are used.
//!
//! A hash table is as large as the pool may become, and must cost nothing before it is used. Zeroed memory of plain words is had from
//! the kernel untouched; memory with an alignment of its own is zeroed by writing it. So the words are had without alignment, and
//! the lines begin at the first word that is aligned.
//!
//! Invariant: line `n` is the 64 aligned bytes from word `first + 16 * n` on, for `n < lines`.

/// Words of a line.
pub const WORDS: usize = 16;
/// The words of one line.
pub type Line = [u32; WORDS];

/// A table of aligned lines.
#[derive(Debug)]
pub struct Lines {
    words: Vec<u32>,
    /// The first word of the first line.
    first: usize,
    lines: usize,
}

impl Lines {
    /// Creates a table of `lines` lines of zeros.
    #[must_use]
    pub fn new(lines: usize) -> Self {
        let words = vec![0; lines * WORDS + WORDS];
        let past = words.as_ptr() as usize % size_of::<Line>();
        let first = (size_of::<Line>() - past) % size_of::<Line>() / size_of::<u32>();
        debug_assert!(first < WORDS, "the lines fit behind the alignment");
        Self { words, first, lines }
    }

    /// Returns the number of lines.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines
    }

    /// Returns the words of line `at`.
    #[inline]
    #[must_use]
    pub fn line(&self, at: usize) -> &Line {
        let word = self.first + at * WORDS;
        let line = &self.words[word..word + WORDS];
        line.try_into().expect("a line has its words")
    }

    /// Returns the words of line `at`, to change them.
    #[inline]
    pub fn line_mut(&mut self, at: usize) -> &mut Line {
        debug_assert!(at < self.lines, "a line of the table");
        let word = self.first + at * WORDS;
        let line = &mut self.words[word..word + WORDS];
        line.try_into().expect("a line has its words")
    }

    /// Returns the memory of the table.
    #[must_use]
    pub fn memory(&self) -> std::ops::Range<*const u8> {
        let words = self.words.as_ptr_range();
        words.start.cast()..words.end.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_zero_and_apart() {
        for count in [1, 2, 7, 1000] {
            let mut lines = Lines::new(count);
            for at in 0..count {
                assert_eq!(*lines.line(at), [0; WORDS]);
                assert!((lines.line(at).as_ptr() as usize).is_multiple_of(64), "line {at}");
                *lines.line_mut(at) = [at as u32 + 1; WORDS];
            }
            assert!((0..count).all(|at| *lines.line(at) == [at as u32 + 1; WORDS]));
            assert_eq!(lines.len(), count);
        }
    }
}
