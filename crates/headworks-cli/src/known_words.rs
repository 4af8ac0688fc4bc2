//! Words of options that `headworks` alone has. The test is about all words: here everything that gives them a meaning is known.

use headworks_program::known_words::KnownWords;

/// Names of the modes of TLS.
pub const TLS_MODES: KnownWords = KnownWords(&["off", "on", "require"]);
/// Models of what a file system may lose.
pub const MODELS: KnownWords = KnownWords(&["journal", "log-tree", "any"]);
/// File systems that give a second opinion.
pub const FILE_SYSTEMS: KnownWords = KnownWords(&["ext4", "xfs", "btrfs"]);

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::EngineChoice;
    use headworks_core::Tunable;
    use headworks_nbd::client::bench::Pattern;
    use headworks_nbd::tls::TlsMode;
    use headworks_program::known_words::{ENGINES, PATTERNS, SCHEDULERS};

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
