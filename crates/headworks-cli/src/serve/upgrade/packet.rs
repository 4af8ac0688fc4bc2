//! Packets with descriptors over a pair of connected SOCK_SEQPACKET sockets.
//!
//! A packet arrives whole or not at all, with all of its descriptors. Received descriptors are closed at exec. Invariant: a wait
//! ends at its deadline or when the peer closes its end.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

/// Most descriptors of a packet; the kernel's limit (SCM_MAX_FD) is 253.
pub(in crate::serve) const DESCRIPTORS_MAX: usize = 200;
/// Most bytes of a packet.
pub(in crate::serve) const BYTES_MAX: usize = 8 << 10;
/// Words of a control buffer: the header and [`DESCRIPTORS_MAX`] descriptors, aligned.
const CONTROL_WORDS: usize = 8 + DESCRIPTORS_MAX / 2;

/// Failure of a packet socket.
#[derive(Debug)]
pub(in crate::serve) enum PacketError {
    /// The peer has closed its end.
    Closed,
    /// The deadline has passed.
    TimedOut,
    /// The peer has sent something else than what was expected.
    Invalid(String),
    /// The kernel refused the operation.
    Io(io::Error),
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it has ended"),
            Self::TimedOut => f.write_str("it did not answer in time"),
            Self::Invalid(what) => f.write_str(what),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl PacketError {
    /// The error of a system call that has just failed.
    fn last() -> Self {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => Self::Closed,
            _ => Self::Io(error),
        }
    }

    fn is_transient(&self) -> bool {
        let Self::Io(error) = self else { return false };
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
    }
}

/// A received packet.
#[derive(Debug, Default)]
pub(in crate::serve) struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

fn is_packet_socket(fd: RawFd) -> bool {
    let mut kind: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
    // SAFETY: the value has the size that is passed.
    let status =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut kind).cast(), &raw mut size) };
    status == 0 && kind == libc::SOCK_SEQPACKET
}

