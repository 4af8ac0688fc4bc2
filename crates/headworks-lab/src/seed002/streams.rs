//! Drop-behind streams (`cache=stream`) beside the figures of Linux's uncached buffered I/O.
//!
//! RWF_DONTCACHE, v6 of May 2026: a buffered writer and a drop-behind one beside each other get 433 MB/s each, together 866 where one
//! alone gets 1284; a buffered stream of twice the memory gets 575 MB/s of 1374 (Linux 6.19, XFS). Here:
//!
//! ```text
//!   beside    two streams of writes to two volumes of one device, cached and drop-behind: the shares, and the sum over the better alone
//!   through   a stream of eight times the cache through it, over the same stream without a cache; and p99.9 of its requests
//!   twice     a stream of twice the cache with plain write-back, for comparison
//!   reader    random reads of half a cache, nearly all of it cached before, beside a stream of writes or reads, in both modes
//! ```
//!
//! The stream's requests are of 1 MiB, one at a time. A device has a bandwidth and a price of every change of stream.

use headworks_core::writeback::DirtyOptions;
use headworks_core::{ConfigError, Instant, QueueOptions, WriteMode};
use headworks_disks::StreamProfile;

use super::cache_harness::{CacheHarness, CacheHarnessOptions, CaseOutcome};
use super::writer::{WritePattern, WriterOptions};
use crate::baseline::TagPolicy;
use crate::baseline::foreground::Throttling;
use crate::report::{Goal, Row, SETTINGS, Verdict};

/// Bytes of a request of a stream.
const REQUEST: u32 = 1 << 20;
/// Bytes of the cache.
const POOL: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SEC: u64 = 1_000_000_000;
/// The devices: bytes a second, and the price of a change of stream in nanoseconds. The first is that of Linux's figures.
const DEVICES: [(u64, u64); 3] =
    [(1_284_000_000, 20_000), (700_000_000, 20_000), (60_000_000, 8_000_000)];
/// Bytes that the reader reads at random: a half of the cache, which it could keep.
const WORKING_SET: u64 = POOL / 2;
/// Linux's sum of two writers over the better one alone, and a stream of twice the memory over direct I/O.
const LINUX_SUM: f64 = 866.0 / 1284.0;
const LINUX_TWICE: f64 = 575.0 / 1374.0;
/// Goals: shares of equal streams, their sum, a stream through a small cache, and its waits in milliseconds.
const SHARE: (f64, f64) = (0.48, 0.52);
const SUM: f64 = 0.97;
const THROUGH: f64 = 0.95;
const WAIT_MS: f64 = 30.0;
/// Bytes of the largest folio, which one command or a few in a row fill.
const FOLIO: f64 = 2_097_152.0;
/// Bytes a second of a device on which the working set is read at random in some seconds: a disk takes 20 minutes for it.
const READERS: u64 = 500_000_000;

/// A run: its name, the modes of its volumes, and the clients.
struct StreamRun {
    case: &'static str,
    /// What tells runs of a case apart.
    what: String,
    modes: Vec<WriteMode>,
    clients: Vec<WriterOptions>,
    ramp_ns: u64,
    runtime_ns: u64,
}

fn client(volume: u16, manner: WritePattern, bytes: u64) -> WriterOptions {
    WriterOptions { manner, ..WriterOptions::dd(volume, REQUEST, 0, bytes) }
}

