//! How long a command takes: nothing, a constant over parallel channels, or a head that seeks.
//!
//! Whole nanoseconds throughout. The seek disk is the simplest that punishes distance: seek = a + b * sqrt(d), then the wait
//! for the sector to come round, then the transfer; commands one after another. See docs for the calibrated models.

use headworks_core::{Instant, prng::Prng};

/// Which device, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyModel {
    /// Answers within the call that submits.
    Immediate,
    /// Every command takes `latency_ns` and up to `jitter_ns` more, `channels` at a time; so answers change their order.
    Constant {
        /// The least.
        latency_ns: u64,
        /// What chance adds at most.
        jitter_ns: u64,
        /// How many at a time, 1..=64.
        channels: u8,
    },
    /// One head over spinning platters.
    Seek {
        /// The shortest seek.
        settle_ns: u64,
        /// Nanoseconds per square root of the distance in sectors.
        stroke_ns: u64,
        /// One turn of the platter.
        turn_ns: u64,
        /// Sectors that pass the head in a turn.
        track_sectors: u64,
    },
}

/// A device's clockwork.
#[derive(Debug)]
pub struct Timing {
    model: LatencyModel,
    /// When each channel (or the head) falls free.
    free_at: [u64; 64],
    head_sector: u64,
}

impl Timing {
    /// Idle, at sector 0.
    #[must_use]
    pub fn new(model: LatencyModel) -> Self {
        Self { model, free_at: [0; 64], head_sector: 0 }
    }

    /// When a command on `sectors` sectors from `sector` (of the whole device), submitted now, ends.
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
                // Where the platter is when the head has arrived, and how far the sector still has to come.
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

    /// The power failed: nothing is under way.
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
    fn a_sequential_stream_pays_transfer_only() {
        let (mut timing, mut prng) = (Timing::new(DISK), Prng::new(1));
        let first = timing.finish(Instant(0), 0, 100, &mut prng);
        let second = timing.finish(Instant(0), 100, 100, &mut prng);
        assert_eq!(second.since(first), 100 * (8_333_000 / 2_000));
    }

    #[test]
    fn distance_costs_its_square_root_and_at_most_a_turn_more() {
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
    fn channels_work_side_by_side() {
        let model = LatencyModel::Constant { latency_ns: 100, jitter_ns: 0, channels: 2 };
        let (mut timing, mut prng) = (Timing::new(model), Prng::new(1));
        let ends: Vec<_> = (0..5).map(|_| timing.finish(Instant(0), 0, 1, &mut prng).0).collect();
        assert_eq!(ends, [100, 100, 200, 200, 300]);
    }
}
