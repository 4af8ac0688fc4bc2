//! Tags: the right to be in flight, fairly.
//!
//! A device's tags have one owner, on the shard of its queue. The owner is asked in batches and a grant is the tag itself:
//! nobody is woken to try again. Other shards hold *leases*: tags granted in advance, used and reused without a message,
//! returned when idle or when the owner revokes them because somebody waits.
//!
//! ```text
//!   ask(want) --free and nobody waits--> granted
//!       \--otherwise--> waits --its turn has come and `want` is free--> granted (all of it, never part)
//! ```
//!
//! `fair` is the policy; `legacy518` and `kuai_v3` are what Linux did and what was proposed, for experiments that show what
//! is gained. Those two model *tasks* that are woken and try again, tag by tag: they bring delays of their own, and a split
//! bio's pieces each get a tag for themselves.
//!
//! Invariants: free + held + leased = depth; with `fair`, who waits is passed by no later one of its own connection, if the
//! head's want is free beside the reserve it is granted in the same batch, and a want never exceeds `depth / 2` rounded up, so
//! the head is always served in the end.

mod fair;
mod flows;
mod lease;
mod stats;

pub use fair::FairTags;
pub(crate) use flows::{FlowHead, Flows};
pub use lease::Lease;
pub use stats::TagStats;

use crate::bio::{ExportId, ShardId};
use crate::options::{QueueOptions, Scheduler};
use crate::request::SlotId;
use crate::time::Instant;

/// The party that asks for tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A request of this shard.
    Request(SlotId),
    /// Another shard that extends its lease.
    Shard(ShardId),
}

/// A request for one or more tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagRequest {
    /// The party that asks.
    pub requester: Requester,
    /// Number of tags, from [`TagOwner::tags_for`]; at least 1.
    pub tags: u16,
    /// Bytes that the tags are for; shares are counted in bytes.
    pub bytes: u32,
    /// A caller waits for the result. Other requests are limited to `async_depth` tags.
    pub sync: bool,
    /// The issuing connection or shard. Requests of one connection are served in order.
    pub connection: u32,
    /// The export that is charged for the bytes.
    pub export: ExportId,
    /// Weight of that export against the others.
    pub weight: u16,
}

/// Tags handed to a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The party that receives the tags.
    pub requester: Requester,
    /// Number of tags: with `fair` all that were requested; a policy that grants tag by tag may give fewer.
    pub tags: u16,
}

/// Tags that the queue returns to the owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReturnedTags {
    /// Number of tags of all kinds.
    pub count: u32,
    /// How many of them asynchronous requests held, at most `count`.
    pub asyncs: u32,
}

/// The requests that the limit on bytes in flight (`hw_inflight_kb`) admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteBudget {
    /// Any request may be admitted.
    Available,
    /// The limit is reached: only light flows, whose small requests barely deepen the device's queue.
    LightOnly,
}

/// The largest want that `depth` tags serve: half of them, at least 1, at most 32. Half, so that two large ones overlap; 32,
/// so that gathering stays short on deep devices.
#[must_use]
pub const fn max_request_tags(depth: u32) -> u16 {
    match depth / 2 {
        0 => 1,
        half if half > 32 => 32,
        half => half as u16,
    }
}

/// Owns a device's tags. Crossed once a batch, so it may be a trait object and be changed while the queue runs.
pub trait TagOwner: Send {
    /// How many tags a request of `pieces` pieces asks for.
    fn tags_for(&self, pieces: u32) -> u16 {
        pieces.min(u32::from(max_request_tags(self.depth()))) as u16
    }

    /// Whether a finished piece's tag goes to the next piece of its bio; else each piece has a tag granted for itself.
    fn reuses_tags(&self) -> bool {
        true
    }

    /// Asks in order. Returns how many of the front were granted at once, never more than `most`; the rest wait and come out
    /// of [`TagOwner::next_grant`].
    fn request(&mut self, now: Instant, requests: &[TagRequest], most: usize) -> usize;

    /// Tags come back.
    fn put(&mut self, now: Instant, freed: ReturnedTags);

    /// The next whose turn it is and whose want is free; its tags are taken. Call until `None`, at the end of every batch.
    fn next_grant(&mut self, now: Instant, room: ByteBudget) -> Option<Grant>;

    /// Whom the last grant went to has grown to `bytes` while it waited, by merging: its share pays for all of it.
    fn charge_growth(&mut self, _bytes: u32) {}

    /// When `next_grant` may have something though nothing came back: a woken task runs.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Tags nobody holds.
    fn free(&self) -> u32;

    /// All tags.
    fn depth(&self) -> u32;

    /// How many wait.
    fn waiters(&self) -> u32;

    /// What happened so far.
    fn stats(&self) -> TagStats;
}

/// What a tag policy is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagOptions {
    /// Tags.
    pub depth: u32,
    /// Tags that asynchronous requests may hold, 1..=depth.
    pub async_depth: u32,
    /// Most asks that wait at once.
    pub waiters_max: usize,
}

impl TagOptions {
    /// What `options` say, with room for `waiters_max`. With a cache above (`cached`), write-out is asynchronous and nobody
    /// waits for it; `none` has no `async_depth` to hold it back, so it may have a quarter of the tags.
    #[must_use]
    pub fn new(options: &QueueOptions, waiters_max: usize, cached: bool) -> Self {
        let depth = options.nr_requests;
        let async_depth = match options.scheduler {
            Scheduler::MqDeadline if options.deadline.async_depth > 0 => {
                options.deadline.async_depth.min(depth)
            }
            Scheduler::None if cached => (depth / 4).max(1),
            _ => depth,
        };
        Self { depth, async_depth, waiters_max }
    }
}

/// Makes the tag policy of a queue.
#[must_use]
pub fn make(options: &QueueOptions, waiters_max: usize, cached: bool) -> Box<dyn TagOwner> {
    Box::new(FairTags::new(TagOptions::new(options, waiters_max, cached)))
}
