//! A model of the cache, the flusher, devices and writers in virtual time, to test the throttle.
//!
//! A device writes requests of 512 KiB one after the other at its bandwidth, and may hold completions back until a burst is
//! full, or stall periodically. The flusher keeps its queue filled while the throttle is over background. A writer is always busy (it
//! dirties 64 KiB in 5 us; all writers share one thread) or thinks between two bios. One queue per device holds the writers
//! that wait for credit. Every step asserts the hard limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::bio::{DeviceId, ExportId, IoClass};
use crate::time::{Instant, MS, SEC, US};
use crate::writeback::{DirtyOptions, Throttle, WriterId};

/// Blocks of a writer's bio: 64 KiB.
pub const BIO: u32 = 16;
/// Blocks of a request to the device: 512 KiB.
const REQUEST: u32 = 128;
/// Nanoseconds to copy a bio on the thread that all writers share: 13 GB/s.
const COPY_NS: u64 = 5 * US;

/// Converts MB/s (10^6) to blocks a second.
pub const fn mb(megabytes: u64) -> u64 {
    megabytes * 1_000_000 / 4096
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next bio of the writer is ready.
    Ready(usize),
    /// The timer of the writer's pause expires.
    Timer(usize),
    /// The request of the device completes.
    Done(usize),
    Tick,
}

pub struct ModelDevice {
    pub bandwidth: u64,
    /// Least number of blocks that a completion reports; 0: each request is reported.
    pub burst: u32,
    /// Period and length of stalls, in nanoseconds.
    pub stall: Option<(u64, u64)>,
    pub dead: bool,
    busy: bool,
    queued: u32,
    held: u32,
    waiting: VecDeque<(usize, Instant)>,
    pub written: u64,
}

pub struct ModelWriter {
    pub id: WriterId,
    pub device: usize,
    pub class: IoClass,
    pub export: ExportId,
    /// Nanoseconds from the end of a bio to the next one; 0: always busy.
    pub think_ns: u64,
    pub alive: bool,
    pub blocks: u64,
    pub waited_ns: u64,
    began: Option<Instant>,
}

pub struct Model {
    pub throttle: Throttle,
    pub now: Instant,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    sequence: u64,
    pub devices: Vec<ModelDevice>,
    pub writers: Vec<ModelWriter>,
    thread: Instant,
    ticking: Option<Instant>,
    /// Pauses that ended since the last `reset`, in nanoseconds.
    pub pauses: Vec<u64>,
    pub wakes: u64,
    pub timers: u64,
    pub dirtied: u64,
    pub used_max: u64,
    pub used_min: u64,
    since: Instant,
}

impl Model {
    /// Creates a model; `pool` is in MiB, bandwidths are in blocks a second.
    pub fn new(pool: u32, bandwidths: &[u64]) -> Self {
        Self::with(pool, bandwidths, &DirtyOptions::default())
    }

    pub fn with(pool: u32, bandwidths: &[u64], options: &DirtyOptions) -> Self {
        let devices = bandwidths.iter().map(|bandwidth| ModelDevice {
            bandwidth: *bandwidth,
            burst: 0,
            stall: None,
            dead: false,
            busy: false,
            queued: 0,
            held: 0,
            waiting: VecDeque::new(),
            written: 0,
        });
        Self {
            throttle: Throttle::new(options, pool * 256, bandwidths.len(), 20_000),
            now: Instant(SEC),
            events: BinaryHeap::new(),
            sequence: 0,
            devices: devices.collect(),
            writers: Vec::new(),
            thread: Instant(0),
            ticking: None,
            pauses: Vec::new(),
            wakes: 0,
            timers: 0,
            dirtied: 0,
            used_max: 0,
            used_min: u64::MAX,
            since: Instant(SEC),
        }
    }

    /// Adds writers that are always busy.
    pub fn add(&mut self, count: usize, device: usize) {
        for _ in 0..count {
            self.add_one(device, 0, IoClass::BestEffort);
        }
    }

    /// Adds one writer that pauses for `think_ns` between two bios.
    pub fn add_one(&mut self, device: usize, think_ns: u64, class: IoClass) -> usize {
        let writer = self.writers.len();
        let id = self.throttle.writer(writer as u32 + 1);
        self.writers.push(ModelWriter {
            id,
            device,
            class,
            export: ExportId(0),
            think_ns,
            alive: true,
            blocks: 0,
            waited_ns: 0,
            began: None,
        });
        self.at(self.now.after(think_ns), Event::Ready(writer));
        writer
    }

