//! What a driver does between two calls of a shard: it reads state, statistics and frames of the cache, and replaces policies while the
//! shard is quiet.
//!
//! Frames that are read in place are the same answer as that of a read without a buffer, without a turn: the driver looks at them
//! before it calls the shard again, so nothing changes them meanwhile.

use std::ops::Range;

use super::Shard;
use super::route::{DeviceRoute, VolumeEntry};
use super::waits::{BioWait, BioWaits};
use crate::action::{Actions, FrameRange};
use crate::bio::{Bio, BioId, DeviceId, ExportId, Op, TenantId, VolumeId};
#[cfg(feature = "defects")]
use crate::cache::CacheDefect;
use crate::cache::{CacheStats, TenantDirty};
use crate::dirty_entry::DirtyEntry;
use crate::elevator::{Elevator, ElevatorState, SlotTrace};
use crate::error::IoError;
use crate::options::QueueOptions;
use crate::queue::{DeviceState, Queue};
use crate::request::Request;
use crate::stats::{DeviceUse, QueueStats, TargetCounts, TurnStats, VolumeStats};
use crate::tags::{TagOptions, TagOwner, TagStats};
use crate::time::Instant;
use crate::writeback::{DirtyOptions, DirtyStats, ForegroundWriteback, TraceEvent, WritebackStats};

impl Shard {
    /// The actions of the last batch, to be executed in order.
    #[must_use]
    pub fn actions(&self) -> &Actions {
        &self.pools.actions
    }

    /// Clears the actions after all of them were executed.
    pub fn clear_actions(&mut self) {
        self.pools.actions.clear();
    }

