//! A connected stream socket, unix or TCP, in the clear or through TLS.
//!
//! The socket stays in blocking mode; calls that must not block pass `MSG_DONTWAIT`. So waiting for replies costs one system call
//! per batch, not two.
//!
//! Rule: from the call to connect until the end of negotiation every wait ends at one deadline, below TLS too: a server that sends a byte now
//! and then gains no time by it. Afterwards each wait has a limit of its own.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::tls::Encrypted;
use super::{ClientError, Target};
use crate::tls::Session;
use headworks::driver::Span;

/// Most pieces of one system call (UIO_MAXIOV).
pub(super) const SPANS_MAX: usize = 1024;

/// A connection to a server.
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
    limits: Limits,
}

/// What carries the bytes.
#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    /// With TCP_NODELAY.
    Tcp(TcpStream),
    /// Either of the two through TLS.
    Tls(Box<Encrypted>),
}

/// How long calls wait.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// Limit of a wait after negotiation, and of negotiation as a whole; none for a socket that was given.
    each: Option<Duration>,
    /// End of negotiation.
    deadline: Option<Instant>,
}

impl From<UnixStream> for Socket {
    /// A socket whose waits have the limits that it was given.
    fn from(stream: UnixStream) -> Self {
        Self { stream: Stream::Unix(stream), limits: Limits::default() }
    }
}

impl Socket {
    /// Connects; this and everything up to the end of negotiation waits for at most `limit` in all.
    pub fn connect(target: &Target, limit: Duration) -> Result<Self, ClientError> {
        let deadline = Instant::now() + limit;
        let stream = match target {
            Target::Unix(path) => connect_unix_until(path, deadline).map(Stream::Unix),
            Target::Tcp(host, port) => connect_tcp(host, *port, deadline).map(Stream::Tcp),
        };
        let limits = Limits { each: Some(limit), deadline: Some(deadline) };
        let late = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        };
        match stream {
            Ok(stream) => Ok(Self { stream, limits }),
            Err(error) if late(&error) => Err(ClientError::TimedOut),
            Err(error) => Err(ClientError::Connect(target.to_string(), error)),
        }
    }

    /// Gives negotiation the whole limit again.
    pub(super) fn renew_deadline(&mut self) {
        self.set_deadline(self.limits.each.map(|each| Instant::now() + each));
    }

    /// From now on each wait has the limit by itself.
    pub(super) fn end_negotiation(&mut self) -> io::Result<()> {
        self.set_deadline(None);
        match self.limits.each {
            Some(each) => self.set_timeouts(each),
            None => Ok(()),
        }
    }

    fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.limits.deadline = deadline;
        if let Stream::Tls(stream) = &mut self.stream {
            stream.socket_mut().set_deadline(deadline);
        }
    }

    /// Before a call that may wait: it ends at the deadline.
    fn limit_wait(&self) -> io::Result<()> {
        let Some(deadline) = self.limits.deadline else { return Ok(()) };
        self.set_timeouts(left_until(deadline)?)
    }

    fn set_timeouts(&self, limit: Duration) -> io::Result<()> {
        let some = Some(limit);
        match &self.stream {
            Stream::Unix(stream) => {
                stream.set_read_timeout(some)?;
                stream.set_write_timeout(some)
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(some)?;
                stream.set_write_timeout(some)
            }
            Stream::Tls(stream) => stream.socket().set_timeouts(limit),
        }
    }

    /// Starts TLS; the server has accepted STARTTLS.
    pub(super) fn encrypt(self, session: Session) -> Result<Self, ClientError> {
        let limits = self.limits;
        Ok(Self { stream: Stream::Tls(Box::new(Encrypted::start(self, session)?)), limits })
    }

    /// Returns version and cipher of TLS; none in the clear.
    pub(super) fn tls(&self) -> Option<String> {
        match &self.stream {
            Stream::Tls(stream) => stream.terms(),
            _ => None,
        }
    }

    /// Sends as much of the pieces as fits without blocking; 0 when the socket is full.
    ///
    /// # Safety
    /// The memory of the spans is valid for reads during the call.
    pub(crate) unsafe fn send(&mut self, spans: &[Span]) -> io::Result<usize> {
        let sent = match &mut self.stream {
            // SAFETY: the caller's contract.
            Stream::Tls(stream) => unsafe { stream.send(spans) },
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
        match &mut self.stream {
            Stream::Tls(stream) => stream.flush_some(),
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
        if let Stream::Tls(stream) = &mut self.stream {
            return stream.receive(first, second, wait);
        }
        if wait {
            self.limit_wait()?;
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
        if let Stream::Tls(stream) = &mut self.stream {
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

    pub(super) fn is_tcp(&self) -> bool {
        match &self.stream {
            Stream::Unix(_) => false,
            Stream::Tcp(_) => true,
            Stream::Tls(stream) => stream.socket().is_tcp(),
        }
    }

    /// Returns true when received bytes wait in this process: then the socket does not become readable for them.
    pub(crate) fn has_plain(&self) -> bool {
        matches!(&self.stream, Stream::Tls(stream) if stream.has_plain())
    }

    /// Waits until the socket is readable, or if asked for writable; returns false after `time`.
    pub(super) fn wait_within(&self, writable: bool, time: Duration) -> io::Result<bool> {
        if self.has_plain() {
            return Ok(true);
        }
        let events = libc::POLLIN | if writable { libc::POLLOUT } else { 0 };
        let mut poll = libc::pollfd { fd: self.as_raw_fd(), events, revents: 0 };
        let time = libc::timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: one pollfd and one time, alive on the stack; no signal mask.
        match unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(true),
            -1 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }
}

/// The time until a deadline; an error when it has passed.
fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Connects to the first address of a host that answers. The resolver of the C library has its own limits.
fn connect_tcp(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left_until(deadline)?) {
            Ok(stream) => return stream.set_nodelay(true).map(|()| stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Connects to a unix socket; if the backlog is full and no connection is accepted, the call waits for at most `limit`.
///
/// # Errors
/// Nothing listens there, or not in time (`WouldBlock` or `TimedOut`).
pub fn connect_unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let stream = connect_unix_until(path, Instant::now() + limit)?;
    stream.set_write_timeout(None).map(|()| stream)
}

fn connect_unix_until(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let path = path.as_os_str().as_bytes();
    // SAFETY: an address of zeros is one without a name.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if path.is_empty() || path.len() >= address.sun_path.len() {
        let message = format!("the path has {} bytes instead of 1 to 107", path.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    address.sun_family = libc::AF_UNIX as _;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    // The name of an abstract address ends with its length, a path with a zero.
    let name = path.len() + usize::from(path[0] != 0);
    let len = (std::mem::offset_of!(libc::sockaddr_un, sun_path) + name) as libc::socklen_t;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, with no other owner.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    loop {
        stream.set_write_timeout(Some(left_until(deadline)?))?;
        // SAFETY: an address that lives during the call, with its length.
        if unsafe { libc::connect(fd, (&raw const address).cast(), len) } == 0 {
            return Ok(stream);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match &self.stream {
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.as_raw_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit_wait()?;
        match &mut self.stream {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit_wait()?;
        match &mut self.stream {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.limit_wait()?;
        match &mut self.stream {
            Stream::Unix(stream) => stream.write_vectored(pieces),
            Stream::Tcp(stream) => stream.write_vectored(pieces),
            Stream::Tls(stream) => stream.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
