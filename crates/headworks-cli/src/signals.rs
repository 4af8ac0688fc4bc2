//! Signals as something to wait for, together with what other threads tell: the server's end, a reload's.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use headworks_core::ConfigError;

/// What the main thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// SIGTERM, SIGINT or SIGQUIT.
    Stop,
    /// SIGUSR1: tell the statistics.
    Statistics,
    /// SIGHUP: load again.
    Reload,
    /// A reload has ended.
    Reloaded,
    /// A child has ended.
    Child,
    /// The server has ended.
    Ended,
    /// Nothing came for so long as was asked.
    Silence,
}

/// All signals that matter, blocked and readable.
pub struct Signals {
    signals: OwnedFd,
    told: UnixStream,
    other_end: UnixStream,
}

/// What [`Bell`]s say that announce the end of a reload; all others announce the server's.
const RELOADED: u8 = b'r';
const ENDED: u8 = b'e';

/// Tells the main thread that something has ended; from any thread.
pub struct Bell(UnixStream, u8);

impl Bell {
    /// Tells it.
    pub fn ring(&self) {
        // One byte always fits; nobody reads any more only when the process ends anyway.
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
            libc::SIGHUP,
        ] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

impl Signals {
    /// Blocks the signals for this thread and all that it starts.
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
        let (told, other_end) = UnixStream::pair()?;
        Ok(Self { signals, told, other_end })
    }

    /// For a child, between fork and exec: it gets its signals.
    pub fn unblock() -> io::Result<()> {
        let set = wanted();
        // SAFETY: async-signal-safe, on an initialised set.
        match unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What the server tells its end with.
    pub fn ended(&self) -> Result<Bell, ConfigError> {
        self.bell(ENDED)
    }

    /// What a reload tells its end with.
    pub fn reloaded(&self) -> Result<Bell, ConfigError> {
        self.bell(RELOADED)
    }

    fn bell(&self, says: u8) -> Result<Bell, ConfigError> {
        let copy = self.other_end.try_clone();
        copy.map(|stream| Bell(stream, says)).map_err(|error| {
            ConfigError::new("serve", format!("no file descriptor is left: {error}"))
        })
    }

    /// Waits for the next thing that matters, no longer than `patience`; for ever without.
    pub fn wait(&self, patience: Option<Duration>) -> News {
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            let left = until.map_or(-1, |until| {
                let left = until.saturating_duration_since(Instant::now()).as_micros();
                i32::try_from(left.div_ceil(1000)).unwrap_or(i32::MAX)
            });
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut fds = [poll(self.signals.as_raw_fd()), poll(self.told.as_raw_fd())];
            // SAFETY: two entries, as said.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, left) };
            if ready < 0 {
                continue;
            }
            if ready == 0 {
                return News::Silence;
            }
            if fds[0].revents != 0
                && let Some(news) = self.next_signal()
            {
                return news;
            }
            if fds[1].revents != 0 {
                let mut says = [ENDED];
                let _ = (&self.told).read(&mut says);
                return if says[0] == RELOADED { News::Reloaded } else { News::Ended };
            }
        }
    }

    fn next_signal(&self) -> Option<News> {
        // SAFETY: plain data that the read fills.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the size that is said.
        let count = unsafe { libc::read(self.signals.as_raw_fd(), (&raw mut info).cast(), size) };
        if count != size as isize {
            return None;
        }
        match info.ssi_signo as i32 {
            libc::SIGCHLD => Some(News::Child),
            libc::SIGPIPE => None,
            libc::SIGUSR1 => Some(News::Statistics),
            libc::SIGHUP => Some(News::Reload),
            _ => Some(News::Stop),
        }
    }
}
