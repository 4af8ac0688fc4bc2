//! Time-outs: early answers, buffers that stay out, and writes over the range of a timed-out write.

use headworks_core::time::SEC;
use headworks_core::{Control, VolumeId};

use crate::bench::{BUSY, Bench, EIO};

const LIMIT: u64 = 30 * SEC;

#[test]
fn timed_out_bio_is_answered_early_and_released_later() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k R4k+4k");
    bench.pass(LIMIT - 1);
    assert_eq!(bench.replies(), "");
    bench.pass(1);
    assert_eq!(bench.replies(), "1:timeout/early 2:timeout/early");
    assert_eq!(bench.notices(), "timedout:R0+8k stuck");
    assert_eq!(bench.tags_free(), 255, "the tag stays out with the buffer");
    bench.pass(100 * LIMIT);
    assert_eq!((bench.replies(), bench.notices()), (String::new(), String::new()));
    bench.done(0);
    assert_eq!((bench.replies(), bench.notices()), ("1:released 2:released".into(), "live".into()));
    bench.assert_quiet();
}

#[test]
fn any_late_completion_only_releases_buffer() {
    for (status, moved) in [(Ok(()), 4096), (EIO, 0), (BUSY, 0), (Ok(()), 0), (Ok(()), 9999)] {
        let mut bench = Bench::new(|_| ());
        bench.bios("W0+4k W4k+4k");
        bench.pass(LIMIT);
        bench.replies();
        let late = bench.answer(0, status, moved);
        bench.turn(&[late]);
        assert_eq!(bench.replies(), "1:released 2:released", "{status:?} {moved}");
        assert_eq!(bench.sent(), "W0+8k");
        bench.assert_quiet();
    }
}

#[test]
fn timer_follows_oldest_command() {
    let mut bench = Bench::new(|_| ());
    let start = bench.now;
    bench.bios("R0+4k");
    assert_eq!(bench.timer, Some(start + LIMIT));
    bench.pass(SEC);
    bench.bios("R1m+4k");
    bench.pass(SEC);
    bench.bios("R2m+4k");
    assert_eq!(bench.timer, Some(start + LIMIT));
    bench.done(0);
    bench.pass(LIMIT - 2 * SEC);
    assert_eq!(bench.replies(), "1:ok");
    assert_eq!(bench.timer, Some(start + LIMIT + SEC));
    bench.pass(SEC);
    assert_eq!(bench.replies(), "2:timeout/early");
    assert_eq!(bench.timer, Some(start + LIMIT + 2 * SEC));
    bench.pass(SEC);
    assert_eq!(bench.replies(), "3:timeout/early");
    assert_eq!(bench.timer, None);
    bench.done(1);
    bench.replies();
    bench.bios("R3m+4k");
    assert_eq!(bench.timer, Some(bench.now + LIMIT));
    bench.pass(LIMIT);
    assert_eq!(bench.replies(), "4:timeout/early");
}

#[test]
fn early_timer_is_set_again() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    let at = bench.timer.take();
    bench.turn(&[headworks_core::Input::Timer]);
    assert_eq!((bench.timer, bench.replies()), (at, String::new()));
}

#[test]
fn each_command_has_its_own_timeout() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+8k");
    bench.pass(20 * SEC);
    bench.moved(0, 4096);
    bench.pass(20 * SEC);
    assert_eq!(bench.replies(), "", "the second part was sent 20 s ago");
    bench.pass(10 * SEC);
    assert_eq!(bench.replies(), "1:timeout/early");
    bench.done(1);
    bench.assert_quiet();
}

#[test]
fn write_over_timed_out_write_fails_until_completion() {
    let mut bench = Bench::with(|config| config.volumes.push(config.volumes[0]));
    bench.bios("W64k+8k R128k+4k");
    bench.pass(LIMIT - 1);
    bench.done(1);
    bench.pass(1);
    bench.sent();
    bench.replies();
    bench.each("W68k+4k D0+1m Z60k+8k W60k+4k W72k+4k R64k+4k W128k+4k v1:W64k+4k");
    assert_eq!(bench.replies(), "3:timeout 4:timeout 5:timeout");
    assert_eq!(bench.sent(), "W60k+4k W72k+4k R64k+4k W128k+4k v1:W64k+4k");
    bench.all_done(2..7);
    bench.done(0);
    bench.replies();
    bench.bios("W68k+4k");
    assert_eq!(bench.sent(), "W68k+4k", "the timed-out write was completed");
    bench.done(7);
    bench.assert_quiet();
}

