//! Cached blocks in process and in the kernel, measured alternately in one run.
//!
//! ```text
//!   round 1: ours, batch 1 | ours, batch 32 | file | block device     round 2: the same again ...
//!   each:    warm up, then so many calls at random blocks of the set, by one thread on one CPU
//! ```
//!
//! Times are CPU time of the calling thread, which equals elapsed time on an idle CPU, because
//! these jobs do not sleep; elapsed times are printed as well. Before random overwrites everything
//! is dirty, so that the cost of a block's first write is on neither side; the kernel's cache is
//! written out between runs, ours never fills up. One thread in the kernel is compared with one
//! thread in the library, whose cache has one driver.
//!
//! The jobs `lent-...` read in place, by a handle of an owner that holds the set, too: ours lends the
//! bytes where the kernel copies them. In `lent-4k` and `lent-64k` neither side uses the bytes
//! afterwards, in `lent-4k-read` and `lent-64k-read` both read a byte of each line.

pub mod driver;
pub mod jobs;
pub mod kernel;
pub mod lent;
mod side;

use std::path::PathBuf;
use std::time::Instant as WallClock;

use headworks_core::cache::folio::BLOCK;
use headworks_core::prng::Prng;
use headworks_core::{ConfigError, Op};

use crate::report::{Goal, Progress, Report, Row, Verdict};
use driver::{BATCH_BYTES_MAX, BatchWork, CacheDriver, CacheDriverOptions, Io};
use kernel::Kernel;
use lent::{LentDriver, read_lines};

const TABLE: &str = "cached blocks";
/// A run is preceded by this fraction of its calls, uncounted.
const WARM_UP: u64 = 10;
/// Bytes of a call that fills or dirties the set.
const FILL_BYTES: u32 = 1 << 20;

/// Number of blocks whose contents are checked at the end.
const CHECKS: u64 = 1000;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct CachedOptions {
    /// Bytes of the set.
    pub size: u64,
    /// Number of runs of each job.
    pub rounds: u32,
    /// Calls of 4 KiB in a run; larger calls move as many bytes, at most four times as many.
    pub calls: u64,
    /// The CPU to run on; `None` leaves it to the kernel.
    pub cpu: Option<usize>,
    /// Seed of the random blocks.
    pub seed: u64,
    /// Files and block devices for comparison, with their names. They are overwritten.
    pub beside: Vec<(String, PathBuf)>,
    /// Only these jobs, such as `read-4k`; all if empty.
    pub jobs: Vec<String>,
    /// Only these batches; all if empty.
    pub batches: Vec<u32>,
    /// The `max_folio_order` of the cache.
    pub max_folio_order: u8,
    /// The cache's memory outlives the process, as a server's with `--cache-file`.
    pub kept: bool,
}

impl Default for CachedOptions {
    fn default() -> Self {
        Self {
            size: 1 << 30,
            rounds: 5,
            calls: 400_000,
            cpu: None,
            seed: 1,
            beside: Vec::new(),
            jobs: Vec::new(),
            batches: Vec::new(),
            max_folio_order: 9,
            kept: false,
        }
    }
}

/// A job of random reads or overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Job {
    work: Work,
    bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Read,
    Write,
    /// Reads in place; `reads`: both sides read what they have then.
    Lend {
        reads: bool,
    },
}

const JOBS: [Job; 8] = [
    Job { work: Work::Read, bytes: 4 << 10 },
    Job { work: Work::Write, bytes: 4 << 10 },
    Job { work: Work::Read, bytes: 64 << 10 },
    Job { work: Work::Write, bytes: 64 << 10 },
    Job { work: Work::Lend { reads: false }, bytes: 4 << 10 },
    Job { work: Work::Lend { reads: false }, bytes: 64 << 10 },
    Job { work: Work::Lend { reads: true }, bytes: 4 << 10 },
    Job { work: Work::Lend { reads: true }, bytes: 64 << 10 },
];

impl Job {
    fn name(self) -> String {
        let (word, rest) = match self.work {
            Work::Read => ("read", ""),
            Work::Write => ("write", ""),
            Work::Lend { reads: false } => ("lent", ""),
            Work::Lend { reads: true } => ("lent", "-read"),
        };
        format!("{word}-{}k{rest}", self.bytes >> 10)
    }

    fn op(self) -> Op {
        if self.work == Work::Write { Op::Write } else { Op::Read }
    }

    /// Number of calls in a run.
    fn calls(self, options: &CachedOptions) -> u64 {
        (options.calls * 4 * 4096 / u64::from(self.bytes)).clamp(1, options.calls)
    }
}

