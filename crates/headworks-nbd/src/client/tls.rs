//! The client's side of TLS: an encrypted stream with the calls of [`Socket`](super::Socket).
//!
//! Decrypted bytes that were not read yet are kept; they are returned before the socket is read or waited for.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use super::ClientError;
use super::socket::Socket;
use crate::tls::pieces::Pieces;
use crate::tls::session::{RECORD_BYTES, SEALED_RECORDS};
use crate::tls::{Session, TlsError};
use headworks::driver::Span;

/// Most ciphertext of one receive.
const RECEIVE_BYTES: usize = 64 << 10;

/// A stream socket through TLS.
#[derive(Debug)]
pub struct Encrypted {
    socket: Socket,
    session: Session,
    cipher: Vec<u8>,
    /// Buffer in which small pieces are gathered to a record.
    record: Vec<u8>,
    /// Decrypted bytes; those from `at` on were not read yet.
    plain: Vec<u8>,
    at: usize,
}

impl Encrypted {
    /// Performs the TLS handshake; the server has accepted STARTTLS.
    pub fn start(socket: Socket, session: Session) -> Result<Self, ClientError> {
        let cipher = vec![0; RECEIVE_BYTES];
        let mut stream =
            Self { socket, session, cipher, record: Vec::new(), plain: Vec::new(), at: 0 };
        while stream.session.is_handshaking() {
            stream.session.flush(&mut stream.socket)?;
            if stream.session.is_handshaking() {
                match stream.fill(true)? {
                    Some(0) => return Err(ClientError::Closed),
                    Some(_) => {}
                    None => return Err(ClientError::TimedOut),
                }
            }
        }
        stream.session.flush(&mut stream.socket)?;
        Ok(stream)
    }

    /// Returns true when [`Encrypted::receive`] needs no socket.
    pub fn has_plain(&self) -> bool {
        self.at < self.plain.len()
    }

    /// Returns version and cipher for display.
    pub fn terms(&self) -> Option<String> {
        self.session.terms()
    }

    /// Encrypts and sends as [`Socket::send`].
    ///
    /// # Safety
    /// The contract of [`Socket::send`].
    pub unsafe fn send(&mut self, spans: &[Span]) -> io::Result<usize> {
        // SAFETY: the caller's contract.
        let mut pieces = unsafe { Pieces::new(spans) };
        while !pieces.is_empty() && self.flush_some()? {
            for _ in 0..SEALED_RECORDS {
                if !pieces.is_empty() {
                    let piece = pieces.next_record(RECORD_BYTES, &mut self.record);
                    self.session.seal(piece).map_err(broken)?;
                }
            }
        }
        self.flush_some()?;
        Ok(pieces.taken())
    }

    /// Sends ciphertext that is left; returns true when none remains.
    pub fn flush_some(&mut self) -> io::Result<bool> {
        self.session.flush(&mut NonBlocking(&self.socket))
    }

    /// Receives and decrypts as [`Socket::receive`].
    pub fn receive(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
        wait: bool,
    ) -> io::Result<Option<usize>> {
        while !self.has_plain() {
            if self.session.is_ended() {
                return Ok(Some(0));
            }
            match self.fill(wait)? {
                None => return Ok(None),
                Some(0) => return Ok(Some(0)),
                Some(_) => {}
            }
        }
        Ok(Some(self.take(first) + self.take(second)))
    }

    /// Receives and decrypts as [`Socket::receive_into`].
    ///
    /// # Safety
    /// The contract of [`Socket::receive_into`].
    pub unsafe fn receive_into(&mut self, spans: &[Span]) -> io::Result<Option<usize>> {
        // Decrypted bytes, if there are any afterwards.
        if !self.has_plain() && self.receive(&mut [], &mut [], false)?.is_none() {
            return Ok(None);
        }
        let mut count = 0;
        for span in spans {
            // SAFETY: the caller's promise.
            count += self.take(unsafe { span.bytes_mut() });
        }
        Ok(Some(count))
    }

    /// Returns the socket that carries the records.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the socket that carries the records.
    pub fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    fn take(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.plain.len() - self.at);
        target[..count].copy_from_slice(&self.plain[self.at..self.at + count]);
        self.at += count;
        count
    }

    /// Receives once; returns the count of ciphertext bytes.
    fn fill(&mut self, wait: bool) -> io::Result<Option<usize>> {
        self.plain.clear();
        self.at = 0;
        let received = self.socket.receive(&mut self.cipher, &mut [], wait)?;
        if let Some(count) = received {
            let plain = &mut self.plain;
            let opened =
                self.session.open(&self.cipher[..count], |piece| plain.extend_from_slice(piece));
            if let Err(error) = opened {
                // Send the alert; the server may have closed already.
                let _ = self.session.flush(&mut self.socket);
                return Err(broken(error));
            }
        }
        Ok(received)
    }
}

fn broken(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Read for Encrypted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.receive(buffer, &mut [], true)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

impl Write for Encrypted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Unsent ciphertext goes first, so that there is room to seal.
        let piece = &bytes[..bytes.len().min(SEALED_RECORDS * RECORD_BYTES)];
        for seals in [true, false] {
            if !self.session.flush(&mut self.socket)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if seals {
                self.session.seal(piece).map_err(broken)?;
            }
        }
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        self.session.goodbye();
        // Best effort: the closing alert may be lost.
        let _ = self.flush_some();
    }
}

impl AsRawFd for Encrypted {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The socket in non-blocking calls.
struct NonBlocking<'a>(&'a Socket);

impl Write for NonBlocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_slices(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
