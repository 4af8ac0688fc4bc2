//! `headworks-lab run cached`: cost of a call on cached blocks, here and in the kernel.
//!
//! Exit codes: 0 all goals met or missed as known, 1 a goal missed or a call failed, 2 invalid options.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::cached;
use clap::Args;
use headworks_server::parse_size;

use crate::cli::output::OutputArgs;
use crate::cli::{USAGE, complain};

/// Options of `headworks-lab run cached`.
#[derive(Args)]
#[command(after_help = "\
A file or block device that is named with --beside is OVERWRITTEN. Goals are known for the names xfs and loop;
benches/cache-vs-kernel.sh makes both.

Examples:
  headworks-lab run cached --size 1G --cpu 1
  headworks-lab run cached --beside xfs=/mnt/file --beside loop=/dev/loop0 --cpu 1")]
pub struct CachedArgs {
    /// Bytes of the set
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Runs of each job
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Calls in a run, of 4 KiB
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// The CPU to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// Seed of the random blocks
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A file or block device for comparison, through the kernel's page cache; it is overwritten
    #[arg(long, value_name = "NAME=PATH", value_parser = beside)]
    beside: Vec<(String, PathBuf)>,
    /// Only these jobs: read-4k, write-4k, read-64k, write-64k, lent-4k, lent-64k, lent-4k-read, lent-64k-read
    #[arg(long, value_delimiter = ',')]
    job: Vec<String>,
    /// Only these batches: 1, 4, 32
    #[arg(long, value_delimiter = ',')]
    batch: Vec<u32>,
    /// The largest folio of our cache, as a power of two of 4 KiB blocks
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(0..=9))]
    max_folio_order: u8,
    /// The cache's memory outlives the process, as a server's with --cache-file
    #[arg(long)]
    kept: bool,
    #[command(flatten)]
    output: OutputArgs,
}

fn beside(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.into(), path.into()))
        }
        _ => Err("expected NAME=PATH".into()),
    }
}

impl CachedArgs {
    /// Runs the measurement and prints the report.
    pub fn run(self) -> ExitCode {
        let options = cached::CachedOptions {
            size: self.size,
            rounds: self.rounds,
            calls: self.calls,
            cpu: self.cpu,
            seed: self.seed,
            beside: self.beside,
            jobs: self.job,
            batches: self.batch,
            max_folio_order: self.max_folio_order,
            kept: self.kept,
        };
        let report = match cached::run(&options) {
            Ok(report) => report,
            Err(error) => {
                complain(error);
                return ExitCode::FAILURE;
            }
        };
        if report.rows.is_empty() {
            complain("the options select no row of the experiment");
            return ExitCode::from(USAGE);
        }
        self.output.end(&report)
    }
}
