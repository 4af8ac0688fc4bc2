//! The hard limit: nobody dirties what he did not reserve.
//!
//! ```text
//!     reserve           on_dirtied        on_writeout         on_written
//!   ----------> reserved ---------> dirty ----------> writeback ---------> (free)
//!                  |                  |  <-- failed ----'
//!                  | unreserve,       | cancelled
//!                  v on_rewritten     v
//!                (free)             (free)
//! ```
//!
//! `used = reserved + dirty + writeback` per device. A reservation is whole or not at all, and is granted only while
//!
//! ```text
//!   sum of used + sum over the *other* devices of what each has not used of its floor  <=  limit
//! ```
//!
//! so the sum never passes the limit, and every device finds its floor free, whatever the others do: one that died holding
//! dirty data takes at most the limit less the others' floors. The floors together are an
//! eighth of the limit: more would take from the shares of the fast for the slow.
//!
//! Who is refused waits in the caller's queue of that device, in order; only the head asks again, when [`Credit::freed`]
//! says that what it wants is there.

/// What each of so many devices finds free under that limit, whatever the others do; nothing for one alone.
#[must_use]
pub fn floor(limit: u32, devices: usize) -> u32 {
    if devices > 1 { limit / 8 / devices as u32 } else { 0 }
}

/// One device's.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceCredit {
    used: u32,
    /// What the head of its queue was refused; 0: nobody waits.
    wanted: u32,
    /// What it finds free; of a vacant place nothing.
    floor: u32,
    present: bool,
}

/// Credit of all devices, in blocks.
#[derive(Clone, Debug)]
pub struct Credit {
    credits: Vec<DeviceCredit>,
    /// How many of them are present.
    present: usize,
    total: u32,
    /// What is not used of the floors, in sum.
    unused: u32,
    floor: u32,
}

impl Credit {
    /// Credit for so many devices, under that limit.
    #[must_use]
    pub fn new(devices: usize, limit: u32) -> Self {
        let credits = vec![DeviceCredit { present: true, ..DeviceCredit::default() }; devices];
        let mut credit = Self { credits, present: devices, total: 0, unused: 0, floor: 0 };
        credit.set_limit(limit);
        credit
    }

    /// The floors that go with another limit.
    pub fn set_limit(&mut self, limit: u32) {
        self.floor = floor(limit, self.devices());
        for account in &mut self.credits {
            account.floor = if account.present { self.floor } else { 0 };
        }
        self.unused = (0..self.credits.len()).map(|device| self.gap(device)).sum();
    }

