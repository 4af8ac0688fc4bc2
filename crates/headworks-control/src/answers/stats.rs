//! Counters. Blocks and units have 4 KiB.

use std::collections::BTreeMap;

use super::in_flight::{Errors, InFlight, OldestRequest};
use super::latency::Percentiles;
use super::lists::Connection;
use crate::shape::{counters, records};

records! {
    /// Counters of a server since its start.
    Stats {
        /// queues, tags and costs by device
        devices: BTreeMap<String, DeviceStats>,
        /// options, and counters of each kind of request, by export
        exports: BTreeMap<String, ExportStats>,
        /// counters of each connection
        connections: Vec<Connection>,
        /// time since the start
        seconds: f64,
        /// turns of the threads by number of requests in them
        turns: Vec<Turns>,
        /// the page cache; null without one
        cache: Option<CacheStats>,
        /// dirty data, limits, pauses of writers; null without a page cache
        dirty: Option<DirtyStats>,
        /// the request buffers
        buffers: BufferStats,
    }

    /// Counters of a device.
    DeviceStats {
        /// name of its I/O scheduler
        scheduler: String,
        /// live or stuck
        device_state: String,
        /// its queue
        queue: QueueStats,
        /// the limit of what it has at once, null unless that is found by measuring
        depth: Option<DepthStats>,
        /// what its commands cost, as measured
        cost: CommandCosts,
        /// its tags
        tags: TagStats,
        /// the command that it has had for the longest time, or null
        oldest: Option<OldestRequest>,
        /// requests that failed
        errors: u64,
    }

    /// Counters of a device's queue.
    QueueStats {
        /// commands that were sent to the device
        issued: u64,
        /// those that began where the one before ended
        sequential: u64,
        /// their part, 0 to 1; null before the first
        sequential_ratio: Option<f64>,
        /// requests that wait for a tag, are queued, or in the device
        in_flight: u32,
        /// nanoseconds with at least one of them
        busy_ns: u64,
    }

    /// The limit of what a device has at once.
    DepthStats {
        /// cost of commands in KiB; 0 without a limit
        limit_kb: u64,
        /// cost of one command in KiB
        command_max_kb: u32,
        /// trials of another limit
        trials: u64,
        /// trials that found it too small
        too_small: u64,
    }

    /// What commands of a device cost.
    CommandCosts {
        /// nanoseconds of a read elsewhere
        read_ns: u32,
        /// nanoseconds of a read that follows the one before
        read_sequential_ns: u32,
        /// picoseconds of each byte
        read_ps_per_byte: u64,
        /// nanoseconds of a write elsewhere
        write_ns: u32,
        /// nanoseconds of a write that follows the one before
        write_sequential_ns: u32,
        /// picoseconds of each byte
        write_ps_per_byte: u64,
    }

    /// The tags of a device: requests that it may have at once.
    TagStats {
        /// number of tags
        depth: u32,
        /// free ones
        free: u32,
        /// requests for tags
        asks: u64,
        /// those that had to wait
        waits: u64,
        /// those that were granted
        grants: u64,
        /// newcomers that found a free tag and did not pass the waiters
        barging_prevented: u64,
        /// newcomers that got a tag before a waiter
        barged: u64,
        /// longest wait that has ended
        longest_wait_ns: u64,
        /// batches of grants to waiters
        wakes: u64,
        /// waiters that were granted by them
        woken: u64,
        /// most tags that were free while a waiter gathered them
        idle_max: u32,
        /// those tags, summed over time
        idle_tag_ns: u64,
    }

    /// Options and counters of an export.
    ExportStats {
        /// name of its device
        device: String,
        /// number of its volume; exports of one image have the same
        volume: u16,
        /// it refuses writes
        read_only: bool,
        /// name of its tenant, or null
        tenant: Option<String>,
        /// share of the device, 1 to 10000
        weight: u16,
        /// I/O priority of its clients, class and level: be,4
        ioprio: String,
        /// write mode: none, writethrough, writeback, stream or unsafe
        cache: String,
        /// what happens with blocks whose write-out fails: hold or retry
        on_error: String,
        /// completed writes that no flush covers; 0 of a device without a volatile cache
        unflushed: u64,
        /// a flush failed, and that was not cleared
        suspect: bool,
        /// what its requests have used of the device, write-back included
        held: DeviceUse,
        /// requests of its volume by operation, those of the page cache included
        ops: BTreeMap<String, OpStats>,
        /// times of its clients' requests by kind (read, write, flush, trim, zero, prefetch, block_status) and stage
        latency: BTreeMap<String, BTreeMap<String, Percentiles>>,
        /// its clients' requests that are not answered yet
        in_flight: InFlight,
        /// error replies to its clients
        errors: Errors,
    }

    /// What requests have used of a device.
    DeviceUse {
        /// time for which they held a tag, summed
        tag_ns: u64,
        /// time for which they were in the device, summed
        device_ns: u64,
    }

    /// Requests of a volume of one operation.
    OpStats {
        /// completed bios, failed ones included
        bios: u64,
        /// completed requests, failed ones included; bios less merges
        requests: u64,
        /// merges into an earlier request
        merges: u64,
        /// bytes of completed requests
        bytes: u64,
        /// requests that failed
        errors: u64,
        /// time from plug to completion, summed
        time_ns: u64,
        /// by stage: plug, tag, sched, device
        stages: BTreeMap<String, StagePercentiles>,
    }

    /// Times of requests in a stage, in nanoseconds; upper bounds of buckets.
    StagePercentiles {
        /// median
        p50_ns: u64,
        /// 90th percentile
        p90_ns: u64,
        /// 99th percentile
        p99_ns: u64,
        /// 99.9th percentile
        p999_ns: u64,
    }

    /// Turns of the threads with a number of bios.
    Turns {
        /// the number: 1, 2-3, up to 64+
        bios_in_turn: String,
        /// number of turns
        turns: u64,
        /// bios in them
        bios: u64,
        /// bios that merged in the plug
        merges: u64,
    }

    /// The counters of a device as in /proc/diskstats.
    DiskRow {
        /// always 240, the number for local and experimental use
        major: u32,
        /// number of the device
        minor: u16,
        /// name of the device
        name: String,
        /// its counters
        fields: DiskCounters,
    }

    /// The seventeen fields of /proc/diskstats by their names in the kernel's documentation, in its order. Sectors have 512 bytes, times
    /// are in milliseconds, write-zeroes count as writes.
    DiskCounters {
        /// reads
        rd_ios: u64,
        /// reads that merged
        rd_merges: u64,
        /// sectors read
        rd_sectors: u64,
        /// time of reads
        rd_ticks: u64,
        /// writes
        wr_ios: u64,
        /// writes that merged
        wr_merges: u64,
        /// sectors written
        wr_sectors: u64,
        /// time of writes
        wr_ticks: u64,
        /// requests in flight
        in_flight: u64,
        /// time with a request in flight
        io_ticks: u64,
        /// time of all requests
        time_in_queue: u64,
        /// discards
        dc_ios: u64,
        /// discards that merged
        dc_merges: u64,
        /// sectors discarded
        dc_sectors: u64,
        /// time of discards
        dc_ticks: u64,
        /// flushes
        fl_ios: u64,
        /// time of flushes
        fl_ticks: u64,
    }
}

