//! A process that dies is a value that is dropped without a word: the file keeps what was stored.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use headworks_core::{DirtyEntry, VolumeId};

use super::layout::{head, word};
use super::*;
use headworks::house::{ChangeLog, Mapping, memory_file};
use headworks::{FileOptions, OpenFile};
use headworks_house::ImageHandles;
use headworks_testing::{TempFile, memory_directory};

const BLOCK: usize = 4096;
const UNITS: u32 = 64;

fn memfd() -> File {
    memory_file(c"cache").unwrap()
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
        let memory = CacheMemory::new(memfd(), 8, geometry, 0).unwrap();
        let shard = memory.shard(0).unwrap();
        shard.log.stamp();
        let opened = open(image.path());
        let row = VolumeRow {
            identity: opened.identity(),
            path: image.path().to_owned(),
            size: opened.found().size,
            suspect: false,
            disk: opened.identity().disk_of_filesystem(),
            ahead: 0,
            touched: 0,
        };
        memory.set_row(VolumeId(2), &row);
        Self { memory, shard, image }
    }

    fn log(&self) -> &DirtyLog {
        &self.shard.log
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

fn judged(left: &LeftCache, row: &VolumeRow, image: &OpenFile, is_plain: bool) -> Verdict {
    judge(&DeadServer::of(left), row, &ImageState::of(image), is_plain)
}

fn open(path: &Path) -> OpenFile {
    let options = FileOptions { direct: headworks::Direct::Off, ..FileOptions::default() };
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
    let restore =
        |volume: &LeftVolume| match judged(left, volume.row.as_ref().unwrap(), &image, true) {
            Verdict::Unchanged => {
                write_image(left, volume, &image.writer()).unwrap();
                Restored::Image { bytes: volume.bytes }
            }
            Verdict::Changed(why) | Verdict::Unknown(why) | Verdict::Other(why) => {
                let file = write_recovery(left, volume, path.parent().unwrap()).unwrap();
                Restored::Beside { file, why }
            }
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

/// However far a settlement gets before its process dies, no older bytes of a block are left to be the newest.
#[test]
fn frame_that_a_shadow_beats_is_forgotten_when_the_file_is_opened() {
    for [frame, shadow] in [[4, 9], [9, 4]] {
        let process = Process::new("left-beaten");
        process.dirty(frame, 5, 8);
        process.fill(shadow, 9);
        process.log().set(shadow, 1, DirtyEntry::of_shadow(VolumeId(2), 5));
        let (left, _image) = process.die();
        let blocks: Vec<_> = left.blocks(VolumeId(2), 1 << 20).collect();
        assert_eq!((blocks.len(), blocks[0].bytes[0]), (1, 9));
        left.settle_block(blocks[0].entry);
        let again = LeftCache::open(left.file().try_clone().unwrap()).unwrap().unwrap();
        assert!(again.volumes().is_empty(), "older bytes are dirty");
    }
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

/// The verdict on an image after `change` has seen it, for a process that died with `in_flight` commands.
fn verdict_after(name: &str, in_flight: usize, is_plain: bool, change: fn(&Path)) -> Verdict {
    let process = Process::new(name);
    process.dirty(3, 5, 8);
    process.log().begin_commands(in_flight + 1);
    process.log().end_commands(1);
    let (left, image) = process.die();
    change(image.path());
    judged(&left, left.volumes()[0].row.as_ref().unwrap(), &open(image.path()), is_plain)
}

fn waits_and_changes(path: &Path) {
    let written = std::fs::metadata(path).unwrap().ctime_nsec();
    // The times of files have steps of some milliseconds.
    while std::fs::metadata(path).unwrap().ctime_nsec() - written < 50_000_000 {
        let image = File::options().write(true).open(path).unwrap();
        image.write_all_at(&[3; 512], 0).unwrap();
        if std::fs::metadata(path).unwrap().ctime_nsec() < written {
            return;
        }
    }
}

#[test]
fn change_after_the_death_of_an_idle_server_is_found_at_once() {
    assert_eq!(verdict_after("left-idle", 0, true, |_| ()), Verdict::Unchanged);
    let Verdict::Changed(why) = verdict_after("left-soon", 0, true, waits_and_changes) else {
        panic!("a backup that is copied over the image is not seen");
    };
    assert!(why.starts_with("it was changed 0.") && why.contains("s after the server"), "{why}");
    // Its own writes may be late.
    assert_eq!(verdict_after("left-late", 1, true, waits_and_changes), Verdict::Unchanged);
    assert_eq!(verdict_after("left-overlay", 0, false, waits_and_changes), Verdict::Unchanged);
}

#[test]
fn image_that_changed_long_after_the_death_is_left_alone() {
    let process = Process::new("left-later");
    process.dirty(3, 5, 8);
    process.log().begin_commands(1);
    let (left, image) = process.die();
    assert!(left.alive() > 0);
    // As if the process had died ten seconds earlier.
    left.set_alive(left.alive() - 10_000_000_000);
    std::fs::write(image.path(), vec![3; 10 * BLOCK + 512]).unwrap();
    let done = restore_all(&left, image.path()).pop().unwrap();
    let Restored::Beside { file, why } = done else { panic!("{done:?}") };
    assert!(why.starts_with("it was changed ") && why.contains("s after the server"), "{why}");
    remove_recovery(&file);
}

#[test]
fn clock_that_was_set_back_loses_nothing() {
    // The clock of the filesystem, or of before, is an hour ahead.
    let process = Process::new("left-clock");
    process.dirty(3, 5, 8);
    process.memory.set_ahead(VolumeId(2), 3_600_000_000_000);
    let (left, image) = process.die();
    left.set_alive(left.alive() - 3_600_000_000_000);
    assert_eq!(restore_all(&left, image.path()), [Restored::Image { bytes: BLOCK as u64 }]);
}

#[test]
fn image_with_the_inode_of_a_deleted_one_gets_nothing_of_it() {
    for directory in [Some(std::env::temp_dir()), memory_directory()].into_iter().flatten() {
        let process = Process::new("left-reused");
        process.dirty(3, 5, 8);
        let (left, image) = process.die();
        let mut row = left.volumes()[0].row.clone().unwrap();
        let mut reused = false;
        for _ in 0..20 {
            let (old, new) =
                (TempFile::new("left-old"), TempFile::absent_in(&directory, "left-new"));
            row.identity = headworks_house::Identity::of(old.path()).unwrap();
            drop(old);
            std::fs::write(new.path(), vec![2; 10 * BLOCK + 512]).unwrap();
            let image = open(new.path());
            reused |= row.identity.has_numbers_of(&image.identity());
            let Verdict::Other(why) = judged(&left, &row, &image, true) else {
                panic!("{directory:?}: data of a deleted image");
            };
            assert!(why.starts_with("it is another file"), "{why}");
        }
        println!("{directory:?}: number used again: {reused}");
        drop(image);
    }
}

#[test]
fn row_with_numbers_alone_is_believed_for_older_images_only() {
    let process = Process::new("left-numbers");
    process.dirty(3, 5, 8);
    let (left, image) = process.die();
    let row = left.volumes()[0].row.clone().unwrap();
    let numbers =
        headworks_house::Identity::of_numbers(row.identity.filesystem, row.identity.inode);
    let row = VolumeRow { identity: numbers, ..row };
    let verdict = |row: &VolumeRow, image: &Path| judged(&left, row, &open(image), true);
    assert_eq!(verdict(&row, image.path()), Verdict::Unchanged, "older than the memory");
    left.set_alive(1);
    let late = Verdict::Other("it was made after that server had died".to_owned());
    assert_eq!(verdict(&row, image.path()), late);
    left.set_alive(u64::MAX / 2);
    // The times of files have steps of some milliseconds.
    let younger = loop {
        let younger = TempFile::absent("left-younger");
        std::fs::write(younger.path(), vec![2; 10 * BLOCK + 512]).unwrap();
        let identity = headworks_house::Identity::of(younger.path()).unwrap();
        if identity.birth() > left.birth() {
            break younger;
        }
    };
    let found = headworks_house::Identity::of(younger.path()).unwrap();
    let identity = headworks_house::Identity::of_numbers(found.filesystem, found.inode);
    let verdict = verdict(&VolumeRow { identity, ..row }, younger.path());
    assert!(matches!(verdict, Verdict::Unknown(_)), "{verdict:?}");
}

#[test]
fn copy_of_a_whole_filesystem_is_not_known_to_be_the_same() {
    let process = Process::new("left-disk");
    process.dirty(3, 5, 8);
    let (left, image) = process.die();
    let row = left.volumes()[0].row.clone().unwrap();
    if row.disk == 0 {
        println!("the test directory is on no disk with a sequence");
        return;
    }
    let row = VolumeRow { disk: row.disk + 1, ..row };
    assert!(matches!(judged(&left, &row, &open(image.path()), true), Verdict::Unknown(_)));
}

#[test]
fn recovery_files_follow_no_link_and_replace_nothing() {
    let process = Process::new("left-links");
    process.dirty(3, 5, 8);
    let (left, image) = process.die();
    let precious = TempFile::absent("left-precious");
    std::fs::write(precious.path(), "precious").unwrap();
    let name = image.path().file_name().unwrap().to_str().unwrap().to_owned();
    let planted = |suffix: &str| {
        let path = image.path().with_file_name(format!("{name}.headworks-recovery{suffix}"));
        std::os::unix::fs::symlink(precious.path(), &path).unwrap();
        path
    };
    let links = [planted(".map"), planted("-2"), planted("-3.map")];
    let volume = &left.volumes()[0];
    let file = write_recovery(&left, volume, image.path().parent().unwrap()).unwrap();
    assert!(file.to_str().unwrap().ends_with(".headworks-recovery-4"), "{file:?}");
    assert_eq!(std::fs::read_to_string(precious.path()).unwrap(), "precious");
    for link in links {
        std::fs::remove_file(link).unwrap();
    }
    remove_recovery(&file);
    assert!(!image.path().with_file_name(format!("{name}.headworks-recovery")).exists());
}

fn remove_recovery(file: &Path) {
    let mut map = file.as_os_str().to_owned();
    map.push(".map");
    std::fs::remove_file(map).unwrap();
    std::fs::remove_file(file).unwrap();
}

#[test]
fn incomplete_foreign_and_damaged_files_are_told_apart() {
    let file = |change: fn(&Mapping)| {
        let (memory, rows) = (memfd(), 8);
        let geometry = vec![ShardGeometry { units: UNITS, buffers: 1 << 20 }];
        drop(CacheMemory::new(memory.try_clone().unwrap(), rows, geometry, 0).unwrap());
        change(&Mapping::shared(&memory, 0, 1 << 16, true).unwrap());
        LeftCache::open(memory).map(|left| left.is_some()).map_err(|error| error.to_string())
    };
    assert_eq!(file(|_| ()), Ok(true));
    assert_eq!(file(|memory| word(memory, head::READY).store(0, Ordering::Relaxed)), Ok(false));
    let other = file(|memory| word(memory, head::VERSION).store(9, Ordering::Relaxed));
    assert!(other.unwrap_err().contains("has layout 9, and this version reads layouts up to 2"));
    let foreign = file(|memory| word(memory, head::MAGIC).store(9, Ordering::Relaxed));
    assert!(foreign.unwrap_err().contains("no cache file"));
    // A process died after the first word.
    let begun = memfd();
    begun.write_all_at(b"hwcache\n", 0).unwrap();
    begun.set_len(4096).unwrap();
    assert!(LeftCache::open(begun).unwrap().is_none());
    // A process of an older version died before it; a file system's image begins with a kilobyte of zeros.
    for (written, expected) in
        [(0, Ok(false)), (1, Err("is no cache file of headworks".to_owned()))]
    {
        let memory = memfd();
        memory.set_len(1 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&memory, &[written], 1024 + 56).unwrap();
        let opened = LeftCache::open(memory).map(|left| left.is_some());
        assert_eq!(opened.map_err(|error| error.to_string()), expected);
    }
    for at in [head::ROWS, head::SHARDS, head::CONTROL_LEN] {
        let memory = memfd();
        let geometry = vec![ShardGeometry { units: UNITS, buffers: 1 << 20 }];
        drop(CacheMemory::new(memory.try_clone().unwrap(), 8, geometry, 0).unwrap());
        let head = Mapping::shared(&memory, 0, 1 << 16, true).unwrap();
        word(&head, at).store(u64::MAX / 2, Ordering::Relaxed);
        let error = LeftCache::open(memory).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}

#[test]
fn named_file_of_zeros_is_an_empty_disk() {
    let Some(memory) = memory_directory() else { return };
    let path = TempFile::absent_in(&memory, "cache-zeros");
    let file = File::options().read(true).write(true).create_new(true).open(path.path()).unwrap();
    file.set_len(1 << 20).unwrap();
    let refused = LeftCache::open(file).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("no cache file"), "{refused}");
}

/// An empty file on a tmpfs of limited size; none where /dev/shm is no such.
fn limited_file(name: &str) -> Option<(File, TempFile)> {
    let gone = TempFile::absent_in(Path::new("/dev/shm"), name);
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(gone.path()).ok()?;
    let limited = super::reserve::Space::of(&file, false).unwrap().is_some();
    limited.then_some((file, gone))
}

fn bytes_of(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().unwrap().blocks() * 512
}

#[test]
fn what_stays_for_the_next_start_is_what_is_dirty() {
    let process = Process::new("left-shrunk");
    (0..40).for_each(|frame| process.fill(frame, 1));
    process.dirty(3, 4, 6);
    process.dirty(9, 5, 7);
    let buffers = &process.shard.buffers;
    // SAFETY: our own mapping.
    unsafe { buffers.at(0, 1 << 20).write_bytes(1, 1 << 20) };
    let (left, image) = process.die();
    let frames_and_buffers = (40 * BLOCK + (1 << 20)) as u64;
    let before = bytes_of(left.file());
    left.shrink();
    let given = before - bytes_of(left.file());
    assert_eq!(given, frames_and_buffers - 2 * BLOCK as u64);
    restore_all(&left, image.path());
    let bytes = std::fs::read(image.path()).unwrap();
    assert_eq!((bytes[4 * BLOCK], bytes[6 * BLOCK - 1]), (6, 7));
}

#[test]
fn space_is_reserved_before_it_is_used() {
    let Some((file, _gone)) = limited_file("reserved") else {
        eprintln!("skipped: /dev/shm is no tmpfs of limited size");
        return;
    };
    let geometry = vec![ShardGeometry { units: 1 << 20, buffers: 64 << 20 }];
    let memory = CacheMemory::new(file.try_clone().unwrap(), 8, geometry.clone(), 1 << 20).unwrap();
    let first = bytes_of(&file);
    assert_eq!(memory.backed(0), Some(1024));
    let floors = (32 << 20) + (4 << 20);
    assert!((floors..floors + (1 << 20)).contains(&first), "{first} bytes at the start");
    let shard = memory.shard(0).unwrap();
    let (frames, buffers) = shard.space.as_ref().unwrap();
    // Looks and counts touch what is reserved alone.
    assert_eq!(memory.dirty_bytes(), 0);
    assert!(LeftCache::look(file.try_clone().unwrap()).unwrap().unwrap().volumes().is_empty());
    assert_eq!(bytes_of(&file), first);
    frames.reserve(4 << 20, 2 << 20).unwrap();
    assert!(buffers.reserve(32 << 20, 1 << 20));
    let more = bytes_of(&file) - first;
    assert!((3 << 20..(3 << 20) + 8192).contains(&more), "{more}");
    // A process that takes over has it, and some to grow.
    let adopted = CacheMemory::adopt(file.try_clone().unwrap(), 8, geometry).unwrap();
    assert_eq!(adopted.backed(0), Some(1024 + 512 + 1024));
    let too_much = vec![ShardGeometry { units: 1 << 30, buffers: 64 << 20 }];
    let whole = CacheMemory::new(file, 8, too_much, 0).unwrap_err().to_string();
    assert!(whole.contains("cache and buffers need 4 TiB"), "{whole}");
}

#[test]
fn restore_of_one_image_hides_no_change_of_another() {
    let process = Process::new("left-one");
    process.dirty(3, 5, 8);
    let other = TempFile::new("left-two");
    std::fs::write(other.path(), vec![1; 10 * BLOCK]).unwrap();
    let opened = open(other.path());
    let (identity, path) = (opened.identity(), other.path().to_owned());
    let (size, disk) = (opened.found().size, identity.disk_of_filesystem());
    let row = VolumeRow { identity, path, size, suspect: false, disk, ahead: 0, touched: 0 };
    process.memory.set_row(VolumeId(3), &row);
    process.fill(4, 9);
    process.log().set(4, 1, DirtyEntry::new(VolumeId(3), 5));
    drop(opened);
    let (left, image) = process.die();
    // As if the process had died ten seconds earlier: so both images have changed since.
    left.set_alive(left.alive() - 10_000_000_000);
    let rows: Vec<_> = left.volumes().into_iter().map(|volume| volume.row.unwrap()).collect();
    let was = |row: &VolumeRow| judged(&left, row, &open(&row.path), true);
    assert!(rows.iter().all(|row| matches!(was(row), Verdict::Changed(_))));
    // A time of the present must be later than the changes: the clock of `touch` is coarser than that of some filesystems.
    let changed = rows.iter().filter_map(|row| ImageState::of(&open(&row.path)).changed).max();
    while changed.is_some_and(|changed| super::dirty_log::now() <= changed) {
        std::thread::yield_now();
    }
    left.touch(VolumeId(2));
    let rows: Vec<_> = left.volumes().into_iter().map(|volume| volume.row.unwrap()).collect();
    assert_eq!(was(&rows[0]), Verdict::Unchanged, "its restore may have changed it");
    assert!(matches!(was(&rows[1]), Verdict::Changed(_)), "{:?}", was(&rows[1]));
    drop(image);
}
