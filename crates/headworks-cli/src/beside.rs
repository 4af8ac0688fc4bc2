//! `headworks bench` and `headworks lab`: each is a program of its own, which is run with the same arguments.
//!
//! The program is looked for beside this one, then in PATH. It replaces this process, so its exit code and signals are its own.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::{USAGE, complain};

/// Runs an experiment, or replays a record, with `headworks-lab`.
#[derive(Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct LabArgs {
    /// Arguments of `headworks-lab`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Runs an experiment; returns only when there is no such program.
pub fn lab(options: &LabArgs) -> ExitCode {
    become_program("headworks-lab", "make lab", "make install-lab", &options.arguments)
}

/// Runs a benchmark, whose arguments this program knows and has checked; returns only when there is no such program.
pub fn bench() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(2).collect();
    become_program("headworks-bench", "make build", "make install", &arguments)
}

/// Replaces this process.
fn become_program(name: &str, build: &str, install: &str, arguments: &[OsString]) -> ExitCode {
    let beside = env::current_exe().ok().map(|own| own.with_file_name(name));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name));
    let error = Command::new(program).args(arguments).exec();
    complain(match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{name} is neither beside this program nor in PATH; \
             `{build}` builds it and `{install}` installs it"
        ),
        _ => format!("cannot run {name}: {error}"),
    });
    ExitCode::from(USAGE)
}
