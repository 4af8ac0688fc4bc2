//! The send queue of a connection: reply headers and data in order, sent with as few system calls as possible.
//!
//! Headers are appended to one arena, and adjacent ones become one piece; data pieces point into request buffers, which
//! return to the pool when their last byte was sent. One `sendmsg` takes up to 1024 pieces. At most one send is in
//! progress on a socket, so replies are not reordered.
//!
//! Data that wait for a slow client give way to other connections while the pool is short: their buffer is returned
//! and the unsent range of the volume is kept. The range is read again, in chunks, when it is first in the queue and
//! the socket takes more.
//!
//! ```text
//!   Data --drop_data--> Dropped --first in the queue, socket writable--> read again --restore--> Data + Dropped (rest)
//! ```
//!
//! NBD permits this: a read may return any contents between its request and its reply, and a reply whose header was
//! sent keeps its length. A read that fails after its header was sent ends the connection. The rest of a block of which a part was
//! sent is kept with the headers, so a client gets one version of each block.
//!
//! Data may also be *lent*: frames of the page cache that are sent from where they are. Before such a frame changes, its unsent bytes
//! move to a buffer, or are dropped (`lent`).
//!
//! Invariants: `held` is the sum of the buffers in the queue, `dropped` of the lengths of dropped pieces, `lent` of lent ones.

mod lent;

use std::collections::VecDeque;
use std::io;

use crate::transport::Transport;
use headworks::driver::Span;
use headworks_core::Instant;
use headworks_house::{Buffer, Pool};

/// Most pieces of one `sendmsg` (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Data of one send; other connections are served before more is sent. A unix socket takes 208 KiB at once by default, TCP
/// all of it; each send of a reply wakes its client. Reads of 1 MiB over TCP are a third fewer with half of this, and no more than a fifth more with twice.
const SEND_BYTES: usize = 512 << 10;

/// Zeros for holes in simple replies; small enough for the first-level cache.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Limit of unsent handshake replies in bytes; beyond it no further option is parsed. One list of a thousand exports is
/// as long.
const ANSWERS_BYTES: usize = 64 << 10;

/// Size of a block, of which a client gets one version.
const BLOCK: u64 = headworks_core::cache::folio::BLOCK as u64;

/// The arena drops sent headers when they reach this many bytes.
const COMPACT_AT: usize = 16 << 10;

/// Pieces at the front of a queue of which the oldest is looked up.
const FRONT_PIECES: usize = 8;

/// A client takes the data of a reply within this time, or the connection counts as stalled and its data may be
/// dropped while other connections wait for buffers. A client that is not scheduled for some milliseconds keeps its
/// data, and so does one whose link takes half of the pool in this time; a re-read costs less than the wait of others.
pub const TAKEN_WITHIN_NS: u64 = 100_000_000;

#[derive(Debug)]
enum Piece {
    /// A range of the header arena, with the number of replies in it.
    Headers { start: usize, len: usize, replies: usize },
    /// A range of a buffer, which returns to the pool after the send, with its offset in the volume and the time of
    /// the reply.
    Data { span: Span, buffer: Buffer, offset: u64, since: Instant },
    /// A range of the page cache, which has these bytes until [`Outgoing::keep_lent`] is called for it.
    Lent { span: Span, offset: u64, since: Instant },
    /// A range of the volume whose data were dropped.
    Dropped { offset: u64, len: usize },
    /// A run of zeros of any length; it holds no memory.
    Zeros { len: usize },
}

