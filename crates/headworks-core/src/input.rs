//! Inputs: every event that a shard handles, as plain data.
//!
//! A log of inputs with the `now` of each batch replays to the same actions. So an input holds no pointer, no usize and no float,
//! and uses ids that mean the same in every run.

use crate::bio::{Bio, BioId, DeviceId, ExportId, ShardId, TenantId, VolumeId};
use crate::device_cost::{DeviceCost, ShareUnit};
use crate::error::Status;
use crate::options::{ExportConfig, TenantMemory, Tunable};
use crate::queue::DeviceState;
use crate::wait_times::WaitTimes;
use crate::writeback::DirtyTunable;

/// The id of a command in flight: a request slot and its generation.
///
/// Policy alone chooses both, so they are equal in every replay. A completion for an id that is not in flight is reported and
/// otherwise ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Index of the request on its device's shard.
    pub slot: u32,
    /// Number of commands that were sent from the slot before.
    pub generation: u32,
}

/// A device's answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id of the command.
    pub id: RequestId,
    /// Bytes moved from the command's start; the queue continues a short transfer.
    pub transferred: u32,
    /// Outcome of the command; `Busy` means that it was refused and had no effect.
    pub status: Status,
    /// Whether the range reads as zeros and the buffer is unchanged; allowed only with `HOLE_OK`.
    pub hole: bool,
}

/// Messages between shards, delivered in order between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the owner of the volume's device: executes a bio, which uses `tags` of the sender's lease until `Done`.
    Bio {
        /// The bio, checked against its volume.
        bio: Bio,
        /// The sender's cookie, which `Done` returns.
        cookie: u32,
        /// Number of leased tags that it uses.
        tags: u16,
        /// The part of the device's `io_timeout` that it has waited for tags, in 255ths.
        waited: u8,
    },
    /// To the bio's shard: completes a bio.
    Done {
        /// The cookie from `Bio`.
        cookie: u32,
        /// The id of the bio.
        id: BioId,
        /// Outcome of the bio.
        status: Status,
        /// As in [`Completion::hole`]: zeros, buffer unchanged.
        hole: bool,
        /// What the reply means for the buffer.
        stage: ReplyStage,
        /// Wait times on the owner's shard.
        wait_times: WaitTimes,
    },
    /// To the owner: requests `want` tags of `device` for the waiters here; enough for the first of them.
    TagWant {
        /// The device of the tags.
        device: DeviceId,
        /// Number of tags, at least 1.
        want: u16,
        /// Bytes of the waiters' requests.
        bytes: u32,
        /// What these requests cost, as in [`crate::tags::TagRequest::cost`].
        cost: u64,
        /// The tenant of the first waiter, whose waiters the request is for.
        tenant: TenantId,
        /// Sum of the weights of the tenant's exports that wait.
        weight: u16,
        /// Latency target of the first waiter's export in microseconds, 0 for none.
        target_us: u32,
    },
    /// To a shard: leases `count` tags of `device` until they are returned.
    TagGrant {
        /// The device of the tags.
        device: DeviceId,
        /// Number of tags.
        count: u16,
        /// The cost model of the device, by which shares are counted from now on.
        cost: DeviceCost,
    },
    /// To a shard: asks for its unused tags now and for the rest as they become free.
    TagRevoke {
        /// The device of the tags.
        device: DeviceId,
    },
    /// To every other shard: new limits of the queue of `device`. Precedes every tag that is granted under them.
    Limits {
        /// The device of the queue.
        device: DeviceId,
        /// As in [`crate::QueueOptions::nr_requests`].
        nr_requests: u32,
        /// As in [`crate::QueueOptions::max_sectors_kb`].
        max_sectors_kb: u32,
        /// As in [`crate::QueueOptions::share`].
        share: ShareUnit,
        /// As in [`crate::QueueOptions::io_timeout_ns`].
        io_timeout_ns: u64,
    },
    /// To every other shard: how volumes of `device` are cached from now on.
    Caching {
        /// The device of the volumes.
        device: DeviceId,
        /// As in [`crate::QueueOptions::read_ahead_kb`].
        read_ahead_kb: u32,
        /// As in [`crate::QueueOptions::max_folio_order`].
        max_folio_order: u8,
    },
    /// To every other shard: whether a device answers. While it is stuck, new bios fail at once; while it is unresponsive, waits are
    /// limited.
    DeviceState {
        /// The device concerned.
        device: DeviceId,
        /// Its state from now on.
        state: DeviceState,
        /// A request was overdue, and no command has ended since.
        unresponsive: bool,
    },
    /// To the owner: returns `count` leased tags.
    TagReturn {
        /// The device of the tags.
        device: DeviceId,
        /// Number of tags.
        count: u16,
    },
}

/// What a reply means for the bio's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplyStage {
    /// The bio is complete and its buffer is free.
    Final = 0,
    /// The bio timed out; the device may still use the buffer until `Released` follows.
    Early = 1,
    /// The buffer of a bio that was answered early is free.
    Released = 2,
}

