//! The mounted directory on a slow disk: one thread carries requests out and answers them when their time has come.
//!
//! A request changes the files at once; its answer is held while [`SlowDisk`] says so, and others go on meanwhile. A read that waits takes
//! its bytes when it ends. The thread sleeps until the next request or the disk's next event. Beyond the operations that may wait
//! at once no request is read until one has ended.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Clock};

use headworks_core::Instant;
use headworks_core::stats::Histogram;
use headworks_disks::DeviceModel;
use headworks_fuse::{
    ASYNC_DIRECT_IO, Access, Channel, Mount, Operation, REQUEST_MAX, Received, Reply, Request,
    parse,
};

use super::places::BLOCK;
use super::policy::{
    Durability, Ended, SlowDisk, SlowOptions, SlowWrite, WaitKind, Waits, WriteMode,
};
use super::queue::Commands;
use crate::directory::{AnswerOptions, Answerer, SharedRecording, lock, now};
use crate::recording::Recording;
use crate::tree::{Errno, Kind, Tree};

/// Before an event that is nearer than this the thread polls: to sleep and wake takes about as long.
const POLL_NS: u64 = 20_000;
const DSYNC: u32 = libc::O_DSYNC as u32;
const SYNC: u32 = libc::O_SYNC as u32;
const DIRECT: u32 = libc::O_DIRECT as u32;
/// Modes of fallocate that take blocks away.
const PUNCHES: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) as u32;

/// What a directory on a slow disk begins with.
pub struct SlowMount {
    /// Its files, which lie on the disk and are not in memory.
    pub tree: Tree,
    /// The timing of its disk.
    pub model: Box<dyn DeviceModel + Send>,
    /// Sizes of its file system.
    pub options: SlowOptions,
    /// Whether every read goes to the disk, as if there were no page cache.
    pub uncached: bool,
}

/// What happened on a slow disk.
#[derive(Clone, Debug, Default)]
pub struct SlowReport {
    /// What the disk did.
    pub commands: Commands,
    /// Transactions of the journal.
    pub commits: u64,
    /// How long programs waited by the model: for reads, writes, syncs.
    pub waits: [Waits; 3],
    /// Bytes that were in memory alone at the end.
    pub dirty: u64,
    /// How much later than the model's time operations were answered.
    pub late: Histogram,
    /// The sum of that in nanoseconds.
    pub late_ns: u64,
}

/// A mounted directory that takes the time of a modelled disk. It is unmounted when this is dropped.
pub struct SlowDirectory {
    _mount: Mount,
    state: Arc<Mutex<State>>,
}

/// What the thread works on, and a report reads.
struct State {
    disk: SlowDisk,
    late: Histogram,
    late_ns: u64,
}

impl SlowDirectory {
    /// Mounts on an empty directory, and starts the thread that answers.
    pub fn mount(access: Access, path: &Path, name: &str, slow: SlowMount) -> io::Result<Self> {
        let SlowMount { tree, model, options, uncached } = slow;
        let mut disk = SlowDisk::new(model, options);
        tree.walk(&mut |number, _| {
            if let Ok(content) = tree.content(number) {
                content.data().for_each(|(offset, _)| {
                    disk.put(number, offset / BLOCK..offset / BLOCK + 1);
                });
            }
        });
        let recording = Arc::new(Mutex::new(Recording::unrecorded(tree, options.size)));
        let (mount, channel) = access.mount(path, name)?;
        channel.set_nonblocking()?;
        let state = State { disk, late: Histogram::default(), late_ns: 0 };
        let state = Arc::new(Mutex::new(state));
        let answering = AnswerOptions { uncached, init_flags: ASYNC_DIRECT_IO };
        let server = Server {
            answerer: Answerer::new(Arc::clone(&recording), 0, answering),
            recording,
            held: HashMap::new(),
            start: Clock::now(),
        };
        let shared = Arc::clone(&state);
        channel.serve_alone("slow-directory", move |channel| server.serve(channel, &shared))?;
        Ok(Self { _mount: mount, state })
    }

