//! Power cuts and kills at any step. After a cut every unsynced sector of our file is old or any newer version by itself; after a kill the
//! kernel has all that was written, and each operation in flight is carried out or not.
//!
//! The same harness plants defects in the file, as a device with a wrong order would cause them, and finds each.

mod disk;
mod world;

use std::ops::Range;
use std::sync::Arc;

use headworks_core::{BioFlags, Instant, IoError, Op, RequestId, VolumeId};

use self::disk::{Base, Sector, device_io};
use self::world::{Defect, NEAR, PLACES, SIZE, World, block_at, layer};
use crate::overlay::head::BLOCK;
use headworks::driver::Span;
use headworks::{Command, CommandBatch, Device};
use headworks_testing::TestDisk;

/// The defects that a kill shows, or a power cut after one.
const OF_KILLS: [Defect; 6] = [
    Defect::LostHere,
    Defect::HereFirst,
    Defect::OtherBoot,
    Defect::NoClear,
    Defect::LiveBits,
    Defect::HereIsDurable,
];

/// Seeds of each of the two long tests: `HEADWORKS_SCHEDULES=12500 cargo test --release -p headworks-images --lib overlay` for 100,000 cuts.
fn seeds() -> u64 {
    std::env::var("HEADWORKS_SCHEDULES").map_or(1_250, |text| text.parse().unwrap())
}

/// Runs seeds of four cuts each; returns the number of cuts and of wrong sectors.
fn cuts(seeds: Range<u64>, defect: Defect) -> (usize, usize) {
    let (mut cuts, mut wrong) = (0, 0);
    for seed in seeds {
        let mut world = World::new(seed, defect);
        for _ in 0..4 {
            for _ in 0..world.prng.below(60) {
                match world.prng.below(16) {
                    0..=5 => world.change(),
                    6 => {
                        world.flush();
                    }
                    7 if world.prng.below(8) == 0 && defect == Defect::None => world.check_reads(),
                    8 if world.prng.below(40) == 0
                        && world.disks.len() < 4
                        && defect == Defect::None =>
                    {
                        world.snapshot();
                    }
                    _ => {
                        world.step();
                    }
                }
            }
            wrong += world.cut();
            cuts += 1;
        }
    }
    (cuts, wrong)
}

/// One step of a schedule in which processes are killed, too.
fn random_step(world: &mut World) {
    match world.prng.below(16) {
        0..=5 => world.change(),
        6 => {
            world.flush();
        }
        7 if world.prng.below(10) == 0 && world.disks.len() < 3 => world.snapshot(),
        _ => {
            world.step();
        }
    }
}

/// Ends schedules by a kill and by a power cut after each of their steps, and after a second life of some steps by either again. Returns
/// the number of ends, and of schedules in which a sector was wrong.
fn ends(seeds: Range<u64>, steps: u64, defect: Defect) -> (usize, usize) {
    let (mut ends, mut wrong) = (0, 0);
    for seed in seeds {
        let mut is_wrong = false;
        for (length, power) in (0..steps).flat_map(|length| [(length, false), (length, true)]) {
            let mut world = World::new(seed, defect);
            (0..length).for_each(|_| random_step(&mut world));
            is_wrong |= (if power { world.cut() } else { world.kill() }) > 0;
            (0..world.prng.below(16)).for_each(|_| random_step(&mut world));
            is_wrong |= (if world.prng.below(2) == 0 { world.cut() } else { world.kill() }) > 0;
            ends += 2;
            if is_wrong {
                break;
            }
        }
        wrong += usize::from(is_wrong);
    }
    (ends, wrong)
}

#[test]
fn no_sector_is_wrong_after_kills_and_power_cuts_at_every_step() {
    let seeds = seeds() / 50;
    assert_eq!(ends(0..seeds, 60, Defect::None), (seeds as usize * 60 * 4, 0));
}

#[test]
fn each_defect_of_here_bits_is_found() {
    for defect in OF_KILLS {
        assert!((0..60).any(|seed| ends(seed..seed + 1, 60, defect).1 > 0), "{defect:?}");
    }
}

