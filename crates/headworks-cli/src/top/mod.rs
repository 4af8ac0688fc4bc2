//! `headworks top [SOCKET]`: live rates of a running server, one row per export.
//!
//! Counters come from the control socket; `rates` turns two samples into rows, `screen` shows them on a terminal. With
//! `--batch` or without a terminal the rows are printed as text.

mod overview;
mod rates;
mod screen;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headworks_control::methods;
use headworks_control::param::LookBack;
use headworks_server::parse_time;

use crate::complain;
use crate::ctl::call;
use crate::ctl::socket;
use rates::{COLUMNS, Row, Sample, cell};

/// Shows live rates and latencies of a running server, one row per export
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks top                                  the service headworks@main; SOCKET as for headworks ctl
  headworks top /run/hw.ctl                      live table; ? explains the columns
  headworks top /run/hw.ctl --batch 2            two tables: since the start, and over one second
  headworks top /run/hw.ctl --batch 2 --wide     the same with all columns
  headworks top /run/hw.ctl --batch 1 --json     the same as JSON

The table has the load of each export, its 99th percentile, the stage in which its requests spend most time, and how many requests it
has in its device; times are in ms. Below it is the worst export of the last ten seconds, as `headworks ctl why` says it. The wide columns (x) are those of iostat -x. Requests, sizes and latencies are those of clients;
merges, discards, flushes, aqu-sz and %util those of the device queue. limit, plug, tag, sched and dev are stage times (median and
99th percentile). Exports that share a device have the same aqu-sz, %util and queue.")]
pub struct TopArgs {
    #[arg(value_name = "SOCKET", help = socket::HELP)]
    socket: Option<PathBuf>,
    /// Time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: u64,
    /// Print this many tables and exit; the first covers the time since the server's start
    #[arg(long, value_name = "N")]
    batch: Option<u32>,
    /// All columns of the text tables, as JSON has them
    #[arg(long)]
    wide: bool,
    /// Print one JSON object per sample instead of a table
    #[arg(long)]
    json: bool,
}

/// Shortest interval, in nanoseconds: at most ten samples per second.
const INTERVAL_MIN: u64 = 100_000_000;

fn interval(text: &str) -> Result<u64, String> {
    // `1s` is common; parse_time takes the bare number.
    let bare = text.strip_suffix('s').filter(|rest| rest.parse::<f64>().is_ok()).unwrap_or(text);
    let ns = parse_time(bare)?;
    match ns {
        INTERVAL_MIN..=3_600_000_000_000 => Ok(ns),
        _ => Err(format!("{text} is not within 100ms..=3600 (seconds)")),
    }
}

