//! The first table of `top`: for each export what is asked of it, how slow it is, where and by whom, within 80 columns.
//!
//! Rule: a number has at most five characters, and its column no wider head, so that the columns fit with one space
//! between them. Times are in milliseconds. `dev` is the number of requests that the export had in its device on average, write-back included: the
//! exports of a device with the largest numbers use it most.

use headworks::house::display_size;
use headworks_control::answers::{Export, OpHistogram};
use headworks_control::param::RequestOp;

use super::rates::{Sample, between, growth, percentile, seconds};
use crate::columns::aligned_by;

/// Heads of the columns with their explanation, in order.
pub const OVERVIEW: [(&str, &str); 11] = [
    ("export", "name; with * it has a tenant"),
    ("r/s", "reads per second"),
    ("w/s", "writes per second"),
    ("MiB/s", "MiB read and written per second"),
    (
        "p99",
        "99th percentile of reads and writes, ms; <turn: in the turn of the thread in which they came",
    ),
    ("fl99", "99th percentile of flushes, ms"),
    ("slowest", "stage in which requests spent most time"),
    ("dev", "requests that it has in its device, on average"),
    ("dirty", "data of its image that are not written yet, MiB"),
    ("oldest", "age of its oldest request that is not answered"),
    (
        "state",
        "number of errors since the last table, and serving, refusing, suspect, stuck, frozen, deleted, absent",
    ),
];

/// Stages of which one is the slowest.
const STAGES: [&str; 8] = ["limit", "buffer", "cache", "dirty", "plug", "tag", "sched", "device"];
const MIB: f64 = 1_048_576.0;
/// Longest name that is shown whole.
const NAME: usize = 14;

/// The row of one export.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    name: String,
    reads: f64,
    writes: f64,
    flushes: f64,
    mib: f64,
    /// None without a read or write; likewise of flushes.
    p99_ms: Option<f64>,
    flush_p99_ms: Option<f64>,
    slowest: Option<&'static str>,
    in_device: f64,
    dirty_mib: f64,
    /// Age in seconds.
    oldest: Option<f64>,
    state: String,
}

/// The rows of all exports between two samples, the busiest first; absent exports last.
pub fn overviews(old: &Sample, new: &Sample) -> Vec<Overview> {
    let seconds = seconds(old, new);
    let all = new.exports.iter();
    let mut rows: Vec<Overview> = all.map(|export| row(old, new, export, seconds)).collect();
    let busy = |row: &Overview| row.reads + row.writes + row.flushes;
    rows.sort_by(|a, b| busy(b).total_cmp(&busy(a)).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn row(old: &Sample, new: &Sample, export: &Export, seconds: f64) -> Overview {
    let name = &*export.name;
    let rate = |op: &str, what: fn(&OpHistogram) -> u64| {
        growth(old, new, |sample| Some(what(sample.clients(name, op)?) as f64)) / seconds
    };
    let requests = |op: &str| rate(op, |it| it.count);
    let bytes = |op: &str| rate(op, |it| it.bytes);
    let held = growth(old, new, |sample| Some(sample.export(name)?.held.device_ns as f64));
    let spent = |stage: &&str| {
        let times = between(old, new, (name, stage), &RequestOp::ALL);
        times.iter().map(|(end, count)| end * count).sum::<f64>()
    };
    let p99 = |ops: &[&str]| {
        let times = between(old, new, (name, "total"), ops);
        (!times.is_empty()).then(|| percentile(&times, 0.99) / 1e3)
    };
    let slowest = STAGES.iter().map(|stage| (*stage, spent(stage)));
    let slowest = slowest.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, time)| *time > 0.0);
    let tenant = if export.tenant.is_some() { "*" } else { "" };
    let short = match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}~{tenant}", &name[..end - 1]),
        None => format!("{name}{tenant}"),
    };
    Overview {
        name: short,
        reads: requests("read"),
        writes: requests("write"),
        flushes: requests("flush"),
        mib: (bytes("read") + bytes("write")) / MIB,
        p99_ms: p99(&["read", "write"]),
        flush_p99_ms: p99(&["flush"]),
        slowest: slowest.map(|(stage, _)| stage),
        in_device: held / 1e9 / seconds,
        dirty_mib: export.dirty as f64 / MIB,
        oldest: export.in_flight.oldest.as_ref().map(|oldest| oldest.age_s),
        state: match growth(old, new, |sample| Some(sample.export(name)?.errors.total as f64)) {
            1.0 => format!("{}, 1 error", export.state),
            errors if errors > 0.0 => format!("{}, {errors:.0} errors", export.state),
            _ => export.state.clone(),
        },
    }
}

