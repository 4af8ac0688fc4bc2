//! Wait times of a bio by kind, in one word that travels with its reply.
//!
//! One byte per kind holds the bucket of a histogram (`stats`) instead of nanoseconds. A frontend counts the byte as it is, and
//! messages, records and hashes carry one word.
//!
//! ```text
//!   client's bio:  [ limit ] [ buffer ] [ dirty | cache ]* [ plug | tag | sched | device ]    the front, the cache, then the queue
//! ```
//!
//! Invariant: kinds never overlap. A wait for another bio (a fill, a write-out) is split from its end backwards: first the time
//! of that bio in the device, then in the elevator, and so on; the rest counts as the cache's.

use crate::stats::{BUCKETS, Stage, bucket_of, upper_end};
use crate::time::Instant;

const _: () = assert!(BUCKETS <= 1 << 8, "a bucket fits a byte of `WaitTimes`");

/// The kinds of waits of a client's bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// The page cache: a frame, a locked range, another bio's fill, an older flush.
    Cache = 0,
    /// A pause of the throttle, or missing dirty credit.
    Dirty = 1,
    /// The plug ([`Stage::Plug`]), or a change of the queue's options.
    Plug = 2,
    /// A tag ([`Stage::Tag`]), also one of a remote device.
    Tag = 3,
    /// The elevator, see [`Stage::Scheduler`].
    Scheduler = 4,
    /// The device ([`Stage::Device`]); for a flush also an earlier flush that it cannot join.
    Device = 5,
    /// A limit of bytes or I/Os a second ([`limits`](crate::limits)), before the bio is made.
    Limit = 6,
    /// A request buffer of the front, before the bio is made.
    Buffer = 7,
}

impl WaitKind {
    /// Number of all kinds.
    pub const COUNT: usize = 8;
    /// Every kind, in order.
    pub const ALL: [WaitKind; WaitKind::COUNT] = [
        WaitKind::Cache,
        WaitKind::Dirty,
        WaitKind::Plug,
        WaitKind::Tag,
        WaitKind::Scheduler,
        WaitKind::Device,
        WaitKind::Limit,
        WaitKind::Buffer,
    ];

    /// The name that users see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            WaitKind::Cache => "cache",
            WaitKind::Dirty => "dirty",
            WaitKind::Plug => Stage::Plug.name(),
            WaitKind::Tag => Stage::Tag.name(),
            WaitKind::Scheduler => Stage::Scheduler.name(),
            WaitKind::Device => Stage::Device.name(),
            WaitKind::Limit => "limit",
            WaitKind::Buffer => "buffer",
        }
    }
}

/// The buckets of all waits of a bio, a byte for each kind, the first kind lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes(u64);

impl WaitTimes {
    /// No waits: a cache hit.
    pub const NONE: Self = Self(0);

    /// The histogram bucket of a kind.
    #[inline]
    #[must_use]
    pub const fn bucket(self, wait: WaitKind) -> usize {
        (self.0 >> (8 * wait as u32)) as usize & 0xff
    }

    /// The upper end of the kind's bucket, in nanoseconds.
    #[must_use]
    pub fn at_most(self, wait: WaitKind) -> u64 {
        upper_end(self.bucket(wait))
    }

    /// Whether the bio never waited.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Waits for a limit and for a buffer, in nanoseconds, which only the front knows.
    #[must_use]
    pub fn of_front(limit_ns: u64, buffer_ns: u64) -> Self {
        Self::NONE.plus(WaitKind::Limit, limit_ns).plus(WaitKind::Buffer, buffer_ns)
    }

    /// Adds the waits of the front to those of the shard. They are of other kinds, but for a bio that the shard had before and
    /// returned: of a kind that it waited for both times the longer wait counts.
    #[inline]
    #[must_use]
    pub fn with_front(self, front: Self) -> Self {
        if self.0 == 0 || front.0 == 0 {
            return Self(self.0 | front.0);
        }
        let longer = |wait| (self.bucket(wait).max(front.bucket(wait)) as u64) << (8 * wait as u32);
        Self(WaitKind::ALL.into_iter().fold(0, |all, wait| all | longer(wait)))
    }

