//! Commit, reset and flatten on real files, and commits that are interrupted at every step.

use std::path::Path;

use headworks_core::{BioFlags, Op, VolumeId};

use super::super::head::Task;
use super::super::open::{Way, read_head};
use super::super::{
    CommitOptions, NewBase, OpenOverlay, OverlayOptions, OverlaySnapshot, ResetOptions,
};
use super::model::{SIZE, contents, create, file, open};
use crate::{PartialDevice, WholeBlocks};
use headworks::Direct;
use headworks_house::ImageHandles;
use headworks_testing::{Bench, TempFile};

const NONE: BioFlags = BioFlags::NONE;
const LOSING: CommitOptions = CommitOptions { base_anywhere: false, others_are_lost: true };

/// Writes, zeroes and discards some blocks; the volume's contents afterwards.
fn change(path: &Path, size: usize) -> Vec<u8> {
    let mut bench = open(path);
    for (block, byte) in [(0, 1), (7, 2), (8, 3), (300, 4), (511, 5)] {
        bench.buffer()[..4096].fill(byte);
        bench.run(Op::Write, NONE, block * 4096, 4096);
    }
    bench.run(Op::Discard, NONE, 20 << 12, 10 << 12);
    bench.run(Op::WriteZeroes, NONE, 8 << 12, 1 << 12);
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    contents(&mut bench, size)
}

fn flattened(path: &Path) -> Vec<u8> {
    let options = OverlayOptions { read_only: true, ..OverlayOptions::default() };
    let out = TempFile::absent("flat");
    let open = OpenOverlay::open(path, &options, None).unwrap();
    open.flatten(out.path(), &mut |_, _| true).unwrap();
    assert!(open.flatten(out.path(), &mut |_, _| true).is_err(), "an existing file is kept");
    std::fs::read(out.path()).unwrap()
}

#[test]
fn commit_moves_the_blocks_into_the_base_and_empties_the_overlay() {
    let base = file("base", SIZE - 512);
    let whole = Some(SIZE as u64);
    let (overlay, other) = (create(base.path(), whole), create(base.path(), whole));
    let expected = change(overlay.path(), SIZE);
    assert!(flattened(overlay.path()) == expected);
    let refused = OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut |_, _| true);
    let (refused, name) = (refused.unwrap_err().to_string(), other.path().display().to_string());
    assert!(refused.contains(&name) && refused.contains("--others-are-lost"), "{refused}");
    assert!(flattened(overlay.path()) == expected, "nothing was changed");
    let bytes = OpenOverlay::commit(overlay.path(), &LOSING, &mut |_, _| true).unwrap();
    assert_eq!(bytes, 15 << 12);
    assert!(std::fs::read(base.path()).unwrap() == expected);
    let options = OverlayOptions::default();
    let empty = OpenOverlay::open(overlay.path(), &options, None).unwrap();
    assert_eq!((empty.own_bytes(), empty.is_committing()), (0, false));
    assert!(contents(&mut Bench::new(empty.into_device()), SIZE) == expected);
    assert!(flattened(overlay.path()) == expected);
    // Another overlay on it would read wrong blocks now.
    let refused = OpenOverlay::open(other.path(), &options, None).unwrap_err().to_string();
    assert!(refused.contains("has another size") || refused.contains("was modified"), "{refused}");
}

/// The device of an overlay whose volume ends within a block.
fn with_parts(path: &Path) -> Bench<PartialDevice> {
    let open = OpenOverlay::open(path, &OverlayOptions::default(), None).unwrap();
    assert_eq!((open.volume_options().size, open.volume_options().block_size), (10_000, 1));
    assert_eq!(open.writer().size(), 10_000);
    let blocks = WholeBlocks::new(OpenOverlay::BLOCK_SIZE);
    Bench::new(PartialDevice::new(Box::new(open.into_device()), [(VolumeId(0), blocks)]))
}

fn read_all(bench: &mut Bench<PartialDevice>) -> Vec<u8> {
    assert_eq!(bench.run(Op::Read, NONE, 0, 10_000).transferred, 10_000);
    bench.buffer()[..10_000].to_vec()
}

