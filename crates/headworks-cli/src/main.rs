//! The `headworks` command: a server of disk images over NBD, and the tools to control and measure it.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod beside;
mod columns;
mod crashtest;
mod ctl;
mod describe;
mod dir;
mod disks;
mod durability;
mod flock;
mod image;
mod info;
mod known_words;
mod log;
mod observe;
mod progress;
mod serve;
mod signals;
mod top;
#[cfg(test)]
mod value_words_tests;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use headworks_program::bench::BenchArgs;
use headworks_program::{USAGE, complain, complain_in_lines, shown, tunables, value_words};
use std::ffi::OsString;
use std::process::ExitCode;

/// Block I/O path in user space: an NBD server with a page cache, I/O schedulers and fair shares between its clients
#[derive(Parser)]
#[command(name = "headworks", version, propagate_version = true, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves disk images over NBD
    Serve(Box<serve::ServeArgs>),
    /// Checks a configuration file: prints what would be served, or every error with its position
    Check(serve::check::CheckArgs),
    /// Measures a device in this process, or an NBD server
    Bench(Box<BenchArgs>),
    /// Makes overlays (disks on a shared base), and commits, flattens and resets those that are not served
    Image(image::ImageArgs),
    /// Runs a program on a served disk, cuts the power again and again, and checks what is left
    Crashtest(Box<crashtest::CrashtestArgs>),
    /// Runs a program in a directory that takes the time of a modelled disk
    Dir(Box<dir::DirArgs>),
    /// Lists the modelled disks of model:, or prints one as a file
    Disks(disks::DisksArgs),
    /// Controls a running server through its control socket
    Ctl(ctl::CtlArgs),
    /// Shows live rates and latencies of a running server, one row per export
    Top(top::TopArgs),
    /// Shows the exports of an NBD server and what they support
    Info(info::InfoArgs),
    /// Runs experiments in virtual time, on modelled disks (headworks-lab)
    Lab(beside::LabArgs),
    /// Prints a completion script for a shell
    Completions(describe::completions::CompletionsArgs),
    /// Lists the manual pages, or writes them to a directory
    Man(describe::man::ManArgs),
}

/// The description of the whole command line.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommand("serve", serve::switches)
}

fn main() -> ExitCode {
    headworks_program::begin();
    let mut words = std::env::args_os().skip(1);
    // Parts of `serve` and of the completion scripts, not commands for users.
    match words.next() {
        Some(word) if word == serve::SPAWNER_COMMAND => return serve::run_spawner(words),
        Some(word) if word == serve::MOUNTS_COMMAND => return serve::run_mounts(words),
        Some(word) if word == ctl::names::COMMAND => {
            return with_ctl_commands(|commands| ctl::names::run(words, commands));
        }
        _ => {}
    }
    let matches = command().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    let serves = matches!(cli.command, Command::Serve(_));
    let code = match cli.command {
        Command::Serve(_) => serve::run(),
        Command::Check(options) => serve::check::run(&options),
        Command::Bench(_) => beside::bench(),
        Command::Crashtest(options) => crashtest::run(&options),
        Command::Dir(options) => dir::run(&options),
        Command::Disks(options) => disks::run(&options),
        Command::Ctl(options) => ctl::run(&options),
        Command::Image(options) => image::run(&options),
        Command::Info(options) => info::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Lab(options) => beside::lab(&options),
        Command::Completions(options) => describe::completions::run(&options, command()),
        Command::Man(options) => describe::man::run(&options, command()),
    };
    headworks_program::close_images();
    // A server has served, whatever became of its announcement.
    if serves { code } else { headworks_program::end(code) }
}

/// Calls a function with the names of the commands of `ctl`.
fn with_ctl_commands<T>(call: impl FnOnce(&[&str]) -> T) -> T {
    let command = command();
    let ctl = command.find_subcommand("ctl").into_iter();
    let names: Vec<&str> =
        ctl.flat_map(|ctl| ctl.get_subcommands()).map(|one| one.get_name()).collect();
    call(&names)
}

/// Explains an error of the command line, and prints help and version.
fn explain(error: &clap::Error) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let misspelled = with_ctl_commands(|commands| ctl::socket::misspelled(&words, commands));
    let sentence = misspelled.filter(|_| error.use_stderr());
    let sentence = sentence.or_else(|| renamed_command(error).map(str::to_owned));
    let sentence = sentence.or_else(|| option_of_another_server(error).map(str::to_owned));
    if let Some(sentence) = sentence {
        complain(sentence);
    } else if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let text = error.render().to_string();
        match command_of(&text) {
            // The list of its commands is longer than a screen, and would hide the error.
            Some(command) => {
                complain(format!("no command; `headworks {command} --help` lists them"))
            }
            None => {
                complain("no command; see `headworks --help`");
                shown::print_error(format_args!("\n{text}"));
            }
        }
    } else {
        return headworks_program::explain(error, &command());
    }
    ExitCode::from(USAGE)
}

/// The command whose help a text is; none of the program's own.
fn command_of(help: &str) -> Option<&str> {
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: headworks "))?;
    usage.split(' ').next().filter(|word| !word.starts_with(['[', '<']))
}

/// The message for a command that was renamed.
fn renamed_command(error: &clap::Error) -> Option<&'static str> {
    use clap::error::{ContextKind, ContextValue};
    // Behind a positional argument, clap reports an unknown command as an unexpected argument.
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(name)) if name == "acknowledge" => Some(
            "there is no command `acknowledge`; `ctl SOCKET discard-failed EXPORT` discards writes that could not be written out",
        ),
        _ => None,
    }
}

/// The answer to an option of another server.
fn option_of_another_server(error: &clap::Error) -> Option<&'static str> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let is_serve = || std::env::args_os().nth(1).is_some_and(|word| word == "serve");
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_unknown = error.kind() == ErrorKind::UnknownArgument && is_serve();
    serve::option_answer(name).filter(|_| is_unknown)
}

#[cfg(test)]
mod tests {
    use crate::*;

    #[test]
    fn command_without_its_command_is_one_line() {
        let help =
            |line: &[&str]| command().try_get_matches_from(line).unwrap_err().render().to_string();
        assert_eq!(command_of(&help(&["headworks", "ctl"])), Some("ctl"));
        assert_eq!(command_of(&help(&["headworks", "image"])), Some("image"));
        assert_eq!(command_of(&help(&["headworks"])), None);
    }

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
