//! One shard with a cache, its devices, and many writers, in virtual time and without a byte.
//!
//! ```text
//!   writers, devices, timer --due--> inbox --a turn takes up to 16 bios--> shard --> actions
//!        ^                                                                             |
//!        |   the turn took: bios * 0.5 us + bytes copied at 10 GB/s + commands * 0.5 us |
//!        `------- answers (the next write after 4 us), commands, the timer <------------'
//! ```
//!
//! The shard is one thread: what comes while a turn lasts waits for the next. A turn that finds work when the one before ends
//! follows it at once; any other is a wake-up of the thread. A writer sleeps when its bio is not answered in the turn that took
//! it, and its answer is a wake-up of a writer. What the costs are hardly matters as long as memory is faster than the device;
//! they keep a writer that nobody holds from writing for ever in no time.
//!
//! Invariants: a run is a function of its options; after every turn what is dirty is compared with the limit.

use std::collections::VecDeque;

use headworks_core::record::RunHash;
use headworks_core::time::US;
use headworks_core::writeback::{DirtyOptions, TraceEvent};
use headworks_core::{
    Action, Bio, CacheOptions, Completion, ConfigError, DeviceConfig, DeviceId, Input, Instant, Op,
    QueueOptions, ReplyStage, RequestId, Shard, ShardConfig, ShardId, VolumeConfig, VolumeOptions,
};
use headworks_nbd::client::Histogram;
use headworks_sim::disk::{DeviceModel, ModelCommand, Stream, StreamProfile};
use headworks_sim::events::EventQueue;

use crate::baseline::foreground::Throttling;

use super::series::{SAMPLE_NS, Sample};
use super::writer::{Writer, WriterOptions};

/// Bios of a turn.
const TURN_BIOS: usize = 16;
/// Of a bio in the shard, and of a command.
const PER_BIO_NS: u64 = US / 2;
/// What a thread copies in a second.
const COPY_BYTES_PER_SECOND: u64 = 10_000_000_000;
/// What a writer does between an answer and its next write.
const WRITER_NS: u64 = 4 * US;
/// The size of a block.
const BLOCK: u64 = 4096;

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct CacheHarnessOptions {
    /// Of the places of files.
    pub seed: u64,
    /// Bytes of the cache.
    pub pool: u64,
    /// The limits, and who writes.
    pub dirty: DirtyOptions,
    /// Every device's queue.
    pub queue: QueueOptions,
    /// One volume on each.
    pub devices: Vec<StreamProfile>,
    /// Bytes of each volume.
    pub size: u64,
    /// Who writes.
    pub writers: Vec<WriterOptions>,
    /// Before the counting starts. Positions count from the start.
    pub ramp_ns: u64,
    /// How long the counting lasts.
    pub runtime_ns: u64,
    /// How writers are slowed; `dirty.policy` goes with it.
    pub throttle: Throttling,
    /// Keep the throttle's events.
    pub trace: bool,
}

/// What was counted from the end of the ramp on, if nothing else is said.
#[derive(Clone, Debug, Default)]
pub struct CaseOutcome {
    /// Bytes of writes answered, writer by writer.
    pub bytes: Vec<u64>,
    /// Bytes that each device took.
    pub media: Vec<u64>,
    /// Nanoseconds that each device had something to do.
    pub busy_ns: Vec<u64>,
    /// Changes of stream, of all devices.
    pub switches: u64,
    /// Writes to devices, and their bytes.
    pub requests: u64,
    /// See `requests`.
    pub request_bytes: u64,
    /// Turns of the shard.
    pub turns: u64,
    /// Those that woke its thread.
    pub thread_wakeups: u64,
    /// Times the shard's timer ran.
    pub timers: u64,
    /// From the time a write came to its answer, of those that were not answered in their turn.
    pub pauses: Histogram,
    /// The same of flushes.
    pub flushes: Histogram,
    /// Answers of writes, of flushes.
    pub writes: u64,
    /// Times dirty was above the limit after a turn, from the start on.
    pub over_limit: u64,
    /// Most that was dirty, in millionths of the limit, from the start on.
    pub worst_ppm: u64,
    /// Bios that failed, notices.
    pub failed: u64,
    /// The longest that anybody still waits at the end: what hangs is here and in no histogram.
    pub waiting_max_ns: u64,
    /// From the start on.
    pub samples: Vec<Sample>,
    /// From the start on, if they were asked for.
    pub traces: Vec<TraceEvent>,
    /// Of all inputs and actions.
    pub hash: u64,
}

/// What happens at a time of its own.
#[derive(Clone, Copy, Debug)]
enum HarnessEvent {
    Write(u32),
    Close(u32),
    Sample,
    RampEnds,
}

/// See the head of this file.
pub struct CacheHarness {
    shard: Shard,
    devices: Vec<Stream>,
    /// Bytes of the command in each slot of each device.
    lens: Vec<Vec<u32>>,
    writers: Vec<Writer>,
    events: EventQueue<HarnessEvent>,
    timer: Option<Instant>,
    now: Instant,
    ends: Instant,
    inbox: VecDeque<Input>,
    turn: Vec<Input>,
    done: Vec<u64>,
    /// The thread found nothing to do after its last turn.
    idle: bool,
    sample: Sample,
    before: Vec<(u64, u64, u64)>,
    trace: bool,
    outcome: CaseOutcome,
    hash: RunHash,
}

