//! Closed loops over NBD on a device of 200 commands per second: does each client get its turn?
//!
//! ```text
//!   serve --cache 0 --queue-depth 1 --nr-requests 2 delay:write=5ms,of=null:size=64G
//!   64 or 1000 clients of 4 KiB at depth 1; 63 of them beside one of 1 MiB
//! ```
//!
//! The device serves one command at a time, each takes 5 ms whatever its size, so a round of N
//! clients takes N * 5 ms: 0.32 s for 64. The server adds nothing that matters at this rate, and
//! waits of many rounds are the policy's. Goals: the longest wait is at most 3 rounds, p99 of equal
//! clients at most 1.5. The other policies run beside it.

use std::time::Duration;

use headworks_core::{ConfigError, QueueOptions};
use headworks_nbd::client::Histogram;
use headworks_nbd::client::bench::{BenchOptions, Pattern, Tally};

use super::server::{LiveServer, LiveServerOptions};
use super::{Length, job, run};
use crate::baseline::TagPolicy;
use crate::report::{Goal, Report, Row, Verdict, jain, run_each};
use crate::row_filter::RowFilter;

const TABLE: &str = "closed loops over NBD";
const DEVICE: &str = "delay-5ms";
const EXPORT: &str = "delay:write=5ms,of=null:size=64G";
/// Time of a command of the device.
const COMMAND_US: u64 = 5_000;
const QUEUE_DEPTH: u32 = 1;
const NR_REQUESTS: u32 = 2;
/// Goal: the longest wait in rounds.
const LONGEST: f64 = 3.0;
/// Goal: p99 of equal clients in rounds.
const P99: f64 = 1.5;

/// The clients of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopCase {
    /// 64 clients of 4 KiB.
    Equal64,
    /// One client of 1 MiB beside 63 of 4 KiB.
    OneLarge,
    /// 1000 clients of 4 KiB.
    Equal1000,
}

impl LoopCase {
    const ALL: [Self; 3] = [Self::Equal64, Self::OneLarge, Self::Equal1000];

    const fn name(self) -> &'static str {
        match self {
            Self::Equal64 => "equal-64",
            Self::OneLarge => "one-large",
            Self::Equal1000 => "equal-1000",
        }
    }

    /// Block size of each client, the large one first.
    fn sizes(self) -> Vec<u32> {
        match self {
            Self::Equal64 => vec![4096; 64],
            Self::OneLarge => [vec![1 << 20], vec![4096; 63]].concat(),
            Self::Equal1000 => vec![4096; 1000],
        }
    }

    /// More than the longest wait that is allowed.
    const fn length(self) -> Length {
        let (ramp, runtime) = match self {
            Self::Equal1000 => (6, 20),
            _ => (2, 10),
        };
        Length { ramp: Duration::from_secs(ramp), runtime: Duration::from_secs(runtime) }
    }
}

/// The configuration of a row.
#[derive(Clone, Copy, Debug)]
struct LoopPoint {
    case: LoopCase,
    policy: TagPolicy,
}

/// Runs the selected rows.
///
/// # Errors
/// The server or a client could not start.
pub fn run_all(filter: &RowFilter) -> Result<Report, ConfigError> {
    let points: Vec<LoopPoint> = LoopCase::ALL
        .into_iter()
        .flat_map(|case| TagPolicy::ALL.map(|policy| LoopPoint { case, policy }))
        .filter(|point| point.is_in(filter))
        .collect();
    if points.is_empty() {
        return Ok(Report::default());
    }
    let rows = run_each("closed loops over NBD", &points, |point| {
        point.run(filter.seed, point.case.length())
    })?;
    let note = format!(
        "{TABLE}: serve --cache 0 --queue-depth {QUEUE_DEPTH} --nr-requests {NR_REQUESTS} {EXPORT}; a round is 5 ms for each client; \
         a client without an answer has waited for the whole measured time"
    );
    let title = "fairness: closed loops over NBD".into();
    Ok(Report { title, verdicts: judge(&rows), notes: vec![note], rows })
}

impl LoopPoint {
    fn is_in(&self, filter: &RowFilter) -> bool {
        filter.has_policy(self.policy)
            && filter.has_case(self.case.name())
            && filter.has_device(DEVICE)
            && filter.has_jobs(self.case.sizes().len() as u32)
            && filter.has_tags(NR_REQUESTS)
    }

