//! Learning a device's costs from what it finishes while it is busy.
//!
//! ```text
//!   requests wait --window opens--> commands finish ... enough of them --window ends--> time = sum of their costs + error
//!        ^                             |                                                       |
//!        `---- the device idled -------'  (window dropped)                                     `--> the model moves
//! ```
//!
//! A busy device spends the time of a window on the commands that finish in it, but for those that it began before and those
//! it has begun and not finished; a window of several times the commands in flight makes that small. So each window is one
//! equation in six unknowns: four bases and two costs of a byte. They are solved as they come by a Kalman filter whose state
//! walks at random: a mix that says nothing about one unknown leaves it where it was, an unusual mix says much, and what was
//! learned longest ago counts least. An error within the noise teaches nothing, so a steady mix cannot drift away. Several
//! surprises in a row mean that the device has changed: then the certainty is given up.
//!
//! A drive that acknowledges writes from a cache misleads in one way: a large write waits until the cache has room for it, while
//! small ones that were acknowledged long ago are written, so it seems to cost their time; charged so, large writes come seldom,
//! the cache holds small ones alone, and it seems to cost even more. Therefore:
//! - A byte costs no more than that of a slow disk, unless windows of nothing but large commands show that it does.
//! - The byte of a device that seeks is believed to cost what disks' bytes cost: errors are its seeks' before its bytes'.
//! - Errors of such a device that scatter are noise, as large as they scatter: the drive works off at one time what it
//!   acknowledged at another. Errors that agree with each other are not.
//! - What windows do not tell apart drifts: a seek's time becomes that of the bytes beside it. While the device may seek, a written byte
//!   that seems to cost more than a disk's is drawn back to that, so far as the windows allow.
//! - A base that came to its lower bound so would never leave it, as its walk is a part of it. Many errors of one sign in windows of
//!   writes mean that the model is wrong, however small they are: the certainty is given up.
//! - Parts of an unfinished command are no equation: a window has several whole ones.
//!
//! Only windows in which requests waited all the time are used: a device that is not busy shows its latency, not its cost.
//!
//! Invariants: the model is within its bounds; a deviation is at most that of the
//! beginning, or the unknown itself if that is more.

use super::{BASE_NS, BYTE_BITS, BYTE_NS, CommandKind, DeviceCost, SEEK_NS};
use crate::time::{Instant, MS};

/// Unknowns: the bases by [`CommandKind::base`], then the cost of a byte read and written.
const UNKNOWNS: usize = 6;

/// Standard deviation of a base before anything is known, in nanoseconds: the time of a disk's seek.
const BASE_DEVIATION: f64 = 5e6;

/// Standard deviation of a byte's cost before anything is known, in nanoseconds: that of 100 MB/s.
const BYTE_DEVIATION: f64 = 10.0;

/// The same for a device that seeks. 3 ns: disks read and write at 70 to 300 MB/s.
const BYTE_DEVIATION_SEEKS: f64 = 3.0;

/// What a byte of a device is supposed to cost when it turns out to seek: that of 200 to 125 MB/s.
const BYTE_DISK_NS: (f64, f64) = (5.0, 8.0);

/// Random reads whose cost tells whether a device seeks. 64: a disk does fewer while its empty cache takes writes at once, which
/// looks like a device without seeks.
const READS_TELL: u32 = 64;

const RANDOM_READ: CommandKind = CommandKind { read: true, sequential: false };

/// Fewest commands in a window.
const COMMANDS_MIN: u32 = 8;

/// Shortest window. 1 ms: so that the arithmetic costs nothing for each command.
const WINDOW_MIN_NS: u64 = MS;

/// A surprise makes windows twice as long, at most so many times: up to 2 s, over which a drive's cache that takes many writes
/// at once and then none looks the same.
const DOUBLINGS_MAX: u32 = 11;

/// Weight of a window's error in the scatter.
const SCATTER_GAIN: f64 = 0.25;

/// Windows without a surprise after which windows are halved again.
const CALM_WINDOWS: u32 = 16;

/// Window after which twice the commands in flight are enough.
const WINDOW_LONG_NS: u64 = 4000 * MS;

