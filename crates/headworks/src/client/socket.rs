//! A connected stream socket, unix or TCP, with the few calls that a pipelined client needs beside reading and writing.
//!
//! The socket stays in blocking mode; who must not block says so with each call (`MSG_DONTWAIT`). So a client that only
//! waits for replies makes one system call per batch of them, not two.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use super::{ClientError, Target};
use crate::memory::Span;

/// The most pieces that the kernel takes at once (UIO_MAXIOV).
pub(super) const SPANS_MAX: usize = 1024;

/// A connection to a server.
#[derive(Debug)]
pub enum Socket {
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP, without delay.
    Tcp(TcpStream),
}

impl Socket {
    /// Connects; reads and writes that take longer than `timeout` fail.
    pub fn connect(target: &Target, timeout: Duration) -> Result<Self, ClientError> {
        let socket = match target {
            Target::Unix(path) => match path.as_os_str().as_bytes() {
                [0, name @ ..] => SocketAddr::from_abstract_name(name)
                    .and_then(|address| UnixStream::connect_addr(&address)),
                _ => UnixStream::connect(path),
            }
            .map(Socket::Unix),
            Target::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).map(Socket::Tcp),
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
                }
                Ok(socket)
            })
            .map_err(|error| ClientError::Connect(target.to_string(), error))
    }

    /// Sends as much of the pieces as fits without waiting; 0 if nothing does.
    ///
    /// # Safety
    /// The spans are valid for reads while this runs.
    pub(super) unsafe fn send(&self, spans: &[Span]) -> io::Result<usize> {
        // SAFETY: a msghdr of zeros is one without address and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = spans.as_ptr().cast_mut().cast();
        message.msg_iovlen = spans.len().min(SPANS_MAX);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message names `spans`, which have iovec's layout and by contract point to readable memory.
        let sent = unsafe { libc::sendmsg(self.as_raw_fd(), &message, flags) };
        usize::try_from(sent).or_else(|_| match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            error => Err(error),
        })
    }

    /// Receives into both buffers, one after the other: how much, or nothing if there is nothing yet, or
    /// not within the socket's time-out.
    pub(super) fn receive(
        &self,
        first: &mut [u8],
        second: &mut [u8],
        wait: bool,
    ) -> io::Result<Option<usize>> {
        let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
        // SAFETY: a msghdr of zeros is one without address and control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = slices.as_mut_ptr().cast();
        message.msg_iovlen = slices.len();
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

    /// Waits until the socket can be read, or written. False after `timeout`.
    pub(super) fn wait_for_either(&self, timeout: Duration) -> io::Result<bool> {
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

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Socket::Unix(stream) => stream.as_raw_fd(),
            Socket::Tcp(stream) => stream.as_raw_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.read(buffer),
            Socket::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.write(bytes),
            Socket::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
