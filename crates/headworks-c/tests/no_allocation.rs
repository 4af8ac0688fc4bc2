//! An I/O allocates nothing: neither with a slot, nor with pieces, nor when no slot is free.

#[path = "../../headworks-core/tests/support/counting.rs"]
mod counting;

use std::ptr::null_mut;

use counting::ALLOCATIONS;
use headworks_c::*;
use libc::iovec;

/// All slots of the queue in flight, then one too many.
///
/// # Safety
/// A queue of depth 8 of an open disk, and memory that lives until its close.
unsafe fn round(queue: *mut Queue, memory: &mut [u8], n: u64) {
    let base = memory.as_mut_ptr();
    let mut done = [Completion::default(); 8];
    // SAFETY: as the caller says; the halves of `memory` are two pieces.
    unsafe {
        let pieces = [
            iovec { iov_base: base.cast(), iov_len: 4096 },
            iovec { iov_base: base.add(4096).cast(), iov_len: 4096 },
        ];
        let slot = hw_slot(queue) as u32;
        assert_eq!(hw_put(queue, slot, HW_READ, n * 8192, 4096, 0, 0), 0);
        for at in 0..6 {
            let offset = (n + at) % 64 * 8192;
            let code = match at % 2 {
                0 => hw_writev(queue, offset, pieces.as_ptr(), 2, 0, 0),
                _ => hw_readv(queue, offset, pieces.as_ptr(), 2, 0, 0),
            };
            assert_eq!(code, 0);
        }
        assert_eq!(hw_flush(queue, 0), 0);
        assert_eq!(hw_flush(queue, 0), -libc::EAGAIN);
        let mut left = 8;
        while left > 0 {
            assert_eq!(hw_wait(queue, 60_000), 1);
            let count = hw_reap(queue, done.as_mut_ptr(), 8);
            assert!(done[..count as usize].iter().all(|done| done.result == 0));
            left -= count;
        }
        assert_eq!(hw_release(queue, slot), 0);
    }
}

#[test]
fn rounds_allocate_nothing_after_the_first_ones() {
    let options = Options { depth: 8, ..Options::default() };
    let mut disk = null_mut();
    let mut memory = vec![7_u8; 8192];
    // SAFETY: a C string, options of this version, room for a pointer; memory that lives until the close.
    unsafe {
        assert_eq!(hw_open(c"mem:size=1M".as_ptr(), &raw const options, &raw mut disk), 0);
        let queue = hw_queue_at(disk, 0);
        (0..16).for_each(|n| round(queue, &mut memory, n));
        let before = ALLOCATIONS.get();
        (0..64).for_each(|n| round(queue, &mut memory, n));
        assert_eq!(ALLOCATIONS.get() - before, 0);
        assert_eq!(hw_close(disk), 0);
    }
}
