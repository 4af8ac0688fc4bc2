//! Foreground writeback as Linux had it from 2.6.24 to 3.1.
//!
//! A writer is checked after `ratelimit_pages` (a 32nd of the limit, at most 4 MiB; 32 KiB while its device is over its limit). If
//! its device is over the writer's own limit (an eighth lower for a writer that dirties everything) it must write out one and
//! a half times as much before it continues.

use headworks_core::Shard;
use headworks_core::writeback::{DirtyPosition, ForegroundWriteback, ThrottlePolicy};

/// How writers are slowed in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttling {
    /// Writers pause and the flusher writes: the policy of the product.
    Ioless,
    /// Writers over the limit write out a chunk themselves and wait for it.
    Foreground,
    /// Writers never pause; only the hard limit holds.
    None,
}

impl Throttling {
    /// Every kind, the product's first.
    pub const ALL: [Self; 3] = [Self::Ioless, Self::Foreground, Self::None];

    /// The name in options and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ioless => "ioless",
            Self::Foreground => "foreground",
            Self::None => "none",
        }
    }

    /// The option of the shard that goes with it.
    #[must_use]
    pub const fn policy(self) -> ThrottlePolicy {
        match self {
            Self::Ioless => ThrottlePolicy::Ioless,
            Self::Foreground | Self::None => ThrottlePolicy::None,
        }
    }

    /// Gives foreground writeback to a shard that has not handled any input.
    pub fn install(self, shard: &mut Shard) {
        if self == Self::Foreground {
            shard.set_foreground(Box::new(Foreground));
        }
    }
}

/// Blocks after which a writer is checked while its device is over its limit.
const RATELIMIT_EXCEEDED: u32 = 8;

/// `ratelimit_pages` under a limit of so many blocks.
fn ratelimit_pages(limit: u32) -> u32 {
    (limit / 32).clamp(16, 1024)
}

/// The policy of Linux 2.6.24 to 3.1.
#[derive(Clone, Copy, Debug)]
pub struct Foreground;

impl ForegroundWriteback for Foreground {
    fn quota(&self, position: &DirtyPosition, nr_dirtied: u32) -> Option<u32> {
        let DirtyPosition { used, limit, freerun, writers } = *position;
        let pages = ratelimit_pages(limit);
        let exceeded = used > limit - limit / 32;
        if nr_dirtied < if exceeded { RATELIMIT_EXCEEDED } else { pages } {
            return None;
        }
        let task_limit = limit - limit / 8 / writers.max(1);
        if freerun || used <= task_limit - limit / 32 {
            return Some(0);
        }
        let dirtied = nr_dirtied.max(pages);
        Some(dirtied + dirtied / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: DirtyPosition =
        DirtyPosition { used: 100_000, limit: 200_000, freerun: false, writers: 1 };

    fn quota(position: DirtyPosition, nr_dirtied: u32) -> Option<u32> {
        Foreground.quota(&position, nr_dirtied)
    }

    #[test]
    fn writer_over_its_limit_writes_six_mebibytes_after_four() {
        let over = DirtyPosition { used: 190_000, ..AT };
        assert_eq!(quota(over, 1023), None);
        assert_eq!(quota(over, 1024), Some(1536));
        assert_eq!(quota(over, 5000), Some(7500));
    }

    #[test]
    fn writer_below_its_own_limit_continues() {
        assert_eq!(quota(AT, 1024), Some(0));
        let between = DirtyPosition { used: 180_000, ..AT };
        assert_eq!(quota(between, 1024), Some(1536));
        assert_eq!(quota(DirtyPosition { writers: 100, ..between }, 1024), Some(0));
        assert_eq!(quota(DirtyPosition { freerun: true, ..between }, 1024), Some(0));
    }

    #[test]
    fn device_over_its_limit_is_checked_after_eight_blocks() {
        let over = DirtyPosition { used: 199_000, ..AT };
        assert_eq!(quota(over, 7), None);
        assert_eq!(quota(over, 8), Some(1536));
    }
}
