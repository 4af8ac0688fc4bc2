//! Listeners of a running server: what their clients see while exports, tenants, rules and certificates change.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::change_tests::{call, end, options, spec};
use crate::change::AccessReport;
use crate::exports::assemble::{Assembly, ExportSource, ExportSpec, TenantSpec};
use crate::{
    AccessSpec, Address, ClientLimits, ListenerKind, ListenerSpec, Server, ServerOptions,
    TenantName,
};
use headworks_nbd::client::{Client, ClientOptions, OptionNegotiation, Uri};
use headworks_nbd::tls::testing::Certificates;
use headworks_nbd::tls::{TlsMode, TlsOptions};
use headworks_testing::TempDir;

/// A folder for sockets, removed on drop.
struct Folder(TempDir);

impl Folder {
    fn new(name: &str) -> Self {
        Self(TempDir::new(name))
    }

    fn listener(&self, name: &str, tenant: Option<&str>, exports: &[&str]) -> ListenerSpec {
        ListenerSpec {
            kind: ListenerKind::Nbd,
            name: name.to_owned(),
            address: Address::Unix { path: self.0.join(name), mode: 0o600 },
            owner: None,
            exports: exports.iter().map(|name| (*name).to_owned()).collect(),
            tenant: tenant.map(|name| TenantName::parse(name).unwrap()),
            tls: TlsOptions::default(),
        }
    }

    fn uri(&self, listener: &str, export: &str) -> Uri {
        let path = self.0.join(listener);
        format!("nbd+unix:///{export}?socket={}", path.display()).parse().unwrap()
    }

    /// The names that a new client of a listener is told.
    fn listed(&self, listener: &str) -> String {
        let uri = self.uri(listener, "");
        let mut client = OptionNegotiation::open(&uri, Duration::from_secs(20)).unwrap();
        let names = client.list().unwrap().into_iter().map(|listed| listed.name);
        let names = names.collect::<Vec<_>>().join(" ");
        client.abort().unwrap();
        names
    }

    /// A client that has said nothing but hello.
    fn waiting(&self, listener: &str) -> UnixStream {
        let mut client = UnixStream::connect(self.0.join(listener)).unwrap();
        client.read_exact(&mut [0; 18]).unwrap();
        client
    }
}

fn access(listeners: &[ListenerSpec]) -> AccessSpec {
    AccessSpec { listeners: listeners.to_vec(), ..AccessSpec::default() }
}

fn server(texts: &[&str], shards: u16, access: AccessSpec) -> Server {
    let tenant = |name: &str| TenantSpec::parse(name, ExportSource::File).unwrap();
    let tenants = vec![tenant("acme"), tenant("globex")];
    // Longer than a test waits: what ends a handshake is not its time limit.
    let handshake_ns = 600_000_000_000;
    let clients = ClientLimits { handshake_ns, ..ClientLimits::default() };
    let options = ServerOptions { access, tenants, clients, ..options(shards) };
    let specs: Vec<ExportSpec> = texts.iter().map(|text| spec(text)).collect();
    Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap()
}

fn has_ended(mut client: &UnixStream) -> bool {
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.read(&mut [0; 64]).unwrap() == 0
}

#[test]
fn new_rules_are_seen_only_where_old_ones_agree_until_they_are_in_force() {
    let folder = Folder::new("rules");
    let (one, two) =
        (folder.listener("one", Some("acme"), &["s"]), folder.listener("two", Some("globex"), &[]));
    let texts = ["a=null:size=1M,tenant=acme", "g=null:size=1M,tenant=globex", "s=null:size=1M"];
    let server = server(&texts, 2, access(&[one.clone(), two.clone()]));
    let seen = || [folder.listed("one"), folder.listed("two")];
    assert_eq!(seen(), ["a s", "g"]);
    let tenant = |name: &str| Some(TenantName::parse(name).unwrap());
    let swapped = access(&[
        ListenerSpec { tenant: tenant("globex"), ..one.clone() },
        ListenerSpec { tenant: tenant("acme"), exports: vec!["*".into()], ..two },
    ]);
    let reloader = server.reloader();
    reloader.narrow_access(&swapped).unwrap();
    assert_eq!(seen(), ["s", "g"]);
    reloader.keep_access();
    assert_eq!(seen(), ["a s", "g"]);
    reloader.narrow_access(&swapped).unwrap();
    let report = reloader.access(&swapped);
    assert_eq!((report.changed.len(), report.failed), (2, Vec::new()));
    assert_eq!(seen(), ["g s", "a g s"]);
    assert_eq!(reloader.access(&swapped), AccessReport::default(), "nothing differs");
    end(server);
    assert!(!folder.0.join("one").exists());
}