#[test]
fn overlay_ends_within_a_block_where_its_base_does() {
    let base = file("base", 10_000);
    let mut expected = std::fs::read(base.path()).unwrap();
    let lower = create(base.path(), None);
    let mut bench = with_parts(lower.path());
    assert!(read_all(&mut bench) == expected);
    for (offset, len, byte) in [(9_990, 10, 1), (9_000, 500, 2), (4_000, 200, 3)] {
        bench.buffer()[..len].fill(byte);
        assert_eq!(bench.run(Op::Write, NONE, offset as u64, len as u32).status, Ok(()));
        expected[offset..offset + len].fill(byte);
    }
    assert!(read_all(&mut bench) == expected);
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    drop(bench);
    assert!(flattened(lower.path()) == expected);
    // One on it, and back into it.
    let upper = create(lower.path(), None);
    let mut bench = with_parts(upper.path());
    assert!(read_all(&mut bench) == expected);
    bench.buffer()[..100].fill(4);
    bench.run(Op::Write, NONE, 9_900, 100);
    bench.run(Op::Flush, NONE, 0, 0);
    expected[9_900..].fill(4);
    drop(bench);
    assert!(flattened(upper.path()) == expected);
    OpenOverlay::commit(upper.path(), &CommitOptions::default(), &mut |_, _| true).unwrap();
    assert!(flattened(lower.path()) == expected);
    assert!(flattened(upper.path()) == expected, "it is empty and shows its base");
    OpenOverlay::commit(lower.path(), &LOSING, &mut |_, _| true).unwrap();
    assert!(std::fs::read(base.path()).unwrap() == expected, "the base is as long as it was");
    let mut bench = with_parts(lower.path());
    bench.run(Op::WriteZeroes, NONE, 9_000, 1000);
    drop(bench);
    OpenOverlay::reset(lower.path(), &ResetOptions::default()).unwrap();
    assert!(read_all(&mut with_parts(lower.path())) == expected);
}

#[test]
fn commit_into_an_overlay_makes_the_blocks_its_own() {
    let base = file("base", SIZE);
    let before = std::fs::read(base.path()).unwrap();
    let lower = create(base.path(), None);
    let first = change(lower.path(), SIZE);
    let upper = create(lower.path(), None);
    let mut bench = open(upper.path());
    bench.buffer()[..4096].fill(9);
    bench.run(Op::Write, NONE, 77 << 12, 4096);
    bench.run(Op::Discard, NONE, 0, 4096);
    bench.run(Op::Flush, NONE, 0, 0);
    drop(bench);
    let mut expected = first;
    expected[77 << 12..78 << 12].fill(9);
    expected[..4096].fill(0);
    assert!(flattened(upper.path()) == expected);
    assert_eq!(
        OpenOverlay::commit(upper.path(), &CommitOptions::default(), &mut |_, _| true).unwrap(),
        8192
    );
    assert!(contents(&mut open(lower.path()), SIZE) == expected);
    assert!(std::fs::read(base.path()).unwrap() == before);
}

#[test]
fn interrupted_commit_changes_no_contents_and_can_be_begun_again() {
    for stop_at in 0..20 {
        let base = file("base", SIZE);
        let overlay = create(base.path(), None);
        let expected = change(overlay.path(), SIZE);
        let mut calls = 0;
        let mut stop = |_, _| {
            calls += 1;
            calls <= stop_at
        };
        let ended = OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut stop);
        if let Err(error) = &ended {
            assert!(error.to_string().contains("begin it again"));
            let options = OverlayOptions::default();
            let open = OpenOverlay::open(overlay.path(), &options, None).unwrap();
            assert!(open.is_committing() && open.own_bytes() == 15 << 12);
            assert!(contents(&mut Bench::new(open.into_device()), SIZE) == expected);
            let refused = OpenOverlay::reset(overlay.path(), &ResetOptions::default());
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("--keep-mixture"), "{refused}");
            OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut |_, _| true)
                .unwrap();
        }
        assert!(std::fs::read(base.path()).unwrap() == expected);
        assert!(contents(&mut open(overlay.path()), SIZE) == expected);
        if ended.is_ok() {
            assert!(stop_at > 3, "the commit has several steps");
            return;
        }
    }
    panic!("the commit never ended");
}

#[test]
fn base_in_use_is_not_committed_into() {
    let base = file("base", SIZE);
    let (overlay, other) = (create(base.path(), None), create(base.path(), None));
    let served = open(other.path());
    let refused = OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut |_, _| true)
        .unwrap_err();
    assert!(refused.to_string().contains("in use by another process"));
    drop(served);
    OpenOverlay::commit(overlay.path(), &LOSING, &mut |_, _| true).unwrap();
}

