//! Seed 002: dirty throttling by pauses computed from measured bandwidth and dirty position; only
//! the flusher writes back.
//!
//! The seed: 1 to 1000 dd on a device of 700 MB/s achieved 700 .. 600 MB/s with 400 .. 160,000
//! context switches a second; 100 dd on a disk went from 38 to 42 MB/s. Here the same writers write
//! into the cache of a shard, in virtual time, over a device with a bandwidth and a cost of every
//! stream change. The baseline, foreground writeback
//! (`crate::baseline::foreground`), runs on the same device.
//!
//! **Wake-ups.** The seed counts context switches of the whole machine: sleeping writers, flushers,
//! interrupt threads. Here a *writer wake-up* is a write that was not answered in the turn that
//! took it, so its writer slept (in Linux: two context switches); a *thread wake-up* is a turn that
//! woke the shard's only thread, for any number of writers.
//!
//! **Bounds.** A writer with `b` bytes a second that sleeps for at most 200 ms is woken `b / 0.2 b`
//! times, so 1000 writers cause 5000 wake-ups a second. With so little memory that a writer's share
//! is less than a write, or so little bandwidth that a write takes longer than 200 ms, the write
//! size determines both; those goals do not apply there.

mod bounds;
mod cache_harness;
mod cases;
pub mod csv;
mod judge;
pub mod pictures;
mod series;
mod streams;
mod writer;

use headworks_core::{ConfigError, Instant};

pub use cache_harness::{CacheHarness, CacheHarnessOptions, CaseOutcome};
pub use cases::{BelowCache, CALIBRATED_NS, CasePoint, SWITCH_NS, ThrottleCase, points};
pub use judge::judge;
pub use series::{SAMPLE_NS, Sample, rates, settled_ms};
pub use writer::{WritePattern, WriterOptions};

use crate::baseline::foreground::Throttling;
use crate::harness::settings;
use crate::report::{Progress, Report, Row, SETTINGS, jain};

/// Selection of runs; empty lists mean the defaults of the case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed002Options {
    /// Seed of offsets and wake-ups.
    pub seed: u64,
    /// Only these cases; all if empty.
    pub cases: Vec<ThrottleCase>,
    /// Throttle policies to compare.
    pub throttles: Vec<Throttling>,
    /// Numbers of writers to run.
    pub writers: Vec<u32>,
    /// Bandwidths in bytes per second.
    pub bandwidths: Vec<u64>,
    /// Cache sizes in bytes.
    pub pools: Vec<u64>,
    /// Minimum measured virtual seconds.
    pub seconds: u64,
    /// Bytes of a write.
    pub write_bytes: u32,
    /// Cost of a stream change; `None` for the case's own.
    pub switch_ns: Option<u64>,
    /// Whether the throttle's trace events are kept.
    pub trace: bool,
}

impl Default for Seed002Options {
    fn default() -> Self {
        Self {
            seed: 1,
            cases: Vec::new(),
            throttles: Vec::new(),
            writers: Vec::new(),
            bandwidths: Vec::new(),
            pools: Vec::new(),
            seconds: 20,
            write_bytes: 64 << 10,
            switch_ns: None,
            trace: false,
        }
    }
}

/// Runs the selected configurations and passes each result to `see`.
///
/// # Errors
/// Invalid options.
pub fn run(
    options: &Seed002Options,
    mut see: impl FnMut(&CasePoint, &CaseOutcome),
) -> Result<Report, ConfigError> {
    let points = points(options);
    let mut progress = Progress::new("seed-002", points.len());
    let (mut rows, mut counts) = (Vec::new(), Vec::new());
    let has_streams = options.cases.is_empty() || options.cases.contains(&ThrottleCase::Streams);
    for point in &points {
        let outcome = CacheHarness::new(point.harness(options.trace))?.run();
        rows.push(row(point, &outcome));
        counts.push(count(point, &outcome));
        see(point, &outcome);
        progress.step();
    }
    drop(progress);
    rows.append(&mut counts);
    let mut verdicts = judge(&rows);
    if has_streams {
        let streams = streams::run(options.seed)?;
        verdicts.extend(streams::judge(&streams));
        rows.extend(streams);
    }
    Ok(Report {
        title: "seed-002: writers pause, the flusher writes".into(),
        notes: notes(),
        rows,
        verdicts,
    })
}

