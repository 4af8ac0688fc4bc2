//! The values of an option that is named, has a range and may be a choice of words: what both tables of options share.

use std::ops::RangeInclusive;

use crate::error::ConfigError;

/// What an option takes.
pub(crate) struct Values<'a> {
    pub name: &'static str,
    pub range: RangeInclusive<u64>,
    /// The words of a choice, in the order of their values.
    pub words: Option<&'a [&'static str]>,
}

impl Values<'_> {
    /// Whether `value` is one of them.
    pub fn check(&self, value: u64) -> Result<(), ConfigError> {
        if self.range.contains(&value) {
            return Ok(());
        }
        let (low, high) = (self.range.start(), self.range.end());
        Err(ConfigError::new(self.name, format!("{value} is not within {low}..={high}")))
    }

    /// The value that `text` stands for.
    pub fn parse(&self, text: &str) -> Result<u64, ConfigError> {
        if let Some(words) = self.words {
            let found = words.iter().position(|word| *word == text);
            return found.map(|index| index as u64).ok_or_else(|| {
                let choice = words.join(", ");
                ConfigError::new(self.name, format!("`{text}` is not one of {choice}"))
            });
        }
        let (low, high) = (self.range.start(), self.range.end());
        let value = text.parse().map_err(|_| {
            ConfigError::new(self.name, format!("`{text}` is not a number within {low}..={high}"))
        })?;
        self.check(value).map(|()| value)
    }

    /// The value as users see it: of a choice all words, the chosen one in brackets, as sysfs shows it.
    pub fn show(&self, value: u64) -> String {
        let Some(words) = self.words else {
            return value.to_string();
        };
        let mark = |(index, word): (usize, &&str)| match index as u64 == value {
            true => format!("[{word}]"),
            false => (*word).to_owned(),
        };
        words.iter().enumerate().map(mark).collect::<Vec<_>>().join(" ")
    }
}
