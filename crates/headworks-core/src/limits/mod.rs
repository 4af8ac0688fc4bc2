//! Limits of bytes and I/Os per second for connections, exports, tenants and the server.
//!
//! ```text
//!   server (root)  >  tenant  >  export  >  connection (leaf): the first waiting request of each direction
//! ```
//!
//! A request passes if every bucket on its path agrees: those of its direction and the total ones, of bytes and of I/Os. All are
//! charged together or none. [`LimitTree`] decides which request passes, in which order waiters follow, and when to look again;
//! [`Limits`] are a node's settings, and a `Bucket` is one limit's state.
//!
//! | file | decides |
//! |---|---|
//! | `bucket` | when a rate admits the next request |
//! | `set` | what a request costs at a node, and how long the node's buckets make it wait |
//! | `turn` | which child of a node is next |
//! | `lease`, `tokens` | what a shard asks for and holds of a node that lives on another shard |
//! | `lessee` | what the home of a node keeps of such a shard |
//! | `parked` | which bios wait, where clients have no place of their own for these |
//! | `shard` | the tree of a shard: its exports, their tenants and clients |
//! | `tree` | what passes, what waits, and when to look again: `structure`, `passage`, `timers`, `leases` |
//!
//! **Bounds.** Let R be a rate, L the largest cost, `s` the slack of 4 ms at R, and `e` the latest wake-up. While requests wait,
//! any interval T admits between `R T - L - R e` and `R T + L + R e`; from an empty bucket at most `R T + s + L`. A node with
//! several busy children admits at most `R T + 2 s + L`. On several shards leases add what `lease` says. The tests check every
//! pair of admissions.
//!
//! **In another program.** [`ShardLimits`] is what the server asks, and [`ParkedBios`] what the embedding API does. A program that limits its own clients where it accepts
//! their requests has a tree there, and parks those that do not pass:
//!
//! ```
//! use headworks_core::limits::{LimitKind, LimitTree, LimitedIo, Limits};
//! use headworks_core::{Instant, Op};
//!
//! let mut limits = Limits::default();
//! limits.rates[LimitKind::IopsTotal as usize].average = 1000;
//! limits.validate()?;
//! let mut tree = LimitTree::new(16);
//! let volume = tree.add_group(LimitTree::ROOT, 100, 0);
//! tree.set_limits(Instant(0), volume, &limits);
//! let client = tree.add_leaf(volume, 100, 7);
//!
//! let read = LimitedIo::of(Op::Read, 4096).expect("reads are limited");
//! // 4 ms of the rate pass at once, and one more.
//! for _ in 0..5 {
//!     assert!(tree.admit(Instant(0), client, read));
//! }
//! assert!(!tree.admit(Instant(0), client, read), "it waits in the tree");
//! let due = tree.next_timeout().expect("a waiter has a due instant");
//! let passed = tree.pop(due).expect("it passes then");
//! assert_eq!(passed.owner, 7);
//! # Ok::<(), headworks_core::ConfigError>(())
//! ```

mod bucket;
mod lease;
mod lessee;
mod parked;
mod set;
mod shard;
mod tokens;
mod tree;
mod turn;

#[cfg(test)]
mod tests;

pub use lessee::OutgoingLease;
pub use parked::{ClientSetting, ParkedBios};
pub use set::LimitedIo;
pub use shard::{LimitGate, LimitTarget, ShardLimits};
pub use tokens::{LeaseMessage, LeaseRequest, Tokens};
pub use tree::{LimitReport, LimitTree, Passed};

use crate::error::ConfigError;
use crate::time::SEC;

/// The name of a node of a [`LimitTree`].
pub type NodeId = u32;

/// The longest time of a burst: a day.
const LENGTH_MAX_NS: u64 = 86_400 * SEC;

/// What a limit counts, and in which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// Bytes of reads and writes.
    BpsTotal = 0,
    /// Bytes of reads.
    BpsRead = 1,
    /// Bytes of writes.
    BpsWrite = 2,
    /// Reads and writes.
    IopsTotal = 3,
    /// Reads alone.
    IopsRead = 4,
    /// Writes alone.
    IopsWrite = 5,
}