/// Relative error that teaches nothing.
const NOISE: f64 = 0.03;

/// Relative change of the costs of a window's commands that changes what is charged.
const PRICE_STEP: f64 = 0.04;

/// Relative error that is a surprise.
const SURPRISE: f64 = 0.3;

/// Multiple of the scatter that is a surprise.
const SURPRISE_SCATTER: f64 = 1.25;

/// Surprises in a row that mean a changed device.
const SURPRISES: u32 = 4;

/// Windows in a row with errors of one sign that mean a wrong model. By chance this is 1 of 2000.
const ONE_SIDED: u32 = 12;

/// Relative random walk of an unknown in a window that teaches: a tenth of it in a hundred windows.
const WALK: f64 = 0.01;

/// The most that a byte costs unless large commands have shown more, in nanoseconds: that of 40 MB/s.
const BYTE_USUAL_NS: f64 = 25.0;

/// The most that a byte can cost, as a multiple of the time for a byte in a window of large commands.
const BYTE_SLACK: f64 = 1.1;

/// Least size of every command in a window of large commands. 128 KiB: as long as most devices take.
const LARGE_MIN: u32 = 128 << 10;

/// The commands that finished in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: Instant,
    /// Commands and parts of commands.
    finished: u32,
    /// Commands by [`CommandKind::base`].
    commands: [u32; 4],
    /// Bytes read and written.
    bytes: [u64; 2],
    /// Commands and parts of fewer than [`LARGE_MIN`] bytes.
    small: u32,
    /// Most commands that were in flight at the end of a turn.
    in_flight: u32,
    /// A command finished whose cost the model does not describe.
    other: bool,
}

/// Learns the costs of one device.
#[derive(Clone, Debug)]
pub struct CostLearner {
    model: [f64; UNKNOWNS],
    /// Covariance of the model's errors.
    variance: [[f64; UNKNOWNS]; UNKNOWNS],
    cost: DeviceCost,
    window: Option<Window>,
    /// Most that a byte read or written can cost.
    byte_max: [f64; 2],
    /// Mean of the relative errors of late.
    drift: f64,
    /// Mean square of their distance from it.
    scatter: f64,
    surprises: u32,
    /// Windows in a row whose errors were of one sign; negative if the model expected more.
    one_sided: i32,
    /// Times that the shortest window is doubled.
    doublings: u32,
    /// Windows since the last surprise or halving.
    calm: u32,
    windows: u64,
    /// Random reads in windows so far, at most [`READS_TELL`].
    reads: u32,
}

impl Default for CostLearner {
    fn default() -> Self {
        Self::new()
    }
}

impl CostLearner {
    /// Creates a learner that believes the default model.
    #[must_use]
    pub fn new() -> Self {
        let cost = DeviceCost::default();
        let byte = |index: usize| cost.byte[index] as f64 / f64::from(1 << BYTE_BITS);
        let mut model = [0.0; UNKNOWNS];
        for (unknown, base) in model.iter_mut().zip(cost.base_ns) {
            *unknown = f64::from(base);
        }
        (model[4], model[5]) = (byte(0), byte(1));
        let mut learner = Self {
            model,
            variance: [[0.0; UNKNOWNS]; UNKNOWNS],
            cost,
            window: None,
            byte_max: [BYTE_USUAL_NS; 2],
            drift: 0.0,
            scatter: 0.0,
            surprises: 0,
            one_sided: 0,
            doublings: 0,
            calm: 0,
            windows: 0,
            reads: 0,
        };
        learner.doubt_all();
        learner
    }

    /// Returns the present model.
    #[inline]
    #[must_use]
    pub fn cost(&self) -> &DeviceCost {
        &self.cost
    }

    /// Returns the number of windows that were used.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Returns false once random reads have shown that the device moves no head. Writes do not: a cache may have taken them.
    #[must_use]
    pub fn may_seek(&self) -> bool {
        self.seeks() || self.reads < READS_TELL
    }

