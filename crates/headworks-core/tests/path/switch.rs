//! Changing options under load: drain and switch; no bio is lost, reordered or split by two sets of limits.

use headworks_core::device_cost::ShareUnit;
use headworks_core::time::{MS, SEC};
use headworks_core::{Control, DeviceId, Input, Message, Scheduler, Tunable};

use crate::bench::{Bench, EIO, Shards};

fn set(tunable: Tunable, value: u64, token: u32) -> Control {
    Control::Set { device: DeviceId(0), tunable, value, token }
}

fn value(bench: &Bench, tunable: Tunable) -> u64 {
    tunable.get(bench.shard.queue_options(DeviceId(0)).unwrap())
}

#[test]
fn idle_queue_changes_options_at_once() {
    let mut bench = Bench::new(|_| ());
    bench.control(set(Tunable::MaxSectorsKb, 8, 7));
    assert_eq!(bench.notices(), "set7:ok");
    bench.bios("R0+16k");
    assert_eq!(bench.sent(), "R0+8k R8k+8k");
    bench.finish_from(0);
    bench.assert_quiet();
}

#[test]
fn requests_end_under_old_options_and_later_ones_are_held() {
    let mut bench = Bench::new(|q| q.queue_depth = 1);
    bench.bios("W0+16k W1m+16k");
    assert_eq!(bench.sent(), "W0+16k");
    bench.control(set(Tunable::MaxSectorsKb, 8, 1));
    // An overlapping write: it must not reach the device before the one in flight is done, nor by the old limit.
    bench.bios("W4k+16k");
    bench.bios("R2m+4k F");
    assert_eq!((bench.sent(), bench.notices()), (String::new(), String::new()));
    bench.done(0);
    assert_eq!((bench.sent().as_str(), bench.notices().as_str()), ("W1m+16k", ""));
    bench.done(1);
    assert_eq!(bench.notices(), "set1:ok");
    assert_eq!(bench.replies(), "1:ok 2:ok");
    assert_eq!(bench.sent(), "F W4k+8k", "in their order; the flush bypasses the elevator");
    bench.finish_from(2);
    assert_eq!(bench.sent(), "W12k+8k R2m+4k");
    assert_eq!(bench.replies(), "5:ok 3:ok 4:ok");
    bench.assert_quiet();
}

#[test]
fn caching_option_set_during_drain_is_kept() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k");
    bench.control(set(Tunable::MaxSectorsKb, 8, 1));
    bench.control(set(Tunable::ReadAheadKb, 64, 2));
    assert_eq!((bench.notices().as_str(), value(&bench, Tunable::ReadAheadKb)), ("set2:ok", 64));
    bench.done(0);
    assert_eq!(bench.notices(), "set1:ok");
    assert_eq!(value(&bench, Tunable::ReadAheadKb), 64, "the change does not undo it");
    assert_eq!(value(&bench, Tunable::MaxSectorsKb), 8);
    bench.assert_quiet();
}

#[test]
fn bios_of_same_turn_keep_their_place_around_change() {
    let mut bench = Bench::new(|_| ());
    let (before, after) = (bench.bio("W0+16k"), bench.bio("W16k+16k"));
    bench.turn(&[before, Input::Control(set(Tunable::MaxSectorsKb, 8, 1)), after]);
    assert_eq!(bench.sent(), "W0+16k");
    bench.done(0);
    assert_eq!(bench.sent(), "W16k+8k W24k+8k");
    bench.finish_from(1);
    bench.assert_quiet();
}

#[test]
fn split_bio_ends_before_options_change() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.max_sectors_kb) = (2, 4));
    bench.bios("W0+16k");
    bench.control(set(Tunable::Scheduler, Scheduler::MqDeadline as u64, 1));
    bench.bios("W0+4k");
    assert_eq!(bench.sent(), "W0+4k");
    for (n, next) in ["W4k+4k", "W8k+4k", "W12k+4k"].into_iter().enumerate() {
        bench.done(n);
        assert_eq!((bench.sent().as_str(), bench.notices().as_str()), (next, ""));
    }
    bench.failed(3, EIO);
    assert_eq!((bench.notices().as_str(), bench.replies().as_str()), ("set1:ok", "1:medium"));
    assert_eq!(bench.sent(), "W0+4k");
    bench.done(4);
    bench.assert_quiet();
}

