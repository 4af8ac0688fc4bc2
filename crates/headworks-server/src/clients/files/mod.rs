//! A file of FUSE: a client of a shard whose requests come from the kernel, by the device of the file's mount.
//!
//! ```text
//!   device --read--> READ, WRITE, FSYNC, FALLOCATE, LSEEK (`whole`: admission, bio) --answer--> writev
//!              `---> everything else is answered at once
//! ```
//!
//! A file is a mount of its own (`headworks_fuse::MountedFiles`), so its device is read by the shard of its export, as a socket is, and no
//! other thread takes part in a request. What mounts and unmounts is the thread of its directory (`directory`).
//!
//! The kernel keeps no bytes of the file (FOPEN_DIRECT_IO): each read and write of a program comes here, so programs and clients of the same
//! export see each other's writes at once. Pages of a mapping are the kernel's: they are read when they are first touched, and written by
//! msync, munmap and the end of the program. Attributes are asked for anew each time, since the export may grow.
//!
//! | file | export |
//! |---|---|
//! | pread, pwrite, O_DIRECT or not, at any byte | read, write; FUA with O_SYNC and O_DSYNC |
//! | fsync, fdatasync | flush; close does nothing, as of a block device |
//! | fallocate: punch a hole / zero a range | zeroes, which may free the space / may not |
//! | lseek to data or to a hole | block status |
//! | truncate, a write behind the end | EPERM to a smaller size, EFBIG to a larger one; ENOSPC |
//!
//! A write has its block of the pool from the time when it is read from the device. One for which there is none stays in memory of this
//! client, and nothing more is read before it has one. An INTERRUPT is ignored: the request goes on, and the kernel wants no answer.
//!
//! Invariants: each request that was read is answered once, or its device is closed; `held` has at most one write; a long request is
//! answered when its last piece is.

pub mod directory;
pub mod hand_over;
mod long;
pub mod mounts;
pub mod news;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{SystemTime, UNIX_EPOCH};

use headworks_core::{EXTENTS_BYTES, Instant, IoError, Op, ReplyStage, Status};

use crate::clients::nbd::connection::{ConnectionLimits, ExportBinding, Shares};
use crate::clients::whole::{Next, NoBlock, Source, WholeClient, take_block};
use crate::exports::export_range::ExportRange;
use crate::observe::latency::errors::ErrorReply;
use hand_over::AgreedTerms;
use headworks::driver::Span;
use headworks_front::WaitsFor;
use headworks_front::intake::Intake;
use headworks_front::window::{CompletedRequest, InFlight};
use headworks_fuse::{
    ASYNC_DIRECT_IO, Attributes, Channel, FileSystemSize, InitTerms, MAPS_UNCACHED, Operation,
    Received, Reply, Time, head_of_data, parse,
};
use headworks_house::{Buffer, Pool};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};
use headworks_nbd::{ExportInfo, TransmissionFlags};
use long::{Advance, LongRequests};
use news::DirectoryNews;

/// Bytes of the largest write: with its head it fits the receive buffer of the shard.
pub(crate) const WRITE_MAX: u32 = 128 << 10;
/// Asynchronous requests that the kernel sends at once; the window bounds them all.
const BACKGROUND: u16 = 256;
/// Requests that are answered at once, of a client in a turn.
const OTHERS_MAX: usize = 64;
/// Kernel and C library have the same value everywhere that this runs.
const WRITE_THROUGH: u32 = libc::O_DSYNC as u32;

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The directory of its listener, as the options name it.
    pub directory: PathBuf,
    /// Its name in the directory.
    pub name: String,
}

impl FilePlace {
    /// The path, as the log shows it.
    #[must_use]
    pub fn shown(&self) -> String {
        self.directory.join(&self.name).to_string_lossy().into_owned()
    }
}

/// A file of FUSE, from its mount to its last buffer.
pub type FuseClient = WholeClient<FuseFile>;

/// The device of a file, and what the kernel is told of it.
pub struct FuseFile {
    /// None when it is closed.
    channel: Option<Channel>,
    place: FilePlace,
    /// By which the thread of its directory knows it; no other file of the process has it.
    number: u64,
    /// What was agreed on with the kernel; none before it has asked.
    terms: Option<AgreedTerms>,
    size: u64,
    /// Smallest block of the export in bytes.
    block: u64,
    is_read_only: bool,
    modified: Time,
    /// Writes that are not submitted, with their data, the newest last.
    written: Vec<(u64, Buffer)>,
    /// The write for which there was no block: its number and its data.
    held: (u64, Vec<u8>),
    long: LongRequests,
    /// How many times it is open.
    opens: u64,
    reply: Reply,
    complaint: Option<String>,
    /// The mount is gone, and no removal of the export was why.
    is_gone: bool,
    /// The thread of its directory.
    news: Sender<DirectoryNews>,
}

