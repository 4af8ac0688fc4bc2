//! A harness of one shard with a cache, its devices, and many writers, in virtual time and without
//! data.
//!
//! ```text
//!   writers, devices, timer --due--> inbox --a turn takes up to 16 bios--> shard --> actions
//!        ^                                                                             |
//!        |   the turn took: bios * 0.5 us + bytes copied at 10 GB/s + commands * 0.5 us |
//!        `------- answers (the next write after 4 us), commands, the timer <------------'
//! ```
//!
//! The shard is one thread: inputs that arrive during a turn wait for the next. A turn that has
//! inputs when the previous one ends follows at once; any other turn is a wake-up of the thread. A
//! writer sleeps if its bio is not answered in the turn that took it, and the answer is then a
//! wake-up of the writer. The exact costs hardly matter as long as memory is faster than the
//! device; they bound the rate of unthrottled writers.
//!
//! Invariants: a run is a function of its options; after every turn the dirty bytes are compared
//! with the limit.

use std::collections::VecDeque;

use headworks_core::record::RunHash;
use headworks_core::time::US;
use headworks_core::writeback::{DirtyOptions, TraceEvent};
use headworks_core::{
    Action, Bio, CacheOptions, Completion, ConfigError, DeviceConfig, DeviceId, ExportConfig,
    ExportId, Input, Instant, Op, QueueOptions, ReplyStage, RequestId, Shard, ShardConfig, ShardId,
    TenantConfig, TenantId, VolumeConfig, VolumeOptions, WriteMode,
};
use headworks_disks::EventQueue;
use headworks_disks::{DeviceModel, ModelCommand, Stream, StreamProfile};
use headworks_nbd::client::Histogram;

use crate::baseline::foreground::Throttling;
use crate::baseline::{TagPolicy, WakeOptions};

use super::series::{SAMPLE_NS, Sample};
use super::writer::{Writer, WriterOptions};

/// Maximum number of bios in a turn.
const TURN_BIOS: usize = 16;
/// Time of a bio in the shard, and of a command.
const PER_BIO_NS: u64 = US / 2;
/// Copying rate of the shard's thread.
const COPY_BYTES_PER_SECOND: u64 = 10_000_000_000;
/// Time of a writer between an answer and its next write.
const WRITER_NS: u64 = 4 * US;
/// Bytes of a cache block.
const BLOCK: u64 = 4096;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct CacheHarnessOptions {
    /// Seed of the random offsets of files.
    pub seed: u64,
    /// Bytes of the cache.
    pub pool: u64,
    /// Dirty limits and throttle policy.
    pub dirty: DirtyOptions,
    /// Queue options of every device.
    pub queue: QueueOptions,
    /// Tag policy of every device.
    pub tags: TagPolicy,
    /// The devices, with one volume each.
    pub devices: Vec<StreamProfile>,
    /// The write modes of the volumes, all of them on the first device; without any each device has one that is written back.
    pub modes: Vec<WriteMode>,
    /// Bytes of each volume.
    pub size: u64,
    /// The writers of the run.
    pub writers: Vec<WriterOptions>,
    /// Tenants with one export each: weight and number of writers, in their order; without any all writers are of one export.
    pub tenants: Vec<(u16, u32)>,
    /// Length of the windows in which the bytes of tenants are counted.
    pub window_ns: u64,
    /// Virtual time before counting starts.
    pub ramp_ns: u64,
    /// Virtual time during which is counted.
    pub runtime_ns: u64,
    /// How writers are throttled; `dirty.policy` must match.
    pub throttle: Throttling,
    /// Whether the throttle's trace events are kept.
    pub trace: bool,
}

/// The results of a run, counted from the end of the ramp unless stated otherwise.
#[derive(Clone, Debug, Default)]
pub struct CaseOutcome {
    /// Answered bytes by writer.
    pub bytes: Vec<u64>,
    /// Answers by writer, and those of them for which it slept.
    pub answers: Vec<(u64, u64)>,
    /// Answered bytes by tenant, in each window after the ramp.
    pub windows: Vec<Vec<u64>>,
    /// Bytes written to each device.
    pub media: Vec<u64>,
    /// Blocks in the cache at the end.
    pub resident: u64,
    /// Busy nanoseconds of each device.
    pub busy_ns: Vec<u64>,
    /// Stream changes of all devices.
    pub switches: u64,
    /// Number of writes to devices.
    pub requests: u64,
    /// Bytes of the writes to devices.
    pub request_bytes: u64,
    /// Number of turns of the shard.
    pub turns: u64,
    /// Turns that woke the shard's thread.
    pub thread_wakeups: u64,
    /// Number of timer events of the shard.
    pub timers: u64,
    /// Time from submission to answer, of writes not answered in their turn.
    pub pauses: Histogram,
    /// Time from submission to answer, of flushes.
    pub flushes: Histogram,
    /// Number of answers to writes and flushes.
    pub writes: u64,
    /// Turns that ended with dirty bytes above the limit, since the start.
    pub over_limit: u64,
    /// Maximum dirty bytes in millionths of the limit, since the start.
    pub worst_ppm: u64,
    /// Failed bios and notices.
    pub failed: u64,
    /// Longest wait of a bio outstanding at the end; a hang appears here and in no histogram.
    pub waiting_max_ns: u64,
    /// Samples since the start.
    pub samples: Vec<Sample>,
    /// Trace events since the start, if requested.
    pub traces: Vec<TraceEvent>,
    /// Hash of all inputs and actions.
    pub hash: u64,
}

