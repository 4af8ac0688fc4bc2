//! The tunables of write-back, under the names of `/proc/sys/vm`.
//!
//! As in Linux, bytes and ratio are two ways to state one limit: setting one puts the other to zero, and the one that is not zero
//! applies. A ratio of zero means that the bytes apply; [`DirtyTunable::set`] accepts no zero that would leave neither.

use super::{DirtyOptions, ThrottlePolicy};
use crate::tunables::{Number, Unit, tunables};

tunables! {
    /// One tunable of write-back.
    pub enum DirtyTunable of DirtyOptions {
        Ratio              = 0, "dirty_ratio",               1..=90,         Unit::Percent,      AtOnce, { ratio, set_ratio };
        // At least two blocks: one under writeback and one that becomes dirty meanwhile.
        Bytes              = 1, "dirty_bytes",               8192..=1 << 42, Unit::Bytes,        AtOnce, [dirty_bytes];
        BackgroundRatio    = 2, "dirty_background_ratio",    0..=90,         Unit::Percent,      AtOnce, { background_ratio, set_background_ratio };
        BackgroundBytes    = 3, "dirty_background_bytes",    4096..=1 << 42, Unit::Bytes,        AtOnce, [dirty_background_bytes];
        ExpireCentisecs    = 4, "dirty_expire_centisecs",    1..=8_640_000,  Unit::Centiseconds, AtOnce, [dirty_expire_centisecs];
        WritebackCentisecs = 5, "dirty_writeback_centisecs", 0..=8_640_000,  Unit::Centiseconds, AtOnce, [dirty_writeback_centisecs];
        MaxPauseMs         = 6, "hw_max_pause_ms",           10..=10_000,    Unit::Milliseconds, AtOnce, [max_pause_ms];
        Throttle           = 7, "hw_throttle",               0..=2,          Unit::Word(&ThrottlePolicy::NAMES), AtOnce, [policy];
    }
}

impl DirtyTunable {
    /// Whether the value is a number of bytes: users write `64M`, and a server divides it among its shards.
    #[must_use]
    pub fn is_bytes(self) -> bool {
        self.unit() == Unit::Bytes
    }
}

fn ratio(options: &DirtyOptions) -> u64 {
    if options.dirty_bytes > 0 { 0 } else { options.dirty_ratio.to_number() }
}

fn set_ratio(options: &mut DirtyOptions, value: u64) {
    (options.dirty_ratio, options.dirty_bytes) = (u32::from_number(value), 0);
}

fn background_ratio(options: &DirtyOptions) -> u64 {
    if options.dirty_background_bytes > 0 { 0 } else { options.dirty_background_ratio.to_number() }
}

fn set_background_ratio(options: &mut DirtyOptions, value: u64) {
    let fields = (&mut options.dirty_background_ratio, &mut options.dirty_background_bytes);
    (*fields.0, *fields.1) = (u32::from_number(value), 0);
}

#[cfg(test)]
mod tests {
    use super::DirtyTunable as T;
    use super::*;

    #[test]
    fn every_tunable_is_found_by_name_and_number() {
        for (code, tunable) in DirtyTunable::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(tunable.code()), code);
            assert_eq!(DirtyTunable::from_code(code as u8), Some(tunable));
            assert_eq!(DirtyTunable::from_name(tunable.name()), Some(tunable));
        }
        assert_eq!(DirtyTunable::from_code(DirtyTunable::ALL.len() as u8), None);
        assert_eq!(DirtyTunable::from_name("vm/dirty_ratio"), None);
    }

    #[test]
    fn range_ends_round_trip_and_are_valid() {
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
    fn bytes_and_ratio_exclude_each_other() {
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
    fn choice_is_parsed_and_shown_as_in_sysfs() {
        assert_eq!(T::Throttle.parse("none"), Ok(2));
        assert_eq!(T::Throttle.show(2), "ioless [none]");
        let error = T::Throttle.parse("never").unwrap_err().to_string();
        assert!(error.contains("ioless, none"), "{error}");
        assert!(T::Throttle.parse("").is_err() && T::Throttle.check(1).is_err());
        let error = T::MaxPauseMs.parse("9").unwrap_err().to_string();
        assert!(error.contains("10..=10000"), "{error}");
    }
}
