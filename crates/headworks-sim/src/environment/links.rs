//! The links between shards. Invariant: messages of one shard to another arrive in the order in which they were sent.

use headworks_core::{Instant, ShardId};

/// The links between every two shards.
#[derive(Debug)]
pub(super) struct Links {
    shards: usize,
    /// Arrival time of the last message, by pair of shards.
    arrivals: Vec<Instant>,
}

impl Links {
    /// Idle links between so many shards.
    pub fn new(shards: u16) -> Self {
        let shards = usize::from(shards);
        Self { shards, arrivals: vec![Instant(0); shards * shards] }
    }

    /// When a message arrives that would do so at `at` on a link of its own: not before the one sent last.
    pub fn arrival(&mut self, from: ShardId, to: ShardId, at: Instant) -> Instant {
        let last = &mut self.arrivals[usize::from(from.0) * self.shards + usize::from(to.0)];
        *last = at.max(*last);
        *last
    }
}
