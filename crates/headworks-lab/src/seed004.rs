//! Seed 004: a batch of neighbours reaches the device as one request.
//!
//! The seed: fio, libaio, sequential 4 KiB reads, depth 128, batches of 16, one virtio disk, no
//! elevator. Without a working plug 283,638 KB/s and no merge; with it 873,224 KB/s and 2,046K
//! merges in 10 s. At any speed, 15 of each 16 reads must merge: that part is exact. The bandwidth
//! is a calibration (two rows determine the device's two parameters), not a prediction; the other
//! batch sizes are its curve.

use headworks_core::time::SEC;
use headworks_core::{ConfigError, DepthMode, Op, QueueOptions};
use headworks_disks::TwoPoint;

use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, Plugging};
use crate::report::{Goal, Report, Row, SETTINGS, Verdict, run_each};
use crate::row_filter::RowFilter;

/// Fitted to the seed's two rows: 4 KiB requests at 283,638 KiB/s and 64 KiB requests at 873,224
/// KiB/s, one at a time.
const PER_COMMAND_NS: u64 = 10_157;
const BYTES_PER_SECOND: u64 = 1_038_030_000;
/// Duration of the seed's run.
const SECONDS: u64 = 10;
const BATCH: u32 = 16;
/// The seed's bandwidths in fio's KB/s.
const SEED_KB: [f64; 2] = [283_638.0, 873_224.0];
const SEED_MERGES: f64 = 2_046_000.0;

/// The rows: every batch size with the plug, and the seed's batches with inner plugs that flush.
const RUNS: [(Plugging, u32, DepthMode); 9] = [
    (Plugging::Bio, BATCH, DepthMode::Fixed),
    (Plugging::Batch, 1, DepthMode::Fixed),
    (Plugging::Batch, 2, DepthMode::Fixed),
    (Plugging::Batch, 4, DepthMode::Fixed),
    (Plugging::Batch, 8, DepthMode::Fixed),
    (Plugging::Batch, BATCH, DepthMode::Fixed),
    (Plugging::Batch, 32, DepthMode::Fixed),
    (Plugging::Batch, 64, DepthMode::Fixed),
    (Plugging::Batch, BATCH, DepthMode::Auto),
];

/// Runs the experiment.
///
/// # Errors
/// Invalid options.
pub fn run(filter: &RowFilter) -> Result<Report, ConfigError> {
    run_for(filter, SECONDS)
}

fn run_for(filter: &RowFilter, seconds: u64) -> Result<Report, ConfigError> {
    let rows = run_each("seed-004", &RUNS, |&run| run_one(filter.seed, run, seconds))?;
    Ok(Report {
        title: "seed-004: a batch of neighbours reaches the device as one request".into(),
        notes: vec![
            "fio: rw=read bs=4k iodepth=128 iodepth_batch=N iodepth_batch_complete=N, one job, no elevator"
                .into(),
            format!(
                "device: one at a time, {PER_COMMAND_NS} ns + bytes at {:.2} MB/s: calibrated on the seed's two rows",
                BYTES_PER_SECOND as f64 / 1e6
            ),
            "hw_depth=fixed: with the measured depth batches wait together, and more than 15 of 16 merge".into(),
            "so 15/16 is a prediction; KB/s are not (two rows, two numbers), and the count of merges follows from both"
                .into(),
        ],
        verdicts: judge(&rows),
        rows,
    })
}

fn name(plugging: Plugging) -> &'static str {
    match plugging {
        Plugging::Batch => "outermost",
        Plugging::Bio => "inner",
    }
}

fn run_one(
    seed: u64,
    (plugging, batch, hw_depth): (Plugging, u32, DepthMode),
    seconds: u64,
) -> Result<Row, ConfigError> {
    const SIZE: u64 = 100 << 30;
    let job = JobOptions {
        op: Op::Read,
        random: false,
        iodepth: 128,
        batch_submit: batch,
        batch_complete: batch,
        end: SIZE,
        ..JobOptions::default()
    };
    let mut harness = BlockHarness::new(BlockHarnessOptions {
        seed,
        queue: QueueOptions { hw_depth, ..QueueOptions::default() },
        size: SIZE,
        device: Box::new(TwoPoint::new(PER_COMMAND_NS, BYTES_PER_SECOND)),
        jobs: vec![job],
        exports: Vec::new(),
        tenants: Vec::new(),
        cache: Default::default(),
        ramp_ns: 0,
        runtime_ns: seconds * SEC,
    })?;
    harness.set_plugging(plugging);
    let counts = harness.run();
    Ok(Row::new("runs")
        .with("plug", name(plugging))
        .with("batch", batch)
        .with("seconds", seconds)
        .with("reads", counts.bios)
        .with("requests", counts.requests)
        // Merges of answered reads only; outstanding reads have merged, too.
        .with("merges", counts.bios - counts.requests)
        .with("merges_counted", counts.merges)
        .with("bytes", counts.bytes)
        .with("errors", counts.errors)
        .with(SETTINGS, counts.settings)
        .with("hash", format!("{:016x}", counts.hash)))
}

