//! Tables of tunables: one row names an option, its number, range, unit and field.
//!
//! [`tunables!`](crate::tunables::tunables) makes an enum of a list of rows, with the lookups, checks and conversions that the
//! command line, the control socket, records and the live change use. A new tunable is one row.
//!
//! Numbers are recorded: the number of a removed tunable is never used again.

use std::ops::RangeInclusive;

use crate::error::ConfigError;

/// The unit of a tunable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number of things.
    Count,
    /// Zero for off and one for on.
    Flag,
    /// A number of bytes.
    Bytes,
    /// Bytes that are a power of two.
    PowerOfTwoBytes,
    /// A number of KiB.
    KiB,
    /// A number of milliseconds.
    Milliseconds,
    /// Hundredths of a second.
    Centiseconds,
    /// Per cent of the cache's pool.
    Percent,
    /// A choice of these words, in the order of their values. An empty word marks a value that is no longer used.
    Word(&'static [&'static str]),
}

/// When a new value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunableChange {
    /// After the queue has drained.
    Drain,
    /// At once, while I/O continues.
    AtOnce,
    /// Only at the next start: the value describes the device.
    Never,
}

/// One tunable of the options `O`.
pub(crate) struct Row<O> {
    pub code: u8,
    pub name: &'static str,
    pub range: RangeInclusive<u64>,
    pub unit: Unit,
    pub change: TunableChange,
    pub get: fn(&O) -> u64,
    /// Stores a value that [`Row::check`] accepted.
    pub set: fn(&mut O, u64),
}

impl<O> Row<O> {
    /// The words of a choice.
    pub fn words(&self) -> Option<&'static [&'static str]> {
        match self.unit {
            Unit::Word(words) => Some(words),
            _ => None,
        }
    }

    /// What it accepts, for messages: the words, or the ends of the range.
    pub fn accepted(&self) -> String {
        match self.words() {
            Some(words) => {
                words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(", ")
            }
            None => format!("{}..={}", self.range.start(), self.range.end()),
        }
    }

    /// Checks that `value` is in range, a power of two where the unit says so, and no retired word.
    pub fn check(&self, value: u64) -> Result<(), ConfigError> {
        if self.unit == Unit::PowerOfTwoBytes && !value.is_power_of_two() {
            return Err(ConfigError::new(self.name, format!("{value} is not a power of two")));
        }
        if !self.range.contains(&value) {
            let (low, high) = (self.range.start(), self.range.end());
            return Err(ConfigError::new(
                self.name,
                format!("{value} is not within {low}..={high}"),
            ));
        }
        if self.words().is_some_and(|words| words[value as usize].is_empty()) {
            let accepted = self.accepted();
            return Err(ConfigError::new(self.name, format!("{value} is none of {accepted}")));
        }
        Ok(())
    }

    /// Converts `text`, a number in range or one of the words.
    pub fn parse(&self, text: &str) -> Result<u64, ConfigError> {
        if let Some(words) = self.words() {
            let found = words.iter().position(|word| *word == text && !text.is_empty());
            return found.map(|index| index as u64).ok_or_else(|| {
                let accepted = self.accepted();
                ConfigError::new(self.name, format!("`{text}` is not one of {accepted}"))
            });
        }
        let (low, high) = (self.range.start(), self.range.end());
        let value = text.parse().map_err(|_| {
            ConfigError::new(self.name, format!("`{text}` is not a number within {low}..={high}"))
        })?;
        self.check(value).map(|()| value)
    }

    /// Formats `value`: a number, or all words with the chosen one in brackets, as sysfs shows it.
    pub fn show(&self, value: u64) -> String {
        let Some(words) = self.words() else {
            return value.to_string();
        };
        let mark = |(index, word): (usize, &&str)| match index as u64 == value {
            true => format!("[{word}]"),
            false => (*word).to_owned(),
        };
        let shown = words.iter().enumerate().filter(|(_, word)| !word.is_empty()).map(mark);
        shown.collect::<Vec<_>>().join(" ")
    }
}

/// A field of a set of options that a tunable can stand for.
///
/// Every range fits the type of its field, so that no conversion loses anything.
pub(crate) trait Number: Copy {
    fn to_number(self) -> u64;
    fn from_number(value: u64) -> Self;
}

