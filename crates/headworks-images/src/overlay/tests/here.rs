//! What a killed process leaves, on real files: its first writes are found by the next process, by the tools, and by what makes it a base.
//! A process is killed here by dropping its device without a flush.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use headworks_core::{BioFlags, Op};

use super::super::head::{HEAD_BYTES, bitmap_bytes, data_start, here_start};
use super::super::here::TAG_PAGE;
use super::super::open::read_head;
use super::super::{
    CommitOptions, NewBase, NewOverlay, OpenOverlay, OverlayDevice, OverlayOptions, ResetOptions,
};
use super::model::{SIZE, contents, create, file, open};
use headworks::Direct;
use headworks_testing::{Bench, TempFile, memory_directory};

const NONE: BioFlags = BioFlags::NONE;

/// Writes and discards some blocks; returns what the disk is then.
fn change(bench: &mut Bench<OverlayDevice>) -> Vec<u8> {
    for (block, byte) in [(0, 1), (7, 2), (300, 4)] {
        bench.buffer()[..4096].fill(byte);
        assert_eq!(bench.run(Op::Write, NONE, block * 4096, 4096).status, Ok(()));
    }
    assert_eq!(bench.run(Op::Discard, NONE, 20 << 12, 10 << 12).status, Ok(()));
    contents(bench, SIZE)
}

fn killed(base: &Path) -> (TempFile, Vec<u8>) {
    let overlay = create(base, None);
    let expected = change(&mut open(overlay.path()));
    (overlay, expected)
}

fn bytes_at(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn bitmap(path: &Path) -> Vec<u8> {
    bytes_at(path, HEAD_BYTES as u64, bitmap_bytes(SIZE as u64) as usize)
}

fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// The tag is that of another boot from now on.
fn reboot(path: &Path) {
    let tag = bytes_at(path, here_start(SIZE as u64), TAG_PAGE as usize);
    assert_eq!(tag[..4], *b"\x89HWH");
    let (mut other, checksum_at) = (tag, 60);
    other[8] ^= 1;
    let checksum = super::super::checksum::crc32c(&other[..checksum_at]);
    other[checksum_at..64].copy_from_slice(&checksum.to_le_bytes());
    write_at(path, here_start(SIZE as u64), &other);
}

fn flattened(path: &Path) -> Vec<u8> {
    let options = OverlayOptions { read_only: true, ..OverlayOptions::default() };
    let out = TempFile::absent("flat");
    let open = OpenOverlay::open(path, &options, None).unwrap();
    open.flatten(out.path(), &mut |_, _| true).unwrap();
    std::fs::read(out.path()).unwrap()
}

#[test]
fn first_writes_of_a_killed_process_are_found_on_each_kind_of_file() {
    for directory in [Some(std::env::temp_dir()), memory_directory()].into_iter().flatten() {
        for direct in [Direct::Auto, Direct::Off] {
            let base = file("base", SIZE);
            let base_here = TempFile::absent_in(&directory, "base");
            std::fs::copy(base.path(), base_here.path()).unwrap();
            let overlay = TempFile::absent_in(&directory, "overlay");
            NewOverlay::new(base_here.path(), None).unwrap().create(overlay.path()).unwrap();
            let options = OverlayOptions { direct, ..OverlayOptions::default() };
            let open = || {
                let open = OpenOverlay::open(overlay.path(), &options, None).unwrap();
                Bench::new(open.into_device())
            };
            let mut expected = change(&mut open());
            assert!(contents(&mut open(), SIZE) == expected, "after a kill");
            // A second process changes something, and is killed, too.
            let mut bench = open();
            bench.buffer()[..4096].fill(9);
            bench.run(Op::Write, NONE, 400 << 12, 4096);
            expected[400 << 12..401 << 12].fill(9);
            drop(bench);
            assert!(bitmap(overlay.path()).iter().all(|&byte| byte == 0), "no flush came");
            assert!(flattened(overlay.path()) == expected);
            assert!(contents(&mut open(), SIZE) == expected);
            // A flush of the next process makes durable what was found.
            assert_eq!(open().run(Op::Flush, NONE, 0, 0).status, Ok(()));
            reboot(overlay.path());
            assert!(contents(&mut open(), SIZE) == expected);
        }
    }
}

#[test]
fn here_bits_of_another_boot_are_nothing_and_are_cleared_before_the_tag() {
    let base = file("base", SIZE);
    let before = std::fs::read(base.path()).unwrap();
    let (overlay, _) = killed(base.path());
    reboot(overlay.path());
    assert!(flattened(overlay.path()) == before);
    let mut bench = open(overlay.path());
    assert!(contents(&mut bench, SIZE) == before);
    let modified = || std::fs::metadata(overlay.path()).unwrap().modified().unwrap();
    let unchanged = modified();
    drop(bench);
    assert_eq!(modified(), unchanged, "nothing is written before the first change");
    let mut expected = before;
    let mut bench = open(overlay.path());
    bench.buffer()[..4096].fill(9);
    bench.run(Op::Write, NONE, 500 << 12, 4096);
    expected[500 << 12..501 << 12].fill(9);
    drop(bench);
    assert!(contents(&mut open(overlay.path()), SIZE) == expected);
}

#[test]
fn another_head_ends_here_bits_and_tools_make_them_durable_before() {
    let base = file("base", SIZE);
    let before = std::fs::read(base.path()).unwrap();
    // A commit of an older version empties the bitmap and changes the head.
    let (overlay, _) = killed(base.path());
    let opened = File::open(overlay.path()).unwrap();
    let (mut head, _) = read_head(overlay.path(), &opened).unwrap();
    head.number += 1;
    let (at, copy) = head.encode();
    write_at(overlay.path(), at, &copy);
    assert!(flattened(overlay.path()) == before);
    // Those of this version take along what was found here.
    let copied = TempFile::absent("copy");
    std::fs::copy(base.path(), copied.path()).unwrap();
    let (overlay, expected) = killed(base.path());
    OpenOverlay::rebase(overlay.path(), &NewBase::of(copied.path())).unwrap();
    assert!(flattened(overlay.path()) == expected);
    drop(overlay);
    let (overlay, expected) = killed(copied.path());
    assert_eq!(
        OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut |_, _| true).unwrap(),
        13 << 12
    );
    assert!(std::fs::read(copied.path()).unwrap() == expected);
    assert!(contents(&mut open(overlay.path()), SIZE) == expected);
    let (overlay, _) = killed(base.path());
    assert_eq!(OpenOverlay::reset(overlay.path(), &ResetOptions::default()).unwrap(), 13 << 12);
    assert!(contents(&mut open(overlay.path()), SIZE) == before);
}

