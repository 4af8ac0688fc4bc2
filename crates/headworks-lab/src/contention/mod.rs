//! Seed 001 on real threads: one elevator behind one lock, as it was, beside one owner fed by rings.
//!
//! The seed's machine had 128 CPUs and its trouble is 16 of them meeting at one lock; its ratio cannot be had on two. What
//! can: how often a lock is taken for a request, what that costs here, whether requests reach the device in the order in which
//! they left the elevator. A *cell* is a way of working, a number of threads and their places; its jobs are the seed's fio job
//! (randwrite, 4k, iodepth 32, submit and complete in batches of 8) and its device is null, without latency.
//!
//! ```text
//!                          one by one   batch of 8   rings
//!   elevator  std mutex        x            x
//!             spin lock        x            x               each with 2 threads on 2 CPUs, and with 16 wherever they run;
//!   path      std mutex        x            x               rings also with 1 feeder
//!             spin lock        x            x
//!             no lock                                  x
//! ```
//!
//! The first four are the seed's: the elevator alone behind the lock, and nothing of the rest of a block layer beside it, so
//! they are better than any real old way. The next four are the old way with all that the rings' path does.
//!
//! What was seen on 2 CPUs (cpu-clock samples of one cell at a time, by source line, percent; they move by a few):
//!
//! | one by one | taking the lock: its line is elsewhere | spinning | kernel | mq-deadline | the rest |
//! |---|---|---|---|---|---|
//! | mutex, 2 pinned | 24 | 17 | 15 | 26 | 18 |
//! | mutex, 16 | 26 | 10 | 11 | 32 | 21 |
//! | spin lock, 2 pinned | 42 | 8 | 1 | 23 | 26 |
//! | spin lock, 16 | 42 | 9 | 1 | 23 | 25 |
//!
//! In batches of 8 both locks are mostly spun for (spin lock 36, mutex 18-32): the merge lookup takes the lock for every bio
//! all the same, as in the kernel. Whoever loses the mutex sleeps in the kernel, and while it is on its way back the winner
//! takes the lock again and again with all lines in its own cache: the whole path behind a mutex with 16 jobs uses one CPU of
//! two. So the mutex does best where it makes one thread of many, and its figures jump (2.5-10 M/s) with who sleeps when.
//! Rings cost the owner 15-25 ns of about 180 (with `none`: 105-115 ns a request, 89 where the shard's own thread makes the
//! bios); a quarter to a half of the rest is mq-deadline.
//!
//! Rounds of all cells take turns, so that what the machine does beside hits every cell alike. A round is counted after a
//! warm-up by what the jobs have published, so neither start nor end is in it.

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

use headworks::device::NullDevice;
use headworks::embed::Counts;
use headworks::{Clock, pin};
use headworks_core::{QueueOptions, Scheduler};

use job::{Signals, Stream};
use lock::SpinLock;
use window::{Answers, Path, Window};

/// Which lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `std::sync::Mutex`: spins a little, then sleeps.
    Mutex,
    /// Test and test-and-set, gives the CPU away when that takes long.
    Spin,
}

/// How requests leave a locked elevator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// The lock is taken for each.
    OneByOne,
    /// Up to a batch of them under one hold, as the seed's patches do.
    Batch,
}

/// What is behind the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guards {
    /// The elevator and the merge index alone: the seed's lock, with less beside it than the kernel has.
    Elevator,
    /// The whole shard: all that our path does.
    Shard,
}

/// A way of working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every job dispatches, under a lock around what `Guards` says.
    Locked(Guards, LockKind, Dispatch),
    /// One owner, fed by rings.
    Rings,
}

impl Method {
    /// For tables.
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
            Method::Rings => "rings",
        }
    }
}

/// Where a cell's threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Job by job on one CPU after the other. An owner has the last CPU, and the jobs the others.
    Pinned,
    /// Wherever the kernel puts them.
    Free,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct ContentionOptions {
    /// Rounds of each cell.
    pub rounds: u32,
    /// Of a round, without its warm-up.
    pub seconds: f64,
    /// Before each round.
    pub warm_up_seconds: f64,
    /// Jobs of the large cells, 1..=64.
    pub jobs: u32,
    /// Requests of a job in flight, 1..=64.
    pub iodepth: u32,
    /// Requests submitted and completed together, and taken out under one hold, 1..=iodepth.
    pub batch: u32,
    /// Bytes of the disk.
    pub size: u64,
    /// Of the blocks.
    pub seed: u64,
    /// The elevator.
    pub scheduler: Scheduler,
    /// Requests of each job in the run that watches the order; it is not timed. 0: none.
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

/// What rings took instead of locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// The feeders' end, all of them.
    pub feeders: Counts,
    /// The owner's end.
    pub owner: Counts,
    /// Calls of the shard.
    pub turns: u64,
}

/// One round of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Answered while the clock ran.
    pub requests: u64,
    /// How long it ran.
    pub elapsed_ns: u64,
    /// CPU time of the process meanwhile.
    pub cpu_ns: u64,
    /// Answered in all, with warm-up and end: what the counts below are for.
    pub counted_requests: u64,
    /// Bios that failed: none.
    pub errors: u64,
    /// Lock acquisitions.
    pub locks: LockCounts,
    /// Pushes and wake-ups.
    pub rings: RingCounts,
}

