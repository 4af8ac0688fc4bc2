//! A shard: the block I/O path of the volumes and devices of one thread.
//!
//! ```text
//!   Input::Bio --volume check--> cache (if the volume is cached) --> plug --> queue --> Action::Submit
//!                                                       \--> remote queue --> Action::Send to the device's shard
//! ```
//!
//! [`Shard::handle`] runs a batch of inputs under one plug: bios collect in the plug, completions and messages are handled as
//! they come. At the end of the batch the plug is flushed into the queues, and each queue that had an event runs once.
//!
//! A device belongs to one shard. Other shards reach it through a [`RemoteQueue`] and messages.

use crate::action::{Action, Actions, Notice};
use crate::bio::{Bio, BioFlags, BioId, DeviceId, Op, ShardId, VolumeId};
use crate::cache::folio::BLOCK;
use crate::cache::{Cache, CallContext};
use crate::device_bio::DeviceBio;
use crate::error::{ConfigError, IoError, Status};
use crate::input::{Control, Input, Message, ReplyStage};
use crate::options::{
    DEVICES_MAX, ExportConfig, ShardConfig, TENANTS_MAX, TenantConfig, Tunable, VolumeConfig,
};
use crate::plug::{Offered, Plug, PlugBio};
use crate::pools::Pools;
use crate::queue::{DeviceState, Queue, TIMERS, TimerKind};
use crate::remote::RemoteQueue;
use crate::request::{BioOrigin, BioSlot, Bios, SlotId, Slots};
use crate::shares::ShareChange;
use crate::slab::NIL;
use crate::stats::TurnStats;
use crate::time::Instant;
use crate::timer::TimerWheel;
use crate::volume;
use crate::wait_times::{WaitKind, WaitTimes};

mod change;
mod contents;
mod messages;
mod route;
mod topology;
mod view;
mod waits;

use route::{DeviceRoute, VolumeEntry};
use topology::Topology;
pub use waits::BioWait;

// `Shard::touched` has one bit per device.
const _: () = assert!(DEVICES_MAX <= u64::BITS as usize);

/// A single-owner state machine that decides about all I/O of one thread.
pub struct Shard {
    id: ShardId,
    /// Number of shards.
    shards: u16,
    /// By volume id, up to the highest that was ever in use.
    volumes: Vec<VolumeEntry>,
    /// By device id, up to the highest that was ever in use.
    routes: Vec<DeviceRoute>,
    /// The page cache of the volumes that live here.
    cache: Option<Box<Cache>>,
    /// Most client bios in this shard.
    bios_max: u32,
    plug: Plug,
    pools: Pools,
    /// Devices that run at the end of the batch, a bit each.
    touched: u64,
    /// The time last requested by `Action::Timer`.
    timer: Option<Instant>,
    /// The first timer of the cache; the ones before belong to devices.
    timers_of_cache: u32,
    topology: Topology,
    scratch: Vec<SlotId>,
    /// Bios of this turn, and how many of them merged in the plug.
    turn: (u32, u32),
    turns: TurnStats,
    /// Counts, wrapping, how often a device ceased to answer or began to answer again.
    device_changes: u32,
}

impl Shard {
    /// Creates a shard and allocates everything that it will need.
    ///
    /// # Errors
    /// The first invalid value of `config`.
    pub fn new(mut config: ShardConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let slots = config.slots_max();
        let queue_timers = config.devices_max() * TIMERS as usize;
        let exports_max = config.exports_max();
        // Spare exports have the default weight until they are added.
        config.exports.resize(exports_max, ExportConfig::default());
        config.tenants.resize(TENANTS_MAX, TenantConfig::default());
        let routes: Vec<DeviceRoute> = (0..config.devices.len() as u16)
            .map(|device| DeviceRoute::new(&config, DeviceId(device), slots))
            .collect();
        let topology = Topology::new(&config);
        let (list, segments) = topology.room_for_actions();
        let cache =
            config.cache.is_on().then(|| Box::new(Cache::new(&config, queue_timers as u32)));
        let mut actions = Actions::with_capacity(list, segments);
        if cache.is_some() {
            actions.make_room_for_ranges();
        }
        Ok(Self {
            id: config.id,
            shards: config.shards,
            cache,
            bios_max: config.bios_max,
            plug: Plug::new(),
            pools: Pools {
                bios: Bios::new(config.bios_total()),
                waits_since: vec![0; config.bios_total() as usize],
                completions: Vec::with_capacity(config.bios_total() as usize),
                slots: Slots::new(slots),
                actions,
                timers: TimerWheel::new(queue_timers + Cache::timers(&config.cache)),
                state_changes: 0,
                spare_slots: 0,
            },
            routes,
            volumes: config
                .volumes
                .iter()
                .map(|volume| VolumeEntry::new(&config, *volume))
                .collect(),
            touched: 0,
            timer: None,
            timers_of_cache: queue_timers as u32,
            topology,
            scratch: Vec::with_capacity(2 * crate::plug::PLUG_MAX),
            turn: (0, 0),
            turns: TurnStats::default(),
            device_changes: 0,
        })
    }

