//! A tree as a directory of a real file system, with modes, links and holes; times are those of its making.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::content::Content;
use crate::tree::{Kind, Node, Tree};

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
