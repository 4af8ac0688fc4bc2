//! `powercut:` is a disk with a volatile write cache in front of a device, whose power can be cut: to test what programs do after it.
//!
//! A write is acknowledged from the cache, as a disk does it; a flush moves all of the cache to the device below, FUA the one
//! write. At a cut each write that is still in the cache is lost, kept or torn ([`held`]), the rest is moved below, and the process ends
//! as if killed: what it had in memory is gone, too, and no client gets another answer.
//!
//! ```text
//!   write --> held ---------------------------------------> acknowledged
//!   flush --> job: every held write below, flush below ---> acknowledged     (a disk that lies: at once, and nothing below)
//!   FUA ----> job: this write below, flush below ---------> acknowledged
//!   full ---> job: the older half of the held writes below
//!   cut ----> job: the survivors below, flush below ------> the end of the process
//! ```
//!
//! A job begins when no read is in flight, and what comes meanwhile waits: a read never misses a write that moves. Bounded: the cache's
//! size, and [`WAITING_MAX`] commands that wait; one more is `Busy`. Speed does not matter here; no clock is read, and the same
//! commands with the same seed have the same end.

mod held;
mod log;

use std::collections::VecDeque;

use headworks_core::prng::Prng;
use headworks_core::{
    BioFlags, Completion, ExtentState, Instant, IoError, Op, QueueOptions, RequestId, VolumeId,
};

use self::held::{Data, HeldWrite, HeldWrites};
use headworks::{Command, CommandBatch, Device, DeviceIo};

use crate::probability::Probability;
use headworks::driver::{DiskDone, Span};

pub use held::Fates;
pub use log::{DiskChange, DiskLog, DiskLogReader};

/// Commands that wait for a job; the largest `queue_depth` there is.
const WAITING_MAX: usize = 4096;
/// Slots of the queue's requests are below this one.
const OWN_SLOT: u32 = u32::MAX;
/// Wait before a command of a job is given again to a device that was busy.
const BUSY_NS: u64 = 1_000_000;

/// When the power is cut, and what the disk does until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowercutOptions {
    /// Seed of what survives.
    pub seed: u64,
    /// Cut in place of the answer to this one of the writes and flushes, from 1.
    pub at: Option<u64>,
    /// Cut in place of the answer to this flush, from 1.
    pub at_flush: Option<u64>,
    /// Probability of a cut at each write and flush.
    pub rate: Probability,
    /// Whether flushes and FUA are acknowledged without effect.
    pub lies: bool,
    /// Bytes of the cache: beyond it the older half is moved to the device below.
    pub cache: u64,
}

impl Default for PowercutOptions {
    /// No cut, 16 MiB of cache.
    fn default() -> Self {
        Self {
            seed: 1,
            at: None,
            at_flush: None,
            rate: Probability::NEVER,
            lies: false,
            cache: 16 << 20,
        }
    }
}

/// What a disk did until its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowercutReport {
    /// Writes and flushes that arrived.
    pub commands: u64,
    /// Number of writes among them.
    pub writes: u64,
    /// Flushes among them, and writes with FUA.
    pub flushes: u64,
    /// What became of the writes in the cache, if the power was cut.
    pub cut: Option<Fates>,
}