    /// Closes a writer's connection and drops its waits.
    pub fn close(&mut self, writer: usize) {
        self.writers[writer].alive = false;
        assert!(self.throttle.close(writer as u32 + 1).is_some());
        let device = self.writers[writer].device;
        self.devices[device].waiting.retain(|(waiter, _)| *waiter != writer);
        self.throttle.forget_refused(DeviceId(device as u16));
        self.grant(device);
    }

    /// Resumes a writer that was made idle.
    pub fn resume_writer(&mut self, writer: usize) {
        self.writers[writer].alive = true;
        let at = self.throttle.paused_until(self.writers[writer].id).unwrap_or(self.now);
        self.writers[writer].began = Some(self.now);
        let paused = at > self.now || self.throttle.paused_until(self.writers[writer].id).is_some();
        let event = if paused { Event::Timer(writer) } else { Event::Ready(writer) };
        self.at(at.max(self.now), event);
    }

    /// Lets a dead device work again.
    pub fn revive(&mut self, device: usize) {
        self.devices[device].dead = false;
        self.supply(device);
    }

    /// Sets all measurements to zero.
    pub fn reset(&mut self) {
        self.pauses.clear();
        (self.wakes, self.timers, self.dirtied, self.used_max) = (0, 0, 0, 0);
        self.used_min = u64::MAX;
        self.since = self.now;
        self.devices.iter_mut().for_each(|device| device.written = 0);
        for writer in &mut self.writers {
            (writer.blocks, writer.waited_ns) = (0, 0);
        }
    }

    pub fn run(&mut self, ns: u64) {
        let end = self.now.after(ns);
        while let Some(Reverse((at, _, event))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = self.now.max(at);
            self.step(event);
        }
        self.now = end;
    }

    /// Returns the nanoseconds since `reset`.
    pub fn elapsed(&self) -> u64 {
        self.now.since(self.since)
    }

    /// Returns the blocks written, in percent of the bandwidth.
    pub fn busy_percent(&self, device: usize) -> f64 {
        let could = self.devices[device].bandwidth as f64 * self.elapsed() as f64 / SEC as f64;
        self.devices[device].written as f64 * 100.0 / could
    }

    /// Returns the percentile of all pauses, in milliseconds.
    pub fn pause_ms(&self, percent: usize) -> f64 {
        let mut pauses = self.pauses.clone();
        pauses.sort_unstable();
        let last = pauses.len().max(1) - 1;
        pauses.get(last * percent / 100).copied().unwrap_or(0) as f64 / MS as f64
    }

    /// Returns Jain's fairness index of the open writers of a device.
    pub fn jain(&self, device: usize) -> f64 {
        let of = |writer: &&ModelWriter| writer.alive && writer.device == device;
        let blocks: Vec<f64> =
            self.writers.iter().filter(of).map(|writer| writer.blocks as f64).collect();
        let sum: f64 = blocks.iter().sum();
        let squares: f64 = blocks.iter().map(|blocks| blocks * blocks).sum();
        sum * sum / (blocks.len() as f64 * squares)
    }

    pub fn wakes_per_second(&self) -> f64 {
        self.wakes as f64 * SEC as f64 / self.elapsed() as f64
    }

