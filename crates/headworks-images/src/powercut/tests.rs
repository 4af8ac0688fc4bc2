//! The disk against a model, at cuts, when it lies, and over a device that is busy or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headworks_core::Status;

use super::*;
use crate::{DelayDevice, DelayOptions};
use headworks::MemDevice;
use headworks::{FileDevice, FileOptions, OpenFile};
use headworks_testing::{Bench, TempFile};

const SIZE: usize = 64 << 10;
const NONE: BioFlags = BioFlags::NONE;

/// Cuts that were told.
#[derive(Clone, Default)]
struct Told(Arc<AtomicU64>);

impl Told {
    fn end(&self) -> PowercutEnd {
        let cuts = Arc::clone(&self.0);
        Box::new(move |report| {
            cuts.fetch_add(u64::from(report.cut.is_some()), Ordering::Relaxed);
        })
    }

    fn cuts(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn in_memory(options: PowercutOptions, told: &Told) -> Bench<PowercutDevice> {
    let below = Box::new(MemDevice::new(SIZE as u64).unwrap());
    Bench::new(PowercutDevice::new(options, 512, below, told.end()))
}

/// What is on the device below, which answers at once.
fn below(bench: &mut Bench<PowercutDevice>) -> Vec<u8> {
    let mut bytes = vec![0xee; SIZE];
    // SAFETY: the vector stays where it is until the answer.
    let spans = [unsafe { Span::new(bytes.as_mut_ptr(), SIZE) }];
    let command = Command {
        op: Op::Read,
        len: SIZE as u32,
        spans: 1,
        ..Command::flush(RequestId { slot: 0, generation: 0 }, VolumeId(0))
    };
    let batch = CommandBatch { commands: &[command], spans: &spans };
    let mut completions = Vec::new();
    let mut disk = headworks_testing::TestDisk::default();
    let device = headworks_core::DeviceId(0);
    let lost = &mut Vec::new();
    let mut io = DeviceIo { device, completions: &mut completions, disk: &mut disk, lost };
    // SAFETY: as above.
    unsafe { bench.device_mut().below.submit(Instant(1), batch, &mut io) };
    assert_eq!(completions[0].transferred, SIZE as u32);
    bytes
}

fn write(
    bench: &mut Bench<PowercutDevice>,
    byte: u8,
    flags: BioFlags,
    at: u64,
    len: u32,
) -> Status {
    bench.buffer()[..len as usize].fill(byte);
    bench.run(Op::Write, flags, at, len).status
}

fn read(bench: &mut Bench<PowercutDevice>, at: u64, len: u32) -> Vec<u8> {
    bench.buffer()[..len as usize].fill(0xee);
    assert_eq!(bench.run(Op::Read, NONE, at, len).status, Ok(()));
    bench.buffer()[..len as usize].to_vec()
}

/// A random command of whole sectors.
fn random_range(prng: &mut Prng) -> (u64, u32) {
    let sectors = SIZE as u64 / 512;
    let first = prng.below(sectors);
    let count = prng.between(1, (sectors - first).min(24));
    (first * 512, count as u32 * 512)
}

fn against_bytes(bench: &mut Bench<PowercutDevice>, seed: u64, steps: usize) {
    let mut prng = Prng::new(seed);
    let mut model = vec![0; SIZE];
    for step in 0..steps {
        let (at, len) = random_range(&mut prng);
        let range = at as usize..at as usize + len as usize;
        match prng.below(8) {
            0..4 => {
                let byte = step as u8 | 1;
                let flags = if prng.below(4) == 0 { BioFlags::FUA } else { NONE };
                assert_eq!(write(bench, byte, flags, at, len), Ok(()));
                model[range].fill(byte);
            }
            4..7 => assert_eq!(read(bench, at, len), model[range], "step {step} of seed {seed}"),
            _ => assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(())),
        }
    }
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    assert_eq!(read(bench, 0, SIZE as u32), model);
}

#[test]
fn contents_are_those_of_a_disk() {
    for seed in 0..20 {
        let options = PowercutOptions { cache: 24 << 10, ..PowercutOptions::default() };
        against_bytes(&mut in_memory(options, &Told::default()), seed, 300);
    }
}

#[test]
fn contents_are_those_of_a_disk_over_a_file() {
    let path = TempFile::absent("powercut");
    let file = OpenFile::open(
        path.path(),
        &FileOptions { size: Some(SIZE as u64), ..FileOptions::default() },
    );
    let device = FileDevice::new(vec![(VolumeId(0), file.unwrap())]);
    let options = PowercutOptions { cache: 24 << 10, ..PowercutOptions::default() };
    let told = Told::default();
    let disk = PowercutDevice::new(options, 4096, Box::new(device), told.end());
    let mut bench = Bench::new(disk);
    // Whole blocks alone reach a file without the kernel's cache.
    for block in 0..16 {
        assert_eq!(write(&mut bench, block + 1, NONE, u64::from(block) * 4096, 4096), Ok(()));
    }
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    let found = std::fs::read(path.path()).unwrap();
    assert!((0..16).all(|block| found[block * 4096..][..4096] == [block as u8 + 1; 4096]));
    assert_eq!(read(&mut bench, 4096, 8192), [[2; 4096], [3; 4096]].concat());
}

#[test]
fn unflushed_write_is_not_below_and_flushed_one_is() {
    let mut bench = in_memory(PowercutOptions::default(), &Told::default());
    assert_eq!(write(&mut bench, 1, NONE, 0, 4096), Ok(()));
    assert_eq!(below(&mut bench)[..4096], [0; 4096]);
    assert_eq!(write(&mut bench, 2, BioFlags::FUA, 8192, 512), Ok(()));
    let found = below(&mut bench);
    assert_eq!((found[0], found[8192]), (0, 2), "FUA moves one write alone");
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    assert_eq!(below(&mut bench)[..4096], [1; 4096]);
}

#[test]
fn write_past_the_cache_is_not_undone_by_an_older_one() {
    let mut bench = in_memory(PowercutOptions::default(), &Told::default());
    assert_eq!(write(&mut bench, 1, NONE, 0, 4096), Ok(()));
    assert_eq!(write(&mut bench, 2, BioFlags::FUA, 1024, 512), Ok(()));
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    assert_eq!(below(&mut bench)[1023..1025], [1, 2]);
}

/// Writes with versions until the power is cut: each sector then holds its version of the last flush, or a later one.
#[test]
fn nothing_that_was_flushed_is_lost_at_any_cut() {
    let (mut lost, mut changed) = (0, 0);
    for seed in 0..3_000 {
        let mut prng = Prng::new(seed);
        let at = Some(prng.between(1, 40));
        let told = Told::default();
        let mut bench =
            in_memory(PowercutOptions { seed, at, ..PowercutOptions::default() }, &told);
        let mut may: Vec<Vec<u8>> = vec![vec![0]; SIZE / 512];
        for version in 1..=40 {
            let (first, len) = random_range(&mut prng);
            let sectors = (first / 512) as usize..((first + u64::from(len)) / 512) as usize;
            let choice = prng.below(8);
            if choice == 0 {
                bench.submit(Op::Flush, NONE, 0, 0);
                let done = bench.drain();
                if told.cuts() == 0 {
                    assert_eq!(done[0].status, Ok(()));
                    may.iter_mut().for_each(|may| *may = vec![*may.last().unwrap()]);
                }
            } else {
                let flags = if choice == 1 { BioFlags::FUA } else { NONE };
                bench.buffer()[..len as usize].fill(version);
                bench.submit(Op::Write, flags, first, len);
                bench.drain();
                let durable = choice == 1 && told.cuts() == 0;
                for may in &mut may[sectors] {
                    if durable {
                        may.clear();
                    }
                    may.push(version);
                }
            }
            if told.cuts() > 0 {
                break;
            }
        }
        assert_eq!(told.cuts(), 1, "seed {seed}");
        for (sector, bytes) in below(&mut bench).chunks(512).enumerate() {
            assert!(bytes.iter().all(|byte| byte == &bytes[0]), "a sector is never torn");
            assert!(may[sector].contains(&bytes[0]), "seed {seed}, sector {sector}: {}", bytes[0]);
            lost += u64::from(may[sector].last() != Some(&bytes[0]));
            changed += u64::from(may[sector].len() > 1 && bytes[0] != may[sector][0]);
        }
    }
    assert!(lost > 3_000 && changed > 3_000, "{lost} lost, {changed} kept");
}

#[test]
fn cut_at_a_flush_answers_nothing_more() {
    let told = Told::default();
    let options = PowercutOptions { at_flush: Some(2), ..PowercutOptions::default() };
    let mut bench = in_memory(options, &told);
    assert_eq!(write(&mut bench, 1, NONE, 0, 512), Ok(()));
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    bench.submit(Op::Flush, NONE, 0, 0);
    bench.submit(Op::Read, NONE, 0, 512);
    assert_eq!((bench.drain().len(), told.cuts()), (0, 1));
    assert_eq!(bench.device().report.commands, 3);
}

#[test]
fn disk_that_lies_acknowledges_a_flush_of_which_nothing_is_below() {
    let options = PowercutOptions { lies: true, ..PowercutOptions::default() };
    let mut bench = in_memory(options, &Told::default());
    assert_eq!(write(&mut bench, 1, BioFlags::FUA, 0, 512), Ok(()));
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    assert_eq!((below(&mut bench)[0], read(&mut bench, 0, 512)[0]), (0, 1));
}

#[test]
fn full_cache_moves_its_older_half() {
    let options = PowercutOptions { cache: 4 * 512, ..PowercutOptions::default() };
    let mut bench = in_memory(options, &Told::default());
    for sector in 0..5 {
        assert_eq!(write(&mut bench, 1, NONE, sector * 512, 512), Ok(()));
    }
    let found: Vec<u8> = below(&mut bench).chunks(512).take(5).map(|sector| sector[0]).collect();
    assert_eq!((found, bench.device().held.bytes()), (vec![1, 1, 1, 0, 0], 2 * 512));
}

#[test]
fn busy_device_below_is_asked_again_and_a_failed_flush_keeps_what_it_did_not_move() {
    let path = TempFile::absent("powercut-busy");
    let options = FileOptions { size: Some(SIZE as u64), ..FileOptions::default() };
    let file = OpenFile::open(path.path(), &options).unwrap();
    let device = FileDevice::new(vec![(VolumeId(0), file)]);
    let told = Told::default();
    let disk = PowercutDevice::new(PowercutOptions::default(), 4096, Box::new(device), told.end());
    let mut bench = Bench::new(disk);
    assert_eq!(write(&mut bench, 7, NONE, 0, 4096), Ok(()));
    bench.disk.full = true;
    bench.submit(Op::Flush, NONE, 0, 0);
    assert!(bench.step() && bench.completions.is_empty());
    bench.disk.full = false;
    assert_eq!(bench.drain().len(), 1);
    assert_eq!(std::fs::read(path.path()).unwrap()[0], 7);
    assert_eq!(write(&mut bench, 8, NONE, 0, 4096), Ok(()));
    bench.disk.script.push_back(Some(-libc::EIO));
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Err(IoError::Medium));
    assert_eq!(read(&mut bench, 0, 4096)[0], 8);
    assert_eq!(bench.run(Op::Flush, NONE, 0, 0).status, Ok(()));
    assert_eq!(std::fs::read(path.path()).unwrap()[0], 8);
}

#[test]
fn cut_that_is_asked_for_comes_with_the_next_call_through_wrappers() {
    let told = Told::default();
    let disk = PowercutDevice::new(
        PowercutOptions::default(),
        512,
        Box::new(MemDevice::new(SIZE as u64).unwrap()),
        told.end(),
    );
    let delay = DelayDevice::new(DelayOptions::default(), Box::new(disk));
    let mut bench = Bench::<dyn Device>::boxed(Box::new(delay));
    bench.submit(Op::Write, NONE, 0, 4096);
    assert_eq!((bench.drain().len(), bench.device().next_timeout()), (1, None));
    let device: &mut dyn Device = bench.device_mut();
    device.find::<PowercutDevice>().expect("it is below the delay").cut_power();
    assert_eq!((told.cuts(), bench.device().next_timeout()), (0, Some(Instant(0))));
    assert!(bench.step());
    assert_eq!((told.cuts(), bench.device().next_timeout()), (1, None));
    bench.submit(Op::Flush, NONE, 0, 0);
    assert!(bench.drain().is_empty(), "the power is off");
}