/// An event in the heap.
#[derive(Clone, Copy, Debug)]
enum HarnessEvent {
    Write(u32),
    Close(u32),
    Sample,
    RampEnds,
    WindowEnds,
}

/// A shard with a cache, its devices and its writers.
pub struct CacheHarness {
    shard: Shard,
    devices: Vec<Stream>,
    /// Bytes of the command in each slot of each device.
    lens: Vec<Vec<u32>>,
    writers: Vec<Writer>,
    tenants: usize,
    window_ns: u64,
    events: EventQueue<HarnessEvent>,
    timer: Option<Instant>,
    now: Instant,
    ends: Instant,
    inbox: VecDeque<Input>,
    turn: Vec<Input>,
    done: Vec<u64>,
    /// The thread had nothing to do after its last turn.
    idle: bool,
    sample: Sample,
    before: Vec<(u64, u64, u64)>,
    trace: bool,
    outcome: CaseOutcome,
    hash: RunHash,
}

impl CacheHarness {
    /// A harness at time 0.
    ///
    /// # Errors
    /// Invalid options.
    pub fn new(options: CacheHarnessOptions) -> Result<Self, ConfigError> {
        let writers = options.writers.len();
        let mut shard = Shard::new(config(&options))?;
        options.throttle.install(&mut shard);
        for device in 0..options.devices.len() as u16 {
            options.tags.install(&mut shard, DeviceId(device), WakeOptions::default());
        }
        shard.trace_dirty(options.trace);
        let mut events = EventQueue::with_capacity(writers + 64);
        for (number, writer) in (0u32..).zip(&options.writers) {
            // Staggered, as a thousand threads do not start at once.
            let starts = writer.starts_at.after(u64::from(number) * US);
            events.push(starts, HarnessEvent::Write(number));
            if writer.exits_at < Instant(u64::MAX) {
                events.push(writer.exits_at, HarnessEvent::Close(number));
            }
        }
        events.push(Instant(SAMPLE_NS), HarnessEvent::Sample);
        events.push(Instant(options.ramp_ns), HarnessEvent::RampEnds);
        if !options.tenants.is_empty() {
            let first = Instant(options.ramp_ns).after(options.window_ns);
            events.push(first, HarnessEvent::WindowEnds);
        }
        let exports = (0u16..).zip(&options.tenants).flat_map(|(export, (_, writers))| {
            std::iter::repeat_n(ExportId(export), *writers as usize)
        });
        let mut exports = exports.collect::<Vec<_>>().into_iter();
        let devices = options.devices.len();
        let writers = (0u32..).zip(options.writers);
        Ok(Self {
            shard,
            devices: options.devices.into_iter().map(Stream::new).collect(),
            lens: vec![Vec::new(); devices],
            writers: writers
                .map(|(id, o)| {
                    let mut writer = Writer::new(o, id, options.seed);
                    writer.export = exports.next().unwrap_or_default();
                    writer
                })
                .collect(),
            tenants: options.tenants.len(),
            window_ns: options.window_ns,
            events,
            timer: None,
            now: Instant(0),
            ends: Instant(options.ramp_ns + options.runtime_ns),
            inbox: VecDeque::with_capacity(1024),
            turn: Vec::with_capacity(1024),
            done: Vec::with_capacity(256),
            idle: true,
            sample: Sample::default(),
            before: vec![(0, 0, 0); devices],
            trace: options.trace,
            outcome: CaseOutcome::default(),
            hash: RunHash::default(),
        })
    }

