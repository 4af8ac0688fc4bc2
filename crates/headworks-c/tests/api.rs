//! The calls as a C program makes them: I/O of every kind, and every wrong argument.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};

use headworks_c::*;
use libc::iovec;

const BLOCK: usize = 4096;

fn options() -> Options {
    Options { depth: 4, ..Options::default() }
}

fn open_with(spec: &str, options: &Options) -> *mut Disk {
    let (spec, mut disk) = (CString::new(spec).unwrap(), null_mut());
    // SAFETY: a C string, options of this version, room for a pointer.
    let code = unsafe { hw_open(spec.as_ptr(), options, &raw mut disk) };
    assert_eq!(code, 0, "{}", sentence());
    disk
}

/// A disk of 1 MiB in memory, and its queue.
fn open() -> (*mut Disk, *mut Queue) {
    let disk = open_with("mem:size=1M", &options());
    // SAFETY: it is open.
    (disk, unsafe { hw_queue_at(disk, 0) })
}

fn sentence() -> String {
    // SAFETY: it stays until the next call.
    unsafe { CStr::from_ptr(hw_error()) }.to_str().unwrap().to_owned()
}

/// Waits for so many completions.
unsafe fn reap(queue: *mut Queue, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < count {
        let mut some = [Completion::default(); 8];
        // SAFETY: a queue of an open disk, and room for eight.
        let found = unsafe { hw_reap(queue, some.as_mut_ptr(), 8) };
        assert!(found >= 0);
        done.extend_from_slice(&some[..found as usize]);
        // SAFETY: as above.
        assert!(found > 0 || unsafe { hw_wait(queue, 60_000) } == 1, "{}", sentence());
    }
    done
}

#[test]
fn data_come_back_by_slot_by_buffer_and_by_pieces() {
    let (disk, queue) = open();
    // SAFETY: all memory lives until the completions; the disk is open until the end.
    unsafe {
        assert_eq!((hw_capacity(disk), hw_depth(queue), hw_slot_bytes(queue)), (1 << 20, 4, 65536));
        let slot = hw_slot(queue) as u32;
        hw_buffer(queue, slot).cast::<u8>().write_bytes(7, 2 * BLOCK);
        assert_eq!(hw_put(queue, slot, HW_WRITE, 0, 2 * BLOCK as u32, HW_FUA, 70), 0);
        assert!(hw_buffer(queue, slot).is_null(), "it is in flight");
        let done = reap(queue, 1);
        assert_eq!((done[0].user_data, done[0].result, done[0].slot), (70, 0, slot));
        assert_eq!(hw_release(queue, slot), 0);

        let mut bytes = vec![0_u8; 2 * BLOCK];
        let second = bytes.as_mut_ptr().add(BLOCK);
        let pieces = [
            iovec { iov_base: second.cast(), iov_len: BLOCK },
            iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 100 },
            iovec { iov_base: null_mut(), iov_len: 0 },
            iovec { iov_base: bytes.as_mut_ptr().add(100).cast(), iov_len: BLOCK - 100 },
        ];
        second.write_bytes(8, 50);
        assert_eq!(hw_writev(queue, 65536, pieces.as_ptr(), 4, 0, 71), 0);
        assert_eq!(reap(queue, 1)[0].slot, HW_NO_SLOT);
        let mut read = vec![1_u8; 2 * BLOCK];
        assert_eq!(hw_read(queue, 65536, read.as_mut_ptr().cast(), 2 * BLOCK as u32, 0, 72), 0);
        assert_eq!(reap(queue, 1)[0].result, 0);
        assert!(read[..50] == [8; 50] && read[50..] == [0; 2 * BLOCK - 50]);
        assert_eq!(hw_readv(queue, 0, pieces.as_ptr(), 4, 0, 73), 0);
        assert_eq!(reap(queue, 1)[0].user_data, 73);
        assert!(bytes == [7; 2 * BLOCK]);

        assert_eq!(hw_write_zeroes(queue, 0, BLOCK as u32, HW_NO_UNMAP, 74), 0);
        assert_eq!(reap(queue, 1)[0].result, 0);
        assert_eq!(hw_discard(queue, BLOCK as u64, BLOCK as u32, 0, 75), 0);
        assert_eq!(hw_flush(queue, 76), 0);
        let mut done: Vec<_> =
            reap(queue, 2).iter().map(|done| (done.user_data, done.result)).collect();
        done.sort_unstable();
        assert_eq!(done, [(75, 0), (76, 0)]);
        assert_eq!(hw_pread(queue, bytes.as_mut_ptr().cast(), BLOCK, 0), 0);
        assert!(bytes[..BLOCK] == [0; BLOCK] && bytes[BLOCK..] == [7; BLOCK]);
        assert_eq!(hw_close(disk), 0);
    }
}

