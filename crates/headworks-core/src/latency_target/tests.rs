//! The control against a device whose latency grows with the bytes in it.

use super::*;
use crate::prng::Prng;
use crate::time::US;

/// A device that serves `rate` bytes a second; a small request waits for what is in it, and takes `alone_ns` by itself.
struct Line {
    rate: u64,
    alone_ns: u64,
    /// Bytes that bulk clients have ready.
    demand: u64,
    /// Requests of a window.
    requests: u32,
    now: Instant,
    prng: Prng,
}

impl Line {
    fn new(rate: u64, alone_ns: u64) -> Self {
        Self {
            rate,
            alone_ns,
            demand: 400 << 20,
            requests: 200,
            now: Instant(0),
            prng: Prng::new(7),
        }
    }

    /// Returns the time of a small request behind `bulk` bytes, which are at a random point of their service.
    fn latency(&mut self, bulk: u64) -> u64 {
        let whole = bulk * 1000 / (self.rate / 1_000_000);
        self.alone_ns + whole / 2 + self.prng.below(whole / 2 + 1)
    }

    /// Runs a window with a target; returns the part of them that missed it, in thousandths, and the bulk.
    fn window(&mut self, control: &mut TargetControl, target_ns: u64) -> (u32, u64) {
        let bulk = control.limit().unwrap_or(u64::MAX).min(self.demand);
        if control.limit().is_some_and(|limit| self.demand > limit) {
            control.on_bound();
        }
        let mut missed = 0;
        for _ in 0..self.requests {
            let latency = self.latency(bulk);
            missed += u32::from(latency > target_ns);
            control.note(target_ns, self.now, self.now.after(latency));
        }
        self.now = control.window_end().expect("a target has a window");
        control.end_window(self.now, bulk);
        (missed * 1000 / self.requests, bulk)
    }

    fn windows(&mut self, control: &mut TargetControl, count: u32, target_ns: u64) {
        for _ in 0..count {
            self.window(control, target_ns);
        }
    }
}

#[test]
fn target_is_kept_from_the_second_second_on() {
    for (target, rate) in [(250, 3_000), (500, 3_000), (1_000, 3_000), (10_000, 560), (50_000, 150)]
    {
        let mut line = Line::new(rate * 1_000_000, target * US / 5);
        let mut control = TargetControl::new();
        control.set_targets(Instant(0), [target * US].into_iter());
        let windows = (0..60).map(|_| line.window(&mut control, target * US));
        let late: Vec<_> = windows.skip(20).collect();
        let missed: u32 = late.iter().map(|&(missed, _)| missed).sum();
        let missed = missed / late.len() as u32;
        assert!(missed <= 20, "{target} us at {rate} MB/s: {missed} of 1000 missed");
        // What the target leaves for bulk is used.
        let most = (target * US - line.alone_ns) * (line.rate / 1_000_000) / 1000;
        let mean = late.iter().map(|&(_, bulk)| bulk).sum::<u64>() / late.len() as u64;
        assert!(mean * 10 >= most * 8, "{target} us at {rate} MB/s: {mean} of {most} bytes");
    }
}

/// A reader that asks twice a second, of a disk that was slow for a while: in windows of a second few requests tell how it is.
#[test]
fn target_of_few_requests_is_kept_and_used_within_minutes() {
    let target = 150 * MS;
    for seed in 0..20 {
        let mut line = Line { requests: 2, ..Line::new(75_000_000, 15 * MS) };
        line.prng = Prng::new(seed);
        let mut control = TargetControl::new();
        control.set_targets(Instant(0), [target].into_iter());
        line.demand = 32 << 20;
        line.rate /= 60;
        line.windows(&mut control, 100, target);
        assert!(control.limit().is_some_and(|limit| limit < 1 << 20), "seed {seed}");
        line.rate *= 60;
        line.windows(&mut control, 120, target);
        let late: Vec<_> = (0..600).map(|_| line.window(&mut control, target)).collect();
        let missed = late.iter().map(|&(missed, _)| missed).sum::<u32>() / 600;
        assert!(missed <= 20, "seed {seed}: {missed} of 1000 missed");
        let most = (target - line.alone_ns) * (line.rate / 1_000_000) / 1000;
        let mean = |windows: &[(u32, u64)]| {
            windows.iter().map(|&(_, bulk)| bulk).sum::<u64>() / windows.len() as u64
        };
        for (time, windows) in [("all", &late[..]), ("the next minute", &late[..60])] {
            let mean = mean(windows);
            assert!(mean * 10 >= most * 6, "seed {seed}, {time}: {mean} of {most} bytes");
        }
    }
}