    /// Runs to the end and returns the results.
    #[must_use]
    pub fn run(mut self) -> CaseOutcome {
        while self.now < self.ends {
            self.take_due();
            if !self.inbox.is_empty() {
                self.turn();
                continue;
            }
            self.idle = true;
            let devices = self.devices.iter().filter_map(DeviceModel::next_timeout);
            let Some(next) = devices.chain(self.timer).chain(self.events.next_at()).min() else {
                break;
            };
            self.now = self.now.max(next);
        }
        self.end()
    }

    fn end(mut self) -> CaseOutcome {
        let waits = self.writers.iter().filter_map(|writer| writer.out);
        self.outcome.waiting_max_ns =
            waits.map(|(since, ..)| self.now.since(since)).max().unwrap_or(0);
        let CaseOutcome { media, busy_ns, switches, .. } = &mut self.outcome;
        for (index, device) in self.devices.iter().enumerate() {
            let counters = device.counters();
            let (bytes, switched, busy) = self.before[index];
            media.push(counters.media_bytes - bytes);
            *switches += counters.positionings - switched;
            busy_ns.push(busy_of(&self.shard, index, self.now) - busy);
        }
        self.outcome.bytes = self.writers.iter().map(|writer| writer.bytes).collect();
        self.outcome.answers = self.writers.iter().map(|writer| writer.answers).collect();
        self.outcome.resident = self.shard.cache_stats().map_or(0, |stats| stats.size.resident);
        self.outcome.hash = self.hash.0;
        self.outcome
    }

    fn take_due(&mut self) {
        for (index, device) in self.devices.iter_mut().enumerate() {
            if device.next_timeout().is_none_or(|at| at > self.now) {
                continue;
            }
            device.on_timeout(self.now, &mut self.done);
            for token in self.done.drain(..) {
                let id = RequestId { slot: (token >> 32) as u32, generation: token as u32 };
                let transferred = self.lens[index][id.slot as usize];
                let completion = Completion { id, transferred, status: Ok(()), hole: false };
                self.inbox
                    .push_back(Input::Complete { device: DeviceId(index as u16), completion });
            }
        }
        if self.timer.is_some_and(|at| at <= self.now) {
            self.timer = None;
            self.outcome.timers += 1;
            self.inbox.push_back(Input::Timer);
        }
        while let Some((at, happening)) = self.events.pop_due(self.now) {
            match happening {
                HarnessEvent::Write(writer) => self.write(writer),
                HarnessEvent::Close(writer) => self.close(writer),
                HarnessEvent::Sample => self.sample(at),
                HarnessEvent::RampEnds => self.ramp_ends(),
                HarnessEvent::WindowEnds => self.window_ends(at),
            }
        }
    }

    fn write(&mut self, number: u32) {
        let writer = &mut self.writers[number as usize];
        if self.now >= writer.options.exits_at {
            return;
        }
        self.sample.writers += u32::from(!writer.began);
        let bio = writer.next();
        // The turn is set when a turn takes the bio.
        writer.out = Some((self.now, u64::MAX, bio.op, bio.len));
        self.inbox.push_back(Input::Bio(bio));
    }

    fn close(&mut self, number: u32) {
        self.sample.writers -= u32::from(self.writers[number as usize].began);
        self.inbox.push_back(Input::Close { connection: number });
    }

    fn sample(&mut self, at: Instant) {
        self.events.push(at.after(SAMPLE_NS), HarnessEvent::Sample);
        self.sample.at = at;
        self.sample.media = self.devices.iter().map(|device| device.counters().media_bytes).sum();
        self.check_limit();
        self.outcome.samples.push(self.sample);
        let Sample { accepted, writers, turns, wakeups, .. } = self.sample;
        self.sample = Sample { accepted, writers, turns, wakeups, ..Sample::default() };
        if self.trace {
            self.shard.take_dirty_traces(&mut self.outcome.traces);
        }
    }

    /// Compares the dirty bytes with the limit.
    fn check_limit(&mut self) {
        let Some(stats) = self.shard.dirty_stats() else {
            return;
        };
        let dirty = stats.nr_dirty + stats.nr_writeback + stats.reserved;
        let limit = stats.nr_dirty_threshold;
        self.outcome.over_limit += u64::from(dirty > limit);
        self.outcome.worst_ppm = self.outcome.worst_ppm.max(dirty * 1_000_000 / limit.max(1));
        self.sample.dirty = dirty * BLOCK;
        self.sample.dirty_max = self.sample.dirty_max.max(dirty * BLOCK);
        self.sample.limit = limit * BLOCK;
        self.sample.background = stats.nr_dirty_background_threshold * BLOCK;
    }

