//! Buffered writers of tenants: the bytes that a device writes are divided by weight.
//!
//! A shard with a cache and one device; the tenants' writers dirty 64 KiB at a time as fast as they may. Each tenant's part of the
//! bytes is compared with that of its weight, over 30 s and over each 5 s of them, whatever number of writers it has.

use headworks_core::time::{MS, SEC};
use headworks_core::writeback::DirtyOptions;
use headworks_core::{ConfigError, QueueOptions};
use headworks_disks::StreamProfile;

use crate::baseline::TagPolicy;
use crate::baseline::foreground::Throttling;
use crate::report::{Goal, Progress, Report, Row, Verdict};
use crate::row_filter::RowFilter;
use crate::seed002::{CacheHarness, CacheHarnessOptions, WriterOptions};

/// Time before counting starts.
const RAMP_NS: u64 = 20 * SEC;
/// Windows of a run, and their length.
const WINDOWS: u64 = 6;
const WINDOW_NS: u64 = 5 * SEC;
/// Bytes of the cache.
const POOL: u64 = 1 << 30;
/// Bytes of a write.
const WRITE: u32 = 64 << 10;

/// A device: its name, bytes a second, and the cost of a change of stream.
type NamedDevice = (&'static str, u64, u64);

const DISK: NamedDevice = ("hdd", 150_000_000, 8 * MS);
const SATA: NamedDevice = ("sata", 500_000_000, 0);
const NVME: NamedDevice = ("nvme", 3_000_000_000, 0);

/// Tenants by weight and number of writers.
struct ShareCase {
    name: &'static str,
    tenants: Vec<(u16, u32)>,
    devices: &'static [NamedDevice],
    /// Largest difference from the part of the weight, in percent: over the run, and in a window.
    most: [f64; 2],
}

fn cases() -> Vec<ShareCase> {
    const WEIGHTS: [u16; 4] = [100, 200, 400, 1000];
    let four = |writers: [u32; 4]| WEIGHTS.into_iter().zip(writers).collect();
    let all: &[NamedDevice] = &[DISK, SATA, NVME];
    vec![
        ShareCase { name: "one", tenants: four([1; 4]), devices: all, most: [3.0, 5.0] },
        ShareCase { name: "ten", tenants: four([10; 4]), devices: all, most: [3.0, 5.0] },
        ShareCase {
            name: "inverse",
            tenants: four([100, 10, 3, 1]),
            devices: all,
            most: [3.0, 5.0],
        },
        ShareCase {
            name: "hundred",
            tenants: vec![(100, 1); 100],
            devices: &[NVME],
            most: [3.0, 5.0],
        },
        ShareCase {
            name: "thousand",
            tenants: vec![(100, 1); 1000],
            devices: &[NVME],
            most: [3.0, 8.0],
        },
    ]
}

/// Runs the experiment.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    let chosen: Vec<ShareCase> = cases()
        .into_iter()
        .filter(|case| filter.cases.is_empty() || filter.cases.iter().any(|one| one == case.name))
        .collect();
    let is_chosen =
        |device: &&NamedDevice| filter.device.as_ref().is_none_or(|one| one == device.0);
    let count = chosen.iter().map(|case| case.devices.iter().filter(is_chosen).count()).sum();
    let mut progress = Progress::new("dirty-shares", count);
    let mut rows = Vec::new();
    for case in &chosen {
        for device in case.devices.iter().filter(is_chosen) {
            rows.push(run_one(filter.seed, case, *device)?);
            progress.step();
        }
    }
    Ok(Report {
        title: "dirty-shares: buffered writers of tenants share a device by weight".into(),
        notes: vec![
            format!("writers: 64 KiB, sequential, always busy; cache {} MiB", POOL >> 20),
            "tenants 100:200:400:1000 with 1 and 10 writers each, and 100, 10, 3, 1; 100 and 1000 equal tenants"
                .into(),
            format!("{} windows of {} s after {} s", WINDOWS, WINDOW_NS / SEC, RAMP_NS / SEC),
        ],
        verdicts: judge(&rows),
        rows,
    })
}

