//! Owner and handles end to end: data, order, hot-add, hot-remove and shutdown.

use std::os::fd::AsRawFd;
use std::time::Instant as WallClock;

use headworks_core::{
    ChangeError, Completion, Instant, IoError, Op, VolumeId, VolumeOptions, prng::Prng,
};

use super::*;
use crate::device::{
    Command, CommandBatch, DeviceIo, Direct, FileOptions, Filter, FilterDevice, MemDevice,
    NullDevice, OpenFile,
};
use crate::testing::{LateDevice, TempFile};

mod files;
mod lent;
mod shares;
mod watching;

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
const DRIVES: [Drive; 2] = [Drive::Feeders, Drive::Thread];
const SOON: Duration = Duration::from_secs(10);

fn options() -> OwnerOptions {
    OwnerOptions { depth: 16, ..OwnerOptions::default() }
}

fn volatile(queue: QueueOptions) -> QueueOptions {
    QueueOptions { write_cache: true, ..queue }
}

fn null() -> DeviceSetup {
    DeviceSetup::new(NullDevice, volatile(NullDevice::queue_options()))
}

fn memory() -> DeviceSetup {
    DeviceSetup::new(MemDevice::new(MIB).unwrap(), volatile(MemDevice::queue_options()))
}

fn slow(ms: u64) -> DeviceSetup {
    DeviceSetup::new(LateDevice::new(ms * 1_000_000), null().queue)
}

/// Fails every command of an operation.
struct Failing(Op);

impl Filter for Failing {
    fn command(&mut self, _: Instant, command: &Command) -> Result<(), IoError> {
        if command.op == self.0 { Err(IoError::Medium) } else { Ok(()) }
    }
}

fn failing(op: Op) -> DeviceSetup {
    DeviceSetup::new(FilterDevice::new(Failing(op), memory().device), memory().queue)
}

fn mebibyte() -> VolumeOptions {
    VolumeOptions { size: MIB, block_size: 512, ..VolumeOptions::default() }
}

fn add(owner: &Owner, setup: DeviceSetup) -> VolumeId {
    let device = owner.add_device(setup).unwrap();
    owner.add_volume(device, mebibyte()).unwrap()
}

/// An owner with one volume.
fn over(setup: DeviceSetup, handles: usize) -> (Owner, Vec<Handle>, VolumeId) {
    let (owner, handle) = Owner::start(OwnerOptions { handles, ..options() }).unwrap();
    let volume = add(&owner, setup);
    (owner, handle, volume)
}

/// Waits for one completion.
fn one(handle: &mut Handle) -> IoCompletion {
    let mut completions = Vec::new();
    while handle.reap(1, &mut completions) == 0 {
        assert_eq!(handle.wait(), WaitOutcome::Ready);
    }
    completions.remove(0)
}

/// Executes one I/O and releases its slot.
fn run(handle: &mut Handle, volume: VolumeId, io: Io) -> Status {
    let slot = handle.slot().unwrap();
    handle.put(volume, slot, io).unwrap();
    let completion = one(handle);
    handle.release(completion.slot.unwrap());
    completion.status
}

