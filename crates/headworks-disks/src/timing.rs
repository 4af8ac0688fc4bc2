//! Latency models of the simulated disk: none, constant over parallel channels, or a seeking head.
//!
//! All times are whole nanoseconds. The seek model is the simplest one that punishes distance: seek
//! = a + b * sqrt(d), then the rotational delay, then the transfer; one command at a time. The
//! calibrated models are in `device_model`, `hdd` and `ssd`.

use headworks_core::{Instant, prng::Prng};

/// The latency of commands on a simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyModel {
    /// Completes within the call that submits.
    Immediate,
    /// Every command takes `latency_ns` plus up to `jitter_ns`, `channels` at a time, so
    /// completions are reordered.
    Constant {
        /// Minimum latency in nanoseconds.
        latency_ns: u64,
        /// Maximum random addition in nanoseconds.
        jitter_ns: u64,
        /// Commands served concurrently, 1..=64.
        channels: u8,
    },
    /// One head over a spinning medium.
    Seek {
        /// The shortest seek in nanoseconds.
        settle_ns: u64,
        /// Nanoseconds per square root of the distance in sectors.
        stroke_ns: u64,
        /// Time of one revolution in nanoseconds.
        turn_ns: u64,
        /// Sectors that pass the head in a revolution.
        track_sectors: u64,
    },
}

/// The state of a latency model.
#[derive(Debug)]
pub struct Timing {
    model: LatencyModel,
    /// When each channel (or the head) is free.
    free_at: [u64; 64],
    head_sector: u64,
}

impl Timing {
    /// An idle device, with the head at sector 0.
    #[must_use]
    pub fn new(model: LatencyModel) -> Self {
        Self { model, free_at: [0; 64], head_sector: 0 }
    }

    /// The end time of a command on `sectors` sectors from `sector` of the device, submitted at
    /// `now`.
    pub fn finish(&mut self, now: Instant, sector: u64, sectors: u64, prng: &mut Prng) -> Instant {
        match self.model {
            LatencyModel::Immediate => now,
            LatencyModel::Constant { latency_ns, jitter_ns, channels } => {
                let channels = &mut self.free_at[..usize::from(channels.clamp(1, 64))];
                let channel = channels.iter_mut().min().expect("there is at least one channel");
                *channel = now.0.max(*channel) + latency_ns + prng.below(jitter_ns + 1);
                Instant(*channel)
            }
            LatencyModel::Seek { settle_ns, stroke_ns, turn_ns, track_sectors } => {
                let start = now.0.max(self.free_at[0]);
                let distance = self.head_sector.abs_diff(sector);
                let seek = match distance {
                    0 => 0,
                    _ => settle_ns + stroke_ns * distance.isqrt(),
                };
                let sector_ns = turn_ns / track_sectors;
                // The rotational position when the head has arrived, and the distance to the
                // sector.
                let angle = (start + seek) % turn_ns;
                let target = (sector % track_sectors) * sector_ns;
                let wait = (target + turn_ns - angle) % turn_ns;
                let end = start + seek + wait + sectors * sector_ns;
                self.free_at[0] = end;
                self.head_sector = sector + sectors;
                Instant(end)
            }
        }
    }

    /// Forgets all commands after a power cut.
    pub fn reset(&mut self, now: Instant) {
        self.free_at = [now.0; 64];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: LatencyModel = LatencyModel::Seek {
        settle_ns: 500_000,
        stroke_ns: 1_000,
        turn_ns: 8_333_000,
        track_sectors: 2_000,
    };

    #[test]
    fn sequential_stream_pays_transfer_only() {
        let (mut timing, mut prng) = (Timing::new(DISK), Prng::new(1));
        let first = timing.finish(Instant(0), 0, 100, &mut prng);
        let second = timing.finish(Instant(0), 100, 100, &mut prng);
        assert_eq!(second.since(first), 100 * (8_333_000 / 2_000));
    }

    #[test]
    fn seek_costs_root_of_distance_plus_at_most_one_revolution() {
        let cost = |distance: u64| {
            let (mut timing, mut prng) = (Timing::new(DISK), Prng::new(1));
            timing.finish(Instant(0), distance, 1, &mut prng).0
        };
        for distance in [1u64, 10_000, 1_000_000] {
            let least = 500_000 + 1_000 * distance.isqrt();
            assert!((least..=least + 8_333_000 + 5_000).contains(&cost(distance)));
        }
    }

    #[test]
    fn channels_serve_commands_concurrently() {
        let model = LatencyModel::Constant { latency_ns: 100, jitter_ns: 0, channels: 2 };
        let (mut timing, mut prng) = (Timing::new(model), Prng::new(1));
        let ends: Vec<_> = (0..5).map(|_| timing.finish(Instant(0), 0, 1, &mut prng).0).collect();
        assert_eq!(ends, [100, 100, 200, 200, 300]);
    }
}
