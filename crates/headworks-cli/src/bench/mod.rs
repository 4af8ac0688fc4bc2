//! `headworks bench`: command line of the benchmark, in fio's terms; for a device in process, an NBD server or a vhost-user device.

pub(crate) mod allocations;
pub(crate) mod device;
pub(crate) mod feeders;
pub(crate) mod holes;
pub(crate) mod nbd;
pub(crate) mod vhost;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headworks_core::QueueOptions;
use headworks_nbd::client::bench::{BenchOptions, CONNECTIONS_MAX, Pattern, Verify, Waiting};
use headworks_nbd::client::{ClientOptions, Uri};
use headworks_server::{Spec, parse_size, parse_time};

use crate::bench::nbd::BenchNbdOptions;
use crate::bench::vhost::BenchVhostOptions;
use crate::known_words::{ENGINES, PATTERNS};
use crate::tunables::QueueArgs;
use crate::{USAGE, complain};

/// Measures a device in this process, an NBD server or a vhost-user device
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks bench --device null:size=1T --bs 4k --iodepth 32
  headworks bench --device file:path=disk.img --rw randread --iodepth 64
  headworks bench --device null:size=1T --rw randwrite --feeders 16
  headworks bench --device mem:size=1G --cache 2G --rw randread       with a page cache
  headworks bench --uri 'nbd+unix:///?socket=/run/d.sock' --rw randwrite --verify
  headworks bench --uri nbd://host --rate 20000 --iodepth 256         latency at a load
  headworks bench --uri 'vhost-user+unix:///?socket=/run/d.vhost' --poll     as a virtual machine's driver")]
pub struct BenchArgs {
    /// Device to measure in this process; a write pattern OVERWRITES it
    #[arg(long, value_name = "SPEC", required_unless_present = "uri", conflicts_with = "uri")]
    device: Option<String>,
    /// NBD server or vhost-user device to measure; a write pattern needs an export of zeros, or --overwrite
    #[arg(long)]
    uri: Option<String>,
    /// DESTROY what the export holds: without this a write pattern is refused unless what it would overwrite is all zeros (server)
    #[arg(long, conflicts_with = "device")]
    overwrite: bool,
    /// Access pattern: read, write, randread, randwrite or randrw
    #[arg(long, default_value = "randread", value_parser = PATTERNS, hide_possible_values = true)]
    rw: String,
    /// Block size: bytes of each request
    #[arg(long, default_value = "4k", value_parser = parse_size)]
    bs: u64,
    /// Requests in flight, per thread
    #[arg(long, default_value_t = 32)]
    iodepth: u32,
    /// Number of connections to a server, of queues of a vhost-user device, or of shards in process. Up to 64 have a thread each; more connections, up
    /// to 4096, are divided among one thread for each CPU, and latencies contain the wait for that thread
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Number of threads that submit to one shard over rings (in process); without it each shard's thread submits
    /// itself
    #[arg(long, value_name = "N", conflicts_with_all = ["uri", "threads", "ios"])]
    feeders: Option<u32>,
    /// Requests a second that arrive at random, whatever was answered; latencies count from when a request was due. Without it each reply makes
    /// room for the next request (NBD server)
    #[arg(long, value_name = "N", conflicts_with = "device")]
    rate: Option<u32>,
    /// Duration of the run
    #[arg(long, default_value = "5s", value_parser = parse_time, value_name = "TIME")]
    runtime: u64,
    /// Stop after this many requests instead of after --runtime (in process)
    #[arg(long, value_name = "N", conflicts_with = "uri")]
    ios: Option<u64>,
    /// Use only this many bytes from the start (server), or the size of a device without one (in process)
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Size of the page cache of each thread; 0: no cache (in process)
    #[arg(long, value_parser = parse_size, default_value = "0", conflicts_with = "uri", value_name = "SIZE")]
    cache: u64,
    /// Seed of the random offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// I/O engine: auto, uring or threads (in process)
    #[arg(long, default_value = "auto", conflicts_with = "uri", value_parser = ENGINES, hide_possible_values = true)]
    engine: String,
    /// Write the whole range once before measuring (server)
    #[arg(long, conflicts_with = "device")]
    fill: bool,
    /// Compare what is read with what was written (server)
    #[arg(long, conflicts_with = "device")]
    verify: bool,
    /// With --verify: the export is new, so blocks that were never written must read as zeros
    #[arg(long, requires = "verify")]
    from_zeros: bool,
    /// Negotiate structured replies (server)
    #[arg(long, conflicts_with = "device")]
    structured: bool,
    /// Busy-poll for replies instead of sleeping (server)
    #[arg(long, conflicts_with = "device")]
    poll: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    queue: QueueArgs,
}

/// Runs the benchmark and returns the exit code.
pub fn run(options: BenchArgs) -> ExitCode {
    match measure(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            complain(message);
            ExitCode::from(code)
        }
    }
}

type Failure = (u8, String);

fn usage(error: impl std::fmt::Display) -> Failure {
    (USAGE, error.to_string())
}

