//! Where the bytes of a client come from and go to.

use std::io;

use headworks::driver::Span;

/// A client's stream of bytes in both directions. Neither call waits.
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
}
