//! `hw_inflight_kb` and `hw_depth`: the bytes that count, for how long, and that the limit starves no request.

use headworks_core::time::{SEC, US};
use headworks_core::{Control, DepthMode, DeviceId, Scheduler, Tunable};

use crate::bench::{Bench, Shards};

#[test]
fn timed_out_request_releases_its_bytes() {
    let mut bench = Bench::new(|q| q.hw_inflight_kb = 64);
    bench.bios("R0+128k");
    bench.pass(SEC);
    bench.bios("R1m+128k R2m+128k");
    assert_eq!(bench.sent(), "R0+128k");
    bench.pass(29 * SEC);
    assert_eq!(
        bench.sent(),
        "R1m+128k",
        "otherwise all would wait for a device that may never answer"
    );
    // Its late completion is not subtracted again.
    bench.done(0);
    assert_eq!(bench.sent(), "");
    bench.finish_from(1);
    assert_eq!(bench.sent(), "R2m+128k");
    bench.assert_quiet();
}

#[test]
fn timed_out_pieces_release_their_bytes() {
    let mut bench = Bench::new(|q| (q.hw_inflight_kb, q.max_sectors_kb) = (256, 64));
    bench.bios("R0+1m R2m+128k");
    assert_eq!(bench.sent(), "R0+64k R64k+64k R2m+64k R2112k+64k");
    bench.bios("R4m+128k");
    assert_eq!(bench.sent(), "");
    bench.pass(30 * SEC);
    assert_eq!(bench.sent(), "R4m+64k R4160k+64k");
    bench.finish_from(0);
    bench.assert_quiet();
}

#[test]
fn long_discard_counts_as_one_large_read() {
    let mut bench = Bench::new(|q| q.hw_inflight_kb = 256);
    bench.each("D0+512m R600m+128k");
    assert_eq!(bench.sent(), "D0+512m R600m+128k");
    bench.finish_from(0);
    bench.assert_quiet();
}

#[test]
fn lease_request_waits_for_byte_budget() {
    let mut shards = Shards::new(2, |q| q.hw_inflight_kb = 64);
    shards.at[0].bios("R0+128k");
    shards.at[1].bios("v1:R0+128k");
    assert_eq!(shards.deliver(), "1>0 want1");
    shards.at[0].done(0);
    assert!(shards.deliver().starts_with("0>1 grant1, 1>0 bio1"));
    shards.at[0].finish_from(1);
    shards.deliver();
    assert_eq!(shards.at[1].replies(), "1:ok");
}

#[test]
fn byte_limit_changes_while_timed_out_command_is_in_device() {
    let mut bench = Bench::new(|q| q.hw_inflight_kb = 64);
    let set = |value, token| Control::Set {
        device: DeviceId(0),
        tunable: Tunable::InflightKb,
        value,
        token,
    };
    bench.bios("W0+64k");
    bench.pass(SEC);
    // The device answers something else.
    bench.bios("R4m+4k");
    bench.done(1);
    bench.pass(29 * SEC);
    bench.control(set(0, 1));
    bench.bios("R1m+128k R2m+128k");
    bench.control(set(64, 2));
    bench.all_done(2..4);
    assert_eq!(bench.notices(), "timedout:W0+64k set1:ok set2:ok");
    bench.bios("R1m+128k R2m+128k");
    bench.sent();
    bench.done(0);
    assert_eq!(bench.sent(), "");
    bench.finish_from(4);
    bench.assert_quiet();
}

/// Keeps `depth` reads of 1 MiB, and some of 4 KiB, in a device that answers one command in 2 us and 2 ns a byte.
fn serve_large_and_small_reads(bench: &mut Bench, depth: usize, rounds: u64) {
    let mut first = bench.commands();
    for round in 0..rounds {
        let done = bench.commands() - first;
        if done < depth {
            bench.bios(&format!("R{}m+1m", round % 500));
        }
        if round % 8 == 0 {
            bench.bios(&format!("R{}k+4k", 600_000 + 4 * round));
        }
        let len = u64::from(bench.command(first).submit.len);
        bench.pass(2 * US + 2 * len);
        bench.done(first);
        first += 1;
    }
    bench.finish_from(first);
}

