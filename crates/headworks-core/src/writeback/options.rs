//! The options of write-back, by the names of `/proc/sys/vm`.

use crate::error::ConfigError;
use crate::tunables::choice;

/// How writers are slowed when too much is dirty. The numbers are recorded; 1 is no longer used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ThrottlePolicy {
    /// Writers pause and the flusher writes.
    #[default]
    Ioless = 0,
    /// Writers never pause; only the hard limit holds.
    None = 2,
}

impl ThrottlePolicy {
    /// Every policy, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Ioless, Self::None];

    /// The words that users give, by number; empty for the number that is no longer used.
    pub const NAMES: [&'static str; 3] = ["ioless", "", "none"];

    /// The word that users give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

choice!(ThrottlePolicy);

/// Limits of dirty data by amount and age, and the throttling of writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyOptions {
    /// Per cent of the pool that may be dirty or under writeback, 1..=90, unless `dirty_bytes` is set. 20: Linux's default.
    pub dirty_ratio: u32,
    /// Bytes that may be dirty or under writeback; 0: `dirty_ratio` applies.
    pub dirty_bytes: u64,
    /// Per cent of the pool above which the flusher writes, unless `dirty_background_bytes` is set. 10: Linux's default.
    pub dirty_background_ratio: u32,
    /// Bytes above which the flusher writes; 0: `dirty_background_ratio` applies.
    pub dirty_background_bytes: u64,
    /// Age in hundredths of a second at which dirty data is written. 3000: Linux's default.
    pub dirty_expire_centisecs: u32,
    /// Period in which the flusher looks for old data, in hundredths of a second; 0: never. 500: Linux's default.
    pub dirty_writeback_centisecs: u32,
    /// The longest pause of a writer in milliseconds, 10..=10000. 200: Linux's value.
    pub max_pause_ms: u32,
    /// How writers are slowed.
    pub policy: ThrottlePolicy,
    /// Seed of the jitter of pauses.
    pub seed: u64,
}

impl Default for DirtyOptions {
    fn default() -> Self {
        Self {
            dirty_ratio: 20,
            dirty_bytes: 0,
            dirty_background_ratio: 10,
            dirty_background_bytes: 0,
            dirty_expire_centisecs: 3000,
            dirty_writeback_centisecs: 500,
            max_pause_ms: 200,
            policy: ThrottlePolicy::Ioless,
            seed: 0,
        }
    }
}

impl DirtyOptions {
    /// Checks every option against its range.
    ///
    /// # Errors
    /// The first option out of range, with its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let within = |name, value: u32, range: std::ops::RangeInclusive<u32>| {
            if range.contains(&value) {
                return Ok(());
            }
            let (low, high) = (range.start(), range.end());
            Err(ConfigError::new(name, format!("{value} is not within {low}..={high}")))
        };
        within("dirty_ratio", self.dirty_ratio, 1..=90)?;
        within("dirty_background_ratio", self.dirty_background_ratio, 0..=90)?;
        within("dirty_expire_centisecs", self.dirty_expire_centisecs, 1..=8_640_000)?;
        within("dirty_writeback_centisecs", self.dirty_writeback_centisecs, 0..=8_640_000)?;
        within("max_pause_ms", self.max_pause_ms, 10..=10_000)
    }

    /// The options as numbers, for the head of a record.
    #[must_use]
    pub fn to_numbers(&self) -> [u64; 9] {
        [
            self.dirty_ratio.into(),
            self.dirty_bytes,
            self.dirty_background_ratio.into(),
            self.dirty_background_bytes,
            self.dirty_expire_centisecs.into(),
            self.dirty_writeback_centisecs.into(),
            self.max_pause_ms.into(),
            self.policy as u64,
            self.seed,
        ]
    }

    /// Reads the numbers of [`DirtyOptions::to_numbers`].
    #[must_use]
    pub fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[ratio, bytes, bg_ratio, bg_bytes, expire, interval, max_pause, policy, seed] =
            numbers
        else {
            return None;
        };
        Some(Self {
            dirty_ratio: ratio.try_into().ok()?,
            dirty_bytes: bytes,
            dirty_background_ratio: bg_ratio.try_into().ok()?,
            dirty_background_bytes: bg_bytes,
            dirty_expire_centisecs: expire.try_into().ok()?,
            dirty_writeback_centisecs: interval.try_into().ok()?,
            max_pause_ms: max_pause.try_into().ok()?,
            policy: ThrottlePolicy::ALL.into_iter().find(|known| *known as u64 == policy)?,
            seed,
        })
    }
}
