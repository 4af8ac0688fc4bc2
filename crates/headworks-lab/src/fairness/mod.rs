//! Fair sharing of a device, with the default options and with byte bounds set by hand.
//!
//! | part | question |
//! |---|---|
//! | [`clients`] | closed loops, 8 to 1000 of them, of one size or of several: longest wait, shares, throughput |
//! | [`weights`] | exports of unequal weights with many requests: their parts, throughput |
//! | [`beside`] | light readers beside bulk and beside write-out, light writers: their p99, and what the heavy ones keep |
//! | [`bounded`] | a light reader, equal jobs and weights with `hw_inflight_kb` set for the device |
//! | [`targets`] | a light reader with a latency target beside bulk: how often it is missed, and what the bulk keeps |
//! | [`ablation`] | some of the first two without one mechanism at a time: what each buys |
//!
//! Rows are selected by `--case` as well as by device, tags, jobs and policy.

pub mod ablation;
pub mod beside;
pub mod bounded;
pub mod clients;
mod device;
mod known;
mod mechanism;
pub mod targets;
pub mod weights;

use headworks_core::ConfigError;

use crate::report::Report;
use crate::row_filter::RowFilter;

/// Runs the selected rows of all parts.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let mut report = Report::default();
    let parts =
        [bounded::run, clients::run, weights::run, beside::run, targets::run, ablation::run];
    for part in parts {
        let mut part = part(filter)?;
        part.verdicts = part.verdicts.into_iter().map(known::explain).collect();
        if !part.rows.is_empty() {
            report.append(part);
        }
    }
    Ok(report)
}
