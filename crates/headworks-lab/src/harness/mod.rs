//! A harness of one shard, one device model without data, and jobs in the manner of fio, in virtual
//! time.
//!
//! ```text
//!   heap: job wakes, request reaches the device --+
//!   device: next_timeout -------------------------+--> the earliest --> a turn of the shard --> actions
//!   shard: its timer -----------------------------+                                             |
//!        ^--- submit: to the device (after the dispatcher's delay) <-----------------------------+
//!        ^--- reply: counted, the job wakes and thinks
//! ```
//!
//! A turn takes all completions of one time, or one batch of one job; so a batch is under one
//! outermost plug. Counting starts at `ramp_ns` and lasts for `runtime_ns`. Invariants: a run is a
//! function of its options; if no event is pending while bios are outstanding, the run ends with
//! [`RunCounts::stuck`]; a job that gets nothing for [`STARVED_NS`] while the device works counts in
//! [`RunCounts::starved`].

mod counts;
mod job;
mod program;
mod settings;

use headworks_core::record::RunHash;
use headworks_core::time::SEC;
use headworks_core::{
    Action, CacheOptions, Completion, ConfigError, DeviceId, ExportConfig, Input, Instant, IoError,
    QueueOptions, ReplyStage, RequestId, Shard, ShardConfig, TenantConfig, VolumeId, VolumeOptions,
};
use headworks_disks::EventQueue;
use headworks_disks::{DeviceModel, ModelCommand};

pub use counts::{AnswerWindows, JobCounts, RunCounts};
pub(crate) use job::Job;
pub use job::JobOptions;
pub use program::Program;
pub use settings::settings;

/// Time after which a run whose device has nothing is stuck, whatever timers fire: several time-outs of commands.
const STUCK_NS: u64 = 120 * SEC;

/// The only device of the harness.
const DEVICE: DeviceId = DeviceId(0);
/// A job with outstanding bios that gets no answer for so long is starved: the time after which
/// Linux reports a hung task. In a shorter run a job is starved that gets nothing at all.
pub const STARVED_NS: u64 = 120 * SEC;
/// The first volume; without others it covers the whole device.
const VOLUME: VolumeId = VolumeId(0);

/// The delay of requests between elevator and device.
pub trait Dispatcher {
    /// A request has left the elevator; returns the nanoseconds until it reaches the device.
    fn dispatched(&mut self, id: RequestId) -> u64;

    /// A request has reached the device.
    fn issued(&mut self, id: RequestId);
}

/// How the bios of a batch are plugged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plugging {
    /// One plug holds the whole batch.
    #[default]
    Batch,
    /// Each bio has a plug of its own and reaches the queue alone. Seed 004 attributes this to
    /// Linux of 2015, where an inner plug flushed the outer one. One turn of the shard is one plug,
    /// so each bio gets a turn.
    Bio,
}

/// Options of a run.
pub struct BlockHarnessOptions {
    /// Seed of the jobs' random offsets.
    pub seed: u64,
    /// Queue options of the device.
    pub queue: QueueOptions,
    /// Bytes of each volume on the device, of which there are as many as jobs name; they lie one after the other.
    pub size: u64,
    /// Model of the device.
    pub device: Box<dyn DeviceModel>,
    /// The jobs of the run.
    pub jobs: Vec<JobOptions>,
    /// The exports and their shares.
    pub exports: Vec<ExportConfig>,
    /// The tenants and their shares.
    pub tenants: Vec<TenantConfig>,
    /// Cache of the shard; jobs must think then, because answers from memory take no time.
    pub cache: CacheOptions,
    /// Virtual time before counting starts.
    pub ramp_ns: u64,
    /// Virtual time during which is counted.
    pub runtime_ns: u64,
}

/// An event in the heap.
#[derive(Clone, Copy, Debug)]
enum HarnessEvent {
    /// A job submits its next batch.
    Wake { job: u32 },
    /// A request reaches the device.
    Issue { id: RequestId, order: ModelCommand },
    /// The device has refused a request.
    Refuse { id: RequestId },
}