#[test]
fn invalid_value_is_refused_and_changes_nothing() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    for (tunable, wrong, word) in [
        (Tunable::NrRequests, 0, "invalid"),
        (Tunable::NrRequests, 4097, "invalid"),
        (Tunable::Scheduler, 9, "invalid"),
        (Tunable::QueueDepth, 64, "unsupported"),
    ] {
        bench.control(set(tunable, wrong, 3));
        assert_eq!(bench.notices(), format!("set3:{word}"), "{tunable:?}");
        assert_ne!(value(&bench, tunable), wrong);
    }
    // Nothing drains: the next bio is sent at once.
    bench.bios("R1m+4k");
    assert_eq!(bench.sent(), "R0+4k R1m+4k");
    let elsewhere =
        Control::Set { device: DeviceId(9), tunable: Tunable::NrRequests, value: 9, token: 4 };
    bench.control(elsewhere);
    assert_eq!(bench.notices(), "set4:invalid");
}

#[test]
fn max_sectors_kb_below_block_size_is_refused() {
    let mut bench = Bench::with(|config| config.volumes[0].options.block_size = 8192);
    bench.control(set(Tunable::MaxSectorsKb, 4, 1));
    assert_eq!(bench.notices(), "set1:invalid");
    bench.control(set(Tunable::MaxSectorsKb, 8, 2));
    assert_eq!(bench.notices(), "set2:ok");
}

#[test]
fn second_change_during_drain_is_busy() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    bench.control(set(Tunable::NrRequests, 256, 1));
    assert_eq!(bench.notices(), "set1:ok");
    bench.control(set(Tunable::NrRequests, 8, 2));
    bench.control(set(Tunable::NrRequests, 9, 3));
    assert_eq!(bench.notices(), "set3:busy");
    bench.done(0);
    assert_eq!(bench.notices(), "set2:ok");
    assert_eq!(bench.tags_free(), 8);
}

#[test]
fn changed_nr_requests_limits_requests_in_flight() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth, q.max_sectors_kb) = (4, 64, 4));
    let count = |bench: &mut Bench| {
        let first = bench.commands();
        let offsets = (0..64).map(|n| format!("R{}k+4k!nomerge", n * 8));
        bench.bios(&offsets.collect::<Vec<_>>().join(" "));
        let sent = bench.sent_count();
        bench.finish_from(first);
        bench.sent();
        bench.assert_quiet();
        sent
    };
    assert_eq!(count(&mut bench), 4);
    for (token, tags) in [(1, 64), (2, 4096), (3, 1), (4, 33)] {
        bench.control(set(Tunable::NrRequests, tags, token));
        assert_eq!(bench.notices(), format!("set{token}:ok"));
        assert_eq!(count(&mut bench) as u64, tags.min(64));
    }
    // As many pieces as tags: there are slots for them all.
    bench.control(set(Tunable::NrRequests, 4096, 9));
    let first = bench.commands();
    let large = (0..128).map(|n| format!("R{}m+1m", n * 2));
    bench.bios(&large.collect::<Vec<_>>().join(" "));
    bench.finish_from(first);
    assert_eq!(bench.commands() - first, 128 * 256);
    bench.assert_quiet();
}

/// Passes a second in which the device answers another command: it is not taken for one that does not answer.
fn answer_another(bench: &mut Bench) {
    bench.pass(SEC);
    bench.bios("R9m+4k");
    bench.done(bench.commands() - 1);
    assert!(bench.replies().ends_with(":ok"), "the other command is answered");
    bench.sent();
}

