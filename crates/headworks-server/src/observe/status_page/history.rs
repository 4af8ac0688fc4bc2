//! The last ten minutes of a server, kept only while its status page is open.
//!
//! ```text
//!   asleep --look--> watching: a sample each second --ten minutes without a look--> asleep, everything freed
//! ```
//!
//! A sample is the growth of the counters between two snapshots; the first snapshot has none. It has a row for each export that did
//! something, at most [`ROWS_MAX`]: beyond that the largest, and one row for all others together.
//!
//! Bounds: 600 samples of at most 65 rows of 176 bytes, 7 MB; one snapshot, 3.1 KB for each export. With many exports samples are
//! further apart, a second for each 256 exports, and reach back further.
//!
//! Invariant: samples have ascending numbers, which are never given twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::snapshot::{CacheLoad, ExportCounters, PARTS, Snapshot};

/// Samples that are kept: ten minutes.
const SAMPLES_MAX: usize = 600;
/// Exports with a row of their own in a sample.
pub const ROWS_MAX: usize = 64;
/// Time between two samples with up to [`EXPORTS_EACH`] exports.
const INTERVAL: Duration = Duration::from_secs(1);
/// Exports for which a second is added to the time between two samples: their counters are copied in 4 ms of the shards' time.
const EXPORTS_EACH: usize = 256;
/// Time after the last look until sampling ends.
const WATCHED: Duration = Duration::from_secs(600);
/// Pause after a failed sample; its queries may have waited for 5 s.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// What an export did between two snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleRow {
    /// Name of the export; empty for the others together.
    pub export: Arc<str>,
    /// Completed reads, and their bytes.
    pub reads: (u64, u64),
    /// Completed writes, and their bytes.
    pub writes: (u64, u64),
    /// Error replies of all operations.
    pub errors: u64,
    /// Nanoseconds of its requests in the device.
    pub device_ns: u64,
    /// Median of reads and writes in nanoseconds; of the others together the longest one.
    pub p50_ns: u64,
    /// 99th percentile of reads and writes, likewise.
    pub p99_ns: u64,
    /// Number of completed flushes.
    pub flushes: u64,
    /// 99th percentile of flushes, as of reads and writes.
    pub flush_p99_ns: u64,
    /// Completed requests of all operations.
    pub requests: u64,
    /// Nanoseconds of all requests in each part of their time.
    pub parts_ns: [u64; PARTS],
}

impl SampleRow {
    fn between(export: &Arc<str>, old: Option<&ExportCounters>, new: &ExportCounters) -> Self {
        let none = ExportCounters::default();
        let old = old.unwrap_or(&none);
        let grown = |new: (u64, u64), old: (u64, u64)| {
            (new.0.saturating_sub(old.0), new.1.saturating_sub(old.1))
        };
        let mut parts_ns = new.parts_ns;
        for (part, was) in parts_ns.iter_mut().zip(&old.parts_ns) {
            *part = part.saturating_sub(*was);
        }
        let times = new.times.since(&old.times);
        Self {
            export: Arc::clone(export),
            reads: grown(new.reads, old.reads),
            writes: grown(new.writes, old.writes),
            errors: new.errors.saturating_sub(old.errors),
            device_ns: new.device_ns.saturating_sub(old.device_ns),
            p50_ns: times.percentile(500),
            p99_ns: times.percentile(990),
            flushes: new.flushes.saturating_sub(old.flushes),
            flush_p99_ns: new.flush_times.since(&old.flush_times).percentile(990),
            requests: new.requests.saturating_sub(old.requests),
            parts_ns,
        }
    }

    /// Whether anything happened.
    fn is_idle(&self) -> bool {
        self.requests + self.errors + self.device_ns == 0
    }

    /// What makes it larger than others: requests, then time in the device.
    fn weight(&self) -> (u64, u64) {
        (self.requests, self.device_ns)
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.reads, other.reads), (&mut self.writes, other.writes)] {
            sum.0 += more.0;
            sum.1 += more.1;
        }
        self.errors += other.errors;
        self.device_ns += other.device_ns;
        self.p50_ns = self.p50_ns.max(other.p50_ns);
        self.p99_ns = self.p99_ns.max(other.p99_ns);
        self.flushes += other.flushes;
        self.flush_p99_ns = self.flush_p99_ns.max(other.flush_p99_ns);
        self.requests += other.requests;
        self.parts_ns.iter_mut().zip(&other.parts_ns).for_each(|(sum, more)| *sum += more);
    }
}

