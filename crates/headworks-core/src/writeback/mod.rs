//! Write-back: limits of dirty data and the throttling of writers.
//!
//! [`Throttle`] decides which writer pauses and until when, from
//!
//! - `options`: the tunables, `limits`: the thresholds that follow from them,
//! - `credit`: the hard limit, reserved before a block is dirtied,
//! - `bandwidth`: the estimated rate of a device, `share`: its part of the limit, `position`: the curve of the control,
//! - `device`: the pace of each writer by these, `domains`: the parts of tenants, `writers`: the table of writers and their weights,
//! - `foreground`: the seam for a policy by which writers write out themselves, `trace` and `report`: events and statistics.
//!
//! docs/internals/dirty-throttling.md describes the control and has its measurements.

mod bandwidth;
pub(crate) mod credit;
mod device;
mod domains;
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
