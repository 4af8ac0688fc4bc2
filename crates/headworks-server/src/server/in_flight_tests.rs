//! Requests that are not answered yet, as every answer of a server has them: where they wait, for how long, whose they are.

use std::io::Write;
use std::time::{Duration, Instant};

use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};
use serde_json::{Value, json};

use super::change_tests::{call, end, options, spec};
use crate::exports::assemble::{Assembly, ExportSource, TenantSpec};
use crate::observe::metrics::page::metrics_page;
use crate::{Address, Server, ServerOptions};
use headworks_testing::TempDir;

/// Turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(20);

struct Bench {
    folder: TempDir,
    server: Server,
}

impl Bench {
    fn start(name: &str, texts: &[&str]) -> Self {
        let folder = TempDir::new(name);
        let specs: Vec<_> = texts.iter().map(|text| spec(text)).collect();
        let tenant = TenantSpec::parse("acme", ExportSource::File).unwrap();
        let options = ServerOptions {
            listen: vec![Address::Unix { path: folder.join("socket"), mode: 0o600 }],
            cache: 16 << 20,
            tenants: vec![tenant],
            ..options(2)
        };
        let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
        Self { folder, server }
    }

    /// Sends a request of 4 KiB and does not wait for its answer; the client stays as long as what is returned.
    fn send(&self, export: &str, command: Command, count: u64) -> impl Sized + use<> {
        let socket = self.folder.join("socket");
        let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
        let client = Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap();
        let mut socket = client.into_parts().0;
        for cookie in 0..count {
            let len = if command == Command::Flush { 0 } else { 4096 };
            let (offset, flags) = (u64::from(len) * cookie, CommandFlags::NONE);
            let request = Request { cookie, offset, len, command, flags };
            socket.write_all(&request.header()).unwrap();
            if command == Command::Write {
                socket.write_all(&[7; 4096]).unwrap();
            }
        }
        socket
    }

    fn ask(&self, method: &str, params: Value) -> Value {
        call(&self.server, method, params).unwrap()
    }

    fn oldest(&self, export: &str) -> Value {
        self.ask("stats", json!({}))["exports"][export]["in_flight"]["oldest"].clone()
    }

    /// Waits until the oldest request of an export waits there.
    fn until_at(&self, export: &str, stage: &str) -> Value {
        let mut seen = Vec::new();
        let began = Instant::now();
        loop {
            let oldest = self.oldest(export);
            if oldest["stage"] == stage {
                return oldest;
            }
            if !seen.contains(&oldest["stage"]) {
                seen.push(oldest["stage"].clone());
            }
            assert!(began.elapsed() < LIMIT, "{export} waits at {seen:?}, not at {stage}");
            std::thread::yield_now();
        }
    }
}

fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < LIMIT, "it does not happen");
        std::thread::yield_now();
    }
}

