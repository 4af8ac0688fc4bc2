//! Sizes of the simulated volumes: a new one may be drawn when a volume is replaced, and a volume
//! is resized under load.
//!
//! Invariant: disk, oracle, jobs and scenario change the size at once; the volume's home shard
//! learns of it by an input behind the bios submitted earlier. From then on bytes beyond the end
//! may be old or zero (`Oracle::cut_off`), also after the volume grows again.

use headworks_core::{Control, Input, VolumeConfig, VolumeId};

use super::World;
use crate::coverage::Point;
use crate::sector_pattern::SECTOR;

impl World {
    /// Replaces the volume's file by a new one of zeros, or of what its base has.
    pub(super) fn replace(&mut self, volume: VolumeId) {
        let VolumeConfig { device, options, .. } = self.env.scenario.volumes[usize::from(volume.0)];
        let (old, same) = (options.size, self.hotplug.prng.below(2) == 0);
        let size = if same { old } else { self.draw_size(volume) };
        if let Some(disk) = self.disks.get(usize::from(device.0)) {
            let mut disk = disk.lock();
            disk.replace(volume, size);
            if self.env.scenario.base(volume).is_some() {
                disk.preset(volume, |sector| self.env.scenario.initial(volume, sector));
            }
            drop(disk);
            self.env.replace(volume, size);
            self.env.scenario.volumes[usize::from(volume.0)].options.size = size;
            self.env.fit(volume, old, size);
            self.env.coverage.add(Point::ReplacedResized, (size != old).into());
        }
    }

    /// Draws a valid size for a volume.
    fn draw_size(&mut self, volume: VolumeId) -> u64 {
        let options = self.env.scenario.volumes[usize::from(volume.0)].options;
        let most = self.env.scenario.sizes_max[usize::from(volume.0)];
        let prng = &mut self.hotplug.prng;
        let unit = match options.block_size <= SECTOR as u32 && prng.below(2) == 0 {
            true => SECTOR as u64,
            false => 8192,
        };
        match prng.below(4) {
            0 => most,
            _ => prng.between(8192, most) / unit * unit,
        }
    }

    /// Resizes the file and informs the volume's home shard; returns whether it shrank.
    pub(super) fn resize(&mut self, volume: VolumeId, shorter: bool) -> bool {
        let config = self.env.scenario.volumes[usize::from(volume.0)];
        let old = config.options.size;
        let drawn = self.draw_size(volume);
        let size = if shorter { drawn.min(old) } else { drawn.max(old) };
        if size == old {
            return false;
        }
        self.env.coverage.hit(if size < old { Point::Shrunk } else { Point::Grown });
        if let Some(disk) = self.disks.get(usize::from(config.device.0)) {
            disk.lock().resize(volume, size);
        }
        if self.env.resize(volume, size) && size < old {
            self.env.coverage.hit(Point::ShrunkBusy);
        }
        let input = Input::Control(Control::Resize { volume, size });
        self.shards[usize::from(config.home.0)].inbox.push(input);
        size < old
    }
}