/// The age of a request in flight; one that no person notices is none.
fn age(age_s: f64) -> String {
    if age_s < 0.1 { "-".to_owned() } else { crate::columns::seconds(age_s) }
}

/// The table as text.
pub fn table(rows: &[Overview]) -> String {
    let cells = |row: &Overview| {
        [
            row.name.clone(),
            short(row.reads),
            short(row.writes),
            short(row.mib),
            latency(row.p99_ms),
            latency(row.flush_p99_ms),
            row.slowest.unwrap_or("-").to_owned(),
            short(row.in_device),
            short(row.dirty_mib),
            row.oldest.map_or_else(|| "-".to_owned(), age),
            row.state.clone(),
        ]
    };
    let heads = OVERVIEW.map(|(name, _)| name.to_owned());
    let rows: Vec<_> = std::iter::once(heads).chain(rows.iter().map(cells)).collect();
    aligned_by(&rows, " ")
}

/// A latency in ms. Requests that were answered in the turn in which they came have 0, for which no clock is read.
fn latency(ms: Option<f64>) -> String {
    match ms {
        None => "-".to_owned(),
        Some(0.0) => "<turn".to_owned(),
        Some(ms) if ms < 0.005 => "<0.01".to_owned(),
        Some(ms) => short(ms),
    }
}

/// A number of at most five characters.
fn short(value: f64) -> String {
    match value {
        value if value <= 0.0 => "0".into(),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value if value < 9_999.5 => format!("{value:.0}"),
        value if value < 9.995e6 => format!("{:.0}k", value / 1e3),
        value => format!("{:.1}M", value / 1e6),
    }
}

/// The state of the server in one line: `3 exports, 2 clients, up 2 h; dirty 1.0 MiB of 256 MiB; cache 2.1 MiB of 4 MiB`. A part that
/// does not fit into `width` is left out as a whole: half a limit is none.
pub fn server_line(sample: &Sample, cache: &[String], width: usize) -> String {
    let seconds = sample.stats.seconds;
    let up = match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.0} h", seconds / 3600.0),
        seconds => format!("{:.0} days", seconds / 86_400.0),
    };
    let (exports, clients) = (sample.exports.len(), sample.stats.connections.len());
    let size = |blocks: u64| display_size(blocks * 4096);
    let dirty = sample.stats.dirty.iter().filter(|dirty| dirty.nr_dirty_threshold > 0);
    let dirty = dirty.map(|dirty| {
        format!("; dirty {} of {}", size(dirty.nr_dirty), size(dirty.nr_dirty_threshold))
    });
    let mut line = format!("{exports} exports, {clients} clients, up {up}");
    for part in dirty.chain(cache.iter().cloned()) {
        if line.len() + part.len() > width {
            break;
        }
        line += &part;
    }
    line
}

