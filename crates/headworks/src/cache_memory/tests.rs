//! A process that dies is a value that is dropped without a word: the file keeps what was stored.

use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use headworks_core::{DirtyEntry, VolumeId};

use super::layout::{head, word};
use super::*;
use crate::device::testing::TempFile;
use crate::memory::Mapping;
use crate::{FileOptions, OpenFile};

const BLOCK: usize = 4096;
const UNITS: u32 = 64;

fn memfd() -> File {
    // SAFETY: makes a new descriptor, which is ours alone.
    unsafe { File::from_raw_fd(libc::memfd_create(c"cache".as_ptr(), libc::MFD_CLOEXEC)) }
}

/// A running process with one volume, and an image of it.
struct Process {
    memory: CacheMemory,
    shard: ShardMemory,
    image: TempFile,
}

impl Process {
    fn new(name: &str) -> Self {
        let image = TempFile::absent(name);
        std::fs::write(image.path(), vec![1; 10 * BLOCK + 512]).unwrap();
        let geometry = vec![ShardGeometry { units: UNITS, buffers: 1 << 20 }];
        let memory = CacheMemory::new(memfd(), 8, geometry).unwrap();
        let shard = memory.shard(0).unwrap();
        shard.log.as_ref().unwrap().stamp();
        let opened = open(image.path());
        let row = VolumeRow {
            identity: opened.identity(),
            path: image.path().to_owned(),
            size: opened.found().size,
            suspect: false,
        };
        memory.set_row(VolumeId(2), &row);
        Self { memory, shard, image }
    }

    fn log(&self) -> &DirtyLog {
        self.shard.log.as_ref().unwrap()
    }

    fn fill(&self, frame: u32, byte: u8) {
        let frames = self.shard.frames.as_ref().unwrap();
        let at = frames.at(frame as usize * BLOCK, BLOCK);
        // SAFETY: a frame of our own mapping.
        unsafe { at.write_bytes(byte, BLOCK) };
    }

    fn dirty(&self, frame: u32, block: u64, byte: u8) {
        self.fill(frame, byte);
        self.log().set(frame, 1, DirtyEntry::new(VolumeId(2), block));
    }

    fn die(self) -> (LeftCache, TempFile) {
        let file = File::from(self.memory.as_fd().try_clone_to_owned().unwrap());
        let image = self.image;
        drop((self.memory, self.shard));
        (LeftCache::open(file).unwrap().unwrap(), image)
    }
}

fn open(path: &Path) -> OpenFile {
    let options = FileOptions { direct: crate::Direct::Off, ..FileOptions::default() };
    OpenFile::open(path, &options).unwrap()
}

/// Where the blocks of a volume went.
#[derive(Debug, PartialEq)]
enum Restored {
    Image { bytes: u64 },
    Beside { file: PathBuf, why: String },
}

fn restore_all(left: &LeftCache, path: &Path) -> Vec<Restored> {
    let image = open(path);
    let restore = |volume: &LeftVolume| match difference(left, volume, &image) {
        None => {
            write_image(left, volume, &image.writer()).unwrap();
            Restored::Image { bytes: volume.bytes }
        }
        Some(why) => Restored::Beside { file: write_beside(left, volume, path).unwrap(), why },
    };
    left.volumes().iter().map(restore).collect()
}

#[test]
fn dirty_blocks_reach_image_and_shadow_beats_frame() {
    let process = Process::new("left-image");
    process.dirty(3, 0, 7);
    process.dirty(4, 5, 8);
    process.fill(9, 9);
    process.log().set(9, 1, DirtyEntry::of_shadow(VolumeId(2), 5));
    // A partial last block, a block past the end, and a frame that became clean.
    process.dirty(5, 10, 10);
    process.dirty(6, 11, 11);
    process.dirty(7, 1, 12);
    process.log().set(7, 1, DirtyEntry::CLEAN);
    assert_eq!(process.memory.dirty_bytes(), 5 * BLOCK as u64);
    let (left, image) = process.die();
    let done = restore_all(&left, image.path());
    assert_eq!(done, [Restored::Image { bytes: 4 * BLOCK as u64 }]);
    let bytes = std::fs::read(image.path()).unwrap();
    let blocks: Vec<u8> = bytes.chunks(BLOCK).map(|block| block[0]).collect();
    assert_eq!(blocks, [7, 1, 1, 1, 1, 9, 1, 1, 1, 1, 10]);
    assert_eq!(bytes.len(), 10 * BLOCK + 512);
    assert!(left.volumes().is_empty(), "restored once");
}

