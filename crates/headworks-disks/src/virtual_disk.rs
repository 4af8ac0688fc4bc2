//! A virtual disk of a host that works for others, too.
//!
//! ```text
//!   submit -> tokens, if commands are counted -> pipe (bytes in the order of arrival, at a bandwidth that varies) -> latency (any number at once) -> done
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
use crate::token_bucket::{IopsBudget, TokenBucket};

/// Steps of the bandwidth around one level.
const STEPS_OF_LEVEL: u64 = 50;

/// Most steps that are drawn for a disk that was idle: 100,000 take about a millisecond.
const IDLE_STEPS_MAX: u64 = 100_000;

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
    /// Whether budget and bandwidth follow from the capacity, as those of gp2 do.
    pub by_size: bool,
    /// Commands in a second that are paid for.
    pub budget: IopsBudget,
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
            by_size: false,
            budget: IopsBudget::NONE,
        }
    }

    /// A gp2 volume of AWS as its documentation describes it: 3 commands a second for each GiB, 100 to 16,000; bursts of 3000 from 5.4
    /// million credits; 250 MiB/s, 128 up to 170 GiB. Latencies are those of [`VirtualDiskProfile::cloud`].
    #[must_use]
    pub const fn gp2(capacity: u64) -> Self {
        let gib = capacity.div_ceil(1 << 30);
        let iops = match 3 * gib {
            0..100 => 100,
            iops @ 100..16_000 => iops,
            _ => 16_000,
        };
        let burst_iops = if iops < 3_000 { 3_000 } else { iops };
        let mib_per_second = if gib <= 170 { 128 } else { 250 };
        Self {
            capacity,
            bytes_per_second: mib_per_second << 20,
            step_deviation: 0,
            level_deviation: 0,
            by_size: true,
            budget: IopsBudget {
                iops,
                burst_iops,
                credits: 5_400_000,
                credits_max: 5_400_000,
                unit_bytes: 256 << 10,
            },
            ..Self::cloud()
        }
    }

    /// A gp3 volume of AWS as its documentation describes it, without more than the base price: 3000 commands a second and 125 MiB/s.
    #[must_use]
    pub const fn gp3() -> Self {
        Self {
            capacity: 100 << 30,
            bytes_per_second: 125 << 20,
            step_deviation: 0,
            level_deviation: 0,
            budget: IopsBudget {
                iops: 3_000,
                burst_iops: 3_000,
                credits: 0,
                credits_max: 0,
                unit_bytes: 256 << 10,
            },
            ..Self::cloud()
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
    bucket: Option<TokenBucket>,
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
            bucket: TokenBucket::new(profile.budget),
            events: EventQueue::with_capacity(256),
        }
    }

    /// Draws thousandths from 1000 - `deviation` to 1000 + `deviation`.
    fn draw(&mut self, deviation: u64) -> u64 {
        1000 - deviation + self.prng.below(2 * deviation + 1)
    }

    /// Begins the steps up to `at`.
    fn step_to(&mut self, at: Instant) {
        // A disk that was idle for an hour does not make up for all steps of it at once.
        let steps = at.since(self.step_end) / self.profile.step_ns;
        if steps > IDLE_STEPS_MAX {
            let skipped = steps - steps % STEPS_OF_LEVEL - STEPS_OF_LEVEL;
            self.step_end = self.step_end.after(skipped * self.profile.step_ns);
        }
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
        let granted = match &mut self.bucket {
            Some(bucket) => bucket.take(now, order.len.into()),
            None => now,
        };
        self.free_at = self.transferred(self.free_at.max(granted), order.len);
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
