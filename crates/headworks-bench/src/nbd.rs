//! `headworks bench --uri`: measures an NBD server and prints the report.
//!
//! The report has IOPS, bytes per second, latency and the client's CPU time per request; with `--verify` also the
//! number of compared reads. The command fails after the report if the server answered a request with an error.
//!
//! A benchmark that writes would destroy an export that is in use. Without `--overwrite` it looks for data first, and starts only
//! if the range that it would write is all zeros. One that reads says how much of the range is holes (`bench_holes`).

use headworks_nbd::client::bench::{self, BenchOptions, BenchReport, Direction, Tally, Waiting};
use headworks_nbd::client::{Client, ClientError, ClientOptions, Contents, Histogram};
use headworks_nbd::wire::CommandFlags;
use headworks_program::shown::{error_line, print_line, print_text};
use serde_json::{Value, json};

use crate::holes::Holes;

/// Parameters of a benchmark of a server.
pub struct BenchNbdOptions {
    /// Parameters of the benchmark itself.
    pub bench: BenchOptions,
    /// Write without looking for data.
    pub overwrite: bool,
    /// Print one JSON object instead of text.
    pub json: bool,
}

/// Most bytes that are read in search of data: about a second's worth.
const LOOKED_AT_MAX: u64 = 1 << 30;

/// Runs the benchmark and prints the report; the error is a sentence.
pub fn run(options: &BenchNbdOptions) -> Result<(), String> {
    if !options.overwrite && (options.bench.fill || options.bench.pattern.writes()) {
        refuse_data(&options.bench)?;
    }
    measure(options).map_err(|error| error.to_string())
}

/// Refuses an export with data where the benchmark writes.
fn refuse_data(options: &BenchOptions) -> Result<(), String> {
    let asks = ClientOptions { structured: true, allocation: true, ..options.client };
    let found = || -> Result<Contents, ClientError> {
        let mut client = Client::connect(&options.uri, asks)?;
        let found = client.contents(options.size.unwrap_or(u64::MAX), LOOKED_AT_MAX)?;
        client.disconnect()?;
        Ok(found)
    };
    match found().map_err(|error| error.to_string())? {
        Contents::Zeros => Ok(()),
        Contents::Data(at) => Err(format!(
            "{} has data, near offset {at}, which this benchmark would overwrite; pass --overwrite to destroy it",
            options.uri
        )),
        Contents::Unknown(at) => Err(format!(
            "{} may have data behind the first {} of zeros, which this benchmark would overwrite; pass --overwrite to destroy \
             what is there",
            options.uri,
            headworks::house::display_size(at)
        )),
    }
}

/// How much of the range is holes, where the server can tell. Asked on a connection of its own after the run: some servers end with
/// their first client, and what is measured negotiates nothing for it.
fn holes(options: &BenchOptions) -> Result<Option<Holes>, ClientError> {
    let asks = ClientOptions { structured: true, allocation: true, ..options.client };
    let mut client = Client::connect(&options.uri, asks)?;
    let (size, tells) = (client.export().size, client.export().allocation.is_some());
    let size = options.size.unwrap_or(u64::MAX).min(size);
    let found = Holes::of(if tells { size } else { 0 }, |at, len| {
        client.block_status(at, len, CommandFlags::NONE)
    })?;
    client.disconnect()?;
    Ok(Some(found).filter(|_| tells))
}

fn measure(options: &BenchNbdOptions) -> Result<(), ClientError> {
    let report = bench::run(&options.bench)?;
    let asks = options.bench.pattern.reads() && !options.bench.fill;
    let holes = asks.then(|| holes(&options.bench).unwrap_or_default()).flatten();
    if let Some(warning) = &report.warning {
        error_line!("headworks: warning: {warning}");
    }
    if options.json {
        print_line!("{:#}", as_json(&options.bench, &report, holes));
    } else {
        print_text!("{}", as_text(&options.bench, &report, holes));
    }
    let phases = [Some(&report.run), report.read_back.as_ref()];
    match phases.into_iter().flatten().find_map(|tally| tally.first_error) {
        Some(error) => Err(ClientError::Request(error)),
        None => Ok(()),
    }
}

fn directions(run: &Tally) -> impl Iterator<Item = (&'static str, &Direction)> {
    let both = [("read", &run.reads), ("write", &run.writes)];
    both.into_iter().filter(|(_, one)| one.latency.count() > 0)
}

