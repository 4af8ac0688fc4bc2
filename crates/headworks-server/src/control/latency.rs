//! Wait times in answers: percentiles for `stats`, all buckets for `histograms`.
//!
//! Times are in microseconds and are upper bounds of buckets: at most 19 % too high.

use std::collections::BTreeMap;

use headworks_control::answers::{OpHistogram, OpHistograms, Percentiles};
use headworks_core::Op;

use crate::observe::latency::{Histogram, LatencyTotals, ROWS, request_name, row_name};

/// Converts nanoseconds to microseconds.
pub fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Times by stage.
type Stages = BTreeMap<String, Percentiles>;

fn percentiles(row: &Histogram) -> Percentiles {
    Percentiles {
        count: row.count(),
        p50_us: micros(row.percentile(500)),
        p90_us: micros(row.percentile(900)),
        p99_us: micros(row.percentile(990)),
        p999_us: micros(row.percentile(999)),
        max_us: micros(row.max()),
    }
}

/// A value for each operation that occurred.
fn by_kind<T>(totals: &LatencyTotals, of: impl Fn(Op) -> T) -> BTreeMap<String, T> {
    let happened = Op::ALL.into_iter().filter(|kind| totals.requests(*kind) > 0);
    happened.map(|kind| (request_name(kind).to_owned(), of(kind))).collect()
}

/// Percentiles of an export: every row of each operation.
pub fn summary(totals: &LatencyTotals) -> BTreeMap<String, Stages> {
    by_kind(totals, |kind| {
        let row = |row: usize| (row_name(row).to_owned(), percentiles(&totals.row(kind, row)));
        (0..ROWS).map(row).collect()
    })
}

/// Percentiles of a connection: the total, and waits longer than zero.
pub fn compact(totals: &LatencyTotals) -> BTreeMap<String, Stages> {
    by_kind(totals, |kind| {
        let rows = (0..ROWS).map(|row| (row, totals.row(kind, row)));
        let told = rows.filter(|(row, counts)| *row == 0 || !counts.is_zero());
        told.map(|(row, counts)| (row_name(row).to_owned(), percentiles(&counts))).collect()
    })
}

/// All buckets in use as `[upper bound in us, count]`, ascending.
pub fn histograms(totals: &LatencyTotals) -> OpHistograms {
    by_kind(totals, |kind| {
        let buckets = |row: usize| {
            let counts = totals.row(kind, row);
            let pairs = counts.buckets().map(|(end, count)| (micros(end), count));
            (row_name(row).to_owned(), pairs.collect())
        };
        OpHistogram {
            count: totals.requests(kind),
            bytes: totals.bytes(kind),
            sum_us: micros(totals.sum_ns(kind)),
            stages: (0..ROWS).map(buckets).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::latency::LatencyTable;
    use headworks_core::WaitTimes;

    #[test]
    fn unused_operations_and_stages_are_omitted() {
        let (mut table, mut totals) = (LatencyTable::default(), LatencyTotals::default());
        (0..99).for_each(|_| table.record(Op::Read, 4096, 1_000, WaitTimes::NONE));
        table.record(Op::Read, 4096, 5_000_000, WaitTimes::NONE);
        totals.add(&table);
        let summary = summary(&totals);
        assert_eq!(summary.len(), 1);
        let total = &summary["read"]["total"];
        assert_eq!((total.count, total.p99_us, total.max_us), (100, 1.023, 5242.879));
        assert_eq!(summary["read"]["device"].count, 100);
        assert_eq!(compact(&totals)["read"].len(), 1);
        let read = &histograms(&totals)["read"];
        assert_eq!(read.stages["total"], [(1.023, 99), (5242.879, 1)]);
        assert_eq!(read.stages["dirty"], [(0.0, 100)]);
        assert_eq!((read.sum_us, read.bytes), (5099.0, 409_600));
    }
}
