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
//!
//! Names: `headworks-restart-standing` and `-live` the records, `headworks-restart-N` the descriptors in their order. Listening
//! sockets, locks and files are those of the new process; sockets of the manager and the cache's memory it has anyway.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use headworks_core::ConfigError;
use headworks_server::{Handover, PauseInProgress, Takeover, TakeoverSteps, UnmatchedClients};
use sd_notify::NotifyState;

use super::channel::memory_with;
use crate::serve::Running;
use crate::serve::cache_file;

/// Names of what is left start with this.
pub(in crate::serve) const NAME: &str = "headworks-restart";
const STANDING: &str = "headworks-restart-standing";
const LIVE: &str = "headworks-restart-live";
/// The largest record that is read.
const RECORD_MAX: u64 = 1 << 30;

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

/// What an earlier process has left, as the service manager passed it.
#[derive(Debug, Default)]
pub(in crate::serve) struct Left(Vec<(OwnedFd, String)>);

impl Left {
    /// Adds a passed descriptor.
    pub fn push(&mut self, descriptor: OwnedFd, name: String) {
        self.0.push((descriptor, name));
    }

    /// Makes a takeover of it; none if it is not complete. The manager forgets all of it in any case.
    ///
    /// # Errors
    /// It is of another version.
    pub fn into_takeover(self) -> Result<Option<Takeover>, ConfigError> {
        let (mut records, mut descriptors) = ([None, None], Vec::new());
        for (descriptor, name) in self.0 {
            cache_file::forget_descriptor(&name);
            match name.as_str() {
                STANDING => records[0] = Some(File::from(descriptor)),
                LIVE => records[1] = Some(File::from(descriptor)),
                other => {
                    let number = other.rsplit('-').next().and_then(|word| word.parse().ok());
                    descriptors.extend(number.map(|number: usize| (number, descriptor)));
                }
            }
        }
        let [Some(standing), Some(live)] = records else { return Ok(None) };
        descriptors.sort_by_key(|(number, _)| *number);
        let is_whole = descriptors.iter().enumerate().all(|(at, (number, _))| at == *number);
        let read = |file| {
            read(file).map_err(|error| {
                ConfigError::new("upgrade", format!("cannot read what a stop has left: {error}"))
            })
        };
        let standing = Handover { record: read(standing)?, descriptors: Vec::new() };
        let descriptors = descriptors.into_iter().map(|(_, descriptor)| descriptor).collect();
        let live = Handover { record: read(live)?, descriptors };
        if !is_whole {
            return Ok(None);
        }
        Takeover::new(TakeoverSteps {
            unmatched: UnmatchedClients::Close,
            standing,
            live: Box::new(|| Ok(live)),
            adopted: Box::new(|| Ok(())),
        })
        .map(Some)
    }
}

fn read(mut file: File) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    io::Read::read_to_end(&mut io::Read::take(file, RECORD_MAX), &mut record)?;
    Ok(record)
}
