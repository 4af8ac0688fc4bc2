//! The file device against a vector model, and each step of its commands.

use std::collections::VecDeque;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::*;
use crate::testing::{Bench, TempFile, against_model, memory_directory};

const SIZE: u64 = 2 << 20;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

fn image(path: &Path, direct: Direct) -> OpenFile {
    let options = FileOptions { size: Some(SIZE), direct, ..FileOptions::default() };
    OpenFile::open(path, &options).unwrap()
}

fn bench(file: OpenFile) -> Bench<FileDevice> {
    let mut bench = Bench::new(FileDevice::new(vec![(VolumeId(2), file)]));
    bench.volume = VolumeId(2);
    bench
}

/// An image that uses the disk queue, on any kind of temporary directory.
fn queued(name: &str) -> Option<(TempFile, Bench<FileDevice>)> {
    let file = TempFile::absent(name);
    let opened = image(file.path(), Direct::Auto);
    (opened.mode() != FileMode::Inline).then(|| (file, bench(opened)))
}

fn kinds(bench: &Bench<FileDevice>) -> Vec<DiskKind> {
    bench.disk.log.iter().map(|op| op.kind).collect()
}

#[test]
fn random_commands_match_vector_model_in_every_mode() {
    let temporary = std::env::temp_dir();
    let memory = memory_directory().unwrap_or_else(|| temporary.clone());
    for (directory, direct, steps) in [
        (&temporary, Direct::Auto, 250),
        (&temporary, Direct::Off, 250),
        (&memory, Direct::Auto, 1500),
    ] {
        let file = TempFile::absent_in(directory, "model");
        let opened = image(file.path(), direct);
        let block = opened.volume_options().block_size as usize;
        against_model(&mut bench(opened), 5, SIZE as usize, block, steps);
        let metadata = std::fs::metadata(file.path()).unwrap();
        assert_eq!(metadata.len(), SIZE, "no command changes the size");
    }
}

#[test]
fn write_of_zeros_without_spans_is_split_and_continued() {
    let Some((file, mut bench)) = queued("zeros") else {
        return;
    };
    bench.buffer().fill(7);
    assert_eq!(bench.run(Op::Write, BioFlags::NONE, 0, SIZE as u32).status, Ok(()));
    let done = bench.write_zeros(BioFlags::FUA, 4096, (1 << 20) + 4096);
    assert_eq!((done.status, done.transferred), (Ok(()), (1 << 20) + 4096));
    let bytes = std::fs::read(file.path()).unwrap();
    let zeros = 4096..4096 + (1 << 20) + 4096;
    for (at, &byte) in bytes.iter().enumerate() {
        assert_eq!(byte == 0, zeros.contains(&at), "at {at}");
    }
    assert_eq!(kinds(&bench)[1], DiskKind::Write { dsync: true });
    // A length beyond one operation's limit is a short transfer, which the queue continues.
    let mut device = FileDevice::new(Vec::new());
    let most: usize = device.fill_zero_spans(32 << 20).iter().map(|span| span.len()).sum();
    assert_eq!(most, ZEROS_LEN * ZERO_SPANS_MAX);
    let spans = device.fill_zero_spans(ZEROS_LEN + 5);
    assert_eq!(spans.iter().map(|span| span.len()).collect::<Vec<_>>(), [ZEROS_LEN, 5]);
}

/// Command, flags, results of its operations, expected operations, expected status.
type Steps<'a> = (Op, BioFlags, &'a [i32], &'a [DiskKind], Status);

