//! Fair sharing of a device, with the default options and with byte bounds set by hand.
//!
//! | part | question |
//! |---|---|
//! | [`clients`] | closed loops, 8 to 1000 of them, of one size or of several: longest wait, shares, throughput |
//! | [`weights`] | exports of unequal weights with many requests: their parts, throughput |
//! | [`beside`] | light readers beside bulk and beside write-out, light writers: their p99, and what the heavy ones keep |
//! | [`bulk_sizes`] | a light reader beside bulk of 4 KiB to 1 MiB, reads and writes, with each elevator: its p99, and what the bulk keeps |
//! | [`bounded`] | a light reader, equal jobs and weights with `hw_inflight_kb` set for the device |
//! | [`flushes`] | a small flush beside one of 1 GiB, reads beside many flushes and FUA writes: the longest wait |
//! | [`readers`] | sequential readers through a small cache, new random readers with bfq |
//! | [`targets`] | a light reader with a latency target beside bulk: how often it is missed, and what the bulk keeps |
//! | [`ablation`] | some of the first two without one mechanism at a time: what each buys |
//!
//! Rows are selected by `--case` as well as by device, tags, jobs and policy.

pub mod ablation;
pub mod beside;
pub mod bounded;
pub mod bulk_sizes;
pub mod clients;
mod device;
pub mod flushes;
mod known;
mod mechanism;
pub mod readers;
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
    let parts = [
        bounded::run,
        clients::run,
        weights::run,
        beside::run,
        bulk_sizes::run,
        flushes::run,
        readers::run,
        targets::run,
        ablation::run,
    ];
    for part in parts {
        let mut part = part(filter)?;
        part.verdicts = part.verdicts.into_iter().map(known::explain).collect();
        if !part.rows.is_empty() {
            report.append(part);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_that_run_only_when_named_have_no_rows_in_the_default_run() {
        for part in [bulk_sizes::run, flushes::run, readers::run] {
            assert!(part(&RowFilter::default()).unwrap().rows.is_empty());
        }
    }
}