    /// Number of further bios that the shard accepts; frontends stop reading at 0.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.bios_max.saturating_sub(self.clients())
    }

    /// Outstanding bios of clients and of other shards.
    fn clients(&self) -> u32 {
        let taken = self.pools.bios.taken();
        match &self.cache {
            // A bio that the cache passed to its device still counts as waiting.
            Some(cache) => cache.waiting() + taken.saturating_sub(cache.below()),
            None => taken,
        }
    }

    /// Appends the ranges of the pool that hold the data of a read to `ranges`, in order; returns false, and appends none, if the volume
    /// is not cached here, the read is not within it, a block of it is missing or being changed, or there would be more than
    /// [`REPLY_RANGES_MAX`](crate::REPLY_RANGES_MAX).
    ///
    /// To be called between two calls of [`Shard::handle`]. The ranges hold the data until the driver carries out a further action or
    /// calls the shard; [`Shard::wants_call`] tells whether it is to do so afterwards.
    pub fn lend_frames(&mut self, now: Instant, bio: &Bio, ranges: &mut Vec<FrameRange>) -> bool {
        debug_assert!(bio.op == Op::Read, "only reads have frames");
        let volume = self.volumes.get(usize::from(bio.id.volume.0));
        let usable = |volume: &&VolumeEntry| volume.config.home == self.id && !volume.is_void;
        let Some(volume) = volume.filter(usable) else {
            return false;
        };
        let end = bio.offset.checked_add(u64::from(bio.len));
        let inside = end.is_some_and(|end| bio.len > 0 && end <= volume.config.options.size);
        let Some((cache, mut ctx)) = self.cache(now).filter(|_| inside) else {
            return false;
        };
        cache.caches(bio.id.volume) && cache.lend_frames(&mut ctx, bio, ranges)
    }

    /// Returns where in the pool the first byte of a read most likely is, if its volume is cached here: a hint for the CPU's cache, from one
    /// line of the index. It may be wrong, and past the pool.
    #[inline]
    #[must_use]
    pub fn guess_frame(&self, bio: &Bio) -> Option<u64> {
        self.cache.as_ref()?.guess(bio)
    }

    /// Returns true if [`Shard::handle`] is to be called, also without inputs, because there are actions or the cache has work.
    #[must_use]
    pub fn wants_call(&self) -> bool {
        let cache_works = self.cache.as_ref().is_some_and(|cache| cache.needs_run());
        cache_works || !self.pools.actions.list.is_empty()
    }

    /// Whether no client bio is outstanding. The cache may be writing out.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.clients() == 0
    }

    /// Whether nothing is outstanding and every tag is free or unused in a lease.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.pools.bios.taken() == 0
            && self.cache.as_ref().is_none_or(|cache| cache.is_quiet())
            && self.pools.slots.taken() == 0
            && self.routes.iter().all(|route| match route {
                DeviceRoute::Local(queue) => queue.is_quiet(),
                DeviceRoute::Remote(remote) => remote.is_quiet(),
                DeviceRoute::Unassigned => true,
            })
    }

    /// Whether a device answers, as far as this shard knows; `None` for a free slot.
    #[must_use]
    pub fn device_state(&self, device: DeviceId) -> Option<DeviceState> {
        match self.routes.get(usize::from(device.0))? {
            DeviceRoute::Local(queue) => Some(queue.state()),
            DeviceRoute::Remote(remote) => Some(remote.state()),
            DeviceRoute::Unassigned => None,
        }
    }

    /// A counter that changes whenever a device ceases to answer or answers again; then [`Shard::device_state`] has news.
    #[must_use]
    pub fn device_news(&self) -> u32 {
        self.device_changes
    }

    /// Free tags of a local device, neither held nor leased; `None` for a remote device.
    #[must_use]
    pub fn tags_free(&self, device: DeviceId) -> Option<u32> {
        self.queue(device).map(|queue| queue.tags().free())
    }

    /// Tags of a remote device that this shard has on lease; `None` for a local device.
    #[must_use]
    pub fn tags_leased(&self, device: DeviceId) -> Option<u32> {
        match self.routes.get(usize::from(device.0)) {
            Some(DeviceRoute::Remote(remote)) => Some(remote.lease().held()),
            _ => None,
        }
    }

    /// Statistics of a volume, kept on the shard that owns its device.
    #[must_use]
    pub fn stats(&self, volume: VolumeId) -> Option<&VolumeStats> {
        let config = self.volume(volume)?;
        self.queue(config.device)?.volume(volume).map(|volume| &volume.stats)
    }

    /// Tells `each` what the requests of every volume of this shard's devices have used of them.
    pub fn device_uses(&self, mut each: impl FnMut(VolumeId, DeviceId, DeviceUse)) {
        for index in 0..self.volumes.len() {
            let volume = VolumeId(index as u16);
            if let Some(stats) = self.stats(volume)
                && let Some(config) = self.volume(volume)
            {
                each(volume, config.device, stats.used());
            }
        }
    }

    /// State of a local device's elevator, if it serves in slots; made for the call.
    #[must_use]
    pub fn elevator_state(&self, now: Instant, device: DeviceId) -> Option<ElevatorState> {
        self.queue(device)?.elevator_state(now)
    }

    /// The command that a local device has had for the longest time; `None` of an idle device.
    #[must_use]
    pub fn oldest_command(&self, device: DeviceId) -> Option<&Request> {
        Some(&self.pools.slots[self.queue(device)?.oldest_command()?])
    }

    /// What each of some bios waits for; `None` of one that is not here. It allocates: for a client that asks.
    #[must_use]
    pub fn bio_waits(&self, ids: &[BioId]) -> Vec<Option<BioWait>> {
        let cache = self.cache.as_deref();
        let waits = BioWaits::new(&self.pools, &self.volumes, &self.routes, cache);
        ids.iter().map(|id| waits.of(*id)).collect()
    }

    /// Begins or ends the trace of slots of all local devices whose elevators serve in slots. It allocates: for a replay.
    pub fn trace_slots(&mut self, on: bool) {
        for route in &mut self.routes {
            if let DeviceRoute::Local(queue) = route {
                queue.trace_slots(on);
            }
        }
    }

    /// Calls `each` with the events of every traced device since the last call, and the number of those that were dropped.
    pub fn take_slot_traces(&mut self, mut each: impl FnMut(DeviceId, &[SlotTrace], u64)) {
        let mut events = Vec::new();
        for (device, route) in self.routes.iter_mut().enumerate() {
            if let DeviceRoute::Local(queue) = route {
                let dropped = queue.take_slot_traces(&mut events);
                each(DeviceId(device as u16), &events, dropped);
                events.clear();
            }
        }
    }

    /// Counters of a local device's queue and tags; `None` for a remote device.
    #[must_use]
    pub fn queue_stats(&self, device: DeviceId) -> Option<(QueueStats, TagStats)> {
        let queue = self.queue(device)?;
        Some((queue.stats(), queue.tags().stats()))
    }

    /// What the latency targets of a local device have counted of an export since its target was set last.
    #[must_use]
    pub fn target_counts(&self, device: DeviceId, export: ExportId) -> TargetCounts {
        self.queue(device).map_or_else(TargetCounts::default, |queue| queue.target_counts(export))
    }

    /// What the latency targets of a local device have counted of all tenants, by number; none before an export had a target.
    #[must_use]
    pub fn tenant_target_counts(&self, device: DeviceId) -> &[TargetCounts] {
        self.queue(device).map_or(&[], Queue::tenant_target_counts)
    }

    /// The exports with a latency target, wherever they lie, if a local device keeps targets; and the target in microseconds.
    pub fn targets(&self, device: DeviceId) -> impl Iterator<Item = (ExportId, u32)> + '_ {
        self.queue(device).into_iter().flat_map(Queue::targets)
    }

    /// The smallest latency of a local device in nanoseconds: of small synchronous requests of the last one to two minutes that found
    /// its queue empty. It is measured while an export has a latency target; `None` if it is not known.
    #[must_use]
    pub fn smallest_latency(&self, now: Instant, device: DeviceId) -> Option<u64> {
        self.queue(device)?.smallest_latency(now)
    }

    /// Measures the smallest latency of a local device for a minute; returns what is known of it now.
    pub fn watch_smallest_latency(&mut self, now: Instant, device: DeviceId) -> Option<u64> {
        self.queue_mut(device)?.watch_smallest_latency(now)
    }

    /// Current options of a local device's queue; `None` for a remote device.
    #[must_use]
    pub fn queue_options(&self, device: DeviceId) -> Option<&QueueOptions> {
        self.queue(device).map(Queue::options)
    }

    /// Merges in the plug, by the size of turns.
    #[must_use]
    pub fn turn_stats(&self) -> &TurnStats {
        &self.turns
    }

    /// Number of a volume's writes completed since its last successful flush was submitted, and whether a flush failed. Only on
    /// the shard that owns its device.
    #[must_use]
    pub fn unflushed(&self, volume: VolumeId) -> Option<(u64, bool)> {
        let config = self.volume(volume)?;
        let volume = self.queue(config.device)?.volume(volume)?;
        Some((volume.unflushed(), volume.is_suspect()))
    }

    /// Counters of the page cache; `None` without one.
    #[must_use]
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.cache.as_ref().map(|cache| cache.stats())
    }

    /// Address ranges of the cache's lookup tables, for which a driver may request huge pages.
    pub fn cache_tables(&self) -> impl Iterator<Item = Range<*const u8>> {
        self.cache.iter().flat_map(|cache| cache.tables())
    }

    /// Dirty blocks and limits of the cache; `None` without one.
    #[must_use]
    pub fn dirty_stats(&self) -> Option<DirtyStats> {
        self.cache.as_ref().map(|cache| cache.throttle().stats())
    }

    /// Write-back statistics of a device; `None` without a cache or device.
    #[must_use]
    pub fn wb_stats(&self, device: DeviceId) -> Option<WritebackStats> {
        let exists =
            !matches!(self.routes.get(usize::from(device.0)), None | Some(DeviceRoute::Unassigned));
        let cache = self.cache.as_ref().filter(|_| exists)?;
        Some(cache.throttle().device_stats(device))
    }

    /// Current tunables of write-back; `None` without a cache.
    #[must_use]
    pub fn dirty_options(&self) -> Option<DirtyOptions> {
        self.cache.as_ref().map(|cache| cache.dirty_options())
    }

    /// Dirty and writeback bytes of a volume that lives here; `None` if it is not cached here.
    #[must_use]
    pub fn dirty_bytes(&self, volume: VolumeId) -> Option<u64> {
        let config = self.volume(volume)?;
        let cache = self.cache.as_ref().filter(|cache| cache.caches(volume))?;
        (config.home == self.id).then(|| cache.dirty_bytes(volume))
    }

    /// Whether a volume takes no writes.
    #[must_use]
    pub fn is_read_only(&self, volume: VolumeId) -> bool {
        self.volume(volume).is_some_and(|config| config.options.read_only)
    }

    /// Whether the bios of a volume go through this shard's cache.
    #[must_use]
    pub fn is_cached(&self, volume: VolumeId) -> bool {
        let home = self.volume(volume).is_some_and(|config| config.home == self.id);
        home && self.cache.as_ref().is_some_and(|cache| cache.caches(volume))
    }

    /// Blocks that are dirty or under write-out for an export here, and those that are cached for it.
    #[must_use]
    pub fn export_blocks(&self, export: ExportId) -> (u64, u64) {
        self.cache.as_ref().map_or((0, 0), |cache| cache.export_blocks(export))
    }

    /// Checks that the dirty and writeback blocks of all payers of each device are those of the device.
    ///
    /// # Panics
    /// If they are not.
    pub fn check_payers(&self) {
        let Some(cache) = &self.cache else { return };
        for device in (0..self.routes.len()).map(|device| DeviceId(device as u16)) {
            if let Some(stats) = self.wb_stats(device) {
                let sums = cache.payer_sums(usize::from(device.0));
                assert_eq!(sums, (stats.reclaimable, stats.writeback), "payers of {device:?}");
            }
        }
    }

    /// Checks that the flusher of each device for which a writer is paused has something under way.
    ///
    /// # Panics
    /// If one has not.
    pub fn check_flushers(&self) {
        if let Some(cache) = &self.cache {
            cache.check_flushers();
        }
    }

    /// The dirty blocks of a tenant here; `None` without a cache.
    #[must_use]
    pub fn tenant_dirty(&self, tenant: TenantId) -> Option<TenantDirty> {
        self.cache.as_ref().map(|cache| cache.tenant_dirty(tenant))
    }

    /// Turns recording of throttle decisions for [`Shard::take_dirty_traces`] on or off.
    pub fn trace_dirty(&mut self, on: bool) {
        if let Some(cache) = &mut self.cache {
            cache.throttle_mut().trace(on);
        }
    }

    /// Moves the throttle's decisions since the last call to `into`.
    pub fn take_dirty_traces(&mut self, into: &mut Vec<TraceEvent>) {
        if let Some(cache) = &mut self.cache {
            cache.throttle_mut().take_traces(into);
        }
    }

    /// A counter that changes whenever a volume begins or ceases to hold failed blocks; then [`Shard::held`] has news.
    #[must_use]
    pub fn held_news(&self) -> u32 {
        self.cache.as_ref().map_or(0, |cache| cache.held_changes())
    }

    /// Bytes of a volume held after a failed write-out, and the last error; `None` without such bytes. Only on its home shard.
    #[must_use]
    pub fn held(&self, volume: VolumeId) -> Option<(u64, IoError)> {
        self.volume(volume)?;
        self.cache.as_ref()?.held(volume)
    }

    /// Whether blocks of a volume are held after a failed write-out, or are being retried. Only on its home shard.
    #[must_use]
    pub fn is_failing(&self, volume: VolumeId) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_failing(volume))
    }

    /// Appends the ranges of a volume that are held after a failed write-out: offset, bytes, error. Only on its home shard.
    pub fn failed_ranges(&self, volume: VolumeId, into: &mut Vec<(u64, u64, IoError)>) {
        if let Some(cache) = &self.cache
            && self.volume(volume).is_some()
        {
            cache.held_ranges(volume, into);
        }
    }

    /// Checks the cache's invariants between two batches, block by block. For tests.
    ///
    /// # Panics
    /// If an invariant is violated.
    #[doc(hidden)]
    pub fn check_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.check();
        }
    }

    /// Checks a dirty table that follows [`Action::SetDirty`](crate::Action::SetDirty) against the cache, for tests.
    ///
    /// # Panics
    /// If an entry is missing, stale or of another block.
    pub fn check_dirty_table(&self, table: &[DirtyEntry]) {
        if let Some(cache) = &self.cache {
            cache.check_dirty_table(table);
        }
    }

    /// Describes what the cache's operations wait for, to debug a hang.
    #[doc(hidden)]
    #[must_use]
    pub fn told_waits(&self) -> String {
        self.cache.as_ref().map_or_else(String::new, |cache| cache.describe_waits())
    }

    /// Activates a deliberate violation of the cache's rules, for negative tests.
    #[cfg(feature = "defects")]
    #[doc(hidden)]
    pub fn set_cache_defect(&mut self, defect: CacheDefect) {
        if let Some(cache) = &mut self.cache {
            cache.set_defect(defect);
        }
    }

    /// Returns what a tag policy for an own device is made from; `None` if the device is another shard's.
    #[must_use]
    pub fn tag_options(&self, device: DeviceId) -> Option<TagOptions> {
        self.queue(device).map(Queue::tag_options)
    }

    /// Replaces the tag policy of an own device, until a change of its depth brings back the usual one. The queue must be
    /// quiet.
    ///
    /// # Panics
    /// If a tag is held or requested.
    pub fn set_tags(&mut self, device: DeviceId, tags: Box<dyn TagOwner>) {
        if let Some((queue, _)) = self.local(device) {
            queue.set_tags(tags);
        }
    }

    /// Replaces the pauses of writers by foreground writeback; does nothing without a cache. For experiments, before the first
    /// input.
    pub fn set_foreground(&mut self, policy: Box<dyn ForegroundWriteback>) {
        if let Some(cache) = &mut self.cache {
            cache.throttle_mut().set_foreground(policy);
        }
    }

    /// Lets the flushers leave nearly empty extent groups for later, as they do by default, or visit every group in turn; does
    /// nothing without a cache. For experiments, before the first input.
    pub fn set_sparse_groups_wait(&mut self, wait: bool) {
        if let Some(cache) = &mut self.cache {
            cache.set_sparse_groups_wait(wait);
        }
    }

    /// Replaces the elevator of a local device. The queue must be quiet.
    ///
    /// # Panics
    /// If a request is queued or in flight.
    pub fn set_elevator(&mut self, device: DeviceId, elevator: Box<dyn Elevator>) {
        if let Some((queue, _)) = self.local(device) {
            queue.set_elevator(elevator);
        }
    }
}
