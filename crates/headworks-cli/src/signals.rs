//! Events of the main thread: signals, and notifications from other threads.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use headworks_core::ConfigError;

/// Event that the main thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MainEvent {
    /// SIGTERM, SIGINT or SIGQUIT: stop.
    Stop,
    /// SIGUSR1: log the statistics.
    Statistics,
    /// SIGHUP: reload the configuration.
    Reload,
    /// The control socket has a request for a reload.
    ReloadRequested,
    /// A reload has finished.
    Reloaded,
    /// SIGUSR2: replace this process.
    Upgrade,
    /// The control socket has a request for an upgrade.
    UpgradeRequested,
    /// The preparation of an upgrade has ended.
    UpgradePrepared,
    /// A child process has ended.
    Child,
    /// The server has ended.
    Ended,
    /// The time-out passed without an event.
    TimedOut,
}

/// The blocked signals and the notifications, both readable.
pub struct Signals {
    signals: OwnedFd,
    receiver: UnixStream,
    sender: UnixStream,
}

/// Bytes that a [`MainNotifier`] sends: request and end of a reload, steps of an upgrade, and the end of the server.
const RELOAD_REQUESTED: u8 = b'q';
const RELOADED: u8 = b'r';
const UPGRADE_REQUESTED: u8 = b'u';
const UPGRADE_PREPARED: u8 = b'p';
const ENDED: u8 = b'e';

/// Notifies the main thread; usable from any thread.
pub struct MainNotifier(UnixStream, u8);

impl MainNotifier {
    /// Sends the notification once.
    pub fn notify(&self) {
        // One byte always fits; the read end closes only when the process ends.
        let _ = (&self.0).write(&[self.1]);
    }
}

fn wanted() -> libc::sigset_t {
    // SAFETY: the calls fill a set on the stack.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGCHLD,
            libc::SIGPIPE,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGHUP,
        ] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

impl Signals {
    /// Blocks the signals for this thread and all threads that it starts later.
    pub fn block() -> io::Result<Self> {
        let set = wanted();
        // SAFETY: the set is initialised; the fd is new and ours.
        let signals = unsafe {
            if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let (receiver, sender) = UnixStream::pair()?;
        Ok(Self { signals, receiver, sender })
    }

    /// Unblocks the signals in a child, between fork and exec.
    pub fn unblock() -> io::Result<()> {
        let set = wanted();
        // SAFETY: async-signal-safe, on an initialised set.
        match unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Creates the notifier for the end of the server.
    pub fn ended(&self) -> Result<MainNotifier, ConfigError> {
        self.notifier(ENDED)
    }

    /// Creates the notifier for requests of a reload.
    pub fn reload_requested(&self) -> Result<MainNotifier, ConfigError> {
        self.notifier(RELOAD_REQUESTED)
    }

    /// Creates the notifier for the end of a reload.
    pub fn reloaded(&self) -> Result<MainNotifier, ConfigError> {
        self.notifier(RELOADED)
    }

    /// Creates the notifier for requests of an upgrade.
    pub fn upgrade_requested(&self) -> Result<MainNotifier, ConfigError> {
        self.notifier(UPGRADE_REQUESTED)
    }

    /// Creates the notifier for the end of an upgrade's preparation.
    pub fn upgrade_prepared(&self) -> Result<MainNotifier, ConfigError> {
        self.notifier(UPGRADE_PREPARED)
    }

    fn notifier(&self, kind: u8) -> Result<MainNotifier, ConfigError> {
        let copy = self.sender.try_clone();
        copy.map(|stream| MainNotifier(stream, kind)).map_err(|error| {
            ConfigError::new("serve", format!("cannot create a notification socket: {error}"))
        })
    }

    /// Waits for the next event, at most `timeout`; without one, indefinitely.
    pub fn wait(&self, timeout: Option<Duration>) -> MainEvent {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = until.map_or(-1, |until| {
                let left = until.saturating_duration_since(Instant::now()).as_micros();
                i32::try_from(left.div_ceil(1000)).unwrap_or(i32::MAX)
            });
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [poll(self.signals.as_raw_fd()), poll(self.receiver.as_raw_fd())];
            // SAFETY: two entries, as passed.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, left) };
            if ready < 0 {
                continue;
            }
            if ready == 0 {
                return MainEvent::TimedOut;
            }
            if fds[0].revents != 0
                && let Some(event) = self.next_signal()
            {
                return event;
            }
            if fds[1].revents != 0 {
                let mut kind = [ENDED];
                let _ = (&self.receiver).read(&mut kind);
                return match kind[0] {
                    RELOAD_REQUESTED => MainEvent::ReloadRequested,
                    RELOADED => MainEvent::Reloaded,
                    UPGRADE_REQUESTED => MainEvent::UpgradeRequested,
                    UPGRADE_PREPARED => MainEvent::UpgradePrepared,
                    _ => MainEvent::Ended,
                };
            }
        }
    }

    fn next_signal(&self) -> Option<MainEvent> {
        // SAFETY: plain data that the read fills.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the size that is passed.
        let count = unsafe { libc::read(self.signals.as_raw_fd(), (&raw mut info).cast(), size) };
        if count != size as isize {
            return None;
        }
        match info.ssi_signo as i32 {
            libc::SIGCHLD => Some(MainEvent::Child),
            libc::SIGPIPE => None,
            libc::SIGUSR1 => Some(MainEvent::Statistics),
            libc::SIGUSR2 => Some(MainEvent::Upgrade),
            libc::SIGHUP => Some(MainEvent::Reload),
            _ => Some(MainEvent::Stop),
        }
    }
}
