//! The answers of the control socket, byte by byte: every method on a server with an export of each kind.
//!
//! `answers.txt` beside this file has them, one call a line and its answer below. What differs from run to run is replaced: counters and
//! times by 1 and 0.5, digits in sentences by N. After a change that is meant, `ANSWERS=write cargo test -p headworks-server answer_tests`
//! makes the file again. `headworks ctl` is tested with the same answers, see `ctl_answer_tests.rs`.

use std::path::Path;

use serde_json::{Value, json};

use super::change_tests::{end, options, spec};
use crate::change::reload_request::{ReloadHook, ReloadOutcome};
use crate::exports::assemble::{Assembly, ExportSource, ExportSpec, TenantSpec};
use crate::options::MissingImage;
use crate::successor::leftovers::Leftovers;
use crate::{
    AccessSpec, Address, ListenerKind, ListenerSpec, LogLevel, ProcessContext, Server,
    ServerOptions, TenantName,
};
use headworks_control::{Method, rpc};
use headworks_images::NewOverlay;
use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::tls::TlsOptions;
use headworks_nbd::wire::CommandFlags;
use headworks_testing::TempDir;

const ANSWERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/server/answers.txt");

/// Objects whose numbers are those of the configuration, by method.
const EXACT: [&str; 15] = [
    "get",
    "set",
    "exports",
    "tenants",
    "listeners",
    "diff",
    "add",
    "remove",
    "resize",
    "failed",
    "discard-failed",
    "refuse-clients",
    "accept-clients",
    "reload",
    "log-level",
];

/// A server with exports of each kind in a folder of its own.
struct Bench {
    folder: TempDir,
    server: Server,
}

impl Bench {
    fn start() -> Self {
        let folder = TempDir::new("answers");
        let file = |name: &str| folder.join(name);
        std::fs::write(file("base.img"), vec![0; 1 << 20]).unwrap();
        std::fs::write(file("disk.img"), vec![0; 1 << 20]).unwrap();
        NewOverlay::new(&file("base.img"), None).unwrap().create(&file("top.hwo")).unwrap();
        let texts = [
            "db=mem:size=4M,cache=writeback,weight=200,ioprio=be:2,tenant=acme,iops-read=100000,latency-target=5ms".to_owned(),
            "slow=delay:read=120ms,of=mem:size=1M".into(),
            "bad=error:op=write,errno=ENOSPC,cache=writeback,of=mem:size=1M".into(),
            format!("disk={}", file("disk.img").display()),
            format!("top=overlay:path={}", file("top.hwo").display()),
            format!("gone={}", file("gone.img").display()),
        ];
        let specs: Vec<ExportSpec> = texts.iter().map(|text| spec(text)).collect();
        let assembly = Assembly::open(&specs, MissingImage::Absent, &Leftovers::default()).unwrap();
        let server = Server::start(assembly, &server_options(&folder), || ()).unwrap();
        Self { folder, server }
    }

    fn client(&self, export: &str) -> Client {
        let uri = format!("nbd+unix:///{export}?socket={}", self.folder.join("all").display());
        Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap()
    }

    fn end(self) {
        end(self.server);
    }

    /// A call with its answer, as the file has them.
    fn call(&self, method: &str, params: &Value) -> String {
        let answer = self.server.service.call(method, params.as_object().unwrap());
        let answer = match answer {
            Ok(answer) => {
                let mut answer = answer;
                let is_exact =
                    EXACT.contains(&method) && !params["path"].as_str().is_some_and(is_counter);
                mask(&mut answer, method, "", is_exact);
                format!("{answer:#}")
            }
            Err(fault) => format!("{:#}", rpc::failure(&Value::Null, &fault)["error"]),
        };
        format!("{method} {params}\n{answer}\n\n").replace(&*self.folder.to_string_lossy(), "/DIR")
    }
}

fn server_options(folder: &Path) -> ServerOptions {
    let tenant = |text: &str| TenantSpec::parse(text, ExportSource::File).unwrap();
    let listener = |name: &str, tenant: Option<&str>| ListenerSpec {
        kind: ListenerKind::Nbd,
        name: name.to_owned(),
        address: Address::Unix { path: folder.join(name), mode: 0o600 },
        owner: None,
        exports: if tenant.is_none() { vec!["*".to_owned()] } else { Vec::new() },
        tenant: tenant.map(|name| TenantName::parse(name).unwrap()),
        tls: TlsOptions::default(),
    };
    let listeners = vec![listener("all", None), listener("acme", Some("acme"))];
    let outcome = ReloadOutcome { changed: vec!["export a added".into()], ..Default::default() };
    ServerOptions {
        access: AccessSpec { listeners, ..AccessSpec::default() },
        tenants: vec![tenant("acme,weight=400,bps-write=500M,ioprio-max=be:1"), tenant("globex")],
        cache: 16 << 20,
        process: ProcessContext {
            log_level: Some(LogLevel::new(|level| level.unwrap_or("info"))),
            reload: Some(ReloadHook::new(move |request| request.answer(outcome.clone()))),
            ..ProcessContext::default()
        },
        ..options(2)
    }
}