#[test]
fn cut_begins_at_the_most_that_was_in_the_device_not_at_what_is_there_when_the_window_ends() {
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [MS].into_iter());
    [4 << 20, 8 << 20, 0].into_iter().for_each(|bytes| control.on_load(bytes));
    (0..50).for_each(|n| control.note(MS, Instant(0), Instant(if n == 0 { 2 * MS } else { 1 })));
    let end = control.window_end().unwrap();
    assert!(control.end_window(end, 0));
    assert_eq!(control.limit(), Some(7 << 20));
    // The next window had less.
    control.on_load(1 << 20);
    (0..50).for_each(|_| control.note(MS, end, end.after(2 * MS)));
    let end = control.window_end().unwrap();
    control.end_window(end, 0);
    assert_eq!(control.limit(), Some(512 << 10));
    // Nor is what it had under other targets of use.
    control.on_load(64 << 20);
    control.set_targets(end, [2 * MS].into_iter());
    (0..50).for_each(|_| control.note(2 * MS, end, end.after(4 * MS)));
    let end = control.window_end().unwrap();
    control.end_window(end, 1 << 20);
    assert_eq!(control.limit(), Some(512 << 10));
}

#[test]
fn limit_grows_by_how_many_requests_tell() {
    let grown = |requests: u64| {
        let mut control = TargetControl::new();
        control.set_targets(Instant(0), [MS].into_iter());
        (0..50).for_each(|_| control.note(MS, Instant(0), Instant(2 * MS)));
        let end = control.window_end().unwrap();
        control.end_window(end, 1600 << 10);
        assert_eq!(control.limit(), Some(800 << 10));
        control.on_bound();
        // Beyond half of the target, and within 7/8.
        (0..requests).for_each(|_| control.note(MS, end, end.after(800 * US)));
        let end = control.window_end().unwrap();
        control.end_window(end, 800 << 10);
        (control.limit().unwrap() >> 10) - 800
    };
    assert_eq!([5, 10, 25, 100].map(grown), [6, 13, 33, 33], "of a thirty-second and 8 KiB");
}

#[test]
fn window_ends_once_it_is_lost() {
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [MS].into_iter());
    let at = Instant(3 * MS);
    let answered = |control: &mut TargetControl, missed| {
        control.note(MS, if missed { Instant(MS) } else { Instant(2 * MS) }, at);
        control.is_due(at)
    };
    let ended =
        [true, false, false, true, false, true].map(|missed| answered(&mut control, missed));
    assert_eq!(ended, [false, false, false, false, true, true], "two of five");
    assert!(control.end_window(at, 1 << 20));
    assert_eq!(control.window_end(), Some(at.after(100 * MS)));
    // One of many is no reason, nor are two of sixteen.
    let late = at.after(4 * MS);
    (0..14).for_each(|_| control.note(MS, at.after(3 * MS), late));
    (0..2).for_each(|_| control.note(MS, at, late));
    assert!(!control.is_due(late));
    control.note(MS, at, late);
    assert!(control.is_due(late));
}

/// A device that keeps the target up to some bytes, and misses it for everybody beyond: whole commands make steps.
#[test]
fn limit_that_was_missed_again_is_tried_less_and_less_until_it_is_kept() {
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [MS].into_iter());
    let mut now = Instant(0);
    let mut window = |control: &mut TargetControl, step: u64| {
        let bulk = control.limit().unwrap_or(8 << 20);
        let latency = if bulk > step { 1100 * US } else { 800 * US };
        (0..20).for_each(|_| control.note(MS, now, now.after(latency)));
        control.on_bound();
        now = now.after(100 * MS);
        control.end_window(now, bulk);
        bulk > step
    };
    let [first, later] =
        [100, 500].map(|windows| (0..windows).filter(|_| window(&mut control, 1 << 20)).count());
    assert!(first >= 4, "the step is found: {first}");
    assert!(later <= 9, "{later} of 500");
    let kept = (0..200).filter(|_| window(&mut control, u64::MAX)).count();
    assert_eq!(kept, 0);
    assert!(control.limit().is_none_or(|limit| limit > 4 << 20), "the step is gone");
}

#[test]
fn limit_does_not_swing_at_a_constant_load() {
    let mut line = Line::new(3_000_000_000, 60 * US);
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [400 * US].into_iter());
    let bulk: Vec<u64> = (0..200).map(|_| line.window(&mut control, 400 * US).1).skip(30).collect();
    let (least, most) = (bulk.iter().min().unwrap(), bulk.iter().max().unwrap());
    assert!(most <= &(2 * least), "from {least} to {most} bytes");
}

