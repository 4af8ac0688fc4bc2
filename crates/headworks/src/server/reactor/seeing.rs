//! What a shard says of the time that its clients waited.

use std::collections::BTreeMap;

use headworks_core::{DeviceId, ExportId, Instant};

use super::Reactor;
use crate::latency::Totals;
use crate::server::control::question::SlowReport;

impl Reactor {
    /// Of each export that had any client here: those that are gone, and those that are there.
    pub(super) fn report_latency(&mut self) -> Vec<(ExportId, Totals)> {
        let mut all: BTreeMap<ExportId, Totals> =
            self.parts.desk.latency.gone().into_iter().collect();
        self.for_each_connection(|connection| {
            if let Some((export, table)) = connection.latency() {
                all.entry(export).or_default().add(table);
            }
        });
        all.into_iter().collect()
    }

    pub(super) fn report_slow(
        &self,
        now: Instant,
        export: ExportId,
        device: DeviceId,
    ) -> SlowReport {
        let (requests, slowest) = self.parts.desk.latency.slow(export, now);
        SlowReport { now, requests, slowest, writeback: self.parts.shard.wb_stats(device) }
    }
}
