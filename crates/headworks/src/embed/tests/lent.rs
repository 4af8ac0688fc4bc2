//! Reads in place: the right bytes, one version of each block while they are lent, and everybody else's turn afterwards.

use std::sync::atomic::AtomicU32;

use headworks_core::DeviceId;

use super::files::EngineDevice;
use super::*;

const ROW: u32 = 16 * BLOCK as u32;

fn cached(setup: DeviceSetup, handles: usize) -> (Owner, Vec<Handle>, VolumeId) {
    let cache = CacheOptions { units: 512, ..CacheOptions::default() };
    let options = OwnerOptions { cache, handles, slot_bytes: ROW as usize, ..options() };
    let (owner, handle) = Owner::start(options).unwrap();
    let volume = add(&owner, setup);
    (owner, handle, volume)
}

fn write(handle: &mut Handle, volume: VolumeId, (offset, len): (u64, u32), fill: u8) {
    let mut slot = handle.slot().unwrap();
    slot.fill(fill);
    handle.put(volume, slot, Io::write(offset, len)).unwrap();
    let completion = one(handle);
    assert_eq!(completion.status, Ok(()));
    handle.release(completion.slot.unwrap());
}

/// Lends when no other thread has the right.
fn lend(handle: &mut Handle, volume: VolumeId, offset: u64, len: u32) -> Option<Vec<u8>> {
    loop {
        match handle.lend(volume, offset, len) {
            Ok(bytes) => {
                let copy: Vec<u8> = bytes.pieces().flatten().copied().collect();
                assert_eq!((bytes.len(), bytes.is_empty()), (copy.len(), false));
                assert!(bytes.as_slice().is_none_or(|slice| slice == copy));
                return Some(copy);
            }
            Err(NotLent::NotInMemory) => return None,
            Err(NotLent::Busy) => std::thread::yield_now(),
        }
    }
}

/// The first block of a volume in memory, held.
macro_rules! lent {
    ($handle:expr, $volume:expr) => {
        loop {
            match $handle.lend($volume, 0, 4096) {
                Ok(bytes) => break bytes,
                Err(NotLent::Busy) => std::thread::yield_now(),
                Err(NotLent::NotInMemory) => panic!("a device in memory lends"),
            }
        }
    };
}

#[test]
fn cached_bytes_are_lent_and_others_are_not() {
    let (_owner, mut handles, volume) = cached(EngineDevice::setup(), 1);
    let handle = &mut handles[0];
    assert_eq!(lend(handle, volume, 0, BLOCK as u32), None);
    // Backwards, so that their frames are not neighbours in this order.
    for block in (0..8).rev() {
        write(handle, volume, (block * BLOCK as u64, BLOCK as u32), block as u8 + 1);
    }
    let pieces = loop {
        if let Ok(bytes) = handle.lend(volume, 0, 8 * BLOCK as u32) {
            break bytes.pieces().count();
        }
    };
    assert!(pieces > 1);
    let bytes = lend(handle, volume, 100, 7 * BLOCK as u32).unwrap();
    assert!((100..).zip(bytes).all(|(at, byte)| usize::from(byte) == at / BLOCK + 1));
    assert_eq!(lend(handle, volume, 7 * BLOCK as u64, BLOCK as u32 + 1), None);
    write(handle, volume, (BLOCK as u64 + 10, 20), 99);
    let bytes = lend(handle, volume, 0, 2 * BLOCK as u32).unwrap();
    assert_eq!([bytes[BLOCK + 9], bytes[BLOCK + 10], bytes[BLOCK + 30]], [2, 99, 2]);
    for (offset, len) in [(0, 0), (MIB, 1), (u64::MAX, 2), (MIB - 1, 2)] {
        assert_eq!(lend(handle, volume, offset, len), None);
    }
    assert_eq!(lend(handle, VolumeId(9), 0, 1), None);
}

#[test]
fn memory_of_a_device_is_lent_without_a_cache() {
    let (owner, mut handles, volume) = over(memory(), 1);
    let handle = &mut handles[0];
    assert_eq!(lend(handle, volume, 5, 3), Some(vec![0; 3]));
    write(handle, volume, (0, BLOCK as u32), 7);
    assert_eq!(lend(handle, volume, BLOCK as u64 - 1, 2), Some(vec![7, 0]));
    assert_eq!(lend(handle, volume, MIB - 1, 1), Some(vec![0]));
    assert_eq!(lend(handle, volume, MIB - 1, 2), None);
    let none = add(&owner, slow(0));
    assert_eq!(lend(handle, none, 0, 1), None);
    owner.remove_volume(volume, SOON).unwrap();
    assert_eq!(lend(handle, volume, 0, 1), None);
}