#[test]
fn hole_is_zeros_in_the_memory_of_the_program_and_a_flag_of_a_slot() {
    let disk = open_with("null:size=1M", &options());
    let mut bytes = [1_u8; BLOCK];
    // SAFETY: as above.
    unsafe {
        let queue = hw_queue_at(disk, 0);
        assert_eq!(hw_read(queue, 0, bytes.as_mut_ptr().cast(), BLOCK as u32, 0, 0), 0);
        assert_eq!(reap(queue, 1)[0].flags, 0);
        assert!(bytes == [0; BLOCK]);
        for (flags, hole) in [(HW_HOLE_OK, HW_COMPLETION_HOLE), (0, 0)] {
            let slot = hw_slot(queue) as u32;
            assert_eq!(hw_put(queue, slot, HW_READ, 0, BLOCK as u32, flags, 0), 0);
            assert_eq!(reap(queue, 1)[0].flags, hole);
            assert_eq!(hw_release(queue, slot), 0);
        }
        assert_eq!(hw_close(disk), 0);
    }
}

/// Pages of the program.
#[repr(align(4096))]
struct Pages([u8; 4 * BLOCK]);

#[test]
fn registered_memory_is_used_where_it_is() {
    let mut pages = Box::new(Pages([0; 4 * BLOCK]));
    for (spec, cache_bytes) in [("mem:size=1M", 0), ("mem:size=1M,cache=writeback", 1 << 20)] {
        let disk = open_with(spec, &Options { cache_bytes, ..options() });
        // SAFETY: as above; the pages outlive the disk.
        unsafe {
            let queue = hw_queue_at(disk, 0);
            let base = pages.0.as_mut_ptr();
            let at = |page: usize| base.add(page * BLOCK).cast();
            assert_eq!(hw_register(queue, at(0), 3 * BLOCK), 0, "{}", sentence());
            // Two pages from the middle, and a page that is not registered.
            at(1).cast::<u8>().write_bytes(9, 2 * BLOCK);
            assert_eq!(hw_write(queue, 0, at(1), 2 * BLOCK as u32, 0, 1), 0);
            assert_eq!(reap(queue, 1)[0].result, 0);
            let slots: Vec<u32> = (0..4).map(|_| hw_slot(queue) as u32).collect();
            for &slot in &slots {
                let bytes = std::slice::from_raw_parts(hw_buffer(queue, slot).cast::<u8>(), BLOCK);
                assert!(bytes.iter().all(|&byte| byte == 0), "{spec}: copied into slot {slot}");
                assert_eq!(hw_release(queue, slot), 0);
            }
            // Reads into registered memory, over its end, and into a part of a page.
            base.write_bytes(1, 4 * BLOCK);
            assert_eq!(hw_read(queue, 0, at(0), BLOCK as u32, 0, 2), 0);
            assert_eq!(hw_read(queue, BLOCK as u64, at(2), 2 * BLOCK as u32, 0, 3), 0);
            assert_eq!(hw_read(queue, 0, base.add(BLOCK + 512).cast(), 512, 0, 4), 0);
            assert!(reap(queue, 3).iter().all(|done| (done.result, done.slot) == (0, HW_NO_SLOT)));
            let seen = std::slice::from_raw_parts(base, 4 * BLOCK);
            assert!(seen[..BLOCK] == [9; BLOCK] && seen[2 * BLOCK..3 * BLOCK] == [9; BLOCK]);
            assert!(seen[BLOCK..BLOCK + 512] == [1; 512] && seen[BLOCK + 512..][..512] == [9; 512]);
            assert!(seen[3 * BLOCK..] == [0; BLOCK], "what was never written");
            assert_eq!(hw_unregister(queue, at(0)), 0);
            assert_eq!(hw_unregister(queue, at(0)), -libc::EINVAL);
            assert!(sentence().starts_with("no registered memory begins at"), "{}", sentence());
            assert_eq!(hw_close(disk), 0);
        }
    }
}

