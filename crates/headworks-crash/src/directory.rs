//! A mounted directory that records: requests of the kernel become calls of a [`Recording`].
//!
//! One thread a mount, one request at a time, all mounts of a test behind one lock: the record is a total order, and its step precedes
//! the answer. The kernel keeps names, attributes and pages, because no other process changes them, so mappings work; it sends each write as
//! the program makes it (no write-back cache), and stores to a mapping when they are synced or written back.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use headworks_fuse::{
    Access, Attributes, Channel, FileSystemSize, Mount, Operation, REQUEST_MAX, Reply, Request,
    Time, parse,
};

use crate::recording::Recording;
use crate::tree::{Errno, Kind, NewNode};

/// Name of the thread that answers.
const THREAD: &str = "crash-directory";
/// Directories that are open at once, of a mount.
const OPEN_MAX: usize = 65_536;
/// O_DSYNC, which O_SYNC includes.
const DSYNC: u32 = libc::O_DSYNC as u32;
const NO_REPLACE: u32 = libc::RENAME_NOREPLACE;
/// `whence` of lseek for data, and for a hole.
const SEEK_DATA: u32 = libc::SEEK_DATA as u32;
const SEEK_HOLE: u32 = libc::SEEK_HOLE as u32;

/// A recording that mounts share.
pub type SharedRecording = Arc<Mutex<Recording>>;

/// Locks a recording; a thread that panicked left it whole, because its calls do not panic halfway.
pub fn lock(recording: &SharedRecording) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What uses a mounted directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountUser {
    /// Programs that the process starts. The recording may read lines and write a file.
    Program,
    /// The process itself, or a file system that lies on it: a kill -9 ends the mount whatever the process waits for
    /// ([`Channel::serve_alone`]). The recording reads no lines and writes no file: the thread has none of their descriptors.
    Process,
}

/// A mounted directory that records. It is unmounted when this is dropped.
#[derive(Debug)]
pub struct Directory {
    _mount: Mount,
}

impl Directory {
    /// Mounts a disk of a recording on an empty directory, and starts the thread that answers.
    pub fn mount(
        access: Access,
        (path, name): (&Path, &str),
        (recording, disk): (&SharedRecording, usize),
        user: MountUser,
    ) -> io::Result<Self> {
        let (mount, channel) = access.mount(path, name)?;
        let answerer = Answerer::new(Arc::clone(recording), disk, AnswerOptions::default());
        match user {
            MountUser::Program => {
                let thread = std::thread::Builder::new().name(THREAD.into());
                thread.spawn(move || serve(&channel, answerer))?
            }
            MountUser::Process => {
                channel.serve_alone(THREAD, |channel| serve(channel, answerer))?
            }
        };
        Ok(Self { _mount: mount })
    }
}

/// Answers until the mount is gone.
fn serve(channel: &Channel, mut answerer: Answerer) {
    let mut buffer = vec![0; REQUEST_MAX];
    let mut reply = Reply::default();
    while let Ok(Some(length)) = channel.receive(&mut buffer) {
        let answered = match parse(&buffer[..length]) {
            Ok(request) => answerer.answer(&request, now(), &mut reply),
            Err(malformed) => malformed.unique.is_some_and(|unique| {
                reply.begin(unique).error(libc::EINVAL);
                true
            }),
        };
        if answered && channel.send(reply.bytes()).is_err() {
            return;
        }
    }
}

/// The time of the machine, for files.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

/// An entry as it was when the directory was opened.
struct Listed {
    node: u64,
    mode: u32,
    name: Box<[u8]>,
}

/// How the kernel works with a mount.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnswerOptions {
    /// It keeps no bytes of files.
    pub uncached: bool,
    /// More flags of `init`.
    pub init_flags: u32,
}

/// The file system of a mount: answers requests one by one.
pub(crate) struct Answerer {
    recording: SharedRecording,
    disk: usize,
    options: AnswerOptions,
    listings: HashMap<u64, Vec<Listed>>,
    next: u64,
}

impl Answerer {
    pub fn new(recording: SharedRecording, disk: usize, options: AnswerOptions) -> Self {
        Self { recording, disk, options, listings: HashMap::new(), next: 1 }
    }

    fn opened(&self, reply: &mut Reply) {
        match self.options.uncached {
            true => reply.open_uncached(0),
            false => reply.open(0),
        }
    }

