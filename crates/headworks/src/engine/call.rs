//! One system call per operation: what a thread of the pool does with it, and a device whose files are in memory.

use super::{DiskKind, DiskOp, extents};
use crate::memory::Span;

/// The flags of `pwritev2`.
pub(super) fn write_flags(dsync: bool) -> i32 {
    if dsync { libc::RWF_DSYNC } else { 0 }
}

/// Does an operation in place; its result as an engine gives it: bytes moved, or a negative errno.
///
/// # Safety
/// The spans are valid, and the caller's to read or write.
pub unsafe fn execute(op: &DiskOp, spans: &[Span]) -> i32 {
    let (vector, count) = (spans.as_ptr().cast::<libc::iovec>(), spans.len() as i32);
    let (offset, len) = (op.offset as i64, op.len as i64);
    if let (DiskKind::Extents { one }, [span]) = (op.kind, spans) {
        // SAFETY: the span is valid and the caller's to write.
        let bytes = unsafe { span.bytes_mut() };
        return extents::tell(op.fd, op.offset, op.len, one, bytes);
    }
    loop {
        // SAFETY: spans are laid out as iovecs, and theirs is the caller's promise.
        let result = unsafe {
            match op.kind {
                DiskKind::Read => libc::preadv2(op.fd, vector, count, offset, 0),
                DiskKind::Write { dsync } => {
                    libc::pwritev2(op.fd, vector, count, offset, write_flags(dsync))
                }
                DiskKind::Sync => libc::fdatasync(op.fd) as isize,
                DiskKind::Allocate { mode } => libc::fallocate(op.fd, mode, offset, len) as isize,
                DiskKind::Extents { .. } => return -libc::EINVAL,
            }
        };
        if result >= 0 {
            return result as i32;
        }
        let errno = std::io::Error::last_os_error().raw_os_error();
        match errno.unwrap_or(libc::EIO) {
            libc::EINTR => {}
            errno => return -errno,
        }
    }
}
