//! `headworks-lab run seed-000 | seed-001 | seed-004 | fairness`: which rows, and how they are told.
//!
//! Exit codes: 0 every goal met, 1 one missed, 2 nothing to run.

use std::process::ExitCode;

use clap::Args;
use headworks_lab::baseline::TagPolicy;
use headworks_lab::experiment::{self, ExperimentName, RowFilter, RowKind};

use crate::{USAGE, complain};

/// Which rows of an experiment.
#[derive(Args)]
pub struct TableArgs {
    /// Of the workload and of the modelled delays
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these tag policies: fair, legacy518, kuai_v3
    #[arg(long, value_delimiter = ',', value_parser = policy)]
    policy: Vec<TagPolicy>,
    /// Only these numbers of tags
    #[arg(long, value_delimiter = ',')]
    tags: Vec<u32>,
    /// Only these numbers of jobs
    #[arg(long, value_delimiter = ',')]
    jobs: Vec<u32>,
    /// Only this device, as the rows name it
    #[arg(long)]
    device: Option<String>,
    /// Only what runs in virtual time, not what runs for real: over NBD (seed-000, fairness), on threads (seed-001)
    #[arg(long, conflicts_with = "live_only")]
    virtual_only: bool,
    /// Only what runs for real
    #[arg(long)]
    live_only: bool,
    /// JSON objects, one a line
    #[arg(long)]
    json: bool,
}

fn policy(name: &str) -> Result<TagPolicy, String> {
    let found = TagPolicy::ALL.into_iter().find(|policy| policy.name() == name);
    found.ok_or_else(|| "there are fair, legacy518 and kuai_v3".into())
}

impl TableArgs {
    /// Runs the experiment and tells it.
    pub fn run(self, name: ExperimentName) -> ExitCode {
        let Self { seed, policy: policies, tags, jobs, device, json, .. } = self;
        let kind = match (self.virtual_only, self.live_only) {
            (true, _) => RowKind::Virtual,
            (_, true) => RowKind::Live,
            _ => RowKind::All,
        };
        let filter = RowFilter { seed, policies, tags, jobs, device, kind };
        let report = match experiment::run(name, &filter) {
            Ok(report) => report,
            Err(error) => {
                complain(error);
                return ExitCode::from(USAGE);
            }
        };
        if report.rows.is_empty() {
            complain("no row of the experiment is like that");
            return ExitCode::from(USAGE);
        }
        match json {
            true => print!("{}", report.to_json()),
            false => print!("{}", report.to_text()),
        }
        if report.is_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
