//! Operations on files, on tmpfs and on the disk.

use std::os::unix::fs::FileExt;

use headworks_core::extent::extents;
use headworks_core::prng::Prng;

use super::*;

const PLAIN: DiskKind = DiskKind::Write { dsync: false };

#[derive(Clone)]
#[repr(align(4096))]
struct Block([u8; 4096]);

fn span(block: &mut Block) -> Span {
    // SAFETY: blocks outlive the operations that use them.
    unsafe { Span::new(block.0.as_mut_ptr(), 4096) }
}

#[test]
fn concurrent_writes_and_reads_transfer_correct_data() {
    const BLOCKS: u32 = 600; // More than the ring's entries and far more than the pool's threads.
    on_both(BLOCKS as usize, |engine| {
        for file in files() {
            let fd = file.as_raw_fd();
            let mut written = vec![Block([0; 4096]); BLOCKS as usize];
            for (index, block) in written.iter_mut().enumerate() {
                block.0.fill(index as u8);
                block.0[..4].copy_from_slice(&(index as u32).to_le_bytes());
            }
            for (index, block) in written.iter_mut().enumerate() {
                let offset = index as u64 * 4096;
                assert!(push(engine, op(index as u32, fd, PLAIN, offset, 0), &[span(block)]));
            }
            let all: Vec<_> = (0..BLOCKS).map(|slot| (slot, 4096)).collect();
            let complete = |events: &[Event]| results(events).len() == all.len();
            assert_eq!(results(&turn_until(engine, complete)), all);

            let mut read = vec![Block([0; 4096]); BLOCKS as usize];
            let mut order: Vec<_> = (0..BLOCKS).collect();
            let mut prng = Prng::new(7);
            for index in (1..BLOCKS).rev() {
                order.swap(index as usize, prng.below(u64::from(index) + 1) as usize);
            }
            for slot in order {
                let block = &mut read[slot as usize];
                let offset = u64::from(slot) * 4096;
                assert!(push(engine, op(slot, fd, DiskKind::Read, offset, 0), &[span(block)]));
            }
            assert_eq!(results(&turn_until(engine, complete)), all);
            assert!(read.iter().map(|block| block.0).eq(written.iter().map(|block| block.0)));
        }
    });
}

#[test]
fn vectored_operation_completes_once_with_total_length() {
    on_both(8, |engine| {
        for file in files() {
            let fd = file.as_raw_fd();
            let mut blocks: Vec<_> = (1..=40).map(|byte| Block([byte; 4096])).collect();
            let mut spans: Vec<_> = blocks.iter_mut().map(span).collect();
            let dsync = DiskKind::Write { dsync: true };
            // The engine copies the span list: the caller may overwrite it after the push.
            assert!(push(engine, op(1, fd, PLAIN, 0, 0), &spans[..30]));
            assert!(push(engine, op(2, fd, dsync, 30 * 4096, 0), &spans[30..]));
            spans.fill(Span::EMPTY);
            let done = turn_until(engine, |events| results(events).len() == 2);
            assert_eq!(results(&done), [(1, 30 * 4096), (2, 10 * 4096)]);

            let mut back = vec![Block([0; 4096]); 40];
            let spans: Vec<_> = back.iter_mut().rev().map(span).collect();
            assert_eq!(run(engine, op(3, fd, DiskKind::Read, 0, 0), &spans), 40 * 4096);
            let expected = (1..=40).rev();
            assert!(back.iter().map(|block| block.0).eq(expected.map(|byte| [byte; 4096])));
        }
    });
}

#[test]
fn sync_and_allocate_succeed_and_punched_hole_reads_zeros() {
    on_both(8, |engine| {
        for file in files() {
            let fd = file.as_raw_fd();
            let mut block = Block([1; 4096]);
            let grow = DiskKind::Allocate { mode: 0 };
            assert_eq!(run(engine, op(1, fd, grow, 4096, 8192), &[]), 0);
            assert_eq!(file.metadata().unwrap().len(), 12288);

            assert_eq!(run(engine, op(1, fd, PLAIN, 4096, 0), &[span(&mut block)]), 4096);
            assert_eq!(run(engine, op(2, fd, DiskKind::Sync, 0, 0), &[]), 0);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let punch = DiskKind::Allocate { mode };
            assert_eq!(run(engine, op(3, fd, punch, 4096, 4096), &[]), 0);
            let read = op(4, fd, DiskKind::Read, 4096, 0);
            assert_eq!(run(engine, read, &[span(&mut block)]), 4096);
            assert_eq!(block.0, [0; 4096]);
        }
    });
}

