//! `tenants`, `add-tenant`, `remove-tenant`, and the tenants of a reloaded configuration.
//!
//! A tenant is removed when no export has it. The lock of the inventory keeps exports from being added to it meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use headworks_core::{Op, TenantId, VolumeId};
use serde_json::Value;

use super::diff::{DropInReader, on_command_line};
use super::exports::export_reports;
use super::exports::some_target;
use super::{LiveChanges, wrong};
use crate::config::{ConfigFile, Origin, Setting, TenantSection, Value as ConfigValue};
use crate::control::inventory::Inventory;
use crate::control::queries::{Latencies, NodeCounts};
use crate::control::tenants::TenantEntry;
use crate::control::tree::lock;
use crate::exports::assemble::TenantSpec;
use crate::exports::assemble::{ExportSource, shown_name};
use crate::reactor::messages::command::ExportReport;
use crate::reactor::messages::query::LatencyReport;
use crate::spec::limit_words::{NO_LIMIT, limit_word, limit_words};
use crate::spec::option_table::{OptionTable, word};
use crate::spec::tenant::{TenantName, TenantOption, TenantOptions};
use headworks_control::{RpcFault, answers};
use headworks_core::limits::LimitTarget;

/// Result of a reload of tenants, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantReport {
    /// Changes that took effect.
    pub changed: Vec<String>,
    /// Changes that were refused, and why.
    pub refused: Vec<String>,
}

/// Sums over the exports of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantSums {
    /// Number of exports that name it.
    pub exports: usize,
    /// Clients of all exports.
    pub clients: usize,
    /// Bytes that clients have read.
    pub read_bytes: u64,
    /// Bytes that clients have written.
    pub written_bytes: u64,
    /// Bytes that are not written out yet.
    pub dirty: u64,
}

/// What an export adds to its tenant.
struct ExportCounts<'a> {
    tenant: TenantId,
    volume: VolumeId,
    report: Option<&'a ExportReport>,
    latency: Option<&'a LatencyReport>,
}

/// Adds up exports by tenant, each once: with a thousand of both a search for each would take a million steps.
fn sums_by_tenant<'a>(
    exports: impl Iterator<Item = ExportCounts<'a>>,
) -> BTreeMap<TenantId, TenantSums> {
    let mut all: BTreeMap<TenantId, TenantSums> = BTreeMap::new();
    let mut volumes = BTreeSet::new();
    for ExportCounts { tenant, volume, report, latency } in exports {
        let sum = all.entry(tenant).or_default();
        sum.exports += 1;
        sum.clients += report.map_or(0, |report| report.clients);
        let bytes = |op| latency.map_or(0, |latency| latency.totals.bytes(op));
        sum.read_bytes += bytes(Op::Read);
        sum.written_bytes += bytes(Op::Write);
        // Exports of one image, which have one tenant, show the same dirty data.
        if volumes.insert(volume) {
            sum.dirty += report.map_or(0, |report| report.dirty);
        }
    }
    all
}

/// The method `tenants`: one row for each.
pub fn tenants(
    live: &LiveChanges,
    latencies: &Latencies,
    counts: &NodeCounts,
) -> Result<Vec<answers::Tenant>, RpcFault> {
    let sums = tenant_sums(live, latencies)?;
    let uses = live.settings.cache_uses()?;
    let row = |(id, entry): (TenantId, &TenantEntry)| {
        let sum = sums.get(&id).copied().unwrap_or_default();
        let targets = counts.targets.tenants.get(&id).copied().unwrap_or_default();
        let used = uses.get(&id).copied().unwrap_or_default();
        answers::Tenant {
            name: entry.spec.name.as_str().to_owned(),
            weight: entry.now.weight,
            ioprio_max: entry.now.ioprio_max.map(|ioprio| ioprio.to_string()),
            exports: sum.exports,
            clients: sum.clients,
            read_bytes: sum.read_bytes,
            written_bytes: sum.written_bytes,
            dirty: sum.dirty,
            cached: used.cached,
            limited_seconds: counts.limited_seconds(LimitTarget::Tenant(id)),
            latency_target_us: some_target(entry.now.latency_target_us),
            target_requests: targets.ended,
            target_missed: targets.missed,
            target_held: targets.held,
        }
    };
    Ok(live.settings.tenants().iter().map(row).collect())
}

