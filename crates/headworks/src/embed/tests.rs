//! The rings with a shard between them: bytes, order, ends.

use headworks_core::{BioFlags, IoError, Ioprio, Op, ReplyStage, prng::Prng};

use super::*;
use crate::device::{
    DelayDevice, DelayOptions, Device, ErrorDevice, ErrorOptions, MemDevice, NullDevice,
    Probability,
};

const BLOCK: usize = 4096;

fn io(op: Op, offset: u64) -> Io {
    let len = if op.has_data() { BLOCK as u32 } else { 0 };
    Io { op, offset, len, flags: BioFlags::SYNC, ioprio: Ioprio::default() }
}

/// A disk of 1 MiB below an owner.
enum Disk {
    Null,
    Memory,
    Delay(u64),
    FailingFlush,
}

impl Disk {
    fn options(&self) -> OwnerOptions {
        let null = || Box::new(NullDevice);
        let memory = || Box::new(MemDevice::new(1 << 20).unwrap());
        let delay = |ms: u64| DelayOptions {
            wait_ns: [ms * 1_000_000; Op::COUNT],
            ..DelayOptions::default()
        };
        let failing = ErrorOptions {
            rate: Probability::ALWAYS,
            op: Some(Op::Flush),
            ..ErrorOptions::default()
        };
        let (device, queue): (Box<dyn Device>, _) = match self {
            Self::Null => (null(), NullDevice::queue_options()),
            Self::Memory => (memory(), MemDevice::queue_options()),
            Self::Delay(ms) => {
                (Box::new(DelayDevice::new(delay(*ms), null())), NullDevice::queue_options())
            }
            Self::FailingFlush => {
                (Box::new(ErrorDevice::new(failing, memory())), MemDevice::queue_options())
            }
        };
        let queue = QueueOptions { write_cache: true, ..queue };
        OwnerOptions::new(
            device,
            queue,
            VolumeOptions { size: 1 << 20, ..VolumeOptions::default() },
        )
    }
}

/// Starts an owner of one disk.
fn over(disk: &Disk, handles: usize) -> (Owner, Vec<Handle>) {
    start(OwnerOptions { handles, depth: 16, ..disk.options() }).unwrap()
}

#[test]
fn an_owner_with_a_cache_flushes_it_at_its_end_and_says_how_that_went() {
    let ended = |disk: &Disk, cache: CacheOptions| {
        let (owner, mut handles) = start(OwnerOptions { cache, ..disk.options() }).unwrap();
        handles[0].buffer(0).fill(7);
        handles[0].put(0, io(Op::Write, 0));
        handles[0].submit();
        assert_eq!(wait_for_one(&mut handles[0]).status, Ok(()));
        drop(handles);
        owner.join().unwrap().flushed
    };
    let cache = CacheOptions { units: 256, ..CacheOptions::default() };
    assert_eq!(ended(&Disk::Memory, cache), Some(Ok(())));
    assert_eq!(ended(&Disk::Memory, CacheOptions::default()), None);
    // The flush reaches the device: its error is not lost.
    assert_eq!(ended(&Disk::FailingFlush, cache), Some(Err(IoError::Medium)));
}

fn wait_for_one(handle: &mut Handle) -> Answer {
    let mut answers = Vec::new();
    while handle.reap(1, &mut answers) == 0 {
        assert!(handle.wait(), "the owner lives as long as its handles");
    }
    answers[0]
}

/// Writes and reads its own blocks at random and knows what must be in them. Returns how many were answered.
fn feed(handle: &mut Handle, first_block: u64, count: u64) -> u64 {
    const BLOCKS: u64 = 64;
    let mut prng = Prng::new(first_block);
    let mut model = [0_u8; BLOCKS as usize];
    let mut free: Vec<u32> = (0..handle.depth()).rev().collect();
    let mut under_way = vec![None; handle.depth() as usize];
    let (mut put, mut answered, mut answers) = (0, 0, Vec::new());
    while answered < count {
        while put < count
            && let Some(slot) = free.pop()
        {
            let block = prng.below(BLOCKS);
            let busy = |other: &Option<(Op, u64)>| other.is_some_and(|(_, other)| other == block);
            if under_way.iter().any(busy) {
                free.push(slot);
                break;
            }
            let op = if prng.below(2) == 0 { Op::Write } else { Op::Read };
            let fill = if op == Op::Write { prng.next() as u8 } else { 0xee };
            handle.buffer(slot).fill(fill);
            if op == Op::Write {
                model[block as usize] = fill;
            }
            under_way[slot as usize] = Some((op, block));
            handle.put(slot, io(op, (first_block + block) * BLOCK as u64));
            put += 1;
        }
        handle.submit();
        assert!(handle.wait());
        handle.reap(5, &mut answers);
        for answer in answers.drain(..) {
            let asked = under_way[answer.slot as usize].take();
            let (op, block) = asked.expect("each slot is answered once");
            assert_eq!((answer.status, answer.stage), (Ok(()), ReplyStage::Final));
            if op == Op::Read && !answer.hole {
                let expected = model[block as usize];
                assert!(handle.buffer(answer.slot).iter().all(|&byte| byte == expected));
            }
            answered += 1;
            free.push(answer.slot);
        }
    }
    assert_eq!(handle.reap(usize::MAX, &mut answers), 0, "nothing is answered twice");
    answered
}