/// Changes by an operator while the shard runs.
///
/// `Set` is answered by [`crate::Notice::Set`] with the same token, at once or after the queue has drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Discards a volume's failed blocks and lets its flushes succeed again. Sent to the shard of its device.
    Acknowledge {
        /// The volume concerned.
        volume: VolumeId,
    },
    /// Makes a volume suspect, as a failed device flush does: its flushes and FUA writes fail until it is acknowledged. Sent to the
    /// shard of its device.
    Suspect {
        /// The volume concerned.
        volume: VolumeId,
    },
    /// Ends the use of a volume whose bytes belong to another server now: what is cached of it is void. Every later bio of it fails with
    /// [`IoError::ShutDown`](crate::IoError::ShutDown) until it is removed. Sent to the volume's shard; also
    /// makes it suspect, where its device is.
    Void {
        /// The volume concerned.
        volume: VolumeId,
    },
    /// Changes the size of a volume after its file changed. Sent to the volume's shard; requests beyond it fail.
    Resize {
        /// The volume concerned.
        volume: VolumeId,
        /// New size in bytes.
        size: u64,
    },
    /// Changes a tunable of a queue. Sent to the shard that owns the device.
    Set {
        /// The device of the queue.
        device: DeviceId,
        /// The tunable to be changed.
        tunable: Tunable,
        /// The new value, in the unit of [`Tunable::get`].
        value: u64,
        /// A token that the answer returns.
        token: u32,
    },
    /// Changes a tunable of the shard's write-back; answered by [`crate::Notice::Set`] at once.
    SetDirty {
        /// The tunable to be changed.
        tunable: DirtyTunable,
        /// The new value of this shard, in the unit of [`DirtyTunable::get`].
        value: u64,
        /// A token that the answer returns.
        token: u32,
    },
    /// Freezes the shard's cache: it starts no write-out and no read-ahead of its own, so that [`crate::Shard::is_quiet`] becomes
    /// true whatever is dirty; or lets it start them again. What bios wait for is still written.
    Freeze {
        /// Whether the cache is frozen from now on.
        on: bool,
    },
    /// Sets how many frames of its pool the shard's cache may use, within [`crate::CacheOptions::units`]. What it has beyond that is
    /// evicted, once it is clean, and released with [`crate::Action::Release`].
    CacheLimit {
        /// Frames of 4 KiB; fewer than [`crate::CacheOptions::UNITS_MIN`] count as that.
        units: u32,
        /// Frames to which the ratios of dirty data refer at most, as [`crate::CacheOptions::dirtyable_max`]; 0: as before.
        dirtyable: u32,
    },
    /// Answers [`crate::Action::Prepare`] for a part of its frames, where [`crate::CacheOptions::backed`] asks for answers.
    CacheMemory {
        /// The first frame.
        first: u32,
        /// Number of frames.
        units: u32,
        /// They have memory from now on. Otherwise there is none at present: the cache stays as it is until the same frames are
        /// answered again.
        had: bool,
    },
    /// Changes the weight of an export. Sent to every shard.
    Weight {
        /// The export concerned.
        export: ExportId,
        /// The new weight, 1..=10000.
        weight: u16,
    },
    /// Changes the weight of a tenant. Sent to every shard.
    TenantWeight {
        /// The tenant concerned.
        tenant: TenantId,
        /// The new weight, 1..=10000.
        weight: u16,
    },
    /// Changes the latency target of an export. Sent to every shard.
    ExportTarget {
        /// The export concerned.
        export: ExportId,
        /// The target in microseconds, 0 for none.
        target_us: u32,
    },
    /// Changes a tenant's part of the page cache. Sent to every shard that caches.
    TenantMemory {
        /// The tenant concerned.
        tenant: TenantId,
        /// Its part of this shard's cache.
        memory: TenantMemory,
    },
    /// Changes the cap of an export's dirty blocks. Sent to every shard that caches.
    ExportDirty {
        /// The export concerned.
        export: ExportId,
        /// As in [`crate::ExportConfig::dirty_max`].
        dirty_max: u32,
    },
    /// Moves an export to a tenant: its new bios use that tenant's share. Sent to every shard.
    ExportTenant {
        /// The export concerned.
        export: ExportId,
        /// The tenant, or [`TenantId::NONE`].
        tenant: TenantId,
    },
}

impl Control {
    /// Gives an export a share.
    #[must_use]
    pub fn shares(export: ExportId, share: &ExportConfig) -> [Self; 4] {
        let ExportConfig { weight, tenant, latency_target_us: target_us, dirty_max } = *share;
        [
            Self::Weight { export, weight },
            Self::ExportTenant { export, tenant },
            Self::ExportTarget { export, target_us },
            Self::ExportDirty { export, dirty_max },
        ]
    }
}

/// One input of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A bio from a frontend, given to its volume's shard.
    Bio(Bio),
    /// A completion of a device of this shard.
    Complete {
        /// The device that completed a command.
        device: DeviceId,
        /// The answer of the device.
        completion: Completion,
    },
    /// The time last requested by `Action::Timer` has come.
    Timer,
    /// A message from another shard.
    Message {
        /// The sending shard.
        from: ShardId,
        /// The message that arrived.
        message: Message,
    },
    /// A change by the operator.
    Control(Control),
    /// A connection (or handle) was closed and sends no further bios; outstanding ones are still answered.
    Close {
        /// The id of the connection.
        connection: u32,
    },
}