#[test]
fn bios_merged_into_refused_write_fail_with_it() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W64k+4k");
    bench.pass(LIMIT);
    bench.replies();
    bench.bios("W60k+4k W64k+4k");
    assert_eq!(bench.replies(), "2:timeout 3:timeout");
    bench.done(0);
    bench.assert_quiet();
}

#[test]
fn timed_out_split_bio_guards_all_its_pieces() {
    let mut bench = Bench::new(|q| {
        (q.max_sectors_kb, q.nr_requests, q.queue_depth) = (64, 8, 2);
    });
    bench.bios("W0+640k");
    bench.pass(20 * SEC);
    bench.done(0);
    assert_eq!(bench.sent(), "W0+64k W64k+64k W128k+64k");
    bench.pass(10 * SEC);
    assert_eq!(
        (bench.replies().as_str(), bench.notices().as_str()),
        ("1:timeout/early", "timedout:W64k+64k")
    );
    bench.bios("W64k+4k W128k+4k");
    assert_eq!(bench.replies(), "2:timeout 3:timeout", "both pieces may still write");
    bench.done(1);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("", ""));
    bench.bios("W132k+4k W64k+4k");
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("4:timeout", "W64k+4k"));
    bench.done(2);
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("1:released", ""));
    bench.bios("W128k+4k");
    bench.all_done([3, 4]);
    assert_eq!(bench.replies(), "5:ok 6:ok");
    bench.pass(LIMIT);
    assert_eq!((bench.replies(), bench.notices()), (String::new(), String::new()));
    bench.assert_quiet();
}

#[test]
fn timed_out_retry_answers_remaining_bios() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k W4k+4k W8k+4k");
    bench.failed(0, EIO);
    bench.done(1);
    assert_eq!(bench.replies(), "1:ok");
    bench.pass(LIMIT);
    assert_eq!(bench.replies(), "2:timeout/early 3:timeout/early");
    bench.sent();
    bench.done(2);
    assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("2:released 3:released", ""));
    bench.assert_quiet();
}

#[test]
fn timed_out_fua_write_sends_no_flush() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k!fua");
    bench.pass(LIMIT);
    bench.done(0);
    assert_eq!(bench.sent(), "W0+4k");
    assert_eq!(bench.replies(), "1:timeout/early 1:released");
    bench.assert_quiet();
}

#[test]
fn timed_out_flush_fails_later_flushes_until_completion() {
    let mut bench = Bench::new(|_| ());
    bench.each("W0+4k F");
    bench.done(0);
    bench.each("F W8k+4k!fua");
    bench.done(2);
    bench.replies();
    bench.pass(LIMIT - 1);
    bench.bios("R0+4k");
    bench.done(3);
    assert_eq!(bench.replies(), "5:ok");
    bench.pass(1);
    assert_eq!(bench.replies(), "2:timeout 3:timeout 4:timeout");
    assert_eq!(bench.notices(), "timedout:F0+0");
    bench.replies();
    bench.sent();
    bench.bios("F");
    bench.bios("W0+4k!fua");
    bench.done(4);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+4k", "6:timeout 7:timeout"));
    bench.done(1);
    assert_eq!((bench.replies(), bench.notices()), (String::new(), String::new()));
    bench.bios("F");
    bench.done(5);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("F", "8:ok"));
    assert_eq!(bench.shard.unflushed(VolumeId(0)), Some((0, false)));
    bench.assert_quiet();
}

#[test]
fn late_flush_failure_makes_volume_suspect() {
    for (late, suspect, answer) in [(EIO, "live suspect:medium", "2:medium"), (BUSY, "live", "")] {
        let mut bench = Bench::new(|_| ());
        bench.bios("F");
        bench.pass(LIMIT);
        assert_eq!(
            (bench.replies().as_str(), bench.notices().as_str()),
            ("1:timeout", "timedout:F0+0 stuck")
        );
        bench.failed(0, late);
        bench.bios("F");
        assert_eq!((bench.notices().as_str(), bench.replies().as_str()), (suspect, answer));
        bench.control(Control::Acknowledge { volume: VolumeId(0) });
        bench.finish_from(1);
        bench.assert_quiet();
    }
}

#[test]
fn late_completion_lets_waiting_requests_continue() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.queue_depth) = (1, 1));
    bench.bios("W0+4k");
    bench.pass(SEC);
    bench.bios("W8k+4k");
    bench.pass(LIMIT - SEC);
    assert_eq!(bench.sent(), "W0+4k");
    bench.done(0);
    assert_eq!(
        (bench.sent().as_str(), bench.replies().as_str()),
        ("W8k+4k", "1:timeout/early 1:released")
    );
    bench.done(1);
    bench.assert_quiet();
}
