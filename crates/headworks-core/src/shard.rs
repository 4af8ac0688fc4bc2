//! A single-owner world: everything that one thread decides.
//!
//! A batch of inputs runs under one plug. Bios pass their volume and wait in the plug; answers and messages are taken as they
//! come; when the batch ends the plug is flushed into the queues and every queue that something happened to runs once. So
//! each boundary is crossed once a batch.

use crate::action::{Action, Actions, Notice};
use crate::bio::{Bio, DeviceId, Op, ShardId, VolumeId};
use crate::cache::folio::BLOCK;
use crate::cache::{Cache, CallContext, DeviceCaching};
use crate::device_bio::DeviceBio;
use crate::error::{ConfigError, IoError};
use crate::input::{Control, Input, Message, ReplyStage};
use crate::options::{ExportConfig, ShardConfig, Tunable, VolumeConfig};
use crate::plug::{Offered, Plug, PlugBio};
use crate::pools::Pools;
use crate::queue::{LeaseRequest, Queue, TIMERS, TimerKind};
use crate::remote::RemoteQueue;
use crate::request::{BioOrigin, BioSlot, Bios, SlotId, Slots};
use crate::slab::NIL;
use crate::stats::TurnStats;
use crate::time::Instant;
use crate::timer::TimerWheel;
use crate::volume;
use crate::wait_times::{WaitKind, WaitTimes};

mod change;
mod view;

use change::{Topology, route_to};

/// A device as this shard sees it.
enum DeviceRoute {
    Local(Box<Queue>),
    Remote(Box<RemoteQueue>),
    Unassigned,
}

/// A volume, and what its bios are checked against.
struct VolumeEntry {
    /// Its home is [`NO_SHARD`] while there is no volume here: so no bio finds it, and none pays for the question.
    config: VolumeConfig,
    /// Its device's, which never changes.
    discard_granularity: u32,
}

/// Owns vacant devices, and is the home of vacant volumes.
const NO_SHARD: ShardId = ShardId(u16::MAX);

/// Bios in a shard at once: its clients', and those of the caches of all shards, which may all send to a device of this one.
fn bios_of(config: &ShardConfig) -> u32 {
    config.bios_max + config.cache.bios() * u32::from(config.shards)
}

/// Room for all that one batch can ask for. A bio is answered early and released; what is sent in a batch is answered in a
/// later one, so a device is sent at most what it holds, and each of those may time out.
fn room_for_actions(config: &ShardConfig, volumes_max: usize) -> (usize, usize) {
    let bios = bios_of(config) as usize;
    let (mut list, mut segments) = (2 * bios + volumes_max + 256, 0);
    for device in config.devices.iter().filter(|device| device.owner == config.id) {
        let queue = &device.queue;
        let commands = queue.queue_depth as usize;
        list += 2 * commands;
        // Whatever the limits allow, and no more than one for each bio's end and each full segment.
        let full = queue.max_bytes().div_ceil(queue.max_segment_size) as usize;
        segments += (commands * usize::from(queue.max_segments)).min(bios + commands * full);
    }
    if config.cache.is_on() {
        // What a turn copies, even if block by block.
        list += 4 * config.cache.bios() as usize + 16_384;
    }
    (list, segments)
}

/// One shard. Made once; steps by [`Shard::handle`].
pub struct Shard {
    id: ShardId,
    shards: u16,
    /// Up to the last that was ever there.
    volumes: Vec<VolumeEntry>,
    /// Indexed by device; up to the last that was ever there.
    routes: Vec<DeviceRoute>,
    /// Between the volumes that live here and the plug, if there is one.
    cache: Option<Box<Cache>>,
    /// Client bios in this shard at once.
    bios_max: u32,
    plug: Plug,
    pools: Pools,
    /// One bit per device that must run when the batch ends.
    touched: u64,
    /// The time last asked for by `Action::Timer`.
    timer: Option<Instant>,
    /// The first timer that is no device's.
    timers_of_cache: u32,
    topology: Topology,
    scratch: Vec<SlotId>,
    /// Bios of this turn, and those of them that merged in the plug.
    turn: (u32, u32),
    turns: TurnStats,
}

