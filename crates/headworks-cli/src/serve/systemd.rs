//! Service manager protocol: passed sockets (`LISTEN_FDS`), status (`NOTIFY_SOCKET`), watchdog (`WATCHDOG_USEC`).
//! Without a manager all of it does nothing.
//!
//! ```text
//!   sockets --> READY=1, STATUS=serving N exports --> RELOADING=1, READY=1 --> STOPPING=1, STATUS=stopping: 2 GiB left, ...
//!                   `---- WATCHDOG=1 while every shard answers, also in a stop ----'      `-- EXTEND_TIMEOUT_USEC each second
//!   upgrade: STATUS=handing over to process N --> MAINPID=N, then READY=1 by process N
//! ```
//!
//! The main loop pings the watchdog only if every shard has turned since the last ping, so that a hanging shard is
//! detected. A shutdown has its own limit, `--stop-timeout`; within it the manager is asked for more time.

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use headworks_core::{ConfigError, escape_controls};
use headworks_server::{InheritedAddress, InheritedSocket, Server, ShardBarrier};
use sd_notify::NotifyState;

use super::cache_file;
use super::upgrade::left::{self, Left};

/// Name (`FileDescriptorName=`) of the control socket.
const CONTROL: &str = "control";
/// Name of the metrics socket; sockets with any other name are NBD listeners.
const METRICS: &str = "metrics";
/// Extension of the manager's stop time-out, sent every second with reserve for a late message.
const EXTENSION: Duration = Duration::from_secs(15);

/// Sockets passed by the service manager.
#[derive(Debug, Default)]
pub(super) struct InheritedSockets {
    /// Listening sockets for clients.
    pub listen: Vec<InheritedSocket>,
    /// Listener for the control protocol.
    pub control: Option<InheritedSocket>,
    /// Listener for Prometheus; TCP.
    pub metrics: Option<InheritedSocket>,
    /// Memory that earlier servers stored, with its names.
    pub memory: Vec<(OwnedFd, String)>,
    /// What a stop has left for this start.
    pub left: Left,
}

fn error(message: impl Into<String>) -> ConfigError {
    ConfigError::new("LISTEN_FDS", message.into())
}

impl InheritedSockets {
    /// Takes the passed sockets; must be called once, before anything else is opened.
    pub(super) fn take() -> Result<Self, ConfigError> {
        let fail = |reason| error(format!("cannot take the passed sockets: {reason}"));
        let mut sockets = Self::default();
        // `listen_fds` checks `LISTEN_PID`, the variant with names does not.
        if sd_notify::listen_fds().map_err(fail)?.len() == 0 {
            return Ok(sockets);
        }
        let given = sd_notify::listen_fds_with_names().map_err(fail)?;
        for (fd, name) in given {
            // SAFETY: the variables pass this descriptor to the process, and nothing was opened before.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            if name.starts_with(left::NAME) {
                sockets.left.push(fd, name);
                continue;
            }
            if name.starts_with(cache_file::NAME) {
                sockets.memory.push((fd, name));
                continue;
            }
            sockets.add(InheritedSocket::new(fd).map_err(error)?, &name)?;
        }
        Ok(sockets)
    }

    fn add(&mut self, given: InheritedSocket, name: &str) -> Result<(), ConfigError> {
        let place = match name {
            CONTROL => &mut self.control,
            METRICS if !matches!(given.place(), Ok(InheritedAddress::Tcp(_))) => {
                let message = "the socket named `metrics` is no TCP socket; use \
                     ListenStream=127.0.0.1:9100";
                return Err(error(message));
            }
            METRICS => &mut self.metrics,
            _ => {
                self.listen.push(given);
                return Ok(());
            }
        };
        match place.replace(given) {
            None => Ok(()),
            Some(_) => Err(error(format!("two sockets are named `{name}`; pass only one"))),
        }
    }

    /// The sockets again, for a process that is to replace this one; not the memory, which is taken in once.
    pub(super) fn sockets(&self) -> Self {
        let Self { listen, control, metrics, .. } = self;
        let (listen, control, metrics) = (listen.clone(), control.clone(), metrics.clone());
        Self { listen, control, metrics, ..Self::default() }
    }

    /// Returns true if a unix socket at `path` is among the client listeners.
    pub(super) fn has(&self, path: &std::path::Path) -> bool {
        self.listen.iter().any(|given| unix_path(given).as_deref() == Some(path))
    }
}

