//! `headworks-lab run seed-003`: bookkeeping per MiB with small and with large folios.
//!
//! Exit codes: 0 all goals met or missed as known, 1 a goal missed, 2 invalid options.

use std::process::ExitCode;

use crate::seed003 as experiment;
use clap::Args;

use crate::cli::output::OutputArgs;
use crate::cli::{USAGE, complain};

/// Options of `headworks-lab run seed-003`.
#[derive(Args)]
pub struct FolioArgs {
    /// Seed of the random offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Numbers of connections
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: Vec<u32>,
    /// Measured virtual seconds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    #[command(flatten)]
    output: OutputArgs,
}

impl FolioArgs {
    /// Runs the experiment and prints the report.
    pub fn run(self) -> ExitCode {
        let Self { seed, jobs, seconds, output } = self;
        let report = match experiment::run(&experiment::Seed003Options { seed, jobs, seconds }) {
            Ok(report) => report,
            Err(error) => {
                complain(error);
                return ExitCode::from(USAGE);
            }
        };
        output.end(&report)
    }
}
