//! Selection of experiments and of their rows.

use headworks_core::ConfigError;

use crate::baseline::TagPolicy;
pub use crate::report::Progress;
use crate::report::Report;
use crate::{fairness, live, seed000, seed001, seed004};

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
}

/// Selects rows of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFilter {
    /// Seed of the workload and of modelled delays.
    pub seed: u64,
    /// Only these tag policies; all if empty.
    pub policies: Vec<TagPolicy>,
    /// Only these numbers of tags; all if empty.
    pub tags: Vec<u32>,
    /// Only these numbers of jobs; all if empty.
    pub jobs: Vec<u32>,
    /// Only this device; all if `None`.
    pub device: Option<String>,
    /// Only rows of this kind.
    pub kind: RowKind,
}

/// How the rows of an experiment are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowKind {
    /// Simulated and live rows.
    #[default]
    All,
    /// Only rows in virtual time.
    Virtual,
    /// Only rows on real threads or over NBD.
    Live,
}

impl Default for RowFilter {
    fn default() -> Self {
        let (policies, tags, jobs) = (Vec::new(), Vec::new(), Vec::new());
        Self { seed: 1, policies, tags, jobs, device: None, kind: RowKind::All }
    }
}

impl RowFilter {
    /// Whether rows of that policy are selected.
    #[must_use]
    pub fn has_policy(&self, policy: TagPolicy) -> bool {
        self.policies.is_empty() || self.policies.contains(&policy)
    }

    /// Whether rows with that number of tags are selected.
    #[must_use]
    pub fn has_tags(&self, tags: u32) -> bool {
        self.tags.is_empty() || self.tags.contains(&tags)
    }

    /// Whether rows with that number of jobs are selected.
    #[must_use]
    pub fn has_jobs(&self, jobs: u32) -> bool {
        self.jobs.is_empty() || self.jobs.contains(&jobs)
    }

    /// Whether rows of that device are selected.
    #[must_use]
    pub fn has_device(&self, device: &str) -> bool {
        self.device.as_deref().is_none_or(|wanted| wanted == device)
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
    };
    match name {
        _ if filter.kind == RowKind::Virtual => {}
        ExperimentName::Seed000 => report.append(live::seed000::run_all(filter)?),
        ExperimentName::Fairness => report.append(live::fairness::run_all(filter)?),
        ExperimentName::Seed001 => report.append(seed001::threads::run_all(filter)?),
        ExperimentName::Seed002Cpu => report.append(live::seed002_cpu::run_all(filter)?),
        ExperimentName::Seed003Cpu => report.append(live::seed003::run_all(filter)?),
        ExperimentName::Seed004 => {}
    }
    Ok(report)
}
