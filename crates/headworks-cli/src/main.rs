//! The `headworks` command.

mod allocations;
mod bench;
mod bench_device;
mod bench_feeders;
mod bench_nbd;
mod completions;
mod ctl;
mod ctl_exports;
mod info;
mod lab;
mod log;
mod man;
mod durability;
mod progress;
mod observe;
mod serve;
mod signals;
mod top;
mod tunables;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::io::Write as _;
use std::process::ExitCode;

/// The block I/O path as a user-space server, library and laboratory.
#[derive(Parser)]
#[command(name = "headworks", version, about, propagate_version = true, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves disk images over NBD.
    Serve(Box<serve::Options>),
    /// Looks at a configuration file and says what would be served, or what is wrong.
    Check(serve::check::Options),
    /// Measures a device in process, or an NBD server.
    Bench(bench::Options),
    /// Looks at a running server and changes it, by its control socket.
    Ctl(ctl::Options),
    /// Shows what a running server does, a row for each export.
    Top(top::Options),
    /// Shows what an NBD server offers.
    Info(info::Options),
    /// Runs experiments in virtual time, over modelled disks, with headworks-lab.
    Lab(lab::Options),
    /// Prints what completes this command in a shell.
    Completions(completions::Options),
    /// Lists the manual pages, or writes them to a directory.
    Man(man::Options),
}

/// What the user got wrong, and nothing was done.
pub const USAGE: u8 = 2;

/// Says an error the way all commands do.
pub fn complain(error: impl std::fmt::Display) {
    // Nobody may be reading: no reason to end in another way than was meant.
    let _ = writeln!(std::io::stderr(), "headworks: error: {error}");
}

/// Everything that the command line knows.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommand("serve", serve::switches)
}

fn main() -> ExitCode {
    let matches = command().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    match cli.command {
        Command::Serve(_) => serve::run(),
        Command::Check(options) => serve::check::run(&options),
        Command::Bench(options) => bench::run(options),
        Command::Ctl(options) => ctl::run(&options),
        Command::Info(options) => info::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Lab(options) => lab::run(&options),
        Command::Completions(options) => completions::run(&options, command()),
        Command::Man(options) => man::run(&options, command()),
    }
}

/// Help and version go to standard output; what is wrong with the command line looks like every other error.
pub fn explain(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nobody may be reading.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        complain("no command; `headworks --help` says more\n");
        let _ = write!(std::io::stderr(), "{text}");
        return ExitCode::from(USAGE);
    }
    if let Some(new) = renamed_command(error) {
        complain(new);
        return ExitCode::from(USAGE);
    }
    complain(text.trim_end());
    ExitCode::from(USAGE)
}

/// What to type in place of a command that no longer exists under its old name.
fn renamed_command(error: &clap::Error) -> Option<&'static str> {
    use clap::error::{ContextKind, ContextValue};
    // An unknown word behind a positional argument is an argument to clap, not a command.
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(name)) if name == "acknowledge" => Some(
            "there is no command `acknowledge`; `ctl SOCKET discard-failed EXPORT` discards writes that could not be written out",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_name_of_discard_failed_names_the_new_one() {
        let ctl = |words: [&str; 2]| {
            let line = ["headworks", "ctl", "/run/hw.ctl"].into_iter().chain(words);
            command().try_get_matches_from(line)
        };
        let error = ctl(["acknowledge", "db"]).unwrap_err();
        assert!(renamed_command(&error).unwrap().contains("discard-failed"));
        assert_eq!(renamed_command(&ctl(["acknowledged", "db"]).unwrap_err()), None);
        assert!(ctl(["discard-failed", "db"]).is_ok());
    }
}
