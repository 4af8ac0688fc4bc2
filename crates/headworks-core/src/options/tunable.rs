//! The options of a queue as a table: number, name, range, value.
//!
//! One table serves the control socket (names as in sysfs), the record's head and the live switch, so that none of them can
//! know an option that the others do not. The numbers are stable: they are recorded.

use std::ops::RangeInclusive;

use super::{NoMerges, QueueOptions, Scheduler, TagPolicy};
use crate::error::ConfigError;
use crate::options::Values;
use crate::time::{MS, SEC};

/// One option of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the field of `QueueOptions` of that name")]
pub enum Tunable {
    NrRequests,
    QueueDepth,
    MaxSectorsKb,
    MaxSegments,
    MaxSegmentSize,
    NoMerges,
    Scheduler,
    Tags,
    InflightKb,
    IoTimeout,
    ReadExpire,
    WriteExpire,
    WritesStarved,
    FifoBatch,
    FrontMerges,
    AsyncDepth,
    PrioAgingExpire,
    WakeBatch,
    WakeBase,
    WakePerWaiter,
    WakeJitter,
    WakePerPiece,
    WakePatches,
    WakeSeed,
    WriteCache,
    Fua,
    Discard,
    DiscardGranularity,
    DiscardMaxBytes,
    WriteZeroes,
    WakeSafetyNet,
    ReadAheadKb,
    MaxFolioOrder,
}

use Tunable as T;

impl Tunable {
    /// Every option, in the order of their numbers.
    pub const ALL: [Self; 33] = [
        T::NrRequests,
        T::QueueDepth,
        T::MaxSectorsKb,
        T::MaxSegments,
        T::MaxSegmentSize,
        T::NoMerges,
        T::Scheduler,
        T::Tags,
        T::InflightKb,
        T::IoTimeout,
        T::ReadExpire,
        T::WriteExpire,
        T::WritesStarved,
        T::FifoBatch,
        T::FrontMerges,
        T::AsyncDepth,
        T::PrioAgingExpire,
        T::WakeBatch,
        T::WakeBase,
        T::WakePerWaiter,
        T::WakeJitter,
        T::WakePerPiece,
        T::WakePatches,
        T::WakeSeed,
        T::WriteCache,
        T::Fua,
        T::Discard,
        T::DiscardGranularity,
        T::DiscardMaxBytes,
        T::WriteZeroes,
        T::WakeSafetyNet,
        T::ReadAheadKb,
        T::MaxFolioOrder,
    ];