impl Piece {
    /// Time of the reply, for data only.
    fn since(&self) -> Option<Instant> {
        match self {
            Piece::Data { since, .. } | Piece::Lent { since, .. } => Some(*since),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        match self {
            Piece::Headers { len, .. } | Piece::Zeros { len } | Piece::Dropped { len, .. } => *len,
            Piece::Data { span, .. } | Piece::Lent { span, .. } => span.len(),
        }
    }
}

/// A piece of a queue that moves to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnsentPiece {
    /// Headers and data, as they go on the wire.
    Bytes(Vec<u8>),
    /// A run of zeros.
    Zeros(usize),
    /// A range of the volume, which is read when the socket takes more.
    Dropped {
        /// First byte on the volume.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
}

fn is_old(since: Instant, now: Instant) -> bool {
    now.since(since) >= TAKEN_WITHIN_NS
}

/// The send queue of a connection.
#[derive(Debug, Default)]
pub struct Outgoing {
    headers: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Sent bytes of the first piece.
    sent: usize,
    /// Unsent replies; bounds the queue.
    replies: usize,
    /// Bytes of buffers in the queue.
    held: usize,
    /// Bytes, and number, of dropped pieces.
    dropped: (usize, usize),
    /// Bytes, and number, of lent pieces.
    lent: (usize, usize),
    /// Bytes that were sent since the start.
    total: u64,
}

/// Outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// Everything was sent.
    All,
    /// The socket is full; wait until it is writable.
    Full,
    /// The socket would take more, but the connection has used its share of this turn.
    Budget,
    /// The socket takes more, but the next data were dropped and must be read again.
    Dropped,
}

impl Outgoing {
    /// Creates a queue with room for about `replies` replies.
    #[must_use]
    pub fn new(replies: usize) -> Self {
        Self {
            headers: Vec::with_capacity(replies * headworks_nbd::reply::REPLY_BYTES_MAX),
            pieces: VecDeque::with_capacity(2 * replies),
            sent: 0,
            replies: 0,
            held: 0,
            dropped: (0, 0),
            lent: (0, 0),
            total: 0,
        }
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Progress mark: queued pieces, and sent bytes of the first one.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        (self.pieces.len(), self.sent)
    }

    /// Replies that are not fully sent.
    #[must_use]
    pub fn replies(&self) -> usize {
        self.replies
    }

