//! Discard and write-zeroes: rounding, steps, and devices without support.

use headworks_core::{IoError, QueueOptions};

use crate::bench::Bench;

const CANNOT: headworks_core::Status = Err(IoError::Unsupported);

#[test]
fn discard_is_rounded_inward() {
    for (bio, sent, replies) in [
        ("D512+12k", "D4k+8k", ""),
        ("D4k+8k", "D4k+8k", ""),
        ("D512+7k", "", "1:ok"),
        ("D0+0", "", "1:ok"),
    ] {
        let mut bench = Bench::new(|_| ());
        bench.bios(bio);
        assert_eq!((bench.sent().as_str(), bench.replies().as_str()), (sent, replies), "{bio}");
    }
}

#[test]
fn long_discard_is_sent_in_steps_with_one_tag() {
    for op in ["D", "Z"] {
        let mut bench = Bench::new(|q| q.discard_max_bytes = 1 << 20);
        bench.bios(&format!("{op}4k+2560k"));
        assert_eq!((bench.sent(), bench.tags_free()), (format!("{op}4k+1m"), 255));
        bench.done(0);
        bench.done(1);
        assert_eq!(bench.sent(), format!("{op}1028k+1m {op}2052k+512k"));
        assert_eq!(bench.replies(), "");
        bench.done(2);
        assert_eq!(bench.replies(), "1:ok");
        bench.assert_quiet();
    }
}

#[test]
fn steps_end_at_block_boundaries() {
    let odd = |bio: &str| {
        let mut bench = Bench::with(|config| {
            config.volumes[0].options.block_size = 4096;
            let queue = &mut config.devices[0].queue;
            (queue.discard_max_bytes, queue.max_sectors_kb) = (70_000, 5);
            queue.discard_granularity = 16 << 10;
        });
        bench.bios(bio);
        bench.failed(0, if bio.starts_with('Z') { CANNOT } else { Err(IoError::Busy) });
        bench.pass(3_000_000);
        bench.finish_from(1);
        bench.sent()
    };
    assert_eq!(odd("Z0+128k").split(' ').next(), Some("Z0+68k"));
    assert!(odd("Z0+72k").ends_with("0W64k+4k 0W68k+4k"), "{}", odd("Z0+72k"));
    assert_eq!(odd("D0+128k"), "D0+64k D0+64k D64k+64k");
}

#[test]
fn short_step_is_continued() {
    let mut bench = Bench::new(|q| q.discard_max_bytes = 1 << 20);
    bench.bios("Z0+2m");
    bench.moved(0, 4096);
    assert_eq!(bench.sent(), "Z0+1m Z4k+1m");
    bench.finish_from(1);
    assert_eq!(bench.sent(), "Z1028k+1020k");
    bench.assert_quiet();
}

#[test]
fn unsupported_discard_succeeds() {
    let mut bench = Bench::new(|_| ());
    bench.bios("D0+4k");
    bench.failed(0, CANNOT);
    assert_eq!(bench.replies(), "1:ok");
    let mut bench = Bench::new(|q| q.discard = false);
    bench.bios("D0+4k");
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("", "1:ok"));
    bench.assert_quiet();
}

#[test]
fn other_discard_failures_are_reported() {
    let mut bench = Bench::new(|_| ());
    bench.bios("D0+4k");
    bench.failed(0, Err(IoError::Medium));
    assert_eq!(bench.replies(), "1:medium");
}

#[test]
fn unsupported_zeroing_is_written_in_steps() {
    let mut bench = Bench::new(|q| (q.max_sectors_kb, q.fua) = (64, true));
    bench.bios("Z4k+160k!nounmap!fua");
    bench.failed(0, CANNOT);
    bench.finish_from(1);
    assert_eq!(
        bench.sent(),
        "Z4k+160k!nounmap 0W4k+64k!nounmap 0W68k+64k!nounmap 0W132k+32k!nounmap F"
    );
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
}

#[test]
fn device_without_write_zeroes_is_sent_data() {
    let mut bench = Bench::new(|q| (q.write_zeroes, q.max_sectors_kb) = (false, 64));
    bench.bios("Z0+64k Z1m+4k!fast");
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("0W0+64k", "2:unsupported"));
    bench.done(0);
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
}

#[test]
fn failed_zero_data_is_not_retried() {
    let mut bench = Bench::new(|_| ());
    bench.bios("Z0+4k");
    bench.failed(0, CANNOT);
    bench.failed(1, CANNOT);
    assert_eq!(bench.replies(), "1:unsupported");
    bench.assert_quiet();
}

#[test]
fn fast_zero_fails_if_unsupported() {
    let mut bench = Bench::new(|_| ());
    bench.bios("Z0+4k!fast");
    bench.failed(0, CANNOT);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("Z0+4k!fast", "1:unsupported"));
}

#[test]
fn zeroing_falls_back_to_data_where_it_stopped() {
    let mut bench = Bench::new(|q: &mut QueueOptions| q.discard_max_bytes = 64 << 10);
    bench.bios("Z0+128k");
    bench.done(0);
    bench.failed(1, CANNOT);
    assert_eq!(bench.sent(), "Z0+64k Z64k+64k 0W64k+64k");
    bench.done(2);
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
}
