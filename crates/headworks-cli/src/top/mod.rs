//! `headworks top SOCKET`: what a running server does, a row for each export.
//!
//! It asks the control socket for counters and shows what became of them (`rates`); on a terminal with keys (`screen`), else,
//! or with `--batch`, as lines.

mod rates;
mod screen;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headworks_server::units::parse_time;
use serde_json::json;

use crate::{complain, ctl};
use rates::{COLUMNS, Look, Row, cell};

/// Shows what a running server does, a row for each export.
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks top /run/hw.ctl                      a screen of rows; ? explains the columns
  headworks top /run/hw.ctl --batch 2            two tables: since the start, and of one second
  headworks top /run/hw.ctl --batch 1 --json     the same for programs

Columns are those of iostat -x: requests, sizes and times (ms) as clients see them, merges, discards, flushes, aqu-sz and
%util as the device's queue does; then plug, tag, sched and dev, what requests waited for in us (half of them at most, and
99 of 100). A device that others use, too, has one aqu-sz, %util and queue for all of them.")]
pub struct Options {
    /// The socket that the server was given with --control
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
    /// Look this often
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: u64,
    /// Print so many tables and end; the first is since the server's start
    #[arg(long, value_name = "N")]
    batch: Option<u32>,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// A server need not hear more than ten questions a second.
const INTERVAL_MIN: u64 = 100_000_000;

fn interval(text: &str) -> Result<u64, String> {
    // `1s` as people write it; the bare number is what all our times take.
    let bare = text.strip_suffix('s').filter(|rest| rest.parse::<f64>().is_ok()).unwrap_or(text);
    let ns = parse_time(bare)?;
    match ns {
        INTERVAL_MIN..=3_600_000_000_000 => Ok(ns),
        _ => Err(format!("{text} is not within 100ms..=3600 (seconds)")),
    }
}

/// From the command line to its exit code.
pub fn run(options: &Options) -> ExitCode {
    let socket = options.socket.clone();
    let ask = move |method: &str| ctl::ask(&socket, method, &json!({}));
    let look = move || {
        Ok(Look { stats: ask("stats")?, histograms: ask("histograms")?, disks: ask("diskstats")? })
    };
    let interval = Duration::from_nanos(options.interval);
    let plain = options.batch.is_some() || options.json || !std::io::stdout().is_terminal();
    let result = match plain {
        true => lines(look, interval, options),
        false => screen::run(look, interval),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

/// Tables one after the other; for ever if no number was given.
fn lines(
    mut look: impl FnMut() -> Result<Look, String>,
    interval: Duration,
    options: &Options,
) -> Result<(), String> {
    let mut old = Look::default();
    let mut count = 0;
    while options.batch.is_none_or(|most| count < most) {
        if count > 0 {
            std::thread::sleep(interval);
        }
        let new = look()?;
        let rows = rates::rows(&old, &new);
        let text = match options.json {
            true => format!("{}\n", rates::as_json(&rows)),
            false => table(&rows),
        };
        if std::io::stdout().write_all(text.as_bytes()).is_err() {
            // Nobody reads any longer.
            return Ok(());
        }
        (old, count) = (new, count + 1);
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let heads: String = COLUMNS.iter().map(|(name, _)| format!(" {name:>8}")).collect();
    let mut text = format!("{:<12}{heads}\n", "export");
    for row in rows {
        let cells: String =
            row.values.iter().map(|value| format!(" {:>8}", cell(*value))).collect();
        text += &format!("{:<12}{cells}\n", row.name);
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_cell_for_each_column() {
        let row = Row { name: "db".into(), values: vec![1.5; COLUMNS.len()] };
        let text = table(&[row]);
        let words: Vec<usize> = text.lines().map(|line| line.split_whitespace().count()).collect();
        assert_eq!(words, [COLUMNS.len() + 1, COLUMNS.len() + 1, 0]);
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("1s"), Ok(1_000_000_000));
        assert_eq!(interval("2"), Ok(2_000_000_000));
        assert_eq!(interval("250ms"), Ok(250_000_000));
        assert!(interval("0").unwrap_err().contains("100ms"));
        assert!(interval("10ms").is_err() && interval("x").is_err() && interval("2h").is_err());
    }
}
