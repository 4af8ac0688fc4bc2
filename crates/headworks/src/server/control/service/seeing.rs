//! The methods that look at what clients waited for: `histograms` and `why`, and the parts of `stats` and `connections`.

use std::collections::BTreeMap;

use headworks_core::ExportId;
use headworks_core::cache::folio::BLOCK;
use serde_json::json;

use super::super::latency;
use super::super::question::{Question, SlowReport};
use super::super::tree::{ExportEntry, device_name};
use super::super::why::{Facts, why};
use super::{Answer, Fault, Service, find_export};
use crate::latency::Totals;

/// What each export's clients waited for, those that had any.
pub(super) type Latencies = BTreeMap<ExportId, Totals>;

impl Service {
    /// One question for each shard.
    pub(super) fn latencies(&self) -> Result<Latencies, Fault> {
        let mut all = Latencies::new();
        for shard in self.shards() {
            for (export, totals) in self.ask(shard, |answer| Question::Latency { answer })? {
                all.entry(export).or_default().merge(&totals);
            }
        }
        Ok(all)
    }

    pub(super) fn histograms(&self, name: &str) -> Answer {
        let tree = self.tree();
        let entry = find_export(&tree, name)?;
        let totals = self.latencies()?.remove(&entry.id).unwrap_or_default();
        let ops = latency::histograms(&totals);
        Ok(json!({ "export": entry.shown_name(), "ops": ops }))
    }

    pub(super) fn why(&self, name: &str) -> Answer {
        let tree = self.tree();
        let entry = find_export(&tree, name)?;
        let ExportEntry { id: export, device, home, .. } = *entry;
        let question = |answer| Question::Slow { export, device, answer };
        let SlowReport { now, requests, slowest, writeback } = self.ask(home, question)?;
        let options = self.device(&tree, device)?.options;
        let blocks = |count: u64| count * u64::from(BLOCK);
        let facts = Facts {
            device: device_name(device),
            export: entry.shown_name().to_owned(),
            nr_requests: options.nr_requests,
            scheduler: options.scheduler.name(),
            dirty: writeback.map(|wb| {
                let dirty = wb.reclaimable + wb.writeback + wb.reserved;
                (blocks(dirty), blocks(wb.dirty_thresh))
            }),
            write_bandwidth: writeback.map_or(0, |wb| blocks(wb.write_bandwidth)),
        };
        Ok(why(&facts, now, requests, &slowest))
    }
}
