//! Programs of a test: each is the leader of a process group, has a time limit, and ends with what it started.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Waits for the end of a process; none after the time limit, and then its group is killed.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let process = opened(child)?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            kill_group(child);
            child.wait()?;
            return Ok(None);
        }
        let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up, so that the last turn does not spin.
        let milliseconds = left.as_millis().saturating_add(1).min(60_000) as i32;
        // SAFETY: one descriptor that is open during the call.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
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