/// Writes and reads random blocks of a range and checks every byte. Returns the number of completions.
fn feed(handle: &mut Handle, volume: VolumeId, first_block: u64, count: u64) -> u64 {
    const BLOCKS: u64 = 64;
    let mut prng = Prng::new(first_block);
    let mut model = [0_u8; BLOCKS as usize];
    let mut busy = vec![None; handle.depth() as usize];
    let (mut put, mut completed, mut completions) = (0, 0, Vec::new());
    while completed < count {
        while put < count
            && let Some(mut slot) = handle.slot()
        {
            let block = prng.below(BLOCKS);
            if busy.iter().flatten().any(|&(_, other)| other == block) {
                handle.release(slot);
                break;
            }
            let write = prng.below(2) == 0;
            let fill = if write { prng.next() as u8 } else { 0xee };
            slot.fill(fill);
            if write {
                model[block as usize] = fill;
            }
            busy[slot.index() as usize] = Some((write, block));
            let (offset, len) = ((first_block + block) * BLOCK as u64, BLOCK as u32);
            let io = if write { Io::write(offset, len) } else { Io::read(offset, len) };
            let io = io.user_data(slot.index().into());
            handle.put(volume, slot, io).unwrap();
            put += 1;
        }
        assert_eq!(handle.wait(), WaitOutcome::Ready);
        handle.reap(5, &mut completions);
        for completion in completions.drain(..) {
            let slot = completion.slot.unwrap();
            assert_eq!(u64::from(slot.index()), completion.user_data);
            let (write, block) = busy[slot.index() as usize].take().expect("completes once");
            assert_eq!(completion.status, Ok(()));
            if !write && !completion.hole {
                assert!(slot.iter().all(|&byte| byte == model[block as usize]));
            }
            handle.release(slot);
            completed += 1;
        }
    }
    assert_eq!(handle.reap(usize::MAX, &mut completions), 0, "nothing completes twice");
    completed
}

#[test]
fn concurrent_handles_complete_every_bio_once_with_correct_data() {
    let (owner, handles, volume) = over(memory(), 4);
    std::thread::scope(|scope| {
        for (index, mut handle) in handles.into_iter().enumerate() {
            scope.spawn(move || {
                let count = 3000 + index as u64;
                assert_eq!(feed(&mut handle, volume, 64 * index as u64, count), count);
                assert_eq!((handle.counts().messages, handle.outstanding()), (count, 0));
            });
        }
    });
    let report = owner.join().unwrap();
    assert_eq!(report.counts.messages, 4 * 3000 + 6);
    assert_eq!((report.notices.len(), report.flush_errors.len()), (0, 0));
    let bios: u64 = report.volumes[0].1.ops.iter().map(|op| op.bios).sum();
    assert_eq!(bios, 4 * 3000 + 6);
}

#[test]
fn owner_completes_bios_of_sixty_four_handles() {
    let (owner, handles, volume) = over(memory(), 64);
    std::thread::scope(|scope| {
        for mut handle in handles {
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(run(&mut handle, volume, Io::read(0, BLOCK as u32)), Ok(()));
                }
            });
        }
    });
    assert_eq!(owner.join().unwrap().counts.messages, 64 * 20);
}

#[test]
fn shutdown_flushes_cached_volume_and_reports_flush_error() {
    let cache = CacheOptions { units: 256, ..CacheOptions::default() };
    let end = |setup| {
        let (owner, mut handles) = Owner::start(OwnerOptions { cache, ..options() }).unwrap();
        let volume = add(&owner, setup);
        assert_eq!(run(&mut handles[0], volume, Io::write(0, BLOCK as u32)), Ok(()));
        drop(handles);
        owner.join().unwrap().flush_errors
    };
    assert_eq!(end(memory()), []);
    assert_eq!(end(failing(Op::Flush)).len(), 1);
}

#[test]
fn cached_bytes_are_in_the_image_after_shutdown() {
    let cache = CacheOptions { units: 256, ..CacheOptions::default() };
    let file = TempFile::absent("embed");
    let (owner, mut handles) = Owner::start(OwnerOptions { cache, ..options() }).unwrap();
    let create = FileOptions { size: Some(MIB), direct: Direct::Off, ..FileOptions::default() };
    let image = OpenFile::open(file.path(), &create).unwrap();
    let volume = owner.add_file(image, headworks_core::WriteMode::Writeback).unwrap();
    let mut slot = handles[0].slot().unwrap();
    slot.fill(7);
    handles[0].put(volume, slot, Io::write(8192, BLOCK as u32)).unwrap();
    assert_eq!(one(&mut handles[0]).status, Ok(()));
    // Handles still exist.
    owner.shutdown().unwrap();
    assert_eq!(std::fs::read(file.path()).unwrap()[8192..8192 + BLOCK], [7; BLOCK]);
    let slot = handles[0].slot().unwrap();
    handles[0].put(volume, slot, Io::flush()).unwrap();
    assert_eq!(handles[0].wait(), WaitOutcome::OwnerEnded);
    assert!(!handles[0].arm());
}

