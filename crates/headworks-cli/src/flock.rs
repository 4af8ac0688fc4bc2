//! Locks of whole files and folders among processes; one ends with the open file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks a file; false if another open file has the lock.
///
/// # Errors
/// The file system has no locks.
pub fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: a call on an open descriptor.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        },
    }
}
