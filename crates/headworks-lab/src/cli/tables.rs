//! `headworks-lab run` of the experiments that share a row filter: seed-000, seed-001, seed-004,
//! fairness and the CPU tables.
//!
//! Exit codes: 0 all goals met or missed as known, 1 a goal missed, 2 invalid options or no selected row.

use std::process::ExitCode;

use crate::baseline::TagPolicy;
use crate::experiment::{self, ExperimentName, RowFilter, RowKind};
use clap::Args;

use crate::cli::output::OutputArgs;
use crate::cli::{USAGE, complain};

/// Options that select the rows of an experiment.
#[derive(Args)]
pub struct TableArgs {
    /// Seed of the workload and of modelled delays; 1 by default
    #[arg(long)]
    seed: Option<u64>,
    /// Only these tag policies: fair, legacy518, kuai_v3
    #[arg(long, value_delimiter = ',', value_parser = policy)]
    policy: Vec<TagPolicy>,
    /// Only these numbers of tags
    #[arg(long, value_delimiter = ',')]
    tags: Vec<u32>,
    /// Only these numbers of jobs
    #[arg(long, value_delimiter = ',')]
    jobs: Vec<u32>,
    /// Only this device, as named in the rows
    #[arg(long)]
    device: Option<String>,
    /// Only these cases, as named in the rows (fairness)
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// Only rows in virtual time, not those over NBD (seed-000, fairness) or on threads (seed-001)
    #[arg(long, conflicts_with = "live_only")]
    virtual_only: bool,
    /// Only rows over NBD or on threads
    #[arg(long)]
    live_only: bool,
    #[command(flatten)]
    output: OutputArgs,
}

fn policy(name: &str) -> Result<TagPolicy, String> {
    let found = TagPolicy::ALL.into_iter().find(|policy| policy.name() == name);
    found.ok_or_else(|| "expected fair, legacy518 or kuai_v3".into())
}

impl TableArgs {
    /// Runs the experiment and prints the report.
    pub fn run(self, name: ExperimentName) -> ExitCode {
        if let Some(option) = self.given().into_iter().find(|given| !name.options().contains(given))
        {
            complain(refused(option, name.options()));
            return ExitCode::from(USAGE);
        }
        let Self { seed, policy: policies, tags, jobs, device, case: cases, output, .. } = self;
        let kind = match (self.virtual_only, self.live_only) {
            (true, _) => RowKind::Virtual,
            (_, true) => RowKind::Live,
            _ => RowKind::All,
        };
        let seed = seed.unwrap_or(1);
        let usual = RowFilter::default();
        let filter = RowFilter { seed, policies, tags, jobs, device, cases, kind, ..usual };
        let report = match experiment::run(name, &filter) {
            Ok(report) => report,
            Err(error) => {
                complain(error);
                return ExitCode::from(USAGE);
            }
        };
        if report.rows.is_empty() {
            complain("the options select no row of the experiment");
            return ExitCode::from(USAGE);
        }
        if let Some(option) = filter.without_effect().first() {
            complain(format!("no row of the experiment has {option}"));
            return ExitCode::from(USAGE);
        }
        output.end(&report)
    }

    /// The options that were given, of those that select rows.
    fn given(&self) -> Vec<&'static str> {
        let options = [
            ("seed", self.seed.is_some()),
            ("policy", !self.policy.is_empty()),
            ("tags", !self.tags.is_empty()),
            ("jobs", !self.jobs.is_empty()),
            ("device", self.device.is_some()),
            ("case", !self.case.is_empty()),
        ];
        options.into_iter().filter(|&(_, given)| given).map(|(name, _)| name).collect()
    }
}

/// The error of an option that would do nothing.
fn refused(option: &str, options: &[&str]) -> String {
    let known: Vec<String> = options.iter().map(|name| format!("--{name}")).collect();
    match known.is_empty() {
        true => format!("--{option} selects nothing: the experiment has one set of rows"),
        false => format!("--{option} selects nothing here; expected {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_that_does_nothing_is_refused_with_those_that_do() {
        let text = refused("device", ExperimentName::Seed004.options());
        assert_eq!(text, "--device selects nothing: the experiment has one set of rows");
        let text = refused("case", ExperimentName::Seed001.options());
        assert_eq!(text, "--case selects nothing here; expected --seed, --jobs, --device");
    }
}
