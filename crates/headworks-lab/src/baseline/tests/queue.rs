//! The queue under the old tag policies: a split bio's pieces get their tags one by one, some of them much later.

use crate::baseline::{TagPolicy, WakeOptions};
use headworks_core::time::{MS, SEC};
use headworks_core::{DeviceId, QueueOptions};

#[expect(dead_code, reason = "tests of headworks-core use the rest")]
#[path = "../../../../headworks-core/tests/path/bench.rs"]
mod bench;

use bench::{BUSY, Bench, EIO, Shards};

const BOTH: [TagPolicy; 2] = [TagPolicy::Legacy518, TagPolicy::KuaiV3];

/// Options with `nr_requests` tags and requests of at most 128 KiB.
fn tagged(nr_requests: u32) -> impl FnOnce(&mut QueueOptions) {
    move |q| (q.nr_requests, q.max_sectors_kb) = (nr_requests, 128)
}

/// A bench whose device has the tag policy `policy`, with the usual delays drawn from `seed`.
fn bench_with(policy: TagPolicy, seed: u32, change: impl FnOnce(&mut QueueOptions)) -> Bench {
    let mut bench = Bench::new(change);
    install(policy, seed, &mut bench);
    bench
}

fn install(policy: TagPolicy, seed: u32, bench: &mut Bench) {
    policy.install(&mut bench.shard, DeviceId(0), WakeOptions { seed, ..WakeOptions::default() });
}

/// Completes all commands in the order of dispatch, 50 us apart, until none is sent any more.
fn finish_from(bench: &mut Bench, mut n: usize) {
    loop {
        while n < bench.commands() {
            bench.pass(50_000);
            bench.done(n);
            n += 1;
        }
        // The safety net bounds every wait.
        bench.pass(6 * SEC);
        if n == bench.commands() {
            return;
        }
    }
}

/// Returns the ranges of the commands from `from` on, sorted.
fn ranges(bench: &Bench, from: usize) -> Vec<(u64, u32)> {
    let commands = (from..bench.commands()).map(|n| bench.command(n).submit);
    let mut ranges: Vec<_> = commands.map(|submit| (submit.offset, submit.len)).collect();
    ranges.sort_unstable();
    ranges
}

#[test]
fn split_bio_takes_tags_piece_by_piece() {
    for tags in BOTH {
        let mut bench = bench_with(tags, 1, tagged(64));
        bench.bios("W0+1m");
        assert_eq!(bench.sent(), "W0+128k");
        bench.pass(6_000);
        assert_eq!(bench.sent(), "W128k+128k");
        bench.pass(6 * 6_000);
        assert_eq!((bench.sent_count(), bench.tags_free()), (6, 56));
        bench.all_done(1..8);
        assert_eq!((bench.replies(), bench.tags_free()), (String::new(), 63));
        bench.done(0);
        assert_eq!(bench.replies(), "1:ok");
        bench.assert_quiet();
    }
}

#[test]
fn every_byte_is_sent_once_with_few_tags() {
    for tags in BOTH {
        for nr_requests in [1, 2, 4, 7, 8, 16, 62, 64] {
            let mut bench = bench_with(tags, nr_requests, tagged(nr_requests));
            let bios: Vec<_> =
                (0..20).map(|n| format!("R{}m+1m W{}k+4k", 2 * n, 65536 + 8 * n)).collect();
            bench.each(&bios.join(" "));
            bench.pass(MS);
            assert_eq!(bench.tags_free(), 0, "{tags:?} {nr_requests}");
            finish_from(&mut bench, 0);
            let mut expected: Vec<_> = (0..20)
                .flat_map(|n| (0..8).map(move |m| ((16 * n + m) << 17, 128 << 10)))
                .collect();
            expected.extend((0..20).map(|n| (((65536 + 8 * n) << 10), 4096)));
            expected.sort_unstable();
            assert_eq!(ranges(&bench, 0), expected, "{tags:?} {nr_requests}");
            let replies = bench.replies();
            let mut replies: Vec<_> = replies.split(' ').collect();
            replies.sort_unstable();
            replies.dedup();
            assert!(replies.len() == 40 && replies.iter().all(|reply| reply.ends_with(":ok")));
            bench.assert_quiet();
        }
    }
}

#[test]
fn error_ends_split_bio_without_further_commands() {
    for tags in BOTH {
        let mut bench = bench_with(tags, 1, tagged(4));
        bench.bios("W0+1m");
        bench.pass(MS);
        assert_eq!(bench.sent_count(), 4);
        bench.failed(2, EIO);
        bench.pass(MS);
        assert_eq!((bench.sent_count(), bench.replies()), (0, String::new()));
        bench.all_done([0, 1]);
        bench.pass(6 * SEC);
        assert_eq!((bench.sent_count(), bench.replies()), (0, String::new()));
        bench.done(3);
        bench.pass(6 * SEC);
        assert_eq!((bench.sent_count(), bench.replies().as_str()), (0, "1:medium"));
        bench.assert_quiet();
    }
}

