//! `file:` images and block devices: commands become file operations.
//!
//! One device holds all images of one filesystem, so that they share its queue. Reads and writes need no memory of their
//! own: the operation's result says all. What takes several operations is a row in a bounded table, one step at a time:
//!
//! ```text
//!   Flush ----------------------------------------> Sync ---.
//!   Discard, WriteZeroes -----> Punch ------.        ^       \
//!   WriteZeroes NO_UNMAP -----> ZeroRange --+-- FUA -'        +--> completed
//!                                  |        +-----------------'
//!                     unsupported  v        |
//!                               Unmap --> Allocate
//!   BlockStatus ----------------------------------> Tell --------> completed (the list is in the buffer)
//! ```
//!
//! A failed step ends the command with its error; "unsupported" reaches the queue, which then writes zeros as data. A full
//! engine, at any step, is `Busy`: every step may be done twice, so the queue starts the command again.
//!
//! Images in memory (tmpfs, ramfs) are read, written and flushed in place, inside `submit`, one system call each. Discards, zeroing and
//! block status go through a thread of the engine, because the kernel walks a file in memory page by page: a thread of clients would be held for
//! 0.1 ms a MiB.

mod directory;
mod lock;
mod open;
mod probe;

use headworks_core::{
    BioFlags, Completion, DeviceId, Instant, IoError, Op, QueueOptions, RequestId, Status,
    VolumeId, VolumeOptions,
};

use super::{Command, CommandBatch, Device, DeviceIo, Image};
use crate::engine::{DiskDone, DiskKind, DiskOp, execute};
use crate::memory::Span;

pub use directory::{folder_of, sync_directory};
pub use lock::share as share_lock;
use open::FileMode;
pub use open::{Direct, FileOptions, OpenFile, size_of_file};

/// Commands of several steps at once; one more is `Busy`. They are flushes and discards, of which few help.
const STEPPED_MAX: usize = 64;
/// Zeros that are written come from one small buffer, which stays in the CPU's cache.
const ZEROS_LEN: usize = 64 << 10;
/// 4 MiB of zeros in one operation; the queue continues a longer write.
const ZERO_SPANS_MAX: usize = 64;
/// The kernel's UIO_MAXIOV; the queue continues a command that has more.
const SPANS_MAX: usize = 1024;

#[repr(align(4096))]
struct Zeros([u8; ZEROS_LEN]);
static ZEROS: Zeros = Zeros([0; ZEROS_LEN]);

/// Images on one filesystem, or one block device.
pub struct FileDevice {
    /// By volume.
    files: Vec<Option<OpenFile>>,
    stepped: Vec<Stepped>,
    zero_spans: Vec<Span>,
}

/// A command in flight and its current step.
#[derive(Clone, Copy, Debug)]
struct Stepped {
    command: Command,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sync,
    Punch,
    ZeroRange,
    /// Punches for a NO_UNMAP that the filesystem cannot do in one step.
    Unmap,
    Allocate,
    Tell,
}

enum Next {
    Step(Step),
    Completed(Status),
}

impl FileDevice {
    /// A device of these images, by volume.
    #[must_use]
    pub fn new(images: Vec<(VolumeId, OpenFile)>) -> Self {
        let volumes = images.iter().map(|(volume, _)| usize::from(volume.0) + 1);
        let mut files = Vec::new();
        files.resize_with(volumes.max().unwrap_or(0), || None);
        for (volume, file) in images {
            files[usize::from(volume.0)] = Some(file);
        }
        Self {
            files,
            stepped: Vec::with_capacity(STEPPED_MAX),
            zero_spans: Vec::with_capacity(ZERO_SPANS_MAX),
        }
    }

    /// What its queue should know: what every one of its images can do.
    #[must_use]
    pub fn queue_options(&self) -> QueueOptions {
        self.each_queue_options().reduce(QueueOptions::both).unwrap_or_default()
    }

    /// What the queue of each image alone should know.
    pub fn each_queue_options(&self) -> impl Iterator<Item = QueueOptions> {
        self.files.iter().flatten().map(OpenFile::queue_options)
    }