/// Shows the tables or the screen and returns the exit code.
pub fn run(options: &TopArgs) -> ExitCode {
    let socket = socket::find(options.socket.as_deref());
    let worst = methods::Why { seconds: LookBack(Some(10)), ..methods::Why::default() };
    let sample = move || {
        Ok(Sample {
            stats: call(&socket, &methods::Stats {})?,
            histograms: call(&socket, &methods::Histograms { export: None })?,
            disks: call(&socket, &methods::Diskstats {})?,
            exports: call(&socket, &methods::Exports {})?,
            // It fails while the export that it is about is removed, and on older servers: the rest is shown.
            why: call(&socket, &worst).ok(),
        })
    };
    let interval = Duration::from_nanos(options.interval);
    let plain = options.batch.is_some() || options.json || !std::io::stdout().is_terminal();
    let result = match plain {
        true => lines(sample, interval, options),
        false => screen::run(sample, interval),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

/// Prints tables; without end if no number was given.
fn lines(
    mut sample: impl FnMut() -> Result<Sample, String>,
    interval: Duration,
    options: &TopArgs,
) -> Result<(), String> {
    let mut old = Sample::default();
    let mut count = 0;
    while options.batch.is_none_or(|most| count < most) {
        if count > 0 {
            std::thread::sleep(interval);
        }
        let new = sample()?;
        let rows = rates::rows(&old, &new);
        let text = match options.json {
            true => format!("{}\n", rates::as_json(&rows)),
            false if options.wide => with_worst(table(&rows), &new),
            false => with_worst(overview::table(&overview::overviews(&old, &new)), &new),
        };
        if !crate::shown::note(std::io::stdout().write_all(text.as_bytes())) {
            // The reader is gone.
            return Ok(());
        }
        (old, count) = (new, count + 1);
    }
    Ok(())
}

/// A table, the line about the worst export of the last seconds, and an empty line.
fn with_worst(mut table: String, sample: &Sample) -> String {
    let worst = overview::worst_line(sample);
    if !worst.is_empty() {
        table += &format!("{worst}\n");
    }
    table + "\n"
}

fn table(rows: &[Row]) -> String {
    let heads: String = COLUMNS.iter().map(|(name, _)| format!(" {name:>8}")).collect();
    // Without tenants no column is spent on them.
    let tenants = rows.iter().filter_map(|row| row.tenant.as_deref()).map(str::len).max();
    let width = tenants.map_or(0, |longest| longest.max(6) + 1);
    let tenant = |name: &str| match width {
        0 => String::new(),
        width => format!(" {name:<0$}", width - 1),
    };
    let mut text = format!("{:<12}{}{heads}\n", "export", tenant("tenant"));
    for row in rows {
        let cells: String =
            row.values.iter().map(|value| format!(" {:>8}", cell(*value))).collect();
        let tenant = tenant(row.tenant.as_deref().unwrap_or("-"));
        text += &format!("{:<12}{tenant}{cells}\n", row.name);
    }
    text
}

/// What `top` prints of answers.
#[cfg(test)]
pub mod testing {
    use super::overview::{overviews, server_line, table, worst_line};
    use super::rates::{Sample, as_json, rows};
    use crate::ctl::read;
    use serde_json::Value;

    /// The tables since the start, of the answers of `stats`, `histograms`, `diskstats`, `exports` and `why`.
    pub fn shown([stats, histograms, disks, exports, why]: [Value; 5]) -> String {
        let new = Sample {
            stats: read(&stats).unwrap(),
            histograms: read(&histograms).unwrap(),
            disks: read(&disks).unwrap(),
            exports: read(&exports).unwrap(),
            why: read(&why).unwrap(),
        };
        let old = Sample::default();
        let rows = rows(&old, &new);
        let lines = [
            server_line(&new, &[], 80),
            worst_line(&new),
            table(&overviews(&old, &new)),
            format!("{:#}", as_json(&rows)),
        ];
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_a_cell_for_each_column() {
        let row = |tenant: Option<&str>| Row {
            name: "db".into(),
            tenant: tenant.map(str::to_owned),
            values: vec![1.5; COLUMNS.len()],
        };
        let words = |rows: &[Row]| -> Vec<usize> {
            table(rows).lines().map(|line| line.split_whitespace().count()).collect()
        };
        let count = COLUMNS.len() + 1;
        assert_eq!(words(&[row(None)]), [count, count]);
        // With tenants they have a column.
        assert_eq!(words(&[row(None), row(Some("acme"))]), [count + 1, count + 1, count + 1]);
    }

    #[test]
    fn line_about_the_worst_follows_each_text_table() {
        let why = serde_json::json!({ "slow": true, "findings": ["bad: 15 of 60 writes failed"] });
        let failing = Sample { why: serde_json::from_value(why).unwrap(), ..Sample::default() };
        assert_eq!(with_worst("rows\n".into(), &failing), "rows\nbad: 15 of 60 writes failed\n\n");
        assert_eq!(with_worst("rows\n".into(), &Sample::default()), "rows\n\n", "an older server");
    }

    #[test]
    fn interval_is_limited() {
        assert_eq!(interval("1s"), Ok(1_000_000_000));
        assert_eq!(interval("2"), Ok(2_000_000_000));
        assert_eq!(interval("250ms"), Ok(250_000_000));
        assert!(interval("0").unwrap_err().contains("100ms"));
        assert!(interval("10ms").is_err() && interval("x").is_err() && interval("2h").is_err());
    }
}
