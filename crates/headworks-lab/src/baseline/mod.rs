//! Policies of Linux that the experiments compare against: tag policies here, foreground writeback in [`foreground`].
//!
//! `legacy518` is what Linux 5.18 does, `kuai_v3` a patch series that was proposed for it. Both model *tasks* that sleep, are
//! woken and try again, tag by tag, with wake-up delays of their own ([`WakeOptions`]); a split bio's pieces each get a tag for
//! themselves. They are injected into a shard in place of the usual policy ([`TagPolicy::install`]).
//!
//! Invariant: the tasks' state ([`tasks`]) is moved through time by the host ([`host`]) alone; a policy only decides.

pub mod foreground;
pub mod host;
pub mod kuai_v3;
pub mod legacy518;
pub mod tasks;
#[cfg(test)]
mod tests;

pub use host::TaskHost;
pub use kuai_v3::KuaiV3;
pub use legacy518::Legacy518;

use headworks_core::tags::{FairTags, TagOptions, TagOwner};
use headworks_core::{DeviceId, Shard};

/// The tag policy of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TagPolicy {
    /// The shard's usual policy: deficit round robin by bytes; a split bio is admitted as one.
    #[default]
    Fair,
    /// Linux 5.18: eight wait queues, barging, the stale wake index.
    Legacy518,
    /// Yu Kuai's series of April 2022, version 3, with the patches that [`WakeOptions::patches`] selects.
    KuaiV3,
}

impl TagPolicy {
    /// Every policy, the usual one first.
    pub const ALL: [Self; 3] = [Self::Fair, Self::Legacy518, Self::KuaiV3];

    /// The policy's name in options and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Legacy518 => "legacy518",
            Self::KuaiV3 => "kuai_v3",
        }
    }

    /// Makes an owner of `options.depth` free tags.
    #[must_use]
    pub fn make(self, options: TagOptions, wake: WakeOptions) -> Box<dyn TagOwner> {
        match self {
            Self::Fair => Box::new(FairTags::new(options)),
            Self::Legacy518 => Box::new(Legacy518::new(options, wake)),
            Self::KuaiV3 => Box::new(KuaiV3::new(options, wake)),
        }
    }

    /// Gives the policy to `device` of a quiet shard; a device of another shard is left alone. A later change of the queue's
    /// depth brings back the usual policy.
    pub fn install(self, shard: &mut Shard, device: DeviceId, wake: WakeOptions) {
        if self != Self::Fair
            && let Some(options) = shard.tag_options(device)
        {
            shard.set_tags(device, self.make(options, wake));
        }
    }
}

/// Delays of the modelled host: a woken task runs after `base + per_waiter * i + exp(jitter)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeOptions {
    /// Tags freed before a batch of waiters is woken, 1..=8; 0 takes Linux's rule, `clamp(depth / 8, 1, 8)`.
    pub wake_batch: u32,
    /// Nanoseconds before the first woken task runs.
    pub base_ns: u32,
    /// Nanoseconds more for each task that was woken before it in the same batch.
    pub per_waiter_ns: u32,
    /// Mean of an exponential delay on top, in nanoseconds.
    pub jitter_ns: u32,
    /// Nanoseconds a task takes to submit a piece before it asks for the next tag; other tasks run meanwhile.
    pub per_piece_ns: u32,
    /// Patches of `kuai_v3` that are applied: bit 0 is patch 1. All by default; fewer for ablations.
    pub patches: u8,
    /// Wakes all sleepers when the device has been idle for 5 s: part of patch 4 of `kuai_v3`, lent to `legacy518`, which
    /// had none and may hang. Off, hangs stay hangs.
    pub safety_net: bool,
    /// Seed of the delays and of the races.
    pub seed: u32,
}

impl Default for WakeOptions {
    fn default() -> Self {
        Self {
            wake_batch: 0,
            base_ns: 8_000,
            per_waiter_ns: 1_500,
            jitter_ns: 20_000,
            per_piece_ns: 6_000,
            patches: 0xff,
            safety_net: true,
            seed: 1,
        }
    }
}