/// The worst export of the last seconds: what its slow requests waited for, and by whom they were held up.
pub fn worst_line(sample: &Sample) -> String {
    let Some(report) = &sample.why else { return String::new() };
    if let Some(finding) = report.findings.first() {
        return finding.clone();
    }
    if !report.slow {
        return "nothing is slow".to_owned();
    }
    let export = report.export.as_deref().unwrap_or_default();
    let ms = report.above_us / 1e3;
    let stage = report.shares.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let stage = stage.map_or("elsewhere", |(name, _)| name.as_str());
    let guilty = report.by_whom.as_ref().and_then(|blame| blame.guilty.as_ref());
    let whom = guilty.map_or(String::new(), |name| format!(", held up by {name}"));
    format!("slowest: {export}, {} ms and more, in {stage}{whom}", short(ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn told<T: serde::de::DeserializeOwned>(answer: Value) -> T {
        serde_json::from_value(answer).unwrap()
    }

    fn sample(seconds: f64, reads: u64) -> Sample {
        let stages = json!({
            "total": [[2000.0, reads]],
            "tag": [[1500.0, reads]],
            "device": [[500.0, reads]],
        });
        let read = json!({ "count": reads, "bytes": reads * 4096, "stages": stages });
        let flush = json!({ "count": 1, "stages": { "total": [[40_000.0, reads / 1000]] } });
        Sample {
            stats: told(json!({ "seconds": seconds, "connections": [{}, {}],
                "dirty": { "nr_dirty": 250, "nr_dirty_threshold": 65536 },
                "exports": { "db": { "held": { "device_ns": 1_500_000 * reads } } } })),
            histograms: told(json!({ "exports": { "db": { "read": read, "flush": flush } } })),
            exports: told(json!([
                { "name": "a-very-long-name-of-an-export", "tenant": "acme", "dirty": 0, "state": "absent" },
                { "name": "db", "tenant": null, "dirty": 5_000_000, "state": "serving",
                  "in_flight": { "oldest": { "age_s": 17.04 } } },
            ])),
            why: told(json!({ "slow": true, "export": "db", "above_us": 2000.0,
                "shares": { "tag": 0.75, "device": 0.25 }, "by_whom": { "guilty": "bulk" } })),
            ..Sample::default()
        }
    }

    #[test]
    fn rows_fit_eighty_columns_and_say_where_time_goes() {
        let rows = overviews(&sample(10.0, 1000), &sample(12.0, 3000));
        let text = table(&rows);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            words,
            ["db", "1000", "0", "3.91", "2.00", "40.0", "tag", "1.50", "4.77", "17.0s", "serving"]
        );
        let last = text.lines().nth(2).unwrap();
        assert!(last.starts_with("a-very-long-n~*") && last.ends_with("absent"), "{last}");
    }

    #[test]
    fn latency_below_a_turn_is_no_zero() {
        let all = [None, Some(0.0), Some(0.001), Some(2.0)];
        assert_eq!(all.map(latency), ["-", "<turn", "<0.01", "2.00"]);
    }

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 9.994, 9.999, 99.94, 99.96, 12_345.6, 99_999.7, 5e6, 9.999e6, 1e9, 123e9];
        assert!(all.into_iter().all(|value| short(value).len() <= 9), "{:?}", all.map(short));
        assert_eq!([9.999, 99.96, 9_999.7].map(short), ["10.0", "100", "10k"]);
    }

    #[test]
    fn lines_tell_the_server_and_the_worst_export() {
        let sample = sample(7300.0, 10);
        let cache = ["; cache 2 MiB of 4 MiB", ", up to 8 MiB"].map(str::to_owned);
        assert_eq!(
            server_line(&sample, &cache, 100),
            "2 exports, 2 clients, up 2 h; dirty 1000 KiB of 256 MiB; cache 2 MiB of 4 MiB, up to 8 MiB"
        );
        // No limit is cut from what it limits.
        let short = server_line(&sample, &cache, 80);
        assert!(short.ends_with("256 MiB; cache 2 MiB of 4 MiB"), "{short}");
        assert!(server_line(&sample, &cache, 50).ends_with("up 2 h"));
        assert_eq!(worst_line(&sample), "slowest: db, 2.00 ms and more, in tag, held up by bulk");
        assert_eq!(worst_line(&Sample::default()), "", "it was not told");
        let waits = json!({ "slow": true, "findings": ["db: 1 request has waited"] });
        let hung = Sample { why: told(waits), ..Sample::default() };
        assert_eq!(worst_line(&hung), "db: 1 request has waited");
        assert_eq!([0.04, 0.12, 99.96].map(age), ["-", "0.12s", "100.0s"]);
        let fast = Sample { why: told(json!({ "slow": false })), ..Sample::default() };
        assert_eq!(worst_line(&fast), "nothing is slow");
    }
}