    /// Devices that there are.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.present
    }

    /// A device joins, or leaves with nothing in use; [`Credit::set_limit`] is to follow.
    pub fn set_present(&mut self, device: usize, present: bool) {
        if self.credits.len() <= device {
            self.credits.resize(device + 1, DeviceCredit::default());
        }
        assert!(self.credits[device].used == 0, "a device that changes has no credit in use");
        self.credits[device] = DeviceCredit { present, ..DeviceCredit::default() };
        self.present = self.credits.iter().filter(|account| account.present).count();
    }

    /// Takes `blocks` for the device if they fit under `limit`; else remembers that somebody waits for them.
    pub fn reserve(&mut self, device: usize, blocks: u32, limit: u32) -> bool {
        let fits = self.fits(device, blocks, limit);
        self.credits[device].wanted = if fits { 0 } else { blocks };
        if fits {
            self.add(device, blocks);
        }
        fits
    }

    /// Whether what the device's head was refused would be granted now.
    #[must_use]
    pub fn freed(&self, device: usize, limit: u32) -> bool {
        self.credits[device].wanted > 0 && self.fits(device, self.credits[device].wanted, limit)
    }

    /// The refused head is gone, or somebody else heads the queue: nobody is known to wait.
    pub fn forget(&mut self, device: usize) {
        self.credits[device].wanted = 0;
    }

    /// Takes `blocks` without asking: data that is dirty already and is to be counted again.
    pub fn add(&mut self, device: usize, blocks: u32) {
        let gap = self.gap(device);
        self.credits[device].used += blocks;
        self.total += blocks;
        self.unused = self.unused + self.gap(device) - gap;
    }

    /// Gives `blocks` back.
    pub fn sub(&mut self, device: usize, blocks: u32) {
        let gap = self.gap(device);
        assert!(self.credits[device].used >= blocks, "more credit given back than taken");
        self.credits[device].used -= blocks;
        self.total -= blocks;
        self.unused = self.unused + self.gap(device) - gap;
    }

    /// In use by all devices.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// In use by one.
    #[must_use]
    pub fn used(&self, device: usize) -> u32 {
        self.credits[device].used
    }

    /// What every device finds free, whatever the others do; 0 with one device.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.floor
    }

    /// The most the device may have in use, as things are.
    #[must_use]
    pub fn ceiling(&self, device: usize, limit: u32) -> u32 {
        let others = self.total - self.credits[device].used + self.unused - self.gap(device);
        limit.saturating_sub(others)
    }

    /// Whether `blocks` more fit under `limit`.
    #[must_use]
    pub fn fits(&self, device: usize, blocks: u32, limit: u32) -> bool {
        u64::from(self.credits[device].used) + u64::from(blocks)
            <= u64::from(self.ceiling(device, limit))
    }

    fn gap(&self, device: usize) -> u32 {
        let account = &self.credits[device];
        account.floor.saturating_sub(account.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn the_limit_holds_and_floors_stay_free_whatever_happens() {
        let mut prng = Prng::new(5);
        let mut credit = Credit::new(3, 1000);
        let mut model = [0_u32; 3];
        assert_eq!(credit.floor(), 41);
        let mut refused = 0;
        for _ in 0..20_000 {
            let device = prng.below(3) as usize;
            if prng.below(10) < 6 {
                let blocks = 1 + prng.below(40) as u32;
                if credit.reserve(device, blocks, 1000) {
                    model[device] += blocks;
                } else {
                    refused += 1;
                }
            } else if model[device] > 0 {
                let blocks = model[device].min(1 + prng.below(40) as u32);
                credit.sub(device, blocks);
                model[device] -= blocks;
            }
            assert_eq!(credit.total(), model.iter().sum::<u32>());
            assert!(credit.total() <= 1000);
            for (device, used) in model.iter().enumerate() {
                assert_eq!(credit.used(device), *used);
                assert!(*used >= 41 || credit.fits(device, 41 - used, 1000), "{device}: {model:?}");
            }
        }
        assert!(refused > 100);
    }

    #[test]
    fn a_vacant_place_has_no_floor_and_takes_none_of_the_others() {
        let mut credit = Credit::new(1, 1000);
        credit.set_present(3, true);
        credit.set_limit(1000);
        assert_eq!((credit.devices(), credit.floor()), (2, 62));
        // The floor of device 3 stays free, those of the vacant places between are nobody's.
        assert!(!credit.reserve(0, 939, 1000) && credit.reserve(0, 938, 1000));
        assert!(credit.reserve(3, 62, 1000) && !credit.reserve(3, 1, 1000));
        credit.sub(3, 62);
        credit.set_present(3, false);
        credit.set_limit(1000);
        assert!(credit.reserve(0, 62, 1000), "one alone has everything again");
    }

    #[test]
    fn one_device_has_everything() {
        let mut credit = Credit::new(1, 100);
        assert!(credit.reserve(0, 100, 100));
        assert!(!credit.reserve(0, 1, 100));
    }

    #[test]
    fn the_head_is_told_when_its_whole_need_is_there() {
        let mut credit = Credit::new(1, 100);
        assert!(credit.reserve(0, 90, 100));
        assert!(!credit.freed(0, 100));
        assert!(!credit.reserve(0, 30, 100));
        credit.sub(0, 19);
        assert!(!credit.freed(0, 100));
        credit.sub(0, 1);
        assert!(credit.freed(0, 100));
        assert!(credit.reserve(0, 30, 100));
        assert!(!credit.freed(0, 100));
    }

    #[test]
    #[should_panic(expected = "more credit given back")]
    fn credit_out_of_nothing_is_a_bug() {
        Credit::new(1, 100).sub(0, 1);
    }
}
