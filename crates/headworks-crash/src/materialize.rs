//! A tree as a directory of a real file system, with modes, links and holes; times are those of its making. And such a directory as a tree.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use headworks_fuse::Time;

use crate::content::Content;
use crate::tree::{Errno, Kind, NewNode, Node, ROOT, Tree};

/// Bytes that are written at once.
const CHUNK: usize = 1 << 18;

/// Makes `directory`, which does not exist, with the contents of a tree. Special files are left out, and so are owners unless the process is root.
pub fn write_tree(tree: &Tree, directory: &Path) -> io::Result<()> {
    // SAFETY: the call has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let mut made = HashMap::new();
    let mut modes = Vec::new();
    let mut result = Ok(());
    let mut buffer = Vec::new();
    tree.walk(&mut |number, path| {
        let Ok(node) = tree.node(number) else { return };
        let place = place(directory, path);
        let mut make = || -> io::Result<()> {
            if let Some(first) = made.get(&number) {
                // A directory with two names: a state of "anything POSIX allows"; the first one has it.
                let file = matches!(node.kind, Kind::File(_));
                return if file { fs::hard_link(first, &place) } else { Ok(()) };
            }
            make_node(node, &place, &mut buffer)?;
            let own = if root { chown_to(node, &place) } else { Ok(()) };
            if matches!(node.kind, Kind::Directory(_)) {
                modes.push((place.clone(), node.mode));
            }
            made.insert(number, place.clone());
            own
        };
        if result.is_ok() {
            result = make();
        }
    });
    result?;
    // Last, and the innermost first: a directory may forbid what was still to be made in it.
    modes.into_iter().rev().try_for_each(|(place, mode)| {
        fs::set_permissions(place, Permissions::from_mode(mode & 0o7777))
    })
}

/// Reads a directory with all that is in it, names of one file as such. Times are left out.
pub fn read_tree(directory: &Path) -> io::Result<Tree> {
    let metadata = fs::metadata(directory)?;
    let mut tree = Tree::new(metadata.uid(), metadata.gid());
    let mut numbers = HashMap::new();
    let mut pending = vec![(directory.to_owned(), ROOT)];
    let mut buffer = vec![0; CHUNK];
    while let Some((path, parent)) = pending.pop() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let name = entry.file_name();
            if let Some(known) = numbers.get(&metadata.ino()) {
                tree.link(*known, parent, name.as_bytes(), Time::default()).map_err(failed)?;
                continue;
            }
            let target = match metadata.is_symlink() {
                true => fs::read_link(entry.path())?.as_os_str().as_bytes().into(),
                false => Box::default(),
            };
            let (uid, gid, device) = (metadata.uid(), metadata.gid(), metadata.rdev() as u32);
            let new = NewNode { mode: metadata.mode(), uid, gid, target, device };
            let number = tree.next_number();
            tree.make(number, parent, name.as_bytes(), &new, Time::default()).map_err(failed)?;
            if metadata.is_dir() {
                pending.push((entry.path(), number));
            } else {
                numbers.insert(metadata.ino(), number);
            }
            if metadata.is_file() {
                read_content(&File::open(entry.path())?, &mut tree, number, &mut buffer)?;
                tree.truncate(number, metadata.size(), Time::default()).map_err(failed)?;
            }
        }
    }
    Ok(tree)
}

/// Reads the parts of a file that are no holes.
fn read_content(file: &File, tree: &mut Tree, number: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    loop {
        // SAFETY: the descriptor is open during the call.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        if data < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENXIO) { Ok(()) } else { Err(error) };
        }
        at = data as u64;
        let read = file.read_at(buffer, at)?;
        if read == 0 {
            return Ok(());
        }
        if buffer[..read].iter().any(|byte| *byte != 0) {
            tree.write(number, at, &buffer[..read], Time::default()).map_err(failed)?;
        }
        at += read as u64;
    }
}

fn failed(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn place(directory: &Path, path: &[u8]) -> PathBuf {
    let inside = path.strip_prefix(b"/").unwrap_or(path);
    match inside {
        [] => directory.to_owned(),
        _ => directory.join(OsStr::from_bytes(inside)),
    }
}

fn make_node(node: &Node, place: &Path, buffer: &mut Vec<u8>) -> io::Result<()> {
    match &node.kind {
        Kind::Directory(_) => fs::create_dir(place),
        Kind::Symlink(target) => symlink(OsStr::from_bytes(target), place),
        Kind::Special(_) => Ok(()),
        Kind::File(content) => {
            let mode = node.mode & 0o7777;
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(place)?;
            write_content(&file, content, buffer)?;
            // What the umask took.
            match mode & 0o7022 {
                0 => Ok(()),
                _ => file.set_permissions(Permissions::from_mode(mode)),
            }
        }
    }
}

/// Writes the pages of a file, neighbours together.
fn write_content(file: &File, content: &Content, buffer: &mut Vec<u8>) -> io::Result<()> {
    let (mut start, mut end) = (0, 0);
    buffer.clear();
    for (offset, bytes) in content.data() {
        if offset != start + buffer.len() as u64 || buffer.len() >= CHUNK {
            file.write_all_at(buffer, start)?;
            buffer.clear();
            start = offset;
        }
        buffer.extend_from_slice(bytes);
        end = offset + bytes.len() as u64;
    }
    file.write_all_at(buffer, start)?;
    if end < content.size() { file.set_len(content.size()) } else { Ok(()) }
}

fn chown_to(node: &Node, place: &Path) -> io::Result<()> {
    match (&node.kind, node.uid, node.gid) {
        (Kind::Symlink(_) | Kind::Special(_), ..) | (_, 0, 0) => Ok(()),
        (_, uid, gid) => chown(place, Some(uid), Some(gid)),
    }
}