#[test]
fn copy_that_was_cut_short_is_done_again() {
    let process = Process::new("left-redo");
    process.dirty(3, 4, 1);
    let (frames, buffers) = (process.shard.frames.as_ref().unwrap(), &process.shard.buffers);
    let (to, from) = (frames.at(3 * BLOCK + 512, 1024), buffers.at(8192, 1024));
    // SAFETY: our own mappings.
    unsafe {
        from.write_bytes(5, 1024);
        process.log().begin_change(to, from, 1024);
        to.copy_from_nonoverlapping(from, 100);
    }
    let (left, image) = process.die();
    restore_all(&left, image.path());
    let bytes = std::fs::read(image.path()).unwrap();
    let block = &bytes[4 * BLOCK..5 * BLOCK];
    assert!(block[..512].iter().chain(&block[1536..]).all(|&byte| byte == 1));
    assert!(block[512..1536].iter().all(|&byte| byte == 5), "not half old");
}

#[test]
fn copy_from_elsewhere_is_ignored() {
    for dirty in [false, true] {
        let process = Process::new("left-elsewhere");
        process.dirty(3, 4, 6);
        let frame = if dirty { 3 } else { 5 };
        let to = process.shard.frames.as_ref().unwrap().at(frame * BLOCK, BLOCK);
        let elsewhere = [9_u8; BLOCK];
        process.log().begin_change(to, elsewhere.as_ptr(), BLOCK);
        let file = File::from(process.memory.as_fd().try_clone_to_owned().unwrap());
        let left = LeftCache::open(file).unwrap().unwrap();
        assert_eq!(left.volumes()[0].bytes, BLOCK as u64);
        let block = left.blocks(VolumeId(2), 1 << 20).next().unwrap();
        assert_eq!((block.block, block.bytes[0]), (4, 6), "dirty: {dirty}");
    }
}

#[test]
fn zeroing_that_was_cut_short_is_done_again() {
    let process = Process::new("left-zero");
    process.dirty(3, 4, 6);
    let to = process.shard.frames.as_ref().unwrap().at(3 * BLOCK, BLOCK);
    process.log().begin_change(to, std::ptr::null(), BLOCK);
    let (left, image) = process.die();
    restore_all(&left, image.path());
    let bytes = std::fs::read(image.path()).unwrap();
    assert!(bytes[4 * BLOCK..5 * BLOCK].iter().all(|&byte| byte == 0));
}

#[test]
fn look_at_a_running_process_changes_nothing() {
    let process = Process::new("left-look");
    process.dirty(3, 4, 6);
    let to = process.shard.frames.as_ref().unwrap().at(3 * BLOCK, BLOCK);
    process.log().begin_change(to, std::ptr::null(), BLOCK);
    let file = File::from(process.memory.as_fd().try_clone_to_owned().unwrap());
    let seen = LeftCache::look(file).unwrap().unwrap().volumes();
    assert_eq!(seen[0].row.as_ref().unwrap().path, process.image.path());
    // SAFETY: a frame of the process, which nothing else uses.
    assert_eq!(unsafe { to.read() }, 6, "the zeroing is the process's own");
    let (left, image) = process.die();
    restore_all(&left, image.path());
    let bytes = std::fs::read(image.path()).unwrap();
    assert!(bytes[4 * BLOCK..5 * BLOCK].iter().all(|&byte| byte == 0), "it is still recorded");
}