    /// Handles a batch of inputs that arrived by `now` and appends to [`Shard::actions`].
    ///
    /// The driver executes all actions in order and calls [`Shard::clear_actions`] before the next call.
    pub fn handle(&mut self, now: Instant, inputs: &[Input]) {
        self.plug.start();
        if let Some(cache) = &mut self.cache
            && cache.has_renamed()
        {
            cache.report_renamed(&mut self.pools.actions);
        }
        for input in inputs {
            if !matches!(input, Input::Bio(_))
                && let Some(cache) = &mut self.cache
            {
                cache.request_run();
            }
            match *input {
                Input::Bio(bio) => self.on_bio(now, bio),
                Input::Complete { device, completion } => match self.local(device) {
                    Some((queue, pools)) => queue.on_complete(now, pools, completion),
                    None => {
                        let notice = Notice::UnknownCompletion { device, id: completion.id };
                        self.pools.actions.list.push(Action::Notice(notice));
                    }
                },
                Input::Timer => self.on_timer(now),
                Input::Message { from, message } => self.on_message(now, from, message),
                Input::Control(control) => self.on_control(now, control),
                Input::Close { connection } => {
                    if let Some((cache, mut turn)) = self.cache(now) {
                        cache.on_close(&mut turn, connection);
                    }
                }
            }
        }
        self.run_cache(now);
        if self.plug.finish() {
            self.flush_plug(now);
        }
        self.run_touched(now);
        self.settle_cache(now);
        self.announce_timer();
        let (bios, merges) = std::mem::take(&mut self.turn);
        self.turns.on_turn(bios, merges);
    }

    fn on_bio(&mut self, now: Instant, mut bio: Bio) {
        let volume = self.volumes.get(usize::from(bio.id.volume.0));
        let Some(VolumeEntry { config, discard_granularity: granularity, is_void }) =
            volume.filter(|volume| volume.config.home == self.id)
        else {
            return self.reply(bio.id, Err(IoError::Invalid));
        };
        if *is_void {
            return self.reply(bio.id, Err(IoError::ShutDown));
        }
        let granularity = *granularity;
        let cached = self.cache.as_ref().is_some_and(|cache| cache.caches(bio.id.volume));
        // The cache reads before it writes part of a block; a discard drops whole blocks.
        let (block_size, granularity) = match cached {
            true => (1, granularity.max(BLOCK)),
            false => (config.options.block_size, granularity),
        };
        let checked = volume::check(&config.options, block_size, granularity, &mut bio);
        if let Some(status) = checked {
            return self.reply(bio.id, status);
        }
        if self.room() == 0 {
            return self.reply(bio.id, Err(IoError::NoMemory));
        }
        self.turn.0 += 1;
        if cached {
            let (cache, mut turn) = self.cache(now).expect("it caches");
            return cache.on_bio(&mut turn, bio);
        }
        let for_caches = bio.flags.contains(BioFlags::NO_BUFFER) || bio.op == Op::Prefetch;
        if for_caches && self.answer_uncached(&bio) {
            return;
        }
        self.start(now, now, &bio, BioOrigin::Frontend);
    }

