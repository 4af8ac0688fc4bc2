//! The report of an experiment: printed, saved, and the exit code that its goals give.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::report::Report;
use clap::Args;

use crate::cli::complain;

/// Options of how a report is shown.
#[derive(Args)]
pub struct OutputArgs {
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Write the same JSON to this file, whatever is printed
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl OutputArgs {
    /// Prints and saves a report. The exit code is 1 if a goal is missed that is not known as
    /// missed, or if the file cannot be written.
    pub fn end(self, report: &Report) -> ExitCode {
        match self.json {
            true => print!("{}", report.to_json()),
            false => print!("{}", report.to_text()),
        }
        if let Some(path) = self.save
            && let Err(error) = fs::write(&path, report.to_json())
        {
            complain(format!("cannot write {}: {error}", path.display()));
            return ExitCode::FAILURE;
        }
        if report.passes() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
