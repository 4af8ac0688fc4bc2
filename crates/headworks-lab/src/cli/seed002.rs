//! `headworks-lab run seed-002`: selection of runs, report, charts and trace events.
//!
//! Exit codes: 0 all goals met or missed as known, 1 a goal missed or a file not written, 2 invalid options.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::baseline::foreground::Throttling;
use crate::seed002::{self as experiment, CaseOutcome, CasePoint, ThrottleCase, pictures};
use clap::Args;
use headworks_server::{parse_size, parse_time};

use crate::cli::output::OutputArgs;
use crate::cli::{USAGE, complain};

/// Options of `headworks-lab run seed-002`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks-lab run seed-002                                    every case; a minute or two
  headworks-lab run seed-002 --case scaling --svg pictures      the seed's table, and pictures of each run
  headworks-lab run seed-002 --case bandwidth --writers 100 --csv events.csv
  headworks-lab run seed-002 --case scaling --bw 3G --pool 256M --writers 1,1000 --throttle ioless,foreground

Cases: scaling, grid, disk, files, two, bandwidth, writers, small-writes, cold, exit, bursts, stalls,
reconnect-50ms, reconnect-100ms, reconnect-1s, overwrites, streams.
Bandwidths are in powers of 1000 a second (700M, 3G), sizes in powers of 1024.")]
pub struct ThrottlingArgs {
    /// Seed of offsets and wake-ups
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these cases
    #[arg(long, value_delimiter = ',', value_parser = case)]
    case: Vec<ThrottleCase>,
    /// Only these policies: ioless, foreground, none
    #[arg(long, value_delimiter = ',', value_parser = throttle)]
    throttle: Vec<Throttling>,
    /// Numbers of writers instead of the case's own
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    writers: Vec<u32>,
    /// Bandwidths instead of the case's own
    #[arg(long, value_delimiter = ',', value_parser = bandwidth)]
    bw: Vec<u64>,
    /// Cache sizes instead of the case's own
    #[arg(long, value_delimiter = ',', value_parser = pool)]
    pool: Vec<u64>,
    /// Measured virtual seconds; more where a writer makes fewer than forty writes in them
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// Bytes of a write
    #[arg(long, default_value = "64K", value_parser = write_bytes)]
    write: u32,
    /// Cost of a stream change
    #[arg(long, value_parser = parse_time)]
    switch: Option<u64>,
    /// Write charts to this directory: each run over time, and the table of `scaling` over the
    /// number of writers
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the throttle's trace events to this file, with the fields of Linux
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

fn case(name: &str) -> Result<ThrottleCase, String> {
    let names = || ThrottleCase::ALL.map(ThrottleCase::name).join(", ");
    ThrottleCase::parse(name).ok_or_else(|| format!("expected one of {}", names()))
}

fn throttle(name: &str) -> Result<Throttling, String> {
    let found = Throttling::ALL.into_iter().find(|policy| policy.name() == name);
    found.ok_or_else(|| "expected ioless, foreground or none".into())
}

fn bandwidth(word: &str) -> Result<u64, String> {
    let wrong = || {
        format!("invalid bandwidth `{word}`; expected 1M to 100G in powers of 1000, such as 700M")
    };
    let digits = word.trim_end_matches(['k', 'K', 'M', 'G']);
    let unit = match &word[digits.len()..] {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let rate = number.checked_mul(unit).ok_or_else(wrong)?;
    (1_000_000..=100_000_000_000).contains(&rate).then_some(rate).ok_or_else(wrong)
}

fn pool(word: &str) -> Result<u64, String> {
    let bytes = parse_size(word)?;
    let fits = (1 << 20..=1 << 40).contains(&bytes) && bytes.is_multiple_of(4096);
    fits.then_some(bytes)
        .ok_or_else(|| "expected a cache size of 1M to 1T in multiples of 4K".into())
}

fn write_bytes(word: &str) -> Result<u32, String> {
    let bytes = parse_size(word)?;
    let fits = (4096..=32 << 20).contains(&bytes) && bytes.is_multiple_of(4096);
    fits.then_some(bytes as u32)
        .ok_or_else(|| "expected a write size of 4K to 32M in multiples of 4K".into())
}

impl ThrottlingArgs {
    /// Runs the experiment and prints the report.
    pub fn run(self) -> ExitCode {
        let Self { seed, case, throttle, writers, bw, pool, seconds, write, switch, .. } = self;
        let options = experiment::Seed002Options {
            seed,
            cases: case,
            throttles: throttle,
            writers,
            bandwidths: bw,
            pools: pool,
            seconds,
            write_bytes: write,
            switch_ns: switch,
            trace: self.csv.is_some(),
        };
        let mut files = match Files::new(self.svg, self.csv.as_deref()) {
            Ok(files) => files,
            Err(error) => {
                complain(error);
                return ExitCode::FAILURE;
            }
        };
        let report = match experiment::run(&options, |point, outcome| files.add(point, outcome)) {
            Ok(report) => report,
            Err(error) => {
                complain(error);
                return ExitCode::from(USAGE);
            }
        };
        let code = self.output.end(&report);
        if let Err(error) = files.end(&report.rows) {
            complain(format!("cannot write charts or trace events: {error}"));
            return ExitCode::FAILURE;
        }
        code
    }
}

/// Output files beside the report.
struct Files {
    svg: Option<PathBuf>,
    csv: Option<io::BufWriter<fs::File>>,
    /// The first error; the runs continue and are reported.
    wrong: Option<io::Error>,
}

impl Files {
    fn new(svg: Option<PathBuf>, csv: Option<&Path>) -> Result<Self, String> {
        if let Some(dir) = &svg {
            fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        let create = |path: &Path| {
            let file = fs::File::create(path);
            file.map(io::BufWriter::new).map_err(|error| format!("{}: {error}", path.display()))
        };
        let mut csv = csv.map(create).transpose()?;
        if let Some(csv) = &mut csv {
            writeln!(csv, "{}", experiment::csv::HEADER).map_err(|error| error.to_string())?;
        }
        Ok(Self { svg, csv, wrong: None })
    }

    fn add(&mut self, point: &CasePoint, outcome: &CaseOutcome) {
        let mut write = || -> io::Result<()> {
            let stem = pictures::file_stem(point);
            if let Some(dir) = &self.svg {
                let picture = pictures::over_time(point, outcome).to_svg();
                fs::write(dir.join(format!("{stem}.svg")), picture)?;
            }
            if let Some(csv) = &mut self.csv {
                for event in &outcome.traces {
                    writeln!(csv, "{}", experiment::csv::line(&stem, event))?;
                }
            }
            Ok(())
        };
        if let Err(error) = write() {
            self.wrong.get_or_insert(error);
        }
    }

    fn end(mut self, rows: &[crate::report::Row]) -> io::Result<()> {
        if let (Some(dir), Some(page)) = (&self.svg, pictures::scaling(rows)) {
            fs::write(dir.join("scaling.svg"), page.to_svg())?;
        }
        if let Some(csv) = &mut self.csv {
            csv.flush()?;
        }
        self.wrong.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_powers_of_1000() {
        assert_eq!(bandwidth("700M"), Ok(700_000_000));
        assert_eq!(bandwidth("3G"), Ok(3_000_000_000));
        for wrong in ["", "M", "700MM", "700MB", "1k", "1T", "99999999999999999999G"] {
            assert!(bandwidth(wrong).is_err(), "{wrong}");
        }
        assert_eq!(write_bytes("64K"), Ok(65_536));
        assert!(write_bytes("65537").is_err() && pool("4097K").is_err());
    }
}
