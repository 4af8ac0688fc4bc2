//! The state of each cached volume.

pub(in crate::cache) mod truncation;
pub(in crate::cache) mod volume;