/// A shard, its device and its jobs.
pub struct BlockHarness {
    shard: Shard,
    device: Box<dyn DeviceModel>,
    dispatcher: Option<Box<dyn Dispatcher>>,
    jobs: Vec<Job>,
    events: EventQueue<HarnessEvent>,
    timer: Option<Instant>,
    now: Instant,
    ramp_ends: Instant,
    ends: Instant,
    inputs: Vec<Input>,
    done: Vec<u64>,
    in_device: u32,
    /// Commands that the device has accepted and not ended.
    accepted: u32,
    /// Commands that the device accepts at once; it answers BUSY to more.
    accepts: u32,
    counts: RunCounts,
    hash: RunHash,
    plugging: Plugging,
    settings: String,
    volume_bytes: u64,
}

impl BlockHarness {
    /// A harness at time 0.
    ///
    /// # Errors
    /// Invalid options.
    pub fn new(options: BlockHarnessOptions) -> Result<Self, ConfigError> {
        let volume =
            VolumeOptions { size: options.size, block_size: 4096, ..VolumeOptions::default() };
        let bios_max = options.jobs.iter().map(|job| job.iodepth).sum();
        let settings = settings(&options.queue);
        let mut config = ShardConfig::single(options.queue, volume, bios_max);
        let volumes = options.jobs.iter().map(|job| job.volume + 1).max().unwrap_or(1);
        let first = config.volumes[0];
        config.volumes = vec![first; volumes.into()];
        config.exports = options.exports;
        config.tenants = options.tenants;
        config.cache = options.cache;
        let thinks = options.jobs.iter().all(|job| job.think_ns > 0);
        assert!(thinks || !options.cache.is_on(), "jobs with a cache must think");
        let jobs = Job::all(options.seed, options.jobs);
        let mut events = EventQueue::with_capacity(jobs.len() + 64);
        for (job, options) in (0u32..).zip(jobs.iter().map(|job| &job.options)) {
            events.push(options.first_at(job), HarnessEvent::Wake { job });
        }
        Ok(Self {
            shard: Shard::new(config)?,
            device: options.device,
            dispatcher: None,
            counts: RunCounts::new(jobs.len()),
            jobs,
            events,
            timer: None,
            now: Instant(0),
            ramp_ends: Instant(options.ramp_ns),
            ends: Instant(options.ramp_ns + options.runtime_ns),
            inputs: Vec::with_capacity(256),
            done: Vec::with_capacity(256),
            in_device: 0,
            accepted: 0,
            accepts: u32::MAX,
            hash: RunHash::default(),
            plugging: Plugging::Batch,
            settings,
            volume_bytes: options.size,
        })
    }

    /// Sets the delay between elevator and device, before the run.
    pub fn set_dispatcher(&mut self, dispatcher: Box<dyn Dispatcher>) {
        self.dispatcher = Some(dispatcher);
    }

    /// Lets the device accept so many commands at once, fewer than it announces, and answer BUSY to more; before the run.
    pub fn set_accepts(&mut self, commands: u32) {
        self.accepts = commands;
    }

    /// Sets how the bios of a batch are plugged, before the run.
    pub fn set_plugging(&mut self, plugging: Plugging) {
        self.plugging = plugging;
    }

    /// Counts Jain's index over windows in which each job could be answered `rounds` times; call it
    /// before the run.
    pub fn count_windows(&mut self, rounds: u32) {
        self.counts.windows = AnswerWindows::new(self.jobs.len(), rounds);
    }

