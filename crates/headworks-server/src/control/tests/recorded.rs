//! Loads on modelled disks in virtual time, through the real shard; what a server counts of them answers the queries of `why`.
//!
//! ```text
//!   Load: depth requests at once --bio--> Shard --command--> Disk: `at_once` servers, a time for each command --> Reply, wait times
//!     --> LatencyTable, SlowRing of its export; once a second the counters of volumes and connections --> UsageLog
//! ```
//!
//! Waits in front of the shard and in the page cache, which the model has not, are given by the load: they are added to its requests, and
//! what held them is entered by second.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use headworks_core::limits::LimitTarget;
use headworks_core::limits::{LimitKind, LimitReport};
use headworks_core::prng::Prng;
use headworks_core::stats::bucket_of;
use headworks_core::{
    Action, Bio, BioFlags, BioId, Completion, DeviceConfig, DeviceId, DeviceState, ExportId, Input,
    Instant, IoError, Op, QueueOptions, Shard, ShardConfig, VolumeConfig, VolumeId, VolumeOptions,
    WaitKind, WaitTimes,
};

use crate::observe::latency::LatencyTable;
use crate::observe::latency::errors::ErrorCounts;
use crate::observe::latency::slow::{SlowRequest, SlowRing, above_ns};
use crate::observe::latency::usage::UsageLog;
use crate::reactor::messages::query::{ControlQuery, DeviceReport, SlowReport};

pub const MS: u64 = 1_000_000;
pub const US: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
/// Exports of the tree: two on the first device, one on the second.
const EXPORTS: usize = 3;

/// A modelled device.
#[derive(Clone, Copy)]
pub struct Disk {
    /// Commands on which it works at once.
    pub at_once: usize,
    /// Time of a read, a write and a flush.
    pub times_ns: [u64; 3],
    /// Time for each KiB.
    pub kib_ns: u64,
    /// How much longer a command takes at most, in percent.
    pub jitter: u64,
    /// From when to when it answers nothing.
    pub pause: (u64, u64),
    /// Every command fails.
    pub fails: bool,
}

/// A disk that answers within 100 us, on 16 commands at once.
pub const FLASH: Disk = Disk {
    at_once: 16,
    times_ns: [100 * US, 60 * US, 200 * US],
    kib_ns: 300,
    jitter: 10,
    pause: (0, 0),
    fails: false,
};

/// What a client asks: `depth` requests at once, each followed by the next after `think_ns`.
#[derive(Clone, Copy)]
pub struct Load {
    pub export: u16,
    pub op: Op,
    pub kib: u32,
    pub depth: u32,
    pub think_ns: u64,
    /// A wait of each request before the shard.
    pub wait: Option<(WaitKind, u64)>,
    /// What it has dirty, and in buffers.
    pub holds: [u64; 2],
}

/// Small reads of an export, `depth` at once.
pub const fn reads(export: u16, depth: u32) -> Load {
    Load { export, op: Op::Read, kib: 4, depth, think_ns: 0, wait: None, holds: [0; 2] }
}

/// Small writes of an export, `depth` at once.
pub const fn writes(export: u16, depth: u32) -> Load {
    Load { op: Op::Write, ..reads(export, depth) }
}

/// A writer that flushes: each of `depth` clients, one flush after the other.
pub const fn flushes(export: u16, depth: u32) -> Load {
    Load { op: Op::Flush, ..reads(export, depth) }
}

/// Large reads of an export.
pub const fn bulk(export: u16, depth: u32) -> Load {
    Load { kib: 1024, ..reads(export, depth) }
}

/// What a server knows after its loads.
pub struct Recording {
    options: [QueueOptions; 2],
    devices: Vec<(headworks_core::stats::QueueStats, headworks_core::tags::TagStats)>,
    pub states: [DeviceState; 2],
    tables: Vec<LatencyTable>,
    rings: Vec<SlowRing>,
    usage: UsageLog,
    limits: Vec<(LimitTarget, LimitReport)>,
    now: Instant,
}

enum Event {
    /// A client of a load asks; its request came at this time.
    Arrival(usize, u64),
    Completion(DeviceId, Completion),
}

/// A number that sorts events of one time, and the events.
struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    events: Vec<Option<Event>>,
}

impl Agenda {
    fn add(&mut self, at: u64, event: Event) {
        self.heap.push(Reverse((at, self.events.len() as u64)));
        self.events.push(Some(event));
    }

    fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    fn take(&mut self) -> Option<Event> {
        let Reverse((_, number)) = self.heap.pop()?;
        self.events[number as usize].take()
    }
}

fn config(options: [QueueOptions; 2]) -> ShardConfig {
    let volume = VolumeOptions { size: 1 << 40, block_size: 512, ..VolumeOptions::default() };
    let mut config = ShardConfig::single(options[0], volume, 4096);
    config.devices = options.map(|queue| DeviceConfig { queue, ..DeviceConfig::default() }).into();
    let volumes = [0, 0, 1].map(|device| VolumeConfig {
        device: DeviceId(device),
        options: volume,
        ..VolumeConfig::default()
    });
    config.volumes = volumes.into();
    config.exports = vec![Default::default(); EXPORTS];
    config
}

/// Runs loads for some seconds of virtual time.
pub fn record(
    options: [QueueOptions; 2],
    disks: [Disk; 2],
    loads: &[Load],
    (seconds, seed): (u64, u64),
) -> Recording {
    let mut shard = Shard::new(config(options)).expect("the options are valid");
    let mut prng = Prng::new(seed);
    let mut free_at: Vec<Vec<u64>> = disks.map(|disk| vec![0; disk.at_once]).into();
    let mut agenda = Agenda { heap: BinaryHeap::new(), events: Vec::new() };
    let begin = SECOND;
    for (index, load) in loads.iter().enumerate() {
        for number in 0..load.depth {
            agenda.add(begin + u64::from(number) * 10 * US, Event::Arrival(index, begin));
        }
    }
    let end = begin + seconds * SECOND;
    let (mut timer, mut tick) = (None, begin + SECOND);
    // By sequence: the load of a request, its time of arrival, and its offset.
    let mut asked: Vec<(usize, u64, u64)> = Vec::new();
    let mut tables = vec![LatencyTable::default(); EXPORTS];
    let mut rings: Vec<SlowRing> = (0..EXPORTS).map(|_| SlowRing::default()).collect();
    let mut usage = UsageLog::default();
    let mut limited: [u64; EXPORTS] = [0; EXPORTS];
    let mut now = begin;
    while now < end {
        let next = agenda.next_at().into_iter().chain(timer).chain([tick]).min().unwrap_or(end);
        now = now.max(next);
        if now >= tick {
            let mut second = usage.end_second(Instant(tick));
            shard.device_uses(|volume, device, used| second.volume(volume, device, used));
            for (index, table) in tables.iter().enumerate() {
                let export = ExportId(index as u16);
                second.connection(index, (index as u32 + 1, export), table.recent_sums());
                let held = |what: usize| {
                    loads
                        .iter()
                        .filter(|load| load.export == export.0)
                        .map(|load| load.holds[what])
                        .sum()
                };
                second.dirty(export, held(0));
                second.buffers(export, held(1));
            }
            second.keep();
            tick += SECOND;
        }
        let mut inputs = Vec::new();
        if timer.is_some_and(|at| at <= now) {
            timer = None;
            inputs.push(Input::Timer);
        }
        while agenda.next_at().is_some_and(|at| at <= now) {
            match agenda.take() {
                Some(Event::Completion(device, completion)) => {
                    inputs.push(Input::Complete { device, completion });
                }
                Some(Event::Arrival(index, came)) => {
                    let load = loads[index];
                    let offset = prng.below(1 << 20) << 20;
                    let id = BioId {
                        connection: u32::from(load.export) + 1,
                        volume: VolumeId(load.export),
                        export: ExportId(load.export),
                        sequence: asked.len() as u64,
                    };
                    asked.push((index, came, offset));
                    let len = if load.op == Op::Flush { 0 } else { load.kib << 10 };
                    let offset = if load.op == Op::Flush { 0 } else { offset };
                    let (op, flags) = (load.op, BioFlags::SYNC);
                    inputs.push(Input::Bio(Bio { id, offset, len, op, flags, ..Bio::default() }));
                }
                None => {}
            }
        }
        shard.handle(Instant(now), &inputs);
        let actions: Vec<Action> = shard.actions().list.clone();
        shard.clear_actions();
        for action in actions {
            match action {
                Action::Timer { at } => timer = Some(at.0),
                Action::Submit(command) => {
                    let device = usize::from(command.device.0);
                    let disk = disks[device];
                    let base = disk.times_ns[(command.op as usize).min(2)];
                    let time = base + u64::from(command.len >> 10) * disk.kib_ns;
                    let time = time + time * prng.below(disk.jitter + 1) / 100;
                    let server = free_at[device].iter_mut().min().expect("a disk has a server");
                    let mut starts = (*server).max(now);
                    if (disk.pause.0..disk.pause.1).contains(&(starts - begin)) {
                        starts = begin + disk.pause.1;
                    }
                    *server = starts + time;
                    let status = if disk.fails { Err(IoError::Medium) } else { Ok(()) };
                    let transferred = if disk.fails { 0 } else { command.len };
                    let completion =
                        Completion { id: command.id, transferred, status, hole: false };
                    agenda.add(*server, Event::Completion(command.device, completion));
                }
                Action::Reply { id, wait_times, .. } => {
                    let (index, came, offset) = asked[id.sequence as usize];
                    let load = loads[index];
                    let front = load.wait.map_or(WaitTimes::NONE, |(wait, ns)| {
                        WaitTimes::from_word((bucket_of(ns) as u64) << (8 * wait as u32))
                    });
                    let waited = wait_times.with_front(front);
                    let total_ns = now - came;
                    let (len, op) = (load.kib << 10, load.op);
                    let export = usize::from(load.export);
                    tables[export].record(op, len, total_ns, waited);
                    let (at, connection) = (Instant(now), u32::from(load.export) + 1);
                    let slow = || SlowRequest {
                        total_ns,
                        at,
                        offset,
                        wait_times: waited,
                        len,
                        connection,
                        op,
                    };
                    rings[export].record(slow, at, (op, total_ns));
                    let before = load.wait.map_or(0, |(_, ns)| ns);
                    if load.wait.is_some_and(|(wait, _)| wait == WaitKind::Limit) {
                        limited[export] += before;
                    }
                    let next = now + load.think_ns;
                    agenda.add(next + before, Event::Arrival(index, next));
                }
                _ => {}
            }
        }
    }
    let devices = [0, 1].map(|id| shard.queue_stats(DeviceId(id)).expect("both are here"));
    let limits = (0..).zip(limited).filter(|(_, ns)| *ns > 0);
    let limits = limits.map(|(export, ns)| {
        let report = LimitReport {
            limited: 1,
            limited_ns: ns,
            kind: Some(LimitKind::ALL[3]),
            is_holding: true,
        };
        (LimitTarget::Export(ExportId(export)), report)
    });
    Recording {
        options,
        devices: devices.into(),
        states: [DeviceState::Live; 2],
        tables,
        rings,
        usage,
        limits: limits.collect(),
        now: Instant(now),
    }
}

