//! FUSE: the wire between the kernel and a file system in user space, and the mount.
//!
//! ```text
//!   Access::find --> mount --> Channel::receive --> parse --> Request --> the file system
//!                                                                            |
//!                              Channel::send   <-- Reply (answers encoded) <--'
//! ```
//!
//! `wire` and `reply` do no I/O: they read and make bytes, so any loop may carry them. `channel` reads and writes `/dev/fuse`, `access` and
//! `mount` obtain it; `files` mounts single files. Protocol 7.31 of Linux; requests that are not in the list of [`Operation`] parse as `Other`.
//!
//! Requests come from the kernel. They are checked as if they were hostile nevertheless: each length, each
//! name (at most 255 bytes, no slash, neither `.` nor `..`), each count. Nothing is allocated for a request.

mod access;
mod channel;
mod files;
mod mount;
mod reply;
mod wire;

pub use access::{Access, NoAccess};
pub use channel::{Channel, Received};
pub use files::MountedFiles;
pub use mount::{Mount, Way, remove_stale};
pub use reply::{
    ASYNC_DIRECT_IO, Attributes, Entries, FileSystemSize, InitTerms, MAPS_UNCACHED, Reply,
    head_of_data,
};
pub use wire::{
    AttributeChange, Forgets, Malformed, NAME_MAX, Operation, Request, Time, WRITE_MAX, parse,
};

/// Bytes of a buffer that any request fits in: the largest write and its head.
pub const REQUEST_MAX: usize = WRITE_MAX + (64 << 10);

/// Number of the root of a mount.
pub const ROOT: u64 = 1;
