//! Wait times between the plug and the device, which every answer carries.

use headworks_core::time::MS;
use headworks_core::{Control, DeviceId, Tunable, WaitKind, WaitTimes};

use crate::bench::{Bench, EIO};

/// Returns the waits that are not zero, in whole milliseconds of their bucket's upper end.
fn words(wait_times: WaitTimes) -> String {
    let waits = WaitKind::ALL.into_iter().filter(|wait| wait_times.bucket(*wait) > 0);
    let word = |wait| format!("{}:{}", WaitKind::name(wait), wait_times.at_most(wait) / MS);
    waits.map(word).collect::<Vec<_>>().join(" ")
}

fn last(bench: &Bench) -> String {
    words(*bench.wait_times.last().expect("something was answered"))
}

#[test]
fn waits_are_charged_to_device_scheduler_and_tag() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (2, 1));
    bench.bios("R0+4k R1m+4k R2m+4k");
    bench.now += 5 * MS;
    bench.done(0);
    assert_eq!(last(&bench), "device:5");
    bench.now += 20 * MS;
    bench.done(1);
    // 5 ms at the gate, until the device had room.
    assert_eq!(last(&bench), "tag:5 device:20");
    bench.now += 10 * MS;
    bench.done(2);
    assert_eq!(last(&bench), "tag:25 device:10");
}

#[test]
fn merged_bios_share_wait_times() {
    let mut bench = Bench::new(|q| q.max_sectors_kb = 64);
    bench.bios("R0+4k R4k+4k");
    bench.now += 5 * MS;
    bench.done(0);
    assert_eq!(bench.wait_times.iter().map(|s| words(*s)).collect::<Vec<_>>(), ["device:5"; 2]);
    bench.bios("W0+128k");
    bench.now += 5 * MS;
    bench.done(1);
    bench.now += 15 * MS;
    bench.done(2);
    assert_eq!(last(&bench), "device:20");
}

#[test]
fn fua_write_includes_its_flush_time() {
    let mut bench = Bench::new(|q| (q.write_cache, q.fua) = (true, false));
    bench.bios("W0+4k!fua");
    bench.now += 5 * MS;
    bench.done(0);
    bench.now += 20 * MS;
    bench.done(1);
    assert_eq!(last(&bench), "device:29");
    bench.bios("R0+4k");
    bench.now += 10 * MS;
    bench.failed(2, EIO);
    assert_eq!(last(&bench), "device:10");
}

#[test]
fn joined_flush_is_charged_only_remaining_time() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.now += 10 * MS;
    bench.bios("F");
    bench.done(0);
    // The write has finished since the flush was sent.
    bench.bios("F");
    bench.now += 20 * MS;
    bench.done(1);
    assert_eq!(bench.replies(), "1:ok 2:ok 3:ok");
    let told: Vec<String> = bench.wait_times.iter().map(|wait_times| words(*wait_times)).collect();
    assert_eq!(told, ["device:10", "device:33", "device:20"]);
    bench.now += 10 * MS;
    bench.done(2);
    assert_eq!((bench.replies().as_str(), last(&bench).as_str()), ("4:ok", "device:33"));
    bench.assert_quiet();
}

#[test]
fn time_held_by_option_change_counts_as_plug() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    let (device, tunable) = (DeviceId(0), Tunable::NrRequests);
    bench.control(Control::Set { device, tunable, value: 8, token: 1 });
    bench.bios("F R1m+4k");
    bench.now += 5 * MS;
    // Held as well, and adjacent to a held bio.
    bench.bios("R1028k+4k R2m+4k");
    bench.now += 15 * MS;
    bench.done(0);
    assert_eq!(bench.notices(), "set1:ok");
    assert_eq!(bench.sent(), "R0+4k F R1m+8k R2m+4k");
    bench.now += 10 * MS;
    bench.all_done([1, 2, 3]);
    let told: Vec<String> = bench.wait_times.iter().map(|wait_times| words(*wait_times)).collect();
    let held = "plug:20 device:10";
    assert_eq!(told, ["device:20", held, held, held, "plug:16 device:10"]);
    bench.assert_quiet();
}
