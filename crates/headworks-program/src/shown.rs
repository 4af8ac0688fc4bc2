//! Output of what others chose: names of exports, paths of images.
//!
//! Rule: text for people has no control characters but the line feeds that are written here. Each way out escapes once, whatever it
//! carries: a line by [`Lines`], a cell of a table by `columns::aligned`, the answer of a server by [`escaped`], an error by
//! `complain`, a message of the log by `log`, a status for systemd by `serve::systemd`. JSON has escapes of its own and gets the text as it is.
//!
//! Rule: standard output and standard error may have no reader (`headworks ctl s top | head`): what is printed there is printed by
//! [`print()`], [`print_error`] and the macros here, which do not fail. The standard library's macros end the process.

use std::fmt::Display;
use std::io::{Error, ErrorKind, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use headworks_core::escape_controls;
use serde_json::Value;

/// The first error of standard output.
static FAILED: Mutex<Option<Error>> = Mutex::new(None);

/// Notes an error of standard output; returns whether there was none.
pub fn note(outcome: Result<(), Error>) -> bool {
    let is_written = outcome.is_ok();
    // Without a reader nothing is missed; a full disk has a part of what was asked for.
    if let Some(error) = outcome.err().filter(|error| error.kind() != ErrorKind::BrokenPipe) {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
    is_written
}

/// Prints text to standard output, if it has a reader.
pub fn print(text: impl Display) {
    note(write!(std::io::stdout(), "{text}"));
}

/// The first error of standard output, with all that was printed written.
pub fn output_error() -> Option<Error> {
    note(std::io::stdout().flush());
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Prints text to standard error, if it has a reader.
pub fn print_error(text: impl Display) {
    let _ = write!(std::io::stderr(), "{text}");
}

/// Prints text to standard output, in the form of `print!`.
#[macro_export]
macro_rules! print_text {
    ($($part:tt)*) => { $crate::shown::print(format_args!($($part)*)) };
}

/// Prints a line to standard output, in the form of `println!`.
#[macro_export]
macro_rules! print_line {
    ($($part:tt)*) => { $crate::shown::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints a line to standard error, in the form of `eprintln!`.
#[macro_export]
macro_rules! error_line {
    ($($part:tt)*) => { $crate::shown::print_error(format_args!("{}\n", format_args!($($part)*))) };
}

pub use {error_line, print_line, print_text};

/// Lines of text without control characters.
#[derive(Debug, Default)]
pub struct Lines(String);

impl Lines {
    /// Adds a line; its control characters are escaped.
    pub fn push(&mut self, line: impl AsRef<str>) {
        self.0 += &escape_controls(line.as_ref());
        self.0.push('\n');
    }

    /// The lines, each with its line feed.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// A line of text without control characters.
pub fn line(text: impl AsRef<str>) -> String {
    let mut lines = Lines::default();
    lines.push(text);
    lines.into_text()
}

/// An answer for people: without control characters in its strings and names.
pub fn escaped(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(escape_controls(text)),
        Value::Array(all) => all.iter().map(escaped).collect(),
        Value::Object(all) => {
            all.iter().map(|(name, value)| (escape_controls(name), escaped(value))).collect()
        }
        other => other.clone(),
    }
}

/// A path for JSON, which has text alone: bytes that are not UTF-8 become U+FFFD.
pub fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_that_others_chose_ends_a_line_or_moves_the_cursor() {
        let mut lines = Lines::default();
        lines.push("export: n\nERROR fake.img");
        lines.push("\u{1b}[2J\r\u{9b}A \u{fc}");
        assert_eq!(lines.into_text(), "export: n\\nERROR fake.img\n\\u{1b}[2J\\r\\u{9b}A \u{fc}\n");
        let answer = json!({ "files": ["a\nb", 7], "n\t": { "x": "\u{7f}" } });
        let shown = json!({ "files": ["a\\nb", 7], "n\\t": { "x": "\\u{7f}" } });
        assert_eq!(escaped(&answer), shown);
        assert_eq!(escaped(&shown), shown, "once is enough");
    }
}
