//! Histograms of wait times by operation and kind of wait.
//!
//! A connection has a [`LatencyTable`] of 32-bit counts: 6 KiB for each operation that it uses, from its first request on, so that each
//! operation has histograms of its own. A completion increments one counter, and one more for each wait that was longer than zero. An export has the [`LatencyTotals`] of closed connections. A report is the sum
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
use headworks_core::{Op, WaitKind, WaitTimes};

use errors::{ErrorCounts, ErrorReply};

/// Name of clients' requests of an operation in reports: NBD's words, where those of block devices differ.
#[must_use]
pub const fn request_name(op: Op) -> &'static str {
    match op {
        Op::Discard => "trim",
        Op::WriteZeroes => "zero",
        op => op.name(),
    }
}

/// Rows of an operation: the total, then the waits in their order.
pub const ROWS: usize = 1 + WaitKind::COUNT;

/// Name of a row in reports.
#[must_use]
pub fn row_name(row: usize) -> &'static str {
    row.checked_sub(1).map_or("total", |wait| WaitKind::ALL[wait].name())
}

/// Counts by row and bucket. Waits of zero are not counted; they are the rest of the total row.
type Rows<T> = [[T; BUCKETS]; ROWS];

/// Counts of each operation; none of one that did not occur.
type Counts<T> = [Option<Box<Rows<T>>>; Op::COUNT];

/// The counts of an operation, which exist from its first request on.
#[inline]
fn rows_of<T: Copy + Default>(counts: &mut Counts<T>, op: usize) -> &mut Rows<T> {
    #[cold]
    fn empty<T: Copy + Default>() -> Box<Rows<T>> {
        Box::new([[T::default(); BUCKETS]; ROWS])
    }
    counts[op].get_or_insert_with(empty)
}

/// The lowest bucket of the device that is in use, without the one of requests that were not there.
fn fastest_in_device<T: Copy + Into<u64>>(counts: &Counts<T>, op: Op) -> Option<u64> {
    let row = &counts[op as usize].as_ref()?[1 + WaitKind::Device as usize];
    let first = row[1..].iter().position(|count| (*count).into() > 0)?;
    Some(upper_end(1 + first))
}

/// Histograms of one connection.
#[derive(Clone, Debug, Default)]
pub struct LatencyTable {
    counts: Counts<u32>,
    /// Sum of the total times in nanoseconds.
    sum_ns: [u64; Op::COUNT],
    bytes: [u64; Op::COUNT],
    errors: ErrorCounts,
    /// Requests counted since `older` was extended; at 2^32 the counts move there.
    recent: u32,
    older: Option<Box<LatencyTotals>>,
}

const _: () = assert!(size_of::<Rows<u32>>() <= 6 << 10, "a connection is small");

impl LatencyTable {
    /// Counts a completed request.
    #[inline]
    pub fn record(&mut self, op: Op, len: u32, total_ns: u64, wait_times: WaitTimes) {
        let rows = rows_of(&mut self.counts, op as usize);
        rows[0][bucket_of(total_ns)] += 1;
        if !wait_times.is_none() {
            for wait in WaitKind::ALL {
                let bucket = wait_times.bucket(wait);
                if bucket > 0 {
                    rows[1 + wait as usize][bucket.min(BUCKETS - 1)] += 1;
                }
            }
        }
        self.sum_ns[op as usize] += total_ns;
        self.bytes[op as usize] += u64::from(len);
        self.recent += 1;
        if self.recent == u32::MAX {
            self.put_aside();
        }
    }

    /// The smallest time that a request of an operation was in the device.
    #[must_use]
    pub fn fastest_in_device(&self, op: Op) -> Option<u64> {
        fastest_in_device(&self.counts, op)
    }

    /// Counts an error reply.
    pub fn record_error(&mut self, reply: ErrorReply) {
        self.errors.record(reply);
    }

