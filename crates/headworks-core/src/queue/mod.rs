//! The queue of one device, on its owner's shard: everything between the plug and the device.
//!
//! Decides who is admitted, what merges with what waits, how a bio over the limits is split, and how much the device gets. Its
//! parts, in the order of a request's life: `merging`, `admit`, `dispatch`, `complete` (what an answer of the device means),
//! `flush` (the durability contract), `timeout` (giving up on commands); beside it `leases` (tags for other shards) and
//! `switch` (other options while it works).
//!
//! ```text
//!  plug --ids--> submit: merge into what waits | ask for tags
//!                   | granted                     | not now
//!                   v                             v
//!                 ready (split into pieces)     the owner's line --grant--> ready
//!                   |
//!                 elevator --batch, as much as the device takes--> in flight --answer--> complete
//!                   ^------------- requeue list <---refused-------------'
//! ```
//!
//! Invariants: `in_flight <= queue_depth`; a request below the gate holds a tag, its own or its origin's lease; what waits
//! (in line or in the elevator) can be found by the merge index, what is in flight cannot; nothing leaves the elevator that
//! the device cannot take; whoever waits is ended by a completion, by a grant that a completion causes, or by a timer.

mod admit;
mod complete;
mod dispatch;
mod flush;
mod leases;
mod merging;
mod switch;
mod timeout;
mod view;

pub(crate) use admit::{Weights, cost_bytes, pieces};
pub(crate) use leases::Wish;
pub(crate) use view::QueueView;

use crate::action::{Action, Actions};
use crate::bio::{DeviceId, Ioprio, Op, ShardId, VolumeId};
use crate::device_bio::DeviceCompletion;
use crate::elevator::{self, Batch, Elevator, EndedRequest};
use crate::error::{IoError, Status};
use crate::input::{Message, ReplyStage};
use crate::list::List;
use crate::merge::{Limits, MergeIndex};
use crate::options::{QueueOptions, ShardConfig};
use crate::request::{Bios, FlightLink, Origin, QueueLink, Request, SlotId, Slots, State};
use crate::stats::{QueueStats, VolumeStats};
use crate::tags::{self, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest};
use crate::time::{Instant, MS};
use crate::timer::TimerWheel;
use admit::inflight_max;
use flush::FlushSequence;
use leases::Leases;
use switch::Switch;

/// A device that refused and answers nothing else is asked again after this long; as Linux (BLK_MQ_RESOURCE_DELAY).
const RETRY_NS: u64 = 3 * MS;

/// The pools and the list of actions that all parts of a shard share.
pub(crate) struct Pools {
    pub bios: Bios,
    /// By bio: since when it waits for a device flush, or for the end of a switch. Beside the bios, of which each fills a line of
    /// the CPU's cache, because few ever wait so; plain numbers, because memory of zeros costs nothing until it is used.
    pub waits_since: Vec<u64>,
    pub slots: Slots,
    pub actions: Actions,
    pub timers: TimerWheel,
    /// Completions of the cache's bios in this batch.
    pub completions: Vec<DeviceCompletion>,
    /// Slots that were made for tags of devices that have left.
    pub slots_left_over: u32,
}

impl Pools {
    /// A bio begins to wait where no request counts its time.
    pub fn begin_wait(&mut self, now: Instant, slot: u32) {
        self.waits_since[slot as usize] = now.0;
    }

    /// Since when.
    pub fn waits_since(&self, slot: u32) -> Instant {
        Instant(self.waits_since[slot as usize])
    }
}

/// A device's timers, `device * TIMERS + one of these` on the shard's wheel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerKind {
    /// The oldest command in flight may have timed out.
    Timeout = 0,
    /// Ask a device again that refused.
    Retry = 1,
    /// A lease of this device has been idle.
    LeaseIdle = 2,
    /// The elevator has something though nothing happened.
    Elevator = 3,
    /// The tag policy has something though nothing came back.
    Tags = 4,
}

/// Timers per device.
pub(crate) const TIMERS: u32 = 5;

/// A device leaves, and its timers with it.
pub(crate) fn clear_timers(pools: &mut Pools, device: DeviceId) {
    (0..TIMERS).for_each(|kind| pools.timers.clear(u32::from(device.0) * TIMERS + kind));
}

/// The wheel's name for a device's timer.
pub(crate) fn timer_of(device: DeviceId, kind: TimerKind) -> u32 {
    u32::from(device.0) * TIMERS + kind as u32
}

/// What the queue keeps for each of its volumes.
pub(crate) struct VolumeQueue {
    /// Pieces of split bios are cut at multiples of this.
    block_size: u32,
    flush: FlushSequence,
    /// Writes whose data the device finished: what a flush can cover.
    writes_completed: u64,
    /// The same count when the last good flush was submitted.
    writes_flushed: u64,
    /// A device flush failed and nobody acknowledged it.
    suspect: bool,
    pub stats: VolumeStats,
}

