//! What the home of a node keeps of a shard that leases tokens of it, and the messages between the two.
//!
//! A lessee is the counterpart of a `lease`, which the other shard has. It is a child of the node, and competes for it with the
//! node's other children.
//!
//! Invariant: a lessee has at most one request of each direction, the last one that its shard has sent.

use super::tokens::{LeaseMessage, LeaseRequest};
use super::{LimitDirection, NodeId};
use crate::bio::ShardId;

/// A message that a tree has for another shard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingLease {
    /// The node that it is about, by its number here.
    pub node: NodeId,
    /// The shard that it is for.
    pub to: ShardId,
    /// Request, answer or return.
    pub message: LeaseMessage,
}

/// A child that stands for another shard.
#[derive(Debug)]
pub(super) struct Lessee {
    shard: ShardId,
    requests: [Option<LeaseRequest>; 2],
}

impl Lessee {
    pub fn new(shard: ShardId) -> Self {
        Self { shard, requests: [None; 2] }
    }

    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The requests that wait.
    pub fn requests(&self) -> impl Iterator<Item = &LeaseRequest> {
        self.requests.iter().flatten()
    }

    /// Takes a request in, which replaces the one of its direction.
    pub fn put(&mut self, request: LeaseRequest) {
        self.requests[request.direction as usize] = Some(request);
    }

    /// Takes the request of a direction in which it waits.
    pub fn take(&mut self, direction: LimitDirection) -> LeaseRequest {
        self.requests[direction as usize].take().expect("a lessee waits with a request")
    }
}