impl Shard {
    /// A shard of `config`, everything it will ever need allocated.
    ///
    /// # Errors
    /// What `config` says that cannot be.
    pub fn new(config: ShardConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let slots = config.slots_max();
        let queue_timers = config.devices_max() * TIMERS as usize;
        let (volumes_max, exports_max) = (config.volumes_max(), config.exports_max());
        let mut config = config;
        // From here on what is spare looks like what is there.
        config.exports.resize(exports_max, ExportConfig::default());
        let routes: Vec<DeviceRoute> = (0..config.devices.len() as u16)
            .map(|device| route_to(&config, DeviceId(device), slots))
            .collect();
        let (list, segments) = room_for_actions(&config, volumes_max);
        let cache =
            config.cache.is_on().then(|| Box::new(Cache::new(&config, queue_timers as u32)));
        Ok(Self {
            id: config.id,
            shards: config.shards,
            cache,
            bios_max: config.bios_max,
            plug: Plug::new(),
            pools: Pools {
                bios: Bios::new(bios_of(&config)),
                waits_since: vec![0; bios_of(&config) as usize],
                completions: Vec::with_capacity(bios_of(&config) as usize),
                slots: Slots::new(slots),
                actions: Actions::with_capacity(list, segments),
                timers: TimerWheel::new(queue_timers + Cache::timers(&config.cache)),
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
            topology: Topology::new(config, volumes_max),
            scratch: Vec::with_capacity(2 * crate::plug::PLUG_MAX),
            turn: (0, 0),
            turns: TurnStats::default(),
        })
    }

    /// Takes a batch of inputs that came by `now` and adds to the list of actions. The list must be carried out completely,
    /// and cleared with [`Shard::clear_actions`], before the next call.
    pub fn handle(&mut self, now: Instant, inputs: &[Input]) {
        self.plug.start();
        for input in inputs {
            if !matches!(input, Input::Bio(_))
                && let Some(cache) = &mut self.cache
            {
                cache.request_run();
            }
            match *input {
                Input::Bio(bio) => self.on_bio(now, bio),
                Input::Complete { device, completion } => match self.own(device) {
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

    fn on_bio(&mut self, now: Instant, bio: Bio) {
        let reply = |status| Action::Reply {
            id: bio.id,
            status,
            hole: false,
            stage: ReplyStage::Final,
            wait_times: WaitTimes::NONE,
        };
        let volume = self.volumes.get(usize::from(bio.id.volume.0));
        let Some(VolumeEntry { config, discard_granularity: granularity }) =
            volume.filter(|volume| volume.config.home == self.id)
        else {
            self.pools.actions.list.push(reply(Err(IoError::Invalid)));
            return;
        };
        let granularity = *granularity;
        let mut bio = bio;
        let cached = self.cache.as_ref().is_some_and(|cache| cache.caches(bio.id.volume));
        // The cache reads before it writes a block in part; a discard forgets whole blocks of it.
        let (block_size, granularity) = match cached {
            true => (1, granularity.max(BLOCK)),
            false => (config.options.block_size, granularity),
        };
        let checked = volume::check(&config.options, block_size, granularity, &mut bio);
        if let Some(status) = checked {
            self.pools.actions.list.push(reply(status));
            return;
        }
        if self.room() == 0 {
            self.pools.actions.list.push(reply(Err(IoError::NoMemory)));
            return;
        }
        self.turn.0 += 1;
        if cached {
            let (cache, mut turn) = self.cache(now).expect("it caches");
            return cache.on_bio(&mut turn, bio);
        }
        if bio.op == Op::Prefetch {
            self.pools.actions.list.push(reply(Ok(())));
            return;
        }
        self.start(now, bio, BioOrigin::Frontend);
    }

    /// A bio leaves for its device, which may be another shard's.
    fn start(&mut self, now: Instant, bio: Bio, origin: BioOrigin) {
        let config = &self.volumes[usize::from(bio.id.volume.0)].config;
        let (device, block_size) = (config.device, config.options.block_size);
        let slot = self.pools.bios.try_take().expect("there was room, or the cache kept some");
        self.pools.bios[slot] = BioSlot { bio, next: NIL, origin, ..BioSlot::default() };
        self.touched |= 1 << device.0;
        // Own ones first: the others cost a message anyway.
        if let DeviceRoute::Local(_) = &self.routes[usize::from(device.0)] {
            return self.enter(now, device, bio, slot, 0);
        }
        let DeviceRoute::Remote(remote) = &mut self.routes[usize::from(device.0)] else {
            unreachable!("a volume's device stays while the volume is there")
        };
        remote.submit(now, &mut self.pools, slot, block_size);
    }

    /// The cache, and what it is lent for a call.
    fn cache(&mut self, now: Instant) -> Option<(&mut Cache, CallContext<'_>)> {
        let Pools { actions, timers, .. } = &mut self.pools;
        Some((self.cache.as_deref_mut()?, CallContext { now, actions, timers }))
    }

    /// What came back of the cache's bios goes up; what it wants goes down, until it wants nothing more.
    fn run_cache(&mut self, now: Instant) {
        let stirred = self.cache.as_ref().is_some_and(|cache| cache.needs_run());
        if !stirred && self.pools.completions.is_empty() {
            return;
        }
        let mut completions = std::mem::take(&mut self.pools.completions);
        let (cache, mut turn) = self.cache(now).expect("just seen");
        for completion in completions.drain(..) {
            cache.on_completion(&mut turn, completion);
        }
        cache.run(&mut turn);
        let mut down = cache.take_device_bios();
        self.pools.completions = completions;
        for DeviceBio { bio, cookie } in down.drain(..) {
            self.start(now, bio, BioOrigin::Cache { cookie });
        }
        if let Some(cache) = &mut self.cache {
            cache.return_device_bios(down);
        }
    }

    /// Queues may answer at once what the cache sent; what follows from that is done in the same batch.
    fn settle_cache(&mut self, now: Instant) {
        while !self.pools.completions.is_empty() {
            self.plug.start();
            self.run_cache(now);
            if self.plug.finish() {
                self.flush_plug(now);
            }
            self.run_touched(now);
        }
    }

    /// A bio enters the path of a device of this shard.
    fn enter(&mut self, now: Instant, device: DeviceId, bio: Bio, slot: u32, tags: u16) {
        let DeviceRoute::Local(queue) = &mut self.routes[usize::from(device.0)] else {
            unreachable!("only bios for our own devices enter")
        };
        if queue.is_draining() && tags == 0 {
            return queue.hold(now, &mut self.pools, slot);
        }
        self.enter_open(now, now, device, bio, slot, tags);
    }

    /// A bio that came at `came` enters a queue that does not hold it.
    #[inline(always)]
    fn enter_open(
        &mut self,
        now: Instant,
        came: Instant,
        device: DeviceId,
        bio: Bio,
        slot: u32,
        tags: u16,
    ) {
        let DeviceRoute::Local(queue) = &mut self.routes[usize::from(device.0)] else {
            unreachable!("only bios for our own devices enter")
        };
        if bio.op == Op::Flush {
            return queue.flush(now, &mut self.pools, slot);
        }
        let new = PlugBio { bio, slot, since: came, tags };
        loop {
            let DeviceRoute::Local(queue) = &mut self.routes[usize::from(device.0)] else {
                unreachable!("only bios for our own devices enter")
            };
            match self.plug.offer(queue.view(bio.id.volume), &mut self.pools, &new) {
                Offered::Full => self.flush_plug(now),
                offered => {
                    self.turn.1 += u32::from(offered == Offered::Merged);
                    return;
                }
            }
        }
    }

    fn flush_plug(&mut self, now: Instant) {
        let mut ids = std::mem::take(&mut self.scratch);
        while let Some(device) = self.plug.take(&mut ids) {
            if let DeviceRoute::Local(queue) = &mut self.routes[usize::from(device.0)] {
                queue.submit(now, &mut self.pools, &ids);
            }
        }
        self.scratch = ids;
    }

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
                self.thaw(now, DeviceId(device as u16));
            }
        }
    }

    /// A switch is over: what was held enters in its order, under a plug of its own, in which it waited since it came.
    fn thaw(&mut self, now: Instant, device: DeviceId) {
        self.plug.start();
        while let Some((queue, pools)) = self.own(device)
            && let Some(slot) = queue.next_held(pools)
        {
            let (bio, came) = (pools.bios[slot].bio, pools.waits_since(slot));
            pools.bios[slot].wait_times = WaitTimes::NONE.plus(WaitKind::Plug, now.since(came));
            self.enter_open(now, came, device, bio, slot, 0);
        }
        if self.plug.finish() {
            self.flush_plug(now);
        }
        if let Some((queue, pools)) = self.own(device) {
            queue.run(now, pools);
        }
        self.touched &= !(1 << device.0);
    }

    fn on_timer(&mut self, now: Instant) {
        // The driver's timer is spent; if another time is due it is announced anew.
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
                DeviceRoute::Local(_) => {}
                DeviceRoute::Remote(remote) => remote.on_idle(&mut self.pools),
                DeviceRoute::Unassigned => {}
            }
        }
    }