macro_rules! numbers {
    ($($int:ty),*) => {$(
        impl Number for $int {
            fn to_number(self) -> u64 {
                self.into()
            }
            fn from_number(value: u64) -> Self {
                debug_assert!(<$int>::try_from(value).is_ok(), "a range exceeds its field");
                value as $int
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Number for bool {
    fn to_number(self) -> u64 {
        self.into()
    }
    fn from_number(value: u64) -> Self {
        value != 0
    }
}

/// Implements [`Number`] for an enum that lists its values in `ALL`.
macro_rules! choice {
    ($choice:ty) => {
        impl $crate::tunables::Number for $choice {
            fn to_number(self) -> u64 {
                self as u64
            }
            fn from_number(value: u64) -> Self {
                let is = |choice: &Self| *choice as u64 == value;
                Self::ALL.into_iter().find(is).expect("a value that the table accepts")
            }
        }
    };
}

/// Defines an enum of tunables and its table.
///
/// A row is `Name = number, "name", range, unit, change, [field];`. In place of `[field]` stands `{ get, set }` where a value
/// is not simply that of a field.
macro_rules! tunables {
    (
        $(#[$meta:meta])*
        pub enum $tunable:ident of $options:ty {
            $($name:ident = $code:literal, $text:literal, $range:expr, $unit:expr, $change:ident, $field:tt;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "each is the field of the options of that name")]
        pub enum $tunable {
            $($name,)*
        }

        impl $tunable {
            /// Every tunable, in the order of their numbers.
            pub const ALL: [Self; [$($code),*].len()] = [$(Self::$name),*];

            /// One row for every tunable, in the order of `ALL`.
            const TABLE: &[$crate::tunables::Row<$options>] = &[$(
                $crate::tunables::Row {
                    code: $code,
                    name: $text,
                    range: $range,
                    unit: $unit,
                    change: $crate::tunables::TunableChange::$change,
                    get: $crate::tunables::tunables!(@get $options, $field),
                    set: $crate::tunables::tunables!(@set $options, $field),
                },
            )*];

            fn row(self) -> &'static $crate::tunables::Row<$options> {
                &Self::TABLE[self as usize]
            }

            /// The tunable of this name; names that Linux does not have begin with `hw_`.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|tunable| tunable.name() == name)
            }

            /// The tunable of this number.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.into_iter().find(|tunable| tunable.code() == code)
            }

            /// The number that records and messages use.
            #[must_use]
            pub fn code(self) -> u8 {
                self.row().code
            }

            /// The name that users see.
            #[must_use]
            pub fn name(self) -> &'static str {
                self.row().name
            }

            /// The words of a choice, in the order of their values.
            #[must_use]
            pub fn words(self) -> Option<&'static [&'static str]> {
                self.row().words()
            }

            /// What it accepts, for messages: the words of a choice, or the ends of the range.
            #[must_use]
            pub fn accepted(self) -> String {
                self.row().accepted()
            }

            /// The unit of its value.
            #[must_use]
            pub fn unit(self) -> $crate::tunables::Unit {
                self.row().unit
            }

            /// The range of its values, in the unit of the table.
            #[must_use]
            pub fn range(self) -> std::ops::RangeInclusive<u64> {
                self.row().range.clone()
            }

            /// Checks that `value` can be set.
            ///
            /// # Errors
            /// The range of values.
            pub fn check(self, value: u64) -> Result<(), $crate::error::ConfigError> {
                self.row().check(value)
            }

            /// Converts `text`: a number, or one of the words.
            ///
            /// # Errors
            /// The range of values, or the words.
            pub fn parse(self, text: &str) -> Result<u64, $crate::error::ConfigError> {
                self.row().parse(text)
            }

            /// Formats `value`: a number, or all words with the chosen one in brackets, as sysfs shows it.
            #[must_use]
            pub fn show(self, value: u64) -> String {
                self.row().show(value)
            }

            /// Reads its value from `options`.
            #[must_use]
            pub fn get(self, options: &$options) -> u64 {
                (self.row().get)(options)
            }

            /// Stores `value` in `options`.
            ///
            /// # Errors
            /// The range of values; `options` is unchanged.
            pub fn set(self, options: &mut $options, value: u64) -> Result<(), $crate::error::ConfigError> {
                self.check(value)?;
                (self.row().set)(options, value);
                Ok(())
            }
        }
    };
    (@get $options:ty, [$($field:ident).+]) => {
        |options: &$options| $crate::tunables::Number::to_number(options.$($field).+)
    };
    (@set $options:ty, [$($field:ident).+]) => {
        |options: &mut $options, value| options.$($field).+ = $crate::tunables::Number::from_number(value)
    };
    (@get $options:ty, { $get:expr, $set:expr }) => { $get };
    (@set $options:ty, { $get:expr, $set:expr }) => { $set };
}

pub(crate) use {choice, tunables};
