//! Requests that are not answered yet, and those that failed.

use std::collections::BTreeMap;

use crate::shape::records;

records! {
    /// Requests of clients that are not answered yet, by their age.
    InFlight {
        /// requests that came within the last second
        up_to_1s: u32,
        /// those that came before, within the last ten seconds
        up_to_10s: u32,
        /// older ones
        longer: u32,
        /// the oldest of all, or null
        oldest: Option<OldestRequest>,
    }

    /// Error replies to the clients of an export.
    Errors {
        /// number of all since the start
        total: u64,
        /// by operation and error
        by_op: BTreeMap<String, BTreeMap<String, u64>>,
        /// the last one, or null
        last: Option<LastError>,
    }

    /// An error reply.
    LastError {
        /// seconds since the reply
        ago_s: f64,
        /// its operation
        op: String,
        /// first byte
        offset: u64,
        /// number of its connection
        connection: u32,
        /// name of the error: EIO, ENOSPC, ETIMEDOUT, ...
        error: String,
    }

    /// A request that is not answered yet.
    OldestRequest {
        /// seconds since it came; of a device, since that was sent it
        age_s: f64,
        /// where it waits: limit, freeze, buffer, cache, dirty, plug, tag, sched, device or elsewhere
        stage: String,
        /// name of the device that it is for
        device: String,
        /// names of its exports; of a client's request one
        exports: Vec<String>,
        /// name of their tenant, or null
        tenant: Option<String>,
        /// number of its connection, or null if it is the server's own
        connection: Option<u32>,
        /// its operation
        op: String,
        /// first byte
        offset: u64,
        /// length in bytes
        len: u32,
        /// the same in words
        told: String,
    }
}
