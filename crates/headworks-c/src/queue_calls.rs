//! The calls of a queue: I/Os are put, submitted, waited for and reaped.
//!
//! Each checks its arguments and returns a negative errno if something is wrong with them; nothing has changed then.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::slice;

use libc::iovec;

use crate::error::{Code, Failure, guard, guard_pointer};
use crate::queue::{
    Completion, HW_DISCARD, HW_FLUSH, HW_READ, HW_WRITE, HW_WRITE_ZEROES, Piece, Queue, Request,
};

/// Runs a call of a queue.
///
/// # Safety
/// `queue` is null or a queue of an open disk, in no other call now.
#[inline]
unsafe fn on<T: From<Code>>(
    queue: *mut Queue,
    call: impl FnOnce(&mut Queue) -> Result<T, Failure>,
) -> T {
    guard(|| {
        // SAFETY: as the caller says.
        let Some(queue) = (unsafe { queue.as_mut() }) else { return Err(is_null("queue")) };
        queue.enter()?;
        let result = call(queue);
        queue.leave();
        result
    })
}

#[cold]
fn is_null(what: &str) -> Failure {
    Failure::invalid(format!("{what} is null"))
}

/// I/Os that the queue can have in flight: its slots have the numbers below. Or a negative errno.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_depth(queue: *mut Queue) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| Ok(queue.depth() as c_int)) }
}

/// Bytes of a slot: the largest read or write. Or a negative errno.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_slot_bytes(queue: *mut Queue) -> i64 {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| Ok(queue.slot_bytes() as i64)) }
}

/// Reads `len` bytes at `offset` into `buffer`, which stays valid until the completion. `flags` is 0 or `HW_BACKGROUND`. The I/O starts with the
/// next `hw_submit`, `hw_wait` or `hw_arm`. Returns 0, or a negative errno: -EAGAIN: `hw_depth` I/Os are in flight, reap some.
///
/// # Safety
/// `queue` is null or a queue of an open disk; `buffer` may be written until the completion is reaped or the disk closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_read(
    queue: *mut Queue,
    offset: u64,
    buffer: *mut c_void,
    len: u32,
    flags: u32,
    user_data: u64,
) -> c_int {
    let piece = Piece { base: buffer.cast(), len: len as usize };
    let request = Request { op: HW_READ, offset, len: len.into(), flags };
    // SAFETY: as the caller says.
    unsafe { transfer(queue, request, user_data, [piece]) }
}

/// Writes `len` bytes from `buffer`, which stays valid and unchanged until the completion, to `offset`. `flags` is any of `HW_FUA` and
/// `HW_BACKGROUND`. Otherwise as `hw_read`.
///
/// # Safety
/// `queue` is null or a queue of an open disk; `buffer` may be read until the completion is reaped or the disk closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_write(
    queue: *mut Queue,
    offset: u64,
    buffer: *const c_void,
    len: u32,
    flags: u32,
    user_data: u64,
) -> c_int {
    let piece = Piece { base: buffer.cast_mut().cast(), len: len as usize };
    let request = Request { op: HW_WRITE, offset, len: len.into(), flags };
    // SAFETY: as the caller says.
    unsafe { transfer(queue, request, user_data, [piece]) }
}

/// As `hw_read`, into `count` pieces, at most `HW_PIECES_MAX`. The pieces stay valid until the completion, the array until the call returns.
///
/// # Safety
/// As `hw_read`, for each piece; `pieces` has `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_readv(
    queue: *mut Queue,
    offset: u64,
    pieces: *const iovec,
    count: u32,
    flags: u32,
    user_data: u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { transfer_pieces(queue, (HW_READ, offset, flags), pieces, count, user_data) }
}

/// As `hw_write`, from `count` pieces, at most `HW_PIECES_MAX`. The pieces stay valid until the completion, the array until the call returns.
///
/// # Safety
/// As `hw_write`, for each piece; `pieces` has `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_writev(
    queue: *mut Queue,
    offset: u64,
    pieces: *const iovec,
    count: u32,
    flags: u32,
    user_data: u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { transfer_pieces(queue, (HW_WRITE, offset, flags), pieces, count, user_data) }
}

/// Makes every write durable that was completed before this call. Starts as `hw_read`.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_flush(queue: *mut Queue, user_data: u64) -> c_int {
    let request = Request { op: HW_FLUSH, offset: 0, len: 0, flags: 0 };
    // SAFETY: as the caller says.
    unsafe { transfer(queue, request, user_data, []) }
}