    /// Whether it had an error reply.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors.total() > 0 || self.older.as_ref().is_some_and(|older| older.errors.total() > 0)
    }

    /// Adds the error replies of the connection to those of others.
    pub fn add_errors_to(&self, sum: &mut ErrorCounts) {
        sum.add(&self.errors);
        self.older.iter().for_each(|older| sum.add(&older.errors));
    }

    /// Number of completed requests of an operation.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        let recent: u64 =
            self.counts[op as usize].iter().flat_map(|rows| rows[0]).map(u64::from).sum();
        recent + self.older.as_ref().map_or(0, |older| older.requests(op))
    }

    /// Nanoseconds of all requests and bytes of writes, since the counts were moved to `older`.
    #[must_use]
    pub fn recent_sums(&self) -> (u64, u64) {
        (self.sum_ns.iter().sum(), self.bytes[Op::Write as usize])
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
#[derive(Clone, Debug, Default)]
pub struct LatencyTotals {
    counts: Counts<u64>,
    sum_ns: [u64; Op::COUNT],
    bytes: [u64; Op::COUNT],
    errors: ErrorCounts,
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
        self.add_up(&table.counts, &table.sum_ns, &table.bytes);
        self.errors.add(&table.errors);
        if let Some(older) = &table.older {
            self.merge(older);
        }
    }

    /// Adds the counts of other totals.
    pub fn merge(&mut self, other: &Self) {
        self.add_up(&other.counts, &other.sum_ns, &other.bytes);
        self.errors.add(&other.errors);
    }

    fn add_up<T: Copy + Into<u64>>(
        &mut self,
        counts: &Counts<T>,
        sum_ns: &[u64; Op::COUNT],
        bytes: &[u64; Op::COUNT],
    ) {
        for (op, more) in counts.iter().enumerate() {
            let Some(more) = more else { continue };
            self.sum_ns[op] += sum_ns[op];
            self.bytes[op] += bytes[op];
            let rows = rows_of(&mut self.counts, op);
            for (sum, count) in rows.as_flattened_mut().iter_mut().zip(more.as_flattened()) {
                *sum += (*count).into();
            }
        }
    }

    /// The counts of a row of an operation.
    fn counts(&self, op: Op, row: usize) -> [u64; BUCKETS] {
        self.counts[op as usize].as_ref().map_or([0; BUCKETS], |rows| rows[row])
    }

    /// Number of requests of an operation.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.counts(op, 0).iter().sum()
    }

    /// Bytes of requests of an operation.
    #[must_use]
    pub fn bytes(&self, op: Op) -> u64 {
        self.bytes[op as usize]
    }

    /// Error replies by operation and error.
    #[must_use]
    pub fn errors(&self) -> &ErrorCounts {
        &self.errors
    }

    /// Requests that had one of these waits, and the sum of the waits in nanoseconds, estimated from the buckets.
    #[must_use]
    pub fn waited(&self, waits: &[WaitKind]) -> (u64, u64) {
        let (mut requests, mut ns) = (0, 0);
        for (op, wait) in Op::ALL.iter().flat_map(|op| waits.iter().map(move |wait| (op, wait))) {
            let counts = self.counts(*op, 1 + *wait as usize);
            requests += counts.iter().sum::<u64>();
            ns += Histogram { counts }.about_ns();
        }
        (requests, ns)
    }

    /// The smallest time that a request of an operation was in the device.
    #[must_use]
    pub fn fastest_in_device(&self, op: Op) -> Option<u64> {
        fastest_in_device(&self.counts, op)
    }

    /// Sum of the total times in nanoseconds, measured exactly.
    #[must_use]
    pub fn sum_ns(&self, op: Op) -> u64 {
        self.sum_ns[op as usize]
    }

    /// Histogram of a row, with waits of zero in the first bucket.
    #[must_use]
    pub fn row(&self, op: Op, row: usize) -> Histogram {
        let mut counts = self.counts(op, row);
        if row > 0 {
            counts[0] += self.requests(op) - counts.iter().sum::<u64>();
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

impl From<&headworks_core::stats::Histogram> for Histogram {
    fn from(of: &headworks_core::stats::Histogram) -> Self {
        Self { counts: *of.counts() }
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
        (0..90).for_each(|_| table.record(Op::Read, 4096, 1_000, WaitTimes::NONE));
        (0..10).for_each(|_| table.record(Op::Read, 4096, 5_000_000, wait_times(5_000_000)));
        table.record(Op::Flush, 0, 7, WaitTimes::NONE);
        let mut totals = LatencyTotals::default();
        totals.add(&table);
        for row in 0..ROWS {
            let counts = totals.row(Op::Read, row);
            assert_eq!(counts.count(), 100, "{}", row_name(row));
            assert_eq!(counts.is_zero(), !["total", "device"].contains(&row_name(row)));
        }
        let device = totals.row(Op::Read, 1 + WaitKind::Device as usize);
        assert_eq!((device.percentile(500), device.percentile(900)), (0, 0));
        assert_eq!((device.percentile(910), device.max()), (5_242_879, 5_242_879));
        assert_eq!(totals.row(Op::Read, 0).percentile(500), 1023);
        assert_eq!(totals.sum_ns(Op::Read), 90 * 1_000 + 10 * 5_000_000);
        assert_eq!((totals.bytes(Op::Read), totals.requests(Op::Write)), (409_600, 0));
        assert_eq!(totals.requests(Op::Flush), 1);
        let (waited, ns) = totals.waited(&[WaitKind::Device, WaitKind::Tag]);
        assert!(waited == 10 && ns.abs_diff(50_000_000) < 5_000_000, "{waited} {ns}");
        assert_eq!(totals.waited(&[WaitKind::Tag]), (0, 0));
    }

    #[test]
    fn each_operation_is_counted_apart() {
        let mut table = LatencyTable::default();
        for op in Op::ALL {
            table.record(op, 512, 1_000 << op as u32, wait_times(1_000));
        }
        assert_eq!(
            LatencyTable::default().counts.iter().flatten().count(),
            0,
            "memory of an operation"
        );
        let mut totals = LatencyTotals::from(&table);
        totals.merge(&totals.clone());
        for op in Op::ALL {
            assert_eq!((totals.requests(op), totals.bytes(op)), (2, 1024), "{}", request_name(op));
            assert_eq!(totals.sum_ns(op), 2_000 << op as u32);
            assert_eq!(totals.row(op, 0).max(), upper_end(bucket_of(1_000 << op as u32)));
        }
        let names = Op::ALL.map(request_name);
        assert_eq!(names[..5], ["read", "write", "flush", "trim", "zero"]);
        assert_eq!(names, headworks_control::param::RequestOp::ALL);
    }

    #[test]
    fn counts_do_not_wrap_on_long_connections() {
        let mut table = LatencyTable::default();
        table.record(Op::Write, 1, 4, WaitTimes::NONE);
        table.recent = u32::MAX - 1;
        table.record(Op::Write, 1, 4, WaitTimes::NONE);
        assert_eq!((table.recent, table.counts.iter().flatten().count()), (0, 0));
        table.record(Op::Write, 1, 4, WaitTimes::NONE);
        let mut totals = LatencyTotals::default();
        totals.add(&table);
        assert_eq!((totals.requests(Op::Write), totals.bytes(Op::Write)), (3, 3));
    }
}
