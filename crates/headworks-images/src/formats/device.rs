//! The device of a resolved image: its runs, read by the engine.
//!
//! A read whose bytes are one run of a file is one operation of the engine, and the operation's result says all. A read over several
//! runs is several operations at once, at most [`PIECES_MAX`], with a row in a bounded table that counts them; zeros between
//! them are filled in at once. What does not fit, in pieces or rows, is a short transfer, and the queue goes on with the rest.
//!
//! ```text
//!   read:    | data a | zeros | data b | compressed ...      |
//!              op       fill    op       job of a thread, job
//!   row:     4 pieces left --> 3 --> 2 --> 1 --> 0: answered for all of them
//! ```
//!
//! An operation that moves fewer bytes than asked for means that a file was cut although it is locked. In a row it is not known which
//! one it was, so the command is refused as busy, and from then on commands are answered run by run.
//!
//! Block status comes from the runs. Holes of plain files (raw backing files, flat extents) are asked of the kernel, as `qemu-img map`
//! does: one question for each run of such a file.

use std::os::fd::AsRawFd;

use headworks::driver::{DiskDone, DiskKind, DiskOp, Interest, Span};
use headworks::{Command, CommandBatch, Device, DeviceIo};
use headworks_core::extent::{EXTENTS_MAX, ExtentWriter};
use headworks_core::{BioFlags, Completion, ExtentState, Instant, IoError, Op, RequestId};

use crate::formats::chain::ImageFile;
use crate::formats::decode::{Decoder, JOB_SPANS_MAX, Job};
use crate::formats::map::{Run, RunMap, Source};

/// Commands of several operations at once; of one more only the first run is read.
const ROWS_MAX: usize = 64;
/// Most operations of a command.
const PIECES_MAX: u32 = 64;
/// Compressed runs are cut at multiples of it, so that several threads read a long one.
const JOB_BYTES: u64 = 128 << 10;
/// The place under which the decoder's socket is watched.
const DECODER: u16 = 0;
/// The kernel's UIO_MAXIOV.
const SPANS_MAX: usize = 1024;

/// An image as a device; its one volume is the disk.
pub struct FormatDevice {
    map: RunMap,
    files: Vec<ImageFile>,
    rows: Vec<Row>,
    /// Spans of one operation.
    spans: Vec<Span>,
    /// A file was cut: no command has several operations any more.
    run_by_run: bool,
    /// Reads compressed clusters; none if there are no such.
    decoder: Option<Decoder>,
}

/// A command with several operations in flight, or a question about a file's extents.
#[derive(Clone, Copy, Debug)]
struct Row {
    id: RequestId,
    /// Operations that have not ended.
    left: u32,
    /// What its answer transfers.
    covered: u32,
    /// Bytes that the operations that have not ended should move; a question moves none.
    missing: u64,
    error: Option<IoError>,
}

