//! The layout of the file: words of 64 bits in the machine's byte order, at fixed offsets.
//!
//! A change of this layout needs a new [`VERSION`]: another version's file is refused with a sentence, never read wrongly. What
//! version 1 has lies where version 2 has it, except that a row knows an image by its numbers alone ([`Identity::of_numbers`]); such
//! files are read, and adopted from a process that hands over.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_core::VolumeId;

use headworks::house::{Mapping, PAGE};
use headworks_house::Identity;

/// The first word of a file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"hwcache\n");
/// The layout that this program reads and writes.
pub const VERSION: u64 = 2;
/// The layouts that this program reads.
pub const READABLE: [u64; 2] = [1, VERSION];

/// Offsets of the head's words.
pub mod head {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    /// 1 when the rest of the head is complete.
    pub const READY: usize = 16;
    pub const LEN: usize = 24;
    pub const SHARDS: usize = 32;
    pub const ROWS: usize = 40;
    /// Length of head, rows, shards and tables: what is mapped as one piece.
    pub const CONTROL_LEN: usize = 48;
    pub const PID: usize = 56;
}

/// Offsets of the words of a shard's entry in the head.
pub mod shard {
    pub const UNITS: usize = 0;
    pub const TABLE_AT: usize = 8;
    pub const FRAMES_AT: usize = 16;
    pub const BUFFERS_AT: usize = 24;
    pub const BUFFERS_LEN: usize = 32;
    /// Addresses of frames and buffers in the process that runs.
    pub const FRAMES_BASE: usize = 40;
    pub const BUFFERS_BASE: usize = 48;
    /// Frames that have space, with their entries; 0: all, or as in files of earlier versions.
    pub const BACKED: usize = 56;
    /// The redo record, in a cache line of its own.
    pub const REDO: usize = 64;
    /// The latest time at which the shard has done anything (realtime, nanoseconds). A clock that is set back does not set it back.
    pub const ALIVE: usize = 128;
    /// Commands that devices have and have not answered; version 1 does not count them.
    pub const IN_FLIGHT: usize = ALIVE + 8;
    /// Bytes of an entry.
    pub const BYTES: usize = 256;
}

/// Offsets of the words of a row: what a volume is.
mod row {
    pub const KIND: usize = 0;
    pub const FILESYSTEM: usize = 8;
    pub const INODE: usize = 16;
    pub const SIZE: usize = 24;
    pub const SUSPECT: usize = 32;
    pub const PATH_LEN: usize = 40;
    /// When a later process last wrote blocks of the volume to its image (realtime, nanoseconds); 0: none did. Earlier programs have 0 here.
    pub const TOUCHED: usize = 48;
    pub const PATH: usize = 64;
    // Behind the longest path. Version 1 has the rest of the path there.
    /// How far the clock of the image's filesystem is ahead of this machine's, in nanoseconds.
    pub const AHEAD: usize = 512 - 40;
    /// Sequence of the disk that the image's filesystem is on; 0 if that is not known.
    pub const DISK: usize = 512 - 32;
    /// The identity without its numbers.
    pub const IDENTITY: usize = 512 - 24;
}

/// Bytes of a row.
pub const ROW_BYTES: usize = 512;
/// The longest path that a row keeps; a longer one is left out, and the image is known by its identity alone.
const PATH_MAX: usize = row::AHEAD - row::PATH;
/// The same in version 1.
const PATH_MAX_1: usize = ROW_BYTES - row::PATH;

/// Kind of a row with the numbers of an image, which version 1 writes; 0 is no row.
const NUMBERS: u64 = 1;
/// Kind of a row with the whole identity of an image.
const IMAGE: u64 = 2;

/// Offset of the rows.
pub const ROWS_AT: usize = PAGE;

/// Offset of the entry of shard `index`, behind `rows` rows.
pub const fn shard_at(rows: usize, index: usize) -> usize {
    ROWS_AT + rows * ROW_BYTES + index * shard::BYTES
}

/// The word at `offset` of a mapping.
///
/// # Panics
/// If it is not inside, or not aligned.
pub fn word(memory: &Mapping, offset: usize) -> &AtomicU64 {
    assert!(offset.is_multiple_of(8), "words are aligned");
    let at: *mut u64 = memory.at(offset, 8).cast();
    // SAFETY: eight aligned bytes of a mapping that lives as long as the reference. Every access to these words is atomic.
    unsafe { AtomicU64::from_ptr(at) }
}

/// The frames of a shard whose entries may be read: those beyond were never used, and may have no space.
pub(super) fn entries(memory: &Mapping, shard_at: usize, units: u64) -> u64 {
    match word(memory, shard_at + shard::BACKED).load(Ordering::Acquire) {
        0 => units,
        backed => backed.min(units),
    }
}