    pub fn used(&self) -> u64 {
        let stats = self.throttle.stats();
        stats.nr_dirty + stats.nr_writeback + stats.reserved
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Ready(writer) => self.ready(writer),
            Event::Timer(writer) => self.timer(writer),
            Event::Done(device) => self.done(device),
            Event::Tick => {
                self.ticking = None;
                self.throttle.on_timer(self.now);
            }
        }
        self.arm_tick();
        let (stats, used) = (self.throttle.stats(), self.used());
        assert!(used <= stats.nr_dirty_threshold, "{used} of {stats:?}");
        self.used_max = self.used_max.max(used);
        self.used_min = self.used_min.min(used);
    }

    fn arm_tick(&mut self) {
        if let Some(due) = self.throttle.next_timeout()
            && self.ticking.is_none()
        {
            self.ticking = Some(due);
            self.at(due.max(self.now), Event::Tick);
        }
    }

    fn ready(&mut self, writer: usize) {
        let (id, device) = (self.writers[writer].id, self.writers[writer].device);
        if !self.writers[writer].alive {
            return;
        }
        if self.throttle.paused_until(id).is_some() {
            return;
        }
        // A writer without credit queues behind the waiting ones.
        let queue = &mut self.devices[device].waiting;
        let queued = !queue.is_empty();
        let class = self.writers[writer].class;
        if queued || !self.throttle.reserve_for(DeviceId(device as u16), BIO, class) {
            self.devices[device].waiting.push_back((writer, self.now));
            return;
        }
        self.write(writer);
    }

    /// Copies a bio whose credit is reserved. It is accounted at once; the next bio follows the copy.
    fn write(&mut self, writer: usize) {
        self.thread = self.thread.max(self.now).after(COPY_NS);
        let ModelWriter { id, device, class, think_ns, .. } = self.writers[writer];
        self.writers[writer].blocks += u64::from(BIO);
        self.dirtied += u64::from(BIO);
        self.throttle.assign(id, self.writers[writer].export);
        let pause = self.throttle.on_dirtied(self.now, id, DeviceId(device as u16), BIO, class);
        self.supply(device);
        match pause {
            Some(until) => {
                self.writers[writer].began = Some(self.now);
                self.at(until, Event::Timer(writer));
            }
            None => self.at(self.thread.after(think_ns), Event::Ready(writer)),
        }
    }

    fn timer(&mut self, writer: usize) {
        if !self.writers[writer].alive {
            return;
        }
        self.timers += 1;
        let id = self.writers[writer].id;
        if let Some(until) = self.throttle.resume(self.now, id) {
            assert!(until > self.now);
            self.at(until, Event::Timer(writer));
            return;
        }
        let began = self.writers[writer].began.take().expect("a pause has a begin");
        self.wakes += 1;
        self.pauses.push(self.now.since(began));
        self.writers[writer].waited_ns += self.now.since(began);
        // The pause counts as think time.
        let think = self.writers[writer].think_ns.saturating_sub(self.now.since(began));
        self.at(self.now.after(think), Event::Ready(writer));
    }

    /// Fills the queue of a device like the flusher: 20 ms and one request deep, plus two bursts.
    fn supply(&mut self, device: usize) {
        let id = DeviceId(device as u16);
        let depth = (self.devices[device].bandwidth / 50) as u32 + 2 * self.devices[device].burst;
        loop {
            let stats = self.throttle.device_stats(id);
            let dirty = stats.reclaimable as u32;
            let inflight = stats.writeback as u32;
            if dirty == 0 || inflight > depth || !self.throttle.over_background(id) {
                break;
            }
            let blocks = dirty.min(REQUEST);
            self.throttle.on_writeout(self.now, id, blocks);
            self.devices[device].queued += blocks;
        }
        self.start(device);
    }

    fn start(&mut self, device: usize) {
        let now = self.now;
        let model = &mut self.devices[device];
        if model.busy || model.queued == 0 || model.dead {
            return;
        }
        model.busy = true;
        let blocks = u64::from(model.queued.min(REQUEST));
        let mut end = now.after(blocks * SEC / model.bandwidth);
        if let Some((every, still)) = model.stall {
            // The device stalls at the end of every period.
            let phase = end.0 % every;
            if phase >= every - still {
                end = end.after(every - phase);
            }
        }
        self.at(end, Event::Done(device));
    }

    fn done(&mut self, device: usize) {
        let model = &mut self.devices[device];
        let blocks = model.queued.min(REQUEST);
        (model.busy, model.queued) = (false, model.queued - blocks);
        model.written += u64::from(blocks);
        model.held += blocks;
        if model.held >= model.burst || model.queued == 0 {
            let held = std::mem::take(&mut model.held);
            self.throttle.on_written(self.now, DeviceId(device as u16), held);
            self.supply(device);
            // Credit of one device may satisfy a waiter of another.
            for device in 0..self.devices.len() {
                if self.throttle.freed(DeviceId(device as u16)) {
                    self.grant(device);
                }
            }
        }
        self.supply(device);
    }

    /// Grants credit to waiting writers, in order.
    fn grant(&mut self, device: usize) {
        let id = DeviceId(device as u16);
        while let Some((writer, since)) = self.devices[device].waiting.front().copied() {
            let class = self.writers[writer].class;
            if !self.throttle.reserve_for(id, BIO, class) {
                break;
            }
            self.devices[device].waiting.pop_front();
            self.writers[writer].waited_ns += self.now.since(since);
            self.pauses.push(self.now.since(since));
            self.wakes += 1;
            self.write(writer);
        }
    }
}
