//! Payers: whose dirty data it is, and how much of it each may have.
//!
//! Every folio of which something is dirty or under write-out counts for one export, its payer: the one whose write made it dirty
//! while it was clean. An export's blocks count for its tenant as well. Both may have a cap, under which blocks are reserved before
//! they become dirty, as under the limit of all (`writeback/credit.rs`):
//!
//! ```text
//!             reserve            on_dirtied         begin_writeback        end_writeback
//!   refused <---------> reserved ----------> dirty ----------------> writeback ----------> (free)
//!      |  the account's list                  ^ ------- failed: held ------'
//!      '-- waits until blocks of the account are free; other accounts are not concerned
//! ```
//!
//! Some blocks are *exempt* from the cap, since they stay dirty however long a writer waits, and data for other devices would
//! wait with them: those that are held after a failed write-out, and all of a device while it does not answer. Held ones are
//! bounded for each volume, whose writes fail then; those of an unresponsive device by its part of the dirty credit. A cap that
//! is lowered, an export with dirty data that moves to a tenant, and a device that answers again leave an account above its cap;
//! it then only falls. From half of its cap on an account is *pressed*: the flusher writes its data whatever the rest of the
//! cache holds.
//!
//! Invariants: a tenant's `used` is the sum of those of its exports; the sums of `dirty` and `writeback` over the payers of a device
//! are the device's; an account is granted nothing that would exceed its cap; its `exempt` is the sum of what its exports have exempt
//! on all devices.

use crate::bio::{DeviceId, ExportId, TenantId};
use crate::gauge::Gauge32;
use crate::options::{ExportConfig, TENANTS_MAX, TenantConfig};

/// An account's number: a tenant's, or that of an export after all tenants.
pub type AccountId = u16;

/// The dirty blocks of a tenant or an export, on all devices.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Reserved, dirty and writeback blocks.
    used: Gauge32,
    /// Those of them that the cap does not count.
    exempt: Gauge32,
    /// Exempt blocks that the cap counts again, since the start.
    released: u64,
    /// The most of the others; `u32::MAX` for no cap.
    cap: u32,
    /// An operation waits for blocks of it.
    awaited: bool,
    /// It is in the list of accounts with freed blocks.
    freed: bool,
}

impl Account {
    fn new(cap: u32) -> Self {
        Self {
            used: Gauge32::default(),
            exempt: Gauge32::default(),
            released: 0,
            cap,
            awaited: false,
            freed: false,
        }
    }

    /// Whether the flusher writes its data regardless of its age.
    fn is_pressed(&self) -> bool {
        self.counted() > self.cap / 2
    }

    /// The blocks that the cap counts.
    fn counted(&self) -> u32 {
        assert!(self.exempt <= self.used, "exempt blocks are dirty");
        self.used.get() - self.exempt.get()
    }
}

/// What a payer has dirty on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PayerBlocks {
    dirty: Gauge32,
    writeback: Gauge32,
    /// Dirty blocks whose write-out failed.
    held: Gauge32,
}

impl PayerBlocks {
    /// The blocks that caps do not count.
    fn exempt(&self, unresponsive: bool) -> u32 {
        if unresponsive { self.dirty.get() + self.writeback.get() } else { self.held.get() }
    }
}

/// What all payers have dirty on a device.
#[derive(Clone, Debug)]
struct DevicePayers {
    /// It does not answer.
    unresponsive: bool,
    /// By export.
    exports: Vec<PayerBlocks>,
}

impl DevicePayers {
    fn new(exports: usize) -> Self {
        Self { unresponsive: false, exports: vec![PayerBlocks::default(); exports] }
    }
}

/// The payers of a shard's dirty data.
#[derive(Debug)]
pub(in crate::cache) struct Payers {
    /// By export; the last one is for exports that are not configured.
    tenants: Vec<TenantId>,
    /// By [`AccountId`].
    accounts: Vec<Account>,
    devices: Vec<DevicePayers>,
    /// Blocks that were written for each account since the start.
    written: Vec<u64>,
    /// Accounts with a cap.
    capped: u32,
    /// Pressed accounts.
    pressed: Gauge32,
    /// Awaited accounts of which blocks became free.
    freed: Vec<AccountId>,
}