#[test]
fn standing_queue_is_shortened_and_commands_are_cut() {
    let mut bench = Bench::new(|q| q.hw_depth = DepthMode::Auto);
    serve_large_and_small_reads(&mut bench, 64, 6000);
    let (queue, _) = bench.shard.queue_stats(DeviceId(0)).expect("the device is here");
    let depth = queue.depth.expect("the depth is measured");
    assert!(depth.trials > 2 && depth.command_max < 256 << 10, "{depth:?}");
    assert!(depth.limit > 0 && depth.limit < 1 << 20, "{depth:?}");
    bench.assert_quiet();
}

/// Keeps 64 scattered writes of 4 KiB in a device that answers one in 10 us; returns the limit that is in use then.
fn limit_of_small_writes(bench: &mut Bench, rounds: usize) -> u64 {
    let first = bench.commands();
    for round in 0..rounds + 64 {
        if round < rounds {
            bench.bios(&format!("W{}k+4k", 8 * (round * 7919 % 50_000)));
        }
        if round >= 64 {
            bench.pass(10 * US);
            bench.done(first + round - 64);
        }
    }
    let (queue, _) = bench.shard.queue_stats(DeviceId(0)).expect("the device is here");
    queue.depth.expect("the depth is measured").limit
}

#[test]
fn small_writes_are_limited_where_no_elevator_sorts_them_or_large_ones_come() {
    const FIRST: u64 = 16 << 20;
    let auto = DepthMode::Auto;
    let mut bench = Bench::new(|q| q.hw_depth = auto);
    assert!(limit_of_small_writes(&mut bench, 6000) < FIRST, "nothing sorts them");
    let mut bench = Bench::new(|q| (q.hw_depth, q.scheduler) = (auto, Scheduler::MqDeadline));
    assert_eq!(limit_of_small_writes(&mut bench, 6000), FIRST, "sorted");
    let large = bench.commands();
    bench.bios("W900m+1m");
    bench.finish_from(large);
    assert!(limit_of_small_writes(&mut bench, 6000) < FIRST, "sorted beside a large one");
    bench.pass(11 * SEC);
    assert_eq!(limit_of_small_writes(&mut bench, 600), FIRST, "sorted, long after it");
    bench.assert_quiet();
}

#[test]
fn depth_mode_changes_under_load() {
    let mut bench = Bench::new(|q| q.hw_depth = DepthMode::Auto);
    let set =
        |value, token| Control::Set { device: DeviceId(0), tunable: Tunable::Depth, value, token };
    for (token, value) in [1, 0, 1].into_iter().enumerate() {
        serve_large_and_small_reads(&mut bench, 32, 1000);
        let first = bench.commands();
        bench.bios("R0+1m R2m+1m");
        bench.control(set(value, token as u32));
        bench.bios("R4m+1m");
        bench.finish_from(first);
        assert_eq!(bench.notices(), format!("set{token}:ok"));
        let (queue, _) = bench.shard.queue_stats(DeviceId(0)).expect("the device is here");
        assert_eq!(queue.depth.is_none(), value == 1);
        bench.assert_quiet();
    }
}

/// What requests wait for before the device is noted where they begin to wait, and tags are not blamed while some are free.
#[test]
fn wait_is_noted_for_what_is_used_up() {
    let waits = |change: &dyn Fn(&mut headworks_core::QueueOptions), bios: &str| {
        let mut bench = Bench::new(|q| {
            q.hw_depth = DepthMode::Fixed;
            change(q);
        });
        bench.bios(bios);
        let waits = bench.shard.queue_stats(DeviceId(0)).unwrap().0.waits;
        bench.finish_from(0);
        bench.assert_quiet();
        (waits.tags.is_some(), waits.bytes.is_some(), waits.commands.is_some())
    };
    let three = "R0+4k R1m+4k R2m+4k";
    assert_eq!(waits(&|_| (), three), (false, false, false));
    assert_eq!(waits(&|q| q.nr_requests = 2, three), (true, false, false));
    assert_eq!(waits(&|q| q.hw_inflight_kb = 4, three), (false, true, false));
    assert_eq!(waits(&|q| q.queue_depth = 2, three), (false, false, true));
}
