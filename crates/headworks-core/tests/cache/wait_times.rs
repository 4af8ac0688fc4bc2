//! The wait times in the replies to clients: each wait is counted under one kind, and none twice.

use crate::harness::{BLOCK, Harness, MIB};
use headworks_core::time::MS;
use headworks_core::{BioFlags, BioId, Op, WaitKind, WriteMode};

/// The non-zero wait times of a completed bio in milliseconds, rounded up by at most a bucket.
fn waits(harness: &Harness, id: BioId) -> Vec<(&'static str, f64)> {
    let answer = harness.answers.iter().find(|answer| answer.id == id).expect("it was answered");
    let waits = WaitKind::ALL.into_iter().filter(|wait| answer.wait_times.bucket(*wait) > 0);
    waits.map(|wait| (wait.name(), answer.wait_times.at_most(wait) as f64 / MS as f64)).collect()
}

#[track_caller]
fn is(found: &[(&str, f64)], expected: &[(&str, f64)]) {
    let about = |(found, expected): (&(&str, f64), &(&str, f64))| {
        found.0 == expected.0 && found.1 >= expected.1 && found.1 <= expected.1 * 1.26
    };
    let same = found.len() == expected.len() && found.iter().zip(expected).all(about);
    assert!(same, "{found:?}, not {expected:?}");
}

#[test]
fn miss_waits_for_device_and_hit_for_nothing() {
    let mut harness = Harness::new(256, |_| {});
    let miss = harness.send(1, Op::Read, 0, BLOCK);
    harness.wait(5 * MS);
    harness.complete(Ok(()));
    is(&waits(&harness, miss), &[("device", 5.0)]);
    let hit = harness.send(1, Op::Read, 0, BLOCK);
    is(&waits(&harness, hit), &[]);
}

#[test]
fn read_joining_a_fill_is_charged_the_remaining_time() {
    let mut harness = Harness::new(256, |_| {});
    harness.send(1, Op::Read, 0, BLOCK);
    harness.wait(4 * MS);
    let late = harness.send(2, Op::Read, 0, BLOCK);
    harness.wait(MS);
    harness.complete(Ok(()));
    is(&waits(&harness, late), &[("device", 1.0)]);
}

#[test]
fn fill_waiting_for_a_tag_reports_tag_time() {
    let mut harness = Harness::new(256, |config| config.devices[0].queue.nr_requests = 1);
    harness.send(1, Op::Read, 0, BLOCK);
    let second = harness.send(2, Op::Read, MIB, BLOCK);
    harness.wait(3 * MS);
    harness.complete(Ok(()));
    harness.wait(7 * MS);
    harness.complete(Ok(()));
    is(&waits(&harness, second), &[("tag", 3.0), ("device", 7.0)]);
}

#[test]
fn writer_waiting_for_credit_reports_dirty_time() {
    // The smallest dirty limit, and a device that does not complete.
    let mut harness = Harness::new(1024, |config| config.dirty.dirty_bytes = MIB);
    let mut held = None;
    for at in 0..1024 {
        let id = harness.send(1, Op::Write, at * BLOCK, BLOCK);
        if harness.answer(id).is_none() {
            held = Some(id);
            break;
        }
    }
    let held = held.expect("a bio waits at the limit");
    let before = harness.now;
    while harness.answer(held).is_none() {
        harness.wait(50 * MS);
        harness.settle(Ok(()));
        assert!(harness.now - before < 20_000 * MS, "it waits for ever");
    }
    let found = waits(&harness, held);
    assert_eq!(found.len(), 1, "{found:?}");
    let waited = (harness.answers.iter().find(|a| a.id == held).unwrap().at - before) as f64;
    is(&found, &[("dirty", waited / MS as f64)]);
}

#[test]
fn direct_and_fua_bios_report_device_time() {
    let mut harness = Harness::new(256, |_| {});
    let direct = harness.send_flags(1, Op::Read, 0, BLOCK, BioFlags::DIRECT);
    harness.wait(2 * MS);
    harness.complete(Ok(()));
    is(&waits(&harness, direct), &[("device", 2.0)]);
    let mut harness = Harness::new(256, |config| {
        config.volumes[0].options.mode = WriteMode::Writethrough;
        (config.devices[0].queue.write_cache, config.devices[0].queue.fua) = (true, true);
    });
    let through = harness.send(1, Op::Write, 0, BLOCK);
    harness.wait(9 * MS);
    harness.settle(Ok(()));
    assert_eq!(waits(&harness, through)[0].0, "device");
}

#[test]
fn read_of_locked_range_reports_cache_time() {
    let mut harness = Harness::new(256, |_| {});
    harness.send(1, Op::Discard, 0, 16 * BLOCK);
    let read = harness.send(2, Op::Read, 0, BLOCK);
    harness.wait(6 * MS);
    harness.complete(Ok(()));
    harness.wait(2 * MS);
    harness.complete(Ok(()));
    is(&waits(&harness, read), &[("cache", 6.0), ("device", 2.0)]);
}
