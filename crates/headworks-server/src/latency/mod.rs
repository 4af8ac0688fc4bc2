//! Histograms of wait times by operation and kind of wait.
//!
//! A connection has a [`LatencyTable`] of 32-bit counts (14 KiB). A completion increments one counter, and one more for
//! each wait that was longer than zero. An export has the [`LatencyTotals`] of closed connections. A report is the sum
//! of both.
//!
//! `total` is the time from the turn in which a request was complete to the turn of its reply, and its wait for limits before.
//! The shard reports the waits ([`WaitTimes`]). The rest of the total was spent in rings between shards, in a queue that changed
//! an option, or in other work of the turn.

pub mod errors;
pub mod exports;
pub mod slow;
pub mod usage;

use headworks_core::stats::{BUCKETS, bucket_of, upper_end};
use headworks_core::{IoError, Op, WaitKind, WaitTimes};

use errors::ErrorCounts;

/// Class of operations with histograms of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyOp {
    /// Reads of data.
    Read = 0,
    /// Writes of data.
    Write = 1,
    /// Flushes, discards, write-zeroes and prefetches.
    Other = 2,
}

impl LatencyOp {
    /// Number of classes of operations.
    pub const COUNT: usize = 3;
    /// All classes in order.
    pub const ALL: [Self; Self::COUNT] = [Self::Read, Self::Write, Self::Other];

    /// Class of an operation.
    #[inline]
    #[must_use]
    pub const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            _ => Self::Other,
        }
    }

    /// Name of the class in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// Rows of a class: the total, then the waits in their order.
pub const ROWS: usize = 1 + WaitKind::COUNT;

/// Name of a row in reports.
#[must_use]
pub fn row_name(row: usize) -> &'static str {
    row.checked_sub(1).map_or("total", |wait| WaitKind::ALL[wait].name())
}

/// Discards, which the class of other operations counts, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardCounts {
    /// Number of completed discards.
    pub requests: u64,
    /// Bytes of their ranges.
    pub bytes: u64,
}

impl DiscardCounts {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
    }
}

/// Counts by class, row and bucket. Waits of zero are not counted; they are the rest of the total row.
type Counts<T> = [[[T; BUCKETS]; ROWS]; LatencyOp::COUNT];

/// Histograms of one connection.
#[derive(Clone, Debug)]
pub struct LatencyTable {
    counts: Box<Counts<u32>>,
    /// Sum of the total times in nanoseconds.
    sum_ns: [u64; LatencyOp::COUNT],
    bytes: [u64; LatencyOp::COUNT],
    discards: DiscardCounts,
    errors: ErrorCounts,
    /// Requests counted since `older` was extended; at 2^32 the counts move there.
    recent: u32,
    older: Option<Box<LatencyTotals>>,
}

impl Default for LatencyTable {
    fn default() -> Self {
        Self {
            counts: Box::new([[[0; BUCKETS]; ROWS]; LatencyOp::COUNT]),
            sum_ns: [0; LatencyOp::COUNT],
            bytes: [0; LatencyOp::COUNT],
            discards: DiscardCounts::default(),
            errors: ErrorCounts::default(),
            recent: 0,
            older: None,
        }
    }
}

const _: () = assert!(size_of::<Counts<u32>>() <= 18 << 10, "a connection is small");

impl LatencyTable {
    /// Counts a completed request.
    #[inline]
    pub fn record(&mut self, kind: LatencyOp, len: u32, total_ns: u64, wait_times: WaitTimes) {
        let rows = &mut self.counts[kind as usize];
        rows[0][bucket_of(total_ns)] += 1;
        if !wait_times.is_none() {
            for wait in WaitKind::ALL {
                let bucket = wait_times.bucket(wait);
                if bucket > 0 {
                    rows[1 + wait as usize][bucket.min(BUCKETS - 1)] += 1;
                }
            }
        }
        self.sum_ns[kind as usize] += total_ns;
        self.bytes[kind as usize] += u64::from(len);
        self.recent += 1;
        if self.recent == u32::MAX {
            self.put_aside();
        }
    }

    /// Counts a completed request of an operation of a class of several.
    #[inline]
    pub fn record_op(&mut self, op: Op, len: u32, total_ns: u64, wait_times: WaitTimes) {
        self.record(LatencyOp::of(op), len, total_ns, wait_times);
        if op == Op::Discard {
            self.discards.add(DiscardCounts { requests: 1, bytes: len.into() });
        }
    }

    /// Counts an error reply.
    pub fn record_error(&mut self, op: Op, error: IoError) {
        self.errors.record(op, error);
    }

