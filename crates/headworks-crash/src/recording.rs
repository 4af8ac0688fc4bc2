//! Directories whose changes are recorded: a file system in memory for each disk, and one record for all.
//!
//! A call changes the tree and then the record, and returns: the program is answered afterwards. Limits are those of a disk:
//! ENOSPC beyond `size`, and beyond the record's limit, which `overflowed` tells.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use headworks_fuse::{AttributeChange, Time};

use crate::content::PAGE;
use crate::file::RecordWriter;
use crate::record::{Action, Change, Disk, Record};
use crate::tree::{Errno, NODES_MAX, NewNode, ROOT, Tree};

/// Bytes of a line that are kept.
const LINE_MAX: usize = 64 << 10;
/// Bytes of a write of an image that are one step at most.
const IMAGE_PIECE: usize = 1 << 20;
/// Flags of fallocate: the length stays, a hole, zeros.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Limits of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the files of a disk.
    pub size: u64,
    /// Bytes of the record in memory.
    pub record: u64,
}

impl Default for Limits {
    /// 1 GiB each.
    fn default() -> Self {
        Self { size: 1 << 30, record: 1 << 30 }
    }
}

/// A disk while its program runs.
#[derive(Debug)]
struct LiveDisk {
    tree: Tree,
    /// How often the kernel was given each node, and has not given it back.
    uses: HashMap<u64, u64>,
}

/// Where lines come from: called until it has none for now.
struct LineSource(Box<dyn FnMut() -> Option<Vec<u8>> + Send>);

impl std::fmt::Debug for LineSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LineSource")
    }
}

/// What happened to the image of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageChange {
    /// Bytes were written; `fua`: they were durable before the answer.
    Write {
        /// Where they begin.
        offset: u64,
        /// The bytes.
        data: Vec<u8>,
        /// Whether they were written with FUA.
        fua: bool,
    },
    /// What was acknowledged before is durable.
    Flush,
}

/// Directories whose changes are recorded.
#[derive(Debug)]
pub struct Recording {
    disks: Vec<LiveDisk>,
    record: Record,
    limits: Limits,
    weight: u64,
    /// Whether steps are kept at all.
    records: bool,
    overflowed: bool,
    closed: bool,
    writer: Option<RecordWriter>,
    failed: Option<io::Error>,
    lines: Option<LineSource>,
}

type Done<T = ()> = Result<T, Errno>;

impl Recording {
    /// Begins with the trees of a record; they are durable.
    #[must_use]
    pub fn new(record: Record, limits: Limits) -> Self {
        let live = |tree: &Tree| LiveDisk { tree: tree.clone(), uses: HashMap::new() };
        let disks = record.base.iter().map(live).collect();
        Self {
            disks,
            record,
            limits,
            weight: 0,
            records: true,
            overflowed: false,
            closed: false,
            writer: None,
            failed: None,
            lines: None,
        }
    }

    /// A file system of at most `size` bytes that begins with a tree and records nothing.
    #[must_use]
    pub fn unrecorded(tree: Tree, size: u64) -> Self {
        let disk = Disk { name: "dir".into(), keeps_all: true };
        let limits = Limits { size, ..Limits::default() };
        let recording = Self::new(Record::new(vec![disk], vec![tree]), limits);
        Self { records: false, ..recording }
    }

    /// Makes all that there is durable, and forgets how it came to be. Steps from now on also go to the writer that `open` makes.
    pub fn checkpoint(
        &mut self,
        open: impl FnOnce(&Record) -> io::Result<Option<RecordWriter>>,
    ) -> io::Result<()> {
        self.record.base = self.disks.iter().map(|disk| disk.tree.clone()).collect();
        self.record.base.iter_mut().for_each(Tree::forget_unnamed);
        self.record.changes.clear();
        self.weight = 0;
        self.writer = open(&self.record)?;
        Ok(())
    }

    /// Takes lines of the program from `next`, which has none for now, and never waits. They are taken before each request of a mounted
    /// directory, so a line stands before what the program did after it.
    pub fn listen(&mut self, next: impl FnMut() -> Option<Vec<u8>> + Send + 'static) {
        self.lines = Some(LineSource(Box::new(next)));
    }

    /// Records the lines that the program has printed by now.
    pub fn take_lines(&mut self) {
        if let Some(mut lines) = self.lines.take() {
            while let Some(line) = (lines.0)() {
                self.line(&line);
            }
            self.lines = Some(lines);
        }
    }

