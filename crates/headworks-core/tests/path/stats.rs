//! Statistics of volumes and queues, checked with a few requests that can be counted by hand.

use headworks_core::stats::{OpStats, Stage};
use headworks_core::{DeviceId, Input, Instant, Op, Scheduler, Shard, VolumeId};

use crate::bench::{Bench, EIO};

fn row(shard: &Shard, op: Op) -> &OpStats {
    &shard.stats(VolumeId(0)).expect("it is this shard's").ops[op as usize]
}

/// Returns requests, bios, bytes, merges and errors.
fn counts(bench: &Bench, op: Op) -> [u64; 5] {
    let row = row(&bench.shard, op);
    [row.requests, row.bios, row.bytes, row.merges, row.errors]
}

#[test]
fn requests_bios_bytes_and_merges_are_counted_once() {
    let mut bench = Bench::new(|q| q.queue_depth = 1);
    bench.bios("R0+4k R4k+4k R1m+4k");
    bench.bios("R1028k+4k R1032k+4k W0+8k");
    bench.bios("F D0+4k");
    bench.finish_from(0);
    assert_eq!(counts(&bench, Op::Read), [2, 5, 20 << 10, 3, 0]);
    assert_eq!(counts(&bench, Op::Write), [1, 1, 8 << 10, 0, 0]);
    assert_eq!(counts(&bench, Op::Flush), [1, 1, 0, 0, 0]);
    assert_eq!(counts(&bench, Op::Discard), [1, 1, 4 << 10, 0, 0]);
    assert_eq!(counts(&bench, Op::WriteZeroes), [0; 5]);
}

#[test]
fn short_transfer_counts_once_and_each_piece_once() {
    let mut bench = Bench::new(|q| q.max_sectors_kb = 64);
    bench.bios("R0+8k");
    bench.moved(0, 4096);
    bench.done(1);
    assert_eq!(counts(&bench, Op::Read), [1, 1, 8 << 10, 0, 0]);
    bench.bios("W0+160k");
    bench.finish_from(2);
    assert_eq!(counts(&bench, Op::Write), [3, 1, 160 << 10, 0, 0]);
}

#[test]
fn retried_request_counts_each_bio() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W1m+4k");
    bench.failed(0, EIO);
    assert_eq!(counts(&bench, Op::Write), [1, 1, 4 << 10, 0, 1]);
    bench.bios("R0+4k R4k+8k R12k+4k");
    bench.failed(1, EIO);
    bench.done(2);
    bench.failed(3, EIO);
    bench.done(4);
    assert_eq!(counts(&bench, Op::Read), [3, 3, 16 << 10, 2, 1]);
}

#[test]
fn failed_flush_counts_as_error() {
    let mut bench = Bench::new(|_| ());
    bench.bios("F");
    bench.failed(0, EIO);
    assert_eq!(counts(&bench, Op::Flush), [1, 1, 0, 0, 1]);
}

#[test]
fn volumes_have_separate_statistics() {
    let mut bench = Bench::with(|config| config.volumes.push(config.volumes[0]));
    bench.bios("v1:R0+4k");
    bench.done(0);
    assert_eq!(counts(&bench, Op::Read), [0; 5]);
    let other = bench.shard.stats(VolumeId(1)).unwrap();
    assert_eq!(other.ops[Op::Read as usize].requests, 1);
}

#[test]
fn each_stage_counts_only_its_own_time() {
    // Two tags, queue depth 1. The first is sent at once; the second waits 1 us in the elevator; the third waits
    // 10 us for a tag and 100 us in the elevator, and stays 1000 us in the device.
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (2, 1));
    let start = bench.now;
    bench.bios("R0+4k R1m+4k R2m+4k");
    for (at, n) in [(10_000, 0), (110_000, 1), (1_110_000, 2)] {
        bench.now = start + at;
        bench.done(n);
    }
    let stages = &row(&bench.shard, Op::Read).stages;
    let bounds = |stage: Stage| {
        let histogram = &stages[stage as usize];
        assert_eq!(histogram.count(), 3);
        [1, 500, 1000].map(|per_mille| histogram.percentile(per_mille))
    };
    // The upper ends of the buckets that hold 10, 100 and 1000 us.
    let [ten, hundred, thousand] = [10_239, 114_687, 1_048_575];
    assert_eq!(bounds(Stage::Plug), [0, 0, 0]);
    assert_eq!(bounds(Stage::Tag), [0, ten, hundred]);
    assert_eq!(bounds(Stage::Scheduler), [0, 0, 0]);
    assert_eq!(bounds(Stage::Device), [ten, hundred, thousand]);
}

