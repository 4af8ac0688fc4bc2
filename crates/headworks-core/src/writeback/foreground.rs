//! Foreground writeback: a policy by which writers write out data themselves instead of pausing.
//!
//! The product has none. Experiments give one to a shard ([`crate::Shard::set_foreground`]) to compare with; it decides how much a
//! writer writes out, and the cache does it in the writer's name.

/// The state of a device's dirty data, in blocks.
#[derive(Clone, Copy, Debug)]
pub struct DirtyPosition {
    /// The device's dirty, writeback and reserved blocks.
    pub used: u32,
    /// The limit of the device.
    pub limit: u32,
    /// Whether all devices together are in free-run.
    pub freerun: bool,
    /// Writers of the device; light ones count in part.
    pub writers: u32,
}

/// A policy of foreground writeback.
pub trait ForegroundWriteback: std::fmt::Debug + Send {
    /// Blocks that a writer must write out itself after it dirtied `nr_dirtied`; `None` while it is not checked yet and its
    /// count continues.
    fn quota(&self, position: &DirtyPosition, nr_dirtied: u32) -> Option<u32>;
}