impl FuseClient {
    /// The file whose mount has this device, which is made non-blocking.
    ///
    /// # Errors
    /// The device is closed.
    pub fn new(
        device: OwnedFd,
        (place, listener): (FilePlace, Arc<str>),
        limits: ConnectionLimits,
        news: Sender<DirectoryNews>,
    ) -> io::Result<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let names = (place.shown(), listener);
        let channel = Channel::from(device);
        channel.set_nonblocking()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified = Time { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() };
        let file = FuseFile {
            channel: Some(channel),
            place,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            terms: None,
            size: 0,
            block: 1,
            is_read_only: true,
            modified,
            written: Vec::with_capacity(16),
            held: (0, Vec::new()),
            long: LongRequests::default(),
            opens: 0,
            reply: Reply::default(),
            complaint: None,
            is_gone: false,
            news,
        };
        Ok(Self::of(file, names, limits))
    }

    /// Binds it to its export: from now on requests are taken.
    pub fn begin(&mut self, binding: ExportBinding, info: &ExportInfo) {
        let file = &mut self.source;
        file.size = info.size;
        file.block = info.block_sizes.min.max(1).into();
        file.is_read_only = info.flags.contains(TransmissionFlags::READ_ONLY);
        self.bind(binding, info);
    }

    /// By which the thread of its directory knows it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.source.number
    }

    /// The device, which is ready when the kernel has a request; none when it is closed.
    #[must_use]
    pub fn socket(&self) -> Option<RawFd> {
        self.source.channel.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Memory of a bio in flight.
    #[inline]
    #[must_use]
    pub fn buffer(&mut self, sequence: u64) -> Option<Span> {
        self.session.buffer(sequence)
    }

    /// Takes a reply of the shard, or the return of a buffer, and answers; returns the request if this completed it.
    pub fn reply(
        &mut self,
        now: Instant,
        sequence: u64,
        (status, _, stage): (Status, bool, ReplyStage),
        pool: &mut Pool,
    ) -> Option<CompletedRequest> {
        if stage == ReplyStage::Early {
            let in_flight = self.session.window_mut().get(sequence)?;
            in_flight.answered = true;
            let (counted, cookie) = (in_flight.completed(now), in_flight.cookie);
            self.answer(now, &counted, (cookie, None), status.and(Err(IoError::TimedOut)));
            return Some(counted);
        }
        let in_flight = self.session.take(sequence)?;
        let counted = in_flight.completed(now);
        let InFlight { cookie, buffer, answered, .. } = in_flight;
        if !answered {
            self.answer(now, &counted, (cookie, buffer.as_ref()), status);
        }
        if let Some(block) = buffer {
            self.intake.discharge(block.len());
            pool.put(block);
        }
        (!answered).then_some(counted)
    }

    fn answer(
        &mut self,
        now: Instant,
        request: &CompletedRequest,
        (cookie, block): (u64, Option<&Buffer>),
        status: Status,
    ) {
        let CompletedRequest { op, offset, len, .. } = *request;
        if let Err(error) = status {
            let connection = self.session.id();
            self.session.count_error(ErrorReply { at: now, op, offset, connection, error });
        }
        let part = |len: usize| match block {
            // SAFETY: the block is ours alone again, was taken for as much, and a read or a device has filled it.
            Some(block) => unsafe { std::slice::from_raw_parts(block.base(), len) },
            None => &[][..],
        };
        let file = &mut self.source;
        match (op, status) {
            (Op::WriteZeroes, _) => {
                if let Some(done) = file.long.on_zeroed(cookie, status) {
                    file.answer_status(cookie, done);
                }
            }
            (_, Err(error)) => {
                file.long.forget(cookie);
                file.fail(cookie, error.errno());
            }
            (Op::Read, Ok(())) => file.answer_data(cookie, part(len as usize)),
            (Op::Write, Ok(())) => file.answer_with(cookie, |reply| reply.written(len)),
            (Op::BlockStatus, Ok(())) => {
                let list = part(EXTENTS_BYTES as usize);
                match file.long.on_extents(cookie, list, len) {
                    Advance::Found(at) => file.answer_with(cookie, |reply| reply.offset(at)),
                    Advance::Nothing => file.fail(cookie, libc::ENXIO),
                    Advance::GoesOn => {}
                }
            }
            (_, Ok(())) => file.answer_with(cookie, |_| ()),
        }
    }

    /// Whether no program has it open.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.source.opens == 0
    }

    /// Whether it ended because its user has unmounted it.
    #[must_use]
    pub fn was_unmounted(&self) -> bool {
        self.source.is_gone
    }

    /// What went wrong with it, once, as a sentence for the log; it goes on.
    pub fn take_complaint(&mut self) -> Option<String> {
        self.source.complaint.take()
    }

    /// The volume of the export has another size.
    pub fn resize(&mut self, volume: u64) {
        let range = self.session.last_binding().map_or_else(ExportRange::default, |it| it.range);
        self.source.size = range.size(volume);
    }

    // How it ends.

    /// Reads nothing more. What was read is still answered.
    pub fn leave(&mut self, _: &mut Pool) {
        self.session.leave();
    }

    /// It is given up: what waits is dropped, and the kernel ends all requests. Memory in use stays until the shard returns it.
    pub fn close(&mut self, pool: &mut Pool) {
        self.leave(pool);
        self.intake.waiting_mut().drain().for_each(drop);
        for (_, block) in self.source.written.drain(..) {
            self.intake.discharge(block.len());
            pool.put(block);
        }
        self.source.held = (0, Vec::new());
        self.source.long = LongRequests::default();
        self.source.channel = None;
        self.session.die();
    }

    /// Whether nothing of it is left.
    #[inline]
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.session.reads() && self.in_flight() == 0 && !self.has_left_over()
    }

    /// Whether nothing of it is in the shard, or waits to be: pieces of long requests that were not given can be given by another process.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.in_flight() == 0 && !self.has_waiting()
    }

    /// It has left its slot: it ends on the thread of its directory, which unmounts it.
    pub fn retire(self: Box<Self>) {
        let news = self.source.news.clone();
        // Without that thread it ends here: its device is closed.
        let _ = news.send(DirectoryNews::Ended(self));
    }
}