    /// The option of that name under `queue/`, as sysfs has it; our own begin with `hw_`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tunable| tunable.name() == name)
    }

    /// The option with that number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its name under `queue/`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            T::NrRequests => "nr_requests",
            T::QueueDepth => "queue_depth",
            T::MaxSectorsKb => "max_sectors_kb",
            T::MaxSegments => "max_segments",
            T::MaxSegmentSize => "max_segment_size",
            T::NoMerges => "nomerges",
            T::Scheduler => "scheduler",
            T::Tags => "hw_tags",
            T::InflightKb => "hw_inflight_kb",
            T::IoTimeout => "io_timeout",
            T::ReadExpire => "iosched/read_expire",
            T::WriteExpire => "iosched/write_expire",
            T::WritesStarved => "iosched/writes_starved",
            T::FifoBatch => "iosched/fifo_batch",
            T::FrontMerges => "iosched/front_merges",
            T::AsyncDepth => "iosched/async_depth",
            T::PrioAgingExpire => "iosched/prio_aging_expire",
            T::WakeBatch => "hw_wake/batch",
            T::WakeBase => "hw_wake/base_ns",
            T::WakePerWaiter => "hw_wake/per_waiter_ns",
            T::WakeJitter => "hw_wake/jitter_ns",
            T::WakePerPiece => "hw_wake/per_piece_ns",
            T::WakePatches => "hw_wake/patches",
            T::WakeSeed => "hw_wake/seed",
            T::WriteCache => "write_cache",
            T::Fua => "fua",
            T::Discard => "hw_discard",
            T::DiscardGranularity => "discard_granularity",
            T::DiscardMaxBytes => "discard_max_bytes",
            T::WriteZeroes => "hw_write_zeroes",
            T::WakeSafetyNet => "hw_wake/safety_net",
            T::ReadAheadKb => "read_ahead_kb",
            T::MaxFolioOrder => "max_folio_order",
        }
    }

    /// The words of an option that is a choice, in the order of their values.
    #[must_use]
    pub fn words(self) -> Option<Vec<&'static str>> {
        match self {
            T::Scheduler => Some(Scheduler::ALL.map(Scheduler::name).to_vec()),
            T::Tags => Some(TagPolicy::ALL.map(TagPolicy::name).to_vec()),
            _ => None,
        }
    }

    /// Whether it may change while the queue runs; the others are facts of the device.
    #[must_use]
    pub const fn is_live(self) -> bool {
        !matches!(
            self,
            T::QueueDepth
                | T::MaxSegments
                | T::MaxSegmentSize
                | T::WriteCache
                | T::Fua
                | T::Discard
                | T::DiscardGranularity
                | T::DiscardMaxBytes
                | T::WriteZeroes
        )
    }

    /// Whether the cache works with it, not the queue: it changes at once and nothing is drained.
    #[must_use]
    pub const fn is_caching(self) -> bool {
        matches!(self, T::ReadAheadKb | T::MaxFolioOrder)
    }

    /// The values it takes, in the unit of [`Tunable::get`].
    #[must_use]
    pub const fn range(self) -> RangeInclusive<u64> {
        match self {
            T::NrRequests | T::QueueDepth => 1..=4096,
            T::MaxSectorsKb => 4..=32768,
            T::MaxSegments => 1..=1024,
            T::MaxSegmentSize => 4096..=1 << 31,
            T::NoMerges => 0..=NoMerges::ALL.len() as u64 - 1,
            T::Scheduler => 0..=Scheduler::ALL.len() as u64 - 1,
            T::Tags => 0..=TagPolicy::ALL.len() as u64 - 1,
            T::InflightKb => 0..=4 << 20,
            // Milliseconds, as in sysfs.
            T::IoTimeout => 1..=86_400 * SEC / MS,
            T::ReadExpire | T::WriteExpire | T::PrioAgingExpire => 0..=86_400_000,
            T::WritesStarved => 0..=65_536,
            T::FifoBatch => 1..=65_536,
            T::AsyncDepth => 0..=4096,
            T::WakeBatch => 0..=8,
            T::WakeBase | T::WakePerWaiter | T::WakeJitter | T::WakePerPiece => 0..=100_000_000,
            T::WakePatches => 0..=255,
            T::WakeSeed => 0..=u32::MAX as u64,
            T::FrontMerges | T::WriteCache | T::Fua | T::Discard | T::WriteZeroes => 0..=1,
            T::WakeSafetyNet => 0..=1,
            T::ReadAheadKb => 0..=4096,
            T::MaxFolioOrder => 0..=9,
            T::DiscardGranularity => 1..=1 << 31,
            T::DiscardMaxBytes => 1 << 16..=1 << 31,
        }
    }

    fn values<'a>(self, words: Option<&'a [&'static str]>) -> Values<'a> {
        Values { name: self.name(), range: self.range(), words }
    }

    /// Whether `value` is one that it takes.
    ///
    /// # Errors
    /// The range or the words that it takes.
    pub fn check(self, value: u64) -> Result<(), ConfigError> {
        if self == T::DiscardGranularity && !value.is_power_of_two() {
            return Err(ConfigError::new(self.name(), format!("{value} is not a power of two")));
        }
        self.values(None).check(value)
    }

    /// The value that `text` stands for: a number, or one of [`Tunable::words`].
    ///
    /// # Errors
    /// The range or the words that it takes.
    pub fn parse(self, text: &str) -> Result<u64, ConfigError> {
        self.values(self.words().as_deref()).parse(text)
    }

    /// The value as users see it: a number, or for a choice all words with the chosen one in brackets, as sysfs shows it.
    #[must_use]
    pub fn show(self, value: u64) -> String {
        self.values(self.words().as_deref()).show(value)
    }

    /// Its value in `options`.
    #[must_use]
    pub fn get(self, options: &QueueOptions) -> u64 {
        let o = options;
        match self {
            T::NrRequests => o.nr_requests.into(),
            T::QueueDepth => o.queue_depth.into(),
            T::MaxSectorsKb => o.max_sectors_kb.into(),
            T::MaxSegments => o.max_segments.into(),
            T::MaxSegmentSize => o.max_segment_size.into(),
            T::NoMerges => o.nomerges as u64,
            T::Scheduler => o.scheduler as u64,
            T::Tags => o.tags as u64,
            T::InflightKb => o.hw_inflight_kb.into(),
            T::IoTimeout => o.io_timeout_ns / MS,
            T::ReadExpire => o.deadline.read_expire_ms.into(),
            T::WriteExpire => o.deadline.write_expire_ms.into(),
            T::WritesStarved => o.deadline.writes_starved.into(),
            T::FifoBatch => o.deadline.fifo_batch.into(),
            T::FrontMerges => o.deadline.front_merges.into(),
            T::AsyncDepth => o.deadline.async_depth.into(),
            T::PrioAgingExpire => o.deadline.prio_aging_expire_ms.into(),
            T::WakeBatch => o.wake.wake_batch.into(),
            T::WakeBase => o.wake.base_ns.into(),
            T::WakePerWaiter => o.wake.per_waiter_ns.into(),
            T::WakeJitter => o.wake.jitter_ns.into(),
            T::WakePerPiece => o.wake.per_piece_ns.into(),
            T::WakePatches => o.wake.patches.into(),
            T::WakeSeed => o.wake.seed.into(),
            T::WriteCache => o.write_cache.into(),
            T::Fua => o.fua.into(),
            T::Discard => o.discard.into(),
            T::DiscardGranularity => o.discard_granularity.into(),
            T::DiscardMaxBytes => o.discard_max_bytes.into(),
            T::WriteZeroes => o.write_zeroes.into(),
            T::WakeSafetyNet => o.wake.safety_net.into(),
            T::ReadAheadKb => o.read_ahead_kb.into(),
            T::MaxFolioOrder => o.max_folio_order.into(),
        }
    }

    /// Puts `value` into `options`.
    ///
    /// # Errors
    /// The range or the words that it takes; `options` is as it was.
    pub fn set(self, options: &mut QueueOptions, value: u64) -> Result<(), ConfigError> {
        self.check(value)?;
        let o = options;
        // Every range fits its field.
        let small = value as u32;
        match self {
            T::NrRequests => o.nr_requests = small,
            T::QueueDepth => o.queue_depth = small,
            T::MaxSectorsKb => o.max_sectors_kb = small,
            T::MaxSegments => o.max_segments = value as u16,
            T::MaxSegmentSize => o.max_segment_size = small,
            T::NoMerges => o.nomerges = NoMerges::ALL[value as usize],
            T::Scheduler => o.scheduler = Scheduler::ALL[value as usize],
            T::Tags => o.tags = TagPolicy::ALL[value as usize],
            T::InflightKb => o.hw_inflight_kb = small,
            T::IoTimeout => o.io_timeout_ns = value * MS,
            T::ReadExpire => o.deadline.read_expire_ms = small,
            T::WriteExpire => o.deadline.write_expire_ms = small,
            T::WritesStarved => o.deadline.writes_starved = small,
            T::FifoBatch => o.deadline.fifo_batch = small,
            T::FrontMerges => o.deadline.front_merges = value != 0,
            T::AsyncDepth => o.deadline.async_depth = small,
            T::PrioAgingExpire => o.deadline.prio_aging_expire_ms = small,
            T::WakeBatch => o.wake.wake_batch = small,
            T::WakeBase => o.wake.base_ns = small,
            T::WakePerWaiter => o.wake.per_waiter_ns = small,
            T::WakeJitter => o.wake.jitter_ns = small,
            T::WakePerPiece => o.wake.per_piece_ns = small,
            T::WakePatches => o.wake.patches = value as u8,
            T::WakeSeed => o.wake.seed = small,
            T::WriteCache => o.write_cache = value != 0,
            T::Fua => o.fua = value != 0,
            T::Discard => o.discard = value != 0,
            T::DiscardGranularity => o.discard_granularity = small,
            T::DiscardMaxBytes => o.discard_max_bytes = small,
            T::WriteZeroes => o.write_zeroes = value != 0,
            T::WakeSafetyNet => o.wake.safety_net = value != 0,
            T::ReadAheadKb => o.read_ahead_kb = small,
            T::MaxFolioOrder => o.max_folio_order = value as u8,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_every_option_comes_back_by_name_and_number() {
        for (code, tunable) in Tunable::ALL.into_iter().enumerate() {
            assert_eq!(tunable as usize, code);
            assert_eq!(Tunable::from_code(code as u8), Some(tunable));
            assert_eq!(Tunable::from_name(tunable.name()), Some(tunable));
        }
        assert_eq!(Tunable::from_code(Tunable::ALL.len() as u8), None);
    }

    #[test]
    fn both_ends_of_every_range_go_in_and_come_out_and_touch_nothing_else() {
        let defaults = QueueOptions::default();
        for tunable in Tunable::ALL {
            for value in [*tunable.range().start(), *tunable.range().end()] {
                let mut options = defaults;
                tunable.set(&mut options, value).unwrap();
                assert_eq!(tunable.get(&options), value, "{tunable:?}");
                for other in Tunable::ALL.into_iter().filter(|&other| other != tunable) {
                    assert_eq!(other.get(&options), other.get(&defaults), "{tunable:?} {other:?}");
                }
            }
            let beyond = *tunable.range().end() + 1;
            let mut options = defaults;
            assert!(tunable.set(&mut options, beyond).is_err() && options == defaults);
        }
    }

    #[test]
    fn a_choice_is_a_word_and_is_shown_as_sysfs_shows_it() {
        assert_eq!(Tunable::Scheduler.parse("mq-deadline"), Ok(1));
        assert_eq!(Tunable::Scheduler.show(1), "none [mq-deadline]");
        let error = Tunable::Scheduler.parse("cfq").unwrap_err();
        assert!(error.to_string().contains("none, mq-deadline"), "{error}");
        let error = Tunable::NrRequests.parse("0").unwrap_err();
        assert!(error.to_string().contains("1..=4096"), "{error}");
        assert!(Tunable::NrRequests.parse("many").unwrap_err().to_string().contains("1..=4096"));
        assert_eq!(Tunable::NrRequests.show(62), "62");
    }
}
