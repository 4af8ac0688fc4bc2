//! The queue of one device, on its owner's shard: everything between the plug and the device.
//!
//! It admits requests, merges them with waiting ones, splits bios over the limits and sends the device as much as it takes.
//!
//! ```text
//!  plug --ids--> submit: merge with a waiting request | request tags
//!                   | granted                            | not now
//!                   v                                    v
//!                 ready (split into pieces)            gate --grant--> ready
//!                   |
//!                 elevator --batch, as much as the device takes--> in flight --answer--> complete
//!                   ^------------- requeue list <---refused-------------'
//! ```
//!
//! [`Queue`] composes owners that keep their state private: `gate` (tags, leases, bytes in flight), `dispatch_queue` (elevator
//! and requeue list), `command_limits` (how much the device has and how long commands are), `in_flight` (commands in the device),
//! `volumes` with `flush_sequence` (the durability contract), `counters`, `option_switch` (a change of options), `device_state`
//! (whether the device answers). The steps of a request are in `admit` (merging and splitting, too) and `commands`
//! (dispatch, answers, flushes); `switch` changes options, `expiry` ends commands and waits that last too long.
//!
//! Invariants: `in_flight <= queue_depth`; a request behind the gate holds a tag, its own or of its origin's lease; a waiting
//! request that may merge is in the merge index, a command in flight is not; the elevator gives no more than the device
//! takes; every wait ends by a completion, by a grant that follows from one, or after `io_timeout`.

mod admit;
mod bulk;
mod command_limits;
mod commands;
mod counters;
mod device_state;
mod dispatch_queue;
mod expiry;
mod expiry_search;
mod export_shares;
mod flush_sequence;
mod gate;
mod in_flight;
mod leases;
mod option_switch;
mod passing;
mod rivals;
mod switch;
mod timers;
mod view;
mod volumes;

pub(crate) use device_state::DeviceMonitor;
pub use device_state::DeviceState;
pub(crate) use export_shares::ExportShares;
pub(crate) use gate::{cost_bytes, pieces};
pub(crate) use leases::LeaseRequest;
pub(crate) use timers::{TIMERS, TimerKind, clear_timers, set_timer_by, timer_of};
pub(crate) use view::QueueView;
pub(crate) use volumes::VolumeQueue;

use crate::bio::{DeviceId, ExportId, ShardId, VolumeId};
use crate::elevator::{Elevator, ElevatorState, SlotTrace};
use crate::input::Message;
use crate::merge::MergeIndex;
use crate::options::{QueueOptions, ShardConfig};
use crate::pools::Pools;
use crate::request::{Request, RequestState, SlotId};
use crate::shares::ShareChange;
use crate::stats::{QueueStats, TargetCounts};
use crate::tags::{TagOptions, TagOwner};
use crate::time::Instant;
use command_limits::CommandLimits;
use counters::QueueCounters;
use dispatch_queue::DispatchQueue;
use expiry_search::ExpirySearch;
use gate::Gate;
use in_flight::InFlightList;
use option_switch::OptionSwitch;
use timers::set_timer;
use volumes::VolumeQueues;

/// The queue of one device.
pub(crate) struct Queue {
    device: DeviceId,
    owner: ShardId,
    options: QueueOptions,
    limits: CommandLimits,
    /// A cache writes back through this queue.
    cached: bool,
    gate: Gate,
    /// Requests that got their tags in this batch, for the elevator.
    ready: Vec<SlotId>,
    waiting: DispatchQueue,
    /// Requests that wait at the gate or for the device, to merge with.
    index: MergeIndex,
    in_flight: InFlightList,
    volumes: VolumeQueues,
    counters: QueueCounters,
    switch: OptionSwitch,
    /// Tags for which the shard has request slots.
    slots_for: u32,
    monitor: DeviceMonitor,
    /// When requests that have waited for too long are searched for.
    expiry: ExpirySearch,
    /// A timer of the elevator or of the tag policy is set.
    timers_set: bool,
}