#[test]
fn moved_added_and_renumbered_exports_are_seen_by_tenant_name() {
    let folder = Folder::new("tenants");
    let listeners = [
        folder.listener("one", Some("acme"), &[]),
        folder.listener("two", Some("globex"), &[]),
        folder.listener("three", Some("initech"), &[]),
    ];
    let texts = ["a=null:size=1M,tenant=acme", "g=null:size=1M,tenant=globex"];
    let server = server(&texts, 2, access(&listeners));
    let seen = || ["one", "two", "three"].map(|listener| folder.listed(listener));
    call(&server, "set", json!({ "path": "exports/a/tenant", "value": "globex" })).unwrap();
    assert_eq!(seen(), ["", "a g", ""]);
    // The number of acme is free, and another tenant may get it.
    call(&server, "remove-tenant", json!({ "tenant": "acme" })).unwrap();
    call(&server, "add-tenant", json!({ "tenant": "initech" })).unwrap();
    call(&server, "add", json!({ "spec": "i=null:size=1M,tenant=initech" })).unwrap();
    assert_eq!(seen(), ["", "a g", "i"]);
    call(&server, "set", json!({ "path": "exports/a/tenant", "value": "none" })).unwrap();
    assert_eq!(seen(), ["", "g", "i"]);
    call(&server, "remove", json!({ "export": "g" })).unwrap();
    call(&server, "add", json!({ "spec": "n=null:size=1M" })).unwrap();
    assert_eq!(seen(), ["", "", "i"], "a new export with the old id is judged anew");
    end(server);
}

#[test]
fn removed_listener_ends_handshakes_and_keeps_clients() {
    let folder = Folder::new("removed");
    let [stays, goes] = ["stays", "goes"].map(|name| folder.listener(name, None, &[]));
    let server = server(&["a=null:size=1M"], 1, access(&[stays.clone(), goes]));
    let mut client = Client::connect(&folder.uri("goes", "a"), ClientOptions::default()).unwrap();
    let (ends, waits) = (folder.waiting("goes"), folder.waiting("stays"));
    let rows = call(&server, "listeners", json!({})).unwrap();
    assert_eq!((&rows[1]["name"], &rows[1]["connections"]), (&json!("goes"), &json!(2)));
    let late = folder.listener("late", None, &["b"]);
    let report = server.reloader().access(&access(&[stays, late]));
    assert_eq!(report.changed.len(), 2, "{report:?}");
    assert!(has_ended(&ends) && !folder.0.join("goes").exists());
    client.read(0, &mut [0; 512]).unwrap();
    assert_eq!((folder.listed("stays"), folder.listed("late")), ("a".into(), String::new()));
    drop(waits);
    end(server);
}

