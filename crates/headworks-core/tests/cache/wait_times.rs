//! What a client's bio waited for, as its answer says: each wait under its own name, and nothing twice.

use crate::desk::{BLOCK, Desk, MIB};
use headworks_core::time::MS;
use headworks_core::{BioFlags, BioId, Op, WaitKind, WriteMode};

/// The waits of an answered bio that were not nothing, in milliseconds, rounded up by a bucket at most.
fn waits(desk: &Desk, id: BioId) -> Vec<(&'static str, f64)> {
    let answer = desk.answers.iter().find(|answer| answer.id == id).expect("it was answered");
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
fn a_miss_waits_for_the_device_and_a_hit_for_nothing() {
    let mut desk = Desk::new(256, |_| {});
    let miss = desk.send(1, Op::Read, 0, BLOCK);
    desk.wait(5 * MS);
    desk.complete(Ok(()));
    is(&waits(&desk, miss), &[("device", 5.0)]);
    let hit = desk.send(1, Op::Read, 0, BLOCK);
    is(&waits(&desk, hit), &[]);
}

#[test]
fn who_joins_a_fill_waits_for_the_rest_of_it() {
    let mut desk = Desk::new(256, |_| {});
    desk.send(1, Op::Read, 0, BLOCK);
    desk.wait(4 * MS);
    let late = desk.send(2, Op::Read, 0, BLOCK);
    desk.wait(MS);
    desk.complete(Ok(()));
    is(&waits(&desk, late), &[("device", 1.0)]);
}

#[test]
fn a_fill_that_waits_for_a_tag_waited_for_a_tag() {
    let mut desk = Desk::new(256, |config| config.devices[0].queue.nr_requests = 1);
    desk.send(1, Op::Read, 0, BLOCK);
    let second = desk.send(2, Op::Read, MIB, BLOCK);
    desk.wait(3 * MS);
    desk.complete(Ok(()));
    desk.wait(7 * MS);
    desk.complete(Ok(()));
    is(&waits(&desk, second), &[("tag", 3.0), ("device", 7.0)]);
}

#[test]
fn a_writer_that_waits_for_credit_is_held_by_what_is_dirty() {
    // As little as may be dirty, and a device that does not answer.
    let mut desk = Desk::new(1024, |config| config.dirty.dirty_bytes = MIB);
    let mut held = None;
    for at in 0..1024 {
        let id = desk.send(1, Op::Write, at * BLOCK, BLOCK);
        if desk.answer(id).is_none() {
            held = Some(id);
            break;
        }
    }
    let held = held.expect("the limit holds somebody");
    let before = desk.now;
    while desk.answer(held).is_none() {
        desk.wait(50 * MS);
        desk.settle(Ok(()));
        assert!(desk.now - before < 20_000 * MS, "it waits for ever");
    }
    let found = waits(&desk, held);
    assert_eq!(found.len(), 1, "{found:?}");
    let waited = (desk.answers.iter().find(|a| a.id == held).unwrap().at - before) as f64;
    is(&found, &[("dirty", waited / MS as f64)]);
}

#[test]
fn what_goes_past_the_cache_or_through_it_waited_for_the_device() {
    let mut desk = Desk::new(256, |_| {});
    let direct = desk.send_flags(1, Op::Read, 0, BLOCK, BioFlags::DIRECT);
    desk.wait(2 * MS);
    desk.complete(Ok(()));
    is(&waits(&desk, direct), &[("device", 2.0)]);
    let mut desk = Desk::new(256, |config| {
        config.volumes[0].options.mode = WriteMode::Writethrough;
        (config.devices[0].queue.write_cache, config.devices[0].queue.fua) = (true, true);
    });
    let through = desk.send(1, Op::Write, 0, BLOCK);
    desk.wait(9 * MS);
    desk.settle(Ok(()));
    assert_eq!(waits(&desk, through)[0].0, "device");
}

#[test]
fn a_read_behind_a_locked_range_waited_in_the_cache() {
    let mut desk = Desk::new(256, |_| {});
    desk.send(1, Op::Discard, 0, 16 * BLOCK);
    let read = desk.send(2, Op::Read, 0, BLOCK);
    desk.wait(6 * MS);
    desk.complete(Ok(()));
    desk.wait(2 * MS);
    desk.complete(Ok(()));
    is(&waits(&desk, read), &[("cache", 6.0), ("device", 2.0)]);
}