fn measure(options: BenchArgs) -> Result<(), Failure> {
    let pattern: Pattern = options.rw.parse().map_err(usage)?;
    let block_bytes = u32::try_from(options.bs).ok().filter(|bytes| (1..=32 << 20).contains(bytes));
    let block_bytes =
        block_bytes.ok_or_else(|| usage(format!("bs: {} is not within 1..=32M", options.bs)))?;
    let threads_max = if options.uri.is_some() { CONNECTIONS_MAX } else { 64 };
    if options.iodepth == 0
        || options.iodepth > 4096
        || options.threads == 0
        || options.threads > threads_max
    {
        return Err(usage(format!(
            "iodepth must be within 1..=4096 and threads within 1..={threads_max}"
        )));
    }
    if options.feeders.is_some_and(|feeders| !(1..=1024).contains(&feeders)) {
        return Err(usage("feeders must be within 1..=1024"));
    }
    match (&options.device, &options.uri) {
        (Some(device), _) => in_process(device, &options, pattern, block_bytes),
        (None, Some(uri)) if uri.starts_with(vhost::SCHEME) => {
            machine(uri, &options, pattern, block_bytes)
        }
        (None, Some(uri)) => server(uri, &options, pattern, block_bytes),
        (None, None) => Err(usage("name a --device or a --uri")),
    }
}

fn in_process(
    device: &str,
    options: &BenchArgs,
    pattern: Pattern,
    block_bytes: u32,
) -> Result<(), Failure> {
    options.queue.apply(&mut QueueOptions::default()).map_err(usage)?;
    let (mut device, share) = Spec::parse_export(device).map_err(usage)?;
    if (share.offset, share.length, share.partition) != (0, 0, 0) {
        return Err(usage(
            "offset, length and partition are keys of an export; a bench has the whole device",
        ));
    }
    if let Some(size) = options.size {
        device.set_default_size(size);
    }
    let queue = options.queue.clone();
    let bench = device::DeviceBenchOptions {
        device,
        pattern,
        block_bytes,
        iodepth: options.iodepth,
        threads: options.threads,
        feeders: options.feeders.unwrap_or(0),
        runtime: Duration::from_nanos(options.runtime),
        ios: options.ios,
        seed: options.seed,
        engine: options.engine.parse().map_err(usage)?,
        cache: device::cache_of(options.cache).map_err(usage)?,
        dirty: queue.dirty().map_err(usage)?,
        share,
        queue: Box::new(move |options| queue.apply(options)),
        json: options.json,
    };
    device::run(&bench).map_err(|message| (1, message))
}

/// Raises the soft limit of open files to `count`, within the hard limit. Without it the connect reports the error.
fn allow_open_files(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits live until the calls have returned.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < count {
            limit.rlim_cur = count.min(limit.rlim_max);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

fn verification(options: &BenchArgs) -> Verify {
    match (options.verify, options.from_zeros) {
        (false, _) => Verify::Off,
        (true, false) => Verify::Written,
        (true, true) => Verify::FromZeros,
    }
}

/// A vhost-user device, as the driver of a virtual machine.
fn machine(
    uri: &str,
    options: &BenchArgs,
    pattern: Pattern,
    block_bytes: u32,
) -> Result<(), Failure> {
    if options.structured {
        return Err(usage("structured replies are NBD's; a vhost-user device has none"));
    }
    if options.rate.is_some() {
        return Err(usage(
            "a rate is for NBD servers; a vhost-user device is measured with --iodepth",
        ));
    }
    if options.threads > u32::from(headworks_vhost::QUEUES_MAX) {
        let most = headworks_vhost::QUEUES_MAX;
        return Err(usage(format!("threads are queues of the device, at most {most}")));
    }
    let bench = BenchVhostOptions {
        uri: uri.to_owned(),
        target: uri.parse().map_err(usage)?,
        pattern,
        block_bytes,
        iodepth: options.iodepth,
        queues: options.threads,
        runtime: Duration::from_nanos(options.runtime),
        size: options.size,
        fill: options.fill,
        verify: verification(options),
        poll: options.poll,
        seed: options.seed,
        overwrite: options.overwrite,
        json: options.json,
    };
    vhost::run(&bench).map_err(|message| (1, message))
}

fn server(
    uri: &str,
    options: &BenchArgs,
    pattern: Pattern,
    block_bytes: u32,
) -> Result<(), Failure> {
    let uri: Uri = uri.parse().map_err(usage)?;
    allow_open_files(u64::from(options.threads) + 64);
    let verify = verification(options);
    let bench = BenchOptions {
        pattern,
        block_bytes,
        iodepth: options.iodepth,
        threads: options.threads,
        rate: options.rate,
        runtime: Duration::from_nanos(options.runtime),
        size: options.size,
        fill: options.fill,
        verify,
        waiting: if options.poll { Waiting::Poll } else { Waiting::Sleep },
        seed: options.seed,
        client: ClientOptions { structured: options.structured, ..ClientOptions::default() },
        ..BenchOptions::new(uri)
    };
    let run =
        nbd::run(&BenchNbdOptions { bench, overwrite: options.overwrite, json: options.json });
    run.map_err(|message| (1, message))
}
