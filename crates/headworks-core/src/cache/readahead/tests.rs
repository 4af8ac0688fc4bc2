//! Tests of read-ahead with a cache that keeps everything, and with small ones.

use super::active::POOL_PART;
use super::*;
use crate::prng::Prng;
use std::collections::BTreeSet;

const LIMITS: ReadAheadLimits =
    ReadAheadLimits { end: 1 << 30, window_max: 1024, order_max: 9, pool: 1 << 20 };

/// A cache that keeps everything, and reports to the policy what a cache would.
struct World {
    ahead: ReadAhead,
    limits: ReadAheadLimits,
    cached: BTreeSet<(u16, u64)>,
    markers: BTreeSet<(u16, u64)>,
    /// Read ahead and not read yet.
    unused: BTreeSet<(u16, u64)>,
    windows: Vec<ReadAheadWindow>,
    missed: u64,
}

impl World {
    fn new(limits: ReadAheadLimits) -> Self {
        let (cached, markers, unused) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self {
            ahead: ReadAhead::new(64),
            limits,
            cached,
            markers,
            unused,
            windows: Vec::new(),
            missed: 0,
        }
    }

    /// Reads blocks; returns whether a window was requested.
    fn read(&mut self, connection: u32, volume: u16, block: u64, blocks: u32) -> bool {
        let range = block..block + u64::from(blocks);
        let new = range.clone().filter(|&at| self.cached.insert((volume, at))).count();
        let used = range.clone().filter(|&at| self.unused.remove(&(volume, at))).count();
        let marker = range.filter(|&at| self.markers.remove(&(volume, at))).count() > 0;
        self.missed += new as u64;
        if used > 0 {
            let read = ReadEvent { volume: VolumeId(volume), block, blocks, marker };
            self.ahead.on_used(connection, read, used as u32);
        }
        if new == 0 && !marker {
            return false;
        }
        let read = ReadEvent { volume: VolumeId(volume), block, blocks, marker };
        let Some(window) = self.ahead.on_read(connection, read, self.limits) else {
            return false;
        };
        assert!(window.start >= block + u64::from(blocks) && window.blocks > 0);
        assert!(window.start + u64::from(window.blocks) <= self.limits.end);
        assert!(window.blocks <= self.limits.window_max && window.order <= self.limits.order_max);
        let range = window.start..window.start + u64::from(window.blocks);
        assert!(range.contains(&window.marker));
        let new = range.map(|at| (volume, at)).filter(|&at| self.cached.insert(at));
        self.unused.extend(new);
        self.markers.insert((volume, window.marker));
        self.windows.push(window);
        true
    }
}

/// With windows of 4 MiB 16 streams would have twice this pool ahead of them.
#[test]
fn windows_of_all_streams_fit_into_a_small_pool() {
    let pool = 16_384;
    let mut world = World::new(ReadAheadLimits { pool, ..LIMITS });
    let round = |world: &mut World, streams: u32, from: u64, blocks: u64| {
        for block in from..from + blocks {
            (0..streams).for_each(|stream| _ = world.read(stream, stream as u16, block, 1));
        }
    };
    round(&mut world, 16, 0, 2000);
    world.windows.clear();
    round(&mut world, 16, 2000, 2000);
    let largest = world.windows.iter().map(|window| window.blocks).max();
    assert_eq!(largest, Some(pool / POOL_PART / 16));
    // The others have ended: one stream has the largest windows again once half a pool was read ahead, twice.
    round(&mut world, 1, 4000, 40_000);
    assert_eq!(world.windows.last().map(|window| window.blocks), Some(1024));
}

