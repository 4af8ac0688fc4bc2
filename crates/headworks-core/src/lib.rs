//! The policy of Headworks: every decision of the block I/O path, as deterministic state machines.
//!
//! A [`Shard`] decides about the I/O of one thread. Its driver hands it [`Input`]s with the current time and executes the ordered
//! list of [`Action`]s that it returns. The server, the embedding API and the simulator are drivers; equal inputs give equal
//! actions. Nothing here reads a clock, starts a thread, takes a lock, makes a system call or allocates after the start.
//!
//! ```
//! use headworks_core::{Action, Bio, Input, Instant, Op, QueueOptions, Shard, ShardConfig, VolumeOptions};
//!
//! let volume = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
//! let mut shard = Shard::new(ShardConfig::single(QueueOptions::default(), volume, 64))?;
//! let bio = Bio { op: Op::Read, offset: 4096, len: 4096, ..Bio::default() };
//! shard.handle(Instant(0), &[Input::Bio(bio)]);
//! let submitted = |action: &&Action| matches!(action, Action::Submit(command) if command.len == 4096);
//! assert_eq!(shard.actions().list.iter().filter(submitted).count(), 1);
//! shard.clear_actions();
//! # Ok::<(), headworks_core::ConfigError>(())
//! ```
//!
//! The path of a bio, and the modules that decide about it:
//!
//! | module | decides |
//! |---|---|
//! | `volume` | bounds, alignment, read-only |
//! | [`limits`] | which request passes a limit of bytes or I/Os a second |
//! | [`cache`], [`writeback`] | hits, fills, read-ahead, eviction; dirty limits, throttling and write-out |
//! | `plug`, `merge` | which bios of a batch become one request |
//! | `queue` | admission, splitting, dispatch, completion, flushes, retries, time-outs |
//! | [`tags`] | which request gets a tag next |
//! | [`elevator`] | the order of dispatch |
//! | `remote` | bios for a device of another shard |
//!
//! [`options`] has every option with its default, [`record`] the encoding of inputs, [`stats`] the statistics.
#![forbid(unsafe_code)]

mod action;
pub mod bio;
pub mod buddy;
pub mod cache;
mod depth;
mod device_bio;
pub mod device_cost;
mod dirty_entry;
pub mod elevator;
mod error;
pub mod extent;
mod flags;
mod gauge;
mod input;
pub mod latency_target;
pub mod limits;
mod list;
pub mod merge;
pub mod options;
mod plug;
mod pools;
pub mod prng;
mod queue;
pub mod record;
mod remote;
pub mod request;
pub mod request_limits;
mod shard;
pub mod shares;
pub mod slab;
pub mod stats;
pub mod tags;
pub mod time;
mod timer;
mod tunables;
mod volume;
mod wait_times;
pub mod writeback;

pub use action::{
    Action, Actions, CopyDirection, FrameRange, Notice, REPLY_RANGES_MAX, Segment, Submit,
};
pub use bio::{
    Bio, BioFlags, BioId, DeviceId, ExportId, IoClass, Ioprio, Op, ShardId, TenantId, VolumeId,
};
pub use dirty_entry::DirtyEntry;
pub use error::{ConfigError, IoError, Status, escape_controls};
pub use extent::{EXTENTS_BYTES, Extent, ExtentState};
pub use input::{Completion, Control, Input, Message, ReplyStage, RequestId};
pub use options::{
    BfqOptions, CacheOptions, Change, ChangeError, DeadlineOptions, DepthMode, DeviceConfig,
    ErrorPolicy, ExportConfig, NoMerges, QueueOptions, Scheduler, ShardConfig, SpareSlots,
    TenantConfig, TenantMemory, Tunable, VolumeConfig, VolumeOptions, WriteMode,
};
pub use queue::DeviceState;
pub use shard::{BioWait, Shard};
pub use time::Instant;
pub use tunables::Unit;
pub use wait_times::{WaitKind, WaitTimes};
