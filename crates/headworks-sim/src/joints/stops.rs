//! Stops at any moment while the device of some volumes does not answer. See `world::stop` for what is demanded.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC};
use headworks_core::{VolumeOptions, WriteMode};

use crate::check::Failure;
use crate::outage;
use crate::scenario::{Scenario, WorldDefect};
use crate::world::{self, Outcome};

/// Most bios of a job before the stop.
const BIOS: u32 = 400;

/// The world of a seed.
#[must_use]
pub fn scenario(seed: u64) -> Scenario {
    let mut prng = Prng::new(seed).split("stops");
    let shards = [1, 2, 4][prng.below(3) as usize];
    let mut scenario = outage::scenario(seed, shards, true, None);
    for (volume, most) in scenario.volumes.iter_mut().zip(&mut scenario.sizes_max) {
        let size = prng.between(16, 400) * 4096;
        let mode = [WriteMode::Writeback, WriteMode::Writeback, WriteMode::Writethrough]
            [prng.below(3) as usize];
        volume.options = VolumeOptions { size, mode, ..volume.options };
        *most = size;
    }
    for job in &mut scenario.jobs {
        job.end = scenario.volumes[usize::from(job.volume.0)].options.size;
        (job.bios, job.think_ns) = (BIOS, prng.below(3) * MS);
        job.depth = prng.between(1, 32) as u16;
        job.sizes = [512, 4096, 8192, 16384];
        (job.block_size, job.any_byte) = (512, true);
    }
    scenario.cache.flush_timeout_ns = [50 * MS, SEC, 60 * SEC][prng.below(3) as usize];
    scenario.rounds = prng.between(1, 3) as u32;
    scenario.ends.cut_after = Some(prng.between(16, 1 << 11));
    scenario.ends.stops = true;
    scenario
}

/// Runs the world of a seed.
///
/// # Errors
/// The violated rule.
pub fn run(seed: u64) -> Result<Outcome, Box<Failure>> {
    world::run(scenario(seed))
}

/// Runs the world of a seed with a defect.
///
/// # Errors
/// The violated rule.
pub fn run_with(seed: u64, defect: WorldDefect) -> Result<Outcome, Box<Failure>> {
    world::run(Scenario { defect, ..scenario(seed) })
}
