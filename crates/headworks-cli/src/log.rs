//! Where messages go and how many of them: standard error, the journal, syslog, nowhere.
//!
//! Standard error that is the journal's (`JOURNAL_STREAM` names it) gets each line's priority in the journal's own form, `<4>`,
//! instead of a time and a level in words: the journal has both. How much is said is switched while the server runs.

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

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogTo {
    // No documentation on purpose: it would make the help of every option a paragraph.
    Stderr,
    Syslog,
    Null,
}

/// Starts to log; `verbose` times more than what an operator should know.
///
/// # Errors
/// There is no system log.
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
            // It fails only when nothing listens any more.
            let _ = handle.reload(level);
        }
        name(handle.clone_current().unwrap_or(LevelFilter::OFF))
    }))
}

/// The filter's place among the names, which are in the order of what they let through.
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
                // SAFETY: the name is static, which openlog asks for.
                unsafe {
                    let options = libc::LOG_PID | libc::LOG_NDELAY;
                    libc::openlog(c"headworks".as_ptr(), options, libc::LOG_DAEMON);
                }
                Ok(Self::Syslog)
            }
            LogTo::Syslog => {
                let message = "there is no /dev/log, so nothing keeps a system log here";
                Err(ConfigError::new("log", message))
            }
        }
    }
}

/// Whether standard error is the journal's, and not a file that the service was given beside it.
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

/// One message on its way.
struct Line {
    sink: Sink,
    priority: libc::c_int,
}

impl Write for Line {
    /// Takes a whole message.
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

/// Every line of a message with its priority: the journal makes an entry of each.
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
    fn the_journal_gets_the_priority_of_each_line() {
        let warning = priority(Level::WARN);
        assert_eq!(marked(warning, b"one\n"), b"<4>one\n");
        assert_eq!(marked(priority(Level::ERROR), b"one\n two\n"), b"<3>one\n<3> two\n");
        assert_eq!(
            [priority(Level::INFO), priority(Level::DEBUG), priority(Level::TRACE)],
            [6, 7, 7]
        );
    }

    #[test]
    fn every_name_is_a_level_and_every_level_has_its_name() {
        for level in LOG_LEVELS {
            assert_eq!(name(level.parse().unwrap()), level);
        }
        assert_eq!(name(LevelFilter::OFF), "off");
    }
}
