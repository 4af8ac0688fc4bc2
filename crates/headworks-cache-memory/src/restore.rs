//! Writes the dirty blocks of a file that a dead process left: to their image, or to a recovery file.
//!
//! ```text
//!   the image, as the process left it          --> written, synced
//!   the image, changed since or shorter        --> DIRECTORY/IMAGE.headworks-recovery: a sparse file with the blocks at their places
//!   perhaps the image; another image                                IMAGE.headworks-recovery.map: a line "offset length" for each run of blocks
//! ```
//!
//! Rule: data go back only to the image that they are of ([`judge`]). It is that image if the identities are equal and known; where
//! only numbers are, it is not if it was born after the process had died. It is as the process left it if it is not shorter, and its status change time is not
//! later than the last thing that the process did, or one that began to restore this image. The kernel sets that time when a write begins; so if the devices had answered
//! every command at the death ([`LeftCache::was_idle`]), no later time is the process's, and otherwise it may be later by [`GRACE`].
//! The caller holds the image's lock, so nothing of the dead process is still being written.
//!
//! Both times are of one clock, and what the process did is stored only forward: a clock that is set back makes changes by others in
//! the time that it repeats look older, and nothing else. A filesystem with another clock (a server's), or with files of before the
//! clock was set back, is ahead by what the process saw when it opened the image ([`VolumeRow::ahead`]).
//!
//! A recovery file is made anew, with its map, where nothing has their names: no link is followed, and nothing is written over.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::layout::VolumeRow;
use super::left::{LeftBlock, LeftCache, LeftVolume};
use headworks::OpenFile;
use headworks::house::sync_directory;
use headworks_core::cache::folio::BLOCK;
use headworks_house::{Identity, ImageHandles, ImageWriter};

/// Time after the process's last sign of life in which its own writes may reach an image, if it had commands in flight: 2 s.
const GRACE: u64 = 2_000_000_000;
/// Most recovery files of one name in a directory.
const RECOVERIES_MAX: u32 = 100;
/// Blocks that are written with one call.
const RUN_MAX: usize = 512;

/// How an image is related to the dirty blocks of a volume. All but the first say why in a clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the volume's image, as the process left it.
    Unchanged,
    /// It is the volume's image, and was changed since.
    Changed(String),
    /// It cannot be told whether it is the volume's image.
    Unknown(String),
    /// It is another image.
    Other(String),
}

/// What is known of a server that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadServer {
    /// The last sign of life, in nanoseconds since 1970.
    pub alive: u64,
    /// When it began to use the memory; 0 if that is not known.
    pub started: u64,
    /// Its devices had answered every command.
    pub was_idle: bool,
}

/// What the kernel says of an image now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageState {
    /// Which image it is.
    pub identity: Identity,
    /// Its size in bytes.
    pub size: u64,
    /// Its status change time in nanoseconds since 1970; none of a block device, whose node does not change with its bytes.
    pub changed: Option<u64>,
    /// The sequence of the disk below its filesystem; 0 if there is none or it is not known.
    pub disk: u64,
    /// Whether it is a partition of a disk.
    pub is_partition: bool,
    /// Whether its times are of this machine's clock.
    pub has_local_times: bool,
}

impl DeadServer {
    /// What its memory tells now. It asks the kernel: once for all rows of the memory.
    #[must_use]
    pub fn of(left: &LeftCache) -> Self {
        let started = left.birth().unwrap_or(0);
        Self { alive: left.alive(), started, was_idle: left.was_idle() }
    }
}

impl ImageState {
    /// What the kernel says. It is asked several times: once for all rows that the image is compared with.
    #[must_use]
    pub fn of(image: &OpenFile) -> Self {
        let (found, identity) = (image.found(), image.identity());
        Self {
            identity,
            size: found.size,
            changed: image.is_regular().then_some(found.changed),
            disk: identity.disk_of_filesystem(),
            is_partition: identity.is_partition(),
            has_local_times: image.has_local_times(),
        }
    }
}