impl Source for FuseFile {
    fn next(
        &mut self,
        _: usize,
        looks: bool,
        intake: &mut Intake,
        shares: &mut Shares<'_>,
    ) -> Next {
        if let Some(piece) = self.long.next() {
            return Next::Request(piece);
        }
        if !looks {
            return Next::Nothing;
        }
        if !self.held.1.is_empty() {
            // An answer, its own at the latest, makes this be asked again.
            return Next::Waits(WaitsFor::Window);
        }
        for _ in 0..OTHERS_MAX {
            let Some(channel) = &self.channel else { return Next::Gone };
            let length = match channel.try_receive(shares.scratch) {
                Ok(Received::Request(length)) => length,
                Ok(Received::Nothing) => return Next::Nothing,
                Ok(Received::Gone) => {
                    self.is_gone = true;
                    return Next::Gone;
                }
                Err(error) => {
                    self.complaint = Some(format!("its device cannot be read: {error}"));
                    return Next::Gone;
                }
            };
            let next = self.take(length, intake, shares);
            if let Some(next) = next {
                return next;
            }
        }
        Next::Others
    }

    fn has_taken(&self) -> bool {
        self.long.has_next()
    }

    fn kept(&self) -> usize {
        self.written.iter().map(|(_, block)| block.len()).sum::<usize>() + self.held.1.len()
    }

    fn block(
        &mut self,
        request: &Request,
        intake: &mut Intake,
        shares: &mut Shares<'_>,
    ) -> Result<Option<Buffer>, NoBlock> {
        let op = request.op();
        if op == Op::Write {
            let is_it = |(cookie, _): &(u64, Buffer)| *cookie == request.cookie;
            if let Some(place) = self.written.iter().rposition(is_it) {
                return Ok(Some(self.written.swap_remove(place).1));
            }
            let block = take_block(self.held.1.len(), intake, shares)?;
            put(&self.held.1, &block);
            self.held.1.clear();
            return Ok(Some(block));
        }
        match op.buffer_len(request.len) as usize {
            0 => Ok(None),
            len => {
                let block = take_block(len, intake, shares)?;
                if op == Op::BlockStatus {
                    // Cleared, so that nothing of an earlier use is taken for extents.
                    // SAFETY: the block is ours alone, and as long as a list.
                    unsafe { block.base().write_bytes(0, len) };
                }
                Ok(Some(block))
            }
        }
    }

    fn refuse(&mut self, request: &Request, error: IoError) {
        self.fail(request.cookie, error.errno());
    }
}

