//! Seed 001 on real threads: one elevator behind one lock, as it was, beside one owner fed by rings.
//!
//! The seed's machine had 128 CPUs and its trouble is 16 of them meeting at one lock; its ratio cannot be had on two. What
//! can: how often a lock is taken for a request, what that costs here, whether requests reach the device in the order in which
//! they left the elevator. A *cell* is a way of working, a number of threads and their places; its jobs are the seed's fio job
//! (randwrite, 4k, iodepth 32, submit and complete in batches of 8) and its device is null, without latency.
//!
//! ```text
//!                 one by one   batch of 8   rings
//!   std mutex         x            x                    each with 2 threads on 2 CPUs, and with 16 wherever they run;
//!   spin lock         x            x                    rings also with 1 feeder
//!   no lock                                   x
//! ```
//!
//! Rounds of all cells take turns, so that what the machine does beside hits every cell alike. A round is counted after a
//! warm-up by what the jobs have published, so neither start nor end is in it.

mod job;
mod lock;
mod locked;
mod rings;

pub use job::OrderCounts;
pub use lock::LockCounts;

use std::sync::Mutex;
use std::time::{Duration, Instant as WallClock};

use headworks::core::{QueueOptions, Scheduler};
use headworks::device::NullDevice;
use headworks::embed::Counts;
use headworks::server::pin;

use job::{Signals, Stream};
use lock::SpinLock;

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

/// A way of working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Every job dispatches, under a lock.
    Locked(LockKind, Dispatch),
    /// One owner, fed by rings.
    Rings,
}

