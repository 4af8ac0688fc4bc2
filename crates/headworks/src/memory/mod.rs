//! Where bytes lie while they are on the path.
//!
//! Every byte of data is in a [`Mapping`] made at start-up: the [`Pool`] cuts one into buffers for requests, the memory
//! device keeps its disk in another. A [`Span`] names a piece of one for as long as a command needs it.

mod copy;
mod huge;
mod mapping;
mod pool;

pub use copy::{STREAM, copy};
pub use huge::{HUGE, Pages, tables_in_huge_pages};
pub use mapping::{Mapping, PAGE};
pub use pool::{Buffer, Pool};

/// Gives memory back to the kernel that was freed in large parts: when a device has gone, whose tables are a megabyte or more.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only memory that nobody has is given back.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The place of what has no bytes.
pub const NOTHING: Span = Span { base: std::ptr::null_mut(), len: 0 };

/// A range of memory, laid out as `struct iovec`.
///
/// Whoever hands a span to a device promises that the memory stays valid and is not written (for a write: by anybody; for a
/// read: by anybody but the device) until the command's completion was delivered. That promise is kept by the shard's
/// contract: a bio's buffer is free only after its `Reply` said `Final` or `Released`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// First byte.
    pub base: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: a span is a name for memory; the promise above says who may touch it when, across threads too.
unsafe impl Send for Span {}

const _: () = assert!(size_of::<Span>() == size_of::<libc::iovec>());
