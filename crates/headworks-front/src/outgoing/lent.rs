//! Data that are sent from the frames of the page cache.
//!
//! ```text
//!   frames --push_frames--> Lent --send--> gone
//!                             |--keep_lent, with a buffer-----> Data
//!                             `--keep_lent, without a buffer--> Dropped (read again when the client takes more)
//! ```
//!
//! A frame may change while it is lent: the shard's thread first calls [`Outgoing::keep_lent`] for its bytes. So what is sent is
//! always what the cache had when it answered, or, if it was dropped, what it has later; never a mixture within a block.

use headworks::driver::Span;
use headworks_core::Instant;
use headworks_house::Buffer;

use super::{Outgoing, Piece, is_old};

impl Outgoing {
    /// Appends frames with the data of a reply at `offset` of the volume.
    pub fn push_frames(&mut self, frames: &[Span], offset: u64, now: Instant) {
        let mut offset = offset;
        for &span in frames {
            self.lent = (self.lent.0 + span.len(), self.lent.1 + 1);
            self.pieces.push_back(Piece::Lent { span, offset, since: now });
            offset += span.len() as u64;
        }
    }

    /// Bytes, and number, of lent pieces.
    #[must_use]
    pub fn lent(&self) -> (usize, usize) {
        self.lent
    }

    /// The frames that are lent.
    pub fn lent_frames(&self) -> impl Iterator<Item = Span> {
        let left = if self.lent.1 > 0 { self.pieces.len() } else { 0 };
        self.pieces.iter().take(left).filter_map(|piece| match piece {
            Piece::Lent { span, .. } => Some(*span),
            _ => None,
        })
    }

    /// Makes all data independent of frames that are about to change: they move to a buffer that `take` gives, when it is called with
    /// the bytes of buffers in the queue and the length of the data, or are dropped if it gives none. Data that are old are dropped:
    /// their client does not take them.
    pub fn keep_lent(
        &mut self,
        changing: Span,
        now: Instant,
        mut take: impl FnMut(usize, usize) -> Option<Buffer>,
    ) {
        let mut index = 0;
        while index < self.pieces.len() && self.lent.1 > 0 {
            let before = self.pieces.len();
            if let Piece::Lent { span, since, .. } = self.pieces[index]
                && overlap(span, changing)
            {
                let sent = if index == 0 { self.sent } else { 0 };
                let buffer = match is_old(since, now) {
                    true => None,
                    false => take(self.held, span.len() - sent),
                };
                match buffer {
                    Some(buffer) => self.keep_piece(index, buffer),
                    None => assert!(self.drop_piece(index).is_none(), "frames are no buffer"),
                }
            }
            // A dropped piece may have become two, or none: then the next one has its place.
            index = (index + 1 + self.pieces.len()).saturating_sub(before);
        }
    }

    /// Copies the unsent data of a lent piece into a buffer.
    fn keep_piece(&mut self, index: usize, buffer: Buffer) {
        let sent = if index == 0 { std::mem::take(&mut self.sent) } else { 0 };
        let Piece::Lent { span, offset, since } = self.pieces[index] else {
            panic!("only lent data are copied");
        };
        let (len, offset) = (span.len() - sent, offset + sent as u64);
        assert!(len <= buffer.len(), "the buffer is long enough");
        // SAFETY: the frames are readable and do not change before this returns, and the buffer is ours alone.
        unsafe {
            let from = span.part(sent, len).base();
            buffer.base().copy_from_nonoverlapping(from, len);
        }
        self.note_lent_end(span);
        let piece = self.piece_of(buffer, (0, len), offset, since);
        self.pieces[index] = piece;
    }

    /// Counts a lent piece that was sent, copied or dropped.
    pub(super) fn note_lent_end(&mut self, span: Span) {
        let (bytes, pieces) = self.lent;
        assert!(bytes >= span.len() && pieces > 0, "lent pieces are counted");
        self.lent = (bytes - span.len(), pieces - 1);
    }
}

