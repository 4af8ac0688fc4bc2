//! The owner's side of tag leases: who holds how many, and asking for them back when somebody waits.
//!
//! Invariant: free + held by requests here + lent = `nr_requests`. A lessee is asked once; the next grant to it ends that.

use super::{Pools, Queue};
use crate::action::Action;
use crate::bio::ExportId;
use crate::bio::ShardId;
use crate::input::Message;
use crate::tags::{Requester, TagRequest, max_request_tags};
use crate::time::Instant;

/// What another shard wants of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// Tags.
    pub want: u16,
    /// Bytes they are for.
    pub bytes: u32,
    /// The weights of the exports that wait there, together.
    pub weight: u16,
}

/// What other shards hold.
#[derive(Debug)]
pub(crate) struct Leases {
    lent: Vec<u32>,
    asked_back: Vec<bool>,
    /// Tags of bios that were given up: out until the device answers, however long they are asked back.
    pub given_up: u32,
}

impl Leases {
    pub fn new(shards: u16) -> Self {
        Self { lent: vec![0; shards.into()], asked_back: vec![false; shards.into()], given_up: 0 }
    }

    /// Tags lent to all shards.
    pub fn lent(&self) -> u32 {
        self.lent.iter().sum()
    }

    /// Whether none is out that will come back though the device is silent.
    pub fn are_home(&self) -> bool {
        self.lent() == self.given_up
    }
}

impl Queue {
    /// A shard wants tags for its first waiter.
    pub fn on_tag_want(&mut self, now: Instant, pools: &mut Pools, from: ShardId, wish: Wish) {
        if self.is_draining() {
            return self.hold_wish(from, wish);
        }
        let ask = TagRequest {
            requester: Requester::Shard(from),
            tags: wish.want.clamp(1, max_request_tags(self.options.nr_requests)),
            bytes: wish.bytes,
            sync: true,
            // No connection and no export has these numbers: a shard competes as one, with the weights that wait there.
            connection: u32::MAX - u32::from(from.0),
            export: ExportId(u16::MAX - from.0),
            weight: wish.weight.max(1),
        };
        let most = usize::from(!self.is_full());
        if self.tags.request(now, &[ask], most) == 1 {
            self.lend(pools, from, ask.tags);
        }
    }

    /// A shard returns tags.
    pub fn on_tag_return(&mut self, from: ShardId, count: u16) {
        let lent = &mut self.leases.lent[usize::from(from.0)];
        assert!(*lent >= u32::from(count), "a shard returns what it holds");
        *lent -= u32::from(count);
        self.freed.count += u32::from(count);
    }

    pub(super) fn lend(&mut self, pools: &mut Pools, to: ShardId, count: u16) {
        self.leases.lent[usize::from(to.0)] += u32::from(count);
        self.leases.asked_back[usize::from(to.0)] = false;
        let message = Message::TagGrant { device: self.device, count };
        pools.actions.list.push(Action::Send { to, message });
    }

    /// Somebody waits: ask every lessee once.
    pub(super) fn revoke(&mut self, pools: &mut Pools) {
        for (shard, &lent) in self.leases.lent.iter().enumerate() {
            if lent > 0 && !std::mem::replace(&mut self.leases.asked_back[shard], true) {
                let message = Message::TagRevoke { device: self.device };
                pools.actions.list.push(Action::Send { to: ShardId(shard as u16), message });
            }
        }
    }
}
