//! The page cache: folios of 4 KiB to 2 MiB between the volumes and the queues.

pub mod folio;
pub mod ghost;
pub mod index;
pub mod readahead;
pub mod reclaim;