#[test]
fn registered_memory_that_reads_a_hole_has_zeros_and_wrong_memory_is_refused() {
    let disk = open_with("null:size=1M", &options());
    let mut pages = Box::new(Pages([1; 4 * BLOCK]));
    let base = pages.0.as_mut_ptr();
    let at = |page: usize| base.wrapping_add(page * BLOCK).cast::<c_void>();
    // SAFETY: as above.
    unsafe {
        let queue = hw_queue_at(disk, 0);
        for (memory, len) in
            [(null_mut(), BLOCK), (at(0), 0), (at(0), 100), (at(0).byte_add(512), BLOCK)]
        {
            assert_eq!(hw_register(queue, memory, len), -libc::EINVAL);
            assert!(sentence().contains("whole pages"), "{}", sentence());
        }
        assert_eq!(hw_register(queue, at(0), 2 * BLOCK), 0);
        for (page, pages) in [(0, 1), (1, 1), (0, 4)] {
            assert_eq!(hw_register(queue, at(page), pages * BLOCK), -libc::EEXIST);
        }
        assert_eq!(hw_register(queue, at(2), BLOCK), 0);
        assert_eq!(hw_read(queue, 0, at(1), BLOCK as u32, 0, 0), 0);
        assert_eq!(hw_register(queue, at(3), BLOCK), -libc::EBUSY);
        assert_eq!(hw_unregister(queue, at(0)), -libc::EBUSY);
        assert_eq!(reap(queue, 1)[0].flags, 0);
        assert_eq!(hw_close(disk), 0);
    }
    assert!(pages.0[..BLOCK] == [1; BLOCK] && pages.0[BLOCK..2 * BLOCK] == [0; BLOCK]);
}

#[test]
fn calls_that_wait_take_any_length_and_a_cache_any_bytes() {
    let options = Options { cache_bytes: 1 << 20, ..options() };
    let disk = open_with("mem:size=1M,cache=writeback", &options);
    // SAFETY: as above.
    unsafe {
        let queue = hw_queue_at(disk, 0);
        assert_eq!(hw_block_size(disk), 1);
        let written: Vec<u8> = (0..300_001).map(|n| (n / 3) as u8).collect();
        assert_eq!(hw_pwrite(queue, written.as_ptr().cast(), written.len(), 77), 0);
        assert_eq!(hw_fsync(queue), 0);
        let mut read = vec![0_u8; written.len()];
        assert_eq!(hw_pread(queue, read.as_mut_ptr().cast(), read.len(), 77), 0);
        assert!(read == written);
        assert_eq!(hw_close(disk), 0);
    }
}

