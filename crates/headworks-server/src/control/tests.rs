//! Methods of the control socket against scripted shards: refusals, silence, and a server that ends.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    Control, ExportId, IoError, QueueOptions, ShardConfig, ShardId, Status, TenantId, VolumeId,
    VolumeOptions,
};
use serde_json::{Value, json};

use super::exports::{Export, Exports};
use super::inventory::Inventory;
use super::service::{ControlService, log_level};
use super::shards::{Deadlines, ShardLink};
use super::tree::Tree;
use super::tree::tests::tree;
use crate::exports::assemble::Assembly;
use crate::exports::assemble::ExportSpec;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::query::{
    ControlQuery, DeviceReport, FailedRange, LatencyPart, SlowReport, VolumeReport,
};
use crate::reactor::shared::ServerShared;
use crate::spec::Spec;
use crate::spec::log_level::LogLevel;
use headworks_control::{RpcFault, RpcResult};

mod recorded;
mod staged;

/// Behaviour of the scripted shards.
#[derive(Clone, Copy)]
enum Manner {
    /// Changes of options end with this status.
    Switch(Status),
    /// Queries are kept and never answered.
    Silent,
    /// Only queries of devices are answered.
    Stuck,
    /// Queries are dropped, as by a shard that has ended.
    Gone,
}

struct Bench {
    service: Option<ControlService>,
    shards: Vec<JoinHandle<Vec<String>>>,
}

/// Answers a query as a scripted shard does that carries out everything.
fn shard_query(query: ControlQuery) {
    let (mail, mails) = channel();
    mail.send(ControlMessage::Query(query)).unwrap();
    drop(mail);
    shard(mails, Manner::Switch(Ok(())));
}

