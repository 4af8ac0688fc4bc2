//! Elevators (I/O schedulers): the order in which requests reach a device.
//!
//! An elevator owns no request: it links slots. The queue calls it once a batch, so dynamic dispatch costs little and the
//! elevator of a drained queue can be replaced.
//!
//! Invariants: an inserted request leaves by `dispatch` or by being merged away, exactly once; a batch never holds more requests
//! than the device has room for.

mod bfq;
mod deadline;
mod interface;
mod none;
mod slot_trace;
mod sort_index;
mod state;

use crate::options::{QueueOptions, Scheduler};

pub use bfq::BfqElevator;
pub use deadline::DeadlineElevator;
pub use interface::{Batch, Elevator, EndedRequest, MergeEdge};
pub use none::NoneElevator;
pub use slot_trace::{SlotEvent, SlotTrace};
pub use state::{ElevatorState, FlowState, STATE_EXPORTS, STATE_QUEUES, Served, SlotState};

/// Creates the elevator that `options.scheduler` names, for requests of at most `bios_max` bios at once.
#[must_use]
pub fn make(options: &QueueOptions, bios_max: u32) -> Box<dyn Elevator> {
    match options.scheduler {
        Scheduler::None => Box::new(NoneElevator::new()),
        Scheduler::MqDeadline => Box::new(DeadlineElevator::new(&options.deadline)),
        Scheduler::Bfq => Box::new(BfqElevator::new(options, bios_max)),
    }
}
