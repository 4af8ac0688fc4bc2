//! Operations and the lists on which they wait.

pub(in crate::cache) mod operation;
pub(in crate::cache) mod wait_lists;
