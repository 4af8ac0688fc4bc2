//! Seed 003: folios of 4 KiB to 2 MiB, so that bookkeeping is done once for many blocks.
//!
//! The seed: fio, 252 threads, 64 KiB reads and writes through a block device's page cache, with
//! folios of one page and with large ones: 2.9 times the bandwidth for reads and for 10 % writes,
//! 1.4 for 30 %, 1.15 for 50 %. Bandwidth of a cache depends on locks and cache lines, which a
//! model lacks. A model has **counts**: index lookups, folios created, blocks filled and requests
//! sent per MiB, by identical code with `max_folio_order` 0 and 9. CPU time on real memory is
//! measured by `seed-003-cpu`.
//!
//! A job reads or writes 64 KiB at a time, sequentially, in its own region. `hit`: the data are in
//! memory before counting starts. `miss`: the data are a hundred times the memory. `small`: 4 KiB
//! overwrites at random offsets in large folios, which must not cost a large folio's work.

use headworks_core::time::{SEC, US};
use headworks_core::{CacheOptions, ConfigError, Op, QueueOptions};
use headworks_disks::TwoPoint;

use crate::harness::{BlockHarness, BlockHarnessOptions, JobOptions, RunCounts};
use crate::report::Progress;
use crate::report::{Goal, Report, Row, SETTINGS, Verdict};

/// Bytes of the cache.
const POOL: u64 = 1 << 30;
/// Bytes of the hot set: they fit also if all are dirty at once, because the limit is a fifth of
/// the pool.
const HOT: u64 = 160 << 20;
/// Bytes of the cold set, which does not fit.
const COLD: u64 = 100 << 30;
/// An NVMe disk: 10 us a command, 3.2 GB/s.
const DEVICE: (u64, u64) = (10 * US, 3_200_000_000);
/// Time between an answer and the next bio: 64 KiB at 10 GB/s, and a system call.
const THINK_NS: u64 = 8 * US;
/// Maximum folio orders: one block, and the largest.
const ORDERS: [u8; 2] = [0, 9];
/// Index lookups per MiB: by block, and by 64 KiB.
const PER_MIB: [f64; 2] = [256.0, 16.0];
/// A stream begins with small folios, so a hit costs slightly more than one lookup on average.
const HIT_MAX: f64 = 1.25 * PER_MIB[1];
/// Goal: how many times fewer index operations large folios need.
const FEWER: f64 = 8.0;

/// The workload of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FolioCase {
    Hit,
    Miss,
    /// Hits with this percentage of writes.
    Mixed(u32),
    Small,
}

const CASES: [FolioCase; 6] = [
    FolioCase::Hit,
    FolioCase::Miss,
    FolioCase::Mixed(10),
    FolioCase::Mixed(30),
    FolioCase::Mixed(50),
    FolioCase::Small,
];

impl FolioCase {
    fn name(self) -> String {
        match self {
            Self::Hit => "hit".into(),
            Self::Miss => "miss".into(),
            Self::Mixed(percent) => format!("writes-{percent}"),
            Self::Small => "small".into(),
        }
    }

    fn job(self, number: u32, jobs: u32) -> JobOptions {
        let all = if self == Self::Miss { COLD } else { HOT };
        let part = all / u64::from(jobs) / (2 << 20) * (2 << 20);
        let start = u64::from(number) * part;
        let job = JobOptions {
            random: false,
            bs: 64 << 10,
            start,
            end: start + part,
            think_ns: THINK_NS,
            ..JobOptions::default()
        };
        match self {
            Self::Hit | Self::Miss => job,
            Self::Mixed(write_percent) => JobOptions { write_percent, ..job },
            Self::Small => JobOptions { random: true, bs: 4096, op: Op::Write, ..job },
        }
    }
}

/// Options of the experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed003Options {
    /// Seed of the random offsets.
    pub seed: u64,
    /// Numbers of connections to run.
    pub jobs: Vec<u32>,
    /// Measured time in virtual seconds.
    pub seconds: u64,
}

impl Default for Seed003Options {
    fn default() -> Self {
        Self { seed: 1, jobs: vec![1, 16], seconds: 1 }
    }
}

