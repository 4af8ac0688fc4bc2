//! The options of write-back as a table: number, name, range, value.
//!
//! One table serves the command line, the control socket (names as in `/proc/sys/vm`) and the live change. The numbers are
//! stable: they are recorded. As in Linux, bytes and ratio are two ways to say the same: setting one puts the other to zero,
//! and the one that is not zero counts. (A ratio of zero means that the bytes count; [`DirtyTunable::set`] takes no zero that
//! would leave neither.)

use std::ops::RangeInclusive;

use super::{DirtyOptions, ThrottlePolicy};
use crate::error::ConfigError;
use crate::options::Values;

/// One option of write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the field of `DirtyOptions` of that name")]
pub enum DirtyTunable {
    Ratio,
    Bytes,
    BackgroundRatio,
    BackgroundBytes,
    ExpireCentisecs,
    WritebackCentisecs,
    MaxPauseMs,
    Throttle,
}

use DirtyTunable as T;

impl DirtyTunable {
    /// Every option, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        T::Ratio,
        T::Bytes,
        T::BackgroundRatio,
        T::BackgroundBytes,
        T::ExpireCentisecs,
        T::WritebackCentisecs,
        T::MaxPauseMs,
        T::Throttle,
    ];

    /// The option of that name under `vm/`; our own begin with `hw_`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tunable| tunable.name() == name)
    }

    /// The option with that number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its name under `vm/`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            T::Ratio => "dirty_ratio",
            T::Bytes => "dirty_bytes",
            T::BackgroundRatio => "dirty_background_ratio",
            T::BackgroundBytes => "dirty_background_bytes",
            T::ExpireCentisecs => "dirty_expire_centisecs",
            T::WritebackCentisecs => "dirty_writeback_centisecs",
            T::MaxPauseMs => "hw_max_pause_ms",
            T::Throttle => "hw_throttle",
        }
    }

    /// The words of an option that is a choice, in the order of their values.
    #[must_use]
    pub fn words(self) -> Option<[&'static str; 3]> {
        (self == T::Throttle).then(|| ThrottlePolicy::ALL.map(ThrottlePolicy::name))
    }

    /// Whether it is a number of bytes: users write `64M`, and a server divides it among its shards.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        matches!(self, T::Bytes | T::BackgroundBytes)
    }

    /// The values that can be set, in the unit of [`DirtyTunable::get`].
    #[must_use]
    pub const fn range(self) -> RangeInclusive<u64> {
        match self {
            T::Ratio => 1..=90,
            T::BackgroundRatio => 0..=90,
            // Two blocks at least: one that is written out and one that becomes dirty meanwhile.
            T::Bytes => 8192..=1 << 42,
            T::BackgroundBytes => 4096..=1 << 42,
            T::ExpireCentisecs => 1..=8_640_000,
            T::WritebackCentisecs => 0..=8_640_000,
            T::MaxPauseMs => 10..=10_000,
            T::Throttle => 0..=ThrottlePolicy::ALL.len() as u64 - 1,
        }
    }

    fn values<'a>(self, words: Option<&'a [&'static str]>) -> Values<'a> {
        Values { name: self.name(), range: self.range(), words }
    }

    /// Whether `value` is one that it takes.
    ///
    /// # Errors
    /// The range that it takes.
    pub fn check(self, value: u64) -> Result<(), ConfigError> {
        self.values(None).check(value)
    }

    /// The value that `text` stands for: a number, or one of [`DirtyTunable::words`].
    ///
    /// # Errors
    /// The range or the words that it takes.
    pub fn parse(self, text: &str) -> Result<u64, ConfigError> {
        self.values(self.words().as_ref().map(|words| &words[..])).parse(text)
    }

    /// The value as users see it: a number, or for a choice all words with the chosen one in brackets, as sysfs shows it.
    #[must_use]
    pub fn show(self, value: u64) -> String {
        self.values(self.words().as_ref().map(|words| &words[..])).show(value)
    }

    /// Its value in `options`. Of bytes and ratio, the one that does not count is 0.
    #[must_use]
    pub fn get(self, options: &DirtyOptions) -> u64 {
        let o = options;
        match self {
            T::Ratio if o.dirty_bytes > 0 => 0,
            T::BackgroundRatio if o.dirty_background_bytes > 0 => 0,
            T::Ratio => o.dirty_ratio.into(),
            T::Bytes => o.dirty_bytes,
            T::BackgroundRatio => o.dirty_background_ratio.into(),
            T::BackgroundBytes => o.dirty_background_bytes,
            T::ExpireCentisecs => o.dirty_expire_centisecs.into(),
            T::WritebackCentisecs => o.dirty_writeback_centisecs.into(),
            T::MaxPauseMs => o.max_pause_ms.into(),
            T::Throttle => o.policy as u64,
        }
    }

    /// Puts `value` into `options`. A ratio counts from then on instead of the bytes, and bytes instead of the ratio.
    ///
    /// # Errors
    /// The range or the words that it takes; `options` is as it was.
    pub fn set(self, options: &mut DirtyOptions, value: u64) -> Result<(), ConfigError> {
        self.check(value)?;
        let o = options;
        // Every range fits its field.
        let small = value as u32;
        match self {
            T::Ratio => (o.dirty_ratio, o.dirty_bytes) = (small, 0),
            T::Bytes => o.dirty_bytes = value,
            T::BackgroundRatio => (o.dirty_background_ratio, o.dirty_background_bytes) = (small, 0),
            T::BackgroundBytes => o.dirty_background_bytes = value,
            T::ExpireCentisecs => o.dirty_expire_centisecs = small,
            T::WritebackCentisecs => o.dirty_writeback_centisecs = small,
            T::MaxPauseMs => o.max_pause_ms = small,
            T::Throttle => o.policy = ThrottlePolicy::ALL[value as usize],
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_every_option_comes_back_by_name_and_number() {
        for (code, tunable) in DirtyTunable::ALL.into_iter().enumerate() {
            assert_eq!(tunable as usize, code);
            assert_eq!(DirtyTunable::from_code(code as u8), Some(tunable));
            assert_eq!(DirtyTunable::from_name(tunable.name()), Some(tunable));
        }
        assert_eq!(DirtyTunable::from_code(DirtyTunable::ALL.len() as u8), None);
        assert_eq!(DirtyTunable::from_name("vm/dirty_ratio"), None);
    }

    #[test]
    fn both_ends_of_every_range_go_in_and_come_out_and_are_valid() {
        for tunable in DirtyTunable::ALL {
            for value in [*tunable.range().start(), *tunable.range().end()] {
                let mut options = DirtyOptions::default();
                tunable.set(&mut options, value).unwrap();
                assert_eq!(tunable.get(&options), value, "{tunable:?}");
                assert_eq!(options.validate(), Ok(()), "{tunable:?} {value}");
            }
            let mut options = DirtyOptions::default();
            let beyond = *tunable.range().end() + 1;
            assert!(tunable.set(&mut options, beyond).is_err());
            assert_eq!(options, DirtyOptions::default(), "{tunable:?}");
        }
    }

    #[test]
    fn bytes_and_ratio_put_each_other_to_zero_as_in_linux() {
        let mut options = DirtyOptions::default();
        for (ratio, bytes) in [(T::Ratio, T::Bytes), (T::BackgroundRatio, T::BackgroundBytes)] {
            bytes.set(&mut options, 1 << 20).unwrap();
            assert_eq!((bytes.get(&options), ratio.get(&options)), (1 << 20, 0));
            ratio.set(&mut options, 7).unwrap();
            assert_eq!((bytes.get(&options), ratio.get(&options)), (0, 7));
        }
        // Bytes of zero would leave no limit at all.
        assert!(T::Bytes.set(&mut options, 0).is_err() && T::Ratio.get(&options) == 7);
    }

    #[test]
    fn a_choice_is_a_word() {
        assert_eq!(T::Throttle.parse("foreground"), Ok(1));
        assert_eq!(T::Throttle.show(2), "ioless foreground [none]");
        let error = T::Throttle.parse("never").unwrap_err().to_string();
        assert!(error.contains("ioless, foreground, none"), "{error}");
        let error = T::MaxPauseMs.parse("9").unwrap_err().to_string();
        assert!(error.contains("10..=10000"), "{error}");
    }
}