impl Payers {
    /// Creates the payers of a configuration with so many devices.
    pub fn new(exports: &[ExportConfig], tenants: &[TenantConfig], devices: usize) -> Self {
        assert!(tenants.len() <= TENANTS_MAX, "the configuration was validated");
        assert!(TENANTS_MAX + exports.len() < usize::from(u16::MAX), "an account has a number");
        let mut of: Vec<TenantId> = exports.iter().map(|export| export.tenant).collect();
        of.push(TenantId::NONE);
        let caps = tenants.iter().map(|tenant| tenant.memory.dirty_cap());
        let rest = std::iter::repeat_n(u32::MAX, TENANTS_MAX - tenants.len());
        let exports = exports.iter().map(|export| export.dirty_max).chain([u32::MAX]);
        let accounts: Vec<Account> = caps.chain(rest).chain(exports).map(Account::new).collect();
        Self {
            devices: vec![DevicePayers::new(of.len()); devices],
            tenants: of,
            written: vec![0; accounts.len()],
            capped: accounts.iter().filter(|account| account.cap < u32::MAX).count() as u32,
            pressed: Gauge32::default(),
            freed: Vec::with_capacity(accounts.len()),
            accounts,
        }
    }

    /// Returns the number of accounts.
    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Adds payers of the devices up to `device`.
    pub fn add_device(&mut self, device: DeviceId) {
        let places = self.devices.len().max(usize::from(device.0) + 1);
        self.devices.resize(places, DevicePayers::new(self.tenants.len()));
        // The device that had the place may have ended unanswered.
        self.set_unresponsive(usize::from(device.0), false);
        debug_assert_eq!(self.sums(usize::from(device.0)), (0, 0), "a new device is clean");
    }

    fn index(&self, export: ExportId) -> usize {
        debug_assert!(!self.tenants.is_empty(), "the last entry is for all other exports");
        usize::from(export.0).min(self.tenants.len() - 1)
    }

    /// Returns the accounts of an export: its own, and its tenant's.
    fn accounts_of(&self, export: ExportId) -> (usize, Option<usize>) {
        let index = self.index(export);
        let tenant = usize::from(self.tenants[index].0);
        (TENANTS_MAX + index, (tenant < TENANTS_MAX).then_some(tenant))
    }

    /// Returns the accounts of an export: its own, and its tenant's.
    pub fn accounts(&self, export: ExportId) -> impl Iterator<Item = AccountId> + use<> {
        let (own, tenant) = self.accounts_of(export);
        [Some(own), tenant].into_iter().flatten().map(|id| id as AccountId)
    }

    /// Returns true if any account has a cap.
    #[inline]
    pub fn has_caps(&self) -> bool {
        self.capped > 0
    }

    /// Returns the account that has no room for `blocks` more of an export.
    pub fn full(&self, export: ExportId, blocks: u32) -> Option<AccountId> {
        if !self.has_caps() {
            return None;
        }
        let (own, tenant) = self.accounts_of(export);
        let is_full = |&id: &usize| {
            let account = &self.accounts[id];
            account.cap < u32::MAX && account.counted().saturating_add(blocks) > account.cap
        };
        [Some(own), tenant].into_iter().flatten().find(is_full).map(|id| id as AccountId)
    }

    /// Returns the most blocks to reserve for an export at once, of `wanted`: a part of its cap, so that several writers get some.
    pub fn at_once(&self, export: ExportId, wanted: u32) -> u32 {
        if !self.has_caps() {
            return wanted;
        }
        let (own, tenant) = self.accounts_of(export);
        let caps = [Some(own), tenant].into_iter().flatten().map(|id| self.accounts[id].cap);
        let most = (caps.min().unwrap_or(u32::MAX) / 8).max(1);
        debug_assert!(most > 0, "a reservation has blocks");
        wanted.min(most)
    }

    /// Takes blocks for an export, if [`Payers::full`] knows no account without room.
    pub fn reserve(&mut self, export: ExportId, blocks: u32) {
        assert!(self.full(export, blocks).is_none(), "a grant keeps to the caps");
        self.add(export, blocks);
    }

    /// Returns blocks that were reserved and not dirtied.
    pub fn unreserve(&mut self, export: ExportId, blocks: u32) {
        debug_assert!(blocks > 0, "something is returned");
        self.sub(export, blocks);
    }

    /// Turns reserved blocks dirty.
    pub fn on_dirtied(&mut self, device: DeviceId, export: ExportId, blocks: u32) {
        let index = self.index(export);
        debug_assert!(self.accounts[TENANTS_MAX + index].used.get() >= blocks, "it was reserved");
        let device = &mut self.devices[usize::from(device.0)];
        device.exports[index].dirty.add(blocks);
        if device.unresponsive {
            self.exempt_more(export, blocks);
        }
    }

