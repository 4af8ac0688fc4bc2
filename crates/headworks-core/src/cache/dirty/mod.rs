//! What is dirty, how much may be, and the write-back state of each device.
//!
//! ```text
//!   reserve (credit) --> dirty: in a group, counted by region --> writeback --> clean
//!                          ^                                          |
//!                          '------------- failed: held ---------------'
//! ```
//!
//! Invariants: `dirty + writeback + credit <= limit` (the throttle's); a device's `in_flight` is the sum of the blocks of its
//! outstanding write-outs, its `held` the sum over its volumes; the sums over the payers of a device are the device's.

pub(in crate::cache) mod groups;
mod held;
mod payers;
mod regions;

use crate::bio::{DeviceId, ExportId, IoClass, VolumeId};
use crate::cache::pool::Pool;
use crate::cache::pool::folio::FolioKey;
use crate::error::IoError;
use crate::gauge::Gauge32;
use crate::options::{ExportConfig, TenantConfig};
use crate::slab::NIL;
use crate::time::{Instant, MS};
use crate::writeback::{DirtyOptions, Throttle};
use groups::{Group, Groups};
use held::HeldFolios;
pub(in crate::cache) use payers::AccountId;
use payers::Payers;
use regions::DirtyRegions;

/// Nanoseconds of a hundredth of a second.
const CENTISECOND: u64 = 10 * MS;

/// The write-back state of a device.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceWriteback {
    /// Blocks under write-out.
    in_flight: Gauge32,
    /// Held blocks.
    held: Gauge32,
    /// Write-outs that passed their time-out and have not completed.
    late: Gauge32,
    /// The device does not answer: it is stuck.
    silent: bool,
    /// The device has ended nothing since a request was overdue.
    unresponsive: bool,
    /// The device is silent, or so many blocks are held or late, that writers do not wait for credit: the error that they get.
    stuck: Option<IoError>,
    /// Reclaim needs clean folios.
    clean_wanted: bool,
    /// The flusher is to search for old data.
    periodic: bool,
    /// A flush began to wait for write-out.
    flush_begun: bool,
}

/// The dirty data of a cache.
#[derive(Debug)]
pub(in crate::cache) struct DirtyState {
    options: DirtyOptions,
    throttle: Throttle,
    payers: Payers,
    groups: Groups,
    regions: DirtyRegions,
    held: HeldFolios,
    devices: Vec<DeviceWriteback>,
    /// The next search for old data.
    periodic_at: Option<Instant>,
}

impl DirtyState {
    /// Creates the state of a clean pool of `units`, of which `dirtyable` may become dirty.
    pub fn new(
        options: DirtyOptions,
        units: u32,
        dirtyable: u32,
        (devices, volumes): (usize, usize),
        writers: u32,
    ) -> Self {
        Self {
            options,
            throttle: Throttle::new(&options, dirtyable, devices, writers),
            payers: Payers::new(&[], &[], devices),
            groups: Groups::new(units, volumes),
            regions: DirtyRegions::new(units),
            held: HeldFolios::new(units),
            devices: vec![DeviceWriteback::default(); devices],
            periodic_at: None,
        }
    }

    /// Shares the write bandwidth of devices by the weights of tenants, and of exports without one, and gives both their caps.
    pub fn with_domains(mut self, exports: &[ExportConfig], tenants: &[TenantConfig]) -> Self {
        self.payers = Payers::new(exports, tenants, self.devices.len());
        self.throttle = self.throttle.with_domains(exports, tenants);
        self
    }

    /// Returns the tunables that hold now.
    pub fn options(&self) -> &DirtyOptions {
        &self.options
    }

    /// Sets the tunables of dirty data and of the throttle.
    pub fn set_options(&mut self, now: Instant, options: DirtyOptions) {
        self.options = options;
        self.throttle.set_options(now, &options);
    }

    /// Returns the throttle of writers.
    #[inline]
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Returns the throttle, to reserve credit and to pause writers.
    #[inline]
    pub fn throttle_mut(&mut self) -> &mut Throttle {
        &mut self.throttle
    }

    /// Returns the payers of dirty data, to read their counts.
    #[inline]
    pub fn payers(&self) -> &Payers {
        &self.payers
    }

    /// Returns the payers of dirty data, to change their caps and tenants and to note what is awaited.
    #[inline]
    pub fn payers_mut(&mut self) -> &mut Payers {
        &mut self.payers
    }

    /// Reserves blocks of a device that an export is about to dirty. The accounts of the export have room: see [`Payers::full`].
    pub fn reserve_for_payer(&mut self, export: ExportId, blocks: u32) {
        self.payers.reserve(export, blocks);
    }