#[test]
fn each_command_issues_the_expected_operations() {
    use DiskKind::{Allocate, Sync};
    let none = BioFlags::NONE;
    let keep = BioFlags::NO_UNMAP;
    let fua = BioFlags::FUA;
    let eopnotsupp = -libc::EOPNOTSUPP;
    let eio = -libc::EIO;
    let punch = Allocate { mode: PUNCH };
    let zero = Allocate { mode: ZERO_RANGE };
    let fill = Allocate { mode: libc::FALLOC_FL_KEEP_SIZE };
    let unsupported = Err(IoError::Unsupported);
    let medium = Err(IoError::Medium);
    let cases: &[Steps] = &[
        (Op::Flush, none, &[0], &[Sync], Ok(())),
        (Op::Flush, none, &[eio], &[Sync], medium),
        (Op::Discard, none, &[0], &[punch], Ok(())),
        (Op::Discard, fua, &[0, 0], &[punch, Sync], Ok(())),
        (Op::Discard, fua, &[0, eio], &[punch, Sync], medium),
        (Op::Discard, fua, &[eopnotsupp], &[punch], unsupported),
        (Op::WriteZeroes, none, &[0], &[punch], Ok(())),
        (Op::WriteZeroes, none, &[-libc::ENODEV], &[punch], unsupported),
        (Op::WriteZeroes, keep, &[0], &[zero], Ok(())),
        (Op::WriteZeroes, keep, &[-libc::ENOSPC], &[zero], Err(IoError::NoSpace)),
        (Op::WriteZeroes, keep.with(fua), &[0, 0], &[zero, Sync], Ok(())),
        (Op::WriteZeroes, keep, &[eopnotsupp, 0, 0], &[zero, punch, fill], Ok(())),
        (Op::WriteZeroes, keep, &[eopnotsupp, 0, eio], &[zero, punch, fill], medium),
        (Op::WriteZeroes, keep, &[eopnotsupp, eopnotsupp], &[zero, punch], unsupported),
        (
            Op::WriteZeroes,
            keep.with(fua),
            &[eopnotsupp, 0, 0, 0],
            &[zero, punch, fill, Sync],
            Ok(()),
        ),
    ];
    let Some((_file, mut bench)) = queued("steps") else {
        return;
    };
    for &(op, flags, results, expected, status) in cases {
        bench.disk.log.clear();
        bench.disk.script = results.iter().copied().map(Some).collect();
        let len = if op == Op::Flush { 0 } else { 8192 };
        let done = bench.run(op, flags, 4096, len);
        let what = format!("{op:?} {flags:?} {results:?}");
        assert_eq!(kinds(&bench), expected, "{what}");
        assert_eq!(done.status, status, "{what}");
        assert_eq!(done.transferred, if status.is_ok() { len } else { 0 }, "{what}");
        assert!(bench.device().stepped.is_empty(), "{what}");
        for op in &bench.disk.log {
            assert_eq!((op.device, op.offset, op.len), (DeviceId(3), 4096, len.into()));
        }
    }
}

#[test]
fn transfer_results_map_to_status_and_length() {
    let Some((_file, mut bench)) = queued("results") else {
        return;
    };
    for (result, status, transferred) in [
        (4096, Ok(()), 4096),
        (512, Ok(()), 512),
        (0, Ok(()), 0),
        (-libc::EIO, Err(IoError::Medium), 0),
        (-libc::EAGAIN, Err(IoError::Busy), 0),
        (-libc::ENOSPC, Err(IoError::NoSpace), 0),
        (i32::MIN, Err(IoError::Medium), 0),
    ] {
        for op in [Op::Read, Op::Write] {
            bench.disk.script = VecDeque::from([Some(result)]);
            let done = bench.run(op, BioFlags::NONE, 0, 4096);
            assert_eq!((done.status, done.transferred), (status, transferred));
        }
    }
}

#[test]
fn full_engine_returns_busy_at_every_step() {
    let Some((_file, mut bench)) = queued("busy") else {
        return;
    };
    bench.disk.full = true;
    for op in Op::ALL {
        let done = bench.run(op, BioFlags::NONE, 0, 4096);
        assert_eq!(done.status, Err(IoError::Busy));
    }
    // Full at a later step: the queue restarts the command.
    bench.disk.full = false;
    bench.disk.script = VecDeque::from([Some(-libc::EOPNOTSUPP)]);
    bench.submit(Op::WriteZeroes, BioFlags::NO_UNMAP, 0, 4096);
    bench.disk.full = true;
    let done = bench.drain();
    assert_eq!((done.len(), done[0].status), (1, Err(IoError::Busy)));
    assert!(bench.device().stepped.is_empty());
}

