//! The elevator bfq in the path: an open gate, exports that do not merge, live switches, and the limits on what is in the device.

use headworks_core::time::MS;
use headworks_core::{
    Bio, BioFlags, BioId, Control, DeviceId, ExportConfig, ExportId, Input, Op, QueueOptions,
    Scheduler, Tunable,
};

use crate::bench::{BUSY, Bench, EIO, Shards};

fn bfq(options: &mut QueueOptions) {
    options.scheduler = Scheduler::Bfq;
}

fn read(connection: u32, export: u16, sequence: u64, offset: u64, len: u32) -> Input {
    let id = BioId { connection, export: ExportId(export), sequence, ..BioId::default() };
    Input::Bio(Bio { id, offset, len, op: Op::Read, flags: BioFlags::NONE, ..Bio::default() })
}

/// Completes commands from `from` on as they are sent, with the timers between, until all is quiet; returns how many were sent.
fn settle(bench: &mut Bench, from: usize) -> usize {
    let mut next = from;
    for _ in 0..1000 {
        bench.finish_from(next);
        next = bench.commands();
        if bench.shard.is_quiet() {
            return next;
        }
        bench.pass(MS);
    }
    panic!("the shard is not quiet after a second");
}

/// P9: every request is granted at once and whole; `nr_requests` bounds the pieces of one only.
#[test]
fn open_gate_grants_every_request_at_once() {
    let mut bench = Bench::new(|options| {
        bfq(options);
        (options.nr_requests, options.queue_depth, options.max_sectors_kb) = (4, 1, 8);
    });
    let bio = |n| read(n, 0, n.into(), u64::from(n) << 19, 4096);
    let bios: Vec<Input> = (0..1000).map(bio).collect();
    bench.turn(&bios);
    let granted = |bench: &Bench| {
        let (_, tags) = bench.shard.queue_stats(DeviceId(0)).unwrap();
        assert_eq!(tags.waits, 0);
        tags.grants
    };
    assert_eq!(granted(&bench), 1000);
    settle(&mut bench, 0);
    // Each of 32 pieces: two at once by nr_requests, as long as there are tags, then one.
    bench.bios("R0+256k R1m+256k R2m+256k R3m+256k R4m+256k R5m+256k R6m+4k");
    assert_eq!(granted(&bench), 1007);
    settle(&mut bench, 1000);
    assert_eq!(bench.replies().matches(":ok").count(), 1007);
}

/// P12: requests of two exports never merge, those of two connections of one do.
#[test]
fn requests_of_different_exports_do_not_merge() {
    for (exports, commands) in [([0, 0], 1), ([0, 1], 2)] {
        for together in [true, false] {
            let mut bench = Bench::with(|config| {
                bfq(&mut config.devices[0].queue);
                config.devices[0].queue.queue_depth = 1;
                config.exports = vec![ExportConfig::default(); 2];
            });
            bench.bios("R512m+4k");
            let first = read(1, exports[0], 2, 0, 4096);
            let second = read(2, exports[1], 3, 4096, 4096);
            if together {
                bench.turn(&[first, second]);
            } else {
                bench.turn(&[first]);
                bench.turn(&[second]);
            }
            assert_eq!(settle(&mut bench, 0), 1 + commands, "{exports:?} {together}");
        }
    }
}

/// P10: `hw_inflight_kb` limits what the device has; one request goes beyond it at most.
#[test]
fn bytes_in_the_device_are_limited_behind_the_gate() {
    let mut bench = Bench::new(|options| {
        bfq(options);
        options.hw_inflight_kb = 50;
    });
    let bios: Vec<Input> = (0..32).map(|n| read(1, 0, n, n << 20, 16 << 10)).collect();
    bench.turn(&bios);
    assert_eq!(bench.commands(), 4, "the last one begins below the limit");
    bench.done(0);
    assert_eq!(bench.commands(), 5);
    settle(&mut bench, 1);
}

/// P9: no request is lost, doubled or overtaken by a change of the scheduler.
#[test]
fn scheduler_changes_live_in_any_order() {
    let mut bench = Bench::new(|options| options.queue_depth = 2);
    let mut finished = 0;
    for (token, scheduler) in (1..).zip([2, 1, 2, 0, 2, 1, 0, 1, 2, 0_u64]) {
        let word = |n: u64| format!("{}m+4k", u64::from(token) * 64 + 2 * n);
        let words = |kind: &str| (0..8).map(|n| kind.to_owned() + &word(n)).collect::<Vec<_>>();
        bench.bios(&words("W").join(" "));
        let (tunable, value) = (Tunable::Scheduler, scheduler);
        bench.control(Control::Set { device: DeviceId(0), tunable, value, token });
        bench.bios(&words("R").join(" "));
        let sent = settle(&mut bench, finished);
        assert_eq!(sent - finished, 16, "each once");
        finished = sent;
        assert_eq!(bench.notices(), format!("set{token}:ok"));
        let options = bench.shard.queue_options(DeviceId(0)).unwrap();
        assert_eq!(options.scheduler as u64, scheduler);
        let sent = bench.sent();
        let reads = sent.find('R').expect("there are reads");
        assert!(!sent[reads..].contains('W'), "{sent}");
    }
}

/// What the device refuses is still in it for bfq, and a merged request that fails is sent again bio by bio.
#[test]
fn refused_and_failed_requests_stay_counted() {
    let mut bench = Bench::new(|options| {
        bfq(options);
        options.queue_depth = 4;
    });
    bench.bios("W0+4k W4k+4k W8k+4k R1m+4k R2m+4k");
    let sent = bench.commands();
    assert!(sent > 0);
    (0..sent).for_each(|n| bench.failed(n, BUSY));
    bench.pass(3 * MS);
    let again = bench.commands();
    (sent..again).for_each(|n| bench.failed(n, EIO));
    settle(&mut bench, again);
}

/// Leases of other shards are granted at once, too.
#[test]
fn other_shards_get_leases_at_once() {
    let mut shards = Shards::new(2, |options| {
        bfq(options);
        (options.nr_requests, options.queue_depth) = (2, 1);
    });
    for n in 0..64 {
        shards.at[1].bios(&format!("v1:R{n}m+4k"));
        shards.deliver();
    }
    let (_, tags) = shards.at[0].shard.queue_stats(DeviceId(0)).unwrap();
    assert_eq!(tags.waits, 0);
    let mut next = 0;
    for _ in 0..200 {
        shards.at[0].finish_from(next);
        next = shards.at[0].commands();
        shards.deliver();
        shards.pass(MS);
    }
    assert_eq!((next, shards.at[1].replies().matches(":ok").count()), (64, 64));
    shards.at.iter().for_each(Bench::assert_quiet);
}
