//! Cuts a read where its source changes, and its memory with it.

use super::bitmap::LiveBits;
use super::head::BLOCK;
use headworks::driver::Span;

/// Most pieces of a command; the queue continues it.
pub(super) const CUTS_MAX: usize = 64;

/// Where bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Our file.
    Own,
    /// The base.
    Base,
    /// Nothing: the base ends before them.
    Zeros,
}

/// A run of bytes with one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub source: Source,
    pub len: u32,
}

/// The first run of a range of the volume, which is shorter than 4 GiB and not empty.
pub(super) fn cut_read(bits: &LiveBits, base_size: u64, from: u64, end: u64) -> Cut {
    let first = from / BLOCK;
    let (live, count) = bits.run(first, end.div_ceil(BLOCK) - first);
    let run_end = ((first + count) * BLOCK).min(end);
    let (source, end) = match live {
        true => (Source::Own, run_end),
        false if from >= base_size => (Source::Zeros, run_end),
        false => (Source::Base, run_end.min(base_size)),
    };
    Cut { source, len: (end - from) as u32 }
}

/// The parts of `spans` that hold `len` bytes from `at` on. None for a write of zeros, which has no spans.
pub(super) fn spans_between(spans: &[Span], at: u32, len: u32) -> impl Iterator<Item = Span> {
    let (from, to) = (at as usize, at as usize + len as usize);
    let mut start = 0;
    spans.iter().filter_map(move |span| {
        let (first, end) = (start, start + span.len());
        start = end;
        let (low, high) = (from.max(first), to.min(end));
        (low < high).then(|| span.part(low - first, high - low))
    })
}

/// Fills the memory of a part of a read with zeros.
///
/// # Safety
/// The spans are valid, and nothing else uses them.
pub(super) unsafe fn zero_spans(spans: &[Span], at: u32, len: u32) {
    for span in spans_between(spans, at, len) {
        // SAFETY: the caller's promise; written through the address, as the bytes may not be initialised.
        unsafe { span.base().write_bytes(0, span.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_cut_where_their_source_changes() {
        let bits = LiveBits::new(16 * BLOCK).unwrap();
        bits.set(2, 1, |_| {});
        bits.set(9, 1, |_| {});
        let base_size = 5 * BLOCK + 512;
        let (mut at, mut cuts) = (1024, Vec::new());
        while at < 16 * BLOCK {
            let Cut { source, len } = cut_read(&bits, base_size, at, 16 * BLOCK);
            cuts.push((source, len));
            at += u64::from(len);
        }
        let expected = [
            (Source::Base, 7168),
            (Source::Own, 4096),
            (Source::Base, 2 * 4096 + 512),
            (Source::Zeros, 4 * 4096 - 512),
            (Source::Own, 4096),
            (Source::Zeros, 6 * 4096),
        ];
        assert_eq!(cuts, expected);
    }

    #[test]
    fn spans_of_a_part_hold_its_bytes() {
        let mut bytes: Vec<u8> = (0..60).collect();
        let base = bytes.as_mut_ptr();
        // SAFETY: parts of the vector, which outlives them.
        let spans =
            [(0, 10), (10, 20), (30, 30)].map(|(at, len)| unsafe { Span::new(base.add(at), len) });
        for (at, len) in [(0, 60), (5, 10), (10, 20), (29, 2), (59, 1), (12, 0)] {
            // SAFETY: as above.
            let part = spans_between(&spans, at, len).flat_map(|span| unsafe { span.bytes() });
            assert_eq!(
                part.copied().collect::<Vec<_>>(),
                (at as u8..(at + len) as u8).collect::<Vec<_>>()
            );
        }
    }
}
