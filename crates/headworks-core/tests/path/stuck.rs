//! Devices that do not answer, or refuse everything: what waits fails in time, new requests fail at once, probes go through.

use headworks_core::time::{MS, SEC};
use headworks_core::{Control, DeviceId, DeviceState, Scheduler, Tunable};

use crate::bench::{BUSY, Bench, Shards};

const LIMIT: u64 = 30 * SEC;

fn state(bench: &Bench) -> Option<DeviceState> {
    bench.shard.device_state(DeviceId(0))
}

/// Two tags: of five reads and a flush, three wait at the gate. The device answers nothing.
#[test]
fn requests_waiting_for_a_silent_device_fail() {
    for scheduler in [Scheduler::None, Scheduler::MqDeadline] {
        for (tags, depth) in [(2, 2), (8, 2)] {
            let mut bench = Bench::new(|q| {
                (q.nr_requests, q.queue_depth, q.scheduler) = (tags, depth, scheduler);
            });
            bench.bios("R0+4k R1m+4k R2m+4k");
            bench.pass(SEC);
            bench.bios("R3m+4k R4m+4k F");
            bench.pass(LIMIT - SEC - 1);
            assert_eq!(bench.replies(), "");
            bench.pass(1);
            assert_eq!(bench.replies(), "1:timeout/early 2:timeout/early 3:timeout");
            assert_eq!(state(&bench), Some(DeviceState::Live), "a flush is in the device");
            bench.pass(SEC);
            assert_eq!(bench.replies(), "6:timeout 4:timeout 5:timeout");
            assert_eq!(state(&bench), Some(DeviceState::Stuck));
            bench.notices();
            bench.bios("R5m+4k W6m+4k F D0+1m Z0+1m");
            assert_eq!(bench.replies(), "9:timeout 7:timeout 8:timeout 10:timeout 11:timeout");
            assert_eq!((bench.sent_count(), bench.commands()), (3, 3));
            bench.done(0);
            assert_eq!(
                (bench.replies(), bench.notices()),
                ("1:released".to_owned(), "live".to_owned())
            );
            bench.bios("R5m+4k");
            assert_eq!(bench.sent(), "R5m+4k");
            bench.all_done([1, 2, 3]);
            bench.replies();
            bench.assert_quiet();
        }
    }
}

#[test]
fn stuck_device_is_probed_with_growing_pauses() {
    let mut bench = Bench::new(|q| q.io_timeout_ns = SEC);
    bench.bios("R0+4k");
    bench.pass(SEC);
    assert_eq!(bench.notices(), "timedout:R0+4k stuck");
    bench.sent();
    let mut probes = Vec::new();
    for tenth in 0..700 {
        bench.bios("R1m+4k");
        if bench.sent_count() > 0 {
            probes.push(tenth / 10);
        }
        bench.pass(SEC / 10);
    }
    assert_eq!(probes, [1, 3, 7, 15, 31, 47, 63]);
    bench.replies();
    assert_eq!(state(&bench), Some(DeviceState::Stuck));
    bench.notices();
    // The first command is lost for good; a probe is answered.
    bench.pass(16 * SEC);
    bench.bios("R1m+4k R3m+4k");
    assert_eq!(bench.replies(), "703:timeout", "one request is a probe");
    let probe = bench.commands() - 1;
    bench.done(probe);
    assert_eq!((bench.replies(), bench.notices()), ("702:ok".into(), "live".into()));
    bench.all_done(0..probe);
    bench.replies();
    bench.assert_quiet();
}

/// One lost command among others that are answered does not stop the device.
#[test]
fn device_that_answers_others_is_not_stuck() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    for n in 1..=40 {
        bench.bios("R1m+4k");
        bench.done(n);
        bench.pass(SEC);
    }
    assert_eq!(bench.notices(), "timedout:R0+4k");
    assert_eq!(state(&bench), Some(DeviceState::Live));
    bench.done(0);
    bench.assert_quiet();
}

