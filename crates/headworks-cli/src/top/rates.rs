//! Rows of `top`: rates and times between two samples of a server's counters.
//!
//! Requests, bytes and times are those of clients; merges, discards, flushes, queue size and utilization those of the
//! device queue, with the names of iostat -x. `%util` is the share of time with a request in flight, not a measure of
//! saturation.

use headworks_control::answers::{
    CacheStats, DiskCounters, DiskRow, Export, ExportStats, Histograms, OpHistogram, OpStats,
    Stats, Why,
};
use headworks_control::param::RequestOp;
use serde_json::{Value, json};

/// One sample of a server's counters.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Answer of the method `stats`.
    pub stats: Stats,
    /// Answer of the method `histograms`.
    pub histograms: Histograms,
    /// Answer of the method `diskstats`.
    pub disks: Vec<DiskRow>,
    /// Answer of the method `exports`.
    pub exports: Vec<Export>,
    /// Answer of the method `why` for the worst export of the last ten seconds; none of an older server.
    pub why: Option<Why>,
}

impl Sample {
    /// Latencies of an export's requests of an operation.
    pub(super) fn clients(&self, name: &str, op: &str) -> Option<&OpHistogram> {
        self.histograms.exports.as_ref()?.get(name)?.get(op)
    }

    /// Counters of an export.
    pub(super) fn export(&self, name: &str) -> Option<&ExportStats> {
        self.stats.exports.get(name)
    }
}