counters! {
    /// The page cache of all threads together.
    CacheStats {
        /// units that it may use at most, at any time
        room: u64,
        /// units that it may use now
        units: u64,
        /// those that it does not use
        free: u64,
        /// units that are in folios
        resident: u64,
        /// number of folios by order: of 4 KiB, 8 KiB, up to 2 MiB
        folios: Vec<u64>,
        /// blocks that reads found
        hits: u64,
        /// blocks that reads had to wait for
        misses: u64,
        /// reads from devices
        fills: u64,
        /// their blocks
        filled: u64,
        /// those that read a part of a folio
        fills_partial: u64,
        /// writes to devices
        writeouts: u64,
        /// their blocks
        written: u64,
        /// their blocks by reason
        written_for: WrittenFor,
        /// blocks whose write-out failed
        failed: u64,
        /// blocks that are held now because their write-out failed
        held: u64,
        /// blocks that were written while under write-out
        shadowed: u64,
        /// blocks that have a shadow frame now
        shadows: u64,
        /// dirty blocks that a discard cancelled
        discarded_dirty: u64,
        /// dirty blocks that were written out for direct I/O
        direct_dirty: u64,
        /// blocks that were read because a part of them was written
        read_before_write: u64,
        /// folios that were evicted
        evicted_folios: u64,
        /// their units
        evicted: u64,
        /// folios that were read again soon after they were evicted
        ghost_hits: u64,
        /// units of folios that left behind a stream
        dropped_behind: u64,
        /// blocks that were read ahead
        read_ahead: u64,
        /// those that were evicted unused
        read_ahead_wasted: u64,
        /// waits of operations by kind
        waits: CacheWaits,
        /// bios that waited for the end of a pause when their connection closed
        closed_paused: u64,
        /// searches, insertions and removals of the index
        index_operations: u64,
        /// buckets that those examined
        index_probes: u64,
        /// completed flushes
        flushes: u64,
        /// those that failed
        flushes_failed: u64,
    }

    /// Blocks that were written out, by reason.
    WrittenFor {
        /// more was dirty than the background limit
        background: u64,
        /// they were dirty for long
        age: u64,
        /// a flush
        sync: u64,
        /// frames were needed
        frames: u64,
        /// on behalf of writers
        writers: u64,
    }

    /// Waits of operations in the page cache, by kind.
    CacheWaits {
        /// for a free frame
        frames: u64,
        /// for dirty credit
        credit: u64,
        /// pauses of writers
        pause: u64,
        /// for a shadow frame
        shadow: u64,
        /// for a locked range
        range: u64,
        /// for a folio that is read
        folio: u64,
    }

    /// Dirty data in blocks, with the names of /proc/vmstat.
    DirtyStats {
        /// blocks that are dirty and not under write-out
        nr_dirty: u64,
        /// blocks under write-out
        nr_writeback: u64,
        /// blocks that are reserved and not dirty yet
        reserved: u64,
        /// blocks dirtied
        nr_dirtied: u64,
        /// blocks written
        nr_written: u64,
        /// the hard limit
        nr_dirty_threshold: u64,
        /// the limit above which they are written out
        nr_dirty_background_threshold: u64,
        /// writers that are active now
        writers: u64,
        /// pauses of writers that ended
        pauses: u64,
        /// their time
        paused_ns: u64,
        /// pauses that were made longer
        pauses_continued: u64,
        /// reservations that were refused
        refused: u64,
        /// trace events that were dropped
        traces_lost: u64,
        /// bytes a second that the disks with dirty data take
        write_rate: u64,
    }

    /// The request buffers of all threads together.
    BufferStats {
        /// bytes of all buffers
        size: u64,
        /// bytes in use
        taken: u64,
        /// connections that wait for one
        waiting: u64,
        /// times that a connection began to wait
        waits: u64,
        /// unread replies whose data were dropped for other clients
        dropped_replies: u64,
        /// bytes of buffers that they returned
        dropped_bytes: u64,
        /// parts of writes that were written before all of them had come
        payloads_written_early: u64,
        /// buffers of incomplete writes that were cut to what had come
        blocks_cut: u64,
        /// clients that were disconnected because they made no progress
        closed: u64,
    }
}