    /// Counts blocks that are dirty already.
    pub fn adopt(&mut self, device: DeviceId, export: ExportId, blocks: u32) {
        self.add(export, blocks);
        self.on_dirtied(device, export, blocks);
    }

    /// Counts off dirty blocks that were cancelled.
    pub fn on_cancelled(&mut self, device: DeviceId, export: ExportId, blocks: u32) {
        let index = self.index(export);
        let device = &mut self.devices[usize::from(device.0)];
        device.exports[index].dirty.sub(blocks);
        if device.unresponsive {
            self.exempt_less(export, blocks);
        }
        self.sub(export, blocks);
    }

    /// Moves dirty blocks to writeback.
    pub fn begin_writeback(&mut self, device: DeviceId, export: ExportId, blocks: u32) {
        let index = self.index(export);
        let counts = &mut self.devices[usize::from(device.0)].exports[index];
        assert!(counts.dirty.get() >= blocks, "the payer has what is sent");
        counts.dirty.sub(blocks);
        counts.writeback.add(blocks);
    }

    /// Ends the writeback of blocks, of which `clean` were written and `held` failed.
    pub fn end_writeback(&mut self, device: DeviceId, export: ExportId, (clean, held): (u32, u32)) {
        let index = self.index(export);
        let DevicePayers { unresponsive, exports } = &mut self.devices[usize::from(device.0)];
        let (unresponsive, counts) = (*unresponsive, &mut exports[index]);
        assert!(counts.writeback.get() >= clean + held, "the payer has what was sent");
        counts.writeback.sub(clean + held);
        counts.dirty.add(held);
        counts.held.add(held);
        let (own, tenant) = self.accounts_of(export);
        for id in [Some(own), tenant].into_iter().flatten() {
            self.written[id] += u64::from(clean);
        }
        if unresponsive {
            self.exempt_less(export, clean);
        } else if held > 0 {
            self.exempt_more(export, held);
        }
        self.sub(export, clean);
    }

    /// Notes whether a device answers; caps count nothing of one that does not.
    pub fn set_unresponsive(&mut self, device: usize, unresponsive: bool) {
        if self.devices[device].unresponsive == unresponsive {
            return;
        }
        self.devices[device].unresponsive = unresponsive;
        for index in 0..self.tenants.len() {
            let blocks = self.devices[device].exports[index];
            let (all, held) = (blocks.exempt(true), blocks.exempt(false));
            assert!(held <= all, "held blocks are dirty");
            if all == held {
                continue;
            }
            let export = ExportId(index as u16);
            match unresponsive {
                true => self.exempt_more(export, all - held),
                false => self.release(export, all - held),
            }
        }
    }

    fn exempt_more(&mut self, export: ExportId, blocks: u32) {
        self.change_all(export, |account| account.exempt.add(blocks));
    }

    /// Counts off exempt blocks that are no longer dirty.
    fn exempt_less(&mut self, export: ExportId, blocks: u32) {
        self.change_all(export, |account| account.exempt.sub(blocks));
    }

    /// Lets the cap count exempt blocks again.
    fn release(&mut self, export: ExportId, blocks: u32) {
        let (own, tenant) = self.accounts_of(export);
        for id in [Some(own), tenant].into_iter().flatten() {
            self.change(id, |account| account.exempt.sub(blocks));
            self.accounts[id].released += u64::from(blocks);
        }
    }

    fn add(&mut self, export: ExportId, blocks: u32) {
        let (own, tenant) = self.accounts_of(export);
        self.change(own, |account| account.used.add(blocks));
        if let Some(tenant) = tenant {
            self.change(tenant, |account| account.used.add(blocks));
        }
    }

    fn sub(&mut self, export: ExportId, blocks: u32) {
        self.change_all(export, |account| account.used.sub(blocks));
    }

    /// Counts off held blocks that are released, before they are cancelled or written again.
    pub fn on_unheld(&mut self, device: usize, export: ExportId, blocks: u32) {
        let index = self.index(export);
        let device = &mut self.devices[device];
        device.exports[index].held.sub(blocks);
        if !device.unresponsive {
            self.release(export, blocks);
        }
    }