/// Finds out whether an image, which is locked, is the one of a row. A device that writes by itself is not `is_plain`
/// ([`ImageWriter::is_plain`]).
#[must_use]
pub fn judge(left: &DeadServer, row: &VolumeRow, image: &ImageState, is_plain: bool) -> Verdict {
    let identity = image.identity;
    // The clock of the filesystem, at the last sign of life of the process, or of one that has begun to restore this image.
    let alive = left.alive.max(row.touched).saturating_add(row.ahead);
    if !row.identity.has_numbers_of(&identity) {
        return Verdict::Other("it is another file".to_owned());
    }
    // With known identities the birth is compared as well, and not by a clock.
    let is_told = identity.is_known() && row.identity.is_known();
    if !is_told && identity.birth().is_some_and(|born| born > alive) {
        return Verdict::Other("it was made after that server had died".to_owned());
    }
    if !identity.is_known() {
        let why = match identity.is_disk() {
            true => "this kernel does not tell disks apart that get one number after the other",
            false => "its filesystem does not tell files apart that get one number after the other",
        };
        return Verdict::Unknown(why.to_owned());
    }
    if !row.identity.is_known() {
        let started = left.started.saturating_add(row.ahead);
        if identity.birth().is_none_or(|born| born > started) {
            let why = "that server has noted its number alone, and it is not older than the server";
            return Verdict::Unknown(why.to_owned());
        }
    } else if row.identity != identity {
        let what = if identity.is_disk() { "disk" } else { "file" };
        return Verdict::Other(format!("it is another {what}, with a number that is used again"));
    }
    if image.disk != 0 && row.disk != 0 && image.disk != row.disk {
        return Verdict::Unknown(
            "its filesystem was on another disk, or was detached since".to_owned(),
        );
    }
    let is_shorter = image.size < row.size || image.is_partition && image.size != row.size;
    if is_shorter {
        return Verdict::Changed(format!("it had {} bytes and has {}", row.size, image.size));
    }
    let exact = left.was_idle && row.touched == 0 && is_plain && image.has_local_times;
    let latest = alive.saturating_add(if exact { 0 } else { GRACE });
    if let Some(changed) = image.changed.filter(|&changed| changed > latest) {
        let later = (changed - alive) / 100_000_000;
        return Verdict::Changed(format!(
            "it was changed {}.{} s after the server that used it had died",
            later / 10,
            later % 10
        ));
    }
    Verdict::Unchanged
}