#[test]
fn owner_and_handle_sleep_while_slow_device_works() {
    let (owner, mut handles, volume) = over(slow(2), 1);
    // On a busy machine a yield of the CPU may take as long as the device.
    let mut rounds = 0;
    while rounds < 10 || handles[0].counts().sleeps == 0 {
        assert_eq!(run(&mut handles[0], volume, Io::write(0, BLOCK as u32)), Ok(()));
        rounds += 1;
    }
    drop(handles);
    assert!(owner.join().unwrap().counts.sleeps > 0);
}

#[test]
fn idle_owner_shuts_down_promptly() {
    let cache = CacheOptions { units: 256, ..CacheOptions::default() };
    for cache in [cache, CacheOptions::default()] {
        let start = WallClock::now();
        let (owner, _handles) = Owner::start(OwnerOptions { cache, ..options() }).unwrap();
        add(&owner, memory());
        std::thread::sleep(Duration::from_millis(20));
        owner.shutdown().unwrap();
        assert!(start.elapsed() < SOON);
    }
}

#[test]
fn wait_without_bios_in_flight_returns_idle() {
    let (_owner, mut handles, _) = over(null(), 1);
    assert_eq!(handles[0].wait(), WaitOutcome::Idle);
    assert!(!handles[0].arm());
}

#[test]
fn rejected_put_returns_the_slot() {
    let (_owner, mut handles, volume) = over(null(), 2);
    let [first, second] = &mut handles[..] else { panic!("two handles") };
    let rejected = first.put(volume, second.slot().unwrap(), Io::flush()).unwrap_err();
    assert!(rejected.to_string().contains("another handle"));
    second.release(rejected.slot);
    let slot = second.slot().unwrap();
    let rejected = second.put(volume, slot, Io::read(0, BLOCK as u32 + 1)).unwrap_err();
    assert!(rejected.to_string().contains("do not fit"));
    second.release(rejected.slot);
    assert_eq!(run(second, volume, Io::write(MIB, BLOCK as u32)), Err(IoError::NoSpace));
    assert_eq!(run(second, volume, Io::read(1, 512)), Err(IoError::Invalid));
    assert_eq!(run(second, VolumeId(9), Io::flush()), Err(IoError::Invalid));
    assert_eq!(run(second, volume, Io::flush()), Ok(()));
}

#[test]
fn bios_of_dropped_handle_still_complete() {
    let (owner, mut handles, volume) = over(slow(1), 3);
    let mut gone = handles.remove(1);
    for index in 0..16 {
        let slot = gone.slot().unwrap();
        gone.put(volume, slot, Io::write(index * 8192, BLOCK as u32)).unwrap();
    }
    gone.submit();
    drop(gone);
    assert_eq!(run(&mut handles[1], volume, Io::write(0, BLOCK as u32)), Ok(()));
    drop(handles);
    assert_eq!(owner.join().unwrap().counts.messages, 17, "bios of the dropped handle included");
}

#[test]
fn drop_order_of_owner_handles_and_slots_does_not_matter() {
    for order in 0..3 {
        let (owner, mut handles, volume) = over(slow(1), 1);
        let mut kept = handles[0].slot().unwrap();
        let slot = handles[0].slot().unwrap();
        handles[0].put(volume, slot, Io::read(0, BLOCK as u32)).unwrap();
        handles[0].submit();
        match order {
            0 => drop((owner, handles)),
            1 => drop((handles, owner)),
            _ => drop(handles),
        }
        kept.fill(1);
    }
}

