//! `headworks-lab list`: the experiments, a line each, and roughly how long each one runs.
//!
//! What an experiment is stands in the description of the command line; only its time is written here. Times are rough, those of a release
//! build on two cores that are shared with other work, with default options, rounded up.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, Command};

/// What the experiments named seed-... are.
pub const SEEDS: &str = "\
The five seeds, seed-000 to seed-004, are five threads of the kernel's mailing lists, patch series with measurements, with which the
project began: tag allocation, dispatch in batches, dirty throttling, large folios, plugging. Each experiment runs the old policies beside
that of Headworks and compares with the numbers of its thread. Another kind of seed is that of a random scenario (--seed): the number
from which it is drawn. `headworks lab list` says how long each experiment takes.";

/// Seconds of the experiments that take longer than [`SHORT`].
const LONG: &[(&str, u64)] = &[
    ("seed-000", 120),
    ("seed-001", 150),
    ("seed-002", 300),
    ("seed-002-cpu", 300),
    ("seed-003", 100),
    ("seed-003-cpu", 60),
    ("seed-003-jobs", 180),
    ("seed-004", 15),
    ("fairness", 660),
    ("bfq", 180),
    ("bfq-linux", 600),
    ("dirty-shares", 30),
    ("cached", 30),
    ("smoke", 60),
    ("crash", 1200),
    ("remote", 60),
    ("joints", 30),
    ("front", 60),
    ("null", 20),
];
/// Runs of at most so many seconds say nothing of their time.
const SHORT: u64 = 10;

/// Lists the experiments, a line each.
#[derive(Args)]
pub struct ListArgs {}

/// Roughly how long an experiment runs with default options, in seconds.
fn seconds(name: &str) -> u64 {
    LONG.iter().find(|(known, _)| *known == name).map_or(SHORT, |(_, seconds)| *seconds)
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..=SHORT => "seconds".to_owned(),
        11..=60 => format!("{seconds} s"),
        _ => format!("{} min", seconds.div_ceil(60)),
    }
}

/// Says at the start how long an experiment takes with default options, if that is long; `given` seconds are those of its options.
pub fn say_time(name: &str, given: Option<u64>) {
    let seconds_of = given.unwrap_or_else(|| seconds(name));
    if seconds_of > SHORT {
        let of = if given.is_some() { "" } else { " with default options" };
        let line = format!("headworks-lab: {name} takes about {}{of}", duration(seconds_of));
        // A closed standard error does not change how the command ends.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// Prints the experiments of the command line.
pub fn list(cli: &Command) -> ExitCode {
    // A closed standard output does not change how the command ends.
    let _ = std::io::stdout().write_all(table(cli).as_bytes());
    ExitCode::SUCCESS
}

fn table(cli: &Command) -> String {
    let run = cli.find_subcommand("run").into_iter().flat_map(Command::get_subcommands);
    let mut text = String::new();
    for one in run.filter(|one| !one.is_hide_set()) {
        let (name, about) = (one.get_name(), one.get_about().map(ToString::to_string));
        let (about, time) = (about.unwrap_or_default(), duration(seconds(name)));
        text += &format!("{name:14} {time:8} {about}\n");
    }
    text + "\n" + SEEDS + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_experiment_has_a_line_and_every_time_an_experiment() {
        let cli = crate::cli::Cli::command();
        let text = table(&cli);
        let run = cli.find_subcommand("run").unwrap();
        for one in run.get_subcommands() {
            let is_listed = text.lines().any(|line| line.split(' ').next() == Some(one.get_name()));
            assert_eq!(is_listed, !one.is_hide_set(), "{}", one.get_name());
        }
        for (name, seconds) in LONG {
            assert!(run.find_subcommand(name).is_some() && *seconds > SHORT, "{name}");
        }
        assert!(text.contains("smoke          60 s     Random simulated worlds"), "{text}");
    }
}
