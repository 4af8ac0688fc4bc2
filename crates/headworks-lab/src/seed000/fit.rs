//! The disk model against the seed's single-job table, the only one it was fitted to.

use headworks_core::time::SEC;
use headworks_core::{ConfigError, Op, QueueOptions};
use headworks_disks::{Hdd, HddProfile};

use super::published::SINGLE;
use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions};
use crate::report::Row;

/// Runs the table's rows on a disk model.
///
/// # Errors
/// Invalid options.
pub fn rows(profile: HddProfile, seed: u64, seconds: u64) -> Result<Vec<Row>, ConfigError> {
    SINGLE.iter().map(|&(kib, _)| run_one(profile, seed, seconds, kib)).collect()
}

fn run_one(profile: HddProfile, seed: u64, seconds: u64, kib: u32) -> Result<Row, ConfigError> {
    let job = JobOptions {
        op: Op::Write,
        bs: kib << 10,
        end: profile.capacity,
        think_ns: super::THINK_NS,
        ..JobOptions::default()
    };
    let harness = BlockHarness::new(BlockHarnessOptions {
        seed,
        // As the kernel sets it: the seed lowered `max_sectors_kb` for the other table only.
        queue: QueueOptions { nr_requests: 64, queue_depth: 32, ..QueueOptions::default() },
        size: profile.capacity,
        device: Box::new(Hdd::new(profile)),
        jobs: vec![job],
        exports: Vec::new(),
        tenants: Vec::new(),
        cache: Default::default(),
        ramp_ns: 10 * SEC,
        runtime_ns: seconds * SEC,
    })?;
    let counts = harness.run();
    let row = Row::new("fit: one job, random writes, MiB/s")
        .with("cache_mib", profile.cache_bytes >> 20)
        .with("bs_kib", kib)
        .with("seconds", seconds)
        .with("bytes", counts.bytes)
        .with("positionings", counts.device.positionings);
    let (measured, sim) = compare(&row);
    Ok(row.with("measured", measured).with_real("sim", sim, 1).with_real(
        "error_percent",
        100.0 * (sim / measured - 1.0),
        1,
    ))
}

/// The published and the simulated rate of a row in MiB/s.
#[must_use]
pub fn compare(row: &Row) -> (f64, f64) {
    let measured = SINGLE.iter().find(|(kib, _)| u64::from(*kib) == row.int("bs_kib"));
    let measured = measured.expect("every row has an entry in the table").1;
    (measured, row.int("bytes") as f64 / row.int("seconds") as f64 / f64::from(1 << 20))
}

/// The root mean square of the rows' relative errors.
#[must_use]
pub fn rms(rows: &[Row]) -> f64 {
    let squares = rows.iter().map(|row| {
        let (measured, sim) = compare(row);
        (sim / measured - 1.0).powi(2)
    });
    (squares.sum::<f64>() / rows.len().max(1) as f64).sqrt()
}