#[test]
fn volumes_are_added_and_removed_under_load() {
    let (owner, mut handles, volume) = over(memory(), 2);
    let mut other = handles.pop().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || assert_eq!(feed(&mut handles[0], volume, 0, 20_000), 20_000));
        for round in 0..20 {
            let device = owner.add_device(memory()).unwrap();
            let added = owner.add_volume(device, mebibyte()).unwrap();
            assert_ne!(added, volume);
            assert_eq!(feed(&mut other, added, 0, 50), 50);
            assert!(matches!(
                owner.remove_device(device, Duration::ZERO),
                Err(ChangeError::Busy(_))
            ));
            // Reads in flight while the volume is removed complete with success or are rejected.
            for _ in 0..4 {
                let slot = other.slot().unwrap();
                other.put(added, slot, Io::read(0, BLOCK as u32)).unwrap();
            }
            other.submit();
            owner.remove_volume(added, SOON).unwrap();
            for _ in 0..4 {
                let completion = one(&mut other);
                assert!(matches!(completion.status, Ok(()) | Err(IoError::Invalid)), "{round}");
                other.release(completion.slot.unwrap());
            }
            assert_eq!(run(&mut other, added, Io::flush()), Err(IoError::Invalid));
            assert!(owner.stats(added).is_none() && owner.stats(volume).is_some());
            owner.remove_device(device, SOON).unwrap();
        }
    });
    assert_eq!(owner.shutdown().unwrap().flush_errors, []);
}

#[test]
fn removal_writes_dirty_data_or_fails_and_keeps_the_volume() {
    let cache = CacheOptions { units: 256, ..CacheOptions::default() };
    let (owner, mut handles) = Owner::start(OwnerOptions { cache, ..options() }).unwrap();
    let good = add(&owner, memory());
    let bad = add(&owner, failing(Op::Write));
    for volume in [good, bad] {
        assert_eq!(run(&mut handles[0], volume, Io::write(0, BLOCK as u32)), Ok(()));
    }
    owner.remove_volume(good, SOON).unwrap();
    let error = owner.remove_volume(bad, Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("flush"), "{error}");
    assert_eq!(run(&mut handles[0], bad, Io::read(0, BLOCK as u32)), Ok(()), "still there");
    assert!(owner.remove_volume(good, SOON).unwrap_err().to_string().contains("no such volume"));
}

/// A device that completes no command until `release` is set.
struct StuckDevice {
    commands: Vec<Command>,
    release: Arc<AtomicBool>,
}

impl Device for StuckDevice {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, _: &mut DeviceIo<'_>) {
        self.commands.extend_from_slice(batch.commands);
    }

    fn on_timeout(&mut self, _: Instant, io: &mut DeviceIo<'_>) {
        let done = |command: Command| Completion {
            id: command.id,
            transferred: command.len,
            status: Ok(()),
            hole: false,
        };
        io.completions.extend(self.commands.drain(..).map(done));
    }

    fn next_timeout(&self) -> Option<Instant> {
        let due = self.release.load(Ordering::Relaxed) && !self.commands.is_empty();
        due.then_some(Instant(0))
    }
}

/// A device that never answers.
fn stuck() -> StuckDevice {
    StuckDevice { commands: Vec::new(), release: Arc::default() }
}

#[test]
fn timed_out_slot_returns_when_the_device_releases_it() {
    let stuck = stuck();
    let release = Arc::clone(&stuck.release);
    let queue = QueueOptions { io_timeout_ns: 20_000_000, ..null().queue };
    let (owner, mut handles, volume) = over(DeviceSetup::new(stuck, queue), 1);
    let handle = &mut handles[0];
    let slots: Vec<_> = (1..handle.depth()).map(|_| handle.slot().unwrap()).collect();
    let slot = handle.slot().unwrap();
    let index = slot.index();
    handle.put(volume, slot, Io::write(0, BLOCK as u32).user_data(5)).unwrap();
    let completion = one(handle);
    assert_eq!((completion.status, completion.user_data), (Err(IoError::TimedOut), 5));
    assert!(completion.slot.is_none() && handle.slot().is_none(), "the device has the slot");
    assert_eq!(handle.wait(), WaitOutcome::Idle);
    release.store(true, Ordering::Relaxed);
    let start = WallClock::now();
    let back = loop {
        assert!(start.elapsed() < SOON);
        // Any command makes the owner call its device.
        let _ = owner.stats(volume);
        handle.reap(8, &mut Vec::new());
        if let Some(slot) = handle.slot() {
            break slot;
        }
    };
    assert_eq!(back.index(), index);
    drop((slots, handles));
    owner.join().unwrap();
}

