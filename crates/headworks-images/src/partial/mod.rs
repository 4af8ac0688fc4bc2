//! Requests of any range on a device that takes only whole blocks: a partly written block is read, changed and written back.
//!
//! Rules:
//! - While a block is changed, nothing else writes it. A write that touches a block which another one changes waits, and a change waits
//!   for the writes of its blocks that the device has. So neighbouring bytes that are written back are never older than what was
//!   acknowledged. All writes of a volume pass its device, from whatever connection and shard, so the rule stands here alone.
//! - Writes that wait keep their order where they touch the same blocks. Reads wait for no write: what they may see of one that was not
//!   acknowledged is open, and bytes beside it are the same before and after.
//! - A change is acknowledged after its write, with the write's flags: flushes and FUA mean what they mean for whole blocks.
//! - A failed read fails the write, which has then changed nothing. Discards are rounded inward.
//! - A command is carried out as far as one buffer reaches, and answered as a short transfer, which the queue continues. So memory is
//!   bounded: [`JOBS_MAX`] buffers of [`CHUNK`] for a device, made when first needed. Commands beyond wait, at most as many as the queue sends.
//!
//! ```text
//!   submit --whole blocks, none of them changed or waited for--> below (writes are noted until they are answered)
//!      `--> waiting --its blocks are free--> whole: below
//!                              `-----------> job: [read first block] [read last block] write    all with the command's own id
//!                                                 read, and copied      or the whole blocks of it
//! ```
//!
//! Invariants: no two jobs and noted writes touch the same block, unless both are noted writes; a job has one command below.

mod job;
mod plan;

use std::collections::VecDeque;

use headworks_core::{Completion, Instant, IoError, VolumeId};

use headworks::driver::{DiskDone, Span};
use headworks::{Command, CommandBatch, Device, DeviceIo, Image, VolumeOptions};
use headworks_house::{Buffer, Pool};
use job::Job;
use plan::Step;

pub use plan::WholeBlocks;

/// Commands that are changed or copied at once.
const JOBS_MAX: usize = 8;
/// Most bytes of a buffer.
const CHUNK: usize = 128 << 10;
/// Waiting commands that are looked at when one may have become free.
const LOOKED_AT: usize = 64;

/// A device that takes any range, around one whose volumes take whole blocks.
pub struct PartialDevice {
    below: Box<dyn Device>,
    /// By volume; none where every range passes.
    volumes: Vec<Option<WholeBlocks>>,
    /// Writes below, by the slots of their ids.
    noted: Vec<Option<Blocks>>,
    jobs: Vec<Job>,
    waiting: VecDeque<Waiting>,
    pool: Option<Pool>,
}

/// Blocks of a volume, as the range of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    volume: VolumeId,
    start: u64,
    end: u64,
}

impl Blocks {
    fn touch(&self, other: &Self) -> bool {
        self.volume == other.volume && self.start < other.end && other.start < self.end
    }
}

struct Waiting {
    command: Command,
    spans: Vec<Span>,
    /// It can go below as it is.
    is_whole: bool,
}

/// An image that joins a device of images, and of which any range is read and written.
#[derive(Debug)]
pub struct PartialImage {
    image: Box<dyn Image>,
    blocks: WholeBlocks,
}

impl PartialImage {
    /// Lets requests of any range to `image` be carried out by whole blocks.
    #[must_use]
    pub fn new(image: Box<dyn Image>, blocks: WholeBlocks) -> Self {
        Self { image, blocks }
    }
}

impl Image for PartialImage {
    fn volume_options(&self) -> VolumeOptions {
        VolumeOptions { block_size: 1, ..self.image.volume_options() }
    }
}

impl PartialDevice {
    /// Takes any range of these volumes of `below`; those of others go to it as they are.
    #[must_use]
    pub fn new(
        below: Box<dyn Device>,
        volumes: impl IntoIterator<Item = (VolumeId, WholeBlocks)>,
    ) -> Self {
        let mut device = Self {
            below,
            volumes: Vec::new(),
            noted: Vec::new(),
            jobs: Vec::with_capacity(JOBS_MAX),
            waiting: VecDeque::new(),
            pool: None,
        };
        volumes.into_iter().for_each(|(volume, blocks)| device.put_volume(volume, blocks));
        device
    }

    fn put_volume(&mut self, volume: VolumeId, blocks: WholeBlocks) {
        let index = usize::from(volume.0);
        if self.volumes.len() <= index {
            self.volumes.resize(index + 1, None);
        }
        self.volumes[index] = Some(blocks);
    }

    fn blocks_of(&self, command: &Command) -> Option<&WholeBlocks> {
        self.volumes.get(usize::from(command.volume.0))?.as_ref()
    }