#[test]
fn drain_ends_at_timeout_and_ignores_late_completion() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k");
    answer_another(&mut bench);
    bench.control(set(Tunable::Scheduler, Scheduler::MqDeadline as u64, 1));
    bench.bios("R1m+4k");
    bench.pass(29 * SEC - 1);
    assert_eq!(bench.notices(), "");
    bench.pass(1);
    assert_eq!(bench.notices(), "timedout:W0+4k set1:ok");
    assert_eq!(bench.sent(), "R1m+4k");
    bench.done(0);
    bench.done(2);
    assert_eq!(bench.replies(), "1:timeout/early 1:released 3:ok");
    // The new elevator never had the timed-out request and still serves all priorities.
    bench.bios("R0+4k");
    bench.finish_from(3);
    bench.assert_quiet();
}

#[test]
fn tag_change_is_busy_while_timed_out_command_holds_tag() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k");
    answer_another(&mut bench);
    bench.control(set(Tunable::NrRequests, 8, 1));
    bench.bios("R1m+4k");
    bench.pass(29 * SEC);
    assert_eq!(bench.notices(), "timedout:W0+4k set1:busy");
    assert_eq!((value(&bench, Tunable::NrRequests), bench.sent().as_str()), (256, "R1m+4k"));
    bench.all_done([0, 2]);
    bench.control(set(Tunable::NrRequests, 8, 2));
    assert_eq!((bench.notices().as_str(), bench.tags_free()), ("set2:ok", 8));
    bench.assert_quiet();
}

#[test]
fn leases_return_and_lease_requests_wait_during_drain() {
    let mut shards = Shards::new(2, |_| ());
    shards.at[1].bios("v1:R0+4k v1:R1m+4k");
    shards.deliver();
    shards.at[0].control(set(Tunable::NrRequests, 1, 1));
    shards.at[1].bios("v1:R2m+4k v1:R3m+4k");
    assert_eq!(shards.deliver(), "0>1 revoke, 1>0 want2", "the lease request is not granted");
    assert_eq!(shards.at[0].notices(), "");
    shards.at[0].all_done([0, 1]);
    shards.deliver();
    assert_eq!(shards.at[0].notices(), "set1:ok");
    let mut done = 2;
    while done < 4 {
        shards.deliver();
        assert!(done < shards.at[0].commands(), "the lease request was forgotten");
        shards.at[0].done(done);
        done += 1;
    }
    shards.deliver();
    assert_eq!(shards.at[1].replies(), "1:ok 2:ok 3:ok 4:ok");
    shards.pass(20 * MS);
    shards.deliver();
    shards.at.iter().for_each(|bench| bench.assert_quiet());
    assert_eq!(shards.at[0].tags_free(), 1);
}

#[test]
fn other_shards_learn_limits_before_next_grant() {
    let mut shards = Shards::new(2, |q| q.max_sectors_kb = 64);
    shards.at[0].control(set(Tunable::MaxSectorsKb, 8, 1));
    shards.deliver();
    shards.at[1].bios("v1:R0+32k");
    let said = shards.deliver();
    assert!(said.starts_with("1>0 want4, 0>1 grant4, 1>0 bio4"), "{said}");
    assert_eq!(shards.at[0].sent(), "v1:R0+8k v1:R8k+8k v1:R16k+8k v1:R24k+8k");
}

#[test]
fn lease_request_above_reduced_depth_is_served() {
    let mut shards = Shards::new(2, |q| (q.nr_requests, q.max_sectors_kb) = (8, 4));
    shards.at[0].bios("R8m+4k");
    shards.at[0].control(set(Tunable::NrRequests, 1, 1));
    shards.at[1].bios("v1:R0+16k");
    assert_eq!(shards.deliver(), "1>0 want4");
    shards.at[0].done(0);
    let said = shards.deliver();
    assert!(said.starts_with("0>1 limits, 0>1 grant1, 1>0 bio1"), "{said}");
    for n in 1..5 {
        shards.at[0].done(n);
        shards.deliver();
    }
    assert_eq!(shards.at[1].replies(), "1:ok");
}

