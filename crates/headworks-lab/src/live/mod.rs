//! The parts of experiments that run for real: a server in this process, its own clients over NBD, and a clock on the wall.
//!
//! ```text
//!   run_together (client threads) --NBD, unix socket--> Server (one shard) --> delay: --> null or a file
//!        | bytes and times of each job                     ^
//!        +-- at both ends of the window: `stats` ----------+ control socket
//! ```
//!
//! The server is what `headworks serve` starts, with the same defaults; queues are set as `--max-sectors-kb` and `headworks
//! ctl set` would. Counts are exact. Times are those of this machine, with the clients on the same CPUs: only ratios of runs
//! that stand next to each other are judged.

pub mod fairness;
pub mod seed000;
pub mod seed002_cpu;
pub mod seed003;
mod server;

use std::time::Duration;

use headworks_core::ConfigError;
use headworks_nbd::client::bench::{self, BenchOptions, Tally};
use headworks_nbd::client::{ClientError, Uri};
use serde_json::Value;

use server::LiveServer;

/// Every run ends with everything answered, or is live_error.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// What does not count, and what does.
#[derive(Clone, Copy, Debug)]
struct Length {
    ramp: Duration,
    runtime: Duration,
}

/// What a run found: each job's tally, and the server's statistics at both ends of what counts.
struct LiveRun {
    jobs: Vec<Tally>,
    before: Value,
    after: Value,
}

impl LiveRun {
    /// How much a counter of the first device's queue grew.
    fn queue(&self, name: &str) -> u64 {
        let of = |stats: &Value| stats["devices"]["hw0"]["queue"][name].as_u64().unwrap_or(0);
        of(&self.after) - of(&self.before)
    }

    /// How much a counter of the first device's tags grew.
    fn tags(&self, name: &str) -> u64 {
        let of = |stats: &Value| stats["devices"]["hw0"]["tags"][name].as_u64().unwrap_or(0);
        of(&self.after) - of(&self.before)
    }

    /// The p99 of reads in a stage, of all since the start.
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

/// Runs the jobs against a server and looks at its counters meanwhile.
fn run(server: &LiveServer, jobs: &[BenchOptions], length: Length) -> Result<LiveRun, ConfigError> {
    let Length { ramp, runtime } = length;
    let watch = || {
        std::thread::sleep(ramp);
        let before = server.stats()?;
        std::thread::sleep(runtime);
        Ok::<_, ConfigError>((before, server.stats()?))
    };
    let (jobs, watched) = bench::run_together(jobs, ramp, runtime, watch).map_err(live_error)?;
    let (before, after) = watched?;
    Ok(LiveRun { jobs, before, after })
}

fn job(uri: Uri) -> BenchOptions {
    let mut options = BenchOptions::new(uri);
    options.client.timeout = RUN_TIMEOUT;
    options
}

fn live_error(error: ClientError) -> ConfigError {
    ConfigError::new("live", error.to_string())
}
