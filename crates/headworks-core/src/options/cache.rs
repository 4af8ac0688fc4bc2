//! What the cache of a shard is made from, and what a volume asks of it.

use crate::error::ConfigError;
use crate::time::{MS, SEC};

/// Bytes of a frame.
const FRAME: u64 = 4096;

/// When a write is acknowledged, in the words of QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteMode {
    /// Once it is in the cache; durable after a flush or by FUA.
    #[default]
    Writeback = 0,
    /// Once the device has it; reads are cached. Durable after a flush or by FUA.
    Writethrough = 1,
    /// The volume is not cached at all.
    None = 2,
    /// As `Writeback`, but flushes and FUA guarantee nothing; for expendable data.
    Unsafe = 3,
    /// As `Writeback`, for streams: data are written out soon, and leave the cache once they are clean and were used once.
    Stream = 4,
}

impl WriteMode {
    /// Every mode, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Writeback, Self::Writethrough, Self::None, Self::Unsafe, Self::Stream];

    /// The word that users give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::Writethrough => "writethrough",
            Self::None => "none",
            Self::Unsafe => "unsafe",
            Self::Stream => "stream",
        }
    }

    /// Whether an acknowledged write, until a flush, may be in the cache alone.
    #[must_use]
    pub const fn holds_dirty(self) -> bool {
        matches!(self, Self::Writeback | Self::Unsafe | Self::Stream)
    }
}

/// What happens to a block whose write-out failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorPolicy {
    /// The block is held: readable, and retried only by a flush. Flushes fail until it is written or discarded.
    #[default]
    Hold = 0,
    /// As `Hold`, and retried after 1, 2, 4 .. 30 s. Transient errors (time-out, no space) are always retried.
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

/// Options of a shard's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Frames of 4 KiB in this shard's pool: 0 for no cache, otherwise at least [`CacheOptions::UNITS_MIN`].
    pub units: u32,
    /// Most connections that are throttled, and have errors reported, separately, 1..=65536.
    pub writers_max: u32,
    /// Time after which a flush fails while the data stays dirty, in nanoseconds; whole milliseconds.
    pub flush_timeout_ns: u64,
    /// The connection id for the cache's own bios, which no client of this shard has.
    pub account: u32,
    /// Frames to which [`crate::writeback::DirtyOptions`] refer at most; the whole pool if it has fewer.
    pub dirtyable_max: u32,
    /// Report with [`crate::Action::SetDirty`] which frames hold dirty blocks.
    pub dirty_table: bool,
    /// Frames that have memory at the start, at least [`CacheOptions::BACKED_MIN`] or all. Others are used only after the driver has
    /// answered [`crate::Action::Prepare`] with [`crate::Control::CacheMemory`]. `u32::MAX`: memory needs no answer.
    pub backed: u32,
}

impl CacheOptions {
    /// The smallest pool: 1 MiB of frames.
    pub const UNITS_MIN: u32 = 256;
    /// Frames that have memory from the start: 4 MiB, or the whole pool.
    pub const BACKED_MIN: u32 = 1024;
    /// The largest pool: 4 TiB of frames.
    pub const UNITS_MAX: u32 = 1 << 30;

    /// A pool of so many bytes, rounded down to frames; 0 for no cache. The rest is as by default.
    #[must_use]
    pub fn of_size(bytes: u64) -> Self {
        let units = u32::try_from(bytes / FRAME).unwrap_or(u32::MAX);
        Self { units, ..Self::default() }
    }

    /// Whether the shard has a cache.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.units > 0
    }

    /// Most outstanding bios of the cache itself: fills and write-out.
    #[must_use]
    pub fn bios(&self) -> u32 {
        if self.is_on() { (self.units / 8).clamp(64, 8192) } else { 0 }
    }

    /// Checks every option against its range.
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
        if self.backed < self.units.min(Self::BACKED_MIN) {
            let message = format!("{} frames are too few at the start", self.backed);
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
        Self {
            units: 0,
            writers_max: 1024,
            flush_timeout_ns: 60 * SEC,
            account: u32::MAX,
            dirtyable_max: u32::MAX,
            dirty_table: false,
            backed: u32::MAX,
        }
    }
}
