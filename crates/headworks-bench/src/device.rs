//! `headworks bench --device`: measures the I/O path in process, from bio to device and back, without a protocol.
//!
//! Each thread is a shard with a device of its own, driven like in the server: inputs in batches, actions through the
//! same executor, one clock reading per turn. The generator keeps `iodepth` bios in flight and records the latency of
//! each; stage statistics are on. The report shows CPU time, turns, batch sizes, merges and allocations, so that a
//! reader can judge the rate.

use std::time::{Duration, Instant as WallClock};

use headworks::EngineChoice;
use headworks::driver::{ActionSink, Clock, Engine, Event, Executor, Span, Wait, open_engine};
use headworks::house::Mapping;
use headworks_core::extent::{EXTENTS_BYTES, extents};
use headworks_core::prng::Prng;
use headworks_core::stats::{Histogram, Stage};
use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    Bio, BioFlags, BioId, CacheOptions, ConfigError, Extent, Input, Instant, Message, Notice, Op,
    QueueOptions, ReplyStage, Shard, ShardConfig, ShardId, Status, VolumeId, WaitTimes,
};
use headworks_nbd::client::bench::Pattern;
use headworks_program::shown::print_line;
use headworks_server::{Assembly, ExportOptions, ExportSpec, Spec};
use serde_json::json;

use crate::holes::Holes;
use crate::{allocations, feeders};

/// Warm-up before the measurement, as a fraction (1/n) of the run time.
const WARM_UP: u32 = 10;
/// Bytes of a list of extents.
const LIST: usize = EXTENTS_BYTES as usize;
/// Turns between two checks of the end time.
const CLOCK_INTERVAL: u32 = 64;

/// A function that changes the queue options.
pub type Tune = Box<dyn Fn(&mut QueueOptions) -> Result<(), ConfigError> + Send + Sync>;

/// Parameters of a benchmark in process.
pub struct DeviceBenchOptions {
    /// Device to measure, each thread its own.
    pub device: Spec,
    /// Direction and order of the blocks.
    pub pattern: Pattern,
    /// Bytes of each bio.
    pub block_bytes: u32,
    /// Bios in flight per thread.
    pub iodepth: u32,
    /// Number of shards, each with a thread and a device.
    pub threads: u32,
    /// Number of threads that submit to one shard over rings; 0: the shard's thread submits itself.
    pub feeders: u32,
    /// Duration of the measured part.
    pub runtime: Duration,
    /// Number of bios after which the run stops instead; for instruction counts.
    pub ios: Option<u64>,
    /// Seed of the random offsets.
    pub seed: u64,
    /// I/O engine of the shards.
    pub engine: EngineChoice,
    /// Page cache of each shard.
    pub cache: CacheOptions,
    /// Limits of dirty data in it.
    pub dirty: DirtyOptions,
    /// Export options: write mode, weight and priority of the volume.
    pub share: ExportOptions,
    /// Changes to the queue options.
    pub queue: Tune,
    /// Print one JSON object instead of text.
    pub json: bool,
}

/// Cache options for a cache of `bytes`.
///
/// # Errors
/// The size is out of range.
pub fn cache_of(bytes: u64) -> Result<CacheOptions, ConfigError> {
    let units = u32::try_from(bytes.div_ceil(4096)).unwrap_or(u32::MAX);
    let cache = CacheOptions { units, ..CacheOptions::default() };
    cache.validate().map(|()| cache)
}

/// Measurements of one thread.
#[derive(Default)]
struct ThreadResult {
    ios: u64,
    errors: u64,
    turns: u64,
    merges: u64,
    requests: u64,
    allocations: u64,
    elapsed_ns: u64,
    cpu_ns: u64,
    latency: Histogram,
    stages: [Histogram; Stage::COUNT],
}

/// Runs the benchmark and prints the report.
pub fn run(options: &DeviceBenchOptions) -> Result<(), String> {
    if options.feeders > 0 {
        return feeders::run(options);
    }
    let result = match options.threads {
        1 => vec![one_thread(options, 0)],
        threads => std::thread::scope(|scope| {
            let spawn = |thread| scope.spawn(move || one_thread(options, thread));
            let threads: Vec<_> = (0..threads).map(spawn).collect();
            let died = |_| Err("a benchmark thread panicked".to_owned());
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
        }),
    };
    let result: Vec<ThreadResult> = result.into_iter().collect::<Result<_, _>>()?;
    report(options, &result, holes(options));
    match result.iter().map(|result| result.errors).sum::<u64>() {
        0 => Ok(()),
        errors => Err(format!("{errors} bios failed")),
    }
}

