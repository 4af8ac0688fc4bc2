//! Feeders that drive over files: hits beside misses, write-back, and operations that they leave to the owner's thread.

use std::fs::File;

use headworks_core::WriteMode;

use super::*;
use crate::embed::driver::Driver;
use crate::engine::{DiskDone, DiskKind, DiskOp};
use crate::testing::TestDisk;

const ENGINES: [EngineChoice; 2] = [EngineChoice::Auto, EngineChoice::Threads];

/// A file that is reached through the engine on every filesystem, in memory, too.
pub(super) struct EngineDevice(File);

impl EngineDevice {
    pub fn setup() -> DeviceSetup {
        let path = TempFile::absent("engine");
        let file = File::options().read(true).write(true).create_new(true).open(path.path());
        let file = file.unwrap();
        file.set_len(4 * MIB).unwrap();
        let queue = QueueOptions { nr_requests: 64, ..null().queue };
        DeviceSetup::new(Self(file), queue)
    }
}

impl Device for EngineDevice {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            let kind = match command.op {
                Op::Read => DiskKind::Read,
                Op::Write => DiskKind::Write { dsync: false },
                _ => DiskKind::Sync,
            };
            let (device, id, fd) = (io.device, command.id, self.0.as_raw_fd());
            let (offset, len) = (command.offset, command.len.into());
            let operation = DiskOp { device, id, fd, kind, offset, len };
            // SAFETY: the caller's promise, passed on; the file is open as long as the device.
            if !unsafe { io.disk.push(operation, batch.spans_of(command)) } {
                let status = Err(IoError::Busy);
                io.completions.push(Completion { id, transferred: 0, status, hole: false });
            }
        }
    }

    fn on_disk(&mut self, _: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        let transferred = done.result.max(0) as u32;
        let status = if done.result < 0 { Err(IoError::from_errno(-done.result)) } else { Ok(()) };
        io.completions.push(Completion { id: done.id, transferred, status, hole: false });
    }
}

fn four_mebibytes() -> VolumeOptions {
    VolumeOptions { size: 4 * MIB, ..mebibyte() }
}

fn cached(engine: EngineChoice, handles: usize) -> (Owner, Vec<Handle>) {
    let cache = CacheOptions { units: 256, ..CacheOptions::default() };
    Owner::start(OwnerOptions { cache, engine, handles, ..options() }).unwrap()
}

#[test]
fn hits_over_a_file_leave_the_owner_asleep() {
    for engine in ENGINES {
        let (owner, mut handles) = cached(engine, 1);
        let device = owner.add_device(EngineDevice::setup()).unwrap();
        let volume = owner.add_volume(device, four_mebibytes()).unwrap();
        for round in 0..1000 {
            let offset = round % 8 * BLOCK as u64;
            assert_eq!(run(&mut handles[0], volume, Io::read(offset, BLOCK as u32)), Ok(()));
        }
        drop(handles);
        let report = owner.join().unwrap();
        let of_owner = report.turns - report.feeder_turns;
        assert!(report.feeder_turns >= 900 && of_owner < 100, "{report:?}");
    }
}

#[test]
fn feeders_drive_hits_misses_and_write_back_of_files() {
    for engine in ENGINES {
        // 512 blocks in a cache of 256, and as many without a cache.
        let (owner, mut handles) = cached(engine, 8);
        let path = TempFile::absent("embed-drive");
        let create =
            FileOptions { size: Some(4 * MIB), direct: Direct::Off, ..FileOptions::default() };
        let image = OpenFile::open(path.path(), &create).unwrap();
        let image = owner.add_file(image, WriteMode::Writeback).unwrap();
        let device = owner.add_device(EngineDevice::setup()).unwrap();
        let uncached = VolumeOptions { mode: WriteMode::None, ..four_mebibytes() };
        let uncached = owner.add_volume(device, uncached).unwrap();
        let mut last = handles.pop().unwrap();
        std::thread::scope(|scope| {
            for (index, mut handle) in handles.into_iter().enumerate() {
                let volume = [image, uncached][index % 2];
                scope.spawn(move || {
                    assert_eq!(feed(&mut handle, volume, 64 * index as u64, 1500), 1500);
                });
            }
        });
        let mut slot = last.slot().unwrap();
        slot.fill(7);
        last.put(image, slot, Io::write(4 * MIB - BLOCK as u64, BLOCK as u32)).unwrap();
        assert_eq!(one(&mut last).status, Ok(()));
        drop(last);
        let report = owner.join().unwrap();
        assert_eq!((report.notices.len(), report.flush_errors.len()), (0, 0));
        assert!(report.feeder_turns > 0 && report.counts.messages == 7 * 1500 + 1);
        assert!(std::fs::read(path.path()).unwrap().ends_with(&[7; BLOCK]));
    }
}

#[test]
fn operations_of_a_dropped_handle_are_started_and_completed() {
    for engine in ENGINES {
        let (owner, mut handles) = Owner::start(OwnerOptions { engine, ..options() }).unwrap();
        let volume = add(&owner, EngineDevice::setup());
        submit_reads(&mut handles[0], volume, 16);
        drop(handles);
        assert_eq!(owner.join().unwrap().counts.messages, 16);
    }
}

#[test]
fn shutdown_ends_feeders_that_leave_operations() {
    for round in 0..20 {
        let engine = ENGINES[round % 2];
        let options = OwnerOptions { handles: 3, engine, ..options() };
        let (owner, handles) = Owner::start(options).unwrap();
        let volume = add(&owner, EngineDevice::setup());
        shut_down_under_reads(owner, handles, volume);
    }
}

#[test]
fn file_devices_come_and_go_under_load() {
    let (owner, mut handles, volume) = over(memory(), 2);
    let mut other = handles.pop().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || assert_eq!(feed(&mut handles[0], volume, 0, 20_000), 20_000));
        for _ in 0..20 {
            let device = owner.add_device(EngineDevice::setup()).unwrap();
            let added = owner.add_volume(device, mebibyte()).unwrap();
            submit_reads(&mut other, added, 8);
            owner.remove_volume(added, SOON).unwrap();
            reap_all(&mut other);
            owner.remove_device(device, SOON).unwrap();
        }
    });
    drop(other);
    assert_eq!(owner.join().unwrap().counts.messages, 20_000 + 160);
}

#[test]
fn operation_that_the_engine_refuses_is_tried_again() {
    let mut driver = Driver::new(&options(), Vec::new(), Arc::default(), 8).unwrap();
    let mut now = Instant(1);
    let device = driver.add_device(now, EngineDevice::setup()).unwrap();
    let volume = driver.add_volume(now, device, mebibyte(), None).unwrap();
    driver.send_flush(volume);
    driver.feeder_turn(now, None);
    assert!(!driver.left.is_empty());
    let mut engine = TestDisk::default();
    engine.full = true;
    assert!(driver.start_left(now, &mut engine) && driver.left.is_empty());
    driver.run(now, &mut engine);
    assert!(driver.take_flushed(volume).is_none());
    engine.full = false;
    now = driver.next_timeout().expect("the queue tries again");
    driver.feeder_turn(now, None);
    assert!(driver.start_left(now, &mut engine) && !driver.start_left(now, &mut engine));
    let done = engine.step().unwrap();
    driver.take_events(now, &mut vec![crate::engine::Event::Disk(done)], &mut engine);
    driver.run(now, &mut engine);
    assert_eq!(driver.take_flushed(volume), Some(Ok(())));
}
