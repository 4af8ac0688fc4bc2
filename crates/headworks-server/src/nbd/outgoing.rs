//! The send queue of a connection: reply headers and data in order, sent with as few system calls as possible.
//!
//! Headers are appended to one arena, and adjacent ones become one piece; data pieces point into request buffers, which
//! return to the pool when their last byte was sent. One `sendmsg` takes up to 1024 pieces. At most one send is in
//! progress on a socket, so replies are not reordered.

use std::collections::VecDeque;
use std::io;

use super::transport::Transport;
use headworks::driver::{Buffer, Pool, Span};

/// Most pieces of one `sendmsg` (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Zeros for holes in simple replies; small enough for the first-level cache.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// Limit of unsent handshake replies in bytes; beyond it no further option is parsed. One list of a thousand exports is
/// as long.
const ANSWERS_BYTES: usize = 64 << 10;

/// The arena drops sent headers when they reach this many bytes.
const COMPACT_AT: usize = 16 << 10;

#[derive(Debug)]
enum Piece {
    /// A range of the header arena, with the number of replies in it.
    Headers { start: usize, len: usize, replies: usize },
    /// A range of a buffer; the buffer returns to the pool after the send.
    Data { span: Span, buffer: Buffer },
    /// A run of zeros of any length; it holds no memory.
    Zeros { len: usize },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Headers { len, .. } | Piece::Zeros { len } => *len,
            Piece::Data { span, .. } => span.len(),
        }
    }
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
    #[cfg(test)]
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

    /// Appends the first `len` bytes of a buffer.
    pub fn data(&mut self, buffer: Buffer, len: usize) {
        assert!(len <= buffer.len(), "a reply's data are inside its buffer");
        assert!(len <= buffer.len(), "a piece lies within its buffer");
        self.held += buffer.len();
        // SAFETY: inside the buffer, which stays beside the span until it is sent.
        let span = unsafe { Span::new(buffer.base(), len) };
        self.pieces.push_back(Piece::Data { span, buffer });
    }

    /// Appends a run of `len` zeros.
    pub fn zeros(&mut self, len: usize) {
        if len > 0 {
            self.pieces.push_back(Piece::Zeros { len });
        }
    }

    /// Sends what the socket takes. Sent buffers return to `pool`.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(
        &mut self,
        transport: &mut Transport,
        pool: &mut Pool,
        spans: &mut Vec<Span>,
    ) -> io::Result<SendOutcome> {
        while !self.pieces.is_empty() {
            self.gather(spans);
            let wanted: usize = spans.iter().map(|span| span.len()).sum();
            match transport.send(spans) {
                Ok(count) => {
                    self.advance(count, pool);
                    if count < wanted {
                        // A short send: the socket is full, as the next call would report.
                        return Ok(SendOutcome::Full);
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
        let mut skip = self.sent;
        for piece in &self.pieces {
            let mut left = piece.len() - skip;
            let (base, most) = match *piece {
                Piece::Headers { start, len, .. } => {
                    (self.headers[start..start + len].as_ptr().cast_mut(), len)
                }
                Piece::Data { span, .. } => (span.base(), span.len()),
                Piece::Zeros { .. } => (ZEROS.as_ptr().cast_mut(), ZEROS.len()),
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
                    assert!(self.replies >= replies, "queued replies are counted");
                    self.replies -= replies;
                }
                Some(Piece::Data { buffer, .. }) => {
                    assert!(self.held >= buffer.len(), "queued buffers are counted");
                    self.held -= buffer.len();
                    pool.put(buffer);
                }
                Some(Piece::Zeros { .. }) | None => {}
            }
        }
        self.headers.clear();
    }

    /// Drops sent headers from the arena, so that a queue that is never empty does not grow.
    fn compact(&mut self) {
        let first = self.pieces.iter().find_map(|piece| match piece {
            Piece::Headers { start, .. } => Some(*start),
            Piece::Data { .. } | Piece::Zeros { .. } => None,
        });
        let cut = first.unwrap_or(self.headers.len());
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
                outgoing.data(buffer, 50_000);
                expected.extend([number; 50_000]);
            }
        }
        assert_eq!(outgoing.replies(), 60);
        let mut ours = Transport::plain(ours.into());
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
        let mut ours = Transport::plain(ours.into());
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
        let mut ours = Transport::plain(ours.into());
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

    #[test]
    fn broken_connection_returns_its_buffers() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut ours = Transport::plain(ours.into());
        let mut pool = Pool::new(1 << 20).unwrap();
        let mut outgoing = Outgoing::new(1);
        outgoing.data(pool.try_take(4096).unwrap(), 4096);
        assert!(outgoing.send(&mut ours, &mut pool, &mut Vec::new()).is_err());
        outgoing.abandon(&mut pool);
        assert!(outgoing.is_empty() && pool.taken() == 0);
    }
}
