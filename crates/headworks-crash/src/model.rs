//! What a file system may lose at a power cut: the changes that nothing made durable yet, and which of them may be lost together.
//!
//! | | `Journal`: ext4, XFS | `LogTree`: btrfs, f2fs | `Any`: what POSIX allows |
//! |---|---|---|---|
//! | bytes | each block by itself is one of the versions that it had in memory since its last sync: the last few writes that touched it are lost | same | same |
//! | the length | follows the last byte that is kept; or is one that it had since its last sync, or the end of a block of a write, of the block in which it ended before, or of a hole: bytes before it that are lost read as zeros, kept ones behind it are cut; behind a truncation that is lost it stays | same; also one after a truncation that is lost | same as log-tree |
//! | names (atomic, always) | one sequence: a prefix is kept | a prefix, and what was synced apart | each by itself |
//! | truncate, punch | part of the sequence; the zeros of a page that they cut are bytes: they may be there before, and may be missing behind it: at the edges of a hole, and behind an end once a write makes the file longer | same; by itself where the file got a name since, and another file or directory was synced then | each by itself |
//! | fsync of a file | its bytes; if its name or length, or a hole that took bytes of whole pages, is pending the sequence up to there | its bytes and names, those of the directories above, and of files whose names it took | its bytes, not its name |
//! | fdatasync of a file | its bytes and length; the sequence only up to the last change of its length or blocks: that made it, made it longer, cut it, took bytes of whole pages | as fsync | as fsync |
//! | fsync of a directory | the sequence up to its last change | its own changes, and the directories above; a file that was renamed into it may keep its old name, too | its own changes |
//! | syncfs | all | all | all |
//!
//! An image behind `$uri` is one file with blocks that are lost by themselves; a flush is an fsync of it, FUA makes the blocks of its range durable.
//!
//! Why the length is by itself: ext4 and XFS log it when a write of pages has ended, in a transaction of its own (`i_disksize`,
//! `xfs_setfilesize`), and may have written the bytes of one page and not those of another. btrfs logs a file that exists, for the fsync of a
//! directory, with its length and without its extents (`LOG_INODE_EXISTS` in fs/btrfs/tree-log.c), so its old bytes come back with a new length. Why a
//! hole may be there without the zeros at its edges: XFS and btrfs log the extents and leave those zeros in the page cache (`xfs_zero_range`,
//! `btrfs_truncate_block`), and those behind the new end of a file (`xfs_truncate_page`), where the length that a later write gives may be
//! there before them; ext4 with `data=ordered` writes them before it commits the hole.
//!
//! Why fdatasync commits less: ext4 commits the last transaction that changed the length or the blocks of the file (`i_datasync_tid`), which names and
//! link counts do not. A truncation that gives a length which the file has on the disk changes none: what had made it longer is not there
//! yet (`i_disksize` follows the write-back). XFS commits what logged more than times (`ili_datasync_commit_seq`). Why a hole in a part of a page commits
//! nothing: on XFS it is a write of zeros into the page cache, and logs times only, if they changed since their last tick.
//!
//! Why a truncation may be missing behind a rename: btrfs puts a new name into the log at once if the log has the file or the directory
//! (`btrfs_log_new_name`), with the file as one that exists; the next sync of anything writes both, and the old length and bytes stay.
//!
//! `Pending` takes the steps of a record one by one. `axes` are the degrees of freedom of a cut: a state chooses a number on each, 0 for
//! nothing lost, and every choice is legal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::content::PAGE;
use crate::record::{Action, Change, Record};
use crate::tree::Tree;

/// What a file system may lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// One journal of names: ext4, XFS.
    #[default]
    Journal,
    /// A log of single files beside the whole: btrfs, f2fs.
    LogTree,
    /// Whatever POSIX allows.
    Any,
}

impl Model {
    /// Every model, the default first.
    pub const ALL: [Self; 3] = [Self::Journal, Self::LogTree, Self::Any];

    /// The word of the model, as it is given and printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::LogTree => "log-tree",
            Self::Any => "any",
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|model| model.name() == word);
        found.ok_or_else(|| format!("`{word}` is no model; journal, log-tree and any are"))
    }
}