/// Copies data to the beginning of a block.
fn put(data: &[u8], block: &Buffer) {
    assert!(data.len() <= block.len(), "the block was taken for them");
    // SAFETY: the block is ours alone, and has room.
    unsafe { block.base().copy_from_nonoverlapping(data.as_ptr(), data.len()) };
}

impl FuseFile {
    /// Takes the request of this length in the receive buffer; none if it is answered.
    fn take(
        &mut self,
        length: usize,
        intake: &mut Intake,
        shares: &mut Shares<'_>,
    ) -> Option<Next> {
        // It goes back at once: what is needed of the shares beside it is another part of them.
        let scratch = std::mem::take(&mut shares.scratch);
        let next = self.take_parsed(&scratch[..length], intake, shares);
        shares.scratch = scratch;
        next
    }

    fn take_parsed(
        &mut self,
        bytes: &[u8],
        intake: &mut Intake,
        shares: &mut Shares<'_>,
    ) -> Option<Next> {
        let request = match parse(bytes) {
            Ok(request) => request,
            Err(malformed) => {
                if let Some(unique) = malformed.unique {
                    self.fail(unique, libc::EINVAL);
                }
                return None;
            }
        };
        let cookie = request.unique;
        let bio = |command, offset, len, flags| {
            Some(Next::Request(Request { cookie, offset, len, command, flags }))
        };
        match request.operation {
            Operation::Read { offset, size } => {
                let len = self.within(offset, size.into());
                if len == 0 || !self.is_whole(offset, len) {
                    self.answer_edge(cookie, len == 0);
                    return None;
                }
                bio(Command::Read, offset, len as u32, CommandFlags::NONE)
            }
            Operation::Write { offset, data, mapped, flags } => {
                let len = self.within(offset, data.len() as u64);
                if self.is_read_only || len == 0 || !self.is_whole(offset, len) {
                    self.refuse_write(cookie, data.len(), len);
                    return None;
                }
                self.keep((cookie, &data[..len as usize]), intake, shares);
                let durable = !mapped && flags & WRITE_THROUGH != 0;
                let flags = if durable { CommandFlags::FUA } else { CommandFlags::NONE };
                bio(Command::Write, offset, len as u32, flags)
            }
            Operation::Sync { .. } => bio(Command::Flush, 0, 0, CommandFlags::NONE),
            Operation::Allocate { offset, length, mode } => {
                self.allocate(cookie, (offset, length), mode as i32);
                self.long.next().map(Next::Request)
            }
            Operation::Seek { offset, whence } => {
                if offset >= self.size {
                    self.fail(cookie, libc::ENXIO);
                    return None;
                }
                self.long.seek(cookie, (offset, self.size), whence == libc::SEEK_HOLE as u32);
                self.long.next().map(Next::Request)
            }
            other => {
                self.answer_other(cookie, &other);
                None
            }
        }
    }

    /// Bytes of a range that are within the file.
    fn within(&self, offset: u64, len: u64) -> u64 {
        len.min(self.size.saturating_sub(offset))
    }

    /// Whether the export takes a range: it consists of its smallest blocks.
    fn is_whole(&self, offset: u64, len: u64) -> bool {
        (offset | len).is_multiple_of(self.block)
    }

    /// Answers a read at the end of the file, or one that the export does not take.
    fn answer_edge(&mut self, cookie: u64, is_end: bool) {
        match is_end {
            true => self.answer_data(cookie, &[]),
            false => self.fail(cookie, libc::EINVAL),
        }
    }

    fn refuse_write(&mut self, cookie: u64, asked: usize, within: u64) {
        match (self.is_read_only, asked, within) {
            (true, ..) => self.fail(cookie, libc::EROFS),
            (_, 0, _) => self.answer_with(cookie, |reply| reply.written(0)),
            (_, _, 0) => self.fail(cookie, libc::ENOSPC),
            _ => self.fail(cookie, libc::EINVAL),
        }
    }

    /// Keeps the data of a write until its bio: in a block, or here if there is none.
    fn keep(&mut self, (cookie, data): (u64, &[u8]), intake: &mut Intake, shares: &mut Shares<'_>) {
        match take_block(data.len(), intake, shares) {
            Ok(block) => {
                put(data, &block);
                self.written.push((cookie, block));
            }
            Err(NoBlock) => {
                self.held.0 = cookie;
                self.held.1.extend_from_slice(data);
            }
        }
    }