#[test]
fn step_table_is_bounded_and_completions_match_their_commands() {
    let Some((_file, mut bench)) = queued("table") else {
        return;
    };
    let capacity = bench.device().stepped.capacity();
    let ids: Vec<_> =
        (0..STEPPED_MAX + 1).map(|_| bench.submit(Op::Flush, BioFlags::NONE, 0, 0)).collect();
    let busy = std::mem::take(&mut bench.completions);
    assert_eq!((busy.len(), busy[0].id), (1, ids[STEPPED_MAX]));
    assert_eq!(busy[0].status, Err(IoError::Busy));
    bench.disk.script =
        (0..STEPPED_MAX).map(|index| Some(if index == 7 { -libc::EIO } else { 0 })).collect();
    let done = bench.drain();
    for (index, completion) in done.iter().enumerate() {
        assert_eq!(completion.id, ids[index]);
        assert_eq!(completion.status.is_err(), index == 7);
    }
    assert_eq!((done.len(), bench.device().stepped.capacity()), (STEPPED_MAX, capacity));
}

#[test]
fn volumes_use_their_own_images_and_unknown_volumes_fail() {
    let (one, two) = (TempFile::absent("several"), TempFile::absent("several"));
    let images = vec![
        (VolumeId(4), image(one.path(), Direct::Off)),
        (VolumeId(1), image(two.path(), Direct::Off)),
    ];
    // Data in the page cache become durable by a flush only, and the images share a queue.
    assert!(
        images
            .iter()
            .all(|(_, image)| image.mode() != FileMode::Buffered || !image.queue_options().fua)
    );
    let device = FileDevice::new(images);
    let buffered = device.files.iter().flatten().any(|file| file.mode() == FileMode::Buffered);
    assert_eq!(device.queue_options().fua, !buffered);
    let mut bench = Bench::new(device);
    for (volume, value) in [(4, 0x44), (1, 0x11)] {
        bench.volume = VolumeId(volume);
        bench.buffer()[..4096].fill(value);
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, 0, 4096).status, Ok(()));
    }
    assert_eq!(std::fs::read(one.path()).unwrap()[0], 0x44);
    assert_eq!(std::fs::read(two.path()).unwrap()[0], 0x11);
    for volume in [0, 2, 5, 4095] {
        bench.volume = VolumeId(volume);
        for op in Op::ALL {
            let done = bench.run(op, BioFlags::NONE, 0, 4096);
            assert_eq!(done.status, Err(IoError::Invalid));
        }
    }
}

#[test]
fn read_only_image_rejects_writes_and_completes_reads() {
    let file = TempFile::new("read-only");
    std::fs::write(file.path(), [5; 8192]).unwrap();
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    let mut bench = bench(OpenFile::open(file.path(), &options).unwrap());
    for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
        let done = bench.run(op, BioFlags::NONE, 0, 4096);
        assert_eq!(done.status, Err(IoError::ReadOnly));
    }
    assert_eq!(bench.run(Op::Flush, BioFlags::NONE, 0, 0).status, Ok(()));
    assert_eq!(bench.run(Op::Read, BioFlags::NONE, 4096, 4096).transferred, 4096);
    assert_eq!(bench.buffer()[..4096], [5; 4096]);
}

