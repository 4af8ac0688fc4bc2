//! A benchmark of an NBD server over many connections, each with a pipeline. Up to [`THREADS_MAX`] connections have a thread each;
//! more are divided among as many threads as there are CPUs, see `crowd`.
//!
//! With verification, writes carry stamps (see `stamp`), each connection has its own part of the export, reads are compared with
//! acknowledged writes, and everything written is read back at the end. Without, random patterns use the whole range on every
//! connection; sequential ones divide it.
//!
//! The report has the client's CPU time, because on a shared machine the server cannot use it.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use headworks_core::prng::Prng;

use super::arrivals::Arrivals;
use super::blocks::{Blocks, Work};
use super::crowd;
use super::pipeline::Pipeline;
use super::stamp::SECTOR_BYTES;
use super::worker::{Phase, Worker};
use super::{Client, ClientError, ClientOptions, Export, Histogram, Uri};
use crate::wire::{NbdError, TransmissionFlags};

pub use super::pipeline::Waiting;

/// Most blocks that verification remembers, 4 bytes each.
const VERIFIED_BLOCKS_MAX: u64 = 64 << 20;
/// Most data bytes in flight on each connection.
const DATA_BYTES_MAX: u64 = 1 << 30;
/// Largest depth; a cookie would allow more, no measurement gains from it.
const DEPTH_MAX: u32 = 8192;

/// Largest rate of requests; no client of one machine reaches it.
const RATE_MAX: u32 = 100_000_000;

/// Most connections with a thread each.
pub const THREADS_MAX: usize = 64;
/// Most connections of one benchmark.
pub const CONNECTIONS_MAX: u32 = 4096;

/// An access pattern, with fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random reads and writes.
    RandRw {
        /// Percentage of reads.
        read_percent: u8,
    },
}

impl Pattern {
    /// Returns true when the pattern writes.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::RandRead)
    }

    /// Returns true when the pattern reads.
    #[must_use]
    pub fn reads(self) -> bool {
        !matches!(self, Pattern::Write | Pattern::RandWrite)
    }
}

impl FromStr for Pattern {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        Ok(match text {
            "read" => Pattern::Read,
            "write" => Pattern::Write,
            "randread" => Pattern::RandRead,
            "randwrite" => Pattern::RandWrite,
            "randrw" => Pattern::RandRw { read_percent: 50 },
            _ => {
                let known = "read, write, randread, randwrite or randrw";
                return Err(usage(format!("rw={text} is not known; write {known}")));
            }
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pattern::Read => "read",
            Pattern::Write => "write",
            Pattern::RandRead => "randread",
            Pattern::RandWrite => "randwrite",
            Pattern::RandRw { .. } => "randrw",
        })
    }
}

/// Verification of contents, and the expected contents of unwritten blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Contents are not checked.
    Off,
    /// Only blocks written by this run are checked.
    Written,
    /// The export was new: unwritten blocks read as zeros.
    FromZeros,
}

/// Options of a benchmark. The defaults measure random 4 KiB reads for ten seconds, 32 in flight.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Address of the server and its export.
    pub uri: Uri,
    /// Access pattern of the run.
    pub pattern: Pattern,
    /// Request size in bytes.
    pub block_bytes: u32,
    /// Requests in flight on each connection.
    pub iodepth: u32,
    /// Number of connections to the server.
    pub threads: u32,
    /// Requests a second, all connections together, that arrive at random whatever was answered; none: each reply makes room for a request.
    pub rate: Option<u32>,
    /// Duration of the run, without fill and read back.
    pub runtime: Duration,
    /// Use only this many bytes from the start of the export.
    pub size: Option<u64>,
    /// Write every block once before the run, so that reads transfer data.
    pub fill: bool,
    /// Verification of the contents.
    pub verify: Verify,
    /// How connections wait for replies.
    pub waiting: Waiting,
    /// Seed of offsets, mixes and stamps.
    pub seed: u64,
    /// Connection options: structured replies and time-out.
    pub client: ClientOptions,
}

impl BenchOptions {
    /// Creates the default options for an export.
    #[must_use]
    pub fn new(uri: Uri) -> Self {
        Self {
            uri,
            pattern: Pattern::RandRead,
            block_bytes: 4096,
            iodepth: 32,
            threads: 1,
            rate: None,
            runtime: Duration::from_secs(10),
            size: None,
            fill: false,
            verify: Verify::Off,
            waiting: Waiting::Sleep,
            seed: 1,
            client: ClientOptions::default(),
        }
    }
}

/// Results of one direction, reads or writes.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Latencies to the reply from the submission, or with a rate from when the request was due; and their number.
    pub latency: Histogram,
}

