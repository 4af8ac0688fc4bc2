//! `headworks-lab serve-disk`.
//!
//! Exit codes: 0 with --once after the last client, 1 the socket cannot be used, 2 invalid options.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::serve_disk::{DEPTH_MAX, Disk, DiskServer, ServeDiskOptions};
use clap::Args;
use headworks_server::parse_size;

use crate::cli::complain;

/// Options of `headworks-lab serve-disk`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks-lab serve-disk --disk hdd-32 -U /tmp/disk
  nbdcopy /tmp/image 'nbd+unix:///?socket=/tmp/disk'       (with --keep 1G)
  nbd-client -unix /tmp/disk /dev/nbd0")]
pub struct ServeDiskArgs {
    /// The modelled disk: hdd-32, hdd-5400, hdd-10k, sata, sata-qlc, nvme
    #[arg(long, default_value = "hdd-32", value_parser = disk)]
    disk: Disk,
    /// Path of the unix socket; it must not exist
    #[arg(short = 'U', long, value_name = "PATH")]
    unix: PathBuf,
    /// Most commands in the disk at once; clients wait beyond
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    depth: u32,
    /// Bytes of written data kept in memory, beyond which writes fail; 0: reads are zeros and writes are dropped
    #[arg(long, default_value = "0", value_parser = parse_size)]
    keep: u64,
    /// End when the last client has left, and print what was served
    #[arg(long)]
    once: bool,
}

/// Finds a disk by its name.
pub fn disk(name: &str) -> Result<Disk, String> {
    let names = || Disk::ALL.map(Disk::name).join(", ");
    Disk::by_name(name).ok_or_else(|| format!("expected one of {}", names()))
}

impl ServeDiskArgs {
    /// Serves the disk and prints what was served.
    pub fn run(self) -> ExitCode {
        let Self { disk, unix, depth, keep, once } = self;
        let options = ServeDiskOptions { disk, socket: unix.clone(), depth, keep, once };
        match DiskServer::new(&options).and_then(DiskServer::run) {
            Ok(served) => {
                println!("{served}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                complain(format!("cannot serve at {}: {error}", unix.display()));
                ExitCode::FAILURE
            }
        }
    }
}