#[test]
fn overlay_that_becomes_a_base_has_its_bits_durable() {
    let base = file("base", SIZE);
    let (lower, expected) = killed(base.path());
    let upper = create(lower.path(), None);
    assert!(bitmap(lower.path()).iter().any(|&byte| byte != 0));
    assert!(contents(&mut open(upper.path()), SIZE) == expected);
    reboot(lower.path());
    let later = open_error(upper.path());
    // What the reboot of this test wrote changes the time of modification; the bits are what counts.
    assert!(later.contains("was modified"), "{later}");
    assert!(flattened(lower.path()) == expected);
}

#[test]
fn here_bits_are_forgotten_when_told() {
    let base = file("base", SIZE);
    let (overlay, _) = killed(base.path());
    assert_eq!(OpenOverlay::forget_here(overlay.path()).unwrap(), 13 << 12);
    assert!(contents(&mut open(overlay.path()), SIZE) == std::fs::read(base.path()).unwrap());
    assert_eq!(OpenOverlay::forget_here(overlay.path()).unwrap(), 0);
}

fn open_error(path: &Path) -> String {
    OpenOverlay::open(path, &OverlayOptions::default(), None).unwrap_err().to_string()
}

#[test]
fn file_of_an_older_version_gets_here_bits_with_the_first_change() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    let file = File::options().write(true).open(overlay.path()).unwrap();
    file.set_len(data_start(SIZE as u64) + SIZE as u64).unwrap();
    let expected = change(&mut open(overlay.path()));
    assert!(contents(&mut open(overlay.path()), SIZE) == expected);
}

#[test]
fn full_disk_fails_the_first_write_of_a_page_of_bits_and_loses_nothing() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    let mut bench = open(overlay.path());
    bench.buffer()[..4096].fill(3);
    // The data, and the tag.
    bench.disk.script.extend([None, Some(-libc::ENOSPC)]);
    let first = bench.run(Op::Write, NONE, 0, 4096).status;
    if bench.disk.log.is_empty() {
        return; // In memory there is no engine that could fail.
    }
    // The data, the tag, and the bits.
    bench.disk.script.extend([None, None, Some(-libc::ENOSPC)]);
    let second = bench.run(Op::Write, NONE, 0, 4096).status;
    let full = Err(headworks_core::IoError::NoSpace);
    assert_eq!((first, second), (full, full));
    assert_eq!(bench.run(Op::Write, NONE, 0, 4096).status, Ok(()));
    let expected = contents(&mut bench, SIZE);
    drop(bench);
    assert!(contents(&mut open(overlay.path()), SIZE) == expected);
}