/// Runs the experiment.
///
/// # Errors
/// Invalid options.
pub fn run(options: &Seed003Options) -> Result<Report, ConfigError> {
    let mut progress = Progress::new("seed-003", CASES.len() * options.jobs.len() * ORDERS.len());
    let mut rows = Vec::new();
    for case in CASES {
        for &jobs in &options.jobs {
            for order in ORDERS {
                rows.push(run_one(options, case, jobs, order)?);
                progress.step();
            }
        }
    }
    drop(progress);
    Ok(Report {
        title: "seed-003: bookkeeping once for many blocks".into(),
        notes: vec![
            "fio: rw=read | rw=rw rwmixwrite=10,30,50, bs=64k, sequential, one bio at a time, each job in its own part".into(),
            "the same code with max_folio_order 0 (a block each) and 9 (up to 2 MiB); counts, no times".into(),
            "cache 1 GiB; hit: 160 MiB in all, read before; miss: 100 GiB; small: 4 KiB overwrites at random in the 160 MiB".into(),
        ],
        verdicts: judge(&rows),
        rows,
    })
}

fn run_one(
    options: &Seed003Options,
    case: FolioCase,
    jobs: u32,
    order: u8,
) -> Result<Row, ConfigError> {
    let mut list: Vec<JobOptions> = (0..jobs).map(|number| case.job(number, jobs)).collect();
    if case == FolioCase::Small {
        // A first job reads everything in large pieces, and then only thinks.
        list.push(JobOptions { iodepth: 1, ..FolioCase::Hit.job(0, 1) });
    }
    let harness = BlockHarness::new(BlockHarnessOptions {
        seed: options.seed,
        queue: QueueOptions { max_folio_order: order, ..QueueOptions::default() },
        size: COLD,
        device: Box::new(TwoPoint::new(DEVICE.0, DEVICE.1)),
        jobs: list,
        exports: Vec::new(),
        tenants: Vec::new(),
        cache: CacheOptions { units: (POOL / 4096) as u32, ..CacheOptions::default() },
        // One pass over the hot set takes 0.1 s.
        ramp_ns: SEC / 2,
        runtime_ns: options.seconds * SEC,
    })?;
    Ok(row(case, jobs, order, options.seconds, &harness.run()))
}

fn row(case: FolioCase, jobs: u32, order: u8, seconds: u64, counts: &RunCounts) -> Row {
    let cache = &counts.cache;
    // Without that first job.
    let bytes: u64 = counts.jobs[..jobs as usize].iter().map(|job| job.bytes).sum();
    let mib = bytes as f64 / f64::from(1 << 20);
    let per_mib = |count: u64| count as f64 / mib.max(1.0);
    Row::new("runs")
        .with("case", case.name())
        .with("jobs", jobs)
        .with("order", order)
        .with("seconds", seconds)
        .with("bios", counts.bios)
        .with("bytes", bytes)
        .with("index", cache.index.operations)
        .with("probes", cache.index.probes)
        .with("folios", counts.folios_made)
        .with("fills", cache.fills.bios)
        .with("filled", cache.fills.blocks)
        .with("writeouts", cache.writeouts.bios)
        .with("written", cache.writeouts.blocks)
        .with("shadowed", cache.shadowed)
        .with("hits", cache.hits)
        .with("misses", cache.misses)
        .with("requests", counts.issued)
        .with("failed", counts.errors + counts.notices + u64::from(counts.stuck))
        .with_real("index_mib", per_mib(cache.index.operations), 2)
        .with_real("folios_mib", per_mib(counts.folios_made), 2)
        .with_real("fills_mib", per_mib(cache.fills.bios), 2)
        .with_real("requests_mib", per_mib(counts.issued), 2)
        .with(SETTINGS, counts.settings.clone())
        .with("hash", format!("{:016x}", counts.hash))
}

