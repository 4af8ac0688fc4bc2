//! `headworks bench --uri vhost-user+unix:///?socket=PATH`: measures a vhost-user-blk device with a driver in this process, which needs no
//! virtual machine, and prints the report.
//!
//! ```text
//!   vhost-user+unix:///?socket=PATH[&indirect=1][&pieces=N]
//!      indirect=1     each request is a table of descriptors, as Linux's driver sends requests of several pages
//!      pieces=N       data descriptors of a request, 1 to 126: equal parts of the buffer from its end to its beginning, so that none touches
//!                     the one before it, and a device that joins neighbours has as many
//! ```
//!
//! A queue has a thread, which submits, waits by sleeping or polling, and checks contents as the benchmark of NBD does: writes carry stamps,
//! each queue has its own part of the disk, and everything written is read back. The report has the CPU time of both sides, because
//! requests per CPU second decide: the device's from /proc, if it is a process of this machine that may be read.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use headworks_core::prng::Prng;
use headworks_nbd::client::bench::{Pattern, Verify};
use headworks_nbd::client::blocks::{BlockRequest, Blocks, Order, Work};
use headworks_nbd::client::stamp::SECTOR_BYTES;
use headworks_nbd::client::{Histogram, Target, Uri, cpu_time};
use headworks_program::shown::{print_line, print_text};
use headworks_vhost::RequestOp;
use headworks_vhost::driver::{
    DEPTH_MAX, Driver, DriverOptions, Queue, SlotStatus, Waited, Waiting,
};
use serde_json::{Value, json};

use crate::nbd::{latency, micros};

/// The beginning of a URI of this benchmark.
pub const SCHEME: &str = "vhost-user+unix://";

/// Most bytes of buffers of all queues.
const DATA_BYTES_MAX: u64 = 1 << 30;
/// Most blocks that verification remembers, 4 bytes each.
const VERIFIED_BLOCKS_MAX: u64 = 64 << 20;
/// Most bytes that are read in search of data: about a second's worth.
const LOOKED_AT_MAX: u64 = 1 << 30;
/// Longest time without an answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The address of a device, and the shape of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUri {
    socket: PathBuf,
    is_indirect: bool,
    pieces: u16,
}

impl FromStr for VhostUri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let no = |why: &str| format!("cannot use URI {text:?}: {why}");
        let how = "write vhost-user+unix:///?socket=PATH";
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| no(how))?;
        let (path, query) = rest.split_once('?').ok_or_else(|| no(how))?;
        if !matches!(path, "" | "/") {
            return Err(no("a device has no exports; write three slashes"));
        }
        let (mut is_indirect, mut pieces, mut rest) = (false, 1, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("indirect", "0")) => is_indirect = false,
                Some(("indirect", "1")) => is_indirect = true,
                Some(("pieces", count)) => {
                    let count = count.parse().ok().filter(|count| (1..=126).contains(count));
                    pieces = count.ok_or_else(|| no("pieces must be within 1..=126"))?;
                }
                _ => rest.push(pair),
            }
        }
        // Paths are encoded as in NBD's URIs, by the same function.
        let same = format!("nbd+unix:///?{}", rest.join("&"));
        match same.parse::<Uri>().map_err(|error| error.to_string().replace(&same, text))?.target {
            Target::Unix(socket) => Ok(Self { socket, is_indirect, pieces }),
            Target::Tcp(..) => Err(no(how)),
        }
    }
}

/// Parameters of a benchmark of a device.
pub struct BenchVhostOptions {
    /// The text of the URI, for the report.
    pub uri: String,
    /// Address of the device.
    pub target: VhostUri,
    /// Access pattern of the run.
    pub pattern: Pattern,
    /// Request size in bytes.
    pub block_bytes: u32,
    /// Requests in flight of each queue.
    pub iodepth: u32,
    /// Number of queues, a thread each.
    pub queues: u32,
    /// Duration of the run, without fill and read back.
    pub runtime: Duration,
    /// Use only this many bytes from the start of the disk.
    pub size: Option<u64>,
    /// Write every block once before the run.
    pub fill: bool,
    /// Verification of the contents.
    pub verify: Verify,
    /// Poll the used ring instead of sleeping.
    pub poll: bool,
    /// Seed of offsets, mixes and stamps.
    pub seed: u64,
    /// Write without looking for data.
    pub overwrite: bool,
    /// Print one JSON object instead of text.
    pub json: bool,
}

/// Results of a phase, of one queue or of all.
#[derive(Clone, Debug, Default)]
struct Results {
    reads: Histogram,
    writes: Histogram,
    errors: u64,
    verified: u64,
    elapsed: Duration,
    cpu: Duration,
    kicks: u64,
    waits: u64,
}

