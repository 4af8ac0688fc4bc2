//! Log targets and levels: standard error, the journal, syslog or none.
//!
//! If standard error is the journal (`JOURNAL_STREAM` names it), each line starts with its priority (`<4>`) in place
//! of time and level. The level can change while the server runs.

use std::ffi::CString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;

use clap::ValueEnum;
use headworks_core::ConfigError;
use headworks_server::{LOG_LEVELS, LogLevel};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Target of log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogTo {
    // No doc comments here: clap would turn the help of every option into paragraphs.
    Stderr,
    Syslog,
    Null,
}

/// Installs the logger; each `verbose` raises the level by one above info.
///
/// # Errors
/// The target is syslog and there is none.
pub fn install(to: LogTo, verbose: u8) -> Result<LogLevel, ConfigError> {
    let level = match verbose {
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let (filter, handle) = reload::Layer::new(level);
    let sink = Sink::open(to)?;
    let layer = tracing_subscriber::fmt::layer().with_target(false);
    let layer = match sink {
        Sink::Stderr => {
            let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            layer.with_ansi(colours).with_writer(sink).boxed()
        }
        _ => layer.with_ansi(false).with_level(false).without_time().with_writer(sink).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    Ok(LogLevel::new(move |wanted| {
        if let Some(level) = wanted.and_then(|wanted| wanted.parse::<LevelFilter>().ok()) {
            // Fails only after the subscriber is gone.
            let _ = handle.reload(level);
        }
        name(handle.clone_current().unwrap_or(LevelFilter::OFF))
    }))
}

/// Name of the filter; the names are ordered by verbosity.
fn name(level: LevelFilter) -> &'static str {
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let place = levels.into_iter().position(|one| LevelFilter::from_level(one) == level);
    place.map_or("off", |place| LOG_LEVELS[place])
}

#[derive(Clone, Copy)]
enum Sink {
    Stderr,
    Journal,
    Syslog,
    Null,
}

impl Sink {
    fn open(to: LogTo) -> Result<Self, ConfigError> {
        match to {
            LogTo::Stderr if is_journal() => Ok(Self::Journal),
            LogTo::Stderr => Ok(Self::Stderr),
            LogTo::Null => Ok(Self::Null),
            LogTo::Syslog if std::path::Path::new("/dev/log").exists() => {
                // SAFETY: openlog keeps the pointer, and the string is static.
                unsafe {
                    let options = libc::LOG_PID | libc::LOG_NDELAY;
                    libc::openlog(c"headworks".as_ptr(), options, libc::LOG_DAEMON);
                }
                Ok(Self::Syslog)
            }
            LogTo::Syslog => {
                let message =
                    "/dev/log does not exist: no syslog on this machine; use another target";
                Err(ConfigError::new("log", message))
            }
        }
    }
}

/// Returns true if standard error is the journal itself, not a file that the service was given instead.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    // SAFETY: plain data that the call fills.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(io::stderr().as_raw_fd(), &raw mut stat) != 0 {
            return false;
        }
        stat
    };
    named == format!("{}:{}", stat.st_dev, stat.st_ino)
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { sink: *self, priority: libc::LOG_INFO }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Line {
        Line { sink: *self, priority: priority(*meta.level()) }
    }
}

fn priority(level: Level) -> libc::c_int {
    match level {
        Level::ERROR => libc::LOG_ERR,
        Level::WARN => libc::LOG_WARNING,
        Level::INFO => libc::LOG_INFO,
        _ => libc::LOG_DEBUG,
    }
}

/// One log message while it is formatted.
struct Line {
    sink: Sink,
    priority: libc::c_int,
}

impl Write for Line {
    /// Writes a complete message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        match self.sink {
            Sink::Stderr => io::stderr().write_all(message)?,
            Sink::Journal => io::stderr().write_all(&marked(self.priority, message))?,
            Sink::Syslog => {
                let text: Vec<u8> = message.trim_ascii_end().to_vec();
                if let Ok(text) = CString::new(text) {
                    // SAFETY: two strings that end, the first a format that takes the second.
                    unsafe { libc::syslog(self.priority, c"%s".as_ptr(), text.as_ptr()) };
                }
            }
            Sink::Null => {}
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prefixes every line with the priority: the journal makes an entry of each line.
fn marked(priority: libc::c_int, message: &[u8]) -> Vec<u8> {
    let mut marked = Vec::with_capacity(message.len() + 8);
    for line in message.trim_ascii_end().split(|byte| *byte == b'\n') {
        marked.extend_from_slice(format!("<{priority}>").as_bytes());
        marked.extend_from_slice(line);
        marked.push(b'\n');
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_gets_the_journal_priority() {
        let warning = priority(Level::WARN);
        assert_eq!(marked(warning, b"one\n"), b"<4>one\n");
        assert_eq!(marked(priority(Level::ERROR), b"one\n two\n"), b"<3>one\n<3> two\n");
        assert_eq!(
            [priority(Level::INFO), priority(Level::DEBUG), priority(Level::TRACE)],
            [6, 7, 7]
        );
    }

    #[test]
    fn names_and_levels_map_both_ways() {
        for level in LOG_LEVELS {
            assert_eq!(name(level.parse().unwrap()), level);
        }
        assert_eq!(name(LevelFilter::OFF), "off");
    }
}
