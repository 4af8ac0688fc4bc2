//! Origins of values, and problems with them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use headworks_core::escape_controls;

use crate::exports::assemble::ExportSource;

/// Most problems that are listed; the rest is counted.
pub const PROBLEMS_MAX: usize = 20;

/// A position in a file, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Name of the file as the user wrote it.
    pub file: Arc<str>,
    /// Line of the position.
    pub line: u32,
    /// Character within the line.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Origin of a value; a later one wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A default of the program.
    Default,
    /// A position in a configuration file.
    File(Position),
    /// A variable of the environment.
    Environment,
    /// An argument of the command line.
    CommandLine,
    /// A change by `headworks ctl`.
    Control,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(at) => write!(f, "file {}:{}", at.file, at.line),
            Self::Environment => f.write_str("environment"),
            Self::CommandLine => f.write_str("command line"),
            Self::Control => f.write_str("ctl"),
        }
    }
}

impl Origin {
    /// What an export or tenant with this origin comes from.
    pub(super) fn source(&self) -> ExportSource {
        match self {
            Self::CommandLine => ExportSource::CommandLine,
            Self::Control => ExportSource::Control,
            Self::Default | Self::File(_) | Self::Environment => ExportSource::File,
        }
    }
}

/// A problem with a value, as one sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Origin of the value.
    pub origin: Origin,
    /// The problem and its remedy.
    pub what: String,
}

impl Problem {
    /// A problem with a value of this origin; one line, as every message about an option.
    pub fn new(origin: &Origin, what: impl Into<String>) -> Self {
        Self { origin: origin.clone(), what: escape_controls(&what.into()) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File(at) => write!(f, "{at}: {}", self.what),
            Origin::Environment => write!(f, "environment: {}", self.what),
            Origin::Default | Origin::CommandLine | Origin::Control => f.write_str(&self.what),
        }
    }
}

/// All problems of a configuration, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Returns `value` if there are no problems.
    ///
    /// # Errors
    /// All problems in order.
    pub fn or<T>(mut self, value: T) -> Result<T, Self> {
        if self.0.is_empty() {
            return Ok(value);
        }
        self.0.sort();
        self.0.dedup();
        Err(self)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().take(PROBLEMS_MAX).map(Problem::to_string);
        f.write_str(&shown.collect::<Vec<_>>().join("\n"))?;
        match self.0.len().saturating_sub(PROBLEMS_MAX) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for Problems {}

/// Start offsets of the lines of a text.
pub struct Lines<'a> {
    file: Arc<str>,
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn new(file: &str, text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(end, _)| end + 1)).collect();
        Self { file: file.into(), text, starts }
    }

    /// Position of the start of `span`, at most the end of the text.
    pub fn at(&self, span: &Range<usize>) -> Position {
        let offset = span.start.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        let before = self.text.as_bytes().get(start..offset).unwrap_or_default();
        let characters = before.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        Position {
            file: Arc::clone(&self.file),
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(characters + 1).unwrap_or(u32::MAX),
        }
    }

    pub fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::File(self.at(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_from_1() {
        let lines = Lines::new("f", "ab\n\u{e9}x\n");
        for (offset, shown) in
            [(0, "f:1:1"), (2, "f:1:3"), (3, "f:2:1"), (5, "f:2:2"), (7, "f:3:1")]
        {
            assert_eq!(lines.at(&(offset..offset)).to_string(), shown);
        }
        assert_eq!(lines.at(&(99..100)).to_string(), "f:3:1");
        assert_eq!(Lines::new("f", "").at(&(0..0)).to_string(), "f:1:1");
    }

    #[test]
    fn later_origin_wins_and_problem_list_is_bounded() {
        let at = |line| Origin::File(Position { file: "f".into(), line, column: 1 });
        assert!(Origin::Default < at(9) && at(9) < Origin::Environment);
        assert!(Origin::Environment < Origin::CommandLine);
        let problems = Problems((0..30).rev().map(|line| Problem::new(&at(line), "x")).collect());
        let text = problems.or(()).unwrap_err().to_string();
        assert!(text.starts_with("f:0:1: x\nf:1:1: x\n") && text.ends_with("\nand 10 more"));
        assert_eq!(Problems::default().or(7), Ok(7));
    }
}