/// Tells the device that the content of a range is not needed any more. It reads as anything until it is written. `flags` is any of `HW_FUA` and
/// `HW_BACKGROUND`. Starts as `hw_read`.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_discard(
    queue: *mut Queue,
    offset: u64,
    len: u32,
    flags: u32,
    user_data: u64,
) -> c_int {
    let request = Request { op: HW_DISCARD, offset, len: len.into(), flags };
    // SAFETY: as the caller says.
    unsafe { transfer(queue, request, user_data, []) }
}

/// Makes a range read as zeros. `flags` is any of `HW_FUA`, `HW_BACKGROUND` and `HW_NO_UNMAP`. Starts as `hw_read`.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_write_zeroes(
    queue: *mut Queue,
    offset: u64,
    len: u32,
    flags: u32,
    user_data: u64,
) -> c_int {
    let request = Request { op: HW_WRITE_ZEROES, offset, len: len.into(), flags };
    // SAFETY: as the caller says.
    unsafe { transfer(queue, request, user_data, []) }
}

/// Takes a free slot, whose memory needs no copy: its number, or -EAGAIN if none is free. With `hw_put` it becomes the I/O's, with the completion the
/// program's again.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_slot(queue: *mut Queue) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.take_slot().map(|slot| slot as c_int)) }
}

/// Gives a slot of the program back to the queue. Returns 0 or a negative errno.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_release(queue: *mut Queue, slot: u32) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.release(slot).map(|()| 0)) }
}

/// The memory of a slot of the program, `hw_slot_bytes` of it, aligned to a page; null if the program does not have the slot. It is the same
/// each time, and the program's while it has the slot.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_buffer(queue: *mut Queue, slot: u32) -> *mut c_void {
    guard_pointer(|| {
        let mut memory = std::ptr::null_mut();
        // SAFETY: as the caller says.
        let code: Code = unsafe {
            on(queue, |queue| {
                memory = queue.buffer(slot)?;
                Ok(0)
            })
        };
        // The sentence of a failure is kept already.
        debug_assert!(code <= 0);
        Ok(memory.cast())
    })
}

/// Adds an I/O with a slot of the program: `op` is one of `HW_READ` to `HW_WRITE_ZEROES`, data are at the start of the slot. Starts as `hw_read`.
/// Returns 0, or a negative errno; the slot is the program's still.
///
/// # Safety
/// `queue` is null or a queue of an open disk; the program leaves the slot's memory alone until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_put(
    queue: *mut Queue,
    slot: u32,
    op: u32,
    offset: u64,
    len: u32,
    flags: u32,
    user_data: u64,
) -> c_int {
    let request = Request { op, offset, len: len.into(), flags };
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.put(slot, request, user_data).map(|()| 0)) }
}

/// Lets the I/Os of a queue use memory of the program where it is: a read or write of one piece that begins at a page of it (4096 bytes) is copied into
/// no slot. `memory` is whole pages, at most `HW_REGISTERED_MAX` ranges are registered, and nothing of the queue may be in flight (-EBUSY). The
/// memory stays mapped until `hw_unregister` or `hw_close` has returned 0, for good if neither does: a device that answers too late writes into it.
/// Returns 0 or a negative errno.
///
/// # Safety
/// `queue` is null or a queue of an open disk; `memory` has `len` bytes that may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_register(queue: *mut Queue, memory: *mut c_void, len: usize) -> c_int {
    let memory = Piece { base: memory.cast(), len };
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.register(memory).map(|()| 0)) }
}

/// Ends `hw_register` for the memory that begins at `memory`. Nothing of the queue may be in flight, nor with the device after a time-out (-EBUSY).
/// Returns 0 or a negative errno.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_unregister(queue: *mut Queue, memory: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.unregister(memory.cast()).map(|()| 0)) }
}

/// Starts the I/Os that were put. Returns 0 or a negative errno.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_submit(queue: *mut Queue) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        on(queue, |queue| {
            queue.submit();
            Ok(0)
        })
    }
}

/// Takes up to `max` completions that are there, without waiting; returns how many, or a negative errno.
///
/// # Safety
/// `queue` is null or a queue of an open disk; `completions` has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_reap(
    queue: *mut Queue,
    completions: *mut Completion,
    max: u32,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        on(queue, |queue| {
            if max == 0 {
                return Ok(0);
            }
            if completions.is_null() {
                return Err(is_null("completions"));
            }
            // More are never there.
            let max = max.min(2 * queue.depth());
            let room = slice::from_raw_parts_mut(
                completions.cast::<MaybeUninit<Completion>>(),
                max as usize,
            );
            Ok(queue.reap(room) as c_int)
        })
    }
}