#[test]
fn reset_after_an_interrupted_commit_keeps_the_mixture_when_told() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    change(overlay.path(), SIZE);
    OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut |_, _| false).unwrap_err();
    let options = ResetOptions { keep_mixture: true, ..ResetOptions::default() };
    assert_eq!(OpenOverlay::reset(overlay.path(), &options).unwrap(), 15 << 12);
    assert!(contents(&mut open(overlay.path()), SIZE) == std::fs::read(base.path()).unwrap());
}

#[test]
fn overlays_on_a_file_are_found_by_their_heads() {
    let base = file("base", SIZE);
    let (one, two) = (create(base.path(), None), create(base.path(), None));
    let above = create(one.path(), None);
    let found = |base: &Path, beside: &Path| OpenOverlay::overlays_on(base, beside);
    assert_eq!(found(base.path(), one.path()), [two.path().canonicalize().unwrap()]);
    assert_eq!(found(one.path(), one.path()), [above.path().canonicalize().unwrap()]);
    assert_eq!(found(above.path(), above.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn head_whose_number_is_at_its_end_is_not_changed() {
    use std::os::unix::fs::FileExt;
    let base = file("base", SIZE);
    let (overlay, other) = (create(base.path(), None), file("other", SIZE));
    let opened = std::fs::File::options().read(true).write(true).open(overlay.path()).unwrap();
    let (mut head, _) = read_head(overlay.path(), &opened).unwrap();
    head.number = u64::MAX;
    let (at, copy) = head.encode();
    opened.write_all_at(&copy, at).unwrap();
    drop(opened);
    let results = [
        OpenOverlay::rebase(overlay.path(), &NewBase::of(other.path())),
        OpenOverlay::reset(overlay.path(), &ResetOptions::default()).map(drop),
        OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut |_, _| true).map(drop),
    ];
    for result in results {
        let refused = result.unwrap_err().to_string();
        assert!(refused.contains("number of its head is at its end"), "{refused}");
    }
}

#[test]
fn reset_gives_the_base_as_it_is_now() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    change(overlay.path(), SIZE);
    let new: Vec<u8> = std::fs::read(base.path()).unwrap().iter().map(|byte| byte ^ 0x55).collect();
    std::fs::write(base.path(), &new).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    std::fs::File::options().write(true).open(base.path()).unwrap().set_modified(later).unwrap();
    assert!(OpenOverlay::open(overlay.path(), &OverlayOptions::default(), None).is_err());
    assert_eq!(OpenOverlay::reset(overlay.path(), &ResetOptions::default()).unwrap(), 15 << 12);
    assert!(contents(&mut open(overlay.path()), SIZE) == new);
}

#[test]
fn interrupted_reset_is_refused_until_it_is_done_again() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    change(overlay.path(), SIZE);
    // As `reset` opens it: the head is written from any memory.
    let options =
        OverlayOptions { read_only: false, direct: Direct::Off, ..OverlayOptions::default() };
    let mut open_one = OpenOverlay::open_for(overlay.path(), &options, Way::Reset).unwrap();
    open_one.begin(Task::Reset).unwrap();
    drop(open_one);
    let refused = OpenOverlay::open(overlay.path(), &options, None).unwrap_err().to_string();
    assert!(refused.contains("was being reset"), "{refused}");
    let refused = OpenOverlay::commit(overlay.path(), &CommitOptions::default(), &mut |_, _| true)
        .unwrap_err();
    assert!(refused.to_string().contains("was being reset"), "{refused}");
    assert_eq!(OpenOverlay::reset(overlay.path(), &ResetOptions::default()).unwrap(), 15 << 12);
    assert!(contents(&mut open(overlay.path()), SIZE) == std::fs::read(base.path()).unwrap());
}