    /// Reserves dirty credit of a device.
    pub fn reserve_credit(&mut self, device: DeviceId, blocks: u32, class: IoClass) -> bool {
        self.throttle.reserve_for(device, blocks, class)
    }

    /// Returns reserved blocks: `credit` of a device, and `paid` of the export that they were reserved for.
    pub fn unreserve(&mut self, device: DeviceId, credit: u32, (export, paid): (ExportId, u32)) {
        if credit > 0 {
            self.throttle.unreserve(device, credit);
        }
        if paid > 0 {
            self.payers.unreserve(export, paid);
        }
    }

    /// Returns true if the flusher writes a device's dirty blocks regardless of their age.
    pub fn over_background(&self, device: usize) -> bool {
        self.throttle.over_background(DeviceId(device as u16))
    }

    /// Adds a device to a free slot.
    pub fn add_device(&mut self, device: DeviceId) {
        self.payers.add_device(device);
        let slots = self.devices.len().max(usize::from(device.0) + 1);
        self.devices.resize(slots, DeviceWriteback::default());
        self.throttle.set_device(device, true);
    }

    /// Frees the slot of a device without dirty data.
    pub fn remove_device(&mut self, device: DeviceId) {
        let entry = &mut self.devices[usize::from(device.0)];
        assert!(entry.in_flight.is_zero() && entry.held.is_zero(), "the device has no dirty data");
        *entry = DeviceWriteback::default();
        self.throttle.set_device(device, false);
    }

    /// Returns true if nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns an extent group.
    pub fn group(&self, group: u32) -> &Group {
        debug_assert!(self.groups.exists(group), "the group exists");
        &self.groups[group]
    }

    /// Returns true if there is an extent group of this number.
    pub fn group_exists(&self, group: u32) -> bool {
        self.groups.exists(group)
    }

    /// Returns the oldest group of a volume.
    pub fn oldest_group(&self, volume: VolumeId) -> Option<u32> {
        self.groups.oldest(volume)
    }

    /// Returns the next younger group of the same volume.
    pub fn younger_group(&self, group: u32) -> Option<u32> {
        self.groups.younger(group)
    }

    /// Returns the group of a volume that has been filled for the longest time.
    pub fn first_filled_group(&self, volume: VolumeId) -> Option<u32> {
        self.groups.first_filled(volume)
    }

    /// Returns the group of the same volume that was filled after a filled one.
    pub fn group_filled_after(&self, group: u32) -> Option<u32> {
        self.groups.filled_after(group)
    }

    /// Sets the units at which groups of a volume are filled.
    pub fn set_group_floor(&mut self, volume: VolumeId, floor: u32) {
        self.groups.set_floor(volume, floor);
    }

    /// Returns true if the groups that are not filled hold so much that they are to be visited, too: a quarter of what may be dirty.
    pub fn has_many_sparse_units(&self) -> bool {
        self.groups.sparse_units() > self.throttle.thresh() / 4
    }

    /// Returns the units of all folios in groups.
    pub fn group_units(&self) -> u32 {
        self.groups.units()
    }

    /// Gives a group the age of what is dirty of it now.
    pub fn requeue_group(&mut self, since: Instant, group: u32) {
        self.groups.requeue(since, group);
    }

    /// Collects the folios of a group in the order of their addresses, up to the capacity of `into`.
    pub fn collect_group(&self, pool: &Pool, group: u32, into: &mut Vec<u32>) {
        into.clear();
        let mut unit = self.groups[group].head;
        while unit != NIL && into.len() < into.capacity() {
            debug_assert!(pool.folio(unit).group == group, "the folio is in the group");
            into.push(unit);
            unit = pool.folio(unit).dirty_next;
        }
        into.sort_unstable_by_key(|&unit| pool.folio(unit).key.word());
        debug_assert!(!into.is_empty() || into.capacity() == 0, "a group has a folio");
    }

    /// Enters a folio into the group of its extent, in a generation.
    pub fn enter_group(&mut self, pool: &mut Pool, now: Instant, unit: u32, generation: u8) {
        assert!(pool.folio(unit).group == NIL, "a folio is in one group");
        let export = pool.folio(unit).export;
        self.groups.add(now, pool.headers_for_groups(), unit, export);
        pool.begin_generation(unit, generation);
    }

    /// Removes a folio from the group of its extent.
    pub fn leave_group(&mut self, pool: &mut Pool, unit: u32) {
        assert!(pool.folio(unit).group != NIL, "the folio is in a group");
        self.groups.remove(pool.headers_for_groups(), unit);
    }