    /// Records what happens to an image, the file `node` of a disk, before the program is answered; lines that it printed until then stand
    /// before it.
    pub fn change_image(&mut self, disk: usize, node: u64, change: ImageChange) -> Done {
        self.take_lines();
        match change {
            ImageChange::Flush => self.push(disk, Action::Sync { node, data_only: true }),
            ImageChange::Write { offset, data, fua } => {
                self.write_image(disk, node, offset, &data, fua)
            }
        }
    }

    /// Writes bytes of an image, in pieces that an entry of a record takes.
    fn write_image(&mut self, disk: usize, node: u64, offset: u64, data: &[u8], fua: bool) -> Done {
        let mut at = offset;
        for piece in data.chunks(IMAGE_PIECE) {
            self.write(disk, node, at, piece, (false, false), Time::default())?;
            at += piece.len() as u64;
        }
        if fua {
            let length = data.len() as u64;
            self.push(disk, Action::SyncRange { node, offset, length })?;
        }
        Ok(())
    }

    /// Records a line that the program printed.
    pub fn line(&mut self, text: &[u8]) {
        let text = text[..text.len().min(LINE_MAX)].into();
        let _ = self.push(0, Action::Line { text });
    }

    /// Ends the recording: later changes fail. Returns the record.
    pub fn close(&mut self) -> io::Result<Record> {
        self.closed = true;
        if let Some(mut writer) = self.writer.take() {
            writer.flush()?;
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None => {
                let empty = Record::new(self.record.disks.clone(), self.record.base.clone());
                Ok(std::mem::replace(&mut self.record, empty))
            }
        }
    }

