//! Selection of the rows of an experiment.

use headworks_core::Scheduler;

use crate::baseline::TagPolicy;

/// The elevators with the gate's shares in front of them, which experiments about tags compare.
pub const GATED: [Scheduler; 2] = [Scheduler::None, Scheduler::MqDeadline];

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
    /// Only these cases; all if empty.
    pub cases: Vec<String>,
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
        let (device, cases) = (None, Vec::new());
        Self { seed: 1, policies, tags, jobs, device, cases, kind: RowKind::All }
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

    /// Whether rows of that case are selected.
    #[must_use]
    pub fn has_case(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == case)
    }

    /// Whether rows of that device are selected.
    #[must_use]
    pub fn has_device(&self, device: &str) -> bool {
        self.device.as_deref().is_none_or(|wanted| wanted == device)
    }
}
