//! `model:` takes the time of a modelled disk, whatever the device below is made of.
//!
//! A command goes to the device below and to the model at once, and is answered when both have ended: contents and errors are those of
//! the device below, whose own time hides under the model's. Events of the model take effect at their own times, however late this
//! device is called, so an answer that is late slows nothing that follows.
//!
//! ```text
//!   submit --> model (PacedDisk) --its time has come-.
//!        `---> device below -----answered------------+--> completion
//! ```
//!
//! Invariants: no completion before the model's time of it; each command has one. Block status is no command of a disk and takes no time.
//! Bounded: at most [`IN_FLIGHT_MAX`] commands, one more is `Busy`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_core::stats::{BUCKETS, Histogram, bucket_of};
use headworks_core::{Completion, Instant, IoError, Op, QueueOptions, RequestId};
use headworks_disks::{Disk, ModelCommand, PacedDisk};

use headworks::driver::DiskDone;
use headworks::{Command, CommandBatch, Device, DeviceIo};

/// The largest `queue_depth` there is.
const IN_FLIGHT_MAX: usize = 4096;
/// Commands between two looks at whether the machine is too slow.
const LOOK_EVERY: u64 = 1024;

/// How long the commands of a modelled disk took.
#[derive(Clone, Debug, Default)]
pub struct ModelTimes {
    /// From the submission of a command to the model's time of its completion.
    pub modelled: Histogram,
    /// From the model's time to the answer: the machine, or the device below.
    pub late: Histogram,
    /// Nanoseconds of all commands by the model.
    pub modelled_ns: u64,
    /// Nanoseconds by which all answers were late.
    pub late_ns: u64,
}

impl ModelTimes {
    /// Whether answers are late by more than a twentieth of what their commands take by the model, all of them together. A median or a
    /// percentile would not do: most commands of a drive are writes that its cache takes in microseconds.
    #[must_use]
    pub fn are_wrong(&self) -> bool {
        self.late_ns > self.modelled_ns / 20
    }
}

/// Counts of durations that one thread writes and others read.
struct SharedHistogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for SharedHistogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl SharedHistogram {
    fn record(&self, ns: u64) {
        // Relaxed, and no read-modify-write: the device's thread alone writes, and readers take each count by itself.
        let add = |sum: &AtomicU64, more: u64| {
            sum.store(sum.load(Ordering::Relaxed).saturating_add(more), Ordering::Relaxed);
        };
        add(&self.counts[bucket_of(ns)], 1);
        add(&self.sum_ns, ns);
    }

    fn read(&self) -> (Histogram, u64) {
        let mut read = Histogram::default();
        for (bucket, count) in self.counts.iter().enumerate() {
            // Relaxed: see `record`.
            read.add(bucket, count.load(Ordering::Relaxed));
        }
        (read, self.sum_ns.load(Ordering::Relaxed))
    }
}

/// What threads other than the device's know of a modelled disk.
#[derive(Default)]
pub struct ModelStatus {
    modelled: SharedHistogram,
    late: SharedHistogram,
}

impl ModelStatus {
    /// How long the commands took so far.
    #[must_use]
    pub fn times(&self) -> ModelTimes {
        let (modelled, modelled_ns) = self.modelled.read();
        let (late, late_ns) = self.late.read();
        ModelTimes { modelled, late, modelled_ns, late_ns }
    }
}

impl std::fmt::Debug for ModelStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.times().fmt(f)
    }
}