/// Columns of a row with their explanation, in order.
pub const COLUMNS: [(&str, &str); 36] = [
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
    ("fl/s", "clients' flushes completed per second"),
    ("fl99", "their 99th percentile, ms"),
    ("d/s", "discards per second"),
    ("dkB/s", "KiB discarded per second"),
    ("d_await", "average discard time in the queue, ms"),
    ("f/s", "device flushes per second"),
    ("f_await", "average device flush time, ms"),
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
    ("err/s", "error replies per second"),
    ("oldest", "age of its oldest request that is not answered, s"),
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

/// Growth of a counter between two samples.
pub(super) fn growth(old: &Sample, new: &Sample, of: impl Fn(&Sample) -> Option<f64>) -> f64 {
    let at = |sample| of(sample).unwrap_or_default();
    // A restarted server counts from zero.
    (at(new) - at(old)).max(0.0)
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Seconds between two samples.
pub(super) fn seconds(old: &Sample, new: &Sample) -> f64 {
    growth(old, new, |sample| Some(sample.stats.seconds)).max(1e-3)
}

/// Returns the rows of all exports between two samples; with an empty first one, since the server's start.
pub fn rows(old: &Sample, new: &Sample) -> Vec<Row> {
    let seconds = seconds(old, new);
    new.stats.exports.iter().map(|(name, export)| row(old, new, (name, export), seconds)).collect()
}

fn row(old: &Sample, new: &Sample, (name, export): (&str, &ExportStats), seconds: f64) -> Row {
    let clients = |op: &str, what: fn(&OpHistogram) -> f64| {
        growth(old, new, |sample| sample.clients(name, op).map(what))
    };
    let queue = |op: &str, what: fn(&OpStats) -> u64| {
        growth(old, new, |sample| Some(what(sample.export(name)?.ops.get(op)?) as f64))
    };
    let side = |op: &str| {
        let (count, bytes) = (clients(op, |it| it.count as f64), clients(op, |it| it.bytes as f64));
        let (merges, bios) = (queue(op, |it| it.merges), queue(op, |it| it.bios));
        let kib = bytes / 1024.0;
        [
            count / seconds,
            kib / seconds,
            merges / seconds,
            100.0 * ratio(merges, bios),
            ratio(clients(op, |it| it.sum_us) / 1000.0, count),
            ratio(kib, count),
        ]
    };
    let (discards, flushes) =
        (queue("discard", |it| it.requests), queue("flush", |it| it.requests));
    let device = &*export.device;
    let disk = |what: fn(&DiskCounters) -> u64| {
        growth(old, new, |sample| {
            let own = sample.disks.iter().find(|disk| disk.name == device)?;
            Some(what(&own.fields) as f64)
        })
    };
    let mut values = Vec::with_capacity(COLUMNS.len());
    values.extend(side("read"));
    values.extend(side("write"));
    values.extend([
        clients("flush", |it| it.count as f64) / seconds,
        percentile(&between(old, new, (name, "total"), &["flush"]), 0.99) / 1e3,
    ]);
    values.extend([
        discards / seconds,
        queue("discard", |it| it.bytes) / 1024.0 / seconds,
        ratio(queue("discard", |it| it.time_ns) / 1e6, discards),
        flushes / seconds,
        ratio(queue("flush", |it| it.time_ns) / 1e6, flushes),
        disk(|it| it.time_in_queue) / 1000.0 / seconds,
        (disk(|it| it.io_ticks) / 10.0 / seconds).min(100.0),
    ]);
    for stage in ["limit", "plug", "tag", "sched", "device"] {
        let times = between(old, new, (name, stage), &RequestOp::ALL);
        values.extend([percentile(&times, 0.5) / 1e3, percentile(&times, 0.99) / 1e3]);
    }
    let cache = |what: fn(&CacheStats) -> u64| {
        growth(old, new, |sample| Some(what(sample.stats.cache.as_ref()?) as f64))
    };
    let (hits, misses) = (cache(|it| it.hits), cache(|it| it.misses));
    let cached = export.cache != "none";
    let dirty = new.stats.dirty.as_ref().map_or(0, |dirty| dirty.nr_dirty);
    let in_queue = new.stats.devices.get(device).map_or(0, |it| it.queue.in_flight);
    values.extend([
        if cached { dirty as f64 / 256.0 } else { 0.0 },
        if cached { 100.0 * ratio(hits, hits + misses) } else { 0.0 },
        in_queue.into(),
        growth(old, new, |sample| Some(sample.export(name)?.errors.total as f64)) / seconds,
        export.in_flight.oldest.as_ref().map_or(0.0, |oldest| oldest.age_s),
    ]);
    Row { name: name.to_owned(), tenant: export.tenant.clone(), values }
}

/// Latencies of an export's requests of some operations in a stage between two samples: (upper bound in us, count), ascending.
pub(super) fn between(
    old: &Sample,
    new: &Sample,
    (name, stage): (&str, &str),
    ops: &[&str],
) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, f64)> = Vec::new();
    for op in ops {
        let pairs = |sample: &Sample| -> Vec<(f64, u64)> {
            let found = sample.clients(name, op).and_then(|it| it.stages.get(stage));
            found.cloned().unwrap_or_default()
        };
        let before = pairs(old);
        for (end, count) in pairs(new) {
            let was = before.iter().find(|(other, _)| *other == end).map_or(0, |(_, n)| *n);
            if count > was {
                all.push((end, (count - was) as f64));
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

    fn told<T: serde::de::DeserializeOwned>(answer: Value) -> T {
        serde_json::from_value(answer).unwrap()
    }

    fn sample(seconds: f64, reads: u64, ticks: u64) -> Sample {
        let device = json!([[1.023, reads - reads / 10], [5242.879, reads / 10]]);
        let stages =
            json!({ "device": device, "limit": [[0.0, reads / 4], [2047.0, reads - reads / 4]] });
        let read = json!({ "count": reads, "bytes": reads * 4096, "sum_us": reads * 2000,
            "stages": stages });
        Sample {
            stats: told(
                json!({ "seconds": seconds, "exports": { "a": { "device": "hw0", "cache": "writeback", "tenant": "acme",
                "in_flight": { "oldest": { "age_s": 17.0 } }, "ops": { "read": { "bios": reads, "merges": reads / 4 } } } },
                "devices": { "hw0": { "queue": { "in_flight": 3 } } },
                "cache": { "hits": 3 * reads, "misses": reads }, "dirty": { "nr_dirty": 512 } }),
            ),
            histograms: told(json!({ "exports": { "a": { "read": read } } })),
            disks: told(
                json!([{ "name": "hw0", "fields": { "io_ticks": ticks, "time_in_queue": 4 * ticks } }]),
            ),
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
            ("oldest", 17.0),
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
