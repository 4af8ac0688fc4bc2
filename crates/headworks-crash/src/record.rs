//! What a program did to its directories: every change, every sync and every line that it printed, in one order.
//!
//! A record begins with trees that are durable (what `--setup` left), then come changes. An answer to the program is given after its change
//! is in the record, so a line printed after a sync stands behind the sync. Lines that were printed are taken before each request, so a
//! line stands before what the same thread did next: it is demanded of every state that it should be demanded of.

use std::sync::Arc;

use headworks_fuse::{AttributeChange, Time};

use crate::tree::{NewNode, Tree};

/// A disk: one of the directories of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// How the program's command names it: `dir`, `dir2`, `state`.
    pub name: String,
    /// Whether it loses nothing: what it held at a cut is there afterwards.
    pub keeps_all: bool,
}

/// A step of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Index of the disk that it concerns; 0 for a line.
    pub disk: u8,
    /// What happened on it.
    pub action: Action,
}

/// What happened. Numbers are those of nodes, see [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are those of the calls that these record.
pub enum Action {
    /// A file, directory, symbolic link or special file was made.
    Make { node: u64, parent: u64, name: Box<[u8]>, new: NewNode },
    /// A file got another name.
    Link { node: u64, parent: u64, name: Box<[u8]> },
    /// A name was removed.
    Remove { node: u64, parent: u64, name: Box<[u8]>, directory: bool },
    /// A name was changed; `replaced` lost its name to it, 0 for none.
    Rename {
        node: u64,
        parent: u64,
        name: Box<[u8]>,
        new_parent: u64,
        new_name: Box<[u8]>,
        replaced: u64,
    },
    /// Bytes were written; `grown`: the file became longer; `mapped`: they are stores to a mapping.
    Write { node: u64, offset: u64, data: Arc<[u8]>, grown: bool, mapped: bool },
    /// The length was set.
    Truncate { node: u64, size: u64 },
    /// A range became zeros.
    Punch { node: u64, offset: u64, length: u64 },
    /// Mode or owner were changed; they are never lost.
    Attributes { node: u64, mode: u32, uid: u32, gid: u32 },
    /// fsync or fdatasync of a file.
    Sync { node: u64, data_only: bool },
    /// fsync of a directory.
    SyncDirectory { node: u64 },
    /// A range of a disk's image is durable: it was written with FUA.
    SyncRange { node: u64, offset: u64, length: u64 },
    /// syncfs of the disk.
    SyncAll,
    /// A line that the program printed: a promise.
    Line { text: Box<[u8]> },
}

impl Disk {
    /// The name of a disk that is an image behind `$uri`: sectors, flushes and FUA, in one file.
    pub const IMAGE: &'static str = "uri";

    /// Whether it is an image and no directory.
    #[must_use]
    pub fn is_image(&self) -> bool {
        self.name == Self::IMAGE
    }
}

impl Action {
    /// Bytes that it holds beside its fixed part.
    pub(crate) fn weight(&self) -> u64 {
        let held = match self {
            Self::Write { data, .. } => data.len(),
            Self::Make { name, new, .. } => name.len() + new.target.len(),
            Self::Rename { name, new_name, .. } => name.len() + new_name.len(),
            Self::Link { name, .. } | Self::Remove { name, .. } => name.len(),
            Self::Line { text } => text.len(),
            _ => 0,
        };
        (held + size_of::<Change>()) as u64
    }

    /// Whether it is a change of names: it is kept or lost as a whole.
    #[must_use]
    pub fn is_name(&self) -> bool {
        matches!(
            self,
            Self::Make { .. } | Self::Link { .. } | Self::Remove { .. } | Self::Rename { .. }
        )
    }

    /// The node that it changes or syncs, 0 for none.
    #[must_use]
    pub fn node(&self) -> u64 {
        match self {
            Self::Make { node, .. }
            | Self::Link { node, .. }
            | Self::Remove { node, .. }
            | Self::Rename { node, .. }
            | Self::Write { node, .. }
            | Self::Truncate { node, .. }
            | Self::Punch { node, .. }
            | Self::Attributes { node, .. }
            | Self::Sync { node, .. }
            | Self::SyncRange { node, .. }
            | Self::SyncDirectory { node } => *node,
            Self::SyncAll | Self::Line { .. } => 0,
        }
    }

    /// The name that it gives to its node, with the directory.
    pub(crate) fn given(&self) -> Option<(u64, &[u8])> {
        match self {
            Self::Make { parent, name, .. } | Self::Link { parent, name, .. } => {
                Some((*parent, name))
            }
            Self::Rename { new_parent, new_name, .. } => Some((*new_parent, new_name)),
            _ => None,
        }
    }

    /// The name that it takes from its node, with the directory.
    pub(crate) fn taken(&self) -> Option<(u64, &[u8])> {
        match self {
            Self::Remove { parent, name, .. } | Self::Rename { parent, name, .. } => {
                Some((*parent, name))
            }
            _ => None,
        }
    }