/// What a modelled disk tells.
#[derive(Clone, Copy, Debug)]
pub enum ModelEvent<'a> {
    /// The machine is too slow for the disk. Told once.
    TooSlow(&'a ModelTimes),
    /// The disk ends, after it was used.
    Ended(&'a ModelTimes),
}

/// Is told what happens to a modelled disk.
pub type ModelEvents = Box<dyn FnMut(ModelEvent<'_>) + Send>;

/// A device that takes the time of a modelled disk.
pub struct ModelDevice {
    below: Box<dyn Device>,
    disk: PacedDisk,
    rotates: bool,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_id: HashMap<RequestId, u32>,
    /// Answers of the device below.
    answers: Vec<Completion>,
    /// Commands whose time has come: slot and the model's time.
    ended: Vec<(u32, Instant)>,
    status: Arc<ModelStatus>,
    answered: u64,
    events: ModelEvents,
    told: bool,
}

/// A command in flight.
#[derive(Clone, Copy)]
struct Slot {
    submitted: Instant,
    /// The model's time, once it has come.
    ends: Option<Instant>,
    answer: Option<Completion>,
}

impl ModelDevice {
    /// Gives `below` the time of `disk`; `seed` is of what varies by chance.
    #[must_use]
    pub fn new(disk: &Disk, seed: u64, below: Box<dyn Device>, events: ModelEvents) -> Self {
        Self {
            below,
            disk: PacedDisk::new(disk.model(seed)),
            rotates: disk.rotates(),
            slots: Vec::with_capacity(IN_FLIGHT_MAX),
            free: Vec::with_capacity(IN_FLIGHT_MAX),
            by_id: HashMap::with_capacity(2 * IN_FLIGHT_MAX),
            answers: Vec::with_capacity(256),
            ended: Vec::with_capacity(256),
            status: Arc::default(),
            answered: 0,
            events,
            told: false,
        }
    }

    /// The same device, which counts its times there; no other does.
    #[must_use]
    pub fn with_status(mut self, status: Arc<ModelStatus>) -> Self {
        self.status = status;
        self
    }

    /// Options of the queue of such a disk: its depth and whether it turns; without FUA and, on a drive, without discards, as disks of
    /// SATA are used by Linux.
    #[must_use]
    pub fn queue_options(disk: &Disk, below: QueueOptions) -> QueueOptions {
        let rotational = disk.rotates();
        let depth = disk.depth();
        QueueOptions {
            queue_depth: depth,
            rotational,
            write_cache: true,
            fua: below.fua && depth > 32,
            discard: below.discard && !rotational,
            ..below
        }
    }

    /// How long the commands took so far.
    #[must_use]
    pub fn times(&self) -> ModelTimes {
        self.status.times()
    }

    /// Submits a command to the model; false when too many are in flight.
    fn enter(&mut self, now: Instant, command: &Command) -> bool {
        let slot = Slot { submitted: now, ends: None, answer: None };
        let token = match self.free.pop() {
            Some(token) => {
                self.slots[token as usize] = slot;
                token
            }
            None if self.slots.len() < IN_FLIGHT_MAX => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
            None => return false,
        };
        self.by_id.insert(command.id, token);
        let op = match command.op {
            // A drive writes the zeros; flash notes them.
            Op::WriteZeroes if self.rotates => Op::Write,
            op => op,
        };
        let Command { offset, len, .. } = *command;
        self.disk.submit(now, ModelCommand { token: token.into(), op, offset, len });
        true
    }

    /// Processes the model's events up to `now`.
    fn advance(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        let ended = &mut self.ended;
        self.disk.advance(now, |token, at| ended.push((token as u32, at)));
        let mut ended = std::mem::take(&mut self.ended);
        for (token, at) in ended.drain(..) {
            let slot = &mut self.slots[token as usize];
            slot.ends = Some(at);
            self.status.modelled.record(at.since(slot.submitted));
            self.complete(now, token, io);
        }
        self.ended = ended;
    }

    /// Takes what the device below has answered.
    fn take_answers(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        let mut answers = std::mem::take(&mut self.answers);
        for answer in answers.drain(..) {
            match self.by_id.remove(&answer.id) {
                Some(token) => {
                    self.slots[token as usize].answer = Some(answer);
                    self.complete(now, token, io);
                }
                // Block status did not enter the model.
                None => io.completions.push(answer),
            }
        }
        self.answers = answers;
    }

    /// Answers a command if both have ended.
    fn complete(&mut self, now: Instant, token: u32, io: &mut DeviceIo<'_>) {
        let Slot { ends: Some(at), answer: Some(answer), .. } = self.slots[token as usize] else {
            return;
        };
        assert!(at <= now, "an answer is early");
        self.free.push(token);
        io.completions.push(answer);
        self.status.late.record(now.since(at));
        self.answered += 1;
        if !self.told && self.answered.is_multiple_of(LOOK_EVERY) {
            let times = self.times();
            if times.are_wrong() {
                self.told = true;
                (self.events)(ModelEvent::TooSlow(&times));
            }
        }
    }
}

impl Device for ModelDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        self.advance(now, io);
        // Commands that are refused cut the batch into runs.
        let mut run = 0;
        for (index, command) in batch.commands.iter().enumerate() {
            if command.op == Op::BlockStatus || self.enter(now, command) {
                continue;
            }
            if let Some(part) = batch.part(run..index) {
                // SAFETY: the caller's promise, passed on.
                unsafe { self.below.submit(now, part, &mut below(io, &mut self.answers)) };
            }
            run = index + 1;
            io.completions.push(command.failed(IoError::Busy));
        }
        if let Some(rest) = batch.part(run..batch.commands.len()) {
            // SAFETY: as above.
            unsafe { self.below.submit(now, rest, &mut below(io, &mut self.answers)) };
        }
        self.take_answers(now, io);
    }

    fn on_disk(&mut self, now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        self.below.on_disk(now, done, &mut below(io, &mut self.answers));
        self.take_answers(now, io);
    }

    fn on_ready(&mut self, now: Instant, place: u16, io: &mut DeviceIo<'_>) {
        self.below.on_ready(now, place, &mut below(io, &mut self.answers));
        self.take_answers(now, io);
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        self.advance(now, io);
        if self.below.next_timeout().is_some_and(|at| at <= now) {
            self.below.on_timeout(now, &mut below(io, &mut self.answers));
            self.take_answers(now, io);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.disk.next_timeout().into_iter().chain(self.below.next_timeout()).min()
    }

    fn below(&mut self) -> Option<&mut dyn Device> {
        Some(&mut *self.below)
    }
}

impl Drop for ModelDevice {
    fn drop(&mut self) {
        if self.answered > 0 {
            let times = self.times();
            (self.events)(ModelEvent::Ended(&times));
        }
    }
}

/// What the device below works with: its answers come here first.
fn below<'a>(io: &'a mut DeviceIo<'_>, answers: &'a mut Vec<Completion>) -> DeviceIo<'a> {
    DeviceIo { device: io.device, completions: answers, disk: io.disk, lost: io.lost }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        DelayDevice, DelayOptions, ErrorFilter, ErrorOptions, PowercutDevice, PowercutOptions,
    };
    use headworks::{FilterDevice, MemDevice, NullDevice};
    use headworks_core::BioFlags;
    use headworks_core::prng::Prng;
    use headworks_disks::NAMED;
    use headworks_testing::{Bench, against_model};

    const NONE: BioFlags = BioFlags::NONE;

    fn named(name: &str, below: Box<dyn Device>) -> ModelDevice {
        ModelDevice::new(&Disk::named(name).unwrap(), 1, below, Box::new(|_| {}))
    }

    /// The commands of the tests: reads, writes and flushes at random places of the first GiB.
    fn command(prng: &mut Prng) -> (Op, u64, u32) {
        match prng.below(16) {
            0 => (Op::Flush, 0, 0),
            1..8 => (Op::Write, prng.below(1 << 18) * 4096, 4096),
            _ => (Op::Read, prng.below(1 << 18) * 4096, 4096 << prng.below(4)),
        }
    }

    /// Times of `count` commands of a model alone, at a depth of 16: a completion submits the next one.
    fn alone(disk: &Disk, count: usize) -> Vec<Instant> {
        let (mut model, mut prng) = (disk.model(1), Prng::new(3));
        let mut times = vec![Instant(0); count];
        let (mut now, mut submitted, mut done) = (Instant(0), 0, Vec::new());
        loop {
            while submitted < count && submitted < 16 + times.iter().filter(|at| at.0 > 0).count() {
                let (op, offset, len) = command(&mut prng);
                model.submit(now, ModelCommand { token: submitted as u64, op, offset, len });
                submitted += 1;
            }
            let Some(at) = model.next_timeout() else { return times };
            now = at;
            model.on_timeout(now, &mut done);
            done.drain(..).for_each(|token| times[token as usize] = now);
        }
    }

    #[test]
    fn device_takes_exactly_the_time_of_its_model() {
        for disk in NAMED.iter().map(|named| named.disk) {
            let count = 400;
            let expected = alone(&disk, count);
            let device = ModelDevice::new(&disk, 1, Box::new(NullDevice), Box::new(|_| {}));
            let (mut bench, mut prng) = (Bench::new(device), Prng::new(3));
            // The model counts from the first command on.
            bench.now = Instant(0);
            let (mut found, mut ids, mut ended) = (vec![Instant(0); count], Vec::new(), 0);
            loop {
                while ids.len() < count && ids.len() < 16 + ended {
                    let (op, offset, len) = command(&mut prng);
                    ids.push(bench.submit(op, NONE, offset, len));
                }
                let is_over = !bench.step();
                for done in std::mem::take(&mut bench.completions) {
                    let index = ids.iter().position(|id| *id == done.id).unwrap();
                    found[index] = bench.now;
                    ended += 1;
                }
                if is_over {
                    break;
                }
            }
            assert!(found == expected, "{}: times differ", disk.kind());
        }
    }

    #[test]
    fn a_million_commands_are_answered_in_time_or_late_and_never_early() {
        for name in ["hdd-7200", "sata", "nvme", "cloud-gp3"] {
            let disk = Disk::named(name).unwrap();
            let device = ModelDevice::new(&disk, 1, Box::new(NullDevice), Box::new(|_| {}));
            let (mut bench, mut prng) = (Bench::new(device), Prng::new(8));
            bench.now = Instant(0);
            // The model alone, which is given the same commands at the same times and is called on time.
            let mut model = PacedDisk::new(disk.model(1));
            let mut ends: HashMap<u64, Instant> = HashMap::new();
            let mut tokens: HashMap<RequestId, u64> = HashMap::new();
            let (mut in_flight, mut answered) = (0, 0u64);
            while answered < 250_000 {
                while in_flight < 32 {
                    let (op, offset, len) = command(&mut prng);
                    model.advance(bench.now, |token, at| _ = ends.insert(token, at));
                    let token = answered + tokens.len() as u64;
                    model.submit(bench.now, ModelCommand { token, op, offset, len });
                    tokens.insert(bench.submit(op, NONE, offset, len), token);
                    in_flight += 1;
                }
                // The machine calls whenever it pleases: often before anything is due, sometimes long after.
                let next = bench.device().next_timeout().expect("commands are in flight");
                bench.now = match prng.below(4) {
                    0 => bench.now.after(next.since(bench.now) / 2),
                    1 => bench.now.max(next),
                    _ => bench.now.max(next).after(prng.below(200_000)),
                };
                let now = bench.now;
                bench.call(|device, io| device.on_timeout(now, io));
                model.advance(now, |token, at| _ = ends.insert(token, at));
                for done in std::mem::take(&mut bench.completions) {
                    let token = tokens.remove(&done.id).expect("one answer each");
                    let at = ends.remove(&token).expect("the model alone has ended it");
                    assert!(at <= now, "{name}: {} ns early", at.since(now));
                    (in_flight, answered) = (in_flight - 1, answered + 1);
                }
            }
            assert!(tokens.len() == in_flight, "{name}: commands without an answer");
        }
    }

    #[test]
    fn slow_device_below_delays_and_its_errors_pass() {
        let mut options = DelayOptions { seed: 1, ..DelayOptions::default() };
        options.wait_ns = [500_000_000; Op::COUNT];
        let slow = DelayDevice::new(options, Box::new(NullDevice));
        let mut bench = Bench::new(named("nvme", Box::new(slow)));
        let start = bench.now;
        assert_eq!(bench.run(Op::Read, NONE, 0, 4096).status, Ok(()));
        assert_eq!(bench.now.since(start), 500_000_000, "the later of both");
        let failing = ErrorFilter::new(ErrorOptions::default());
        let failing = FilterDevice::new(failing, Box::new(NullDevice));
        let mut bench = Bench::new(named("hdd-7200", Box::new(failing)));
        let start = bench.now;
        assert_eq!(bench.run(Op::Read, NONE, 1 << 30, 4096).status, Err(IoError::Medium));
        assert!(bench.now.since(start) > 1_000_000, "an error takes the disk's time, too");
    }

    #[test]
    fn random_commands_match_vector_model() {
        for name in ["hdd-7200", "nvme"] {
            let mem = MemDevice::new(1 << 20).unwrap();
            let mut bench = Bench::new(named(name, Box::new(mem)));
            against_model(&mut bench, 3, 1 << 20, 512, 300);
        }
    }

    #[test]
    fn contents_pass_every_order_of_wrappers() {
        let powercut = |below: Box<dyn Device>| -> Box<dyn Device> {
            let options = PowercutOptions { cache: 64 << 10, ..PowercutOptions::default() };
            Box::new(PowercutDevice::new(options, 512, below, Box::new(|_| {})))
        };
        let delay = |below: Box<dyn Device>| -> Box<dyn Device> {
            let options = DelayOptions { wait_ns: [5_000; Op::COUNT], jitter_ns: 9_000, seed: 1 };
            Box::new(DelayDevice::new(options, below))
        };
        let model = |below| -> Box<dyn Device> { Box::new(named("sata", below)) };
        let memory = || -> Box<dyn Device> { Box::new(MemDevice::new(1 << 20).unwrap()) };
        for outermost in [model(delay(memory())), delay(model(memory())), model(model(memory()))] {
            against_model(&mut Bench::boxed(outermost), 5, 1 << 20, 512, 200);
        }
        // A disk with a cache knows writes and flushes alone.
        for outermost in [model(powercut(delay(memory()))), powercut(model(delay(memory())))] {
            let (mut bench, mut prng) = (Bench::boxed(outermost), Prng::new(6));
            let mut bytes = vec![0; 256];
            for round in 1..=200u8 {
                let block = prng.below(256);
                bench.buffer()[..4096].fill(round);
                assert_eq!(bench.run(Op::Write, NONE, block * 4096, 4096).status, Ok(()));
                bytes[block as usize] = round;
                if prng.below(8) == 0 {
                    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
                }
                let block = prng.below(256);
                assert_eq!(bench.run(Op::Read, NONE, block * 4096, 4096).status, Ok(()));
                let expected = bytes[block as usize];
                assert!(bench.buffer()[..4096].iter().all(|&byte| byte == expected), "{round}");
            }
        }
    }

    #[test]
    fn block_status_takes_no_time() {
        let mut bench = Bench::new(named("hdd-7200", Box::new(NullDevice)));
        let start = bench.now;
        assert_eq!(bench.run(Op::BlockStatus, NONE, 0, 1 << 20).status, Ok(()));
        assert_eq!(bench.now, start);
    }

    #[test]
    fn commands_in_flight_are_bounded_and_slots_are_reused() {
        let mut bench = Bench::new(named("cloud-gp3", Box::new(NullDevice)));
        for _ in 0..3 {
            for _ in 0..IN_FLIGHT_MAX + 3 {
                bench.submit(Op::Read, BioFlags::HOLE_OK, 0, 4096);
            }
            let done = bench.drain();
            assert_eq!(done.len(), IN_FLIGHT_MAX + 3);
            let busy = |done: &&Completion| done.status == Err(IoError::Busy);
            assert_eq!(done.iter().filter(busy).count(), 3);
            assert!(bench.device().by_id.is_empty());
        }
        assert_eq!(bench.device().slots.capacity(), IN_FLIGHT_MAX);
    }

    #[test]
    fn figures_are_wrong_by_the_time_of_all_commands() {
        // A drive: 1000 writes in its cache, each late by thrice its time, and flushes that take ten thousand times as long.
        let status = ModelStatus::default();
        let count = |times: u32, took, late| {
            (0..times).for_each(|_| {
                status.modelled.record(took);
                status.late.record(late);
            });
            status.times()
        };
        assert!(count(1000, 7_000, 21_000).are_wrong(), "all that there is takes thrice as long");
        let times = count(50, 70_000_000, 60_000);
        assert_eq!((times.late.count(), times.late_ns), (1050, 1000 * 21_000 + 50 * 60_000));
        assert!(times.late.percentile(990) > times.modelled.percentile(500));
        assert!(!times.are_wrong(), "and is a thousandth of it here");
        assert!(count(50, 70_000_000, 8_000_000).are_wrong());
    }

    #[test]
    fn slow_machine_is_told_once_and_the_end_too() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&told);
        let disk = Disk::named("nvme").unwrap();
        let tell = move |event: ModelEvent<'_>| {
            events.lock().unwrap().push(match event {
                ModelEvent::TooSlow(times) => (times.are_wrong(), times.late.count()),
                ModelEvent::Ended(times) => (false, times.late.count()),
            });
        };
        let device = ModelDevice::new(&disk, 1, Box::new(NullDevice), Box::new(tell));
        let mut bench = Bench::new(device);
        for index in 0..3 * LOOK_EVERY {
            bench.submit(Op::Read, NONE, index << 20, 4096);
            bench.now = bench.now.after(1_000_000);
            let now = bench.now;
            bench.call(|device, io| device.on_timeout(now, io));
        }
        drop(bench);
        assert_eq!(*told.lock().unwrap(), [(true, LOOK_EVERY), (false, 3 * LOOK_EVERY)]);
    }
}
