//! Options of a device's queue.

use super::BfqOptions;
use crate::device_cost::ShareUnit;
use crate::time::SEC;

use crate::tunables::choice;

/// The elevator that orders a device's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Scheduler {
    /// First in, first out.
    #[default]
    None = 0,
    /// Sorted batches with deadlines, in priority classes.
    MqDeadline = 1,
    /// Slots by weight, with budgets and idling.
    Bfq = 2,
}

impl Scheduler {
    /// Every elevator, in the order of their codes.
    pub const ALL: [Self; 3] = [Self::None, Self::MqDeadline, Self::Bfq];

    /// The words of sysfs, in the order of their codes.
    pub const NAMES: [&'static str; 3] = ["none", "mq-deadline", "bfq"];

    /// The name in sysfs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether the elevator divides the device by weight; otherwise the gate does.
    #[must_use]
    pub const fn owns_shares(self) -> bool {
        matches!(self, Self::Bfq)
    }
}

choice!(Scheduler);

/// How the amount that a device has at once is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DepthMode {
    /// By measuring: the least that keeps the device's throughput.
    #[default]
    Auto = 0,
    /// By `hw_inflight_kb` alone.
    Fixed = 1,
}

impl DepthMode {
    /// Every mode, in the order of their codes.
    pub const ALL: [Self; 2] = [Self::Auto, Self::Fixed];

    /// The words of the tunable, in the order of their codes.
    pub const NAMES: [&'static str; 2] = ["auto", "fixed"];
}

choice!(DepthMode);

/// How much the queue searches for merges (`nomerges` of sysfs: 0, 1, 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum NoMerges {
    /// Search the plug and the queue (0).
    #[default]
    MergeAll = 0,
    /// Check only the last request of the plug (1).
    OneHit = 1,
    /// Never merge any bios (2).
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
    /// Age at which a read is dispatched first when a batch ends. 500: Linux's default.
    pub read_expire_ms: u32,
    /// Age at which a write is dispatched first. 5000: Linux's default.
    pub write_expire_ms: u32,
    /// Batches of reads that may overtake waiting writes. 2: Linux's default.
    pub writes_starved: u32,
    /// Requests of a batch, in sector order. 16: enough for a seek to pay, few enough to keep the other direction's wait short.
    pub fifo_batch: u32,
    /// Whether a request may merge in front of another.
    pub front_merges: bool,
    /// Most tags of asynchronous requests; 0 means all (Linux: `nr_requests`).
    pub async_depth: u32,
    /// Age at which a request of a lower class precedes a higher one. 10000: Linux's default.
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

/// Options of a device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Tags: requests admitted below the plug at once, 1..=4096. 256: Linux's default for devices as deep as ours.
    pub nr_requests: u32,
    /// Most commands in flight, 1..=4096, in addition to one flush per volume. 128: NVMe and virtio disks take as many without
    /// queueing inside.
    pub queue_depth: u32,
    /// Largest data request in KiB, 4..=32768. 1280: Linux's default.
    pub max_sectors_kb: u32,
    /// Most segments in one request, 1..=1024. 128: Linux's default (BLK_MAX_SEGMENTS).
    pub max_segments: u16,
    /// Most bytes in one segment, at least 4096. One buffer is contiguous, so it need not be small.
    pub max_segment_size: u32,
    /// How much to search for merges.
    pub nomerges: NoMerges,
    /// The elevator of the queue.
    pub scheduler: Scheduler,
    /// Most KiB admitted past the gate, 0 for what `hw_depth` says. A little more than bandwidth times the latency of one small
    /// command keeps a device busy and its queue short, so that a light user does not wait behind a heavy one. Another shard
    /// keeps using its lease until a request waits here.
    pub hw_inflight_kb: u32,
    /// What shares of the device are counted in.
    pub share: ShareUnit,
    /// How the amount admitted past the gate is limited while `hw_inflight_kb` is 0: found by measuring, or not at all.
    pub hw_depth: DepthMode,
    /// Time after which a command fails, and a request that waits for a silent device, in nanoseconds; whole milliseconds. 30 s:
    /// Linux's `io_timeout`.
    pub io_timeout_ns: u64,
    /// Options of the elevator mq-deadline.
    pub deadline: DeadlineOptions,
    /// Options of the elevator bfq.
    pub bfq: BfqOptions,
    /// Whether a seek costs the device time, as on a disk.
    pub rotational: bool,
    /// Whether the device has a volatile write cache, so that flushes must reach it.
    pub write_cache: bool,
    /// Whether the device can make a single write durable; otherwise a flush follows the write.
    pub fua: bool,
    /// Whether discards reach the device; otherwise they succeed and do nothing.
    pub discard: bool,
    /// Granularity of discards in bytes, a power of two; they are rounded inward.
    pub discard_granularity: u32,
    /// Most bytes of one discard or write-zeroes command; longer ones proceed in steps of bounded time.
    pub discard_max_bytes: u32,
    /// Whether the device can zero a range; otherwise zeros are written as data.
    pub write_zeroes: bool,
    /// Largest read-ahead window in KiB, 0 for none. 4096: two of the largest folios.
    pub read_ahead_kb: u32,
    /// Largest folio as log2 of 4 KiB blocks, 0..=9. 9 (2 MiB): larger folios need less bookkeeping per byte, and small accesses
    /// still read, dirty and write single blocks of a folio.
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
            share: ShareUnit::Time,
            hw_depth: DepthMode::Auto,
            io_timeout_ns: 30 * SEC,
            deadline: DeadlineOptions::default(),
            bfq: BfqOptions::default(),
            rotational: false,
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
    /// These options of a disk that is only read, which makes changes of no other disk behind its queue less.
    #[must_use]
    pub fn of_reads(self) -> Self {
        let discard_max_bytes = Self::default().discard_max_bytes;
        Self {
            discard: true,
            write_zeroes: true,
            fua: true,
            discard_granularity: 512,
            discard_max_bytes,
            ..self
        }
    }

    /// What each of two disks behind one queue can do: these options, with the weaker of both in everything that says so.
    #[must_use]
    pub fn both(self, other: Self) -> Self {
        Self {
            discard: self.discard && other.discard,
            write_zeroes: self.write_zeroes && other.write_zeroes,
            fua: self.fua && other.fua,
            discard_granularity: self.discard_granularity.max(other.discard_granularity),
            discard_max_bytes: self.discard_max_bytes.min(other.discard_max_bytes),
            rotational: self.rotational || other.rotational,
            ..self
        }
    }

    /// Returns the `nr_requests` by which other shards count the tags of their bios. Behind an open gate a bio has one tag,
    /// wherever it comes from: one that asked for more would get them one by one, and return them to others that ask, without
    /// end.
    #[must_use]
    pub const fn lessee_requests(&self) -> u32 {
        if self.scheduler.owns_shares() { 1 } else { self.nr_requests }
    }

    /// Tags of the queue on a shard with `bios` bios: `nr_requests`. An elevator that owns shares is given every request at once;
    /// then there is a tag for every bio, `nr_requests` for pieces beyond the first, and the reserve that the policy keeps.
    #[must_use]
    pub fn tags(&self, bios: u32) -> u32 {
        /// The reserve is one in sixteen.
        const RESERVE_PART: u32 = 15;
        let asked = bios + self.nr_requests;
        if self.scheduler.owns_shares() {
            asked + asked / RESERVE_PART + 1
        } else {
            self.nr_requests
        }
    }

    /// Most bytes of one data request.
    #[must_use]
    pub fn max_bytes(&self) -> u32 {
        self.max_sectors_kb * 1024
    }
}