    /// The blocks that a command may change; none if it changes nothing.
    fn changed(&self, command: &Command) -> Option<Blocks> {
        let blocks = self.blocks_of(command).filter(|_| command.op.is_write())?;
        let (start, end) = blocks.around(command);
        Some(Blocks { volume: command.volume, start, end })
    }

    /// Whether a command goes below at once; a write is noted then.
    fn passes(&mut self, command: &Command, spans: &[Span]) -> bool {
        let Some(blocks) = self.blocks_of(command) else { return true };
        if !blocks.are_whole(command, spans) {
            return false;
        }
        let Some(changed) = self.changed(command) else { return true };
        if self.is_changed(&changed) || self.is_waited_for(&changed, self.waiting.len()) {
            return false;
        }
        self.note(command, changed);
        true
    }

    fn note(&mut self, command: &Command, changed: Blocks) {
        let slot = command.id.slot as usize;
        if self.noted.len() <= slot {
            self.noted.resize(slot + 1, None);
        }
        self.noted[slot] = Some(changed);
    }

    /// Whether a job changes one of the blocks.
    fn is_changed(&self, blocks: &Blocks) -> bool {
        self.jobs.iter().any(|job| job.changed().is_some_and(|other| other.touch(blocks)))
    }

    /// Whether one of the first `count` waiting commands is to change one of the blocks.
    fn is_waited_for(&self, blocks: &Blocks, count: usize) -> bool {
        let mut others = self.waiting.iter().take(count);
        others.any(|other| self.changed(&other.command).is_some_and(|other| other.touch(blocks)))
    }

    /// Whether a waiting command can begin.
    fn may_start(&self, index: usize) -> bool {
        let Waiting { command, is_whole, .. } = &self.waiting[index];
        if !is_whole && self.jobs.len() == JOBS_MAX {
            return false;
        }
        let Some(changed) = self.changed(command) else { return true };
        // Whole writes of the same blocks may be below together, as they come.
        let is_below = || !is_whole && self.noted.iter().flatten().any(|one| one.touch(&changed));
        !self.is_changed(&changed) && !self.is_waited_for(&changed, index) && !is_below()
    }

    /// Begins what waits and can; false if nothing does.
    fn start_waiting(&mut self, now: Instant, io: &mut DeviceIo<'_>) -> bool {
        let (mut index, mut started) = (0, false);
        while index < self.waiting.len().min(LOOKED_AT) {
            if !self.may_start(index) {
                index += 1;
                continue;
            }
            let Some(one) = self.waiting.remove(index) else { break };
            self.start(now, one, io);
            started = true;
        }
        started
    }

    fn start(&mut self, now: Instant, one: Waiting, io: &mut DeviceIo<'_>) {
        let Waiting { command, spans, is_whole } = one;
        if is_whole {
            if let Some(changed) = self.changed(&command) {
                self.note(&command, changed);
            }
            return self.send(now, &command, &spans, io);
        }
        let Some(blocks) = self.blocks_of(&command) else { return };
        let plan = blocks.plan(&command, CHUNK as u64);
        if plan.is_empty() {
            return io.completions.push(command.done());
        }
        let buffer = match plan.buffer_len(command.op) {
            0 => None,
            len => match self.take_buffer(len) {
                Ok(buffer) => Some(buffer),
                Err(error) => return io.completions.push(command.failed(error)),
            },
        };
        let step = plan.first_step();
        self.jobs.push(Job { command, spans, plan, step, buffer });
        self.send_step(now, self.jobs.len() - 1, io);
    }

    fn take_buffer(&mut self, len: usize) -> Result<Buffer, IoError> {
        let pool = match &mut self.pool {
            Some(pool) => pool,
            none => {
                let made = Pool::new(JOBS_MAX * CHUNK).map_err(|_| IoError::NoMemory)?;
                none.insert(made)
            }
        };
        // There are as many of the largest as jobs.
        pool.try_take(len).ok_or(IoError::Busy)
    }

    /// Gives one command to the device below.
    fn send(&mut self, now: Instant, command: &Command, spans: &[Span], io: &mut DeviceIo<'_>) {
        let command = Command { first_span: 0, spans: spans.len() as u16, ..*command };
        let batch = CommandBatch { commands: &[command], spans };
        // SAFETY: the command's spans are those of its submission, which stay valid until its completion; or a job's buffer, which is
        // kept as long.
        unsafe { self.below.submit(now, batch, io) };
    }

    /// Gives a job's next command to the device.
    fn send_step(&mut self, now: Instant, index: usize, io: &mut DeviceIo<'_>) {
        let job = &mut self.jobs[index];
        if job.step == Step::Last {
            job.fill();
        }
        let (command, span) = job.next_command();
        match span {
            Some(span) => self.send(now, &command, &[span], io),
            None => self.send(now, &command, &[], io),
        }
    }

