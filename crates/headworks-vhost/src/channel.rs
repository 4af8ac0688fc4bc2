//! A vhost-user socket: messages with their descriptors, for both sides.
//!
//! A receiver holds at most one message that has not arrived whole. What the peer sends with a message's first bytes is that message's;
//! more than 32 descriptors are refused, and every descriptor that is not handed out is closed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::wire::{FDS_MAX, HEADER_BYTES, Header, Message};

/// Room for the control data of 32 descriptors, aligned as a `cmsghdr`.
const CONTROL_WORDS: usize = 24;
const _: () = assert!(CONTROL_WORDS * 8 >= 16 + FDS_MAX * size_of::<RawFd>());

/// What a call of [`Channel::receive`] found.
#[derive(Debug)]
pub enum Received {
    /// A whole message.
    Message(Message),
    /// Not a whole message yet.
    Incomplete,
    /// The peer has closed its side.
    Closed,
}

/// One side of a vhost-user connection.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    // The message that arrives: header and body, as far as there is.
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Channel {
    /// A connection over a socket, whose mode is left as it is.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, bytes: Vec::new(), fds: Vec::new() }
    }

    /// Receives what is there without waiting. An error of kind `InvalidData` is a sentence about the peer; the connection ends.
    pub fn receive(&mut self) -> io::Result<Received> {
        loop {
            let header = match self.bytes.first_chunk::<HEADER_BYTES>() {
                Some(bytes) => Some(Header::parse(bytes).map_err(invalid)?),
                None => None,
            };
            let whole = HEADER_BYTES + header.map_or(0, |header| header.size as usize);
            if let Some(header) = header.filter(|_| self.bytes.len() == whole) {
                let body = self.bytes.split_off(HEADER_BYTES);
                self.bytes.clear();
                let fds = std::mem::take(&mut self.fds);
                return Ok(Received::Message(Message { header, body, fds }));
            }
            match self.read(whole - self.bytes.len()) {
                Ok(0) if self.bytes.is_empty() => return Ok(Received::Closed),
                Ok(0) => {
                    return Err(invalid(
                        "the other side closed the connection in a message".into(),
                    ));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Received::Incomplete);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives at most `want` bytes, with their descriptors.
    fn read(&mut self, want: usize) -> io::Result<usize> {
        let begin = self.bytes.len();
        self.bytes.resize(begin + want, 0);
        let mut control = [0_u64; CONTROL_WORDS];
        let mut part =
            libc::iovec { iov_base: self.bytes[begin..].as_mut_ptr().cast(), iov_len: want };
        // SAFETY: all zeros is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message names `want` bytes and the control words, which live until the call has returned.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        self.bytes.truncate(begin + usize::try_from(got).unwrap_or(0));
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled the message.
        unsafe { collect(&message, &mut self.fds) };
        if message.msg_flags & libc::MSG_CTRUNC != 0 || self.fds.len() > FDS_MAX {
            return Err(invalid(format!("a message has more than {FDS_MAX} descriptors")));
        }
        Ok(got as usize)
    }

    /// Sends a message. A peer that does not take it within `timeout` is an error: a socket holds many messages.
    pub fn send(&self, message: &Message, timeout: Duration) -> io::Result<()> {
        let fds: Vec<RawFd> = message.fds.iter().map(AsRawFd::as_raw_fd).collect();
        self.send_bytes(&message.bytes(), &fds, timeout)
    }

    /// As [`Channel::send`], with descriptors that stay the caller's.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[RawFd], timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let (mut rest, mut fds) = (bytes, fds);
        while !rest.is_empty() {
            match send_some(self.socket.as_raw_fd(), rest, fds) {
                Ok(sent) => (rest, fds) = (&rest[sent..], &[]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(self.socket.as_raw_fd(), libc::POLLOUT, deadline)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for a whole message until `timeout` has passed; none at the end of the connection.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<Message>> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.receive()? {
                Received::Message(message) => return Ok(Some(message)),
                Received::Closed => return Ok(None),
                Received::Incomplete => wait(self.socket.as_raw_fd(), libc::POLLIN, deadline)?,
            }
        }
    }
}

fn invalid(sentence: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, sentence)
}

/// Waits for `events` on a descriptor.
fn wait(fd: RawFd, events: i16, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).saturating_add(1);
        let mut poll = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one structure, which lives until the call has returned.
        match unsafe { libc::poll(&raw mut poll, 1, left) } {
            0 if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            0 => {}
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            _ => return Ok(()),
        }
    }
}

/// Takes the descriptors of a received message.
///
/// # Safety
/// `message` is as `recvmsg` left it, and its control data live.
unsafe fn collect(message: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    #[allow(clippy::unnecessary_cast, reason = "32 bits with some C libraries")]
    // SAFETY: the macros walk control data that the kernel wrote; each descriptor is new and belongs to nothing else.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = part.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(control).cast::<RawFd>();
                let bytes = control.cmsg_len as usize - (data.addr() - part.addr());
                for index in 0..bytes / size_of::<RawFd>() {
                    let fd = data.wrapping_add(index).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

fn send_some(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    assert!(fds.len() <= FDS_MAX, "a message has at most {FDS_MAX} descriptors");
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let data_bytes = size_of_val(fds) as u32;
    // SAFETY: the control words have room for FDS_MAX descriptors; bytes and control live until the call has returned.
    let sent = unsafe {
        if !fds.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(data_bytes) as _;
            let header = &mut *libc::CMSG_FIRSTHDR(&raw const message);
            header.cmsg_level = libc::SOL_SOCKET;
            header.cmsg_type = libc::SCM_RIGHTS;
            header.cmsg_len = libc::CMSG_LEN(data_bytes) as _;
            let data = libc::CMSG_DATA(header);
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), data, data_bytes as usize);
        }
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}
