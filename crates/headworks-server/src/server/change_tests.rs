//! Changes of a running server without clients: added, kept and refused exports, and reuse of ids.

use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};

use headworks_core::limits::Limits;
use headworks_core::writeback::DirtyTunable;
use headworks_core::{ShardId, Tunable, VolumeId, WriteMode};
use serde_json::{Value, json};

use crate::change;
use crate::change::configured::{ConfiguredTunables, LoadedConfiguration};
use crate::change::{ReloadReport, RetuneReport, TenantReport};
use crate::config::{ConfigFile, ExportSection};
use crate::exports::assemble::image::{OpenedImage, Opening};
use crate::exports::assemble::{Assembly, ExportSource, ExportSpec, NamedDevice, TenantSpec};
use crate::options::MissingImage;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::query::ControlQuery;
use crate::successor::leftovers::Leftovers;
use crate::{ProcessContext, Server, ServerOptions};
use headworks::EngineChoice;
use headworks_testing::{TempDir, TempFile};

pub(super) fn spec(text: &str) -> ExportSpec {
    ExportSpec::parse(text, false).unwrap()
}

pub(super) fn options(shards: u16) -> ServerOptions {
    ServerOptions {
        shards,
        engine: EngineChoice::Threads,
        buffers: 64 << 20,
        live: true,
        ..ServerOptions::default()
    }
}

fn server(texts: &[&str], options: &ServerOptions) -> Server {
    let specs: Vec<ExportSpec> = texts.iter().map(|text| spec(text)).collect();
    Server::start(Assembly::new(&specs).unwrap(), options, || ()).unwrap()
}

pub(super) fn end(server: Server) {
    server.stop();
    server.join().unwrap();
}

fn names(server: &Server) -> String {
    server.exports().into_iter().map(|export| export.name).collect::<Vec<_>>().join(" ")
}

pub(super) fn call(
    server: &Server,
    method: &str,
    params: serde_json::Value,
) -> Result<serde_json::Value, String> {
    let params = params.as_object().unwrap();
    server.service.call(method, params).map_err(|fault| fault.message().to_owned())
}

/// Device, home shard, device owner and cache mode of an export.
fn place(server: &Server, name: &str) -> (u16, u16, u16, WriteMode) {
    let tree = server.service.tree();
    let entry = tree.export(name).unwrap();
    (entry.device.0, entry.home.0, tree.owner(entry).0, entry.mode)
}

#[test]
fn reload_changes_what_differs_by_name() {
    let server = server(&["a=null:size=1M", "b=null:size=1M", "c=mem:size=1M"], &options(1));
    let wanted = |texts: &[&str]| texts.iter().map(|text| spec(text)).collect::<Vec<_>>();
    let reload =
        server.reloader().reconcile(wanted(&["a=null:size=1M", "b=null:size=1M", "c=mem:size=1M"]));
    assert_eq!(reload, Ok(ReloadReport::default()), "nothing differs, nothing is touched");
    let reload = server
        .reloader()
        .reconcile(wanted(&[
            "d=null:size=2M",
            "b=null:size=1M,weight=300,ioprio=idle:7",
            "c=mem:size=2M",
            "e=/nonexistent/image",
        ]))
        .unwrap();
    assert_eq!((&reload.added, &reload.removed), (&vec!["d".into()], &vec!["a".into()]));
    assert_eq!(reload.changed, [("b".to_owned(), "weight 300, ioprio idle,7".to_owned())]);
    let [(kept, why)] = &reload.kept[..] else { panic!("{reload:?}") };
    assert!(kept == "c" && why.contains("its image changed"), "{why}");
    let [(absent, why)] = &reload.absent[..] else { panic!("{reload:?}") };
    assert!(absent == "e" && why.contains("does not exist"), "{why}");
    assert!(reload.failed.is_empty());
    assert_eq!(names(&server), "b c d");
    let weight = call(&server, "get", json!({ "path": "exports/b/weight" })).unwrap();
    assert_eq!(weight, json!({ "exports/b/weight": 300 }));
    // An impossible configuration changes nothing.
    let twice = server.reloader().reconcile(wanted(&["x=null:size=1M", "x=null:size=1M"]));
    assert!(twice.unwrap_err().message.contains("two exports"));
    assert_eq!(names(&server), "b c d");
    end(server);
}

