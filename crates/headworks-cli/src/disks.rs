//! `headworks disks`: the modelled disks that `model:` knows by name, and what each of them is.
//!
//! What `show` prints is a file that `model:profile=FILE.toml` reads: the same disk, whose parameters can be changed.
//!
//! Exit codes: 0 printed, 2 there is no such disk.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use headworks_disks::NAMED;
use headworks_server::DiskDescription;

use crate::{USAGE, complain};

/// Lists the modelled disks of model:, or prints one as a file
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks disks                                       names, and where their figures are from
  headworks disks show hdd-7200 > mine.toml             a disk as a file, to be changed
  headworks serve model:profile=mine.toml,of=disk.img   served with it")]
pub struct DisksArgs {
    #[command(subcommand)]
    command: Option<DisksCommand>,
}

#[derive(Subcommand)]
enum DisksCommand {
    /// Prints a disk with all its parameters, as a file
    Show {
        /// Name of a disk, or FILE.toml, which is checked
        profile: String,
    },
}

/// Prints the list or a disk, and returns the exit code.
pub fn run(options: &DisksArgs) -> ExitCode {
    let Some(DisksCommand::Show { profile }) = &options.command else {
        let width = NAMED.iter().map(|named| named.name.len()).max().unwrap_or(0);
        for named in &NAMED {
            let kind = named.disk.kind();
            crate::shown::print_line!("{:width$}  {kind:7}  {}", named.name, named.source);
        }
        return ExitCode::SUCCESS;
    };
    match DiskDescription::find(profile) {
        Ok(found) => {
            crate::shown::print(found.to_text());
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(error);
            ExitCode::from(USAGE)
        }
    }
}
