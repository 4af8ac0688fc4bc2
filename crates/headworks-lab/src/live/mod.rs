//! Experiments in real time: a server in this process, with clients over NBD.
//!
//! ```text
//!   run_together (client threads) --NBD, unix socket--> Server (one shard) --> delay: --> null or a file
//!        | bytes and times of each job                     ^
//!        +-- at both ends of the window: `stats` ----------+ control socket
//! ```
//!
//! The server is the one that `headworks serve` starts, with the same defaults; queue options are
//! set as by `--max-sectors-kb` and `headworks ctl set`. Counts are exact. Times are those of this
//! machine, with the clients on the same CPUs: only ratios of adjacent runs are judged.

pub mod bulk;
pub mod clients;
pub mod fairness;
pub mod seed000;
pub mod seed002_cpu;
pub mod seed003;
pub(crate) mod server;

use std::time::Duration;

use headworks_core::ConfigError;
use headworks_nbd::client::bench::{self, BenchOptions, Tally};
use headworks_nbd::client::{ClientError, Uri};
use serde_json::Value;

use crate::report::Row;
use server::LiveServer;

/// The processor of this machine and its CPUs: times hold on such a machine only.
#[must_use]
pub fn machine() -> Row {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown", |(_, name)| name.trim());
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    Row::new("machine").with("cpu", model).with("cpus", cpus)
}

/// A run that is not answered completely within this time has failed.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// Times of ramp and measurement.
#[derive(Clone, Copy, Debug)]
struct Length {
    ramp: Duration,
    runtime: Duration,
}

/// The result of a run: each job's tally, and the server's statistics at both ends of the
/// measurement.
struct LiveRun {
    jobs: Vec<Tally>,
    before: Value,
    after: Value,
    /// CPU time of the process, server and clients, during the measurement, in us.
    cpu_us: u64,
}

impl LiveRun {
    /// Increase of a counter of the first device's queue.
    fn queue(&self, name: &str) -> u64 {
        let of = |stats: &Value| stats["devices"]["hw0"]["queue"][name].as_u64().unwrap_or(0);
        of(&self.after) - of(&self.before)
    }

    /// Increase of a counter of the first device's tags.
    fn tags(&self, name: &str) -> u64 {
        let of = |stats: &Value| stats["devices"]["hw0"]["tags"][name].as_u64().unwrap_or(0);
        of(&self.after) - of(&self.before)
    }

    /// A value of the control of the first device's depth, at the end; 0 without a control.
    fn depth(&self, name: &str) -> u64 {
        self.after["devices"]["hw0"]["depth"][name].as_u64().unwrap_or(0)
    }

    /// The p99 of reads in a stage since the start of the server.
    fn stage(&self, name: &str) -> u64 {
        let exports = self.after["exports"].as_object().into_iter().flatten();
        let p99 = |(_, export): (_, &Value)| {
            export["ops"]["read"]["stages"][name]["p99_ns"].as_u64().unwrap_or(0)
        };
        exports.map(p99).max().unwrap_or(0)
    }

    fn errors(&self) -> u64 {
        self.jobs.iter().map(|job| job.errors).sum()
    }

    fn bytes(&self) -> u64 {
        self.jobs.iter().map(bytes).sum()
    }
}

fn bytes(job: &Tally) -> u64 {
    job.reads.bytes + job.writes.bytes
}

/// Runs the jobs against a server and reads its counters.
fn run(server: &LiveServer, jobs: &[BenchOptions], length: Length) -> Result<LiveRun, ConfigError> {
    let Length { ramp, runtime } = length;
    let watch = || {
        std::thread::sleep(ramp);
        let (before, began) = (server.stats()?, process_usage());
        std::thread::sleep(runtime);
        let sum = |usage: &libc::rusage| cpu_us(usage).iter().sum::<u64>();
        let used = sum(&process_usage()) - sum(&began);
        Ok::<_, ConfigError>((before, server.stats()?, used))
    };
    let (jobs, watched) = bench::run_together(jobs, ramp, runtime, watch).map_err(live_error)?;
    let (before, after, cpu_us) = watched?;
    Ok(LiveRun { jobs, before, after, cpu_us })
}

/// What this process, server and clients, has used up to now.
fn process_usage() -> libc::rusage {
    // SAFETY: zeros are a valid rusage, and the call fills it.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    }
}

/// User and system time in us.
fn cpu_us(usage: &libc::rusage) -> [u64; 2] {
    [usage.ru_utime, usage.ru_stime]
        .map(|time| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64)
}

fn job(uri: Uri) -> BenchOptions {
    let mut options = BenchOptions::new(uri);
    options.client.timeout = RUN_TIMEOUT;
    options
}

fn live_error(error: ClientError) -> ConfigError {
    ConfigError::new("live", error.to_string())
}

/// The middle value of several rounds; `None` without one.
fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