fn notes() -> Vec<String> {
    vec![
        "dd: one 64 KiB write at a time, each writer in its own GiB or more; dirty_ratio 20, dirty_background_ratio 10".into(),
        format!(
            "device: one command at a time, bytes at the bandwidth, 10 us a command, {} us a change of stream (scaling: {}; \
             60 MB/s: 8000; grid: neither)",
            SWITCH_NS / 1000,
            CALIBRATED_NS / 1000
        ),
        "scaling: the price of a change of stream is a calibration, solved so that the old way loses a tenth with 1000 writers \
         and 48 GiB; the goals are judged with 256 MiB and 4 GiB, too, where the bound of a known miss stands beside it"
            .into(),
        "foreground runs with every elevator and tag policy, and its best row is the baseline (scaling: with 100 and 1000 writers and \
         4 GiB; else with the defaults); ioless runs with the defaults"
            .into(),
        "overwrites: 4 KiB anywhere in 400 MiB, twice the dirty limit, with 1 GiB; the rows of more memory hold as much dirty with pauses as the \
         limit alone does with 1 GiB"
            .into(),
        "uneven: one writer that takes what it gets and 36 of 0.1 MB/s each".into(),
        "wake_s: writes that slept; thread_s: wake-ups of the shard's thread. Neither is the seed's context switches: \
         those count everything that ran on the machine, two for each sleep"
            .into(),
        "dirty and reserved bytes as parts of the limit: min, mean, max of samples each 10 ms; worst: after any turn, from the \
         start on"
            .into(),
    ]
}

fn mb(bandwidth: u64) -> u64 {
    bandwidth / 1_000_000
}

fn name(table: &str, point: &CasePoint) -> Row {
    Row::new(table)
        .with("case", point.case.name())
        .with("throttle", point.throttle.name())
        .with("elevator", point.below.scheduler.name())
        .with("tags", point.below.tags.name())
        .with("writers", point.writers)
        .with("bw_mb", mb(point.bandwidth))
        .with("pool_mib", point.pool >> 20)
}

/// The displayed rates of a run.
fn row(point: &CasePoint, outcome: &CaseOutcome) -> Row {
    let seconds = point.runtime_ns as f64 / 1e9;
    let per_second = |count: u64| count as f64 / seconds;
    let ms = |ns: u64| ns as f64 / 1e6;
    let media: u64 = outcome.media.iter().sum();
    let pauses = &outcome.pauses;
    let [low, mean, high] = positions(point, outcome);
    let busy = outcome.busy_ns.iter().map(|&ns| ns as f64 / point.runtime_ns as f64);
    let kib = outcome.request_bytes as f64 / 1024.0 / outcome.requests.max(1) as f64;
    let files: u64 = if point.case == ThrottleCase::Files { outcome.writes } else { 0 };
    let per_gb = |[wakeups, bytes]: [u64; 2]| wakeups as f64 * 1e9 / bytes.max(1) as f64;
    let [before, after] = halves(point, outcome).map(per_gb);
    name("runs", point)
        .with("write_kib", point.write_bytes >> 10)
        .with("seconds", point.runtime_ns / 1_000_000_000)
        .with_real("mb_s", per_second(media) / 1e6, 2)
        .with_real("wake_s", per_second(pauses.count()), 0)
        .with_real("thread_s", per_second(outcome.thread_wakeups), 0)
        .with_real("timer_s", per_second(outcome.timers), 0)
        .with_real("p50_ms", ms(pauses.percentile(500)), 2)
        .with_real("p99_ms", ms(pauses.percentile(990)), 2)
        .with_real("max_ms", ms(pauses.max().max(outcome.waiting_max_ns)), 1)
        .with_real("dirty_min", low, 3)
        .with_real("dirty_mean", mean, 3)
        .with_real("dirty_max", high, 3)
        .with_real("worst", outcome.worst_ppm as f64 / 1e6, 3)
        .with("over", outcome.over_limit)
        .with_real("jain", jain(shares(point, outcome)), 4)
        .with_real("util", busy.fold(1.0, f64::min), 3)
        .with_real("switch_s", per_second(outcome.switches), 0)
        .with_real("req_kib", kib, 1)
        .with_real("files_s", per_second(files), 0)
        .with("settled_ms", settled(point, outcome))
        .with_real("wake_gb_before", before, 0)
        .with_real("wake_gb_after", after, 0)
        .with("failed", outcome.failed)
}