    /// Whether the record reached its limit, so that a change was refused.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Number of steps so far.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.record.changes.len()
    }

    /// The tree of a disk.
    #[must_use]
    pub fn tree(&self, disk: usize) -> &Tree {
        &self.disks[disk].tree
    }

    /// Blocks of 4 KiB and nodes that a disk has, and those that are free.
    pub(crate) fn room(&self, disk: usize) -> [u64; 4] {
        let tree = &self.disks[disk].tree;
        let free = self.limits.size.saturating_sub(tree.used());
        let nodes = NODES_MAX.saturating_sub(tree.len());
        [self.limits.size / PAGE, free / PAGE, NODES_MAX as u64, nodes as u64]
    }

    /// Counts a use of a node by the kernel.
    pub(crate) fn use_node(&mut self, disk: usize, number: u64) {
        *self.disks[disk].uses.entry(number).or_default() += 1;
    }

    /// Takes uses of a node back; a node without names and uses is gone.
    pub(crate) fn forget(&mut self, disk: usize, number: u64, count: u64) {
        let disk = &mut self.disks[disk];
        let left = disk.uses.get(&number).map_or(0, |uses| uses.saturating_sub(count));
        match left {
            0 => {
                disk.uses.remove(&number);
                if number != ROOT {
                    disk.tree.forget(number);
                }
            }
            _ => drop(disk.uses.insert(number, left)),
        }
    }

    /// Makes a node and returns its number.
    pub fn make(
        &mut self,
        disk: usize,
        parent: u64,
        name: &[u8],
        new: NewNode,
        now: Time,
    ) -> Done<u64> {
        self.expect_open()?;
        let tree = &mut self.disks[disk].tree;
        let node = tree.next_number();
        tree.make(node, parent, name, &new, now)?;
        self.push(disk, Action::Make { node, parent, name: name.into(), new })?;
        Ok(node)
    }

    /// Gives a file another name.
    pub fn link(&mut self, disk: usize, node: u64, parent: u64, name: &[u8], now: Time) -> Done {
        self.expect_open()?;
        self.disks[disk].tree.link(node, parent, name, now)?;
        self.push(disk, Action::Link { node, parent, name: name.into() })
    }

    /// Removes a name of a file, or an empty directory.
    pub fn remove(
        &mut self,
        disk: usize,
        parent: u64,
        name: &[u8],
        directory: bool,
        now: Time,
    ) -> Done {
        self.expect_open()?;
        let live = &mut self.disks[disk];
        let node = live.tree.remove(parent, name, directory, now)?;
        self.push(disk, Action::Remove { node, parent, name: name.into(), directory })?;
        self.forget(disk, node, 0);
        Ok(())
    }

    /// Renames; `keep`: a name that exists is an error.
    pub fn rename(
        &mut self,
        disk: usize,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        keep: bool,
        now: Time,
    ) -> Done {
        self.expect_open()?;
        let (node, replaced) = self.disks[disk].tree.rename(from, to, keep, now)?;
        if from == to {
            return Ok(());
        }
        let action = Action::Rename {
            node,
            parent: from.0,
            name: from.1.into(),
            new_parent: to.0,
            new_name: to.1.into(),
            replaced: replaced.unwrap_or(0),
        };
        // Two names of one file: POSIX renames nothing.
        if replaced.is_none() && self.disks[disk].tree.lookup(from.0, from.1) == Ok(node) {
            return Ok(());
        }
        self.push(disk, action)?;
        replaced.into_iter().for_each(|old| self.forget(disk, old, 0));
        Ok(())
    }

    /// Writes bytes of a file; with `synchronous` they are durable before this returns.
    pub fn write(
        &mut self,
        disk: usize,
        node: u64,
        offset: u64,
        data: &[u8],
        (mapped, synchronous): (bool, bool),
        now: Time,
    ) -> Done {
        self.expect_open()?;
        self.expect_room(disk, node, offset, data.len() as u64)?;
        let tree = &mut self.disks[disk].tree;
        let before = tree.content(node)?.size();
        tree.write(node, offset, data, now)?;
        let grown = tree.content(node)?.size() > before;
        self.push(disk, Action::Write { node, offset, data: Arc::from(data), grown, mapped })?;
        if synchronous && !mapped {
            self.push(disk, Action::Sync { node, data_only: true })?;
        }
        Ok(())
    }

    /// Changes attributes; a length is a truncation.
    pub fn set_attributes(
        &mut self,
        disk: usize,
        node: u64,
        change: &AttributeChange,
        now: Time,
    ) -> Done {
        self.expect_open()?;
        if let Some(size) = change.size {
            let tree = &mut self.disks[disk].tree;
            let before = tree.content(node)?.size();
            tree.truncate(node, size, now)?;
            if size != before {
                self.push(disk, Action::Truncate { node, size })?;
            }
        }
        self.disks[disk].tree.set_attributes(node, change, now)?;
        if change.mode.or(change.uid).or(change.gid).is_some() {
            let changed = self.disks[disk].tree.node(node)?;
            let (mode, uid, gid) = (changed.mode, changed.uid, changed.gid);
            self.push(disk, Action::Attributes { node, mode, uid, gid })?;
        }
        Ok(())
    }

    /// Reserves, punches or zeroes a range, as fallocate does; EOPNOTSUPP for its other modes.
    pub fn allocate(
        &mut self,
        disk: usize,
        node: u64,
        (offset, length): (u64, u64),
        mode: u32,
        now: Time,
    ) -> Done {
        self.expect_open()?;
        if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let end = offset.checked_add(length).ok_or(libc::EFBIG)?;
        let before = self.disks[disk].tree.content(node)?.size();
        if mode & (PUNCH_HOLE | ZERO_RANGE) != 0 {
            self.disks[disk].tree.punch(node, offset, length, now)?;
            self.push(disk, Action::Punch { node, offset, length })?;
        } else {
            self.expect_room(disk, node, offset, length)?;
        }
        if mode & KEEP_SIZE == 0 && end > before {
            self.disks[disk].tree.truncate(node, end, now)?;
            self.push(disk, Action::Truncate { node, size: end })?;
        }
        Ok(())
    }

    /// Records that a file became durable.
    pub fn sync(&mut self, disk: usize, node: u64, data_only: bool) -> Done {
        self.push(disk, Action::Sync { node, data_only })
    }

    /// Records that a directory became durable.
    pub fn sync_directory(&mut self, disk: usize, node: u64) -> Done {
        self.push(disk, Action::SyncDirectory { node })
    }

    /// Records that a whole disk became durable.
    pub fn sync_all(&mut self, disk: usize) -> Done {
        self.push(disk, Action::SyncAll)
    }

    fn expect_open(&self) -> Done {
        match () {
            () if self.closed => Err(libc::EIO),
            // What is under way fits: a write of a mebibyte is the largest.
            () if self.weight + (2 << 20) > self.limits.record => Err(libc::ENOSPC),
            () => Ok(()),
        }
    }

    fn expect_room(&self, disk: usize, node: u64, offset: u64, length: u64) -> Done {
        let tree = &self.disks[disk].tree;
        let missing = tree.content(node)?.missing(offset, length);
        match tree.used().saturating_add(missing) <= self.limits.size {
            true => Ok(()),
            false => Err(libc::ENOSPC),
        }
    }

    fn push(&mut self, disk: usize, action: Action) -> Done {
        if self.closed {
            return Err(libc::EIO);
        }
        if !self.records {
            return Ok(());
        }
        self.weight += action.weight();
        if self.weight + (2 << 20) > self.limits.record {
            self.overflowed = true;
        }
        if self.weight > self.limits.record {
            return Err(libc::ENOSPC);
        }
        let change = Change { disk: disk as u8, action };
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.push(&change)
        {
            self.failed.get_or_insert(error);
        }
        self.record.changes.push(change);
        Ok(())
    }
}