/// The runs on a device of `bandwidth`.
fn runs(bandwidth: u64) -> Vec<StreamRun> {
    use WriteMode::{None, Stream, Writeback};
    let writes = WritePattern::Stream(REQUEST);
    let seconds = |bytes: u64| bytes.div_ceil(bandwidth) * SEC;
    let (ramp_ns, long) = (seconds(2 * GIB).max(5 * SEC), seconds(8 * POOL).max(10 * SEC));
    let run = |case, what: &str, modes: &[WriteMode], clients: Vec<WriterOptions>| StreamRun {
        case,
        what: what.into(),
        modes: modes.to_vec(),
        clients,
        ramp_ns,
        runtime_ns: long,
    };
    let alone =
        |mode: WriteMode| run("alone", mode.name(), &[mode], vec![client(0, writes, 1024 * GIB)]);
    let mut runs = vec![alone(Writeback), alone(Stream)];
    let beside = [0, 1].map(|volume| client(volume, writes, 1024 * GIB)).to_vec();
    runs.push(run("beside", "writeback+stream", &[Writeback, Stream], beside));
    // From an empty cache on: it is filled within the run.
    for (op, manner) in [("write", writes), ("read", WritePattern::ReadStream(REQUEST))] {
        for (mode, bytes) in
            [(None, 8 * POOL), (Stream, 8 * POOL), (Writeback, 8 * POOL), (Writeback, 2 * POOL)]
        {
            let case = if bytes == 2 * POOL { "twice" } else { "through" };
            let what = format!("{op} {}", mode.name());
            let run = run(case, &what, &[mode], vec![client(0, manner, 1024 * GIB)]);
            runs.push(StreamRun { ramp_ns: 0, runtime_ns: seconds(bytes), ..run });
        }
    }
    if bandwidth < READERS {
        return runs;
    }
    for (op, manner) in [("write", writes), ("read", WritePattern::ReadStream(REQUEST))] {
        for mode in [Writeback, Stream] {
            let what = format!("{op} {}", mode.name());
            // Each block takes a command and a change of stream; once nearly all of them are cached, the stream begins.
            let ramp_ns = WORKING_SET / 4096 * 45_000;
            let starts_at = Instant(ramp_ns);
            let stream = WriterOptions { starts_at, ..client(0, manner, 1024 * GIB) };
            let reader = client(1, WritePattern::RandomReads, WORKING_SET);
            let run = run("reader", &what, &[mode, Writeback], vec![stream, reader]);
            runs.push(StreamRun { ramp_ns, ..run });
        }
    }
    runs
}

fn options(seed: u64, (bandwidth, switch_ns): (u64, u64), run: &StreamRun) -> CacheHarnessOptions {
    let mut device = StreamProfile::new(bandwidth, switch_ns);
    device.per_command_ns = 10_000;
    CacheHarnessOptions {
        seed,
        pool: POOL,
        dirty: DirtyOptions { seed, ..DirtyOptions::default() },
        queue: QueueOptions::default(),
        tags: TagPolicy::Fair,
        devices: vec![device],
        modes: run.modes.clone(),
        size: 1024 * GIB,
        writers: run.clients.clone(),
        tenants: Vec::new(),
        window_ns: u64::MAX,
        ramp_ns: run.ramp_ns,
        runtime_ns: run.runtime_ns,
        throttle: Throttling::Ioless,
        trace: false,
    }
}

/// Nanoseconds within which 999 of 1000 requests were answered; those that did not wait took none.
fn wait_999(outcome: &CaseOutcome) -> u64 {
    let all: u64 = outcome.answers.iter().map(|(answers, _)| answers).sum();
    let waited = outcome.pauses.count();
    match waited * 1000 > all {
        true => outcome.pauses.percentile(1000 - all.div_ceil(waited)),
        false => 0,
    }
}

/// Runs every case on every device.
///
/// # Errors
/// Invalid options.
pub(super) fn run(seed: u64) -> Result<Vec<Row>, ConfigError> {
    let mut rows = Vec::new();
    for device in DEVICES {
        for run in runs(device.0) {
            let outcome = CacheHarness::new(options(seed, device, &run))?.run();
            rows.push(row(device.0, &run, &outcome));
        }
    }
    Ok(rows)
}

