//! The bios of the cache's own: those to be sent, and how many may be outstanding for each device.
//!
//! All devices share one budget. Without limits a slow device would come to hold all of it and a dead one would keep it, so that no
//! other device could be read or written. Fills and write-outs of each device are therefore separate accounts, and each finds
//! its floor free, as with dirty credit (`writeback/credit.rs`):
//!
//! ```text
//!   outstanding, all accounts + unused floors of the other accounts + 1  <=  bios_max
//! ```
//!
//! A device that is unresponsive keeps what it has, and more with every client that tries again. Beside others it gets no more
//! from then on than an eighth of the budget, with what it has; one bio at a time may always try it.
//!
//! In the same way fills of several devices take at most half of the pool's frames, with a floor for each device. Flushers leave a
//! quarter of the budget to fills; a few write-outs of each device may always go.
//!
//! Invariant: `bios.total()` is the number of own bios that were queued and have not completed; `passed` counts the client bios
//! that were taken by the shard and have not completed.

use crate::bio::{Bio, BioFlags, BioId};
use crate::device_bio::DeviceBio;
use crate::gauge::Gauge32;
use crate::slab::NIL;
use crate::time::Instant;
use crate::writeback::credit::Credit;

/// The share of bios that is kept for fills while write-out takes all it may: one in four.
const FILL_SHARE: u32 = 4;

/// The share of bios of an unresponsive device beside others: one in eight.
const UNRESPONSIVE_SHARE: u32 = 8;

/// The budget of a device's bios while it does not answer.
#[derive(Clone, Copy, Debug, Default)]
struct Unresponsive {
    /// The device has ended nothing since a request was overdue.
    now: bool,
    /// Own bios that passed their time-out and have not completed.
    late: Gauge32,
}

/// The outstanding bios of a cache.
#[derive(Debug)]
pub(super) struct DeviceIo {
    /// Bios for the queues; the shard takes them at the end of a batch.
    queue: Vec<DeviceBio>,
    /// Own bios, by account.
    bios: Credit,
    /// Own bios that may be outstanding.
    bios_max: u32,
    /// By device.
    unresponsive: Vec<Unresponsive>,
    /// Blocks that are being filled, by device.
    filling: Credit,
    /// Units that the pool may use.
    units: u32,
    /// Client bios that were passed to the queues.
    passed: Gauge32,
    /// Tells bios for the same frames apart.
    count: u32,
}

/// Returns the account of a device's fills.
pub(super) const fn fills(device: usize) -> usize {
    2 * device
}

/// Returns the account of a device's write-outs.
pub(super) const fn writeouts(device: usize) -> usize {
    2 * device + 1
}

/// Returns the blocks that may be filled at once with this many devices; with one device, all.
const fn filling_max(units: u32, devices: usize) -> u32 {
    if devices > 1 { units / 2 } else { units }
}

impl DeviceIo {
    /// Creates the budgets of `devices`; `queue` is the capacity for bios to be sent.
    pub fn new(units: u32, devices: usize, bios_max: u32, queue: usize) -> Self {
        Self {
            queue: Vec::with_capacity(queue),
            bios: Credit::new(2 * devices, bios_max),
            bios_max,
            unresponsive: vec![Unresponsive::default(); devices],
            filling: Credit::new(devices, filling_max(units, devices)),
            units,
            passed: Gauge32::default(),
            count: 0,
        }
    }

    /// Gives a device's accounts their floors, or takes them; none of its bios is outstanding.
    pub fn set_present(&mut self, device: usize, present: bool) {
        for account in [fills(device), writeouts(device)] {
            self.bios.set_present(account, present);
        }
        let devices = self.unresponsive.len().max(device + 1);
        self.unresponsive.resize(devices, Unresponsive::default());
        self.unresponsive[device] = Unresponsive::default();
        self.bios.set_limit(self.bios_max);
        self.filling.set_present(device, present);
        self.filling.set_limit(filling_max(self.units, self.filling.devices()));
    }

    /// Sets the units that the pool may use.
    pub fn set_units(&mut self, units: u32) {
        self.units = units;
        self.filling.set_limit(filling_max(units, self.filling.devices()));
    }

    /// Returns the number of own bios that are outstanding.
    pub fn in_flight(&self) -> u32 {
        self.bios.total()
    }

    /// Returns true if one of the own bios is outstanding and not late.
    pub fn is_any_in_time(&self) -> bool {
        let late: u32 = self.unresponsive.iter().map(|device| device.late.get()).sum();
        debug_assert!(late <= self.in_flight(), "a late bio is outstanding");
        self.in_flight() > late
    }

    /// Returns the bios that are outstanding or passed to the queues.
    pub fn below(&self) -> u32 {
        self.in_flight() + self.passed.get()
    }

    /// Returns the blocks of a device that are being filled.
    pub fn filling(&self, device: usize) -> u32 {
        self.filling.used(device)
    }

    /// Returns true if another bio of an account may be sent.
    pub fn may_send(&self, account: usize) -> bool {
        let most = filling_max(self.units, self.filling.devices());
        let frames = account != fills(account / 2) || self.filling.fits(account / 2, 1, most);
        frames && self.bios.fits(account, 1, self.bios_max) && !self.has_its_share(account / 2)
    }

