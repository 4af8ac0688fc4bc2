//! Queries of the control socket to one shard, and the reports that answer them.
//!
//! A query carries the channel for its answer. A shard that has ended drops the query and with it the channel, which
//! ends the wait; otherwise the wait has a deadline. A shard copies one table, one list or a part of its tables for
//! each query, so a long report does not delay clients.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use crate::exports::access::ListenerKind;
use crate::reactor::messages::command::ExportReport;
use crate::reactor::messages::in_flight::{InFlightReport, Unanswered};
use headworks_core::cache::CacheStats;
use headworks_core::elevator::ElevatorState;
use headworks_core::limits::{LimitReport, Limits};
use headworks_core::options::Tunable;
use headworks_core::stats::{QueueStats, TargetCounts, TurnStats, VolumeStats};
use headworks_core::tags::TagStats;
use headworks_core::writeback::{DirtyStats, DirtyTunable, WritebackStats};
use headworks_core::{
    BioId, BioWait, Control, DeviceId, DeviceState, ExportId, Instant, IoError, Ioprio, Op,
    QueueOptions, Status, TenantId, VolumeId,
};

use crate::observe::latency::errors::{ErrorCounts, ErrorReply};
use crate::observe::latency::slow::{SlowFilter, SlowRequest};
use crate::observe::latency::usage::{Usage, VolumeUse};
use crate::observe::latency::{LatencyTable, LatencyTotals};
use crate::spec::tenant::TenantName;
use headworks_core::limits::LimitTarget;

/// The way back of one answer. It has room for one: a channel without a bound makes 31 places at once, of which an answer may take 12 KiB each.
pub type QueryAnswer<T> = SyncSender<T>;

