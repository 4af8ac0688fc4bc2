//! The throttle alone: counters, pauses, timers, the other policies, traces.

use super::super::{
    DirtyOptions, DirtyPosition, ForegroundWriteback, Throttle, ThrottlePolicy, TraceEvent,
    WriterId,
};
use crate::bio::{DeviceId, ExportId, IoClass};
use crate::prng::Prng;
use crate::time::{Instant, MS, SEC};

const DEVICE: DeviceId = DeviceId(0);

/// A pool of 4096 blocks: threshold 819, background 409.
fn throttle(policy: ThrottlePolicy) -> (Throttle, WriterId) {
    let options = DirtyOptions { policy, ..DirtyOptions::default() };
    let mut throttle = Throttle::new(&options, 4096, 1, 8);
    let writer = throttle.writer(1);
    (throttle, writer)
}

fn dirty(throttle: &mut Throttle, now: Instant, writer: WriterId, blocks: u32) -> Option<Instant> {
    assert!(throttle.reserve(DEVICE, blocks));
    throttle.on_dirtied(now, writer, DEVICE, blocks, IoClass::BestEffort)
}

/// Dirties single blocks until the writer pauses; returns the end of the pause.
fn paused(throttle: &mut Throttle, now: Instant, writer: WriterId) -> Instant {
    for _ in 0..1000 {
        if let Some(until) = dirty(throttle, now, writer, 1) {
            return until;
        }
    }
    panic!("never paused");
}

#[test]
fn counters_are_exact_for_any_order_of_events() {
    let mut prng = Prng::new(11);
    let options = DirtyOptions::default();
    let mut throttle = Throttle::new(&options, 100_000, 2, 8);
    let mut model = [[0_u64; 3]; 2];
    for step in 0..50_000 {
        let now = Instant(SEC + step * MS);
        let index = prng.below(2) as usize;
        let (device, counts) = (DeviceId(index as u16), &mut model[index]);
        let writer = throttle.writer(prng.below(12) as u32);
        let some = |prng: &mut Prng, of: u64| prng.below(of.min(300) + 1) as u32;
        match prng.below(9) {
            0 | 1 => {
                let blocks = 1 + prng.below(300) as u32;
                if throttle.reserve(device, blocks) {
                    counts[0] += u64::from(blocks);
                }
            }
            2 | 3 => {
                let blocks = some(&mut prng, counts[0]);
                throttle.on_dirtied(now, writer, device, blocks, IoClass::BestEffort);
                counts[0] -= u64::from(blocks);
                counts[1] += u64::from(blocks);
            }
            4 => {
                let blocks = some(&mut prng, counts[0]);
                throttle.on_rewritten(device, blocks);
                counts[0] -= u64::from(blocks);
            }
            5 => {
                let blocks = some(&mut prng, counts[1]);
                throttle.on_writeout(now, device, blocks);
                counts[1] -= u64::from(blocks);
                counts[2] += u64::from(blocks);
            }
            6 => {
                let blocks = some(&mut prng, counts[2]);
                throttle.on_written(now, device, blocks);
                counts[2] -= u64::from(blocks);
            }
            7 => {
                let blocks = some(&mut prng, counts[2]);
                throttle.on_write_failed(now, device, blocks);
                counts[2] -= u64::from(blocks);
                counts[1] += u64::from(blocks);
            }
            _ => {
                let blocks = some(&mut prng, counts[1]);
                throttle.on_cancelled(device, blocks);
                counts[1] -= u64::from(blocks);
                if prng.below(4) == 0 {
                    throttle.close(prng.below(12) as u32);
                }
            }
        }
        throttle.on_timer(now);
        let stats = throttle.stats();
        let sum = |at: usize| model[0][at] + model[1][at];
        assert_eq!([stats.reserved, stats.nr_dirty, stats.nr_writeback], [sum(0), sum(1), sum(2)]);
        assert!(sum(0) + sum(1) + sum(2) <= stats.nr_dirty_threshold);
    }
}