#[test]
fn shutdown_does_not_hang_on_stuck_device() {
    for (how, drive) in ["join", "shutdown", "drop"].into_iter().zip(DRIVES.into_iter().cycle()) {
        let shutdown_timeout = Duration::from_millis(50);
        let options = OwnerOptions { drive, shutdown_timeout, ..options() };
        let (owner, mut handles) = Owner::start(options).unwrap();
        let volume = add(&owner, DeviceSetup::new(stuck(), null().queue));
        let slot = handles[0].slot().unwrap();
        handles[0].put(volume, slot, Io::write(0, BLOCK as u32)).unwrap();
        handles[0].submit();
        let start = WallClock::now();
        match how {
            "drop" => drop(owner),
            "join" => {
                handles.clear();
                assert_eq!(owner.join().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
            }
            _ => {
                assert_eq!(owner.shutdown().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
                assert_eq!(handles[0].wait(), WaitOutcome::OwnerEnded);
            }
        }
        assert!(start.elapsed() < SOON, "{how}");
    }
}

#[test]
fn removal_from_a_stuck_device_times_out() {
    let options = OwnerOptions { shutdown_timeout: Duration::ZERO, ..options() };
    let (owner, mut handles) = Owner::start(options).unwrap();
    let volume = add(&owner, DeviceSetup::new(stuck(), null().queue));
    let slot = handles[0].slot().unwrap();
    handles[0].put(volume, slot, Io::write(0, BLOCK as u32)).unwrap();
    handles[0].submit();
    // A removal that comes before the owner has taken the bio rejects the bio.
    std::thread::sleep(Duration::from_millis(50));
    let error = owner.remove_volume(volume, Duration::from_millis(20));
    assert!(matches!(error, Err(ChangeError::Busy(_))), "{error:?}");
}

#[test]
fn device_error_reaches_the_completion() {
    let (_owner, mut handles, volume) = over(failing(Op::Read), 1);
    assert_eq!(run(&mut handles[0], volume, Io::read(0, BLOCK as u32)), Err(IoError::Medium));
    assert_eq!(run(&mut handles[0], volume, Io::write(0, BLOCK as u32)), Ok(()));
}

#[test]
fn epoll_reports_completions_of_several_handles() {
    let (owner, mut handles, volume) = over(slow(1), 4);
    // SAFETY: no pointers.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    for (index, handle) in (0..).zip(&handles) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: index };
        // SAFETY: `event` lives during the call.
        let added = unsafe {
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, handle.as_raw_fd(), &raw mut event)
        };
        assert_eq!(added, 0);
    }
    let (mut put, mut completed) = (0, 0);
    let mut completions = Vec::new();
    while completed < 200 {
        let mut ready = false;
        for handle in &mut handles {
            while put < 200
                && let Some(slot) = handle.slot()
            {
                handle.put(volume, slot, Io::write(0, BLOCK as u32)).unwrap();
                put += 1;
            }
            let armed = handle.arm();
            ready |= !armed && handle.outstanding() > 0;
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let timeout = if ready || completed == 200 { 0 } else { 10_000 };
        // SAFETY: room for four events.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), 4, timeout) };
        assert!(ready || count > 0, "a wake-up was lost after {completed}");
        for handle in &mut handles {
            completed += handle.reap(usize::MAX, &mut completions);
            for completion in completions.drain(..) {
                handle.release(completion.slot.unwrap());
            }
        }
    }
    // SAFETY: ours.
    unsafe { libc::close(epoll) };
    drop(handles);
    assert_eq!(owner.join().unwrap().counts.messages, 200);
}

#[test]
fn out_of_range_options_are_rejected() {
    let message = |options| Owner::start(options).map(|_| ()).unwrap_err().to_string();
    assert!(message(OwnerOptions { handles: 0, ..options() }).contains("handles"));
    assert!(message(OwnerOptions { depth: 4097, ..options() }).contains("depth"));
    assert!(message(OwnerOptions { slot_bytes: 0, ..options() }).contains("slot_bytes"));
    assert!(message(OwnerOptions { volumes_max: 0, ..options() }).contains("volume"));
    let cache = CacheOptions { units: 256, writers_max: 4, ..CacheOptions::default() };
    assert!(message(OwnerOptions { cache, handles: 4, ..options() }).contains("writers_max"));

    let (owner, _handles) = Owner::start(OwnerOptions { devices_max: 1, ..options() }).unwrap();
    let queue = QueueOptions { nr_requests: 0, ..null().queue };
    let error = owner.add_device(DeviceSetup { queue, ..null() }).unwrap_err();
    assert!(error.to_string().contains("nr_requests"), "{error}");
    let device = owner.add_device(null()).unwrap();
    assert!(owner.add_device(null()).unwrap_err().to_string().contains("devices_max"));
    let large = VolumeOptions { block_size: 8192, ..mebibyte() };
    let error = owner.add_volume(device, large).unwrap_err();
    assert!(error.to_string().contains("slot_bytes"), "{error}");
    let file = TempFile::absent("embed-null");
    let create = FileOptions { size: Some(MIB), ..FileOptions::default() };
    let image = OpenFile::open(file.path(), &create).unwrap();
    let error = owner.add_image(device, image, headworks_core::WriteMode::None).unwrap_err();
    assert!(error.to_string().contains("images"), "{error}");
}

/// Takes completions of what was submitted before, and neither submits nor waits.
fn reap_all(handle: &mut Handle) {
    let (start, mut completions) = (WallClock::now(), Vec::new());
    while handle.outstanding() > 0 {
        handle.reap(usize::MAX, &mut completions);
        assert!(start.elapsed() < SOON, "{} are left behind", handle.outstanding());
        std::thread::yield_now();
    }
    completions
        .into_iter()
        .filter_map(|completion| completion.slot)
        .for_each(|slot| handle.release(slot));
}

/// Submits `count` reads at once.
fn submit_reads(handle: &mut Handle, volume: VolumeId, count: u32) {
    for _ in 0..count {
        let slot = handle.slot().unwrap();
        handle.put(volume, slot, Io::read(0, BLOCK as u32)).unwrap();
    }
    handle.submit();
}

#[test]
fn feeder_drives_unless_told_otherwise() {
    let drives = |drive, setups: Vec<DeviceSetup>| {
        let (owner, mut handles) = Owner::start(OwnerOptions { drive, ..options() }).unwrap();
        let volumes: Vec<_> = setups.into_iter().map(|setup| add(&owner, setup)).collect();
        for _ in 0..200 {
            assert_eq!(run(&mut handles[0], volumes[0], Io::read(0, BLOCK as u32)), Ok(()));
        }
        drop(handles);
        let report = owner.join().unwrap();
        assert!(report.feeder_turns <= report.turns);
        report.feeder_turns > 0
    };
    assert!(drives(Drive::Feeders, vec![null()]));
    assert!(drives(Drive::Feeders, vec![slow(0), failing(Op::Discard), memory()]));
    assert!(!drives(Drive::Thread, vec![null()]));
}

#[test]
fn large_batch_beside_small_ones_and_feeders_that_only_reap() {
    let options = OwnerOptions { handles: 4, depth: 512, ..OwnerOptions::default() };
    let (owner, handles) = Owner::start(options).unwrap();
    let volume = add(&owner, memory());
    std::thread::scope(|scope| {
        for (mut handle, count) in handles.into_iter().zip([512, 1, 2, 40]) {
            scope.spawn(move || {
                for _ in 0..300 {
                    submit_reads(&mut handle, volume, count);
                    reap_all(&mut handle);
                }
            });
        }
    });
    assert_eq!(owner.join().unwrap().counts.messages, 300 * (512 + 1 + 2 + 40));
}

#[test]
fn time_out_comes_while_feeders_drive() {
    let (owner, mut handles, volume) = over(null(), 2);
    let queue = QueueOptions { io_timeout_ns: 20_000_000, ..null().queue };
    let stuck = stuck();
    let release = Arc::clone(&stuck.release);
    let silent = add(&owner, DeviceSetup::new(stuck, queue));
    let (mut waiting, mut busy) = (handles.remove(0), handles.remove(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(run(&mut busy, volume, Io::read(0, BLOCK as u32)), Ok(()));
            }
        });
        let slot = waiting.slot().unwrap();
        waiting.put(silent, slot, Io::read(0, BLOCK as u32)).unwrap();
        assert_eq!(one(&mut waiting).status, Err(IoError::TimedOut));
        done.store(true, Ordering::Relaxed);
    });
    // And once more without the other.
    let slot = waiting.slot().unwrap();
    waiting.put(silent, slot, Io::read(0, BLOCK as u32)).unwrap();
    assert_eq!(one(&mut waiting).status, Err(IoError::TimedOut));
    release.store(true, Ordering::Relaxed);
    drop((waiting, busy));
    owner.join().unwrap();
}

