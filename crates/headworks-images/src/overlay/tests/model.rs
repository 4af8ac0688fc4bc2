//! Real files: random commands against a byte model, chains of up to eight layers, what is refused when an overlay is opened.

use std::path::Path;

use headworks_core::extent::extents;
use headworks_core::prng::Prng;
use headworks_core::{BioFlags, ExtentState, IoError, Op};

use super::super::{NewBase, NewOverlay, OpenOverlay, OverlayDevice, OverlayOptions, is_overlay};
use headworks::{Direct, FileOptions, OpenFile};
use headworks_testing::{Bench, TempFile, against_model, memory_directory};

pub(super) const SIZE: usize = 2 << 20;
const NONE: BioFlags = BioFlags::NONE;

pub(super) fn file(name: &str, len: usize) -> TempFile {
    let base = TempFile::absent(name);
    let bytes: Vec<u8> = (0..len).map(|at| (at / 512 * 7 + at % 251) as u8 | 1).collect();
    std::fs::write(base.path(), bytes).unwrap();
    base
}

pub(super) fn create(base: &Path, size: Option<u64>) -> TempFile {
    let overlay = TempFile::absent("overlay");
    NewOverlay::new(base, size).unwrap().create(overlay.path()).unwrap();
    overlay
}

pub(super) fn open(path: &Path) -> Bench<OverlayDevice> {
    let open = OpenOverlay::open(path, &OverlayOptions::default(), None).unwrap();
    Bench::new(open.into_device())
}

fn refusal(path: &Path) -> String {
    let refused = OpenOverlay::open(path, &OverlayOptions::default(), None).unwrap_err();
    let inspected = OpenOverlay::inspect(path, &OverlayOptions::default()).unwrap_err();
    assert_eq!(refused.to_string(), inspected.to_string());
    refused.to_string()
}

/// Reads all of a volume.
pub(super) fn contents(bench: &mut Bench<OverlayDevice>, size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < size {
        let len = (size - bytes.len()).min(SIZE) as u32;
        let done = bench.run(Op::Read, NONE, bytes.len() as u64, len);
        assert_eq!(done.status, Ok(()));
        assert!(done.transferred > 0);
        let transferred = done.transferred as usize;
        bytes.extend_from_slice(&bench.buffer()[..transferred]);
    }
    bytes
}

#[test]
fn random_commands_match_vector_model_on_each_kind_of_file() {
    let directories = [Some(std::env::temp_dir()), memory_directory()];
    for (seed, directory) in directories.into_iter().flatten().enumerate() {
        for direct in [Direct::Auto, Direct::Off] {
            let base = TempFile::absent_in(&directory, "zeros");
            std::fs::File::create(base.path()).unwrap().set_len(SIZE as u64 - 1024).unwrap();
            let overlay = TempFile::absent_in(&directory, "overlay");
            NewOverlay::new(base.path(), None).unwrap().create(overlay.path()).unwrap();
            let options = OverlayOptions { direct, ..OverlayOptions::default() };
            let open = OpenOverlay::open(overlay.path(), &options, None).unwrap();
            let mut bench = Bench::new(open.into_device());
            against_model(&mut bench, seed as u64, SIZE, 4096, 300);
        }
    }
}

#[test]
fn chains_match_a_byte_model_and_never_change_their_bases() {
    let mut prng = Prng::new(4);
    // A base that ends within a block, below larger overlays.
    let base = file("base", (SIZE / 2) + 1536);
    let mut model = std::fs::read(base.path()).unwrap();
    model.resize(SIZE, 0);
    let mut files = vec![base];
    for layer in 0..8 {
        let below: Vec<_> = files.iter().map(|file| std::fs::read(file.path()).unwrap()).collect();
        let overlay = create(files.last().unwrap().path(), Some(SIZE as u64));
        let mut bench = open(overlay.path());
        for step in 0..60 {
            let first = prng.below(512) as usize;
            let count = 1 + prng.below(4).min(511 - first as u64) as usize;
            let (offset, len) = (first * 4096, count * 4096);
            let flags = if prng.below(4) == 0 { BioFlags::FUA } else { NONE };
            match prng.below(5) {
                0 => {
                    let op = if prng.below(2) == 0 { Op::Discard } else { Op::WriteZeroes };
                    assert_eq!(bench.run(op, flags, offset as u64, len as u32).status, Ok(()));
                    model[offset..offset + len].fill(0);
                }
                1 => assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(())),
                _ => {
                    let byte = (layer * 16 + step % 16 + 1) as u8;
                    bench.buffer()[..len].fill(byte);
                    let done = bench.run(Op::Write, flags, offset as u64, len as u32);
                    assert_eq!((done.status, done.transferred), (Ok(()), len as u32));
                    model[offset..offset + len].fill(byte);
                }
            }
        }
        assert!(contents(&mut bench, SIZE) == model, "layer {layer}");
        assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
        drop(bench);
        assert!(contents(&mut open(overlay.path()), SIZE) == model, "layer {layer}, opened again");
        for (file, before) in files.iter().zip(below) {
            assert!(std::fs::read(file.path()).unwrap() == before, "a base has changed");
        }
        files.push(overlay);
    }
    let top = files.last().unwrap().path();
    let refused = NewOverlay::new(top, None).unwrap_err().to_string();
    assert!(refused.contains("highest of 8 overlays"), "{refused}");
    // One more below is found when the chain is opened.
    let lowest = create(files[0].path(), None);
    OpenOverlay::rebase(files[1].path(), &NewBase::of(lowest.path())).unwrap();
    assert!(refusal(top).contains("below 8 overlays"));
}

