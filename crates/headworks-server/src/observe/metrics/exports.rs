//! Metrics of exports that do not come from requests: state, data in the cache, errors, and the use of devices.

use std::collections::BTreeMap;

use headworks_core::ExportId;

use super::page::{LabelList, of_export};
use super::text::{MetricType, MetricsPage, seconds};
use crate::control::queries::{ExportFacts, Latencies, Queries};
use crate::control::tree::{Tree, device_name};
use crate::exports::assemble::shown_name;
use crate::observe::latency::request_name;
use crate::spec::tenant::TenantName;
use headworks_control::RpcFault;

/// The states of an export, one of which is 1.
const STATES: [&str; 7] =
    ["serving", "refusing", "suspect", "stuck", "frozen", "deleted", "absent"];

/// Adds the state and the data of each export, its errors, and what it has used of its device.
pub fn put_exports(
    page: &mut MetricsPage,
    queries: &Queries,
    tree: &Tree,
    latencies: &Latencies,
) -> Result<(), RpcFault> {
    let facts = queries.export_facts(tree)?;
    let tenants: BTreeMap<ExportId, TenantName> = tree
        .exports
        .iter()
        .filter_map(|entry| Some((entry.id, queries.tenant_of(entry.id)?)))
        .collect();
    let rows: Vec<(LabelList<'_>, ExportFacts)> = tree
        .exports
        .iter()
        .map(|entry| {
            let labels = of_export(entry.shown_name(), tenants.get(&entry.id), &[]);
            (labels, facts.get(&entry.id).copied().unwrap_or_default())
        })
        .collect();
    put_states(page, tree, &rows);
    type Of = fn(&ExportFacts) -> u64;
    let gauges: [(&str, &str, Of); 4] = [
        ("size", "Size of the export.", |facts| facts.size),
        ("dirty", "Acknowledged data of the export's image that is not written yet.", |facts| {
            facts.dirty
        }),
        ("held", "Acknowledged data of the export's image that could not be written.", |facts| {
            facts.held
        }),
        ("cached", "Data in the cache for this export.", |facts| facts.cached),
    ];
    for (what, help, of) in gauges {
        let name = format!("headworks_export_{what}_bytes");
        page.family(&name, MetricType::Gauge, help);
        for (labels, facts) in &rows {
            page.sample(&name, labels, of(facts));
        }
    }
    let name = "headworks_errors_total";
    page.family(name, MetricType::Counter, "Error replies by operation and error.");
    for entry in &tree.exports {
        let Some(report) = latencies.get(&entry.id) else { continue };
        for (op, error, count) in report.totals.errors().all() {
            let more = [("op", request_name(op)), ("error", error.name())];
            page.sample(name, &of_export(entry.shown_name(), tenants.get(&entry.id), &more), count);
        }
    }
    put_device_uses(page, queries, tree, &tenants)
}

fn put_states(page: &mut MetricsPage, tree: &Tree, rows: &[(LabelList<'_>, ExportFacts)]) {
    let name = "headworks_export_state";
    page.family(name, MetricType::Gauge, "1 for the present state of the export, 0 for others.");
    let mut put = |labels: &[(&str, &str)], present: &str| {
        for state in STATES {
            let labels = [labels, &[("state", state)]].concat();
            page.sample(name, &labels, u8::from(state == present));
        }
    };
    for (labels, facts) in rows {
        put(labels, facts.state());
    }
    for absent in &tree.absent {
        put(&[("export", shown_name(&absent.spec.name))], "absent");
    }
}

/// What held the device: by export, write-back and read-ahead included. Exports of one image count as the first of them.
fn put_device_uses(
    page: &mut MetricsPage,
    queries: &Queries,
    tree: &Tree,
    tenants: &BTreeMap<ExportId, TenantName>,
) -> Result<(), RpcFault> {
    let uses = queries.device_uses()?;
    let rows: Vec<_> = uses
        .iter()
        .filter_map(|one| {
            let entry = tree.exports.iter().find(|entry| entry.volume == one.volume)?;
            Some((entry, device_name(one.device), one.used))
        })
        .collect();
    for (name, help, held) in [
        ("headworks_tag_held_seconds_total", "Time for which requests held a tag, summed.", true),
        (
            "headworks_device_held_seconds_total",
            "Time for which requests were in the device, summed.",
            false,
        ),
    ] {
        page.family(name, MetricType::Counter, help);
        for (entry, device, used) in &rows {
            let more = [("device", device.as_str())];
            let labels = of_export(entry.shown_name(), tenants.get(&entry.id), &more);
            page.sample(name, &labels, seconds(if held { used.tag_ns } else { used.device_ns }));
        }
    }
    Ok(())
}
