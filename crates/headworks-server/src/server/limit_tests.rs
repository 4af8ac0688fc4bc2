//! Limits of a running server: set by `ctl`, of tenants and exports, kept by `diff`, and shown in cgroup's words.

use serde_json::json;

use super::change_tests::{call, end, options, spec};
use crate::exports::assemble::{Assembly, ExportSource, TenantSpec};
use crate::{Server, ServerOptions};

#[test]
fn limits_are_set_shown_and_found_by_diff() {
    let mut specs = vec![spec("db=null:size=1M,iops-total=100"), spec("logs=null:size=1M")];
    let acme = TenantSpec::parse("acme,bps-total=1M", ExportSource::File).unwrap();
    specs[1].share.tenant = Some(acme.name);
    let options = ServerOptions { tenants: vec![acme], ..options(2) };
    let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
    let get = |path: &str| call(&server, "get", json!({ "path": path })).unwrap()[path].clone();
    let set =
        |path: &str, value: &str| call(&server, "set", json!({ "path": path, "value": value }));
    assert_eq!(
        (get("exports/db/iops-total"), get("tenants/acme/bps-total")),
        ("100".into(), "1M".into())
    );
    assert_eq!(get("exports/logs/bps-read"), "none");
    set("exports/logs/bps-write", "50M").unwrap();
    set("tenants/acme/io.max", "wiops=120 rbps=max").unwrap();
    set("server/iops-total", "100K").unwrap();
    assert_eq!(get("exports/logs/io.max"), "rbps=max wbps=52428800 riops=max wiops=max");
    assert_eq!(get("tenants/acme/iops-write"), "120");
    assert_eq!(get("server/iops-total"), "100000");
    let refused = |path: &str, value: &str| set(path, value).unwrap_err();
    assert!(refused("exports/db/bps-write", "1k").contains("4096"));
    assert!(refused("exports/db/iops-total-max", "50").contains("must be more than"));
    assert!(refused("exports/db/iops-totl", "50").contains("exports/db/iops-total"));
    assert_eq!(get("exports/db/iops-total"), "100", "what was refused changed nothing");
    let diff = call(&server, "diff", json!({})).unwrap();
    let changes: Vec<&str> = diff["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["path"].as_str().unwrap())
        .collect();
    for path in ["exports/logs/bps-write", "tenants/acme/iops-write", "server/iops-total"] {
        assert!(changes.contains(&path), "{changes:?}");
    }
    let text = diff["text"].as_str().unwrap();
    assert!(text.contains("iops-total=100000") && text.contains("bps-write = \"50M\""), "{text}");
    assert!(text.contains("iops-write = 120"), "{text}");
    assert!(!text.contains("bps-total = "), "not changed: {text}");
    end(server);
}
