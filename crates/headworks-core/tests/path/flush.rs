//! Durability: which device flush may answer for whom, and what a failed one means.

use headworks_core::time::MS;
use headworks_core::{Control, VolumeId};

use crate::bench::{BUSY, Bench, EIO};

const VOLUME: VolumeId = VolumeId(0);

fn unflushed(bench: &Bench) -> (u64, bool) {
    bench.shard.unflushed(VOLUME).expect("it is this shard's")
}

#[test]
fn flushes_share_one_under_way_if_no_write_finished_since() {
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
fn a_flush_after_a_write_finished_waits_for_the_next_one() {
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
fn a_finished_read_uncovers_nothing_but_discard_and_zeroing_do() {
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
fn volumes_flush_for_themselves() {
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
fn flushes_need_no_tag_and_no_room_in_the_device() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (1, 1));
    bench.bios("W0+4k W8k+4k F");
    assert_eq!(bench.sent(), "F W0+4k");
    bench.done(1);
    assert_eq!(bench.sent(), "W8k+4k");
    bench.all_done([0, 2]);
    bench.assert_quiet();
}

#[test]
fn without_a_write_cache_everything_is_durable_at_once() {
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
fn fua_without_the_devices_help_is_data_and_then_a_flush() {
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
fn a_device_with_fua_does_it_for_writes_only() {
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
fn a_fua_write_that_failed_is_not_flushed() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k!fua");
    bench.failed(0, EIO);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+4k", "1:medium"));
    bench.assert_quiet();
}

#[test]
fn a_fua_write_does_not_join_a_flush_that_was_sent_before_its_data_finished() {
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
fn a_split_fua_write_is_flushed_once_after_its_last_piece() {
    let mut bench = Bench::new(|q| (q.max_sectors_kb, q.nr_requests) = (64, 2));
    bench.bios("W0+128k!fua");
    bench.finish_from(0);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+64k W64k+64k F", "1:ok"));
    bench.assert_quiet();
}

#[test]
fn a_failed_flush_makes_the_volume_suspect_until_somebody_acknowledges() {
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
    assert_eq!(bench.replies(), "5:medium", "its data were on their way");
    bench.bios("F W0+4k!fua D0+4k!fua W0+4k R0+4k");
    assert_eq!(bench.replies(), "6:medium 7:medium 8:medium");
    assert_eq!(bench.sent(), "W0+4k R0+4k", "what promises nothing goes on");
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
fn a_refused_flush_goes_again_and_covers_what_finished_meanwhile() {
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
fn a_flush_refused_while_others_are_in_flight_goes_with_the_next_answer() {
    let mut bench = Bench::new(|q| q.queue_depth = 1);
    bench.each("W0+4k F W8k+4k");
    bench.failed(1, BUSY);
    bench.done(0);
    assert_eq!(bench.sent(), "W0+4k F F", "it goes first and takes the one place");
    bench.done(2);
    assert_eq!(bench.sent(), "W8k+4k");
    bench.done(3);
    assert_eq!(bench.replies(), "1:ok 2:ok 3:ok");
    bench.assert_quiet();
}
