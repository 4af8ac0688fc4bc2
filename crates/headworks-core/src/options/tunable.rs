//! The tunables of a queue, under the names of `/sys/block/*/queue`.
//!
//! One table serves the control socket, the head of a record and the live switch.

use super::{DepthMode, QueueOptions, Scheduler};
use crate::device_cost::ShareUnit;
use crate::error::ConfigError;
use crate::time::{MS, SEC};
use crate::tunables::{TunableChange, Unit, tunables};

tunables! {
    /// One tunable of a queue.
    pub enum Tunable of QueueOptions {
        NrRequests         =  0, "nr_requests",               1..=4096,             Unit::Count,           Drain,  [nr_requests];
        QueueDepth         =  1, "queue_depth",               1..=4096,             Unit::Count,           Never,  [queue_depth];
        MaxSectorsKb       =  2, "max_sectors_kb",            4..=32768,            Unit::KiB,             Drain,  [max_sectors_kb];
        MaxSegments        =  3, "max_segments",              1..=1024,             Unit::Count,           Never,  [max_segments];
        MaxSegmentSize     =  4, "max_segment_size",          4096..=1 << 31,       Unit::Bytes,           Never,  [max_segment_size];
        NoMerges           =  5, "nomerges",                  0..=2,                Unit::Count,           Drain,  [nomerges];
        Scheduler          =  6, "scheduler",                 0..=last(&Scheduler::NAMES), Unit::Word(&Scheduler::NAMES), Drain, [scheduler];
        InflightKb         =  8, "hw_inflight_kb",            0..=4 << 20,          Unit::KiB,             Drain,  [hw_inflight_kb];
        IoTimeout          =  9, "io_timeout",                1..=86_400 * SEC / MS, Unit::Milliseconds,   Drain,  { |o| o.io_timeout_ns / MS, |o, ms| o.io_timeout_ns = ms * MS };
        ReadExpire         = 10, "iosched/read_expire",       0..=86_400_000,       Unit::Milliseconds,    Drain,  [deadline.read_expire_ms];
        WriteExpire        = 11, "iosched/write_expire",      0..=86_400_000,       Unit::Milliseconds,    Drain,  [deadline.write_expire_ms];
        WritesStarved      = 12, "iosched/writes_starved",    0..=65_536,           Unit::Count,           Drain,  [deadline.writes_starved];
        FifoBatch          = 13, "iosched/fifo_batch",        1..=65_536,           Unit::Count,           Drain,  [deadline.fifo_batch];
        FrontMerges        = 14, "iosched/front_merges",      0..=1,                Unit::Flag,            Drain,  [deadline.front_merges];
        AsyncDepth         = 15, "iosched/async_depth",       0..=4096,             Unit::Count,           Drain,  [deadline.async_depth];
        PrioAgingExpire    = 16, "iosched/prio_aging_expire", 0..=86_400_000,       Unit::Milliseconds,    Drain,  [deadline.prio_aging_expire_ms];
        WriteCache         = 24, "write_cache",               0..=1,                Unit::Flag,            Never,  [write_cache];
        Fua                = 25, "fua",                       0..=1,                Unit::Flag,            Never,  [fua];
        Discard            = 26, "hw_discard",                0..=1,                Unit::Flag,            Never,  [discard];
        DiscardGranularity = 27, "discard_granularity",       1..=1 << 31,          Unit::PowerOfTwoBytes, Never,  [discard_granularity];
        DiscardMaxBytes    = 28, "discard_max_bytes",         1 << 16..=1 << 31,    Unit::Bytes,           Never,  [discard_max_bytes];
        WriteZeroes        = 29, "hw_write_zeroes",           0..=1,                Unit::Flag,            Never,  [write_zeroes];
        ReadAheadKb        = 31, "read_ahead_kb",             0..=4096,             Unit::KiB,             AtOnce, [read_ahead_kb];
        MaxFolioOrder      = 32, "max_folio_order",           0..=9,                Unit::Count,           AtOnce, [max_folio_order];
        Share              = 33, "share",                     0..=last(&ShareUnit::NAMES), Unit::Word(&ShareUnit::NAMES), Drain, [share];
        Depth              = 34, "hw_depth",                  0..=last(&DepthMode::NAMES), Unit::Word(&DepthMode::NAMES), Drain, [hw_depth];
        Rotational         = 35, "rotational",                0..=1,                Unit::Flag,            Drain,  [rotational];
        SliceIdle          = 36, "iosched/slice_idle",        0..=1000,             Unit::Milliseconds,    Drain,  { |o| u64::from(o.bfq.slice_idle_us).div_ceil(1000), |o, ms| o.bfq.slice_idle_us = ms as u32 * 1000 };
        SliceIdleUs        = 37, "iosched/slice_idle_us",     0..=1_000_000,        Unit::Count,           Drain,  [bfq.slice_idle_us];
        LowLatency         = 38, "iosched/low_latency",       0..=1,                Unit::Flag,            Drain,  [bfq.low_latency];
        TimeoutSync        = 39, "iosched/timeout_sync",      1..=10_000,           Unit::Milliseconds,    Drain,  [bfq.timeout_sync_ms];
        MaxBudget          = 40, "iosched/max_budget",        0..=1 << 24,          Unit::Count,           Drain,  [bfq.max_budget];
        StrictGuarantees   = 41, "iosched/strict_guarantees", 0..=1,                Unit::Flag,            Drain,  [bfq.strict_guarantees];
        BackSeekMax        = 42, "iosched/back_seek_max",     0..=1 << 30,          Unit::KiB,             Drain,  [bfq.back_seek_max_kb];
        BackSeekPenalty    = 43, "iosched/back_seek_penalty", 1..=1000,             Unit::Count,           Drain,  [bfq.back_seek_penalty];
        FifoExpireSync     = 44, "iosched/fifo_expire_sync",  1..=86_400_000,       Unit::Milliseconds,    Drain,  [bfq.fifo_expire_sync_ms];
        FifoExpireAsync    = 45, "iosched/fifo_expire_async", 1..=86_400_000,       Unit::Milliseconds,    Drain,  [bfq.fifo_expire_async_ms];
        HoldUs             = 46, "iosched/hw_hold_us",        0..=1_000_000,        Unit::Count,           Drain,  [bfq.hold_us];
        InflightUs         = 47, "iosched/hw_inflight_us",    0..=10_000_000,       Unit::Count,           Drain,  [bfq.inflight_us];
        SlotUs             = 48, "iosched/hw_slot_us",        0..=1_000_000,        Unit::Count,           Drain,  [bfq.slot_us];
    }
}

