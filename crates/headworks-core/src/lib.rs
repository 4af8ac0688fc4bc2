//! The policy of Headworks: every decision of the block I/O path as plain state machines.
//!
//! Nothing here reads a clock, starts a thread, takes a lock, makes a system call or, after start-up, allocates. A [`Shard`]
//! takes [`Input`]s with the time they came and gives an ordered list of [`Action`]s; whoever drives it (the server's
//! reactor, an embedding program, the simulated world) carries them out. The same inputs give the same actions, bit for bit.
//!
//! The modules follow the path of a bio: `volume` checks it, `plug` holds a turn's batch, `queue` admits, merges, splits and
//! keeps the contract with the device, `elevator` orders, `tags` is the right to be in flight.
#![forbid(unsafe_code)]

pub mod action;
pub mod bio;
pub mod buddy;
pub mod cache;
mod device_bio;
pub mod elevator;
pub mod error;
pub mod extent;
mod flags;
pub mod gauge;
pub mod input;
pub mod list;
pub mod merge;
pub mod options;
mod plug;
mod pools;
pub mod prng;
mod queue;
pub mod record;
mod remote;
pub mod request;
pub mod shard;
pub mod slab;
pub mod stats;
pub mod tags;
pub mod time;
mod timer;
pub mod tunables;
mod volume;
pub mod wait_times;
pub mod writeback;

pub use action::{Action, Actions, CopyDirection, Notice, Segment, Submit};
pub use bio::{Bio, BioFlags, BioId, DeviceId, ExportId, IoClass, Ioprio, Op, ShardId, VolumeId};
pub use error::{ConfigError, IoError, Status};
pub use extent::{EXTENTS_BYTES, Extent, ExtentState};
pub use input::{Completion, Control, Input, Message, ReplyStage, RequestId};
pub use options::{
    CacheOptions, Change, ChangeError, DeadlineOptions, DeviceConfig, ErrorPolicy, ExportConfig,
    NoMerges, QueueOptions, Scheduler, ShardConfig, SpareSlots, Tunable, VolumeConfig,
    VolumeOptions, WriteMode,
};
pub use shard::Shard;
pub use time::Instant;
pub use wait_times::{WaitKind, WaitTimes};