    /// Whether it is a change of a name in this directory.
    #[must_use]
    pub fn is_name_in(&self, directory: u64) -> bool {
        match self {
            Self::Make { parent, .. } | Self::Link { parent, .. } | Self::Remove { parent, .. } => {
                *parent == directory
            }
            Self::Rename { parent, new_parent, .. } => {
                *parent == directory || *new_parent == directory
            }
            _ => false,
        }
    }

    /// Carries it out on a tree, whatever else was lost there. Syncs and lines change nothing.
    pub(crate) fn replay(&self, tree: &mut Tree) {
        match self {
            Self::Make { node, parent, name, new } => {
                tree.replay_make(*node, *parent, Some(name), new);
            }
            Self::Link { node, parent, name } => tree.replay_name(*node, *parent, name),
            Self::Remove { node, parent, name, .. } => tree.replay_unname(*node, *parent, name),
            Self::Rename { node, parent, name, new_parent, new_name, .. } => {
                tree.replay_unname(*node, *parent, name);
                tree.replay_name(*node, *new_parent, new_name);
            }
            Self::Write { node, offset, data, .. } => {
                tree.replay_content(*node, |content| content.write(*offset, data));
            }
            Self::Truncate { node, size } => {
                tree.replay_content(*node, |content| content.truncate(*size));
            }
            Self::Punch { node, offset, length } => {
                tree.replay_content(*node, |content| content.punch(*offset, *length));
            }
            Self::Attributes { node, mode, uid, gid } => {
                let change = AttributeChange {
                    mode: Some(*mode),
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..AttributeChange::default()
                };
                let _ = tree.set_attributes(*node, &change, Time::default());
            }
            Self::Sync { .. }
            | Self::SyncRange { .. }
            | Self::SyncDirectory { .. }
            | Self::SyncAll
            | Self::Line { .. } => {}
        }
    }
}

/// What a program did.
#[derive(Clone, Debug)]
pub struct Record {
    /// The directories of the test.
    pub disks: Vec<Disk>,
    /// Their contents at first, one tree a disk; all of it is durable.
    pub base: Vec<Tree>,
    /// What happened then, in order.
    pub changes: Vec<Change>,
    /// The commands of the test: `setup`, `run`, `check`.
    pub commands: Vec<(String, String)>,
}

impl Record {
    /// Begins a record with these trees.
    #[must_use]
    pub fn new(disks: Vec<Disk>, base: Vec<Tree>) -> Self {
        Self { disks, base, changes: Vec::new(), commands: Vec::new() }
    }

    /// The lines that were printed before a cut, each with its end.
    #[must_use]
    pub fn promises(&self, cut: usize) -> Vec<u8> {
        let lines = self.changes[..cut].iter().filter_map(Change::line);
        lines.flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
    }

    /// Numbers of what the record has: changes, syncs, lines.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for change in &self.changes {
            match change.action {
                Action::Line { .. } => counts.promises += 1,
                Action::Sync { .. }
                | Action::SyncRange { .. }
                | Action::SyncDirectory { .. }
                | Action::SyncAll => {
                    counts.syncs += 1;
                }
                _ => counts.changes += 1,
            }
        }
        counts
    }

    /// The trees after the first `cut` steps, without a loss.
    #[must_use]
    pub fn trees(&self, cut: usize) -> Vec<Tree> {
        let mut trees = self.base.clone();
        for change in &self.changes[..cut] {
            change.action.replay(&mut trees[usize::from(change.disk)]);
        }
        trees
    }

    /// The disk that is an image behind `$uri`, if the program wrote to one.
    #[must_use]
    pub fn image(&self) -> Option<usize> {
        self.disks.iter().position(Disk::is_image)
    }

    /// Bytes of which the program's writes to an image are whole blocks: 4096, or 512 if some are not.
    #[must_use]
    pub fn image_block(&self) -> u64 {
        let image = self.image();
        let is_whole = |change: &Change| match &change.action {
            Action::Write { offset, data, .. } if Some(usize::from(change.disk)) == image => {
                offset % 4096 == 0 && data.len() % 4096 == 0
            }
            _ => true,
        };
        if self.changes.iter().all(is_whole) { 4096 } else { 512 }
    }

    /// The value of a command that the record was made with.
    #[must_use]
    pub fn command(&self, name: &str) -> Option<&str> {
        let found = self.commands.iter().find(|(key, _)| key == name);
        found.map(|(_, command)| command.as_str())
    }
}

impl Change {
    /// The line that it records, if it is one.
    #[must_use]
    pub fn line(&self) -> Option<&[u8]> {
        match &self.action {
            Action::Line { text } => Some(text),
            _ => None,
        }
    }
}

/// Numbers of what a record has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes of names, bytes, lengths and attributes.
    pub changes: u64,
    /// Syncs of files, directories and disks.
    pub syncs: u64,
    /// Lines that the program printed.
    pub promises: u64,
}
