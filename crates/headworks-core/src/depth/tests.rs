//! The control against fluid devices: a rate, a latency, and as much demand as fits.

use super::*;
use crate::prng::Prng;

/// A device that moves `rate` bytes a second once it has `rate * latency` of them.
#[derive(Clone, Copy)]
struct Fluid {
    rate: f64,
    latency_ns: f64,
    /// Bytes of each command.
    command: u32,
    /// Most bytes that clients ask for at once.
    demand: u64,
    /// Largest relative error of a command's throughput.
    noise: f64,
    /// Small requests a millisecond beside the large ones.
    small: u32,
}

const MIB: u64 = 1 << 20;
/// A device with 560 MB/s that needs 43 KB to be busy.
const SATA: Fluid = Fluid {
    rate: 560e6,
    latency_ns: 77_000.0,
    command: 1 << 20,
    demand: 128 * MIB,
    noise: 0.0,
    small: 0,
};

/// A control with its device, in virtual time.
struct World {
    control: DepthControl,
    now: Instant,
    /// Bytes that the device has completed but that make no whole command yet.
    part: f64,
    /// Of the throughput, until the next completion.
    error: f64,
    prng: Prng,
}

impl World {
    fn new() -> Self {
        let control = DepthControl::new(1280 << 10);
        Self { control, now: Instant(0), part: 0.0, error: 0.0, prng: Prng::new(1) }
    }

    /// Runs for some milliseconds in steps of 10 us; returns the throughput in bytes a second.
    fn run(&mut self, device: &Fluid, ms: u64) -> f64 {
        let (mut moved, steps) = (0.0, ms * 100);
        for step in 0..steps {
            let limit = self.control.limit();
            let len = device.command.min(self.control.command_max());
            let most = limit.saturating_add(u64::from(len));
            let in_flight = most.min(device.demand).max(len.into()) as f64;
            let needs = device.rate * device.latency_ns / 1e9 + f64::from(len);
            let rate = device.rate * (in_flight / needs).min(1.0) * (1.0 + self.error);
            let latency = (in_flight / rate * 1e9) as u64;
            self.now = self.now.after(10 * US);
            self.part += rate / 1e5;
            let before = self.part;
            let cut = len < device.command;
            let kind = if cut { CommandClass::Piece } else { CommandClass::Large };
            while self.part >= f64::from(len) {
                self.part -= f64::from(len);
                self.control.on_complete(kind, len, latency);
                self.error = device.noise * (self.prng.below(2001) as f64 / 1000.0 - 1.0);
            }
            if device.small > 0 && step % (100 / u64::from(device.small)) == 0 {
                self.control.on_complete(CommandClass::Small, 4096, latency);
            }
            // A batch ends with the device's answers.
            if self.part < before && self.control.is_due(self.now) {
                let bound = device.demand > limit;
                self.control.end_sample(self.now, (in_flight as u64).min(limit), bound);
            }
            moved += rate / 1e5;
        }
        moved * 1000.0 / ms as f64
    }
}

#[test]
fn limit_is_what_the_device_needs() {
    let mut world = World::new();
    let device = Fluid { command: 64 << 10, ..SATA };
    world.run(&device, 1000);
    let rate = world.run(&device, 4000);
    assert!(rate > 0.95 * device.rate, "{rate}");
    let needs = 560e6 * 77e-6 + 65536.0;
    let limit = world.control.limit() as f64;
    assert!(limit < 2.0 * needs && limit > 0.9 * needs - 65536.0, "{limit} for {needs}");
}

#[test]
fn command_is_cut_only_while_small_requests_are_answered() {
    let mut world = World::new();
    world.run(&SATA, 4000);
    assert_eq!(world.control.command_max(), 1280 << 10);
    let mixed = Fluid { small: 5, ..SATA };
    world.run(&mixed, 2000);
    let cut = world.control.command_max();
    assert!(cut <= 64 << 10 && world.control.limit() <= 256 << 10, "{cut}");
    let rate = world.run(&mixed, 2000);
    assert!(rate > 0.95 * SATA.rate, "{rate}");
    world.run(&SATA, 2500);
    assert_eq!(world.control.command_max(), 1280 << 10);
    // The limit for cut commands is remembered.
    world.run(&mixed, 200);
    assert!(world.control.command_max() <= 2 * cut, "{}", world.control.command_max());
}