/// The side that makes the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours { batch: u32 },
    Kernel(usize),
}

/// Times per call of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    cpu_ns: f64,
    wall_ns: f64,
}

struct Bench<'a> {
    options: &'a CachedOptions,
    driver: CacheDriver,
    /// For the jobs that read in place, if there are any.
    lent: Option<LentDriver>,
    kernels: Vec<Kernel>,
    prng: Prng,
}

/// Runs the measurement.
///
/// # Errors
/// A file that cannot be used, or a call that failed.
pub fn run(options: &CachedOptions) -> Result<Report, ConfigError> {
    if !(u64::from(FILL_BYTES)..=1 << 40).contains(&options.size)
        || !options.size.is_multiple_of(FILL_BYTES.into())
    {
        return Err(ConfigError::new("size", "must be 1M to 1T in whole MiB"));
    }
    if let Some(cpu) = options.cpu {
        headworks::house::pin_thread(cpu);
    }
    let mut bench = Bench::new(options)?;
    let jobs: Vec<Job> = jobs(options).collect();
    let mut cells = Vec::new();
    for &job in &jobs {
        for side in bench.sides(job) {
            cells.push((job, side, Vec::new()));
        }
    }
    let mut progress = Progress::new("cached", cells.len() * options.rounds as usize);
    for &job in &jobs {
        for _ in 0..options.rounds {
            for (_, side, times) in cells.iter_mut().filter(|cell| cell.0 == job) {
                times.push(bench.run(job, *side)?);
                progress.step();
            }
        }
    }
    bench.check()?;
    let rows = cells.iter().map(|(job, side, times)| bench.row(*job, *side, times)).collect();
    Ok(bench.report(rows))
}

/// The jobs that the options select.
fn jobs(options: &CachedOptions) -> impl Iterator<Item = Job> {
    let wanted = |job: &Job| options.jobs.is_empty() || options.jobs.contains(&job.name());
    JOBS.into_iter().filter(wanted)
}

impl<'a> Bench<'a> {
    fn new(options: &'a CachedOptions) -> Result<Self, ConfigError> {
        let mut kernels = Vec::new();
        for (name, path) in &options.beside {
            kernels.push(Kernel::new(name, path, options.size)?);
        }
        // Dirty blocks up to a third of the pool cause no write-out: the background threshold is at
        // most half of the limit.
        let mut driver = CacheDriver::new(&CacheDriverOptions {
            size: options.size,
            pool: (options.size * 5 / 2).next_multiple_of(1 << 21),
            max_folio_order: options.max_folio_order,
            kept: options.kept,
        })?;
        dirty_all(&mut driver, options.size)?;
        let lends = jobs(options).any(|job| matches!(job.work, Work::Lend { .. }));
        let lent = lends.then(|| LentDriver::new(options.size, options.max_folio_order));
        let lent = lent.transpose()?;
        Ok(Self { options, driver, lent, kernels, prng: Prng::new(options.seed) })
    }

    fn sides(&self, job: Job) -> Vec<Side> {
        let fits = |&batch: &u32| batch as usize * job.bytes as usize <= BATCH_BYTES_MAX;
        let wanted =
            |batch: &u32| self.options.batches.is_empty() || self.options.batches.contains(batch);
        // 4 of 64 KiB are one turn of the server.
        let batches: &[u32] = match job.work {
            Work::Lend { .. } => &[1],
            _ if job.bytes > 4096 => &[1, 4],
            _ => &[1, 32],
        };
        let ours = batches.iter().copied().filter(fits).filter(wanted);
        let ours = ours.map(|batch| Side::Ours { batch });
        ours.chain((0..self.kernels.len()).map(Side::Kernel)).collect()
    }

    fn run(&mut self, job: Job, side: Side) -> Result<Times, ConfigError> {
        let calls = job.calls(self.options);
        if job.work == Work::Write {
            match side {
                Side::Ours { .. } => dirty_all(&mut self.driver, self.options.size)?,
                Side::Kernel(index) => self.kernels[index].overwrite().map_err(broken)?,
            }
        }
        self.calls(job, side, calls / WARM_UP)?;
        let (cpu, wall) = (thread_cpu_ns(), WallClock::now());
        let done = self.calls(job, side, calls)? as f64;
        let (wall, cpu) = (wall.elapsed().as_nanos() as f64, thread_cpu_ns() - cpu);
        if let (Side::Kernel(index), Work::Write) = (side, job.work) {
            self.kernels[index].settle().map_err(broken)?;
        }
        Ok(Times { cpu_ns: cpu as f64 / done, wall_ns: wall / done })
    }

