//! Write-back: how much may be dirty, and who waits for it.
//!
//! [`Throttle`] decides which writer pauses and until when; the parts it decides by are
//!
//! - `options`: the tunables, `limits`: the regions that follow from them,
//! - `credit`: the hard limit, reserved before a block is dirtied,
//! - `bandwidth`: what a device writes, `share`: its part of the limit, `position`: the curve,
//! - `device`: from these the pace of each writer, `writers`: who writes and how much of its part it takes,
//! - `foreground`: the seam for a policy by which writers write out themselves, `trace` and `report`: what happened.
//!
//! docs/internals/dirty-throttling.md has the control in words and curves, and the figures.

mod bandwidth;
pub(crate) mod credit;
mod device;
mod foreground;
mod limits;
mod options;
mod position;
mod report;
mod share;
mod stats;
#[cfg(test)]
mod tests;
mod throttle;
mod trace;
mod tunable;
mod writers;

pub use foreground::{DirtyPosition, ForegroundWriteback};
pub use limits::Thresholds;
pub use options::{DirtyOptions, ThrottlePolicy};
pub use stats::{DirtyStats, WritebackStats};
pub use throttle::Throttle;
pub use trace::{BalanceDirtyPages, BdiDirtyRatelimit, TraceEvent};
pub use tunable::DirtyTunable;
pub use writers::WriterId;
