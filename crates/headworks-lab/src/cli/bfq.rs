//! `headworks-lab run bfq`.
//!
//! Exit codes: 0 all goals met or missed as known, 1 a goal missed, 2 invalid options or no selected row.

use std::process::ExitCode;

use crate::bfq::{self, BfqFilter};
use crate::report::Report;
use clap::Args;
use headworks_core::{ConfigError, Scheduler, Tunable};

use crate::cli::output::OutputArgs;
use crate::cli::{USAGE, allocations, complain};

/// Options of `headworks-lab run bfq`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks-lab run bfq --case E1,E5 --device hdd-32
  headworks-lab run bfq --case soft-readers-d4 --scheduler mq-deadline --json")]
pub struct BfqArgs {
    /// Seed of the clients' random offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these cases, as named in the rows, or all cases of an experiment: E1 to E6, E8 to E11, E15
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// Only these disks: hdd-32, hdd-5400, hdd-10k, sata, sata-qlc, nvme, null
    #[arg(long, value_delimiter = ',')]
    device: Vec<String>,
    /// Only these elevators
    #[arg(long, value_delimiter = ',', value_parser = scheduler)]
    scheduler: Vec<Scheduler>,
    /// Tunables of bfq instead of their defaults, as `iosched/low_latency=0`
    #[arg(long, value_name = "NAME=VALUE", value_parser = tunable)]
    set: Vec<(Tunable, u64)>,
    /// Run 1000 exports for 10 s, and 100 exports on a disk for 600 s
    #[arg(long)]
    long: bool,
    /// Measure each case for so many seconds of virtual time
    #[arg(long, conflicts_with = "long", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Only rows in virtual time, not the CPU time of an I/O (E15)
    #[arg(long, conflicts_with = "live_only")]
    virtual_only: bool,
    /// Only the CPU time of an I/O
    #[arg(long)]
    live_only: bool,
    #[command(flatten)]
    output: OutputArgs,
}

fn scheduler(name: &str) -> Result<Scheduler, String> {
    let found = Scheduler::ALL.into_iter().find(|scheduler| scheduler.name() == name);
    found.ok_or_else(|| format!("expected one of {}", Scheduler::NAMES.join(", ")))
}

fn tunable(text: &str) -> Result<(Tunable, u64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let found = Tunable::ALL.into_iter().find(|tunable| tunable.name() == name);
    let tunable = found.ok_or_else(|| format!("there is no tunable {name}"))?;
    Ok((tunable, tunable.parse(value).map_err(|error| error.to_string())?))
}

impl BfqArgs {
    /// Runs the experiment and prints the report.
    pub fn run(self) -> ExitCode {
        let Self { seed, case, device, scheduler, set, .. } = self;
        let Self { long, seconds, virtual_only, live_only, output, .. } = self;
        let filter = BfqFilter {
            seed,
            cases: case,
            devices: device,
            schedulers: scheduler,
            long,
            ms: seconds.map(|seconds| seconds * 1000),
            tunables: set,
        };
        let run = || {
            let mut report = Report::default();
            if !live_only {
                report.append(bfq::run(&filter)?);
            }
            if !virtual_only {
                report.append(bfq::cpu::run(&filter, allocations::count)?);
            }
            Ok::<_, ConfigError>(report)
        };
        let report = match run() {
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
        output.end(&report)
    }
}
