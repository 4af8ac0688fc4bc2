//! Latency targets at the gate: what passes for the bulk that may have to wait, and what is told of the targets.

use super::super::bulk::Bulk;
use super::Gate;
use crate::bio::ExportId;
use crate::request::Request;
use crate::stats::TargetStats;
use crate::time::Instant;

impl Gate {
    /// Takes over the latency targets. Behind an open gate they are not kept: it holds nothing back.
    pub(super) fn set_targets(&mut self, now: Instant) {
        self.bulk.set_targets(now, (!self.open).then_some(&self.shares));
    }

    /// Returns true while latencies are noted: an export has a latency target, or the smallest one is watched.
    #[inline]
    pub fn notes_latency(&self) -> bool {
        self.bulk.is_noting()
    }

    /// Notes a finished request, for the latency targets.
    pub fn note_latency(&mut self, now: Instant, request: &Request) {
        let shares = &self.shares;
        let (target_us, tenant) = (shares.target_us(request.export), shares.tenant(request.export));
        self.bulk.note(now, request, target_us, tenant);
    }

    /// Returns what latency targets have counted.
    pub fn bulk(&self) -> &Bulk {
        &self.bulk
    }

    /// Measures the smallest latency of a queue that is busy or empty for a while; returns what is known of it, in nanoseconds.
    pub fn watch_smallest(&mut self, now: Instant, is_busy: bool) -> Option<u64> {
        self.bulk.watch_smallest(now, is_busy)
    }

    /// Returns every export with a latency target, and the target in microseconds; none behind an open gate, where they are not
    /// kept.
    pub fn targets(&self) -> impl Iterator<Item = (ExportId, u32)> + '_ {
        let all = self.bulk.is_on().then(|| self.shares.export_targets());
        all.into_iter().flatten()
    }

    /// Ends a window of the latency targets if it is time; returns true if the limit on bulk changed.
    #[inline]
    pub fn adapt_targets(&mut self, now: Instant) -> bool {
        self.bulk.is_due(now) && self.bulk.end_window(now, self.admitted_bytes.get())
    }

    /// Returns the limit on bytes of bulk in the device; `None` without one.
    pub fn bulk_limit(&self) -> Option<u64> {
        self.bulk.limit()
    }

    /// Returns the limit for latency targets, if an export has one.
    pub fn target_stats(&self) -> Option<TargetStats> {
        self.bulk.stats()
    }
}
