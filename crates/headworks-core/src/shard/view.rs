//! What a driver, a user and a test see of a shard from outside, and what they may replace while it is quiet.

use std::ops::Range;

use super::{DeviceRoute, Shard};
use crate::action::Actions;
use crate::bio::{DeviceId, VolumeId};
#[cfg(feature = "defects")]
use crate::cache::CacheDefect;
use crate::cache::CacheStats;
use crate::elevator::Elevator;
use crate::error::IoError;
use crate::options::QueueOptions;
use crate::queue::Queue;
use crate::stats::{QueueStats, TurnStats, VolumeStats};
use crate::tags::{TagOptions, TagOwner, TagStats};
use crate::writeback::{DirtyOptions, DirtyStats, ForegroundWriteback, TraceEvent, WritebackStats};

impl Shard {
    /// What is to be done.
    #[must_use]
    pub fn actions(&self) -> &Actions {
        &self.pools.actions
    }

    /// All of it was done.
    pub fn clear_actions(&mut self) {
        self.pools.actions.clear();
    }

    /// How many more bios the shard takes; frontends stop reading at 0.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.bios_max.saturating_sub(self.clients())
    }

    /// Bios of clients (and of other shards) in this shard.
    fn clients(&self) -> u32 {
        let taken = self.pools.bios.taken();
        match &self.cache {
            // One that was passed down is among those that wait.
            Some(cache) => cache.waiting() + taken.saturating_sub(cache.below()),
            None => taken,
        }
    }

    /// No bio of a client is on its way through this shard. The cache may be writing out.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.clients() == 0
    }

    /// Nothing is on its way through this shard and every tag is home or unused in a lease.
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

    /// Tags of an own device that nobody holds and that are not lent; `None` for another shard's device.
    #[must_use]
    pub fn tags_free(&self, device: DeviceId) -> Option<u32> {
        self.queue(device).map(|queue| queue.tags().free())
    }

    /// Tags of another shard's device that this shard holds on lease; `None` for an own device.
    #[must_use]
    pub fn tags_leased(&self, device: DeviceId) -> Option<u32> {
        match self.routes.get(usize::from(device.0)) {
            Some(DeviceRoute::Remote(remote)) => Some(remote.lease().held()),
            _ => None,
        }
    }

    /// Statistics of a volume; they are kept on the shard that owns its device.
    #[must_use]
    pub fn stats(&self, volume: VolumeId) -> Option<&VolumeStats> {
        let config = self.volume(volume)?;
        self.queue(config.device)?.volume(volume).map(|volume| &volume.stats)
    }

    /// What an own device's queue and its tags counted; `None` for another shard's device.
    #[must_use]
    pub fn queue_stats(&self, device: DeviceId) -> Option<(QueueStats, TagStats)> {
        let queue = self.queue(device)?;
        Some((queue.stats(), queue.tags().stats()))
    }

    /// The options that an own device's queue works with now; `None` for another shard's device.
    #[must_use]
    pub fn queue_options(&self, device: DeviceId) -> Option<&QueueOptions> {
        self.queue(device).map(Queue::options)
    }

    /// What the plug made of this shard's turns.
    #[must_use]
    pub fn turn_stats(&self) -> &TurnStats {
        &self.turns
    }

    /// Writes of a volume that finished since its last good flush was submitted, and whether a flush of it failed; known to
    /// the shard that owns its device.
    #[must_use]
    pub fn unflushed(&self, volume: VolumeId) -> Option<(u64, bool)> {
        let config = self.volume(volume)?;
        let volume = self.queue(config.device)?.volume(volume)?;
        Some((volume.unflushed(), volume.is_suspect()))
    }

    /// What the cache counted; `None` without one.
    #[must_use]
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.cache.as_ref().map(|cache| cache.stats())
    }

    /// Where the tables of the cache lie that every bio looks at, somewhere in each: large ones are worth huge pages. The driver
    /// may ask its kernel for them; nothing else can be done with the addresses.
    pub fn cache_tables(&self) -> impl Iterator<Item = Range<*const u8>> {
        self.cache.iter().flat_map(|cache| cache.tables())
    }

    /// How much is dirty, in blocks; `None` without a cache.
    #[must_use]
    pub fn dirty_stats(&self) -> Option<DirtyStats> {
        self.cache.as_ref().map(|cache| cache.throttle().stats())
    }

    /// The same for a device; `None` also if there is none.
    #[must_use]
    pub fn wb_stats(&self, device: DeviceId) -> Option<WritebackStats> {
        let there =
            !matches!(self.routes.get(usize::from(device.0)), None | Some(DeviceRoute::Unassigned));
        let cache = self.cache.as_ref().filter(|_| there)?;
        Some(cache.throttle().device_stats(device))
    }

    /// The tunables of write-back that hold now; `None` without a cache.
    #[must_use]
    pub fn dirty_options(&self) -> Option<DirtyOptions> {
        self.cache.as_ref().map(|cache| cache.dirty_options())
    }

    /// Bytes of a volume that lives here that are dirty or under write-out; `None` if it is not cached here.
    #[must_use]
    pub fn dirty_bytes(&self, volume: VolumeId) -> Option<u64> {
        let config = self.volume(volume)?;
        let cache = self.cache.as_ref().filter(|cache| cache.caches(volume))?;
        (config.home == self.id).then(|| cache.dirty_bytes(volume))
    }

    /// Whether the throttle keeps what it decides for [`Shard::take_dirty_traces`].
    pub fn trace_dirty(&mut self, on: bool) {
        if let Some(cache) = &mut self.cache {
            cache.throttle_mut().trace(on);
        }
    }

    /// The throttle's decisions since the last call.
    pub fn take_dirty_traces(&mut self, into: &mut Vec<TraceEvent>) {
        if let Some(cache) = &mut self.cache {
            cache.throttle_mut().take_traces(into);
        }
    }

    /// Changes whenever a volume begins or ceases to hold what could not be written out: then [`Shard::held`] is worth a look.
    #[must_use]
    pub fn held_news(&self) -> u32 {
        self.cache.as_ref().map_or(0, |cache| cache.held_changes())
    }

    /// Bytes of a volume whose write-out failed and that are held, and why it failed last; none if there are none. Only at its
    /// home.
    #[must_use]
    pub fn held(&self, volume: VolumeId) -> Option<(u64, IoError)> {
        self.volume(volume)?;
        self.cache.as_ref()?.held(volume)
    }

    /// Whether something of a volume is held, or was until it was sent again, which may fail once more. Only at its home.
    #[must_use]
    pub fn is_failing(&self, volume: VolumeId) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_failing(volume))
    }

    /// Parts of a volume whose write-out failed and that are held: offset, bytes, error. Only at its home.
    pub fn failed_ranges(&self, volume: VolumeId, into: &mut Vec<(u64, u64, IoError)>) {
        if let Some(cache) = &self.cache
            && self.volume(volume).is_some()
        {
            cache.held_ranges(volume, into);
        }
    }

    /// Checks the cache's tables against each other, between two batches. For tests: it looks at every block.
    ///
    /// # Panics
    /// If something does not hold.
    #[doc(hidden)]
    pub fn check_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.check();
        }
    }

    /// What the cache's operations wait for, for whoever reads of a hang.
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
    /// If something holds or waits for a tag.
    pub fn set_tags(&mut self, device: DeviceId, tags: Box<dyn TagOwner>) {
        if let Some((queue, _)) = self.own(device) {
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

    /// Replaces the elevator of an own device. The queue must be quiet.
    ///
    /// # Panics
    /// If something is queued or in flight.
    pub fn set_elevator(&mut self, device: DeviceId, elevator: Box<dyn Elevator>) {
        if let Some((queue, _)) = self.own(device) {
            queue.set_elevator(elevator);
        }
    }
}
