//! The experiments by name, and how each is run.

use headworks_core::ConfigError;

pub use crate::report::Progress;
use crate::report::Report;
pub use crate::row_filter::{RowFilter, RowKind};
use crate::{dirty_shares, fairness, live, seed000, seed001, seed004};

/// An experiment that prints a table of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExperimentName {
    /// Seed 000: tag allocation on a disk.
    Seed000,
    /// Seed 001: batch dispatch from the elevator.
    Seed001,
    /// Seed 002 on real threads: CPU cost of dirty throttling.
    Seed002Cpu,
    /// Seed 003 in real time: cost of cache hits with large folios.
    Seed003Cpu,
    /// Seed 004: merging in the plug.
    Seed004,
    /// Fair sharing of a device.
    Fairness,
    /// Buffered writers of tenants.
    DirtyShares,
}

/// An option of [`RowFilter`], as the command line names it.
type OptionName = &'static str;

impl ExperimentName {
    /// The options that select rows of the experiment; others would do nothing.
    #[must_use]
    pub const fn options(self) -> &'static [OptionName] {
        match self {
            Self::Seed000 => &["seed", "policy", "tags", "jobs", "device"],
            Self::Seed001 => &["seed", "jobs", "device"],
            Self::Seed002Cpu | Self::Seed003Cpu => &["seed", "jobs", "device"],
            Self::Seed004 => &[],
            Self::Fairness => &["seed", "policy", "tags", "jobs", "device", "case"],
            Self::DirtyShares => &["seed", "jobs", "device", "case"],
        }
    }
}

/// Runs the selected rows of an experiment.
///
/// # Errors
/// Invalid options.
pub fn run(name: ExperimentName, filter: &RowFilter) -> Result<Report, ConfigError> {
    let mut report = match (filter.kind, name) {
        (RowKind::Live, _) => Report::default(),
        (_, ExperimentName::Seed000) => seed000::run(filter)?,
        (_, ExperimentName::Seed001) => seed001::run(filter)?,
        (_, ExperimentName::Seed002Cpu | ExperimentName::Seed003Cpu) => Report::default(),
        (_, ExperimentName::Seed004) => seed004::run(filter)?,
        (_, ExperimentName::Fairness) => fairness::run(filter)?,
        (_, ExperimentName::DirtyShares) => dirty_shares::run(filter)?,
    };
    match name {
        _ if filter.kind == RowKind::Virtual => {}
        ExperimentName::Seed000 => report.append(live::seed000::run_all(filter)?),
        ExperimentName::Fairness => {
            report.append(live::clients::run_all(filter)?);
            report.append(live::fairness::run_all(filter)?);
            report.append(live::bulk::run_all(filter)?);
        }
        ExperimentName::Seed001 => report.append(seed001::threads::run_all(filter)?),
        ExperimentName::Seed002Cpu => report.append(live::seed002_cpu::run_all(filter)?),
        ExperimentName::Seed003Cpu => report.append(live::seed003::run_all(filter)?),
        ExperimentName::Seed004 | ExperimentName::DirtyShares => {}
    }
    Ok(report)
}