    /// Notes what each tenant's writers were answered in the window that ends.
    fn window_ends(&mut self, at: Instant) {
        self.events.push(at.after(self.window_ns), HarnessEvent::WindowEnds);
        let mut bytes = vec![0; self.tenants];
        for writer in &self.writers {
            bytes[usize::from(writer.export.0)] += writer.bytes;
        }
        for (tenant, bytes) in bytes.iter_mut().enumerate() {
            *bytes -= self.outcome.windows.iter().map(|window| window[tenant]).sum::<u64>();
        }
        self.outcome.windows.push(bytes);
    }

    /// Discards the counts of the ramp.
    fn ramp_ends(&mut self) {
        self.writers.iter_mut().for_each(|writer| (writer.bytes, writer.answers) = (0, (0, 0)));
        for (index, device) in self.devices.iter().enumerate() {
            let counters = device.counters();
            let busy = busy_of(&self.shard, index, self.now);
            self.before[index] = (counters.media_bytes, counters.positionings, busy);
        }
        let CaseOutcome { over_limit, worst_ppm, failed, samples, traces, .. } =
            std::mem::take(&mut self.outcome);
        let kept = CaseOutcome {
            over_limit,
            worst_ppm,
            failed,
            samples,
            traces,
            ..CaseOutcome::default()
        };
        self.outcome = kept;
    }

    /// Runs a turn of the shard and executes its actions.
    fn turn(&mut self) {
        self.sample.turns += 1;
        self.outcome.turns += 1;
        self.outcome.thread_wakeups += u64::from(std::mem::take(&mut self.idle));
        let (mut bios, mut cost) = (0, 0);
        while bios < TURN_BIOS
            && let Some(input) = self.inbox.pop_front()
        {
            if let Input::Bio(Bio { id, .. }) = input {
                bios += 1;
                cost += PER_BIO_NS;
                let out = &mut self.writers[id.connection as usize].out;
                let (_, turn, ..) = out.as_mut().expect("the writer has a bio outstanding");
                *turn = self.sample.turns;
            }
            self.turn.push(input);
        }
        let now = self.now;
        self.hash.add(now.0);
        self.turn.iter().for_each(|input| self.hash.add_input(input));
        self.shard.handle(now, &self.turn);
        self.turn.clear();
        self.hash.add_actions(self.shard.actions());
        for index in 0..self.shard.actions().list.len() {
            cost += self.execute(self.shard.actions().list[index], cost);
        }
        self.shard.clear_actions();
        self.check_limit();
        self.now = now.after(cost);
    }

    /// Executes an action `after` nanoseconds into the turn; returns its duration.
    fn execute(&mut self, action: Action, after: u64) -> u64 {
        match action {
            Action::Submit(submit) => {
                let (device, id) = (usize::from(submit.device.0), submit.id);
                let token = u64::from(id.slot) << 32 | u64::from(id.generation);
                let slot = id.slot as usize;
                let lens = &mut self.lens[device];
                lens.resize(lens.len().max(slot + 1), 0);
                lens[slot] = submit.len;
                if submit.op == Op::Write {
                    self.outcome.requests += 1;
                    self.outcome.request_bytes += u64::from(submit.len);
                }
                let (op, offset, len) = (submit.op, submit.offset, submit.len);
                self.devices[device].submit(self.now, ModelCommand { token, op, offset, len });
                PER_BIO_NS
            }
            Action::Reply { id, status, stage, .. } => {
                self.outcome.failed += u64::from(status.is_err());
                if stage != ReplyStage::Released {
                    self.answer(id.connection, self.now.after(after));
                }
                0
            }
            Action::Timer { at } => {
                self.timer = Some(at);
                0
            }
            Action::Copy { len, .. } | Action::Zero { len, .. } | Action::Move { len, .. } => {
                u64::from(len) * 1_000_000_000 / COPY_BYTES_PER_SECOND
            }
            Action::SetDirty { .. } | Action::Prepare { .. } | Action::Release { .. } => 0,
            Action::Notice(_) => {
                self.outcome.failed += 1;
                0
            }
            Action::Data { .. } | Action::ReplyFrames { .. } | Action::NeedsBuffer { .. } => 0,
            Action::Send { .. } => unreachable!("the harness has one shard"),
        }
    }