    /// The word that is recorded and hashed.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Reads a recorded word; bytes beyond the last bucket are lowered to it.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        // A damaged record may hold anything.
        let bucket = |wait| (word >> (8 * wait as u32) & 0xff).min(BUCKETS as u64 - 1);
        Self(WaitKind::ALL.into_iter().fold(0, |all, wait| all | bucket(wait) << (8 * wait as u32)))
    }

    /// The waits of a completed request, from the buckets of its stages.
    #[inline]
    pub(crate) fn of_request(buckets: [usize; Stage::COUNT]) -> Self {
        let [plug, tag, scheduler, device] = buckets;
        Self((plug << 16 | tag << 24 | scheduler << 32 | device << 40) as u64)
    }

    /// The waits of a request that timed out.
    pub(crate) fn until(stamps: &[Instant; 4], now: Instant) -> Self {
        let ends = [stamps[1], stamps[2], stamps[3], now];
        Self::of_request([0, 1, 2, 3].map(|stage| bucket_of(ends[stage].since(stamps[stage]))))
    }

    /// Adds `ns` to the wait of a kind.
    #[must_use]
    pub(crate) fn plus(self, wait: WaitKind, ns: u64) -> Self {
        if ns == 0 {
            return self;
        }
        let before = self.at_most(wait);
        let shift = 8 * wait as u32;
        Self(self.0 & !(0xff << shift) | (bucket_of(before + ns) as u64) << shift)
    }

    /// Adds the waits of another request: data, then a flush.
    pub(crate) fn and(self, other: Self) -> Self {
        WaitKind::ALL
            .into_iter()
            .filter(|wait| other.bucket(*wait) > 0)
            .fold(self, |sum, wait| sum.plus(wait, other.at_most(wait)))
    }
}

/// The waits of an operation that waits several times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitRecorder {
    since: Instant,
    ns: [u64; WaitKind::COUNT],
    /// The waits of the bio that the operation waits for, once it has completed.
    pub below: WaitTimes,
}

impl WaitRecorder {
    /// Begins a wait at `now`.
    pub fn begin(&mut self, now: Instant) {
        (self.since, self.below) = (now, WaitTimes::NONE);
    }

    /// Ends a wait of the given kind.
    pub fn end(&mut self, now: Instant, wait: WaitKind) {
        self.ns[wait as usize] += now.since(self.since);
    }

    /// Ends a wait for a bio, of whose time perhaps only the end was waited for; splits it by `below`.
    pub fn end_below(&mut self, now: Instant) {
        let mut left = now.since(self.since);
        for wait in [WaitKind::Device, WaitKind::Scheduler, WaitKind::Tag, WaitKind::Plug] {
            let part = left.min(self.below.at_most(wait));
            self.ns[wait as usize] += part;
            left -= part;
        }
        self.ns[WaitKind::Cache as usize] += left;
    }

    /// The waits so far.
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
    fn wait_times_round_trip_through_their_word() {
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
        assert_eq!(most.and(most).bucket(WaitKind::Device), BUCKETS - 1, "a damaged word");
        assert!(WaitTimes::NONE.is_none() && !wait_times.is_none());
        assert_eq!(WaitTimes::NONE.plus(WaitKind::Device, u64::MAX).bucket(WaitKind::Device), 163);
    }

    #[test]
    fn wait_for_a_bio_is_split_from_its_end() {
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
        assert_eq!(late.ns, [0, 0, 0, 0, 0, 3_000_000, 0, 0], "a late waiter saw only the device");
        let long = waited(20_000_000);
        assert_eq!(long.ns.iter().sum::<u64>(), 20_000_000, "the parts add up to the whole wait");
        let queue: u64 = long.ns[2..].iter().sum();
        assert!((8_000_000..=10_000_000).contains(&queue) && long.ns[0] == 20_000_000 - queue);
    }

    #[test]
    fn operation_without_waits_has_no_times() {
        assert_eq!(WaitRecorder::default().wait_times(), WaitTimes::NONE);
        let mut waits = WaitRecorder::default();
        waits.begin(Instant(5));
        waits.end(Instant(5_000_005), WaitKind::Dirty);
        assert_eq!(told(waits.wait_times()), [("dirty", 5242)]);
    }
}
