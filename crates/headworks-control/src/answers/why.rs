//! The analysis of slow requests.

use std::collections::BTreeMap;

use super::elevator::ServedExport;
use super::in_flight::{Errors, InFlight};
use super::lists::Model;
use crate::shape::records;

records! {
    /// Where the slow requests of an export spent their time. Slow are the slowest 1 %, and at least ten.
    Why {
        /// name of the export; null if no request of any completed
        export: Option<String>,
        /// the answer in words
        sentence: String,
        /// sentences: what is wrong now, the worst first
        findings: Vec<String>,
        /// sentences: what may help
        hints: Vec<String>,
        /// more sentences
        notes: Vec<String>,
        /// idle (no request completed), quiet (nothing is slow), limited (requests wait for a limit that was set), slow, or stuck (the device
        /// does not answer)
        state: String,
        /// the state is slow
        slow: bool,
        /// the kind of requests that was asked for, or null
        op: Option<String>,
        /// exports that held what the requests waited for; null if nothing is slow
        by_whom: Option<Blame>,
        /// length of the time looked at
        seconds: u64,
        /// number of requests in it
        requests: u64,
        /// number of slow requests that were analysed
        considered: usize,
        /// requests that took longer are slow
        above_us: f64,
        /// its clients' requests that are not answered yet; null without an export
        in_flight: Option<InFlight>,
        /// error replies to its clients; null without an export
        errors: Option<Errors>,
        /// part of the slow requests' time by stage, 0 to 1
        shares: BTreeMap<String, f64>,
        /// slow requests by stage
        stages: BTreeMap<String, StageTimes>,
        /// the slowest requests
        worst: Vec<SlowRequest>,
        /// live or stuck; null without an export
        device_state: Option<String>,
        /// of a model: device, else null: how late its answers are
        model: Option<Model>,
        /// its latency target, or null
        latency_target: Option<OwnTarget>,
        /// whose target held this export back, or null
        held_for_target: Option<HeldForTarget>,
        /// what bfq served meanwhile, or null
        served_meanwhile: Option<ServedMeanwhile>,
    }

    /// Times of slow requests in a stage.
    StageTimes {
        /// requests that waited at it
        requests: usize,
        /// median
        p50_us: f64,
        /// 99th percentile
        p99_us: f64,
    }

    /// A slow request.
    SlowRequest {
        /// its operation
        op: String,
        /// first byte
        offset: u64,
        /// length in bytes
        len: u32,
        /// number of its connection
        connection: u32,
        /// seconds since it ended
        age_s: f64,
        /// time from request to reply
        total_us: f64,
        /// time at each stage at which it waited
        stages_us: BTreeMap<String, f64>,
    }

    /// What the slow requests waited for, and by whom it was held.
    Blame {
        /// tags, device time, dirty data, request buffers or shard time
        resource: String,
        /// name of the device
        device: String,
        /// seconds in which it was held
        seconds: u64,
        /// the other export that held most, if it held a quarter
        guilty: Option<String>,
        /// the exports that held it, the largest first
        holders: Vec<Holder>,
    }

    /// An export, or several of one image, that held a resource.
    Holder {
        /// names of the exports
        exports: Vec<String>,
        /// name of their tenant, or null
        tenant: Option<String>,
        /// it is the export that was asked about
        own: bool,
        /// part of what was held, 0 to 1
        share: f64,
        /// requests or bytes on average
        average: f64,
        /// how long its requests held a tag
        hold_us: f64,
        /// its connections, of the largest holders
        connections: Vec<HolderConnection>,
    }

    /// A connection of a holder.
    HolderConnection {
        /// number of the connection
        id: u32,
        /// part of the holder's requests, 0 to 1
        share: f64,
    }

    /// The latency target of an export.
    OwnTarget {
        /// the target
        target_us: u32,
        /// whose it is: export db, tenant acme
        of: String,
        /// the device keeps it; with bfq it does not
        kept: bool,
        /// small requests since it was set
        requests: u64,
        /// those that took longer
        missed: u64,
        /// smallest latency seen on the idle device, null if none was
        smallest_us: Option<f64>,
    }

    /// The latency target of others for which requests waited in the last minute.
    HeldForTarget {
        /// the target
        target_us: u32,
        /// whose it is
        of: Vec<String>,
        /// bytes of others that the device takes at once, null without a limit now
        limit_bytes: Option<u64>,
        /// requests that waited
        requests: u64,
    }

    /// What an elevator served in the last minute.
    ServedMeanwhile {
        /// time that the services cover
        seconds: f64,
        /// what exports were served, the largest service first
        exports: Vec<ServedExport>,
        /// of other exports the queue that was served most, or null
        most: Option<QueueName>,
        /// the queue that is empty and keeps the device, or null
        waited_for: Option<QueueName>,
        /// raised queues that have requests
        raised: Vec<RaisedQueue>,
        /// time for which the device was kept for empty queues
        idle_us: f64,
    }

    /// A queue of an elevator.
    QueueName {
        /// its export
        export: String,
        /// its connection, null of write-out
        connection: Option<u32>,
    }

    /// A raised queue of an elevator.
    RaisedQueue {
        /// its export
        export: String,
        /// its connection, null of write-out
        connection: Option<u32>,
        /// why it is raised
        reason: String,
    }
}