#[test]
fn hanging_request_is_named_by_every_answer_while_it_hangs() {
    let texts = ["calm=mem:size=1M", "hung=delay:read=3s,cache=none,tenant=acme,of=mem:size=1M"];
    let bench = Bench::start("in-flight-hung", &texts);
    let _client = bench.send("hung", Command::Read, 2);
    let oldest = bench.until_at("hung", "device");
    assert_eq!((&oldest["op"], &oldest["tenant"]), (&json!("read"), &json!("acme")));
    assert_eq!(oldest["exports"], json!(["hung"]));
    // No request has completed: this is what `why` says, without a name, too.
    let why = until(|| {
        let why = bench.ask("why", json!({}));
        let waits = why["findings"][0].as_str().is_some_and(|told| told.contains("has waited in"));
        waits.then_some(why)
    });
    let (sentence, connection) = (why["sentence"].as_str().unwrap(), &oldest["connection"]);
    assert!(sentence.starts_with("hung: "), "{sentence}");
    let whose = format!("of 4 KiB at 0, connection {connection} of tenant acme");
    assert!(sentence.ends_with(&whose), "{sentence}");
    assert_eq!(why["in_flight"]["longer"], 0);
    let calm = bench.ask("why", json!({ "export": "calm" }));
    assert_eq!((&calm["findings"], &calm["slow"]), (&json!([]), &json!(false)), "{calm}");
    let device = oldest["device"].as_str().unwrap();
    let stats = bench.ask("stats", json!({}));
    assert_eq!(stats["devices"][device]["oldest"]["exports"], json!(["hung"]));
    let one = &stats["connections"][0];
    assert!(one["oldest_s"].as_f64().is_some_and(|age| age >= 1.0), "{one}");
    let exports = bench.ask("exports", json!({}));
    assert_eq!(exports[1]["in_flight"]["up_to_10s"].as_u64().map(|count| count > 0), Some(true));
    let page = metrics_page(bench.server.service.queries(), &bench.server.service.tree()).unwrap();
    let ages = |label: &str| {
        let row = format!("headworks_oldest_request_seconds{{{label}");
        let line = page.lines().find(|line| line.starts_with(&row)).expect(label);
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert!(ages("export=\"hung\"") >= 1.0 && ages(&format!("device=\"{device}\"")) >= 1.0);
    assert!(ages("export=\"calm\"") == 0.0);
    end(bench.server);
}

#[test]
fn stage_of_a_waiting_request_is_known_from_limit_to_device_of_another_shard() {
    let texts = [
        "limited=mem:size=1M,cache=none,iops-read=1",
        "frozen=mem:size=1M,cache=none",
        "a=delay:read=2s,of=mem:size=1M",
        "b=delay:read=2s,of=mem:size=1M",
        "c=delay:flush=2s,write=2s,of=mem:size=1M",
    ];
    let bench = Bench::start("in-flight-stages", &texts);
    // Cached volumes are on both shards, and their device on one of them.
    let clients = ["a", "b"].map(|export| bench.send(export, Command::Read, 1));
    let flush = (bench.send("c", Command::Write, 1), bench.send("c", Command::Flush, 1));
    for export in ["a", "b", "c"] {
        bench.until_at(export, "device");
    }
    let limited = bench.send("limited", Command::Read, 3);
    bench.until_at("limited", "limit");
    bench.ask("freeze", json!({ "exports": ["frozen"] }));
    let frozen = bench.send("frozen", Command::Write, 1);
    assert_eq!(bench.until_at("frozen", "freeze")["op"], "write");
    bench.ask("thaw", json!({ "exports": ["frozen"] }));
    until(|| bench.oldest("frozen").is_null().then_some(()));
    drop((clients, flush, limited, frozen));
    end(bench.server);
}

#[test]
fn errors_and_states_are_named_with_one_count_everywhere() {
    let texts = [
        "bad=error:op=write,errno=ENOSPC,cache=none,of=mem:size=1M",
        "held=error:op=write,cache=writeback,of=mem:size=1M",
        "shut=mem:size=1M",
    ];
    let bench = Bench::start("in-flight-errors", &texts);
    let clients = (bench.send("bad", Command::Write, 5), bench.send("bad", Command::Read, 2));
    let errors = until(|| {
        let errors = bench.ask("stats", json!({}))["exports"]["bad"]["errors"].clone();
        (errors["total"] == 5).then_some(errors)
    });
    let last = &errors["last"];
    assert_eq!((&last["error"], &last["offset"]), (&json!("ENOSPC"), &json!(16384)), "{errors}");
    let why = bench.ask("why", json!({ "export": "bad" }));
    let sentence = why["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("bad: 5 of 5 writes failed, the last "), "{why}");
    assert!(sentence.contains(" ago: ENOSPC at offset 16384, connection "), "{sentence}");
    assert_eq!(why["errors"]["by_op"], json!({ "write": { "nospc": 5 } }));
    assert!(!why.to_string().contains("nothing is slow"), "{why}");
    let page = metrics_page(bench.server.service.queries(), &bench.server.service.tree()).unwrap();
    let row = "headworks_errors_total{export=\"bad\",op=\"write\",error=\"nospc\"} 5";
    assert!(page.contains(row) && page.contains("headworks_device_errors_total{device="), "{page}");
    // Without a name it is found, too, when its shard has ticked.
    until(|| {
        let why = bench.ask("why", json!({}));
        why["sentence"].as_str().is_some_and(|told| told.starts_with("bad: 5 of")).then_some(())
    });
    let held = (bench.send("held", Command::Write, 1), bench.send("held", Command::Flush, 1));
    let first = |export: &str| bench.ask("why", json!({ "export": export }))["sentence"].clone();
    let told = |export: &str, part: &str| {
        until(|| first(export).as_str().is_some_and(|told| told.contains(part)).then_some(()));
    };
    told("held", "could not be written (input/output error): flushes fail");
    bench.ask("refuse-clients", json!({ "exports": ["shut"] }));
    told("shut", "it refuses new clients until `ctl accept-clients shut`");
    bench.ask("freeze", json!({ "exports": ["shut"] }));
    told("shut", "it is frozen");
    bench.ask("thaw", json!({ "exports": ["shut"] }));
    drop((clients, held));
    bench.ask("discard-failed", json!({ "export": "held", "confirm": true }));
    end(bench.server);
}
