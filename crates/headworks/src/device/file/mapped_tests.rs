//! Images in memory: holes stay holes, and what others do to the file harms one command at most.
//!
//! The images are memfds, which every machine has; a full tmpfs is made in a mount namespace of a child process.

use std::fs::{File, Permissions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::known::pages_of;
use super::mapped::MappedImage;
use super::*;
use crate::device::testing::{Bench, TempFile, against_model};
use crate::memory::PAGE;

const P: u64 = PAGE as u64;
const NONE: BioFlags = BioFlags::NONE;

/// A file in memory of `size` bytes of `value`; sparse if that is 0.
fn memory_file(size: u64, value: u8) -> File {
    // SAFETY: plain calls; the descriptor is nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"image".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(size).unwrap();
    if value != 0 {
        file.write_all_at(&vec![value; size as usize], 0).unwrap();
    }
    file
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn opened(file: &File) -> OpenFile {
    OpenFile::open(&path_of(file), &FileOptions::default()).unwrap()
}

/// A device that serves `files`, from volume 0 on.
fn serving(files: &[&File]) -> Bench<FileDevice> {
    let images = files.iter().zip(0..).map(|(file, volume)| {
        let image = opened(file);
        assert!(image.mapped(), "images in memory are mapped");
        (VolumeId(volume), image)
    });
    Bench::new(FileDevice::new(DeviceId(0), images.collect()))
}

fn pages(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512 / P
}

/// Writes `len` bytes of `value`; what came of it.
fn write(bench: &mut Bench<FileDevice>, value: u8, offset: u64, len: u32) -> Result<u32, IoError> {
    bench.buffer()[..len as usize].fill(value);
    let done = bench.run(Op::Write, NONE, offset, len);
    done.status.map(|()| done.transferred)
}

/// Reads `len` bytes; how many came, which are all `value`.
fn read(bench: &mut Bench<FileDevice>, value: u8, offset: u64, len: u32) -> Result<u32, IoError> {
    bench.buffer()[..len as usize].fill(!value);
    let done = bench.run(Op::Read, NONE, offset, len);
    let transferred = done.transferred as usize;
    let bytes = &bench.buffer()[..transferred];
    assert!(bytes.iter().all(|&byte| byte == value), "{offset} + {transferred}");
    done.status.map(|()| done.transferred)
}

#[test]
fn reading_holes_costs_no_memory() {
    let file = memory_file(64 << 20, 0);
    let mut bench = serving(&[&file]);
    for _ in 0..2 {
        for offset in (0..64 << 20).step_by(1 << 20) {
            assert_eq!(read(&mut bench, 0, offset, 1 << 20), Ok(1 << 20));
            assert_eq!(read(&mut bench, 0, offset + 100, 4096), Ok(4096));
        }
    }
    assert_eq!(pages(&file), 0);
    // One page of data among holes, and after that one given back.
    assert_eq!(write(&mut bench, 7, 20 * P, 4096), Ok(4096));
    assert_eq!(read(&mut bench, 7, 20 * P + 50, 1000), Ok(1000));
    assert_eq!(read(&mut bench, 0, 21 * P, 4096), Ok(4096));
    assert_eq!(read(&mut bench, 0, 0, 20 * PAGE as u32), Ok(20 * PAGE as u32));
    assert_eq!(pages(&file), 1);
    for op in [Op::Discard, Op::WriteZeroes] {
        assert_eq!(write(&mut bench, 7, 20 * P, 4096), Ok(4096));
        assert_eq!(bench.run(op, NONE, 19 * P, 3 * PAGE as u32).status, Ok(()));
        assert_eq!(read(&mut bench, 0, 20 * P, 4096), Ok(4096));
        assert_eq!(pages(&file), 0, "{op:?}");
    }
}

#[test]
fn what_has_memory_is_learned_and_then_copied() {
    let file = memory_file(64 * P, 5);
    let discard = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call on an open file.
    let punched = unsafe { libc::fallocate(file.as_raw_fd(), discard, 20 * P as i64, P as i64) };
    assert_eq!(punched, 0);
    let mut image = MappedImage::new(&file, 64 * P, false).unwrap();
    let mut bytes = vec![0; 8 * PAGE];
    let span = [Span { base: bytes.as_mut_ptr(), len: 8 * PAGE }];
    let read = |offset| DiskOp {
        device: DeviceId(0),
        id: RequestId { slot: 0, generation: 0 },
        fd: file.as_raw_fd(),
        kind: DiskKind::Read,
        offset,
        len: 8 * P,
    };
    for (first, known) in [(0, true), (8, true), (16, false), (24, true), (56, true)] {
        // SAFETY: the span is `bytes`, which nobody else uses.
        let result = unsafe { image.transfer(1, &read(first * P), &span) };
        assert_eq!(result, 8 * PAGE as i32);
        let pages = pages_of(first * P, (first + 8) * P);
        assert_eq!(image.known().all_data(pages), known, "{first}");
    }
    // A batch in which the size was asked before somebody changed it: the copy itself finds out, reads short, and the
    // next ones are as good as the file.
    file.set_len(4 * P + 100).unwrap();
    for (first, result) in [(0, 4 * PAGE as i32 + 100), (24, 0), (3, PAGE as i32 + 100)] {
        bytes.fill(9);
        // SAFETY: as above.
        let found = unsafe { image.transfer(1, &read(first * P), &span) };
        assert_eq!(found, result, "{first}");
        assert!(bytes[..found as usize].iter().all(|&byte| byte == 5));
    }
    let write = DiskOp { kind: DiskKind::Write { dsync: false }, ..read(24 * P) };
    // SAFETY: as above.
    let refused = unsafe { image.transfer(1, &write, &span) };
    assert_eq!(refused, -libc::EIO);
    assert_eq!(file.metadata().unwrap().len(), 4 * P + 100);
    file.set_len(64 * P).unwrap();
    // SAFETY: as above.
    let written = unsafe { image.transfer(2, &write, &span) };
    assert_eq!(written, 8 * PAGE as i32);
    assert_eq!(pages(&file), 5 + 8);
}

#[test]
fn a_write_whose_page_is_gone_in_its_own_batch_is_an_error() {
    let file = memory_file(16 * P, 5);
    let mut image = MappedImage::new(&file, 16 * P, false).unwrap();
    let mut bytes = vec![6; PAGE];
    let span = [Span { base: bytes.as_mut_ptr(), len: PAGE }];
    let write = DiskOp {
        device: DeviceId(0),
        id: RequestId { slot: 0, generation: 0 },
        fd: file.as_raw_fd(),
        kind: DiskKind::Write { dsync: false },
        offset: 8 * P,
        len: P,
    };
    // SAFETY: the span is `bytes`, which nobody else uses.
    let mut run = |batch| unsafe { image.transfer(batch, &write, &span) };
    assert_eq!(run(1), PAGE as i32);
    file.set_len(8 * P).unwrap();
    assert_eq!(run(1), -libc::EIO, "by the fault");
    assert_eq!(run(2), -libc::EIO, "by the size");
    file.set_len(16 * P).unwrap();
    assert_eq!(run(3), PAGE as i32);
    let mut back = [0; PAGE];
    file.read_exact_at(&mut back, 8 * P).unwrap();
    assert_eq!(back, [6; PAGE]);
}

#[test]
fn an_image_cut_within_a_page_reads_short_and_does_not_grow() {
    let file = memory_file(16 * P, 5);
    let mut bench = serving(&[&file]);
    assert_eq!(read(&mut bench, 5, 0, 16 * PAGE as u32), Ok(16 * PAGE as u32));
    for size in [5000, 4096, 4095, 1, 0] {
        file.set_len(size).unwrap();
        assert_eq!(read(&mut bench, 5, 0, 4 * PAGE as u32), Ok(size as u32));
        assert_eq!(read(&mut bench, 5, size, 100), Ok(0));
        assert_eq!(write(&mut bench, 5, size, 1), Err(IoError::Medium));
        assert_eq!(write(&mut bench, 5, 0, 8192), Err(IoError::Medium));
        assert_eq!(write(&mut bench, 5, 0, size as u32), Ok(size as u32));
        assert_eq!(file.metadata().unwrap().len(), size);
    }
    file.set_len(16 * P).unwrap();
    assert_eq!(read(&mut bench, 0, 0, 16 * PAGE as u32), Ok(16 * PAGE as u32));
    assert_eq!(pages(&file), 0, "nothing old is known of it any more");
    assert_eq!(write(&mut bench, 8, 100, 8192), Ok(8192));
    assert_eq!(read(&mut bench, 8, 100, 8192), Ok(8192));
}

#[test]
fn somebody_truncates_all_the_time() {
    let (torn, whole) = (memory_file(64 * P, 5), memory_file(64 * P, 6));
    let mut bench = serving(&[&torn, &whole]);
    let stop = Arc::new(AtomicBool::new(false));
    let somebody = std::thread::spawn({
        let (stop, file) = (Arc::clone(&stop), torn.try_clone().unwrap());
        move || {
            while !stop.load(Ordering::Relaxed) {
                file.set_len(7 * P).unwrap();
                file.set_len(64 * P).unwrap();
            }
        }
    });
    let mut short = 0;
    for round in 0..20_000u64 {
        bench.volume = VolumeId((round % 2) as u16);
        let offset = round * 13 % 48 * P;
        let op = if round % 4 < 2 { Op::Read } else { Op::Write };
        bench.buffer()[..8 * PAGE].fill(6);
        let done = bench.run(op, NONE, offset, 8 * PAGE as u32);
        let complete = done.status == Ok(()) && done.transferred == 8 * PAGE as u32;
        if bench.volume == VolumeId(1) {
            assert!(complete && bench.buffer()[..8 * PAGE] == [6; 8 * PAGE]);
        } else {
            assert!(matches!(done.status, Ok(()) | Err(IoError::Medium)));
            short += u32::from(!complete);
        }
    }
    stop.store(true, Ordering::Relaxed);
    somebody.join().unwrap();
    assert!(short > 0, "the two must have met");
    bench.volume = VolumeId(0);
    assert_eq!(write(&mut bench, 9, 0, 64 * PAGE as u32), Ok(64 * PAGE as u32));
    assert_eq!(read(&mut bench, 9, 0, 64 * PAGE as u32), Ok(64 * PAGE as u32));
}

#[test]
fn agrees_with_a_vector_whatever_its_size() {
    for (seed, size) in [(1, 10_001), (2, 4096), (3, 100), (4, 1 << 20), (5, (1 << 20) - 1)] {
        let file = memory_file(size, 0);
        let block = if size.is_multiple_of(4096) { 512 } else { 1 };
        against_model(&mut serving(&[&file]), seed, size as usize, block, 600);
        assert_eq!(file.metadata().unwrap().len(), size);
    }
}

#[test]
fn what_cannot_be_mapped_is_served_by_system_calls() {
    // 4 EiB, of which nobody has the address space.
    let file = memory_file(1 << 62, 0);
    let image = opened(&file);
    assert_eq!((image.mode(), image.mapped()), (FileMode::Inline, false));
    let mut bench = Bench::new(FileDevice::new(DeviceId(0), vec![(VolumeId(0), image)]));
    let last = (1 << 62) - 8192;
    assert_eq!(write(&mut bench, 3, last, 8192), Ok(8192));
    assert_eq!(read(&mut bench, 3, last, 8192), Ok(8192));
    assert_eq!(read(&mut bench, 0, 0, 8192), Ok(8192));
    assert_eq!(pages(&file), 2);
}

#[test]
fn a_read_only_image_is_mapped_if_the_kernel_tells_of_its_holes() {
    let file = memory_file(64 * P, 0);
    file.write_all_at(&[4; PAGE], 0).unwrap();
    file.set_permissions(Permissions::from_mode(0o444)).unwrap();
    let open = |file: &File| {
        let read_only = FileOptions { read_only: true, ..FileOptions::default() };
        let image = OpenFile::open(&path_of(file), &read_only).unwrap();
        let mapped = image.mapped();
        let mut bench = Bench::new(FileDevice::new(DeviceId(0), vec![(VolumeId(0), image)]));
        assert_eq!(read(&mut bench, 4, 0, 4096), Ok(4096));
        assert_eq!(read(&mut bench, 0, P, 63 * PAGE as u32), Ok(63 * PAGE as u32));
        assert_eq!(write(&mut bench, 0, P, 4096), Err(IoError::ReadOnly));
        mapped
    };
    assert!(open(&file), "its owner is told");
    assert_eq!(pages(&file), 1);
    // To others every page seems to have memory. Threads have their own user in Linux, if asked past the C library.
    // SAFETY: plain calls.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not tested: a file of another user, since only root may become one");
        return;
    }
    let mapped = std::thread::scope(|scope| {
        let nobody = scope.spawn(|| {
            // SAFETY: a plain call, which changes this thread alone; it ends soon.
            let failed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(failed, 0);
            MappedImage::new(&file, 64 * P, true).is_some()
        });
        nobody.join().unwrap()
    });
    assert!(!mapped);
}

/// As whom the child of [`a_full_filesystem_fails_its_command_alone`] runs: it is given a directory.
const DIRECTORY: &str = "HEADWORKS_FULL_TMPFS";

#[test]
fn a_full_filesystem_fails_its_command_alone() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        fill_up(Path::new(&directory));
        return;
    }
    let directory = TempFile::absent("full");
    std::fs::create_dir(directory.path()).unwrap();
    let name = "device::file::mapped_tests::a_full_filesystem_fails_its_command_alone";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]);
    child.env(DIRECTORY, directory.path());
    let target = std::ffi::CString::new(directory.path().as_os_str().as_bytes()).unwrap();
    // SAFETY: plain calls.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let maps = [
        (c"/proc/self/setgroups", "deny".to_string()),
        (c"/proc/self/gid_map", format!("0 {group} 1")),
        (c"/proc/self/uid_map", format!("0 {user} 1")),
    ];
    // SAFETY: between fork and exec it makes system calls alone, on strings made before.
    unsafe { child.pre_exec(move || mount_small_tmpfs(&target, &maps)) };
    let output = child.output();
    let _ = std::fs::remove_dir(directory.path());
    match output {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => eprintln!("not tested: a small tmpfs may not be mounted here ({error})"),
    }
}