    fn answer(&mut self, number: u32, at: Instant) {
        let writer = &mut self.writers[number as usize];
        let (since, turn, op, len) = writer.out.take().expect("only outstanding bios are answered");
        let slept = at.since(since);
        writer.answers.0 += 1;
        writer.answers.1 += u64::from(turn != self.sample.turns);
        if op == Op::Flush {
            self.outcome.flushes.record(slept);
        } else if op == Op::Read {
            writer.bytes += u64::from(len);
            if turn != self.sample.turns {
                self.outcome.pauses.record(slept);
            }
        } else {
            self.outcome.writes += 1;
            writer.bytes += u64::from(len);
            self.sample.accepted += u64::from(len);
            if turn != self.sample.turns {
                self.outcome.pauses.record(slept);
                self.sample.pause_max_ns = self.sample.pause_max_ns.max(slept);
                self.sample.pause_sum_ns += slept;
                self.sample.pauses += 1;
                self.sample.wakeups += 1;
            }
        }
        let next = writer.next_write_at(at.after(WRITER_NS));
        self.events.push(next, HarnessEvent::Write(number));
    }
}

fn busy_of(shard: &Shard, device: usize, now: Instant) -> u64 {
    let stats = shard.queue_stats(DeviceId(device as u16));
    stats.map_or(0, |(queue, _)| queue.busy_until(now))
}

fn config(options: &CacheHarnessOptions) -> ShardConfig {
    let volume = VolumeOptions { size: options.size, block_size: 4096, ..VolumeOptions::default() };
    let writers = options.writers.len() as u32;
    let mut config = ShardConfig::single(options.queue, volume, writers + 16);
    let devices = options.devices.len();
    config.devices = vec![DeviceConfig { owner: ShardId(0), queue: options.queue }; devices];
    let volume_on = |device, mode| VolumeConfig {
        home: ShardId(0),
        device: DeviceId(device),
        options: VolumeOptions { mode, ..volume },
    };
    config.volumes = match &options.modes[..] {
        [] => (0..devices as u16).map(|device| volume_on(device, volume.mode)).collect(),
        modes => modes.iter().map(|&mode| volume_on(0, mode)).collect(),
    };
    config.cache = CacheOptions {
        units: (options.pool / BLOCK) as u32,
        writers_max: writers.max(1),
        ..CacheOptions::default()
    };
    config.dirty = options.dirty;
    let weights = options
        .tenants
        .iter()
        .map(|(weight, _)| TenantConfig { weight: *weight, ..TenantConfig::default() });
    config.tenants = weights.collect();
    let exports = (0..options.tenants.len() as u16).map(TenantId);
    config.exports =
        exports.map(|tenant| ExportConfig { tenant, ..ExportConfig::default() }).collect();
    config
}

#[cfg(test)]
mod tests {
    use headworks_core::time::SEC;

    use super::super::{Seed002Options, ThrottleCase, points};
    use super::*;

    fn harness(writers: u32, change: impl FnOnce(&mut CacheHarnessOptions)) -> CaseOutcome {
        let cases = vec![ThrottleCase::Grid];
        let (writers, bandwidths, pools) = (vec![writers], vec![700_000_000], vec![256 << 20]);
        let all = points(&Seed002Options {
            cases,
            writers,
            bandwidths,
            pools,
            ..Seed002Options::default()
        });
        let mut options = all[0].harness(false);
        (options.ramp_ns, options.runtime_ns) = (SEC / 2, SEC);
        change(&mut options);
        CacheHarness::new(options).unwrap().run()
    }

    #[test]
    fn equal_options_give_equal_runs() {
        let hash = |size| harness(3, |options| options.size = size).hash;
        assert_eq!(hash(1 << 40), hash(1 << 40));
        let starts = |at| harness(3, |options| options.writers[2].starts_at = Instant(at)).hash;
        assert_ne!(starts(0), starts(SEC / 4));
    }

    #[test]
    fn bytes_of_writers_and_device_agree() {
        let outcome = harness(4, |_| ());
        let (accepted, media): (u64, u64) = (outcome.bytes.iter().sum(), outcome.media[0]);
        // The dirty bytes may have changed by less than a fifth of the pool.
        assert!(accepted.abs_diff(media) < (256 << 20) / 5, "{accepted} {media}");
        assert!(media > 650_000_000, "{media}");
        assert_eq!((outcome.failed, outcome.over_limit), (0, 0));
        assert_eq!(outcome.request_bytes.abs_diff(media) >> 27, 0);
    }

    #[test]
    fn writers_that_start_and_exit_are_all_answered() {
        let outcome = harness(3, |options| {
            options.writers[1].starts_at = Instant(SEC / 2);
            options.writers[2].exits_at = Instant(SEC);
        });
        let at = |ms: u64| outcome.samples.iter().find(|s| s.at.0 >= ms * 1_000_000).unwrap();
        assert_eq!([100, 700, 1200].map(|ms| at(ms).writers), [2, 3, 2]);
        assert!(outcome.waiting_max_ns < SEC / 2, "{}", outcome.waiting_max_ns);
    }
}
