//! A connection's socket, plain or encrypted with TLS.
//!
//! ```text
//!             receive(direct, scratch)                 send(spans)
//!    plain:   recvmsg into both                        sendmsg of all pieces
//!    TLS:     recv into the scratch's second half,     records of 16 KiB gathered from the pieces,
//!             opened into `direct` and the first       sealed, sent four at a time
//! ```
//!
//! The choice costs one branch for each call. Work for each call is bounded: a receive takes at most `RECEIVE_BYTES`,
//! a send encrypts at most `TURN_BYTES`. Decrypted bytes are handed over completely, so an empty socket means that
//! nothing is buffered here.
//!
//! ```text
//!   nothing kept --a block of the pool--> four records sealed --socket full--> the rest in the block --sent--> nothing kept
//!         `--------- none to be had ----> one small record   --socket full--> the rest in the session --sent------'
//! ```
//!
//! Invariant: ciphertext that the socket does not take is in a block of the pool that was taken before it was sealed, but for at most
//! [`KEPT_ALWAYS`] bytes of a connection and the session's own messages.

use std::io::{self, IoSlice, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use headworks::driver::Span;
use headworks_front::memory::MemoryLimits;
use headworks_front::outgoing::SendOutcome;
use headworks_front::transport::KEPT_ALWAYS;
use headworks_house::{Buffer, Pool};
use headworks_nbd::tls::pieces::Pieces;
use headworks_nbd::tls::session::{RECORD_BYTES, RECORD_EXTRA, SEALED_RECORDS};
use headworks_nbd::tls::{Session, TlsError};

/// Ciphertext of one receive; bounds the work even with the smallest records.
const RECEIVE_BYTES: usize = 64 << 10;
/// Plaintext that one send encrypts; takes half a millisecond.
const TURN_BYTES: usize = 1 << 20;

/// A socket and its TLS session, if it has one.
#[derive(Debug)]
pub struct Transport {
    socket: OwnedFd,
    tls: Option<Box<Encrypted>>,
}

#[derive(Debug)]
struct Encrypted {
    session: Session,
    /// Small pieces that are gathered into one record.
    record: Vec<u8>,
    /// Ciphertext that was sealed before what the session has.
    kept: Option<Kept>,
    /// Ciphertext bytes that the socket took.
    sent: u64,
}

/// Ciphertext that the socket did not take.
#[derive(Debug)]
struct Kept {
    block: Buffer,
    /// Its first and last unsent byte in the block.
    at: usize,
    end: usize,
}

impl Transport {
    /// Creates a transport without encryption.
    #[must_use]
    pub fn plain(socket: OwnedFd) -> Self {
        Self { socket, tls: None }
    }

    /// Encrypts everything from now on.
    pub fn encrypt(&mut self, session: Session) {
        assert!(self.tls.is_none(), "a connection is encrypted once");
        self.tls = Some(Box::new(Encrypted { session, record: Vec::new(), kept: None, sent: 0 }));
    }

    /// File descriptor of the socket.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Whether the peer has closed the connection, or its half of it.
    #[must_use]
    pub fn peer_has_closed(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one entry, as said.
        let ready = unsafe { libc::poll(&mut fd, 1, 0) };
        ready > 0 && fd.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }

    /// Whether the socket is encrypted: its keys cannot move to another process.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// A second descriptor of the socket.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Whether the TLS handshake is not finished.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.is_handshaking())
    }

    /// TLS version and cipher; none without TLS.
    #[must_use]
    pub fn terms(&self) -> Option<String> {
        self.tls.as_ref()?.session.terms()
    }

    /// Names in the client's certificate, when the TLS handshake is finished; none before, and without TLS.
    #[must_use]
    pub fn peer_names(&self) -> Option<Vec<String>> {
        let session = &self.tls.as_ref()?.session;
        (!session.is_handshaking()).then(|| session.peer_names())
    }
}

impl headworks_front::Transport for Transport {
    /// `tail` is a bound without TLS; with TLS up to half of `scratch` is used.
    #[inline]
    fn receive(
        &mut self,
        direct: Option<Span>,
        scratch: &mut [u8],
        tail: usize,
    ) -> io::Result<usize> {
        match &mut self.tls {
            None => receive_into(self.socket.as_raw_fd(), direct, &mut scratch[..tail]),
            Some(tls) => tls.receive(self.socket.as_raw_fd(), direct, scratch),
        }
    }

