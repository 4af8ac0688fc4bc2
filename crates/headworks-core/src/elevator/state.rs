//! A readable state of an elevator that serves queues in slots, for display.
//!
//! It is made when it is asked for, and has a bounded size: what is beyond the lists is in the totals alone.

use crate::bio::{ExportId, Ioprio};

/// Queues that a state lists at most.
pub const STATE_QUEUES: usize = 64;

/// Exports that a state lists at most.
pub const STATE_EXPORTS: usize = 16;

/// Service of a queue or an export in the last minute, as far as it is remembered: the present half minute and the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of slots that ended.
    pub slots: u64,
    /// Sectors served in them.
    pub sectors: u64,
    /// Their length in nanoseconds; about 0 on a device that takes all requests of a slot at once.
    pub slot_ns: u64,
    /// Nanoseconds for which the device was kept although the queue had no request.
    pub idle_ns: u64,
}

impl Served {
    /// Adds the service of another queue.
    pub fn add(&mut self, other: &Self) {
        self.slots += other.slots;
        self.sectors += other.sectors;
        self.slot_ns += other.slot_ns;
        self.idle_ns += other.idle_ns;
    }
}

/// The slot of the queue in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Export of the queue.
    pub export: ExportId,
    /// Connection of the queue; none for asynchronous requests.
    pub connection: Option<u32>,
    /// Nanoseconds since it began.
    pub age_ns: u64,
    /// Nanoseconds until it has lasted long enough.
    pub left_ns: u64,
    /// Nanoseconds for which the queue, which is empty, is still waited for.
    pub idle_ns: Option<u64>,
}

/// A queue of the elevator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowState {
    /// Export that it belongs to.
    pub export: ExportId,
    /// Its connection; none for the asynchronous requests of the export.
    pub connection: Option<u32>,
    /// The priority of its requests.
    pub ioprio: Ioprio,
    /// It has requests, or is in service.
    pub busy: bool,
    /// Its weight in its export, raised.
    pub weight: u32,
    /// Why its weight is raised; `none` if it is not.
    pub raise: &'static str,
    /// Requests that wait in it.
    pub waiting: u32,
    /// Requests in the device.
    pub in_device: u32,
    /// Sectors of the present or next slot.
    pub budget: u32,
    /// Those of them that it was served.
    pub service: u32,
    /// Mean time from the end of its last request to its next one, in nanoseconds.
    pub think_ns: u64,
    /// Most of its requests are far from the one before.
    pub seeky: bool,
    /// Requests that may be in the device while it is waited for.
    pub inject: u32,
    /// What it was served in the last minute.
    pub served: Served,
}

/// The state of an elevator that serves in slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElevatorState {
    /// Peak rate of the device in sectors per second.
    pub peak_rate: u64,
    /// The largest budget in sectors.
    pub max_budget: u32,
    /// Virtual time of the root.
    pub virtual_time: u64,
    /// The queue in service.
    pub slot: Option<SlotState>,
    /// Requests that wait in it.in all queues.
    pub waiting: u32,
    /// Requests in the device.
    pub in_device: u32,
    /// Queues with requests, and the one in service.
    pub busy: u32,
    /// Those of them that are raised.
    pub raised: u32,
    /// All queues that are known.
    pub known: u32,
    /// At most [`STATE_QUEUES`] queues: busy ones first, then by their service.
    pub flows: Vec<FlowState>,
    /// At most [`STATE_EXPORTS`] exports by their service, largest first.
    pub exports: Vec<(ExportId, Served)>,
    /// What all exports were served.
    pub served: Served,
    /// Nanoseconds that `served` covers at most.
    pub span_ns: u64,
}