/// What happened between two snapshots.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Number of the sample, from 1.
    pub number: u64,
    /// Seconds from the server's start to the end of the sample.
    pub at: f64,
    /// Seconds that it covers.
    pub seconds: f64,
    /// The page cache at its end.
    pub cache: Option<CacheLoad>,
    /// Exports that did something, the largest first.
    pub rows: Vec<SampleRow>,
    /// All exports without a row of their own, together.
    pub others: Option<SampleRow>,
}

/// The samples of the last ten minutes, and when the next one is due.
#[derive(Debug, Default)]
pub struct History {
    /// When the page last asked for data; none while asleep.
    looked: Option<Instant>,
    /// When the next sample is due; none while asleep.
    due: Option<Instant>,
    /// Samples made so far.
    made: u64,
    samples: VecDeque<Sample>,
    latest: Option<Snapshot>,
}

impl History {
    /// A page asks: sampling goes on for ten minutes. True if a sample is to be taken at once.
    #[must_use]
    pub fn look(&mut self, now: Instant) -> bool {
        self.looked = Some(now);
        let due = *self.due.get_or_insert(now);
        due <= now
    }

    /// When [`History::on_timeout`] has something to do; none while asleep.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// True if a sample is to be taken. Ten minutes after the last look there is none, and everything is freed.
    #[must_use]
    pub fn on_timeout(&mut self, now: Instant) -> bool {
        if self.looked.is_some_and(|looked| now >= looked + WATCHED) {
            *self = Self { made: self.made, ..Self::default() };
        }
        self.due.is_some_and(|due| due <= now)
    }

    /// No snapshot was to be had; the next one is tried after a pause.
    pub fn on_failure(&mut self, now: Instant) {
        self.due = Some(now + FAILURE_PAUSE);
    }

    /// Adds what happened since the snapshot before.
    pub fn on_snapshot(&mut self, now: Instant, snapshot: Snapshot) {
        let apart = snapshot.exports.len().div_ceil(EXPORTS_EACH).max(1) as u32;
        self.due = Some(now + INTERVAL * apart);
        if let Some(before) = &self.latest {
            let (rows, others) = rows_between(before, &snapshot);
            self.made += 1;
            if self.samples.len() == SAMPLES_MAX {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample {
                number: self.made,
                at: snapshot.uptime,
                seconds: snapshot.uptime - before.uptime,
                cache: snapshot.cache,
                rows,
                others,
            });
        }
        self.latest = Some(snapshot);
    }

    /// The snapshot that was taken last.
    pub fn latest(&self) -> Option<&Snapshot> {
        self.latest.as_ref()
    }