#[test]
fn merged_request_counts_from_its_oldest_part() {
    // Whether the older or the younger absorbs the other: it waited in the elevator, and none of it was in the plug.
    for bios in [["R64k+4k", "R72k+4k", "R68k+4k"], ["R72k+4k", "R64k+4k", "R68k+4k"]] {
        let mut bench = Bench::new(|q| {
            (q.nr_requests, q.queue_depth, q.scheduler) = (8, 1, Scheduler::MqDeadline);
        });
        let start = bench.now;
        bench.bios("W0+4k");
        for (at, bio) in [0, 10_000, 20_000].into_iter().zip(bios) {
            bench.now = start + at;
            bench.bios(bio);
        }
        bench.now = start + 100_000;
        bench.done(0);
        bench.done(1);
        assert_eq!(bench.sent(), "W0+4k R64k+12k");
        let stages = &row(&bench.shard, Op::Read).stages;
        assert_eq!(
            Stage::ALL.map(|stage| stages[stage as usize].percentile(1000)),
            [0, 0, 114_687, 0]
        );
    }
}

#[test]
fn plug_time_stays_out_of_other_stages() {
    // `now` is per batch, so a request that leaves with its batch spent nothing there; the stage exists for drivers that
    // read the clock within a turn. It must never leak into the other stages.
    let mut bench = Bench::new(|_| ());
    let bio = bench.bio("R0+4k");
    bench.shard.handle(Instant(bench.now), &[bio]);
    let submit = match bench.shard.actions().list[0] {
        headworks_core::Action::Submit(submit) => submit,
        other => panic!("{other:?}"),
    };
    bench.shard.clear_actions();
    let answer = crate::bench::complete(submit.device, submit.id, Ok(()), submit.len);
    let inputs: [Input; 1] = [answer];
    bench.shard.handle(Instant(bench.now + 500), &inputs);
    let stages = &row(&bench.shard, Op::Read).stages;
    assert_eq!(Stage::ALL.map(|stage| stages[stage as usize].percentile(1000)), [0, 0, 0, 511]);
}

/// Returns `in_flight` and `busy_ns` as of now.
fn queue(bench: &Bench) -> (u32, u64) {
    let (queue, _) = bench.shard.queue_stats(DeviceId(0)).expect("it is this shard's");
    (queue.in_flight, queue.busy_until(Instant(bench.now)))
}

#[test]
fn queue_is_busy_from_first_request_to_last_completion() {
    // Two tags, queue depth 1: of four requests one is in the device, one in the elevator, and two wait for a tag.
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (2, 1));
    let start = bench.now;
    assert_eq!(queue(&bench), (0, 0));
    bench.bios("R0+4k R1m+4k R2m+4k R3m+4k F");
    assert_eq!(queue(&bench), (5, 0), "the flush bypasses the tags");
    bench.now = start + 700;
    assert_eq!(queue(&bench), (5, 700), "time counts while nothing happens, too");
    bench.finish_from(0);
    assert_eq!(queue(&bench), (0, 700));
    bench.now = start + 10_000;
    assert_eq!(queue(&bench), (0, 700), "an idle queue is not busy");
    bench.bios("W0+4k");
    bench.now = start + 10_030;
    bench.bios("W1m+4k");
    bench.now = start + 10_100;
    bench.finish_from(5);
    assert_eq!(queue(&bench), (0, 800), "overlapping time counts once");
    assert_eq!(bench.shard.queue_stats(DeviceId(1)), None);
}

#[test]
fn iostat_identities_hold() {
    // N bios of s bytes became R requests: merges = N - R, %wrqm = (N - R) / N, wareq-sz = s * N / R, and the time is that of
    // the requests, each from its oldest bio to its end.
    let mut bench = Bench::new(|q| q.queue_depth = 1);
    let start = bench.now;
    bench.bios("W512m+4k");
    for batch in ["W0+4k W4k+4k W8k+4k W1m+4k", "W12k+4k W1028k+4k", "W64k+4k W60k+4k"] {
        bench.now += 100;
        bench.bios(batch);
    }
    bench.now = start + 1_000;
    bench.finish_from(0);
    let [requests, bios, bytes, merges, errors] = counts(&bench, Op::Write);
    assert_eq!((bios, requests, merges, errors), (9, 4, bios - requests, 0));
    assert_eq!(bytes, 4096 * bios);
    let row = row(&bench.shard, Op::Write);
    assert_eq!(row.time_ns, 1_000 + 900 + 900 + 700);
    assert_eq!(queue(&bench), (0, 1_000));
}