    /// Answers a client's bio that goes no further.
    fn reply(&mut self, id: BioId, status: Status) {
        let (hole, stage, wait_times) = (false, ReplyStage::Final, WaitTimes::NONE);
        self.pools.actions.list.push(Action::Reply { id, status, hole, stage, wait_times });
    }

    /// Answers what only a cache carries out, for a volume without one; returns false for any other bio.
    #[cold]
    fn answer_uncached(&mut self, bio: &Bio) -> bool {
        if bio.has_no_buffer() {
            let wait_times = WaitTimes::NONE;
            self.pools.actions.list.push(Action::NeedsBuffer { id: bio.id, wait_times });
            return true;
        }
        if bio.op == Op::Prefetch {
            self.reply(bio.id, Ok(()));
            return true;
        }
        false
    }

    /// Sends a bio towards its device, local or remote; its wait for that is limited from `since` on.
    #[inline(always)]
    fn start(&mut self, now: Instant, since: Instant, bio: &Bio, origin: BioOrigin) {
        let config = &self.volumes[usize::from(bio.id.volume.0)].config;
        let (device, block_size) = (config.device, config.options.block_size);
        let slot = self.pools.bios.try_take().expect("a slot was free, or reserved for the cache");
        self.pools.bios[slot] = BioSlot { bio: *bio, next: NIL, origin, ..BioSlot::default() };
        self.touched |= 1 << device.0;
        match &mut self.routes[usize::from(device.0)] {
            DeviceRoute::Local(_) => {
                let new = PlugBio { bio, slot, since: now, waits_since: since, tags: 0 };
                self.enter(now, device, &new);
            }
            DeviceRoute::Remote(remote) => {
                remote.submit((now, since), &mut self.pools, slot, block_size);
            }
            DeviceRoute::Unassigned => unreachable!("a device is removed after its volumes"),
        }
    }

    /// The cache, and the parts of the shard that it borrows for a call.
    fn cache(&mut self, now: Instant) -> Option<(&mut Cache, CallContext<'_>)> {
        let Pools { actions, timers, .. } = &mut self.pools;
        Some((self.cache.as_deref_mut()?, CallContext { now, actions, timers }))
    }

    /// Hands completions to the cache, runs it, and sends its bios to their devices.
    fn run_cache(&mut self, now: Instant) {
        if self.pools.state_changes != 0 {
            self.tell_cache_of_states(now);
        }
        let stirred = self.cache.as_ref().is_some_and(|cache| cache.needs_run());
        if !stirred && self.pools.completions.is_empty() {
            return;
        }
        let mut completions = std::mem::take(&mut self.pools.completions);
        let (cache, mut turn) = self.cache(now).expect("only a cache has completions");
        for completion in completions.drain(..) {
            cache.on_completion(&mut turn, completion);
        }
        cache.run(&mut turn);
        let mut down = cache.take_device_bios();
        self.pools.completions = completions;
        for DeviceBio { bio, cookie, since } in down.drain(..) {
            self.start(now, since, &bio, BioOrigin::Cache { cookie });
        }
        if let Some(cache) = &mut self.cache {
            cache.return_device_bios(down);
        }
    }

    /// Tells the cache which devices have ceased to answer, or answer again.
    #[cold]
    fn tell_cache_of_states(&mut self, now: Instant) {
        let changes = std::mem::take(&mut self.pools.state_changes);
        self.device_changes = self.device_changes.wrapping_add(1);
        for device in (0..self.routes.len()).filter(|device| changes >> device & 1 != 0) {
            let Some((state, unresponsive)) = self.device_answers(device) else {
                continue;
            };
            if let Some((cache, mut turn)) = self.cache(now) {
                cache.set_silent(&mut turn, device, (state == DeviceState::Stuck, unresponsive));
            }
        }
    }

    /// Returns the state of a device, and whether it is unresponsive, as far as this shard knows.
    fn device_answers(&self, device: usize) -> Option<(DeviceState, bool)> {
        match &self.routes[device] {
            DeviceRoute::Local(queue) => Some((queue.state(), queue.is_unresponsive())),
            DeviceRoute::Remote(remote) => Some((remote.state(), remote.is_unresponsive())),
            DeviceRoute::Unassigned => None,
        }
    }