#[test]
fn reload_leaves_alone_what_ctl_changed() {
    let server = server(&["a=null:size=1M"], &options(1));
    call(&server, "add", json!({ "spec": "tmp=mem:size=1M" })).unwrap();
    call(&server, "set", json!({ "path": "exports/a/weight", "value": 300 })).unwrap();
    let reload = |texts: &[&str]| {
        server.reloader().reconcile(texts.iter().map(|text| spec(text)).collect()).unwrap()
    };
    let weight = || call(&server, "get", json!({ "path": "exports/a/weight" })).unwrap();
    assert_eq!(reload(&["a=null:size=1M"]), ReloadReport::default());
    assert_eq!(names(&server), "a tmp");
    assert_eq!(weight(), json!({ "exports/a/weight": 300 }));
    // What the configuration says anew counts, and what it names is its own.
    let changed = reload(&["a=null:size=1M,weight=200", "tmp=mem:size=1M"]).changed;
    assert_eq!(changed, [("a".to_owned(), "weight 200".to_owned())]);
    assert_eq!(weight(), json!({ "exports/a/weight": 200 }));
    assert_eq!(reload(&["a=null:size=1M,weight=200"]).removed, ["tmp"]);
    end(server);
}

#[test]
fn reload_after_upgrade_leaves_alone_what_ctl_had_changed() {
    let tenant = |text: &str| TenantSpec::parse(text, ExportSource::File).unwrap();
    let named = |queue: &[(Tunable, u64)]| NamedDevice { name: "fast".into(), queue: queue.into() };
    let mut file = ["a=null:size=1M,weight=5", "b=null:size=1M", "gone=null:size=1M"].map(spec);
    file[1].device = Some(named(&[]));
    let tunables = ConfiguredTunables { devices: vec![named(&[])], ..Default::default() };
    let tenants = vec![tenant("acme,weight=50"), tenant("idle")];
    let loaded = LoadedConfiguration { exports: file.to_vec(), tenants, tunables };
    // What the replaced process had: `gone` and a tenant were removed, an export and a tenant added.
    let changed = "a=null:size=1M,weight=300,tenant=acme,bps-write=5M,latency-target=5ms";
    let mut running = [changed, "b=null:size=1M", "tmp=null:size=1M"].map(spec);
    running[1].device = Some(named(&[(Tunable::NrRequests, 50)]));
    running[0].source = ExportSource::Control;
    running[2].source = ExportSource::Control;
    let mut new = tenant("new");
    new.source = ExportSource::Control;
    let mut limits = Limits::default();
    crate::parse_limits(&mut limits, "iops-read=9000").unwrap();
    let options = ServerOptions {
        tenants: vec![tenant("acme,weight=70,bps-read=1M,latency-target=20ms"), new],
        limits,
        process: ProcessContext { loaded: Some(loaded.clone()), ..ProcessContext::default() },
        ..options(1)
    };
    let mut assembly = Assembly::new(&running).unwrap();
    Tunable::NrRequests.set(&mut assembly.devices[1].0, 50).unwrap();
    let server = Server::start(assembly, &options, || ()).unwrap();
    let value = |path: &str| call(&server, "get", json!({ "path": path })).unwrap()[path].clone();
    let values = || {
        let paths = ["exports/a/weight", "exports/a/tenant", "exports/a/bps-write"];
        let paths = paths.into_iter().chain(["exports/a/latency-target", "tenants/acme/weight"]);
        let paths = paths.chain(["tenants/acme/latency-target", "server/iops-read"]);
        let paths = paths.chain(["hw1/queue/nr_requests"]);
        paths.map(|path| value(path).to_string().replace('"', "")).collect::<Vec<_>>().join(" ")
    };
    let before = "300 acme 5M 5ms 70 20ms 9000 50";
    assert_eq!(values(), before);
    // The next upgrade, and a save, find all of it again.
    let text = call(&server, "diff", json!({})).unwrap()["text"].as_str().unwrap().to_owned();
    for word in ["weight = 300", "bps-write", "weight = 70", "iops-read=9000", "nr_requests = 50"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let disabled = text.matches("enabled = false").count();
    assert_eq!((disabled, text.contains("name = \"tmp\"")), (2, true), "{text}");
    let reloader = server.reloader();
    assert_eq!(reloader.retune(loaded.tunables.clone()), RetuneReport::default());
    assert_eq!(reloader.tenants(&loaded.tenants[..1]), TenantReport::default());
    let kept = reloader.reconcile(file[..2].to_vec()).unwrap();
    assert_eq!((kept, names(&server)), (ReloadReport::default(), "a b tmp".to_owned()));
    assert_eq!((reloader.forget_tenants(), values()), (TenantReport::default(), before.to_owned()));
    // What a file says anew counts, and what it no longer has is removed.
    let said = [tenant("acme,weight=51,latency-target=9ms")];
    assert_eq!(reloader.tenants(&said).changed.len(), 1);
    let wanted = [spec("a=null:size=1M,weight=6")];
    let reload = reloader.reconcile(wanted.to_vec()).unwrap();
    assert_eq!(reload.changed, [("a".to_owned(), "weight 6".to_owned())]);
    assert_eq!((reload.removed, names(&server)), (vec!["b".to_owned()], "a tmp".to_owned()));
    assert_eq!(value("exports/a/weight"), 6);
    assert_eq!(
        ["weight", "latency_target"].map(|key| value(&format!("tenants/acme/{key}"))),
        [json!(51), json!("9ms")]
    );
    assert_eq!(value("exports/a/tenant"), "acme");
    end(server);
}

#[test]
fn what_was_saved_and_taken_back_is_a_difference() {
    let specs = [spec("a1=null:size=1M"), spec("b=null:size=1M")];
    let options = ServerOptions {
        tenants: vec![TenantSpec::parse("acme,weight=70", ExportSource::File).unwrap()],
        cache: 8 << 20,
        ..options(1)
    };
    let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
    let set = |values: Value| {
        let pair = |(path, value): (&String, &Value)| json!({ "path": path, "value": value });
        let values: Vec<Value> = values.as_object().unwrap().iter().map(pair).collect();
        call(&server, "set", json!({ "values": values })).unwrap()
    };
    let add = |method: &str, key: &str, words: &str| {
        call(&server, method, json!({ key: words })).unwrap()
    };
    let diff = |save: bool| call(&server, "diff", json!({ "save": save })).unwrap();
    add("add", "spec", "x=null:size=1M,tenant=acme");
    set(
        json!({ "exports/b/weight": 300, "exports/a1/tenant": "acme", "tenants/acme/weight": 50, "tenants/acme/bps-read": "1M",
        "server/iops-read": 9000, "hw0/queue/nr_requests": 50, "hw1/queue/nr_requests": 50, "hw2/queue/nr_requests": 50, "vm/dirty_expire_centisecs": 100, "vm/dirty_bytes": "4M" }),
    );
    add("add-tenant", "tenant", "later");
    let saved = diff(true)["text"].as_str().unwrap().to_owned();
    assert_eq!(diff(true)["changes"], json!([]), "it is configured now");
    set(
        json!({ "exports/b/weight": 100, "exports/a1/tenant": "none", "tenants/acme/weight": 70, "tenants/acme/bps-read": "none",
        "server/iops-read": "none", "hw0/queue/nr_requests": 256, "hw1/queue/nr_requests": 256, "vm/dirty_expire_centisecs": 3000, "vm/dirty_ratio": 20 }),
    );
    add("remove", "export", "x");
    add("remove-tenant", "tenant", "later");
    let now = diff(false);
    let found: Vec<_> = now["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    for path in [
        "exports/a1/tenant",
        "exports/b/weight",
        "exports/x",
        "tenants/acme/weight",
        "tenants/acme/bps-read",
        "tenants/later",
        "server/iops-read",
        "hw0/queue/nr_requests",
        "vm/dirty_expire_centisecs",
        "vm/dirty_ratio",
    ] {
        assert!(found.contains(&path), "{path} of {now:#}");
    }
    // What the next start reads: the file of both saves, and a process that replaces this one: its own changes over that.
    let read = |text: &str| ConfigFile::parse("f", text).unwrap();
    let successor = crate::change::diff::for_successor(server.service.changes()).unwrap();
    for text in [diff(true)["text"].as_str().unwrap(), &successor] {
        let file = read(&saved).merged(read(text));
        let words: Vec<String> =
            file.exports.iter().map(|one| format!("{} {}", one.name, one.words())).collect();
        assert_eq!(
            words[..2],
            ["a1 null:size=1M,tenant=none", "b null:size=1M,tenant=none"],
            "{text}"
        );
        let is_gone = |one: &ExportSection| (&*one.name, one.is_enabled()) == ("x", Ok(false));
        assert!(file.exports.iter().any(is_gone), "{text}");
        let tenants: Vec<_> = file
            .tenants
            .iter()
            .map(|one| (one.is_enabled(), one.plan().unwrap().options.weight))
            .collect();
        assert_eq!(tenants, [(Ok(true), 70), (Ok(false), 100)], "{text}");
        assert!(file.tenants[0].plan().unwrap().options.limits == Default::default(), "{text}");
        assert_eq!(file.server[0].value, crate::config::Value::List(Vec::new()), "{text}");
        assert_eq!(file.queue[0].value, 256, "{text}");
        let vm: Vec<_> = file.vm.iter().map(|one| (one.tunable.name(), one.value)).collect();
        assert!(
            vm.contains(&("dirty_expire_centisecs", 3000))
                && vm.contains(&("dirty_ratio", 20))
                && vm.len() == 2,
            "{vm:?}"
        );
    }
    assert_eq!(diff(false)["changes"], json!([]), "the file has all of it");
    server.reloader().reconcile(specs.to_vec()).unwrap();
    assert_eq!(diff(false)["changes"], json!([]), "and as it was loaded");
    end(server);
}

#[test]
fn save_and_reload_know_the_size_of_a_device_without_an_image() {
    let file = [spec("a=mem:size=1M"), spec("b=delay:read=1ms,of=null:size=1M")];
    let server = Server::start(Assembly::new(&file).unwrap(), &options(1), || ()).unwrap();
    let diff = |save: bool| call(&server, "diff", json!({ "save": save })).unwrap();
    assert_eq!(diff(false)["changes"], json!([]));
    for name in ["a", "b"] {
        call(&server, "resize", json!({ "export": name, "size": "2M" })).unwrap();
    }
    let asked = json!({ "export": "a", "size": "7E" });
    let refused = call(&server, "resize", asked).unwrap_err();
    assert!(refused.starts_with("size: the device cannot have 7 EiB: "), "{refused}");
    let change = |name: &str| json!({ "path": format!("exports/{name}/size"), "configured": "1M", "running": "2M" });
    assert_eq!(diff(false)["changes"], json!([change("a"), change("b")]));
    let kept = |wanted: &[ExportSpec]| server.reloader().reconcile(wanted.to_vec()).unwrap();
    assert_eq!(kept(&file), ReloadReport::default(), "a size of ctl stays");
    let saved = diff(true);
    let read = ConfigFile::parse("f", saved["text"].as_str().unwrap()).unwrap();
    let words: Vec<_> = read.exports.iter().map(ExportSection::words).collect();
    assert_eq!(words, ["mem:size=2M", "delay:read=1ms,of=null:size=2M"]);
    assert_eq!(diff(false)["changes"], json!([]));
    let larger = [spec("a=mem:size=2M"), spec("b=delay:read=1ms,of=null:size=2M")];
    assert_eq!(kept(&larger), ReloadReport::default(), "the file has it");
    assert_eq!(diff(false)["changes"], json!([]));
    end(server);
}

#[test]
fn save_of_a_weight_keeps_what_a_restart_changes() {
    let server = server(&["a=null:size=1M"], &options(1));
    let edited = [spec("a=null:size=3M")];
    assert_eq!(server.reloader().reconcile(edited.to_vec()).unwrap().kept.len(), 1);
    call(&server, "set", json!({ "path": "exports/a/weight", "value": 300 })).unwrap();
    let saved = call(&server, "diff", json!({ "save": true })).unwrap();
    let read = ConfigFile::parse("f", saved["text"].as_str().unwrap()).unwrap();
    assert_eq!(read.exports[0].words(), "null:size=3M,weight=300", "the file's image");
    let after = call(&server, "diff", json!({})).unwrap();
    let paths = [json!("exports/a/image")];
    let changes = after["changes"].as_array().unwrap();
    assert_eq!(changes.iter().map(|one| one["path"].clone()).collect::<Vec<_>>(), paths);
    end(server);
}

#[test]
fn what_the_command_line_says_is_not_for_a_file() {
    let given = |words: &str| ExportSpec { source: ExportSource::CommandLine, ..spec(words) };
    let specs = [given("a=null:size=1M"), given("b=null:size=1M")];
    let server = Server::start(Assembly::new(&specs).unwrap(), &options(1), || ()).unwrap();
    call(&server, "remove", json!({ "export": "a" })).unwrap();
    let diff = || call(&server, "diff", json!({ "save": true })).unwrap();
    for _ in 0..2 {
        let found = diff();
        assert_eq!(found["text"], "[server]\n");
        assert_eq!(found["changes"][0]["path"], "exports/a");
        assert!(found["unsaved"][0].as_str().unwrap().contains("a is on the command line"));
    }
    let text = crate::change::diff::for_successor(server.service.changes()).unwrap();
    assert!(text.contains("enabled = false"), "{text}");
    end(server);
}

#[test]
fn reload_sets_changed_tunables_of_every_device() {
    let named = |queue: &[(Tunable, u64)]| NamedDevice { name: "fast".into(), queue: queue.into() };
    let mut specs = vec![spec("a=null:size=1M"), spec("b=null:size=1M")];
    specs[1].device = Some(named(&[]));
    let options = ServerOptions { cache: 8 << 20, ..options(2) };
    let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
    let value = |path: &str| call(&server, "get", json!({ "path": path })).unwrap()[path].clone();
    call(&server, "set", json!({ "path": "hw0/queue/nr_requests", "value": 50 })).unwrap();
    let mut wanted = ConfiguredTunables {
        queue: vec![(Tunable::NoMerges, 1)],
        devices: vec![named(&[(Tunable::Scheduler, 1), (Tunable::QueueDepth, 9)])],
        dirty: options.dirty,
        limits: options.limits,
    };
    DirtyTunable::Bytes.set(&mut wanted.dirty, 4 << 20).unwrap();
    let report = server.reloader().retune(wanted.clone());
    assert_eq!((report.refused, report.restart), (vec![], vec!["hw1/queue/queue_depth".into()]));
    assert_eq!(value("hw0/queue/nomerges"), 1);
    assert_eq!(value("hw0/queue/nr_requests"), 50, "a value of ctl set stays");
    assert_eq!(value("hw1/queue/scheduler"), "none [mq-deadline] bfq");
    assert_eq!(value("hw1/queue/nomerges"), 0, "a named device has its own values");
    assert_eq!(value("vm/dirty_bytes"), 4 << 20);
    assert_eq!(server.reloader().retune(wanted), RetuneReport::default(), "nothing is new");
    end(server);
}

#[test]
fn reload_detects_replaced_image() {
    let (image, other) = (TempFile::absent("live-swap"), TempFile::absent("live-swap"));
    let text = format!("a=file:path={},size=1M", image.path().display());
    let server = server(&[&text], &options(1));
    let kept = || server.reloader().reconcile(vec![spec(&text)]).unwrap().kept;
    assert_eq!(kept(), []);
    std::fs::write(other.path(), vec![0; 1 << 20]).unwrap();
    std::fs::rename(other.path(), image.path()).unwrap();
    let [(name, why)] = &kept()[..] else { panic!("nothing is said") };
    assert!(name == "a" && why.starts_with("its image changed"), "{why}");
    std::fs::remove_file(image.path()).unwrap();
    assert_eq!(kept().len(), 1, "nor is it there when it was removed");
    end(server);
}

#[test]
fn export_named_default_excludes_unnamed_one() {
    let server = server(&["a=null:size=1M"], &options(1));
    let add = |name: &str| {
        let spec = ExportSpec::new(name.to_owned(), spec("null:size=1M").spec, false);
        change::add::add(server.service.changes(), spec)
            .map(drop)
            .map_err(|fault| fault.message().to_owned())
    };
    add("").unwrap();
    assert!(add("default").unwrap_err().contains("an export `default` exists already"));
    call(&server, "remove", json!({ "export": "default" })).unwrap();
    add("default").unwrap();
    assert!(add("").is_err());
    end(server);
}

#[test]
fn images_share_queue_and_ids_are_reused() {
    let images = [(); 3].map(|()| TempFile::absent("live-share"));
    let text = |name: &str, index: usize| {
        format!("{name}=file:path={},size=1M", images[index].path().display())
    };
    let server = server(&[&text("a", 0)], &options(1));
    let add = |text: String| call(&server, "add", json!({ "spec": text }));
    add(text("b", 1)).unwrap();
    add("n=null:size=1M".to_owned()).unwrap();
    assert_eq!(["a", "b", "n"].map(|name| place(&server, name).0), [0, 0, 1]);
    let remove = |name: &str| call(&server, "remove", json!({ "export": name }));
    remove("a").unwrap();
    add(text("c", 2)).unwrap();
    assert_eq!(place(&server, "c").0, 0, "the device is there as long as it has an image");
    for name in ["b", "c"] {
        remove(name).unwrap();
    }
    add("m=mem:size=1M".to_owned()).unwrap();
    assert_eq!(place(&server, "m").0, 0, "and its place is the next one's when it is gone");
    add(text("a", 0)).unwrap();
    assert_eq!(place(&server, "a").0, 2);
    let volumes: Vec<VolumeId> =
        server.service.tree().exports.iter().map(|entry| entry.volume).collect();
    assert_eq!(volumes.len(), 3);
    assert!(volumes.iter().all(|volume| volume.0 < 3), "{volumes:?}");
    end(server);
}

#[test]
fn image_with_fewer_features_gets_own_device() {
    let Some(directory) = headworks_testing::memory_directory() else { return };
    let image = TempFile::absent_in(&directory, "live-less");
    let text = format!("a=file:path={},size=1M", image.path().display());
    let server = server(&[&text], &options(1));
    let queue = server.service.changes().queue_options(0);
    let other = TempFile::absent_in(&directory, "live-less");
    let other = spec(&format!("b=file:path={},size=1M", other.path().display()));
    let opened = OpenedImage::new(&other.spec, true).unwrap();
    assert!(opened.fits(&queue));
    let volatile = headworks_core::QueueOptions { write_cache: !queue.write_cache, ..queue };
    assert!(!opened.fits(&volatile));
    end(server);
}

#[test]
fn cached_volume_lives_on_caching_shard() {
    let cached = |shards, cache| ServerOptions { cache, ..options(shards) };
    let two = server(&["a=null:size=1M,cache=writeback", "b=null:size=1M"], &cached(2, 8 << 20));
    for name in ["c", "d", "e"] {
        let text = format!("{name}=null:size=1M,cache=writeback");
        call(&two, "add", json!({ "spec": text })).unwrap();
        let (_, home, owner, mode) = place(&two, name);
        assert_eq!((home, owner, mode), (0, 0, WriteMode::Writeback), "{name}");
    }
    call(&two, "add", json!({ "spec": "f=null:size=1M" })).unwrap();
    assert_eq!(place(&two, "f"), (5, 1, 1, WriteMode::None));
    end(two);
    // Nothing is cached yet, but a volume may be.
    let later = server(&["a=null:size=1M"], &cached(1, 8 << 20));
    call(&later, "add", json!({ "spec": "b=null:size=1M,cache=writeback" })).unwrap();
    assert_eq!(place(&later, "b").3, WriteMode::Writeback);
    end(later);
    let none = server(&["a=null:size=1M"], &cached(1, 0));
    let error = call(&none, "add", json!({ "spec": "b=null:size=1M,cache=writeback" }));
    assert!(error.unwrap_err().contains("needs a cache"));
    call(&none, "add", json!({ "spec": "b=delay:all=1us,of=null:size=1M" })).unwrap();
    assert_eq!(place(&none, "b").3, WriteMode::None);
    end(none);
}

#[test]
fn failed_add_removes_created_image() {
    let server = server(&["a=null:size=1M"], &options(1));
    for index in 1..64 {
        call(&server, "add", json!({ "spec": format!("a{index}=null:size=1M") })).unwrap();
    }
    let image = TempFile::absent("live-place");
    let text = format!("b=file:path={},size=1M", image.path().display());
    let error = call(&server, "add", json!({ "spec": text })).unwrap_err();
    assert!(error.contains("the limit of 64 queues is reached"), "{error}");
    assert!(!image.path().exists());
    call(&server, "remove", json!({ "export": "a7" })).unwrap();
    call(&server, "add", json!({ "spec": text })).unwrap();
    assert!(image.path().exists());
    end(server);
}

#[test]
fn failed_queue_options_remove_created_image() {
    let queue = vec![(Tunable::NrRequests, 4096)];
    let server = server(&["a=null:size=1M"], &ServerOptions { queue, ..options(2) });
    let add = |name: &str, of: &str| {
        call(&server, "add", json!({ "spec": format!("{name}=delay:all=1us,of={of}") }))
    };
    let image = TempFile::absent("live-tags");
    let text = format!("file:path={},size=1M", image.path().display());
    let refused = (0..64).find_map(|index| add(&format!("b{index}"), "null:size=1M").err());
    assert!(refused.is_some_and(|error| error.contains("4096 tags are more than")));
    assert!(add("c", &text).unwrap_err().contains("4096 tags are more than"));
    assert!(!image.path().exists());
    call(&server, "remove", json!({ "export": "b0" })).unwrap();
    add("c", &text).unwrap();
    call(&server, "remove", json!({ "export": "c" })).unwrap();
    add("b0", "null:size=1M").unwrap();
    // A file that existed before is not removed.
    assert!(add("c", &text).is_err() && image.path().exists());
    end(server);
}

#[test]
fn replacement_of_created_image_is_kept() {
    let image = TempFile::absent("live-made");
    let spec = spec(&format!("a=file:path={},size=1M", image.path().display()));
    for replaced in [false, true] {
        let opened = OpenedImage::new(&spec.spec, true).unwrap();
        let made = opened.made(&spec.spec).unwrap();
        drop(opened);
        if replaced {
            std::fs::remove_file(image.path()).unwrap();
            std::fs::write(image.path(), vec![7; 1 << 20]).unwrap();
        }
        made.undo();
        assert_eq!(image.path().exists(), replaced);
    }
    let there = OpenedImage::new(&spec.spec, false);
    assert!(there.is_ok_and(|opened| opened.made(&spec.spec).is_none()));
}

#[test]
fn overlay_that_is_not_there_is_made_on_its_base_once() {
    let folder = TempDir::new("new-overlay");
    std::fs::write(folder.join("g.img"), vec![7; 8192]).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    let text = format!("o=overlay:path={},base={},size=1M", path("o.hwo"), path("g.img"));
    let spec = spec(&text);
    let looked =
        OpenedImage::by(Opening::Inspect, &spec.spec, true, &Leftovers::default()).unwrap();
    assert_eq!((looked.options.size, folder.join("o.hwo").exists()), (1 << 20, false));
    let opened = OpenedImage::new(&spec.spec, true).unwrap();
    assert!(opened.notes[0].starts_with("created ") && opened.notes[0].contains("1 MiB on g.img"));
    drop(opened);
    let again = OpenedImage::new(&spec.spec, true).unwrap();
    assert!(again.notes.is_empty() && again.made(&spec.spec).is_none(), "it is there");
    drop(again);
    std::fs::remove_file(folder.join("o.hwo")).unwrap();
    let opened = OpenedImage::new(&spec.spec, true).unwrap();
    let made = opened.made(&spec.spec).unwrap();
    drop(opened);
    made.undo();
    assert!(!folder.join("o.hwo").exists());
    // Where it could not be opened nothing is made, and a look at it says so, too.
    std::fs::create_dir(folder.join("apart")).unwrap();
    let text = format!("o=overlay:path={},base={}", path("apart/o.hwo"), path("g.img"));
    let refused = self::spec(&text).spec;
    for opening in [Opening::Inspect, Opening::Serve] {
        let opened = OpenedImage::by(opening, &refused, true, &Leftovers::default());
        let why = opened.err().unwrap().to_string();
        assert!(why.contains("backing=allow"), "{why}");
    }
    assert_eq!(std::fs::read_dir(folder.join("apart")).unwrap().count(), 0);
}

#[test]
fn server_without_hot_add_refuses_more_exports() {
    let server = server(&["a=null:size=1M"], &ServerOptions { live: false, ..options(1) });
    let add = || call(&server, "add", json!({ "spec": "b=null:size=1M" }));
    let error = add().unwrap_err();
    assert!(error.contains("the limit of 1 exports is reached"), "{error}");
    call(&server, "remove", json!({ "export": "a" })).unwrap();
    add().unwrap();
    assert_eq!(names(&server), "b");
    end(server);
}

#[test]
fn queries_run_beside_changes() {
    let server = Arc::new(server(&["a=null:size=1M"], &options(2)));
    let others: Vec<_> = (0..2)
        .map(|index| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let name = format!("x{index}");
                    let text = format!("{name}=mem:size=1M");
                    call(&server, "add", json!({ "spec": text })).unwrap();
                    call(&server, "remove", json!({ "export": name })).unwrap();
                }
            })
        })
        .collect();
    let mut looks = 0;
    while others.iter().any(|other| !other.is_finished()) {
        for method in ["stats", "exports", "diskstats", "get", "connections"] {
            call(&server, method, json!({})).unwrap();
        }
        looks += 1;
    }
    others.into_iter().for_each(|other| other.join().unwrap());
    assert!(looks > 0);
    assert_eq!(names(&server), "a");
    end(Arc::into_inner(server).unwrap());
}