#[test]
fn device_that_works_faster_with_more_is_not_limited() {
    // 5 ms for each command, any number at once: throughput is proportional to the depth.
    let device = Fluid { rate: 1e12, latency_ns: 5e6, command: 4096, demand: MIB, ..SATA };
    let mut world = World::new();
    let most = device.rate * device.demand as f64 / (device.rate * 5e-3 + 4096.0);
    let rate = world.run(&device, 60_000);
    assert!(rate > 0.97 * most, "{rate} of {most}");
    let deep = Fluid { demand: 64 * MIB, ..device };
    world.run(&deep, 1000);
    let rate = world.run(&deep, 10_000);
    assert!(rate > 0.95 * 64.0 * most, "{rate} of {}", 64.0 * most);
}

#[test]
fn fast_device_has_no_limit() {
    let device =
        Fluid { rate: 8e9, latency_ns: 10_000.0, command: 4096, demand: 128 << 10, ..SATA };
    let mut world = World::new();
    world.run(&device, 10);
    assert_eq!((world.control.limit(), world.control.stats().limit), (u64::MAX, 0));
    assert_eq!(world.control.stats().trials, 0);
}

#[test]
fn noisy_device_keeps_its_depth() {
    let device = Fluid { noise: 0.9, command: 4096, demand: 128 << 10, ..SATA };
    let slow = Fluid { rate: 400e3, latency_ns: 50e6, ..device };
    let mut world = World::new();
    let rate = world.run(&slow, 60_000);
    let mut free = World::new();
    free.control.limit = u64::MAX;
    free.control.cruise.next_trial = Instant(u64::MAX);
    let most = free.run(&slow, 60_000);
    assert!(rate > 0.95 * most, "{rate} of {most}");
}

#[test]
fn limit_that_became_too_small_heals_within_a_second() {
    let device = Fluid { command: 64 << 10, ..SATA };
    let mut world = World::new();
    world.run(&device, 3000);
    // Longer latency: the throughput falls. More bandwidth: it could rise.
    for changed in
        [Fluid { latency_ns: 1e6, ..device }, Fluid { rate: 3e9, latency_ns: 110_000.0, ..device }]
    {
        world.run(&changed, 1000);
        let rate = world.run(&changed, 500);
        assert!(rate > 0.93 * changed.rate, "{rate} of {}", changed.rate);
    }
}

#[test]
fn unused_limit_is_forgotten() {
    let device = Fluid { command: 64 << 10, ..SATA };
    let mut world = World::new();
    world.run(&device, 3000);
    assert!(world.control.limit() < FIRST_LIMIT);
    let idle = Fluid { rate: 5e6, latency_ns: 77_000.0, demand: 4096, command: 4096, ..SATA };
    world.run(&idle, 12_000);
    assert_eq!(world.control.limit(), FIRST_LIMIT);
}

#[test]
fn limit_of_small_commands_is_forgotten_when_large_ones_come() {
    let mut world = World::new();
    let small = Fluid { command: 4096, demand: MIB, latency_ns: 200_000.0, ..SATA };
    world.run(&small, 5000);
    assert!(world.control.limit() < 2 * MIB, "{} for small commands", world.control.limit());
    world.run(&SATA, 200);
    let rate = world.run(&SATA, 500);
    assert!(rate > 0.95 * SATA.rate, "{rate} a second after the change");
}

