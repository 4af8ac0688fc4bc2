//! Seed 001 on real threads: one elevator behind one lock against feeders that drive one shard.
//!
//! The seed's machine had 128 CPUs, 16 of which contended for one lock; that ratio is not
//! reproducible on two CPUs. What can be measured: lock acquisitions per request, their cost on
//! this machine, and whether requests reach the device in the order in which they left the
//! elevator. A *cell* is a method, a number of threads and their placement. Its jobs are the seed's
//! fio job (randwrite, 4k, iodepth 32, submit and complete in batches of 8) and its device is a
//! null device without latency.
//!
//! ```text
//!                          one by one   batch of 8
//!   elevator  std mutex        x            x
//!             spin lock        x            x         each with 2 threads on 2 CPUs, and with 16 wherever they run;
//!   path      std mutex        x            x         feeders drive: also with 1 thread
//!             spin lock        x            x
//!             no lock: feeders drive        x
//!             no lock: owner's thread       x
//! ```
//!
//! The first four methods are the seed's: only the elevator is behind the lock and the rest of a
//! block layer is absent, so they are faster than any real implementation. The next four put the
//! complete path behind the lock. The last two are the product, with `Drive::Feeders` and with
//! `Drive::Thread`: they do the work of the complete path, and that of buffers and rings besides.
//!
//! Profile on 2 CPUs (cpu-clock samples of one cell at a time, by source line, percent; varies by a
//! few):
//!
//! | one by one | taking the lock: its line is elsewhere | spinning | kernel | mq-deadline | the rest |
//! |---|---|---|---|---|---|
//! | mutex, 2 pinned | 24 | 17 | 15 | 26 | 18 |
//! | mutex, 16 | 26 | 10 | 11 | 32 | 21 |
//! | spin lock, 2 pinned | 42 | 8 | 1 | 23 | 26 |
//! | spin lock, 16 | 42 | 9 | 1 | 23 | 25 |
//!
//! In batches of 8, most spinning remains (spin lock 36, mutex 18-32), because the merge lookup
//! takes the lock for every bio, as in the kernel. A loser of the mutex sleeps in the kernel, and
//! until it runs again the winner takes the lock repeatedly with all lines in its own cache: the
//! whole path behind a mutex with 16 jobs uses one CPU of two. So the mutex is fastest where it
//! effectively serialises the threads, and its figures vary with the sleeping pattern (2.5-10 M/s).
//! An owner's thread spends 15-25 ns of about 180 on rings (with `none`: 105-115 ns a request, 89
//! where the shard's own thread makes the bios); a quarter to a half of the rest is mq-deadline. A
//! lone feeder that drives needs 185 ns with all of its own work, of which 35 are outside the shard:
//! slots, completions, commands, the clock.
//!
//! Rounds of all cells alternate, so that other load on the machine affects all cells alike. A
//! round is measured after a warm-up, by the progress that the jobs publish, so start and end are
//! excluded.

mod job;
mod lock;
mod locked;
mod rings;
mod summary;
mod whole_path;
mod window;

pub use job::OrderCounts;
pub use lock::LockCounts;
pub use summary::{ContentionSummary, SpeedRatio, summary};

use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant as WallClock};

use headworks::RingCounts as Counts;
use headworks::driver::Clock;
use headworks::house::pin_thread;
use headworks::{Drive, NullDevice};
use headworks_core::{BfqOptions, QueueOptions, Scheduler};

use job::{Signals, Stream};
use lock::SpinLock;
use window::{Answers, Path, Window};

/// A value alone on its cache lines: 128 bytes, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

/// The kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `std::sync::Mutex`, which spins briefly and then sleeps.
    Mutex,
    /// A test-and-test-and-set lock, which yields the CPU after a while.
    Spin,
}

/// How requests are dispatched from a locked elevator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// One lock acquisition for each request.
    OneByOne,
    /// One acquisition for up to a batch of requests, as in the seed's patches.
    Batch,
}

/// What the lock protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// The elevator and the merge index alone, as in the seed.
    Elevator,
    /// The whole shard, with all that the product's path does.
    Shard,
}

/// A method of dispatching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every job dispatches, under a lock around the given scope.
    Locked(Guards, LockKind, Dispatch),
    /// Jobs feed rings, and a job that finds no driver drives the shard.
    Feeders,
    /// Jobs feed rings into an owner's thread, which alone drives the shard.
    Rings,
}