/// A scripted shard; returns what it was told when its channel closes.
fn shard(mails: Receiver<ControlMessage>, manner: Manner) -> Vec<String> {
    let (mut options, mut kept, mut told) = (QueueOptions::default(), Vec::new(), Vec::new());
    options.io_timeout_ns = 1_000_000;
    for mail in mails {
        let ControlMessage::Query(question) = mail else { continue };
        match (manner, question) {
            (Manner::Gone, _) => {}
            (Manner::Silent, question) => kept.push(question),
            (_, ControlQuery::Device { answer, .. }) => {
                let report = DeviceReport {
                    state: headworks_core::DeviceState::Live,
                    options,
                    queue: Default::default(),
                    busy_ns: 0,
                    tags: Default::default(),
                    tags_depth: 0,
                    tags_free: 0,
                    smallest_ns: None,
                    oldest: None,
                    ops: Default::default(),
                };
                answer.send(report).unwrap();
            }
            (Manner::Stuck, question) => kept.push(question),
            (_, ControlQuery::Elevator { answer, .. }) => answer.send(None).unwrap(),
            (Manner::Switch(status), ControlQuery::Set { tunable, value, answer, .. }) => {
                if status.is_ok() {
                    tunable.set(&mut options, value).unwrap();
                }
                answer.send(status).unwrap();
            }
            (_, ControlQuery::Volume { answer, .. }) => {
                let report =
                    VolumeReport { stats: Default::default(), unflushed: 3, suspect: true };
                answer.send(report).unwrap();
            }
            (Manner::Switch(status), ControlQuery::SetDirty { tunable, value, answer }) => {
                told.push(format!("{} {value}", tunable.name()));
                answer.send(status).unwrap();
            }
            (_, ControlQuery::Cache { answer }) => answer.send(Default::default()).unwrap(),
            (_, ControlQuery::ExportBlocks { exports, answer }) => {
                answer.send(vec![(1, 2); exports.len()]).unwrap();
            }
            (_, ControlQuery::Buffers { answer }) => answer.send(Default::default()).unwrap(),
            (_, ControlQuery::BufferUsers { answer }) => answer.send(Vec::new()).unwrap(),
            (_, ControlQuery::Failed { answer, .. }) => {
                let range = FailedRange { offset: 8192, len: 4096, error: IoError::Medium };
                answer.send(vec![range; 2]).unwrap();
            }
            (_, ControlQuery::Tell { control, answer }) => {
                told.push(format!("{control:?}"));
                answer.send(()).unwrap();
            }
            (_, ControlQuery::ExportIoprio { export, ioprio, answer }) => {
                told.push(format!("{} {ioprio}", export.0));
                answer.send(()).unwrap();
            }
            (_, ControlQuery::SetLimits { target, limits, answer }) => {
                let words: Vec<String> = crate::spec::limit_words::limit_words(&limits)
                    .map(|(key, word)| format!("{key}={word}"))
                    .collect();
                told.push(format!("{target:?} {}", words.join(",")));
                answer.send(()).unwrap();
            }
            (_, ControlQuery::Limits { answer }) => answer.send(Vec::new()).unwrap(),
            (_, ControlQuery::InFlight { answer, .. }) => {
                answer.send((Vec::new(), None)).unwrap();
            }
            (_, ControlQuery::Exports { answer }) => answer.send(Vec::new()).unwrap(),
            (_, ControlQuery::LastErrors { answer }) => {
                answer.send((headworks_core::Instant(0), Vec::new())).unwrap();
            }
            (_, ControlQuery::BioWaits { ids, answer }) => {
                answer.send(vec![None; ids.len()]).unwrap();
            }
            (_, ControlQuery::SlowestExports { answer, .. }) => answer.send(Vec::new()).unwrap(),
            (_, ControlQuery::DeviceUses { answer }) => answer.send(Vec::new()).unwrap(),
            (_, ControlQuery::Usage { answer, .. }) => answer.send(Default::default()).unwrap(),
            (_, ControlQuery::Targets { answer }) => answer.send(Default::default()).unwrap(),
            // Only the first device is known.
            (_, ControlQuery::SmallestLatency { device, answer }) => {
                answer.send((device.0 == 0).then_some(150_001)).unwrap();
            }
            (_, ControlQuery::ConnectionIoprio { connection, answer, .. }) => {
                answer.send(connection == 7).unwrap();
            }
            (_, ControlQuery::Turns { answer }) => answer.send(Default::default()).unwrap(),
            (_, ControlQuery::Latency { answer, .. }) => {
                answer.send(LatencyPart { reports: Vec::new(), next: None }).unwrap();
            }
            (_, ControlQuery::Slow { answer, .. }) => {
                let (now, slowest) = (headworks_core::Instant(0), Vec::new());
                let alone_ns = Default::default();
                let report = SlowReport {
                    now,
                    requests: 0,
                    slowest,
                    alone_ns,
                    writeback: None,
                    frozen: false,
                    errors: Default::default(),
                    answered: 0,
                };
                answer.send(report).unwrap();
            }
            (_, ControlQuery::Connections { answer, .. }) => {
                answer.send((Vec::new(), None)).unwrap()
            }
            (_, ControlQuery::Owner { answer, .. }) => answer.send(()).unwrap(),
            (
                _,
                ControlQuery::Drain { .. }
                | ControlQuery::Freeze { .. }
                | ControlQuery::FrozenWrites { .. }
                | ControlQuery::Thaw { .. },
            ) => {}
        }
    }
    told
}

/// An inventory without anything.
fn inventory() -> Inventory {
    let volume = VolumeOptions { size: 512, block_size: 512, ..VolumeOptions::default() };
    let config = ShardConfig::single(QueueOptions::default(), volume, 1);
    let named = |name: &str| {
        let spec = ExportSpec::new(name.to_owned(), Spec::parse("mem:size=512").unwrap(), false);
        Export::new(&spec, TenantId::NONE, (VolumeId(0), &volume))
    };
    let exports = Arc::new(Exports::new(["db", "logs", ""].map(named).into_iter()));
    Inventory::new(exports, &Assembly::default(), &config, false, Vec::new(), Vec::new())
}

impl Bench {
    fn new(manner: Manner) -> Self {
        Self::with_tree(manner, tree())
    }