#[test]
fn read_of_alternating_blocks_is_one_answer_of_many_pieces() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    let mut bench = open(overlay.path());
    let mut model = std::fs::read(base.path()).unwrap();
    bench.buffer()[..4096].fill(9);
    for block in (0..256).step_by(2) {
        bench.run(Op::Write, NONE, block * 4096, 4096);
        model[block as usize * 4096..][..4096].fill(9);
    }
    let done = bench.run(Op::Read, NONE, 4096, 64 << 10);
    assert_eq!(done.transferred, 64 << 10);
    assert!(bench.buffer()[..64 << 10] == model[4096..][..64 << 10]);
    // 64 pieces at most; the queue continues.
    assert_eq!(bench.run(Op::Read, NONE, 0, 1 << 20).transferred, 64 * 4096);
    bench.disk.full = true;
    assert_eq!(bench.run(Op::Read, NONE, 0, 1 << 20).status, Err(IoError::Busy));
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Err(IoError::Busy));
    bench.disk.full = false;
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    assert!(contents(&mut bench, SIZE) == model);
}

#[test]
fn block_status_is_that_of_the_file_that_has_the_run() {
    let base = file("base", 128 << 10);
    let overlay = create(base.path(), Some(SIZE as u64));
    let mut bench = open(overlay.path());
    bench.run(Op::Discard, NONE, 16 << 10, 16 << 10);
    let mut status = |offset: u64| {
        assert_eq!(bench.run(Op::BlockStatus, NONE, offset, SIZE as u32 / 2).status, Ok(()));
        extents(bench.buffer(), SIZE as u32 / 2).next().unwrap()
    };
    let found = [status(0), status(16 << 10), status(32 << 10), status(128 << 10)];
    let lens = found.map(|extent| extent.len);
    assert_eq!(lens, [16 << 10, 16 << 10, 96 << 10, SIZE as u32 / 2]);
    let zero = |at: usize| found[at].state.contains(ExtentState::ZERO);
    assert_eq!([zero(0), zero(2), zero(3)], [false, false, true]);
    let done = bench.run(Op::Read, BioFlags::HOLE_OK, 256 << 10, 4096);
    assert!(done.hole, "behind the base there is nothing to read");
}

#[test]
fn full_disk_fails_the_write_and_keeps_what_was_there() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    let mut bench = open(overlay.path());
    let old = std::fs::read(base.path()).unwrap();
    bench.buffer()[..8192].fill(3);
    bench.disk.script.push_back(Some(-libc::ENOSPC));
    let first = bench.run(Op::Write, NONE, 0, 8192).status;
    // A part of a block is no block.
    bench.disk.script.push_back(Some(512));
    let second = bench.run(Op::Write, NONE, 0, 8192).status;
    if bench.disk.log.is_empty() {
        return; // In memory there is no engine that could fail.
    }
    assert_eq!((first, second), (Err(IoError::NoSpace), Err(IoError::NoSpace)));
    assert!(contents(&mut bench, SIZE) == old);
    bench.buffer()[..8192].fill(3);
    bench.disk.script.push_back(Some(4096 + 512));
    assert_eq!(bench.run(Op::Write, NONE, 0, 8192).transferred, 4096);
}

