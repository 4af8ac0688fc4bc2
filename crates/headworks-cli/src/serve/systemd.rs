//! What a service manager gives us and hears of us: sockets that it made (`LISTEN_FDS`), how far we are (`NOTIFY_SOCKET`), a sign
//! of life (`WATCHDOG_USEC`). Without one, all of it is nothing.
//!
//! ```text
//!   sockets --> READY=1, STATUS=serving N exports --> RELOADING=1, READY=1 --> STOPPING=1, STATUS=stopping: 2 GiB left, ...
//!                   `---- WATCHDOG=1 while every shard answers, also in a stop ----'      `-- EXTEND_TIMEOUT_USEC each second
//! ```
//!
//! The sign of life is given by the main loop, and only if every shard has turned since the last one: a shard that hangs is what a
//! watchdog is for. A stop has its own limit, `--stop-timeout`; as long as that allows it, the manager is asked for more time.

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use headworks_core::ConfigError;
use headworks_server::{Given, Place, RollCall, Server};
use sd_notify::NotifyState;

/// The name (`FileDescriptorName=`) of the control socket.
const CONTROL: &str = "control";
/// That of the socket for scrapers; every other name is an NBD listener's.
const METRICS: &str = "metrics";
/// A stop says once a second that it goes on; so much time makes a late message no end.
const EXTENSION: Duration = Duration::from_secs(15);

/// Sockets that were made for us.
#[derive(Default)]
pub(super) struct Sockets {
    /// For clients.
    pub listen: Vec<Given>,
    /// For the operator.
    pub control: Option<Given>,
    /// For Prometheus; TCP.
    pub metrics: Option<Given>,
}

fn error(message: impl Into<String>) -> ConfigError {
    ConfigError::new("LISTEN_FDS", message.into())
}

impl Sockets {
    /// Takes them; to be called once, before anything else is opened.
    pub(super) fn take() -> Result<Self, ConfigError> {
        let fail = |reason| error(format!("cannot take the sockets: {reason}"));
        let mut sockets = Self::default();
        // Those of another process (`LISTEN_PID`) come with names, and only their number is none.
        if sd_notify::listen_fds().map_err(fail)?.len() == 0 {
            return Ok(sockets);
        }
        let given = sd_notify::listen_fds_with_names().map_err(fail)?;
        for (fd, name) in given {
            // SAFETY: the variables say that it is ours, and nothing was opened that it could be instead.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            sockets.add(Given::new(fd).map_err(error)?, &name)?;
        }
        Ok(sockets)
    }

    fn add(&mut self, given: Given, name: &str) -> Result<(), ConfigError> {
        let place = match name {
            CONTROL => &mut self.control,
            METRICS if !matches!(given.place(), Ok(Place::Tcp(_))) => {
                let message = "scrapers come over TCP, and the socket named `metrics` is of another kind; try \
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
            Some(_) => Err(error(format!("two sockets are named `{name}`; one is enough"))),
        }
    }

    /// Whether a unix socket at `path` is among those for clients.
    pub(super) fn has(&self, path: &std::path::Path) -> bool {
        self.listen.iter().any(|given| unix_path(given).as_deref() == Some(path))
    }
}

/// Where a unix socket lies.
pub(super) fn unix_path(given: &Given) -> Option<PathBuf> {
    match given.place() {
        Ok(Place::Unix(path)) => path,
        _ => None,
    }
}

/// Who hears of us.
pub(super) struct Manager {
    /// It wants a sign of life so often.
    watchdog: Option<Duration>,
    /// When it gets the next one.
    due: Instant,
    roll_call: Option<RollCall>,
    /// What is served, in words.
    serving: String,
}

impl Manager {
    pub(super) fn new() -> Self {
        let usable = |watchdog: &Duration| !watchdog.is_zero();
        Self {
            watchdog: sd_notify::watchdog_enabled().filter(usable),
            due: Instant::now(),
            roll_call: None,
            serving: String::new(),
        }
    }

    /// Clients may connect.
    pub(super) fn ready(&mut self, exports: usize) {
        self.serving = match exports {
            1 => "serving 1 export".into(),
            _ => format!("serving {exports} exports"),
        };
        tell(&[NotifyState::Ready, NotifyState::Status(&self.serving)]);
    }

    /// The configuration is being loaded again; `ready` is its end.
    pub(super) fn reloading(&self) {
        // Newer managers want to know when.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(_) => tell(&[NotifyState::Reloading]),
        }
    }

    /// The end has begun.
    pub(super) fn stopping(&self) {
        tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    /// The end goes on, `line` says how far it is.
    pub(super) fn still_stopping(&self, line: Option<&str>) {
        let more = NotifyState::ExtendTimeoutUsec(EXTENSION.as_micros() as u32);
        match line {
            Some(line) => tell(&[more, NotifyState::Status(line)]),
            None => tell(&[more]),
        }
    }

    /// How long the main loop may wait before `look` is due; none without a watchdog.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.watchdog.map(|_| self.due.saturating_duration_since(Instant::now()))
    }

    /// Gives a sign of life if it is due and every shard has given one.
    pub(super) fn look(&mut self, server: &Server) {
        let Some(watchdog) = self.watchdog else { return };
        if Instant::now() < self.due {
            return;
        }
        // Twice as often as is asked for: a shard that misses one look has another before time is up.
        self.due = Instant::now() + watchdog / 4;
        let answered = self.roll_call.as_ref().is_none_or(RollCall::is_complete);
        if answered {
            tell(&[NotifyState::Watchdog]);
            self.roll_call = Some(server.roll_call());
        }
    }
}

fn tell(state: &[NotifyState]) {
    // A manager that is gone hears nothing, and nothing follows from that.
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("the service manager cannot be told: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn given() -> Given {
        Given::new(TcpListener::bind("127.0.0.1:0").unwrap().into()).unwrap()
    }

    #[test]
    fn one_socket_is_the_operators_one_for_scrapers_and_all_others_are_for_clients() {
        let mut sockets = Sockets::default();
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
        let unix = Given::new(UnixListener::bind(&path).unwrap().into()).unwrap();
        let refused = Sockets::default().add(unix, "metrics").unwrap_err();
        assert!(refused.message.contains("ListenStream=127.0.0.1:9100"), "{refused}");
        std::fs::remove_file(&path).unwrap();
    }
}
