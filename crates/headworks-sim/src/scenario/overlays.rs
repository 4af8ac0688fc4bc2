//! Worlds whose first device has overlays: each on a base with sectors of its own from the start, in one to three layers, with
//! snapshots between. Ends of the process are drawn: power cuts, deaths with the memory kept, and both, also one soon after the other.

use headworks_core::prng::Prng;
use headworks_core::{DeviceId, VolumeId};

use super::{Scenario, draw_cached_job, draw_job_of};
use crate::disk::{LAYERS_MAX, OverlaidVolume};

/// Most bios of a connection: a world has several rounds.
const BIOS_MAX: u32 = 300;
/// Largest volume in blocks, so that first writes are many.
const BLOCKS_MAX: u64 = 300;
/// Unit of the data of an overlay.
const BLOCK: u64 = 4096;

/// An overlay of a simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayScenario {
    /// The volume, its size and its base's.
    pub volume: OverlaidVolume,
    /// Layers at the start.
    pub layers: u8,
}

impl Scenario {
    /// Draws the world with overlays of `seed`, with the given number of shards if any.
    #[must_use]
    pub fn draw_overlays(seed: u64, shards: Option<u16>) -> Self {
        let mut prng = Prng::new(seed).split("overlays");
        let mut scenario = Self::draw_with(seed, shards, true, 0);
        scenario.rounds = prng.between(3, 8) as u32;
        scenario.ends.cut_after = Some(prng.between(1 << 6, 1 << 13));
        (scenario.ends.deaths, scenario.ends.cuts) =
            [(false, true), (true, false), (true, true), (true, true)][prng.below(4) as usize];
        scenario.cache.dirty_table = scenario.ends.deaths;
        scenario.lay_overlays(&mut prng);
        scenario.draw_overlay_jobs(&mut prng.split("jobs"));
        scenario.draw_upgrades();
        scenario
    }

    /// Makes the first device, on which all volumes are, one of overlays.
    fn lay_overlays(&mut self, prng: &mut Prng) {
        let device = DeviceId(0);
        let queue = &mut self.devices[0].config.queue;
        // The kernel's page cache is volatile, and the unit of everything is a block.
        queue.write_cache = true;
        queue.discard_granularity = queue.discard_granularity.max(BLOCK as u32);
        self.devices[0].faults.bad = None;
        for (index, volume) in self.volumes.iter_mut().enumerate() {
            volume.device = device;
            let options = &mut volume.options;
            options.size = (options.size / BLOCK).clamp(1, BLOCKS_MAX) * BLOCK;
            (options.block_size, options.read_only) = (BLOCK as u32, false);
            let missing = prng.below(3) * prng.below(options.size / BLOCK) * BLOCK;
            let base_size = options.size.saturating_sub(missing).max(BLOCK);
            let volume =
                OverlaidVolume { volume: VolumeId(index as u16), size: options.size, base_size };
            self.sizes_max[index] = options.size;
            let layers = 1 + prng.below(u64::from(LAYERS_MAX) - 1) as u8;
            self.overlays.push(OverlayScenario { volume, layers });
        }
    }

    /// Draws the jobs anew: one for each volume, and some more.
    fn draw_overlay_jobs(&mut self, prng: &mut Prng) {
        let volumes = self.volumes.len();
        let more = prng.between(1, 3) as usize;
        let more = (0..more).map(|_| prng.below(volumes as u64) as usize).collect::<Vec<_>>();
        self.jobs.clear();
        for volume in (0..volumes).chain(more) {
            let mut job = draw_job_of(prng, &self.volumes, volume);
            draw_cached_job(prng, self.seed, &self.volumes, &mut job);
            job.bios = job.bios.min(BIOS_MAX);
            self.jobs.push(job);
        }
        let depth: u32 = self.jobs.iter().map(|job| u32::from(job.depth)).sum();
        self.bios_max = if self.tight { (depth / 3).max(2) } else { depth.max(32) + 8 };
    }

    /// Bytes of the base of a volume that is an overlay.
    pub(super) fn overlay_base_size(&self, volume: VolumeId) -> Option<u64> {
        let mut overlays = self.overlays.iter().map(|overlay| overlay.volume);
        overlays.find(|overlay| overlay.volume == volume).map(|overlay| overlay.base_size)
    }

    /// Whether a volume is an overlay.
    #[must_use]
    pub fn is_overlaid(&self, volume: VolumeId) -> bool {
        self.overlay_base_size(volume).is_some()
    }

    /// The overlays of a device.
    #[must_use]
    pub fn overlays_of(&self, device: DeviceId) -> Vec<OverlaidVolume> {
        let of = |overlay: &&OverlayScenario| {
            self.volumes[usize::from(overlay.volume.volume.0)].device == device
        };
        self.overlays.iter().filter(of).map(|overlay| overlay.volume).collect()
    }
}