/// Is told each write and flush before it is answered, in the order in which the disk takes them.
pub type PowercutLog = Box<dyn FnMut(DiskChange<'_>) + Send>;

/// Is told how the disk ended: at the cut, or when a device that was used is dropped.
pub type PowercutEnd = Box<dyn FnMut(&PowercutReport) + Send>;

/// A disk with a volatile cache.
pub struct PowercutDevice {
    options: PowercutOptions,
    below: Box<dyn Device>,
    /// What is never torn: the smallest block of the device below.
    block: usize,
    end: PowercutEnd,
    log: Option<PowercutLog>,
    prng: Prng,
    held: HeldWrites,
    reads: Vec<Waiting>,
    waiting: VecDeque<Waiting>,
    job: Option<Job>,
    /// Answers of the device below.
    answers: Vec<Completion>,
    /// When a busy device below is asked again.
    retry_at: Option<Instant>,
    generation: u32,
    report: PowercutReport,
    /// The power is cut once the job is done.
    cut_asked: bool,
    off: bool,
}

/// A command with its memory.
struct Waiting {
    command: Command,
    spans: Vec<Span>,
}

/// Writes that are moved to the device below, one after the other.
struct Job {
    source: Source,
    /// The write that is next, and how many of its bytes are below.
    next: usize,
    moved: usize,
    /// Volume that is flushed after them.
    flush: Option<VolumeId>,
    in_flight: Option<RequestId>,
    then: Then,
}

enum Source {
    /// This many of the oldest writes of the cache.
    Cache(usize),
    Own(Vec<HeldWrite>),
}

enum Then {
    Answer(Command),
    Forget,
    CutPower(Fates),
}

impl PowercutDevice {
    /// A disk in front of `below`, whose smallest block is `block` bytes. A cut calls `end`, which is to end the process: the device answers
    /// nothing afterwards.
    #[must_use]
    pub fn new(
        options: PowercutOptions,
        block: u32,
        below: Box<dyn Device>,
        end: PowercutEnd,
    ) -> Self {
        Self {
            prng: Prng::new(options.seed),
            options,
            below,
            block: block.max(512) as usize,
            end,
            log: None,
            held: HeldWrites::default(),
            reads: Vec::new(),
            waiting: VecDeque::new(),
            job: None,
            answers: Vec::new(),
            retry_at: None,
            generation: 0,
            report: PowercutReport::default(),
            cut_asked: false,
            off: false,
        }
    }

    /// The same disk, which tells each write and flush.
    #[must_use]
    pub fn logged(mut self, log: PowercutLog) -> Self {
        self.log = Some(log);
        self
    }

    /// Options of the queue of such a disk: the cache knows writes and flushes alone.
    #[must_use]
    pub fn queue_options(below: QueueOptions) -> QueueOptions {
        QueueOptions { write_cache: true, fua: true, discard: false, write_zeroes: false, ..below }
    }

    /// Cuts the power, in place of the next answer: with the device's next call, which is due at once.
    pub fn cut_power(&mut self) {
        self.cut_asked = true;
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn start(
        &mut self,
        now: Instant,
        command: Command,
        spans: &[Span],
        io: &mut DeviceIo<'_>,
    ) {
        match command.op {
            Op::Read => {
                self.reads.push(Waiting { command, spans: spans.to_vec() });
                // SAFETY: the caller's promise, passed on.
                unsafe { self.submit_below(now, &command, spans, io) };
            }
            Op::BlockStatus => {
                // The file below does not know what is in the cache.
                let data = |writer: &mut headworks_core::extent::ExtentWriter<'_>| {
                    writer.push(u64::from(command.len), ExtentState::DATA);
                };
                // SAFETY: the caller's promise.
                io.completions.push(unsafe { command.tell_extents(spans, data) });
            }
            Op::Write => {
                // SAFETY: the caller's promise.
                let data = unsafe { Data::copied(spans, command.len as usize) };
                let write = HeldWrite { volume: command.volume, offset: command.offset, data };
                self.write(command, write, io);
            }
            Op::Flush => self.flush(command, io),
            Op::Discard | Op::WriteZeroes | Op::Prefetch => {
                io.completions.push(command.failed(IoError::Unsupported));
            }
        }
    }

    fn write(&mut self, command: Command, write: HeldWrite, io: &mut DeviceIo<'_>) {
        let fua = command.flags.contains(BioFlags::FUA);
        if let Some(log) = &mut self.log {
            log(DiskChange::Write { offset: write.offset, data: write.data.bytes(), fua });
        }
        self.report.writes += 1;
        if self.is_cut_at_next(fua) {
            self.held.push(write);
            self.cut();
        } else if fua && !self.options.lies {
            self.held.overwrite(&write);
            let then = Then::Answer(command);
            self.job = Some(Job::new(Source::Own(vec![write]), Some(command.volume), then));
        } else {
            self.held.push(write);
            io.completions.push(command.done());
            if self.held.bytes() as u64 > self.options.cache {
                let half = Source::Cache(self.held.len().div_ceil(2));
                self.job = Some(Job::new(half, None, Then::Forget));
            }
        }
    }

    fn flush(&mut self, command: Command, io: &mut DeviceIo<'_>) {
        if let Some(log) = &mut self.log {
            log(DiskChange::Flush);
        }
        if self.is_cut_at_next(true) {
            self.cut();
        } else if self.options.lies {
            io.completions.push(command.done());
        } else {
            let all = Source::Cache(self.held.len());
            self.job = Some(Job::new(all, Some(command.volume), Then::Answer(command)));
        }
    }

    /// Counts a write or flush. Returns true if the power is cut in place of its answer.
    fn is_cut_at_next(&mut self, flushes: bool) -> bool {
        let PowercutReport { commands, flushes: flushed, .. } = &mut self.report;
        *commands += 1;
        *flushed += u64::from(flushes);
        self.options.at == Some(*commands)
            || flushes && self.options.at_flush == Some(*flushed)
            || self.options.rate.draw(&mut self.prng)
    }

    fn cut(&mut self) {
        let mut prng = self.prng.split("what survives");
        let (survivors, fates) = self.held.survivors(&mut prng, self.block);
        let flush = survivors.first().map(|write| write.volume);
        self.job = Some(Job::new(Source::Own(survivors), flush, Then::CutPower(fates)));
    }

    /// Goes on with what can go on: the job, then what waited for it.
    fn pump(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        loop {
            self.take_answers(now, io);
            if self.off {
                return;
            }
            if self.job.is_some() {
                if !self.step(now, io) {
                    return;
                }
                continue;
            }
            if std::mem::take(&mut self.cut_asked) {
                self.cut();
                continue;
            }
            let Some(Waiting { command, spans }) = self.waiting.pop_front() else { return };
            // SAFETY: promised for this command until its completion, which is still to come.
            unsafe { self.start(now, command, &spans, io) };
        }
    }

    /// The next step of the job. Returns false if it waits.
    fn step(&mut self, now: Instant, io: &mut DeviceIo<'_>) -> bool {
        let waits = !self.reads.is_empty() || self.retry_at.is_some();
        let Some(job) = self.job.as_mut().filter(|job| job.in_flight.is_none() && !waits) else {
            return false;
        };
        self.generation = self.generation.wrapping_add(1);
        let id = RequestId { slot: OWN_SLOT, generation: self.generation };
        let write = match &job.source {
            Source::Cache(count) => (job.next < *count).then(|| self.held.get(job.next)),
            Source::Own(writes) => writes.get(job.next),
        };
        let (command, span) = match (write, job.flush) {
            (Some(write), _) => {
                (write_below(id, write, job.moved), write.data.span_from(job.moved))
            }
            (None, Some(volume)) => (Command::flush(id, volume), Span::EMPTY),
            (None, None) => {
                self.finish(Ok(()), io);
                return true;
            }
        };
        job.in_flight = Some(id);
        let spans = [span];
        // SAFETY: the bytes belong to the job or to the cache, which keep them until the completion.
        unsafe { self.submit_below(now, &command, &spans[..usize::from(command.spans)], io) };
        true
    }

    /// Ends the job.
    fn finish(&mut self, status: Result<(), IoError>, io: &mut DeviceIo<'_>) {
        let Some(job) = self.job.take() else { return };
        if let (Ok(()), Source::Cache(count)) = (status, &job.source) {
            self.held.forget(*count);
        }
        match job.then {
            Then::Answer(command) => io.completions.push(command.ended(status)),
            Then::Forget => {}
            Then::CutPower(fates) => {
                self.off = true;
                self.report.cut = Some(fates);
                (self.end)(&self.report);
            }
        }
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn submit_below(
        &mut self,
        now: Instant,
        command: &Command,
        spans: &[Span],
        io: &mut DeviceIo<'_>,
    ) {
        let command = Command { first_span: 0, ..*command };
        let commands = std::slice::from_ref(&command);
        let mut io = below(io, &mut self.answers);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.below.submit(now, CommandBatch { commands, spans }, &mut io) };
    }

    fn take_answers(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        for answer in std::mem::take(&mut self.answers) {
            if answer.id.slot == OWN_SLOT {
                self.moved(now, answer, io);
                continue;
            }
            let place = self.reads.iter().position(|read| read.command.id == answer.id);
            let Some(place) = place else { continue };
            let Waiting { command, spans } = self.reads.swap_remove(place);
            let len = answer.transferred as usize;
            // SAFETY: the memory of a read is ours until its completion, which goes up now.
            unsafe { self.held.patch(command.volume, command.offset, len, &spans) };
            io.completions.push(Completion { hole: false, ..answer });
        }
    }

    /// A command of the job has ended.
    fn moved(&mut self, now: Instant, answer: Completion, io: &mut DeviceIo<'_>) {
        let Some(job) = self.job.as_mut().filter(|job| job.in_flight == Some(answer.id)) else {
            return;
        };
        job.in_flight = None;
        let len = match &job.source {
            Source::Cache(count) if job.next < *count => Some(self.held.get(job.next).data.len()),
            Source::Own(writes) => writes.get(job.next).map(|write| write.data.len()),
            Source::Cache(_) => None,
        };
        match (answer.status, len) {
            (Err(IoError::Busy), _) => self.retry_at = Some(now.after(BUSY_NS)),
            (Err(error), _) => self.finish(Err(error), io),
            (Ok(()), None) => job.flush = None,
            (Ok(()), Some(len)) => {
                job.moved += answer.transferred as usize;
                if job.moved >= len {
                    (job.next, job.moved) = (job.next + 1, 0);
                }
            }
        }
    }
}

impl Job {
    fn new(source: Source, flush: Option<VolumeId>, then: Then) -> Self {
        Self { source, next: 0, moved: 0, flush, in_flight: None, then }
    }
}

/// What the device below works with: its answers come here first.
fn below<'a>(io: &'a mut DeviceIo<'_>, answers: &'a mut Vec<Completion>) -> DeviceIo<'a> {
    DeviceIo { device: io.device, completions: answers, disk: io.disk, lost: io.lost }
}

