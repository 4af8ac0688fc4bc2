//! Seed 000 over NBD: 512 writes of 1 MiB wait for 62 tags, each is split in 8, and the server
//! counts the requests that continue the previous one. The maximum is 7 of 8, because the first
//! piece of a write continues nothing.
//!
//! The device is slow and does nothing, so only the order of its requests is measured.

use std::time::Duration;

use headworks_core::{ConfigError, QueueOptions, Scheduler};
use headworks_nbd::client::bench::{BenchOptions, Pattern};

use super::server::{LiveServer, LiveServerOptions};
use super::{Length, job, run};
use crate::baseline::TagPolicy;
use crate::report::{Goal, Report, Row, Verdict, run_each};
use crate::row_filter::{GATED, RowFilter};

const TABLE: &str = "over NBD";
const DEVICE: &str = "delay";
/// 31 commands of 128 KiB at once: some 400 MB/s, which two CPUs sustain together with the clients.
const SPEC: &str = "delay:write=10ms,of=null:size=64G";
/// Connections, and outstanding writes on each: 512 in all.
const CONNECTIONS: u32 = 64;
const DEPTH: u32 = 8;
const BS: u32 = 1 << 20;
const TAGS: u32 = 62;
const MAX_SECTORS_KB: u32 = 128;
/// Room for 512 MiB of waiting writes; a quarter is reserved for small ones.
const BUFFERS: usize = 1 << 30;
const LOAD: Load = Load {
    connections: CONNECTIONS,
    length: Length { ramp: Duration::from_secs(2), runtime: Duration::from_secs(4) },
};
/// The goal, of at most 0.875.
const GOAL: f64 = 0.85;

/// The size of a run; tests use a smaller one.
#[derive(Clone, Copy, Debug)]
struct Load {
    connections: u32,
    length: Length,
}

/// Runs every policy with every elevator.
///
/// # Errors
/// The server or a client could not start.
pub fn run_all(filter: &RowFilter) -> Result<Report, ConfigError> {
    run_for(filter, LOAD)
}

fn run_for(filter: &RowFilter, load: Load) -> Result<Report, ConfigError> {
    let wanted =
        filter.has_tags(TAGS) && filter.has_jobs(CONNECTIONS * DEPTH) && filter.has_device(DEVICE);
    let policies = TagPolicy::ALL.into_iter().filter(|&policy| wanted && filter.has_policy(policy));
    let points: Vec<(TagPolicy, Scheduler)> =
        policies.flat_map(|policy| GATED.map(|scheduler| (policy, scheduler))).collect();
    let rows = run_each("seed-000 over NBD", &points, |&(policy, scheduler)| {
        run_one(filter.seed, policy, scheduler, load)
    })?;
    let note = format!(
        "{TABLE}: {} connections with {DEPTH} writes out each, on {SPEC}; {} s after a ramp of {} s, requests \
         counted by the server",
        load.connections,
        load.length.runtime.as_secs_f64(),
        load.length.ramp.as_secs_f64(),
    );
    let notes = if rows.is_empty() { Vec::new() } else { vec![note] };
    let title = "seed-000 over NBD".into();
    Ok(Report { title, verdicts: judge(&rows), notes, rows })
}

fn run_one(
    seed: u64,
    policy: TagPolicy,
    scheduler: Scheduler,
    Load { connections, length }: Load,
) -> Result<Row, ConfigError> {
    let queue = |queue| QueueOptions {
        scheduler,
        nr_requests: TAGS,
        // Two requests per device slot, as in Linux.
        queue_depth: TAGS / 2,
        max_sectors_kb: MAX_SECTORS_KB,
        ..queue
    };
    let exports = [("", SPEC.to_string())];
    let options = LiveServerOptions::new(&exports, &queue);
    let server =
        LiveServer::start(&LiveServerOptions { policy, buffers: Some(BUFFERS), ..options })?;
    let writers = BenchOptions {
        pattern: Pattern::RandWrite,
        block_bytes: BS,
        iodepth: DEPTH,
        threads: connections,
        seed,
        ..job(server.uri(""))
    };
    let found = run(&server, &[writers], length)?;
    server.end()?;
    let (issued, sequential) = (found.queue("issued"), found.queue("sequential"));
    let mib = found.bytes() as f64 / f64::from(1 << 20);
    Ok(Row::new(TABLE)
        .with("policy", policy.name())
        .with("scheduler", scheduler.name())
        .with("device", DEVICE)
        .with("tags", TAGS)
        .with("depth", TAGS / 2)
        .with("max_sectors_kb", MAX_SECTORS_KB)
        .with("jobs", connections * DEPTH)
        .with("bios", found.jobs[0].ios())
        .with("issued", issued)
        .with("sequential", sequential)
        .with("tag_waits", found.tags("waits"))
        .with("p50_us", found.jobs[0].writes.latency.percentile(500) / 1000)
        .with("p99_us", found.jobs[0].writes.latency.percentile(990) / 1000)
        .with("failed", found.errors())
        .with_real("mib_s", mib / length.runtime.as_secs_f64(), 1)
        .with_real("in_sequence", sequential as f64 / issued.max(1) as f64, 4))
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let part = |row: &&Row| row.int("sequential") as f64 / row.int("issued").max(1) as f64;
    let verdict = |row: &&Row| {
        let baseline = |name: &str| {
            let is = |other: &&&Row| {
                other.is("policy", name) && other.is("scheduler", row.word("scheduler"))
            };
            rows.iter().find(is).map(part)
        };
        let ours = part(row);
        Verdict {
            what: format!(
                "over NBD, {}, {}: part in sequence",
                row.word("policy"),
                row.word("scheduler")
            ),
            seed: None,
            baseline: baseline("legacy518"),
            ours: Some(ours),
            goal: row.is("policy", TagPolicy::Fair.name()).then_some(Goal::AtLeast(GOAL)),
            ..Verdict::default()
        }
    };
    let mut verdicts: Vec<Verdict> = rows.iter().map(verdict).collect();
    if !rows.is_empty() {
        let failed: u64 = rows.iter().map(|row| row.int("failed")).sum();
        verdicts.push(Verdict {
            what: "over NBD: writes that failed".into(),
            seed: None,
            baseline: None,
            ours: Some(failed as f64),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_together_where_fair_says_so_and_the_verdict_is_the_rows() {
        let filter = RowFilter { policies: vec![TagPolicy::Fair], ..RowFilter::default() };
        // 64 writes of 8 pieces still are many times the tags.
        let (ramp, runtime) = (Duration::from_millis(200), Duration::from_secs(1));
        let report = run_for(&filter, Load { connections: 8, length: Length { ramp, runtime } });
        let report = report.unwrap();
        assert_eq!(report.rows.len(), 2);
        assert!(report.rows.iter().all(|row| row.int("tag_waits") > 0), "{}", report.to_text());
        assert!(report.is_met(), "{}", report.to_text());
        let row = &report.rows[0];
        let torn = row.clone().replaced("sequential", row.int("issued") / 2);
        assert!(!judge(&[torn])[0].is_met());
        assert!(!judge(&[row.clone().replaced("failed", 1)])[1].is_met());
    }
}