    /// Returns true while a window is open: finished commands are to be noted.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.window.is_some()
    }

    /// Notes a finished command, or the bytes of a part of one that is not `whole`; `None` for one that the model does not
    /// describe (flush, discard, an error).
    pub fn note(&mut self, kind: Option<CommandKind>, whole: bool, bytes: u32) {
        let Some(window) = &mut self.window else {
            return;
        };
        match kind {
            Some(kind) => {
                window.finished += 1;
                window.small += u32::from(bytes < LARGE_MIN);
                window.commands[kind.base()] += u32::from(whole);
                window.bytes[usize::from(!kind.read)] += u64::from(bytes);
            }
            None => window.other = true,
        }
    }

    /// Ends a turn with `in_flight` commands in the device; `busy` says that others wait for it.
    #[inline]
    pub fn on_turn(&mut self, now: Instant, in_flight: u32, busy: bool) {
        if busy || self.window.is_some() {
            self.turn(now, in_flight, busy);
        }
    }

    fn turn(&mut self, now: Instant, in_flight: u32, busy: bool) {
        let idle = !busy || in_flight == 0;
        match &mut self.window {
            _ if idle => self.window = None,
            None => self.window = Some(Window { since: now, in_flight, ..Window::default() }),
            Some(window) => {
                window.in_flight = window.in_flight.max(in_flight);
                let window = *window;
                let least = WINDOW_MIN_NS << self.doublings;
                if window.is_enough(now, least) {
                    if !window.other {
                        self.learn(&window, now);
                    }
                    self.window = Some(Window { since: now, in_flight, ..Window::default() });
                }
            }
        }
    }

    /// Corrects the model by a window.
    fn learn(&mut self, window: &Window, now: Instant) {
        let took = now.since(window.since) as f64;
        let mut parts = [0.0; UNKNOWNS];
        for (part, commands) in parts.iter_mut().zip(window.commands) {
            *part = f64::from(commands);
        }
        (parts[4], parts[5]) = (window.bytes[0] as f64, window.bytes[1] as f64);
        let expected: f64 =
            parts.iter().zip(&self.model).map(|(part, unknown)| part * unknown).sum();
        let error = took - expected;
        let relative = error / took.max(expected);
        let scatter = if self.seeks() { self.scatter.sqrt() } else { 0.0 };
        self.note_scatter(relative);
        self.windows += 1;
        self.reads = (self.reads + window.commands[RANDOM_READ.base()]).min(READS_TELL);
        self.bound_bytes(window, took);
        self.stretch(relative.abs() > SURPRISE);
        if error.abs() <= NOISE * took {
            (self.surprises, self.one_sided) = (0, 0);
            return;
        }
        let sought = self.seeks();
        let surprise = relative.abs() > SURPRISE.max(SURPRISE_SCATTER * scatter);
        self.surprises = if surprise { self.surprises + 1 } else { 0 };
        let sign = if error > 0.0 { 1 } else { -1 };
        self.one_sided = if self.one_sided * sign > 0 { self.one_sided + sign } else { sign };
        let is_cached = window.bytes[1] > 0 && self.may_seek();
        let biased = is_cached && self.one_sided.unsigned_abs() >= ONE_SIDED;
        if self.surprises == SURPRISES || biased {
            self.doubt(&parts, error.abs());
            (self.surprises, self.one_sided) = (0, 0);
            (self.drift, self.scatter) = (0.0, 0.0);
        }
        self.correct(&parts, error, took.max(expected) * window.noise().max(scatter));
        self.expect_writes_of_a_disk();
        self.bound();
        self.walk();
        if self.seeks() && !sought {
            self.suppose_disk();
        }
        self.publish(&parts);
    }

    /// Counts a relative error: how far errors lie from their mean says how noisy windows are.
    fn note_scatter(&mut self, relative: f64) {
        let off = relative - self.drift;
        self.drift += off * SCATTER_GAIN;
        self.scatter += (off * off - self.scatter) * SCATTER_GAIN;
    }

    /// Gives up what was believed of bytes before the device turned out to seek: then its cache took them.
    fn suppose_disk(&mut self) {
        for byte in &mut self.model[4..] {
            *byte = byte.clamp(BYTE_DISK_NS.0, BYTE_DISK_NS.1);
        }
        self.doubt_all();
    }

    /// Draws the cost of a written byte that is above a disk's back to it, as an equation of little weight.
    fn expect_writes_of_a_disk(&mut self) {
        let over = self.model[5] - BYTE_DISK_NS.1;
        if over > 0.0 && self.may_seek() {
            self.correct(&[0.0, 0.0, 0.0, 0.0, 0.0, 1.0], -over, BYTE_DEVIATION_SEEKS);
        }
    }

    /// Returns true for a device that seems to move a head.
    fn seeks(&self) -> bool {
        self.model[0].max(self.model[2]) >= f64::from(SEEK_NS)
    }

    /// One step of the filter: `parts` of the model should have been `error` more, give or take `noise`.
    fn correct(&mut self, parts: &[f64; UNKNOWNS], error: f64, noise: f64) {
        let mut along = [0.0; UNKNOWNS];
        for (row, along) in self.variance.iter().zip(&mut along) {
            *along = row.iter().zip(parts).map(|(entry, part)| entry * part).sum();
        }
        let seen: f64 = along.iter().zip(parts).map(|(along, part)| along * part).sum();
        let scale = 1.0 / (seen + noise * noise);
        for index in 0..UNKNOWNS {
            self.model[index] += along[index] * scale * error;
            for other in 0..UNKNOWNS {
                self.variance[index][other] -= along[index] * scale * along[other];
            }
        }
    }

    /// Brings the model within its bounds. An unknown at its bound is as good as measured there, so what hangs together with
    /// it moves along.
    fn bound(&mut self) {
        for index in 0..UNKNOWNS {
            let (least, most) = self.bounds(index);
            let unknown = self.model[index];
            let bound = unknown.clamp(least, most);
            if bound != unknown {
                let mut parts = [0.0; UNKNOWNS];
                parts[index] = 1.0;
                self.correct(&parts, bound - unknown, (bound - unknown) / 4.0);
            }
        }
        for index in 0..UNKNOWNS {
            let (least, most) = self.bounds(index);
            self.model[index] = self.model[index].clamp(least, most);
        }
    }

    /// Makes windows longer after a surprise, and shorter after many without.
    fn stretch(&mut self, surprise: bool) {
        self.calm = if surprise { 0 } else { self.calm + 1 };
        if surprise {
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        } else if self.calm == CALM_WINDOWS {
            self.calm = 0;
            self.doublings = self.doublings.saturating_sub(1);
        }
    }

    /// Takes the most that a byte can cost from a window of large commands.
    fn bound_bytes(&mut self, window: &Window, took: f64) {
        let bytes = window.bytes[0] + window.bytes[1];
        if window.small == 0 && bytes > 0 {
            let seen = BYTE_SLACK * took / bytes as f64;
            let most = seen.clamp(BYTE_USUAL_NS, BYTE_NS.1);
            for (index, part) in window.bytes.iter().enumerate() {
                self.byte_max[index] = if *part > 0 { most } else { self.byte_max[index] };
            }
        }
    }

    /// Returns the bounds of an unknown.
    fn bounds(&self, index: usize) -> (f64, f64) {
        if index < 4 { BASE_NS } else { (BYTE_NS.0, self.byte_max[index - 4]) }
    }

    /// Adds what the unknowns may have changed since the last window.
    fn walk(&mut self) {
        for index in 0..UNKNOWNS {
            let walk = WALK * self.model[index];
            let most = self.first_deviation(index);
            let entry = &mut self.variance[index][index];
            if *entry < 0.0 {
                // Rounding has used up the variance: what is left means nothing.
                return self.doubt_all();
            }
            if *entry + walk * walk <= most * most {
                *entry += walk * walk;
            }
        }
    }

    /// Gives up the certainty of the model, so far that it can explain twice the error of this window.
    fn doubt(&mut self, parts: &[f64; UNKNOWNS], error: f64) {
        self.doubt_all();
        let commands = parts[..4].iter().sum::<f64>().max(1.0);
        let bytes = parts[4..].iter().sum::<f64>().max(1.0);
        for index in 0..UNKNOWNS {
            let share = 2.0 * error / if index < 4 { commands } else { bytes };
            let least = self.model[index].max(share);
            let variance = &mut self.variance[index][index];
            *variance = variance.min(least * least);
        }
    }

    /// Gives up all certainty, but not the model.
    fn doubt_all(&mut self) {
        self.variance = [[0.0; UNKNOWNS]; UNKNOWNS];
        for index in 0..UNKNOWNS {
            let deviation = self.first_deviation(index);
            self.variance[index][index] = deviation * deviation;
        }
    }

    /// Returns the standard deviation of an unknown of which only the size is known.
    fn first_deviation(&self, index: usize) -> f64 {
        let unknown = self.model[index];
        match index {
            ..4 => BASE_DEVIATION.max(unknown),
            _ if self.seeks() => BYTE_DEVIATION_SEEKS,
            _ => BYTE_DEVIATION.max(unknown),
        }
    }

    /// Takes the model over into the costs that are charged, if it makes a difference for what the last window consisted of.
    /// Each change of a price lets some requests pass others; on a slow device, whose windows have few commands, small changes
    /// are not worth it.
    fn publish(&mut self, parts: &[f64; UNKNOWNS]) {
        let (mut charged, mut off) = (0.0, 0.0);
        for (index, part) in parts.iter().enumerate() {
            let price = match index {
                ..4 => f64::from(self.cost.base_ns[index]),
                _ => self.cost.byte[index - 4] as f64 / f64::from(1 << BYTE_BITS),
            };
            charged += part * price;
            off += part * (self.model[index] - price).abs();
        }
        if self.seeks() && off <= PRICE_STEP * charged {
            return;
        }
        for (base, unknown) in self.cost.base_ns.iter_mut().zip(self.model) {
            *base = unknown as u32;
        }
        for (byte, unknown) in self.cost.byte.iter_mut().zip(&self.model[4..]) {
            *byte = (unknown * f64::from(1 << BYTE_BITS)) as u64;
        }
    }
}