fn write_below(id: RequestId, write: &HeldWrite, moved: usize) -> Command {
    Command {
        id,
        volume: write.volume,
        op: Op::Write,
        flags: BioFlags::NONE,
        offset: write.offset + moved as u64,
        len: (write.data.len() - moved) as u32,
        first_span: 0,
        spans: 1,
    }
}

impl Device for PowercutDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            if self.waiting.len() == WAITING_MAX {
                io.completions.push(command.failed(IoError::Busy));
                continue;
            }
            let spans = batch.spans_of(command).to_vec();
            self.waiting.push_back(Waiting { command: *command, spans });
        }
        self.pump(now, io);
    }

    fn on_disk(&mut self, now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        self.below.on_disk(now, done, &mut below(io, &mut self.answers));
        self.pump(now, io);
    }

    fn on_ready(&mut self, now: Instant, place: u16, io: &mut DeviceIo<'_>) {
        self.below.on_ready(now, place, &mut below(io, &mut self.answers));
        self.pump(now, io);
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        if self.below.next_timeout().is_some_and(|at| at <= now) {
            self.below.on_timeout(now, &mut below(io, &mut self.answers));
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        self.pump(now, io);
    }

    fn next_timeout(&self) -> Option<Instant> {
        // A job that is under way is followed by the cut.
        let cut_at = (self.cut_asked && self.job.is_none()).then_some(Instant(0));
        [self.retry_at, cut_at, self.below.next_timeout()].into_iter().flatten().min()
    }

    fn grow(&mut self, volume: VolumeId, size: u64) -> Result<(), IoError> {
        self.below.grow(volume, size)
    }
}

impl Drop for PowercutDevice {
    fn drop(&mut self) {
        if !self.off && self.report.commands > 0 {
            (self.end)(&self.report);
        }
    }
}

#[cfg(test)]
mod tests;