/// A degree of freedom of a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Changes of names and lengths of a disk, as indices of steps: the last `n` are lost.
    Sequence(Vec<usize>),
    /// One change of a name or a length: it is lost.
    Single(usize),
    /// A file was renamed, and the new directory alone was synced: it keeps its old name, too.
    OldName(usize),
    /// Writes that touched a block of a file: the last `n` are lost there.
    Block {
        /// Index of the disk.
        disk: u8,
        /// Number of the file.
        node: u64,
        /// Number of the block in the file.
        block: u64,
        /// The writes that touched it, as indices of steps; truncations and holes that cut it write zeros.
        writes: Vec<usize>,
    },
    /// The length of a file does not follow its bytes: choice `n` is the last length but `n - 1`.
    Size {
        /// Index of the disk.
        disk: u8,
        /// Number of the file.
        node: u64,
        /// The lengths in bytes that may be kept, each with the step that gave it, or that changed it from then on; in order.
        sizes: Vec<(usize, u64)>,
    },
}

impl Axis {
    /// The largest choice that it has.
    #[must_use]
    pub fn most(&self) -> u32 {
        match self {
            Self::Sequence(steps) | Self::Block { writes: steps, .. } => steps.len() as u32,
            Self::Single(_) | Self::OldName(_) => 1,
            Self::Size { sizes, .. } => sizes.len() as u32,
        }
    }

    /// The choice when nothing reached the disk: of a length 0, as it follows its bytes.
    #[must_use]
    pub fn nothing_kept(&self) -> u32 {
        if matches!(self, Self::Size { .. }) { 0 } else { self.most() }
    }
}

/// Changes that nothing made durable.
#[derive(Clone, Debug)]
pub struct Pending {
    model: Model,
    /// Bytes that are lost or kept together.
    block: u64,
    /// Changes of names, by step; with truncations and the like unless each of them is by itself.
    names: Vec<(usize, u8)>,
    /// Truncations and punches that are by themselves: with log-tree those whose file got a name that a sync may have made durable without them.
    singles: Vec<(usize, u8)>,
    /// Renames that are durable in the new directory, and not yet in the old one.
    old_names: Vec<(usize, u8)>,
    files: BTreeMap<(u8, u64), PendingFile>,
    /// Steps of the sequence that took no bytes: holes in holes.
    bare: BTreeSet<usize>,
    /// By file: the last step that changed its length or blocks, which may be durable.
    shapes: BTreeMap<(u8, u64), Option<usize>>,
}

/// Bytes of a file that are not durable.
#[derive(Clone, Debug, Default)]
struct PendingFile {
    /// Writes by the block that they touched.
    blocks: BTreeMap<u64, Vec<usize>>,
    /// The first write since the last sync.
    first: usize,
    /// The last one that made the file longer.
    grown: Option<usize>,
    /// Before the first one since the last truncation that did: the length, and the last step that had changed length or blocks.
    before: Option<(u64, Option<usize>)>,
    /// The last truncation.
    truncated: usize,
    /// Lengths that the file had, and ends of blocks of its writes and of holes: ext4 keeps a length once its block has a place, with the bytes or without.
    sizes: BTreeSet<(usize, u64)>,
}

impl PendingFile {
    /// A write made the file longer, from `before` bytes.
    fn grow(&mut self, index: usize, block: u64, before: u64, range: Range<u64>) {
        self.grown = Some(index);
        let ends = range.start / block + 1..=(range.end - 1) / block;
        self.sizes.extend(ends.map(|number| (index, number * block)));
        self.sizes.insert((index, range.end));
        // Bytes of the block in which the file ended may be there before its new length; without such a block they are lost with their blocks.
        let since = self.sizes.range((self.truncated, 0)..(index, 0));
        let known = since.into_iter().any(|(_, size)| *size == before);
        if !before.is_multiple_of(block) && !known {
            self.sizes.insert((index, before));
        }
        // XFS writes such a block as a whole, and gives the file its end as length (`xfs_setfilesize`).
        let end = before.next_multiple_of(block);
        if end > before && end <= range.start {
            self.sizes.insert((index, end));
        }
    }

    /// A hole in a file that may be shorter on the disk: ext4 gives it the hole's end as its length there, before the hole and before what made
    /// it longer (`ext4_update_disksize_before_punch`).
    fn pierce(&mut self, index: usize, hole: Range<u64>, size: u64) {
        let end = hole.end.min(size);
        if self.before.is_some_and(|(before, _)| before < end) && hole.start <= size {
            self.sizes.insert((index, end));
        }
    }

    /// A truncation: the last step that surely changed length or blocks by then. One that gives a length which the file may have on the disk changes
    /// neither, and what had made it longer since is not there.
    fn cut(&mut self, index: usize, size: u64) -> Option<usize> {
        let Some((before, earlier)) = self.before.take() else { return Some(index) };
        if size == before {
            return earlier;
        }
        let mut since = self.sizes.range((self.truncated, 0)..);
        let had = since.find(|(_, had)| *had == size);
        Some(had.map_or(index, |(step, _)| *step))
    }
}