/// What the image of a volume is, for the next process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRow {
    /// Which file the image is.
    pub identity: Identity,
    /// Path of the image; empty if it is too long to be kept.
    pub path: PathBuf,
    /// Bytes of the volume.
    pub size: u64,
    /// A device flush failed and was not acknowledged.
    pub suspect: bool,
    /// Sequence of the disk that its filesystem is on ([`Identity::disk_of_filesystem`]); 0 if that is not known.
    pub disk: u64,
    /// How far the clock of its filesystem is ahead of this machine's, in nanoseconds.
    pub ahead: u64,
    /// When a later process, which restored it, last wrote its image, in nanoseconds since 1970; 0: none did.
    pub touched: u64,
}

impl VolumeRow {
    /// Whether it is the row of this image, or may be: by numbers alone, if no more is known of it.
    #[must_use]
    pub fn may_be_of(&self, image: &Identity) -> bool {
        self.identity == *image || !self.identity.is_known() && self.identity.has_numbers_of(image)
    }

    /// Stores the row of a volume. The kind is stored last: a row is complete or not there.
    pub(super) fn store(&self, memory: &Mapping, volume: VolumeId) {
        let at = ROWS_AT + usize::from(volume.0) * ROW_BYTES;
        let set = |offset, value| word(memory, at + offset).store(value, Ordering::Relaxed);
        // The process that has handed over has the image open: its numbers tell which it is.
        let is_same =
            |row: Self| row.identity.has_numbers_of(&self.identity) && row.path == self.path;
        let is_there = Self::load(memory, volume.0.into()).is_some_and(is_same);
        if is_there && self.path.as_os_str().len() <= PATH_MAX {
            // There may be dirty blocks of it already: the row is there all the time.
            set(row::SIZE, self.size);
            set(row::SUSPECT, self.suspect.into());
            // How far the clock is ahead is known from the process that has handed over, or not known.
            let is_old = word(memory, at + row::KIND).load(Ordering::Relaxed) == NUMBERS;
            if is_old || self.ahead > 0 {
                set(row::AHEAD, self.ahead);
            }
            set(row::DISK, self.disk);
            self.store_identity(memory, at);
            word(memory, at + row::KIND).store(IMAGE, Ordering::Release);
            return;
        }
        Self::clear(memory, volume);
        set(row::TOUCHED, self.touched);
        set(row::AHEAD, self.ahead);
        set(row::DISK, self.disk);
        self.store_identity(memory, at);
        set(row::FILESYSTEM, self.identity.filesystem);
        set(row::INODE, self.identity.inode);
        set(row::SIZE, self.size);
        set(row::SUSPECT, self.suspect.into());
        let path = self.path.as_os_str().as_bytes();
        let path = if path.len() > PATH_MAX { &[] } else { path };
        set(row::PATH_LEN, path.len() as u64);
        let target = memory.at(at + row::PATH, PATH_MAX);
        // SAFETY: `PATH_MAX` bytes of our mapping, which nothing reads before the kind is stored.
        unsafe { target.copy_from_nonoverlapping(path.as_ptr(), path.len()) };
        word(memory, at + row::KIND).store(IMAGE, Ordering::Release);
    }

    fn store_identity(&self, memory: &Mapping, at: usize) {
        let bytes = self.identity.to_bytes();
        for (index, chunk) in bytes[16..].chunks_exact(8).enumerate() {
            let value = u64::from_le_bytes(std::array::from_fn(|index| chunk[index]));
            word(memory, at + row::IDENTITY + index * 8).store(value, Ordering::Relaxed);
        }
    }

    fn load_identity(memory: &Mapping, at: usize) -> Identity {
        let get = |offset| word(memory, at + offset).load(Ordering::Relaxed);
        let (filesystem, inode) = (get(row::FILESYSTEM), get(row::INODE));
        if get(row::KIND) != IMAGE {
            return Identity::of_numbers(filesystem, inode);
        }
        let rest = [0, 8, 16].map(|offset| get(row::IDENTITY + offset));
        let words = [filesystem, inode, rest[0], rest[1], rest[2]];
        let mut bytes = [0; Identity::BYTES];
        for (chunk, value) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        Identity::from_bytes(&bytes)
    }

    /// Removes the row of a volume that has no dirty data.
    pub(super) fn clear(memory: &Mapping, volume: VolumeId) {
        let at = ROWS_AT + usize::from(volume.0) * ROW_BYTES;
        word(memory, at + row::KIND).store(0, Ordering::Release);
    }

