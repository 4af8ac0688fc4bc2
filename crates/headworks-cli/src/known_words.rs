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
/// Names of the modes of TLS.
pub const TLS_MODES: KnownWords = KnownWords(&["off", "on", "require"]);
/// Access patterns of a benchmark.
pub const PATTERNS: KnownWords = KnownWords(&["read", "write", "randread", "randwrite", "randrw"]);

/// Models of what a file system may lose.
pub const MODELS: KnownWords = KnownWords(&["journal", "log-tree", "any"]);

/// File systems that give a second opinion.
pub const FILE_SYSTEMS: KnownWords = KnownWords(&["ext4", "xfs", "btrfs"]);

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

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::EngineChoice;
    use headworks_core::Tunable;
    use headworks_nbd::client::bench::Pattern;
    use headworks_nbd::tls::TlsMode;

    #[test]
    fn every_word_is_one_that_its_option_takes() {
        let takes = |words: &KnownWords, takes: fn(&str) -> bool| {
            words.0.iter().for_each(|word| assert!(takes(word), "{word}"));
            assert!(!takes("nonsense"));
        };
        takes(&TLS_MODES, |word| word.parse::<TlsMode>().is_ok());
        takes(&PATTERNS, |word| word.parse::<Pattern>().is_ok());
        takes(&MODELS, |word| word.parse::<headworks_crash::Model>().is_ok());
        takes(&FILE_SYSTEMS, |word| word.parse::<crate::crashtest::FileSystem>().is_ok());
        takes(&ENGINES, |word| word.parse::<EngineChoice>().is_ok());
        takes(&SCHEDULERS, |word| Tunable::Scheduler.parse(word).is_ok());
    }
}
