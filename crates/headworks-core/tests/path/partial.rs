//! Partial completions: short transfers, errors of merged requests, and devices that report impossible results.

use headworks_core::IoError;

use crate::bench::{Bench, EIO};

#[test]
fn short_transfer_continues_where_it_ended() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W64k+4k W68k+8k W76k+4k");
    bench.moved(0, 512);
    bench.moved(1, 3584);
    bench.moved(2, 8192 + 1024);
    assert_eq!(bench.sent(), "W64k+16k W66048+15872 W68k+12k W77k+3k");
    assert_eq!(bench.segments(0), "1:0+4k 2:0+8k 3:0+4k");
    assert_eq!(bench.segments(1), "1:512+3584 2:0+8k 3:0+4k");
    assert_eq!(bench.segments(2), "2:0+8k 3:0+4k");
    assert_eq!(bench.segments(3), "3:1k+3k");
    assert_eq!(bench.replies(), "");
    bench.done(3);
    assert_eq!(bench.replies(), "1:ok 2:ok 3:ok");
    bench.assert_quiet();
}

#[test]
fn continued_transfer_keeps_max_segment_size() {
    let mut bench = Bench::new(|q| q.max_segment_size = 4096);
    bench.bios("R0+12k");
    bench.moved(0, 2048);
    assert_eq!(bench.segments(1), "1:2k+4k 1:6k+4k 1:10k+2k");
}

#[test]
fn empty_read_inside_volume_fails_with_one_notice() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    bench.moved(0, 0);
    assert_eq!((bench.replies().as_str(), bench.notices().as_str()), ("1:medium", "shortread:0"));
    bench.bios("R8k+8k");
    bench.moved(1, 4096);
    bench.moved(2, 0);
    assert_eq!((bench.replies().as_str(), bench.notices().as_str()), ("2:medium", "shortread:12k"));
    bench.assert_quiet();
}

#[test]
fn empty_write_fails() {
    for bio in ["W0+4k", "D0+4k", "Z0+4k"] {
        let mut bench = Bench::new(|_| ());
        bench.bios(bio);
        bench.moved(0, 0);
        assert_eq!((bench.replies().as_str(), bench.notices().as_str()), ("1:medium", ""));
        bench.assert_quiet();
    }
}

#[test]
fn excess_transfer_fails() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k R1m+8k");
    bench.moved(0, 4097);
    bench.moved(1, 4096);
    bench.moved(2, 8192);
    assert_eq!(bench.replies(), "1:medium 2:medium");
    bench.assert_quiet();
}

#[test]
fn hole_is_reported_whole_or_read_as_data() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+8k!hole R1m+8k!hole R2m+8k!hole");
    bench.sent();
    bench.hole(0, 8192);
    assert_eq!(bench.replies(), "1:ok/hole");
    bench.moved(1, 4096);
    assert_eq!(bench.sent(), "R1028k+4k", "data came first: the rest must be data");
    bench.hole(2, 4096);
    assert_eq!(bench.sent(), "R2m+8k", "zeros without data came first: all of it as data");
    bench.all_done([3, 4]);
    assert_eq!(bench.replies(), "2:ok 3:ok");
    bench.assert_quiet();
}

#[test]
fn unrequested_hole_fails() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+8k R1m+8k");
    bench.hole(0, 8192);
    bench.hole(1, 4096);
    assert_eq!(bench.replies(), "1:medium 2:medium");
    assert_eq!(bench.sent(), "R0+8k R1m+8k");
    bench.assert_quiet();
}

#[test]
fn failed_merged_request_retries_each_bio_alone() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k W4k+8k W12k+4k!sync W12k+4k");
    bench.done(1);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+16k W12k+4k!sync", "3:ok"));
    bench.failed(0, EIO);
    assert_eq!(bench.sent(), "W0+4k");
    bench.done(2);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W4k+8k", "1:ok"));
    bench.failed(3, Err(IoError::NoSpace));
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W12k+4k", "2:nospace"));
    bench.done(4);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("", "4:ok"));
    assert_eq!(bench.segments(3), "2:0+8k");
    bench.assert_quiet();
}

#[test]
fn retried_bio_restarts_and_may_be_short() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k!hole R4k+8k!hole");
    bench.moved(0, 6144);
    bench.failed(1, EIO);
    bench.done(2);
    bench.moved(3, 512);
    assert_eq!(bench.sent(), "R0+12k!hole R6k+6k R0+4k R4k+8k R4608+7680");
    assert_eq!(bench.segments(4), "2:512+7680");
    bench.done(4);
    assert_eq!(bench.replies(), "1:ok 2:ok");
    bench.assert_quiet();
}

#[test]
fn error_of_single_bio_is_final() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    bench.failed(0, EIO);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("R0+4k", "1:medium"));
}

#[test]
fn refused_retry_continues_without_merging() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k R4k+4k");
    bench.failed(0, EIO);
    bench.failed(1, Err(IoError::Busy));
    bench.bios("R4k+4k");
    bench.pass(3_000_000);
    assert_eq!(bench.sent(), "R0+8k R0+4k R0+4k R4k+4k");
    bench.failed(2, EIO);
    bench.finish_from(3);
    assert_eq!(bench.replies(), "1:medium 3:ok 2:ok");
    bench.assert_quiet();
}

#[test]
fn retried_fua_writes_are_flushed_each() {
    let mut bench = Bench::new(|_| ());
    bench.bios("W0+4k!fua W4k+4k!fua");
    bench.failed(0, EIO);
    bench.failed(1, EIO);
    assert_eq!(bench.replies(), "1:medium");
    bench.done(2);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("W0+8k W0+4k W4k+4k F", ""));
    bench.done(3);
    assert_eq!(bench.replies(), "2:ok");
    bench.assert_quiet();
}
