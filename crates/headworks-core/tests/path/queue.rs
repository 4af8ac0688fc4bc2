//! The queue: admission, merging with waiting requests, and queue depth.

use headworks_core::{Control, DeviceId, NoMerges, QueueOptions, RequestId, Scheduler, VolumeId};

use crate::bench::{Bench, complete};

/// Queue depth 1, spare tags and an elevator that sorts: later requests wait there.
fn narrow(q: &mut QueueOptions) {
    (q.queue_depth, q.nr_requests, q.scheduler) = (1, 8, Scheduler::MqDeadline);
}

/// One tag: later requests wait for it.
fn one_tag(q: &mut QueueOptions) {
    q.nr_requests = 1;
}

#[test]
fn queued_request_merges_with_neighbours() {
    let mut bench = Bench::new(narrow);
    bench.each("R0+4k R64k+4k R68k+4k R60k+4k");
    assert_eq!((bench.sent().as_str(), bench.tags_free()), ("R0+4k", 6));
    bench.done(0);
    assert_eq!(bench.sent(), "R60k+12k");
    assert_eq!(bench.segments(1), "4:0+4k 2:0+4k 3:0+4k");
    bench.done(1);
    assert_eq!(bench.replies(), "1:ok 4:ok 2:ok 3:ok");
    bench.assert_quiet();
}

#[test]
fn tag_waiter_merges_with_neighbours() {
    let mut bench = Bench::new(one_tag);
    bench.each("R0+4k R64k+4k R68k+4k R60k+4k");
    assert_eq!(bench.sent(), "R0+4k");
    bench.done(0);
    assert_eq!(bench.sent(), "R60k+12k");
    bench.done(1);
    assert_eq!(bench.replies(), "1:ok 4:ok 2:ok 3:ok");
    bench.assert_quiet();
}

#[test]
fn bio_between_neighbours_merges_three_and_frees_tag() {
    let mut bench = Bench::new(narrow);
    bench.each("R0+4k R64k+4k R72k+4k");
    assert_eq!(bench.tags_free(), 5);
    bench.bios("R68k+4k");
    assert_eq!(bench.tags_free(), 6, "the request that was merged away returned its tag");
    bench.bios("R76k+4k R56k+4k R60k+4k");
    bench.done(0);
    assert_eq!(bench.sent(), "R0+4k R56k+24k");
    assert_eq!(bench.segments(1), "6:0+4k 7:0+4k 2:0+4k 4:0+4k 3:0+4k 5:0+4k");
    bench.done(1);
    bench.assert_quiet();
}

#[test]
fn front_merge_joins_three_requests() {
    let mut bench = Bench::new(narrow);
    bench.each("R0+4k R72k+4k R64k+4k R68k+4k R80k+4k");
    bench.finish_from(0);
    assert_eq!(bench.sent(), "R0+4k R64k+12k R80k+4k");
    bench.assert_quiet();
}

#[test]
fn two_tag_waiters_merge_when_a_third_joins_them() {
    let mut bench = Bench::new(one_tag);
    bench.each("R0+4k R64k+4k R72k+4k R68k+4k");
    bench.finish_from(0);
    assert_eq!(bench.sent(), "R0+4k R64k+12k");
    bench.assert_quiet();
}

#[test]
fn tag_of_request_merged_into_waiter_is_granted_next() {
    let mut bench = Bench::new(|q| (q.queue_depth, q.nr_requests) = (1, 2));
    bench.each("R0+4k R72k+4k R64k+4k R68k+4k");
    bench.finish_from(0);
    assert_eq!(bench.sent(), "R0+4k R64k+12k");
    assert_eq!(bench.replies(), "1:ok 3:ok 4:ok 2:ok");
    bench.assert_quiet();
}

#[test]
fn command_in_flight_never_merges() {
    let mut bench = Bench::new(|q| q.queue_depth = 2);
    bench.each("R0+4k R4k+4k");
    assert_eq!(bench.sent(), "R0+4k R4k+4k");
    bench.each("R8k+4k R12k+4k");
    bench.done(0);
    assert_eq!(bench.sent(), "R8k+8k");
    bench.each("R16k+4k");
    bench.done(1);
    assert_eq!(bench.sent(), "R16k+4k");
    bench.finish_from(2);
    bench.assert_quiet();
}

