//! Where the bytes of a client come from and go to.

use std::io;

use headworks::driver::Span;

use crate::outgoing::SendOutcome;

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

    /// Sends what the stream takes of the pieces, in order. Returns the number of bytes; fewer than all mean that it is full.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing; other errors end the connection.
    fn send(&mut self, spans: &[Span]) -> io::Result<usize>;

    /// Whether bytes that it has taken wait to be sent.
    fn has_unsent(&self) -> bool {
        false
    }

    /// Progress mark: grows whenever bytes that it has taken are sent.
    fn progress(&self) -> u64 {
        0
    }

    /// Corrects the outcome of a send for bytes that it has taken and that still wait.
    ///
    /// # Errors
    /// The connection is broken.
    fn settle(&mut self, sent: SendOutcome) -> io::Result<SendOutcome> {
        Ok(sent)
    }

    /// Queues what it says at the end.
    fn goodbye(&mut self) {}

    /// Whether what it says at the end was sent, or nothing is to be said.
    fn is_finished(&self) -> bool {
        true
    }
}