impl Window {
    /// Returns true if the commands that lie across its ends no longer matter much.
    fn is_enough(&self, now: Instant, least_ns: u64) -> bool {
        let took = now.since(self.since);
        let factor = if took >= WINDOW_LONG_NS { 2 } else { 4 };
        let whole = self.commands.iter().sum::<u32>();
        took >= least_ns && whole >= COMMANDS_MIN && self.finished >= factor * self.in_flight
    }

    /// Returns the relative noise of its time: what lies across its ends, and the device's own variation.
    fn noise(&self) -> f64 {
        0.05 + 0.3 * f64::from(self.in_flight) / f64::from(self.finished.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use crate::time::SEC;

    /// The time of a command of a kind and length.
    type Truth<'a> = &'a dyn Fn(CommandKind, u32) -> u64;

    const READ: CommandKind = CommandKind { read: true, sequential: false };
    const WRITE: CommandKind = CommandKind { read: false, sequential: false };

    /// A busy device that serves one command at a time, `in_flight` waiting; costs by `truth`.
    fn run(
        learner: &mut CostLearner,
        now: &mut u64,
        mix: &mut dyn FnMut() -> (CommandKind, u32),
        truth: Truth<'_>,
        commands: u32,
    ) {
        for _ in 0..commands {
            let (kind, bytes) = mix();
            *now += truth(kind, bytes);
            learner.note(Some(kind), true, bytes);
            learner.on_turn(Instant(*now), 2, true);
        }
    }

    fn off(learner: &CostLearner, kind: CommandKind, bytes: u32, truth: u64) -> f64 {
        (learner.cost().of(kind, 1, bytes) as f64 / truth as f64 - 1.0).abs()
    }

    #[test]
    fn learns_disk_flash_and_delay_from_mixed_loads() {
        let disk = |_: CommandKind, bytes: u32| 5_000_000 + u64::from(bytes) * 10;
        let flash = |_: CommandKind, bytes: u32| 2_100 + u64::from(bytes) * 36 / 100;
        let delay = |_: CommandKind, _: u32| 5_000_000;
        // Large requests are so frequent that both sizes take about as much time.
        let truths: [(Truth<'_>, u64); 3] = [(&disk, 4), (&flash, 100), (&delay, 2)];
        for (truth, one_in) in truths {
            let mut learner = CostLearner::new();
            let (mut prng, mut now) = (Prng::new(1), 0);
            let mut mix = || {
                let kind = if one_in < 100 && prng.below(3) == 0 { WRITE } else { READ };
                (kind, if prng.below(one_in) == 0 { 1 << 20 } else { 4096 })
            };
            run(&mut learner, &mut now, &mut mix, truth, 20_000);
            let kinds = if one_in < 100 { &[READ, WRITE][..] } else { &[READ] };
            for (&kind, bytes) in kinds.iter().flat_map(|kind| [(kind, 4096), (kind, 1 << 20)]) {
                let off = off(&learner, kind, bytes, truth(kind, bytes));
                assert!(off < 0.15, "{kind:?} {bytes}: off by {off}, {:?}", learner.cost());
            }
        }
    }

    #[test]
    fn drive_that_acknowledges_from_cache_is_learned_from_scattered_windows() {
        let disk = |bytes: u32| 5_000_000 + u64::from(bytes) * 10;
        let mut learner = CostLearner::new();
        let (mut prng, mut now) = (Prng::new(4), 0);
        // Work acknowledged and not done: taken at once up to 2 s, then no more until 1 s is left.
        let mut owed = 0;
        for _ in 0..20_000 {
            let bytes = if prng.below(10) == 0 { 1 << 20 } else { 4096 };
            if owed > 2 * SEC {
                (now, owed) = (now + owed - SEC, SEC);
            }
            let took = 36_000 + u64::from(bytes) * 3;
            (now, owed) = (now + took, owed.saturating_sub(took) + disk(bytes));
            learner.note(Some(WRITE), true, bytes);
            learner.on_turn(Instant(now), 2, true);
        }
        for bytes in [4096, 1 << 20] {
            let off = off(&learner, WRITE, bytes, disk(bytes));
            assert!(off < 0.4, "{bytes}: off by {off}, {:?}", learner.cost());
        }
    }

    /// Four writes again and again, one of them of 1 MiB: no window tells their costs apart.
    fn steady_mix() -> impl FnMut() -> (CommandKind, u32) {
        let mut number = 0;
        move || {
            number += 1;
            (WRITE, if number % 4 == 0 { 1 << 20 } else { 4096 })
        }
    }

    #[test]
    fn errors_of_one_sign_are_unlearned_though_none_is_a_surprise() {
        let mut learner = CostLearner::new();
        (learner.model[2], learner.model[5]) = (BASE_NS.0, BYTE_USUAL_NS);
        learner.variance = [[0.0; UNKNOWNS]; UNKNOWNS];
        let disk = |_: CommandKind, bytes: u32| 5_000_000 + u64::from(bytes) * 10;
        run(&mut learner, &mut 0, &mut steady_mix(), &disk, 1000);
        for bytes in [4096, 1 << 20] {
            let off = off(&learner, WRITE, bytes, disk(WRITE, bytes));
            assert!(off < 0.2, "{bytes}: off by {off}, {:?}", learner.cost());
        }
    }

    #[test]
    fn written_byte_of_a_device_that_may_seek_is_drawn_to_a_disks() {
        let mut learner = CostLearner::new();
        (learner.model[2], learner.model[5]) = (200_000.0, 20.0);
        let mut prng = Prng::new(6);
        let truth = |_: CommandKind, bytes: u32| 200_000 + u64::from(bytes) * 20;
        let mut mix = steady_mix();
        let mut now = 0;
        for _ in 0..3000 {
            let part = 80 + prng.below(40);
            run(
                &mut learner,
                &mut now,
                &mut mix,
                &|kind, bytes| truth(kind, bytes) * part / 100,
                8,
            );
        }
        assert!(learner.cost().byte_ps()[1] < 12_000, "{:?}", learner.cost());
    }

    #[test]
    fn parts_of_an_unfinished_command_teach_nothing() {
        let mut learner = CostLearner::new();
        for n in 0..1000 {
            learner.note(Some(WRITE), false, 16 << 10);
            learner.on_turn(Instant(n * 18 * MS), 1, true);
        }
        assert_eq!((learner.windows(), *learner.cost()), (0, DeviceCost::default()));
    }

    #[test]
    fn first_window_scales_the_model_to_the_device() {
        let mut learner = CostLearner::new();
        let mut now = 0;
        run(&mut learner, &mut now, &mut || (WRITE, 4096), &|_, _| 5_000_000, 10);
        assert!(off(&learner, WRITE, 4096, 5_000_000) < 0.05, "{:?}", learner.cost());
    }

    #[test]
    fn only_random_reads_show_that_a_device_does_not_seek() {
        let mut learner = CostLearner::new();
        let (mut prng, mut now) = (Prng::new(5), 0);
        run(&mut learner, &mut now, &mut || (WRITE, 4096), &|_, _| 58_000, 5000);
        assert!(learner.windows() > 0 && learner.may_seek(), "a cache may have taken them");
        let stream = CommandKind { sequential: true, ..READ };
        run(&mut learner, &mut now, &mut || (stream, 4096), &|_, _| 40_000, 5000);
        assert!(learner.may_seek(), "the head need not move for a stream");
        let mut mix = || (if prng.below(20) == 0 { READ } else { WRITE }, 4096);
        run(&mut learner, &mut now, &mut mix, &|_, _| 58_000, 5000);
        assert!(!learner.may_seek());
        run(&mut learner, &mut now, &mut mix, &|_, _| 5_000_000, 2000);
        assert!(learner.may_seek(), "{:?}", learner.cost());
    }

    #[test]
    fn changed_device_is_learned_anew() {
        let mut learner = CostLearner::new();
        let (mut prng, mut now) = (Prng::new(2), 0);
        let mut mix = || (READ, if prng.below(2) == 0 { 65_536 } else { 4096 });
        run(&mut learner, &mut now, &mut mix, &|_, bytes| 10_000 + u64::from(bytes), 50_000);
        assert!(off(&learner, READ, 4096, 14_096) < 0.1, "{:?}", learner.cost());
        let slow = |_: CommandKind, bytes: u32| 200_000 + 10 * u64::from(bytes);
        run(&mut learner, &mut now, &mut mix, &slow, 1000);
        assert!(off(&learner, READ, 4096, 240_960) < 0.15, "{:?}", learner.cost());
        assert!(off(&learner, READ, 65_536, 855_360) < 0.15, "{:?}", learner.cost());
    }

    #[test]
    fn device_that_is_not_busy_teaches_nothing() {
        let mut learner = CostLearner::new();
        for n in 0..1000 {
            learner.on_turn(Instant(n * MS), 1, n % 4 != 0);
            learner.note(Some(READ), true, 4096);
        }
        assert_eq!((learner.windows(), *learner.cost()), (0, DeviceCost::default()));
    }

    #[test]
    fn costs_stay_within_bounds_whatever_is_seen() {
        let mut prng = Prng::new(3);
        let mut learner = CostLearner::new();
        let mut now = 0;
        for _ in 0..50_000 {
            let bits = prng.below(36);
            now += prng.below(1 << bits);
            let (read, sequential) = (prng.below(2) == 0, prng.below(2) == 0);
            let kind = CommandKind { read, sequential };
            let known = prng.below(500) > 0;
            let bits = prng.below(32);
            learner.note(known.then_some(kind), true, prng.below(1 << bits) as u32);
            learner.on_turn(Instant(now), prng.below(40) as u32, prng.below(200) > 0);
            assert!(learner.model.iter().all(|unknown| unknown.is_finite()));
        }
        let most =
            learner.cost().of(READ, 32, u32::MAX).max(learner.cost().of(WRITE, 32, u32::MAX));
        assert!(learner.windows() > 100 && most < 1 << 53, "{:?}", learner.cost());
    }
}