/// Shuts the owner down while every handle reads without a pause.
fn shut_down_under_reads(owner: Owner, handles: Vec<Handle>, volume: VolumeId) {
    let started = std::sync::Barrier::new(1 + handles.len());
    std::thread::scope(|scope| {
        for mut handle in handles {
            let started = &started;
            scope.spawn(move || {
                submit_reads(&mut handle, volume, 1);
                started.wait();
                let mut completions = Vec::new();
                while handle.wait() != WaitOutcome::OwnerEnded {
                    handle.reap(usize::MAX, &mut completions);
                    for completion in completions.drain(..) {
                        assert_eq!(completion.status, Ok(()));
                        handle.release(completion.slot.unwrap());
                    }
                    let count = handle.depth() - handle.outstanding();
                    submit_reads(&mut handle, volume, count);
                }
            });
        }
        started.wait();
        assert!(owner.stats(volume).is_some());
        owner.shutdown().unwrap();
    });
}

#[test]
fn shutdown_ends_feeders_that_drive() {
    for _ in 0..20 {
        let (owner, handles, volume) = over(memory(), 3);
        shut_down_under_reads(owner, handles, volume);
    }
}

/// A device that panics on a write.
struct BrokenDevice(MemDevice);

impl Device for BrokenDevice {
    unsafe fn submit(&mut self, now: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        assert!(batch.commands.iter().all(|command| command.op != Op::Write), "a broken device");
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.submit(now, batch, io) };
    }
}

