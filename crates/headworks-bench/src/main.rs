//! The `headworks-bench` program, which `headworks bench` runs: a device in process, an NBD server or a vhost-user device is measured, in
//! fio's terms.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod allocations;
mod device;
mod feeders;
mod holes;
mod nbd;
mod vhost;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use headworks_core::QueueOptions;
use headworks_nbd::client::bench::{BenchOptions, CONNECTIONS_MAX, Pattern, Verify, Waiting};
use headworks_nbd::client::{ClientOptions, Uri};
use headworks_program::bench::BenchArgs;
use headworks_program::{USAGE, begin, close_images, complain, end, explain};
use headworks_server::Spec;

use crate::nbd::BenchNbdOptions;
use crate::vhost::BenchVhostOptions;

/// Measures a device in this process, an NBD server or a vhost-user device
#[derive(Parser)]
#[command(
    name = "headworks-bench",
    bin_name = "headworks bench",
    version,
    args_override_self = true
)]
struct Line {
    #[command(flatten)]
    options: BenchArgs,
}

fn main() -> ExitCode {
    begin();
    let code = match Line::try_parse() {
        Ok(line) => run(line.options),
        Err(error) => return explain(&error, &Line::command()),
    };
    close_images();
    end(code)
}

/// Runs the benchmark and returns the exit code.
fn run(options: BenchArgs) -> ExitCode {
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
