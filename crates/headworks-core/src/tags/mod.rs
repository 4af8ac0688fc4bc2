//! Tags: the right of a request to be below the plug, granted fairly.
//!
//! A device's tags have one owner, on the shard of its queue. It is called in batches, and a grant carries its tags: no waiter is
//! woken to try again. Other shards hold *leases*: tags granted in advance, used and reused without a message, and returned
//! when they are idle or when the owner revokes them because requests wait.
//!
//! ```text
//!   request(tags) --enough are free and no request waits--> granted
//!          \--otherwise--> waits --its turn, and enough are free--> granted (all of them, never a part)
//! ```
//!
//! [`FairTags`] is the policy; another one is injected by [`Shard::set_tags`](crate::Shard::set_tags).
//!
//! Invariants: free + held + leased == depth; with `fair` no later waiter of its own connection passes a waiter; a waiter at the
//! head whose tags and the reserve are free is granted in the same batch; a request wants at most `depth / 2` tags, rounded
//! up, so the head is always served in the end.

mod fair;
mod flows;
mod lease;
mod owner;
mod stats;

pub use fair::FairTags;
pub(crate) use flows::pool::KeyTable;
pub(crate) use flows::{FlowHead, Flows};
pub use lease::Lease;
pub use owner::{
    ByteBudget, Grant, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest, max_request_tags,
};
pub use stats::TagStats;

/// Creates the tag policy of a queue.
#[must_use]
pub fn make(options: TagOptions) -> Box<dyn TagOwner> {
    Box::new(FairTags::new(options))
}