impl Tunable {
    /// One more than the largest number of a tunable.
    pub const CODES: u8 = Self::TABLE[Self::TABLE.len() - 1].code + 1;

    /// Whether it may change while the queue runs; the others describe the device.
    #[must_use]
    pub fn is_live(self) -> bool {
        self.row().change != TunableChange::Never
    }

    /// Whether the cache uses it, not the queue: a change takes effect at once and drains nothing.
    #[must_use]
    pub fn is_caching(self) -> bool {
        self.row().change == TunableChange::AtOnce
    }
}

impl QueueOptions {
    /// Checks every option against its range.
    ///
    /// # Errors
    /// The first option out of range, with its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        Tunable::ALL.iter().try_for_each(|tunable| tunable.check(tunable.get(self)))?;
        // A record keeps milliseconds; a finer value would time out at another time in a replay.
        if !self.io_timeout_ns.is_multiple_of(MS) {
            let message = format!("{} ns are not whole milliseconds", self.io_timeout_ns);
            return Err(ConfigError::new(Tunable::IoTimeout.name(), message));
        }
        Ok(())
    }
}

/// The largest value of a choice of these words.
const fn last(words: &[&str]) -> u64 {
    words.len() as u64 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tunable_is_found_by_name_and_number() {
        assert!(Tunable::ALL.is_sorted_by_key(|tunable| tunable.code()));
        for tunable in Tunable::ALL {
            assert_eq!(Tunable::from_code(tunable.code()), Some(tunable));
            assert_eq!(Tunable::from_name(tunable.name()), Some(tunable));
        }
        assert_eq!(Tunable::from_code(Tunable::CODES), None);
    }

    #[test]
    fn range_ends_round_trip_and_change_one_field() {
        let defaults = QueueOptions::default();
        for tunable in Tunable::ALL {
            for value in [*tunable.range().start(), *tunable.range().end()] {
                let mut options = defaults;
                tunable.set(&mut options, value).unwrap();
                assert_eq!(tunable.get(&options), value, "{tunable:?}");
                // Two units of one value.
                let twins = [Tunable::SliceIdle, Tunable::SliceIdleUs];
                let same = |other| twins.contains(&other) && twins.contains(&tunable);
                let others = Tunable::ALL.into_iter().filter(|&other| other != tunable);
                for other in others.filter(|&other| !same(other)) {
                    assert_eq!(other.get(&options), other.get(&defaults), "{tunable:?} {other:?}");
                }
            }
            let beyond = *tunable.range().end() + 1;
            let mut options = defaults;
            assert!(tunable.set(&mut options, beyond).is_err() && options == defaults);
        }
    }

    #[test]
    fn choice_is_parsed_and_shown_as_in_sysfs() {
        assert_eq!(Tunable::Scheduler.parse("mq-deadline"), Ok(1));
        assert_eq!(Tunable::Scheduler.show(1), "none [mq-deadline] bfq");
        let error = Tunable::Scheduler.parse("cfq").unwrap_err();
        assert!(error.to_string().contains("none, mq-deadline, bfq"), "{error}");
        let error = Tunable::NrRequests.parse("0").unwrap_err();
        assert!(error.to_string().contains("1..=4096"), "{error}");
        assert!(Tunable::NrRequests.parse("many").unwrap_err().to_string().contains("1..=4096"));
        assert_eq!(Tunable::NrRequests.show(62), "62");
    }
}