    fn on_message(&mut self, now: Instant, from: ShardId, message: Message) {
        match message {
            Message::Bio { bio, cookie, tags } => self.on_remote_bio(now, from, bio, cookie, tags),
            Message::Done { cookie, id, status, hole, stage, wait_times } => {
                let Some(config) = self.volume(id.volume) else {
                    return;
                };
                let Some((remote, pools)) = self.remote(config.device) else {
                    return;
                };
                let known = pools.bios.is_taken(cookie) && pools.bios[cookie].bio.id == id;
                assert!(known, "an owner answers what it was given");
                pools.bios[cookie].wait_times = pools.bios[cookie].wait_times.and(wait_times);
                remote.on_done(pools, cookie, status, hole, stage);
            }
            Message::TagWant { device, want, bytes, weight } => {
                if let Some((queue, pools)) = self.own(device) {
                    queue.on_lease_request(
                        now,
                        pools,
                        from,
                        LeaseRequest { tags: want, bytes, weight },
                    );
                }
            }
            Message::TagReturn { device, count } => {
                if let Some((queue, _)) = self.own(device) {
                    queue.on_tag_return(from, count);
                }
            }
            Message::TagGrant { device, count } => {
                if let Some((remote, pools)) = self.remote(device) {
                    remote.on_grant(now, pools, count);
                }
            }
            Message::Limits { device, nr_requests, max_sectors_kb } => {
                if self.is_owned_by(device, from)
                    && let Some((remote, _)) = self.remote(device)
                {
                    remote.on_limits(nr_requests, max_sectors_kb);
                }
            }
            Message::Caching { device, read_ahead_kb, max_folio_order } => {
                if self.is_owned_by(device, from)
                    && let Some(cache) = &mut self.cache
                {
                    let caching = DeviceCaching { read_ahead_kb, max_folio_order };
                    cache.set_caching(usize::from(device.0), caching);
                }
            }
            Message::TagRevoke { device } => {
                if let Some((remote, pools)) = self.remote(device) {
                    remote.on_revoke(pools);
                }
            }
        }
    }

