//! Removals against scripted shards: changes beside a removal, and the state after a refusal.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use headworks_core::{ChangeError, ExportId, IoError, ShardId, Status};
use serde_json::{Value, json};

use crate::ServerOptions;
use crate::control::service::ControlService;
use crate::control::tree::lock;
use crate::exports::assemble::topology::topology;
use crate::exports::assemble::{Assembly, ExportSpec};
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::command::{ExportReport, Released, ShardCommand};
use crate::reactor::messages::query::ControlQuery;
use crate::reactor::shared::ServerShared;
use headworks_testing::TempFile;

/// Turns a hang into a failure.
const LONG: Duration = Duration::from_secs(60);

/// Behaviour of all shards, and what they were told.
#[derive(Default)]
struct Script {
    /// A shard and a kind of command that it refuses.
    refused: Option<(u16, &'static str)>,
    /// Commands that were carried out.
    told: Vec<String>,
}

struct Bench {
    service: Arc<ControlService>,
    script: Arc<Mutex<Script>>,
    /// Channels of write-backs that wait for their status.
    drains: Receiver<Sender<Status>>,
}

fn kind(order: &ShardCommand) -> &'static str {
    match order {
        ShardCommand::AddDevice { .. } => "add device",
        ShardCommand::AddVolume { .. } => "add volume",
        ShardCommand::RemoveVolume { .. } => "remove volume",
        ShardCommand::RemoveDevice { .. } => "remove device",
        ShardCommand::Serve { .. } => "serve",
        ShardCommand::SetAbsent { .. } => "set absent",
        ShardCommand::Hide { hidden: true, .. } => "hide",
        ShardCommand::Hide { hidden: false, .. } => "show",
        ShardCommand::Refuse { .. } => "refuse",
        ShardCommand::Forget { .. } => "forget",
        ShardCommand::Evict { .. } => "evict",
        ShardCommand::Abandon { .. } => "abandon",
        ShardCommand::Expect { .. } => "expect",
        ShardCommand::Grow { .. } => "grow",
        ShardCommand::SetAccess { .. } => "set access",
        ShardCommand::AddListener { .. } => "add listener",
        ShardCommand::ChangeListener { .. } => "change listener",
        ShardCommand::RemoveListener { .. } => "remove listener",
        ShardCommand::CutPower { .. } => "cut power",
        ShardCommand::Stack { .. } => "stack",
        ShardCommand::WatchInstead { .. } => "watch instead",
        ShardCommand::SetBase { .. } => "set base",
        ShardCommand::OwnBlocks { .. } => "own blocks",
        ShardCommand::ReadBase { .. } => "read base",
    }
}

/// A scripted shard, until its channel closes.
fn shard(
    id: u16,
    mails: &Receiver<ControlMessage>,
    (drains, script): (&Sender<Sender<Status>>, &Mutex<Script>),
    mut exports: Vec<ExportId>,
) {
    let report = |export: &ExportId| ExportReport {
        export: *export,
        size: Some(1 << 20),
        volume_size: Some(1 << 20),
        ..ExportReport::default()
    };
    for mail in mails {
        match mail {
            ControlMessage::Query(ControlQuery::Exports { answer }) => {
                answer.send(exports.iter().map(report).collect()).unwrap();
            }
            ControlMessage::Query(ControlQuery::Drain { answer, .. }) => {
                let (end, ended) = channel();
                answer.send((4096, ended)).unwrap();
                let _ = drains.send(end);
            }
            ControlMessage::Command(order, answer) => {
                let (kind, mut script) = (kind(&order), lock(script));
                if script.refused == Some((id, kind)) {
                    let _ = answer.send(Err(ChangeError::Busy("the shard is not ready")));
                    continue;
                }
                script.told.push(format!("{kind} {id}"));
                match *order {
                    ShardCommand::Serve { export } => exports.push(export.binding.export),
                    ShardCommand::Forget { export } => exports.retain(|other| *other != export),
                    _ => {}
                }
                answer.send(Ok(Released::new())).unwrap();
            }
            _ => {}
        }
    }
}