/// A query to one shard.
pub enum ControlQuery {
    /// Statistics of a device of this shard, and of its volumes together.
    Device {
        /// Id of the device.
        device: DeviceId,
        /// Volumes of the device.
        volumes: Arc<[VolumeId]>,
        /// Channel for the answer.
        answer: QueryAnswer<DeviceReport>,
    },
    /// State of the elevator of a device of this shard.
    Elevator {
        /// Id of the device.
        device: DeviceId,
        /// Channel for the answer; none if the elevator does not serve in slots.
        answer: QueryAnswer<Option<Box<ElevatorState>>>,
    },
    /// Statistics of a volume whose device this shard owns.
    Volume {
        /// Id of the volume.
        volume: VolumeId,
        /// Channel for the answer.
        answer: QueryAnswer<VolumeReport>,
    },
    /// Plug statistics of the shard's turns.
    Turns {
        /// Channel for the answer.
        answer: QueryAnswer<TurnStats>,
    },
    /// Statistics of the shard's cache.
    Cache {
        /// Channel for the answer.
        answer: QueryAnswer<CacheReport>,
    },
    /// Blocks that are dirty or under write-out for each of some exports here, and those that are cached.
    ExportBlocks {
        /// The exports.
        exports: Arc<[ExportId]>,
        /// Channel for the answer, in the order of the exports.
        answer: QueryAnswer<Vec<(u64, u64)>>,
    },
    /// State and counters of the shard's request buffers.
    Buffers {
        /// Channel for the answer.
        answer: QueryAnswer<BufferStats>,
    },
    /// What each export has of the request buffers now.
    BufferUsers {
        /// Exports that have something, or whose requests wait.
        answer: QueryAnswer<Vec<BufferUser>>,
    },
    /// Ranges of a volume of this shard that could not be written back.
    Failed {
        /// Id of the volume.
        volume: VolumeId,
        /// Channel for the answer.
        answer: QueryAnswer<Vec<FailedRange>>,
    },
    /// State of all exports on this shard.
    Exports {
        /// Channel for the answer.
        answer: QueryAnswer<Vec<ExportReport>>,
    },
    /// Writes back a volume of this shard and flushes its device; the answer has the dirty bytes and the channel for
    /// the status.
    Drain {
        /// Id of the volume.
        volume: VolumeId,
        /// Channel for the answer.
        answer: QueryAnswer<(u64, Receiver<Status>)>,
    },
    /// Freezes a volume of this shard: what changes it waits.
    Freeze {
        /// Id of the volume.
        volume: VolumeId,
        /// Nanoseconds after which the freeze ends by itself.
        limit_ns: u64,
        /// Channel for the answer: why it cannot be frozen.
        answer: QueryAnswer<Result<(), &'static str>>,
    },
    /// Counts the requests in flight that change a frozen volume of this shard.
    FrozenWrites {
        /// Id of the volume.
        volume: VolumeId,
        /// Channel for the answer; none if the volume is not frozen.
        answer: QueryAnswer<Option<usize>>,
    },
    /// Ends the freeze of a volume of this shard.
    Thaw {
        /// Id of the volume.
        volume: VolumeId,
        /// Channel for the answer.
        answer: QueryAnswer<Thawed>,
    },
    /// Wait times of exports with clients on this shard.
    Latency {
        /// First export of the part.
        from: ExportId,
        /// Channel for the answer.
        answer: QueryAnswer<LatencyPart>,
    },
    /// The slowest requests of an export of this shard.
    Slow {
        /// Id of the export.
        export: ExportId,
        /// Id of the device.
        device: DeviceId,
        /// Which requests count.
        filter: SlowFilter,
        /// Channel for the answer.
        answer: QueryAnswer<SlowReport>,
    },
    /// The exports of this shard whose slowest requests were slowest.
    SlowestExports {
        /// Which requests count.
        filter: SlowFilter,
        /// Channel for the answer: a few exports with the time that their slowest hundredth exceeded, waits for limits left out.
        answer: QueryAnswer<Vec<(ExportId, u64)>>,
    },
    /// What used the devices, the cache and the buffers of this shard at some times of the last minute.
    Usage {
        /// Beginning and end of each time.
        times: Arc<[(Instant, Instant)]>,
        /// Channel for the answer.
        answer: QueryAnswer<Usage>,
    },
    /// What the requests of each volume have used of this shard's devices.
    DeviceUses {
        /// Channel for the answer.
        answer: QueryAnswer<Vec<VolumeUse>>,
    },
    /// The last error reply of each export of this shard that had one, as of the last tick.
    LastErrors {
        /// Channel for the answer, and the time of the shard.
        answer: QueryAnswer<(Instant, Vec<(ExportId, ErrorReply)>)>,
    },
    /// Requests in flight of the clients of this shard, by export.
    InFlight {
        /// First export of the part.
        from: ExportId,
        /// Channel for the answer: exports with requests in flight, and the export of the next part.
        answer: QueryAnswer<(Vec<InFlightReport>, Option<ExportId>)>,
    },
    /// What bios wait for that other shards have sent on to this one.
    BioWaits {
        /// The bios.
        ids: Vec<BioId>,
        /// Channel for the answer, in their order; none of a bio that is not here.
        answer: QueryAnswer<Vec<Option<BioWait>>>,
    },
    /// Connections of this shard, from a slot on.
    Connections {
        /// First slot of the part.
        from: u32,
        /// Channel for the answer: a part of the connections, and the slot of the next part.
        answer: QueryAnswer<(Vec<ConnectionReport>, Option<u32>)>,
    },
    /// Replaces the limits of the server or an export; answered when they are in force.
    SetLimits {
        /// What the limits are set on.
        target: LimitTarget,
        /// All its limits.
        limits: Limits,
        /// Channel for the answer.
        answer: QueryAnswer<()>,
    },
    /// What the latency targets of this shard's devices have counted.
    Targets {
        /// Channel for the answer.
        answer: QueryAnswer<TargetReport>,
    },
    /// The smallest latency of a device of this shard, which is measured for a minute from then on.
    SmallestLatency {
        /// Id of the device.
        device: DeviceId,
        /// Channel for the answer, in nanoseconds; none if it is not known yet.
        answer: QueryAnswer<Option<u64>>,
    },
    /// What limits have held back on this shard.
    Limits {
        /// Channel for the answer.
        answer: QueryAnswer<Vec<(LimitTarget, LimitReport)>>,
    },
    /// Changes an option of a queue; answered when the change is in force.
    Set {
        /// Id of the device.
        device: DeviceId,
        /// Option to be changed.
        tunable: Tunable,
        /// New value of the option.
        value: u64,
        /// Channel for the answer.
        answer: QueryAnswer<Status>,
    },
    /// Changes an option of write-back; answered at once.
    SetDirty {
        /// Option to be changed.
        tunable: DirtyTunable,
        /// Its value for this shard.
        value: u64,
        /// Channel for the answer.
        answer: QueryAnswer<Status>,
    },
    /// Passes a control input to the shard; answered before later requests are handled.
    Tell {
        /// The control input itself.
        control: Control,
        /// Channel for the answer.
        answer: QueryAnswer<()>,
    },
    /// Sets the tenant by which listeners offer an export, for clients that choose one later.
    Owner {
        /// Id of the export.
        export: ExportId,
        /// Name of the tenant; none for no tenant.
        tenant: Option<TenantName>,
        /// Channel for the answer.
        answer: QueryAnswer<()>,
    },
    /// Sets the class of an export's clients, current and future ones.
    ExportIoprio {
        /// Id of the export.
        export: ExportId,
        /// Class of the requests.
        ioprio: Ioprio,
        /// Channel for the answer.
        answer: QueryAnswer<()>,
    },
    /// Sets the class of one connection; the answer is whether it exists.
    ConnectionIoprio {
        /// Id of the connection.
        connection: u32,
        /// Class of the requests.
        ioprio: Ioprio,
        /// Channel for the answer.
        answer: QueryAnswer<bool>,
    },
}