fn row(bandwidth: u64, run: &StreamRun, outcome: &CaseOutcome) -> Row {
    let sum: u64 = outcome.bytes.iter().sum();
    let slept: Vec<u64> = outcome.answers.iter().map(|answers| answers.1).collect();
    let answers: Vec<u64> = outcome.answers.iter().map(|answers| answers.0).collect();
    Row::new("streams")
        .with("case", run.case)
        .with("what", run.what.clone())
        .with("bw_mb", bandwidth / 1_000_000)
        .with("pool_mib", POOL / MIB)
        .with("ns", run.runtime_ns)
        .with_real("mb_s", sum as f64 * 1e3 / run.runtime_ns as f64, 1)
        .with("bytes", outcome.bytes.clone())
        .with("media", outcome.media.iter().sum::<u64>())
        .with("answers", answers)
        .with("slept", slept)
        .with("wait_999_ns", wait_999(outcome))
        .with("resident_mib", outcome.resident * 4096 / MIB)
        .with("failed", outcome.failed)
        .with(SETTINGS, "")
}

fn find<'a>(rows: &[&'a Row], bw_mb: u64, case: &str, what: &str) -> Option<&'a Row> {
    let is =
        |row: &&&Row| row.int("bw_mb") == bw_mb && row.is("case", case) && row.is("what", what);
    rows.iter().find(is).copied()
}

/// Bytes a second that the clients were answered, or that the device had where they are written back.
fn rate(row: &Row, cell: &str) -> f64 {
    let bytes = match cell {
        "media" => row.int("media"),
        _ => row.ints(cell).iter().sum(),
    };
    bytes as f64 * 1e9 / row.int("ns") as f64
}

/// The part of the reads of the second client that the cache answered.
fn hits(row: &Row) -> f64 {
    1.0 - row.ints("slept")[1] as f64 / row.ints("answers")[1].max(1) as f64
}

fn verdict(what: String, ours: f64, goal: Option<Goal>) -> Verdict {
    Verdict { what, ours: Some(ours), goal, ..Verdict::default() }
}

/// Computes the verdicts of the rows.
pub(super) fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == "streams").collect();
    let mut devices: Vec<u64> = rows.iter().map(|row| row.int("bw_mb")).collect();
    devices.dedup();
    devices.into_iter().flat_map(|bw_mb| judge_device(&rows, bw_mb)).flatten().collect()
}