#[test]
fn null_is_an_error_everywhere_and_never_more() {
    let (none, buffer) = (null_mut::<Queue>(), null_mut());
    // SAFETY: null is allowed everywhere.
    let codes: Vec<i64> = unsafe {
        let disk = &raw mut *Box::leak(Box::new(null_mut()));
        let mut codes = vec![
            hw_capacity(null()),
            hw_block_size(null()).into(),
            hw_open(null(), null(), disk).into(),
            hw_open(c"mem:size=1M".as_ptr(), null(), null_mut()).into(),
            hw_slot_bytes(none),
        ];
        drop(Box::from_raw(disk));
        codes.extend(
            [
                hw_depth(none),
                hw_read(none, 0, buffer, 0, 0, 0),
                hw_write(none, 0, buffer, 0, 0, 0),
                hw_readv(none, 0, null(), 0, 0, 0),
                hw_writev(none, 0, null(), 0, 0, 0),
                hw_flush(none, 0),
                hw_discard(none, 0, 0, 0, 0),
                hw_write_zeroes(none, 0, 0, 0, 0),
                hw_slot(none),
                hw_release(none, 0),
                hw_put(none, 0, 0, 0, 0, 0, 0),
                hw_register(none, buffer, 0),
                hw_unregister(none, buffer),
                hw_submit(none),
                hw_reap(none, null_mut(), 0),
                hw_wait(none, 0),
                hw_eventfd(none),
                hw_arm(none),
                hw_pread(none, buffer, 0, 0),
                hw_pwrite(none, buffer, 0, 0),
                hw_fsync(none),
            ]
            .map(i64::from),
        );
        assert!(hw_queue_at(null_mut(), 0).is_null() && hw_buffer(none, 0).is_null());
        assert_eq!(hw_close(null_mut()), 0);
        codes
    };
    assert!(codes.iter().all(|&code| code == -i64::from(libc::EINVAL)), "{codes:?}");
    assert_eq!(sentence(), "queue is null");
}

#[test]
fn wrong_arguments_are_refused_with_a_sentence_and_cost_no_slot() {
    let (disk, queue) = open();
    let mut bytes = vec![0_u8; 1 << 17];
    let at = bytes.as_mut_ptr();
    let buffer = at.cast();
    // SAFETY: as above.
    unsafe {
        let refused = |code: c_int, words: &str| {
            assert_eq!(code, -libc::EINVAL, "{words}: {}", sentence());
            assert!(sentence().contains(words), "{words}: {}", sentence());
        };
        assert!(hw_queue_at(disk, 1).is_null());
        assert_eq!(sentence(), "there is no queue 1: open with more queues");
        refused(hw_read(queue, 0, null_mut(), 512, 0, 0), "buffer is null");
        refused(hw_read(queue, 0, buffer, 0, 0, 0), "0 bytes");
        refused(hw_read(queue, 1 << 20, buffer, 512, 0, 0), "beyond the end");
        refused(hw_read(queue, (1 << 20) - 511, buffer, 512, 0, 0), "beyond the end");
        refused(hw_read(queue, u64::MAX - 511, buffer, 512, 0, 0), "beyond the end");
        refused(hw_read(queue, 0, buffer, 1 << 17, 0, 0), "at most 65536");
        refused(hw_read(queue, 0, buffer, 512, HW_FUA, 0), "flags");
        refused(hw_write(queue, 0, buffer, 512, 1 << 31, 0), "flags");
        refused(hw_discard(queue, 0, 2 << 20, 0, 0), "beyond the end");
        refused(hw_write_zeroes(queue, 0, 0, 0, 0), "0 bytes");
        refused(hw_readv(queue, 0, null(), 1, 0, 0), "pieces is null");
        let piece = iovec { iov_base: buffer, iov_len: 512 };
        let many = [piece; 129];
        refused(hw_readv(queue, 0, many.as_ptr(), 129, 0, 0), "129 pieces");
        let huge = [iovec { iov_base: buffer, iov_len: usize::MAX }; 2];
        refused(hw_writev(queue, 0, huge.as_ptr(), 2, 0, 0), "beyond the end");
        refused(hw_readv(queue, 0, many.as_ptr(), 0, 0, 0), "0 bytes");
        refused(hw_release(queue, 0), "does not have slot 0");
        refused(hw_put(queue, 4, HW_READ, 0, 512, 0, 0), "does not have slot 4");
        refused(hw_reap(queue, null_mut(), 1), "completions is null");
        refused(hw_pread(queue, null_mut(), 512, 0), "buffer is null");
        refused(hw_pwrite(queue, buffer, usize::MAX, 0), "no program has so many");
        let slot = hw_slot(queue) as u32;
        refused(hw_put(queue, slot, 5, 0, 512, 0, 0), "5 is no operation");
        refused(hw_put(queue, slot, HW_FLUSH, 512, 512, 0, 0), "a flush of 512 bytes at 512");
        assert!(!hw_buffer(queue, slot).is_null(), "a refused slot is the program's still");
        assert_eq!(hw_wait(queue, -1), -libc::ENODATA);
        assert_eq!(hw_arm(queue), 0);
        let slots = [hw_slot(queue), hw_slot(queue), hw_slot(queue)];
        assert!(slots.iter().all(|&slot| slot >= 0), "nothing was lost");
        assert_eq!(hw_slot(queue), -libc::EAGAIN);
        assert_eq!(hw_flush(queue, 0), -libc::EAGAIN);
        assert!(sentence().contains("reap completions"));
        assert_eq!(hw_put(queue, slot, HW_READ, 0, 512, 0, 0), 0);
        assert_eq!(hw_fsync(queue), -libc::EBUSY);
        assert_eq!(reap(queue, 1)[0].slot, slot);
        assert_eq!(hw_close(disk), 0);
    }
}