/// A device that refuses without end ends what it is asked, too; the pauses between the tries grow.
#[test]
fn requests_of_a_refusing_device_fail_after_few_tries() {
    for scheduler in [Scheduler::None, Scheduler::MqDeadline] {
        let mut bench = Bench::new(|q| (q.queue_depth, q.scheduler) = (2, scheduler));
        bench.bios("R0+4k R1m+4k R2m+4k F");
        let (mut at, mut tries) = (0, 0);
        let start = bench.now;
        while bench.now < start + LIMIT {
            while at < bench.commands() {
                bench.failed(at, BUSY);
                at += 1;
                tries += 1;
            }
            bench.pass(MS);
        }
        // Those at the gate and those in the elevator fail in the same batch.
        let replies = bench.replies();
        let mut replies: Vec<&str> = replies.split(' ').collect();
        replies.sort_unstable();
        assert_eq!(replies, ["1:timeout", "2:timeout", "3:timeout", "4:timeout"]);
        assert_eq!(bench.notices(), "stuck");
        assert!((100..900).contains(&tries), "{tries} tries of three commands in 30 s");
        bench.bios("R0+4k");
        assert_eq!(bench.replies(), "5:timeout");
        bench.sent();
        bench.pass(LIMIT);
        bench.bios("R0+4k");
        assert_eq!(bench.sent(), "R0+4k", "a probe");
        let probe = bench.commands() - 1;
        bench.done(probe);
        assert_eq!((bench.replies(), bench.notices()), ("6:ok".into(), "live".into()));
        bench.assert_quiet();
    }
}

/// Pieces wait as long as the bio does; each finished piece gives the rest another time-out.
#[test]
fn pieces_that_wait_fail_with_their_bio() {
    let mut bench = Bench::new(|q| {
        (q.max_sectors_kb, q.nr_requests, q.queue_depth) = (64, 8, 1);
    });
    bench.bios("W0+256k");
    for _ in 0..2 {
        bench.pass(LIMIT / 2);
        let last = bench.commands() - 1;
        bench.done(last);
    }
    bench.pass(LIMIT - 1);
    assert_eq!(bench.replies(), "");
    assert_eq!(bench.sent(), "W0+64k W64k+64k W128k+64k");
    bench.pass(1);
    assert_eq!(bench.replies(), "1:timeout/early");
    bench.done(2);
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("1:released", ""));
    bench.assert_quiet();
}

#[test]
fn merged_bios_that_wait_fail_together() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (1, 1));
    bench.each("R1m+4k R0+4k R4k+4k");
    bench.pass(LIMIT);
    assert_eq!(bench.replies(), "1:timeout/early 2:timeout 3:timeout");
    bench.done(0);
    bench.bios("R8k+4k");
    bench.done(1);
    assert_eq!(bench.replies(), "1:released 4:ok");
    bench.assert_quiet();
}

/// A change of options that cannot be made yet holds bios no longer than their time-out.
#[test]
fn bios_held_by_a_change_of_options_fail_in_time() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (2, 2));
    bench.bios("R0+4k R1m+4k");
    bench.pass(LIMIT - SEC);
    bench.control(Control::Set {
        device: DeviceId(0),
        tunable: Tunable::NoMerges,
        value: 2,
        token: 7,
    });
    bench.bios("R2m+4k");
    bench.pass(SEC);
    assert_eq!(bench.replies(), "1:timeout/early 2:timeout/early 3:timeout");
    bench.all_done([0, 1]);
    bench.bios("R3m+4k");
    bench.done(2);
    bench.assert_quiet();
}

