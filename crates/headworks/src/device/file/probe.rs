//! What a file can do, found by asking the kernel and, where it does not say, by trying what changes nothing.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use headworks_core::QueueOptions;

use super::FileMode;
use crate::memory::{Mapping, PAGE};
use crate::system::{change_flags, filesystem_of};

/// Punching in memory frees its pages on the spot, 1 MiB in 0.1 ms, and writers of the file wait meanwhile: with their thread, as they write in
/// place.
pub(super) const INLINE_DISCARD_MAX: u32 = 1 << 20;
/// The blocks that disks have; alignments beyond are no alignments we could serve.
const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Whether the file's bytes are in the page cache and nowhere else.
pub fn is_memory_filesystem(file: &File) -> bool {
    let is_block = file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    let in_memory = |kind: u64| kind == libc::TMPFS_MAGIC as u64 || kind == RAMFS_MAGIC;
    // A block device's node may itself lie on a tmpfs (devtmpfs is one).
    !is_block && filesystem_of(file).is_ok_and(|facts| in_memory(facts.f_type as u64))
}

/// The logical block size of a block device; `None` for a file.
pub fn logical_block_size(file: &File) -> Option<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET fills an int, which lives through the call.
    let failed = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &mut bytes) } != 0;
    (!failed && bytes > 0).then_some(bytes as u32)
}

/// Sets O_DIRECT; the block size it then demands of offsets, lengths and addresses. `None`, and not set, where the file
/// cannot do it or wants more than 4096.
pub fn enable_direct_io(file: &File) -> Option<u32> {
    let stated = stated_alignment(file);
    if stated.is_some_and(|block| block == 0 || block > PAGE as u32) {
        return None;
    }
    change_flags(file, libc::O_DIRECT, 0).ok()?;
    let block = stated.or_else(|| tried_alignment(file));
    if block.is_none() {
        disable_direct_io(file);
    }
    block
}

/// Unsets O_DIRECT of a file again.
pub fn disable_direct_io(file: &File) {
    // What could be set can be taken back.
    let _ = change_flags(file, 0, libc::O_DIRECT);
}

/// What `statx` says: 0 means no direct I/O, `None` that it does not know (before Linux 6.1, and some filesystems).
fn stated_alignment(file: &File) -> Option<u32> {
    // SAFETY: a struct of integers, for which zeros are a value.
    let mut facts: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: `facts` and the empty path live through the call, which fills `facts`.
    let failed = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &mut facts,
        )
    } != 0;
    if failed || facts.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    // One number for both: spans start at multiples of the block size in page-aligned buffers.
    Some(match facts.stx_dio_offset_align {
        0 => 0,
        offset => offset.max(facts.stx_dio_mem_align),
    })
}

/// The smallest block that a direct read at a block's offset and address accepts.
fn tried_alignment(file: &File) -> Option<u32> {
    if let Some(block) = logical_block_size(file) {
        return Some(block);
    }
    let memory = Mapping::new(2 * PAGE).ok()?;
    BLOCK_SIZES.into_iter().find(|&block| {
        let (at, len) = (block as usize, block as usize);
        // SAFETY: the destination is inside our own mapping.
        let read = unsafe {
            libc::pread(file.as_raw_fd(), memory.at(at, len).cast(), len, i64::from(block))
        };
        // A read at or beyond the end says nothing of alignment, so it does not count.
        read > 0
    })
}

/// What the queue above this file should know; `path` is where it was opened.
pub fn queue_options(
    path: &Path,
    file: &File,
    metadata: &Metadata,
    size: u64,
    mode: FileMode,
    read_only: bool,
) -> QueueOptions {
    let defaults = QueueOptions::default();
    let block_device = metadata.file_type().is_block_device();
    let disk = if block_device { metadata.rdev() } else { metadata.dev() };
    // The same for both: our write-zeroes without NO_UNMAP is a hole too.
    let holes = !read_only
        && match block_device {
            true => disk_queue(disk, "write_zeroes_max_bytes").is_some_and(|most| most > 0),
            false => punches_holes(path, file, metadata, size),
        };
    let granularity = match block_device {
        true => disk_queue(disk, "discard_granularity").unwrap_or(0),
        false => metadata.blksize(),
    };
    let granularity = u32::try_from(granularity).unwrap_or(0);
    QueueOptions {
        write_cache: true,
        // The kernel reports a write-back error once, to the next sync. Reported to a durable write, it would be that one
        // write's: so what is in the page cache becomes durable by a flush, which knows what it means.
        fua: mode != FileMode::Buffered,
        discard: holes,
        write_zeroes: holes,
        discard_granularity: match granularity.is_power_of_two() {
            true => granularity.clamp(512, 1 << 20),
            false => defaults.discard_granularity,
        },
        discard_max_bytes: match mode {
            FileMode::Inline => INLINE_DISCARD_MAX,
            _ => defaults.discard_max_bytes,
        },
        rotational: disk_queue(disk, "rotational") == Some(1),
        ..defaults
    }
}