#[test]
fn limit_stays_while_bulk_is_away_and_grows_with_a_faster_device() {
    let mut line = Line::new(1_000_000_000, 50 * US);
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [500 * US].into_iter());
    line.windows(&mut control, 40, 500 * US);
    let settled = control.limit().expect("bulk is limited");
    line.demand = 0;
    line.windows(&mut control, 100, 500 * US);
    assert_eq!(control.limit(), Some(settled), "no bulk waited for it");
    line.demand = 400 << 20;
    line.rate *= 100;
    line.windows(&mut control, 400, 500 * US);
    let grown = control.limit().expect("the device has a rate");
    assert!(grown > 50 * settled, "{settled} grew to {grown}");
}

#[test]
fn only_looser_targets_are_slowed_for_the_one_that_is_missed_most() {
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [MS, 10 * MS, 100 * MS, 10 * MS].into_iter());
    assert!(!control.is_bulk(0), "without a limit nothing is bulk");
    for _ in 0..100 {
        control.note(MS, Instant(0), Instant(900 * US));
        control.note(10 * MS, Instant(0), Instant(11 * MS));
        control.note(100 * MS, Instant(0), Instant(MS));
    }
    let end = control.window_end().unwrap();
    assert!(!control.is_due(Instant(end.0 - 1)) && control.is_due(end));
    assert!(control.end_window(end, 8 << 20));
    assert_eq!(control.limit(), Some(4 << 20), "everything was missed: half of what is there");
    assert_eq!(control.guarded(), Some(10 * MS));
    assert!(control.is_bulk(0) && control.is_bulk(100 * MS));
    assert!(!control.is_bulk(10 * MS) && !control.is_bulk(MS));
    control.set_targets(end, std::iter::empty());
    assert!(!control.is_on() && control.limit().is_none() && !control.is_due(Instant(u64::MAX)));
}

#[test]
fn few_requests_are_kept_for_the_next_window() {
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [MS].into_iter());
    for window in 1..=2 {
        (0..3).for_each(|_| control.note(MS, Instant(0), Instant(2 * MS)));
        let end = control.window_end().unwrap();
        assert_eq!(control.end_window(end, 1 << 20), window == 2);
    }
    assert_eq!(control.limit(), Some(512 << 10));
}

#[test]
fn limit_keeps_its_bounds_whatever_is_measured() {
    let mut prng = Prng::new(3);
    for _ in 0..200 {
        let mut control = TargetControl::new();
        let targets: Vec<u64> = (0..1 + prng.below(12)).map(|_| prng.below(50 * MS)).collect();
        control.set_targets(Instant(0), targets.iter().copied());
        let mut now = Instant(0);
        for _ in 0..100 {
            for _ in 0..prng.below(20) {
                let target = targets[prng.below(targets.len() as u64) as usize];
                control.note(target, now, now.after(prng.below(60 * MS)));
            }
            if prng.below(2) == 0 {
                control.on_bound();
            }
            let Some(end) = control.window_end() else {
                break;
            };
            control.end_window(end, prng.below(1 << 30));
            now = end;
            assert!(control.limit().is_none_or(|limit| (BULK_MIN..=BULK_MAX).contains(&limit)));
            assert!(control.levels[..control.count].is_sorted_by_key(|level| level.target_ns));
        }
    }
}

#[test]
fn one_request_far_behind_is_enough_and_those_before_a_change_do_not_count() {
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [MS].into_iter());
    control.note(MS, Instant(0), Instant(50 * MS));
    let end = control.window_end().unwrap();
    assert!(control.end_window(end, 64 << 20));
    assert_eq!(control.limit(), Some((64 << 20) / 50), "fifty times the target");
    // They waited behind what was in the device before.
    (0..50).for_each(|_| control.note(MS, Instant(end.0 - 1), end.after(50 * MS)));
    let end = control.window_end().unwrap();
    assert!(!control.end_window(end, 1 << 20));
    (0..50).for_each(|_| control.note(MS, end, end.after(3 * MS)));
    let end = control.window_end().unwrap();
    assert!(control.end_window(end, 1 << 20));
    assert_eq!(control.limit(), Some((1 << 20) / 3));
}

#[test]
fn limit_stays_when_other_targets_change() {
    let mut control = TargetControl::new();
    control.set_targets(Instant(0), [MS, 50 * MS].into_iter());
    (0..50).for_each(|_| control.note(MS, Instant(0), Instant(3 * MS)));
    let end = control.window_end().unwrap();
    assert!(control.end_window(end, 3 << 20));
    let window = control.window_end();
    control.set_targets(Instant(0), [50 * MS, MS, MS].into_iter());
    assert_eq!(
        (control.limit(), control.window_end()),
        (Some(1 << 20), window),
        "the same targets"
    );
    control.set_targets(end, [MS, 7 * MS].into_iter());
    assert_eq!((control.limit(), control.guarded()), (Some(1 << 20), Some(MS)));
    control.set_targets(end, [7 * MS].into_iter());
    assert_eq!((control.limit(), control.guarded()), (None, None), "its target is gone");
}