/// D5: the vectors of mm/readahead.c.
#[test]
fn windows_ramp_as_in_linux() {
    let ramp = |max| Ramp { max, hold: false };
    let init = |max, reads: &[u32]| -> Vec<u32> {
        reads.iter().map(|&read| ramp(max).init(read)).collect()
    };
    assert_eq!(init(32, &[1, 2, 3, 4, 5, 8, 9, 32]), [4, 4, 8, 8, 16, 16, 32, 32]);
    assert_eq!(init(256, &[1, 8, 9, 16, 64, 65]), [4, 32, 32, 32, 128, 256]);
    let sizes = |max| {
        let next = |&size: &u32| (size < max).then(|| ramp(max).next(size));
        std::iter::successors(Some(4), next).collect::<Vec<_>>()
    };
    assert_eq!(sizes(256), [4, 16, 32, 64, 128, 256]);
    assert_eq!(sizes(32), [4, 8, 16, 32]);
    assert_eq!(sizes(1024), [4, 16, 64, 128, 256, 512, 1024]);
}

/// D4, and the orders of section 3.6: the second read orders, and no later one waits.
#[test]
fn stream_starts_at_second_read_and_never_waits_again() {
    for (first, step) in [(0, 1), (0, 16), (1000, 3), (7, 32)] {
        let mut world = World::new(LIMITS);
        assert!(!world.read(1, 0, first, step));
        assert!(world.read(1, 0, first + u64::from(step), step));
        for at in 2..20_000 / u64::from(step) {
            world.read(1, 0, first + at * u64::from(step), step);
        }
        assert_eq!(world.missed, 2 * u64::from(step), "reads of {step} from {first}");
        for pair in world.windows.windows(2) {
            assert_eq!(pair[0].start + u64::from(pair[0].blocks), pair[1].start);
            assert!(pair[1].order == (pair[0].order + 2).min(9) || step > 8);
            assert!(pair[1].start.is_multiple_of(1 << pair[0].order));
        }
        let last = world.windows[world.windows.len() - 1];
        assert_eq!((last.blocks, last.order), (1024, 9), "reads of {step} from {first}");
        assert!(last.start.is_multiple_of(512));
    }
}

#[test]
fn first_windows_have_linux_sizes() {
    let mut world = World::new(LIMITS);
    for at in 0..500 {
        world.read(1, 0, at, 1);
    }
    let windows: Vec<_> = world.windows.iter().map(|w| (w.start, w.blocks, w.order)).collect();
    // Sizes 4 (with the read itself), 16, 64, 128, 256, 512, each up to the end of a folio.
    assert_eq!(
        windows,
        [(2, 3, 0), (5, 19, 2), (24, 72, 4), (96, 160, 6), (256, 256, 8), (512, 512, 9)]
    );
}

#[test]
fn interleaved_streams_are_independent() {
    for (streams, noise) in [(4, 0), (8, 0), (4, 3), (8, 3)] {
        let mut world = World::new(LIMITS);
        let mut prng = Prng::new(5);
        let mut random = 0;
        for at in 0..3000 {
            for stream in 0..streams {
                world.read(1, 0, (stream << 20) + at, 1);
            }
            // Random reads of the same connection take the place of no stream that has a window.
            for _ in 0..if at > 1 { noise } else { 0 } {
                let before = world.missed;
                world.read(1, 0, (1 << 25) + prng.below(1 << 29), 1);
                random += world.missed - before;
            }
        }
        assert_eq!(world.missed - random, 2 * streams, "{streams} streams, noise {noise}");
        // None was forgotten and began again with small windows.
        let small = world.windows.iter().filter(|window| window.blocks < 4).count() as u64;
        assert_eq!(small, streams, "{streams} streams, noise {noise}");
    }
}

