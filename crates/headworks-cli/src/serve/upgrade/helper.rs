//! What helper processes of the server do at their start: signals and descriptors.

use std::io;
use std::os::fd::RawFd;

/// Lets a descriptor pass through exec.
pub(in crate::serve) fn keep_at_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: async-signal-safe; it changes a flag.
    match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the signal mask in a child, between fork and exec: the helper blocks all signals, because those of a terminal or of a
/// supervisor are for the server; the program that it starts blocks none. An ignored signal would stay ignored after exec.
pub(in crate::serve) fn set_signal_mask(
    fill: unsafe extern "C" fn(*mut libc::sigset_t) -> libc::c_int,
) -> io::Result<()> {
    // SAFETY: async-signal-safe calls that fill a set on the stack and read it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        fill(&raw mut set);
        match libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Closes all descriptors but 0 to 2 and `kept`: sockets of a service manager may have been inherited.
pub(in crate::serve) fn close_others(kept: RawFd) {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().into_string().ok()?.parse::<RawFd>().ok()
    };
    // Collected first: the directory's own descriptor is closed by then.
    let open: Vec<RawFd> = entries.filter_map(number).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2 && *fd != kept) {
        // SAFETY: nothing in this process uses a descriptor that it inherited, except `kept`.
        unsafe { libc::close(fd) };
    }
}
