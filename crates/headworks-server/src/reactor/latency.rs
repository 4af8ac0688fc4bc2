//! Reports of wait times for `stats`, `histograms` and `why`.

use std::collections::BTreeMap;

use headworks_core::{DeviceId, ExportId, Instant};

use super::Reactor;
use super::hot_list::ConnectionState;
use super::queries::TABLES_MAX;
use crate::messages::query::{LatencyPart, LatencyReport, SlowReport};

impl Reactor {
    /// Wait times of each export with clients on this shard, from `from` on: closed and open connections. One part
    /// takes as many exports as fit one turn, and at least one.
    pub(super) fn report_latency(&mut self, from: ExportId) -> LatencyPart {
        let of = |state: &ConnectionState| state.export.filter(|export| *export >= from);
        // Number of tables of each export.
        let mut tables: BTreeMap<ExportId, usize> = BTreeMap::new();
        let gone = self.parts.io.latency.known(from);
        for export in gone.chain(self.connections.states().filter_map(of)) {
            *tables.entry(export).or_default() += 1;
        }
        let mut sum = 0;
        let beyond = tables.iter().find(|(export, count)| {
            sum += **count;
            sum > TABLES_MAX && **export > from
        });
        let next = beyond.map(|(export, _)| *export);
        let mut reports: BTreeMap<ExportId, LatencyReport> = BTreeMap::new();
        for export in tables.into_keys().take_while(|export| next.is_none_or(|end| *export < end)) {
            let totals = self.parts.io.latency.gone(export).cloned().unwrap_or_default();
            reports.insert(export, LatencyReport { export, totals, connections: 0 });
        }
        for slot in self.parts.io.slots() {
            let export = self.connections.state(slot).export;
            let Some(report) = export.and_then(|export| reports.get_mut(&export)) else { continue };
            let connection = self.parts.io.connection(slot).map(|(connection, _)| connection);
            if let Some((_, table)) = connection.and_then(|connection| connection.latency()) {
                report.totals.add(table);
                report.connections += 1;
            }
        }
        LatencyPart { reports: reports.into_values().collect(), next }
    }

    pub(super) fn report_slow(
        &self,
        now: Instant,
        export: ExportId,
        device: DeviceId,
    ) -> SlowReport {
        let (requests, slowest) = self.parts.io.latency.slow(export, now);
        SlowReport { now, requests, slowest, writeback: self.parts.driver.shard().wb_stats(device) }
    }
}
