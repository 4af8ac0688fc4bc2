//! mq-deadline in its queue: the order of commands, merges, priorities and the elevator's timer.

use headworks_core::time::{MS, SEC};
use headworks_core::{QueueOptions, Scheduler};

use crate::bench::{BUSY, Bench, EIO};

/// Queue depth 1 and spare tags: later requests are sorted in the elevator.
fn narrow(q: &mut QueueOptions) {
    (q.scheduler, q.queue_depth, q.nr_requests) = (Scheduler::MqDeadline, 1, 16);
}

fn wide(q: &mut QueueOptions) {
    q.scheduler = Scheduler::MqDeadline;
}

/// Returns the commands that are sent when `bios` arrive one by one behind a command in flight.
fn order(change: impl FnOnce(&mut QueueOptions), bios: &str) -> String {
    let mut bench = Bench::with(|config| {
        narrow(&mut config.devices[0].queue);
        change(&mut config.devices[0].queue);
        config.volumes.push(config.volumes[0]);
    });
    bench.bios("R0+4k");
    bench.sent();
    bench.each(bios);
    bench.finish_from(0);
    bench.assert_quiet();
    bench.sent()
}

#[test]
fn waiting_requests_leave_by_volume_and_offset_reads_first() {
    let bios = "W8k+4k v1:R4k+4k R1m+4k R64k+4k W1m+4k v1:R2m+4k D4m+4k";
    assert_eq!(order(|_| (), bios), "R64k+4k R1m+4k v1:R4k+4k v1:R2m+4k W8k+4k W1m+4k D4m+4k");
}

#[test]
fn batch_is_sorted_before_dispatch() {
    let mut bench = Bench::new(wide);
    bench.bios("R2m+4k R1m+4k W5m+4k R3m+4k W4m+4k");
    assert_eq!(bench.sent(), "R1m+4k R2m+4k R3m+4k W4m+4k W5m+4k");
    bench.finish_from(0);
    bench.assert_quiet();
}

#[test]
fn front_merged_request_is_sorted_by_new_start() {
    // R1m grows to start before R900k.
    let bios = "R900k+4k R1m+4k R1020k+4k R1016k+4k R1012k+4k";
    assert_eq!(order(|_| (), bios), "R900k+4k R1012k+16k");
    let bios = "R1m+4k R1012k+4k!nomerge R1020k+4k R1016k+4k R1008k+8k";
    assert_eq!(order(|_| (), bios), "R1008k+20k R1012k+4k!nomerge");
}

#[test]
fn disabled_front_merges_keep_back_merges() {
    let none = |q: &mut QueueOptions| q.deadline.front_merges = false;
    assert_eq!(order(none, "R68k+4k R64k+4k R60k+4k"), "R60k+4k R64k+4k R68k+4k");
    assert_eq!(order(none, "R60k+4k R64k+4k R68k+4k"), "R60k+12k");
    // A request that grew at its end and now touches the next one: that is no front merge of a bio.
    assert_eq!(order(none, "R60k+4k R68k+4k R64k+4k"), "R60k+12k");
    assert_eq!(order(|_| (), "R68k+4k R64k+4k R60k+4k"), "R60k+12k");
}

#[test]
fn chained_merges_keep_device_limits() {
    assert_eq!(order(|_| (), "W64k+4k W72k+4k W80k+4k W68k+4k W76k+4k"), "W64k+20k");
    let small = |q: &mut QueueOptions| q.max_sectors_kb = 12;
    assert_eq!(order(small, "W64k+4k W72k+4k W68k+4k W76k+4k"), "W64k+12k W76k+4k");
    let few = |q: &mut QueueOptions| q.max_segments = 2;
    assert_eq!(order(few, "W64k+4k W72k+4k W68k+4k"), "W64k+8k W72k+4k");
}

#[test]
fn different_priorities_never_merge() {
    assert_eq!(order(|_| (), "R64k+4k!rt R68k+4k"), "R64k+4k R68k+4k");
    assert_eq!(order(|_| (), "R64k+4k!be,1 R68k+4k!be,2"), "R64k+4k R68k+4k");
    assert_eq!(order(|_| (), "R64k+4k!be,1 R68k+4k!be,1"), "R64k+8k");
    assert_eq!(order(|_| (), "R64k+4k!idle R72k+4k!idle R68k+4k!rt"), "R68k+4k R64k+4k R72k+4k");
}