impl Recording {
    /// Answers a query as a shard with these exports does; returns it if it is another one.
    pub fn answer(&self, query: ControlQuery) -> Option<ControlQuery> {
        match query {
            ControlQuery::Slow { export, filter, answer, .. } => {
                let index = usize::from(export.0);
                let (requests, slowest) = self.rings[index].recent(self.now, filter);
                let alone_ns = Op::ALL.map(|op| self.tables[index].fastest_in_device(op));
                let (now, writeback, frozen) = (self.now, None, false);
                let (errors, answered) = (ErrorCounts::default(), 0);
                let report = SlowReport {
                    now,
                    requests,
                    slowest,
                    alone_ns,
                    writeback,
                    frozen,
                    errors,
                    answered,
                };
                answer.send(report).unwrap();
            }
            ControlQuery::SlowestExports { filter, answer } => {
                let above = |ring: &SlowRing| {
                    let (requests, slowest) = ring.recent(self.now, filter);
                    above_ns(requests, slowest)
                };
                let all = (0..).map(ExportId).zip(self.rings.iter().map(above)).collect();
                answer.send(all).unwrap();
            }
            ControlQuery::Usage { times, answer } => {
                answer.send(self.usage.during(&times)).unwrap();
            }
            ControlQuery::Limits { answer } => answer.send(self.limits.clone()).unwrap(),
            ControlQuery::Device { device, answer, .. } => {
                let index = usize::from(device.0);
                let (queue, tags) = self.devices[index];
                let report = DeviceReport {
                    state: self.states[index],
                    options: self.options[index],
                    queue,
                    busy_ns: queue.busy_ns,
                    tags,
                    tags_depth: self.options[index].nr_requests,
                    tags_free: 0,
                    smallest_ns: None,
                    oldest: None,
                    ops: Default::default(),
                };
                answer.send(report).unwrap();
            }
            other => return Some(other),
        }
        None
    }
}
