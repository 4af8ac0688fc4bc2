//! Every figure of a run is recomputed from its record: requests, bytes, errors and times of each export and operation, as the metrics, `stats`,
//! `histograms` and the status page have them.
//!
//! The record has the inputs of the shard and their times; the same shard makes the same replies of them. What the server counts at a reply
//! is computed from bios and replies alone (`recorded_requests`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant as Clock;

use headworks_core::ExportId;
use headworks_core::prng::Prng;
use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::wire::CommandFlags;
use headworks_testing::{TempDir, TempFile};
use serde_json::{Value, json};

use super::change_tests::{call, options, spec};
use crate::exports::assemble::Assembly;
use crate::observe::metrics::page::metrics_page;
use crate::observe::recorded_requests::{RecordedRequests, recorded_requests};
use crate::observe::recorder::replay_recording;
use crate::observe::status_page::StatusPage;
use crate::{Address, Server, ServerOptions};

const EXPORTS: [&str; 2] = ["plain", "failing"];
const SIZE: u64 = 4 << 20;

/// What a record has of the requests of an export and an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    requests: f64,
    bytes: f64,
    errors: f64,
    seconds: f64,
}

impl Figures {
    fn all(self) -> [(&'static str, f64); 4] {
        let Self { requests, bytes, errors, seconds } = self;
        [("requests", requests), ("bytes", bytes), ("errors", errors), ("seconds", seconds)]
    }
}

type Table = BTreeMap<(String, String), Figures>;

/// The figures of all clients' requests, from the record.
fn recomputed(record: &Path) -> Table {
    let replayed = replay_recording(record).unwrap();
    assert_eq!(Some(replayed.hash), replayed.recorded, "it replays to the same actions");
    let figures = |((export, op), row): ((ExportId, &str), RecordedRequests)| {
        let export = EXPORTS[usize::from(export.0)].to_owned();
        let [requests, bytes, errors, ns] =
            [row.requests, row.bytes, row.errors, row.ns].map(|count| count as f64);
        ((export, op.to_owned()), Figures { requests, bytes, errors, seconds: ns / 1e9 })
    };
    recorded_requests(record).unwrap().into_iter().map(figures).collect()
}

fn by_metrics(page: &str) -> Table {
    let mut all = Table::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let label = |of: &str| {
            let rest = labels.split_once(&format!("{of}=\""))?.1;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let (Some(export), Some(op)) = (label("export"), label("op")) else { continue };
        let row = all.entry((export, op)).or_default();
        let value: f64 = value.parse().unwrap();
        match name {
            "headworks_requests_total" => row.requests += value,
            "headworks_bytes_total" => row.bytes += value,
            "headworks_errors_total" => row.errors += value,
            "headworks_request_stage_seconds_sum" if label("stage").as_deref() == Some("total") => {
                row.seconds += value;
            }
            _ => {}
        }
    }
    all
}

fn by_control(stats: &Value, histograms: &Value) -> Table {
    let mut all = Table::new();
    for (export, ops) in histograms["exports"].as_object().unwrap() {
        for (op, told) in ops.as_object().unwrap() {
            let of = |what: &str| told[what].as_f64().unwrap();
            let errors = &stats["exports"][export]["errors"]["by_op"][op];
            let errors = errors.as_object().into_iter().flat_map(|errors| errors.values());
            let figures = Figures {
                requests: of("count"),
                bytes: of("bytes"),
                errors: errors.filter_map(Value::as_f64).sum(),
                seconds: of("sum_us") / 1e6,
            };
            all.insert((export.clone(), op.clone()), figures);
        }
    }
    all
}

/// Requests of all kinds against an export, one after the other; those that fail are told.
fn mix(uri: &str, seed: u64) {
    let mut client = Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap();
    let (mut random, mut block) = (Prng::new(seed), vec![7; 256 << 10]);
    for _ in 0..400 {
        let len = 4096 << random.below(7);
        let offset = random.below(SIZE / len) * len;
        let _ = match random.below(10) {
            0..=3 => client.read(offset, &mut block[..len as usize]),
            4..=6 => client.write(offset, &block[..len as usize], CommandFlags::NONE),
            7 => client.flush(),
            8 => client.trim(offset, len as u32, CommandFlags::NONE),
            _ => client.write_zeroes(offset, len as u32, CommandFlags::NONE),
        };
    }
    client.disconnect().unwrap();
}

fn check(view: &str, told: &Table, known: &Table) {
    for (key, figures) in known {
        let told = told.get(key).unwrap_or_else(|| panic!("{view} lacks {key:?}"));
        for ((what, told), (_, known)) in told.all().into_iter().zip(figures.all()) {
            let differ = (told - known).abs() / known.max(1e-9);
            assert!(differ <= 0.01, "{view}: {what} of {key:?}: {told}, and {known} by the record");
        }
    }
    assert_eq!(told.values().filter(|row| row.requests > 0.0).count(), known.len(), "{view}");
}

fn sum(table: &Table, export: &str, op: Option<&str>) -> Figures {
    let of = |key: &&(String, String)| key.0 == export && op.is_none_or(|op| key.1 == op);
    table.iter().filter(|(key, _)| of(key)).fold(Figures::default(), |sum, (_, row)| Figures {
        requests: sum.requests + row.requests,
        bytes: sum.bytes + row.bytes,
        errors: sum.errors + row.errors,
        seconds: sum.seconds + row.seconds,
    })
}

/// Runs the mix against a server of both exports in a cache mode, and compares all views with the record.
fn compare(name: &str, mode: &str) {
    let (image, record) = (TempFile::new(name), TempFile::absent(&format!("{name}-record")));
    std::fs::write(image.path(), vec![1; SIZE as usize]).unwrap();
    let folder = TempDir::new(name);
    let specs = [
        format!("plain=file:path={},cache={mode}", image.path().display()),
        format!("failing=error:rate=20%,cache={mode},of=delay:all=100us,of=mem:size={SIZE}"),
    ];
    let specs = specs.each_ref().map(|text| spec(text));
    let options = ServerOptions {
        listen: vec![Address::Unix { path: folder.join("socket"), mode: 0o600 }],
        cache: 16 << 20,
        record: Some(record.path().to_owned()),
        ..options(1)
    };
    let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", folder.join("socket").display());
    let [plain, failing] = EXPORTS.map(uri);
    let other = std::thread::spawn(move || mix(&plain, 1));
    mix(&failing, 2);
    other.join().unwrap();
    let stats = call(&server, "stats", json!({})).unwrap();
    let histograms = call(&server, "histograms", json!({})).unwrap();
    let metrics = metrics_page(server.service.queries(), &server.service.tree()).unwrap();
    let mut page = StatusPage::new(Arc::clone(&server.service));
    let page: Value = serde_json::from_str(&page.data(Clock::now(), 0).unwrap()).unwrap();
    // What could not be written out may fail the last flush.
    server.stop();
    let _ = server.join();
    let known = recomputed(record.path());
    let failed = sum(&known, "failing", None).errors;
    assert!(failed > 20.0 && sum(&known, "plain", None).errors == 0.0, "{known:?}");
    assert_eq!(known.len(), 10, "five operations of two exports: {known:?}");
    check("the metrics", &by_metrics(&metrics), &known);
    check("ctl stats and histograms", &by_control(&stats, &histograms), &known);
    for export in EXPORTS {
        let listed = page["exports"].as_array().unwrap();
        let row = listed.iter().find(|row| row["name"] == export).unwrap();
        let [read, write, flush] =
            ["read", "write", "flush"].map(|op| sum(&known, export, Some(op)));
        let all = sum(&known, export, None);
        let others = all.requests - read.requests - write.requests - flush.requests;
        for (what, known) in [
            ("reads", read.requests),
            ("read_bytes", read.bytes),
            ("writes", write.requests),
            ("write_bytes", write.bytes),
            ("flushes", flush.requests),
            ("others", others),
            ("errors", all.errors),
        ] {
            assert_eq!(row[what].as_f64(), Some(known), "the page: {what} of {export}");
        }
        assert_eq!(stats["exports"][export]["errors"]["total"].as_f64(), Some(all.errors));
    }
}

#[test]
fn all_figures_of_a_recorded_run_follow_from_its_record() {
    compare("recomputed-plain", "none");
}

#[test]
fn all_figures_of_a_recorded_run_with_a_cache_follow_from_its_record() {
    compare("recomputed-cached", "writeback");
}
