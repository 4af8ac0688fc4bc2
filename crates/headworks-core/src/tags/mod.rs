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
mod host;
mod kuai_v3;
mod lease;
mod legacy518;
mod stats;
mod tasks;

pub use fair::FairTags;
pub(crate) use flows::{Flows, Head};
pub use kuai_v3::KuaiV3;
pub use lease::Lease;
pub use legacy518::Legacy518;
pub use stats::TagStats;

use crate::bio::{ExportId, ShardId};
use crate::options::{QueueOptions, Scheduler, TagPolicy};
use crate::request::SlotId;
use crate::time::Instant;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A request of this shard.
    Request(SlotId),
    /// Another shard, for its lease.
    Shard(ShardId),
}

/// A wish for tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Who asks.
    pub who: Who,
    /// How many tags: what [`TagOwner::want`] said.
    pub want: u16,
    /// Bytes they are for; what the asker's share is counted in.
    pub bytes: u32,
    /// Somebody waits for it; the others are held to `async_depth`.
    pub sync: bool,
    /// Which connection (or shard) asks: tickets are in order within it.
    pub connection: u32,
    /// Whose share it spends.
    pub export: ExportId,
    /// That export's weight.
    pub weight: u16,
}

/// Tags that somebody has from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub who: Who,
    /// How many: all that it asked for with `fair`; the baselines grant one at a time until it has all.
    pub tags: u16,
}

/// Tags that fell free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// How many, of all kinds.
    pub count: u32,
    /// How many of them were not for a synchronous request.
    pub asyncs: u32,
}

/// Whom the bytes in flight leave room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Anybody.
    Any,
    /// Only a connection that is light: its small wish hardly makes the device's queue longer.
    Light,
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
    /// How many tags a request of `pieces` pieces asks for.
    fn want(&self, pieces: u32) -> u16 {
        pieces.min(u32::from(want_max(self.depth()))) as u16
    }

    /// Whether a finished piece's tag goes to the next piece of its bio; else each piece has a tag granted for itself.
    fn continues(&self) -> bool {
        true
    }

    /// Asks in order. Returns how many of the front were granted at once, never more than `most`; the rest wait and come out
    /// of [`TagOwner::next_grant`].
    fn ask(&mut self, now: Instant, asks: &[Ask], most: usize) -> usize;

    /// Tags come back.
    fn put(&mut self, now: Instant, freed: Freed);

    /// The next whose turn it is and whose want is free; its tags are taken. Call until `None`, at the end of every batch.
    fn next_grant(&mut self, now: Instant, room: Room) -> Option<Grant>;

    /// Whom the last grant went to has grown to `bytes` while it waited, by merging: its share pays for all of it.
    fn on_grown(&mut self, _bytes: u32) {}

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

/// The tag policy that `options` name.
#[must_use]
pub fn make(options: &QueueOptions, waiters_max: usize, cached: bool) -> Box<dyn TagOwner> {
    let made = TagOptions::new(options, waiters_max, cached);
    match options.tags {
        TagPolicy::Fair => Box::new(FairTags::new(made)),
        TagPolicy::Legacy518 => Box::new(Legacy518::new(made, options.wake)),
        TagPolicy::KuaiV3 => Box::new(KuaiV3::new(made, options.wake)),
    }
}