/// Path of a unix socket.
pub(super) fn unix_path(given: &InheritedSocket) -> Option<PathBuf> {
    match given.place() {
        Ok(InheritedAddress::Unix(path)) => path,
        _ => None,
    }
}

/// Connection to the service manager.
pub(super) struct ServiceManager {
    /// Watchdog time-out that the manager asks for.
    watchdog: Option<Duration>,
    /// Time of the next ping.
    due: Instant,
    barrier: Option<ShardBarrier>,
    /// Status text while serving.
    serving: String,
}

impl ServiceManager {
    pub(super) fn new() -> Self {
        let usable = |watchdog: &Duration| !watchdog.is_zero();
        Self {
            watchdog: sd_notify::watchdog_enabled().filter(usable),
            due: Instant::now(),
            barrier: None,
            serving: String::new(),
        }
    }

    /// Reports that clients can connect.
    pub(super) fn ready(&mut self, exports: usize) {
        self.serving = match exports {
            1 => "serving 1 export".into(),
            _ => format!("serving {exports} exports"),
        };
        notify(&[NotifyState::Ready, NotifyState::Status(&self.serving)]);
    }

    /// Reports a reload; `ready` ends it.
    pub(super) fn reloading(&self) {
        // Newer managers require the time.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(_) => notify(&[NotifyState::Reloading]),
        }
    }

    /// Reports that a process is about to take over.
    pub(super) fn handing_over(&self, pid: u32) {
        notify(&[NotifyState::Status(&format!("handing over to process {pid}"))]);
    }

    /// Reports that this process serves on.
    pub(super) fn serving(&self) {
        notify(&[NotifyState::Status(&self.serving)]);
    }

    /// Makes another process the main process of the service.
    pub(super) fn main_process(&self, pid: u32) {
        notify(&[NotifyState::MainPid(pid)]);
    }

    /// Reports the start of a shutdown.
    pub(super) fn stopping(&self) {
        notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    /// Reports a continuing shutdown; `line` is its progress.
    pub(super) fn still_stopping(&self, line: &str) {
        let more = NotifyState::ExtendTimeoutUsec(EXTENSION.as_micros() as u32);
        // A line feed in a name would begin another variable of the message.
        notify(&[more, NotifyState::Status(&escape_controls(line))]);
    }

    /// Time until `ping_watchdog` is due; none without a watchdog.
    pub(super) fn ping_due_in(&self) -> Option<Duration> {
        self.watchdog.map(|_| self.due.saturating_duration_since(Instant::now()))
    }

    /// Pings the watchdog if it is due and every shard has turned since the last ping.
    pub(super) fn ping_watchdog(&mut self, server: &Server) {
        let Some(watchdog) = self.watchdog else { return };
        if Instant::now() < self.due {
            return;
        }
        // Twice as often as required: a shard that misses one check has another before the time-out.
        self.due = Instant::now() + watchdog / 4;
        let answered = self.barrier.as_ref().is_none_or(ShardBarrier::is_complete);
        if answered {
            notify(&[NotifyState::Watchdog]);
            self.barrier = Some(server.barrier());
        }
    }
}

fn notify(state: &[NotifyState]) {
    // A manager that is gone has no effect on the server.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("cannot notify the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn given() -> InheritedSocket {
        InheritedSocket::new(TcpListener::bind("127.0.0.1:0").unwrap().into()).unwrap()
    }

    #[test]
    fn sockets_are_assigned_by_name() {
        let mut sockets = InheritedSockets::default();
        for name in ["headworks@a.socket", "unknown", "control", "nbd", "metrics"] {
            sockets.add(given(), name).unwrap();
        }
        assert_eq!(sockets.listen.len(), 3);
        assert!(sockets.control.is_some() && sockets.metrics.is_some());
        for name in ["control", "metrics"] {
            let refused = sockets.add(given(), name).unwrap_err();
            assert!(
                refused.message.contains(&format!("two sockets are named `{name}`")),
                "{refused}"
            );
        }
        let path = std::env::temp_dir().join(format!("headworks-fds-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let unix = InheritedSocket::new(UnixListener::bind(&path).unwrap().into()).unwrap();
        let refused = InheritedSockets::default().add(unix, "metrics").unwrap_err();
        assert!(refused.message.contains("ListenStream=127.0.0.1:9100"), "{refused}");
        std::fs::remove_file(&path).unwrap();
    }
}