/// The raw counts of a run: the verdicts are computed from them alone.
fn count(point: &CasePoint, outcome: &CaseOutcome) -> Row {
    let bytes = outcome.bytes.iter();
    // In blocks, so that the squares fit.
    let shares: Vec<u64> = shares(point, outcome).map(|bytes| bytes as u64 / 4096).collect();
    let [before, after] = halves(point, outcome);
    name("counts", point)
        .with("write_bytes", point.write_bytes)
        .with("ns", point.runtime_ns)
        .with("writes", outcome.writes)
        .with("bytes", bytes.clone().sum::<u64>())
        .with("least", bytes.clone().min().copied().unwrap_or(0))
        .with("most", bytes.max().copied().unwrap_or(0))
        .with("sharers", shares.len())
        .with("shared_blocks", shares.iter().sum::<u64>())
        .with("shared_blocks_squared", shares.iter().map(|blocks| blocks * blocks).sum::<u64>())
        .with("p50_ns", outcome.pauses.percentile(500))
        .with("p99_ns", outcome.pauses.percentile(990))
        .with("dirty_ppm", (1e6 * positions(point, outcome)[1]) as u64)
        .with("worst_ppm", outcome.worst_ppm)
        .with("over", outcome.over_limit)
        .with("failed", outcome.failed)
        .with("settled_ms", settled(point, outcome))
        // Wake-ups and bytes before the first writer ended, and after half of them had.
        .with("exit_before", before.to_vec())
        .with("exit_after", after.to_vec())
        .with("media_bytes", outcome.media.clone())
        .with("busy_ns", outcome.busy_ns.clone())
        .with("requests", outcome.requests)
        .with("request_bytes", outcome.request_bytes)
        .with("switches", outcome.switches)
        .with("slept", outcome.pauses.count())
        .with("flushes", outcome.flushes.count())
        .with("flush_p50_ns", outcome.flushes.percentile(500))
        .with("turns", outcome.turns)
        .with("thread_wakeups", outcome.thread_wakeups)
        .with("timers", outcome.timers)
        .with("switch_ns", point.switch_ns)
        .with(SETTINGS, settings(&point.harness(false).queue))
        .with("hash", format!("{:016x}", outcome.hash))
}

/// Bytes of each writer that ran all the time, on the first device.
fn shares(point: &CasePoint, outcome: &CaseOutcome) -> impl Iterator<Item = f64> {
    let always = point.harness(false).writers.into_iter().map(|writer| {
        writer.volume == 0 && writer.starts_at == Instant(0) && writer.exits_at == Instant(u64::MAX)
    });
    let of_them = outcome.bytes.clone().into_iter().zip(always);
    of_them.filter_map(|(bytes, always)| always.then_some(bytes as f64))
}

/// Minimum, mean and maximum dirty bytes after the ramp, as parts of the limit.
fn positions(point: &CasePoint, outcome: &CaseOutcome) -> [f64; 3] {
    let counted = outcome.samples.iter().filter(|sample| sample.at >= Instant(point.ramp_ns));
    let part = |bytes: u64, sample: &Sample| bytes as f64 / sample.limit.max(1) as f64;
    let mut found = (f64::MAX, 0.0, 0.0f64, 0.0f64);
    for sample in counted {
        let here = part(sample.dirty, sample);
        found = (
            found.0.min(here),
            found.1 + here,
            found.2.max(part(sample.dirty_max, sample)),
            found.3 + 1.0,
        );
    }
    let (low, sum, high, count) = found;
    if count == 0.0 { [0.0; 3] } else { [low, sum / count, high] }
}

/// Settling time of each phase; a day if it never settled.
fn settled(point: &CasePoint, outcome: &CaseOutcome) -> Vec<u64> {
    let phases = point.phases();
    let pairs = phases.windows(2);
    let write = u64::from(point.write_bytes);
    let found = pairs.map(|pair| settled_ms(&outcome.samples, write, pair[0], pair[1]));
    found.map(|ms| ms.unwrap_or(86_400_000)).collect()
}

/// Writer wake-ups and bytes written, before the first writer ended and after half of them had; 0
/// if none ends.
fn halves(point: &CasePoint, outcome: &CaseOutcome) -> [[u64; 2]; 2] {
    if point.case != ThrottleCase::Exit {
        return [[0; 2]; 2];
    }
    let samples = &outcome.samples;
    let all = point.writers;
    let at = |is: &dyn Fn(&Sample) -> bool| samples.iter().find(|sample| is(sample));
    let ramp = at(&|sample| sample.at >= Instant(point.ramp_ns));
    let first = at(&|sample| sample.at > Instant(point.ramp_ns) && sample.writers < all);
    let half = at(&|sample| sample.at > Instant(point.ramp_ns) && 2 * sample.writers <= all);
    let between = |from: Option<&Sample>, to: Option<&Sample>| match (from, to) {
        (Some(from), Some(to)) => [to.wakeups - from.wakeups, to.media - from.media],
        _ => [0; 2],
    };
    [between(ramp, first), between(half, samples.last())]
}