#[test]
fn connections_merge_only_with_equal_priority() {
    for (priority, expected) in [("be", "R64k+8k"), ("be,0", "R64k+4k R68k+4k")] {
        let mut bench = Bench::new(narrow);
        bench.each("R0+4k R64k+4k");
        let mut input = bench.bio(&format!("R68k+4k!{priority}"));
        if let headworks_core::Input::Bio(bio) = &mut input {
            bio.id.connection = 7;
        }
        bench.turn(&[input]);
        bench.sent();
        bench.finish_from(0);
        assert_eq!(bench.sent(), expected);
        bench.assert_quiet();
    }
}

/// The merged request is as old as its older part: it begins the batch after 500 ms, although the sweep is past it.
#[test]
fn merged_request_inherits_earlier_deadline() {
    for (fills, expected) in
        [("R12k+4k", "R8k+12k R2m+4k R3m+4k"), ("R20k+4k", "R16k+8k R2m+4k R3m+4k R8k+4k")]
    {
        let mut bench = Bench::new(|q| {
            narrow(q);
            q.deadline.fifo_batch = 1;
        });
        bench.each("R1m+4k R16k+4k");
        bench.pass(400 * MS);
        bench.each("R2m+4k R8k+4k R3m+4k");
        bench.each(fills);
        bench.pass(100 * MS);
        bench.sent();
        bench.finish_from(0);
        assert_eq!(bench.sent(), expected);
        bench.assert_quiet();
    }
}

/// A request that waits for a tag has no deadline yet, so one with a deadline is not merged into it (with `none` it is).
#[test]
fn queued_request_never_merges_into_tag_waiter() {
    let mut bench = Bench::new(|q| {
        narrow(q);
        q.nr_requests = 2;
    });
    bench.each("R0+4k R72k+4k R64k+4k R68k+4k");
    assert_eq!(bench.tags_free(), 0);
    bench.finish_from(0);
    assert_eq!(bench.sent(), "R0+4k R64k+8k R72k+4k");
    bench.assert_quiet();
}

#[test]
fn lower_priority_waits_for_completion_of_higher() {
    let mut bench = Bench::new(wide);
    bench.bios("R1m+4k!idle R2m+4k R3m+4k!rt");
    assert_eq!(bench.sent(), "R3m+4k");
    bench.done(0);
    assert_eq!(bench.sent(), "R2m+4k");
    bench.done(1);
    assert_eq!(bench.sent(), "R1m+4k");
    bench.done(2);
    bench.assert_quiet();
}

#[test]
fn held_back_request_is_dispatched_after_aging() {
    let mut bench = Bench::new(wide);
    bench.bios("R1m+4k!idle R3m+4k!rt");
    assert_eq!((bench.sent().as_str(), bench.timer), ("R3m+4k", Some(bench.now + 10 * SEC)));
    bench.pass(10 * SEC - 1);
    assert_eq!(bench.sent(), "");
    bench.pass(1);
    assert_eq!(bench.sent(), "R1m+4k");
    bench.all_done([0, 1]);
    bench.assert_quiet();
}

/// The timer is set while the device has room. A busy or full device completes a command first, so no timer is needed.
#[test]
fn elevator_timer_is_set_only_while_device_has_room() {
    let mut bench = Bench::new(|q| {
        narrow(q);
        (q.queue_depth, q.deadline.prio_aging_expire_ms) = (2, 5);
    });
    bench.bios("R3m+4k!rt R1m+4k!idle");
    bench.pass(4 * MS);
    bench.failed(0, BUSY);
    // The request of class idle is old enough now, but the device is busy until the retry at 7 ms.
    bench.pass(3 * MS - 1);
    assert_eq!(bench.sent(), "R3m+4k");
    bench.pass(1);
    assert_eq!(bench.sent(), "R3m+4k R1m+4k");
    bench.bios("R4m+4k!idle");
    bench.pass(20 * MS);
    assert_eq!(bench.sent(), "");
    bench.done(1);
    assert_eq!(bench.sent(), "R4m+4k");
    bench.finish_from(2);
    assert_none_outstanding(&mut bench, "");
}

#[test]
fn requeued_requests_precede_sorted_ones() {
    let mut bench = Bench::new(|q| {
        narrow(q);
        q.queue_depth = 3;
    });
    bench.bios("R3m+4k R1m+4k R2m+4k R5m+4k R4m+4k");
    assert_eq!(bench.sent(), "R1m+4k R2m+4k R3m+4k");
    bench.failed(2, BUSY);
    bench.failed(0, BUSY);
    bench.bios("R1540k+64k");
    bench.done(1);
    assert_eq!(bench.sent(), "R1m+4k R3m+4k R4m+4k", "3 MiB is where the sweep is");
    bench.finish_from(3);
    assert_eq!(bench.sent(), "R5m+4k R1540k+64k");
    bench.assert_quiet();
}

