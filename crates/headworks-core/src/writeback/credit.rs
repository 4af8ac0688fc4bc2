//! Dirty credit: blocks are reserved under the hard limit before they are dirtied.
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
//! `used = reserved + dirty + writeback` per device. A reservation is granted whole, and only while
//!
//! ```text
//!   sum of used + sum over the *other* devices of the unused parts of their floors  <=  limit
//! ```
//!
//! Hence the sum never exceeds the limit, and every device can use its floor whatever the others do: a dead device that holds
//! dirty data takes at most the limit less the others' floors. When the limit is lowered, a dead device may hold more than all of
//! it: then the others have their floors, at least a block each, above the limit ([`Credit::reserve_floor`]). The floors add up
//! to an eighth of the limit; more would take from the shares of fast devices for slow ones.
//!
//! A refused caller waits in its queue of the device, in order. Only the head retries, when [`Credit::freed`] says that its
//! blocks are free.

use crate::gauge::Gauge32;

/// The floor of each of `devices` devices under a limit; 0 for a single device.
#[must_use]
pub fn floor(limit: u32, devices: usize) -> u32 {
    if devices > 1 { limit / 8 / devices as u32 } else { 0 }
}

/// The credit of one device.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceCredit {
    used: Gauge32,
    /// Blocks that the head of its queue was refused; 0 without a waiter.
    wanted: u32,
    /// Blocks that are kept for it; 0 in a free slot.
    floor: u32,
    present: bool,
}

/// Credit of all devices, in blocks.
#[derive(Clone, Debug)]
pub struct Credit {
    credits: Vec<DeviceCredit>,
    /// Number of devices that exist.
    present: usize,
    total: Gauge32,
    /// The sum of the unused parts of the floors.
    unused: u32,
    floor: u32,
}

impl Credit {
    /// Creates the credit of `devices` devices under a limit.
    #[must_use]
    pub fn new(devices: usize, limit: u32) -> Self {
        let credits = vec![DeviceCredit { present: true, ..DeviceCredit::default() }; devices];
        let mut credit =
            Self { credits, present: devices, total: Gauge32::new(0), unused: 0, floor: 0 };
        credit.set_limit(limit);
        credit
    }

    /// Adapts the floors to a new limit or number of devices.
    pub fn set_limit(&mut self, limit: u32) {
        self.floor = floor(limit, self.devices());
        for credit in &mut self.credits {
            credit.floor = if credit.present { self.floor } else { 0 };
        }
        self.unused = (0..self.credits.len()).map(|device| self.gap(device)).sum();
        debug_assert!(u64::from(self.unused) <= u64::from(self.floor) * self.present as u64);
    }