    /// Notes the size of a volume, in bytes.
    pub(super) fn set_size(memory: &Mapping, volume: VolumeId, size: u64) {
        let at = ROWS_AT + usize::from(volume.0) * ROW_BYTES;
        word(memory, at + row::SIZE).store(size, Ordering::Relaxed);
    }

    /// Notes how far the clock of a volume's filesystem is ahead.
    pub(super) fn set_ahead(memory: &Mapping, volume: VolumeId, ahead: u64) {
        let at = ROWS_AT + usize::from(volume.0) * ROW_BYTES;
        word(memory, at + row::AHEAD).store(ahead, Ordering::Relaxed);
    }

    /// Notes that the image of a volume is written from now on by a process that restores it.
    pub(super) fn touch(memory: &Mapping, volume: VolumeId, now: u64) {
        let at = ROWS_AT + usize::from(volume.0) * ROW_BYTES;
        word(memory, at + row::TOUCHED).fetch_max(now, Ordering::Relaxed);
    }

    /// Notes whether a volume is suspect.
    pub(super) fn set_suspect(memory: &Mapping, volume: VolumeId, suspect: bool) {
        let at = ROWS_AT + usize::from(volume.0) * ROW_BYTES;
        word(memory, at + row::SUSPECT).store(suspect.into(), Ordering::Relaxed);
    }

    /// Reads the row at `index`; none if the volume has no image.
    pub(super) fn load(memory: &Mapping, index: usize) -> Option<Self> {
        let at = ROWS_AT + index * ROW_BYTES;
        let get = |offset| word(memory, at + offset).load(Ordering::Relaxed);
        let (path_max, disk, ahead) = match get(row::KIND) {
            NUMBERS => (PATH_MAX_1, 0, 0),
            IMAGE => (PATH_MAX, get(row::DISK), get(row::AHEAD)),
            _ => return None,
        };
        let len = (get(row::PATH_LEN) as usize).min(path_max);
        let source = memory.at(at + row::PATH, len);
        // SAFETY: inside the mapping; the process that wrote it is dead.
        let path = unsafe { std::slice::from_raw_parts(source, len) };
        Some(Self {
            identity: Self::load_identity(memory, at),
            path: Path::new(OsStr::from_bytes(path)).to_path_buf(),
            size: get(row::SIZE),
            suspect: get(row::SUSPECT) != 0,
            disk,
            ahead,
            touched: get(row::TOUCHED),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_read_back_and_too_long_path_is_left_out() {
        let memory = Mapping::new(ROWS_AT + 4 * ROW_BYTES).unwrap();
        let identity = Identity::named(7, 8);
        let path = "/a/b.img".into();
        let (suspect, disk, ahead, touched) = (false, 4, 5, 6);
        let row = VolumeRow { identity, path, size: 1 << 20, suspect, disk, ahead, touched };
        row.store(&memory, VolumeId(3));
        assert_eq!(VolumeRow::load(&memory, 3).as_ref(), Some(&row));
        assert_eq!(VolumeRow::load(&memory, 2), None);
        VolumeRow::set_suspect(&memory, VolumeId(3), true);
        assert!(VolumeRow::load(&memory, 3).unwrap().suspect);
        let long = VolumeRow { path: "x".repeat(PATH_MAX + 1).into(), ..row };
        long.store(&memory, VolumeId(0));
        assert_eq!(VolumeRow::load(&memory, 0).unwrap().path, PathBuf::new());
        VolumeRow::clear(&memory, VolumeId(3));
        assert_eq!(VolumeRow::load(&memory, 3), None);
    }

    #[test]
    fn row_of_the_first_layout_is_read_and_gets_its_identity_in_place() {
        let memory = Mapping::new(ROWS_AT + 4 * ROW_BYTES).unwrap();
        let identity = Identity::named(7, 8);
        let path = "/a/b.img".into();
        let (suspect, disk, ahead, touched) = (false, 4, 5, 6);
        let row = VolumeRow { identity, path, size: 1 << 20, suspect, disk, ahead, touched };
        row.store(&memory, VolumeId(1));
        let at = ROWS_AT + ROW_BYTES;
        word(&memory, at + row::KIND).store(NUMBERS, Ordering::Relaxed);
        let old = VolumeRow::load(&memory, 1).unwrap();
        assert_eq!(old.identity, Identity::of_numbers(7, 8));
        assert_eq!((old.path.as_path(), old.size), (row.path.as_path(), row.size));
        row.store(&memory, VolumeId(1));
        assert_eq!(VolumeRow::load(&memory, 1), Some(row));
    }
}