/// A process is killed between the write of bits and their sync; the next one finds them in the kernel's pages. It acknowledges a FUA
/// write of 88, and the power goes. Returns what is there then.
fn fua_write_between_kill_and_cut(defect: Defect) -> Sector {
    let mut world = World::new(1, defect);
    let (mut bytes, mut newer) = (vec![0_u8; 4096], vec![0_u8; 4096]);
    bytes.chunks_mut(512).for_each(|sector| sector[0] = 77);
    newer.chunks_mut(512).for_each(|sector| sector[0] = 88);
    // SAFETY: kept to the end of the test.
    let (span, newer_span) =
        unsafe { (Span::new(bytes.as_mut_ptr(), 4096), Span::new(newer.as_mut_ptr(), 4096)) };
    let at = block_at(0) * BLOCK;
    world.submit(Op::Write, BioFlags::NONE, at, 4096, &[span]);
    while world.step_keeping_answers() {}
    world.submit(Op::Flush, BioFlags::NONE, 0, 0, &[]);
    // The sync of the data, and the write of the bits; the second sync is in flight when the process is killed.
    assert!(world.step_keeping_answers() && world.step_keeping_answers());
    assert_eq!(world.top().pending.len(), 1);
    world.top().pending.clear();
    world.reopen();
    assert_eq!(world.device.live().count(), 1, "the bit is in the kernel's pages");
    world.submit(Op::Write, BioFlags::FUA, at, 4096, &[newer_span]);
    while world.step_keeping_answers() {}
    assert_eq!(world.completions.len(), 1, "the FUA write is acknowledged");
    // The power goes: nothing of what was not synced has come.
    world.top().cached.clear();
    world.boot += 1;
    world.reopen();
    world.read_all()[0]
}

#[test]
fn fua_write_after_a_kill_outlives_a_power_cut() {
    assert_eq!(fua_write_between_kill_and_cut(Defect::None), 88);
    assert_ne!(fua_write_between_kill_and_cut(Defect::NoOpenSync), 88, "the defect is found");
}

#[test]
fn no_sector_is_wrong_after_power_cuts() {
    assert_eq!(cuts(0..seeds(), Defect::None), (4 * seeds() as usize, 0));
}

// Two tests, for two processors.
#[test]
fn no_sector_is_wrong_after_other_power_cuts() {
    assert_eq!(cuts(seeds()..2 * seeds(), Defect::None), (4 * seeds() as usize, 0));
}

#[test]
fn bits_of_later_writes_in_a_round_are_found() {
    assert!(cuts(0..60, Defect::LiveBits).1 > 0);
}

#[test]
fn missing_sync_between_data_and_bits_is_found() {
    assert!(cuts(0..60, Defect::NoFirstSync).1 > 0);
}

#[test]
fn missing_sync_behind_the_bits_is_found() {
    assert!(cuts(0..60, Defect::NoSecondSync).1 > 0);
}

#[test]
fn bytes_of_a_cut_left_below_zeros_are_found() {
    assert!(cuts(0..60, Defect::NoPunch).1 > 0);
}

#[test]
fn lost_bit_is_found() {
    assert!(cuts(0..60, Defect::LostBit).1 > 0);
}

#[test]
fn flush_without_new_bits_makes_one_sync() {
    let mut world = World::new(1, Defect::None);
    for expected in [2, 3, 4] {
        if expected == 2 {
            world.change();
        }
        world.settle();
        world.flush();
        world.settle();
        assert_eq!(world.top().syncs, expected, "the first flush has bits to write");
    }
}

#[test]
fn failed_operation_fails_the_flush_and_the_next_one_writes_the_bits() {
    for fails in 0..3 {
        let mut world = World::new(2, Defect::None);
        world.change();
        world.settle();
        let id = world.flush();
        let mut failed_one = false;
        for step in 0.. {
            let Some(pending) = world.top().pending.pop() else { break };
            let result = if step == fails { -libc::EIO } else { world.execute(0, &pending) };
            failed_one |= step == fails;
            world.end(&pending, result);
        }
        assert!(failed_one);
        let completion = world.completions.pop().unwrap();
        assert_eq!((completion.id, completion.status), (id, Err(IoError::Medium)));
        world.flushes.clear();
        world.flush();
        world.settle();
        assert_eq!(world.cut(), 0, "the second flush made all durable");
    }
}

