//! Files and directories in memory, with the rules and error numbers of a file system.
//!
//! A copy of a tree shares nodes and pages with the original until one is changed. Numbers of nodes are never used again. A node without
//! names stays until `forget`, as an unlinked file that is open does. Nothing here reads a clock: times are arguments.

use std::collections::BTreeMap;
use std::sync::Arc;

use headworks_fuse::{AttributeChange, Time};

use crate::content::Content;
use crate::hash;

/// Number of the root of a tree.
pub const ROOT: u64 = headworks_fuse::ROOT;
/// Nodes of a tree at most.
pub(crate) const NODES_MAX: usize = 1 << 20;
/// Length of a file at most: 8 TiB.
const FILE_MAX: u64 = 1 << 43;
/// Names of a file at most, as ext4 has it.
const LINKS_MAX: u32 = 65_000;
/// Bits of a mode that tell the type.
const TYPE: u32 = libc::S_IFMT;

/// A positive number of errno.
pub type Errno = i32;
type Done<T = ()> = Result<T, Errno>;

/// What a node is, with its contents.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A regular file.
    File(Content),
    /// A directory: names with the numbers of their nodes.
    Directory(BTreeMap<Box<[u8]>, u64>),
    /// A symbolic link and its target.
    Symlink(Box<[u8]>),
    /// A socket, fifo or device node, with the device's number.
    Special(u32),
}

/// A file, directory, link or special file.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is, with its contents.
    pub kind: Kind,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Number of its names; of a directory 2 and one for each directory inside.
    pub links: u32,
    /// Time of the last change.
    pub modified: Time,
    /// Of a directory: the one that it is in.
    pub parent: u64,
}

/// What a new node is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Type and permission bits.
    pub mode: u32,
    /// Number of the owner.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
    /// Target of a symbolic link; empty for others.
    pub target: Box<[u8]>,
    /// Number of a device node; 0 for others.
    pub device: u32,
}

impl NewNode {
    fn node(&self, parent: u64, now: Time) -> Node {
        let kind = match self.mode & TYPE {
            libc::S_IFDIR => Kind::Directory(BTreeMap::new()),
            libc::S_IFLNK => Kind::Symlink(self.target.clone()),
            libc::S_IFREG => Kind::File(Content::default()),
            _ => Kind::Special(self.device),
        };
        let links = if matches!(kind, Kind::Directory(_)) { 2 } else { 1 };
        let Self { mode, uid, gid, .. } = *self;
        Node { kind, mode, uid, gid, links, modified: now, parent }
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.mode & TYPE == libc::S_IFDIR
    }
}

/// Files and directories in memory.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: BTreeMap<u64, Arc<Node>>,
    next: u64,
    /// Bytes of all pages.
    used: u64,
}

impl Tree {
    /// Makes an empty directory that belongs to this owner.
    #[must_use]
    pub fn new(uid: u32, gid: u32) -> Self {
        let root =
            NewNode { mode: libc::S_IFDIR | 0o755, uid, gid, target: Box::default(), device: 0 };
        let nodes = BTreeMap::from([(ROOT, Arc::new(root.node(ROOT, Time::default())))]);
        Self { nodes, next: ROOT + 1, used: 0 }
    }

    /// Returns the node with this number; ESTALE if there is none.
    pub fn node(&self, number: u64) -> Done<&Node> {
        self.nodes.get(&number).map(|node| &**node).ok_or(libc::ESTALE)
    }

