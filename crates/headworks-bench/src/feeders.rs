//! `headworks bench --device --feeders N`: threads that submit to one owner, like a program that embeds the library.
//!
//! Each feeder keeps `iodepth` bios in flight; it submits and reaps in batches of 8 (fewer if the depth is less). The
//! report shows the cost of the hand-over: pushes, sleeps and wake-ups per bio on both sides.

use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant as WallClock};

use headworks::RingCounts;
use headworks::{DeviceSetup, Handle, Io, IoCompletion, Owner, OwnerOptions, Slot, WaitOutcome};
use headworks_core::VolumeId;
use headworks_core::VolumeOptions;
use headworks_core::stats::Histogram;
use headworks_program::shown::print_line;
use headworks_server::{Assembly, ExportSpec};
use serde_json::json;

use crate::allocations;
use crate::device::{Blocks, DeviceBenchOptions, cpu_ns, holes, print_rates};
use crate::holes::Holes;

/// Batch size, as fio's `iodepth_batch_submit` and `iodepth_batch_complete`.
const BATCH: usize = 8;
/// Warm-up before the measurement, as a fraction (1/n) of the run time.
const WARM_UP: u32 = 10;

/// Sum of the measurements of all feeders.
#[derive(Default)]
struct FeederResult {
    ios: u64,
    errors: u64,
    latency: Histogram,
    elapsed: Duration,
    cpu_ns: u64,
    allocations: u64,
    feeders: RingCounts,
    owner: RingCounts,
}

/// Runs the benchmark and prints the report.
pub fn run(options: &DeviceBenchOptions) -> Result<(), String> {
    let result = measure(options)?;
    report(options, &result, holes(options));
    match result.errors {
        0 => Ok(()),
        errors => Err(format!("{errors} bios failed")),
    }
}

fn measure(options: &DeviceBenchOptions) -> Result<FeederResult, String> {
    let text = |error: headworks_core::ConfigError| error.to_string();
    let read_only = !options.pattern.writes();
    let export = ExportSpec::new(String::new(), options.device.clone(), read_only);
    let export = ExportSpec { share: options.share, ..export };
    let mut assembly = Assembly::new(&[export]).map_err(text)?;
    let (mut queue, device) = assembly.devices.swap_remove(0);
    (options.queue)(&mut queue).map_err(text)?;
    let (_, volume) = assembly.volumes[0];
    let (owner, handles) = Owner::start(OwnerOptions {
        handles: options.feeders as usize,
        depth: options.iodepth,
        slot_bytes: options.block_bytes as usize,
        engine: options.engine,
        cache: options.cache,
        dirty: options.dirty,
        tags_max: queue.nr_requests,
        ..OwnerOptions::default()
    })
    .map_err(text)?;
    let setup = DeviceSetup { device, queue, elevator: None };
    let device = owner.add_device(setup).map_err(text)?;
    let id = owner.add_volume(device, volume).map_err(text)?;
    let mut feeders = Vec::new();
    for (index, handle) in (0..).zip(handles) {
        feeders.push(Feeder::new(options, index, handle, (id, volume))?);
    }
    let mut result = FeederResult::default();
    // What each thread does first, it does before the time of the warm-up begins: on a busy machine that may be over by then.
    let (ready, times) = (Barrier::new(feeders.len() + 1), OnceLock::new());
    std::thread::scope(|scope| {
        let (ready, times) = (&ready, &times);
        let feed = |mut feeder: Feeder| {
            scope.spawn(move || {
                feeder.fill_once();
                ready.wait();
                ready.wait();
                match times.get() {
                    Some(&(begin, end)) => feeder.run(begin, end),
                    None => feeder,
                }
            })
        };
        let threads: Vec<_> = feeders.into_iter().map(feed).collect();
        ready.wait();
        let begin = WallClock::now() + options.runtime / WARM_UP;
        let &(begin, end) = times.get_or_init(|| (begin, begin + options.runtime));
        ready.wait();
        std::thread::sleep(begin.saturating_duration_since(WallClock::now()));
        let (allocated, cpu, began) =
            (allocations::count(), cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID), WallClock::now());
        std::thread::sleep(end.saturating_duration_since(began));
        result.cpu_ns = cpu_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu;
        result.allocations = allocations::count() - allocated;
        for thread in threads {
            let Ok(fed) = thread.join() else { continue };
            result.ios += fed.ios;
            result.errors += fed.errors;
            result.latency.merge(&fed.latency);
            add(&mut result.feeders, fed.handle.counts());
        }
    });
    result.elapsed = options.runtime;
    let ended = owner.join().map_err(|error| format!("the owner thread failed: {error}"))?;
    result.owner = ended.counts;
    Ok(result)
}

fn add(total: &mut RingCounts, counts: RingCounts) {
    total.messages += counts.messages;
    total.pushes += counts.pushes;
    total.wakes += counts.wakes;
    total.sleeps += counts.sleeps;
}

/// State of one submitting thread.
struct Feeder {
    handle: Handle,
    volume: VolumeId,
    blocks: Blocks,
    block_bytes: u32,
    free: Vec<Slot>,
    started: Vec<WallClock>,
    completions: Vec<IoCompletion>,
    ios: u64,
    errors: u64,
    latency: Histogram,
}