#[test]
fn timed_out_remote_command_does_not_block_drain() {
    let mut shards = Shards::new(2, |q| q.max_sectors_kb = 8);
    // One whole, one in pieces: all tags that they came with stay out.
    shards.at[1].bios("v1:W0+4k v1:W1m+32k");
    shards.deliver();
    shards.pass(SEC);
    shards.at[0].bios("R9m+4k");
    shards.at[0].done(5);
    shards.at[0].control(set(Tunable::Scheduler, Scheduler::MqDeadline as u64, 1));
    shards.at[0].bios("R1m+4k");
    shards.pass(29 * SEC);
    shards.deliver();
    assert!(shards.at[0].notices().ends_with("set1:ok"));
    assert_eq!(shards.at[1].replies(), "1:timeout/early 2:timeout/early");
    assert!(shards.at[0].sent().ends_with("R1m+4k"), "the held bio enters");
    // The tags that are out do not fit another set.
    shards.at[0].done(6);
    shards.at[0].control(set(Tunable::NrRequests, 8, 2));
    shards.deliver();
    assert_eq!(shards.at[0].notices(), "set2:busy");
    // One comes back: only tags of timed-out bios are excepted.
    shards.at[0].done(0);
    shards.deliver();
    shards.at[0].all_done(1..5);
    shards.deliver();
    shards.at[1].bios("v1:R2m+4k");
    shards.deliver();
    shards.at[0].control(set(Tunable::NrRequests, 8, 3));
    shards.deliver();
    assert_eq!(shards.at[0].notices(), "", "a lease in use delays the change");
    shards.at[0].done(7);
    shards.deliver();
    assert_eq!((shards.at[0].notices().as_str(), shards.at[0].tags_free()), ("set3:ok", 8));
    shards.at.iter().for_each(|bench| bench.assert_quiet());
}

#[test]
fn drain_that_cannot_end_is_busy() {
    // The device is full, or all tags are out, and nothing comes back.
    for (nr_requests, queue_depth) in [(8, 1), (1, 8)] {
        let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (nr_requests, queue_depth));
        bench.bios("R0+4k");
        bench.pass(SEC);
        bench.bios("R1m+4k");
        bench.control(set(Tunable::NoMerges, 2, 1));
        bench.bios("R2m+4k");
        bench.pass(29 * SEC - 1);
        assert_eq!((bench.notices(), bench.replies()), (String::new(), String::new()));
        bench.pass(1);
        assert_eq!(bench.notices(), "timedout:R0+4k stuck set1:busy");
        assert_eq!(bench.replies(), "1:timeout/early 3:timeout", "the held one is a new one");
        bench.finish_from(0);
        assert_eq!((bench.sent().as_str(), bench.notices().as_str()), ("R0+4k R1m+4k", "live"));
        bench.control(set(Tunable::NoMerges, 2, 2));
        assert_eq!(bench.notices(), "set2:ok");
        bench.assert_quiet();
    }
}

#[test]
fn shorter_timeout_applies_after_change() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    bench.done(0);
    bench.control(set(Tunable::IoTimeout, 100, 1));
    bench.bios("R0+4k");
    bench.pass(100 * MS);
    assert_eq!(bench.notices(), "set1:ok timedout:R0+4k stuck");
    bench.done(1);
    bench.assert_quiet();
}

#[test]
fn changed_unit_of_shares_reaches_other_shards() {
    let mut shards = Shards::new(2, |_| ());
    let cost = |shards: &mut Shards| {
        shards.at[1].bios("v1:R1m+64k");
        let mut costs = shards.at[1].outbox.iter().filter_map(|(_, message)| match message {
            Message::TagWant { cost, .. } => Some(*cost),
            _ => None,
        });
        let cost = costs.next_back();
        while !shards.deliver().is_empty() {}
        cost
    };
    let time = cost(&mut shards).expect("the first bio asks for a tag");
    let sent = shards.at[0].commands();
    (0..sent).for_each(|command| shards.at[0].done(command));
    shards.deliver();
    shards.pass(20 * MS);
    shards.deliver();
    shards.at[0].control(set(Tunable::Share, ShareUnit::Bytes as u64, 1));
    shards.deliver();
    assert_ne!(time, 64 << 10);
    assert_eq!(cost(&mut shards), Some(64 << 10), "bytes are counted");
}