#[test]
fn stop_waits_only_for_its_own_flushes() {
    let image = TempFile::absent("live-stop");
    let text = format!("a=delay:flush=300ms,of=file:path={},size=1M", image.path().display());
    let server = server(&[&text], &options(1));
    let drain = || {
        let (answer, answered) = sync_channel(1);
        let query = ControlQuery::Drain { volume: VolumeId(0), answer };
        server.shared.send(ShardId(0), ControlMessage::Query(query));
        answered.recv()
    };
    // In flight when the stop begins, and completed with its flushes.
    let waiting = [(); 3].map(|()| drain().unwrap().1);
    server.stop();
    server.join().unwrap();
    assert!(waiting.iter().all(|status| !matches!(status.recv(), Ok(Err(_)))));
}

/// A remote that accepts connections and answers nothing; the receiver gets each connection.
fn silent_remote(
    name: &str,
) -> (TempFile, std::sync::mpsc::Receiver<std::os::unix::net::UnixStream>) {
    let path = TempFile::absent(name);
    let listener = std::os::unix::net::UnixListener::bind(path.path()).unwrap();
    let (sender, connections) = channel();
    std::thread::spawn(move || {
        let accepted = listener.incoming().map_while(Result::ok);
        accepted.take_while(|socket| sender.send(socket.try_clone().unwrap()).is_ok()).count()
    });
    (path, connections)
}

