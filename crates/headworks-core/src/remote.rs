//! The queue of a device that another shard owns: bios wait here for leased tags and then travel as messages.
//!
//! The order is that of the owner's gate (`tags/flows`): fair queueing by device time, tenants and exports by weight,
//! connections equally. Flushes need no tag. Tags are requested in batches (the backlog of the head's tenant, up to the largest
//! request), with their bytes and the weights of that tenant's exports that wait, so that the owner charges the tenant and can
//! weigh shards against each other and against its own flows. One request is outstanding at a time, so the other tenants of this
//! shard wait for its grant too. The lease is returned when the owner revokes it or after [`IDLE_NS`] without use.
//!
//! Invariant: a request for tags covers the head. A bio that needs several tags stays the head until it has them all. A bio that
//! needs one tag may be overtaken while it waits; the grant, or the next request, then covers the new head.

use crate::action::Action;
use crate::bio::{DeviceId, Op, ShardId, TenantId};
use crate::device_cost::{CommandKind, DeviceCost, ShareUnit, Streams};
use crate::error::{IoError, Status};
use crate::input::{Message, ReplyStage};
use crate::options::{QueueOptions, ShardConfig};
use crate::pools::{Pools, answer};
use crate::queue::{
    DeviceMonitor, DeviceState, ExportShares, TimerKind, clear_timers, cost_bytes, pieces,
    set_timer_by, timer_of,
};
use crate::request_limits::RequestLimits;
use crate::shares::ShareChange;
use crate::tags::{FlowHead, Flows, Lease, Requester, TagRequest, max_request_tags};
use crate::time::{Instant, MS};
use crate::wait_times::{WaitKind, WaitTimes};

/// Idle time after which a lease is returned. 10 ms: longer than the gaps of a busy client, short against a seek storm.
const IDLE_NS: u64 = 10 * MS;

/// A bio that waited less than this part of a time-out in the cache sets no timer: it fails so much later.
const WAITED_PART: u64 = 128;

/// The bios and leased tags of one remote device.
pub(crate) struct RemoteQueue {
    device: DeviceId,
    owner: ShardId,
    /// The owner's limits, as of its last message.
    limits: RequestLimits,
    nr_requests: u32,
    io_timeout_ns: u64,
    /// Whether the device answers, as of the owner's last message.
    monitor: DeviceMonitor,
    lease: Lease,
    /// Bios that wait for tags.
    waiting: Flows,
    /// The head while it collects several tags; nothing overtakes it.
    gathering: Option<FlowHead>,
    shares: ExportShares,
    /// The owner's cost model, as of its last grant, and what costs are counted in.
    cost: DeviceCost,
    share: ShareUnit,
    streams: Streams,
}

impl RemoteQueue {
    /// Creates the queue of a remote device of `config`.
    pub fn new(config: &ShardConfig, device: DeviceId) -> Self {
        let options = &config.devices[usize::from(device.0)];
        Self {
            device,
            owner: options.owner,
            limits: RequestLimits::new(&options.queue),
            nr_requests: options.queue.lessee_requests(),
            io_timeout_ns: options.queue.io_timeout_ns,
            monitor: DeviceMonitor::new(),
            lease: Lease::default(),
            waiting: Flows::new((config.bios_max + config.cache.bios()) as usize),
            gathering: None,
            shares: ExportShares::new(config),
            cost: DeviceCost::default(),
            share: options.queue.share,
            streams: Streams::new(),
        }
    }