    /// Answers a request; false if it has no answer.
    pub fn answer(&mut self, request: &Request<'_>, now: Time, reply: &mut Reply) -> bool {
        reply.begin(request.unique);
        match &request.operation {
            Operation::Forget { count } => {
                lock(&self.recording).forget(self.disk, request.node, *count);
                return false;
            }
            Operation::BatchForget(forgets) => {
                let mut recording = lock(&self.recording);
                forgets.iter().for_each(|(node, count)| recording.forget(self.disk, node, count));
                return false;
            }
            Operation::Interrupt { .. } => return false,
            _ => {}
        }
        if let Err(errno) = self.carry_out(request, now, reply) {
            reply.error(errno);
        }
        true
    }

    /// Carries a request out that has an answer, which `reply` has been begun for.
    pub fn carry_out(
        &mut self,
        request: &Request<'_>,
        now: Time,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (disk, node) = (self.disk, request.node);
        let shared = Arc::clone(&self.recording);
        let mut recording = lock(&shared);
        recording.take_lines();
        let new = |mode: u32, target: &[u8], device: u32| NewNode {
            mode,
            uid: request.uid,
            gid: request.gid,
            target: target.into(),
            device,
        };
        match request.operation {
            Operation::Init { readahead, .. } => {
                reply.init(readahead, self.options.init_flags);
            }
            Operation::Lookup { name } => {
                let found = recording.tree(disk).lookup(node, name)?;
                entry(&mut recording, disk, found, reply)?;
            }
            Operation::GetAttributes => reply.attributes(&attributes(&recording, disk, node)?),
            Operation::SetAttributes(change) => {
                recording.set_attributes(disk, node, &change, now)?;
                reply.attributes(&attributes(&recording, disk, node)?);
            }
            Operation::ReadLink => match &recording.tree(disk).node(node)?.kind {
                Kind::Symlink(target) => reply.data(target),
                _ => return Err(libc::EINVAL),
            },
            Operation::Symlink { name, target } => {
                let new = new(libc::S_IFLNK | 0o777, target, 0);
                let made = recording.make(disk, node, name, new, now)?;
                entry(&mut recording, disk, made, reply)?;
            }
            Operation::MakeNode { name, mode, device } => {
                let made = recording.make(disk, node, name, new(mode, b"", device), now)?;
                entry(&mut recording, disk, made, reply)?;
            }
            Operation::MakeDirectory { name, mode } => {
                let new = new(libc::S_IFDIR | mode & 0o7777, b"", 0);
                let made = recording.make(disk, node, name, new, now)?;
                entry(&mut recording, disk, made, reply)?;
            }
            Operation::Create { name, mode, .. } => {
                let new = new(libc::S_IFREG | mode & 0o7777, b"", 0);
                let made = recording.make(disk, node, name, new, now)?;
                entry(&mut recording, disk, made, reply)?;
                self.opened(reply);
            }
            Operation::Unlink { name } => recording.remove(disk, node, name, false, now)?,
            Operation::RemoveDirectory { name } => recording.remove(disk, node, name, true, now)?,
            Operation::Rename { name, new_parent, new_name, flags } => {
                if flags & !NO_REPLACE != 0 {
                    return Err(libc::EINVAL);
                }
                let keep = flags & NO_REPLACE != 0;
                recording.rename(disk, (node, name), (new_parent, new_name), keep, now)?;
            }
            Operation::Link { file, name } => {
                recording.link(disk, file, node, name, now)?;
                entry(&mut recording, disk, file, reply)?;
            }
            Operation::Open { .. } => {
                recording.tree(disk).node(node)?;
                self.opened(reply);
            }
            Operation::Read { offset, size } => {
                let content = recording.tree(disk).content(node)?;
                let left = content.size().saturating_sub(offset);
                let room = reply.room(left.min(u64::from(size)).min(REQUEST_MAX as u64) as usize);
                content.read(offset, room);
            }
            Operation::Write { offset, data, mapped, flags } => {
                let synchronous = flags & DSYNC != 0;
                recording.write(disk, node, offset, data, (mapped, synchronous), now)?;
                reply.written(data.len() as u32);
            }
            Operation::FileSystemStatus => {
                let [blocks, free, files, files_free] = recording.room(disk);
                reply.file_system(FileSystemSize { blocks, free, files, files_free });
            }
            Operation::Sync { data_only } => recording.sync(disk, node, data_only)?,
            Operation::SyncDirectory { .. } => recording.sync_directory(disk, node)?,
            Operation::SyncFileSystem => recording.sync_all(disk)?,
            Operation::OpenDirectory => {
                recording.tree(disk).entries(node)?;
                if self.listings.len() >= OPEN_MAX {
                    return Err(libc::EMFILE);
                }
                self.listings.insert(self.next, Vec::new());
                reply.open_directory(self.next);
                self.next += 1;
            }
            Operation::ReadDirectory { handle, offset, size } => {
                let listing = self.listings.get_mut(&handle).ok_or(libc::EBADF)?;
                if offset == 0 {
                    *listing = listed(&recording, disk, node)?;
                }
                let rest =
                    listing.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX));
                let mut entries = reply.entries(size);
                for (index, one) in rest {
                    if !entries.add(one.node, index as u64 + 1, one.mode, &one.name) {
                        break;
                    }
                }
            }
            Operation::ReleaseDirectory { handle } => drop(self.listings.remove(&handle)),
            Operation::Allocate { offset, length, mode } => {
                recording.allocate(disk, node, (offset, length), mode, now)?;
            }
            Operation::Seek { offset, whence } => {
                reply.offset(seek(&recording, disk, node, offset, whence)?)
            }
            Operation::Release | Operation::Flush | Operation::Access | Operation::Destroy => {}
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }
}