fn remote_spec(path: &TempFile, export: &str) -> String {
    format!("{export}=nbd:uri=nbd+unix:///{export}?socket={}", path.path().display())
}

#[test]
fn remote_that_is_being_added_delays_no_other_change() {
    let image = TempFile::new("beside-slow-add");
    std::fs::write(image.path(), vec![0; 1 << 20]).unwrap();
    let server = server(&[&format!("a={}", image.path().display())], &options(1));
    let (path, connections) = silent_remote("slow-add");
    let spec = remote_spec(&path, "slow");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| call(&server, "add", json!({ "spec": spec })));
        let connection = connections.recv().unwrap();
        // The addition waits for the remote now.
        call(&server, "freeze", json!({ "exports": ["a"] })).unwrap();
        call(&server, "thaw", json!({ "exports": ["a"] })).unwrap();
        call(&server, "add", json!({ "spec": "b=mem:size=1M" })).unwrap();
        call(&server, "remove", json!({ "export": "b" })).unwrap();
        call(&server, "resize", json!({ "export": "a", "size": "2M" })).unwrap();
        for (method, params) in [
            ("add", json!({ "spec": "slow=mem:size=1M" })),
            ("add", json!({ "spec": remote_spec(&path, "slow") })),
            ("remove", json!({ "export": "slow" })),
        ] {
            let refused = call(&server, method, params).unwrap_err();
            assert!(refused.contains("export slow is being added"), "{refused}");
        }
        let twin = remote_spec(&path, "slow").replacen("slow", "twin", 1);
        let refused = call(&server, "add", json!({ "spec": twin })).unwrap_err();
        assert!(refused.contains("is being opened for export slow"), "{refused}");
        let refused =
            change::hand_over::volumes_to_hand_over(server.service.changes()).err().unwrap();
        assert!(refused.contains("slow is being added"), "{refused}");
        assert!(!add.is_finished(), "the changes did not wait for the addition");
        connection.shutdown(std::net::Shutdown::Both).unwrap();
        let refused = add.join().unwrap().unwrap_err();
        assert!(refused.contains("closed the connection"), "{refused}");
    });
    call(&server, "add", json!({ "spec": "slow=mem:size=1M" })).unwrap();
    assert_eq!(names(&server), "a slow");
    end(server);
}