impl Results {
    fn add(&mut self, other: &Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.errors += other.errors;
        self.verified += other.verified;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.cpu += other.cpu;
        self.kicks += other.kicks;
        self.waits += other.waits;
    }

    fn ios(&self) -> u64 {
        self.reads.count() + self.writes.count()
    }

    fn per_io(&self, what: f64) -> f64 {
        what / self.ios().max(1) as f64
    }

    fn iops(&self) -> f64 {
        self.ios() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs the benchmark and prints the report; the error is a sentence.
pub fn run(options: &BenchVhostOptions) -> Result<(), String> {
    let mut driver = connect(options)?;
    let blocks = check(options, &driver)?;
    let writes = options.fill || options.pattern.writes();
    if writes && driver.capacity().is_read_only {
        return Err(format!("{} is read-only", options.uri));
    }
    if writes && !options.overwrite {
        refuse_data(options, &mut driver.queues()[0], blocks)?;
    }
    let device = driver.device_process();
    let mut feeders = feeders(options, &mut driver, blocks);
    if options.fill {
        all(&mut feeders, Phase::Fill)?;
    }
    let before = device.and_then(process_cpu);
    let run = all(&mut feeders, Phase::Run(options.runtime))?;
    let spent = device.and_then(process_cpu).zip(before);
    let device_cpu = spent.map(|(after, before)| after.saturating_sub(before));
    let read_back = match options.verify {
        Verify::Off => None,
        _ => Some(all(&mut feeders, Phase::ReadBack)?),
    };
    let report = Report { run, device_cpu, read_back };
    if options.json {
        print_line!("{:#}", as_json(options, &report));
    } else {
        print_text!("{}", as_text(options, &report));
    }
    let phases = [Some(&report.run), report.read_back.as_ref()];
    match phases.into_iter().flatten().map(|results| results.errors).sum() {
        0 => Ok(()),
        errors => Err(format!("the device answered {errors} requests with an error")),
    }
}

struct Report {
    run: Results,
    device_cpu: Option<Duration>,
    read_back: Option<Results>,
}

fn connect(options: &BenchVhostOptions) -> Result<Driver, String> {
    let depth = u16::try_from(options.iodepth).ok().filter(|depth| *depth <= DEPTH_MAX);
    let depth =
        depth.ok_or_else(|| format!("iodepth must be within 1..={DEPTH_MAX} on a queue"))?;
    let bytes = u64::from(options.block_bytes) * u64::from(depth) * u64::from(options.queues);
    if bytes > DATA_BYTES_MAX {
        return Err("bs, iodepth and threads are more than 1G of buffers together".to_owned());
    }
    let waiting = if options.poll { Waiting::Poll } else { Waiting::Sleep };
    let target = &options.target;
    let driver = DriverOptions {
        queues: options.queues as u16,
        depth,
        buffer_bytes: options.block_bytes,
        pieces: target.pieces,
        is_indirect: target.is_indirect,
        waiting,
        ..DriverOptions::new(target.socket.clone())
    };
    Driver::connect(driver).map_err(|error| format!("{}: {error}", options.uri))
}

/// Checks the options against the disk; returns the number of blocks.
fn check(options: &BenchVhostOptions, driver: &Driver) -> Result<u64, String> {
    let (disk, bytes) = (driver.capacity(), u64::from(options.block_bytes));
    let unit = u64::from(disk.block_size);
    if !bytes.is_multiple_of(unit) {
        return Err(format!("bs={bytes}: the device has blocks of {unit} bytes"));
    }
    let pieces = u32::from(options.target.pieces);
    if pieces > disk.segments_max {
        return Err(format!("pieces: the device takes {} at most", disk.segments_max));
    }
    if !options.block_bytes.is_multiple_of(pieces * SECTOR_BYTES as u32) {
        return Err(format!(
            "pieces={pieces} of bs={bytes}: each is a multiple of {SECTOR_BYTES} bytes"
        ));
    }
    let blocks = options.size.unwrap_or(u64::MAX).min(disk.size) / bytes;
    let needed = u64::from(options.queues);
    if blocks < needed {
        return Err(format!(
            "{blocks} blocks of {bytes} bytes for {needed} queues: the range is too small"
        ));
    }
    let verifies = options.verify != Verify::Off;
    if verifies && blocks > VERIFIED_BLOCKS_MAX {
        return Err(format!("verify remembers {VERIFIED_BLOCKS_MAX} blocks at most; pass --size"));
    }
    Ok(blocks)
}

/// Refuses a disk with data where the benchmark writes.
fn refuse_data(options: &BenchVhostOptions, queue: &mut Queue, blocks: u64) -> Result<(), String> {
    let bytes = u64::from(options.block_bytes);
    let cure = "pass --overwrite to destroy it";
    for block in 0..blocks.min(LOOKED_AT_MAX / bytes) {
        queue.put(0, RequestOp::Read, block * bytes, options.block_bytes, 0);
        queue.submit();
        let mut status = None;
        while status.is_none() {
            await_answers(queue)?;
            queue.reap(|answer| status = Some(answer.status));
        }
        if status != Some(0) {
            return Err(format!("{}: offset {} cannot be read", options.uri, block * bytes));
        }
        if queue.buffer(0)[..options.block_bytes as usize].iter().any(|byte| *byte != 0) {
            let at = block * bytes;
            return Err(format!(
                "{} has data, near offset {at}, which this benchmark would overwrite; {cure}",
                options.uri
            ));
        }
    }
    if blocks > LOOKED_AT_MAX / bytes {
        return Err(format!(
            "{} may have data behind the first 1G of zeros, which this benchmark would overwrite; {cure}",
            options.uri
        ));
    }
    Ok(())
}

/// Waits for answers to what a queue has in flight.
fn await_answers(queue: &mut Queue) -> Result<(), String> {
    let why = match queue.wait(SILENCE_MAX) {
        Waited::Answered => return Ok(()),
        Waited::TimedOut => format!("the device has not answered for {} s", SILENCE_MAX.as_secs()),
        Waited::Closed => "the device closed the connection".to_owned(),
    };
    Err(format!("{why}, with {} requests of queue {} in flight", queue.in_flight(), queue.index()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fill,
    Run(Duration),
    ReadBack,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    request: BlockRequest,
    submitted_ns: u64,
}

/// A queue with what it has in flight.
struct Feeder<'a> {
    queue: &'a mut Queue,
    blocks: Blocks,
    /// Parts of a buffer in the order of the data.
    pieces: Vec<(u32, u32)>,
    pending: Vec<Pending>,
    free: Vec<u16>,
    finished: Vec<SlotStatus>,
    results: Results,
}

fn feeders<'a>(
    options: &BenchVhostOptions,
    driver: &'a mut Driver,
    blocks: u64,
) -> Vec<Feeder<'a>> {
    let root = Prng::new(options.seed);
    let BenchVhostOptions { pattern, verify, block_bytes, seed, .. } = *options;
    let work = Work { pattern, verify, block_bytes, seed };
    let queues = u64::from(options.queues);
    let piece = options.block_bytes / u32::from(options.target.pieces);
    let pieces: Vec<_> =
        (0..u32::from(options.target.pieces)).rev().map(|part| (part * piece, piece)).collect();
    let feeder = |(index, queue): (u64, &'a mut Queue)| {
        let prng = root.split(&format!("queue {index}"));
        let mut blocks = Blocks::new(work, blocks, (index, queues), prng);
        let depth = queue.depth();
        // Different bytes in each slot.
        (0..depth).for_each(|slot| blocks.fill_randomly(queue.buffer(slot)));
        Feeder {
            queue,
            blocks,
            pieces: pieces.clone(),
            pending: vec![Pending::default(); usize::from(depth)],
            free: (0..depth).collect(),
            finished: Vec::with_capacity(usize::from(depth)),
            results: Results::default(),
        }
    };
    (0..).zip(driver.queues()).map(feeder).collect()
}

/// Runs a phase on all queues, a thread each.
fn all(feeders: &mut [Feeder<'_>], phase: Phase) -> Result<Results, String> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            feeders.iter_mut().map(|feeder| scope.spawn(move || feeder.go(phase))).collect();
        let mut sum = Results::default();
        for thread in threads {
            let results = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sum.add(&results?);
        }
        Ok(sum)
    })
}

