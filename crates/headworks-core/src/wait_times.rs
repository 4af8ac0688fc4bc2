//! Where a bio spent its time, small enough to travel with its answer.
//!
//! One byte a wait: the bucket of a histogram (`stats`), not nanoseconds. So whoever answers a client counts without computing
//! again, and what crosses to another shard, into a record or into a hash is one word.
//!
//! ```text
//!   client's bio:  [ dirty | cache ]* [ plug | tag | sched | device ]        all that is in front of a queue, then the queue
//! ```
//!
//! Invariant: nothing is counted twice. A wait for another bio's end (a fill, a write-out) is told apart from its end on: first
//! what that bio was in the device, then the elevator, and so on back; what is left was the cache's own.

use crate::stats::{BUCKETS, Stage, bucket_of, upper_end};
use crate::time::Instant;

const _: () = assert!(BUCKETS <= 1 << 8, "a bucket fits a byte of `WaitTimes`");

/// What a client's bio waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// The page cache: a frame, a range that is locked, a fill of somebody else's, an older flush.
    Cache = 0,
    /// A pause of the throttle, or dirty credit.
    Dirty = 1,
    /// See [`Stage::Plug`]; also held while the options of the queue are switched.
    Plug = 2,
    /// See [`Stage::Tag`]; also tags of another shard's device.
    Tag = 3,
    /// See [`Stage::Scheduler`].
    Scheduler = 4,
    /// See [`Stage::Device`]; a flush's also while it waits for another that it cannot join.
    Device = 5,
}

impl WaitKind {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// In order.
    pub const ALL: [WaitKind; WaitKind::COUNT] = [
        WaitKind::Cache,
        WaitKind::Dirty,
        WaitKind::Plug,
        WaitKind::Tag,
        WaitKind::Scheduler,
        WaitKind::Device,
    ];

    /// The word users see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WaitKind::Cache => "cache",
            WaitKind::Dirty => "dirty",
            WaitKind::Plug => Stage::Plug.name(),
            WaitKind::Tag => Stage::Tag.name(),
            WaitKind::Scheduler => Stage::Scheduler.name(),
            WaitKind::Device => Stage::Device.name(),
        }
    }
}

/// The buckets of all waits of a bio; a byte each, the first one lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes(u64);

impl WaitTimes {
    /// No wait at all: a hit.
    pub const NONE: Self = Self(0);

    /// The bucket of a wait.
    #[inline]
    #[must_use]
    pub const fn bucket(self, wait: WaitKind) -> usize {
        (self.0 >> (8 * wait as u32)) as usize & 0xff
    }

    /// The longest time that the wait may have been, in nanoseconds.
    #[must_use]
    pub fn at_most(self, wait: WaitKind) -> u64 {
        upper_end(self.bucket(wait))
    }

    /// Whether nothing was waited for.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// What is recorded and hashed.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// What that word stands for.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        // A damaged record may say anything.
        let bucket = |wait| (word >> (8 * wait as u32) & 0xff).min(BUCKETS as u64 - 1);
        Self(WaitKind::ALL.into_iter().fold(0, |all, wait| all | bucket(wait) << (8 * wait as u32)))
    }

    /// The waits of a request that ends now.
    #[inline]
    pub(crate) fn of_request(buckets: [usize; Stage::COUNT]) -> Self {
        let [plug, tag, scheduler, device] = buckets;
        Self((plug << 16 | tag << 24 | scheduler << 32 | device << 40) as u64)
    }

    /// The waits of a request that is over its time.
    pub(crate) fn until(stamps: &[Instant; 4], now: Instant) -> Self {
        let ends = [stamps[1], stamps[2], stamps[3], now];
        Self::of_request([0, 1, 2, 3].map(|stage| bucket_of(ends[stage].since(stamps[stage]))))
    }

    /// `ns` more for a wait.
    #[must_use]
    pub(crate) fn plus(self, wait: WaitKind, ns: u64) -> Self {
        if ns == 0 {
            return self;
        }
        let before = self.at_most(wait);
        let shift = 8 * wait as u32;
        Self(self.0 & !(0xff << shift) | (bucket_of(before + ns) as u64) << shift)
    }

    /// Another request's waits beside one's own: data, then a flush.
    pub(crate) fn and(self, other: Self) -> Self {
        WaitKind::ALL
            .into_iter()
            .filter(|wait| other.bucket(*wait) > 0)
            .fold(self, |sum, wait| sum.plus(wait, other.at_most(wait)))
    }
}