#[test]
fn requeued_request_absorbs_neighbour_from_elevator() {
    let mut bench = Bench::new(narrow);
    bench.bios("R64k+4k!rt R72k+4k!rt");
    bench.failed(0, BUSY);
    bench.bios("R68k+4k!rt");
    bench.pass(3 * MS);
    assert_eq!(bench.sent(), "R64k+4k R64k+12k");
    bench.done(1);
    assert_eq!(bench.replies(), "1:ok 3:ok 2:ok");
    assert_none_outstanding(&mut bench, "");
}

/// Checks that a request of the lowest priority leaves at once: no other request counts as outstanding.
fn assert_none_outstanding(bench: &mut Bench, after: &str) {
    bench.assert_quiet();
    bench.sent();
    bench.bios("R900m+4k!idle");
    assert_eq!(bench.sent(), "R900m+4k", "an ended request holds others back; {after}");
    bench.done(bench.commands() - 1);
    bench.assert_quiet();
}

#[test]
fn every_request_end_is_reported_once() {
    type Way = fn(&mut Bench);
    let ways: [(&str, Way); 9] = [
        ("done", |b| b.finish_from(0)),
        ("failed", |b| (0..b.commands()).for_each(|n| b.failed(n, EIO))),
        ("refused", |b| {
            (0..b.commands()).rev().for_each(|n| b.failed(n, BUSY));
            let first = b.commands();
            b.pass(3 * MS);
            b.finish_from(first);
        }),
        ("in parts", |b| {
            (0..b.commands()).for_each(|n| b.moved(n, 512));
            b.finish_from(3);
        }),
        ("given up, then answered", |b| {
            let commands = b.commands();
            b.pass(30 * SEC);
            (0..commands).for_each(|n| b.done(n));
            b.finish_from(commands);
        }),
        ("given up, then refused", |b| {
            let commands = b.commands();
            b.pass(30 * SEC);
            (0..commands).for_each(|n| b.failed(n, BUSY));
            b.finish_from(commands);
        }),
        ("refused and merged", |b| {
            (0..b.commands()).for_each(|n| b.failed(n, BUSY));
            b.each("W4k+4k!rt W12k+4k!rt W8k+4k!rt");
            let first = b.commands();
            b.pass(3 * MS);
            b.finish_from(first);
        }),
        ("zeroed step by step", |b| {
            b.bios("Z64m+4m!rt D128m+4m!rt");
            (0..b.commands()).for_each(|n| b.failed(n, Err(headworks_core::IoError::Unsupported)));
            b.finish_from(0);
        }),
        ("failed behind a late write", |b| {
            let commands = b.commands();
            b.pass(30 * SEC);
            b.bios("W0+8k!rt R300m+4k!rt");
            (0..commands).for_each(|n| b.done(n));
            b.finish_from(commands);
        }),
    ];
    for (name, way) in ways {
        for bios in ["W0+4k!rt", "W0+4k!rt R1m+4k!rt W2m+4k", "W0+4k!rt W4k+4k!rt", "R8m+4m!rt"] {
            let mut bench = Bench::new(|q| {
                (q.scheduler, q.max_sectors_kb) = (Scheduler::MqDeadline, 256);
                (q.nr_requests, q.queue_depth, q.discard_max_bytes) = (64, 64, 1 << 20);
            });
            bench.bios(bios);
            way(&mut bench);
            // The held-back requests and the remaining pieces; completing the others twice changes nothing.
            bench.finish_from(0);
            bench.replies();
            assert_none_outstanding(&mut bench, &format!("{name}: {bios}"));
        }
    }
}

/// The client was answered, although the device still has the command.
#[test]
fn timed_out_command_holds_back_no_lower_priority() {
    let mut bench = Bench::new(wide);
    bench.bios("R1m+4k!rt R2m+4k");
    assert_eq!(bench.sent(), "R1m+4k");
    bench.bios("R8m+2m!rt");
    assert_eq!(bench.sent(), "R8m+1280k R9472k+768k");
    bench.pass(9 * SEC);
    bench.pass(MS);
    bench.bios("R3m+4k!idle");
    bench.pass(21 * SEC - MS);
    assert_eq!(bench.sent(), "R2m+4k R3m+4k");
    bench.bios("R4m+4k!idle");
    assert_eq!(bench.sent(), "", "R2m is in the device");
    bench.done(3);
    assert_eq!(bench.sent(), "R4m+4k");
    bench.all_done([0, 1, 2, 4, 5]);
    assert_none_outstanding(&mut bench, "");
}
