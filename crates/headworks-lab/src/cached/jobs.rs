//! Seed 003 with its threads: four volumes with 252 jobs each, 64 KiB at random blocks, in process and in the kernel's page cache.
//!
//! ```text
//!   round 1: large folios | small folios | ext4 | xfs | block devices       round 2: the same again ...
//!   each:    1008 threads call for a while, uncounted; then the calls and the CPU time of a second and a half
//! ```
//!
//! CPU time is that of the process: jobs, owners' threads, and what the kernel does in their calls. As in `cached`, all of it is dirty before
//! a mix with writes and written out after it, on both sides.
//!
//! `trim` discards a range of cached bytes while a job reads others of the same volume and another job reads a second volume of the same
//! owner, file system, or two devices: a second before the discard, and from its beginning to its end, at least 100 ms.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant as WallClock};

use headworks_core::cache::folio::BLOCK;
use headworks_core::prng::Prng;
use headworks_core::{ConfigError, Op};

use super::side::{CALL_BYTES, Job, KernelVolumes, OwnedVolumes, Side, Volume};
use super::{process_cpu_ns, spread};
use crate::report::{Goal, Progress, Report, Row, Verdict};

const TABLE: &str = "four volumes with jobs of 64 KiB";
const TRIM: &str = "readers beside a trim";
const VOLUMES: u64 = 4;
/// Percentages of writes, and of each: the seed's gain of large folios, GiB/s of its four instances together, and the goal of ours. The
/// seed's came of locks of many cores; of reads more than what a single thread gains (`seed-003-cpu`) is not asked.
const MIXES: [(u32, f64, f64); 4] =
    [(0, 2.85, 1.6), (10, 2.97, 1.6), (30, 1.42, 1.42), (50, 1.15, 1.15)];
/// Our sides: names and the `max_folio_order`.
const OURS: [(&str, u8); 2] = [("headworks", 9), ("headworks, small folios", 0)];
/// Goals beside each peer: calls a second, and CPU time of a call. Those of a single thread (`cached`).
const RATE: f64 = 1.25;
const CPU: f64 = 0.8;
/// Goals of readers beside a trim, by the same readers before it: calls a second, and p99.
const BESIDE: (f64, f64) = (0.5, 2.0);
/// Goal: the longest read beside a trim, in us; that of reads beside unread replies.
const LONGEST_US: f64 = 20_000.0;
/// Bytes of each range that is read beside a trim.
const READ: u64 = 256 << 20;
/// The least time that counts as beside a trim.
const WINDOW: Duration = Duration::from_millis(100);
/// Number of blocks whose contents are checked at the end.
const CHECKS: u64 = 1000;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct JobsOptions {
    /// Bytes of all volumes together.
    pub size: u64,
    /// Jobs of each volume.
    pub jobs: u32,
    /// Owners of our volumes, 1, 2 or 4.
    pub owners: usize,
    /// Bytes of a trim.
    pub trim: u64,
    /// Number of runs of each row.
    pub rounds: u32,
    /// Time of a run; a third of it before is not counted.
    pub runtime: Duration,
    /// Seed of the random blocks.
    pub seed: u64,
    /// Folders of a file system, or block devices, by name. They are overwritten.
    pub beside: Vec<(String, Vec<PathBuf>)>,
    /// Only these cases, `mixes` and `trim`; all if empty.
    pub cases: Vec<String>,
}

impl Default for JobsOptions {
    fn default() -> Self {
        Self {
            size: 1 << 30,
            jobs: 252,
            owners: 4,
            trim: 2 << 30,
            rounds: 5,
            runtime: Duration::from_millis(1500),
            seed: 1,
            beside: Vec::new(),
            cases: Vec::new(),
        }
    }
}

/// Ours and the kernel's sides.
struct Sides {
    ours: Vec<OwnedVolumes>,
    kernels: Vec<KernelVolumes>,
}

impl Sides {
    fn new(options: &JobsOptions, owners: &[&[Volume]]) -> Result<Self, ConfigError> {
        let all = owners.concat();
        let kernel = |(name, paths): &(String, Vec<PathBuf>)| KernelVolumes::new(name, paths, &all);
        Ok(Self {
            ours: OURS
                .iter()
                .map(|&(name, order)| OwnedVolumes::new(name, order, owners))
                .collect::<Result<_, _>>()?,
            kernels: options.beside.iter().map(kernel).collect::<Result<_, _>>()?,
        })
    }