/// How a freeze was found that is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thawed {
    /// It lasted until now.
    Now {
        /// Nanoseconds since it began.
        after_ns: u64,
    },
    /// It had ended by itself.
    HadEnded {
        /// Nanoseconds that it lasted.
        after_ns: u64,
    },
    /// The volume was not frozen.
    WasNot,
}

/// Counters of an operation over all volumes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Number of completed requests.
    pub requests: u64,
    /// Number of merged bios.
    pub merges: u64,
    /// Bytes of completed requests.
    pub bytes: u64,
    /// Sum of the times of completed requests in nanoseconds.
    pub time_ns: u64,
    /// Number of requests that failed.
    pub errors: u64,
}

impl OpCounts {
    /// Adds the counters of a volume.
    pub fn add(counts: &mut [Self; Op::COUNT], stats: &VolumeStats) {
        for (sum, row) in counts.iter_mut().zip(&stats.ops) {
            sum.requests += row.requests;
            sum.merges += row.merges;
            sum.bytes += row.bytes;
            sum.time_ns += row.time_ns;
            sum.errors += row.errors;
        }
    }
}

/// Statistics of a device and its queue.
pub struct DeviceReport {
    /// Whether the device answers.
    pub state: DeviceState,
    /// Options of the queue.
    pub options: QueueOptions,
    /// Counters of the queue.
    pub queue: QueueStats,
    /// Nanoseconds in which the device was busy.
    pub busy_ns: u64,
    /// Counters of the tags.
    pub tags: TagStats,
    /// Number of all tags.
    pub tags_depth: u32,
    /// Number of free tags.
    pub tags_free: u32,
    /// Smallest latency of small synchronous requests on the idle device in nanoseconds, as far as it was measured.
    pub smallest_ns: Option<u64>,
    /// The command that the device has had for the longest time.
    pub oldest: Option<Unanswered>,
    /// Counters of each operation.
    pub ops: [OpCounts; Op::COUNT],
}

/// What the latency targets of a shard's devices have counted; exports and tenants without counts are left out.
#[derive(Clone, Debug, Default)]
pub struct TargetReport {
    /// Current time of the shard.
    pub now: Instant,
    /// Counts of exports, in the order of their ids.
    pub exports: Vec<(ExportId, TargetCounts)>,
    /// Counts of tenants, in the order of their numbers.
    pub tenants: Vec<(TenantId, TargetCounts)>,
}

