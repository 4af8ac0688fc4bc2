//! Answers that list what a server has: connections, listeners, exports, tenants.

use std::collections::BTreeMap;

use super::in_flight::InFlight;
use super::latency::Percentiles;
use crate::shape::records;

records! {
    /// A connected client.
    Connection {
        /// number of the connection, as paths have it
        id: u32,
        /// what it speaks: nbd, vhost-user of a virtual machine's disk, whatever its queues, or fuse of a file, whatever programs have it open
        kind: String,
        /// address or process of the client
        peer: String,
        /// name of the socket that it came through
        listener: Option<String>,
        /// number of its thread
        shard: u16,
        /// name of its export, null before it chose one
        export: Option<String>,
        /// its I/O priority, class and level: be,4
        ioprio: Option<String>,
        /// number of its requests in flight
        in_flight: usize,
        /// number of its requests that wait for a limit, a thaw or memory before they are in flight
        waiting: usize,
        /// seconds since the oldest request came that is not answered, or null
        oldest_s: Option<f64>,
        /// times of its requests by kind (read, write, flush, trim, zero, prefetch, block_status) and stage; stages at which none waited are left out; null before it chose an export
        latency: Option<BTreeMap<String, BTreeMap<String, Percentiles>>>,
    }

    /// A socket on which clients connect.
    Listener {
        /// name of the listener
        name: String,
        /// what its clients speak: nbd, vhost-user or fuse
        kind: String,
        /// path or address
        address: String,
        /// its tenant, or null
        tenant: Option<String>,
        /// names of the exports that it offers
        exports: Vec<String>,
        /// number of clients
        connections: usize,
        /// off, on or require
        tls: String,
        /// clients need a certificate
        verifies_clients: bool,
    }

    /// An export, served or absent.
    Export {
        /// name of the export
        name: String,
        /// bytes; null of an absent one
        size: Option<u64>,
        /// first byte on its image, of which it may be a part; null of an absent one
        offset: Option<u64>,
        /// name of its device; null of an absent one
        device: Option<String>,
        /// live or stuck; null of an absent one
        device_state: Option<String>,
        /// write mode: none, writethrough, writeback, stream or unsafe; null of an absent one
        cache: Option<String>,
        /// it refuses writes
        read_only: bool,
        /// name of its tenant, or null
        tenant: Option<String>,
        /// share of the device, 1 to 10000
        weight: u16,
        /// I/O priority of its clients, class and level: be,4
        ioprio: String,
        /// number of clients
        clients: usize,
        /// bytes in the cache that are not written yet, of its whole image
        dirty: u64,
        /// the other exports of its image, whose dirty bytes these are, too
        dirty_shared_with: Vec<String>,
        /// bytes whose write-out failed
        failed: u64,
        /// seconds for which requests waited for limits
        limited_seconds: f64,
        /// its latency target in microseconds, or null
        latency_target_us: Option<u32>,
        /// requests that took longer than the target
        target_missed: u64,
        /// serving, refusing, frozen, draining, suspect, disconnected, deleted or absent
        state: String,
        /// why it is absent, or null
        reason: Option<String>,
        /// of an nbd: device, else null: the server behind it
        remote: Option<Remote>,
        /// of a model: device, else null: how late its answers are
        model: Option<Model>,
        /// its clients' requests that are not answered yet
        in_flight: InFlight,
    }

    /// The connections of an nbd: device.
    Remote {
        /// address of the server, and the export
        uri: String,
        /// up, down or barred
        state: String,
        /// number of open connections
        connections: u32,
        /// how often it connected anew
        reconnects: u64,
        /// how often acknowledged writes may have been lost with the server
        losses: u64,
        /// the same in a sentence
        told: String,
    }

    /// How late a modelled disk is answered since its start.
    Model {
        /// its profile
        name: String,
        /// commands that were answered
        commands: u64,
        /// seconds that they took by the model, all together
        modelled_s: f64,
        /// seconds by which their answers were late, all together
        late_s: f64,
        /// median of the latenesses
        late_p50_us: f64,
        /// 99th percentile
        late_p99_us: f64,
        /// the answers were late by more than a twentieth of the model's time: figures are of the machine
        too_slow: bool,
        /// the same in a sentence, or null
        told: Option<String>,
    }

    /// A tenant.
    Tenant {
        /// name of the tenant
        name: String,
        /// share of every device, 1 to 10000
        weight: u16,
        /// highest I/O priority of its clients, or null
        ioprio_max: Option<String>,
        /// number of exports
        exports: usize,
        /// number of clients
        clients: usize,
        /// bytes in the cache that are not written yet
        dirty: u64,
        /// bytes in the cache
        cached: u64,
        /// bytes read since the start
        read_bytes: u64,
        /// bytes written since the start
        written_bytes: u64,
        /// seconds for which requests waited for limits
        limited_seconds: f64,
        /// its latency target in microseconds, or null
        latency_target_us: Option<u32>,
        /// requests that count for the target
        target_requests: u64,
        /// those that took longer
        target_missed: u64,
        /// bytes by which its target shrinks others in the device now
        target_held: u64,
    }
}