    /// Makes at least `calls` calls at random blocks; returns their number.
    fn calls(&mut self, job: Job, side: Side, calls: u64) -> Result<u64, ConfigError> {
        let (op, len) = (job.op(), job.bytes);
        let reads = job.work == Work::Lend { reads: true };
        let blocks = self.options.size / u64::from(len);
        let prng = &mut self.prng;
        let mut offset = || prng.below(blocks) * u64::from(len);
        match (side, &mut self.lent) {
            (Side::Ours { .. }, Some(lent)) if matches!(job.work, Work::Lend { .. }) => {
                for _ in 0..calls {
                    lent.call(offset(), len, reads)?;
                }
                Ok(calls)
            }
            (Side::Ours { batch }, _) => {
                let batches = calls.div_ceil(batch.into());
                for _ in 0..batches {
                    let io = |_| Io { op, offset: offset(), len, connection: 0 };
                    self.driver.call(BatchWork::Everything, (0..batch).map(io))?;
                }
                Ok(batches * u64::from(batch))
            }
            (Side::Kernel(index), _) => {
                let kernel = &mut self.kernels[index];
                for _ in 0..calls {
                    kernel.call(op, offset(), len).map_err(broken)?;
                    if reads {
                        read_lines(kernel.bytes(len));
                    }
                }
                Ok(calls)
            }
        }
    }

    /// Checks the stamps of our blocks.
    fn check(&mut self) -> Result<(), ConfigError> {
        let blocks = self.options.size / u64::from(BLOCK);
        (0..CHECKS).try_for_each(|_| {
            let block = self.prng.below(blocks);
            let offset = block * u64::from(BLOCK);
            if let Some(lent) = &mut self.lent {
                lent.check(offset)?;
            }
            self.driver.check(offset)
        })
    }

    fn row(&self, job: Job, side: Side, times: &[Times]) -> Row {
        let (name, batch) = match side {
            Side::Ours { batch } => ("headworks", batch),
            Side::Kernel(index) => (self.kernels[index].name.as_str(), 1),
        };
        let [least, cpu, most] = spread(times.iter().map(|times| times.cpu_ns));
        let [_, wall, _] = spread(times.iter().map(|times| times.wall_ns));
        Row::new(TABLE)
            .with("job", job.name())
            .with("who", name)
            .with("batch", batch)
            .with("runs", times.len())
            .with("calls", job.calls(self.options))
            .with_real("cpu_ns_least", least, 1)
            .with_real("cpu_ns", cpu, 1)
            .with_real("cpu_ns_most", most, 1)
            .with_real("wall_ns", wall, 1)
    }

    fn report(&self, rows: Vec<Row>) -> Report {
        let mut notes = vec![format!(
            "{TABLE}: {} MiB, random aligned blocks, {} runs of each in turn, medians; ns of one thread for each call{}",
            self.options.size >> 20,
            self.options.rounds,
            self.options.cpu.map_or(String::new(), |cpu| format!(", on CPU {cpu}")),
        )];
        for kernel in &self.kernels {
            let pages = kernel.pages_per_folio();
            let pages = pages.map_or("unknown".into(), |pages| format!("{pages:.1}"));
            notes.push(format!("{}: pages in a folio of the kernel's cache: {pages}", kernel.name));
        }
        notes.push(format!("headworks: bios that had to wait: {}", self.driver.waited));
        if let Some(lent) = &self.lent {
            notes.push(format!("headworks: reads in place that were repeated: {}", lent.busy));
        }
        Report { title: "cached".into(), notes, verdicts: judge(&rows), rows }
    }
}

/// Writes the whole set in large pieces, so that it is cached in large folios, and dirty.
pub(crate) fn dirty_all(driver: &mut CacheDriver, size: u64) -> Result<(), ConfigError> {
    for offset in (0..size).step_by(FILL_BYTES as usize) {
        let io = Io { op: Op::Write, offset, len: FILL_BYTES, connection: 0 };
        driver.call(BatchWork::Everything, std::iter::once(io))?;
    }
    Ok(())
}