    /// The sample that was made last.
    pub fn last(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// Samples with numbers above `after`; all of them if that number was not given yet.
    pub fn samples_after(&self, after: u64) -> impl Iterator<Item = &Sample> {
        let after = if after > self.made { 0 } else { after };
        self.samples.iter().filter(move |sample| sample.number > after)
    }
}

/// Rows of the exports that did something, the largest first, and of all others together.
fn rows_between(old: &Snapshot, new: &Snapshot) -> (Vec<SampleRow>, Option<SampleRow>) {
    let before: BTreeMap<&str, &ExportCounters> =
        old.exports.iter().map(|export| (&*export.name, &export.counters)).collect();
    let mut rows: Vec<SampleRow> = new
        .exports
        .iter()
        .map(|export| {
            let before = before.get(&*export.name).copied();
            SampleRow::between(&export.name, before, &export.counters)
        })
        .filter(|row| !row.is_idle())
        .collect();
    rows.sort_by(|a, b| b.weight().cmp(&a.weight()).then_with(|| a.export.cmp(&b.export)));
    let others = rows.split_off(rows.len().min(ROWS_MAX)).into_iter().reduce(|mut sum, row| {
        sum.add(&row);
        sum
    });
    (rows, others.map(|others| SampleRow { export: "".into(), ..others }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::latency::LatencyTable;
    use crate::observe::latency::LatencyTotals;
    use crate::observe::status_page::snapshot::ExportRow;
    use headworks_core::{Op, WaitTimes};

    fn export(name: &str, reads: u64) -> ExportRow {
        let mut table = LatencyTable::default();
        // The last ten are slow.
        for index in 0..reads {
            let ns = if index + 10 < reads { 1_000 } else { 5_000_000 };
            table.record(Op::Read, 4096, ns, WaitTimes::NONE);
        }
        let times = LatencyTotals::from(&table).row(Op::Read, 0);
        let counters = ExportCounters {
            reads: (reads, reads * 4096),
            requests: reads,
            times,
            ..ExportCounters::default()
        };
        ExportRow {
            name: name.into(),
            tenant: None,
            device: None,
            state: "serving",
            facts: Default::default(),
            clients: 0,
            oldest: None,
            counters,
        }
    }

    fn snapshot(uptime: f64, exports: Vec<ExportRow>) -> Snapshot {
        Snapshot { uptime, exports, ..Snapshot::default() }
    }

    #[test]
    fn sampling_starts_with_a_look_and_ends_ten_minutes_after_the_last() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut history = History::default();
        assert_eq!(history.next_timeout(), None, "nothing is due while nobody looks");
        assert!(!history.on_timeout(at(5)));
        assert!(history.look(at(10)), "the first look takes a sample");
        history.on_snapshot(at(10), snapshot(10.0, vec![export("a", 1)]));
        assert!(!history.look(at(10)) && history.next_timeout() == Some(at(11)));
        let mut taken = 0;
        for second in 11..700 {
            if history.on_timeout(at(second)) {
                taken += 1;
                history.on_snapshot(at(second), snapshot(second as f64, vec![export("a", second)]));
            }
        }
        assert_eq!((taken, history.next_timeout()), (599, None));
        assert!(history.latest().is_none() && history.samples_after(0).count() == 0);
        // Numbers go on, so a page that was away gets what is new.
        assert!(history.look(at(800)));
        for second in 800..802 {
            history.on_snapshot(at(second), snapshot(second as f64, Vec::new()));
        }
        let numbers: Vec<u64> = history.samples_after(599).map(|sample| sample.number).collect();
        assert_eq!(numbers, [600]);
    }

    #[test]
    fn rows_are_the_growth_between_two_snapshots() {
        let (mut history, now) = (History::default(), Instant::now());
        history.on_snapshot(now, snapshot(1.0, vec![export("a", 100), export("idle", 7)]));
        assert_eq!(history.samples_after(0).count(), 0, "the first snapshot has no growth");
        // One export is new, another one began anew under its name.
        let next = vec![export("a", 150), export("idle", 7), export("new", 20)];
        history.on_snapshot(now, snapshot(3.0, next));
        history.on_snapshot(now, snapshot(4.0, vec![export("a", 5)]));
        let all: Vec<&Sample> = history.samples_after(0).collect();
        assert_eq!((all[0].number, all[0].at, all[0].seconds), (1, 3.0, 2.0));
        let found: Vec<_> = all[0].rows.iter().map(|row| (&*row.export, row.reads)).collect();
        assert_eq!(found, [("a", (50, 204_800)), ("new", (20, 81_920))]);
        // The slow ones were slow before: what is new of `a` is fast.
        assert_eq!((all[0].rows[0].p99_ns, all[0].rows[1].p99_ns), (1023, 5_242_879));
        assert!(all[1].rows.is_empty() && all[1].others.is_none());
        assert_eq!(history.samples_after(1).count(), 1);
        assert_eq!(history.samples_after(9).count(), 2, "a number of another server");
    }

    #[test]
    fn small_exports_share_a_row_and_many_are_sampled_less_often() {
        let (mut history, now) = (History::default(), Instant::now());
        let all = |reads: u64| (0..300).map(|n| export(&format!("e{n}"), n * reads)).collect();
        history.on_snapshot(now, snapshot(1.0, all(0)));
        history.on_snapshot(now, snapshot(2.0, all(1)));
        assert_eq!(history.next_timeout(), Some(now + 2 * INTERVAL));
        let sample = history.samples_after(0).next().unwrap();
        assert_eq!((sample.rows.len(), sample.rows[0].reads.0), (ROWS_MAX, 299));
        let others = sample.others.as_ref().unwrap();
        assert_eq!((&*others.export, others.reads.0), ("", (0..300 - 64).sum()));
    }

    #[test]
    fn samples_are_bounded_and_failures_are_tried_again_later() {
        let (mut history, now) = (History::default(), Instant::now());
        for second in 0..=SAMPLES_MAX as u64 + 50 {
            history.on_snapshot(now, snapshot(second as f64, vec![export("a", second)]));
        }
        assert_eq!(history.samples_after(0).count(), SAMPLES_MAX);
        assert_eq!(history.samples_after(0).next().unwrap().number, 51);
        assert!(history.look(now + INTERVAL));
        history.on_failure(now);
        assert!(!history.on_timeout(now + INTERVAL) && !history.look(now + INTERVAL));
        assert!(history.on_timeout(now + FAILURE_PAUSE));
    }

    #[test]
    fn row_has_the_size_that_the_bound_states() {
        assert_eq!(size_of::<SampleRow>(), 176);
    }
}
