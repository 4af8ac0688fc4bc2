//! Durability: the flushes that a device flush may complete, FUA, and failed flushes.

use headworks_core::time::MS;
use headworks_core::{Control, VolumeId};

use crate::bench::{BUSY, Bench, EIO, NOT_FLUSHED};

const VOLUME: VolumeId = VolumeId(0);

fn unflushed(bench: &Bench) -> (u64, bool) {
    bench.shard.unflushed(VOLUME).expect("it is this shard's")
}

#[test]
fn flush_joins_running_flush_without_new_writes() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F F");
    bench.bios("F");
    assert_eq!(bench.sent(), "W0+4k F");
    bench.done(1);
    assert_eq!(bench.replies(), "2:ok 3:ok 4:ok");
    bench.done(0);
    assert_eq!(unflushed(&bench), (1, false), "it was not covered");
    bench.assert_quiet();
}

#[test]
fn flush_after_finished_write_waits_for_next_flush() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.done(0);
    bench.each("F F");
    assert_eq!(bench.sent(), "W0+4k F", "one at a time");
    bench.done(1);
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("1:ok 2:ok", "F"));
    assert_eq!(unflushed(&bench), (1, false));
    bench.done(2);
    assert_eq!(bench.replies(), "3:ok 4:ok");
    assert_eq!(unflushed(&bench), (0, false));
    bench.assert_quiet();
}

#[test]
fn discard_and_zeroing_count_as_writes_for_flush() {
    for (bio, shares) in [("R0+4k", true), ("D0+4k", false), ("Z0+4k", false), ("W0+4k", false)] {
        let mut bench = Bench::new(|_| ());
        bench.each(bio);
        bench.bios("F");
        bench.done(0);
        bench.bios("F");
        bench.done(1);
        let replies = bench.replies();
        assert_eq!(replies.ends_with("2:ok 3:ok"), shares, "{bio}: {replies}");
    }
}

#[test]
fn volumes_flush_independently() {
    let mut bench = Bench::with(|config| config.volumes.push(config.volumes[0]));
    bench.bios("F v1:F");
    assert_eq!(bench.sent(), "F v1:F");
    bench.failed(1, EIO);
    bench.done(0);
    assert_eq!(bench.replies(), "2:medium 1:ok");
    bench.bios("v1:F F");
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("3:medium", "F"));
}

#[test]
fn flush_needs_no_tag_and_no_queue_depth() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (1, 1));
    bench.bios("W0+4k W8k+4k F");
    assert_eq!(bench.sent(), "F W0+4k");
    bench.done(1);
    assert_eq!(bench.sent(), "W8k+4k");
    bench.all_done([0, 2]);
    bench.assert_quiet();
}

#[test]
fn flush_is_immediate_without_write_cache() {
    let mut bench = Bench::new(|q| q.write_cache = false);
    bench.bios("F W0+4k!fua");
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+4k", "1:ok"));
    bench.done(0);
    bench.bios("F");
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("", "2:ok 3:ok"));
    assert_eq!(unflushed(&bench), (0, false));
    bench.assert_quiet();
}

#[test]
fn fua_without_device_support_writes_then_flushes() {
    for (bio, command) in [
        ("W0+4k!fua", "W0+4k"),
        ("D0+4k!fua", "D0+4k"),
        ("Z0+4k!fua", "Z0+4k"),
        ("W0+4k!fua!sync", "W0+4k!sync"),
    ] {
        let mut bench = Bench::new(|_| ());
        bench.bios(bio);
        bench.done(0);
        assert_eq!((bench.sent(), bench.replies()), (format!("{command} F"), String::new()));
        bench.done(1);
        assert_eq!(bench.replies(), "1:ok");
        bench.assert_quiet();
    }
}

#[test]
fn device_fua_applies_to_writes_only() {
    for (bio, commands) in
        [("W0+4k!fua", "W0+4k!fua"), ("D0+4k!fua", "D0+4k F"), ("Z0+4k!fua", "Z0+4k F")]
    {
        let mut bench = Bench::new(|q| q.fua = true);
        bench.bios(bio);
        bench.finish_from(0);
        assert_eq!((bench.sent().as_str(), bench.replies().as_str()), (commands, "1:ok"));
        bench.assert_quiet();
    }
}

#[test]
fn failed_fua_write_is_not_flushed() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k!fua");
    bench.failed(0, EIO);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+4k", "1:medium"));
    bench.assert_quiet();
}

#[test]
fn fua_write_never_joins_earlier_flush() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k!fua F");
    bench.done(0);
    bench.done(1);
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("2:ok", "W0+4k F F"));
    bench.done(2);
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
}

#[test]
fn split_fua_write_flushes_once_after_last_piece() {
    let mut bench = Bench::new(|q| (q.max_sectors_kb, q.nr_requests) = (64, 2));
    bench.bios("W0+128k!fua");
    bench.finish_from(0);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+64k W64k+64k F", "1:ok"));
    bench.assert_quiet();
}