/// Whether a path leads to counters.
fn is_counter(path: &str) -> bool {
    path.ends_with("iosched/state") || path.ends_with("io.stat")
}

/// Replaces what differs from run to run. `key` is the name of the value.
fn mask(value: &mut Value, method: &str, key: &str, exact: bool) {
    match value {
        // They depend on when within a second or a slot the question comes.
        _ if ["in_service", "by_whom"].contains(&key) => *value = Value::Null,
        Value::String(word) if key == "raise" => *word = "none".into(),
        Value::Array(notes) if key == "notes" => {
            notes.retain(|note| !note.as_str().is_some_and(|note| note.starts_with("by whom")));
            notes.iter_mut().for_each(|note| mask(note, method, "note", exact));
        }
        Value::Object(all) => {
            if method == "connections" && key == "latency" || key == "stages_us" {
                // A wait has a row if there was one.
                all.retain(|name, _| ["read", "total", "device"].contains(&name.as_str()));
            }
            for (name, value) in all.iter_mut() {
                if method == "connections" || name == "connections" || key == "read" {
                    mask(value, "connections", name, exact);
                } else {
                    mask(value, method, name, exact);
                }
            }
        }
        Value::Array(all) => {
            if method == "histograms" && all.iter().all(Value::is_array) {
                all.truncate(1);
            }
            all.iter_mut().for_each(|value| mask(value, method, key, exact));
        }
        Value::Number(number) if number.is_f64() => *value = json!(0.5),
        Value::Number(_) if exact && key != "minor" && key != "connection" => {}
        Value::Number(_) => *value = json!(1),
        Value::String(text) if ["sentence", "hints", "note", "findings"].contains(&key) => {
            *text = text.chars().map(|one| if one.is_ascii_digit() { 'N' } else { one }).collect();
            while text.contains("NN") {
                *text = text.replace("NN", "N");
            }
        }
        Value::String(text) if key == "peer" => {
            *text = text.replace(|one: char| one.is_ascii_digit(), "")
        }
        _ => {}
    }
}