impl Bench {
    /// Two shards with spread volumes: the second volume lives apart from its device.
    fn new(texts: &[&str]) -> Self {
        let specs: Vec<ExportSpec> =
            texts.iter().map(|text| ExportSpec::parse(text, false).unwrap()).collect();
        let options =
            ServerOptions { shards: 2, spread: true, live: true, ..ServerOptions::default() };
        let assembly = Assembly::new(&specs).unwrap();
        let config = topology(&assembly, &options);
        let (boxes, mails): (Vec<_>, Vec<_>) = (0..2).map(|_| channel()).unzip();
        let shared = Arc::new(ServerShared::new(boxes, config.volumes_max(), Box::new(|| ())));
        let service = Arc::new(ControlService::for_server(&assembly, &config, &options, &shared));
        let (script, (begun, drains)) = (Arc::new(Mutex::new(Script::default())), channel());
        let known: Vec<ExportId> = service.tree().exports.iter().map(|entry| entry.id).collect();
        for (id, mails) in (0..).zip(mails) {
            let (script, begun, known) = (Arc::clone(&script), begun.clone(), known.clone());
            std::thread::spawn(move || shard(id, &mails, (&begun, &script), known));
        }
        Self { service, script, drains }
    }

    fn begin(&self, method: &'static str, params: Value) -> Call {
        let (service, (answer, answered)) = (Arc::clone(&self.service), channel());
        let thread = std::thread::spawn(move || {
            let result = service.call(method, params.as_object().unwrap());
            let _ = answer.send(result.map_err(|fault| fault.message().to_owned()));
        });
        Call { answered, thread }
    }

    fn call(&self, method: &'static str, params: Value) -> Result<Value, String> {
        self.begin(method, params).end()
    }

    fn add(&self, text: &str) -> Result<Value, String> {
        self.call("add", json!({ "spec": text }))
    }

    fn remove(&self, name: &str) -> Call {
        self.begin("remove", json!({ "export": name }))
    }

    /// Waits for the start of a write-back.
    fn drain(&self) -> Sender<Status> {
        self.drains.recv_timeout(LONG).expect("a write-out begins")
    }

    fn refuse(&self, what: Option<(u16, &'static str)>) {
        lock(&self.script).refused = what;
    }

    fn names(&self) -> String {
        let tree = self.service.tree();
        tree.exports.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Returns what shards were told since the last call.
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.script).told)
    }
}

struct Call {
    answered: Receiver<Result<Value, String>>,
    thread: JoinHandle<()>,
}

impl Call {
    fn end(self) -> Result<Value, String> {
        let result = self.answered.recv_timeout(LONG).expect("it is answered");
        self.thread.join().unwrap();
        result
    }
}

fn refused(result: Result<Value, String>, words: &str) {
    let message = result.unwrap_err();
    assert!(message.contains(words), "{message}");
}

#[test]
fn other_exports_change_during_write_back_of_one() {
    let image = TempFile::absent("leaving");
    let file = |name: &str| format!("{name}=file:path={},size=1M", image.path().display());
    let bench = Bench::new(&[&file("a"), "b=null:size=1M", "c=null:size=1M"]);
    let a = bench.remove("a");
    let end = bench.drain();
    bench.add("d=null:size=1M").unwrap();
    bench.call("resize", json!({ "export": "d", "size": "2M" })).unwrap();
    let b = bench.remove("b");
    bench.drain().send(Ok(())).unwrap();
    b.end().unwrap();
    // Nothing else may be done with an export that is being removed.
    refused(bench.remove("a").end(), "export a is being removed");
    refused(bench.add("a=null:size=1M"), "export a is being removed");
    refused(bench.add(&file("e")), "the image of `e` is being closed");
    refused(bench.call("resize", json!({ "export": "a" })), "export a is being removed");
    assert_eq!(bench.names(), "a c d");
    end.send(Ok(())).unwrap();
    assert_eq!(
        a.end().unwrap(),
        json!({ "export": "a", "clients": 0, "closed": true, "abandoned": null })
    );
    assert_eq!(bench.names(), "c d");
    bench.add(&file("e")).unwrap();
    bench.add("a=null:size=1M").unwrap();
    assert_eq!(bench.names(), "c d e a");
}

#[test]
fn concurrent_removals_close_shared_image_once() {
    let image = TempFile::absent("leaving");
    let file = |name: &str| format!("{name}=file:path={},size=1M", image.path().display());
    let bench = Bench::new(&[&file("a"), &file("b")]);
    // Another export shares the image: only the name is removed.
    assert_eq!(bench.remove("a").end().unwrap()["closed"], false);
    bench.add(&file("a")).unwrap();
    let both = [bench.remove("a"), bench.remove("b")];
    bench.drain().send(Ok(())).unwrap();
    let closed = both.map(|call| call.end().unwrap()["closed"] == true);
    assert_eq!(closed.iter().filter(|closed| **closed).count(), 1, "{closed:?}");
    assert!(bench.drains.try_recv().is_err(), "written out once");
    assert_eq!(bench.names(), "");
    assert!(bench.service.tree().devices.is_empty() && bench.told().concat().contains("device 1"));
}