impl Pending {
    /// Begins with nothing pending. `block`: bytes that are lost or kept together, 4096 or 512.
    #[must_use]
    pub fn new(model: Model, block: u64) -> Self {
        let (names, singles, old_names) = (Vec::new(), Vec::new(), Vec::new());
        let (files, bare, shapes) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { model, block, names, singles, old_names, files, bare, shapes }
    }

    /// What may be lost.
    #[must_use]
    pub fn model(&self) -> Model {
        self.model
    }

    /// Takes the next step of a record, which has this index. `trees` are those before it, without a loss.
    pub fn on_change(&mut self, record: &Record, index: usize, trees: &[Tree]) {
        let Change { disk, action } = &record.changes[index];
        if record.disks[usize::from(*disk)].keeps_all {
            return;
        }
        match action {
            Action::Write { node, offset, data, grown, .. } if !data.is_empty() => {
                let end = offset + data.len() as u64;
                let block = self.block;
                let file = self.touch((*disk, *node), index, *offset..end);
                if *grown {
                    let content = trees[usize::from(*disk)].content(*node);
                    let before = content.map_or(0, |content| content.size());
                    file.grow(index, block, before, *offset..end);
                    let earlier = self.shape((*disk, *node), Some(index));
                    let file = self.change((*disk, *node), index);
                    file.before.get_or_insert((before, earlier));
                }
            }
            Action::Truncate { node, .. } | Action::Punch { node, .. } => {
                for zeroed in zeroed(action).into_iter().flatten() {
                    self.touch((*disk, *node), index, zeroed);
                }
                match action {
                    Action::Truncate { size, .. } => {
                        self.truncate((*disk, *node), index, *size);
                    }
                    Action::Punch { offset, length, .. } => {
                        let content = trees[usize::from(*disk)].content(*node);
                        if let Some(file) = self.files.get_mut(&(*disk, *node)) {
                            let size = content.map_or(0, |content| content.size());
                            file.pierce(index, *offset..offset.saturating_add(*length), size);
                        }
                        let whole = taken(*offset, *length);
                        // A hole in a part of a page is a write of zeros.
                        if whole.is_empty() {
                            return;
                        }
                        match content.is_ok_and(|content| content.has_bytes(whole)) {
                            true => drop(self.shape((*disk, *node), Some(index))),
                            false => drop(self.bare.insert(index)),
                        }
                    }
                    _ => {}
                }
                match self.model {
                    Model::Any => self.singles.push((index, *disk)),
                    _ => self.names.push((index, *disk)),
                }
            }
            action if action.is_name() => {
                if let Action::Make { node, .. } = action {
                    self.shape((*disk, *node), Some(index));
                }
                self.names.push((index, *disk));
            }
            Action::Sync { node, data_only } => self.sync(record, *disk, *node, *data_only),
            Action::SyncRange { node, offset, length } => {
                self.sync_range((*disk, *node), *offset, *length);
            }
            Action::SyncDirectory { node } => self.sync_directory(record, *disk, *node),
            Action::SyncAll => {
                self.names.retain(|(_, of)| of != disk);
                self.singles.retain(|(_, of)| of != disk);
                self.old_names.retain(|(_, of)| of != disk);
                self.files.retain(|(of, _), _| of != disk);
                self.shapes.retain(|(of, _), _| of != disk);
            }
            _ => {}
        }
    }

    /// The first step that is not durable; none if all are.
    #[must_use]
    pub fn first(&self) -> Option<usize> {
        let files = self.files.values().map(|file| file.first);
        let names = self.names.first().into_iter().chain(self.singles.iter().min());
        let names = names.chain(self.old_names.iter().min());
        names.map(|(index, _)| *index).chain(files).min()
    }

