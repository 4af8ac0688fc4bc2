//! Every number a user may set, with its default and its reason. Names are Linux's where Linux has the thing.
//!
//! `cache` is the cache of a shard, `queue` one device's queue, `tunable` the same options as a table of names, ranges and values (what a control socket,
//! a record and a live switch work with), `topology` what a shard is made from, `change` what joins and leaves it.

mod cache;
mod change;
mod queue;
pub(crate) mod topology;
mod tunable;

pub use cache::{CacheOptions, ErrorPolicy, WriteMode};
pub use change::{Change, ChangeError};
pub use queue::{DeadlineOptions, NoMerges, QueueOptions, Scheduler};
pub use topology::{
    DEVICES_MAX, DeviceConfig, ExportConfig, ShardConfig, SpareSlots, VolumeConfig, VolumeOptions,
};
pub use tunable::Tunable;
