//! Tags: the right to be in flight, fairly.
//!
//! A device's tags have one owner, on the shard of its queue. The owner is asked in batches, answers in the order of tickets,
//! and a grant is the tag itself: nobody is woken to try again. Other shards hold *leases*: tags granted in advance, used and
//! reused without a message, returned when idle or when the owner revokes them because somebody waits.
//!
//! ```text
//!   ask(want) --free and nobody before me--> granted
//!       \--otherwise--> ticket --head of the line and `want` free--> granted (all of it, never part)
//! ```
//!
//! Invariants: free + held + leased = depth; a waiter is passed by nobody; if the head's want is free it is granted in the
//! same batch; `want` never exceeds `depth / 2` rounded up, so the head is always served in the end.

mod fifo;
mod lease;

pub use fifo::FifoTags;
pub use lease::Lease;

use crate::bio::ShardId;
use crate::request::SlotId;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A request of this shard.
    Request(SlotId),
    /// Another shard, for its lease.
    Shard(ShardId),
}

/// A wish for `want` tags, granted whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Who asks.
    pub who: Who,
    /// How many tags, from 1 to [`want_max`].
    pub want: u16,
}

/// The largest want that `depth` tags serve: half of them, at least 1, at most 32. Half, so that two large ones overlap; 32,
/// so that gathering stays short on deep devices.
#[must_use]
pub const fn want_max(depth: u32) -> u16 {
    match depth / 2 {
        0 => 1,
        half if half > 32 => 32,
        half => half as u16,
    }
}

/// Owns a device's tags. Crossed once a batch, so it may be a trait object and be changed while the queue runs.
pub trait TagOwner: Send {
    /// Asks in order. Returns how many of the front were granted at once; the rest hold tickets and come out of
    /// [`TagOwner::next_grant`] in order.
    fn ask(&mut self, asks: &[Ask]) -> usize;

    /// `count` tags come back.
    fn put(&mut self, count: u32);

    /// The next waiter whose turn it is and whose want is free; its tags are taken. Call until `None` after `put`.
    fn next_grant(&mut self) -> Option<Ask>;

    /// Tags nobody holds.
    fn free(&self) -> u32;

    /// All tags.
    fn depth(&self) -> u32;

    /// How many wait.
    fn waiters(&self) -> u32;
}
