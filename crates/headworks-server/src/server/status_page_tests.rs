//! The status page of a running server: what it asks of the shards, and when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::change_tests::{call, end, options, spec};
use crate::Server;
use crate::exports::assemble::{Assembly, ExportSpec};
use crate::observe::status_page::StatusPage;

const SECOND: Duration = Duration::from_secs(1);

/// A server with exports of one device each, and its page.
fn server(count: usize) -> (Server, StatusPage) {
    let one = |n: usize| spec(&format!("e{n}=delay:read=1ms,of=mem:size=1M"));
    let specs: Vec<ExportSpec> = (0..count).map(one).collect();
    let server = Server::start(Assembly::new(&specs).unwrap(), &options(2), || ()).unwrap();
    let page = StatusPage::new(Arc::clone(&server.service));
    (server, page)
}

fn data(page: &mut StatusPage, now: Instant, after: u64) -> Value {
    serde_json::from_str(&page.data(now, after).unwrap()).unwrap()
}

#[test]
fn shards_are_asked_only_while_a_page_is_open() {
    let (server, mut page) = server(3);
    let queries = server.service.queries();
    let start = Instant::now();
    let before = queries.asked();
    for second in 0..10_000 {
        page.on_timeout(start + SECOND * second);
    }
    assert_eq!((queries.asked(), page.next_timeout()), (before, None), "no page is open");
    let opened = start + SECOND * 10_000;
    assert_eq!(data(&mut page, opened, 0)["next"], 0, "there was no second yet");
    let each = queries.asked() - before;
    assert!(each > 0);
    // Requests within a second are answered from the same sample.
    (0..5).for_each(|_| drop(data(&mut page, opened, 0)));
    assert_eq!(queries.asked(), before + each);
    for second in 1..2_000 {
        page.on_timeout(opened + SECOND * second);
    }
    let samples = (queries.asked() - before) / each - 1;
    assert_eq!((samples, page.next_timeout()), (599, None), "ten minutes after the last look");
    end(server);
}

#[test]
fn samples_reach_a_page_once_and_a_new_page_has_the_past() {
    let (server, mut page) = server(1);
    let start = Instant::now();
    assert_eq!(data(&mut page, start, 0)["exports"][0]["name"], "e0");
    for second in 1..=5 {
        page.on_timeout(start + SECOND * second);
    }
    let now = start + SECOND * 5;
    let count = |data: &Value| data["samples"].as_array().unwrap().len();
    let first = data(&mut page, now, 0);
    assert_eq!((count(&first), &first["next"]), (5, &Value::from(5)));
    assert_eq!(count(&data(&mut page, now, 5)), 0);
    assert_eq!(count(&data(&mut page, now, 3)), 2);
    assert_eq!(first["devices"][0]["state"], "live");
    assert_eq!(first["stages"].as_array().unwrap().len(), 9);
    // What it shows of the server is what the control socket shows.
    let stats = call(&server, "stats", serde_json::json!({})).unwrap();
    assert_eq!(stats["exports"]["e0"]["device"], first["exports"][0]["device"]);
    end(server);
}

#[test]
fn sample_of_many_exports_asks_no_more_than_of_few() {
    let asked = |count: usize| {
        let (server, mut page) = server(count);
        let before = server.service.queries().asked();
        let told = data(&mut page, Instant::now(), 0);
        assert_eq!(told["exports"].as_array().unwrap().len(), count);
        let devices = told["devices"].as_array().unwrap().len();
        let asked = server.service.queries().asked() - before - devices;
        end(server);
        asked
    };
    assert_eq!(asked(1), asked(30), "beside one query for each device");
}
