//! The owner's side of tag leases: who holds how many, and asking for them back when somebody waits.
//!
//! Invariant: free + held by requests here + lent = `nr_requests`. A lessee is asked once; the next grant to it ends that.

use super::{Pools, Queue};
use crate::action::Action;
use crate::bio::ShardId;
use crate::input::Message;
use crate::tags::{Ask, Who, want_max};

/// What other shards hold.
#[derive(Debug)]
pub(crate) struct Leases {
    lent: Vec<u32>,
    asked_back: Vec<bool>,
}

impl Leases {
    pub fn new(shards: u16) -> Self {
        Self { lent: vec![0; shards.into()], asked_back: vec![false; shards.into()] }
    }

    /// Tags lent to all shards.
    pub fn lent(&self) -> u32 {
        self.lent.iter().sum()
    }
}

impl Queue {
    /// A shard wants tags for its first waiter.
    pub fn on_tag_want(&mut self, pools: &mut Pools, from: ShardId, want: u16) {
        let want = want.clamp(1, want_max(self.options.nr_requests));
        if self.tags.ask(&[Ask { who: Who::Shard(from), want }]) == 1 {
            self.lend(pools, from, want);
        }
    }

    /// A shard returns tags.
    pub fn on_tag_return(&mut self, from: ShardId, count: u16) {
        let lent = &mut self.leases.lent[usize::from(from.0)];
        assert!(*lent >= u32::from(count), "a shard returns what it holds");
        *lent -= u32::from(count);
        self.freed += u32::from(count);
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