#[test]
fn flush_whose_bits_find_no_room_says_that_nothing_is_lost() {
    for (fails, expected) in
        [(0, IoError::NoSpace), (1, IoError::NotFlushed), (2, IoError::NoSpace)]
    {
        let mut world = World::new(2, Defect::None);
        world.change();
        world.settle();
        world.flush();
        for step in 0.. {
            let Some(pending) = world.top().pending.pop() else { break };
            let result = if step == fails { -libc::ENOSPC } else { world.execute(0, &pending) };
            world.end(&pending, result);
        }
        assert_eq!(world.completions.pop().unwrap().status, Err(expected), "step {fails}");
        world.flushes.clear();
        world.flush();
        world.settle();
        assert_eq!(world.cut(), 0, "with room again all is made durable");
    }
}

#[test]
fn snapshot_waits_for_a_flush_and_reads_in_flight_end_after_it() {
    let mut world = World::new(4, Defect::None);
    world.change();
    assert!(world.changes.values().all(|change| !change.fua), "it would be covered at once");
    assert!(world.stack_new_file().is_err(), "a change is in flight");
    world.settle();
    assert!(world.stack_new_file().is_err(), "no flush covers it");
    world.flush();
    assert!(world.stack_new_file().is_err(), "the flush is in flight");
    world.settle();
    // A read in flight of each layer, and a status, across two snapshots.
    let mut bytes = vec![0xee_u8; (NEAR * BLOCK) as usize];
    // SAFETY: kept until the reads have ended, below.
    let span = unsafe { Span::new(bytes.as_mut_ptr(), bytes.len()) };
    for place in PLACES {
        world.submit(Op::Read, BioFlags::NONE, place * BLOCK, (NEAR * BLOCK) as u32, &[span]);
    }
    let before = world.completions.len() + world.top().pending.len();
    assert!(world.top().pending.iter().any(|pending| pending.op == Op::Read));
    world.stack_new_file().unwrap();
    world.stack_new_file().unwrap();
    while world.step_keeping_answers() {}
    assert_eq!((before, world.completions.len()), (PLACES.len(), PLACES.len()));
    world.completions.clear();
    world.change();
    world.settle();
    world.check_reads();
    for _ in 3..8 {
        world.flush();
        world.settle();
        world.stack_new_file().unwrap();
    }
    world.flush();
    world.settle();
    assert!(world.stack_new_file().is_err(), "eight layers are the most");
    assert_eq!(world.cut(), 0);
}

#[test]
fn snapshot_waits_for_bits_that_a_killed_process_left() {
    let mut world = World::new(4, Defect::None);
    world.change();
    world.settle();
    assert_eq!(world.kill(), 0);
    assert!(world.stack_new_file().is_err(), "they are here bits alone");
    world.flush();
    world.settle();
    world.stack_new_file().unwrap();
    assert_eq!(world.kill(), 0);
}

#[test]
fn read_only_layer_refuses_changes_and_bad_ranges_fail() {
    let disk = Arc::default();
    let mut device = layer(&disk, Box::new(Base), (0, 0), true, (1, Defect::None));
    let mut run = |op, offset, len| {
        let (mut completions, mut queue, mut lost) = (Vec::new(), TestDisk::default(), Vec::new());
        let command = Command {
            id: RequestId::default(),
            volume: VolumeId(0),
            op,
            flags: BioFlags::NONE,
            offset,
            len,
            first_span: 0,
            spans: 0,
        };
        let mut io = device_io(&mut completions, &mut queue, &mut lost);
        let batch = CommandBatch { commands: &[command], spans: &[] };
        // SAFETY: there are no spans.
        unsafe { device.submit(Instant(1), batch, &mut io) };
        assert_eq!(completions, [command.failed(completions[0].status.unwrap_err())]);
        completions[0].status.unwrap_err()
    };
    assert_eq!(run(Op::Discard, 0, 4096), IoError::ReadOnly);
    assert_eq!(run(Op::Read, SIZE, 4096), IoError::Invalid);
    assert_eq!(run(Op::Read, u64::MAX, 4096), IoError::Invalid);
    assert_eq!(run(Op::BlockStatus, 0, 4096), IoError::Invalid);
}
