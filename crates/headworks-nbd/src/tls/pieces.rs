//! Plaintext in many pieces, cut into TLS records.
//!
//! Small pieces (headers, payloads of 4 KiB) are gathered by copy, because a record costs the same full or not; large pieces are
//! used in place.

use headworks::driver::Span;

/// A list of pieces, consumed from the front.
pub struct Pieces<'a> {
    spans: &'a [Span],
    /// Consumed bytes of the first span.
    at: usize,
    taken: usize,
}

impl<'a> Pieces<'a> {
    /// Creates a list over all spans.
    ///
    /// # Safety
    /// The memory of the spans is valid and not written during `'a`.
    #[must_use]
    pub unsafe fn new(spans: &'a [Span]) -> Self {
        let mut pieces = Self { spans, at: 0, taken: 0 };
        pieces.skip_empty();
        pieces
    }

    /// Returns true when all bytes are consumed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the number of consumed bytes.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the next bytes, up to `most`: in place if they are contiguous, else gathered in `record`.
    pub fn next_record<'b>(&mut self, most: usize, record: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.rest().len() >= most {
            return self.take(most);
        }
        record.clear();
        while record.len() < most && !self.spans.is_empty() {
            let count = self.rest().len().min(most - record.len());
            record.extend_from_slice(self.take(count));
        }
        record
    }

    fn rest(&self) -> &'a [u8] {
        let Some(span) = self.spans.first() else {
            return &[];
        };
        // SAFETY: `new`'s caller promised it.
        unsafe { span.part(self.at, span.len() - self.at).bytes() }
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let bytes = &self.rest()[..count];
        (self.at, self.taken) = (self.at + count, self.taken + count);
        self.skip_empty();
        bytes
    }

    fn skip_empty(&mut self) {
        while let Some(span) = self.spans.first()
            && span.len() == self.at
        {
            (self.spans, self.at) = (&self.spans[1..], 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::RECORD_BYTES;
    use super::*;

    #[test]
    fn small_pieces_are_gathered_and_large_pieces_stay() {
        let sizes = [28, 0, 4096, 3 * RECORD_BYTES, 5, 0];
        let all: Vec<Vec<u8>> = sizes.iter().map(|&len| vec![len as u8; len]).collect();
        let base = |piece: &Vec<u8>| piece.as_ptr().cast_mut();
        let spans: Vec<Span> =
            // SAFETY: `all` stays, and is only read.
            all.iter().map(|piece| unsafe { Span::new(base(piece), piece.len()) }).collect();
        // SAFETY: `all` stays.
        let mut pieces = unsafe { Pieces::new(&spans) };
        let (mut record, mut got, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        while !pieces.is_empty() {
            let next = pieces.next_record(RECORD_BYTES, &mut record);
            lengths.push(next.len());
            got.extend_from_slice(next);
        }
        assert_eq!(got, all.concat());
        assert_eq!(pieces.taken(), got.len());
        // The large piece gives two records of its own after filling the first.
        assert_eq!(lengths, [RECORD_BYTES, RECORD_BYTES, RECORD_BYTES, 28 + 4096 + 5]);
    }
}