fn run_one(
    seed: u64,
    case: &ShareCase,
    (device, bandwidth, switch_ns): NamedDevice,
) -> Result<Row, ConfigError> {
    let writers: u32 = case.tenants.iter().map(|(_, writers)| writers).sum();
    // A tebibyte for all, so that no writer wraps around.
    let part = (1_u64 << 40) / u64::from(writers) / (1 << 30) * (1 << 30);
    let region = |number: u64| WriterOptions::dd(0, WRITE, number * part, (number + 1) * part);
    let harness = CacheHarness::new(CacheHarnessOptions {
        seed,
        pool: POOL,
        dirty: DirtyOptions { seed, ..DirtyOptions::default() },
        queue: QueueOptions::default(),
        tags: TagPolicy::Fair,
        devices: vec![StreamProfile::new(bandwidth, switch_ns)],
        modes: Vec::new(),
        size: u64::from(writers) * part,
        writers: (0..u64::from(writers)).map(region).collect(),
        tenants: case.tenants.clone(),
        window_ns: WINDOW_NS,
        ramp_ns: RAMP_NS,
        // The last window ends within the run.
        runtime_ns: WINDOWS * WINDOW_NS + MS,
        throttle: Throttling::Ioless,
        trace: false,
    })?;
    let outcome = harness.run();
    let weights: Vec<u64> = case.tenants.iter().map(|(weight, _)| u64::from(*weight)).collect();
    // Bytes of each tenant in each window, window after window.
    let bytes: Vec<u64> = outcome.windows.concat();
    Ok(Row::new("runs")
        .with("case", case.name)
        .with("device", device)
        .with("bytes_per_second", bandwidth)
        .with("writers", writers)
        .with("most_permille", case.most.map(|most| (most * 10.0) as u64).to_vec())
        .with("weights", weights)
        .with("tenant_writers", case.tenants.iter().map(|of| of.1).collect::<Vec<u32>>())
        .with("windows", outcome.windows.len() as u64)
        .with("tenant_bytes", bytes)
        .with("media_bytes", outcome.media.iter().sum::<u64>())
        .with("busy_ns", outcome.busy_ns.iter().sum::<u64>())
        .with("runtime_ns", WINDOWS * WINDOW_NS + MS)
        .with("pause_p99_ns", outcome.pauses.percentile(990))
        .with("over_limit", outcome.over_limit)
        .with("failed", outcome.failed)
        .with("hash", format!("{:016x}", outcome.hash)))
}

/// The largest difference of a tenant's part from that of its weight, in percent.
fn worst(bytes: &[u64], weights: &[u64]) -> f64 {
    let (all, sum) = (bytes.iter().sum::<u64>() as f64, weights.iter().sum::<u64>() as f64);
    let off = |(bytes, weight): (&u64, &u64)| {
        ((*bytes as f64 / all) / (*weight as f64 / sum) - 1.0).abs() * 100.0
    };
    bytes.iter().zip(weights).map(off).fold(0.0, f64::max)
}

/// The verdict on pauses. A writer whose part of the device is less than a write in 200 ms pauses longer for each write.
fn pauses(row: &Row, name: &str) -> Verdict {
    const MOST_MS: f64 = 200.0;
    let sum = row.ints("weights").iter().sum::<u64>() as f64;
    let of_writer = |(weight, writers): (u64, u64)| {
        let part = row.int("bytes_per_second") as f64 * weight as f64 / sum / writers as f64;
        f64::from(WRITE) / part * 1000.0
    };
    let each = row.ints("weights").into_iter().zip(row.ints("tenant_writers")).map(of_writer);
    let longest = each.fold(0.0, f64::max);
    let verdict = Verdict {
        what: format!("{name}: pause p99, ms"),
        ours: Some(row.int("pause_p99_ns") as f64 / MS as f64),
        goal: Some(Goal::AtMost(MOST_MS)),
        ..Verdict::default()
    };
    verdict.bounded("a write at its writer's part of the device, ms", longest)
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for row in rows {
        let (weights, bytes) = (row.ints("weights"), row.ints("tenant_bytes"));
        let name = format!(
            "{}, {} writers on {}",
            row.word("case"),
            row.int("writers"),
            row.word("device")
        );
        let mut put = |what: &str, ours: f64, most: f64| {
            let (what, goal) = (format!("{name}: {what}"), Some(Goal::AtMost(most)));
            verdicts.push(Verdict { what, ours: Some(ours), goal, ..Verdict::default() });
        };
        let windows: Vec<&[u64]> = bytes.chunks(weights.len()).collect();
        let total: Vec<u64> =
            (0..weights.len()).map(|tenant| windows.iter().map(|of| of[tenant]).sum()).collect();
        let most = row.ints("most_permille");
        put("worst share, % off in 30 s", worst(&total, &weights), most[0] as f64 / 10.0);
        let worst_window = windows.iter().map(|of| worst(of, &weights)).fold(0.0, f64::max);
        put("worst share, % off in any 5 s", worst_window, most[1] as f64 / 10.0);
        put("turns over the dirty limit", row.int("over_limit") as f64, 0.0);
        let idle = 1.0 - row.int("busy_ns") as f64 / row.int("runtime_ns") as f64;
        put("idle time of the device, %", idle * 100.0, 1.0);
        verdicts.push(pauses(row, &name));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_come_from_the_rows_only() {
        let filter = RowFilter {
            cases: vec!["one".into()],
            device: Some("hdd".into()),
            ..RowFilter::default()
        };
        let report = run(&filter).unwrap();
        let read: Vec<Row> = report.to_json().lines().filter_map(Row::from_json).collect();
        assert_eq!(judge(&read), report.verdicts);
        assert!(report.verdicts[0].is_met() && report.verdicts[2].is_met(), "{}", report.to_text());
        // The heaviest tenant's bytes in one window are another one's.
        let mut bytes = read[0].ints("tenant_bytes");
        bytes.swap(0, 3);
        let wrong = read[0].clone().replaced("tenant_bytes", bytes);
        assert!(!judge(&[wrong])[1].is_met());
    }
}