impl Feeder<'_> {
    /// Runs a phase to its end.
    fn go(&mut self, phase: Phase) -> Result<Results, String> {
        self.results = Results::default();
        let order = match phase {
            Phase::Fill => Order::Fill,
            Phase::Run(_) => Order::Pattern,
            Phase::ReadBack => Order::ReadBack,
        };
        self.blocks.begin(order);
        let (epoch, cpu, counts) = (Instant::now(), cpu_time(), self.queue.counts());
        let deadline = match phase {
            Phase::Run(time) => time.as_nanos() as u64,
            Phase::Fill | Phase::ReadBack => u64::MAX,
        };
        let mut at = 0;
        loop {
            if at < deadline {
                self.refill(order, at);
                self.queue.submit();
            }
            if self.free.len() == self.pending.len() {
                break;
            }
            await_answers(self.queue)?;
            let finished = &mut self.finished;
            self.queue.reap(|answer| finished.push(answer));
            at = epoch.elapsed().as_nanos() as u64;
            self.collect(at)?;
        }
        if self.queue.counts().strays > 0 {
            return Err(
                "the device answered a request twice, or one that it was not given".to_owned()
            );
        }
        self.results.elapsed = epoch.elapsed();
        self.results.cpu = cpu_time().saturating_sub(cpu);
        self.results.kicks = self.queue.counts().kicks - counts.kicks;
        self.results.waits = self.queue.counts().waits - counts.waits;
        Ok(std::mem::take(&mut self.results))
    }

    /// Puts requests while slots are free.
    fn refill(&mut self, order: Order, now_ns: u64) {
        while let Some(slot) = self.free.last().copied() {
            let Some(request) = self.blocks.choose(order) else { return };
            self.free.pop();
            let BlockRequest { offset, is_write, .. } = request;
            if is_write {
                let buffer = self.queue.buffer(slot);
                for (part, at) in parts(&self.pieces, offset) {
                    self.blocks.stamp(&request, at, &mut buffer[part]);
                }
            }
            self.queue.put_pieces(slot, !is_write, offset, &self.pieces);
            self.pending[usize::from(slot)] = Pending { request, submitted_ns: now_ns };
        }
    }

    /// Counts and verifies the answers.
    fn collect(&mut self, now_ns: u64) -> Result<(), String> {
        for index in 0..self.finished.len() {
            let SlotStatus { slot, status, .. } = self.finished[index];
            let pending = self.pending[usize::from(slot)];
            self.free.push(slot);
            let latency_ns = now_ns - pending.submitted_ns;
            match (status, pending.request.is_write) {
                (0, true) => self.results.writes.record(latency_ns),
                (0, false) => self.results.reads.record(latency_ns),
                _ => self.results.errors += 1,
            }
            self.verify(slot, &pending.request, status == 0)?;
        }
        self.finished.clear();
        Ok(())
    }

    fn verify(&mut self, slot: u16, request: &BlockRequest, is_done: bool) -> Result<(), String> {
        let Some(expected) = self.blocks.end(request, is_done) else { return Ok(()) };
        let buffer = self.queue.buffer(slot);
        for (part, at) in parts(&self.pieces, request.offset) {
            self.blocks
                .check(&buffer[part], at, expected)
                .map_err(|error| format!("verification failed: {error}"))?;
        }
        self.results.verified += 1;
        Ok(())
    }
}

