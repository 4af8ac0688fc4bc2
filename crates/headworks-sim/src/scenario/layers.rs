//! Worlds with volumes on a base: a read-only cached volume with sectors of its own from the start, and up to four cached volumes
//! of any size on it, on the same shard and device. In some of them one of these is read-only and the base of the others.
//!
//! Blocks of the base, of 4 KiB, are zeros or its own; those of a volume on it are the base's, or its own. Both are drawn by the
//! place alone ([`Scenario::initial`]), so disks, oracle and a replaced volume agree.

use headworks_core::cache::folio::BLOCK;
use headworks_core::prng::Prng;
use headworks_core::{DeviceId, VolumeConfig, VolumeId, WriteMode};

use super::{
    HOTPLUGGED_BIOS, Scenario, draw_cached_job, draw_cached_volume, draw_hotplug_changes,
    draw_job_of, draw_volume,
};
use crate::sector_pattern::{self, SECTOR};

/// Most volumes on a base that are there from the start.
const TOPS_MAX: u64 = 4;
/// Most bios of a connection: every volume has one at least.
const BIOS_MAX: u32 = 400;

/// A volume on a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerScenario {
    /// The volume on top.
    pub volume: VolumeId,
    /// The volume below, which has no base or another one.
    pub base: VolumeId,
}

impl Scenario {
    /// Draws the world with volumes on a base of `seed`, with the given number of shards if any: with power cuts, process deaths,
    /// hot-plug and upgrades as other worlds.
    #[must_use]
    pub fn draw_layers(seed: u64, shards: Option<u16>) -> Self {
        let mut prng = Prng::new(seed).split("layers");
        let changes = draw_hotplug_changes(&mut prng);
        let mut scenario = Self::draw_with(seed, shards, true, changes);
        match prng.below(4) {
            0 => {
                scenario.rounds = prng.between(3, 8) as u32;
                scenario.ends.cut_after = Some(prng.between(1 << 6, 1 << 14));
            }
            1 => {
                scenario.rounds = prng.between(3, 8) as u32;
                scenario.ends.cut_after = Some(prng.between(1 << 6, 1 << 14));
                scenario.cache.dirty_table = true;
                scenario.ends.deaths = true;
            }
            _ => {}
        }
        scenario.stack_volumes(&mut prng);
        scenario.draw_layer_jobs(&mut prng.split("jobs"));
        scenario.draw_upgrades();
        scenario
    }

    /// Makes the first volume a base, and others volumes on it.
    fn stack_volumes(&mut self, prng: &mut Prng) {
        let place = self.volumes[0];
        let (_, mut permanent) = self.permanent();
        let chain = prng.below(3) == 0;
        if self.hotplug.changes == 0 {
            let wanted = 1 + usize::from(chain) + prng.between(1, TOPS_MAX) as usize;
            permanent = permanent.max(wanted);
            self.volumes.resize(permanent, place);
            self.sizes_max.resize(permanent, 0);
        }
        let mut below = VolumeId(0);
        self.volumes[0] = self.draw_layer(prng, place);
        self.volumes[0].options.read_only = true;
        self.sizes_max[0] = self.volumes[0].options.size;
        for index in 1..self.volumes.len() {
            let volume = VolumeId(index as u16);
            let is_middle = index == 1 && chain && permanent > 2;
            // Some volumes have no base.
            if self.sizes_max[index] > 0 && index > 2 && prng.below(4) == 0 {
                continue;
            }
            let mut config = self.draw_layer(prng, place);
            config.options.read_only = is_middle;
            let options = &mut config.options;
            if prng.below(3) == 0 {
                let base = &self.volumes[usize::from(below.0)].options;
                (options.size, options.block_size) = (base.size, base.block_size);
            }
            self.sizes_max[index] = match self.hotplug.changes {
                0 => options.size,
                _ if is_middle => options.size,
                _ => options.size + prng.below(3) * prng.below(64) * u64::from(BLOCK),
            };
            self.volumes[index] = config;
            // On the lowest base, or on the one in between.
            let base = if prng.below(3) == 0 { VolumeId(0) } else { below };
            self.layers.push(LayerScenario { volume, base });
            if is_middle {
                below = volume;
            }
        }
    }