    /// Whether it has an image for the volume.
    #[must_use]
    pub fn has(&self, volume: VolumeId) -> bool {
        self.files.get(usize::from(volume.0)).is_some_and(Option::is_some)
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn start(&mut self, command: &Command, spans: &[Span], io: &mut DeviceIo<'_>) {
        let file = self.files.get(usize::from(command.volume.0));
        let Some(file) = file.and_then(Option::as_ref) else {
            io.completions.push(command.failed(IoError::Invalid));
            return;
        };
        if file.read_only() && command.op.is_write() {
            io.completions.push(command.failed(IoError::ReadOnly));
            return;
        }
        let inline = file.mode() == FileMode::Inline;
        if !command.op.has_data() {
            let step = first_step(command);
            match inline && step == Step::Sync {
                true => self.sync_in_place(command, io),
                // SAFETY: the caller's promise about the spans, passed on.
                false => unsafe { self.push_step(Stepped { command: *command, step }, spans, io) },
            }
            return;
        }
        let kind = match command.op {
            Op::Read => DiskKind::Read,
            _ => DiskKind::Write { dsync: command.flags.contains(BioFlags::FUA) },
        };
        let op = self.operation(io.device, command, kind);
        let spans = match spans {
            [] => {
                self.fill_zero_spans(command.len as usize);
                &self.zero_spans
            }
            _ => &spans[..spans.len().min(SPANS_MAX)],
        };
        if inline {
            // SAFETY: the caller's promise about the spans, passed on.
            let result = unsafe { execute(&op, spans) };
            io.completions.push(transferred(command.id, result));
            return;
        }
        // SAFETY: as above. The image stays open: it is removed only while no command of its volume is in flight.
        if !unsafe { io.disk.push(op, spans) } {
            io.completions.push(command.failed(IoError::Busy));
        }
    }

    fn operation(&self, device: DeviceId, command: &Command, kind: DiskKind) -> DiskOp {
        let file = self.files[usize::from(command.volume.0)].as_ref();
        let file = file.expect(CHECKED);
        DiskOp {
            device,
            id: command.id,
            fd: file.fd(),
            kind,
            offset: command.offset,
            len: u64::from(command.len),
        }
    }

    fn fill_zero_spans(&mut self, len: usize) -> &[Span] {
        self.zero_spans.clear();
        let mut left = len;
        while left > 0 && self.zero_spans.len() < ZERO_SPANS_MAX {
            let take = left.min(ZEROS_LEN);
            let base = ZEROS.0.as_ptr().cast_mut();
            // SAFETY: a part of a static; a `Write` only reads its spans.
            self.zero_spans.push(unsafe { Span::new(base, take) });
            left -= take;
        }
        &self.zero_spans
    }

    /// Sends the operation of a step; the command is in the table until its last one ends.
    ///
    /// # Safety
    /// As [`crate::engine::DiskQueue::push`] for the spans.
    unsafe fn push_step(&mut self, stepped: Stepped, spans: &[Span], io: &mut DeviceIo<'_>) {
        let kind = stepped.step.kind(stepped.command.flags);
        let op = self.operation(io.device, &stepped.command, kind);
        // SAFETY: the caller's promise; the image stays open while a command of its volume is in the table.
        if self.stepped.len() < STEPPED_MAX && unsafe { io.disk.push(op, spans) } {
            self.stepped.push(stepped);
        } else {
            let busy = stepped.command.failed(IoError::Busy);
            io.completions.push(busy);
        }
    }

    /// A flush of an image in memory.
    fn sync_in_place(&self, command: &Command, io: &mut DeviceIo<'_>) {
        let op = self.operation(io.device, command, DiskKind::Sync);
        // SAFETY: operations without data have no spans.
        let result = unsafe { execute(&op, &[]) };
        io.completions.push(match result {
            0.. => command.done(),
            error => command.failed(IoError::from_errno(-error)),
        });
    }
}

impl Image for OpenFile {
    fn volume_options(&self) -> VolumeOptions {
        self.volume_options()
    }
}

impl Device for FileDevice {
    unsafe fn submit(&mut self, _now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.start(command, batch.spans_of(command), io) };
        }
    }

    fn on_disk(&mut self, _now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        // Short: the table holds flushes and discards alone, and is mostly empty.
        let row = self.stepped.iter().position(|row| row.command.id == done.id);
        let Some(row) = row else {
            io.completions.push(transferred(done.id, done.result));
            return;
        };
        let Stepped { command, step } = self.stepped.swap_remove(row);
        match step.next(command.flags, done.result) {
            // SAFETY: there are no spans.
            Next::Step(step) => unsafe { self.push_step(Stepped { command, step }, &[], io) },
            Next::Completed(status) => io.completions.push(command.ended(status)),
        }
    }

    fn attach(&mut self, volume: VolumeId, image: Box<dyn Image>) -> Result<(), Box<dyn Image>> {
        let file: Box<OpenFile> = image.downcast()?;
        let place = usize::from(volume.0);
        if self.files.len() <= place {
            self.files.resize_with(place + 1, || None);
        }
        match &mut self.files[place] {
            Some(_) => Err(file),
            vacant => {
                *vacant = Some(*file);
                Ok(())
            }
        }
    }

    fn detach(&mut self, volume: VolumeId) -> Option<Box<dyn Send>> {
        let steps = self.stepped.iter().any(|row| row.command.volume == volume);
        if steps {
            return None;
        }
        let file = self.files.get_mut(usize::from(volume.0))?.take()?;
        Some(Box::new(file))
    }

    fn grow(&mut self, volume: VolumeId, size: u64) -> Result<(), IoError> {
        let file = self.files.get_mut(usize::from(volume.0)).and_then(Option::as_mut);
        file.ok_or(IoError::Invalid)?.grow(size);
        Ok(())
    }
}

