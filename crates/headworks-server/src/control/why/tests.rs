//! Tests of the answer to "why is this slow?" with staged facts.

use super::*;
use headworks_core::WaitTimes;
use headworks_core::stats::bucket_of;
use serde_json::{Value, json};

fn facts() -> WhySnapshot {
    WhySnapshot {
        device: "hw0".into(),
        device_state: DeviceState::Live,
        export: "db".into(),
        nr_requests: 64,
        scheduler: "none",
        dirty: Some((60 << 20, 64 << 20)),
        write_bandwidth: 43 << 20,
        limit: None,
        frozen: false,
        ..WhySnapshot::default()
    }
}

fn report(facts: &WhySnapshot, requests: u64, slowest: &[SlowRequest]) -> Value {
    let slowness = Slowness::of(SlowFilter::default(), requests, slowest);
    serde_json::to_value(why(facts, Instant(0), &slowness)).unwrap()
}

#[test]
fn wait_for_latency_target_of_others_is_the_reason() {
    let held = HeldByTarget {
        target_us: 5_000,
        of: vec!["tenant acme".into()],
        device: "hw0".into(),
        limit: Some(256 << 10),
        requests: 30,
    };
    let facts = WhySnapshot { held: Some(held), ..facts() };
    let told = report(&facts, 20, &[slow(9_000_000, &[(WaitKind::Tag, 9_000_000)]); 20]);
    let sentence = told["sentence"].as_str().unwrap();
    let reason = "in tag (waits for the latency target 5 ms of tenant acme: hw0 takes at most 256 KiB of others at once)";
    assert!(sentence.contains(reason), "{sentence}");
    assert_eq!(told["held_for_target"]["of"], json!(["tenant acme"]));
    assert_eq!(
        (&told["latency_target"], told["notes"].as_array().map(Vec::len)),
        (&Value::Null, Some(1))
    );
    assert!(told["hints"][0].as_str().unwrap().contains("looser latency target"));
}

#[test]
fn requests_that_wait_for_a_buffer_are_told_with_the_largest_holder() {
    let held = BufferUser { bytes: 41 << 20, payload_bytes: 9 << 20, ..Default::default() };
    let mut wait = BufferWait { waiting: 5, holder: "a".to_owned(), held };
    let noted = |wait: &BufferWait| {
        let facts = WhySnapshot { buffer_wait: Some(wait.clone()), ..facts() };
        report(&facts, 0, &[])["notes"][0].as_str().unwrap_or_default().to_owned()
    };
    let export = facts().export;
    assert_eq!(
        noted(&wait),
        format!(
            "5 requests of {export} wait for a buffer; a holds 41.0 MiB, 9.0 MiB of it of incomplete payloads"
        )
    );
    (wait.waiting, wait.held.payload_bytes) = (1, 0);
    let one = format!("a request of {export} waits for a buffer; a holds 41.0 MiB");
    assert_eq!(noted(&wait), one);
}