#[test]
fn ninth_stream_replaces_least_recently_used_one() {
    let mut world = World::new(LIMITS);
    for stream in 0..9 {
        (0..100).for_each(|at| _ = world.read(1, 0, (stream << 20) + at, 1));
    }
    let proven = |world: &World| {
        let record = world.ahead.records.iter().find(|record| record.used != 0).unwrap();
        let streams = record.streams.iter().filter(|stream| stream.size > 0);
        let mut places: Vec<u64> = streams.map(|stream| stream.next >> 20).collect();
        places.sort_unstable();
        places
    };
    assert_eq!(proven(&world), [1, 2, 3, 4, 5, 6, 7, 8]);
    // Its marker, when it goes on, makes it one of the eight again.
    (100..300).for_each(|at| _ = world.read(1, 0, at, 1));
    assert_eq!(proven(&world), [0, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn random_reads_request_no_window() {
    let mut prng = Prng::new(6);
    let cases: [(&str, &mut dyn FnMut(u64) -> u64); 5] = [
        ("random", &mut |_| prng.below(1 << 30)),
        ("backward", &mut |at| (1 << 20) - at),
        ("strided", &mut |at| at * 5),
        ("every other", &mut |at| at * 2),
        ("backward in reads that touch", &mut |at| (1 << 20) - at * 2),
    ];
    for (name, blocks) in cases {
        let mut world = World::new(LIMITS);
        let size = if name.ends_with("touch") { 2 } else { 1 };
        let orders = (0..5000).filter(|&at| world.read(1, 0, blocks(at), size)).count();
        assert_eq!(orders, 0, "{name}");
    }
}

#[test]
fn windows_end_at_volume_end_and_can_be_off() {
    let mut world = World::new(ReadAheadLimits { end: 777, ..LIMITS });
    for at in 0..777 {
        world.read(1, 0, at, 1);
    }
    assert_eq!((world.missed, world.cached.len()), (2, 777));
    let mut world = World::new(ReadAheadLimits { window_max: 0, ..LIMITS });
    assert!((0..1000).all(|at| !world.read(1, 0, at, 1)));
    // 128 KiB: Linux's default.
    let mut world = World::new(ReadAheadLimits { window_max: 32, order_max: 3, ..LIMITS });
    (0..1000).for_each(|at| _ = world.read(1, 0, at, 1));
    let last = world.windows[world.windows.len() - 1];
    assert_eq!((world.missed, last.blocks, last.order), (2, 32, 3));
}

#[test]
fn streams_belong_to_a_volume_and_a_connection() {
    let mut world = World::new(LIMITS);
    for at in 0..500 {
        // Alternating blocks of two volumes, and of two connections.
        assert!(!world.read(1, (at % 2) as u16, at, 1));
        assert!(!world.read(2 + at as u32 % 2, 5, at, 1));
    }
}

/// A reader that is faster than its windows: what is ordered is always behind the read (asserted for every read).
#[test]
fn reads_larger_than_windows_get_windows_after_them() {
    let mut world = World::new(ReadAheadLimits { window_max: 32, ..LIMITS });
    let orders = (0..50).filter(|at| world.read(1, 0, at * 64, 64)).count();
    assert_eq!((orders, world.missed), (49, 128 + 48 * 32));
}

#[test]
fn marker_far_before_own_one_belongs_to_another_stream() {
    let mut world = World::new(ReadAheadLimits { order_max: 0, ..LIMITS });
    (0..6).for_each(|at| _ = world.read(1, 0, at, 1));
    assert_eq!(world.windows[2].marker, 21);
    let marker = |world: &mut World, block| {
        let read = ReadEvent { volume: VolumeId(0), block, blocks: 1, marker: true };
        world.ahead.on_read(1, read, world.limits)
    };
    assert_eq!(marker(&mut world, 12), None);
    assert_eq!(marker(&mut world, 21).map(|window| window.start), Some(85));
}

#[test]
fn reordered_reads_continue_their_stream() {
    let mut world = World::new(LIMITS);
    for at in 0..2000_u64 {
        // 0 1 2 3, then 5 4 7 6 and so on.
        world.read(1, 0, if at < 4 { at } else { at ^ 1 }, 1);
    }
    assert_eq!(world.missed, 2);
}

#[test]
fn waste_stops_growth_then_halves_and_success_doubles() {
    let volume = VolumeId(3);
    let mut ahead = ReadAhead::new(4);
    let ramp = |ahead: &ReadAhead| ahead.feedback[3].ramp(1024);
    let read = ReadEvent { volume, block: 0, blocks: 1, marker: false };
    let used = |ahead: &mut ReadAhead, blocks| ahead.on_used(1, read, blocks);
    used(&mut ahead, 60);
    ahead.on_waste(volume, 20);
    assert!(!ramp(&ahead).hold, "a quarter is allowed");
    ahead.on_waste(volume, 1);
    assert_eq!((ramp(&ahead).next(64), ramp(&ahead).next(2000)), (64, 1024));
    for halved in 1..=12 {
        while ahead.feedback[3].halved < halved.min(8) {
            ahead.on_waste(volume, 10);
        }
        ahead.on_waste(volume, 1024);
    }
    assert_eq!((ramp(&ahead).max, ramp(&ahead).next(4)), (4, 4));
    assert_eq!(ahead.feedback[4].ramp(1024).max, 1024, "another volume is another matter");
    // Just below a quarter: stays. Nothing wasted: doubles with every period.
    (0..20).for_each(|_| {
        used(&mut ahead, 900);
        ahead.on_waste(volume, 124);
    });
    assert_eq!(ramp(&ahead).max, 4);
    (0..3 * PERIOD).for_each(|_| used(&mut ahead, 1));
    assert_eq!(ramp(&ahead).max, 32);
    (0..9 * PERIOD).for_each(|_| used(&mut ahead, 1));
    assert_eq!(ramp(&ahead).max, 1024);
}

/// Reads of 2 x 4 blocks here and there: what was read ahead is never used, and that is learned.
#[test]
fn short_runs_waste_little_after_a_while() {
    let mut ahead = ReadAhead::new(4);
    let mut prng = Prng::new(8);
    let mut ordered = Vec::new();
    for _ in 0..4000 {
        let block = prng.below(1 << 29);
        for block in [block, block + 32] {
            let read = ReadEvent { volume: VolumeId(0), block, blocks: 32, marker: false };
            if let Some(window) = ahead.on_read(1, read, LIMITS) {
                ahead.on_waste(VolumeId(0), window.blocks);
                ordered.push(window.blocks);
            }
        }
    }
    assert_eq!((ordered[0], ordered[3999]), (96, 1));
}

#[test]
fn ten_thousand_connections_use_one_small_table() {
    let mut ahead = ReadAhead::new(65_536);
    let bytes = size_of_val(&*ahead.records);
    assert!(bytes <= 256 << 10, "{bytes}");
    let read = |ahead: &mut ReadAhead, connection, block| {
        let read = ReadEvent { volume: VolumeId(0), block, blocks: 1, marker: false };
        ahead.on_read(connection, read, LIMITS).is_some()
    };
    for connection in 0..10_000 {
        assert!(!read(&mut ahead, connection, 0));
        assert!(read(&mut ahead, connection, 1), "a stream of connection {connection}");
    }
    assert_eq!(size_of_val(&*ahead.records), bytes);
    // The latest are known, the first are not.
    let known = |ahead: &mut ReadAhead, connections: std::ops::Range<u32>| {
        connections.filter(|&connection| read(ahead, connection, 5)).count()
    };
    assert_eq!(known(&mut ahead, 9_900..10_000), 100);
    assert_eq!(known(&mut ahead, 0..100), 0);
}

#[test]
fn closed_connection_leaves_no_streams() {
    let mut world = World::new(LIMITS);
    assert!(!world.read(7, 0, 0, 1));
    world.ahead.forget(7);
    assert!(!world.read(7, 0, 1, 1));
    assert!(world.read(7, 0, 2, 1));
    world.ahead.forget(8);
    assert!(!world.read(7, 0, 100, 1) && world.read(7, 0, 101, 1));
}

#[test]
fn marker_of_replaced_stream_restarts_it() {
    let mut world = World::new(LIMITS);
    (0..100).for_each(|at| _ = world.read(7, 0, at, 1));
    world.ahead.forget(7);
    let missed = world.missed;
    (100..5000).for_each(|at| _ = world.read(7, 0, at, 1));
    assert!(world.missed - missed <= 2, "{} reads waited", world.missed - missed);
}

/// Reads a file of `len` blocks in a random place, in reads of `step`.
fn read_file(world: &mut World, prng: &mut Prng, len: u64, step: u64) {
    let first = prng.below((1 << 29) - len);
    for at in (first..first + len).step_by(step as usize) {
        world.read(1, 0, at, step.min(first + len - at) as u32);
    }
}

/// Files of 16 KiB to 2 MiB, as in benches/shared-base.sh: what is read ahead past their ends is a small part of them, and they
/// wait for few reads after the two that show a stream.
#[test]
fn short_files_get_windows_that_most_of_them_use() {
    for seed in 0..10 {
        let mut prng = Prng::new(seed);
        let mut world = World::new(LIMITS);
        let mut touched = 0;
        let mut read = |world: &mut World, files: u32| {
            let before = (touched, world.missed, world.unused.len());
            for _ in 0..files {
                let (len, step) = (4 << prng.below(8), 1 << prng.below(6));
                read_file(world, &mut prng, len, step);
                touched += len;
            }
            let touched = (touched - before.0) as f64;
            let share = |part: u64| part as f64 / touched;
            (share((world.unused.len() - before.2) as u64), share(world.missed - before.1))
        };
        let (wasted, missed) = read(&mut world, 500);
        assert!(wasted < 0.2 && missed < 0.2, "seed {seed}, at first: {wasted}, {missed}");
        let (wasted, missed) = read(&mut world, 1500);
        assert!(wasted < 0.08 && missed < 0.2, "seed {seed}, later: {wasted}, {missed}");
    }
}

/// A long stream beside short ones soon has the largest windows.
#[test]
fn short_files_take_nothing_from_long_streams() {
    let mut world = World::new(LIMITS);
    let mut prng = Prng::new(9);
    for scan in 0..20 {
        (0..50).for_each(|_| read_file(&mut world, &mut prng, 16, 4));
        let before = world.missed;
        world.windows.clear();
        let first = 1 << 28 | scan << 20;
        (first..first + 50_000).for_each(|at| _ = world.read(1, 0, at, 1));
        let missed = world.missed - before;
        assert!(missed <= 8, "{missed} reads of scan {scan} waited");
        assert_eq!(world.windows.last().map(|window| window.blocks), Some(1024));
    }
}

/// Streams that go on by other connections, or after too many others, do not look short.
#[test]
fn streams_that_are_forgotten_and_return_have_not_ended() {
    let mut world = World::new(LIMITS);
    // A stream by four connections, as multi-conn clients read.
    for at in 0..100_000 {
        world.read((at / 32 % 4) as u32, 0, at, 1);
    }
    assert!(world.missed < 40, "{} reads waited", world.missed);
    // Twenty streams by one connection, each for a while.
    let mut prng = Prng::new(2);
    let mut next: [u64; 20] = std::array::from_fn(|stream| (stream as u64 + 1) << 20);
    let before = world.missed;
    for _ in 0..20_000 {
        let stream = prng.below(20) as usize;
        (0..8).for_each(|block| _ = world.read(9, 0, next[stream] + block, 1));
        next[stream] += 8;
    }
    let missed = world.missed - before;
    assert!(missed < 100, "{missed} of 160,000 blocks waited");
}

/// With several reads in flight, reads that miss are seen before earlier ones whose blocks are in flight.
#[test]
fn late_marker_of_own_stream_begins_no_other() {
    let mut ahead = ReadAhead::new(4);
    let mut read = |block, marker| {
        let read = ReadEvent { volume: VolumeId(0), block, blocks: 1, marker };
        ahead.on_read(1, read, LIMITS).map(|window| (window.start, window.blocks))
    };
    assert_eq!([read(10, false), read(11, false)], [None, Some((12, 3))]);
    assert_eq!([read(15, false), read(32, false)], [Some((16, 16)), Some((33, 79))]);
    assert_eq!([12, 16].map(|late| read(late, true)), [None; 2]);
    // Another one's.
    assert_eq!(read(9, true), Some((10, 3)));
}
