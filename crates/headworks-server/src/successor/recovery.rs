//! Where acknowledged writes go that have no image here: IMAGE.headworks-recovery, with its map, in `recovery` of the state directory.
//!
//! Data of one image are never written into the directory of another. Room on the filesystem stays free. What does not fit stays in the
//! memory of the dead server, and a note says so. A start of the image for which there is such a file names it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use headworks::house::display_size;
use headworks::house::safe_open::open_own;
use headworks_cache_memory::{CacheMemory, LeftCache, LeftVolume, copy_recovery, write_recovery};
use headworks_core::VolumeId;
use headworks_house::Identity;

use crate::successor::state_directory::{ENTRIES_MAX, make_directory, own_directory};

/// Bytes of the filesystem that stay free.
const FREE_MIN: u64 = 64 << 20;

/// Checks that `bytes` more fit into the directory.
fn check_room(directory: &Path, bytes: u64) -> Result<(), String> {
    let shown = directory.display();
    let free = File::open(directory).and_then(|directory| CacheMemory::space(&directory));
    let free = free.map_err(|error| format!("{shown}: {error}"))?.unwrap_or(u64::MAX);
    if free < bytes.saturating_add(FREE_MIN) {
        return Err(format!("{shown} has {} free", display_size(free)));
    }
    Ok(())
}

/// Writes the dirty blocks of a volume to a new file of the directory, and forgets them in `left`; returns the file.
///
/// # Errors
/// A sentence; the blocks are still in `left`.
pub(crate) fn write_to_state(left: &LeftCache, volume: &LeftVolume) -> Result<PathBuf, String> {
    let directory = make_directory("recovery")?;
    check_room(&directory, volume.bytes)?;
    write_recovery(left, volume, &directory)
        .map_err(|error| format!("{}: {error}", directory.display()))
}

/// Writes the dirty blocks of a volume of this process to a new file of the directory; they stay where they are. No client writes to the
/// volume any more.
///
/// # Errors
/// A sentence.
pub(crate) fn write_from_memory(memory: &CacheMemory, volume: VolumeId) -> Result<PathBuf, String> {
    let left = memory.look().map_err(|error| error.to_string())?;
    let left = left.ok_or("the cache's memory is not complete")?;
    let volumes = left.volumes();
    let volume = volumes.iter().find(|left| left.volume == volume);
    let volume = volume.ok_or("the cache's memory has nothing of it")?;
    let directory = make_directory("recovery")?;
    check_room(&directory, volume.bytes)?;
    copy_recovery(&left, volume, &directory)
        .map_err(|error| format!("{}: {error}", directory.display()))
}

/// Bytes of a map in which its head is.
const HEAD_MAX: u64 = 16 << 10;

/// Sentences about the recovery files of the state directory that have writes to `image`, or to a disk that was at `path`, with the command
/// that brings them back. An image in its place has another identity, and nothing is said of it.
pub(crate) fn notes_of(image: Identity, path: &Path) -> Vec<String> {
    let Ok(directory) = own_directory("recovery") else { return Vec::new() };
    let found = std::fs::read_dir(directory).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let maps =
        found.map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("map")));
    let mut maps: Vec<PathBuf> = maps.collect();
    maps.sort();
    maps.iter().filter_map(|map| note_of(map, image, path)).collect()
}

fn note_of(map: &Path, image: Identity, path: &Path) -> Option<String> {
    let opened = open_own(map, File::options().read(true)).ok()?;
    let mut head = Vec::new();
    opened.take(HEAD_MAX).read_to_end(&mut head).ok()?;
    let head = String::from_utf8_lossy(&head);
    let mut lines = head.lines().skip(1).map_while(|line| line.strip_prefix("# "));
    let at = lines.next()?;
    let of = lines.next().and_then(|line| line.strip_prefix("image ")?.parse::<Identity>().ok());
    let shown = path.display();
    // A filesystem may have got another number since. So does a disk that is attached again, which is known by its path.
    let is_its = of.is_some_and(|of| of.is_same_file(&image));
    let is_there = image.is_disk() && at == shown.to_string().escape_debug().to_string();
    let whose = match (is_its, is_there) {
        (true, _) => "this image",
        (false, true) => "a disk that was at this path, perhaps this one",
        (false, false) => return None,
    };
    let file = map.with_extension("");
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let (from, table, to) = (quoted(&file), quoted(map), quoted(path));
    Some(format!(
        "{shown}: {} has acknowledged writes to {whose}, which a killed server left and another image kept from it; to bring them back, stop the \
         server and run: grep -v '^#' {table} | while read -r at len; do dd if={from} of={to} conv=notrunc bs=1M \
         iflag=skip_bytes,count_bytes oflag=seek_bytes skip=$at seek=$at count=$len; done; then remove both files",
        file.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_on_the_filesystem_stays_free() {
        let directory = std::env::temp_dir();
        assert!(check_room(&directory, 1).is_ok());
        assert!(check_room(&directory, u64::MAX).unwrap_err().contains("free"));
    }
}
