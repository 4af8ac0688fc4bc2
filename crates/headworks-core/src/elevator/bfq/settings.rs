//! The numbers that bfq works with: its tunables in the units of the code, and constants with their reasons.

use crate::options::QueueOptions;
use crate::time::{MS, SEC, US};

/// Bytes of a sector, the unit of budgets.
pub(super) const SECTOR: u64 = 512;

/// Seeky: further than this many sectors from the last request of the queue. As Linux.
pub(super) const SEEK_SECTORS: u64 = 800;

/// Sectors below which a far request is seeky on a device that does not rotate, and which one injected there stays below.
pub(super) const SMALL_SECTORS: u32 = 64;

/// What an asynchronous sector costs while all compete as equals: writes are cheap to issue and expensive to do. As Linux.
pub(super) const ASYNC_FACTOR: u32 = 3;

/// Auto budget until enough slots were given to trust the rate. As Linux.
const DEFAULT_BUDGET: u32 = 16_384;

/// The least auto budget on any device, in sectors.
const BUDGET_MIN: u32 = 64;

/// The think time that is short on any device, and the idling for a seeky queue. As Linux.
pub(super) const SHORT_NS: u64 = 2 * MS;

/// The longest idling on a device that does not rotate: two or three of its answers.
const FLASH_IDLE_NS: u64 = 200 * US;

/// The least idling for a raised queue on a device that rotates. As Linux.
pub(super) const RAISED_IDLE_NS: u64 = 20 * MS;

/// What a seek is expected to take.
const SEEK_NS: u64 = 6 * MS;

/// Requests that a device orders by itself.
const QUEUEING_DEPTH: u32 = 3;

/// The tunables, in nanoseconds and sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub rotational: bool,
    /// The device orders the requests that it has.
    pub queueing: bool,
    pub slice_idle_ns: u64,
    pub low_latency: bool,
    pub timeout_ns: u64,
    /// The largest budget that was set; 0 for one from the peak rate.
    pub max_budget: u32,
    pub strict: bool,
    pub back_seek_sectors: u64,
    pub back_seek_penalty: u64,
    pub fifo_sync_ns: u64,
    pub fifo_async_ns: u64,
    pub hold_ns: u64,
    /// Most time in the device; `u64::MAX` for no limit.
    pub inflight_ns: u64,
    /// Most bytes in the device; `u64::MAX` for no limit.
    pub inflight_bytes: u64,
    /// Length of a slot by which an auto budget is made.
    pub slot_ns: u64,
    /// The budget of a slot follows `hw_slot_us` from the start.
    pub short_slots: bool,
}

impl Settings {
    pub fn new(options: &QueueOptions) -> Self {
        let bfq = &options.bfq;
        let rotational = options.rotational;
        let (ms, us) = (|ms: u32| u64::from(ms) * MS, |us: u32| u64::from(us) * US);
        let idle = us(bfq.slice_idle_us);
        let slice_idle_ns = match (bfq.strict_guarantees, rotational) {
            (true, _) => idle.max(8 * MS),
            (false, true) => idle,
            (false, false) => idle.min(FLASH_IDLE_NS),
        };
        let unlimited = |value: u64| if value == 0 { u64::MAX } else { value };
        let short_slots = !rotational && bfq.slot_us > 0;
        let settings = Self {
            rotational,
            queueing: options.queue_depth > QUEUEING_DEPTH,
            slice_idle_ns,
            low_latency: bfq.low_latency,
            timeout_ns: ms(bfq.timeout_sync_ms),
            max_budget: bfq.max_budget,
            strict: bfq.strict_guarantees,
            back_seek_sectors: u64::from(bfq.back_seek_max_kb) * 2,
            back_seek_penalty: bfq.back_seek_penalty.into(),
            fifo_sync_ns: ms(bfq.fifo_expire_sync_ms),
            fifo_async_ns: ms(bfq.fifo_expire_async_ms),
            hold_ns: if rotational { us(bfq.hold_us) } else { 0 },
            inflight_ns: if rotational { unlimited(us(bfq.inflight_us)) } else { u64::MAX },
            inflight_bytes: unlimited(u64::from(options.hw_inflight_kb) * 1024),
            slot_ns: if short_slots { us(bfq.slot_us) } else { ms(bfq.timeout_sync_ms) },
            short_slots,
        };
        debug_assert!(settings.timeout_ns > 0 && settings.slot_ns > 0, "slots have a length");
        settings
    }

    /// Returns whether queues are waited for without being raised.
    pub fn waits(&self) -> bool {
        self.rotational || self.strict
    }

    /// Returns the largest budget after `given` slots at a peak rate (sectors per microsecond << 16).
    pub fn budget_max(&self, rate_is_known: bool, peak: u64) -> u32 {
        if self.max_budget > 0 {
            return self.max_budget;
        }
        if !rate_is_known && !self.short_slots {
            return DEFAULT_BUDGET;
        }
        let sectors = (peak * (self.slot_ns / US)) >> 16;
        sectors.clamp(BUDGET_MIN.into(), 1 << 24) as u32
    }

    /// Returns the longest slot of a queue whose weight is raised by `raise`.
    pub fn slot_max_ns(&self, raise: u64) -> u64 {
        let base = if self.short_slots { 4 * self.slot_ns } else { self.timeout_ns };
        base.saturating_mul(raise.max(1)).min(60 * SEC)
    }

    /// Returns what a request of `sectors` is expected to take at a peak rate; 0 on a device without a limit on that.
    pub fn estimate_ns(&self, sectors: u32, seeky: bool, peak: u64) -> u32 {
        if self.inflight_ns == u64::MAX {
            return 0;
        }
        let transfer = ((u64::from(sectors) * US) << 16) / peak.max(1);
        let seek = if seeky { SEEK_NS } else { 0 };
        (transfer + seek).min(u32::MAX.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::BfqOptions;

    #[test]
    fn flash_idles_briefly_and_has_no_hold() {
        let flash = Settings::new(&QueueOptions::default());
        assert_eq!((flash.slice_idle_ns, flash.hold_ns), (200 * US, 0));
        assert_eq!(flash.inflight_ns, u64::MAX);
        let disk = Settings::new(&QueueOptions { rotational: true, ..QueueOptions::default() });
        assert_eq!(
            (disk.slice_idle_ns, disk.hold_ns, disk.inflight_ns),
            (8 * MS, 60 * MS, 20 * MS)
        );
        let bfq = BfqOptions { strict_guarantees: true, slice_idle_us: 0, ..BfqOptions::default() };
        let strict = Settings::new(&QueueOptions { bfq, ..QueueOptions::default() });
        assert_eq!(strict.slice_idle_ns, 8 * MS, "strict guarantees need idling");
    }

    #[test]
    fn auto_budget_is_what_a_slot_serves_at_the_peak_rate() {
        let disk = Settings::new(&QueueOptions { rotational: true, ..QueueOptions::default() });
        // 200 sectors per ms: 102 MB/s.
        let peak = (200 << 16) / 1000;
        assert_eq!(disk.budget_max(false, peak), DEFAULT_BUDGET);
        assert_eq!(disk.budget_max(true, peak), 200 * 125 - 1);
        let flash = Settings::new(&QueueOptions::default());
        assert_eq!(flash.budget_max(false, 2 << 16), 200, "100 us at 2 sectors per us");
        let bfq = BfqOptions { max_budget: 77, ..BfqOptions::default() };
        let set = Settings::new(&QueueOptions { bfq, ..QueueOptions::default() });
        assert_eq!(set.budget_max(true, peak), 77);
    }
}
