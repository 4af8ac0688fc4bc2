//! Fair sharing of a device, with the default options and with byte bounds set by hand.
//!
//! | part | question |
//! |---|---|
//! | [`clients`] | closed loops, 8 to 1000 of them, of one size or of several: longest wait, shares, throughput |
//! | [`bounded`] | a light reader, equal jobs and weights with `hw_inflight_kb` set for the device |
//!
//! Rows are selected by `--case` as well as by device, tags, jobs and policy.

pub mod bounded;
pub mod clients;

use headworks_core::ConfigError;

use crate::report::Report;
use crate::row_filter::RowFilter;

/// Runs the selected rows of all parts.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let mut report = Report::default();
    for part in [bounded::run, clients::run] {
        let part = part(filter)?;
        if !part.rows.is_empty() {
            report.append(part);
        }
    }
    Ok(report)
}