#[test]
fn failed_write_back_keeps_export_until_later_remove() {
    let bench = Bench::new(&["a=null:size=1M"]);
    let a = bench.remove("a");
    bench.drain().send(Err(IoError::Medium)).unwrap();
    refused(a.end(), "could not be written out");
    let shown = bench.told();
    assert_eq!(shown, ["hide 0", "hide 1", "show 0", "show 1"], "it is found again");
    // A device that never completes.
    let a = bench.remove("a");
    let silent = (0..6_000).find_map(|_| {
        if let Ok(end) = bench.drains.recv_timeout(Duration::from_millis(10)) {
            // A removal that has given up waits for no status.
            let _ = end.send(Err(IoError::TimedOut));
        }
        a.answered.try_recv().ok()
    });
    refused(silent.expect("it is answered"), "the device of export a makes no progress");
    assert_eq!(bench.names(), "a");
    let a = bench.remove("a");
    bench.drain().send(Ok(())).unwrap();
    a.end().unwrap();
    assert_eq!(bench.names(), "");
}

#[test]
fn refused_removal_is_resumed_by_next_remove() {
    // The second volume lives on shard 1, as its device does.
    let bench = Bench::new(&["b=null:size=1M", "a=null:size=1M"]);
    let gone =
        |closed: bool| json!({ "export": "a", "clients": 0, "closed": closed, "abandoned": null });
    let remove = |drains: bool| {
        let call = bench.remove("a");
        if drains {
            bench.drain().send(Ok(())).unwrap();
        }
        call.end()
    };
    // Refused by its home: nothing has changed.
    bench.refuse(Some((1, "remove volume")));
    refused(remove(true), "export a stays: the shard is not ready");
    assert_eq!(bench.names(), "b a");
    assert!(bench.told().ends_with(&["show 0".into(), "show 1".into()]));
    // Refused by another shard: the removal cannot be undone.
    bench.refuse(Some((0, "remove volume")));
    refused(remove(true), "`remove a` is repeated");
    assert_eq!(bench.names(), "b");
    assert_eq!(bench.told(), ["hide 0", "hide 1", "remove volume 1"]);
    refused(bench.add("a=null:size=1M"), "is incomplete");
    refused(bench.call("resize", json!({ "export": "a" })), "being removed");
    bench.add("c=null:size=1M").unwrap();
    bench.told();
    // The next removal continues, as far as shards allow.
    bench.refuse(Some((1, "remove device")));
    refused(remove(false), "the shard is not ready");
    assert_eq!(bench.told(), ["remove volume 0", "remove device 0"]);
    bench.refuse(None);
    assert_eq!(remove(false).unwrap(), gone(true));
    assert_eq!(bench.told(), ["remove device 1", "forget 0", "forget 1"]);
    // The ids are free for the next export.
    bench.add("a=null:size=1M").unwrap();
    let tree = bench.service.tree();
    let entry = tree.export("a").unwrap();
    assert_eq!(
        (entry.id, entry.volume.0, entry.device.0, entry.home),
        (ExportId(1), 1, 1, ShardId(1))
    );
}

#[test]
fn stop_ends_wait_for_write_back() {
    let bench = Bench::new(&["a=null:size=1M"]);
    let a = bench.remove("a");
    drop(bench.drain());
    refused(a.end(), "the server is stopping");
}

#[test]
fn refused_add_removes_created_image_only() {
    let bench = Bench::new(&["b=null:size=1M"]);
    for refusal in [(0, "add device"), (1, "add device"), (0, "add volume"), (1, "add volume")] {
        bench.refuse(Some(refusal));
        let image = TempFile::absent("leaving");
        let text = format!("a=file:path={},size=1M", image.path().display());
        refused(bench.add(&text), "the shard is not ready");
        assert!(!image.path().exists(), "{refusal:?}");
        std::fs::write(image.path(), vec![7; 1 << 20]).unwrap();
        refused(bench.add(&text), "the shard is not ready");
        assert_eq!(std::fs::read(image.path()).unwrap(), [7; 1 << 20], "{refusal:?}");
        bench.refuse(None);
        bench.add(&text).unwrap();
        let a = bench.remove("a");
        bench.drain().send(Ok(())).unwrap();
        a.end().unwrap();
        assert!(image.path().exists(), "what was served stays");
    }
}
