//! Splitting: a bio over the device's limits is sent in pieces, each byte once, and is answered once.

use headworks_core::{DepthMode, IoError, QueueOptions};

use crate::bench::{Bench, EIO};

/// Runs one bio to its end, completing the oldest command first; returns each command with its memory.
fn run(change: impl FnOnce(&mut QueueOptions), bio: &str) -> Vec<(u64, u32, String)> {
    let mut bench = Bench::new(change);
    bench.bios(bio);
    bench.finish_from(0);
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
    let all = 0..bench.commands();
    all.map(|n| {
        let submit = bench.command(n).submit;
        (submit.offset, submit.len, bench.segments(n))
    })
    .collect()
}

#[test]
fn bio_at_limit_is_one_command() {
    assert_eq!(run(|_| (), "R0+1280k"), [(0, 1280 << 10, "1:0+1280k".into())]);
}

#[test]
fn split_bio_is_covered_once_with_any_tags() {
    for (tags, depth) in [(256, 128), (256, 1), (8, 8), (3, 2), (2, 2), (2, 1), (1, 1)] {
        let pieces = run(|q| (q.nr_requests, q.queue_depth) = (tags, depth), "W4k+32m");
        assert_eq!(pieces.len(), 26);
        let mut next = 4096;
        for (offset, len, memory) in pieces {
            assert_eq!(offset, next, "{tags} tags");
            assert!(len <= 1280 << 10);
            let within = match (offset - 4096) >> 10 {
                0 => "0".into(),
                n if n % 1024 == 0 => format!("{}m", n >> 10),
                n => format!("{n}k"),
            };
            assert_eq!(memory, format!("1:{within}+{}k", len >> 10));
            next += u64::from(len);
        }
        assert_eq!(next, 4096 + (32 << 20));
    }
}

#[test]
fn split_bio_takes_at_most_half_the_tags() {
    for (tags, pieces) in [(256, 26), (40, 20), (8, 4), (3, 1), (1, 1)] {
        let fixed = DepthMode::Fixed;
        let mut bench = Bench::new(|q| (q.nr_requests, q.hw_depth) = (tags, fixed));
        bench.bios("R0+32m");
        assert_eq!((bench.sent_count(), bench.tags_free()), (pieces, tags - pieces as u32));
    }
    let mut bench = Bench::new(|q| q.max_sectors_kb = 64);
    bench.bios("R0+32m");
    assert_eq!(bench.sent_count(), 32);
}

#[test]
fn pieces_reuse_tags_until_split_bio_ends() {
    let mut bench = Bench::new(|q| (q.nr_requests, q.max_sectors_kb) = (2, 64));
    bench.bios("R0+192k R1m+128k R2m+4k");
    assert_eq!(bench.sent(), "R0+64k R1m+64k");
    bench.done(0);
    assert_eq!(bench.sent(), "R64k+64k");
    bench.done(2);
    assert_eq!(bench.sent(), "R128k+64k");
    bench.done(3);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("R2m+4k", "1:ok"));
    bench.done(1);
    assert_eq!(bench.sent(), "R1088k+64k");
    bench.all_done([4, 5]);
    assert_eq!(bench.replies(), "3:ok 2:ok");
    bench.assert_quiet();
}

#[test]
fn pieces_end_at_block_boundaries() {
    let mut bench = Bench::with(|config| {
        config.volumes[0].options.block_size = 4096;
        config.devices[0].queue.max_sectors_kb = 63;
    });
    bench.bios("W0+128k");
    assert_eq!(bench.sent(), "W0+60k W60k+60k W120k+8k");
}

#[test]
fn segments_never_exceed_max_segment_size() {
    assert_eq!(
        run(|q| q.max_segment_size = 4096, "R64k+10k"),
        [(64 << 10, 10 << 10, "1:0+4k 1:4k+4k 1:8k+2k".into())]
    );
    let both = |q: &mut QueueOptions| (q.max_segment_size, q.max_segments) = (4096, 2);
    assert_eq!(
        run(both, "R64k+20k"),
        [
            (64 << 10, 8 << 10, "1:0+4k 1:4k+4k".into()),
            (72 << 10, 8 << 10, "1:8k+4k 1:12k+4k".into()),
            (80 << 10, 4 << 10, "1:16k+4k".into()),
        ]
    );
}

#[test]
fn pieces_never_merge() {
    let mut bench = Bench::new(|q| (q.queue_depth, q.max_sectors_kb) = (1, 64));
    bench.each("R1m+4k R0+128k R128k+4k R132k+4k");
    bench.finish_from(0);
    assert_eq!(bench.sent(), "R1m+4k R0+64k R64k+64k R128k+8k");
    bench.assert_quiet();
}

#[test]
fn piece_never_reports_hole() {
    let mut bench = Bench::new(|q| q.max_sectors_kb = 64);
    bench.bios("R0+128k!hole");
    assert_eq!(bench.sent(), "R0+64k R64k+64k");
}

#[test]
fn short_piece_continues_within_piece() {
    let mut bench = Bench::new(|q| q.max_sectors_kb = 64);
    bench.bios("R0+128k");
    bench.moved(1, 4096);
    assert_eq!(bench.sent(), "R0+64k R64k+64k R68k+60k");
    assert_eq!(bench.segments(2), "1:68k+60k");
    bench.all_done([0, 2]);
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
}

#[test]
fn failed_piece_fails_bio_once_and_stops_sending() {
    for depth in [1, 2, 3] {
        let mut bench = Bench::new(|q| {
            (q.nr_requests, q.max_sectors_kb) = (8, 64);
            q.queue_depth = depth;
        });
        bench.bios("R0+640k");
        assert_eq!(bench.sent_count(), depth as usize);
        bench.failed(0, EIO);
        assert_eq!(bench.sent(), "", "depth {depth}");
        for n in 1..depth as usize {
            assert_eq!(bench.replies(), "", "others may still use the buffer");
            bench.failed(n, Err(IoError::NoSpace));
        }
        assert_eq!((bench.replies().as_str(), bench.sent().as_str()), ("1:medium", ""));
        bench.assert_quiet();
    }
}

#[test]
fn tags_of_unsent_pieces_are_granted_at_once() {
    let mut bench = Bench::new(|q| {
        (q.nr_requests, q.queue_depth, q.max_sectors_kb) = (4, 1, 64);
    });
    bench.bios("R0+640k R1m+640k R8m+4k");
    assert_eq!((bench.sent().as_str(), bench.tags_free()), ("R0+64k", 2));
    bench.failed(0, EIO);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("R1m+64k", "1:medium"));
    bench.failed(1, EIO);
    assert_eq!((bench.sent().as_str(), bench.replies().as_str()), ("R8m+4k", "2:medium"));
    bench.done(2);
    bench.assert_quiet();
}
