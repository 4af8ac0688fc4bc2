//! The `headworks-lab` command: experiments, random simulated worlds, and the replay of a server's record.
//!
//! `headworks lab ARGUMENTS` runs this program with the same arguments. The server's binary links none of it.

pub mod allocations;
mod bfq;
mod bfq_linux;
mod cached;
mod fit_hdd;
mod front;
mod generate;
mod handle;
mod joints;
mod list;
mod output;
mod receive_path;
mod remote;
mod replay;
mod run;
mod seed002;
mod seed003;
mod tables;
mod vhost_kill;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// Experiments with the block I/O path, in virtual time over modelled disks and on real threads.
#[derive(Parser)]
#[command(name = "headworks-lab", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs an experiment
    #[command(subcommand, after_help = list::SEEDS)]
    Run(Box<run::Experiment>),
    /// Lists the experiments, and roughly how long each one runs
    List(list::ListArgs),
    /// Feeds a record of `headworks serve --record` to a new shard and compares the hash of its actions
    Replay(replay::ReplayArgs),
    /// Prints the completion script of this command for a shell
    Completions(generate::CompletionArgs),
    /// Lists the manual pages of this command, or writes them to a directory
    Man(generate::ManArgs),
}

/// Exit code of a usage error: nothing was run.
const USAGE: u8 = 2;

/// Prints an error to standard error, in the form of all Headworks commands.
fn complain(error: impl std::fmt::Display) {
    // A closed standard error does not change how the command ends.
    let _ = writeln!(std::io::stderr(), "headworks-lab: error: {error}");
}

/// Runs the command that the process was started with, and returns its exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    match cli.command {
        Command::Run(experiment) => run::run(*experiment),
        Command::List(_) => list::list(&Cli::command()),
        Command::Replay(options) => replay::replay(&options),
        Command::Completions(options) => generate::completions(&options, Cli::command()),
        Command::Man(options) => generate::man(&options, Cli::command()),
    }
}

/// Prints help and version to standard output; a usage error looks like every other error.
fn explain(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed standard output does not change how the command ends.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        complain("no command; `headworks-lab --help` lists them\n");
        let _ = write!(std::io::stderr(), "{text}");
        return ExitCode::from(USAGE);
    }
    complain(text.trim_end());
    ExitCode::from(USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_description_is_valid() {
        Cli::command().debug_assert();
    }
}
