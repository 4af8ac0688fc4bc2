//! The interface between a device's queue and the owner of its tags.

use super::stats::TagStats;
use crate::bio::{ExportId, ShardId, TenantId};
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
    /// Bytes that the tags are for.
    pub bytes: u32,
    /// What the request costs its shares: nanoseconds of device time, or bytes.
    pub cost: u64,
    /// A caller waits for the result. Other requests are limited to `async_depth` tags.
    pub sync: bool,
    /// The issuing connection or shard. Requests of one connection are served in order.
    pub connection: u32,
    /// The export that is charged for the bytes.
    pub export: ExportId,
    /// Weight of that export against the others of its tenant.
    pub weight: u16,
    /// The tenant of the export.
    pub tenant: TenantId,
    /// Weight of that tenant against the others and exports without one.
    pub tenant_weight: u16,
    /// Latency target of the export in microseconds, 0 for none.
    pub target_us: u32,
}

impl TagRequest {
    /// A request for one tag, of no connection, with default shares.
    pub(crate) const fn of(requester: Requester) -> Self {
        Self {
            requester,
            tags: 1,
            bytes: 0,
            cost: 0,
            sync: true,
            connection: 0,
            export: ExportId(0),
            weight: 0,
            tenant: TenantId::NONE,
            tenant_weight: 0,
            target_us: 0,
        }
    }
}

/// Tags handed to a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The party that receives the tags.
    pub requester: Requester,
    /// Number of tags: with `fair` all that were requested; a policy that grants tag by tag may give fewer.
    pub tags: u16,
    /// The request is small and came alone, and its connection has not had its share.
    pub light: bool,
    /// What its share was charged.
    pub cost: u64,
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
    /// The limit on bytes of bulk is reached: only requests with a latency target of at most this many microseconds. With
    /// `light_only` the other limit is reached, too.
    Guarded {
        /// The tightest target that is missed.
        target_us: u32,
        /// Only light flows.
        light_only: bool,
    },
}

/// Returns the most tags of one request on a device with `depth` tags: half of them, at least 1, at most 32. Half, so that two
/// large requests overlap; 32, so that gathering stays short on deep devices.
#[must_use]
pub const fn max_request_tags(depth: u32) -> u16 {
    match depth / 2 {
        0 => 1,
        half if half > 32 => 32,
        half => half as u16,
    }
}

/// The owner of a device's tags, called once a batch.
pub trait TagOwner: Send {
    /// Returns the number of tags that a bio of `pieces` pieces requests, at least 1.
    fn tags_for(&self, pieces: u32) -> u16 {
        assert!(pieces > 0, "a bio has at least one piece");
        pieces.min(u32::from(max_request_tags(self.depth()))) as u16
    }

    /// Returns whether a completed piece hands its tag to the next piece of its bio. Otherwise every piece is granted a tag.
    fn reuses_tags(&self) -> bool {
        true
    }

    /// Grants requests from the front, at most `most`, while none waits and enough tags are free; returns how many. The others are
    /// passed to [`TagOwner::request`]. A policy without such a short cut grants none here.
    fn grant_at_once(&mut self, _requests: &[TagRequest], _most: usize) -> usize {
        0
    }

    /// Requests tags, in order. Returns how many requests at the front were granted, at most `most`; the others wait and are
    /// granted by [`TagOwner::next_grant`].
    fn request(&mut self, now: Instant, requests: &[TagRequest], most: usize) -> usize;

    /// Takes returned tags back.
    fn put(&mut self, now: Instant, returned: ReturnedTags);

    /// Grants tags to the waiter whose turn it is, if enough are free. Called until it returns `None`, at the end of every batch.
    fn next_grant(&mut self, now: Instant, budget: ByteBudget) -> Option<Grant>;

    /// Withdraws a waiter that is `expired`: it gets no tags. Called with the same `cursor`, first 0, until it returns `None`.
    /// Waiters of one connection expire in their order. With a policy that withdraws none, waiters have no time limit.
    fn withdraw(
        &mut self,
        _cursor: &mut u32,
        _expired: &dyn Fn(Requester) -> bool,
    ) -> Option<Requester> {
        None
    }

    /// Withdraws a waiter that merged with another request: it gets no tags, and pays nothing. Returns false if it was not found;
    /// then it waits on. It is among the last of its connection to have begun to wait, or is not found.
    fn withdraw_merged(&mut self, _waiter: &TagRequest) -> bool {
        false
    }

    /// Reports what the request of the last grant costs now: it may have grown by merging while it waited, and what is known of
    /// the device's costs may have changed. Its share is charged that.
    fn correct_charge(&mut self, _cost: u64) {}

    /// Charges the shares of a connection for work that no grant was for: a retry, a flush.
    fn charge(&mut self, _tenant: TenantId, _export: ExportId, _connection: u32, _cost: u64) {}

    /// Returns when `next_grant` may have a grant though no tag was returned.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns the number of free tags.
    fn free(&self) -> u32;

    /// Returns the number of all tags.
    fn depth(&self) -> u32;

    /// Returns the number of requests that wait.
    fn waiters(&self) -> u32;

    /// Returns the counters of the policy.
    fn stats(&self) -> TagStats;
}

/// The parameters of a tag policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagOptions {
    /// Number of tags, at least 1.
    pub depth: u32,
    /// Tags that asynchronous requests may hold, 1..=depth.
    pub async_depth: u32,
    /// Most requests that wait at once.
    pub waiters_max: usize,
}

impl TagOptions {
    /// The parameters of a policy in front of an elevator that owns shares: `depth` tags, enough for every request.
    #[must_use]
    pub fn open(depth: u32, waiters_max: usize) -> Self {
        Self { depth, async_depth: depth, waiters_max }
    }

    /// Derives the parameters from a queue's options. With a cache above (`cached`), write-out is asynchronous and no caller
    /// waits for it; `none` has no `async_depth` to limit it, so it may have a quarter of the tags.
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
        assert!(async_depth >= 1 && async_depth <= depth, "async_depth is out of range");
        Self { depth, async_depth, waiters_max }
    }
}