    fn with_tree(manner: Manner, tree: Tree) -> Self {
        let (boxes, mails): (Vec<_>, Vec<_>) = (0..2).map(|_| channel()).unzip();
        let start = |mails| std::thread::spawn(move || shard(mails, manner));
        let shards = mails.into_iter().map(start).collect();
        let shared = Arc::new(ServerShared::new(boxes, 3, Box::new(|| ())));
        let mut link = ShardLink::new(shared, 2);
        if matches!(manner, Manner::Silent | Manner::Stuck) {
            let limit = Duration::from_millis(50);
            link = link.with_deadlines(Deadlines { answer: limit, switch: limit });
        }
        let service = ControlService::new(link, tree, DirtyOptions::default(), inventory());
        Self { service: Some(service), shards }
    }

    fn call(&self, method: &str, params: Value) -> RpcResult {
        self.service.as_ref().unwrap().call(method, params.as_object().unwrap())
    }

    /// The errno of a refusal.
    fn refused(&self, method: &str, params: Value) -> String {
        let fault = self.call(method, params).unwrap_err();
        let answer = headworks_control::rpc::failure(&Value::Null, &fault);
        answer["error"]["data"]["errno"].as_str().unwrap_or("none").to_owned()
    }

    /// Ends the shards; returns what each was told.
    fn told(mut self) -> Vec<Vec<String>> {
        drop(self.service.take());
        self.shards.drain(..).map(|shard| shard.join().unwrap()).collect()
    }
}

fn set(path: &str, value: Value) -> Value {
    json!({ "path": path, "value": value })
}

#[test]
fn set_answers_with_value_in_force() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let path = "hw0/queue/scheduler";
    let answer = bench.call("set", set(path, json!("mq-deadline")));
    assert_eq!(answer, Ok(json!({ path: "none [mq-deadline] bfq" })));
    assert_eq!(bench.call("get", json!({ "path": path })), answer);
    let path = "exports/db/queue/nr_requests";
    for value in [json!(7), json!("7"), json!(" 7\n")] {
        assert_eq!(bench.call("set", set(path, value)), Ok(json!({ path: 7 })));
    }
    let flag = "hw0/queue/iosched/front_merges";
    assert_eq!(bench.call("set", set(flag, json!(false))), Ok(json!({ flag: 0 })));
}

#[test]
fn async_depth_is_refused_where_the_scheduler_owns_shares() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let path = "hw0/queue/iosched/async_depth";
    assert_eq!(bench.call("set", set(path, json!(9))), Ok(json!({ path: 9 })));
    bench.call("set", set("hw0/queue/scheduler", json!("bfq"))).unwrap();
    assert_eq!(bench.refused("set", set(path, json!(8))), "EINVAL");
    let fault = bench.call("set", set(path, json!(8))).unwrap_err();
    assert!(fault.message().contains("scheduler bfq") && !fault.message().contains('\n'));
    assert_eq!(bench.call("get", json!({ "path": path })), Ok(json!({ path: 9 })));
}

#[test]
fn upgrade_needs_a_program_that_carries_it_out() {
    let bench = Bench::new(Manner::Gone);
    let service = bench.service.as_ref().unwrap();
    let (result, guard) = service.upgrade(&Default::default());
    assert!(result.unwrap_err().message().contains("cannot replace itself"));
    assert!(guard.is_none());
    let params = json!({ "program": "/bin/sh" });
    let (result, _) = service.upgrade(params.as_object().unwrap());
    assert!(result.unwrap_err().message().contains("no `program`"));
}

#[test]
fn shard_refusal_maps_to_errno() {
    for (error, errno) in [
        (IoError::Busy, "EBUSY"),
        (IoError::Invalid, "EINVAL"),
        (IoError::Unsupported, "ENOTSUP"),
        (IoError::Medium, "EIO"),
    ] {
        let bench = Bench::new(Manner::Switch(Err(error)));
        assert_eq!(bench.refused("set", set("hw0/queue/nr_requests", json!(7))), errno);
        let value = bench.call("get", json!({ "path": "hw0/queue/nr_requests" }));
        assert_eq!(value, Ok(json!({ "hw0/queue/nr_requests": 256 })));
    }
}