    fn run(&self, seed: u64, length: Length) -> Result<Row, ConfigError> {
        let exports = [("a", EXPORT.to_owned())];
        let queue =
            |queue| QueueOptions { queue_depth: QUEUE_DEPTH, nr_requests: NR_REQUESTS, ..queue };
        let options =
            LiveServerOptions { policy: self.policy, ..LiveServerOptions::new(&exports, &queue) };
        let server = LiveServer::start(&options)?;
        let client = |(number, block_bytes)| BenchOptions {
            pattern: Pattern::RandWrite,
            block_bytes,
            iodepth: 1,
            seed: seed + number,
            ..job(server.uri("a"))
        };
        let clients: Vec<BenchOptions> = (0..).zip(self.case.sizes()).map(client).collect();
        let found = run(&server, &clients, length)?;
        server.end()?;
        Ok(self.row(&found.jobs, found.errors(), length))
    }

    fn row(&self, clients: &[Tally], errors: u64, length: Length) -> Row {
        let mut latency = Histogram::default();
        for client in clients {
            latency.add(&client.writes.latency);
            if client.ios() == 0 {
                latency.record(length.runtime.as_nanos() as u64);
            }
        }
        let us = |per_mille| latency.percentile(per_mille) / 1_000;
        let round_us = clients.len() as u64 * COMMAND_US;
        let rounds = |us: u64| us as f64 / round_us as f64;
        let bios = clients.iter().map(Tally::ios).sum::<u64>();
        Row::new(TABLE)
            .with("device", DEVICE)
            .with("policy", self.policy.name())
            .with("case", self.case.name())
            .with("clients", clients.len())
            .with("seconds", length.runtime.as_secs())
            .with("bios", bios)
            .with("first_bios", clients[0].ios())
            .with("p50_us", us(500))
            .with("p99_us", us(990))
            .with("p999_us", us(999))
            .with("longest_us", latency.max() / 1_000)
            .with("round_us", round_us)
            .with_real("p99_rounds", rounds(us(990)), 2)
            .with_real("rounds", rounds(latency.max() / 1_000), 2)
            .with_real("jain", jain(clients.iter().map(|client| client.ios() as f64)), 4)
            .with("unanswered", clients.iter().filter(|client| client.ios() == 0).count())
            .with("failed", errors)
    }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let find = |case: &str, policy: &str| {
        rows.iter().find(|row| row.is("case", case) && row.is("policy", policy))
    };
    let mut verdicts = Vec::new();
    for case in LoopCase::ALL {
        let Some(ours) = find(case.name(), "fair") else { continue };
        let kuai = find(case.name(), "kuai_v3");
        let mut judged = |what: &str, name: &str, most: f64| {
            verdicts.push(Verdict {
                what: format!("over NBD, {}: {what}", case.name()),
                baseline: kuai.map(|row| row.real(name)),
                ours: Some(ours.real(name)),
                goal: Some(Goal::AtMost(most)),
                ..Verdict::default()
            });
        };
        judged("longest wait in rounds", "rounds", LONGEST);
        if case != LoopCase::OneLarge {
            judged("p99 in rounds", "p99_rounds", P99);
        }
    }
    if !rows.is_empty() {
        let failed: u64 = rows.iter().map(|row| row.int("failed")).sum();
        verdicts.push(Verdict {
            what: "closed loops over NBD: failed writes".into(),
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
    fn wait_of_a_client_without_an_answer_counts() {
        let point = LoopPoint { case: LoopCase::Equal64, policy: TagPolicy::Fair };
        let length = Length { ramp: Duration::ZERO, runtime: Duration::from_secs(10) };
        let served = |ms: u64| {
            let mut tally = Tally::default();
            tally.writes.latency.record(ms * 1_000_000);
            tally
        };
        let rounds = |clients: &[Tally]| {
            let verdicts = judge(&[point.row(clients, 0, length)]);
            verdicts.iter().filter(|verdict| !verdict.is_met()).count()
        };
        // A round of two clients is 10 ms.
        assert_eq!(rounds(&[served(14), served(10)]), 0);
        assert_eq!(rounds(&[served(20), served(10)]), 1, "p99");
        assert_eq!(rounds(&[served(31), served(10)]), 2, "p99 and longest");
        assert_eq!(rounds(&[Tally::default(), served(10)]), 2, "the first got nothing");
    }

    #[test]
    fn clients_share_a_device_of_200_commands_per_second() {
        let length = Length { ramp: Duration::ZERO, runtime: Duration::from_millis(1_200) };
        let row = LoopPoint { case: LoopCase::OneLarge, policy: TagPolicy::KuaiV3 }
            .run(1, length)
            .unwrap();
        assert!((60..=241).contains(&row.int("bios")), "{row:?}");
        assert_eq!((row.int("clients"), row.int("failed")), (64, 0));
        assert_eq!(row.int("round_us"), 320_000);
    }
}