    /// Returns true if a device is unresponsive and has its share of the bios; with none that is not late it may be tried.
    fn has_its_share(&self, device: usize) -> bool {
        let Unresponsive { now, late } = self.unresponsive[device];
        if !now || self.filling.devices() < 2 {
            return false;
        }
        let used = self.bios.used(fills(device)) + self.bios.used(writeouts(device));
        debug_assert!(late.get() <= used, "a late bio is outstanding");
        used >= self.bios_max / UNRESPONSIVE_SHARE && used > late.get()
    }

    /// Notes whether a device is unresponsive.
    pub fn set_unresponsive(&mut self, device: usize, unresponsive: bool) {
        self.unresponsive[device].now = unresponsive;
    }

    /// Counts an own bio that passed its time-out, or completed after it.
    pub fn count_late(&mut self, device: usize, more: u32, less: u32) {
        self.unresponsive[device].late.add(more);
        self.unresponsive[device].late.sub(less);
    }

    /// Returns true if a device's flusher may send another write-out.
    pub fn may_write_out(&self, device: usize) -> bool {
        let account = writeouts(device);
        let few = self.bios.used(account) < self.bios.floor();
        let leaves_share = self.bios.total() < self.bios_max - self.bios_max / FILL_SHARE;
        (few || leaves_share) && self.may_send(account)
    }

    /// Returns how many more bios of an account may be sent at most.
    pub fn room(&self, account: usize) -> u32 {
        let most = match self.unresponsive[account / 2].now {
            true => 1,
            false => u32::MAX,
        };
        self.bios.ceiling(account, self.bios_max).saturating_sub(self.bios.used(account)).min(most)
    }

    /// Returns the id of an own bio for the frames from `unit` on, caused by `cause`.
    fn internal_id(&mut self, cause: &BioId, unit: u32, mark: u8) -> BioId {
        debug_assert!(mark < 16, "four bits of the id");
        self.count = self.count.wrapping_add(1);
        let count = self.count << 4 | u32::from(mark);
        BioId::internal(cause.connection, cause.volume, cause.export, count, unit)
    }

    /// Queues a fill of `blocks` blocks, for the frames from `unit` on; the id of `bio` names its cause.
    pub fn send_fill(
        &mut self,
        device: usize,
        (unit, blocks): (u32, u32),
        bio: Bio,
        since: Instant,
    ) {
        debug_assert!(blocks > 0 && bio.len > 0, "a fill has blocks");
        let id = self.internal_id(&bio.id, unit, 0);
        self.push(DeviceBio { bio: Bio { id, ..bio }, cookie: NIL, since });
        self.bios.add(fills(device), 1);
        self.filling.add(device, blocks);
    }

    /// Queues a write-out of the frames from `unit` on; the id of `bio` names its cause, `mark` its generation.
    pub fn send_writeout(&mut self, device: usize, unit: u32, mark: u8, sent: DeviceBio) {
        debug_assert!(sent.bio.len > 0, "a write-out has blocks");
        let id = self.internal_id(&sent.bio.id, unit, mark);
        self.push(DeviceBio { bio: Bio { id, ..sent.bio }, ..sent });
        self.bios.add(writeouts(device), 1);
    }

    /// Queues a client bio for the operation in `slot`.
    pub fn pass(&mut self, bio: Bio, slot: u32, since: Instant) {
        assert!(slot != NIL, "an operation waits for a bio that is passed on");
        let flags = bio.flags.without(BioFlags::DIRECT);
        self.push(DeviceBio { bio: Bio { flags, ..bio }, cookie: slot, since });
    }

    fn push(&mut self, bio: DeviceBio) {
        debug_assert!(self.queue.len() < self.queue.capacity(), "room for every bio");
        self.queue.push(bio);
    }

    /// Accounts for the end of a fill.
    pub fn end_fill(&mut self, device: usize, blocks: u32) {
        assert!(blocks > 0, "a fill has blocks");
        self.bios.sub(fills(device), 1);
        self.filling.sub(device, blocks);
    }

    /// Accounts for the end of a write-out.
    pub fn end_writeout(&mut self, device: usize) {
        self.bios.sub(writeouts(device), 1);
    }

    /// Accounts for the end of a client bio that was passed on.
    pub fn end_passed(&mut self) {
        self.passed.sub(1);
    }

    /// Returns the generation mark of a write-out's id.
    pub fn mark_of(id: &BioId) -> u8 {
        debug_assert!(id.unit().is_some(), "the id of an own bio");
        (id.sequence >> 32 & 15) as u8
    }

    /// Returns true if no bio is to be sent.
    #[inline]
    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the bios to be sent; [`DeviceIo::return_queue`] gives the buffer back.
    pub fn take_queue(&mut self) -> Vec<DeviceBio> {
        debug_assert!(self.in_flight() <= self.bios_max, "the budget of own bios");
        let queue = std::mem::take(&mut self.queue);
        let passed = queue.iter().filter(|sent| sent.bio.id.unit().is_none()).count();
        self.passed.add(passed as u32);
        queue
    }

    /// Gives the buffer back, empty, that [`DeviceIo::take_queue`] took.
    pub fn return_queue(&mut self, queue: Vec<DeviceBio>) {
        assert!(queue.is_empty() && self.queue.is_empty(), "every bio was sent");
        self.queue = queue;
    }
}
