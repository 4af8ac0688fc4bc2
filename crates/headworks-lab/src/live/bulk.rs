//! One reader of 4 KiB beside seven bulk writers over NBD, on a real file, with the default options.
//!
//! ```text
//!   each round:  reader alone | writers alone | both          on the file: fair, kuai_v3
//!                the same without a device (null:)            what NBD and the shard alone make of it
//!   goals, middle of the rounds: the reader's p99 <= 2.5 times alone, the writers keep 0.93
//! ```
//!
//! Each run has a server of its own on the preallocated file, with direct I/O where the filesystem
//! takes it and without a cache. Reader and writers are closed loops. The one shard also receives
//! what the writers send, so a reader waits for its turns: with `null:` it waits for nothing else,
//! and its p99 there, in times of that alone on the file, bounds what any gate could reach. Printed
//! beside it: the reader's time in the gate and in the device, the depth that was found (0: no
//! limit), and how many CPUs server and clients used.

use std::time::Duration;

use headworks_core::ConfigError;
use headworks_nbd::client::bench::{BenchOptions, Pattern};

use super::server::{LiveServer, LiveServerOptions, TempFolder};
use super::{Length, LiveRun, bytes, job, machine, middle, run};
use crate::baseline::TagPolicy;
use crate::report::{Goal, Report, Row, Verdict, run_each};
use crate::row_filter::RowFilter;

const TABLE: &str = "bulk writers over NBD";
/// The case that selects this table.
const NAME: &str = "bulk-writes";
const IMAGE: u64 = 1 << 30;
const READER_BYTES: u32 = 4096;
const WRITERS: u32 = 7;
const WRITER_BYTES: u32 = 1 << 20;
const WRITER_DEPTH: u32 = 128;
const ROUNDS: u64 = 3;
/// The ramp is long enough to find the depth.
const LENGTH: Length = Length { ramp: Duration::from_secs(4), runtime: Duration::from_secs(3) };
/// Goal: the reader's p99 beside the writers, in times alone.
const P99: f64 = 2.5;
/// Goal: the part of their rate that the writers keep.
const KEPT: f64 = 0.93;

/// What the export is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// A file on the filesystem of the temporary folder.
    File,
    /// No device: what NBD and the shard take.
    Null,
}

impl Target {
    const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Null => "null",
        }
    }
}

/// The configuration of a row.
#[derive(Clone, Copy, Debug)]
struct BulkWritesPoint {
    target: Target,
    policy: TagPolicy,
    round: u64,
}

/// The file and how it is opened.
struct Image {
    _folder: TempFolder,
    path: String,
    direct: bool,
}

/// Runs the selected rows.
///
/// # Errors
/// The server or a client could not start, or the file could not be written.
pub fn run_all(filter: &RowFilter) -> Result<Report, ConfigError> {
    let points: Vec<BulkWritesPoint> =
        all().into_iter().filter(|point| point.is_in(filter)).collect();
    if points.is_empty() {
        return Ok(Report::default());
    }
    let image = Image::make(IMAGE)?;
    let mut rows = vec![machine()];
    rows.extend(run_each("bulk writers over NBD", &points, |point| {
        point.run(filter.seed, &image, LENGTH)
    })?);
    let note = format!(
        "{TABLE}: a reader of 4 KiB at depth 1 beside {WRITERS} connections with {WRITER_DEPTH} random writes of 1 MiB each, default \
         options, no cache, a file of {} MiB ({}) or null:; {} s after a ramp of {} s; the middle of {ROUNDS} rounds counts",
        IMAGE >> 20,
        if image.direct { "direct I/O" } else { "the kernel's cache: no direct I/O here" },
        LENGTH.runtime.as_secs_f64(),
        LENGTH.ramp.as_secs_f64(),
    );
    let title = "fairness: bulk writers over NBD".into();
    Ok(Report { title, verdicts: judge(&rows), notes: vec![note], rows })
}

