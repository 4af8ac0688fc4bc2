//! The plug: a batch is held until its end, so that neighbours become one request.

use headworks_core::{Control, DeviceConfig, DeviceId, NoMerges, ShardConfig, Tunable};

use crate::bench::Bench;

/// Returns `count` reads of 4 KiB, 1 MiB apart, from `first` MiB on: none touches another.
fn apart(prefix: &str, first: usize, count: usize) -> String {
    let words: Vec<String> = (first..first + count).map(|n| format!("{prefix}R{n}m+4k")).collect();
    words.join(" ")
}

fn sent(change: impl FnOnce(&mut headworks_core::QueueOptions), bios: &str) -> String {
    let mut bench = Bench::new(change);
    bench.bios(bios);
    bench.sent()
}

fn two_devices(config: &mut ShardConfig) {
    config.devices.push(DeviceConfig::clone(&config.devices[0]));
    let mut volume = config.volumes[0];
    volume.device = DeviceId(1);
    config.volumes.push(volume);
}

#[test]
fn sixteen_sequential_reads_become_one_request() {
    let mut bench = Bench::new(|_| ());
    let bios: Vec<String> = (0..16).map(|n| format!("R{}k+4k", 4 * n)).collect();
    bench.bios(&bios.join(" "));
    assert_eq!(bench.sent(), "R0+64k");
    let memory: Vec<String> = (1..=16).map(|n| format!("{n}:0+4k")).collect();
    assert_eq!(bench.segments(0), memory.join(" "));
    bench.done(0);
    let replies: Vec<String> = (1..=16).map(|n| format!("{n}:ok")).collect();
    assert_eq!(bench.replies(), replies.join(" "));
    bench.assert_quiet();
}

#[test]
fn batch_is_held_until_its_end() {
    let mut bench = Bench::new(|_| ());
    bench.each("R0+4k R4k+4k");
    assert_eq!(bench.sent(), "R0+4k R4k+4k", "two batches never meet in the plug");
}

#[test]
fn neighbours_merge_at_both_edges() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R8k+4k R12k+4k R4k+4k R0+4k");
    assert_eq!(bench.sent(), "R0+16k");
    assert_eq!(bench.segments(0), "4:0+4k 3:0+4k 1:0+4k 2:0+4k");
}

#[test]
fn two_interleaved_streams_merge_separately() {
    assert_eq!(sent(|_| (), "R0+4k R1m+4k R4k+4k R1028k+4k R8k+4k R1032k+4k"), "R0+12k R1m+12k");
}

#[test]
fn plug_flushes_at_thirty_third_request() {
    let full = format!("{} R4k+4k", apart("", 0, 32));
    assert_eq!(sent(|_| (), &full).split(' ').count(), 32, "the first is still held");
    let over = format!("{} R4k+4k R32772k+4k", apart("", 0, 33));
    let over = sent(|_| (), &over);
    assert_eq!(over.split(' ').count(), 34, "the first left, the 33rd is still held");
    assert!(over.ends_with("R31m+4k R32m+8k R4k+4k"), "{over}");
}

#[test]
fn request_of_128_kib_flushes_plug_at_next_bio() {
    assert_eq!(sent(|_| (), "R0+124k R1m+4k R124k+4k"), "R0+128k R1m+4k");
    assert_eq!(sent(|_| (), "R0+128k R1m+4k R128k+4k"), "R0+128k R1m+4k R128k+4k");
    assert_eq!(sent(|_| (), "R0+64k R64k+64k R128k+4k"), "R0+132k", "a neighbour still joins");
    assert_eq!(sent(|_| (), "R0+128k R1m+4k R1028k+4k"), "R0+128k R1m+8k", "the new one is held");
}

#[test]
fn two_devices_hold_sixty_four_in_order() {
    let mixed = |count| {
        let words: Vec<String> =
            (0..count).flat_map(|n| [format!("R{n}m+4k"), format!("v1:R{n}m+4k")]).collect();
        words.join(" ")
    };
    let mut bench = Bench::with(two_devices);
    bench.bios(&format!("{} R4k+4k v1:R4k+4k", mixed(32)));
    let order = format!("R0+8k {} v1:R0+8k {}", apart("", 1, 31), apart("v1:", 1, 31));
    assert_eq!(bench.sent(), order);
    let mut bench = Bench::with(two_devices);
    bench.bios(&format!("{} R500m+4k R4k+4k v1:R4k+4k", mixed(32)));
    assert_eq!(bench.sent_count(), 67, "the 65th flushed all before it");
}