    fn len(&self) -> usize {
        self.ours.len() + self.kernels.len()
    }

    fn notes(&self) -> impl Iterator<Item = String> {
        self.kernels.iter().map(|kernel| {
            let pages = kernel.pages_per_folio();
            let pages = pages.map_or("unknown".into(), |pages| format!("{pages:.1}"));
            format!("{}: pages in a folio of the kernel's cache: {pages}", kernel.name())
        })
    }

    /// Checks the stamps of our blocks; those beyond `from` of the first volume.
    fn check(&mut self, prng: &mut Prng, volumes: &[Volume], from: u64) -> Result<(), ConfigError> {
        for ours in &mut self.ours {
            for _ in 0..CHECKS {
                let volume = prng.below(volumes.len() as u64) as usize;
                let from = if volume == 0 { from } else { 0 };
                let block = prng.below((volumes[volume].size - from) / u64::from(BLOCK));
                ours.check(volume, from + block * u64::from(BLOCK))?;
            }
        }
        Ok(())
    }
}

/// Runs the measurement.
///
/// # Errors
/// An option that cannot be, a file that cannot be used, or a call that failed.
pub fn run(options: &JobsOptions) -> Result<Report, ConfigError> {
    let each = options.size / VOLUMES;
    if each < 1 << 20 || !each.is_multiple_of(1 << 20) || each > 1 << 40 {
        return Err(ConfigError::new("size", "must be four times a whole number of MiB"));
    }
    if ![1, 2, 4].contains(&options.owners) {
        return Err(ConfigError::new("owners", "must be 1, 2 or 4"));
    }
    if options.trim < 1 << 20 || options.trim > 2 << 30 || !options.trim.is_multiple_of(1 << 20) {
        return Err(ConfigError::new("trim", "must be 1M to 2G in whole MiB"));
    }
    let wants = |case: &str| options.cases.is_empty() || options.cases.iter().any(|c| c == case);
    let mut report = Report { title: "seed-003 with its threads".into(), ..Report::default() };
    if wants("mixes") {
        mixes(options, each, &mut report)?;
    }
    if wants("trim") {
        trims(options, each.min(READ), &mut report)?;
    }
    report.verdicts = judge(&report.rows);
    Ok(report)
}

/// What a run of all jobs gave.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    calls_s: f64,
    cpu_ns: f64,
    /// Sleeps of the jobs for a thousand calls, uncounted calls included.
    sleeps: f64,
}

fn mixes(options: &JobsOptions, size: u64, report: &mut Report) -> Result<(), ConfigError> {
    let volumes = [Volume { size, jobs: options.jobs }; VOLUMES as usize];
    let owners: Vec<&[Volume]> = volumes.chunks(VOLUMES as usize / options.owners).collect();
    let mut sides = Sides::new(options, &owners)?;
    let mut prng = Prng::new(options.seed);
    let runs = MIXES.len() * options.rounds as usize * sides.len();
    let mut progress = Progress::new("seed-003-jobs", runs);
    for (writes, ..) in MIXES {
        let mut times = vec![Vec::new(); sides.len()];
        for _ in 0..options.rounds {
            let Sides { ours, kernels } = &mut sides;
            let (ours_times, kernel_times) = times.split_at_mut(ours.len());
            for (side, times) in ours.iter_mut().zip(ours_times) {
                times.push(mix(side, &volumes, writes, options, &mut prng)?);
                progress.step();
            }
            for (side, times) in kernels.iter_mut().zip(kernel_times) {
                times.push(mix(side, &volumes, writes, options, &mut prng)?);
                progress.step();
            }
        }
        let names = sides.ours.iter().map(Side::name).chain(sides.kernels.iter().map(Side::name));
        report.rows.extend(names.zip(&times).map(|(name, times)| row(name, writes, times)));
    }
    sides.check(&mut prng, &volumes, 0)?;
    report.notes.push(format!(
        "{TABLE}: {VOLUMES} volumes of {} MiB, {} jobs each, ours with {} owners, {} runs of {:.1} s of each in turn; calls a second, and CPU of \
         the process for a call",
        size >> 20,
        options.jobs,
        options.owners,
        options.rounds,
        options.runtime.as_secs_f64(),
    ));
    report.notes.extend(sides.notes());
    Ok(())
}