#[test]
fn device_that_does_not_answer_is_the_reason() {
    let facts = WhySnapshot { device_state: DeviceState::Stuck, ..facts() };
    let told = report(&facts, 0, &[]);
    let sentence = told["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("db: device hw0 does not answer"), "{sentence}");
    assert_eq!(told["device_state"], "stuck");
}

fn slow(total_ns: u64, waits: &[(WaitKind, u64)]) -> SlowRequest {
    let word = waits
        .iter()
        .fold(0, |word, (wait, ns)| word | (bucket_of(*ns) as u64) << (8 * *wait as u32));
    SlowRequest { total_ns, wait_times: WaitTimes::from_word(word), ..SlowRequest::default() }
}

fn sentence(requests: u64, slowest: &[SlowRequest]) -> String {
    let report = report(&facts(), requests, slowest);
    report["sentence"].as_str().unwrap().to_owned()
}

#[test]
fn freeze_is_named_as_the_limit_that_it_counts_as() {
    let limited = [slow(9_000_000, &[(WaitKind::Limit, 9_000_000)]); 20];
    let facts = WhySnapshot { frozen: true, ..facts() };
    let told = report(&facts, 20, &limited);
    let sentence = told["sentence"].as_str().unwrap();
    assert!(sentence.ends_with("in limit (a freeze of the image)"), "{sentence}");
    assert!(told["hints"][0].as_str().unwrap().contains("ctl thaw"), "{told}");
    let words = "its limit of writes".to_owned();
    let limit = LongestLimit { words, doubled: String::new() };
    let facts = WhySnapshot { limit: Some(limit), ..facts };
    let told = report(&facts, 20, &limited);
    let sentence = told["sentence"].as_str().unwrap();
    assert!(sentence.contains("a freeze of the image, or its limit of writes"), "{sentence}");
}

#[test]
fn largest_share_is_named_first_with_reason() {
    let ms = 1_000_000;
    let one = slow(10 * ms, &[(WaitKind::Dirty, 8 * ms), (WaitKind::Device, ms)]);
    let all = [one; 200];
    let text = sentence(12_345, &all);
    let begin = "db: the slowest 1 % of 12,345 requests of the last minute (10.0 ms and more) spent 84 % of their time in dirty (the writer was paused: 60.0 MiB of at most 64.0 MiB are dirty, device hw0 writes 43.0 MiB/s), 10 % in device";
    assert!(text.starts_with(begin), "{text}");
    let report = report(&facts(), 12_345, &all);
    assert_eq!((&report["considered"], &report["requests"]), (&json!(124), &json!(12_345)));
    assert_eq!(report["stages"]["dirty"]["requests"], json!(124));
    assert_eq!(report["worst"].as_array().map(Vec::len), Some(5));
    let hints = report["hints"].to_string();
    assert!(hints.contains("vm/dirty_bytes") && !hints.contains("read_ahead"), "{hints}");
}

#[test]
fn flushes_wait_in_the_cache_for_the_device() {
    let ms = 1_000_000;
    let flush = SlowRequest { op: Op::Flush, ..slow(9 * ms, &[(WaitKind::Cache, 8 * ms)]) };
    let read = slow(4 * ms, &[(WaitKind::Cache, 4 * ms)]);
    let slowness =
        |all: &[SlowRequest]| Slowness::of(SlowFilter::default(), 20, all).waits_for_write_out();
    assert!(slowness(&[flush, read]) && !slowness(&[flush, read, read, read]));
    let facts = WhySnapshot { waits_for_write_out: true, ..facts() };
    let text = report(&facts, 20, &[flush; 20])["sentence"].to_string();
    assert!(text.contains("flushes, until what they cover is written to device hw0"), "{text}");
}

#[test]
fn wait_for_option_switch_is_reported() {
    let text = sentence(20, &[slow(4_000_000, &[(WaitKind::Plug, 4_000_000)]); 20]);
    assert!(text.contains("100 % of their time in plug (the queue of hw0 was drained"), "{text}");
}

#[test]
fn requests_not_kept_are_not_reported() {
    let all = [slow(2_000_000, &[(WaitKind::Tag, 2_000_000)]); 50];
    let text = sentence(1_000_000, &all);
    assert!(text.contains("the slowest 50 of 1,000,000 requests"), "{text}");
    assert!(
        text.contains("100 % of their time in tag (waiting for one of the 64 tags of hw0)"),
        "{text}"
    );
}

#[test]
fn requests_without_wait_are_not_slow() {
    let mut all = vec![slow(5_000_000, &[(WaitKind::Device, 5_000_000)]); 20];
    all.extend([slow(0, &[]); 200]);
    let text = sentence(100_000, &all);
    assert!(text.contains("slowest 20 of 100,000 requests of the last minute (5.0 ms"), "{text}");
    assert!(sentence(7, &[slow(0, &[]); 7]).ends_with("longer than one turn of its shard"));
}

#[test]
fn idle_and_fast_exports_are_reported_as_such() {
    assert!(sentence(0, &[]).contains("no request"));
    let text = sentence(500, &[slow(90_000, &[(WaitKind::Device, 90_000)]); 9]);
    assert!(text.contains("nothing is slow: none of the 500 requests"), "{text}");
    assert!(text.ends_with("took longer than 90.0 us"), "{text}");
}

#[test]
fn waits_never_exceed_total_and_rest_is_elsewhere() {
    let parts = parts(&slow(1_000, &[(WaitKind::Device, 3_000), (WaitKind::Tag, 900)]));
    assert!((parts.iter().sum::<f64>() - 1_000.0).abs() < 1e-6 && parts[WaitKind::COUNT] < 1e-6);
    let shown = one(Instant(0), &slow(20_800_000, &[(WaitKind::Dirty, 20_800_000)]));
    assert_eq!(shown.stages_us["dirty"], shown.total_us);
    let text = sentence(20, &[slow(4_000_000, &[]); 5]);
    assert!(text.contains("100 % of their time in elsewhere (between shards"), "{text}");
}