#[test]
fn plug_limit_returns_to_thirty_two_after_flush() {
    let mut bench = Bench::with(two_devices);
    bench.bios("R0+4k v1:R0+4k");
    bench.sent();
    bench.bios(&format!("{} R4k+4k", apart("", 100, 33)));
    bench.sent();
    bench.bios(&format!("{} R204804k+4k", apart("", 200, 33)));
    assert_eq!(bench.sent_count(), 34);
}

#[test]
fn different_ops_flags_and_priorities_never_merge() {
    for (bios, expected) in [
        ("W0+4k W4k+4k!fua", "W0+4k W4k+4k!fua"),
        ("W0+4k!fua W4k+4k!fua", "W0+8k!fua"),
        ("R0+4k R4k+4k!nomerge", "R0+4k R4k+4k!nomerge"),
        ("R0+4k!nomerge R4k+4k", "R0+4k!nomerge R4k+4k"),
        ("W0+4k W4k+4k!sync", "W0+4k W4k+4k!sync"),
        ("W0+4k!sync W4k+4k!sync", "W0+8k!sync"),
        ("R0+4k W4k+4k", "R0+4k W4k+4k"),
        ("R0+4k R0+4k", "R0+4k R0+4k"),
        ("R0+4k R2k+4k", "R0+4k R2k+4k"),
        ("R0+4k R8k+4k", "R0+4k R8k+4k"),
        ("Z0+4k Z4k+4k", "Z0+4k Z4k+4k"),
        ("D0+4k D4k+4k", "D0+4k D4k+4k"),
        ("Z0+4k W4k+4k", "Z0+4k W4k+4k"),
    ] {
        assert_eq!(sent(|q| q.fua = true, bios), expected, "{bios}");
    }
}

#[test]
fn merged_read_reports_hole_only_if_all_allow() {
    assert_eq!(sent(|_| (), "R0+4k!hole R4k+4k!hole"), "R0+8k!hole");
    assert_eq!(sent(|_| (), "R0+4k!hole R4k+4k"), "R0+8k");
}

#[test]
fn volumes_of_one_device_never_mix() {
    let mut bench = Bench::with(|config| config.volumes.push(config.volumes[0]));
    bench.bios("R0+4k v1:R4k+4k R4k+4k v1:R0+4k");
    assert_eq!(bench.sent(), "R0+8k v1:R0+8k");
}

#[test]
fn devices_never_mix() {
    let mut bench = Bench::with(two_devices);
    bench.bios("R0+4k v1:R4k+4k R4k+4k v1:R0+4k");
    assert_eq!(bench.sent(), "R0+8k v1:R0+8k");
}

#[test]
fn nomerges_limits_search_for_neighbours() {
    let bios = "R0+4k R1m+4k R4k+4k R8k+4k";
    let with = |nomerges| sent(|q| q.nomerges = nomerges, bios);
    assert_eq!(with(NoMerges::MergeAll), "R0+12k R1m+4k");
    assert_eq!(
        with(NoMerges::OneHit),
        "R0+4k R1m+4k R4k+8k",
        "only the last request is a candidate"
    );
    assert_eq!(with(NoMerges::Never), "R0+4k R1m+4k R4k+4k R8k+4k");
}

#[test]
fn merged_request_never_exceeds_max_sectors_kb() {
    assert_eq!(
        sent(|q| q.max_sectors_kb = 12, "R0+4k R4k+4k R8k+4k R12k+4k R16k+4k"),
        "R0+12k R12k+8k"
    );
}

#[test]
fn merged_request_never_exceeds_max_segments() {
    assert_eq!(
        sent(|q| q.max_segments = 3, "R0+4k R4k+4k R8k+4k R12k+4k R16k+4k"),
        "R0+12k R12k+8k"
    );
    let small = |q: &mut headworks_core::QueueOptions| {
        (q.max_segments, q.max_segment_size) = (3, 4096);
    };
    assert_eq!(sent(small, "R0+8k R8k+8k R16k+4k"), "R0+8k R8k+12k", "8 KiB are two segments");
}

#[test]
fn bios_held_during_option_change_merge_afterwards() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    let (device, tunable) = (DeviceId(0), Tunable::MaxSectorsKb);
    bench.control(Control::Set { device, tunable, value: 64, token: 1 });
    bench.bios("W0+4k W4k+4k");
    bench.done(0);
    assert_eq!(bench.sent(), "R0+4k W0+8k");
    bench.finish_from(1);
    bench.assert_quiet();
}