/// Starts the I/Os that were put and waits for a completion, at most `timeout_ms` milliseconds; -1 waits without limit. Returns 1: `hw_reap` may have
/// something, 0: the time is over, or a negative errno: -ENODATA: nothing is in flight; -ESHUTDOWN: the disk's thread has ended.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_wait(queue: *mut Queue, timeout_ms: c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.wait(timeout_ms).map(c_int::from)) }
}

/// The event descriptor of the queue, for poll(2) and its relatives, or a negative errno. It is readable at the next completion after `hw_arm` has
/// returned 1. It belongs to the queue: do not read or close it.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_eventfd(queue: *mut Queue) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| Ok(queue.fd())) }
}

/// Starts the I/Os that were put and prepares a wait on the event descriptor. Returns 1: poll it; 0: do not, since there are completions, or nothing
/// is in flight; or a negative errno. The next `hw_reap` makes the descriptor unreadable.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_arm(queue: *mut Queue) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| Ok(queue.arm().into())) }
}

/// Reads `len` bytes at `offset` into `buffer` and waits for them. Nothing of the queue may be in flight (-EBUSY). Returns 0 or a negative errno;
/// `buffer` then has any mixture.
///
/// # Safety
/// `queue` is null or a queue of an open disk; `buffer` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pread(
    queue: *mut Queue,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        on(queue, |queue| {
            check_memory(buffer, len)?;
            let bytes = slice::from_raw_parts_mut(buffer.cast(), len);
            queue.read_now(offset, bytes).map(|()| 0)
        })
    }
}

/// Writes `len` bytes from `buffer` to `offset` and waits until they are written: to the cache, if the disk has one. Otherwise as `hw_pread`.
///
/// # Safety
/// `queue` is null or a queue of an open disk; `buffer` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pwrite(
    queue: *mut Queue,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        on(queue, |queue| {
            check_memory(buffer, len)?;
            let bytes = slice::from_raw_parts(buffer.cast(), len);
            queue.write_now(offset, bytes).map(|()| 0)
        })
    }
}

/// Makes every completed write durable and waits for it. Otherwise as `hw_pread`.
///
/// # Safety
/// `queue` is null or a queue of an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_fsync(queue: *mut Queue) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.flush_now().map(|()| 0)) }
}

/// Memory of a call that waits.
fn check_memory(buffer: *const c_void, len: usize) -> Result<(), Failure> {
    if buffer.is_null() {
        return Err(is_null("buffer"));
    }
    match len <= isize::MAX as usize {
        true => Ok(()),
        false => Err(Failure::invalid(format!("a buffer of {len} bytes: no program has so many"))),
    }
}

/// # Safety
/// As [`on`], and as [`Queue::transfer`] for the pieces.
#[inline]
unsafe fn transfer<const N: usize>(
    queue: *mut Queue,
    request: Request,
    user_data: u64,
    pieces: [Piece; N],
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { on(queue, |queue| queue.transfer(request, user_data, pieces.into_iter()).map(|()| 0)) }
}

/// # Safety
/// As [`on`], and as [`Queue::transfer`] for `count` pieces.
unsafe fn transfer_pieces(
    queue: *mut Queue,
    (op, offset, flags): (u32, u64, u32),
    pieces: *const iovec,
    count: u32,
    user_data: u64,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        on(queue, |queue| {
            if pieces.is_null() {
                return Err(is_null("pieces"));
            }
            let pieces = slice::from_raw_parts(pieces, count as usize).iter();
            let total =
                pieces.clone().try_fold(0_u64, |sum, piece| sum.checked_add(piece.iov_len as u64));
            let len = total.unwrap_or(u64::MAX);
            let pieces =
                pieces.map(|piece| Piece { base: piece.iov_base.cast(), len: piece.iov_len });
            queue.transfer(Request { op, offset, len, flags }, user_data, pieces).map(|()| 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hw_close, hw_open, hw_queue_at};

    #[test]
    fn queue_does_nothing_more_after_a_panic_in_a_call() {
        let mut disk = std::ptr::null_mut();
        let mut done = Completion::default();
        // SAFETY: a C string, room for a pointer; the disk is open until the end.
        unsafe {
            assert_eq!(hw_open(c"mem:size=1M".as_ptr(), std::ptr::null(), &raw mut disk), 0);
            let queue = hw_queue_at(disk, 0);
            assert_eq!(
                on(queue, |_| -> Result<c_int, Failure> { panic!("half done") }),
                -libc::ENOTRECOVERABLE
            );
            for code in [
                hw_flush(queue, 0),
                hw_submit(queue),
                hw_reap(queue, &raw mut done, 1),
                hw_wait(queue, -1),
            ] {
                assert_eq!(code, -libc::ENOTRECOVERABLE);
            }
            assert_eq!(hw_close(disk), 0);
        }
    }
}
