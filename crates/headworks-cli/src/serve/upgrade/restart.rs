//! What a stop leaves with the service manager for the next start: plain connections and the warm cache.
//!
//! ```text
//!   SIGTERM --write-out while clients are served--> pause --> FDSTORE: records, connections --> exit
//!                `-- failure: an ordinary stop                            |
//!   systemctl restart: the next process takes them from LISTEN_FDS <------'     systemctl stop: the manager closes them
//! ```
//!
//! A process that is told to stop does not know whether it is started again. So it first does all that a clean stop does: everything
//! is written out and flushed, marks and socket files are gone. What it leaves can be lost without harm. It needs a manager that says
//! how many descriptors it keeps (`FDSTORE`, systemd 254); with too little room the connections end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use headworks_server::{Handover, PauseInProgress};
use sd_notify::NotifyState;

use super::channel::memory_with;
use super::left::{LIVE, NAME, STANDING};
use crate::serve::cache_file;
use crate::serve::running::Running;

/// Whether the service manager keeps descriptors, as far as it says so.
pub(in crate::serve) fn is_possible(running: &Running) -> bool {
    room() > 0 && running.server.keeps_cache() && running.store.is_stored()
}

/// How many descriptors the service manager keeps in all.
fn room() -> usize {
    std::env::var("FDSTORE").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A stop that leaves connections and cache with the service manager.
#[derive(Debug)]
pub(in crate::serve) struct Leaving {
    standing: Handover,
    pause: PauseInProgress,
}

impl Leaving {
    /// Begins to write everything out; clients are served meanwhile.
    ///
    /// # Errors
    /// A sentence why nothing can be left.
    pub fn begin(running: &Running, limit: Duration) -> Result<Self, String> {
        let standing = running.server.standing_for_restart()?;
        Ok(Self { standing, pause: running.server.begin_pause_for_restart(limit) })
    }

    /// Leaves everything with the service manager as soon as it can; returns the number of connections then. After it the process
    /// only has to exit. After an error the server serves on, and has to be stopped.
    pub fn poll(&mut self, running: &Running) -> Option<Result<usize, String>> {
        let kept = running.server.poll_pause_for_restart(&mut self.pause)?.and_then(|live| {
            keep(&self.standing, &live).map_err(|error| {
                forget(live.descriptors.len());
                format!("the service manager does not keep descriptors: {error}")
            })
        });
        if kept.is_err() {
            running.server.resume();
        }
        Some(kept)
    }
}

fn keep(standing: &Handover, live: &Handover) -> io::Result<usize> {
    // The cache's memory has a place already.
    if live.descriptors.len() + 3 > room() {
        let needed = live.descriptors.len() + 3;
        let message = format!("{needed} are needed, FileDescriptorStoreMax= is {}", room());
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, message));
    }
    store(STANDING, memory_with(&standing.record)?.as_fd())?;
    for (number, descriptor) in live.descriptors.iter().enumerate() {
        store(&format!("{NAME}-{number}"), descriptor.as_fd())?;
    }
    // Last: with it everything is there.
    store(LIVE, memory_with(&live.record)?.as_fd())?;
    barrier()?;
    Ok(live.descriptors.len())
}

/// Has the manager forget what was stored.
fn forget(descriptors: usize) {
    [STANDING, LIVE].into_iter().for_each(cache_file::forget_descriptor);
    let names = (0..descriptors).map(|number| format!("{NAME}-{number}"));
    names.for_each(|name| cache_file::forget_descriptor(&name));
}

fn store(name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    // Sockets whose client is gone are kept, too: the next process notices.
    sd_notify::notify_with_fds(
        &[NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")],
        &[descriptor],
    )
}

/// Waits until the manager has taken all messages: it drops those of a process that is gone.
fn barrier() -> io::Result<()> {
    let (reads, writes) = io::pipe()?;
    sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[writes.as_fd()])?;
    drop(writes);
    let mut poll =
        libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&reads), events: 0, revents: 0 };
    // SAFETY: one entry, as passed. A manager without barriers closes the descriptor at once.
    match unsafe { libc::poll(&raw mut poll, 1, 5000) } {
        1 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 s")),
    }
}