    /// The degrees of freedom, in an order that is always the same. `trees` are those of the cut without a loss: bytes of a file that can
    /// have no name in any state are left out.
    #[must_use]
    pub fn axes(&self, record: &Record, trees: &[Tree]) -> Vec<Axis> {
        let mut axes = Vec::new();
        for disk in 0..record.disks.len() as u8 {
            let own = self.names.iter().filter(|(_, of)| *of == disk).map(|(index, _)| *index);
            let steps: Vec<usize> = own.collect();
            match self.model {
                Model::Any => axes.extend(steps.into_iter().map(Axis::Single)),
                _ if steps.is_empty() => {}
                _ => axes.push(Axis::Sequence(steps)),
            }
        }
        axes.extend(self.singles.iter().map(|(index, _)| Axis::Single(*index)));
        let is_file = |(index, disk): &&(usize, u8)| {
            trees[usize::from(*disk)].entries(record.changes[*index].action.node()).is_err()
        };
        let old_names = self.old_names.iter().filter(is_file);
        axes.extend(old_names.map(|(index, _)| Axis::OldName(*index)));
        let reachable = |disk: u8, number: u64| {
            let named = trees[usize::from(disk)].node(number).is_ok_and(|node| node.links > 0);
            let mut pending = self.names.iter().chain(&self.old_names);
            named || pending.any(|(index, of)| *of == disk && concerns(record, *index, number))
        };
        for ((disk, node), file) in &self.files {
            if !reachable(*disk, *node) {
                continue;
            }
            axes.extend(file.blocks.iter().map(|(block, writes)| Axis::Block {
                disk: *disk,
                node: *node,
                block: *block,
                writes: writes.clone(),
            }));
            if !file.sizes.is_empty() {
                let sizes = file.sizes.iter().copied().collect();
                axes.push(Axis::Size { disk: *disk, node: *node, sizes });
            }
        }
        axes
    }

    /// Bytes or the length of a file changed.
    fn change(&mut self, file: (u8, u64), index: usize) -> &mut PendingFile {
        let new = || PendingFile { first: index, ..PendingFile::default() };
        self.files.entry(file).or_insert_with(new)
    }

    /// Sets the last step that changed the length or the blocks of a file; returns the one before.
    fn shape(&mut self, file: (u8, u64), step: Option<usize>) -> Option<usize> {
        self.shapes.insert(file, step).flatten()
    }

    fn truncate(&mut self, file: (u8, u64), index: usize, size: u64) {
        let pending = self.files.get_mut(&file);
        let shape = pending.map_or(Some(index), |pending| pending.cut(index, size));
        self.shape(file, shape);
        if self.model == Model::Journal {
            // Its length is kept or lost with it.
            if let Some(pending) = self.files.get_mut(&file) {
                pending.truncated = index;
            }
            return;
        }
        let pending = self.change(file, index);
        pending.truncated = index;
        pending.sizes.insert((index, size));
    }

    /// Adds a version to the blocks of a range, which is not empty.
    fn touch(&mut self, file: (u8, u64), index: usize, range: Range<u64>) -> &mut PendingFile {
        let size = self.block;
        let file = self.change(file, index);
        for block in range.start / size..=(range.end - 1) / size {
            file.blocks.entry(block).or_default().push(index);
        }
        file
    }

    fn sync(&mut self, record: &Record, disk: u8, node: u64, data_only: bool) {
        let file = self.files.remove(&(disk, node));
        self.singles
            .retain(|(index, of)| *of != disk || record.changes[*index].action.node() != node);
        match self.model {
            Model::Any => {}
            Model::Journal if data_only => {
                let shape = self.shapes.remove(&(disk, node)).flatten();
                self.commit(disk, shape);
                // Truncations that changed nothing on the disk have nothing to lose either.
                self.names.retain(|(index, of)| {
                    let action = &record.changes[*index].action;
                    *of != disk || action.node() != node || action.is_name()
                });
            }
            Model::Journal => {
                let grown = file.and_then(|file| file.grown);
                let bare = &self.bare;
                let own = |index: usize| !bare.contains(&index) && concerns(record, index, node);
                let last = self.last(|index, of| of == disk && own(index));
                self.commit(disk, last.max(grown));
            }
            Model::LogTree => {
                self.old_names.retain(|(index, of)| {
                    *of != disk || record.changes[*index].action.node() != node
                });
                self.log(record, disk, node);
                self.separate(record, disk);
            }
        }
    }

    /// Makes what a range of an image has now durable, in every block that it touches.
    fn sync_range(&mut self, file: (u8, u64), offset: u64, length: u64) {
        let Some(pending) = self.files.get_mut(&file).filter(|_| length > 0) else { return };
        for block in offset / self.block..=(offset + length - 1) / self.block {
            pending.blocks.remove(&block);
        }
        if pending.blocks.is_empty() {
            self.files.remove(&file);
        }
    }