    fn on_remote_bio(&mut self, now: Instant, from: ShardId, bio: Bio, cookie: u32, tags: u16) {
        let config = self.volume(bio.id.volume);
        let Some(device) = config.map(|config| config.device).filter(|&d| self.queue(d).is_some())
        else {
            // Shards hear of changes at different times.
            return self.refuse(from, &bio, cookie, IoError::Invalid);
        };
        let origin = BioOrigin::Shard { shard: from, cookie };
        // What this shard's own cache was promised is not given away.
        let kept = self.cache.as_ref().map_or(0, |cache| cache.kept());
        let bios = &mut self.pools.bios;
        let free = bios.capacity() - bios.taken();
        let slot = if free > kept { bios.try_take() } else { None };
        let Some(slot) = slot else {
            return self.refuse(from, &bio, cookie, IoError::NoMemory);
        };
        self.pools.bios[slot] = BioSlot { bio, next: NIL, origin, tags, ..BioSlot::default() };
        self.touched |= 1 << device.0;
        self.enter(now, device, bio, slot, tags);
    }

    /// Another shard's bio goes back as it came.
    fn refuse(&mut self, to: ShardId, bio: &Bio, cookie: u32, error: IoError) {
        let (id, status, stage, wait_times) =
            (bio.id, Err(error), ReplyStage::Final, WaitTimes::NONE);
        let message = Message::Done { cookie, id, status, hole: false, stage, wait_times };
        self.pools.actions.list.push(Action::Send { to, message });
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
                if let Some(cache) = &mut self.cache {
                    cache.discard_held(volume);
                }
                if let Some((queue, _)) = self.own(config.device) {
                    queue.acknowledge(volume);
                }
            }
            Control::Resize { volume, size } => {
                let Some(config) = self.volume(volume) else {
                    return;
                };
                // What became larger than that is served as far as it goes.
                let size = size.min(config.options.size_max());
                self.volumes[usize::from(volume.0)].config.options.size = size;
                if let Some((cache, mut turn)) = self.cache(now) {
                    cache.on_resize(&mut turn, volume, size);
                }
            }
            Control::Set { device, tunable, value, token } => match self.own(device) {
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
                self.topology.set_weight(export, weight);
                for route in &mut self.routes {
                    match route {
                        DeviceRoute::Local(queue) => queue.set_weight(export, weight),
                        DeviceRoute::Remote(remote) => remote.set_weight(export, weight),
                        DeviceRoute::Unassigned => {}
                    }
                }
            }
        }
    }

    /// How volumes of a device are cached changes at once, on every shard.
    fn set_caching(&mut self, device: DeviceId, tunable: Tunable, value: u64, token: u32) {
        let changed = self.own(device).map(|(queue, _)| queue.set_caching(tunable, value));
        let status = changed.unwrap_or(Err(IoError::Invalid));
        self.pools.actions.list.push(Action::Notice(Notice::Set { token, status }));
        let Some(options) = self.queue_options(device) else {
            return;
        };
        let (read_ahead_kb, max_folio_order) = (options.read_ahead_kb, options.max_folio_order);
        if let Some(cache) = &mut self.cache {
            cache.set_caching(
                usize::from(device.0),
                DeviceCaching { read_ahead_kb, max_folio_order },
            );
        }
        for shard in (0..self.shards).filter(|&shard| shard != self.id.0) {
            let message = Message::Caching { device, read_ahead_kb, max_folio_order };
            self.pools.actions.list.push(Action::Send { to: ShardId(shard), message });
        }
    }

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

    /// A queue of this shard, which will run when the batch ends.
    fn own(&mut self, device: DeviceId) -> Option<(&mut Queue, &mut Pools)> {
        match self.routes.get_mut(usize::from(device.0)) {
            Some(DeviceRoute::Local(queue)) => {
                self.touched |= 1 << device.0;
                Some((queue, &mut self.pools))
            }
            _ => None,
        }
    }

    /// The route to another shard's queue, which will run when the batch ends.
    fn remote(&mut self, device: DeviceId) -> Option<(&mut RemoteQueue, &mut Pools)> {
        match self.routes.get_mut(usize::from(device.0)) {
            Some(DeviceRoute::Remote(remote)) => {
                self.touched |= 1 << device.0;
                Some((remote, &mut self.pools))
            }
            _ => None,
        }
    }

    /// Who owned what was in the device's place before has no say in it.
    fn is_owned_by(&self, device: DeviceId, shard: ShardId) -> bool {
        let route = self.routes.get(usize::from(device.0));
        matches!(route, Some(DeviceRoute::Remote(remote)) if remote.owner() == shard)
    }

    /// A volume, if there is one of that name.
    fn volume(&self, volume: VolumeId) -> Option<&VolumeConfig> {
        let place = self.volumes.get(usize::from(volume.0))?;
        (place.config.home != NO_SHARD).then_some(&place.config)
    }

    fn queue(&self, device: DeviceId) -> Option<&Queue> {
        match self.routes.get(usize::from(device.0)) {
            Some(DeviceRoute::Local(queue)) => Some(queue),
            _ => None,
        }
    }
}