#[test]
fn sorted_small_commands_are_not_limited_until_a_large_one_comes() {
    let mut world = World::new();
    let small = Fluid { command: 4096, demand: MIB, latency_ns: 200_000.0, ..SATA };
    world.run(&small, 5000);
    assert!(world.control.limit() < 2 * MIB, "{} without an elevator", world.control.limit());
    world.control.set_seeks(true, true);
    world.run(&small, 10);
    let (found, trials) = (world.control.limit, world.control.tried.trials);
    world.run(&small, 5000);
    assert_eq!(world.control.limit(), FIRST_LIMIT);
    assert_eq!(
        (world.control.limit, world.control.tried.trials),
        (found, trials),
        "nothing is tried"
    );
    world.control.on_large(world.now);
    world.run(&small, 10);
    assert!(world.control.limit() < 2 * MIB, "{} beside a large one", world.control.limit());
    world.run(&small, 9900);
    assert!(world.control.limit() < 2 * MIB && world.control.tried.trials > trials);
    world.run(&small, 200);
    assert_eq!(world.control.limit(), FIRST_LIMIT, "no large one for ten seconds");
    world.control.set_seeks(false, true);
    world.run(&small, 10);
    assert!(world.control.limit() < 2 * MIB, "{} without seeks", world.control.limit());
}

/// A control that uses a limit of 512 KiB for cut commands and tries the double. By the millisecond the device completes 448 small
/// requests and two pieces of 64 KiB with the first; `small` and `pieces` with the double.
fn trial_of_double(small: u32, pieces: u32) -> DepthControl {
    let mut control = DepthControl::new(1280 << 10);
    (control.phase, control.cuts.now, control.limit) = (Phase::Cruise, true, 512 << 10);
    control.seen = [Some(Instant(0)); 2];
    let mut at = 0;
    let mut samples = |control: &mut DepthControl, counts: [u32; 2]| {
        for _ in 0..5 {
            at += 1;
            (0..counts[0]).for_each(|_| control.on_complete(CommandClass::Small, 4096, 140_000));
            let piece = CommandClass::Piece;
            (0..counts[1]).for_each(|_| control.on_complete(piece, 64 << 10, 140_000));
            control.end_sample(Instant(at * MS), 0, true);
        }
    };
    samples(&mut control, [448, 2]);
    assert_eq!((control.phase, control.limit), (Phase::Up, 1 << 20));
    samples(&mut control, [small, pieces]);
    control
}

#[test]
fn larger_limit_that_takes_from_small_requests_is_no_gain() {
    // In bytes and commands 15 % more; small requests lose a fifth.
    let control = trial_of_double(350, 18);
    assert!(control.limit < 512 << 10, "{:?} at {}", control.phase, control.limit);
    let control = trial_of_double(448, 10);
    assert_eq!((control.phase, control.limit), (Phase::Up, 2 << 20), "none loses");
    // A few small requests that wait longer do not hold back large ones that gain much.
    let control = trial_of_double(400, 60);
    assert_eq!((control.phase, control.limit), (Phase::Up, 2 << 20));
}

#[test]
fn search_beside_mostly_small_requests_takes_smaller_steps() {
    for (small_rate, tried) in [(4e8, false), (6e8, true)] {
        let mut control = DepthControl::new(1280 << 10);
        (control.phase, control.cuts.now, control.limit) = (Phase::Search, true, 384 << 10);
        control.ranges[1] = Range { low: 256 << 10, high: 384 << 10 };
        control.mean.add(&Sample { rate: 1e9, small_rate, latency_ns: 1, in_flight: 1.0, ns: MS });
        control.try_next(Instant(0), 6144);
        assert_eq!(control.limit == 320 << 10, tried, "{:?}: {}", control.phase, control.limit);
    }
}

/// Behind an open gate requests wait as they were made.
#[test]
fn sample_of_commands_from_before_the_cut_says_nothing() {
    for early in [false, true] {
        let mut control = DepthControl::new(1280 << 10);
        if early {
            control.set_early();
        }
        (control.phase, control.cuts.now, control.length.longest) =
            (Phase::Reference, true, 64 << 10);
        control.seen[0] = Some(Instant(MS));
        let mut sample = |len: u32, at: u64| {
            (0..100).for_each(|_| control.on_complete(CommandClass::Piece, len, 2 * MS));
            control.end_sample(Instant(at * MS), 0, true);
            control.mean.samples()
        };
        assert_eq!(sample(1 << 20, 20) > 0, !early);
        assert!(sample(64 << 10, 40) > 0, "pieces of the present length count");
    }
}