    /// Returns true if a block of the 2 MiB around `key` may be dirty or under write-out.
    #[inline]
    pub fn may_be_dirty_around(&self, key: FolioKey) -> bool {
        self.regions.any(key)
    }

    /// Counts blocks of a folio that another process made dirty; no writer is charged, and the limit does not apply.
    pub fn adopt(&mut self, device: DeviceId, key: FolioKey, export: ExportId, blocks: u32) {
        assert!(blocks > 0, "a folio without dirty blocks is not counted");
        self.payers.adopt(device, export, blocks);
        self.regions.add(key, blocks);
        self.throttle.adopt(device, blocks);
    }

    /// Makes a group to be written at once, whatever its age.
    pub fn mark_overdue(&mut self, group: u32) {
        self.groups.mark_overdue(group);
    }

    /// Counts blocks of a folio that became dirty.
    pub fn add_dirty(&mut self, key: FolioKey, blocks: u32) {
        self.regions.add(key, blocks);
    }

    /// Turns blocks that were reserved for an export dirty.
    pub fn on_dirtied(&mut self, device: DeviceId, export: ExportId, blocks: u32) {
        self.payers.on_dirtied(device, export, blocks);
    }

    /// Accounts for dirty blocks of a folio that were cancelled; `payer` is its export.
    pub fn cancel(&mut self, device: DeviceId, key: FolioKey, payer: ExportId, blocks: u32) {
        self.regions.sub(key, blocks);
        self.payers.on_cancelled(device, payer, blocks);
        self.throttle.on_cancelled(device, blocks);
    }

    /// Accounts for blocks of a payer that are sent to a device.
    pub fn begin_writeback(
        &mut self,
        now: Instant,
        device: DeviceId,
        payer: ExportId,
        blocks: u32,
    ) {
        assert!(blocks > 0, "a write-out has blocks");
        self.payers.begin_writeback(device, payer, blocks);
        self.devices[usize::from(device.0)].in_flight.add(blocks);
        self.throttle.on_writeout(now, device, blocks);
    }

    /// Accounts for the end of a write-out: `clean` blocks leave the dirty state, `held` blocks failed and stay dirty.
    pub fn end_writeback(
        &mut self,
        now: Instant,
        device: DeviceId,
        (key, payer): (FolioKey, ExportId),
        (clean, held): (u32, u32),
    ) {
        self.payers.end_writeback(device, payer, (clean, held));
        assert!(clean + held > 0, "a write-out has blocks");
        self.devices[usize::from(device.0)].in_flight.sub(clean + held);
        self.regions.sub(key, clean);
        self.throttle.on_written(now, device, clean);
        if held > 0 {
            self.throttle.on_write_failed(now, device, held);
        }
    }

    /// Returns the blocks of a device under write-out.
    pub fn in_flight(&self, device: usize) -> u32 {
        self.devices[device].in_flight.get()
    }

    /// Returns the held blocks of a device.
    pub fn held(&self, device: usize) -> u32 {
        self.devices[device].held.get()
    }

    /// Counts held blocks of a device that were added or released.
    pub fn count_held(&mut self, device: usize, more: u32, less: u32) {
        self.devices[device].held.add(more);
        self.devices[device].held.sub(less);
    }

    /// Counts write-outs of a device that passed their time-out, or completed after it.
    pub fn count_late(&mut self, device: usize, more: u32, less: u32) {
        self.devices[device].late.add(more);
        self.devices[device].late.sub(less);
    }

    /// Notes whether a device answers. [`DirtyState::update_stuck`] must follow.
    pub fn set_silent(&mut self, device: usize, silent: bool, unresponsive: bool) {
        debug_assert!(unresponsive || !silent, "a stuck device is unresponsive");
        (self.devices[device].silent, self.devices[device].unresponsive) = (silent, unresponsive);
        self.throttle.set_unresponsive(DeviceId(device as u16), unresponsive);
        self.payers.set_unresponsive(device, unresponsive);
    }

    /// Returns true while waits for a device are limited.
    pub fn is_unresponsive(&self, device: usize) -> bool {
        self.devices[device].unresponsive
    }

    /// Returns true while a device does not answer.
    pub fn is_silent(&self, device: usize) -> bool {
        self.devices[device].silent
    }

    /// Notes a flush that begins and waits for write-out to a device.
    pub fn note_flush(&mut self, device: usize) {
        self.devices[device].flush_begun = true;
    }

