//! Where bytes lie while they are on the path.
//!
//! Every byte of data is in a [`Mapping`] made at start-up: the [`Pool`] cuts one into buffers for requests, the memory
//! device keeps its disk in another. A [`Span`] names a piece of one for as long as a command needs it.

mod copy;
mod huge;
mod mapping;
mod pool;
mod span;

pub use copy::{STREAM, copy};
pub use huge::{Pages, tables_in_huge_pages};
pub use mapping::{Mapping, PAGE};
pub use pool::{Buffer, Pool};
pub use span::Span;

/// Gives memory back to the kernel that was freed in large parts: when a device has gone, whose tables are a megabyte or more.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only memory that nobody has is given back.
    unsafe {
        libc::malloc_trim(0);
    }
}