impl Feeder {
    fn new(
        options: &DeviceBenchOptions,
        index: u32,
        mut handle: Handle,
        (id, volume): (VolumeId, VolumeOptions),
    ) -> Result<Self, String> {
        let depth = options.iodepth as usize;
        Ok(Self {
            free: std::iter::from_fn(|| handle.slot()).collect(),
            handle,
            volume: id,
            blocks: Blocks::new(options, index, volume.size)?,
            block_bytes: options.block_bytes,
            started: vec![WallClock::now(); depth],
            completions: Vec::with_capacity(2 * depth),
            ios: 0,
            errors: 0,
            latency: Histogram::default(),
        })
    }

    /// Has all slots in flight, and waits for all of them.
    fn fill_once(&mut self) {
        let now = WallClock::now();
        while !self.free.is_empty() {
            self.put(now);
        }
        self.handle.submit();
        while self.completions.len() < self.started.len() {
            let room = 2 * self.started.len();
            if self.handle.reap(room, &mut self.completions) == 0
                && self.handle.wait() != WaitOutcome::Ready
            {
                return;
            }
        }
    }

    /// Submits until `end`; counts completions from `begin` on.
    fn run(mut self, begin: WallClock, end: WallClock) -> Self {
        let batch = BATCH.min(self.started.len());
        loop {
            let now = WallClock::now();
            self.reap(now, now >= begin && now < end);
            let over = now >= end;
            if over && self.free.len() == self.started.len() {
                return self;
            }
            while !over && self.free.len() >= batch {
                (0..batch).for_each(|_| self.put(now));
                self.handle.submit();
            }
            let least = if over { 1 } else { batch };
            while self.completions.len() < least {
                let room = 2 * self.started.len();
                if self.handle.reap(room, &mut self.completions) == 0
                    && self.handle.wait() != WaitOutcome::Ready
                {
                    return self;
                }
            }
        }
    }

    fn put(&mut self, now: WallClock) {
        let Some(slot) = self.free.pop() else { return };
        let index = slot.index();
        self.started[index as usize] = now;
        let (op, offset) = self.blocks.next();
        let io = Io::new(op, offset, self.block_bytes).allow_hole().user_data(index.into());
        self.handle.put(self.volume, slot, io).expect("a slot holds a block");
    }

    fn reap(&mut self, now: WallClock, counts: bool) {
        for completion in self.completions.drain(..) {
            if counts {
                self.ios += 1;
                self.errors += u64::from(completion.status.is_err());
                let waited = now - self.started[completion.user_data as usize];
                self.latency.record(waited.as_nanos() as u64);
            }
            self.free.extend(completion.slot);
        }
        // Slots that timed out and were released since.
        self.free.extend(std::iter::from_fn(|| self.handle.slot()));
    }
}

fn report(options: &DeviceBenchOptions, result: &FeederResult, holes: Option<Holes>) {
    let iops = result.ios as f64 / result.elapsed.as_secs_f64();
    let bytes = iops * f64::from(options.block_bytes);
    let cpu = result.cpu_ns as f64 / result.ios.max(1) as f64;
    let latency = |per_mille| result.latency.percentile(per_mille);
    // Counters cover the whole run, warm-up included.
    let per_io = |count: u64| count as f64 / result.feeders.messages.max(1) as f64;
    let FeederResult { feeders, owner, ios, allocations, errors, .. } = result;
    if options.json {
        let end = |counts: &RingCounts| json!({"pushes": counts.pushes, "wakes": counts.wakes, "sleeps": counts.sleeps, "messages": counts.messages});
        print_line!(
            "{:#}",
            json!({
                "rw": options.pattern.to_string(), "bs": options.block_bytes, "iodepth": options.iodepth,
                "feeders": options.feeders, "ios": result.ios, "iops": iops, "bw_bytes": bytes,
                "cpu_ns_per_io": cpu, "allocations": result.allocations, "errors": result.errors,
                "holes_percent": holes.map(Holes::percent),
                "lat_ns": {"p50": latency(500), "p99": latency(990), "p999": latency(999)},
                "feeders_end": end(feeders), "owners_end": end(owner),
            })
        );
        return;
    }
    let feeders_of = format!("feeders={}", options.feeders);
    let cpu = format!("{cpu:.1} ns CPU per I/O, all threads");
    let seconds = result.elapsed.as_secs_f64();
    print_rates(options, &feeders_of, seconds, (iops, &cpu), &result.latency, holes);
    let per_io = |end: &RingCounts| [end.pushes, end.wakes, end.sleeps].map(per_io);
    let [[pushes, wakes, sleeps], [own_pushes, own_wakes, own_sleeps]] =
        [per_io(feeders), per_io(owner)];
    print_line!(
        "  for each I/O: feeders {pushes:.3} pushes, {wakes:.4} wake-ups, {sleeps:.4} sleeps; owner {own_pushes:.3}, {own_wakes:.4}, {own_sleeps:.4}"
    );
    print_line!("  {ios} bios, {allocations} allocations, {errors} errors");
}