/// How much of a lasting device is holes, if the pattern reads; none where that cannot be told. Asked after the run, with the device opened
/// anew: some servers end with their first client.
pub fn holes(options: &DeviceBenchOptions) -> Option<Holes> {
    if !options.pattern.reads() || !options.device.base.is_lasting() {
        return None;
    }
    let mut driver = Driver::new(options, 0).ok()?;
    let size = driver.generator.blocks.range();
    let found = Holes::of(size, |at, len| driver.block_status(at, len)).ok()?;
    driver.drain().ok()?;
    (driver.generator.errors == 0).then_some(found)
}

/// Generator of the next block to access.
pub struct Blocks {
    block_bytes: u64,
    pattern: Pattern,
    blocks: u64,
    next_block: u64,
    prng: Prng,
}

impl Blocks {
    /// Creates the block sequence of one thread on a disk of `size` bytes.
    ///
    /// # Errors
    /// The disk is smaller than one block.
    pub fn new(options: &DeviceBenchOptions, thread: u32, size: u64) -> Result<Self, String> {
        let block_bytes = u64::from(options.block_bytes);
        let blocks = size / block_bytes;
        if blocks == 0 {
            return Err(format!(
                "the device is smaller than one block of {block_bytes} bytes; use a smaller --bs or a larger --size"
            ));
        }
        let prng = Prng::new(options.seed).split(&thread.to_string());
        Ok(Self { block_bytes, pattern: options.pattern, blocks, next_block: 0, prng })
    }

    /// Bytes of the disk that are used.
    fn range(&self) -> u64 {
        self.blocks * self.block_bytes
    }

    /// Returns the next operation and its offset.
    pub fn next(&mut self) -> (Op, u64) {
        let op = match self.pattern {
            Pattern::Read | Pattern::RandRead => Op::Read,
            Pattern::Write | Pattern::RandWrite => Op::Write,
            Pattern::RandRw { read_percent } => {
                if self.prng.below(100) < u64::from(read_percent) {
                    Op::Read
                } else {
                    Op::Write
                }
            }
        };
        let block = match self.pattern {
            Pattern::Read | Pattern::Write => {
                let block = self.next_block;
                self.next_block = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
            _ => self.prng.below(self.blocks),
        };
        (op, block * self.block_bytes)
    }
}

/// Generator side of the path: buffers, slots and latencies.
struct Generator {
    buffers: Mapping,
    frames: Option<Mapping>,
    block_bytes: usize,
    blocks: Blocks,
    started: Vec<Instant>,
    free: Vec<u32>,
    /// The extents of a range are asked for, not data.
    asks: bool,
    timer: Option<Instant>,
    now: Instant,
    ios: u64,
    errors: u64,
    latency: Histogram,
}

impl Generator {
    fn new(options: &DeviceBenchOptions, thread: u32, size: u64) -> Result<Self, String> {
        let block_bytes = options.block_bytes as usize;
        let blocks = Blocks::new(options, thread, size)?;
        let buffers = (block_bytes * options.iodepth as usize).max(LIST);
        let buffers =
            Mapping::new(buffers).map_err(|error| format!("cannot map the buffers: {error}"))?;
        Ok(Self {
            buffers,
            frames: None,
            block_bytes,
            blocks,
            started: vec![Instant(0); options.iodepth as usize],
            free: (0..options.iodepth).rev().collect(),
            asks: false,
            timer: None,
            now: Instant(0),
            ios: 0,
            errors: 0,
            latency: Histogram::default(),
        })
    }

    /// Submits bios until `iodepth` are in flight.
    fn refill(&mut self, inputs: &mut Vec<Input>) {
        while let Some(slot) = self.free.pop() {
            self.started[slot as usize] = self.now;
            inputs.push(Input::Bio(self.bio(slot)));
        }
    }