#[test]
fn silent_shard_times_out_and_ended_shard_fails_at_once() {
    let silent = Bench::new(Manner::Silent);
    assert_eq!(silent.refused("get", json!({})), "ETIMEDOUT");
    assert_eq!(silent.refused("stats", json!({})), "ETIMEDOUT");
    let stuck = Bench::new(Manner::Stuck);
    assert_eq!(stuck.refused("set", set("hw0/queue/nomerges", json!(1))), "ETIMEDOUT");
    let gone = Bench::new(Manner::Gone);
    for method in ["get", "stats", "diskstats", "connections"] {
        assert_eq!(gone.refused(method, json!({})), "ESHUTDOWN", "{method}");
    }
    assert_eq!(gone.refused("set", set("exports/db/weight", json!(5))), "ESHUTDOWN");
    // No shard was told, so nothing changed.
    let weight = json!({ "path": "exports/db/weight" });
    assert_eq!(gone.call("get", weight), Ok(json!({ "exports/db/weight": 100 })));
}

#[test]
fn weights_and_classes_reach_every_shard() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    bench.call("set", set("exports/logs/weight", json!(400))).unwrap();
    bench.call("set", set("exports/logs/ioprio", json!("rt:1"))).unwrap();
    let get = bench.call("get", json!({ "path": "exports/logs" })).unwrap();
    assert_eq!(
        (&get["exports/logs/weight"], &get["exports/logs/ioprio"]),
        (&json!(400), &json!("rt,1"))
    );
    let discarded = bench.call("discard-failed", json!({ "export": "logs", "confirm": true }));
    let expected = json!({ "export": "logs", "was_suspect": true, "unflushed": 3,
        "failed_bytes": 8192, "discarded": true });
    assert_eq!(discarded, Ok(expected));
    let unknown = json!({ "export": "nobody", "confirm": true });
    assert_eq!(bench.refused("discard-failed", unknown), "ENOENT");
    let weight = format!("{:?}", Control::Weight { export: ExportId(1), weight: 400 });
    let known = format!("{:?}", Control::Acknowledge { volume: VolumeId(1) });
    let both = vec![weight, "1 rt,1".to_owned()];
    assert_eq!(bench.told(), [[both.clone(), vec![known]].concat(), both]);
}

fn set_several(values: &[(&str, Value)]) -> Value {
    let values: Vec<Value> = values.iter().map(|(path, value)| set(path, value.clone())).collect();
    json!({ "values": values })
}

#[test]
fn several_values_are_set_or_none() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let good = [
        ("exports/db/weight", json!(300)),
        ("exports/db/ioprio", json!("be:2")),
        // Neither of these limits is valid without the other.
        ("exports/db/bps-write-max", json!("20M")),
        ("exports/db/bps-write", json!("10M")),
    ];
    let shown = json!({ "exports/db/weight": 300, "exports/db/ioprio": "be,2",
        "exports/db/bps-write-max": "20M", "exports/db/bps-write": "10M" });
    assert_eq!(bench.call("set", set_several(&good)), Ok(shown));
    for (path, value, errno) in [
        ("exports/db/weight", "x", "EINVAL"),
        ("exports/db/wait", "1", "ENOENT"),
        ("exports/db/cache", "none", "EACCES"),
        ("exports/db", "1", "EISDIR"),
        ("exports/db/bps-write-max", "1K", "EINVAL"),
        ("tenants/acme/cache-min", "900T", "EINVAL"),
        ("exports/db/tenant", "nobody", "ENOENT"),
        ("vm/dirty_bytes", "1", "EINVAL"),
    ] {
        let wrong = set_several(&[("exports/logs/weight", json!(7)), (path, json!(value))]);
        assert_eq!(bench.refused("set", wrong), errno, "{path}");
    }
    let path = "exports/logs/weight";
    assert_eq!(bench.call("get", json!({ "path": path })), Ok(json!({ path: 100 })));
}