#[test]
fn listener_of_ctl_outlives_reloads_and_is_saved() {
    let folder = Folder::new("ctl");
    let stays = folder.listener("stays", None, &[]);
    let server = server(&["a=null:size=1M,tenant=acme"], 1, access(std::slice::from_ref(&stays)));
    let add = |words: &str| {
        let asked = json!({ "listener": words, "cwd": &*folder.0 });
        call(&server, "add-listener", asked)
    };
    let reload = || server.reloader().access(&access(std::slice::from_ref(&stays)));
    let saved = || call(&server, "diff", json!({})).unwrap()["text"].as_str().unwrap().to_owned();
    let done = add("unix=late,tenant=acme,name=late").unwrap();
    assert_eq!(done["address"], folder.0.join("late").to_string_lossy().as_ref());
    assert_eq!(folder.listed("late"), "a");
    let mode = std::fs::metadata(folder.0.join("late")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    server.reloader().narrow_access(&access(std::slice::from_ref(&stays))).unwrap();
    assert_eq!(folder.listed("late"), "a", "during a reload, too");
    assert_eq!(reload(), AccessReport::default(), "no file takes away what none has");
    let text = saved();
    assert!(text.contains("[[listen]]") && text.contains("name = \"late\""), "{text}");
    assert!(text.contains("mode = 600"), "whatever unix-mode the next start has: {text}");
    let many = ["x"; 16_385].join("+");
    let refused = add(&format!("unix=many,exports={many}")).unwrap_err();
    assert!(refused.contains("together have 16385 names"), "{refused}");
    for (words, why) in [
        ("unix=late,name=other", "listener `late` listens at"),
        ("unix=other,name=late", "there is a listener `late`"),
        ("unix=other,tenant=acne", "the nearest is `acme`"),
        ("unix=no/such/place", "listener "),
        ("unix=other,owner=nobody", "not made of numbers"),
        ("unix=other,tls=require", "TLS needs tls-certificates"),
    ] {
        let refused = add(words).unwrap_err();
        assert!(refused.contains(why), "{words}: {refused}");
    }
    assert_eq!(saved(), text, "nothing of what was refused is left");
    call(&server, "diff", json!({ "save": true })).unwrap();
    assert!(!saved().contains("listen"), "it is configured now: {}", saved());
    add("unix=short,name=short").unwrap();
    call(&server, "diff", json!({ "save": true })).unwrap();
    call(&server, "remove-listener", json!({ "listener": "short" })).unwrap();
    let now = saved();
    assert!(
        now.contains("name = \"short\"") && now.contains("enabled = false"),
        "saved, and gone: {now}"
    );
    call(&server, "diff", json!({ "save": true })).unwrap();
    assert_eq!(reload().changed.len(), 1, "no file has `late` any more");
    assert!(!folder.0.join("late").exists() && !saved().contains("listen"), "{}", saved());
    add("unix=late,tenant=acme,name=late").unwrap();
    call(&server, "remove-listener", json!({ "listener": "stays" })).unwrap();
    assert!(!folder.0.join("stays").exists());
    assert!(saved().contains("name = \"stays\"") && saved().contains("enabled = false"));
    assert_eq!(reload().changed.len(), 1, "the file has it");
    assert_eq!(folder.listed("stays"), "a");
    // As after a save: the file has it, too.
    let late = folder.listener("late", Some("acme"), &[]);
    let report = server.reloader().access(&access(&[stays.clone(), late]));
    assert_eq!(report, AccessReport::default());
    assert!(!saved().contains("late"), "{}", saved());
    call(&server, "remove-listener", json!({ "listener": "late" })).unwrap();
    assert!(saved().contains("late"), "taken away from the file");
    assert_eq!(reload(), AccessReport::default());
    assert!(!folder.0.join("late").exists() && !saved().contains("listen"), "{}", saved());
    let gone = call(&server, "remove-listener", json!({ "listener": "stay" })).unwrap_err();
    assert!(gone.contains("the nearest is `stays`"), "{gone}");
    end(server);
}

#[test]
fn listener_whose_certificates_cannot_be_read_offers_only_what_it_did() {
    let folder = Folder::new("tls");
    let certificates = Certificates::new("listeners");
    let plain = folder.listener("one", None, &["open"]);
    let server = server(
        &["open=null:size=1M", "secret=null:size=1M"],
        1,
        access(std::slice::from_ref(&plain)),
    );
    let required = |directory: PathBuf| ListenerSpec {
        tls: TlsOptions {
            mode: TlsMode::Require,
            certificates: Some(directory),
            verify_peer: true,
        },
        exports: vec!["secret".into()],
        ..plain.clone()
    };
    let waits = folder.waiting("one");
    let report = server.reloader().access(&access(&[required(folder.0.join("none"))]));
    assert!(report.failed[0].starts_with("listener one not changed: "), "{report:?}");
    assert_eq!(folder.listed("one"), "", "the new offer is meant for TLS, the old one is over");
    // Exports that are added, and another reload, change nothing about that.
    call(&server, "add", json!({ "spec": "secret2=null:size=1M" })).unwrap();
    let mut both = required(folder.0.join("none"));
    both.exports = vec!["secret*".into(), "open".into()];
    server.reloader().narrow_access(&access(&[both.clone()])).unwrap();
    assert_eq!(folder.listed("one"), "");
    assert_eq!(server.reloader().access(&access(&[both])).failed.len(), 1);
    assert_eq!(folder.listed("one"), "open");
    let report = server.reloader().access(&access(std::slice::from_ref(&plain)));
    assert_eq!(report, AccessReport::default(), "it is what it was");
    assert_eq!(folder.listed("one"), "open");
    let report = server.reloader().access(&access(&[required(certificates.directory().into())]));
    assert_eq!(report.failed, Vec::<String>::new());
    assert!(has_ended(&waits), "it would see in the clear what is for TLS");
    let uri = folder.uri("one", "");
    let plain = OptionNegotiation::open(&uri, Duration::from_secs(20));
    assert!(plain.and_then(|mut client| client.list()).is_err());
    let rows = call(&server, "listeners", json!({})).unwrap();
    assert_eq!((&rows[0]["tls"], &rows[0]["exports"]), (&json!("require"), &json!(["secret"])));
    assert_eq!(server.reloader().certificates(), Ok(true));
    certificates.renew_server((2001, 2002));
    let refused = server.reloader().certificates().unwrap_err();
    assert!(refused.contains("server-cert.pem expired at "), "no client would take it: {refused}");
    end(server);
}

#[test]
fn listener_that_cannot_move_stays() {
    let folder = Folder::new("moves");
    let one = folder.listener("one", None, &["a", "b"]);
    let server = server(
        &["a=null:size=1M", "b=null:size=1M", "c=null:size=1M"],
        1,
        access(std::slice::from_ref(&one)),
    );
    let to = |name: &str, spec: &ListenerSpec| ListenerSpec {
        address: Address::Unix { path: folder.0.join(name), mode: 0o600 },
        ..spec.clone()
    };
    let load = |spec: &ListenerSpec| {
        let wanted = access(std::slice::from_ref(spec));
        server.reloader().narrow_access(&wanted).unwrap();
        server.reloader().access(&wanted)
    };
    let waits = folder.waiting("one");
    let mut lost = to("none/one", &one);
    lost.exports = vec!["b".into(), "c".into()];
    let report = load(&lost);
    let said = format!("; it stays at {}", folder.0.join("one").display());
    assert!(report.failed[0].contains(&said) && report.changed.is_empty(), "{report:?}");
    assert_eq!(folder.listed("one"), "b", "what both offer");
    let report = load(&one);
    assert_eq!((report, folder.listed("one")), (AccessReport::default(), "a b".into()));
    drop(waits);
    // It moves, and is known by its name.
    let report = load(&to("two", &one));
    let expected = [
        format!("listener one at {} was removed", folder.0.join("one").display()),
        format!("listener one listens at {}", folder.0.join("two").display()),
    ];
    assert_eq!((report.changed.as_slice(), report.failed), (expected.as_slice(), Vec::new()));
    assert_eq!(folder.listed("two"), "a b");
    assert!(!folder.0.join("one").exists());
    // Without names of their own, by what they offer.
    let unnamed = |path: PathBuf| ListenerSpec {
        name: path.display().to_string(),
        address: Address::Unix { path, mode: 0o600 },
        ..one.clone()
    };
    let three = unnamed(folder.0.join("three"));
    assert_eq!(load(&three).changed.len(), 2);
    let report = load(&unnamed(folder.0.join("none/three")));
    assert!(report.failed[0].contains("it stays at") && report.changed.is_empty(), "{report:?}");
    assert_eq!(folder.listed("three"), "a b");
    // Removed by hand it goes, and without a place in the configuration.
    let named = |name: &str| folder.0.join(name).display().to_string();
    call(&server, "remove-listener", json!({ "listener": named("three") })).unwrap();
    assert!(!folder.0.join("three").exists());
    let late = json!({ "listener": format!("unix={},exports=a+b", named("late")) });
    call(&server, "add-listener", late).unwrap();
    call(&server, "remove-listener", json!({ "listener": named("late") })).unwrap();
    assert_eq!(load(&one).changed.len(), 1);
    assert_eq!(server.reloader().access(&access(&[])).changed.len(), 1);
    assert!(!folder.0.join("one").exists());
    end(server);
}

#[test]
fn listener_in_the_way_of_its_successor_is_opened_again() {
    let folder = Folder::new("ways");
    let any = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = any.local_addr().unwrap().port();
    drop(any);
    let tcp = |address: &str| ListenerSpec {
        address: Address::Tcp(format!("{address}:{port}").parse().unwrap()),
        ..folder.listener("t", None, &[])
    };
    let disk = ListenerSpec { kind: ListenerKind::VhostUser, ..folder.listener("d", None, &["a"]) };
    let nbd = ListenerSpec { kind: ListenerKind::Nbd, ..disk.clone() };
    let server = server(&["a=null:size=1M"], 1, access(&[tcp("127.0.0.1"), nbd.clone()]));
    let listed = |address: &str| {
        let uri: Uri = format!("nbd://{address}:{port}/").parse().unwrap();
        let mut client = OptionNegotiation::open(&uri, Duration::from_secs(20)).unwrap();
        client.list().unwrap().len()
    };
    // One port, and one path with another kind of clients.
    let report = server.reloader().access(&access(&[tcp("0.0.0.0"), disk]));
    assert_eq!((report.changed.len(), report.failed), (4, Vec::new()));
    assert_eq!(listed("127.0.0.2"), 1);
    // Another program has the port at the address that it is to move to.
    let report = server.reloader().access(&access(&[tcp("127.0.0.1"), nbd.clone()]));
    assert_eq!(report.failed, Vec::<String>::new());
    let other = std::net::TcpListener::bind(format!("127.0.0.3:{port}")).unwrap();
    let report = server.reloader().access(&access(&[tcp("0.0.0.0"), nbd]));
    assert!(report.failed[0].contains(&format!("; t at 127.0.0.1:{port} stays")), "{report:?}");
    assert_eq!((report.changed, listed("127.0.0.1")), (Vec::new(), 1));
    drop(other);
    end(server);
}