    /// The shard, for changes before the run.
    pub fn shard(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// Runs to the end and returns the counters.
    #[must_use]
    pub fn run(mut self) -> RunCounts {
        let mut ramp = true;
        loop {
            let times = [self.events.next_at(), self.device.next_timeout(), self.timer];
            let Some(next) = times.into_iter().flatten().min() else {
                break;
            };
            if ramp && next >= self.ramp_ends {
                ramp = false;
                self.counts.restart(self.snapshot());
            }
            if next >= self.ends {
                break;
            }
            self.now = self.now.max(next);
            self.step();
        }
        let snapshot = self.snapshot();
        self.counts.end(snapshot, self.hash.0);
        for (job, counts) in self.jobs.iter().zip(&mut self.counts.jobs) {
            counts.waiting_ns = job.waiting_ns(self.ends);
            counts.unfinished_ns = job.unfinished_ns(self.ends);
            self.counts.starved += u32::from(job.is_starved(self.ends, STARVED_NS));
        }
        let mut counts = self.counts.clone();
        counts.stuck = self.is_stuck();
        counts.settings = self.settings;
        counts
    }

    /// The watchdog: bios are outstanding, none of them is in the device, and no pending event (for
    /// example a timer of commands that have ended) gives the device one within [`STUCK_NS`].
    fn is_stuck(&mut self) -> bool {
        let limit = self.now.after(STUCK_NS);
        while self.in_device == 0 && self.jobs.iter().any(|job| job.out() > 0) {
            let times = [self.events.next_at(), self.device.next_timeout(), self.timer];
            let next = times.into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= limit) else {
                return true;
            };
            self.now = self.now.max(next);
            self.step();
        }
        false
    }

    fn snapshot(&self) -> counts::Snapshot {
        let (queue, tags) =
            self.shard.queue_stats(DEVICE).expect("the device belongs to the shard");
        let volume = self.shard.stats(VOLUME).expect("the volume exists");
        counts::Snapshot {
            queue,
            tags,
            merges: volume.ops.iter().map(|op| op.merges).sum(),
            requests: volume.ops.iter().map(|op| op.requests).sum(),
            device: self.device.counters(),
            cache: self.shard.cache_stats().unwrap_or_default(),
        }
    }

    fn step(&mut self) {
        if self.device.next_timeout().is_some_and(|at| at <= self.now) {
            self.device.on_timeout(self.now, &mut self.done);
            for token in self.done.drain(..) {
                let id = RequestId { slot: (token >> 32) as u32, generation: token as u32 };
                let transferred = self.counts.lens.take(id.slot);
                let completion = Completion { id, transferred, status: Ok(()), hole: false };
                self.inputs.push(Input::Complete { device: DEVICE, completion });
                self.in_device -= 1;
                self.accepted -= 1;
            }
        }
        if self.timer.is_some_and(|at| at <= self.now) {
            self.timer = None;
            self.inputs.push(Input::Timer);
        }
        if !self.inputs.is_empty() {
            self.turn();
        }
        while let Some((_, happening)) = self.events.pop_due(self.now) {
            match happening {
                HarnessEvent::Wake { job } => self.submit(job),
                HarnessEvent::Issue { id, order } => self.issue(id, order),
                HarnessEvent::Refuse { id } => self.refuse(id),
            }
        }
    }

    fn submit(&mut self, job: u32) {
        let inputs = &mut self.inputs;
        let next = self.jobs[job as usize].submit(self.now, |bio| inputs.push(Input::Bio(bio)));
        if let Some(at) = next {
            self.events.push(at, HarnessEvent::Wake { job });
        }
        match self.plugging {
            Plugging::Batch => self.turn(),
            Plugging::Bio => {
                for input in std::mem::take(&mut self.inputs) {
                    self.inputs.push(input);
                    self.turn();
                }
            }
        }
    }

    /// Answers BUSY to a command.
    fn refuse(&mut self, id: RequestId) {
        self.counts.lens.take(id.slot);
        self.counts.refused += 1;
        self.in_device -= 1;
        let status = Err(IoError::Busy);
        let completion = Completion { id, transferred: 0, status, hole: false };
        self.inputs.push(Input::Complete { device: DEVICE, completion });
        self.turn();
    }