/// Writes the dirty blocks of `volume` to its image, syncs it, and forgets them in `left`.
///
/// # Errors
/// A write or sync failed; the blocks are still in `left`.
pub fn write_image(left: &LeftCache, volume: &LeftVolume, image: &ImageWriter) -> io::Result<()> {
    // What is no plain file has whole blocks, and a frame has zeros behind the end of its volume.
    let size = image.size();
    let room = if image.is_plain() { size } else { size.next_multiple_of(BLOCK.into()) };
    write_runs(left.blocks(volume.volume, room), |offset, run| {
        // Should this process die here, the next one must not take these writes for somebody else's.
        left.touch(volume.volume);
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
    for LeftBlock { block, bytes, .. } in blocks {
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

/// Makes a recovery file and its map in `directory`; older ones stay, and new ones get a number.
fn create_pair(directory: &Path, image: &OsStr) -> io::Result<(File, File, PathBuf)> {
    // A name may have 255 bytes.
    let image = &image.as_bytes()[..image.len().min(200)];
    let create = |path: &Path| File::options().write(true).create_new(true).mode(0o600).open(path);
    for number in 1..=RECOVERIES_MAX {
        let mut name = OsStr::from_bytes(image).to_owned();
        name.push(".headworks-recovery");
        if number > 1 {
            name.push(format!("-{number}"));
        }
        let path = directory.join(&name);
        name.push(".map");
        let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        let file = match create(&path) {
            Err(error) if is_there(&error) => continue,
            made => made?,
        };
        match create(&directory.join(name)) {
            Ok(map) => return Ok((file, map, path)),
            Err(error) => {
                std::fs::remove_file(&path)?;
                if !is_there(&error) {
                    return Err(error);
                }
            }
        }
    }
    let message = format!("there are {RECOVERIES_MAX} recovery files of this name; remove some");
    Err(io::Error::new(io::ErrorKind::AlreadyExists, message))
}

/// Writes the dirty blocks of `volume` to a new recovery file in `directory`, named after the image, and forgets them in `left`; returns
/// the file.
///
/// # Errors
/// A write or sync failed; the blocks are still in `left`, and no file is.
pub fn write_recovery(
    left: &LeftCache,
    volume: &LeftVolume,
    directory: &Path,
) -> io::Result<PathBuf> {
    let made = in_new_pair(volume, directory, |file| write_blocks(left, volume, file))?;
    left.settle(volume.volume);
    Ok(made)
}

/// As [`write_recovery`], of a process that runs and in which nothing writes to the volume but its device's write-out: what is on the
/// image meanwhile is left out, and `left` is as before.
///
/// # Errors
/// A read, write or sync failed; no file is made.
pub fn copy_recovery(
    left: &LeftCache,
    volume: &LeftVolume,
    directory: &Path,
) -> io::Result<PathBuf> {
    in_new_pair(volume, directory, |file| copy_blocks(left, volume, file))
}

/// Makes a recovery file with its map, which `write` returns, and removes both if they cannot be written.
fn in_new_pair(
    volume: &LeftVolume,
    directory: &Path,
    write: impl FnOnce(&File) -> io::Result<String>,
) -> io::Result<PathBuf> {
    let path = volume.row.as_ref().map(|row| row.path.as_path());
    let name = path.and_then(Path::file_name).unwrap_or(OsStr::new("image"));
    let (file, mut index, made) = create_pair(directory, name)?;
    let written = write(&file).and_then(|map| {
        file.sync_all()?;
        index.write_all(map.as_bytes())?;
        index.sync_all()?;
        sync_directory(&made)
    });
    if let Err(error) = written {
        // Half of the blocks, perhaps: all of them are where they were.
        let mut map = made.clone().into_os_string();
        map.push(".map");
        let _ = (std::fs::remove_file(&made), std::fs::remove_file(map));
        return Err(error);
    }
    Ok(made)
}

/// First lines of a map.
fn head_of_map(volume: &LeftVolume) -> String {
    let mut map =
        "# Blocks that a server had not written to the image: offset length, in bytes\n".to_owned();
    if let Some(row) = &volume.row {
        map += &format!("# {}\n", row.path.display().to_string().escape_debug());
        map += &format!("# image {}\n", row.identity);
    }
    map
}

fn copy_blocks(left: &LeftCache, volume: &LeftVolume, file: &File) -> io::Result<String> {
    let (mut map, mut bytes, mut run) = (head_of_map(volume), [0; BLOCK as usize], 0..0);
    let size = volume.row.as_ref().map_or(u64::MAX, |row| row.size);
    let line = |run: &Range<u64>| match run.is_empty() {
        true => String::new(),
        false => format!("{} {}\n", run.start, run.end - run.start),
    };
    for (shard, block) in left.dirty_of(volume.volume) {
        let at = block.block.saturating_mul(u64::from(BLOCK));
        if !left.copy_block((shard, block), &mut bytes)? {
            continue;
        }
        // A volume may have grown after its row was written: only its last block is cut off.
        let len = if at < size { (size - at).min(BLOCK.into()) } else { BLOCK.into() };
        file.write_all_at(&bytes[..len as usize], at)?;
        if run.end != at {
            map += &line(&run);
            run = at..at;
        }
        run.end = at + len;
    }
    map += &line(&run);
    if size != u64::MAX && file.metadata()?.len() < size {
        file.set_len(size)?;
    }
    Ok(map)
}

fn write_blocks(left: &LeftCache, volume: &LeftVolume, file: &File) -> io::Result<String> {
    let size = volume.row.as_ref().map_or(u64::MAX, |row| row.size);
    // A volume may have grown after its row was written.
    let end = left.blocks(volume.volume, u64::MAX).map(|block| block.block + 1).max().unwrap_or(0);
    let end = end * u64::from(BLOCK);
    let size = if end >= size && end - size < u64::from(BLOCK) { size } else { size.max(end) };
    file.set_len(size)?;
    let mut map = head_of_map(volume);
    write_runs(left.blocks(volume.volume, size), |offset, run| {
        let mut at = offset;
        for piece in run.iter() {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        map += &format!("{offset} {}\n", at - offset);
        Ok(())
    })?;
    Ok(map)
}