#[test]
fn repeated_write_failures_keep_the_estimate_bounded() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    dirty(&mut throttle, Instant(SEC), writer, 100);
    for step in 0..1000 {
        let now = Instant(SEC + step * 10 * MS);
        throttle.on_writeout(now, DEVICE, 100);
        throttle.on_write_failed(now.after(MS), DEVICE, 100);
    }
    let stats = throttle.device_stats(DEVICE);
    assert!((1..=25_600).contains(&stats.write_bandwidth), "{stats:?}");
    assert_eq!((stats.reclaimable, stats.written, stats.dirtied), (100, 0, 100));
}

#[test]
fn pause_stays_below_its_maximum() {
    for seed in 0..100 {
        let options = DirtyOptions { seed, max_pause_ms: 10, ..DirtyOptions::default() };
        let mut throttle = Throttle::new(&options, 4096, 1, 8);
        let writer = throttle.writer(1);
        // At least 27 ms of the device, so most pauses are cut into slices.
        let until = dirty(&mut throttle, Instant(SEC), writer, 700)
            .or_else(|| dirty(&mut throttle, Instant(SEC), writer, 50));
        let pause = until.expect("above the set point").since(Instant(SEC));
        assert!(pause <= 10 * MS - 10 * MS / 64, "{seed}: {pause}");
    }
}

#[test]
fn idle_throttle_does_not_tick() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    assert_eq!(throttle.next_timeout(), None);
    dirty(&mut throttle, Instant(SEC), writer, 1);
    let mut ticks = 0;
    while let Some(due) = throttle.next_timeout() {
        throttle.on_timer(due);
        ticks += 1;
        assert!(ticks < 20, "still ticking");
    }
    assert!(ticks >= 10, "{ticks}");
}

#[test]
fn writers_pause_only_above_free_run() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    let now = Instant(SEC);
    for _ in 0..600 {
        assert_eq!(dirty(&mut throttle, now, writer, 1), None);
    }
    let until = paused(&mut throttle, now, writer);
    assert!(throttle.stats().nr_dirty <= 640, "{:?}", throttle.stats());
    assert!(until > now && until.since(now) <= 200 * MS);
    assert_eq!(throttle.paused_until(writer), Some(until));
    // A bio that reserved its credit before still dirties blocks, and reports the pause.
    assert_eq!(dirty(&mut throttle, now, writer, 1), Some(until));
}

#[test]
fn pause_ends_at_its_deadline_or_on_close() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    let until = paused(&mut throttle, Instant(SEC), writer);
    assert_eq!(throttle.resume(Instant(until.0 - 1), writer), Some(until));
    assert_eq!(throttle.resume(until, writer), None);
    assert_eq!(throttle.paused_until(writer), None);
    assert_eq!(throttle.stats().pauses, 1);
    assert_eq!(throttle.stats().paused_ns, until.0 - SEC);
    paused(&mut throttle, until, writer);
    assert_eq!(throttle.close(1), Some(writer));
    assert_eq!(throttle.close(1), None);
    let again = throttle.writer(1);
    assert_eq!(throttle.paused_until(again), None);
}

#[test]
fn rewriting_dirty_blocks_costs_no_credit() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    let now = Instant(SEC);
    let until = paused(&mut throttle, now, writer);
    assert_eq!(throttle.resume(until, writer), None);
    for _ in 0..10_000 {
        assert!(throttle.reserve(DEVICE, 16));
        throttle.on_rewritten(DEVICE, 16);
    }
    assert_eq!(throttle.paused_until(writer), None);
    assert_eq!(throttle.stats().reserved, 0);
}

#[test]
fn flusher_runs_above_background_and_while_writers_pause() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    let now = Instant(SEC);
    for _ in 0..409 {
        dirty(&mut throttle, now, writer, 1);
    }
    assert!(!throttle.over_background(DEVICE));
    dirty(&mut throttle, now, writer, 1);
    assert!(throttle.over_background(DEVICE));
    throttle.on_writeout(now, DEVICE, 400);
    assert!(!throttle.over_background(DEVICE));
    assert!(throttle.reserve(DEVICE, 300));
    assert!(throttle.over_background(DEVICE), "above free-run dirty data must be under writeback");
}