impl Way {
    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Way::Locked(LockKind::Mutex, Dispatch::OneByOne) => "mutex, one by one",
            Way::Locked(LockKind::Mutex, Dispatch::Batch) => "mutex, batch",
            Way::Locked(LockKind::Spin, Dispatch::OneByOne) => "spin lock, one by one",
            Way::Locked(LockKind::Spin, Dispatch::Batch) => "spin lock, batch",
            Way::Rings => "rings",
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
            seconds: 0.5,
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
pub struct Cell {
    /// How.
    pub way: Way,
    /// Jobs; rings have an owner beside them.
    pub threads: u32,
    /// Where.
    pub placement: Placement,
    /// In the order in which they ran.
    pub rounds: Vec<Round>,
    /// From a run of its own.
    pub order: OrderCounts,
}

impl Cell {
    fn new(way: Way, threads: u32, placement: Placement) -> Self {
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
pub fn cells(jobs: u32) -> Vec<Cell> {
    let locked = [LockKind::Mutex, LockKind::Spin].into_iter().flat_map(|lock| {
        [Dispatch::OneByOne, Dispatch::Batch].map(|dispatch| Way::Locked(lock, dispatch))
    });
    let ways: Vec<Way> = locked.chain([Way::Rings]).collect();
    let places = [(2, Placement::Pinned), (jobs, Placement::Free)];
    let mut cells: Vec<Cell> = places
        .into_iter()
        .flat_map(|(threads, place)| ways.iter().map(move |&way| Cell::new(way, threads, place)))
        .collect();
    cells.push(Cell::new(Way::Rings, 1, Placement::Free));
    cells
}

/// Runs every cell, round by round in rotation.
///
/// # Errors
/// An option that cannot be, or an owner that could not start.
pub fn run(options: &ContentionOptions) -> Result<Vec<Cell>, String> {
    run_cells(options, cells(options.jobs))
}

/// Runs some cells, as [`run`] does all: to look at one alone.
///
/// # Errors
/// As [`run`].
pub fn run_cells(options: &ContentionOptions, mut cells: Vec<Cell>) -> Result<Vec<Cell>, String> {
    options.validate()?;
    for cell in &mut cells {
        if options.watched_requests > 0 {
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

/// What the verdicts of the experiment are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Findings {
    /// Rings against the best one-by-one locked cell, medians, 2 pinned threads.
    pub ratio_pinned: f64,
    /// The same with many threads.
    pub ratio_many: f64,
    /// Many feeders against one.
    pub many_to_one: f64,
    /// The best batch cell against the best one-by-one cell, many threads: what the seed's patches gain here.
    pub batch_ratio_many: f64,
    /// Lock acquisitions for a request to leave the elevator, most of the batch cells.
    pub batch_dispatch_locks: f64,
    /// The most lock acquisitions per request of a rings cell: 0, there is no lock.
    pub rings_locks: f64,
    /// Inversions of the rings cells together.
    pub rings_inversions: u64,
    /// Bios that failed in any cell.
    pub errors: u64,
}

/// The findings of cells that [`run`] gave.
#[must_use]
pub fn findings(cells: &[Cell]) -> Findings {
    let best = |placement, wanted: &dyn Fn(Way) -> bool| {
        let those = cells.iter().filter(|cell| {
            cell.placement == placement
                && wanted(cell.way)
                && (cell.threads > 1 || cells.len() == 1)
        });
        those.map(|cell| cell.iops().0).fold(0.0, f64::max)
    };
    let one_by_one = |way: Way| matches!(way, Way::Locked(_, Dispatch::OneByOne));
    let batch = |way: Way| matches!(way, Way::Locked(_, Dispatch::Batch));
    let rings = |way: Way| way == Way::Rings;
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    let against = |place| ratio(best(place, &rings), best(place, &one_by_one));
    let of = |wanted: fn(Way) -> bool| cells.iter().filter(move |cell| wanted(cell.way));
    let lone = of(|way| way == Way::Rings).find(|cell| cell.threads == 1);
    let most = |figures: &mut dyn Iterator<Item = f64>| figures.fold(0.0, f64::max);
    Findings {
        ratio_pinned: against(Placement::Pinned),
        ratio_many: against(Placement::Free),
        many_to_one: ratio(best(Placement::Free, &rings), lone.map_or(0.0, |cell| cell.iops().0)),
        batch_ratio_many: ratio(best(Placement::Free, &batch), best(Placement::Free, &one_by_one)),
        batch_dispatch_locks: most(
            &mut of(|way| matches!(way, Way::Locked(_, Dispatch::Batch)))
                .map(|cell| cell.per_request(|round| round.locks.dispatch)),
        ),
        rings_locks: most(
            &mut of(|way| way == Way::Rings)
                .map(|cell| cell.per_request(|round| round.locks.acquired())),
        ),
        rings_inversions: of(|way| way == Way::Rings).map(|cell| cell.order.inversions).sum(),
        errors: cells.iter().flat_map(|cell| &cell.rounds).map(|round| round.errors).sum(),
    }
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
struct Load<'a> {
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

impl<'a> Load<'a> {
    fn new(options: &ContentionOptions, cell: &Cell, signals: &'a Signals) -> Self {
        let queue = QueueOptions { scheduler: options.scheduler, ..NullDevice::queue_options() };
        Self {
            jobs: cell.threads,
            iodepth: options.iodepth,
            batch: options.batch,
            size: options.size,
            seed: options.seed,
            queue,
            placement: cell.placement,
            rings: cell.way == Way::Rings,
            requests: u64::MAX,
            watched: false,
            signals,
        }
    }

    fn stream(&self, job: u32) -> Stream<'a> {
        let blocks = self.size / u64::from(job::BLOCK);
        Stream::new(self.signals, job, self.seed, blocks, self.requests)
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
struct Ran {
    round: Round,
    order: Option<OrderCounts>,
}

fn run_jobs(way: Way, load: &Load<'_>, meanwhile: impl FnOnce()) -> Result<Ran, String> {
    if let Way::Locked(lock, dispatch) = way {
        let (tally, order) = match lock {
            LockKind::Mutex => locked::run::<Mutex<_>>(load, dispatch, meanwhile),
            LockKind::Spin => locked::run::<SpinLock<_>>(load, dispatch, meanwhile),
        };
        let (counted_requests, locks) = (tally.answered, tally.locks);
        return Ok(Ran { round: Round { counted_requests, locks, ..Round::default() }, order });
    }
    let (tally, order) = rings::run(load, meanwhile)?;
    let round = Round {
        counted_requests: tally.answered,
        errors: tally.errors,
        rings: tally.rings,
        ..Round::default()
    };
    Ok(Ran { round, order })
}

/// One round: warm-up, then the clock, then the end.
fn timed(options: &ContentionOptions, cell: &Cell) -> Result<Round, String> {
    let signals = Signals::new(cell.threads);
    let load = Load::new(options, cell, &signals);
    let mut found = (0, 0, 0);
    let ran = run_jobs(cell.way, &load, || {
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
fn watch(options: &ContentionOptions, cell: &Cell) -> Result<OrderCounts, String> {
    let signals = Signals::new(cell.threads);
    let requests = options.watched_requests;
    let load = Load { requests, watched: true, ..Load::new(options, cell, &signals) };
    Ok(run_jobs(cell.way, &load, || {})?.order.unwrap_or_default())
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
