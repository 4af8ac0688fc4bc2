//! What several files ask of the kernel, with its errors as results.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The answer of a system call, which is negative where it failed.
pub fn checked(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A descriptor that a system call has just opened.
///
/// # Safety
/// The answer is of such a call, and nothing else owns the descriptor.
pub unsafe fn opened(answer: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    checked(answer).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An eventfd that never blocks.
pub fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; what it opens is owned by nothing else.
    unsafe { opened(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
}

/// Makes an eventfd readable, also one that is: each call is an edge.
pub fn ring(eventfd: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: eight bytes of a local. It cannot fail: the descriptor is open, and the counter has room.
    unsafe { libc::write(eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// What the kernel tells of a file's filesystem.
pub fn filesystem_of(file: &File) -> io::Result<libc::statfs> {
    // SAFETY: a struct of integers, for which zeros are a value.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `facts` lives through the call, which fills it.
    checked(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut facts) })?;
    Ok(facts)
}

/// Sets and clears status flags of an open file.
pub fn change_flags(file: &File, set: libc::c_int, clear: libc::c_int) -> io::Result<()> {
    let fd = file.as_raw_fd();
    // SAFETY: calls without pointers on an open file.
    let flags = checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    // SAFETY: as above.
    checked(unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !clear | set) }).map(drop)
}
