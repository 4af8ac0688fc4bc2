//! The `headworks` command.

mod bench_nbd;
mod info;
mod serve;
mod signals;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The block I/O path as a user-space server, library and laboratory.
#[derive(Parser)]
#[command(name = "headworks", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves disk images over NBD.
    Serve(serve::Options),
}

/// What the user got wrong, and nothing was done.
pub const USAGE: u8 = 2;

/// Says an error the way all commands do.
pub fn complain(error: impl std::fmt::Display) {
    eprintln!("headworks: error: {error}");
}

/// Messages go to standard error: warnings, with `-v` what clients do, with `-vv` everything.
pub fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::INFO,
        1 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(options) => serve::run(options),
    }
}
