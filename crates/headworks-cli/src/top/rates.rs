//! Rows of `top`: rates and times between two samples of a server's counters.
//!
//! Requests, bytes and times are those of clients; merges, discards, flushes, queue size and utilization those of the
//! device queue, with the names of iostat -x. `%util` is the share of time with a request in flight, not a measure of
//! saturation.

use serde_json::{Value, json};

/// One sample of a server's counters.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Answer of the method `stats`.
    pub stats: Value,
    /// Answer of the method `histograms`.
    pub histograms: Value,
    /// Answer of the method `diskstats`.
    pub disks: Value,
    /// Answer of the method `exports`.
    pub exports: Value,
    /// Answer of the method `why` for the worst export of the last ten seconds.
    pub why: Value,
}

/// Columns of a row with their explanation, in order.
pub const COLUMNS: [(&str, &str); 32] = [
    ("r/s", "reads completed per second"),
    ("rkB/s", "KiB read per second"),
    ("rrqm/s", "reads merged per second"),
    ("%rrqm", "share of reads that were merged"),
    ("r_await", "average read latency, ms"),
    ("rareq-sz", "average read size, KiB"),
    ("w/s", "writes completed per second"),
    ("wkB/s", "KiB written per second"),
    ("wrqm/s", "writes merged per second"),
    ("%wrqm", "share of writes that were merged"),
    ("w_await", "average write latency, ms"),
    ("wareq-sz", "average write size, KiB"),
    ("d/s", "discards per second"),
    ("dkB/s", "KiB discarded per second"),
    ("d_await", "average discard time in the queue, ms"),
    ("f/s", "device flushes per second"),
    ("f_await", "average flush time, ms"),
    ("aqu-sz", "average queue size of its device"),
    ("%util", "share of time with requests in flight"),
    ("limit50", "wait for limits, ms: median"),
    ("limit99", "99th percentile"),
    ("plug50", "plug time, ms: median"),
    ("plug99", "99th percentile"),
    ("tag50", "wait for a tag, ms: median"),
    ("tag99", "99th percentile"),
    ("sched50", "I/O scheduler time, ms: median"),
    ("sched99", "99th percentile"),
    ("dev50", "device time, ms: median"),
    ("dev99", "99th percentile"),
    ("dirtyMB", "dirty data in the whole cache, MiB"),
    ("hit%", "cache hits, share of blocks"),
    ("queue", "requests in its device's queue now"),
];

/// Row of one export.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Name of the export.
    pub name: String,
    /// Name of its tenant, if it has one.
    pub tenant: Option<String>,
    /// Values in the order of [`COLUMNS`].
    pub values: Vec<f64>,
}