/// Results of one phase, of one connection or of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Successful reads and their latencies.
    pub reads: Direction,
    /// Successful writes and their latencies.
    pub writes: Direction,
    /// Number of requests that the server failed.
    pub errors: u64,
    /// First error of the server.
    pub first_error: Option<NbdError>,
    /// Number of reads with verified contents.
    pub verified: u64,
    /// Longest duration of a connection.
    pub elapsed: Duration,
    /// CPU time of the client (user and system), all connections.
    pub cpu: Duration,
    /// Number of system calls that sent, and that received, data.
    pub calls: [u64; 2],
}

impl Tally {
    pub(super) fn on_done(&mut self, is_write: bool, bytes: u32, latency_ns: u64) {
        let direction = if is_write { &mut self.writes } else { &mut self.reads };
        direction.bytes += u64::from(bytes);
        direction.latency.record(latency_ns);
    }

    #[cold]
    pub(super) fn on_error(&mut self, error: NbdError) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            mine.bytes += theirs.bytes;
            mine.latency.add(&theirs.latency);
        }
        self.errors += other.errors;
        self.first_error = self.first_error.or(other.first_error);
        self.verified += other.verified;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.cpu += other.cpu;
        self.calls = [0, 1].map(|index| self.calls[index] + other.calls[index]);
    }

    /// Returns the number of successful requests.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.reads.latency.count() + self.writes.latency.count()
    }

    /// Returns successful requests per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.ios() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns transferred bytes per second.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        (self.reads.bytes + self.writes.bytes) as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the client's CPU time per request in nanoseconds.
    #[must_use]
    pub fn cpu_ns_per_io(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.ios().max(1) as f64
    }
}

/// The report of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// The server's description of the export.
    pub export: Export,
    /// Results of the run.
    pub run: Tally,
    /// Results of reading back, with verification.
    pub read_back: Option<Tally>,
    /// A circumstance that limits the validity of the figures, if any.
    pub warning: Option<String>,
}

/// Runs a benchmark and returns its report.
pub fn run(options: &BenchOptions) -> Result<BenchReport, ClientError> {
    let (export, mut workers) = connect(options)?;
    let timeout = options.client.timeout;
    if options.fill {
        all(&mut workers, Phase::Fill, timeout)?;
    }
    let run = all(&mut workers, Phase::Run(options.runtime), timeout)?;
    let read_back = match options.verify {
        Verify::Off => None,
        _ => Some(all(&mut workers, Phase::ReadBack, timeout)?),
    };
    workers.into_iter().for_each(Worker::goodbye);
    let shared = export.flags.contains(TransmissionFlags::CAN_MULTI_CONN);
    let warning = (options.threads > 1 && !shared)
        .then(|| "the server does not advertise multi-conn: writes of one connection may not be visible on others".to_owned());
    Ok(BenchReport { export, run, read_back, warning })
}