fn as_text(options: &BenchOptions, report: &BenchReport, holes: Option<Holes>) -> String {
    let run = &report.run;
    let polling = match options.waiting {
        Waiting::Sleep => "",
        Waiting::Poll => ", polling",
    };
    let rate = options.rate.map_or(String::new(), |rate| format!(" rate={rate}"));
    let mut text = format!(
        "{}: bs={} iodepth={} threads={}{rate}{polling}, {:.2} s\n",
        options.pattern,
        options.block_bytes,
        options.iodepth,
        options.threads,
        run.elapsed.as_secs_f64()
    );
    for (name, one) in directions(run) {
        let seconds = run.elapsed.as_secs_f64().max(1e-9);
        let iops = one.latency.count() as f64 / seconds;
        text += &format!("{name:>6}: {iops:.0} IOPS, {:.1} MB/s", one.bytes as f64 / seconds / 1e6);
        let at = |per_mille| micros(one.latency.percentile(per_mille));
        text += &format!(
            "; latency mean {}, p50 {}, p99 {}, p99.9 {}, max {} us\n",
            micros(one.latency.mean()),
            at(500),
            at(990),
            at(999),
            micros(one.latency.max())
        );
    }
    let cure = "--fill --overwrite fills it, and destroys what is there";
    if let Some(line) = holes.and_then(|holes| holes.line(cure)) {
        text += &format!("{line}\n");
    }
    let [sends, receives] = run.calls.map(|calls| run.ios() as f64 / calls.max(1) as f64);
    text += &format!(
        "client: {:.0} ns CPU per I/O, {sends:.1} requests per send, {receives:.1} per receive\n",
        run.cpu_ns_per_io()
    );
    if run.errors > 0 {
        text += &format!("errors: {}\n", run.errors);
    }
    if let Some(read_back) = &report.read_back {
        text += &format!(
            "verified: {} reads during the run, {} read back at the end\n",
            run.verified, read_back.verified
        );
    }
    text
}

pub fn micros(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

fn as_json(options: &BenchOptions, report: &BenchReport, holes: Option<Holes>) -> Value {
    let run = &report.run;
    let mut json = json!({
        "uri": options.uri.to_string(),
        "rw": options.pattern.to_string(),
        "bs": options.block_bytes,
        "iodepth": options.iodepth,
        "threads": options.threads,
        "rate": options.rate,
        "polling": options.waiting == Waiting::Poll,
        "structured_replies": report.export.structured,
        "seconds": run.elapsed.as_secs_f64(),
        "ios": run.ios(),
        "iops": run.iops(),
        "bytes_per_second": run.bytes_per_second(),
        "errors": run.errors,
        "client_cpu_ns_per_io": run.cpu_ns_per_io(),
        "client_sends": run.calls[0],
        "client_receives": run.calls[1],
        "warning": report.warning,
        "holes_percent": holes.map(Holes::percent),
    });
    for (name, one) in directions(run) {
        json[name] = json!({
            "ios": one.latency.count(),
            "bytes": one.bytes,
            "latency_ns": latency(&one.latency),
        });
    }
    if let Some(read_back) = &report.read_back {
        json["verified"] = json!({ "run": run.verified, "read_back": read_back.verified });
    }
    json
}

pub fn latency(histogram: &Histogram) -> Value {
    json!({
        "mean": histogram.mean(),
        "p50": histogram.percentile(500),
        "p99": histogram.percentile(990),
        "p99.9": histogram.percentile(999),
        "max": histogram.max(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report() -> BenchReport {
        let mut run = Tally {
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_micros(400),
            calls: [250, 500],
            ..Tally::default()
        };
        for _ in 0..1000 {
            run.reads.latency.record(20_000);
            run.reads.bytes += 4096;
        }
        BenchReport {
            export: headworks_nbd::client::Export::default(),
            run,
            read_back: Some(Tally::default()),
            warning: None,
        }
    }

    #[test]
    fn report_has_rates_per_second_and_cpu_per_request() {
        let options = BenchOptions::new("nbd://h".parse().expect("a good URI"));
        let text = as_text(&options, &report(), None);
        assert!(
            text.contains("  read: 500 IOPS, 2.0 MB/s; latency mean 20.0, p50 20.0,"),
            "{text}"
        );
        assert!(
            text.contains("client: 400 ns CPU per I/O, 4.0 requests per send, 2.0 per receive")
        );
        assert!(text.contains("verified: 0 reads during the run") && !text.contains("write"));
        let json = as_json(&options, &report(), None);
        assert_eq!(json["iops"], 500.0);
        assert_eq!(json["read"]["latency_ns"]["p99.9"], 20_000);
        assert_eq!(json["verified"]["read_back"], 0);
        assert!(json["write"].is_null());
    }
}