/// One device's queue.
pub(crate) struct Queue {
    device: DeviceId,
    owner: ShardId,
    options: QueueOptions,
    limits: Limits,
    /// A cache writes out through it.
    cached: bool,
    tags: Box<dyn TagOwner>,
    elevator: Box<dyn Elevator>,
    index: MergeIndex,
    /// Indexed by volume; only the device's own are there.
    volumes: Vec<Option<Box<VolumeQueue>>>,
    leases: Leases,
    /// Requests in the elevator and in the requeue list.
    queued: u32,
    in_flight: u32,
    /// Commands in flight, oldest first.
    flight: List<FlightLink>,
    /// Refused requests in the order in which they left the elevator.
    requeue: List<QueueLink>,
    /// The device refused; it is asked again when it answers something, or after `RETRY_NS`.
    busy: bool,
    /// Timed-out writes that are still in the device.
    zombies: u32,
    /// Tags that fell free in this batch.
    freed: ReturnedTags,
    /// Bytes that are admitted and neither finished nor given up.
    admitted_bytes: u64,
    /// No more are admitted beyond this (but to the light ones).
    inflight_max: u64,
    /// What the elevator is to be told of, if it wants to know.
    done: Vec<EndedRequest>,
    needs_completions: bool,
    /// A timer of the elevator or of the tag policy is set.
    armed: bool,
    /// Somebody wants to know what ends: the elevator, or the bound on bytes.
    tracks: bool,
    /// Where the last data command ended.
    last_end: (VolumeId, u64),
    stats: QueueStats,
    switch: Switch,
    /// How many left the elevator, round and round.
    departures: u32,
    weights: Weights,
    /// Requests that got their tags in this batch.
    ready: Vec<SlotId>,
    asks: Vec<TagRequest>,
    batch: Batch,
}

impl Queue {
    /// A queue for a device of `config`, on a shard with so many slots.
    pub fn new(config: &ShardConfig, device: DeviceId, slots: u32) -> Self {
        let options = config.devices[usize::from(device.0)].queue;
        let volumes = config
            .volumes
            .iter()
            .map(|volume| {
                (volume.device == device)
                    .then(|| Box::new(VolumeQueue::new(volume.options.block_size)))
            })
            .collect();
        let waiters_max =
            (config.bios_max + config.cache.bios() + u32::from(config.shards)) as usize;
        let elevator = elevator::make(&options);
        Self {
            device,
            owner: config.id,
            options,
            limits: Limits::new(&options),
            cached: config.cache.is_on(),
            tags: tags::make(&options, waiters_max, config.cache.is_on()),
            needs_completions: elevator.needs_completions(),
            armed: false,
            tracks: elevator.needs_completions() || options.hw_inflight_kb > 0,
            elevator,
            index: MergeIndex::new(2 * (config.bios_max + config.cache.bios())),
            volumes,
            leases: Leases::new(config.shards),
            queued: 0,
            in_flight: 0,
            flight: List::new(),
            requeue: List::new(),
            busy: false,
            zombies: 0,
            freed: ReturnedTags::default(),
            admitted_bytes: 0,
            inflight_max: inflight_max(&options),
            done: Vec::with_capacity(slots as usize),
            last_end: (VolumeId(0), 0),
            stats: QueueStats::default(),
            switch: Switch::new(config.shards, &options),
            departures: 0,
            weights: Weights::new(config),
            ready: Vec::with_capacity(waiters_max + options.nr_requests as usize),
            asks: Vec::with_capacity(waiters_max),
            batch: Batch::with_capacity((options.queue_depth + options.nr_requests) as usize),
        }
    }