    /// Runs a turn of the shard and executes its actions.
    fn turn(&mut self) {
        let now = self.now;
        self.hash.add(now.0);
        self.inputs.iter().for_each(|input| self.hash.add_input(input));
        self.shard.handle(now, &self.inputs);
        self.inputs.clear();
        self.hash.add_actions(self.shard.actions());
        for index in 0..self.shard.actions().list.len() {
            match self.shard.actions().list[index] {
                Action::Submit(submit) => {
                    let id = submit.id;
                    let token = u64::from(id.slot) << 32 | u64::from(id.generation);
                    let (op, len) = (submit.op, submit.len);
                    let offset = u64::from(submit.volume.0) * self.volume_bytes + submit.offset;
                    self.dispatch(id, ModelCommand { token, op, offset, len });
                }
                Action::Reply { id, status, stage, .. } => {
                    self.counts.errors += u64::from(status.is_err());
                    assert!(stage == ReplyStage::Final, "no command times out");
                    self.answer(id.connection, id.sequence);
                }
                Action::Timer { at } => self.timer = Some(at),
                Action::Data { .. }
                | Action::Copy { .. }
                | Action::Zero { .. }
                | Action::Move { .. }
                | Action::ReplyFrames { .. }
                | Action::NeedsBuffer { .. }
                | Action::SetDirty { .. }
                | Action::Prepare { .. }
                | Action::Release { .. } => {}
                Action::Notice(_) => self.counts.notices += 1,
                Action::Send { .. } => unreachable!("the harness has one shard"),
            }
        }
        self.shard.clear_actions();
    }

    fn dispatch(&mut self, id: RequestId, order: ModelCommand) {
        self.in_device += 1;
        self.counts.in_device_max = self.counts.in_device_max.max(self.in_device);
        self.counts.lens.put(id.slot, order.len);
        let delay = self.dispatcher.as_mut().map_or(0, |dispatcher| dispatcher.dispatched(id));
        match delay {
            0 => self.issue(id, order),
            delay => self.events.push(self.now.after(delay), HarnessEvent::Issue { id, order }),
        }
    }

    fn issue(&mut self, id: RequestId, order: ModelCommand) {
        if self.accepted == self.accepts {
            return self.events.push(self.now, HarnessEvent::Refuse { id });
        }
        self.accepted += 1;
        self.device.submit(self.now, order);
        if let Some(dispatcher) = &mut self.dispatcher {
            dispatcher.issued(id);
        }
    }