    /// Nanoseconds of all requests and bytes of writes, since the counts were moved to `older`.
    #[must_use]
    pub fn recent_sums(&self) -> (u64, u64) {
        (self.sum_ns.iter().sum(), self.bytes[LatencyOp::Write as usize])
    }

    /// Moves the counts to `older` before one can wrap; once in 2^32 requests.
    #[cold]
    fn put_aside(&mut self) {
        let mut older = self.older.take().unwrap_or_default();
        older.add(self);
        *self = Self { older: Some(older), ..Self::default() };
    }
}

/// Histograms of any number of connections.
#[derive(Clone, Debug)]
pub struct LatencyTotals {
    counts: Box<Counts<u64>>,
    sum_ns: [u64; LatencyOp::COUNT],
    bytes: [u64; LatencyOp::COUNT],
    discards: DiscardCounts,
    errors: ErrorCounts,
}

impl Default for LatencyTotals {
    fn default() -> Self {
        Self {
            counts: Box::new([[[0; BUCKETS]; ROWS]; LatencyOp::COUNT]),
            sum_ns: [0; LatencyOp::COUNT],
            bytes: [0; LatencyOp::COUNT],
            discards: DiscardCounts::default(),
            errors: ErrorCounts::default(),
        }
    }
}

impl From<&LatencyTable> for LatencyTotals {
    fn from(table: &LatencyTable) -> Self {
        let mut totals = Self::default();
        totals.add(table);
        totals
    }
}

impl LatencyTotals {
    /// Adds the counts of a connection.
    pub fn add(&mut self, table: &LatencyTable) {
        self.add_up(&table.sum_ns, &table.bytes, |kind, row, bucket| {
            table.counts[kind][row][bucket].into()
        });
        self.discards.add(table.discards);
        self.errors.add(&table.errors);
        if let Some(older) = &table.older {
            self.merge(older);
        }
    }

    /// Adds the counts of other totals.
    pub fn merge(&mut self, other: &Self) {
        self.add_up(&other.sum_ns, &other.bytes, |kind, row, bucket| {
            other.counts[kind][row][bucket]
        });
        self.discards.add(other.discards);
        self.errors.add(&other.errors);
    }

    fn add_up(
        &mut self,
        sum_ns: &[u64; LatencyOp::COUNT],
        bytes: &[u64; LatencyOp::COUNT],
        count: impl Fn(usize, usize, usize) -> u64,
    ) {
        for kind in 0..LatencyOp::COUNT {
            self.sum_ns[kind] += sum_ns[kind];
            self.bytes[kind] += bytes[kind];
            for row in 0..ROWS {
                for bucket in 0..BUCKETS {
                    self.counts[kind][row][bucket] += count(kind, row, bucket);
                }
            }
        }
    }

    /// Number of requests of a class.
    #[must_use]
    pub fn requests(&self, kind: LatencyOp) -> u64 {
        self.counts[kind as usize][0].iter().sum()
    }

    /// Bytes of requests of a class.
    #[must_use]
    pub fn bytes(&self, kind: LatencyOp) -> u64 {
        self.bytes[kind as usize]
    }

    /// Error replies by operation and error.
    #[must_use]
    pub fn errors(&self) -> &ErrorCounts {
        &self.errors
    }

    /// Number and bytes of completed discards.
    #[must_use]
    pub fn discards(&self) -> DiscardCounts {
        self.discards
    }

    /// Requests that had one of these waits, and the sum of the waits in nanoseconds, estimated from the buckets.
    #[must_use]
    pub fn waited(&self, waits: &[WaitKind]) -> (u64, u64) {
        let (mut requests, mut ns) = (0, 0);
        for (kind, wait) in
            LatencyOp::ALL.iter().flat_map(|kind| waits.iter().map(move |wait| (kind, wait)))
        {
            let counts = self.counts[*kind as usize][1 + *wait as usize];
            requests += counts.iter().sum::<u64>();
            ns += Histogram { counts }.about_ns();
        }
        (requests, ns)
    }

    /// Sum of the total times in nanoseconds, measured exactly.
    #[must_use]
    pub fn sum_ns(&self, kind: LatencyOp) -> u64 {
        self.sum_ns[kind as usize]
    }

    /// Histogram of a row, with waits of zero in the first bucket.
    #[must_use]
    pub fn row(&self, kind: LatencyOp, row: usize) -> Histogram {
        let mut counts = self.counts[kind as usize][row];
        if row > 0 {
            counts[0] += self.requests(kind) - counts.iter().sum::<u64>();
        }
        Histogram { counts }
    }
}