#[test]
fn specifications_and_options_that_are_wrong_open_nothing() {
    let closed = |spec: &CStr, options: &Options| {
        let mut disk = std::ptr::dangling_mut();
        // SAFETY: as above.
        let code = unsafe { hw_open(spec.as_ptr(), options, &raw mut disk) };
        assert!(disk.is_null(), "{spec:?} is open");
        (code, sentence())
    };
    for (spec, words) in [
        (c"nul:size=1M", "device type"),
        (c"mem:sise=1M", "sise"),
        (c"/nonexistent/disk.img", "/nonexistent/disk.img"),
        (c"", "path"),
        (c"mem:size=0", "size"),
        (c"\xff", "UTF-8"),
    ] {
        let (code, sentence) = closed(spec, &options());
        assert_eq!(code, -libc::EINVAL);
        assert!(sentence.contains(words), "{sentence}");
    }
    let large = Options { depth: 4096, slot_bytes: 2 << 20, ..Options::default() };
    let (code, sentence) = closed(c"mem:size=1M", &large);
    assert!(code == -libc::EINVAL && sentence.starts_with("slot_bytes"), "{sentence}");
}

#[test]
fn read_only_disk_refuses_writes() {
    let disk = open_with("mem:size=1M", &Options { flags: HW_OPEN_READ_ONLY, ..options() });
    let mut bytes = [0_u8; 512];
    // SAFETY: as above.
    unsafe {
        let queue = hw_queue_at(disk, 0);
        assert_eq!(hw_write(queue, 0, bytes.as_ptr().cast(), 512, 0, 0), -libc::EPERM);
        assert_eq!(hw_discard(queue, 0, 512, 0, 0), -libc::EPERM);
        assert_eq!(hw_pread(queue, bytes.as_mut_ptr().cast(), 512, 0), 0);
        assert_eq!(hw_close(disk), 0);
    }
}