impl Round {
    /// Requests a second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.requests as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// CPU time of a request, of all threads.
    #[must_use]
    pub fn cpu_ns_per_request(&self) -> f64 {
        self.cpu_ns as f64 / self.requests.max(1) as f64
    }
}

/// One cell and what was found.
#[derive(Clone, Debug)]
pub struct ContentionCell {
    /// How.
    pub way: Method,
    /// Jobs; rings have an owner beside them.
    pub threads: u32,
    /// Where.
    pub placement: Placement,
    /// In the order in which they ran.
    pub rounds: Vec<Round>,
    /// From a run of its own; nothing for a whole path behind a lock.
    pub order: OrderCounts,
}

impl ContentionCell {
    fn new(way: Method, threads: u32, placement: Placement) -> Self {
        Self { way, threads, placement, rounds: Vec::new(), order: OrderCounts::default() }
    }

    /// The middle of `figure` over the rounds, and its extremes: (median, least, most).
    #[must_use]
    pub fn spread(&self, figure: impl Fn(&Round) -> f64) -> (f64, f64, f64) {
        let mut values: Vec<f64> = self.rounds.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        match (values.first(), values.last()) {
            (Some(&least), Some(&most)) => (values[values.len() / 2], least, most),
            _ => (0.0, 0.0, 0.0),
        }
    }

    /// Requests a second: (median, least, most).
    #[must_use]
    pub fn iops(&self) -> (f64, f64, f64) {
        self.spread(Round::iops)
    }

    /// A count of all rounds for each request.
    #[must_use]
    pub fn per_request(&self, count: impl Fn(&Round) -> u64) -> f64 {
        let requests: u64 = self.rounds.iter().map(|round| round.counted_requests).sum();
        self.rounds.iter().map(count).sum::<u64>() as f64 / requests.max(1) as f64
    }
}

/// The cells of the experiment, nothing found yet.
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
    ways.push(Method::Rings);
    let places = [(2, Placement::Pinned), (jobs, Placement::Free)];
    let mut cells: Vec<ContentionCell> = places
        .into_iter()
        .flat_map(|(threads, place)| {
            ways.iter().map(move |&way| ContentionCell::new(way, threads, place))
        })
        .collect();
    cells.push(ContentionCell::new(Method::Rings, 1, Placement::Free));
    cells
}

/// Runs every cell, round by round in rotation.
///
/// # Errors
/// An option that cannot be, or an owner that could not start.
pub fn run(options: &ContentionOptions) -> Result<Vec<ContentionCell>, String> {
    run_cells(options, cells(options.jobs))
}

/// Runs some cells, as [`run`] does all: to look at one alone.
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

/// A cell's jobs, and when they end.
struct CellLoad<'a> {
    jobs: u32,
    iodepth: u32,
    batch: u32,
    size: u64,
    seed: u64,
    queue: QueueOptions,
    placement: Placement,
    rings: bool,
    /// Requests of each job; very many if a clock ends them.
    requests: u64,
    watched: bool,
    signals: &'a Signals,
}

impl<'a> CellLoad<'a> {
    fn new(options: &ContentionOptions, cell: &ContentionCell, signals: &'a Signals) -> Self {
        let queue = QueueOptions { scheduler: options.scheduler, ..NullDevice::queue_options() };
        Self {
            jobs: cell.threads,
            iodepth: options.iodepth,
            batch: options.batch,
            size: options.size,
            seed: options.seed,
            queue,
            placement: cell.placement,
            rings: cell.way == Method::Rings,
            requests: u64::MAX,
            watched: false,
            signals,
        }
    }

    fn stream(&self, job: u32) -> Stream<'a> {
        let blocks = self.size / u64::from(job::BLOCK);
        Stream::new(self.signals, job, self.seed, blocks, self.requests)
    }

    /// Runs a job on each of its threads, and `meanwhile` on this one; what they answered and locked together.
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

    /// Puts the calling thread where the job belongs.
    fn place(&self, job: u32) {
        if self.placement == Placement::Pinned {
            let for_jobs = if self.rings { (cpus() - 1).max(1) } else { cpus() };
            pin(job as usize % for_jobs);
        }
    }

    fn owner_cpu(&self) -> Option<usize> {
        (self.placement == Placement::Pinned).then(|| cpus() - 1)
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// What a run of a cell's jobs gives, timed or not.
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
        Method::Rings => return rings::run(load, meanwhile),
    };
    Ok(CellRun { round: Round { counted_requests: answered, locks, ..Round::default() }, order })
}

/// One round: warm-up, then the clock, then the end.
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

/// A run whose order is watched.
fn watch(options: &ContentionOptions, cell: &ContentionCell) -> Result<OrderCounts, String> {
    let signals = Signals::new(cell.threads);
    let requests = options.watched_requests;
    let load = CellLoad { requests, watched: true, ..CellLoad::new(options, cell, &signals) };
    Ok(run_method(cell.way, &load, || {})?.order.unwrap_or_default())
}

/// CPU time of the process, user and system.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests;