fn judge_device(rows: &[&Row], bw_mb: u64) -> Vec<Option<Verdict>> {
    let of = |case: &str, what: &str| find(rows, bw_mb, case, what);
    let name = |what: &str| format!("streams, {bw_mb} MB/s: {what}");
    let beside = of("beside", "writeback+stream");
    let mut verdicts = vec![
        beside.map(|row| {
            let bytes = row.ints("bytes");
            let share = bytes[1] as f64 / (bytes[0] + bytes[1]).max(1) as f64;
            let goal = Goal::Within(SHARE.0, SHARE.1);
            verdict(name("a drop-behind writer's share beside a cached one"), share, Some(goal))
        }),
        beside.zip(of("alone", "writeback")).zip(of("alone", "stream")).map(
            |((row, one), other)| {
                let best = rate(one, "media").max(rate(other, "media"));
                let sum = rate(row, "media") / best;
                let goal = Some(Goal::AtLeast(SUM));
                let found = verdict(name("sum of the two over the better one alone"), sum, goal);
                Verdict { baseline: Some(LINUX_SUM), ..found }
            },
        ),
    ];
    for op in ["write", "read"] {
        let direct = of("through", &format!("{op} none"));
        // What is still dirty at the end counts for nothing; what was read ahead does not either.
        let cell = if op == "write" { "media" } else { "bytes" };
        let part = |case: &str, mode: &str| {
            let row = of(case, &format!("{op} {mode}"))?;
            Some((row, rate(row, cell) / rate(direct?, cell)))
        };
        verdicts.push(part("through", "stream").map(|(_, part)| {
            let what = format!("{op} stream of 8 caches, part of direct");
            verdict(name(&what), part, Some(Goal::AtLeast(THROUGH)))
        }));
        verdicts.push(part("through", "stream").map(|(row, _)| {
            let what = format!("{op} stream of 8 caches, p99.9 of requests, ms");
            let goal = Some(Goal::AtMost(WAIT_MS));
            let found = verdict(name(&what), row.int("wait_999_ns") as f64 / 1e6, goal);
            match op {
                "read" => found.bounded(
                    "a read waits for the fill of its folio, 2 MiB at the device's rate",
                    FOLIO / bw_mb as f64 / 1e3,
                ),
                _ => found,
            }
        }));
        verdicts.push(part("twice", "writeback").map(|(_, part)| {
            let what = format!("{op} stream of 2 caches with plain write-back, part of direct");
            Verdict { seed: Some(LINUX_TWICE), ..verdict(name(&what), part, None) }
        }));
        let reader = |mode: &str| of("reader", &format!("{op} {mode}")).map(hits);
        verdicts.push(reader("writeback").zip(reader("stream")).map(|(old, new)| {
            let what = format!("random reads that the cache answers beside a {op} stream");
            Verdict { baseline: Some(old), ..verdict(name(&what), new, Some(Goal::AtLeast(old))) }
        }));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, what: &str, bytes: &[u64], slept: &[u64]) -> Row {
        Row::new("streams")
            .with("case", case)
            .with("what", what)
            .with("bw_mb", 700)
            .with("ns", SEC)
            .with("bytes", bytes.to_vec())
            .with("media", bytes.iter().sum::<u64>())
            .with("answers", vec![1000, 1000])
            .with("slept", slept.to_vec())
            .with("wait_999_ns", 9_000_000)
    }

    /// Rows that meet every goal.
    fn rows() -> Vec<Row> {
        let mut rows = vec![
            row("alone", "writeback", &[690], &[0]),
            row("alone", "stream", &[700], &[0]),
            row("beside", "writeback+stream", &[345, 345], &[0, 0]),
        ];
        for op in ["write", "read"] {
            for (case, mode) in [("through", "none"), ("through", "stream"), ("twice", "writeback")]
            {
                rows.push(row(case, &format!("{op} {mode}"), &[700], &[0]));
            }
            rows.push(row("reader", &format!("{op} writeback"), &[9, 9], &[0, 400]));
            rows.push(row("reader", &format!("{op} stream"), &[9, 9], &[0, 100]));
        }
        rows
    }

    fn missed(rows: &[Row]) -> Vec<String> {
        let verdicts = judge(rows).into_iter().filter(|verdict| !verdict.is_met());
        verdicts.map(|verdict| verdict.what).collect()
    }

    #[test]
    fn each_goal_is_missed_when_its_count_is_changed() {
        assert_eq!(missed(&rows()), [""; 0]);
        let with = |what: &str, cell: &str, value: serde_json::Value| {
            let change = |row: Row| match row.is("what", what) {
                true => row.replaced(cell, value.clone()),
                false => row,
            };
            missed(&rows().into_iter().map(change).collect::<Vec<_>>()).len()
        };
        assert_eq!(with("writeback+stream", "bytes", vec![370, 330].into()), 1);
        assert_eq!(with("writeback+stream", "media", 670.into()), 1);
        assert_eq!(with("read stream", "wait_999_ns", 31_000_000.into()), 1);
        assert_eq!(with("write none", "media", 740.into()), 1);
        assert_eq!(with("write stream", "slept", vec![0, 401].into()), 1);
    }

    #[test]
    fn wait_counts_the_requests_that_did_not_wait() {
        let mut outcome = CaseOutcome { answers: vec![(10_000, 5)], ..CaseOutcome::default() };
        (0..5).for_each(|_| outcome.pauses.record(1000));
        assert_eq!(wait_999(&outcome), 0);
        (0..15).for_each(|_| outcome.pauses.record(1000));
        assert!((900..=1100).contains(&wait_999(&outcome)), "20 of 10,000 waited");
    }
}