    /// What happened so far.
    #[must_use]
    pub fn report(&self) -> SlowReport {
        let state = locked(&self.state);
        SlowReport {
            commands: state.disk.commands(),
            commits: state.disk.commits(),
            waits: [WaitKind::Read, WaitKind::Write, WaitKind::Sync]
                .map(|kind| state.disk.waits(kind)),
            dirty: state.disk.dirty(),
            late: state.late.clone(),
            late_ns: state.late_ns,
        }
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An answer that waits for the disk.
enum Held {
    /// It is known.
    Answer(Vec<u8>),
    /// Bytes of a file, as they are when the disk has read them.
    Read { node: u64, offset: u64, size: u32 },
}

/// The thread's side of a mount.
struct Server {
    answerer: Answerer,
    recording: SharedRecording,
    /// By the number of the request.
    held: HashMap<u64, Held>,
    start: Clock,
}

impl Server {
    fn now(&self) -> Instant {
        Instant(self.start.elapsed().as_nanos() as u64)
    }

    /// Answers until the mount is gone.
    fn serve(mut self, channel: &Channel, state: &Mutex<State>) {
        // SAFETY: the call changes nothing but how late timers of the calling thread may be.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
        let mut buffer = vec![0; REQUEST_MAX];
        let mut reply = Reply::default();
        let mut ended = Vec::new();
        loop {
            let mut shared = locked(state);
            shared.disk.on_timeout(self.now());
            ended.extend(shared.disk.drain_ended());
            for end in ended.drain(..) {
                if self.release(channel, end, &mut reply).is_err() {
                    return;
                }
                let late = self.now().since(end.at);
                shared.late.record(late);
                shared.late_ns += late;
            }
            let next = shared.disk.next_timeout();
            let has_room = shared.disk.has_room();
            drop(shared);
            let left = next.map(|at| at.since(self.now()));
            let left = left.map(|ns| if ns < POLL_NS { 0 } else { ns });
            let left = left.map(Duration::from_nanos);
            if !has_room {
                std::thread::sleep(left.unwrap_or_default());
                continue;
            }
            match channel.receive_within(&mut buffer, left) {
                Ok(Received::Request(length)) => {
                    let mut shared = locked(state);
                    let sent = match parse(&buffer[..length]) {
                        Ok(request) => self.take(&request, &mut shared.disk, &mut reply),
                        Err(malformed) => malformed.unique.is_some_and(|unique| {
                            reply.begin(unique).error(libc::EINVAL);
                            true
                        }),
                    };
                    if sent && channel.send(reply.bytes()).is_err() {
                        return;
                    }
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Gone) | Err(_) => return,
            }
        }
    }

    /// Sends an answer whose time has come.
    fn release(&mut self, channel: &Channel, end: Ended, reply: &mut Reply) -> io::Result<()> {
        match self.held.remove(&end.ticket) {
            Some(Held::Answer(bytes)) => channel.send(&bytes),
            Some(Held::Read { node, offset, size }) => {
                let operation = Operation::Read { offset, size };
                let request = Request { unique: end.ticket, node, uid: 0, gid: 0, operation };
                self.answerer.answer(&request, now(), reply);
                channel.send(reply.bytes())
            }
            None => Ok(()),
        }
    }

    /// Carries a request out; true if it is answered now, with `reply`.
    fn take(&mut self, request: &Request<'_>, disk: &mut SlowDisk, reply: &mut Reply) -> bool {
        let at = self.now();
        if let Operation::Read { offset, size } = request.operation
            && self.reads_disk(request, (offset, size), disk, at)
        {
            let held = Held::Read { node: request.node, offset, size };
            self.held.insert(request.unique, held);
            return false;
        }
        let before = Before::of(&lock(&self.recording), request);
        if !self.answers(request) {
            self.answerer.answer(request, now(), reply);
            self.forget_gone(request, disk, at);
            return false;
        }
        reply.begin(request.unique);
        if let Err(errno) = self.answerer.carry_out(request, now(), reply) {
            reply.error(errno);
            return true;
        }
        let waits = self.follow(request, &before, disk, at);
        if waits {
            self.held.insert(request.unique, Held::Answer(reply.bytes().to_vec()));
        }
        !waits
    }

    /// Whether a request has an answer.
    fn answers(&self, request: &Request<'_>) -> bool {
        !matches!(
            request.operation,
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. }
        )
    }

    fn reads_disk(
        &self,
        request: &Request<'_>,
        (offset, size): (u64, u32),
        disk: &mut SlowDisk,
        at: Instant,
    ) -> bool {
        let left = match lock(&self.recording).tree(0).content(request.node) {
            Ok(content) => content.size().saturating_sub(offset),
            Err(_) => 0,
        };
        let len = left.min(size.into());
        disk.on_read(at, request.unique, request.node, offset, len)
    }

    /// Tells the disk what was done. Returns whether the program waits.
    fn follow(
        &self,
        request: &Request<'_>,
        before: &Before,
        disk: &mut SlowDisk,
        at: Instant,
    ) -> bool {
        let (ticket, node) = (request.unique, request.node);
        let recording = lock(&self.recording);
        let tree = recording.tree(0);
        match request.operation {
            Operation::Write { offset, data, mapped, flags } => {
                let write = SlowWrite {
                    file: node,
                    offset,
                    len: data.len() as u64,
                    grown: tree.content(node).is_ok_and(|content| content.size() > before.size),
                    mode: write_mode(mapped, flags),
                };
                return disk.on_write(at, ticket, write);
            }
            Operation::SyncDirectory { .. } => return disk.on_sync_directory(at, ticket),
            Operation::Sync { data_only } => {
                let durability = if data_only { Durability::Data } else { Durability::All };
                disk.on_sync(at, ticket, node, durability);
                return true;
            }
            Operation::SyncFileSystem => {
                disk.on_sync_all(at, ticket);
                return true;
            }
            Operation::SetAttributes(change) => match change.size {
                Some(size) if size != before.size => disk.on_truncate(at, node, size),
                _ => disk.on_change(at, node, Durability::All),
            },
            Operation::Symlink { name, .. }
            | Operation::MakeNode { name, .. }
            | Operation::MakeDirectory { name, .. }
            | Operation::Create { name, .. } => {
                disk.on_change(at, node, Durability::Data);
                if let Ok(made) = tree.lookup(node, name) {
                    disk.on_change(at, made, Durability::Data);
                }
            }
            Operation::Link { file, .. } => {
                disk.on_change(at, node, Durability::Data);
                disk.on_change(at, file, Durability::All);
            }
            Operation::Unlink { .. } | Operation::RemoveDirectory { .. } => {
                disk.on_change(at, node, Durability::Data);
                before.touched.iter().for_each(|&one| lose_name(tree, disk, at, one));
            }
            Operation::Rename { new_parent, .. } => {
                disk.on_change(at, node, Durability::Data);
                disk.on_change(at, new_parent, Durability::Data);
                before.touched.iter().for_each(|&one| lose_name(tree, disk, at, one));
            }
            Operation::Allocate { offset, length, mode } if mode & PUNCHES != 0 => {
                let (first, end) = (offset.div_ceil(BLOCK), offset.saturating_add(length) / BLOCK);
                disk.on_punch(at, node, first..end.max(first));
            }
            Operation::Allocate { .. } => disk.on_change(at, node, Durability::Data),
            _ => {}
        }
        false
    }

    /// Tells the disk of files that the kernel gave back and that have no name.
    fn forget_gone(&self, request: &Request<'_>, disk: &mut SlowDisk, at: Instant) {
        let recording = lock(&self.recording);
        let mut gone = |node: u64| {
            if recording.tree(0).node(node).is_err() {
                disk.on_gone(at, node);
            }
        };
        match &request.operation {
            Operation::Forget { .. } => gone(request.node),
            Operation::BatchForget(forgets) => forgets.iter().for_each(|(node, _)| gone(node)),
            _ => {}
        }
    }
}

/// A file that lost a name, or got another one.
fn lose_name(tree: &Tree, disk: &mut SlowDisk, at: Instant, node: u64) {
    match tree.node(node) {
        Ok(_) => disk.on_change(at, node, Durability::All),
        Err(_) => disk.on_gone(at, node),
    }
}

/// What a request finds before it is carried out.
#[derive(Default)]
struct Before {
    /// The length of its file.
    size: u64,
    /// What its names mean.
    touched: Vec<u64>,
}

impl Before {
    fn of(recording: &Recording, request: &Request<'_>) -> Self {
        let tree = recording.tree(0);
        let size = match tree.node(request.node).map(|node| &node.kind) {
            Ok(Kind::File(content)) => content.size(),
            _ => 0,
        };
        let found = |names: &[(u64, &[u8])]| -> Vec<u64> {
            let found = names.iter().map(|&(parent, name)| tree.lookup(parent, name));
            found.filter_map(Result::<u64, Errno>::ok).collect()
        };
        let touched = match request.operation {
            Operation::Unlink { name } | Operation::RemoveDirectory { name } => {
                found(&[(request.node, name)])
            }
            Operation::Rename { name, new_parent, new_name, .. } => {
                found(&[(request.node, name), (new_parent, new_name)])
            }
            _ => Vec::new(),
        };
        Self { size, touched }
    }
}

/// How a write becomes durable, by the flags of its open file. What comes from the page cache is no write of a program.
fn write_mode(mapped: bool, flags: u32) -> WriteMode {
    match flags {
        _ if mapped => WriteMode::Buffered,
        flags if flags & SYNC == SYNC => WriteMode::Synchronous(Durability::All),
        flags if flags & DSYNC != 0 => WriteMode::Synchronous(Durability::Data),
        flags if flags & DIRECT != 0 => WriteMode::Direct,
        _ => WriteMode::Buffered,
    }
}