    /// The number that the next new node gets.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Number of nodes, those without names included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the root has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries(ROOT).is_ok_and(BTreeMap::is_empty)
    }

    /// Bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The entries of a directory; ENOTDIR for anything else.
    pub fn entries(&self, directory: u64) -> Done<&BTreeMap<Box<[u8]>, u64>> {
        match &self.node(directory)?.kind {
            Kind::Directory(entries) => Ok(entries),
            _ => Err(libc::ENOTDIR),
        }
    }

    /// The bytes of a file; EISDIR for a directory, EINVAL for others.
    pub fn content(&self, file: u64) -> Done<&Content> {
        match &self.node(file)?.kind {
            Kind::File(content) => Ok(content),
            Kind::Directory(_) => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    /// The node that a name means; ENOENT if there is none.
    pub fn lookup(&self, directory: u64, name: &[u8]) -> Done<u64> {
        self.entries(directory)?.get(name).copied().ok_or(libc::ENOENT)
    }

    /// Makes a node with this number and name.
    pub fn make(
        &mut self,
        number: u64,
        directory: u64,
        name: &[u8],
        new: &NewNode,
        now: Time,
    ) -> Done {
        self.expect_room(directory, name)?;
        if self.nodes.len() >= NODES_MAX {
            return Err(libc::ENOSPC);
        }
        self.nodes.insert(number, Arc::new(new.node(directory, now)));
        self.next = self.next.max(number.saturating_add(1));
        self.insert(directory, name, number, now);
        Ok(())
    }

    /// Gives a file another name.
    pub fn link(&mut self, file: u64, directory: u64, name: &[u8], now: Time) -> Done {
        let node = self.node(file)?;
        if matches!(node.kind, Kind::Directory(_)) {
            return Err(libc::EPERM);
        }
        if node.links >= LINKS_MAX {
            return Err(libc::EMLINK);
        }
        self.expect_room(directory, name)?;
        self.change(file).links += 1;
        self.insert(directory, name, file, now);
        Ok(())
    }

    /// Removes a name of a file, or an empty directory. Returns the number of its node.
    pub fn remove(
        &mut self,
        directory: u64,
        name: &[u8],
        is_directory: bool,
        now: Time,
    ) -> Done<u64> {
        let number = self.lookup(directory, name)?;
        match (&self.node(number)?.kind, is_directory) {
            (Kind::Directory(entries), true) if !entries.is_empty() => return Err(libc::ENOTEMPTY),
            (Kind::Directory(_), false) => return Err(libc::EISDIR),
            (Kind::Directory(_), true) => {}
            (_, true) => return Err(libc::ENOTDIR),
            _ => {}
        }
        self.take(directory, name, now);
        self.unlinked(number);
        Ok(number)
    }

    /// Renames; what the new name meant loses it. Returns the node, and the one that was replaced. `keep`: a name that exists is an error.
    pub fn rename(
        &mut self,
        (directory, name): (u64, &[u8]),
        (to, new_name): (u64, &[u8]),
        keep: bool,
        now: Time,
    ) -> Done<(u64, Option<u64>)> {
        let number = self.lookup(directory, name)?;
        let replaced = self.entries(to)?.get(new_name).copied();
        match replaced {
            Some(_) if keep => return Err(libc::EEXIST),
            Some(old) if old == number => return Ok((number, None)),
            Some(old) => self.expect_replaceable(number, old)?,
            None if self.node(to)?.links == 0 => return Err(libc::ENOENT),
            None => {}
        }
        let moves_directory = matches!(self.node(number)?.kind, Kind::Directory(_));
        if moves_directory && self.is_inside(to, number) {
            return Err(libc::EINVAL);
        }
        if let Some(old) = replaced {
            self.take(to, new_name, now);
            self.unlinked(old);
        }
        self.take(directory, name, now);
        self.insert(to, new_name, number, now);
        if moves_directory {
            self.change(number).parent = to;
        }
        Ok((number, replaced))
    }

    /// Writes bytes of a file; EFBIG beyond 8 TiB.
    pub fn write(&mut self, file: u64, offset: u64, bytes: &[u8], now: Time) -> Done {
        self.expect_size(offset, bytes.len() as u64)?;
        self.change_content(file, now, |content| content.write(offset, bytes))
    }

    /// Sets the length of a file; EFBIG beyond 8 TiB.
    pub fn truncate(&mut self, file: u64, size: u64, now: Time) -> Done {
        self.expect_size(size, 0)?;
        self.change_content(file, now, |content| content.truncate(size))
    }

    /// Makes a range of a file zeros.
    pub fn punch(&mut self, file: u64, offset: u64, length: u64, now: Time) -> Done {
        self.change_content(file, now, |content| content.punch(offset, length))
    }

    /// Changes mode, owner and times; the length is not theirs.
    pub fn set_attributes(&mut self, number: u64, change: &AttributeChange, now: Time) -> Done {
        self.node(number)?;
        let node = self.change(number);
        node.mode = change.mode.map_or(node.mode, |mode| node.mode & TYPE | mode & 0o7777);
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        node.modified = change.modified.map_or(node.modified, |time| time.unwrap_or(now));
        Ok(())
    }

    /// Drops a node that has no name.
    pub fn forget(&mut self, number: u64) {
        let unnamed = self.nodes.get(&number).is_some_and(|node| node.links == 0);
        if unnamed && let Some(node) = self.nodes.remove(&number) {
            self.used -= allocated(&node);
        }
    }

    /// Drops every node that has no name.
    pub fn forget_unnamed(&mut self) {
        let unnamed: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.links == 0)
            .map(|(number, _)| *number)
            .collect();
        unnamed.into_iter().for_each(|number| self.forget(number));
    }

    /// A path of a node from the root on; none if it has no name.
    #[must_use]
    pub fn path(&self, number: u64) -> Option<Vec<u8>> {
        let mut path = None;
        self.walk(&mut |found, at| {
            if found == number && path.is_none() {
                path = Some(at.to_vec());
            }
        });
        path
    }

    /// Calls for each name, parents before children: the number and the path (empty for the root). No directory is entered twice.
    pub fn walk(&self, call: &mut dyn FnMut(u64, &[u8])) {
        let mut pending = vec![(ROOT, Vec::new())];
        let mut entered = std::collections::HashSet::new();
        while let Some((number, path)) = pending.pop() {
            call(number, &path);
            let Ok(entries) = self.entries(number) else { continue };
            if entered.insert(number) {
                let inside = entries.iter().rev();
                pending.extend(
                    inside.map(|(name, inside)| (*inside, [&path[..], b"/", name].concat())),
                );
            }
        }
    }

    /// The node of a path as `walk` gives it; none if nothing is there.
    #[must_use]
    pub fn at(&self, path: &[u8]) -> Option<u64> {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(ROOT, |at, name| self.lookup(at, name).ok())
    }

    /// Whether another tree has the same names, links and bytes. Modes, owners, times and special files do not count.
    #[must_use]
    pub fn has_same_contents(&self, other: &Self) -> bool {
        self.different_files(other).is_some_and(|files| files.is_empty())
    }

    /// The files whose bytes are others in another tree, each with its length there; none if the names or links are others.
    #[must_use]
    pub fn different_files(&self, other: &Self) -> Option<Vec<(u64, u64)>> {
        let (own, others) = (self.listing(), other.listing());
        if own.len() != others.len() {
            return None;
        }
        let mut files = Vec::new();
        for (one, two) in own.iter().zip(&others) {
            if (&one.path, one.first_name) != (&two.path, two.first_name) {
                return None;
            }
            match (&self.node(one.node).ok()?.kind, &other.node(two.node).ok()?.kind) {
                (Kind::File(content), Kind::File(there)) => {
                    if content.hash() != there.hash() && !files.contains(&(one.node, there.size()))
                    {
                        files.push((one.node, there.size()));
                    }
                }
                (Kind::Symlink(target), Kind::Symlink(there)) if target == there => {}
                (Kind::Directory(_), Kind::Directory(_)) => {}
                _ => return None,
            }
        }
        Some(files)
    }

    /// All names in the order of `walk`, without those of special files.
    fn listing(&self) -> Vec<Listed> {
        let mut first_names = BTreeMap::new();
        let mut listing = Vec::new();
        self.walk(&mut |node, path| {
            let special = self.node(node).is_ok_and(|node| matches!(node.kind, Kind::Special(_)));
            if !special {
                let first_name = *first_names.entry(node).or_insert(listing.len());
                listing.push(Listed { path: path.to_vec(), node, first_name });
            }
        });
        listing
    }

    /// A number that trees with other names, bytes, links or modes do not have. Times and owners do not count.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut state = 0;
        let mut first_names = BTreeMap::new();
        self.walk(&mut |number, path| {
            let Ok(node) = self.node(number) else { return };
            let own = match &node.kind {
                Kind::File(content) => content.hash(),
                Kind::Directory(_) => 1,
                Kind::Symlink(target) => hash::hash(target),
                Kind::Special(device) => u64::from(*device),
            };
            // Names of one file are another tree than files with the same bytes.
            let first = *first_names.entry(number).or_insert_with(|| hash::hash(path));
            let named = hash::pair(hash::hash(path), first);
            state = hash::pair(state, hash::pair(named, hash::pair(u64::from(node.mode), own)));
        });
        state
    }

    /// Repeats the making of a node in a state: without its name if that was lost, whatever else was.
    pub(crate) fn replay_make(
        &mut self,
        number: u64,
        parent: u64,
        name: Option<&[u8]>,
        new: &NewNode,
    ) {
        let mut node = new.node(parent, Time::default());
        node.links = 0;
        self.nodes.insert(number, Arc::new(node));
        self.next = self.next.max(number.saturating_add(1));
        if let Some(name) = name {
            self.replay_name(number, parent, name);
        }
    }

    /// Gives a node a name in a state; what the name meant before loses it.
    pub(crate) fn replay_name(&mut self, number: u64, directory: u64, name: &[u8]) {
        if self.entries(directory).is_err() || !self.nodes.contains_key(&number) {
            return;
        }
        if let Some(Kind::Directory(entries)) = self.change_kind(directory) {
            let old = entries.insert(name.into(), number);
            old.into_iter().for_each(|old| self.change_links(old, -1));
        }
        self.change_links(number, 1);
        self.change(number).parent = directory;
    }

    /// Takes a name from a node in a state, if it has it.
    pub(crate) fn replay_unname(&mut self, number: u64, directory: u64, name: &[u8]) {
        if self.lookup(directory, name) == Ok(number) {
            if let Some(Kind::Directory(entries)) = self.change_kind(directory) {
                entries.remove(name);
            }
            self.change_links(number, -1);
        }
    }

    /// Changes the bytes of a file in a state, if it is one.
    pub(crate) fn replay_content(&mut self, file: u64, change: impl FnOnce(&mut Content)) {
        let _ = self.change_content(file, Time::default(), change);
    }

    fn change_links(&mut self, number: u64, by: i32) {
        if self.nodes.contains_key(&number) {
            let node = self.change(number);
            node.links = node.links.saturating_add_signed(by);
        }
    }

    fn change_kind(&mut self, number: u64) -> Option<&mut Kind> {
        self.nodes.get_mut(&number).map(|node| &mut Arc::make_mut(node).kind)
    }

    fn change(&mut self, number: u64) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&number).expect("the caller looked the node up"))
    }

    fn change_content(&mut self, file: u64, now: Time, change: impl FnOnce(&mut Content)) -> Done {
        self.content(file)?;
        let node = self.change(file);
        node.modified = now;
        if let Kind::File(content) = &mut node.kind {
            let before = content.allocated();
            change(content);
            let after = content.allocated();
            self.used = self.used + after - before;
        }
        Ok(())
    }

    fn expect_room(&self, directory: u64, name: &[u8]) -> Done {
        match self.lookup(directory, name) {
            Ok(_) => Err(libc::EEXIST),
            Err(libc::ENOENT) if self.node(directory)?.links == 0 => Err(libc::ENOENT),
            Err(libc::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn expect_size(&self, offset: u64, length: u64) -> Done {
        let fits = offset.checked_add(length).is_some_and(|end| end <= FILE_MAX);
        if fits { Ok(()) } else { Err(libc::EFBIG) }
    }

    fn expect_replaceable(&self, number: u64, old: u64) -> Done {
        match (&self.node(number)?.kind, &self.node(old)?.kind) {
            (Kind::Directory(_), Kind::Directory(entries)) if !entries.is_empty() => {
                Err(libc::ENOTEMPTY)
            }
            (Kind::Directory(_), Kind::Directory(_)) => Ok(()),
            (Kind::Directory(_), _) => Err(libc::ENOTDIR),
            (_, Kind::Directory(_)) => Err(libc::EISDIR),
            _ => Ok(()),
        }
    }

    fn is_inside(&self, directory: u64, outer: u64) -> bool {
        let mut at = directory;
        loop {
            if at == outer {
                return true;
            }
            match self.node(at) {
                Ok(node) if at != ROOT => at = node.parent,
                _ => return false,
            }
        }
    }

    /// Puts a name into a directory that has room for it.
    fn insert(&mut self, directory: u64, name: &[u8], number: u64, now: Time) {
        let inner = self.entries(number).is_ok();
        let node = self.change(directory);
        node.modified = now;
        node.links += u32::from(inner);
        if let Kind::Directory(entries) = &mut node.kind {
            entries.insert(name.into(), number);
        }
    }

    /// Takes a name out of a directory.
    fn take(&mut self, directory: u64, name: &[u8], now: Time) {
        let inner = self.lookup(directory, name).is_ok_and(|number| self.entries(number).is_ok());
        let node = self.change(directory);
        node.modified = now;
        node.links -= u32::from(inner);
        if let Kind::Directory(entries) = &mut node.kind {
            entries.remove(name);
        }
    }

    fn unlinked(&mut self, number: u64) {
        let node = self.change(number);
        node.links = match node.kind {
            Kind::Directory(_) => 0,
            _ => node.links - 1,
        };
    }
}

/// A name of a tree.
struct Listed {
    path: Vec<u8>,
    node: u64,
    /// Index of the first name of the same node.
    first_name: usize,
}

fn allocated(node: &Node) -> u64 {
    match &node.kind {
        Kind::File(content) => content.allocated(),
        _ => 0,
    }
}
