//! Modelled disks of a running server: how late they are answered is in its metrics, in `why` and in the list of exports.

use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::wire::CommandFlags;
use serde_json::json;

use super::change_tests::{call, end, options, spec};
use crate::exports::assemble::Assembly;
use crate::observe::metrics::page::metrics_page;
use crate::{Address, Server, ServerOptions};
use headworks_testing::TempDir;

const READS: u64 = 40;

#[test]
fn lateness_of_a_modelled_disk_is_in_every_answer() {
    let folder = TempDir::new("model");
    let path = folder.join("socket");
    let options = ServerOptions {
        listen: vec![Address::Unix { path: path.clone(), mode: 0o600 }],
        ..options(1)
    };
    // What is inside takes longer than the disk does: each answer is late by the rest, however fast the machine is.
    let late = spec("late=model:profile=nvme,of=delay:read=15ms,of=mem:size=1M");
    let plain = spec("plain=mem:size=1M");
    let server = Server::start(Assembly::new(&[late, plain]).unwrap(), &options, || ()).unwrap();
    // One that comes later is watched, too.
    let added = "added=model:profile=virtual,of=model:profile=nvme,of=mem:size=1M";
    call(&server, "add", json!({ "spec": added })).unwrap();
    for name in ["late", "added"] {
        let uri = format!("nbd+unix:///{name}?socket={}", path.display());
        let mut client = Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap();
        for index in 0..READS {
            client.read(index * 4096, &mut [0; 4096]).unwrap();
        }
        client.write(0, &[1; 4096], CommandFlags::NONE).unwrap();
    }
    let exports = call(&server, "exports", json!({})).unwrap();
    let model = |name: &str| {
        let rows = exports.as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["model"].clone()
    };
    assert!(model("plain").is_null());
    let late = model("late");
    assert_eq!((&late["name"], &late["commands"]), (&json!("nvme"), &json!(READS + 1)));
    assert_eq!(late["too_slow"], true, "{late}");
    assert!(late["late_s"].as_f64().unwrap() > 0.014 * READS as f64, "{late}");
    assert!(late["late_p50_us"].as_f64().unwrap() > 14_000.0, "{late}");
    let told = late["told"].as_str().unwrap();
    assert!(told.starts_with("the machine was late by 0.") && told.contains("disk nvme"), "{told}");
    let added = model("added");
    assert_eq!((&added["name"], &added["commands"]), (&json!("virtual"), &json!(READS + 1)));

    let why = call(&server, "why", json!({ "export": "late" })).unwrap();
    assert_eq!(why["model"]["name"], "nvme");
    let notes = why["notes"].as_array().unwrap();
    let note = notes.iter().filter_map(|note| note.as_str()).find(|note| note.contains("late by"));
    assert!(
        note.is_some_and(|note| note.ends_with("of the machine and not of the model")),
        "{why}"
    );
    let why = call(&server, "why", json!({ "export": "plain" })).unwrap();
    assert!(why["model"].is_null());

    let page = metrics_page(server.service.queries(), &server.service.tree()).unwrap();
    let value = |row: &str| {
        let line = page.lines().find(|line| line.starts_with(row)).expect(row);
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    for family in ["headworks_model_seconds", "headworks_model_late_seconds"] {
        for labels in ["device=\"hw0\",model=\"nvme\"", "device=\"hw2\",model=\"virtual\""] {
            assert_eq!(value(&format!("{family}_count{{{labels}}}")), (READS + 1) as f64);
        }
    }
    assert!(value("headworks_model_late_seconds_sum{device=\"hw0\"") > 0.014 * READS as f64);
    let early =
        "headworks_model_late_seconds_bucket{device=\"hw0\",model=\"nvme\",le=\"0.008388608\"}";
    assert!(value(early) <= 1.0, "reads are late by 14 ms at least");
    end(server);
}
