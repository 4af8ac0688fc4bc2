//! Where the bytes of a client come from and go to.

use std::io;

use headworks::driver::Span;
use headworks_house::Pool;

use crate::outgoing::SendOutcome;

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
    /// keeps are in a block of `pool` ([`MemoryLimits::try_keep`](crate::memory::MemoryLimits::try_keep)); without one it keeps at most [`KEPT_ALWAYS`].
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing; other errors end the connection.
    fn send(&mut self, spans: &[Span], pool: &mut Pool) -> io::Result<usize>;

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
    fn settle(&mut self, sent: SendOutcome, _: &mut Pool) -> io::Result<SendOutcome> {
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