/// Statistics of a shard's cache; empty without one.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheReport {
    /// Contents and counters of the cache.
    pub cache: Option<CacheStats>,
    /// Dirty counters of the cache.
    pub dirty: Option<DirtyStats>,
}

/// What an export has of a shard's request buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferUser {
    /// The export, whose clients are on the shard.
    pub export: ExportId,
    /// Number of its requests that wait for a buffer.
    pub waiting: usize,
    /// Bytes of the pool that its connections hold.
    pub bytes: usize,
    /// Those of them that belong to incomplete payloads.
    pub payload_bytes: usize,
}

/// State and counters of a shard's request buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Bytes of the pool.
    pub size: usize,
    /// Bytes of the pool in use.
    pub taken: usize,
    /// Connections that wait for a buffer.
    pub waiting: usize,
    /// Number of times that a connection began to wait for a buffer.
    pub waits: u64,
    /// Replies whose data were dropped because their client did not take them.
    pub dropped_replies: u64,
    /// Bytes of buffers that these replies returned.
    pub dropped_bytes: u64,
    /// Parts of payloads that were written before all of them had come, so that memory was returned.
    pub payloads_written_early: u64,
    /// Blocks of payloads that were cut to what had come of them.
    pub blocks_cut: u64,
    /// Connections closed because their client made no progress within `--stall-timeout`, or because a reply could
    /// not be continued.
    pub closed: u64,
}

/// A range of acknowledged data that could not be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRange {
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Error of the last attempt.
    pub error: IoError,
}

/// Statistics of a volume.
pub struct VolumeReport {
    /// Counters by operation and stage.
    pub stats: VolumeStats,
    /// Completed writes that no flush covers.
    pub unflushed: u64,
    /// Whether a flush failed and the failure was not cleared.
    pub suspect: bool,
}

/// Wait times of an export's clients on one shard.
#[derive(Default)]
pub struct LatencyReport {
    /// Id of the export.
    pub export: ExportId,
    /// Counts of closed and open connections.
    pub totals: LatencyTotals,
    /// Number of open connections.
    pub connections: u32,
    /// Time of the report.
    pub now: Instant,
}

/// A part of a shard's wait times. An export is never divided, so nothing is counted twice.
pub struct LatencyPart {
    /// Reports of exports in ascending order.
    pub reports: Vec<LatencyReport>,
    /// Export of the next part; none if this is the last.
    pub next: Option<ExportId>,
}

/// The slowest requests of an export.
pub struct SlowReport {
    /// Current time of the shard.
    pub now: Instant,
    /// Requests of the last minute.
    pub requests: u64,
    /// The slowest requests in descending order.
    pub slowest: Vec<SlowRequest>,
    /// The smallest time that a request of each operation was in the device.
    pub alone_ns: [Option<u64>; Op::COUNT],
    /// Write-back of the export's device; none without a cache.
    pub writeback: Option<WritebackStats>,
    /// Its image was frozen at some time of the filter, so that what waited for limits may have waited for a thaw.
    pub frozen: bool,
    /// Its error replies since the start.
    pub errors: ErrorCounts,
    /// Requests that were answered since the start, of the operation of the last error.
    pub answered: u64,
}

/// A connection and its wait times.
pub struct ConnectionReport {
    /// Id of the connection.
    pub id: u32,
    /// What it speaks with the server.
    pub kind: ListenerKind,
    /// Address of the client.
    pub peer: String,
    /// Name of the listener that the client came through; none if it is not known.
    pub listener: Option<Arc<str>>,
    /// Export and class; none before transmission.
    pub chosen: Option<(ExportId, Ioprio)>,
    /// Number of requests in flight.
    pub in_flight: usize,
    /// Number of requests that wait before they are in flight.
    pub waiting: usize,
    /// Nanoseconds since the oldest request came that is not answered.
    pub oldest_ns: Option<u64>,
    /// Wait times; none before transmission.
    pub latency: Option<LatencyTable>,
}
