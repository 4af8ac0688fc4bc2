//! The kernel's side of a mount: an open `/dev/fuse` from which requests are read and to which answers are written.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// What a wait for a request found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// None within the time.
    Nothing,
    /// The mount is gone.
    Gone,
}

/// An open `/dev/fuse` that belongs to a mount.
#[derive(Debug)]
pub struct Channel {
    device: OwnedFd,
}

impl Channel {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Waits for a request and returns its length in `buffer`, which has [`crate::REQUEST_MAX`] bytes; none once the mount is gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let error = match self.read(buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(error) => error,
            };
            match error.raw_os_error() {
                // A request that was interrupted before it was read, a signal, another reader.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(error),
            }
        }
    }

    /// From now on a read that finds no request returns, as [`Channel::receive_within`] needs it.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        // SAFETY: flags of a descriptor that is open.
        match unsafe { libc::fcntl(self.device.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits at most `limit` for a request and reads it into `buffer`, which has [`crate::REQUEST_MAX`] bytes; without a limit as long as
    /// it takes. The channel is non-blocking: a request that is there when the wait ends may be gone when it is read.
    pub fn receive_within(
        &self,
        buffer: &mut [u8],
        limit: Option<Duration>,
    ) -> io::Result<Received> {
        let mut poll =
            libc::pollfd { fd: self.device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().min(3600) as libc::time_t,
            tv_nsec: libc::c_long::from(limit.subsec_nanos()),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
        // SAFETY: one descriptor that is open, and a time that lives, during the call.
        let ready = unsafe { libc::ppoll(&raw mut poll, 1, limit, std::ptr::null()) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(Received::Nothing),
                _ => Err(error),
            };
        }
        if ready == 0 {
            return Ok(Received::Nothing);
        }
        let read = self.read(buffer);
        match read.as_ref().map_err(io::Error::raw_os_error) {
            Ok(&length) => Ok(Received::Request(length)),
            Err(Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)) => Ok(Received::Nothing),
            Err(Some(libc::ENODEV | libc::ECONNABORTED)) => Ok(Received::Gone),
            Err(_) => read.map(Received::Request),
        }
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes into a buffer that lives during the call.
        let read = unsafe {
            libc::read(self.device.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len())
        };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(read as usize) }
    }

    /// Writes an answer. A request that was interrupted or whose mount is gone needs none any more.
    pub fn send(&self, reply: &[u8]) -> io::Result<()> {
        // SAFETY: the kernel reads `reply.len()` bytes of a slice that lives during the call.
        let sent =
            unsafe { libc::write(self.device.as_raw_fd(), reply.as_ptr().cast(), reply.len()) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED) => Ok(()),
            _ => Err(error),
        }
    }
}