impl LimitKind {
    /// Number of all kinds.
    pub const COUNT: usize = 6;
    /// Every kind in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::BpsTotal,
        Self::BpsRead,
        Self::BpsWrite,
        Self::IopsTotal,
        Self::IopsRead,
        Self::IopsWrite,
    ];

    /// The name that users give, as in QEMU's throttle groups.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BpsTotal => "bps-total",
            Self::BpsRead => "bps-read",
            Self::BpsWrite => "bps-write",
            Self::IopsTotal => "iops-total",
            Self::IopsRead => "iops-read",
            Self::IopsWrite => "iops-write",
        }
    }

    /// Whether it counts bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        matches!(self, Self::BpsTotal | Self::BpsRead | Self::BpsWrite)
    }

    /// Whether it counts both directions.
    #[must_use]
    pub const fn is_total(self) -> bool {
        matches!(self, Self::BpsTotal | Self::IopsTotal)
    }

    /// Whether it counts requests of a direction.
    #[must_use]
    pub const fn covers(self, direction: LimitDirection) -> bool {
        match self {
            Self::BpsTotal | Self::IopsTotal => true,
            Self::BpsRead | Self::IopsRead => matches!(direction, LimitDirection::Read),
            Self::BpsWrite | Self::IopsWrite => matches!(direction, LimitDirection::Write),
        }
    }

    /// The least rate: one I/O, or 4 KiB a second.
    #[must_use]
    pub const fn least(self) -> u64 {
        if self.is_bytes() { 4096 } else { 1 }
    }
}

/// Direction of a request, as limits see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitDirection {
    /// Reads and prefetches.
    Read = 0,
    /// Writes, discards and zeroing.
    Write = 1,
}

impl LimitDirection {
    /// Both directions, reads first.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Read => Self::Write,
            Self::Write => Self::Read,
        }
    }
}

/// One limit: an average rate, and a higher one for a limited time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Units a second in the long run; 0 is no limit.
    pub average: u64,
    /// Units a second in a burst; 0 is no burst.
    pub max: u64,
    /// Nanoseconds for which `max` lasts after a rest; 0 is a second.
    pub max_length_ns: u64,
}

/// The limits of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// A limit for each [`LimitKind`], in order.
    pub rates: [Rate; LimitKind::COUNT],
    /// A request counts as one I/O for each of these bytes, and at least as one; 0: always as one.
    pub iops_size: u64,
}

impl Limits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.rates.iter().all(|rate| rate.average == 0)
    }

    /// The limit of a kind.
    #[must_use]
    pub fn rate(&self, kind: LimitKind) -> Rate {
        self.rates[kind as usize]
    }

    /// Checks every value against the others.
    ///
    /// # Errors
    /// The first mistake, with what would be right.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for kind in LimitKind::ALL {
            let (rate, name) = (self.rate(kind), kind.name());
            let wrong = |message: String| Err(ConfigError::new(name, message));
            let least = kind.least();
            if rate.average == 0 && (rate.max > 0 || rate.max_length_ns > 0) {
                return wrong(format!("is 0, so {name}-max and {name}-max-length have no meaning"));
            }
            if rate.average > 0 && rate.average < least {
                return wrong(format!("{} is too low; the least is {least}", rate.average));
            }
            if rate.max > 0 && rate.max <= rate.average {
                let (max, average) = (rate.max, rate.average);
                return wrong(format!("{name}-max ({max}) must be more than {name} ({average})"));
            }
            if rate.max == 0 && rate.max_length_ns > 0 {
                return wrong(format!("{name}-max-length needs {name}-max"));
            }
            if rate.max_length_ns > LENGTH_MAX_NS {
                return wrong(format!("{name}-max-length is more than a day"));
            }
        }
        if self.iops_size > 0 && self.iops_size < 512 {
            let message = format!("{} is too low; 0 or at least 512 bytes", self.iops_size);
            return Err(ConfigError::new("iops-size", message));
        }
        Ok(())
    }
}