fn mix<S: Side>(
    side: &mut S,
    volumes: &[Volume],
    writes: u32,
    options: &JobsOptions,
    prng: &mut Prng,
) -> Result<Times, ConfigError> {
    if writes > 0 {
        (0..volumes.len()).try_for_each(|volume| side.dirty_all(volume))?;
    }
    let blocks = volumes[0].size / u64::from(CALL_BYTES);
    let times = run_together(side.jobs(), (writes, blocks), options.runtime, prng)?;
    if writes > 0 {
        (0..volumes.len()).try_for_each(|volume| side.settle(volume))?;
    }
    Ok(times)
}

/// The calls of a job, on a line of the processor's caches of its own.
#[derive(Default)]
#[repr(align(128))]
struct Calls(AtomicU64);

/// Runs every job on a thread of its own.
fn run_together<J: Job>(
    jobs: &mut [J],
    (writes, blocks): (u32, u64),
    runtime: Duration,
    prng: &mut Prng,
) -> Result<Times, ConfigError> {
    let sleeps = |jobs: &[J]| jobs.iter().map(Job::sleeps).sum::<u64>();
    let before = sleeps(jobs);
    let calls: Vec<Calls> = jobs.iter().map(|_| Calls::default()).collect();
    // Relaxed: counts, and a flag that is seen sooner or later.
    let sum = || calls.iter().map(|calls| calls.0.load(Ordering::Relaxed)).sum::<u64>();
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut times = Times::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .iter_mut()
            .zip(&calls)
            .map(|(job, calls)| {
                let (begun, over, mut prng) = (&begun, &over, Prng::new(prng.next()));
                scope.spawn(move || {
                    // Not a barrier: its lock goes through a thousand threads of which all that have it run already, for up to 18 s.
                    while !begun.load(Ordering::Relaxed) {
                        std::thread::park();
                    }
                    while !over.load(Ordering::Relaxed) {
                        let op = if prng.below(100) < writes.into() { Op::Write } else { Op::Read };
                        let offset = prng.below(blocks) * u64::from(CALL_BYTES);
                        job.call(op, offset, CALL_BYTES)?;
                        calls.0.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        begun.store(true, Ordering::Relaxed);
        threads.iter().for_each(|thread| thread.thread().unpark());
        std::thread::sleep(runtime / 3);
        let (counted, cpu, began) = (sum(), process_cpu_ns(), WallClock::now());
        std::thread::sleep(runtime);
        let (done, cpu, elapsed) = (sum() - counted, process_cpu_ns() - cpu, began.elapsed());
        over.store(true, Ordering::Relaxed);
        times.calls_s = done as f64 / elapsed.as_secs_f64();
        times.cpu_ns = cpu as f64 / done.max(1) as f64;
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(_) => Err(ConfigError::new("jobs", "a job panicked")),
        })
    })?;
    times.sleeps = (sleeps(jobs) - before) as f64 * 1000.0 / sum().max(1) as f64;
    Ok(times)
}

fn row(name: &str, writes: u32, times: &[Times]) -> Row {
    let rates: Vec<u64> = times.iter().map(|times| times.calls_s as u64).collect();
    let cpu: Vec<u64> = times.iter().map(|times| times.cpu_ns as u64).collect();
    let [least, median, most] = spread(times.iter().map(|times| times.calls_s));
    let [_, cpu_ns, _] = spread(times.iter().map(|times| times.cpu_ns));
    let [_, sleeps, _] = spread(times.iter().map(|times| times.sleeps));
    Row::new(TABLE)
        .with("writes_percent", writes)
        .with("who", name)
        .with_real("calls_s_least", least, 0)
        .with_real("calls_s", median, 0)
        .with_real("calls_s_most", most, 0)
        .with_real("gib_s", median * f64::from(CALL_BYTES) / f64::from(1 << 30), 2)
        .with_real("cpu_ns", cpu_ns, 0)
        .with_real("sleeps_per_1000", sleeps, 1)
        .with("round_calls_s", rates)
        .with("round_cpu_ns", cpu)
}

/// When a read beside a trim ended.
const BEFORE: u8 = 0;
const ALONE: u8 = 1;
const BESIDE_TRIM: u8 = 2;
const OVER: u8 = 3;

/// The reads of one reader: us of each, before the trim and beside it.
#[derive(Clone, Debug, Default)]
struct Reads([Vec<f64>; 2]);

/// What a trim and its readers did: seconds of both windows, ms of the trim, and the reads of each reader.
struct TrimRun {
    seconds: [f64; 2],
    trim_ms: f64,
    readers: Vec<Reads>,
}

fn trims(options: &JobsOptions, read: u64, report: &mut Report) -> Result<(), ConfigError> {
    // One job trims, one reads the same volume, one the other.
    let volumes = [Volume { size: options.trim + read, jobs: 2 }, Volume { size: read, jobs: 1 }];
    let mut sides = Sides::new(options, &[&volumes])?;
    let mut prng = Prng::new(options.seed);
    let mut runs: Vec<Vec<TrimRun>> = (0..sides.len()).map(|_| Vec::new()).collect();
    let mut progress = Progress::new("seed-003-jobs", options.rounds as usize * sides.len());
    for _ in 0..options.rounds {
        let Sides { ours, kernels } = &mut sides;
        let (ours_runs, kernel_runs) = runs.split_at_mut(ours.len());
        for (side, runs) in ours.iter_mut().zip(ours_runs) {
            runs.push(trim(side, options, read, &mut prng)?);
            progress.step();
        }
        for (side, runs) in kernels.iter_mut().zip(kernel_runs) {
            runs.push(trim(side, options, read, &mut prng)?);
            progress.step();
        }
    }
    let names = sides.ours.iter().map(Side::name).chain(sides.kernels.iter().map(Side::name));
    for (name, runs) in names.zip(&runs) {
        for (reader, volume) in ["the same", "another"].into_iter().enumerate() {
            report.rows.push(trim_row(name, volume, runs, reader));
        }
    }
    sides.check(&mut prng, &volumes, options.trim)?;
    report.notes.push(format!(
        "{TRIM}: {} MiB are discarded at once, which were written and flushed before; one job reads 64 KiB at random in the other {} MiB of that \
         volume, one in {} MiB of another; {} runs in turn",
        options.trim >> 20,
        read >> 20,
        read >> 20,
        options.rounds
    ));
    Ok(())
}

fn trim<S: Side>(
    side: &mut S,
    options: &JobsOptions,
    read: u64,
    prng: &mut Prng,
) -> Result<TrimRun, ConfigError> {
    side.dirty_all(0)?;
    side.settle(0)?;
    let [trimmer, same, another] = side.jobs() else {
        return Err(ConfigError::new("jobs", "a trim has three"));
    };
    let phase = AtomicU8::new(BEFORE);
    let mut run = TrimRun { seconds: [0.0; 2], trim_ms: 0.0, readers: Vec::new() };
    std::thread::scope(|scope| {
        let reader = |(job, from), seed| {
            let phase = &phase;
            scope.spawn(move || read_until_over(job, from, read, phase, seed))
        };
        let readers =
            [reader((same, options.trim), prng.next()), reader((another, 0), prng.next())];
        let window = |which: u8| {
            phase.store(which, Ordering::Relaxed);
            WallClock::now()
        };
        std::thread::sleep(options.runtime / 3);
        let began = window(ALONE);
        std::thread::sleep(options.runtime);
        run.seconds[0] = began.elapsed().as_secs_f64();
        let began = window(BESIDE_TRIM);
        let trimmed = trimmer.call(Op::Discard, 0, options.trim as u32);
        let took = began.elapsed();
        std::thread::sleep(WINDOW.saturating_sub(took));
        run.seconds[1] = began.elapsed().as_secs_f64();
        phase.store(OVER, Ordering::Relaxed);
        run.trim_ms = took.as_secs_f64() * 1e3;
        for reader in readers {
            let ended = reader.join().map_err(|_| ConfigError::new("jobs", "a job panicked"))?;
            run.readers.push(ended?);
        }
        trimmed
    })?;
    Ok(run)
}

/// Reads random blocks until the phase is `OVER`.
fn read_until_over<J: Job>(
    job: &mut J,
    from: u64,
    size: u64,
    phase: &AtomicU8,
    seed: u64,
) -> Result<Reads, ConfigError> {
    let (mut prng, mut reads) = (Prng::new(seed), Reads::default());
    let mut began = WallClock::now();
    loop {
        let offset = from + prng.below(size / u64::from(CALL_BYTES)) * u64::from(CALL_BYTES);
        job.call(Op::Read, offset, CALL_BYTES)?;
        let ended = WallClock::now();
        let us = (ended - began).as_nanos() as f64 / 1e3;
        began = ended;
        match phase.load(Ordering::Relaxed) {
            OVER => {
                // The read during which the window closed is the longest, if it waited for all of the trim.
                reads.0[1].push(us);
                return Ok(reads);
            }
            ALONE => reads.0[0].push(us),
            BESIDE_TRIM => reads.0[1].push(us),
            _ => {}
        }
    }
}

fn trim_row(name: &str, volume: &str, runs: &[TrimRun], reader: usize) -> Row {
    let of = |window: usize, value: &dyn Fn(&TrimRun, &[f64]) -> f64| {
        spread(runs.iter().map(|run| value(run, &run.readers[reader].0[window])))
    };
    let rate = |window: usize| of(window, &|run, reads| reads.len() as f64 / run.seconds[window]);
    let at = |window: usize, part: f64| {
        of(window, &|_, reads| {
            let mut reads = reads.to_vec();
            reads.sort_by(f64::total_cmp);
            let index = (reads.len() as f64 * part) as usize;
            reads.get(index.min(reads.len().saturating_sub(1))).copied().unwrap_or(0.0)
        })
    };
    let [least, median, most] = spread(runs.iter().map(|run| run.trim_ms));
    let ratios = spread(runs.iter().map(|run| {
        let reads = [0, 1].map(|window| run.readers[reader].0[window].len().max(1) as f64);
        reads[1] / run.seconds[1] / (reads[0] / run.seconds[0])
    }));
    let mut row = Row::new(TRIM)
        .with("who", name)
        .with("reads", volume)
        .with_real("trim_ms_least", least, 2)
        .with_real("trim_ms", median, 2)
        .with_real("trim_ms_most", most, 2)
        .with_real("alone_s", rate(0)[1], 0)
        .with_real("beside_s", rate(1)[1], 0)
        .with_real("ratio_least", ratios[0], 3)
        .with_real("ratio", ratios[1], 3)
        .with_real("ratio_most", ratios[2], 3);
    for (window, word) in ["alone", "beside"].into_iter().enumerate() {
        let [_, longest, most] = at(window, 1.0);
        row = row
            .with_real(&format!("{word}_p99_us"), at(window, 0.99)[1], 1)
            .with_real(&format!("{word}_longest_us"), longest, 0)
            .with_real(&format!("{word}_longest_most_us"), most, 0);
    }
    row
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (writes, seed, gain) in MIXES {
        let of = |row: &&Row| row.table == TABLE && row.int("writes_percent") == u64::from(writes);
        let rows: Vec<&Row> = rows.iter().filter(of).collect();
        let Some(ours) = rows.iter().find(|row| row.is("who", OURS[0].0)) else { continue };
        for theirs in rows.iter().filter(|row| !row.is("who", OURS[0].0)) {
            let small = theirs.is("who", OURS[1].0);
            let who = if small { "small folios" } else { theirs.word("who") };
            let mut say = |what: &str, name: &str, seed: Option<f64>, goal: Option<Goal>| {
                let pairs = ours.ints(name).into_iter().zip(theirs.ints(name));
                let ratios = pairs.map(|(ours, theirs)| ours as f64 / theirs.max(1) as f64);
                let [least, ratio, most] = spread(ratios);
                let what = format!("{writes} % writes: {what} by {who}'s ({least:.2}-{most:.2})");
                verdicts.push(Verdict {
                    what,
                    seed,
                    ours: Some(ratio),
                    goal,
                    ..Verdict::default()
                });
            };
            let goals = match small {
                true => [Some(Goal::AtLeast(gain)), None],
                false => [Some(Goal::AtLeast(RATE)), Some(Goal::AtMost(CPU))],
            };
            say("calls a second", "round_calls_s", small.then_some(seed), goals[0]);
            say("CPU of a call", "round_cpu_ns", None, goals[1]);
        }
    }
    for row in rows.iter().filter(|row| row.table == TRIM) {
        let (who, volume) = (row.word("who"), row.word("reads"));
        let judged = who == OURS[0].0;
        let mut say = |what: &str, ours: f64, goal: Goal| {
            verdicts.push(Verdict {
                what: format!("{who}: {what} of reads of {volume} volume beside a trim"),
                ours: Some(ours),
                goal: judged.then_some(goal),
                ..Verdict::default()
            });
        };
        say("rate by that before", row.real("ratio"), Goal::AtLeast(BESIDE.0));
        let p99 = row.real("beside_p99_us") / row.real("alone_p99_us").max(0.1);
        say("p99 by that before", p99, Goal::AtMost(BESIDE.1));
        say("longest, us,", row.real("beside_longest_us"), Goal::AtMost(LONGEST_US));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(calls_s: [f64; 3], cpu_ns: f64) -> Vec<Times> {
        calls_s.map(|calls_s| Times { calls_s, cpu_ns, sleeps: 0.0 }).to_vec()
    }

    #[test]
    fn rate_and_cpu_are_compared_round_by_round_with_each_side() {
        let rows = [
            row(OURS[0].0, 30, &times([250.0, 500.0, 1000.0], 800.0)),
            row(OURS[1].0, 30, &times([125.0, 400.0, 500.0], 900.0)),
            row("ext4", 30, &times([200.0, 400.0, 800.0], 1000.0)),
            row("loop", 30, &times([210.0, 410.0, 810.0], 990.0)),
        ];
        let verdicts = judge(&rows);
        let ours: Vec<_> = verdicts.iter().filter_map(|verdict| verdict.ours).collect();
        assert_eq!(ours[..4], [2.0, 800.0 / 900.0, 1.25, 0.8]);
        assert!(verdicts[0].what.ends_with("(1.25-2.00)"), "{}", verdicts[0].what);
        let met: Vec<_> = verdicts.iter().map(Verdict::is_met).collect();
        assert_eq!(
            met,
            [true, true, true, true, false, false],
            "the CPU of small folios has no goal"
        );
        assert_eq!(verdicts[0].seed, Some(1.42));
    }

    fn trim_run(beside_us: [f64; 3]) -> TrimRun {
        let reads = Reads([vec![10.0; 100], beside_us.to_vec()]);
        TrimRun { seconds: [1.0, 0.05], trim_ms: 3.0, readers: vec![reads.clone(), reads] }
    }

    #[test]
    fn readers_beside_a_trim_are_compared_with_themselves_before_it() {
        let rows = |us| [trim_row(OURS[0].0, "the same", &[trim_run(us)], 0)];
        let verdicts = judge(&rows([10.0, 10.0, 20.0]));
        let ours: Vec<_> = verdicts.iter().filter_map(|verdict| verdict.ours).collect();
        assert_eq!(ours, [0.6, 2.0, 20.0]);
        assert!(verdicts.iter().all(Verdict::is_met));
        let late = judge(&rows([10.0, 10.0, 20_001.0]));
        assert_eq!(late.iter().map(Verdict::is_met).collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn a_small_run_has_rows_of_every_side() {
        let folder = std::env::temp_dir().join(format!("headworks-jobs.{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let options = JobsOptions {
            size: 8 << 20,
            jobs: 3,
            owners: 2,
            trim: 4 << 20,
            rounds: 1,
            runtime: Duration::from_millis(3),
            beside: vec![("files".into(), vec![folder.clone()])],
            ..JobsOptions::default()
        };
        let report = run(&options);
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
        let report = report.expect("it runs");
        let of = |table: &str| report.rows.iter().filter(|row| row.table == table).count();
        assert_eq!((of(TABLE), of(TRIM)), (MIXES.len() * 3, 3 * 2));
        assert_eq!(report.verdicts.len(), MIXES.len() * 4 + 3 * 6);
    }
}