#[test]
fn failure_returns_negative_errno_and_short_read_its_length() {
    on_both(8, |engine| {
        let file = file("/dev/shm", false);
        file.write_all_at(&[7; 100], 0).unwrap();
        let fd = file.as_raw_fd();
        let read_only = File::open("/dev/zero").unwrap();
        let mut block = Block([0; 4096]);
        let spans = [span(&mut block)];
        let two = [spans[0].part(0, 50), spans[0].part(0, 100)];

        let read = DiskKind::Read;
        assert_eq!(run(engine, op(1, -1, read, 0, 0), &spans), -libc::EBADF);
        assert_eq!(run(engine, op(1, -1, read, 0, 0), &two), -libc::EBADF);
        assert_eq!(run(engine, op(1, 9999, DiskKind::Sync, 0, 0), &[]), -libc::EBADF);
        let zero = read_only.as_raw_fd();
        assert_eq!(run(engine, op(1, zero, PLAIN, 0, 0), &spans), -libc::EBADF);
        let unknown = DiskKind::Allocate { mode: 1 << 30 };
        assert_eq!(run(engine, op(1, fd, unknown, 0, 4096), &[]), -libc::EOPNOTSUPP);
        assert_eq!(run(engine, op(1, fd, read, 0, 0), &spans), 100);
        assert_eq!(run(engine, op(1, fd, read, 0, 0), &two), 100);
        assert_eq!(run(engine, op(1, fd, read, 100, 0), &spans), 0);
        assert_eq!(run(engine, op(1, fd, read, 1 << 63, 0), &spans), -libc::EINVAL);
    });
}

#[test]
fn full_engine_rejects_push_until_completions_are_reaped() {
    on_both(4, |engine| {
        let file = file("/dev/shm", false);
        let fd = file.as_raw_fd();
        for round in 0..3 {
            for slot in 0..4 {
                assert!(push(engine, op(slot, fd, DiskKind::Sync, 0, 0), &[]));
            }
            let full = !push(engine, op(4, fd, DiskKind::Sync, 0, 0), &[]);
            assert!(full, "round {round}");
            let done = turn_until(engine, |events| results(events).len() == 4);
            assert_eq!(results(&done), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        }
        assert_eq!(pending_events(engine), []);
    });
}

#[test]
fn extent_queries_and_reads_complete_concurrently() {
    on_both(64, |engine| {
        let file = file("/dev/shm", false);
        file.set_len(1 << 30).unwrap();
        file.write_all_at(&[7; 8192], 65_536).unwrap();
        let mut blocks = vec![Block([0xee; 4096]); 64];
        for (slot, block) in (0..).zip(&mut blocks) {
            let kind = match slot % 2 {
                0 => DiskKind::Extents { one: slot % 4 == 2 },
                _ => DiskKind::Read,
            };
            assert!(push(engine, op(slot, file.as_raw_fd(), kind, 0, 1 << 30), &[span(block)]));
        }
        let done = turn_until(engine, |events| results(events).len() == 64);
        let expected = |slot| match slot % 4 {
            0 => 3,
            2 => 1,
            _ => 4096,
        };
        let all: Vec<_> = (0..64).map(|slot| (slot, expected(slot))).collect();
        assert_eq!(results(&done), all);
        let told = |slot: usize| -> Vec<_> {
            extents(&blocks[slot].0, 1 << 30).map(|extent| (extent.len, extent.state.0)).collect()
        };
        assert_eq!(told(0), [(65_536, 3), (8192, 0), ((1 << 30) - 73_728, 3)]);
        assert_eq!(told(2), [(65_536, 3)]);
        assert_eq!(pending_events(engine), []);
        // The drop must not hang on an operation that was pushed and never reaped.
        let kind = DiskKind::Extents { one: true };
        assert!(push(engine, op(0, file.as_raw_fd(), kind, 0, 9), &[span(&mut blocks[0])]));
    });
}

#[test]
fn dropped_engine_completes_pushed_writes() {
    let file = file("/dev/shm", false);
    for (byte, choice) in [(1, EngineChoice::Auto), (2, EngineChoice::Threads)] {
        let mut blocks = vec![Block([byte; 4096]); 64];
        let (mut engine, _) = open_engine(choice, 64).unwrap();
        for (index, block) in blocks.iter_mut().enumerate() {
            let op = op(index as u32, file.as_raw_fd(), PLAIN, index as u64 * 4096, 0);
            assert!(push(&mut *engine, op, &[span(block)]));
        }
        drop(engine);
        let mut back = vec![0; 64 * 4096];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|&read| read == byte));
    }
}

#[test]
fn blocked_operation_does_not_delay_others() {
    on_both(3, |engine| {
        let file = file("/dev/shm", false);
        let sync = |slot| op(slot, file.as_raw_fd(), DiskKind::Sync, 0, 0);
        for slot in 0..3 {
            assert!(push(engine, sync(slot), &[])); // Starts the pool's threads, which are idle afterwards.
        }
        turn_until(engine, |events| results(events).len() == 3);

        // An empty pipe (offset -1: its current position) replaces a disk that hangs.
        let (empty, mut filler) = std::io::pipe().unwrap();
        let mut block = Block([0; 4096]);
        let hang = op(9, empty.as_raw_fd(), DiskKind::Read, u64::MAX, 0);
        assert!(push(engine, hang, &[span(&mut block)]));
        assert!(push(engine, sync(1), &[]));
        assert!(push(engine, sync(2), &[]));
        let done = turn_until(engine, |events| results(events).len() == 2);
        assert_eq!(results(&done), [(1, 0), (2, 0)]);
        filler.write_all(b"at last").unwrap();
        let done = turn_until(engine, |events| !events.is_empty());
        assert_eq!(results(&done), [(9, 7)]);
    });
}
