//! Replies that wait for their socket.
//!
//! Zeros are sent from one static array, so a read of a disk without contents copies nothing here. Invariant: the queue holds at most
//! one reply for each command of the disk, because no command is taken from a client whose replies wait.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

static ZEROS: [u8; 128 << 10] = [0; 128 << 10];
/// Most slices of one call.
const SLICES: usize = 64;

enum Piece {
    Bytes(Vec<u8>),
    Zeros(usize),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => *len,
        }
    }
}

/// The bytes to be sent on a connection.
#[derive(Default)]
pub(super) struct Output {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
}

impl Output {
    /// Appends bytes behind the others.
    pub fn push(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.pieces.push_back(Piece::Bytes(bytes));
        }
    }

    /// Appends zeros behind the others.
    pub fn push_zeros(&mut self, len: usize) {
        if len > 0 {
            self.pieces.push_back(Piece::Zeros(len));
        }
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Sends what the socket takes.
    pub fn send(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while !self.is_empty() {
            let sent = match socket.write_vectored(&self.slices()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.advance(sent);
        }
        Ok(())
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(SLICES);
        let mut skip = self.sent;
        for piece in &self.pieces {
            match piece {
                Piece::Bytes(bytes) => slices.push(IoSlice::new(&bytes[skip..])),
                Piece::Zeros(len) => {
                    let mut left = len - skip;
                    while left > 0 && slices.len() < SLICES {
                        let count = left.min(ZEROS.len());
                        slices.push(IoSlice::new(&ZEROS[..count]));
                        left -= count;
                    }
                }
            }
            skip = 0;
            if slices.len() >= SLICES {
                break;
            }
        }
        slices
    }

    fn advance(&mut self, mut sent: usize) {
        while sent > 0 {
            let left = self.pieces.front().map_or(0, Piece::len) - self.sent;
            if sent < left {
                self.sent += sent;
                return;
            }
            (sent, self.sent) = (sent - left, 0);
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, and sometimes none.
    struct Slow {
        taken: Vec<u8>,
        turn: usize,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turn += 1;
            if self.turn.is_multiple_of(3) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let count = bytes.len().min(1000 + self.turn);
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn pieces_arrive_in_order_through_a_slow_socket() {
        let mut output = Output::default();
        output.push(vec![1; 16]);
        output.push_zeros(300_000);
        output.push(vec![2; 5000]);
        let mut slow = Slow { taken: Vec::new(), turn: 0 };
        while !output.is_empty() {
            output.send(&mut slow).unwrap();
        }
        let expected = [vec![1; 16], vec![0; 300_000], vec![2; 5000]].concat();
        assert!(slow.taken == expected, "{} bytes", slow.taken.len());
    }
}