    /// Changes the accounts of an export so that they have more room.
    fn change_all(&mut self, export: ExportId, change: impl Fn(&mut Account)) {
        let (own, tenant) = self.accounts_of(export);
        for id in [Some(own), tenant].into_iter().flatten() {
            self.change(id, &change);
            if self.accounts[id].awaited && !std::mem::replace(&mut self.accounts[id].freed, true) {
                self.freed.push(id as AccountId);
            }
        }
    }

    #[inline]
    fn change(&mut self, id: usize, change: impl FnOnce(&mut Account)) {
        let account = &mut self.accounts[id];
        if account.cap == u32::MAX {
            return change(account);
        }
        let before = account.is_pressed();
        change(account);
        match (before, account.is_pressed()) {
            (false, true) => self.pressed.add(1),
            (true, false) => self.pressed.sub(1),
            _ => {}
        }
    }

    /// Moves an export to a tenant, with what is dirty of it.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        if usize::from(export.0) + 1 >= self.tenants.len() {
            return;
        }
        let (own, before) = self.accounts_of(export);
        let Account { used, exempt, .. } = self.accounts[own];
        if let Some(before) = before {
            self.change(before, |sum| {
                sum.exempt.sub(exempt.get());
                sum.used.sub(used.get());
            });
        }
        debug_assert!(tenant.is_none() || usize::from(tenant.0) < TENANTS_MAX, "a tenant's number");
        self.tenants[usize::from(export.0)] = tenant;
        if let (_, Some(after)) = self.accounts_of(export) {
            self.change(after, |sum| {
                sum.used.add(used.get());
                sum.exempt.add(exempt.get());
            });
        }
    }

    /// Sets the cap of an export; `u32::MAX` for none.
    pub fn set_export_cap(&mut self, export: ExportId, cap: u32) {
        if usize::from(export.0) + 1 < self.tenants.len() {
            self.set_cap(TENANTS_MAX + usize::from(export.0), cap);
        }
    }

    /// Sets the cap of a tenant; `u32::MAX` for none.
    pub fn set_tenant_cap(&mut self, tenant: TenantId, cap: u32) {
        if usize::from(tenant.0) < TENANTS_MAX {
            self.set_cap(usize::from(tenant.0), cap);
        }
    }

    fn set_cap(&mut self, id: usize, cap: u32) {
        let account = &mut self.accounts[id];
        let was_pressed = account.cap < u32::MAX && account.is_pressed();
        self.capped -= u32::from(account.cap < u32::MAX);
        account.cap = cap.max(1);
        self.capped += u32::from(account.cap < u32::MAX);
        let is_pressed = account.cap < u32::MAX && account.is_pressed();
        self.pressed.add(is_pressed.into());
        self.pressed.sub(was_pressed.into());
        debug_assert!(self.capped as usize <= self.accounts.len(), "an account has one cap");
        debug_assert!(self.pressed.get() <= self.capped, "only a cap presses");
    }

    /// Notes whether an operation waits for blocks of an account.
    pub fn set_awaited(&mut self, account: AccountId, awaited: bool) {
        self.accounts[usize::from(account)].awaited = awaited;
    }

    /// Returns an account of which blocks became free while an operation waited for them.
    pub fn next_freed(&mut self) -> Option<AccountId> {
        let id = self.freed.pop()?;
        debug_assert!(self.accounts[usize::from(id)].freed, "the account is in the list once");
        self.accounts[usize::from(id)].freed = false;
        Some(id)
    }

    /// Returns true if an account is pressed.
    #[inline]
    pub fn has_pressed(&self) -> bool {
        !self.pressed.is_zero()
    }

    /// Returns true if an account of an export is pressed.
    pub fn is_pressed(&self, export: ExportId) -> bool {
        let (own, tenant) = self.accounts_of(export);
        let pressed =
            |id: usize| self.accounts[id].cap < u32::MAX && self.accounts[id].is_pressed();
        pressed(own) || tenant.is_some_and(pressed)
    }

    /// Returns true if a pressed account has dirty blocks on a device. It looks at every export: to be asked rarely.
    pub fn is_pressed_on(&self, device: usize) -> bool {
        let has_dirty = |(export, blocks): (u16, &PayerBlocks)| {
            !blocks.dirty.is_zero() && self.is_pressed(ExportId(export))
        };
        self.has_pressed() && (0..).zip(&self.devices[device].exports).any(has_dirty)
    }

    /// Returns the dirty and writeback blocks of an export on all devices.
    pub fn unclean(&self, export: ExportId) -> u64 {
        let index = self.index(export);
        let of = |device: &DevicePayers| {
            let blocks = &device.exports[index];
            u64::from(blocks.dirty.get()) + u64::from(blocks.writeback.get())
        };
        self.devices.iter().map(of).sum()
    }

    /// Returns the blocks that were written for a tenant.
    pub fn tenant_written(&self, tenant: TenantId) -> u64 {
        self.written.get(usize::from(tenant.0)).copied().unwrap_or(0)
    }

    /// Returns the blocks of a tenant that its cap counts, reserved ones included, the cap, and exempt blocks released so far.
    pub fn tenant_used(&self, tenant: TenantId) -> (u32, u32, u64) {
        let account = self.accounts[usize::from(tenant.0)];
        (account.counted(), account.cap, account.released)
    }

    /// Returns the sums of dirty and writeback blocks over the payers of a device, for checks.
    pub fn sums(&self, device: usize) -> (u64, u64) {
        let add = |(dirty, writeback): (u64, u64), of: &PayerBlocks| {
            (dirty + u64::from(of.dirty.get()), writeback + u64::from(of.writeback.get()))
        };
        self.devices[device].exports.iter().fold((0, 0), add)
    }

    /// Checks that the accounts have what the payers have on all devices and what is reserved for them, by export.
    ///
    /// # Panics
    /// If they do not.
    pub fn check(&self, reserved: &[u64]) {
        let mut tenants = vec![0_u64; TENANTS_MAX];
        for (index, tenant) in self.tenants.iter().enumerate() {
            let used = u64::from(self.accounts[TENANTS_MAX + index].used.get());
            let expected = self.unclean(ExportId(index as u16)) + reserved[index];
            assert_eq!(used, expected, "export {index} has what is dirty and reserved for it");
            let exempt = |device: &DevicePayers| device.exports[index].exempt(device.unresponsive);
            let exempt: u32 = self.devices.iter().map(exempt).sum();
            let counted = self.accounts[TENANTS_MAX + index].exempt.get();
            assert_eq!(counted, exempt, "export {index} has what caps do not count");
            if let Some(sum) = tenants.get_mut(usize::from(tenant.0)) {
                *sum += used;
            }
        }
        for (account, sum) in self.accounts.iter().zip(&tenants) {
            assert_eq!(u64::from(account.used.get()), *sum, "a tenant has what its exports have");
        }
        let pressed = self.accounts.iter().filter(|one| one.cap < u32::MAX && one.is_pressed());
        assert_eq!(self.pressed.get() as usize, pressed.count(), "pressed accounts are counted");
    }

    /// Returns the number of exports, with one for all that are not configured.
    pub fn exports(&self) -> usize {
        self.tenants.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::TenantMemory;
    use crate::prng::Prng;

    const DEVICE: DeviceId = DeviceId(0);
    const T: TenantId = TenantId(0);

    /// Exports 0 and 1 of a tenant with a cap of 100, the second with one of 30 of its own, and export 2 without either.
    fn payers() -> Payers {
        let export = |tenant, dirty_max| ExportConfig { tenant, dirty_max, ..Default::default() };
        let exports = [export(T, u32::MAX), export(T, 30), export(TenantId::NONE, u32::MAX)];
        let memory = TenantMemory { dirty_max: 100, ..TenantMemory::default() };
        let tenant = TenantConfig { memory, ..TenantConfig::default() };
        Payers::new(&exports, &[tenant], 2)
    }

    #[test]
    fn export_in_a_tenant_keeps_to_both_caps() {
        let mut payers = payers();
        let [first, second, other] = [0, 1, 2].map(ExportId);
        assert_eq!(payers.full(second, 31), Some(TENANTS_MAX as u16 + 1));
        payers.reserve(second, 30);
        payers.reserve(first, 70);
        assert_eq!([payers.full(first, 1), payers.full(other, 1 << 20)], [Some(0), None]);
        payers.set_awaited(0, true);
        payers.unreserve(second, 1);
        assert_eq!((payers.next_freed(), payers.next_freed()), (Some(0), None));
        assert_eq!((payers.full(first, 1), payers.at_once(second, 64)), (None, 3));
    }

    #[test]
    fn account_is_pressed_above_half_of_its_cap() {
        let mut payers = payers();
        payers.adopt(DEVICE, ExportId(0), 50);
        assert!(!payers.has_pressed() && !payers.is_pressed_on(0));
        payers.adopt(DEVICE, ExportId(0), 1);
        assert!(payers.is_pressed(ExportId(1)) && payers.is_pressed_on(0));
        assert!(!payers.is_pressed(ExportId(2)) && !payers.is_pressed_on(1));
        payers.set_tenant(ExportId(0), TenantId::NONE);
        assert!(!payers.has_pressed());
        payers.set_export_cap(ExportId(0), 60);
        assert!(payers.is_pressed_on(0));
    }

    #[test]
    fn cap_counts_nothing_of_a_device_that_does_not_answer() {
        let mut payers = payers();
        let (silent, healthy, first) = (DEVICE, DeviceId(1), ExportId(0));
        payers.adopt(silent, first, 80);
        payers.adopt(healthy, first, 20);
        payers.begin_writeback(silent, first, 30);
        assert_eq!(payers.full(first, 1), Some(0));
        payers.set_awaited(0, true);
        payers.set_unresponsive(0, true);
        assert_eq!((payers.next_freed(), payers.full(first, 80)), (Some(0), None));
        assert!(!payers.has_pressed(), "writing would free nothing");
        payers.reserve(first, 80);
        payers.on_dirtied(healthy, first, 70);
        payers.on_dirtied(silent, first, 10);
        assert_eq!(payers.tenant_used(T), (90, 100, 0), "nor what became dirty since");
        payers.end_writeback(silent, first, (10, 20));
        payers.on_unheld(0, first, 5);
        assert_eq!(payers.tenant_used(T), (90, 100, 0));
        payers.set_unresponsive(0, false);
        assert_eq!(payers.tenant_used(T), (90 + 80 - 15, 100, 65), "all but what is held");
        payers.on_unheld(0, first, 15);
        assert_eq!(payers.tenant_used(T), (90 + 80, 100, 80));
        payers.check(&[0; 4]);
    }

    #[test]
    fn sums_hold_in_random_runs_with_moves_and_caps() {
        let mut prng = Prng::new(4);
        let mut payers = payers();
        // By device and export: dirty, writeback.
        let mut model = [[(0_u32, 0_u32); 4]; 2];
        for _ in 0..50_000 {
            let (device, index) = (prng.below(2) as usize, prng.below(4) as usize);
            let (id, export) = (DeviceId(device as u16), ExportId(index as u16));
            let entry = &mut model[device][index];
            let blocks = 1 + prng.below(20) as u32;
            match prng.below(8) {
                0..3 if payers.full(export, blocks).is_none() => {
                    payers.reserve(export, blocks);
                    payers.on_dirtied(id, export, blocks);
                    entry.0 += blocks;
                }
                3 => {
                    let sent = blocks.min(entry.0);
                    payers.begin_writeback(id, export, sent);
                    (entry.0, entry.1) = (entry.0 - sent, entry.1 + sent);
                }
                4 => {
                    let (ended, held) =
                        (blocks.min(entry.1), prng.below(2) as u32 * entry.1.min(1));
                    let clean = ended - held.min(ended);
                    payers.end_writeback(id, export, (clean, ended - clean));
                    payers.on_unheld(device, export, ended - clean);
                    (entry.0, entry.1) = (entry.0 + ended - clean, entry.1 - ended);
                }
                5 => {
                    payers.on_cancelled(id, export, blocks.min(entry.0));
                    entry.0 -= blocks.min(entry.0);
                }
                6 if prng.below(20) == 1 => {
                    payers.set_unresponsive(device, prng.below(2) == 0);
                }
                6 if prng.below(20) == 0 => {
                    let tenant = [T, TenantId(7), TenantId::NONE][prng.below(3) as usize];
                    payers.set_tenant(ExportId(index as u16), tenant);
                }
                7 if prng.below(20) == 0 => {
                    payers.set_tenant_cap(T, [40, 100, u32::MAX][prng.below(3) as usize]);
                }
                _ => {}
            }
            for (device, entries) in model.iter().enumerate() {
                let sum = |of: fn(&(u32, u32)) -> u32| entries.iter().map(of).sum::<u32>();
                let sums = (sum(|of| of.0).into(), sum(|of| of.1).into());
                assert_eq!(payers.sums(device), sums);
            }
            payers.check(&[0; 4]);
        }
        let written = [T, TenantId(7)].map(|tenant| payers.tenant_written(tenant));
        assert!(written.into_iter().all(|blocks| blocks > 1000), "{written:?}");
    }
}