#[test]
fn pattern_sets_every_name_that_fits() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let both = json!({ "exports/db/weight": 50, "exports/logs/weight": 50 });
    let two = ["exports/db/weight", "exports/logs/weight"];
    assert_eq!(
        bench
            .call("set", set("exports/??*/weight", json!(50)))
            .map(|all| { two.map(|path| all[path].clone()) }),
        Ok(two.map(|path| both[path].clone()))
    );
    // The exports of one device have one queue.
    let queues = bench.call("set", set("exports/*/queue/nomerges", json!(1))).unwrap();
    assert_eq!(queues.as_object().unwrap().len(), 2, "{queues}");
    let fault = bench.call("set", set("exports/lgos-*/weight", json!(5))).unwrap_err();
    assert!(fault.message().starts_with("nothing fits exports/lgos-*/weight; "), "{fault:?}");
    let near = bench.call("set", set("exports/log?s/weight", json!(5))).unwrap_err();
    assert!(near.message().contains("exports/logs/weight"), "{near:?}");
}

#[test]
fn at_most_1024_values_are_set_at_once() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let many = |count: u64| {
        let value = |index| set("exports/db/iops-total", json!(1 + index));
        json!({ "values": (0..count).map(value).collect::<Vec<_>>() })
    };
    assert_eq!(bench.refused("set", many(1025)), "E2BIG");
    let last = bench.call("set", many(1024)).unwrap();
    assert_eq!(last, json!({ "exports/db/iops-total": "1024" }));
}

#[test]
fn refusal_of_a_device_names_what_was_set_before() {
    let bench = Bench::new(Manner::Switch(Err(IoError::Invalid)));
    let wanted = set_several(&[("exports/db/weight", json!(70)), ("hw0/queue/nomerges", json!(1))]);
    let fault = bench.call("set", wanted).unwrap_err();
    assert!(fault.message().ends_with("; set before it: exports/db/weight"), "{fault:?}");
}

#[test]
fn values_of_set_are_objects_with_path_and_value() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    for wrong in [
        json!({ "values": [] }),
        json!({ "values": ["exports/db/weight"] }),
        json!({ "values": [{ "path": "exports/db/weight" }] }),
        json!({ "values": [set("exports/db/weight", json!(1))], "path": "exports/db/weight" }),
        json!({ "values": 1 }),
    ] {
        assert!(bench.call("set", wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn discard_failed_without_confirm_reports_and_changes_nothing() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let expected = json!({ "export": "logs", "was_suspect": true, "unflushed": 3,
        "failed_bytes": 8192, "discarded": false });
    for params in [json!({ "export": "logs" }), json!({ "export": "logs", "confirm": false })] {
        assert_eq!(bench.call("discard-failed", params), Ok(expected.clone()));
    }
    let wrong = json!({ "export": "logs", "confirm": "yes" });
    assert!(bench.call("discard-failed", wrong).is_err());
    let old = bench.call("acknowledge", json!({ "export": "logs" })).unwrap_err();
    let old = headworks_control::rpc::failure(&Value::Null, &old);
    assert!(old["error"]["message"].as_str().unwrap().contains("`discard-failed`"), "{old}");
    assert_eq!(bench.told(), [[""; 0]; 2]);
}

#[test]
fn set_divides_dirty_bytes_among_caching_shards() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let path = "vm/dirty_bytes";
    assert_eq!(bench.call("set", set(path, json!("64M"))), Ok(json!({ path: 64 << 20 })));
    assert_eq!(
        bench.call("get", json!({ "path": "vm/dirty_ratio" })),
        Ok(json!({ "vm/dirty_ratio": 0 }))
    );
    bench.call("set", set("vm/dirty_ratio", json!(30))).unwrap();
    assert_eq!(bench.call("get", json!({ "path": path })), Ok(json!({ path: 0 })));
    let throttle = "vm/hw_throttle";
    let shown = Ok(json!({ throttle: "ioless [none]" }));
    assert_eq!(bench.call("set", set(throttle, json!("none"))), shown);
    // Enough for the server, too little for each shard; and no limit at all.
    for value in ["8192", "0", "lots"] {
        assert_eq!(bench.refused("set", set(path, json!(value))), "EINVAL", "{value}");
    }
    assert_eq!(bench.call("get", json!({ "path": path })), Ok(json!({ path: 0 })));
    let each = ["dirty_bytes 33554432", "dirty_ratio 30", "hw_throttle 2"];
    assert_eq!(bench.told(), [each, each]);
}

#[test]
fn refused_write_back_option_is_not_shown() {
    let bench = Bench::new(Manner::Switch(Err(IoError::Invalid)));
    assert_eq!(bench.refused("set", set("vm/dirty_ratio", json!(30))), "EINVAL");
    let before = json!({ "vm/dirty_ratio": 20 });
    assert_eq!(bench.call("get", json!({ "path": "vm/dirty_ratio" })), Ok(before));
}

#[test]
fn failed_ranges_come_from_home_and_discard_reaches_owner() {
    let mut tree = tree();
    tree.exports[1].home = ShardId(1);
    let bench = Bench::with_tree(Manner::Switch(Ok(())), tree);
    let range = json!({ "offset": 8192, "bytes": 4096, "error": IoError::Medium.to_string() });
    let expected = json!({ "export": "logs", "ranges": [range, range] });
    assert_eq!(bench.call("failed", json!({ "export": "logs" })), Ok(expected));
    assert_eq!(bench.refused("failed", json!({ "export": "nobody" })), "ENOENT");
    bench.call("discard-failed", json!({ "export": "logs", "confirm": true })).unwrap();
    let known = format!("{:?}", Control::Acknowledge { volume: VolumeId(1) });
    assert_eq!(bench.told(), [[known.clone()], [known]]);
}

#[test]
fn connection_class_is_set_on_any_shard() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let path = "connections/7/ioprio";
    assert_eq!(bench.call("set", set(path, json!("idle"))), Ok(json!({ path: "idle,4" })));
    assert_eq!(bench.refused("set", set("connections/8/ioprio", json!("idle"))), "ENOENT");
    assert_eq!(bench.call("get", json!({ "path": "connections" })), Ok(json!({})));
}