    /// The tags on lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Whether no bio waits and no leased tag is in use.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.lease.used() == 0
    }

    /// The shard that owns the device.
    pub fn owner(&self) -> ShardId {
        self.owner
    }

    /// Whether it can be removed: it is quiet and all tags have been returned to the owner.
    pub fn can_be_removed(&self) -> bool {
        self.is_quiet() && self.lease.is_released()
    }

    /// Clears the timers of a device that is removed.
    pub fn remove(&self, pools: &mut Pools) {
        clear_timers(pools, self.device);
    }

    /// Changes the shares of exports and tenants; bios that wait keep the old ones.
    pub fn change_shares(&mut self, change: ShareChange) {
        self.shares.change(change);
    }

    /// Queues a checked bio until its tags are leased; sends a flush at once.
    ///
    /// Its wait is limited from `since` on.
    pub fn submit(
        &mut self,
        (now, since): (Instant, Instant),
        pools: &mut Pools,
        slot: u32,
        block_size: u32,
    ) {
        pools.begin_wait(since, slot);
        if !self.monitor.admits(now, self.io_timeout_ns) {
            return answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Final);
        }
        let bio = pools.bios[slot].bio;
        let tags = match bio.op {
            Op::Flush => 0,
            op if op.has_data() => pieces(&self.limits, block_size, bio.len, self.nr_requests),
            _ => 1,
        };
        pools.bios[slot].tags = tags;
        if tags == 0 {
            return self.send(pools, slot, waited_part(now.since(since), self.io_timeout_ns));
        }
        let sequential = self.streams.note(bio.id.connection, bio.id.volume, bio.offset, bio.len);
        let kind = CommandKind::new(bio.op, sequential);
        let bytes = cost_bytes(bio.op, bio.len);
        let mut request = TagRequest {
            requester: Requester::Request(slot),
            tags,
            bytes,
            cost: self.share.cost(&self.cost, kind, tags.into(), bytes),
            // Only the owner knows how many tags asynchronous requests hold.
            sync: true,
            connection: bio.id.connection,
            export: bio.id.export,
            weight: 0,
            tenant: TenantId::NONE,
            tenant_weight: 0,
            target_us: 0,
        };
        self.shares.fill(&mut request);
        self.waiting.push(now, 0, request);
        if now.since(since) > self.io_timeout_ns / WAITED_PART {
            set_timer_by(pools, self.device, TimerKind::Expiry, since.after(self.io_timeout_ns));
        }
    }

    /// Adds granted tags and serves waiters at once: a revocation may follow in the same batch, and tags that are returned unused
    /// could be granted and revoked without end.
    pub fn on_grant(&mut self, now: Instant, pools: &mut Pools, count: u16, cost: DeviceCost) {
        self.cost = cost;
        self.lease.on_grant(count);
        self.serve(now, pools);
    }

    /// Takes over new limits of the owner's queue.
    pub fn on_limits(
        &mut self,
        nr_requests: u32,
        max_sectors_kb: u32,
        share: ShareUnit,
        io_timeout_ns: u64,
    ) {
        (self.nr_requests, self.share) = (nr_requests, share);
        self.io_timeout_ns = io_timeout_ns;
        self.limits.max_bytes = max_sectors_kb * 1024;
    }

    /// Takes over whether the device answers.
    pub fn on_state(
        &mut self,
        now: Instant,
        pools: &mut Pools,
        (state, unresponsive): (DeviceState, bool),
    ) {
        if self.monitor.follow(now, state, unresponsive, self.io_timeout_ns) {
            pools.state_changes |= 1 << self.device.0;
            self.on_expiry(now, pools);
        }
    }

    /// Returns whether the device answers, as far as this shard knows.
    pub fn state(&self) -> DeviceState {
        self.monitor.state()
    }

    /// Returns true while waits for the device are limited, as far as this shard knows.
    pub fn is_unresponsive(&self) -> bool {
        self.monitor.is_unresponsive()
    }

    /// Fails the bios that have waited for tags for too long, if the device does not answer, and sets the timer for the next one.
    pub fn on_expiry(&mut self, now: Instant, pools: &mut Pools) {
        if !self.monitor.is_unresponsive() {
            return;
        }
        let mut next: Option<Instant> = None;
        for flow in 0..self.waiting.places() {
            while let Some(waiter) = self.waiting.first_of(flow) {
                let Requester::Request(slot) = waiter.request.requester else {
                    unreachable!("only bios wait for leased tags")
                };
                let until = pools.waits_since(slot).after(self.io_timeout_ns);
                if until > now {
                    next = Some(next.map_or(until, |other| other.min(until)));
                    break;
                }
                self.expire_first(now, pools, flow);
            }
        }
        if let Some(at) = next {
            set_timer_by(pools, self.device, TimerKind::Expiry, at);
        }
    }

    /// Fails the first waiter of a flow.
    fn expire_first(&mut self, now: Instant, pools: &mut Pools, flow: u32) {
        let waiter = self.waiting.withdraw_first(flow, &|_| true).expect("the flow has a waiter");
        let Requester::Request(slot) = waiter.request.requester else {
            unreachable!("only bios wait for leased tags")
        };
        self.gathering = self.gathering.filter(|head| head.flow != flow);
        pools.bios[slot].wait_times = WaitTimes::NONE.plus(WaitKind::Tag, now.since(waiter.since));
        answer(pools, slot, Err(IoError::TimedOut), false, ReplyStage::Final);
    }

    /// Tags that a waiting bio is sent with: as many as it requested, at most what the owner grants to one request. With fewer tags
    /// than pieces, the pieces are dispatched one after the other.
    fn tags_for(&self, head: FlowHead) -> u16 {
        self.waiting.waiter(head).request.tags.min(max_request_tags(self.nr_requests))
    }

    /// Returns unused tags; tags in use follow when they are put back.
    pub fn on_revoke(&mut self, pools: &mut Pools) {
        let count = self.lease.on_revoke();
        self.return_tags(pools, count);
    }

    /// Completes a bio that the owner has answered and puts its tags back into the lease.
    pub fn on_done(
        &mut self,
        pools: &mut Pools,
        slot: u32,
        status: Status,
        hole: bool,
        stage: ReplyStage,
    ) {
        if stage != ReplyStage::Early {
            self.lease.put(pools.bios[slot].tags);
        }
        answer(pools, slot, status, hole, stage);
    }

    /// Returns the lease if it is still idle.
    pub fn on_idle(&mut self, pools: &mut Pools) {
        if self.lease.used() == 0 && self.waiting.is_empty() {
            let count = self.lease.on_idle();
            self.return_tags(pools, count);
        }
    }

    /// Ends a batch: sends bios as the lease allows, requests more tags for the rest, returns revoked tags.
    pub fn run(&mut self, now: Instant, pools: &mut Pools) {
        self.serve(now, pools);
        if let Some(head) = self.head()
            && self.lease.begin_request()
        {
            let message = self.tag_request(head);
            pools.actions.list.push(Action::Send { to: self.owner, message });
        }
        let count = self.lease.settle();
        self.return_tags(pools, count);
        let expiry = timer_of(self.device, TimerKind::Expiry);
        if !self.waiting.is_empty() && !pools.timers.is_set(expiry) {
            // What waits has begun now, or this is set already.
            pools.timers.set(expiry, now.after(self.io_timeout_ns));
        }
        let timer = timer_of(self.device, TimerKind::LeaseIdle);
        if self.lease.used() > 0 || self.lease.held() == 0 {
            pools.timers.clear(timer);
        } else if !pools.timers.is_set(timer) {
            pools.timers.set(timer, now.after(IDLE_NS));
        }
    }

    /// The request for tags: at least those of the head, and of the backlog of its tenant as many as one request may ask for.
    fn tag_request(&self, head: FlowHead) -> Message {
        let (tenant, backlog) = self.waiting.tenant_backlog(head);
        let most = u32::from(max_request_tags(self.nr_requests));
        let least = u32::from(self.tags_for(head));
        assert!(!backlog.tags.is_zero(), "only a backlog requests tags");
        let want = backlog.tags.get().min(most).max(least);
        // The part of the backlog's bytes that belongs to these tags.
        let part = |of: u64| of.saturating_mul(want.into()) / u64::from(backlog.tags.get());
        let bytes = part(backlog.bytes.get());
        Message::TagWant {
            device: self.device,
            want: want as u16,
            bytes: bytes.min(u32::MAX.into()) as u32,
            cost: part(backlog.cost.get()),
            tenant,
            weight: backlog.weights.get().min(u16::MAX.into()) as u16,
            target_us: self.waiting.waiter(head).request.target_us,
        }
    }

    /// The bio that is served next.
    fn head(&mut self) -> Option<FlowHead> {
        self.gathering.or_else(|| self.waiting.pick())
    }

    /// Sends waiting bios while the lease has tags for them.
    fn serve(&mut self, now: Instant, pools: &mut Pools) {
        if self.waiting.is_empty() {
            return;
        }
        while let Some(head) = self.head() {
            let want = self.tags_for(head);
            if !self.lease.try_take(want) {
                self.gathering = (want > 1).then_some(head);
                return;
            }
            self.gathering = None;
            let Requester::Request(slot) = self.waiting.waiter(head).request.requester else {
                unreachable!("only bios wait for leased tags")
            };
            let waited = now.since(self.waiting.waiter(head).since);
            self.waiting.pop(head);
            debug_assert!(want > 0 && self.lease.used() >= u32::from(want));
            pools.bios[slot].tags = want;
            pools.bios[slot].wait_times = WaitTimes::NONE.plus(WaitKind::Tag, waited);
            let waited = now.since(pools.waits_since(slot));
            self.send(pools, slot, waited_part(waited, self.io_timeout_ns));
        }
        self.waiting.reset();
    }

    /// Sends a bio with its tags to the owner, and how much of the time-out it has waited.
    fn send(&self, pools: &mut Pools, slot: u32, waited: u8) {
        let entry = &pools.bios[slot];
        let message = Message::Bio { bio: entry.bio, cookie: slot, tags: entry.tags, waited };
        pools.actions.list.push(Action::Send { to: self.owner, message });
    }

    /// Returns tags to the owner.
    fn return_tags(&self, pools: &mut Pools, count: u32) {
        let mut left = count;
        while left > 0 {
            let count = left.min(u16::MAX.into()) as u16;
            left -= u32::from(count);
            let message = Message::TagReturn { device: self.device, count };
            pools.actions.list.push(Action::Send { to: self.owner, message });
        }
    }
}

/// Returns the part of a time-out that a wait took, in 255ths, rounded up: a bio fails a little too early rather than too late.
fn waited_part(waited_ns: u64, io_timeout_ns: u64) -> u8 {
    let part = (u128::from(waited_ns) * 255).div_ceil(u128::from(io_timeout_ns.max(1)));
    part.min(255) as u8
}

/// Returns the wait that [`waited_part`] made a part of.
pub(crate) fn waited_ns(options: &QueueOptions, waited: u8) -> u64 {
    (u128::from(options.io_timeout_ns) * u128::from(waited) / 255) as u64
}
