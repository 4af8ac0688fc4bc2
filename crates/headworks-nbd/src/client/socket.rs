//! A connected stream socket, unix or TCP, in the clear or through TLS.
//!
//! The socket stays in blocking mode; calls that must not block pass `MSG_DONTWAIT`. So waiting for replies costs one system call
//! per batch, not two.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use super::tls::Encrypted;
use super::{ClientError, Target};
use crate::tls::Session;
use headworks::driver::Span;

/// Most pieces of one system call (UIO_MAXIOV).
pub(super) const SPANS_MAX: usize = 1024;

/// A connection to a server.
#[derive(Debug)]
pub enum Socket {
    /// A unix stream socket.
    Unix(UnixStream),
    /// A TCP socket with TCP_NODELAY.
    Tcp(TcpStream),
    /// Either of the two through TLS.
    Tls(Box<Encrypted>),
}

impl Socket {
    /// Connects; reads and writes fail after `timeout`.
    pub fn connect(target: &Target, timeout: Duration) -> Result<Self, ClientError> {
        let socket = match target {
            Target::Unix(path) => match path.as_os_str().as_bytes() {
                [0, name @ ..] => SocketAddr::from_abstract_name(name)
                    .and_then(|address| UnixStream::connect_addr(&address)),
                _ => UnixStream::connect(path),
            }
            .map(Socket::Unix),
            Target::Tcp(host, port) => connect_tcp(host, *port, timeout).map(Socket::Tcp),
        };
        let limit = Some(timeout);
        socket
            .and_then(|socket| {
                match &socket {
                    Socket::Unix(stream) => {
                        stream.set_read_timeout(limit)?;
                        stream.set_write_timeout(limit)?;
                    }
                    Socket::Tcp(stream) => {
                        stream.set_read_timeout(limit)?;
                        stream.set_write_timeout(limit)?;
                        stream.set_nodelay(true)?;
                    }
                    Socket::Tls(_) => unreachable!("a socket is plain at first"),
                }
                Ok(socket)
            })
            .map_err(|error| ClientError::Connect(target.to_string(), error))
    }

    /// Starts TLS; the server has accepted STARTTLS.
    pub(super) fn encrypt(self, session: Session) -> Result<Self, ClientError> {
        Ok(Socket::Tls(Box::new(Encrypted::start(self, session)?)))
    }

    /// Returns version and cipher of TLS; none in the clear.
    pub(super) fn tls(&self) -> Option<String> {
        match self {
            Socket::Tls(stream) => stream.terms(),
            _ => None,
        }
    }