#[test]
fn read_beyond_end_of_shrunk_image_is_short() {
    for directory in [Some(std::env::temp_dir()), memory_directory()].into_iter().flatten() {
        let file = TempFile::absent_in(&directory, "shrunk");
        let mut bench = bench(image(file.path(), Direct::Auto));
        let other = std::fs::File::options().write(true).open(file.path()).unwrap();
        other.set_len(8192).unwrap();
        let done = bench.run(Op::Read, BioFlags::NONE, 4096, 8192);
        assert_eq!((done.status, done.transferred), (Ok(()), 4096));
        let done = bench.run(Op::Read, BioFlags::NONE, 8192, 4096);
        assert_eq!((done.status, done.transferred), (Ok(()), 0));
    }
}

#[test]
fn discard_frees_blocks_and_no_unmap_keeps_them() {
    for directory in [Some(std::env::temp_dir()), memory_directory()].into_iter().flatten() {
        let file = TempFile::absent_in(&directory, "blocks");
        let opened = image(file.path(), Direct::Auto);
        if !opened.queue_options().discard {
            continue;
        }
        let mut bench = bench(opened);
        bench.buffer().fill(9);
        let other = std::fs::File::open(file.path()).unwrap();
        let blocks = || other.metadata().unwrap().blocks();
        assert_eq!(bench.run(Op::Write, BioFlags::FUA, 0, SIZE as u32).status, Ok(()));
        let full = blocks();
        assert!(full >= SIZE / 512);
        let keep = BioFlags::NO_UNMAP.with(BioFlags::FUA);
        let done = bench.run(Op::WriteZeroes, keep, 0, SIZE as u32);
        if done.status == Ok(()) {
            assert!(blocks() >= full, "NO_UNMAP keeps the blocks");
        }
        assert_eq!(bench.run(Op::Discard, BioFlags::FUA, 0, SIZE as u32).status, Ok(()));
        assert!(blocks() < full / 2, "a discard frees them");
        let mut byte = [1];
        other.read_exact_at(&mut byte, 4096).unwrap();
        assert_eq!(byte, [0]);
    }
}

#[test]
fn block_status_queries_the_engine_in_every_mode() {
    let temporary = std::env::temp_dir();
    let memory = memory_directory().unwrap_or_else(|| temporary.clone());
    for directory in [temporary, memory] {
        let file = TempFile::absent_in(&directory, "told");
        let mut bench = bench(image(file.path(), Direct::Auto));
        let written = bench.run(Op::Write, BioFlags::NONE, 512 << 10, 4096);
        assert_eq!(written.status, Ok(()));
        bench.disk.log.clear();
        let done = bench.run(Op::BlockStatus, BioFlags::NONE, 0, SIZE as u32);
        assert_eq!((done.status, done.transferred), (Ok(()), SIZE as u32));
        // Files in memory, too: the shard does not walk their pages.
        assert_eq!(kinds(&bench), [DiskKind::Extents { one: false }]);
        let told = |bench: &mut Bench<FileDevice>| -> Vec<_> {
            let list = headworks_core::extent::extents(bench.buffer(), SIZE as u32);
            list.map(|extent| (extent.len, extent.state.0)).collect()
        };
        let rest = SIZE as u32 - (516 << 10);
        assert_eq!(told(&mut bench), [(512 << 10, 3), (4096, 0), (rest, 3)]);
        assert_eq!(bench.run(Op::Discard, BioFlags::NONE, 512 << 10, 4096).status, Ok(()));
        bench.run(Op::BlockStatus, BioFlags::ONE_EXTENT, 0, SIZE as u32);
        assert_eq!(told(&mut bench), [(SIZE as u32, 3)]);
        assert_eq!(kinds(&bench).last(), Some(&DiskKind::Extents { one: true }));
        bench.disk.script = VecDeque::from([Some(-libc::EIO)]);
        let failed = bench.run(Op::BlockStatus, BioFlags::NONE, 0, 4096);
        assert_eq!((failed.status, failed.transferred), (Err(IoError::Medium), 0));
        bench.disk.full = true;
        let busy = bench.run(Op::BlockStatus, BioFlags::NONE, 0, 4096);
        assert_eq!(busy.status, Err(IoError::Busy));
    }
}

