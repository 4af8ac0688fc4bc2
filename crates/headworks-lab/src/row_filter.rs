//! Selection of the rows of an experiment.

use std::cell::RefCell;
use std::collections::BTreeSet;

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
    /// The options that a row had; empty before a run.
    pub used: RefCell<BTreeSet<String>>,
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
        let used = RefCell::default();
        Self { seed: 1, policies, tags, jobs, device, cases, kind: RowKind::All, used }
    }
}

impl RowFilter {
    /// Whether rows of that policy are selected.
    #[must_use]
    pub fn has_policy(&self, policy: TagPolicy) -> bool {
        let wanted = self.policies.contains(&policy);
        self.policies.is_empty() || self.uses(wanted, "policy", policy.name())
    }

    /// Whether rows with that number of tags are selected.
    #[must_use]
    pub fn has_tags(&self, tags: u32) -> bool {
        self.tags.is_empty() || self.uses(self.tags.contains(&tags), "tags", &tags.to_string())
    }

    /// Whether rows with that number of jobs are selected.
    #[must_use]
    pub fn has_jobs(&self, jobs: u32) -> bool {
        self.jobs.is_empty() || self.uses(self.jobs.contains(&jobs), "jobs", &jobs.to_string())
    }

    /// Whether rows of that case are selected.
    #[must_use]
    pub fn has_case(&self, case: &str) -> bool {
        self.cases.is_empty() || self.names_case(case)
    }

    /// Whether rows of that case are selected by its name.
    #[must_use]
    pub fn names_case(&self, case: &str) -> bool {
        self.uses(self.cases.iter().any(|wanted| wanted == case), "case", case)
    }

    /// Whether rows of that device are selected.
    #[must_use]
    pub fn has_device(&self, device: &str) -> bool {
        let wanted = |name: &str| self.uses(name == device, "device", device);
        self.device.as_deref().is_none_or(wanted)
    }

    fn uses(&self, is_wanted: bool, option: &str, value: &str) -> bool {
        if is_wanted {
            self.used.borrow_mut().insert(format!("--{option} {value}"));
        }
        is_wanted
    }

    /// The options that no row had: those that the experiment does not know, and values that it has not.
    #[must_use]
    pub fn without_effect(&self) -> Vec<String> {
        let policies = self.policies.iter().map(|policy| format!("--policy {}", policy.name()));
        let tags = self.tags.iter().map(|tags| format!("--tags {tags}"));
        let jobs = self.jobs.iter().map(|jobs| format!("--jobs {jobs}"));
        let cases = self.cases.iter().map(|case| format!("--case {case}"));
        let devices = self.device.iter().map(|device| format!("--device {device}"));
        let given = policies.chain(tags).chain(jobs).chain(cases).chain(devices);
        let used = self.used.borrow();
        given.filter(|option| !used.contains(option)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_no_row_has_are_named() {
        let filter = RowFilter {
            tags: vec![31, 64],
            cases: vec!["equal".into(), "nonsense".into()],
            device: Some("foo".into()),
            ..RowFilter::default()
        };
        assert!(filter.has_tags(64) && !filter.has_tags(62) && filter.has_case("equal"));
        assert!(!filter.has_device("sata"));
        let unused = ["--tags 31", "--case nonsense", "--device foo"];
        assert_eq!(filter.without_effect(), unused);
    }
}
