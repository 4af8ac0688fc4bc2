//! Bios for a device that another shard owns: they wait here for tags of the lease, then go over as messages.
//!
//! Order of waiting is order of arrival. Flushes need no tag. The lease is asked for in batches (what waits, up to the
//! largest want) and goes back when the owner revokes it or when it was idle for [`IDLE_NS`].

use crate::action::Action;
use crate::bio::{DeviceId, Op, ShardId};
use crate::error::Status;
use crate::input::{Message, ReplyStage};
use crate::merge::Limits;
use crate::options::{ExportConfig, ShardConfig};
use crate::queue::list::Fifo;
use crate::queue::{Pools, TimerKind, answer, pieces, timer_of};
use crate::tags::{Lease, want_max};
use crate::time::{Instant, MS};

/// A lease that nobody used for this long goes back. 10 ms: longer than the gaps of a busy client, short against a seek storm.
const IDLE_NS: u64 = 10 * MS;

/// The way to one device on another shard.
pub(crate) struct RemoteQueue {
    device: DeviceId,
    owner: ShardId,
    limits: Limits,
    nr_requests: u32,
    discard_granularity: u32,
    lease: Lease,
    line: Fifo,
    /// Tags that the line needs.
    needed: u32,
}

impl RemoteQueue {
    pub fn new(config: &ShardConfig, device: DeviceId) -> Self {
        let options = &config.devices[usize::from(device.0)];
        Self {
            device,
            owner: options.owner,
            limits: Limits::new(&options.queue),
            nr_requests: options.queue.nr_requests,
            discard_granularity: options.queue.discard_granularity,
            lease: Lease::default(),
            line: Fifo::new(),
            needed: 0,
        }
    }

    pub fn discard_granularity(&self) -> u32 {
        self.discard_granularity
    }

    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Nothing waits and nothing of the lease is used.
    pub fn is_quiet(&self) -> bool {
        self.line.head().is_none() && self.lease.used() == 0
    }

    /// A checked bio.
    pub fn submit(&mut self, pools: &mut Pools, slot: u32, block_size: u32) {
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
        self.needed += u32::from(tags);
        self.line.push(&mut pools.bios, slot);
    }

    /// The owner grants. The line is served at once: a revocation may be next in the same batch, and a tag that went round
    /// without being used would go round for ever.
    pub fn on_grant(&mut self, pools: &mut Pools, count: u16) {
        self.lease.on_grant(count);
        self.serve(pools);
    }

    /// The owner's queue works with other limits now.
    pub fn on_limits(&mut self, nr_requests: u32, max_sectors_kb: u32) {
        self.nr_requests = nr_requests;
        self.limits.max_bytes = max_sectors_kb * 1024;
    }

    /// Tags that a waiting bio goes over with: what it came with, but never more than the owner would ever grant now. With
    /// fewer than it has pieces its pieces go one after the other.
    fn tags_of(&self, pools: &Pools, slot: u32) -> u16 {
        pools.bios[slot].tags.min(want_max(self.nr_requests))
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
        if self.lease.used() == 0 && self.line.head().is_none() {
            let count = self.lease.on_idle();
            self.give_back(pools, count);
        }
    }

    /// Ends a batch: sends what the lease allows, asks for more if that was not all, returns what is not ours any longer.
    pub fn run(&mut self, now: Instant, pools: &mut Pools) {
        self.serve(pools);
        if let Some(slot) = self.line.head()
            && self.lease.start_wanting()
        {
            let most = u32::from(want_max(self.nr_requests));
            let head = u32::from(self.tags_of(pools, slot));
            let message = Message::TagWant {
                device: self.device,
                want: self.needed.min(most).max(head) as u16,
                bytes: pools.bios[slot].bio.len,
                weight: ExportConfig::default().weight,
            };
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

    /// Sends from the front of the line what the lease allows.
    fn serve(&mut self, pools: &mut Pools) {
        while let Some(slot) = self.line.head() {
            let tags = self.tags_of(pools, slot);
            if !self.lease.try_take(tags) {
                return;
            }
            self.line.pop(&mut pools.bios);
            self.needed -= u32::from(std::mem::replace(&mut pools.bios[slot].tags, tags));
            self.send(pools, slot);
        }
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
