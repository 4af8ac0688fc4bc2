//! `headworks lab ARGUMENTS`: runs `headworks-lab` with the same arguments.
//!
//! The program is looked for beside this one, then in PATH. It replaces this process, so its exit code and signals are its own.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::{USAGE, complain};

/// The program that has the experiments.
const PROGRAM: &str = "headworks-lab";

/// Runs an experiment, or replays a record, with `headworks-lab`.
#[derive(Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub struct LabArgs {
    /// Arguments of `headworks-lab`; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process; returns only when there is no such program.
pub fn run(options: &LabArgs) -> ExitCode {
    let beside = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    let error = match beside.filter(|path| path.is_file()) {
        Some(path) => exec(&path, &options.arguments),
        None => exec(Path::new(PROGRAM), &options.arguments),
    };
    complain(match error.kind() {
        io::ErrorKind::NotFound => format!(
            "{PROGRAM} is neither beside this program nor in PATH; \
             `make lab` builds it and `make install-lab` installs it"
        ),
        _ => format!("cannot run {PROGRAM}: {error}"),
    });
    ExitCode::from(USAGE)
}

fn exec(program: &Path, arguments: &[impl AsRef<OsStr>]) -> io::Error {
    Command::new(program).args(arguments).exec()
}
