//! Options of shards, caches, queues and volumes, with their defaults and reasons. Names follow Linux where it has the option.
//!
//! `topology` describes the devices, volumes, exports and tenants of a shard, `cache` its page cache, `queue` the queue of a
//! device, `bfq` that elevator, `tunable` the queue's tunables as a table, `change` hot-add and hot-remove.

mod bfq;
mod cache;
mod change;
mod queue;
pub(crate) mod topology;
mod tunable;

pub use bfq::BfqOptions;
pub use cache::{CacheOptions, ErrorPolicy, WriteMode};
pub use change::{Change, ChangeError};
pub use queue::{DeadlineOptions, DepthMode, NoMerges, QueueOptions, Scheduler};
pub use topology::{
    DEVICES_MAX, DeviceConfig, ExportConfig, ShardConfig, SpareSlots, TENANTS_MAX, TenantConfig,
    TenantMemory, VolumeConfig, VolumeOptions,
};
pub use tunable::Tunable;
