//! Wait times by export: totals of closed connections, and the slowest requests of the last minute.
//!
//! Memory of an export (about 100 KiB) is allocated at its first completed request.

use headworks_core::{ExportId, Instant, WaitTimes};

use super::slow::{SlowFilter, SlowRequest, SlowRing};
use super::{LatencyTable, LatencyTotals};
use headworks_front::window::CompletedRequest;

/// Wait times of the exports with clients on this shard.
#[derive(Debug, Default)]
pub struct ExportLatencies {
    all: Vec<Option<Box<ExportLatency>>>,
}

#[derive(Debug, Default)]
struct ExportLatency {
    /// Totals of closed connections.
    gone: LatencyTotals,
    slow: SlowRing,
}

impl ExportLatencies {
    /// Records a completed request.
    #[inline]
    pub fn record(
        &mut self,
        now: Instant,
        (export, connection): (ExportId, u32),
        answered: &CompletedRequest,
        wait_times: WaitTimes,
    ) {
        let CompletedRequest { op, offset, len, total_ns, .. } = *answered;
        let slow = || SlowRequest { total_ns, at: now, offset, wait_times, len, connection, op };
        self.entry(export).slow.record(slow, now, (op, total_ns));
    }

    /// Adds the counts of a connection that closes.
    pub fn close(&mut self, export: ExportId, table: &LatencyTable) {
        self.entry(export).gone.add(table);
    }

    /// Forgets an export that was removed; its id may be reused.
    pub fn forget(&mut self, export: ExportId) {
        if let Some(entry) = self.all.get_mut(usize::from(export.0)) {
            *entry = None;
        }
    }

    /// Exports with recorded requests, from `from` on.
    pub fn known(&self, from: ExportId) -> impl Iterator<Item = ExportId> {
        let all = self.all.iter().enumerate().skip(usize::from(from.0));
        all.filter_map(|(index, entry)| entry.as_ref().map(|_| ExportId(index as u16)))
    }

    /// Totals of closed connections.
    #[must_use]
    pub fn gone(&self, export: ExportId) -> Option<&LatencyTotals> {
        let entry = self.all.get(usize::from(export.0)).and_then(Option::as_ref);
        entry.map(|entry| &entry.gone)
    }

    /// Number of requests in the last seconds, and the slowest of them.
    #[must_use]
    pub fn slow(
        &self,
        export: ExportId,
        now: Instant,
        filter: SlowFilter,
    ) -> (u64, Vec<SlowRequest>) {
        let entry = self.all.get(usize::from(export.0)).and_then(Option::as_ref);
        entry.map_or_else(Default::default, |entry| entry.slow.recent(now, filter))
    }

    #[inline]
    fn entry(&mut self, export: ExportId) -> &mut ExportLatency {
        let index = usize::from(export.0);
        if self.all.get(index).is_none_or(Option::is_none) {
            self.make(index);
        }
        self.all[index].as_mut().expect("it was just made")
    }

    #[cold]
    fn make(&mut self, index: usize) {
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        self.all[index] = Some(Box::default());
    }
}