/// A shard whose bios wait for leased tags fails them in time, and is told of the device's state.
#[test]
fn other_shards_fail_what_waits_for_tags() {
    let mut shards = Shards::new(2, |q| (q.nr_requests, q.queue_depth) = (2, 2));
    shards.at[0].bios("R0+4k R1m+4k");
    shards.pass(SEC);
    shards.at[1].bios("v1:R0+4k v1:R1m+4k");
    shards.deliver();
    shards.pass(LIMIT - SEC);
    assert_eq!(shards.at[0].replies(), "1:timeout/early 2:timeout/early");
    assert!(shards.deliver().contains("0>1 stuck"));
    assert_eq!(state(&shards.at[1]), Some(DeviceState::Stuck));
    shards.at[1].bios("v1:R2m+4k v1:F");
    assert_eq!(shards.at[1].replies(), "3:timeout 4:timeout");
    shards.pass(SEC);
    assert_eq!(shards.at[1].replies(), "1:timeout 2:timeout");
    shards.at[0].done(0);
    shards.deliver();
    assert_eq!(state(&shards.at[1]), Some(DeviceState::Live));
    shards.at[1].bios("v1:R2m+4k");
    shards.deliver();
    shards.at[0].finish_from(1);
    shards.deliver();
    assert_eq!(shards.at[1].replies(), "5:ok");
    shards.pass(SEC);
    shards.deliver();
    shards.at[0].assert_quiet();
    shards.at[1].assert_quiet();
}

/// A shard whose bios wait for leased tags fails them in time though the device is sent further commands: it is not stuck yet.
#[test]
fn bios_that_wait_for_tags_fail_before_the_device_is_stuck() {
    let mut shards = Shards::new(2, |q| (q.nr_requests, q.queue_depth) = (2, 2));
    shards.at[0].bios("R0+4k");
    shards.pass(SEC);
    shards.at[0].bios("R1m+4k");
    shards.at[1].bios("v1:R0+4k v1:R1m+4k");
    shards.deliver();
    shards.pass(LIMIT - SEC);
    assert_eq!(shards.at[0].replies(), "1:timeout/early");
    assert!(shards.deliver().contains("0>1 unresponsive"));
    assert_eq!(state(&shards.at[1]), Some(DeviceState::Live));
    shards.pass(SEC);
    assert_eq!(shards.at[1].replies(), "1:timeout 2:timeout");
    shards.at[0].finish_from(0);
    shards.deliver();
    assert_eq!(state(&shards.at[1]), Some(DeviceState::Live));
    shards.pass(SEC);
    shards.deliver();
    shards.at[0].assert_quiet();
    shards.at[1].assert_quiet();
}

/// What a bio waited for leased tags counts on the owner's shard.
#[test]
fn wait_for_leased_tags_counts_at_the_owner() {
    let mut shards = Shards::new(2, |q| {
        (q.nr_requests, q.queue_depth, q.scheduler) = (2, 1, Scheduler::MqDeadline);
    });
    shards.at[0].bios("R0+4k R1m+4k");
    shards.at[1].bios("v1:R0+4k");
    shards.deliver();
    shards.pass(LIMIT - SEC);
    shards.at[0].done(0);
    shards.deliver();
    // The tag came to the other shard; its bio is behind the command of this one.
    assert_eq!(shards.at[0].replies(), "1:ok");
    // Silent for a quarter of the time-out, and the next look.
    shards.pass(LIMIT / 4 + LIMIT / 8);
    assert!(shards.deliver().contains("0>1 timeout"));
    assert_eq!(shards.at[1].replies(), "1:timeout");
}

/// A busy device fails nothing, however long its queue is; when it falls silent, what has waited fails soon.
#[test]
fn requests_of_a_busy_device_wait_for_their_turn() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (1, 1));
    let words: Vec<String> = (0..20).map(|at| format!("R{at}m+4k")).collect();
    bench.bios(&words.join(" "));
    for n in 0..15 {
        bench.pass(5 * SEC);
        bench.done(n);
    }
    assert_eq!(bench.replies().matches(":ok").count(), 15, "after 75 s");
    bench.pass(LIMIT / 4 + LIMIT / 8);
    assert_eq!(bench.replies().matches(":timeout").count(), 4, "the last command is in the device");
    bench.pass(LIMIT);
    assert_eq!(
        (bench.replies().as_str(), state(&bench)),
        ("16:timeout/early", Some(DeviceState::Stuck))
    );
    bench.done(15);
    bench.assert_quiet();
}