impl FormatDevice {
    pub(crate) fn new(map: RunMap, files: Vec<ImageFile>, decoder: Option<Decoder>) -> Self {
        Self {
            map,
            files,
            rows: Vec::with_capacity(ROWS_MAX),
            spans: Vec::with_capacity(SPANS_MAX),
            run_by_run: false,
            decoder,
        }
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn start(&mut self, command: &Command, spans: &[Span], io: &mut DeviceIo<'_>) {
        let end = command.offset.checked_add(command.len.into());
        let inside = end.is_some_and(|end| end <= self.map.size());
        let answer = match command.op {
            op if op.is_write() => Some(command.failed(IoError::ReadOnly)),
            Op::Flush | Op::Prefetch => Some(command.done()),
            _ if !inside => Some(command.failed(IoError::Invalid)),
            // SAFETY: the caller's promise, passed on.
            Op::BlockStatus => unsafe { self.status(command, spans, io) },
            // SAFETY: as above.
            _ => unsafe { self.read(command, spans, io) },
        };
        io.completions.extend(answer);
    }

    /// Starts a read; `None` if operations will answer it.
    ///
    /// # Safety
    /// As [`Device::submit`].
    unsafe fn read(
        &mut self,
        command: &Command,
        spans: &[Span],
        io: &mut DeviceIo<'_>,
    ) -> Option<Completion> {
        let mut runs = self.map.runs_from(command.offset, command.len.into());
        let first = runs.next()?;
        if first.source == Source::Zeros
            && first.len == u64::from(command.len)
            && command.flags.contains(BioFlags::HOLE_OK)
        {
            return Some(Completion { hole: true, ..command.done() });
        }
        let several = !self.run_by_run && self.rows.len() < ROWS_MAX;
        let pieces = if several { PIECES_MAX } else { 1 };
        let runs = std::iter::once(first).chain(runs);
        let (mut covered, mut operations, mut bytes) = (0u32, 0u32, 0u64);
        let mut cursor = Cursor { spans, skipped: 0 };
        for run in runs.take(if several { usize::MAX } else { 1 }) {
            match run.source {
                Source::Compressed | Source::File(..) if operations == pieces => break,
                Source::Compressed => {
                    let Some(decoder) = &mut self.decoder else { break };
                    let wanted = (command.id, run, pieces - operations);
                    // SAFETY: the caller's promise.
                    let (jobs, read) = unsafe { Self::decode(decoder, wanted, &mut cursor, io) };
                    (operations, bytes) = (operations + jobs, bytes + read);
                    covered += read as u32;
                    if read < run.len {
                        break;
                    }
                }
                Source::Zeros => {
                    // SAFETY: the caller's promise.
                    cursor.each(run.len, |span| unsafe { span.bytes_mut().fill(0) });
                    covered += run.len as u32;
                }
                Source::File(file, offset) => {
                    self.spans.clear();
                    let mut len = 0;
                    let list = &mut self.spans;
                    cursor.each(run.len, |span| {
                        if list.len() < SPANS_MAX {
                            list.push(span);
                            len += span.len() as u64;
                        }
                    });
                    let fd = self.files[usize::from(file)].file.file().as_raw_fd();
                    let (device, id) = (io.device, command.id);
                    let op = DiskOp { device, id, fd, kind: DiskKind::Read, offset, len };
                    // SAFETY: the caller's promise; the file is open as long as the device is.
                    if !unsafe { io.disk.push(op, &self.spans) } {
                        break;
                    }
                    (operations, bytes) = (operations + 1, bytes + len);
                    covered += len as u32;
                    if len < run.len {
                        break;
                    }
                }
            }
        }
        match (operations, covered) {
            (0, 0) => Some(command.failed(IoError::Busy)),
            (0, covered) => Some(Completion { transferred: covered, ..command.done() }),
            (1, covered) if u64::from(covered) == bytes => None,
            (left, covered) => {
                self.rows.push(Row { id: command.id, left, covered, missing: bytes, error: None });
                None
            }
        }
    }

    /// Starts the jobs of a run of compressed clusters, from where `cursor` is, at most `most`; returns their number and bytes.
    ///
    /// # Safety
    /// As [`Device::submit`].
    unsafe fn decode(
        decoder: &mut Decoder,
        (id, run, most): (RequestId, Run, u32),
        cursor: &mut Cursor<'_>,
        io: &mut DeviceIo<'_>,
    ) -> (u32, u64) {
        let (mut jobs, mut bytes) = (0, 0);
        while bytes < run.len && jobs < most {
            let Some(mut list) = decoder.list() else { break };
            let offset = run.start + bytes;
            let until = (offset / JOB_BYTES + 1) * JOB_BYTES;
            let mut len = 0;
            cursor.each((until - offset).min(run.len - bytes), |span| {
                if list.len() < JOB_SPANS_MAX {
                    list.push(span);
                    len += span.len() as u64;
                }
            });
            // SAFETY: the caller's promise; the command is answered when the result was collected.
            if unsafe { decoder.start(Job { id, offset, spans: list }) } {
                io.watch(DECODER, decoder.fd(), Interest::Read);
            }
            (jobs, bytes) = (jobs + 1, bytes + len);
            if bytes < run.len && offset + len < until {
                break;
            }
        }
        (jobs, bytes)
    }

    /// Tells what the bytes are; `None` if the kernel is asked.
    ///
    /// # Safety
    /// As [`Device::submit`].
    unsafe fn status(
        &mut self,
        command: &Command,
        spans: &[Span],
        io: &mut DeviceIo<'_>,
    ) -> Option<Completion> {
        let [span] = spans else {
            return Some(command.failed(IoError::Invalid));
        };
        let one = command.flags.contains(BioFlags::ONE_EXTENT);
        let mut runs = self.map.runs_from(command.offset, command.len.into());
        let first = runs.next()?;
        if let (Source::File(file, offset), true) = (first.source, self.rows.len() < ROWS_MAX) {
            let file = &self.files[usize::from(file)];
            if file.plain {
                let op = DiskOp {
                    device: io.device,
                    id: command.id,
                    fd: file.file.file().as_raw_fd(),
                    kind: DiskKind::Extents { one },
                    offset,
                    len: first.len,
                };
                // SAFETY: the caller's promise; the file is open as long as the device is.
                if !unsafe { io.disk.push(op, spans) } {
                    return Some(command.failed(IoError::Busy));
                }
                let row =
                    Row { id: command.id, left: 1, covered: command.len, missing: 0, error: None };
                self.rows.push(row);
                return None;
            }
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { span.bytes_mut() };
        let mut list = ExtentWriter::new(bytes, command.len, if one { 1 } else { EXTENTS_MAX });
        for run in std::iter::once(first).chain(runs) {
            let plain = match run.source {
                Source::File(file, _) => self.files[usize::from(file)].plain,
                _ => false,
            };
            // The kernel is asked when the client goes on there.
            if plain && run.start > command.offset {
                break;
            }
            let zeros = run.source == Source::Zeros;
            let state = if zeros { ExtentState::HOLE_ZERO } else { ExtentState::DATA };
            if !list.push(run.len, state) {
                break;
            }
        }
        Some(match list.finish() {
            0 => command.failed(IoError::Invalid),
            _ => command.done(),
        })
    }
}

impl Device for FormatDevice {
    unsafe fn submit(&mut self, _now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.start(command, batch.spans_of(command), io) };
        }
    }