    #[inline]
    fn send(&mut self, spans: &[Span], pool: &mut Pool) -> io::Result<usize> {
        match &mut self.tls {
            None => send_spans(self.socket.as_raw_fd(), spans),
            Some(tls) => tls.send(self.socket.as_raw_fd(), spans, pool),
        }
    }

    fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_unsent())
    }

    #[inline]
    fn held(&self) -> usize {
        let kept = self.tls.as_ref().and_then(|tls| tls.kept.as_ref());
        kept.map_or(0, |kept| kept.block.len())
    }

    fn progress(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.sent)
    }

    #[inline]
    fn settle(&mut self, sent: SendOutcome, pool: &mut Pool) -> io::Result<SendOutcome> {
        let Some(tls) = &mut self.tls else {
            return Ok(sent);
        };
        Ok(match (tls.flush(self.socket.as_raw_fd(), pool)?, sent) {
            (false, _) => SendOutcome::Full,
            // The socket would take more, but other connections are served first.
            (true, SendOutcome::Full) => SendOutcome::Budget,
            (true, sent) => sent,
        })
    }

    fn goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.session.goodbye();
        }
    }

    fn is_finished(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.session.said_goodbye() && !tls.has_unsent())
    }

    fn abandon(&mut self, pool: &mut Pool) {
        if let Some(kept) = self.tls.as_mut().and_then(|tls| tls.kept.take()) {
            pool.put(kept.block);
        }
    }
}

impl Encrypted {
    fn receive(
        &mut self,
        fd: RawFd,
        direct: Option<Span>,
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        if self.session.is_ended() {
            return Ok(0);
        }
        let (plain, cipher) = scratch.split_at_mut(scratch.len() / 2);
        let most = cipher.len().min(RECEIVE_BYTES);
        let count = receive_into(fd, None, &mut cipher[..most])?;
        if count == 0 {
            return Ok(0);
        }
        let mut target = Target { direct: direct.unwrap_or(Span::EMPTY), plain, at: 0 };
        let opened = self.session.open(&cipher[..count], |piece| target.put(piece));
        opened.map_err(broken)?;
        match (target.at, self.session.is_ended()) {
            (0, false) => Err(io::ErrorKind::Interrupted.into()),
            (count, _) => Ok(count),
        }
    }

    fn has_unsent(&self) -> bool {
        self.kept.is_some() || self.session.has_unsent()
    }

