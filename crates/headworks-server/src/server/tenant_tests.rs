//! Tenants of a running server: values by words, by `ctl` and by the names of a cgroup, and the work of a thousand of them.

use serde_json::{Value, json};

use super::change_tests::{call, end, options, spec};
use crate::exports::assemble::{Assembly, ExportSource, ExportSpec, TenantSpec};
use crate::{Server, ServerOptions};

fn tenant(text: &str) -> TenantSpec {
    TenantSpec::parse(text, ExportSource::File).unwrap()
}

/// All values below a path, without the path.
fn values(server: &Server, path: &str) -> Value {
    let all = call(server, "get", json!({ "path": path })).unwrap();
    let below = |(name, value): (&String, &Value)| (name.replace(path, ""), value.clone());
    Value::Object(all.as_object().unwrap().iter().map(below).collect())
}

#[test]
fn words_ctl_and_cgroup_names_are_the_same_values() {
    let words = "weight=250,latency-target=5ms,bps-write=50M,iops-read=120";
    let texts =
        [format!("a=null:size=1M,{words}"), "b=null:size=1M".into(), "c=null:size=1M".into()];
    let specs: Vec<ExportSpec> = texts.iter().map(|text| spec(text)).collect();
    let tenants = vec![tenant(&format!("a,{words}")), tenant("b"), tenant("c")];
    let options = ServerOptions { tenants, ..options(1) };
    let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
    let set = |path: &str, value: &str| {
        call(&server, "set", json!({ "path": path, "value": value })).unwrap()
    };
    for base in ["exports", "tenants"] {
        for (key, value) in [
            ("weight", "250"),
            ("latency-target", "5ms"),
            ("bps-write", "50M"),
            ("iops-read", "120"),
        ] {
            set(&format!("{base}/b/{key}"), value);
        }
        let cgroup = [
            ("io.weight", "250"),
            ("io.latency", "target=5000"),
            ("io.max", "wbps=52428800 riops=120"),
        ];
        for (key, value) in cgroup {
            let path = format!("{base}/c/{key}");
            let told = set(&path, value);
            assert_eq!(told, call(&server, "get", json!({ "path": path })).unwrap(), "{path}");
        }
        let [mut a, mut b, mut c] =
            ["a", "b", "c"].map(|name| values(&server, &format!("{base}/{name}")));
        // Each has its own device.
        for all in [&mut a, &mut b, &mut c] {
            all.as_object_mut().unwrap().remove("/device");
        }
        assert_eq!((&a, &a), (&b, &c));
        assert_eq!(
            (&a["/io.latency"], &a["/latency-target"]),
            (&json!("target=5000"), &json!("5ms"))
        );
        assert_eq!(a["/io.max"], "rbps=max wbps=52428800 riops=120 wiops=max");
        assert_eq!((&a["/io.weight"], &a["/weight"]), (&json!(250), &json!(250)));
        // What one of them sets another one takes back.
        set(&format!("{base}/c/latency-target"), "none");
        assert_eq!(values(&server, &format!("{base}/c"))["/io.latency"], "target=max");
        let stat = format!("{base}/c/io.stat");
        let stat = call(&server, "get", json!({ "path": stat })).unwrap()[&stat].clone();
        let expected = match base {
            "exports" => {
                "hw2 rbytes=0 wbytes=0 rios=0 wios=0 dbytes=0 dios=0 hw_dirty=0 hw_limited_usec=0 hw_limited=0 hw_wait_usec=0"
            }
            _ => "",
        };
        assert_eq!(stat, expected);
    }
    end(server);
}

#[test]
fn thousand_tenants_ask_shards_no_more_than_one() {
    let asked = |count: usize| {
        let tenants: Vec<_> =
            (0..count).map(|n| tenant(&format!("t{n},weight={}", n + 1))).collect();
        let options = ServerOptions { tenants, ..options(2) };
        let specs: Vec<ExportSpec> =
            (0..32).map(|n| spec(&format!("e{n}=null:size=1M,tenant=t{}", n % count))).collect();
        let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
        let queries = server.service.queries();
        let mut all = Vec::new();
        let mut work = |act: &dyn Fn() -> usize| {
            let before = queries.asked();
            let rows = act();
            all.push(queries.asked() - before);
            rows
        };
        let rows = |value: Value| value.as_array().map_or(0, Vec::len);
        let method = |name: &str| rows(call(&server, name, json!({})).unwrap());
        assert_eq!(work(&|| method("tenants")), count);
        assert_eq!(work(&|| method("exports")), 32);
        let get = || call(&server, "get", json!({ "path": "tenants" })).unwrap();
        assert!(work(&|| get().as_object().unwrap().len()) >= 6 * count);
        work(&|| call(&server, "diff", json!({})).map_or(0, |_| 1));
        work(&|| {
            let page = crate::observe::metrics::page::metrics_page(queries, &server.service.tree())
                .unwrap();
            let name = "headworks_tenant_dirty_bytes{";
            let rows = page.lines().filter(|line| line.starts_with(name)).count();
            assert_eq!(rows, count.min(32), "one for each tenant with exports");
            page.len()
        });
        work(&|| call(&server, "why", json!({ "export": "e1" })).map_or(0, |_| 1));
        end(server);
        all
    };
    let (one, thousand) = (asked(1), asked(1000));
    assert_eq!(one, thousand, "queries of each kind of report");
    assert_eq!(one[2], 0, "values of tenants are no matter of shards");
}