    /// Takes the note that a flush began on a device.
    pub fn take_flush_begun(&mut self, device: usize) -> bool {
        std::mem::take(&mut self.devices[device].flush_begun)
    }

    /// Decides whether writers of a device may wait for credit: not while the device is silent, half of what may be dirty is held, or
    /// a write-out is late, for then it is unknown when there will be any. Returns true if the device became stuck.
    pub fn update_stuck(&mut self, device: usize, error: IoError) -> bool {
        let most = (self.throttle.reserve_max(DeviceId(device as u16)) / 2).max(1);
        let entry = &mut self.devices[device];
        let stuck = entry.silent || !entry.late.is_zero() || entry.held.get() >= most;
        let before = entry.stuck;
        entry.stuck = stuck.then(|| before.unwrap_or(error));
        stuck && before.is_none()
    }

    /// Returns the error that a writer gets instead of a wait for credit, if the device is stuck.
    pub fn stuck(&self, device: usize) -> Option<IoError> {
        self.devices[device].stuck
    }

    /// Asks every flusher for clean folios.
    pub fn want_clean(&mut self) {
        self.devices.iter_mut().for_each(|device| device.clean_wanted = true);
    }

    /// Ends the request for clean folios.
    pub fn stop_wanting_clean(&mut self) {
        self.devices.iter_mut().for_each(|device| device.clean_wanted = false);
    }

    /// Returns true if reclaim needs clean folios of a device.
    pub fn wants_clean(&self, device: usize) -> bool {
        self.devices[device].clean_wanted
    }

    /// Asks a flusher, or all of them, to search for old data.
    pub fn want_periodic(&mut self, device: Option<usize>) {
        match device {
            Some(device) => self.devices[device].periodic = true,
            None => self.devices.iter_mut().for_each(|device| device.periodic = true),
        }
    }

    /// Returns true if the flusher of a device is to search for old data.
    pub fn wants_periodic(&self, device: usize) -> bool {
        self.devices[device].periodic
    }

    /// Ends the search for old data of a device.
    pub fn end_periodic(&mut self, device: usize) {
        self.devices[device].periodic = false;
    }

    /// Starts a periodic search for old data, and plans the next one.
    pub fn on_periodic(&mut self, now: Instant) {
        self.periodic_at = Some(now.after(self.periodic_interval()));
        self.want_periodic(None);
    }

    /// Returns the time of the next search for old data; none while nothing is dirty.
    pub fn next_periodic(&mut self, now: Instant) -> Option<Instant> {
        if self.groups.is_empty() || self.options.dirty_writeback_centisecs == 0 {
            self.periodic_at = None;
            return None;
        }
        let interval = self.periodic_interval();
        Some(*self.periodic_at.get_or_insert(now.after(interval)))
    }

    fn periodic_interval(&self) -> u64 {
        u64::from(self.options.dirty_writeback_centisecs) * CENTISECOND
    }

    /// Returns true if a group is to be written because of its age.
    pub fn is_expired(&self, now: Instant, group: u32) -> bool {
        let expire = u64::from(self.options.dirty_expire_centisecs) * CENTISECOND;
        debug_assert!(self.groups.exists(group), "the group exists");
        let group = &self.groups[group];
        group.overdue || now.since(group.since) >= expire
    }

    /// Makes the groups of a volume whose blocks were held the next ones to be written.
    pub fn hurry_volume(&mut self, volume: VolumeId) {
        self.groups.hurry(volume);
    }

    /// Notes that blocks of a group were held and are to be written again.
    pub fn mark_unheld(&mut self, group: u32) {
        self.groups.mark_unheld(group);
    }

    /// Notes that the folio at `unit` holds blocks.
    pub fn mark_held(&mut self, unit: u32) {
        self.held.mark(unit);
    }

    /// Notes that the folio at `unit` holds no blocks.
    pub fn clear_held(&mut self, unit: u32) {
        self.held.clear(unit);
    }

    /// Returns the first folio at `unit` or after it that may hold blocks.
    pub fn next_held(&self, unit: u32) -> Option<u32> {
        self.held.next(unit)
    }

    /// Iterates over the folios that may hold blocks.
    pub fn held_folios(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.held.iter()
    }

    /// Returns true if the regions count exactly the given dirty blocks, for the checks of tests.
    pub fn regions_match(&self, units: u32, folios: impl Iterator<Item = (FolioKey, u32)>) -> bool {
        let mut counted = DirtyRegions::new(units);
        folios.for_each(|(key, blocks)| counted.add(key, blocks));
        counted.counts() == self.regions.counts()
    }
}
