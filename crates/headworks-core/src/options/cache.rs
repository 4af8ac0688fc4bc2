//! What the cache of a shard is made from, and what a volume asks of it.

use crate::error::ConfigError;
use crate::time::{MS, SEC};

/// When a write is acknowledged; QEMU's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteMode {
    /// When it is in the cache; durable after a flush or by FUA.
    #[default]
    Writeback = 0,
    /// When the device has it; reads are cached. Durable after a flush or by FUA.
    Writethrough = 1,
    /// The volume is not cached at all.
    None = 2,
    /// As `Writeback`, and flushes and FUA promise nothing. For what may be lost.
    Unsafe = 3,
}

impl WriteMode {
    /// Every mode, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Writeback, Self::Writethrough, Self::None, Self::Unsafe];

    /// The word that users give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::Writethrough => "writethrough",
            Self::None => "none",
            Self::Unsafe => "unsafe",
        }
    }
}

/// What becomes of a block whose write-out failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorPolicy {
    /// It is held: readable, written again only by a flush; flushes fail until it is written or its loss is acknowledged.
    #[default]
    Hold = 0,
    /// As `Hold`, and it is also written again by itself, after 1, 2, 4 .. 30 s. What may pass (a time-out, no room) always is.
    Retry = 1,
}

impl ErrorPolicy {
    /// Every policy, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Hold, Self::Retry];

    /// The word that users give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Retry => "retry",
        }
    }
}

/// A shard's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Frames of 4 KiB in this shard's pool; 0: no cache. At least [`CacheOptions::UNITS_MIN`] otherwise.
    pub units: u32,
    /// Connections whose writes are told apart by the throttle, and errors remembered for, 1..=65536.
    pub writers_max: u32,
    /// A flush that took longer is answered with an error; the data stay dirty. Whole milliseconds.
    pub flush_timeout_ns: u64,
    /// The connection in whose name the cache writes out: an id of this shard's that no client has.
    pub account: u32,
}

impl CacheOptions {
    /// The smallest pool: 1 MiB.
    pub const UNITS_MIN: u32 = 256;
    /// The largest: 4 TiB less a block.
    pub const UNITS_MAX: u32 = 1 << 30;

    /// Whether there is a cache.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.units > 0
    }

    /// Bios of the cache's own at once, beside the clients': fills and write-out.
    #[must_use]
    pub fn bios(&self) -> u32 {
        if self.is_on() { (self.units / 8).clamp(64, 8192) } else { 0 }
    }

    /// Checks every range once.
    ///
    /// # Errors
    /// The first option out of range, with its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.is_on() && !(Self::UNITS_MIN..=Self::UNITS_MAX).contains(&self.units) {
            let message = format!(
                "{} bytes a shard are not within 1 MiB..=4 TiB",
                u64::from(self.units) * 4096
            );
            return Err(ConfigError::new("cache", message));
        }
        if !(1..=65_536).contains(&self.writers_max) {
            let message = format!("{} is not within 1..=65536", self.writers_max);
            return Err(ConfigError::new("writers_max", message));
        }
        if !(MS..=86_400 * SEC).contains(&self.flush_timeout_ns)
            || !self.flush_timeout_ns.is_multiple_of(MS)
        {
            let message = "is not within 1 ms..=1 day, in whole milliseconds";
            return Err(ConfigError::new("flush_timeout", message.to_owned()));
        }
        Ok(())
    }
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { units: 0, writers_max: 1024, flush_timeout_ns: 60 * SEC, account: u32::MAX }
    }
}