/// Every method with parameters that it takes, and refusals.
fn calls() -> Vec<(&'static str, Value)> {
    let none = || json!({});
    let mut calls = vec![
        ("get", none()),
        ("get", json!({ "path": "exports/db" })),
        ("get", json!({ "path": "exports/db/io.stat" })),
        ("get", json!({ "path": "exports/db/bps-read" })),
        ("get", json!({ "path": "tenants" })),
        ("get", json!({ "path": "tenants/acme" })),
        ("get", json!({ "path": "hw1/queue/iosched/state" })),
        ("get", json!({ "path": "exports/dbx" })),
        ("get", json!({ "path": 7 })),
        ("set", json!({ "path": "exports/db/weight", "value": 300 })),
        (
            "set",
            json!({ "values": [{ "path": "exports/*/weight", "value": "150" }, { "path": "vm/dirty_bytes", "value": "8M" }] }),
        ),
        ("set", json!({ "path": "hw0/queue/nr_requests", "value": 0 })),
        ("set", json!({ "path": "hw0/queue/nr_requests" })),
        ("set", json!({ "values": [] })),
        ("set", json!({ "values": [7] })),
        ("set", json!({ "path": "exports/db/weight", "value": null })),
        ("stats", none()),
        ("diskstats", none()),
        ("histograms", none()),
        ("histograms", json!({ "export": "slow" })),
        ("histograms", json!({ "export": "slwo" })),
        ("why", json!({ "export": "slow" })),
        ("why", json!({ "op": "read", "seconds": 60 })),
        ("why", json!({ "export": "top", "op": "write", "seconds": 1 })),
        ("why", json!({ "export": "slow", "op": "writes" })),
        ("why", json!({ "seconds": 61 })),
        ("why", json!({ "seconds": "1" })),
        ("connections", none()),
        ("listeners", none()),
        ("exports", none()),
        ("exports", json!({ "name": 1 })),
        ("tenants", none()),
        ("add-tenant", json!({ "tenant": "beta,weight=5" })),
        ("add-tenant", json!({ "tenant": "beta" })),
        ("add-tenant", none()),
        ("add-listener", json!({ "listener": "unix=/no/such/folder/x.sock" })),
        ("add-listener", json!({ "listener": "unix=/x.sock,tenant=nobody" })),
        ("add-listener", json!({ "listener": "unix=/x.sock,owner=me" })),
        ("remove-listener", json!({ "listener": "nobody" })),
        ("remove-tenant", json!({ "tenant": "beta" })),
        ("remove-tenant", json!({ "tenant": "acme" })),
        ("add", json!({ "spec": "new=mem:size=1M", "read_only": false, "cwd": "/" })),
        ("add", json!({ "spec": "new=mem:size=1M" })),
        ("add", json!({ "spec": "ro=disk.img", "read_only": 1 })),
        ("add", json!({ "spec": "new=nem:size=1M" })),
        ("resize", json!({ "export": "new", "size": "2M" })),
        ("resize", json!({ "export": "new", "size": 3 << 20 })),
        ("resize", json!({ "export": "new", "size": "big" })),
        ("resize", json!({ "export": "new", "size": true })),
        ("drain", json!({ "export": "db", "timeout": 60 })),
        ("drain", json!({ "export": "db", "timeout": 3601 })),
        ("drain", json!({ "export": "db", "timeout": "1s" })),
        ("refuse-clients", json!({ "exports": ["new"] })),
        ("refuse-clients", json!({ "exports": [] })),
        ("refuse-clients", json!({ "exports": ["nobody"] })),
        ("exports", none()),
        ("accept-clients", json!({ "exports": ["*"] })),
        ("freeze", json!({ "exports": ["n*", "disk"], "timeout": 60 })),
        ("exports", none()),
        ("thaw", json!({ "exports": ["new", "disk"] })),
        ("thaw", json!({ "exports": ["new"] })),
        ("thaw", json!({ "exports": "new" })),
        ("snapshot", json!({ "export": "top", "file": "monday.hwo" })),
        ("snapshot", json!({ "export": "db", "file": "monday.hwo" })),
        ("snapshot", json!({ "export": "top" })),
        ("cut", json!({ "export": "db" })),
        ("failed", json!({ "export": "bad" })),
        ("failed", json!({ "export": "db" })),
        ("discard-failed", json!({ "export": "bad", "confirm": false })),
        ("discard-failed", json!({ "export": "bad", "confirm": true })),
        ("discard-failed", json!({ "export": "bad", "confirm": 1 })),
        ("remove", json!({ "export": "new", "force": true })),
        ("remove", json!({ "export": "disk" })),
        ("remove", json!({ "export": "disk", "force": 1 })),
        ("remove", json!({ "export": "gone" })),
        ("diff", none()),
        ("reload", none()),
        ("log-level", none()),
        ("log-level", json!({ "level": "debug" })),
        ("log-level", json!({ "level": "loud" })),
        ("acknowledge", none()),
        ("nonsense", none()),
        ("hw", none()),
    ];
    let methods = Method::ALL.iter().filter(|method| **method != Method::Upgrade);
    calls.extend(methods.map(|method| (method.name(), json!({ "nonsense": 1 }))));
    calls
}

#[test]
fn every_method_answers_as_before() {
    let bench = Bench::start();
    bench
        .server
        .service
        .call("set", json!({ "path": "hw1/queue/scheduler", "value": "bfq" }).as_object().unwrap())
        .unwrap();
    let before = bench.call("why", &json!({}));
    let mut clients = ["db", "slow", "bad", "disk"].map(|export| bench.client(export));
    let mut data = [0; 8192];
    clients[0].write(0, &data, CommandFlags::NONE).unwrap();
    clients[0].read(0, &mut data).unwrap();
    clients[0].flush().unwrap();
    for _ in 0..12 {
        clients[1].read(4096, &mut data).unwrap();
    }
    clients[2].write(8192, &data, CommandFlags::NONE).unwrap();
    assert!(clients[2].flush().is_err(), "its write-out fails");
    clients[3].write(0, &data, CommandFlags::NONE).unwrap();
    let answers: String =
        calls().iter().map(|(method, params)| bench.call(method, params)).collect();
    let (result, _guard) = bench.server.service.upgrade(&serde_json::Map::new());
    let refused = rpc::failure(&Value::Null, &result.unwrap_err());
    let answers = before + &answers + &format!("upgrade {{}}\n{:#}\n", refused["error"]);
    drop(clients);
    if std::env::var_os("ANSWERS").is_some_and(|what| what == "write") {
        std::fs::write(ANSWERS, &answers).unwrap();
    }
    let before = std::fs::read_to_string(ANSWERS).unwrap();
    for (now, before) in answers.split("\n\n").zip(before.split("\n\n")) {
        let call = before.lines().next();
        let differs = now.lines().zip(before.lines()).find(|(now, before)| now != before);
        assert_eq!(differs, None, "now and before, in the answer to {call:?}");
        assert_eq!(now.len(), before.len(), "{call:?}");
    }
    assert_eq!(answers.len(), before.len(), "calls");
    bench.end();
}
