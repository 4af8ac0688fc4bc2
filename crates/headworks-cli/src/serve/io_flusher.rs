//! The mark of a process on which the kernel's write-back depends.
//!
//! A file system of this host may lie on a file of FUSE. Its dirty pages become free when the server has written them, so the server must not
//! await that when it needs memory itself: reclaim on behalf of a marked process starts no write-back and waits for none. Without the mark a
//! page fault of the server can wait for a page that the server has to write.
//!
//! The mark needs CAP_SYS_RESOURCE, is of a thread, and passes to the threads and processes that it starts.

use std::io;

/// Not in libc for this system.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Marks the calling thread.
///
/// # Errors
/// The kernel does not know the mark (before Linux 5.6), or the process may not have it.
pub(super) fn mark() -> io::Result<()> {
    set(true)
}

/// Takes the mark away. A process that may not have it any more keeps it.
pub(super) fn unmark() {
    let _ = set(false);
}

fn set(marked: bool) -> io::Result<()> {
    let marked = libc::c_ulong::from(marked);
    // SAFETY: only numbers are passed.
    match unsafe {
        libc::prctl(
            PR_SET_IO_FLUSHER,
            marked,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