/// Sums over the exports of each tenant.
pub fn tenant_sums(
    live: &LiveChanges,
    latencies: &Latencies,
) -> Result<BTreeMap<TenantId, TenantSums>, RpcFault> {
    let (tree, reports) = (live.tree.current(), export_reports(live)?);
    Ok(sums_by_tenant(tree.exports.iter().map(|node| ExportCounts {
        tenant: live.settings.of(node.id).tenant,
        volume: node.volume,
        report: reports.get(&node.id),
        latency: latencies.get(&node.id),
    })))
}

/// The method `add-tenant`, with the words of `--tenant`.
pub fn add_tenant_by_words(
    live: &LiveChanges,
    words: &str,
) -> Result<answers::TenantChange, RpcFault> {
    let spec = TenantSpec::parse(words, ExportSource::Control);
    add_tenant(live, spec.map_err(|error| wrong(&error))?)
}

fn add_tenant(live: &LiveChanges, spec: TenantSpec) -> Result<answers::TenantChange, RpcFault> {
    live.settings.add_tenant(spec)?;
    tracing::info!("tenant {} was added", spec.name);
    Ok(answers::TenantChange { tenant: spec.name.as_str().to_owned() })
}

/// The method `remove-tenant`: refused while an export names it.
pub fn remove_tenant(live: &LiveChanges, name: &str) -> Result<answers::TenantChange, RpcFault> {
    // Held, so that no export of the tenant is added meanwhile.
    let inventory = lock(&live.inventory);
    live.settings.remove_tenant(name, |id| first_export(live, &inventory, name, id))?;
    tracing::info!("tenant {name} was removed");
    Ok(answers::TenantChange { tenant: name.to_owned() })
}

/// An export of a tenant, those that are being removed and absent ones included.
fn first_export(
    live: &LiveChanges,
    inventory: &Inventory,
    name: &str,
    id: TenantId,
) -> Option<String> {
    let served = {
        let exports = inventory.exports.lock();
        let own = exports.values().find(|export| export.now.tenant == id);
        own.map(|export| shown_name(&export.spec.name).to_owned())
    };
    served.or_else(|| {
        let tree = live.tree.current();
        let of = |tenant: Option<TenantName>| tenant.is_some_and(|own| own.as_str() == name);
        let absent = tree.absent.iter().find(|absent| of(absent.spec.share.tenant));
        absent.map(|absent| shown_name(&absent.spec.name).to_owned())
    })
}

/// Adds the tenants of a configuration, and sets what differs from the one loaded before; see
/// [`Reloader::tenants`](crate::Reloader::tenants).
pub fn load_tenants(live: &LiveChanges, wanted: &[TenantSpec]) -> TenantReport {
    let mut report = TenantReport::default();
    for new in wanted {
        let known = live.settings.tenants();
        let Some(id) = known.find(new.name.as_str()) else {
            match live.settings.add_tenant(*new) {
                Ok(_) => report.changed.push(format!("tenant {} was added", new.name)),
                Err(fault) => report.refused.push(fault.message().to_owned()),
            }
            continue;
        };
        let Some(TenantEntry { spec: old, now }) = known.get(id) else { continue };
        // A value of `ctl set` stays until the configuration says another one.
        let mut options = *now;
        for option in TenantOption::ALL.iter() {
            if !option.is_same(&old.options, &new.options) {
                option.copy(&mut options, &new.options);
            }
        }
        let differs = options != *now;
        let set = live.settings.load_tenant(id, *new, options);
        match set {
            Err(fault) => report.refused.push(fault.message().to_owned()),
            Ok(()) if differs => {
                let differs = TenantOption::ALL.iter().filter(|one| !one.is_same(now, &options));
                let words: Vec<String> = differs.map(|one| one.said(&options)).collect();
                report.changed.push(format!("tenant {} has {} now", new.name, words.join(", ")));
            }
            Ok(()) => {}
        }
    }
    *lock(&live.configured_tenants) = wanted.to_vec();
    report
}