#[test]
fn each_feeders_bytes_come_back_and_every_bio_is_answered_once() {
    let (owner, handles) = over(&Disk::Memory, 4);
    std::thread::scope(|scope| {
        for (index, mut handle) in handles.into_iter().enumerate() {
            scope.spawn(move || {
                let count = 3000 + index as u64;
                assert_eq!(feed(&mut handle, 64 * index as u64, count), count);
                assert_eq!(handle.counts().messages, count);
            });
        }
    });
    let ended = owner.join().unwrap();
    assert_eq!(ended.counts.messages, 4 * 3000 + 6);
    assert_eq!(ended.notices, []);
    let answered: u64 = ended.stats.ops.iter().map(|op| op.bios).sum();
    assert_eq!(answered, 4 * 3000 + 6);
}

#[test]
fn a_slow_device_lets_both_ends_sleep() {
    let (owner, mut handles) = over(&Disk::Delay(2), 1);
    // On a machine that is busy with others giving the CPU away may take as long as the device.
    let mut rounds = 0;
    while rounds < 10 || handles[0].counts().sleeps == 0 {
        handles[0].put(rounds % 16, io(Op::Write, 0));
        handles[0].submit();
        assert_eq!(wait_for_one(&mut handles[0]).slot, rounds % 16);
        rounds += 1;
    }
    drop(handles);
    assert!(owner.join().unwrap().counts.sleeps > 0);
}

#[test]
fn a_bio_that_cannot_be_is_refused_and_its_slot_is_free() {
    let (owner, mut handles) = over(&Disk::Null, 1);
    handles[0].put(3, io(Op::Write, 1 << 20));
    handles[0].submit();
    let answer = wait_for_one(&mut handles[0]);
    assert!(answer.slot == 3 && answer.status.is_err(), "{answer:?}");
    handles[0].put(3, io(Op::Flush, 0));
    handles[0].submit();
    assert_eq!(wait_for_one(&mut handles[0]).status, Ok(()));
    drop(handles);
    owner.join().unwrap();
}

#[test]
fn a_handle_that_goes_leaves_its_bios_to_the_owner_and_the_others_alone() {
    let (owner, mut handles) = over(&Disk::Delay(1), 3);
    let mut gone = handles.remove(1);
    (0..16).for_each(|slot| gone.put(slot, io(Op::Write, u64::from(slot) * 8192)));
    gone.submit();
    drop(gone);
    handles[1].put(0, io(Op::Write, 0));
    handles[1].submit();
    assert_eq!(wait_for_one(&mut handles[1]).status, Ok(()));
    drop(handles);
    assert_eq!(owner.join().unwrap().counts.messages, 17, "those of the lost handle, too");
}

#[test]
#[should_panic(expected = "slot 2 is in flight")]
fn a_slot_in_flight_is_not_ours() {
    let (_owner, mut handles) = over(&Disk::Null, 1);
    handles[0].put(2, io(Op::Read, 0));
    handles[0].buffer(2);
}

#[test]
fn what_cannot_be_is_said_before_a_thread_starts() {
    let volume = VolumeOptions { size: 1 << 20, block_size: 1, ..VolumeOptions::default() };
    let null = || OwnerOptions::new(Box::new(NullDevice), NullDevice::queue_options(), volume);
    let name = |options| start(options).map(|_| ()).unwrap_err().to_string();
    assert!(name(OwnerOptions { handles: 0, ..null() }).contains("handles"));
    assert!(name(OwnerOptions { depth: 4097, ..null() }).contains("depth"));
    assert!(name(OwnerOptions { slot_bytes: 0, ..null() }).contains("slot_bytes"));
    let queue = QueueOptions { nr_requests: 0, ..NullDevice::queue_options() };
    assert!(name(OwnerOptions { queue, ..null() }).contains("nr_requests"));
}