/// One end of a connected pair.
#[derive(Debug)]
pub(in crate::serve) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Creates a connected pair; both ends are closed at exec.
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut fds: [RawFd; 2] = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for the two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new and belong to this function.
        let [one, other] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok((Self(one), Self(other)))
    }

    /// Takes over a descriptor that another process passed by its number; it is closed at exec from now on.
    ///
    /// # Errors
    /// The descriptor is not open, or it is no socket of this kind.
    pub fn inherit(number: &str) -> Result<Self, String> {
        let wrong = || format!("`{number}` is no inherited SOCK_SEQPACKET socket");
        let fd: RawFd = number.parse().ok().filter(|fd| *fd > 2).ok_or_else(wrong)?;
        if !is_packet_socket(fd) {
            return Err(wrong());
        }
        // SAFETY: only a flag of an open descriptor changes.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
            return Err(wrong());
        }
        // SAFETY: the descriptor was passed to this process, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes a descriptor that came in a packet.
    ///
    /// # Errors
    /// It is no socket of this kind.
    pub fn adopt(fd: OwnedFd) -> Result<Self, String> {
        match is_packet_socket(fd.as_raw_fd()) {
            true => Ok(Self(fd)),
            false => Err("a descriptor is no SOCK_SEQPACKET socket".to_owned()),
        }
    }

    /// Another descriptor of the socket, for another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Sends a packet; `descriptors` stay open here.
    pub fn send(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd],
        until: Instant,
    ) -> Result<(), PacketError> {
        assert!(!bytes.is_empty(), "an empty packet would look like the end of the stream");
        assert!(bytes.len() <= BYTES_MAX, "a packet has at most BYTES_MAX bytes");
        assert!(descriptors.len() <= DESCRIPTORS_MAX, "a packet has at most DESCRIPTORS_MAX");
        loop {
            match self.try_send(bytes, descriptors) {
                Err(error) if error.is_transient() => self.wait(libc::POLLOUT, Some(until))?,
                sent => return sent,
            }
        }
    }

    fn try_send(&self, bytes: &[u8], descriptors: &[BorrowedFd]) -> Result<(), PacketError> {
        let mut control = [0_u64; CONTROL_WORDS];
        let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        let length = size_of_val(descriptors) as u32;
        // SAFETY: a structure of numbers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        if !descriptors.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: the macros compute with a number; the buffer holds a header and DESCRIPTORS_MAX descriptors.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(length) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(length) as _;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for (index, fd) in descriptors.iter().enumerate() {
                    data.add(index).write_unaligned(fd.as_raw_fd());
                }
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message points to buffers that live through the call.
        match unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, flags) } {
            count if count == bytes.len() as isize => Ok(()),
            count if count >= 0 => Err(PacketError::Invalid("a packet was cut off".into())),
            _ => Err(PacketError::last()),
        }
    }

    /// Receives a packet; without a deadline the wait ends when the peer closes its end.
    pub fn receive(&self, until: Option<Instant>) -> Result<Packet, PacketError> {
        loop {
            match self.try_receive() {
                Err(error) if error.is_transient() => self.wait(libc::POLLIN, until)?,
                received => return received,
            }
        }
    }

    fn try_receive(&self) -> Result<Packet, PacketError> {
        let mut control = [0_u64; CONTROL_WORDS];
        let mut bytes = vec![0; BYTES_MAX];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: a structure of numbers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message points to buffers that live through the call.
        let count = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, flags) };
        if count < 0 {
            return Err(PacketError::last());
        }
        // Taken first, so that they are closed when the packet is refused.
        let descriptors = descriptors(&message);
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(PacketError::Invalid(format!(
                "descriptors of a packet were cut off: at most {} are open; raise the limit (LimitNOFILE=, ulimit -n)",
                open_limit()
            )));
        }
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            let what = format!("a packet has more than {BYTES_MAX} bytes");
            return Err(PacketError::Invalid(what));
        }
        if count == 0 {
            return Err(PacketError::Closed);
        }
        bytes.truncate(count as usize);
        Ok(Packet { bytes, descriptors })
    }

    fn wait(&self, events: libc::c_short, until: Option<Instant>) -> Result<(), PacketError> {
        loop {
            let left = until.map_or(-1, |until| {
                let left = until.saturating_duration_since(Instant::now()).as_micros();
                i32::try_from(left.div_ceil(1000)).unwrap_or(i32::MAX)
            });
            let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events, revents: 0 };
            // SAFETY: one entry, as passed.
            match unsafe { libc::poll(&raw mut poll, 1, left) } {
                0 => return Err(PacketError::TimedOut),
                ready if ready > 0 => return Ok(()),
                _ => match PacketError::last() {
                    error if error.is_transient() => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// Ends all traffic: waits here and at the peer end as if this end was closed.
    pub fn shut_down(&self) {
        // SAFETY: a call on an open descriptor; it fails when the peer is gone, which has the same effect.
        let _ = unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The descriptors that a message brought.
fn descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel filled the control buffer, in which the macros stay; each descriptor is new and taken once.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let is_rights =
                (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS;
            if is_rights {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    found.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    found
}

/// The limit of open descriptors.
fn open_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn packet_arrives_whole_with_descriptors_closed_at_exec() {
        let (one, other) = PacketSocket::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        one.send(b"first", &[file.as_fd(), file.as_fd()], soon()).unwrap();
        one.send(b"second", &[], soon()).unwrap();
        let packet = other.receive(Some(soon())).unwrap();
        assert_eq!((packet.bytes.as_slice(), packet.descriptors.len()), (&b"first"[..], 2));
        for fd in &packet.descriptors {
            // SAFETY: asks for the flags of an open descriptor.
            let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags, libc::FD_CLOEXEC);
        }
        assert_eq!(other.receive(Some(soon())).unwrap().bytes, b"second");
    }

    #[test]
    fn silent_peer_times_out_and_closed_one_ends_every_wait() {
        let (one, other) = PacketSocket::pair().unwrap();
        let now = Instant::now();
        assert!(matches!(one.receive(Some(now)), Err(PacketError::TimedOut)));
        // The buffers fill up, as the peer reads nothing.
        let filled = std::iter::repeat_with(|| one.send(&[7; BYTES_MAX], &[], now));
        let refused = filled.take(1 << 16).find_map(Result::err);
        assert!(matches!(refused, Some(PacketError::TimedOut)), "{refused:?}");
        drop(other);
        assert!(matches!(one.send(b"x", &[], soon()), Err(PacketError::Closed)));
        // The first receive after a close with unread data reports a reset.
        assert!(matches!(one.receive(Some(soon())), Err(PacketError::Closed)));
        assert!(matches!(one.receive(None), Err(PacketError::Closed)));
    }

    #[test]
    fn shutdown_ends_a_wait_of_another_thread() {
        let (one, _other) = PacketSocket::pair().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| one.receive(None));
            one.shut_down();
            assert!(matches!(waiting.join().unwrap(), Err(PacketError::Closed)));
        });
    }

    #[test]
    fn cut_off_packets_are_refused() {
        let (one, other) = PacketSocket::pair().unwrap();
        let long = [1; BYTES_MAX + 1];
        // SAFETY: the buffer has the length that is passed.
        let sent = unsafe { libc::send(one.0.as_raw_fd(), long.as_ptr().cast(), long.len(), 0) };
        assert_eq!(sent, long.len() as isize);
        let error = other.receive(Some(soon())).unwrap_err().to_string();
        assert!(error.contains("more than 8192 bytes"), "{error}");
    }

    #[test]
    fn other_descriptors_are_not_inherited() {
        let file = File::open("/dev/null").unwrap();
        let number = file.as_raw_fd().to_string();
        for wrong in ["", "-1", "0", "x", "1000000", &number] {
            let error = PacketSocket::inherit(wrong).unwrap_err();
            assert!(error.contains("no inherited SOCK_SEQPACKET socket"), "{error}");
        }
    }
}