#[test]
fn queue_merges_keep_limits_and_classes() {
    for (bios, expected) in [
        ("R64k+4k R68k+4k R72k+4k R76k+4k", "R0+4k R64k+12k R76k+4k"),
        ("W64k+4k W68k+4k!fua", "R0+4k W64k+4k W68k+4k!fua"),
        ("R64k+4k W68k+4k", "R0+4k R64k+4k W68k+4k"),
        ("R64k+4k R68k+4k!nomerge", "R0+4k R64k+4k R68k+4k!nomerge"),
        ("R64k+4k v1:R68k+4k", "R0+4k R64k+4k v1:R68k+4k"),
        ("R64k+4k!sync R68k+4k", "R0+4k R64k+4k!sync R68k+4k"),
        ("D64k+4k D68k+4k", "R0+4k D64k+4k D68k+4k"),
        ("R64k+8k R76k+4k R72k+4k", "R0+4k R64k+12k R76k+4k"),
    ] {
        for tags in [8, 1] {
            let mut bench = Bench::with(|config| {
                let queue = &mut config.devices[0].queue;
                (queue.queue_depth, queue.nr_requests) = (1, tags);
                (queue.max_sectors_kb, queue.fua) = (12, true);
                config.volumes.push(config.volumes[0]);
            });
            bench.each("R0+4k");
            bench.each(bios);
            bench.finish_from(0);
            assert_eq!(bench.sent(), expected, "{bios} with {tags} tags");
            bench.assert_quiet();
        }
    }
}

#[test]
fn queue_merges_keep_max_segments() {
    let mut bench = Bench::new(|q| {
        narrow(q);
        q.max_segments = 2;
    });
    bench.each("R0+4k R64k+4k R68k+4k R72k+4k");
    bench.finish_from(0);
    assert_eq!(bench.sent(), "R0+4k R64k+8k R72k+4k");
}

#[test]
fn queue_merges_only_if_nomerges_is_0() {
    for nomerges in [NoMerges::OneHit, NoMerges::Never] {
        let mut bench = Bench::new(|q| {
            narrow(q);
            q.nomerges = nomerges;
        });
        bench.each("R0+4k R64k+4k R68k+4k");
        bench.finish_from(0);
        assert_eq!(bench.sent(), "R0+4k R64k+4k R68k+4k");
    }
}

#[test]
fn device_never_exceeds_queue_depth() {
    let mut bench = Bench::new(|q| q.queue_depth = 2);
    bench.bios("R0+4k R1m+4k R2m+4k R3m+4k");
    assert_eq!(bench.sent(), "R0+4k R1m+4k");
    bench.done(1);
    assert_eq!(bench.sent(), "R2m+4k");
    bench.all_done([0, 2]);
    assert_eq!(bench.sent(), "R3m+4k");
}

#[test]
fn tags_are_granted_in_order_of_requests() {
    let mut bench = Bench::new(|q| q.nr_requests = 2);
    bench.bios("R0+4k R1m+4k R2m+4k");
    bench.bios("R3m+4k");
    assert_eq!((bench.sent().as_str(), bench.tags_free()), ("R0+4k R1m+4k", 0));
    bench.done(0);
    assert_eq!(bench.sent(), "R2m+4k");
    let (late, answer) = (bench.bio("R4m+4k"), bench.answer(1, Ok(()), 4096));
    bench.turn(&[late, answer]);
    assert_eq!(bench.sent(), "R3m+4k", "a later request of the same batch does not overtake");
    bench.finish_from(2);
    assert_eq!(bench.sent(), "R4m+4k");
    assert_eq!((bench.replies().as_str(), bench.tags_free()), ("1:ok 2:ok 3:ok 4:ok 5:ok", 2));
    bench.assert_quiet();
}

#[test]
fn unknown_completions_are_reported_and_ignored() {
    let mut bench = Bench::with(|config| {
        config.devices[0].queue.queue_depth = 1;
        config.devices.push(config.devices[0]);
        config.volumes.push(config.volumes[0]);
        config.volumes[1].device = DeviceId(1);
    });
    bench.bios("R0+4k R1m+4k");
    let first = bench.command(0).submit.id;
    let stale = RequestId { generation: first.generation.wrapping_sub(1), ..first };
    let waiting = RequestId { slot: first.slot + 1, generation: 0 };
    for id in [stale, waiting, RequestId { slot: 99_999, generation: 1 }] {
        bench.turn(&[complete(DeviceId(0), id, Ok(()), 4096)]);
        assert_eq!(bench.notices(), "unknown");
    }
    bench.turn(&[complete(DeviceId(1), first, Ok(()), 4096)]);
    assert_eq!(bench.notices(), "unknown", "another device's answer");
    bench.turn(&[complete(DeviceId(7), first, Ok(()), 4096)]);
    assert_eq!(bench.notices(), "unknown", "the answer of a device that is not there");
    assert_eq!((bench.replies(), bench.sent()), (String::new(), "R0+4k".into()));
    let twice = bench.answer(0, Ok(()), 4096);
    bench.turn(&[twice, twice]);
    assert_eq!((bench.replies().as_str(), bench.notices().as_str()), ("1:ok", "unknown"));
    bench.done(0);
    assert_eq!((bench.replies(), bench.notices()), (String::new(), "unknown".into()));
    bench.done(1);
    bench.assert_quiet();
}

#[test]
fn controls_for_unknown_devices_and_volumes_are_ignored() {
    let mut bench = Bench::new(|_| ());
    let volume = VolumeId(77);
    bench.control(Control::Acknowledge { volume });
    bench.control(Control::Resize { volume, size: 0 });
    bench.bios("R0+4k");
    assert_eq!(bench.sent(), "R0+4k");
}