/// A quota of fifteen blocks after every ten dirtied.
#[derive(Debug)]
struct EveryTenth;

impl ForegroundWriteback for EveryTenth {
    fn quota(&self, position: &DirtyPosition, nr_dirtied: u32) -> Option<u32> {
        assert!(position.used <= position.limit && position.writers == 1);
        (nr_dirtied >= 10).then_some(15)
    }
}

#[test]
fn policies_without_pauses_keep_the_hard_limit() {
    for foreground in [false, true] {
        let (mut throttle, writer) = throttle(ThrottlePolicy::None);
        if foreground {
            throttle.set_foreground(Box::new(EveryTenth));
        }
        let mut quota = 0;
        while throttle.reserve(DEVICE, 1) {
            let class = IoClass::BestEffort;
            assert_eq!(throttle.on_dirtied(Instant(SEC), writer, DEVICE, 1, class), None);
            quota = quota.max(throttle.foreground_quota(writer, DEVICE));
        }
        assert_eq!(quota, if foreground { 15 } else { 0 });
        assert_eq!(throttle.stats().nr_dirty, 819 - 25);
        assert!(throttle.reserve_for(DEVICE, 25, IoClass::RealTime));
        assert!(!throttle.reserve_for(DEVICE, 1, IoClass::RealTime));
    }
}

#[test]
fn waiter_is_notified_when_its_own_limit_allows() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::None);
    assert!(throttle.reserve_for(DEVICE, 819, IoClass::RealTime));
    throttle.on_dirtied(Instant(SEC), writer, DEVICE, 819, IoClass::RealTime);
    assert!(!throttle.reserve_for(DEVICE, 10, IoClass::RealTime));
    throttle.on_cancelled(DEVICE, 10);
    assert!(throttle.freed(DEVICE));
    assert!(!throttle.reserve(DEVICE, 10));
    assert!(!throttle.freed(DEVICE), "the last 25 blocks are for real-time only");
    throttle.on_cancelled(DEVICE, 25);
    assert!(throttle.freed(DEVICE));
    throttle.forget_refused(DEVICE);
    assert!(!throttle.freed(DEVICE));
}

#[test]
fn adopted_dirty_blocks_beyond_the_limit_do_not_stop_writers() {
    // The process before had three times the limit of this one.
    let (mut throttle, writer) = throttle(ThrottlePolicy::None);
    throttle.adopt(DEVICE, 2400);
    throttle.end_adoption(Instant(SEC));
    assert!((2400..2500).contains(&throttle.stats().nr_dirty_threshold));
    let written = 100;
    throttle.on_writeout(Instant(SEC), DEVICE, written);
    throttle.on_written(Instant(SEC + 50 * MS), DEVICE, written);
    assert!(dirty(&mut throttle, Instant(SEC + 51 * MS), writer, 10).is_none());
}

#[test]
fn lowered_part_of_a_pool_is_approached_and_a_raised_one_holds_at_once() {
    let (mut throttle, _) = throttle(ThrottlePolicy::None);
    throttle.set_limit_units(8192, 16_384);
    assert_eq!(throttle.stats().nr_dirty_threshold, 1638);
    throttle.set_limit_units(4096, 16_384);
    assert_eq!(throttle.stats().nr_dirty_threshold, 1638, "writers are not stopped");
}

#[test]
fn shrunk_pool_grants_no_credit_beyond_its_size() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::None);
    while throttle.reserve(DEVICE, 1) {
        throttle.on_dirtied(Instant(SEC), writer, DEVICE, 1, IoClass::BestEffort);
    }
    throttle.set_limit_units(512, 512);
    assert!(!throttle.reserve(DEVICE, 1));
    throttle.on_cancelled(DEVICE, 400);
    assert!(throttle.stats().nr_dirty_threshold <= 512);
    assert!(throttle.reserve(DEVICE, 1));
}

