//! Repeats a record on directories of a real file system, step by step.
//!
//! Files are opened for a step and closed behind it, but for one that lost its last name and is used later: it is held open until the
//! replay ends, as the program held it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::materialize::write_tree;
use crate::record::{Action, Change, Record};
use crate::tree::{NewNode, ROOT};

/// Depth of directories at most.
const DEPTH_MAX: usize = 256;
const TYPE: u32 = libc::S_IFMT;

/// A directory, and a name in it.
type NameIn = (u64, Box<[u8]>);

/// A record that is repeated on real directories.
#[derive(Debug)]
pub struct Replay<'a> {
    record: &'a Record,
    /// The directory of each disk; none for one that is left out.
    roots: Vec<Option<PathBuf>>,
    next: usize,
    /// By disk and node: its names now, each with the directory that it is in.
    names: HashMap<(u8, u64), Vec<NameIn>>,
    /// By disk and node: the last step that needs it.
    last_uses: HashMap<(u8, u64), usize>,
    held: HashMap<(u8, u64), File>,
}

impl<'a> Replay<'a> {
    /// Makes the trees that the record begins with. `roots`: for each disk the directory to make, which does not exist; none leaves the
    /// disk out.
    pub fn begin(record: &'a Record, roots: Vec<Option<PathBuf>>) -> io::Result<Self> {
        let mut names: HashMap<_, Vec<_>> = HashMap::new();
        for ((disk, tree), root) in (0..).zip(&record.base).zip(&roots) {
            let Some(root) = root else { continue };
            write_tree(tree, root)?;
            let mut directories = Vec::new();
            tree.walk(&mut |node, _| directories.extend(tree.entries(node).map(|of| (node, of))));
            for (directory, entries) in directories {
                for (name, node) in entries {
                    names.entry((disk, *node)).or_default().push((directory, name.clone()));
                }
            }
        }
        let uses = record.changes.iter().enumerate();
        let last_uses = uses.map(|(step, of)| ((of.disk, of.action.node()), step)).collect();
        Ok(Self { record, roots, next: 0, names, last_uses, held: HashMap::new() })
    }

    /// Number of steps that were carried out.
    #[must_use]
    pub fn done(&self) -> usize {
        self.next
    }

    /// Carries out the next step; false behind the last.
    pub fn step(&mut self) -> io::Result<bool> {
        let record = self.record;
        let Some(Change { disk, action }) = record.changes.get(self.next) else { return Ok(false) };
        if self.roots[usize::from(*disk)].is_some() {
            self.carry_out(*disk, action)?;
        }
        self.next += 1;
        Ok(true)
    }

