//! Where the bytes of a client come from and go to.

use std::io;

use headworks::driver::Span;
use headworks::house::{Buffer, Pool};

use crate::memory::MemoryLimits;
use crate::outgoing::SendOutcome;

/// The pool as a transport sees it that keeps bytes which its peer does not take.
#[derive(Debug)]
pub struct Room<'a> {
    pool: &'a mut Pool,
    /// Bytes of the pool that the connection's unsent replies hold.
    held: usize,
}

impl<'a> Room<'a> {
    /// The pool beside `held` bytes of it in the queue of replies.
    pub fn new(pool: &'a mut Pool, held: usize) -> Self {
        Self { pool, held }
    }

    /// A block of at least `len` bytes, for a transport that keeps none; none if less would be free then than the connection's replies hold.
    #[inline]
    pub fn take(&mut self, len: usize) -> Option<Buffer> {
        let block = Pool::block_bytes(len)?;
        let free = MemoryLimits::shared_of(self.pool.size()).saturating_sub(self.pool.taken());
        if self.held + block > free {
            return None;
        }
        self.pool.try_take(len)
    }

    /// Takes a block back.
    #[inline]
    pub fn put(&mut self, block: Buffer) {
        self.pool.put(block);
    }

    /// The pool itself, for the buffers of replies.
    pub fn pool(&mut self) -> &mut Pool {
        self.pool
    }
}

/// Bytes of a stream that its transport may keep beside the pool while that is short.
pub const KEPT_ALWAYS: usize = 4 << 10;

/// A client's stream of bytes in both directions. No call waits. What is about bytes that the stream has taken and not sent yet, and about
/// its end, has defaults for streams that keep nothing.
pub trait Transport {
    /// Receives into `direct` first, then into the first bytes of `scratch`: up to `tail` of them, or more where the stream comes in
    /// units. Returns the number of bytes; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing has arrived, `Interrupted` when the call is to be repeated, `InvalidData` with a message of its own;
    /// others end the connection.
    fn receive(
        &mut self,
        direct: Option<Span>,
        scratch: &mut [u8],
        tail: usize,
    ) -> io::Result<usize>;

    /// Sends what the stream takes of the pieces, in order. Returns the number of bytes; fewer than all mean that it is full. Bytes that it
    /// keeps are in a block of `room`; without one it keeps at most [`KEPT_ALWAYS`].
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing; other errors end the connection.
    fn send(&mut self, spans: &[Span], room: &mut Room<'_>) -> io::Result<usize>;

    /// Whether bytes that it has taken wait to be sent.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Bytes of the pool that they take.
    fn held(&self) -> usize {
        0
    }

    /// Progress mark: grows whenever bytes that it has taken are sent.
    fn progress(&self) -> u64 {
        0
    }

    /// Corrects the outcome of a send for bytes that it has taken and that still wait.
    ///
    /// # Errors
    /// The connection is broken.
    fn settle(&mut self, sent: SendOutcome, _: &mut Room<'_>) -> io::Result<SendOutcome> {
        Ok(sent)
    }

    /// Returns what it has of the pool; called before it is dropped.
    fn abandon(&mut self, _: &mut Pool) {}

    /// Queues what it says at the end.
    fn goodbye(&mut self) {}

    /// Whether what it says at the end was sent, or nothing is to be said.
    fn is_finished(&self) -> bool {
        true
    }
}