impl CacheHarness {
    /// A harness, at time 0.
    ///
    /// # Errors
    /// What the options say that cannot be.
    pub fn new(options: CacheHarnessOptions) -> Result<Self, ConfigError> {
        let writers = options.writers.len();
        let mut shard = Shard::new(config(&options))?;
        options.throttle.install(&mut shard);
        shard.trace_dirty(options.trace);
        let mut events = EventQueue::with_capacity(writers + 64);
        for (number, writer) in (0u32..).zip(&options.writers) {
            // Not all at one time: a thousand threads do not start at once either.
            let starts = writer.starts_at.after(u64::from(number) * US);
            events.push(starts, HarnessEvent::Write(number));
            if writer.exits_at < Instant(u64::MAX) {
                events.push(writer.exits_at, HarnessEvent::Close(number));
            }
        }
        events.push(Instant(SAMPLE_NS), HarnessEvent::Sample);
        events.push(Instant(options.ramp_ns), HarnessEvent::RampEnds);
        let devices = options.devices.len();
        let writers = (0u32..).zip(options.writers);
        Ok(Self {
            shard,
            devices: options.devices.into_iter().map(Stream::new).collect(),
            lens: vec![Vec::new(); devices],
            writers: writers.map(|(id, o)| Writer::new(o, id, options.seed)).collect(),
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

    /// Runs to the end and says what was counted.
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
        // The turn is known when one takes it.
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
        self.look();
        self.outcome.samples.push(self.sample);
        let Sample { accepted, writers, turns, wakeups, .. } = self.sample;
        self.sample = Sample { accepted, writers, turns, wakeups, ..Sample::default() };
        if self.trace {
            self.shard.take_dirty_traces(&mut self.outcome.traces);
        }
    }

    /// Compares what is dirty with the limit.
    fn look(&mut self) {
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

    /// What was counted so far does not count.
    fn ramp_ends(&mut self) {
        self.writers.iter_mut().for_each(|writer| writer.bytes = 0);
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

    /// The shard takes what is in the inbox, and what it decides is carried out.
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
                let (_, turn, ..) = out.as_mut().expect("it brought a bio");
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
            cost += self.act(self.shard.actions().list[index], cost);
        }
        self.shard.clear_actions();
        self.look();
        self.now = now.after(cost);
    }

    /// Carries out one action, so long after the turn's start; what it takes.
    fn act(&mut self, action: Action, after: u64) -> u64 {
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
            Action::Notice(_) => {
                self.outcome.failed += 1;
                0
            }
            Action::Data { .. } => 0,
            Action::Send { .. } => unreachable!("there is one shard"),
        }
    }

    fn answer(&mut self, number: u32, at: Instant) {
        let writer = &mut self.writers[number as usize];
        let (since, turn, op, len) = writer.out.take().expect("an answer to a bio that is out");
        let slept = at.since(since);
        if op == Op::Flush {
            self.outcome.flushes.record(slept);
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
        self.events.push(at.after(WRITER_NS), HarnessEvent::Write(number));
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
    let volumes = (0..devices as u16).map(|device| VolumeConfig {
        home: ShardId(0),
        device: DeviceId(device),
        options: volume,
    });
    config.volumes = volumes.collect();
    config.cache = CacheOptions {
        units: (options.pool / BLOCK) as u32,
        writers_max: writers.max(1),
        ..CacheOptions::default()
    };
    config.dirty = options.dirty;
    config
}

#[cfg(test)]
mod tests {
    use headworks_core::time::SEC;

    use super::super::{Case, Seed002Options, points};
    use super::*;

    fn harness(writers: u32, change: impl FnOnce(&mut CacheHarnessOptions)) -> CaseOutcome {
        let cases = vec![Case::Grid];
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
    fn a_run_is_a_function_of_its_options() {
        let hash = |size| harness(3, |options| options.size = size).hash;
        assert_eq!(hash(1 << 40), hash(1 << 40));
        let starts = |at| harness(3, |options| options.writers[2].starts_at = Instant(at)).hash;
        assert_ne!(starts(0), starts(SEC / 4));
    }

    #[test]
    fn what_writers_wrote_and_what_the_device_took_agree() {
        let outcome = harness(4, |_| ());
        let (accepted, media): (u64, u64) = (outcome.bytes.iter().sum(), outcome.media[0]);
        // What is dirty may have changed by less than the pool's fifth.
        assert!(accepted.abs_diff(media) < (256 << 20) / 5, "{accepted} {media}");
        assert!(media > 650_000_000, "{media}");
        assert_eq!((outcome.failed, outcome.over_limit), (0, 0));
        assert_eq!(outcome.request_bytes.abs_diff(media) >> 27, 0);
    }

    #[test]
    fn writers_come_and_go_and_nobody_waits_for_ever() {
        let outcome = harness(3, |options| {
            options.writers[1].starts_at = Instant(SEC / 2);
            options.writers[2].exits_at = Instant(SEC);
        });
        let at = |ms: u64| outcome.samples.iter().find(|s| s.at.0 >= ms * 1_000_000).unwrap();
        assert_eq!([100, 700, 1200].map(|ms| at(ms).writers), [2, 3, 2]);
        assert!(outcome.waiting_max_ns < SEC / 2, "{}", outcome.waiting_max_ns);
    }
}
