//! The owner's side of tag leases: how many tags each shard holds, and asking for them back when requests wait here.
//!
//! A lessee is asked once; the next grant to it ends the revocation. Invariants: `total` is the sum of `lent`; tags of
//! timed-out bios are lent, `timed_out <= total`.

use crate::bio::{ShardId, TenantId};
use crate::gauge::Gauge32;

/// A shard's request for an extension of its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseRequest {
    /// Number of tags, at least 1.
    pub tags: u16,
    /// Bytes that the tags are for.
    pub bytes: u32,
    /// What the requests cost by the model that the shard was sent.
    pub cost: u64,
    /// The tenant whose waiters the tags are for.
    pub tenant: TenantId,
    /// The sum of the weights of the tenant's exports that wait there.
    pub weight: u16,
    /// The latency target of the first waiter there, in microseconds, 0 for none.
    pub target_us: u32,
}

/// The tags that other shards hold.
#[derive(Debug)]
pub(super) struct Leases {
    lent: Vec<Gauge32>,
    total: Gauge32,
    /// By shard: its request for tags waits.
    waits: Vec<bool>,
    /// By shard: it was asked to return its tags, and was granted none since.
    revoked: Vec<bool>,
    /// Tags of timed-out bios: out until the device answers, although they are revoked.
    timed_out: Gauge32,
}

impl Leases {
    /// Creates the leases of `shards` shards, none of which holds a tag.
    pub fn new(shards: u16) -> Self {
        Self {
            lent: vec![Gauge32::default(); shards.into()],
            total: Gauge32::default(),
            waits: vec![false; shards.into()],
            revoked: vec![false; shards.into()],
            timed_out: Gauge32::default(),
        }
    }

    /// Returns the number of tags lent to all shards.
    pub fn lent(&self) -> u32 {
        self.total.get()
    }

    /// Returns true when no tag is lent that can come back before the device answers.
    pub fn only_timed_out(&self) -> bool {
        self.total == self.timed_out
    }

    /// Counts tags that a shard was granted.
    pub fn lend(&mut self, to: ShardId, tags: u16) {
        let to = usize::from(to.0);
        self.lent[to].add(tags.into());
        self.total.add(tags.into());
        self.revoked[to] = false;
        self.waits[to] = false;
    }

    /// Notes that a shard's request for tags waits until the next ones are lent to it.
    pub fn wait(&mut self, from: ShardId) {
        assert!(!self.waits[usize::from(from.0)], "a shard asks for tags once at a time");
        self.waits[usize::from(from.0)] = true;
    }

    /// Returns true if every shard that has tags waits for more.
    pub fn all_wait(&self) -> bool {
        self.lent.iter().zip(&self.waits).all(|(lent, waits)| lent.is_zero() || *waits)
    }

    /// Counts tags that a shard returned; it returns no more than it holds.
    pub fn take_back(&mut self, from: ShardId, tags: u16) {
        self.lent[usize::from(from.0)].sub(tags.into());
        self.total.sub(tags.into());
        assert!(self.timed_out <= self.total, "a timed-out bio keeps its tags");
    }

    /// Counts the tags of a bio that timed out.
    pub fn add_timed_out(&mut self, tags: u16) {
        self.timed_out.add(tags.into());
        assert!(self.timed_out <= self.total, "only lent tags time out");
    }

    /// Counts the tags of a timed-out bio that the device has answered.
    pub fn remove_timed_out(&mut self, tags: u16) {
        self.timed_out.sub(tags.into());
    }

    /// Returns a shard that holds tags and was not asked for them yet, and notes that it is asked now.
    pub fn revoke_next(&mut self) -> Option<ShardId> {
        if self.total.is_zero() {
            return None;
        }
        let mut shards = self.lent.iter().zip(&self.revoked);
        let shard = shards.position(|(lent, &revoked)| !lent.is_zero() && !revoked)?;
        self.revoked[shard] = true;
        Some(ShardId(shard as u16))
    }
}