#[test]
fn start_serves_others_while_remotes_do_not_answer() {
    let (path, connections) = silent_remote("slow-start");
    let texts = [
        remote_spec(&path, "r0"),
        "ok=mem:size=1M".to_owned(),
        remote_spec(&path, "r1"),
        remote_spec(&path, "r1").replacen("r1", "same", 1),
    ];
    let specs: Vec<ExportSpec> = texts.iter().map(|text| spec(text)).collect();
    let within = Some(std::time::Duration::ZERO);
    let (missing, leftovers) = (MissingImage::Absent, Leftovers::default());
    let assembly = Assembly::open_within(&specs, missing, &leftovers, within).unwrap();
    let server = Server::start(assembly, &options(1), || ()).unwrap();
    assert_eq!(names(&server), "ok");
    let reason = |name: &str| {
        let tree = server.service.tree();
        tree.absent(name).map(|absent| absent.reason.clone())
    };
    assert!(reason("r0").unwrap().contains("has not answered yet"));
    // What was removed meanwhile is not added.
    call(&server, "remove", json!({ "export": "r1" })).unwrap();
    for _ in 0..2 {
        connections.recv().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
    }
    // The last of the group makes an attempt of its own.
    connections.recv().unwrap().shutdown(std::net::Shutdown::Both).unwrap();
    let ended = |name: &str| reason(name).is_some_and(|why| why.contains("closed the connection"));
    let since = std::time::Instant::now();
    while !(ended("r0") && ended("same")) {
        assert!(since.elapsed().as_secs() < 60, "{:?} {:?}", reason("r0"), reason("same"));
        std::thread::yield_now();
    }
    assert_eq!((reason("r1"), names(&server)), (None, "ok".to_owned()));
    end(server);
}

#[test]
fn reload_opens_remotes_side_by_side() {
    let server = server(&["a=mem:size=1M"], &options(1));
    let (path, connections) = silent_remote("slow-reload");
    let mut wanted = vec![spec("a=mem:size=1M")];
    wanted.extend((0..5).map(|number| spec(&remote_spec(&path, &format!("r{number}")))));
    let reload = std::thread::scope(|scope| {
        let reload = scope.spawn(|| server.reloader().reconcile(wanted));
        let all: Vec<_> = (0..5).map(|_| connections.recv().unwrap()).collect();
        all.iter().for_each(|one| one.shutdown(std::net::Shutdown::Both).unwrap());
        reload.join().unwrap().unwrap()
    });
    let failed: Vec<&str> = reload.failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(failed, ["r0", "r1", "r2", "r3", "r4"]);
    end(server);
}
