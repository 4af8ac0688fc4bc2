//! `headworks-lab run seed-003`: bookkeeping per MiB with small and with large folios; `headworks-lab run seed-003-jobs`: the seed's job on
//! real threads, here and in the kernel.
//!
//! Exit codes: 0 all goals met or missed as known, 1 a goal missed, 2 invalid options.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::cached::jobs;
use crate::seed003 as experiment;
use clap::Args;
use headworks_server::{parse_size, parse_time};

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

/// Options of `headworks-lab run seed-003-jobs`.
#[derive(Args)]
#[command(after_help = "\
Files and block devices that are named with --beside are OVERWRITTEN. benches/cache-vs-kernel.sh --jobs makes them.

Examples:
  headworks-lab run seed-003-jobs
  headworks-lab run seed-003-jobs --beside ext4=/mnt --beside loop=/dev/loop0,/dev/loop1,/dev/loop2,/dev/loop3")]
pub struct JobsArgs {
    /// Bytes of the four volumes together
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Jobs of each volume, a thread each
    #[arg(long, default_value_t = 252, value_parser = clap::value_parser!(u32).range(1..=252))]
    jobs: u32,
    /// Owners of our four volumes: 1, 2 or 4
    #[arg(long, default_value_t = 4)]
    owners: usize,
    /// Bytes that a trim discards beside readers
    #[arg(long, default_value = "2G", value_parser = parse_size)]
    trim: u64,
    /// Runs of each row
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Time of a run
    #[arg(long, default_value = "1500ms", value_parser = parse_time, value_name = "TIME")]
    runtime: u64,
    /// Seed of the random blocks
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A folder of a file system, or a block device for each volume, for comparison, through the kernel's page cache; overwritten
    #[arg(long, value_name = "NAME=PATH[,PATH...]", value_parser = beside)]
    beside: Vec<(String, Vec<PathBuf>)>,
    /// Only these cases: mixes, trim
    #[arg(long, value_delimiter = ',', value_parser = ["mixes", "trim"])]
    case: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

fn beside(text: &str) -> Result<(String, Vec<PathBuf>), String> {
    match text.split_once('=') {
        Some((name, paths)) if !name.is_empty() && !paths.is_empty() => {
            Ok((name.into(), paths.split(',').map(PathBuf::from).collect()))
        }
        _ => Err("expected NAME=PATH or NAME=PATH,PATH...".into()),
    }
}

impl JobsArgs {
    /// Runs the measurement and prints the report.
    pub fn run(self) -> ExitCode {
        let options = jobs::JobsOptions {
            size: self.size,
            jobs: self.jobs,
            owners: self.owners,
            trim: self.trim,
            rounds: self.rounds,
            runtime: Duration::from_nanos(self.runtime),
            seed: self.seed,
            beside: self.beside,
            cases: self.case,
        };
        match jobs::run(&options) {
            Ok(report) => self.output.end(&report),
            Err(error) => {
                complain(error);
                ExitCode::FAILURE
            }
        }
    }
}
