//! Dirty data and its write-out.

pub(in crate::cache) mod dirty_regions;
pub(in crate::cache) mod flusher;
pub(in crate::cache) mod groups;
pub(in crate::cache) mod held;
pub(in crate::cache) mod writeout;