/// A histogram of durations.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// Adds the durations of another one.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }

    /// The durations counted since `before`; none where a count began anew.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut counts = self.counts;
        counts.iter_mut().zip(&before.counts).for_each(|(count, was)| {
            *count = count.saturating_sub(*was);
        });
        Self { counts }
    }

    /// Number of durations in it.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Whether all durations are zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.counts[1..].iter().all(|count| *count == 0)
    }

    /// Upper bound in nanoseconds of the shortest `per_mille` of 1000 durations; 0 if there are none.
    #[must_use]
    pub fn percentile(&self, per_mille: u64) -> u64 {
        let rank = (self.count() * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (end, count) in self.buckets() {
            seen += count;
            if seen >= rank {
                return end;
            }
        }
        0
    }

    /// Upper bound of the highest bucket in use.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.buckets().last().map_or(0, |(end, _)| end)
    }

    /// Buckets in use: upper bound in nanoseconds, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.counts.iter().enumerate();
        all.filter(|(_, count)| **count > 0).map(|(bucket, count)| (upper_end(bucket), *count))
    }

    /// Estimated sum in nanoseconds, from the middles of the buckets.
    #[must_use]
    pub fn about_ns(&self) -> u64 {
        let mut before = 0;
        let mut sum = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            let end = upper_end(bucket);
            sum += count * ((before + end) / 2);
            before = end;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_times(device_ns: u64) -> WaitTimes {
        WaitTimes::from_word((bucket_of(device_ns) as u64) << (8 * WaitKind::Device as u32))
    }

    #[test]
    fn zero_waits_are_counted_in_every_row() {
        let mut table = LatencyTable::default();
        (0..90).for_each(|_| table.record(LatencyOp::Read, 4096, 1_000, WaitTimes::NONE));
        (0..10).for_each(|_| table.record(LatencyOp::Read, 4096, 5_000_000, wait_times(5_000_000)));
        table.record(LatencyOp::Other, 0, 7, WaitTimes::NONE);
        let mut totals = LatencyTotals::default();
        totals.add(&table);
        for row in 0..ROWS {
            let counts = totals.row(LatencyOp::Read, row);
            assert_eq!(counts.count(), 100, "{}", row_name(row));
            assert_eq!(counts.is_zero(), !["total", "device"].contains(&row_name(row)));
        }
        let device = totals.row(LatencyOp::Read, 1 + WaitKind::Device as usize);
        assert_eq!((device.percentile(500), device.percentile(900)), (0, 0));
        assert_eq!((device.percentile(910), device.max()), (5_242_879, 5_242_879));
        assert_eq!(totals.row(LatencyOp::Read, 0).percentile(500), 1023);
        assert_eq!(totals.sum_ns(LatencyOp::Read), 90 * 1_000 + 10 * 5_000_000);
        assert_eq!(
            (totals.bytes(LatencyOp::Read), totals.requests(LatencyOp::Write)),
            (409_600, 0)
        );
        assert_eq!(totals.requests(LatencyOp::Other), 1);
        let (waited, ns) = totals.waited(&[WaitKind::Device, WaitKind::Tag]);
        assert!(waited == 10 && ns.abs_diff(50_000_000) < 5_000_000, "{waited} {ns}");
        assert_eq!(totals.waited(&[WaitKind::Tag]), (0, 0));
    }

    #[test]
    fn discards_are_counted_beside_others() {
        let mut table = LatencyTable::default();
        for (op, len) in [(Op::Discard, 8192), (Op::Flush, 0), (Op::Discard, 512)] {
            table.record_op(op, len, 1, WaitTimes::NONE);
        }
        let mut totals = LatencyTotals::from(&table);
        totals.merge(&totals.clone());
        assert_eq!(totals.discards(), DiscardCounts { requests: 4, bytes: 2 * 8704 });
        assert_eq!(totals.requests(LatencyOp::Other), 6);
    }

    #[test]
    fn counts_do_not_wrap_on_long_connections() {
        let mut table = LatencyTable::default();
        table.record(LatencyOp::Write, 1, 4, WaitTimes::NONE);
        table.recent = u32::MAX - 1;
        table.record(LatencyOp::Write, 1, 4, WaitTimes::NONE);
        assert_eq!((table.recent, table.counts[1][0][4]), (0, 0));
        table.record(LatencyOp::Write, 1, 4, WaitTimes::NONE);
        let mut totals = LatencyTotals::default();
        totals.add(&table);
        assert_eq!((totals.requests(LatencyOp::Write), totals.bytes(LatencyOp::Write)), (3, 3));
    }
}
