//! Writes the dirty blocks of a file that a dead process left: to their image, or beside it if the image changed meanwhile.
//!
//! ```text
//!   image as the process left it --> written, synced
//!   changed since, replaced, shorter --> IMAGE.headworks-recovery: a sparse file with the blocks at their places
//!                                       IMAGE.headworks-recovery.map: a line "offset length" for each run of blocks
//! ```
//!
//! An image is as the process left it if it is the same file (device and inode), not shorter, and its status change time is not
//! later than the process's last batch of actions by more than [`GRACE`]: what the process had given to the kernel may be written
//! a moment after its death, and the kernel sets that time when it begins to write. The caller holds the image's lock, so
//! nothing of the dead process is still being written.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::left::{LeftBlock, LeftCache, LeftVolume};
use crate::device::sync_directory;
use crate::{ImageWriter, OpenFile};
use headworks_core::cache::folio::BLOCK;

/// Time after the process's last batch of actions in which its own writes may reach an image: 2 s.
const GRACE: u64 = 2_000_000_000;
/// Blocks that are written with one call.
const RUN_MAX: usize = 512;

/// Returns what is different about an image since the process died, if anything is: then its blocks go beside it.
#[must_use]
pub fn difference(left: &LeftCache, volume: &LeftVolume, image: &OpenFile) -> Option<String> {
    let row = volume.row.as_ref()?;
    let found = image.found();
    if !row.may_be_of(&image.identity()) {
        return Some("it is another file".to_owned());
    }
    // Of a row without more than numbers, its server is all that is known.
    if !row.identity.is_known() && image.identity().birth().is_none_or(|born| born > left.alive()) {
        return Some("it may be another file with the same number".to_owned());
    }
    if found.size < row.size {
        return Some(format!("it had {} bytes and has {}", row.size, found.size));
    }
    // Writes through a block device do not change the times of its node.
    let changed = image.is_regular() && found.changed > left.alive().saturating_add(GRACE);
    changed.then(|| {
        let later = (found.changed - left.alive()) / 1_000_000_000;
        format!("it was changed {later} s after the server that used it had died")
    })
}

/// Writes the dirty blocks of `volume` to its image, syncs it, and forgets them in `left`.
///
/// # Errors
/// A write or sync failed; the blocks are still in `left`.
pub fn write_image(left: &LeftCache, volume: &LeftVolume, image: &ImageWriter) -> io::Result<()> {
    write_runs(left.blocks(volume.volume, image.size()), |offset, run| {
        // Should this process die here, the next one must not take these writes for somebody else's.
        left.touch();
        image.write_all_at(offset, run)
    })?;
    image.sync()?;
    left.settle(volume.volume);
    Ok(())
}

/// Calls `write` with the offset and the pieces of each run of adjacent blocks.
fn write_runs<'a>(
    blocks: impl Iterator<Item = LeftBlock<'a>>,
    mut write: impl FnMut(u64, &mut [IoSlice<'_>]) -> io::Result<()>,
) -> io::Result<()> {
    let mut run: Vec<IoSlice<'a>> = Vec::with_capacity(RUN_MAX);
    let (mut first, mut next) = (0, 0);
    for LeftBlock { block, bytes } in blocks {
        if !run.is_empty() && (block != next || run.len() == RUN_MAX) {
            write(first * u64::from(BLOCK), &mut run)?;
            run.clear();
        }
        if run.is_empty() {
            first = block;
        }
        run.push(IoSlice::new(bytes));
        next = block + 1;
    }
    match run.is_empty() {
        true => Ok(()),
        false => write(first * u64::from(BLOCK), &mut run),
    }
}

/// The path with `suffix` behind its name.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes a new file beside `path`; an older one stays, and the new one gets a number.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    for number in 1..1000 {
        let suffix = match number {
            1 => ".headworks-recovery".to_owned(),
            number => format!(".headworks-recovery-{number}"),
        };
        let file = with_suffix(path, &suffix);
        match File::options().write(true).create_new(true).mode(0o600).open(&file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (made, file)),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "there are 999 recovery files"))
}

/// Writes the dirty blocks of `volume` beside the image at `path`, and forgets them in `left`; returns the file.
///
/// # Errors
/// A write or sync failed; the blocks are still in `left`.
pub fn write_beside(left: &LeftCache, volume: &LeftVolume, path: &Path) -> io::Result<PathBuf> {
    let size = volume.row.as_ref().map_or(u64::MAX, |row| row.size);
    // A volume may have grown after its row was written.
    let end = left.blocks(volume.volume, u64::MAX).map(|block| block.block + 1).max().unwrap_or(0);
    let end = end * u64::from(BLOCK);
    let size = if end >= size && end - size < u64::from(BLOCK) { size } else { size.max(end) };
    let (file, name) = create_beside(path)?;
    file.set_len(size)?;
    let mut map =
        "# Blocks that a killed server had not written to the image: offset length, in bytes\n"
            .to_owned();
    write_runs(left.blocks(volume.volume, size), |offset, run| {
        let mut at = offset;
        for piece in run.iter() {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        map += &format!("{offset} {}\n", at - offset);
        Ok(())
    })?;
    file.sync_all()?;
    let mut index = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(with_suffix(&name, ".map"))?;
    index.write_all(map.as_bytes())?;
    index.sync_all()?;
    sync_directory(path)?;
    left.settle(volume.volume);
    Ok(name)
}
