//! The kernel's side of a mount: an open `/dev/fuse` from which requests are read and to which answers are written.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

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
            // SAFETY: the kernel writes at most `buffer.len()` bytes into a buffer that lives during the call.
            let read = unsafe {
                libc::read(self.device.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len())
            };
            if read >= 0 {
                return Ok(Some(read as usize));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // A request that was interrupted before it was read, a signal, another reader.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                _ => return Err(error),
            }
        }
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