    /// Returns what an arriving bio of `volume` has to know of the queue.
    #[inline(always)]
    pub fn view(&mut self, volume: VolumeId) -> QueueView<'_> {
        let Self { device, limits, options, volumes, .. } = self;
        let volume = volumes[usize::from(volume.0)].as_mut();
        let volume = volume.expect("a bio reaches the queue of its volume's device");
        QueueView { device: *device, limits, options, volume }
    }

    pub fn options(&self) -> &QueueOptions {
        &self.options
    }

    /// What the queue counted, and how many requests are on their way now.
    pub fn stats(&self, slots: &Slots) -> QueueStats {
        let flushes = self.flight.iter(slots).filter(|&id| slots[id].is(Request::FLUSH)).count();
        let in_flight = self.tags.waiters() + self.queued + self.in_flight + flushes as u32;
        QueueStats { in_flight, ..self.stats }
    }

    pub fn tags(&self) -> &dyn TagOwner {
        self.tags.as_ref()
    }

    /// What a tag policy for this queue is made from.
    pub fn tag_options(&self) -> TagOptions {
        TagOptions::new(&self.options, self.asks.capacity(), self.cached)
    }

    /// Replaces the tag policy; the queue must be quiet.
    pub fn set_tags(&mut self, tags: Box<dyn TagOwner>) {
        assert!(self.is_quiet(), "tags are replaced while nothing holds one");
        self.tags = tags;
    }

    /// Replaces the elevator; the queue must be quiet.
    pub fn set_elevator(&mut self, elevator: Box<dyn Elevator>) {
        assert!(self.is_quiet(), "an elevator is replaced while it is empty");
        // They ended in this batch; the new one was never given them.
        self.done.clear();
        self.needs_completions = elevator.needs_completions();
        self.tracks |= self.needs_completions;
        self.elevator = elevator;
    }

    /// Nothing waits for a tag, is queued or in the device.
    fn is_empty(&self) -> bool {
        self.queued == 0 && self.flight.is_empty() && self.tags.waiters() == 0
    }

    /// Nothing is queued, in flight, waiting or lent.
    pub fn is_quiet(&self) -> bool {
        self.is_empty() && self.tags.free() + self.leases.lent() == self.tags.depth()
    }

    /// Nobody would miss it: it is quiet, no shard has tags of it, and it is not about to change.
    pub fn may_leave(&self) -> bool {
        self.is_quiet() && self.leases.lent() == 0 && !self.is_draining()
    }

    pub fn volume(&self, volume: u16) -> Option<&VolumeQueue> {
        self.volumes.get(usize::from(volume))?.as_deref()
    }

    fn volume_mut(&mut self, volume: u16) -> &mut VolumeQueue {
        self.volumes[usize::from(volume)]
            .as_mut()
            .expect("a bio reaches the queue of its volume's device")
    }

    /// A volume joins.
    pub fn add_volume(&mut self, volume: VolumeId, block_size: u32) {
        let index = usize::from(volume.0);
        if self.volumes.len() <= index {
            self.volumes.resize_with(index + 1, || None);
        }
        self.volumes[index] = Some(Box::new(VolumeQueue::new(block_size)));
    }

    /// Whether a volume cannot leave yet, beside bios that are on their way: a flush that nobody waits for any longer is.
    pub fn flushes(&self, volume: VolumeId) -> bool {
        self.volume(volume.0).is_some_and(|volume| volume.flush.is_running())
    }

    /// A volume leaves of which nothing is on its way.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        if let Some(place) = self.volumes.get_mut(usize::from(volume.0)) {
            *place = None;
        }
        // What takes its place begins nowhere.
        if self.last_end.0 == volume {
            self.last_end = (volume, u64::MAX);
        }
    }

    /// What other shards must know of it: those who hear of a device by a change may have older words of its place on their way
    /// to them, and believe the last.
    pub fn announce(&self, pools: &mut Pools) {
        let QueueOptions { read_ahead_kb, max_folio_order, .. } = self.options;
        self.tell_limits(pools);
        self.tell_others(
            pools,
            Message::Caching { device: self.device, read_ahead_kb, max_folio_order },
        );
    }

    /// Takes requests from the plug, in order.
    pub fn submit(&mut self, now: Instant, pools: &mut Pools, ids: &[SlotId]) {
        self.asks.clear();
        for &id in ids {
            pools.slots[id].stamps[1] = now;
            if self.zombies > 0 && self.refuse_overlap(pools, id) || self.try_merge(pools, id) {
                continue;
            }
            match pools.slots[id].tags {
                0 => {
                    let ask = self.ask_of(pools, id);
                    self.asks.push(ask);
                }
                leased => self.admit(now, pools, id, leased),
            }
        }
        let most = self.most_by_bytes();
        let granted = self.tags.request(now, &self.asks, most);
        for index in 0..self.asks.len() {
            let TagRequest { requester: Requester::Request(id), tags, .. } = self.asks[index]
            else {
                continue;
            };
            if index < granted {
                self.admit(now, pools, id, tags);
            } else {
                pools.slots[id].state = State::Waiting;
                self.make_findable(pools, id);
            }
        }
    }

    /// Ends a batch: hands freed tags on, feeds the elevator, fills the device. True when a switch is over: then held bios
    /// are to enter.
    pub fn run(&mut self, now: Instant, pools: &mut Pools) -> bool {
        loop {
            self.grant(now, pools);
            // What fails on its way to the device frees its tag and leaves its place there to another.
            if self.feed(now, pools) == 0 {
                break;
            }
        }
        let switched = self.try_switch(now, pools);
        if self.tags.waiters() > 0 || self.is_draining() {
            self.revoke(pools);
        }
        self.stats.on_batch(now, !self.is_empty());
        self.arm_timers(pools);
        switched
    }

    /// Sets the timers of the elevator and of the tag policy, if either has one or had one.
    fn arm_timers(&mut self, pools: &mut Pools) {
        // A device that is full or refuses is given nothing before it answers.
        let open = self.queued > 0 && !self.busy && self.in_flight < self.options.queue_depth;
        let elevator = if open { self.elevator.next_timeout() } else { None };
        let tags = self.tags.next_timeout();
        let any = elevator.is_some() || tags.is_some();
        if any || self.armed {
            self.set_timer(pools, TimerKind::Elevator, elevator);
            self.set_timer(pools, TimerKind::Tags, tags);
            self.armed = any;
        }
    }

    fn set_timer(&self, pools: &mut Pools, kind: TimerKind, at: Option<Instant>) {
        match at {
            Some(at) => pools.timers.set(timer_of(self.device, kind), at),
            None => pools.timers.clear(timer_of(self.device, kind)),
        }
    }

    /// Puts what has its tags into the elevator, and from there into the device; how many failed on the way.
    fn feed(&mut self, now: Instant, pools: &mut Pools) -> u32 {
        if !self.done.is_empty() {
            self.elevator.on_complete(now, &self.done);
            self.done.clear();
        }
        if !self.ready.is_empty() {
            self.elevator.insert(now, &mut pools.slots, &self.ready);
            self.queued += self.ready.len() as u32;
        }
        let failed = self.dispatch(now, pools);
        for index in 0..self.ready.len() {
            let id = self.ready[index];
            if pools.slots[id].state == State::Queued {
                self.make_findable(pools, id);
            }
        }
        self.ready.clear();
        failed
    }

    /// The time to ask a refusing device again has come.
    pub fn on_retry(&mut self) {
        self.busy = false;
    }

    fn block_size(&self, request: &Request) -> u32 {
        self.volume(request.volume.0).map_or(1, |volume| volume.block_size)
    }

    /// A tag fell free.
    fn put_tag(&mut self, sync: bool) {
        self.freed.count += 1;
        self.freed.asyncs += u32::from(!sync);
    }

    /// What the request counted for is over, and the elevator is to know.
    #[inline]
    fn release(&mut self, request: &Request) {
        self.admitted_bytes -= u64::from(request.charged);
        // Of one that was given up the elevator knows already.
        if !request.is(Request::TIMED_OUT) {
            self.note_done(request.ioprio, request.op);
        }
    }

    /// A request is over for the elevator.
    #[inline]
    fn note_done(&mut self, ioprio: Ioprio, op: Op) {
        if self.needs_completions {
            self.done.push(EndedRequest { ioprio, op });
        }
    }

    /// A request ends: its slot and its tag are free.
    fn free(&mut self, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        assert!(request.state != State::Free, "a request ends once");
        request.state = State::Free;
        let own = u32::from(request.marks & (Request::LEASED | Request::FLUSH) == 0);
        self.freed.count += own;
        self.freed.asyncs += own & u32::from(!request.is_sync());
        if self.tracks && !request.is(Request::FLUSH) {
            self.release(&pools.slots[id]);
        }
        pools.slots.put(id);
    }
}