    fn answer(&mut self, number: u32, sequence: u64) {
        let job = &mut self.jobs[number as usize];
        let outcome = job.answer(self.now, sequence);
        self.counts.answer(number, outcome.bytes, outcome.took_ns);
        self.counts.jobs[number as usize].starts_ns.extend(outcome.started_in_ns);
        if let Some(after) = outcome.wakes_after_ns {
            self.events.push(self.now.after(after), HarnessEvent::Wake { job: number });
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::Op;
    use headworks_disks::TwoPoint;

    use super::*;

    fn run(seed: u64, jobs: Vec<JobOptions>) -> RunCounts {
        let device = Box::new(TwoPoint::new(10_000, 1_000_000_000));
        BlockHarness::new(BlockHarnessOptions {
            seed,
            queue: QueueOptions::default(),
            size: 1 << 30,
            device,
            jobs,
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            ramp_ns: SEC / 10,
            runtime_ns: SEC,
        })
        .unwrap()
        .run()
    }

    #[test]
    fn job_of_depth_1_thinks_between_its_bios() {
        let job = JobOptions { think_ns: 30_000, ..JobOptions::default() };
        let counts = run(1, vec![job; 2]);
        // 30 us of thinking and 14 in the device, of which the other job may take 14 before.
        let rate = counts.bios;
        assert!((34_000..=2 * 22_800).contains(&rate), "{rate}");
        assert_eq!((counts.errors, counts.stuck, counts.notices), (0, false, 0));
        assert_eq!(counts.jobs.iter().map(|job| job.bios).sum::<u64>(), counts.bios);
        assert_eq!(counts.bytes, counts.bios * 4096);
    }

    #[test]
    fn equal_seeds_give_equal_runs() {
        let job = JobOptions { iodepth: 8, op: Op::Write, ..JobOptions::default() };
        let hash = |seed| run(seed, vec![job; 4]).hash;
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }

    #[test]
    fn batches_are_turns() {
        let job = JobOptions {
            random: false,
            iodepth: 64,
            batch_submit: 16,
            batch_complete: 16,
            ..JobOptions::default()
        };
        let counts = run(1, vec![job]);
        // 16 neighbours in a turn become one request, and more where turns wait together for the device.
        assert!(counts.bios >= 16 * counts.requests);
        assert!(counts.in_device_max <= 4);
    }

    /// Serves commands below an offset, and never completes the others.
    #[derive(Debug)]
    struct HalfDead {
        works: TwoPoint,
        below: u64,
    }

    impl DeviceModel for HalfDead {
        fn submit(&mut self, now: Instant, order: ModelCommand) {
            if order.offset < self.below {
                self.works.submit(now, order);
            }
        }

        fn next_timeout(&self) -> Option<Instant> {
            self.works.next_timeout()
        }

        fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
            self.works.on_timeout(now, done);
        }
    }

    fn starved(think_ns: u64, below: u64, runtime_ns: u64) -> (u32, bool, u64) {
        let part = |start: u64| JobOptions {
            start: start << 20,
            end: (start + 1) << 20,
            think_ns,
            ..JobOptions::default()
        };
        let harness = BlockHarness::new(BlockHarnessOptions {
            seed: 1,
            queue: QueueOptions { io_timeout_ns: 3_600 * SEC, ..QueueOptions::default() },
            size: 1 << 30,
            device: Box::new(HalfDead { works: TwoPoint::new(10_000, 1_000_000_000), below }),
            jobs: vec![part(0), part(1), part(2)],
            exports: Vec::new(),
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            ramp_ns: runtime_ns / 10,
            runtime_ns,
        });
        let counts = harness.unwrap().run();
        (counts.starved, counts.stuck, counts.longest_ns())
    }

    #[test]
    fn watchdog_counts_jobs_that_get_nothing_while_the_device_works() {
        // In a run shorter than the bound, and in a longer one.
        for runtime_ns in [SEC, 200 * SEC] {
            let (count, stuck, longest) = starved(10_000_000, 2 << 20, runtime_ns);
            assert_eq!((count, stuck), (1, false), "the third job");
            assert!(longest > runtime_ns, "its bio has waited since the ramp: {longest}");
        }
        assert_eq!(starved(10_000_000, 1 << 30, SEC).0, 0);
        // A job that thinks for longer than the bound wants nothing meanwhile.
        assert_eq!(starved(STARVED_NS + SEC, 1 << 30, 300 * SEC).0, 0);
    }

    #[test]
    fn windows_have_the_index_of_their_answers() {
        let job = |think_ns| JobOptions { think_ns, ..JobOptions::default() };
        let counts = |jobs: Vec<JobOptions>| {
            let mut harness = BlockHarness::new(BlockHarnessOptions {
                seed: 1,
                queue: QueueOptions::default(),
                size: 1 << 30,
                device: Box::new(TwoPoint::new(10_000, 1_000_000_000)),
                jobs,
                exports: Vec::new(),
                tenants: Vec::new(),
                cache: CacheOptions::default(),
                ramp_ns: SEC / 100,
                runtime_ns: SEC / 10,
            })
            .unwrap();
            harness.count_windows(10);
            harness.run()
        };
        let equal = counts(vec![job(0); 4]);
        assert_eq!(equal.windows.count, equal.bios / 40);
        assert!(equal.windows.least == 1.0 && equal.windows.mean() == 1.0);
        // The device serves two jobs; two others want a hundredth.
        let two = counts([vec![job(0); 2], vec![job(2_000_000); 2]].concat()).windows;
        assert!((0.5..0.6).contains(&two.least) && two.mean() >= two.least, "{two:?}");
    }
}
