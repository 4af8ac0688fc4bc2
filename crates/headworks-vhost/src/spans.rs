//! The spans of requests in flight, without allocation: the first of each in its slot, the others in blocks of a store.
//!
//! Invariants: free + taken == blocks; a store has room for one request of the largest size when nothing is taken, so a ring that waits
//! for room always gets it.

use crate::memory::Span;

/// Spans of a block: with its link 120 bytes.
const BLOCK_SPANS: usize = 7;
const NO_BLOCK: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    spans: [Span; BLOCK_SPANS],
    next: u32,
}

/// The spans of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanList {
    first: Span,
    count: u16,
    more: u32,
}

impl SpanList {
    pub(crate) const EMPTY: Self = Self { first: Span::EMPTY, count: 0, more: NO_BLOCK };
}

/// The blocks of a ring.
#[derive(Debug)]
pub(crate) struct SpanStore {
    blocks: Vec<Block>,
    free: u32,
    free_count: usize,
}

impl SpanStore {
    /// A store for `requests` requests of a few spans each, and at least one of `spans_max`.
    pub(crate) fn new(requests: usize, spans_max: usize) -> Self {
        let count = requests * 2 + spans_max.div_ceil(BLOCK_SPANS);
        let link = |index: usize| if index + 1 < count { index as u32 + 1 } else { NO_BLOCK };
        let block = |index| Block { spans: [Span::EMPTY; BLOCK_SPANS], next: link(index) };
        Self { blocks: (0..count).map(block).collect(), free: 0, free_count: count }
    }

    /// Keeps the spans of a request; none when there is no room at present.
    #[inline]
    pub(crate) fn keep(&mut self, spans: &[Span]) -> Option<SpanList> {
        match spans {
            [] => Some(SpanList::EMPTY),
            [first] => Some(SpanList { first: *first, count: 1, more: NO_BLOCK }),
            [first, rest @ ..] => {
                let more = self.keep_more(rest)?;
                Some(SpanList { first: *first, count: spans.len() as u16, more })
            }
        }
    }

    fn keep_more(&mut self, spans: &[Span]) -> Option<u32> {
        let needed = spans.len().div_ceil(BLOCK_SPANS);
        if needed > self.free_count {
            return None;
        }
        let head = self.free;
        let mut last = head;
        for (index, part) in spans.chunks(BLOCK_SPANS).enumerate() {
            if index > 0 {
                last = self.blocks[last as usize].next;
            }
            self.blocks[last as usize].spans[..part.len()].copy_from_slice(part);
        }
        self.free = std::mem::replace(&mut self.blocks[last as usize].next, NO_BLOCK);
        self.free_count -= needed;
        Some(head)
    }

    /// Returns the blocks of a list.
    #[inline]
    pub(crate) fn release(&mut self, list: &mut SpanList) {
        let list = std::mem::replace(list, SpanList::EMPTY);
        if list.more == NO_BLOCK {
            return;
        }
        let mut last = list.more;
        let mut count = 1;
        while self.blocks[last as usize].next != NO_BLOCK {
            last = self.blocks[last as usize].next;
            count += 1;
        }
        self.blocks[last as usize].next = self.free;
        self.free = list.more;
        self.free_count += count;
        assert!(self.free_count <= self.blocks.len(), "a block is released once");
    }

    /// Calls `each` with the pieces of `len` bytes from `skip` on.
    #[inline]
    pub(crate) fn pieces(
        &self,
        list: &SpanList,
        skip: usize,
        len: usize,
        mut each: impl FnMut(Span),
    ) {
        let (mut skip, mut left) = (skip, len);
        let mut one = |span: Span| {
            if skip >= span.len() {
                skip -= span.len();
                return left > 0;
            }
            let part = span.part(skip, left);
            (skip, left) = (0, left - part.len());
            if !part.is_empty() {
                each(part);
            }
            left > 0
        };
        if list.count == 0 || !one(list.first) {
            return;
        }
        let (mut block, mut rest) = (list.more, usize::from(list.count) - 1);
        while rest > 0 {
            let this = &self.blocks[block as usize];
            for span in &this.spans[..rest.min(BLOCK_SPANS)] {
                if !one(*span) {
                    return;
                }
            }
            (block, rest) = (this.next, rest.saturating_sub(BLOCK_SPANS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(index: usize, len: usize) -> Span {
        Span::new(std::ptr::without_provenance_mut(0x10000 * (index + 1)), len)
    }

    fn pieces(store: &SpanStore, list: &SpanList, skip: usize, len: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        store.pieces(list, skip, len, |span| found.push((span.base().addr(), span.len())));
        found
    }

    #[test]
    fn pieces_of_any_list_are_those_of_a_slice() {
        let mut store = SpanStore::new(4, 64);
        for count in [0, 1, 2, 7, 8, 9, 15, 16, 60] {
            let spans: Vec<_> = (0..count).map(|index| span(index, index % 3 * 4 + 4)).collect();
            let bytes: Vec<usize> = spans
                .iter()
                .flat_map(|span| (0..span.len()).map(|at| span.base().addr() + at))
                .collect();
            let mut list = store.keep(&spans).unwrap();
            for skip in 0..=bytes.len() {
                for len in [0, 1, 5, 40, bytes.len() - skip] {
                    let len = len.min(bytes.len() - skip);
                    let found = pieces(&store, &list, skip, len);
                    let flat: Vec<usize> =
                        found.iter().flat_map(|(base, len)| *base..*base + *len).collect();
                    assert_eq!(flat, bytes[skip..skip + len], "{count} spans, {len} from {skip}");
                }
            }
            store.release(&mut list);
            assert_eq!(store.free_count, store.blocks.len());
        }
    }

    #[test]
    fn full_store_refuses_until_blocks_return() {
        let mut store = SpanStore::new(1, 14);
        let spans: Vec<_> = (0..15).map(|index| span(index, 4)).collect();
        let mut first = store.keep(&spans).unwrap();
        let mut second = store.keep(&spans).unwrap();
        assert!(store.keep(&spans[..2]).is_none());
        assert!(store.keep(&spans[..1]).is_some(), "one span needs no block");
        store.release(&mut first);
        let mut third = store.keep(&spans).unwrap();
        assert_eq!(pieces(&store, &third, 0, 60).len(), 15);
        store.release(&mut second);
        store.release(&mut third);
        store.release(&mut first);
        assert_eq!(store.free_count, store.blocks.len(), "an empty list returns nothing");
    }
}