    /// Looks at what the device has answered, and goes on with what that lets go on.
    fn settle(&mut self, now: Instant, first: usize, io: &mut DeviceIo<'_>) {
        let mut at = first;
        loop {
            while let Some(&done) = io.completions.get(at) {
                match self.jobs.iter().position(|job| job.command.id == done.id) {
                    Some(index) => {
                        io.completions.remove(at);
                        self.on_step(now, index, done, io);
                    }
                    None => {
                        if let Some(noted) = self.noted.get_mut(done.id.slot as usize) {
                            *noted = None;
                        }
                        at += 1;
                    }
                }
            }
            if self.waiting.is_empty() || !self.start_waiting(now, io) {
                return;
            }
        }
    }

    /// The device has answered a job's command.
    fn on_step(&mut self, now: Instant, index: usize, done: Completion, io: &mut DeviceIo<'_>) {
        let job = &mut self.jobs[index];
        if done.status.is_ok() && job.step != Step::Last {
            if u64::from(done.transferred) == job.plan.step_len(job.step) {
                job.step = job.plan.step_after(job.step);
                return self.send_step(now, index, io);
            }
            // A block that cannot be read as a whole.
            let failed = job.command.failed(IoError::Medium);
            return self.end(index, failed, io);
        }
        let answer = match done.status {
            Ok(()) => job.answer(done.transferred),
            Err(error) => job.command.failed(error),
        };
        self.end(index, answer, io);
    }

    /// Answers a job's command.
    fn end(&mut self, index: usize, answer: Completion, io: &mut DeviceIo<'_>) {
        let job = self.jobs.swap_remove(index);
        if let (Some(buffer), Some(pool)) = (job.buffer, &mut self.pool) {
            pool.put(buffer);
        }
        io.completions.push(answer);
    }

    /// Calls the device below, and goes on with what it has answered.
    fn with(
        &mut self,
        now: Instant,
        io: &mut DeviceIo<'_>,
        call: impl FnOnce(&mut dyn Device, &mut DeviceIo<'_>),
    ) {
        let first = io.completions.len();
        call(&mut *self.below, io);
        if !self.volumes.is_empty() {
            self.settle(now, first, io);
        }
    }
}

impl Device for PartialDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        if self.volumes.is_empty() {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.below.submit(now, batch, io) };
        }
        let first = io.completions.len();
        let mut run = 0;
        for (index, command) in batch.commands.iter().enumerate() {
            let spans = batch.spans_of(command);
            if self.passes(command, spans) {
                continue;
            }
            if let Some(part) = batch.part(run..index) {
                // SAFETY: as above.
                unsafe { self.below.submit(now, part, io) };
            }
            run = index + 1;
            let is_whole =
                self.blocks_of(command).is_none_or(|blocks| blocks.are_whole(command, spans));
            self.waiting.push_back(Waiting { command: *command, spans: spans.to_vec(), is_whole });
        }
        if let Some(rest) = batch.part(run..batch.commands.len()) {
            // SAFETY: as above.
            unsafe { self.below.submit(now, rest, io) };
        }
        self.settle(now, first, io);
    }

    fn on_disk(&mut self, now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        self.with(now, io, |below, io| below.on_disk(now, done, io));
    }

    fn on_ready(&mut self, now: Instant, place: u16, io: &mut DeviceIo<'_>) {
        self.with(now, io, |below, io| below.on_ready(now, place, io));
    }

    fn on_timeout(&mut self, now: Instant, io: &mut DeviceIo<'_>) {
        self.with(now, io, |below, io| below.on_timeout(now, io));
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.below.next_timeout()
    }

    fn below(&mut self) -> Option<&mut dyn Device> {
        Some(&mut *self.below)
    }

    fn attach(&mut self, volume: VolumeId, image: Box<dyn Image>) -> Result<(), Box<dyn Image>> {
        let partial = match image.downcast::<PartialImage>() {
            Ok(partial) => *partial,
            Err(image) => return self.below.attach(volume, image),
        };
        let PartialImage { image, blocks } = partial;
        let attached = self.below.attach(volume, image);
        attached.map_err(|image| Box::new(PartialImage { image, blocks }) as Box<dyn Image>)?;
        self.put_volume(volume, blocks);
        Ok(())
    }

    fn detach(&mut self, volume: VolumeId) -> Option<Box<dyn Send>> {
        let detached = self.below.detach(volume)?;
        if let Some(blocks) = self.volumes.get_mut(usize::from(volume.0)) {
            *blocks = None;
        }
        Some(detached)
    }
}

#[cfg(test)]
mod tests;