    fn sync_directory(&mut self, record: &Record, disk: u8, node: u64) {
        let inside = |index: usize| record.changes[index].action.is_name_in(node);
        match self.model {
            Model::Any => self.names.retain(|(index, of)| *of != disk || !inside(*index)),
            Model::Journal => {
                let own =
                    |index: usize| inside(index) || record.changes[index].action.node() == node;
                let last = self.last(|index, of| of == disk && own(index));
                self.commit(disk, last);
            }
            Model::LogTree => {
                let left = |index: usize| matches!(&record.changes[index].action, Action::Rename { parent, .. } if *parent == node);
                self.old_names.retain(|(index, of)| *of != disk || !left(*index));
                // btrfs logs the entries of the directory, and nothing of the one that lost its entry.
                let comes_in = |(index, of): &&(usize, u8)| {
                    matches!(&record.changes[*index].action, Action::Rename { parent, new_parent, .. }
                        if *of == disk && *new_parent == node && *parent != node)
                };
                self.old_names.extend(self.names.iter().filter(comes_in));
                self.names.retain(|(index, of)| *of != disk || !inside(*index));
                self.log(record, disk, node);
                self.separate(record, disk);
            }
        }
    }

    /// The last change of the sequence for which `is` holds.
    fn last(&self, is: impl Fn(usize, u8) -> bool) -> Option<usize> {
        self.names.iter().rev().find(|(index, of)| is(*index, *of)).map(|(index, _)| *index)
    }

    /// Makes the sequence of a disk durable up to a step.
    fn commit(&mut self, disk: u8, last: Option<usize>) {
        if let Some(last) = last {
            self.names.retain(|(index, of)| *of != disk || *index > last);
        }
    }

    /// Makes the names of a node durable apart from the rest, with those of the directories in which it is, and of the nodes that had its names
    /// before: btrfs logs an inode whose name was taken with the one that took it (`log_conflicting_inodes`), or it would be lost. What such a name
    /// is while it is pending itself, `Walk::trees` decides: it left the node if the node has it.
    fn log(&mut self, record: &Record, disk: u8, node: u64) {
        let mut nodes = vec![node];
        while let Some(node) = nodes.pop() {
            let mut names = std::mem::take(&mut self.names);
            let own =
                |index: usize, of: u8| of == disk && record.changes[index].action.node() == node;
            for (index, _) in names.iter().filter(|(index, of)| own(*index, *of)) {
                let Some((parent, name)) = record.changes[*index].action.given() else { continue };
                nodes.push(parent);
                let before = names.iter().filter(|(before, of)| *of == disk && before < index);
                let before = before.map(|(before, _)| &record.changes[*before].action);
                let had = before.clone().filter(|action| action.taken() == Some((parent, name)));
                // A name that is not durable itself is no conflict with what is on the disk.
                let is_new = |node| {
                    before.clone().any(|action| {
                        action.node() == node && action.given() == Some((parent, name))
                    })
                };
                nodes.extend(had.map(Action::node).filter(|had| *had != node && !is_new(*had)));
            }
            names.retain(|(index, of)| !own(*index, *of));
            self.singles.retain(|(index, of)| !own(*index, *of));
            self.names = names;
        }
    }

    /// The log was written: it may have the pending names of a file, and not what cut the file before it got them.
    fn separate(&mut self, record: &Record, disk: u8) {
        let names = std::mem::take(&mut self.names);
        let named_since = |at: usize, cut: usize| {
            let node = record.changes[cut].action.node();
            names[at + 1..].iter().any(|(index, of)| {
                let action = &record.changes[*index].action;
                let is_new = matches!(action, Action::Rename { .. } | Action::Link { .. });
                *of == disk && action.node() == node && is_new
            })
        };
        for (at, (index, of)) in names.iter().enumerate() {
            let is_cut = *of == disk && !record.changes[*index].action.is_name();
            match is_cut && named_since(at, *index) {
                true => self.singles.push((*index, *of)),
                false => self.names.push((*index, *of)),
            }
        }
    }
}

/// The whole pages that a hole takes from a file.
pub(crate) fn taken(offset: u64, length: u64) -> Range<u64> {
    let end = offset.saturating_add(length);
    offset.next_multiple_of(PAGE)..end - end % PAGE
}

/// The parts of pages that a truncation or a hole makes zeros; whole pages are taken from the file.
pub(crate) fn zeroed(action: &Action) -> [Option<Range<u64>>; 2] {
    let part = |range: Range<u64>| (range.start < range.end).then_some(range);
    match action {
        Action::Truncate { size, .. } => [part(*size..size.next_multiple_of(PAGE)), None],
        Action::Punch { offset, length, .. } => {
            let end = offset.saturating_add(*length);
            let head = *offset..end.min(offset.next_multiple_of(PAGE));
            let tail = (end - end % PAGE).max(head.end)..end;
            [part(head), part(tail)]
        }
        _ => [None, None],
    }
}

/// Whether a step changes a node or takes its name.
fn concerns(record: &Record, index: usize, number: u64) -> bool {
    let action = &record.changes[index].action;
    let replaced = matches!(action, Action::Rename { replaced, .. } if *replaced == number);
    action.node() == number || replaced
}