    /// Sends as much of the pieces as fits without blocking; 0 when the socket is full.
    ///
    /// # Safety
    /// The memory of the spans is valid for reads during the call.
    pub(crate) unsafe fn send(&mut self, spans: &[Span]) -> io::Result<usize> {
        let sent = match self {
            // SAFETY: the caller's contract.
            Socket::Tls(stream) => unsafe { stream.send(spans) },
            // SAFETY: the caller promised it; spans have iovec's layout.
            _ => unsafe { self.send_iovecs(spans.as_ptr().cast(), spans.len()) },
        };
        sent.or_else(|error| match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(0),
            _ => Err(error),
        })
    }

    /// Sends ciphertext left by an earlier `send`; returns true when none is left.
    pub(crate) fn flush_some(&mut self) -> io::Result<bool> {
        match self {
            Socket::Tls(stream) => stream.flush_some(),
            _ => Ok(true),
        }
    }

    /// Sends as [`Socket::send`], with `WouldBlock` when the socket is full.
    pub(super) fn send_slices(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: an `IoSlice` is laid out as an iovec and borrows its bytes.
        unsafe { self.send_iovecs(pieces.as_ptr().cast(), pieces.len()) }
    }

    /// Sends `count` pieces without waiting.
    ///
    /// # Safety
    /// `pieces` points to `count` iovecs, which name memory that may be read.
    unsafe fn send_iovecs(&self, pieces: *const libc::iovec, count: usize) -> io::Result<usize> {
        // SAFETY: a msghdr of zeros is one without address and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.cast_mut();
        message.msg_iovlen = count.min(SPANS_MAX) as _; // the C library chooses the type
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the caller's promise.
        let sent = unsafe { libc::sendmsg(self.as_raw_fd(), &message, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives into both buffers in order; returns the count, or none when nothing arrived (within the time-out).
    pub(super) fn receive(
        &mut self,
        first: &mut [u8],
        second: &mut [u8],
        wait: bool,
    ) -> io::Result<Option<usize>> {
        if let Socket::Tls(stream) = self {
            return stream.receive(first, second, wait);
        }
        let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
        // SAFETY: a msghdr of zeros is one without address and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = slices.as_mut_ptr().cast();
        message.msg_iovlen = slices.len() as _;
        let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
        loop {
            // SAFETY: IoSliceMut has iovec's layout (std promises it), and both slices are ours to write.
            let received = unsafe { libc::recvmsg(self.as_raw_fd(), &mut message, flags) };
            let Ok(received) = usize::try_from(received) else {
                match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    error => return Err(error),
                }
            };
            return Ok(Some(received));
        }
    }

    /// Receives into the spans in order without waiting; returns the count, or none when nothing has arrived.
    ///
    /// # Safety
    /// The memory of the spans is valid for writes during the call.
    pub(crate) unsafe fn receive_into(&mut self, spans: &[Span]) -> io::Result<Option<usize>> {
        if let Socket::Tls(stream) = self {
            // SAFETY: the caller's promise.
            return unsafe { stream.receive_into(spans) };
        }
        // SAFETY: a msghdr of zeros is one without address and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = spans.as_ptr().cast_mut().cast();
        message.msg_iovlen = spans.len().min(SPANS_MAX) as _;
        loop {
            // SAFETY: the caller's promise; spans have iovec's layout.
            let received =
                unsafe { libc::recvmsg(self.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
            if let Ok(received) = usize::try_from(received) {
                return Ok(Some(received));
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                error => return Err(error),
            }
        }
    }

    /// Prepares for use by a device: no call waits, and a TCP connection whose other end is gone fails within half a minute.
    pub(crate) fn prepare_for_device(&self) -> io::Result<()> {
        let fd = self.as_raw_fd();
        // SAFETY: no pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: as above.
        if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if !self.is_tcp() {
            return Ok(());
        }
        for (level, name, value) in [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 30_000),
        ] {
            let value: libc::c_int = value;
            let len = size_of_val(&value) as libc::socklen_t;
            // SAFETY: an integer that lives during the call, with its length.
            if unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    fn is_tcp(&self) -> bool {
        match self {
            Socket::Unix(_) => false,
            Socket::Tcp(_) => true,
            Socket::Tls(stream) => stream.is_tcp(),
        }
    }

    /// Returns true when received bytes wait in this process: then the socket does not become readable for them.
    pub(crate) fn has_plain(&self) -> bool {
        matches!(self, Socket::Tls(stream) if stream.has_plain())
    }

    /// Waits until the socket is readable, or writable; returns false after `timeout`.
    pub(super) fn wait_for_either(&self, timeout: Duration) -> io::Result<bool> {
        if self.has_plain() {
            return Ok(true);
        }
        let mut poll =
            libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        let millis = timeout.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: one pollfd, alive on the stack.
        match unsafe { libc::poll(&mut poll, 1, millis) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(true),
            -1 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }
}

/// Connects to the first address of a host that answers, each within `timeout`.
fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Socket::Unix(stream) => stream.as_raw_fd(),
            Socket::Tcp(stream) => stream.as_raw_fd(),
            Socket::Tls(stream) => stream.as_raw_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.read(buffer),
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.write(bytes),
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.write_vectored(pieces),
            Socket::Tcp(stream) => stream.write_vectored(pieces),
            Socket::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
