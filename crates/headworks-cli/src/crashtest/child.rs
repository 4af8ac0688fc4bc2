//! Programs of a test: each is the leader of a process group, has a time limit, and ends with what it started.
//!
//! Rule: a signal that ends the test ends the wait for its programs with an error, so that the test ends as with any other error and leaves
//! no mount and no directory. A second signal ends the process at once.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The signal that ends the test; 0 before.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Descriptor to which its handler writes.
static NOTIFIED: AtomicI32 = AtomicI32::new(-1);
/// Becomes readable with that signal, and stays so.
static HEARD: OnceLock<UnixStream> = OnceLock::new();

/// Lets SIGINT, SIGTERM, SIGHUP and SIGQUIT end the waits for programs, unless they are ignored.
///
/// # Errors
/// No descriptor is left.
pub fn heed_signals() -> io::Result<()> {
    extern "C" fn note(signal: libc::c_int) {
        // Relaxed: the byte wakes those that read it.
        if SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // It is delivered again when this returns.
            return end_by(signal);
        }
        // SAFETY: write is async-signal-safe; errno is that of the interrupted call again.
        unsafe {
            let errno = *libc::__errno_location();
            libc::write(NOTIFIED.load(Ordering::Relaxed), [0_u8].as_ptr().cast(), 1);
            *libc::__errno_location() = errno;
        }
    }
    let (heard, notified) = UnixStream::pair()?;
    if HEARD.set(heard).is_err() {
        return Ok(());
    }
    NOTIFIED.store(notified.into_raw_fd(), Ordering::Relaxed);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: all zeros are an action with an empty mask; the handler does what a handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, &raw mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                libc::sigaction(signal, &raw const before, std::ptr::null_mut());
            }
        }
    }
    Ok(())
}

/// The signal that ended the test, if one did.
pub fn ended_by() -> Option<i32> {
    Some(SIGNAL.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Ends this process by a signal, as it would have ended it without a handler.
pub fn end_by(signal: i32) {
    // SAFETY: no preconditions; the default is the end of the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Waits for the end of a process; none after the time limit, and then its group is killed, as it is with an error after a signal.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let process = opened(child)?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let signal = ended_by();
        if left.is_zero() || signal.is_some() {
            kill_group(child);
            child.wait()?;
            let error = |signal| Err(io::Error::other(format!("interrupted by signal {signal}")));
            return signal.map_or(Ok(None), error);
        }
        let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative descriptor is left out.
        let heard = HEARD.get().map_or(-1, AsRawFd::as_raw_fd);
        let mut poll = [process.as_raw_fd(), heard].map(readable);
        // Rounded up, so that the last turn does not spin.
        let milliseconds = left.as_millis().saturating_add(1).min(60_000) as i32;
        // SAFETY: descriptors that are open during the call.
        unsafe { libc::poll(poll.as_mut_ptr(), 2, milliseconds) };
    }
}

/// Kills what is left of a program: its process group, which only we made.
pub fn kill_group(child: &Child) {
    // SAFETY: a signal to a process group of our own, whose leader is a child that may have ended.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
}

/// A descriptor that becomes readable when the process ends.
fn opened(child: &Child) -> io::Result<OwnedFd> {
    // SAFETY: the call has no preconditions; the child was not waited for, so the number is its own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and belongs to nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Lets programs that outlive their parents become children of this process, so that `kill_orphans` finds them.
pub fn adopt_orphans() {
    // SAFETY: the call sets a flag of the process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// Kills children that left their process group, daemons as a rule. Returns their number. Called while no other child runs.
pub fn kill_orphans() -> usize {
    let own = std::process::id();
    let mut killed = 0;
    // One that is killed may leave children, which come to us in turn.
    for _ in 0..16 {
        let children = children_of(own);
        if children.is_empty() {
            break;
        }
        for child in children {
            // SAFETY: a signal to a child that was not waited for, so the number is its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: waits for the same child; its status is not asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            killed += 1;
        }
    }
    killed
}

fn children_of(parent: u32) -> Vec<i32> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers =
        processes.flatten().filter_map(|one| one.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |number: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // Behind the name, which may have blanks and brackets: state, parent.
        let parent_of =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        parent_of == Some(parent)
    };
    numbers.filter(is_child).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    #[test]
    fn process_that_does_not_end_is_killed() {
        let start = |program: &str| {
            Command::new("/bin/sh").args(["-c", program]).process_group(0).spawn().unwrap()
        };
        assert!(wait(&mut start("sleep 100"), Duration::from_millis(20)).unwrap().is_none());
        let status = wait(&mut start("exit 3"), Duration::from_secs(20)).unwrap().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(3), None));
    }
}