/// In a mount namespace of its own, and a user namespace where that is what it takes.
fn mount_small_tmpfs(
    target: &std::ffi::CStr,
    maps: &[(&std::ffi::CStr, String)],
) -> std::io::Result<()> {
    let null = std::ptr::null();
    // SAFETY: plain system calls on strings that live through them.
    let failed = unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            if libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWUSER) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            for (path, text) in maps {
                let fd = libc::open(path.as_ptr(), libc::O_WRONLY);
                libc::write(fd, text.as_ptr().cast(), text.len());
                libc::close(fd);
            }
        }
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let (tmpfs, size) = (c"tmpfs".as_ptr(), c"size=256k".as_ptr());
        libc::mount(null, c"/".as_ptr(), null, private, null.cast()) != 0
            || libc::mount(tmpfs, target.as_ptr(), tmpfs, 0, size.cast()) != 0
    };
    match failed {
        true => Err(std::io::Error::last_os_error()),
        false => Ok(()),
    }
}

/// On a tmpfs of 64 pages.
fn fill_up(directory: &Path) {
    let options = FileOptions { size: Some(128 * P), ..FileOptions::default() };
    let path = directory.join("image");
    let image = OpenFile::open(&path, &options).unwrap();
    assert!(image.mapped());
    let mut bench = Bench::new(FileDevice::new(DeviceId(0), vec![(VolumeId(0), image)]));
    assert_eq!(write(&mut bench, 1, 0, 16 * PAGE as u32), Ok(16 * PAGE as u32));
    let other = File::options().write(true).open(&path).unwrap();
    let filler = File::create(directory.join("filler")).unwrap();
    let fill = || {
        let mut at = filler.metadata().unwrap().len();
        while filler.write_all_at(&[0xff; PAGE], at).is_ok() {
            at += P;
        }
    };
    // A hole, and no memory for it.
    fill();
    assert_eq!(write(&mut bench, 2, 20 * P, 4096), Err(IoError::NoSpace));
    assert_eq!(write(&mut bench, 2, 4 * P, 4096), Ok(4096));
    // Somebody makes a hole where there was data, and the memory goes elsewhere: copies to and from it fault.
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain call on an open file.
    let punched = unsafe { libc::fallocate(other.as_raw_fd(), punch, 8 * P as i64, 4 * P as i64) };
    assert_eq!(punched, 0);
    fill();
    assert_eq!(write(&mut bench, 3, 9 * P, 4096), Err(IoError::NoSpace));
    assert_eq!(read(&mut bench, 0, 10 * P, 4096), Ok(4096));
    assert_eq!(write(&mut bench, 3, 7 * P, 4 * PAGE as u32), Ok(4096), "a page fits");
    assert_eq!(write(&mut bench, 3, 12 * P, 4096), Ok(4096));
    assert_eq!(read(&mut bench, 3, 12 * P, 4096), Ok(4096));
    assert_eq!(read(&mut bench, 2, 4 * P, 4096), Ok(4096));
    // And there is memory again.
    filler.set_len(0).unwrap();
    assert_eq!(write(&mut bench, 4, 8 * P, 5 * PAGE as u32), Ok(5 * PAGE as u32));
    assert_eq!(read(&mut bench, 4, 8 * P, 5 * PAGE as u32), Ok(5 * PAGE as u32));
    let mut bytes = vec![0; 5 * PAGE];
    File::open(&path).unwrap().read_exact_at(&mut bytes, 8 * P).unwrap();
    assert_eq!(bytes, [4; 5 * PAGE]);
}