/// Runs several benchmarks of one server at the same time and returns the results of each. They start when all are connected, and
/// only requests that end within `runtime` after `ramp` count, so that shares can be compared; `watch` starts with them and may
/// query the server meanwhile. `fill` and `verify` are ignored.
pub fn run_together<T: Send>(
    jobs: &[BenchOptions],
    ramp: Duration,
    runtime: Duration,
    watch: impl FnOnce() -> T + Send,
) -> Result<(Vec<Tally>, T), ClientError> {
    let connected: Vec<Vec<Worker>> = jobs
        .iter()
        .map(|job| connect(job).map(|(_, workers)| workers))
        .collect::<Result<_, _>>()?;
    let counts: Vec<usize> = connected.iter().map(Vec::len).collect();
    let mut workers: Vec<Worker> = connected.into_iter().flatten().collect();
    let timeout = jobs.iter().map(|job| job.client.timeout).max().unwrap_or_default();
    let (done, watched) = thread::scope(|scope| {
        let watch = scope.spawn(watch);
        let done = all(&mut workers, Phase::Window(ramp, runtime), timeout);
        (done, watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    done?;
    let mut rest = &workers[..];
    let mut tallies = Vec::with_capacity(jobs.len());
    for count in counts {
        let (own, others) = rest.split_at(count);
        let mut sum = Tally::default();
        own.iter().for_each(|worker| sum.add(&worker.tally));
        tallies.push(sum);
        rest = others;
    }
    workers.into_iter().for_each(Worker::goodbye);
    Ok((tallies, watched))
}

/// Opens the connections, each with its part of the export.
fn connect(options: &BenchOptions) -> Result<(Export, Vec<Worker>), ClientError> {
    let mut connections = Vec::new();
    for _ in 0..options.threads.max(1) {
        connections.push(Client::connect(&options.uri, options.client)?.into_parts());
    }
    let export = connections[0].1.clone();
    let blocks = check(options, &export)?;
    let root = Prng::new(options.seed);
    let workers = (0..)
        .zip(connections)
        .map(|(index, (socket, export))| {
            let pipeline = Pipeline::new(
                (socket, &export),
                options.iodepth as usize,
                options.block_bytes as usize,
                options.waiting,
                options.client.timeout,
            );
            let BenchOptions { pattern, verify, block_bytes, seed, .. } = *options;
            let work = Work { pattern, verify, block_bytes, seed };
            let queues = u64::from(options.threads.max(1));
            let prng = root.split(&format!("connection {index}"));
            let rate = options.rate.map(|rate| f64::from(rate) / queues as f64);
            let arrivals = rate.map(|rate| Arrivals::new(rate, prng.split("arrivals")));
            let blocks = Blocks::new(work, blocks, (index, queues), prng);
            Worker::new(pipeline, options.iodepth as usize, block_bytes, blocks, arrivals)
        })
        .collect();
    Ok((export, workers))
}

/// Runs a phase on all connections; when one fails the others stop.
fn all(workers: &mut [Worker], phase: Phase, timeout: Duration) -> Result<Tally, ClientError> {
    let stop = AtomicBool::new(false);
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let threads = if workers.len() > THREADS_MAX { cpus.min(THREADS_MAX) } else { workers.len() };
    let go = |group: &mut [Worker]| {
        let outcome = match &mut *group {
            [worker] => worker.go(phase, &stop),
            many => crowd::go(many, phase, timeout, &stop),
        };
        // Relaxed: a hint that orders nothing.
        stop.fetch_or(outcome.is_err(), Ordering::Relaxed);
        let mut sum = Tally::default();
        group.iter().for_each(|worker| sum.add(&worker.tally));
        outcome.map(|()| sum)
    };
    let each = workers.len().div_ceil(threads.max(1)).max(1);
    thread::scope(|scope| {
        let threads: Vec<_> =
            workers.chunks_mut(each).map(|group| scope.spawn(|| go(group))).collect();
        let mut sum = Tally::default();
        for thread in threads {
            sum.add(&thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(sum)
    })
}

fn usage(message: impl Into<String>) -> ClientError {
    ClientError::Usage(message.into())
}

/// Checks the options against the export; returns the number of blocks.
fn check(options: &BenchOptions, export: &Export) -> Result<u64, ClientError> {
    let (bytes, depth) = (options.block_bytes, options.iodepth);
    let sizes = export.block_sizes.unwrap_or_default();
    if bytes == 0 || bytes > sizes.max {
        return Err(usage(format!("bs={bytes}: the server takes 1 to {} bytes", sizes.max)));
    }
    if !bytes.is_multiple_of(sizes.min.max(1)) {
        return Err(usage(format!("bs={bytes}: the server takes multiples of {}", sizes.min)));
    }
    if depth == 0 || depth > DEPTH_MAX || u64::from(depth) * u64::from(bytes) > DATA_BYTES_MAX {
        return Err(usage(format!(
            "iodepth={depth}: write 1 to {DEPTH_MAX}, and bs * iodepth up to 1 GiB"
        )));
    }
    if let Some(rate) = options.rate
        && (rate == 0 || rate > RATE_MAX || options.threads as usize > THREADS_MAX)
    {
        return Err(usage(format!(
            "rate={rate}: write 1 to {RATE_MAX}, and at most {THREADS_MAX} threads, each of which keeps its own time"
        )));
    }
    let blocks = options.size.unwrap_or(export.size).min(export.size) / u64::from(bytes);
    if blocks < u64::from(options.threads.max(1)) {
        return Err(usage(format!("bs={bytes}: the range has only {blocks} blocks")));
    }
    let read_only = export.flags.contains(TransmissionFlags::READ_ONLY);
    if read_only && (options.pattern.writes() || options.fill) {
        return Err(usage(format!("rw={}: the export is read-only", options.pattern)));
    }
    if options.verify != Verify::Off {
        if !(bytes as usize).is_multiple_of(SECTOR_BYTES) {
            return Err(usage(format!("bs={bytes}: verify needs multiples of {SECTOR_BYTES}")));
        }
        if blocks > VERIFIED_BLOCKS_MAX {
            let limit = (VERIFIED_BLOCKS_MAX * u64::from(bytes)) >> 30;
            return Err(usage(format!(
                "verify remembers every block; use --size {limit}G or less"
            )));
        }
    }
    Ok(blocks)
}