#[test]
fn descriptor_is_readable_when_there_is_a_completion_and_waits_end() {
    // Each read takes a time of its own, so that there is something to wait for.
    let disk = open_with("delay:read=30ms,of=mem:size=1M", &options());
    let mut bytes = [0_u8; 512];
    // SAFETY: as above.
    unsafe {
        let queue = hw_queue_at(disk, 0);
        let poll = |ms| {
            let mut fd = libc::pollfd { fd: hw_eventfd(queue), events: libc::POLLIN, revents: 0 };
            libc::poll(&raw mut fd, 1, ms)
        };
        assert_eq!(hw_read(queue, 0, bytes.as_mut_ptr().cast(), 512, 0, 1), 0);
        if hw_arm(queue) == 1 {
            assert_eq!(poll(60_000), 1);
        }
        assert_eq!(reap(queue, 1)[0].user_data, 1);
        assert_eq!(poll(0), 0, "a reap makes it unreadable");
        assert_eq!(hw_read(queue, 0, bytes.as_mut_ptr().cast(), 512, 0, 2), 0);
        // Over at once, or answered already on a slow machine.
        let early = hw_wait(queue, 0);
        assert!(early == 0 || early == 1, "{early}");
        assert_eq!(hw_wait(queue, 60_000), 1);
        assert_eq!(reap(queue, 1)[0].user_data, 2);
        assert_eq!(hw_close(disk), 0);
    }
}

/// The signals that each thread of a name blocks, as bits.
fn blocked_by(name: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let field = |status: &str, field: &str| {
        status.lines().find_map(|line| Some(line.strip_prefix(field)?.trim().to_owned()))
    };
    let named = statuses.filter(|status| field(status, "Name:").as_deref() == Some(name));
    named
        .map(|status| u64::from_str_radix(&field(&status, "SigBlk:").unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn threads_of_the_library_take_no_signals() {
    let bit = |signal: c_int| 1_u64 << (signal - 1);
    let disk = open_with("mem:size=1M", &Options { engine: HW_ENGINE_THREADS, ..options() });
    let masks = blocked_by("headworks-owner");
    assert!(!masks.is_empty());
    for mask in masks {
        assert!(mask & bit(libc::SIGINT) != 0 && mask & bit(libc::SIGCHLD) != 0, "{mask:x}");
        assert!(mask & bit(libc::SIGSEGV) == 0, "{mask:x}");
    }
    let mut own = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call fills the set.
    let own = unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, null(), own.as_mut_ptr());
        own.assume_init()
    };
    // SAFETY: a set, and an open disk.
    unsafe {
        assert_eq!(
            libc::sigismember(&raw const own, libc::SIGINT),
            0,
            "the caller's mask is as before"
        );
        assert_eq!(hw_close(disk), 0);
    }
}

#[test]
fn queues_belong_to_threads_and_close_ends_what_is_in_flight() {
    let disk = open_with("mem:size=1M", &Options { queues: 3, ..options() });
    std::thread::scope(|scope| {
        for index in 0..3 {
            // SAFETY: an open disk, whose queue of this number only this thread uses.
            let queue = unsafe { hw_queue_at(disk, index) } as usize;
            scope.spawn(move || {
                let queue = queue as *mut Queue;
                let mut bytes = vec![index as u8; BLOCK];
                for round in 0..50_u64 {
                    let offset = (u64::from(index) * 50 + round) * BLOCK as u64;
                    // SAFETY: as above, and memory that lives as long.
                    unsafe {
                        assert_eq!(hw_pwrite(queue, bytes.as_ptr().cast(), BLOCK, offset), 0);
                        assert_eq!(hw_pread(queue, bytes.as_mut_ptr().cast(), BLOCK, offset), 0);
                    }
                    assert!(bytes == [index as u8; BLOCK]);
                }
            });
        }
    });
    let bytes = [3_u8; 512];
    // SAFETY: as above.
    unsafe {
        let queue = hw_queue_at(disk, 0);
        assert_eq!(hw_write(queue, 0, bytes.as_ptr().cast(), 512, 0, 0), 0);
        assert_eq!(hw_submit(queue), 0);
        assert_eq!(hw_close(disk), 0);
    }
}