    /// Lets the kernel write a part of what an earlier step wrote to a file, and waits for it; nothing if the step is no write or the file is gone.
    pub fn write_back(&self, step: usize, offset: u64, length: u64) -> io::Result<()> {
        let Some(Change { disk, action: Action::Write { node, .. } }) =
            self.record.changes.get(step)
        else {
            return Ok(());
        };
        if self.roots[usize::from(*disk)].is_none() {
            return Ok(());
        }
        let Ok(file) = self.open(*disk, *node, true) else { return Ok(()) };
        let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: the descriptor is open during the call.
        let done =
            unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, length as i64, flags) };
        succeeded(done)
    }

    fn carry_out(&mut self, disk: u8, action: &Action) -> io::Result<()> {
        match action {
            Action::Make { node, parent, name, new } => {
                make(&self.path(disk, *parent)?.join(OsStr::from_bytes(name)), new)?;
                self.name(disk, *node, *parent, name);
            }
            Action::Link { node, parent, name } => {
                let new = self.path(disk, *parent)?.join(OsStr::from_bytes(name));
                fs::hard_link(self.path(disk, *node)?, new)?;
                self.name(disk, *node, *parent, name);
            }
            Action::Remove { node, parent, name, directory } => {
                self.hold(disk, *node)?;
                let path = self.path(disk, *parent)?.join(OsStr::from_bytes(name));
                if *directory {
                    fs::remove_dir(path)?
                } else {
                    fs::remove_file(path)?
                }
                self.unname(disk, *node, *parent, name);
            }
            Action::Rename { node, parent, name, new_parent, new_name, replaced } => {
                if *replaced != 0 {
                    self.hold(disk, *replaced)?;
                }
                let from = self.path(disk, *parent)?.join(OsStr::from_bytes(name));
                let to = self.path(disk, *new_parent)?.join(OsStr::from_bytes(new_name));
                fs::rename(from, to)?;
                self.unname(disk, *replaced, *new_parent, new_name);
                self.unname(disk, *node, *parent, name);
                self.name(disk, *node, *new_parent, new_name);
            }
            Action::Write { node, offset, data, .. } => {
                self.open(disk, *node, true)?.write_all_at(data, *offset)?;
            }
            Action::Truncate { node, size } => self.open(disk, *node, true)?.set_len(*size)?,
            Action::Punch { node, offset, length } => {
                let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let file = self.open(disk, *node, true)?;
                // SAFETY: the descriptor is open during the call.
                let done = unsafe {
                    libc::fallocate(file.as_raw_fd(), flags, *offset as i64, *length as i64)
                };
                succeeded(done)?;
            }
            Action::Attributes { node, mode, uid, gid } => {
                if *mode & TYPE != libc::S_IFLNK
                    && let Ok(path) = self.path(disk, *node)
                {
                    chown(&path, Some(*uid), Some(*gid))?;
                    fs::set_permissions(path, Permissions::from_mode(*mode & 0o7777))?;
                }
            }
            Action::Sync { node, data_only } => {
                let file = self.open(disk, *node, false)?;
                if *data_only { file.sync_data()? } else { file.sync_all()? }
            }
            Action::SyncRange { node, .. } => self.open(disk, *node, false)?.sync_data()?,
            Action::SyncDirectory { node } => File::open(self.path(disk, *node)?)?.sync_all()?,
            Action::SyncAll => {
                let root = File::open(self.path(disk, ROOT)?)?;
                // SAFETY: the descriptor is open during the call.
                succeeded(unsafe { libc::syncfs(root.as_raw_fd()) })?;
            }
            Action::Line { .. } => {}
        }
        Ok(())
    }

    /// Keeps a file open that loses its last name with this step, and is used later.
    fn hold(&mut self, disk: u8, node: u64) -> io::Result<()> {
        let last_name = self.names.get(&(disk, node)).is_none_or(|names| names.len() == 1);
        let used = self.last_uses.get(&(disk, node)).is_some_and(|last| *last > self.next);
        if last_name && used {
            let file = self.open(disk, node, true)?;
            self.held.insert((disk, node), file);
        }
        Ok(())
    }

    fn open(&self, disk: u8, node: u64, write: bool) -> io::Result<File> {
        match self.held.get(&(disk, node)) {
            Some(held) => held.try_clone(),
            None => OpenOptions::new().read(true).write(write).open(self.path(disk, node)?),
        }
    }

    fn name(&mut self, disk: u8, node: u64, parent: u64, name: &[u8]) {
        self.names.entry((disk, node)).or_default().push((parent, name.into()));
    }

    fn unname(&mut self, disk: u8, node: u64, parent: u64, name: &[u8]) {
        if let Some(names) = self.names.get_mut(&(disk, node)) {
            names.retain(|(directory, own)| (*directory, &**own) != (parent, name));
        }
    }

    /// Where a node is now; ENOENT if it has no name.
    fn path(&self, disk: u8, node: u64) -> io::Result<PathBuf> {
        let mut parts = Vec::new();
        let mut at = node;
        while at != ROOT {
            let name = self.names.get(&(disk, at)).and_then(|names| names.first());
            let (parent, name) = name.ok_or(io::ErrorKind::NotFound)?;
            parts.push(name);
            at = *parent;
            if parts.len() > DEPTH_MAX {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        let root = self.roots[usize::from(disk)].as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(parts.iter().rev().fold(root.clone(), |path, name| path.join(OsStr::from_bytes(name))))
    }
}

fn make(path: &Path, new: &NewNode) -> io::Result<()> {
    match new.mode & TYPE {
        libc::S_IFDIR => fs::create_dir(path)?,
        libc::S_IFLNK => return symlink(OsStr::from_bytes(&new.target), path),
        libc::S_IFREG => {
            let mode = new.mode & 0o7777;
            OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        }
        // Sockets and fifos hold nothing that a cut could take.
        _ => return Ok(()),
    }
    if (new.uid, new.gid) != (0, 0) {
        chown(path, Some(new.uid), Some(new.gid))?;
    }
    match fs::metadata(path)?.permissions().mode() & 0o7777 == new.mode & 0o7777 {
        true => Ok(()),
        false => fs::set_permissions(path, Permissions::from_mode(new.mode & 0o7777)),
    }
}

fn succeeded(answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::materialize::read_tree;
    use crate::testing::{record, sample};

    /// A directory of a test, which goes with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn replay_gives_the_tree_of_the_record_after_each_step() {
        let unlinked_and_used = "create a; write a 0 10 x; create b; write b 0 5000 b; rename a b; write b 3 4 z; syncdir /; link b c; unlink b; sync c";
        for (index, record) in [sample(), record(unlinked_and_used)].iter().enumerate() {
            let scratch = Scratch::new(&format!("headworks-replay-{index}"));
            let root = scratch.0.join("files");
            let mut replay = Replay::begin(record, vec![Some(root.clone())]).unwrap();
            loop {
                let tree = &record.trees(replay.done())[0];
                assert!(read_tree(&root).unwrap().has_same_contents(tree), "{}", replay.done());
                replay.write_back(replay.done(), 0, 4096).unwrap();
                if !replay.step().unwrap() {
                    break;
                }
            }
            assert_eq!(replay.done(), record.changes.len());
        }
    }

    #[test]
    fn file_without_a_name_is_written_as_the_program_did() {
        let mut record = record("create a; write a 0 10 x; create b; write b 0 5 y; sync b");
        // The program had the file open, and went on with it.
        let gone =
            Action::Remove { node: 2, parent: ROOT, name: b"a"[..].into(), directory: false };
        record.changes.insert(2, Change { disk: 0, action: gone });
        let data = b"later"[..].into();
        let write = Action::Write { node: 2, offset: 4, data, grown: false, mapped: false };
        record.changes.push(Change { disk: 0, action: write });
        record.changes.push(Change { disk: 0, action: Action::Sync { node: 2, data_only: true } });
        let scratch = Scratch::new("headworks-replay-gone");
        let root = scratch.0.join("files");
        let mut replay = Replay::begin(&record, vec![Some(root.clone())]).unwrap();
        while replay.step().unwrap() {}
        let tree = &record.trees(record.changes.len())[0];
        assert!(read_tree(&root).unwrap().has_same_contents(tree));
    }
}