#[test]
fn lent_blocks_do_not_change_and_have_one_version_each() {
    for (owner, mut handles, volume) in [cached(EngineDevice::setup(), 4), over(memory(), 4)] {
        let mut reader = handles.pop().unwrap();
        for row in 0..16 {
            write(&mut reader, volume, (row * BLOCK as u64, BLOCK as u32), 1);
        }
        let writing = AtomicU32::new(3);
        std::thread::scope(|scope| {
            for (index, mut handle) in handles.into_iter().enumerate() {
                let writing = &writing;
                scope.spawn(move || {
                    let mut prng = Prng::new(index as u64);
                    for _ in 0..300 {
                        let at = prng.below(16) * BLOCK as u64;
                        write(&mut handle, volume, (at, BLOCK as u32), prng.next() as u8);
                    }
                    writing.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let mut rounds = 0;
            while writing.load(Ordering::Relaxed) > 0 || rounds == 0 {
                let Ok(bytes) = reader.lend(volume, 0, ROW) else {
                    std::thread::yield_now();
                    continue;
                };
                let copy: Vec<u8> = bytes.pieces().flatten().copied().collect();
                if rounds % 256 == 0 {
                    std::thread::yield_now();
                }
                assert!(bytes.pieces().flatten().eq(&copy), "they changed");
                assert!(copy.chunks(BLOCK).all(|block| block.iter().all(|&byte| byte == block[0])));
                rounds += 1;
            }
        });
        drop(reader);
        owner.join().unwrap();
    }
}

#[test]
fn batch_of_another_feeder_is_answered_when_lent_bytes_are_dropped() {
    let (_owner, mut handles, volume) = over(memory(), 2);
    let [lender, other] = &mut handles[..] else { panic!("two handles") };
    assert_eq!(run(lender, volume, Io::read(0, BLOCK as u32)), Ok(()));
    let bytes = loop {
        match lender.lend(volume, 0, BLOCK as u32) {
            Ok(bytes) => break bytes,
            Err(reason) => assert_eq!(reason, NotLent::Busy),
        }
    };
    submit_reads(other, volume, 4);
    assert_eq!(other.reap(4, &mut Vec::new()), 0, "the right is taken");
    assert_eq!(other.lend(volume, 0, 1).err(), Some(NotLent::Busy));
    drop(bytes);
    reap_all(other);
}

#[test]
fn panic_while_bytes_are_lent_leaves_the_right() {
    let (owner, mut handles, volume) = over(memory(), 1);
    let handle = &mut handles[0];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let bytes = lend(handle, volume, 0, 1).unwrap();
        let _lent = handle.lend(volume, 0, 1);
        panic!("with {bytes:?}");
    }));
    assert!(panicked.is_err());
    assert_eq!(run(handle, volume, Io::read(0, BLOCK as u32)), Ok(()));
    drop(handles);
    owner.join().unwrap();
}

#[test]
fn end_waits_for_lent_bytes_and_nothing_is_lent_afterwards() {
    let (owner, mut handles, volume) = cached(EngineDevice::setup(), 1);
    write(&mut handles[0], volume, (0, BLOCK as u32), 5);
    std::thread::scope(|scope| {
        let bytes = loop {
            if let Ok(bytes) = handles[0].lend(volume, 0, BLOCK as u32) {
                break bytes;
            }
        };
        let ends = scope.spawn(|| owner.shutdown().unwrap());
        for _ in 0..100 {
            std::thread::yield_now();
            assert!(bytes.as_slice().unwrap().iter().all(|&byte| byte == 5));
        }
        assert!(!ends.is_finished());
        drop(bytes);
        assert_eq!(ends.join().unwrap().flush_errors, []);
    });
    assert_eq!(handles[0].lend(volume, 0, 1).err(), Some(NotLent::Busy));
}

#[test]
fn owner_that_drives_alone_lends_nothing() {
    let (owner, mut handles) =
        Owner::start(OwnerOptions { drive: Drive::Thread, ..options() }).unwrap();
    let volume = add(&owner, memory());
    assert_eq!(handles[0].lend(volume, 0, 1).err(), Some(NotLent::Busy));
    assert!(NotLent::Busy.to_string().contains("slot"));
}

#[test]
fn lent_reads_continue_read_ahead() {
    let (owner, mut handles, volume) = cached(memory(), 1);
    let handle = &mut handles[0];
    let mut read = 0;
    for block in 0..256 {
        let offset = block * BLOCK as u64;
        if lend(handle, volume, offset, BLOCK as u32).is_none() {
            assert_eq!(run(handle, volume, Io::read(offset, BLOCK as u32)), Ok(()));
            read += 1;
        }
    }
    assert!(read < 4, "{read} blocks were read with a buffer");
    drop(handles);
    owner.join().unwrap();
}

/// A mistake of the program: the volume is larger than the memory of its device.
#[test]
fn range_beyond_the_device_is_not_lent() {
    let (owner, mut handles) = Owner::start(options()).unwrap();
    let device = owner.add_device(memory()).unwrap();
    let volume = owner.add_volume(device, VolumeOptions { size: 2 * MIB, ..mebibyte() }).unwrap();
    let handle = &mut handles[0];
    for (offset, len) in [(MIB, 4096), (MIB - 4096, 8192), (2 * MIB - 1, 1)] {
        assert_eq!(lend(handle, volume, offset, len), None);
    }
    assert_eq!(lend(handle, volume, MIB - 4096, 4096), Some(vec![0; 4096]));
    let slot = handle.slot().unwrap();
    handle.put(volume, slot, Io::read(MIB, 4096)).unwrap();
    assert_eq!(one(handle).status, Err(IoError::Invalid));
    assert!(owner.stats(volume).is_some(), "the owner answers");
}