#[test]
fn log_level_is_set_and_wrong_level_is_refused() {
    let now = Mutex::new("info");
    let switch = LogLevel::new(move |wanted| {
        let mut now = now.lock().unwrap();
        *now = wanted.unwrap_or(*now);
        *now
    });
    let say = |wanted| Ok::<_, RpcFault>(log_level(Some(&switch), wanted)?.level);
    assert_eq!(say(None).unwrap(), "info");
    assert_eq!(say(Some("debug")).unwrap(), "debug");
    let fault = say(Some("loud")).unwrap_err();
    let accepted = "error, warn, info, debug, trace";
    let expected = format!("`loud` is no level; there are {accepted}");
    assert_eq!(fault, RpcFault::refused("EINVAL", expected).accepts(accepted));
    assert_eq!(say(None).unwrap(), "debug");
    assert!(log_level(None, None).is_err());
}

#[test]
fn target_below_twice_the_smallest_latency_is_refused() {
    let bench = Bench::new(Manner::Switch(Ok(())));
    let path = "exports/db/latency-target";
    let fault = bench.call("set", set(path, json!("300us"))).unwrap_err();
    let expected = "exports/db/latency-target: `300us` is below twice the smallest latency seen on hw0, 151 us; choose at least 301us";
    assert_eq!(fault.message(), expected);
    assert_eq!(bench.call("get", json!({ "path": path })), Ok(json!({ path: "none" })));
    assert_eq!(bench.refused("set", set("exports/db/io.latency", json!("target=300"))), "EINVAL");
    assert_eq!(bench.call("set", set(path, json!("301us"))), Ok(json!({ path: "301us" })));
    assert_eq!(bench.call("set", set(path, json!("none"))), Ok(json!({ path: "none" })));
    // Of the device of this export nothing is known.
    let other = "exports/default/io.latency";
    assert_eq!(
        bench.call("set", set(other, json!("target=20"))),
        Ok(json!({ other: "target=20" }))
    );
    assert_eq!(bench.refused("set", set("exports/db/io.stat", json!("rbytes=0"))), "EACCES");
}