/// The parts of a buffer with their places on the disk, for data that begin at `offset`.
fn parts(pieces: &[(u32, u32)], offset: u64) -> impl Iterator<Item = (Range<usize>, u64)> + '_ {
    let mut next = offset;
    pieces.iter().map(move |(from, len)| {
        let at = next;
        next += u64::from(*len);
        (*from as usize..(*from + *len) as usize, at)
    })
}

/// CPU time of all threads of a process; none if it cannot be read.
fn process_cpu(process: u32) -> Option<Duration> {
    let mut spent = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten() {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        spent += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(spent))
}

fn as_text(options: &BenchVhostOptions, report: &Report) -> String {
    let run = &report.run;
    let mut text = format!(
        "{}: bs={} iodepth={} queues={}{}{}, {:.2} s\n",
        options.pattern,
        options.block_bytes,
        options.iodepth,
        options.queues,
        if options.target.is_indirect { ", indirect" } else { "" },
        if options.poll { ", polling" } else { "" },
        run.elapsed.as_secs_f64()
    );
    let seconds = run.elapsed.as_secs_f64().max(1e-9);
    for (name, one) in directions(run) {
        let iops = one.count() as f64 / seconds;
        let at = |per_mille| micros(one.percentile(per_mille));
        text += &format!(
            "{name:>6}: {iops:.0} IOPS, {:.1} MB/s; latency mean {}, p50 {}, p99 {}, p99.9 {}, max {} us\n",
            iops * f64::from(options.block_bytes) / 1e6,
            micros(one.mean()),
            at(500),
            at(990),
            at(999),
            micros(one.max())
        );
    }
    text += &format!(
        "driver: {:.0} ns CPU per I/O, {:.3} kicks and {:.3} sleeps per I/O\n",
        run.per_io(run.cpu.as_nanos() as f64),
        run.per_io(run.kicks as f64),
        run.per_io(run.waits as f64)
    );
    if let Some(cpu) = report.device_cpu {
        let both = (cpu + run.cpu).as_secs_f64().max(1e-9);
        text += &format!(
            "device: {:.0} ns CPU per I/O; {:.0} thousand I/Os per CPU second of both\n",
            run.per_io(cpu.as_nanos() as f64),
            run.ios() as f64 / both / 1e3
        );
    }
    if run.errors > 0 {
        text += &format!("errors: {}\n", run.errors);
    }
    if let Some(read_back) = &report.read_back {
        text += &format!(
            "verified: {} reads during the run, {} read back at the end\n",
            run.verified, read_back.verified
        );
    }
    text
}