fn all() -> Vec<BulkWritesPoint> {
    let kinds = [
        (Target::File, TagPolicy::Fair),
        (Target::File, TagPolicy::KuaiV3),
        (Target::Null, TagPolicy::Fair),
    ];
    let round = |round| kinds.map(|(target, policy)| BulkWritesPoint { target, policy, round });
    (1..=ROUNDS).flat_map(round).collect()
}

impl Image {
    fn make(size: u64) -> Result<Self, ConfigError> {
        let folder = TempFolder::make()?;
        let path = folder.image("image", size)?.display().to_string();
        let mut image = Self { _folder: folder, path, direct: true };
        let exports = [("a", image.export())];
        image.direct = LiveServer::start(&LiveServerOptions::new(&exports, &|queue| queue))
            .and_then(LiveServer::end)
            .is_ok();
        Ok(image)
    }

    fn export(&self) -> String {
        let direct = if self.direct { "on" } else { "off" };
        format!("file:path={},direct={direct}", self.path)
    }
}

impl BulkWritesPoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_policy(self.policy)
            && filter.has_case(NAME)
            && filter.has_device(self.target.name())
            && filter.has_jobs(WRITERS + 1)
            && filter.has_tags(headworks_core::QueueOptions::default().nr_requests)
    }

    /// Runs the reader, the writers, or both.
    fn count(
        &self,
        seed: u64,
        image: &Image,
        (reader, writers): (u32, u32),
        length: Length,
    ) -> Result<LiveRun, ConfigError> {
        let export = match self.target {
            Target::File => image.export(),
            Target::Null => format!("null:size={IMAGE}"),
        };
        let exports = [("a", export)];
        let options = LiveServerOptions {
            policy: self.policy,
            ..LiveServerOptions::new(&exports, &|queue| queue)
        };
        let server = LiveServer::start(&options)?;
        let client = |number: u32, pattern, block_bytes, iodepth| BenchOptions {
            pattern,
            block_bytes,
            iodepth,
            seed: seed + u64::from(number),
            ..job(server.uri("a"))
        };
        let reader = (0..reader).map(|at| client(at, Pattern::RandRead, READER_BYTES, 1));
        let writers =
            (1..=writers).map(|at| client(at, Pattern::RandWrite, WRITER_BYTES, WRITER_DEPTH));
        let found = run(&server, &reader.chain(writers).collect::<Vec<_>>(), length)?;
        server.end()?;
        Ok(found)
    }

    fn run(&self, seed: u64, image: &Image, length: Length) -> Result<Row, ConfigError> {
        let alone = self.count(seed, image, (1, 0), length)?;
        let bulk = self.count(seed, image, (0, WRITERS), length)?;
        let both = self.count(seed, image, (1, WRITERS), length)?;
        let us = |run: &LiveRun, per_mille| run.jobs[0].reads.latency.percentile(per_mille) / 1_000;
        let written = |run: &LiveRun| run.jobs.iter().map(|job| job.writes.bytes).sum::<u64>();
        let mb_s = |bytes: u64| bytes as f64 / 1e6 / length.runtime.as_secs_f64();
        let failed = alone.errors() + bulk.errors() + both.errors();
        Ok(Row::new(TABLE)
            .with("device", self.target.name())
            .with("policy", self.policy.name())
            .with("case", NAME)
            .with("round", self.round)
            .with("direct", self.target == Target::File && image.direct)
            .with("alone_bios", alone.jobs[0].ios())
            .with("bios", both.jobs[0].ios())
            .with("alone_p50_us", us(&alone, 500))
            .with("alone_p99_us", us(&alone, 990))
            .with("p50_us", us(&both, 500))
            .with("p99_us", us(&both, 990))
            .with("gate_p99_us", both.stage("tag") / 1_000)
            .with("device_p99_us", both.stage("device") / 1_000)
            .with("longest_us", both.jobs[0].reads.latency.max() / 1_000)
            .with(
                "writers_kib",
                both.jobs[1..].iter().map(|job| bytes(job) >> 10).collect::<Vec<_>>(),
            )
            .with_real("times_alone", us(&both, 990) as f64 / us(&alone, 990).max(1) as f64, 2)
            .with_real("writers_alone_mb_s", mb_s(written(&bulk)), 0)
            .with_real("writers_mb_s", mb_s(written(&both)), 0)
            .with_real("kept", written(&both) as f64 / written(&bulk).max(1) as f64, 3)
            .with("limit_kb", both.depth("limit_kb"))
            .with("command_max_kb", both.depth("command_max_kb"))
            .with("trials", both.depth("trials"))
            .with_real("cpus", both.cpu_us as f64 / length.runtime.as_micros() as f64, 2)
            .with("failed", failed))
    }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mid = |target: Target, policy: TagPolicy, name: &str| {
        let is = |row: &&&Row| row.is("device", target.name()) && row.is("policy", policy.name());
        middle(rows.iter().filter(is).map(|row| row.real(name)).collect())
    };
    let mut verdicts = Vec::new();
    for (what, name, goal) in [
        ("the reader's p99, times alone", "times_alone", Goal::AtMost(P99)),
        ("the writers' bytes, part of alone", "kept", Goal::AtLeast(KEPT)),
    ] {
        let Some(ours) = mid(Target::File, TagPolicy::Fair, name) else { continue };
        verdicts.push(Verdict {
            what: format!("bulk writers over NBD: {what}"),
            baseline: mid(Target::File, TagPolicy::KuaiV3, name),
            ours: Some(ours),
            goal: Some(goal),
            ..Verdict::default()
        });
    }
    let (alone, least) = (
        mid(Target::File, TagPolicy::Fair, "alone_p99_us"),
        mid(Target::Null, TagPolicy::Fair, "p99_us"),
    );
    if let Some((alone, least)) = alone.zip(least) {
        verdicts.push(Verdict {
            what: "bulk writers over NBD: p99 with null:, times alone on the file".into(),
            ours: Some(least / alone.max(1.0)),
            ..Verdict::default()
        });
    }
    if !rows.is_empty() {
        let failed: u64 = rows.iter().map(|row| row.int("failed")).sum();
        verdicts.push(Verdict {
            what: "bulk writers over NBD: failed requests".into(),
            ours: Some(failed as f64),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_round_is_judged_and_null_is_not() {
        let row = |target: Target, times: f64, kept: f64| {
            Row::new(TABLE)
                .with("device", target.name())
                .with("policy", "fair")
                .with("times_alone", times)
                .with("kept", kept)
                .with("alone_p99_us", 100)
                .with("p99_us", 1_000)
                .with("failed", 0)
        };
        let missed = |rows: &[Row]| judge(rows).iter().filter(|verdict| !verdict.is_met()).count();
        let bound = |rows: &[Row]| judge(rows)[2].ours;
        let null = row(Target::Null, 100.0, 0.1);
        let rounds = |times: [f64; 3], kept: f64| {
            let rows = times.map(|times| row(Target::File, times, kept));
            [rows.to_vec(), vec![null.clone()]].concat()
        };
        assert_eq!(missed(&rounds([2.4, 90.0, 2.5], 0.93)), 0);
        assert_eq!(missed(&rounds([2.6, 1.0, 2.6], 0.93)), 1);
        assert_eq!(missed(&rounds([2.6, 1.0, 2.6], 0.92)), 2);
        assert_eq!(bound(&rounds([2.4, 90.0, 2.5], 0.93)), Some(10.0));
    }

    #[test]
    fn reader_and_writers_share_a_real_file() {
        let image = Image::make(16 << 20).unwrap();
        let point = BulkWritesPoint { target: Target::File, policy: TagPolicy::Fair, round: 1 };
        let length = Length { ramp: Duration::ZERO, runtime: Duration::from_millis(200) };
        let found = point.count(1, &image, (1, 1), length).unwrap();
        assert!(found.jobs[0].reads.bytes > 0 && found.jobs[1].writes.bytes > 0);
        assert_eq!(found.errors(), 0);
    }
}