    /// Repeats [`Shard::run_cache`] while queues answer the cache's bios at once, or devices cease to answer.
    fn settle_cache(&mut self, now: Instant) {
        while !self.pools.completions.is_empty() || self.pools.state_changes != 0 {
            self.plug.start();
            self.run_cache(now);
            if self.plug.finish() {
                self.flush_plug(now);
            }
            self.run_touched(now);
        }
    }

    /// Passes a bio to a local device, whose queue holds it while its options change.
    #[inline(always)]
    fn enter(&mut self, now: Instant, device: DeviceId, new: &PlugBio<'_>) {
        let queue = self.routes[usize::from(device.0)].local();
        if queue.is_draining() && new.tags == 0 {
            return queue.hold(now, &mut self.pools, new.slot);
        }
        self.enter_open(now, device, new);
    }

    /// Passes a bio to a local device that does not hold it.
    #[inline(always)]
    fn enter_open(&mut self, now: Instant, device: DeviceId, new: &PlugBio<'_>) {
        let queue = self.routes[usize::from(device.0)].local();
        if new.bio.op == Op::Flush {
            return queue.flush(now, &mut self.pools, new.slot);
        }
        loop {
            let queue = self.routes[usize::from(device.0)].local();
            match self.plug.offer(queue.view(new.bio.id.volume), &mut self.pools, new) {
                Offered::Full => self.flush_plug(now),
                offered => {
                    self.turn.1 += u32::from(offered == Offered::Merged);
                    return;
                }
            }
        }
    }

    /// Submits the plugged requests to their queues.
    fn flush_plug(&mut self, now: Instant) {
        let mut ids = std::mem::take(&mut self.scratch);
        while let Some(device) = self.plug.take(&mut ids) {
            self.routes[usize::from(device.0)].local().submit(now, &mut self.pools, &ids);
        }
        self.scratch = ids;
    }

    /// Runs the queues that had an event in this batch.
    fn run_touched(&mut self, now: Instant) {
        let mut touched = std::mem::take(&mut self.touched);
        while touched != 0 {
            let device = touched.trailing_zeros() as usize;
            touched &= touched - 1;
            let open = match self.routes.get_mut(device) {
                Some(DeviceRoute::Local(queue)) => queue.run(now, &mut self.pools),
                Some(DeviceRoute::Remote(remote)) => {
                    remote.run(now, &mut self.pools);
                    false
                }
                Some(DeviceRoute::Unassigned) | None => false,
            };
            if open {
                self.release_held(now, DeviceId(device as u16));
            }
        }
    }

    /// Releases the bios that a queue held while its options changed, in order, under a plug of their own. Their wait counts as
    /// time in the plug.
    fn release_held(&mut self, now: Instant, device: DeviceId) {
        let io_timeout_ns = self.queue(device).map(|queue| queue.options().io_timeout_ns);
        if let (Some(cache), Some(io_timeout_ns)) = (&mut self.cache, io_timeout_ns) {
            cache.set_io_timeout(usize::from(device.0), io_timeout_ns);
        }
        self.plug.start();
        while let Some((queue, pools)) = self.local(device)
            && let Some(slot) = queue.next_held(pools)
        {
            let (bio, came) = (pools.bios[slot].bio, pools.waits_since(slot));
            pools.bios[slot].wait_times = WaitTimes::NONE.plus(WaitKind::Plug, now.since(came));
            let new = PlugBio { bio: &bio, slot, since: came, waits_since: came, tags: 0 };
            self.enter_open(now, device, &new);
        }
        if self.plug.finish() {
            self.flush_plug(now);
        }
        if let Some((queue, pools)) = self.local(device) {
            queue.run(now, pools);
        }
        self.touched &= !(1 << device.0);
    }

