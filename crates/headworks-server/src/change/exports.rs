//! `exports`: one row for each export.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use headworks_core::{DeviceState, ExportId, VolumeId};
use headworks_nbd::device::RemoteState;

use super::LiveChanges;
use super::held_up::silences;
use crate::control::in_flight::{InFlight, InFlightExports};
use crate::control::inventory::VolumeEntry;
use crate::control::queries::{DELETED, NodeCounts};
use crate::control::tree::{ExportNode, device_name, lock};
use crate::exports::assemble::{AbsentExport, shown_name};
use crate::reactor::messages::command::ExportReport;
use crate::reactor::messages::query::ControlQuery;
use crate::spec::ModelLink;
use headworks_control::{RpcFault, answers};
use headworks_core::limits::LimitTarget;

/// A latency target in a report; null for none.
pub(super) fn some_target(target_us: u32) -> Option<u32> {
    Some(target_us).filter(|target_us| *target_us > 0)
}

/// The method `exports`: one row for each.
pub fn exports(
    live: &LiveChanges,
    counts: &NodeCounts,
    in_flight: &InFlightExports,
) -> Result<Vec<answers::Export>, RpcFault> {
    let tree = live.tree.current();
    let reports = export_reports(live)?;
    let draining = lock(&live.draining).clone();
    let (deleted, silences) = (deleted_images(live), silences(live, &tree));
    let mut by_volume: BTreeMap<VolumeId, Vec<&ExportNode>> = BTreeMap::new();
    for entry in &tree.exports {
        by_volume.entry(entry.volume).or_default().push(entry);
    }
    let row = |entry: &ExportNode| {
        let report = reports.get(&entry.id)?;
        let now = live.settings.of(entry.id).options;
        let device_state = if report.stuck { DeviceState::Stuck } else { DeviceState::Live };
        let remote = tree.remote_of(entry).map(|link| (link, link.status.report()));
        let state = match report {
            ExportReport { frozen: true, .. } => "frozen",
            _ if draining.contains(&entry.id) => "draining",
            ExportReport { suspect: true, .. } => "suspect",
            ExportReport { failed: 1.., .. } => "suspect",
            _ if deleted.contains(&entry.volume) => "deleted",
            _ if remote.as_ref().is_some_and(|(_, it)| it.state != RemoteState::Up) => {
                "disconnected"
            }
            ExportReport { refuses: true, .. } => "refusing",
            _ => "serving",
        };
        let reason = deleted.contains(&entry.volume).then_some(DELETED);
        let targets = counts.targets.exports.get(&entry.id);
        Some(answers::Export {
            name: entry.shown_name().to_owned(),
            size: report.size,
            offset: Some(entry.range.start()),
            device: Some(device_name(entry.device)),
            cache: Some(entry.mode.name().to_owned()),
            read_only: entry.read_only,
            weight: now.weight,
            tenant: live.settings.tenant_of(entry.id).map(|name| name.to_string()),
            ioprio: now.ioprio.to_string(),
            latency_target_us: some_target(live.settings.target_of(entry.id).0),
            target_missed: targets.map_or(0, |counts| counts.missed),
            limited_seconds: counts.limited_seconds(LimitTarget::Export(entry.id)),
            clients: report.clients,
            dirty: report.dirty,
            dirty_shared_with: by_volume[&entry.volume]
                .iter()
                .filter(|other| other.id != entry.id)
                .map(|other| other.shown_name().to_owned())
                .collect(),
            failed: report.failed,
            state: state.to_owned(),
            device_state: Some(device_state.name().to_owned()),
            reason: reason.map(str::to_owned),
            remote: remote.map(|(link, report)| {
                let mut remote = link.answer(&report);
                if let Some(silence) = silences.get(&entry.device) {
                    remote.told = format!("{}, {silence}", remote.told);
                }
                remote
            }),
            model: tree.model_of(entry).map(ModelLink::answer),
            in_flight: in_flight.get(&entry.id).map(InFlight::answer).unwrap_or_default(),
        })
    };
    let absent = |absent: &AbsentExport| {
        let share = &absent.spec.share;
        answers::Export {
            name: shown_name(&absent.spec.name).to_owned(),
            read_only: !absent.spec.writes(),
            weight: share.weight,
            tenant: share.tenant.map(|name| name.to_string()),
            ioprio: share.ioprio.to_string(),
            latency_target_us: some_target(share.latency_target_us),
            state: "absent".to_owned(),
            reason: Some(absent.reason.clone()),
            ..answers::Export::default()
        }
    };
    let served = tree.exports.iter().filter_map(row);
    Ok(served.chain(tree.absent.iter().map(absent)).collect())
}

/// Volumes whose images were deleted while they are served; none while a change of exports is in progress.
pub fn deleted_images(live: &LiveChanges) -> Vec<VolumeId> {
    // A query does not wait for a change, which may wait for a disk.
    let Ok(inventory) = live.inventory.try_lock() else { return Vec::new() };
    let is_deleted = |entry: &VolumeEntry| {
        entry.origin.watch.as_ref().is_some_and(|image| image.is_deleted().unwrap_or(false))
    };
    let all = inventory.volumes.iter().filter(|(_, entry)| is_deleted(entry));
    all.map(|(id, _)| VolumeId(*id)).collect()
}

/// Reports of all exports, added up over the shards.
pub(super) fn export_reports(
    live: &LiveChanges,
) -> Result<BTreeMap<ExportId, ExportReport>, RpcFault> {
    let mut all = BTreeMap::new();
    for shard in live.shards.ids() {
        for report in live.shards.ask(shard, |answer| ControlQuery::Exports { answer })? {
            match all.entry(report.export) {
                Entry::Vacant(place) => drop(place.insert(report)),
                Entry::Occupied(known) => known.into_mut().add(&report),
            }
        }
    }
    Ok(all)
}

/// Report of one export; none if no shard knows it.
pub(super) fn export_report(
    live: &LiveChanges,
    export: ExportId,
) -> Result<Option<ExportReport>, RpcFault> {
    Ok(export_reports(live)?.remove(&export))
}
