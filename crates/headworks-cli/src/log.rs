//! Log targets and levels: standard error, the journal, syslog or none.
//!
//! If standard error is the journal (`JOURNAL_STREAM` names it), each line starts with its priority (`<4>`) in place
//! of time and level. The level can change while the server runs.

use std::ffi::CString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;

use clap::ValueEnum;
use headworks_core::{ConfigError, escape_controls};
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
        Sink::Terminal => layer.with_ansi(true).with_writer(sink).boxed(),
        Sink::Stderr => layer.with_ansi(false).with_writer(sink).boxed(),
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
    /// Standard error that shows colours.
    Terminal,
    Journal,
    Syslog,
    Null,
}

impl Sink {
    fn open(to: LogTo) -> Result<Self, ConfigError> {
        match to {
            LogTo::Stderr if is_journal() => Ok(Self::Journal),
            LogTo::Stderr
                if io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() =>
            {
                Ok(Self::Terminal)
            }
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
        let text = one_line(message, matches!(self.sink, Sink::Terminal));
        match self.sink {
            Sink::Stderr | Sink::Terminal => {
                io::stderr().write_all(format!("{text}\n").as_bytes())?
            }
            Sink::Journal => io::stderr().write_all(marked(self.priority, &text).as_bytes())?,
            Sink::Syslog => {
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

/// A message as one line: names and paths in it may have control characters. The colours of a terminal stay; the formatter itself
/// escapes their first byte in what it is given.
fn one_line(message: &[u8], colours: bool) -> String {
    let text = String::from_utf8_lossy(message);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    match colours {
        true => text.split('\x1b').map(escape_controls).collect::<Vec<_>>().join("\x1b"),
        false => escape_controls(text),
    }
}

/// Prefixes a message with its priority, as the journal wants it.
fn marked(priority: libc::c_int, text: &str) -> String {
    format!("<{priority}>{text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line_with_the_journal_priority() {
        let warning = priority(Level::WARN);
        assert_eq!(marked(warning, &one_line(b"one\n", false)), "<4>one\n");
        let forged = b"export a\n<0>b\x1b[2J is frozen\n";
        assert_eq!(one_line(forged, false), "export a\\n<0>b\\u{1b}[2J is frozen");
        assert_eq!(one_line(b"\x1b[33mWARN\x1b[0m a\nb\n", true), "\x1b[33mWARN\x1b[0m a\\nb");
        assert_eq!(
            [priority(Level::INFO), priority(Level::DEBUG), priority(Level::TRACE)],
            [6, 7, 7]
        );
    }
}