    fn allocate(&mut self, cookie: u64, (offset, length): (u64, u64), mode: i32) {
        let flags = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE => CommandFlags::NONE,
            libc::FALLOC_FL_ZERO_RANGE => CommandFlags::NO_HOLE,
            _ => return self.fail(cookie, libc::EOPNOTSUPP),
        };
        let grows = mode & libc::FALLOC_FL_KEEP_SIZE == 0
            && offset.checked_add(length).is_none_or(|end| end > self.size);
        let len = self.within(offset, length);
        match (self.is_read_only, grows, len, self.is_whole(offset, len)) {
            (true, ..) => self.fail(cookie, libc::EROFS),
            (_, true, ..) => self.fail(cookie, libc::EFBIG),
            (_, _, 0, _) => self.answer_with(cookie, |_| ()),
            (.., false) => self.fail(cookie, libc::EINVAL),
            _ => self.long.zero(cookie, (offset, offset + len), flags),
        }
    }

    /// Answers what needs nothing of the export.
    fn answer_other(&mut self, cookie: u64, operation: &Operation<'_>) {
        let attributes = self.attributes();
        match operation {
            Operation::Init { readahead, flags, minor, .. } => {
                let flags = u64::from(ASYNC_DIRECT_IO) | flags & MAPS_UNCACHED;
                self.terms = Some(AgreedTerms { minor: *minor, flags, write_max: WRITE_MAX });
                let terms = InitTerms {
                    readahead: *readahead,
                    flags,
                    write_max: WRITE_MAX,
                    background: BACKGROUND,
                };
                self.answer_with(cookie, |reply| reply.init_with(&terms));
            }
            Operation::GetAttributes => {
                self.answer_with(cookie, |reply| reply.attributes_now(&attributes));
            }
            Operation::SetAttributes(change) => {
                let wrong = match change.size {
                    Some(size) if size > self.size => Some(libc::EFBIG),
                    Some(size) if size < self.size => Some(libc::EPERM),
                    _ if change.mode.or(change.uid).or(change.gid).is_some() => Some(libc::EPERM),
                    _ => None,
                };
                match wrong {
                    Some(errno) => self.fail(cookie, errno),
                    None => self.answer_with(cookie, |reply| reply.attributes_now(&attributes)),
                }
            }
            Operation::Open { flags } => {
                let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
                if self.is_read_only && writes {
                    return self.fail(cookie, libc::EROFS);
                }
                self.opens += 1;
                self.answer_with(cookie, |reply| reply.open_parallel(0));
            }
            Operation::FileSystemStatus => {
                let size = FileSystemSize {
                    blocks: self.size.div_ceil(4096),
                    free: 0,
                    files: 1,
                    files_free: 0,
                };
                self.answer_with(cookie, |reply| reply.file_system(size));
            }
            Operation::Release => {
                self.opens = self.opens.saturating_sub(1);
                self.answer_with(cookie, |_| ());
            }
            Operation::Flush | Operation::Destroy => self.answer_with(cookie, |_| ()),
            // These have no answer.
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. } => {}
            // The kernel asks no more, and does without.
            _ => self.fail(cookie, libc::ENOSYS),
        }
    }

    fn attributes(&self) -> Attributes {
        // SAFETY: these calls have no preconditions.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let mode = if self.is_read_only { 0o444 } else { 0o600 };
        Attributes {
            node: headworks_fuse::ROOT,
            size: self.size,
            blocks: self.size.div_ceil(512),
            modified: self.modified,
            mode: libc::S_IFREG | mode,
            links: 1,
            uid,
            gid,
            device: 0,
        }
    }

    fn answer_status(&mut self, cookie: u64, status: Status) {
        match status {
            Ok(()) => self.answer_with(cookie, |_| ()),
            Err(error) => self.fail(cookie, error.errno()),
        }
    }

    fn fail(&mut self, cookie: u64, errno: i32) {
        self.answer_with(cookie, |reply| reply.error(errno));
    }

    fn answer_with(&mut self, cookie: u64, fill: impl FnOnce(&mut Reply)) {
        let reply = self.reply.begin(cookie);
        fill(reply);
        if let Some(channel) = &self.channel {
            let sent = channel.send(self.reply.bytes());
            self.note(sent);
        }
    }

    fn answer_data(&mut self, cookie: u64, data: &[u8]) {
        if let Some(channel) = &self.channel {
            let sent = channel.send_parts([&head_of_data(cookie, data.len()), data]);
            self.note(sent);
        }
    }

    fn note(&mut self, sent: io::Result<()>) {
        if let Err(error) = sent {
            self.complaint = Some(format!("the kernel takes no answer: {error}"));
        }
    }
}

#[cfg(test)]
pub mod kernel;
#[cfg(test)]
mod tests;