impl Queue {
    /// Creates the queue of a device in `config`, on a shard with `slots` request slots.
    pub fn new(config: &ShardConfig, device: DeviceId, slots: u32) -> Self {
        let options = config.devices[usize::from(device.0)].queue;
        let bios = config.bios_max + config.cache.bios();
        let waiters_max = (bios + u32::from(config.shards)) as usize;
        let tags = options.tags(config.bios_total());
        let mut queue = Self {
            device,
            owner: config.id,
            options,
            limits: CommandLimits::new(&options),
            cached: config.cache.is_on(),
            gate: Gate::new(config, &options, waiters_max),
            ready: Vec::with_capacity(waiters_max + tags as usize),
            waiting: DispatchQueue::new(&options, slots, config.bios_total()),
            index: MergeIndex::new(2 * bios),
            in_flight: InFlightList::new(),
            volumes: VolumeQueues::new(config, device),
            counters: QueueCounters::new(),
            switch: OptionSwitch::new(config.shards),
            slots_for: tags,
            monitor: DeviceMonitor::new(),
            expiry: ExpirySearch::default(),
            timers_set: false,
        };
        queue.reset_limits();
        queue.set_shares();
        queue
    }

    /// Returns the part of the queue that an arriving bio of `volume` meets.
    #[inline(always)]
    pub fn view(&mut self, volume: VolumeId) -> QueueView<'_> {
        let Self { device, limits, options, volumes, .. } = self;
        let limits = limits.current();
        QueueView { device: *device, limits, options, volume: volumes.of_bio(volume) }
    }

    /// Returns the options that the queue works with now.
    pub fn options(&self) -> &QueueOptions {
        &self.options
    }

    /// Begins or ends the trace of the elevator's slots.
    pub fn trace_slots(&mut self, on: bool) {
        self.waiting.trace_slots(on);
    }

    /// Moves the events of the trace into `into`; returns the number of those that were dropped.
    pub fn take_slot_traces(&mut self, into: &mut Vec<SlotTrace>) -> u64 {
        self.waiting.take_slot_traces(into)
    }

    /// Returns the state of the elevator for display, if it has one.
    pub fn elevator_state(&self, now: Instant) -> Option<ElevatorState> {
        self.waiting.elevator_state(now)
    }

    /// Returns the command that the device has had for the longest time.
    pub fn oldest_command(&self) -> Option<SlotId> {
        self.in_flight.oldest()
    }

    /// Returns what the queue counted, and how many requests it has now.
    pub fn stats(&self) -> QueueStats {
        let in_flight = self.gate.waiters() + self.waiting.len() + self.in_flight.len();
        let depth = self.limits.stats();
        let cost = *self.gate.device_cost();
        let targets = self.gate.target_stats();
        let waits = self.gate.waits();
        QueueStats { depth, cost, targets, waits, ..self.counters.stats(in_flight) }
    }

    /// Returns what latency targets have counted of an export.
    pub fn target_counts(&self, export: ExportId) -> TargetCounts {
        self.gate.bulk().counts(export)
    }

    /// Returns what latency targets have counted of all tenants, by number; none before an export had a target.
    pub fn tenant_target_counts(&self) -> &[TargetCounts] {
        self.gate.bulk().tenant_counts()
    }

    /// Returns the exports with a latency target that is kept here, and the target in microseconds.
    pub fn targets(&self) -> impl Iterator<Item = (ExportId, u32)> + '_ {
        self.gate.targets()
    }

    /// Returns the smallest latency in nanoseconds of requests that found the queue empty, as far as it was measured.
    pub fn smallest_latency(&self, now: Instant) -> Option<u64> {
        self.gate.bulk().smallest(now)
    }

    /// Measures the smallest latency for a while; returns what is known of it now.
    pub fn watch_smallest_latency(&mut self, now: Instant) -> Option<u64> {
        let is_busy = !self.is_empty();
        self.gate.watch_smallest(now, is_busy)
    }

    /// Returns whether the device answers.
    pub fn state(&self) -> DeviceState {
        self.monitor.state()
    }

    /// Returns true while waits for the device are limited, see [`DeviceMonitor::is_unresponsive`].
    pub fn is_unresponsive(&self) -> bool {
        self.monitor.is_unresponsive()
    }

    /// Returns the tag policy, for statistics.
    pub fn tags(&self) -> &dyn TagOwner {
        self.gate.policy()
    }

    /// Returns the options that a tag policy for this queue is created with.
    pub fn tag_options(&self) -> TagOptions {
        self.gate.tag_options(&self.options, self.cached)
    }

    /// Replaces the tag policy; the queue must be quiet.
    pub fn set_tags(&mut self, tags: Box<dyn TagOwner>) {
        assert!(self.is_quiet(), "tags are replaced while none is held");
        self.gate.replace_policy(tags);
        self.reset_limits();
    }

    /// Replaces the elevator; the queue must be quiet.
    pub fn set_elevator(&mut self, elevator: Box<dyn Elevator>) {
        assert!(self.is_quiet(), "an elevator is replaced while it is empty");
        self.waiting.set_elevator(elevator);
        self.reset_limits();
        self.set_shares();
    }

    /// Has the limits on commands begin anew, with the options, the tag policy and the elevator that the queue has now.
    fn reset_limits(&mut self) {
        self.limits.reset(&self.options, &mut self.gate, &mut self.waiting);
    }

    /// Changes the shares of exports and tenants. Requests that wait at the gate keep the old ones.
    pub fn change_shares(&mut self, now: Instant, change: ShareChange) {
        if self.gate.change_shares(now, change) {
            self.limits.apply(&mut self.gate, &mut self.waiting);
        }
        self.waiting.change_shares(change);
    }

    /// Tells a new elevator the shares of exports and tenants, if it owns shares.
    fn set_shares(&mut self) {
        assert!(self.waiting.owns_shares() == self.gate.is_open(), "one place owns shares");
        if self.waiting.owns_shares() {
            for change in self.gate.share_changes() {
                self.waiting.change_shares(change);
            }
        }
    }

    /// Returns true when no request waits for a tag, is queued or in the device.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty() && self.gate.waiters() == 0
    }

    /// Returns true when the queue is empty and every tag is free or lent.
    pub fn is_quiet(&self) -> bool {
        let quiet = self.is_empty() && self.gate.is_idle();
        debug_assert!(!quiet || self.index.is_empty(), "the merge index holds waiting requests");
        quiet
    }

    /// Returns true when the device can be removed: it is quiet, no shard has tags of it, and its options do not change.
    pub fn can_be_removed(&self) -> bool {
        self.is_quiet() && self.gate.lent() == 0 && !self.is_draining()
    }

    /// Returns a volume of the device.
    pub fn volume(&self, volume: VolumeId) -> Option<&VolumeQueue> {
        self.volumes.find(volume)
    }

    /// Adds a volume to the device.
    pub fn add_volume(&mut self, volume: VolumeId, block_size: u32) {
        debug_assert!(block_size <= self.limits.device().max_bytes, "a command can carry a block");
        self.volumes.add(volume, block_size);
    }

    /// Returns true while a device flush of a volume is in flight, even if no bio waits for it: the volume cannot be removed.
    pub fn is_flushing(&self, volume: VolumeId) -> bool {
        self.volumes.find(volume).is_some_and(|volume| volume.flush.is_running())
    }

    /// Removes a volume that has no bio and no flush in flight.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        self.volumes.remove(volume);
        self.counters.forget(volume);
    }

    /// Tells the other shards the options that they need. A shard that learns of an added device may have older messages for the
    /// same device id under way, and believes the last.
    pub fn announce(&self, pools: &mut Pools) {
        let QueueOptions { read_ahead_kb, max_folio_order, .. } = self.options;
        let device = self.device;
        self.announce_limits(pools);
        self.send_to_others(pools, Message::Caching { device, read_ahead_kb, max_folio_order });
    }

    /// Ends a batch: hands returned tags on, feeds the elevator and the device. Returns true when a change of options is over:
    /// then held bios are to enter.
    pub fn run(&mut self, now: Instant, pools: &mut Pools) -> bool {
        self.limits.adapt(now, &self.options, &mut self.gate, &mut self.waiting);
        self.limits.adapt_to_targets(now, &mut self.gate, &mut self.waiting);
        loop {
            self.grant(now, pools);
            // A request that fails before it is sent frees its tag and leaves its place there to another.
            let failed = self.feed(now, pools);
            // So does one that has waited for too long.
            let expired = self.expiry.take_due() && self.expire_waiting(now, pools);
            if failed == 0 && !expired {
                break;
            }
        }
        self.gate.end_turn(now, self.in_flight.commands(), !self.waiting.is_empty());
        let switched = self.try_switch(now, pools);
        if self.gate.waiters() > 0 || self.is_draining() {
            self.revoke_leases(pools);
        }
        let is_busy = !self.is_empty();
        self.counters.on_batch(now, is_busy);
        self.limits.on_batch(now, is_busy);
        self.set_timers(now, pools);
        switched
    }

    /// Sets the timer of waiting requests, and those of the elevator and of the tag policy if either has one or had one.
    fn set_timers(&mut self, now: Instant, pools: &mut Pools) {
        if !self.waiting.is_empty() || self.gate.waiters() > 0 || self.switch.is_draining() {
            // What waits has begun now, or has its turn while the device answers; or this is set already.
            let timer = timer_of(self.device, TimerKind::Expiry);
            if !pools.timers.is_set(timer) {
                pools.timers.set(timer, now.after(self.expiry.pause(self.options.io_timeout_ns)));
            }
        }
        // A device that is full or refuses is sent nothing before it answers.
        let open = !self.waiting.is_empty()
            && !self.waiting.is_busy()
            && self.in_flight.commands() < self.options.queue_depth;
        let elevator = if open { self.waiting.next_timeout() } else { None };
        let tags = self.gate.next_timeout();
        let any = elevator.is_some() || tags.is_some();
        if any || self.timers_set {
            set_timer(pools, self.device, TimerKind::Elevator, elevator);
            set_timer(pools, self.device, TimerKind::Tags, tags);
            self.timers_set = any;
        }
    }

    /// Moves ready requests into the elevator, and from there into the device; returns how many failed unsent.
    fn feed(&mut self, now: Instant, pools: &mut Pools) -> u32 {
        self.waiting.insert(now, &mut pools.slots, &self.ready);
        let count = self.ready.len();
        let failed = self.dispatch(now, pools);
        debug_assert!(self.ready.len() == count, "requests that fail unsent make no others ready");
        // What was ready and is still queued is in the elevator; if that is empty, the device took all.
        let left = if self.waiting.is_empty() { 0 } else { count };
        for index in 0..left {
            let id = self.ready[index];
            if pools.slots[id].state == RequestState::Queued {
                self.make_findable(pools, id);
            }
        }
        self.ready.clear();
        failed
    }

    /// Takes the retry timer: a device that refused is asked again.
    pub fn on_retry(&mut self) {
        self.waiting.clear_busy();
    }

    /// Returns the block size of a request's volume; 1 when the volume was removed.
    fn block_size(&self, request: &Request) -> u32 {
        self.volumes.find(request.volume).map_or(1, VolumeQueue::block_size)
    }

    /// Returns the bytes in flight of a request that ends, and notes its end for the elevator.
    #[inline]
    fn release(&mut self, request: &mut Request) {
        debug_assert!(!request.is(Request::FLUSH), "a flush bypasses gate and elevator");
        self.gate.uncharge(request);
        // The elevator was told of a timed-out one when it timed out.
        if !request.is(Request::TIMED_OUT) {
            self.waiting.note_ended(request);
        }
    }

    /// Ends a request: its slot and its tag are free.
    #[inline(always)]
    fn free(&mut self, pools: &mut Pools, id: SlotId) {
        let request = &mut pools.slots[id];
        debug_assert!(request.state != RequestState::Free, "a request ends once");
        request.state = RequestState::Free;
        if request.marks & (Request::LEASED | Request::FLUSH) == 0 {
            let sync = request.is_sync();
            self.gate.return_tag(sync);
            self.gate.leave(request);
        }
        if !request.is(Request::FLUSH) {
            self.release(request);
        }
        pools.slots.put(id);
    }
}