    fn bio(&mut self, slot: u32) -> Bio {
        let (op, offset) = self.blocks.next();
        Bio {
            id: BioId { sequence: slot.into(), ..BioId::default() },
            offset,
            len: self.block_bytes as u32,
            op,
            flags: BioFlags::SYNC.with(BioFlags::HOLE_OK),
            ..Bio::default()
        }
    }
}

// SAFETY: buffers and frames are mappings of their own, which outlive the shard; a buffer has one bio at a time.
unsafe impl ActionSink for Generator {
    #[inline]
    fn buffer(&mut self, bio: BioId) -> Span {
        if let Some(unit) = bio.unit() {
            return self.frames().frames_from(unit);
        }
        if self.asks {
            // SAFETY: the mapping holds a list of extents, too.
            return unsafe { Span::new(self.buffers.at(0, LIST), LIST) };
        }
        let offset = bio.sequence as usize * self.block_bytes;
        // SAFETY: inside the mapping of the buffers.
        unsafe { Span::new(self.buffers.at(offset, self.block_bytes), self.block_bytes) }
    }

    #[inline]
    fn reply(&mut self, id: BioId, status: Status, _: bool, stage: ReplyStage, _: WaitTimes) {
        if stage != ReplyStage::Released {
            self.ios += 1;
            self.errors += u64::from(status.is_err());
            self.latency.record(self.now.since(self.started[id.sequence as usize]));
        }
        if stage != ReplyStage::Early {
            self.free.push(id.sequence as u32);
        }
    }

    #[inline]
    fn frames(&self) -> Span {
        // SAFETY: the mapping outlives the shard.
        self.frames.as_ref().map_or(Span::EMPTY, |frames| unsafe { frames.span() })
    }

    fn send(&mut self, _to: ShardId, _message: Message) {}

    fn timer(&mut self, at: Instant) {
        self.timer = Some(at);
    }

    fn notice(&mut self, _notice: Notice) {}
}

/// A shard with its device, executor and generator.
struct Driver {
    shard: Shard,
    executor: Executor,
    engine: Box<dyn Engine>,
    generator: Generator,
    clock: Clock,
    inputs: Vec<Input>,
    batch: Vec<Input>,
    events: Vec<Event>,
    result: ThreadResult,
}

fn one_thread(options: &DeviceBenchOptions, thread: u32) -> Result<ThreadResult, String> {
    let mut driver = Driver::new(options, thread).map_err(|error| error.to_string())?;
    let counted = options.ios.unwrap_or(u64::MAX);
    if options.ios.is_none() {
        driver.turns_for(options.runtime / WARM_UP, u64::MAX)?;
    }
    driver.reset_counters();
    let (allocated, cpu, began) =
        (allocations::count(), cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID), WallClock::now());
    driver.turns_for(options.runtime, counted)?;
    driver.result.elapsed_ns = began.elapsed().as_nanos() as u64;
    driver.result.cpu_ns = cpu_ns(libc::CLOCK_THREAD_CPUTIME_ID) - cpu;
    driver.result.allocations = allocations::count() - allocated;
    driver.drain()?;
    Ok(driver.finish())
}

impl Driver {
    fn new(options: &DeviceBenchOptions, thread: u32) -> Result<Self, ConfigError> {
        if options.threads > 1 && options.device.base.is_lasting() {
            let message = "with more than one thread each needs its own device; use null or mem";
            return Err(ConfigError::new("threads", message));
        }
        let read_only = !options.pattern.writes();
        let export = ExportSpec::new(String::new(), options.device.clone(), read_only);
        let export = ExportSpec { share: options.share, ..export };
        let assembly = Assembly::new(&[export])?;
        let mut devices = assembly.devices;
        let (mut queue, device) = devices.swap_remove(0);
        (options.queue)(&mut queue)?;
        let (_, volume) = assembly.volumes[0];
        let mut config = ShardConfig::single(queue, volume, options.iodepth.max(1));
        (config.cache, config.dirty) = (options.cache, options.dirty);
        let (engine, _) = open_engine(options.engine, queue.queue_depth as usize + 64)?;
        let mut generator = Generator::new(options, thread, volume.size)
            .map_err(|message| ConfigError::new("size", message))?;
        generator.frames = Mapping::for_frames(&options.cache)?.map(|(frames, _)| frames);
        let shard = Shard::new(config)?;
        Mapping::tables_in_huge_pages(shard.cache_tables());
        Ok(Self {
            shard,
            executor: Executor::new(vec![Some(device)]),
            engine,
            generator,
            clock: Clock::start(),
            inputs: Vec::with_capacity(4 * options.iodepth as usize + 16),
            batch: Vec::with_capacity(4 * options.iodepth as usize + 16),
            events: Vec::with_capacity(1024),
            result: ThreadResult::default(),
        })
    }