const CHECKED: &str = "a command's volume was checked when it started";

fn first_step(command: &Command) -> Step {
    match command.op {
        Op::WriteZeroes if command.flags.contains(BioFlags::NO_UNMAP) => Step::ZeroRange,
        Op::WriteZeroes | Op::Discard => Step::Punch,
        Op::BlockStatus => Step::Tell,
        Op::Flush | Op::Read | Op::Write | Op::Prefetch => Step::Sync,
    }
}

impl Step {
    fn kind(self, flags: BioFlags) -> DiskKind {
        let mode = match self {
            Step::Sync => return DiskKind::Sync,
            Step::Tell => return DiskKind::Extents { one: flags.contains(BioFlags::ONE_EXTENT) },
            Step::Punch | Step::Unmap => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Step::ZeroRange => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            Step::Allocate => libc::FALLOC_FL_KEEP_SIZE,
        };
        DiskKind::Allocate { mode }
    }

    /// What follows when this step's operation ended with `result`.
    fn next(self, flags: BioFlags, result: i32) -> Next {
        if result < 0 {
            let unsupported = is_unsupported(-result);
            return match self {
                Step::ZeroRange if unsupported => Next::Step(Step::Unmap),
                _ if unsupported => Next::Completed(Err(IoError::Unsupported)),
                _ => Next::Completed(Err(IoError::from_errno(-result))),
            };
        }
        match self {
            Step::Unmap => Next::Step(Step::Allocate),
            Step::Punch | Step::ZeroRange | Step::Allocate if flags.contains(BioFlags::FUA) => {
                Next::Step(Step::Sync)
            }
            _ => Next::Completed(Ok(())),
        }
    }
}

/// The words for "this file cannot do that": filesystems differ, and ENODEV is what a file without fallocate says.
fn is_unsupported(errno: i32) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV)
}

/// The answer of a read or write, from its operation's result.
fn transferred(id: RequestId, result: i32) -> Completion {
    Completion {
        id,
        transferred: result.max(0) as u32,
        status: match result {
            0.. => Ok(()),
            _ => Err(IoError::from_errno(result.saturating_neg())),
        },
        hole: false,
    }
}

#[cfg(test)]
mod tests;