#[test]
fn middle_layer_goes_by_a_commit_and_a_rebase() {
    let base = file("base", SIZE);
    let middle = create(base.path(), None);
    change(middle.path(), SIZE);
    let top = create(middle.path(), None);
    let mut bench = open(top.path());
    bench.buffer()[..4096].fill(0x77);
    bench.run(Op::Write, NONE, 99 << 12, 4096);
    bench.run(Op::Flush, NONE, 0, 0);
    let expected = contents(&mut bench, SIZE);
    drop(bench);
    OpenOverlay::commit(middle.path(), &CommitOptions::default(), &mut |_, _| true).unwrap();
    let refused = OpenOverlay::open(top.path(), &OverlayOptions::default(), None).unwrap_err();
    assert!(refused.to_string().contains("image rebase --base"), "{refused}");
    let itself = OpenOverlay::rebase(top.path(), &NewBase::of(top.path())).unwrap_err().to_string();
    assert!(itself.contains("in use"), "{itself}");
    OpenOverlay::rebase(top.path(), &NewBase::of(base.path())).unwrap();
    std::fs::remove_file(middle.path()).unwrap();
    assert!(contents(&mut open(top.path()), SIZE) == expected);
    let large = file("large", 2 * SIZE);
    let refused =
        OpenOverlay::rebase(top.path(), &NewBase::of(large.path())).unwrap_err().to_string();
    assert!(refused.contains("is smaller than that base"), "{refused}");
}

#[test]
fn base_of_another_size_has_other_bytes() {
    let (base, other) = (file("base", SIZE), file("other", SIZE));
    let overlay = create(base.path(), Some(2 * SIZE as u64));
    for size in [SIZE - 512, SIZE + 512, 2 * SIZE] {
        std::fs::write(other.path(), vec![0; size]).unwrap();
        let refused = OpenOverlay::rebase(overlay.path(), &NewBase::of(other.path())).unwrap_err();
        assert!(refused.to_string().contains("its bytes are not the same"), "{refused}");
    }
    std::fs::copy(base.path(), other.path()).unwrap();
    OpenOverlay::rebase(overlay.path(), &NewBase::of(other.path())).unwrap();
    drop(open(overlay.path()));
}

#[test]
fn flatten_that_ends_early_leaves_no_file() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    change(overlay.path(), SIZE);
    let out = TempFile::absent("flat");
    let open = OpenOverlay::open(overlay.path(), &OverlayOptions::default(), None).unwrap();
    let stopped = open.flatten(out.path(), &mut |_, _| false).unwrap_err().to_string();
    assert!(stopped.contains("stopped") && !out.path().exists(), "{stopped}");
    open.flatten(out.path(), &mut |_, _| true).unwrap();
    let again = open.flatten(out.path(), &mut |_, _| true).unwrap_err().to_string();
    assert!(again.contains("exists already"), "{again}");
}

#[test]
fn snapshot_that_is_killed_at_any_step_loses_nothing_and_can_be_made_again() {
    let base = file("base", SIZE);
    let overlay = create(base.path(), None);
    let expected = change(overlay.path(), SIZE);
    let kept = TempFile::absent("kept");
    let options = OverlayOptions::default();
    let snapshot = |steps: u32| {
        let open = OpenOverlay::open(overlay.path(), &options, None).unwrap();
        let watch = open.file().size_watch();
        let (mut snapshot, device) =
            OverlaySnapshot::prepare(overlay.path(), &watch, kept.path(), &options).unwrap();
        if steps > 0 {
            snapshot.put_in_place().unwrap();
        }
        if steps > 1 {
            snapshot.undo().unwrap();
        }
        drop(device);
    };
    let is_whole = |path: &Path| contents(&mut open(path), SIZE) == expected;
    // Killed before the new file has its name: the other name is a second one of the served file, and is taken again.
    snapshot(0);
    assert!(kept.path().exists() && is_whole(overlay.path()));
    snapshot(2);
    assert!(!kept.path().exists() && is_whole(overlay.path()), "taken back");
    // Killed before the device took it.
    snapshot(0);
    snapshot(1);
    assert!(is_whole(overlay.path()) && flattened(kept.path()) == expected);
    let top = OpenOverlay::open(overlay.path(), &options, None).unwrap();
    assert_eq!((top.own_bytes(), top.overlays()), (0, 2));
    let watch = top.file().size_watch();
    let refused = OverlaySnapshot::prepare(overlay.path(), &watch, kept.path(), &options);
    assert!(refused.err().unwrap().to_string().contains("exists already"));
    let elsewhere = Path::new("/dev/shm/kept");
    let refused = OverlaySnapshot::prepare(overlay.path(), &watch, elsewhere, &options);
    assert!(refused.err().unwrap().to_string().contains("backing=allow"));
}