    /// Runs turns until the time or the number of bios is reached.
    fn turns_for(&mut self, runtime: Duration, ios: u64) -> Result<(), String> {
        let end = self.clock.now().after(runtime.as_nanos() as u64);
        let mut until_check = CLOCK_INTERVAL;
        while self.generator.ios < ios {
            self.turn(true)?;
            until_check -= 1;
            if until_check == 0 {
                until_check = CLOCK_INTERVAL;
                if ios == u64::MAX && self.generator.now >= end {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Asks for the extents of a range; none if the device fails the question.
    fn block_status(&mut self, offset: u64, len: u32) -> Result<Vec<Extent>, String> {
        let errors = self.generator.errors;
        let Some(slot) = self.generator.free.pop() else { return Ok(Vec::new()) };
        self.generator.asks = true;
        let id = BioId { sequence: slot.into(), ..BioId::default() };
        let flags = BioFlags::SYNC;
        self.inputs.push(Input::Bio(Bio {
            id,
            offset,
            len,
            op: Op::BlockStatus,
            flags,
            ..Bio::default()
        }));
        while !self.generator.free.contains(&slot) {
            self.turn(false)?;
        }
        self.generator.asks = false;
        if self.generator.errors > errors {
            return Ok(Vec::new());
        }
        // SAFETY: the mapping is ours, and no command uses it.
        let list = unsafe { Span::new(self.generator.buffers.at(0, LIST), LIST).bytes() };
        Ok(extents(list, len).collect())
    }

    /// Runs turns until no device uses a buffer or frame of this process. Dirty data is discarded.
    fn drain(&mut self) -> Result<(), String> {
        while !self.shard.is_quiet() {
            self.turn(false)?;
        }
        Ok(())
    }

    fn turn(&mut self, refill: bool) -> Result<(), String> {
        let now = self.clock.now();
        self.generator.now = now;
        if refill {
            self.generator.refill(&mut self.inputs);
        }
        if self.generator.timer.is_some_and(|at| at <= now) {
            self.generator.timer = None;
            self.inputs.push(Input::Timer);
        }
        let Self { shard, executor, engine, generator, inputs, batch, .. } = self;
        if executor.next_timeout().is_some_and(|at| at <= now) {
            executor.on_timeout(now, &mut **engine, inputs);
        }
        if inputs.is_empty() {
            return self.wait();
        }
        // Like the reactor: repeats until devices that complete synchronously have no more completions.
        while !inputs.is_empty() {
            std::mem::swap(inputs, batch);
            shard.handle(now, batch);
            batch.clear();
            self.result.turns += 1;
            executor.run(now, shard.actions(), generator, &mut **engine, inputs);
            shard.clear_actions();
        }
        Ok(())
    }

    /// Sleeps until a completion or a timer; all bios are in the device.
    fn wait(&mut self) -> Result<(), String> {
        let times = [self.generator.timer, self.executor.next_timeout()];
        let now = self.generator.now;
        let wait =
            times.into_iter().flatten().min().map_or(Wait::Forever, |at| Wait::For(at.since(now)));
        let turned = self.engine.turn(wait, &mut self.events);
        turned.map_err(|error| format!("the engine failed: {error}"))?;
        let now = self.clock.now();
        self.generator.now = now;
        for event in self.events.drain(..) {
            match event {
                Event::Disk(done) => {
                    self.executor.on_disk(now, done, &mut *self.engine, &mut self.inputs);
                }
                // A device behind a server, or a cluster.
                Event::Place { device, place } => {
                    let at = (device, place);
                    self.executor.on_ready(now, at, &mut *self.engine, &mut self.inputs);
                }
                Event::Ready { .. } | Event::Woken => {}
            }
        }
        Ok(())
    }

    /// Resets the counters after the warm-up.
    fn reset_counters(&mut self) {
        (self.generator.ios, self.generator.errors) = (0, 0);
        self.generator.latency = Histogram::default();
        self.result = ThreadResult::default();
        (self.result.requests, self.result.merges) = self.totals();
    }

    fn totals(&self) -> (u64, u64) {
        let Some(stats) = self.shard.stats(VolumeId(0)) else {
            return (0, 0);
        };
        let sum = |f: fn(&headworks_core::stats::OpStats) -> u64| stats.ops.iter().map(f).sum();
        (sum(|op| op.requests), sum(|op| op.merges))
    }

    fn finish(mut self) -> ThreadResult {
        let (requests, merges) = self.totals();
        self.result.requests = requests - self.result.requests;
        self.result.merges = merges - self.result.merges;
        self.result.ios = self.generator.ios;
        self.result.errors = self.generator.errors;
        self.result.latency = self.generator.latency;
        if let Some(stats) = self.shard.stats(VolumeId(0)) {
            for op in &stats.ops {
                for (mine, theirs) in self.result.stages.iter_mut().zip(&op.stages) {
                    mine.merge(theirs);
                }
            }
        }
        self.result
    }
}

/// CPU time by the clock of a thread or a process, in nanoseconds; independent of other load on the machine.
pub fn cpu_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct it is given.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn report(options: &DeviceBenchOptions, result: &[ThreadResult], holes: Option<Holes>) {
    let sum = |f: fn(&ThreadResult) -> u64| result.iter().map(f).sum::<u64>();
    let (ios, turns, requests) = (sum(|f| f.ios), sum(|f| f.turns), sum(|f| f.requests));
    let rate = |f: &ThreadResult| f.ios as f64 * 1e9 / f.elapsed_ns.max(1) as f64;
    let iops: f64 = result.iter().map(rate).sum();
    let mut latency = Histogram::default();
    result.iter().for_each(|result| latency.merge(&result.latency));
    let cpu = sum(|f| f.cpu_ns) as f64 / ios.max(1) as f64;
    let bytes = iops * f64::from(options.block_bytes);
    let batch = ios as f64 / turns.max(1) as f64;
    let stage = |stage: Stage| {
        let mut all = Histogram::default();
        result.iter().for_each(|result| all.merge(&result.stages[stage as usize]));
        (stage.name(), all)
    };
    if options.json {
        let stages: serde_json::Map<_, _> = Stage::ALL
            .map(stage)
            .into_iter()
            .map(|(name, all)| {
                (
                    name.to_owned(),
                    json!({"p50_ns": all.percentile(500), "p99_ns": all.percentile(990)}),
                )
            })
            .collect();
        print_line!(
            "{:#}",
            json!({
                "rw": options.pattern.to_string(), "bs": options.block_bytes, "iodepth": options.iodepth,
                "threads": options.threads, "ios": ios, "iops": iops, "bw_bytes": bytes,
                "cpu_ns_per_io": cpu, "allocations": sum(|f| f.allocations), "turns": turns,
                "ios_per_turn": batch, "requests": requests, "merges": sum(|f| f.merges),
                "errors": sum(|f| f.errors), "holes_percent": holes.map(Holes::percent),
                "lat_ns": {"p50": latency.percentile(500), "p99": latency.percentile(990), "p999": latency.percentile(999)},
                "stages": stages,
            })
        );
        return;
    }
    let threads = format!("threads={}", options.threads);
    let seconds = result.iter().map(|f| f.elapsed_ns).max().unwrap_or(0) as f64 / 1e9;
    let cpu = format!("{cpu:.1} ns CPU per I/O");
    print_rates(options, &threads, seconds, (iops, &cpu), &latency, holes);
    let stages = Stage::ALL.map(stage).map(|(name, all)| {
        format!("{name} {:.2}/{:.2}", micros(all.percentile(500)), micros(all.percentile(990)))
    });
    print_line!("  stages us p50/p99: {}", stages.join(", "));
    print_line!(
        "  {ios} bios, {requests} requests, {} merges, {turns} turns of {batch:.1}, {} allocations, {} errors",
        sum(|f| f.merges),
        sum(|f| f.allocations),
        sum(|f| f.errors)
    );
}

/// Prints the lines that each report begins with; `submitters` is the option that says how many there are.
pub fn print_rates(
    options: &DeviceBenchOptions,
    submitters: &str,
    seconds: f64,
    (iops, cpu): (f64, &str),
    latency: &Histogram,
    holes: Option<Holes>,
) {
    let DeviceBenchOptions { pattern, block_bytes, iodepth, .. } = options;
    let bytes = iops * f64::from(*block_bytes);
    print_line!("{pattern}: bs={block_bytes} iodepth={iodepth} {submitters}, {seconds:.2} s");
    print_line!("  {iops:.0} IOPS, {:.1} MB/s, {cpu}", bytes / 1e6);
    let line = holes.and_then(|holes| holes.line("--rw write fills it, and OVERWRITES it"));
    line.into_iter().for_each(|line| print_line!("  {line}"));
    let [p50, p99, p999] = [500, 990, 999].map(|at| micros(latency.percentile(at)));
    print_line!("  latency us: p50 {p50:.2}, p99 {p99:.2}, p99.9 {p999:.2}");
}

/// Nanoseconds as microseconds, for the text report.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
