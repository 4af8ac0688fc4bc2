//! Waiting for the end, and the ways to it.

use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use super::Running;
use super::reload::Reload;
use super::systemd::Manager;
use crate::complain;
use crate::progress::{self, Progress};
use crate::signals::{News, Signals};

/// How often a stop is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long a stop that may not take time waits for the shards to tell what is lost. One that turns tells within
/// milliseconds; one that does not is not worth more.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A stop that is under way.
struct Stop {
    since: Instant,
    told: Instant,
    progress: Progress,
}

impl Stop {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, told: now, progress: Progress::new() }
    }

    /// Tells how far it is, once a second; true if its time is over.
    fn look(&mut self, running: &Running, manager: &Manager) -> bool {
        if self.told.elapsed() >= LOOK {
            self.told = Instant::now();
            let left = running.server.left().into_iter().flatten().sum();
            let at = self.since.elapsed().as_nanos() as u64;
            let line = self.progress.line(at, left);
            if let Some(line) = &line {
                tracing::info!("{line}");
            }
            manager.still_stopping(line.as_deref());
        }
        running.stop.is_some_and(|stop| self.since.elapsed() >= stop)
    }
}

pub(super) enum Waited {
    /// The server has ended; the status of the child, if there was one.
    Ended(Option<ExitStatus>),
    /// The user does not want to wait any more.
    AtOnce,
    /// The time for a stop is over.
    TooLong,
}

pub(super) fn wait(
    running: &Running,
    signals: &Signals,
    manager: &mut Manager,
    mut child: Option<Child>,
    reload: &mut Reload,
) -> Waited {
    let (mut stop, mut status): (Option<Stop>, _) = (None, None);
    loop {
        // Nobody is waited for in vain: the server says when it has ended.
        let patience = stop.as_ref().map(|_| LOOK).into_iter().chain(manager.patience()).min();
        let news = signals.wait(patience);
        manager.look(&running.server);
        match news {
            News::Stop if stop.is_some() => return Waited::AtOnce,
            News::Stop => {
                stop = Some(Stop::new());
                manager.stopping();
                if let Some(child) = &child {
                    // SAFETY: the child has not been waited for, so the id is its own.
                    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
                }
                running.server.stop();
            }
            News::Child => {
                let ended = child.as_mut().and_then(|child| child.try_wait().ok().flatten());
                if ended.is_some() {
                    (status, child) = (ended, None);
                    manager.stopping();
                    stop.get_or_insert_with(Stop::new);
                    running.server.stop();
                }
            }
            News::Statistics => running.server.tell_statistics(),
            News::Reload if stop.is_some() => tracing::info!("nothing is loaded again in a stop"),
            News::Reload => begin(reload, running, signals, manager),
            News::Reloaded if stop.is_some() => {}
            News::Reloaded => {
                manager.ready(running.server.exports().len());
                if reload.end() {
                    begin(reload, running, signals, manager);
                }
            }
            News::Ended => return Waited::Ended(status),
            News::Silence => {}
        }
        if let Some(stop) = &mut stop
            && stop.look(running, manager)
        {
            return Waited::TooLong;
        }
    }
}

fn begin(reload: &mut Reload, running: &Running, signals: &Signals, manager: &Manager) {
    let begun = signals.reloaded().map_err(|error| error.to_string()).and_then(|bell| {
        reload.begin(running.server.reloader(), bell).map_err(|error| error.to_string())
    });
    match begun {
        Ok(true) => manager.reloading(),
        Ok(false) => {}
        Err(error) => tracing::error!("nothing can be loaded again now: {error}"),
    }
}

/// The second signal, or no time is left: say what is not written and not flushed, and go. Threads may be in a device that does not answer: nothing may wait for
/// them, so nothing that they use is dropped.
pub(super) fn end_at_once(running: &Running, reason: &str) -> ! {
    let _ = running.server.roll_call().wait(LAST_WORD);
    let (unflushed, left) = (running.server.unflushed(), running.server.left());
    let mut all_flushed = true;
    let exports = running.server.exports();
    for export in exports.iter().filter(|export| !export.read_only) {
        let bytes = left.get(export.volume).copied().flatten().unwrap_or(0);
        if bytes > 0 {
            complain(progress::lost(&export.name, bytes, reason));
            all_flushed = false;
        }
    }
    for export in exports.iter().filter(|export| export.volatile) {
        let name = &export.name;
        match unflushed.get(export.volume).copied().flatten() {
            Some(0) => continue,
            Some(writes) => {
                complain(format!("export {name}: {writes} acknowledged writes were not flushed"));
            }
            None => complain(format!("export {name}: it is not known whether all was flushed")),
        }
        all_flushed = false;
    }
    if all_flushed {
        complain("stopped at once; every acknowledged write was flushed");
    }
    if let Some(file) = &running.pid_file {
        file.remove();
    }
    if let Some(private) = &running.private {
        let _ = std::fs::remove_dir_all(&private.0);
    }
    std::process::exit(1)
}