/// Removes the tenants that the last configuration does not have; those that `ctl` added stay.
pub fn forget_tenants(live: &LiveChanges) -> TenantReport {
    let wanted = lock(&live.configured_tenants).clone();
    let mut report = TenantReport::default();
    for (_, entry) in live.settings.tenants().iter() {
        let name = entry.spec.name;
        let stays = entry.spec.source == ExportSource::Control
            || wanted.iter().any(|wanted| wanted.name == name);
        if stays {
            continue;
        }
        match remove_tenant(live, name.as_str()) {
            Ok(_) => report.changed.push(format!("tenant {name} was removed")),
            Err(fault) => report.refused.push(fault.message().to_owned()),
        }
    }
    report
}

/// What a tenant is, as `add-tenant` takes it behind the name: its weight, if nothing else is said.
fn words(options: &TenantOptions) -> String {
    let words = TenantOption::words(options);
    let words: Vec<String> = words.iter().map(|(key, word)| format!("{key}={word}")).collect();
    match words.is_empty() {
        true => format!("weight={}", options.weight),
        false => words.join(","),
    }
}

/// Adds the tenants to what `diff` finds.
pub(super) fn diff_tenants(
    live: &LiveChanges,
    reader: DropInReader,
    file: &mut ConfigFile,
    unsaved: &mut Vec<String>,
    mut found: impl FnMut(&str, Value, Value),
) {
    let there = live.settings.tenants();
    for (_, TenantEntry { spec, now }) in there.iter() {
        let name = spec.name;
        let is_added = spec.source == ExportSource::Control;
        let mut changed = Vec::new();
        if is_added {
            found(&format!("tenants/{name}"), Value::Null, words(now).into());
        } else {
            for option in TenantOption::ALL {
                for (key, old, new) in option.differences(&spec.options, now) {
                    changed.push(key);
                    let path = format!("tenants/{name}/{key}");
                    found(&path, word(&old).into(), word(&new).into());
                }
            }
        }
        if !is_added && changed.is_empty() {
            continue;
        }
        match spec.source {
            source if !reader.takes(source) => {
                unsaved.push(on_command_line("tenant", name.as_str()));
            }
            _ => {
                let current = TenantSpec { options: *now, ..*spec };
                let mut section = TenantSection::of(&current, &Origin::Control);
                // A limit of an earlier file is only gone if a later one says so.
                let is_gone = |key: &&str| limit_word(&now.limits, key) == NO_LIMIT;
                let configured = limit_words(&spec.options.limits).map(|(key, _)| key);
                section.settings.extend(configured.filter(is_gone).map(|key| Setting {
                    name: key.to_owned(),
                    value: ConfigValue::Word(NO_LIMIT.to_owned()),
                    origin: Origin::Control,
                }));
                // Sections of one tenant are combined: unchanged values are left to the earlier file, which may be edited.
                if !is_added && reader == DropInReader::LaterStart {
                    section.settings.retain(|setting| changed.contains(&&*setting.name));
                }
                file.tenants.push(section);
            }
        }
    }
    for gone in lock(&live.configured_tenants).iter() {
        if there.find(gone.name.as_str()).is_none() {
            found(&format!("tenants/{}", gone.name), words(&gone.options).into(), Value::Null);
            match reader.takes(gone.source) {
                true => {
                    let name = gone.name.as_str();
                    file.tenants.push(TenantSection::disabled(name, &Origin::Control));
                }
                false => unsaved.push(on_command_line("tenant", gone.name.as_str())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_a_tenant_is_has_words() {
        let mut options = TenantOptions::default();
        assert_eq!(words(&options), "weight=100");
        options.weight = 7;
        assert_eq!(words(&options), "weight=7");
    }

    #[test]
    fn each_export_is_visited_once_however_many_tenants_there_are() {
        let visits = Cell::new(0);
        let report = ExportReport { clients: 2, dirty: 4096, ..ExportReport::default() };
        let exports = (0..1024).map(|export| {
            visits.set(visits.get() + 1);
            let tenant = TenantId(export % 1000);
            // The last 24 serve the images of the first.
            let volume = VolumeId(export % 1000);
            ExportCounts { tenant, volume, report: Some(&report), latency: None }
        });
        let sums = sums_by_tenant(exports);
        assert_eq!((sums.len(), visits.get()), (1000, 1024));
        let two = TenantSums { exports: 2, clients: 4, dirty: 4096, ..TenantSums::default() };
        assert_eq!((sums[&TenantId(0)], sums[&TenantId(999)].exports), (two, 1));
    }
}
