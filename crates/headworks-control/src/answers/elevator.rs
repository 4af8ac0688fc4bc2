//! The state of an elevator that serves in slots: the value of the path DEVICE/queue/iosched/state.

use crate::shape::records;

records! {
    /// The state of an elevator that serves in slots, as get shows it at DEVICE/queue/iosched/state.
    ElevatorState {
        /// measured rate of the device in bytes a second
        peak_rate: u64,
        /// largest budget in sectors of 512 bytes
        max_budget: u32,
        /// virtual time of the shares
        virtual_time: u64,
        /// the queue that has the device now, or null
        in_service: Option<ElevatorSlot>,
        /// requests that wait
        waiting: u32,
        /// requests in the device
        in_device: u32,
        /// queues with requests
        busy: u32,
        /// of those, raised ones
        raised: u32,
        /// queues that are remembered
        known: u32,
        /// time that the services below cover
        seconds: f64,
        /// what all were served
        served: Served,
        /// what exports were served, the largest service first
        exports: Vec<ServedExport>,
        /// queues
        flows: Vec<ElevatorQueue>,
    }

    /// The queue that has the device.
    ElevatorSlot {
        /// name of its export, null if that was removed
        export: Option<String>,
        /// its connection, null of write-out
        connection: Option<u32>,
        /// time since it began
        age_us: f64,
        /// time that it has left
        left_us: f64,
        /// time for which it is waited for, null while it has requests
        idle_us: Option<f64>,
    }

    /// A queue of an elevator.
    ElevatorQueue {
        /// name of its export, null if that was removed
        export: Option<String>,
        /// its connection, null of write-out
        connection: Option<u32>,
        /// its I/O priority, class and level
        ioprio: String,
        /// it has requests
        busy: bool,
        /// its weight now
        weight: u32,
        /// why it is raised: none, interactive, soft real time
        raise: String,
        /// requests that wait
        waiting: u32,
        /// requests in the device
        in_device: u32,
        /// budget in sectors of 512 bytes
        budget: u32,
        /// sectors served of it
        service: u32,
        /// average time between an answer and the next request
        think_us: f64,
        /// its requests are far from each other
        seeky: bool,
        /// requests of others that may be served while it is waited for
        inject: u32,
        /// what it was served
        served: Served,
    }

    /// What was served.
    Served {
        /// number of slots
        slots: u64,
        /// bytes
        bytes: u64,
        /// time of the slots
        slot_us: f64,
        /// time for which the device was kept for it without a request
        idle_us: f64,
    }

    /// What an export was served.
    ServedExport {
        /// name of the export, null if it was removed
        export: Option<String>,
        /// number of slots
        slots: u64,
        /// bytes
        bytes: u64,
        /// time of the slots
        slot_us: f64,
        /// time for which the device was kept for it without a request
        idle_us: f64,
    }
}
