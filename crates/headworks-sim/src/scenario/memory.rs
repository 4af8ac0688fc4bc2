//! Worlds whose caches grow in the memory of a filesystem that others fill and empty: a smaller cache, and neither lost data nor a touch of memory
//! that was not given.

use headworks_core::prng::Prng;
use headworks_core::{CacheOptions, Op, WriteMode};

use super::{Scenario, draw_cached_job, draw_job_of};
use crate::workload::{AccessPattern, JobOptions};

/// The smallest cache whose frames have not all memory from the start.
const UNITS_LEAST: u64 = 4097;
/// Bounds of the size of a volume in blocks of 4 KiB: more than the first frames.
const BLOCKS: (u64, u64) = (1200, 2400);
/// Bytes of the bios that fill the cache.
const FILLING: [u32; 4] = [4096, 65_536, 131_072, 262_144];

impl Scenario {
    /// Draws the world with limited memory of `seed`, with the given number of shards if any.
    #[must_use]
    pub fn draw_memory(seed: u64, shards: Option<u16>) -> Self {
        let mut prng = Prng::new(seed).split("memory");
        let shards = shards.unwrap_or([1, 1, 2][prng.below(3) as usize]);
        let mut scenario = Self::draw_with(seed, Some(shards), true, 0);
        scenario.rounds = prng.between(1, 3) as u32;
        scenario.ends.cut_after = Some(prng.between(1 << 5, 1 << 11));
        scenario.ends.deaths = prng.below(3) > 0;
        scenario.ends.cuts = scenario.ends.deaths && prng.below(2) == 0;
        scenario.cache.dirty_table = true;
        scenario.cache.units = prng.between(UNITS_LEAST, UNITS_LEAST + 1000) as u32;
        scenario.cache.backed = CacheOptions::BACKED_MIN;
        scenario.memory = Some(prng.below(3) * prng.below(3000));
        scenario.option_changes = prng.below(12) as u32;
        scenario.enlarge_volumes(&mut prng.split("volumes"));
        scenario.draw_memory_jobs(&mut prng.split("jobs"));
        scenario
    }

    fn enlarge_volumes(&mut self, prng: &mut Prng) {
        self.volumes.truncate(2);
        self.sizes_max.truncate(2);
        for (volume, most) in self.volumes.iter_mut().zip(&mut self.sizes_max) {
            let options = &mut volume.options;
            options.size = prng.between(BLOCKS.0, BLOCKS.1) * 4096;
            options.read_only = false;
            if options.mode == WriteMode::None {
                options.mode = WriteMode::Writeback;
            }
            *most = options.size;
        }
        self.devices.iter_mut().for_each(|device| device.faults.bad = None);
    }

    /// Draws the jobs anew: for each volume one that fills the cache, and another.
    fn draw_memory_jobs(&mut self, prng: &mut Prng) {
        self.jobs.clear();
        for volume in 0..self.volumes.len() {
            let mut other = draw_job_of(prng, &self.volumes, volume);
            draw_cached_job(prng, self.seed, &self.volumes, &mut other);
            let mut weights = [0; Op::COUNT];
            (weights[Op::Read as usize], weights[Op::Write as usize]) = (prng.below(40) as u32, 40);
            (weights[Op::Discard as usize], weights[Op::Prefetch as usize]) = (1, 5);
            let filling = JobOptions {
                start: 0,
                end: self.volumes[volume].options.size,
                depth: prng.between(1, 8) as u16,
                bios: prng.between(50, 200) as u32,
                weights,
                sizes: FILLING,
                pattern: AccessPattern::Sequential,
                direct: 0,
                ..other
            };
            other.bios = other.bios.min(200);
            self.jobs.extend([filling, other]);
        }
        let depth: u32 = self.jobs.iter().map(|job| u32::from(job.depth)).sum();
        self.bios_max = if self.tight { (depth / 3).max(2) } else { depth.max(32) + 8 };
    }
}
