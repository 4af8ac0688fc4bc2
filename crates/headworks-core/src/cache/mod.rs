//! The page cache: folios of 4 KiB to 2 MiB between the volumes and the queues.

pub mod folio;
mod stats;

pub use stats::{CacheStats, DirtyStats};