#[test]
fn removed_image_is_unlocked_and_its_slot_reused() {
    let mut bench = Bench::new(FileDevice::new(Vec::new()));
    bench.volume = VolumeId(5);
    assert_eq!(bench.run(Op::Read, BioFlags::NONE, 0, 4096).status, Err(IoError::Invalid));
    let (first, second) = (TempFile::absent("come"), TempFile::absent("go"));
    let device = bench.device_mut();
    device.attach(VolumeId(5), Box::new(image(first.path(), Direct::Auto))).unwrap();
    let refused = device.attach(VolumeId(5), Box::new(image(second.path(), Direct::Auto)));
    assert!(refused.is_err(), "a volume has one image");
    drop(refused);
    bench.buffer()[..4096].fill(7);
    assert_eq!(bench.run(Op::Write, BioFlags::NONE, 4096, 4096).status, Ok(()));
    let options = FileOptions::default();
    assert!(OpenFile::open(first.path(), &options).is_err(), "a served image is locked");
    assert!(bench.device_mut().detach(VolumeId(5)).is_some());
    assert!(bench.device_mut().detach(VolumeId(5)).is_none());
    assert!(OpenFile::open(first.path(), &options).is_ok());
    assert_eq!(bench.run(Op::Read, BioFlags::NONE, 0, 4096).status, Err(IoError::Invalid));
    // The same volume id with another image reads that image's data.
    let device = bench.device_mut();
    device.attach(VolumeId(5), Box::new(image(second.path(), Direct::Auto))).unwrap();
    assert_eq!(bench.run(Op::Read, BioFlags::NONE, 4096, 4096).status, Ok(()));
    assert_eq!(bench.buffer()[..4096], [0; 4096]);
}

#[test]
fn grown_image_is_readable_and_writable_to_its_new_end() {
    let temporary = std::env::temp_dir();
    let memory = memory_directory().unwrap_or_else(|| temporary.clone());
    for directory in [&temporary, &memory] {
        let file = TempFile::absent_in(directory, "grow");
        let opened = image(file.path(), Direct::Auto);
        let other = std::sync::Arc::clone(opened.file());
        let mut bench = bench(opened);
        bench.buffer()[..4096].fill(7);
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, 0, 4096).status, Ok(()));
        other.set_len(2 * SIZE).unwrap();
        bench.device_mut().grow(VolumeId(2), 2 * SIZE).unwrap();
        assert_eq!(bench.run(Op::Write, BioFlags::NONE, 2 * SIZE - 4096, 4096).status, Ok(()));
        for at in [0, 2 * SIZE - 4096] {
            bench.buffer()[..4096].fill(0);
            assert_eq!(bench.run(Op::Read, BioFlags::NONE, at, 4096).status, Ok(()));
            assert_eq!(bench.buffer()[..4096], [7; 4096], "at {at}");
        }
    }
}

#[test]
fn zeroing_in_memory_is_left_to_the_engine_in_short_steps() {
    let Some(memory) = memory_directory() else { return };
    let file = TempFile::absent_in(&memory, "zeroed");
    let opened = image(file.path(), Direct::Auto);
    if opened.mode() != FileMode::Inline {
        return;
    }
    let step = opened.queue_options().discard_max_bytes;
    assert!(step <= 1 << 20, "writers of the file wait for a step, and hold their thread");
    let mut bench = bench(opened);
    for (op, flags) in [
        (Op::Discard, BioFlags::NONE),
        (Op::WriteZeroes, BioFlags::NONE),
        (Op::WriteZeroes, BioFlags::NO_UNMAP),
    ] {
        bench.submit(op, flags, 0, step);
        assert!(bench.completions.is_empty(), "{op:?} holds the thread");
        assert_eq!(bench.drain()[0].status, Ok(()));
    }
    bench.submit(Op::Flush, BioFlags::NONE, 0, 0);
    assert_eq!(bench.completions.len(), 1, "a flush of memory takes no time");
    bench.drain();
}
