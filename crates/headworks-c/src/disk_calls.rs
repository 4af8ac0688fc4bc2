//! The calls of a disk: open, close, facts, its queues; version and error text.

use std::ffi::{c_char, c_int};
use std::ptr;

use crate::disk::Disk;
use crate::error::{Failure, guard, guard_pointer, last_sentence};
use crate::options::{Options, text};
use crate::queue::Queue;

/// The version of the library, such as "0.2.0".
#[unsafe(no_mangle)]
pub extern "C" fn hw_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What was wrong with the last call of this thread that failed, in one sentence; empty if none has. Valid until the next one fails.
#[unsafe(no_mangle)]
pub extern "C" fn hw_error() -> *const c_char {
    last_sentence()
}

/// Opens the disk that `spec` names, as `headworks serve` takes it: "disk.img", "file:path=disk.img,size=1G", "mem:size=64M". `options` may be
/// null. Returns 0 and the disk, which `hw_close` frees, or a negative errno and null:
/// -EINVAL: an option or the SPEC is wrong, or the device cannot be opened; -EUCLEAN: a server that was killed did not bring all acknowledged
/// writes to the image, serve it once; -E2BIG: the program is newer than the library and uses what this one does not know.
///
/// # Safety
/// `spec` is a C string, `options` null or a struct of the size that it says, `disk` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_open(
    spec: *const c_char,
    options: *const Options,
    disk: *mut *mut Disk,
) -> c_int {
    guard(|| {
        if disk.is_null() {
            return Err(Failure::invalid("disk is null: it must point to the place of the result"));
        }
        // SAFETY: arguments are as the caller says; `disk` has room.
        let (spec, settings) = unsafe {
            disk.write(ptr::null_mut());
            (text("spec", spec)?, Options::read(options)?.settings()?)
        };
        let opened = Box::new(Disk::open(spec, &settings)?);
        // SAFETY: it has room.
        unsafe { disk.write(Box::into_raw(opened)) };
        Ok(0)
    })
}

/// Completes what was submitted, flushes, and frees the disk with its queues, whatever it returns. I/Os that were put and not submitted are
/// dropped; memory of the program is not touched any more afterwards. Returns 0, or a negative errno if data may be lost. Null is allowed.
///
/// # Safety
/// `disk` is null or from `hw_open`, not closed before, and no other call uses it or its queues now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_close(disk: *mut Disk) -> c_int {
    guard(|| {
        if disk.is_null() {
            return Ok(0);
        }
        // SAFETY: `hw_open` has made it by `Box::into_raw`, and it is closed once.
        unsafe { Box::from_raw(disk) }.close().map(|()| 0)
    })
}

/// Bytes of the disk, or a negative errno.
///
/// # Safety
/// `disk` is null or an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_capacity(disk: *const Disk) -> i64 {
    // SAFETY: as the caller says.
    guard(|| Ok(unsafe { open_disk(disk) }?.capacity as i64))
}

/// Bytes of a block: offsets and lengths of reads, writes and zeroing are multiples of it; 1 with a page cache. Or a negative errno.
///
/// # Safety
/// `disk` is null or an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_block_size(disk: *const Disk) -> c_int {
    // SAFETY: as the caller says.
    guard(|| Ok(unsafe { open_disk(disk) }?.block_size as c_int))
}

/// The queue of a number below `hw_options.queues`, always the same one; null if there is none. It belongs to the disk.
///
/// # Safety
/// `disk` is null or an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_queue_at(disk: *mut Disk, index: u32) -> *mut Queue {
    guard_pointer(|| {
        // SAFETY: as the caller says.
        let queue = unsafe { open_disk(disk) }?.queue(index).ok_or_else(|| {
            Failure::invalid(format!("there is no queue {index}: open with more queues"))
        })?;
        Ok(queue.as_ptr())
    })
}

/// Sets the weight of a queue, 1 to 10000; 100 is what each begins with. Queues that want more than the disk gives divide it by their weights.
/// Returns 0 or a negative errno.
///
/// # Safety
/// `disk` is null or an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_set_weight(disk: *const Disk, queue: u32, weight: u16) -> c_int {
    // SAFETY: as the caller says.
    guard(|| unsafe { open_disk(disk) }?.set_weight(queue, weight).map(|()| 0))
}

/// Limits a queue to so many bytes, at least 4096, and so many I/Os a second; 0 is no limit. I/Os beyond them wait in the queue, in the order of
/// reads and of writes; flushes do not. Returns 0 or a negative errno.
///
/// # Safety
/// `disk` is null or an open disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_set_limits(
    disk: *const Disk,
    queue: u32,
    bytes: u64,
    ios: u64,
) -> c_int {
    // SAFETY: as the caller says.
    guard(|| unsafe { open_disk(disk) }?.set_limits(queue, (bytes, ios)).map(|()| 0))
}

/// # Safety
/// `disk` is null or an open disk.
unsafe fn open_disk<'a>(disk: *const Disk) -> Result<&'a Disk, Failure> {
    // SAFETY: as the caller says.
    unsafe { disk.as_ref() }.ok_or_else(|| Failure::invalid("disk is null"))
}
