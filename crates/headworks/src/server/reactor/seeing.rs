//! What a shard says of the time that its clients waited.

use std::collections::BTreeMap;

use headworks_core::{DeviceId, ExportId, Instant};

use super::Reactor;
use crate::server::control::question::{LatencyReport, SlowReport};

impl Reactor {
    /// Of each export that had any client here: those that are gone, and those that are there.
    pub(super) fn report_latency(&mut self) -> Vec<LatencyReport> {
        let gone = self.parts.desk.latency.gone().into_iter();
        let gone =
            gone.map(|(export, totals)| (export, LatencyReport { export, totals, connections: 0 }));
        let mut all: BTreeMap<ExportId, LatencyReport> = gone.collect();
        self.for_each_connection(|connection| {
            if let Some((export, table)) = connection.latency() {
                let report = all.entry(export).or_default();
                report.export = export;
                report.totals.add(table);
                report.connections += 1;
            }
        });
        all.into_values().collect()
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