#[test]
fn changed_image_is_left_alone_and_data_lie_beside_it() {
    type Change = fn(&Path);
    let replaced: Change = |path| {
        let other = path.with_extension("other");
        std::fs::write(&other, vec![2; 10 * BLOCK + 512]).unwrap();
        std::fs::rename(other, path).unwrap();
    };
    let shorter: Change = |path| {
        File::options().write(true).open(path).unwrap().set_len(BLOCK as u64).unwrap();
    };
    for (name, change, why) in
        [("replaced", replaced, "it is another file"), ("shorter", shorter, "it had 41472 bytes")]
    {
        let process = Process::new(&format!("left-{name}"));
        process.dirty(3, 5, 8);
        process.dirty(4, 6, 8);
        process.dirty(5, 9, 9);
        let (left, image) = process.die();
        change(image.path());
        let before = std::fs::read(image.path()).unwrap();
        for number in ["", "-2"] {
            // A second time there is a recovery file already.
            let done = restore_all(&left, image.path()).pop();
            let Some(Restored::Beside { file, why: said }) = done else {
                assert_eq!(number, "-2", "{done:?}");
                continue;
            };
            assert!(said.contains(why), "{said}");
            let bytes = std::fs::read(&file).unwrap();
            assert_eq!(bytes.len(), 10 * BLOCK + 512);
            assert_eq!((bytes[5 * BLOCK], bytes[9 * BLOCK], bytes[0]), (8, 9, 0));
            let map =
                file.with_file_name(format!("{}.map", file.file_name().unwrap().to_str().unwrap()));
            let map_text = std::fs::read_to_string(&map).unwrap();
            assert!(map_text.ends_with("\n20480 8192\n36864 4096\n"), "{map_text}");
            for file in [file, map] {
                std::fs::remove_file(file).unwrap();
            }
        }
        assert_eq!(std::fs::read(image.path()).unwrap(), before);
    }
}

#[test]
fn image_that_changed_long_after_the_death_is_left_alone() {
    let process = Process::new("left-later");
    process.dirty(3, 5, 8);
    let (left, image) = process.die();
    assert!(left.alive() > 0);
    // As if the process had died ten seconds earlier.
    left.set_alive(left.alive() - 10_000_000_000);
    std::fs::write(image.path(), vec![3; 10 * BLOCK + 512]).unwrap();
    let done = restore_all(&left, image.path()).pop().unwrap();
    let Restored::Beside { file, why } = done else { panic!("{done:?}") };
    assert!(why.starts_with("it was changed ") && why.contains("s after the server"), "{why}");
    std::fs::remove_file(
        file.with_file_name(format!("{}.map", file.file_name().unwrap().to_str().unwrap())),
    )
    .unwrap();
    std::fs::remove_file(file).unwrap();
}

#[test]
fn incomplete_foreign_and_damaged_files_are_told_apart() {
    let file = |change: fn(&Mapping)| {
        let (memory, rows) = (memfd(), 8);
        let geometry = vec![ShardGeometry { units: UNITS, buffers: 1 << 20 }];
        drop(CacheMemory::new(memory.try_clone().unwrap(), rows, geometry).unwrap());
        change(&Mapping::shared(&memory, 0, 1 << 16).unwrap());
        LeftCache::open(memory).map(|left| left.is_some()).map_err(|error| error.to_string())
    };
    assert_eq!(file(|_| ()), Ok(true));
    assert_eq!(file(|memory| word(memory, head::READY).store(0, Ordering::Relaxed)), Ok(false));
    let other = file(|memory| word(memory, head::VERSION).store(9, Ordering::Relaxed));
    assert!(other.unwrap_err().contains("has layout 9, and this version reads layouts up to 2"));
    let foreign = file(|memory| word(memory, head::MAGIC).store(9, Ordering::Relaxed));
    assert!(foreign.unwrap_err().contains("no cache file"));
    for at in [head::ROWS, head::SHARDS, head::CONTROL_LEN] {
        let memory = memfd();
        let geometry = vec![ShardGeometry { units: UNITS, buffers: 1 << 20 }];
        drop(CacheMemory::new(memory.try_clone().unwrap(), 8, geometry).unwrap());
        let head = Mapping::shared(&memory, 0, 1 << 16).unwrap();
        word(&head, at).store(u64::MAX / 2, Ordering::Relaxed);
        let error = LeftCache::open(memory).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}
