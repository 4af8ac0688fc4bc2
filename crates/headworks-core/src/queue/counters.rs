//! The counters of one device's queue.

use crate::bio::VolumeId;
use crate::request::Request;
use crate::stats::QueueStats;
use crate::time::Instant;

/// What a queue counts, beside the statistics of its volumes.
#[derive(Debug)]
pub(super) struct QueueCounters {
    stats: QueueStats,
    /// Where the last data command ended, to recognize sequential commands.
    last_end: (VolumeId, u64),
}

impl QueueCounters {
    /// Creates counters that are all zero.
    pub fn new() -> Self {
        Self { stats: QueueStats::default(), last_end: (VolumeId(0), 0) }
    }

    /// Returns the counters; `in_flight` requests wait for a tag, are queued or are in the device.
    pub fn stats(&self, in_flight: u32) -> QueueStats {
        debug_assert!(
            self.stats.sequential <= self.stats.issued,
            "sequential commands were issued"
        );
        QueueStats { in_flight, ..self.stats }
    }

    /// Counts a request that leaves for the device, and whether it starts where the last one ended.
    #[inline]
    pub fn count_issued(&mut self, request: &Request) {
        if request.op.has_data() {
            self.stats.issued += 1;
            self.stats.sequential += u64::from(self.last_end == (request.volume, request.offset));
            self.last_end = (request.volume, request.end());
        }
    }

    /// Counts a request that was merged into another one behind the plug.
    pub fn count_merge(&mut self) {
        self.stats.merges += 1;
    }

    /// Ends a batch; `busy` says whether requests are left.
    #[inline]
    pub fn on_batch(&mut self, now: Instant, busy: bool) {
        self.stats.on_batch(now, busy);
    }

    /// Forgets where the last command ended if it was in `volume`, which is removed: the first command of a volume that is added
    /// under the same id does not count as sequential.
    pub fn forget(&mut self, volume: VolumeId) {
        if self.last_end.0 == volume {
            self.last_end = (volume, u64::MAX);
        }
    }
}
