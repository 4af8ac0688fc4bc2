//! Reads in place: the right bytes, one version of each block while they are lent, and everybody else's turn afterwards.

use std::sync::atomic::AtomicU32;

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