pub(super) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// Growth of a counter between two samples.
pub(super) fn growth(old: &Value, new: &Value, path: &[&str]) -> f64 {
    let at = |value: &Value| {
        let found = path.iter().try_fold(value, |value, name| value.get(*name));
        found.map_or(0.0, number)
    };
    // A restarted server counts from zero.
    (at(new) - at(old)).max(0.0)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Returns the rows of all exports between two samples; with an empty first one, since the server's start.
pub fn rows(old: &Sample, new: &Sample) -> Vec<Row> {
    let seconds = growth(&old.stats, &new.stats, &["seconds"]).max(1e-3);
    let exports = new.stats["exports"].as_object().into_iter().flatten();
    exports.map(|(name, export)| row(old, new, (name, export), seconds)).collect()
}

fn row(old: &Sample, new: &Sample, (name, export): (&str, &Value), seconds: f64) -> Row {
    let clients = |op: &str, what: &str| {
        growth(&old.histograms, &new.histograms, &["exports", name, op, what])
    };
    let queue =
        |op: &str, what: &str| growth(&old.stats, &new.stats, &["exports", name, "ops", op, what]);
    let side = |op: &str| {
        let (count, bytes) = (clients(op, "count"), clients(op, "bytes"));
        let (merges, bios) = (queue(op, "merges"), queue(op, "bios"));
        let kib = bytes / 1024.0;
        [
            count / seconds,
            kib / seconds,
            merges / seconds,
            100.0 * ratio(merges, bios),
            ratio(clients(op, "sum_us") / 1000.0, count),
            ratio(kib, count),
        ]
    };
    let (discards, flushes) = (queue("discard", "requests"), queue("flush", "requests"));
    let device = export["device"].as_str().unwrap_or_default();
    let disk = |what: &str| {
        let of = |sample: &Sample| {
            let all = sample.disks.as_array().into_iter().flatten();
            let own = all.into_iter().find(|disk| disk["name"] == device);
            own.map_or(0.0, |disk| number(&disk["fields"][what]))
        };
        (of(new) - of(old)).max(0.0)
    };
    let mut values = Vec::with_capacity(COLUMNS.len());
    values.extend(side("read"));
    values.extend(side("write"));
    values.extend([
        discards / seconds,
        queue("discard", "bytes") / 1024.0 / seconds,
        ratio(queue("discard", "time_ns") / 1e6, discards),
        flushes / seconds,
        ratio(queue("flush", "time_ns") / 1e6, flushes),
        disk("time_in_queue") / 1000.0 / seconds,
        (disk("io_ticks") / 10.0 / seconds).min(100.0),
    ]);
    for stage in ["limit", "plug", "tag", "sched", "device"] {
        let times = between(old, new, name, stage);
        values.extend([percentile(&times, 0.5) / 1e3, percentile(&times, 0.99) / 1e3]);
    }
    let cache = |what: &str| growth(&old.stats, &new.stats, &["cache", what]);
    let (hits, misses) = (cache("hits"), cache("misses"));
    let cached = export["cache"] != "none";
    values.extend([
        if cached { number(&new.stats["dirty"]["nr_dirty"]) / 256.0 } else { 0.0 },
        if cached { 100.0 * ratio(hits, hits + misses) } else { 0.0 },
        number(&new.stats["devices"][device]["queue"]["in_flight"]),
    ]);
    let tenant = export["tenant"].as_str().map(str::to_owned);
    Row { name: name.to_owned(), tenant, values }
}

/// Latencies of reads and writes in a stage between two samples: (upper bound in us, count), ascending.
pub(super) fn between(old: &Sample, new: &Sample, name: &str, stage: &str) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = Vec::new();
    for op in ["read", "write"] {
        let pairs = |sample: &Sample| -> Vec<(f64, f64)> {
            let found = &sample.histograms["exports"][name][op]["stages"][stage];
            let pairs = found.as_array().into_iter().flatten();
            pairs.map(|pair| (number(&pair[0]), number(&pair[1]))).collect()
        };
        let before = pairs(old);
        for (end, count) in pairs(new) {
            let was = before.iter().find(|(other, _)| *other == end).map_or(0.0, |(_, n)| *n);
            if count > was {
                all.push((end, count - was));
            }
        }
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

pub(super) fn percentile(times: &[(f64, f64)], part: f64) -> f64 {
    let rank = times.iter().map(|(_, count)| count).sum::<f64>() * part;
    let mut seen = 0.0;
    for (end, count) in times {
        seen += count;
        if seen >= rank {
            return *end;
        }
    }
    0.0
}

/// Formats the rows as JSON.
pub fn as_json(rows: &[Row]) -> Value {
    let object = |row: &Row| {
        let values = COLUMNS.iter().zip(&row.values);
        let mut fields: serde_json::Map<String, Value> =
            values.map(|((name, _), value)| ((*name).to_owned(), json!(value))).collect();
        fields.insert("tenant".to_owned(), json!(row.tenant));
        (row.name.clone(), Value::Object(fields))
    };
    Value::Object(rows.iter().map(object).collect())
}

/// Formats a value to fit its column.
pub fn cell(value: f64) -> String {
    match value {
        value if value <= 0.0 => "0".into(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value if value < 1e6 => format!("{value:.0}"),
        value => format!("{:.1}M", value / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, reads: u64, ticks: u64) -> Sample {
        let device = [[1.023, (reads - reads / 10) as f64], [5242.879, (reads / 10) as f64]];
        let stages =
            json!({ "device": device, "limit": [[0.0, reads / 4], [2047.0, reads - reads / 4]] });
        let read = json!({ "count": reads, "bytes": reads * 4096, "sum_us": reads * 2000,
            "stages": stages });
        Sample {
            stats: json!({ "seconds": seconds, "exports": { "a": { "device": "hw0", "cache": "writeback", "tenant": "acme",
                "ops": { "read": { "bios": reads, "merges": reads / 4 } } } },
                "devices": { "hw0": { "queue": { "in_flight": 3 } } },
                "cache": { "hits": 3 * reads, "misses": reads }, "dirty": { "nr_dirty": 512 } }),
            histograms: json!({ "exports": { "a": { "read": read } } }),
            disks: json!([{ "name": "hw0", "fields": { "io_ticks": ticks, "time_in_queue": 4 * ticks } }]),
            ..Sample::default()
        }
    }

    fn value(row: &Row, name: &str) -> f64 {
        row.values[COLUMNS.iter().position(|(column, _)| *column == name).unwrap()]
    }

    #[test]
    fn rates_cover_the_time_between_two_samples() {
        let rows = rows(&sample(10.0, 1_000, 500), &sample(12.0, 1_400, 1_500));
        let row = &rows[0];
        assert_eq!((row.values.len(), row.tenant.as_deref()), (COLUMNS.len(), Some("acme")));
        assert_eq!(as_json(&rows)["a"]["tenant"], "acme");
        let expected = [
            ("r/s", 200.0),
            ("rkB/s", 800.0),
            ("rrqm/s", 50.0),
            ("%rrqm", 25.0),
            ("r_await", 2.0),
            ("rareq-sz", 4.0),
            ("w/s", 0.0),
            ("aqu-sz", 2.0),
            ("%util", 50.0),
            ("limit50", 2.047),
            ("dev50", 0.001_023),
            ("dev99", 5.242_879),
            ("dirtyMB", 2.0),
            ("hit%", 75.0),
            ("queue", 3.0),
        ];
        for (name, expected) in expected {
            assert!((value(row, name) - expected).abs() < 1e-9, "{name}: {}", value(row, name));
        }
    }

    #[test]
    fn restarted_server_and_new_export_have_no_negative_rates() {
        let rows = rows(&sample(500.0, 90_000, 9), &sample(1.0, 40, 5));
        assert!(rows[0].values.iter().all(|value| *value >= 0.0));
        assert_eq!(super::rows(&Sample::default(), &sample(1.0, 40, 5))[0].values[0], 40.0);
    }

    #[test]
    fn cell_fits_its_column() {
        for value in [0.0, 1.234, 99.94, 99.96, 12_345.6, 999_999.4, 1e9] {
            assert!(cell(value).len() <= 7, "{}", cell(value));
        }
    }
}