#[test]
fn write_out_chunks_match_known_sizes() {
    // MiB a second to MiB, at a limit of 200,000 blocks.
    for (bandwidth, chunk) in [(1, 4), (10, 8), (60, 32), (100, 52), (700, 100), (7000, 100)] {
        let blocks = super::super::throttle::chunk(bandwidth * 256, 200_000);
        assert_eq!(blocks / 256, chunk, "{bandwidth} MB/s");
    }
}

#[test]
fn traces_report_pauses_and_rates() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    let mut events = Vec::new();
    paused(&mut throttle, Instant(SEC), writer);
    throttle.take_traces(&mut events);
    assert!(events.is_empty(), "off by default");
    throttle.trace(true);
    let until = throttle.paused_until(writer).expect("paused");
    throttle.resume(until, writer);
    let again = paused(&mut throttle, until, writer);
    throttle.on_timer(throttle.next_timeout().expect("a writer is active").max(again));
    throttle.take_traces(&mut events);
    let balanced = events.iter().find_map(|event| match event {
        TraceEvent::BalanceDirtyPages(balance) if balance.pause > 0 => Some(*balance),
        _ => None,
    });
    let balanced = balanced.expect("a pause was traced");
    assert_eq!((balanced.connection, balanced.limit), (1, 794));
    assert!(balanced.dirty > 614 && balanced.dirtied > 0 && balanced.period > 0, "{balanced:?}");
    assert!(events.iter().any(|event| matches!(event, TraceEvent::BdiDirtyRatelimit(rates)
        if rates.awrite_bw == 102_400 && rates.dirty_ratelimit == 102_400)));
}

/// Beside another device, one that answers nothing is granted an eighth of the limit; alone it has all of it.
#[test]
fn unresponsive_device_leaves_credit_to_others() {
    let (silent, other) = (DeviceId(0), DeviceId(1));
    let mut throttle = Throttle::new(&DirtyOptions::default(), 10_000, 2, 4);
    throttle.set_unresponsive(silent, true);
    assert!(throttle.reserve(silent, 100) && throttle.reserve(silent, 100));
    assert!(!throttle.reserve(silent, 100) && !throttle.freed(silent), "242 of 1938 blocks");
    assert!(throttle.reserve(other, 100) && throttle.reserve(other, 100));
    assert!(throttle.reserve(other, 100));
    throttle.set_unresponsive(silent, false);
    assert!(throttle.freed(silent) && throttle.reserve(silent, 100));
    let mut single = Throttle::new(&DirtyOptions::default(), 10_000, 1, 4);
    single.set_unresponsive(silent, true);
    assert!(single.reserve(silent, 1900));
}

#[test]
fn blocks_of_a_closed_connection_are_owed_by_the_next_of_its_export() {
    for owed in [0, 400] {
        let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
        let now = Instant(SEC);
        paused(&mut throttle, now, writer);
        throttle.on_dirtied_after_close(now, ExportId(0), DEVICE, owed);
        let next = throttle.writer(2);
        assert_eq!(dirty(&mut throttle, now, next, 1).is_some(), owed > 0, "{owed} blocks");
        // It was taken.
        let third = throttle.writer(3);
        assert_eq!(dirty(&mut throttle, now, third, 1), None, "{owed} blocks");
    }
}

#[test]
fn debt_of_a_closed_connection_is_paid_by_time() {
    let (mut throttle, writer) = throttle(ThrottlePolicy::Ioless);
    let now = Instant(SEC);
    let until = paused(&mut throttle, now, writer);
    assert_eq!(throttle.close(1), Some(writer));
    let next = throttle.writer(2);
    assert!(dirty(&mut throttle, now, next, 1).is_some());
    throttle.close(2);
    // A second after the pauses of both.
    let later = until.after(until.since(now) + SEC);
    let next = throttle.writer(3);
    assert_eq!(dirty(&mut throttle, later, next, 1), None);
}