impl Method {
    /// The name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        use Dispatch::{Batch, OneByOne};
        use LockKind::{Mutex, Spin};
        match self {
            Method::Locked(Guards::Elevator, Mutex, OneByOne) => "mutex, one by one",
            Method::Locked(Guards::Elevator, Mutex, Batch) => "mutex, batch",
            Method::Locked(Guards::Elevator, Spin, OneByOne) => "spin lock, one by one",
            Method::Locked(Guards::Elevator, Spin, Batch) => "spin lock, batch",
            Method::Locked(Guards::Shard, Mutex, OneByOne) => "whole path, mutex, one by one",
            Method::Locked(Guards::Shard, Mutex, Batch) => "whole path, mutex, batch",
            Method::Locked(Guards::Shard, Spin, OneByOne) => "whole path, spin lock, one by one",
            Method::Locked(Guards::Shard, Spin, Batch) => "whole path, spin lock, batch",
            Method::Feeders => "feeders drive",
            Method::Rings => "owner's thread drives",
        }
    }
}

/// Placement of a cell's threads on CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Threads pinned round-robin; an owner that drives alone has the last CPU and the jobs the others.
    Pinned,
    /// Placement by the kernel's scheduler.
    Free,
}

/// Options of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct ContentionOptions {
    /// Number of rounds of each cell.
    pub rounds: u32,
    /// Seconds of a round, without its warm-up.
    pub seconds: f64,
    /// Seconds of warm-up before each round.
    pub warm_up_seconds: f64,
    /// Jobs of the large cells, 1..=64.
    pub jobs: u32,
    /// Requests of a job in flight, 1..=64.
    pub iodepth: u32,
    /// Requests submitted and completed together, and dispatched under one lock acquisition,
    /// 1..=iodepth.
    pub batch: u32,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Seed of the random blocks.
    pub seed: u64,
    /// The elevator behind the lock.
    pub scheduler: Scheduler,
    /// Requests of each job in the separate run that observes the order; 0 for none.
    pub watched_requests: u64,
}

impl Default for ContentionOptions {
    fn default() -> Self {
        Self {
            rounds: 5,
            seconds: 0.4,
            warm_up_seconds: 0.1,
            jobs: 16,
            iodepth: 32,
            batch: 8,
            size: 1 << 40,
            seed: 1,
            scheduler: Scheduler::MqDeadline,
            watched_requests: 20_000,
        }
    }
}

/// Ring operations, the counterpart of lock acquisitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Totals of the feeders' ends.
    pub feeders: Counts,
    /// Totals of the owner's end.
    pub owner: Counts,
    /// Number of turns of the shard.
    pub turns: u64,
    /// Those of `turns` on the jobs' threads.
    pub feeder_turns: u64,
    /// Times that a job left batches of others to another driver.
    pub hand_overs: u64,
}

/// The measurements of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Requests answered during the measured time.
    pub requests: u64,
    /// The measured time in nanoseconds.
    pub elapsed_ns: u64,
    /// CPU time of the process during the measured time.
    pub cpu_ns: u64,
    /// All answered requests with warm-up and end, the base of the counts below.
    pub counted_requests: u64,
    /// Number of failed bios; always 0.
    pub errors: u64,
    /// Lock acquisitions of the round.
    pub locks: LockCounts,
    /// Ring operations of the round.
    pub rings: RingCounts,
}

impl Round {
    /// Dispatched requests per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.requests as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// CPU time per request of all threads.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> f64 {
        self.cpu_ns as f64 / self.requests.max(1) as f64
    }
}

/// A cell with its measurements.
#[derive(Clone, Debug)]
pub struct ContentionCell {
    /// Method that dispatches the requests.
    pub way: Method,
    /// Number of jobs; an owner's thread comes in addition.
    pub threads: u32,
    /// Placement of the threads.
    pub placement: Placement,
    /// Rounds in order of time.
    pub rounds: Vec<Round>,
    /// Counts of the separate run; zero for a whole path behind a lock.
    pub order: OrderCounts,
}

impl ContentionCell {
    fn new(way: Method, threads: u32, placement: Placement) -> Self {
        Self { way, threads, placement, rounds: Vec::new(), order: OrderCounts::default() }
    }

