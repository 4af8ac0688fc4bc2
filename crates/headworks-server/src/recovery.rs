//! Where acknowledged writes go that have no image here: IMAGE.headworks-recovery, with its map, in `recovery` of the state directory.
//!
//! Data of one image are never written into the directory of another. Room on the filesystem stays free. What does not fit stays in the
//! memory of the dead server, and a note says so.

use std::fs::File;
use std::path::{Path, PathBuf};

use headworks::house::display_size;
use headworks_cache_memory::{CacheMemory, LeftCache, LeftVolume, copy_recovery, write_recovery};
use headworks_core::VolumeId;

use crate::state_directory::make_directory;

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
