//! Options that take one of a few words: completion offers the words, and the part of the program that knows their meaning refuses
//! others, with its own sentence.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};

/// Accepts any text; tells completion these words.
#[derive(Clone)]
pub struct KnownWords(pub &'static [&'static str]);

/// Names of the I/O engines.
pub const ENGINES: KnownWords = KnownWords(&["auto", "uring", "threads"]);
/// Names of the I/O schedulers.
pub const SCHEDULERS: KnownWords = KnownWords(&["none", "mq-deadline", "bfq"]);
/// Access patterns of a benchmark.
pub const PATTERNS: KnownWords = KnownWords(&["read", "write", "randread", "randwrite", "randrw"]);

impl TypedValueParser for KnownWords {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}
