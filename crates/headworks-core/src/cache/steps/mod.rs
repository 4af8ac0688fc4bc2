//! The steps of operations, one file for each kind.

mod clean;
pub(in crate::cache) mod fill;
pub(in crate::cache) mod range;
mod read;
mod status;
mod sync;
pub(in crate::cache) mod write;