    fn on_ready(&mut self, _now: Instant, _place: u16, io: &mut DeviceIo<'_>) {
        let Self { decoder: Some(decoder), rows, run_by_run, .. } = self else { return };
        let goes_on = decoder.collect(|id, result| {
            io.completions.extend(ended(rows, run_by_run, id, result));
        });
        if goes_on {
            io.watch(DECODER, decoder.fd(), Interest::Read);
        }
    }

    fn on_disk(&mut self, _now: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        let result = match done.result {
            moved @ 0.. => Ok(moved as u32),
            errno => Err(IoError::from_errno(errno.saturating_neg())),
        };
        io.completions.extend(ended(&mut self.rows, &mut self.run_by_run, done.id, result));
    }
}

/// An operation or a job has ended; the answer of its command, if it was the last one.
fn ended(
    rows: &mut Vec<Row>,
    run_by_run: &mut bool,
    id: RequestId,
    result: Result<u32, IoError>,
) -> Option<Completion> {
    let answer = |result: Result<u32, IoError>| {
        let (transferred, status) = match result {
            Ok(transferred) => (transferred, Ok(())),
            Err(error) => (0, Err(error)),
        };
        Some(Completion { id, transferred, status, hole: false })
    };
    // Short: most reads are one operation and have no row.
    let Some(index) = rows.iter().position(|row| row.id == id) else {
        return answer(result);
    };
    let row = &mut rows[index];
    row.left -= 1;
    match result {
        Ok(moved) => row.missing = row.missing.saturating_sub(moved.into()),
        Err(error) => row.error = Some(error),
    }
    if row.left > 0 {
        return None;
    }
    let row = rows.swap_remove(index);
    answer(match row {
        Row { error: Some(error), .. } => Err(error),
        Row { missing: 0, covered, .. } => Ok(covered),
        _ => {
            *run_by_run = true;
            Err(IoError::Busy)
        }
    })
}

/// A place in the spans of a command.
struct Cursor<'a> {
    spans: &'a [Span],
    /// Bytes of the first span that are behind the place.
    skipped: usize,
}

impl Cursor<'_> {
    /// Passes over the next `len` bytes and gives their parts of spans to `each`.
    fn each(&mut self, len: u64, mut each: impl FnMut(Span)) {
        let mut left = len as usize;
        while let Some(span) = self.spans.first().filter(|_| left > 0) {
            let take = left.min(span.len() - self.skipped);
            if take > 0 {
                each(span.part(self.skipped, take));
            }
            (left, self.skipped) = (left - take, self.skipped + take);
            if self.skipped == span.len() {
                (self.spans, self.skipped) = (&self.spans[1..], 0);
            }
        }
    }
}
