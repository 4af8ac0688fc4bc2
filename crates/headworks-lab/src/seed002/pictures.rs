//! Charts of a run over time, and of the scaling table over the number of writers.

use headworks_core::Instant;
use headworks_core::time::MS;

use super::{BelowCache, CaseOutcome, CasePoint, Sample, rates};
use crate::chart::{COLOURS, Line, Page, Panel, Scale};
use crate::report::Row;

/// Averaging interval of rates.
const AVERAGE_NS: u64 = 100 * MS;
/// The seed's measurements: writers, MB/s, context switches a second.
const SEED: [(f64, f64, f64); 8] = [
    (1.0, 700.0, 400.0),
    (2.0, 700.0, 500.0),
    (4.0, 700.0, 700.0),
    (8.0, 690.0, 1100.0),
    (16.0, 675.0, 2000.0),
    (32.0, 675.0, 5000.0),
    (100.0, 650.0, 22_000.0),
    (1000.0, 600.0, 160_000.0),
];

/// The file name of a run, without extension.
#[must_use]
pub fn file_stem(point: &CasePoint) -> String {
    let below = match point.below == BelowCache::DEFAULT {
        true => String::new(),
        false => format!("-{}-{}", point.below.scheduler.name(), point.below.tags.name()),
    };
    format!(
        "{}-{}{below}-{}w-{}mb-{}mib",
        point.case.name(),
        point.throttle.name(),
        point.writers,
        point.bandwidth / 1_000_000,
        point.pool >> 20
    )
}

fn seconds(at: Instant) -> f64 {
    at.0 as f64 / 1e9
}

/// Charts dirty position, rates and pauses over time.
#[must_use]
pub fn over_time(point: &CasePoint, outcome: &CaseOutcome) -> Page {
    let samples = &outcome.samples;
    let line = |name, colour: usize, of: &dyn Fn(&Sample) -> f64| {
        let points = samples.iter().map(|sample| (seconds(sample.at), of(sample))).collect();
        Line::new(name, COLOURS[colour], points)
    };
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let free_run = |sample: &Sample| mb((sample.limit + sample.background) / 2);
    let panel = |title: &str, height, lines| Panel {
        title: title.into(),
        height,
        scale: Scale::Linear,
        lines,
    };
    // The first tenth of a second runs unthrottled at the speed of memory; it is cut off.
    let cut = 1.5 * point.bandwidth as f64 / 1e6;
    let rate = |name, colour: usize, of| {
        let rates = rates(samples, AVERAGE_NS, of);
        let points = rates.into_iter().map(|(at, rate)| (at, rate.min(cut))).collect();
        Line::new(name, COLOURS[colour], points)
    };
    // The longest pause of each tenth of a second; a dot for each pause would take megabytes.
    let pauses: Vec<(f64, f64, f64)> = samples
        .chunks(10)
        .filter(|chunk| chunk.iter().any(|sample| sample.pauses > 0))
        .map(|chunk| {
            let sum: u64 = chunk.iter().map(|sample| sample.pause_sum_ns).sum();
            let count: u32 = chunk.iter().map(|sample| sample.pauses).sum();
            let most = chunk.iter().map(|sample| sample.pause_max_ns).max().unwrap_or(0);
            (seconds(chunk[0].at), sum as f64 / f64::from(count) / 1e6, most as f64 / 1e6)
        })
        .collect();
    let longest = pauses.iter().map(|&(at, _, most)| (at, most)).collect();
    let mean = pauses.iter().map(|&(at, mean, _)| (at, mean)).collect();
    Page {
        title: format!(
            "seed-002 {}: {} writers, {} MB/s, cache of {} MiB, {}",
            point.case.name(),
            point.writers,
            point.bandwidth / 1_000_000,
            point.pool >> 20,
            point.throttle.name()
        ),
        across: "seconds of virtual time".into(),
        scale: Scale::Linear,
        panels: vec![
            panel(
                "dirty, MB",
                170.0,
                vec![
                    line("limit", 3, &|sample| mb(sample.limit)).dashed(),
                    line("background", 4, &|sample| mb(sample.background)).dashed(),
                    line("free run", 2, &free_run).dashed(),
                    line("dirty", 0, &|sample| mb(sample.dirty)),
                ],
            ),
            panel(
                "rates, MB/s (over 100 ms; cut at 1.5 times the device)",
                150.0,
                vec![
                    rate("device", 3, |sample| sample.media),
                    rate("writers", 0, |sample| sample.accepted),
                ],
            ),
            panel(
                "pauses, ms (that end in 100 ms)",
                120.0,
                vec![
                    Line::new("longest", COLOURS[1], longest),
                    Line::new("mean", COLOURS[0], mean),
                ],
            ),
        ],
    }
}

/// Charts rate and wake-ups over the number of writers, with the seed's; `None` without rows of
/// that table.
#[must_use]
pub fn scaling(rows: &[Row]) -> Option<Page> {
    let of = |throttle: &str, cell: &str| {
        let all = || rows.iter().filter(|row| row.table == "runs" && row.is("case", "scaling"));
        let pool = all().map(|row| row.int("pool_mib")).max();
        let is = |row: &&Row| row.is("throttle", throttle) && Some(row.int("pool_mib")) == pool;
        let mut points: Vec<(u64, f64, f64)> = Vec::new();
        for row in all().filter(is) {
            let found = (row.int("writers"), row.real("mb_s"), row.real(cell));
            match points.iter_mut().find(|known| known.0 == found.0) {
                None => points.push(found),
                // The fastest of several elevators and tag policies.
                Some(known) if known.1 < found.1 => *known = found,
                Some(_) => {}
            }
        }
        let point = |(writers, _, value): (u64, f64, f64)| (writers as f64, value);
        points.into_iter().map(point).collect::<Vec<_>>()
    };
    let lines = |seed: Vec<(f64, f64)>, name, cell| {
        let seed = Line::new(name, COLOURS[3], seed).dashed();
        let old = Line::new("foreground, its best", COLOURS[1], of("foreground", cell));
        let ours = Line::new("ioless", COLOURS[0], of("ioless", cell));
        let all = [seed, old, ours];
        all.into_iter().filter(|line| !line.points.is_empty()).collect::<Vec<_>>()
    };
    if of("ioless", "mb_s").is_empty() {
        return None;
    }
    let rate = SEED.iter().map(|&(writers, rate, _)| (writers, rate)).collect();
    let switches = SEED.iter().map(|&(writers, _, switches)| (writers, switches)).collect();
    Some(Page {
        title: "seed-002: 700 MB/s that punish a change of stream, cache of 48 GiB".into(),
        across: "writers".into(),
        scale: Scale::Log,
        panels: vec![
            Panel {
                title: "device, MB/s".into(),
                height: 170.0,
                scale: Scale::Linear,
                lines: lines(rate, "the seed (2010, measured)", "mb_s"),
            },
            Panel {
                title: "wake-ups of writers a second".into(),
                height: 170.0,
                scale: Scale::Log,
                lines: lines(switches, "the seed: context switches of the machine", "wake_s"),
            },
        ],
    })
}
