//! One limit: exact over every interval, bursts of the exact length, and changes that neither add nor lose.

use super::super::bucket::SLACK_NS;
use super::*;

const PARTS: u128 = SEC as u128;

fn parts(world: &World, kind: LimitKind) -> Vec<(u64, u128)> {
    let cost = |one: &Admission| match kind.is_bytes() {
        true => u128::from(one.bytes) * PARTS,
        false => PARTS,
    };
    world.admissions.iter().map(|one| (one.at, cost(one))).collect()
}

/// Rates from 100 to 1,000,000 I/Os and from 10 MB to 1 GB a second, late wake-ups, a client whose queue never empties.
#[test]
fn every_interval_admits_the_rate_within_one_request_and_a_late_wake_up() {
    let cases = [
        (LimitKind::IopsTotal, 100, (512, 4096)),
        (LimitKind::IopsRead, 10_000, (512, 4096)),
        (LimitKind::IopsTotal, 1_000_000, (512, 512)),
        (LimitKind::BpsTotal, 10_000_000, (4096, 65_536)),
        (LimitKind::BpsRead, 100_000_000, (512, 262_144)),
        (LimitKind::BpsTotal, 1_000_000_000, (4096, 1 << 20)),
    ];
    for (kind, rate, sizes) in cases {
        for late_ns in [0, 200_000, MS] {
            let mut world = World::new(late_ns);
            world.tree.set_limits(Instant(0), LimitTree::ROOT, &limit(kind, rate));
            let depth = 64 + (rate / 1000) as u32 * u32::from(!kind.is_bytes());
            world.client(LimitTree::ROOT, Client { sizes, ..Client::new(Op::Read, 0, depth) });
            world.run(0, if rate == 1_000_000 { SEC / 2 } else { 2 * SEC });
            let most = u128::from(if kind.is_bytes() { sizes.1 } else { 1 }) * PARTS;
            // A wake-up falls on a grid of 250 us, at least 1 ms after the last.
            let late = u128::from(late_ns + 1_250_000) * u128::from(rate);
            let slack = u128::from(SLACK_NS) * u128::from(rate);
            let admissions = parts(&world, kind);
            assert!(admissions.len() > 100, "{kind:?} {rate}");
            assert_bounds(&admissions, rate, slack + most, None);
            let saturated = admissions.partition_point(|(at, _)| *at < SEC / 10);
            assert_bounds(&admissions[saturated..], rate, most + late, Some(most + late));
        }
    }
}

#[test]
fn first_second_is_within_one_percent() {
    for (kind, rate) in [(LimitKind::IopsTotal, 1000), (LimitKind::BpsTotal, 50_000_000)] {
        let mut world = World::new(200_000);
        world.tree.set_limits(Instant(0), LimitTree::ROOT, &limit(kind, rate));
        world.client(LimitTree::ROOT, Client::new(Op::Read, 4096, 128));
        world.run(0, SEC);
        let sum: u128 = parts(&world, kind).iter().map(|(_, cost)| cost / PARTS).sum();
        let error = sum as f64 / rate as f64 - 1.0;
        assert!(error.abs() < 0.01, "{kind:?}: {error:+.4}");
    }
}

#[test]
fn burst_lasts_as_long_as_it_says_and_again_after_a_rest() {
    let cases =
        [(LimitKind::IopsTotal, 100, 2000, 10), (LimitKind::BpsTotal, 10_000_000, 100_000_000, 5)];
    for (kind, average, max, seconds) in cases {
        let mut limits = limit(kind, average);
        limits.rates[kind as usize].max = max;
        limits.rates[kind as usize].max_length_ns = seconds * SEC;
        let mut world = World::new(200_000);
        world.tree.set_limits(Instant(0), LimitTree::ROOT, &limits);
        world.client(LimitTree::ROOT, Client::new(Op::Read, 65_536, 256));
        world.run(0, (seconds + 20) * SEC);
        // A rest as long as the bucket takes to leak, then the same again.
        let rest = (max - average) * seconds / average + 1;
        let again = (seconds + 20 + rest) * SEC;
        let first = parts(&world, kind);
        world.events.clear();
        world.clients[0].queue.clear();
        world.clients[0].head = None;
        world.tree.withdraw(Instant((seconds + 20) * SEC), world.clients[0].leaf);
        (0..256).for_each(|_| world.schedule(again, 0));
        world.admissions.clear();
        world.run((seconds + 20) * SEC, again + (seconds + 5) * SEC);
        let second = parts(&world, kind);
        for (admissions, from) in [(first, 0), (second, again)] {
            let sum_until = |until: u64| -> u128 {
                let own = admissions.iter().filter(|(at, _)| *at < from + until);
                own.map(|(_, cost)| cost / PARTS).sum()
            };
            let burst = sum_until(seconds * SEC) as f64 / (max * seconds) as f64;
            assert!((burst - 1.0).abs() < 0.001, "{kind:?} admits {burst} of its burst");
            let after = sum_until((seconds + 5) * SEC) - sum_until(seconds * SEC);
            let rate = after as f64 / (average * 5) as f64;
            assert!((rate - 1.0).abs() < 0.02, "{kind:?} goes on at {rate} of its rate");
            let size = u128::from(max - average) * u128::from(seconds) * PARTS;
            let most = if kind.is_bytes() { 65_536 * PARTS } else { PARTS };
            assert_bounds(&admissions, average, size + most, None);
        }
    }
}