/// Cut commands of 1 MiB writes and a small one each half millisecond, on a device that works on one command at a time and takes
/// 20 us for each beside its bytes.
fn run_serial(control: &mut DepthControl, from_ms: u64, ms: u64) {
    let (mut at, mut small_at) = (Instant(from_ms * MS), 0);
    while at < Instant(ms * MS) {
        let len = control.command_max().min(1 << 20);
        let cost = u64::from(len + COMMAND_COST);
        // As many as begin within the limit, and no more than clients ask for.
        let in_device = control.limit().div_ceil(cost).min(128);
        let ns = 20 * US + u64::from(len) * 10 / 7;
        at = at.after(ns);
        let kind = if len < 1 << 20 { CommandClass::Piece } else { CommandClass::Large };
        control.on_complete(kind, len, in_device * ns);
        if at.0 / (MS / 2) > small_at {
            small_at = at.0 / (MS / 2);
            at = at.after(25 * US);
            control.on_complete(CommandClass::Small, 4096, in_device * ns);
        }
        if control.is_due(at) {
            control.end_sample(at, in_device * cost, true);
        }
    }
}

#[test]
fn single_command_is_enough_for_a_device_that_works_on_one() {
    let mut control = DepthControl::new(1280 << 10);
    run_serial(&mut control, 0, 3000);
    let len = control.command_max();
    assert_eq!(control.limit(), PIECE_MIN, "one command of {len} bytes fills it");
    assert!((100 << 10..300 << 10).contains(&len), "{len}");
    // Commands that a latency target makes shorter are several in the device.
    assert!(control.limit_for(32 << 10) > u64::from(len));
    assert_eq!(control.limit_for(len), PIECE_MIN);
    let rate = f64::from(len) * 1e9 / (20e3 + f64::from(len) / 0.7);
    assert!(rate > 0.9 * 700e6, "{rate}");
}

/// Write-out that waited while commands became longer is as short as before.
#[test]
fn sample_of_commands_made_before_the_length_changed_says_nothing() {
    let mut control = DepthControl::new(1280 << 10);
    (control.phase, control.cuts.now) = (Phase::Reference, true);
    (control.length.longest, control.length.since) = (control.command_max(), Instant(10 * MS));
    control.seen[0] = Some(Instant(MS));
    let mut sample = |came: u64, at: u64| {
        for _ in 0..100 {
            control.on_complete(CommandClass::Piece, 128 << 10, 2 * MS);
            control.on_made(Instant(came * MS), 128 << 10);
        }
        control.end_sample(Instant(at * MS), 0, true);
        control.mean.samples()
    };
    assert_eq!(sample(9, 20), 0);
    assert!(sample(11, 40) > 0, "commands of the present length count");
}

/// A command costs something beside its bytes only if it is no piece: the two sides of a comparison have to count alike.
#[test]
fn cut_commands_are_compared_with_what_is_counted_like_them() {
    let mut control = DepthControl::new(1280 << 10);
    let mut makes_pieces = |phase, cut_next, cut| {
        (control.phase, control.cuts.next, control.cuts.now) = (phase, cut_next, cut);
        control.heads.outrun = false;
        assert!(!control.makes_pieces(), "a disk's cache takes any length");
        control.heads.outrun = true;
        control.makes_pieces()
    };
    assert!(makes_pieces(Phase::Reference, true, false) && makes_pieces(Phase::Search, true, true));
    assert!(!makes_pieces(Phase::Reference, false, false));
    assert!(!makes_pieces(Phase::Cruise, true, false));
}

#[test]
fn device_is_faster_than_a_head_by_bytes_or_by_commands() {
    for (len, ms, outrun) in [(1 << 20, 40, false), (1 << 20, 15, true), (4096, 3, true)] {
        let mut control = DepthControl::new(1280 << 10);
        (0..8).for_each(|_| control.on_complete(CommandClass::Large, len, MS));
        control.end_sample(Instant(ms * MS), 0, true);
        assert_eq!(control.heads.outrun, outrun, "8 commands of {len} bytes in {ms} ms");
    }
}