/// The waits of somebody who waits more than once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitRecorder {
    since: Instant,
    ns: [u64; WaitKind::COUNT],
    /// What the bio waited for whose end is waited for, when that is known.
    pub below: WaitTimes,
}

impl WaitRecorder {
    /// It begins to wait.
    pub fn begin(&mut self, now: Instant) {
        (self.since, self.below) = (now, WaitTimes::NONE);
    }

    /// It waited for `wait`.
    pub fn end(&mut self, now: Instant, wait: WaitKind) {
        self.ns[wait as usize] += now.since(self.since);
    }

    /// It waited for the end of a bio that had spent its time as `below` says; perhaps not for all of it.
    pub fn end_below(&mut self, now: Instant) {
        let mut left = now.since(self.since);
        for wait in [WaitKind::Device, WaitKind::Scheduler, WaitKind::Tag, WaitKind::Plug] {
            let part = left.min(self.below.at_most(wait));
            self.ns[wait as usize] += part;
            left -= part;
        }
        self.ns[WaitKind::Cache as usize] += left;
    }

    /// All of it.
    pub fn wait_times(&self) -> WaitTimes {
        if self.ns == [0; WaitKind::COUNT] {
            return WaitTimes::NONE;
        }
        WaitKind::ALL.into_iter().fold(WaitTimes::NONE, |wait_times, wait| {
            WaitTimes(
                wait_times.0 | (bucket_of(self.ns[wait as usize]) as u64) << (8 * wait as u32),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(wait_times: WaitTimes) -> Vec<(&'static str, u64)> {
        let waits = WaitKind::ALL.into_iter().filter(|wait| wait_times.bucket(*wait) > 0);
        waits.map(|wait| (wait.name(), wait_times.at_most(wait) / 1000)).collect()
    }

    #[test]
    fn waits_have_a_byte_each_and_come_back_from_their_word() {
        let mut wait_times = WaitTimes::NONE;
        for (index, wait) in WaitKind::ALL.into_iter().enumerate() {
            assert_eq!(wait as usize, index);
            wait_times = wait_times.plus(wait, 1 << (10 + 4 * index));
        }
        for (index, wait) in WaitKind::ALL.into_iter().enumerate() {
            assert_eq!(wait_times.bucket(wait), bucket_of(1 << (10 + 4 * index)));
        }
        assert_eq!(WaitTimes::from_word(wait_times.word()), wait_times);
        let most = WaitTimes::from_word(u64::MAX);
        assert_eq!(
            most.and(most).bucket(WaitKind::Device),
            BUCKETS - 1,
            "a word that nobody wrote"
        );
        assert!(WaitTimes::NONE.is_none() && !wait_times.is_none());
        assert_eq!(WaitTimes::NONE.plus(WaitKind::Device, u64::MAX).bucket(WaitKind::Device), 163);
    }

    #[test]
    fn a_wait_for_another_bio_is_told_apart_from_its_end_on() {
        let stamps = [0, 1_000_000, 3_000_000, 3_000_000].map(Instant);
        let below = WaitTimes::until(&stamps, Instant(8_000_000));
        assert_eq!(told(below), [("plug", 1048), ("tag", 2097), ("device", 5242)]);
        let waited = |ns: u64| {
            let mut waits = WaitRecorder::default();
            waits.begin(Instant(1));
            waits.below = below;
            waits.end_below(Instant(1 + ns));
            waits
        };
        let late = waited(3_000_000);
        assert_eq!(late.ns, [0, 0, 0, 0, 0, 3_000_000], "who came late saw only the device");
        let long = waited(20_000_000);
        assert_eq!(long.ns.iter().sum::<u64>(), 20_000_000, "nothing is counted twice");
        let queue: u64 = long.ns[2..].iter().sum();
        assert!((8_000_000..=10_000_000).contains(&queue) && long.ns[0] == 20_000_000 - queue);
    }

    #[test]
    fn who_never_waited_has_spent_nothing() {
        assert_eq!(WaitRecorder::default().wait_times(), WaitTimes::NONE);
        let mut waits = WaitRecorder::default();
        waits.begin(Instant(5));
        waits.end(Instant(5_000_005), WaitKind::Dirty);
        assert_eq!(told(waits.wait_times()), [("dirty", 5242)]);
    }
}