#[test]
fn failed_flush_fails_later_flushes_until_acknowledged() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.done(0);
    bench.each("F W8k+4k!fua W16k+4k!fua");
    bench.done(2);
    assert_eq!(
        (bench.sent().as_str(), bench.replies().as_str()),
        ("W0+4k F W8k+4k W16k+4k", "1:ok")
    );
    bench.failed(1, EIO);
    assert_eq!(bench.replies(), "2:medium 3:medium 4:medium", "running and waiting ones");
    assert_eq!((bench.notices().as_str(), bench.sent().as_str()), ("suspect:medium", ""));
    assert_eq!(unflushed(&bench), (2, true));
    bench.done(3);
    assert_eq!(bench.replies(), "5:medium", "its data were in flight");
    bench.bios("F W0+4k!fua D0+4k!fua W0+4k R0+4k");
    assert_eq!(bench.replies(), "6:medium 7:medium 8:medium");
    assert_eq!(bench.sent(), "W0+4k R0+4k", "plain reads and writes continue");
    bench.all_done([4, 5]);
    bench.control(Control::Acknowledge { volume: VOLUME });
    bench.replies();
    bench.bios("F");
    bench.done(6);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("F", "11:ok"));
    assert_eq!(unflushed(&bench), (0, false));
    bench.assert_quiet();
}

#[test]
fn suspect_volume_fails_flushes_until_acknowledged() {
    let mut bench = Bench::new(|_| ());
    bench.control(Control::Suspect { volume: VOLUME });
    bench.bios("F W0+4k!fua W8k+4k");
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W8k+4k", "1:medium 2:medium"));
    bench.done(0);
    assert_eq!((bench.replies().as_str(), unflushed(&bench)), ("3:ok", (1, true)));
    bench.control(Control::Acknowledge { volume: VOLUME });
    bench.bios("F");
    bench.done(1);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("F", "4:ok"));
    bench.assert_quiet();
}

#[test]
fn flush_without_room_is_told_and_the_next_one_succeeds() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.done(0);
    bench.failed(1, NOT_FLUSHED);
    assert_eq!((bench.notices().as_str(), bench.replies().as_str()), ("", "1:ok 2:nospace"));
    assert_eq!(unflushed(&bench), (1, false), "nothing is lost, and nothing is flushed");
    bench.each("F");
    bench.done(2);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+4k F F", "3:ok"));
    assert_eq!(unflushed(&bench), (0, false));
    bench.each("F");
    bench.failed(3, Err(headworks_core::IoError::NoSpace));
    assert_eq!(bench.notices(), "suspect:nospace", "a sync that failed for want of room is a loss");
    bench.replies();
    bench.sent();
    bench.assert_quiet();
}

#[test]
fn resent_flush_covers_writes_finished_meanwhile() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.done(0);
    bench.each("F");
    bench.failed(1, BUSY);
    assert_eq!((bench.sent().as_str(), bench.notices().as_str()), ("W0+4k F", ""));
    bench.pass(3 * MS);
    bench.each("F");
    assert_eq!(bench.sent(), "F");
    bench.done(2);
    assert_eq!(bench.replies(), "1:ok 2:ok 3:ok 4:ok");
    assert_eq!(unflushed(&bench), (0, false));
    bench.assert_quiet();
}

#[test]
fn refused_flush_is_resent_at_next_completion() {
    let mut bench = Bench::new(|q| q.queue_depth = 1);
    bench.each("W0+4k F W8k+4k");
    bench.failed(1, BUSY);
    bench.done(0);
    assert_eq!(bench.sent(), "W0+4k F F", "it is sent first and fills the queue depth");
    bench.done(2);
    assert_eq!(bench.sent(), "W8k+4k");
    bench.done(3);
    assert_eq!(bench.replies(), "1:ok 2:ok 3:ok");
    bench.assert_quiet();
}

#[test]
fn flush_in_flight_at_a_loss_fails() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.done(0);
    bench.control(Control::Suspect { volume: VOLUME });
    bench.each("F");
    bench.done(1);
    assert_eq!(
        (bench.replies().as_str(), bench.notices().as_str()),
        ("1:ok 3:medium 2:medium", "")
    );
    assert_eq!(unflushed(&bench), (1, true), "what was lost is not covered");
    bench.control(Control::Acknowledge { volume: VOLUME });
    bench.bios("F");
    bench.done(2);
    assert_eq!(bench.replies(), "4:ok");
    bench.assert_quiet();
}

#[test]
fn volume_of_another_server_answers_nothing() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.done(0);
    bench.control(Control::Void { volume: VOLUME });
    bench.bios("R0+4k W0+4k F D0+4k");
    assert_eq!(bench.sent(), "W0+4k F", "nothing more reaches the device");
    let replies = bench.replies();
    let shut: Vec<_> = replies.split(' ').filter(|reply| reply.ends_with(":shutdown")).collect();
    assert_eq!((replies.split(' ').count(), shut.len()), (5, 4), "{replies}");
    bench.done(1);
    assert_eq!(bench.replies(), "2:medium");
    bench.control(Control::Acknowledge { volume: VOLUME });
    bench.bios("R0+4k");
    assert!(bench.replies().ends_with(":shutdown"), "until it is removed");
    bench.assert_quiet();
}