/// Whether the file's filesystem punches holes. Tried on a file without a name beside the image, since punching changes
/// the times of a file even where there is nothing to lose, and backups go by them. Where there are no such files it is
/// tried beyond the end of the image, whose time of modification is put back.
fn punches_holes(path: &Path, file: &File, metadata: &Metadata, size: u64) -> bool {
    if let Some(scratch) = nameless_beside(path, metadata) {
        return punch(&scratch, 0);
    }
    let punches = punch(file, size.next_multiple_of(PAGE as u64));
    let omit = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let modified = libc::timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
    // SAFETY: two times, which live through the call. If it fails, the image has a new time.
    unsafe { libc::futimens(file.as_raw_fd(), [omit, modified].as_ptr()) };
    punches
}

fn punch(file: &File, offset: u64) -> bool {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call on an open file.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, PAGE as i64) == 0 }
}

/// A file without a name on the same filesystem as the image, if the image's directory is on it and can be written.
fn nameless_beside(path: &Path, metadata: &Metadata) -> Option<File> {
    // The path may be a link from another filesystem.
    let path = path.canonicalize().ok()?;
    let mut nameless = File::options();
    nameless.write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
    let scratch = nameless.open(path.parent()?).ok()?;
    let is_same = scratch.metadata().is_ok_and(|own| own.dev() == metadata.dev());
    is_same.then_some(scratch)
}

/// Returns a number of the kernel's queue of a disk, by device number: the disk itself or the one of a filesystem. Device-mapper
/// and loop devices have a queue of their own, which follows what is below them. `None` for a filesystem without a disk (tmpfs,
/// NFS, overlayfs), and for one that hides its disk behind a number of its own (btrfs).
fn disk_queue(disk: u64, name: &str) -> Option<u64> {
    queue_value(Path::new("/sys/dev/block"), disk, name)
}

/// Returns a number of the queue of a disk below `/sys/dev/block`; a partition's queue is its disk's.
fn queue_value(root: &Path, disk: u64, name: &str) -> Option<u64> {
    let device = root.join(format!("{}:{}", libc::major(disk), libc::minor(disk)));
    let read = |folder: &str| std::fs::read_to_string(device.join(folder).join(name)).ok();
    let text = read("queue").or_else(|| read("../queue"))?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::TempFile;

    #[test]
    fn queue_of_a_partition_is_that_of_its_disk() {
        let root = TempFile::absent("sysfs");
        let root = root.path();
        let [disk, flash, dev] = ["disk", "flash", "dev"].map(|name| root.join(name));
        for (folder, rotational) in [(&disk, "1\n"), (&flash, "0\n")] {
            std::fs::create_dir_all(folder.join("queue")).unwrap();
            std::fs::write(folder.join("queue/rotational"), rotational).unwrap();
        }
        std::fs::create_dir_all(disk.join("disk1")).unwrap();
        std::fs::create_dir_all(&dev).unwrap();
        for (number, target) in
            [("8:0", "../disk"), ("8:1", "../disk/disk1"), ("259:0", "../flash")]
        {
            symlink(target, dev.join(number)).unwrap();
        }
        let of = |major, minor| queue_value(&dev, libc::makedev(major, minor), "rotational");
        let found = [of(8, 0), of(8, 1), of(259, 0), of(0, 44)];
        std::fs::remove_dir_all(root).unwrap();
        assert_eq!(found, [Some(1), Some(1), Some(0), None]);
    }
}