impl VolumeQueue {
    fn new(block_size: u32) -> Self {
        Self {
            block_size,
            flush: FlushSequence::new(),
            writes_completed: 0,
            writes_flushed: 0,
            suspect: false,
            stats: VolumeStats::default(),
        }
    }

    /// Writes that finished since the last good flush was submitted.
    pub fn unflushed(&self) -> u64 {
        self.writes_completed - self.writes_flushed
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect
    }
}

/// Answers a bio wherever it came from; its slot is free unless the answer is early.
pub(crate) fn answer(pools: &mut Pools, slot: u32, status: Status, hole: bool, stage: ReplyStage) {
    debug_assert!(status != Err(IoError::Busy), "a refusal is the queue's business");
    let entry = &mut pools.bios[slot];
    let (id, wait_times) = (entry.bio.id, entry.wait_times);
    match entry.origin {
        Origin::Here => {
            pools.actions.list.push(Action::Reply { id, status, hole, stage, wait_times })
        }
        Origin::Shard { shard, cookie } => {
            let message = Message::Done { cookie, id, status, hole, stage, wait_times };
            pools.actions.list.push(Action::Send { to: shard, message });
        }
        Origin::Cache { cookie } => {
            pools.completions.push(DeviceCompletion {
                bio: entry.bio,
                cookie,
                status,
                hole,
                stage,
                wait_times,
            });
        }
    }
    if stage == ReplyStage::Early {
        entry.answered = true;
    } else {
        pools.bios.put(slot);
    }
}
