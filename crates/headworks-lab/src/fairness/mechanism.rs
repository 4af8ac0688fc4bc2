//! The mechanisms that share a device, and how a run does without one of them.
//!
//! | mechanism | switched off by |
//! |---|---|
//! | shares are counted in device time | `share=bytes` |
//! | the amount in the device is found by measuring | `hw_depth=fixed` |
//! | connections share the device | a tag policy that takes all requests for those of one connection |
//! | light requests pass one that waits for tags or for the limit | a tag policy that takes all requests for large ones |
//! | write-out has a quarter of the tags | the usual tag policy without `async_depth` |
//! | nearly empty extent groups wait | `Shard::set_sparse_groups_wait` |
//!
//! Service by the earliest start and finish is the fair queueing itself: it goes with the shares.

use headworks_core::device_cost::ShareUnit;
use headworks_core::tags::{
    ByteBudget, FairTags, Grant, ReturnedTags, TagOptions, TagOwner, TagRequest, TagStats,
};
use headworks_core::{DepthMode, DeviceId, ExportId, Instant, QueueOptions, Shard, TenantId};

use crate::baseline::{TagPolicy, WakeOptions};

/// The only device of a run.
const DEVICE: DeviceId = DeviceId(0);

/// A mechanism that a run can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    /// Shares are counted in device time; without it in bytes.
    DeviceTime,
    /// The amount in the device adapts; without it only tags and the announced depth bound it.
    Depth,
    /// Connections share the device; without it all requests are served in order of arrival.
    Shares,
    /// Light requests pass a request that waits for several tags or for the limit on bytes.
    LightFirst,
    /// Write-out may hold a quarter of the tags; without it all of them.
    WriteOutTags,
    /// Nearly empty extent groups wait in the background; without it every group has its turn.
    SparseGroups,
}

impl Mechanism {
    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeviceTime => "device time",
            Self::Depth => "measured depth",
            Self::Shares => "shares",
            Self::LightFirst => "light requests pass",
            Self::WriteOutTags => "write-out's limit of tags",
            Self::SparseGroups => "nearly empty groups wait",
        }
    }
}

/// The way in which a run differs from the default options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// A tag policy; with [`TagPolicy::Fair`] everything is as usual.
    Policy(TagPolicy),
    /// As usual without one mechanism.
    Without(Mechanism),
}

impl Setup {
    /// The queue options of a run that usually has `usual`.
    pub fn queue(self, usual: QueueOptions) -> QueueOptions {
        match self {
            Self::Without(Mechanism::DeviceTime) => {
                QueueOptions { share: ShareUnit::Bytes, ..usual }
            }
            Self::Without(Mechanism::Depth) => QueueOptions { hw_depth: DepthMode::Fixed, ..usual },
            _ => usual,
        }
    }

    /// Changes a shard before its run.
    pub fn install(self, shard: &mut Shard, seed: u64) {
        let mechanism = match self {
            Self::Policy(policy) => {
                let wake = WakeOptions { seed: seed as u32, ..WakeOptions::default() };
                return policy.install(shard, DEVICE, wake);
            }
            Self::Without(mechanism) => mechanism,
        };
        let options = shard.tag_options(DEVICE).expect("the device belongs to the shard");
        match mechanism {
            Mechanism::DeviceTime | Mechanism::Depth => {}
            Mechanism::SparseGroups => shard.set_sparse_groups_wait(false),
            Mechanism::WriteOutTags => {
                let all = TagOptions { async_depth: options.depth, ..options };
                shard.set_tags(DEVICE, Box::new(FairTags::new(all)));
            }
            Mechanism::Shares | Mechanism::LightFirst => {
                let inner = FairTags::new(options);
                shard.set_tags(DEVICE, Box::new(BlindTags { inner, mechanism }));
            }
        }
    }
}

/// The usual tag policy, which does not see what one mechanism needs.
struct BlindTags {
    inner: FairTags,
    mechanism: Mechanism,
}

impl BlindTags {
    fn seen(&self, request: &TagRequest) -> TagRequest {
        match self.mechanism {
            Mechanism::Shares => {
                TagRequest { connection: 0, export: ExportId(0), weight: 1, ..*request }
            }
            // No request of that length is light.
            Mechanism::LightFirst => TagRequest { bytes: u32::MAX, ..*request },
            _ => *request,
        }
    }

    fn all_seen(&self, requests: &[TagRequest]) -> Vec<TagRequest> {
        requests.iter().map(|request| self.seen(request)).collect()
    }
}

impl TagOwner for BlindTags {
    fn grant_at_once(&mut self, requests: &[TagRequest], most: usize) -> usize {
        self.inner.grant_at_once(requests, most)
    }

    fn request(&mut self, now: Instant, requests: &[TagRequest], most: usize) -> usize {
        let seen = self.all_seen(requests);
        self.inner.request(now, &seen, most)
    }

    fn put(&mut self, now: Instant, returned: ReturnedTags) {
        self.inner.put(now, returned);
    }

    fn next_grant(&mut self, now: Instant, budget: ByteBudget) -> Option<Grant> {
        self.inner.next_grant(now, budget)
    }

    fn correct_charge(&mut self, cost: u64) {
        self.inner.correct_charge(cost);
    }

    fn charge(&mut self, tenant: TenantId, export: ExportId, connection: u32, cost: u64) {
        let (export, connection) = match self.mechanism {
            Mechanism::Shares => (ExportId(0), 0),
            _ => (export, connection),
        };
        self.inner.charge(tenant, export, connection, cost);
    }

    fn free(&self) -> u32 {
        self.inner.free()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn waiters(&self) -> u32 {
        self.inner.waiters()
    }

    fn stats(&self) -> TagStats {
        self.inner.stats()
    }
}