    fn on_timer(&mut self, now: Instant) {
        // The driver's timer has expired; the next one is announced at the end of the batch.
        self.timer = None;
        self.pools.timers.set_changed();
        while let Some(timer) = self.pools.timers.expire(now) {
            let device = timer / TIMERS;
            if timer >= self.timers_of_cache {
                if let Some((cache, mut turn)) = self.cache(now) {
                    cache.on_timer(&mut turn, timer);
                }
                continue;
            }
            self.touched |= 1 << device;
            let kind = timer % TIMERS;
            match &mut self.routes[device as usize] {
                DeviceRoute::Local(queue) if kind == TimerKind::Timeout as u32 => {
                    queue.on_timeout(now, &mut self.pools);
                }
                DeviceRoute::Local(queue) if kind == TimerKind::Retry as u32 => queue.on_retry(),
                DeviceRoute::Local(queue) if kind == TimerKind::Expiry as u32 => queue.on_expiry(),
                DeviceRoute::Local(_) => {}
                DeviceRoute::Remote(remote) if kind == TimerKind::Expiry as u32 => {
                    remote.on_expiry(now, &mut self.pools);
                }
                DeviceRoute::Remote(remote) => remote.on_idle(&mut self.pools),
                DeviceRoute::Unassigned => {}
            }
        }
    }

    fn on_control(&mut self, now: Instant, control: Control) {
        match control {
            Control::Set { device, tunable, value, token } if tunable.is_caching() => {
                self.set_caching(device, tunable, value, token);
            }
            Control::Acknowledge { volume } => {
                let Some(config) = self.volume(volume).copied() else {
                    return;
                };
                if let Some((cache, mut turn)) = self.cache(now) {
                    cache.discard_held(&mut turn, volume);
                }
                if let Some((queue, _)) = self.local(config.device) {
                    queue.acknowledge(volume);
                }
            }
            Control::Suspect { volume } => {
                let device = self.volume(volume).map(|config| config.device);
                if let Some((queue, _)) = device.and_then(|device| self.local(device)) {
                    queue.suspect(volume);
                }
            }
            Control::Void { volume } => {
                let device = self.volume(volume).map(|config| config.device);
                if let Some(entry) = self.volumes.get_mut(usize::from(volume.0)) {
                    entry.is_void = device.is_some();
                }
                if let Some((queue, _)) = device.and_then(|device| self.local(device)) {
                    queue.suspect(volume);
                }
            }
            Control::Resize { volume, size } => {
                let Some(config) = self.volume(volume) else {
                    return;
                };
                // A larger file is served up to the limit.
                let size = size.min(config.options.size_max());
                self.volumes[usize::from(volume.0)].config.options.size = size;
                if let Some((cache, mut turn)) = self.cache(now) {
                    cache.on_resize(&mut turn, volume, size);
                }
            }
            Control::CacheLimit { units, dirtyable } => {
                if let Some((cache, _)) = self.cache(now) {
                    cache.set_limit(units, dirtyable);
                }
            }
            Control::CacheMemory { first, units, had } => {
                if let Some((cache, _)) = self.cache(now) {
                    cache.on_memory((first, units), had);
                }
            }
            Control::Freeze { on } => {
                if let Some((cache, mut turn)) = self.cache(now) {
                    cache.set_frozen(&mut turn, on);
                }
            }
            Control::Set { device, tunable, value, token } => match self.local(device) {
                Some((queue, pools)) => queue.set(pools, tunable, value, token),
                None => {
                    let status = Err(IoError::Invalid);
                    self.pools.actions.list.push(Action::Notice(Notice::Set { token, status }));
                }
            },
            Control::SetDirty { tunable, value, token } => {
                let status = match &mut self.cache {
                    Some(cache) => {
                        let mut dirty = cache.dirty_options();
                        let set = tunable.set(&mut dirty, value).map_err(|_| IoError::Invalid);
                        if set.is_ok() {
                            cache.set_dirty(now, dirty);
                        }
                        set
                    }
                    None => Err(IoError::Unsupported),
                };
                self.pools.actions.list.push(Action::Notice(Notice::Set { token, status }));
            }
            Control::Weight { export, weight } => {
                self.change_shares(now, ShareChange::ExportWeight(export, weight));
            }
            Control::TenantWeight { tenant, weight } => {
                self.change_shares(now, ShareChange::TenantWeight(tenant, weight));
            }
            Control::ExportTarget { export, target_us } => {
                self.change_shares(now, ShareChange::ExportTarget(export, target_us));
            }
            Control::TenantMemory { tenant, memory } => {
                if let Some(cache) = &mut self.cache {
                    cache.set_tenant_memory(tenant, memory);
                }
            }
            Control::ExportDirty { export, dirty_max } => {
                if let Some(cache) = &mut self.cache {
                    cache.set_export_dirty(export, dirty_max);
                }
            }
            Control::ExportTenant { export, tenant } => {
                self.change_shares(now, ShareChange::ExportTenant(export, tenant));
            }
        }
    }