#[test]
fn panic_while_a_feeder_drives_ends_the_owner_and_all_waits() {
    let broken = DeviceSetup::new(BrokenDevice(MemDevice::new(MIB).unwrap()), memory().queue);
    let (owner, mut handles, volume) = over(broken, 2);
    let silent = add(&owner, DeviceSetup::new(stuck(), null().queue));
    let (mut waiting, mut writer) = (handles.remove(0), handles.remove(0));
    assert_eq!(run(&mut waiting, volume, Io::read(0, BLOCK as u32)), Ok(()));
    std::thread::scope(|scope| {
        submit_reads(&mut waiting, silent, 1);
        let waits = scope.spawn(move || assert_eq!(waiting.wait(), WaitOutcome::OwnerEnded));
        let removes = scope.spawn(|| assert!(owner.remove_volume(silent, SOON * 60).is_err()));
        let slot = writer.slot().unwrap();
        writer.put(volume, slot, Io::write(0, BLOCK as u32)).unwrap();
        // The panic is this thread's, or the owner's if that drives at the moment.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while writer.wait() != WaitOutcome::OwnerEnded {}
        }));
        waits.join().unwrap();
        removes.join().unwrap();
        assert_eq!(writer.wait(), WaitOutcome::OwnerEnded);
        drop((panicked, writer));
    });
    assert!(owner.stats(volume).is_none());
    assert!(owner.join().unwrap_err().to_string().contains("panicked"));
}