    /// Median, minimum and maximum of `figure` over the rounds.
    #[must_use]
    pub fn spread(&self, figure: impl Fn(&Round) -> f64) -> (f64, f64, f64) {
        let mut values: Vec<f64> = self.rounds.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        match (values.first(), values.last()) {
            (Some(&least), Some(&most)) => (values[values.len() / 2], least, most),
            _ => (0.0, 0.0, 0.0),
        }
    }

    /// Requests per second: median, minimum and maximum.
    #[must_use]
    pub fn iops(&self) -> (f64, f64, f64) {
        self.spread(Round::iops)
    }

    /// A count of all rounds per request.
    #[must_use]
    pub fn per_request(&self, count: impl Fn(&Round) -> u64) -> f64 {
        let requests: u64 = self.rounds.iter().map(|round| round.counted_requests).sum();
        self.rounds.iter().map(count).sum::<u64>() as f64 / requests.max(1) as f64
    }
}

/// The cells of the experiment, without measurements.
#[must_use]
pub fn cells(jobs: u32) -> Vec<ContentionCell> {
    let mut ways = Vec::new();
    for guards in [Guards::Elevator, Guards::Shard] {
        for lock in [LockKind::Mutex, LockKind::Spin] {
            ways.extend(
                [Dispatch::OneByOne, Dispatch::Batch].map(|how| Method::Locked(guards, lock, how)),
            );
        }
    }
    ways.extend([Method::Feeders, Method::Rings]);
    let places = [(2, Placement::Pinned), (jobs, Placement::Free)];
    let mut cells: Vec<ContentionCell> = places
        .into_iter()
        .flat_map(|(threads, place)| {
            ways.iter().map(move |&way| ContentionCell::new(way, threads, place))
        })
        .collect();
    cells.push(ContentionCell::new(Method::Feeders, 1, Placement::Free));
    cells
}

/// Runs every cell, round by round in rotation.
///
/// # Errors
/// An invalid option, or an owner that could not start.
pub fn run(options: &ContentionOptions) -> Result<Vec<ContentionCell>, String> {
    run_cells(options, cells(options.jobs))
}

/// Runs selected cells, as [`run`] does all.
///
/// # Errors
/// As [`run`].
pub fn run_cells(
    options: &ContentionOptions,
    mut cells: Vec<ContentionCell>,
) -> Result<Vec<ContentionCell>, String> {
    options.validate()?;
    for cell in &mut cells {
        let watchable = !matches!(cell.way, Method::Locked(Guards::Shard, ..));
        if watchable && options.watched_requests > 0 {
            cell.order = watch(options, cell)?;
        }
    }
    for _ in 0..options.rounds {
        for cell in &mut cells {
            let round = timed(options, cell)?;
            cell.rounds.push(round);
        }
    }
    Ok(cells)
}

impl ContentionOptions {
    fn validate(&self) -> Result<(), String> {
        let within = |name: &str, value: u32, most: u32| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name}: {value} is not within 1..={most}")),
        };
        within("jobs", self.jobs, 64)?;
        within("iodepth", self.iodepth, 64)?;
        within("batch", self.batch, self.iodepth)?;
        if self.size < u64::from(job::BLOCK) {
            return Err(format!("size: {} bytes hold no block", self.size));
        }
        Ok(())
    }
}

/// The load of a cell, and its end condition.
struct CellLoad<'a> {
    jobs: u32,
    iodepth: u32,
    batch: u32,
    size: u64,
    seed: u64,
    queue: QueueOptions,
    placement: Placement,
    drive: Drive,
    /// Requests of each job; practically unlimited if a clock ends them.
    requests: u64,
    watched: bool,
    signals: &'a Signals,
}

impl<'a> CellLoad<'a> {
    fn new(options: &ContentionOptions, cell: &ContentionCell, signals: &'a Signals) -> Self {
        let usual = NullDevice::queue_options();
        // No cell drives the elevator's timer, and waiting for a queue never pays on a null device.
        let bfq = BfqOptions { slice_idle_us: 0, ..usual.bfq };
        let queue = QueueOptions { scheduler: options.scheduler, bfq, ..usual };
        Self {
            jobs: cell.threads,
            iodepth: options.iodepth,
            batch: options.batch,
            size: options.size,
            seed: options.seed,
            queue,
            placement: cell.placement,
            drive: match cell.way {
                Method::Rings => Drive::Thread,
                _ => Drive::Feeders,
            },
            requests: u64::MAX,
            watched: false,
            signals,
        }
    }