#[test]
fn open_overlay_locks_its_file_and_its_bases() {
    let base = file("base", SIZE);
    let (overlay, other) = (create(base.path(), None), create(base.path(), None));
    let open = OpenOverlay::open(overlay.path(), &OverlayOptions::default(), None).unwrap();
    assert!(refusal_of_file(base.path(), false).contains("in use"));
    assert!(refusal_of_file(overlay.path(), true).contains("in use"));
    let second = OpenOverlay::open(overlay.path(), &OverlayOptions::default(), None);
    assert!(second.unwrap_err().to_string().contains("in use by another process"));
    // Another overlay on the same base is served beside it, and readers of the base are welcome.
    let beside = OpenOverlay::open(other.path(), &OverlayOptions::default(), None).unwrap();
    let reader = FileOptions { read_only: true, ..FileOptions::default() };
    drop(OpenFile::open(base.path(), &reader).unwrap());
    drop((open, beside));
    drop(OpenFile::open(base.path(), &FileOptions::default()).unwrap());
}

fn refusal_of_file(path: &Path, read_only: bool) -> String {
    let options = FileOptions { read_only, ..FileOptions::default() };
    OpenFile::open(path, &options).unwrap_err().to_string()
}

#[test]
fn changed_or_missing_base_is_refused() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    let bytes = std::fs::read(base.path()).unwrap();
    let modified = std::fs::metadata(base.path()).unwrap().modified().unwrap();
    let restore = |bytes: &[u8]| {
        std::fs::write(base.path(), bytes).unwrap();
        let file = std::fs::File::options().write(true).open(base.path()).unwrap();
        file.set_modified(modified).unwrap();
    };
    let later = modified + std::time::Duration::from_nanos(1);
    std::fs::File::options().write(true).open(base.path()).unwrap().set_modified(later).unwrap();
    assert!(refusal(overlay.path()).contains("was modified since the overlay was made"));
    restore(&bytes[..SIZE - 4096]);
    assert!(refusal(overlay.path()).contains("has another size"));
    restore(&bytes);
    drop(open(overlay.path()));
    std::fs::remove_file(base.path()).unwrap();
    assert!(refusal(overlay.path()).contains("cannot be opened"));
}

#[test]
fn base_outside_the_directory_needs_permission() {
    let folder = TempFile::absent("folder");
    std::fs::create_dir(folder.path()).unwrap();
    let base = file("base", SIZE);
    let path = folder.path().join("tenant.hwo");
    NewOverlay::new(base.path(), None).unwrap().create(&path).unwrap();
    // A link in the directory leads out of it, too.
    let link = folder.path().join("link.img");
    std::os::unix::fs::symlink(base.path(), &link).unwrap();
    let refused = refusal(&path);
    let options = OverlayOptions { base_anywhere: true, ..OverlayOptions::default() };
    let allowed = OpenOverlay::open(&path, &options, None);
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert!(refused.contains("backing=allow"), "{refused}");
    allowed.unwrap();
}

#[test]
fn file_that_is_no_overlay_is_refused_and_recognised() {
    let base = file("base", SIZE);
    assert!(refusal(base.path()).contains("is not an overlay"));
    assert!(!is_overlay(base.path()));
    let overlay = create(base.path(), None);
    assert!(is_overlay(overlay.path()));
    let file = std::fs::File::options().write(true).open(overlay.path()).unwrap();
    file.set_len(2 << 20).unwrap();
    assert!(refusal(overlay.path()).contains("is cut short") && !is_overlay(overlay.path()));
    let missing = TempFile::absent("missing");
    assert!(refusal(missing.path()).contains("headworks image create"));
    let again = NewOverlay::new(base.path(), None).unwrap().create(overlay.path());
    assert!(again.unwrap_err().to_string().contains("exists already"));
    let small = NewOverlay::new(base.path(), Some(4096)).unwrap_err().to_string();
    assert!(small.contains("which has 2 MiB: give one from that to"), "{small}");
}

#[test]
fn writer_of_an_overlay_that_is_not_served_sets_bits_behind_a_sync() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    let mut model = std::fs::read(base.path()).unwrap();
    {
        let open = OpenOverlay::open(overlay.path(), &OverlayOptions::default(), None).unwrap();
        let writer = open.writer();
        assert_eq!(writer.size(), SIZE as u64);
        let page = headworks::house::Mapping::new(8192).unwrap();
        // SAFETY: our own mapping.
        let bytes = unsafe { std::slice::from_raw_parts_mut(page.base(), 8192) };
        bytes.fill(5);
        writer.write_all_at(40 << 10, &mut [std::io::IoSlice::new(bytes)]).unwrap();
        model[40 << 10..48 << 10].fill(5);
        writer.sync().unwrap();
        // The device that is made of it knows the bits, too.
        assert!(contents(&mut Bench::new(open.into_device()), SIZE) == model);
    }
    assert!(contents(&mut open(overlay.path()), SIZE) == model);
}
