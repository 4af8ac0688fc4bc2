//! The memory of the cache.

pub mod folio;
pub mod ghost;
pub mod index;
pub mod reclaim;

mod frames;
pub(in crate::cache) mod shadow;
pub(in crate::cache) mod walk;
