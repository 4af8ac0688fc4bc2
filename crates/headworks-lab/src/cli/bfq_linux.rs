//! `headworks-lab run bfq-linux`: the cases of bfq with the kernel's schedulers, and the processes of its clients.
//!
//! Exit codes: 0 all rows are complete, 1 the kernel or a client refused, 2 no selected row.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::bfq::disks::Disk;
use crate::bfq::linux::{self, LinuxClientOptions, LinuxOptions, SCHEDULERS};
use crate::report::Row;
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::cli::{USAGE, complain};

/// Options of `headworks-lab run bfq-linux`.
#[derive(Args)]
#[command(after_help = "\
The device is OVERWRITTEN. It must be a modelled disk as headworks serve model: serves it; benches/linux-bfq.sh makes one in a guest.
Rows are JSON, one a line, as those of `headworks-lab run bfq`.

Example:
  headworks-lab run bfq-linux --device /dev/nbd0 --case E1,E8 --scheduler bfq,mq-deadline --seconds 30")]
pub struct LinuxArgs {
    /// The block device; it is overwritten
    #[arg(long)]
    device: PathBuf,
    /// The modelled disk that it is
    #[arg(long, default_value = "hdd-32", value_parser = disk)]
    disk: Disk,
    /// Only these cases, as named in the rows, or all cases of an experiment
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// Schedulers of the kernel; none: clients alone
    #[arg(long, value_delimiter = ',', default_value = "none,mq-deadline,bfq", value_parser = PossibleValuesParser::new(SCHEDULERS))]
    scheduler: Vec<String>,
    /// Seed of the clients' random offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure each case for so many seconds
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
}

/// Finds a disk by its name.
fn disk(name: &str) -> Result<Disk, String> {
    let names = || Disk::ALL.map(Disk::name).join(", ");
    Disk::by_name(name).ok_or_else(|| format!("expected one of {}", names()))
}

impl LinuxArgs {
    /// Runs the rows and prints each.
    pub fn run(self) -> ExitCode {
        let options = LinuxOptions {
            device: self.device,
            disk: self.disk,
            cases: self.case,
            schedulers: self.scheduler,
            seed: self.seed,
            ms: self.seconds.map(|seconds| seconds * 1000),
        };
        match linux::run(&options, |row| println!("{}", row.to_json())) {
            Ok(report) if report.rows.is_empty() => {
                complain("the options select no row of the experiment");
                ExitCode::from(USAGE)
            }
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => {
                complain(error);
                ExitCode::FAILURE
            }
        }
    }
}

/// Options of the process of one client, which `run bfq-linux` starts.
#[derive(Args)]
pub struct LinuxClientArgs {
    #[arg(long)]
    device: PathBuf,
    #[arg(long, value_parser = disk)]
    disk: Disk,
    #[arg(long)]
    case: String,
    #[arg(long)]
    part: String,
    #[arg(long)]
    number: u32,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    ms: u64,
    #[arg(long)]
    epoch_ns: u64,
    #[arg(long)]
    group: PathBuf,
}

impl LinuxClientArgs {
    /// Runs the client and prints its counts.
    pub fn run(self) -> ExitCode {
        let Self { device, disk, case, part, number, seed, ms, epoch_ns, group } = self;
        let options =
            LinuxClientOptions { device, disk, case, part, number, seed, ms, epoch_ns, group };
        let row: Row = match linux::run_client(&options) {
            Ok(row) => row,
            Err(error) => {
                complain(error);
                return ExitCode::FAILURE;
            }
        };
        println!("{}", row.to_json());
        ExitCode::SUCCESS
    }
}
