//! What the control socket asks of a shard, and what the shard says.
//!
//! A question travels as mail and brings the way back for its answer. A shard that has ended drops it, and with it the way
//! back, so whoever asked is told at once; one that is stuck is waited for until a deadline. A shard copies one table, one list or
//! a part of the tables per question, never all of them, so that no client of the data path waits for a long report.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use crate::messages::command::ExportReport;
use headworks_core::cache::CacheStats;
use headworks_core::options::Tunable;
use headworks_core::stats::{QueueStats, TurnStats, VolumeStats};
use headworks_core::tags::TagStats;
use headworks_core::writeback::{DirtyStats, DirtyTunable, WritebackStats};
use headworks_core::{
    Control, DeviceId, ExportId, Instant, IoError, Ioprio, Op, QueueOptions, Status, VolumeId,
};

use crate::latency::slow::SlowRequest;
use crate::latency::{LatencyTable, LatencyTotals};

/// A question for one shard.
pub enum ControlQuery {
    /// How is this device of yours, and what did these volumes of it do together?
    Device {
        /// Which device.
        device: DeviceId,
        /// Its volumes.
        volumes: Arc<[VolumeId]>,
        /// The way back.
        answer: Sender<DeviceReport>,
    },
    /// What did this volume, whose device is yours, do?
    Volume {
        /// Which volume.
        volume: VolumeId,
        /// The way back.
        answer: Sender<VolumeReport>,
    },
    /// What did the plug make of your turns?
    Turns {
        /// The way back.
        answer: Sender<TurnStats>,
    },
    /// What does your cache hold and count?
    Cache {
        /// The way back.
        answer: Sender<CacheReport>,
    },
    /// Which ranges of this volume of yours could not be written out?
    Failed {
        /// Which volume.
        volume: VolumeId,
        /// The way back.
        answer: Sender<Vec<FailedRange>>,
    },
    /// What are the exports like, as far as you know?
    Exports {
        /// The way back.
        answer: Sender<Vec<ExportReport>>,
    },
    /// Write out what is dirty of this volume of yours, and flush its device; the answer is how many bytes that is, and where the
    /// end will be told.
    Drain {
        /// Which volume.
        volume: VolumeId,
        /// The way back.
        answer: Sender<(u64, Receiver<Status>)>,
    },
    /// What did the clients of your exports wait for, from this one on?
    Latency {
        /// The first export.
        from: ExportId,
        /// The way back.
        answer: Sender<LatencyPart>,
    },
    /// Which requests of this export, whose home you are, were the slowest?
    Slow {
        /// Which export.
        export: ExportId,
        /// Its device.
        device: DeviceId,
        /// The way back.
        answer: Sender<SlowReport>,
    },
    /// Who is connected, in this place and those after it?
    Connections {
        /// The first place.
        from: u32,
        /// The way back: as many as a shard tells in one turn, and where to go on if there are more places.
        answer: Sender<(Vec<ConnectionReport>, Option<u32>)>,
    },
    /// Change an option of a device of yours; answered when it is changed.
    Set {
        /// Which device.
        device: DeviceId,
        /// Which option.
        tunable: Tunable,
        /// Its value.
        value: u64,
        /// The way back.
        answer: Sender<Status>,
    },
    /// Change an option of your write-back; answered at once.
    SetDirty {
        /// Which option.
        tunable: DirtyTunable,
        /// Its value for this shard.
        value: u64,
        /// The way back.
        answer: Sender<Status>,
    },
    /// Hand this to the shard; answered before anything that a client sends later is looked at.
    Tell {
        /// What.
        control: Control,
        /// The way back.
        answer: Sender<()>,
    },
    /// An export's clients have another class, those that come and those that are there.
    ExportIoprio {
        /// Which export.
        export: ExportId,
        /// The class.
        ioprio: Ioprio,
        /// The way back.
        answer: Sender<()>,
    },
    /// One connection has a class of its own; the answer is whether it is there.
    ConnectionIoprio {
        /// The connection's id.
        connection: u32,
        /// The class.
        ioprio: Ioprio,
        /// The way back.
        answer: Sender<bool>,
    },
}

/// What an operation came to on all volumes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Requests finished.
    pub requests: u64,
    /// Merges.
    pub merges: u64,
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds of all finished requests together.
    pub time_ns: u64,
}

impl OpCounts {
    /// Adds a volume's counts.
    pub fn add(counts: &mut [Self; Op::COUNT], stats: &VolumeStats) {
        for (sum, row) in counts.iter_mut().zip(&stats.ops) {
            sum.requests += row.requests;
            sum.merges += row.merges;
            sum.bytes += row.bytes;
            sum.time_ns += row.time_ns;
        }
    }
}

/// A device and its queue.
pub struct DeviceReport {
    /// What the queue works with.
    pub options: QueueOptions,
    /// What it counted.
    pub queue: QueueStats,
    /// Nanoseconds in which it was busy, until now.
    pub busy_ns: u64,
    /// What its tags counted.
    pub tags: TagStats,
    /// Tags that nobody holds.
    pub tags_free: u32,
    /// What it did, by operation.
    pub ops: [OpCounts; Op::COUNT],
}

/// A shard's cache; nothing where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheReport {
    /// What it holds and counted.
    pub cache: Option<CacheStats>,
    /// What of it is dirty.
    pub dirty: Option<DirtyStats>,
}

/// Bytes that clients were told are written, and that could not be written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRange {
    /// The first.
    pub offset: u64,
    /// How many.
    pub len: u64,
    /// Why.
    pub error: IoError,
}

/// A volume.
pub struct VolumeReport {
    /// Its table.
    pub stats: VolumeStats,
    /// Writes that no flush covers.
    pub unflushed: u64,
    /// A flush failed and nobody acknowledged it.
    pub suspect: bool,
}

/// What an export's clients waited for on a shard.
#[derive(Default)]
pub struct LatencyReport {
    /// Which export.
    pub export: ExportId,
    /// Those that are gone, and those that are there.
    pub totals: LatencyTotals,
    /// How many are there.
    pub connections: u32,
}

/// As much of it as a shard tells in one turn. An export is told whole, so that nothing is missed or counted twice.
pub struct LatencyPart {
    /// Of each that had any client, in their order.
    pub reports: Vec<LatencyReport>,
    /// Where to go on; none if that was all.
    pub next: Option<ExportId>,
}

/// The slowest requests of an export.
pub struct SlowReport {
    /// The shard's time.
    pub now: Instant,
    /// Requests of the last minute.
    pub requests: u64,
    /// The slowest of them, the slowest first.
    pub slowest: Vec<SlowRequest>,
    /// How the write-out of its device is; none without a cache.
    pub writeback: Option<WritebackStats>,
}

/// A connection.
pub struct ConnectionReport {
    /// Its id.
    pub id: u32,
    /// Who it is.
    pub peer: String,
    /// Its export and its class; none before it has chosen.
    pub chosen: Option<(ExportId, Ioprio)>,
    /// Requests in flight.
    pub in_flight: usize,
    /// What they waited for; none before it has chosen.
    pub latency: Option<LatencyTable>,
}