/// How many times less of a count large folios need, minimum over a case's rows; `None` for small
/// accesses.
fn fewer(rows: &[Row], case: FolioCase, of: &dyn Fn(&Row) -> f64) -> Option<Verdict> {
    let name = case.name();
    let with = |jobs: u64, order: u64| {
        let is = |row: &&Row| {
            row.is("case", &name) && row.int("jobs") == jobs && row.int("order") == order
        };
        rows.iter().find(is).map(of)
    };
    let ratios = rows.iter().filter_map(|row| {
        let jobs = row.int("jobs");
        Some(with(jobs, 0)? / with(jobs, 9)?)
    });
    let ours = ratios.reduce(f64::min).filter(|_| case != FolioCase::Small)?;
    Some(Verdict {
        what: format!("{name}: times fewer index operations"),
        seed: None,
        baseline: Some(1.0),
        ours: Some(ours),
        goal: Some(Goal::AtLeast(FEWER)),
        ..Verdict::default()
    })
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut beside = |what: String, of: &dyn Fn(&Row) -> f64, is: &dyn Fn(&Row) -> bool, goal| {
        let worst = |order: u64| {
            let found = rows.iter().filter(|row| row.int("order") == order && is(row));
            found.map(of).reduce(f64::max)
        };
        if let (Some(ours), baseline) = (worst(9), worst(0)) {
            verdicts.push(Verdict {
                what,
                seed: None,
                baseline,
                ours: Some(ours),
                goal,
                ..Verdict::default()
            });
        }
    };
    let per_mib = |row: &Row, count: &str| {
        row.int(count) as f64 / (row.int("bytes") as f64 / f64::from(1 << 20))
    };
    let index = |row: &Row| per_mib(row, "index");
    let hit = |row: &Row| row.is("case", "hit");
    let what = "hit: index operations for each MiB".into();
    beside(what, &index, &hit, Some(Goal::AtMost(HIT_MAX)));
    let miss = |row: &Row| row.is("case", "miss");
    let made = |row: &Row| per_mib(row, "folios");
    let what = "miss: folios made for each MiB".into();
    beside(what, &made, &miss, Some(Goal::AtMost(PER_MIB[1])));
    let what = "miss: requests for each MiB".into();
    beside(what, &|row| per_mib(row, "requests"), &miss, Some(Goal::AtMost(2.0)));
    let small = |row: &Row| row.is("case", "small");
    let amplified = |row: &Row| row.int("written") as f64 * 4096.0 / row.int("bytes") as f64;
    let what = "4 KiB overwrites: bytes written over bytes dirtied".into();
    beside(what, &amplified, &small, Some(Goal::AtMost(1.05)));
    let filled = |row: &Row| row.int("filled") as f64;
    let what = "4 KiB overwrites: blocks that had to be read".into();
    beside(what, &filled, &small, Some(Goal::Exactly(0.0)));
    verdicts.extend(CASES.into_iter().filter_map(|case| fewer(rows, case, &index)));
    if !rows.is_empty() {
        // Order 0 is the same code: it must look up each block, or the counts are wrong.
        let hits = rows.iter().filter(|row| row.is("case", "hit") && row.int("order") == 0);
        let least = hits.map(index).reduce(f64::min);
        let failed: u64 = rows.iter().map(|row| row.int("failed")).sum();
        let verdict = |what: &str, ours, goal| Verdict {
            what: what.into(),
            seed: None,
            baseline: None,
            ours: Some(ours),
            goal: Some(goal),
            ..Verdict::default()
        };
        let found = least.map(|least| {
            verdict("hit: index operations for each MiB, order 0", least, Goal::AtLeast(PER_MIB[0]))
        });
        verdicts.extend(found);
        verdicts.push(verdict("failed bios", failed as f64, Goal::Exactly(0.0)));
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_met_and_computed_from_printed_rows() {
        let report =
            run(&Seed003Options { jobs: vec![2], seconds: 1, ..Seed003Options::default() })
                .unwrap();
        assert!(report.is_met(), "{}", report.to_text());
        let read: Vec<Row> = report.to_json().lines().filter_map(Row::from_json).collect();
        assert_eq!(judge(&read), report.verdicts);
        let missed = |case: &str, cell: &str, value: u64| {
            let change = |row: &Row| match row.is("case", case) && row.int("order") == 9 {
                true => row.clone().replaced(cell, value),
                false => row.clone(),
            };
            let rows: Vec<Row> = read.iter().map(change).collect();
            judge(&rows).iter().filter(|verdict| !verdict.is_met()).count()
        };
        assert_eq!(missed("hit", "index", 1 << 40), 2);
        assert_eq!(missed("writes-50", "index", 1 << 40), 1);
        assert_eq!(missed("miss", "requests", 1 << 40), 1);
        assert_eq!(missed("small", "filled", 1), 1);
        assert_eq!(missed("small", "written", 1 << 40), 1);
    }
}