    fn stream(&self, job: u32) -> Stream<'a> {
        let blocks = self.size / u64::from(job::BLOCK);
        Stream::new(self.signals, job, self.seed, blocks, self.requests)
    }

    /// Runs a job on each thread, and `meanwhile` on this one; returns the total of answers and
    /// lock acquisitions.
    fn run_jobs<P: Path>(
        &self,
        path: impl Fn() -> P + Sync,
        meanwhile: impl FnOnce(),
    ) -> (u64, LockCounts) {
        let (answers, clock) = (Answers::new(self.jobs), Clock::start());
        let start = Barrier::new(self.jobs as usize + 1);
        let job = |job| {
            self.place(job);
            let window = Window::new(&answers, job, self.iodepth);
            let (mut path, stream) = (path(), self.stream(job));
            start.wait();
            window::drive(&mut path, window, stream, self.batch, clock)
        };
        let (job, mut total) = (&job, (0, LockCounts::default()));
        std::thread::scope(|scope| {
            let jobs: Vec<_> =
                (0..self.jobs).map(|index| scope.spawn(move || job(index))).collect();
            start.wait();
            meanwhile();
            for job in jobs {
                let (answered, locks) = job.join().expect("a job does not panic");
                total.0 += answered;
                total.1.add(&locks);
            }
        });
        total
    }

    /// Pins the calling thread to the CPU of a job.
    fn place(&self, job: u32) {
        if self.placement == Placement::Pinned {
            let for_jobs = match self.drive {
                Drive::Thread => (cpus() - 1).max(1),
                Drive::Feeders => cpus(),
            };
            pin_thread(job as usize % for_jobs);
        }
    }

    fn owner_cpu(&self) -> Option<usize> {
        let alone = self.drive == Drive::Thread && self.placement == Placement::Pinned;
        alone.then(|| cpus() - 1)
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// The result of a run, timed or not.
struct CellRun {
    round: Round,
    order: Option<OrderCounts>,
}

fn run_method(
    way: Method,
    load: &CellLoad<'_>,
    meanwhile: impl FnOnce(),
) -> Result<CellRun, String> {
    let (answered, locks, order) = match way {
        Method::Locked(Guards::Elevator, LockKind::Mutex, how) => {
            locked::run::<Mutex<_>>(load, how, meanwhile)
        }
        Method::Locked(Guards::Elevator, LockKind::Spin, how) => {
            locked::run::<SpinLock<_>>(load, how, meanwhile)
        }
        Method::Locked(Guards::Shard, lock, how) => {
            let (answered, locks) = match lock {
                LockKind::Mutex => whole_path::run::<Mutex<_>>(load, how, meanwhile)?,
                LockKind::Spin => whole_path::run::<SpinLock<_>>(load, how, meanwhile)?,
            };
            (answered, locks, None)
        }
        Method::Feeders | Method::Rings => return rings::run(load, meanwhile),
    };
    Ok(CellRun { round: Round { counted_requests: answered, locks, ..Round::default() }, order })
}

/// Runs one round: warm-up, measured time, end.
fn timed(options: &ContentionOptions, cell: &ContentionCell) -> Result<Round, String> {
    let signals = Signals::new(cell.threads);
    let load = CellLoad::new(options, cell, &signals);
    let mut found = (0, 0, 0);
    let ran = run_method(cell.way, &load, || {
        std::thread::sleep(Duration::from_secs_f64(options.warm_up_seconds));
        let (requests, cpu, began) = (signals.answered(), cpu_ns(), WallClock::now());
        std::thread::sleep(Duration::from_secs_f64(options.seconds));
        let elapsed = began.elapsed().as_nanos() as u64;
        found = (signals.answered() - requests, elapsed, cpu_ns() - cpu);
        signals.stop();
    })?;
    let (requests, elapsed_ns, cpu_ns) = found;
    Ok(Round { requests, elapsed_ns, cpu_ns, ..ran.round })
}

/// Runs a cell and observes the order of requests.
fn watch(options: &ContentionOptions, cell: &ContentionCell) -> Result<OrderCounts, String> {
    let signals = Signals::new(cell.threads);
    let requests = options.watched_requests;
    let load = CellLoad { requests, watched: true, ..CellLoad::new(options, cell, &signals) };
    Ok(run_method(cell.way, &load, || {})?.order.unwrap_or_default())
}

/// CPU time of the process, user and system.
fn cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread, user and system.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct it is given.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests;