    fn send(&mut self, fd: RawFd, spans: &[Span], pool: &mut Pool) -> io::Result<usize> {
        // SAFETY: spans name memory that stays unchanged until the pieces are dropped.
        let mut source = unsafe { Pieces::new(spans) };
        let wanted: usize = spans.iter().map(|span| span.len()).sum();
        while self.flush(fd, pool)? && !source.is_empty() && source.taken() < TURN_BYTES {
            let block = MemoryLimits::try_keep(pool, sealed_bytes(wanted - source.taken()));
            let (records, most) = match block {
                Some(_) => (SEALED_RECORDS, RECORD_BYTES),
                None => (1, KEPT_ALWAYS - RECORD_EXTRA),
            };
            let sealed = (0..records).try_for_each(|_| match source.is_empty() {
                true => Ok(()),
                false => self.session.seal(source.next_record(most, &mut self.record)),
            });
            // Whatever fails, the block goes back.
            if let Some(block) = block {
                self.flush_or_keep(fd, block, pool)?;
            }
            sealed.map_err(broken)?;
        }
        if source.taken() == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(source.taken()) }
    }

    /// Sends ciphertext; returns whether all of it was sent.
    fn flush(&mut self, fd: RawFd, pool: &mut Pool) -> io::Result<bool> {
        while let Some(kept) = &mut self.kept {
            // SAFETY: filled bytes of a block that is ours.
            let rest = unsafe { kept.block.span().part(kept.at, kept.end - kept.at) };
            match send_spans(fd, &[rest]) {
                Ok(count) => {
                    (kept.at, self.sent) = (kept.at + count, self.sent + count as u64);
                    if kept.at == kept.end {
                        self.kept.take().into_iter().for_each(|kept| pool.put(kept.block));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.session.flush(&mut Wire { fd, sent: &mut self.sent })
    }

    /// Sends the session's ciphertext, and moves to the block what the socket does not take.
    fn flush_or_keep(&mut self, fd: RawFd, block: Buffer, pool: &mut Pool) -> io::Result<()> {
        let mut kept = Kept { block, at: 0, end: 0 };
        let sent = self.session.flush(&mut Wire { fd, sent: &mut self.sent });
        match sent.and_then(|all| if all { Ok(true) } else { self.session.flush(&mut kept) }) {
            Ok(_) if kept.end > 0 => self.kept = Some(kept),
            outcome => {
                pool.put(kept.block);
                outcome?;
            }
        }
        Ok(())
    }
}

/// Bytes of the block for the ciphertext of so many bytes, of which at most [`SEALED_RECORDS`] are sealed at once.
fn sealed_bytes(plain: usize) -> usize {
    let records = plain.div_ceil(RECORD_BYTES).min(SEALED_RECORDS);
    plain.min(SEALED_RECORDS * RECORD_BYTES) + records * RECORD_EXTRA
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.block.len() - self.end);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // SAFETY: the rest of a block that is ours.
        unsafe { self.block.base().add(self.end).copy_from_nonoverlapping(bytes.as_ptr(), count) };
        self.end += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket as rustls writes to it.
struct Wire<'a> {
    fd: RawFd,
    /// Bytes that it took.
    sent: &'a mut u64,
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: an `IoSlice` is laid out as an iovec and borrows its bytes.
        let count = unsafe { send_iovecs(self.fd, pieces.as_ptr().cast(), pieces.len()) }?;
        *self.sent += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Destination of plaintext: the payload's buffer first, then the scratch.
struct Target<'a> {
    direct: Span,
    plain: &'a mut [u8],
    at: usize,
}

impl Target<'_> {
    fn put(&mut self, piece: &[u8]) {
        let placed = piece.len().min(self.direct.len().saturating_sub(self.at));
        if placed > 0 {
            // SAFETY: `direct` is the rest of a private buffer, of which `at` bytes are filled and `placed` more fit.
            unsafe {
                let base = self.direct.base().add(self.at);
                base.copy_from_nonoverlapping(piece.as_ptr(), placed);
            }
            self.at += placed;
        }
        let rest = &piece[placed..];
        if !rest.is_empty() {
            // Plaintext is shorter than its ciphertext, which fits one half.
            let at = self.at - self.direct.len();
            self.plain[at..at + rest.len()].copy_from_slice(rest);
            self.at += rest.len();
        }
    }
}

fn broken(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn receive_into(fd: RawFd, direct: Option<Span>, scratch: &mut [u8]) -> io::Result<usize> {
    // SAFETY: borrowed until the call has returned.
    let tail = unsafe { Span::new(scratch.as_mut_ptr(), scratch.len()) };
    let spans = [direct.unwrap_or(tail), tail];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = spans.as_ptr().cast_mut().cast();
    message.msg_iovlen = if direct.is_some() { 2 } else { 1 };
    // SAFETY: the spans have iovec's layout; the first is a private buffer's rest, the second the scratch that we borrow.
    let count = unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}

fn send_spans(fd: RawFd, spans: &[Span]) -> io::Result<usize> {
    // SAFETY: spans have iovec's layout and name memory that stays until the pieces are dropped.
    unsafe { send_iovecs(fd, spans.as_ptr().cast(), spans.len()) }
}

/// Sends `count` pieces without waiting.
///
/// # Safety
/// `pieces` points to `count` iovecs, which name memory that may be read.
unsafe fn send_iovecs(fd: RawFd, pieces: *const libc::iovec, count: usize) -> io::Result<usize> {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.cast_mut();
    message.msg_iovlen = count as _; // the C library chooses the type
    // SAFETY: the caller's promise.
    let sent = unsafe { libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