    /// Number of devices that exist.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.present
    }

    /// Adds a device, or removes one without credit in use. [`Credit::set_limit`] must follow.
    pub fn set_present(&mut self, device: usize, present: bool) {
        if self.credits.len() <= device {
            self.credits.resize(device + 1, DeviceCredit::default());
        }
        assert!(
            self.credits[device].used.is_zero(),
            "a device that is added or removed has no credit in use"
        );
        self.credits[device] = DeviceCredit { present, ..DeviceCredit::default() };
        self.present = self.credits.iter().filter(|credit| credit.present).count();
        debug_assert!(self.present <= self.credits.len());
    }

    /// Takes `blocks` if they fit under `limit`; otherwise remembers them as wanted by the head of the queue.
    pub fn reserve(&mut self, device: usize, blocks: u32, limit: u32) -> bool {
        let fits = self.fits(device, blocks, limit);
        self.credits[device].wanted = if fits { 0 } else { blocks };
        if fits {
            self.add(device, blocks);
        }
        debug_assert!(
            !fits || blocks == 0 || self.total.get() <= limit,
            "a grant exceeds the limit"
        );
        fits
    }

    /// Remembers blocks that the head of a device's queue was refused.
    pub fn refuse(&mut self, device: usize, blocks: u32) {
        self.credits[device].wanted = blocks;
    }

    /// Returns the blocks that the head of a device's queue was refused; 0 without a waiter.
    #[must_use]
    pub fn wanted(&self, device: usize) -> u32 {
        self.credits[device].wanted
    }

    /// Takes `blocks` of a device's floor, whatever is used beside it; returns whether they are within it.
    pub fn reserve_floor(&mut self, device: usize, blocks: u32) -> bool {
        let within = self.is_within_floor(device, blocks);
        debug_assert!(!within || self.credits[device].present, "a free slot has no floor");
        if within {
            self.credits[device].wanted = 0;
            self.add(device, blocks);
        }
        within
    }

    /// Whether the device would have no more than its floor with `blocks` more; a block at least, beside other devices.
    fn is_within_floor(&self, device: usize, blocks: u32) -> bool {
        let credit = &self.credits[device];
        self.present > 1 && credit.used.get() + blocks <= credit.floor.max(1)
    }

    /// Whether the blocks that the device's head was refused would be granted now.
    #[must_use]
    pub fn freed(&self, device: usize, limit: u32) -> bool {
        let wanted = self.credits[device].wanted;
        wanted > 0 && (self.fits(device, wanted, limit) || self.is_within_floor(device, wanted))
    }

    /// Forgets the refused head, which has left the queue.
    pub fn forget(&mut self, device: usize) {
        self.credits[device].wanted = 0;
    }

    /// Takes `blocks` of credit unconditionally.
    pub fn add(&mut self, device: usize, blocks: u32) {
        let gap = self.gap(device);
        self.credits[device].used.add(blocks);
        self.total.add(blocks);
        debug_assert!(self.gap(device) <= gap && gap <= self.unused);
        self.unused = self.unused + self.gap(device) - gap;
    }

    /// Returns `blocks`, at most what the device has in use.
    pub fn sub(&mut self, device: usize, blocks: u32) {
        let gap = self.gap(device);
        let used = self.credits[device].used.get();
        assert!(used >= blocks, "more credit given back than taken");
        self.credits[device].used.sub(blocks);
        self.total.sub(blocks);
        debug_assert!(self.credits[device].used <= self.total, "total < used of one device");
        self.unused = self.unused + self.gap(device) - gap;
    }

    /// Blocks in use by all devices.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total.get()
    }

    /// Blocks in use by one device.
    #[must_use]
    pub fn used(&self, device: usize) -> u32 {
        self.credits[device].used.get()
    }

    /// Blocks that every device can use whatever the others do; 0 with one device.
    #[must_use]
    pub fn floor(&self) -> u32 {
        self.floor
    }

    /// Most blocks that the device may have in use at present.
    #[must_use]
    pub fn ceiling(&self, device: usize, limit: u32) -> u32 {
        let others =
            self.total.get() - self.credits[device].used.get() + self.unused - self.gap(device);
        debug_assert!(others <= self.total.get() + self.unused);
        limit.saturating_sub(others)
    }

    /// Whether `blocks` more fit under `limit`.
    #[must_use]
    pub fn fits(&self, device: usize, blocks: u32, limit: u32) -> bool {
        u64::from(self.credits[device].used.get()) + u64::from(blocks)
            <= u64::from(self.ceiling(device, limit))
    }

    /// The unused part of the device's floor.
    fn gap(&self, device: usize) -> u32 {
        let credit = &self.credits[device];
        credit.floor.saturating_sub(credit.used.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn limit_holds_and_floors_stay_free_in_random_runs() {
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

    /// Under a lowered limit a device that holds more than all of it leaves the others their floors.
    #[test]
    fn floor_is_free_above_a_lowered_limit() {
        for (limit, floor) in [(64, 4), (8, 1)] {
            let mut credit = Credit::new(2, 1000);
            assert!(credit.reserve(0, 900, 1000));
            credit.set_limit(limit);
            assert!(!credit.reserve(1, floor, limit) && credit.freed(1, limit));
            assert!(!credit.reserve_floor(1, floor + 1) && credit.reserve_floor(1, floor));
            assert!(!credit.reserve_floor(1, 1) && !credit.reserve_floor(0, 1));
            credit.sub(1, floor);
            credit.sub(0, 900);
            assert_eq!(credit.total(), 0);
        }
        assert!(!Credit::new(1, 8).reserve_floor(0, 1), "a single device has no floor");
    }

    #[test]
    fn free_slot_has_no_floor() {
        let mut credit = Credit::new(1, 1000);
        credit.set_present(3, true);
        credit.set_limit(1000);
        assert_eq!((credit.devices(), credit.floor()), (2, 62));
        // The floor of device 3 stays free; the free slots between have no floor.
        assert!(!credit.reserve(0, 939, 1000) && credit.reserve(0, 938, 1000));
        assert!(credit.reserve(3, 62, 1000) && !credit.reserve(3, 1, 1000));
        credit.sub(3, 62);
        credit.set_present(3, false);
        credit.set_limit(1000);
        assert!(credit.reserve(0, 62, 1000), "a single device has all credit");
    }

    #[test]
    fn single_device_has_all_credit() {
        let mut credit = Credit::new(1, 100);
        assert!(credit.reserve(0, 100, 100));
        assert!(!credit.reserve(0, 1, 100));
    }

    #[test]
    fn head_is_notified_when_its_whole_need_is_free() {
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
    fn returning_credit_never_taken_panics() {
        Credit::new(1, 100).sub(0, 1);
    }
}