/// Whether two spans have a byte in common.
fn overlap(a: Span, b: Span) -> bool {
    let start = |span: Span| span.base() as usize;
    start(a) < start(b) + b.len() && start(b) < start(a) + a.len()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use headworks::house::Mapping;
    use headworks_core::prng::Prng;
    use headworks_house::Pool;

    use super::super::{SendOutcome, TAKEN_WITHIN_NS};
    use super::*;
    use crate::test_socket::TestSocket;

    const BLOCK: usize = 4096;
    const BLOCKS: usize = 64;

    /// A block of a version: each word says which.
    fn block_of(number: usize, version: u32) -> Vec<u8> {
        let word = (number as u64) << 32 | u64::from(version);
        word.to_le_bytes().repeat(BLOCK / 8)
    }

    /// Frames of a volume that is wholly cached, block by block, with the version that each has now.
    struct Frames {
        memory: Mapping,
        versions: [u32; BLOCKS],
    }

    impl Frames {
        fn new() -> Self {
            let frames =
                Self { memory: Mapping::new(BLOCKS * BLOCK).unwrap(), versions: [0; BLOCKS] };
            (0..BLOCKS).for_each(|number| frames.fill(number));
            frames
        }

        fn span(&self, first: usize, blocks: usize) -> Span {
            // SAFETY: the mapping outlives the test's queue, and is used on this thread alone.
            unsafe { self.memory.span() }.part(first * BLOCK, blocks * BLOCK)
        }

        fn fill(&self, number: usize) {
            let bytes = block_of(number, self.versions[number]);
            // SAFETY: a block of the mapping.
            unsafe { self.span(number, 1).bytes_mut() }.copy_from_slice(&bytes);
        }
    }

    /// A client that reads slowly, while blocks that are being sent change: each block that it gets is one version, no older than
    /// its request and no younger than its last byte; and nothing is in its place but that block.
    #[test]
    fn slow_reader_gets_one_version_of_each_block() {
        let mut prng = Prng::new(11);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut frames = Frames::new();
        let mut pool = Pool::new(1 << 20).unwrap();
        let (mut outgoing, mut spans) = (Outgoing::new(8), Vec::new());
        let mut ours = TestSocket::new(ours);
        // First block, number of blocks, and the oldest versions that it may get.
        let mut asked: Vec<(usize, Vec<u32>)> = Vec::new();
        let (mut received, mut some) = (Vec::new(), vec![0; 50_000]);
        let (mut now, mut counts) = (Instant(0), [0; 3]);
        while asked.len() < 3_000 || !outgoing.is_empty() {
            if asked.len() < 3_000 && outgoing.replies() < 10 {
                let first = prng.below(BLOCKS as u64) as usize;
                let blocks = 1 + prng.below((BLOCKS - first) as u64) as usize;
                outgoing.header(|out| out.extend([7; 16]));
                let split = prng.below(blocks as u64 + 1) as usize;
                let parts = [(first, split), (first + split, blocks - split)];
                let parts = parts.into_iter().filter(|part| part.1 > 0);
                let parts: Vec<Span> = parts.map(|(at, count)| frames.span(at, count)).collect();
                outgoing.push_frames(&parts, (first * BLOCK) as u64, now);
                asked.push((first, frames.versions[first..first + blocks].to_vec()));
            }
            match outgoing.send(&mut ours, &mut pool, &mut spans).unwrap() {
                SendOutcome::Dropped => {
                    let (offset, len) = outgoing.next_dropped().unwrap();
                    let len = len.min(BLOCK * (1 + prng.below(4) as usize));
                    assert_eq!(offset as usize % BLOCK, 0, "blocks are dropped whole");
                    let Some(buffer) = pool.try_take(len) else { continue };
                    let number = offset as usize / BLOCK;
                    let from = frames.span(number, len / BLOCK).base();
                    // SAFETY: both are ours and long enough.
                    unsafe { buffer.base().copy_from_nonoverlapping(from, len) };
                    outgoing.restore(Some(buffer), (0, len), now);
                    counts[0] += 1;
                }
                _ => counts[1] += outgoing.lent().1,
            }
            let number = prng.below(BLOCKS as u64) as usize;
            if prng.below(3) > 0 {
                let gives = prng.below(2) == 0;
                let before = outgoing.dropped().1;
                outgoing.keep_lent(frames.span(number, 1), now, |held, len| {
                    (gives && held < 1 << 20).then(|| pool.try_take(len)).flatten()
                });
                counts[2] += outgoing.dropped().1 - before;
                frames.versions[number] += 1;
                frames.fill(number);
            }
            now = now.after(prng.below(TAKEN_WITHIN_NS / 4));
            let wanted = prng.below(some.len() as u64) as usize;
            let count = theirs.read(&mut some[..wanted]).unwrap_or(0);
            received.extend_from_slice(&some[..count]);
        }
        drop(ours);
        theirs.set_nonblocking(false).unwrap();
        theirs.read_to_end(&mut received).unwrap();
        let mut at = 0;
        for (first, versions) in asked {
            assert_eq!(received[at..at + 16], [7; 16]);
            at += 16;
            for (number, oldest) in (first..).zip(versions) {
                let block = &received[at..at + BLOCK];
                let version = u32::from_le_bytes(block[..4].try_into().unwrap());
                assert!(version >= oldest && version <= frames.versions[number]);
                assert!(block == block_of(number, version), "block {number} has one version");
                at += BLOCK;
            }
        }
        assert_eq!(at, received.len());
        assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
        assert_eq!((pool.taken(), outgoing.held(), outgoing.dropped()), (0, 0, (0, 0)));
        assert_eq!(outgoing.lent(), (0, 0));
    }

    #[test]
    fn only_changing_frames_are_copied() {
        let frames = Frames::new();
        let mut pool = Pool::new(1 << 20).unwrap();
        let mut outgoing = Outgoing::new(2);
        let parts = [frames.span(0, 2), frames.span(4, 1)];
        outgoing.push_frames(&parts, 0, Instant(0));
        assert_eq!(outgoing.lent(), (3 * BLOCK, 2));
        outgoing.keep_lent(frames.span(2, 2), Instant(0), |_, _| panic!("it is not lent"));
        outgoing.keep_lent(frames.span(1, 3), Instant(0), |held, len| {
            assert_eq!((held, len), (0, 2 * BLOCK));
            pool.try_take(len)
        });
        assert_eq!((outgoing.lent(), outgoing.held()), ((BLOCK, 1), 2 * BLOCK));
        outgoing.keep_lent(frames.span(4, 1), Instant(0), |_, _| None);
        assert_eq!((outgoing.lent(), outgoing.dropped()), ((0, 0), (BLOCK, 1)));
        outgoing.abandon(&mut pool);
        assert_eq!((pool.taken(), outgoing.is_empty()), (0, true));
    }

    #[test]
    fn data_that_a_client_does_not_take_are_not_copied() {
        let frames = Frames::new();
        let mut outgoing = Outgoing::new(1);
        outgoing.push_frames(&[frames.span(0, 1)], 0, Instant(0));
        assert!(!outgoing.is_stalled(Instant(1)) && outgoing.is_stalled(Instant(TAKEN_WITHIN_NS)));
        let old = Instant(TAKEN_WITHIN_NS);
        outgoing.keep_lent(frames.span(0, 1), old, |_, _| panic!("its client takes nothing"));
        assert_eq!(outgoing.dropped(), (BLOCK, 1));
    }
}