fn directions(run: &Results) -> impl Iterator<Item = (&'static str, &Histogram)> {
    [("read", &run.reads), ("write", &run.writes)].into_iter().filter(|(_, one)| one.count() > 0)
}

fn as_json(options: &BenchVhostOptions, report: &Report) -> Value {
    let run = &report.run;
    let device_ns = report.device_cpu.map(|cpu| run.per_io(cpu.as_nanos() as f64));
    let both = report.device_cpu.map(|cpu| (cpu + run.cpu).as_secs_f64().max(1e-9));
    let mut json = json!({
        "uri": options.uri,
        "rw": options.pattern.to_string(),
        "bs": options.block_bytes,
        "iodepth": options.iodepth,
        "threads": options.queues,
        "polling": options.poll,
        "indirect": options.target.is_indirect,
        "pieces": options.target.pieces,
        "seconds": run.elapsed.as_secs_f64(),
        "ios": run.ios(),
        "iops": run.iops(),
        "bytes_per_second": run.iops() * f64::from(options.block_bytes),
        "errors": run.errors,
        "client_cpu_ns_per_io": run.per_io(run.cpu.as_nanos() as f64),
        "device_cpu_ns_per_io": device_ns,
        "ios_per_cpu_second": both.map(|both| run.ios() as f64 / both),
        "kicks": run.kicks,
        "sleeps": run.waits,
    });
    for (name, one) in directions(run) {
        json[name] = json!({
            "ios": one.count(),
            "bytes": one.count() * u64::from(options.block_bytes),
            "latency_ns": latency(one),
        });
    }
    if let Some(read_back) = &report.read_back {
        json["verified"] = json!({ "run": run.verified, "read_back": read_back.verified });
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> BenchVhostOptions {
        let uri = "vhost-user+unix:///?socket=/run/a.sock";
        BenchVhostOptions {
            uri: uri.to_owned(),
            target: uri.parse().unwrap(),
            pattern: Pattern::RandRead,
            block_bytes: 4096,
            iodepth: 32,
            queues: 2,
            runtime: Duration::from_secs(1),
            size: None,
            fill: false,
            verify: Verify::Off,
            poll: true,
            seed: 1,
            overwrite: false,
            json: false,
        }
    }

    #[test]
    fn uri_has_socket_and_shape_of_requests() {
        let uri: VhostUri =
            "vhost-user+unix:///?socket=/run/a%20b.sock&indirect=1&pieces=8".parse().unwrap();
        let socket = PathBuf::from("/run/a b.sock");
        assert_eq!(uri, VhostUri { socket, is_indirect: true, pieces: 8 });
        for bad in [
            "nbd+unix:///?socket=/a",
            "vhost-user+unix:///",
            "vhost-user+unix:///export?socket=/a",
            "vhost-user+unix:///?socket=/a&pieces=127",
            "vhost-user+unix:///?socket=/a&indirect=2",
            "vhost-user+unix:///?",
        ] {
            let error = bad.parse::<VhostUri>().unwrap_err();
            assert!(error.contains(bad) && !error.contains("nbd+unix:///?indirect"), "{error}");
        }
    }

    #[test]
    fn report_has_cpu_time_of_both_sides() {
        let mut run = Results {
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_micros(400),
            kicks: 500,
            ..Results::default()
        };
        (0..1000).for_each(|_| run.reads.record(20_000));
        let report = Report { run, device_cpu: Some(Duration::from_micros(600)), read_back: None };
        let text = as_text(&options(), &report);
        assert!(
            text.contains("  read: 500 IOPS, 2.0 MB/s; latency mean 20.0, p50 20.0,"),
            "{text}"
        );
        assert!(text.contains("driver: 400 ns CPU per I/O, 0.500 kicks and 0.000 sleeps per I/O"));
        assert!(
            text.contains("device: 600 ns CPU per I/O; 1000 thousand I/Os per CPU second of both")
        );
        let json = as_json(&options(), &report);
        assert_eq!(json["ios_per_cpu_second"], 1e6);
        assert_eq!(json["read"]["latency_ns"]["p99.9"], 20_000);
        assert!(json["write"].is_null());
    }
}