    /// Draws a cached volume at the place of another.
    fn draw_layer(&self, prng: &mut Prng, place: VolumeConfig) -> VolumeConfig {
        let mut volume = draw_volume(prng, self.shards, &self.devices, DeviceId(place.device.0));
        volume.home = place.home;
        draw_cached_volume(prng, &mut volume);
        if volume.options.mode == WriteMode::None {
            volume.options.mode = WriteMode::Writeback;
        }
        volume
    }

    /// Draws the jobs anew: one for each volume on a base, some more, and those of hot-plugged volumes.
    fn draw_layer_jobs(&mut self, prng: &mut Prng) {
        let (_, permanent) = self.permanent();
        let more = prng.between(1, 4) as usize;
        let more = (0..more).map(|_| prng.below(permanent as u64) as usize).collect::<Vec<_>>();
        let every = 1..self.volumes.len();
        self.jobs.clear();
        for volume in every.chain(more) {
            let mut job = draw_job_of(prng, &self.volumes, volume);
            draw_cached_job(prng, self.seed, &self.volumes, &mut job);
            job.bios = job.bios.min(if volume < permanent { BIOS_MAX } else { HOTPLUGGED_BIOS });
            self.jobs.push(job);
        }
        let depth: u32 = self.jobs.iter().map(|job| u32::from(job.depth)).sum();
        self.bios_max = if self.tight { (depth / 3).max(2) } else { depth.max(32) + 8 };
    }

    /// The base of a volume, if it is on one.
    #[must_use]
    pub fn base(&self, volume: VolumeId) -> Option<VolumeId> {
        self.layers.iter().find(|layer| layer.volume == volume).map(|layer| layer.base)
    }

    /// Whether a volume is a base.
    #[must_use]
    pub fn has_layers(&self, volume: VolumeId) -> bool {
        self.layers.iter().any(|layer| layer.base == volume)
    }

    /// Whether `base` is below `volume`, with or without others in between.
    #[must_use]
    pub fn is_below(&self, base: VolumeId, volume: VolumeId) -> bool {
        std::iter::successors(self.base(volume), |&below| self.base(below)).any(|it| it == base)
    }

    /// The volumes with contents from the start: bases, volumes on them, and overlays.
    pub fn layered(&self) -> impl Iterator<Item = VolumeId> {
        let volumes = (0..self.volumes.len() as u16).map(VolumeId);
        volumes.filter(|&volume| {
            self.base(volume).is_some()
                || self.has_layers(volume)
                || self.overlay_base_size(volume).is_some()
        })
    }

    /// The version of a sector of a base, or of a volume on one, before it is written.
    #[must_use]
    pub fn initial(&self, volume: VolumeId, sector: u64) -> u64 {
        let block = sector * SECTOR as u64 / u64::from(BLOCK);
        let drawn = Prng::new(self.seed ^ u64::from(volume.0) << 48 ^ block).split("base").next();
        let own = sector_pattern::initial(volume.0);
        let Some(base) = self.base(volume) else {
            let base_size = self.overlay_base_size(volume).unwrap_or(u64::MAX);
            if sector * SECTOR as u64 >= base_size {
                return 0;
            }
            return if drawn.is_multiple_of(4) { 0 } else { own };
        };
        let below = &self.volumes[usize::from(base.0)].options;
        match (drawn.is_multiple_of(16), sector * (SECTOR as u64) < below.size) {
            (true, _) => own,
            (false, true) => self.initial(base, sector),
            (false, false) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::ShardId;

    use super::*;

    #[test]
    fn every_seed_draws_volumes_on_a_base() {
        let mut seen = [0; 4];
        for seed in 0..500 {
            let scenario = Scenario::draw_layers(seed, None);
            assert!(!scenario.layers.is_empty());
            for shard in 0..scenario.shards {
                let config = scenario.shard_config(ShardId(shard));
                assert_eq!(config.validate(), Ok(()), "seed {seed}");
            }
            for &LayerScenario { volume, base } in &scenario.layers {
                let of = |volume: VolumeId| scenario.volumes[usize::from(volume.0)];
                let (top, below) = (of(volume), of(base));
                assert_eq!((top.home, top.device), (below.home, below.device));
                assert!(below.options.read_only && usize::from(base.0) < scenario.permanent().1);
                assert!(scenario.is_cached(volume) && scenario.is_cached(base));
                seen[top.options.size.cmp(&below.options.size) as usize & 3] += 1;
                seen[2] += usize::from(base.0 > 0);
            }
        }
        assert!(
            seen.iter().all(|&count| count > 20),
            "smaller, equal, larger, in a chain: {seen:?}"
        );
    }
}