    /// Header bytes in the arena.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.headers.len()
    }

    /// Whether another option of a handshake may be answered.
    #[must_use]
    pub fn has_room_for_answers(&self, replies: usize) -> bool {
        self.replies < replies && self.headers.len() < ANSWERS_BYTES
    }

    /// Bytes of the pool's buffers in the queue.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Appends a header; `encode` writes it.
    pub fn header(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.headers.len();
        encode(&mut self.headers);
        self.replies += 1;
        let len = self.headers.len() - start;
        match self.pieces.back_mut() {
            Some(Piece::Headers { len: before, replies, .. }) => {
                *before += len;
                *replies += 1;
            }
            _ => self.pieces.push_back(Piece::Headers { start, len, replies: 1 }),
        }
    }

    /// Bytes that were sent since the start.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes, and number, of pieces whose data were dropped.
    #[must_use]
    pub fn dropped(&self) -> (usize, usize) {
        self.dropped
    }

    /// Time of the oldest data in the queue that were not dropped.
    #[must_use]
    pub fn oldest_data(&self) -> Option<Instant> {
        // Only a restored piece is younger than those behind it, and it is near the front.
        self.pieces.iter().take(FRONT_PIECES).filter_map(Piece::since).min()
    }

    /// Whether the client leaves data in the queue for longer than [`TAKEN_WITHIN_NS`].
    #[must_use]
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.dropped.1 > 0
            || self.held + self.lent.0 > 0
                && self.oldest_data().is_some_and(|since| is_old(since, now))
    }

    /// Bytes of buffers that [`Outgoing::drop_data`] can return.
    #[must_use]
    pub fn droppable(&self, now: Instant) -> usize {
        if self.held == 0 {
            return 0;
        }
        let old = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Data { buffer, since, .. } if is_old(*since, now) => Some(buffer.len()),
            _ => None,
        });
        old.sum()
    }

    /// Appends the first `len` bytes of a buffer: the data of a reply at `offset` of the volume.
    pub fn data(&mut self, buffer: Buffer, len: usize, offset: u64, now: Instant) {
        let piece = self.piece_of(buffer, (0, len), offset, now);
        self.pieces.push_back(piece);
    }

    fn piece_of(
        &mut self,
        buffer: Buffer,
        (skip, len): (usize, usize),
        offset: u64,
        since: Instant,
    ) -> Piece {
        assert!(skip + len <= buffer.len(), "a piece lies within its buffer");
        self.held += buffer.len();
        // SAFETY: inside the buffer, which stays beside the span until it is sent.
        let span = unsafe { Span::new(buffer.base().add(skip), len) };
        Piece::Data { span, buffer, offset, since }
    }

    /// Returns buffers of old data to the pool, the last ones first, until `wanted` bytes are free or no old data are
    /// left. Returns the bytes of the buffers and the number of replies.
    pub fn drop_data(&mut self, now: Instant, wanted: usize, pool: &mut Pool) -> (usize, usize) {
        let (mut freed, mut replies) = (0, 0);
        for index in (0..self.pieces.len()).rev() {
            if freed >= wanted || self.held == 0 {
                break;
            }
            if !matches!(&self.pieces[index], Piece::Data { since, .. } if is_old(*since, now)) {
                continue;
            }
            if let Some(buffer) = self.drop_piece(index) {
                (freed, replies) = (freed + buffer.len(), replies + 1);
                pool.put(buffer);
            }
        }
        (freed, replies)
    }

    /// Drops the data of a piece; returns the buffer that they had. What a client has of a block is continued with the same
    /// version of it.
    fn drop_piece(&mut self, index: usize) -> Option<Buffer> {
        let sent = if index == 0 { std::mem::take(&mut self.sent) } else { 0 };
        let (span, offset) = match &self.pieces[index] {
            Piece::Data { span, offset, .. } | Piece::Lent { span, offset, .. } => (*span, *offset),
            other => panic!("{other:?} has no data to be dropped"),
        };
        let (rest, offset) = (span.part(sent, span.len() - sent), offset + sent as u64);
        let begun = if sent > 0 { (offset.next_multiple_of(BLOCK) - offset) as usize } else { 0 };
        let begun = begun.min(rest.len());
        let (len, offset) = (rest.len() - begun, offset + begun as u64);
        let piece = std::mem::replace(&mut self.pieces[index], Piece::Dropped { offset, len });
        if len > 0 {
            self.dropped = (self.dropped.0 + len, self.dropped.1 + 1);
        } else {
            self.pieces.remove(index);
        }
        if begun > 0 {
            // SAFETY: bytes of the piece, whose buffer or frames are unchanged until this returns.
            self.put_first(unsafe { rest.part(0, begun).bytes() });
        }
        match piece {
            Piece::Data { buffer, .. } => {
                assert!(self.held >= buffer.len(), "queued buffers are counted");
                self.held -= buffer.len();
                Some(buffer)
            }
            _ => {
                self.note_lent_end(span);
                None
            }
        }
    }

    /// Puts bytes in front of everything.
    fn put_first(&mut self, bytes: &[u8]) {
        debug_assert!(self.sent == 0, "nothing of the first piece was sent");
        let start = self.first_header();
        self.headers.splice(start..start, bytes.iter().copied());
        for piece in &mut self.pieces {
            if let Piece::Headers { start, .. } = piece {
                *start += bytes.len();
            }
        }
        self.pieces.push_front(Piece::Headers { start, len: bytes.len(), replies: 0 });
    }

    /// Where the first unsent header is in the arena.
    fn first_header(&self) -> usize {
        let first = self.pieces.iter().find_map(|piece| match piece {
            Piece::Headers { start, .. } => Some(*start),
            _ => None,
        });
        first.unwrap_or(self.headers.len())
    }

    /// Offset and length of the first piece, if its data were dropped.
    #[must_use]
    pub fn next_dropped(&self) -> Option<(u64, usize)> {
        match self.pieces.front() {
            Some(Piece::Dropped { offset, len, .. }) => Some((*offset, *len)),
            _ => None,
        }
    }

    /// Puts the first `len` bytes of the first piece, which were dropped, in front of it: `len` bytes of `buffer` after
    /// the first `skip`, or zeros if there is no buffer. A client that does not take them within
    /// [`TAKEN_WITHIN_NS`] loses them again.
    pub fn restore(&mut self, buffer: Option<Buffer>, (skip, len): (usize, usize), now: Instant) {
        let Some(Piece::Dropped { offset, len: rest, .. }) = self.pieces.front_mut() else {
            panic!("only dropped data are restored");
        };
        assert!(len <= *rest && self.dropped.0 >= len, "a part of what was dropped");
        let at = *offset;
        (*offset, *rest) = (*offset + len as u64, *rest - len);
        let is_whole = *rest == 0;
        self.dropped.0 -= len;
        if is_whole {
            self.dropped.1 -= 1;
            self.pieces.pop_front();
        }
        let piece = match buffer {
            Some(buffer) => self.piece_of(buffer, (skip, len), at, now),
            None => Piece::Zeros { len },
        };
        self.pieces.push_front(piece);
    }

    /// Appends a run of `len` zeros.
    pub fn zeros(&mut self, len: usize) {
        if len > 0 {
            self.pieces.push_back(Piece::Zeros { len });
        }
    }

    /// What is not sent yet, for another process.
    #[must_use]
    pub fn unsent(&self) -> Vec<UnsentPiece> {
        let mut unsent = Vec::new();
        let mut sent = self.sent;
        for piece in &self.pieces {
            let bytes = match piece {
                Piece::Headers { start, len, .. } => &self.headers[*start..start + len],
                // SAFETY: a part of the piece's own buffer, or of frames that do not change before this queue is told.
                Piece::Data { span, .. } | Piece::Lent { span, .. } => unsafe { span.bytes() },
                Piece::Zeros { len } => {
                    unsent.push(UnsentPiece::Zeros(len - std::mem::take(&mut sent)));
                    continue;
                }
                Piece::Dropped { offset, len } => {
                    debug_assert!(sent == 0, "nothing of dropped data was sent");
                    unsent.push(UnsentPiece::Dropped { offset: *offset, len: *len });
                    continue;
                }
            };
            let rest = &bytes[std::mem::take(&mut sent)..];
            match unsent.last_mut() {
                Some(UnsentPiece::Bytes(before)) => before.extend_from_slice(rest),
                _ => unsent.push(UnsentPiece::Bytes(rest.to_vec())),
            }
        }
        unsent
    }

    /// Continues an empty queue with what another process had not sent of `replies` replies.
    pub fn adopt(&mut self, unsent: Vec<UnsentPiece>, replies: usize) {
        assert!(self.pieces.is_empty(), "nothing was queued before");
        let mut left = replies;
        for piece in unsent {
            match piece {
                UnsentPiece::Bytes(bytes) => {
                    let start = self.headers.len();
                    self.headers.extend_from_slice(&bytes);
                    let (len, replies) = (bytes.len(), std::mem::take(&mut left));
                    self.replies += replies;
                    self.pieces.push_back(Piece::Headers { start, len, replies });
                }
                UnsentPiece::Zeros(len) => self.zeros(len),
                UnsentPiece::Dropped { offset, len } => {
                    self.dropped = (self.dropped.0 + len, self.dropped.1 + 1);
                    self.pieces.push_back(Piece::Dropped { offset, len });
                }
            }
        }
    }

    /// Sends what the socket takes. Sent buffers return to `pool`.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(
        &mut self,
        transport: &mut impl Transport,
        pool: &mut Pool,
        spans: &mut Vec<Span>,
    ) -> io::Result<SendOutcome> {
        while !self.pieces.is_empty() {
            if self.next_dropped().is_some() {
                return Ok(SendOutcome::Dropped);
            }
            self.gather(spans);
            let wanted: usize = spans.iter().map(|span| span.len()).sum();
            match transport.send(spans, pool) {
                Ok(count) => {
                    debug_assert!(count <= wanted, "a transport takes at most what it was given");
                    self.advance(count, pool);
                    self.total += count as u64;
                    if count < wanted {
                        // A short send: the socket is full, as the next call would report.
                        return Ok(SendOutcome::Full);
                    }
                    if wanted >= SEND_BYTES && !self.pieces.is_empty() {
                        return Ok(SendOutcome::Budget);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(SendOutcome::Full);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(SendOutcome::All)
    }

    /// Drops everything after the connection was closed.
    pub fn abandon(&mut self, pool: &mut Pool) {
        self.advance(usize::MAX, pool);
    }

    fn gather(&self, spans: &mut Vec<Span>) {
        spans.clear();
        let (mut skip, mut room) = (self.sent, SEND_BYTES);
        for piece in &self.pieces {
            let mut left = piece.len() - skip;
            if !matches!(piece, Piece::Headers { .. }) {
                left = left.min(room);
                room -= left;
            }
            let (base, most) = match *piece {
                Piece::Headers { start, len, .. } => {
                    (self.headers[start..start + len].as_ptr().cast_mut(), len)
                }
                Piece::Data { span, .. } | Piece::Lent { span, .. } => (span.base(), span.len()),
                Piece::Zeros { .. } => (ZEROS.as_ptr().cast_mut(), ZEROS.len()),
                Piece::Dropped { .. } => return,
            };
            // A run of zeros continues with zeros at any offset.
            let at = if matches!(piece, Piece::Zeros { .. }) { 0 } else { skip };
            while left > 0 {
                if spans.len() == PIECES_MAX {
                    return;
                }
                let len = left.min(most);
                // SAFETY: a part of a piece, none of which changes before the spans are sent; sending only reads.
                spans.push(unsafe { Span::new(base.wrapping_add(at), len) });
                left -= len;
            }
            if room == 0 {
                return;
            }
            skip = 0;
        }
    }

    fn advance(&mut self, count: usize, pool: &mut Pool) {
        let mut left = count;
        while let Some(piece) = self.pieces.front() {
            let len = piece.len();
            if left < len - self.sent {
                self.sent += left;
                self.compact();
                return;
            }
            left -= len - self.sent;
            self.sent = 0;
            match self.pieces.pop_front() {
                Some(Piece::Headers { replies, .. }) => {
                    debug_assert!(self.replies >= replies, "queued replies are counted");
                    self.replies -= replies;
                }
                Some(Piece::Data { buffer, .. }) => {
                    debug_assert!(self.held >= buffer.len(), "queued buffers are counted");
                    self.held -= buffer.len();
                    pool.put(buffer);
                }
                Some(Piece::Lent { span, .. }) => self.note_lent_end(span),
                Some(Piece::Dropped { len, .. }) => {
                    self.dropped = (self.dropped.0 - len, self.dropped.1 - 1);
                }
                Some(Piece::Zeros { .. }) | None => {}
            }
        }
        self.headers.clear();
    }

    /// Drops sent headers from the arena, so that a queue that is never empty does not grow.
    fn compact(&mut self) {
        let cut = self.first_header();
        if cut < COMPACT_AT {
            return;
        }
        self.headers.drain(..cut);
        for piece in &mut self.pieces {
            if let Piece::Headers { start, .. } = piece {
                *start -= cut;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use crate::test_socket::TestSocket;

    /// A slow reader gets all bytes in order, and all buffers return.
    #[test]
    fn full_socket_neither_loses_nor_reorders_bytes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut pool = Pool::new(8 << 20).unwrap();
        let (mut outgoing, mut spans, mut expected) = (Outgoing::new(8), Vec::new(), Vec::new());
        for number in 0..60_u8 {
            outgoing.header(|out| out.extend([number; 7]));
            expected.extend([number; 7]);
            if number % 3 == 0 {
                outgoing.zeros(40_000);
                expected.extend([0; 40_000]);
            } else if number % 3 == 1 {
                let buffer = pool.try_take(50_000).unwrap();
                // SAFETY: the buffer is ours and long enough.
                unsafe { buffer.base().write_bytes(number, 50_000) };
                outgoing.data(buffer, 50_000, 0, Instant(0));
                expected.extend([number; 50_000]);
            }
        }
        assert_eq!(outgoing.replies(), 60);
        let mut ours = TestSocket::new(ours);
        let mut received = Vec::new();
        let mut times_full = 0;
        while outgoing.send(&mut ours, &mut pool, &mut spans).unwrap() == SendOutcome::Full {
            times_full += 1;
            let mut some = [0; 10_001];
            let count = theirs.read(&mut some).unwrap();
            received.extend(&some[..count]);
        }
        drop(ours);
        theirs.read_to_end(&mut received).unwrap();
        assert!(times_full > 3 && received == expected);
        assert_eq!((pool.taken(), outgoing.replies(), outgoing.held()), (0, 0, 0));
    }

    /// A queue that is never empty stays as long as its unsent replies.
    #[test]
    fn never_empty_send_queue_does_not_grow() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut pool = Pool::new(8 << 20).unwrap();
        let (mut outgoing, mut spans) = (Outgoing::new(8), Vec::new());
        let mut ours = TestSocket::new(ours);
        let mut some = vec![0; 60_000];
        for _ in 0..3_000 {
            while outgoing.replies() < 10 {
                outgoing.header(|out| out.extend([7; 64]));
                outgoing.zeros(50_000);
            }
            outgoing.send(&mut ours, &mut pool, &mut spans).unwrap();
            assert!(!outgoing.is_empty(), "the socket takes less than what waits");
            let _ = theirs.read(&mut some).unwrap();
        }
        assert!(outgoing.headers.capacity() < 4 * COMPACT_AT);
    }

    /// Holes of 32 MiB in replies that are not read take no memory.
    #[test]
    fn zeros_use_no_memory_of_any_length() {
        const HOLE: usize = 32 << 20;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut pool = Pool::new(1 << 20).unwrap();
        let (mut outgoing, mut spans) = (Outgoing::new(128), Vec::new());
        let mut ours = TestSocket::new(ours);
        for _ in 0..128 {
            outgoing.header(|out| out.extend([7; 16]));
            outgoing.zeros(HOLE);
        }
        assert!(outgoing.pieces.capacity() <= 256, "{}", outgoing.pieces.capacity());
        // They are sent nevertheless: the first one, and the start of the next.
        let (mut got, mut some) = (0, vec![0; 1 << 20]);
        while got < HOLE + 32 {
            outgoing.send(&mut ours, &mut pool, &mut spans).unwrap();
            assert!(spans.len() <= PIECES_MAX);
            let count = theirs.read(&mut some).unwrap();
            let sevens = some[..count].iter().filter(|byte| **byte == 7).count();
            let headers = (got..got + count).filter(|at| at % (HOLE + 16) < 16).count();
            assert_eq!(sevens, headers, "at {got}");
            got += count;
        }
    }

    /// Bytes of a volume: different at each offset.
    fn byte_at(offset: u64) -> u8 {
        (offset % 251) as u8
    }

    fn filled(pool: &mut Pool, offset: u64, len: usize) -> Buffer {
        let buffer = pool.try_take(len).unwrap();
        for at in 0..len {
            // SAFETY: the buffer is ours and long enough.
            unsafe { buffer.base().add(at).write(byte_at(offset + at as u64)) };
        }
        buffer
    }

    /// The data of unread replies are dropped at random times, and restored in random chunks: the reader gets each byte
    /// of the volume in its place, and meanwhile the pool gets the buffers.
    #[test]
    fn dropped_data_are_restored_in_place() {
        const LEN: usize = 300_000;
        let mut prng = headworks_core::prng::Prng::new(3);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut pool = Pool::new(16 << 20).unwrap();
        let (mut outgoing, mut spans, mut expected) = (Outgoing::new(8), Vec::new(), Vec::new());
        for number in 0..20_u64 {
            outgoing.header(|out| out.extend([7; 16]));
            expected.extend([7; 16]);
            let offset = number * 1_000_000;
            let buffer = filled(&mut pool, offset, LEN);
            outgoing.data(buffer, LEN, offset, Instant(number));
            expected.extend((0..LEN as u64).map(|at| byte_at(offset + at)));
        }
        let mut ours = TestSocket::new(ours);
        let (mut received, mut some) = (Vec::new(), vec![0; 100_000]);
        let (mut now, mut dropped) = (Instant(19), 0);
        loop {
            let sent = outgoing.send(&mut ours, &mut pool, &mut spans).unwrap();
            match sent {
                SendOutcome::All => break,
                SendOutcome::Dropped => {
                    let (offset, len) = outgoing.next_dropped().unwrap();
                    let (skip, most) = (prng.below(4096), 1 + prng.below(60_000));
                    let len = len.min(most as usize);
                    let start = offset.saturating_sub(skip);
                    let buffer = filled(&mut pool, start, len + (offset - start) as usize);
                    outgoing.restore(Some(buffer), ((offset - start) as usize, len), now);
                }
                _ => {}
            }
            let taken = pool.taken();
            assert_eq!(outgoing.drop_data(now, 0, &mut pool), (0, 0), "nothing is wanted");
            if prng.below(4) == 0 {
                now = now.after(TAKEN_WITHIN_NS);
                let (all, wanted) = (outgoing.droppable(now), 1 + prng.below(2 << 20) as usize);
                let (freed, replies) = outgoing.drop_data(now, wanted, &mut pool);
                assert!(freed >= wanted.min(all) && freed <= all, "{freed} of {all}, {wanted}");
                assert_eq!(pool.taken(), taken - freed);
                assert!(replies == 0 || outgoing.is_stalled(now));
                dropped += replies;
            } else {
                assert!(outgoing.held() == taken, "buffers in the queue are counted");
            }
            let count = theirs.read(&mut some).unwrap_or(0);
            received.extend_from_slice(&some[..count]);
        }
        drop(ours);
        theirs.set_nonblocking(false).unwrap();
        theirs.read_to_end(&mut received).unwrap();
        assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
        assert!(dropped > 20, "{dropped} replies were dropped");
        assert_eq!((pool.taken(), outgoing.held(), outgoing.dropped()), (0, 0, (0, 0)));
    }

    #[test]
    fn young_data_are_not_dropped() {
        let mut pool = Pool::new(1 << 20).unwrap();
        let mut outgoing = Outgoing::new(2);
        let buffer = filled(&mut pool, 0, 4096);
        outgoing.data(buffer, 4096, 0, Instant(5));
        let (young, old) = (Instant(4 + TAKEN_WITHIN_NS), Instant(5 + TAKEN_WITHIN_NS));
        assert_eq!(
            (outgoing.drop_data(young, 1, &mut pool), outgoing.droppable(young)),
            ((0, 0), 0)
        );
        assert!(!outgoing.is_stalled(young) && outgoing.is_stalled(old));
        assert_eq!(outgoing.drop_data(old, 1, &mut pool), (4096, 1));
        assert_eq!((outgoing.next_dropped(), pool.taken()), (Some((0, 4096)), 0));
        outgoing.abandon(&mut pool);
        assert_eq!((outgoing.dropped(), outgoing.is_empty()), ((0, 0), true));
    }

    #[test]
    fn broken_connection_returns_its_buffers() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut ours = TestSocket::new(ours);
        let mut pool = Pool::new(1 << 20).unwrap();
        let mut outgoing = Outgoing::new(1);
        outgoing.data(pool.try_take(4096).unwrap(), 4096, 0, Instant(0));
        assert!(outgoing.send(&mut ours, &mut pool, &mut Vec::new()).is_err());
        outgoing.abandon(&mut pool);
        assert!(outgoing.is_empty() && pool.taken() == 0);
    }
}