/// Answers with a node, which the kernel then uses.
fn entry(
    recording: &mut Recording,
    disk: usize,
    node: u64,
    reply: &mut Reply,
) -> Result<(), Errno> {
    reply.entry(&attributes(recording, disk, node)?);
    recording.use_node(disk, node);
    Ok(())
}

fn attributes(recording: &Recording, disk: usize, number: u64) -> Result<Attributes, Errno> {
    let node = recording.tree(disk).node(number)?;
    let (size, allocated, device) = match &node.kind {
        Kind::File(content) => (content.size(), content.allocated(), 0),
        Kind::Symlink(target) => (target.len() as u64, 0, 0),
        Kind::Directory(entries) => (entries.len() as u64, 0, 0),
        Kind::Special(device) => (0, 0, *device),
    };
    Ok(Attributes {
        node: number,
        size,
        blocks: allocated / 512,
        modified: node.modified,
        mode: node.mode,
        links: node.links,
        uid: node.uid,
        gid: node.gid,
        device,
    })
}

fn listed(recording: &Recording, disk: usize, directory: u64) -> Result<Vec<Listed>, Errno> {
    let tree = recording.tree(disk);
    let itself = |node, name: &[u8]| Listed { node, mode: libc::S_IFDIR, name: name.into() };
    let mut all = vec![itself(directory, b"."), itself(tree.node(directory)?.parent, b"..")];
    for (name, node) in tree.entries(directory)? {
        all.push(Listed { node: *node, mode: tree.node(*node)?.mode, name: name.clone() });
    }
    Ok(all)
}

fn seek(
    recording: &Recording,
    disk: usize,
    node: u64,
    offset: u64,
    whence: u32,
) -> Result<u64, Errno> {
    let content = recording.tree(disk).content(node)?;
    match whence {
        _ if offset >= content.size() => Err(libc::ENXIO),
        SEEK_DATA => content.next_data(offset).ok_or(libc::ENXIO),
        SEEK_HOLE => Ok(content.next_hole(offset)),
        _ => Err(libc::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Action;
    use crate::testing::recording;
    use crate::tree::ROOT;

    #[test]
    fn line_stands_behind_what_was_answered_and_before_the_next_request() {
        let (lines, printed) = std::sync::mpsc::channel::<Vec<u8>>();
        let mut recording = recording();
        recording.listen(move || printed.try_recv().ok());
        let recording = Arc::new(Mutex::new(recording));
        let mut answerer = Answerer::new(Arc::clone(&recording), 0, AnswerOptions::default());
        let mut reply = Reply::default();
        let mut ask = |operation: Operation<'_>| {
            let request = Request { unique: 1, node: ROOT, uid: 0, gid: 0, operation };
            assert!(answerer.answer(&request, Time::default(), &mut reply));
            assert_eq!(reply.bytes()[4..8], [0; 4], "no error");
        };
        for name in [b"a", b"b"] {
            ask(Operation::MakeDirectory { name, mode: 0o755 });
            ask(Operation::SyncDirectory { data_only: false });
            lines.send(name.to_vec()).unwrap();
        }
        ask(Operation::GetAttributes);
        let record = lock(&recording).close().unwrap();
        let steps = record.changes.iter().map(|change| match &change.action {
            Action::Make { .. } => "make",
            Action::SyncDirectory { .. } => "sync",
            Action::Line { .. } => "line",
            _ => "other",
        });
        assert_eq!(steps.collect::<Vec<_>>(), ["make", "sync", "line", "make", "sync", "line"]);
    }
}