#[test]
fn call_by_the_thread_that_has_lent_bytes_fails_at_once() {
    let (owner, mut handles, volume) = over(memory(), 1);
    let bytes = lent!(handles[0], volume);
    let told = owner.remove_volume(volume, SOON).unwrap_err();
    assert!(told.to_string().contains("this thread has lent bytes"), "{told}");
    let told = owner.add_device(null()).unwrap_err();
    assert!(told.to_string().contains("drop them before the call"), "{told}");
    assert!(owner.stats(volume).is_none());
    drop(bytes);
    assert!(owner.stats(volume).is_some());
    assert_eq!(owner.remove_volume(volume, SOON), Ok(()));
}

#[test]
fn shutdown_by_the_thread_that_has_lent_bytes_does_not_wait_for_itself() {
    let (owner, mut handles, volume) = over(memory(), 1);
    let bytes = lent!(handles[0], volume);
    let told = owner.shutdown().unwrap_err();
    assert!(told.to_string().contains("this thread has lent bytes"), "{told}");
    drop(bytes);
    let slot = handles[0].slot().unwrap();
    handles[0].put(volume, slot, Io::read(0, 4096)).unwrap();
    assert!(matches!(handles[0].wait(), WaitOutcome::OwnerEnded | WaitOutcome::Ready));
}

#[test]
fn time_limit_of_a_removal_holds_while_another_thread_has_lent_bytes() {
    let (owner, mut handles, volume) = over(memory(), 1);
    let bytes = lent!(handles[0], volume);
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| owner.remove_volume(volume, Duration::from_millis(20)));
        // It ends although the bytes stay lent.
        assert!(matches!(removal.join().unwrap(), Err(ChangeError::Busy(_))));
    });
    drop(bytes);
    // Given up is given up: it works as before.
    let handle = &mut handles[0];
    write(handle, volume, (0, 4096), 7);
    assert_eq!(lend(handle, volume, 0, 4096), Some(vec![7; 4096]));
    assert!(owner.stats(volume).is_some());
    assert_eq!(owner.remove_volume(volume, SOON), Ok(()));
}

/// What a program gives is answered, whatever it is.
#[test]
fn mistakes_of_a_program_are_errors() {
    let (owner, mut handles, volume) = over(memory(), 2);
    let device = owner.add_device(memory()).unwrap();
    let wrong = [
        VolumeOptions { size: 0, ..mebibyte() },
        VolumeOptions { size: MIB + 1, ..mebibyte() },
        VolumeOptions { size: u64::MAX, ..mebibyte() },
        VolumeOptions { block_size: 0, ..mebibyte() },
        VolumeOptions { block_size: 513, ..mebibyte() },
        VolumeOptions { block_size: 1 << 31, ..mebibyte() },
    ];
    for options in wrong {
        let _ = owner.add_volume(device, options);
    }
    let unknown = VolumeId(u16::MAX);
    assert!(owner.add_volume(DeviceId(u16::MAX), mebibyte()).is_err());
    assert!(owner.remove_volume(unknown, SOON).is_err());
    assert!(owner.remove_device(DeviceId(u16::MAX), SOON).is_err());
    assert!(owner.remove_device(DeviceId(0), Duration::ZERO).is_err(), "it has a volume");
    assert!(owner.stats(unknown).is_none());
    let (first, second) = handles.split_at_mut(1);
    for id in [volume, unknown] {
        for (offset, len) in
            [(0, 0), (1, 1), (MIB, 1), (u64::MAX, 1), (0, u32::MAX), (u64::MAX, u32::MAX)]
        {
            let _ = lend(&mut first[0], id, offset, len);
            for io in [
                Io::read(offset, len),
                Io::write(offset, len),
                Io::discard(offset, len),
                Io::write_zeroes(offset, len),
            ] {
                let slot = first[0].slot().unwrap();
                match first[0].put(id, slot, io) {
                    Ok(()) => {
                        let done = one(&mut first[0]);
                        first[0].release(done.slot.unwrap());
                    }
                    Err(rejected) => first[0].release(rejected.slot),
                }
            }
        }
    }
    // A slot of another handle comes back, or is lost to its own; neither handle is harmed.
    let foreign = first[0].slot().unwrap();
    let rejected = second[0].put(volume, foreign, Io::read(0, 4096)).unwrap_err();
    second[0].release(rejected.slot);
    for handle in [&mut first[0], &mut second[0]] {
        write(handle, volume, (0, 4096), 3);
        assert_eq!(lend(handle, volume, 0, 4096), Some(vec![3; 4096]));
    }
    drop(handles);
    assert!(owner.join().unwrap().flush_errors.is_empty());
}