#[test]
fn changed_rate_is_neither_a_burst_nor_a_stall() {
    let mut world = World::new(0);
    world.tree.set_limits(Instant(0), LimitTree::ROOT, &limit(LimitKind::IopsTotal, 1000));
    world.client(LimitTree::ROOT, Client::new(Op::Read, 4096, 32));
    for (second, rate) in [(1, 100), (2, 5000), (3, 1000)] {
        world.run((second - 1) * SEC, second * SEC);
        let before = world.admissions.len();
        let now = Instant(second * SEC);
        world.tree.set_limits(now, LimitTree::ROOT, &limit(LimitKind::IopsTotal, rate));
        world.run(second * SEC, second * SEC + SEC / 10);
        let admitted = (world.admissions.len() - before) as u64;
        assert!(admitted.abs_diff(rate / 10) <= rate / 100 + 2, "{admitted} at {rate} a second");
    }
}

#[test]
fn raised_limit_wakes_at_once() {
    let mut world = World::new(0);
    world.tree.set_limits(Instant(0), LimitTree::ROOT, &limit(LimitKind::IopsTotal, 1));
    world.client(LimitTree::ROOT, Client::new(Op::Read, 4096, 8));
    world.run(0, 10 * MS);
    assert_eq!(world.admissions.len(), 1, "one a second");
    assert!(world.tree.pop(Instant(10 * MS)).is_none());
    world.tree.set_limits(Instant(10 * MS), LimitTree::ROOT, &Limits::default());
    world.pop_all(10 * MS);
    assert_eq!(world.admissions.len(), 9, "and the eight that waited, its next one among them");
    assert!(!world.tree.is_limited(world.clients[0].leaf));
}

#[test]
fn wake_ups_are_bounded() {
    let mut world = World::new(0);
    for _ in 0..50 {
        let export = world.tree.add_group(LimitTree::ROOT, 100, 0);
        world.tree.set_limits(Instant(0), export, &limit(LimitKind::IopsTotal, 50_000));
        world.client(export, Client { device_ns: 10_000, ..Client::new(Op::Read, 4096, 16) });
    }
    world.run(0, SEC / 5);
    assert!(world.wakes <= 4000 / 5 + 1, "{} wake-ups in 0.2 s", world.wakes);
    let rate = world.admissions.len() as f64 / (50.0 * 10_000.0);
    assert!((rate - 1.0).abs() < 0.03, "{rate} of the rate");
}

#[test]
fn requests_cost_their_length_and_ios_by_size() {
    let mut limits = limit(LimitKind::IopsTotal, 1000);
    limits.iops_size = 16_384;
    let mut world = World::new(0);
    world.tree.set_limits(Instant(0), LimitTree::ROOT, &limits);
    world.client(LimitTree::ROOT, Client::new(Op::Write, 65_536, 32));
    world.run(0, 2 * SEC);
    assert!((495..=502).contains(&world.admissions.len()), "{}", world.admissions.len());
    assert_eq!(LimitedIo::of(Op::Discard, 1 << 30).unwrap().bytes, 512);
    assert_eq!(LimitedIo::of(Op::WriteZeroes, 1).unwrap().direction, LimitDirection::Write);
    assert_eq!(LimitedIo::of(Op::Prefetch, 9).unwrap().direction, LimitDirection::Read);
    assert!(LimitedIo::of(Op::Flush, 0).is_none() && LimitedIo::of(Op::BlockStatus, 9).is_none());
}

#[test]
fn mistakes_are_named() {
    let message = |limits: &Limits| limits.validate().unwrap_err().to_string();
    let low = message(&limit(LimitKind::BpsRead, 4095));
    assert!(low.contains("bps-read") && low.contains("4096"), "{low}");
    let mut burst = limit(LimitKind::IopsWrite, 100);
    burst.rates[LimitKind::IopsWrite as usize].max = 100;
    assert!(message(&burst).contains("iops-write-max (100) must be more"));
    burst.rates[LimitKind::IopsWrite as usize] = Rate { average: 0, max: 5, max_length_ns: 0 };
    assert!(message(&burst).contains("no meaning"));
    burst.rates[LimitKind::IopsWrite as usize] = Rate { average: 5, max: 0, max_length_ns: SEC };
    assert!(message(&burst).contains("needs iops-write-max"));
    burst.rates[LimitKind::IopsWrite as usize] =
        Rate { average: 5, max: 6, max_length_ns: 86_401 * SEC };
    assert!(message(&burst).contains("more than a day"));
    let size = Limits { iops_size: 1, ..Limits::default() };
    assert!(message(&size).contains("iops-size"));
    assert!(limit(LimitKind::BpsTotal, 4096).validate().is_ok() && Limits::default().is_none());
}
