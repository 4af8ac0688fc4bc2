//! Bios for a device that another shard owns: they wait here for tags of the lease, then go over as messages.
//!
//! Whose turn it is is decided as at the owner's gate (`tags/flows`): exports by weight, connections equally, by bytes, light
//! ones first. Flushes need no tag. The lease is asked for in batches (what waits, up to the largest want), with the bytes
//! that it is for and the weights of the exports that wait here, so that the owner can weigh shards against each other and
//! its own. It goes back when the owner revokes it or when it was idle for [`IDLE_NS`].
//!
//! Invariant: what is asked for is enough for the head. One that needs several tags stays the head until it has them; one that
//! needs one may be passed while it waits, and then the grant is enough for who passed, or the next want is.

use crate::action::Action;
use crate::bio::{DeviceId, ExportId, Op, ShardId};
use crate::error::Status;
use crate::input::{Message, ReplyStage};
use crate::merge::Limits;
use crate::options::ShardConfig;
use crate::pools::{Pools, answer};
use crate::queue::{ExportWeights, TimerKind, clear_timers, cost_bytes, pieces, timer_of};
use crate::tags::{FlowHead, Flows, Lease, Requester, TagRequest, max_request_tags};
use crate::time::{Instant, MS};
use crate::wait_times::{WaitKind, WaitTimes};

/// A lease that nobody used for this long goes back. 10 ms: longer than the gaps of a busy client, short against a seek storm.
const IDLE_NS: u64 = 10 * MS;

/// The way to one device on another shard.
pub(crate) struct RemoteQueue {
    device: DeviceId,
    owner: ShardId,
    limits: Limits,
    nr_requests: u32,
    lease: Lease,
    line: Flows,
    /// The head, if it needs several tags.
    gathering: Option<FlowHead>,
    weights: ExportWeights,
}

impl RemoteQueue {
    pub fn new(config: &ShardConfig, device: DeviceId) -> Self {
        let options = &config.devices[usize::from(device.0)];
        Self {
            device,
            owner: options.owner,
            limits: Limits::new(&options.queue),
            nr_requests: options.queue.nr_requests,
            lease: Lease::default(),
            line: Flows::new((config.bios_max + config.cache.bios()) as usize),
            gathering: None,
            weights: ExportWeights::new(config),
        }
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Nothing waits and nothing of the lease is used.
    pub fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.lease.used() == 0
    }

    pub fn owner(&self) -> ShardId {
        self.owner
    }

    /// Nobody would miss it: it is quiet, and the owner has all its tags.
    pub fn may_leave(&self) -> bool {
        self.is_quiet() && self.lease.is_released()
    }

    /// The device leaves.
    pub fn leave(&self, pools: &mut Pools) {
        clear_timers(pools, self.device);
    }

