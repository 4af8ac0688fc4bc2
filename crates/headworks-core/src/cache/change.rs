//! Devices and volumes that join and leave a cache.
//!
//! Tables by volume and by device reach to the last place that was ever used, so that spare places cost nothing. A place that is
//! vacant has no folio, no operation and no list that leads to it; whoever takes it finds it as new.

use crate::bio::{DeviceId, VolumeId};
use crate::cache::device_io::{filling_most, fills, write_outs};
use crate::cache::dirty::flusher::Flusher;
use crate::cache::pool::folio::Folio;
use crate::cache::volumes::volume::CachedVolume;
use crate::cache::{Cache, DeviceCaching};
use crate::list::Fifo;
use crate::options::{CacheOptions, VolumeConfig};
use crate::slab::NIL;

/// Folios that are forgotten in one turn: 2 ms. Half a second goes by where millions are, and nobody else would be served.
const FORGET_MAX: u32 = 8192;
/// Units that are looked at for them.
const LOOK_MAX: u32 = 1 << 17;

impl Cache {
    /// A device takes a vacant place.
    pub fn add_device(&mut self, device: DeviceId, caching: DeviceCaching) {
        let index = usize::from(device.0);
        let CacheOptions { units, account, .. } = self.options;
        for _ in self.devices.len()..=index {
            self.devices.push(caching);
            self.flushers.push(Flusher::new(units, account));
            self.lines.credit.push(Fifo::new());
            self.lines.bios.extend([Fifo::new(), Fifo::new()]);
            self.lines.refused.push(false);
        }
        self.devices[index] = caching;
        self.throttle.set_device(device, true);
        self.set_accounts(index, true);
        self.ask_again();
    }

    /// A device without volumes leaves.
    pub fn remove_device(&mut self, device: DeviceId) {
        let index = usize::from(device.0);
        assert!(self.lines.credit[index].head().is_none(), "nobody waits for it");
        self.flushers[index] = Flusher::new(self.options.units, self.options.account);
        self.lines.refused[index] = false;
        self.throttle.set_device(device, false);
        self.set_accounts(index, false);
        self.ask_again();
    }

    /// A device's fills and write-outs have their floors, or have none any longer.
    fn set_accounts(&mut self, device: usize, present: bool) {
        for account in [fills(device), write_outs(device)] {
            assert!(self.lines.bios[account].head().is_none(), "nobody waits for it");
            self.bios.set_present(account, present);
        }
        self.bios.set_limit(self.options.bios());
        self.filling.set_present(device, present);
        let most = filling_most(self.options.units, self.filling.devices());
        self.filling.set_limit(most);
    }

    /// A volume takes a vacant place.
    pub fn add_volume(&mut self, volume: VolumeId, config: &VolumeConfig) {
        let index = usize::from(volume.0);
        for _ in self.volumes.len()..=index {
            self.volumes.push(CachedVolume::vacant());
        }
        self.volumes[index].replace(CachedVolume::new(config));
    }

    /// Why a volume cannot leave yet, beside bios that are on their way to or from a device.
    pub fn keeps(&self, volume: VolumeId) -> Option<&'static str> {
        let entry = &self.volumes[usize::from(volume.0)];
        if entry.held > 0 {
            return Some("blocks of the volume could not be written and are held");
        }
        if entry.unclean > 0 {
            return Some("the volume has dirty data");
        }
        let ops = 0..self.ops.capacity();
        let waits = ops
            .filter(|&slot| self.ops.is_taken(slot))
            .any(|slot| self.ops[slot].bio.id.volume == volume);
        waits.then_some("requests of the volume are on their way")
    }

    /// Forgets what is cached of a volume of which nothing is dirty or on its way, so much in one turn; true when nothing is left.
    pub fn forget_some(&mut self, volume: VolumeId) -> bool {
        if self.defects.folios_stay() {
            return true;
        }
        let (units, place) = (self.folios.units(), usize::from(volume.0));
        let left = self.volumes[place].folios;
        let enough = left.saturating_sub(FORGET_MAX);
        let mut looked = 0;
        while self.volumes[place].folios > enough && looked < LOOK_MAX {
            if self.leaving >= units {
                self.leaving = 0;
            }
            let (unit, folio) = (self.leaving, self.folios[self.leaving]);
            let present = folio.is(Folio::PRESENT);
            let passed = if present { folio.blocks() } else { 1 };
            if present && folio.key.volume() == volume {
                assert!(folio.is_idle() && folio.waiters == NIL, "nothing of it is on its way");
                self.forget_folio(unit);
            }
            self.leaving += passed;
            looked += passed;
        }
        // Frames fell free.
        self.stirred = true;
        self.volumes[place].folios == 0
    }

    /// A volume leaves of which nothing is cached: nothing is remembered of it, but that some blocks were evicted.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        self.ahead.forget_volume(volume);
        self.truncations -= u32::from(self.volume(volume).truncation.is_some());
        self.volumes[usize::from(volume.0)].replace(CachedVolume::vacant());
    }
}