/// Goals: how many times faster each job must be than each peer, in calls alone and in batches.
const GOALS: [(&str, &str, [f64; 2]); 18] = [
    ("read-4k", "xfs", [1.6, 2.5]),
    ("read-4k", "ext4", [1.6, 2.5]),
    ("read-4k", "loop", [1.6, 2.5]),
    ("write-4k", "xfs", [2.5, 2.5]),
    ("write-4k", "ext4", [2.5, 2.5]),
    ("write-4k", "loop", [20.0, 20.0]),
    ("read-64k", "xfs", [1.25, 1.25]),
    ("read-64k", "ext4", [1.25, 1.25]),
    ("read-64k", "loop", [1.25, 1.25]),
    ("write-64k", "xfs", [1.25, 1.25]),
    ("write-64k", "ext4", [1.25, 1.25]),
    ("write-64k", "loop", [1.25, 1.25]),
    ("lent-4k", "xfs", [5.0, 5.0]),
    ("lent-4k", "ext4", [5.0, 5.0]),
    ("lent-4k", "loop", [5.0, 5.0]),
    ("lent-64k", "xfs", [10.0, 10.0]),
    ("lent-64k", "ext4", [10.0, 10.0]),
    ("lent-64k", "loop", [10.0, 10.0]),
];

/// Computes the verdicts: for each job and batch, the kernel's time over ours.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let mut verdicts = Vec::new();
    for ours in rows.iter().filter(|row| row.is("who", "headworks")) {
        let job = ours.word("job");
        for theirs in rows.iter().filter(|row| row.is("job", job) && !row.is("who", "headworks")) {
            let who = theirs.word("who");
            let goal = GOALS.iter().find(|goal| (goal.0, goal.1) == (job, who));
            verdicts.push(Verdict {
                what: format!("{job}, batch {}: times as fast as {who}", ours.int("batch")),
                seed: None,
                baseline: Some(theirs.real("cpu_ns")),
                ours: Some(theirs.real("cpu_ns") / ours.real("cpu_ns").max(0.1)),
                goal: goal.map(|goal| Goal::AtLeast(goal.2[usize::from(ours.int("batch") > 1)])),
                ..Verdict::default()
            });
        }
    }
    verdicts
}

/// Minimum, median and maximum.
pub(crate) fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => [f64::NAN; 3],
        len => [values[0], values[len / 2], values[len - 1]],
    }
}

fn broken(error: std::io::Error) -> ConfigError {
    ConfigError::new("beside", error.to_string())
}

/// CPU time of this thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of this process.
fn process_cpu_ns() -> u64 {
    cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct it is given.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: &str, batch: u32, ns: f64) -> Row {
        row_of("write-4k", who, batch, ns)
    }

    fn row_of(job: &str, who: &str, batch: u32, ns: f64) -> Row {
        Row::new(TABLE)
            .with("job", job)
            .with("who", who)
            .with("batch", batch)
            .with_real("cpu_ns", ns, 1)
    }

    #[test]
    fn verdict_is_peer_time_over_ours_with_the_goal_of_that_peer() {
        let rows = [row("headworks", 32, 400.0), row("xfs", 1, 1000.0), row("loop", 1, 7000.0)];
        let verdicts = judge(&rows);
        assert_eq!(verdicts.len(), 2);
        assert_eq!(verdicts[0].ours, Some(2.5));
        assert!(verdicts[0].is_met());
        assert_eq!(verdicts[1].ours, Some(17.5));
        assert!(!verdicts[1].is_met(), "17.5 times is not 20 times");
    }

    #[test]
    fn batches_have_goals_of_their_own() {
        let ours = [1, 32].map(|batch| row_of("read-4k", "headworks", batch, 500.0));
        let [alone, batch] = ours;
        let verdicts = judge(&[alone, batch, row_of("read-4k", "xfs", 1, 1000.0)]);
        assert_eq!(verdicts.iter().map(Verdict::is_met).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn small_set_is_measured_on_both_sides() {
        let folder = std::env::temp_dir().join(format!("headworks-cached.{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let options = CachedOptions {
            size: 4 << 20,
            rounds: 1,
            calls: 64,
            beside: vec![("file".into(), folder.join("file"))],
            jobs: vec!["read-4k".into(), "write-64k".into(), "lent-4k-read".into()],
            ..CachedOptions::default()
        };
        let report = run(&options);
        std::fs::remove_dir_all(&folder).expect("the folder can be removed");
        let report = report.expect("it runs");
        let told: Vec<_> = report
            .rows
            .iter()
            .map(|row| (row.word("job"), row.word("who"), row.int("batch")))
            .collect();
        assert_eq!(
            told,
            [
                ("read-4k", "headworks", 1),
                ("read-4k", "headworks", 32),
                ("read-4k", "file", 1),
                ("write-64k", "headworks", 1),
                ("write-64k", "headworks", 4),
                ("write-64k", "file", 1),
                ("lent-4k-read", "headworks", 1),
                ("lent-4k-read", "file", 1),
            ]
        );
        assert!(report.rows.iter().all(|row| row.real("wall_ns") > 0.0));
        assert_eq!(report.verdicts.len(), 5);
    }
}