fn kib_per_second(row: &Row) -> f64 {
    row.int("bytes") as f64 / 1024.0 / row.int("seconds") as f64
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let find = |plugging: Plugging, by_hand: bool| {
        let is = |row: &&Row| {
            row.is("plug", name(plugging))
                && row.int("batch") == u64::from(BATCH)
                && row.is(SETTINGS, "") != by_hand
        };
        rows.iter().find(is)
    };
    let (Some(before), Some(after), Some(usual)) =
        (find(Plugging::Bio, true), find(Plugging::Batch, true), find(Plugging::Batch, false))
    else {
        return Vec::new();
    };
    let part = |row: &Row| row.int("merges") as f64 / row.int("reads") as f64;
    let per_ten = |row: &Row| row.int("merges") as f64 * 10.0 / row.int("seconds") as f64;
    let verdict = |what: &str, seed, baseline, ours, goal| Verdict {
        what: what.into(),
        seed,
        baseline: Some(baseline),
        ours: Some(ours),
        goal,
        ..Verdict::default()
    };
    vec![
        verdict(
            "part of the reads that merged, batches of 16",
            Some(15.0 / 16.0),
            part(before),
            part(after),
            Some(Goal::Exactly(15.0 / 16.0)),
        )
        .with_settings(after),
        verdict(
            "part of the reads that merged, batches of 16",
            Some(15.0 / 16.0),
            part(before),
            part(usual),
            Some(Goal::AtLeast(15.0 / 16.0)),
        ),
        verdict(
            "merges in 10 s (15/16 of the calibrated reads)",
            Some(SEED_MERGES),
            per_ten(before),
            per_ten(after),
            None,
        ),
        verdict(
            "KB/s (calibrated)",
            Some(SEED_KB[1]),
            kib_per_second(before),
            kib_per_second(after),
            None,
        ),
        verdict(
            "KB/s over the baseline's (calibrated)",
            Some(SEED_KB[1] / SEED_KB[0]),
            1.0,
            kib_per_second(after) / kib_per_second(before),
            None,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_of_sixteen_reads_merge_and_none_with_inner_plugs() {
        let report = run_for(&RowFilter::default(), 1).unwrap();
        for row in report.rows.iter().filter(|row| !row.is(SETTINGS, "")) {
            let batch = if row.is("plug", "inner") { 1 } else { row.int("batch") };
            let merged = batch * row.int("requests");
            assert_eq!(row.int("reads"), merged, "{row:?}");
            assert_eq!(row.int("errors"), 0);
        }
    }

    #[test]
    fn merges_of_ten_seconds_match_the_seed() {
        let row = run_one(1, (Plugging::Batch, BATCH, DepthMode::Fixed), SECONDS).unwrap();
        // 218,306 reads a second, 15/16 of them.
        let expected = 2_046_619.0;
        assert!((row.int("merges") as f64 - expected).abs() < 200.0, "{row:?}");
        // Outstanding reads: 8 batches at most.
        assert!(row.int("merges_counted") - row.int("merges") <= 8 * 15);
    }

    #[test]
    fn verdicts_come_from_the_rows_only() {
        let report = run_for(&RowFilter::default(), 1).unwrap();
        assert!(report.is_met(), "{}", report.to_text());
        let read: Vec<Row> = report.to_json().lines().filter_map(Row::from_json).collect();
        assert_eq!(judge(&read), report.verdicts);
        // One merge less is not fifteen of sixteen.
        let mut wrong = read;
        let row =
            wrong.iter_mut().find(|row| row.word("plug") == "outermost" && row.int("batch") == 16);
        let row = row.unwrap();
        *row = row.clone().replaced("merges", row.int("merges") - 1);
        assert!(!judge(&wrong)[0].is_met());
    }
}
