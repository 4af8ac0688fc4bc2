//! A virtual disk of a host that works for others, too.
//!
//! ```text
//!   submit -> pipe (bytes in the order of arrival, at a bandwidth that varies) -> latency (any number at once) -> done
//! ```
//!
//! The bandwidth is constant for [`VirtualDiskProfile::step_ns`]; each step is drawn around a level, and the level is drawn anew
//! every [`STEPS_OF_LEVEL`] steps. So the throughput scatters within milliseconds, and its mean differs from one tenth of a second
//! to the next. The profile has the figures of a cloud machine's disk. Invariant: a command leaves the pipe after all that came
//! before it.

use headworks_core::Instant;
use headworks_core::prng::Prng;

use crate::device_model::{DeviceModel, ModelCommand, transfer_ns};
use crate::events::EventQueue;

/// Steps of the bandwidth around one level.
const STEPS_OF_LEVEL: u64 = 50;

/// Parameters of a virtual disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualDiskProfile {
    /// Capacity of the disk in bytes.
    pub capacity: u64,
    /// Mean bandwidth of the pipe.
    pub bytes_per_second: u64,
    /// Time of a command in the pipe beside its bytes.
    pub command_ns: u64,
    /// Shortest time from the pipe to the completion.
    pub latency_ns: u64,
    /// Time by which each half of the remaining commands is later than the other half.
    pub tail_ns: u64,
    /// Time with a constant bandwidth.
    pub step_ns: u64,
    /// Largest deviation of a step from its level, in thousandths.
    pub step_deviation: u64,
    /// Largest deviation of a level from the mean, in thousandths.
    pub level_deviation: u64,
}

impl VirtualDiskProfile {
    /// A disk of a cloud machine: 2.4 GB/s, 4 KiB in 70 us, 99 of 100 within 120 us; the throughput scatters by a quarter.
    #[must_use]
    pub const fn cloud() -> Self {
        Self {
            capacity: 250_000_000_000,
            bytes_per_second: 2_400_000_000,
            command_ns: 2_000,
            latency_ns: 60_000,
            tail_ns: 8_000,
            step_ns: 2_000_000,
            step_deviation: 250,
            level_deviation: 150,
        }
    }
}

/// A virtual disk whose bandwidth varies.
#[derive(Debug)]
pub struct VirtualDisk {
    profile: VirtualDiskProfile,
    prng: Prng,
    /// When the pipe has transferred all that was submitted.
    free_at: Instant,
    /// The end of the present step, and its bandwidth.
    step_end: Instant,
    bandwidth: u64,
    /// The level of the steps, in thousandths of the mean, and the number of steps so far.
    level: u64,
    steps: u64,
    events: EventQueue<u64>,
}

impl VirtualDisk {
    /// An idle disk of this profile whose variation depends on `seed`.
    #[must_use]
    pub fn new(profile: VirtualDiskProfile, seed: u64) -> Self {
        let VirtualDiskProfile { step_deviation, level_deviation, .. } = profile;
        assert!(profile.bytes_per_second > 0 && profile.step_ns > 0, "a disk moves bytes");
        assert!(step_deviation + level_deviation < 1000, "a disk never stands still");
        Self {
            profile,
            prng: Prng::new(seed),
            free_at: Instant(0),
            step_end: Instant(0),
            bandwidth: profile.bytes_per_second,
            level: 1000,
            steps: 0,
            events: EventQueue::with_capacity(256),
        }
    }

    /// Draws thousandths from 1000 - `deviation` to 1000 + `deviation`.
    fn draw(&mut self, deviation: u64) -> u64 {
        1000 - deviation + self.prng.below(2 * deviation + 1)
    }

    /// Begins the steps up to `at`.
    fn step_to(&mut self, at: Instant) {
        while self.step_end <= at {
            if self.steps.is_multiple_of(STEPS_OF_LEVEL) {
                self.level = self.draw(self.profile.level_deviation);
            }
            self.steps += 1;
            let part = self.level + self.draw(self.profile.step_deviation) - 1000;
            self.bandwidth = self.profile.bytes_per_second / 1000 * part;
            self.step_end = self.step_end.after(self.profile.step_ns);
        }
    }

    /// Returns when `len` bytes that enter the pipe at `start` have left it.
    fn transferred(&mut self, start: Instant, len: u32) -> Instant {
        let (mut at, mut left) = (start.after(self.profile.command_ns), u64::from(len));
        loop {
            self.step_to(at);
            let takes = transfer_ns(left, self.bandwidth);
            let rest = self.step_end.since(at);
            if takes <= rest {
                return at.after(takes);
            }
            left -= (self.bandwidth / 1000 * rest / 1_000_000).min(left);
            at = self.step_end;
        }
    }
}

impl DeviceModel for VirtualDisk {
    fn submit(&mut self, now: Instant, order: ModelCommand) {
        self.free_at = self.transferred(self.free_at.max(now), order.len);
        let draws = self.prng.next();
        // The number of zeros is geometric; the other end of the draw spreads it.
        let tail = u64::from(draws.leading_zeros()) * self.profile.tail_ns
            + (draws % 1024) * self.profile.tail_ns / 1024;
        self.events.push(self.free_at.after(self.profile.latency_ns + tail), order.token);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.events.next_at()
    }

    fn on_timeout(&mut self, now: Instant, done: &mut Vec<u64>) {
        while let Some((_, token)) = self.events.pop_due(now) {
            done.push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_model::testing::{drive, random};
    use headworks_core::Op;

    #[test]
    fn throughput_has_its_mean_and_scatters() {
        let profile = VirtualDiskProfile::cloud();
        let mut rates = Vec::new();
        for seed in 0..40 {
            let mut disk = VirtualDisk::new(profile, seed);
            let next = random(Op::Write, 1 << 20, profile.capacity);
            rates.push(drive(&mut disk, 64, (64, 300), next).per_second() * f64::from(1 << 20));
        }
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        assert!((mean / 2.4e9 - 1.0).abs() < 0.05, "{mean}");
        let far = rates.iter().filter(|rate| (*rate / mean - 1.0).abs() > 0.05).count();
        assert!((8..40).contains(&far), "{far} of 40 runs of 0.1 s are off by 5 %");
    }

    #[test]
    fn small_read_waits_for_the_bytes_before_it() {
        let profile = VirtualDiskProfile::cloud();
        let mut disk = VirtualDisk::new(profile, 1);
        let next = random(Op::Read, 4096, profile.capacity);
        let alone = 1e9 / drive(&mut disk, 1, (0, 2000), next).per_second();
        assert!((65_000.0..85_000.0).contains(&alone), "{alone}");
        let start = disk.free_at;
        let write = ModelCommand { token: 0, op: Op::Write, offset: 0, len: 10 << 20 };
        disk.submit(start, write);
        disk.submit(start, ModelCommand { token: 1, op: Op::Read, len: 4096, ..write });
        let waited = disk.free_at.since(start);
        assert!((3_000_000..7_500_000).contains(&waited), "{waited}");
    }
}