    /// Changes the shares of exports and tenants on every device.
    fn change_shares(&mut self, now: Instant, change: ShareChange) {
        self.topology.change_shares(change);
        if let Some(cache) = &mut self.cache {
            cache.change_shares(change);
        }
        for (device, route) in self.routes.iter_mut().enumerate() {
            match route {
                DeviceRoute::Local(queue) => {
                    queue.change_shares(now, change);
                    // What waited for the limit of a target that is gone goes on.
                    self.touched |= 1 << device;
                }
                DeviceRoute::Remote(remote) => remote.change_shares(change),
                DeviceRoute::Unassigned => {}
            }
        }
    }

    /// Changes how a device's volumes are cached, at once on every shard.
    fn set_caching(&mut self, device: DeviceId, tunable: Tunable, value: u64, token: u32) {
        let changed = self.local(device).map(|(queue, _)| queue.set_caching(tunable, value));
        let status = changed.unwrap_or(Err(IoError::Invalid));
        self.pools.actions.list.push(Action::Notice(Notice::Set { token, status }));
        let Some(options) = self.queue_options(device) else {
            return;
        };
        let (read_ahead_kb, max_folio_order) = (options.read_ahead_kb, options.max_folio_order);
        if let Some(cache) = &mut self.cache {
            cache.set_caching(usize::from(device.0), read_ahead_kb, max_folio_order);
        }
        for shard in (0..self.shards).filter(|&shard| shard != self.id.0) {
            let message = Message::Caching { device, read_ahead_kb, max_folio_order };
            self.pools.actions.list.push(Action::Send { to: ShardId(shard), message });
        }
    }

    /// Requests a timer if one is due earlier than the one requested before.
    fn announce_timer(&mut self) {
        if !self.pools.timers.take_changed() {
            return;
        }
        let next = self.pools.timers.next();
        if let Some(at) = next
            && self.timer.is_none_or(|announced| at < announced)
        {
            self.timer = next;
            self.pools.actions.list.push(Action::Timer { at });
        }
    }

    /// A local queue, which then runs at the end of the batch.
    fn local(&mut self, device: DeviceId) -> Option<(&mut Queue, &mut Pools)> {
        match self.routes.get_mut(usize::from(device.0)) {
            Some(DeviceRoute::Local(queue)) => {
                self.touched |= 1 << device.0;
                Some((queue, &mut self.pools))
            }
            _ => None,
        }
    }

    /// A remote queue, which then runs at the end of the batch.
    fn remote(&mut self, device: DeviceId) -> Option<(&mut RemoteQueue, &mut Pools)> {
        match self.routes.get_mut(usize::from(device.0)) {
            Some(DeviceRoute::Remote(remote)) => {
                self.touched |= 1 << device.0;
                Some((remote, &mut self.pools))
            }
            _ => None,
        }
    }

    /// Whether a message about a device comes from its owner and not from the owner of a device that had the id before.
    fn is_owned_by(&self, device: DeviceId, shard: ShardId) -> bool {
        let route = self.routes.get(usize::from(device.0));
        matches!(route, Some(DeviceRoute::Remote(remote)) if remote.owner() == shard)
    }

    /// The configuration of a volume that exists.
    fn volume(&self, volume: VolumeId) -> Option<&VolumeConfig> {
        self.volumes.get(usize::from(volume.0))?.volume()
    }

    /// The queue of a local device.
    fn queue(&self, device: DeviceId) -> Option<&Queue> {
        match self.routes.get(usize::from(device.0)) {
            Some(DeviceRoute::Local(queue)) => Some(queue),
            _ => None,
        }
    }
    fn queue_mut(&mut self, device: DeviceId) -> Option<&mut Queue> {
        match self.routes.get_mut(usize::from(device.0)) {
            Some(DeviceRoute::Local(queue)) => Some(queue),
            _ => None,
        }
    }
}
