//! What a thread that drives a shard needs beside it: a clock, a decision whether to poll, a CPU.

mod clock;
mod polling;
mod threads;

pub use clock::Clock;
pub use polling::Polling;
pub use threads::pin_thread;

use headworks_core::{CacheOptions, ConfigError};

use crate::memory::{Mapping, Pages};
use crate::size::display_size;

/// Maps the frames of a shard's cache, if it has one. Frames cost no memory until they are used.
///
/// # Errors
/// The kernel has no address space for them.
pub fn map_frames(cache: &CacheOptions) -> Result<Option<(Mapping, Pages)>, ConfigError> {
    if !cache.is_on() {
        return Ok(None);
    }
    let bytes = cache.units as usize * 4096;
    Mapping::huge(bytes).map(Some).map_err(|error| {
        ConfigError::new("cache", format!("cannot map {}: {error}", display_size(bytes as u64)))
    })
}
