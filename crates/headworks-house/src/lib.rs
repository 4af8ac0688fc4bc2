//! What the crates around the library share, and the library itself does not use.
//!
//! Buffers of requests come from a [`Pool`]. An open image is looked at beside its device: which file it is, also for a process that is
//! started later ([`Identity`]), its size and lock ([`SizeWatch`]), and writes before it is served ([`ImageWriter`]).

mod buffers;
mod handles;
mod identity;

pub use buffers::{Buffer, Pool};
pub use handles::{FoundFile, ImageHandles, ImageWriter, SizeWatch, WrittenRanges};
pub use identity::Identity;
