//! One device's queue.

use crate::time::SEC;

use crate::tunables::choice;

/// Which elevator orders a device's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Scheduler {
    /// First in, first out.
    #[default]
    None = 0,
    /// Sorted batches with deadlines, in priority classes.
    MqDeadline = 1,
}

impl Scheduler {
    /// Every elevator, in the order of their codes.
    pub const ALL: [Self; 2] = [Self::None, Self::MqDeadline];

    /// The words of sysfs, in the order of their codes.
    pub const NAMES: [&'static str; 2] = ["none", "mq-deadline"];

    /// The word of sysfs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

choice!(Scheduler);

/// `nomerges`: how hard to look for merges (sysfs values 0, 1, 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum NoMerges {
    /// Look everywhere (0).
    #[default]
    MergeAll = 0,
    /// Only the cheap look at the last request of the plug (1).
    OneHit = 1,
    /// Never (2).
    Never = 2,
}

impl NoMerges {
    /// Every setting, in the order of their sysfs values.
    pub const ALL: [Self; 3] = [Self::MergeAll, Self::OneHit, Self::Never];
}

choice!(NoMerges);

/// `iosched/*` of mq-deadline; times in milliseconds, as sysfs has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineOptions {
    /// A read that waited this long goes first when a batch ends. 500: Linux's default.
    pub read_expire_ms: u32,
    /// The same for writes. 5000: Linux's default.
    pub write_expire_ms: u32,
    /// How many batches of reads may pass waiting writes. 2: Linux's default.
    pub writes_starved: u32,
    /// Requests of a batch, in sector order. 16: enough for a seek to pay, few enough to keep the other direction's wait short.
    pub fifo_batch: u32,
    /// Look for a request that starts where a new one ends.
    pub front_merges: bool,
    /// Tags that anything but synchronous reads and writes may hold; 0 means all (Linux: `nr_requests`).
    pub async_depth: u32,
    /// A request of a lower class that waited this long goes before a higher one. 10000: Linux's default.
    pub prio_aging_expire_ms: u32,
}

impl Default for DeadlineOptions {
    fn default() -> Self {
        Self {
            read_expire_ms: 500,
            write_expire_ms: 5000,
            writes_starved: 2,
            fifo_batch: 16,
            front_merges: true,
            async_depth: 0,
            prio_aging_expire_ms: 10_000,
        }
    }
}

/// One device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Tags: requests admitted below the plug at once, 1..=4096. 256: Linux's default for devices as deep as ours.
    pub nr_requests: u32,
    /// Commands in the device at once, and beside them one flush per volume, 1..=4096. 128: what NVMe and virtio disks take
    /// without queueing inside.
    pub queue_depth: u32,
    /// Largest data request in KiB, 4..=32768. 1280: Linux's default.
    pub max_sectors_kb: u32,
    /// Most segments in one request, 1..=1024. 128: Linux's default (BLK_MAX_SEGMENTS).
    pub max_segments: u16,
    /// Most bytes in one segment, at least 4096. One buffer is contiguous, so it need not be small.
    pub max_segment_size: u32,
    /// How hard to look for merges.
    pub nomerges: NoMerges,
    /// Which elevator.
    pub scheduler: Scheduler,
    /// KiB admitted below the gate at once, 0 for no bound. A little more than bandwidth times the latency of one small
    /// command keeps a device busy and its queue short, so that a light user does not wait behind a heavy one. Another shard
    /// that holds a lease goes on with it until somebody here waits.
    pub hw_inflight_kb: u32,
    /// A command that takes longer is answered with an error; whole milliseconds. 30 s: Linux's `io_timeout`.
    pub io_timeout_ns: u64,
    /// mq-deadline's own.
    pub deadline: DeadlineOptions,
    /// The device may hold acknowledged writes in volatile memory: flushes must reach it.
    pub write_cache: bool,
    /// The device can make a single write durable (else a flush follows the write).
    pub fua: bool,
    /// Discards reach the device (else they succeed and do nothing).
    pub discard: bool,
    /// Discards are rounded inward to this many bytes; a power of two.
    pub discard_granularity: u32,
    /// Most bytes of one discard or write-zeroes command; longer ones go in steps, so that they end in bounded time.
    pub discard_max_bytes: u32,
    /// The device zeroes a range by itself (else zeros are written as data).
    pub write_zeroes: bool,
    /// Largest window of read-ahead in KiB, 0 for none. 4096: a window of two of the largest folios.
    pub read_ahead_kb: u32,
    /// Largest folio, log2 of 4 KiB blocks, 0..=9. 9 (2 MiB): bookkeeping per byte falls with it, and blocks of a folio are
    /// read, dirtied and written one by one where an access is small.
    pub max_folio_order: u8,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            nr_requests: 256,
            queue_depth: 128,
            max_sectors_kb: 1280,
            max_segments: 128,
            max_segment_size: 32 << 20,
            nomerges: NoMerges::MergeAll,
            scheduler: Scheduler::None,
            hw_inflight_kb: 0,
            io_timeout_ns: 30 * SEC,
            deadline: DeadlineOptions::default(),
            write_cache: true,
            fua: false,
            discard: true,
            discard_granularity: 4096,
            discard_max_bytes: 1 << 30,
            write_zeroes: true,
            read_ahead_kb: 4096,
            max_folio_order: 9,
        }
    }
}

impl QueueOptions {
    /// Most bytes of one data request.
    #[must_use]
    pub fn max_bytes(&self) -> u32 {
        self.max_sectors_kb * 1024
    }
}