    /// An export's share changes; what waits already keeps the old one.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        self.weights.set(export, weight);
    }

    /// A checked bio.
    pub fn submit(&mut self, now: Instant, pools: &mut Pools, slot: u32, block_size: u32) {
        let bio = pools.bios[slot].bio;
        let tags = match bio.op {
            Op::Flush => 0,
            op if op.has_data() => pieces(&self.limits, block_size, bio.len, self.nr_requests),
            _ => 1,
        };
        pools.bios[slot].tags = tags;
        if tags == 0 {
            return self.send(pools, slot);
        }
        let ask = TagRequest {
            requester: Requester::Request(slot),
            tags,
            bytes: cost_bytes(bio.op, bio.len),
            // Only the owner knows how many tags asynchronous ones hold.
            sync: true,
            connection: bio.id.connection,
            export: bio.id.export,
            weight: self.weights.of(bio.id.export),
        };
        self.line.push(now, 0, ask);
    }

    /// The owner grants. The line is served at once: a revocation may be next in the same batch, and a tag that went round
    /// without being used would go round for ever.
    pub fn on_grant(&mut self, now: Instant, pools: &mut Pools, count: u16) {
        self.lease.on_grant(count);
        self.serve(now, pools);
    }

    /// The owner's queue works with other limits now.
    pub fn on_limits(&mut self, nr_requests: u32, max_sectors_kb: u32) {
        self.nr_requests = nr_requests;
        self.limits.max_bytes = max_sectors_kb * 1024;
    }

    /// Tags that a waiting bio goes over with: what it came with, but never more than the owner would ever grant now. With
    /// fewer than it has pieces its pieces go one after the other.
    fn tags_for(&self, head: FlowHead) -> u16 {
        self.line.waiter(head).request.tags.min(max_request_tags(self.nr_requests))
    }

    /// The owner wants tags back.
    pub fn on_revoke(&mut self, pools: &mut Pools) {
        let count = self.lease.on_revoke();
        self.give_back(pools, count);
    }

    /// The owner says what became of a bio.
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

    /// The lease was idle.
    pub fn on_idle(&mut self, pools: &mut Pools) {
        if self.lease.used() == 0 && self.line.is_empty() {
            let count = self.lease.on_idle();
            self.give_back(pools, count);
        }
    }

    /// Ends a batch: sends what the lease allows, asks for more if that was not all, returns what is not ours any longer.
    pub fn run(&mut self, now: Instant, pools: &mut Pools) {
        self.serve(now, pools);
        if let Some(head) = self.head()
            && self.lease.begin_request()
        {
            let message = self.want(head);
            pools.actions.list.push(Action::Send { to: self.owner, message });
        }
        let count = self.lease.settle();
        self.give_back(pools, count);
        let timer = timer_of(self.device, TimerKind::LeaseIdle);
        if self.lease.used() > 0 || self.lease.held() == 0 {
            pools.timers.clear(timer);
        } else if !pools.timers.is_set(timer) {
            pools.timers.set(timer, now.after(IDLE_NS));
        }
    }

    /// What the owner is asked for: the head's want at least, and as much of what waits as one want may be.
    fn want(&self, head: FlowHead) -> Message {
        let demand = self.line.backlog();
        let most = u32::from(max_request_tags(self.nr_requests));
        let least = u32::from(self.tags_for(head));
        let want = demand.tags.get().min(most).max(least);
        // Of the bytes that wait, the part that goes with so many of the tags.
        let bytes = demand.bytes.get() * u64::from(want) / u64::from(demand.tags.get());
        Message::TagWant {
            device: self.device,
            want: want as u16,
            bytes: bytes.min(u32::MAX.into()) as u32,
            weight: demand.weights.get().min(u16::MAX.into()) as u16,
        }
    }

    /// Whose turn it is.
    fn head(&mut self) -> Option<FlowHead> {
        self.gathering.or_else(|| self.line.pick())
    }

    /// Sends what the lease allows.
    fn serve(&mut self, now: Instant, pools: &mut Pools) {
        if self.line.is_empty() {
            return;
        }
        while let Some(head) = self.head() {
            let want = self.tags_for(head);
            if !self.lease.try_take(want) {
                self.gathering = (want > 1).then_some(head);
                return;
            }
            self.gathering = None;
            let Requester::Request(slot) = self.line.waiter(head).request.requester else {
                unreachable!("only bios wait here")
            };
            let waited = now.since(self.line.waiter(head).since);
            self.line.pop(head);
            pools.bios[slot].tags = want;
            pools.bios[slot].wait_times = WaitTimes::NONE.plus(WaitKind::Tag, waited);
            self.send(pools, slot);
        }
        self.line.reset();
    }

    fn send(&self, pools: &mut Pools, slot: u32) {
        let entry = &pools.bios[slot];
        let message = Message::Bio { bio: entry.bio, cookie: slot, tags: entry.tags };
        pools.actions.list.push(Action::Send { to: self.owner, message });
    }

    fn give_back(&self, pools: &mut Pools, count: u32) {
        if count > 0 {
            let message = Message::TagReturn { device: self.device, count: count as u16 };
            pools.actions.list.push(Action::Send { to: self.owner, message });
        }
    }
}
