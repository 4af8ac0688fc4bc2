//! A change of options while the queue drains, and the bios and lease requests that wait for its end (`switch`).
//!
//! Invariants: one change at a time; bios and lease requests come to be held only while the queue drains; bios leave in the order in
//! which they came; of each shard at most one lease request is held.

use super::leases::LeaseRequest;
use crate::bio::ShardId;
use crate::list::Fifo;
use crate::options::QueueOptions;
use crate::request::Bios;

/// A change of options in progress, and what waits for its end.
#[derive(Debug)]
pub(super) struct OptionSwitch {
    /// The options to come and the token of the answer.
    next: Option<(QueueOptions, u32)>,
    /// Bios that came while the queue drained.
    held: Fifo,
    /// Lease requests that came while the queue drained, by shard.
    lease_requests: Vec<Option<LeaseRequest>>,
}

impl OptionSwitch {
    /// Creates the state of an open queue.
    pub fn new(shards: u16) -> Self {
        Self { next: None, held: Fifo::new(), lease_requests: vec![None; shards.into()] }
    }

    /// Returns true while the queue drains.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.next.is_some()
    }

    /// Holds a bio until the change is over.
    pub fn hold(&mut self, bios: &mut Bios, slot: u32) {
        assert!(self.is_draining(), "bios are held while the queue drains");
        self.held.push(bios, slot);
    }

    /// Holds a shard's lease request until the change is over; a shard has one at most.
    pub fn hold_lease_request(&mut self, from: ShardId, request: LeaseRequest) {
        assert!(self.is_draining(), "lease requests are held while the queue drains");
        let held = self.lease_requests[usize::from(from.0)].replace(request);
        assert!(held.is_none(), "a shard has one lease request at most");
    }

    /// Returns the first held bio.
    pub fn first_held(&self) -> Option<u32> {
        self.held.head()
    }

    /// Removes the first held bio.
    pub fn pop_held(&mut self, bios: &mut Bios) -> Option<u32> {
        self.held.pop(bios)
    }

    /// Removes the held lease request of a shard.
    pub fn take_lease_request(&mut self, from: ShardId) -> Option<LeaseRequest> {
        assert!(!self.is_draining(), "held lease requests enter when the change is over");
        self.lease_requests[usize::from(from.0)].take()
    }

    /// Returns all shards, the own one included.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.lease_requests.len() as u16).map(ShardId)
    }

    /// Begins a change to `next`.
    pub fn begin(&mut self, next: QueueOptions, token: u32) {
        assert!(!self.is_draining(), "one change at a time");
        self.next = Some((next, token));
    }

    /// Returns the options to come and the token of the answer, while the queue drains.
    #[inline]
    pub fn next(&self) -> Option<&(QueueOptions, u32)> {
        self.next.as_ref()
    }

    /// Returns the options to come, for a change of those that need no draining.
    pub fn next_mut(&mut self) -> Option<&mut QueueOptions> {
        self.next.as_mut().map(|(next, _)| next)
    }

    /// Ends the change in progress.
    pub fn end(&mut self) {
        self.next = None;
    }
}