#[test]
fn busy_piece_is_retried_and_short_one_continued() {
    for tags in BOTH {
        let mut bench = bench_with(tags, 1, tagged(2));
        bench.bios("R0+512k");
        bench.pass(MS);
        assert_eq!(bench.sent(), "R0+128k R128k+128k");
        bench.failed(0, BUSY);
        bench.moved(1, 4096);
        assert_eq!(bench.sent(), "R132k+124k R0+128k");
        finish_from(&mut bench, 2);
        assert_eq!(bench.replies(), "1:ok");
        assert_eq!(bench.sent(), "R256k+128k R384k+128k");
        bench.assert_quiet();
    }
}

#[test]
fn timed_out_piece_answers_bio_and_holds_tag() {
    for tags in BOTH {
        let mut bench = bench_with(tags, 1, tagged(4));
        bench.each("W0+1m W2m+1m");
        bench.pass(MS);
        bench.pass(30 * SEC);
        assert_eq!(bench.tags_free(), 0, "tags stay out with the buffers");
        assert!(bench.replies().contains("1:timeout/early"));
        finish_from(&mut bench, 0);
        let replies = bench.replies();
        assert!(replies.contains("1:released"), "{replies}");
        assert!(replies.contains("2:ok") || replies.contains("2:released"), "{replies}");
        bench.assert_quiet();
    }
}

#[test]
fn bio_with_more_pieces_than_tags_is_sent_whole() {
    for tags in BOTH {
        let mut bench = bench_with(tags, 1, |q| q.max_sectors_kb = 4);
        bench.bios("W0+260m");
        let mut n = 0;
        loop {
            bench.pass(MS);
            if n == bench.commands() {
                break;
            }
            let end = bench.commands();
            bench.all_done(n..end);
            n = end;
        }
        assert_eq!((n, bench.replies().as_str()), (260 << 8, "1:ok"));
        let next = |end, (offset, len): (u64, u32)| (offset == end).then_some(end + u64::from(len));
        assert_eq!(ranges(&bench, 0).into_iter().try_fold(0, next), Some(260 << 20));
        bench.assert_quiet();
    }
}

#[test]
fn waiting_request_merges_without_more_tags() {
    for tags in BOTH {
        let mut bench = bench_with(tags, 1, tagged(1));
        bench.each("R0+4k R64k+4k R68k+4k R60k+4k");
        assert_eq!(bench.sent(), "R0+4k");
        bench.done(0);
        bench.pass(MS);
        assert_eq!(bench.sent(), "R60k+12k");
        bench.done(1);
        assert_eq!(bench.replies(), "1:ok 4:ok 2:ok 3:ok");
        bench.assert_quiet();
    }
}

#[test]
fn bytes_in_flight_exceed_limit_by_one_piece_at_most() {
    for tags in BOTH {
        let mut bench = bench_with(tags, 1, |q| {
            tagged(64)(q);
            q.hw_inflight_kb = 256;
        });
        bench.each("R0+1m R2m+1m R4m+1m R6m+1m");
        bench.pass(10 * MS);
        assert_eq!(bench.commands(), 2);
        for n in 0..32 {
            assert!(bench.commands() - n <= 3, "{tags:?} {n}");
            bench.done(n);
            bench.pass(MS);
        }
        assert_eq!(bench.replies().split(' ').count(), 4);
        bench.assert_quiet();
    }
}

#[test]
fn leases_are_gathered_whole_shard_by_shard() {
    for tags in BOTH {
        for nr_requests in [1, 4, 7] {
            let mut shards = Shards::new(3, tagged(nr_requests));
            install(tags, 1, &mut shards.at[0]);
            for n in 0..6 {
                shards.at[0].bios(&format!("R{n}m+1m"));
                shards.at[1].bios(&format!("v1:R{n}m+1m v1:W{n}m+4k"));
                shards.at[2].bios(&format!("v2:R{n}m+1m"));
            }
            let mut n = 0;
            for _ in 0..20_000 {
                shards.deliver();
                shards.pass(50_000);
                if n < shards.at[0].commands() {
                    shards.at[0].done(n);
                    n += 1;
                }
            }
            shards.pass(20 * MS);
            shards.deliver();
            let answers = [0, 1, 2].map(|at| shards.at[at].replies().matches(":ok").count());
            assert_eq!(answers, [6, 12, 6], "{tags:?} {nr_requests}");
            shards.at.iter().for_each(Bench::assert_quiet);
            assert_eq!(shards.at[0].tags_free(), nr_requests);
            assert_eq!(shards.at[1].shard.tags_leased(DeviceId(0)), Some(0));
        }
    }
}
